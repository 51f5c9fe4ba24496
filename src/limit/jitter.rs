//! Spreading retries, so that clients refused together do not come back together.

use core::time::Duration;

/// Moves `retry_at` later by 0 to `spread`, in whole milliseconds; never earlier, which would break its promise. `random` is 64 random
/// bits; every millisecond of the spread is equally likely to within 2⁻⁶⁴ times their number. Multiplying instead of taking
/// a remainder is Lemire's, "Fast Random Integer Generation in an Interval" (2019).
///
/// ```
/// use std::time::Duration;
///
/// use tollgate::limit::jitter;
///
/// let spread = Duration::from_millis(500);
/// assert_eq!(jitter(1_000, spread, 0), 1_000);
/// assert_eq!(jitter(1_000, spread, u64::MAX), 1_500);
/// assert_eq!(jitter(1_000, spread, u64::MAX / 2), 1_250);
/// ```
#[must_use]
pub fn jitter(retry_at: i64, spread: Duration, random: u64) -> i64 {
    let spread_ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX);
    let choices = u128::from(spread_ms).saturating_add(1);
    let later_ms = u128::from(random).saturating_mul(choices) >> 64;
    retry_at.saturating_add_unsigned(u64::try_from(later_ms).unwrap_or(spread_ms)) // at most spread_ms
}
