//! Tollgate.
#![cfg_attr(not(feature = "std"), no_std)]

pub mod limit;
#[cfg(feature = "worker")]
mod worker;
