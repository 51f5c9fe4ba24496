//! What can be wrong with policies as people write them.

use std::fmt;

use super::shown::shown_name;

/// Something wrong with a policy as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// Where: `POLICIES.api.rate`.
    pub(super) place: String,
    pub(super) problem: String,
}

impl PolicyError {
    /// What is wrong with a field of that policy.
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
