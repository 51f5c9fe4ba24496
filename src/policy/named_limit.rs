//! One limit of a policy, with its name.

use crate::limit::Limit;

/// One limit of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    name: Option<String>,
    full_name: String,
    limit: Limit,
    write_ahead: u64,
    /// Whether it had no name in an earlier version.
    was_unnamed: bool,
}

impl NamedLimit {
    /// The limit's name within its policy; `None` for the only limit of a policy without `limits`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The name under which its buckets, leases and reservations were created, so that naming a limit gives nothing away.
    #[doc(hidden)]
    #[must_use]
    pub fn account(&self) -> Option<&str> {
        self.name().filter(|_| !self.was_unnamed)
    }

    /// The name in answers: `policy/limit`, or the policy's.
    #[must_use]
    pub fn full_name(&self) -> &str {
        &self.full_name
    }

    /// The limit itself.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether less than a fifth of it is left: time to slow down.
    #[must_use]
    pub const fn is_near(&self, remaining: u64) -> bool {
        remaining.saturating_mul(5) < self.limit.config().capacity
    }

    /// Tokens that may be spent without a write, and so the maximum that a crash may cost.
    #[doc(hidden)]
    #[must_use]
    pub const fn write_ahead(&self) -> u64 {
        self.write_ahead
    }

    pub(super) fn new(policy: &str, name: Option<&str>, limit: Limit, write_ahead: u64) -> Self {
        let full_name = name.map_or_else(|| policy.to_owned(), |name| format!("{policy}/{name}"));
        Self { name: name.map(str::to_owned), full_name, limit, write_ahead, was_unnamed: false }
    }

    /// The limit, marked if its name is that of the one that had none in an earlier version.
    pub(super) fn with_unnamed(self, unnamed: Option<&str>) -> Self {
        Self { was_unnamed: unnamed.is_some() && self.name() == unnamed, ..self }
    }

    /// The same limit with other numbers.
    pub(super) fn with_numbers(&self, limit: Limit, write_ahead: u64) -> Self {
        Self { limit, write_ahead, ..self.clone() }
    }
}
