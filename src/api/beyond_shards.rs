//! Requests that are impossible for a budget in several objects: see [`Policy::shards`].

use super::endpoint::Endpoint;
use crate::limit::Verb;
use crate::policy::Policy;
use crate::protocol::Action;

/// Checks that a request is possible with the policy's shards, if it has any.
///
/// # Errors
/// The reason why it is impossible.
pub(super) fn require_whole(
    endpoint: Endpoint,
    action: Action,
    wants_snapshot: bool,
    policy: &Policy,
) -> Result<(), String> {
    if policy.shards().len() < 2 {
        return Ok(());
    }
    let wrong = |what: &str, instead: &str| {
        let (name, shards) = (policy.name(), policy.shards().len());
        Err(format!("policy {name} has {shards} shards, which cannot {what}: {instead}"))
    };
    match (endpoint, action) {
        (Endpoint::Batch, _) => wrong("be part of a batch", "ask for it alone"),
        (_, Action::Take(Verb::Consume)) if wants_snapshot => {
            wrong("show a `snapshot` with each answer", "/v1/peek shows one of the whole")
        }
        // A reservation may have been made before the policy had shards.
        (
            _,
            Action::Take(Verb::Consume | Verb::Refund | Verb::Reset)
            | Action::Look(_)
            | Action::Settle(_)
            | Action::Cancel(_)
            | Action::Extend(_),
        ) => Ok(()),
        (_, Action::Take(Verb::ConsumeUpTo)) => wrong("take as much as there is", "leave out `mode`"),
        (_, Action::Take(Verb::Charge)) => wrong("be charged", "consume before the work is done"),
        (_, Action::Take(_) | Action::Reserve(_) | Action::Hold(_)) => {
            wrong("have debts or reservations", "leave out `mode`")
        }
    }
}
