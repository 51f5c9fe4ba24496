//! How a key stands: all that its object knows of it, for operators.

use std::sync::Arc;

use crate::limit::{Decision, Snapshot};
use crate::policy::Policy;

use super::request::Action;

/// How a key stands.
#[derive(Clone, Debug)]
pub struct KeyState {
    /// The moment.
    pub now: i64,
    /// In no particular order.
    pub buckets: Vec<BucketState>,
    /// Those that are open.
    pub reservations: Vec<ReservationState>,
    /// Those that keep tokens from others.
    pub holds: Vec<HoldState>,
    /// The latest, oldest first: since the object began, and at most [`KeyState::MAX_DECISIONS`].
    pub decisions: Vec<PastDecision>,
}

impl KeyState {
    /// Maximum decisions that an object keeps, each 80 bytes and a reference to its policy: enough to see what a client has just done, and
    /// little beside the rest of an object.
    pub const MAX_DECISIONS: usize = 16;
}

/// The bucket of a policy.
#[derive(Clone, Debug)]
pub struct BucketState {
    /// The policy's name.
    pub policy: String,
    /// The policy and the state of each of its limits, or why they cannot be read.
    pub limits: Result<(Arc<Policy>, Vec<LimitState>), String>,
}

/// The bucket of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// Whole tokens left. Those that are held count as taken.
    pub remaining: u64,
    /// Tokens owed.
    pub owed: u64,
    /// Tokens that are held.
    pub held: u64,
    /// When the bucket is full again, if ever.
    pub reset_at: Option<i64>,
    /// The exact state, without those that are held.
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
    /// Whether its tokens are given back then; else it keeps its full cost.
    pub is_refunded: bool,
    /// What it has taken.
    pub tokens: Vec<PolicyTokens>,
}

/// Tokens that are held for a batch over several keys.
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
    /// Of each limit, by its name.
    pub limits: Vec<(Option<String>, u64)>,
}

/// What was decided about one policy of a request.
#[derive(Clone, Debug)]
pub struct PastDecision {
    /// When.
    pub at: i64,
    /// What was asked.
    pub action: Action,
    /// Of which policy, in the version of then.
    pub policy: Arc<Policy>,
    /// The largest of the costs for its limits.
    pub cost: u64,
    /// Whether the request was granted, by all its policies.
    pub is_granted: bool,
    /// Whether this was the answer to an earlier, equal request.
    pub is_replayed: bool,
    /// Which of the policy's limits refused, and what it said: the one that refused for longest.
    pub refusal: Option<(usize, Decision)>,
}
