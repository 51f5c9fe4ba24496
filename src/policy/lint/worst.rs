//! What a limit admits at worst, exactly: the most that callers who try everything can take within a length of time.
//!
//! Over `t` milliseconds a token bucket admits at most `capacity + ⌊rate · t / period⌋`. That is reached unless it overflows: time counts
//! in whole milliseconds and tokens are taken whole, so a millisecond's refill is lost if it does not fit above the remaining fraction of a
//! token. 5 per millisecond with a capacity of 1 is 1 per millisecond; 3 per second with a capacity of 1 is 1 per 334 ms. Callers who take
//! all they can find the bucket in the same state after each overflow: full, then empty. So the time between overflows determines
//! everything.

use super::openings::most_within;
use crate::limit::{Calendar, Config, Kind};

/// The callers who take all they can from one bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worst {
    /// What they take at once.
    pub(super) burst: u64,
    kind: Kind,
    period_ms: u64,
    /// The refill in each period, as written.
    rate: u64,
    /// What they get in each cycle after the burst.
    pub(super) per_cycle: u128,
    /// For a fixed window its period; for a token bucket the time between overflows, or its period if there are none.
    pub(super) cycle_ms: u128,
    calendar: Option<Calendar>,
}

impl Worst {
    /// Callers who only `consume`.
    pub(super) fn of_consuming(config: &Config) -> Self {
        Self::new(config, 0)
    }

    /// Callers who may charge, borrow and reserve, too: with a level that may fall to `-max_debt`, they take as from a bucket with that
    /// much more capacity.
    pub(super) fn of_all_verbs(config: &Config) -> Self {
        Self::new(config, config.max_debt)
    }

    /// The same, if the moments of a rolling window are rounded up to grains: then all of it is back a whole number of grains later.
    pub(super) fn in_grains(self, grain_ms: u64) -> Self {
        match self.kind {
            Kind::RollingWindow if grain_ms > 0 => {
                Self { cycle_ms: self.cycle_ms.next_multiple_of(grain_ms.into()), ..self }
            }
            _ => self,
        }
    }

    /// Maximum tokens that they take within `span_ms`, both ends included.
    pub(super) fn within(&self, span_ms: u64) -> u128 {
        let span = u128::from(span_ms);
        let later = match self.kind {
            // The first window opens a millisecond after the burst.
            Kind::FixedWindow => {
                let periods = || span.div_ceil(self.cycle_ms.max(1));
                let windows = self.calendar.as_ref().map_or_else(periods, |calendar| most_within(calendar, span_ms));
                windows.saturating_mul(self.per_cycle)
            }
            // The same, but a token must have opened that window before; or the burst opens it.
            Kind::FirstUseWindow => {
                let in_windows = |windows: u128| windows.saturating_mul(self.per_cycle);
                let from_the_burst = in_windows(div_rem(span, self.cycle_ms).0);
                from_the_burst.max(in_windows(span.div_ceil(self.cycle_ms.max(1))).saturating_sub(1))
            }
            // All of it is back after a period, at the first moment that does not count; then in each cycle.
            Kind::RollingWindow => {
                let later_ms = span.checked_sub(u128::from(self.period_ms).saturating_add(1));
                let times = later_ms.map_or(0, |ms| div_rem(ms, self.cycle_ms).0.saturating_add(1));
                times.saturating_mul(self.per_cycle)
            }
            Kind::TokenBucket => {
                let (cycles, rest) = div_rem(span, self.cycle_ms);
                let in_rest = div_rem(rest.saturating_mul(self.rate.into()), self.period_ms.into()).0;
                cycles.saturating_mul(self.per_cycle).saturating_add(in_rest)
            }
        };
        later.saturating_add(self.burst.into())
    }

    /// Whether they get less than 99 % of the refill. A little is always lost if tokens are few and not a whole number of milliseconds
    /// apart.
    pub(super) fn loses_much(&self) -> bool {
        let offered = u128::from(self.rate).saturating_mul(self.cycle_ms);
        let got = self.per_cycle.saturating_mul(self.period_ms.into());
        got.saturating_mul(100) < offered.saturating_mul(99)
    }

    fn new(config: &Config, max_debt: u64) -> Self {
        let Config { kind, rate, period_ms, capacity, initial, calendar, .. } = *config;
        // At rate 0 a bucket never exceeds its initial level.
        let most = if rate == 0 { initial.unwrap_or(capacity) } else { capacity };
        let burst = most.saturating_add(max_debt);
        let whole = (u128::from(rate), u128::from(period_ms));
        let (per_cycle, cycle_ms) = match kind {
            Kind::FixedWindow | Kind::FirstUseWindow | Kind::RollingWindow => {
                (rate.min(burst).into(), period_ms.into())
            }
            Kind::TokenBucket => overflow(rate.into(), period_ms.into(), burst.into()).unwrap_or(whole),
        };
        Self { burst, kind, period_ms, rate, per_cycle, cycle_ms, calendar }
    }
}

/// The tokens and the time from one overflow to the next, for a bucket emptied of whole tokens in every millisecond. `None` if it never
/// overflows.
fn overflow(rate: u128, period_ms: u128, capacity: u128) -> Option<(u128, u128)> {
    let divisor = gcd(rate, period_ms).max(1);
    let (drops_per_token, drops_per_ms) = (period_ms.checked_div(divisor)?, rate.checked_div(divisor)?);
    let full = capacity.saturating_mul(drops_per_token);
    // After `ms` without an overflow, `ms * drops_per_ms % drops_per_token` are left. It overflows in the next millisecond if these and
    // `drops_per_ms` exceed `full`.
    let fits = full.checked_sub(drops_per_ms);
    let ms = match fits {
        None => 0,
        Some(fits) => {
            let (from, to) = (fits.checked_add(1)?, drops_per_token.checked_sub(1)?);
            first_multiple_between(drops_per_ms, drops_per_token, from, to)?
        }
    };
    let before = div_rem(ms.saturating_mul(drops_per_ms), drops_per_token).0;
    Some((before.saturating_add(capacity), ms.checked_add(1)?))
}

/// The smallest `n` for which `n * step % modulus` is in `from..=to`. The numbers shrink as in Euclid's algorithm: if no multiple of `step`
/// is in the range before the first wrap, the wraps themselves form such a problem, modulo `step`.
fn first_multiple_between(step: u128, modulus: u128, from: u128, to: u128) -> Option<u128> {
    if from > to {
        return None;
    }
    let step = step.checked_rem(modulus)?;
    if from == 0 {
        return Some(0);
    }
    let n = from.checked_add(step)?.checked_sub(1)?.checked_div(step)?; // `from / step`, rounded up
    if n.checked_mul(step)? <= to {
        return Some(n);
    }
    let back = |target: u128| step.checked_sub(target.checked_rem(step)?)?.checked_rem(step);
    let turns = first_multiple_between(modulus, step, back(to)?, back(from)?)?;
    Some(turns.checked_mul(modulus)?.checked_add(from)?.div_ceil(step))
}

fn div_rem(a: u128, b: u128) -> (u128, u128) {
    (a.checked_div(b).unwrap_or(0), a.checked_rem(b).unwrap_or(0))
}

pub(super) const fn gcd(mut a: u128, mut b: u128) -> u128 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_multiple_in_a_range_matches_brute_force() {
        for modulus in 1..40_u128 {
            for step in 0..2 * modulus {
                for from in 0..modulus {
                    for to in from..modulus {
                        let tried = (0..modulus).find(|n| (from..=to).contains(&(n * step % modulus)));
                        let found = first_multiple_between(step, modulus, from, to);
                        assert_eq!(found, tried, "{step} modulo {modulus} from {from} to {to}");
                    }
                }
            }
        }
    }

    /// Who takes all of a rolling window whenever there is any, from any moment on.
    #[test]
    fn a_rolling_window_is_back_a_whole_number_of_grains_later() {
        let most = |rate: u64, period_ms: u64, grain_ms: u64, span_ms: u64| {
            let within = |from: u64| {
                let (mut at, mut tokens) = (from, 0);
                while at < from + span_ms.max(1) {
                    tokens += rate;
                    at = at.next_multiple_of(grain_ms.max(1)) + period_ms;
                }
                tokens
            };
            (0..grain_ms.max(1)).map(within).max().unwrap()
        };
        for (period_ms, grain_ms) in [(10, 0), (10, 1), (10, 2), (10, 3), (10, 7), (10, 10), (60, 17)] {
            let config = Config::token_bucket(9, Duration::from_millis(period_ms));
            let worst = Worst::of_consuming(&Config { kind: Kind::RollingWindow, ..config }).in_grains(grain_ms);
            for span_ms in 0..5 * period_ms {
                let expected = most(9, period_ms, grain_ms, span_ms);
                assert_eq!(worst.within(span_ms), expected.into(), "{period_ms} in {grain_ms} within {span_ms}");
            }
        }
    }

    #[test]
    fn refill_beyond_the_capacity_is_lost() {
        let within = |rate, period_ms, capacity, span_ms| {
            Worst::of_consuming(&Config { capacity, ..Config::token_bucket(rate, Duration::from_millis(period_ms)) })
                .within(span_ms)
        };
        for (rate, period_ms, capacity, span_ms, expected) in [
            (100, 60_000, 200, 60_000, 300),
            (5, 1, 1, 10, 11), // one in each of eleven milliseconds
            (5, 1, 5, 10, 55),
            (3, 1_000, 1, 1_000, 3), // at 0, 334, 668; the next at 1002
            (3, 1_000, 1, 1_002, 4),
            (3, 1_000, 2, 1_000, 5),
            (3, 5, 1, 4, 3), // 0.6, 1.2: one token every two milliseconds
            (10, 1_000, 0, 1_000, 0),
            (0, 1_000, 7, 1_000_000, 7),
        ] {
            assert_eq!(within(rate, period_ms, capacity, span_ms), expected, "{rate} per {period_ms} of {capacity}");
        }
    }
}
