//! Windows of a calendar: days, weeks, months, quarters and years in a time zone.
//!
//! Their lengths differ: a month has 28 to 31 days, and a day 23 to 25 hours where clocks change. The arithmetic needs one length, so such a
//! limit counts on a clock of its own, on which window `n` begins at `n` times the longest length. So a state names its window by number:
//! when a zone gets another offset, no window is lost or doubled.
//!
//! Days are counted as in Howard Hinnant's `days_from_civil` and `civil_from_days` (chrono-Compatible Low-Level Date Algorithms).

use core::fmt;
use core::hash::{Hash, Hasher};

/// Windows that open at midnight on certain days, in the time of a [`Zone`].
///
/// A day that a change of clocks makes longer or shorter is one window. One that skips midnight begins with its first moment, and one with two
/// midnights with the first. In a month without that day, such as the 31st, the last day counts.
///
/// ```
/// use tollgate::limit::{Calendar, Config, Decision, Limit, Zone};
///
/// // 1000 in each month from the 15th, in UTC.
/// let billing = Calendar::month(&Zone::UTC, 15).unwrap();
/// let limit = Limit::new(&Config::calendar_window(1_000, billing))?;
/// let january_20 = 1_800_403_200_000; // 2027-01-20
/// let mut state = limit.new_state(january_20, 0);
/// assert!(limit.try_consume(&mut state, january_20, 1_000));
/// let february_15 = 1_802_649_600_000;
/// assert_eq!(limit.consume(&mut state, january_20, 1), Decision::Wait { retry_at: february_15 });
/// # Ok::<(), tollgate::limit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    steps: Steps,
    zone: &'static Zone,
}

/// The days on which windows open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Steps {
    Day,
    /// How many days after 1 January 1970 the first is, 0 to 6.
    Week {
        first: u8,
    },
    Months {
        every: Every,
        day: u8,
    },
}

/// How many months lie between openings, and which is the first, counted from January.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Every {
    Month,
    Quarter { first: u8 },
    Year { first: u8 },
}

/// The days on which windows open, numbered as in [`Calendar`]'s constructors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Days {
    All,
    Weekly(u8),
    Monthly(u8),
    Quarterly(MonthDay),
    Yearly(MonthDay),
}

/// A day of a year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MonthDay {
    pub(crate) month: u8,
    pub(crate) day: u8,
}

impl MonthDay {
    const fn new(months_before: u8, day: u8) -> Self {
        Self { month: months_before.wrapping_add(1), day }
    }
}

impl Every {
    const fn months(self) -> (i64, u8) {
        match self {
            Self::Month => (1, 0),
            Self::Quarter { first } => (3, first),
            Self::Year { first } => (12, first),
        }
    }
}

impl Calendar {
    /// How far a place may set its clocks back, and so how much later than by its days a window may open: nowhere was more than a day
    /// repeated. A clock that steps back by no more counts as no time elapsed.
    #[doc(hidden)]
    pub const MAX_SET_BACK_MS: i64 = DAY_MS;

    /// The offsets of a place differ by less, six hours: summer time is an hour or two, and no place has moved farther since 2020.
    #[doc(hidden)]
    pub const OFFSETS_MS: i64 = DAY_MS / 4;

    /// Each day.
    #[must_use]
    pub const fn day(zone: &'static Zone) -> Self {
        Self { steps: Steps::Day, zone }
    }

    /// Weeks that begin on this weekday: 1 for Monday to 7 for Sunday, as in ISO 8601. `None` outside this range.
    #[must_use]
    pub const fn week(zone: &'static Zone, weekday: u8) -> Option<Self> {
        match weekday {
            // 1 January 1970 was a Thursday, the fourth.
            1..=7 => Some(Self { steps: Steps::Week { first: weekday.wrapping_add(3) % 7 }, zone }),
            _ => None,
        }
    }

    /// Months that begin on this day, 1 to 31. `None` outside this range.
    #[must_use]
    pub const fn month(zone: &'static Zone, day: u8) -> Option<Self> {
        Self::months(zone, Every::Month, 1, day)
    }

    /// Quarters, of which one begins in this month, 1 to 12, on this day, 1 to 31. `None` outside these ranges.
    #[must_use]
    pub const fn quarter(zone: &'static Zone, month: u8, day: u8) -> Option<Self> {
        Self::months(zone, Every::Quarter { first: month.wrapping_sub(1) % 3 }, month, day)
    }

    /// Years that begin in this month, 1 to 12, on this day, 1 to 31: `Calendar::year(&Zone::UTC, 4, 6)` on 6 April. `None` outside these ranges.
    #[must_use]
    pub const fn year(zone: &'static Zone, month: u8, day: u8) -> Option<Self> {
        Self::months(zone, Every::Year { first: month.wrapping_sub(1) }, month, day)
    }

    const fn months(zone: &'static Zone, every: Every, month: u8, day: u8) -> Option<Self> {
        match (month, day) {
            (1..=12, 1..=31) => Some(Self { steps: Steps::Months { every, day }, zone }),
            _ => None,
        }
    }

    /// The zone whose days they are.
    #[must_use]
    pub const fn zone(&self) -> &'static Zone {
        self.zone
    }

    /// The length of the longest window if no clock changes, in milliseconds: what counts as the limit's period.
    #[must_use]
    pub const fn longest_ms(&self) -> u64 {
        let days: u64 = match self.steps {
            Steps::Day => 1,
            Steps::Week { .. } => 7,
            Steps::Months { every: Every::Month, .. } => 31,
            Steps::Months { every: Every::Quarter { .. }, .. } => 92,
            Steps::Months { every: Every::Year { .. }, .. } => 366,
        };
        days.wrapping_mul(DAY_MS.cast_unsigned())
    }

    /// The days on which windows open.
    pub(crate) const fn days(&self) -> Days {
        match self.steps {
            Steps::Day => Days::All,
            Steps::Week { first } => Days::Weekly((first.wrapping_add(3) % 7).wrapping_add(1)),
            Steps::Months { every: Every::Month, day } => Days::Monthly(day),
            Steps::Months { every: Every::Quarter { first }, day } => Days::Quarterly(MonthDay::new(first, day)),
            Steps::Months { every: Every::Year { first }, day } => Days::Yearly(MonthDay::new(first, day)),
        }
    }

    /// The mean length of its windows in milliseconds. In any time `t`, between `t / mean - 1¼` and `t / mean + 1¼` windows open: months and
    /// leap years differ by less than five days in all, and offsets by less than [`Calendar::OFFSETS_MS`].
    #[doc(hidden)]
    #[must_use]
    pub const fn mean_ms(&self) -> u64 {
        // 400 years have 146 097 days.
        const YEAR_MS: u64 = DAY_MS.cast_unsigned() / 400 * 146_097;
        match self.steps {
            Steps::Day => DAY_MS.cast_unsigned(),
            Steps::Week { .. } => DAY_MS.cast_unsigned().wrapping_mul(7),
            Steps::Months { every: Every::Month, .. } => YEAR_MS / 12,
            Steps::Months { every: Every::Quarter { .. }, .. } => YEAR_MS / 4,
            Steps::Months { every: Every::Year { .. }, .. } => YEAR_MS,
        }
    }

    /// How many windows open after the first moment, until the second at the latest.
    #[doc(hidden)]
    #[must_use]
    pub fn openings(&self, after: i64, until: i64) -> u64 {
        let number = |at: i64| self.number(self.zone.day(at.clamp(-FARTHEST_MS, FARTHEST_MS)));
        number(until).saturating_sub(number(after)).max(0).cast_unsigned()
    }

    /// Whether windows of both open in turn: between two of one, exactly one of the other, or together with one of the two.
    #[doc(hidden)]
    #[must_use]
    pub fn alternates_with(&self, other: &Self) -> bool {
        let is_as_long = match (self.steps, other.steps) {
            (Steps::Day, Steps::Day) | (Steps::Week { .. }, Steps::Week { .. }) => true,
            (Steps::Months { every, .. }, Steps::Months { every: every_other, .. }) => {
                every.months().0 == every_other.months().0
            }
            _ => false,
        };
        let is_in_order =
            self.zone == other.zone || self.steps == other.steps && self.zone.keeps_order_with(other.zone);
        is_as_long && is_in_order
    }

    /// Whether each window of `other` is the same number of windows of this one.
    #[doc(hidden)]
    #[must_use]
    pub fn divides(&self, other: &Self) -> bool {
        let is_even = match (self.steps, other.steps) {
            (Steps::Day, Steps::Week { .. }) | (Steps::Months { .. }, Steps::Months { .. }) => true,
            (steps, other) => steps == other,
        };
        is_even && self.opens_with(other)
    }

    /// Whether a window opens whenever one of `other` does.
    #[doc(hidden)]
    #[must_use]
    pub fn opens_with(&self, other: &Self) -> bool {
        let opens = match (self.steps, other.steps) {
            (Steps::Day, _) => true,
            (Steps::Months { every, day }, Steps::Months { every: every_other, day: day_other }) => {
                let ((months, first), (months_other, first_other)) = (every.months(), every_other.months());
                let of_first = i64::from(first_other).checked_rem(months) == Some(first.into());
                day == day_other && months_other.checked_rem(months) == Some(0) && of_first
            }
            (steps, other) => steps == other,
        };
        opens && self.zone == other.zone
    }

    /// The calendar of which this is the text, with a zone by its name.
    #[doc(hidden)]
    pub fn parse(text: &str, zone: impl FnOnce(&str) -> Option<&'static Zone>) -> Option<Self> {
        let (steps, name) = text.rsplit_once(' ')?;
        let (unit, starts) = steps.split_once(' ').unwrap_or((steps, ""));
        let zone = zone(name)?;
        let month_and_day = || {
            let (month, day) = starts.split_once('-')?;
            Some((month.parse().ok()?, day.parse().ok()?))
        };
        match unit {
            "day" if starts.is_empty() => Some(Self::day(zone)),
            "week" => Self::week(zone, starts.parse().ok()?),
            "month" => Self::month(zone, starts.parse().ok()?),
            "quarter" => month_and_day().and_then(|(month, day)| Self::quarter(zone, month, day)),
            "year" => month_and_day().and_then(|(month, day)| Self::year(zone, month, day)),
            _ => None,
        }
    }

    /// The first moment of the window that holds `now`, and that of the next one, in Unix milliseconds. Exact for moments within ±2⁵² ms of the
    /// epoch; beyond, they saturate.
    #[must_use]
    pub fn window(&self, now: i64) -> (i64, i64) {
        let number = self.number(self.zone.day(now.clamp(-FARTHEST_MS, FARTHEST_MS)));
        (self.opening(number), self.opening(number.wrapping_add(1)))
    }

    /// `now` on the limit's own clock, from which only openings are converted back. Within a window, it is as far before the next
    /// one as `now` is, so that a clock that steps back over an opening by a little does so here.
    pub(super) fn own_time(&self, now: i64) -> i64 {
        let now = now.clamp(-FARTHEST_MS, FARTHEST_MS);
        let next = self.number(self.zone.day(now)).wrapping_add(1);
        let length_ms = self.longest_ms().cast_signed();
        let before_next = self.opening(next).wrapping_sub(now).min(length_ms);
        BEGINNING.wrapping_add(next.wrapping_mul(length_ms)).wrapping_sub(before_next)
    }

    /// The Unix moment of the opening at `own_time`.
    pub(super) fn unix_time(&self, own_time: i64) -> i64 {
        let length_ms = self.longest_ms().cast_signed();
        let number = own_time.saturating_sub(BEGINNING).checked_div_euclid(length_ms).unwrap_or(0);
        self.opening(number.clamp(-FARTHEST_MS / DAY_MS, FARTHEST_MS / DAY_MS))
    }

    /// The opening on the limit's own clock of the window that holds `now`.
    pub(super) fn own_opening(&self, now: i64) -> i64 {
        let number = self.number(self.zone.day(now.clamp(-FARTHEST_MS, FARTHEST_MS)));
        BEGINNING.wrapping_add(number.wrapping_mul(self.longest_ms().cast_signed()))
    }

    /// The number of the window that has this day.
    fn number(&self, day: i64) -> i64 {
        match self.steps {
            Steps::Day => day,
            Steps::Week { first } => day.wrapping_sub(first.into()).div_euclid(7),
            Steps::Months { every, day: opens_on } => {
                let (months, first) = every.months();
                let (month, day_of_month) = month_of(day);
                let is_before = day_of_month < i64::from(opens_on).min(days_in(month));
                let month = month.wrapping_sub(is_before.into()).wrapping_sub(first.into());
                month.checked_div_euclid(months).unwrap_or(month)
            }
        }
    }

    /// The moment at which the window with this number opens.
    fn opening(&self, number: i64) -> i64 {
        let day = match self.steps {
            Steps::Day => number,
            Steps::Week { first } => number.wrapping_mul(7).wrapping_add(first.into()),
            Steps::Months { every, day } => {
                let (months, first) = every.months();
                let month = number.wrapping_mul(months).wrapping_add(first.into());
                first_day(month).wrapping_add(i64::from(day).min(days_in(month))).wrapping_sub(1)
            }
        };
        self.zone.start_of(day)
    }
}

/// The days on which its windows open, and its zone: `day UTC`, `week 1 UTC`, `month 15 UTC`, `quarter 02-15 UTC`, `year 04-06 UTC`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.days() {
            Days::All => write!(f, "day")?,
            Days::Weekly(weekday) => write!(f, "week {weekday}")?,
            Days::Monthly(day) => write!(f, "month {day}")?,
            Days::Quarterly(date) => write!(f, "quarter {date}")?,
            Days::Yearly(date) => write!(f, "year {date}")?,
        }
        write!(f, " {}", self.zone.name)
    }
}

/// Two digits each.
impl fmt::Display for MonthDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}-{:02}", self.month, self.day)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Calendar {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads a calendar, with a zone by its name.
#[cfg(feature = "serde")]
pub(crate) struct Text(pub(crate) fn(&str) -> Option<&'static Zone>);

#[cfg(feature = "serde")]
impl serde::de::Visitor<'_> for Text {
    type Value = Calendar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a calendar in a known time zone, such as \"month 15 UTC\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Calendar, E> {
        Calendar::parse(text, self.0).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

/// Without the feature `zones`, only UTC's.
#[cfg(all(feature = "serde", not(feature = "api")))]
impl<'de> serde::Deserialize<'de> for Calendar {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(|name| (name == Zone::UTC.name).then_some(&Zone::UTC)))
    }
}

/// A time zone: the offsets of a place from UTC, as the IANA's database has them. Zones with equal names are equal, whatever their offsets:
/// another edition of the database does not make it another zone.
#[derive(Clone, Copy)]
pub struct Zone {
    name: &'static str,
    offsets: &'static [(i64, i32)],
}

impl Zone {
    /// Coordinated Universal Time.
    pub const UTC: Self = Self { name: "UTC", offsets: &[] };

    /// A zone of this IANA name, such as `America/Sao_Paulo`. `offsets` are pairs of the moment from which one holds, in Unix milliseconds, and
    /// the offset itself, in seconds east of UTC and less than a day; the first also holds before its moment. `None` if the moments are not in
    /// order, an offset is a day or more, or the name is that of [`Zone::UTC`], is empty or has spaces.
    ///
    /// ```
    /// use tollgate::limit::{Calendar, Zone};
    ///
    /// // Two hours ahead of UTC, and three from 28 March 2027, 01:00 UTC.
    /// static HELSINKI: Option<Zone> = Zone::new("Europe/Helsinki", &[(1_792_976_400_000, 7_200), (1_806_195_600_000, 10_800)]);
    /// let day = Calendar::day(HELSINKI.as_ref().unwrap());
    /// let (from, until) = day.window(1_806_195_600_000);
    /// assert_eq!(until - from, 23 * 3_600_000);
    /// ```
    ///
    /// Offsets that are read at run time can be [leaked](Box::leak): a program has few zones. The feature `zones` does that, by `Zone::named`.
    #[must_use]
    pub const fn new(name: &'static str, offsets: &'static [(i64, i32)]) -> Option<Self> {
        let is_utc = matches!(name.as_bytes(), b"" | b"UTC");
        if is_utc || has_space(name.as_bytes()) || !are_in_order(offsets) { None } else { Some(Self { name, offsets }) }
    }

    /// Its IANA name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The day at a moment, counted from 1 January 1970. It never goes back when clocks do.
    fn day(&self, now: i64) -> i64 {
        let held = self.offsets.partition_point(|(from, _)| *from <= now);
        let mut day = now.wrapping_add(self.offset_ms(held.saturating_sub(1))).div_euclid(DAY_MS);
        // Clocks that were set back over midnight: the next day has begun already.
        while !self.offsets.is_empty() && self.start_of(day.wrapping_add(1)) <= now {
            day = day.wrapping_add(1);
        }
        day
    }

    /// The first moment of a day: the first at which clocks show its midnight or later.
    fn start_of(&self, day: i64) -> i64 {
        let midnight = day.wrapping_mul(DAY_MS);
        // An offset is less than a day, so at this moment it is still an earlier day everywhere.
        let before = midnight.wrapping_sub(DAY_MS.wrapping_mul(2));
        let mut index = self.offsets.partition_point(|(from, _)| *from <= before).saturating_sub(1);
        loop {
            let shown = midnight.wrapping_sub(self.offset_ms(index));
            let next = index.wrapping_add(1);
            match self.offsets.get(next) {
                // Not before this offset is over.
                Some((until, _)) if shown >= *until => index = next,
                _ => {
                    let from =
                        if index == 0 { i64::MIN } else { self.offsets.get(index).map_or(i64::MIN, |held| held.0) };
                    return shown.max(from);
                }
            }
        }
    }

    /// Whether its days never begin later than those of `other`, or never earlier, and always less than a day apart.
    fn keeps_order_with(&self, other: &Self) -> bool {
        let offset_at = |zone: &Self, at: i64| {
            zone.offset_ms(zone.offsets.partition_point(|(from, _)| *from <= at).saturating_sub(1))
        };
        let ahead = |at: i64| offset_at(self, at).wrapping_sub(offset_at(other, at));
        let changes = self.offsets.iter().chain(other.offsets);
        let moments = changes.flat_map(|(from, _)| [from.wrapping_sub(1), *from]).chain([i64::MAX]);
        let (mut is_ahead, mut is_behind, mut is_near) = (false, false, true);
        for ahead_ms in moments.map(ahead) {
            is_ahead |= ahead_ms > 0;
            is_behind |= ahead_ms < 0;
            is_near &= ahead_ms.saturating_abs() <= DAY_MS.wrapping_sub(Calendar::OFFSETS_MS);
        }
        is_near && !(is_ahead && is_behind)
    }

    fn offset_ms(&self, index: usize) -> i64 {
        let seconds = self.offsets.get(index).map_or(0, |(_, seconds)| *seconds);
        i64::from(seconds).wrapping_mul(1_000)
    }
}

const fn has_space(mut name: &[u8]) -> bool {
    while let [first, rest @ ..] = name {
        if first.is_ascii_whitespace() {
            return true;
        }
        name = rest;
    }
    false
}

const fn are_in_order(mut offsets: &[(i64, i32)]) -> bool {
    while let [(from, offset), rest @ ..] = offsets {
        let is_before_next = match rest {
            [(next, _), ..] => *from < *next,
            [] => true,
        };
        if !is_before_next || offset.unsigned_abs() >= 86_400 {
            return false;
        }
        offsets = rest;
    }
    true
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const DAY_MS: i64 = 86_400_000;

/// Answers are exact up to this distance from the epoch: 2⁵² ms, and whole days.
const FARTHEST_MS: i64 = (1 << 52) / DAY_MS * DAY_MS;

/// Where a limit's own clock has the window with the number 0: later than any moment, so that a state with such a time is never taken for one
/// on the Unix clock.
const BEGINNING: i64 = 1 << 53;

/// Months from January of the year 0.
const MONTHS_TO_1970: i64 = 1970 * 12;

/// The month of a day, counted from January 1970, and the day in it, from 1.
const fn month_of(day: i64) -> (i64, i64) {
    // From 1 March of the year 0, so that a leap day is the last of its year.
    let day = day.wrapping_add(719_468);
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era.wrapping_sub(of_era / 1_460).wrapping_add(of_era / 36_524).wrapping_sub(of_era / 146_096)) / 365;
    let of_year = of_era.wrapping_sub(year.wrapping_mul(365).wrapping_add(year / 4).wrapping_sub(year / 100));
    let from_march = of_year.wrapping_mul(5).wrapping_add(2) / 153;
    let of_month = of_year.wrapping_sub(from_march.wrapping_mul(153).wrapping_add(2) / 5).wrapping_add(1);
    let year = year.wrapping_add(era.wrapping_mul(400));
    (year.wrapping_mul(12).wrapping_add(from_march).wrapping_add(2).wrapping_sub(MONTHS_TO_1970), of_month)
}

/// The first day of a month.
const fn first_day(month: i64) -> i64 {
    let from_march = month.wrapping_add(MONTHS_TO_1970).wrapping_sub(2);
    let (year, month) = (from_march.div_euclid(12), from_march.rem_euclid(12));
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = month.wrapping_mul(153).wrapping_add(2) / 5;
    let of_era = of_era.wrapping_mul(365).wrapping_add(of_era / 4).wrapping_sub(of_era / 100).wrapping_add(of_year);
    era.wrapping_mul(146_097).wrapping_add(of_era).wrapping_sub(719_468)
}

const fn days_in(month: i64) -> i64 {
    first_day(month.wrapping_add(1)).wrapping_sub(first_day(month))
}
