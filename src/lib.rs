//! Tollgate.
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "api")]
pub mod api;
pub mod limit;
#[cfg(feature = "worker")]
mod worker;
