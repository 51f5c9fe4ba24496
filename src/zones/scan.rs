//! A zone's offsets, from samples of its clocks.

/// The offsets of a zone from 2020 to 2040, found by sampling every two weeks; `None` if there is no such zone. It takes
/// some 1200 samples, and may miss what holds for less than two weeks.
pub(crate) fn scanned(mut offset_at: impl FnMut(i64) -> Option<i32>) -> Option<Vec<(i64, i32)>> {
    let mut at = FROM;
    let mut offset = offset_at(at)?;
    let mut offsets = vec![(at, offset)];
    while at < UNTIL {
        let mut next = at.saturating_add(STEP_MS);
        if offset_at(next)? != offset {
            // It has changed after `at`, and at `next` at the latest.
            while next.saturating_sub(at) > CHANGE_MS {
                let minutes = next.saturating_sub(at) / CHANGE_MS / 2;
                let between = at.saturating_add(minutes.saturating_mul(CHANGE_MS));
                if offset_at(between)? == offset { at = between } else { next = between }
            }
            offset = offset_at(next)?;
            offsets.push((next, offset));
        }
        at = next;
    }
    Some(offsets)
}

/// The offset in a moment that JavaScript's `Intl` has formatted in English with `timeZoneName: "longOffset"`, in seconds: `…GMT`, `…GMT-03:00`.
pub(crate) fn offset_in(text: &str) -> Option<i32> {
    let (_, offset) = text.rsplit_once("GMT")?;
    if offset.is_empty() {
        return Some(0);
    }
    let (sign, digits) = match offset.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let mut seconds = 0_i32;
    for (part, unit) in digits.split(':').zip([3_600, 60, 1]) {
        seconds = seconds.checked_add(part.parse::<i32>().ok()?.checked_mul(unit)?)?;
    }
    seconds.checked_mul(sign)
}

/// 1 January 2020 and 2040. In October 2040, Gaza is to have summer time for a week.
const FROM: i64 = 1_577_836_800_000;
const UNTIL: i64 = 2_208_988_800_000;

/// Shorter than any time since 2020 between two changes of a zone: some go back to their standard time for Ramadan.
const STEP_MS: i64 = 14 * 24 * 3_600_000;

/// Clocks change on the minute, mostly on the hour.
const CHANGE_MS: i64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_read_from_what_intl_says() {
        for (text, seconds) in [
            ("12/31/1969, GMT-03:00", Some(-10_800)),
            ("1/1/1970, GMT+05:45", Some(20_700)),
            ("1/1/1970, GMT-00:44:30", Some(-2_670)),
            ("1/1/1970, GMT", Some(0)),
            ("1/1/1970", None),
            ("1/1/1970, GMT3", None),
            ("1/1/1970, GMT+x", None),
            ("", None),
        ] {
            assert_eq!(offset_in(text), seconds, "{text}");
        }
    }

    #[cfg(feature = "zones")]
    #[test]
    fn scanning_finds_all_changes_of_all_zones() {
        use jiff::Timestamp;
        use jiff::tz::{self, TimeZone};

        for name in tz::db().available() {
            let zone = TimeZone::get(name.as_str()).unwrap();
            let offset_at = |ms| Some(zone.to_offset(Timestamp::from_millisecond(ms).unwrap()).seconds());
            let scanned = scanned(offset_at).unwrap();
            let known = crate::zones::with_jiff::found(name.as_str()).unwrap().offsets;
            let later = known.iter().filter(|(at, _)| (FROM + 1..UNTIL).contains(at)).copied();
            // What changes a name and not the offset is no change here.
            let mut expected = vec![(FROM, offset_at(FROM).unwrap())];
            for change in later {
                if expected.last().unwrap().1 != change.1 {
                    expected.push(change);
                }
            }
            let scanned: Vec<_> = scanned.into_iter().filter(|(at, _)| *at < UNTIL).collect();
            assert_eq!(scanned, expected, "{}", name.as_str());
        }
    }
}
