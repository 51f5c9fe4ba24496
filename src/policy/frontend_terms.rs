//! A policy's terms for frontends, unknown to objects.
//!
//! Everything about a field is here: its meaning, its default and bounds, how it is parsed, how a change of it is described, and its part
//! of a displayed policy.

use std::fmt;
use std::ops::RangeInclusive;

use super::on_error::{Cause, OnError};
use super::reader::Reader;
use super::shown::shown_value;
use crate::json::Json;
use crate::length;

/// A policy's terms for frontends.
///
/// | field | meaning | default |
/// |---|---|---|
/// | `on_error` | when no decision can be made: `"closed"` answers 503; `"open"` answers 200, marked as degraded, unless the key is overloaded; a list opens for those causes only: `"timeout"`, `"failed"`, `"overloaded"` | `"closed"` |
/// | `refusal_cache` | how long a frontend may refuse from memory, at most a minute; `"0s"` calls the object each time | `"1s"` |
/// | `idempotency_ttl` | how long the answer to an `Idempotency-Key` is repeated: `"1m"` to `"7days"` | `"1h"` |
/// | `lease` | how long a frontend may spend tokens taken in advance, 100 milliseconds to ten seconds | none are taken |
/// | `max_lease` | maximum tokens of each limit in one lease | half of what is left |
/// | `ipv6_prefix` | how many bits of an IPv6 address count, from 32 to 128 | 64 |
/// | `show_key_prefix` | how many characters of a key operators see beside its hash, from 0 to 64 | 0 |
/// | `key` | `[]`: one budget for all, without keys in requests | each key has a budget |
/// | `jitter` | maximum random delay added to the retry time of refusals, up to an hour | `"0s"` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrontendTerms {
    /// The causes for which it fails open. A policy that enforces no limit does for all.
    pub on_error: OnError,
    /// How long a frontend may refuse from memory; 0 for not at all.
    pub refusal_cache_ms: u64,
    /// How long the answer to an `Idempotency-Key` is repeated.
    pub idempotency_ttl_ms: u64,
    /// How frontends may take tokens in advance, if at all.
    pub lease: Option<LeaseTerms>,
    /// How many bits of an IPv6 address count: the clients of one network share a budget. From 32 to 128.
    pub ipv6_prefix: u8,
    /// How many characters of a key operators see beside its hash; 0 for none.
    pub shown_key_prefix: u8,
    /// Whether it has one budget for all, and takes no key.
    pub has_one_budget: bool,
    /// Maximum random delay added to the retry time of refusals, so that callers do not return together.
    pub jitter_ms: u64,
}

/// The terms for taking tokens in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseTerms {
    /// How long they may be spent, in milliseconds.
    pub lease_ms: u64,
    /// Maximum tokens of each limit in a lease.
    pub max_tokens: u64,
}

impl LeaseTerms {
    /// Maximum duration of a lease. Longer leases could not be returned in the end: the runtime ends anything that continues for half a
    /// minute after an answer, and a lease may start up to its own duration in the future.
    pub const MAX_LEASE_MS: u64 = 10_000;
}

impl Default for FrontendTerms {
    fn default() -> Self {
        Self {
            on_error: OnError::CLOSED,
            refusal_cache_ms: Self::REFUSAL_CACHE_MS,
            idempotency_ttl_ms: Self::IDEMPOTENCY_TTL_MS,
            lease: None,
            ipv6_prefix: Self::IPV6_PREFIX,
            shown_key_prefix: 0,
            has_one_budget: false,
            jitter_ms: 0,
        }
    }
}

impl FrontendTerms {
    /// Too short for a person to notice; a client that retries ten times a second is refused nine times without a call.
    pub const REFUSAL_CACHE_MS: u64 = 1_000;

    /// Maximum `show_key_prefix`, in characters: a longer prefix would reveal the key.
    pub const MAX_SHOWN_KEY_PREFIX: u8 = 64;

    /// Longer than most clients keep retrying.
    pub const IDEMPOTENCY_TTL_MS: u64 = 3_600_000;

    /// Maximum idempotency keys remembered for a key: 4 per second for an hour, one per 37 seconds for a week. Large replays count as
    /// several, so that they take at most 4 MB in storage and 10 in memory; usually it is 1 and 4.
    #[doc(hidden)]
    pub const MAX_IDEMPOTENCY_KEYS: usize = 16_384;

    /// The smallest network that providers assign to a customer: a shorter prefix would join neighbours, a longer one lets a client have as
    /// many budgets as addresses.
    pub const IPV6_PREFIX: u8 = 64;

    /// How long a frontend that leases for `lease_ms` would wait for the tokens: as long as it may refuse by itself.
    #[doc(hidden)]
    #[must_use]
    pub fn horizon_ms(&self, lease_ms: u64) -> u64 {
        self.refusal_cache_ms.min(lease_ms)
    }

    /// The same without refusals from memory and leases.
    pub(super) const fn exact(self) -> Self {
        Self { refusal_cache_ms: 0, lease: None, ..self }
    }

    /// The names of its fields.
    pub(super) const FIELDS: [&str; 9] = [
        "on_error",
        "refusal_cache",
        "idempotency_ttl",
        "lease",
        "max_lease",
        "ipv6_prefix",
        "show_key_prefix",
        "key",
        "jitter",
    ];

    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        let on_error = on_error(reader);
        let refusal_cache_ms = reader.millis("refusal_cache").unwrap_or(Self::REFUSAL_CACHE_MS);
        if refusal_cache_ms > MAX_REFUSAL_CACHE_MS {
            reader.error("refusal_cache", "must be at most 1m: what is given back meanwhile is not noticed".to_owned());
        }
        let idempotency_ttl_ms = reader.millis("idempotency_ttl").unwrap_or(Self::IDEMPOTENCY_TTL_MS);
        if !(MIN_IDEMPOTENCY_TTL_MS..=MAX_IDEMPOTENCY_TTL_MS).contains(&idempotency_ttl_ms) {
            reader.error("idempotency_ttl", "must be a length of time from 1m to 7days".to_owned());
        }
        let lease = lease(reader);
        let ipv6_prefix = reader.small("ipv6_prefix", "bits", 32..=128).unwrap_or(Self::IPV6_PREFIX);
        let shown_key_prefix =
            reader.small("show_key_prefix", "characters", 0..=Self::MAX_SHOWN_KEY_PREFIX).unwrap_or(0);
        let has_one_budget = has_one_budget(reader);
        let jitter_ms = reader.millis("jitter").unwrap_or(0);
        if jitter_ms > MAX_JITTER_MS {
            let problem = "must be at most 1h: refused callers would be told to stay away for longer";
            reader.error("jitter", problem.to_owned());
        }
        Self {
            on_error,
            refusal_cache_ms,
            idempotency_ttl_ms,
            lease,
            ipv6_prefix,
            shown_key_prefix,
            has_one_budget,
            jitter_ms,
        }
    }

    /// The terms' part of a line about the policy, after that of its limits. A policy that enforces nothing refuses nothing.
    pub(super) fn write_summary(&self, is_enforced: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_one_budget {
            f.write_str("; one budget for all")?;
        }
        if !is_enforced {
            return Ok(());
        }
        if self.jitter_ms > 0 {
            write!(f, "; refused callers return up to {} later", length::shown(self.jitter_ms))?;
        }
        if self.on_error != OnError::CLOSED {
            write!(f, "; fails open on {}", self.on_error)?;
        }
        Ok(())
    }

    /// The changes when these replace `before`, one line each.
    pub(super) fn describe_change(&self, before: &Self, lines: &mut Vec<String>) {
        if before.refusal_cache_ms != self.refusal_cache_ms {
            let (new, old) = (length::shown(self.refusal_cache_ms), length::shown(before.refusal_cache_ms));
            lines.push(format!("refusal_cache: {new} instead of {old}"));
        }
        if before.idempotency_ttl_ms != self.idempotency_ttl_ms {
            let (new, old) = (length::shown(self.idempotency_ttl_ms), length::shown(before.idempotency_ttl_ms));
            lines.push(format!("idempotency_ttl: {new} instead of {old}, for answers that are given from then on"));
        }
        if before.lease != self.lease {
            let (new, old) = (shown_lease(self.lease), shown_lease(before.lease));
            lines.push(format!("lease: {new} instead of {old}"));
        }
        if before.ipv6_prefix != self.ipv6_prefix {
            let (new, old) = (self.ipv6_prefix, before.ipv6_prefix);
            lines.push(format!(
                "ipv6_prefix: {new} bits instead of {old}: every key that is an IPv6 address gets a new budget"
            ));
        }
        match (before.has_one_budget, self.has_one_budget) {
            (false, true) => lines.push(
                "key: one new budget for all instead of one for each key; requests with a key are answered 400"
                    .to_owned(),
            ),
            (true, false) => lines.push(
                "key: a new budget for each key instead of one for all; requests without a key are answered 400"
                    .to_owned(),
            ),
            _ => {}
        }
        if before.jitter_ms != self.jitter_ms {
            let (new, old) = (length::shown(self.jitter_ms), length::shown(before.jitter_ms));
            lines.push(format!("jitter: refusals are spread over {new} instead of {old}"));
        }
        if before.shown_key_prefix != self.shown_key_prefix {
            let (new, old) = (self.shown_key_prefix, before.shown_key_prefix);
            lines.push(format!("show_key_prefix: operators are shown {new} characters of a key instead of {old}"));
        }
    }
}

fn on_error(reader: &mut Reader<'_>) -> OnError {
    let on_error =
        reader.fields.get("on_error").map_or(Some(OnError::CLOSED), |value| match value.string().as_deref() {
            Some("closed") => Some(OnError::CLOSED),
            Some("open") => Some(OnError::OPEN),
            _ => causes(value).map(|causes| causes.into_iter().fold(OnError::CLOSED, OnError::and)),
        });
    if on_error.is_none() {
        let causes = Cause::ALL.map(Cause::word).join("\", \"");
        let rule = format!("must be \"closed\", \"open\", or a list of causes to open for: \"{causes}\"");
        reader.error("on_error", rule);
    }
    on_error.unwrap_or_default()
}

/// Whether there is one budget for all.
fn has_one_budget(reader: &mut Reader<'_>) -> bool {
    let Some(value) = reader.fields.get("key") else { return false };
    let is_empty = value.array().is_some_and(|parts| parts.is_empty());
    if !is_empty {
        let rule = "must be [], for one budget that all share; for a budget for each key, leave it out";
        reader.error("key", format!("{rule}, not {}", shown_value(value)));
    }
    is_empty
}

/// `None` if no tokens are to be leased, or if the fields are invalid.
fn lease(reader: &mut Reader<'_>) -> Option<LeaseTerms> {
    let max_tokens = reader.tokens("max_lease");
    if max_tokens == Some(0) {
        reader.error("max_lease", "must be at least 1; to lease none, leave out `lease`".to_owned());
    }
    let Some(value) = reader.fields.get("lease") else {
        if reader.fields.get("max_lease").is_some() {
            reader.error("max_lease", "needs `lease`, which says for how long".to_owned());
        }
        return None;
    };
    let shown = shown_value(value);
    let lease_ms = reader.millis("lease")?;
    if !LEASE_MS.contains(&lease_ms) {
        reader.error("lease", format!("must be from 100ms to 10s, not {shown}"));
    }
    Some(LeaseTerms { lease_ms, max_tokens: max_tokens.unwrap_or(u64::MAX) })
}

/// A non-empty list of causes.
fn causes(value: Json<'_>) -> Option<Vec<Cause>> {
    let causes =
        value.array()?.into_iter().map(|word| Cause::from_word(&word.string()?)).collect::<Option<Vec<_>>>()?;
    (!causes.is_empty()).then_some(causes)
}

fn shown_lease(lease: Option<LeaseTerms>) -> String {
    match lease {
        Some(LeaseTerms { lease_ms, max_tokens: u64::MAX }) => length::shown(lease_ms),
        Some(LeaseTerms { lease_ms, max_tokens }) => {
            format!("{} of at most {max_tokens} tokens", length::shown(lease_ms))
        }
        None => "none".to_owned(),
    }
}

/// A call may take this long: a shorter lease would be over when it arrives.
const LEASE_MS: RangeInclusive<u64> = 100..=LeaseTerms::MAX_LEASE_MS;

/// How long a key may still be refused after something was given back.
const MAX_REFUSAL_CACHE_MS: u64 = 60_000;

/// A request repeated after a failed try of up to ten seconds must find the first.
const MIN_IDEMPOTENCY_TTL_MS: u64 = 60_000;

/// A job that fails on one day of the week is usually repeated within the next; the number of answers per key has its own bound.
const MAX_IDEMPOTENCY_TTL_MS: u64 = 7 * 86_400_000;

/// Spreads the callers that wait for a day's window over the first hour of the next.
const MAX_JITTER_MS: u64 = 3_600_000;
