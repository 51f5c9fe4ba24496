//! The outcome for one budget, from which counters, live decisions, data points and notices are made.

use crate::api::{Notice, Problem, Tally};
use crate::metrics::{DecidedBy, INLINE_POLICIES, LiveDecision, Outcome};
use crate::policy::Cause;
use crate::protocol::Action;

/// The outcome for one budget of a request.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// As shown to listeners.
    pub decision: LiveDecision<'a>,
    tally: Option<Tally<'a>>,
}

impl<'a> Event<'a> {
    /// The event for a budget decided at `at`. `key` is the hash of its key; `shards` is the number of its objects, if several.
    pub(super) fn of(
        tally: Tally<'a>,
        at: i64,
        decided_by: DecidedBy,
        key: Option<&'a str>,
        shards: Option<usize>,
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
        Self { decision, tally: Some(tally) }
    }

    /// The event for a request to take a cost that can never be granted, so no object has decided it; `None` for other problems.
    pub(super) fn too_large(action: Action, problem: &'a Problem, is_inline: bool, at: i64) -> Option<Self> {
        let (Action::Take(_) | Action::Reserve(_), Problem::CostTooLarge { limit, cost, .. }) = (action, problem)
        else {
            return None;
        };
        let (policy, limit) = limit.split_once('/').map_or((&**limit, None), |(policy, limit)| (policy, Some(limit)));
        let policy = if is_inline { INLINE_POLICIES } else { policy };
        Some(Self::never(at, policy, limit, *cost))
    }

    const fn never(at: i64, policy: &'a str, limit: Option<&'a str>, cost: u64) -> Self {
        let decision = LiveDecision {
            at,
            policy,
            outcome: Outcome::Never,
            source: DecidedBy::Frontend,
            cost,
            remaining: None,
            retry_at: None,
            limit,
            object: None,
            shards: None,
            cause: None,
            is_refused_in_shadow: false,
        };
        Self { decision, tally: None }
    }

    /// The notice that is due. Only `with_key` does it have the key as callers write it.
    pub(super) fn notice(&self, with_key: bool) -> Option<Notice> {
        self.tally?.notice(self.decision.object?, with_key)
    }

    /// The start of the key, if operators may see it.
    pub(super) fn key_prefix(&self) -> Option<String> {
        self.tally.as_ref().and_then(Tally::key_prefix)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Decided by the objects.
    Decided,
    /// Undecided: the same outcome for each budget, with this cause.
    Undecided(Outcome, Cause),
}
