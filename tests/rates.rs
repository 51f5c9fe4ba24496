//! Rates in text, from tests/rates.json. The package reads the same file.

use std::time::Duration;

use serde::Deserialize;
use tollgate::limit::{Config, Kind};
use tollgate::policy::Policies;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    kind: Option<String>,
    #[serde(flatten)]
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    Numbers { rate: u64, period_ms: u64, capacity: u64 },
    Error { error: String },
}

#[test]
fn each_rate_is_read_exactly_or_refused_with_the_reason() {
    let file: File = serde_json::from_str(include_str!("rates.json")).unwrap();
    assert!(file.cases.len() > 50);
    for Case { text, kind, expected } in file.cases {
        let kind = kind.unwrap_or_else(|| "token_bucket".to_owned());
        let policies = Policies::parse(&serde_json::json!({ "p": { "rate": text, "kind": kind } }).to_string());
        match expected {
            Expected::Numbers { rate, period_ms, capacity } => {
                let policies = policies.unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
                let kind = if kind == "fixed_window" { Kind::FixedWindow } else { Kind::TokenBucket };
                let expected =
                    Config { kind, capacity, ..Config::token_bucket(rate, Duration::from_millis(period_ms)) };
                assert_eq!(policies.get("p").unwrap().limits()[0].limit().config(), &expected, "{text}");
            }
            Expected::Error { error } => {
                let errors = policies.err().unwrap_or_else(|| panic!("{text} is read"));
                assert!(errors.to_string().contains(&error), "{text}: {errors}, not {error}");
            }
        }
    }
}
