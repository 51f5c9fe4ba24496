//! A state as plain numbers, for storage and for other programs.

use super::arithmetic::{Limit, product};
use super::state::{MAX_DROPS, State};

/// A [`State`] as three whole numbers that JSON and JavaScript keep exact. The server sends it to browsers, and a
/// browser stores its own buckets as snapshots. Like a state, it means something only to a limit with the same numbers.
/// With the feature `serde` it can be read and written.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Whole tokens, rounded down: below zero in debt.
    pub tokens: i64,
    /// Drops beside them, fewer than make a token.
    pub drops: u64,
    /// The moment up to which refills are credited, in Unix milliseconds. Of a calendar, the window that holds it is open.
    pub at: i64,
}

impl Limit {
    /// The state as a snapshot.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::limit::{Config, Limit, Snapshot};
    ///
    /// // A token is 1000 drops, of which 3 come back each millisecond.
    /// let limit = Limit::new(&Config::token_bucket(3, Duration::from_secs(1)))?;
    /// let mut state = limit.new_state(0, 0);
    /// limit.consume(&mut state, 0, 3);
    /// limit.refund(&mut state, 500, 0);
    /// assert_eq!(limit.snapshot(&limit.refilled(&state, 500)), Snapshot { tokens: 1, drops: 500, at: 500 });
    /// # Ok::<(), tollgate::limit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self, state: &State) -> Snapshot {
        let drops = self.drops_per_token.get().cast_signed();
        let tokens = state.level.checked_div_euclid(drops).unwrap_or(0); // at least one drop makes a token
        let rest = state.level.wrapping_sub(tokens.wrapping_mul(drops));
        Snapshot { tokens, drops: rest.cast_unsigned(), at: self.unix_time(state.at) }
    }

    /// How many [`drops`](Snapshot::drops) make a token.
    #[must_use]
    pub const fn drops_per_token(&self) -> u64 {
        self.drops_per_token.get()
    }

    /// The state that `snapshot` was made from. `None` if no bucket of this limit can be in it: it holds more than the
    /// capacity, owes more than can be counted, or has enough drops for another whole token. Its moment is not checked: the
    /// windows go on from it.
    #[must_use]
    pub fn restored(&self, snapshot: &Snapshot) -> Option<State> {
        let Snapshot { tokens, drops, at } = *snapshot;
        let whole = product(tokens.unsigned_abs(), self.drops_per_token.get()).cast_signed();
        let whole = if tokens < 0 { whole.wrapping_neg() } else { whole };
        // At a level of −2⁶¹ the whole tokens, rounded down, may lie a few drops below it.
        let level = whole.saturating_add(drops.cast_signed());
        let can_be = drops < self.drops_per_token.get() && MAX_DROPS.wrapping_neg() <= level && level <= self.full;
        can_be.then(|| State { level, at: self.own_moment(at) })
    }
}
