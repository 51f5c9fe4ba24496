//! What to write to storage, and when.

use super::bucket::{IDLE_MS, Row};
use super::{BUCKET, Ledger, Slot};

/// What to write to storage.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Rows by name, to be written together or not at all before the answer is given; `None` deletes one.
    pub before_reply: Vec<(String, Option<Vec<u8>>)>,
    /// Rows that may be written after the reply. Once they are persisted, call [`Ledger::confirm`].
    pub background: Vec<Background>,
    /// Whether to delete the whole storage and any alarm. If so, there are no rows to write.
    pub clear: bool,
    /// When to call [`Ledger::clean`]; `None` leaves the alarm as it is.
    pub alarm_at: Option<i64>,
    /// Whether to call [`Ledger::flush_idle`] in [`Writes::IDLE_MS`].
    pub wants_flush: bool,
}

/// A row that no reply waits for.
#[derive(Debug, PartialEq, Eq)]
pub struct Background {
    /// Its name.
    pub name: String,
    /// What to write.
    pub row: Vec<u8>,
    /// What to pass to [`Ledger::confirm`].
    pub ticket: u32,
}

impl Background {
    /// Uses up `next_ticket`.
    fn of_bucket(policy: &str, row: Vec<u8>, next_ticket: &mut u32) -> Self {
        let ticket = *next_ticket;
        *next_ticket = ticket.checked_add(1).unwrap_or(1);
        Self { name: format!("{BUCKET}{policy}"), row, ticket }
    }
}

impl Writes {
    /// After how many milliseconds a pause in spending is noticed.
    pub const IDLE_MS: u64 = IDLE_MS;
}

impl Ledger {
    /// Records that a [`Background`] row is persisted.
    pub fn confirm(&mut self, name: &str, ticket: u32) {
        if let Some(Slot::Open(bucket)) = name.strip_prefix(BUCKET).and_then(|policy| self.slot_mut(policy)) {
            bucket.confirm(ticket);
        }
    }

    /// What to write when spending has paused: the exact levels, so an eviction loses nothing.
    pub fn flush_idle(&mut self, now: i64) -> Writes {
        let mut writes = Writes::default();
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

    /// Collects what to write of buckets and replays.
    pub(super) fn collect_writes(&mut self, now: i64, writes: &mut Writes) {
        for (name, slot) in &mut self.buckets {
            if let Slot::Open(bucket) = slot {
                match bucket.row(now, self.next_ticket) {
                    Row::Nothing => {}
                    Row::BeforeReply(row) => writes.before_reply.push((format!("{BUCKET}{name}"), Some(row))),
                    Row::Background(row) => {
                        writes.background.push(Background::of_bucket(name, row, &mut self.next_ticket));
                    }
                }
                writes.wants_flush |= bucket.is_ahead_of_storage();
            }
        }
        self.replays.collect_writes(&mut writes.before_reply);
        self.collect_late_writes(now, writes);
    }

    /// Adds what may wait until something else is written.
    fn collect_late_writes(&mut self, now: i64, writes: &mut Writes) {
        if !writes.before_reply.is_empty() || !writes.background.is_empty() {
            self.replays.collect_late_writes(now, &mut writes.before_reply);
            writes.before_reply.extend(self.stale_rows.drain(..).map(|name| (name, None)));
        }
    }
}
