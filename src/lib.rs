//! Tollgate.
#[cfg(feature = "worker")]
mod worker;
