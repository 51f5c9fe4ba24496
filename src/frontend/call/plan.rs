//! Which objects a request calls, and when.

use super::super::object::Object;
use super::leases::Leasing;
use crate::edge::{Batch, Failure, ObjectCall, Outcome, ShardCalls};
use crate::metrics::DecidedBy;
use crate::protocol::ObjectReply;

/// The calls of a request.
#[derive(Debug)]
pub(super) struct Plan {
    /// The objects to call.
    pub(super) objects: Vec<Object>,
    pub(super) calls: Calls,
    pub(super) leasing: Leasing,
    pub(super) decided_by: DecidedBy,
    /// When it was made, by the clock for timeouts.
    pub(super) began_at: i64,
}

/// The order of the calls.
#[derive(Debug)]
pub(super) enum Calls {
    Batch(Batch),
    Shards(ShardCalls),
}

impl Calls {
    pub(super) fn next(&mut self, now: i64) -> Option<ObjectCall> {
        match self {
            Self::Batch(batch) => batch.next(now),
            Self::Shards(shards) => shards.next(now),
        }
    }

    pub(super) fn answered(&mut self, object: usize, result: Result<ObjectReply, Failure>) {
        match self {
            Self::Batch(batch) => batch.answered(object, result),
            Self::Shards(shards) => shards.answered(object, result),
        }
    }

    pub(super) const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Batch(batch) => batch.outcome(),
            Self::Shards(shards) => shards.outcome(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Batch(batch) => batch.is_over(),
            Self::Shards(shards) => shards.is_over(),
        }
    }
}
