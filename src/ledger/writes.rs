//! What storage must be told, and when.

use super::bucket::{IDLE_MS, Row, row_expires_at};
use super::{BUCKET, Ledger, Slot};

/// What storage must be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Rows by name, to be written together or not at all before the answer is given; `None` deletes one.
    pub before_reply: Vec<(String, Option<Vec<u8>>)>,
    /// Rows that may be written while nobody waits. Once they are there for good, say so to [`Ledger::confirm`].
    pub background: Vec<Background>,
    /// Everything goes, and this is all.
    pub clear: bool,
    /// The moment at which to ask [`Ledger::clean`], unless there is one already.
    pub alarm_at: Option<i64>,
    /// Whether to ask [`Ledger::flush_idle`] in [`Writes::IDLE_MS`].
    pub wants_flush: bool,
}

/// A row that nobody waits for.
#[derive(Debug, PartialEq, Eq)]
pub struct Background {
    /// Its name.
    pub name: String,
    /// What to write.
    pub row: Vec<u8>,
    /// What to say to [`Ledger::confirm`].
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
    /// Takes note that an [`Background`] row is in storage for good.
    pub fn confirm(&mut self, name: &str, ticket: u32) {
        if let Some(Slot::Open(bucket)) = name.strip_prefix(BUCKET).and_then(|policy| self.buckets.get_mut(policy)) {
            bucket.confirm(ticket);
        }
    }

    /// What to write when spending has paused: the exact levels, so that nothing is lost when the object is put to sleep.
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
        writes
    }

    /// Forgets what is as good as never having been: buckets that are full again, reservations that have ended.
    pub fn clean(&mut self, now: i64) -> Writes {
        let mut writes = Writes::default();
        self.has_alarm = false;
        self.end_expired(now, &mut writes);
        let names: Vec<String> = self.buckets.keys().cloned().collect();
        for name in names {
            let has_ended = self.expires_at(&name, now).is_some_and(|at| at <= now);
            let is_reserved = self.reservations.values().any(|open| open.parts.iter().any(|part| part.policy == name));
            if has_ended && !is_reserved {
                self.buckets.remove(&name);
                writes.before_reply.push((format!("{BUCKET}{name}"), None));
            }
        }
        if self.buckets.is_empty() && self.reservations.is_empty() {
            return Writes { clear: true, ..Writes::default() };
        }
        self.collect_writes(now, &mut writes);
        writes.alarm_at = Some(self.next_alarm(now));
        self.has_alarm = true;
        writes
    }

    /// Collects what storage must be told of the buckets.
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
    }

    fn expires_at(&self, name: &str, now: i64) -> Option<i64> {
        match self.buckets.get(name)? {
            Slot::Stored(row) => row_expires_at(row, now),
            Slot::Open(bucket) => bucket.expires_at(now),
        }
    }

    /// When there will be something to forget.
    pub(super) fn next_alarm(&self, now: i64) -> i64 {
        let buckets = self.buckets.keys().filter_map(|name| self.expires_at(name, now));
        let all = buckets.chain(self.reservations.values().map(|open| open.expires_at));
        let first = all.min().unwrap_or(i64::MAX);
        first.clamp(now.saturating_add(LINGER_MS), now.saturating_add(LOOK_MS))
    }
}

/// Nothing is cleaned up sooner: to be woken and to set the next alarm costs more than to keep a row for an hour.
const LINGER_MS: i64 = 3_600_000;

/// Nor is it looked after later, even if it can never be forgotten.
const LOOK_MS: i64 = 30 * 86_400_000;
