//! Lengths of time as text: `250ms`, `1h 30m`, `90days`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use std::time::Duration;

use crate::limit::MAX_SPAN_MS;

/// Why a text is not a length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LengthError {
    /// Not a number with a unit, nor several of them.
    Malformed,
    /// Counted in months.
    Months,
    /// Counted in years.
    Years,
    /// Not a whole number of milliseconds.
    NotWhole,
    /// Longer than [`MAX_SPAN_MS`].
    TooLong,
}

impl LengthError {
    /// The error message: what is wrong with the text, quoted as `shown`, and what would be right.
    pub(crate) fn about(self, shown: &str) -> String {
        match self {
            Self::Malformed => {
                format!(
                    "must be a length of time such as \"90s\" or \"1h 30m\", not {shown}; units are ms, s, m, h, day, week"
                )
            }
            Self::Months => {
                format!(
                    "{shown} counts in months, which differ in length: write days, such as \"30days\" (a minute is \"m\")"
                )
            }
            Self::Years => format!("{shown} counts in years, which differ in length: write days, such as \"365days\""),
            Self::NotWhole => format!("must be whole milliseconds, not {shown}"),
            Self::TooLong => format!("{shown} is too long: at most {MAX_SPAN_MS}ms, some 71 000 years"),
        }
    }
}

/// Parses a length of time, one or more numbers with units, to milliseconds. `www/package/src/rate.ts` parses the same.
pub(crate) fn millis_of(text: &str) -> Result<u64, LengthError> {
    let mut nanos = 0_u128;
    let mut rest = text.trim();
    loop {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.' || c.is_whitespace());
        let (unit, next) = split(after, |c| c.is_ascii_alphabetic() || c == 'µ');
        nanos = nanos.saturating_add(nanos_of(number, unit_nanos(unit)?)?);
        rest = next.trim_start();
        if rest.is_empty() {
            break;
        }
    }
    if nanos.div_ceil(NANOS_PER_MS) > MAX_SPAN_MS.into() {
        return Err(LengthError::TooLong);
    }
    if !nanos.is_multiple_of(NANOS_PER_MS) {
        return Err(LengthError::NotWhole);
    }
    u64::try_from(nanos / NANOS_PER_MS).map_err(|_| LengthError::TooLong)
}

/// Formats a length as [`millis_of`] reads it: `1m 30s`, `90days 12h`.
pub(crate) fn shown(ms: u64) -> String {
    let (days, rest) = (ms / DAY_MS, humantime::format_duration(Duration::from_millis(ms % DAY_MS)));
    match (days, ms % DAY_MS) {
        (0, _) => rest.to_string(),
        (1, 0) => "1day".to_owned(),
        (1, _) => format!("1day {rest}"),
        (_, 0) => format!("{days}days"),
        _ => format!("{days}days {rest}"),
    }
}

fn split(text: &str, is_first: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_first(c)).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Result<u128, LengthError> {
    Ok(match unit {
        "ns" | "nsec" | "nanos" => 1,
        "us" | "usec" | "µs" => 1_000,
        "ms" | "msec" | "millis" => NANOS_PER_MS,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000 * NANOS_PER_MS,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000 * NANOS_PER_MS,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000 * NANOS_PER_MS,
        "d" | "day" | "days" => 86_400_000 * NANOS_PER_MS,
        "w" | "wk" | "wks" | "week" | "weeks" => 604_800_000 * NANOS_PER_MS,
        "M" | "month" | "months" => return Err(LengthError::Months),
        "y" | "yr" | "yrs" | "year" | "years" => return Err(LengthError::Years),
        _ => return Err(LengthError::Malformed),
    })
}

/// `number` may have spaces between its digits.
fn nanos_of(number: &str, unit_nanos: u128) -> Result<u128, LengthError> {
    let digits: String = number.chars().filter(|c| !c.is_whitespace()).collect();
    let (integer, decimals) = digits.split_once('.').unwrap_or((&digits, "0"));
    if integer.is_empty() || decimals.is_empty() || decimals.len() > MAX_DECIMALS || decimals.contains('.') {
        return Err(LengthError::Malformed);
    }
    let scale = decimals.bytes().fold(1_u128, |scale, _| scale.saturating_mul(10));
    let part = decimals.parse::<u128>().unwrap_or(0).saturating_mul(unit_nanos);
    if !part.is_multiple_of(scale) {
        return Err(LengthError::NotWhole);
    }
    // Only digits are left, so a parse error means overflow.
    let whole = integer.parse::<u128>().unwrap_or(u128::MAX).saturating_mul(unit_nanos);
    Ok(whole.saturating_add(part.checked_div(scale).unwrap_or(0)))
}

const NANOS_PER_MS: u128 = 1_000_000;

pub(crate) const DAY_MS: u64 = 86_400_000;

/// Scaled to nanoseconds of the longest unit, this many digits still fit.
const MAX_DECIMALS: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_and_years_are_refused_in_every_spelling_with_an_alternative() {
        for text in ["1M", "1month", "6 months", "1month 3days", "0.5M", "1h 2M"] {
            assert_eq!(millis_of(text), Err(LengthError::Months), "{text}");
        }
        for text in ["1y", "1yr", "2yrs", "1year", "71000years", "1day 1y"] {
            assert_eq!(millis_of(text), Err(LengthError::Years), "{text}");
        }
        let month = r#""1M" counts in months, which differ in length: write days, such as "30days" (a minute is "m")"#;
        assert_eq!(LengthError::Months.about("\"1M\""), month);
        let year = r#""1y" counts in years, which differ in length: write days, such as "365days""#;
        assert_eq!(LengthError::Years.about("\"1y\""), year);
    }

    #[test]
    fn every_length_up_to_the_longest_can_be_written_in_every_unit() {
        for (text, ms) in [
            ("2251799813685248ms", MAX_SPAN_MS),
            ("2251799813685.248s", MAX_SPAN_MS),
            ("2251799813685248000000ns", MAX_SPAN_MS),
            ("26062497days", 26_062_497 * DAY_MS),
            ("3723213weeks", 3_723_213 * 7 * DAY_MS),
            ("0ms", 0),
            ("1week", 7 * DAY_MS),
            ("1 h30  m", 5_400_000),
            ("1.5h", 5_400_000),
            ("1 0s", 10_000),
            ("0.0001h", 360),
        ] {
            assert_eq!(millis_of(text), Ok(ms), "{text}");
        }
        for text in [
            "2251799813685249ms",
            "2251799813685248ms 1ns",
            "26062498days",
            "99999999999999999999s",
            &format!("{}h", "9".repeat(60)),
        ] {
            assert_eq!(millis_of(text), Err(LengthError::TooLong), "{text}");
        }
        for text in ["1us", "0.0005s", "1ms 1ns"] {
            assert_eq!(millis_of(text), Err(LengthError::NotWhole), "{text}");
        }
        for text in ["", " ", "1", "s", ".5s", "1.s", "1..5s", "1.2.3s", "-1s", "1m,2s", "1Sec", "1m 30", "1é"] {
            assert_eq!(millis_of(text), Err(LengthError::Malformed), "{text}");
        }
    }

    #[test]
    fn a_length_survives_a_round_trip() {
        for (ms, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (90_500, "1m 30s 500ms"),
            (DAY_MS - 1, "23h 59m 59s 999ms"),
            (DAY_MS, "1day"),
            (DAY_MS + 3_600_000, "1day 1h"),
            (365 * DAY_MS, "365days"),
            (100 * DAY_MS + 60_000, "100days 1m"),
        ] {
            assert_eq!((shown(ms), millis_of(expected)), (expected.to_owned(), Ok(ms)));
        }
    }
}
