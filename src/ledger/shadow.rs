//! Limits in shadow: asked after the others, with what these have granted, and reported. They never refuse.
//!
//! Each is decided as if it alone were enforced: it takes its cost when it has it, and else nothing. Its bucket has a row of
//! its own, so that the buckets of enforced limits are written, and survive a crash, exactly as without it. A row that cannot
//! be read leaves the limit without an answer, and everything else as it is.

use std::sync::Arc;

use super::bucket::Need;
use super::decide::answer;
use super::reservation::{Reservation, ReservedPart};
use super::row::StoredRow;
use super::{Ledger, Slot};
use crate::limit::{Decision, Verb};
use crate::policy::{NamedLimit, Policy, shadow_of};
use crate::protocol::{LimitAnswer, ObjectRequest};

impl Ledger {
    /// Opens the buckets of the limits in shadow.
    pub(super) fn open_shadows(&mut self, asked: &[Arc<Policy>], as_of: i64, now: i64) {
        for shadow in asked.iter().filter_map(|policy| policy.shadow()) {
            _ = self.open(shadow, as_of, now); // one that cannot be read is not asked
        }
    }

    /// What the limits in shadow say to a request to which the others have said `limits`. They take their costs if `apply`
    /// and the request was granted.
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
            answers.extend(self.ask_shadow(policy, costs, now, apply && is_granted));
        }
        answers
    }

    /// What the limits of `policy` in shadow say to these requests, in their order; `None` for those that are not asked.
    pub(super) fn ask_shadow(
        &mut self,
        policy: &Policy,
        requests: impl ExactSizeIterator<Item = Option<(Verb, u64)>>,
        now: i64,
        apply: bool,
    ) -> Vec<Option<LimitAnswer>> {
        let shadow = policy.shadow().filter(|shadow| shadow.limits().len() == requests.len());
        let Some((shadow, bucket)) = shadow.and_then(|shadow| Some((shadow, self.bucket(shadow).ok()?))) else {
            return requests.map(|_| None).collect();
        };
        let mut need = Need::Nothing;
        let mut answers = Vec::new();
        for ((named, state), request) in shadow.limits().iter().zip(&mut bucket.states).zip(requests) {
            let limit = named.limit();
            answers.push(request.map(|(verb, cost)| {
                let (decision, after) = limit.decide(*state, now, cost, verb);
                let after = if decision.is_allow() && !apply { *state } else { after };
                if after != *state {
                    *state = after;
                    need = need.max(if decision.is_allow() { Need::Spent } else { Need::Exact });
                }
                answer(limit, decision, state, 0, now)
            }));
        }
        bucket.need(need);
        answers
    }

    /// Brings what the limits in shadow have taken for a reservation to its real costs, or leaves it where `costs` has none.
    /// A limit that would not have granted the reservation has taken nothing for it, and takes nothing now.
    pub(super) fn settle_shadow(
        &mut self,
        asked: &[Arc<Policy>],
        reservation: &Reservation,
        costs: &[Vec<u64>],
        now: i64,
    ) -> Vec<Option<LimitAnswer>> {
        let mut answers = Vec::new();
        for (index, policy) in asked.iter().enumerate() {
            let costs = costs.get(index).map(Vec::as_slice).unwrap_or_default();
            let part = reservation.part(policy).map(ReservedPart::of_shadow);
            let each = policy.shadow_limits().iter().enumerate().map(|(at, limit)| {
                let taken = part.as_ref()?.taken(limit.name())?;
                Some((taken, costs.get(at).copied().unwrap_or(taken)))
            });
            let each: Vec<_> = each.collect();
            let changes = each.iter().map(|each| {
                each.map(|(taken, real)| match real.checked_sub(taken) {
                    Some(more) => (Verb::Charge, more),
                    None => (Verb::Refund, taken.saturating_sub(real)),
                })
            });
            let adjusted = self.ask_shadow(policy, changes, now, true);
            answers.extend(adjusted.into_iter().zip(&each).map(|(limit, each)| {
                let (limit, &(taken, real)) = limit.zip(each.as_ref())?;
                // As for the others: a charge may not find all that is due.
                let cost = if real >= taken { taken.saturating_add(limit.decision.tokens()) } else { real };
                Some(LimitAnswer { decision: Decision::Allow { tokens: cost, ready_at: now }, ..limit })
            }));
        }
        answers
    }

    /// Gives back what the limits in shadow have taken, whichever policy they are of now.
    pub(super) fn refund_shadow(&mut self, part: &ReservedPart, now: i64) {
        let name = shadow_of(&part.policy);
        let policy = match self.slot(&name) {
            Some(Slot::Open(bucket)) => Arc::clone(bucket.policy()),
            Some(Slot::Stored(row)) => match StoredRow::read(row).and_then(|row| row.policy(&name)) {
                Ok(policy) => policy,
                Err(_) => return,
            },
            None => return, // it is full
        };
        if self.open(&policy, 0, now).is_err() {
            return;
        }
        let refunds = policy.limits().iter().map(|limit| (Verb::Refund, part.tokens_of(limit.name())));
        // A refund of nothing would still follow a clock that has stepped back by much.
        if refunds.clone().any(|(_, tokens)| tokens > 0) && self.adjust(&policy, refunds, now).is_err() {
            return;
        }
        if let Ok(bucket) = self.bucket(&policy) {
            bucket.refund_dormant(part, now);
        }
    }
}

/// What the limits in shadow of these policies have taken, by name: `answers` are theirs.
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
