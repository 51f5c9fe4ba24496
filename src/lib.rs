// Doc examples run natively only: wasm-bindgen's test runner finds no tests in them and reports success.
#![cfg(not(all(doctest, target_family = "wasm")))]
//! An exact rate limiter: integer token buckets and fixed windows, for the edge and for plain Rust.
//!
//! [`limit`] is the arithmetic and needs only `core`; everything else builds on it. A plain program needs nothing more:
//!
//! ```toml
//! tollgate = { version = "0.1", default-features = false }
//! ```
//!
//! ```
//! use tollgate::limit::{Config, Decision, Limit};
//!
//! let limit = Limit::new(&Config::token_bucket(100, 60_000))?; // 100 per minute
//! let now = 1_800_000_000_000; // Unix milliseconds, from whatever clock you trust
//! let mut alice = limit.new_state(now, 0);
//! match limit.consume(&mut alice, now, 1) {
//!     Decision::Allow { .. } => println!("{} left", limit.remaining(&alice, now)),
//!     Decision::Wait { retry_at } => println!("come back in {} ms", retry_at - now),
//!     Decision::Never { max } => println!("never more than {max} at once"),
//! }
//! # Ok::<(), tollgate::limit::ConfigError>(())
//! ```
//!
//! | module | contents | feature |
//! |---|---|---|
//! | [`limit`] | the arithmetic | none |
//! | [`keyed`] | a thread-safe limiter for many keys, with bounded memory | `std` |
//! | [`unix_ms`] | converts `SystemTime` to the Unix milliseconds of [`limit`] | `std` |
//! | `policy` | named sets of limits, from JSON | `api` |
//! | `tower` | a layer for servers and clients, on `keyed` | `tower`; for axum, `axum` |
//!
//! These are the public API. The other modules are what the service and the npm package consist of. They are `pub` only for
//! their tests and benchmarks, have no documentation here, and may change in any release.
#![cfg_attr(not(feature = "std"), no_std)]

// Hidden modules are no public API: see above.
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod access;
#[cfg(feature = "answers")]
#[doc(hidden)]
pub mod answers;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod api;
// Property tests in here use the same cases on every machine.
#[cfg(all(test, feature = "api"))]
#[path = "../tests/chance/mod.rs"]
mod chance;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod edge;
#[cfg(any(feature = "answers", feature = "lint"))]
#[doc(hidden)]
pub mod exchange;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod frontend;
#[cfg(feature = "api")]
mod hex;
#[cfg(any(feature = "js", feature = "leases"))]
#[doc(hidden)]
pub mod js;
#[cfg(feature = "api")]
mod json;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod key_hash;
#[cfg(feature = "std")]
pub mod keyed;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod ledger;
#[cfg(feature = "api")]
mod length;
pub mod limit;
#[cfg(feature = "lint")]
#[doc(hidden)]
pub mod lint;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod metrics;
#[cfg(feature = "api")]
pub mod policy;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod protocol;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod registry;
#[cfg(feature = "api")]
mod sorted;
#[cfg(feature = "std")]
mod system_time;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "worker")]
#[doc(hidden)]
pub mod worker;

#[cfg(feature = "std")]
pub use system_time::unix_ms;

#[cfg(all(test, target_family = "wasm"))]
wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);

/// Compiles and runs the README's Rust examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
