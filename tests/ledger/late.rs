//! Laws about late settlements.
//!
//! After a settlement the budget is exactly as if the real cost had been taken in the first place. Facts stay facts: the
//! decisions, and the amounts that charges and `up_to` booked. Refunds are clipped again. Only a reservation's amount changes.
//!
//! The oracle keeps every event of a limit since its beginning, and replays all of them for each answer:
//! `level = min(full, level + refill)` up to the moment of an event, less what that took. A settlement changes the amount of
//! the event that opened the reservation, and nothing else.

use proptest::prelude::*;

use tollgate::ledger::LATE_SETTLEMENT_MS;
use tollgate::limit::{Config, Decision, Kind, Verb};
use tollgate::policy::{NamedLimit, Policies, Unsettled};
use tollgate::protocol::{Action, Decided, LimitAnswer};

use crate::chance;
use crate::world::{DAY_MS, START, World, decided, tokens};

/// Policies that lose nothing in a crash. Their periods are short, so that much happens around the moments at which a bucket is
/// full, a window opens or a reservation expires.
const POLICIES: &str = r#"{
    "bucket": {"rate": 3, "period": "1s", "capacity": 10, "write_ahead": 0, "reservation_ttl": "6s"},
    "indebted": {"rate": 5, "period": "2s", "capacity": 12, "write_ahead": 0, "max_debt": 7, "unsettled": "refund", "reservation_ttl": "4s"},
    "initial": {"rate": 2, "period": "1s", "capacity": 10, "initial": 4, "write_ahead": 0, "max_debt": 4, "unsettled": "refund"},
    "window": {"kind": "fixed_window", "rate": 10, "period": "5s", "offset": "1s", "write_ahead": 0, "unsettled": "refund", "reservation_ttl": "8s"},
    "deferred": {"kind": "fixed_window", "rate": 10, "period": "5s", "write_ahead": 0, "max_debt": 6, "reservation_ttl": "12s"},
    "rollover": {"kind": "fixed_window", "rate": 6, "period": "3s", "capacity": 15, "write_ahead": 0, "max_debt": 9, "unsettled": "refund", "reservation_ttl": "7s"},
    "budget": {"rate": 0, "period": "1s", "capacity": 40, "write_ahead": 0, "max_debt": 5, "unsettled": "refund", "reservation_ttl": "9s"},
    "two": {"limits": [
        {"name": "a", "rate": 7, "period": "1s", "capacity": 20, "write_ahead": 0},
        {"name": "b", "kind": "fixed_window", "rate": 25, "period": "4s", "write_ahead": 0}
    ], "unsettled": "refund", "reservation_ttl": "5s"},
    "two_indebted": {"limits": [
        {"name": "a", "rate": 3, "period": "1s", "capacity": 10, "write_ahead": 0, "max_debt": 5},
        {"name": "b", "kind": "fixed_window", "rate": 8, "period": "3s", "capacity": 20, "write_ahead": 0, "max_debt": 12}
    ], "reservation_ttl": "5s"},
    "first_use": {"kind": "fixed_window", "offset": "first_use", "rate": 10, "period": "5s", "unsettled": "refund", "reservation_ttl": "8s", "write_ahead": 0},
    "first_use_rollover": {"kind": "fixed_window", "offset": "first_use", "rate": 6, "period": "3s", "capacity": 15, "max_debt": 9, "unsettled": "refund", "reservation_ttl": "7s", "write_ahead": 0},
    "two_first_use": {"limits": [
        {"name": "a", "kind": "fixed_window", "offset": "first_use", "rate": 9, "period": "2s", "max_debt": 5, "write_ahead": 0},
        {"name": "b", "kind": "fixed_window", "offset": "first_use", "rate": 25, "period": "4s", "write_ahead": 0}
    ], "reservation_ttl": "5s"}
}"#;

const NAMES: [&str; 12] = [
    "bucket",
    "indebted",
    "initial",
    "window",
    "deferred",
    "rollover",
    "budget",
    "two",
    "two_indebted",
    "first_use",
    "first_use_rollover",
    "two_first_use",
];

/// The same policies with a `write_ahead` of 4 tokens, which a crash may lose.
fn policies(write_ahead: u64) -> Policies {
    let field = |tokens| format!(r#""write_ahead": {tokens}"#);
    Policies::parse(&POLICIES.replace(&field(0), &field(write_ahead))).unwrap()
}

/// Those that have less at every moment after a crash. A window from first use that has lost tokens may go on where it would have been over,
/// and later ones open at other moments: see `first_use.rs`.
fn lossy_names() -> Vec<&'static str> {
    NAMES.into_iter().filter(|name| !name.contains("first_use")).collect()
}

/// 10 per window of ten seconds, no debt.
pub(crate) const WINDOW: &str = r#"{"kind": "fixed_window", "rate": 10, "period": "10s", "write_ahead": 0}"#;

/// One token per second, 10 at most, no debt.
pub(crate) const BUCKET: &str = r#"{"rate": 1, "period": "1s", "capacity": 10, "write_ahead": 0}"#;

/// As if [`WINDOW`] or [`BUCKET`] had this debt.
fn with_debt(policy: &str, max_debt: u64) -> String {
    policy.replace('}', &format!(r#", "max_debt": {max_debt}}}"#))
}

#[test]
fn a_reservation_cancelled_after_a_window_has_opened_adds_nothing_to_that_window() {
    let mut world = world_of(WINDOW);
    let id = reserved(&mut world, 10);
    world.now += 10_000;
    assert_eq!(taken(&mut world, Verb::Consume, 10), 10);
    cancelled(&mut world, id);
    assert_eq!(world.levels(), [0], "10 of 10 are spent in this window");
    assert_eq!(taken(&mut world, Verb::Consume, 1), 0);
    world.now += 10_000;
    assert_eq!(world.levels(), [10]);
}

#[test]
fn a_reservation_cancelled_in_its_own_window_gives_all_back() {
    let mut world = world_of(WINDOW);
    let id = reserved(&mut world, 10);
    world.now += 9_999;
    cancelled(&mut world, id);
    assert_eq!(world.levels(), [10]);
}

#[test]
fn a_reservation_settled_below_after_a_window_has_opened_gives_nothing_back() {
    let mut world = world_of(WINDOW);
    let id = reserved(&mut world, 10);
    world.now += 10_000;
    taken(&mut world, Verb::Consume, 7);
    assert_eq!(settled(&mut world, id, 4), 4, "it cost 4 all the same");
    assert_eq!(world.levels(), [3]);
}

#[test]
fn an_expired_reservation_gives_nothing_back_to_a_later_window() {
    for (now, left) in [(10_000, 3), (14_999, 3), (15_000, 3), (20_000, 10)] {
        let terms = r#", "unsettled": "refund", "reservation_ttl": "15s"}"#;
        let mut world = world_of(&WINDOW.replace('}', terms));
        reserved(&mut world, 10);
        world.now = START + 10_000;
        taken(&mut world, Verb::Consume, 7);
        world.now = START + now;
        assert_eq!(world.levels(), [left], "{now} ms after it was opened");
    }
}

/// With rollover, a window keeps what the one before did not use, up to the capacity.
#[test]
fn a_cancelled_reservation_rolls_over_only_what_fits() {
    for (capacity, left) in [(10, 3), (15, 8), (20, 13), (30, 13)] {
        let json = WINDOW.replace(r#""period""#, &format!(r#""capacity": {capacity}, "initial": 10, "period""#));
        let mut world = world_of(&json);
        let id = reserved(&mut world, 10);
        world.now += 10_000;
        taken(&mut world, Verb::Consume, 7);
        assert_eq!(world.levels(), [3]);
        cancelled(&mut world, id);
        assert_eq!(world.levels(), [left], "a capacity of {capacity}");
    }
}

#[test]
fn a_bucket_that_was_full_again_before_the_cancellation_gets_nothing_back() {
    let mut world = world_of(BUCKET);
    let id = reserved(&mut world, 10);
    world.now += 10_000;
    assert_eq!(taken(&mut world, Verb::Consume, 10), 10);
    cancelled(&mut world, id);
    assert_eq!(world.levels(), [0]);
}

/// Without the reservation it would have been full sooner, and refills would have been lost.
#[test]
fn a_bucket_that_was_not_full_again_gets_back_what_would_have_fitted() {
    for (wait_ms, left) in [(0, 6), (1_000, 5), (4_000, 2), (6_000, 0)] {
        let mut world = world_of(BUCKET);
        let id = reserved(&mut world, 6);
        world.now += wait_ms;
        let rest = 4 + wait_ms.unsigned_abs() / 1_000;
        assert_eq!(taken(&mut world, Verb::Consume, rest), rest);
        cancelled(&mut world, id);
        assert_eq!(world.levels(), [left], "10 less {rest} after {wait_ms} ms");
    }
}

/// A refusal's wait counts what open reservations give back when they expire, as far as it fits.
#[test]
fn a_refusal_waits_until_enough_expires() {
    let ends = r#""write_ahead": 0, "unsettled": "refund", "reservation_ttl": "4s"}"#;
    let keeps = r#""write_ahead": 0, "reservation_ttl": "4s"}"#;
    for (numbers, ends, cost, expected) in [
        (r#"{"rate": 0, "period": "1s", "capacity": 10,"#, ends, 3, Some(4_000)), // the first of two
        (r#"{"rate": 0, "period": "1s", "capacity": 10,"#, ends, 6, Some(5_000)),
        (r#"{"rate": 0, "period": "1s", "capacity": 10,"#, ends, 10, Some(5_000)),
        (r#"{"rate": 0, "period": "1s", "capacity": 10,"#, ends, 11, None),
        (r#"{"rate": 0, "period": "1s", "capacity": 10,"#, keeps, 3, None),
        (r#"{"rate": 1, "period": "2s", "capacity": 10,"#, ends, 1, Some(2_000)),
        (r#"{"rate": 1, "period": "2s", "capacity": 10,"#, ends, 6, Some(4_000)), // 5 are left of a full bucket, and 1 has come back
        (r#"{"rate": 1, "period": "2s", "capacity": 10,"#, ends, 7, Some(5_000)),
        (r#"{"rate": 1, "period": "2s", "capacity": 10,"#, ends, 8, Some(5_000)),
        (r#"{"rate": 1, "period": "2s", "capacity": 10,"#, keeps, 8, Some(16_000)),
    ] {
        let mut world = world_of(&format!("{numbers}{ends}"));
        for cost in [5, 5] {
            reserved(&mut world, cost);
            world.now += 1_000;
        }
        world.now = START + 1_000;
        let decided = world.decided(Action::Take(Verb::Consume), vec![cost]);
        let retry_at = match decided.decision() {
            Decision::Wait { retry_at } => Some(retry_at - START),
            Decision::Never { .. } => None,
            Decision::Allow { .. } => panic!("{cost} of {numbers}"),
        };
        assert_eq!(retry_at, expected, "{cost} of {numbers}{ends}");
        for (at, is_granted) in retry_at.into_iter().flat_map(|at| [(at - 1, false), (at, true)]) {
            let mut other = world.restarted_with(&world.policy);
            other.now = START + at;
            assert_eq!(taken(&mut other, Verb::Consume, cost) > 0, is_granted, "{cost} of {numbers}{ends}, at {at}");
        }
    }
}

/// A settlement without a cost reports what it could not take, also when it is repeated.
#[test]
fn what_is_settled_late_as_reserved_may_not_be_there() {
    let json = r#"{"rate": 0, "period": "1s", "capacity": 10, "write_ahead": 0, "unsettled": "refund", "reservation_ttl": "4s"}"#;
    for (others, taken_late) in [(5, 5), (8, 2), (10, 0)] {
        let mut world = world_of(json);
        let id = reserved(&mut world, 5);
        world.now += 4_000;
        assert_eq!(taken(&mut world, Verb::Consume, others), others);
        let unpaid: &[u64] = if taken_late < 5 { &[5] } else { &[] };
        for is_replayed in [false, true, true] {
            let settled = decided(world.ask(Action::Settle(id), None, None));
            assert_eq!((tokens(&settled.limits[0]), settled.is_replayed), (taken_late, is_replayed), "after {others}");
            assert_eq!((settled.is_late, &*settled.reserved_costs), (true, unpaid), "after {others}");
            world.crash(usize::MAX);
        }
        assert_eq!(world.levels(), [10 - others.cast_signed() - taken_late.cast_signed()]);
    }
}

/// A batch in flight may end without taking anything, and leased tokens may be returned.
#[test]
fn a_refusals_wait_counts_all_that_comes_back_until_then() {
    for (rate, cost, wait_ms) in [
        (r#""rate": 0, "period": "1s""#, 3, 10_000),  // when the batch ends
        (r#""rate": 0, "period": "1s""#, 10, 20_000), // and the reservation
        (r#""rate": 1, "period": "1h""#, 10, 20_000),
        (r#""rate": 1, "period": "12s""#, 6, 12_000), // one that comes back between them
        (r#""rate": 1, "period": "10s""#, 10, 20_000),
    ] {
        let numbers = format!(r#"{{{rate}, "capacity": 10, "write_ahead": 0, "unsettled": "refund", "#);
        let mut world = world_of(&format!(r#"{numbers}"reservation_ttl": "20s"}}"#));
        reserved(&mut world, 5);
        world.decided(Action::Hold(7), vec![5]);
        let refused = world.decided(Action::Take(Verb::Consume), vec![cost]).decision();
        assert_eq!(refused, Decision::Wait { retry_at: START + wait_ms }, "{cost} at {rate}");
        for (at, is_granted) in [(wait_ms - 1, false), (wait_ms, true)] {
            world.now = START + at;
            let again = world.decided(Action::Look(Verb::Consume), vec![cost]).decision();
            assert_eq!(again.is_allow(), is_granted, "{cost} at {rate}, after {at} ms");
        }
    }
    let budget = r#"{"rate": 0, "period": "1s", "capacity": 10, "write_ahead": 0, "unsettled": "refund", "#;
    let mut world = world_of(&format!(r#"{budget}"reservation_ttl": "20s", "lease": "10s"}}"#));
    decided(world.lease(vec![5], Vec::new()));
    reserved(&mut world, 5);
    let refused = |world: &mut World, cost| world.decided(Action::Take(Verb::Consume), vec![cost]).decision();
    assert_eq!(refused(&mut world, 10), Decision::Wait { retry_at: START + 20_000 });
    assert_eq!(refused(&mut world, 11), Decision::Never { max: 10 });
}

/// Levels and pieces are the same with either of two reservations, but they end at different moments.
#[test]
fn a_refusals_wait_counts_only_reservations_open_now() {
    let mut world = world_of(&WINDOW.replace('}', r#", "unsettled": "refund", "reservation_ttl": "6s"}"#));
    reserved(&mut world, 1);
    world.now += 1;
    let first = reserved(&mut world, 5);
    let refused = |world: &mut World| world.decided(Action::Take(Verb::Consume), vec![6]).decision();
    assert_eq!(refused(&mut world), Decision::Wait { retry_at: START + 6_001 });
    world.now += 3_000;
    cancelled(&mut world, first);
    reserved(&mut world, 5);
    assert_eq!(refused(&mut world), Decision::Wait { retry_at: START + 9_001 });
}

#[test]
fn a_chain_of_long_reservations_cancelled_at_once_adds_up_to_no_more_than_a_full_bucket() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut world = world_of(BUCKET);
        let chain: Vec<_> = (0..4)
            .map(|_| {
                let id = reserved(&mut world, 5);
                world.now += 5_000;
                id
            })
            .collect();
        // Each has found a full bucket, and so would this.
        taken(&mut world, Verb::Consume, 10);
        let levels = order.map(|index| {
            cancelled(&mut world, chain[index]);
            world.levels()[0]
        });
        assert_eq!(levels, [0; 4], "in the order {order:?}");
    }
    // Without refills in between, all of it fits again.
    let mut world = world_of(BUCKET);
    let ids = [(); 5].map(|()| reserved(&mut world, 2));
    let levels = ids.map(|id| {
        cancelled(&mut world, id);
        world.levels()[0]
    });
    assert_eq!(levels, [2, 4, 6, 8, 10]);
}

#[test]
fn each_of_a_chain_settles_as_if_the_others_had_their_real_costs_already() {
    let mut world = world_of(BUCKET);
    let first = reserved(&mut world, 8); // leaves 2
    world.now += 2_000;
    let second = reserved(&mut world, 4); // of 4
    world.now += 3_000;
    taken(&mut world, Verb::Consume, 3); // of 3
    // At 2 s it would have been full: 10 less 4, and 3 come back, less 3.
    cancelled(&mut world, first);
    assert_eq!(world.levels(), [6]);
    // 10 less 1, full again at 3 s, less 3.
    assert_eq!(settled(&mut world, second, 1), 1);
    assert_eq!(world.levels(), [7]);
}

#[test]
fn use_before_a_window_opens_takes_nothing_from_that_window() {
    // The real cost of 5 reserved, what is booked, and what is left in the next window.
    for (cost, booked, left) in [(6, 6, 10), (10, 10, 10), (12, 12, 8), (20, 20, 0), (21, 20, 0)] {
        let mut world = world_of(WINDOW);
        let id = reserved(&mut world, 5);
        world.now += 10_000;
        assert_eq!(settled(&mut world, id, cost), booked, "settled at {cost}");
        assert_eq!(world.levels(), [left], "settled at {cost}");
    }
    // Tokens already spent in this window are not taken again.
    let mut world = world_of(WINDOW);
    let id = reserved(&mut world, 5);
    world.now += 10_000;
    taken(&mut world, Verb::Consume, 4);
    assert_eq!(settled(&mut world, id, 10), 10);
    assert_eq!(world.levels(), [6]);
}

#[test]
fn a_cost_above_the_reserved_one_is_booked_down_to_the_largest_debt() {
    for (wait_ms, cost, booked, left) in [
        (0, 12, 12, -2),
        (0, 14, 13, -3), // 10 and the debt of 3
        (4_000, 13, 13, 1),
        (4_000, 17, 17, -3), // 4 came back
        (4_000, 18, 17, -3),
        (20_000, 10, 10, 10), // they came back long ago
        (20_000, 30, 30, 0),
        (20_000, 40, 33, -3),
    ] {
        let mut world = world_of(&with_debt(BUCKET, 3));
        let id = reserved(&mut world, 5);
        world.now += wait_ms;
        assert_eq!(settled(&mut world, id, cost), booked, "settled at {cost} after {wait_ms} ms");
        assert_eq!(world.levels(), [left], "settled at {cost} after {wait_ms} ms");
    }
}

#[test]
fn refunds_are_clipped_again_after_a_cancellation() {
    let mut world = world_of(WINDOW);
    let id = reserved(&mut world, 4);
    taken(&mut world, Verb::Consume, 3);
    taken(&mut world, Verb::Refund, 7);
    taken(&mut world, Verb::Consume, 5);
    cancelled(&mut world, id);
    assert_eq!(world.levels(), [5], "10 - 3 + 7 is full, less 5");

    // A refund that found the bucket full is not clipped where more was used.
    let mut world = world_of(WINDOW);
    let id = reserved(&mut world, 1);
    taken(&mut world, Verb::Refund, 7);
    assert_eq!(world.levels(), [10]);
    assert_eq!(settled(&mut world, id, 9), 9);
    assert_eq!(world.levels(), [8], "10 - 9 + 7");
}

#[test]
fn reservations_from_before_a_reset_no_longer_matter() {
    for cost in [None, Some(0), Some(3), Some(4), Some(9)] {
        let mut world = world_of(WINDOW);
        let id = reserved(&mut world, 4);
        taken(&mut world, Verb::Reset, 0);
        taken(&mut world, Verb::Consume, 8);
        match cost {
            None => cancelled(&mut world, id),
            Some(cost) => assert_eq!(settled(&mut world, id, cost), cost),
        }
        assert_eq!(world.levels(), [2], "closed at {cost:?}");
    }
}

#[test]
fn tokens_booked_by_a_charge_stay_booked() {
    // Reserved of 10, charged, what that booked, and what is left after the cancellation.
    for (reserve, charge, booked, left) in [(6, 3, 3, 7), (6, 9, 4, 6), (10, 9, 0, 10)] {
        let mut world = world_of(WINDOW);
        let id = reserved(&mut world, reserve);
        assert_eq!(taken(&mut world, Verb::Charge, charge), booked);
        cancelled(&mut world, id);
        assert_eq!(world.levels(), [left], "10 less the {booked} booked of {charge}");
    }
}

/// Sequences that broke the law before it held.
mod found {
    use super::*;

    #[test]
    fn a_cancellation_a_millisecond_late() {
        let steps = [
            Step::Reserve([1; 2], Some(0)),
            Step::Wait(Wait::Ms(334)),
            Step::Take(Verb::Consume, [1; 2]),
            Step::Close(0, Closing::Cancel),
        ];
        follow(&policies(0), "bucket", &steps);
    }

    #[test]
    fn a_refund_that_a_cancellation_clips() {
        let steps = [
            Step::Reserve([1; 2], Some(0)),
            Step::Take(Verb::Refund, [1; 2]),
            Step::Take(Verb::Consume, [1; 2]),
            Step::Close(0, Closing::Cancel),
        ];
        for policy in NAMES {
            follow(&policies(0), policy, &steps);
        }
    }
}

/// The reservation let the limit of which it took nothing follow the clock, which has stepped back since.
#[test]
fn a_settlement_at_the_reserved_cost_changes_nothing_whatever_the_clock_has_shown() {
    let policies = Policies::parse(
        r#"{"p":{"limits":[{"name":"a","rate":1,"period":"1s","capacity":10000},{"name":"b","rate":1,"period":"1h"}],"reservation_ttl":"1day"}}"#,
    );
    for back_ms in [1, 59_000, 61_000, 3_500_000] {
        let mut world = World::new(policies.as_ref().unwrap(), "p");
        world.decided(Action::Take(Verb::Consume), vec![10_000, 0]);
        world.now += 3_600_000;
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
        let id = world.decided(reserve, vec![0, 1]).reservation.unwrap().id;
        world.now -= back_ms;
        world.decided(Action::Take(Verb::Consume), vec![100, 0]);
        let before = world.levels();
        world.decided(Action::Settle(id), vec![0, 1]);
        assert_eq!(world.levels(), before, "{back_ms} ms back");
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// After every operation each limit has what a replay of its whole history leaves.
    #[test]
    fn a_budget_is_as_if_real_costs_had_been_taken_in_the_first_place(
        policy in prop::sample::select(&NAMES[..]),
        steps in steps(),
    ) {
        follow(&policies(0), policy, &steps);
    }

    /// A crash costs at most a block of each limit and gives nothing, also when reservations are settled that were opened
    /// before it.
    #[test]
    fn no_settlement_after_a_crash_mints_tokens(
        policy in prop::sample::select(lossy_names()),
        steps in steps(),
    ) {
        follow(&policies(4), policy, &steps);
    }

    /// Settlements at one moment may come in any order, if each books its whole cost in both: how much of an excess is
    /// booked depends on what was given back before.
    #[test]
    fn settlements_at_one_moment_may_come_in_any_order(
        policy in prop::sample::select(&NAMES[..]),
        before in steps(),
        closings in prop::collection::vec((closing(), any::<u32>()), 2..7),
        after in prop::collection::vec(step(), 0..10),
    ) {
        let policies = policies(0);
        let (closings, keys): (Vec<_>, Vec<_>) = closings.into_iter().unzip();
        let mut order: Vec<_> = (0..closings.len()).collect();
        let one = levels_after(&policies, policy, &before, &closings, &order, &after);
        order.sort_by_key(|&index| keys[index]);
        let other = levels_after(&policies, policy, &before, &closings, &order, &after);
        if let Some((one, other)) = one.zip(other) {
            prop_assert_eq!(one, other, "in the order {:?}", order);
        }
    }
}

/// The levels after reservations were closed in this order, and after each later step. `None` if one of them could not book its
/// whole cost.
fn levels_after(
    policies: &Policies,
    policy: &str,
    before: &[Step],
    closings: &[Closing],
    order: &[usize],
    after: &[Step],
) -> Option<Vec<Vec<i128>>> {
    let mut client = Client::new(policies, policy);
    for step in before {
        client.take(step);
    }
    client.look(); // ends the expired ones
    let ids: Vec<_> = client.open.iter().map(|open| open.id).collect();
    let mut is_whole = true;
    for (&id, closing) in order.iter().filter_map(|&index| ids.get(index).zip(closings.get(index))) {
        let which = client.open.iter().position(|open| open.id == id).unwrap();
        let (decided, _) = client.close(which, *closing);
        if let Closing::Settle(Some(costs)) = closing {
            is_whole &= decided.limits.iter().map(tokens).eq(costs[..decided.limits.len()].iter().copied());
        }
    }
    let mut all = vec![client.levels()];
    for step in after {
        client.take(step);
        all.push(client.levels());
    }
    is_whole.then_some(all)
}

fn follow(policies: &Policies, policy: &str, steps: &[Step]) {
    let mut both = Comparison::new(policies, policy);
    for step in steps {
        both.take(step);
    }
    both.look("the end");
}

/// The ledger beside the oracle.
struct Comparison {
    client: Client,
    budgets: Vec<Budget>,
    crashes: i128,
}

impl Comparison {
    fn new(policies: &Policies, policy: &str) -> Self {
        let client = Client::new(policies, policy);
        let budgets = client.numbers.iter().map(|&numbers| Budget { numbers, events: Vec::new() }).collect();
        Self { client, budgets, crashes: 0 }
    }

    /// Takes a step on both sides.
    fn take(&mut self, step: &Step) {
        if let Step::Crash(arrived) = *step {
            return self.crash(arrived);
        }
        // What a charge books depends on what the crashes have left.
        let is_charge = matches!(step, Step::Take(Verb::Charge, _));
        let before = (is_charge && self.may_have_lost()).then(|| self.client.levels());
        let Some((decided, fact)) = self.client.take(step) else { return };
        self.end_expired();
        self.record(&decided, &fact, before.as_deref());
        if let (Fact::Nothing, Step::Take(verb, costs)) = (&fact, step) {
            self.client.retries(&decided, *verb, costs);
        }
        self.compare(&decided, &format!("the answer to {step:?}"));
        self.look(&format!("{step:?}"));
    }

    fn crash(&mut self, arrived: usize) {
        let before = self.look("a look before a crash");
        if self.client.crash(arrived) {
            self.crashes += 1;
            let after = self.look("a crash");
            for ((numbers, before), after) in self.client.numbers.iter().zip(before).zip(after) {
                assert!((0..=numbers.block).contains(&(before - after)), "a crash lost {} drops", before - after);
            }
        }
    }

    /// Compares what is left, and returns it in drops.
    fn look(&mut self, step: &str) -> Vec<i128> {
        let decided = self.client.look();
        self.end_expired();
        self.compare(&decided, step);
        self.client.levels_of(&decided)
    }

    /// Expired reservations have cost nothing, from when they expired or from the opening on: it makes no difference.
    fn end_expired(&mut self) {
        let gives_back = self.client.world.policy.object().reservations.unsettled == Unsettled::Refund;
        for id in self.client.expired.drain(..).filter(|_| gives_back) {
            self.budgets.iter_mut().for_each(|budget| budget.settle(id, 0));
        }
    }

    /// Records an event, after checking the ledger's report of it.
    fn record(&mut self, decided: &Decided, fact: &Fact, before: Option<&[i128]>) {
        let (at, may_have_lost) = (self.client.latest, self.may_have_lost());
        let levels: Vec<_> = self.budgets.iter().map(|budget| budget.level(at)).collect();
        let answered: Vec<_> = decided.limits.iter().map(tokens).collect();
        let moments = (self.client.world.now, at);
        for ((index, budget), answer) in self.budgets.iter_mut().enumerate().zip(&decided.limits) {
            let Numbers { drops_per_token, debt, .. } = budget.numbers;
            let (level, drops) = (levels[index], |tokens: u64| i128::from(tokens) * drops_per_token);
            match fact {
                Fact::Nothing => {}
                Fact::Taken(id) => {
                    budget.push(moments, Change::Taken { drops: drops(answered[index]), id: *id }, answer);
                }
                Fact::Charged(costs) => {
                    let booked = match before {
                        Some(before) => before[index] - self.client.numbers[index].level(&decided.limits[index], at),
                        None => level - (level - drops(costs[index])).max(level.min(-debt)),
                    };
                    assert_eq!(answered[index], whole_tokens(booked, drops_per_token), "charged");
                    budget.push(moments, Change::Taken { drops: booked, id: None }, answer);
                }
                Fact::Refunded(costs) => budget.push(moments, Change::Refunded(drops(costs[index])), answer),
                Fact::Reset => budget.push(moments, Change::Reset, answer),
                Fact::Cancelled(ids) => ids.iter().for_each(|id| budget.settle(*id, 0)),
                Fact::Settled { pieces, is_returned, costs } => {
                    // Tokens are given back newest first, and additional ones are taken by the newest.
                    let (cost, mut rest, mut total) = (costs[index], costs[index], 0);
                    for (place, (id, taken)) in pieces.iter().enumerate() {
                        let real = if place + 1 == pieces.len() { rest } else { taken[index].min(rest) };
                        rest -= real;
                        let had = if *is_returned { 0 } else { taken[index] };
                        let booked = had.min(real) + real.saturating_sub(had).min(budget.room(*id, at));
                        budget.settle(*id, drops(booked));
                        total += booked;
                    }
                    if may_have_lost {
                        // How much of an excess is booked depends on what the crashes have left.
                        assert!(answered[index] <= cost, "{} of {cost}", answered[index]);
                        let (newest, _) = pieces.last().unwrap();
                        budget.correct(*newest, drops(answered[index]) - drops(total));
                    } else {
                        assert_eq!(answered[index], total, "settled at {cost}: {pieces:?}");
                    }
                }
            }
        }
    }

    /// Whether the ledger may be below the oracle.
    fn may_have_lost(&self) -> bool {
        self.crashes > 0 && self.budgets.iter().any(|budget| budget.numbers.block > 0)
    }

    fn compare(&self, decided: &Decided, step: &str) {
        let (at, ms) = (self.client.latest, self.client.world.now - START);
        for (budget, answer) in self.budgets.iter().zip(&decided.limits) {
            let Numbers { drops_per_token, block, .. } = budget.numbers;
            let (level, expected) = (budget.numbers.level(answer, at), budget.level(at));
            let most = self.crashes * block;
            assert!(
                (0..=most).contains(&(expected - level)),
                "{step} after {ms} ms left {level} drops, not {expected}; a token is {drops_per_token}"
            );
            let owed = whole_tokens((drops_per_token - 1 - level).max(0), drops_per_token);
            let shown = (whole_tokens(level.max(0), drops_per_token), owed);
            assert_eq!((answer.remaining, answer.owed), shown, "{step} left {level} drops");
        }
    }
}

/// The oracle: one limit of a key, with its whole history.
struct Budget {
    numbers: Numbers,
    /// In chronological order.
    events: Vec<Event>,
}

#[derive(Clone, Copy)]
struct Event {
    /// Never before that of the event before it: while the clock is behind, no time passes.
    at: i64,
    /// When the window began that it opened. That is a fact, whatever it cost in the end.
    opens: Option<i64>,
    change: Change,
}

/// The effect of an event, in drops.
#[derive(Clone, Copy)]
enum Change {
    /// For the reservation of this id, if any.
    Taken {
        drops: i128,
        id: Option<u64>,
    },
    /// The whole request, whether it fitted or not.
    Refunded(i128),
    Reset,
}

impl Budget {
    /// Answered like this at that moment of the clock, which may be behind the latest that it has shown.
    fn push(&mut self, (now, at): (i64, i64), change: Change, answer: &LimitAnswer) {
        let opened_at = match change {
            Change::Taken { drops, .. } if drops > 0 => Some(answer.snapshot.at),
            Change::Taken { id: Some(_), .. } => Some(answer.snapshot.at.max(now)), // if it costs anything in the end
            _ => None,
        };
        let opens = opened_at.filter(|_| self.numbers.is_from_first_use && self.level(at) == self.numbers.full);
        assert!(opens.is_none_or(|opened_at| (now..=at).contains(&opened_at)), "{answer:?} at {now}");
        self.events.push(Event { at, opens, change });
    }

    fn level(&self, now: i64) -> i128 {
        let (level, at, numbers) = self.replayed(&self.events);
        (level + numbers.refill(at, now)).min(numbers.full)
    }

    /// The level after these events, the moment of the last, and the numbers with the windows since then.
    fn replayed(&self, events: &[Event]) -> (i128, i64, Numbers) {
        let Numbers { initial, full, .. } = self.numbers;
        events.iter().fold((initial, START, self.numbers), |(level, last, numbers), &Event { at, opens, change }| {
            let level = (level + numbers.refill(last, at)).min(full);
            let level = match change {
                Change::Taken { drops, .. } => level - drops,
                Change::Refunded(drops) => (level + drops).min(full),
                Change::Reset => full,
            };
            (level, at, Numbers { offset_ms: opens.unwrap_or(numbers.offset_ms), ..numbers })
        })
    }

    /// The reservation costs this much instead, from its opening on.
    fn settle(&mut self, id: u64, cost: i128) {
        let index = self.opening(id);
        self.events[index].change = Change::Taken { drops: cost, id: Some(id) };
    }

    /// It costs this much more.
    fn correct(&mut self, id: u64, more: i128) {
        let index = self.opening(id);
        if let Change::Taken { drops, .. } = &mut self.events[index].change {
            *drops += more;
        }
    }

    /// How many tokens more the reservation can have cost: until the level now would be at the largest debt, if nothing since
    /// the opening had been clipped. Any number if there was a reset since.
    fn room(&self, id: u64, now: i64) -> u64 {
        let (before, since) = self.events.split_at(self.opening(id) + 1);
        let (opened, mut last, mut numbers) = self.replayed(before);
        let mut refilled = 0;
        let moved: Option<i128> = since
            .iter()
            .map(|event| {
                refilled += numbers.refill(last, event.at);
                last = event.at;
                numbers.offset_ms = event.opens.unwrap_or(numbers.offset_ms);
                match event.change {
                    Change::Taken { drops, .. } => Some(-drops),
                    Change::Refunded(drops) => Some(drops),
                    Change::Reset => None,
                }
            })
            .sum();
        refilled += numbers.refill(last, now);
        let Numbers { drops_per_token, debt, .. } = self.numbers;
        let floor = self.level(now).min(-debt);
        moved.map_or(u64::MAX, |moved| {
            let unclipped = opened + refilled + moved;
            whole_tokens((unclipped - floor).max(0), drops_per_token)
        })
    }

    fn opening(&self, of: u64) -> usize {
        let is_opening = |event: &Event| matches!(event.change, Change::Taken { id, .. } if id == Some(of));
        self.events.iter().position(is_opening).unwrap()
    }
}

/// The numbers of a limit, in drops: of a window, a token is one.
#[derive(Clone, Copy)]
struct Numbers {
    drops_per_token: i128,
    /// The refill of each tick.
    refill: i128,
    tick_ms: i64,
    /// Where ticks begin; of windows from first use, where the last one was opened.
    offset_ms: i64,
    is_from_first_use: bool,
    full: i128,
    initial: i128,
    debt: i128,
    /// What a crash may lose.
    block: i128,
}

impl Numbers {
    fn of(named: &NamedLimit) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, .. } = *named.limit().config();
        let [rate, period] = [rate, period_ms].map(i128::from);
        let (drops_per_token, refill, tick_ms) = match kind {
            Kind::TokenBucket => {
                let divisor = gcd(rate, period);
                (period / divisor, rate / divisor, 1)
            }
            Kind::FixedWindow | Kind::FirstUseWindow => (1, rate, period_ms.cast_signed()),
            _ => unreachable!("a new kind"),
        };
        let drops = |tokens| i128::from(tokens) * drops_per_token;
        Self {
            drops_per_token,
            refill,
            tick_ms,
            offset_ms: offset_ms.unwrap_or(0).cast_signed(),
            is_from_first_use: kind == Kind::FirstUseWindow,
            full: drops(capacity),
            initial: drops(initial.unwrap_or(capacity)),
            debt: drops(max_debt),
            block: drops(named.write_ahead().min(capacity)),
        }
    }

    /// The refill between two moments; nothing if the clock stepped back.
    fn refill(&self, from: i64, to: i64) -> i128 {
        i128::from((self.tick(to) - self.tick(from)).max(0)) * self.refill
    }

    /// The number of the tick that holds this moment.
    const fn tick(&self, at: i64) -> i64 {
        (at - self.offset_ms).div_euclid(self.tick_ms)
    }

    /// The level in an answer of the ledger.
    fn level(&self, answer: &LimitAnswer, now: i64) -> i128 {
        let level = i128::from(answer.snapshot.tokens) * self.drops_per_token + i128::from(answer.snapshot.drops);
        (level + self.at(answer).refill(answer.snapshot.at, now)).min(self.full)
    }

    /// With the windows of a limit that has this answer.
    const fn at(&self, answer: &LimitAnswer) -> Self {
        Self { offset_ms: if self.is_from_first_use { answer.snapshot.at } else { self.offset_ms }, ..*self }
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if a == 0 { b } else { gcd(b % a, a) }
}

/// Rounded down.
fn whole_tokens(drops: i128, drops_per_token: i128) -> u64 {
    u64::try_from(drops / drops_per_token).unwrap()
}

/// The ledger, and its client's knowledge.
struct Client {
    world: World,
    numbers: Vec<Numbers>,
    open: Vec<Open>,
    /// Reservations that have expired since this was last emptied.
    expired: Vec<u64>,
    /// Those that have expired and may be closed late.
    ended: Vec<Open>,
    /// The latest id of a raise. They are above all ids of reservations.
    raises: u64,
    /// The answer to the last look.
    seen: Vec<LimitAnswer>,
    /// Its moment; before everything if a bucket may have been forgotten since.
    seen_at: i64,
    /// The latest moment of any request.
    latest: i64,
    has_stepped_back: bool,
}

struct Open {
    id: u64,
    expires_at: i64,
    /// What it has taken, first and by each raise, under the test's own ids.
    pieces: Vec<(u64, Vec<u64>)>,
}

/// The effect of a request. Its answer has how many tokens it took.
enum Fact {
    /// It was refused.
    Nothing,
    /// For the reservation of this id, if any.
    Taken(Option<u64>),
    Charged(Vec<u64>),
    Refunded(Vec<u64>),
    Reset,
    /// The amounts taken under these ids, the oldest first, unless all was given back before.
    Settled {
        pieces: Vec<(u64, Vec<u64>)>,
        is_returned: bool,
        costs: Vec<u64>,
    },
    Cancelled(Vec<u64>),
}

impl Client {
    fn new(policies: &Policies, policy: &str) -> Self {
        let world = World::new(policies, policy);
        let numbers = world.policy.limits().iter().map(Numbers::of).collect();
        let (seen, seen_at, latest) = (Vec::new(), START, START);
        let (open, expired, ended) = (Vec::new(), Vec::new(), Vec::new());
        let mut client = Self {
            world,
            numbers,
            open,
            expired,
            ended,
            raises: 1 << 60,
            seen,
            seen_at,
            latest,
            has_stepped_back: false,
        };
        client.look(); // a bucket that starts below full refills from now on
        client
    }

    /// Takes a step, and returns the answer if it was a request.
    fn take(&mut self, step: &Step) -> Option<(Decided, Fact)> {
        let count = self.numbers.len();
        match *step {
            Step::Take(verb, costs) => {
                self.tick();
                let costs = costs[..count].to_vec();
                let decided = self.world.decided(Action::Take(verb), costs.clone());
                let fact = match verb {
                    _ if !decided.decision().is_allow() => Fact::Nothing,
                    Verb::Charge => Fact::Charged(costs),
                    Verb::Refund => Fact::Refunded(costs),
                    Verb::Reset => Fact::Reset,
                    _ => Fact::Taken(None),
                };
                return Some((decided, fact));
            }
            Step::Reserve(costs, max_wait_ms) => {
                self.tick();
                let action = Action::Reserve(Verb::Reserve { max_wait_ms });
                let decided = self.world.decided(action, costs[..count].to_vec());
                let opened = decided.reservation.map(|reserved| {
                    let pieces = vec![(reserved.id, costs[..count].to_vec())];
                    self.open.push(Open { id: reserved.id, expires_at: reserved.expires_at, pieces });
                    reserved.id
                });
                let is_allow = decided.decision().is_allow();
                return Some((decided, if is_allow { Fact::Taken(opened) } else { Fact::Nothing }));
            }
            Step::Extend(which, costs) => {
                self.tick();
                let costs = costs[..count].to_vec();
                let index = which.checked_rem(self.open.len())?;
                let decided = self.world.decided(Action::Extend(self.open[index].id), costs.clone());
                let is_granted = decided.decision().is_allow();
                let Some(reserved) = decided.reservation else {
                    assert!(!is_granted);
                    return Some((decided, Fact::Nothing));
                };
                let ttl_ms = self.world.policy.object().reservations.ttl_ms;
                let open = &mut self.open[index];
                open.expires_at = open.expires_at.max(self.world.now.saturating_add_unsigned(ttl_ms));
                assert_eq!((reserved.id, reserved.expires_at, is_granted), (open.id, open.expires_at, true));
                if costs.iter().all(|cost| *cost == 0) {
                    return Some((decided, Fact::Nothing));
                }
                self.raises += 1;
                open.pieces.push((self.raises, costs));
                return Some((decided, Fact::Taken(Some(self.raises))));
            }
            Step::Close(which, closing) => {
                self.tick();
                let count = self.open.len() + self.ended.len();
                return (count > 0).then(|| self.close(which % count, closing));
            }
            Step::Wait(wait) => self.wait(wait),
            Step::Back(ms) => self.step_back(ms),
            Step::Arrive(count) => self.world.arrive(count),
            Step::FlushIdle => self.world.flush_idle(),
            // A full bucket that was forgotten starts again, at whichever moment the clock shows.
            Step::Clean if !self.has_stepped_back => {
                self.seen_at = i64::MIN;
                self.world.clean();
            }
            Step::Clean => {}
            Step::Crash(arrived) => _ = self.crash(arrived),
        }
        None
    }

    /// A refused request is granted at the reported moment, and not a millisecond sooner, if nothing else is taken, including what expires
    /// meanwhile. Only if a crash loses nothing, because another object tries it.
    fn retries(&self, decided: &Decided, verb: Verb, costs: &[u64; 2]) {
        if self.has_stepped_back || self.numbers.iter().any(|numbers| numbers.block > 0) {
            return;
        }
        let retry_at = decided.limits.iter().map(|limit| match limit.decision {
            Decision::Allow { .. } => Some(decided.now),
            Decision::Wait { retry_at } => Some(retry_at),
            Decision::Never { .. } => None,
        });
        // A cost that can never pass does not pass later either.
        let tries = match retry_at.collect::<Option<Vec<_>>>() {
            Some(all) => all.into_iter().max().map_or(vec![], |at| vec![(at - 1, false), (at, true)]),
            None => vec![(decided.now + DAY_MS, false)],
        };
        for (at, is_granted) in tries {
            let mut other = self.world.restarted_with(&self.world.policy);
            other.now = at.max(decided.now);
            let again = other.decided(Action::Look(verb), costs[..self.numbers.len()].to_vec());
            assert_eq!(
                again.decision().is_allow(),
                is_granted,
                "{decided:?}, {} ms later: {again:?}",
                at - decided.now
            );
        }
    }

    fn close(&mut self, which: usize, closing: Closing) -> (Decided, Fact) {
        let late = which.checked_sub(self.open.len());
        let Open { id, pieces, .. } = match late {
            Some(which) => self.ended.remove(which),
            None => self.open.remove(which),
        };
        let (decided, fact) = match closing {
            Closing::Cancel => {
                let ids = pieces.iter().map(|(id, _)| *id).collect();
                (decided(self.world.ask(Action::Cancel(id), None, None)), Fact::Cancelled(ids))
            }
            Closing::Settle(costs) => {
                let count = self.numbers.len();
                let costs = costs.map(|costs| costs[..count].to_vec());
                let decided = decided(self.world.ask(Action::Settle(id), costs.clone(), None));
                let in_all = |limit| pieces.iter().map(|(_, taken)| taken[limit]).sum();
                let costs = costs.unwrap_or_else(|| (0..count).map(in_all).collect());
                let is_refunded = self.world.policy.object().reservations.unsettled == Unsettled::Refund;
                (decided, Fact::Settled { pieces, is_returned: late.is_some() && is_refunded, costs })
            }
        };
        assert_eq!(decided.is_late, late.is_some());
        (decided, fact)
    }

    /// Whether it did: not after the clock stepped back, when a row may wait for its own moment.
    fn crash(&mut self, arrived: usize) -> bool {
        if !self.has_stepped_back {
            self.seen_at = i64::MIN;
            self.world.crash(arrived);
        }
        !self.has_stepped_back
    }

    /// Any request ends what has expired.
    fn tick(&mut self) {
        let now = self.world.now;
        self.latest = self.latest.max(now);
        let expired: Vec<_> = self.open.extract_if(.., |open| open.expires_at <= now).collect();
        self.expired.extend(expired.iter().flat_map(|open| open.pieces.iter().map(|(id, _)| *id)));
        self.ended.extend(expired);
        self.ended.retain(|open| now < open.expires_at.saturating_add_unsigned(LATE_SETTLEMENT_MS));
    }

    fn look(&mut self) -> Decided {
        self.tick();
        // A refund of 0 is never refused and changes nothing.
        let decided = self.world.decided(Action::Look(Verb::Refund), vec![0; self.numbers.len()]);
        self.seen.clone_from(&decided.limits);
        self.seen_at = self.world.now;
        decided
    }

    /// The level, in drops.
    fn levels(&mut self) -> Vec<i128> {
        let decided = self.look();
        self.levels_of(&decided)
    }

    fn levels_of(&self, decided: &Decided) -> Vec<i128> {
        self.numbers.iter().zip(&decided.limits).map(|(numbers, answer)| numbers.level(answer, self.latest)).collect()
    }

    fn wait(&mut self, wait: Wait) {
        let now = self.world.now;
        let at = match wait {
            Wait::Ms(ms) => now + ms,
            Wait::UntilFull(limit, ms) => {
                self.seen[limit % self.seen.len()].reset_at.map_or(now, |full_at| full_at + ms)
            }
            Wait::UntilWindow(ms) => {
                let windows = self.numbers.iter().find(|numbers| numbers.tick_ms > 1);
                let next = |numbers: &Numbers| (numbers.tick(now) + 1) * numbers.tick_ms + numbers.offset_ms;
                windows.map_or(now, |numbers| next(numbers) + ms)
            }
            Wait::UntilExpired(which, ms) => {
                let index = which.checked_rem(self.open.len());
                index.map_or(now, |index| self.open[index].expires_at + ms)
            }
        };
        self.world.now = at.max(now);
    }

    /// Only right after a request of the present moment that all limits have counted up to: while nothing moves, a
    /// limit does not know that the clock was further already.
    fn step_back(&mut self, ms: i64) {
        let now = self.world.now;
        let mut limits = self.numbers.iter().zip(&self.seen);
        let is_counted = limits.all(|(numbers, answer)| {
            let numbers = numbers.at(answer);
            numbers.tick(answer.snapshot.at) >= numbers.tick(now)
        });
        // After a larger step, a limit follows the clock.
        if is_counted && self.seen_at == now && self.latest - (now - ms) <= 60_000 {
            self.world.now -= ms;
            self.has_stepped_back = true;
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(Verb, [u64; 2]),
    Reserve([u64; 2], Option<u64>),
    /// One of the open reservations, if there are any.
    Extend(usize, [u64; 2]),
    Close(usize, Closing),
    Wait(Wait),
    /// The clock steps back.
    Back(i64),
    /// This many rows arrive.
    Arrive(usize),
    FlushIdle,
    Clean,
    /// The process ends after this many rows in flight have arrived.
    Crash(usize),
}

#[derive(Clone, Copy, Debug)]
enum Closing {
    /// At these costs; at those reserved if there are none.
    Settle(Option<[u64; 2]>),
    Cancel,
}

/// How time passes: to a moment, and a few milliseconds before or after it.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Ms(i64),
    /// Until this limit was full, by the last look.
    UntilFull(usize, i64),
    /// Until the next window opens.
    UntilWindow(i64),
    /// Until this reservation expires.
    UntilExpired(usize, i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..40)
}

fn step() -> impl Strategy<Value = Step> {
    let max_wait = prop_oneof![Just(Some(0)), (0..5_000_u64).prop_map(Some), Just(None)];
    prop_oneof![
        6 => costs().prop_map(|costs| Step::Take(Verb::Consume, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::ConsumeUpTo, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::Charge, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::Refund, costs)),
        1 => Just(Step::Take(Verb::Reset, [0, 0])),
        1 => costs().prop_map(|costs| Step::Take(Verb::Borrow { max_wait_ms: None }, costs)),
        8 => (costs(), max_wait).prop_map(|(costs, max_wait_ms)| Step::Reserve(costs, max_wait_ms)),
        8 => (0..8_usize, closing()).prop_map(|(which, closing)| Step::Close(which, closing)),
        4 => (0..8_usize, prop_oneof![1 => Just([0, 0]), 3 => costs()]).prop_map(|(which, costs)| Step::Extend(which, costs)),
        10 => wait().prop_map(Step::Wait),
        1 => (1..20_000_i64).prop_map(Step::Back),
        2 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..4_usize).prop_map(Step::Crash),
    ]
}

fn closing() -> impl Strategy<Value = Closing> {
    prop_oneof![
        2 => Just(Closing::Cancel),
        1 => Just(Closing::Settle(None)),
        4 => costs().prop_map(|costs| Closing::Settle(Some(costs))),
    ]
}

fn wait() -> impl Strategy<Value = Wait> {
    let around = || -1..=1_i64;
    prop_oneof![
        2 => (0..400_i64).prop_map(Wait::Ms),
        3 => (0..6_000_i64).prop_map(Wait::Ms),
        1 => Just(Wait::Ms(DAY_MS)),
        3 => (0..2_usize, around()).prop_map(|(limit, ms)| Wait::UntilFull(limit, ms)),
        3 => around().prop_map(Wait::UntilWindow),
        3 => (0..8_usize, around()).prop_map(|(which, ms)| Wait::UntilExpired(which, ms)),
    ]
}

fn costs() -> impl Strategy<Value = [u64; 2]> {
    let cost = || prop_oneof![3 => 0..4_u64, 3 => 0..13_u64, 1 => 0..45_u64];
    [cost(), cost()]
}

/// A key of a policy with this JSON.
pub(crate) fn world_of(json: &str) -> World {
    World::new(&Policies::parse(&format!(r#"{{"p": {json}}}"#)).unwrap(), "p")
}

pub(crate) fn reserved(world: &mut World, cost: u64) -> u64 {
    world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![cost]).reservation.unwrap().id
}

/// The tokens that moved; 0 if it was refused.
pub(crate) fn taken(world: &mut World, verb: Verb, cost: u64) -> u64 {
    tokens(&world.decided(Action::Take(verb), vec![cost]).limits[0])
}

/// Its cost.
pub(crate) fn settled(world: &mut World, id: u64, cost: u64) -> u64 {
    tokens(&world.decided(Action::Settle(id), vec![cost]).limits[0])
}

pub(crate) fn cancelled(world: &mut World, id: u64) {
    assert!(decided(world.ask(Action::Cancel(id), None, None)).decision().is_allow());
}
