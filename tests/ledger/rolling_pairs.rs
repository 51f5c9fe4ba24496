//! Rolling windows: boundaries in pairs. Laws about them are in `rolling.rs`.

use std::sync::Arc;

use tollgate::key_hash::KeyHasher;
use tollgate::limit::{Carry, Decision, Verb};
use tollgate::policy::Policy;
use tollgate::policy::overrides::{History, InForce, Overrides, Selector, WrittenOverride};
use tollgate::protocol::{Action, Decided, LEASE_GRACE_MS, ObjectReply};

use crate::late::{cancelled, reserved, settled, taken, world_of};
use crate::world::{DAY_MS, START, World, decided, signed, tokens};

const CONSUME: Action = Action::Take(Verb::Consume);
const LOOK: Action = Action::Look(Verb::Consume);

/// 3 each minute, one by one.
const THREE: &str = r#""kind":"rolling_window","rate":3,"period":"1m","write_ahead":0"#;
/// 100 each minute, in grains of a second.
const HUNDRED: &str = r#""kind":"rolling_window","rate":100,"period":"1m","write_ahead":0"#;
const MINUTE_MS: i64 = 60_000;

fn with(fields: &str) -> World {
    world_of(&format!(r#"{{{fields},"reservation_ttl":"15s"}}"#))
}

fn consume(world: &mut World, cost: u64) -> Decision {
    world.decided(CONSUME, vec![cost]).decision()
}

fn allowed(tokens: u64, now: i64) -> Decision {
    Decision::Allow { tokens, ready_at: now }
}

/// The same on a quiet key and after crashes: each grant of a block of 0 is written.
#[test]
fn each_token_of_a_small_rate_is_back_a_period_after_it_was_taken() {
    for crashes in [false, true] {
        let mut world = with(THREE);
        let wait = |ms: i64| Decision::Wait { retry_at: START + ms };
        for (ms, cost, expected, left, reset_ms) in [
            (0, 1, allowed(1, START), 2, MINUTE_MS),
            (7, 1, allowed(1, START + 7), 1, MINUTE_MS + 7),
            (30_000, 4, Decision::Never { max: 3 }, 1, MINUTE_MS + 7),
            (30_000, 2, wait(MINUTE_MS), 1, MINUTE_MS + 7),
            (30_000, 3, wait(MINUTE_MS + 7), 1, MINUTE_MS + 7),
            (30_000, 1, allowed(1, START + 30_000), 0, 90_000),
            (MINUTE_MS - 1, 1, wait(MINUTE_MS), 0, 90_000),
            (MINUTE_MS - 1, 2, wait(MINUTE_MS + 7), 0, 90_000),
            (MINUTE_MS - 1, 3, wait(90_000), 0, 90_000),
            (MINUTE_MS, 1, allowed(1, START + MINUTE_MS), 0, 2 * MINUTE_MS),
            (MINUTE_MS + 6, 1, wait(MINUTE_MS + 7), 0, 2 * MINUTE_MS),
            (MINUTE_MS + 7, 0, allowed(0, START + MINUTE_MS + 7), 1, 2 * MINUTE_MS),
            (2 * MINUTE_MS - 1, 3, wait(2 * MINUTE_MS), 2, 2 * MINUTE_MS),
            (2 * MINUTE_MS, 3, allowed(3, START + 2 * MINUTE_MS), 0, 3 * MINUTE_MS),
            (5 * MINUTE_MS, 0, allowed(0, START + 5 * MINUTE_MS), 3, 5 * MINUTE_MS), // full now
        ] {
            world.now = START + ms;
            let answer = world.decided(CONSUME, vec![cost]);
            let case = format!("{cost} after {ms} ms, crashes: {crashes}");
            assert_eq!((answer.decision(), answer.limits[0].remaining), (expected, left), "{case}");
            assert_eq!(answer.limits[0].reset_at, Some(START + reset_ms), "{case}");
            if crashes {
                world.crash(0);
            }
        }
    }
}

/// A grain ends with the multiple of its length, which is still in it.
#[test]
fn tokens_of_a_grain_come_back_together_a_period_after_its_end() {
    for (taken_ms, back_ms) in
        [(-1_000, 59_000), (-999, 60_000), (-1, 60_000), (0, 60_000), (1, 61_000), (1_000, 61_000)]
    {
        for crashes in [false, true] {
            let mut world = World { now: START + taken_ms, ..with(HUNDRED) };
            assert!(consume(&mut world, 100).is_allow());
            for (ms, left) in [(taken_ms, 0), (back_ms - 1, 0), (back_ms, 100)] {
                world.now = START + ms;
                if crashes {
                    world.crash(0);
                }
                assert_eq!(world.levels(), [left], "taken at {taken_ms}, {ms} ms, crashes: {crashes}");
                let expected =
                    if left > 0 { allowed(1, world.now) } else { Decision::Wait { retry_at: START + back_ms } };
                assert_eq!(world.decided(LOOK, vec![1]).decision(), expected);
            }
        }
    }
}

/// Up to as many tokens as grains are kept one by one. The start is a multiple of 17, 200 and 1 000 ms.
#[test]
fn the_rate_and_the_grains_say_how_exact_it_is() {
    for (rate, grains, back_ms) in [
        (60, "", 1_001),
        (61, "", 1_017),
        (240, r#","grains":240"#, 1_001),
        (5, r#","grains":5"#, 1_001),
        (6, r#","grains":5"#, 1_200),
        (2, r#","grains":1"#, 2_000),
    ] {
        let mut world =
            with(&format!(r#""kind":"rolling_window","rate":{rate},"period":"1s","write_ahead":0{grains}"#));
        world.now += 1;
        assert!(consume(&mut world, rate).is_allow());
        assert_eq!(consume(&mut world, 1), Decision::Wait { retry_at: START + back_ms }, "{rate}{grains}");
    }
    let mut none = with(r#""kind":"rolling_window","rate":0,"period":"1s""#);
    assert_eq!((consume(&mut none, 1), none.levels()), (Decision::Never { max: 0 }, vec![0]));
}

/// By a minute or less no time passes. By more the window follows, and nothing is out for longer than a period from then.
#[test]
fn a_clock_that_steps_back_does_not_lock_a_key_out() {
    for (fields, rate, late_ms) in [(THREE, 3, 0), (HUNDRED, 100, 1_000)] {
        for back_ms in [1, 59_999, 60_000, 60_001, 3_600_000, 400 * DAY_MS] {
            for crashes in [false, true] {
                let mut world = with(fields);
                assert!(consume(&mut world, rate).is_allow());
                world.now -= back_ms;
                if crashes {
                    world.crash(0);
                }
                let case = format!("{rate}, back by {back_ms} ms, crashes: {crashes}");
                let Decision::Wait { retry_at } = consume(&mut world, 1) else { panic!("{case}: granted") };
                let most = if back_ms > MINUTE_MS { world.now + MINUTE_MS + late_ms } else { START + MINUTE_MS };
                assert!((world.now + 1..=most).contains(&retry_at), "{case}: {} ms", retry_at - world.now);
                for (at, is_granted) in [(retry_at - 1, false), (retry_at, true)] {
                    world.now = at;
                    assert_eq!(consume(&mut world, 1).is_allow(), is_granted, "{case}");
                }
            }
        }
    }
}

/// While the latest moment is ahead, a take joins it.
#[test]
fn a_take_after_a_small_step_back_comes_back_with_the_last_one() {
    let mut world = with(THREE);
    assert!(consume(&mut world, 1).is_allow());
    world.now -= 30_000;
    assert!(consume(&mut world, 2).is_allow());
    for (ms, left) in [(30_000, 0), (MINUTE_MS - 1, 0), (MINUTE_MS, 3)] {
        world.now = START + ms;
        assert_eq!(world.levels(), [left], "{ms} ms");
    }
}

#[test]
fn a_hold_withholds_tokens_until_its_batch_is_decided() {
    for (ends, left) in [(Some(Action::Settle(7)), 1), (Some(Action::Cancel(7)), 3), (None, 3)] {
        let mut world = with(THREE);
        world.decided(Action::Hold(7), vec![2]);
        assert_eq!(world.levels(), [1]);
        assert_eq!(consume(&mut world, 2), Decision::Wait { retry_at: START + 10_000 }, "when the hold ends");
        assert_eq!(world.rows_written, 0);
        world.now += 5_000;
        match ends {
            Some(action) => _ = decided(world.ask(action, None, None)),
            None => world.now += 5_000,
        }
        assert_eq!(world.levels(), [left], "{ends:?}");
        // A commit takes when it is committed.
        for (ms, left) in [(MINUTE_MS + 4_999, left), (MINUTE_MS + 5_000, 3)] {
            world.crash(0);
            world.now = START + ms;
            assert_eq!(world.levels(), [left], "{ends:?}, {ms} ms");
        }
    }
    let mut world = with(THREE);
    world.decided(Action::Hold(7), vec![2]);
    decided(world.ask(Action::Settle(7), None, None));
    decided(world.ask(Action::Cancel(7), None, None));
    assert_eq!(world.levels(), [3], "a commit that is undone");
}

#[test]
fn a_rolling_window_in_shadow_reports_and_never_refuses() {
    let mut world = world_of(&format!(
        r#"{{"limits":[{{"name":"own","rate":"1000/1s"}},{{"name":"tried","mode":"shadow",{THREE}}}]}}"#
    ));
    for (ms, cost, expected, left) in [
        (0, 2, allowed(2, START), 1),
        (5, 2, Decision::Wait { retry_at: START + MINUTE_MS }, 1),
        (5, 4, Decision::Never { max: 3 }, 1),
        (5, 1, allowed(1, START + 5), 0),
        (MINUTE_MS - 1, 1, Decision::Wait { retry_at: START + MINUTE_MS }, 0),
        (MINUTE_MS, 1, allowed(1, START + MINUTE_MS), 1),
    ] {
        world.now = START + ms;
        let answer = decided(world.ask_shadow(CONSUME, Some(vec![cost]), Some(vec![cost]), None));
        let tried = answer.shadow[0].expect("it was tried");
        assert!(answer.decision().is_allow(), "{cost} after {ms} ms");
        assert_eq!((tried.decision, tried.remaining), (expected, left), "{cost} after {ms} ms");
    }
}

/// The policy with an override of the key.
fn overridden(policy: &Arc<Policy>, fields: &str, now: i64) -> Arc<Policy> {
    let plan = WrittenOverride::parse("it", &format!(r#"{{"policy":"p","key":"k",{fields}}}"#)).unwrap().plan;
    let mut history = History::default();
    history.push(now, Some(InForce { plan, until: None }), None);
    let mut records = Vec::new();
    Selector::key("p", KeyHasher::default().hash(b"k")).record(&history.encode(), &mut records);
    let overrides = Overrides::default();
    overrides.update(&records).unwrap();
    overrides.apply(policy, b"k", now)
}

fn registered(fields: &str) -> World {
    let policy = Arc::new(Policy::clone(&with(fields).policy).in_force_since(START - 10));
    World { as_of: Some(START - 10), ..World::empty(&policy) }
}

#[test]
fn keys_without_limits_and_banned_keys() {
    let mut world = registered(THREE);
    let base = Arc::clone(&world.policy);
    assert!(consume(&mut world, 1).is_allow());
    world.now += 1_000;
    world.policy = overridden(&base, r#""banned":true"#, world.now);
    world.as_of = Some(world.now);
    for cost in [0, 1, 4] {
        assert!(!consume(&mut world, cost).is_allow(), "{cost}");
    }
    assert_eq!(taken(&mut world, Verb::Refund, 0), 0);
    assert_eq!(world.levels(), [2]);
    world.now += 1_000;
    world.policy = overridden(&base, r#""unlimited":true"#, world.now);
    world.as_of = Some(world.now);
    for _ in 0..3 {
        assert!(consume(&mut world, 100).is_allow());
    }
    assert_eq!(world.levels(), [0], "it has taken what was left");
    world.now += 1_000;
    (world.policy, world.as_of) = (base, Some(world.now));
    assert_eq!(consume(&mut world, 1), Decision::Wait { retry_at: START + MINUTE_MS });
    for (ms, left) in [(MINUTE_MS, 1), (MINUTE_MS + 1_999, 1), (MINUTE_MS + 2_000, 3)] {
        world.now = START + ms;
        assert_eq!(world.levels(), [left], "{ms} ms");
    }
}

/// 7 of 10 are out, 3 and 4, when 5 come into force: with 4 the first 3 are back, and 1 is left.
#[test]
fn an_override_below_what_is_out_refuses_until_enough_is_back() {
    let fields = |rate: u32| format!(r#""kind":"rolling_window","rate":{rate},"period":"1m","write_ahead":0"#);
    for (rate, cost, retry_ms) in [
        (5, 1, MINUTE_MS),
        (5, 2, MINUTE_MS + 500),
        (5, 5, MINUTE_MS + 500),
        (4, 1, MINUTE_MS + 500),
        (8, 2, MINUTE_MS),
    ] {
        for crashes in [false, true] {
            let mut world = registered(&fields(10));
            assert!(consume(&mut world, 3).is_allow());
            world.now += 500;
            assert!(consume(&mut world, 4).is_allow());
            world.now += 500;
            world.policy = overridden(&world.policy, &fields(rate), world.now);
            world.as_of = Some(world.now);
            for at in [world.now, START + retry_ms - 1] {
                world.now = at;
                let case = format!("{cost} of {rate}, {} ms, crashes: {crashes}", at - START);
                assert_eq!(consume(&mut world, cost), Decision::Wait { retry_at: START + retry_ms }, "{case}");
                if crashes {
                    world.crash(0);
                }
            }
            world.now = START + retry_ms;
            assert_eq!(consume(&mut world, cost), allowed(cost, world.now));
        }
    }
}

#[test]
fn a_rolling_window_and_a_bucket_take_both_or_none() {
    let mut world =
        world_of(&format!(r#"{{"limits":[{{"name":"w",{THREE}}},{{"name":"b","rate":"10/10s","write_ahead":0}}]}}"#));
    for (ms, costs, expected, levels) in [
        (0, [2, 6], true, [1, 4]),
        (0, [1, 5], false, [1, 4]), // the bucket refuses
        (0, [2, 4], false, [1, 4]), // the window refuses
        (0, [0, 4], true, [1, 0]),
        (1_000, [1, 0], true, [0, 1]),
        (1_000, [0, 1], true, [0, 0]),
        (MINUTE_MS - 1, [1, 1], false, [0, 10]),
        (MINUTE_MS, [2, 10], true, [0, 0]),
    ] {
        world.now = START + ms;
        let answer = world.decided(CONSUME, costs.to_vec());
        assert_eq!(
            (answer.decision().is_allow(), world.levels()),
            (expected, levels.to_vec()),
            "{costs:?} after {ms} ms"
        );
    }
    // Up to a cost, both give what the emptier one has.
    world.now = START + 3 * MINUTE_MS;
    let answer = world.decided(Action::Take(Verb::ConsumeUpTo), vec![8, 8]);
    assert_eq!((tokens(&answer.limits[0]), world.levels()), (3, vec![0, 7]));
}

#[test]
fn a_repeated_request_takes_nothing_again() {
    for crashes in [false, true] {
        let mut world = with(THREE);
        for is_replayed in [false, true, true] {
            let answer = world.decided_once(CONSUME, vec![2], 9);
            assert_eq!((answer.is_replayed, answer.decision()), (is_replayed, allowed(2, START)));
            assert_eq!(world.levels(), [1]);
            if crashes {
                world.crash(0);
            }
        }
    }
}

#[test]
fn an_inspection_shows_what_is_left_and_when_all_is_back() {
    let mut world = with(HUNDRED);
    world.decided(CONSUME, vec![30]);
    world.now += 1;
    let id = reserved(&mut world, 20);
    world.decided(Action::Hold(7), vec![5]);
    for _ in 0..2 {
        let state = world.ledger.inspect(std::slice::from_ref(&world.policy), 0, world.now);
        let limit = state.buckets[0].limits.as_ref().unwrap().1[0];
        assert_eq!((limit.remaining, limit.owed, limit.held, limit.reset_at), (45, 0, 5, Some(START + 61_000)));
        assert_eq!((state.reservations.len(), state.reservations[0].id), (1, id));
        assert_eq!(state.reservations[0].tokens[0].limits, [(None, 20)]);
    }
    cancelled(&mut world, id);
    assert_eq!(world.levels(), [65]);
}

/// As a window that opens again when all is back.
#[test]
fn a_snapshot_has_the_tokens_left() {
    let mut world = World { now: START + 1, ..with(HUNDRED) };
    for left in [70_u64, 40, 10] {
        let limit = world.decided(CONSUME, vec![30]).limits[0];
        assert_eq!((limit.remaining, limit.snapshot.tokens, limit.snapshot.drops), (left, left.cast_signed(), 0));
        assert_eq!((limit.snapshot.at, limit.reset_at), (START + 1_000, Some(START + 1_000 + MINUTE_MS)));
    }
}

#[test]
fn the_row_is_deleted_once_all_is_back_and_not_before() {
    for (fields, back_ms) in [(THREE, MINUTE_MS + 500), (HUNDRED, MINUTE_MS + 1_000)] {
        for crashes in [false, true] {
            let mut world = with(fields);
            taken(&mut world, Verb::Consume, 1);
            world.now += 500;
            taken(&mut world, Verb::Consume, 2);
            for (ms, is_there) in [(MINUTE_MS, true), (back_ms - 1, true), (back_ms, false)] {
                if crashes {
                    world.crash(0);
                }
                world.now = START + ms;
                world.clean();
                assert_eq!(world.has_row(), is_there, "{ms} ms, crashes: {crashes}");
                assert_eq!(world.alarm_at.is_some(), is_there);
            }
            assert!(world.storage.is_empty());
        }
    }
    // By its own alarm, of a long period too.
    let mut world = with(r#""kind":"rolling_window","rate":3,"period":"30days""#);
    taken(&mut world, Verb::Consume, 1);
    while let Some(at) = world.alarm_at {
        world.now = at;
        world.clean();
    }
    assert!((START + 30 * DAY_MS..START + 32 * DAY_MS).contains(&world.now), "{}", world.now - START);
    assert!(world.storage.is_empty());
}

/// A thousand at as many moments, of which the window keeps a few.
#[test]
fn a_thousand_open_reservations_are_closed_one_by_one() {
    for (gap_ms, crashes) in [(1, false), (20, false), (20, true)] {
        let mut world =
            world_of(r#"{"kind":"rolling_window","rate":1000,"period":"1m","write_ahead":0,"reservation_ttl":"1h"}"#);
        let ids: Vec<_> = (0..1_000)
            .map(|_| {
                world.now += gap_ms;
                reserved(&mut world, 1)
            })
            .collect();
        assert_eq!(world.levels(), [0]);
        if crashes {
            world.crash(0);
        }
        for (index, &id) in ids.iter().enumerate().take(900) {
            cancelled(&mut world, id);
            assert_eq!(world.levels(), [i64::try_from(index + 1).unwrap()], "{gap_ms} ms apart");
        }
        assert_eq!(taken(&mut world, Verb::Consume, 900), 900);
        world.now = START + 2 * MINUTE_MS;
        assert_eq!(world.levels(), [1_000]);
        // Back already: nothing is given back or taken.
        for (id, cost) in ids.into_iter().skip(900).zip([0, 1].into_iter().cycle()) {
            assert_eq!(settled(&mut world, id, cost), cost);
        }
        assert_eq!(world.levels(), [1_000]);
    }
}

/// As if the real cost had been taken in the first place: refunds are clipped again, and what was taken since stays taken.
#[test]
fn a_cancellation_gives_back_nothing_that_was_taken_after_a_reset_or_a_refund() {
    for (verb, cost) in [(Verb::Reset, 0), (Verb::Refund, 7)] {
        for (grains, wait_ms, crashes) in [("60", 0, false), ("60", 1, false), ("5", 0, true), ("5", 1, false)] {
            let rate = r#""kind":"rolling_window","rate":10,"period":"1m","write_ahead":0"#;
            let mut world = with(&format!(r#"{rate},"grains":{grains}"#));
            let id = reserved(&mut world, 4);
            taken(&mut world, Verb::Consume, 3);
            assert_eq!(taken(&mut world, verb, cost), 7);
            world.now += wait_ms;
            taken(&mut world, Verb::Consume, 5);
            if crashes {
                world.crash(0);
            }
            cancelled(&mut world, id);
            assert_eq!(world.levels(), [5], "{verb:?}, {grains} grains, {wait_ms} ms later, crashes: {crashes}");
        }
    }
}

/// A charge takes what is left, and so does a settlement above what was reserved, at the moment of the reservation.
#[test]
fn nothing_is_ever_owed() {
    let mut world = with(THREE);
    let id = reserved(&mut world, 1);
    world.now += 1_000;
    assert_eq!(taken(&mut world, Verb::Charge, 1), 1);
    assert_eq!(settled(&mut world, id, 9), 2, "1 and the 1 that was left");
    assert_eq!((taken(&mut world, Verb::Charge, 5), world.levels()), (0, vec![0]));
    for (ms, left) in [(MINUTE_MS - 1, 0), (MINUTE_MS, 2), (MINUTE_MS + 999, 2), (MINUTE_MS + 1_000, 3)] {
        world.now = START + ms;
        let limit = world.decided(Action::Look(Verb::Refund), vec![0]).limits[0];
        assert_eq!(signed(limit.remaining, limit.owed), left, "{ms} ms");
    }
}

/// What it costs more is taken at the change. What it costs less was missing then, among all else, and is back a period later.
#[test]
fn a_reservation_from_before_a_limit_was_a_rolling_window_pays_for_more() {
    for (cost, left) in [(25, 75), (10, 90), (4, 90)] {
        for crashes in [false, true] {
            let mut world = with(r#""rate":100,"period":"1m","write_ahead":0"#);
            let id = reserved(&mut world, 10);
            world.policy = Arc::clone(&with(HUNDRED).policy);
            assert_eq!(world.levels(), [90]);
            if crashes {
                world.crash(usize::MAX);
            }
            assert_eq!(settled(&mut world, id, cost), cost);
            assert_eq!(world.levels(), [left], "{cost}, crashes: {crashes}");
            world.now += MINUTE_MS;
            assert_eq!(world.levels(), [100], "{cost}, crashes: {crashes}");
        }
    }
}

/// The other way round: a cancellation gives nothing back, and what it costs more is taken then.
#[test]
fn a_reservation_from_a_rolling_window_pays_for_more_in_another_limit() {
    for fields in [r#""rate":100,"period":"1m""#, r#""kind":"fixed_window","offset":"0s","rate":100,"period":"1m""#] {
        for (cost, left) in [(Some(50), 50), (Some(10), 90), (Some(4), 90), (None, 90)] {
            for crashes in [false, true] {
                let mut world = with(HUNDRED);
                let id = reserved(&mut world, 10);
                world.policy = Arc::clone(&with(&format!(r#"{fields},"write_ahead":0"#)).policy);
                assert_eq!(world.levels(), [90]);
                if crashes {
                    world.crash(usize::MAX);
                }
                match cost {
                    Some(cost) => assert_eq!(settled(&mut world, id, cost), cost),
                    None => cancelled(&mut world, id),
                }
                assert_eq!(world.levels(), [left], "{fields}: {cost:?}, crashes: {crashes}");
            }
        }
    }
}

/// Not when the object is read again and again.
#[test]
fn what_a_crash_may_have_cost_is_back_a_period_after_the_next_request() {
    let mut world = with(r#""kind":"rolling_window","rate":20,"period":"1h","write_ahead":5"#);
    assert!(consume(&mut world, 1).is_allow());
    world.now += 50;
    assert!(consume(&mut world, 1).is_allow()); // the row lacks five more
    world.crash(0);
    world.now = START + 10_000;
    let Decision::Wait { retry_at } = consume(&mut world, 20) else { panic!("granted") };
    assert!((START + 3_610_000 - 10..=START + 3_610_000).contains(&retry_at), "{}", retry_at - START);
    for now in [START + 20_000, START + 3_000_000, retry_at - 1] {
        world.crash(usize::MAX);
        world.now = now;
        assert_eq!(consume(&mut world, 20), Decision::Wait { retry_at });
    }
    world.crash(usize::MAX);
    world.now = retry_at;
    assert!(consume(&mut world, 20).is_allow());
}

/// As with other limits: the past no longer matters.
#[test]
fn a_reservation_from_before_a_change_that_resets_takes_nothing_more() {
    let json = format!(r#"{{{HUNDRED},"reservation_ttl":"1m"}}"#);
    let first = Policy::clone(&world_of(&json).policy).in_force_since(START - DAY_MS);
    let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&Arc::new(first)) };
    let id = reserved(&mut world, 10);
    world.now += 1_000;
    let next = Policy::clone(&world_of(&json.replace("100", "101")).policy);
    world.policy = Arc::new(next.succeeding(&world.policy, world.now, Carry::Reset));
    world.as_of = Some(world.now);
    assert_eq!(world.levels(), [101]);
    settled(&mut world, id, 25);
    assert_eq!(world.levels(), [101]);
}

/// Never early: each moment is as far from the new clock as it was from the old one.
#[test]
fn tokens_of_two_grains_follow_a_clock_that_steps_back_together() {
    let mut world = with(HUNDRED);
    for now in [START + 90_000, START + 90_001] {
        world.now = now;
        assert!(consume(&mut world, 50).is_allow());
    }
    for (ms, left) in [(0, 0), (59_998, 0), (59_999, 50), (60_998, 50), (60_999, 100)] {
        world.now = START + ms;
        assert_eq!(world.levels(), [left], "{ms} ms after the step");
    }
}

/// Tokens that were leased before count as taken when the lease is over, also by an object that is read again.
#[test]
fn a_lease_from_before_a_limit_was_a_rolling_window_is_taken_when_it_is_over() {
    for carry in [Carry::Additive, Carry::Reset] {
        for crashes in [false, true] {
            let bucket = r#"{"rate":100,"period":"1m","write_ahead":0,"lease":"10s"}"#;
            let first = Policy::clone(&world_of(bucket).policy).in_force_since(START - DAY_MS);
            let mut world = World { as_of: Some(START - DAY_MS), ..World::empty(&Arc::new(first)) };
            let ObjectReply::Decided(Decided { lease: Some(lease), .. }) = world.lease(vec![40], Vec::new()) else {
                panic!("no lease");
            };
            let over_at = lease.until.saturating_add_unsigned(LEASE_GRACE_MS);
            let taken = 100 - world.levels()[0] - 40;
            world.now += 1_000;
            let next = Policy::clone(&with(HUNDRED).policy);
            world.policy = Arc::new(next.succeeding(&world.policy, world.now, carry));
            world.as_of = Some(world.now);
            let before = world.levels()[0];
            assert!((60 - taken..=60).contains(&before), "{carry:?}: {before}");
            let case = format!("{carry:?}, crashes: {crashes}");
            for now in [over_at - 1, over_at, over_at + MINUTE_MS - 1] {
                world.now = now;
                if crashes {
                    world.crash(usize::MAX);
                }
                world.clean();
                assert!(world.levels()[0] <= 60, "{case}: {} ms", now - over_at);
            }
            world.now = over_at + MINUTE_MS + 1_000;
            assert_eq!(world.levels(), [100], "{case}");
        }
    }
}

/// Also in accounts of other numbers.
#[test]
fn what_a_reservation_gives_back_is_given_back_under_all_numbers() {
    let [ten, twenty] = [10, 20].map(|rate| {
        let numbers = format!(r#""kind":"rolling_window","rate":{rate},"period":"1day","write_ahead":0"#);
        world_of(&format!(r#"{{{numbers},"unsettled":"refund","reservation_ttl":"10s"}}"#)).policy
    });
    for (close, left) in [(Some(None), 9), (Some(Some(1)), 8), (Some(Some(5)), 4), (None, 9)] {
        let mut world = World::empty(&ten);
        assert!(consume(&mut world, 1).is_allow());
        world.now += 1_000;
        world.policy = Arc::clone(&twenty);
        let id = reserved(&mut world, 5);
        world.now += 1_000;
        match close {
            Some(None) => cancelled(&mut world, id),
            Some(Some(cost)) => assert_eq!(settled(&mut world, id, cost), cost),
            None => world.now += 10_000,
        }
        assert_eq!(world.levels(), [left + 10]);
        world.policy = Arc::clone(&ten);
        assert_eq!(world.levels(), [left], "{close:?}");
    }
}

#[test]
fn a_refusal_beside_a_lease_from_before_says_when_its_tokens_are_back() {
    for fields in [HUNDRED.to_owned(), HUNDRED.replace("100", "100,\"grains\":240")] {
        let bucket = r#"{"rate":100,"period":"1m","write_ahead":0,"lease":"10s"}"#;
        let mut world = world_of(bucket);
        let ObjectReply::Decided(Decided { lease: Some(_), .. }) = world.lease(vec![40], Vec::new()) else {
            panic!("no lease");
        };
        world.policy = Arc::clone(&with(&fields).policy);
        world.now += 5_001;
        let left = world.levels()[0].unsigned_abs();
        let Decision::Wait { retry_at } = consume(&mut world, left + 1) else { panic!("granted") };
        for (at, is_granted) in [(retry_at - 1, false), (retry_at, true)] {
            world.now = at;
            assert_eq!(world.decided(LOOK, vec![left + 1]).decision().is_allow(), is_granted, "{fields}");
        }
    }
}
