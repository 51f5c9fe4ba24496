//! Deletes expired state, and schedules the alarm for that.

use std::sync::Arc;

use super::accounts::MAX_INLINE;
use super::bucket::{Need, row_expires_at};
use super::names::bucket_row;
use super::row::StoredRow;
use super::{Ledger, Slot, Writes};
use crate::policy::{Policy, without_shadow};

/// Minimum time before cleanup. A key that is used once costs its row, the alarm's row, the alarm's request, and the deletion. A key that
/// returns within a day pays only for its row, and a day of storage costs a thirtieth of the rest.
const LINGER_MS: i64 = 86_400_000;

/// The longest time between two alarms, even if rows can never be deleted or are unreadable.
const LOOK_MS: i64 = 30 * 86_400_000;

/// How many buckets of inline policies may wait for the alarm, full or not: each request scans all of them.
const MANY_INLINE: usize = 64;

/// The new count of successive failures to clean, from the stored row, which is empty at first.
#[must_use]
pub fn failed_again(before: &[u8]) -> u8 {
    before.first().map_or(1, |failures| failures.saturating_add(1))
}

/// The pause in milliseconds after that many failures: an hour after the first, since settings and storage take some time to
/// mend, then twice as long each time, up to 30 days.
#[must_use]
pub fn retry_ms(failures: u8) -> i64 {
    let hours = 1_i64.checked_shl(u32::from(failures.saturating_sub(1))).filter(|hours| *hours > 0);
    hours.and_then(|hours| hours.checked_mul(3_600_000)).map_or(LOOK_MS, |ms| ms.min(LOOK_MS))
}

impl Ledger {
    /// Deletes full buckets, reservations that ended long ago, and expired replays.
    ///
    /// If the clock then steps back, a new bucket replaces one that would not have been full yet, so the key may get that step's refill
    /// once more.
    pub fn clean(&mut self, now: i64) -> Writes {
        let mut writes = Writes::default();
        self.has_alarm = false;
        self.end_holds(now);
        self.end_expired(now);
        self.open_behind(now);
        self.forget_full(now, &mut writes, |_, _| true);
        let has_bucket = |policy: &str| self.buckets.iter().any(|(name, _)| name == policy);
        self.notices.clean(now, has_bucket, &mut writes.before_reply);
        self.bans.clean(now, &mut writes.before_reply);
        self.replays.close_pages();
        self.replays.collect_late_writes(now, &mut writes.before_reply);
        self.collect_writes(now, &mut writes);
        let has_reservations = self.all_reservations().next().is_some();
        let is_empty = self.buckets.is_empty() && !has_reservations && self.replays.is_empty();
        if is_empty && self.notices.is_empty() && self.bans.is_empty() && self.unreadable.is_empty() {
            return Writes { clear: true, ..Writes::default() };
        }
        self.set_alarm(now, &mut writes);
        writes
    }

    /// Opens the rolling windows of which a crash has left a row that lacks what may have been taken since: that comes back a period after it
    /// is noticed, so it is noticed once, and written. Leases of others that are over count as taken.
    fn open_behind(&mut self, now: i64) {
        for (_, slot) in &mut self.buckets {
            if let Slot::Open(bucket) = slot
                && bucket.has_logs()
            {
                bucket.end_leases(now);
            }
        }
        let behind = self.buckets.iter().filter_map(|(name, slot)| {
            let Slot::Stored(row) = slot else { return None };
            let row = StoredRow::read(row).ok()?;
            row.is_behind().then(|| row.policy(name).ok()).flatten()
        });
        for policy in behind.collect::<Vec<_>>() {
            if self.open(&policy, 0, now).is_ok()
                && let Ok(bucket) = self.bucket(&policy)
            {
                bucket.need(Need::Exact);
            }
        }
    }

    /// Forgets full buckets with limits from requests, if there are many besides those `asked`: callers choose their names. One with a row
    /// waits for a request that writes anyway.
    pub(super) fn forget_full_inline(&mut self, asked: &[Arc<Policy>], now: i64, writes: &mut Writes) {
        let is_other = |name: &str| asked.iter().all(|policy| policy.name() != name);
        let inline = self.buckets.iter().filter(|(name, slot)| is_other(name) && slot.is_inline());
        if inline.count() >= MANY_INLINE {
            let is_written = !writes.before_reply.is_empty();
            let is_meant =
                |name: &str, slot: &Slot| is_other(name) && slot.is_inline() && (is_written || !slot.has_row());
            self.forget_full(now, writes, is_meant);
        }
    }

    /// Whether there is no room for the buckets of `asked` policies with limits from the request, even after dropping full ones.
    pub(super) fn has_no_room_for_inline(&mut self, asked: &[Arc<Policy>], now: i64, writes: &mut Writes) -> bool {
        let new = asked.iter().filter(|policy| policy.is_inline() && self.slot(policy.name()).is_none()).count();
        let is_too_much = |ledger: &Self| {
            let inline = ledger.buckets.iter().filter(|(_, slot)| slot.is_inline());
            inline.count().saturating_add(new) > MAX_INLINE
        };
        if new == 0 || !is_too_much(self) {
            return false;
        }
        self.end_expired(now);
        let is_other = |name: &str| asked.iter().all(|policy| policy.name() != name);
        self.forget_full(now, writes, |name, slot| is_other(name) && slot.is_inline());
        is_too_much(self)
    }

    /// Forgets the full buckets among those selected by name.
    fn forget_full(&mut self, now: i64, writes: &mut Writes, is_meant: impl Fn(&str, &Slot) -> bool) {
        self.buckets.retain(|(name, slot)| {
            let has_ended = is_meant(name, slot) && slot.expires_at(now).is_some_and(|at| at <= now);
            let all = self.reservations.iter().chain(self.ended.iter());
            let mut parts = all.flat_map(|(_, reservation)| &reservation.parts);
            let is_over = has_ended && !parts.any(|part| part.policy == without_shadow(name));
            if is_over && slot.has_row() {
                writes.before_reply.push((bucket_row(name), None));
            }
            !is_over
        });
    }

    /// Sets an alarm if one is needed. Called when storage has rows but no alarm, because the runtime gave up after the last one failed.
    pub fn alarm_is_missing(&mut self, now: i64) -> Writes {
        let mut writes = Writes::default();
        if std::mem::replace(&mut self.has_alarm, false) {
            self.set_alarm(now, &mut writes);
        }
        writes
    }

    /// Schedules an alarm unless there is one.
    pub(super) fn set_alarm(&mut self, now: i64, writes: &mut Writes) {
        if !std::mem::replace(&mut self.has_alarm, true) {
            writes.alarm_at = Some(self.next_alarm(now));
        }
    }

    /// When there will be something to delete.
    fn next_alarm(&self, now: i64) -> i64 {
        let buckets = self.buckets.iter().filter_map(|(_, slot)| slot.expires_at(now));
        // An expired one waits for an unreadable bucket: twice as long each time.
        let again = |expires_at: i64| now.saturating_add(now.saturating_sub(expires_at));
        let reservations = self.reservations.ends();
        let reservations = reservations.map(|at| if at > now { at } else { again(at) });
        let reservations = reservations.chain(self.ended.iter().map(|(_, ended)| ended.forgotten_at()));
        let notices = self.notices.expires_at(|policy| self.slot(policy).is_some());
        let others = notices.chain(self.replays.expires_at()).chain(self.bans.expires_at());
        let first = buckets.chain(reservations).chain(others).min().unwrap_or(i64::MAX);
        first.clamp(now.saturating_add(LINGER_MS), now.saturating_add(LOOK_MS))
    }
}

impl Slot {
    fn expires_at(&self, now: i64) -> Option<i64> {
        match self {
            Self::Stored(row) => row_expires_at(row, now),
            Self::Open(bucket) => bucket.expires_at(now),
        }
    }

    fn is_inline(&self) -> bool {
        match self {
            Self::Stored(row) => StoredRow::read(row).is_ok_and(|row| row.is_inline),
            Self::Open(bucket) => bucket.policy().is_inline(),
        }
    }

    pub(super) const fn has_row(&self) -> bool {
        match self {
            Self::Stored(_) => true,
            Self::Open(bucket) => bucket.has_row(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_after_failures_double_from_an_hour_to_30_days() {
        for (failures, hours) in [(1, 1), (2, 2), (3, 4), (10, 512), (11, 720), (64, 720), (65, 720), (255, 720)] {
            assert_eq!(retry_ms(failures), hours * 3_600_000, "{failures}");
        }
        for (before, failures) in [(&[][..], 1), (&[1], 2), (&[254], 255), (&[255], 255)] {
            assert_eq!(failed_again(before), failures, "{before:?}");
        }
    }
}
