//! One limit in place of two that were in force one after the other, when the moment of the change is no longer known.

use super::arithmetic::Limit;
use super::carry::Carry;
use super::config::{Config, ConfigError, Kind};

impl Limit {
    /// A limit under which no bucket fares better than under this one or `other`, when buckets are carried over from one to the other by
    /// `how`: with as many tokens ([`Carry::AsIs`], [`Carry::Reset`]), as large a share of the capacity ([`Carry::Proportional`]), or as
    /// many tokens missing ([`Carry::Additive`]; a capacity without room for them may forget some). A full bucket stays full. Both are of
    /// one kind; windows that do not open together add nothing.
    #[doc(hidden)]
    #[must_use]
    pub fn weaker(&self, other: &Self, how: Carry) -> Self {
        let (own, of_other) = (self.config(), other.config());
        if own == of_other {
            return *self;
        }
        if own.kind == Kind::RollingWindow {
            let (rate, period_ms) = (own.rate.min(of_other.rate), own.period_ms.max(of_other.period_ms));
            let capacity = own.capacity.min(of_other.capacity);
            return Self::of_any_kind(&Config { rate, period_ms, capacity, ..*own }).unwrap_or(*self);
        }
        // Of windows from first use, those of other numbers are over at other moments.
        let are_apart = match own.kind {
            Kind::TokenBucket | Kind::RollingWindow => false,
            Kind::FixedWindow => !own.shares_windows_with(of_other),
            Kind::FirstUseWindow => own.rate > 0 || of_other.rate > 0 || own.period_ms != of_other.period_ms,
        };
        if are_apart {
            return self.frozen().weaker(&other.frozen().with_windows_of(self), how);
        }
        let is_slower = match how {
            // Of the same kind, so ticks have the same length.
            Carry::Proportional => is_below((self.refill, self.full), (other.refill, other.full)),
            _ => is_below(pace(own), pace(of_other)),
        };
        let slower = if is_slower { self } else { other };
        match how {
            Carry::Proportional => return slower.begun_with_share(self, other),
            Carry::Additive => return slower.begun_missing(self, other),
            Carry::AsIs | Carry::Reset => {}
        }
        let capacity = own.capacity.min(of_other.capacity);
        let initial = Some(start(own).min(start(of_other))).filter(|&tokens| tokens < capacity);
        let max_debt = own.max_debt.max(of_other.max_debt);
        let config = Config {
            capacity,
            max_debt,
            initial,
            #[cfg(not(tollgate_small))]
            is_soft: own.is_soft && of_other.is_soft,
            ..*slower.config()
        };
        match Self::new(&config) {
            // A bucket cannot owe more than refills in the longest time.
            Err(ConfigError::MaxDebtTooLarge { max, .. }) => Self::new(&Config { max_debt: max, ..config }),
            limit => limit,
        }
        .unwrap_or(*slower)
    }

    /// The same limit, with new buckets that have no larger share of the capacity than those of the two.
    fn begun_with_share(&self, one: &Self, other: &Self) -> Self {
        let capacity = self.config().capacity;
        let of_own = |limit: &Self| {
            let (start, whole) = (u128::from(start(limit.config())), u128::from(limit.config().capacity));
            let tokens = start.saturating_mul(capacity.into()).checked_div(whole);
            tokens.map_or(capacity, |tokens| u64::try_from(tokens).unwrap_or(capacity))
        };
        self.begun_with(capacity, of_own(one).min(of_own(other)))
    }

    /// The same limit, with new buckets that lack at least as many tokens as those of the two, and have room to lack them.
    fn begun_missing(&self, one: &Self, other: &Self) -> Self {
        let missing = |config: &Config| config.capacity.saturating_sub(start(config));
        let most = missing(one.config()).max(missing(other.config()));
        let capacity = self.config().capacity.max(most);
        self.begun_with(capacity, capacity.saturating_sub(most))
    }

    /// The same limit with these new buckets, or with empty ones if that is impossible.
    fn begun_with(&self, capacity: u64, tokens: u64) -> Self {
        let initial = Some(tokens).filter(|&tokens| tokens < capacity);
        let with = |capacity, initial| Self::new(&Config { capacity, initial, ..*self.config() });
        with(capacity, initial).or_else(|_| with(self.config().capacity, Some(0))).unwrap_or(*self)
    }

    /// Whether it refills more tokens in the same time.
    #[doc(hidden)]
    #[must_use]
    pub fn is_faster_than(&self, other: &Self) -> bool {
        !is_below(pace(self.config()), pace(other.config()))
    }

    /// The same limit without refills. A rolling window remains as it is: what was taken of it comes back.
    #[doc(hidden)]
    #[must_use]
    pub fn frozen(&self) -> Self {
        Self::new(&Config { rate: 0, ..*self.config() }).unwrap_or(*self) // a rate of 0 suits every capacity
    }

    /// The same limit with the windows of `other`.
    fn with_windows_of(&self, other: &Self) -> Self {
        let Config { period_ms, offset_ms, calendar, .. } = *other.config();
        Self::new(&Config { period_ms, offset_ms, calendar, ..*self.config() }).unwrap_or(*self)
    }
}

/// The initial tokens of a new bucket.
fn start(config: &Config) -> u64 {
    config.initial.unwrap_or(config.capacity)
}

fn pace(config: &Config) -> (i64, i64) {
    (config.rate.cast_signed(), config.period_ms.cast_signed())
}

/// Whether the first fraction is at most the second. One with a denominator of 0 is the smallest: a bucket that holds nothing.
fn is_below((own, of): (i64, i64), (other, of_other): (i64, i64)) -> bool {
    let product = |a: i64, b: i64| i128::from(a).saturating_mul(b.into());
    of == 0 || (of_other != 0 && product(own, of_other) <= product(other, of))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "the numbers are valid")]
mod tests {
    use core::time::Duration;

    use super::*;

    fn bucket(rate: u64, period_ms: u64, capacity: u64) -> Limit {
        Limit::new(&Config { capacity, ..Config::token_bucket(rate, Duration::from_millis(period_ms)) }).unwrap()
    }

    #[test]
    fn the_weaker_of_two_has_the_slower_rate_and_the_smaller_capacity_that_the_carry_asks_for() {
        let (a, b) = (bucket(10, 1_000, 100), bucket(100, 60_000, 50));
        for how in Carry::ALL {
            let expected =
                if matches!(how, Carry::Proportional | Carry::Additive) { b } else { bucket(100, 60_000, 50) };
            assert_eq!((a.weaker(&b, how), b.weaker(&a, how)), (expected, expected), "{how:?}");
            assert_eq!(a.weaker(&a, how), a);
        }
        // Slower in tokens, but faster for its size.
        let c = bucket(1, 1_000, 1);
        assert_eq!(a.weaker(&c, Carry::AsIs), c);
        assert_eq!(a.weaker(&c, Carry::Additive), c);
        assert_eq!(a.weaker(&c, Carry::Proportional), a);
        assert_eq!(bucket(5, 1_000, 0).weaker(&a, Carry::Proportional), bucket(5, 1_000, 0), "it holds nothing");
        assert_eq!(a.weaker(&bucket(0, 1_000, 200), Carry::AsIs), bucket(0, 1_000, 100));
    }

    #[test]
    fn a_new_bucket_begins_with_the_smaller_level_and_a_debt_is_as_deep_as_can_come_back() {
        let with = |initial, max_debt, capacity| Config {
            capacity,
            max_debt,
            initial,
            ..Config::token_bucket(1, Duration::from_secs(1))
        };
        let limit = |config: Config| Limit::new(&config).unwrap();
        let (one, other) = (with(Some(3), 7, 10), with(None, 2, 5));
        assert_eq!(*limit(one).weaker(&limit(other), Carry::AsIs).config(), with(Some(3), 7, 5));
        assert_eq!(*limit(one).weaker(&limit(with(Some(3), 0, 3)), Carry::AsIs).config(), with(None, 7, 3));
        let fast = limit(Config { max_debt: 1 << 40, ..Config::token_bucket(1 << 20, Duration::from_millis(1)) });
        let slow = limit(Config::token_bucket(1, Duration::from_millis(1 << 45)));
        let config = *fast.weaker(&slow, Carry::AsIs).config();
        assert_eq!((config.rate, config.period_ms, config.capacity, config.max_debt), (1, 1 << 45, 1, 63));
    }

    /// Also where levels are carried over as a share or as missing tokens.
    #[test]
    fn a_new_bucket_begins_with_the_lesser_share_or_the_most_missing() {
        let limit = |rate, capacity, initial| {
            Limit::new(&Config { capacity, initial, ..Config::token_bucket(rate, Duration::from_secs(1)) }).unwrap()
        };
        for (one, other, how, expected) in [
            (limit(2, 100, Some(0)), limit(1, 100, None), Carry::Additive, limit(1, 100, Some(0))),
            (limit(2, 100, Some(70)), limit(1, 50, None), Carry::Additive, limit(1, 50, Some(20))),
            (limit(2, 100, Some(20)), limit(1, 50, None), Carry::Additive, limit(1, 80, Some(0))),
            (limit(2, 100, Some(70)), limit(1, 50, Some(10)), Carry::Additive, limit(1, 50, Some(10))),
            (limit(2, 100, Some(0)), limit(1, 100, None), Carry::Proportional, limit(1, 100, Some(0))),
            (limit(2, 100, Some(33)), limit(1, 60, None), Carry::Proportional, limit(1, 60, Some(19))),
            (limit(2, 100, Some(99)), limit(1, 60, Some(10)), Carry::Proportional, limit(1, 60, Some(10))),
        ] {
            assert_eq!((one.weaker(&other, how), other.weaker(&one, how)), (expected, expected), "{how:?}");
        }
    }

    /// Whatever the carry: what was taken comes back at its own moment.
    #[test]
    fn the_weaker_rolling_window_has_the_smaller_rate_and_the_longer_period() {
        let rolling = |rate, period_ms| {
            let config = Config::token_bucket(rate, Duration::from_millis(period_ms));
            Limit::of_any_kind(&Config { kind: Kind::RollingWindow, ..config }).unwrap()
        };
        for how in Carry::ALL {
            assert_eq!(rolling(5, 100).weaker(&rolling(7, 900), how), rolling(5, 900), "{how:?}");
            assert_eq!(rolling(5, 900).weaker(&rolling(7, 100), how), rolling(5, 900), "{how:?}");
        }
        assert_eq!(rolling(5, 100).frozen(), rolling(5, 100));
    }

    #[test]
    fn windows_that_do_not_open_together_add_nothing() {
        let window = |rate, period_ms, offset_ms| {
            Limit::new(&Config {
                capacity: 9,
                offset_ms,
                ..Config::fixed_window(rate, Duration::from_millis(period_ms))
            })
            .unwrap()
        };
        let day = window(7, 86_400_000, Some(0));
        assert_eq!(day.weaker(&window(4, 86_400_000, Some(0)), Carry::AsIs), window(4, 86_400_000, Some(0)));
        for other in [window(4, 3_600_000, Some(0)), window(4, 86_400_000, Some(1)), window(4, 86_400_000, None)] {
            for how in Carry::ALL {
                assert_eq!(day.weaker(&other, how), window(0, 86_400_000, Some(0)), "{how:?}");
            }
        }
        assert_eq!(day.frozen(), window(0, 86_400_000, Some(0)));
    }
}
