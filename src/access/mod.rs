//! Who may call, and the names of objects.
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

mod credentials;
mod names;

pub use credentials::{Credentials, CredentialsError, Denied};
pub use names::Names;
