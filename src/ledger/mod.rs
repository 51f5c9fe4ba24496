//! The state of one key: its buckets, open reservations and replays; and what to write to storage, and when.
//!
//! A row for every request would cost more than the request, and each would wait for it. So memory is ahead of storage, by a bounded number
//! of tokens and always on the safe side (see `bucket.rs`). Anything a client may rely on after a crash, a reservation or the answer to an
//! `Idempotency-Key`, is written before the reply.
//!
//! Nothing here depends on where rows are kept. The time and the stored rows are arguments; the rows to write are a result, [`Writes`],
//! which [`Kept`] gives to a [`Storage`]. So a test crashes an object by dropping its [`Ledger`] and making another from the rows,
//! thousands of times a second.
//!
//! # Bounds under crashes and clock skew
//!
//! * While an object lives, its buckets are exact, whatever the clock does.
//! * A crash costs at most one block of each limit and gives nothing. After the clock stepped back, it may also cost that step's refill: a
//!   row from a later moment does not refill before that moment.
//! * A bucket is forgotten when it is full, and one that was never below full is not stored. If the clock then steps back to before that
//!   moment, the key gets a new bucket, already full, where the old one would refill only from that moment on. Nor does the row of a nearly
//!   full bucket say up to which moment it has refilled (see `cover.rs`), if the clock steps back while no object has it in memory. So
//!   milliseconds that a clock shows twice may be credited twice: with all steps back totalling `S`, a key gets at most the refill of `S`
//!   more, and never more than the capacity at once. Without a step back, it gets nothing more.
//!
//! * A reservation that is closed late gives back as much as the bucket would have kept, and takes as much as it would lack: see
//!   `limit/cuts.rs`. The state behind this is written with the reservation, so the same holds after a crash, except for the block.
//! * Versions of a policy that alternate during a roll-out grant no more than the largest capacity and the fastest refill, limit by limit:
//!   see `accounts.rs`. A bucket is deleted when it is full under all of them, except for those that the version in force matches or
//!   exceeds. After a change by [`Carry::AsIs`](crate::limit::Carry::AsIs) it has no account of the previous numbers: if it is deleted
//!   then, and they are requested again, they may grant at most the difference of the two capacities more, once.
//!
//! # Rows
//!
//! | row | what | when |
//! |---|---|---|
//! | `b:` and a policy | its bucket; with `~shadow`, that of its limits in shadow | when a block is spent; once a minute on a key that stays nearly full; on a quiet key with each grant; when a reservation is opened or closed |
//! | `r:` and an id | a reservation that is open, or may be settled late | when it is opened, and deleted when it is closed or forgotten |
//! | `n:` and a policy | when the last notices were given | with each notice |
//! | `x:` and a policy | its latest ban of the key for being refused often, and the refusals since | with each refusal that counts, and deleted by a reset |
//! | `i:`, a moment and a length of time | a page of replays | with each grant under an `Idempotency-Key`, and when a reservation is closed |
//!
//! An unreadable row breaks only what needs it: a bucket's row breaks its policy, a reservation's row breaks that reservation, and a page
//! of replays breaks requests with an `Idempotency-Key` until everything in it would have expired. Without the row of notices, one extra
//! may be sent; without that of bans, there was none.
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

mod accounts;
mod ask;
mod bans;
mod bucket;
mod bytes;
mod clean;
mod cover;
mod decide;
mod extend;
mod follow;
mod hold;
mod holding;
mod holds;
mod inspect;
mod kept;
mod late;
mod leases;
mod leasing;
mod log;
mod names;
mod notices;
mod noticing;
mod open_lease;
mod page;
mod quota;
mod recent;
mod replay;
mod replays;
mod reservation;
mod reservations;
mod reserve;
mod returns;
mod row;
mod shadow;
mod standing;
mod without;
mod writes;
mod writing;

use std::fmt;

use self::bans::Bans;
use self::bucket::Bucket;
use self::holds::Holds;
use self::names::{BUCKET, RESERVATION};
use self::notices::Notices;
use self::recent::Recent;
use self::replays::Replays;
use self::reservation::Reservation;
use self::reservations::Reservations;

pub use self::accounts::{MAX_INLINE, MAX_OTHERS};
pub use self::clean::{failed_again, retry_ms};
pub use self::kept::{Kept, KeptError, Storage};
pub use self::late::{LATE_SETTLEMENT_MS, MAX_KEPT};
pub use self::leases::MAX_LEASES;
pub use self::quota::MAX_RESERVATIONS;
pub use self::replays::{MAX_CLOSED, MAX_RECENT, MAX_REQUEST_IDS, REPLAY_TTL_MS};
pub use self::writes::{Background, RowWrite, Writes};

/// The state of one key.
#[derive(Debug)]
pub struct Ledger {
    /// Places the windows of limits without an offset; constant for the key.
    phase: u64,
    /// By policy name. The list is short, and each request scans it: sorting gains nothing.
    buckets: Vec<(String, Slot)>,
    /// Open reservations.
    reservations: Reservations,
    /// Expired reservations that may still be settled: see `late.rs`.
    ended: Reservations,
    /// Reservations whose rows are to be written: with an account's new name, or, if forgotten, deleted.
    unwritten: Vec<u64>,
    holds: Holds,
    replays: Replays,
    notices: Notices,
    bans: Bans,
    /// Unreadable rows other than those of buckets and replays. They are left alone.
    unreadable: Vec<String>,
    recent: Recent,
    /// Whether an alarm is scheduled.
    has_alarm: bool,
    /// The ticket of the next background row.
    next_ticket: u32,
}

#[derive(Clone, Debug)]
enum Slot {
    /// As found in storage, not yet used.
    Stored(Vec<u8>),
    Open(Box<Bucket>),
}

/// Why no decision is possible. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerError(String);

impl LedgerError {
    pub(crate) fn new(why: &str) -> Self {
        Self(why.to_owned())
    }

    /// The bucket of that policy cannot be used.
    fn of_bucket(policy: &str, error: impl fmt::Display) -> Self {
        Self(format!("the bucket of policy {policy}: {error}"))
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LedgerError {}

impl Ledger {
    /// The phase of the object with this id, in hexadecimal: its first 64 bits. An id is derived from the object's name, a hash.
    #[must_use]
    pub fn phase_of(id: &str) -> u64 {
        id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    }

    /// The ledger of a key with these stored `rows`. `phase` is that of [`Limit::new_state`](crate::limit::Limit::new_state).
    pub fn new(rows: impl IntoIterator<Item = (String, Vec<u8>)>, phase: u64) -> Self {
        let mut ledger = Self {
            phase,
            buckets: Vec::new(),
            reservations: Reservations::default(),
            ended: Reservations::default(),
            unwritten: Vec::new(),
            holds: Holds::default(),
            replays: Replays::default(),
            notices: Notices::default(),
            bans: Bans::default(),
            unreadable: Vec::new(),
            recent: Recent::default(),
            has_alarm: false,
            // 0 would tell the runtime that no confirmation is wanted.
            next_ticket: 1,
        };
        for (name, row) in rows {
            // The first row is never written without an alarm, and the last alarm never leaves one behind.
            ledger.has_alarm = true;
            if let Some(policy) = name.strip_prefix(BUCKET) {
                if ledger.buckets.is_empty() {
                    ledger.buckets.reserve_exact(1); // as in `decide.rs`
                }
                ledger.buckets.push((policy.to_owned(), Slot::Stored(row)));
                continue;
            }
            if ledger.replays.load(&name, &row) || ledger.notices.load(&name, &row) || ledger.bans.load(&name, &row) {
                continue;
            }
            let id = name.strip_prefix(RESERVATION).and_then(|id| u64::from_str_radix(id, 16).ok());
            match id.zip(Reservation::decode(&row)) {
                Some((id, reservation)) => ledger.reservations.insert(id, reservation),
                None => ledger.unreadable.push(name),
            }
        }
        ledger
    }

    fn slot(&self, policy: &str) -> Option<&Slot> {
        self.buckets.iter().find(|(name, _)| name == policy).map(|(_, slot)| slot)
    }

    fn slot_mut(&mut self, policy: &str) -> Option<&mut Slot> {
        self.buckets.iter_mut().find(|(name, _)| name == policy).map(|(_, slot)| slot)
    }
}
