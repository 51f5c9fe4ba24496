//! Policies as people write them, checked all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::named::{NamedLimit, OnError, Policy, ReservationTerms, Unsettled};
use crate::limit::{Config, ConfigError, Kind, Limit, MAX_TOKENS};

/// All policies of a deployment, by name.
#[derive(Clone, Debug)]
pub struct Policies(BTreeMap<String, Arc<Policy>>);

impl Policies {
    /// Reads policies from the JSON of `POLICIES`, an object of names to policies. A policy of one limit has the fields
    /// of a limit beside its own; one of several has them in `limits`, a list of limits with a `name` each.
    ///
    /// | field of a limit | meaning | default |
    /// |---|---|---|
    /// | `kind` | `"token_bucket"` or `"fixed_window"` | `"token_bucket"` |
    /// | `rate` | tokens that come back in each period | required |
    /// | `period` | a length of time such as `"250ms"`, `"1m"`, `"1h 30m"`, `"1day"` | required |
    /// | `capacity` | the most tokens at once | `rate` |
    /// | `max_debt` | how far below zero reservations and charges may take it, in tokens | 0 |
    /// | `initial` | tokens of a key never seen before | `capacity` |
    /// | `offset` | where windows begin, after midnight UTC of 1 January 1970; only for fixed windows | by key |
    /// | `write_ahead` | tokens that a crash may cost, for as many to be spent without a write; 0 writes each change | what comes back in a second or a twentieth of the capacity, whichever is more; 0 at rate 0 |
    ///
    /// | field of a policy | meaning | default |
    /// |---|---|---|
    /// | `on_error` | when nothing can be decided: `"closed"` answers 503, `"open"` lets pass | `"closed"` |
    /// | `reservation_ttl` | how long after its start a reservation can be settled | `"10m"` |
    /// | `unsettled` | what a reservation that nobody settled costs: `"keep"` all of it, `"refund"` nothing | `"keep"` |
    ///
    /// ```
    /// let policies = tollgate::policy::Policies::parse(r#"{"api":{"rate":100,"period":"1m","capacity":200}}"#).unwrap();
    /// let api = policies.get("api").unwrap();
    /// assert_eq!(api.to_string(), "api: token bucket, 100 per 1m, at most 200 at once and 300 within any 1m");
    /// ```
    ///
    /// # Errors
    /// Every [`PolicyError`] there is, not only the first.
    pub fn parse(json: &str) -> Result<Self, Vec<PolicyError>> {
        let whole = |problem: String| vec![PolicyError { place: "POLICIES".to_owned(), problem }];
        let named: BTreeMap<String, Value> = serde_json::from_str(json)
            .map_err(|error| whole(format!("is not an object of policies by name: {error}")))?;
        if named.is_empty() {
            return Err(whole("names no policy".to_owned()));
        }
        let mut errors = Vec::new();
        let mut policies = BTreeMap::new();
        for (name, value) in named {
            if let Some(policy) = policy(&name, &value, &mut errors) {
                policies.insert(name, Arc::new(policy));
            }
        }
        if errors.is_empty() { Ok(Self(policies)) } else { Err(errors) }
    }

    /// The policy of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Policy>> {
        self.0.get(name)
    }

    /// The policy of that [call name](Policy::wire_name).
    #[must_use]
    pub fn by_wire_name(&self, wire_name: &str) -> Option<&Arc<Policy>> {
        let name = wire_name.split('#').next().unwrap_or_default();
        self.get(name).filter(|policy| policy.wire_name() == wire_name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.0.values()
    }
}

/// Something wrong with a policy as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// Where: `POLICIES.api.rate`.
    place: String,
    problem: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for PolicyError {}

/// The most limits of one policy. Each is decided and answered with every request; nobody has named more than four.
pub const MAX_LIMITS: usize = 8;

/// The longest name of a policy or a limit. Names go into headers and logs; a longer one is no name.
const MAX_NAME_LEN: usize = 64;

const LIMIT_FIELDS: [&str; 8] = ["kind", "rate", "period", "capacity", "max_debt", "initial", "offset", "write_ahead"];
const POLICY_FIELDS: [&str; 3] = ["on_error", "reservation_ttl", "unsettled"];

/// A model's answer of ten minutes is a very long one.
const RESERVATION_TTL_MS: u64 = 600_000;

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

/// The policy, or `None` with at least one more error.
fn policy(name: &str, value: &Value, errors: &mut Vec<PolicyError>) -> Option<Policy> {
    let before = errors.len();
    let place = format!("POLICIES.{name}");
    if !is_name(name) {
        errors.push(PolicyError { place, problem: name_rule() });
        return None;
    }
    let Value::Object(fields) = value else {
        errors.push(PolicyError { place, problem: "is not a table of rate, period, ...".to_owned() });
        return None;
    };
    let mut reader = Reader { place, fields, errors };
    let limits = if fields.contains_key("limits") {
        reader.only(&[&["limits"], &POLICY_FIELDS[..]].concat());
        reader.limits(name)
    } else {
        reader.only(&[&LIMIT_FIELDS[..], &POLICY_FIELDS, &["limits"]].concat());
        reader.limit(name, None).into_iter().collect()
    };
    let on_error = reader.choice("on_error", &[("closed", OnError::Closed), ("open", OnError::Open)]);
    let unsettled = reader.choice("unsettled", &[("keep", Unsettled::Keep), ("refund", Unsettled::Refund)]);
    let ttl_ms = reader.millis("reservation_ttl").unwrap_or(RESERVATION_TTL_MS);
    (errors.len() == before).then(|| Policy::new(name, limits, on_error, ReservationTerms { ttl_ms, unsettled }))
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= MAX_NAME_LEN && name.chars().all(is_allowed)
}

fn name_rule() -> String {
    format!("a name has 1 to {MAX_NAME_LEN} letters, digits, '_', '-' or '.', all ASCII")
}

/// Reads the fields of one table and collects what is wrong with them.
struct Reader<'a> {
    place: String,
    fields: &'a Map<String, Value>,
    errors: &'a mut Vec<PolicyError>,
}

impl Reader<'_> {
    fn limits(&mut self, policy: &str) -> Vec<NamedLimit> {
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

    fn limit(&mut self, policy: &str, name: Option<&str>) -> Option<NamedLimit> {
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

    fn only(&mut self, known: &[&str]) {
        for field in self.fields.keys().filter(|field| !known.contains(&field.as_str())) {
            self.wrong(field, &format!("is not a field here; those are {}", known.join(", ")));
        }
    }

    /// One of the named values; the first if there is none.
    fn choice<T: Copy>(&mut self, field: &str, choices: &[(&str, T); 2]) -> T {
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

    fn millis(&mut self, field: &str) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(json: &str) -> Vec<String> {
        Policies::parse(json).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_policy_needs_only_a_rate_and_a_period() {
        let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m"}}"#).unwrap();
        let [limit] = policies.get("api").unwrap().limits() else { panic!("one limit") };
        assert_eq!(limit.limit().config(), &Config::token_bucket(100, 60_000));
        assert_eq!((limit.name(), limit.full_name(), limit.write_ahead()), (None, "api", 5));
        assert!(policies.get("other").is_none());
    }

    #[test]
    fn every_field_is_read() {
        let json = r#"{"p":{"kind":"fixed_window","rate":5,"period":"1h 30m","capacity":9,"max_debt":3,"initial":2,
            "offset":"15m","write_ahead":4,"on_error":"open","reservation_ttl":"2m","unsettled":"refund"}}"#;
        let mut expected = Config::fixed_window(5, 5_400_000);
        (expected.capacity, expected.max_debt, expected.initial, expected.offset_ms) = (9, 3, Some(2), Some(900_000));
        let policies = Policies::parse(json).unwrap();
        let policy = policies.get("p").unwrap();
        assert_eq!(policy.limits()[0].limit().config(), &expected);
        assert_eq!(policy.limits()[0].write_ahead(), 4);
        assert_eq!(policy.on_error(), OnError::Open);
        assert_eq!(policy.reservations(), ReservationTerms { ttl_ms: 120_000, unsettled: Unsettled::Refund });
    }

    #[test]
    fn a_policy_of_several_limits_has_them_in_a_list_with_names() {
        let json = r#"{"llm":{"limits":[{"name":"requests","rate":60,"period":"1m"},
            {"name":"tokens","rate":100000,"period":"1day","kind":"fixed_window","write_ahead":0}],"on_error":"open"}}"#;
        let policies = Policies::parse(json).unwrap();
        let policy = policies.get("llm").unwrap();
        let names: Vec<_> = policy.limits().iter().map(|limit| (limit.name(), limit.full_name())).collect();
        assert_eq!(names, [(Some("requests"), "llm/requests"), (Some("tokens"), "llm/tokens")]);
        assert_eq!(policy.limits().iter().map(NamedLimit::write_ahead).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(
            policy.to_string(),
            "llm: requests token bucket, 60 per 1m, at most 60 at once and 120 within any 1m AND tokens fixed window, \
             100000 per 1day, at most 100000 at once and 200000 within any 1day; lets pass what cannot be decided"
        );
    }

    #[test]
    fn a_crash_costs_a_second_or_a_twentieth_and_nothing_of_a_budget_that_never_comes_back() {
        for (fields, expected) in [
            (r#""rate":19,"period":"1m""#, 0),
            (r#""rate":20,"period":"1m""#, 1),
            (r#""rate":59,"period":"1m","capacity":19"#, 0),
            (r#""rate":60,"period":"1m","capacity":19"#, 1),
            (r#""rate":1,"period":"1m","capacity":1000"#, 50),
            (r#""rate":100,"period":"1s","capacity":1000"#, 100),
            (r#""rate":100,"period":"1s","capacity":30"#, 30),
            (r#""rate":3,"period":"1500ms""#, 2),
            (r#""rate":0,"period":"1m","capacity":1000"#, 0),
            (r#""rate":0,"period":"1m","capacity":1000,"write_ahead":7"#, 7),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{{{fields}}}}}"#)).unwrap();
            assert_eq!(policies.get("p").unwrap().limits()[0].write_ahead(), expected, "{fields}");
        }
    }

    #[test]
    fn all_mistakes_are_named_at_once() {
        let json = r#"{
            "a": {"rate": -1, "period": 60, "burst": 5},
            "b c": {"rate": 1, "period": "1s"},
            "d": {"kind": "leaky", "rate": 1, "period": "1us"},
            "e": 7,
            "f": {"rate": 1, "period": "soon"},
            "g": {"rate": 1, "period": "0s"},
            "h": {"rate": 7, "period": "1day", "capacity": 9007199254740991},
            "i": {"rate": 7, "period": "1day", "offset": "1h"},
            "j": {"rate": 7, "period": "1day", "max_debt": 9007199254740991},
            "k": {"rate": 7, "period": "1day", "on_error": "ajar", "unsettled": 1, "reservation_ttl": 5},
            "l": {"limits": [], "rate": 7},
            "m": {"limits": [{"rate": 7, "period": "1s"}, {"name": "a b"}, {"name": "a"}, {"name": "a"}, 5]}
        }"#;
        let expected = [
            "POLICIES.a.burst: is not a field here; those are kind, rate, period, capacity, max_debt, initial, offset, \
             write_ahead, on_error, reservation_ttl, unsettled, limits",
            "POLICIES.a.rate: must be a whole number from 0 to 9007199254740991, not -1",
            "POLICIES.a.period: must be text with a unit, such as \"90s\", not 60",
            "POLICIES.b c: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII",
            "POLICIES.d.kind: must be \"token_bucket\" or \"fixed_window\"",
            "POLICIES.d.period: must be whole milliseconds, not \"1us\"",
            "POLICIES.e: is not a table of rate, period, ...",
            "POLICIES.f.period: \"soon\" is no length of time such as \"90s\" or \"1h 30m\": expected number at 0",
            "POLICIES.g.period: a period of 0 ms is too short: at least 1 ms",
            "POLICIES.h.capacity: a capacity of 9007199254740991 is too large to stay exact at this rate and period: at \
             most 182437484",
            "POLICIES.i.offset: a token bucket has no windows, so it takes no offset",
            "POLICIES.j.max_debt: a max_debt of 9007199254740991 is too large to stay exact with this capacity: at most \
             182437477",
            "POLICIES.k.on_error: must be \"closed\" or \"open\"",
            "POLICIES.k.unsettled: must be \"keep\" or \"refund\"",
            "POLICIES.k.reservation_ttl: must be text with a unit, such as \"90s\", not 5",
            "POLICIES.l.rate: is not a field here; those are limits, on_error, reservation_ttl, unsettled",
            "POLICIES.l.limits: must be a list of 1 to 8 limits",
            "POLICIES.m.limits[0]: must have a name, by which answers and costs refer to it",
            "POLICIES.m.limits[1]: name: a name has 1 to 64 letters, digits, '_', '-' or '.', all ASCII",
            "POLICIES.m.limits[2].rate: is missing",
            "POLICIES.m.limits[2].period: is missing",
            "POLICIES.m.limits[3]: is the second limit named a",
            "POLICIES.m.limits[4]: is not a table of name, rate, period, ...",
        ];
        assert_eq!(errors(json), expected);
    }

    #[test]
    fn what_is_no_table_of_policies_is_said_so() {
        assert_eq!(errors("{}"), ["POLICIES: names no policy"]);
        assert!(errors("[]")[0].starts_with("POLICIES: is not an object of policies by name: "));
        assert!(errors("")[0].starts_with("POLICIES: is not an object of policies by name: "));
    }
}
