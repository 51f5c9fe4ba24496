//! Cloudflare's billed quantities, and their prices.

use std::ops::AddAssign;

/// The quantities used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Callers' requests.
    pub(crate) decisions: u64,
    /// Refused requests.
    pub(crate) refused: u64,
    /// Object calls.
    pub(crate) calls: u64,
    /// Their alarms, each billed as a request.
    pub(crate) alarms: u64,
    pub(crate) rows_read: u64,
    /// Deletions and alarms that are set count as rows written.
    pub(crate) rows_written: u64,
    /// How long objects were working, or kept awake by a timer.
    pub(crate) awake_ms: u64,
}

/// Prices in dollars for a million, without what a plan includes: developers.cloudflare.com/durable-objects/platform/pricing,
/// read in November 2026.
const REQUESTS: f64 = 0.15;
const ROWS_READ: f64 = 0.001;
const ROWS_WRITTEN: f64 = 1.0;
/// Of gigabyte-seconds.
const DURATION: f64 = 12.5;
/// An object is billed for this much memory, whatever it uses.
const GIGABYTES: f64 = 0.128;

impl Usage {
    /// Dollars for a million decisions, beside the Worker's own requests.
    pub(crate) fn price(&self) -> f64 {
        self.price_without_rows()
            + self.per(self.rows_read, 1.0) * ROWS_READ
            + self.per(self.rows_written, 1.0) * ROWS_WRITTEN
    }

    /// The part for calls and the objects' time. In an attack the rows belong to the granted requests.
    pub(crate) fn price_without_rows(&self) -> f64 {
        let each = |count: u64, price: f64| self.per(count, 1.0) * price;
        each(self.calls + self.alarms, REQUESTS) + each(self.awake_ms, DURATION * GIGABYTES / 1_000.0)
    }

    /// The number of these per this many decisions.
    pub(crate) fn per(&self, count: u64, decisions: f64) -> f64 {
        count as f64 / self.decisions.max(1) as f64 * decisions
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.refused += other.refused;
        self.calls += other.calls;
        self.alarms += other.alarms;
        self.rows_read += other.rows_read;
        self.rows_written += other.rows_written;
        self.awake_ms += other.awake_ms;
    }
}
