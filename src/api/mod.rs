//! Bytes to values and back: what HTTP says to Tollgate and what Tollgate answers. No clock, no storage, no runtime, so
//! that all of it runs anywhere.
//!
//! The life of a request through this module: [`Credentials::allow`] knows who may ask, [`Ask::parse`] makes a body
//! into a valid request or a [`Problem`], [`Credentials::object_name`] names the object that keeps the key's buckets,
//! [`Question`] and [`Outcome`] are what that object is asked and answers, [`Asked`] makes of it a [`Reply`]: status, headers and
//! body.
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
mod ask;
mod credentials;
mod fields;
mod numbers;
mod policy;
mod problem;
mod question;
mod reply;
mod written;

pub use answer::{Asked, AskedItem, degraded_reply};
pub use ask::{Ask, Cost, Endpoint, Item, MAX_BATCH, MAX_BODY_LEN, MAX_KEY_LEN, require_json};
pub use credentials::{Credentials, CredentialsError};
pub use numbers::{NumbersError, stored_limits};
pub use policy::{NamedLimit, OnError, Policy, Terms, Unsettled};
pub use problem::{Cause, Problem};
pub use question::{Act, Decided, LimitAnswer, Memo, Outcome, Question, Reserved};
pub use reply::Reply;
pub use written::{MAX_LIMITS, Mistake, Policies};
