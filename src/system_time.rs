//! Converts the standard library's time to Tollgate's.

use std::time::{SystemTime, UNIX_EPOCH};

/// `time` in Unix milliseconds, rounded down; negative before 1970. Saturates outside the range of `i64`.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
///
/// assert_eq!(tollgate::unix_ms(UNIX_EPOCH + Duration::from_micros(1_999)), 1);
/// assert_eq!(tollgate::unix_ms(UNIX_EPOCH - Duration::from_micros(1)), -1);
/// ```
#[must_use]
pub fn unix_ms(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
        Err(before) => {
            let ms = before.duration().as_nanos().div_ceil(1_000_000);
            i64::try_from(ms).map_or(i64::MIN, i64::wrapping_neg)
        }
    }
}
