//! What an isolate has counted and not yet reported to the registry.
//!
//! A report is kept until the registry has answered, and sent again with the same number: so what is lost on the way counts, and
//! counts once. What an isolate has counted since its last poll is lost with it.

use crate::metrics::{Counts, Report};

/// The counts of an isolate.
#[derive(Debug, Default)]
pub struct Outbox {
    /// What has been counted since the last report.
    pub counts: Counts,
    since: Option<i64>,
    /// A random number, once there was a report.
    isolate: Option<u64>,
    /// The number of the last report.
    number: u64,
    /// The text of a report that the registry may not have.
    unconfirmed: Option<String>,
}

impl Outbox {
    /// Begins to count at `now`, unless it has begun.
    pub fn begin(&mut self, now: i64) {
        self.since.get_or_insert(now);
    }

    /// The text of the report to send at `now`: the last one again, if it was not [confirmed](Outbox::confirm). `None` without a source of
    /// randomness, by which isolates are told apart.
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

    /// Records that the registry has this report.
    pub fn confirm(&mut self, report: &str) {
        self.unconfirmed.take_if(|unconfirmed| unconfirmed == report);
    }
}
