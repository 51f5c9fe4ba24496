//! Tokens held while a batch calls its other keys: prepared, committed, aborted.

use std::sync::Arc;

use tollgate::limit::{Carry, Decision, Snapshot, Verb};
use tollgate::policy::{NoticeKind, Policies, Policy};
use tollgate::protocol::{Action, Decided, DueNotice, ObjectReply, Reserved};

use crate::world::{START, World, decided, policies, request_id, tokens};

const HOLD_MS: i64 = 10_000;
const CONSUME: Action = Action::Take(Verb::Consume);

fn hold(world: &mut World, id: u64, cost: u64) -> Reserved {
    world.decided(Action::Hold(id), vec![cost]).reservation.expect("it is held")
}

#[test]
fn a_hold_ends_by_itself_after_ten_seconds() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let held = world.decided_once(Action::Hold(3), vec![4], 5);
    assert_eq!(world.levels(), [6]);
    // Retried before the commit, it is the same hold.
    let again = world.decided_once(Action::Hold(3), vec![4], 5);
    assert_eq!((again.is_replayed, again.reservation), (true, held.reservation));
    assert_eq!(world.levels(), [6]);
    world.now += HOLD_MS - 1;
    assert_eq!(world.levels(), [6]);
    world.now += 1;
    assert_eq!(world.levels(), [10]);
    assert_eq!(world.ask(Action::Settle(held.reservation.unwrap().id), None, None), ObjectReply::NoReservation);
}

#[test]
fn holds_write_nothing_and_set_no_alarm_until_they_are_committed() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    for id in 1..=10 {
        hold(&mut world, id, 10);
        assert!(!world.decided(Action::Hold(99), vec![1]).decision().is_allow());
        world.ask(Action::Cancel(id), None, None);
    }
    assert_eq!((world.rows_written, world.alarm_at), (0, None));
    hold(&mut world, 1, 4);
    world.ask(Action::Settle(1), None, None);
    assert_eq!((world.rows(), world.rows_written), (vec!["b:"], 1));
}

#[test]
fn a_committed_hold_stays_taken_and_is_remembered() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let held = world.decided_once(Action::Hold(3), vec![4], 6);
    assert_eq!(held.reservation.unwrap().id, 3);
    for is_replayed in [false, true] {
        let committed = decided(world.ask(Action::Settle(3), None, None));
        assert_eq!(committed.is_replayed, is_replayed);
        assert_eq!(committed.decision(), Decision::Allow { tokens: 4, ready_at: START });
    }
    world.crash(0);
    let again = world.decided_once(Action::Hold(3), vec![4], 6);
    assert_eq!((again.is_replayed, again.reservation), (true, None));
    assert_eq!(world.levels(), [6]);
}

/// A client that repeats its batch while the first attempt is still under way would otherwise be refused because of itself.
#[test]
fn a_repeated_batch_is_not_refused_because_of_its_own_hold() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    world.decided_once(Action::Hold(3), vec![10], 6);
    let look = Action::Look(Verb::Consume);
    assert!(!world.decided_once(look, vec![10], 7).decision().is_allow());
    assert!(
        !decided(world.ask(look, Some(vec![10]), Some(request_id(6, 1)))).decision().is_allow(),
        "of another batch"
    );
    let looked = world.decided_once(look, vec![10], 6);
    assert_eq!((looked.decision(), looked.is_replayed), (Decision::Allow { tokens: 10, ready_at: START }, false));
    assert_eq!(looked.limits[0].remaining, 10, "as without the hold, which may end with the batch");
    assert_eq!(world.levels(), [0], "it is still held");
    world.ask(Action::Cancel(3), None, None);
    assert_eq!(world.levels(), [10], "looking holds nothing");
}

/// Two attempts of a batch share a hold. Their aborts and commits decide what is left of it.
#[test]
fn a_shared_hold_is_undone_once_every_attempt_that_committed_it_has_aborted() {
    const HELD_BY_BOTH: [Action; 2] = [Action::Hold(3), Action::Hold(4)];
    let [commit, abort] = [Action::Settle as fn(u64) -> Action, Action::Cancel];
    let table = [
        // what attempts 3 and 4 do then      left
        (vec![abort(3)], 196), // still held for the other
        (vec![abort(3), abort(4)], 200),
        (vec![abort(3), commit(4)], 196),
        (vec![abort(3), commit(4), abort(3)], 196), // late, and once more
        (vec![commit(3), commit(4), abort(3)], 196),
        (vec![commit(3), commit(4), abort(3), abort(4)], 200),
        (vec![commit(4), abort(4)], 200), // the frontend of the other has crashed
        (vec![commit(3), abort(3)], 200), // the other has not committed yet, and its commit will come too late
    ];
    let policies = policies();
    for (actions, left) in table {
        let mut world = World::new(&policies, "budget");
        for action in HELD_BY_BOTH {
            assert!(world.decided_once(action, vec![4], 6).reservation.is_some());
        }
        for &action in &actions {
            world.ask(action, None, None);
        }
        assert_eq!(world.levels(), [left], "{actions:?}");
        if left == 200 {
            assert_eq!(world.ask(commit(4), None, None), ObjectReply::NoReservation, "{actions:?}");
            assert!(!world.decided_once(Action::Hold(5), vec![4], 6).is_replayed);
        }
    }
}

/// Its own hold was lost in a crash, and another attempt has held and committed since.
#[test]
fn a_commit_is_not_undone_once_reported_to_any_attempt() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    world.decided_once(Action::Hold(3), vec![4], 6);
    world.crash(0);
    world.decided_once(Action::Hold(4), vec![4], 6);
    for (id, is_replayed) in [(4, false), (3, true)] {
        let committed = decided(world.ask(Action::Settle(id), None, Some(request_id(6, 0))));
        assert_eq!(committed.is_replayed, is_replayed);
    }
    world.ask(Action::Cancel(4), None, None);
    assert_eq!(world.levels(), [196]);
    world.ask(Action::Cancel(3), None, None);
    assert_eq!(world.levels(), [200]);
}

#[test]
fn a_crash_ends_a_hold_and_its_commit_takes_nothing() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    hold(&mut world, 3, 4);
    world.crash(0);
    assert_eq!(world.levels(), [10]);
    assert_eq!(world.ask(Action::Settle(3), None, None), ObjectReply::NoReservation);
    assert_eq!(world.levels(), [10]);
}

#[test]
fn a_committed_hold_can_be_undone_for_ten_seconds() {
    let policies = policies();
    for (wait_ms, is_undone) in [(0, true), (HOLD_MS - 1, true), (HOLD_MS, false)] {
        let mut world = World::new(&policies, "budget");
        world.now += HOLD_MS - 1; // of the commit, not of the hold
        let held = world.decided_once(Action::Hold(3), vec![4], 6);
        world.ask(Action::Settle(3), None, None);
        world.now += wait_ms;
        let reply = world.ask(Action::Cancel(3), None, None);
        assert_eq!(matches!(reply, ObjectReply::Decided(_)), is_undone, "after {wait_ms} ms: {reply:?}");
        world.crash(usize::MAX);
        let (left, again) = (world.levels(), world.decided_once(Action::Hold(4), vec![4], 6));
        assert_eq!(again.is_replayed, !is_undone, "an undone batch is not replayed");
        assert!(if is_undone { left[0] > 195 } else { left == [196] }, "{left:?}");
        assert_eq!(held.limits[0].remaining, 196);
        assert_eq!(world.ask(Action::Cancel(3), None, None), ObjectReply::NoReservation, "each is undone once");
    }
}

/// Otherwise it would be written, and a clock that steps back would find a row from the future.
/// A batch ends under the policies it began with. The answer had the limits of the newer version, so the frontend could not read it.
#[test]
fn a_commit_after_a_newer_version_was_asked_is_answered_for_the_limits_it_began_with() {
    let version = |limits: &str| {
        let json = format!(r#"{{"p":{{"limits":[{limits}],"notify":["30%"]}}}}"#);
        Policy::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    let [a, b] = [r#"{"name":"a","rate":"9/1h"}"#, r#"{"name":"b","rate":"7/1h"}"#];
    let first = Arc::new(version(&format!("{b},{a}")).in_force_since(START - 5));
    let second = Arc::new(version(a).succeeding(&first, START, Carry::Additive));
    let mut world = World::empty(&first);
    world.as_of = Some(START - 5);
    world.decided(Action::Hold(5), vec![2, 3]);
    world.policy = Arc::clone(&second);
    world.as_of = Some(START);
    assert_eq!(world.levels(), [6]);
    world.policy = first;
    world.as_of = Some(START - 5);
    world.has_consequences = true;
    let committed = world.decided(Action::Settle(5), vec![2, 3]);
    // Which the frontend knows as the second.
    let kind = NoticeKind::Used { percent: 30 };
    assert_eq!(committed.notices, [DueNotice { policy: 0, limit: 1, kind }]);
    let answers = committed.limits.iter().map(|limit| (tokens(limit), limit.remaining));
    assert_eq!(answers.collect::<Vec<_>>(), [(0, 7), (3, 6)]);
}

#[test]
fn a_zero_cost_leaves_the_bucket_unchanged_whatever_is_held() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    world.decided(CONSUME, vec![5]);
    world.now += 143;
    hold(&mut world, 3, 1);
    let (rows, snapshot) = (world.rows_written, world.decided(CONSUME, vec![0]).limits[0].snapshot);
    assert_eq!(world.rows_written, rows);
    world.now -= 2;
    let back = world.decided(Action::Look(Verb::Consume), vec![0]).limits[0].snapshot;
    assert_eq!(back, Snapshot { drops: snapshot.drops - 6, at: snapshot.at - 2, ..snapshot });
}

#[test]
fn a_commit_after_the_abort_takes_nothing() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    hold(&mut world, 3, 4);
    world.ask(Action::Cancel(3), None, None);
    assert_eq!(world.ask(Action::Settle(3), None, None), ObjectReply::NoReservation);
    assert_eq!(world.levels(), [200]);
}

/// A clock that steps back prolongs a hold by no more than the step that counts as no time elapsed.
#[test]
fn a_step_back_of_more_than_ten_seconds_ends_a_hold() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    hold(&mut world, 3, 4);
    world.now -= HOLD_MS - 1;
    assert_eq!(world.levels(), [196]);
    world.now -= 1;
    assert_eq!(world.levels(), [200]);
}

/// Held tokens are not spent, so no request has to wait a day for them.
#[test]
fn a_request_that_would_pass_without_the_hold_waits_for_its_end_at_most() {
    let json = r#"{
        "budget": {"rate": 0, "period": "1s", "capacity": 10},
        "slow": {"rate": 1, "period": "1day", "capacity": 10},
        "quick": {"rate": 1, "period": "1s", "capacity": 10}
    }"#;
    let policies = Policies::parse(json).unwrap();
    let wait = |ms| Decision::Wait { retry_at: START + ms };
    // Tokens held at 0 and at 1 s, the cost of a later request, and its answer.
    for (policy, holds, cost, expected) in [
        ("budget", [10, 0], 1, wait(HOLD_MS)),
        ("budget", [0, 10], 1, wait(HOLD_MS + 1_000)),
        ("budget", [4, 6], 4, wait(HOLD_MS)),
        ("budget", [4, 6], 5, wait(HOLD_MS + 1_000)), // when both have ended
        ("budget", [10, 0], 11, Decision::Never { max: 10 }),
        ("slow", [10, 0], 1, wait(HOLD_MS)),
        ("slow", [10, 0], 11, Decision::Never { max: 10 }),
        ("quick", [10, 0], 1, wait(2_000)),
        ("quick", [10, 0], 10, wait(HOLD_MS)),
    ] {
        let mut world = World::new(&policies, policy);
        for (id, cost) in (1..).zip(holds).filter(|(_, cost)| *cost > 0) {
            world.now = START + 1_000 * i64::try_from(id - 1).unwrap();
            hold(&mut world, id, cost);
        }
        world.now = START + 1_000;
        for action in [
            CONSUME,
            Action::Look(Verb::Consume),
            Action::Hold(9),
            Action::Take(Verb::Reserve { max_wait_ms: Some(0) }),
        ] {
            assert_eq!(
                world.decided(action, vec![cost]).decision(),
                expected,
                "{policy}: {action:?} of {cost}, {holds:?} held"
            );
        }
        if let Decision::Wait { retry_at } = expected
            && retry_at >= START + HOLD_MS
        {
            world.now = retry_at - 1;
            assert!(!world.decided(CONSUME, vec![cost]).decision().is_allow(), "{policy} {cost}");
            world.now = retry_at;
            assert!(world.decided(CONSUME, vec![cost]).decision().is_allow(), "{policy} {cost}");
        }
    }
}

#[test]
fn spent_tokens_are_not_reported_as_held() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    world.decided(CONSUME, vec![150]);
    hold(&mut world, 3, 50);
    assert_eq!(world.decided(CONSUME, vec![51]).decision(), Decision::Never { max: 50 });
    assert_eq!(world.decided(CONSUME, vec![50]).decision(), Decision::Wait { retry_at: START + HOLD_MS });
}

#[test]
fn a_snapshot_excludes_held_tokens_and_says_when_they_were_taken() {
    let policies = policies();
    let mut world = World::new(&policies, "each"); // 3 per second, at most 10
    let snapshot = |decided: &Decided| decided.limits[0].snapshot;
    let at = |ms| Snapshot { tokens: 6, drops: 0, at: START + ms };
    let held = world.decided(Action::Hold(0), vec![4]);
    assert_eq!(snapshot(&held), at(0));
    world.now += 10;
    assert_eq!(
        snapshot(&world.decided(Action::Take(Verb::Consume), vec![7])),
        at(10),
        "nothing can come back to a full one"
    );
    let settle = Action::Settle(held.reservation.unwrap().id);
    for is_replayed in [false, true] {
        let ObjectReply::Decided(kept) = world.ask(settle, None, Some(request_id(1, 1))) else { panic!() };
        assert_eq!((snapshot(&kept), kept.is_replayed), (at(10), is_replayed));
        world.now += 1;
    }
}

#[test]
fn an_aborted_hold_leaves_no_more_than_if_it_had_never_been() {
    let policies = policies();
    for is_cancelled in [true, false] {
        let mut world = World::new(&policies, "each");
        let ObjectReply::Decided(held) = world.ask(Action::Hold(0), Some(vec![10]), Some(request_id(7, 7))) else {
            panic!()
        };
        let reserved = held.reservation.unwrap();
        assert_eq!(held.limits[0].remaining, 0);
        let consume = Action::Take(Verb::Consume);
        assert!(!world.decided(consume, vec![1]).decision().is_allow(), "no other request can have it");
        world.now += 1_000;
        // The bucket was full all the time, so no refill could be taken.
        assert!(!world.decided(consume, vec![1]).decision().is_allow());
        if is_cancelled {
            world.ask(Action::Cancel(reserved.id), None, None);
        } else {
            world.now = reserved.expires_at;
        }
        assert!(world.decided(consume, vec![10]).decision().is_allow());
        assert!(!world.decided(consume, vec![1]).decision().is_allow());
    }
}

#[test]
fn each_attempt_of_a_refused_batch_can_be_aborted() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    for id in [1, 2, 3] {
        let ObjectReply::Decided(held) = world.ask(Action::Hold(0), Some(vec![4]), Some(request_id(9, 9))) else {
            panic!()
        };
        assert!(!held.is_replayed);
        // Each abort has its own id.
        world.ask(Action::Cancel(held.reservation.unwrap().id), None, Some(request_id(100 + id, 0)));
        assert_eq!(world.levels(), [10]);
    }
}

/// Its client uses one `Idempotency-Key` for a batch and for closing a reservation.
#[test]
fn closing_a_reservation_is_not_mistaken_for_a_commit_of_the_same_request_id() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    let reserved = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![2]).reservation.unwrap();
    world.decided_once(Action::Hold(30), vec![4], 6);
    world.ask(Action::Settle(30), None, Some(request_id(6, 0)));
    let settled = world.ask(Action::Settle(reserved.id), None, Some(request_id(6, 1)));
    assert_eq!(settled, ObjectReply::RequestIdReused);
    assert_eq!(world.levels(), [194]);
    world.ask(Action::Cancel(30), None, None);
    assert_eq!(world.levels(), [198], "and the commit can still be undone");
    world.ask(Action::Cancel(reserved.id), None, None);
    assert_eq!(world.levels(), [200], "and the reservation cancelled");
}

#[test]
fn only_uncommitted_holds_count_towards_the_maximum() {
    let policies = Policies::parse(r#"{"p":{"rate":0,"period":"1s","capacity":9000}}"#).unwrap();
    let mut world = World::new(&policies, "p");
    for id in 1..=2_000 {
        assert!(world.decided(Action::Hold(id), vec![1]).reservation.is_some(), "{id}");
        world.ask(Action::Settle(id), None, None);
    }
    for id in 3_000..4_000 {
        assert!(world.decided(Action::Hold(id), vec![1]).reservation.is_some(), "{id}");
    }
    let refusal = ObjectReply::TooManyReservations { max: 1_000 };
    assert_eq!(world.ask(Action::Hold(4_000), Some(vec![1]), None), refusal);
}

#[test]
fn many_committed_holds_can_be_undone_in_any_order_until_each_is_over() {
    let policies = Policies::parse(r#"{"p":{"rate":0,"period":"1s","capacity":9000}}"#).unwrap();
    let mut world = World::new(&policies, "p");
    for id in 1..=1_000 {
        hold(&mut world, id, 2);
        world.ask(Action::Settle(id), None, None);
        world.now += 1;
    }
    world.now += HOLD_MS - 501; // 500 of them are over
    assert_eq!(world.levels(), [7_000]);
    // 7 and 1 000 have no common divisor, so each is undone once, and not in their order.
    for id in (0..1_000).map(|index| index * 7 % 1_000 + 1) {
        let before = world.levels()[0];
        world.ask(Action::Cancel(id), None, None);
        let returned = if id <= 500 { 0 } else { 2 };
        assert_eq!(world.levels(), [before + returned], "{id}");
        world.ask(Action::Cancel(id), None, None);
        assert_eq!(world.levels(), [before + returned], "{id}, again");
    }
    assert_eq!(world.levels(), [8_000]);
}

/// As if it had never been taken: the next window had all of its tokens without it.
#[test]
fn an_abort_gives_nothing_back_to_a_window_that_has_opened_since_the_commit() {
    let policies = Policies::parse(
        r#"{"p": {"kind": "fixed_window", "rate": 10, "period": "5s", "offset": "0s", "capacity": 10, "write_ahead": 0}}"#,
    )
    .unwrap();
    let into = START.rem_euclid(5_000);
    for (wait_ms, taken, left) in [(1, 0, 10), (4_999 - into, 0, 10), (5_000 - into, 10, 0), (5_000 - into, 4, 6)] {
        let mut world = World::new(&policies, "p");
        hold(&mut world, 3, 10);
        assert_eq!(decided(world.ask(Action::Settle(3), None, None)).limits[0].remaining, 0);
        world.now += wait_ms;
        world.decided(CONSUME, vec![taken]);
        world.ask(Action::Cancel(3), None, None);
        assert_eq!(world.levels(), [left], "{wait_ms} ms and {taken} tokens later");
    }
}
