//! What an object decided: as numbers on the way to the front, as a response from there on.

use serde::Serialize;
use sfv::{KeyRef, ListSerializer, StringRef, key_ref};

use super::policy::{Policy, field_integer};
use super::reply::Reply;
use crate::limit::{Decision, Limit, State};

/// A decision with all that its response says. All moments are Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    decision: Decision,
    /// The moment of the decision.
    now: i64,
    /// Whole tokens left after it.
    remaining: u64,
    /// When the bucket is full again, if ever.
    reset_at: Option<i64>,
}

impl Answer {
    /// What `decision`, which left `state`, means to its client.
    #[must_use]
    pub fn new(decision: Decision, limit: &Limit, state: &State, now: i64) -> Self {
        Self { decision, now, remaining: limit.remaining(state, now), reset_at: limit.full_at(state, now) }
    }

    /// The answer as numbers that JavaScript keeps exact: the kind of decision, its one or two numbers, the moment, the
    /// tokens left, and the reset or −1.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "tokens are at most 2⁵³ − 1, and so are moments until the year 287 000"
    )]
    pub fn to_numbers(self) -> [f64; 6] {
        let (kind, first, second) = match self.decision {
            Decision::Allow { tokens, ready_at } => (0, tokens, ready_at),
            Decision::Wait { retry_at } => (1, 0, retry_at),
            Decision::Never { max } => (2, max, 0),
        };
        [
            f64::from(kind),
            first as f64,
            second as f64,
            self.now as f64,
            self.remaining as f64,
            self.reset_at.unwrap_or(-1) as f64,
        ]
    }

    /// The answer that [`Answer::to_numbers`] was made of, or `None` for numbers that are none.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the numbers were whole")]
    pub fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let &[kind, first, second, now, remaining, reset_at] = numbers else {
            return None;
        };
        let decision = match kind as u8 {
            0 => Decision::Allow { tokens: first as u64, ready_at: second as i64 },
            1 => Decision::Wait { retry_at: second as i64 },
            2 => Decision::Never { max: first as u64 },
            _ => return None,
        };
        let reset_at = if reset_at < 0.0 { None } else { Some(reset_at as i64) };
        Some(Self { decision, now: now as i64, remaining: remaining as u64, reset_at })
    }

    /// The response: 200 when allowed, else 429 with `Retry-After` if there is a time to retry at.
    #[must_use]
    pub fn reply(&self, policy: &Policy, cost: u64) -> Reply {
        let retry_at = match self.decision {
            Decision::Wait { retry_at } => Some(retry_at),
            _ => None,
        };
        let verdict = Verdict {
            allowed: self.decision.is_allow(),
            policy: policy.name(),
            cost,
            limit: policy.limit().config().capacity,
            remaining: self.remaining,
            now: self.now,
            reset_at: self.reset_at,
            retry_at,
            retry_after_ms: retry_at.map(|at| self.until_ms(at)),
        };
        let retry_after_s = retry_at.map(|at| self.until_s(at).max(1));
        let reply = match retry_after_s {
            _ if verdict.allowed => Reply::json(200, "application/json", &verdict),
            Some(seconds) => refusal(&verdict).with("retry-after", seconds.to_string()),
            None => refusal(&verdict),
        };
        let next_s = retry_after_s.or_else(|| self.reset_at.map(|at| self.until_s(at)));
        reply.with("ratelimit-policy", policy.field()).with("ratelimit", self.field(policy, next_s))
    }

    /// The value of the `RateLimit` response field: tokens left, and the seconds until more can be had: until the retry
    /// when refused, until full otherwise.
    fn field(&self, policy: &Policy, next_s: Option<u64>) -> String {
        const R: &KeyRef = key_ref("r");
        const T: &KeyRef = key_ref("t");
        let mut list = ListSerializer::new();
        if let Ok(name) = StringRef::from_str(policy.name()) {
            let item = list.bare_item(name).parameter(R, field_integer(self.remaining));
            if let Some(seconds) = next_s {
                _ = item.parameter(T, field_integer(seconds));
            }
        }
        list.finish().unwrap_or_default()
    }

    fn until_ms(&self, at: i64) -> u64 {
        u64::try_from(at.saturating_sub(self.now)).unwrap_or(0)
    }

    /// Rounded up, since a client that came back a moment too early would be refused again.
    fn until_s(&self, at: i64) -> u64 {
        self.until_ms(at).div_ceil(1_000)
    }
}

/// The body of a response, allowed or refused.
#[derive(Serialize)]
struct Verdict<'a> {
    allowed: bool,
    policy: &'a str,
    cost: u64,
    limit: u64,
    remaining: u64,
    now: i64,
    reset_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

fn refusal(verdict: &Verdict<'_>) -> Reply {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: String,
        #[serde(rename = "violated-policies")]
        violated_policies: [&'a str; 1],
        #[serde(flatten)]
        verdict: &'a Verdict<'a>,
    }
    let Verdict { policy, cost, limit, remaining, retry_after_ms, .. } = verdict;
    let when = match retry_after_ms {
        Some(ms) => format!("enough will have come back in {ms} ms"),
        None => "none will come back".to_owned(),
    };
    let body = Body {
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Quota exceeded",
        status: 429,
        detail: format!("policy {policy} has {remaining} of {limit} tokens left and the cost is {cost}; {when}"),
        violated_policies: [policy],
        verdict,
    };
    Reply::json(429, "application/problem+json", &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Policies;

    fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        reply.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    /// Takes the costs one after the other at their moments from a fresh bucket, and returns the last reply.
    fn reply(policy: &str, asks: &[(i64, u64)]) -> Reply {
        let policies = Policies::parse(&format!(r#"{{"p":{policy}}}"#)).unwrap();
        let policy = policies.get("p").unwrap();
        let mut state = policy.limit().new_state(asks[0].0, 0);
        let mut last = None;
        for &(now, cost) in asks {
            let decision = policy.limit().consume(&mut state, now, cost);
            let answer = Answer::new(decision, policy.limit(), &state, now);
            assert_eq!(Answer::from_numbers(&answer.to_numbers()), Some(answer));
            last = Some(answer.reply(policy, cost));
        }
        last.unwrap()
    }

    #[test]
    fn allowed_is_200_with_what_is_left_and_when_it_is_full() {
        let reply = reply(r#"{"rate":10,"period":"10s"}"#, &[(5_000, 3)]);
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.body,
            r#"{"allowed":true,"policy":"p","cost":3,"limit":10,"remaining":7,"now":5000,"reset_at":8000}"#
        );
        assert_eq!(header(&reply, "ratelimit-policy"), Some(r#""p";q=10;w=10;tollgate-capacity=10"#));
        assert_eq!(header(&reply, "ratelimit"), Some(r#""p";r=7;t=3"#));
        assert_eq!(header(&reply, "retry-after"), None);
        assert_eq!(header(&reply, "content-type"), Some("application/json"));
    }

    #[test]
    fn refused_is_429_and_retry_after_is_rounded_up_to_whole_seconds() {
        // 3 per second: after taking all at 0, one is back at 334 ms.
        let policy = r#"{"rate":3,"period":"1s"}"#;
        let reply = reply(policy, &[(0, 3), (0, 1)]);
        assert_eq!(reply.status, 429);
        assert_eq!(header(&reply, "retry-after"), Some("1"));
        assert_eq!(header(&reply, "ratelimit"), Some(r#""p";r=0;t=1"#));
        assert_eq!(header(&reply, "content-type"), Some("application/problem+json"));
        assert_eq!(header(&reply, "cache-control"), Some("no-store"));
        assert_eq!(
            reply.body,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","#
                .to_owned()
                + r#""status":429,"detail":"policy p has 0 of 3 tokens left and the cost is 1; enough will have come "#
                + r#"back in 334 ms","violated-policies":["p"],"allowed":false,"policy":"p","cost":1,"limit":3,"#
                + r#""remaining":0,"now":0,"reset_at":1000,"retry_at":334,"retry_after_ms":334}"#
        );
    }

    #[test]
    fn retry_after_is_exact_at_whole_seconds() {
        let policy = r#"{"rate":1,"period":"2s"}"#;
        assert_eq!(header(&reply(policy, &[(0, 1), (0, 1)]), "retry-after"), Some("2"));
        assert_eq!(header(&reply(policy, &[(0, 1), (999, 1)]), "retry-after"), Some("2"));
        assert_eq!(header(&reply(policy, &[(0, 1), (1_000, 1)]), "retry-after"), Some("1"));
    }

    #[test]
    fn a_budget_that_never_refills_is_refused_without_a_time_to_retry() {
        let reply = reply(r#"{"rate":0,"period":"1s","capacity":5}"#, &[(0, 5), (0, 1)]);
        assert_eq!(reply.status, 429);
        assert_eq!(header(&reply, "retry-after"), None);
        assert_eq!(header(&reply, "ratelimit"), Some(r#""p";r=0"#));
        assert!(reply.body.contains("none will come back"));
    }

    #[test]
    fn numbers_that_are_no_answer_are_none() {
        assert_eq!(Answer::from_numbers(&[0.0; 5]), None);
        assert_eq!(Answer::from_numbers(&[3.0, 0.0, 0.0, 0.0, 0.0, 0.0]), None);
    }
}
