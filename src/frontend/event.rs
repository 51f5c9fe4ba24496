//! What became of a request: the events from which counters, live decisions, data points and notices are made.

use crate::api::{Notice, Problem, Tally};
use crate::metrics::{DecidedBy, INLINE_POLICIES, LiveDecision, Outcome};
use crate::policy::{Cause, names_in};
use crate::protocol::Action;

/// What became of a request. Its subscribers are the [isolate](super::isolate::Isolate) and the reports of its call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event<'a> {
    /// Let pass without a decision.
    Degraded(Cause),
    /// Answered with an error instead of a decision.
    Unavailable(Cause),
    /// The outcome for one of its budgets.
    Budget(&'a Budget<'a>),
}

/// The outcome for one budget of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget<'a> {
    /// As shown to listeners.
    pub(super) decision: LiveDecision<'a>,
    /// Whether it takes tokens. Others are not counted, but may owe a notice.
    pub(super) is_counted: bool,
    tally: Option<Tally<'a>>,
}

impl<'a> Budget<'a> {
    /// A budget decided at `at`. `key` is the hash of its key; `shards` is the number of its objects, if several.
    pub(super) fn of(
        tally: Tally<'a>,
        is_counted: bool,
        at: i64,
        decided_by: DecidedBy,
        (key, shards): (Option<&'a str>, Option<usize>),
    ) -> Self {
        let decisive = tally.decisive().filter(|_| tally.outcome != Outcome::Unlimited);
        let decision = LiveDecision {
            at,
            policy: tally.policy,
            outcome: tally.outcome,
            source: match tally.outcome {
                Outcome::Degraded | Outcome::Unavailable => DecidedBy::Frontend,
                _ => decided_by,
            },
            cost: tally.cost,
            remaining: decisive.map(|(_, answer)| answer.remaining),
            retry_at: decisive.and_then(|(_, answer)| answer.retry_at()),
            limit: decisive.and_then(|(limit, _)| limit.name()),
            object: key,
            shards,
            cause: tally.cause,
            is_refused_in_shadow: tally.is_refused_in_shadow,
        };
        Self { decision, is_counted, tally: Some(tally) }
    }

    /// The budget of a request to take a cost that can never be granted, so no object has decided it; `None` for other problems.
    pub(super) fn too_large(action: Action, problem: &'a Problem, is_inline: bool, at: i64) -> Option<Self> {
        let Problem::CostTooLarge { limit, cost, .. } = problem else { return None };
        if action.taking().is_none() && !matches!(action, Action::Extend(_)) {
            return None;
        }
        let (policy, limit) = names_in(limit);
        let decision = LiveDecision {
            at,
            policy: if is_inline { INLINE_POLICIES } else { policy },
            outcome: Outcome::Never,
            source: DecidedBy::Frontend,
            cost: *cost,
            remaining: None,
            retry_at: None,
            limit,
            object: None,
            shards: None,
            cause: None,
            is_refused_in_shadow: false,
        };
        Some(Self { decision, is_counted: true, tally: None })
    }

    /// The notices that are due. Only `with_key` do they have the key as callers write it.
    pub(super) fn notices(&self, with_key: bool) -> Vec<Notice> {
        let of_key = self.tally.zip(self.decision.object);
        of_key.map(|(tally, object)| tally.notices(object, with_key)).unwrap_or_default()
    }

    /// The start of the key, if operators may see it.
    pub(super) fn key_prefix(&self) -> Option<String> {
        self.tally.as_ref().and_then(Tally::key_prefix)
    }
}
