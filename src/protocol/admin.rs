//! Operators' changes to the registry, and the answers.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::limit::Carry;
use crate::policy::{Policy, PolicyErrors};

/// A change of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// The new policy as written, JSON; `None` deletes it.
    pub text: Option<&'a str>,
    /// The precondition.
    pub condition: Condition,
    /// How tokens are carried over; `None` for the default.
    pub carry: Option<Carry>,
    /// The name of the token that makes the change.
    pub by: &'a str,
    /// Whether only to return what would change.
    pub is_dry_run: bool,
}

/// The precondition of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The policy does not exist.
    Absent,
    /// The policy exists, in any version.
    Present,
    /// The policy exists in one of these versions.
    Version(Vec<i64>),
}

/// A change, made or only tried.
#[derive(Clone, Debug)]
pub struct Changed {
    /// What has changed or would change, in words, line by line.
    pub changes: Vec<String>,
    /// The policy afterwards; `None` if it was deleted.
    pub standing: Option<Standing>,
    /// Whether there was none before.
    pub is_new: bool,
}

/// A policy's current state.
#[derive(Clone, Debug)]
pub struct Standing {
    /// With its name.
    pub policy: Arc<Policy>,
    /// As written: JSON.
    pub text: String,
    /// The moment it came into force.
    pub version: i64,
    /// Its author.
    pub source: Source,
    /// Whether only a deployment can change it.
    pub is_fixed: bool,
}

/// The author of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A deployment, in `wrangler.toml`.
    Deployment,
    /// An operator, by the API.
    Admin,
}

/// Why a change was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// There is no such policy.
    Unknown,
    /// The condition does not hold: this is the current version.
    Version(Option<i64>),
    /// Only a deployment can change it.
    Fixed,
    /// The maximum number of policies exists.
    TooMany {
        /// The maximum.
        max: usize,
    },
    /// The text is longer than `max` bytes.
    TooLong {
        /// The maximum, in bytes.
        max: usize,
    },
    /// The policy has errors.
    Invalid(PolicyErrors),
    /// The policy has `fixed`, which only deployments can set.
    SetsFixed,
}

/// An act in the audit log.
#[derive(Clone, Debug, Serialize)]
pub struct AuditLine<'a> {
    /// Its number: one more than the previous act's.
    pub number: u64,
    /// When it was done.
    pub at: i64,
    /// The actor: the name of a token, or `deployment` and its id.
    pub by: &'a str,
    /// The act, such as `policy.replaced`.
    pub act: &'a str,
    /// The policy.
    pub policy: &'a str,
    /// The hash of the key; for an override by prefix, the override's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// How keys' tokens were carried over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carry: Option<&'a str>,
    /// The state before.
    pub before: Option<&'a RawValue>,
    /// The state after.
    pub after: Option<&'a RawValue>,
    /// Whether only an earlier answer was repeated, and nothing was done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// How many acts share this line, if several: `at` is the moment of the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The moment of the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_at: Option<i64>,
}

impl Source {
    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Deployment => "deployment",
            Self::Admin => "admin",
        }
    }
}
