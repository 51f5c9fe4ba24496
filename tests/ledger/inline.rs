//! Numbers that come with each request, and may differ the next time.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::MAX_OTHERS;
use tollgate::limit::{Calendar, Kind, Verb, Zone};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, ObjectReply};

use crate::chance;
use crate::world::{DAY_MS, World, decided, tokens};

/// An inline limit of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) kind: Kind,
    pub(crate) rate: u64,
    pub(crate) period_ms: u64,
    pub(crate) capacity: u64,
    pub(crate) max_debt: u64,
    pub(crate) write_ahead: u64,
    /// The text of its windows' calendar.
    pub(crate) calendar: Option<&'static str>,
}

impl Numbers {
    pub(crate) const fn bucket(rate: u64, period_ms: u64, capacity: u64) -> Self {
        Self { kind: Kind::TokenBucket, rate, period_ms, capacity, max_debt: 0, write_ahead: 0, calendar: None }
    }

    pub(crate) const fn window(rate: u64, period_ms: u64, capacity: u64) -> Self {
        Self { kind: Kind::FixedWindow, ..Self::bucket(rate, period_ms, capacity) }
    }

    pub(crate) const fn of_calendar(rate: u64, calendar: &'static str, capacity: u64) -> Self {
        Self { calendar: Some(calendar), ..Self::window(rate, 1, capacity) }
    }

    /// The length of its longest window; 0 of a bucket.
    pub(crate) fn longest_ms(&self) -> i64 {
        let calendar = self.calendar.map(|calendar| Calendar::parse(calendar, Zone::named).unwrap());
        match (calendar, self.kind) {
            // Clocks may be set back.
            (Some(calendar), _) => calendar.longest_ms().cast_signed() + 3_600_000,
            (None, Kind::TokenBucket) => 0,
            (None, _) => self.period_ms.cast_signed(),
        }
    }

    /// The most that it grants from `from` to `to`. The windows of these tests begin at multiples of their period.
    pub(crate) fn most(&self, from: i64, to: i64) -> u64 {
        if let Some(calendar) = self.calendar {
            let calendar = Calendar::parse(calendar, Zone::named).unwrap();
            let next = |at: &i64| Some(calendar.window(*at).1);
            let openings = std::iter::successors(next(&from), next).take_while(|opens_at| *opens_at <= to).count();
            return self.capacity + self.rate * openings as u64;
        }
        let (period_ms, ms) = (self.period_ms.cast_signed(), (to - from).cast_unsigned());
        self.capacity
            + match self.kind {
                Kind::TokenBucket => self.rate * ms / self.period_ms,
                Kind::FixedWindow => self.rate * (to / period_ms - from / period_ms).cast_unsigned(),
                // They may begin at any moment.
                Kind::FirstUseWindow => self.rate * ms.div_ceil(self.period_ms),
                _ => unreachable!("a new kind"),
            }
    }
}

/// The policy of these limits, by name.
fn inline(limits: &[(&str, Numbers)]) -> Arc<Policy> {
    Arc::new(defined(limits, true))
}

/// The same of an operator, unless it is inline.
/// One with an empty name has none.
pub(crate) fn defined(limits: &[(&str, Numbers)], is_inline: bool) -> Policy {
    let numbers = limits.iter().map(|(name, numbers)| {
        let Numbers { kind, rate, period_ms, capacity, max_debt, calendar, .. } = numbers;
        let kind = kind.word();
        let calendar = calendar.map(|calendar| format!(r#","calendar":"{calendar}""#)).unwrap_or_default();
        let name = if name.is_empty() { String::new() } else { format!(r#""name":"{name}","#) };
        format!(
            r#"{{{name}"kind":"{kind}","rate":{rate},"period_ms":{period_ms},"capacity":{capacity},"max_debt":{max_debt},"initial":null,"offset_ms":null{calendar}}}"#
        )
    });
    let numbers = numbers.collect::<Vec<_>>().join(",");
    let blocks = limits.iter().map(|(_, numbers)| numbers.write_ahead.to_string()).collect::<Vec<_>>().join(",");
    let definition = format!(
        r#"{{"name":"plan","numbers":[{numbers}],"write_ahead":[{blocks}],"reservation_ttl_ms":60000,"unsettled":"refund","inline":{is_inline}}}"#
    );
    Policy::from_definition(&definition).unwrap()
}

fn plan(numbers: Numbers) -> Arc<Policy> {
    inline(&[("a", numbers)])
}

impl World {
    /// Makes a request under these numbers, and returns how many tokens were granted.
    fn take(&mut self, policy: &Arc<Policy>, verb: Verb, cost: u64) -> u64 {
        self.policy = Arc::clone(policy);
        let decided = self.decided(Action::Take(verb), vec![cost; policy.limits().len()]);
        if decided.decision().is_allow() { tokens(&decided.limits[0]) } else { 0 }
    }

    /// Tokens left under these numbers.
    fn left(&mut self, policy: &Arc<Policy>) -> i64 {
        self.policy = Arc::clone(policy);
        self.levels()[0]
    }
}

const FREE: Numbers = Numbers::bucket(10, 60_000, 10);
const PRO: Numbers = Numbers::bucket(1_000, 60_000, 1_000);

#[test]
fn spent_tokens_stay_spent_and_the_rest_of_other_numbers_is_available_at_once() {
    let (free, pro) = (plan(FREE), plan(PRO));
    let mut world = World::empty(&free);
    assert_eq!(world.take(&free, Verb::Consume, 10), 10);
    assert_eq!(world.take(&free, Verb::Consume, 1), 0);
    assert_eq!(world.left(&pro), 990, "an exhausted customer buys a larger plan");
    world.now += 300;
    assert_eq!(world.left(&pro), 995, "idle time counts by the numbers that ask");
    assert_eq!(world.take(&pro, Verb::Consume, 100), 100);
    assert_eq!(world.left(&free), 0, "and goes back: more than the smaller plan has was spent");
    world.now += 6_000;
    assert_eq!((world.left(&free), world.left(&pro)), (1, 995));
    assert_eq!(world.take(&free, Verb::Consume, 1), 1);
    assert_eq!(world.left(&pro), 994, "each is charged for the other's grants");
    world.now += 60_000;
    assert_eq!((world.left(&free), world.left(&pro), world.left(&free)), (10, 1_000, 10), "idle time counts for both");
}

#[test]
fn a_smaller_plan_begins_with_its_unspent_tokens_and_owes_nothing_beyond() {
    for (spent, left) in [(0, 10), (4, 6), (10, 0), (11, 0), (990, 0), (1_000, 0)] {
        let mut world = World::empty(&plan(PRO));
        assert_eq!(world.take(&plan(PRO), Verb::Consume, spent), spent);
        assert_eq!(world.left(&plan(FREE)), left, "of 10, if {spent} of 1000 were spent");
    }
}

/// The difference of the capacities, given each time, would grant 910 of 100 in ten alternations.
#[test]
fn alternating_plans_gets_no_more_than_the_larger_has() {
    let windows = [10, 100].map(|rate| Numbers::window(rate, 86_400_000, rate));
    for plans in [windows, [Numbers::bucket(0, 1_000, 10), Numbers::bucket(0, 1_000, 100)]] {
        for crashes in [false, true] {
            let [small, large] = plans.map(plan);
            let mut world = World::empty(&small);
            world.now -= world.now % DAY_MS;
            let mut granted = 0;
            for _ in 0..10 {
                for plan in [&small, &large] {
                    granted += world.take(plan, Verb::ConsumeUpTo, 100);
                    if crashes {
                        world.crash(usize::MAX);
                    }
                }
            }
            assert_eq!(granted, 100);
        }
    }
}

/// Even with more plans in turn than accounts: the forgotten ones are not the largest.
#[test]
fn any_number_of_plans_in_turn_grants_no_more_than_the_largest() {
    let plans: Vec<_> = (1..=20).map(|size| plan(Numbers::bucket(size, 3_600_000, 10 * size))).collect();
    let mut world = World::empty(&plans[0]);
    let orders = [(0..20).collect::<Vec<_>>(), (0..20).rev().collect(), (0..20).map(|index| index * 7 % 20).collect()];
    let granted: u64 = orders.iter().flatten().map(|&index| world.take(&plans[index], Verb::ConsumeUpTo, 999)).sum();
    assert_eq!(granted, 200);
    world.now += 3_600_000;
    let granted: u64 = orders.iter().flatten().map(|&index| world.take(&plans[index], Verb::ConsumeUpTo, 999)).sum();
    assert_eq!(granted, 20);
}

#[test]
fn going_back_finds_the_plans_own_account() {
    let (free, pro) = (plan(FREE), plan(PRO));
    let mut world = World::empty(&free);
    assert_eq!(world.left(&free), 10);
    assert_eq!(world.take(&free, Verb::Consume, 1), 1);
    for left in [989, 979] {
        assert_eq!(world.take(&pro, Verb::Consume, 10), 10);
        world.crash(usize::MAX);
        assert_eq!(world.left(&free), 0);
        assert_eq!(world.left(&pro), left);
    }
}

/// The numbers before the last ones count too: only with them would nothing be gained here.
#[test]
fn fast_numbers_gain_nothing_after_a_spent_burst_by_way_of_a_third_plan() {
    let [burst, between, fast] =
        [Numbers::bucket(1, 1_000, 100), Numbers::bucket(0, 1_000, 10), Numbers::bucket(5, 1_000, 50)].map(plan);
    let mut world = World::empty(&burst);
    assert_eq!(world.take(&burst, Verb::Consume, 60), 60);
    assert_eq!(world.left(&between), 0);
    assert_eq!(world.left(&fast), -10, "40 tokens are left, and 50 fewer fit");
    world.now += 2_000;
    assert_eq!(world.left(&fast), 0);
}

#[test]
fn months_of_grants_by_a_larger_plan_do_not_lock_out_the_smaller() {
    let (free, pro) = (plan(FREE), plan(PRO));
    let mut world = World::empty(&free);
    world.take(&free, Verb::Consume, 10);
    for _ in 0..60 {
        world.now += DAY_MS;
        assert_eq!(world.take(&pro, Verb::Consume, 1_000), 1_000);
    }
    assert_eq!(world.left(&free), 0);
    world.now += 60_000;
    assert_eq!(world.left(&free), 10);
    world.clean();
    assert!(!world.has_row(), "full under both");
}

/// Whether a request takes them at once, or settles at more than it has reserved.
#[test]
fn tokens_booked_by_a_larger_plan_are_not_owed_under_the_smaller() {
    let (free, pro) = (plan(FREE), plan(PRO));
    for crashes in [false, true] {
        let mut world = World::empty(&free);
        world.take(&free, Verb::Consume, 1);
        world.policy = Arc::clone(&pro);
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = world.decided(reserve, vec![1]).reservation.unwrap().id;
        if crashes {
            world.crash(usize::MAX);
        }
        assert_eq!(tokens(&world.decided(Action::Settle(id), vec![300]).limits[0]), 300);
        assert_eq!((world.left(&pro), world.left(&free)), (699, 0));
        world.now += 6_000;
        assert_eq!(world.left(&free), 1);
    }
}

/// A debt stays, and no smaller plan adds to it; a larger one has room for it.
#[test]
fn a_debt_is_owed_under_all_numbers() {
    let json = r#"{"name":"plan","numbers":[{"name":"a","kind":"token_bucket","rate":10,"period_ms":60000,"capacity":10,"max_debt":50,"initial":null,"offset_ms":null}],"write_ahead":[0],"reservation_ttl_ms":60000,"unsettled":"keep","inline":true}"#;
    let (owing, pro) = (Arc::new(Policy::from_definition(json).unwrap()), plan(PRO));
    let mut world = World::empty(&owing);
    world.policy = Arc::clone(&owing);
    world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![40]);
    assert_eq!([world.left(&owing), world.left(&plan(FREE)), world.left(&pro)], [-30, -30, 960]);
}

#[test]
fn tokens_outlast_a_change_of_kind() {
    let [bucket, window] = [Numbers::bucket(0, 1_000, 10), Numbers::window(0, 1_000, 20)].map(plan);
    let mut world = World::empty(&bucket);
    assert_eq!(world.take(&bucket, Verb::Consume, 4), 4);
    assert_eq!(world.left(&window), 16);
    assert_eq!(world.take(&window, Verb::Consume, 3), 3);
    assert_eq!(world.left(&bucket), 3);

    // A window that opens in a moment would add its tokens to those that a bucket has just granted.
    let [bucket, window] = [Numbers::bucket(10, 1_000, 10), Numbers::window(10, 1_000, 10)].map(plan);
    let mut world = World::empty(&bucket);
    assert_eq!(world.take(&bucket, Verb::Consume, 4), 4);
    world.now += 999;
    assert_eq!(world.left(&window), 5, "6 were left and 9 have come back, less a window");
    world.now += 1;
    assert_eq!(world.left(&window), 10);
}

#[test]
fn numbers_that_stay_the_same_decide_as_a_policy_does() {
    let json = r#"{"plan":{"limits":[{"name":"a","rate":10,"period":"1m","capacity":10,"write_ahead":0}],"unsettled":"refund","reservation_ttl":"1m"}}"#;
    let policies = Policies::parse(json).unwrap();
    let (mut ordinary, mut other) = (World::new(&policies, "plan"), World::empty(&plan(FREE)));
    for (ms, cost) in [(0, 4), (1, 7), (6_000, 7), (0, 1), (90_000, 9), (1, 2), (5_999, 1), (0, 0), (DAY_MS, 11)] {
        for world in [&mut ordinary, &mut other] {
            world.now += ms;
        }
        let ask = |world: &mut World| world.decided(Action::Take(Verb::Consume), vec![cost]);
        assert_eq!(ask(&mut ordinary), ask(&mut other));
        assert_eq!(ordinary.rows_written, other.rows_written);
    }
}

#[test]
fn a_crash_returns_to_no_account_what_another_granted() {
    let numbers = |capacity| Numbers { write_ahead: 10, ..Numbers::bucket(0, 1_000, capacity) };
    let (one, two) = (plan(numbers(100)), plan(numbers(200)));
    let mut world = World::empty(&two);
    assert_eq!(world.take(&two, Verb::Consume, 1), 1);
    for _ in 0..3 {
        assert_eq!(world.take(&one, Verb::Consume, 1), 1); // the second writes 10 fewer than there are
    }
    let rows = world.rows_written;
    assert_eq!(world.take(&one, Verb::Consume, 5), 5);
    assert_eq!(world.rows_written, rows, "memory is ahead of storage");
    world.crash(usize::MAX);
    let left = world.left(&two);
    assert!((181..=191).contains(&left), "{left}: 9 were granted, and a crash costs 10 at most");
}

/// Otherwise fast numbers would begin as if nothing had been granted lately.
#[test]
fn grants_forgotten_in_a_crash_do_not_count_as_idle_time() {
    let slow = plan(Numbers { write_ahead: 50, ..Numbers::bucket(0, 1_000, 100) });
    let fast = plan(Numbers::bucket(100, 1_000, 40));
    let mut world = World::empty(&slow);
    assert_eq!(world.take(&slow, Verb::Consume, 1) + world.take(&slow, Verb::Consume, 1), 2);
    world.now += 900;
    let rows = world.rows_written;
    assert_eq!(world.take(&slow, Verb::Consume, 37), 37);
    assert_eq!(world.rows_written, rows);
    world.crash(usize::MAX);
    assert_eq!(world.left(&fast), 48 - 60, "98 were written, less a block");
}

#[test]
fn a_reservation_is_settled_and_cancelled_under_other_numbers() {
    let (free, pro) = (plan(FREE), plan(PRO));
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    for crashes in [false, true] {
        let mut world = World::empty(&pro);
        assert_eq!(world.take(&pro, Verb::Consume, 500), 500);
        assert_eq!(world.left(&free), 0);
        world.now += 60_000;
        let [settled, cancelled, expired] =
            [8, 1, 1].map(|cost| world.decided(reserve, vec![cost]).reservation.unwrap().id);
        if crashes {
            world.crash(usize::MAX);
        }
        world.policy = Arc::clone(&pro);
        decided(world.ask(Action::Settle(settled), Some(vec![5]), None));
        decided(world.ask(Action::Cancel(cancelled), None, None));
        assert_eq!(world.left(&pro), 994, "5 and the one that is open");
        assert_eq!(world.left(&free), 4);
        if crashes {
            world.crash(usize::MAX);
        }
        world.now += 60_001;
        world.clean(); // without a request
        world.policy = Arc::clone(&pro);
        assert!(decided(world.ask(Action::Settle(expired), None, None)).is_late);
        assert_eq!((world.left(&pro), world.left(&free)), (1_000, 10));
    }
}

#[test]
fn refunds_charges_and_resets_reach_all_accounts() {
    let (free, pro) = (plan(FREE), plan(PRO));
    let mut world = World::empty(&pro);
    assert_eq!(world.take(&pro, Verb::Consume, 900), 900);
    assert_eq!(world.left(&free), 0);
    world.take(&free, Verb::Refund, 50);
    assert_eq!(world.left(&pro), 150);
    assert_eq!(world.take(&free, Verb::Charge, 6), 6);
    assert_eq!((world.left(&pro), world.left(&free)), (144, 4));
    world.take(&free, Verb::Reset, 0);
    assert_eq!(world.left(&pro), 1_000);
}

#[test]
fn peeks_write_nothing_and_a_row_has_at_most_eight_accounts_per_limit() {
    let mut world = World::empty(&plan(FREE));
    assert_eq!(world.take(&plan(FREE), Verb::Consume, 1), 1);
    let rows = world.rows_written;
    for capacity in 20..32 {
        world.left(&plan(Numbers::bucket(1, 1_000, capacity)));
        world.crash(usize::MAX);
    }
    assert_eq!(world.rows_written, rows);
    for capacity in 20..32 {
        world.take(&plan(Numbers::bucket(1, 1_000, capacity)), Verb::Consume, 1);
        let stored = String::from_utf8_lossy(&world.storage["b:plan"]).matches("token_bucket").count() as u64;
        assert_eq!(stored, (capacity - 18).min(8), "those that were asked last");
    }
    // Other names are other limits, possibly many: those left longest ago are dropped.
    let names: Vec<_> = (0..99).map(|index| format!("limit-{index}-{}", "n".repeat(50))).collect();
    for names in names.chunks(8) {
        let eight: Vec<_> = names.iter().map(|name| (name.as_str(), FREE)).collect();
        world.take(&inline(&eight), Verb::Consume, 1);
    }
    let row = &world.storage["b:plan"];
    assert!(row.len() < 20_000, "{} bytes", row.len());
    world.crash(0);
    let last: Vec<_> = names[96..].iter().map(|name| (name.as_str(), FREE)).collect();
    world.policy = inline(&last);
    assert_eq!(world.levels(), [9, 9, 9]);
}

/// The one used longest ago is forgotten, and starts full when its name returns.
#[test]
fn a_bucket_keeps_fifty_six_limits_that_a_request_does_not_have() {
    let named = |number: usize| inline(&[(&format!("n{number}"), FREE)]);
    for (others, left) in [(MAX_OTHERS, [9, 9]), (MAX_OTHERS + 1, [9, 10])] {
        let mut world = World::empty(&named(0));
        for number in 0..=others {
            assert_eq!(world.take(&named(number), Verb::Consume, 1), 1);
        }
        world.crash(usize::MAX);
        assert_eq!([1, 0].map(|number| world.left(&named(number))), left, "{others} others");
    }
}

/// Callers choose the names, so full buckets of many do not wait for an alarm; but no peek writes for that.
#[test]
fn full_buckets_of_many_names_are_forgotten() {
    let free = plan(FREE).definition();
    let named = |name: String| {
        let definition = free.replacen("\"plan\"", &format!("\"{name}\""), 1);
        Arc::new(Policy::from_definition(&definition).unwrap())
    };
    for (names, kept) in [(63, 63), (64, 1), (200, 1)] {
        let mut world = World::empty(&plan(FREE));
        for n in 0..names {
            assert_eq!(world.take(&named(format!("p{n}")), Verb::Consume, 1), 1);
        }
        assert_eq!(world.storage.len(), names, "none of them is full");
        for n in (0..names).step_by(9) {
            assert_eq!(world.left(&named(format!("p{n}"))), 9);
        }
        world.now += 60_000;
        let rows_written = world.rows_written;
        for n in 0..1_000 {
            assert_eq!(world.left(&named(format!("q{n}"))), 10);
        }
        assert_eq!(world.rows_written, rows_written);
        assert_eq!(world.take(&named("p0".to_owned()), Verb::Consume, 2), 2);
        assert_eq!(world.storage.len(), kept);
        for crashes in [false, true] {
            if crashes {
                world.crash(0);
            }
            assert_eq!((world.left(&named("p0".to_owned())), world.left(&named("p1".to_owned()))), (8, 10));
        }
    }
}

#[test]
fn the_largest_and_the_slowest_numbers_take_over_from_each_other() {
    let (most, longest) = ((1 << 53) - 1, 1 << 51);
    let all = [
        Numbers::bucket(most, 1, most),
        Numbers::bucket(1, longest, 1),
        Numbers::window(1, longest, 1),
        Numbers::window(most, longest, 512),
        Numbers::bucket(0, 1, most),
        Numbers::bucket(0, longest, 0),
        Numbers::bucket(most, longest, 500),
    ];
    let policies = all.map(plan);
    let mut world = World::empty(&policies[0]);
    for (index, ms) in [0, 1, 50_000, DAY_MS, 1 << 52, -50_000, 0, 1 << 40].into_iter().cycle().take(100).enumerate() {
        world.now = world.now.min(1 << 53) + ms;
        let policy = &policies[index * index % all.len()];
        world.take(policy, Verb::ConsumeUpTo, most);
        world.take(&policies[index % all.len()], Verb::Refund, most / 3);
        assert!(world.left(policy) <= most.cast_signed());
        world.crash(index);
    }
}

#[test]
fn an_existing_policy_hands_its_tokens_over() {
    let policies =
        Policies::parse(r#"{"plan":{"limits":[{"name":"a","rate":10,"period":"1m","write_ahead":0}]}}"#).unwrap();
    let ordinary = Arc::new(Policy::clone(policies.get("plan").unwrap()).in_force_since(5));
    let mut world = World { as_of: Some(9), ..World::empty(&ordinary) };
    assert_eq!(world.take(&ordinary, Verb::Consume, 4), 4);
    for crashes in [false, true] {
        if crashes {
            world.crash(usize::MAX);
        }
        world.as_of = Some(3); // a frontend that does not know the policy
        assert_eq!(world.left(&plan(PRO)), 996);
        world.as_of = Some(9);
        assert_eq!(world.left(&ordinary), 6, "and back");
    }
}

#[test]
fn a_policy_that_comes_after_the_numbers_of_requests_goes_on_with_their_accounts() {
    let (free, pro) = (plan(FREE), plan(PRO));
    let version = |limit: &str, since| {
        let json = format!(r#"{{"plan":{{"limits":[{{"name":"a",{limit},"write_ahead":0}}]}}}}"#);
        Arc::new(Policy::clone(Policies::parse(&json).unwrap().get("plan").unwrap()).in_force_since(since))
    };
    let same_as_pro = r#""rate":1000,"period":"1m""#;
    for crashes in [false, true] {
        let mut world = World::empty(&free);
        assert_eq!(world.take(&free, Verb::Consume, 10), 10);
        assert_eq!(world.left(&pro), 990);
        assert_eq!(world.take(&pro, Verb::Consume, 1), 1);
        world.as_of = Some(5);
        assert_eq!(world.take(&version(r#""rate":20,"period":"1m""#, 5), Verb::ConsumeUpTo, 99), 9);
        if crashes {
            world.crash(usize::MAX);
        }
        world.as_of = Some(world.now);
        assert_eq!(world.left(&version(same_as_pro, world.now)), 980);
    }
}

#[test]
fn numbers_that_were_only_peeked_at_lower_no_others() {
    let (fast, slow) = (plan(Numbers::bucket(10, 1_000, 10)), plan(Numbers::bucket(0, 1_000, 100)));
    let mut world = World::empty(&fast);
    assert_eq!((world.left(&fast), world.left(&slow), world.left(&fast)), (10, 100, 10));
    assert_eq!(world.take(&fast, Verb::Consume, 10), 10);
    assert_eq!(world.left(&slow), 0, "no more than was left");
}

/// Time before the reservation was opened does not count as if it had come after.
#[test]
fn settling_a_limit_reserved_at_no_cost_spends_under_other_numbers_too() {
    let requests = Numbers::bucket(100, 60_000, 100);
    let of = |tokens| inline(&[("requests", requests), ("tokens", Numbers::bucket(tokens, 60_000, tokens))]);
    let (free, pro) = (of(100), of(200));
    for crashes in [false, true] {
        let mut world = World::empty(&free);
        assert_eq!(world.levels(), [100, 100]);
        world.now += 30_000;
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = world.decided(reserve, vec![1, 0]).reservation.unwrap().id;
        if crashes {
            world.crash(usize::MAX);
        }
        world.policy = Arc::clone(&pro);
        assert_eq!(world.levels(), [99, 200]);
        let settled = world.decided(Action::Settle(id), vec![1, 90]);
        assert_eq!(tokens(&settled.limits[1]), 90);
        assert_eq!(world.levels(), [99, 110]);
    }
}

#[test]
fn rounding_creates_no_debt() {
    let (old, new) = (plan(Numbers::bucket(1, 1_000, 3)), plan(Numbers::bucket(1, 86_400_000, 1)));
    let mut world = World::empty(&old);
    assert_eq!(world.take(&old, Verb::Consume, 1), 1);
    world.now += 420;
    assert_eq!(world.left(&new), 0);
}

/// Windows that open at other moments begin at most a window of the earlier numbers lower.
#[test]
fn an_exhausted_customer_who_buys_a_plan_of_other_periods_goes_on() {
    let day = 86_400_000;
    let [daily, hourly, bucket] = [
        Numbers::window(100, day, 100),
        Numbers::window(1_000, 3_600_000, 1_000),
        Numbers::bucket(1_000, 3_600_000, 1_000),
    ];
    for (small, large, left) in
        [(daily, hourly, 800), (daily, bucket, 804), (Numbers::bucket(100, day, 100), hourly, 899)]
    {
        let mut world = World::empty(&plan(small));
        world.now -= world.now % DAY_MS;
        assert_eq!(world.take(&plan(small), Verb::Consume, 100), 100);
        world.now += 15_000;
        assert_eq!(world.left(&plan(large)), left, "{small:?} to {large:?}");
    }
}

/// The faster windows would have had 1 and 36 until then.
#[test]
fn fast_small_windows_gain_nothing_after_a_spent_large_one_of_other_periods() {
    let [large, none, fast] =
        [Numbers::window(0, 1_000, 37), Numbers::bucket(0, 100, 0), Numbers::window(12, 100, 1)].map(plan);
    let mut world = World::empty(&large);
    world.now += 143;
    assert_eq!(world.take(&large, Verb::ConsumeUpTo, 37), 37);
    world.now += 134;
    assert_eq!(world.left(&none), 0);
    world.now += 132;
    assert!(world.left(&fast) <= 0);
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, Verb, u64),
    Look(usize),
    /// Holds under the first numbers, and takes what is held under the second.
    Batch(usize, usize, u64),
    Reserve(usize, u64),
    /// Settles the oldest open reservation under these numbers, at no more than it has reserved.
    Settle(usize, u64),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 0..4_u64, 2 => 0..12_u64, 1 => 0..50_u64];
    let which = || 0..12_usize;
    prop_oneof![
        8 => (which(), cost()).prop_map(|(which, cost)| Step::Take(which, Verb::Consume, cost)),
        4 => (which(), 1..99_u64).prop_map(|(which, cost)| Step::Take(which, Verb::ConsumeUpTo, cost)),
        2 => which().prop_map(Step::Look),
        1 => (which(), which(), cost()).prop_map(|(hold, commit, cost)| Step::Batch(hold, commit, cost)),
        3 => (which(), cost()).prop_map(|(which, cost)| Step::Reserve(which, cost)),
        3 => (which(), cost()).prop_map(|(which, cost)| Step::Settle(which, cost)),
        4 => prop_oneof![0..20_i64, 0..400_i64, 0..8_000_i64, 0..90_000_i64].prop_map(Step::Wait),
        2 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..3_usize).prop_map(Step::Crash),
    ]
}

pub(crate) fn numbers() -> impl Strategy<Value = Numbers> {
    let kind = prop_oneof![4 => Just(Kind::TokenBucket), 2 => Just(Kind::FixedWindow), 1 => Just(Kind::FirstUseWindow)];
    let period = prop::sample::select(vec![100_u64, 300, 1_000, 2_500]);
    let small = || prop_oneof![2 => 0..12_u64, 1 => 0..50_u64];
    let block = prop_oneof![1 => Just(0_u64), 1 => 0..8_u64];
    let ends_full = any::<bool>();
    (kind, small(), period, small(), block, ends_full).prop_map(
        |(kind, rate, period_ms, capacity, block, ends_full)| {
            let capacity = if kind == Kind::FirstUseWindow && ends_full { capacity.min(rate) } else { capacity };
            Numbers { kind, rate, period_ms, capacity, max_debt: 0, write_ahead: block.min(capacity), calendar: None }
        },
    )
}

/// Numbers with windows of calendars, and others of periods as long.
pub(crate) fn long_numbers() -> impl Strategy<Value = Numbers> {
    const CALENDARS: [&str; 12] = [
        "day UTC",
        "day Europe/Berlin",
        "day Europe/London",
        "day America/Sao_Paulo",
        "week 1 UTC",
        "week 4 Europe/Berlin",
        "month 1 UTC",
        "month 15 UTC",
        "month 31 Europe/Berlin",
        "month 1 America/New_York",
        "quarter 01-01 UTC",
        "year 04-06 UTC",
    ];
    let period = prop::sample::select(vec![DAY_MS as u64, 7 * DAY_MS as u64, 30 * DAY_MS as u64, 31 * DAY_MS as u64]);
    let calendar = prop::option::weighted(0.6, prop::sample::select(CALENDARS.to_vec()));
    (numbers(), period, calendar).prop_map(|(numbers, period_ms, calendar)| match calendar {
        Some(_) => Numbers { kind: Kind::FixedWindow, period_ms, calendar, ..numbers },
        None => Numbers { period_ms, ..numbers },
    })
}

/// Numbers where faster ones never have a smaller capacity, as in most tables of plans: all of one period.
pub(crate) fn plans(mut all: Vec<Numbers>) -> Vec<Numbers> {
    let mut capacities: Vec<_> = all.iter().map(|numbers| numbers.capacity).collect();
    capacities.sort_unstable();
    all.sort_by_key(|numbers| numbers.rate);
    for (numbers, capacity) in all.iter_mut().zip(capacities) {
        *numbers = Numbers { kind: Kind::TokenBucket, period_ms: 1_000, capacity, ..*numbers };
        numbers.write_ahead = numbers.write_ahead.min(capacity);
    }
    // Equal rates of different capacities keep the order of both.
    all
}

/// A grant, or a reservation, which counts at its real cost from the moment of its opening.
struct Grant {
    at: i64,
    tokens: u64,
    /// The id of an open reservation, and when it is given back.
    open: Option<(u64, i64)>,
}

/// Plays the steps, and checks after each grant that no interval ending with it exceeds `most`.
fn follow(all: &[Numbers], steps: &[Step], most: impl Fn(&[Numbers], i64, i64) -> u64) {
    follow_slowly(all, steps, 1, most);
}

/// The same, with each wait that many times as long.
fn follow_slowly(all: &[Numbers], steps: &[Step], times: i64, most: impl Fn(&[Numbers], i64, i64) -> u64) {
    let policies: Vec<_> = all.iter().map(|&numbers| plan(numbers)).collect();
    let mut world = World::empty(&policies[0]);
    // Since the bucket was last forgotten.
    let mut grants: Vec<Grant> = Vec::new();
    let mut seen = Vec::new();
    for step in steps {
        let mut open = None;
        let granted = match *step {
            Step::Take(which, verb, cost) => {
                seen.push(all[which % all.len()]);
                world.take(&policies[which % all.len()], verb, cost)
            }
            Step::Look(which) => {
                seen.push(all[which % all.len()]);
                world.left(&policies[which % all.len()]);
                0
            }
            Step::Batch(hold, commit, cost) => {
                seen.extend([all[hold % all.len()], all[commit % all.len()]]);
                world.policy = Arc::clone(&policies[hold % all.len()]);
                match world.decided(Action::Hold(0), vec![cost]).reservation {
                    Some(reserved) => {
                        world.policy = Arc::clone(&policies[commit % all.len()]);
                        decided(world.ask(Action::Settle(reserved.id), None, None));
                        cost
                    }
                    None => 0,
                }
            }
            Step::Reserve(which, cost) => {
                seen.push(all[which % all.len()]);
                world.policy = Arc::clone(&policies[which % all.len()]);
                let reserved = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![cost]);
                open = reserved.reservation.map(|one| (one.id, one.expires_at));
                if open.is_some() { cost } else { 0 }
            }
            Step::Settle(which, cost) => {
                seen.push(all[which % all.len()]);
                world.policy = Arc::clone(&policies[which % all.len()]);
                if let Some(grant) = grants.iter_mut().find(|grant| grant.open.is_some()) {
                    let (id, _) = grant.open.take().unwrap();
                    // One that has expired takes what is left, or nothing if it is forgotten.
                    let settled = world.ask(Action::Settle(id), Some(vec![cost.min(grant.tokens)]), None);
                    grant.tokens = match settled {
                        ObjectReply::Decided(settled) => tokens(&settled.limits[0]),
                        _ => 0,
                    };
                }
                0
            }
            Step::Wait(ms) => {
                world.now += ms * times;
                0
            }
            Step::Arrive(count) => {
                world.arrive(count);
                0
            }
            Step::FlushIdle => {
                world.flush_idle();
                0
            }
            Step::Clean => {
                world.clean();
                if !world.has_row() {
                    grants.clear();
                    seen.clear();
                }
                0
            }
            Step::Crash(arrived) => {
                world.crash(arrived);
                0
            }
        };
        if granted == 0 {
            continue;
        }
        let now = world.now;
        grants.push(Grant { at: now, tokens: granted, open });
        let mut sum = 0;
        for Grant { at, tokens, open } in grants.iter().rev() {
            sum += if open.is_none_or(|(_, until)| now < until) { *tokens } else { 0 };
            let bound = most(&seen, *at, now);
            assert!(sum <= bound, "{sum} of {bound} from {at} to {now}, after {step:?}");
        }
    }
}

/// What the most generous of the numbers grants alone.
pub(crate) fn most_generous(seen: &[Numbers], from: i64, to: i64) -> u64 {
    seen.iter().map(|numbers| numbers.most(from, to)).max().unwrap_or(0)
}

/// What the largest capacity and the fastest refill of each kind grant together.
pub(crate) fn most_of_each(seen: &[Numbers], from: i64, to: i64) -> u64 {
    let refill = |kind| {
        let of_kind = seen.iter().filter(move |numbers| numbers.kind == kind);
        of_kind.map(move |numbers| {
            Numbers { capacity: 0, ..*numbers }.most(from, to) + u64::from(kind == Kind::TokenBucket)
        })
    };
    let capacity = seen.iter().map(|numbers| numbers.capacity).max().unwrap_or(0);
    capacity + refill(Kind::TokenBucket).max().unwrap_or(0) + refill(Kind::FixedWindow).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// A new plan begins with its capacity less what was spent of the other, refilled at its own rate since.
    #[test]
    fn another_plan_begins_with_its_unspent_tokens(
        all in prop::collection::vec(numbers(), 2).prop_map(plans),
        is_upwards in any::<bool>(),
        takes in prop::collection::vec((0..3_000_i64, 0..20_u64), 1..12),
        idle_ms in 0..4_000_i64,
        crashes in any::<bool>(),
    ) {
        let (old, new) = if is_upwards { (all[0], all[1]) } else { (all[1], all[0]) };
        prop_assume!(old != new);
        let old = Numbers { write_ahead: 0, ..old };
        let policy = plan(old);
        let mut world = World::empty(&policy);
        let milli = |numbers: &Numbers, tokens: u64| i64::try_from(tokens * numbers.period_ms).unwrap(); // of one period
        let refilled = |numbers: &Numbers, level: i64, ms: i64| {
            (level + numbers.rate.cast_signed() * ms).min(milli(numbers, numbers.capacity))
        };
        let (mut level, mut at) = (milli(&old, old.capacity), world.now);
        for (wait_ms, cost) in takes {
            world.now += wait_ms;
            let taken = world.take(&policy, Verb::ConsumeUpTo, cost);
            if taken > 0 {
                level = refilled(&old, level, world.now - at) - milli(&old, taken);
                at = world.now;
            }
        }
        if crashes {
            world.crash(usize::MAX);
        }
        world.now += idle_ms;
        let larger = milli(&new, new.capacity) - milli(&old, old.capacity);
        let begins = refilled(&new, (level + larger).max(level.min(0)), world.now - at).div_euclid(1_000);
        let left = world.left(&plan(new));
        // The tokens left and refilled are rounded to whole tokens.
        assert!((begins - 2..=begins).contains(&left), "{left} of {begins}");
    }

    /// Alternating between as many numbers as there are accounts, of both kinds, gains nothing, over any crashes.
    #[test]
    fn up_to_eight_numbers_grant_no_more_than_the_most_generous(
        all in prop::collection::vec(numbers(), 1..9),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        follow(&all, &steps, most_generous);
    }

    /// The same with windows of calendars, whose months and days differ in length.
    #[test]
    fn calendars_grant_no_more_than_the_most_generous(
        all in prop::collection::vec(long_numbers(), 1..9),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        follow_slowly(&all, &steps, 50_000, most_generous);
    }

    #[test]
    fn any_number_of_plans_grants_no_more_than_the_largest(
        all in prop::collection::vec(numbers(), 1..13).prop_map(plans),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        follow(&all, &steps, most_generous);
    }

    #[test]
    fn any_number_of_buckets_grants_no_more_than_the_largest_capacity_and_the_fastest_refill(
        all in prop::collection::vec(numbers(), 9..13),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let buckets: Vec<_> = all.iter().map(|numbers| Numbers { kind: Kind::TokenBucket, ..*numbers }).collect();
        follow(&buckets, &steps, most_of_each);
    }
}

/// 2026-11-10, and the moments after it that many days and milliseconds later.
const fn in_november(days: i64, ms: i64) -> i64 {
    1_794_268_800_000 + days * DAY_MS + ms
}

#[test]
fn another_billing_day_begins_at_most_one_window_lower() {
    let [first, mid] = ["month 1 UTC", "month 15 UTC"].map(|calendar| plan(Numbers::of_calendar(100, calendar, 100)));
    let mut world = World::empty(&first);
    world.now = in_november(0, 0);
    assert_eq!(world.take(&first, Verb::Consume, 10), 10);
    world.now += 60_000;
    assert_eq!(world.left(&mid), -10);
    world.now = in_november(5, 0);
    assert_eq!(world.left(&mid), 90, "on the 15th");
}

/// A year of months has more than a year of 31 days, by which their windows are counted.
#[test]
fn short_months_gain_nothing_beside_a_slower_period() {
    let slow = Numbers::bucket(100, 31 * DAY_MS as u64, 500);
    let months = Numbers::of_calendar(100, "month 1 UTC", 100);
    let [slow, months] = [slow, months].map(|numbers| (numbers, plan(numbers)));
    let mut world = World::empty(&slow.1);
    world.now = in_november(61, 0); // 10 January
    let mut grants = vec![(world.now, world.take(&slow.1, Verb::Consume, 1))];
    grants.push((world.now, world.take(&months.1, Verb::Consume, 1)));
    world.now = in_november(83, -1); // the last millisecond of January
    grants.push((world.now, world.take(&slow.1, Verb::Consume, 500)));
    let calendar = Calendar::parse("month 1 UTC", Zone::named).unwrap();
    for _ in 0..13 {
        world.now = calendar.window(world.now).1;
        grants.push((world.now, world.take(&months.1, Verb::Consume, 100)));
        for (index, (from, _)) in grants.iter().enumerate() {
            let granted: u64 = grants[index..].iter().map(|(_, tokens)| tokens).sum();
            let bound = most_generous(&[slow.0, months.0], *from, world.now);
            assert!(granted <= bound, "{granted} of {bound} from {from} to {}", world.now);
        }
    }
}

/// On a day of 25 hours in Berlin, no account is credited with the next window before it opens.
#[test]
fn a_window_that_clocks_lengthen_is_not_over_early() {
    let tiny = plan(Numbers::bucket(1, 365 * DAY_MS as u64, 1));
    let [slow, fast] = [1, 50].map(|rate| plan(Numbers::of_calendar(rate, "day Europe/Berlin", 100)));
    for asks_first in [false, true] {
        let mut world = World::empty(&slow);
        world.now = 1_824_933_601_000; // 2027-10-31T00:00:01, an hour of summer time
        let mut granted = if asks_first { world.take(&tiny, Verb::Consume, 1) } else { 0 };
        granted += world.take(&slow, Verb::Consume, 97);
        granted += world.take(&tiny, Verb::Consume, 1);
        world.now += DAY_MS;
        granted += world.take(&fast, Verb::ConsumeUpTo, 99);
        assert!(granted <= 100, "{granted} in one day");
    }
}

/// Their clocks are a day apart in winter, and more in summer: which of the two is first changes.
#[test]
fn days_of_zones_a_day_apart_do_not_open_in_turn() {
    let pago = Numbers::of_calendar(100, "day Pacific/Pago_Pago", 1_000);
    let chatham = Numbers::of_calendar(99, "day Pacific/Chatham", 100);
    let [pago, chatham] = [pago, chatham].map(|numbers| (numbers, plan(numbers)));
    let mut world = World::empty(&pago.1);
    world.now = 1_821_870_300_000; // 2027-09-25T11:05Z
    let began_at = world.now;
    let mut granted = world.take(&pago.1, Verb::Consume, 1_000);
    world.left(&chatham.1);
    for _ in 0..24 * 4 {
        world.now += 15 * 60_000;
        granted += world.take(&chatham.1, Verb::ConsumeUpTo, 99);
        let most = most_generous(&[pago.0, chatham.0], began_at, world.now);
        assert!(granted <= most, "{granted} of {most}");
    }
}

#[test]
fn a_plan_of_months_after_one_of_days_begins_with_the_next_month_at_the_latest() {
    let days = plan(Numbers::of_calendar(100, "day UTC", 100));
    let months = plan(Numbers::of_calendar(3_000, "month 1 UTC", 3_000));
    let mut world = World::empty(&days);
    world.now = in_november(0, 0);
    assert_eq!(world.take(&days, Verb::Consume, 1), 1);
    world.left(&months);
    world.now = in_november(21, 0);
    assert!(world.left(&months) > 1_000);

    let months = plan(Numbers::of_calendar(1_000, "month 1 UTC", 1_000));
    let years = plan(Numbers::of_calendar(12_000, "year 01-01 UTC", 12_000));
    let mut world = World::empty(&months);
    world.now = in_november(0, 0);
    assert_eq!(world.take(&months, Verb::Consume, 1), 1);
    assert!(world.left(&years) >= 999, "what is left of the month");
}
