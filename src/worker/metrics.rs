//! What this isolate counts: all of its frontends together.

use std::cell::RefCell;

use super::clock;
use super::frontend::random;
use crate::edge::Outbox;
use crate::metrics::{Counts, Report, Totals};

/// Counts something.
pub(super) fn count(step: impl FnOnce(&mut Counts)) {
    OUTBOX.with_borrow_mut(|outbox| step(&mut outbox.counts));
}

/// The report to send to the registry.
pub(super) fn report() -> String {
    OUTBOX.with_borrow_mut(|outbox| outbox.report(clock::now()))
}

/// Records that the registry has it.
pub(super) fn confirm(report: &str) {
    OUTBOX.with_borrow_mut(|outbox| outbox.confirm(report));
}

/// Without a registry: what this isolate alone has counted.
pub(super) fn own<T>(step: impl FnOnce(&mut Totals, i64) -> T) -> T {
    let (report, now) = (report(), clock::now());
    OWN.with_borrow_mut(|totals| {
        if let Some(report) = Report::from_text(&report) {
            totals.add(report, now);
        }
        confirm(&report);
        step(totals, now)
    })
}

thread_local! {
    static OUTBOX: RefCell<Outbox> = RefCell::new(Outbox::new(random().unwrap_or_default(), clock::now()));
    static OWN: RefCell<Totals> = RefCell::new(Totals::new(clock::now()));
}
