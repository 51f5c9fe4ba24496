//! Conversions between JavaScript's numbers and the core's. JavaScript would pass a `u64` as a `BigInt`, which
//! allocates.

/// Exact for whole numbers within ±2⁵³.
#[expect(clippy::cast_possible_truncation, reason = "none to ±2⁵³; saturates beyond")]
#[inline]
pub(super) const fn i64_from_f64(value: f64) -> i64 {
    value as i64
}

/// Exact for whole numbers from 0 to 2⁵³; infinity is 2⁶³ − 1. Through `i64`, which takes one instruction where `u64` takes several.
#[inline]
pub(super) const fn u64_from_f64(value: f64) -> u64 {
    i64_from_f64(value).cast_unsigned()
}

/// Exact within ±2⁵³.
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
