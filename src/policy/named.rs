//! A policy, ready to decide, with what never changes about its answers worked out once.

use super::stored::{numbers_of, version_of};
use crate::limit::Limit;

/// A named set of limits, all of which must pass.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    limits: Vec<NamedLimit>,
    on_error: OnError,
    reservations: ReservationTerms,
    /// The numbers as they are stored beside a bucket, and a hash of them.
    numbers: String,
    version: u64,
    wire_name: String,
}

/// One limit of a policy.
#[derive(Clone, Debug)]
pub struct NamedLimit {
    name: Option<String>,
    full_name: String,
    limit: Limit,
    write_ahead: u64,
}

/// What a client is told when nothing can be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// 503: what the limit protects matters more than the request.
    Closed,
    /// 200, marked as degraded: the request matters more.
    Open,
}

/// How long reservations are open, and what becomes of those that nobody settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationTerms {
    /// From the moment at which the tokens are ready, in milliseconds.
    pub ttl_ms: u64,
    /// What then.
    pub unsettled: Unsettled,
}

/// What becomes of a reservation that nobody settled or cancelled in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// It costs what was reserved: the work may have been done.
    Keep,
    /// It costs nothing: the tokens are given back.
    Refund,
}

impl Policy {
    /// The name: 1 to 64 letters, digits, `_`, `-` or `.`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name by which the front calls it when it asks an object: with a mark of the names of its limits, if they have
    /// any. An object of another version, whose limits are others or in another order, does not know it by that name.
    #[must_use]
    pub fn wire_name(&self) -> &str {
        &self.wire_name
    }

    /// What it allows: at least one limit.
    #[must_use]
    pub fn limits(&self) -> &[NamedLimit] {
        &self.limits
    }

    /// What is answered when nothing can be decided.
    #[must_use]
    pub const fn on_error(&self) -> OnError {
        self.on_error
    }

    /// The terms of its reservations.
    #[must_use]
    pub const fn reservations(&self) -> ReservationTerms {
        self.reservations
    }

    /// The limits' numbers, as they are stored beside a bucket.
    #[must_use]
    pub fn numbers(&self) -> &str {
        &self.numbers
    }

    /// Changes whenever the numbers do.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn new(name: &str, limits: Vec<NamedLimit>, on_error: OnError, reservations: ReservationTerms) -> Self {
        let numbers = numbers_of(&limits);
        let version = version_of(&numbers);
        let names: Vec<_> = limits.iter().filter_map(NamedLimit::name).collect();
        let mark = if names.is_empty() { String::new() } else { format!("#{:016x}", version_of(&names.join(","))) };
        let wire_name = format!("{name}{mark}");
        Self { name: name.to_owned(), limits, on_error, reservations, numbers, version, wire_name }
    }
}

impl NamedLimit {
    /// The limit's name within its policy; `None` for the only limit of a policy that is written without `limits`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The name by which answers call it: `policy/limit`, or the policy's.
    #[must_use]
    pub fn full_name(&self) -> &str {
        &self.full_name
    }

    /// The limit itself.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Tokens that may be spent without a write, and that a crash may cost.
    #[must_use]
    pub const fn write_ahead(&self) -> u64 {
        self.write_ahead
    }

    pub(super) fn new(policy: &str, name: Option<&str>, limit: Limit, write_ahead: u64) -> Self {
        let full_name = name.map_or_else(|| policy.to_owned(), |name| format!("{policy}/{name}"));
        Self { name: name.map(str::to_owned), full_name, limit, write_ahead }
    }
}
