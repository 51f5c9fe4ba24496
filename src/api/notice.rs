//! Notices for the operator's webhook or queue about a key that has used up a share of a limit, exceeds a soft one or is refused.

use std::slice;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::resolved::ResolvedRequest;
use super::tally::Tally;
use super::text::timestamp;
use super::verdict::{Verdict, is_false, is_zero};
use crate::access::key_json;
use crate::policy::NoticeKind;
use crate::protocol::DueNotice;

/// A notice to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The same for every attempt: receivers drop duplicates.
    pub id: String,
    /// JSON.
    pub body: String,
}

impl ResolvedRequest {
    /// Whether the object should report due notices: the request may lower a level, and a policy has notices.
    #[must_use]
    pub fn may_notify(&self) -> bool {
        self.action.lowers() && self.items.iter().any(|item| item.policy.object().notify.is_some())
    }
}

impl Tally<'_> {
    /// The notices that are due, about the key with this hash. Only `with_key` do they have the key as callers write it.
    #[must_use]
    pub fn notices(&self, object: &str, with_key: bool) -> Vec<Notice> {
        let Some(decided) = self.decided else { return Vec::new() };
        let Ok(answers) = self.item.answers(self.answers) else { return Vec::new() };
        let key = key_json(&self.item.key).filter(|_| with_key);
        let notice = |due: &DueNotice| {
            // A refusal is that of all limits. The others are about one, whichever decided.
            let about = match due.kind {
                NoticeKind::Refused => answers.as_slice(),
                _ => usize::try_from(due.limit).ok().and_then(|limit| answers.get(limit)).map(slice::from_ref)?,
            };
            let verdict = self.request.verdict(self.item, about, &[], decided);
            Some(Notice::of(due.kind, object, key.as_deref(), &verdict))
        };
        self.due.iter().filter(|due| due.policy == self.position).filter_map(notice).collect()
    }
}

impl Notice {
    fn of(kind: NoticeKind, object: &str, key: Option<&str>, verdict: &Verdict<'_>) -> Self {
        let Verdict { policy, now, .. } = *verdict;
        // There is at most one of a kind and limit per millisecond.
        let about = if kind == NoticeKind::Refused { policy } else { verdict.full_name };
        let digest = Sha256::digest([object, about, &kind.to_string(), &now.to_string()].join("\n"));
        let id = format!("msg_{:032x}", digest.first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes)));
        let body = Body {
            id: &id,
            kind: match kind {
                NoticeKind::Used { .. } => "key.used",
                NoticeKind::Over => "key.over",
                NoticeKind::Refused => "key.refused",
            },
            timestamp: timestamp(now),
            data: Data {
                policy,
                object,
                key: key.and_then(|key| serde_json::from_str(key).ok()),
                used_percent: match kind {
                    NoticeKind::Used { percent } => Some(percent),
                    _ => None,
                },
                of_limit: verdict.full_name,
                cost: verdict.cost,
                limit: verdict.limit,
                remaining: verdict.remaining,
                owed: verdict.owed,
                over: verdict.over,
                now,
                reset_at: verdict.reset_at,
                retry_at: verdict.retry_at,
                banned: verdict.banned,
            },
        };
        let body = serde_json::to_string(&body).unwrap_or_default(); // our own type cannot fail to serialize
        Self { id, body }
    }
}

/// The body of Standard Webhooks, with the id also where there are no headers.
#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<String>,
    data: Data<'a>,
}

/// The members have the names and meanings that they have in answers.
#[derive(Serialize)]
struct Data<'a> {
    policy: &'a str,
    object: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a RawValue>,
    /// The share of the policy's `notify`. More may be used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_percent: Option<u8>,
    /// The limit that it is about, or that decided.
    of_limit: &'a str,
    cost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    #[serde(skip_serializing_if = "is_zero")]
    owed: u64,
    #[serde(skip_serializing_if = "is_zero")]
    over: u64,
    now: i64,
    reset_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
    #[serde(skip_serializing_if = "is_false")]
    banned: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::endpoint::Endpoint;
    use super::super::request::Request;
    use super::*;
    use crate::access::Caller;
    use crate::limit::{Decision, Snapshot};
    use crate::policy::{Cause, Policies};
    use crate::protocol::{Decided, DueNotice, LimitAnswer, ObjectReply};

    const NOW: i64 = 1_700_000_000_123;
    const OBJECT: &str = "0123456789abcdef0123456789abcdef";

    fn resolved(endpoint: Endpoint, body: &str) -> ResolvedRequest {
        let policies = Policies::parse(
            r#"{"api":{"rate":"10/10s","notify":["refused"]},"quiet":"10/10s","llm":{"notify":["10%"],"limits":[
                {"name":"requests","rate":"10/10s"},{"name":"tokens","rate":"100/10s"}]}}"#,
        );
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        ResolvedRequest::new(&request, &policies.unwrap(), &Caller::TRUSTED, 0).unwrap()
    }

    fn reply(limits: &[(Decision, u64)], notices: Vec<DueNotice>) -> ObjectReply {
        let limits = limits.iter().map(|&(decision, remaining)| {
            let snapshot = Snapshot { tokens: 0, drops: 0, at: NOW };
            LimitAnswer { decision, remaining, owed: 0, reset_at: Some(NOW + 9_000), snapshot, ban: None }
        });
        ObjectReply::Decided(Decided { notices, ..Decided::new(NOW, limits.collect()) })
    }

    fn notices(
        asked: &ResolvedRequest,
        items: &[usize],
        reply: &Result<ObjectReply, Cause>,
        with_keys: bool,
    ) -> Vec<Value> {
        let mut found = Vec::new();
        asked.tally([(items, reply)].into_iter(), |tally| found.extend(tally.notices(OBJECT, with_keys)));
        let read = |notice: &Notice| {
            let body: Value = serde_json::from_str(&notice.body).unwrap();
            assert_eq!(body["id"], *notice.id);
            body
        };
        found.iter().map(read).collect()
    }

    const ALLOW: Decision = Decision::Allow { tokens: 3, ready_at: NOW };
    const WAIT: Decision = Decision::Wait { retry_at: NOW + 2_000 };

    const fn due(policy: u64, kind: NoticeKind) -> DueNotice {
        DueNotice { policy, limit: 0, kind }
    }

    #[test]
    fn a_notice_says_what_was_decided_and_why() {
        let asked = resolved(Endpoint::Consume, r#"{"policy":"api","key":"alice","cost":3}"#);
        let refused = Ok(reply(&[(WAIT, 1)], vec![due(0, NoticeKind::Refused)]));
        let [body] = notices(&asked, &[0], &refused, false).try_into().unwrap();
        let data = json!({"policy": "api", "object": "0123456789abcdef0123456789abcdef", "of_limit": "api", "cost": 3, "limit": 10,
            "remaining": 1, "now": NOW, "reset_at": NOW + 9_000, "retry_at": NOW + 2_000});
        let expected =
            json!({"id": body["id"], "type": "key.refused", "timestamp": "2023-11-14T22:13:20.123Z", "data": data});
        assert_eq!(body, expected);
        assert_eq!(body["id"].as_str().unwrap().len(), "msg_".len() + 32);
        let [again] = notices(&asked, &[0], &refused, true).try_into().unwrap();
        assert_eq!((&again["id"], &again["data"]["key"]), (&body["id"], &"alice".into()));
    }

    #[test]
    fn a_notice_of_a_share_is_about_its_own_limit() {
        let asked = resolved(Endpoint::Charge, r#"{"policy":"llm","key":["a","b"],"cost":{"requests":1,"tokens":3}}"#);
        let kind = NoticeKind::Used { percent: 10 };
        let both = [0, 1].map(|limit| DueNotice { limit, ..due(0, kind) });
        let used = Ok(reply(&[(ALLOW, 9), (ALLOW, 5)], both.to_vec()));
        let found = notices(&asked, &[0], &used, true);
        let numbers = |body: &Value| {
            ["of_limit", "cost", "limit", "remaining", "used_percent"].map(|name| body["data"][name].clone())
        };
        let expected = [
            [json!("llm/requests"), json!(1), json!(10), json!(9), json!(10)],
            [json!("llm/tokens"), json!(3), json!(100), json!(5), json!(10)],
        ];
        assert_eq!(found.iter().map(numbers).collect::<Vec<_>>(), expected);
        let [first, second] = [0, 1].map(|index: usize| &found[index]);
        assert_eq!((&first["type"], &first["data"]["key"]), (&json!("key.used"), &json!(["a", "b"])));
        assert_ne!(first["id"], second["id"]);
        assert!(first["data"].get("retry_at").is_none());
    }

    #[test]
    fn each_item_of_a_batch_has_its_own_notice() {
        let body =
            r#"{"requests":[{"policy":"quiet","key":"x"},{"policy":"llm","key":"y"},{"policy":"api","key":"y"}]}"#;
        let asked = resolved(Endpoint::Batch, body);
        let answers = [(ALLOW, 1), (ALLOW, 50), (WAIT, 0)];
        let replied = Ok(reply(&answers, vec![due(1, NoticeKind::Refused)]));
        let [body] = notices(&asked, &[1, 2], &replied, false).try_into().unwrap();
        assert_eq!((&body["data"]["policy"], &body["data"]["remaining"]), (&"api".into(), &0.into()));
        for (reply, items) in
            [(Ok(reply(&answers[..1], vec![due(0, NoticeKind::Refused)])), &[1, 2][..]), (Err(Cause::Failed), &[0])]
        {
            assert!(notices(&asked, items, &reply, false).is_empty(), "an answer that does not fit, or none");
        }
    }

    #[test]
    fn only_requests_that_may_lower_a_level_give_notices() {
        for (endpoint, more, may) in [
            (Endpoint::Consume, "", true),
            (Endpoint::Consume, r#","mode":"reserve""#, true),
            (Endpoint::Consume, r#","mode":"up_to""#, true),
            (Endpoint::Charge, "", true),
            (Endpoint::Settle, r#","reservation":"1""#, true),
            (Endpoint::Extend, r#","reservation":"1""#, true),
            (Endpoint::Peek, "", false),
            (Endpoint::Inspect, "", false),
            (Endpoint::Refund, "", false),
            (Endpoint::Reset, "", false),
            (Endpoint::Cancel, r#","reservation":"1""#, false),
        ] {
            for (policy, notifies) in [("api", true), ("quiet", false)] {
                let asked = resolved(endpoint, &format!(r#"{{"policy":"{policy}","key":"k"{more}}}"#));
                assert_eq!(asked.may_notify(), may && notifies, "{endpoint:?} {more}");
            }
        }
        let batch = |policy: &str| {
            format!(r#"{{"requests":[{{"policy":"quiet","key":"a"}},{{"policy":"{policy}","key":"b"}}]}}"#)
        };
        assert!(resolved(Endpoint::Batch, &batch("llm")).may_notify());
        assert!(!resolved(Endpoint::Batch, &batch("quiet")).may_notify());
    }
}
