//! Extending reservations: the heartbeat of long-running work.

use std::sync::Arc;

use super::ask::asks_for_any;
use super::bucket::Bucket;
use super::decide::NEVER;
use super::quota::{MAX_RESERVATIONS, is_full};
use super::reservation::{End, Raise, Reservation, reservation_row};
use super::reserve::reserved_parts;
use super::returns::Returns;
use super::{Ledger, LedgerError, Slot, Writes};
use crate::limit::Verb;
use crate::policy::{Policy, shadow_of};
use crate::protocol::{Decided, ObjectReply, ObjectRequest, Reserved};

impl Ledger {
    /// Extends a reservation to its policy's lifetime from now, unless it already lasts longer, and takes any costs from all limits. If one
    /// refuses, nothing changes.
    pub(super) fn extend(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        request: &ObjectRequest,
        now: i64,
        random: impl FnMut() -> Option<u64>,
        writes: &mut Writes,
    ) -> Result<ObjectReply, LedgerError> {
        if let Some(reply) = self.closed_otherwise(asked, id, now) {
            return Ok(reply);
        }
        let Some((mut reservation, false)) = self.found(asked, id) else {
            return Ok(ObjectReply::NoReservation);
        };
        for policy in asked {
            if self.bucket(policy)?.is_returned(id) {
                return Ok(ObjectReply::NoReservation); // it expired, then the clock stepped back
            }
        }
        let asks = asks_for_any(request);
        let full = is_full(self.reservations.openings(), request, MAX_RESERVATIONS);
        if let Some(max) = full.filter(|_| asks) {
            return Ok(ObjectReply::TooManyReservations { max });
        }
        // What limits in shadow take has no say in the decision, and is not settled later if there is no room.
        let is_raised = full.is_none() && (asks || request.shadow_costs.iter().flatten().any(|&cost| cost > 0));
        let raise = if is_raised { self.unused_id(random)? } else { 0 };
        // A request without costs is never refused.
        let verb = if asks { Verb::Consume } else { Verb::Refund };
        // `retry_at` must not include what this reservation itself would give back.
        let returns = self.let_end(asked, id, (End::Charged, NEVER))?;
        let decided = self.decide(asked, verb, &request.costs, now, true);
        let shadow =
            decided.as_ref().map(|(limits, _)| self.decide_shadow(asked, Verb::Consume, request, limits, now, true));
        let mut shadow = shadow.unwrap_or_default();
        self.let_end(asked, id, (reservation.end, reservation.expires_at))?;
        let (mut limits, decision) = decided?;
        if !decision.is_allow() {
            reservation.hold_slots(asked, &mut limits, &mut shadow);
            // Nothing has changed, so the next refusal need not compute them again.
            for (policy, returns) in asked.iter().zip(returns) {
                self.bucket(policy)?.know_returns(returns);
            }
            return Ok(ObjectReply::Decided(Decided { shadow, ..self.decided(now, limits) }));
        }
        if is_raised {
            // Without a cost for enforced limits their buckets are written as without those in shadow.
            let taken = if asks { limits.as_slice() } else { &[] };
            let parts = reserved_parts(asked, verb, request, taken, &shadow);
            for (policy, part) in asked.iter().zip(&parts) {
                if asks {
                    self.bucket(policy)?.open(raise, true, now);
                }
                self.open_shadow(policy, raise, &part.of_shadow(), true, now);
            }
            reservation.raises.push(Raise { id: raise, parts });
            // Otherwise grants could exceed their share by raising the backend's reservations.
            reservation.by_grant |= request.request_id.is_some_and(|id| id.by_grant);
        }
        if let Some(first) = asked.first() {
            let ends_at = now.saturating_add_unsigned(first.object().reservations.ttl_ms);
            reservation.expires_at = reservation.expires_at.max(ends_at);
        }
        let reserved = Reserved { id, expires_at: reservation.expires_at };
        writes.before_reply.push((reservation_row(id), Some(reservation.encode())));
        reservation.hold_slots(asked, &mut limits, &mut shadow);
        self.reservations.insert(id, reservation);
        if asks {
            self.remember(asked, request.request_id, now, Some(reserved), &limits);
        }
        Ok(ObjectReply::Decided(Decided { reservation: Some(reserved), shadow, ..self.decided(now, limits) }))
    }

    /// Sets when it expires, and what happens then. Returns what was computed of each bucket's returns, which it drops.
    fn let_end(
        &mut self,
        asked: &[Arc<Policy>],
        id: u64,
        (end, expires_at): (End, i64),
    ) -> Result<Vec<Option<Returns>>, LedgerError> {
        if let Some(open) = self.reservations.remove(id) {
            self.reservations.insert(id, Reservation { expires_at, end, ..open });
        }
        for policy in asked {
            // Another version than this one may have limits in shadow.
            if let Some(Slot::Open(bucket)) = self.slot_mut(&shadow_of(policy.name())) {
                bucket.forget_returns();
            }
        }
        asked.iter().map(|policy| self.bucket(policy).map(Bucket::forget_returns)).collect()
    }
}
