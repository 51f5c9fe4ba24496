//! Tollgate on Cloudflare Workers: the only code that reads the server's clock, its storage and its secrets.
//!
//! The frontend answers HTTP wherever a request arrives. The key's object, a Durable Object that exists once in the world, decides. Each
//! has a half in JavaScript and a half here. JavaScript does everything that takes time: it reads bodies, calls objects, waits and times
//! out. The Rust half never waits: each call decides and returns. So nothing can come between reading a bucket and writing it, and a client
//! that disconnects leaves nothing half done.
//!
//! `entry.mjs` is the module that the runtime loads.

#[allow(clippy::float_cmp, reason = "what wasm_bindgen makes of an enum compares numbers of JavaScript")]
mod call;
mod clock;
mod environment;
#[allow(clippy::float_cmp, reason = "what wasm_bindgen makes of an enum compares numbers of JavaScript")]
mod frontend;
mod isolate;
mod key_object;
mod registry;
#[allow(clippy::float_cmp, reason = "what wasm_bindgen makes of an enum compares numbers of JavaScript")]
mod step;
mod zones;
