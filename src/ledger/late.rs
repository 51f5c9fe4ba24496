//! Expired reservations: what the ledger does with them, and how long callers may still settle them.
//!
//! At its end a reservation keeps its full cost or gives back all of it, as its policy says. Neither is final: a settlement or cancellation
//! within [`LATE_SETTLEMENT_MS`] still finds it, and leaves the budget as if the real cost had been taken in the first place.

use std::sync::Arc;

use super::bucket::Need;
use super::names::Renamed;
use super::quota::{MAX_RESERVATIONS, of_grants};
use super::replays::REPLAY_TTL_MS;
use super::reservation::{Expired, Piece, Reservation};
use super::row::StoredRow;
use super::{Ledger, LedgerError, Slot};
use crate::policy::{Policy, shadow_of};
use crate::sorted::SortedMap;

/// How long an expired reservation may be settled: as long as a closed one is remembered.
pub const LATE_SETTLEMENT_MS: u64 = REPLAY_TTL_MS;

/// Maximum reservations of a key, open and over; each raise counts as one. Holders of grants have half. Open ones take the room of those
/// that are over: beyond the maximum, of these the ones that ended first are forgotten, but never the latest. All reservations that can be
/// open can expire at once and still be settled; and with any number open, there is room for some that are over.
pub const MAX_KEPT: usize = MAX_RESERVATIONS + 256;

impl Reservation {
    /// When it may be forgotten, once over.
    pub(super) const fn forgotten_at(&self) -> i64 {
        self.expires_at.saturating_add_unsigned(LATE_SETTLEMENT_MS)
    }
}

impl Ledger {
    /// Open and expired reservations.
    pub(super) fn all_reservations(&self) -> impl Iterator<Item = (u64, &Reservation)> {
        self.reservations.iter().chain(self.ended.iter())
    }

    /// Renames an account of this bucket wherever something was taken from it that may be given back. Returns whether rows of reservations
    /// must be written for that.
    pub(super) fn rename_taken(&mut self, bucket: &str, renamed: &Renamed) -> bool {
        self.holds.iter_mut().for_each(|hold| hold.rename(bucket, renamed));
        let all = self.reservations.iter_mut().chain(self.ended.iter_mut());
        let before = self.unwritten.len();
        self.unwritten.extend(all.filter_map(|(id, reservation)| reservation.rename(bucket, renamed).then_some(id)));
        self.unwritten.len() > before
    }

    /// The ids of all their openings: their own, and those of their raises.
    pub(super) fn opened_ids(&self) -> impl Iterator<Item = u64> {
        self.all_reservations().flat_map(|(id, one)| one.pieces(id).map(|(id, _)| id))
    }

    /// What expired reservations are to give back to `policy`'s bucket, soonest first.
    pub(super) fn expired_in(&self, policy: &Policy, now: i64) -> Vec<Expired> {
        let expired = self.reservations.by_end().take_while(|(_, one)| one.expires_at <= now);
        let mut all = Vec::new();
        for (id, one) in expired.filter(|(_, one)| one.is_refunded()) {
            let pieces = one.pieces_in(id, policy).into_iter().filter(|piece| piece.is_open);
            all.extend(pieces.map(|Piece { id, taken, .. }| Expired {
                at: one.expires_at,
                id,
                taken: taken.into_owned(),
            }));
        }
        all
    }

    /// Ends expired reservations, and forgets those that ended long ago. Doing so late makes no difference: tokens given back now leave the
    /// bucket as if they had never been taken, and a bucket that has followed its policy meanwhile has given them back before.
    pub(super) fn end_expired(&mut self, now: i64) {
        let moved = self.reservations.follow_clock(now);
        if !moved.is_empty() {
            self.unwritten.extend(moved);
            for (_, slot) in &mut self.buckets {
                if let Slot::Open(bucket) = slot {
                    bucket.forget_returns();
                }
            }
        }
        let expired = self.reservations.take_expired(now);
        for (id, reservation) in &expired {
            self.ended.insert(*id, reservation.clone());
        }
        for (id, reservation) in
            expired.into_iter().filter(|(_, reservation)| reservation.is_refunded() || reservation.has_slots())
        {
            if self.return_unasked(id, &reservation, now).is_err() {
                self.ended.remove(id);
                self.reservations.insert(id, reservation); // its bucket is unreadable now
            }
        }
        while let Some((id, ended)) = self.first_to_forget(now).and_then(|id| Some((id, self.ended.remove(id)?))) {
            self.close_all(id, &ended);
            self.unwritten.push(id);
        }
    }

    fn first_to_forget(&self, now: i64) -> Option<u64> {
        let (open, over) = (self.reservations.openings(), self.ended.openings());
        let first_but_latest = |is_meant: fn(&Reservation) -> bool| {
            let mut meant = self.ended.by_end().filter(|(_, ended)| is_meant(ended));
            let (id, _) = meant.next()?;
            meant.next().is_some().then_some(id)
        };
        let has_too_many = |open: usize, over: usize, most| over.saturating_add(open) > most;
        let of_grants = has_too_many(open.by_grants, over.by_grants, of_grants(MAX_KEPT));
        let of_all = has_too_many(open.all, over.all, MAX_KEPT);
        let long_over = || self.ended.by_end().next().filter(|(_, ended)| ended.forgotten_at() <= now);
        of_grants
            .then(|| first_but_latest(|ended| ended.by_grant))
            .flatten()
            .or_else(|| of_all.then(|| first_but_latest(|_| true)).flatten())
            .or_else(|| long_over().map(|(id, _)| id))
    }

    /// Gives back what an expired reservation took from buckets that may not be open, if it is refunded, and records that it is over: its
    /// slots are free for others, whatever the clock shows later.
    fn return_unasked(&mut self, id: u64, reservation: &Reservation, now: i64) -> Result<(), LedgerError> {
        let mut buckets = Vec::new();
        for part in &reservation.parts {
            let policy = match self.slot(&part.policy) {
                Some(Slot::Open(bucket)) => Arc::clone(bucket.policy()),
                Some(Slot::Stored(row)) => StoredRow::read(row)
                    .and_then(|row| row.policy(&part.policy))
                    .map_err(|error| LedgerError::of_bucket(&part.policy, error))?,
                None => continue, // the bucket is full
            };
            self.open(&policy, 0, now)?;
            let bucket = self.bucket(&policy)?;
            bucket.end_leases(now); // they ended before
            buckets.push((bucket.closing_at(now), policy));
        }
        // All are open, so nothing fails from here on.
        if reservation.is_refunded() {
            for (at, policy) in buckets {
                self.give_back(&policy, id, reservation, at)?;
            }
            self.give_back_shadows(id, reservation, false, now);
        }
        for (id, parts) in reservation.pieces(id) {
            for name in parts.iter().flat_map(|part| [part.policy.clone(), shadow_of(&part.policy)]) {
                if let Some(Slot::Open(bucket)) = self.slot_mut(&name) {
                    bucket.mark_returned(id);
                    bucket.need(Need::Now);
                }
            }
        }
        Ok(())
    }

    /// Closes a reservation's openings in open buckets. Other buckets do so when read.
    pub(super) fn close_all(&mut self, id: u64, reservation: &Reservation) {
        for (id, _) in reservation.pieces(id) {
            self.close_everywhere(id);
        }
    }

    /// Closes the opening with this id in open buckets. Other buckets do so when read.
    pub(super) fn close_everywhere(&mut self, id: u64) {
        for (_, slot) in &mut self.buckets {
            if let Slot::Open(bucket) = slot {
                bucket.close(id);
            }
        }
    }

    /// Closes openings of forgotten or unreadable reservations in a bucket that was just read.
    pub(super) fn close_forgotten(&mut self, policy: &Policy) -> Result<(), LedgerError> {
        let known: SortedMap<u64, ()> = self.opened_ids().map(|id| (id, ())).collect();
        self.bucket(policy)?.retain(|id| known.contains_key(&id));
        Ok(())
    }
}
