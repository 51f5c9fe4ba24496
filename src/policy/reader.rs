//! One table of fields, read with everything that is wrong with them.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::error::PolicyError;
use super::named::NamedLimit;
use super::parse::MAX_LIMITS;
use crate::limit::{Config, ConfigError, Kind, Limit, MAX_TOKENS};

/// Reads the fields of one table and collects what is wrong with them.
pub(super) struct Reader<'a> {
    pub(super) place: String,
    pub(super) fields: &'a Map<String, Value>,
    pub(super) errors: &'a mut Vec<PolicyError>,
}

impl Reader<'_> {
    pub(super) fn limits(&mut self, policy: &str) -> Vec<NamedLimit> {
        let place = format!("{}.limits", self.place);
        let list = self.fields.get("limits").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if list.is_empty() || list.len() > MAX_LIMITS {
            self.wrong("limits", &format!("must be a list of 1 to {MAX_LIMITS} limits"));
            return Vec::new();
        }
        let mut names = BTreeSet::new();
        let mut limits = Vec::new();
        for (index, value) in list.iter().enumerate() {
            let place = format!("{place}[{index}]");
            let mut wrong = |problem: String| self.errors.push(PolicyError { place: place.clone(), problem });
            let Value::Object(fields) = value else {
                wrong("is not a table of name, rate, period, ...".to_owned());
                continue;
            };
            match fields.get("name").and_then(Value::as_str) {
                Some(name) if !is_name(name) => wrong(format!("name: {}", name_rule())),
                Some(name) if !names.insert(name) => wrong(format!("is the second limit named {name}")),
                Some(name) => {
                    let mut reader = Reader { place, fields, errors: self.errors };
                    reader.only(&[&["name"], &LIMIT_FIELDS[..]].concat());
                    limits.extend(reader.limit(policy, Some(name)));
                }
                None => wrong("must have a name, by which answers and costs refer to it".to_owned()),
            }
        }
        limits
    }

    pub(super) fn limit(&mut self, policy: &str, name: Option<&str>) -> Option<NamedLimit> {
        let before = self.errors.len();
        let config = self.config();
        let write_ahead = self.tokens("write_ahead");
        if self.errors.len() > before {
            return None;
        }
        match Limit::new(&config) {
            Ok(limit) => {
                let write_ahead = write_ahead.unwrap_or_else(|| default_write_ahead(&config));
                Some(NamedLimit::new(policy, name, limit, write_ahead))
            }
            Err(error) => {
                self.wrong(field_of(&error), &error.to_string());
                None
            }
        }
    }

    fn config(&mut self) -> Config {
        let kind = self.choice("kind", &[("token_bucket", Kind::TokenBucket), ("fixed_window", Kind::FixedWindow)]);
        let rate = self.required("rate", Self::tokens);
        let period_ms = self.required("period", Self::millis);
        let capacity = self.tokens("capacity").unwrap_or(rate);
        let max_debt = self.tokens("max_debt").unwrap_or(0);
        let initial = self.tokens("initial");
        Config { kind, rate, period_ms, capacity, initial, max_debt, offset_ms: self.millis("offset") }
    }

    pub(super) fn only(&mut self, known: &[&str]) {
        for field in self.fields.keys().filter(|field| !known.contains(&field.as_str())) {
            self.wrong(field, &format!("is not a field here; those are {}", known.join(", ")));
        }
    }

    /// One of the named values; the first if there is none.
    pub(super) fn choice<T: Copy>(&mut self, field: &str, choices: &[(&str, T); 2]) -> T {
        let [(first, default), (second, other)] = *choices;
        match self.fields.get(field).map(Value::as_str) {
            Some(Some(text)) if text == second => other,
            Some(text) if text != Some(first) => {
                self.wrong(field, &format!("must be \"{first}\" or \"{second}\""));
                default
            }
            _ => default,
        }
    }

    fn required(&mut self, field: &str, read: fn(&mut Self, &str) -> Option<u64>) -> u64 {
        if !self.fields.contains_key(field) {
            self.wrong(field, "is missing");
        }
        read(self, field).unwrap_or_default()
    }

    fn tokens(&mut self, field: &str) -> Option<u64> {
        let value = self.fields.get(field)?;
        let tokens = value.as_u64().filter(|&tokens| tokens <= MAX_TOKENS);
        if tokens.is_none() {
            self.wrong(field, &format!("must be a whole number from 0 to {MAX_TOKENS}, not {value}"));
        }
        tokens
    }

    pub(super) fn millis(&mut self, field: &str) -> Option<u64> {
        let value = self.fields.get(field)?;
        let Some(text) = value.as_str() else {
            self.wrong(field, &format!("must be text with a unit, such as \"90s\", not {value}"));
            return None;
        };
        match humantime::parse_duration(text) {
            Ok(length) if length.subsec_nanos().is_multiple_of(1_000_000) => u64::try_from(length.as_millis()).ok(),
            Ok(_) => {
                self.wrong(field, &format!("must be whole milliseconds, not {text:?}"));
                None
            }
            Err(error) => {
                self.wrong(field, &format!("{text:?} is no length of time such as \"90s\" or \"1h 30m\": {error}"));
                None
            }
        }
    }

    fn wrong(&mut self, field: &str, problem: &str) {
        self.errors.push(PolicyError { place: format!("{}.{field}", self.place), problem: problem.to_owned() });
    }
}

/// The field that an error is about, as it is written.
const fn field_of(error: &ConfigError) -> &'static str {
    match error {
        ConfigError::RateTooLarge { .. } => "rate",
        ConfigError::PeriodZero | ConfigError::PeriodTooLong { .. } => "period",
        ConfigError::CapacityTooLarge { .. } => "capacity",
        ConfigError::MaxDebtTooLarge { .. } => "max_debt",
        ConfigError::InitialTooLarge { .. } => "initial",
        ConfigError::OffsetTooLarge { .. } | ConfigError::OffsetWithoutWindows => "offset",
    }
}

pub(super) const LIMIT_FIELDS: [&str; 8] =
    ["kind", "rate", "period", "capacity", "max_debt", "initial", "offset", "write_ahead"];

/// The longest name of a policy or a limit. Names go into headers and logs; a longer one is no name.
const MAX_NAME_LEN: usize = 64;

/// A crash then costs a key at most a twentieth of its burst, or what comes back in a second, in which it may not even be
/// over: nobody notices either, and a busy key writes once for as many tokens.
fn default_write_ahead(config: &Config) -> u64 {
    let Config { rate, period_ms, capacity, .. } = *config;
    let in_a_second = u128::from(rate).saturating_mul(1_000).checked_div(period_ms.into()).unwrap_or(0);
    match rate {
        0 => 0, // what it loses never comes back
        _ => u64::try_from(in_a_second).unwrap_or(capacity).max(capacity / 20).min(capacity),
    }
}

pub(super) fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= MAX_NAME_LEN && name.chars().all(is_allowed)
}

pub(super) fn name_rule() -> String {
    format!("a name has 1 to {MAX_NAME_LEN} letters, digits, '_', '-' or '.', all ASCII")
}
