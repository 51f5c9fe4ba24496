//! The shared vectors, `tests/vectors/*.json`, on the core itself. The package and the service read the same files.

mod anywhere;
#[path = "vectors/files.rs"]
mod files;

use std::time::Duration;

use anywhere::test;
use serde::Deserialize;
use tollgate::limit::{Carry, Config, Decision, Kind, Limit, Moment, Part, RollingWindow, Snapshot, Verb, decide_all};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default, rename = "why")]
    _why: String,
    limit: Numbers,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    #[serde(default, rename = "name")]
    _name: String,
    kind: String,
    rate: u64,
    period_ms: u64,
    capacity: Option<u64>,
    #[serde(default)]
    max_debt: u64,
    initial: Option<u64>,
    offset_ms: Option<u64>,
    grains: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    at: i64,
    verb: String,
    cost: u64,
    max_wait_ms: Option<u64>,
    expect: Expected,
    remaining: u64,
    #[serde(default, rename = "why")]
    _why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Expected {
    Allow { tokens: u64, ready_at: i64 },
    Wait { retry_at: i64 },
    Never { max: u64 },
}

#[test]
fn every_vector_is_answered_to_the_millisecond() {
    let mut count = 0;
    for (name, text) in files::ALL {
        let file: File = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        for case in &file.cases {
            count += run(case);
        }
    }
    assert!(count > 0, "no vectors");
    println!("{count} steps");
}

/// Several limits in one request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Several {
    name: String,
    limits: Vec<Numbers>,
    steps: Vec<SeveralStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeveralStep {
    at: i64,
    verb: String,
    costs: Vec<u64>,
    max_wait_ms: Option<u64>,
    expect: Expected,
    remaining: Vec<u64>,
    #[serde(default, rename = "why")]
    _why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeveralFile {
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<Several>,
}

#[test]
fn a_cost_of_zero_beside_another_does_not_decide() {
    let file: SeveralFile = serde_json::from_str(include_str!("vectors/several/zero_cost.json")).unwrap();
    for Several { name, limits, steps } in &file.cases {
        let limits: Vec<_> = limits.iter().map(Numbers::limit).collect();
        let mut states: Vec<_> = limits.iter().map(|limit| limit.new_state(steps[0].at, 0)).collect();
        for (index, step) in steps.iter().enumerate() {
            let place = format!("{name}, step {}", index + 1);
            let parts = limits.iter().zip(&states).zip(&step.costs);
            let mut parts: Vec<_> = parts.map(|((limit, state), &cost)| Part::new(limit, *state, cost)).collect();
            let decision = decide_all(&mut parts, step.at, verb(&step.verb, step.max_wait_ms));
            assert_eq!(decision, step.expect.decision(), "{place}");
            states = parts.iter().map(|part| part.state).collect();
            let remaining: Vec<_> = parts.iter().map(|part| part.limit.remaining(&part.state, step.at)).collect();
            assert_eq!(remaining, step.remaining, "{place}");
        }
    }
    assert!(file.cases.iter().map(|case| case.steps.len()).sum::<usize>() > 15);
}

/// A bucket carried over from one limit to another.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Carried {
    name: String,
    old: Numbers,
    tokens: i64,
    drops: u64,
    new: Numbers,
    expect: Level,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    tokens: i64,
    drops: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CarryFile {
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<Carried>,
}

#[test]
fn every_bucket_is_carried_over_to_the_drop() {
    const AT: i64 = 9_000;
    let file: CarryFile = serde_json::from_str(include_str!("vectors/carry/as_is.json")).unwrap();
    for Carried { name, old, tokens, drops, new, expect } in &file.cases {
        let (old, new) = (old.limit(), new.limit());
        let snapshot = Snapshot { tokens: *tokens, drops: *drops, at: AT };
        let state = old.restored(&snapshot).unwrap_or_else(|| panic!("{name}: no such bucket"));
        let Snapshot { tokens, drops, .. } = new.snapshot(&new.carry(&old, state, Carry::AsIs, AT, 0));
        assert_eq!(Level { tokens, drops }, *expect, "{name}");
    }
    assert!(file.cases.len() > 10);
}

fn run(case: &Case) -> usize {
    if let Some(window) = case.limit.rolling_window() {
        return run_rolling(case, &window);
    }
    let limit = case.limit.limit();
    let mut state = limit.new_state(case.steps[0].at, 0);
    for (index, step) in case.steps.iter().enumerate() {
        let place = format!("{}, step {}", case.name, index + 1);
        let verb = step.verb();
        let (decision, next) = limit.decide(state, step.at, step.cost, verb);
        assert_eq!(decision, step.decision(), "{place}");
        if step.verb != "peek" {
            state = next;
        }
        assert_eq!(limit.remaining(&state, step.at), step.remaining, "{place}: remaining");
    }
    case.steps.len()
}

fn run_rolling(case: &Case, window: &RollingWindow) -> usize {
    let mut state = window.state_in(case.steps[0].at, vec![Moment::default(); window.max_moments()]).expect("room");
    for (index, step) in case.steps.iter().enumerate() {
        let place = format!("{}, step {}", case.name, index + 1);
        let mut next = state.clone();
        let decision = window.decide(&mut next, step.at, step.cost, step.verb());
        assert_eq!(decision, step.decision(), "{place}");
        if step.verb() == Verb::Consume {
            assert_eq!(window.peek(&state, step.at, step.cost), decision, "{place}: peek");
        }
        if step.verb != "peek" {
            state = next;
        }
        assert_eq!(window.remaining(&state, step.at), step.remaining, "{place}: remaining");
    }
    case.steps.len()
}

impl Numbers {
    fn rolling_window(&self) -> Option<RollingWindow> {
        let Self { kind, rate, period_ms, grains, .. } = self;
        let period = Duration::from_millis(*period_ms);
        (kind == "rolling_window").then(|| match grains {
            Some(grains) => RollingWindow::with_grains(*rate, period, *grains).expect("a valid window"),
            None => RollingWindow::new(*rate, period).expect("a valid window"),
        })
    }

    fn limit(&self) -> Limit {
        let kind = match self.kind.as_str() {
            "token_bucket" => Kind::TokenBucket,
            "fixed_window" => Kind::FixedWindow,
            "first_use_window" => Kind::FirstUseWindow,
            other => panic!("unknown kind {other}"),
        };
        let Self { rate, period_ms, capacity, max_debt, initial, offset_ms, .. } = *self;
        let capacity = capacity.unwrap_or(rate);
        Limit::new(&Config {
            kind,
            rate,
            period_ms,
            capacity,
            max_debt,
            initial,
            offset_ms,
            calendar: None,
            is_soft: false,
        })
        .expect("a valid limit")
    }
}

impl Step {
    fn verb(&self) -> Verb {
        verb(&self.verb, self.max_wait_ms)
    }

    fn decision(&self) -> Decision {
        self.expect.decision()
    }
}

fn verb(word: &str, max_wait_ms: Option<u64>) -> Verb {
    match word {
        "consume" | "peek" => Verb::Consume,
        "reserve" => Verb::Reserve { max_wait_ms },
        "borrow" => Verb::Borrow { max_wait_ms },
        "charge" => Verb::Charge,
        "consume_up_to" => Verb::ConsumeUpTo,
        "refund" => Verb::Refund,
        "reset" => Verb::Reset,
        other => panic!("unknown verb {other}"),
    }
}

impl Expected {
    const fn decision(&self) -> Decision {
        match *self {
            Self::Allow { tokens, ready_at } => Decision::Allow { tokens, ready_at },
            Self::Wait { retry_at } => Decision::Wait { retry_at },
            Self::Never { max } => Decision::Never { max },
        }
    }
}
