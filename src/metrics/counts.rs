//! The counters of one isolate, or of all together.

use super::histogram::Histogram;
use super::refused_keys::RefusedKeys;
use super::words::{CallOutcome, NoticeOutcome, Outcome, PollOutcome, Repeat, RowAccess, Word};
use crate::policy::Cause;
use crate::sorted::SortedMap;

/// Counters, all of which only grow. Counting a known policy allocates nothing, except for the first refusals of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(super) policies: SortedMap<String, PolicyCounts>,
    pub(super) refused: SortedMap<String, RefusedKeys>,
    /// Requests let through without a decision.
    pub(super) degraded: [u64; 3],
    /// Requests answered with a 503 without a decision.
    pub(super) unavailable: [u64; 3],
    pub(super) calls: [Histogram; 4],
    /// Rows of objects.
    pub(super) rows: [u64; 2],
    pub(super) repeats: [u64; 4],
    pub(super) polls: [u64; 2],
    pub(super) notices: [u64; 3],
}

/// The counters of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyCounts {
    pub(super) decisions: [u64; 9],
    /// Requests that a limit in shadow would have refused.
    pub(super) shadow_refusals: u64,
    /// Requests refused without a call.
    pub(super) cached_refusals: u64,
    pub(super) leased_decisions: u64,
}

/// Maximum policies counted under their own names: twice those of a registry.
pub const MAX_POLICIES: usize = 1_000;

/// The name under which further policies are counted; no policy can have it.
pub const OTHER_POLICIES: &str = "(other)";

/// The name under which policies with limits from requests are counted, since callers choose their names.
pub const INLINE_POLICIES: &str = "(inline)";

impl Counts {
    /// Counts the outcome of a request to take tokens under a policy, and whether a limit in shadow would have refused it.
    pub fn decided(&mut self, policy: &str, outcome: Outcome, is_refused_in_shadow: bool) {
        at(&mut self.policies, policy, |counts: &mut PolicyCounts| {
            add(&mut counts.decisions, outcome, 1);
            counts.shadow_refusals = counts.shadow_refusals.saturating_add(is_refused_in_shadow.into());
        });
    }

    /// Counts a request refused without a call.
    pub fn remembered(&mut self, policy: &str) {
        at(&mut self.policies, policy, |counts: &mut PolicyCounts| {
            counts.cached_refusals = counts.cached_refusals.saturating_add(1);
        });
    }

    /// Counts a request decided from a lease.
    pub fn leased(&mut self, policy: &str) {
        at(&mut self.policies, policy, |counts: &mut PolicyCounts| {
            counts.leased_decisions = counts.leased_decisions.saturating_add(1);
        });
    }

    /// Counts a refusal of a key, by its hash. `prefix` returns the key's start, if it may be shown.
    pub fn refused(&mut self, policy: &str, key: u128, prefix: impl FnOnce() -> Option<String>) {
        at(&mut self.refused, policy, |keys: &mut RefusedKeys| keys.add(key, prefix));
    }

    /// Counts a request let through without a decision.
    pub fn degraded(&mut self, cause: Cause) {
        add(&mut self.degraded, cause, 1);
    }

    /// Counts a request answered with a 503.
    pub fn unavailable(&mut self, cause: Cause) {
        add(&mut self.unavailable, cause, 1);
    }

    /// Counts a call to an object, and its duration.
    pub fn called(&mut self, outcome: CallOutcome, ms: u64) {
        if let Some(histogram) = self.calls.get_mut(outcome.index()) {
            histogram.add(ms);
        }
    }

    /// Counts an object's storage operations.
    pub fn stored(&mut self, rows_read: u64, rows_written: u64) {
        add(&mut self.rows, RowAccess::Read, rows_read);
        add(&mut self.rows, RowAccess::Written, rows_written);
    }

    /// Counts a retry.
    pub fn repeated(&mut self, reason: Repeat) {
        add(&mut self.repeats, reason, 1);
    }

    /// Counts a poll of the registry.
    pub fn polled(&mut self, outcome: PollOutcome) {
        add(&mut self.polls, outcome, 1);
    }

    /// Counts a notice.
    pub fn noticed(&mut self, outcome: NoticeOutcome) {
        add(&mut self.notices, outcome, 1);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (policy, more) in other.policies.iter() {
            at(&mut self.policies, policy, |counts: &mut PolicyCounts| {
                add_all(&mut counts.decisions, &more.decisions);
                counts.shadow_refusals = counts.shadow_refusals.saturating_add(more.shadow_refusals);
                counts.cached_refusals = counts.cached_refusals.saturating_add(more.cached_refusals);
                counts.leased_decisions = counts.leased_decisions.saturating_add(more.leased_decisions);
            });
        }
        merge_refused(&mut self.refused, &other.refused);
        add_all(&mut self.degraded, &other.degraded);
        add_all(&mut self.unavailable, &other.unavailable);
        for (histogram, more) in self.calls.iter_mut().zip(&other.calls) {
            histogram.merge(more);
        }
        add_all(&mut self.rows, &other.rows);
        add_all(&mut self.repeats, &other.repeats);
        add_all(&mut self.polls, &other.polls);
        add_all(&mut self.notices, &other.notices);
    }
}

pub(super) fn merge_refused(all: &mut SortedMap<String, RefusedKeys>, other: &SortedMap<String, RefusedKeys>) {
    for (policy, more) in other.iter() {
        at(all, policy, |keys: &mut RefusedKeys| keys.merge(more));
    }
}

/// Changes the policy's value in the map.
fn at<T: Default>(all: &mut SortedMap<String, T>, policy: &str, change: impl FnOnce(&mut T)) {
    if let Some(known) = all.get_mut(policy) {
        return change(known);
    }
    let name = if all.len() < MAX_POLICIES { policy } else { OTHER_POLICIES };
    all.change(name.to_owned(), change);
}

pub(super) fn add<W: Word>(counts: &mut [u64], word: W, more: u64) {
    if let Some(count) = counts.get_mut(word.index()) {
        *count = count.saturating_add(more);
    }
}

fn add_all(counts: &mut [u64], more: &[u64]) {
    for (count, more) in counts.iter_mut().zip(more) {
        *count = count.saturating_add(*more);
    }
}
