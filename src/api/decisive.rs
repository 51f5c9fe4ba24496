//! The decisive one of several limits.

use std::cmp::Ordering;

/// The part of a limit's answer that determines whether it is decisive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    pub(super) is_allowed: bool,
    pub(super) retry_at: Option<i64>,
    /// Whether its cost could not be taken in full.
    pub(super) is_unpaid: bool,
    pub(super) remaining: u64,
    pub(super) owed: u64,
    pub(super) capacity: u64,
    /// Whether its limit never refuses: any other says more of what can still be had.
    pub(super) is_soft: bool,
}

/// The decisive one: the first that refused, refused for longer, could not take its cost in full, may refuse, or has the smaller share left.
pub(super) fn decisive<T>(all: impl IntoIterator<Item = T>, weight: impl Fn(&T) -> Weight) -> Option<T> {
    all.into_iter().reduce(|most, next| if weight(&most).outweighs(&weight(&next)) { most } else { next })
}

impl Weight {
    fn outweighs(&self, other: &Self) -> bool {
        let never = |one: &Self| !one.is_allowed && one.retry_at.is_none();
        let rank = |one: &Self| (never(one), !one.is_allowed, one.retry_at, one.is_unpaid, !one.is_soft);
        match rank(self).cmp(&rank(other)) {
            Ordering::Equal => {
                let level = |one: &Self| i128::from(one.remaining).saturating_sub(one.owed.into());
                level(self).saturating_mul(other.capacity.into()) <= level(other).saturating_mul(self.capacity.into())
            }
            order => order.is_gt(),
        }
    }
}
