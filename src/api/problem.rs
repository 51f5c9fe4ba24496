//! Everything that can be wrong with a request, and how it is said: `application/problem+json`, RFC 9457.

use serde::Serialize;

use super::endpoint::Endpoint;
use super::reply::Reply;
use super::request::MAX_BODY_LEN;
use super::text::shown;
use crate::policy::Cause;

/// Why a request gets no decision. A refusal is not a problem in this sense but an answer.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The body is not a valid request.
    BadRequest { detail: String },
    /// More tokens than the limit could ever grant at once.
    CostTooLarge { limit: String, cost: u64, max: u64 },
    /// No credentials, or wrong ones.
    Unauthorized,
    /// No such path.
    NotFound { path: String },
    /// No such policy.
    UnknownPolicy { policy: String },
    /// No such reservation, or no more.
    UnknownReservation,
    /// As many reservations of the key are open as there can be.
    TooManyReservations { max: u64 },
    /// The `Idempotency-Key` came before, with another request.
    IdempotencyKeyReused,
    /// The path is there, but not for this method.
    MethodNotAllowed { method: String, allow: &'static str },
    /// The body is longer than [`MAX_BODY_LEN`].
    BodyTooLarge,
    /// The body is not said to be JSON.
    UnsupportedMediaType { found: String },
    /// The deployment has errors; they are in its log.
    Misconfigured,
    /// The object that keeps the key's buckets did not answer; more of why is in the log.
    Unavailable { cause: Cause },
}

impl Problem {
    /// The response for this problem.
    #[must_use]
    pub fn reply(&self) -> Reply {
        let (status, kind, title) = self.class();
        let max_cost = match self {
            Self::CostTooLarge { max, .. } => Some(*max),
            _ => None,
        };
        let cause = match self {
            Self::Unavailable { cause } => Some(cause.word()),
            _ => None,
        };
        let body = Body { kind, title, status, detail: self.detail(), max_cost, cause };
        let reply = Reply::json(status, "application/problem+json", &body);
        match self {
            // RFC 6750 §3: a missing or wrong token is answered with the scheme that would be right.
            Self::Unauthorized => reply.with("www-authenticate", "Bearer realm=\"tollgate\""),
            Self::MethodNotAllowed { allow, .. } => reply.with("allow", *allow),
            // It is back in a moment or not for long: nobody knows, and a second is not worth waiting less than.
            Self::Unavailable { .. } => reply.with("retry-after", "1"),
            _ => reply,
        }
    }

    const fn class(&self) -> (u16, &'static str, &'static str) {
        match self {
            Self::BadRequest { .. } => (400, "urn:problem-type:tollgate:bad-request", "Bad request"),
            Self::CostTooLarge { .. } => (400, "urn:problem-type:tollgate:cost-too-large", "Cost too large"),
            Self::Unauthorized => (401, "urn:problem-type:tollgate:unauthorized", "Unauthorized"),
            Self::NotFound { .. } => (404, "urn:problem-type:tollgate:not-found", "Not found"),
            Self::UnknownPolicy { .. } => (404, "urn:problem-type:tollgate:unknown-policy", "Unknown policy"),
            Self::UnknownReservation => (404, "urn:problem-type:tollgate:unknown-reservation", "Unknown reservation"),
            Self::TooManyReservations { .. } => {
                (409, "urn:problem-type:tollgate:too-many-reservations", "Too many reservations")
            }
            Self::IdempotencyKeyReused => {
                (422, "urn:problem-type:tollgate:idempotency-key-reused", "Idempotency key reused")
            }
            Self::MethodNotAllowed { .. } => {
                (405, "urn:problem-type:tollgate:method-not-allowed", "Method not allowed")
            }
            Self::BodyTooLarge => (413, "urn:problem-type:tollgate:body-too-large", "Body too large"),
            Self::UnsupportedMediaType { .. } => {
                (415, "urn:problem-type:tollgate:unsupported-media-type", "Unsupported media type")
            }
            Self::Misconfigured => (500, "urn:problem-type:tollgate:misconfigured", "Misconfigured"),
            Self::Unavailable { .. } => {
                (503, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Unavailable")
            }
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::BadRequest { detail } => detail.clone(),
            Self::CostTooLarge { limit, cost, max } => {
                format!("policy {limit} can never grant {cost} tokens at once; at most {max}")
            }
            Self::Unauthorized => "send the token as `Authorization: Bearer <token>`".to_owned(),
            Self::NotFound { path } => {
                format!(
                    "there is nothing at {}; there are {} and GET /healthz",
                    shown(path),
                    Endpoint::PATHS.join(", ")
                )
            }
            Self::UnknownPolicy { policy } => format!("there is no policy named {}", shown(policy)),
            Self::UnknownReservation => {
                "no such reservation of this policy and key is open: it was settled or cancelled, or its time is over"
                    .to_owned()
            }
            Self::TooManyReservations { max } => {
                format!("this key has {max} open reservations, and can have no more: settle or cancel some")
            }
            Self::IdempotencyKeyReused => {
                "this Idempotency-Key came before with another request; each request needs one of its own".to_owned()
            }
            Self::MethodNotAllowed { method, allow } => format!("{method:.20} is not for this path; use {allow}"),
            Self::BodyTooLarge => format!("the body may have {MAX_BODY_LEN} bytes at most"),
            Self::UnsupportedMediaType { found } if found.is_empty() => {
                "send JSON, with `Content-Type: application/json`".to_owned()
            }
            Self::UnsupportedMediaType { found } => {
                format!("send JSON, with `Content-Type: application/json`, not {}", shown(found))
            }
            Self::Misconfigured => "this deployment has errors in its settings; its log names them".to_owned(),
            Self::Unavailable { cause } => {
                let why = match cause {
                    Cause::Overloaded => "this key gets more requests than can be answered",
                    Cause::Timeout => "the answer took too long",
                    Cause::Failed => "what keeps this key's budgets did not answer",
                };
                format!("no decision could be made: {why}. This is not a rate-limit refusal; retry")
            }
        }
    }
}

#[derive(Serialize)]
struct Body {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_json_with_its_status_and_what_would_be_right() {
        let reply = Problem::CostTooLarge { limit: "api".into(), cost: 500, max: 200 }.reply();
        assert_eq!(reply.status, 400);
        assert!(reply.headers.contains(&("content-type", "application/problem+json".to_owned())));
        assert_eq!(
            reply.body,
            r#"{"type":"urn:problem-type:tollgate:cost-too-large","title":"Cost too large","status":400,"#.to_owned()
                + r#""detail":"policy api can never grant 500 tokens at once; at most 200","max_cost":200}"#
        );
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one_and_a_wrong_token_its_scheme() {
        let reply = Problem::MethodNotAllowed { method: "PUT".into(), allow: "POST" }.reply();
        assert!(reply.headers.contains(&("allow", "POST".to_owned())));
        let reply = Problem::Unauthorized.reply();
        assert!(reply.headers.contains(&("www-authenticate", "Bearer realm=\"tollgate\"".to_owned())));
    }
}
