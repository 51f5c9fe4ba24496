// The documentation's examples run natively: the runner for browsers finds no test in them, and calls that a success.
#![cfg(not(all(doctest, target_family = "wasm")))]
//! An exact rate limiter: integer token buckets and fixed windows, for the edge and for plain Rust.
//!
//! [`limit`] is the arithmetic, on `core` alone; everything else is around it. A plain program needs nothing more:
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
//! | module | what it is | feature |
//! |---|---|---|
//! | [`limit`] | the arithmetic | none |
//! | [`keyed`] | a limiter for many keys, shared by threads, of bounded memory | `std` |
//! | [`unix_ms`] | `SystemTime` to the moments of [`limit`] | `std` |
//! | `policy` | named sets of limits, as people write them and as they are stored | `api` |
//! | `protocol` | what a frontend and an object say to each other | `api` |
//! | `access` | who may ask, and the names of objects | `api` |
//! | `ledger` | what an object knows of its key, and when it is written | `api` |
//! | `metrics` | what is counted, and Prometheus's text of it | `api` |
//! | `registry` | the policies of the deployments, and what operators have changed since | `api` |
//! | `edge` | which objects an isolate calls, and when it times out | `api` |
//! | `api` | HTTP's requests, answers and problems, without a runtime | `api` |
//! | `frontend` | one request from its arrival to its reply, for whoever calls objects | `api` |
//! | `tower` | a layer for servers such as axum's, on `keyed` | `tower` |
//! | `worker` | the Cloudflare Worker and its Durable Object | `worker` |
//! | `js` | plain functions of numbers for JavaScript | `js`, `leases` |
//! | `lint` | what policies admit and cost at worst, for JavaScript | `lint` |
#![cfg_attr(not(feature = "std"), no_std)]

// The crate is a `cdylib` too, and that needs a panic handler: where there is a std it lends its own, and nothing else
// of it is used.
#[cfg(all(not(feature = "std"), not(target_os = "none")))]
extern crate std;

#[cfg(feature = "api")]
pub mod access;
#[cfg(feature = "api")]
pub mod api;
// So that laws in here try the same cases on every machine, too.
#[cfg(all(test, feature = "api"))]
#[path = "../tests/chance/mod.rs"]
mod chance;
#[cfg(feature = "api")]
pub mod edge;
#[cfg(feature = "api")]
pub mod frontend;
#[cfg(feature = "api")]
mod hex;
#[cfg(any(feature = "js", feature = "leases"))]
pub mod js;
#[cfg(feature = "api")]
mod json;
#[cfg(feature = "api")]
pub mod key_hash;
#[cfg(feature = "std")]
pub mod keyed;
#[cfg(feature = "api")]
pub mod ledger;
#[cfg(feature = "api")]
mod length;
pub mod limit;
#[cfg(feature = "lint")]
pub mod lint;
#[cfg(feature = "api")]
pub mod metrics;
#[cfg(feature = "api")]
pub mod policy;
#[cfg(feature = "api")]
pub mod protocol;
#[cfg(feature = "api")]
pub mod registry;
#[cfg(feature = "api")]
mod sorted;
#[cfg(feature = "std")]
mod system_time;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "worker")]
pub mod worker;

#[cfg(feature = "std")]
pub use system_time::unix_ms;

#[cfg(all(test, target_family = "wasm"))]
wasm_bindgen_test::wasm_bindgen_test_configure!(run_in_browser);

/// The README's Rust is compiled and run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
