//! The answer as JSON.
//!
//! Written by hand: a serializer of `serde_json` is made anew for each type, 3 KB more, compressed, for each visitor of a page.

use std::fmt::Write;

use crate::policy::{Admitted, CrashCost, DebtFacts, Finding, Level, LimitFacts, Lint, LongRun};

/// What there is to say about policies. One of the two lists is empty.
#[derive(Default)]
pub(super) struct Answer {
    /// Every error in the policies.
    pub(super) errors: Vec<String>,
    /// For each policy, by name.
    pub(super) policies: Vec<Lint>,
}

impl Answer {
    pub(super) fn to_json(&self) -> String {
        let mut json = String::new();
        self.write(&mut json);
        json
    }
}

/// What can be written as JSON.
trait Json {
    fn write(&self, json: &mut String);
}

impl Json for Answer {
    fn write(&self, json: &mut String) {
        Fields::of(json).add("errors", &self.errors).add("policies", &self.policies).end();
    }
}

impl Json for Lint {
    fn write(&self, json: &mut String) {
        Fields::of(json)
            .add("policy", &self.policy)
            .add("summary", &self.summary)
            .add("limits", &self.limits)
            .add("together", &self.together)
            .add("findings", &self.findings)
            .add("text", &self.to_string())
            .end();
    }
}

impl Json for LimitFacts {
    fn write(&self, json: &mut String) {
        Fields::of(json)
            .add_if_any("name", self.name.as_ref())
            .add("is_enforced", &self.is_enforced)
            .add("kind", &self.kind)
            .add("rate", &self.rate)
            .add("period_ms", &self.period_ms)
            .add("capacity", &self.capacity)
            .add("long_run", &self.long_run)
            .add("burst", &self.burst)
            .add("within", &self.within)
            .add("full_after_ms", &self.full_after_ms)
            .add_if_any("debt", self.debt.as_ref())
            .add("crash", &self.crash)
            .add("change_grants", &self.change_grants)
            .end();
    }
}

impl Json for LongRun {
    fn write(&self, json: &mut String) {
        Fields::of(json).add("tokens", &self.tokens).add("period_ms", &self.period_ms).end();
    }
}

impl Json for Admitted {
    fn write(&self, json: &mut String) {
        Fields::of(json).add("period_ms", &self.period_ms).add("tokens", &self.tokens).end();
    }
}

impl Json for DebtFacts {
    fn write(&self, json: &mut String) {
        Fields::of(json)
            .add("max_debt", &self.max_debt)
            .add("burst", &self.burst)
            .add("within", &self.within)
            .add("paid_after_ms", &self.paid_after_ms)
            .end();
    }
}

impl Json for CrashCost {
    fn write(&self, json: &mut String) {
        Fields::of(json).add("tokens", &self.tokens).add("back_after_ms", &self.back_after_ms).end();
    }
}

impl Json for Finding {
    fn write(&self, json: &mut String) {
        let level = match self.level {
            Level::Warning => "warning",
            Level::Note => "note",
        };
        Fields::of(json)
            .add("level", &level)
            .add("code", &self.code.word())
            .add_if_any("limit", self.limit.as_ref())
            .add("text", &self.text)
            .end();
    }
}

/// The fields of an object, of which there is at least one.
struct Fields<'a> {
    json: &'a mut String,
    /// What comes before the next field.
    before: char,
}

impl<'a> Fields<'a> {
    fn of(json: &'a mut String) -> Self {
        Self { json, before: '{' }
    }

    fn add(&mut self, name: &str, value: &dyn Json) -> &mut Self {
        self.json.push(self.before);
        self.before = ',';
        name.write(self.json);
        self.json.push(':');
        value.write(self.json);
        self
    }

    fn add_if_any<T: Json>(&mut self, name: &str, value: Option<&T>) -> &mut Self {
        match value {
            Some(value) => self.add(name, value),
            None => self,
        }
    }

    fn end(&mut self) {
        self.json.push('}');
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self, json: &mut String) {
        json.push('[');
        for (index, item) in self.iter().enumerate() {
            if index > 0 {
                json.push(',');
            }
            item.write(json);
        }
        json.push(']');
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self, json: &mut String) {
        match self {
            Some(value) => value.write(json),
            None => json.push_str("null"),
        }
    }
}

impl Json for str {
    fn write(&self, json: &mut String) {
        json.push('"');
        for c in self.chars() {
            match c {
                '"' | '\\' => json.extend(['\\', c]),
                '\0'..' ' => _ = write!(json, "\\u{:04x}", u32::from(c)), // a string takes everything
                _ => json.push(c),
            }
        }
        json.push('"');
    }
}

impl Json for &str {
    fn write(&self, json: &mut String) {
        str::write(self, json);
    }
}

impl Json for String {
    fn write(&self, json: &mut String) {
        str::write(self, json);
    }
}

impl Json for bool {
    fn write(&self, json: &mut String) {
        json.push_str(if *self { "true" } else { "false" });
    }
}

impl Json for u64 {
    fn write(&self, json: &mut String) {
        u128::from(*self).write(json);
    }
}

impl Json for u128 {
    fn write(&self, json: &mut String) {
        _ = write!(json, "{self}"); // a string takes everything
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Policies;

    fn json(policies: &str) -> String {
        let policies = Policies::parse(policies).unwrap();
        Answer { policies: policies.iter().map(|policy| policy.lint()).collect(), ..Answer::default() }.to_json()
    }

    /// What the package promises in its types.
    #[test]
    fn every_field_has_its_name() {
        assert_eq!(
            json(r#"{"p":{"rate":"0/s","capacity":5,"max_debt":1,"write_ahead":0}}"#),
            r#"{"errors":[],"policies":[{"policy":"p","summary":"p: token bucket, 0 per 1s, at most 5 at once","limits":[{"is_enforced":true,"#.to_owned()
                + r#""kind":"token_bucket","rate":0,"period_ms":1000,"capacity":5,"long_run":{"tokens":0,"period_ms":1000},"burst":5,"#
                + r#""within":[{"period_ms":1000,"tokens":5}],"full_after_ms":null,"debt":{"max_debt":1,"burst":6,"#
                + r#""within":[{"period_ms":1000,"tokens":6}],"paid_after_ms":null},"crash":{"tokens":0,"back_after_ms":0},"change_grants":5}],"#
                + r#""together":[],"findings":[{"level":"note","code":"never_refills","text":"with a rate of 0 a spent budget never refills, "#
                + r#"and its row is never deleted"},{"level":"warning","code":"debt_never_paid","text":"with a rate of 0 a debt of up to 1 "#
                + r#"is never paid: the key is refused for good"}],"text":"p: token bucket, 0 per 1s, at most 5 at once\u000a  never full "#
                + r#"again; with debt at most 6 at once, never paid; a crash costs nothing; under another name or kind it would start anew, "#
                + r#"with 5\u000a  note: with a rate of 0 a spent budget never refills, and its row is never deleted (never_refills)\u000a  "#
                + r#"warning: with a rate of 0 a debt of up to 1 is never paid: the key is refused for good (debt_never_paid)"}]}"#
        );
    }

    #[test]
    fn names_are_there_if_limits_have_them() {
        let limits =
            r#"{"p":{"limits":[{"name":"a","rate":"9/s","capacity":99},{"name":"b","rate":"9/s","mode":"off"}]}}"#;
        let said: serde_json::Value = serde_json::from_str(&json(limits)).unwrap();
        let policy = &said["policies"][0];
        assert_eq!(
            (&policy["limits"][0]["name"], &policy["limits"][0]["debt"]),
            (&"a".into(), &serde_json::Value::Null)
        );
        assert_eq!((&policy["findings"][0]["limit"], &policy["findings"][0]["level"]), (&"b".into(), &"note".into()));
    }

    proptest! {
        #[test]
        fn texts_read_back(errors in prop::collection::vec(any::<String>(), 0..3), controls in "[\\x00-\\x7f]*") {
            let errors = [errors, vec![controls]].concat();
            let answer = Answer { errors: errors.clone(), ..Answer::default() };
            let said: serde_json::Value = serde_json::from_str(&answer.to_json()).unwrap();
            prop_assert_eq!(said, serde_json::json!({ "errors": errors, "policies": [] }));
        }
    }
}
