//! The server's clock: the only place that reads one.

/// The moment in Unix milliseconds. On Workers it stands still between two I/O operations and is set anew for every
/// request that an object receives.
#[cfg(not(feature = "test-clock"))]
pub(super) fn now() -> i64 {
    wall_clock()
}

/// The moment that a test has set, or else the wall clock's.
#[cfg(feature = "test-clock")]
pub(super) fn now() -> i64 {
    match TEST_NOW.load(Ordering::Relaxed) {
        WALL_CLOCK => wall_clock(),
        now => now,
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
#[expect(clippy::cast_possible_truncation, reason = "whole milliseconds, and below 2⁵³")]
fn wall_clock() -> i64 {
    js_sys::Date::now() as i64
}

#[cfg(feature = "test-clock")]
use std::sync::atomic::{AtomicI64, Ordering};

/// The header by which a test sets the clock for its request, and for those after it without one.
#[cfg(feature = "test-clock")]
const TEST_NOW_HEADER: &str = "x-tollgate-test-now";

#[cfg(feature = "test-clock")]
const WALL_CLOCK: i64 = i64::MIN;

/// Front and objects share it, as they run in one isolate where tests run.
#[cfg(feature = "test-clock")]
static TEST_NOW: AtomicI64 = AtomicI64::new(WALL_CLOCK);

/// Sets the clock as `request` asks.
#[cfg(feature = "test-clock")]
pub(super) fn set_by(request: &worker::Request) {
    let header = request.headers().get(TEST_NOW_HEADER).ok().flatten();
    if let Some(now) = header.and_then(|value| value.parse().ok()) {
        TEST_NOW.store(now, Ordering::Relaxed);
    }
}
