//! The outcome for each requested budget, for counters, listeners and notices.

use super::decisive::{Weight, decisive};
use super::resolved::{ResolvedItem, ResolvedRequest};
use crate::access::Key;
use crate::limit::Decision;
use crate::metrics::{INLINE_POLICIES, Outcome};
use crate::policy::{Cause, NamedLimit, Standing};
use crate::protocol::{Action, Decided, DueNotice, LimitAnswer, ObjectReply, take_part};

/// The outcome for one budget.
#[derive(Clone, Copy, Debug)]
pub struct Tally<'a> {
    /// The name that its policy is counted under.
    pub policy: &'a str,
    /// The largest requested cost; 0 if there was none.
    pub cost: u64,
    /// The object's position.
    pub object: usize,
    /// The outcome.
    pub outcome: Outcome,
    /// Whether a limit in shadow would have refused it.
    pub is_refused_in_shadow: bool,
    /// Why there was no decision.
    pub cause: Option<Cause>,
    pub(super) request: &'a ResolvedRequest,
    pub(super) item: &'a ResolvedItem,
    /// The object's answer, if it decided.
    pub(super) decided: Option<&'a Decided>,
    /// The answer of each enforced limit; empty without a decision.
    pub(super) answers: &'a [LimitAnswer],
    /// The notices that the object reported as due, of all policies that it was asked for.
    pub(super) due: &'a [DueNotice],
    /// The policy's position there.
    pub(super) position: u64,
}

impl<'a> Tally<'a> {
    /// The decisive limit, and its answer.
    #[must_use]
    pub fn decisive(&self) -> Option<(&'a NamedLimit, &'a LimitAnswer)> {
        decisive(self.item.policy.limits().iter().zip(self.answers), |(limit, answer)| Weight {
            is_allowed: answer.decision.is_allow(),
            retry_at: answer.retry_at(),
            is_unpaid: false, // a notice is about what is left
            remaining: answer.remaining,
            owed: answer.owed,
            capacity: limit.limit().config().capacity,
            is_soft: limit.limit().is_soft(),
        })
    }

    /// The start of the key, if operators may see it.
    #[must_use]
    pub fn key_prefix(&self) -> Option<String> {
        match self.item.policy.frontend().shown_key_prefix {
            0 => None,
            characters => Some(Key::shown_prefix(&self.item.key, characters)),
        }
    }
}

impl ResolvedRequest {
    /// Whether it takes tokens, now or by a reservation or its extension. Only such requests count as decisions.
    #[must_use]
    pub fn takes(&self) -> bool {
        match self.action {
            Action::Extend(_) => self.items.iter().flat_map(ResolvedItem::enforced_costs).any(|&cost| cost > 0),
            action => action.taking().is_some(),
        }
    }

    /// Whether the object should count a refusal: a policy bans keys for them.
    #[must_use]
    pub fn may_ban(&self) -> bool {
        self.action.taking().is_some() && self.items.iter().any(|item| item.policy.object().ban.is_some())
    }

    /// Reports the outcome for each budget, from each object's items (as indices) and its reply, or why there is none. Replies that are not
    /// decisions are the client's errors, and nothing is reported.
    pub fn tally<'a>(
        &'a self,
        calls: impl Iterator<Item = (&'a [usize], &'a Result<ObjectReply, Cause>)> + Clone,
        mut report: impl FnMut(Tally<'a>),
    ) {
        let is_decided = |reply: &Result<ObjectReply, Cause>| !matches!(reply, Ok(reply) if !is_decision(reply));
        if !calls.clone().all(|(_, reply)| is_decided(reply)) {
            return;
        }
        let is_refused = calls.clone().any(|(_, reply)| reply.as_ref().is_ok_and(ObjectReply::is_refusal));
        for (object, (indices, reply)) in calls.enumerate() {
            let decided = if let Ok(ObjectReply::Decided(decided)) = reply { Some(decided) } else { None };
            let cause = reply.as_ref().err().copied();
            let mut rest = decided.map_or(&[][..], |decided| &decided.limits);
            let mut rest_of_shadow = decided.map_or(&[][..], |decided| &decided.shadow);
            for (position, item) in (0..).zip(indices.iter().filter_map(|&index| self.items.get(index))) {
                let own = take_part(&mut rest, item.policy.limits().len());
                let tried = take_part(&mut rest_of_shadow, item.policy.shadow_limits().len());
                let would_refuse = |answer: &Option<LimitAnswer>| answer.is_some_and(|one| !one.decision.is_allow());
                let start = Decision::Allow { tokens: 0, ready_at: 0 };
                let standing = item.policy.standing();
                let outcome = match own.iter().fold(start, |all, limit| all.and(limit.decision)) {
                    Decision::Wait { .. } | Decision::Never { .. } if own.iter().any(|answer| answer.ban.is_some()) => {
                        Outcome::Banned
                    }
                    Decision::Wait { .. } => Outcome::Refused,
                    Decision::Never { .. } => Outcome::Never,
                    Decision::Allow { .. } if is_refused => Outcome::Dropped,
                    Decision::Allow { .. } => match decided {
                        Some(decided) if decided.is_replayed => Outcome::Replayed,
                        Some(_) if standing == Standing::Unlimited => Outcome::Unlimited,
                        Some(_) => Outcome::Allowed,
                        None => Outcome::Degraded,
                    },
                };
                let is_refused_in_shadow = tried.iter().any(would_refuse);
                let due = decided.map_or(&[][..], |decided| &decided.notices);
                let counted = Tally { object, outcome, is_refused_in_shadow, cause, ..item.tally(self) };
                report(Tally { decided, answers: own, due, position, ..counted });
            }
        }
    }

    /// Reports the same outcome for each budget, when `cause` prevented any decision.
    pub fn tally_undecided<'a>(&'a self, outcome: Outcome, cause: Cause, report: impl FnMut(Tally<'a>)) {
        self.items.iter().map(|item| Tally { outcome, cause: Some(cause), ..item.tally(self) }).for_each(report);
    }
}

impl ResolvedItem {
    fn tally<'a>(&'a self, request: &'a ResolvedRequest) -> Tally<'a> {
        let policy = if self.policy.is_inline() { INLINE_POLICIES } else { self.policy.name() };
        let cost = self.cost.unwrap_or(0);
        Tally {
            policy,
            cost,
            object: 0,
            outcome: Outcome::Allowed,
            is_refused_in_shadow: false,
            cause: None,
            request,
            item: self,
            decided: None,
            answers: &[],
            due: &[],
            position: 0,
        }
    }
}

const fn is_decision(reply: &ObjectReply) -> bool {
    matches!(reply, ObjectReply::Decided(_))
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Endpoint;
    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::limit::Snapshot;
    use crate::policy::Policies;
    use crate::protocol::Decided;
    use Outcome::{Allowed, Degraded, Dropped, Never, Refused, Replayed};

    const ALLOW: Decision = Decision::Allow { tokens: 1, ready_at: 0 };
    const WAIT: Decision = Decision::Wait { retry_at: 9 };
    const NEVER: Decision = Decision::Never { max: 0 };

    fn answer(decision: Decision) -> LimitAnswer {
        let snapshot = Snapshot { tokens: 0, drops: 0, at: 0 };
        LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot, ban: None }
    }

    fn reply(is_replayed: bool, limits: &[Decision], shadow: &[Decision]) -> ObjectReply {
        let limits = limits.iter().copied().map(answer).collect();
        let shadow = shadow.iter().map(|decision| Some(answer(*decision))).collect();

        ObjectReply::Decided(Decided { is_replayed, shadow, ..Decided::new(0, limits) })
    }

    fn resolved(endpoint: Endpoint, body: &str) -> ResolvedRequest {
        let policies = r#"{"a":"9/s","b":"9/s","tried":{"rate":"9/s","mode":"shadow"}}"#;
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        ResolvedRequest::new(&request, &Policies::parse(policies).unwrap(), &Caller::TRUSTED, 0).unwrap()
    }

    fn tallied(
        asked: &ResolvedRequest,
        calls: &[(&[usize], Result<ObjectReply, Cause>)],
    ) -> Vec<(String, Outcome, bool)> {
        let mut all = Vec::new();
        let calls = calls.iter().map(|(items, reply)| (*items, reply));
        asked.tally(calls, |one| all.push((one.policy.to_owned(), one.outcome, one.is_refused_in_shadow)));
        all
    }

    #[test]
    fn a_single_request() {
        let a = resolved(Endpoint::Consume, r#"{"policy":"a","key":"k","cost":3}"#);
        for (reply, outcome) in [
            (reply(false, &[ALLOW], &[]), Some(Outcome::Allowed)),
            (reply(true, &[ALLOW], &[]), Some(Outcome::Replayed)),
            (reply(false, &[WAIT], &[]), Some(Outcome::Refused)),
            (reply(false, &[NEVER], &[]), Some(Outcome::Never)),
            (ObjectReply::RequestIdReused, None),
            (ObjectReply::TooManyReservations { max: 1 }, None),
        ] {
            let expected: Vec<_> = outcome.map(|outcome| ("a".to_owned(), outcome, false)).into_iter().collect();
            assert_eq!(tallied(&a, &[(&[0], Ok(reply))]), expected);
        }
        let tried = resolved(Endpoint::Consume, r#"{"policy":"tried","key":"k"}"#);
        for (decision, would_refuse) in [(ALLOW, false), (WAIT, true), (NEVER, true)] {
            let found = tallied(&tried, &[(&[0], Ok(reply(false, &[], &[decision])))]);
            assert_eq!(found, [("tried".to_owned(), Outcome::Allowed, would_refuse)]);
        }
        for (key, prefix, start) in [
            (r#""alice""#, 3, "ali"),
            (r#""ÄÖÜ""#, 2, "ÄÖ"),
            (r#"["tenant 7","alice"]"#, 10, "tenant 7,a"),
            (r#"{"ip":"192.0.2.1"}"#, 64, "192.0.2.1"),
            (r#"{"ip":"2001:db8::1"}"#, 64, "2001:db8::"),
            (r#""alice""#, 0, ""),
        ] {
            let policies = format!(r#"{{"a":{{"rate":"9/s","show_key_prefix":{prefix}}}}}"#);
            let body = format!(r#"{{"policy":"a","key":{key}}}"#);
            let request = Request::parse(Endpoint::Consume, body.as_bytes()).unwrap();
            let policies = Policies::parse(&policies).unwrap();
            let asked = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0).unwrap();
            let mut shown = Vec::new();
            asked.tally_undecided(Outcome::Refused, Cause::Failed, |one| shown.push(one.key_prefix()));
            assert_eq!(shown, [(prefix > 0).then(|| start.to_owned())], "{key}");
        }
        let mut costs = Vec::new();
        let report = |one: Tally<'_>| costs.push((one.cost, one.outcome, one.cause, one.decisive().is_none()));
        a.tally_undecided(Outcome::Unavailable, Cause::Failed, report);
        assert_eq!(costs, [(3, Outcome::Unavailable, Some(Cause::Failed), true)]);
    }

    #[test]
    fn only_requests_to_take_tokens_are_counted() {
        for (endpoint, more, is_counted) in [
            (Endpoint::Consume, "", true),
            (Endpoint::Consume, r#","mode":"reserve""#, true),
            (Endpoint::Consume, r#","mode":"borrow""#, true),
            (Endpoint::Consume, r#","mode":"up_to""#, true),
            (Endpoint::Peek, "", false),
            (Endpoint::Inspect, "", false),
            (Endpoint::Charge, "", false),
            (Endpoint::Refund, "", false),
            (Endpoint::Reset, "", false),
            (Endpoint::Settle, r#","reservation":"1""#, false),
            (Endpoint::Cancel, r#","reservation":"1""#, false),
            (Endpoint::Extend, r#","reservation":"1""#, false),
            (Endpoint::Extend, r#","reservation":"1","cost":1"#, true),
        ] {
            let asked = resolved(endpoint, &format!(r#"{{"policy":"a","key":"k"{more}}}"#));
            assert_eq!(asked.takes(), is_counted, "{endpoint:?} {more}");
        }
    }

    #[test]
    fn a_batch_that_is_refused_drops_what_did_not_refuse() {
        let body = r#"{"requests":[{"policy":"a","key":"x"},{"policy":"b","key":"y"},{"policy":"b","key":"x"},{"policy":"tried","key":"y"}]}"#;
        let asked = resolved(Endpoint::Batch, body);
        let outcomes = |x: Result<ObjectReply, Cause>, y: Result<ObjectReply, Cause>| {
            let all = tallied(&asked, &[(&[0, 2], x), (&[1, 3], y)]);
            assert_eq!(all.iter().map(|one| one.0.as_str()).collect::<Vec<_>>(), ["a", "b", "b", "tried"]);
            all.into_iter().map(|one| one.1).collect::<Vec<_>>()
        };
        let granted = || Ok(reply(false, &[ALLOW, ALLOW], &[]));
        let tried = |decision| Ok(reply(false, &[decision], &[WAIT]));
        assert_eq!(outcomes(granted(), tried(ALLOW)), [Allowed; 4]);
        assert_eq!(outcomes(Ok(reply(false, &[ALLOW, WAIT], &[])), tried(ALLOW)), [Dropped, Refused, Dropped, Dropped]);
        assert_eq!(outcomes(granted(), tried(NEVER)), [Dropped, Dropped, Never, Dropped]);
        assert_eq!(
            outcomes(Ok(reply(false, &[WAIT, ALLOW], &[])), Err(Cause::Timeout)),
            [Refused, Dropped, Dropped, Dropped]
        );
        assert_eq!(
            outcomes(Ok(reply(true, &[ALLOW, ALLOW], &[])), tried(ALLOW)),
            [Replayed, Replayed, Allowed, Allowed]
        );
        assert_eq!(outcomes(granted(), Err(Cause::Failed)), [Allowed, Allowed, Degraded, Degraded]);
        let (granted, failed) = (granted(), Err(Cause::Failed));
        let mut causes = Vec::new();
        asked.tally([(&[0, 2][..], &granted), (&[1, 3], &failed)].into_iter(), |one| causes.push(one.cause));
        assert_eq!(causes, [None, None, Some(Cause::Failed), Some(Cause::Failed)]);
    }
}
