//! A pace that begins slowly after idleness.

use core::num::NonZeroU64;
use core::time::Duration;

use super::arithmetic::{MAX_STEP_BACK_MS, gcd};
use super::config::{ConfigError, whole_ms};
use super::decision::Decision;

/// A pace for requests to something that answers slowly while it is cold: after idleness tokens come at a third of the rate, then faster from
/// one to the next, until they come at the rate.
///
/// Each caller gets a moment to start at, and its tokens delay the *next* caller, as with [`Limit::borrow`](super::Limit::borrow). Only a wait
/// that is too long is refused, and idle time is never made up for by a burst.
///
/// The algorithm is that of Guava's [`SmoothWarmingUp`], with its factor of three. Idle time is kept, up to the length of the warm-up, and each
/// token uses up one interval, which is the period divided by the rate. While at most half of it is left, a token costs the next caller one
/// interval; above that the cost rises in a straight line, to three intervals. So warming up takes as long as configured, and so does
/// cooling down. Here the area under that line is exact, rounded up to a millionth of an interval, and each start to a millisecond. A call in the
/// millisecond of its start is on time: only later ones have been idle.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::{Decision, WarmUp};
///
/// // 2 per second, after a warm-up of 4 seconds.
/// let pace = WarmUp::new(2, Duration::from_secs(1), Duration::from_secs(4))?;
/// let mut state = pace.new_state(0);
/// for ready_at in [0, 1_375, 2_500, 3_375, 4_000, 4_500, 5_000] {
///     assert_eq!(pace.borrow(&mut state, 0, 1, None), Decision::Allow { tokens: 1, ready_at });
/// }
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
///
/// [`SmoothWarmingUp`]: https://github.com/google/guava/blob/v31.1/guava/src/com/google/common/util/concurrent/SmoothRateLimiter.java
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUp {
    units_per_ms: NonZeroU64,
    /// Units from one token to the next at the full rate.
    interval: u64,
    /// The most idle time that is kept, in units: the length of the warm-up.
    coldest: u64,
}

/// What a [`WarmUp`] keeps. Decide on a copy to see what the answer would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WarmUpState {
    /// The latest moment of a grant.
    at: i64,
    /// The next start, which is not before `at`.
    ready_at: i64,
    /// By how many units the next start was rounded up.
    early: u64,
    /// The idle time that is left, in units.
    cold: u64,
}

/// Units in a millisecond for each token of the rate in lowest terms, so that an interval has at least as many.
const UNITS: u64 = 1 << 20;

/// The most units of an interval and of a warm-up: twice the square fits 128 bits.
const MAX_UNITS: u64 = 1 << 62;

impl WarmUp {
    /// A pace of `rate` tokens in each `period`, after a warm-up. Fractions of a millisecond round up. Without a warm-up the pace is constant.
    ///
    /// # Errors
    /// A [`ConfigError`] for a rate or a period of zero, or a number that could not be kept exact, with the largest that always can.
    pub fn new(rate: u64, period: Duration, warm_up: Duration) -> Result<Self, ConfigError> {
        let (period_ms, warm_up_ms) = (whole_ms(period), whole_ms(warm_up));
        let most = MAX_UNITS / UNITS;
        if rate > most {
            return Err(ConfigError::RateTooLarge { rate, max: most });
        }
        if rate == 0 {
            return Err(ConfigError::RateZero);
        }
        let Some(period) = NonZeroU64::new(period_ms) else {
            return Err(ConfigError::PeriodZero);
        };
        if period_ms > most {
            return Err(ConfigError::PeriodTooLong { period_ms, max_ms: most });
        }
        let divisor = gcd(rate, period);
        let units = |number: u64| (number / divisor).wrapping_mul(UNITS); // at most `MAX_UNITS`
        let units_per_ms = NonZeroU64::new(units(rate)).unwrap_or(NonZeroU64::MIN);
        let max_ms = MAX_UNITS / units_per_ms;
        if warm_up_ms > max_ms {
            return Err(ConfigError::WarmUpTooLong { warm_up_ms, max_ms });
        }
        let coldest = warm_up_ms.wrapping_mul(units_per_ms.get());
        Ok(Self { units_per_ms, interval: units(period_ms), coldest })
    }

    /// The state of a pace first used at `now`: cold.
    #[must_use]
    pub const fn new_state(&self, now: i64) -> WarmUpState {
        WarmUpState { at: now, ready_at: now, early: 0, cold: self.coldest }
    }

    /// Takes `tokens`, to be used at the answer's `ready_at`. Refused, and nothing is taken, only if that is more than `max_wait_ms` away (0:
    /// now or not at all; `None`: any wait). No tokens cost nothing, and start when earlier ones are paid.
    ///
    /// If the clock steps back by up to a minute, no time has passed; after a larger step the pace follows the clock.
    #[must_use = "the answer says when to start"]
    pub fn borrow(&self, state: &mut WarmUpState, now: i64, tokens: u64, max_wait_ms: Option<u64>) -> Decision {
        let mut next = self.refreshed(*state, now);
        // If nothing is owed, it is now, also when the clock has stepped back.
        let ready_at = if next.ready_at == next.at { now } else { next.ready_at };
        let late_ms = u64::try_from(ready_at.saturating_sub(now)).unwrap_or(0);
        if let Some(max_wait_ms) = max_wait_ms
            && late_ms > max_wait_ms
        {
            if now < state.at {
                *state = next;
            }
            return Decision::Wait { retry_at: ready_at.saturating_sub_unsigned(max_wait_ms) };
        }
        self.take(&mut next, tokens);
        *state = next;
        Decision::Allow { tokens, ready_at }
    }

    /// The state with all time until `now`.
    fn refreshed(&self, state: WarmUpState, now: i64) -> WarmUpState {
        let WarmUpState { at, ready_at, early, cold } = state;
        let back_ms = at.saturating_sub(now);
        if back_ms > MAX_STEP_BACK_MS {
            return WarmUpState { at: now, ready_at: ready_at.saturating_sub(back_ms), ..state };
        }
        let at = at.max(now);
        if at <= ready_at {
            return WarmUpState { at, ..state };
        }
        let idle = u128::from(at.abs_diff(ready_at)).saturating_mul(self.units_per_ms.get().into());
        let cold = idle.saturating_add(early.into()).saturating_add(cold.into());
        let cold = u64::try_from(cold).unwrap_or(u64::MAX).min(self.coldest);
        WarmUpState { at, ready_at: at, early: 0, cold }
    }

    /// Moves the next start by what `tokens` cost.
    fn take(&self, state: &mut WarmUpState, tokens: u64) {
        // Below 2¹²⁶, as is the rest of the cost.
        let steady = u128::from(tokens).wrapping_mul(self.interval.into());
        let left = u64::try_from(u128::from(state.cold).saturating_sub(steady)).unwrap_or(0);
        // The height of the line over a stored unit is 1 + 4 · above / coldest, where `above` is what is stored above the half. So
        // the area beyond one is the difference of 2 · above² / coldest.
        let half = self.coldest / 2;
        let square = |cold: u64| {
            let above = u128::from(cold.saturating_sub(half)); // at most 2⁶¹
            above.wrapping_mul(above)
        };
        let area = square(state.cold).wrapping_sub(square(left)).wrapping_mul(2);
        let extra = if self.coldest == 0 { 0 } else { area.div_ceil(self.coldest.into()) };
        let cost = steady.wrapping_add(extra);
        let units_per_ms = u128::from(self.units_per_ms.get());
        let late = cost.saturating_sub(state.early.into());
        let late_ms = late.div_ceil(units_per_ms);
        let early = u128::from(state.early).wrapping_add(late_ms.wrapping_mul(units_per_ms)).wrapping_sub(cost);
        state.ready_at = state.ready_at.saturating_add_unsigned(u64::try_from(late_ms).unwrap_or(u64::MAX));
        state.early = u64::try_from(early).unwrap_or(0); // below `units_per_ms`
        state.cold = left;
    }
}
