//! The notices due after a decision.

use std::sync::Arc;

use super::{Ledger, Writes};
use crate::policy::{NamedLimit, NoticeKind, Policy, Standing};
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
        let is_granted = decided.decision().is_allow();
        let mut answers = decided.limits.as_slice();
        for (index, policy) in (0..).zip(asked) {
            let Some((own, rest)) = answers.split_at_checked(policy.limits().len()) else { break };
            answers = rest;
            if let Some(notify) = policy.object().notify
                && let Some(kind) = events(policy, request.action, own, is_granted).find(|kind| notify.has(*kind))
                && self.notices.give(policy.name(), kind, notify, decided.now, writes)
            {
                due.push(DueNotice { policy: index, kind });
            }
        }
        due
    }
}

/// The events for the budget of `policy`, whose limits answered `own`: the one that says most first.
fn events(
    policy: &Policy,
    action: Action,
    own: &[LimitAnswer],
    is_granted: bool,
) -> impl Iterator<Item = NoticeKind> + use<> {
    let is_refused = own.iter().any(|limit| !limit.decision.is_allow());
    // A key without limits is near none.
    let is_limited = policy.standing() != Standing::Unlimited;
    let is_lowered = !is_refused && is_granted && is_limited && action.lowers();
    let is_any = |is: fn(&NamedLimit, &LimitAnswer) -> bool| {
        is_lowered && policy.limits().iter().zip(own).any(|(limit, answer)| is(limit, answer))
    };
    let kinds = [
        (is_refused, NoticeKind::Refused),
        (is_any(|limit, answer| limit.limit().is_soft() && answer.owed > 0), NoticeKind::Over),
        (is_any(|limit, answer| limit.is_near(answer.remaining)), NoticeKind::NearLimit),
    ];
    kinds.into_iter().filter_map(|(is_so, kind)| is_so.then_some(kind))
}
