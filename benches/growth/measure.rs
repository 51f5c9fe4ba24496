//! Time per operation, and bytes.

use std::time::{Duration, Instant};

use crate::counting;

/// The duration of a call.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let result = work();
    (began.elapsed(), result)
}

/// Nanoseconds per item.
pub(crate) fn nanos_each(took: Duration, count: usize) -> f64 {
    took.as_secs_f64() * 1e9 / count as f64
}

/// The fastest of several runs, each of `count` operations, in nanoseconds for one: other programs slow the rest down.
pub(crate) fn least_nanos(count: usize, mut run: impl FnMut()) -> f64 {
    let runs = (0..RUNS).map(|_| nanos_each(timed(&mut run).0, count));
    runs.fold(f64::INFINITY, f64::min)
}

const RUNS: usize = 9;

/// The result of a call, and the bytes that it keeps.
pub(crate) fn weighed<T>(make: impl FnOnce() -> T) -> (i64, T) {
    let before = counting::live_bytes();
    let result = make();
    (counting::live_bytes() - before, result)
}

/// A table's title and head.
pub(crate) fn head(title: &str, columns: &[&str]) {
    println!("\n{title}");
    line("", columns.iter().map(ToString::to_string));
}

/// A row of it.
pub(crate) fn line(name: &str, cells: impl IntoIterator<Item = String>) {
    print!("{name:>12}");
    for cell in cells {
        print!("{cell:>24}");
    }
    println!();
}
