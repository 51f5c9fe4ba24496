//! What a request says about leases beside what it asks, and what is to be said later.

use super::super::memory::Memory;
use super::super::object::Object;
use crate::api::ResolvedRequest;
use crate::protocol::{LeaseRequest, ObjectReply};

/// What a request says about leases.
#[derive(Debug, Default)]
pub(super) struct Leasing {
    /// With its call.
    pub(super) request: Option<LeaseRequest>,
    /// In the background.
    pub(super) renewal: Option<LeaseRequest>,
    /// The lease that came with the answer, and in how many milliseconds to look at it.
    pub(super) leased: Option<(u64, u64)>,
}

impl Leasing {
    /// Takes note of an answer at `now`; `None` if there was none, or if it could not be read.
    pub(super) fn answered(
        &mut self,
        asked: &ResolvedRequest,
        object: &Object,
        reply: Option<&ObjectReply>,
        memory: &mut Memory,
        now: i64,
    ) {
        let (Some(request), Some(item)) = (&self.request, asked.items().first()) else { return };
        match reply {
            Some(ObjectReply::Decided(decided)) => self.leased = memory.leased(object, &item.policy, request, decided),
            _ => memory.failed(object, &item.policy, request, now),
        }
    }

    /// Whether nothing more is to be said.
    pub(super) const fn is_over(&self) -> bool {
        self.renewal.is_none() && self.leased.is_none()
    }
}
