//! The first answer to a repeated request.

use std::sync::Arc;

use super::page::{Grant, How, Replay};
use super::reservation::reservation_row;
use super::{Ledger, LedgerError};
use crate::limit::Decision;
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
        Ok(Some(self.reply_again(asked, &replay, now)?))
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

    /// The earlier answer, with the current levels. A limit added since then moved nothing.
    pub(super) fn reply_again(
        &mut self,
        asked: &[Arc<Policy>],
        replay: &Replay,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let nothing = (0, replay.decided_at);
        let moved = asked.iter().flat_map(|policy| {
            let grant = replay.grants.iter().find(|grant| grant.policy == policy.name());
            let mut moved = grant.map(|grant| grant.limits.clone()).unwrap_or_default();
            moved.resize(policy.limits().len(), nothing);
            moved
        });
        let decisions = moved.map(|(tokens, ready_at)| Decision::Allow { tokens, ready_at });
        let limits = self.standing(asked, decisions, now)?;
        let decided = self.decided(now, limits);
        let spread = Spread { at: replay.decided_at, shards: replay.shards };
        let spread = shard_of(asked).map(|_| spread);
        let is_late = replay.closed.is_some_and(|closed| closed.is_late);
        let (reservation, reserved_costs) = (replay.opened, reserved_costs_of(asked, replay));
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

/// The reserved cost of each limit, if the replay is of a settlement at it that could not take all of it.
fn reserved_costs_of(asked: &[Arc<Policy>], replay: &Replay) -> Box<[u64]> {
    let is_as_reserved = replay.closed.is_some_and(|closed| closed.how == How::AsReserved);
    if !is_as_reserved || replay.grants.iter().all(|grant| grant.costs.is_empty()) {
        return Box::default();
    }
    let costs = asked.iter().flat_map(|policy| {
        let grant = replay.grants.iter().find(|grant| grant.policy == policy.name());
        let mut costs = grant.map(|grant| grant.costs.clone()).unwrap_or_default();
        costs.resize(policy.limits().len(), 0);
        costs
    });
    costs.collect()
}

/// The moved tokens, by policy name: a repetition may name the policies in another order.
pub(super) fn grants_of(asked: &[Arc<Policy>], limits: &[LimitAnswer]) -> Vec<Grant> {
    let mut limits = limits.iter();
    let grant = |policy: &Arc<Policy>| {
        let moved = limits.by_ref().take(policy.limits().len()).map(|limit| match limit.decision {
            Decision::Allow { tokens, ready_at } => (tokens, ready_at),
            _ => (0, 0),
        });
        Grant { policy: policy.name().to_owned(), limits: moved.collect(), costs: Vec::new() }
    };
    asked.iter().map(grant).collect()
}
