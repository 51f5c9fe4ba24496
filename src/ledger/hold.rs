//! Tokens kept from others while a batch asks its other keys: prepare, commit, abort.
//!
//! Holds live in memory only. They end by themselves after [`HOLD_MS`], so a crash that forgets them only ends them sooner:
//! the tokens were not taken yet. A commit that comes after it finds no hold and takes nothing, and the batch fails as a whole.
//! So a refused batch writes no row and sets no alarm.
//!
//! For as long, a hold that was committed can still be aborted: another key's commit may have failed. That gives the tokens
//! back, and forgets that the request was answered. A crash in between leaves them taken.
//!
//! Each attempt at a batch has a hold of its own, whose id its frontend has chosen. Attempts of one request id meet at the
//! commit: the first takes the tokens, and others are told that this was done.

use std::sync::Arc;

use super::bucket::Need;
use super::decide::{self, tokens};
use super::page::Replay;
use super::replay::grants_of;
use super::reservation::ReservedPart;
use super::reserve::MAX_RESERVATIONS;
use super::{Ledger, LedgerError};
use crate::limit::{Decision, Verb};
use crate::policy::Policy;
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};

/// For how long tokens are held while a batch asks its other keys: longer than a batch may take, and no longer than a budget
/// should lack them when a frontend is gone.
const HOLD_MS: u64 = 10_000;

/// Tokens that are held, or were until they were taken.
#[derive(Debug)]
pub(super) struct Hold {
    /// When they were held, or taken.
    since: i64,
    is_committed: bool,
    request_id: Option<RequestId>,
    parts: Vec<ReservedPart>,
}

impl Hold {
    /// A clock that stepped back must not prolong it by more than a step that counts as no time.
    const fn is_over(&self, now: i64) -> bool {
        now.abs_diff(self.since) >= HOLD_MS
    }

    const fn ends_at(&self) -> i64 {
        self.since.saturating_add_unsigned(HOLD_MS)
    }

    fn is_of(&self, request_id: Option<RequestId>) -> bool {
        self.request_id.zip(request_id).is_some_and(|(one, other)| one.id == other.id)
    }
}

impl Ledger {
    /// Holds the tokens under this id if they could be taken.
    pub(super) fn prepare(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        id: u64,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.prepared(asked, request, id, now)? {
            return Ok(reply);
        }
        if let Some(reply) = self.no_room_for(request.request_id, now) {
            return Ok(reply);
        }
        if self.holds.len() >= MAX_RESERVATIONS {
            return Ok(ObjectReply::TooManyReservations { max: MAX_RESERVATIONS as u64 });
        }
        let (limits, decision) = self.decide(asked, Verb::Consume, &request.costs, now, false)?;
        if !decision.is_allow() {
            return Ok(ObjectReply::Decided(self.decided(now, limits)));
        }
        let parts = ReservedPart::all(asked.iter().map(Arc::as_ref), limits.iter().map(tokens));
        let hold = Hold { since: now, is_committed: false, request_id: request.request_id, parts };
        let reserved = Reserved { id, expires_at: hold.ends_at() };
        self.holds.insert(id, hold);
        let limits = self.standing_of_hold(asked, id, now)?;
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), ..self.decided(now, limits) }))
    }

    /// The reply to a retry: the same hold. A frontend that has left its id to the object knows it by its request id.
    fn prepared(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        id: u64,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let request_id = request.request_id;
        let is_unnamed = request.action == Action::Hold(0);
        let same = |&(&other, hold): &(&u64, &Hold)| if is_unnamed { hold.is_of(request_id) } else { other == id };
        let Some((&id, hold)) = self.holds.iter().filter(|(_, hold)| !hold.is_committed).find(same) else {
            return Ok(None);
        };
        if hold.request_id.map(|id| id.fingerprint) != request_id.map(|id| id.fingerprint) {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        let reserved = Reserved { id, expires_at: hold.ends_at() };
        let limits = self.standing_of_hold(asked, id, now)?;
        let decided = Decided { is_replayed: true, reservation: Some(reserved), ..self.decided(now, limits) };
        Ok(Some(ObjectReply::Decided(decided)))
    }

    /// Takes note that an attempt is told what another has committed. It relies on that, so it cannot be aborted any more; and
    /// what is held for this request id is not needed.
    pub(super) fn rely_on(&mut self, request: &ObjectRequest, reply: &ObjectReply) {
        let (Action::Hold(own) | Action::Settle(own), ObjectReply::Decided(_)) = (request.action, reply) else {
            return;
        };
        self.holds.retain(|&id, hold| !hold.is_of(request.request_id) || (id == own && hold.is_committed));
    }

    /// Takes what is held, or says again that it was taken.
    pub(super) fn commit(&mut self, asked: &[Arc<Policy>], id: u64, now: i64) -> Result<ObjectReply, LedgerError> {
        let Some(hold) = self.holds.get_mut(&id) else {
            return Ok(ObjectReply::NoReservation);
        };
        let is_replayed = std::mem::replace(&mut hold.is_committed, true);
        if !is_replayed {
            hold.since = now;
            let (request_id, parts) = (hold.request_id, hold.parts.clone());
            for policy in asked {
                if let Some(part) = parts.iter().find(|part| part.policy == policy.name()) {
                    self.take_held(policy, &part.tokens(policy), now)?;
                }
            }
            let limits = self.standing_of_hold(asked, id, now)?;
            let grants = grants_of(asked, &limits);
            let replay = Replay { request_id: None, decided_at: now, opened: None, closed: None, grants };
            self.replays.push(request_id, replay, now);
        }
        let limits = self.standing_of_hold(asked, id, now)?;
        Ok(ObjectReply::Decided(Decided { is_replayed, ..self.decided(now, limits) }))
    }

    /// Ends a hold; if it was committed, gives the tokens back.
    pub(super) fn abort(&mut self, asked: &[Arc<Policy>], id: u64, now: i64) -> Result<ObjectReply, LedgerError> {
        let Some(hold) = self.holds.remove(&id) else {
            return Ok(ObjectReply::NoReservation);
        };
        let mut limits = Vec::new();
        for policy in asked {
            let part = hold.parts.iter().find(|part| part.policy == policy.name() && hold.is_committed);
            let taken = part.map_or_else(|| vec![0; policy.limits().len()], |part| part.tokens(policy));
            limits.extend(self.adjust(policy, taken.into_iter().map(|taken| (Verb::Refund, taken)), now)?);
            if let Some(part) = part {
                self.bucket(policy)?.refund_dormant(part, now);
            }
        }
        if let Some(request_id) = hold.request_id.filter(|_| hold.is_committed) {
            self.replays.forget(request_id.id);
        }
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Ends the holds whose time is over.
    pub(super) fn end_holds(&mut self, now: i64) {
        self.holds.retain(|_, hold| !hold.is_over(now));
    }

    /// How many request ids that must outlast a crash are held for batches that may be committed.
    pub(super) fn expected_request_ids(&self) -> usize {
        let is_lasting = |hold: &&Hold| !hold.is_committed && hold.request_id.is_some_and(|id| id.is_lasting);
        self.holds.values().filter(is_lasting).count()
    }

    /// What is held of each limit of `policy`, and when that ends, soonest first.
    pub(super) fn holds_of(&self, policy: &Policy) -> Vec<(i64, Vec<u64>)> {
        let mut holds: Vec<_> = self.holds.values().filter(|hold| !hold.is_committed).collect();
        holds.sort_by_key(|hold| hold.since);
        let parts = holds.iter().flat_map(|hold| hold.parts.iter().map(|part| (hold.ends_at(), part)));
        parts.filter(|(_, part)| part.policy == policy.name()).map(|(at, part)| (at, part.tokens(policy))).collect()
    }

    /// What is left now, beside what the hold holds or has taken.
    fn standing_of_hold(&mut self, asked: &[Arc<Policy>], id: u64, now: i64) -> Result<Vec<LimitAnswer>, LedgerError> {
        let Some(hold) = self.holds.get(&id) else {
            return Ok(Vec::new());
        };
        let (since, parts) = (hold.since, hold.parts.clone());
        let tokens = asked.iter().flat_map(|policy| {
            let part = parts.iter().find(|part| part.policy == policy.name());
            part.map_or_else(|| vec![0; policy.limits().len()], |part| part.tokens(policy))
        });
        let decisions = tokens.map(|tokens| Decision::Allow { tokens, ready_at: since });
        self.standing(asked, decisions, now)
    }

    /// Takes what was held. It is there: no other request could take it.
    fn take_held(&mut self, policy: &Policy, held: &[u64], now: i64) -> Result<(), LedgerError> {
        let bucket = self.bucket(policy)?;
        for ((limit, state), &held) in policy.limits().iter().zip(&mut bucket.states).zip(held) {
            *state = decide::without(limit.limit(), state, held, now);
        }
        bucket.need(Need::Spent);
        Ok(())
    }
}
