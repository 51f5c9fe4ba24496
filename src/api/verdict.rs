//! A decision as shown to the client.

use std::time::Duration;

use serde::Serialize;

use super::decisive::{Weight, decisive};
use super::endpoint::Endpoint;
use super::limit_body::{Exact, LimitBody};
use super::resolved::{Answered, ResolvedItem, ResolvedRequest, ban_in};
use crate::limit::{Decision, MAX_TOKENS, Verb, jitter};
use crate::policy::Standing;
use crate::protocol::{Action, Decided};

/// The length of a reservation's id, which has 52 bits, so that it is exact as a JavaScript number.
pub(super) const RESERVATION_ID_LEN: usize = 13;

/// A reservation's id as callers write it.
pub(super) fn reservation_id(id: u64) -> String {
    format!("{id:0RESERVATION_ID_LEN$x}")
}

/// A decision as shown to the client.
#[expect(clippy::struct_excessive_bools, reason = "the members of a body")]
#[derive(Serialize)]
pub(super) struct Verdict<'a> {
    pub(super) allowed: bool,
    pub(super) policy: &'a str,
    pub(super) cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) unpaid: u64,
    /// Like `remaining`, absent if the policy enforces nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remaining: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) owed: u64,
    /// How far the soft limit is exceeded that is exceeded furthest.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) over: u64,
    pub(super) near_limit: bool,
    pub(super) now: i64,
    pub(super) reset_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ready_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reservation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<i64>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) replayed: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) late: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) limits: Vec<Details<'a>>,
    /// What limits in shadow would have decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) shadow: Vec<Details<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) snapshot: Vec<LimitBody<'a, Exact>>,
    /// Whether a ban refused the key regardless of what is left.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) banned: bool,
    /// Whether an override grants all requests of the key.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) unlimited: bool,
    /// Whether it is that of one shard, where all have decided the same.
    #[serde(skip)]
    pub(super) is_of_shard: bool,
    #[serde(skip)]
    pub(super) full_name: &'a str,
    /// Whether its tokens are slots.
    #[serde(skip)]
    pub(super) is_of_slots: bool,
}

/// The same for one limit.
#[expect(clippy::struct_excessive_bools, reason = "the members of a body")]
#[derive(Clone, Default, Serialize)]
pub(super) struct Details<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    allowed: bool,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// The part of a charge or settlement that would have exceeded the largest debt.
    #[serde(skip_serializing_if = "is_zero")]
    unpaid: u64,
    limit: u64,
    remaining: u64,
    #[serde(skip_serializing_if = "is_zero")]
    owed: u64,
    /// What is owed of a soft limit.
    #[serde(skip_serializing_if = "is_zero")]
    over: u64,
    near_limit: bool,
    reset_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip)]
    full_name: &'a str,
    #[serde(skip)]
    is_of_slots: bool,
    #[serde(skip)]
    is_soft: bool,
}

impl ResolvedRequest {
    pub(super) fn verdict<'a>(
        &self,
        item: &'a ResolvedItem,
        answers: &[Answered<'a>],
        tried: &[Answered<'a>],
        decided: &Decided,
    ) -> Verdict<'a> {
        let now = decided.now;
        let mut details: Vec<_> = answers.iter().map(|answered| self.details(answered, now)).collect();
        let ban = ban_in(answers);
        for details in &mut details {
            details.wait_until(now, |retry_at| if ban.is_some() { retry_at } else { self.with_jitter(item, retry_at) });
        }
        let unlimited = self.verb().takes() && item.policy.standing() == Standing::Unlimited;
        // A repeated request may have been granted before.
        let banned = ban.is_some() && self.verb().takes() && details.iter().all(|details| !details.allowed);
        // One shard's rest is compared with that shard's limit.
        let shard = self.shard_of(item);
        for (details, limit) in details.iter_mut().zip(shard.map_or(&[][..], |shard| shard.limits())) {
            details.near_limit = limit.is_near(details.remaining);
        }
        if banned {
            details.iter_mut().for_each(Details::of_nothing);
        }
        let decisive = decisive(&details, |details| details.weight());
        let near_limit = !unlimited && details.iter().any(|details| details.near_limit);
        let shadow: Vec<_> = tried.iter().map(|answered| self.details(answered, now)).collect();
        let is_enforced = decisive.is_some() && !unlimited;
        let is_named = is_enforced && item.policy.limits().iter().any(|limit| limit.name().is_some());
        let top = decisive.cloned().unwrap_or_else(|| self.unlimited(item, tried, now));
        let allowed = details.iter().all(|details| details.allowed);
        // All limits together start with the last. If one refuses nothing was taken, whatever the others would have granted.
        let ready_at = details.iter().filter_map(|details| details.ready_at).max().or(top.ready_at);
        Verdict {
            allowed,
            policy: item.policy.name(),
            cost: top.cost,
            tokens: top.tokens,
            unpaid: top.unpaid,
            limit: is_enforced.then_some(top.limit),
            remaining: is_enforced.then_some(top.remaining),
            owed: if unlimited { 0 } else { top.owed },
            over: details.iter().filter(|_| !unlimited).map(|details| details.over).max().unwrap_or(0),
            near_limit,
            now,
            reset_at: top.reset_at.filter(|_| !unlimited),
            ready_at: ready_at.filter(|_| allowed),
            retry_at: top.retry_at,
            retry_after_ms: top.retry_after_ms,
            reservation: decided.reservation.map(|reserved| reservation_id(reserved.id)),
            expires_at: decided.reservation.map(|reserved| reserved.expires_at),
            replayed: decided.is_replayed,
            late: decided.is_late,
            is_of_shard: shard.is_some(),
            full_name: top.full_name,
            is_of_slots: top.is_of_slots,
            limits: if is_named { details } else { Vec::new() },
            shadow,
            snapshot: match (banned, unlimited) {
                (true, _) => item.snapshot_of(answers, now, 0),
                (_, true) => item.snapshot_of(answers, now, MAX_TOKENS),
                _ => item.snapshot(answers, now),
            },
            banned,
            unlimited,
        }
    }

    /// The answer of a policy that enforces nothing: the full cost, at once.
    fn unlimited<'a>(&self, item: &'a ResolvedItem, tried: &[Answered<'_>], now: i64) -> Details<'a> {
        let reserved = || tried.iter().map(|(_, cost, _)| *cost).max().unwrap_or(0);
        let cost = item.cost.unwrap_or_else(reserved);
        Details {
            cost,
            tokens: Some(cost).filter(|_| self.clips()),
            ready_at: Some(now).filter(|_| self.waits()),
            full_name: item.policy.name(),
            ..Details::default()
        }
    }

    const fn verb(&self) -> Verb {
        match self.action {
            Action::Look(verb) | Action::Take(verb) | Action::Reserve(verb) => verb,
            Action::Settle(_) => Verb::Charge,
            Action::Cancel(_) => Verb::Refund,
            Action::Hold(_) | Action::Extend(_) => Verb::Consume,
        }
    }

    const fn waits(&self) -> bool {
        matches!(self.verb(), Verb::Reserve { .. } | Verb::Borrow { .. })
    }

    /// The retry time shown for a refusal, never before `retry_at`. Only requests that take tokens are spread, not peeks, nor servers that
    /// lease and decide for others.
    fn with_jitter(&self, item: &ResolvedItem, retry_at: i64) -> i64 {
        match (self.endpoint, item.policy.standing()) {
            (Endpoint::Consume | Endpoint::Batch, Standing::Limited) => {
                jitter(retry_at, Duration::from_millis(item.policy.frontend().jitter_ms), self.random)
            }
            _ => retry_at,
        }
    }

    const fn clips(&self) -> bool {
        matches!(self.verb(), Verb::ConsumeUpTo | Verb::Charge | Verb::Refund | Verb::Reset)
    }

    fn details<'a>(&self, &(limit, cost, answer): &Answered<'a>, now: i64) -> Details<'a> {
        let capacity = limit.limit().config().capacity;
        let is_soft = limit.limit().is_soft();
        let (owed, over) = if is_soft { (0, answer.owed) } else { (answer.owed, 0) };
        let (moved, ready_at, retry_at) = match answer.decision {
            Decision::Allow { tokens, ready_at } => (Some(tokens), Some(ready_at), None),
            Decision::Wait { retry_at } => (None, None, Some(retry_at)),
            Decision::Never { .. } => (None, None, None),
        };
        Details {
            name: limit.name(),
            allowed: answer.decision.is_allow(),
            cost,
            tokens: moved.filter(|_| self.clips()),
            unpaid: moved.filter(|_| self.verb() == Verb::Charge).map_or(0, |moved| cost.saturating_sub(moved)),
            limit: capacity,
            remaining: answer.remaining,
            owed,
            over,
            near_limit: limit.is_near(answer.remaining),
            reset_at: answer.reset_at,
            ready_at: ready_at.filter(|_| self.waits()),
            retry_at,
            retry_after_ms: retry_at.map(|at| until_ms(now, at)),
            full_name: limit.full_name(),
            is_of_slots: limit.is_slots(),
            is_soft,
        }
    }
}

impl Verdict<'_> {
    pub(super) fn refusal(&self) -> String {
        let Self { full_name, cost, owed, retry_after_ms, .. } = self;
        let (limit, remaining) = (self.limit.unwrap_or_default(), self.remaining.unwrap_or_default());
        let when = match retry_after_ms {
            Some(ms) => format!("retry in {ms} ms"),
            None if limit == 0 => "with a capacity of 0 nothing can pass".to_owned(),
            None if self.is_of_slots => "no more are free while this reservation lasts".to_owned(),
            None => "this budget never refills".to_owned(),
        };
        if self.banned {
            let when = retry_after_ms.map_or_else(|| "the ban has no end".to_owned(), |ms| format!("retry in {ms} ms"));
            return format!("this key is banned from policy {}; {when}", self.policy);
        }
        if self.is_of_shard {
            return format!("no shard of policy {} has enough for a cost of {cost}; {when}", self.policy);
        }
        match owed {
            _ if self.is_of_slots => {
                let used = limit.saturating_sub(remaining).saturating_add(*owed);
                format!("policy {full_name} has {used} of {limit} slots in use and the cost is {cost}; {when}")
            }
            0 => format!("policy {full_name} has {remaining} of {limit} tokens left and the cost is {cost}; {when}"),
            _ => format!("policy {full_name} owes {owed} tokens and the cost is {cost}; {when}"),
        }
    }
}

impl Details<'_> {
    fn wait_until(&mut self, now: i64, shown: impl FnOnce(i64) -> i64) {
        self.retry_at = self.retry_at.map(shown);
        self.retry_after_ms = self.retry_at.map(|at| until_ms(now, at));
    }

    /// As if nothing were allowed.
    fn of_nothing(&mut self) {
        (self.limit, self.remaining, self.near_limit, self.reset_at) = (0, 0, true, self.retry_at);
        (self.owed, self.over) = (0, 0);
    }

    const fn weight(&self) -> Weight {
        let Self { allowed: is_allowed, retry_at, unpaid, remaining, limit: capacity, is_soft, .. } = *self;
        let owed = self.owed.saturating_add(self.over);
        Weight { is_allowed, retry_at, is_unpaid: unpaid > 0, remaining, owed, capacity, is_soft }
    }
}

pub(super) fn until_ms(now: i64, at: i64) -> u64 {
    u64::try_from(at.saturating_sub(now)).unwrap_or(0)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so; on wasm32 it is not even small")]
pub(super) const fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(super) const fn is_false(value: &bool) -> bool {
    !*value
}
