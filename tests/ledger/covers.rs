//! Rows that do not refill for a while, of keys with a request every few seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::Action;

use crate::chance;
use crate::model::Model;
use crate::world::{START, World, decided};

const CONSUME: Action = Action::Take(Verb::Consume);

fn policy(json: &str) -> Arc<Policy> {
    Arc::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

/// A key with a request every five seconds for ten minutes. Its latest row is as of `since`.
fn regular(json: &str) -> (World, i64) {
    regular_in(World::empty(&policy(json)))
}

fn regular_in(mut world: World) -> (World, i64) {
    let (mut rows, mut since) = (0, START);
    while world.now < START + 600_000 || rows == world.rows_written {
        world.now += 5_000;
        rows = world.rows_written;
        assert!(world.decided(CONSUME, vec![1]).decision().is_allow());
        since = if rows < world.rows_written { world.now } else { since };
    }
    (world, since)
}

const MINUTE: &str = r#"{"rate":100,"period":"1m","write_ahead":5}"#;

/// The level of an object that wakes this long after the row, and its level this much later.
#[test]
fn a_crash_costs_a_block_that_refills_at_once() {
    for (woken, asked, level) in [
        (0, 0, 95),
        (30_000, 0, 95),
        (30_000, 600, 96),    // 600 ms for a token
        (30_000, 3_000, 100), // although the row would not have refilled
        (60_000, 0, 95),
        (60_600, 0, 96),
        (63_000, 0, 100),
        (-5_000, 4_999, 95), // the clock has stepped back: no time passes until it catches up
        (-5_000, 5_600, 96),
        (-60_000, 60_599, 95),
        (-60_000, 60_600, 96),
    ] {
        let (mut world, since) = regular(MINUTE);
        world.now = since + woken;
        world.crash(0);
        world.levels();
        world.now += asked;
        assert_eq!(world.levels(), [level], "{asked} ms after {woken} ms");
    }
}

/// An older version knows nothing of covers: it waits until the row refills.
#[test]
fn an_older_version_gives_nothing_away() {
    for (woken, level) in [(0, 95), (59_999, 95), (60_599, 95), (60_600, 96), (63_000, 100)] {
        let (mut world, since) = regular(MINUTE);
        world.now = since;
        downgrade(&mut world);
        assert_eq!(world.levels(), [95]);
        world.now += woken;
        assert_eq!(world.levels(), [level], "{woken} ms after the row");
    }
}

/// A key with a request every five seconds, and the rows that may be written for it.
#[test]
fn a_row_covers_what_refills_soon_and_no_more() {
    for (json, rows) in [
        (MINUTE, 80),
        (r#"{"rate":100,"period":"1m","write_ahead":0}"#, 1_000),
        (r#"{"rate":1000,"period":"1d"}"#, 1_000), // a block of 50 would be gone for an hour
        (r#"{"kind":"fixed_window","rate":100,"period":"1m","write_ahead":5}"#, 1_000),
        (r#"{"limits":[{"name":"a","rate":100,"period":"1m"},{"name":"b","rate":1000,"period":"1d"}]}"#, 1_000),
        (r#"{"limits":[{"name":"a","rate":100,"period":"1m"},{"name":"b","rate":50,"period":"1s"}]}"#, 80),
    ] {
        let mut world = World::empty(&policy(json));
        let costs = vec![1; world.policy.limits().len()];
        for _ in 0..1_000 {
            assert!(world.decided(CONSUME, costs.clone()).decision().is_allow());
            assert!(world.in_flight.is_empty() && !world.wants_flush);
            world.now += 5_000;
        }
        assert_eq!(world.rows_written, rows, "{json}");
    }
}

/// As under the policy itself.
#[test]
fn numbers_from_a_request_that_replace_the_policys_refill_at_once() {
    let definition = policy(MINUTE).definition();
    let inline = Policy::from_definition(&definition.replacen('{', r#"{"inline":true,"#, 1)).unwrap();
    assert!(inline.is_inline());
    for policy in [policy(MINUTE), Arc::new(inline)] {
        let (mut world, since) = regular(MINUTE);
        world.now = since + 30_000;
        world.crash(0);
        world.policy = policy;
        world.decided(CONSUME, vec![95]);
        world.now += 600;
        assert_eq!(world.levels(), [1], "inline: {}", world.policy.is_inline());
    }
}

#[test]
fn a_smaller_block_needs_a_row() {
    let (mut world, _) = regular(MINUTE);
    world.policy = policy(r#"{"rate":100,"period":"1m","write_ahead":1}"#);
    world.now += 5_000;
    world.decided(CONSUME, vec![1]);
    world.crash(0);
    assert!(world.levels()[0] >= 98);
}

/// By a registry, after the row; then the object is evicted.
#[test]
fn numbers_that_change_in_a_cover_count_from_the_change_on() {
    let before = Arc::new(Policy::clone(&policy(MINUTE)).in_force_since(START - 10));
    let (mut world, since) = regular_in(World { as_of: Some(START - 10), ..World::empty(&before) });
    let more = Policy::clone(&policy(r#"{"rate":100,"period":"1s","capacity":1000}"#));
    world.policy = Arc::new(more.succeeding(&before, since + 1_000, Carry::AsIs));
    world.as_of = Some(since + 1_000);
    world.now = since + 3_000;
    world.crash(0);
    assert_eq!(world.levels(), [95 + 2 * 100]);

    // Unknown to the registry before: a version in force for only a second counts, too.
    let (mut world, since) = regular(MINUTE);
    let few = Policy::clone(&policy(r#"{"rate":0,"period":"1s","capacity":10}"#)).in_force_since(since + 1_000);
    world.policy = Arc::new(Policy::clone(&policy(MINUTE)).succeeding(&few, since + 2_000, Carry::AsIs));
    world.as_of = Some(since + 2_000);
    world.now = since + 3_000;
    world.crash(0);
    assert_eq!(world.levels(), [5 + 1], "95 of 100 were left, so 5 of 10");
}

/// It needs no row, and later grants are not repeated after a crash.
#[test]
fn a_version_with_the_same_numbers_does_not_end_a_cover() {
    let before = Arc::new(Policy::clone(&policy(MINUTE)).in_force_since(START - 10));
    let (mut world, since) = regular_in(World { as_of: Some(START - 10), ..World::empty(&before) });
    world.policy = Arc::new(Policy::clone(&policy(MINUTE)).succeeding(&before, since + 1_000, Carry::AsIs));
    world.as_of = Some(since + 1_000);
    world.now = since + 3_000;
    let rows = world.rows_written;
    world.decided(CONSUME, vec![2]);
    let left = world.levels()[0];
    assert_eq!(world.rows_written, rows);
    world.crash(0);
    assert!(world.levels()[0] <= left);
}

/// Tokens leased in a cover are in no row without the lease.
#[test]
fn a_lease_in_a_cover_is_withheld_after_a_crash() {
    let (mut world, _) = regular(MINUTE);
    world.now += 1_000;
    let before = world.levels()[0];
    let rows = world.rows_written;
    let leased = lease(&mut world, 3);
    assert_eq!((leased, world.rows_written), (3, rows + 1));
    assert_eq!(world.levels(), [before - 3]);
    world.crash(0);
    assert_eq!(world.levels(), [before - 3]);
    world.now += 1_000;
    world.decided(CONSUME, vec![1]);
    world.crash(0);
    assert!(world.levels()[0] <= 100 - 3, "no row covers what is leased");
}

/// A cover would have only the level, from which a crash could not tell what a settlement gives back.
#[test]
fn no_row_is_covered_while_a_reservation_is_open() {
    for (wait_ms, real, level) in [
        (600, 0, 98), // full before 2 were spent
        (600, 1, 98),
        (600, 2, 97),
        (600, 3, 96),
        (600, 9, 90),
        (5_000, 0, 98), // full in any case
        (5_000, 3, 98),
        (5_000, 5, 98),
    ] {
        for crashes in [false, true] {
            let (mut world, _) = regular(MINUTE);
            world.now += 5_000;
            let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
            let id = world.decided(reserve, vec![3]).reservation.unwrap().id;
            world.now += wait_ms;
            world.decided(CONSUME, vec![2]);
            if crashes {
                world.crash(0);
            }
            world.decided(Action::Settle(id), vec![real]);
            assert_eq!(world.levels(), [level], "{real} of 3 after {wait_ms} ms, {crashes}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Take(u64),
    Refund(u64),
    Lease(u64),
    /// Uses another of the policies from now on.
    Policy(usize),
    /// The process ends; whether an earlier version finds the rows.
    Crash(bool),
}

/// All token buckets, of other blocks and other numbers.
const POLICIES: [&str; 5] = [
    r#"{"rate":100,"period":"1m","write_ahead":8}"#,
    r#"{"rate":100,"period":"1m","write_ahead":2}"#,
    r#"{"rate":100,"period":"1m","write_ahead":0}"#,
    r#"{"rate":7,"period":"1s","capacity":30,"write_ahead":8}"#,
    r#"{"rate":1,"period":"20s","capacity":300,"write_ahead":8}"#,
];

const MAX_BLOCK: i64 = 8;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![
        10 => 0..9_000_i64,
        2 => 0..70_000_i64,
        1 => -120_000..0_i64,
        1 => -2_000..0_i64,
    ];
    let step = prop_oneof![
        12 => wait.prop_map(Step::Wait),
        12 => (0..4_u64).prop_map(Step::Take),
        2 => (0..120_u64).prop_map(Step::Take),
        1 => (0..9_u64).prop_map(Step::Refund),
        1 => (1..9_u64).prop_map(Step::Lease),
        1 => (0..POLICIES.len()).prop_map(Step::Policy),
        2 => prop_oneof![3 => Just(false), 1 => Just(true)].prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 1..120)
}

/// Nothing has been written since.
#[test]
fn a_row_costs_a_crash_its_own_block_also_under_a_policy_with_a_smaller_one() {
    let wakes = |which| [Step::Policy(which), Step::Crash(false)];
    let before = [Step::Wait(4_200), Step::Take(1)];
    crash_in_covers([&before[..], &wakes(0), &[Step::Policy(2), Step::Wait(599), Step::Crash(false)]].concat())
        .unwrap();
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// However clocks step, numbers change and objects die, the key has no more than a bucket whose clock counts each millisecond it
    /// shows. While the clock only goes on, each crash costs a block at most, then and later.
    #[test]
    fn a_crash_in_a_cover_costs_a_block_and_gives_nothing(steps in steps()) {
        crash_in_covers(steps)?;
    }
}

fn crash_in_covers(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let policies: Vec<_> = POLICIES.iter().map(|json| policy(json)).collect();
    let first = Arc::new(Policy::clone(&policies[0]).in_force_since(START - 10));
    let mut world = World { as_of: Some(START - 10), ..World::empty(&first) };
    let mut most = Model::new(&world.policy);
    // A key without a row would start full under each policy.
    world.decided(CONSUME, vec![1]);
    most.grant(Verb::Consume, &[1], world.now);
    // A crash costs what the row lacks: a block of the policy under which it was written.
    let (mut row, mut block_of_row) = (BTreeMap::new(), 0);
    // What crashes may have cost; unknown once the clock has stepped back, or a lease or an earlier version has held back more.
    let mut lost = Some(0);
    for step in steps {
        let block = i64::try_from(world.policy.limits()[0].write_ahead()).unwrap();
        if world.storage != row {
            (row, block_of_row) = (world.storage.clone(), block);
        }
        match step {
            Step::Wait(ms) => {
                world.now += ms;
                most.follow_clock(world.now);
                lost = lost.filter(|_| ms >= 0);
            }
            Step::Take(cost) => {
                if world.decided(CONSUME, vec![cost]).decision().is_allow() {
                    most.grant(Verb::Consume, &[cost], world.now);
                }
            }
            Step::Refund(tokens) => {
                world.decided(Action::Take(Verb::Refund), vec![tokens]);
                most.grant(Verb::Refund, &[tokens], world.now);
            }
            Step::Lease(tokens) => {
                let spent = lease(&mut world, tokens);
                most.lower(&[spent], world.now); // at once, to the last one
                lost = None;
            }
            Step::Policy(which) => {
                let since = world.now.max(world.policy.timeline().since() + 1);
                most.follow_clock(since);
                let next = Policy::clone(&policies[which]).succeeding(&world.policy, since, Carry::AsIs);
                (world.policy, world.as_of, world.now) = (Arc::new(next), Some(since), since);
                most.carry(&world.policy, Carry::AsIs, world.now);
            }
            Step::Crash(is_older) => {
                let before = world.levels()[0];
                if is_older {
                    downgrade(&mut world);
                } else {
                    world.crash(0);
                }
                let after = world.levels()[0];
                if let Some(lost) = &mut lost {
                    *lost += MAX_BLOCK;
                    prop_assert!((0..=block.max(block_of_row)).contains(&(before - after)), "{before} became {after}");
                }
                lost = lost.filter(|_| !is_older);
            }
        }
        let (level, most) = (world.levels()[0], most.levels(world.now)[0]);
        prop_assert!(level <= most, "{level} of {most} after {step:?}");
        if let Some(lost) = lost {
            prop_assert!(most - level <= lost, "{level} of {most} after {step:?}, and {lost} may be lost");
        }
    }
    Ok(())
}

/// Leases tokens; how many.
fn lease(world: &mut World, tokens: u64) -> u64 {
    decided(world.lease(vec![tokens], Vec::new())).lease.map_or(0, |lease| lease.tokens[0])
}

/// The process ends, and an earlier version finds its rows: it ignores what they say of covers.
fn downgrade(world: &mut World) {
    for row in world.storage.values_mut() {
        if let Some(at) = row.len().checked_sub(11).filter(|&at| row[at..at + 3] == [4, 8, 0]) {
            row.truncate(at);
        }
    }
    world.crash(0);
}
