//! The notices due after a decision.

use std::sync::Arc;

use super::notices::{Last, Under};
use super::{Ledger, LedgerError, Writes};
use crate::limit::{Config, Kind, Verb};
use crate::policy::{NamedLimit, NoticeKind, Notify, Policy, Standing};
use crate::protocol::{Action, Decided, DueNotice, LimitAnswer, ObjectRequest, take_part};

impl Ledger {
    /// The levels before a request whose answer does not say how much it has lowered them, if they matter.
    pub(super) fn levels_before(
        &mut self,
        asked: &[Arc<Policy>],
        action: Action,
        now: i64,
    ) -> Result<Option<Vec<LimitAnswer>>, LedgerError> {
        let is_unlimited = asked.iter().any(|policy| policy.standing() == Standing::Unlimited);
        let is_unclear = matches!(action, Action::Settle(_) | Action::Extend(_)) || is_unlimited && action.lowers();
        if !is_unclear || !asked.iter().any(|policy| self.notices.waits(policy.name())) {
            return Ok(None);
        }
        let nothing: Vec<_> = asked.iter().map(|policy| vec![0; policy.limits().len()]).collect();
        Ok(Some(self.decide(asked, Verb::Refund, &nothing, now, false)?.0))
    }

    /// The notices due after this decision, which count as given from now on. `before` are the [levels](Self::levels_before).
    pub(super) fn give_notices(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        (before, decided): (Option<&[LimitAnswer]>, &Decided),
        writes: &mut Writes,
    ) -> Vec<DueNotice> {
        let mut due = Vec::new();
        if decided.is_replayed {
            return due;
        }
        let action = request.action;
        let is_granted = decided.decision().is_allow();
        let is_reset = is_granted && action == Action::Take(Verb::Reset);
        // What it has taken was there before.
        let has_taken = before.is_none() && is_granted && (action.lowers() || matches!(action, Action::Hold(_)));
        let (mut answers, mut before) = (decided.limits.as_slice(), before.unwrap_or(&decided.limits));
        for (index, policy) in (0..).zip(asked) {
            let own = take_part(&mut answers, policy.limits().len());
            let before = take_part(&mut before, policy.limits().len());
            let Some(notify) = policy.object().notify else { continue };
            let events = events(policy, notify, action, own, is_granted);
            self.notices.change(policy.name(), writes, |told| {
                if is_reset {
                    return told.reset();
                }
                if !matches!(action, Action::Look(_)) {
                    told.arm(|last| is_back(policy, before, has_taken, last));
                }
                let given = due.len();
                for (limit, kind) in events.into_iter().filter(|_| request.has_consequences) {
                    let of_limit = own.get(limit).zip(policy.limits().get(limit));
                    let of_limit = of_limit.filter(|_| kind != NoticeKind::Refused);
                    let name = of_limit.and_then(|(_, limit)| limit.account());
                    let under = of_limit.map_or(Under::default(), |(answer, limit)| under(answer, limit, decided.now));
                    if told.give((kind, name), under, notify, decided.now) {
                        due.push(DueNotice { policy: index, limit: limit as u64, kind });
                    }
                }
                if due.len() > given {
                    let is_limit = |name: Option<&str>| policy.limits().iter().any(|limit| limit.account() == name);
                    told.retain(|last| {
                        notify.has(last.kind) && (last.kind == NoticeKind::Refused || is_limit(last.limit.as_deref()))
                    });
                    return true;
                }
                // Neither a refusal, nor a peek, nor a hold writes: what they have seen is seen again as long as nothing is taken.
                is_granted && !matches!(action, Action::Look(_) | Action::Hold(_)) && told.is_unsaved()
            });
        }
        due
    }
}

/// Whether the level of a limit without windows was above its last notice by a tenth of the capacity: so much that the next fall is news.
fn is_back(policy: &Policy, before: &[LimitAnswer], has_taken: bool, last: &Last) -> bool {
    let mut limits = policy.limits().iter().zip(before);
    let Some((limit, answer)) = limits.find(|(limit, _)| limit.account() == last.limit.as_deref()) else {
        return false;
    };
    let percent = match last.kind {
        _ if has_windows(limit) => return false,
        NoticeKind::Used { percent } => percent,
        NoticeKind::Over => 100,
        NoticeKind::Refused => return false,
    };
    let taken = if has_taken { answer.decision.tokens() } else { 0 };
    let level = i128::from(answer.level()).saturating_add(taken.into());
    let back = 100_u8.saturating_sub(percent).saturating_add(10).min(100);
    level.saturating_mul(100) >= parts_of(limit, back)
}

/// The events for the budget of `policy`, whose limits answered `own`: for each the limit's position, and the kind.
fn events(
    policy: &Policy,
    notify: Notify,
    action: Action,
    own: &[LimitAnswer],
    is_granted: bool,
) -> Vec<(usize, NoticeKind)> {
    if let Some(limit) = own.iter().position(|limit| !limit.decision.is_allow()) {
        return [(limit, NoticeKind::Refused)].into_iter().filter(|(_, kind)| notify.has(*kind)).collect();
    }
    // A key without limits has used up none.
    if !is_granted || policy.standing() == Standing::Unlimited || !action.lowers() {
        return Vec::new();
    }
    let mut events = Vec::new();
    for (index, (limit, answer)) in policy.limits().iter().zip(own).enumerate() {
        let is_so = |kind: &NoticeKind| match kind {
            NoticeKind::Used { percent } => {
                let is_any = limit.limit().config().capacity > 0;
                is_any && parts_left(answer) <= parts_of(limit, 100_u8.saturating_sub(*percent))
            }
            NoticeKind::Over => limit.limit().is_soft() && answer.owed > 0,
            NoticeKind::Refused => false,
        };
        events.extend(notify.kinds().filter(is_so).map(|kind| (index, kind)));
    }
    events
}

/// A limit's level in hundredths of a token.
fn parts_left(answer: &LimitAnswer) -> i128 {
    i128::from(answer.level()).saturating_mul(100)
}

/// A share of a limit's capacity in hundredths of a token.
fn parts_of(limit: &NamedLimit, percent: u8) -> i128 {
    i128::from(limit.limit().config().capacity).saturating_mul(percent.into())
}

fn has_windows(limit: &NamedLimit) -> bool {
    matches!(limit.limit().config().kind, Kind::FixedWindow | Kind::FirstUseWindow)
}

/// The capacity and the window at `now`, in which the answer was given.
fn under(answer: &LimitAnswer, limit: &NamedLimit, now: i64) -> Under {
    let Config { period_ms, capacity, calendar, .. } = *limit.limit().config();
    let at = answer.snapshot.at;
    // The state is that of the window in which something was last taken, except that of a calendar.
    let later_ms = u64::try_from(now.saturating_sub(at)).unwrap_or(0);
    let window_at = match calendar {
        _ if !has_windows(limit) => 0,
        Some(_) => at,
        None => now.max(at).saturating_sub_unsigned(later_ms.checked_rem(period_ms).unwrap_or(0)),
    };
    Under { capacity, window_at }
}
