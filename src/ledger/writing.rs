//! The rows to write for buckets and replays.

use super::bucket::Row;
use super::names::{BUCKET, bucket_row};
use super::reservation::{Reservation, reservation_row};
use super::{Background, Ledger, Slot, Writes};
use crate::sorted::sort_by;

impl Ledger {
    /// Records that a [`Background`] row is persisted.
    pub fn confirm(&mut self, name: &str, ticket: u32) {
        if let Some(Slot::Open(bucket)) = name.strip_prefix(BUCKET).and_then(|policy| self.slot_mut(policy)) {
            bucket.confirm(ticket);
        }
    }

    /// The writes after spending has paused: the exact levels, so an eviction loses nothing.
    pub fn flush_idle(&mut self, now: i64) -> Writes {
        let mut writes = Writes::default();
        if !self.unwritten.is_empty() {
            // A request failed after a limit was renamed: everything with that name is one write.
            self.collect_writes(now, &mut writes);
            return writes;
        }
        for (name, slot) in &mut self.buckets {
            if let Slot::Open(bucket) = slot {
                if let Some(row) = bucket.flush_idle(now, self.next_ticket) {
                    writes.background.push(Background::of_bucket(name, row, &mut self.next_ticket));
                }
                writes.wants_flush |= bucket.is_ahead_of_storage();
            }
        }
        self.collect_late_writes(now, &mut writes);
        writes
    }

    /// Collects the rows to write for buckets and replays.
    pub(super) fn collect_writes(&mut self, now: i64, writes: &mut Writes) {
        for (name, slot) in &mut self.buckets {
            if let Slot::Open(bucket) = slot {
                match bucket.row(now, self.next_ticket) {
                    Row::Nothing => {}
                    Row::BeforeReply(row) => writes.before_reply.push((bucket_row(name), Some(row))),
                    Row::Background(row) => {
                        writes.background.push(Background::of_bucket(name, row, &mut self.next_ticket));
                    }
                }
                writes.wants_flush |= bucket.is_ahead_of_storage();
            }
        }
        self.collect_unwritten(writes);
        self.replays.collect_writes(&mut writes.before_reply);
        self.collect_late_writes(now, writes);
    }

    /// Collects the rows of reservations that have changed, or deletes those of forgotten ones.
    fn collect_unwritten(&mut self, writes: &mut Writes) {
        let mut unwritten = std::mem::take(&mut self.unwritten);
        sort_by(&mut unwritten, Ord::cmp);
        unwritten.dedup();
        let others = writes.before_reply.len();
        for id in unwritten {
            let row = reservation_row(id);
            if writes.before_reply.iter().take(others).all(|(name, _)| *name != row) {
                let reservation = self.reservations.get(id).or_else(|| self.ended.get(id));
                writes.before_reply.push((row, reservation.map(Reservation::encode)));
            }
        }
    }

    /// Adds rows that may wait until something else is written.
    fn collect_late_writes(&mut self, now: i64, writes: &mut Writes) {
        if !writes.before_reply.is_empty() || !writes.background.is_empty() {
            self.replays.collect_late_writes(now, &mut writes.before_reply);
        }
    }
}
