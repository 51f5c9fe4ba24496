//! A decision as shown to operators: a line of JSON.

use serde::Serialize;

use super::super::words::{Outcome, Word};
use crate::policy::Cause;

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    /// An object.
    Object,
    /// An earlier refusal.
    Cache,
    /// A lease.
    Lease,
    /// The frontend, before any object was called or because none answered.
    Frontend,
}

impl DecidedBy {
    /// The word for it in JSON and metrics.
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

/// The outcome for one budget of a request, as counted and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveDecision<'a> {
    /// The moment.
    pub at: i64,
    /// The name its policy is counted under.
    pub policy: &'a str,
    /// The outcome.
    pub outcome: Outcome,
    /// The source of the decision.
    pub source: DecidedBy,
    /// The largest requested cost.
    pub cost: u64,
    /// Whole tokens left of the decisive limit.
    pub remaining: Option<u64>,
    /// When it would pass, if it was refused.
    pub retry_at: Option<i64>,
    /// The name of the decisive limit, if it has one of its own.
    pub limit: Option<&'a str>,
    /// The hash of the key.
    pub object: Option<&'a str>,
    /// The number of objects with the key's budget, if several: `object` names the first, whichever decided, and `remaining` is that of the
    /// one that did.
    pub shards: Option<usize>,
    /// Why there was no decision.
    pub cause: Option<Cause>,
    /// Whether a limit in shadow would have refused it.
    pub is_refused_in_shadow: bool,
}

impl LiveDecision<'_> {
    /// The decision as JSON. `colo` is the Cloudflare location that received the request, if known.
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

    /// Read by operators and by registries of neighbouring versions.
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
