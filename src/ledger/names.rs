//! The names of rows, but for those of replays and of notices, which are in `replays.rs` and `notices.rs`; and of accounts.

/// Before the name of a policy: its bucket.
pub(super) const BUCKET: &str = "b:";
/// Before the id of a reservation.
pub(super) const RESERVATION: &str = "r:";

/// An account that is known by another name from now on: that of its limit, or none.
#[derive(Clone, Debug)]
pub(super) struct Renamed {
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
}
