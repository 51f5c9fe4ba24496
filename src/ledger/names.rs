//! The names of rows. Those of replays and of notices are in `replays.rs` and `notices.rs`.

/// Before the name of a policy: its bucket.
pub(super) const BUCKET: &str = "b:";
/// Before the id of a reservation.
pub(super) const RESERVATION: &str = "r:";
