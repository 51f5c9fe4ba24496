//! What a limit keeps for one key: two integers.

/// The deepest debt and the fullest level, in drops: 2⁶¹. Two such levels and a refill on top still fit an `i64`.
pub(super) const MAX_DROPS: i64 = 1 << 61;

/// The state of one limit for one key. It means something only to the [`Limit`](super::Limit) that made it; a limit
/// with other numbers takes it over by [`Limit::carry`](super::Limit::carry).
///
/// The level counts drops (see [`Limit`](super::Limit)), within ±2⁶¹; below zero it is a debt. `at` is the moment in
/// Unix milliseconds up to which refills are credited, or for windows of a calendar the number of the one that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) level: i64,
    pub(super) at: i64,
}
