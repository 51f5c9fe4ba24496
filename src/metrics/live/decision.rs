//! A decision, as it is shown. Operators read it as JSON: a line each.

use serde::Serialize;

use super::super::words::{Outcome, Word};
use crate::policy::Cause;

/// Where a request is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// By an object.
    Object,
    /// By an earlier refusal.
    Cache,
    /// By a lease.
    Lease,
    /// By the frontend, before any object or because none has answered.
    Frontend,
}

impl DecidedBy {
    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Frontend => "frontend",
        }
    }
}

/// What became of one budget of a request, as it is counted and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveDecision<'a> {
    /// The moment.
    pub at: i64,
    /// The name under which its policy is counted.
    pub policy: &'a str,
    /// What became of it.
    pub outcome: Outcome,
    /// Where it was decided.
    pub source: DecidedBy,
    /// The largest cost that was asked.
    pub cost: u64,
    /// What is left of the limit that decided, in whole tokens.
    pub remaining: Option<u64>,
    /// When it would pass, if it was refused.
    pub retry_at: Option<i64>,
    /// The name of the limit that decided, if it has one of its own.
    pub limit: Option<&'a str>,
    /// The hash of the key.
    pub object: Option<&'a str>,
    /// In how many objects the key's budget is, if in several shards: the one named is the first of them, whichever decided, and what
    /// is left is what the one has that did.
    pub shards: Option<usize>,
    /// Why there was no decision.
    pub cause: Option<Cause>,
    /// Whether a limit in shadow would have refused it.
    pub is_refused_in_shadow: bool,
}

impl LiveDecision<'_> {
    /// The decision as JSON. `colo` is where Cloudflare has received the request; empty if that is not known.
    #[must_use]
    pub fn to_text(&self, colo: &str) -> String {
        #[derive(Serialize)]
        struct Written<'a> {
            at: i64,
            policy: &'a str,
            outcome: &'static str,
            source: &'static str,
            cost: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            remaining: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_at: Option<i64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            limit: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            object: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            shards: Option<usize>,
            #[serde(skip_serializing_if = "Option::is_none")]
            cause: Option<&'static str>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            refused_in_shadow: bool,
            #[serde(skip_serializing_if = "str::is_empty")]
            colo: &'a str,
        }
        let Self { at, policy, outcome, source, cost, remaining, retry_at, limit, object, shards, cause, .. } = *self;
        let written = Written {
            at,
            policy,
            outcome: outcome.word(),
            source: source.word(),
            cost,
            remaining,
            retry_at,
            limit,
            object,
            shards,
            cause: cause.map(Cause::word),
            refused_in_shadow: self.is_refused_in_shadow,
            colo,
        };
        serde_json::to_string(&written).unwrap_or_default() // our own type cannot fail to serialize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators read it, and the registry of a neighbouring version.
    #[test]
    fn the_format_is_unchanged() {
        let refused = LiveDecision {
            at: 5,
            policy: "llm",
            outcome: Outcome::Refused,
            source: DecidedBy::Object,
            cost: 3,
            remaining: Some(1),
            retry_at: Some(9),
            limit: Some("tokens"),
            object: Some("00000000000000ff"),
            shards: Some(8),
            cause: None,
            is_refused_in_shadow: true,
        };
        let text = concat!(
            r#"{"at":5,"policy":"llm","outcome":"refused","source":"object","cost":3,"remaining":1,"retry_at":9,"#,
            r#""limit":"tokens","object":"00000000000000ff","shards":8,"refused_in_shadow":true,"colo":"AMS"}"#,
        );
        assert_eq!(refused.to_text("AMS"), text);
        let degraded = LiveDecision {
            outcome: Outcome::Degraded,
            source: DecidedBy::Frontend,
            remaining: None,
            retry_at: None,
            limit: None,
            object: None,
            shards: None,
            cause: Some(Cause::Timeout),
            is_refused_in_shadow: false,
            ..refused
        };
        let text = r#"{"at":5,"policy":"llm","outcome":"degraded","source":"frontend","cost":3,"cause":"timeout"}"#;
        assert_eq!(degraded.to_text(""), text);
    }
}
