//! Changes of numbers by an operator: by a deployment, by `PUT` or by an override.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Kind, Verb};
use tollgate::policy::Policy;
use tollgate::protocol::{Action, Decided, EndedLease, Known, Lease, ObjectReply, ObjectRequest};

use crate::chance;
use crate::inline::{Numbers, defined, long_numbers, most_generous, most_of_each, numbers, plans};
use crate::world::{DAY_MS, START, World, decided, signed, tokens};

/// A policy that a registry changes now and then.
struct Plans {
    world: World,
    versions: Vec<Arc<Policy>>,
}

impl Plans {
    fn new(first: Numbers) -> Self {
        Self::named("a", first)
    }

    /// The first version has a limit of that name; none if it is empty.
    fn named(name: &str, first: Numbers) -> Self {
        let first = Arc::new(defined(&[(name, first)], false).in_force_since(START - DAY_MS));
        let world = World { as_of: Some(START - DAY_MS), ..World::empty(&first) };
        Self { world, versions: vec![first] }
    }

    fn change(&mut self, numbers: Numbers, how: Carry) {
        self.change_all(&[("a", numbers)], how);
        self.learn(0);
    }

    /// From now on, whether a frontend knows it or not.
    fn change_all(&mut self, limits: &[(&str, Numbers)], how: Carry) {
        let latest = self.versions.last().unwrap();
        let since = self.world.now.max(latest.timeline().since() + 1);
        self.versions.push(Arc::new(defined(limits, false).succeeding(latest, since, how)));
        self.world.now = since;
    }

    /// The frontend knows all changes, and uses the version `back` before the last, as after the end of an override.
    fn learn(&mut self, back: usize) {
        let index = (self.versions.len() - 1).saturating_sub(back);
        self.world.policy = Arc::clone(&self.versions[index]);
        self.world.as_of = self.versions.last().map(|latest| latest.timeline().since());
    }

    /// The registry has lost its rows, and learns these limits again.
    fn lose(&mut self, limits: &[(&str, Numbers)]) {
        let since = self.world.now.max(self.versions.last().unwrap().timeline().since()) + 1;
        self.versions = vec![Arc::new(defined(limits, false).in_force_since(since))];
        self.world.now = since;
        self.learn(0);
    }

    fn take(&mut self, verb: Verb, cost: u64) -> u64 {
        let costs = vec![cost; self.world.policy.limits().len()];
        let decided = self.world.decided(Action::Take(verb), costs);
        if decided.decision().is_allow() { tokens(&decided.limits[0]) } else { 0 }
    }

    fn left(&mut self) -> i64 {
        self.world.levels()[0]
    }
}

const HOURLY: Numbers = Numbers::bucket(100, 3_600_000, 100);
const DAILY: Numbers = Numbers::bucket(1_000, 86_400_000, 1_000);

#[test]
fn spent_tokens_stay_spent_and_the_rest_of_the_new_numbers_is_available_at_once() {
    let fixed = |capacity| Numbers::bucket(0, 1_000, capacity);
    let window = |rate| Numbers::window(rate, DAY_MS.unsigned_abs(), rate);
    for (old, new, spent, left) in [
        (fixed(10), fixed(100), 0, 100),
        (fixed(10), fixed(100), 10, 90),
        (fixed(100), fixed(10), 4, 6),
        (fixed(100), fixed(10), 50, 0),
        (fixed(100), fixed(10), 100, 0),
        (window(10), window(100), 10, 90),
        (window(100), window(10), 50, 0),
        (HOURLY, DAILY, 50, 950),
        (DAILY, HOURLY, 900, 0),
        (window(100), HOURLY, 30, 70),
        (HOURLY, window(500), 30, 470),
    ] {
        for crashes in [false, true] {
            let mut plans = Plans::new(old);
            assert_eq!(plans.take(Verb::Consume, spent), spent);
            if crashes {
                plans.world.crash(usize::MAX);
            }
            plans.change(new, Carry::default());
            assert_eq!(plans.left(), left, "{spent} of {old:?}, then {new:?}");
            // And back: by another change, or because an override has ended.
            let before = (old.capacity - spent).cast_signed();
            plans.learn(1);
            assert_eq!(plans.left(), before);
            plans.learn(0);
            assert_eq!(plans.left(), left);
            plans.change(old, Carry::default());
            assert_eq!(plans.left(), before);
        }
    }
}

/// 900 of 1000 a day were used: with 100 an hour, the first come back within the hour.
#[test]
fn fewer_tokens_make_no_debt() {
    let mut plans = Plans::new(DAILY);
    plans.take(Verb::Consume, 900);
    plans.change(HOURLY, Carry::default());
    assert_eq!(plans.left(), 0);
    plans.world.now += 36_000;
    assert_eq!(plans.take(Verb::Consume, 1), 1);
    // Debt stays owed.
    let mut plans = Plans::new(Numbers { max_debt: 9, ..DAILY });
    plans.take(Verb::Charge, 1_005);
    plans.change(HOURLY, Carry::default());
    assert_eq!(plans.left(), -5);
}

/// They are over together, so that what the larger grants is not owed under the smaller.
#[test]
fn a_larger_plan_s_window_from_first_use_leaves_no_debt_to_the_smaller() {
    let window = |rate| Numbers { kind: Kind::FirstUseWindow, ..Numbers::bucket(rate, 5_000, rate) };
    let mut plans = Plans::new(window(20));
    plans.world.now += 1_234;
    plans.take(Verb::Consume, 1);
    let opened_at = plans.world.now;
    plans.change(window(100), Carry::default());
    assert_eq!(plans.take(Verb::ConsumeUpTo, 100), 99);
    plans.change(window(20), Carry::default());
    assert_eq!(plans.left(), 0);
    plans.world.now = opened_at + 4_999;
    assert_eq!(plans.take(Verb::ConsumeUpTo, 20), 0);
    plans.world.now = opened_at + 5_000;
    assert_eq!(plans.take(Verb::ConsumeUpTo, 20), 20);
}

/// The difference of the capacities, given each time, would grant 910 of 100 in ten alternations.
#[test]
fn alternating_gains_nothing() {
    let window = |rate| Numbers::window(rate, DAY_MS.unsigned_abs(), rate);
    for [small, large] in [[window(10), window(100)], [10, 100].map(|capacity| Numbers::bucket(0, 1_000, capacity))] {
        for (crashes, is_known) in [(false, true), (true, true), (false, false)] {
            let mut plans = Plans::new(small);
            plans.world.now -= plans.world.now % DAY_MS;
            let mut granted = plans.take(Verb::ConsumeUpTo, 100);
            for round in 0..10 {
                for numbers in [large, small] {
                    if is_known || round == 0 && numbers == large {
                        plans.change(numbers, Carry::default());
                    } else {
                        plans.learn(usize::from(numbers == small));
                    }
                    granted += plans.take(Verb::ConsumeUpTo, 100);
                    if crashes {
                        plans.world.crash(usize::MAX);
                    }
                }
            }
            assert_eq!(granted, 100, "{small:?}");
        }
    }
}

/// Each would open with its own tokens again: 200 an hour, where either has 100.
#[test]
fn alternating_between_windows_that_open_at_different_moments_gains_nothing() {
    let window = |minutes: u64| Numbers::window(100, minutes * 60_000, 100);
    let (one, other) = (window(60), window(61));
    for changes in [false, true] {
        let mut plans = Plans::new(one);
        plans.change(other, Carry::default());
        let mut granted = 0;
        for round in 0..60 {
            if changes {
                plans.change(if round % 2 == 0 { one } else { other }, Carry::default());
            } else {
                plans.learn(1 - round % 2);
            }
            granted += plans.take(Verb::ConsumeUpTo, 100);
            plans.world.now += 10 * 60_000;
        }
        assert!(granted <= 100 * (10 + 2), "{granted} in ten hours");
    }
}

/// Three changes, each to a window that opens a millisecond after the previous one.
#[test]
fn each_change_to_a_window_that_opens_apart_adds_at_most_one_window() {
    let window = |period_ms| Numbers::window(100, period_ms, 100);
    let mut plans = Plans::new(window(1_000));
    plans.world.now = 1_000 + 4 * 503_005_503_000 - 1; // the least common multiple of all periods
    let mut granted = plans.take(Verb::ConsumeUpTo, 100);
    plans.world.now += 1;
    granted += plans.take(Verb::ConsumeUpTo, 100);
    for period_ms in 1_001..1_004 {
        plans.change(window(period_ms), Carry::default());
        assert_eq!(plans.take(Verb::ConsumeUpTo, 100), 0, "not before it opens");
        plans.world.now += 1;
        granted += plans.take(Verb::ConsumeUpTo, 100);
    }
    assert_eq!(granted, 100 + 100 + 3 * 100);
    // They keep their accounts, so a second time adds nothing.
    for period_ms in [1_000, 1_001, 1_002, 1_003, 1_000] {
        plans.change(window(period_ms), Carry::default());
        assert_eq!(plans.take(Verb::ConsumeUpTo, 100), 0);
    }
}

/// With three numbers, too: the largest's grants are not forgotten on the way through the smallest.
#[test]
fn passing_through_a_smaller_capacity_gains_nothing() {
    let fixed = |capacity| Numbers::bucket(0, 1_000, capacity);
    let mut plans = Plans::new(fixed(1_000));
    plans.take(Verb::Consume, 400);
    plans.change(Numbers::bucket(10, 1_000, 10), Carry::default());
    plans.world.now += 5_000;
    assert_eq!(plans.left(), 10);
    plans.change(fixed(1_001), Carry::default());
    assert_eq!(plans.left(), 601);
}

/// An account that refills slowly, and was emptied, says nothing about what faster numbers have left.
#[test]
fn an_account_emptied_long_ago_takes_nothing_from_new_numbers() {
    let mut plans = Plans::new(DAILY);
    plans.take(Verb::Consume, 1_000);
    plans.change(HOURLY, Carry::default());
    plans.world.now += 36_000 * 60;
    assert_eq!(plans.left(), 60);
    plans.change(Numbers::bucket(120, 3_600_000, 120), Carry::default());
    assert_eq!(plans.left(), 60);
}

/// Neither takes more from the smaller plan than it has.
#[test]
fn what_a_larger_plan_grants_or_books_puts_no_smaller_one_into_debt() {
    let mut plans = Plans::new(Numbers::bucket(0, 1_000, 100));
    plans.take(Verb::Consume, 100);
    plans.change(Numbers::bucket(0, 1_000, 1_000), Carry::default());
    let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let id = plans.world.decided(action, vec![1]).reservation.unwrap().id;
    decided(plans.world.ask(Action::Settle(id), Some(vec![301]), None));
    assert_eq!(plans.left(), 900 - 301);
    plans.learn(1);
    assert_eq!(plans.left(), 0);
}

/// Nor is a debt forgotten because the larger plan has room for it.
#[test]
fn a_debt_returns_with_the_smaller_plan() {
    let owing = |capacity| Numbers { max_debt: 100, ..Numbers::bucket(0, 1_000, capacity) };
    let mut plans = Plans::new(owing(100));
    plans.take(Verb::Charge, 180);
    plans.change(owing(200), Carry::default());
    assert_eq!((plans.left(), plans.take(Verb::Consume, 1)), (20, 1));
    plans.learn(1);
    assert_eq!(plans.left(), -80);
}

/// A debt under the larger plan is owed under the smaller one, too, in one request or in two.
#[test]
fn debt_from_a_settlement_is_owed_under_all_plans() {
    let owing = |capacity| Numbers { max_debt: 100, ..Numbers::bucket(0, 1_000, capacity) };
    for reserved in [1, 100, 180] {
        let mut plans = Plans::new(owing(100));
        plans.take(Verb::Consume, 100);
        plans.change(owing(200), Carry::default());
        let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = plans.world.decided(action, vec![reserved]).reservation;
        match id {
            Some(one) => _ = decided(plans.world.ask(Action::Settle(one.id), Some(vec![180]), None)),
            None => _ = plans.take(Verb::Charge, 180),
        }
        assert_eq!(plans.left(), -80);
        plans.learn(1);
        assert_eq!(plans.left(), -80, "{reserved}");
    }
}

#[test]
fn tokens_given_back_by_reservations_count_at_the_numbers_in_force() {
    let slower = |rate| Numbers::window(rate, 30_000, 20);
    let mut plans = Plans::new(slower(10));
    let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    plans.world.decided(action, vec![5]); // given back in 60 s
    plans.take(Verb::Consume, 15);
    let refused = |plans: &mut Plans| plans.world.decided(Action::Take(Verb::Consume), vec![20]).decision();
    let _ = refused(&mut plans);
    plans.change(slower(5), Carry::default());
    let found = refused(&mut plans);
    plans.world.crash(usize::MAX);
    assert_eq!(found, refused(&mut plans));
}

/// The frontend that cancels does not know of the change yet, and the bucket is full again by the numbers that it knows.
#[test]
fn a_cancellation_under_earlier_numbers_counts_at_the_latest_ones() {
    for closes in [Action::Cancel, Action::Settle] {
        let mut plans = Plans::new(Numbers::bucket(2, 1_000, 4));
        let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = plans.world.decided(action, vec![2]).reservation.unwrap().id;
        plans.change(Numbers::bucket(1, 1_000, 2), Carry::default());
        plans.learn(1);
        plans.world.now += 1_002;
        let cost = matches!(closes(id), Action::Settle(_)).then(|| vec![0]);
        assert!(decided(plans.world.ask(closes(id), cost, None)).decision().is_allow());
        plans.learn(0);
        assert_eq!(plans.left(), 2);
    }
}

#[test]
fn a_reset_begins_limits_of_either_kind_anew() {
    let (bucket, window) = (Numbers::bucket(0, 1_000, 100), Numbers::window(0, 1_000, 100));
    let mut plans = Plans::new(bucket);
    plans.take(Verb::Consume, 100);
    plans.change(window, Carry::default());
    assert_eq!(plans.left(), 0);
    plans.change(window, Carry::Reset);
    assert_eq!(plans.left(), 100);
    plans.change(bucket, Carry::default());
    assert_eq!(plans.left(), 100);
}

/// The one that would be full soonest is forgotten, and starts full when its name returns.
#[test]
fn a_bucket_keeps_eight_limits_that_its_policy_no_longer_has() {
    let hours = |hours: u64| (format!("h{hours}"), Numbers::bucket(1, hours * 3_600_000, 1));
    let limits: Vec<_> = (1..=10).map(hours).collect();
    let limit = |index: usize| [(limits[index].0.as_str(), limits[index].1)];
    for (others, left) in [(8, 0), (9, 1)] {
        let mut plans = Plans::named(&limits[0].0, limits[0].1);
        assert_eq!(plans.take(Verb::Consume, 1), 1);
        for index in 1..=others {
            plans.change_all(&limit(index), Carry::default());
            plans.learn(0);
            assert_eq!(plans.take(Verb::Consume, 1), 1);
        }
        plans.change_all(&limit(0), Carry::default());
        plans.learn(0);
        assert_eq!(plans.left(), left, "after {others} others");
    }
}

/// Its accounts count as one.
#[test]
fn a_removed_limit_takes_no_room_from_others() {
    let fixed = |capacity| Numbers::bucket(0, 1_000, capacity);
    let mut plans = Plans::new(fixed(100));
    let hourly = ("b", Numbers::bucket(100, 3_600_000, 100));
    plans.change_all(&[("a", fixed(100)), hourly], Carry::default());
    plans.learn(0);
    plans.take(Verb::Consume, 100);
    for capacity in 101..108 {
        plans.change_all(&[("a", fixed(capacity)), hourly], Carry::default());
        plans.learn(0);
        plans.left();
    }
    for limits in [&[("c", fixed(1))][..], &[hourly]] {
        plans.change_all(limits, Carry::default());
        plans.learn(0);
        assert_eq!(plans.left(), i64::from(limits[0].0 == "c"));
    }
}

/// The bucket is forgotten once all accounts are full, except those no more generous than the numbers in force.
#[test]
fn accounts_are_forgotten_when_all_are_full() {
    for (capacity, full_after_ms) in [(10, 10_000), (20, 1_000)] {
        let mut plans = Plans::new(Numbers::bucket(1, 1_000, 20));
        plans.take(Verb::Consume, 10);
        plans.change(Numbers::bucket(10, 1_000, capacity), Carry::default());
        plans.left();
        for (wait_ms, is_there) in [(full_after_ms - 1, true), (1, false)] {
            plans.world.now += wait_ms;
            plans.world.clean();
            assert_eq!(plans.world.has_row(), is_there, "{capacity}");
        }
    }
}

#[test]
fn leased_tokens_are_charged_to_all_accounts_and_make_none_owe() {
    let fixed = |capacity| Numbers::bucket(0, 1_000, capacity);
    for crashes in 0..16 {
        let crash = |plans: &mut Plans, which: u8| {
            if crashes & which > 0 {
                plans.world.crash(usize::MAX);
            }
        };
        let mut plans = Plans::new(fixed(1_000));
        plans.take(Verb::Consume, 995);
        plans.change(fixed(2_000), Carry::default());
        plans.world.lease(vec![500], Vec::new());
        assert_eq!(plans.left(), 505, "as long as they may be returned");
        crash(&mut plans, 1);
        plans.world.now += 20_000;
        if crashes & 2 == 0 {
            assert_eq!(plans.left(), 505);
            crash(&mut plans, 4);
        }
        plans.change(fixed(1_000), Carry::default());
        crash(&mut plans, 8);
        assert_eq!(plans.left(), 0, "{crashes:04b}");
    }
}

/// When a lease is over, the plan pays for it what it has at that moment. A later request, or a removal in between, changes nothing.
#[test]
fn a_smaller_plan_pays_for_leases_what_it_had_when_they_were_over() {
    let daily = |capacity| Numbers::bucket(1, 86_400_000, capacity);
    let secondly = |capacity| Numbers::bucket(1, 1_000, capacity);
    for crashes in [false, true] {
        for asked_at in [1_000, 15_000, 30_000] {
            let mut plans = Plans::new(secondly(100));
            let start = plans.world.now;
            plans.take(Verb::Consume, 50);
            plans.world.lease(vec![25], Vec::new());
            plans.world.now = start + 1_000;
            plans.change_all(&[("a", secondly(30))], Carry::default());
            plans.learn(0);
            plans.world.now = plans.world.now.max(start + asked_at);
            plans.left();
            if crashes {
                plans.world.crash(usize::MAX);
            }
            plans.world.now = start + 30_000;
            assert_eq!(plans.left(), 17, "nothing left at 13 s, asked at {asked_at}, {crashes}");
        }
        for (removed_at, asked_at, back_at) in
            [(20_000, 30_000, 40_000), (2_000, 2_500, 3_000), (2_000, 15_000, 20_000)]
        {
            let mut plans = Plans::new(daily(100));
            let start = plans.world.now;
            let change = |plans: &mut Plans, limits: &[(&str, Numbers)], at: i64| {
                plans.world.now = start + at;
                plans.change_all(limits, Carry::default());
                plans.learn(0);
            };
            plans.world.lease(vec![50], Vec::new());
            change(&mut plans, &[("a", daily(10)), ("b", daily(5))], 1_000);
            plans.left();
            change(&mut plans, &[("b", daily(5))], removed_at);
            for at in [removed_at, asked_at] {
                plans.world.now = start + at;
                plans.left();
                if crashes {
                    plans.world.crash(usize::MAX);
                }
            }
            change(&mut plans, &[("a", daily(10)), ("b", daily(5))], back_at);
            plans.left();
            plans.world.now = start + 50_000;
            assert_eq!(plans.left(), 0, "removed at {removed_at}, {crashes}");
        }
    }
}

/// The row was below all accounts by the block of the larger plan: of the smaller one, five times its capacity.
#[test]
fn a_crash_under_a_larger_plan_costs_a_smaller_one_no_more_than_its_own_share() {
    let daily =
        |capacity: u64| Numbers { write_ahead: capacity / 20, ..Numbers::bucket(capacity, 86_400_000, capacity) };
    let mut plans = Plans::new(daily(100));
    plans.take(Verb::Consume, 1);
    plans.change(daily(10_000), Carry::default());
    plans.take(Verb::Consume, 200);
    plans.world.now += 10;
    plans.take(Verb::Consume, 1);
    plans.world.crash(0);
    plans.change(daily(100), Carry::default());
    let left = plans.left();
    assert!((-5..=0).contains(&left), "{left}");
}

/// It is debited at its end, under the numbers of that moment: the old ones do not refill until then.
#[test]
fn a_lease_that_is_over_after_a_change_does_not_delay_it() {
    for ((old, new), left) in [((100, 0), 50 + 100 - 25), ((0, 100), 50 + 1_300 - 25)] {
        for (is_seen, crashes) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut plans = Plans::new(Numbers::bucket(old, 1_000, 10_000));
            plans.take(Verb::Consume, 9_950);
            let start = plans.world.now;
            plans.world.lease(vec![25], Vec::new());
            plans.world.now = start + 1_000;
            plans.change(Numbers::bucket(new, 1_000, 10_000), Carry::AsIs);
            if is_seen {
                plans.left();
            }
            if crashes {
                plans.world.crash(usize::MAX);
            }
            plans.world.now = start + 14_000;
            assert_eq!(plans.left(), left, "{old} to {new}, {is_seen}, {crashes}");
        }
    }
}

/// What was spent of a lease is charged as if it had been spent before the change.
#[test]
fn tokens_leased_under_a_larger_plan_are_not_owed_under_a_smaller_one() {
    let fixed = |capacity| Numbers::bucket(0, 1_000, capacity);
    for (spent, left) in [(Some(0), 10), (Some(3), 7), (Some(10), 0), (Some(60), 0), (Some(100), 0), (None, 0)] {
        for crashes in [[false, false], [true, false], [false, true], [true, true]] {
            let mut plans = Plans::new(fixed(1_000));
            let lease = answer(plans.world.lease(vec![100], Vec::new())).and_then(|decided| decided.lease).unwrap();
            let crash = |plans: &mut Plans, crashes: bool| {
                if crashes {
                    plans.world.crash(usize::MAX);
                }
            };
            plans.change(fixed(10), Carry::default());
            assert_eq!(plans.left(), 0, "all of it may be spent");
            crash(&mut plans, crashes[0]);
            match spent {
                Some(spent) => _ = plans.world.lease(vec![0], vec![EndedLease { id: lease.id, spent: vec![spent] }]),
                None => plans.world.now += 20_000,
            }
            crash(&mut plans, crashes[1]);
            let context = format!("{spent:?} of 100 spent, {crashes:?}");
            // After a crash that forgets the report, all tokens count as spent.
            plans.world.now += if crashes[1] { 20_000 } else { 0 };
            let (now_left, most) = (plans.left(), left);
            assert!(now_left == most || (crashes[1] && now_left == 0), "{now_left} left: {context}");
            plans.change(fixed(1_000), Carry::default());
            let of_all = 1_000 - i64::try_from(spent.unwrap_or(100)).unwrap();
            let now_left = plans.left();
            assert!(now_left == of_all || (crashes[1] && now_left == 900), "{now_left} left: {context}");
        }
    }
}

const HUNDRED: Numbers = Numbers::bucket(0, 1_000, 100);

/// Limits by name, and what is left of each.
type Named = (Vec<(&'static str, Numbers)>, Vec<i64>);

/// What may take the place of an unnamed limit of [`HUNDRED`] that has 40 left.
fn named_lists() -> [Named; 5] {
    let [more, less] = [130, 7].map(|capacity| Numbers::bucket(0, 1_000, capacity));
    [
        (vec![("a", HUNDRED)], vec![40]),
        (vec![("a", more)], vec![70]),
        (vec![("b", less), ("a", HUNDRED)], vec![7, 40]),
        // Without a limit of the same numbers, it is the first.
        (vec![("a", more), ("b", less)], vec![70, 7]),
        (vec![("a", HUNDRED), ("b", HUNDRED)], vec![40, 100]),
    ]
}

#[test]
fn naming_a_limit_refills_no_bucket() {
    for (after, left) in named_lists() {
        for crashes in [false, true] {
            let mut plans = Plans::named("", HUNDRED);
            plans.take(Verb::Consume, 50);
            let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
            let id = plans.world.decided(reserve, vec![10]).reservation.unwrap().id;
            let change = |plans: &mut Plans, limits: &[(&str, Numbers)]| {
                plans.change_all(limits, Carry::default());
                plans.learn(0);
                if crashes {
                    plans.world.crash(usize::MAX);
                }
            };
            change(&mut plans, &after);
            assert_eq!(plans.world.levels(), left, "{after:?}");
            let World { policy, as_of, now, ledger, .. } = &plans.world;
            let state = ledger.inspect(std::slice::from_ref(policy), as_of.unwrap(), *now);
            let called = |(name, tokens): &(Option<String>, u64)| name.as_deref() == Some("a") && *tokens == 10;
            assert!(state.reservations[0].tokens[0].limits.iter().any(called), "{:?}", state.reservations);
            // A frontend that uses the previous version, and then the next.
            plans.learn(1);
            assert_eq!(plans.left(), 40);
            plans.learn(0);
            assert_eq!(plans.world.levels(), left);
            // It keeps its tokens under its name, and after losing it.
            change(&mut plans, &after);
            assert_eq!(plans.world.levels(), left);
            change(&mut plans, &[("", HUNDRED)]);
            assert_eq!(plans.left(), 40);
            change(&mut plans, &after);
            decided(plans.world.ask(Action::Cancel(id), None, None));
            let position = after.iter().position(|(name, _)| *name == "a").unwrap();
            assert_eq!(plans.world.levels()[position], left[position] + 10, "{after:?}");
        }
    }
}

/// Without a registry, and of numbers that come with requests: no version says which of the limits had no name.
#[test]
fn naming_a_limit_without_known_versions_refills_no_bucket() {
    for is_inline in [false, true] {
        for (after, left) in named_lists() {
            for crashes in 0..8_u8 {
                let of = |limits: &[(&str, Numbers)]| Arc::new(defined(limits, is_inline));
                let crash = |world: &mut World, bit: u8| {
                    if crashes & bit != 0 {
                        world.crash(usize::MAX);
                    }
                };
                let mut world = World::empty(&of(&[("", HUNDRED)]));
                world.decided(Action::Take(Verb::Consume), vec![50]);
                let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
                let id = world.decided(reserve, vec![10]).reservation.unwrap().id;
                crash(&mut world, 1);
                world.policy = of(&after);
                assert_eq!(world.levels(), left, "{after:?}, {crashes:03b}");
                crash(&mut world, 2);
                assert_eq!(world.levels(), left, "{after:?}, {crashes:03b}");
                let costs = after.iter().map(|(name, _)| u64::from(*name == "a")).collect();
                world.decided(Action::Take(Verb::Consume), costs);
                crash(&mut world, 4);
                decided(world.ask(Action::Cancel(id), None, None));
                let expected =
                    after.iter().zip(&left).map(|((name, _), left)| if *name == "a" { left + 9 } else { *left });
                assert_eq!(world.levels(), expected.collect::<Vec<_>>(), "{after:?}, {crashes:03b}");
            }
        }
    }
}

/// Another name is another limit.
#[test]
fn renaming_a_limit_resets_it() {
    let fixed = Numbers::bucket(0, 1_000, 100);
    for first in ["a", ""] {
        let mut plans = Plans::named(first, fixed);
        plans.take(Verb::Consume, 60);
        plans.change(fixed, Carry::default());
        assert_eq!(plans.left(), 40);
        plans.change_all(&[("c", fixed)], Carry::default());
        plans.learn(0);
        assert_eq!(plans.left(), 100);
        plans.change_all(&[("a", fixed)], Carry::default());
        plans.learn(0);
        assert_eq!(plans.left(), 40);
    }
}

/// A frontend that cannot reach the registry does not know that the limit had no name at first, and neither does a registry that has lost
/// its rows.
#[test]
fn without_the_registry_s_timeline_a_named_limit_is_the_same() {
    let fixed = Numbers::bucket(0, 1_000, 100);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for crashes in 0..8_u8 {
        let crash = |plans: &mut Plans, bit: u8| {
            if crashes & bit != 0 {
                plans.world.crash(usize::MAX);
            }
        };
        let alone = Arc::new(defined(&[("a", fixed)], false));
        let mut plans = Plans::named("", fixed);
        plans.change(fixed, Carry::default());
        (plans.world.policy, plans.world.as_of) = (Arc::clone(&alone), Some(0));
        plans.take(Verb::Consume, 50);
        let id = plans.world.decided(reserve, vec![10]).reservation.unwrap().id;
        let lease = decided(plans.world.lease(vec![5], Vec::new())).lease.unwrap();
        crash(&mut plans, 1);
        plans.learn(0);
        assert_eq!(plans.left(), 35, "{crashes:03b}");
        plans.world.lease(vec![0], vec![EndedLease { id: lease.id, spent: vec![2] }]);
        decided(plans.world.ask(Action::Settle(id), Some(vec![4]), None));
        assert_eq!(plans.left(), 44, "{crashes:03b}");
        let lease = decided(plans.world.lease(vec![5], Vec::new())).lease.unwrap();
        crash(&mut plans, 2);
        let since = plans.world.now + 1;
        let anew = defined(&[("a", fixed)], false).in_force_since(since);
        (plans.world.policy, plans.world.as_of, plans.world.now) = (Arc::new(anew), Some(since), since);
        assert_eq!(plans.left(), 39, "{crashes:03b}");
        plans.world.lease(vec![0], vec![EndedLease { id: lease.id, spent: vec![2] }]);
        crash(&mut plans, 4);
        plans.versions.push(Arc::clone(&plans.world.policy));
        plans.change_all(&[("b", fixed), ("a", fixed)], Carry::default());
        plans.learn(0);
        assert_eq!(plans.world.levels(), [100, 42], "{crashes:03b}");
    }
}

/// A reservation made while a limit had no name is found by its name, too, after the registry has lost its rows.
#[test]
fn reservations_follow_the_names_that_their_limits_get() {
    let fixed = Numbers::bucket(0, 1_000, 100);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for crashes in 0..8_u8 {
        for (real, left) in [(Some(4), 91), (Some(12), 83), (None, 95)] {
            let mut plans = Plans::named("", fixed);
            let crash = |plans: &mut Plans, bit: u8| {
                if crashes & bit != 0 {
                    plans.world.crash(usize::MAX);
                }
            };
            plans.take(Verb::Consume, 5);
            let id = plans.world.decided(reserve, vec![10]).reservation.unwrap().id;
            crash(&mut plans, 1);
            plans.change(fixed, Carry::default());
            assert_eq!(plans.left(), 85);
            crash(&mut plans, 2);
            plans.lose(&[("a", fixed)]);
            assert_eq!(plans.left(), 85, "{crashes:03b}");
            crash(&mut plans, 4);
            let action = if real.is_some() { Action::Settle(id) } else { Action::Cancel(id) };
            decided(plans.world.ask(action, real.map(|real| vec![real]), None));
            assert_eq!(plans.left(), left, "settled at {real:?}, {crashes:03b}");
            crash(&mut plans, 1);
            assert_eq!(plans.left(), left);
        }
    }
}

/// Renamed entries are written at once, even if the request that brought the name has failed, and the timer writes first.
#[test]
fn a_failed_request_leaves_no_limit_half_named() {
    let limit = Numbers { write_ahead: 5, ..Numbers::bucket(0, 1_000, 100) };
    let mut plans = Plans::named("", limit);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let id = plans.world.decided(reserve, vec![10]).reservation.unwrap().id;
    let row = |id: u64| format!("r:{id:013x}");
    plans.world.crash(usize::MAX);
    plans.take(Verb::Consume, 1);
    plans.take(Verb::Consume, 1);
    plans.change(limit, Carry::default());
    assert_eq!(plans.left(), 88);
    plans.take(Verb::Consume, 1);
    plans.lose(&[("a", limit)]);
    let World { policy, as_of, now, .. } = &plans.world;
    let (asked, now) = ([Arc::clone(policy)], *now);
    let request = ObjectRequest {
        action: Action::Extend(id), // needs a random number
        request_id: None,
        costs: vec![vec![1]],
        shadow_costs: Vec::new(),
        known: Some(Known { as_of: as_of.unwrap(), ids: vec![policy.id()] }),
        has_consequences: false,
        lease: None,
    };
    plans.world.ledger.ask(&asked, &request, now, || None).unwrap_err();
    let before = plans.world.storage.clone();
    plans.world.flush_idle();
    plans.world.flush_idle();
    plans.world.in_flight.clear();
    let is_written = |name: &str| plans.world.storage.get(name) != before.get(name);
    assert_eq!([is_written("b:plan"), is_written(&row(id))], [true; 2]);
    plans.world.crash(0);
    decided(plans.world.ask(Action::Settle(id), Some(vec![4]), None));
    assert_eq!(plans.left(), 93);
}

/// The same for tokens that a batch holds or has taken.
#[test]
fn a_batchs_holds_follow_the_names_that_their_limits_get() {
    let fixed = Numbers::bucket(0, 1_000, 100);
    for is_committed_before in [false, true] {
        let mut plans = Plans::named("", fixed);
        let id = plans.world.decided(Action::Hold(7), vec![10]).reservation.unwrap().id;
        if is_committed_before {
            decided(plans.world.ask(Action::Settle(id), None, None));
        }
        plans.change(fixed, Carry::default());
        assert_eq!(plans.left(), 90);
        plans.lose(&[("a", fixed)]);
        assert_eq!(plans.left(), 90);
        let committed = decided(plans.world.ask(Action::Settle(id), None, None));
        assert_eq!((tokens(&committed.limits[0]), plans.left()), (10, 90));
        decided(plans.world.ask(Action::Cancel(id), None, None));
        assert_eq!(plans.left(), 100, "committed before it had a name: {is_committed_before}");
    }
}

/// An earlier name continues where it was.
#[test]
fn a_name_that_returns_continues_its_own_account() {
    let fixed = Numbers::bucket(0, 1_000, 100);
    let mut plans = Plans::named("a", fixed);
    plans.take(Verb::Consume, 70);
    let change = |plans: &mut Plans, limits: &[(&str, Numbers)]| {
        plans.change_all(limits, Carry::default());
        plans.learn(0);
    };
    change(&mut plans, &[("", fixed)]);
    assert_eq!(plans.left(), 100);
    plans.take(Verb::Consume, 60);
    change(&mut plans, &[("a", fixed)]);
    assert_eq!(plans.left(), 30);
    change(&mut plans, &[("", fixed)]);
    change(&mut plans, &[("a", fixed), ("b", fixed)]);
    assert_eq!(plans.world.levels(), [30, 40]);
}

#[derive(Clone, Debug)]
enum Step {
    Change(usize),
    /// A frontend uses an earlier version, or the latest again.
    Learn(usize),
    Take(Verb, u64),
    Reserve(u64),
    /// Settles one of the reservations, or the other way round.
    Settle(usize, u64),
    Cancel(usize),
    /// Whether its tokens are spent at once, or when it ends.
    Lease(u64, bool),
    Return(usize, u64),
    Look,
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 0..4_u64, 2 => 0..12_u64, 1 => 0..50_u64];
    prop_oneof![
        4 => (0..12_usize).prop_map(Step::Change),
        2 => (0..4_usize).prop_map(Step::Learn),
        6 => cost().prop_map(|cost| Step::Take(Verb::Consume, cost)),
        4 => (1..99_u64).prop_map(|cost| Step::Take(Verb::ConsumeUpTo, cost)),
        1 => cost().prop_map(|cost| Step::Take(Verb::Charge, cost)),
        4 => cost().prop_map(Step::Reserve),
        3 => (0..9_usize, cost()).prop_map(|(which, cost)| Step::Settle(which, cost)),
        1 => (0..9_usize).prop_map(Step::Cancel),
        3 => (1..40_u64, any::<bool>()).prop_map(|(tokens, at_once)| Step::Lease(tokens, at_once)),
        2 => (0..4_usize, 0..40_u64).prop_map(|(which, spent)| Step::Return(which, spent)),
        1 => Just(Step::Look),
        4 => prop_oneof![0..20_i64, 0..400_i64, 0..8_000_i64, 0..90_000_i64].prop_map(Step::Wait),
        2 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..3_usize).prop_map(Step::Crash),
    ]
}

/// A grant, or a reservation, which counts at its real cost from the moment of its opening.
struct Grant {
    at: i64,
    tokens: u64,
    reservation: Option<u64>,
    /// When a reservation is given back, unless it is settled.
    until: Option<i64>,
}

/// Plays the steps, and checks after each that no interval ending then exceeds `most` plus a debt.
#[expect(clippy::too_many_lines, reason = "an arm for each step")]
fn follow(all: &[Numbers], steps: &[Step], most: impl Fn(&[Numbers], i64, i64) -> u64) {
    let mut plans = Plans::new(all[0]);
    let mut grants: Vec<Grant> = Vec::new();
    let mut seen = vec![all[0]];
    let mut leases: Vec<(Lease, bool)> = Vec::new();
    let mut has_leased = false;
    for step in steps {
        let granted = match *step {
            Step::Lease(wanted, at_once) => {
                let given = answer(plans.world.lease(vec![wanted], Vec::new())).and_then(|decided| decided.lease);
                let granted = given.as_ref().filter(|_| at_once).map_or(0, |lease| lease.tokens[0]);
                has_leased |= given.is_some();
                leases.extend(given.map(|lease| (lease, at_once)));
                granted
            }
            Step::Return(which, spent) => {
                let now = plans.world.now;
                leases.retain(|(lease, _)| now < lease.until);
                if let Some(index) = which.checked_rem(leases.len()) {
                    let (Lease { id, tokens, .. }, at_once) = leases.remove(index);
                    let spent = if at_once { tokens[0] } else { spent.min(tokens[0]) };
                    plans.world.lease(vec![0], vec![EndedLease { id, spent: vec![spent] }]);
                    if at_once { 0 } else { spent }
                } else {
                    0
                }
            }
            Step::Reserve(cost) => {
                let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
                let reserved = answer(plans.world.ask(action, Some(vec![cost]), None));
                if let Some(one) = reserved.and_then(|decided| decided.reservation) {
                    let until = Some(one.expires_at);
                    grants.push(Grant { at: plans.world.now, tokens: cost, reservation: Some(one.id), until });
                }
                0
            }
            Step::Settle(which, cost) => {
                let mut open = grants.iter_mut().filter(|grant| grant.reservation.is_some());
                if let Some(grant) = open.nth(which)
                    && let Some(id) = grant.reservation.take()
                    // As a charge, what exceeds the reservation may take what is leased.
                    && let cost = if has_leased { cost.min(grant.tokens) } else { cost }
                    && let Some(settled) = answer(plans.world.ask(Action::Settle(id), Some(vec![cost]), None))
                {
                    (grant.tokens, grant.until) = (tokens(&settled.limits[0]), None);
                }
                0
            }
            Step::Cancel(which) => {
                let mut open = grants.iter_mut().filter(|grant| grant.reservation.is_some());
                if let Some(grant) = open.nth(which)
                    && let Some(id) = grant.reservation.take()
                    && answer(plans.world.ask(Action::Cancel(id), None, None)).is_some()
                {
                    (grant.tokens, grant.until) = (0, None);
                }
                0
            }
            Step::Change(which) => {
                seen.push(all[which % all.len()]);
                plans.change(all[which % all.len()], Carry::default());
                0
            }
            Step::Learn(back) => {
                plans.learn(back);
                0
            }
            // What has happened already may take what is leased.
            Step::Take(Verb::Charge, _) if has_leased => 0,
            Step::Take(verb, cost) => plans.take(verb, cost),
            Step::Look => {
                plans.left();
                0
            }
            Step::Wait(ms) => {
                plans.world.now += ms;
                0
            }
            Step::Arrive(count) => {
                plans.world.arrive(count);
                0
            }
            Step::FlushIdle => {
                plans.world.flush_idle();
                0
            }
            Step::Clean => {
                plans.world.clean();
                if !plans.world.has_row() {
                    grants.clear();
                }
                0
            }
            Step::Crash(arrived) => {
                plans.world.crash(arrived);
                0
            }
        };
        let now = plans.world.now;
        if granted > 0 {
            grants.push(Grant { at: now, tokens: granted, reservation: None, until: None });
        }
        let mut sum = 0;
        for Grant { at, tokens, until, .. } in grants.iter().rev() {
            sum += if until.is_none_or(|until| now < until) { *tokens } else { 0 };
            let bound = most(&seen, *at, now) + seen.iter().map(|numbers| numbers.max_debt).max().unwrap();
            assert!(sum <= bound, "{sum} of {bound} from {at} to {now}, after {step:?}");
        }
    }
}

fn largest(seen: &[Numbers]) -> u64 {
    seen.iter().map(|numbers| numbers.capacity).max().unwrap_or(0)
}

/// The most that any of them refills, windows or buckets, whose fractions of a token add up.
fn fastest(seen: &[Numbers], from: i64, to: i64) -> u64 {
    let refill = |numbers: &Numbers| {
        Numbers { capacity: 0, ..*numbers }.most(from, to) + u64::from(numbers.kind == Kind::TokenBucket)
    };
    seen.iter().map(refill).max().unwrap_or(0)
}

/// Numbers that may allow a debt.
fn owing() -> impl Strategy<Value = Numbers> {
    let debt = prop_oneof![2 => Just(0), 1 => 0..20_u64, 1 => 0..60_u64];
    (numbers(), debt).prop_map(|(numbers, max_debt)| Numbers { max_debt, ..numbers })
}

/// Of two limits, each of which may be absent, and of one that comes in two kinds.
fn limits(which: usize) -> Vec<(&'static str, Numbers)> {
    let a = [Numbers::bucket(10, 1_000, 40), Numbers::bucket(3, 1_000, 100), Numbers::bucket(50, 1_000, 50)];
    let (window, b) = (Numbers::window(20, 2_000, 30), Numbers::bucket(1, 1_000, 20));
    match which % 7 {
        0..3 => vec![("a", a[which % 7])],
        3 => vec![("a", window)],
        4 => vec![("a", a[0]), ("b", b)],
        5 => vec![("b", Numbers::bucket(2, 1_000, 15)), ("a", a[1])],
        _ => vec![("b", b)],
    }
}

/// The same of calendars.
fn of_calendars(which: usize) -> Vec<(&'static str, Numbers)> {
    let a = [
        Numbers::of_calendar(10, "month 1 UTC", 40),
        Numbers::of_calendar(3, "week 1 America/Sao_Paulo", 100),
        Numbers::of_calendar(50, "month 15 Europe/Berlin", 50),
    ];
    let (day, b) = (Numbers::of_calendar(2, "day Europe/Berlin", 30), Numbers::of_calendar(9, "quarter 02-01 UTC", 20));
    match which % 7 {
        0..3 => vec![("a", a[which % 7])],
        3 => vec![("a", day)],
        4 => vec![("a", a[0]), ("b", b)],
        5 => vec![("b", Numbers::bucket(2, DAY_MS.cast_unsigned(), 15)), ("a", a[1])],
        _ => vec![("b", b)],
    }
}

/// The change that is made, if any, and how; the wait before it, a request's cost, and whether the process ends before that.
type Changed = (usize, Carry, i64, Option<u64>, bool);

/// Plays the steps with a bucket that is used at each change, and with one that is used only by requests with a cost.
fn changed_at_each_moment(
    first: Numbers,
    limits: fn(usize) -> Vec<(&'static str, Numbers)>,
    steps: Vec<Changed>,
) -> Result<(), TestCaseError> {
    let mut both = [Plans::new(first), Plans::new(first)];
    for plans in &mut both {
        plans.take(Verb::Consume, 1);
    }
    for (which, how, wait_ms, cost, crashes) in steps {
        let mut stands = Vec::new();
        for (plans, is_asked) in both.iter_mut().zip([false, true]) {
            plans.world.now += wait_ms;
            if which < 7 {
                plans.change_all(&limits(which), how);
                plans.learn(0);
            }
            if is_asked || cost.is_some() {
                plans.world.levels();
            }
            if crashes {
                plans.world.crash(usize::MAX);
            }
            if let Some(cost) = cost {
                let granted = plans.take(Verb::Consume, cost);
                stands.push((granted, plans.world.levels()));
            }
        }
        prop_assert!(stands.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", stands);
    }
    Ok(())
}

fn answer(reply: ObjectReply) -> Option<Decided> {
    match reply {
        ObjectReply::Decided(decided) => Some(decided),
        _ => None,
    }
}

/// Who knows what the policy was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    Registry,
    /// There is no registry.
    Nobody,
    /// The numbers come with requests.
    Caller,
}

#[derive(Clone, Copy, Debug)]
enum Naming {
    /// The numbers of the limit, and whether another is beside it once it has a name.
    Change(Numbers, bool, Carry),
    Learn(usize),
    Unregistered,
    Lost,
    Take(Verb, u64),
    Reserve(u64),
    Settle(usize, u64),
    Lease(u64),
    Return(usize, u64),
    Wait(i64),
    Crash(usize),
    Clean,
}

fn naming() -> impl Strategy<Value = Naming> {
    let how = prop_oneof![5 => Just(Carry::Additive), 1 => (0..4_usize).prop_map(|index| Carry::ALL[index])];
    prop_oneof![
        3 => (0..4_usize, any::<bool>(), how).prop_map(|(which, beside, how)| Naming::Change(limits(which)[0].1, beside, how)),
        1 => (0..3_usize).prop_map(Naming::Learn),
        1 => Just(Naming::Unregistered),
        1 => Just(Naming::Lost),
        5 => (prop::sample::select(vec![Verb::Consume, Verb::ConsumeUpTo, Verb::Charge]), 0..20_u64)
            .prop_map(|(verb, cost)| Naming::Take(verb, cost)),
        3 => (0..20_u64).prop_map(Naming::Reserve),
        2 => (0..6_usize, 0..30_u64).prop_map(|(which, cost)| Naming::Settle(which, cost)),
        2 => (1..20_u64).prop_map(Naming::Lease),
        1 => (0..6_usize, 0..20_u64).prop_map(|(which, spent)| Naming::Return(which, spent)),
        4 => prop_oneof![0..400_i64, 0..8_000_i64, 0..90_000_i64].prop_map(Naming::Wait),
        1 => (0..3_usize).prop_map(Naming::Crash),
        1 => Just(Naming::Clean),
    ]
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// Faster numbers never have less capacity.
    #[test]
    fn any_number_of_changes_grants_no_more_than_the_largest_plan(
        all in prop::collection::vec(owing(), 1..13).prop_map(plans),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        follow(&all, &steps, most_generous);
    }

    #[test]
    fn any_number_of_changes_grants_no_more_than_the_largest_capacity_and_the_fastest_refill(
        all in prop::collection::vec(owing(), 1..13),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let buckets: Vec<_> = all.iter().map(|numbers| Numbers { kind: Kind::TokenBucket, ..*numbers }).collect();
        follow(&buckets, &steps, most_of_each);
    }

    /// Even if a frontend asks under an earlier version.
    #[test]
    fn windows_that_open_together_grant_no_more_than_the_largest_capacity_and_the_fastest_refill(
        all in prop::collection::vec(owing(), 1..13),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let windows = |numbers: &Numbers| Numbers { kind: Kind::FixedWindow, period_ms: 1_000, ..*numbers };
        let windows: Vec<_> = all.iter().map(windows).collect();
        follow(&windows, &steps, |seen, from, to| largest(seen) + fastest(seen, from, to));
    }

    /// Refills that are out of step differ by a window. And a window does not record when it was asked: if that was after a change, by a
    /// frontend that did not know of it, the next numbers refill from the change on.
    #[test]
    fn windows_that_open_apart_grant_the_refill_of_an_interval_longer_by_one_window(
        all in prop::collection::vec(owing(), 1..13),
        are_all_windows in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let kind = |numbers: Numbers| if are_all_windows { Kind::FixedWindow } else { numbers.kind };
        let all: Vec<_> = all.into_iter().map(|numbers| Numbers { kind: kind(numbers), ..numbers }).collect();
        follow(&all, &steps, |seen, from, to| {
            let windows = seen.iter().filter(|numbers| numbers.kind == Kind::FixedWindow);
            let longest_ms = windows.map(|numbers| numbers.period_ms.cast_signed()).max().unwrap_or(0);
            largest(seen) + fastest(seen, from - longest_ms, to)
        });
    }

    /// The same with windows of calendars, whose zones, units and first days are changed.
    #[test]
    fn calendars_that_change_grant_the_refill_of_an_interval_longer_by_one_window(
        all in prop::collection::vec(long_numbers(), 1..9),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let slowly = |step: &Step| if let Step::Wait(ms) = step { Step::Wait(ms * 50_000) } else { step.clone() };
        let steps: Vec<_> = steps.iter().map(slowly).collect();
        follow(&all, &steps, |seen, from, to| {
            largest(seen) + fastest(seen, from - seen.iter().map(Numbers::longest_ms).max().unwrap_or(0), to)
        });
    }

    /// A rarely used bucket has the level of one used at each change.
    #[test]
    fn each_change_applies_from_its_moment_whenever_the_bucket_is_used(
        steps in prop::collection::vec(
            (0..14_usize, prop_oneof![5 => Just(Carry::Additive), 1 => (0..4_usize).prop_map(|index| Carry::ALL[index])],
             prop_oneof![0..400_i64, 0..5_000_i64, 0..60_000_i64], prop::option::of(0..40_u64), any::<bool>()),
            1..60,
        ),
    ) {
        changed_at_each_moment(Numbers::bucket(10, 1_000, 40), limits, steps)?;
    }

    /// The same with calendars.
    #[test]
    fn each_change_of_a_calendar_applies_from_its_moment_whenever_the_bucket_is_used(
        steps in prop::collection::vec(
            (0..14_usize, prop_oneof![5 => Just(Carry::Additive), 1 => (0..4_usize).prop_map(|index| Carry::ALL[index])],
             prop_oneof![0..DAY_MS / 2, 0..40 * DAY_MS], prop::option::of(0..40_u64), any::<bool>()),
            1..60,
        ),
    ) {
        changed_at_each_moment(Numbers::of_calendar(10, "month 1 UTC", 40), of_calendars, steps)?;
    }

    /// A limit that gets a name has the level of one that had it from the start, whatever happens before, after and in turn.
    #[test]
    fn a_limit_that_gets_a_name_had_it_from_the_start(
        who in prop::sample::select(vec![Knows::Registry, Knows::Registry, Knows::Nobody, Knows::Caller]),
        named_at in 0..6_usize,
        steps in prop::collection::vec(naming(), 1..80),
    ) {
        let first = Numbers { max_debt: 5, ..Numbers::bucket(10, 1_000, 40) };
        let alone = |limits: &[(&str, Numbers)]| Arc::new(defined(limits, who == Knows::Caller));
        let mut both = ["", "a"].map(|name| match who {
            Knows::Registry => Plans::named(name, first),
            _ => Plans { world: World::empty(&alone(&[(name, first)])), versions: Vec::new() },
        });
        let (mut changes, mut reserved, mut leased) = (0, Vec::new(), Vec::new());
        let (mut is_asked_by_name, mut write_apart) = (false, false);
        let (mut names, mut last) = ([vec![""], vec!["a"]], first);
        for step in steps {
            match step {
                // What gets a name is written then, with numbers that were only asked about. A crash forgets these of the other.
                Naming::Crash(_) | Naming::Learn(_) | Naming::Unregistered | Naming::Lost if who != Knows::Registry => continue,
                Naming::Change(..) => {
                    changes += 1;
                    write_apart |= changes == named_at + 1; // only what gets a name is written
                }
                _ => {}
            }
            let mut stands = Vec::new();
            let (mut opened, mut lent) = (Vec::new(), Vec::new());
            for (index, plans) in both.iter_mut().enumerate() {
                let count = plans.world.policy.limits().len();
                match step {
                    Naming::Change(numbers, beside, how) => {
                        let limits = match () {
                            () if index == 0 && changes <= named_at => vec![("", numbers)],
                            () if changes <= named_at => vec![("a", numbers)],
                            () if beside => vec![("a", numbers), ("b", Numbers::bucket(1, 700, 20))],
                            () => vec![("a", numbers)],
                        };
                        (names[index], last) = (limits.iter().map(|(name, _)| *name).collect(), numbers);
                        if who == Knows::Registry {
                            plans.change_all(&limits, how);
                            plans.learn(0);
                        } else {
                            plans.world.policy = alone(&limits);
                        }
                    }
                    // A frontend without the new name cannot know it, nor one without the registry any earlier version.
                    Naming::Learn(back) if is_asked_by_name => plans.learn(back.min(changes.saturating_sub(named_at + 1))),
                    Naming::Learn(back) => {
                        // A version before the name, after one with it: the account is renamed, which writes it.
                        write_apart |= changes > named_at && changes.saturating_sub(back) <= named_at;
                        plans.learn(back);
                    }
                    // A frontend that has not heard from the registry. A bucket in memory or with a row tells it of the newer version.
                    Naming::Unregistered => {
                        is_asked_by_name |= changes > named_at;
                        let limits: Vec<_> = names[index].iter().map(|name| (*name, last)).collect();
                        plans.world.policy = Arc::new(defined(&limits, false));
                        plans.world.as_of = Some(0);
                    }
                    Naming::Lost => {
                        is_asked_by_name |= changes > named_at;
                        write_apart = true;
                        plans.learn(0);
                        plans.world.levels();
                        let limits: Vec<_> = names[index].iter().map(|name| (*name, last)).collect();
                        plans.lose(&limits);
                    }
                    Naming::Take(verb, cost) => _ = plans.world.ask(Action::Take(verb), Some(vec![cost; count]), None),
                    Naming::Reserve(cost) => {
                        let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
                        let reserved = answer(plans.world.ask(action, Some(vec![cost; count]), None));
                        opened.extend(reserved.and_then(|decided| decided.reservation).map(|one| one.id));
                    }
                    Naming::Settle(which, cost) => {
                        let id = reserved.get(which).map(|ids: &Vec<u64>| ids[index]);
                        id.map(|id| plans.world.ask(Action::Settle(id), Some(vec![cost; count]), None));
                    }
                    Naming::Lease(wanted) => {
                        let leased = answer(plans.world.lease(vec![wanted; count], Vec::new()));
                        lent.extend(leased.and_then(|decided| decided.lease).map(|lease| lease.id));
                    }
                    Naming::Return(which, spent) => {
                        if let Some(ids) = leased.get(which).map(|ids: &Vec<u64>| ids[index]) {
                            plans.world.lease(vec![0; count], vec![EndedLease { id: ids, spent: vec![spent; count] }]);
                        }
                    }
                    Naming::Wait(ms) => plans.world.now += ms,
                    Naming::Crash(arrived) if !write_apart => plans.world.crash(arrived),
                    // Only one may have a row that tells such a frontend of the newer version.
                    Naming::Crash(_) if plans.world.as_of == Some(0) => {}
                    // The two write at other times since then. What a crash may cost depends on that.
                    Naming::Crash(_) => {
                        for _ in 0..2 {
                            plans.world.flush_idle();
                        }
                        plans.world.crash(usize::MAX);
                    }
                    Naming::Clean => plans.world.clean(),
                }
                let count = plans.world.policy.limits().len();
                let look = plans.world.ask(Action::Look(Verb::Refund), Some(vec![0; count]), None);
                let levels = answer(look).map(|decided| {
                    let levels = decided.limits.iter().map(|limit| signed(limit.remaining, limit.owed));
                    levels.collect::<Vec<_>>()
                });
                stands.push((levels, plans.world.now));
            }
            prop_assert_eq!(&stands[0], &stands[1], "{:?}", step);
            reserved.extend((opened.len() == 2).then_some(opened));
            leased.extend((lent.len() == 2).then_some(lent));
        }
    }

    /// Reserved under one plan, and settled under larger ones: as if the real cost had been taken in the first place.
    #[test]
    fn settling_under_a_larger_plan_counts_under_the_smaller_too(
        all in prop::collection::vec((0..9_u64, 1..40_u64), 2..6),
        (reserved, real) in (1..20_u64).prop_flat_map(|reserved| (Just(reserved), 1..=reserved)),
        charges in prop::collection::vec((0..9_000_i64, 0..12_u64, 0..3_usize), 1..20),
        crashes in any::<bool>(),
    ) {
        let mut capacity = 20;
        let mut numbers = Vec::new();
        for (rate, more) in all {
            capacity += more;
            numbers.push(Numbers { max_debt: 1_000, ..Numbers::bucket(rate, 1_000, capacity) });
        }
        let mut levels = Vec::new();
        for cost in [reserved, real] {
            let mut plans = Plans::new(numbers[0]);
            let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
            let id = plans.world.decided(action, vec![cost]).reservation.unwrap().id;
            let mut later = numbers[1..].iter();
            for &(wait_ms, charge, changes) in &charges {
                plans.world.now += wait_ms % 3_000;
                plans.take(Verb::Charge, charge);
                if changes == 0 && let Some(&next) = later.next() {
                    plans.change(next, Carry::Additive);
                    plans.left();
                }
                if crashes {
                    plans.world.crash(usize::MAX);
                }
            }
            decided(plans.world.ask(Action::Settle(id), Some(vec![real]), None));
            levels.push(plans.left());
        }
        prop_assert_eq!(levels[0], levels[1]);
    }
}
