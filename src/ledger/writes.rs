//! What to write to storage, and when.

use super::names::BUCKET;

/// A row to write: its name, and its bytes; without these it is deleted.
pub type RowWrite = (String, Option<Vec<u8>>);

/// What to write to storage.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Rows to be written together or not at all before the answer is given.
    pub before_reply: Vec<RowWrite>,
    /// Rows of notices that the answer gives, to be written before it, too. If they cannot be, the answer is given all the same.
    pub notices: Vec<RowWrite>,
    /// Rows that may be written after the reply. Once they are persisted, call [`Ledger::confirm`](super::Ledger::confirm).
    pub background: Vec<Background>,
    /// Whether to delete the whole storage and any alarm. If so, there are no rows to write.
    pub clear: bool,
    /// When to call [`Ledger::clean`](super::Ledger::clean); `None` leaves the alarm as it is.
    pub alarm_at: Option<i64>,
    /// Whether to call [`Ledger::flush_idle`](super::Ledger::flush_idle) in [`Writes::IDLE_MS`].
    pub wants_flush: bool,
}

/// A row that no reply waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Background {
    /// Its name.
    pub name: String,
    /// What to write.
    pub row: Vec<u8>,
    /// What to pass to [`Ledger::confirm`](super::Ledger::confirm).
    pub ticket: u32,
}

impl Background {
    /// Uses up `next_ticket`.
    pub(super) fn of_bucket(policy: &str, row: Vec<u8>, next_ticket: &mut u32) -> Self {
        let ticket = *next_ticket;
        *next_ticket = ticket.checked_add(1).unwrap_or(1);
        Self { name: format!("{BUCKET}{policy}"), row, ticket }
    }
}

impl Writes {
    /// After how many milliseconds a pause in spending is noticed. The timer for it keeps the object awake, which is billed: half a second of
    /// that costs nearly as much as the row that is saved. So only requests in quick succession are worth it (`npm run cost`).
    pub const IDLE_MS: u64 = 200;
}
