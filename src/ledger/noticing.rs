//! The notices due after a decision.

use std::sync::Arc;

use super::{Ledger, Writes};
use crate::policy::{NoticeKind, Policy, Standing};
use crate::protocol::{Action, Decided, DueNotice, LimitAnswer, ObjectRequest};

impl Ledger {
    /// The notices due after this decision, which count as sent from now on.
    pub(super) fn give_notices(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        decided: &Decided,
        writes: &mut Writes,
    ) -> Vec<DueNotice> {
        let mut due = Vec::new();
        if !request.wants_notices || decided.is_replayed {
            return due;
        }
        let is_granted = decided.limits.iter().all(|limit| limit.decision.is_allow());
        let mut answers = decided.limits.as_slice();
        for (index, policy) in (0..).zip(asked) {
            let Some((own, rest)) = answers.split_at_checked(policy.limits().len()) else { break };
            answers = rest;
            if let Some(notify) = policy.object().notify
                && let Some(kind) = event(policy, request.action, own, is_granted)
                && notify.has(kind)
                && self.notices.give(policy.name(), kind, notify, decided.now, writes)
            {
                due.push(DueNotice { policy: index, kind });
            }
        }
        due
    }
}

/// The event for the budget of `policy`, whose limits answered `own`.
fn event(policy: &Policy, action: Action, own: &[LimitAnswer], is_granted: bool) -> Option<NoticeKind> {
    if own.iter().any(|limit| !limit.decision.is_allow()) {
        return Some(NoticeKind::Refused);
    }
    // A key without limits is near none.
    let is_limited = policy.standing() != Standing::Unlimited;
    let is_near = policy.limits().iter().zip(own).any(|(limit, answer)| limit.is_near(answer.remaining));
    (is_granted && is_limited && action.lowers() && is_near).then_some(NoticeKind::NearLimit)
}
