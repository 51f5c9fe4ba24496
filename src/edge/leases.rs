//! Decisions of this isolate from tokens taken in advance.
//!
//! A busy budget has its tokens in *leases*: the object withholds them from all other callers, and the isolate spends them without a call.
//! Their size follows recent demand, so that a lease lasts for about its time. The next one is requested before the last is spent, in the
//! background of a request; with it, or at the end, the isolate reports what it spent of the earlier ones and returns the rest. No request
//! waits for this: a request that exceeds the leases goes to the object, returns what is left of them, and brings the next lease with its
//! answer. If it is refused from memory (see `refusals.rs`), they stay.
//!
//! Under overload the object leases tokens that have not refilled yet. Until then the isolate refuses requests that need them, with the
//! exact retry time, at most [`FrontendTerms::refusal_cache_ms`](crate::policy::FrontendTerms::refusal_cache_ms) later.
//!
//! Nothing is granted that the object has not set aside, whatever is lost or repeated: see `ledger/leases.rs`. Only lengths of time are
//! measured here, so clocks may differ: the end of a lease is timed from the start of its call, and the moment from which its tokens may be
//! spent from the arrival of the answer. A clock that steps back ends it.
//!
//! The isolate reports ended leases until an answer confirms it. If it forgets a lease, the object counts it as spent.

use super::answer_time::AnswerTime;
use super::budget::{Budget, budget};
use super::generations::Generations;
use super::lease_pool::{LeaseNeeds, LeasePool, Return, Withheld, Worth};
use crate::limit::{Decision, State};
use crate::policy::{LeaseTerms, NamedLimit, Policy, Standing};
use crate::protocol::{Decided, LeaseRequest, LimitAnswer};

/// A frontend's leases.
#[derive(Debug, Default)]
pub(super) struct Leases(Generations<Budget, Entry>);

/// A request granted or refused without a call, as its only policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The answer.
    pub decided: Decided,
    /// The lease request to send in the background, if any.
    pub renewal: Option<LeaseRequest>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// The [id](Policy::id) of the policy under which the tokens were leased.
    policy: u64,
    pool: LeasePool,
    /// The limits' state by the latest answer, lowered by what was spent here since.
    standing: Vec<State>,
    /// When that answer was given.
    standing_of: Option<AnswerTime>,
    /// How far the object's clock was ahead when that answer arrived.
    ahead_ms: i64,
}

impl Leases {
    /// Answers a request with these costs of each limit of a policy from leases, at `now`; `None` if they have not enough. The request must
    /// only take tokens.
    pub(super) fn consume(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<Leased> {
        let (terms, entry) = self.entry(object, policy, costs, now)?;
        let now = entry.at(policy, now);
        if entry.standing.len() != policy.limits().len() {
            return None; // no answer yet
        }
        let decision = entry.decide(policy, costs, now)?;
        entry.pool.count(costs, now, terms.lease_ms);
        let at = now.saturating_add(entry.ahead_ms); // by the object's clock, like all answers
        let limits = policy.limits().iter().zip(costs).enumerate();
        let answers = limits.map(|(index, (limit, cost))| entry.answer(index, limit, *cost, decision, at));
        let decided = Decided::new(at, answers.collect::<Option<_>>()?);
        let renewal = entry.request(policy, terms, now, false);
        Some(Leased { decided, renewal })
    }

    /// The lease request to send with a request at `now` that exceeds the leases. They end, since what is left of them would be withheld
    /// from that request, too.
    pub(super) fn ask(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<LeaseRequest> {
        let (terms, entry) = self.entry(object, policy, costs, now)?;
        let now = entry.at(policy, now);
        entry.pool.count(costs, now, terms.lease_ms);
        entry.pool.end_all();
        entry.request(policy, terms, now, true)
    }

    /// Whether leases under these numbers have tokens left at `now` that the object withholds from all other requests.
    pub(super) fn withhold_any(&mut self, object: &str, policy: &Policy, now: i64) -> bool {
        let Some(entry) = self.known(object, policy) else { return false };
        entry.pool.withheld().any(|lease| lease.has_rest && now < lease.given_up_at)
    }

    /// Whether an answer is whole: older than all leases whose end the object may not know, and not late. Then it includes the tokens that
    /// this isolate may still spend, and excludes what it has spent. A lease that came with it is younger.
    pub(super) fn is_whole(&mut self, object: &str, policy: &Policy, decided: &Decided, answer: &AnswerTime) -> bool {
        let Some(entry) = self.known(object, policy) else { return true };
        let came_with_it = decided.lease.as_ref().map(|lease| lease.id);
        let is_withheld = |lease: &Withheld| Some(lease.id) != came_with_it && answer.called_at < lease.given_up_at;
        entry.pool.withheld().filter(is_withheld).all(|lease| answer.order(&lease.given).is_lt())
            && entry.pool.is_latest(answer)
    }

    /// Records an answer by which the object granted something beside the leases: `limits` is the policy's part of it.
    pub(super) fn granted(
        &mut self,
        object: &str,
        policy: &Policy,
        (limits, decided): (&[LimitAnswer], &Decided),
        answer: &AnswerTime,
    ) {
        if let Some(entry) = self.known(object, policy) {
            entry.pool.granted(answer);
            // One that brings a lease does not count it yet: see `answered`.
            if decided.lease.is_none() && !decided.is_replayed && !entry.stands_later_than(answer) {
                entry.update_standing(policy, limits, answer);
            }
        }
    }

    /// Takes note that the object has refused something at that moment.
    pub(super) fn refused(&mut self, object: &str, policy: &Policy, at: i64) {
        if let Some(entry) = self.known(object, policy) {
            entry.pool.refused(at);
        }
    }

    /// Takes over what an object has answered to a request for a lease: `request` is what it was asked. Returns the lease's id and after
    /// how many milliseconds to call [`Leases::end`].
    pub(super) fn answered(
        &mut self,
        object: &str,
        policy: &Policy,
        request: &LeaseRequest,
        decided: &Decided,
        given: AnswerTime,
    ) -> Option<(u64, u64)> {
        let terms = policy.frontend().lease?;
        let entry = self.0.get_mut(budget(object, policy)?)?;
        let is_same = entry.policy == policy.id();
        let lease = decided.lease.as_ref();
        if is_same && !entry.stands_later_than(&given) {
            entry.update_standing(policy, &decided.limits, &given);
        } else if is_same && let Some(lease) = lease {
            // A later answer counts the lease as taken.
            for ((state, limit), tokens) in entry.standing.iter_mut().zip(policy.limits()).zip(&lease.tokens) {
                *state = limit.limit().raised(state, *tokens);
            }
        }
        let wait_ms = match decided.decision() {
            Decision::Wait { retry_at } => retry_at.abs_diff(decided.now),
            _ => 0,
        };
        let usable = is_same && lease.is_none_or(|lease| lease.tokens.len() == policy.limits().len());
        entry.pool.answered(request, lease, (wait_ms, terms.lease_ms, usable), given)
    }

    /// Records that a lease request was not answered.
    pub(super) fn failed(&mut self, object: &str, policy: &Policy, request: &LeaseRequest, now: i64) {
        let Some(terms) = policy.frontend().lease else { return };
        if let Some(entry) = budget(object, policy).and_then(|budget| self.0.get_mut(budget)) {
            entry.pool.failed(request, terms.lease_ms, now);
        }
    }

    /// The next step for the lease with this id at `now`: an idle lease is returned, and so is the rest of one that is over.
    pub(super) fn end(&mut self, object: &str, policy: &Policy, id: u64, now: i64) -> Return {
        let (Some(terms), Some(budget)) = (policy.frontend().lease, budget(object, policy)) else {
            return Return::Over;
        };
        let Some(entry) = self.0.get_mut(budget) else { return Return::Over };
        entry.pool.end_idle(id, policy.limits().len(), terms.lease_ms, now)
    }

    /// Stops refusing until tokens refill: the isolate gives something back to this budget.
    pub(super) fn forget(&mut self, object: &str, policy: &Policy) {
        if let Some(entry) = budget(object, policy).and_then(|budget| self.0.get_mut(budget)) {
            entry.pool.end_future();
        }
    }

    /// The entry of a budget under these numbers. Leases under others count as spent.
    fn known(&mut self, object: &str, policy: &Policy) -> Option<&mut Entry> {
        policy.frontend().lease?;
        self.0.get_mut(budget(object, policy)?).filter(|entry| entry.policy == policy.id())
    }

    /// The entry of a budget that can be leased.
    fn entry(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<(LeaseTerms, &mut Entry)> {
        let (terms, budget) = (policy.frontend().lease?, budget(object, policy)?);
        if !may_lease(policy) || costs.len() != policy.limits().len() || costs.iter().all(|&cost| cost == 0) {
            return None;
        }
        if self.0.get_mut(budget).is_none() {
            self.0.insert(budget, Entry::new(policy, now));
        }
        Some((terms, self.0.get_mut(budget)?))
    }
}

/// Whether the policy's tokens can be leased. In shadow each request must be tried, and a key may be banned or unlimited.
fn may_lease(policy: &Policy) -> bool {
    let is_limited = policy.standing() == Standing::Limited && !policy.limits().is_empty();
    is_limited && policy.shadow_limits().is_empty() && !policy.is_inline()
}

impl Entry {
    fn new(policy: &Policy, now: i64) -> Self {
        let (standing, standing_of, ahead_ms) = Default::default();
        Self { policy: policy.id(), pool: LeasePool::new(now), standing, standing_of, ahead_ms }
    }

    /// What to send to the object about leases of the policy at `now`.
    fn request(&mut self, policy: &Policy, terms: LeaseTerms, now: i64, is_asked: bool) -> Option<LeaseRequest> {
        let LeaseTerms { lease_ms, max_tokens } = terms;
        // There is never more than the capacity, and a lease has half of what there is.
        let half = |limit: &NamedLimit| limit.limit().config().capacity.div_ceil(2);
        let max_tokens = |index: usize| policy.limits().get(index).map_or(0, half).min(max_tokens);
        let horizon_ms = policy.frontend().horizon_ms(lease_ms);
        let needs = LeaseNeeds { lease_ms, max_tokens: &max_tokens, horizon_ms, worth: Worth::FRONTEND };
        self.pool.request(policy.limits().len(), needs, now, is_asked)
    }

    /// Goes on to `now`, and to the policy as it is then. Returns the moment to count from.
    fn at(&mut self, policy: &Policy, now: i64) -> i64 {
        if self.policy != policy.id() {
            self.pool.restart(now);
            self.policy = policy.id();
            (self.standing, self.standing_of, self.ahead_ms) = Default::default();
        }
        self.pool.advance(now)
    }

    /// Whether the limits' state is of a later answer.
    fn stands_later_than(&self, answer: &AnswerTime) -> bool {
        self.standing_of.is_some_and(|of| answer.is_before(&of))
    }

    /// Updates the limits' state from an answer, which counts the rest of earlier leases as taken.
    fn update_standing(&mut self, policy: &Policy, answers: &[LimitAnswer], answer: &AnswerTime) {
        let limits = policy.limits().iter().zip(answers).enumerate();
        let states = limits.map(|(index, (limit, answer))| {
            let state = limit.limit().restored(&answer.snapshot)?;
            Some(limit.limit().raised(&state, self.pool.left(index, i64::MAX)))
        });
        self.standing = states.collect::<Option<_>>().unwrap_or_default();
        self.standing_of = Some(*answer);
        self.ahead_ms = answer.decided_at.saturating_sub(answer.answered_at);
    }

    /// Grants the costs, or returns when the leases have them; `None` if the object must be called.
    fn decide(&mut self, policy: &Policy, costs: &[u64], now: i64) -> Option<Decision> {
        let decision = self.pool.decide(costs, now)?;
        if decision.is_allow() {
            for ((state, limit), cost) in self.standing.iter_mut().zip(policy.limits()).zip(costs) {
                let limit = limit.limit();
                *state = limit.lowered(&limit.refilled(state, now.saturating_add(self.ahead_ms)), *cost);
            }
        }
        Some(decision)
    }

    /// A limit's answer at a moment of the object's clock, as if only this isolate had taken tokens since the last answer.
    fn answer(&self, index: usize, limit: &NamedLimit, cost: u64, decision: Decision, now: i64) -> Option<LimitAnswer> {
        let state = self.standing.get(index)?;
        let left = self.pool.left(index, now.saturating_sub(self.ahead_ms));
        let decision = match decision {
            Decision::Allow { .. } => Decision::Allow { tokens: cost, ready_at: now },
            // Only limits with too little left refuse.
            _ if left >= cost => Decision::Allow { tokens: cost, ready_at: now },
            Decision::Wait { retry_at } => Decision::Wait { retry_at: retry_at.saturating_add(self.ahead_ms) },
            never @ Decision::Never { .. } => never,
        };
        Some(LimitAnswer::new(limit.limit(), decision, state, now))
    }
}
