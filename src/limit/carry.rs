//! What happens to a bucket when its limit's numbers change.

use super::arithmetic::Limit;
use super::config::MAX_SPAN_MS;
use super::state::{MAX_DROPS, State};

/// How the level of a bucket is carried over to a limit with other numbers. The names are bucket4j's
/// (`TokensInheritanceStrategy`). Every strategy clips a level above the new capacity, and keeps a debt deeper than the
/// new `max_debt`, down to what comes back in [`MAX_SPAN_MS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// All of them.
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
    /// use tollgate::limit::{Carry, Config, Limit};
    ///
    /// let old = Limit::new(&Config::token_bucket(10, 1_000))?;
    /// let new = Limit::new(&Config::token_bucket(100, 1_000))?;
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
        let fresh = self.new_state(now, phase);
        if how == Carry::Reset || self.config().kind != old.config().kind {
            return fresh;
        }
        let old_state = old.refilled(&state, now);
        let level = self.carried_level(old, old_state.level.into(), how);
        // Fits, because it lies between −2⁶¹ and the capacity.
        let level = i64::try_from(level.clamp(self.deepest(), self.full.into())).unwrap_or(0);
        // Never before the old state's moment: after a small step back of the clock, refills would be credited twice.
        State { level, at: self.tick_start(now.max(old_state.at), phase) }
    }
}

impl Limit {
    /// The level, in drops, that a level of a limit of the same kind becomes, rounded down, if it were neither clipped nor too deep. Not for
    /// [`Carry::Reset`].
    pub(super) fn carried_level(&self, old: &Self, level: i128, how: Carry) -> i128 {
        let tokens = |drops| scaled(drops, self.drops_per_token.get().into(), old.drops_per_token.get().into());
        match how {
            Carry::Proportional if old.full != 0 => scaled(level, self.full.into(), old.full.into()),
            Carry::Additive => {
                let moved = tokens(level.saturating_sub(old.full.into())).saturating_add(self.full.into());
                moved.max(tokens(level).min(0))
            }
            _ => tokens(level),
        }
    }

    /// The deepest debt that can be carried over, in drops: what comes back in [`MAX_SPAN_MS`].
    fn deepest(&self) -> i128 {
        let drops = match self.refill {
            0 => MAX_DROPS,
            refill => i64::try_from(MAX_SPAN_MS / self.tick_ms).map_or(MAX_DROPS, |ticks| ticks.saturating_mul(refill)),
        };
        i128::from(drops.min(MAX_DROPS)).saturating_neg()
    }
}

/// `level · new / old`, rounded down so that no remainder becomes a token. Exact: each factor is at most 2⁶¹.
fn scaled(level: i128, new: i128, old: i128) -> i128 {
    level.saturating_mul(new).checked_div_euclid(old).unwrap_or(0)
}
