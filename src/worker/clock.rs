//! The server's clock: the only place that reads one.

/// The current time in Unix milliseconds. On Workers it stands still between I/O operations, and is updated for every request that an
/// object receives.
pub(super) fn now() -> i64 {
    at(wall_clock())
}

/// The current time when the wall clock shows `wall_clock`: the same, unless a test has set another.
#[cfg(not(feature = "test-clock"))]
pub(super) const fn at(wall_clock: i64) -> i64 {
    wall_clock
}

#[cfg(feature = "test-clock")]
pub(super) fn at(wall_clock: i64) -> i64 {
    match TEST_NOW.load(Ordering::Relaxed) {
        WALL_CLOCK => wall_clock,
        now => now,
    }
}

/// The wall-clock time that is as far away as `at` is from [`now`]: for alarms.
#[expect(clippy::cast_precision_loss, reason = "moments are below 2⁵³")]
pub(super) fn wall_clock_at(at: i64) -> f64 {
    #[cfg(feature = "test-clock")]
    let at = at.saturating_sub(now()).saturating_add(wall_clock());
    at as f64
}

/// The wall clock's time, for timeouts.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
#[expect(clippy::cast_possible_truncation, reason = "whole milliseconds, and below 2⁵³")]
pub(super) fn wall_clock() -> i64 {
    js_sys::Date::now() as i64
}

#[cfg(feature = "test-clock")]
use std::sync::atomic::{AtomicI64, Ordering};

/// The header with which a test sets the clock, for this request and for later ones without it.
#[cfg(feature = "test-clock")]
const TEST_NOW_HEADER: &str = "x-tollgate-test-now";

#[cfg(feature = "test-clock")]
const WALL_CLOCK: i64 = i64::MIN;

/// Shared by the frontend and the objects, because tests run them in one isolate.
#[cfg(feature = "test-clock")]
static TEST_NOW: AtomicI64 = AtomicI64::new(WALL_CLOCK);

/// Sets the clock from a request's `headers`. Panics if the value is not a moment, to test panics.
#[cfg(feature = "test-clock")]
#[expect(clippy::panic, reason = "in tests only")]
pub(super) fn set_by(headers: &worker::web_sys::Headers) {
    if let Ok(Some(value)) = headers.get(TEST_NOW_HEADER) {
        let Ok(now) = value.parse() else { panic!("{value:?} is not a moment") };
        TEST_NOW.store(now, Ordering::Relaxed);
    }
}
