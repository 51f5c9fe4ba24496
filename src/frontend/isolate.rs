//! State shared by all frontends of an isolate: counters, live listeners, deliveries of notices, last known shard levels and request ids.

use std::cell::{Cell, RefCell};
use std::fmt;

use super::event::{Budget, Event};
use super::{Now, Random};
use crate::edge::{Attempt, Deliveries, Outbox, Receiver, ShardLevels, Tap};
use crate::metrics::{Counts, DecidedBy, LiveDecision, NoticeOutcome, Outcome, Report, Totals};

/// State shared by all frontends of an isolate.
#[derive(Default)]
pub struct Isolate {
    outbox: RefCell<Outbox>,
    /// Totals where there is no registry, from the first request for them.
    own: RefCell<Option<Totals>>,
    tap: RefCell<Tap>,
    deliveries: RefCell<Deliveries>,
    pub(super) shard_levels: RefCell<ShardLevels>,
    /// The random first half of request ids, and the number of ids so far.
    request_ids: Cell<(Option<u64>, u64)>,
}

/// What requests are answered by; what is only counted or passed to listeners is left out.
impl fmt::Debug for Isolate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outbox: _, own: _, tap: _, deliveries: _, shard_levels, request_ids } = self;
        f.debug_tuple("Isolate").field(&(shard_levels, request_ids)).finish()
    }
}

impl Isolate {
    /// Starts counting at `now`, unless started. Randomness is first used for the first report: a frontend may be created where there is no
    /// source of it yet.
    pub(super) fn begin(&self, now: Now) {
        self.outbox.borrow_mut().begin(now.at);
    }

    /// Adds to the counters.
    pub fn count(&self, step: impl FnOnce(&mut Counts)) {
        step(&mut self.outbox.borrow_mut().counts);
    }

    /// The report to send to the registry; `None` without a source of randomness.
    pub fn report(&self, now: Now, random: Random<'_>) -> Option<String> {
        self.outbox.borrow_mut().report(now.at, random)
    }

    /// Records that the registry received the report.
    pub fn confirm(&self, report: &str) {
        self.outbox.borrow_mut().confirm(report);
    }

    /// Without a registry: what only this isolate has counted.
    pub(super) fn own<T>(&self, now: Now, random: Random<'_>, step: impl FnOnce(&mut Totals) -> T) -> T {
        let report = self.report(now, random).unwrap_or_default();
        let mut own = self.own.borrow_mut();
        let totals = own.get_or_insert_with(|| Totals::new(now.at));
        if let Some(report) = Report::from_text(&report) {
            totals.add(report, now.at);
        }
        self.confirm(&report);
        step(totals)
    }

    /// Decisions waiting for live listeners.
    pub fn tap<T>(&self, step: impl FnOnce(&mut Tap) -> T) -> T {
        step(&mut self.tap.borrow_mut())
    }

    /// Starts to deliver a notice: see [`Deliveries::begin`].
    pub fn deliver(&self, to: Receiver, now: Now) -> Option<u32> {
        let begun = self.deliveries.borrow_mut().begin(to, now.waiting);
        if begun.is_none() {
            self.count(|counts| counts.noticed(NoticeOutcome::Dropped));
        }
        begun
    }

    /// Records the last of this many `attempts` to deliver a notice; one begun by another instance has no number. Returns the milliseconds
    /// before the next attempt; `None` if there is none.
    pub fn attempted(&self, number: Option<u32>, attempts: usize, attempt: Attempt<'_>) -> Option<u32> {
        let mut deliveries = self.deliveries.borrow_mut();
        let (outcome, pause_ms) = if let Some(reason) = attempt.failure() {
            (NoticeOutcome::Failed, deliveries.failed(number, attempts, &reason))
        } else {
            deliveries.arrived(number);
            (NoticeOutcome::Delivered, None)
        };
        if pause_ms.is_none() {
            self.count(|counts| counts.noticed(outcome));
        }
        pause_ms
    }

    /// The line to log about lost notices: see [`Deliveries::loss_line`].
    pub fn notices_lost(&self, now: Now) -> Option<String> {
        self.deliveries.borrow_mut().loss_line(now.waiting)
    }

    /// Updates the listeners from the registry's answer to a poll.
    pub(super) fn on_listeners(&self, listeners: Option<&str>, now: Now) {
        let mut tap = self.tap.borrow_mut();
        if listeners.is_some() || tap.has_listeners() {
            tap.on_listeners(listeners, now.at);
        }
    }

    /// Counts an event, and keeps it if live listeners want it.
    pub(super) fn on(&self, event: Event<'_>) {
        self.count(|counts| count(counts, event));
        let mut tap = self.tap.borrow_mut();
        if let Event::Budget(Budget { decision, is_counted: true, .. }) = event
            && tap.has_listeners()
            && tap.wants(decision.policy, decision.outcome, decision.at)
        {
            tap.add(decision);
        }
    }

    /// A unique request id: a random half and a counter.
    pub(super) fn next_id(&self, random: Random<'_>) -> Option<u128> {
        let (half, count) = self.request_ids.get();
        let half = half.or_else(random)?;
        self.request_ids.set((Some(half), count.wrapping_add(1)));
        Some((u128::from(half) << 64) | u128::from(count))
    }
}

fn count(counts: &mut Counts, event: Event<'_>) {
    let budget = match event {
        Event::Degraded(cause) => return counts.degraded(cause),
        Event::Unavailable(cause) => return counts.unavailable(cause),
        Event::Budget(budget) if budget.is_counted => budget,
        Event::Budget(_) => return,
    };
    let LiveDecision { policy, outcome, source, object, is_refused_in_shadow, .. } = budget.decision;
    counts.decided(policy, outcome, is_refused_in_shadow);
    match source {
        DecidedBy::Cache => counts.remembered(policy),
        DecidedBy::Lease => counts.leased(policy),
        DecidedBy::Object | DecidedBy::Frontend => {}
    }
    if let (Outcome::Refused | Outcome::Never | Outcome::Banned, Some(key)) = (outcome, object) {
        counts.refused(policy, u128::from_str_radix(key, 16).unwrap_or_default(), || budget.key_prefix());
    }
}
