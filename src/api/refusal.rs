//! A 429: what was refused, why and until when.

use serde::Serialize;

use super::reply::Reply;
use super::resolved::Answered;
use super::text::seconds;

/// The members of a 429 besides its verdict: why, and until when.
pub(super) struct Refusal<'a> {
    pub(super) detail: String,
    pub(super) violated: Vec<&'a str>,
    pub(super) retry_after_ms: Option<u64>,
}

impl Refusal<'_> {
    /// Rounded up, since a client that returns too early is refused again.
    pub(super) fn retry_after_s(&self) -> Option<u64> {
        self.retry_after_ms.map(seconds)
    }
}

pub(super) fn respond(refused: Option<Refusal<'_>>, verdict: &impl Serialize) -> Reply {
    #[derive(Serialize)]
    struct Body<'a, V> {
        #[serde(rename = "type")]
        kind: &'static str,
        title: &'static str,
        status: u16,
        detail: String,
        #[serde(rename = "violated-policies")]
        violated_policies: Vec<&'a str>,
        #[serde(flatten)]
        verdict: &'a V,
    }
    let Some(refusal) = refused else {
        return Reply::json(200, "application/json", verdict);
    };
    let retry_after_s = refusal.retry_after_s();
    let body = Body {
        kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Quota exceeded",
        status: 429,
        detail: refusal.detail,
        violated_policies: refusal.violated,
        verdict,
    };
    let reply = Reply::json(429, "application/problem+json", &body);
    match retry_after_s {
        Some(seconds) => reply.with("retry-after", seconds.to_string()),
        None => reply,
    }
}

pub(super) fn violated<'a, 'p: 'a>(answers: impl Iterator<Item = &'a Answered<'p>>) -> Vec<&'p str> {
    let mut names = Vec::new();
    for (limit, _, answer) in answers {
        if !answer.decision.is_allow() && !names.contains(&limit.full_name()) {
            names.push(limit.full_name());
        }
    }
    names
}
