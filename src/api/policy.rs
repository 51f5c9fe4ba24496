//! Policies as people write them, checked all at once.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};
use sfv::{Integer, KeyRef, ListSerializer, StringRef, key_ref};

use super::stored::{numbers_of, version_of};
use crate::limit::{Config, ConfigError, Kind, Limit, MAX_TOKENS};

/// A named limit, ready to decide, with what never changes about its answers worked out once.
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    limit: Limit,
    /// The value of the `RateLimit-Policy` field.
    field: String,
    /// The numbers as they are stored beside a bucket, and a hash of them.
    numbers: String,
    version: u64,
}

impl Policy {
    /// The name: 1 to 64 letters, digits, `_`, `-` or `.`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it allows.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The value of the `RateLimit-Policy` response field: the quota `q` and its window `w` in seconds, scaled to whole
    /// seconds where the period is not, and the capacity as our own parameter.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The limit's numbers, as they are stored beside a bucket.
    #[must_use]
    pub fn numbers(&self) -> &str {
        &self.numbers
    }

    /// Changes whenever the numbers do.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    fn new(name: &str, limit: Limit) -> Self {
        let numbers = numbers_of(limit.config());
        let version = version_of(&numbers);
        Self { name: name.to_owned(), field: policy_field(name, limit.config()), limit, numbers, version }
    }
}

/// One line for people: what the policy allows, on average and at worst.
///
/// Over any interval a bucket admits at most its capacity and what comes back in that time, so within one period it may
/// be their sum: 200 at once and 100 more within the minute.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { kind, rate, period_ms, capacity, .. } = *self.limit.config();
        let period = humantime::format_duration(Duration::from_millis(period_ms));
        let kind = match kind {
            Kind::TokenBucket => "token bucket",
            Kind::FixedWindow => "fixed window",
        };
        write!(f, "{}: {kind}, {rate} per {period}, at most {capacity} at once", self.name)?;
        match (capacity, rate) {
            (0, _) => write!(f, "; WARNING: with a capacity of 0 every request is refused"),
            (_, 0) => write!(f, "; WARNING: with a rate of 0 a spent budget never comes back"),
            _ => {
                let worst = match self.limit.config().kind {
                    Kind::TokenBucket => capacity.saturating_add(rate),
                    Kind::FixedWindow => capacity.saturating_add(rate.min(capacity)),
                };
                write!(f, " and {worst} within any {period}")
            }
        }
    }
}

/// All policies of a deployment, by name.
#[derive(Clone, Debug)]
pub struct Policies(BTreeMap<String, Policy>);

impl Policies {
    /// Reads policies from the JSON of `POLICIES`, an object of names to limits:
    ///
    /// | field | meaning | default |
    /// |---|---|---|
    /// | `kind` | `"token_bucket"` or `"fixed_window"` | `"token_bucket"` |
    /// | `rate` | tokens that come back in each period | required |
    /// | `period` | a length of time such as `"250ms"`, `"1m"`, `"1h 30m"`, `"1day"` | required |
    /// | `capacity` | the most tokens at once | `rate` |
    /// | `initial` | tokens of a key never seen before | `capacity` |
    /// | `offset` | where windows begin, after midnight UTC of 1 January 1970; only for fixed windows | by key |
    ///
    /// ```
    /// let policies = tollgate::api::Policies::parse(r#"{"api":{"rate":100,"period":"1m","capacity":200}}"#).unwrap();
    /// let api = policies.get("api").unwrap();
    /// assert_eq!(api.to_string(), "api: token bucket, 100 per 1m, at most 200 at once and 300 within any 1m");
    /// ```
    ///
    /// # Errors
    /// Every [`Mistake`] there is, not only the first.
    pub fn parse(json: &str) -> Result<Self, Vec<Mistake>> {
        let whole = |problem: String| vec![Mistake { place: "POLICIES".to_owned(), problem }];
        let named: BTreeMap<String, Value> = serde_json::from_str(json)
            .map_err(|error| whole(format!("is not an object of policies by name: {error}")))?;
        if named.is_empty() {
            return Err(whole("names no policy".to_owned()));
        }
        let mut mistakes = Vec::new();
        let mut policies = BTreeMap::new();
        for (name, value) in named {
            match policy(&name, &value) {
                Ok(policy) => _ = policies.insert(name, policy),
                Err(found) => mistakes.extend(found),
            }
        }
        if mistakes.is_empty() { Ok(Self(policies)) } else { Err(mistakes) }
    }

    /// The policy of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Policy> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.values()
    }
}

/// Something wrong with a policy as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where: `POLICIES.api.rate`.
    place: String,
    problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for Mistake {}

/// The longest name of a policy. Names go into headers and logs; a longer one is no name.
const MAX_NAME_LEN: usize = 64;

const FIELDS: [&str; 6] = ["kind", "rate", "period", "capacity", "initial", "offset"];

fn policy(name: &str, value: &Value) -> Result<Policy, Vec<Mistake>> {
    let place = format!("POLICIES.{name}");
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_NAME_LEN || !name.chars().all(is_allowed) {
        let problem = format!("a name has 1 to {MAX_NAME_LEN} letters, digits, '_', '-' or '.', all ASCII");
        return Err(vec![Mistake { place, problem }]);
    }
    let Value::Object(fields) = value else {
        return Err(vec![Mistake { place, problem: "is not a table of rate, period, ...".to_owned() }]);
    };
    let mut reader = Reader { place, fields, mistakes: Vec::new() };
    let config = reader.config();
    let Reader { place, mut mistakes, .. } = reader;
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    Limit::new(&config).map(|limit| Policy::new(name, limit)).map_err(|error| {
        mistakes.push(Mistake { place: format!("{place}.{}", field_of(&error)), problem: error.to_string() });
        mistakes
    })
}

/// Reads the fields of one policy and collects what is wrong with them.
struct Reader<'a> {
    place: String,
    fields: &'a Map<String, Value>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn config(&mut self) -> Config {
        for field in self.fields.keys().filter(|field| !FIELDS.contains(&field.as_str())) {
            let problem = format!("is not a field of a policy; those are {}", FIELDS.join(", "));
            self.mistakes.push(Mistake { place: format!("{}.{field}", self.place), problem });
        }
        let kind = match self.fields.get("kind").map(Value::as_str) {
            None | Some(Some("token_bucket")) => Kind::TokenBucket,
            Some(Some("fixed_window")) => Kind::FixedWindow,
            Some(_) => {
                self.wrong("kind", "must be \"token_bucket\" or \"fixed_window\"");
                Kind::TokenBucket
            }
        };
        let rate = self.required("rate", Self::tokens);
        let period_ms = self.required("period", Self::millis);
        let capacity = self.tokens("capacity").unwrap_or(rate);
        let initial = self.tokens("initial");
        Config { kind, rate, period_ms, capacity, initial, max_debt: 0, offset_ms: self.millis("offset") }
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
        self.mistakes.push(Mistake { place: format!("{}.{field}", self.place), problem: problem.to_owned() });
    }
}

/// The field that an error is about, as it is written.
const fn field_of(error: &ConfigError) -> &'static str {
    match error {
        ConfigError::RateTooLarge { .. } => "rate",
        ConfigError::PeriodZero | ConfigError::PeriodTooLong { .. } => "period",
        ConfigError::CapacityTooLarge { .. } | ConfigError::MaxDebtTooLarge { .. } => "capacity",
        ConfigError::InitialTooLarge { .. } => "initial",
        ConfigError::OffsetTooLarge { .. } | ConfigError::OffsetWithoutWindows => "offset",
    }
}

fn policy_field(name: &str, config: &Config) -> String {
    const Q: &KeyRef = key_ref("q");
    const W: &KeyRef = key_ref("w");
    const CAPACITY: &KeyRef = key_ref("tollgate-capacity");
    // `w` is whole seconds: the smallest number of periods, or of seconds, that is both.
    let window_s = config.period_ms.div_ceil(1_000).max(1);
    let quota = u128::from(config.rate).saturating_mul(u128::from(window_s)).saturating_mul(1_000);
    let quota = quota.checked_div(u128::from(config.period_ms)).unwrap_or(0);
    let mut list = ListSerializer::new();
    if let Ok(name) = StringRef::from_str(name) {
        _ = list
            .bare_item(name)
            .parameter(Q, field_integer(u64::try_from(quota).unwrap_or(u64::MAX)))
            .parameter(W, field_integer(window_s))
            .parameter(CAPACITY, field_integer(config.capacity));
    }
    list.finish().unwrap_or_default()
}

/// Structured fields hold integers of 15 digits; a larger one is not wrong when it is cut to that.
pub(super) fn field_integer(value: u64) -> Integer {
    Integer::try_from(value).unwrap_or(Integer::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(json: &str) -> Vec<String> {
        Policies::parse(json).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_policy_needs_only_a_rate_and_a_period() {
        let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m"}}"#).unwrap();
        assert_eq!(policies.get("api").unwrap().limit().config(), &Config::token_bucket(100, 60_000));
        assert!(policies.get("other").is_none());
    }

    #[test]
    fn every_field_is_read() {
        let json =
            r#"{"p":{"kind":"fixed_window","rate":5,"period":"1h 30m","capacity":9,"initial":2,"offset":"15m"}}"#;
        let mut expected = Config::fixed_window(5, 5_400_000);
        (expected.capacity, expected.initial, expected.offset_ms) = (9, Some(2), Some(900_000));
        assert_eq!(Policies::parse(json).unwrap().get("p").unwrap().limit().config(), &expected);
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
            "i": {"rate": 7, "period": "1day", "offset": "1h"}
        }"#;
        let expected = [
            "POLICIES.a.burst: is not a field of a policy; those are kind, rate, period, capacity, initial, offset",
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
        ];
        assert_eq!(mistakes(json), expected);
    }

    #[test]
    fn what_is_no_table_of_policies_is_said_so() {
        assert_eq!(mistakes("{}"), ["POLICIES: names no policy"]);
        assert!(mistakes("[]")[0].starts_with("POLICIES: is not an object of policies by name: "));
        assert!(mistakes("")[0].starts_with("POLICIES: is not an object of policies by name: "));
    }

    #[test]
    fn the_policy_field_has_whole_seconds() {
        for (rate, period, expected) in [
            (100, "1m", r#""p";q=100;w=60;tollgate-capacity=100"#),
            (1, "100ms", r#""p";q=10;w=1;tollgate-capacity=1"#),
            (3, "1500ms", r#""p";q=4;w=2;tollgate-capacity=3"#),
            (0, "1s", r#""p";q=0;w=1;tollgate-capacity=0"#),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{{"rate":{rate},"period":"{period}"}}}}"#)).unwrap();
            assert_eq!(policies.get("p").unwrap().field(), expected);
        }
    }
}
