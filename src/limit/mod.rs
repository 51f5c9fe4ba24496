//! The arithmetic of limits: exact, on two integers, on `core` alone.
//!
//! A bucket could keep a log of every event, and grow without bound; or have a timer add tokens, and burn time while
//! nobody asks. It is enough to keep how many tokens there were at some moment, and to work out the rest when asked.
//! What goes wrong then is the arithmetic: floating point drifts, and integers that round a refill down starve a
//! client that keeps asking. Here one token is as many *drops* as make every millisecond's refill a whole number, so
//! nothing is rounded, and nothing is lost.
//!
//! Over any `t` milliseconds a bucket admits at most `capacity + ⌊rate · t / period⌋` tokens by `consume`, and it never
//! refuses a cost that the exact rational model would admit.
//!
//! Time is always an argument, in Unix milliseconds; nothing here reads a clock, allocates, or fails once a [`Limit`]
//! is made.
//!
//! ```
//! use tollgate::limit::{Config, Decision, Limit};
//!
//! // 3 per second and no more than 3 at once: a third of a second for one token.
//! let limit = Limit::new(&Config::token_bucket(3, 1_000))?;
//! let mut alice = limit.new_state(0, 0);
//! assert_eq!(limit.consume(&mut alice, 0, 3), Decision::Allow { tokens: 3, ready_at: 0 });
//! assert_eq!(limit.consume(&mut alice, 0, 1), Decision::Wait { retry_at: 334 });
//! assert_eq!(limit.consume(&mut alice, 333, 1), Decision::Wait { retry_at: 334 });
//! assert!(limit.consume(&mut alice, 334, 1).is_allow());
//! // More than the capacity will never pass, however long one waits.
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
mod arithmetic;
mod carry;
mod config;
mod decision;
mod jitter;
mod policy;
mod record;
mod snapshot;
mod state;

pub use arithmetic::{Limit, MAX_STEP_BACK_MS};
pub use carry::Carry;
pub use config::{Config, ConfigError, Kind, MAX_SPAN_MS, MAX_TOKENS};
pub use decision::{Decision, Verb};
pub use jitter::jitter;
pub use policy::{Part, decide_all};
pub use record::{Record, RecordError, encode};
pub use snapshot::Snapshot;
pub use state::State;
