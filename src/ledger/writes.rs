//! What to write to storage, and when.

use super::names::bucket_row;

/// A row to write: its name and bytes; without bytes it is deleted.
pub type RowWrite = (String, Option<Vec<u8>>);

/// What to write to storage.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Rows to write before the reply, all or none.
    pub before_reply: Vec<RowWrite>,
    /// Rows about the reply's notices and about refusals, also written before it. If that fails, the reply is sent all the same.
    pub consequences: Vec<RowWrite>,
    /// Rows that may be written after the reply. Once they are persisted, call [`Ledger::confirm`](super::Ledger::confirm).
    pub background: Vec<Background>,
    /// Whether to delete the whole storage and any alarm. Then there are no rows to write.
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
    /// The argument of [`Ledger::confirm`](super::Ledger::confirm).
    pub ticket: u32,
}

impl Background {
    /// Increments `next_ticket`.
    pub(super) fn of_bucket(policy: &str, row: Vec<u8>, next_ticket: &mut u32) -> Self {
        let ticket = *next_ticket;
        *next_ticket = ticket.checked_add(1).unwrap_or(1);
        Self { name: bucket_row(policy), row, ticket }
    }
}

impl Writes {
    /// Delay in milliseconds after which spending counts as paused. The timer keeps the object awake, which is billed: half a second costs
    /// nearly as much as the saved row. So it pays only for requests in quick succession (`npm run cost`).
    pub const IDLE_MS: u64 = 200;
}
