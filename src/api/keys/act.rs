//! `POST /v1/keys/reset` and `POST /v1/keys/credit`: operators' changes to a key's buckets, and their record.

use serde::Serialize;

use super::super::reply::Reply;
use super::super::resolved::{Answered, ResolvedItem};
use super::super::verdict::is_false;
use crate::protocol::{Decided, KeyAct};

/// The answer to an act on a policy's buckets for a key.
#[derive(Serialize)]
pub(in super::super) struct Act<'a> {
    policy: &'a str,
    now: i64,
    #[serde(skip_serializing_if = "is_false")]
    replayed: bool,
    /// Unknown for a replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Vec<Level<'a>>>,
    after: Vec<Level<'a>>,
}

#[derive(Serialize)]
struct Level<'a> {
    limit: &'a str,
    level: i64,
}

impl<'a> Act<'a> {
    pub(in super::super) fn of(item: &'a ResolvedItem, answers: &[Answered<'a>], decided: &Decided) -> Self {
        let limits = || answers.iter().map(|(limit, _, _)| limit.full_name());
        let levels = |levels: Vec<i64>| limits().zip(levels).map(|(limit, level)| Level { limit, level }).collect();
        let is_known = decided.before.len() == answers.len();
        Self {
            policy: item.policy.name(),
            now: decided.now,
            replayed: decided.is_replayed,
            before: is_known.then(|| levels(decided.before.clone())),
            after: levels(answers.iter().map(|(_, _, answer)| answer.level()).collect()),
        }
    }

    pub(in super::super) fn reply(&self) -> Reply {
        Reply::json(200, "application/json", self)
    }

    /// The line of the audit log: `act` on the key shown as `key`, by `by`. A replayed act was done before: the line says so, since the
    /// first line may be missing.
    pub(in super::super) fn to_record(&self, act: &str, by: &str, key: &str) -> KeyAct {
        // Serializing texts and numbers cannot fail.
        let json = |levels: &Vec<Level<'_>>| serde_json::to_string(levels).ok();
        KeyAct {
            act: act.to_owned(),
            by: by.to_owned(),
            key: key.to_owned(),
            policy: self.policy.to_owned(),
            before: self.before.as_ref().and_then(json),
            after: json(&self.after),
            is_replayed: self.replayed,
        }
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::super::super::request::Request;
    use super::super::super::{Endpoint, ResolvedRequest};
    use super::*;
    use crate::access::Caller;
    use crate::limit::{Decision, Snapshot};
    use crate::policy::Policies;
    use crate::protocol::{LimitAnswer, ObjectReply};

    #[test]
    fn what_is_recorded_is_what_was_answered() {
        let policies = Policies::parse(r#"{"api":{"rate":9,"period":"1s"}}"#).unwrap();
        let asked = |endpoint| {
            let request = Request::parse(endpoint, br#"{"policy":"api","key":"a"}"#).unwrap();
            ResolvedRequest::new(&request, &policies, &Caller::TRUSTED, 0).unwrap()
        };
        let snapshot = Snapshot { tokens: 9, drops: 0, at: 5 };
        let decision = Decision::Allow { tokens: 0, ready_at: 5 };
        let limit = LimitAnswer { decision, remaining: 9, owed: 0, reset_at: None, snapshot, ban: None };
        let done = Decided { before: vec![-3], ..Decided::new(5, vec![limit]) };
        let act = |endpoint, decided: &Decided| {
            asked(endpoint).key_act(&ObjectReply::Decided(decided.clone()), "ops", "0123456789abcdef")
        };
        let level = |level: i64| Some(format!(r#"[{{"limit":"api","level":{level}}}]"#));
        let reset = act(Endpoint::ResetKey, &done).unwrap();
        assert_eq!((&*reset.act, &*reset.policy, reset.before, reset.after), ("key.reset", "api", level(-3), level(9)));
        assert!(!reset.is_replayed);
        let replayed = Decided { before: Vec::new(), is_replayed: true, ..done.clone() };
        let replayed = act(Endpoint::Credit, &replayed).unwrap();
        assert_eq!((&*replayed.act, &replayed.before, replayed.is_replayed), ("key.credited", &None, true));
        assert_eq!(act(Endpoint::Explain, &done), None, "nothing was done");
        assert_eq!(asked(Endpoint::Credit).key_act(&ObjectReply::RequestIdReused, "ops", "0"), None);
        let body = asked(Endpoint::ResetKey).reply(&ObjectReply::Decided(done)).unwrap().body();
        assert!(
            body.contains(r#""before":[{"limit":"api","level":-3}],"after":[{"limit":"api","level":9}]"#),
            "{body}"
        );
    }
}
