//! `POST /v1/keys/reset` and `POST /v1/keys/credit`: what operators change in the buckets of a key, and what is recorded of it.

use serde::Serialize;

use super::super::endpoint::Endpoint;
use super::super::reply::Reply;
use super::super::resolve::{Answered, ResolvedItem};
use super::super::verdict::is_false;
use crate::json::Json;
use crate::protocol::{Decided, KeyAct};

/// What was done to the buckets of a policy for a key.
pub(in super::super) fn act(item: &ResolvedItem, answers: &[Answered<'_>], decided: &Decided) -> Reply {
    #[derive(Serialize)]
    struct Body<'a> {
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
    let limits = || answers.iter().map(|(limit, _, _)| limit.full_name());
    let levels = |levels: Vec<i64>| limits().zip(levels).map(|(limit, level)| Level { limit, level }).collect();
    let is_known = decided.before.len() == answers.len();
    let body = Body {
        policy: item.policy.name(),
        now: decided.now,
        replayed: decided.is_replayed,
        before: is_known.then(|| levels(decided.before.clone())),
        after: levels(answers.iter().map(|(_, _, answer)| answer.level()).collect()),
    };
    Reply::json(200, "application/json", &body)
}

/// The act at `endpoint` on the key that is called `key`, by `by`, which was answered with the text of a reply; `None` if nothing
/// was done. One that is replayed was done before: the log says so, for its own line may be missing.
#[must_use]
pub fn key_act(endpoint: Endpoint, by: &str, key: &str, reply: &str) -> Option<KeyAct> {
    let act = match endpoint {
        Endpoint::ResetKey => "key.reset",
        Endpoint::Credit => "key.credited",
        _ => return None,
    };
    let (_, body) = reply.starts_with("200").then_some(reply)?.split_once("\n\n")?;
    let fields = Json::parse(body.trim_end()).ok()?.fields().ok()?;
    let raw = |name: &str| fields.get(name).map(|value| value.raw().to_owned());
    Some(KeyAct {
        act: act.to_owned(),
        by: by.to_owned(),
        key: key.to_owned(),
        policy: fields.get("policy")?.string()?.into_owned(),
        before: raw("before"),
        after: raw("after"),
        is_replayed: fields.get("replayed").is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_what_was_answered() {
        let body =
            r#"{"policy":"api","now":5,"before":[{"limit":"api","level":-3}],"after":[{"limit":"api","level":9}]}"#;
        let reply = format!("200\ncontent-type: application/json\n\n{body}\n");
        let act = key_act(Endpoint::ResetKey, "ops", "0123456789abcdef", &reply).unwrap();
        let level = |level: i64| Some(format!(r#"[{{"limit":"api","level":{level}}}]"#));
        assert!(!act.is_replayed);
        assert_eq!((&*act.act, &*act.policy, act.before, act.after), ("key.reset", "api", level(-3), level(9)));
        let replayed = reply.replace(r#""before":[{"limit":"api","level":-3}]"#, r#""replayed":true"#);
        let replayed = key_act(Endpoint::Credit, "ops", "0", &replayed).unwrap();
        assert_eq!((&*replayed.act, &replayed.before, replayed.is_replayed), ("key.credited", &None, true));
        assert_eq!(key_act(Endpoint::Explain, "ops", "0", &reply), None, "nothing was done");
        assert_eq!(key_act(Endpoint::Credit, "ops", "0", &reply.replacen("200", "503", 1)), None);
    }
}
