//! What operators ask of the registry: paths and methods, as one value.

use std::borrow::Cow;

use super::super::keys::BLOCK_PATH;
use super::super::problem::Problem;

/// The endpoints of the admin API, by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminPath<'a> {
    /// `/v1/policies`.
    Policies,
    /// `/v1/policies/{name}`.
    Policy(&'a str),
    /// `/v1/overrides`.
    Overrides,
    /// `/v1/audit`.
    Audit,
    /// `/v1/metrics`.
    Metrics,
    /// `/v1/metrics/top`.
    TopRefused,
    /// `/v1/decisions`.
    Decisions,
    /// `/v1/keys/block`.
    Block,
}

/// What an operator asks for: an endpoint of the admin API, and what to do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAct<'a> {
    /// List all policies.
    Policies,
    /// Show the policy with this name.
    Policy(Cow<'a, str>),
    /// Create or change it.
    SetPolicy(Cow<'a, str>),
    /// Delete it.
    DeletePolicy(Cow<'a, str>),
    /// List overrides.
    Overrides,
    /// Create, change and remove overrides.
    SetOverrides,
    /// Remove one override.
    RemoveOverride,
    /// List the latest acts.
    Audit,
    /// Show the counters.
    Metrics,
    /// List the keys refused most.
    TopRefused,
    /// Show live decisions.
    Decisions,
    /// Block a key.
    Block,
}

impl<'a> AdminPath<'a> {
    /// The endpoint at `path`.
    #[must_use]
    pub fn of(path: &'a str) -> Option<Self> {
        match path {
            "/v1/policies" => Some(Self::Policies),
            "/v1/overrides" => Some(Self::Overrides),
            "/v1/audit" => Some(Self::Audit),
            "/v1/metrics" => Some(Self::Metrics),
            "/v1/metrics/top" => Some(Self::TopRefused),
            "/v1/decisions" => Some(Self::Decisions),
            BLOCK_PATH => Some(Self::Block),
            _ => path.strip_prefix("/v1/policies/").map(Self::Policy),
        }
    }

    /// Its name in messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Policies | Self::Policy(_) => "policies",
            Self::Overrides => "overrides",
            Self::Audit => "audit",
            Self::Metrics | Self::TopRefused => "metrics",
            Self::Decisions => "decisions",
            Self::Block => "block",
        }
    }

    /// What `method` does here.
    ///
    /// # Errors
    /// [`Problem::MethodNotAllowed`].
    pub fn act(self, method: &str) -> Result<AdminAct<'a>, Problem> {
        match (self, method) {
            (Self::Policies, "GET") => Ok(AdminAct::Policies),
            (Self::Policy(name), "GET") => Ok(AdminAct::Policy(name.into())),
            (Self::Policy(name), "PUT") => Ok(AdminAct::SetPolicy(name.into())),
            (Self::Policy(name), "DELETE") => Ok(AdminAct::DeletePolicy(name.into())),
            (Self::Overrides, "GET") => Ok(AdminAct::Overrides),
            (Self::Overrides, "PUT") => Ok(AdminAct::SetOverrides),
            (Self::Overrides, "DELETE") => Ok(AdminAct::RemoveOverride),
            (Self::Audit, "GET") => Ok(AdminAct::Audit),
            (Self::Metrics, "GET") => Ok(AdminAct::Metrics),
            (Self::TopRefused, "GET") => Ok(AdminAct::TopRefused),
            (Self::Decisions, "GET") => Ok(AdminAct::Decisions),
            (Self::Block, "POST") => Ok(AdminAct::Block),
            _ => Err(Problem::MethodNotAllowed { method: method.to_owned(), allow: self.methods() }),
        }
    }

    /// Its methods, as in the header `Allow`.
    const fn methods(self) -> &'static str {
        match self {
            Self::Policies | Self::Audit | Self::Metrics | Self::TopRefused | Self::Decisions => "GET",
            Self::Policy(_) | Self::Overrides => "GET, PUT, DELETE",
            Self::Block => "POST",
        }
    }
}

impl<'a> AdminAct<'a> {
    /// Its name in a question to the registry: see [`AdminAct::from_word`].
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Policies => "policies",
            Self::Policy(_) => "policy",
            Self::SetPolicy(_) => "policy.set",
            Self::DeletePolicy(_) => "policy.delete",
            Self::Overrides => "overrides",
            Self::SetOverrides => "overrides.set",
            Self::RemoveOverride => "override.remove",
            Self::Audit => "audit",
            Self::Metrics => "metrics",
            Self::TopRefused => "metrics.top",
            Self::Decisions => "decisions",
            Self::Block => "block",
        }
    }

    /// The policy that it is about.
    pub(super) fn policy(&self) -> Option<&str> {
        match self {
            Self::Policy(name) | Self::SetPolicy(name) | Self::DeletePolicy(name) => Some(name),
            _ => None,
        }
    }

    /// The act with this word and policy, if there is one.
    pub(super) fn from_word(word: &str, policy: Option<Cow<'a, str>>) -> Option<Self> {
        Some(match (word, policy) {
            ("policies", None) => Self::Policies,
            ("policy", Some(name)) => Self::Policy(name),
            ("policy.set", Some(name)) => Self::SetPolicy(name),
            ("policy.delete", Some(name)) => Self::DeletePolicy(name),
            ("overrides", None) => Self::Overrides,
            ("overrides.set", None) => Self::SetOverrides,
            ("override.remove", None) => Self::RemoveOverride,
            ("audit", None) => Self::Audit,
            ("metrics", None) => Self::Metrics,
            ("metrics.top", None) => Self::TopRefused,
            ("decisions", None) => Self::Decisions,
            ("block", None) => Self::Block,
            _ => return None,
        })
    }
}
