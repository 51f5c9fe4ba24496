//! Tokens taken in advance: opened, settled at their real cost, cancelled, or ended by time.

use std::sync::Arc;

use super::bucket::policy_of_row;
use super::decide::tokens;
use super::replays::Replay;
use super::reservation::{self, End, Reservation};
use super::{Ledger, LedgerError, RESERVATION, Slot, Writes};
use crate::limit::{Decision, Verb};
use crate::policy::{Policy, Unsettled};
use crate::protocol::{Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};

/// The most open reservations of a key. Each is a row and some hundred bytes of memory, of which an object has 128 MB
/// at most.
pub const MAX_RESERVATIONS: usize = 1_000;

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
        if let Some(reply) = self.too_many(|end| end != End::Released) {
            return Ok(reply);
        }
        let (limits, decision) = self.decide(asked, verb, &request.costs, now, true)?;
        let (Decision::Allow { ready_at, .. }, Some(first)) = (decision, asked.first()) else {
            return Ok(ObjectReply::Decided(self.decided(now, limits)));
        };
        let terms = first.reservations();
        let end = match terms.unsettled {
            Unsettled::Keep => End::Charged,
            Unsettled::Refund => End::Refunded,
        };
        let expires_at = ready_at.saturating_add_unsigned(terms.ttl_ms);
        let reserved = Reserved { id, expires_at };
        self.open_reservation(asked, reserved, end, None, &limits, now, writes);
        self.remember(asked, request.request_id, now, Some(reserved), &limits)?;
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), ..self.decided(now, limits) }))
    }

    #[expect(clippy::too_many_arguments, reason = "they are what a reservation has")]
    pub(super) fn open_reservation(
        &mut self,
        asked: &[Arc<Policy>],
        Reserved { id, expires_at }: Reserved,
        end: End,
        request_id: Option<RequestId>,
        limits: &[LimitAnswer],
        now: i64,
        writes: &mut Writes,
    ) {
        let mut taken = limits.iter().map(tokens);
        let part =
            |policy: &Arc<Policy>| reservation::ReservedPart::new(policy, taken.by_ref().take(policy.limits().len()));
        let parts = asked.iter().map(part).collect();
        let reservation = Reservation { opened_at: now, expires_at, end, request_id, parts };
        writes.before_reply.push((reservation_row(id), Some(reservation.encode())));
        self.reservations.insert(id, reservation);
    }

    pub(super) fn too_many(&self, is_same_kind: impl Fn(End) -> bool) -> Option<ObjectReply> {
        let open = self.reservations.values().filter(|open| is_same_kind(open.end)).count();
        (open >= MAX_RESERVATIONS).then_some(ObjectReply::TooManyReservations { max: MAX_RESERVATIONS as u64 })
    }

    pub(super) fn unused_id(&self, mut random: impl FnMut() -> Option<u64>) -> Result<u64, LedgerError> {
        // Of 2⁵² at most some thousand are in use: a second try is as rare as anything, and a fourth means that the
        // numbers are not random.
        let id = (0..4).map_while(|_| random()).map(|id| id & MAX_ID).find(|id| !self.reservations.contains_key(id));
        id.ok_or_else(|| LedgerError("no random numbers for a reservation's id".to_owned()))
    }

    /// Closes a reservation at its real costs.
    pub(super) fn settle(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        let Some(reservation) = self.close(asked, id, writes) else {
            return Ok(ObjectReply::NoReservation);
        };
        let mut limits = Vec::new();
        let mut all_taken = Vec::new();
        for (index, (policy, part)) in asked.iter().zip(&reservation.parts).enumerate() {
            let taken = part.tokens(policy);
            let real = request.costs.get(index).unwrap_or(&taken);
            if reservation.end == End::Released {
                self.take_held(policy, &taken, now)?;
            }
            let changes = taken.iter().zip(real).map(|(taken, real)| match real.checked_sub(*taken) {
                Some(more) => (Verb::Charge, more),
                None => (Verb::Refund, taken.saturating_sub(*real)),
            });
            limits.extend(self.adjust(policy, changes, now)?);
            all_taken.extend(taken);
        }
        match reservation.request_id {
            None => self.remember(asked, request.request_id, now, None, &limits)?,
            // What a batch has held is remembered as what it has taken.
            Some(request_id) => {
                let at = reservation.opened_at;
                let grants = all_taken.into_iter().map(|tokens| (tokens, at)).collect();
                self.push(asked, Replay { request_id, decided_at: at, reservation: None, grants })?;
            }
        }
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Closes a reservation and gives back all that was taken, clipped to what fits. What others were told about when
    /// theirs is ready stays true.
    pub(super) fn cancel(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        let Some(reservation) = self.close(asked, id, writes) else {
            return Ok(ObjectReply::NoReservation);
        };
        let mut limits = Vec::new();
        for (policy, part) in asked.iter().zip(&reservation.parts) {
            let taken =
                if reservation.end == End::Released { vec![0; policy.limits().len()] } else { part.tokens(policy) };
            limits.extend(self.adjust(policy, taken.into_iter().map(|taken| (Verb::Refund, taken)), now)?);
        }
        self.remember(asked, request.request_id, now, None, &limits)?;
        Ok(ObjectReply::Decided(self.decided(now, limits)))
    }

    /// Takes the reservation off the list, if it is one of these policies.
    fn close(&mut self, asked: &[Arc<Policy>], id: u64, writes: &mut Writes) -> Option<Reservation> {
        let open = self.reservations.get(&id)?;
        let is_theirs = open.parts.iter().map(|part| part.policy.as_str()).eq(asked.iter().map(|policy| policy.name()));
        if !is_theirs {
            return None;
        }
        writes.before_reply.push((reservation_row(id), None));
        self.reservations.remove(&id)
    }

    /// Ends the reservations whose time is over. It makes no difference that this is late: tokens given back now leave the
    /// bucket as if they had been then.
    pub(super) fn end_expired(&mut self, now: i64, writes: &mut Writes) {
        if self.reservations.values().all(|open| open.expires_at > now) {
            return;
        }
        let expired = self.reservations.extract_if(.., |_, open| open.expires_at <= now);
        for (id, reservation) in expired.collect::<Vec<_>>() {
            if reservation.end == End::Refunded && self.give_back(&reservation, now).is_err() {
                self.reservations.insert(id, reservation); // until its bucket can be read
                continue;
            }
            writes.before_reply.push((reservation_row(id), None));
        }
    }

    fn give_back(&mut self, reservation: &Reservation, now: i64) -> Result<(), LedgerError> {
        let mut open = Vec::new();
        for part in &reservation.parts {
            let policy = match self.buckets.get(&part.policy) {
                Some(Slot::Open(bucket)) => Arc::clone(bucket.policy()),
                Some(Slot::Stored(row)) => policy_of_row(&part.policy, row)
                    .map_err(|error| LedgerError(format!("the bucket of policy {}: {error}", part.policy)))?,
                None => continue, // it is full
            };
            self.open(&policy, now)?;
            open.push((policy, part));
        }
        for (policy, part) in open {
            self.adjust(&policy, part.tokens(&policy).into_iter().map(|taken| (Verb::Refund, taken)), now)?;
        }
        Ok(())
    }
}

/// 52 bits: exact as a JavaScript number.
const MAX_ID: u64 = (1 << 52) - 1;

fn reservation_row(id: u64) -> String {
    format!("{RESERVATION}{id:013x}")
}
