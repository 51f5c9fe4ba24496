//! The moments in a grant: seconds since 1970, with an optional fraction, RFC 7519 §2.

use crate::json::Json;

/// The first whole millisecond at or after the moment in `json`, exact in any notation. A moment is reached, and passed, in that
/// millisecond. `None` if it is not a number. Moments out of range saturate.
pub(super) fn millis_of_numeric_date(json: Json<'_>) -> Option<i64> {
    let text = json.raw();
    if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_negative = integer.starts_with('-');
    let digits = [integer.trim_start_matches('-'), fraction].concat();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    // digits × 10^shift milliseconds
    let fraction_len = i64::try_from(fraction.len()).ok()?;
    let shift = exponent.parse::<i64>().ok()?.checked_add(3)?.checked_sub(fraction_len)?;
    let whole_len = i64::try_from(digits.len()).ok()?.checked_add(shift)?;
    if whole_len > MAX_DIGITS {
        return Some(if is_negative { i64::MIN } else { i64::MAX });
    }
    let (whole, rest) = digits.split_at_checked(usize::try_from(whole_len).unwrap_or(0)).unwrap_or((digits, ""));
    let zeros = usize::try_from(shift).unwrap_or(0);
    let whole: i64 = format!("0{whole}{}", "0".repeat(zeros)).parse().ok()?;
    let has_rest = rest.bytes().any(|digit| digit != b'0');
    Some(if is_negative { whole.saturating_neg() } else { whole.saturating_add(i64::from(has_rest)) })
}

/// Of any `i64`: 30 million years in milliseconds.
const MAX_DIGITS: i64 = 18;

#[cfg(test)]
mod tests {
    use num_bigint::BigInt;
    use num_rational::BigRational;
    use proptest::prelude::*;

    use super::*;

    fn millis(text: &str) -> Option<i64> {
        millis_of_numeric_date(Json::parse(text).unwrap())
    }

    #[test]
    fn a_moment_is_exact_in_every_notation() {
        for (written, expected) in [
            ("0", 0),
            ("-0", 0),
            ("0.000", 0),
            ("0e99999999999999999999", 0),
            ("1700000000", 1_700_000_000_000),
            ("1700000000.0", 1_700_000_000_000),
            ("1.7e9", 1_700_000_000_000),
            ("17E+8", 1_700_000_000_000),
            ("1700000000.001", 1_700_000_000_001),
            ("1700000000.0010", 1_700_000_000_001),
            ("1700000000.0011", 1_700_000_000_002), // reached in the next millisecond
            ("1700000000.000000000000000000001", 1_700_000_000_001),
            ("1e-3", 1),
            ("1e-30", 1),
            ("-1e-30", 0),
            ("-1.0015", -1_001),
            ("-1", -1_000),
            ("999999999999999.999", 999_999_999_999_999_999),
            ("1000000000000000", i64::MAX), // 19 digits
            ("9e999", i64::MAX),
            ("-9e999", i64::MIN),
        ] {
            assert_eq!(millis(written), Some(expected), "{written}");
        }
    }

    #[test]
    fn nothing_else_is_a_moment() {
        for written in ["\"1700000000\"", "null", "true", "[1]", "{}", "1e9999999999999999999"] {
            assert_eq!(millis(written), None, "{written}");
        }
    }

    proptest! {
        #![proptest_config(crate::chance::config(256))]

        #[test]
        fn is_the_ceiling_of_the_rational_number(
            sign in prop::sample::select(vec!["", "-"]),
            integer in 0_u64..3_000_000_000,
            fraction in prop::option::of("[0-9]{1,8}"),
            exponent in prop::option::of(-12_i32..6),
        ) {
            let point = fraction.as_ref().map(|digits| format!(".{digits}")).unwrap_or_default();
            let e = exponent.map(|exponent| format!("e{exponent}")).unwrap_or_default();
            let ten = BigRational::from(BigInt::from(10));
            let digits = format!("{sign}{integer}{}", fraction.as_deref().unwrap_or_default());
            let digits = BigRational::from(digits.parse::<BigInt>().unwrap());
            let fraction_len = i32::try_from(fraction.map_or(0, |digits| digits.len())).unwrap();
            let exact = digits * ten.pow(exponent.unwrap_or(0) + 3 - fraction_len);
            let expected = i64::try_from(exact.ceil().to_integer()).ok();
            let actual = millis(&format!("{sign}{integer}{point}{e}"));
            prop_assert_eq!(actual, expected);
        }
    }
}
