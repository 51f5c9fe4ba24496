//! One request from its arrival on: what it is for, and whether its caller may have that.
//!
//! [`Address`] reads a URL once, [`Target`] is what it names. The check of rights and the act itself both start from a [`Target`], and
//! whatever carries one out calls [`Target::require`] first.
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

mod address;
mod target;

pub use address::Address;
pub use target::Target;
