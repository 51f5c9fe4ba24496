//! What an isolate has counted and not yet reported to the registry.
//!
//! A report is kept until the registry has answered, and sent again with the same number: so what is lost on the way counts, and
//! counts once. What an isolate has counted since its last poll is lost with it.

use crate::metrics::{Counts, Report};

/// The counts of an isolate.
#[derive(Debug)]
pub struct Outbox {
    /// What has been counted since the last report.
    pub counts: Counts,
    since: i64,
    isolate: u64,
    /// The number of the last report.
    number: u64,
    /// The text of a report that the registry may not have.
    unconfirmed: Option<String>,
}

impl Outbox {
    /// Begins to count at `now`. `isolate` is a random number.
    #[must_use]
    pub fn new(isolate: u64, now: i64) -> Self {
        Self { counts: Counts::default(), since: now, isolate, number: 0, unconfirmed: None }
    }

    /// The text of the report to send at `now`: the last one again, if it was not [confirmed](Outbox::confirm).
    pub fn report(&mut self, now: i64) -> String {
        if let Some(report) = &self.unconfirmed {
            return report.clone();
        }
        let counts = std::mem::take(&mut self.counts);
        self.number = self.number.saturating_add(1);
        let report = Report { isolate: self.isolate, number: self.number, since: self.since, counts };
        self.since = now;
        self.unconfirmed.insert(report.to_text()).clone()
    }

    /// Records that the registry has this report.
    pub fn confirm(&mut self, report: &str) {
        self.unconfirmed.take_if(|unconfirmed| unconfirmed == report);
    }
}
