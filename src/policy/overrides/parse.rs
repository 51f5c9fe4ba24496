//! Overrides as written.

use std::borrow::Cow;

use super::plan::{Multiple, Numbers, Plan};
use crate::json::{Fields, Json};
use crate::limit::MAX_TOKENS;
use crate::policy::error::{PolicyError, PolicyErrors};
use crate::policy::mode::Mode;
use crate::policy::name::{is_name, name_rule};
use crate::policy::named_limit::NamedLimit;
use crate::policy::reader::{LIMIT_FIELDS, Reader, table};
use crate::policy::shown::{shortened, shown_value};

/// One override, such as `{"policy":"api","key":"alice","multiple":2.5}`.
#[derive(Clone, Debug)]
pub struct WrittenOverride<'a> {
    /// The policy's name, not yet known to exist.
    pub policy: Cow<'a, str>,
    /// The keys it is for.
    pub(crate) keys: WrittenKeys<'a>,
    /// Its effect on the policy.
    pub plan: Plan,
    /// When it ends, in Unix milliseconds.
    pub until: Option<i64>,
}

/// The keys an override is for.
#[derive(Clone, Debug)]
pub(crate) enum WrittenKeys<'a> {
    /// A single one, as in requests: what a key is, `access` says.
    One(Json<'a>),
    /// All text keys with this prefix.
    Prefix(Cow<'a, str>),
}

/// Maximum length of a prefix in bytes: that of a key.
pub const MAX_PREFIX_LEN: usize = 512;

/// The largest multiple, and the largest divisor of one.
const MAX_MULTIPLE: u64 = 1_000_000;

impl<'a> WrittenOverride<'a> {
    /// Parses an override. `place` names it in errors. It has `policy`, `key` or `prefix`, optionally `until`, and one of:
    ///
    /// | field | meaning |
    /// |---|---|
    /// | the fields of a limit | other numbers, for a policy of one limit without a name |
    /// | `limits` | a list of limits of the policy, by name, with other numbers |
    /// | `multiple` | a factor for the policy's numbers, from 0.000001 to 1 000 000 |
    /// | `banned` | `true`: nothing may be taken |
    /// | `unlimited` | `true`: nothing is refused |
    ///
    /// # Errors
    /// All errors, not only the first.
    pub fn parse(place: &str, text: &'a str) -> Result<Self, PolicyErrors> {
        let json = Json::parse(text).map_err(|error| {
            let problem = format!("must be a table of fields such as policy, key and multiple: {error}");
            PolicyErrors::from(PolicyError { place: place.to_owned(), problem })
        })?;
        Self::of(place, json)
    }

    /// The same of a value.
    pub(crate) fn of(place: &str, json: Json<'a>) -> Result<Self, PolicyErrors> {
        let mut errors = Vec::new();
        let Some(fields) = table(place, json, "fields such as policy, key and multiple", &mut errors) else {
            return Err(PolicyErrors::all(errors));
        };
        let mut reader = Reader { place: place.to_owned(), fields: &fields, errors: &mut errors };
        let policy = policy(&fields, &mut reader);
        let keys = keys(&fields, &mut reader);
        let until = until(&fields, &mut reader);
        let plan = plan(&fields, &mut reader, policy.as_deref().unwrap_or_default());
        match (policy, keys, plan) {
            (Some(policy), Some(keys), Some(plan)) if errors.is_empty() => Ok(Self { policy, keys, plan, until }),
            _ => Err(PolicyErrors::all(errors)),
        }
    }
}

impl<'a> WrittenKeys<'a> {
    /// Parses the selector of an override: `policy`, and `key` or `prefix`.
    ///
    /// # Errors
    /// All errors, not only the first.
    pub(crate) fn of(place: &str, json: Json<'a>) -> Result<(Cow<'a, str>, Self), PolicyErrors> {
        let mut errors = Vec::new();
        let Some(fields) = table(place, json, "fields: policy, and key or prefix", &mut errors) else {
            return Err(PolicyErrors::all(errors));
        };
        let mut reader = Reader { place: place.to_owned(), fields: &fields, errors: &mut errors };
        reader.only(&["policy", "key", "prefix"]);
        match (policy(&fields, &mut reader), keys(&fields, &mut reader)) {
            (Some(policy), Some(keys)) if errors.is_empty() => Ok((policy, keys)),
            _ => Err(PolicyErrors::all(errors)),
        }
    }

    /// Checks a selector that is not an object, such as that of a query.
    ///
    /// # Errors
    /// All errors, not only the first.
    pub(crate) fn check(&self, place: &str, policy: &str) -> Result<(), PolicyErrors> {
        let mut errors = Vec::new();
        let mut error = |field, problem| errors.push(PolicyError { place: format!("{place}.{field}"), problem });
        if !is_name(policy) {
            error("policy", policy_rule(policy));
        }
        if let Self::Prefix(prefix) = self
            && !is_prefix(prefix)
        {
            let shown = shortened(serde_json::to_string(prefix).unwrap_or_default()); // a text is always JSON
            error("prefix", prefix_rule(&shown));
        }
        if errors.is_empty() { Ok(()) } else { Err(PolicyErrors::all(errors)) }
    }
}

fn policy<'a>(fields: &Fields<'a>, reader: &mut Reader<'_>) -> Option<Cow<'a, str>> {
    let Some(value) = fields.get("policy") else {
        reader.error("policy", "is missing".to_owned());
        return None;
    };
    let name = value.string();
    let found = name.as_deref().unwrap_or_default();
    if !is_name(found) {
        reader.error("policy", policy_rule(found));
        return None;
    }
    name
}

fn policy_rule(found: &str) -> String {
    format!("must be the name of a policy: {}", name_rule(found))
}

fn is_prefix(text: &str) -> bool {
    (1..=MAX_PREFIX_LEN).contains(&text.len())
}

fn prefix_rule(shown: &str) -> String {
    format!("must be the beginning of text keys, 1 to {MAX_PREFIX_LEN} bytes, not {shown}")
}

fn keys<'a>(fields: &Fields<'a>, reader: &mut Reader<'_>) -> Option<WrittenKeys<'a>> {
    match (fields.get("key"), fields.get("prefix")) {
        (Some(key), None) => Some(WrittenKeys::One(key)),
        (None, Some(prefix)) => match prefix.string() {
            Some(text) if is_prefix(&text) => Some(WrittenKeys::Prefix(text)),
            _ => {
                reader.error("prefix", prefix_rule(&shown_value(prefix)));
                None
            }
        },
        (Some(_), Some(_)) => {
            reader.error("prefix", "is given beside `key`: an override is for one key or for one prefix".to_owned());
            None
        }
        (None, None) => {
            reader.error("key", "is missing: give a `key`, or a `prefix` of text keys".to_owned());
            None
        }
    }
}

fn until(fields: &Fields<'_>, reader: &mut Reader<'_>) -> Option<i64> {
    let value = fields.get("until")?;
    let until = value.integer().filter(|&at| (1..=MAX_TOKENS).contains(&at)).map(u64::cast_signed);
    if until.is_none() {
        reader.error("until", format!("must be a moment in Unix milliseconds, not {}", shown_value(value)));
    }
    until
}

/// `None` after adding at least one error.
fn plan(fields: &Fields<'_>, reader: &mut Reader<'_>, policy: &str) -> Option<Plan> {
    let before = reader.errors.len();
    let given: Vec<_> = PLANS.into_iter().filter(|field| fields.get(field).is_some()).collect();
    let has_numbers = fields.names().any(|name| LIMIT_FIELDS.contains(&name));
    match (given.as_slice(), has_numbers) {
        ([], true) => {
            reader.only(&[&COMMON[..], &LIMIT_FIELDS, &PLANS].concat());
            let limit = reader.limit(policy, None, Mode::Enforce)?;
            (reader.errors.len() == before).then(|| Plan::Limits(vec![Numbers::of(&limit)]))
        }
        ([field], false) => {
            reader.only(&[&COMMON[..], &[field]].concat());
            let plan = match *field {
                "limits" => Some(limits(fields, reader, policy)),
                "multiple" => multiple(fields, reader),
                "banned" => is_true(field, fields, reader).then_some(Plan::Banned),
                _ => is_true(field, fields, reader).then_some(Plan::Unlimited),
            };
            plan.filter(|_| reader.errors.len() == before)
        }
        ([], false) => {
            reader.only(&[&COMMON[..], &LIMIT_FIELDS, &PLANS].concat());
            let what = "`rate` and `period`, `limits`, `multiple`, `banned` or `unlimited`";
            reader.error("rate", format!("is missing: an override has one of {what}"));
            None
        }
        ([first, ..], _) => {
            let other = given.get(1).copied().unwrap_or("numbers of its own");
            reader.error(first, format!("is given beside {other}: an override does one thing"));
            None
        }
    }
}

/// The numbers of limits, by name.
fn limits(fields: &Fields<'_>, reader: &mut Reader<'_>, policy: &str) -> Plan {
    let list = fields.get("limits").and_then(Json::array).unwrap_or_default();
    for (index, limit) in list.into_iter().enumerate() {
        if limit.fields().is_ok_and(|fields| fields.get("mode").is_some()) {
            reader.error(&format!("limits[{index}].mode"), "is the policy's: an override has other numbers".to_owned());
        }
    }
    let limits = reader.limits(policy, Mode::Enforce);
    Plan::Limits(limits.iter().map(|(_, limit)| Numbers::of(limit)).collect())
}

fn multiple(fields: &Fields<'_>, reader: &mut Reader<'_>) -> Option<Plan> {
    let value = fields.get("multiple")?;
    let is_allowed = |&(numerator, denominator): &(u64, u64)| {
        let at_most = denominator.saturating_mul(MAX_MULTIPLE);
        (1..=at_most).contains(&numerator) && denominator <= MAX_MULTIPLE
    };
    let Some((numerator, denominator)) = value.ratio().filter(is_allowed) else {
        let rule = "must be a number above 0 and up to 1000000, with at most 6 decimals, such as 2.5";
        let hint = if value.ratio() == Some((0, 1)) { "; write `\"banned\": true` to allow nothing" } else { "" };
        reader.error("multiple", format!("{rule}, not {}{hint}", shown_value(value)));
        return None;
    };
    Some(Plan::Multiple(Multiple { numerator, denominator }))
}

fn is_true(field: &str, fields: &Fields<'_>, reader: &mut Reader<'_>) -> bool {
    let is_true = fields.get(field).and_then(Json::bool) == Some(true);
    if !is_true {
        reader.error(field, "must be true; to end an override, delete it".to_owned());
    }
    is_true
}

impl Numbers {
    fn of(limit: &NamedLimit) -> Self {
        let account = limit.own_account().map(str::to_owned);
        Self { account, limit: *limit.limit(), write_ahead: limit.write_ahead(), grains: limit.grains() }
    }
}

const COMMON: [&str; 4] = ["policy", "key", "prefix", "until"];
const PLANS: [&str; 4] = ["limits", "multiple", "banned", "unlimited"];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::DEFAULT_GRAINS;
    use crate::limit::{Config, Limit};

    fn read(json: &str) -> Result<(String, bool, Plan, Option<i64>), Vec<String>> {
        let read = WrittenOverride::parse("overrides[0]", json);
        let read = read.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Ok((read.policy.into_owned(), matches!(read.keys, WrittenKeys::Prefix(_)), read.plan, read.until))
    }

    fn numbers(name: Option<&str>, config: Config, write_ahead: u64) -> Numbers {
        Numbers {
            account: name.map(str::to_owned),
            limit: Limit::new(&config).unwrap(),
            write_ahead,
            grains: DEFAULT_GRAINS,
        }
    }

    #[test]
    fn an_override_does_one_thing() {
        let multiple = |numerator, denominator| Plan::Multiple(Multiple { numerator, denominator });
        for (fields, plan) in [
            (r#""banned":true"#, Plan::Banned),
            (r#""unlimited":true"#, Plan::Unlimited),
            (r#""multiple":2.5"#, multiple(5, 2)),
            (r#""multiple":0.000001"#, multiple(1, 1_000_000)),
            (r#""multiple":1e6"#, multiple(1_000_000, 1)),
            (
                r#""rate":"100/1m""#,
                Plan::Limits(vec![numbers(None, Config::token_bucket(100, Duration::from_mins(1)), 5)]),
            ),
            (
                r#""rate":7,"period":"1day","kind":"fixed_window","write_ahead":0"#,
                Plan::Limits(vec![numbers(None, Config::fixed_window(7, Duration::from_hours(24)), 0)]),
            ),
            (
                r#""limits":[{"name":"a","rate":"2/1s"},{"name":"b","rate":"3/1s"}]"#,
                Plan::Limits(vec![
                    numbers(Some("a"), Config::token_bucket(2, Duration::from_secs(1)), 2),
                    numbers(Some("b"), Config::token_bucket(3, Duration::from_secs(1)), 3),
                ]),
            ),
        ] {
            let expected = Ok(("api".to_owned(), false, plan.clone(), None));
            assert_eq!(read(&format!(r#"{{"policy":"api","key":["a",1],{fields}}}"#)), expected, "{fields}");
            let expected = Ok(("api".to_owned(), true, plan, Some(9_007_199_254_740_991)));
            let prefix = format!(r#"{{"until":9007199254740991,"policy":"api","prefix":"acme:",{fields}}}"#);
            assert_eq!(read(&prefix), expected, "{fields}");
        }
    }

    #[test]
    fn every_error_says_what_was_wrong_and_what_would_be_right() {
        let long = "x".repeat(MAX_PREFIX_LEN + 1);
        let multiple = "overrides[0].multiple: must be a number above 0 and up to 1000000, with at most 6 decimals, such as 2.5, not ";
        let whole: &[(String, &[&str])] = &[
            ("7".into(), &["overrides[0]: must be a table of fields such as policy, key and multiple, not 7"]),
            (r#"{"policy":"a","policy":"b"}"#.into(), &["overrides[0]: gives policy twice"]),
            (
                "{}".into(),
                &[
                    "overrides[0].policy: is missing",
                    "overrides[0].key: is missing: give a `key`, or a `prefix` of text keys",
                    "overrides[0].rate: is missing: an override has one of `rate` and `period`, `limits`, `multiple`, `banned` or \
                     `unlimited`",
                ],
            ),
            (
                r#"{"policy":"a b","key":"k","prefix":"p","banned":false,"until":"soon"}"#.into(),
                &[
                    "overrides[0].policy: must be the name of a policy: a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'",
                    "overrides[0].prefix: is given beside `key`: an override is for one key or for one prefix",
                    "overrides[0].until: must be a moment in Unix milliseconds, not \"soon\"",
                    "overrides[0].banned: must be true; to end an override, delete it",
                ],
            ),
            (
                r#"{"policy":"..","key":"k","banned":true}"#.into(),
                &[
                    "overrides[0].policy: must be the name of a policy: a name must not be \"..\": in a URL it would be a step of the path",
                ],
            ),
            (
                r#"{"policy":"a","prefix":"","banned":true,"unlimited":true,"until":0}"#.into(),
                &[
                    "overrides[0].prefix: must be the beginning of text keys, 1 to 512 bytes, not \"\"",
                    "overrides[0].until: must be a moment in Unix milliseconds, not 0",
                    "overrides[0].banned: is given beside unlimited: an override does one thing",
                ],
            ),
        ];
        for (json, expected) in whole {
            assert_eq!(read(json).unwrap_err(), *expected, "{json}");
        }
        let error = |fields: &str| {
            let errors = read(&format!(r#"{{"policy":"a","key":"k",{fields}}}"#)).unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
            errors[0].clone()
        };
        for written in ["-1", "1000001", "1e-7", "0.1234567", "\"2\"", "null"] {
            assert_eq!(error(&format!(r#""multiple":{written}"#)), format!("{multiple}{written}"));
        }
        assert_eq!(error(r#""multiple":0"#), format!("{multiple}0; write `\"banned\": true` to allow nothing"));
        assert_eq!(
            error(r#""multiple":2,"colour":1"#),
            "overrides[0].colour: is not a known field; known fields are policy, key, prefix, until, multiple"
        );
        assert_eq!(
            error(r#""multiple":2,"rate":1"#),
            "overrides[0].multiple: is given beside numbers of its own: an override does one thing"
        );
        assert_eq!(error(r#""rate":5"#), "overrides[0].period: is missing");
        assert_eq!(
            error(r#""limits":[{"name":"a","rate":"1/s","mode":"shadow"}]"#),
            "overrides[0].limits[0].mode: is the policy's: an override has other numbers"
        );
        assert_eq!(error(r#""limits":[]"#), "overrides[0].limits: must be a list of 1 to 8 limits");
        assert_eq!(
            error(r#""limits":[{"rate":"1/s"}]"#),
            "overrides[0].limits[0]: must have a name: costs and answers refer to a limit by its name"
        );
        let prefix = read(&format!(r#"{{"policy":"a","prefix":"{long}","banned":true}}"#)).unwrap_err();
        assert!(
            prefix[0].starts_with("overrides[0].prefix: must be the beginning of text keys, 1 to 512 bytes, not \"xxx")
        );
        assert!(prefix[0].len() < 200);
    }
}
