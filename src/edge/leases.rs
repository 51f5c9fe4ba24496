//! Decisions of this isolate from tokens that it has taken in advance.
//!
//! A budget that is asked for often has its tokens in *leases*: the object withholds them from everybody else, and the isolate
//! spends them without asking. How many it wants follows what was asked for lately, so that a lease lasts for about its time.
//! The next one is asked for before the last is spent, in the background of a request; with it, or at the end, the isolate says
//! what it has spent of the earlier ones, and has the rest given back. Nobody waits for any of this: a request for which the
//! leases have not enough asks the object, gives back what is left of them, and brings the next lease with its answer. If it is
//! refused from memory (see `refusals.rs`), they stay.
//!
//! In an overload the object leases tokens that are still to come back. Until then the isolate refuses what they are needed for,
//! and says exactly when they can be had. That is at most [`FrontendTerms::refusal_cache_ms`](crate::policy::FrontendTerms::refusal_cache_ms) later.
//!
//! Nothing is granted that the object has not set aside, whatever is lost or repeated: see `ledger/leases.rs`. Only lengths of
//! time are measured here, so clocks may differ: the end of a lease is timed from the start of its call, and the moment from which
//! its tokens may be spent from the arrival of the answer. A clock that steps back ends it.
//!
//! The isolate repeats which leases have ended until an answer confirms it. If it forgets a lease, the object counts it as spent.

use super::answer_time::AnswerTime;
use super::budget::{Budget, budget};
use super::generations::Generations;
use crate::limit::{Decision, MAX_TOKENS, State};
use crate::policy::{LeaseTerms, NamedLimit, Policy, Standing};
use crate::protocol::{Decided, EndedLease, LATE_MS, Lease, LeaseRequest, LimitAnswer};

/// The leases of a frontend.
#[derive(Debug)]
pub(super) struct Leases(Generations<Budget, Entry>);

/// The most budgets of a generation. With one limit each, two generations are some eight megabytes where pointers have 64 bits, seventeen
/// if objects have not heard yet of the last 16 leases of each, and twenty-six with eight limits each; in WebAssembly less.
const MAX_LEASED: usize = 4_096;

/// A request that is granted or refused without a call, as its only policy decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The answer.
    pub decided: Decided,
    /// What to ask the object in the background, if anything.
    pub renewal: Option<LeaseRequest>,
}

/// What to do about a lease that may be idle or over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Return {
    /// To look again in so many milliseconds.
    Wait(u64),
    /// To send this to the object: it has ended.
    Send(LeaseRequest),
    /// Nothing: nothing is left of it.
    Over,
}

/// Minimum requests expected during a lease for one to be requested: 16 calls' worth, plus half as a margin for keys that go quiet. A lease
/// is a row of its object, which costs as much as seven calls, and perhaps a call and another row to return what is left. Rarer requests are
/// cheaper one by one.
const MIN_EXPECTED: u64 = 24;

/// Requests that must have come in the time of a lease that has begun, for each to be expected: a burst may be over at any moment. Those of
/// the one before count in full.
const ASKED_PER_EXPECTED: u64 = 2;

/// Requests that are under way at once may have read the clock at moments that differ by so much. It is part of what the object
/// waits longer than it says.
const STALE_MS: i64 = 100;

#[derive(Clone, Debug)]
struct Entry {
    /// The [id](Policy::id) of the policy under which the tokens were leased.
    policy: u64,
    /// The latest moment that was seen: a clock that has stepped back measures nothing.
    seen_at: i64,
    demand: Demand,
    /// Those that can be spent from first, first; all last equally long.
    open: Vec<OpenLease>,
    /// Leases that have ended and of which the object may not have heard so.
    ended: Vec<Ended>,
    /// Until when no lease is asked for: one is on its way, or there was none.
    asks_again_at: i64,
    /// How many tokens of each limit the latest lease had.
    given: Vec<u64>,
    /// How the limits stood by the latest answer, without what was spent here since.
    standing: Vec<State>,
    /// How far the object's clock was ahead when that answer had come.
    ahead_ms: i64,
    /// The latest answer after which a grant, a return or a lease that was spent from is known. Earlier answers lack that.
    latest: Option<AnswerTime>,
}

#[derive(Clone, Debug)]
struct OpenLease {
    id: u64,
    given: AnswerTime,
    from: i64,
    until: i64,
    left: Vec<u64>,
    spent: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Ended {
    lease: EndedLease,
    given: AnswerTime,
    has_rest: bool,
    /// When the object has surely counted it as spent.
    given_up_at: i64,
}

/// What an object withholds.
struct Unheard {
    id: u64,
    given: AnswerTime,
    has_rest: bool,
    given_up_at: i64,
}

/// What was asked for, in the period that has begun and in the one before, each as long as a lease.
#[derive(Clone, Debug, Default)]
struct Demand {
    since: i64,
    asked: u64,
    tokens: Vec<u64>,
    asked_before: u64,
    tokens_before: Vec<u64>,
    /// When it was last asked for.
    latest: i64,
}

impl Default for Leases {
    fn default() -> Self {
        Self(Generations::new(MAX_LEASED))
    }
}

impl Leases {
    /// What the leases say at `now` about a request for these costs of each limit of a policy; `None` if they have not enough. It must
    /// be one that only takes tokens.
    pub(super) fn consume(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<Leased> {
        let (terms, entry) = self.entry(object, policy, costs, now)?;
        let now = entry.at(policy, now);
        let decision = entry.decide(policy, costs, now)?;
        entry.demand.add(costs, now, terms.lease_ms);
        let at = now.saturating_add(entry.ahead_ms); // by the object's clock, as all answers
        let limits = policy.limits().iter().zip(costs).enumerate();
        let answers = limits.map(|(index, (limit, cost))| entry.answer(index, limit, *cost, decision, at));
        let decided = Decided::new(at, answers.collect::<Option<_>>()?);
        let renewal = entry.request(policy, terms, now, false);
        Some(Leased { decided, renewal })
    }

    /// What to ask the object about leases beside such a request at `now` for which they have not enough. They end: what is left of them would
    /// be withheld from it, too.
    pub(super) fn ask(&mut self, object: &str, policy: &Policy, costs: &[u64], now: i64) -> Option<LeaseRequest> {
        let (terms, entry) = self.entry(object, policy, costs, now)?;
        let now = entry.at(policy, now);
        entry.demand.add(costs, now, terms.lease_ms);
        entry.end_those(|_| true);
        entry.request(policy, terms, now, true)
    }

    /// Whether something is left at `now` of leases under these numbers that the object keeps from all other requests.
    pub(super) fn withhold_any(&mut self, object: &str, policy: &Policy, now: i64) -> bool {
        let Some(entry) = self.known(object, policy) else { return false };
        entry.unheard().any(|lease| lease.has_rest && now < lease.given_up_at)
    }

    /// Whether an answer of the object is whole: older than all leases that the object withholds until it hears of their end, and not late. Then
    /// it has what this isolate may still spend, and nothing that it has spent. A lease that came with it is younger.
    pub(super) fn is_whole(&mut self, object: &str, policy: &Policy, decided: &Decided, answer: &AnswerTime) -> bool {
        let Some(entry) = self.known(object, policy) else { return true };
        let came_with_it = decided.lease.as_ref().map(|lease| lease.id);
        let is_withheld = |lease: &Unheard| Some(lease.id) != came_with_it && answer.called_at < lease.given_up_at;
        entry.unheard().filter(is_withheld).all(|lease| answer.order(&lease.given).is_lt())
            && entry.latest.is_none_or(|latest| !answer.is_before(&latest))
    }

    /// Takes note that the object has granted something by this answer, beside what is leased.
    pub(super) fn granted(&mut self, object: &str, policy: &Policy, answer: &AnswerTime) {
        if let Some(entry) = self.known(object, policy) {
            keep_latest(&mut entry.latest, answer);
        }
    }

    /// Takes over what an object has answered to a request for a lease: `request` is what it was asked. Returns the lease's id and after how
    /// many milliseconds to call [`Leases::end`].
    pub(super) fn answered(
        &mut self,
        object: &str,
        policy: &Policy,
        request: &LeaseRequest,
        decided: &Decided,
        given: AnswerTime,
    ) -> Option<(u64, u64)> {
        let AnswerTime { called_at, answered_at, .. } = given;
        let terms = policy.frontend().lease?;
        let entry = self.0.get_mut(budget(object, policy)?)?;
        let unheard = entry.ended.len();
        entry.ended.retain(|ended| !request.ended.contains(&ended.lease));
        if entry.ended.len() < unheard {
            keep_latest(&mut entry.latest, &given);
        }
        entry.update_standing(policy, decided, answered_at);
        let Some(Lease { id, from, until, tokens }) = &decided.lease else {
            if !request.wants_any() {
                return None;
            }
            // Before what was refused can be had, there is nothing to lease either.
            let wait_ms = match decided.decision() {
                Decision::Wait { retry_at } => retry_at.abs_diff(decided.now).min(request.horizon_ms),
                _ => 0,
            };
            let pause_ms = (terms.lease_ms / 4).max(wait_ms).cast_signed();
            entry.asks_again_at = entry.asks_again_at.min(answered_at.saturating_add(pause_ms));
            return None;
        };
        entry.asks_again_at = answered_at;
        entry.given.clone_from(tokens);
        let lease = OpenLease {
            id: *id,
            given,
            // Those that are there may be spent at once, also by a request that has read the clock before.
            from: match from.saturating_sub(decided.now) {
                ..=0 => i64::MIN,
                wait_ms => answered_at.saturating_add(wait_ms),
            },
            until: called_at.saturating_add(until.saturating_sub(decided.now)),
            left: tokens.clone(),
            spent: vec![0; tokens.len()],
        };
        // A clock that has stepped back during the call measures nothing.
        let is_usable = !given.has_stepped_back() && entry.seen_at <= answered_at && entry.policy == policy.id();
        if !is_usable || lease.from >= lease.until || tokens.len() != policy.limits().len() {
            entry.end(lease);
            return Some((*id, 0));
        }
        let half_ms = lease.until.abs_diff(answered_at) / 2;
        let at = entry.open.partition_point(|open| open.from <= lease.from);
        entry.open.insert(at, lease);
        Some((*id, half_ms))
    }

    /// Takes note that a request about leases was not answered.
    pub(super) fn failed(&mut self, object: &str, policy: &Policy, request: &LeaseRequest, now: i64) {
        let Some(terms) = policy.frontend().lease.filter(|_| request.wants_any()) else { return };
        if let Some(entry) = budget(object, policy).and_then(|budget| self.0.get_mut(budget)) {
            entry.asks_again_at = entry.asks_again_at.min(now.saturating_add((terms.lease_ms / 2).cast_signed()));
        }
    }

    /// What to do about a lease of that id at `now`: an idle one is returned, and so is what is left in the end.
    pub(super) fn end(&mut self, object: &str, policy: &Policy, id: u64, now: i64) -> Return {
        let (Some(terms), Some(budget)) = (policy.frontend().lease, budget(object, policy)) else {
            return Return::Over;
        };
        let Some(entry) = self.0.get_mut(budget) else { return Return::Over };
        let now = entry.advance(now);
        let is_idle = now.saturating_sub(entry.demand.latest) >= (terms.lease_ms / 2).cast_signed();
        if let Some(open) = entry.open.iter().find(|open| open.id == id) {
            if !is_idle {
                return Return::Wait(open.until.abs_diff(now));
            }
            entry.end_those(|open| open.id == id);
        }
        if let Some(ended) = entry.ended.iter().find(|ended| ended.lease.id == id && ended.has_rest) {
            // The next lease reports it, if that is asked for soon. The object waits for LATE_MS.
            let wait_ms = ended.given_up_at.saturating_sub_unsigned(LATE_MS / 2).saturating_sub(now);
            if !is_idle && !entry.open.is_empty() && wait_ms > 0 {
                return Return::Wait(wait_ms.unsigned_abs());
            }
            let (wanted, ended) = (vec![0; policy.limits().len()], entry.ended());
            return Return::Send(LeaseRequest { wanted, ended, lease_ms: 0, horizon_ms: 0 });
        }
        Return::Over
    }

    /// Refuses no more until tokens come back: the isolate gives something back to this budget.
    pub(super) fn forget(&mut self, object: &str, policy: &Policy) {
        if let Some(entry) = budget(object, policy).and_then(|budget| self.0.get_mut(budget)) {
            let now = entry.seen_at;
            entry.end_those(|open| open.from > now);
        }
    }

    /// What is known of a budget under these numbers. Leases under others count as spent.
    fn known(&mut self, object: &str, policy: &Policy) -> Option<&mut Entry> {
        policy.frontend().lease?;
        self.0.get_mut(budget(object, policy)?).filter(|entry| entry.policy == policy.id())
    }

    /// What is known of a budget that can be leased.
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

/// Whether tokens of the policy can be leased: of one in shadow each request must be tried, and a key may be banned or unlimited.
fn may_lease(policy: &Policy) -> bool {
    let is_limited = policy.standing() == Standing::Limited && !policy.limits().is_empty();
    is_limited && policy.shadow_limits().is_empty() && !policy.is_inline()
}

impl Entry {
    fn new(policy: &Policy, now: i64) -> Self {
        let demand = Demand { since: now, latest: now, ..Demand::default() };
        let (open, ended, given, standing, ahead_ms, latest) = Default::default();
        let asks_again_at = i64::MIN;
        Self {
            policy: policy.id(),
            seen_at: now,
            demand,
            open,
            ended,
            asks_again_at,
            given,
            standing,
            ahead_ms,
            latest,
        }
    }

    /// Goes on to `now`, and to the policy as it is then. Returns the moment to count from.
    fn at(&mut self, policy: &Policy, now: i64) -> i64 {
        if self.policy != policy.id() {
            // Under other numbers, what was leased counts as spent.
            *self = Self { demand: std::mem::take(&mut self.demand), ..Self::new(policy, now) };
        }
        self.advance(now)
    }

    /// Goes on to `now`: leases that are over have ended, and all if the clock has stepped back.
    fn advance(&mut self, now: i64) -> i64 {
        if now < self.seen_at.saturating_sub(STALE_MS) {
            self.step_back(now);
        }
        let now = now.max(self.seen_at);
        self.seen_at = now;
        self.end_those(|open| open.until <= now || !open.has_rest());
        now
    }

    /// Moments of before the step mean nothing any more. What is left of a length of time is at most what was left when the clock was last seen.
    fn step_back(&mut self, now: i64) {
        self.end_those(|_| true);
        let step_ms = self.seen_at.saturating_sub(now);
        for Ended { given, given_up_at, .. } in &mut self.ended {
            for moment in [&mut given.called_at, &mut given.answered_at, given_up_at] {
                *moment = moment.saturating_sub(step_ms);
            }
        }
        (self.seen_at, self.asks_again_at, self.latest) = (now, i64::MIN, None);
    }

    /// The leases that the object withholds, as far as is known here: those that are open, and those of whose end it may not have heard.
    fn unheard(&self) -> impl Iterator<Item = Unheard> {
        let open = self.open.iter().map(|open| Unheard {
            id: open.id,
            given: open.given,
            given_up_at: open.given_up_at(),
            has_rest: open.has_rest(),
        });
        let ended = self.ended.iter().map(|&Ended { ref lease, given, given_up_at, has_rest }| Unheard {
            id: lease.id,
            given,
            given_up_at,
            has_rest,
        });
        open.chain(ended)
    }

    fn end_those(&mut self, mut is_meant: impl FnMut(&OpenLease) -> bool) {
        let meant: Vec<_> = self.open.extract_if(.., |open| is_meant(open)).collect();
        for open in meant {
            self.end(open);
        }
    }

    /// Remembers how the limits stand by an answer: what is left of earlier leases counts as taken there.
    fn update_standing(&mut self, policy: &Policy, decided: &Decided, now: i64) {
        let limits = policy.limits().iter().zip(&decided.limits).enumerate();
        let states = limits.map(|(index, (limit, answer))| {
            let state = limit.limit().restored(&answer.snapshot)?;
            Some(limit.limit().raised(&state, self.left(index, i64::MAX)))
        });
        self.standing = states.collect::<Option<_>>().unwrap_or_default();
        self.ahead_ms = decided.now.saturating_sub(now);
    }

    /// What is left of a limit that may be spent by then.
    fn left(&self, limit: usize, by: i64) -> u64 {
        let usable = self.open.iter().filter(|open| open.from <= by);
        usable.fold(0, |sum, open| sum.saturating_add(open.left.get(limit).copied().unwrap_or(0)))
    }

    /// Spends no more of a lease. If all of it is spent, the object hears so with the next request: it counts it as spent in any case.
    fn end(&mut self, lease: OpenLease) {
        if self.ended.len() >= LeaseRequest::MAX_ENDED {
            self.ended.remove(0);
        }
        let (given, has_rest, given_up_at) = (lease.given, lease.has_rest(), lease.given_up_at());
        self.ended.push(Ended { lease: EndedLease { id: lease.id, spent: lease.spent }, given, has_rest, given_up_at });
    }

    fn ended(&self) -> Vec<EndedLease> {
        self.ended.iter().map(|ended| ended.lease.clone()).collect()
    }

    /// Grants the costs, or says when they can be had from the leases; `None` if the object must be asked.
    fn decide(&mut self, policy: &Policy, costs: &[u64], now: i64) -> Option<Decision> {
        let is_enough = |at: i64| {
            let usable = || self.open.iter().filter(move |open| open.from <= at && at < open.until);
            let left = |limit: usize| {
                usable().fold(0_u64, |sum, open| sum.saturating_add(open.left.get(limit).copied().unwrap_or(0)))
            };
            costs.iter().enumerate().all(|(limit, &cost)| left(limit) >= cost)
        };
        let from = self.open.iter().map(|open| open.from.max(now)).find(|&at| is_enough(at))?;
        if from > now {
            return Some(Decision::Wait { retry_at: from });
        }
        for ((state, limit), cost) in self.standing.iter_mut().zip(policy.limits()).zip(costs) {
            *state = limit.limit().lowered(&limit.limit().refilled(state, now.saturating_add(self.ahead_ms)), *cost);
        }
        let mut owed: Vec<u64> = costs.to_vec();
        for open in self.open.iter_mut().filter(|open| open.from <= now) {
            for ((owed, left), spent) in owed.iter_mut().zip(&mut open.left).zip(&mut open.spent) {
                let tokens = (*owed).min(*left);
                *owed = owed.saturating_sub(tokens);
                *left = left.saturating_sub(tokens);
                *spent = spent.saturating_add(tokens);
                if tokens > 0 {
                    keep_latest(&mut self.latest, &open.given);
                }
            }
        }
        Some(Decision::Allow { tokens: 0, ready_at: now })
    }

    /// What to ask the object at `now` about leases, beside a request that it must answer or in the background.
    fn request(&mut self, policy: &Policy, terms: LeaseTerms, now: i64, is_asked: bool) -> Option<LeaseRequest> {
        let LeaseTerms { lease_ms, max_tokens } = terms;
        let expected = self.demand.expected();
        let is_wanted = expected.asked >= MIN_EXPECTED && self.asks_again_at <= now;
        let mut wanted = vec![0; policy.limits().len()];
        if is_wanted {
            for ((index, wanted), &expected) in wanted.iter_mut().enumerate().zip(&expected.tokens) {
                let soon = now.saturating_add((lease_ms / 4).cast_signed());
                let lasting = self.open.iter().filter(|open| open.until > soon);
                let left =
                    lasting.fold(0_u64, |sum, open| sum.saturating_add(open.left.get(index).copied().unwrap_or(0)));
                // While a quarter is left of what can be had, nothing is asked for in the background.
                let most = expected.min(max_tokens).min(MAX_TOKENS);
                let usual = self.given.get(index).map_or(most, |&given| most.min(given));
                if is_asked || left < usual.div_ceil(4) {
                    *wanted = most.saturating_sub(left);
                }
            }
        }
        let wants_any = wanted.iter().any(|&wanted| wanted > 0);
        if wants_any {
            // The answer ends this sooner, unless it is lost.
            self.asks_again_at = now.saturating_add(lease_ms.cast_signed());
        }
        let is_worth_a_call = wants_any || (is_asked && !self.ended.is_empty());
        let horizon_ms = policy.frontend().horizon_ms(lease_ms);
        is_worth_a_call.then(|| LeaseRequest { lease_ms, horizon_ms, wanted, ended: self.ended() })
    }

    /// What a limit says, at a moment of the object's clock: as it stands if nobody else has taken anything since it was heard of.
    fn answer(&self, index: usize, limit: &NamedLimit, cost: u64, decision: Decision, now: i64) -> Option<LimitAnswer> {
        let state = self.standing.get(index)?;
        let left = self.left(index, now.saturating_sub(self.ahead_ms));
        let decision = match decision {
            Decision::Allow { .. } => Decision::Allow { tokens: cost, ready_at: now },
            // The refusal is that of the limits of which too little is left.
            _ if left >= cost => Decision::Allow { tokens: cost, ready_at: now },
            Decision::Wait { retry_at } => Decision::Wait { retry_at: retry_at.saturating_add(self.ahead_ms) },
            never @ Decision::Never { .. } => never,
        };
        Some(LimitAnswer::new(limit.limit(), decision, state, now))
    }
}

impl OpenLease {
    fn has_rest(&self) -> bool {
        self.left.iter().any(|&left| left > 0)
    }

    /// When the object has surely counted it as spent. The isolate spends from it no longer than if the object had given it when the call
    /// began; the object may have given it as late as the answer came.
    fn given_up_at(&self) -> i64 {
        let AnswerTime { called_at, answered_at, .. } = self.given;
        self.until.saturating_add(answered_at.saturating_sub(called_at)).saturating_add_unsigned(LATE_MS)
    }
}

fn keep_latest(latest: &mut Option<AnswerTime>, answer: &AnswerTime) {
    if latest.is_none_or(|latest| !answer.is_before(&latest)) {
        *latest = Some(*answer);
    }
}

impl Demand {
    fn add(&mut self, costs: &[u64], now: i64, period_ms: u64) {
        let elapsed_ms = now.abs_diff(self.since);
        if elapsed_ms >= period_ms {
            let is_next = elapsed_ms < period_ms.saturating_mul(2);
            self.asked_before = if is_next { self.asked } else { 0 };
            self.tokens_before = if is_next { std::mem::take(&mut self.tokens) } else { Vec::new() };
            (self.since, self.asked, self.tokens) = (now, 0, Vec::new());
        }
        self.latest = now;
        self.asked = self.asked.saturating_add(1);
        self.tokens.resize(costs.len(), 0);
        for (tokens, cost) in self.tokens.iter_mut().zip(costs) {
            *tokens = tokens.saturating_add(*cost);
        }
    }

    /// What will be asked for in a period: as many tokens as in the last, or already in this one.
    fn expected(&self) -> Expected {
        let before = self.tokens_before.iter().copied().chain(std::iter::repeat(0));
        let tokens = self.tokens.iter().zip(before).map(|(&now, before)| now.max(before));
        let asked = self.asked.checked_div(ASKED_PER_EXPECTED).unwrap_or(0).max(self.asked_before);
        Expected { asked, tokens: tokens.collect() }
    }
}

struct Expected {
    asked: u64,
    tokens: Vec<u64>,
}
