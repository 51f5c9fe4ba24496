//! The memory of 10⁵ overrides: no more than `MEMORY_PER_OVERRIDE` each in an isolate, and a third of the registry's.

#[path = "../benches/decisions/counting.rs"]
mod counting;

use tollgate::key_hash::KeyHasher;
use tollgate::policy::Policies;
use tollgate::policy::overrides::{History, InForce, MEMORY_PER_OVERRIDE, Overrides, Selector, WrittenOverride};
use tollgate::protocol::{OverrideChange, OverridesChange, Poll, deployment_id};
use tollgate::registry::{AUDIT, RESERVED_FOR_BANS, Registry};

#[global_allocator]
static HEAP: counting::Counting = counting::Counting;

const COUNT: usize = 100_000;

/// The registry's page size.
const PAGE: usize = 10_000;

fn page(first: usize, history: &History) -> Vec<u8> {
    let history = history.encode();
    let mut records = Vec::new();
    for number in first..first + PAGE {
        Selector::key("api", KeyHasher::default().hash(format!("customer-{number}").as_bytes()))
            .record(&history, &mut records);
    }
    records
}

#[test]
fn a_hundred_thousand_take_no_more_memory_than_stated() {
    let text = r#"{"policy":"api","key":"k","rate":"1234/1m burst 5000","until":1800000000000}"#;
    let WrittenOverride { plan, until, .. } = WrittenOverride::parse("it", text).unwrap();
    let mut history = History::default();
    history.push(1_790_000_000_000, Some(InForce { plan, until }), None);
    let history_len = history.encode().len();
    assert!(history_len <= 32, "{history_len} bytes for other numbers of one limit");

    let overrides = Overrides::default();
    let before = counting::live_bytes();
    for first in (0..COUNT).step_by(PAGE) {
        overrides.update(&page(first, &history)).unwrap();
    }
    let each = (counting::live_bytes() - before) / i64::try_from(COUNT).unwrap();
    assert_eq!(overrides.len(), COUNT);
    let stated = i64::try_from(MEMORY_PER_OVERRIDE + history_len).unwrap();
    assert!(each <= stated, "{each} bytes, and stated are {stated}");

    // Changed many times over, they cost no more.
    for first in (0..COUNT).step_by(PAGE).chain([0, PAGE, 0]) {
        overrides.update(&page(first, &history)).unwrap();
    }
    let again = (counting::live_bytes() - before) / i64::try_from(COUNT).unwrap();
    assert!(again <= stated, "{again} bytes, and stated are {stated}");
}

#[test]
fn a_busy_key_is_found_without_composing_its_policy_again() {
    let text = r#"{"policy":"api","key":"k","multiple":2}"#;
    let WrittenOverride { plan, until, .. } = WrittenOverride::parse("it", text).unwrap();
    let mut history = History::default();
    history.push(5, Some(InForce { plan, until }), None);
    let overrides = Overrides::default();
    overrides.update(&page(0, &history)).unwrap();
    let policies = Policies::parse(r#"{"api":"100/1m"}"#).unwrap();
    let policy = policies.get("api").unwrap();
    let first = overrides.apply(policy, b"customer-7", 10);
    let before = counting::allocations();
    let again = overrides.apply(policy, b"customer-7", 11);
    assert!(counting::allocations() - before <= 1, "the list of results");
    assert!(std::sync::Arc::ptr_eq(&first, &again));
}

#[test]
fn a_hundred_thousand_leave_the_registry_two_thirds_of_its_memory() {
    let own = r#"{"api":"10/1s"}"#;
    let poll = Poll {
        as_of: 0,
        born_at: 0,
        deployment: deployment_id(own).into(),
        policies: Some(own),
        overrides_at: None,
        is_loading: false,
    };
    let mut registry = Registry::default();
    let mut rows = registry.poll(&poll, 1_790_000_000_000).unwrap().1;
    for first in (0..COUNT).step_by(2_000) {
        let one = |number| {
            // The last ones are for bans.
            let is_ban = first + 2_000 > COUNT - RESERVED_FOR_BANS;
            let plan = if is_ban { r#""banned":true"# } else { r#""rate":"100/1m burst 200""# };
            format!(r#"{{"policy":"api","key":"customer-{number}@example.com",{plan},"until":1800000000000}}"#)
        };
        let all: Vec<_> = (first..first + 2_000).map(one).collect();
        let text = format!(r#"{{"overrides":[{}]}}"#, all.join(","));
        let changes = OverrideChange::parse_all(&text).unwrap();
        let change = OverridesChange { changes, by: "ops", only: None, carry: None, is_dry_run: false };
        rows.extend(registry.change_overrides(change, 1_790_000_000_000).unwrap().1);
    }
    rows.retain(|(name, _)| !name.starts_with(AUDIT));
    rows.sort_unstable(); // as storage lists them
    let each = |before: i64| (counting::live_bytes() - before) / i64::try_from(COUNT).unwrap();
    let before = counting::live_bytes();
    let loaded = Registry::new(KeyHasher::default(), rows.iter().filter_map(|(name, row)| Some((name, row.as_ref()?))));
    assert_eq!((loaded.unreadable_rows().len(), loaded.as_of()), (0, registry.as_of()));
    // 128 MB are for 10⁵. Pointers are twice as long here as in WebAssembly.
    assert!(each(before) <= 400, "{} bytes", each(before));
}
