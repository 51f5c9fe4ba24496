//! Tokens withheld from other callers while a batch calls its other keys: prepare, commit, abort.
//!
//! Holds live in memory only. They expire after `HOLD_MS`, so a crash only ends them sooner: the tokens were not taken yet. A later commit
//! finds no hold and takes nothing, and the batch fails as a whole. So a refused batch writes no row and sets no alarm.
//!
//! A committed hold can be aborted for the same time, because another key's commit may have failed. The abort returns the tokens and
//! forgets the answer. A crash in between leaves them taken.
//!
//! A client that repeats a batch with its `Idempotency-Key` starts another try, perhaps while the aborts of the first are still in flight.
//! Both tries share the hold, each under its own id. Uncommitted, it ends when both have aborted it. Committed, it is undone when every try
//! that committed it has aborted it: one whose frontend crashed before its commit never aborts.

use std::sync::Arc;

use super::accounts::Change;
use super::bucket::{Need, Others};
use super::hold::{Hold, insert_once};
use super::page::Replay;
use super::quota::{MAX_RESERVATIONS, is_full};
use super::replay::grants_of;
use super::reservation::ReservedPart;
use super::reservations::Openings;
use super::shadow::taken_of;
use super::without::without;
use super::{Ledger, LedgerError, Slot};
use crate::limit::{Decision, Verb};
use crate::policy::Policy;
use crate::protocol::{Decided, HoldState, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};
use crate::sorted::sort_by;

impl Ledger {
    /// Holds the tokens under this id if they could be taken.
    pub(super) fn prepare(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        id: u64,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.no_room_for(request.request_id, now) {
            return Ok(reply);
        }
        // Committed holds withhold nothing. They are at most what a key can take in ten seconds.
        let by_grants = self.holds.open().filter(|hold| hold.request_id.is_some_and(|id| id.by_grant)).count();
        if let Some(max) = is_full(Openings { all: self.holds.open().count(), by_grants }, request, MAX_RESERVATIONS) {
            return Ok(ObjectReply::TooManyReservations { max });
        }
        let (limits, decision) = self.decide(asked, Verb::Consume, &request.costs, now, false)?;
        if !decision.is_allow() {
            let shadow = self.decide_shadow(asked, Verb::Consume, request, &limits, now, false);
            return Ok(ObjectReply::Decided(Decided { shadow, ..self.decided(now, limits) }));
        }
        let asked_of_shadow = asked.iter().zip(&request.shadow_costs).map(|(policy, costs)| {
            let limits = policy.shadow_limits().iter().zip(costs.iter().copied());
            ReservedPart::of_some(policy, limits)
        });
        let shadow = asked_of_shadow.collect();
        let parts =
            ReservedPart::all(asked.iter().map(Arc::as_ref), limits.iter().map(|limit| limit.decision.tokens()));
        let request_id = request.request_id;
        self.holds.push(Hold {
            ids: vec![id],
            since: now,
            committed_by: Vec::new(),
            opened_as: id,
            request_id,
            parts,
            shadow,
        });
        self.hold_reply(asked, id, false, now)
    }

    /// The reply to a try that looks while an earlier one of its batch holds the tokens: its own hold does not count against it.
    pub(super) fn look_beside_own_hold(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let own = request.request_id.and_then(|of| self.holds.take_open_of(&of));
        let Some((place, hold)) = own else { return Ok(None) };
        let reply = self.look(asked, verb, request, now);
        self.holds.put_back(place, hold);
        reply.map(Some)
    }

    /// The reply to a try whose batch's tokens are already held, by this or an earlier try.
    pub(super) fn prepared(
        &mut self,
        asked: &[Arc<Policy>],
        request_id: Option<RequestId>,
        id: u64,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let of_request = || request_id.and_then(|of| self.holds.of_request(of.id));
        let Some(hold) = self.holds.of_try(id).or_else(of_request) else {
            return Ok(None);
        };
        if hold.request_id.map(|id| id.fingerprint) != request_id.map(|id| id.fingerprint) {
            return Ok(Some(ObjectReply::RequestIdReused));
        }
        if let Some(&other) = hold.ids.first() {
            self.holds.share(other, id);
        }
        self.hold_reply(asked, id, true, now).map(Some)
    }

    /// Takes what is held, or repeats the answer if already taken; `None` if there is no such hold. A try whose own hold was lost in a
    /// crash shares one that another try of its batch has committed since.
    pub(super) fn commit(
        &mut self,
        asked: &[Arc<Policy>],
        request_id: Option<RequestId>,
        id: u64,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let of_request = || {
            let committed = self.holds.committed_of_request(request_id?.id);
            committed.filter(|hold| hold.request_id.zip(request_id).is_some_and(|(one, other)| one.is_of_same(&other)))
        };
        let Some(hold) = self.holds.of_try(id).or_else(of_request) else {
            return Ok(None);
        };
        let is_replayed = !hold.committed_by.is_empty();
        if let Some(&other) = hold.ids.first() {
            self.holds.share(other, id);
        }
        let Some(hold) = self.holds.of_try_mut(id) else { return Ok(None) };
        insert_once(&mut hold.committed_by, id);
        let mut shadow = Vec::new();
        if !is_replayed {
            (hold.since, hold.opened_as) = (now, id);
            let (request_id, parts) = (hold.request_id, hold.parts.clone());
            let asked_of_shadow = std::mem::take(&mut hold.shadow);
            self.holds.commit(id);
            for policy in asked {
                if let Some(part) = parts.iter().find(|part| part.policy == policy.name()) {
                    self.take_held(policy, &part.tokens(policy), now)?;
                    self.bucket(policy)?.open(id, false, now);
                }
            }
            let limits = self.standing_of_hold(asked, id, now)?;
            let grants = grants_of(asked, &limits);
            let replay = Replay {
                request_id: None,
                decided_at: now,
                opened: None,
                closed: None,
                grants,
                shards: 1,
                by_grant: false,
            };
            self.replays.push(request_id, replay, now);
            shadow = self.commit_shadow(asked, &asked_of_shadow, id, now);
        }
        let limits = self.standing_of_hold(asked, id, now)?;
        Ok(Some(ObjectReply::Decided(Decided { is_replayed, shadow, ..self.decided(now, limits) })))
    }

    /// Aborts a hold for this try. It ends when no try needs it; if it was committed, the tokens are returned.
    pub(super) fn abort(&mut self, asked: &[Arc<Policy>], id: u64, now: i64) -> Result<ObjectReply, LedgerError> {
        let undone = self.holds.abort(id);
        let mut limits = Vec::new();
        for policy in asked {
            let parts = undone.iter().flat_map(|hold| &hold.parts);
            let part = parts.into_iter().find(|part| part.policy == policy.name());
            limits.extend(match (&undone, part) {
                (Some(hold), Some(part)) => {
                    let tokens: Vec<_> = part.tokens(policy).into_iter().map(|taken| (taken, 0)).collect();
                    self.settle_bucket(policy, hold.opened_as, &tokens, Others::GiveBack(part), now)?
                }
                _ => self.adjust(policy, policy.limits().iter().map(|_| (Verb::Refund, 0)), now)?,
            });
        }
        if let Some(hold) = &undone {
            self.give_back_shadow(hold.opened_as, &hold.shadow, true, true, now);
            self.close_everywhere(hold.opened_as);
        }
        if let Some(request_id) = undone.and_then(|hold| hold.request_id) {
            self.replays.forget(request_id.id);
        }
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Requests these tokens from the limits in shadow, and keeps what they have taken, for an abort.
    fn commit_shadow(
        &mut self,
        asked: &[Arc<Policy>],
        parts: &[ReservedPart],
        id: u64,
        now: i64,
    ) -> Vec<Option<LimitAnswer>> {
        let (mut answers, mut taken) = (Vec::new(), Vec::new());
        for policy in asked {
            let of_policy = |parts: &[ReservedPart]| parts.iter().find(|part| part.policy == policy.name()).cloned();
            let part = of_policy(parts);
            let enforced = self.holds.of_try(id).and_then(|hold| of_policy(&hold.parts));
            let has_cost = part.iter().chain(&enforced).any(ReservedPart::is_any);
            let limits = policy.shadow_limits().iter();
            let costs = limits.map(|limit| {
                let cost = part.as_ref()?.taken(limit.account())?;
                Some((Verb::Consume.beside(cost, has_cost), cost))
            });
            let own = self.ask_shadow(policy, &costs.collect::<Vec<_>>(), now, true);
            let part = ReservedPart::of_some(policy, taken_of(policy, &mut own.iter().copied()));
            self.open_shadow(policy, id, &part, false, now);
            taken.push(part);
            answers.extend(own);
        }
        if let Some(hold) = self.holds.of_try_mut(id) {
            hold.shadow = taken;
        }
        answers
    }

    pub(super) fn is_held(&self, id: u64) -> bool {
        self.holds.of_try(id).is_some()
    }

    /// Ends expired holds.
    pub(super) fn end_holds(&mut self, now: i64) {
        for hold in self.holds.end(now) {
            self.close_everywhere(hold.opened_as);
        }
    }

    /// The lasting request ids reserved for batches that may still be committed, and the weights of their replays.
    pub(super) fn expected_request_ids(&self) -> impl Iterator<Item = (RequestId, usize)> {
        self.holds.open().filter_map(|hold| Some((hold.request_id.filter(RequestId::is_lasting)?, hold.weight())))
    }

    /// The holds that withhold tokens from others.
    pub(super) fn hold_states(&self) -> Vec<HoldState> {
        let states = self.holds.open().map(|hold| HoldState {
            ends_at: hold.ends_at(),
            tokens: hold.parts.iter().map(ReservedPart::to_tokens).collect(),
        });
        states.collect()
    }

    /// What is held of each limit of `policy`, and when it ends, soonest first. Slots are held by their reservations.
    pub(super) fn holds_of(&self, policy: &Policy) -> Vec<(i64, Vec<u64>)> {
        let mut held: Vec<(i64, Vec<u64>)> = Vec::new();
        for hold in self.holds.open() {
            if let Some(part) = hold.parts.iter().find(|part| part.policy == policy.name()) {
                // Last, unless the clock stepped back.
                let index = held.partition_point(|(ends_at, _)| *ends_at <= hold.ends_at());
                held.insert(index, (hold.ends_at(), part.tokens(policy)));
            }
        }
        if policy.has_slots() {
            let over = match self.slot(policy.name()) {
                Some(Slot::Open(bucket)) => bucket.returned(),
                _ => Vec::new(),
            };
            // After a step back of the clock, one that was over may seem open.
            let open = self.reservations.by_end().filter(|(id, _)| !over.contains(id));
            held.extend(open.filter_map(|(_, open)| Some((open.expires_at, open.slots(policy)?))));
            sort_by(&mut held, |(one, _), (other, _)| one.cmp(other));
        }
        held
    }

    fn hold_reply(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        is_replayed: bool,
        now: i64,
    ) -> Result<ObjectReply, LedgerError> {
        let limits = self.standing_of_hold(asked, id, now)?;
        let expires_at = self.holds.of_try(id).map_or(now, Hold::ends_at);
        let reservation = Some(Reserved { id, expires_at });
        Ok(ObjectReply::Decided(Decided { is_replayed, reservation, ..self.decided(now, limits) }))
    }

    /// The levels now, with what the hold holds or has taken.
    fn standing_of_hold(&mut self, asked: &[Arc<Policy>], id: u64, now: i64) -> Result<Vec<LimitAnswer>, LedgerError> {
        let Some(hold) = self.holds.of_try(id) else {
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

    /// Takes what was held. The tokens are there: no other request could take them.
    fn take_held(&mut self, policy: &Policy, held: &[u64], now: i64) -> Result<(), LedgerError> {
        let bucket = self.bucket(policy)?;
        let before = bucket.states_before();
        for ((limit, state), &held) in policy.limits().iter().zip(&mut bucket.states).zip(held) {
            *state = without(limit.limit(), state, held, now);
        }
        let taken: Vec<_> = held.iter().map(|&held| Change::Take(held)).collect();
        bucket.follow(&before, &taken, now);
        bucket.need(Need::Spent);
        Ok(())
    }
}
