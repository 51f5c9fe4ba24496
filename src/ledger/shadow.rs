//! Limits in shadow: decided after the enforced ones, with what these granted, and reported. They never refuse.
//!
//! Each is decided as if it alone were enforced: it takes its cost if it has it, otherwise nothing. Its bucket has a row of its own, so
//! that the buckets of enforced limits are written, and survive a crash, exactly as without it. An unreadable row leaves the limit without
//! an answer, and everything else unchanged.

use std::sync::Arc;

use super::accounts::Change;
use super::bucket::{Need, Others};
use super::decide::{Holds, answer};
use super::reservation::{Reservation, ReservedPart, part_of};
use super::reserve::totals;
use super::returns::sooner;
use super::row::StoredRow;
use super::{Ledger, Slot};
use crate::limit::{Decision, State, Verb};
use crate::policy::{NamedLimit, Policy, shadow_of};
use crate::protocol::{LimitAnswer, ObjectRequest};

impl Ledger {
    /// Opens the buckets of the limits in shadow.
    pub(super) fn open_shadows(&mut self, asked: &[Arc<Policy>], as_of: i64, now: i64) {
        for shadow in asked.iter().filter_map(|policy| policy.shadow()) {
            _ = self.open(shadow, as_of, now); // an unreadable one is skipped
        }
    }

    /// The answers of the limits in shadow to a request that the others answered with `limits`. They take their costs if `apply` and the
    /// request was granted.
    pub(super) fn decide_shadow(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        request: &ObjectRequest,
        limits: &[LimitAnswer],
        now: i64,
        apply: bool,
    ) -> Vec<Option<LimitAnswer>> {
        if request.shadow_costs.is_empty() {
            return Vec::new();
        }
        let is_granted = limits.iter().all(|limit| limit.decision.is_allow());
        let most = match verb {
            Verb::ConsumeUpTo if is_granted => {
                let with_cost = request.costs.iter().flatten().zip(limits).filter(|(cost, _)| **cost > 0);
                with_cost.map(|(_, limit)| limit.decision.tokens()).max().unwrap_or(u64::MAX)
            }
            _ => u64::MAX,
        };
        let mut answers = Vec::new();
        for ((policy, costs), enforced) in asked.iter().zip(&request.shadow_costs).zip(&request.costs) {
            let has_cost = enforced.iter().chain(costs).any(|cost| *cost > 0);
            let costs = costs.iter().map(|&cost| Some((verb.beside(cost, has_cost), cost.min(most))));
            answers.extend(self.ask_shadow(policy, &costs.collect::<Vec<_>>(), now, apply && is_granted));
        }
        answers
    }

    /// The answers of `policy`'s limits in shadow to these requests, in their order; `None` for those without a request.
    pub(super) fn ask_shadow(
        &mut self,
        policy: &Policy,
        requests: &[Option<(Verb, u64)>],
        now: i64,
        apply: bool,
    ) -> Vec<Option<LimitAnswer>> {
        let shadow = policy.shadow().filter(|shadow| shadow.limits().len() == requests.len());
        let holds = shadow.map(|shadow| Holds::of(self, shadow));
        let Some((shadow, bucket)) = shadow.and_then(|shadow| Some((shadow, self.bucket(shadow).ok()?))) else {
            return requests.iter().map(|_| None).collect();
        };
        let (mut need, before) = (Need::Nothing, bucket.states_before());
        let (mut answers, mut changes) = (Vec::new(), Vec::new());
        let limits = shadow.limits().iter().zip(&mut bucket.states).enumerate();
        for ((index, (named, state)), request) in limits.zip(requests) {
            let limit = named.limit();
            let mut change = Change::Take(0);
            answers.push(request.map(|(verb, cost)| {
                if let Some(holds) = holds.as_ref().filter(|_| named.is_slots()) {
                    let decision = holds.decide_slots(index, limit, state, (cost, verb), now);
                    let taken = if apply { decision.tokens() } else { 0 };
                    return holds.answer(index, named, decision, (state, taken), now);
                }
                let (decision, after) = limit.decide(*state, now, cost, verb);
                let after = if decision.is_allow() && !apply { *state } else { after };
                if apply && decision.is_allow() {
                    change = Change::of(verb, cost, decision.tokens());
                }
                if after != *state {
                    *state = after;
                    need = need.max(if decision.is_allow() { Need::Spent } else { Need::Exact });
                }
                answer(limit, decision, state, 0, now)
            }));
            changes.push(change);
        }
        bucket.follow(&before, &changes, now);
        bucket.need(need);
        for (index, (named, answer)) in shadow.limits().iter().zip(&mut answers).enumerate() {
            if let Some(answer) = answer.as_mut().filter(|_| named.limit().is_rolling()) {
                answer.set_full_at(named.limit(), bucket.over_at(index).unwrap_or(now));
            }
        }
        self.retry_when_returned(shadow, requests, &mut answers);
        answers
    }

    /// A refusal names the moment at which open reservations have given back enough, if that is sooner.
    fn retry_when_returned(
        &mut self,
        shadow: &Policy,
        requests: &[Option<(Verb, u64)>],
        answers: &mut [Option<LimitAnswer>],
    ) {
        if !answers.iter().flatten().any(|answer| !answer.decision.is_allow()) {
            return;
        }
        let (returns, expiring) = (self.returns(shadow), self.expiring(shadow));
        let returns = returns.as_deref().unwrap_or_default();
        let Ok(bucket) = self.bucket(shadow) else { return };
        let limits = shadow.limits().iter().zip(&bucket.states).enumerate();
        for (((index, (named, state)), request), answer) in limits.zip(requests).zip(answers) {
            if let (&Some((verb, cost)), Some(answer)) = (request, answer)
                && !answer.decision.is_allow()
                && !named.is_slots()
            {
                if named.limit().is_rolling() {
                    answer.decision = bucket.refusal(index, (cost, verb), 0, [], &expiring);
                    continue;
                }
                let at = |state: &State, at| named.limit().decide(*state, at, cost, verb).0;
                answer.decision = sooner(returns, &[], (index, state), answer.decision, at);
            }
        }
    }

    /// Settles what the limits in shadow have taken for a reservation at its real costs, or at what was reserved where `costs` has none. A
    /// limit that would not have granted the reservation, or a piece of it, has taken nothing for it, and takes nothing now. Returns the
    /// answers of those that have taken something, and each limit's reserved cost.
    pub(super) fn settle_shadow(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        reservation: &Reservation,
        costs: &[Vec<u64>],
        now: i64,
    ) -> (Vec<Option<LimitAnswer>>, Vec<u64>) {
        let (mut answers, mut reserved) = (Vec::new(), Vec::new());
        for (index, policy) in asked.iter().enumerate() {
            let Some(shadow) = policy.shadow() else {
                self.take_again_in_shadow(policy, id, reservation, now);
                continue;
            };
            let pieces = reservation.pieces_in(id, shadow);
            let has_taken = |limit: usize| {
                let mut of_limit = pieces.iter().filter_map(|piece| piece.shares.get(limit));
                of_limit.any(|share| share.pays_more)
            };
            let limits = 0..shadow.limits().len();
            let settled = pieces.iter().any(|piece| !piece.taken.is_empty()).then(|| {
                let costs = costs.get(index).map(Vec::as_slice);
                self.settle_pieces(shadow, &pieces, reservation.is_refunded(), costs, now).ok()
            });
            let settled = settled.flatten().into_iter().flatten().map(Some).chain(std::iter::repeat(None));
            answers.extend(limits.zip(settled).map(|(limit, answer)| answer.filter(|_| has_taken(limit))));
            reserved.extend(totals(shadow, &pieces));
        }
        (answers, reserved)
    }

    /// Takes again, from limits in shadow that `policy` no longer has, what they got back when the reservation expired.
    fn take_again_in_shadow(&mut self, policy: &Policy, id: u64, reservation: &Reservation, now: i64) {
        for (id, parts) in reservation.pieces(id).filter(|_| reservation.is_refunded()) {
            let Some(part) = part_of(parts, policy).map(ReservedPart::of_shadow) else { continue };
            let Some(shadow) = self.open_shadow_of(&part, now) else { continue };
            if self.bucket(&shadow).is_ok_and(|bucket| bucket.is_returned(id)) {
                let tokens: Vec<_> = part.tokens(&shadow).into_iter().map(|taken| (0, taken)).collect();
                _ = self.settle_bucket(&shadow, id, &tokens, Others::TakeAgain(&part), now);
            }
        }
    }

    /// The last take of `policy`'s limits in shadow may still change: see [`Bucket::open`](super::bucket::Bucket::open).
    pub(super) fn open_shadow(&mut self, policy: &Policy, id: u64, taken: &ReservedPart, is_stored: bool, now: i64) {
        if !taken.is_empty()
            && let Some(shadow) = policy.shadow()
            && let Ok(bucket) = self.bucket(shadow)
        {
            bucket.open(id, is_stored, now);
        }
    }

    /// See [`Ledger::give_back_shadow`].
    pub(super) fn give_back_shadows(&mut self, id: u64, reservation: &Reservation, is_asked: bool, now: i64) {
        for (id, parts) in reservation.pieces(id) {
            let parts: Vec<_> = parts.iter().map(ReservedPart::of_shadow).collect();
            self.give_back_shadow(id, &parts, reservation.is_refunded(), is_asked, now);
        }
    }

    /// Gives back what limits in shadow took for a reservation, under whichever policy has them now. `is_returned`: it was given back if the
    /// reservation has expired. `is_asked`: a request caused this; see [`Bucket::closing_at`](super::bucket::Bucket::closing_at).
    pub(super) fn give_back_shadow<'a>(
        &mut self,
        id: u64,
        parts: impl IntoIterator<Item = &'a ReservedPart>,
        is_returned: bool,
        is_asked: bool,
        now: i64,
    ) {
        for part in parts {
            let Some(policy) = self.open_shadow_of(part, now) else { continue };
            let Ok(bucket) = self.bucket(&policy) else { continue };
            if bucket.is_open(id) && !(is_returned && bucket.is_returned(id)) {
                let at = if is_asked { now } else { bucket.closing_at(now) };
                let tokens: Vec<_> = part.tokens(&policy).into_iter().map(|taken| (taken, 0)).collect();
                _ = self.settle_bucket(&policy, id, &tokens, Others::GiveBack(part), at);
            }
        }
    }

    /// Opens the buckets of all limits in shadow that took something for it, before it is closed: one that is read later forgets it.
    pub(super) fn open_all_shadows_of(&mut self, reservation: &Reservation, now: i64) {
        for part in &reservation.parts {
            _ = self.open_shadow_of(part, now);
        }
    }

    /// Opens the bucket of the limits in shadow that took this, under its own policy; `None` if it is full or unreadable.
    fn open_shadow_of(&mut self, part: &ReservedPart, now: i64) -> Option<Arc<Policy>> {
        let name = shadow_of(&part.policy);
        let policy = match self.slot(&name)? {
            Slot::Open(bucket) => Arc::clone(bucket.policy()),
            Slot::Stored(row) => StoredRow::read(row).and_then(|row| row.policy(&name)).ok()?,
        };
        self.open(&policy, 0, now).ok()?;
        Some(policy)
    }
}

/// What the limits in shadow of these policies have taken, by name, according to `answers`.
pub(super) fn taken_of<'a>(
    policy: &'a Policy,
    answers: &mut impl Iterator<Item = Option<LimitAnswer>>,
) -> impl Iterator<Item = (&'a NamedLimit, u64)> {
    let limits = policy.shadow_limits();
    let answers: Vec<_> = answers.take(limits.len()).collect();
    limits.iter().zip(answers).filter_map(|(limit, answer)| match answer?.decision {
        Decision::Allow { tokens, .. } => Some((limit, tokens)),
        Decision::Wait { .. } | Decision::Never { .. } => None,
    })
}
