//! Reservations that are settled after the numbers have changed in any way: a bucket may have kept its share of the capacity, been reset,
//! or lost and regained a limit meanwhile. The oracle is in `late_budgets.rs`.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::Action;

use crate::chance;
use crate::late_budgets::{NAMES, Oracle, Pair, Step, policy};
use crate::world::{DAY_MS, START, World, decided, tokens};

/// Sequences that broke the law before it held.
mod found {
    use super::*;

    /// Each distance between two pieces was rounded down, so many open reservations lost a token each.
    #[test]
    fn many_open_reservations_lose_no_more_to_rounding_than_one() {
        let window =
            |capacity: u64| (format!(r#""kind":"fixed_window","rate":0,"period":"1day","capacity":{capacity}"#), 1);
        let bucket = |rate: u64| (format!(r#""rate":{rate},"period":"1day","capacity":1000"#), 1);
        let third = |rate: u64| (format!(r#""rate":{rate},"period":"9s","capacity":1000"#), 9_000 / 3);
        for ((old, wait_ms), (new, _), how, expected) in [
            (window(1_000), window(100), Carry::Proportional, 90),
            (window(1_000), window(999), Carry::Proportional, 899),
            (bucket(0), bucket(1), Carry::Proportional, 900),
            (third(1), third(9_000), Carry::AsIs, 933), // and a third came back each time
        ] {
            let version = |numbers: &str| policy(&format!(r#"{{{numbers},"write_ahead":0,"reservation_ttl":"1day"}}"#));
            let old = Arc::new(version(&old).in_force_since(START - DAY_MS));
            let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&old) };
            let ids: Vec<_> = (0..100)
                .map(|_| {
                    world.now += wait_ms;
                    let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
                    world.decided(action, vec![1]).reservation.unwrap().id
                })
                .collect();
            world.policy = Arc::new(version(&new).succeeding(&old, world.now, how));
            world.as_of = Some(world.now);
            assert_eq!(world.levels(), [expected]);
            for id in ids {
                decided(world.ask(Action::Settle(id), None, None));
                assert_eq!(world.levels(), [expected]);
            }
        }
    }

    /// The numbers were carried over first, as if what had expired before were still reserved, or else last: what was left depended on
    /// whether anybody had asked in between.
    #[test]
    fn what_expires_before_a_change_is_given_back_before_it_and_after_it_otherwise() {
        let before = [((10, 80), 50, 40), ((40, 60), 50, 10), ((50, 50), 50, 0), ((90, 10), 50, 0)];
        let before = before.map(|(taken, capacity, left)| (taken, 20, Carry::Additive, (100, capacity), left));
        let after = [((4, 5), (10, 100), 15), ((40, 50), (100, 10), 10)];
        let after = after.map(|(taken, capacities, left)| (taken, 5, Carry::Proportional, capacities, left));
        let others = [
            ((40, 50), 20, Carry::Proportional, (100, 10), 6),
            ((90, 10), 20, Carry::Proportional, (100, 10), 1),
            ((10, 80), 5, Carry::Additive, (100, 50), 50),
        ];
        for ((spent, held), changed_s, how, (first, then), left) in before.into_iter().chain(after).chain(others) {
            for (asks, crashes) in [(false, false), (true, false), (false, true), (true, true)] {
                let version = |capacity: u64| {
                    let terms = r#""write_ahead":0,"unsettled":"refund","reservation_ttl":"10s""#;
                    policy(&format!(r#"{{"rate":0,"period":"1s","capacity":{capacity},{terms}}}"#))
                };
                let old = Arc::new(version(first).in_force_since(START - DAY_MS));
                let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&old) };
                world.decided(Action::Take(Verb::Consume), vec![spent]);
                world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![held]);
                let changed_at = START + changed_s * 1_000;
                let new = Arc::new(version(then).succeeding(&old, changed_at, how));
                for at in [7_000, 15_000].into_iter().filter(|_| asks) {
                    world.now = START + at;
                    if changed_at <= world.now {
                        (world.policy, world.as_of) = (Arc::clone(&new), Some(changed_at));
                    }
                    world.levels();
                }
                if crashes {
                    world.crash(usize::MAX);
                }
                (world.policy, world.as_of, world.now) = (new, Some(changed_at), START + 30_000);
                let inspected = world.ledger.inspect(&[Arc::clone(&world.policy)], changed_at, world.now);
                let case = format!("{spent} and {held}, {how:?} at {changed_s} s, {asks}, {crashes}");
                assert_eq!(inspected.buckets[0].limits.as_ref().unwrap().1[0].remaining, left, "{case}");
                assert_eq!(world.levels(), [left.cast_signed()], "{case}");
            }
        }
    }

    /// The moment of another policy's change was handed to this bucket's pieces, as if the clock had stepped back: it refilled again.
    #[test]
    fn the_change_of_one_policy_does_not_touch_what_others_have_given_back() {
        let terms = r#""unsettled":"refund","reservation_ttl":"60s","write_ahead":0"#;
        let both = |q: u64| {
            let p = format!(r#""p":{{"rate":1,"period":"1s","capacity":1000,{terms}}}"#);
            let q = format!(r#""q":{{"rate":0,"period":"1s","capacity":{q}}}"#);
            Policies::parse(&format!("{{{p},{q}}}")).unwrap()
        };
        let since = START - DAY_MS;
        let [p, q] = ["p", "q"].map(|name| Arc::new(Policy::clone(both(5).get(name).unwrap()).in_force_since(since)));
        let mut world = World { as_of: Some(since), ..World::empty(&p) };
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        world.decided(reserve, vec![10]);
        world.now = START + 50_000;
        world.policy = Arc::clone(&q);
        world.decided(Action::Take(Verb::Consume), vec![1]);
        world.policy = Arc::clone(&p);
        world.now = START + 860_000;
        assert_eq!(tokens(&world.decided(Action::Take(Verb::Consume), vec![1_000]).limits[0]), 1_000);
        world.now = START + 870_000;
        let id = world.decided(reserve, vec![10]).reservation.unwrap().id;
        world.crash(usize::MAX);
        world.now = START + 880_000;
        let changed = Policy::clone(both(9).get("q").unwrap()).succeeding(&q, START + 100_000, Carry::Additive);
        world.as_of = Some(START + 100_000);
        world.policy = Arc::new(changed);
        world.levels();
        world.policy = p;
        decided(world.ask(Action::Cancel(id), None, None));
        assert_eq!(world.levels(), [20]);
    }

    /// It was given back when the reservation expired, but the late settlement took again only of limits that the policy still had.
    #[test]
    fn a_late_settlement_takes_again_of_a_limit_that_the_policy_lacks() {
        let limit = |name: &str| format!(r#"{{"name":"{name}","rate":0,"period":"1s","capacity":10,"write_ahead":0}}"#);
        let version = |limits: &[String]| {
            policy(&format!(r#"{{"limits":[{}],"unsettled":"refund","reservation_ttl":"10s"}}"#, limits.join(",")))
        };
        // What others have taken meanwhile is not owed.
        for (settles_at, others, left) in
            [(7_000, 0, 5), (25_000, 0, 5), (25_000, 10, 0), (25_000, 7, 0), (25_000, 2, 3)]
        {
            let both = Arc::new(version(&[limit("a"), limit("b")]).in_force_since(START - DAY_MS));
            let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&both) };
            let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
            let id = world.decided(reserve, vec![5, 5]).reservation.unwrap().id;
            let changed_at = if others > 0 { 12_000 } else { 5_000 };
            if others > 0 {
                world.now = START + 11_000;
                world.decided(Action::Take(Verb::Consume), vec![0, others]);
            }
            let one = Arc::new(version(&[limit("a")]).succeeding(&both, START + changed_at, Carry::AsIs));
            (world.policy, world.as_of) = (Arc::clone(&one), Some(START + changed_at));
            for at in [changed_at + 1_000, settles_at] {
                world.now = START + at;
                world.levels();
            }
            decided(world.ask(Action::Settle(id), None, None));
            let again = Arc::new(version(&[limit("a"), limit("b")]).succeeding(&one, START + 30_000, Carry::AsIs));
            (world.policy, world.as_of, world.now) = (again, Some(START + 30_000), START + 30_000);
            assert_eq!(world.levels(), [5, left], "settled at {settles_at} after {others}");
        }
    }

    /// The row from before the reset was still valid for the bucket in memory.
    #[test]
    fn a_reset_to_the_same_numbers_is_not_repeated_after_a_crash() {
        let version = || policy(r#"{"rate":0,"period":"1s","capacity":17,"write_ahead":2}"#);
        let old = Arc::new(version().in_force_since(START - DAY_MS));
        let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&old) };
        world.decided(Action::Take(Verb::Consume), vec![2]);
        world.decided(Action::Take(Verb::Refund), vec![2]);
        world.policy = Arc::new(version().succeeding(&old, START, Carry::Reset));
        world.as_of = Some(START);
        world.decided(Action::Take(Verb::Consume), vec![1]);
        assert_eq!(world.levels(), [16]);
        world.crash(0);
        let left = world.levels()[0];
        assert!((14..=16).contains(&left), "{left}: a crash costs at most two");
    }

    /// The old numbers refilled the bucket up to the alarm, although others were in force before.
    #[test]
    fn an_alarm_that_ends_a_reservation_or_a_hold_does_not_refill_by_replaced_numbers() {
        for (is_held, crashes) in [(false, false), (false, true), (true, false)] {
            let version = |rate: u64| {
                let terms = r#""write_ahead":0,"unsettled":"refund","reservation_ttl":"6s""#;
                policy(&format!(r#"{{"rate":{rate},"period":"1s","capacity":1000,{terms}}}"#))
            };
            let old = Arc::new(version(10).in_force_since(START - DAY_MS));
            let new = Arc::new(version(0).succeeding(&old, START + 1_000, Carry::AsIs));
            let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&old) };
            let action =
                if is_held { Action::Hold(0) } else { Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }) };
            let id = world.decided(action, vec![100]).reservation.unwrap().id;
            if is_held {
                decided(world.ask(Action::Settle(id), None, None));
            }
            world.decided(Action::Take(Verb::Consume), vec![900]);
            if crashes {
                world.crash(usize::MAX);
            }
            world.now += 60_000;
            world.clean();
            world.policy = new;
            world.as_of = Some(START + 1_000);
            assert_eq!(world.levels(), [if is_held { 10 } else { 110 }], "10 came back in the first second");
        }
    }

    /// A crash had cost the piece without reservations a block, but not the level beside it. The next settlement took that block, too.
    #[test]
    fn a_settlement_does_not_take_again_what_a_crash_cost_one_piece() {
        let versions = [
            r#"{"limits":[{"name":"c","rate":0,"period":"100ms","capacity":18,"write_ahead":3},{"name":"a","rate":0,"period":"100ms","capacity":2,"write_ahead":2}],"unsettled":"refund","reservation_ttl":"6s"}"#,
            r#"{"limits":[{"name":"a","rate":1,"period":"100ms","capacity":1,"write_ahead":1},{"name":"b","kind":"fixed_window","offset":"0s","rate":6,"period":"100ms","capacity":6,"write_ahead":1}],"unsettled":"refund","reservation_ttl":"6s"}"#,
        ];
        let steps = [
            Step::Reserve([0, 0, 1], Some(0)),
            Step::Change(1, Carry::AsIs),
            Step::Wait(100),
            Step::Reserve([0, 1, 0], Some(0)),
            Step::Cancel(1),
            Step::Crash(0),
            Step::ChangeUnseen(0, Carry::Proportional),
            Step::Take(Verb::Consume, [1, 0, 0]),
            Step::Settle(0, Some([1, 0, 0])),
        ];
        play(versions.map(str::to_owned).to_vec(), &steps, Oracle::AtMost);
    }
}

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..4_u64, 3 => 0..13_u64, 1 => 0..45_u64]
}

fn costs() -> impl Strategy<Value = [u64; 3]> {
    [cost(), cost(), cost()]
}

fn how() -> impl Strategy<Value = Carry> {
    prop_oneof![2 => Just(Carry::AsIs), 3 => Just(Carry::Proportional), 1 => Just(Carry::Reset)]
}

fn usual() -> impl Strategy<Value = Step> {
    let wait = || prop_oneof![2 => 0..400_i64, 3 => 0..6_000_i64, 1 => 0..30_000_i64];
    let max_wait = prop_oneof![Just(Some(0)), (0..5_000_u64).prop_map(Some)];
    prop_oneof![
        6 => costs().prop_map(|costs| Step::Take(Verb::Consume, costs)),
        1 => costs().prop_map(|costs| Step::Take(Verb::ConsumeUpTo, costs)),
        1 => costs().prop_map(|costs| Step::Take(Verb::Charge, costs)),
        1 => costs().prop_map(|costs| Step::Take(Verb::Refund, costs)),
        1 => Just(Step::Take(Verb::Reset, [0; 3])),
        8 => (costs(), max_wait).prop_map(|(costs, wait)| Step::Reserve(costs, wait)),
        3 => (0..8_usize, prop_oneof![1 => Just([0; 3]), 3 => costs()]).prop_map(|(which, costs)| Step::Extend(which, costs)),
        5 => (0..8_usize, prop::option::weighted(0.8, costs())).prop_map(|(which, costs)| Step::Settle(which, costs)),
        3 => (0..8_usize).prop_map(Step::Cancel),
        8 => wait().prop_map(Step::Wait),
        4 => (0..6_usize, how()).prop_map(|(version, how)| Step::Change(version, how)),
        1 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..4_usize).prop_map(Step::Crash),
    ]
}

fn with_unseen() -> impl Strategy<Value = Step> {
    prop_oneof![8 => usual(), 1 => (0..6_usize, how()).prop_map(|(version, how)| Step::ChangeUnseen(version, how))]
}

fn with_alternations() -> impl Strategy<Value = Step> {
    prop_oneof![4 => with_unseen(), 1 => (0..6_usize).prop_map(Step::Alternate)]
}

fn with_leases() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => with_unseen(),
        2 => costs().prop_map(Step::Lease),
        1 => (0..8_usize, cost()).prop_map(|(which, spent)| Step::Return(which, spent)),
    ]
}

/// Changes all of one kind.
fn with_many() -> impl Strategy<Value = Vec<Step>> {
    let step =
        prop_oneof![20 => with_unseen(), 1 => (60..140_usize).prop_map(|count| Step::ChangeMany(count, Carry::AsIs))];
    (how(), prop::collection::vec(step, 1..50)).prop_map(|(how, steps)| {
        let of_kind = |step| match step {
            Step::Change(version, _) => Step::Change(version, how),
            Step::ChangeUnseen(version, _) => Step::ChangeUnseen(version, how),
            Step::ChangeMany(count, _) => Step::ChangeMany(count, how),
            step => step,
        };
        steps.into_iter().map(of_kind).collect()
    })
}

/// Rate, period, capacity, debt, and whether the limit is there.
type Drawn = (u64, u64, u64, u64, bool);

/// Versions of a policy, each with these limits in any order; or with some of them, if any may be absent. Then a crash may lose some
/// tokens.
fn versions(may_be_absent: bool, least_capacity: u64) -> impl Strategy<Value = Vec<String>> {
    let numbers = move || {
        let period = prop::sample::select(vec![100_u64, 1_000, 2_500, 7_000]);
        (0..12_u64, period, least_capacity..60_u64, prop_oneof![Just(0_u64), 0..9_u64], prop::bool::weighted(0.6))
    };
    let terms = prop::sample::select(vec![
        r#","unsettled":"refund","reservation_ttl":"6s""#,
        r#","unsettled":"keep","reservation_ttl":"9s""#,
        r#","unsettled":"refund","reservation_ttl":"1day""#,
    ]);
    let version = (prop::array::uniform3(numbers()), 0..3_usize);
    let kinds = prop::array::uniform3(prop::bool::weighted(0.4));
    (prop::collection::vec(version, 1..5), kinds, 1..=3_usize, terms).prop_map(move |(all, kinds, count, terms)| {
        let count = if may_be_absent { 3 } else { count };
        let json = |(limits, first): &([Drawn; 3], usize)| {
            let limit = |index: usize| {
                let (rate, period, capacity, debt, is_there) = limits[index];
                let (kind, capacity) = if kinds[index] {
                    (r#""kind":"fixed_window","offset":"0s","#, capacity.max(rate))
                } else {
                    ("", capacity)
                };
                let is_there = !may_be_absent || is_there || index == *first;
                let (name, write_ahead) = (NAMES[index], if may_be_absent { capacity % 5 } else { 0 });
                is_there.then(|| {
                    format!(
                        r#"{{"name":"{name}",{kind}"rate":{rate},"period":"{period}ms","capacity":{capacity},"max_debt":{debt},"write_ahead":{write_ahead}}}"#
                    )
                })
            };
            let order = (0..3).map(|index| (index + first) % 3).filter(|index| *index < count);
            format!(r#"{{"limits":[{}]{terms}}}"#, order.filter_map(limit).collect::<Vec<_>>().join(","))
        };
        all.iter().map(json).collect()
    })
}

fn play(versions: Vec<String>, steps: &[Step], oracle: Oracle) {
    let mut pair = Pair::new(versions, oracle);
    for step in steps {
        pair.take(step);
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn a_settlement_after_changes_of_every_kind_moves_each_piece_by_itself(
        versions in versions(false, 1),
        steps in prop::collection::vec(with_unseen(), 1..50),
    ) {
        play(versions, &steps, Oracle::Exact);
    }

    #[test]
    fn a_settlement_after_changes_beside_leases_mints_nothing(
        versions in versions(false, 1),
        steps in prop::collection::vec(with_leases(), 1..50),
    ) {
        let leased = versions.iter().map(|json| json.replacen('{', r#"{"lease":"4s","#, 1)).collect();
        play(leased, &steps, Oracle::Exact);
    }

    #[test]
    fn a_settlement_after_limits_have_come_and_gone_mints_nothing(
        versions in versions(true, 1),
        steps in prop::collection::vec(with_unseen(), 1..50),
    ) {
        play(versions, &steps, Oracle::AtMost);
    }

    #[test]
    fn a_settlement_after_more_changes_than_are_remembered_mints_nothing(
        versions in versions(false, 1),
        steps in with_many(),
    ) {
        play(versions, &steps, Oracle::Exact);
    }

    #[test]
    fn while_versions_alternate_a_settlement_gives_back_no_more_than_the_excess_taken(
        versions in versions(true, 0),
        steps in prop::collection::vec(with_alternations(), 1..50),
    ) {
        play(versions, &steps, Oracle::None);
    }
}
