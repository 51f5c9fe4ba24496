//! Policies of a registry: each change has its moment, whenever the bucket is next asked.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Verb};
use tollgate::policy::{NamedLimit, Policies, Policy, Timeline};
use tollgate::protocol::{Action, ObjectReply};

use crate::world::{DAY_MS, START, World, signed};
use crate::{chance, oracle};

const CONSUME: Action = Action::Take(Verb::Consume);

fn policy(json: &str) -> Policy {
    Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

fn world(policy: &Arc<Policy>) -> World {
    World { as_of: Some(policy.timeline().since()), ..World::empty(policy) }
}

/// The frontend learns of a version.
fn learn(world: &mut World, policy: &Arc<Policy>) {
    world.policy = Arc::clone(policy);
    world.as_of = Some(policy.timeline().since());
}

/// 100 a second, lowered to 1 while nothing was asked for three seconds: what came back before counts at 100, and after at 1.
#[test]
fn refills_before_a_change_count_at_the_old_numbers_and_after_it_at_the_new() {
    for crashes in [false, true] {
        let before = Arc::new(
            policy(r#"{"rate":100,"period":"1s","capacity":1000,"write_ahead":0}"#).in_force_since(START - DAY_MS),
        );
        let mut world = world(&before);
        world.decided(CONSUME, vec![1_000]);
        let changed_at = START + 2_000;
        let lowered = policy(r#"{"rate":1,"period":"1s","capacity":1000,"write_ahead":0}"#);
        learn(&mut world, &Arc::new(lowered.succeeding(&before, changed_at, Carry::AsIs)));
        world.now = START + 5_000;
        if crashes {
            world.crash(0);
        }
        assert_eq!(world.levels(), [203]);
    }
}

#[test]
fn a_frontend_with_an_older_version_is_told_the_newer_and_changes_nothing() {
    for crashes in [false, true] {
        let old = Arc::new(policy(r#"{"rate":0,"period":"1s","capacity":100}"#).in_force_since(START - 10));
        let new = policy(r#"{"rate":0,"period":"1s","capacity":50}"#).succeeding(&old, START - 5, Carry::AsIs);
        let new = Arc::new(new);
        let mut world = world(&new);
        world.decided(CONSUME, vec![10]);
        if crashes {
            world.crash(0);
        }
        let (storage, rows_written) = (world.storage.clone(), world.rows_written);
        learn(&mut world, &old);
        for action in [CONSUME, Action::Look(Verb::Consume), Action::Hold(7), Action::Take(Verb::Reset)] {
            let ObjectReply::PolicyOutdated { as_of, definitions } = world.ask(action, Some(vec![1]), None) else {
                panic!("{action:?}")
            };
            assert_eq!(as_of, START - 5);
            let newer = Policy::from_definition(&definitions).unwrap();
            assert_eq!((newer.numbers(), newer.timeline().since()), (new.numbers(), START - 5));
        }
        assert_eq!((&world.storage, world.rows_written), (&storage, rows_written));
        learn(&mut world, &new);
        assert_eq!(world.levels(), [40]);
    }
}

/// An override was removed: the base policy has an older version than the bucket, and the frontend knows more.
#[test]
fn a_frontend_that_knows_more_may_go_back_to_an_older_version() {
    let base = Arc::new(policy(r#"{"rate":1,"period":"1s","capacity":100}"#).in_force_since(START - 20));
    let more = Arc::new(policy(r#"{"rate":10,"period":"1s","capacity":100}"#).in_force_since(START - 10));
    let mut world = world(&more);
    world.decided(CONSUME, vec![100]);
    world.now += 2_000;
    learn(&mut world, &base);
    world.as_of = Some(START + 1_000);
    assert_eq!(world.levels(), [2], "as if it had been lowered at once");
    world.now += 2_000;
    assert_eq!(world.levels(), [4]);
}

/// The hold was made under the older version; its batch ends as it began.
#[test]
fn a_batch_commits_and_aborts_although_its_policy_has_changed() {
    for commits in [true, false] {
        let old = Arc::new(policy(r#"{"rate":0,"period":"1s","capacity":100}"#).in_force_since(START - 10));
        let new = policy(r#"{"rate":0,"period":"1s","capacity":50}"#).succeeding(&old, START, Carry::AsIs);
        let new = Arc::new(new);
        let mut world = world(&old);
        world.decided(Action::Hold(7), vec![10]);
        learn(&mut world, &new);
        assert_eq!(world.levels(), [40]);
        learn(&mut world, &old);
        let end = if commits { Action::Settle(7) } else { Action::Cancel(7) };
        let ObjectReply::Decided(decided) = world.ask(end, None, None) else { panic!() };
        assert!(decided.decision().is_allow());
        learn(&mut world, &new);
        // The 100 were clipped to 50 when the new version came, and the held tokens were of those.
        assert_eq!(world.levels(), [if commits { 40 } else { 50 }]);
    }
}

#[test]
fn what_a_timeline_forgets_never_leaves_a_bucket_with_more() {
    let version = |capacity: u32| policy(&format!(r#"{{"rate":0,"period":"1s","capacity":{capacity}}}"#));
    let mut latest = Arc::new(version(100).in_force_since(START));
    let mut world = world(&latest);
    world.decided(CONSUME, vec![10]);
    let mut at = START;
    for capacity in (0..100).map(|index| if index == 3 { 20 } else { 100 }) {
        at += 1;
        latest = Arc::new(version(capacity).succeeding(&latest, at, Carry::AsIs));
    }
    assert_eq!(latest.timeline().earlier().len(), Timeline::MAX_EARLIER);
    world.now = START + 1_000;
    learn(&mut world, &latest);
    assert_eq!(world.levels(), [20]);
}

#[test]
fn a_timeline_that_is_too_long_loses_first_what_no_bucket_without_an_override_needs() {
    let version = |rate: u32| policy(&format!(r#"{{"rate":{rate},"period":"1s","capacity":10}}"#));
    let mut latest = version(1).in_force_since(START);
    let mut succeed = |at: i64| {
        latest = version(1).succeeding(&latest, START + at, Carry::AsIs);
        latest.timeline().earlier().iter().map(|version| version.since - START).collect::<Vec<_>>()
    };
    for index in 1..=20 {
        succeed(1_000 * index);
    }
    // The last of those was in force for ten seconds, in which any bucket from before it fills.
    for index in 0..43 {
        succeed(30_000 + index);
    }
    let kept = succeed(30_043);
    assert_eq!((kept.len(), kept[0]), (Timeline::MAX_EARLIER, 0));
    let kept = succeed(30_044);
    assert_eq!((kept.len(), kept[0]), (Timeline::MAX_EARLIER + 1 - 20, 20_000));
}

/// A registry was lost, or the policy is known to it for the first time: what the bucket did before is kept.
#[test]
fn a_bucket_of_a_policy_without_a_registry_follows_the_first_version() {
    let unregistered = Arc::new(policy(r#"{"rate":1,"period":"1s","capacity":100}"#));
    let mut world = World::empty(&unregistered);
    world.decided(CONSUME, vec![100]);
    let first = policy(r#"{"rate":1,"period":"1s","capacity":100}"#).in_force_since(START + 1_000);
    let second = policy(r#"{"rate":10,"period":"1s","capacity":100}"#);
    let second = Arc::new(second.succeeding(&first, START + 3_000, Carry::AsIs));
    learn(&mut world, &second);
    world.now = START + 5_000;
    assert_eq!(world.levels(), [3 + 20]);
    // And back: a frontend without a registry (a version from before there was one).
    world.policy = unregistered;
    world.as_of = None;
    world.now = START + 6_000;
    assert_eq!(world.levels(), [33], "refills up to now count at the numbers it had");
    learn(&mut world, &second);
    world.now = START + 7_000;
    assert_eq!(world.levels(), [43], "the version of the registry was in force all the time");
}

/// Versions of a policy of one limit, or two.
const VERSIONS: [&str; 7] = [
    r#"{"limits":[{"name":"a","rate":10,"period":"1s","capacity":40,"write_ahead":0,"max_debt":5}]}"#,
    r#"{"limits":[{"name":"a","rate":3,"period":"1s","capacity":100,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","rate":7,"period":"3s","capacity":9,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","rate":0,"period":"1s","capacity":30,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","rate":50,"period":"1s","capacity":50,"write_ahead":0},{"name":"b","rate":1,"period":"1s","capacity":20,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"b","rate":2,"period":"1s","capacity":15,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","kind":"fixed_window","rate":20,"period":"2s","capacity":30,"offset":"0s","write_ahead":0}]}"#,
];

#[derive(Clone, Debug)]
enum Step {
    Change(usize, Carry),
    Consume(u64),
    /// By a frontend that does not know the latest changes.
    ConsumeUnder(usize, u64),
    Look,
    Wait(i64),
    Clean,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let carry = prop_oneof![3 => Just(Carry::AsIs), 1 => (0..4_usize).prop_map(|index| Carry::ALL[index])];
    prop_oneof![
        4 => (0..VERSIONS.len(), carry).prop_map(|(version, carry)| Step::Change(version, carry)),
        6 => prop_oneof![0..5_u64, 0..40_u64].prop_map(Step::Consume),
        1 => (0..6_usize, 0..10_u64).prop_map(|(back, cost)| Step::ConsumeUnder(back, cost)),
        1 => Just(Step::Look),
        6 => prop_oneof![0..400_i64, 0..5_000_i64, 0..60_000_i64].prop_map(Step::Wait),
        1 => Just(Step::Clean),
        2 => Just(Step::Crash),
    ]
}

/// The limits of the latest version, and after them those of earlier versions that are not full yet; carried over when the
/// policy changed.
struct Exact(Vec<(Option<String>, Oracle)>);

type Oracle = oracle::Model<i128>;

impl Exact {
    fn new(policy: &Policy, now: i64) -> Self {
        let fresh =
            |limit: &NamedLimit| (limit.name().map(str::to_owned), Oracle::new(*limit.limit().config(), now, 0));
        Self(policy.limits().iter().map(fresh).collect())
    }

    fn change(&mut self, policy: &Policy, carry: Carry, now: i64) {
        let old = std::mem::replace(self, Self::new(policy, now)).0;
        for (name, old) in old {
            let mut limits = self.0.iter_mut();
            match limits.find(|(other, limit)| *other == name && limit.config.kind == old.config.kind) {
                Some((_, limit)) if limit.config == old.config && carry != Carry::Reset => *limit = old,
                Some((_, limit)) => *limit = old.carry(limit.config, carry, now, 0),
                None if old.full_at(now) != Some(now) => self.0.push((name, old)),
                None => {}
            }
        }
    }

    /// Whether it is granted.
    fn consume(&mut self, policy: &Policy, cost: u64, now: i64) -> bool {
        let (awake, _) = self.0.split_at_mut(policy.limits().len());
        let is_granted = awake.iter().all(|(_, limit)| limit.peek(now, cost, Verb::Consume).is_allow());
        for (_, limit) in awake.iter_mut().filter(|_| is_granted) {
            limit.ask(now, cost, Verb::Consume);
        }
        is_granted
    }

    fn levels(&self, policy: &Policy, now: i64) -> Vec<i64> {
        let awake = self.0.iter().take(policy.limits().len());
        awake.map(|(_, limit)| signed(limit.remaining(now), limit.owed(now))).collect()
    }
}

proptest! {
    #![proptest_config(chance::config(4_000))]

    /// Whenever a bucket is asked, and however often its policy changed and its object crashed in between, it stands as if each
    /// change had been made to it at once, in exact rationals.
    #[test]
    fn a_bucket_stands_as_if_each_change_had_been_made_to_it_at_once(
        steps in prop::collection::vec(step(), 1..60).prop_map(|steps| [steps, vec![Step::Look]].concat()),
    ) {
        let first = Arc::new(policy(VERSIONS[0]).in_force_since(START - 1_000));
        let mut world = world(&first);
        // A bucket begins when it is first asked, full.
        let mut exact: Option<Exact> = None;
        let mut versions = vec![first];
        // The version that the bucket is at.
        let mut followed = 0;
        for step in steps {
            let latest = Arc::clone(versions.last().unwrap());
            match step {
                Step::Change(version, carry) => {
                    let since = (latest.timeline().since() + 1).max(world.now);
                    let latest = Arc::new(policy(VERSIONS[version]).succeeding(&latest, since, carry));
                    world.now = since;
                    if let Some(exact) = &mut exact {
                        exact.change(&latest, carry, since);
                    }
                    learn(&mut world, &latest);
                    versions.push(latest);
                }
                Step::Consume(cost) => {
                    let is_granted = world.decided(CONSUME, vec![cost; latest.limits().len()]).decision().is_allow();
                    let exact = exact.get_or_insert_with(|| Exact::new(&latest, world.now));
                    prop_assert_eq!(exact.consume(&latest, cost, world.now), is_granted);
                    followed = versions.len() - 1;
                }
                Step::ConsumeUnder(back, cost) => {
                    // A version with the same numbers need not be written, and so may be forgotten in a crash.
                    let numbers = versions[followed].numbers();
                    let mut others = versions[..followed].iter().rev().skip_while(|old| old.numbers() == numbers);
                    let Some(old) = others.nth(back) else { continue };
                    learn(&mut world, old);
                    let reply = world.ask(CONSUME, Some(vec![cost; old.limits().len()]), None);
                    let as_of = old.timeline().since();
                    let is_told = matches!(reply, ObjectReply::PolicyOutdated { as_of: newer, .. } if newer > as_of);
                    prop_assert!(is_told, "{reply:?}");
                    learn(&mut world, &latest);
                }
                Step::Look => {
                    let exact = exact.get_or_insert_with(|| Exact::new(&latest, world.now));
                    prop_assert_eq!(world.levels(), exact.levels(&latest, world.now));
                    followed = versions.len() - 1;
                }
                Step::Wait(ms) => world.now += ms,
                Step::Clean => world.clean(),
                Step::Crash => world.crash(0),
            }
            // Forgotten because it is full, or never stored because it was.
            if matches!(step, Step::Clean | Step::Crash) && !world.has_row() {
                (exact, followed) = (None, 0);
            }
        }
        let latest = versions.last().unwrap();
        world.now += 100 * DAY_MS;
        let configs = latest.limits().iter().map(|named| named.limit().config());
        for (config, level) in configs.zip(world.levels()) {
            prop_assert!(config.rate == 0 || level == config.capacity.cast_signed());
        }
    }
}
