//! Tokens withheld for a batch while it calls other keys.

use super::names::Renamed;
use super::page::{names, weight};
use super::reservation::ReservedPart;
use crate::policy::without_shadow;
use crate::protocol::RequestId;

/// How long a hold lasts: longer than a batch may take, but not so long that a crashed frontend leaves a budget short for long.
const HOLD_MS: u64 = 10_000;

/// Tokens that are held, or were held and then taken.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    /// The ids of the tries that share it.
    pub(super) ids: Vec<u64>,
    /// When they were held, or taken.
    pub(super) since: i64,
    /// The ids of the tries that have committed it and not aborted it since.
    pub(super) committed_by: Vec<u64>,
    /// The first try to commit it, whose id its opening has.
    pub(super) opened_as: u64,
    pub(super) request_id: Option<RequestId>,
    pub(super) parts: Vec<ReservedPart>,
    /// What is requested from limits in shadow at commit, by policy; afterwards, what they have taken.
    pub(super) shadow: Vec<ReservedPart>,
}

impl Hold {
    /// A clock that stepped back must not prolong it by more than the step that counts as no time elapsed.
    pub(super) const fn is_over(&self, now: i64) -> bool {
        now.abs_diff(self.since) >= HOLD_MS
    }

    pub(super) fn is_shared_by(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    pub(super) fn share(&mut self, id: u64) {
        insert_once(&mut self.ids, id);
    }

    /// Removes a try. Returns whether no other try needs the hold.
    pub(super) fn leave(&mut self, id: u64) -> bool {
        self.ids.retain(|of| *of != id);
        let was_committed = !self.committed_by.is_empty();
        self.committed_by.retain(|of| *of != id);
        if was_committed { self.committed_by.is_empty() } else { self.ids.is_empty() }
    }

    /// Renames an account of this bucket.
    pub(super) fn rename(&mut self, bucket: &str, renamed: &Renamed) {
        let policy = without_shadow(bucket);
        let parts = if policy == bucket { &mut self.parts } else { &mut self.shadow };
        for part in parts.iter_mut().filter(|part| part.policy == policy) {
            part.rename(renamed, false); // those in shadow are apart
        }
    }

    pub(super) const fn ends_at(&self) -> i64 {
        self.since.saturating_add_unsigned(HOLD_MS)
    }

    /// The weight of its replay, once committed.
    pub(super) fn weight(&self) -> usize {
        weight(self.parts.iter().map(|part| (names(&part.policy, part.accounts()).len(), part.accounts().count(), 0)))
    }

    pub(super) fn is_of(&self, request_id: u128) -> bool {
        self.request_id.is_some_and(|of| of.id == request_id)
    }
}

pub(super) fn insert_once(ids: &mut Vec<u64>, id: u64) {
    if !ids.contains(&id) {
        ids.push(id);
    }
}
