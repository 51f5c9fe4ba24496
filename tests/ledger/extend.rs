//! Extended reservations. That it makes no difference when a cost was taken is a law in `late.rs`.

use tollgate::limit::{Decision, Verb};
use tollgate::protocol::{Action, Decided, ObjectReply, RequestId};

use crate::late::{BUCKET, WINDOW, cancelled, reserved, settled, taken, world_of};
use crate::world::{START, World, decided, request_id, tokens};

const TTL_MS: i64 = 15_000;

/// Of a policy with [`WINDOW`]'s numbers.
fn window(unsettled: &str) -> World {
    world_of(&WINDOW.replace('}', &format!(r#", "unsettled": "{unsettled}", "reservation_ttl": "15s"}}"#)))
}

fn extended(world: &mut World, id: u64, cost: u64) -> Decided {
    world.decided(Action::Extend(id), vec![cost])
}

#[test]
fn extended_it_lasts_as_long_as_a_new_one_and_never_shorter() {
    for unsettled in ["keep", "refund"] {
        let mut world = window(unsettled);
        let id = reserved(&mut world, 4);
        for (now, expires_at) in [(0, 15_000), (14_999, 29_999), (9_000, 29_999), (29_998, 44_998)] {
            world.now = START + now;
            let decided = extended(&mut world, id, 0);
            let told = decided.reservation.unwrap();
            assert_eq!((told.id, told.expires_at), (id, START + expires_at), "at {now}");
            assert!(!decided.is_replayed && tokens(&decided.limits[0]) == 0);
        }
        world.crash(0);
        world.now = START + 44_997;
        assert_eq!(settled(&mut world, id, 4), 4);
    }
}

#[test]
fn without_a_cost_it_is_extended_however_little_is_left() {
    let mut world = world_of(&BUCKET.replace('}', r#", "max_debt": 5}"#));
    let id = reserved(&mut world, 4);
    taken(&mut world, Verb::Charge, 11);
    assert_eq!(world.levels(), [-5]);
    world.now += 1;
    assert!(extended(&mut world, id, 0).decision().is_allow());
    assert!(!extended(&mut world, id, 1).decision().is_allow());
}

/// docs/scale.md states what an extension costs.
#[test]
fn extending_writes_a_row_and_one_more_with_a_cost() {
    let mut world = world_of(&BUCKET.replace(r#", "write_ahead": 0"#, ""));
    let id = reserved(&mut world, 4);
    for (cost, rows) in [(0, 1), (1, 2), (0, 1), (9, 0)] {
        world.now += 100;
        let before = world.rows_written;
        extended(&mut world, id, cost);
        assert_eq!(world.rows_written - before, rows, "a cost of {cost}");
    }
}

#[test]
fn extending_an_ended_reservation_is_unknown_and_a_closed_one_closed() {
    let mut world = window("keep");
    let id = reserved(&mut world, 4);
    for (id, reply) in [(id + 1, ObjectReply::NoReservation), (0, ObjectReply::NoReservation)] {
        assert_eq!(world.ask(Action::Extend(id), Some(vec![1]), None), reply);
    }
    world.now += TTL_MS;
    assert_eq!(
        world.ask(Action::Extend(id), Some(vec![0]), None),
        ObjectReply::NoReservation,
        "it can be settled late"
    );
    assert_eq!(settled(&mut world, id, 3), 3);
    assert_eq!(world.ask(Action::Extend(id), Some(vec![0]), None), ObjectReply::ReservationClosed);
    let id = reserved(&mut world, 4);
    cancelled(&mut world, id);
    assert_eq!(world.ask(Action::Extend(id), Some(vec![1]), None), ObjectReply::ReservationClosed);
    world.crash(0);
    assert_eq!(world.ask(Action::Extend(id), Some(vec![1]), None), ObjectReply::ReservationClosed);
}

/// Tokens that it gave back by expiring stay given back, whatever the clock shows after a crash.
#[test]
fn what_has_expired_before_a_crash_is_neither_free_nor_extended_when_the_clock_is_behind() {
    for is_settled in [false, true] {
        let mut world = window("refund");
        let id = reserved(&mut world, 4);
        world.now += TTL_MS;
        assert_eq!(world.levels(), [10]);
        world.now -= TTL_MS;
        world.crash(usize::MAX);
        assert_eq!(world.ask(Action::Extend(id), Some(vec![0]), None), ObjectReply::NoReservation);
        if is_settled {
            assert_eq!(settled(&mut world, id, 4), 4);
            world.now += 4_999;
            assert_eq!(world.levels(), [6]);
        } else {
            cancelled(&mut world, id);
            assert_eq!(world.levels(), [10]);
        }
    }
}

/// Of 10 in each window, 5 are taken in the first, and 3 in the second.
#[test]
fn tokens_come_back_from_the_latest_raise_first() {
    for (cost, left) in [(8, 7), (7, 8), (5, 10), (4, 10), (0, 10), (9, 6), (13, 2), (15, 0), (16, 0)] {
        for crashes in [false, true] {
            let mut world = window("keep");
            let id = reserved(&mut world, 5);
            world.now += 10_000;
            assert_eq!(tokens(&extended(&mut world, id, 3).limits[0]), 3);
            assert_eq!(world.levels(), [7]);
            if crashes {
                world.crash(0);
            }
            assert_eq!(settled(&mut world, id, cost), cost.min(15), "8 settled at {cost}");
            assert_eq!(world.levels(), [left], "8 settled at {cost}");
        }
    }
}

#[test]
fn cancelled_or_expired_it_gives_back_what_each_window_still_has() {
    for is_cancelled in [false, true] {
        let mut world = window("refund");
        let id = reserved(&mut world, 5);
        world.now += 10_000;
        extended(&mut world, id, 3);
        taken(&mut world, Verb::Consume, 6);
        assert_eq!(world.levels(), [1]);
        if is_cancelled {
            cancelled(&mut world, id);
            assert_eq!(world.levels(), [4]);
        } else {
            world.now = START + 10_000 + TTL_MS; // two windows later
            assert_eq!(world.levels(), [10]);
            assert_eq!(taken(&mut world, Verb::Consume, 10), 10);
            assert_eq!(settled(&mut world, id, 9), 9, "late");
            assert_eq!(world.levels(), [0]);
        }
    }
}

#[test]
fn refused_it_lasts_no_longer_and_nothing_is_taken_of_any_limit() {
    let two = r#"{"limits": [
        {"name": "a", "rate": 1, "period": "1s", "capacity": 100, "write_ahead": 0},
        {"name": "b", "rate": 1, "period": "1s", "capacity": 10, "write_ahead": 0}
    ], "unsettled": "refund", "reservation_ttl": "15s"}"#;
    let mut world = world_of(two);
    let id = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![8, 8]).reservation.unwrap().id;
    world.now += 1_000;
    let refused = world.decided(Action::Extend(id), vec![4, 4]);
    assert_eq!(refused.reservation, None);
    assert_eq!(refused.decision(), Decision::Wait { retry_at: START + 2_000 });
    assert_eq!(world.levels(), [93, 3]);
    world.now = START + TTL_MS - 1;
    assert_eq!(world.levels(), [100, 10]);
    world.now += 1;
    assert_eq!(world.ask(Action::Extend(id), Some(vec![0, 0]), None), ObjectReply::NoReservation);
}

/// Tokens that this reservation would give back by expiring cannot extend it; those of others can.
#[test]
fn a_refused_extension_waits_for_others_not_for_its_own_end() {
    let once = r#"{"rate": 0, "period": "1s", "capacity": 10, "write_ahead": 0, "unsettled": "refund", "reservation_ttl": "15s"}"#;
    let mut world = world_of(once);
    let first = reserved(&mut world, 6);
    world.now += 1_000;
    let second = reserved(&mut world, 4);
    let wait = |world: &mut World, action, cost| match world.decided(action, vec![cost]).decision() {
        Decision::Wait { retry_at } => Some(retry_at - START),
        Decision::Never { .. } => None,
        Decision::Allow { .. } => panic!("granted"),
    };
    assert_eq!(wait(&mut world, Action::Extend(first), 4), Some(16_000));
    assert_eq!(wait(&mut world, Action::Extend(first), 5), None);
    assert_eq!(wait(&mut world, Action::Extend(second), 6), Some(15_000));
    assert_eq!(wait(&mut world, Action::Take(Verb::Consume), 6), Some(15_000));
    // It comes back later if it lasts longer.
    world.now += 9_000;
    extended(&mut world, first, 0);
    assert_eq!(wait(&mut world, Action::Take(Verb::Consume), 6), Some(25_000));
    assert_eq!(wait(&mut world, Action::Take(Verb::Consume), 4), Some(16_000));
}

/// A repeated request with a cost takes it once; without one it makes no difference.
#[test]
fn with_a_request_id_a_cost_is_taken_once() {
    for crashes in [false, true] {
        let mut world = window("keep");
        let id = reserved(&mut world, 2);
        let first = world.decided_once(Action::Extend(id), vec![3], 7);
        if crashes {
            world.crash(0);
        }
        world.now += 5_000;
        let again = world.decided_once(Action::Extend(id), vec![3], 7);
        assert!(again.is_replayed && !first.is_replayed);
        assert_eq!(again.reservation, first.reservation);
        assert_eq!(world.levels(), [5]);
        assert_eq!(decided(world.ask(Action::Settle(id), None, Some(request_id(8, 0)))).limits.len(), 1);
        assert!(world.decided_once(Action::Extend(id), vec![3], 7).is_replayed, "also after it was closed");
        assert_eq!(world.levels(), [5]);
    }
}

/// Each raise counts as a reservation, and one that a grant makes counts as a grant's.
#[test]
fn raises_have_the_same_maximum_as_reservations_and_grants_get_half() {
    let extend = |world: &mut World, id, cost, by_grant: bool| {
        let request_id = by_grant.then(|| RequestId { by_grant, ..request_id(u128::from(world.ids), 0) });
        world.ask(Action::Extend(id), Some(vec![cost]), request_id)
    };
    let is_granted =
        |reply: &ObjectReply| matches!(reply, ObjectReply::Decided(decided) if decided.decision().is_allow());
    let full = |max| ObjectReply::TooManyReservations { max };
    let wide =
        r#"{"kind": "fixed_window", "rate": 100000, "period": "10s", "write_ahead": 0, "reservation_ttl": "5s"}"#;
    for (by_grant, max) in [(true, 500), (false, 1_000)] {
        let mut world = world_of(wide);
        let other = reserved(&mut world, 7);
        let id = reserved(&mut world, 1);
        let mut raises = 0;
        let refused = loop {
            let reply = extend(&mut world, id, 2, by_grant);
            if !is_granted(&reply) {
                break reply;
            }
            raises += 1;
        };
        assert_eq!((refused, raises), (full(max), max - 1 - u64::from(!by_grant)));
        assert!(is_granted(&extend(&mut world, id, 0, by_grant)), "only raises are counted");
        assert_eq!(is_granted(&extend(&mut world, other, 1, false)), by_grant);
        world.crash(0);
        assert_eq!(extend(&mut world, id, 2, by_grant), full(max));
        world.now += 6_000;
        assert!(is_granted(&world.ask(Action::Settle(other), None, None)), "late");
        assert_eq!(settled(&mut world, id, 3), 3, "late");
        let kept = if by_grant { 8 } else { 7 };
        assert_eq!(world.levels(), [100_000 - 3 - kept]);
    }
}

/// They take the request's cost, and give it back with the rest.
#[test]
fn limits_in_shadow_take_but_do_not_decide() {
    let json = r#"{"limits": [
        {"name": "a", "rate": 0, "period": "1s", "capacity": 10, "write_ahead": 0},
        {"name": "b", "rate": 0, "period": "1s", "capacity": 10, "write_ahead": 0, "mode": "shadow"}
    ], "reservation_ttl": "1m"}"#;
    let mut world = world_of(json);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    let id = decided(world.ask_shadow(reserve, Some(vec![1]), Some(vec![1]), None)).reservation.unwrap().id;
    let mut extend = |enforced, shadow, left| {
        let reply = world.ask_shadow(Action::Extend(id), Some(vec![enforced]), Some(vec![shadow]), None);
        let decided = decided(reply);
        assert!(decided.decision().is_allow());
        assert_eq!((decided.limits[0].remaining, decided.shadow[0].unwrap().remaining), left, "{enforced} {shadow}");
    };
    extend(0, 3, (9, 6));
    extend(2, 0, (7, 6));
    extend(2, 7, (5, 6)); // it would have refused
    extend(0, 0, (5, 6));
    let cancelled = decided(world.ask(Action::Cancel(id), None, None));
    assert_eq!(cancelled.limits[0].remaining, 10);
    let reply = world.ask_shadow(Action::Look(Verb::Refund), Some(vec![0]), Some(vec![0]), None);
    assert_eq!(decided(reply).shadow[0].unwrap().remaining, 10);
}

/// A limit added since has taken only for later raises; a removed one is no longer settled.
#[test]
fn each_raise_belongs_to_the_limits_of_its_time() {
    let of = |limits: &str| world_of(&format!(r#"{{"limits": [{limits}], "reservation_ttl": "1m"}}"#)).policy;
    let limit =
        |name: &str| format!(r#"{{"name": "{name}", "rate": 0, "period": "1s", "capacity": 20, "write_ahead": 0}}"#);
    let (a, both) = (of(&limit("a")), of(&[limit("a"), limit("b")].join(",")));
    let mut world = World::empty(&a);
    let id = reserved(&mut world, 4);
    world.policy = both;
    world.decided(Action::Extend(id), vec![2, 3]);
    assert_eq!(world.levels(), [14, 17]);
    let mut other = world.restarted_with(&world.policy);
    assert!(decided(other.ask(Action::Cancel(id), None, None)).decision().is_allow());
    assert_eq!(other.levels(), [20, 20]);
    let settled = world.decided(Action::Settle(id), vec![5, 1]);
    assert_eq!(settled.limits.iter().map(tokens).collect::<Vec<_>>(), [5, 1]);
    assert_eq!(world.levels(), [15, 19]);
}
