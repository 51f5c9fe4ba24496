//! Policies with numbers from a request: for example from the caller's own plan table.

use super::error::PolicyError;
use super::mode::Mode;
use super::name::{is_name, name_rule};
use super::named::Policy;
use super::object_terms::ObjectTerms;
use super::reader::{LIMIT_FIELDS, Reader, table};
use super::shown::shown_name;
use crate::json::{Fields, Json};

impl Policy {
    /// A policy with these limits, written as in `POLICIES`: a single one as text such as `"100/1m"` or as a table of its fields, several
    /// as a list. All other fields of a policy have their defaults.
    ///
    /// # Errors
    /// The first [`PolicyError`], with its place in the request: `limits[0].rate`.
    pub(crate) fn inline(name: &str, limits: Json<'_>) -> Result<Self, PolicyError> {
        if !is_name(name) {
            return Err(PolicyError { place: format!("policy {}", shown_name(name)), problem: name_rule(name) });
        }
        let mut errors = Vec::new();
        let read = limits_of(name, limits, &mut errors);
        if let Some(PolicyError { place, problem }) = errors.into_iter().next() {
            return Err(PolicyError { place: place.trim_start_matches('.').to_owned(), problem });
        }
        if let Some(index) = read.iter().position(|limit| limit.limit().is_rolling()) {
            let place = if read.iter().all(|limit| limit.name().is_none()) {
                FIELD.to_owned()
            } else {
                format!("{FIELD}[{index}]")
            };
            let problem = "a rolling window must be in a policy of the service, not in a request".to_owned();
            return Err(PolicyError { place: format!("{place}.kind"), problem });
        }
        Ok(Self::new(name, read, ObjectTerms::default()).into_inline())
    }
}

fn limits_of(name: &str, limits: Json<'_>, errors: &mut Vec<PolicyError>) -> Vec<super::named_limit::NamedLimit> {
    if limits.array().is_some() {
        let fields = Fields::one(FIELD, limits);
        let read = Reader { place: String::new(), fields: &fields, errors }.limits(name, Mode::Enforce);
        if let Some(index) = read.iter().position(|(mode, _)| *mode != Mode::Enforce) {
            let problem = "limits that come with a request are always enforced".to_owned();
            errors.push(PolicyError { place: format!("{FIELD}[{index}].mode"), problem });
        }
        return read.into_iter().map(|(_, limit)| limit).collect();
    }
    let fields = match limits.string() {
        Some(_) => Some(Fields::one("rate", limits)),
        None => {
            table(FIELD, limits, "fields such as rate and period, a list of them, or text such as \"100/1m\"", errors)
        }
    };
    let Some(fields) = fields else { return Vec::new() };
    let mut reader = Reader { place: FIELD.to_owned(), fields: &fields, errors };
    reader.only(&LIMIT_FIELDS);
    reader.limit(name, None, Mode::Enforce).into_iter().collect()
}

/// The field in a request.
const FIELD: &str = "limits";

#[cfg(all(test, feature = "service"))]
mod tests {
    use super::*;
    use crate::policy::Policies;

    fn inline(limits: &str) -> Result<Policy, String> {
        Policy::inline("plan", Json::parse(limits).unwrap()).map_err(|error| error.to_string())
    }

    /// One parser reads both, so an inline policy equals the same one in `POLICIES`.
    #[test]
    fn limits_match_a_policy_written_in_the_same_words() {
        let one = r#"{"rate":2.5,"period":"1s","capacity":9,"max_debt":4,"write_ahead":2}"#;
        let list =
            r#"[{"name":"a","rate":"20/s burst 40"},{"name":"b","kind":"fixed_window","rate":9,"period":"1day"}]"#;
        for (limits, policy) in [(r#""100/1m""#, r#""100/1m""#), (one, one), (list, &format!(r#"{{"limits":{list}}}"#))]
        {
            let policies = Policies::parse(&format!(r#"{{"plan":{policy}}}"#)).unwrap();
            let (expected, inline) = (policies.get("plan").unwrap(), inline(limits).unwrap());
            assert_eq!(inline.to_string(), expected.to_string());
            assert_eq!(inline.numbers(), expected.numbers());
            assert_eq!(inline.wire_name(), format!("={}", expected.wire_name()));
            assert_eq!(inline.object().reservations, expected.object().reservations);
            assert_eq!(
                (inline.frontend().on_error, inline.frontend().ipv6_prefix),
                (expected.frontend().on_error, expected.frontend().ipv6_prefix)
            );
            assert!(inline.is_inline() && !expected.is_inline());
            let read = Policy::from_definition(&inline.definition()).unwrap();
            assert!(read == inline && read.wire_name() == inline.wire_name(), "an object gets it");
        }
    }

    #[test]
    fn names_the_field_of_the_request_that_is_wrong() {
        let nine: Vec<_> = (0..9).map(|index| format!(r#"{{"name":"l{index}","rate":"1/s"}}"#)).collect();
        let rate = "must be a number from 0 to 9007199254740991 such as 100 or 2.5, or text such as \"100/1m\" or \
                    \"20/s burst 40\", not ";
        for (limits, expected) in [
            ("[]", "limits: must be a list of 1 to 8 limits".to_owned()),
            (&*format!("[{}]", nine.join(",")), "limits: must be a list of 1 to 8 limits".to_owned()),
            ("7", "limits: must be a table of fields such as rate and period, a list of them, or text such as \"100/1m\", not 7".to_owned()),
            (r#""fast""#, format!("limits.rate: {rate}\"fast\"")),
            (r#"{"rate":-1,"period":"1s"}"#, format!("limits.rate: {rate}-1")),
            (r#"{"rate":1}"#, "limits.period: is missing".to_owned()),
            (r#"{"rate":1,"rate":2}"#, "limits: gives rate twice".to_owned()),
            (
                r#"{"rate":"1/s","on_error":"open"}"#,
                "limits.on_error: is not a known field; known fields are kind, rate, period, calendar, starts, zone, capacity, max_debt, initial, \
                 offset, grains, write_ahead".to_owned(),
            ),
            (r#"[{"name":"a","rate":"1/s"},"2/s"]"#, "limits[1]: must be a table of fields such as name, rate and period, not \"2/s\"".to_owned()),
            (
                r#"[{"name":"a","rate":"1/s"},{"name":"b","rate":"1/s","mode":"shadow"}]"#,
                "limits[1].mode: limits that come with a request are always enforced".to_owned(),
            ),
            (r#"[{"rate":"1/s"}]"#, "limits[0]: must have a name: costs and answers refer to a limit by its name".to_owned()),
            (r#"[{"name":"a","rate":"1/s"},{"name":"a","rate":"1/s"}]"#, "limits[1]: a limit before it is named a too".to_owned()),
            (r#"[{"name":"a","rate":1,"period":"0s"}]"#, "limits[0].period: a period of 0 ms is too short: at least 1 ms".to_owned()),
        ] {
            assert_eq!(inline(limits).err(), Some(expected), "{limits}");
        }
        let name =
            |name: &str| Policy::inline(name, Json::parse("\"1/s\"").unwrap()).err().map(|error| error.to_string());
        let rule = "a name must be 1 to 64 ASCII letters, digits, '_', '-' or '.'";
        assert_eq!(name(""), Some(format!("policy \"\": {rule}")));
        assert_eq!(name("a,b"), Some(format!("policy \"a,b\": {rule}")));
        for step in [".", ".."] {
            let rule = format!("a name must not be {step:?}: in a URL it would be a step of the path");
            assert_eq!(name(step), Some(format!("policy {step:?}: {rule}")));
        }
        assert_eq!([name("..."), name(".a")], [None, None]);
        assert_eq!(name(&"p".repeat(64)), None);
        assert!(name(&"p".repeat(65)).is_some());
    }
}
