//! What is kept for one key: its buckets, its open reservations, what it was answered; and when storage hears of it.
//!
//! A row for every request would cost more than the request, and each would wait for it. So memory is ahead of storage,
//! by a bounded number of tokens and always on the safe side (see `bucket.rs`). What a client was promised to outlast a
//! crash, a reservation or the answer to an `Idempotency-Key`, is written before it is told.
//!
//! Nothing here knows where rows are kept. Time is an argument, and so is what was stored; what is to be stored is a
//! result, [`Writes`]. So a crash is a matter of dropping a [`Ledger`] and making another from the rows, which the tests
//! do thousands of times a second.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod ask;
mod bucket;
mod bytes;
mod decide;
mod hold;
mod replay;
mod replays;
mod reservation;
mod reserve;
mod writes;

use std::collections::BTreeMap;
use std::fmt;

use self::bucket::Bucket;
use self::reservation::Reservation;

pub use self::reserve::MAX_RESERVATIONS;
pub use self::writes::{Background, Writes};

/// All that is kept for one key.
#[derive(Debug)]
pub struct Ledger {
    /// Places the windows of limits without an offset; the same for the key always.
    phase: u64,
    /// By the policy's name.
    buckets: BTreeMap<String, Slot>,
    /// By their id.
    reservations: BTreeMap<u64, Reservation>,
    /// Whether an alarm is scheduled.
    has_alarm: bool,
    /// The ticket of the next background row.
    next_ticket: u32,
}

#[derive(Debug)]
enum Slot {
    /// As it was found, not yet asked for.
    Stored(Vec<u8>),
    Open(Bucket),
}

/// Why nothing can be decided. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError(String);

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LedgerError {}

impl Ledger {
    /// The ledger of a key for which storage has `rows`. `phase` is that of
    /// [`Limit::new_state`](crate::limit::Limit::new_state).
    ///
    /// # Errors
    /// When there is a row that no version of this could have written. Nothing may be decided then.
    pub fn new(rows: impl IntoIterator<Item = (String, Vec<u8>)>, phase: u64) -> Result<Self, LedgerError> {
        let (mut buckets, mut reservations) = (BTreeMap::new(), BTreeMap::new());
        for (name, row) in rows {
            if let Some(policy) = name.strip_prefix(BUCKET) {
                buckets.insert(policy.to_owned(), Slot::Stored(row));
                continue;
            }
            let id = name.strip_prefix(RESERVATION).and_then(|id| u64::from_str_radix(id, 16).ok());
            match id.zip(Reservation::decode(&row)) {
                Some((id, reservation)) => _ = reservations.insert(id, reservation),
                None => return Err(LedgerError(format!("the row {name:?} cannot be read"))),
            }
        }
        // The first row is never written without an alarm, and the last alarm never leaves one behind.
        let has_alarm = !buckets.is_empty() || !reservations.is_empty();
        // 0 would tell the runtime that no confirmation is wanted.
        Ok(Self { phase, buckets, reservations, has_alarm, next_ticket: 1 })
    }
}

/// The rows of storage: `b:` and a policy's name, `r:` and a reservation's id.
const BUCKET: &str = "b:";
const RESERVATION: &str = "r:";
