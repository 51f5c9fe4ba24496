//! Everything that can be wrong with a request, and how it is said: `application/problem+json`, RFC 9457.

use serde::Serialize;

use super::ask::MAX_BODY_LEN;
use super::reply::Reply;

/// Why a request gets no decision. A refusal is not a problem in this sense but an [`Answer`](super::Answer).
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The body is not a valid request.
    BadRequest { detail: String },
    /// More tokens than the policy could ever grant at once.
    CostTooLarge { policy: String, cost: u64, max: u64 },
    /// No credentials, or wrong ones.
    Unauthorized,
    /// No such path.
    NotFound { path: String },
    /// No such policy.
    UnknownPolicy { policy: String },
    /// The path is there, but not for this method.
    MethodNotAllowed { method: String, allow: &'static str },
    /// The body is longer than [`MAX_BODY_LEN`].
    BodyTooLarge,
    /// The body is not said to be JSON.
    UnsupportedMediaType { found: String },
    /// The deployment has mistakes; they are in its log.
    Misconfigured,
    /// The object that keeps the key's buckets did not answer; why is in the log.
    Unavailable,
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
        let body = Body { kind, title, status, detail: self.detail(), max_cost };
        let reply = Reply::json(status, "application/problem+json", &body);
        match self {
            // RFC 6750 §3: a missing or wrong token is answered with the scheme that would be right.
            Self::Unauthorized => reply.with("www-authenticate", "Bearer realm=\"tollgate\""),
            Self::MethodNotAllowed { allow, .. } => reply.with("allow", *allow),
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
            Self::MethodNotAllowed { .. } => {
                (405, "urn:problem-type:tollgate:method-not-allowed", "Method not allowed")
            }
            Self::BodyTooLarge => (413, "urn:problem-type:tollgate:body-too-large", "Body too large"),
            Self::UnsupportedMediaType { .. } => {
                (415, "urn:problem-type:tollgate:unsupported-media-type", "Unsupported media type")
            }
            Self::Misconfigured => (500, "urn:problem-type:tollgate:misconfigured", "Misconfigured"),
            Self::Unavailable => {
                (503, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Unavailable")
            }
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::BadRequest { detail } => detail.clone(),
            Self::CostTooLarge { policy, cost, max } => {
                format!("policy {policy} can never grant {cost} tokens at once; at most {max}")
            }
            Self::Unauthorized => "send the token as `Authorization: Bearer <token>`".to_owned(),
            Self::NotFound { path } => {
                format!("there is nothing at {path}; there are POST /v1/consume, POST /v1/peek and GET /healthz")
            }
            Self::UnknownPolicy { policy } => format!("there is no policy named {policy:?}"),
            Self::MethodNotAllowed { method, allow } => format!("{method} is not for this path; use {allow}"),
            Self::BodyTooLarge => format!("the body may have {MAX_BODY_LEN} bytes at most"),
            Self::UnsupportedMediaType { found } if found.is_empty() => {
                "send JSON, with `Content-Type: application/json`".to_owned()
            }
            Self::UnsupportedMediaType { found } => {
                format!("send JSON, with `Content-Type: application/json`, not {found:?}")
            }
            Self::Misconfigured => "this deployment has mistakes in its settings; its log names them".to_owned(),
            Self::Unavailable => "no decision could be made just now; nothing was refused, try again".to_owned(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_json_with_its_status_and_what_would_be_right() {
        let reply = Problem::CostTooLarge { policy: "api".into(), cost: 500, max: 200 }.reply();
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
