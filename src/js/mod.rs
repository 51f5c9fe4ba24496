//! The core for JavaScript: convert, call, convert. Nothing is decided and nothing is reckoned here.
//!
//! What crosses is numbers, so that a call costs what a call costs: there is no text, no object and no allocation on
//! either side. The class that people use is `Bucket` in `www/src/bucket.ts`. It checks what it is given, and makes the errors;
//! `core.ts` beside it owns the memory, and says at which address a bucket lies.
//!
//! The module goes to every browser, so it is small: it formats nothing, allocates nothing, imports nothing, and nothing in
//! it can panic. That is why it does without wasm-bindgen, whose glue alone would be as large. Measure what is added with
//! `npm run bench:package -- --sizes`: one `Vec` that grows brings 2 KB of panic messages.

mod exports;
mod number;

pub use exports::{Bucket, consume, decide, get, make, restore, size};
