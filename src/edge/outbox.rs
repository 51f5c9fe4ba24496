//! What an isolate has counted and not yet reported to the registry.
//!
//! A report is kept until the registry confirms it, and resent with the same number, so a lost report still counts, and only once. Counts
//! since an isolate's last poll are lost with the isolate.

use crate::metrics::{Counts, Report};

/// The counts of an isolate.
#[derive(Debug, Default)]
pub struct Outbox {
    /// What has been counted since the last report.
    pub counts: Counts,
    since: Option<i64>,
    /// A random number, set with the first report.
    isolate: Option<u64>,
    /// The number of the last report.
    number: u64,
    /// The text of a report that the registry may not have.
    unconfirmed: Option<String>,
}

impl Outbox {
    /// Starts counting at `now`, unless started.
    pub fn begin(&mut self, now: i64) {
        self.since.get_or_insert(now);
    }

    /// The text of the report to send at `now`: the last one again, unless [confirmed](Outbox::confirm). `None` without a source of
    /// randomness, which distinguishes isolates.
    pub fn report(&mut self, now: i64, random: impl FnOnce() -> Option<u64>) -> Option<String> {
        if let Some(report) = &self.unconfirmed {
            return Some(report.clone());
        }
        let isolate = self.isolate.or_else(random)?;
        self.isolate = Some(isolate);
        let counts = std::mem::take(&mut self.counts);
        self.number = self.number.saturating_add(1);
        let report = Report { isolate, number: self.number, since: self.since.unwrap_or(now), counts };
        self.since = Some(now);
        Some(self.unconfirmed.insert(report.to_text()).clone())
    }

    /// Records that the registry received this report.
    pub fn confirm(&mut self, report: &str) {
        self.unconfirmed.take_if(|unconfirmed| unconfirmed == report);
    }
}
