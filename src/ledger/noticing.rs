//! The notices due after a decision.

use std::sync::Arc;

use super::notices::{Of, Told};
use super::{Ledger, LedgerError, Writes};
use crate::limit::{Config, Kind, Verb};
use crate::policy::{NamedLimit, NoticeKind, Notify, Policy, Standing};
use crate::protocol::{Action, Decided, DueNotice, LimitAnswer, ObjectRequest, take_part};

impl Ledger {
    /// Lets be told again what is back before the request is decided.
    pub(super) fn arm_notices(
        &mut self,
        asked: &[Arc<Policy>],
        action: Action,
        now: i64,
        writes: &mut Writes,
    ) -> Result<(), LedgerError> {
        // A peek writes nothing.
        if matches!(action, Action::Look(_)) || !asked.iter().any(|policy| self.notices.is_unarmed(policy.name())) {
            return Ok(());
        }
        let nothing: Vec<_> = asked.iter().map(|policy| vec![0; policy.limits().len()]).collect();
        let (answers, _) = self.decide(asked, Verb::Refund, &nothing, now, false)?;
        let mut answers = answers.as_slice();
        for policy in asked {
            let own = take_part(&mut answers, policy.limits().len());
            self.notices.change(policy.name(), writes, |told| told.arm(|of| is_back(policy, own, of)));
        }
        Ok(())
    }

    /// The notices due after this decision, which count as told from now on.
    pub(super) fn give_notices(
        &mut self,
        asked: &[Arc<Policy>],
        request: &ObjectRequest,
        decided: &Decided,
        writes: &mut Writes,
    ) -> Vec<DueNotice> {
        let mut due = Vec::new();
        if decided.is_replayed {
            return due;
        }
        let is_granted = decided.decision().is_allow();
        let is_reset = is_granted && request.action == Action::Take(Verb::Reset);
        let mut answers = decided.limits.as_slice();
        for (index, policy) in (0..).zip(asked) {
            let own = take_part(&mut answers, policy.limits().len());
            let Some(notify) = policy.object().notify else { continue };
            if is_reset {
                self.notices.change(policy.name(), writes, Told::clear);
            }
            if !request.wants_notices {
                continue;
            }
            let events = events(policy, notify, request.action, own, is_granted);
            self.notices.change(policy.name(), writes, |told| {
                let before = due.len();
                for (limit, kind) in events {
                    let of_limit = own.get(limit).zip(policy.limits().get(limit));
                    let of = match kind {
                        NoticeKind::Refused => Of { kind, limit: None },
                        _ => Of { kind, limit: of_limit.and_then(|(_, limit)| limit.account()).map(str::to_owned) },
                    };
                    let window_at = of_limit.map_or(0, |(answer, limit)| window_at(answer, limit, decided.now));
                    if told.tell(of, window_at, notify, decided.now) {
                        due.push(DueNotice { policy: index, limit: limit as u64, kind });
                    }
                }
                let has_changed = due.len() > before;
                if has_changed {
                    told.retain(|name| policy.limits().iter().any(|limit| limit.account() == name));
                }
                has_changed
            });
        }
        due
    }
}

/// Whether the level is above what was told by a tenth of the capacity: so much that the next fall is news.
fn is_back(policy: &Policy, own: &[LimitAnswer], of: &Of) -> bool {
    let mut limits = policy.limits().iter().zip(own);
    let Some((limit, answer)) = limits.find(|(limit, _)| limit.account() == of.limit.as_deref()) else { return false };
    let percent = match of.kind {
        NoticeKind::Used { percent } => percent,
        NoticeKind::Over => 100,
        NoticeKind::Refused => return false,
    };
    let left = 100_u8.saturating_sub(percent).saturating_add(10).min(100);
    parts_left(answer) >= parts_of(limit, left)
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

/// The opening of the window at `now`, in which the answer was given; 0 for kinds without windows.
fn window_at(answer: &LimitAnswer, limit: &NamedLimit, now: i64) -> i64 {
    let Config { kind, period_ms, calendar, .. } = *limit.limit().config();
    let at = answer.snapshot.at;
    match kind {
        Kind::TokenBucket | Kind::RollingWindow => 0,
        // The state is that of the window in which something was last taken, except that of a calendar.
        Kind::FixedWindow if calendar.is_none() => {
            let into_ms = u64::try_from(now.saturating_sub(at)).unwrap_or(0).checked_rem(period_ms).unwrap_or(0);
            now.max(at).saturating_sub_unsigned(into_ms)
        }
        Kind::FixedWindow | Kind::FirstUseWindow => at,
    }
}
