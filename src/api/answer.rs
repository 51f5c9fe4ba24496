//! An object's decision as a response.

use super::endpoint::Endpoint;
use super::inspect::inspection;
use super::keys::{Act, explanation};
use super::lease::leased;
use super::problem::Problem;
use super::rate_limit::{banned_fields, limit_field, policy_field};
use super::refusal::{Refusal, respond, violated};
use super::reply::Reply;
use super::resolved::{Answered, ResolvedItem, ResolvedRequest};
use crate::policy::{Cause, Policy};
use crate::protocol::{Decided, KeyAct, ObjectReply};

impl ResolvedRequest {
    /// The response to all requests except batches.
    ///
    /// # Errors
    /// The problem that matches an object's reply other than a decision.
    pub fn reply(&self, reply: &ObjectReply) -> Result<Reply, Problem> {
        let decided = decided(reply, self.by_grant)?;
        if let Some(problem) = self.impossible.as_ref().filter(|_| !decided.is_replayed) {
            return Err(problem.clone());
        }
        let [item] = self.items.as_slice() else {
            return Err(Problem::Unavailable { cause: Cause::Failed });
        };
        let mut answers = item.answers(&decided.limits)?;
        for ((_, cost, _), reserved) in answers.iter_mut().zip(&*decided.reserved_costs) {
            *cost = *reserved;
        }
        let reserved_in_shadow = decided.reserved_costs.get(answers.len()..).unwrap_or_default();
        let tried = item.tried(&decided.shadow, reserved_in_shadow);
        match self.endpoint {
            Endpoint::Inspect => return Ok(inspection(item, &answers, &tried, decided)),
            Endpoint::ResetKey | Endpoint::Credit => return Ok(Act::of(item, &answers, decided).reply()),
            _ => {}
        }
        let verdict = self.verdict(item, &answers, &tried, decided);
        if self.endpoint == Endpoint::Explain {
            return Ok(explanation(item, &answers, &tried, &verdict));
        }
        if self.endpoint == Endpoint::Lease {
            return Ok(leased(item, &verdict, decided));
        }
        let refused = (!verdict.allowed).then(|| Refusal {
            detail: verdict.refusal(),
            violated: violated(answers.iter()),
            retry_after_ms: verdict.retry_after_ms,
        });
        let retry_after_s = refused.as_ref().and_then(Refusal::retry_after_s);
        let mut reply = respond(refused, &verdict);
        let fields = match (verdict.banned, verdict.unlimited) {
            (true, _) => banned_fields(item.policy.limits(), retry_after_s),
            (_, true) => Vec::new(), // clients would pause because of them
            _ => rate_limit(item, &answers, self.shard_of(item), decided.now, retry_after_s),
        };
        reply.headers.extend(fields.into_iter().map(|(name, value)| (name, value.into())));
        Ok(reply)
    }

    /// The record of an act by `by` on the key shown as `key`, from the object's reply; `None` if nothing was done.
    #[must_use]
    pub fn key_act(&self, reply: &ObjectReply, by: &str, key: &str) -> Option<KeyAct> {
        let word = match self.endpoint {
            Endpoint::ResetKey => "key.reset",
            Endpoint::Credit => "key.credited",
            _ => return None,
        };
        let decided = decided(reply, self.by_grant).ok()?;
        let [item] = self.items.as_slice() else { return None };
        let is_impossible = self.impossible.is_some() && !decided.is_replayed;
        (!is_impossible).then_some(())?;
        Some(Act::of(item, &item.answers(&decided.limits).ok()?, decided).to_record(word, by, key))
    }

    /// The rate-limit fields of a granted request, for another service's response.
    ///
    /// # Errors
    /// If the decision does not fit this request.
    #[cfg(feature = "tower")]
    pub(crate) fn fields(&self, decided: &Decided) -> Result<Vec<(&'static str, String)>, Problem> {
        let [item] = self.items.as_slice() else {
            return Err(Problem::Unavailable { cause: Cause::Failed });
        };
        Ok(rate_limit(item, &item.answers(&decided.limits)?, None, decided.now, None))
    }
}

/// The rate-limit fields: none if nothing is enforced, since an empty list is not a valid field. `shard` is a shard like the one that
/// answered, if one did.
fn rate_limit(
    item: &ResolvedItem,
    answers: &[Answered<'_>],
    shard: Option<&Policy>,
    now: i64,
    retry_after_s: Option<u64>,
) -> Vec<(&'static str, String)> {
    if answers.is_empty() {
        return Vec::new();
    }
    let policy = policy_field(item.policy.limits());
    let of_shard = |shard: &Policy| {
        let limits = shard.limits().iter().zip(answers).map(|(limit, (_, cost, answer))| (limit, *cost, *answer));
        limit_field(&limits.collect::<Vec<_>>(), now, retry_after_s)
    };
    let current = shard.map_or_else(|| limit_field(answers, now, retry_after_s), of_shard);
    vec![("ratelimit-policy", policy), ("ratelimit", current)]
}

/// The object's decision, or the problem in its reply. `by_grants`: the caller has a grant.
pub(super) fn decided(reply: &ObjectReply, by_grants: bool) -> Result<&Decided, Problem> {
    match reply {
        ObjectReply::Decided(decided) => Ok(decided),
        ObjectReply::NoReservation => Err(Problem::UnknownReservation),
        ObjectReply::RequestIdReused => Err(Problem::IdempotencyKeyReused),
        ObjectReply::TooManyReservations { max } => Err(Problem::TooManyReservations { max: *max, by_grants }),
        ObjectReply::TooManyInline { max } => Err(Problem::TooManyInlineBudgets { max: *max }),
        // The frontend has already retried, with the same reply.
        ObjectReply::PolicyUnknown | ObjectReply::PolicyOutdated { .. } | ObjectReply::FormatUnknown { .. } => {
            Err(Problem::Unavailable { cause: Cause::Failed })
        }
        ObjectReply::ReservationClosed => Err(Problem::ReservationClosed),
        ObjectReply::TooManyRequestIds { used, retry_after_ms } => {
            Err(Problem::TooManyIdempotencyKeys { used: *used, by_grants, retry_after_ms: *retry_after_ms })
        }
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use serde_json::Value;

    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::limit::{Decision, Snapshot};
    use crate::policy::Policies;
    use crate::protocol::LimitAnswer;

    /// Settles a reservation for work that cost `tokens` in the end: the costs requested from the object, and the body of the reply.
    fn settle(cost: &str, tokens: u64, reserved_costs: &[u64]) -> (Vec<u64>, Value) {
        let policies = Policies::parse(r#"{"api":{"rate":10,"period":"10s"}}"#).unwrap();
        let body = format!(r#"{{"policy":"api","key":"alice","reservation":"1"{cost}}}"#);
        let request = Request::parse(Endpoint::Settle, body.as_bytes()).unwrap();
        let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0).unwrap();
        let decision = Decision::Allow { tokens, ready_at: 0 };
        let snapshot = Snapshot { tokens: 0, drops: 0, at: 0 };
        let limits = vec![LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot, ban: None }];
        let decided = Decided { reserved_costs: reserved_costs.into(), ..Decided::new(0, limits) };
        let reply = resolved.reply(&ObjectReply::Decided(decided)).unwrap();
        let body = reply.body();
        (resolved.items[0].enforced_costs().to_vec(), serde_json::from_str(&body).unwrap())
    }

    #[test]
    fn settle_reports_the_cost_requested_and_the_cost_taken() {
        let (costs, body) = settle(r#","cost":1000"#, 10, &[]);
        assert_eq!(costs, [1_000]);
        assert_eq!((&body["cost"], &body["tokens"], &body["unpaid"]), (&1_000.into(), &10.into(), &990.into()));
    }

    #[test]
    fn settle_without_a_cost_reports_what_was_reserved_and_what_was_taken() {
        let (costs, body) = settle("", 7, &[]);
        assert_eq!(costs, [0_u64; 0]);
        assert_eq!((&body["cost"], &body["tokens"], body.get("unpaid")), (&7.into(), &7.into(), None));
        let (_, body) = settle("", 2, &[7]);
        assert_eq!((&body["cost"], &body["tokens"], &body["unpaid"]), (&7.into(), &2.into(), &5.into()));
    }

    /// The top level is of the limit that could not take all.
    #[test]
    fn what_one_of_several_limits_could_not_take_is_unpaid() {
        let two = r#"[{"name":"a","rate":10,"period":"10s"},{"name":"b","rate":10,"period":"10s"}]"#;
        let policies = Policies::parse(&format!(r#"{{"api":{{"limits":{two}}}}}"#)).unwrap();
        let request = Request::parse(Endpoint::Settle, br#"{"policy":"api","key":"alice","reservation":"1"}"#).unwrap();
        let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0).unwrap();
        let snapshot = Snapshot { tokens: 0, drops: 0, at: 0 };
        for (tokens, unpaid) in [([5, 2], Some(3)), ([2, 5], Some(3)), ([5, 5], None)] {
            let decisions = tokens.map(|tokens| Decision::Allow { tokens, ready_at: 0 });
            let limit = |decision| LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot, ban: None };
            let reserved_costs = if unpaid.is_some() { [5, 5].into() } else { Box::default() };
            let decided = Decided { reserved_costs, ..Decided::new(0, decisions.map(limit).to_vec()) };
            let body: Value =
                serde_json::from_str(&resolved.reply(&ObjectReply::Decided(decided)).unwrap().body()).unwrap();
            assert_eq!((body["cost"].as_u64(), body["unpaid"].as_u64()), (Some(5), unpaid), "{body}");
        }
    }

    #[test]
    fn each_reply_without_a_decision_has_its_own_problem() {
        for (reply, problem) in [
            (ObjectReply::NoReservation, Problem::UnknownReservation),
            (ObjectReply::ReservationClosed, Problem::ReservationClosed),
            (ObjectReply::RequestIdReused, Problem::IdempotencyKeyReused),
            (
                ObjectReply::TooManyReservations { max: 1_000 },
                Problem::TooManyReservations { max: 1_000, by_grants: true },
            ),
            (ObjectReply::TooManyInline { max: 9 }, Problem::TooManyInlineBudgets { max: 9 }),
            (
                ObjectReply::TooManyRequestIds { used: 16_384, retry_after_ms: 1_001 },
                Problem::TooManyIdempotencyKeys { used: 16_384, by_grants: true, retry_after_ms: 1_001 },
            ),
            (ObjectReply::PolicyUnknown, Problem::Unavailable { cause: Cause::Failed }),
            (ObjectReply::FormatUnknown { newest: 1 }, Problem::Unavailable { cause: Cause::Failed }),
        ] {
            assert_eq!(decided(&reply, true).err(), Some(problem));
        }
    }

    /// The body after the limits `a` and `b` of a policy decided this request.
    fn of_both(endpoint: Endpoint, mode: &str, decisions: [Decision; 2]) -> Value {
        let two = r#"[{"name":"a","rate":10,"period":"10s"},{"name":"b","rate":10,"period":"10s"}]"#;
        let policies = Policies::parse(&format!(r#"{{"api":{{"limits":{two}}}}}"#)).unwrap();
        let body = format!(r#"{{"policy":"api","key":"alice","mode":"{mode}"}}"#);
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 500).unwrap();
        let snapshot = Snapshot { tokens: 0, drops: 0, at: 500 };
        let limit = |decision| LimitAnswer { decision, remaining: 0, owed: 0, reset_at: None, snapshot, ban: None };
        let decided = Decided::new(500, decisions.map(limit).to_vec());
        serde_json::from_str(&resolved.reply(&ObjectReply::Decided(decided)).unwrap().body()).unwrap()
    }

    #[test]
    fn tokens_are_ready_with_the_last_limit_and_never_if_one_refuses() {
        let ready = |ready_at| Decision::Allow { tokens: 1, ready_at };
        let (wait, never) = (Decision::Wait { retry_at: 600 }, Decision::Never { max: 0 });
        for (decisions, of_all, of_each) in [
            ([ready(700), ready(900)], Some(900), [Some(700), Some(900)]),
            ([ready(700), wait], None, [Some(700), None]),
            ([never, ready(900)], None, [None, Some(900)]),
            ([wait, wait], None, [None, None]),
        ] {
            for (endpoint, mode) in
                [(Endpoint::Consume, "reserve"), (Endpoint::Consume, "borrow"), (Endpoint::Peek, "reserve")]
            {
                let body = of_both(endpoint, mode, decisions);
                let ready_at = |body: &Value| body.get("ready_at").and_then(Value::as_i64);
                assert_eq!((ready_at(&body), body["allowed"].as_bool()), (of_all, Some(of_all.is_some())), "{mode}");
                let limits = body["limits"].as_array().unwrap();
                assert_eq!(limits.iter().map(ready_at).collect::<Vec<_>>(), of_each, "{mode}");
            }
        }
    }

    #[test]
    fn jitter_lengthens_the_reported_waits_and_nothing_else() {
        let policies = Policies::parse(r#"{"p":{"rate":10,"period":"10s","jitter":"2s"}}"#).unwrap();
        let snapshot = Snapshot { tokens: 0, drops: 0, at: 500 };
        let shown = |endpoint: Endpoint, random: Option<u64>| {
            let item = r#"{"policy":"p","key":"a"}"#;
            let body =
                if endpoint == Endpoint::Batch { format!(r#"{{"requests":[{item}]}}"#) } else { item.to_owned() };
            let request = Request::parse(endpoint, body.as_bytes()).unwrap();
            let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 500).unwrap().spread(|| random);
            let decision = Decision::Wait { retry_at: 1_500 };
            let limits =
                vec![LimitAnswer { decision, remaining: 0, owed: 0, reset_at: Some(10_500), snapshot, ban: None }];
            let reply = ObjectReply::Decided(Decided::new(500, limits));
            let reply = match endpoint {
                Endpoint::Batch => resolved.batch_reply(&[(&[0], Ok(reply))]),
                _ => resolved.reply(&reply),
            };
            let reply = reply.unwrap();
            let (body, headers) = (reply.body(), reply.headers);
            let body: Value = serde_json::from_str(&body).unwrap();
            let after = headers.iter().find(|(name, _)| *name == "retry-after").map(|(_, value)| value.to_string());
            let number = |name: &str| body[name].as_i64();
            (number("retry_at"), number("retry_after_ms"), after)
        };
        let at = |at: i64, after: &str| (Some(at), Some(at - 500), Some(after.to_owned()));
        for endpoint in [Endpoint::Consume, Endpoint::Batch] {
            assert_eq!(shown(endpoint, None), at(1_500, "1"), "without random bits");
            assert_eq!(shown(endpoint, Some(0)), at(1_500, "1"), "never earlier");
            assert_eq!(shown(endpoint, Some(u64::MAX / 2)), at(2_500, "2"));
            assert_eq!(shown(endpoint, Some(u64::MAX)), at(3_500, "3"), "by the whole of it at most");
        }
        assert_eq!(shown(Endpoint::Peek, Some(u64::MAX)), at(1_500, "1"), "a peek is exact");
    }

    /// The status, the rate-limit fields and the body for a key with this override, from its object's decision on 3 of 10 tokens.
    fn of_key(over: &str, endpoint: Endpoint, rest: &str, decision: Decision) -> (u16, Vec<(String, String)>, Value) {
        use crate::policy::overrides::Overrides;
        let overrides = Overrides::of_key("api", "alice", over);
        let policies = Policies::parse(r#"{"api":{"rate":10,"period":"10s"}}"#).unwrap();
        let policies = policies.with_overrides(std::sync::Arc::new(overrides));
        let body = format!(r#"{{"policy":"api","key":"alice","snapshot":true{rest}}}"#);
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        let resolved = ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 500).unwrap();
        let snapshot = Snapshot { tokens: 3, drops: 0, at: 500 };
        let ban = resolved.items()[0].policy.ban(None, 500); // as the object says it
        let limits = vec![LimitAnswer { decision, remaining: 3, owed: 0, reset_at: Some(7_500), snapshot, ban }];
        let decided = Decided::new(500, limits);
        let reply = resolved.reply(&ObjectReply::Decided(decided)).unwrap();
        let (body, status, headers) = (reply.body(), reply.status, reply.headers);
        let fields = headers.into_iter().filter(|(name, _)| *name == "retry-after" || name.starts_with("ratelimit"));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        (status, fields, serde_json::from_str(&body).unwrap())
    }

    fn fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    const NOTHING: (&str, &str) = ("ratelimit-policy", r#""api";q=0;tollgate-capacity=0"#);

    #[test]
    fn a_banned_key_is_told_so_and_until_when() {
        let refused = Decision::Wait { retry_at: 2_000 };
        let (status, headers, body) = of_key(r#""banned":true,"until":2000"#, Endpoint::Consume, "", refused);
        let expected = fields(&[("retry-after", "2"), NOTHING, ("ratelimit", r#""api";r=0;t=2"#)]);
        assert_eq!((status, headers), (429, expected));
        assert_eq!(body["detail"], "this key is banned from policy api; retry in 1500 ms");
        let members =
            ["banned", "limit", "remaining", "retry_at", "reset_at", "allowed"].map(|name| body[name].clone());
        assert_eq!(Value::from(members.to_vec()), serde_json::json!([true, 0, 0, 2_000, 2_000, false]));
        let numbers = serde_json::json!({"kind": "token_bucket", "rate": 0, "period_ms": 1, "capacity": 0, "max_debt": 0,
            "tokens": 0, "drops": 0, "at": 500});
        assert_eq!(body["snapshot"], serde_json::json!([numbers]));

        let (status, headers, body) = of_key(r#""banned":true"#, Endpoint::Peek, "", Decision::Never { max: 0 });
        assert_eq!((status, headers), (429, fields(&[NOTHING, ("ratelimit", r#""api";r=0"#)])));
        assert_eq!(body["detail"], "this key is banned from policy api; the ban has no end");
        assert_eq!((body.get("retry_at"), &body["reset_at"]), (None, &Value::Null));
    }

    #[test]
    fn what_a_banned_key_gives_back_is_answered_as_usual() {
        let moved = Decision::Allow { tokens: 2, ready_at: 500 };
        let (status, headers, body) = of_key(r#""banned":true"#, Endpoint::Refund, r#","cost":2"#, moved);
        assert_eq!((status, headers.len(), &body["remaining"], body.get("banned")), (200, 2, &3.into(), None));
        let (status, _, body) =
            of_key(r#""banned":true,"until":2000"#, Endpoint::Inspect, "", Decision::Never { max: 0 });
        let members = (&body["banned"], &body["banned_until"], &body["limits"][0]["remaining"]);
        assert_eq!((status, members), (200, (&true.into(), &2_000.into(), &3.into())));
        // Granted before the ban, and repeated.
        let (status, _, body) = of_key(r#""banned":true"#, Endpoint::Consume, "", moved);
        assert_eq!((status, body.get("banned")), (200, None));
    }

    #[test]
    fn a_key_without_limits_gets_no_limit_to_pause_for() {
        let granted = Decision::Allow { tokens: 3, ready_at: 500 };
        let (status, headers, body) = of_key(r#""unlimited":true"#, Endpoint::Consume, r#","cost":1000"#, granted);
        assert_eq!((status, headers), (200, Vec::new()));
        let members = ["unlimited", "allowed", "cost", "near_limit", "reset_at"].map(|name| body[name].clone());
        assert_eq!(Value::from(members.to_vec()), serde_json::json!([true, true, 1000, false, null]));
        assert_eq!((body.get("limit"), body.get("remaining")), (None, None));
        assert_eq!(body["snapshot"][0]["tokens"], 9_007_199_254_740_991_u64);
        let (_, headers, body) = of_key(r#""unlimited":true"#, Endpoint::Charge, "", granted);
        assert_eq!((headers.len(), &body["remaining"], body.get("unlimited")), (2, &3.into(), None));
    }

    #[test]
    fn an_overrides_numbers_are_reported_like_a_policys() {
        let granted = Decision::Allow { tokens: 1, ready_at: 500 };
        let (_, headers, body) = of_key(r#""multiple":2.5"#, Endpoint::Consume, r#","cost":25"#, granted);
        assert_eq!(headers[0].1, r#""api";q=25;w=10;tollgate-capacity=25"#);
        assert_eq!((&body["limit"], &body["remaining"]), (&25.into(), &3.into()));
    }
}
