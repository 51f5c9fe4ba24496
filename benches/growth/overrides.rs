//! Overrides of keys: their memory in an isolate, and in the registry.

use std::hint::black_box;

use tollgate::key_hash::KeyHasher;
use tollgate::policy::Policies;
use tollgate::policy::overrides::{History, InForce, Overrides, Selector, WrittenOverride};
use tollgate::protocol::{OverrideChange, OverridesChange, Poll, deployment_id};
use tollgate::registry::{MAX_OVERRIDES, RESERVED_FOR_BANS, Registry};

use crate::measure::{head, least_nanos, line, nanos_each, timed, weighed};
use crate::object::NOW;

pub(crate) fn of_keys() {
    head(
        "Keys with numbers of their own",
        &["isolate, bytes each", "to find, ns", "registry, bytes each", "to set, µs"],
    );
    for count in [1_000, 10_000, MAX_OVERRIDES] {
        let (bytes, overrides) = weighed(|| isolate(count));
        let policies = Policies::parse(POLICIES).expect("a policy");
        let policy = policies.get("api").expect("it is there");
        let mut number = 0;
        let to_find = least_nanos(FOUND, || {
            for _ in 0..FOUND {
                number = (number + 7_919) % count;
                black_box(overrides.apply(policy, key(number).as_bytes(), NOW + 1));
            }
        });
        let (registry_bytes, (took, mut registry)) = weighed(|| timed_registry(count));
        let is_room = count < MAX_OVERRIDES;
        assert_eq!(set(&mut registry, count, 1).is_ok(), is_room, "more than {MAX_OVERRIDES} are refused");
        line(
            &count.to_string(),
            [
                format!("{:.0}", bytes as f64 / count as f64),
                format!("{to_find:.0}"),
                format!("{:.0}", registry_bytes as f64 / count as f64),
                format!("{:.1}", took / 1_000.0),
            ],
        );
    }
}

fn isolate(count: usize) -> Overrides {
    let text = r#"{"policy":"api","key":"k","rate":"100/1m burst 200","until":1800000000000}"#;
    let WrittenOverride { plan, until, .. } = WrittenOverride::parse("it", text).expect("an override");
    let mut history = History::default();
    history.push(NOW, Some(InForce { plan, until }), None);
    let history = history.encode();
    let overrides = Overrides::default();
    for first in (0..count).step_by(PAGE) {
        let mut records = Vec::new();
        for number in first..first + PAGE {
            Selector::key("api", KeyHasher::default().hash(key(number).as_bytes())).record(&history, &mut records);
        }
        overrides.update(&records).expect("well-formed records");
    }
    overrides
}

/// Nanoseconds to set one of the last ones, and the registry.
fn timed_registry(count: usize) -> (f64, Registry) {
    let mut registry = Registry::default();
    let poll = Poll {
        as_of: 0,
        born_at: 0,
        deployment: deployment_id(POLICIES).into(),
        policies: Some(POLICIES),
        overrides_at: None,
        is_loading: false,
    };
    registry.poll(&poll, NOW).expect("policies");
    let times = (0..count).step_by(AT_ONCE).map(|first| {
        let (took, set) = timed(|| set(&mut registry, first, AT_ONCE));
        set.expect("there is room");
        nanos_each(took, AT_ONCE)
    });
    let latest = times.collect::<Vec<_>>().split_off(count / AT_ONCE - LATEST);
    (latest.into_iter().fold(f64::INFINITY, f64::min), registry)
}

fn set(registry: &mut Registry, first: usize, count: usize) -> Result<(), ()> {
    let one = |number| {
        // The last ones are for bans.
        let is_ban = first + count > MAX_OVERRIDES - RESERVED_FOR_BANS;
        let plan = if is_ban { r#""banned":true"# } else { r#""rate":"100/1m burst 200""# };
        format!(r#"{{"policy":"api","key":"{}",{plan},"until":1800000000000}}"#, key(number))
    };
    let all: Vec<_> = (first..first + count).map(one).collect();
    let text = format!(r#"{{"overrides":[{}]}}"#, all.join(","));
    let changes = OverrideChange::parse_all(&text).map_err(drop)?;
    let change = OverridesChange { changes, by: "ops", only: None, carry: None, is_dry_run: false };
    registry.change_overrides(change, NOW).map(drop).map_err(drop)
}

fn key(number: usize) -> String {
    format!("customer-{number}@example.com")
}

const POLICIES: &str = r#"{"api":"10/1s"}"#;
const PAGE: usize = 1_000;
const FOUND: usize = 1_000;
const AT_ONCE: usize = 100;
/// The fastest of this many runs counts.
const LATEST: usize = 9;
