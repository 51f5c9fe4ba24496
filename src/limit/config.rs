//! A limit's numbers as its owner writes them, and every reason why they cannot be kept exact.

use core::fmt;
use core::time::Duration;

use super::calendar::Calendar;

/// The largest number of tokens anywhere: 2⁵³ − 1, the largest whole number that every JSON reader and every
/// JavaScript number keeps exact.
pub const MAX_TOKENS: u64 = (1 << 53) - 1;

/// The longest period, and the longest time from the deepest debt to full: 2⁵¹ ms, some 71 000 years. A moment twice
/// that far after the last accepted one is still a whole number in JavaScript.
pub const MAX_SPAN_MS: u64 = 1 << 51;

/// How tokens come back.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Continuously: `rate` tokens are spread evenly over each period.
    TokenBucket,
    /// At once: `rate` tokens appear when a window of one period opens.
    FixedWindow,
    /// The same, in windows of the bucket's own: one opens when something is taken from a full bucket, and others follow it until the
    /// bucket is full again. A full bucket has no window.
    FirstUseWindow,
    /// Each token comes back one period after it was taken, so that no interval of a period has more than `rate`. This needs the moments of
    /// what was taken: [`Limit::new`](super::Limit::new) refuses it, and a [`RollingWindow`](super::RollingWindow) keeps them.
    RollingWindow,
}

impl Kind {
    /// Its name in stored numbers and in answers.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::FirstUseWindow => "first_use_window",
            Self::RollingWindow => "rolling_window",
        }
    }
}

/// One limit as its owner writes it, not yet checked: [`Limit::new`](super::Limit::new) does that. A literal ends with
/// `..Config::token_bucket(…)`, so that a field that is added breaks nothing.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::{Config, Limit};
///
/// // 100 per minute, at most 200 at once, and up to 50 more owed by reservations.
/// let mut config = Config::token_bucket(100, Duration::from_mins(1));
/// config.capacity = 200;
/// config.max_debt = 50;
/// assert!(Limit::new(&config).is_ok());
/// ```
///
/// With the feature `serde` it can be read, for instance from `{"kind":"token_bucket","rate":100,"period_ms":60000,"capacity":200}`:
/// the last five fields may be left out, and others are errors. A calendar is text such as `"month 15 UTC"`.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How tokens come back.
    pub kind: Kind,
    /// Tokens that come back in each period, 0 to [`MAX_TOKENS`]. With 0 the limit is a budget that never refills.
    pub rate: u64,
    /// The period in milliseconds, 1 to [`MAX_SPAN_MS`].
    pub period_ms: u64,
    /// The most tokens a bucket holds: the largest burst. 0 to [`MAX_TOKENS`]; with 0 only reservations pass.
    pub capacity: u64,
    /// How far below zero reservations and charges may take a bucket, in tokens. 0 is none.
    #[cfg_attr(feature = "serde", serde(default))]
    pub max_debt: u64,
    /// Tokens in a bucket that was never used, 0 to `capacity`. `None` is the capacity, which is all that a window from first use takes.
    pub initial: Option<u64>,
    /// Where windows begin: this many milliseconds after the Unix epoch, and every period before and after; only for a
    /// fixed window. A limit keeps what is left of it modulo `period_ms`. With `None` the phase of a new bucket decides,
    /// so that a million keys do not all reset at midnight.
    pub offset_ms: Option<u64>,
    /// The days on which windows open, instead of a period and an offset; only for a fixed window. A limit replaces `period_ms` by the length
    /// of the calendar's longest window.
    pub calendar: Option<Calendar>,
    /// Whether it never refuses: what is taken beyond the level takes it below zero, down to `-max_debt`, and what is taken beyond that is
    /// not counted. Not for a rolling window.
    #[cfg(not(tollgate_small))] // the package's small module has no such limits
    #[cfg_attr(feature = "serde", serde(default))]
    pub is_soft: bool,
}

impl Config {
    /// A token bucket of `rate` tokens per `period`, holding as many, full at first, with no debt. A period is whole milliseconds: a
    /// fraction rounds up, so that no more is granted.
    #[must_use]
    pub const fn token_bucket(rate: u64, period: Duration) -> Self {
        Self::of(Kind::TokenBucket, rate, period)
    }

    /// A fixed window of `rate` tokens per `period`, holding as many, full at first, with no debt. Fractions of a millisecond round up.
    #[must_use]
    pub const fn fixed_window(rate: u64, period: Duration) -> Self {
        Self::of(Kind::FixedWindow, rate, period)
    }

    /// The same, in windows that open with the first take from a full bucket: "100 in the five hours from your first message".
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::limit::{Config, Decision, Limit};
    ///
    /// let limit = Limit::new(&Config::first_use_window(2, Duration::from_secs(60)))?;
    /// let mut state = limit.new_state(0, 0);
    /// for now in [7_000, 66_999] {
    ///     assert!(limit.try_consume(&mut state, now, 1)); // the first one opens a window
    /// }
    /// assert_eq!(limit.consume(&mut state, 66_999, 1), Decision::Wait { retry_at: 67_000 });
    /// assert!(limit.try_consume(&mut state, 90_000, 2)); // the next one opens here, and is over at 150 000
    /// assert_eq!(limit.consume(&mut state, 90_000, 1), Decision::Wait { retry_at: 150_000 });
    /// # Ok::<(), tollgate::limit::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn first_use_window(rate: u64, period: Duration) -> Self {
        Self::of(Kind::FirstUseWindow, rate, period)
    }

    /// A fixed window that follows a calendar: `rate` tokens when each opens, holding as many, full at first, with no debt. [`Calendar`] has an
    /// example.
    #[must_use]
    pub const fn calendar_window(rate: u64, calendar: Calendar) -> Self {
        let windows = Self::fixed_window(rate, Duration::from_millis(calendar.longest_ms()));
        Self { calendar: Some(calendar), ..windows }
    }

    /// Whether windows of both open together, and are over together, if each take is of both.
    #[doc(hidden)]
    #[must_use]
    pub fn shares_windows_with(&self, other: &Self) -> bool {
        // Each window ends with full buckets.
        let ends_full = |config: &Self| config.rate >= config.capacity;
        match (self.kind, other.kind) {
            (Kind::FixedWindow, Kind::FixedWindow) => {
                (self.period_ms, self.offset_ms, self.calendar) == (other.period_ms, other.offset_ms, other.calendar)
            }
            (Kind::FirstUseWindow, Kind::FirstUseWindow) => {
                self == other || self.period_ms == other.period_ms && ends_full(self) && ends_full(other)
            }
            _ => false,
        }
    }

    const fn of(kind: Kind, rate: u64, period: Duration) -> Self {
        let period_ms = whole_ms(period);
        Self {
            kind,
            rate,
            period_ms,
            capacity: rate,
            max_debt: 0,
            initial: None,
            offset_ms: None,
            calendar: None,
            #[cfg(not(tollgate_small))]
            is_soft: false,
        }
    }
}

/// The length in milliseconds, rounded up. What does not fit is too long for any limit.
pub(super) const fn whole_ms(length: Duration) -> u64 {
    #[expect(clippy::as_conversions, reason = "lossless, and `From` is not const")]
    let part_ms = length.subsec_nanos().div_ceil(1_000_000) as u64;
    length.as_secs().saturating_mul(1_000).saturating_add(part_ms)
}

/// Why a [`Config`], or a [`WarmUp`](super::WarmUp), cannot be kept exact. Where a smaller value could, the variant carries the largest, without a debt for a capacity.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The rate is above [`MAX_TOKENS`], or above what a warm-up takes.
    RateTooLarge { rate: u64, max: u64 },
    /// The rate of a pace is zero: no call would ever start.
    RateZero,
    /// The period is zero: nothing can come back "every 0 ms".
    PeriodZero,
    /// The period is above [`MAX_SPAN_MS`].
    PeriodTooLong { period_ms: u64, max_ms: u64 },
    /// The capacity is too large for every refill at this rate and period to be an exact integer.
    CapacityTooLarge { capacity: u64, max: u64 },
    /// The debt is too large beside the capacity, for the same reason.
    MaxDebtTooLarge { max_debt: u64, max: u64 },
    /// A new bucket would hold more than its capacity.
    InitialTooLarge { initial: u64, max: u64 },
    /// A token bucket has no windows, and one from first use opens when it is used, so an offset means nothing.
    OffsetWithoutWindows,
    /// Only a fixed window can follow a calendar.
    CalendarWithoutWindows,
    /// A calendar says when windows open, so an offset means nothing.
    OffsetBesideCalendar,
    /// A window from first use begins full: a bucket that was never used is not kept, so one that begins with less would never fill.
    InitialBeforeFirstUse,
    /// A rolling window needs the moments of what was taken, which a state does not have.
    NeedsMoments,
    /// A rolling window that never refuses would have to keep any number of moments.
    SoftRollingWindow,
    /// A rolling window with no grains, or too many.
    GrainsOutOfRange { grains: u8, max: u8 },
    /// The warm-up is too long to be kept exact at this rate and period.
    WarmUpTooLong { warm_up_ms: u64, max_ms: u64 },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RateTooLarge { rate, max } => write!(f, "a rate of {rate} is too large: at most {max}"),
            Self::RateZero => write!(f, "a rate of 0 is too small: at least 1"),
            Self::PeriodZero => write!(f, "a period of 0 ms is too short: at least 1 ms"),
            Self::PeriodTooLong { period_ms, max_ms } => {
                write!(f, "a period of {period_ms} ms is too long: at most {max_ms} ms")
            }
            Self::CapacityTooLarge { capacity, max } => {
                write!(f, "a capacity of {capacity} is too large to stay exact at this rate and period: at most {max}")
            }
            Self::MaxDebtTooLarge { max_debt, max } => {
                write!(f, "a max_debt of {max_debt} is too large to stay exact with this capacity: at most {max}")
            }
            Self::InitialTooLarge { initial, max } => {
                write!(f, "{initial} initial tokens are more than the capacity: at most {max}")
            }
            Self::OffsetWithoutWindows => {
                write!(f, "a token bucket has no windows, and those from first use open then: neither takes an offset")
            }
            Self::CalendarWithoutWindows => {
                write!(f, "only a fixed window can follow a calendar")
            }
            Self::OffsetBesideCalendar => {
                write!(f, "a limit with a calendar takes no offset: the calendar says when windows open")
            }
            Self::InitialBeforeFirstUse => {
                write!(f, "a window from first use begins full, so it takes no initial tokens")
            }
            Self::NeedsMoments => {
                write!(f, "a rolling window needs the moments of what was taken, which a `RollingWindow` keeps")
            }
            Self::SoftRollingWindow => {
                write!(f, "a rolling window cannot be soft: it would have to keep the moments of all that was taken")
            }
            Self::GrainsOutOfRange { grains, max } => write!(f, "{grains} grains in a period: from 1 to {max}"),
            Self::WarmUpTooLong { warm_up_ms, max_ms } => {
                write!(
                    f,
                    "a warm-up of {warm_up_ms} ms is too long to stay exact at this rate and period: at most {max_ms} ms"
                )
            }
        }
    }
}

impl core::error::Error for ConfigError {}
