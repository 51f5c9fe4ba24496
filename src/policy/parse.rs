//! Policies as written, with all errors reported at once.

use std::sync::Arc;

use super::error::{POLICIES, PolicyError, PolicyErrors, place_of};
use super::frontend_terms::FrontendTerms;
use super::mode::Mode;
use super::name::{is_name, name_rule};
use super::named::Policy;
use super::named_limit::NamedLimit;
use super::notify::NoticeKind;
use super::object_terms::ObjectTerms;
use super::on_error::OnError;
#[cfg(feature = "service")]
use super::overrides::Overrides;
use super::reader::{LIMIT_FIELDS, Reader, table};
use super::registry_terms::RegistryTerms;
use super::timeline::Timeline;
use crate::json::{Fields, Json};
use crate::sorted::SortedMap;

/// All policies of a deployment, by name.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    by_name: SortedMap<String, Arc<Policy>>,
    as_of: Option<i64>,
    #[cfg(feature = "service")]
    overrides: Arc<Overrides>,
}

impl Policies {
    /// Parses policies from the JSON of `POLICIES`, an object of names to policies. A policy of one limit has the fields of a limit beside
    /// its own; one of several has them in `limits`, a list of limits with a `name` each.
    ///
    /// | field of a limit | meaning | default |
    /// |---|---|---|
    /// | `kind` | `"token_bucket"`, `"fixed_window"`, or in the service `"slots"` | `"token_bucket"` |
    /// | `rate` | tokens refilled in each period: 100, 2.5; or with the period and the capacity, `"100/1m"`, `"20/s burst 40"` | required |
    /// | `period` | a length of time up to [`MAX_SPAN_MS`](crate::limit::MAX_SPAN_MS), such as `"250ms"`, `"1m"`, `"1h 30m"`, `"1day"` | required without a calendar |
    /// | `calendar` | instead of a period: `"day"`, `"week"`, `"month"`, `"quarter"` or `"year"`; only for fixed windows | none |
    /// | `starts` | when these begin: a weekday such as `"monday"`, a day of the month, or month-day of quarters and years, such as `"04-06"` | Monday, the first, 1 January |
    /// | `zone` | in which time zone; others than `"UTC"` need the feature `zones` | `"UTC"` |
    /// | `capacity` | maximum tokens at once | `rate`, rounded up |
    /// | `max_debt` | how far below zero reservations and charges may take it, in tokens; `"unlimited"` is as far as stays exact | 0 |
    /// | `initial` | tokens of a new key | `capacity` |
    /// | `offset` | when windows start, after midnight UTC of 1 January 1970, modulo the period; `"first_use"`: when something is taken from a full bucket; only for fixed windows | by key |
    /// | `write_ahead` | tokens that may be spent without a write, and so the most a crash can cost; 0 writes each change; at most the capacity | what comes back in a second or a twentieth of the capacity, whichever is more; 0 at rate 0 |
    ///
    /// | field of a policy | meaning | default |
    /// |---|---|---|
    /// | `mode` | whether its limits refuse: `"enforce"`; `"soft"` counts below zero and says so, but never refuses; `"shadow"` decides, counts and reports, but never refuses; `"off"` is as if the limit were not there. A limit in `limits` may have a mode of its own | `"enforce"` |
    /// | `ipv6_prefix` | how many bits of an IPv6 address count, from 32 to 128 | 64 |
    /// | `jitter` | maximum random delay added to the retry time of refusals, up to an hour | `"0s"` |
    /// | `key` | `[]`: one budget for all, without keys in requests | each key has a budget |
    ///
    /// All other fields are for the service.
    ///
    /// A policy may be just the text of its rate, such as `"100/1m"`.
    ///
    /// ```
    /// let policies = tollgate::policy::Policies::parse(r#"{"api":{"rate":100,"period":"1m","capacity":200}}"#)?;
    /// let api = policies.get("api").unwrap();
    /// assert_eq!(api.to_string(), "api: token bucket, 100 per 1m, at most 200 at once and 300 within any 1m");
    /// # Ok::<(), tollgate::policy::PolicyErrors>(())
    /// ```
    ///
    /// # Errors
    /// All errors, not only the first.
    pub fn parse(json: &str) -> Result<Self, PolicyErrors> {
        let whole = |problem: String| PolicyErrors::from(PolicyError { place: POLICIES.to_owned(), problem });
        let json = Json::parse(json).map_err(|error| whole(format!("must be a table of policies by name: {error}")))?;
        let mut errors = Vec::new();
        let mut policies = SortedMap::new();
        if let Some(named) = table(POLICIES, json, "policies by name", &mut errors) {
            for (name, value) in named.iter() {
                if let Some(policy) = policy(name, value, &mut errors) {
                    policies.insert(name.clone().into_owned(), Arc::new(policy));
                }
            }
            if named.names().next().is_none() {
                return Err(whole("defines no policy".to_owned()));
            }
        }
        if errors.is_empty() {
            Ok(Self { by_name: policies, ..Self::default() })
        } else {
            Err(PolicyErrors::all(errors))
        }
    }

    /// The policies as known to a registry at that moment, in Unix milliseconds; 0 before it has answered.
    #[doc(hidden)]
    #[must_use]
    pub fn known_at(self, as_of: i64) -> Self {
        Self { as_of: Some(as_of), ..self }
    }

    /// The moment of the registry's latest change that they include. `None` without a registry.
    #[doc(hidden)]
    #[must_use]
    pub const fn as_of(&self) -> Option<i64> {
        self.as_of
    }

    /// These policies, without a registry.
    pub fn of(policies: impl IntoIterator<Item = Arc<Policy>>) -> Self {
        let by_name = policies.into_iter().map(|policy| (policy.name().to_owned(), policy)).collect();
        Self { by_name, ..Self::default() }
    }

    /// The policy with that name, without overrides.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Policy>> {
        self.by_name.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.by_name.values()
    }
}

/// For the service.
#[cfg(feature = "service")]
impl Policies {
    /// The policies with these overrides.
    #[doc(hidden)]
    #[must_use]
    pub fn with_overrides(self, overrides: Arc<Overrides>) -> Self {
        Self { overrides, ..self }
    }

    /// `policy`, one of these, at `now` for the key with these [bytes](crate::access::Key::to_bytes).
    #[doc(hidden)]
    #[must_use]
    pub fn for_key(&self, policy: &Arc<Policy>, key: &[u8], now: i64) -> Arc<Policy> {
        let policy = self.overrides.apply(policy, key, now);
        match policy.shards() {
            [only] => Arc::clone(only),
            _ => policy,
        }
    }

    /// Whether a policy has overrides by prefix: a key's hash does not show which of them match.
    #[doc(hidden)]
    #[must_use]
    pub fn has_prefixes(&self, policy: &str) -> bool {
        self.overrides.has_prefixes(policy)
    }

    /// The policy of that [wire name](Policy::wire_name).
    #[doc(hidden)]
    #[must_use]
    pub fn by_wire_name(&self, wire_name: &str) -> Option<&Arc<Policy>> {
        let policy = self.get(wire_name.split(['#', '~']).next().unwrap_or_default())?;
        let of_shards = if wire_name.contains('~') { policy.shards() } else { &[] };
        [policy].into_iter().chain(of_shards).find(|policy| policy.wire_name() == wire_name)
    }

    /// The same policies, each [exact](Policy::exact).
    pub(crate) fn exact(&self) -> Self {
        Self::of(self.iter().map(|policy| Arc::new(policy.exact())))
    }
}

impl Policy {
    /// Parses one policy, as [`Policies::parse`] does for each name.
    ///
    /// # Errors
    /// All errors, not only the first.
    pub fn parse(name: &str, json: &str) -> Result<Self, PolicyErrors> {
        let mut errors = Vec::new();
        let policy = match Json::parse(json) {
            Ok(value) => policy(name, value, &mut errors),
            Err(error) => {
                let place = place_of(name);
                errors.push(PolicyError { place, problem: format!("is not valid JSON: {error}") });
                None
            }
        };
        policy.ok_or(PolicyErrors::all(errors))
    }
}

/// The fields of a policy that are neither of a limit, nor terms.
const OWN_FIELDS: [&str; 2] = ["mode", "shards"];

/// The fields of a policy besides those of its limits.
fn policy_fields() -> Vec<&'static str> {
    [&OWN_FIELDS[..], &RegistryTerms::FIELDS, &ObjectTerms::FIELDS, &FrontendTerms::FIELDS].concat()
}

/// The policy, or `None` after adding at least one error.
fn policy(name: &str, value: Json<'_>, errors: &mut Vec<PolicyError>) -> Option<Policy> {
    let before = errors.len();
    let place = place_of(name);
    if !is_name(name) {
        errors.push(PolicyError { place, problem: name_rule(name) });
        return None;
    }
    let fields = match value.string() {
        Some(_) => Fields::one("rate", value), // just "100/1m"
        None => table(&place, value, "fields such as rate and period", errors)?,
    };
    let mut reader = Reader { place, fields: &fields, errors };
    let limits = if fields.get("limits").is_some() {
        reader.only(&[&["limits"][..], &policy_fields()].concat());
        let mode = reader.mode().unwrap_or_default();
        reader.limits(name, mode)
    } else {
        reader.only(&[&LIMIT_FIELDS[..], &policy_fields(), &["limits"]].concat());
        let mode = reader.mode().unwrap_or_default();
        reader.limit(name, None, mode).map(|limit| (mode, limit)).into_iter().collect()
    };
    let (object, frontend) = (ObjectTerms::read(&mut reader), FrontendTerms::read(&mut reader));
    let registry = RegistryTerms::read(&mut reader);
    if frontend.lease.is_some() {
        reader.require_leasable(&limits);
    }
    if frontend.on_error != OnError::CLOSED
        && let Some((_, slots)) = limits.iter().find(|(_, limit)| limit.is_slots())
    {
        let problem =
            format!("{} limits slots, which only reservations take, and none is granted unasked", slots.full_name());
        reader.error("on_error", problem);
    }
    let is_soft = |(mode, _): &(Mode, NamedLimit)| *mode == Mode::Soft;
    if object.notify.is_some_and(|notify| notify.has(NoticeKind::Over)) && !limits.iter().any(is_soft) {
        reader.error("notify", "\"over\" is for soft limits, and here is none".to_owned());
    }
    if object.ban.is_some() {
        let refuses = |(mode, _): &(Mode, NamedLimit)| *mode == Mode::Enforce;
        if !limits.iter().any(refuses) {
            reader.error("ban", "needs a limit that refuses, and none has `mode = \"enforce\"`".to_owned());
        }
        if frontend.lease.is_some() {
            reader.error("ban", "cannot be combined with `lease`: refusals from a lease are not counted".to_owned());
        }
    }
    let whole =
        [("lease", frontend.lease.is_some()), ("notify", object.notify.is_some()), ("ban", object.ban.is_some())];
    let shards = reader.shards(&limits, &whole, registry.carry);
    if errors.len() > before {
        return None;
    }
    let of = |modes: &[Mode]| -> Vec<NamedLimit> {
        limits.iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, limit)| limit.clone()).collect()
    };
    let off = of(&[Mode::Off]);
    let off = off.iter().map(|limit| limit.name().map(str::to_owned)).collect();
    let policy =
        Policy::new(name, of(&[Mode::Enforce, Mode::Soft]), object).with_frontend(frontend).with_registry(registry);
    Some(policy.with_shadow(of(&[Mode::Shadow]), Timeline::default()).with_off(off).with_shards(shards))
}

#[cfg(all(test, feature = "service"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limit::{Carry, Config, Limit, MAX_TOKENS};
    use crate::policy::named_limit::names_in;
    use crate::policy::{BanTerms, Cause, OnError, ReservationTerms, Unsettled};

    fn errors(json: &str) -> Vec<String> {
        Policies::parse(json).err().iter().flatten().map(ToString::to_string).collect()
    }

    #[test]
    fn a_policy_needs_only_a_rate_and_a_period() {
        let policies = Policies::parse(r#"{"api":{"rate":100,"period":"1m"}}"#).unwrap();
        let [limit] = policies.get("api").unwrap().limits() else { panic!("one limit") };
        assert_eq!(limit.limit().config(), &Config::token_bucket(100, Duration::from_mins(1)));
        assert_eq!((limit.name(), limit.full_name(), limit.write_ahead()), (None, "api", 5));
        assert!(policies.get("other").is_none());
    }

    #[test]
    fn a_rate_may_be_a_fraction_or_include_its_period_and_capacity() {
        let fields = |rate, period_ms, capacity| Config {
            capacity,
            ..Config::token_bucket(rate, Duration::from_millis(period_ms))
        };
        for (written, expected) in [
            (r#"{"rate":2.5,"period":"1s"}"#, fields(5, 2_000, 3)),
            (r#"{"rate":0.1,"period":"1s","capacity":7}"#, fields(1, 10_000, 7)),
            (r#"{"rate":1e-3,"period":"1s"}"#, fields(1, 1_000_000, 1)),
            (r#"{"rate":100.0,"period":"1m"}"#, fields(100, 60_000, 100)),
            (r#"{"rate":"100/1m"}"#, fields(100, 60_000, 100)),
            (r#"{"rate":"20/s burst 40"}"#, fields(20, 1_000, 40)),
            (r#"{"rate":" 2.5 / 90s  burst  4 "}"#, fields(5, 180_000, 4)),
            (r#"{"rate":"100/s burst 60s"}"#, fields(100, 1_000, 6_000)),
            (r#"{"rate":"5/1h 30m","capacity":9}"#, fields(5, 5_400_000, 9)),
            (r#"{"rate":"0/day burst 50"}"#, fields(0, 86_400_000, 50)),
            (r#""100/1m""#, fields(100, 60_000, 100)),
            (r#""20/s burst 40""#, fields(20, 1_000, 40)),
            (r#"{"kind":"fixed_window","rate":"9/day"}"#, Config::fixed_window(9, Duration::from_hours(24))),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{written}}}"#)).unwrap();
            assert_eq!(policies.get("p").unwrap().limits()[0].limit().config(), &expected, "{written}");
        }
        let limits = r#"{"p":{"limits":[{"name":"a","rate":"60/m"},{"name":"b","rate":0.5,"period":"1s"}]}}"#;
        let policies = Policies::parse(limits).unwrap();
        let words = "p: a token bucket, 60 per 1m, at most 60 at once and 120 within any 1m AND b token bucket, 1 per 2s, at most \
             1 at once and 2 within any 2s";
        assert_eq!(policies.get("p").unwrap().to_string(), words);
    }

    #[test]
    fn a_policy_with_one_budget_has_a_key_without_parts() {
        let of = |fields: &str| {
            Policies::parse(&format!(r#"{{"p":{{"rate":"1/s"{fields}}}}}"#)).unwrap().get("p").cloned().unwrap()
        };
        assert!(!of("").frontend().has_one_budget);
        let all = of(r#","key":[]"#);
        assert!(all.frontend().has_one_budget && *all != *of(""));
        assert!(all.to_string().ends_with("; one budget for all"), "{all}");
        for (wrong, shown) in
            [(r#""""#, r#""""#), (r#"["org"]"#, "an array"), ("null", "null"), ("true", "true"), ("{}", "an object")]
        {
            let rule = "POLICIES.p.key: must be [], for one budget that all share; for a budget for each key, leave it out, not ";
            assert_eq!(errors(&format!(r#"{{"p":{{"rate":"1/s","key":{wrong}}}}}"#)), [format!("{rule}{shown}")]);
        }
    }

    #[test]
    fn carry_cannot_be_reset_for_every_change() {
        let carry = |written: &str| Policy::parse("p", &format!(r#"{{"rate":"1/s"{written}}}"#));
        let expected =
            [("", None), (r#","carry":"as_is""#, Some(Carry::AsIs)), (r#","carry":"additive""#, Some(Carry::Additive))];
        for (written, expected) in expected {
            assert_eq!(carry(written).unwrap().registry().carry, expected, "{written}");
        }
        for (wrong, shown) in [(r#""reset""#, r#""reset""#), ("true", "true")] {
            let errors = carry(&format!(r#","carry":{wrong}"#)).unwrap_err();
            let rule = "must be \"additive\", \"as_is\" or \"proportional\"";
            let expected = format!("POLICIES.p.carry: {rule}, not {shown}");
            assert_eq!(errors.to_string(), expected);
        }
    }

    #[test]
    fn jitter_is_an_hour_at_most() {
        let jitter = |jitter: &str| errors(&format!(r#"{{"p":{{"rate":"1/s","jitter":"{jitter}"}}}}"#));
        for right in ["0s", "1ms", "1h"] {
            assert_eq!(jitter(right), [""; 0], "{right}");
        }
        let long = "POLICIES.p.jitter: must be at most 1h: refused callers would be told to stay away for longer";
        assert_eq!(jitter("3600001ms"), [long]);
    }

    #[test]
    fn an_offset_counts_modulo_the_period() {
        let offset = |offset: &str| {
            let json = format!(r#"{{"p":{{"kind":"fixed_window","rate":"5/day","offset":"{offset}"}}}}"#);
            Policies::parse(&json).unwrap().get("p").unwrap().numbers().to_owned()
        };
        for (written, within) in [("23h 59m 59s 999ms", "86399999ms"), ("1day", "0s"), ("25h", "1h"), ("4days", "0s")] {
            assert_eq!(offset(written), offset(within), "{written}");
        }
        assert_ne!(offset("1h"), offset("0s"));
        let week = r#"{"p":{"kind":"fixed_window","rate":"5/7days","offset":"20000days"}}"#;
        assert!(Policies::parse(week).is_ok());
    }

    #[test]
    fn windows_open_with_the_first_use_where_nothing_contradicts_it() {
        let policy = |fields: &str| format!(r#"{{"p":{{"offset":"first_use","period":"5h",{fields}}}}}"#);
        let window = |fields: &str| policy(&format!(r#""kind":"fixed_window","rate":20,{fields}"#));
        let policies = Policies::parse(&window(r#""mode":"enforce""#)).unwrap();
        let limit = &policies.get("p").unwrap().limits()[0];
        assert_eq!(*limit.limit().config(), Config::first_use_window(20, Duration::from_hours(5)));
        assert_eq!(limit.write_ahead(), 1);
        let numbers = policies.get("p").unwrap().numbers();
        let stored = crate::policy::stored_limits(numbers).unwrap();
        assert_eq!(stored, [(None, *limit.limit())], "{numbers}");
        for (json, problem) in [
            (policy(r#""rate":20"#), r#"p.offset: "first_use" is for `kind = "fixed_window"`"#),
            (window(r#""initial":5"#), "p.initial: a window from first use begins full, so it takes no initial tokens"),
            (window(r#""lease":"2s""#), "p.lease: p has windows from first use, of which nothing can be leased"),
            (window(r#""shards":2"#), "p.shards: p is a fixed window, which cannot be divided: make it a token bucket"),
        ] {
            let errors = errors(&json);
            assert!(errors.len() == 1 && errors[0].ends_with(problem), "{errors:?}");
        }
    }

    #[test]
    fn slots_have_a_capacity_and_nothing_else() {
        let policy = |fields: &str| format!(r#"{{"p":{{"kind":"slots",{fields}}}}}"#);
        let policies = Policies::parse(&policy(r#""capacity":5"#)).unwrap();
        let own = policies.get("p").unwrap();
        let [limit] = own.limits() else { panic!("{own:?}") };
        assert!(limit.is_slots());
        assert_eq!((limit.limit().config().capacity, limit.write_ahead(), limit.kind()), (5, 0, "slots"));
        assert_eq!(own.to_string(), "p: slots, 5 at once");
        let sent = Policy::from_definition(&own.definition()).unwrap();
        assert_eq!((sent.limits(), sent.id(), sent.wire_name()), (own.limits(), own.id(), own.wire_name()));
        let bucket = Policies::parse(r#"{"p":{"rate":0,"period":"1ms","capacity":5}}"#).unwrap();
        assert_ne!(bucket.get("p").unwrap().version(), own.version(), "tokens are not slots");
        let only = "is not for `kind = \"slots\"`, whose only number is `capacity`: how many may be taken at once";
        for (fields, problem) in [
            (r#""shards":1"#, "p.capacity: is missing: how many slots may be taken at once"),
            (r#""capacity":5,"rate":"5/s""#, &format!("p.rate: {only}")),
            (r#""capacity":5,"period":"1s""#, &format!("p.period: {only}")),
            (r#""capacity":5,"max_debt":1"#, &format!("p.max_debt: {only}")),
            (r#""capacity":5,"initial":1"#, &format!("p.initial: {only}")),
            (r#""capacity":5,"offset":"0s""#, &format!("p.offset: {only}")),
            (r#""capacity":5,"write_ahead":0"#, &format!("p.write_ahead: {only}")),
            (r#""capacity":5,"lease":"2s""#, "p.lease: p limits slots, of which nothing can be leased"),
            (
                r#""capacity":5,"on_error":"open""#,
                "p.on_error: p limits slots, which only reservations take, and none is granted unasked",
            ),
            (r#""capacity":5,"shards":2"#, "p.shards: p limits slots, which cannot be divided"),
            (r#""capacity":-1"#, "p.capacity: must be a whole number from 0 to 9007199254740991, not -1"),
        ] {
            let errors = errors(&policy(fields));
            assert!(errors.len() == 1 && errors[0].ends_with(problem), "{errors:?}");
        }
    }

    #[test]
    fn an_unlimited_debt_is_the_largest_that_is_exact() {
        let max_debt = |fields: &str, debt: &str| {
            let json = format!(r#"{{"p":{{{fields},"max_debt":{debt}}}}}"#);
            Policies::parse(&json).map(|policies| policies.get("p").unwrap().limits()[0].limit().config().max_debt)
        };
        for (fields, largest) in [
            (r#""rate":"100/1m","capacity":200"#, (1_u64 << 51) / 600 - 200),
            (r#""rate":"7/day""#, 7 * (1_u64 << 51) / 86_400_000 - 7),
            (r#""rate":"7/day","kind":"fixed_window""#, (1_u64 << 51) / 86_400_000 * 7 - 7),
            (r#""rate":"0/s","capacity":5"#, MAX_TOKENS - 5),
            (r#""rate":"9007199254740991/ms""#, 0),
        ] {
            assert_eq!(max_debt(fields, r#""unlimited""#), Ok(largest), "{fields}");
            assert_eq!(max_debt(fields, &largest.to_string()), Ok(largest), "{fields}");
            let error = max_debt(fields, &(largest + 1).to_string()).unwrap_err();
            assert!(error.to_string().contains("max_debt"), "{error}");
        }
        let rule = "POLICIES.p.max_debt: must be a whole number from 0 to 9007199254740991, or \"unlimited\", not ";
        for wrong in [r#""Unlimited""#, r#""5""#, "-1", "1.5", "true", "null"] {
            let errors = max_debt(r#""rate":"1/s""#, wrong).unwrap_err();
            assert_eq!(errors.to_string(), format!("{rule}{wrong}"));
        }
    }

    #[test]
    fn a_malformed_rate_is_an_error() {
        let number = "POLICIES.p.rate: must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as \
             \"100/1m\" or \"20/s burst 40\", not ";
        for written in [
            r#""100""#,
            r#""/1m""#,
            r#""-1/1m""#,
            r#""1,5/s""#,
            r#""[1]/s""#,
            r#""20/s burst""#,
            r#""20/s burst 1.5""#,
            r#""20/s burst 4 burst 5""#,
            r#""burst 5""#,
            "-2.5",
            "1e-30",
            "9007199254740992",
            "null",
            "true",
        ] {
            assert_eq!(
                errors(&format!(r#"{{"p":{{"rate":{written},"period":"1s"}}}}"#)),
                [format!("{number}{written}")]
            );
        }
        for (written, expected) in [
            (r#"{"rate":"1/s","period":"1s"}"#, "POLICIES.p.period: is given in `rate` already"),
            (r#"{"rate":"1/s burst 2","capacity":2}"#, "POLICIES.p.capacity: is given in `rate` already"),
            (r#"{"rate":2.5}"#, "POLICIES.p.period: is missing"),
            (
                r#"{"kind":"fixed_window","rate":2.5,"period":"1s"}"#,
                "POLICIES.p.rate: must be whole: a window that opens adds whole tokens",
            ),
            (
                r#""5/soon""#,
                "POLICIES.p.rate: must be a length of time such as \"90s\" or \"1h 30m\", not \"1soon\"; units are ms, s, \
                 m, h, day, week",
            ),
            (r#""5/""#, "POLICIES.p.rate: must be a number from 0 to 9007199254740991 such as"),
        ] {
            let [error] = &errors(&format!(r#"{{"p":{written}}}"#))[..] else { panic!("{written}") };
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn answers_are_remembered_for_a_minute_to_a_week() {
        let parsed = |fields: &str| Policy::parse("p", &format!(r#"{{"rate":"9/s"{fields}}}"#));
        assert_eq!(parsed("").unwrap().frontend().idempotency_ttl_ms, 3_600_000);
        for (written, expected) in
            [("59s 999ms", None), ("1m", Some(60_000)), ("7days", Some(604_800_000)), ("7days 1ms", None)]
        {
            let policy = parsed(&format!(r#","idempotency_ttl":"{written}""#));
            let errors = policy.clone().err();
            assert_eq!(policy.ok().map(|policy| policy.frontend().idempotency_ttl_ms), expected, "{written}");
            if expected.is_none() {
                let error = "POLICIES.p.idempotency_ttl: must be a length of time from 1m to 7days";
                assert_eq!(errors.unwrap().to_string(), error);
            }
        }
    }

    #[test]
    fn every_field_is_read() {
        let json = r#"{"p":{"kind":"fixed_window","rate":5,"period":"1h 30m","capacity":9,"max_debt":3,"initial":2,
            "offset":"15m","write_ahead":4,"on_error":"open","reservation_ttl":"2m","unsettled":"refund"}}"#;
        let mut expected = Config::fixed_window(5, Duration::from_mins(90));
        (expected.capacity, expected.max_debt, expected.initial, expected.offset_ms) = (9, 3, Some(2), Some(900_000));
        let policies = Policies::parse(json).unwrap();
        let policy = policies.get("p").unwrap();
        assert_eq!(policy.limits()[0].limit().config(), &expected);
        assert_eq!(policy.limits()[0].write_ahead(), 4);
        assert_eq!(policy.frontend().on_error, OnError::OPEN);
        assert_eq!(policy.object().reservations, ReservationTerms { ttl_ms: 120_000, unsettled: Unsettled::Refund });
    }

    #[test]
    fn no_character_of_a_key_is_shown_unless_the_policy_says_so() {
        let shown = |fields: &str| {
            let json = format!(r#"{{"p":{{"rate":1,"period":"1s"{fields}}}}}"#);
            Policies::parse(&json).map(|policies| policies.get("p").unwrap().frontend().shown_key_prefix)
        };
        assert_eq!(shown(""), Ok(0));
        for characters in [0, 8, 64] {
            assert_eq!(shown(&format!(r#","show_key_prefix":{characters}"#)), Ok(characters));
        }
        for wrong in ["65", "-1", "8.5", "true", "256"] {
            let json = format!(r#"{{"p":{{"rate":1,"period":"1s","show_key_prefix":{wrong}}}}}"#);
            let expected =
                format!("POLICIES.p.show_key_prefix: must be a whole number of characters from 0 to 64, not {wrong}");
            assert_eq!(errors(&json), [expected], "{wrong}");
        }
    }

    #[test]
    fn ipv6_prefix_is_64_bits_or_what_the_policy_says() {
        let prefix = |fields: &str| {
            let json = format!(r#"{{"p":{{"rate":1,"period":"1s"{fields}}}}}"#);
            Policies::parse(&json).map(|policies| policies.get("p").unwrap().frontend().ipv6_prefix)
        };
        assert_eq!(prefix(""), Ok(64));
        for bits in [32, 56, 128] {
            assert_eq!(prefix(&format!(r#","ipv6_prefix":{bits}"#)), Ok(bits));
        }
        for wrong in ["31", "129", "0", "320", "-64", "64.5", "\"64\"", "null"] {
            let json = format!(r#"{{"p":{{"rate":1,"period":"1s","ipv6_prefix":{wrong}}}}}"#);
            let expected =
                format!("POLICIES.p.ipv6_prefix: must be a whole number of bits from 32 to 128, not {wrong}");
            assert_eq!(errors(&json), [expected], "{wrong}");
        }
    }

    #[test]
    fn reads_several_limits_with_their_names() {
        let json = r#"{"llm":{"limits":[{"name":"requests","rate":60,"period":"1m"},
            {"name":"tokens","rate":100000,"period":"1day","kind":"fixed_window","write_ahead":0}],"on_error":"open"}}"#;
        let policies = Policies::parse(json).unwrap();
        let policy = policies.get("llm").unwrap();
        let names: Vec<_> = policy.limits().iter().map(|limit| (limit.name(), limit.full_name())).collect();
        assert_eq!(names, [(Some("requests"), "llm/requests"), (Some("tokens"), "llm/tokens")]);
        let read = |limit: &NamedLimit| names_in(limit.full_name()) == ("llm", limit.name());
        assert!(policy.limits().iter().all(read) && names_in("api") == ("api", None));
        assert_eq!(policy.limits().iter().map(NamedLimit::write_ahead).collect::<Vec<_>>(), [3, 0]);
        assert_eq!(
            policy.to_string(),
            "llm: requests token bucket, 60 per 1m, at most 60 at once and 120 within any 1m AND tokens fixed window, \
             100000 per 1day, at most 100000 at once and 200000 within any 1day; fails open on timeout, failed"
        );
    }

    #[test]
    fn write_ahead_is_a_second_or_a_twentieth_and_nothing_for_a_budget_that_never_refills() {
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
            (r#""rate":1,"period":"1m","capacity":1000,"write_ahead":1000"#, 1000),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{{{fields}}}}}"#)).unwrap();
            assert_eq!(policies.get("p").unwrap().limits()[0].write_ahead(), expected, "{fields}");
        }
    }

    #[test]
    fn a_policys_mode_holds_for_its_limits_unless_they_say_otherwise() {
        let limit = |name: &str, mode: &str| format!(r#"{{"name":"{name}","rate":1,"period":"1s"{mode}}}"#);
        let names = |limits: &[NamedLimit]| limits.iter().map(|limit| limit.full_name().to_owned()).collect::<Vec<_>>();
        let off =
            |policy: &Policy| policy.off_limits().iter().map(|name| format!("p/{}", name.as_ref().unwrap())).collect();
        for (of_policy, expected) in [
            ("", [&["p/a", "p/b"][..], &["p/c"], &["p/d"]]),
            (r#""mode":"enforce","#, [&["p/a", "p/b"], &["p/c"], &["p/d"]]),
            (r#""mode":"shadow","#, [&["p/b"], &["p/a", "p/c"], &["p/d"]]),
            (r#""mode":"off","#, [&["p/b"], &["p/c"], &["p/a", "p/d"]]),
        ] {
            let limits = [
                limit("a", ""),
                limit("b", r#","mode":"enforce""#),
                limit("c", r#","mode":"shadow""#),
                limit("d", r#","mode":"off""#),
            ];
            let json = format!(r#"{{"p":{{{of_policy}"limits":[{}]}}}}"#, limits.join(","));
            let policies = Policies::parse(&json).unwrap();
            let policy = policies.get("p").unwrap();
            let found = [names(policy.limits()), names(policy.shadow_limits()), off(policy)];
            assert_eq!(found, expected, "{of_policy}");
        }
        for (mode, expected) in [("enforce", [1, 0, 0]), ("soft", [1, 0, 0]), ("shadow", [0, 1, 0]), ("off", [0, 0, 1])]
        {
            let policies = Policies::parse(&format!(r#"{{"p":{{"rate":1,"period":"1s","mode":"{mode}"}}}}"#)).unwrap();
            let policy = policies.get("p").unwrap();
            let found = [policy.limits().len(), policy.shadow_limits().len(), policy.off_limits().len()];
            assert_eq!(found, expected, "{mode}");
            assert_eq!(policy.is_enforced(), mode == "enforce", "{mode}");
        }
    }

    #[test]
    fn a_soft_limit_counts_without_end_and_cannot_be_leased_or_divided() {
        let policy = |fields: &str| format!(r#"{{"p":{{"rate":"9/1m","mode":"soft",{fields}}}}}"#);
        let policies = Policies::parse(&policy(r#""capacity":12"#)).unwrap();
        let own = policies.get("p").unwrap();
        let [limit] = own.limits() else { panic!("{own:?}") };
        let config = limit.limit().config();
        assert_eq!((config.is_soft, config.max_debt), (true, Limit::largest_debt(config)));
        assert_eq!(own.to_string(), "p: soft token bucket, 9 per 1m, 12 at once");
        let sent = Policy::from_definition(&own.definition()).unwrap();
        assert_eq!((sent.limits(), sent.id(), sent.wire_name()), (own.limits(), own.id(), own.wire_name()));
        let hard = Policies::parse(r#"{"p":{"rate":"9/1m","capacity":12,"max_debt":"unlimited"}}"#).unwrap();
        assert_ne!(hard.get("p").unwrap().version(), own.version());
        let endless = "p.max_debt: is not for soft limits, which count as far below zero as is exact";
        for (fields, problem) in [
            (r#""max_debt":5"#, endless),
            (r#""max_debt":"unlimited""#, endless),
            (r#""lease":"2s""#, "p.lease: p is soft, of which nothing can be leased"),
            (r#""shards":2"#, "p.shards: p is soft, which shards cannot be"),
        ] {
            let errors = errors(&policy(fields));
            assert!(errors.len() == 1 && errors[0].ends_with(problem), "{errors:?}");
        }
        for (json, problem) in [
            (
                r#"{"p":{"kind":"slots","capacity":5,"mode":"soft"}}"#,
                "p.mode: slots cannot be soft: a reservation has a slot or has none",
            ),
            (
                r#"{"p":{"limits":[{"name":"a","kind":"rolling_window","rate":"5/s","mode":"soft"}]}}"#,
                "p.limits[0].mode: a rolling window cannot be soft: it would have to keep the moments of all that was taken",
            ),
        ] {
            let errors = errors(json);
            assert!(errors.len() == 1 && errors[0].ends_with(problem), "{errors:?}");
        }
    }

    #[test]
    fn an_unknown_mode_is_an_error_that_names_them_all() {
        for wrong in [r#""on""#, r#""Shadow""#, r#""""#, "true", "null", "0"] {
            let rule = "must be \"enforce\", \"soft\", \"shadow\" or \"off\"";
            let expected = |place: &str| vec![format!("{place}.mode: {rule}, not {wrong}")];
            let policy = format!(r#"{{"p":{{"rate":1,"period":"1s","mode":{wrong}}}}}"#);
            assert_eq!(errors(&policy), expected("POLICIES.p"));
            let list = format!(r#"{{"p":{{"mode":{wrong},"limits":[{{"name":"a","rate":1,"period":"1s"}}]}}}}"#);
            assert_eq!(errors(&list), expected("POLICIES.p"));
            let limit = format!(r#"{{"p":{{"limits":[{{"name":"a","rate":1,"period":"1s","mode":{wrong}}}]}}}}"#);
            assert_eq!(errors(&limit), expected("POLICIES.p.limits[0]"));
        }
    }

    #[test]
    fn the_description_says_what_is_in_shadow_and_that_nothing_is_enforced() {
        let limit = |name: &str, mode: &str| format!(r#"{{"name":"{name}","rate":1,"period":"1s","mode":"{mode}"}}"#);
        let list =
            |limits: &[String]| format!(r#"{{"limits":[{}],"jitter":"5s","on_error":"open"}}"#, limits.join(","));
        let one = "token bucket, 1 per 1s, at most 1 at once and 2 within any 1s";
        for (written, expected) in [
            (
                list(&[limit("a", "shadow"), limit("b", "enforce"), limit("c", "off"), limit("d", "shadow")]),
                format!(
                    "p: b {one}; shadow: a {one} AND d {one}; off: c; refused callers return up to 5s later; fails open on timeout, failed"
                ),
            ),
            (list(&[limit("a", "shadow")]), format!("p: admits everything: it enforces no limit; shadow: a {one}")),
            (
                list(&[limit("a", "shadow"), limit("b", "off")]),
                format!("p: admits everything: it enforces no limit; shadow: a {one}; off: b"),
            ),
            (list(&[limit("a", "off")]), "p: admits everything: all its limits are off".to_owned()),
            (
                r#"{"rate":1,"period":"1s","mode":"off"}"#.to_owned(),
                "p: admits everything: all its limits are off".to_owned(),
            ),
        ] {
            let policies = Policies::parse(&format!(r#"{{"p":{written}}}"#)).unwrap();
            assert_eq!(policies.get("p").unwrap().to_string(), expected);
        }
    }

    #[test]
    fn a_policy_that_enforces_nothing_is_not_mistaken_for_one_that_does() {
        let policy = |json: &str| {
            let policies = Policies::parse(&format!(r#"{{"p":{{"rate":1,"period":"1s"{json}}}}}"#)).unwrap();
            Arc::clone(policies.get("p").unwrap())
        };
        for mode in ["shadow", "off"] {
            let unenforced = policy(&format!(r#","mode":"{mode}""#));
            assert_ne!(unenforced.wire_name(), policy("").wire_name());
        }
        assert_eq!(policy("").wire_name(), "p");
    }

    #[test]
    fn all_errors_are_reported_at_once() {
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
            "k0": {"rate": 7, "period": "1day", "reservation_ttl": "0s"},
            "k": {"rate": 7, "period": "1day", "on_error": "ajar", "unsettled": 1, "reservation_ttl": 5},
            "l": {"limits": [], "rate": 7},
            "m": {"limits": [{"rate": 7, "period": "1s"}, {"name": "a b"}, {"name": "a"}, {"name": "a"}, 5]}
        }"#;
        let expected = [
            "POLICIES.a.burst: is not a known field; known fields are kind, rate, period, calendar, starts, zone, capacity, max_debt, initial, offset, grains, \
             write_ahead, mode, shards, fixed, carry, reservation_ttl, unsettled, notify, notify_every, ban, on_error, refusal_cache, idempotency_ttl, lease, max_lease, ipv6_prefix, show_key_prefix, key, jitter, limits",
            "POLICIES.a.rate: must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as \"100/1m\" or \
             \"20/s burst 40\", not -1",
            "POLICIES.a.period: must be text with a unit, such as \"90s\", not 60",
            "POLICIES.\"b c\": a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'",
            "POLICIES.d.kind: must be \"token_bucket\", \"fixed_window\", \"rolling_window\" or \"slots\"",
            "POLICIES.d.period: must be whole milliseconds, not \"1us\"",
            "POLICIES.e: must be a table of fields such as rate and period, not 7",
            "POLICIES.f.period: must be a length of time such as \"90s\" or \"1h 30m\", not \"soon\"; units are ms, s, m, \
             h, day, week",
            "POLICIES.g.period: a period of 0 ms is too short: at least 1 ms",
            "POLICIES.h.capacity: a capacity of 9007199254740991 is too large to stay exact at this rate and period: at \
             most 182437484",
            "POLICIES.i.offset: a token bucket has no windows, and those from first use open then: neither takes an offset",
            "POLICIES.j.max_debt: a max_debt of 9007199254740991 is too large to stay exact with this capacity: at most \
             182437477",
            "POLICIES.k0.reservation_ttl: must be at least 1ms, or no reservation could be settled",
            "POLICIES.k.unsettled: must be \"keep\" or \"refund\"",
            "POLICIES.k.reservation_ttl: must be text with a unit, such as \"90s\", not 5",
            "POLICIES.k.on_error: must be \"closed\", \"open\", or a list of causes to open for: \"overloaded\", \"timeout\", \"failed\"",
            "POLICIES.l.rate: is not a known field; known fields are limits, mode, shards, fixed, carry, reservation_ttl, unsettled, notify, notify_every, ban, on_error, refusal_cache, idempotency_ttl, lease, max_lease, ipv6_prefix, show_key_prefix, key, jitter",
            "POLICIES.l.limits: must be a list of 1 to 8 limits",
            "POLICIES.m.limits[0]: must have a name: costs and answers refer to a limit by its name",
            "POLICIES.m.limits[1]: name: a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'",
            "POLICIES.m.limits[2].rate: is missing",
            "POLICIES.m.limits[2].period: is missing",
            "POLICIES.m.limits[3]: a limit before it is named a too",
            "POLICIES.m.limits[4]: must be a table of fields such as name, rate and period, not 5",
        ];
        assert_eq!(errors(json), expected);
    }

    #[test]
    fn a_name_that_a_url_cannot_carry_is_refused() {
        for name in [".", ".."] {
            let problem = format!("a name must not be {name:?}: in a URL it would be a step of the path");
            assert_eq!(errors(&format!(r#"{{"{name}":"1/s"}}"#)), [format!("POLICIES.{name:?}: {problem}")]);
        }
        assert!(Policies::parse(r#"{"...":"1/s",".a":"1/s","a..":"1/s"}"#).is_ok());
    }

    #[test]
    fn rejects_what_is_not_a_table_of_policies() {
        assert_eq!(errors("{}"), ["POLICIES: defines no policy"]);
        assert_eq!(errors("[]"), ["POLICIES: must be a table of policies by name, not an array"]);
        let twice = r#"{"a":{"rate":1,"period":"1s"},"a":{"rate":2,"period":"1s"}}"#;
        assert_eq!(errors(twice), ["POLICIES: gives a twice"]);
        assert_eq!(errors(r#"{"a":{"rate":1,"period":"1s","rate":2}}"#), ["POLICIES.a: gives rate twice"]);
        assert_eq!(errors(r#"{"a":{"\ud800":1}}"#), ["POLICIES.a: has a name with an unpaired surrogate"]);
        assert!(errors("")[0].starts_with("POLICIES: must be a table of policies by name: "));
    }

    #[test]
    fn ban_says_after_how_many_refusals_and_for_how_long() {
        let ban = |fields: &str| {
            let policies = Policies::parse(&format!(r#"{{"p":{{"rate":"1/s","ban":{{{fields}}}}}}}"#)).unwrap();
            let BanTerms { after, within_ms, for_ms, grow, max_ms } = policies.get("p").unwrap().object().ban.unwrap();
            (after, within_ms, for_ms, grow, max_ms)
        };
        let day = 86_400_000;
        assert_eq!(ban(r#""after":1,"within":"1s","for":"1s""#), (1, 1_000, 1_000, 2, day));
        let all = r#""after":100,"within":"1day","for":"365days","grow":10,"max":"365days""#;
        assert_eq!(ban(all), (100, day, 365 * day, 10, 365 * day));
        assert_eq!(ban(r#""after":3,"within":"1m","for":"2days","grow":1"#), (3, 60_000, 2 * day, 1, 2 * day));
        let of = |field: &str, problem: &str| vec![format!("POLICIES.p.ban.{field}: {problem}")];
        let known = "is not a known field; known fields are after, within, for, grow, max";
        for (ban, expected) in [
            ("{}", [of("after", "is missing"), of("within", "is missing"), of("for", "is missing")].concat()),
            ("5", vec!["POLICIES.p.ban: must be a table of after, within and for, not 5".to_owned()]),
            (
                r#"{"after":0,"within":"1s","for":"1s"}"#,
                of("after", "must be a whole number of refusals from 1 to 100, not 0"),
            ),
            (
                r#"{"after":101,"within":"1s","for":"1s"}"#,
                of("after", "must be a whole number of refusals from 1 to 100, not 101"),
            ),
            (r#"{"after":1,"within":"999ms","for":"1s"}"#, of("within", "must be from 1s to 1day, not \"999ms\"")),
            (r#"{"after":1,"within":"25h","for":"1s"}"#, of("within", "must be from 1s to 1day, not \"25h\"")),
            (r#"{"after":1,"within":"1s","for":"366days"}"#, of("for", "must be from 1s to 365days, not \"366days\"")),
            (r#"{"after":1,"within":"1s","for":60}"#, of("for", "must be text with a unit, such as \"90s\", not 60")),
            (
                r#"{"after":1,"within":"1s","for":"1m","max":"59s"}"#,
                of("max", "must not be shorter than `for`, the length of the first ban"),
            ),
            (
                r#"{"after":1,"within":"1s","for":"1m","grow":1.5}"#,
                of("grow", "must be a whole number of times from 1 to 10, not 1.5"),
            ),
            (r#"{"after":1,"within":"1s","for":"1m","until":"2s"}"#, of("until", known)),
        ] {
            assert_eq!(errors(&format!(r#"{{"p":{{"rate":"1/s","ban":{ban}}}}}"#)), expected, "{ban}");
        }
        let ban = r#""ban":{"after":1,"within":"1s","for":"1s"}"#;
        let none = "POLICIES.p.ban: needs a limit that refuses, and none has `mode = \"enforce\"`";
        for (fields, expected) in [
            (r#""mode":"soft""#, vec![none]),
            (r#""mode":"shadow""#, vec![none]),
            (
                r#""lease":"1s""#,
                vec!["POLICIES.p.ban: cannot be combined with `lease`: refusals from a lease are not counted"],
            ),
            (r#""shards":2"#, vec!["POLICIES.p.shards: a policy with shards cannot have `ban`"]),
            (r#""refusal_cache":"0s","notify":["refused"],"on_error":"open""#, vec![]),
        ] {
            assert_eq!(errors(&format!(r#"{{"p":{{"rate":"9/s",{fields},{ban}}}}}"#)), expected, "{fields}");
        }
    }

    #[test]
    fn notify_says_which_notices_and_how_often() {
        let notify = |fields: &str| {
            let policies = Policies::parse(&format!(r#"{{"p":{{"rate":"1/s"{fields}}}}}"#)).unwrap();
            let notify = policies.get("p").unwrap().object().notify?;
            Some((notify.kinds().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" "), notify.every_ms()))
        };
        assert_eq!(notify(""), None);
        let of = |words: &str, every_ms| Some((words.to_owned(), every_ms));
        assert_eq!(notify(r#","notify":["refused"]"#), of("refused", 600_000));
        assert_eq!(notify(r#","notify":["80%"],"notify_every":"10s""#), of("80%", 10_000));
        let all = r#","mode":"soft","notify":["refused","over","100%","1%","50%"],"notify_every":"30days""#;
        assert_eq!(notify(all), of("1% 50% 100% over refused", 2_592_000_000));
        let each = r#"POLICIES.p.notify: each must be "1%" to "100%" of a limit, "over" or "refused", not "#;
        let every = "POLICIES.p.notify_every: must be from 10s to 30days, not ";
        for (fields, expected) in [
            (r#""notify":[]"#, "POLICIES.p.notify: must have 1 to 10 entries, not 0".to_owned()),
            (r#""notify":["80%","80%"]"#, "POLICIES.p.notify: has \"80%\" twice".to_owned()),
            (r#""notify":["refused","reset"]"#, format!(r#"{each}"reset""#)),
            (r#""notify":["0%"]"#, format!(r#"{each}"0%""#)),
            (r#""notify":["101%"]"#, format!(r#"{each}"101%""#)),
            (r#""notify":["05%"]"#, format!(r#"{each}"05%""#)),
            (r#""notify":["12.5%"]"#, format!(r#"{each}"12.5%""#)),
            (r#""notify":[80]"#, format!("{each}80")),
            (
                r#""notify":["1%","2%","3%","4%","5%","6%","7%","8%","9%","10%","11%"]"#,
                "POLICIES.p.notify: must have 1 to 10 entries, not 11".to_owned(),
            ),
            (r#""notify":["over"]"#, "POLICIES.p.notify: \"over\" is for soft limits, and here is none".to_owned()),
            (
                r#""notify":"refused""#,
                r#"POLICIES.p.notify: must be a list of "1%" to "100%" of a limit, "over" or "refused", not "refused""#
                    .to_owned(),
            ),
            (r#""notify":["refused"],"notify_every":"9999ms""#, format!(r#"{every}"9999ms""#)),
            (r#""notify":["refused"],"notify_every":"31days""#, format!(r#"{every}"31days""#)),
            (
                r#""notify":["refused"],"notify_every":10"#,
                "POLICIES.p.notify_every: must be text with a unit, such as \"90s\", not 10".to_owned(),
            ),
            (r#""notify_every":"10s""#, "POLICIES.p.notify_every: needs `notify`, which says of what".to_owned()),
        ] {
            assert_eq!(errors(&format!(r#"{{"p":{{"rate":"1/s",{fields}}}}}"#)), [expected]);
        }
    }

    #[test]
    fn a_crash_cannot_cost_more_than_the_capacity() {
        let write_ahead =
            |tokens: u64| format!(r#"{{"p":{{"rate":1,"period":"1s","capacity":200,"write_ahead":{tokens}}}}}"#);
        assert!(Policies::parse(&write_ahead(200)).is_ok());
        let expected = ["POLICIES.p.write_ahead: 201 tokens are more than the capacity: at most 200"];
        assert_eq!(errors(&write_ahead(201)), expected);
    }

    #[test]
    fn an_invalid_length_of_time_never_falls_back_to_the_default() {
        let policy = |field: &str, text: &str| match field {
            "period" => format!(r#"{{"p":{{"rate":0,"period":"{text}"}}}}"#),
            _ => format!(r#"{{"p":{{"kind":"fixed_window","rate":1,"period":"1s","{field}":"{text}"}}}}"#),
        };
        for field in ["reservation_ttl", "period", "offset"] {
            if field != "offset" {
                assert_eq!(errors(&policy(field, "2251799813685248ms")), [""; 0], "{field}");
            }
            for text in ["2251799813685249ms", "2251799813686s", "20000000000000000s", "99999999999999999999s"] {
                let expected = format!(
                    "POLICIES.p.{field}: \"{text}\" is too long: at most 2251799813685248ms, some 71 000 years"
                );
                assert_eq!(errors(&policy(field, text)), [expected]);
            }
        }
    }

    /// A month is not a fixed number of days, and `M` may have been meant as a minute.
    #[test]
    fn no_length_of_time_counts_in_months_or_years() {
        let fields = [
            ("rate", "9/3months"),
            ("period", "1M"),
            ("offset", "1month"),
            ("reservation_ttl", "2yrs"),
            ("refusal_cache", "1y"),
            ("lease", "1year"),
            ("notify_every", "6 months"),
        ];
        for (field, text) in fields {
            let rest = match field {
                "rate" => "",
                "period" => r#""rate":1,"#,
                "notify_every" => r#""rate":1,"period":"1s","notify":["refused"],"#,
                "offset" => r#""kind":"fixed_window","rate":1,"period":"1s","#,
                _ => r#""rate":1,"period":"1s","#,
            };
            let [error] = &errors(&format!(r#"{{"p":{{{rest}"{field}":"{text}"}}}}"#))[..] else { panic!("{field}") };
            let advice = if text.contains('y') { "365days" } else { "30days" };
            assert!(error.starts_with(&format!("POLICIES.p.{field}: ")), "{error}");
            assert!(error.contains("differ in length: write days, such as") && error.contains(advice), "{error}");
        }
    }

    #[test]
    fn a_week_may_begin_on_mondays() {
        let json = r#"{"p":{"kind":"fixed_window","rate":9,"period":"1week","offset":"4days"}}"#;
        let limit = *Policies::parse(json).unwrap().get("p").unwrap().limits()[0].limit();
        let monday = 1_763_942_400_000; // 24 November 2025, 00:00 UTC
        let state = limit.new_state(monday + 1, 0);
        assert_eq!(limit.snapshot(&state).at, monday);
    }

    #[test]
    fn on_error_names_the_causes_that_open() {
        let on_error = |written: &str| {
            let json = format!(r#"{{"p":{{"rate":1,"period":"1s","on_error":{written}}}}}"#);
            Policies::parse(&json).ok().map(|policies| policies.get("p").unwrap().frontend().on_error)
        };
        let closed = OnError::CLOSED;
        for (written, expected) in [
            (r#""closed""#, Some(closed)),
            (r#""open""#, Some(OnError::OPEN)),
            (r#"["timeout","failed"]"#, Some(OnError::OPEN)),
            (r#"["overloaded"]"#, Some(closed.and(Cause::Overloaded))),
            (r#"["failed","overloaded","timeout"]"#, Some(OnError::OPEN.and(Cause::Overloaded))),
            ("[]", None),
            (r#"["timeout","late"]"#, None),
            (r#"["open"]"#, None),
            ("[1]", None),
            (r#""timeout""#, None),
            ("true", None),
            ("null", None),
        ] {
            assert_eq!(on_error(written), expected, "{written}");
        }
    }

    #[test]
    fn names_used_by_javascript_are_ordinary_names() {
        let policies = ["constructor", "__proto__", "toString", "hasOwnProperty", "toJSON"];
        let written = policies.map(|name| format!(r#""{name}":{{"rate":1,"period":"1s"}}"#)).join(",");
        let parsed = Policies::parse(&format!("{{{written}}}")).unwrap();
        assert!(policies.iter().all(|name| parsed.get(name).is_some()));
    }

    #[test]
    fn no_name_breaks_a_line_of_the_log() {
        let json = r#"{"a\nb\u001b[31m":7, "p":{"rate":1,"period":"1s","x\r\ny":1,"capacity":"1\n2","offset":"\n"}}"#;
        let expected = [
            r#"POLICIES."a\nb\u{1b}[31m": a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'"#,
            "POLICIES.p.\"x\\r\\ny\": is not a known field; known fields are kind, rate, period, calendar, starts, zone, capacity, max_debt, \
             initial, offset, grains, write_ahead, mode, shards, fixed, carry, reservation_ttl, unsettled, notify, notify_every, ban, on_error, refusal_cache, idempotency_ttl, lease, max_lease, ipv6_prefix, show_key_prefix, key, jitter, limits",
            r#"POLICIES.p.capacity: must be a whole number from 0 to 9007199254740991, not "1\n2""#,
            r#"POLICIES.p.offset: must be a length of time such as "90s" or "1h 30m", not "\n"; units are ms, s, m, h, day, week"#,
        ];
        assert_eq!(errors(json), expected);
        let long = format!(r#"{{"{}":7}}"#, "\\n".repeat(100_000));
        assert!(errors(&long)[0].len() < 200);
    }
}
