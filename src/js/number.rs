//! Between JavaScript's numbers and the core's: whole ones, exactly, or a fault.

use super::fault::Fault;
use crate::limit::MAX_TOKENS;

/// A number of tokens, a length of time in milliseconds, or a version: 0 to 2⁵³ − 1.
#[inline]
pub(super) fn u64_from_f64(name: &'static str, value: f64) -> Result<u64, Fault> {
    checked(name, value, 0, MAX_TOKENS.cast_signed()).map(i64::cast_unsigned)
}

/// A moment: ±2⁵².
#[inline]
pub(super) fn moment_from_f64(value: f64) -> Result<i64, Fault> {
    checked("now", value, -LAST_MOMENT, LAST_MOMENT)
}

/// A byte.
pub(super) fn u8_from_f64(value: f64) -> Option<u8> {
    whole(value).and_then(|whole| u8::try_from(whole).ok())
}

#[inline]
fn checked(name: &'static str, value: f64, min: i64, max: i64) -> Result<i64, Fault> {
    whole(value).filter(|whole| (min..=max).contains(whole)).ok_or(Fault::Number {
        name,
        given: value,
        min: f64_from_i64(min),
        max: f64_from_i64(max),
    })
}

/// The whole number that `value` is, if it is one and an `i64` holds it.
#[inline]
fn whole(value: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "a value that this changes is refused")]
    let whole = value as i64; // saturates, and makes 0 of NaN
    #[expect(clippy::float_cmp, reason = "equal or refused")]
    (f64_from_i64(whole) == value).then_some(whole)
}

/// Exact to ±2⁵³.
#[expect(clippy::cast_precision_loss, reason = "none to ±2⁵³")]
#[inline]
pub(super) const fn f64_from_i64(value: i64) -> f64 {
    value as f64
}

/// Exact to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "none to 2⁵³")]
#[inline]
pub(super) const fn f64_from_u64(value: u64) -> f64 {
    value as f64
}

/// The core's answers are exact about moments this far from the epoch, and lie no further from it than 2⁵³.
const LAST_MOMENT: i64 = 1 << 52;

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_53: f64 = 9_007_199_254_740_992.0;

    #[test]
    fn whole_numbers_come_through_exactly() {
        for (value, whole) in [(0.0, 0), (-0.0, 0), (1.0, 1), (TWO_53 - 1.0, MAX_TOKENS)] {
            assert_eq!(u64_from_f64("cost", value), Ok(whole), "{value}");
        }
        for (value, moment) in [(-TWO_53 / 2.0, -(1 << 52)), (-1.0, -1), (0.0, 0), (TWO_53 / 2.0, 1 << 52)] {
            assert_eq!(moment_from_f64(value), Ok(moment), "{value}");
        }
    }

    #[test]
    fn all_others_are_refused_with_what_could_be() {
        let others = [f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, -1.0, 1.5, 1e300, TWO_53];
        for given in others {
            let fault = Fault::Number { name: "cost", given, min: 0.0, max: TWO_53 - 1.0 };
            assert_eq!(u64_from_f64("cost", given), Err(fault), "{given}");
        }
        for given in [f64::INFINITY, 0.5, -0.5, TWO_53 / 2.0 + 1.0, -TWO_53 / 2.0 - 1.0, 2_f64.powi(63)] {
            let fault = Fault::Number { name: "now", given, min: -TWO_53 / 2.0, max: TWO_53 / 2.0 };
            assert_eq!(moment_from_f64(given), Err(fault), "{given}");
        }
        // NaN equals nothing, itself included.
        assert!(matches!(u64_from_f64("cost", f64::NAN), Err(Fault::Number { given, .. }) if given.is_nan()));
        assert!(moment_from_f64(f64::NAN).is_err());
    }
}
