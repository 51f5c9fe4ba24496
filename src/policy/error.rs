//! Errors in policies as written.

use std::fmt;

use super::shown::shown_name;

/// An error in a policy as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The place, such as `POLICIES.api.rate`.
    pub(super) place: String,
    pub(super) problem: String,
}

impl PolicyError {
    /// An error in a field of that policy.
    pub(crate) fn of(policy: &str, field: &str, problem: String) -> Self {
        Self { place: format!("POLICIES.{}.{field}", shown_name(policy)), problem }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for PolicyError {}
