//! The lease messages that go with a request, and those that follow later.

use super::super::memory::Memory;
use super::super::object::Object;
use crate::api::ResolvedRequest;
use crate::protocol::{LeaseRequest, ObjectReply};

/// The lease messages of a request.
#[derive(Debug, Default)]
pub(super) struct Leasing {
    /// Sent with the call.
    pub(super) request: Option<LeaseRequest>,
    /// Sent in the background.
    pub(super) renewal: Option<LeaseRequest>,
    /// The lease that came with the answer, and the delay in milliseconds before it is checked.
    pub(super) leased: Option<(u64, u64)>,
}

impl Leasing {
    /// Records an answer at `now`; `None` if there was none or it was malformed.
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

    /// Whether no lease message is left to send.
    pub(super) const fn is_over(&self) -> bool {
        self.renewal.is_none() && self.leased.is_none()
    }
}
