//! What happens to a bucket when its limit's numbers change.

use core::num::NonZeroU64;

use super::arithmetic::{Limit, product};
use super::config::MAX_SPAN_MS;
use super::state::{MAX_DROPS, State};

/// How the level of a bucket is carried over to a limit with other numbers. The names are bucket4j's
/// (`TokensInheritanceStrategy`). Every strategy clips a level above the new capacity, and keeps a debt deeper than the
/// new `max_debt`, down to what comes back in [`MAX_SPAN_MS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Carry {
    /// As many tokens as before.
    #[default]
    AsIs,
    /// The same share of the capacity: half full stays half full. From a capacity of 0 it is the same as
    /// [`Carry::AsIs`].
    Proportional,
    /// Spent tokens stay spent: the level changes by as much as the capacity, and may become a debt.
    Additive,
    /// A new bucket.
    Reset,
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
        if how == Carry::Reset || self.config().kind != old.config().kind {
            return self.new_state(now, phase);
        }
        let old_state = old.refilled(&state, now);
        // Never before the old state's moment: after a small step back of the clock, refills would be credited twice.
        let fresh = self.new_state(now.max(old_state.at), phase);
        State { level: self.carried_level(old, old_state.level, how), ..fresh }
    }

    /// [`Carry::AsIs`] from a limit of the same kind, whose bucket is refilled up to the moment at which `fresh` was
    /// made. JavaScript, for which [`Limit::carry`] would be too large, calls this.
    #[must_use]
    pub fn carry_refilled(&self, fresh: State, old: &Self, refilled: &State) -> State {
        State { level: self.carried_level(old, refilled.level, Carry::AsIs), ..fresh }
    }

    #[inline]
    fn carried_level(&self, old: &Self, level: i64, how: Carry) -> i64 {
        let (new_token, old_token) = (self.drops_per_token.get(), old.drops_per_token);
        let level = match (how, NonZeroU64::new(old.full.unsigned_abs())) {
            (Carry::Proportional, Some(old_full)) => scaled(level, self.full.unsigned_abs(), old_full),
            // A level is at most full, and both lie within ±2⁶¹.
            (Carry::Additive, _) => scaled(level.wrapping_sub(old.full), new_token, old_token).wrapping_add(self.full),
            _ => scaled(level, new_token, old_token),
        };
        level.min(self.full).max(self.deepest()) // `clamp` could panic
    }

    /// The deepest debt that can be carried over, in drops: what comes back in [`MAX_SPAN_MS`].
    fn deepest(&self) -> i64 {
        let ticks = MAX_SPAN_MS / self.tick_ms;
        let refill = self.refill.unsigned_abs();
        let drops = if refill == 0 { MAX_DROPS } else { product(ticks, refill).cast_signed().min(MAX_DROPS) };
        drops.wrapping_neg()
    }
}

/// `level · new / old`, rounded down so that no remainder becomes a token; beyond ±2⁶² some number beyond. Exact for a
/// `level` within ±2⁶² and factors of at most 2⁶¹.
///
/// One long multiplication that divides on the way: in WebAssembly, a division of 128 bits alone would be larger than
/// all else that a browser needs.
fn scaled(level: i64, new: u64, old: NonZeroU64) -> i64 {
    let (whole, part) = (level.unsigned_abs() / old, level.unsigned_abs() % old);
    // `part · new / old`, a bit of `new` at a time. Both `part` and `rest` are below `old`, so no sum overflows.
    let (mut quotient, mut rest) = (0_u64, 0_u64);
    for bit in (0..u64::BITS).rev() {
        quotient = quotient.wrapping_mul(2);
        for addend in [rest, part.wrapping_mul(new.wrapping_shr(bit) & 1)] {
            rest = rest.wrapping_add(addend);
            if rest >= old.get() {
                rest = rest.wrapping_sub(old.get());
                quotient = quotient.wrapping_add(1);
            }
        }
    }
    let scaled = product(whole, new).min(1 << 62).wrapping_add(quotient).cast_signed();
    if level >= 0 { scaled } else { scaled.wrapping_add((rest > 0).into()).wrapping_neg() }
}
