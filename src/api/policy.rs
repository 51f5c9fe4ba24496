//! A policy, ready to decide, with what never changes about its answers worked out once.

use std::fmt;
use std::time::Duration;

use super::fields::policy_field;
use super::numbers::{numbers_of, version_of};
use crate::limit::{Config, Kind, Limit};

/// A named set of limits, all of which must pass.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    limits: Vec<NamedLimit>,
    on_error: OnError,
    reservations: Terms,
    /// The value of the `RateLimit-Policy` field.
    field: String,
    /// The numbers as they are stored beside a bucket, and a hash of them.
    numbers: String,
    version: u64,
    call_name: String,
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
pub struct Terms {
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
    pub fn call_name(&self) -> &str {
        &self.call_name
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
    pub const fn reservations(&self) -> Terms {
        self.reservations
    }

    /// The value of the `RateLimit-Policy` response field: for each limit the quota `q` and its window `w` in seconds,
    /// scaled to whole seconds where the period is not, and the capacity as our own parameter.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
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

    pub(super) fn new(name: &str, limits: Vec<NamedLimit>, on_error: OnError, reservations: Terms) -> Self {
        let numbers = numbers_of(&limits);
        let version = version_of(&numbers);
        let field = policy_field(&limits);
        let names: Vec<_> = limits.iter().filter_map(NamedLimit::name).collect();
        let mark = if names.is_empty() { String::new() } else { format!("#{:016x}", version_of(&names.join(","))) };
        let call_name = format!("{name}{mark}");
        Self { name: name.to_owned(), limits, on_error, reservations, field, numbers, version, call_name }
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

/// One line for people: what the policy allows, on average and at worst.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        for (index, limit) in self.limits.iter().enumerate() {
            if index > 0 {
                f.write_str(" AND ")?;
            }
            if let Some(name) = limit.name() {
                write!(f, "{name} ")?;
            }
            describe(f, limit.limit())?;
        }
        match self.on_error {
            OnError::Closed => Ok(()),
            OnError::Open => f.write_str("; lets pass what cannot be decided"),
        }
    }
}

/// Over any interval a bucket admits at most its capacity and what comes back in that time, so within one period it may
/// be their sum: 200 at once and 100 more within the minute.
fn describe(f: &mut fmt::Formatter<'_>, limit: &Limit) -> fmt::Result {
    let Config { kind, rate, period_ms, capacity, max_debt, .. } = *limit.config();
    let period = humantime::format_duration(Duration::from_millis(period_ms));
    let kind = match kind {
        Kind::TokenBucket => "token bucket",
        Kind::FixedWindow => "fixed window",
    };
    write!(f, "{kind}, {rate} per {period}, at most {capacity} at once")?;
    match (capacity, rate) {
        (0, _) if max_debt == 0 => write!(f, "; WARNING: with a capacity of 0 every request is refused"),
        (_, 0) => write!(f, "; WARNING: with a rate of 0 a spent budget never comes back"),
        _ => {
            let worst = match limit.config().kind {
                Kind::TokenBucket => capacity.saturating_add(rate),
                Kind::FixedWindow => capacity.saturating_add(rate.min(capacity)),
            };
            write!(f, " and {worst} within any {period}")
        }
    }
}
