//! What happens to a bucket when its limit's numbers change.

use core::num::NonZeroU64;

use super::arithmetic::Limit;
use super::state::State;

/// How the level of a bucket is carried over to a limit with other numbers. The names are bucket4j's
/// (`TokensInheritanceStrategy`). Every strategy clips a level above the new capacity, and keeps a debt deeper than the
/// new `max_debt`, down to what comes back in [`MAX_SPAN_MS`](super::MAX_SPAN_MS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carry {
    /// As many tokens as before.
    AsIs,
    /// The same share of the capacity: half full stays half full. From a capacity of 0 it is the same as
    /// [`Carry::AsIs`].
    Proportional,
    /// Spent tokens stay spent: the level changes by as much as the capacity, but nothing is owed that was not before. A
    /// [`Limit`] knows just the level; a ledger also knows what it was under earlier numbers, so that alternating
    /// gains nothing.
    #[default]
    Additive,
    /// A new bucket.
    Reset,
}

impl Carry {
    /// All strategies.
    #[doc(hidden)]
    pub const ALL: [Self; 4] = [Self::AsIs, Self::Proportional, Self::Additive, Self::Reset];

    /// Its name in requests and in stored policies.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::AsIs => "as_is",
            Self::Proportional => "proportional",
            Self::Additive => "additive",
            Self::Reset => "reset",
        }
    }

    /// The strategy of that name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|carry| carry.word() == word)
    }
}

impl Limit {
    /// Takes over a bucket of the limit `old`: refills up to `now` are credited at the old rate first. Parts of a token
    /// too small for the new limit to count are dropped. A limit of another kind starts with a new bucket; `phase` is
    /// that of [`Limit::new_state`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::limit::{Carry, Config, Limit};
    ///
    /// let old = Limit::new(&Config::token_bucket(10, Duration::from_secs(1)))?;
    /// let new = Limit::new(&Config::token_bucket(100, Duration::from_secs(1)))?;
    /// let mut state = old.new_state(0, 0);
    /// old.consume(&mut state, 0, 5);
    /// let left = |how| new.remaining(&new.carry(&old, state, how, 0, 0), 0);
    /// assert_eq!(left(Carry::AsIs), 5);
    /// assert_eq!(left(Carry::Proportional), 50);
    /// assert_eq!(left(Carry::Additive), 95);
    /// assert_eq!(left(Carry::Reset), 100);
    /// # Ok::<(), tollgate::limit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn carry(&self, old: &Self, state: State, how: Carry, now: i64, phase: u64) -> State {
        let is_in_window = self.is_from_first_use() && self.config().shares_windows_with(old.config());
        let (level, at) = if how == Carry::Reset || self.config().kind != old.config().kind {
            (self.new_level(), now)
        } else {
            let old_state = old.refilled(&state, now);
            let level = self.carried_level(old, old_state.level.into(), how);
            // Fits, because it lies between −2⁶¹ and the capacity. Not by `clamp`, which can panic.
            let level = i64::try_from(level.max(self.deepest.into()).min(self.full.into())).unwrap_or(0);
            if is_in_window {
                return State { level, at: old_state.at }; // the window that is open stays open
            }
            // Never before the old state's moment: after a small step back of the clock, refills would be credited twice.
            (level, now.max(old.unix_time(old_state.at)))
        };
        State { level, at: self.tick_start(at, phase) }
    }
}

impl Limit {
    /// The level, in drops, after carrying it over from a limit of the same kind, rounded down, and not yet limited to the capacity or to
    /// the deepest level. Not for [`Carry::Reset`].
    pub(super) fn carried_level(&self, old: &Self, level: i128, how: Carry) -> i128 {
        let tokens = |drops| scaled(drops, self.drops_per_token.get(), old.drops_per_token);
        let old_full = NonZeroU64::new(old.full.unsigned_abs());
        match (how, old_full) {
            (Carry::Proportional, Some(old_full)) => scaled(level, self.full.unsigned_abs(), old_full),
            (Carry::Additive, _) => {
                let moved = tokens(level.saturating_sub(old.full.into())).saturating_add(self.full.into());
                moved.max(tokens(level).min(0))
            }
            _ => tokens(level),
        }
    }
}

/// `level · new / old`, rounded down so that no remainder becomes a token. `new` and `old` are at most 2⁶¹, and a level beyond ±2⁶⁶ counts
/// as that.
///
/// Bit by bit: numbers change seldom, and a division of 128 bits would take a third of the package's module.
fn scaled(level: i128, new: u64, old: NonZeroU64) -> i128 {
    let (whole, part) = (i128::from(new / old), new % old);
    let mut bits = level.clamp(-FARTHEST, FARTHEST).wrapping_shl(i128::BITS - FARTHEST_BITS);
    // The leading bits, the sign first, times `new`, divided by `old`.
    let (mut quotient, mut rest) =
        if level < 0 { ((-1_i128).wrapping_sub(whole), old.get().wrapping_sub(part)) } else { (0, 0) };
    for _ in 0..FARTHEST_BITS {
        let (more_whole, more_part) = if bits < 0 { (whole, part) } else { (0, 0) };
        rest = rest.wrapping_shl(1).wrapping_add(more_part);
        quotient = quotient.wrapping_shl(1).wrapping_add(more_whole).wrapping_add((rest / old).into());
        rest %= old;
        bits = bits.wrapping_shl(1);
    }
    quotient
}

/// Farther from 0 than any refill and spending together. Times 2⁶¹, it fits.
const FARTHEST: i128 = 1 << 66;
const FARTHEST_BITS: u32 = 67;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_scaled_exactly_and_rounded_down() {
        let bounds = [0, 1, 2, 3, 5, 1 << 32, (1 << 51) - 1, 1 << 51, (1 << 61) - 1, 1 << 61];
        let levels = || bounds.into_iter().flat_map(|level: u64| [i128::from(level), -i128::from(level)]);
        for (level, new) in levels().flat_map(|level| bounds.map(|new| (level, new))) {
            for old in bounds.into_iter().filter_map(NonZeroU64::new) {
                let exact = (level * i128::from(new)).div_euclid(old.get().into());
                assert_eq!(scaled(level, new, old), exact, "{level} · {new} / {old}");
            }
        }
        for (level, scaled_level) in [(i128::MAX, 1 << 126), (i128::MIN, -(1 << 126))] {
            assert_eq!(scaled(level, 1 << 60, NonZeroU64::MIN), scaled_level);
        }
    }
}
