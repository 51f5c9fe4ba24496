//! Policies that change, and versions that alternate while a deployment spreads.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Carry, Config, Limit, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, ObjectReply, ObjectRequest};

use crate::chance;
use crate::model::Model;
use crate::world::{DAY_MS, START, World};

#[test]
fn costs_that_do_not_fit_the_limits_are_an_error() {
    let two = Policies::parse(
        r#"{"p":{"limits":[{"name":"a","rate":1,"period":"1day"},{"name":"b","rate":1,"period":"1day"}]}}"#,
    );
    let asked = [Arc::clone(two.unwrap().get("p").unwrap())];
    let request = |costs| ObjectRequest {
        action: Action::Take(Verb::Consume),
        request_id: None,
        costs,
        shadow_costs: Vec::new(),
        known: None,
        has_consequences: false,
        lease: None,
    };
    let mut ledger = Ledger::new([], 0);
    for costs in [vec![], vec![vec![1]], vec![vec![1, 0, 0]], vec![vec![1, 0], vec![1]]] {
        assert!(ledger.ask(&asked, &request(costs), START, || None).is_err());
    }
    assert!(ledger.ask(&asked, &request(vec![vec![1, 0]]), START, || None).is_ok());
    // Nor can a reservation be opened without a random id: another might have the same.
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    let request = ObjectRequest { action: reserve, ..request(vec![vec![1, 0]]) };
    assert!(ledger.ask(&asked, &request, START, || None).is_err());
}

#[test]
fn a_spent_bucket_is_not_forgotten_when_its_numbers_change() {
    let policy = |rate: u32| {
        let json = format!(
            r#"{{"p":{{"rate":{rate},"period":"1day","capacity":100,"write_ahead":0,"unsettled":"refund","reservation_ttl":"1m"}}}}"#
        );
        Policies::parse(&json).unwrap()
    };
    let before = policy(10);
    let mut world = World::new(&before, "p");
    world.decided(Action::Take(Verb::Consume), vec![98]);
    world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![1]);
    let after = policy(11);
    let mut other = world.restarted_with(after.get("p").unwrap());
    other.now = START + 60_000;
    other.clean();
    assert_eq!(other.levels(), [2]);
    other.crash(0);
    assert_eq!(other.levels(), [2], "and that is written");
}

#[test]
fn a_change_of_numbers_carries_each_limit_over_by_its_name() {
    let two = |a: u32, b: u32, names: [&str; 2]| {
        let limit = |name: &str, rate: u32| format!(r#"{{"name":"{name}","rate":{rate},"period":"1day"}}"#);
        let limits = [limit(names[0], a), limit(names[1], b)];
        Policies::parse(&format!(r#"{{"p":{{"limits":[{}]}}}}"#, limits.join(","))).unwrap()
    };
    let before = two(10, 20, ["a", "b"]);
    let mut world = World::new(&before, "p");
    world.decided(Action::Take(Verb::Consume), vec![1, 2]);
    let after = two(30, 100, ["b", "c"]);
    let mut other = world.restarted_with(after.get("p").unwrap());
    assert_eq!(other.levels(), [28, 100], "2 of b are spent, c is new, a is gone");
    other.crash(0);
    assert_eq!(other.levels(), [28, 100], "and that was written");
}

fn policy(json: &str) -> Arc<Policy> {
    Arc::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

/// Slots are held by their reservations, and a limit that the policy lacks need not start with its `initial`.
#[test]
fn a_row_is_deleted_although_its_policy_has_lost_a_limit_that_never_fills() {
    let tokens = r#"{"name":"a","rate":"10/1s"}"#;
    let list = |more: &str| policy(&format!(r#"{{"limits":[{tokens},{more}]}}"#));
    let alone = policy(&format!(r#"{{"limits":[{tokens}]}}"#));
    let slots = |capacity: u32| list(&format!(r#"{{"name":"s","kind":"slots","capacity":{capacity}}}"#));
    let initial = list(r#"{"name":"b","rate":1,"period":"1s","capacity":10,"initial":3}"#);
    for (first, costs) in [(initial, vec![1, 1]), (slots(5), vec![1, 0])] {
        for restarts in [false, true] {
            let mut world = World::empty(&first);
            world.decided(Action::Take(Verb::Consume), costs.clone());
            world.policy = Arc::clone(&alone);
            world.decided(Action::Take(Verb::Consume), vec![1]);
            if restarts {
                world.crash(usize::MAX);
            }
            world.now += DAY_MS;
            world.clean();
            assert!(world.storage.is_empty(), "restarts: {restarts}, {}", first.definition());
        }
    }
}

/// `as_is` leaves five of ten slots in the account, which are those of all ten.
#[test]
fn slots_that_were_more_in_between_do_not_keep_the_row() {
    let version = |capacity: u32| {
        let slots = format!(r#"{{"name":"s","kind":"slots","capacity":{capacity}}}"#);
        Policy::clone(&policy(&format!(r#"{{"limits":[{{"name":"a","rate":"10/1s"}},{slots}]}}"#)))
    };
    let first = version(5).in_force_since(START - 9);
    let more = version(10).succeeding(&first, START + 1, Carry::AsIs);
    let last = version(8).succeeding(&more, START + 2, Carry::default());
    for restarts in [false, true] {
        let mut world = World { as_of: Some(START - 9), ..World::empty(&Arc::new(first.clone())) };
        world.decided(Action::Take(Verb::Consume), vec![1, 0]);
        (world.now, world.as_of, world.policy) = (START + 3, Some(START + 2), Arc::new(last.clone()));
        world.decided(Action::Take(Verb::Consume), vec![1, 0]);
        if restarts {
            world.crash(usize::MAX);
        }
        world.now += DAY_MS;
        world.clean();
        assert!(world.storage.is_empty(), "restarts: {restarts}");
    }
}

/// Its row has the limits that the policy lacks, too.
#[test]
fn a_limit_without_a_name_does_not_take_the_place_of_one_that_the_policy_had_lost() {
    let [both, first, nameless] = [
        r#"{"limits":[{"name":"a","rate":"10/1h","write_ahead":0},{"name":"b","rate":"5/1h","write_ahead":0}]}"#,
        r#"{"limits":[{"name":"a","rate":"10/1h","write_ahead":0}]}"#,
        r#"{"rate":"5/1h","write_ahead":0}"#,
    ];
    for restarts in [false, true] {
        let mut world = World::empty(&policy(both));
        world.decided(Action::Take(Verb::Consume), vec![10, 1]);
        for json in [first, nameless] {
            if restarts {
                world.crash(0);
            }
            world.policy = policy(json);
            assert_eq!(world.levels(), [0], "restarts: {restarts}");
        }
    }
}

/// What expires meanwhile is found by a request for another policy of the key, which reads the bucket under the numbers in its row.
#[test]
fn a_smaller_plan_pays_for_a_lease_what_it_has_whichever_policy_of_the_key_is_asked_first() {
    let version = |capacity: u64| {
        let a = format!(r#"{{"name":"a","rate":0,"period":"1s","capacity":{capacity},"write_ahead":0}}"#);
        let b = r#"{"name":"b","rate":0,"period":"1s","capacity":100,"write_ahead":0}"#;
        policy(&format!(r#"{{"limits":[{a},{b}],"lease":"10s","unsettled":"refund","reservation_ttl":"1s"}}"#))
    };
    let other = Policies::parse(r#"{"q":"1/1s"}"#).unwrap();
    for asks_other in [false, true] {
        let (large, small) = (version(1_000), version(550));
        let mut world = World::empty(&large);
        world.decided(Action::Take(Verb::Consume), vec![500, 0]);
        assert!(
            matches!(world.lease(vec![100, 10], Vec::new()), ObjectReply::Decided(leased) if leased.lease.is_some())
        );
        world.now += 1_000;
        world.policy = Arc::clone(&small);
        world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![0, 1]);
        world.crash(usize::MAX);
        world.now += 2_000;
        if asks_other {
            world.policy = Arc::clone(other.get("q").unwrap());
            world.decided(Action::Take(Verb::Consume), vec![1]);
            world.policy = Arc::clone(&small);
            world.crash(usize::MAX);
        }
        world.now += 10_000;
        assert_eq!(world.levels(), [0, 90], "asks another: {asks_other}");
        world.policy = Arc::clone(&large);
        assert_eq!(world.levels(), [400, 90], "asks another: {asks_other}");
    }
}

/// Versions of one policy, as they may meet in one object while a deployment spreads.
fn versions() -> [[Arc<Policy>; 2]; 6] {
    let limit = |name: &str, rate: u32, capacity: u32, write_ahead: u32| {
        format!(r#"{{"name":"{name}","rate":{rate},"period":"1s","capacity":{capacity},"write_ahead":{write_ahead}}}"#)
    };
    let window = |name: &str, rate: u32| {
        format!(
            r#"{{"name":"{name}","kind":"fixed_window","rate":{rate},"period":"5s","offset":"0s","write_ahead":3}}"#
        )
    };
    let list = |limits: &[String]| format!(r#"{{"limits":[{}]}}"#, limits.join(","));
    let pair = |one: &[String], other: &[String]| [policy(&list(one)), policy(&list(other))];
    [
        // Other numbers: more of both, more of one and less of the other, another block.
        pair(&[limit("a", 3, 20, 4)], &[limit("a", 10, 40, 8)]),
        pair(&[limit("a", 7, 20, 0)], &[limit("a", 3, 50, 5)]),
        pair(&[limit("a", 7, 20, 8)], &[limit("a", 7, 20, 2)]),
        // Another kind.
        pair(&[limit("a", 7, 20, 4)], &[window("a", 20)]),
        // An additional limit, and a different one.
        pair(&[limit("a", 7, 20, 4)], &[limit("a", 7, 20, 4), window("b", 30)]),
        pair(&[limit("a", 7, 20, 4), limit("b", 2, 30, 3)], &[limit("b", 3, 20, 3), window("c", 25)]),
    ]
}

/// A limit of either version, with the laxer of its numbers.
fn laxer(versions: &[Arc<Policy>]) -> Vec<(Option<&str>, Limit)> {
    let mut all: Vec<(Option<&str>, Config)> = Vec::new();
    for named in versions.iter().flat_map(|policy| policy.limits()) {
        let config = *named.limit().config();
        match all.iter_mut().find(|(name, other)| *name == named.name() && other.kind == config.kind) {
            None => all.push((named.name(), config)),
            Some((_, lax)) => {
                (lax.rate, lax.capacity) = (lax.rate.max(config.rate), lax.capacity.max(config.capacity));
            }
        }
    }
    all.into_iter().map(|(name, config)| (name, Limit::new(&config).unwrap())).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Consume(bool, u64),
    Look(bool),
    Wait(i64),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<bool>(), prop_oneof![0..5_u64, 0..40_u64]).prop_map(|(version, cost)| Step::Consume(version, cost)),
        1 => any::<bool>().prop_map(Step::Look),
        4 => prop_oneof![0..400_i64, 0..8_000_i64].prop_map(Step::Wait),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..3_usize).prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Two versions of a policy that alternate grant no more than the laxer of the two, limit by limit: nothing is given away
    /// by going back and forth, until the bucket is forgotten. Nor is a key locked out: in the end everything refills.
    #[test]
    fn versions_that_alternate_grant_no_more_than_the_laxer(
        which in 0..versions().len(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let versions = &versions()[which];
        let mut world = World::empty(&versions[0]);
        let full = || -> Vec<_> {
            laxer(versions).into_iter().map(|(name, limit)| (name, Model::of(vec![limit]))).collect()
        };
        let mut models = full();
        for step in steps {
            match step {
                Step::Consume(version, cost) => {
                    world.policy = Arc::clone(&versions[usize::from(version)]);
                    let limits = world.policy.limits().to_vec();
                    if !world.decided(Action::Take(Verb::Consume), vec![cost; limits.len()]).decision().is_allow() {
                        continue;
                    }
                    for named in limits {
                        let is_same = |name: Option<&str>, model: &Model| {
                            name == named.name() && model.limits[0].config().kind == named.limit().config().kind
                        };
                        let (_, model) = models.iter_mut().find(|(name, model)| is_same(*name, model)).unwrap();
                        model.grant(Verb::Consume, &[cost], world.now);
                    }
                }
                Step::Look(version) => {
                    world.policy = Arc::clone(&versions[usize::from(version)]);
                    world.levels();
                }
                Step::Wait(ms) => world.now += ms,
                Step::FlushIdle => world.flush_idle(),
                Step::Clean => {
                    world.clean();
                    // A bucket that is full under all of them is forgotten.
                    if !world.has_row() {
                        models = full();
                    }
                }
                Step::Crash(arrived) => world.crash(arrived),
            }
        }
        for policy in versions {
            world.policy = Arc::clone(policy);
            world.levels(); // carries over the other version's tokens
            world.now += DAY_MS;
            let full: Vec<_> =
                policy.limits().iter().map(|named| named.limit().config().capacity.cast_signed()).collect();
            prop_assert_eq!(world.levels(), full);
        }
    }
}

const CONSUME: Action = Action::Take(Verb::Consume);

#[test]
fn a_limit_missing_from_one_version_is_unchanged_in_the_next() {
    let both = r#"{"limits":[{"name":"a","rate":1,"period":"1day","capacity":9},{"name":"b","rate":1,"period":"1day","capacity":9}]}"#;
    let one = r#"{"limits":[{"name":"b","rate":1,"period":"1day","capacity":9}]}"#;
    let other_kind = r#"{"limits":[{"name":"a","kind":"fixed_window","rate":1,"period":"1day","capacity":9},{"name":"b","rate":1,"period":"1day","capacity":9}]}"#;
    for other in [one, other_kind] {
        for crashes in [false, true] {
            let (old, new) = (policy(both), policy(other));
            let mut world = World::empty(&old);
            world.decided(CONSUME, vec![5, 2]);
            for version in [&new, &old, &new, &old] {
                world.policy = Arc::clone(version);
                if crashes {
                    world.crash(0);
                }
                let expected = if version.limits().len() == 1 { vec![7] } else { vec![4, 7] };
                assert_eq!(world.levels(), expected);
            }
            // In its row until it is full again.
            world.policy = Arc::clone(&new);
            world.decided(CONSUME, vec![1; new.limits().len()]);
            let long = world.storage["b:p"].len();
            world.now += 9 * DAY_MS;
            world.clean();
            world.crash(0);
            world.decided(CONSUME, vec![1; new.limits().len()]);
            assert!(world.storage["b:p"].len() < long);
        }
    }
}

#[test]
fn a_bucket_is_not_forgotten_before_it_is_full_under_all_versions() {
    let [strict, lax] =
        [20, 40].map(|capacity| policy(&format!(r#"{{"rate":1,"period":"1day","capacity":{capacity}}}"#)));
    let mut world = World::empty(&lax);
    world.decided(CONSUME, vec![2]);
    world.policy = Arc::clone(&strict);
    assert_eq!(world.levels(), [18]);
    for (days, is_there) in [(1, true), (2, false)] {
        world.now = START + days * DAY_MS;
        world.clean();
        assert_eq!(world.has_row(), is_there);
    }
    world.policy = lax;
    assert_eq!(world.levels(), [40]);
}

#[test]
fn cancelling_under_another_version_gives_the_whole_reservation_back() {
    let both = policy(
        r#"{"limits":[{"name":"a","rate":1,"period":"1day","capacity":9},{"name":"b","rate":1,"period":"1day","capacity":9}]}"#,
    );
    let one = policy(r#"{"limits":[{"name":"b","rate":1,"period":"1day","capacity":9}]}"#);
    let mut world = World::empty(&both);
    let id = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![5, 2]).reservation.unwrap().id;
    world.policy = Arc::clone(&one);
    world.ask(Action::Cancel(id), None, None);
    assert_eq!(world.levels(), [9]);
    world.crash(usize::MAX);
    world.policy = both;
    assert_eq!(world.levels(), [9, 9]);
}

#[test]
fn a_smaller_block_applies_from_the_next_request_on() {
    let with_block =
        |write_ahead: u32| policy(&format!(r#"{{"rate":0,"period":"1s","capacity":100,"write_ahead":{write_ahead}}}"#));
    let mut world = World::empty(&with_block(50));
    for _ in 0..3 {
        world.decided(CONSUME, vec![1]); // the second writes 50 fewer than there are
    }
    world.policy = with_block(5);
    assert_eq!(world.levels(), [97]);
    world.crash(usize::MAX);
    assert!(world.levels()[0] >= 92);
}

/// A policy that was parsed before such settings were refused.
#[test]
fn a_block_larger_than_the_capacity_is_clipped_to_it() {
    let json = r#"{"name":"p","numbers":[{"kind":"token_bucket","rate":10,"period_ms":1000,"capacity":100,"max_debt":0,"initial":null,"offset_ms":null}],"write_ahead":[100000],"reservation_ttl_ms":0,"unsettled":"keep"}"#;
    let mut world = World::empty(&Arc::new(Policy::from_definition(json).unwrap()));
    for _ in 0..3 {
        world.decided(CONSUME, vec![1]);
    }
    world.crash(usize::MAX);
    assert!(world.levels()[0] >= -3);
}
