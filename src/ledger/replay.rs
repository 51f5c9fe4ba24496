//! The first answer to a repeated request.

use std::sync::Arc;

use super::page::{Grant, How, Replay};
use super::reservation::reservation_row;
use super::{Ledger, LedgerError};
use crate::limit::{Decision, Verb};
use crate::policy::{Policy, Shard};
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved, Spread};

impl Ledger {
    /// The first answer to a repeated request.
    pub(super) fn replayed(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let Some(request_id) = request.request_id else {
            return Ok(None);
        };
        let Some(replay) = self.replays.by_request_id(request_id.id, now) else {
            return Ok(None);
        };
        if replay.request_id.is_some_and(|(_, fingerprint)| fingerprint != request_id.fingerprint) {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        let replay = replay.clone();
        Ok(Some(self.reply_again(asked, request, &replay, now)?))
    }

    /// Fails if an unreadable row might change the answer.
    pub(super) fn check_rows(&self, request: &ObjectRequest, now: i64) -> Result<(), LedgerError> {
        if let Some(request_id) = request.request_id.filter(RequestId::is_lasting)
            && self.replays.is_incomplete(now)
            && self.replays.by_request_id(request_id.id, now).is_none()
        {
            return Err(LedgerError("cannot read whether this request was answered before".to_owned()));
        }
        if let Action::Settle(id) | Action::Cancel(id) | Action::Extend(id) = request.action
            && self.unreadable.contains(&reservation_row(id))
        {
            return Err(LedgerError(format!("cannot read the reservation {id:013x}")));
        }
        Ok(())
    }

    /// The earlier answer, with the current levels. A limit added since was not asked: it took no part of a cost, and does not lack it.
    pub(super) fn reply_again(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        replay: &Replay,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let granted = replay.grants.iter().flat_map(|grant| &grant.limits).map(|(tokens, _)| *tokens).max();
        let most = match request.action {
            Action::Take(Verb::ConsumeUpTo) => granted.unwrap_or(u64::MAX),
            Action::Take(Verb::Refund | Verb::Reset) => 0, // it got nothing
            _ => u64::MAX,
        };
        let has_reserved_costs = replay.closed.is_some_and(|closed| closed.how == How::AsReserved)
            && replay.grants.iter().any(|grant| !grant.costs.is_empty());
        let (mut decisions, mut reserved_costs) = (Vec::new(), Vec::new());
        for (index, policy) in asked.iter().enumerate() {
            let grant = replay.grant_of(policy);
            let costs = request.costs.get(index).map_or(&[][..], Vec::as_slice);
            for (limit, place) in places(grant, policy).into_iter().enumerate() {
                let at = |place: usize| grant.and_then(|grant| grant.limits.get(place).copied());
                let cost = || costs.get(limit).map_or(0, |&cost| most.min(cost));
                let (tokens, ready_at) = place.and_then(at).unwrap_or_else(|| (cost(), replay.decided_at));
                decisions.push(Decision::Allow { tokens, ready_at });
                let reserved = place.and_then(|place| grant?.costs.get(place).copied());
                reserved_costs.extend(has_reserved_costs.then(|| reserved.unwrap_or(tokens)));
            }
        }
        let limits = self.standing(asked, decisions.into_iter(), now)?;
        let decided = self.decided(now, limits);
        let spread = Spread { at: replay.decided_at, shards: replay.shards };
        let spread = shard_of(asked).map(|_| spread);
        let is_late = replay.closed.is_some_and(|closed| closed.is_late);
        let (reservation, reserved_costs) = (replay.opened, reserved_costs.into());
        Ok(ObjectReply::Decided(Decided { is_replayed: true, is_late, reservation, spread, reserved_costs, ..decided }))
    }

    /// Refuses a request that could not be remembered, before anything is done.
    pub(super) fn no_room_for(&mut self, request_id: Option<RequestId>, now: i64) -> Option<ObjectReply> {
        let request_id = request_id.filter(RequestId::is_lasting)?;
        let expected: Vec<_> = self.expected_request_ids().map(|(id, weight)| (id.by_grant, weight)).collect();
        let (used, retry_at) = self.replays.full_until(&expected, request_id.by_grant, now)?;
        Some(ObjectReply::TooManyRequestIds { used: used as u64, retry_after_ms: retry_at.abs_diff(now) })
    }

    pub(super) fn remember(
        &mut self,
        asked: &[Arc<Policy>],
        request_id: Option<RequestId>,
        now: i64,
        opened: Option<Reserved>,
        limits: &[LimitAnswer],
    ) {
        if request_id.is_some() {
            let grants = grants_of(asked, limits);
            let shards = shard_of(asked).map_or(1, |shard| shard.count);
            let replay =
                Replay { request_id: None, decided_at: now, opened, closed: None, grants, shards, by_grant: false };
            self.replays.push(request_id, replay, now);
        }
    }
}

/// The requested shard: such a request is about nothing else.
pub(super) fn shard_of(asked: &[Arc<Policy>]) -> Option<Shard> {
    asked.first().and_then(|policy| policy.shard())
}

/// The place of each limit of `policy` in the grant, if there is one.
fn places(grant: Option<&Grant>, policy: &Policy) -> Vec<Option<usize>> {
    grant.map_or_else(|| vec![None; policy.limits().len()], |grant| grant.places(policy))
}

/// Whether a reservation was settled at these costs, or at costs that moved these tokens, of all limits that it still has. If it has none
/// of them, they are compared in their order.
pub(super) fn was_settled_at(asked: &[Arc<Policy>], replay: &Replay, costs: &[Vec<u64>]) -> bool {
    asked.iter().zip(costs).all(|(policy, costs)| {
        let grant = replay.grant_of(policy);
        let was = |place: usize| match grant {
            Some(grant) if !grant.costs.is_empty() => grant.costs.get(place).copied(),
            grant => grant.and_then(|grant| grant.limits.get(place)).map(|(tokens, _)| *tokens),
        };
        let places = places(grant, policy);
        let has_none = places.iter().all(Option::is_none);
        let mut all = policy.limits().iter().zip(places).zip(costs).enumerate();
        all.all(|(index, ((limit, place), &cost))| {
            let place = place.or(Some(index).filter(|_| has_none));
            // Slots cost nothing in the end, whatever was asked.
            let was_of_slots = place.is_some_and(|place| grant.is_some_and(|grant| grant.is_of_slots(place)));
            limit.is_slots() || was_of_slots || place.and_then(was).is_none_or(|was| was == cost)
        })
    })
}

/// The moved tokens, by policy name: a repetition may name the policies in another order.
pub(super) fn grants_of(asked: &[Arc<Policy>], limits: &[LimitAnswer]) -> Vec<Grant> {
    let mut limits = limits.iter();
    let grant = |policy: &Arc<Policy>| {
        let moved = limits.by_ref().take(policy.limits().len()).map(|limit| match limit.decision {
            Decision::Allow { tokens, ready_at } => (tokens, ready_at),
            _ => (0, 0),
        });
        Grant::new(policy, moved.collect())
    };
    asked.iter().map(grant).collect()
}
