//! What a frontend and an object say to each other: values on both sides, numbers on the way.
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

mod object;

pub use object::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};
