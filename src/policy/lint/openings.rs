//! How close together and how far apart a calendar's windows open: days have 23 to 25 hours, months 28 to 31 days. Tried from each window of
//! eight years, after which leap years and most changes of clocks repeat.

use std::collections::VecDeque;
use std::iter::successors;

use crate::limit::Calendar;

/// 1 January 2024 and 2032.
const FROM: i64 = 1_704_067_200_000;
const UNTIL: i64 = 1_956_528_000_000;

/// Longer spans are counted as several of this one, some 32 years.
const MAX_SPAN_MS: u64 = 1 << 40;

/// Maximum windows that are followed one by one: 32 years of days. More count as the longest each.
const MAX_WINDOWS: u64 = 11_688;

/// The most windows that open within `span_ms`, of which the first opens a millisecond after the span has begun.
pub(super) fn most_within(calendar: &Calendar, span_ms: u64) -> u128 {
    let (spans, span_ms) = (span_ms.div_ceil(MAX_SPAN_MS).max(1), span_ms.min(MAX_SPAN_MS));
    let mut within = VecDeque::new();
    let mut most = 0;
    for at in openings(calendar) {
        within.push_back(at);
        while within.front().is_some_and(|first| at.abs_diff(*first) >= span_ms) {
            within.pop_front();
        }
        most = most.max(within.len());
        if within.front().is_none_or(|first| *first > UNTIL) {
            break;
        }
    }
    (most as u128).saturating_mul(spans.into())
}

/// The longest time in which this many windows open one after the other, from one opening to the last, in milliseconds.
pub(super) fn longest_ms(calendar: &Calendar, windows: u64) -> u64 {
    if windows > MAX_WINDOWS {
        return windows.saturating_mul(calendar.longest_ms());
    }
    let mut longest = 0;
    let mut later = openings(calendar).skip(usize::try_from(windows).unwrap_or(usize::MAX));
    for from in openings(calendar).take_while(|at| *at <= UNTIL) {
        longest = longest.max(later.next().map_or(0, |at| at.abs_diff(from)));
    }
    longest
}

fn openings(calendar: &Calendar) -> impl Iterator<Item = i64> {
    successors(Some(calendar.window(FROM).1), |at| Some(calendar.window(*at).1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Zone;

    const HOUR_MS: u64 = 3_600_000;
    const DAY_MS: u64 = 24 * HOUR_MS;

    #[test]
    fn the_worst_span_has_the_shortest_windows() {
        let (day, month) = (Calendar::day(&Zone::UTC), Calendar::month(&Zone::UTC, 1).unwrap());
        for (calendar, span_ms, most) in [
            (day, 0, 0),
            (day, 1, 1),
            (day, DAY_MS, 1),
            (day, DAY_MS + 1, 2),
            (day, 31 * DAY_MS, 31),
            (month, 28 * DAY_MS, 1),
            (month, 28 * DAY_MS + 1, 2), // February
            (month, 59 * DAY_MS, 2),
            (month, 59 * DAY_MS + 1, 3),
            (month, 366 * DAY_MS, 13),
            (month, 365 * DAY_MS, 12),
        ] {
            assert_eq!(most_within(&calendar, span_ms), most, "{calendar} in {span_ms}");
        }
        for (calendar, windows, days) in [
            (day, 0, 0),
            (day, 7, 7),
            (month, 1, 31),
            (month, 2, 62),
            (Calendar::month(&Zone::UTC, 31).unwrap(), 1, 31),
            (Calendar::quarter(&Zone::UTC, 1, 1).unwrap(), 1, 92),
            (Calendar::year(&Zone::UTC, 4, 6).unwrap(), 4, 1_461),
            (day, 20_000, 20_000),
        ] {
            assert_eq!(longest_ms(&calendar, windows), days * DAY_MS, "{windows} of {calendar}");
        }
    }

    #[cfg(feature = "zones")]
    #[test]
    fn clocks_that_change_make_days_shorter_and_longer() {
        let day = |zone| Calendar::day(Zone::named(zone).unwrap());
        for (zone, shortest, longest) in
            [("Europe/London", 23, 25), ("America/Sao_Paulo", 24, 24), ("Antarctica/Troll", 22, 26)]
        {
            let (calendar, shortest_ms) = (day(zone), shortest * HOUR_MS);
            assert_eq!(most_within(&calendar, shortest_ms), 1, "{zone}");
            assert_eq!(most_within(&calendar, shortest_ms + 1), 2, "{zone}");
            assert_eq!(longest_ms(&calendar, 1), longest * HOUR_MS, "{zone}");
        }
    }
}
