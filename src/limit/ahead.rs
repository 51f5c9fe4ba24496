//! A stored copy that may lag behind memory, so that not every change is written.
//!
//! A copy that has to survive a crash may lag behind the bucket in memory as long as it lags on the safe side: with
//! fewer tokens than the bucket, a crash loses some and never gives any back. Two states of one limit refill alike, so
//! once one is above the other it stays above until something is taken from it.

use super::arithmetic::Limit;
use super::state::{MAX_DROPS, State};

impl Limit {
    /// The time since the moment of a state, 0 if `to` is not later. For a calendar, one period for each window that has opened since, and a
    /// part of one.
    #[doc(hidden)]
    #[must_use]
    pub fn own_ms(&self, from: i64, to: i64) -> u64 {
        self.own_time(to).saturating_sub(self.own_moment(from)).max(0).cast_unsigned()
    }

    /// The state with `tokens` fewer, possibly deeper in debt than any verb could take it. Use this for the copy that
    /// is stored before the tokens are spent.
    #[doc(hidden)]
    #[must_use]
    pub fn lowered(&self, state: &State, tokens: u64) -> State {
        let level = state.level.wrapping_sub(self.clipped_drops(tokens)).max(MAX_DROPS.wrapping_neg());
        State { level, at: state.at }
    }

    /// The state with `tokens` more, even above the capacity: undoes [`Limit::lowered`].
    #[doc(hidden)]
    #[must_use]
    pub fn raised(&self, state: &State, tokens: u64) -> State {
        let level = state.level.wrapping_add(self.clipped_drops(tokens)).min(MAX_DROPS);
        State { level, at: state.at }
    }

    /// The state with up to `tokens` fewer, for a copy that is stored before they are spent. Of windows from first use, the copy is full
    /// when the state is: otherwise the window that the copy knows would be over when the next one has been opened.
    #[doc(hidden)]
    #[must_use]
    pub fn behind(&self, state: &State, tokens: u64, now: i64) -> State {
        if !self.is_from_first_use() {
            return self.lowered(state, tokens);
        }
        let state = self.refilled(state, now);
        let lowered = self.lowered(&state, tokens);
        let missing = self.full.saturating_sub(state.level).max(0).unsigned_abs();
        match missing.checked_rem(self.refill.unsigned_abs()) {
            _ if missing == 0 => state,
            // As many windows fill both.
            Some(rest) => {
                let spare = if rest == 0 { 0 } else { self.refill.saturating_sub_unsigned(rest) };
                State { level: lowered.level.max(state.level.saturating_sub(spare)), ..state }
            }
            None => lowered,
        }
    }

    /// Whether a stored copy is full when the state is, or need not be.
    #[doc(hidden)]
    #[must_use]
    pub fn fills_with(&self, copy: &State, state: &State, now: i64) -> bool {
        let full_at = |state| self.full_at(state, now).unwrap_or(i64::MAX);
        !self.is_from_first_use() || full_at(copy) <= full_at(state)
    }

    /// The lower of two states, or one that is lower than both if each is lower at some time.
    #[doc(hidden)]
    #[must_use]
    pub fn lower_of(&self, state: &State, other: &State, now: i64) -> State {
        if self.surplus_over(state, other, now).is_some() {
            return *other;
        }
        if !self.is_from_first_use() || self.surplus_over(other, state, now).is_some() {
            return *state;
        }
        let [one, other] = [state, other].map(|state| self.refilled(state, now));
        State { level: one.level.min(other.level), at: one.at.max(other.at) }
    }

    /// Whole tokens that `state` has more than `other` at `now`; `None` when it has less. A state that is not below
    /// another at `now` is not below it later either.
    #[doc(hidden)]
    #[must_use]
    pub fn surplus_over(&self, state: &State, other: &State, now: i64) -> Option<u64> {
        // A state ahead of the clock refills from its own moment on; until then the other only comes nearer.
        let at = now.max(self.unix_time(state.at));
        let (own, other) = (self.refilled(state, at), self.refilled(other, at));
        let overtakes = |next: i64| next.min(self.full) > own.level;
        // Of windows from first use, the one that opened earlier refills earlier.
        if self.is_from_first_use() && other.at < own.at && overtakes(other.level.saturating_add(self.refill)) {
            return None;
        }
        let drops = own.level.saturating_sub(other.level);
        u64::try_from(drops).ok().map(|drops| self.whole_tokens(drops.cast_signed()))
    }
}
