//! Storing less than is there, so that not every change must be stored.
//!
//! Whoever keeps a bucket in memory and a copy of it where it survives a crash may let the copy lag behind, if it lags
//! on the safe side: the copy holds fewer tokens than the bucket, so that a crash loses some and never gives any back.
//! Two states of one limit refill alike, so once one is above the other it stays so until somebody takes from it.

use super::arithmetic::Limit;
use super::state::{MAX_DROPS, State};

impl Limit {
    /// The state with `tokens` fewer in it, perhaps deeper in debt than any verb could take it. Use this for the copy
    /// that is stored before the tokens are spent.
    #[must_use]
    pub fn lowered(&self, state: &State, tokens: u64) -> State {
        let level = state.level.wrapping_sub(self.clipped_drops(tokens)).max(MAX_DROPS.wrapping_neg());
        State { level, at: state.at }
    }

    /// The state with `tokens` more in it, whatever the capacity: undoes [`Limit::lowered`].
    #[must_use]
    pub fn raised(&self, state: &State, tokens: u64) -> State {
        let level = state.level.wrapping_add(self.clipped_drops(tokens)).min(MAX_DROPS);
        State { level, at: state.at }
    }

    /// Whole tokens by which `state` is above `other` at `now`, and `None` when it is below. What it is not below at
    /// `now`, it is not below later.
    ///
    /// ```
    /// use tollgate::limit::{Config, Limit};
    ///
    /// let limit = Limit::new(&Config::token_bucket(10, 1_000))?;
    /// let full = limit.new_state(0, 0);
    /// let stored = limit.lowered(&full, 3);
    /// assert_eq!(limit.surplus_over(&full, &stored, 0), Some(3));
    /// // The stored one has come up to the other, which could not become more than full.
    /// assert_eq!(limit.surplus_over(&full, &stored, 300), Some(0));
    /// assert_eq!(limit.surplus_over(&stored, &full, 0), None);
    /// # Ok::<(), tollgate::limit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn surplus_over(&self, state: &State, other: &State, now: i64) -> Option<u64> {
        // A state ahead of the clock refills from its own moment on: the other has come nearest by then.
        let at = now.max(state.at);
        let drops = self.refilled(state, at).level.saturating_sub(self.refilled(other, at).level);
        u64::try_from(drops).ok().map(|drops| self.whole_tokens(drops.cast_signed()))
    }
}
