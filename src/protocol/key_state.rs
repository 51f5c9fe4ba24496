//! A key's state, with everything its object knows, for operators.

use std::sync::Arc;

use crate::limit::{Decision, Snapshot};
use crate::policy::{Ban, Policy};

use super::request::Action;

/// A key's state.
#[derive(Clone, Debug)]
pub struct KeyState {
    /// The moment.
    pub now: i64,
    /// In no particular order.
    pub buckets: Vec<BucketState>,
    /// Open reservations.
    pub reservations: Vec<ReservationState>,
    /// Holds that withhold tokens from others.
    pub holds: Vec<HoldState>,
    /// The latest decisions, oldest first: since the object started, at most [`KeyState::MAX_DECISIONS`].
    pub decisions: Vec<PastDecision>,
}

impl KeyState {
    /// Maximum decisions that an object keeps, each 80 bytes and a reference to its policy: enough to see what a client has just done, and
    /// small beside the rest of an object.
    pub const MAX_DECISIONS: usize = 16;
}

/// The bucket of a policy.
#[derive(Clone, Debug)]
pub struct BucketState {
    /// The policy's name.
    pub policy: String,
    /// The policy and the state of each of its limits, or why they are unreadable.
    pub limits: Result<(Arc<Policy>, Vec<LimitState>), String>,
    /// The key's ban from the policy.
    pub ban: Option<Ban>,
}

/// The bucket of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// Whole tokens left. Held tokens count as taken.
    pub remaining: u64,
    /// Tokens owed.
    pub owed: u64,
    /// Held tokens.
    pub held: u64,
    /// When the bucket is full again, if ever.
    pub reset_at: Option<i64>,
    /// The exact state, without held tokens.
    pub snapshot: Snapshot,
}

/// An open reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationState {
    /// Its id.
    pub id: u64,
    /// When it was opened.
    pub opened_at: i64,
    /// When it ends unless it is settled or extended.
    pub expires_at: i64,
    /// Whether its tokens are given back then; otherwise it keeps its full cost.
    pub is_refunded: bool,
    /// What it has taken.
    pub tokens: Vec<PolicyTokens>,
}

/// Tokens held for a batch over several keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldState {
    /// When it ends at the latest.
    pub ends_at: i64,
    /// What it holds.
    pub tokens: Vec<PolicyTokens>,
}

/// Tokens of a policy's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyTokens {
    /// The policy's name.
    pub policy: String,
    /// For each limit, by name.
    pub limits: Vec<(Option<String>, u64)>,
}

/// The decision about one policy of a request.
#[derive(Clone, Debug)]
pub struct PastDecision {
    /// The moment.
    pub at: i64,
    /// The action.
    pub action: Action,
    /// The policy, in the version of that moment.
    pub policy: Arc<Policy>,
    /// The largest of the costs for its limits.
    pub cost: u64,
    /// Whether the request was granted, by all its policies.
    pub is_granted: bool,
    /// Whether an earlier answer was repeated.
    pub is_replayed: bool,
    /// The limit that refused for longest, and its decision.
    pub refusal: Option<(usize, Decision)>,
}
