//! Policies as people write them, checked all at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::error::PolicyError;
use super::named::{OnError, Policy, ReservationTerms, Unsettled};
use super::reader::{LIMIT_FIELDS, Reader, is_name, name_rule};

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

/// The most limits of one policy. Each is decided and answered with every request; nobody has named more than four.
pub const MAX_LIMITS: usize = 8;

const POLICY_FIELDS: [&str; 3] = ["on_error", "reservation_ttl", "unsettled"];

/// A model's answer of ten minutes is a very long one.
const RESERVATION_TTL_MS: u64 = 600_000;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Config;
    use crate::policy::NamedLimit;

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
