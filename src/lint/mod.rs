//! The lint for the npm package: JSON in, JSON out, from a WebAssembly module that imports only the offsets of time zones.
//!
//! [`lint`] replaces a question by its answer: see [`exchange`](crate::exchange).
#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

#[cfg(target_arch = "wasm32")]
mod arena;

use serde::Serialize;

use crate::exchange::replace;
use crate::policy::{Lint, Policies};

/// Replaces the text, which is the JSON of `POLICIES`, by its lint, and returns the length.
#[unsafe(no_mangle)]
pub extern "C" fn lint() -> usize {
    #[cfg(all(target_arch = "wasm32", tollgate_module))]
    crate::zones::imported::install();
    replace(answer)
}

/// One of the lists is empty.
#[derive(Default, Serialize)]
struct Answer {
    /// Every error in the policies.
    errors: Vec<String>,
    /// For each policy, by name.
    policies: Vec<Words>,
}

#[derive(Serialize)]
struct Words {
    #[serde(flatten)]
    lint: Lint,
    /// The lint as text.
    text: String,
}

fn answer(text: &str) -> String {
    let answer = match Policies::parse(text) {
        Ok(policies) => {
            let words = policies.iter().map(|policy| policy.lint()).map(|lint| Words { text: lint.to_string(), lint });
            Answer { policies: words.collect(), ..Answer::default() }
        }
        Err(errors) => Answer { errors: errors.iter().map(ToString::to_string).collect(), ..Answer::default() },
    };
    // Serializing it cannot fail.
    serde_json::to_string(&answer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_each_policys_numbers_and_description_or_every_error() {
        let said = answer(r#"{"b":"5/s","a":{"rate":"0/s","capacity":7}}"#);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(said["errors"], serde_json::json!([]));
        let words: Vec<_> = said["policies"].as_array().unwrap().iter().map(|words| &words["text"]).collect();
        let policies = Policies::parse(r#"{"b":"5/s","a":{"rate":"0/s","capacity":7}}"#).unwrap();
        let expected: Vec<_> = policies.iter().map(|policy| policy.lint().to_string()).collect();
        assert_eq!(words, expected.iter().collect::<Vec<_>>());
        assert_eq!(said["policies"][0]["limits"][0]["burst"], 7);
        let wrong =
            r#"{"errors":["POLICIES.a: must be a table of fields such as rate and period, not 5"],"policies":[]}"#;
        assert_eq!(answer(r#"{"a":5}"#), wrong);
    }
}
