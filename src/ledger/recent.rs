//! The latest decisions about a key, for operators. They are in memory only: a restart of the object forgets them, and no decision depends
//! on them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limit::Decision;
use crate::policy::Policy;
use crate::protocol::{Action, Decided, KeyState, LimitAnswer, ObjectRequest, PastDecision};

/// The latest decisions, oldest first. Only the first allocates.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<PastDecision>);

impl Recent {
    /// Records the decision about each of the policies `asked`. Requests that only look are not decisions.
    pub(super) fn record(&mut self, asked: &[Arc<Policy>], request: &ObjectRequest, decided: &Decided) {
        if matches!(request.action, Action::Look(_)) {
            return;
        }
        let is_granted = decided.decision().is_allow();
        let mut answers = decided.limits.as_slice();
        for (index, policy) in asked.iter().enumerate() {
            let Some((own, rest)) = answers.split_at_checked(policy.limits().len()) else { return };
            answers = rest;
            if self.0.capacity() == 0 {
                self.0.reserve_exact(KeyState::MAX_DECISIONS);
            }
            if self.0.len() >= KeyState::MAX_DECISIONS {
                self.0.pop_front();
            }
            let costs = request.costs.get(index).and_then(|costs| costs.iter().max().copied());
            self.0.push_back(PastDecision {
                at: decided.now,
                action: request.action,
                policy: Arc::clone(policy),
                cost: costs.unwrap_or_else(|| own.iter().map(|limit| limit.decision.tokens()).max().unwrap_or(0)),
                is_granted,
                is_replayed: decided.is_replayed,
                refusal: longest_refusal(own),
            });
        }
    }

    pub(super) fn list(&self) -> Vec<PastDecision> {
        self.0.iter().cloned().collect()
    }
}

fn longest_refusal(answers: &[LimitAnswer]) -> Option<(usize, Decision)> {
    let rank = |decision: Decision| match decision {
        Decision::Allow { .. } => None,
        Decision::Wait { retry_at } => Some(retry_at),
        Decision::Never { .. } => Some(i64::MAX),
    };
    let refusals =
        answers.iter().enumerate().filter_map(|(index, answer)| Some((index, answer, rank(answer.decision)?)));
    refusals.max_by_key(|(_, _, rank)| *rank).map(|(index, answer, _)| (index, answer.decision))
}
