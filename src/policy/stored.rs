//! The numbers of a policy's limits as stored beside its buckets: without them a stored level means nothing.
//!
//! A deployment may read rows that an earlier one wrote under other numbers. So a bucket is stored with its numbers, and carried over to
//! the current ones when read.

use std::fmt;

use serde::Serialize;

use super::named_limit::NamedLimit;
use crate::json::Json;
use crate::limit::{Calendar, Config, ConfigError, Kind, Limit};
use crate::zones;

/// The stored limits, with their names.
///
/// # Errors
/// [`StoredConfigError`] for text that is not a list of valid limits.
pub fn stored_limits(numbers: &str) -> Result<Vec<(Option<String>, Limit)>, StoredConfigError> {
    limits_of(Json::parse(numbers).map_err(|_| StoredConfigError::Unreadable)?)
}

pub(super) fn limits_of(numbers: Json<'_>) -> Result<Vec<(Option<String>, Limit)>, StoredConfigError> {
    let mut limits = Vec::new();
    for numbers in numbers.array().ok_or(StoredConfigError::Unreadable)? {
        let (name, config) = named_config(numbers).ok_or(StoredConfigError::Unreadable)?;
        limits.push((name, Limit::of_any_kind(&config).map_err(StoredConfigError::NoLimit)?));
    }
    Ok(limits)
}

const KINDS: [Kind; 4] = [Kind::TokenBucket, Kind::FixedWindow, Kind::FirstUseWindow, Kind::RollingWindow];

/// Parses a [`StoredConfig`]. An unknown field makes it unreadable: each may change the arithmetic.
fn named_config(numbers: Json<'_>) -> Option<(Option<String>, Config)> {
    const KNOWN: [&str; 10] =
        ["name", "kind", "rate", "period_ms", "capacity", "max_debt", "initial", "offset_ms", "calendar", "soft"];
    let fields = numbers.fields().ok().filter(|fields| fields.names().all(|name| KNOWN.contains(&name)))?;
    let whole = |name: &str| fields.get(name)?.integer();
    let whole_or_null = |name: &str| match fields.get(name)? {
        null if null.raw() == "null" => Some(None),
        number => number.integer().map(Some),
    };
    let word = fields.get("kind")?.string()?;
    let config = Config {
        kind: KINDS.into_iter().find(|kind| kind.word() == word)?,
        rate: whole("rate")?,
        period_ms: whole("period_ms")?,
        capacity: whole("capacity")?,
        max_debt: whole("max_debt")?,
        initial: whole_or_null("initial")?,
        offset_ms: whole_or_null("offset_ms")?,
        calendar: match fields.get("calendar") {
            Some(calendar) => Some(Calendar::parse(&calendar.string()?, zones::named)?),
            None => None,
        },
        is_soft: fields.get("soft").is_some_and(|soft| soft.bool() == Some(true)),
    };
    let name = match fields.get("name") {
        Some(name) => Some(name.string()?.into_owned()),
        None => None,
    };
    Some((name, config))
}

/// The numbers of limits as stored beside a bucket: the input of [`stored_limits`].
pub fn numbers_of<'a>(limits: impl IntoIterator<Item = (Option<&'a str>, &'a Limit)>) -> String {
    let numbers: Vec<_> = limits.into_iter().map(|(name, limit)| StoredConfig::new(name, limit)).collect();
    serde_json::to_string(&numbers).unwrap_or_default() // our own type cannot fail to serialize
}

/// Why stored numbers are unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredConfigError {
    /// They are malformed.
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

/// [`Config`] with the stored field names.
#[derive(Serialize)]
pub(super) struct StoredConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    kind: &'static str,
    rate: u64,
    period_ms: u64,
    capacity: u64,
    max_debt: u64,
    initial: Option<u64>,
    offset_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<String>,
    /// A version that does not know it cannot read the numbers: it would refuse.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    soft: bool,
}

impl StoredConfig {
    pub(super) fn of(named: &NamedLimit) -> Self {
        Self::new(named.own_account(), named.limit())
    }

    pub(super) fn new(name: Option<&str>, limit: &Limit) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, calendar, is_soft } =
            *limit.config();
        Self {
            name: name.map(str::to_owned),
            kind: kind.word(),
            rate,
            period_ms,
            capacity,
            max_debt,
            initial,
            offset_ms,
            calendar: calendar.map(|calendar| calendar.to_string()),
            soft: is_soft,
        }
    }
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::*;
    use crate::policy::{Policies, Policy};

    /// The format in the storage of every deployment. If it changes, old buckets must still be readable.
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
        let rolling = Policy::parse("r", r#"{"kind":"rolling_window","rate":3,"period":"1s"}"#).unwrap();
        let numbers = r#"[{"kind":"rolling_window","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#;
        assert_eq!(rolling.numbers(), numbers);
        assert_eq!(stored_limits(numbers), Ok(vec![(None, *rolling.limits()[0].limit())]));
        assert_eq!(stored_limits(p.numbers()), Ok(vec![(None, *p.limits()[0].limit())]));
        assert_eq!(stored_limits(q.numbers()), Ok(vec![(Some("a".to_owned()), *q.limits()[0].limit())]));
    }

    #[test]
    fn rejects_foreign_bytes() {
        let good = r#"[{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"max_debt":0,"initial":null,"offset_ms":null}]"#;
        assert!(stored_limits(good).is_ok());
        assert_eq!(stored_limits(""), Err(StoredConfigError::Unreadable));
        assert_eq!(stored_limits(&good.replace('}', ",\"x\":1}")), Err(StoredConfigError::Unreadable));
        let no_limit = good.replace("1000", "0");
        assert_eq!(stored_limits(&no_limit), Err(StoredConfigError::NoLimit(ConfigError::PeriodZero)));
    }
}
