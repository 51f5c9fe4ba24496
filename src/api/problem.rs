//! Everything that can be wrong with a request, as `application/problem+json`, RFC 9457.

use serde::Serialize;

use super::endpoint::Endpoint;
use super::missing::Missing;
use super::reply::Reply;
use super::text::{seconds, shown};
use crate::access::{CaptchaError, Denied, Forbidden, Holder, Scope};
use crate::metrics::{MAX_LISTENERS, MAX_OWN_LISTENERS, MAX_RESTRICTED_LISTENERS, TooMany};
use crate::policy::Cause;

/// Why a request gets no decision. A refusal is a decision, not a problem in this sense.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The body is not a valid request.
    BadRequest { detail: String },
    /// The cost is more than the limit could ever grant at once; `request` is its place in a batch.
    CostTooLarge { limit: String, cost: u64, max: u64, request: Option<usize> },
    /// No credentials, or wrong ones. The client does not learn why.
    Unauthorized { denied: Denied },
    /// The caller may not do this; `request` is its place in a batch.
    Forbidden { forbidden: Forbidden, request: Option<usize> },
    /// The captcha opens no session: it is wrong, or its verifier failed, for a reason in the log.
    Captcha { error: CaptchaError },
    /// No endpoint has this path.
    NotFound { path: String },
    /// There is no such policy; `known` are those that the caller may see, `request` is its place in a batch.
    UnknownPolicy { policy: String, known: Vec<String>, request: Option<usize> },
    /// This deployment has no registry of policies.
    NoRegistry,
    /// A change of a policy without a condition.
    PreconditionRequired,
    /// The condition of a change does not hold; `version` is the policy's, if there is one.
    PreconditionFailed { policy: String, version: Option<i64> },
    /// Only a deployment can change this policy.
    PolicyFixed { policy: String },
    /// The maximum number of policies exists.
    TooManyPolicies { max: usize },
    /// The maximum number of listeners is connected.
    TooManyListeners { which: TooMany },
    /// The registry of policies did not answer.
    RegistryUnavailable { cause: Cause },
    /// The policy and key have no such reservation, or it expired: for an hour it can be settled or cancelled, not extended.
    UnknownReservation,
    /// The reservation was already settled or cancelled.
    ReservationClosed,
    /// The key cannot have more open reservations, or not more from holders of grants.
    TooManyReservations { max: u64, by_grants: bool },
    /// The key cannot remember more idempotency keys, or not more from holders of grants; it forgets enough after `retry_after_ms`.
    TooManyIdempotencyKeys { used: u64, by_grants: bool, retry_after_ms: u64 },
    /// The key cannot have more budgets with limits from requests.
    TooManyInlineBudgets { max: u64 },
    /// The `Idempotency-Key` was used before, for another request.
    IdempotencyKeyReused,
    /// The path exists, but not for this method.
    MethodNotAllowed { method: String, allow: &'static str },
    /// The body did not arrive in time.
    RequestTimeout,
    /// The body is longer than this endpoint allows.
    BodyTooLarge { max: usize },
    /// The body's `Content-Type` is not JSON.
    UnsupportedMediaType { found: String },
    /// The body has a `Content-Encoding`.
    UnsupportedContentEncoding { found: String },
    /// The deployment's settings have errors, which its log lists; `missing` are those it lacks altogether.
    Misconfigured { missing: Vec<Missing> },
    /// A service binding's `props` have errors, which are for the log.
    WrongBinding { errors: Vec<String> },
    /// A server that limits its callers by itself has no key for a request, or a policy that it cannot decide by.
    WrongServer { detail: &'static str },
    /// [`Problem::Misconfigured`], as the answer to a health check.
    Unhealthy { missing: Vec<Missing> },
    /// The object with the key's buckets did not answer; the log has the reason.
    Unavailable { cause: Cause },
    /// A limiter in memory has no entry for a new key until `retry_after_ms`; `None` if never. Not a 429: the caller has not used up anything.
    NoRoom { retry_after_ms: Option<u64> },
}

/// [`Problem::BadRequest`].
pub(super) fn bad_request<T>(detail: String) -> Result<T, Problem> {
    Err(Problem::BadRequest { detail })
}

impl Problem {
    /// The same problem, for that request in a batch.
    pub(super) fn of_request(mut self, index: usize) -> Self {
        match &mut self {
            Self::BadRequest { detail } => detail.insert_str(0, &in_batch(Some(index))),
            Self::CostTooLarge { request, .. }
            | Self::UnknownPolicy { request, .. }
            | Self::Forbidden { request, .. } => *request = Some(index),
            _ => {}
        }
        self
    }

    /// Whether the policies contributed to it, or may have: under others there may be no problem.
    #[must_use]
    pub const fn is_under_policies(&self) -> bool {
        matches!(
            self,
            Self::BadRequest { .. } | Self::CostTooLarge { .. } | Self::UnknownPolicy { .. } | Self::Unavailable { .. }
        )
    }

    /// The response for this problem.
    #[must_use]
    pub fn reply(&self) -> Reply {
        let (status, kind, title) = self.class();
        let max_cost = match self {
            Self::CostTooLarge { max, .. } => Some(*max),
            _ => None,
        };
        let cause = match self {
            Self::Unavailable { cause } | Self::RegistryUnavailable { cause } => Some(cause.word()),
            Self::Captcha { error: CaptchaError::Wrong | CaptchaError::Hostname | CaptchaError::Action } => None,
            Self::Captcha { error: CaptchaError::Late } => Some(Cause::Timeout.word()),
            Self::Captcha { .. } => Some(Cause::Failed.word()),
            _ => None,
        };
        let scope = match self {
            Self::Forbidden { forbidden: Forbidden::Scope { missing, .. }, .. } => Some(missing.word()),
            _ => None,
        };
        let version = match self {
            Self::PreconditionFailed { version, .. } => *version,
            _ => None,
        };
        let body = Body { kind, title, status, detail: self.detail(), max_cost, cause, scope, version };
        let mut reply = Reply::json(status, "application/problem+json", &body);
        reply.note = self.note();
        match self {
            // RFC 6750 §3: the answer to a missing or wrong token names the scheme.
            Self::Unauthorized { .. } => reply.with("www-authenticate", "Bearer realm=\"tollgate\""),
            // RFC 6750 §3.1.
            Self::Forbidden { forbidden: Forbidden::Scope { missing, .. }, .. } => {
                let error =
                    format!("Bearer realm=\"tollgate\", error=\"insufficient_scope\", scope=\"{}\"", missing.word());
                reply.with("www-authenticate", error)
            }
            Self::MethodNotAllowed { allow, .. } => reply.with("allow", *allow),
            // RFC 9110 §12.5.3: the encodings accepted for a body.
            Self::UnsupportedContentEncoding { .. } => reply.with("accept-encoding", "identity"),
            Self::TooManyIdempotencyKeys { retry_after_ms, .. }
            | Self::NoRoom { retry_after_ms: Some(retry_after_ms) } => {
                reply.with("retry-after", seconds(*retry_after_ms).to_string())
            }
            // The end of the outage is unknown; a second is the shortest `Retry-After` worth sending.
            Self::Unavailable { .. } | Self::RegistryUnavailable { .. } => reply.with("retry-after", "1"),
            Self::PreconditionFailed { version: Some(version), .. } => reply.with("etag", format!("\"{version}\"")),
            Self::Captcha { .. } if status == 503 => reply.with("retry-after", "1"),
            _ => reply,
        }
    }

    /// For the log only, not for the client.
    fn note(&self) -> Option<String> {
        match self {
            Self::Unauthorized { denied } => Some(denied.to_string()),
            // The caller of the verifier has logged why.
            Self::Captcha { error: CaptchaError::Late | CaptchaError::Unanswered } => None,
            Self::Captcha { error } => Some(error.to_string()),
            Self::WrongBinding { errors } => Some(errors.join("; ")),
            _ => None,
        }
    }

    const fn class(&self) -> (u16, &'static str, &'static str) {
        match self {
            Self::BadRequest { .. } => (400, "urn:problem-type:tollgate:bad-request", "Bad request"),
            Self::CostTooLarge { .. } => (400, "urn:problem-type:tollgate:cost-too-large", "Cost too large"),
            Self::Unauthorized { .. } => (401, "urn:problem-type:tollgate:unauthorized", "Unauthorized"),
            Self::Forbidden { .. } => (403, "urn:problem-type:tollgate:forbidden", "Forbidden"),
            Self::Captcha { error: CaptchaError::Wrong | CaptchaError::Hostname | CaptchaError::Action } => {
                (403, "urn:problem-type:tollgate:captcha-failed", "Captcha failed")
            }
            Self::NotFound { .. } | Self::NoRegistry => (404, "urn:problem-type:tollgate:not-found", "Not found"),
            Self::UnknownPolicy { .. } => (404, "urn:problem-type:tollgate:unknown-policy", "Unknown policy"),
            Self::UnknownReservation => (404, "urn:problem-type:tollgate:unknown-reservation", "Unknown reservation"),
            Self::MethodNotAllowed { .. } => {
                (405, "urn:problem-type:tollgate:method-not-allowed", "Method not allowed")
            }
            Self::RequestTimeout => (408, "urn:problem-type:tollgate:request-timeout", "Request timeout"),
            Self::ReservationClosed => (409, "urn:problem-type:tollgate:reservation-closed", "Reservation closed"),
            Self::TooManyReservations { .. } => {
                (409, "urn:problem-type:tollgate:too-many-reservations", "Too many reservations")
            }
            Self::TooManyIdempotencyKeys { .. } => {
                (409, "urn:problem-type:tollgate:too-many-idempotency-keys", "Too many idempotency keys")
            }
            Self::TooManyInlineBudgets { .. } => {
                (409, "urn:problem-type:tollgate:too-many-inline-budgets", "Too many inline budgets")
            }
            Self::PolicyFixed { .. } => (409, "urn:problem-type:tollgate:policy-fixed", "Policy fixed"),
            Self::TooManyPolicies { .. } => (409, "urn:problem-type:tollgate:too-many-policies", "Too many policies"),
            Self::TooManyListeners { .. } => {
                (409, "urn:problem-type:tollgate:too-many-listeners", "Too many listeners")
            }
            Self::PreconditionFailed { .. } => {
                (412, "urn:problem-type:tollgate:precondition-failed", "Precondition failed")
            }
            Self::BodyTooLarge { .. } => (413, "urn:problem-type:tollgate:body-too-large", "Body too large"),
            Self::UnsupportedMediaType { .. } => {
                (415, "urn:problem-type:tollgate:unsupported-media-type", "Unsupported media type")
            }
            Self::UnsupportedContentEncoding { .. } => {
                (415, "urn:problem-type:tollgate:unsupported-content-encoding", "Unsupported content encoding")
            }
            Self::IdempotencyKeyReused => {
                (422, "urn:problem-type:tollgate:idempotency-key-reused", "Idempotency key reused")
            }
            Self::PreconditionRequired => {
                (428, "urn:problem-type:tollgate:precondition-required", "Precondition required")
            }
            Self::Misconfigured { .. } | Self::WrongBinding { .. } | Self::WrongServer { .. } => {
                (500, MISCONFIGURED, "Misconfigured")
            }
            Self::Unhealthy { .. } => (503, MISCONFIGURED, "Misconfigured"),
            Self::Unavailable { .. }
            | Self::NoRoom { .. }
            | Self::RegistryUnavailable { .. }
            | Self::Captcha { .. } => {
                (503, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Unavailable")
            }
        }
    }

    pub(crate) fn detail(&self) -> String {
        match self {
            Self::BadRequest { detail } => detail.clone(),
            Self::CostTooLarge { limit, cost, max, request } => {
                format!("{}policy {limit} can never grant {cost} tokens at once; at most {max}", in_batch(*request))
            }
            Self::Unauthorized { .. } => {
                "send a valid token, or a grant that has not expired, as `Authorization: Bearer <token>`".to_owned()
            }
            Self::Forbidden { forbidden, request } => format!("{}{}", in_batch(*request), missing(forbidden)),
            Self::Captcha { error } => captcha(*error),
            Self::NotFound { path } => {
                let of_callers = Endpoint::ALL.into_iter().filter(|endpoint| endpoint.scope() != Scope::Admin);
                let endpoints = of_callers.map(Endpoint::path).collect::<Vec<_>>().join(", ");
                format!(
                    "there is no endpoint {}; send POST to {endpoints}, or GET to /v1/policies, /v1/audit, /v1/metrics, \
                     /healthz or /v1/openapi.json",
                    shown(path)
                )
            }
            Self::UnknownPolicy { policy, known, request } => {
                let policies = if known.is_empty() { String::new() } else { format!("; there {}", list(known)) };
                format!("{}there is no policy {}{policies}", in_batch(*request), shown(policy))
            }
            Self::NoRegistry => {
                "this deployment has no registry of policies: add the binding REGISTRY, with the class \
                                 PolicyRegistry, to its configuration"
                    .to_owned()
            }
            Self::PreconditionRequired => "send `If-Match: \"<version>\"` to change the version that you know, or \
                                           `If-None-Match: *` to create a policy"
                .to_owned(),
            Self::PreconditionFailed { policy, version: Some(version) } => {
                format!("nothing was changed: the policy {} has the version {version}", shown(policy))
            }
            Self::PreconditionFailed { policy, version: None } => {
                format!(
                    "nothing was changed: there is no policy {}; to create it, send `If-None-Match: *`",
                    shown(policy)
                )
            }
            Self::PolicyFixed { policy } => {
                format!("the policy {} has `fixed = true`: change it in wrangler.toml, and deploy", shown(policy))
            }
            Self::TooManyListeners { which } => too_many_listeners(*which),
            Self::TooManyPolicies { max } => format!("there are {max} policies, the maximum: delete some"),
            Self::RegistryUnavailable { .. } => {
                "the registry of policies did not answer. A change may have been made: the \
                                                 version of the policy says whether"
                    .to_owned()
            }
            Self::UnknownReservation => {
                "this policy and key have no such reservation, or it expired: for an hour it can be settled or cancelled, not extended".to_owned()
            }
            Self::ReservationClosed => {
                "this reservation was already settled or cancelled; only the same request can be repeated".to_owned()
            }
            Self::TooManyReservations { max, by_grants } => too_many_reservations(*max, *by_grants),
            Self::TooManyIdempotencyKeys { used, by_grants, retry_after_ms } => {
                too_many_idempotency_keys(*used, *by_grants, *retry_after_ms)
            }
            Self::TooManyInlineBudgets { max } => too_many_inline_budgets(*max),
            Self::IdempotencyKeyReused => {
                "this Idempotency-Key was used for another request; use a new one for each request".to_owned()
            }
            Self::MethodNotAllowed { method, allow } => format!("{method:.20} is not allowed here; use {allow}"),
            Self::RequestTimeout => "the body did not arrive in time".to_owned(),
            Self::BodyTooLarge { max } => format!("the body may have at most {max} bytes"),
            Self::UnsupportedMediaType { found } if found.is_empty() => {
                "send JSON, with `Content-Type: application/json`".to_owned()
            }
            Self::UnsupportedMediaType { found } => {
                format!("send JSON, with `Content-Type: application/json`, not {}", shown(found))
            }
            Self::UnsupportedContentEncoding { found } => {
                format!("send the body uncompressed, without `Content-Encoding`, not as {}", shown(found))
            }
            Self::Misconfigured { missing } | Self::Unhealthy { missing } => misconfigured(missing),
            Self::WrongBinding { .. } => misconfigured(&[]),
            Self::WrongServer { detail } => (*detail).to_owned(),
            Self::Unavailable { cause } => {
                let why = match cause {
                    Cause::Overloaded => {
                        "this key gets more requests than can be answered, and this one was not carried out"
                    }
                    Cause::Timeout => UNKNOWN_AFTER_TIMEOUT,
                    Cause::Failed => UNKNOWN_AFTER_FAILURE,
                };
                format!("this is not a rate-limit refusal: {why}")
            }
            Self::NoRoom { .. } => {
                "this is not a rate-limit refusal: too many callers are active to serve a new one".to_owned()
            }
        }
    }
}

const MISCONFIGURED: &str = "urn:problem-type:tollgate:misconfigured";

const UNKNOWN_AFTER_TIMEOUT: &str = "no answer came in time. The request may have been carried out; only an \
    Idempotency-Key makes it safe to repeat";

const UNKNOWN_AFTER_FAILURE: &str = "what keeps the budgets of this key did not answer. The request may have been \
    carried out; only an Idempotency-Key makes it safe to repeat";

fn too_many_reservations(max: u64, by_grants: bool) -> String {
    let (whose, of) = if by_grants { (" made by grants", " for grants") } else { ("", "") };
    format!(
        "this key has {max} open reservations{whose}, the maximum{of}, with their extensions: settle or cancel some"
    )
}

fn too_many_idempotency_keys(used: u64, by_grants: bool, retry_after_ms: u64) -> String {
    let (whose, seconds) = (if by_grants { " of grants" } else { "" }, seconds(retry_after_ms));
    format!(
        "nothing was done: this key remembers {used} idempotency keys{whose}, and there is no room for another; retry in \
         {seconds} s"
    )
}

fn too_many_inline_budgets(max: u64) -> String {
    format!(
        "nothing was done: this key has {max} budgets with `limits` in the request that are not full again, the maximum; \
         use fewer names as `policy`"
    )
}

fn captcha(error: CaptchaError) -> String {
    let why = match error {
        CaptchaError::Hostname => {
            "was solved on a page of a host that this service does not accept: solve it on one of its own pages"
        }
        CaptchaError::Action => {
            "was solved for an action that this service does not accept: give the widget that action"
        }
        CaptchaError::Wrong => "is wrong, has expired or was used before: let the visitor solve another",
        CaptchaError::Late => {
            "could not be verified, since its verifier did not answer in time: let the visitor solve another"
        }
        CaptchaError::WrongSecret | CaptchaError::Unreadable { .. } | CaptchaError::Unanswered => {
            "could not be verified, since its verifier failed: let the visitor solve another"
        }
    };
    format!("the captcha {why}")
}

fn too_many_listeners(which: TooMany) -> String {
    let (max, who) = match which {
        TooMany::All => (MAX_LISTENERS, "listeners are connected"),
        TooMany::Restricted => (MAX_RESTRICTED_LISTENERS, "listeners with restricted tokens are connected"),
        TooMany::Own => (MAX_OWN_LISTENERS, "listeners with this restricted token are connected"),
    };
    format!("{max} {who}, each with its own filter: stop one, or use the filter of one of them")
}

/// What the caller lacks, and what would be right.
fn missing(forbidden: &Forbidden) -> String {
    match forbidden {
        Forbidden::Scope { missing, verb, has: Some(has), holder } => {
            let has = has.iter().map(|scope| scope.word()).collect::<Vec<_>>().join(", ");
            let missing = missing.word();
            match holder {
                Holder::Binding => format!(
                    "{verb} needs the scope {missing}, which the `props` of a service binding can give; this one has {has}"
                ),
                Holder::Token | Holder::Grant => {
                    format!("{verb} needs a token with the scope {missing}; this one has {has}")
                }
            }
        }
        Forbidden::Scope { missing, verb, has: None, .. } => {
            format!("{verb} needs a token with the scope {}, which a grant never has", missing.word())
        }
        Forbidden::Verb { verb, has } => format!("this grant is not for {verb}; it is for {}", has.join(", ")),
        Forbidden::Policy { policy, has, holder } => {
            let holder = match holder {
                Holder::Binding => "service binding",
                Holder::Token | Holder::Grant => "token or grant",
            };
            format!("this {holder} is not for the policy {}; it is for {}", shown(policy), has.join(", "))
        }
        Forbidden::Inline { holder: Holder::Token } => {
            "this token may not bring `limits` of its own: give it \"inline\": true, or leave them out".to_owned()
        }
        Forbidden::Inline { holder: Holder::Binding } => {
            "this service binding may not bring `limits` of its own: give it `props` with inline = true, or leave them out"
                .to_owned()
        }
        Forbidden::Inline { holder: Holder::Grant } => {
            "a grant never brings `limits` of its own: leave them out".to_owned()
        }
        Forbidden::KeyPrefix { prefix, holder } => {
            let holder = if *holder == Holder::Binding { "service binding" } else { "token" };
            format!("this {holder} is for text keys that begin with {}: send `key` with one of them", shown(prefix))
        }
        Forbidden::Key => "this grant is for another key: leave out `key`, or send the key of the grant".to_owned(),
    }
}

impl From<Forbidden> for Problem {
    fn from(forbidden: Forbidden) -> Self {
        Self::Forbidden { forbidden, request: None }
    }
}

impl From<Problem> for Reply {
    fn from(problem: Problem) -> Self {
        problem.reply()
    }
}

/// The start of a message about a request in a batch.
fn in_batch(request: Option<usize>) -> String {
    request.map_or_else(String::new, |index| format!("request {index}: "))
}

/// "are a, b and c", shortened if there are many.
fn list(names: &[String]) -> String {
    const MOST: usize = 20;
    let shown = names.get(..MOST).unwrap_or(names).join(", ");
    match names.len() {
        1 => format!("is only {shown}"),
        count if count > MOST => format!("are {count}, such as {shown}"),
        _ => format!("are {shown}"),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
}

fn misconfigured(missing: &[Missing]) -> String {
    let advice: Vec<_> = missing.iter().map(|missing| missing.advice()).collect();
    let more = if advice.is_empty() { String::new() } else { format!(". {}", advice.join(". ")) };
    format!("the settings of this deployment have errors; its log lists them{more}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn callers_learn_what_a_deployment_lacks_but_not_its_other_errors() {
        let detail = |missing: &[Missing]| Problem::Misconfigured { missing: missing.to_vec() }.detail();
        let errors = "the settings of this deployment have errors; its log lists them";
        assert_eq!(detail(&[]), errors);
        let (objects, policies) = (Missing::Objects.advice(), Missing::Policies.advice());
        assert_eq!(detail(&[Missing::Objects, Missing::Policies]), format!("{errors}. {objects}. {policies}"));
        let unhealthy = Problem::Unhealthy { missing: vec![Missing::Policies] };
        assert_eq!((unhealthy.class().0, unhealthy.detail()), (503, format!("{errors}. {policies}")));
    }

    #[test]
    fn a_problem_is_json_with_its_status_and_a_remedy() {
        let reply = Problem::CostTooLarge { limit: "api".into(), cost: 500, max: 200, request: None }.reply();
        assert_eq!(reply.status, 400);
        assert!(reply.headers.contains(&("content-type", "application/problem+json".into())));
        assert_eq!(
            reply.body(),
            r#"{"type":"urn:problem-type:tollgate:cost-too-large","title":"Cost too large","status":400,"#.to_owned()
                + r#""detail":"policy api can never grant 500 tokens at once; at most 200","max_cost":200}"#
                + "\n"
        );
    }

    #[test]
    fn headers_suggest_a_correction() {
        let reply = Problem::MethodNotAllowed { method: "PUT".into(), allow: "POST" }.reply();
        assert!(reply.headers.contains(&("allow", "POST".into())));
        let reply = Problem::Unauthorized { denied: Denied::NoHeader }.reply();
        assert!(reply.headers.contains(&("www-authenticate", "Bearer realm=\"tollgate\"".into())));
        let reply = Problem::UnsupportedContentEncoding { found: "gzip".into() }.reply();
        assert!(reply.headers.contains(&("accept-encoding", "identity".into())));
        let reply = Problem::TooManyIdempotencyKeys { used: 16_384, by_grants: false, retry_after_ms: 1_001 }.reply();
        assert!(reply.headers.contains(&("retry-after", "2".into())));
    }

    #[test]
    fn grant_holders_are_told_that_their_part_is_used_up() {
        for (by_grants, reservations, keys) in [
            (
                false,
                "this key has 1000 open reservations, the maximum, with their extensions: settle or cancel some",
                "nothing was done: this key remembers 9 idempotency keys, and there is no room for another; retry in 2 s",
            ),
            (
                true,
                "this key has 1000 open reservations made by grants, the maximum for grants, with their extensions: settle or cancel some",
                "nothing was done: this key remembers 9 idempotency keys of grants, and there is no room for another; \
                 retry in 2 s",
            ),
        ] {
            let detail = |problem: Problem| problem.detail();
            assert_eq!(detail(Problem::TooManyReservations { max: 1_000, by_grants }), reservations);
            assert_eq!(detail(Problem::TooManyIdempotencyKeys { used: 9, by_grants, retry_after_ms: 1_001 }), keys);
        }
    }

    #[test]
    fn only_overloaded_says_that_nothing_was_done() {
        for cause in Cause::ALL {
            let reply = Problem::Unavailable { cause }.reply();
            let (body, status, headers) = (reply.body(), reply.status, reply.headers);
            assert_eq!(status, 503);
            assert!(headers.contains(&("retry-after", "1".into())), "{cause:?}");
            assert!(body.contains("this is not a rate-limit refusal"), "{body}");
            let may_be_done =
                body.contains("may have been carried out; only an Idempotency-Key makes it safe to repeat");
            assert_eq!(may_be_done, cause != Cause::Overloaded, "{body}");
            assert_eq!(body.contains("was not carried out"), cause == Cause::Overloaded, "{body}");
        }
    }

    #[test]
    fn an_unverified_captcha_is_not_called_wrong() {
        for (error, cause, why) in [
            (CaptchaError::Late, "timeout", "its verifier did not answer in time"),
            (CaptchaError::Unanswered, "failed", "its verifier failed"),
            (CaptchaError::Unreadable { status: 500 }, "failed", "its verifier failed"),
            (CaptchaError::WrongSecret, "failed", "its verifier failed"),
        ] {
            let reply = Problem::Captcha { error }.reply();
            let (body, status, headers) = (reply.body(), reply.status, reply.headers);
            assert_eq!(status, 503);
            assert!(headers.contains(&("retry-after", "1".into())), "{error:?}");
            let expected = format!("the captcha could not be verified, since {why}: let the visitor solve another");
            assert!(body.contains(&expected) && body.contains(&format!(r#""cause":"{cause}""#)), "{body}");
        }
        let reply = Problem::Captcha { error: CaptchaError::Wrong }.reply();
        let (body, status, headers) = (reply.body(), reply.status, reply.headers);
        assert!(status == 403 && !body.contains("cause"), "{body}");
        assert!(headers.iter().all(|(name, _)| *name != "retry-after"));
    }

    #[test]
    fn an_unknown_policy_gets_the_list_of_policies() {
        let detail = |count: usize| {
            let known = (0..count).map(|index| format!("p{index}")).collect();
            Problem::UnknownPolicy { policy: "x\"".into(), known, request: None }.detail()
        };
        assert_eq!(detail(1), r#"there is no policy "x\""; there is only p0"#);
        assert_eq!(detail(3), r#"there is no policy "x\""; there are p0, p1, p2"#);
        assert!(detail(20).ends_with("p18, p19"));
        assert!(detail(21).contains("; there are 21, such as p0, ") && detail(21).ends_with("p18, p19"));
    }

    const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

    /// The status and type of every problem, and those of a refusal.
    fn all() -> Vec<(u16, &'static str)> {
        let text = String::new;
        let problems = [
            Problem::BadRequest { detail: text() },
            Problem::CostTooLarge { limit: text(), cost: 0, max: 0, request: None },
            Problem::Unauthorized { denied: Denied::NoHeader },
            Forbidden::Key.into(),
            Problem::Captcha { error: CaptchaError::Wrong },
            Problem::NotFound { path: text() },
            Problem::UnknownPolicy { policy: text(), known: Vec::new(), request: None },
            Problem::UnknownReservation,
            Problem::MethodNotAllowed { method: text(), allow: "" },
            Problem::PolicyFixed { policy: text() },
            Problem::TooManyPolicies { max: 0 },
            Problem::TooManyListeners { which: TooMany::All },
            Problem::PreconditionFailed { policy: text(), version: None },
            Problem::PreconditionRequired,
            Problem::RequestTimeout,
            Problem::ReservationClosed,
            Problem::TooManyReservations { max: 0, by_grants: false },
            Problem::TooManyInlineBudgets { max: 0 },
            Problem::TooManyIdempotencyKeys { used: 0, by_grants: false, retry_after_ms: 0 },
            Problem::BodyTooLarge { max: 0 },
            Problem::UnsupportedMediaType { found: text() },
            Problem::UnsupportedContentEncoding { found: text() },
            Problem::IdempotencyKeyReused,
            Problem::Misconfigured { missing: Vec::new() },
            Problem::Unhealthy { missing: Vec::new() },
            Problem::Unavailable { cause: Cause::Failed },
        ];
        let classes = problems.iter().map(Problem::class).map(|(status, kind, _)| (status, kind));
        classes.chain([(429, QUOTA_EXCEEDED)]).collect()
    }

    /// The table of problems under this heading of a document, and their sections.
    fn documented(document: &'static str, heading: &str) -> (&'static str, Vec<&'static str>) {
        let (_, sections) = document.split_once(heading).unwrap();
        let (table, sections) = sections.split_once("\n### ").unwrap();
        (table, sections.split("\n## ").next().unwrap().split("\n### ").collect())
    }

    /// Every problem is in the table of docs/http.md or, if only operators get it, of docs/admin.md, with its status, and has a section
    /// there with an example, named by the last part of its type.
    #[test]
    fn every_problem_is_documented() {
        let (of_callers, mut sections) = documented(include_str!("../../docs/http.md"), "\n## Everything but 200\n");
        let (of_operators, others) = documented(include_str!("../../docs/admin.md"), "\n## Problems\n");
        let table = format!("{of_callers}{of_operators}");
        sections.extend(others);
        let titles = sections.iter().map(|section| section.lines().next().unwrap()).collect::<Vec<_>>();
        for (status, kind) in all() {
            let name = kind.rsplit([':', '#']).next().unwrap();
            assert!(table.contains(&format!("| {status} | [`{name}`](#{name}) |")), "{status} {name} is in the table");
            let at = titles.iter().position(|title| *title == name);
            let section = sections[at.unwrap_or_else(|| panic!("no section about {name}"))];
            for part in [kind, &format!("\"status\":{status}")] {
                assert!(section.contains(part), "{part} is in the section about {name}");
            }
        }
        let kinds: BTreeSet<_> = all().into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(titles.len(), kinds.len(), "{titles:?}");
    }

    /// openapi.json has a schema for each of them, and for no others.
    #[test]
    fn the_contract_has_exactly_these_problems() {
        let contract: serde_json::Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let schemas = contract["components"]["schemas"].as_object().unwrap().values();
        let problems = schemas.filter_map(|schema| {
            let constant = |name: &str| schema["properties"][name].get("const");
            Some((constant("status")?.as_u64()?, constant("type")?.as_str()?))
        });
        let mut described: Vec<_> = problems.collect();
        let mut expected: Vec<_> = all().into_iter().map(|(status, kind)| (u64::from(status), kind)).collect();
        described.sort_unstable();
        expected.sort_unstable();
        assert_eq!(described, expected);
    }
}
