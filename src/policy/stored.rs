//! The numbers of a policy's limits as they are stored beside its buckets: without them a stored level means nothing.
//!
//! A deployment may read what an earlier one wrote under other numbers. So a bucket is stored with the numbers it was
//! written under, and is carried over to today's when it is read.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::named::{NamedLimit, Policy, ReservationTerms, Unsettled};
use super::on_error::OnError;
use crate::limit::{Config, ConfigError, Kind, Limit};

/// The limits that were stored, with their names.
///
/// # Errors
/// [`StoredConfigError`] for text that is not a list of valid limits.
pub fn stored_limits(numbers: &str) -> Result<Vec<(Option<String>, Limit)>, StoredConfigError> {
    limits_of(serde_json::from_str(numbers).map_err(|_| StoredConfigError::Unreadable)?)
}

pub(super) fn limits_of(numbers: Vec<StoredConfig>) -> Result<Vec<(Option<String>, Limit)>, StoredConfigError> {
    let limits = numbers.into_iter().map(|numbers| {
        let limit = Limit::new(&numbers.config()).map_err(StoredConfigError::NoLimit)?;
        Ok((numbers.name, limit))
    });
    limits.collect()
}

/// The numbers of limits, as they are stored beside a bucket: what [`stored_limits`] reads.
pub fn numbers_of<'a>(limits: impl IntoIterator<Item = (Option<&'a str>, &'a Limit)>) -> String {
    let numbers: Vec<_> = limits.into_iter().map(|(name, limit)| StoredConfig::new(name, limit)).collect();
    serde_json::to_string(&numbers).unwrap_or_default() // our own type cannot fail to serialize
}

impl Policy {
    /// A policy of stored numbers, for a bucket that is opened before its policy is known. It writes every change.
    ///
    /// # Errors
    /// [`StoredConfigError`] for text that is not a list of valid limits.
    pub fn from_numbers(name: &str, numbers: &str) -> Result<Self, StoredConfigError> {
        let limits = stored_limits(numbers)?;
        let limits = limits.into_iter().map(|(limit, config)| NamedLimit::new(name, limit.as_deref(), config, 0));
        let reservations = ReservationTerms { ttl_ms: 0, unsettled: Unsettled::Keep };
        Ok(Self::new(name, limits.collect(), OnError::CLOSED, reservations))
    }
}

/// Why stored numbers cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredConfigError {
    /// They cannot be read.
    Unreadable,
    /// They are not a valid limit.
    NoLimit(ConfigError),
}

impl fmt::Display for StoredConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => write!(f, "the numbers beside the record cannot be read"),
            Self::NoLimit(error) => write!(f, "the numbers beside the record are not a valid limit: {error}"),
        }
    }
}

impl std::error::Error for StoredConfigError {}

/// 64 bits of a cryptographic hash, so that no two policies share them.
pub(super) fn version_of(numbers: &str) -> u64 {
    let digest = Sha256::digest(numbers);
    digest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// [`Config`] with the names that are stored.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    kind: StoredKind,
    rate: u64,
    period_ms: u64,
    capacity: u64,
    max_debt: u64,
    initial: Option<u64>,
    offset_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredKind {
    TokenBucket,
    FixedWindow,
}

impl StoredConfig {
    pub(super) fn of(named: &NamedLimit) -> Self {
        Self::new(named.name(), named.limit())
    }

    fn new(name: Option<&str>, limit: &Limit) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms } = *limit.config();
        let kind = match kind {
            Kind::TokenBucket => StoredKind::TokenBucket,
            Kind::FixedWindow => StoredKind::FixedWindow,
        };
        Self { name: name.map(str::to_owned), kind, rate, period_ms, capacity, max_debt, initial, offset_ms }
    }

    fn config(&self) -> Config {
        let Self { rate, period_ms, capacity, max_debt, initial, offset_ms, .. } = *self;
        let kind = match self.kind {
            StoredKind::TokenBucket => Kind::TokenBucket,
            StoredKind::FixedWindow => Kind::FixedWindow,
        };
        Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policies;

    /// Every deployment has stored this. If it changes, old buckets must still be read.
    #[test]
    fn the_stored_format_is_unchanged() {
        let json = r#"{"p":{"rate":3,"period":"1s"},"q":{"limits":[{"name":"a","rate":1,"period":"1m","offset":"5s",
            "kind":"fixed_window","capacity":7,"max_debt":3,"initial":2}]}}"#;
        let policies = Policies::parse(json).unwrap();
        let [p, q] = ["p", "q"].map(|name| policies.get(name).unwrap());
        assert_eq!(
            p.numbers(),
            r#"[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#
        );
        assert_eq!(p.version(), 0xb3e5_671b_e023_1d1a);
        assert_eq!(
            q.numbers(),
            r#"[{"name":"a","kind":"fixed_window","rate":1,"period_ms":60000,"capacity":7,"max_debt":3,"initial":2,"offset_ms":5000}]"#
        );
        assert_eq!(stored_limits(p.numbers()), Ok(vec![(None, *p.limits()[0].limit())]));
        assert_eq!(stored_limits(q.numbers()), Ok(vec![(Some("a".to_owned()), *q.limits()[0].limit())]));
    }

    #[test]
    fn rejects_what_was_not_written_here() {
        let good = r#"[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#;
        assert!(stored_limits(good).is_ok());
        assert_eq!(stored_limits(""), Err(StoredConfigError::Unreadable));
        assert_eq!(stored_limits(&good.replace('}', ",\"x\":1}")), Err(StoredConfigError::Unreadable));
        let no_limit = good.replace("1000", "0");
        assert_eq!(stored_limits(&no_limit), Err(StoredConfigError::NoLimit(ConfigError::PeriodZero)));
    }
}
