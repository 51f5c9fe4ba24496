//! The arithmetic of limits: exact, on two integers, on `core` alone.
//!
//! A bucket could keep a log of every event, and grow without bound; or let a timer add tokens, and burn CPU while
//! idle. It is enough to store how many tokens there were at some moment, and to work out the rest when asked. Then the
//! arithmetic becomes the weak point: floating point drifts, and integers that round a refill down starve a client that
//! keeps asking. Here a token is divided into *drops*, so many that every millisecond's refill is a whole number of
//! them: nothing is rounded, and nothing is lost.
//!
//! Over any `t` milliseconds a token bucket admits at most `capacity + ⌊rate · t / period⌋` tokens by `consume`, and a
//! fixed window of a period `capacity + rate · ⌈t / period⌉`: two windows may meet. Neither refuses a cost that the exact rational
//! model would admit. A [`RollingWindow`] admits at most `rate` in any interval of a period, whose end is not part of it.
//!
//! Time is always an argument, in Unix milliseconds. Nothing here reads a clock or allocates, and once a [`Limit`] is
//! made, nothing fails.
//!
//! ```
//! use std::time::Duration;
//!
//! use tollgate::limit::{Config, Decision, Limit};
//!
//! // 3 per second and no more than 3 at once: a third of a second for one token.
//! let limit = Limit::new(&Config::token_bucket(3, Duration::from_secs(1)))?;
//! let mut alice = limit.new_state(0, 0);
//! assert_eq!(limit.consume(&mut alice, 0, 3), Decision::Allow { tokens: 3, ready_at: 0 });
//! assert_eq!(limit.consume(&mut alice, 0, 1), Decision::Wait { retry_at: 334 });
//! assert_eq!(limit.consume(&mut alice, 333, 1), Decision::Wait { retry_at: 334 });
//! assert!(limit.consume(&mut alice, 334, 1).is_allow());
//! // A cost above the capacity can never pass, however long the wait.
//! assert_eq!(limit.consume(&mut alice, 334, 4), Decision::Never { max: 3 });
//! # Ok::<(), tollgate::limit::ConfigError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::float_arithmetic,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::unreachable,
    clippy::unwrap_used
)]

mod ahead;
mod all;
mod arithmetic;
mod calendar;
mod carry;
mod config;
#[cfg(feature = "service")]
mod cuts;
mod decision;
mod divisor;
mod jitter;
mod record;
mod rolling;
mod snapshot;
mod state;
mod warm_up;
#[cfg(feature = "api")]
mod weaker;

pub use all::{Part, decide_all};
pub use arithmetic::Limit;
#[cfg(feature = "api")]
pub(crate) use arithmetic::gcd;
#[cfg(all(feature = "serde", feature = "api"))]
pub(crate) use calendar::Text as CalendarText;
pub use calendar::{Calendar, Zone};
#[cfg(feature = "api")]
pub(crate) use calendar::{Days, MonthDay};
pub use carry::Carry;
pub use config::{Config, ConfigError, Kind, MAX_SPAN_MS, MAX_TOKENS};
#[cfg(feature = "service")]
pub(crate) use cuts::Cuts;
pub use decision::{Decision, Verb};
pub use jitter::jitter;
#[cfg(feature = "api")]
pub(crate) use rolling::{DEFAULT_GRAINS, MAX_GRAINS, grain_ms};
pub use rolling::{Moment, RollingState, RollingWindow};
#[cfg(feature = "service")]
pub(crate) use rolling::{ahead_ms, moment};
pub use snapshot::Snapshot;
pub use state::State;
pub use warm_up::{WarmUp, WarmUpState};

// For the service only: no public API.
#[doc(hidden)]
pub use all::decide_policies;
#[doc(hidden)]
pub use arithmetic::MAX_STEP_BACK_MS;
#[doc(hidden)]
pub use record::{Record, RecordError, encode};
