//! Errors in policies as written.

use std::{fmt, slice, vec};

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
    #[cfg(any(feature = "service", feature = "tower"))]
    pub(crate) fn of(policy: &str, field: &str, problem: String) -> Self {
        Self { place: format!("{}.{field}", place_of(policy)), problem }
    }

    /// The same where the policies are not in the variable, but in what is called `name`.
    #[cfg(feature = "service")]
    pub(crate) fn in_policies(&self, name: &str) -> Self {
        let place =
            self.place.strip_prefix(POLICIES).map_or_else(|| self.place.clone(), |rest| format!("{name}{rest}"));
        Self { place, problem: self.problem.clone() }
    }

    /// The error in a text of nothing but the policy with that name. A name that is quoted in places is what is wrong, and stays.
    #[cfg(feature = "service")]
    pub(crate) fn in_policy(&self, name: &str) -> String {
        let own = format!("{POLICIES}.{name}");
        let rest = self.place.strip_prefix(&own).or_else(|| self.place.strip_prefix(POLICIES));
        match rest.map(|rest| rest.trim_start_matches('.')) {
            None => self.to_string(),
            Some("") => self.problem.clone(),
            Some(field) => format!("{field}: {}", self.problem),
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for PolicyError {}

/// The place of the policy with that name.
pub(super) fn place_of(name: &str) -> String {
    format!("{POLICIES}.{}", shown_name(name))
}

/// The name of the setting with the policies.
pub(crate) const POLICIES: &str = "POLICIES";

/// All errors in policies as written, at least one. Displayed, they are one per line.
///
/// ```
/// use tollgate::policy::Policies;
///
/// let errors = Policies::parse(r#"{"api":{"rate":100},"login":{"rate":5}}"#).unwrap_err();
/// let lines = ["POLICIES.api.period: is missing", "POLICIES.login.period: is missing"];
/// assert_eq!(errors.to_string(), lines.join("\n"));
/// assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), lines);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyErrors(Vec<PolicyError>);

impl PolicyErrors {
    /// Each of them.
    pub fn iter(&self) -> slice::Iter<'_, PolicyError> {
        self.0.iter()
    }

    /// `errors`, of which there is at least one.
    pub(super) const fn all(errors: Vec<PolicyError>) -> Self {
        Self(errors)
    }
}

impl From<PolicyError> for PolicyErrors {
    fn from(error: PolicyError) -> Self {
        Self(vec![error])
    }
}

impl<'a> IntoIterator for &'a PolicyErrors {
    type Item = &'a PolicyError;
    type IntoIter = slice::Iter<'a, PolicyError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for PolicyErrors {
    type Item = PolicyError;
    type IntoIter = vec::IntoIter<PolicyError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.iter().enumerate() {
            write!(f, "{}{error}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for PolicyErrors {}
