//! Handles a request's lease messages: the spending of ended leases, and new leases with the answer.

use std::sync::Arc;

use super::bucket::Need;
use super::decide::held_of;
use super::open_lease::OpenLease;
use super::without::without;
use super::{Ledger, LedgerError};
use crate::limit::{Decision, Limit, State, Verb};
use crate::policy::{LeaseTerms, Policy, Standing};
use crate::protocol::{Action, Decided, LEASE_GRACE_MS, Lease, LeaseRequest, ObjectRequest};

impl Ledger {
    /// Takes what ended leases have spent.
    pub(super) fn return_leases(
        &mut self,
        asked: &[Arc<Policy>],
        request: Option<&LeaseRequest>,
        now: i64,
    ) -> Result<(), LedgerError> {
        for policy in asked {
            self.bucket(policy)?.end_leases(now);
        }
        let ([policy], Some(request)) = (asked, request) else { return Ok(()) };
        let bucket = self.bucket(policy)?;
        // An unknown lease is over, or was returned before.
        let spent = request.ended.iter().filter_map(|ended| bucket.leases.close(ended, policy.limits().len()));
        let spent: Vec<_> = spent.collect();
        if !spent.is_empty() {
            bucket.spend(&spent, now);
            bucket.need(Need::Spent);
        }
        Ok(())
    }

    /// Leases tokens as requested, if there are any to spare. A refused request gets a lease only if the lease can grant it later, and its
    /// retry time is that moment; otherwise all leasing pauses until the request can be granted.
    pub(super) fn lease(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        decided: &mut Decided,
        random: impl FnOnce() -> Option<u64>,
    ) -> Result<(), LedgerError> {
        let ([policy], [costs], Some(terms)) = (asked, request.costs.as_slice(), &request.lease) else { return Ok(()) };
        let (decision, now) = (decided.decision(), decided.now);
        let given = if terms.wants_any() { self.spare(policy, terms, now)? } else { None };
        let is_of_use = |(_, tokens): &(i64, Vec<u64>)| {
            decision.is_allow() || tokens.iter().zip(costs).all(|(tokens, cost)| tokens >= cost)
        };
        let lease = given.filter(is_of_use).and_then(|(from, tokens)| {
            let until = from.saturating_add_unsigned(terms.lease_ms.min(LeaseTerms::MAX_LEASE_MS));
            Some(Lease { id: random()?, from, until, tokens })
        });
        let bucket = self.bucket(policy)?;
        match (&lease, decision) {
            (Some(Lease { id, until, tokens, from }), _) => {
                let until = until.saturating_add_unsigned(LEASE_GRACE_MS);
                bucket.leases.add(OpenLease { id: *id, until, tokens: tokens.clone() }, policy);
                bucket.need(Need::Spent);
                for limit in &mut decided.limits {
                    if let Decision::Wait { retry_at } = &mut limit.decision {
                        *retry_at = (*from).max(*retry_at);
                    }
                }
            }
            (None, Decision::Wait { retry_at }) if matches!(request.action, Action::Take(_)) => {
                bucket.leases.pause(retry_at);
            }
            _ => {}
        }
        decided.lease = lease;
        Ok(())
    }

    /// From when tokens can be leased, and how many of each limit: half of the present ones, so that others find some, too; if there are
    /// none, half of the future ones.
    fn spare(
        &mut self,
        policy: &Arc<Policy>,
        request: &LeaseRequest,
        now: i64,
    ) -> Result<Option<(i64, Vec<u64>)>, LedgerError> {
        let (held, ban) = (held_of(self, policy), self.ban(policy, now));
        let bucket = self.bucket(policy)?;
        let is_full = !bucket.leases.has_room(policy.limits().len()) || bucket.leases.is_paused(now);
        let is_limited = policy.standing() == Standing::Limited && !policy.is_inline() && ban.is_none();
        if is_full || !is_limited || request.wanted.len() != policy.limits().len() {
            return Ok(None);
        }
        let horizon = now.saturating_add_unsigned(request.horizon_ms.min(LeaseTerms::MAX_LEASE_MS));
        let limits = || {
            let limits = policy.limits().iter().zip(&bucket.states).zip(&held).zip(&request.wanted);
            limits.map(|(((limit, state), &held), &wanted)| (limit.limit(), state, held, wanted))
        };
        Ok(spare_at(limits(), now, now).or_else(|| spare_at(limits(), now, horizon)))
    }
}

/// From when half of the tokens present at `by` can be spent, and how many are given of each limit; `None` if a wanted limit will have
/// none. `limits` has each limit with its state, and its held and wanted tokens.
fn spare_at<'a>(
    limits: impl Iterator<Item = (&'a Limit, &'a State, u64, u64)>,
    now: i64,
    by: i64,
) -> Option<(i64, Vec<u64>)> {
    let mut from = now;
    let mut tokens = Vec::new();
    for (limit, state, held, wanted) in limits {
        let there = limit.remaining(&without(limit, state, held, by), by);
        let given = wanted.min(there.div_ceil(2));
        if given > 0 {
            match limit.decide(without(limit, state, held, now), now, given, Verb::Consume).0 {
                Decision::Allow { .. } => {}
                Decision::Wait { retry_at } => from = from.max(retry_at),
                Decision::Never { .. } => return None,
            }
        } else if wanted > 0 {
            return None;
        }
        tokens.push(given);
    }
    Some((from, tokens))
}
