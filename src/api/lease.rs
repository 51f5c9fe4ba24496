//! The answer of `POST /v1/lease`: a lease, or when one will be possible.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::reply::Reply;
use super::resolved::ResolvedItem;
use super::verdict::{Verdict, is_false};
use crate::policy::NamedLimit;
use crate::protocol::Decided;

/// The length of a lease's id, which has 64 bits and is never a JavaScript number.
pub(super) const LEASE_ID_LEN: usize = 16;

/// The lease, or when one will be possible.
pub(super) fn leased(item: &ResolvedItem, verdict: &Verdict<'_>, decided: &Decided) -> Reply {
    #[derive(Serialize)]
    struct Leased<'a> {
        policy: &'a str,
        now: i64,
        #[serde(skip_serializing_if = "is_false")]
        replayed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        allowed: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
        tokens: Tokens<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        remaining: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_at: Option<i64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    }
    let lease = decided.lease.as_ref();
    let is_taken = item.cost.is_some();
    let is_refused = !verdict.allowed && (is_taken || lease.is_none());
    let body = Leased {
        policy: item.policy.name(),
        now: decided.now,
        replayed: decided.is_replayed,
        allowed: is_taken.then_some(verdict.allowed),
        lease: lease.map(|lease| format!("{:0LEASE_ID_LEN$x}", lease.id)),
        tokens: Tokens { limits: item.policy.limits(), tokens: lease.map_or(&[], |lease| &lease.tokens) },
        from: lease.map(|lease| lease.from),
        until: lease.map(|lease| lease.until),
        remaining: verdict.remaining,
        retry_at: verdict.retry_at.filter(|_| is_refused),
        retry_after_ms: verdict.retry_after_ms.filter(|_| is_refused),
    };
    Reply::json(200, "application/json", &body)
}

/// The tokens of each limit: a number if the only one has no name.
struct Tokens<'a> {
    limits: &'a [NamedLimit],
    tokens: &'a [u64],
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tokens = |index: usize| self.tokens.get(index).copied().unwrap_or(0);
        if self.limits.iter().all(|limit| limit.name().is_none()) {
            return serializer.serialize_u64(tokens(0));
        }
        let mut map = serializer.serialize_map(Some(self.limits.len()))?;
        for (index, limit) in self.limits.iter().enumerate() {
            map.serialize_entry(limit.name().unwrap_or_default(), &tokens(index))?;
        }
        map.end()
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use serde_json::{Value, json};

    use super::super::endpoint::Endpoint;
    use super::super::problem::Problem;
    use super::super::request::Request;
    use super::super::resolved::ResolvedRequest;
    use super::*;
    use crate::access::Caller;
    use crate::limit::{Decision, Snapshot, Verb};
    use crate::policy::Policies;
    use crate::protocol::{Action, EndedLease, Lease, LeaseRequest, LimitAnswer, ObjectReply};

    const POLICIES: &str = r#"{
        "api": {"rate":9,"period":"1s","capacity":20,"lease":"2s","max_lease":12},
        "llm": {"lease":"500ms","refusal_cache":"5s","limits":[{"name":"a","rate":"9/s"},{"name":"b","rate":"8/s"}]},
        "tried": {"rate":"9/s","mode":"shadow","lease":"2s"},
        "exact": "9/s"
    }"#;

    fn resolve(body: &str) -> Result<ResolvedRequest, String> {
        let policies = Policies::parse(POLICIES).unwrap();
        let request = Request::parse(Endpoint::Lease, body.as_bytes());
        let resolved = request.and_then(|request| ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0));
        resolved.map_err(|problem| match problem {
            Problem::BadRequest { detail } => detail,
            other => format!("{other:?}"),
        })
    }

    fn asked(policy: &str, more: &str) -> Result<ResolvedRequest, String> {
        resolve(&format!(r#"{{"policy":"{policy}","key":"k",{more}}}"#))
    }

    #[test]
    fn a_request_has_the_tokens_wanted_the_tokens_spent_and_a_cost() {
        let ended = |id, spent: &[u64]| EndedLease { id, spent: spent.to_vec() };
        let (look, take) = (Action::Look(Verb::Consume), Action::Take(Verb::Consume));
        let returned = r#""returned":[{"lease":"00000000000000ff","spent":3},{"lease":"FFFFFFFFFFFFFFFF","spent":4}]"#;
        for (policy, more, expected, costs, action) in [
            ("api", r#""tokens":10"#, (2_000, 1_000, vec![10], vec![]), vec![1], look),
            // More than the capacity is no error: the lease has what can be spared.
            ("api", r#""tokens":1000"#, (2_000, 1_000, vec![12], vec![]), vec![1], look),
            ("api", r#""tokens":1,"cost":3"#, (2_000, 1_000, vec![1], vec![]), vec![3], take),
            ("api", returned, (2_000, 1_000, vec![0], vec![ended(255, &[3]), ended(u64::MAX, &[4])]), vec![0], look),
            ("api", r#""returned":[]"#, (2_000, 1_000, vec![0], vec![]), vec![0], look),
            ("llm", r#""tokens":{"a":5,"b":6},"cost":2"#, (500, 500, vec![5, 6], vec![]), vec![2, 2], take),
            (
                "llm",
                r#""returned":[{"lease":"0000000000000001","spent":{"a":0,"b":9}}],"cost":0"#,
                (500, 500, vec![0, 0], vec![ended(1, &[0, 9])]),
                vec![0, 0],
                take,
            ),
        ] {
            let resolved = asked(policy, more).unwrap();
            let (lease_ms, horizon_ms, wanted, ended) = expected;
            let lease = LeaseRequest { lease_ms, horizon_ms, wanted, ended };
            assert_eq!((resolved.lease(), resolved.action()), (Some(&lease), action), "{more}");
            assert_eq!(resolved.items()[0].enforced_costs(), costs, "{more}");
        }
        let tried = asked("tried", r#""tokens":1"#).unwrap();
        assert_eq!((tried.lease(), tried.is_about_leases()), (None, true), "each request is tried");
    }

    #[test]
    fn says_what_is_wrong() {
        let id = "0123456789abcdef";
        let seventeen = vec![format!(r#"{{"lease":"{id}","spent":0}}"#); 17].join(",");
        for (policy, more, expected) in [
            ("exact", r#""tokens":1"#, "policy exact has no `lease`: its tokens cannot be leased"),
            ("api", r#""tokens":0"#, "`tokens` must be at least 1, of each limit; to lease none, leave it out"),
            (
                "llm",
                r#""tokens":{"a":1,"b":0}"#,
                "`tokens` must be at least 1, of each limit; to lease none, leave it out",
            ),
            ("llm", r#""tokens":{"a":1}"#, "the cost must name every limit of policy llm: a, b"),
            (
                "api",
                r#""tokens":-1"#,
                "`tokens` must be a whole number from 0 to 9007199254740991, or an object with one for each limit, not -1",
            ),
            ("api", r#""returned":7"#, "`returned` must be an array, not 7"),
            ("api", &format!(r#""returned":[{seventeen}]"#), "`returned` has at most 16 leases, not 17"),
            (
                "api",
                r#""returned":[{"lease":"0123","spent":1}]"#,
                "returned[0]: `lease` must be a lease's id of 16 hex digits, not \"0123\"",
            ),
            ("api", &format!(r#""returned":[{{"lease":"{id}"}}]"#), "returned[0]: the field `spent` is missing"),
            (
                "api",
                &format!(r#""returned":[{{"lease":"{id}","spent":1,"left":2}}]"#),
                "returned[0]: it cannot have the field \"left\"; its fields are lease, spent",
            ),
            (
                "api",
                r#""tokens":1,"snapshot":true"#,
                "the body cannot have the field \"snapshot\"; its fields are policy, key, cost, tokens, returned",
            ),
        ] {
            assert_eq!(asked(policy, more).err().as_deref(), Some(expected), "{more}");
        }
        let never = asked("api", r#""tokens":1,"cost":21"#).err().unwrap();
        assert!(never.starts_with("CostTooLarge"), "{never}");
    }

    #[test]
    fn an_answer_has_the_lease_or_when_there_could_be_one() {
        let answer = |decision| {
            let snapshot = Snapshot { tokens: 3, drops: 0, at: 500 };
            LimitAnswer { decision, remaining: 3, owed: 0, reset_at: Some(900), snapshot, ban: None }
        };
        let (allow, wait) = (Decision::Allow { tokens: 1, ready_at: 500 }, Decision::Wait { retry_at: 700 });
        let lease = |tokens: &[u64]| Some(Lease { id: 255, from: 500, until: 2_500, tokens: tokens.to_vec() });
        let id = "00000000000000ff";
        for (policy, more, decisions, lease, expected) in [
            (
                "api",
                r#""tokens":9"#,
                vec![allow],
                lease(&[9]),
                json!({"policy":"api","now":500,"lease":id,"tokens":9,"from":500,"until":2500,"remaining":3}),
            ),
            (
                "api",
                r#""tokens":9,"cost":1"#,
                vec![wait],
                None,
                json!({"policy":"api","now":500,"allowed":false,"tokens":0,"remaining":3,"retry_at":700,"retry_after_ms":200}),
            ),
            (
                "api",
                r#""tokens":9"#,
                vec![wait],
                lease(&[9]),
                json!({"policy":"api","now":500,"lease":id,"tokens":9,"from":500,"until":2500,"remaining":3}),
            ),
            ("api", r#""tokens":9"#, vec![allow], None, json!({"policy":"api","now":500,"tokens":0,"remaining":3})),
            (
                "llm",
                r#""tokens":9,"cost":1"#,
                vec![allow, allow],
                lease(&[4, 5]),
                json!({"policy":"llm","now":500,"allowed":true,"lease":id,"tokens":{"a":4,"b":5},"from":500,"until":2500,
                    "remaining":3}),
            ),
        ] {
            let limits = decisions.into_iter().map(answer).collect();
            let reply = ObjectReply::Decided(Decided { lease, ..Decided::new(500, limits) });
            let reply = asked(policy, more).unwrap().reply(&reply).unwrap();
            let (body, status) = (reply.body(), reply.status);
            assert_eq!((status, serde_json::from_str::<Value>(&body).unwrap()), (200, expected));
        }
    }
}
