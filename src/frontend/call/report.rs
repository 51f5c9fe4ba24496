//! What a request reports besides its reply.

use super::super::Now;
use super::super::event::{Budget, Event};
use super::asked::{Asked, Terms};
use super::plan::Plan;
use crate::access::key_hash_in;
use crate::api::{Notice, Tally};
use crate::edge::Outcome;
use crate::metrics::{DecidedBy, Outcome as BudgetOutcome, Word};
use crate::policy::Cause;

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Decided by the objects.
    Decided,
    /// Let pass without a decision.
    Degraded(Cause),
    /// Answered with an error.
    Unavailable(Cause),
}

/// Emits the events of a request that ended with `end`.
pub(super) fn events<'a>(asked: &'a Asked, plan: &'a Plan, end: End, now: Now, on: &mut dyn FnMut(Event<'_>)) {
    let undecided = match end {
        End::Decided => None,
        End::Degraded(cause) => Some((Event::Degraded(cause), BudgetOutcome::Degraded, cause)),
        End::Unavailable(cause) => Some((Event::Unavailable(cause), BudgetOutcome::Unavailable, cause)),
    };
    if let Some((event, ..)) = undecided {
        on(event);
    }
    let takes = asked.whole.takes();
    if !takes && !asked.whole.may_notify() {
        return;
    }
    let shards = asked.of_shards.as_ref().map(|_| plan.objects.len());
    let mut on_budget = |tally: Tally<'a>| {
        let key = plan.objects.get(tally.object).map(|object| key_hash_in(&object.name));
        on(Event::Budget(&Budget::of(tally, takes, now.at, plan.decided_by, (key, shards))));
    };
    if let Some((_, outcome, cause)) = undecided {
        asked.whole.tally_undecided(outcome, cause, &mut on_budget);
    } else if let Some(Outcome::Decided(replies)) = plan.calls.outcome() {
        let objects = plan.objects.iter().map(|object| &*object.items);
        asked.whole.tally(objects.zip(replies), on_budget);
    }
}

/// A decision for a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The name that the policy is counted under: the point's index.
    pub policy: String,
    outcome: BudgetOutcome,
    source: DecidedBy,
    /// The largest requested cost.
    pub cost: u64,
    /// How long the request took.
    pub took_ms: u64,
}

impl Point {
    /// The texts of the point: policy, outcome, where it was decided, and the location that received the request.
    #[must_use]
    pub fn blobs<'a>(&'a self, colo: &'a str) -> [&'a str; 4] {
        [&self.policy, self.outcome.word(), self.source.word(), colo]
    }

    /// The numbers of the point: cost, milliseconds taken, and how many requests it stands for.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "costs are below 2⁵³, and so are seconds")]
    pub const fn doubles(&self, weight: f64) -> [f64; 3] {
        [self.cost as f64, self.took_ms as f64, weight]
    }
}

/// What is to be sent to others than the client.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) points: Vec<Point>,
    pub(super) notices: Vec<Notice>,
}

impl Reports {
    /// Keeps what a data set or a receiver wants to know of an event.
    pub(super) fn on(&mut self, event: Event<'_>, terms: &Terms, took_ms: u64) {
        let Event::Budget(budget) = event else { return };
        if terms.has_points && budget.is_counted {
            let decision = &budget.decision;
            self.points.push(Point {
                policy: decision.policy.to_owned(),
                outcome: decision.outcome,
                source: decision.source,
                cost: decision.cost,
                took_ms,
            });
        }
        self.notices.extend(budget.notices(terms.receivers.get_keys));
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.points.is_empty() && self.notices.is_empty()
    }
}
