//! The service's answers for the npm package's limiters: status, headers and body, from a WebAssembly module that imports nothing.
//!
//! A limiter in a server's own process decides, and this writes the service's response to that. JavaScript has an instance for each
//! limiter. Each export replaces a question by its answer: see [`exchange`](crate::exchange). An answer is JSON:
//! `{"status":429,"headers":{"retry-after":"2"},"body":"…"}`.
#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::api::{Cause, Cost, Problem, Reply, ResolvedRequest};
use crate::exchange::replace;
use crate::limit::{Decision, Snapshot};
use crate::policy::{Ban, NamedLimit, Policies, Policy};
use crate::protocol::{Decided, LimitAnswer, ObjectReply};

/// The policy of the limiter.
static POLICY: Mutex<Option<Arc<Policy>>> = Mutex::new(None);

/// Takes over the policy in the text, which is the JSON of `POLICIES` with one. Replaces the text by every error in it, and returns its
/// length: 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn answer_policy() -> usize {
    replace(|text| match Policies::parse(text) {
        Ok(policies) => {
            *POLICY.lock().unwrap_or_else(PoisonError::into_inner) = policies.iter().next().cloned();
            String::new()
        }
        Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    })
}

/// Replaces the text by the answer to a decided request, and returns its length. The text is whole numbers: the moment of the decision,
/// then for each limit the cost, its decision (0 for [`Decision::Allow`], the tokens, when they may be used; 1 for [`Decision::Wait`], when to
/// retry, 0; 2 for [`Decision::Never`], the largest cost, 0) and its [`Snapshot`] after that (`tokens`, `drops`, `at`; of a rolling window, when it is full again). A key that is banned
/// was refused because of that.
#[unsafe(no_mangle)]
pub extern "C" fn answer_decided(is_banned: bool) -> usize {
    replace(|text| {
        let policy = POLICY.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = policy.as_ref().ok_or(UNKNOWN).and_then(|policy| decided(policy, text, is_banned));
        written(&reply.unwrap_or_else(Reply::from))
    })
}

/// Replaces the text by the answer to a wrong request, and returns its length. The text says what is wrong.
#[unsafe(no_mangle)]
pub extern "C" fn answer_bad_request() -> usize {
    replace(|text| written(&Problem::BadRequest { detail: text.to_owned() }.reply()))
}

/// Replaces the text by the answer if nothing could be decided, and returns its length.
#[unsafe(no_mangle)]
pub extern "C" fn answer_unavailable(is_late: bool) -> usize {
    let cause = if is_late { Cause::Timeout } else { Cause::Failed };
    replace(|_| written(&Problem::Unavailable { cause }.reply()))
}

/// Replaces the text by the answer to a new key for which there is no room, and returns its length. There is none for as many milliseconds
/// as the text says, or for ever if it is empty.
#[unsafe(no_mangle)]
pub extern "C" fn answer_no_room() -> usize {
    replace(|text| written(&Problem::NoRoom { retry_after_ms: text.parse().ok() }.reply()))
}

fn decided(policy: &Arc<Policy>, text: &str, is_banned: bool) -> Result<Reply, Problem> {
    let numbers: Vec<i64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let (now, each) = numbers.split_first().ok_or(UNKNOWN)?;
    let each: Vec<_> = policy.limits().iter().zip(each.chunks_exact(7)).collect();
    if each.len() < policy.limits().len() {
        return Err(UNKNOWN);
    }
    let cost = match each.as_slice() {
        [(_, [cost, ..])] => Cost::Each(cost.unsigned_abs()),
        several => {
            let costs = several
                .iter()
                .filter_map(|&(limit, numbers)| Some((limit.name()?.into(), numbers.first()?.unsigned_abs())));
            Cost::ByLimit(costs.collect())
        }
    };
    let request = ResolvedRequest::consume(policy, &cost)?;
    let mut answers: Vec<_> = each.iter().filter_map(|(limit, numbers)| answer(limit, numbers, *now)).collect();
    for answer in answers.iter_mut().filter(|_| is_banned) {
        answer.ban = Some(Ban { until: answer.retry_at() });
    }
    request.reply(&ObjectReply::Decided(Decided::new(*now, answers)))
}

/// The answer if there are no numbers, or none that the policy can have.
const UNKNOWN: Problem = Problem::Unavailable { cause: Cause::Failed };

fn answer(named: &NamedLimit, numbers: &[i64], now: i64) -> Option<LimitAnswer> {
    let &[_cost, kind, number, at, tokens, drops, since] = numbers else { return None };
    let decision = match kind {
        0 => Decision::Allow { tokens: number.unsigned_abs(), ready_at: at },
        1 => Decision::Wait { retry_at: number },
        _ => Decision::Never { max: number.unsigned_abs() },
    };
    let state = named.limit().restored(&Snapshot { tokens, drops: drops.unsigned_abs(), at: since })?;
    let mut answer = LimitAnswer::new(named.limit(), decision, &state, now);
    if named.limit().is_rolling() {
        answer.set_full_at(named.limit(), since);
    }
    Some(answer)
}

fn written(reply: &Reply) -> String {
    #[derive(Serialize)]
    struct Answer<'a> {
        status: u16,
        headers: BTreeMap<&'a str, &'a str>,
        body: String,
    }
    let headers = reply.headers.iter().map(|(name, value)| (*name, &**value)).collect();
    // Serializing it cannot fail.
    serde_json::to_string(&Answer { status: reply.status, headers, body: reply.body() }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::exchanged;
    use serde_json::Value;

    /// The answer to a request whose limits have these numbers, as JSON, and its body.
    fn answered(settings: &str, numbers: &str) -> (Value, Value) {
        answer_of(settings, numbers, false)
    }

    fn answer_of(settings: &str, numbers: &str, is_banned: bool) -> (Value, Value) {
        let policies = Policies::parse(&format!(r#"{{"p":{settings}}}"#)).unwrap();
        let reply = decided(policies.get("p").unwrap(), numbers, is_banned).unwrap_or_else(Reply::from);
        let answer: Value = serde_json::from_str(&written(&reply)).unwrap();
        let body = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
        (answer, body)
    }

    const ONE: &str = r#"{"rate":10,"period":"10s"}"#;

    #[test]
    fn a_grant_has_the_fields_of_the_service() {
        let (answer, body) = answered(ONE, "500 3 0 3 500 7 0 500");
        assert_eq!(answer["status"], 200);
        assert_eq!(answer["headers"]["ratelimit-policy"], r#""p";q=10;w=10;tollgate-capacity=10"#);
        assert_eq!(answer["headers"]["ratelimit"], r#""p";r=7;t=1"#);
        assert_eq!((&body["allowed"], &body["remaining"]), (&true.into(), &7.into()));
    }

    #[test]
    fn a_refusal_is_a_problem_that_says_when_to_retry_and_has_no_cors() {
        let (answer, body) = answered(ONE, "500 3 1 2500 0 1 0 500");
        assert_eq!(answer["status"], 429);
        assert_eq!(answer["headers"]["content-type"], "application/problem+json");
        assert_eq!(answer["headers"]["retry-after"], "2");
        let [at, after, limit] = ["retry_at", "retry_after_ms", "limit"].map(|name| body[name].as_u64());
        assert_eq!((at, after, limit), (Some(2_500), Some(2_000), Some(10)));
        let headers = answer["headers"].as_object().unwrap();
        assert!(headers.keys().all(|name| !name.starts_with("access-control-")), "{headers:?}");
    }

    #[test]
    fn a_banned_key_learns_until_when_and_has_nothing() {
        for (numbers, when, field) in [
            ("500 3 1 2500 0 1 0 500", "retry in 2000 ms", r#""p";r=0;t=2"#),
            ("500 3 2 0 0 1 0 500", "the ban has no end", r#""p";r=0"#),
        ] {
            let (answer, body) = answer_of(ONE, numbers, true);
            assert_eq!((&answer["status"], &answer["headers"]["ratelimit"]), (&429.into(), &field.into()));
            assert_eq!((&body["banned"], &body["limit"], &body["remaining"]), (&true.into(), &0.into(), &0.into()));
            assert_eq!(body["detail"], format!("this key is banned from policy p; {when}"));
        }
    }

    #[test]
    fn each_limit_has_its_own_numbers() {
        let two = r#"{"limits":[{"name":"a","rate":10,"period":"10s"},{"name":"b","rate":1,"period":"1m"}]}"#;
        let (answer, body) = answered(two, "0 2 0 2 0 8 0 0 1 1 60000 0 0 0 0");
        assert_eq!(answer["headers"]["ratelimit"], r#""p/a";r=8;t=1, "p/b";r=0;t=60"#);
        assert_eq!((&body["violated-policies"], &body["cost"]), (&serde_json::json!(["p/b"]), &1.into()));
    }

    #[test]
    fn a_cost_that_can_never_pass_is_a_wrong_request() {
        let (answer, body) = answered(ONE, "0 11 2 10 0 10 0 0");
        assert_eq!((&answer["status"], &body["max_cost"]), (&400.into(), &10.into()));
    }

    #[test]
    fn a_state_that_the_limit_cannot_have_is_no_answer() {
        for numbers in ["0 1 0 1 0 11 0 0", "0 1 0 1 0", "0", ""] {
            assert_eq!(answered(ONE, numbers).0["status"], 503, "{numbers}");
        }
    }

    /// The only test with the exports, which share one text.
    #[test]
    fn an_export_returns_the_length_of_its_answer() {
        let (errors, len) = exchanged(r#"{"p":{"rate":1}}"#, || answer_policy());
        assert!(errors.contains("period") && errors.len() == len, "{errors} {len}");
        assert_eq!(exchanged(&format!(r#"{{"p":{ONE}}}"#), || answer_policy()), (String::new(), 0));
        let has = |part: &str, question: &str, export: fn() -> usize| {
            let (answer, len) = exchanged(question, export);
            assert!(answer.contains(part) && answer.len() == len, "{answer} {len}");
        };
        has(r#""status":200"#, "0 1 0 1 0 9 0 0", || answer_decided(false));
        has("is banned", "0 1 2 0 0 9 0 0", || answer_decided(true));
        has("`key` must be a text", "`key` must be a text", || answer_bad_request());
        has("in time", "", || answer_unavailable(true));
        has("did not answer", "", || answer_unavailable(false));
        has(r#""retry-after":"2""#, "1001", || answer_no_room());
        has(r#""status":503"#, "", || answer_no_room());
        assert!(!exchanged("", || answer_no_room()).0.contains("retry-after"));
    }
}
