//! The names of rows and accounts, except those of replays, notices and bans, which are in `replays.rs`, `notices.rs` and `bans.rs`.

/// Prefix of a bucket's row, before the policy's name: see [`bucket_row`].
pub(super) const BUCKET: &str = "b:";
/// Prefix of a reservation's row, before its id.
pub(super) const RESERVATION: &str = "r:";

/// The name of the row of that policy's bucket.
pub(super) fn bucket_row(policy: &str) -> String {
    format!("{BUCKET}{policy}")
}

/// A renamed account: each name is that of its limit, or none.
#[derive(Clone, Debug)]
pub(super) struct Renamed {
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
}
