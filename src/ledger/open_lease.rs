//! One lease while its tokens may be spent.

use crate::policy::LeaseTerms;
use crate::protocol::LEASE_GRACE_MS;

/// Tokens that one frontend may spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenLease {
    pub(super) id: u64,
    /// When it ends, and all of it counts as spent.
    pub(super) until: i64,
    /// For each leased limit; in a row, for each state.
    pub(super) tokens: Vec<u64>,
}

impl OpenLease {
    /// Whether it is over; also if the clock stepped back so far that it would last too long.
    pub(super) fn is_over(&self, now: i64) -> bool {
        self.until <= now || self.until.abs_diff(now) > 2 * LeaseTerms::MAX_LEASE_MS + LEASE_GRACE_MS
    }
}
