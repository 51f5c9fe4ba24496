//! Tokens taken in advance: opened, settled at their real cost, cancelled, or expired.

use std::sync::Arc;

use super::bucket::Others;
use super::decide::Holds;
use super::page::{Closed, Grant, How, Replay};
use super::quota::{MAX_RESERVATIONS, is_full};
use super::replay::{grants_of, was_settled_at};
use super::reservation::{End, Piece, Reservation, ReservedPart, reservation_row};
use super::returns::Return;
use super::standing::is_unlimited;
use super::{Ledger, LedgerError, Slot, Writes};
use crate::limit::{Decision, Verb};
use crate::policy::{NamedLimit, Policy, Unsettled};
use crate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};
use crate::sorted::{SortedMap, sort_by};

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
        if let Some(max) = is_full(self.reservations.openings(), request, MAX_RESERVATIONS) {
            return Ok(ObjectReply::TooManyReservations { max });
        }
        let (mut limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        let mut shadow = self.decide_shadow(asked, verb, request, &limits, now, true);
        let (Decision::Allow { ready_at, .. }, Some(first)) = (decision, asked.first()) else {
            return Ok(ObjectReply::Decided(Decided { shadow, ..self.decided(now, limits) }));
        };
        let terms = first.object().reservations;
        let end = match terms.unsettled {
            Unsettled::Keep => End::Charged,
            Unsettled::Refund => End::Refunded,
        };
        let reserved = Reserved { id, expires_at: ready_at.saturating_add_unsigned(terms.ttl_ms) };
        let parts = reserved_parts(asked, verb, request, &limits, &shadow);
        for (policy, part) in asked.iter().zip(&parts) {
            self.bucket(policy)?.open(id, true, now);
            self.open_shadow(policy, id, &part.of_shadow(), true, now);
        }
        let by_grant = request.request_id.is_some_and(|id| id.by_grant);
        let reservation =
            Reservation { opened_at: now, expires_at: reserved.expires_at, end, by_grant, parts, raises: Vec::new() };
        writes.before_reply.push((reservation_row(id), Some(reservation.encode())));
        reservation.hold_slots(asked, &mut limits, &mut shadow);
        self.reservations.insert(id, reservation);
        self.remember(asked, request.request_id, now, Some(reserved), &limits);
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), shadow, ..self.decided(now, limits) }))
    }

    /// An unused id for a reservation or a hold.
    pub(super) fn unused_id(&self, mut random: impl FnMut() -> Option<u64>) -> Result<u64, LedgerError> {
        // At most a few thousand of 2⁵² ids are in use: a second try is extremely rare, and a fourth means that the numbers are not random.
        let is_used = |id: &u64| self.opened_ids().any(|of| of == *id) || self.is_held(*id);
        let id = (0..4).map_while(|_| random()).map(|id| id & MAX_ID).find(|id| !is_used(id));
        id.ok_or_else(|| LedgerError("no random numbers for a reservation's id".to_owned()))
    }

    /// Closes a reservation at its real cost: the reserved one if the request gives no other. Takes any excess down to the largest debt,
    /// and gives back any surplus. The reply has the final cost.
    pub(super) fn settle(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.closed_before(asked, id, request, now)? {
            return Ok(reply);
        }
        let Some((reservation, is_late)) = self.found(asked, id) else {
            return Ok(ObjectReply::NoReservation);
        };
        let is_as_reserved = request.costs.is_empty();
        let mut reserved: Vec<Vec<u64>> = Vec::new();
        self.open_all_shadows_of(&reservation, now);
        let limits = self.closing(asked, id, |ledger, index, policy| {
            let pieces = reservation.pieces_in(id, policy);
            reserved.push(totals(policy, &pieces));
            let costs = request.costs.get(index).map(Vec::as_slice);
            ledger.settle_pieces(policy, &pieces, reservation.is_refunded(), costs, now)
        })?;
        let (shadow, reserved_in_shadow) = self.settle_shadow(asked, id, &reservation, &request.shadow_costs, now);
        let is_unpaid = |(&reserved, answer): (&u64, &LimitAnswer)| answer.decision.tokens() < reserved;
        let mut in_shadow =
            reserved_in_shadow.iter().zip(&shadow).filter_map(|(cost, answer)| Some((cost, answer.as_ref()?)));
        let is_short = is_as_reserved && reserved.iter().flatten().zip(&limits).any(is_unpaid);
        let reserved_costs = if is_short || is_as_reserved && in_shadow.any(is_unpaid) {
            reserved.iter().flatten().chain(&reserved_in_shadow).copied().collect()
        } else {
            Box::default()
        };
        self.close(id, &reservation, writes);
        let (how, costs) = match (is_as_reserved, is_short) {
            (true, true) => (How::AsReserved, reserved.as_slice()),
            (true, false) => (How::AsReserved, &[][..]),
            (false, _) => (How::AtCosts, request.costs.as_slice()),
        };
        self.remember_closed(asked, (Closed { id, how, is_late }, costs), request.request_id, &limits, now);
        Ok(ObjectReply::Decided(Decided { is_late, shadow, reserved_costs, ..self.decided(now, limits) }))
    }

    /// Closes a reservation and gives back all that was taken, clipped to the capacity. Waits already reported to others still hold.
    pub(super) fn cancel(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.closed_before(asked, id, request, now)? {
            return Ok(reply);
        }
        let Some((reservation, is_late)) = self.found(asked, id) else {
            return Ok(ObjectReply::NoReservation);
        };
        self.open_all_shadows_of(&reservation, now);
        let limits = self.closing(asked, id, |ledger, _, policy| {
            let mut answers = ledger.give_back(policy, id, &reservation, now)?;
            let slots = reservation.slots(policy).filter(|_| !is_late).unwrap_or_default();
            for (answer, slots) in answers.iter_mut().zip(slots).filter(|(_, slots)| *slots > 0) {
                answer.decision = Decision::Allow { tokens: slots, ready_at: now };
            }
            Ok(answers)
        })?;
        self.give_back_shadows(id, &reservation, true, now);
        self.close(id, &reservation, writes);
        let closed = Closed { id, how: How::Cancelled, is_late };
        self.remember_closed(asked, (closed, &[]), request.request_id, &limits, now);
        Ok(ObjectReply::Decided(Decided { is_late, ..self.decided(now, limits) }))
    }

    /// The answers of all policies to a request that closes a reservation, as they are without it: it no longer holds its slots.
    fn closing(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        mut close: impl FnMut(&mut Self, usize, &Arc<Policy>) -> Result<Vec<LimitAnswer>, LedgerError>,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let open = self.reservations.remove(id);
        let answers: Result<Vec<_>, _> =
            asked.iter().enumerate().map(|(index, policy)| close(self, index, policy)).collect();
        if let (Err(_), Some(open)) = (&answers, open) {
            self.reservations.insert(id, open);
        }
        answers.map(|answers| answers.concat())
    }

    /// The answer to a request about a closed reservation.
    pub(super) fn closed_otherwise(&mut self, asked: &[Arc<Policy>], id: u64, now: i64) -> Option<ObjectReply> {
        let replay = self.replays.by_reservation(id, now)?;
        Some(if is_theirs(asked, replay) { ObjectReply::ReservationClosed } else { ObjectReply::NoReservation })
    }

    /// The answer to a request that closes a reservation again.
    fn closed_before(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
    ) -> Result<Option<ObjectReply>, LedgerError> {
        let Some(replay) = self.replays.by_reservation(id, now) else {
            return Ok(None);
        };
        if !is_theirs(asked, replay) {
            return Ok(Some(ObjectReply::NoReservation));
        }
        let is_cancelled = matches!(request.action, Action::Cancel(_));
        let is_same = match replay.closed.map(|closed| closed.how) {
            Some(How::Cancelled) => is_cancelled,
            Some(_) if is_cancelled => false,
            Some(How::AtCosts) if request.costs.is_empty() => false,
            Some(_) => was_settled_at(asked, replay, &request.costs),
            None => false,
        };
        if !is_same {
            return Ok(Some(ObjectReply::ReservationClosed));
        }
        let replay = replay.clone();
        Ok(Some(self.reply_again(asked, request, &replay, now)?))
    }

    fn remember_closed(
        &mut self,
        asked: &[Arc<Policy>],
        (closed, costs): (Closed, &[Vec<u64>]),
        request_id: Option<RequestId>,
        limits: &[LimitAnswer],
        now: i64,
    ) {
        let mut grants = grants_of(asked, limits);
        for (grant, costs) in grants.iter_mut().zip(costs) {
            grant.costs.clone_from(costs);
        }
        let closed = Some(closed);
        let replay =
            Replay { request_id: None, decided_at: now, opened: None, closed, grants, shards: 1, by_grant: false };
        // Without room for the request's id, the reservation's is enough to identify it.
        let request_id = request_id.map(|id| match self.no_room_for(Some(id), now) {
            Some(_) => RequestId { ttl_ms: 0, ..id },
            None => id,
        });
        self.replays.push(request_id, replay, now);
    }

    /// The reservation, if it belongs to these policies, and whether it has expired.
    pub(super) fn found(&self, asked: &[Arc<Policy>], id: u64) -> Option<(Reservation, bool)> {
        let open = self.reservations.get(id).map(|open| (open, false));
        let ended = || self.ended.get(id).map(|ended| (ended, true));
        let (found, is_over) = open.or_else(ended)?;
        is_of(asked, found.parts.iter().map(|part| part.policy.as_str())).then(|| (found.clone(), is_over))
    }

    /// Closes the reservation in all buckets, and forgets it.
    fn close(&mut self, id: u64, reservation: &Reservation, writes: &mut Writes) {
        self.close_all(id, reservation);
        self.reservations.remove(id);
        self.ended.remove(id);
        writes.before_reply.push((reservation_row(id), None));
    }

    /// Settles all pieces of a reservation, oldest first, at these total costs, or at what was reserved; `is_refunded`: they were given back
    /// if it has expired. Tokens are given back newest first, and more is taken by the newest. Slots cost nothing in the end. In the
    /// answers, a limit counts as having paid for what it does not pay for.
    pub(super) fn settle_pieces(
        &mut self,
        policy: &Policy,
        pieces: &[Piece<'_>],
        is_refunded: bool,
        costs: Option<&[u64]>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let real = |(limit, cost): (&NamedLimit, &u64)| if limit.is_slots() { 0 } else { *cost };
        let mut rest: Option<Vec<_>> = costs.map(|costs| policy.limits().iter().zip(costs).map(real).collect());
        let is_asked = |piece: &Piece<'_>, limit: usize| piece.shares.get(limit).is_some_and(|share| share.is_asked);
        let newest = |limit: usize| pieces.iter().rposition(|piece| is_asked(piece, limit));
        let newest: Vec<_> = (0..policy.limits().len()).map(newest).collect();
        let mut answers: Vec<LimitAnswer> = Vec::new();
        let mut spared = vec![0_u64; policy.limits().len()];
        for (index, Piece { id, is_open, shares, taken }) in pieces.iter().enumerate() {
            // It may have expired before a crash, after which the clock is behind its end.
            let is_returned = is_refunded && self.bucket(policy)?.is_returned(*id);
            let mut tokens = Vec::new();
            for (limit, (share, spared)) in shares.iter().zip(&mut spared).enumerate() {
                let rest = rest.as_mut().and_then(|rest| rest.get_mut(limit));
                let real = rest.map_or(share.cost(), |rest| {
                    let real = if newest.get(limit) == Some(&Some(index)) { *rest } else { share.cost().min(*rest) };
                    *rest = rest.saturating_sub(real);
                    real
                });
                let paid = share.paid(real);
                tokens.push((if is_returned { 0 } else { share.taken }, paid));
                *spared = spared.saturating_add(real.saturating_sub(paid));
            }
            if *is_open {
                let others = if is_returned { Others::TakeAgain(taken) } else { Others::Keep };
                answers = sum(&answers, self.settle_bucket(policy, *id, &tokens, others, now)?);
            }
        }
        Ok(answers.into_iter().zip(spared).map(|(answer, spared)| with_tokens(answer, spared)).collect())
    }

    /// Settles one bucket's part of a reservation: see [`Bucket::settle`](super::bucket::Bucket::settle). Each answer has the final cost,
    /// or the returned tokens if all is to be given back.
    pub(super) fn settle_bucket(
        &mut self,
        policy: &Policy,
        id: u64,
        tokens: &[(u64, u64)],
        others: Others<'_>,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let holds = Holds::of(self, policy);
        let bucket = self.bucket(policy)?;
        if !bucket.is_open(id) {
            // The bucket it was taken from is gone, so nothing can be given back to this one.
            let more = tokens.iter().map(|(taken, real)| (Verb::Charge, real.saturating_sub(*taken)));
            let charged = self.adjust(policy, more, now)?.into_iter().zip(tokens);
            let answers = charged.map(|(answer, (taken, real))| {
                let tokens = taken.min(real).saturating_add(answer.decision.tokens());
                LimitAnswer { decision: Decision::Allow { tokens, ready_at: now }, ..answer }
            });
            return Ok(answers.collect());
        }
        let booked = bucket.settle(id, tokens, others, &holds.held, now);
        let bucket = &*bucket;
        let limits = policy.limits().iter().zip(&bucket.states).zip(booked).enumerate();
        let answers = limits.map(|(index, ((limit, state), (cost, back_now)))| {
            let tokens = if matches!(others, Others::GiveBack(_)) { back_now } else { cost };
            holds.answer(index, limit, Decision::Allow { tokens, ready_at: now }, (state, 0), now)
        });
        let mut answers: Vec<_> = answers.collect();
        holds.say_when_full(bucket, &mut answers, now);
        Ok(answers)
    }

    /// Gives back all that a reservation took of this policy, unless that was done before.
    pub(super) fn give_back(
        &mut self,
        policy: &Arc<Policy>,
        id: u64,
        reservation: &Reservation,
        now: i64,
    ) -> Result<Vec<LimitAnswer>, LedgerError> {
        let mut answers: Vec<LimitAnswer> = Vec::new();
        for Piece { id, taken, .. } in reservation.pieces_in(id, policy).into_iter().filter(|piece| piece.is_open) {
            let is_returned = reservation.is_refunded() && self.bucket(policy)?.is_returned(id);
            let tokens = taken.tokens(policy).into_iter().map(|taken| (if is_returned { 0 } else { taken }, 0));
            let tokens: Vec<_> = tokens.collect();
            let nothing = ReservedPart::new(policy, []);
            let back = if is_returned { &nothing } else { &taken };
            answers = sum(&answers, self.settle_bucket(policy, id, &tokens, Others::GiveBack(back), now)?);
        }
        Ok(answers)
    }

    /// The openings of open reservations that give back what they have taken of this policy's bucket, and when.
    pub(super) fn expiring(&self, policy: &Policy) -> Vec<(u64, i64)> {
        let Some(Slot::Open(bucket)) = self.slot(policy.name()).filter(|_| policy.has_own_rolling_windows()) else {
            return Vec::new();
        };
        let refunded = self.reservations.iter().filter(|(_, open)| open.is_refunded());
        let openings = refunded.flat_map(|(id, open)| {
            let pieces = open.pieces_in(id, policy).into_iter().filter(|piece| piece.is_open);
            pieces.map(|piece| (piece.id, open.expires_at))
        });
        let returned: SortedMap<u64, ()> = bucket.returned().into_iter().map(|id| (id, ())).collect();
        openings.filter(|(id, _)| !returned.contains_key(id)).collect()
    }

    /// What open reservations will give back to this policy's bucket. Computed again only after a change: a refusal changes nothing.
    pub(super) fn returns(&mut self, policy: &Policy) -> Option<Arc<[Return]>> {
        let Some(Slot::Open(bucket)) = self.slot(policy.name()) else { return None };
        if bucket.cuts.is_empty() {
            return None;
        }
        if let known @ Some(_) = bucket.returns() {
            return known;
        }
        let mut expiring: Vec<(i64, u64, Vec<u64>)> = Vec::new();
        for (id, open) in self.reservations.iter().filter(|(_, open)| open.is_refunded()) {
            let pieces = open.pieces_in(id, policy).into_iter().filter(|piece| piece.is_open);
            let taken = |piece: Piece<'_>| piece.shares.iter().map(|share| share.taken).collect();
            expiring.extend(pieces.map(|piece| (open.expires_at, piece.id, taken(piece))));
        }
        sort_by(&mut expiring, |(one, ..), (other, ..)| one.cmp(other));
        self.bucket(policy).ok().map(|bucket| bucket.find_returns(&expiring))
    }
}

/// What was requested and granted, in the order of the policies.
pub(super) fn reserved_parts(
    asked: &[Arc<Policy>],
    verb: Verb,
    request: &ObjectRequest,
    limits: &[LimitAnswer],
    shadow: &[Option<LimitAnswer>],
) -> Vec<ReservedPart> {
    let (mut limits, mut shadow) = (limits.iter(), shadow.iter().copied());
    let part = |(index, policy): (usize, &Arc<Policy>)| {
        let taken = limits.by_ref().take(policy.limits().len()).map(|limit| limit.decision.tokens());
        let mut part = ReservedPart::new(policy, taken);
        if is_unlimited(policy, verb) {
            part = part.with_granted(request.costs.get(index).map_or(&[], Vec::as_slice));
        }
        part.add_shadow(policy, request.shadow_costs.get(index).map_or(&[], Vec::as_slice), &mut shadow);
        part
    };
    asked.iter().enumerate().map(part).collect()
}

/// The reserved total of each limit.
pub(super) fn totals(policy: &Policy, pieces: &[Piece<'_>]) -> Vec<u64> {
    let add = |mut totals: Vec<u64>, piece: &Piece<'_>| {
        for (total, share) in totals.iter_mut().zip(&piece.shares) {
            *total = total.saturating_add(share.cost());
        }
        totals
    };
    pieces.iter().fold(vec![0; policy.limits().len()], add)
}

/// The later answers, with the sum of both's tokens.
fn sum(earlier: &[LimitAnswer], later: Vec<LimitAnswer>) -> Vec<LimitAnswer> {
    let before = |index: usize| earlier.get(index).map_or(0, |earlier| earlier.decision.tokens());
    later.into_iter().enumerate().map(|(index, answer)| with_tokens(answer, before(index))).collect()
}

/// The answer, if it grants, with `more` tokens.
fn with_tokens(answer: LimitAnswer, more: u64) -> LimitAnswer {
    match answer.decision {
        Decision::Allow { tokens, ready_at } => {
            let decision = Decision::Allow { tokens: tokens.saturating_add(more), ready_at };
            LimitAnswer { decision, ..answer }
        }
        _ => answer,
    }
}

/// Whether the replay is of these policies, in any order.
pub(super) fn is_theirs(asked: &[Arc<Policy>], replay: &Replay) -> bool {
    is_of(asked, replay.grants.iter().map(Grant::policy))
}

/// Whether these are the names of the policies, in any order.
fn is_of<'a>(asked: &[Arc<Policy>], mut names: impl Iterator<Item = &'a str> + Clone) -> bool {
    let is_named = |policy: &Arc<Policy>| names.clone().any(|name| name == policy.name());
    asked.iter().all(is_named) && names.all(|name| asked.iter().any(|policy| policy.name() == name))
}

/// 52 bits: exact as a JavaScript number.
const MAX_ID: u64 = (1 << 52) - 1;
