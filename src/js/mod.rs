//! The core for JavaScript: convert, call, convert. It makes no decisions and does no arithmetic of its own.
//!
//! Only numbers cross, so a call costs no more than a call: no text, no object, no allocation on either side. The public class is `Bucket`
//! in `www/package/src/bucket.ts`. It checks its arguments and makes the errors; `core.ts` beside it owns the memory and the address of
//! each bucket.
//!
//! Every browser downloads the module, so it must be small: it formats nothing, allocates nothing, imports nothing and cannot panic. It
//! does without wasm-bindgen, whose glue alone would be as large. Measure every addition with `npm run bench:package -- --sizes`: one
//! growing `Vec` brings 2 KB of panic messages.
//!
//! Leases are in a separate module for servers, and so are other kinds of limit than `Bucket` has: both allocate.

// Also without either feature: tests/browser includes these files without the crate's features.
#[cfg(any(feature = "js", not(feature = "leases")))]
mod exports;
#[cfg(feature = "kinds")]
pub mod kinds;
#[cfg(feature = "leases")]
pub mod leases;
mod number;
#[cfg(feature = "kinds")]
pub mod returns;

#[cfg(any(feature = "js", not(feature = "leases")))]
pub use exports::{Bucket, carry, consume, decide, get, make, restore, size};
