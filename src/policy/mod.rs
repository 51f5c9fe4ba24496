//! Policies: named sets of limits, how people write them, and what is stored of their numbers beside a bucket.
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

mod definition;
mod describe;
mod named;
mod parse;
mod stored;

pub use named::{NamedLimit, OnError, Policy, ReservationTerms, Unsettled};
pub use parse::{MAX_LIMITS, Policies, PolicyError};
pub use stored::{StoredConfigError, stored_limits};
