//! Reasons to deny a request. They are compiled without the checks of credentials, too, because answers name them.

use std::fmt;

use super::scope::Scope;
use super::setting::{GRANT_KEYS, SESSIONS, TURNSTILE_SECRET};

/// Why a caller lacks a right.
#[expect(missing_docs, reason = "the sentence of a variant says what its fields are")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The endpoint needs a scope that is not among `has`, which is `None` for a grant, which can never have it.
    Scope { missing: Scope, verb: &'static str, has: Option<Vec<Scope>>, holder: Holder },
    /// The grant is for other verbs.
    Verb { verb: &'static str, has: Vec<&'static str> },
    /// The policy is not among `has`.
    Policy { policy: String, has: Vec<String>, holder: Holder },
    /// The request has limits of its own, which its caller may not bring; a grant never may.
    Inline { holder: Holder },
    /// The grant is for another key.
    Key,
    /// The key does not start with this prefix.
    KeyPrefix { prefix: String, holder: Holder },
}

/// A kind of credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A token.
    Token,
    /// A grant.
    Grant,
    /// A service binding.
    Binding,
}

/// Why a request is denied. Reveals nothing about what was sent.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No `Authorization` header.
    NoHeader,
    /// Not `Bearer` and a credential.
    NotBearer,
    /// Longer than any credential.
    TooLong { len: usize, max: usize },
    /// No such API token.
    WrongToken,
    /// An invalid grant.
    Grant(GrantError),
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader => f.write_str("no Authorization header"),
            Self::NotBearer => f.write_str("the Authorization header is not `Bearer <token>`"),
            Self::TooLong { len, max } => write!(f, "a credential of {len} bytes: at most {max} are allowed"),
            Self::WrongToken => f.write_str("wrong token"),
            Self::Grant(error) => write!(f, "a grant: {error}"),
        }
    }
}

impl std::error::Error for Denied {}

/// Why a grant was rejected. Reveals nothing of the grant but moments.
#[expect(missing_docs, reason = "the sentence of a variant says what its numbers are")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// The grant, or a part of it, violates RFC 7519.
    Malformed { part: &'static str },
    /// `alg` is not HS256.
    OtherAlgorithm,
    /// `typ` is not JWT.
    OtherType,
    /// It has `crit`, which is not supported.
    Critical,
    /// It has no `kid`.
    NoKid,
    /// No key has that `kid`.
    UnknownKid,
    /// It is signed with another key, or not at all.
    WrongSignature,
    /// A claim is missing or has a wrong value.
    Claim { name: &'static str },
    /// `aud` does not name this deployment.
    OtherAudience,
    /// `exp` has passed.
    Expired { ms_ago: i64 },
    /// `nbf` is in the future.
    NotYet { ms_left: i64 },
    /// `exp` is more than a day ahead.
    TooLong { ms_left: i64, max_ms: i64 },
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Malformed { part } => {
                write!(f, "{part} is not well-formed: three parts of base64url, two of them JSON without duplicates")
            }
            Self::OtherAlgorithm => f.write_str("its `alg` is not HS256"),
            Self::OtherType => f.write_str("its `typ` is neither absent nor JWT"),
            Self::Critical => f.write_str("it has `crit`, which is not supported"),
            Self::NoKid => f.write_str("it has no `kid`"),
            Self::UnknownKid => write!(f, "{GRANT_KEYS} has no key of its `kid`, or is not set"),
            Self::WrongSignature => f.write_str("its signature is wrong"),
            Self::Claim { name } => f.write_str(match name {
                "exp" | "nbf" => return write!(f, "its claim `{name}` is not a number of seconds since 1970"),
                "verbs" => return write!(f, "its claim `verbs` is not {}", verbs_rule()),
                "key" => "its claim `key` is not a key as in a request",
                "policies" => "its claim `policies` is not a list of one or more names",
                _ => "its claim `aud` is not a string or a list of them",
            }),
            Self::OtherAudience => f.write_str("its `aud` names another service"),
            Self::Expired { ms_ago } => write!(f, "it has expired {ms_ago} ms ago"),
            Self::NotYet { ms_left } => write!(f, "it is not valid for another {ms_left} ms"),
            Self::TooLong { ms_left, max_ms } => {
                write!(f, "it expires in {ms_left} ms; a grant may last {max_ms} ms, a day, at most")
            }
        }
    }
}

impl std::error::Error for GrantError {}

/// Why a captcha opens no session. Reveals nothing of the captcha.
#[expect(missing_docs, reason = "the sentence of a variant says what its number is")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptchaError {
    /// The captcha is wrong, has expired or was used before.
    Wrong,
    /// It was solved on a page of another host.
    Hostname,
    /// It was solved for another action.
    Action,
    /// The verifier does not know the operator's secret.
    WrongSecret,
    /// The verifier failed, or its answer with this `status` violates its protocol.
    Unreadable { status: u16 },
    /// The verifier did not answer in time.
    Late,
    /// The verifier did not answer: it is unreachable, or the connection broke.
    Unanswered,
}

impl fmt::Display for CaptchaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong => f.write_str("the captcha is wrong, has expired or was used before"),
            Self::Hostname => write!(f, "the captcha was solved on another host than {SESSIONS}.hostname"),
            Self::Action => write!(f, "the captcha was solved for another action than {SESSIONS}.action"),
            Self::WrongSecret => write!(f, "the captcha's verifier does not know the secret {TURNSTILE_SECRET}"),
            Self::Unreadable { status } => write!(f, "the captcha's verifier has failed, with status {status}"),
            Self::Late => f.write_str("the captcha's verifier has not answered in time"),
            Self::Unanswered => f.write_str("the captcha's verifier has not answered"),
        }
    }
}

impl std::error::Error for CaptchaError {}

/// The rule for a grant's verbs.
pub(super) fn verbs_rule() -> String {
    format!("a list of one or more of {}", Scope::Consume.verbs().join(", "))
}
