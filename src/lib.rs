// Doc examples run natively only: wasm-bindgen's test runner finds no tests in them and reports success.
#![cfg(not(all(doctest, target_family = "wasm")))]
//! An exact rate limiter: integer token buckets and fixed windows, for the edge and for plain Rust.
//!
//! # Where to start
//!
//! | to | use | feature |
//! |---|---|---|
//! | limit one thing, or keep the states yourself | [`limit::Limit`] | none |
//! | limit each of many keys, in bounded memory | [`keyed::KeyedLimiter`] | `std` |
//! | delay callers until it is their turn, instead of refusing them | [`keyed::KeyedQueue`] | `std` |
//! | pace one thread's own requests | [`limit::Limit::reserve`] | none |
//! | grant no more than so many in any minute, wherever it begins | [`limit::RollingWindow`], also in a `KeyedLimiter` | none |
//! | begin slowly with what is cold after idleness | [`limit::WarmUp`] | none |
//! | write limits as text, such as `"100/1m burst 200"` | `policy::Policies` | `api` |
//! | limit the clients of a server, or the requests of a client | `tower::RateLimitLayer` | `tower`; for axum, `axum` |
//!
//! Time is an argument of every decision: Unix milliseconds, from whatever clock you trust; only the layer has a clock by default. [`unix_ms`] converts a `SystemTime`.
//!
//! # One limit
//!
//! ```
//! use std::time::Duration;
//!
//! use tollgate::limit::{Config, Decision, Limit};
//!
//! let limit = Limit::new(&Config::token_bucket(100, Duration::from_mins(1)))?; // 100 per minute
//! let now = 1_800_000_000_000;
//! let mut alice = limit.new_state(now, 0);
//! match limit.consume(&mut alice, now, 1) {
//!     Decision::Allow { .. } => println!("{} left", limit.remaining(&alice, now)),
//!     Decision::Wait { retry_at } => println!("come back in {} ms", retry_at - now),
//!     Decision::Never { max } => println!("never more than {max} at once"),
//! }
//! # Ok::<(), tollgate::limit::ConfigError>(())
//! ```
//!
//! # Many keys
//!
//! ```
//! # #[cfg(feature = "std")] {
//! use std::time::Duration;
//!
//! use tollgate::keyed::KeyedLimiter;
//! use tollgate::limit::{Config, Limit};
//!
//! // Both limits must grant: 10 per second, and 1000 per day. At most 100 000 keys are kept at once.
//! let per_second = Limit::new(&Config::token_bucket(10, Duration::from_secs(1)))?;
//! let per_day = Limit::new(&Config::fixed_window(1_000, Duration::from_hours(24)))?;
//! let limiter = KeyedLimiter::<String, 2>::new([per_second, per_day], 100_000);
//! let now = 1_800_000_000_000;
//! assert!(limiter.try_consume("alice", now, 1));
//! # }
//! # Ok::<(), tollgate::limit::ConfigError>(())
//! ```
//!
//! # Limits as text
//!
//! ```
//! # #[cfg(feature = "api")] {
//! use tollgate::limit::Limit;
//! use tollgate::policy::Policies;
//!
//! let policies = Policies::parse(r#"{"login":"5/1m","search":"20/s burst 40"}"#)?;
//! let login: &Limit = policies.get("login").expect("it is in the text").limits()[0].limit();
//! assert_eq!(login.config().capacity, 5);
//! // Everything that is wrong, each with its place.
//! let errors = Policies::parse(r#"{"login":"5/1x","search":"20/s brust 40"}"#).unwrap_err();
//! assert_eq!(errors.iter().count(), 2);
//! assert!(errors.to_string().starts_with("POLICIES.login.rate: must be a length of time such as"));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A server
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::get};
//! use tollgate::tower::RateLimitLayer;
//!
//! // Each client's address has its own budget; refusals are 429 with `Retry-After`. Serve it with
//! // `app.into_make_service_with_connect_info::<SocketAddr>()`: that is where the addresses come from.
//! let app: Router = Router::new().route("/", get(async || "Hello")).layer(RateLimitLayer::per_ip("100/1m")?);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! | feature | adds | dependencies |
//! |---|---|---|
//! | none (`default-features = false`) | [`limit`], on `core` alone, without allocation | none |
//! | `std` (default) | [`keyed`], [`unix_ms`] | none |
//! | `api` | `policy`, and `keyed::Network`, the key for addresses | `serde_json` and others |
//! | `zones` | `Zone::named`, and time zones in policies | those of `api`, and `jiff` |
//! | `serde` | reading and writing [`limit::Config`], [`limit::Limit`] and [`limit::Snapshot`] | `serde`, without `std` |
//! | `tower` | `tower` | those of `api`, `http`, `tower-service` and others |
//! | `axum` | the peer's address as axum has it, for `tower` | `axum` without its default features |
//!
//! The other features, and the modules that these hide, are what the service and the npm package consist of. They are `pub` only for their
//! tests and benchmarks, and may change in any release.
//!
//! # Errors
//!
//! A refusal is a value, [`limit::Decision`], with the moment to retry. Errors are what no refusal says: [`limit::ConfigError`] for numbers that could not stay exact, with the largest that could; `policy::PolicyError` and
//! `policy::PolicyErrors` for a text; [`keyed::Full`] for a new key without room; [`keyed::WaitError`] for a caller that does not wait. `?` makes [`Error`] of each.
//!
//! # Versions of Rust
//!
//! Rust 1.91 or newer.
#![cfg_attr(not(feature = "std"), no_std)]
// A part of the crate need not use all that it shares with the service. What nothing uses is found with `service`.
#![cfg_attr(not(feature = "service"), allow(dead_code))]
// On docs.rs, each item says which feature has it.
#![cfg_attr(docsrs, feature(doc_cfg))]

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
#[cfg(all(test, feature = "std"))]
#[path = "../tests/chance/mod.rs"]
mod chance;
#[cfg(feature = "service")]
#[doc(hidden)]
pub mod edge;
mod error;
#[cfg(any(feature = "answers", feature = "kinds", feature = "lint"))]
#[doc(hidden)]
pub mod exchange;
#[cfg(feature = "service")]
#[doc(hidden)]
pub mod frontend;
#[cfg(feature = "service")]
mod hex;
#[cfg(any(feature = "js", feature = "leases"))]
#[doc(hidden)]
pub mod js;
#[cfg(feature = "api")]
mod json;
#[cfg(feature = "service")]
#[doc(hidden)]
pub mod key_hash;
#[cfg(feature = "std")]
pub mod keyed;
#[cfg(feature = "service")]
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
#[cfg(feature = "service")]
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
#[cfg(feature = "api")]
mod zones;

pub use error::Error;
#[cfg(feature = "std")]
pub use system_time::unix_ms;

#[cfg(all(test, target_family = "wasm"))]
wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);

/// Compiles and runs the Rust examples of both READMEs; crates.io shows src/README.md.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("README.md")]
mod readme {}
