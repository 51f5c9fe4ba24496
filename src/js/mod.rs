//! The core for JavaScript: convert, call, convert. Nothing is decided and nothing is reckoned here.
//!
//! [`Bucket`] is one limit and one key's state of it. Numbers cross as `f64`, JavaScript's own, and are checked on the
//! way in, because a `u32` parameter would silently read NaN as 0 and −1 as 4294967295. A call that decides takes
//! numbers and returns a boolean, so nothing is allocated on either side; what else there is to know of the answer is
//! asked for when it is needed.
//!
//! What is wrong with a call becomes an exception only when WebAssembly has returned. Thrown from inside, it would skip
//! the destructors and leave the stack pointer where it was, and some thousand exceptions later there would be no stack.
//! Returned as a `Result`, it would make every call seven times as long, because engines hand over several values as an
//! array. So it waits in `host.js`, where the methods of the class are made to look for it.
//!
//! The module goes to every browser, so it is small: it formats no text (that is for `host.js` to do), and nothing in it
//! can panic. Measure what is added, with
//! `wasm-pack build --release --target web -- --no-default-features --features js`: a single `Vec` that grows brings
//! 2 KB of panic messages.

mod bucket;
mod fault;
mod host;
mod number;

pub use bucket::{Bucket, start};
pub use host::Bytes;
