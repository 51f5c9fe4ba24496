//! What operators change in the registry, and what they are told.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::limit::Carry;
use crate::policy::{Policy, PolicyError};

/// A change of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyChange<'a> {
    /// The policy's name.
    pub name: &'a str,
    /// The new policy as written, JSON; `None` deletes it.
    pub text: Option<&'a str>,
    /// What must be so before.
    pub condition: Condition,
    /// How tokens are carried over; `None` for the default.
    pub carry: Option<Carry>,
    /// Who changes it: the name of a token.
    pub by: &'a str,
    /// Whether only to say what would change.
    pub is_dry_run: bool,
}

/// What must be so for a change to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is no such policy.
    Absent,
    /// There is one, of any version.
    Present,
    /// There is one, of one of these versions.
    Version(Vec<i64>),
}

/// What has changed, or would.
#[derive(Clone, Debug)]
pub struct Changed {
    /// In words, line by line.
    pub changes: Vec<String>,
    /// The policy afterwards; `None` if it was deleted.
    pub standing: Option<Standing>,
    /// Whether there was none before.
    pub is_new: bool,
}

/// A policy as it stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// With its name.
    pub policy: Arc<Policy>,
    /// As written: JSON.
    pub text: String,
    /// The moment since which it is in force.
    pub version: i64,
    /// Who has written it.
    pub source: Source,
    /// Whether only a deployment can change it.
    pub is_fixed: bool,
}

/// Who has written a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A deployment, in `wrangler.toml`.
    Deployment,
    /// An operator, by the API.
    Admin,
}

/// Why a change is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// There is no such policy.
    Unknown,
    /// The condition does not hold: this is the version that there is.
    Version(Option<i64>),
    /// Only a deployment can change it.
    Fixed,
    /// There are as many policies as there can be.
    TooMany {
        /// So many.
        max: usize,
    },
    /// The text is longer than `max` bytes.
    TooLong {
        /// So many bytes.
        max: usize,
    },
    /// The policy has errors.
    Invalid(Vec<PolicyError>),
    /// The policy has `fixed`, which only deployments can set.
    SetsFixed,
}

/// A change of overrides: of all or of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesChange<'a> {
    /// `{"overrides": [...], "removed": [...]}`, as written.
    pub text: &'a str,
    /// Who changes them: the name of a token.
    pub by: &'a str,
    /// The only policies that the token may name, if not all.
    pub only: Option<&'a [String]>,
    /// How tokens come over; `None` for the usual way.
    pub carry: Option<Carry>,
    /// Whether only to say what would change.
    pub is_dry_run: bool,
}

/// What has changed, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverridesChanged {
    /// How many are new.
    pub created: usize,
    /// How many take the place of another.
    pub replaced: usize,
    /// How many are there no more.
    pub removed: usize,
    /// How many are the same as before.
    pub unchanged: usize,
    /// The moment of the change; `None` if there was none.
    pub at: Option<i64>,
}

/// Why overrides are not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverridesError {
    /// What is wrong, line by line.
    Invalid(Vec<String>),
    /// There would be more than `max`.
    TooMany {
        /// The bound that was reached.
        max: usize,
        /// Whether it is one of the overrides under the policies of the token, and not of all.
        is_own: bool,
        /// Whether the token is restricted to some policies.
        is_restricted: bool,
        /// Whether all that the change would add are bans.
        are_bans: bool,
    },
}

/// An override as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideStanding {
    /// As written: JSON.
    pub text: String,
    /// The moment since which it is in force.
    pub since: i64,
    /// Tells it from all others: 32 hexadecimal digits.
    pub id: String,
    /// The hash of its key; `None` if it is for a prefix.
    pub object: Option<String>,
}

/// An act, as the registry keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct AuditLine<'a> {
    /// Its number: one more than that of the act before.
    pub number: u64,
    /// When it was done.
    pub at: i64,
    /// Who has done it: the name of a token, or `deployment` and its id.
    pub by: &'a str,
    /// What was done, such as `policy.replaced`.
    pub act: &'a str,
    /// To which policy.
    pub policy: &'a str,
    /// To which key: its hash; of an override by prefix, the id of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// What became of the tokens of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carry: Option<&'a str>,
    /// What there was before.
    pub before: Option<&'a RawValue>,
    /// What there is now.
    pub after: Option<&'a RawValue>,
    /// Whether the answer to an earlier request was repeated, and nothing was done.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// How many acts share this line, if several: `at` is the moment of the last of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The moment of the first of them.
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
