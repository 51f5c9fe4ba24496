//! The core for JavaScript: convert, call, convert. Nothing is decided and nothing is reckoned here.
//!
//! [`Bucket`] is one limit and one key's state of it. Numbers cross as `f64`, JavaScript's own, and are checked on the
//! way in, because a `u32` parameter would silently read NaN as 0 and −1 as 4294967295. A call that decides takes
//! numbers and returns a boolean, so nothing is allocated on either side; what else there is to know of the answer is
//! asked for when it is needed.
//!
//! The module goes to every browser, so it is small: it formats no text (what is said, `host.mjs` says), it brings an
//! allocator a fraction of the usual one's size, and nothing in it can panic. One who adds to it measures, with
//! `wasm-pack build --release --target web -- --no-default-features --features js`: a single `Vec` that grows brings
//! 2 KB of panic messages.

mod bucket;
mod checked;
mod host;
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics"), not(feature = "worker")))]
mod memory;
mod number;

pub use bucket::Bucket;
pub use checked::{Checked, Fault};
pub use host::Bytes;
