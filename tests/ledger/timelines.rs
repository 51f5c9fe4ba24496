//! Policies of a registry: each change has its moment, whenever the bucket is next used.

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

/// 100 a second, lowered to 1 during three seconds without requests: refill before counts at 100, and after at 1.
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
fn a_frontend_with_an_older_version_receives_the_newer_and_changes_nothing() {
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
fn a_batch_commits_and_aborts_even_if_its_policy_has_changed() {
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

/// The policy after it has alternated between two versions, one millisecond each.
fn alternated(versions: [&str; 2], times: usize, carry: Carry, from: &Policy) -> Policy {
    let mut latest = from.clone();
    for index in 0..times {
        let since = latest.timeline().since() + 1;
        latest = policy(versions[(index + 1) % 2]).succeeding(&latest, since, carry);
    }
    latest
}

#[test]
fn a_bucket_goes_through_the_smallest_capacity_however_long_ago_it_was() {
    let version = |capacity: u32| policy(&format!(r#"{{"rate":0,"period":"1s","capacity":{capacity}}}"#));
    let mut latest = Arc::new(version(100).in_force_since(START));
    let mut world = world(&latest);
    world.decided(CONSUME, vec![10]);
    let mut at = START;
    for capacity in (0..100).map(|index| if index == 3 { 20 } else { 100 + index }) {
        at += 1;
        latest = Arc::new(version(capacity).succeeding(&latest, at, Carry::AsIs));
    }
    assert_eq!(latest.timeline().earlier().len(), Timeline::MAX_EARLIER);
    world.now = START + 1_000;
    learn(&mut world, &latest);
    assert_eq!(world.levels(), [20]);
}

/// However often a policy alternates, an idle key keeps what it had.
#[test]
fn an_idle_key_loses_nothing_by_many_changes_and_owes_nothing() {
    let versions = ["1000", "2000"].map(|capacity| format!(r#"{{"rate":0,"period":"1s","capacity":{capacity}}}"#));
    let versions = [&*versions[0], &*versions[1]];
    for carry in [Carry::AsIs, Carry::Proportional, Carry::Additive] {
        for times in [62, 64, 66, 128, 130, 500] {
            for taken in [0, 1, 500] {
                let first = Arc::new(policy(versions[0]).in_force_since(START));
                let latest = Arc::new(alternated(versions, times, carry, &first));
                assert!(latest.timeline().earlier().len() <= Timeline::MAX_EARLIER);
                let mut idle = world(&first);
                idle.decided(CONSUME, vec![taken]);
                learn(&mut idle, &latest);
                idle.now = START + 10_000;
                let left = 1_000 - i64::try_from(taken).unwrap();
                assert_eq!(idle.levels(), [left], "{carry:?}, {times} changes, {taken} taken");
            }
        }
    }
}

/// The merged versions may differ in their carry: a full bucket stays full, and none owes anything.
#[test]
fn changes_of_every_kind_leave_a_full_bucket_full_and_none_in_debt() {
    let version = |index: usize| {
        let (rate, capacity) = ([1, 3, 7][index % 3], [1_000, 2_000, 1_500, 4_000][index % 4]);
        policy(&format!(r#"{{"rate":{rate},"period":"1day","capacity":{capacity}}}"#))
    };
    let full = [Carry::Proportional, Carry::Additive, Carry::Proportional, Carry::Reset];
    let spent = [Carry::Proportional, Carry::AsIs, Carry::Proportional, Carry::Reset];
    for (kinds, taken) in [(&full[..], 0), (&full[..3], 0), (&spent[..], 900), (&spent[..3], 900)] {
        let mut latest = Arc::new(version(0).in_force_since(START));
        let mut world = world(&latest);
        world.decided(CONSUME, vec![taken]);
        for index in 1..200 {
            let since = START + i64::try_from(index).unwrap();
            latest = Arc::new(version(index).succeeding(&latest, since, kinds[index % kinds.len()]));
        }
        learn(&mut world, &latest);
        world.now = START + 1_000;
        let [level] = world.levels()[..] else { panic!() };
        let capacity = latest.limits()[0].limit().config().capacity.cast_signed();
        assert!(level >= 0 && (taken > 0 || level == capacity), "{level} of {capacity}");
    }
}

/// The initial level of a `reset` counts, however buckets go on from there.
#[test]
fn a_bucket_that_began_empty_before_many_changes_stays_empty() {
    for carry in [Carry::Additive, Carry::Proportional, Carry::AsIs] {
        for row in [0, 100] {
            let first = Arc::new(policy(r#"{"rate":2,"period":"1day","capacity":100}"#).in_force_since(START));
            let mut world = world(&first);
            world.decided(CONSUME, vec![row]);
            let empty = policy(r#"{"rate":2,"period":"1day","capacity":100,"initial":0}"#);
            let empty = empty.succeeding(&first, START + 1, Carry::Reset);
            let versions = ["1", "2"].map(|rate| format!(r#"{{"rate":{rate},"period":"1day","capacity":100}}"#));
            let latest = alternated([&versions[1], &versions[0]], 80, carry, &empty);
            learn(&mut world, &Arc::new(latest));
            world.now = START + 1_000;
            assert_eq!(world.levels(), [0], "{carry:?}, {row} taken");
        }
    }
}

/// A limit that is renamed away before many changes: with its own numbers it is full in a while, and then forgotten.
#[test]
fn a_limit_removed_before_many_changes_refills_and_is_forgotten() {
    let versions = ["1", "2"].map(|rate| {
        format!(r#"{{"limits":[{{"name":"a","rate":{rate},"period":"1s","capacity":10,"write_ahead":0}}]}}"#)
    });
    let both = r#"{"limits":[{"name":"a","rate":1,"period":"1s","capacity":10,"write_ahead":0},{"name":"b","rate":1,"period":"1s","capacity":100,"write_ahead":0}]}"#;
    for (before, is_back) in (0..4).flat_map(|before| [(before, true), (before, false)]) {
        let first = Arc::new(policy(both).in_force_since(START));
        let mut world = world(&first);
        world.decided(CONSUME, vec![0, 50]);
        // It may have been absent for a while.
        let away = alternated([&versions[0], &versions[1]], before, Carry::AsIs, &first);
        let again = policy(both).succeeding(&away, away.timeline().since() + 1, Carry::AsIs);
        let latest = Arc::new(alternated([&versions[0], &versions[1]], 100, Carry::AsIs, &again));
        let back = Arc::new(policy(both).succeeding(&latest, START + 20_000, Carry::AsIs));
        learn(&mut world, &latest);
        world.now = START + 10_000;
        world.decided(CONSUME, vec![1]);
        if is_back {
            world.now = START + 20_000;
            learn(&mut world, &back);
            assert_eq!(world.levels()[1], 70, "{before} changes");
        }
        world.now = START + 60_000;
        world.crash(0);
        world.clean();
        assert!(!world.has_row(), "{before} changes");
    }
}

/// A limit that was not in the policy at its `reset`.
#[test]
fn a_reset_gives_nothing_to_a_limit_that_did_not_exist() {
    let both = ["1", "2"].map(|rate| {
        format!(
            r#"{{"limits":[{{"name":"a","rate":{rate},"period":"1s"}},{{"name":"b","rate":0,"period":"1s","capacity":9}}]}}"#
        )
    });
    let first = Arc::new(policy(&both[0]).in_force_since(START - DAY_MS));
    let mut world = world(&first);
    world.decided(CONSUME, vec![0, 9]);
    let alone = policy(r#"{"limits":[{"name":"a","rate":1,"period":"1s"}]}"#);
    let alone = alone.succeeding(&first, START, Carry::Reset);
    learn(&mut world, &Arc::new(alternated([&both[0], &both[1]], 100, Carry::AsIs, &alone)));
    world.now = START + 1_000;
    assert_eq!(world.levels()[1], 0);
}

/// A shard that did not exist all the time begins empty, however many changes of `shards` there were.
#[test]
fn adding_and_removing_shards_creates_no_tokens() {
    let versions = [1, 8].map(|shards| format!(r#"{{"rate":0,"period":"1day","capacity":800,"shards":{shards}}}"#));
    for carry in [Carry::AsIs, Carry::Proportional, Carry::Additive] {
        for times in [1, 3, 65, 67, 201] {
            let first = policy(&versions[0]).in_force_since(START);
            let latest = alternated([&versions[0], &versions[1]], times, carry, &first);
            // After which their number stayed the same.
            let slower = versions[1].replace("1day", "2days");
            let latest = alternated([&versions[1], &slower], 101, carry, &latest);
            let shards = latest.shards();
            assert_eq!(shards.len(), 8);
            for shard in &shards[1..] {
                let mut world = world(shard);
                world.now = START + 1_000;
                assert_eq!(world.levels(), [0], "{carry:?}, {times} changes");
            }
            let mut whole = world(&shards[0]);
            whole.now = START + 1_000;
            assert_eq!(whole.levels(), [100], "{carry:?}, {times} changes");
        }
    }
}

/// Each change renames the limit.
#[test]
fn a_timeline_keeps_eight_names_that_no_later_version_has() {
    let version = |index: i64| {
        policy(&format!(r#"{{"limits":[{{"name":"n{index}","rate":1,"period":"1day","capacity":{}}}]}}"#, 10 + index))
    };
    let mut latest = version(0).in_force_since(START);
    for index in 1..200 {
        latest = version(index).succeeding(&latest, START + index, Carry::AsIs);
        let most = latest.timeline().earlier().iter().map(|version| version.limits.len()).max();
        assert!(most <= Some(9), "{most:?}");
    }
    let earlier = latest.timeline().earlier();
    assert!(earlier.iter().flat_map(|version| &version.limits).all(|(_, limit)| limit.config().rate == 1));
}

/// A version that changes nothing a bucket depends on, or resets each bucket, makes room for itself.
#[test]
fn changes_to_the_same_numbers_use_up_no_history() {
    let version = |ttl: i64| {
        policy(&format!(r#"{{"rate":1,"period":"1s","capacity":100,"reservation_ttl":"{ttl}s","write_ahead":0}}"#))
    };
    let slow = policy(r#"{"rate":1,"period":"1day","capacity":100,"write_ahead":0}"#).in_force_since(START);
    let mut latest = version(1).succeeding(&slow, START + 1, Carry::AsIs);
    let mut world = world(&Arc::new(latest.clone()));
    world.decided(CONSUME, vec![100]);
    for ttl in 2..300 {
        latest = version(ttl).succeeding(&latest, START + ttl, Carry::AsIs);
    }
    let kept = latest.timeline().earlier();
    assert!(kept.iter().all(|version| version.merged.is_none()), "{kept:?}");
    assert_eq!(kept[0].limits[0].1.config().period_ms, 86_400_000);
    learn(&mut world, &Arc::new(latest));
    world.now = START + 10_000;
    assert_eq!(world.levels(), [10]);
}

#[test]
fn versions_that_every_bucket_has_recovered_from_are_merged_first() {
    let version = |rate: u32| policy(&format!(r#"{{"rate":{rate},"period":"1s","capacity":10}}"#));
    let mut latest = version(1).in_force_since(START);
    let mut succeed = |at: i64| {
        let rate = u32::try_from(1 + at % 2).unwrap();
        latest = version(rate).succeeding(&latest, START + at, Carry::AsIs);
        let earlier = latest.timeline().earlier().iter();
        earlier.map(|version| (version.since - START, version.merged.is_some())).collect::<Vec<_>>()
    };
    for index in 1..=20 {
        succeed(1_001 * index);
    }
    // The last of those was in force for ten seconds, in which any bucket from before it fills.
    for index in 0..43 {
        succeed(31_000 + index);
    }
    let kept = succeed(31_043);
    assert_eq!((kept.len(), kept[0]), (Timeline::MAX_EARLIER, (0, false)));
    let kept = succeed(31_044);
    assert_eq!((kept.len(), &kept[..2]), (Timeline::MAX_EARLIER + 1 - 19, &[(0, true), (20_020, false)][..]));
}

/// The registry's rows were lost, or the policy is new to it: the bucket's state is kept.
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

/// A deployment that adds the registry, or removes it, spreads: isolates of both ask in turn.
#[test]
fn a_change_is_followed_once_even_if_frontends_without_the_registry_ask_in_turn() {
    let small = || policy(r#"{"rate":10,"period":"1s","capacity":10,"write_ahead":0}"#);
    let large = || policy(r#"{"rate":10,"period":"1s","capacity":1000,"write_ahead":0}"#);
    for (carry, crashes) in Carry::ALL.into_iter().flat_map(|carry| [(carry, false), (carry, true)]) {
        let unregistered = Arc::new(small());
        let changed = Arc::new(large().succeeding(&small().in_force_since(START - 10), START - 5, carry));
        let mut world = World::empty(&unregistered);
        world.decided(CONSUME, vec![1]);
        learn(&mut world, &changed);
        let mut level = world.levels()[0];
        let mut granted = 1;
        for spent in [0, 1_000].into_iter().flat_map(|spent| [spent; 5]) {
            world.now += 1_000;
            (world.policy, world.as_of) = (Arc::clone(&unregistered), None);
            world.levels();
            if crashes {
                world.crash(usize::MAX);
            }
            learn(&mut world, &changed);
            level = (level + 10).min(1_000);
            assert_eq!(world.levels(), [level], "{carry:?}");
            let taken = world.decided(Action::Take(Verb::ConsumeUpTo), vec![spent]);
            let taken = if taken.decision().is_allow() { crate::world::tokens(&taken.limits[0]) } else { 0 };
            (level, granted) = (level - i64::try_from(taken).unwrap(), granted + taken);
        }
        assert!(granted <= 1_000 + 10 * 10, "{carry:?}: {granted}");
    }
}

/// Versions of a policy of one limit, or two.
const VERSIONS: [&str; 7] = [
    r#"{"limits":[{"name":"a","rate":10,"period":"1s","capacity":40,"write_ahead":0,"max_debt":5}]}"#,
    r#"{"limits":[{"name":"a","rate":3,"period":"1s","capacity":100,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","rate":7,"period":"3s","capacity":9,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","rate":0,"period":"1s","capacity":30,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"a","rate":50,"period":"1s","capacity":50,"write_ahead":0},{"name":"b","rate":1,"period":"1s","capacity":20,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"b","rate":2,"period":"1s","capacity":15,"write_ahead":0}]}"#,
    r#"{"limits":[{"name":"c","kind":"fixed_window","rate":20,"period":"2s","capacity":30,"offset":"0s","write_ahead":0}]}"#,
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
    let carry = prop_oneof![4 => Just(Carry::AsIs), 1 => Just(Carry::Proportional), 1 => Just(Carry::Reset)];
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
            let _ = limit.ask(now, cost, Verb::Consume);
        }
        is_granted
    }

    fn levels(&self, policy: &Policy, now: i64) -> Vec<i64> {
        let awake = self.0.iter().take(policy.limits().len());
        awake.map(|(_, limit)| signed(limit.remaining(now), limit.owed(now))).collect()
    }
}

/// Rates with equally many drops per token, so that no fraction is lost on the way.
fn many_versions() -> impl Strategy<Value = (Carry, Vec<(u64, u64, i64)>)> {
    let carry = prop::sample::select(vec![Carry::AsIs, Carry::Proportional]);
    let wait = prop_oneof![0..3_i64, 0..2_000_i64];
    (carry, prop::collection::vec((prop::sample::select(vec![1_u64, 3, 7, 9]), 5..40_u64, wait), 70..140))
}

proptest! {
    #![proptest_config(chance::config(200))]

    /// With more versions than are kept: no more than if each had been kept, and a full bucket is as full as it would be.
    #[test]
    fn a_bucket_has_no_more_than_if_every_version_had_been_remembered(
        (carry, versions) in many_versions(),
        taken in 0..5_u64,
        asks in prop::collection::btree_set(0..140_usize, 0..4),
    ) {
        let json = |rate: u64, capacity: u64| {
            format!(r#"{{"rate":{rate},"period":"1s","capacity":{capacity},"write_ahead":0}}"#)
        };
        // Each version rounds a share down to a thousandth of a token, and those that are merged round once.
        let parts = i64::from(carry == Carry::Proportional);
        let mut latest = Arc::new(policy(&json(1, 40)).in_force_since(START));
        let mut world = world(&latest);
        let mut exact = Exact::new(&latest, START);
        world.decided(CONSUME, vec![taken]);
        exact.consume(&latest, taken, START);
        for (index, (rate, capacity, wait)) in versions.into_iter().enumerate() {
            let since = latest.timeline().since() + 1 + wait;
            world.now = since;
            latest = Arc::new(policy(&json(rate, capacity)).succeeding(&latest, since, carry));
            exact.change(&latest, carry, since);
            if asks.contains(&index) {
                learn(&mut world, &latest);
                let (level, expected) = (world.levels()[0], exact.levels(&latest, world.now)[0]);
                prop_assert!(level <= expected + parts, "{} of {}", level, expected);
                if let Ok(cost) = u64::try_from(level) {
                    prop_assert!(world.decided(CONSUME, vec![cost]).decision().is_allow());
                    prop_assert!(exact.consume(&latest, cost, world.now) || parts > 0);
                }
            }
        }
        world.now += 1;
        learn(&mut world, &latest);
        let (level, expected) = (world.levels()[0], exact.levels(&latest, world.now)[0]);
        prop_assert!(level <= expected + parts, "{} of {}", level, expected);
        if asks.is_empty() && taken == 0 && carry != Carry::AsIs {
            prop_assert_eq!(level, expected);
        }
    }
}

proptest! {
    #![proptest_config(chance::config(4_000))]

    /// Whenever a bucket is used, and however often its policy changed and its object crashed in between, it is as if each
    /// change had been made to it at once, in exact rationals.
    #[test]
    fn a_bucket_is_as_if_each_change_had_been_made_to_it_at_once(
        steps in prop::collection::vec(step(), 1..60).prop_map(|steps| [steps, vec![Step::Look]].concat()),
    ) {
        let first = Arc::new(policy(VERSIONS[0]).in_force_since(START - 1_000));
        let mut world = world(&first);
        // A bucket starts full at its first request.
        let mut exact: Option<Exact> = None;
        let mut versions = vec![first];
        // The bucket's version.
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

/// Numbers of one limit, as rate per second and capacity.
type Numbers = (u64, u64);

#[derive(Clone, Debug)]
enum Turn {
    Change(usize, Carry),
    /// Takes at most this much: in a frontend with the registry's latest version, with an earlier one although it knows the latest, or
    /// without the registry.
    Latest(u64),
    Earlier(usize, u64),
    Unregistered(usize, u64),
    Wait(i64),
    Crash,
}

fn turn() -> impl Strategy<Value = Turn> {
    let cost = || prop_oneof![2 => Just(0_u64), 2 => 1..20_u64, 1 => Just(2_000_u64)];
    prop_oneof![
        1 => (0..4_usize, prop::sample::select(Carry::ALL.to_vec())).prop_map(|(index, carry)| Turn::Change(index, carry)),
        6 => cost().prop_map(Turn::Latest),
        3 => (1..4_usize, cost()).prop_map(|(back, cost)| Turn::Earlier(back, cost)),
        4 => (0..4_usize, cost()).prop_map(|(index, cost)| Turn::Unregistered(index, cost)),
        4 => (0..3_000_i64).prop_map(Turn::Wait),
        1 => Just(Turn::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Each change that forgets what was spent may add the largest capacity, once.
    #[test]
    fn versions_with_and_without_the_registry_grant_no_more_in_turn_than_the_laxest(
        numbers in prop::array::uniform4((0..30_u64, prop_oneof![1..12_u64, 100..1_000_u64])),
        turns in prop::collection::vec(turn(), 1..80),
    ) {
        let json = |(rate, capacity): Numbers| {
            format!(r#"{{"rate":{rate},"period":"1s","capacity":{capacity},"write_ahead":0}}"#)
        };
        let plain = numbers.map(|numbers| Arc::new(policy(&json(numbers))));
        let mut versions = vec![Arc::new(Policy::clone(&plain[0]).in_force_since(START - 10))];
        let mut world = world(&versions[0]);
        let (mut granted, mut fills) = (0, 1);
        for turn in &turns {
            let latest = Arc::clone(versions.last().unwrap());
            let since = latest.timeline().since();
            let (policy, as_of, cost) = match *turn {
                Turn::Change(index, carry) => {
                    world.now += 1;
                    versions.push(Arc::new(Policy::clone(&plain[index]).succeeding(&latest, world.now, carry)));
                    fills += u64::from(carry != Carry::Additive);
                    continue;
                }
                Turn::Latest(cost) => (latest, Some(since), cost),
                Turn::Earlier(back, cost) => {
                    (Arc::clone(&versions[versions.len().saturating_sub(1 + back)]), Some(since), cost)
                }
                Turn::Unregistered(index, cost) => (Arc::clone(&plain[index]), None, cost),
                Turn::Wait(ms) => {
                    world.now += ms;
                    continue;
                }
                Turn::Crash => {
                    world.crash(usize::MAX);
                    continue;
                }
            };
            (world.policy, world.as_of) = (policy, as_of);
            if let ObjectReply::Decided(decided) =
                world.ask(Action::Take(Verb::ConsumeUpTo), Some(vec![cost]), None)
            {
                let taken = &decided.limits[0];
                granted += if taken.decision.is_allow() { crate::world::tokens(taken) } else { 0 };
            }
            let most = numbers.iter().map(|(_, capacity)| *capacity).max().unwrap() * fills;
            let fastest = numbers.iter().map(|(rate, _)| *rate).max().unwrap();
            let ms = (world.now - START).unsigned_abs();
            prop_assert!(granted <= most + fastest * ms / 1_000, "{granted} of {most}: {turns:?}");
        }
    }
}
