//! Tollgate on Cloudflare Workers: the only code that reads the server's clock, its storage and its secrets.
//!
//! The frontend answers HTTP in whichever place a request arrives. The object of a key, a Durable Object of which there is
//! one in the world, decides. Of each there is a half in JavaScript and a half here. JavaScript does what takes time: it
//! reads bodies, calls objects, waits and gives up waiting. What is here never waits: a call comes, decides and returns. So
//! nothing can come between reading a bucket and writing it, and a client that goes away leaves nothing half done.
//!
//! `entry.mjs` is the module that the runtime loads.

mod call;
mod clock;
mod frontend;
mod key_object;
mod settings;
