//! The words of HTTP: requests, answers, problems, headers. No clock, no storage, no runtime, so that all of it runs
//! anywhere.
//!
//! [`Request::parse`] makes a body into a valid request or a [`Problem`], [`ResolvedRequest`] finds the policies it names,
//! and makes what the objects answered into a [`Reply`]: status, headers and body.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod answer;
mod fields;
mod problem;
mod reply;
mod request;

pub use answer::{ResolvedItem, ResolvedRequest, degraded_reply};
pub use problem::{Cause, Problem};
pub use reply::Reply;
pub use request::{Cost, Endpoint, Item, MAX_BATCH, MAX_BODY_LEN, MAX_KEY_LEN, Request, require_json};
