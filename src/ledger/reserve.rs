//! Tokens taken in advance: opened, settled at their real cost, cancelled, or ended by time.

use std::sync::Arc;

use super::decide::{answer, held_of};
use super::page::{Closed, How, Replay};
use super::quota::{MAX_RESERVATIONS, is_full};
use super::replay::grants_of;
use super::reservation::{End, Reservation, ReservedPart, reservation_row};
use super::shadow::taken_of;
use super::{Ledger, LedgerError, Writes};
use crate::limit::{Decision, Verb};
use crate::policy::{Policy, Unsettled};
use crate::protocol::{Decided, LimitAnswer, ObjectReply, ObjectRequest, Reserved};

impl Ledger {
    /// Takes the tokens, and opens a reservation.
    pub(super) fn reserve(
        &mut self,
        asked: &[Arc<Policy>],
        verb: Verb,
        request: &ObjectRequest,
        now: i64,
        id: u64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(max) = is_full(self.reservations.iter().map(|(_, open)| open.by_grant), request, MAX_RESERVATIONS) {
            return Ok(ObjectReply::TooManyReservations { max });
        }
        let (limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        let shadow = self.decide_shadow(asked, verb, request, &limits, now, true);
        let (Decision::Allow { ready_at, .. }, Some(first)) = (decision, asked.first()) else {
            return Ok(ObjectReply::Decided(Decided { shadow, ..self.decided(now, limits) }));
        };
        let terms = first.object().reservations;
        let end = match terms.unsettled {
            Unsettled::Keep => End::Charged,
            Unsettled::Refund => End::Refunded,
        };
        let reserved = Reserved { id, expires_at: ready_at.saturating_add_unsigned(terms.ttl_ms) };
        let mut parts =
            ReservedPart::all(asked.iter().map(Arc::as_ref), limits.iter().map(|limit| limit.decision.tokens()));
        let mut tried = shadow.iter().copied();
        for (policy, part) in asked.iter().zip(&mut parts) {
            self.bucket(policy)?.open(id, true, now);
            part.add_shadow(taken_of(policy, &mut tried));
            self.open_shadow(policy, id, &part.of_shadow(), true, now);
        }
        let by_grant = request.request_id.is_some_and(|id| id.by_grant);
        let reservation = Reservation { opened_at: now, expires_at: reserved.expires_at, end, by_grant, parts };
        writes.before_reply.push((reservation_row(id), Some(reservation.encode())));
        self.reservations.push((id, reservation));
        self.remember(asked, request.request_id, now, Some(reserved), &limits);
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), shadow, ..self.decided(now, limits) }))
    }

    /// An id for a reservation or a hold.
    pub(super) fn unused_id(&self, mut random: impl FnMut() -> Option<u64>) -> Result<u64, LedgerError> {
        // A few thousand of 2⁵² ids are in use at most: a second try is extremely rare, and a fourth means that the
        // numbers are not random.
        let is_used = |id: &u64| self.all_reservations().any(|(of, _)| of == *id) || self.is_held(*id);
        let id = (0..4).map_while(|_| random()).map(|id| id & MAX_ID).find(|id| !is_used(id));
        id.ok_or_else(|| LedgerError("no random numbers for a reservation's id".to_owned()))
    }

    /// Closes a reservation at its real cost: the reserved one if the request gives no other. Takes any excess down to the largest debt, and
    /// gives back any surplus. The reply has the final cost.
    pub(super) fn settle(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.closed_before(asked, id, Some(&request.costs), now)? {
            return Ok(reply);
        }
        let Some((reservation, is_late)) = self.found(asked, id) else {
            return Ok(ObjectReply::NoReservation);
        };
        let is_returned = is_late && reservation.is_refunded();
        let mut limits = Vec::new();
        for (index, policy) in asked.iter().enumerate() {
            let reserved = reservation.part(policy).map(|part| part.tokens(policy)).unwrap_or_default();
            let real = request.costs.get(index).unwrap_or(&reserved);
            let taken = reserved.iter().map(|&taken| if is_returned { 0 } else { taken });
            let tokens: Vec<_> = taken.zip(real.iter().copied()).collect();
            limits.extend(self.settle_bucket(policy, id, &tokens, None, now)?);
        }
        let shadow = self.settle_shadow(asked, id, &reservation, is_returned, &request.shadow_costs, now);
        self.close(id, writes);
        let how = if request.costs.is_empty() { How::AsReserved } else { How::AtCosts };
        self.remember_closed(asked, Closed { id, how, is_late }, request, &limits, now);
        Ok(ObjectReply::Decided(Decided { is_late, shadow, ..self.decided(now, limits) }))
    }

    /// Closes a reservation and gives back all that was taken, clipped to what fits. Waits already reported to others
    /// still hold.
    pub(super) fn cancel(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.closed_before(asked, id, None, now)? {
            return Ok(reply);
        }
        let Some((mut reservation, is_late)) = self.found(asked, id) else {
            return Ok(ObjectReply::NoReservation);
        };
        if is_late && reservation.is_refunded() {
            reservation.parts.iter_mut().for_each(ReservedPart::clear);
        }
        let limits = self.give_back(asked, id, &reservation, now)?;
        self.give_back_shadow(id, &reservation.shadow_parts(), true, now);
        self.close(id, writes);
        self.remember_closed(asked, Closed { id, how: How::Cancelled, is_late }, request, &limits, now);
        Ok(ObjectReply::Decided(Decided { is_late, ..self.decided(now, limits) }))
    }

    /// The answer to a request that closes a reservation again. `costs` are those to settle it at, if any; `None`
    /// cancels it.
    fn closed_before(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        costs: Option<&[Vec<u64>]>,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let Some(replay) = self.replays.by_reservation(id, now) else {
            return Ok(None);
        };
        if !is_of(asked, replay.grants.iter().map(|grant| grant.policy.as_str())) {
            return Ok(Some(ObjectReply::NoReservation));
        }
        let mut asked_costs = asked.iter().zip(costs.unwrap_or_default());
        let is_same = match (replay.closed.map(|closed| closed.how), costs) {
            (Some(How::Cancelled), None) | (Some(How::AsReserved), Some([])) => true,
            (Some(How::AsReserved | How::AtCosts), Some([_, ..])) => asked_costs.all(|(policy, costs)| {
                let grant = replay.grants.iter().find(|grant| grant.policy == policy.name());
                grant.is_some_and(|grant| {
                    if grant.costs.is_empty() {
                        grant.limits.iter().map(|(tokens, _)| tokens).eq(costs)
                    } else {
                        grant.costs == *costs
                    }
                })
            }),
            _ => false,
        };
        if !is_same {
            return Ok(Some(ObjectReply::ReservationClosed));
        }
        let replay = replay.clone();
        Ok(Some(self.reply_again(asked, &replay, now)?))
    }

    fn remember_closed(
        &mut self,
        asked: &[Arc<Policy>],
        closed: Closed,
        request: &ObjectRequest,
        limits: &[LimitAnswer],
        now: i64,
    ) {
        let mut grants = grants_of(asked, limits);
        for (grant, costs) in grants.iter_mut().zip(&request.costs).filter(|_| closed.how == How::AtCosts) {
            grant.costs.clone_from(costs);
        }
        let closed = Some(closed);
        let replay =
            Replay { request_id: None, decided_at: now, opened: None, closed, grants, shards: 1, by_grant: false };
        // Without room for the request's id, the reservation's is enough to find it by.
        let request_id = request.request_id.filter(|&id| self.no_room_for(Some(id), now).is_none());
        self.replays.push(request_id, replay, now);
    }

    /// The reservation, if it belongs to these policies, and whether it is over.
    fn found(&self, asked: &[Arc<Policy>], id: u64) -> Option<(Reservation, bool)> {
        let is_meant = |(of, one): &&(u64, Reservation)| {
            *of == id && is_of(asked, one.parts.iter().map(|part| part.policy.as_str()))
        };
        let open = self.reservations.iter().find(is_meant).map(|(_, open)| (open.clone(), false));
        open.or_else(|| self.ended.iter().find(is_meant).map(|(_, ended)| (ended.clone(), true)))
    }

    /// Closes the reservation in all buckets, and forgets it.
    fn close(&mut self, id: u64, writes: &mut Writes) {
        self.close_everywhere(id);
        self.reservations.retain(|(of, _)| *of != id);
        self.ended.retain(|(of, _)| *of != id);
        writes.before_reply.push((reservation_row(id), None));
    }

    /// Settles what one bucket has taken for a reservation: see [`Bucket::settle`](super::bucket::Bucket::settle). Each answer has the final cost, or
    /// what came back if all is to be given `back`.
    pub(super) fn settle_bucket(
        &mut self,
        policy: &Policy,
        id: u64,
        tokens: &[(u64, u64)],
        back: Option<&ReservedPart>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let held = held_of(self, policy);
        let bucket = self.bucket(policy)?;
        if !bucket.is_open(id) {
            // Its bucket is not the one that it was taken from. Nothing of it is there to be given back.
            let more = tokens.iter().map(|(taken, real)| (Verb::Charge, real.saturating_sub(*taken)));
            let charged = self.adjust(policy, more, now)?.into_iter().zip(tokens);
            let answers = charged.map(|(answer, (taken, real))| {
                let tokens = taken.min(real).saturating_add(answer.decision.tokens());
                LimitAnswer { decision: Decision::Allow { tokens, ready_at: now }, ..answer }
            });
            return Ok(answers.collect());
        }
        let booked = bucket.settle(id, tokens, back, &held, now);
        let limits = policy.limits().iter().zip(&bucket.states).zip(&held).zip(booked);
        let answers = limits.map(|(((limit, state), &held), (cost, back_now))| {
            let tokens = if back.is_some() { back_now } else { cost };
            answer(limit.limit(), Decision::Allow { tokens, ready_at: now }, state, held, now)
        });
        Ok(answers.collect())
    }

    /// Brings what a reservation has taken of these policies to none.
    pub(super) fn give_back(
        &mut self,
        policies: &[Arc<Policy>],
        id: u64,
        reservation: &Reservation,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let mut limits = Vec::new();
        for policy in policies {
            if let Some(part) = reservation.part(policy) {
                let tokens: Vec<_> = part.tokens(policy).into_iter().map(|taken| (taken, 0)).collect();
                limits.extend(self.settle_bucket(policy, id, &tokens, Some(part), now)?);
            }
        }
        Ok(limits)
    }
}

impl Reservation {
    /// What limits in shadow have taken.
    pub(super) fn shadow_parts(&self) -> Vec<ReservedPart> {
        self.parts.iter().map(ReservedPart::of_shadow).collect()
    }

    pub(super) fn part(&self, policy: &Policy) -> Option<&ReservedPart> {
        self.parts.iter().find(|part| part.policy == policy.name())
    }
}

/// Whether these are the names of the policies, in any order.
fn is_of<'a>(asked: &[Arc<Policy>], mut names: impl Iterator<Item = &'a str> + Clone) -> bool {
    let is_named = |policy: &Arc<Policy>| names.clone().any(|name| name == policy.name());
    asked.iter().all(is_named) && names.all(|name| asked.iter().any(|policy| policy.name() == name))
}

/// 52 bits: exact as a JavaScript number.
const MAX_ID: u64 = (1 << 52) - 1;
