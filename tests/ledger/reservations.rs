//! Tokens taken in advance.

use std::sync::Arc;

use tollgate::ledger::{LATE_SETTLEMENT_MS, Ledger, MAX_KEPT, MAX_REQUEST_IDS, REPLAY_TTL_MS};
use tollgate::limit::{Decision, Verb};
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectReply, ObjectRequest, RequestId};

use crate::world::{DAY_MS, START, World, decided, policies, request_id, tokens};

#[test]
fn reservations_outlast_a_crash_end_as_the_policy_says_and_are_settled_late_for_an_hour() {
    let policies = policies();
    for (policy, left) in [("block", 40), ("each", 10)] {
        let mut world = World::new(&policies, policy);
        let cost = if policy == "block" { 20 } else { 5 };
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let reserved = world.decided(reserve, vec![cost]).reservation.unwrap();
        world.crash(0);
        world.now = reserved.expires_at - 1;
        let budget = world.levels();
        let settle = ObjectRequest {
            action: Action::Settle(reserved.id),
            request_id: None,
            costs: vec![vec![cost]],
            shadow_costs: Vec::new(),
            known: None,
            has_consequences: false,
            lease: None,
        };
        let forgotten_at = reserved.expires_at.saturating_add_unsigned(LATE_SETTLEMENT_MS);
        for (at, is_late) in [(-1, false), (0, true)].map(|(ms, is_late)| (reserved.expires_at + ms, is_late)) {
            let mut other = Ledger::new(world.storage.clone(), 0);
            let (reply, _) = other.ask(std::slice::from_ref(&world.policy), &settle, at, || Some(0)).unwrap();
            assert_eq!(decided(reply).is_late, is_late);
        }
        world.now = reserved.expires_at;
        assert!(world.levels()[0] >= budget[0] && world.levels()[0] >= left);
        let mut other = Ledger::new(world.storage.clone(), 0);
        let asked = std::slice::from_ref(&world.policy);
        let (reply, writes) = other.ask(asked, &settle, forgotten_at - 1, || Some(0)).unwrap();
        assert!(decided(reply).is_late && writes.before_reply.iter().any(|(row, _)| row.starts_with("r:")));
        world.now = forgotten_at;
        assert_eq!(world.ask(Action::Settle(reserved.id), Some(vec![cost]), None), ObjectReply::NoReservation);
        assert!(!world.storage.contains_key("r:0000000000001"));
    }
}

/// A late settlement charges its cost, whatever the policy has made of the reservation at its end, and is replayed.
#[test]
fn a_late_settlement_or_cancellation_counts_and_is_replayed() {
    for (unsettled, at_the_end) in [("keep", 60), ("refund", 100)] {
        let json = format!(
            r#"{{"p":{{"rate":0,"period":"1s","capacity":100,"max_debt":5,"reservation_ttl":"1s","unsettled":"{unsettled}"}}}}"#
        );
        let policies = Policies::parse(&json).unwrap();
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        for (real, cost, left) in
            [(Some(7), 7, 93), (Some(90), 90, 10), (Some(500), 105, -5), (Some(0), 0, 100), (None, 40, 60)]
        {
            let mut world = World::new(&policies, "p");
            let id = world.decided(reserve, vec![40]).reservation.unwrap().id;
            world.now += 1_000;
            assert_eq!(world.levels(), [at_the_end]);
            world.crash(0);
            for is_replayed in [false, true] {
                let settled = decided(world.ask(Action::Settle(id), real.map(|real| vec![real]), None));
                assert_eq!((settled.is_late, settled.is_replayed), (true, is_replayed));
                assert_eq!((tokens(&settled.limits[0]), world.levels()[0]), (cost, left), "{unsettled} {real:?}");
                world.crash(0);
            }
        }
        let mut world = World::new(&policies, "p");
        let id = world.decided(reserve, vec![40]).reservation.unwrap().id;
        world.now += 1_000;
        let cancelled = decided(world.ask(Action::Cancel(id), None, None));
        let back = 100 - at_the_end;
        assert_eq!((cancelled.is_late, i64::try_from(tokens(&cancelled.limits[0])).unwrap()), (true, back));
        assert_eq!(world.levels(), [100]);
    }
}

/// The earliest ended reservations are forgotten; half as many are remembered for grant holders.
#[test]
fn a_key_remembers_ended_reservations_in_the_room_left_by_open_ones() {
    let json = r#"{"p":{"rate":1000,"period":"1s","write_ahead":0,"reservation_ttl":"1s"}}"#;
    let policies = Policies::parse(json).unwrap();
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let mut world = World::new(&policies, "p");
    let reserved = |world: &mut World| {
        world.now += 1;
        world.decided(reserve, vec![1]).reservation.unwrap().id
    };
    let own: Vec<_> = (0..=MAX_KEPT).map(|_| reserved(&mut world)).collect();
    world.now += 1_000;
    world.crash(0);
    assert_eq!(world.ask(Action::Settle(own[0]), None, None), ObjectReply::NoReservation);
    assert_eq!(world.storage.keys().filter(|row| row.starts_with("r:")).count(), MAX_KEPT);
    assert!(decided(world.ask(Action::Settle(own[1]), None, None)).is_late);
    assert!(decided(world.ask(Action::Settle(own[MAX_KEPT]), None, None)).is_late);
    let of_grants = (0..700_u128).map(|id| {
        world.now += 3;
        let by_grant = RequestId { by_grant: true, ..request_id(id, 0) };
        decided(world.ask(reserve, Some(vec![1]), Some(by_grant))).reservation.unwrap().id
    });
    let of_grants: Vec<_> = of_grants.collect();
    world.now += 1_000;
    for (id, is_known) in [(own[627], false), (own[628], true), (of_grants[71], false), (of_grants[72], true)] {
        let reply = world.ask(Action::Settle(id), None, None);
        assert_eq!(matches!(reply, ObjectReply::Decided(_)), is_known, "{id}");
    }
}

#[test]
fn a_settled_reservation_costs_what_the_reply_says() {
    let policies = policies();
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    // The settled cost of 20 reserved, the final cost, and what is left of 60.
    for (real, cost, left) in [
        (None, 20, 40),
        (Some(0), 0, 60),
        (Some(15), 15, 45),
        (Some(20), 20, 40),
        (Some(25), 25, 35),
        (Some(75), 70, -10), // more than is left: it stops at the largest debt
        (Some(1_000), 70, -10),
    ] {
        let mut world = World::new(&policies, "block");
        let reserved = world.decided(reserve, vec![20]).reservation.unwrap();
        assert_eq!(world.levels(), [40]);
        let settled = decided(world.ask(Action::Settle(reserved.id), real.map(|real| vec![real]), None));
        assert_eq!(settled.decision(), Decision::Allow { tokens: cost, ready_at: START }, "settled at {real:?}");
        assert_eq!(world.levels(), [left], "settled at {real:?}");
    }
    // Tokens that no longer fit have cost nothing either.
    let mut world = World::new(&policies, "block");
    let reserved = world.decided(reserve, vec![20]).reservation.unwrap();
    world.now += DAY_MS / 1_000;
    let settled = world.decided(Action::Settle(reserved.id), vec![5]);
    assert_eq!(settled.decision(), Decision::Allow { tokens: 5, ready_at: world.now });
}

/// A way to close the reservation of an id, and its cost.
type Close = (fn(u64) -> Action, Option<u64>);

#[test]
fn closing_a_reservation_again_gives_the_same_answer_for_an_hour_over_crashes() {
    let policies = policies();
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let hour_ms = REPLAY_TTL_MS.cast_signed();
    let settle = |cost| (Action::Settle as fn(u64) -> Action, cost);
    let cancel = (Action::Cancel as fn(u64) -> Action, None);
    let closings: [(Close, Vec<Close>, Vec<Close>); 3] = [
        (settle(None), vec![settle(None), settle(Some(4))], vec![settle(Some(5)), cancel]),
        (settle(Some(3)), vec![settle(Some(3))], vec![settle(None), settle(Some(4)), cancel]),
        (cancel, vec![cancel], vec![settle(None), settle(Some(0))]),
    ];
    for ((close, cost), same, others) in closings {
        for crashes in [false, true] {
            let mut world = World::new(&policies, "budget");
            let id = world.decided(reserve, vec![4]).reservation.unwrap().id;
            let first = decided(world.ask(close(id), cost.map(|cost| vec![cost]), None));
            assert_eq!(world.rows(), ["b:", "i:"], "the reservation is closed");
            for wait_ms in [0, hour_ms - 1] {
                world.now = START + wait_ms;
                if crashes {
                    world.crash(0);
                }
                let levels = world.levels();
                for (close, cost) in &same {
                    let again = decided(world.ask(close(id), cost.map(|cost| vec![cost]), None));
                    assert!(again.is_replayed);
                    assert_eq!(again.limits[0].decision, first.limits[0].decision);
                }
                for (close, cost) in &others {
                    let other = world.ask(close(id), cost.map(|cost| vec![cost]), None);
                    assert_eq!(other, ObjectReply::ReservationClosed);
                }
                assert_eq!(world.levels(), levels);
            }
            world.now = START + hour_ms;
            assert_eq!(world.ask(close(id), cost.map(|cost| vec![cost]), None), ObjectReply::NoReservation);
        }
    }
}

#[test]
fn a_reservation_is_closed_only_by_its_own_policies_in_any_order() {
    let policies = policies();
    let [one, two] = ["each", "block"].map(|name| Arc::clone(policies.get(name).unwrap()));
    let mut world = World::empty(&one);
    let mut ask = |action, asked: &[&Arc<_>], costs| {
        let request = ObjectRequest {
            action,
            request_id: None,
            costs,
            shadow_costs: Vec::new(),
            known: None,
            has_consequences: false,
            lease: None,
        };
        let asked: Vec<_> = asked.iter().copied().map(Arc::clone).collect();
        let (reply, writes) = world.ledger.ask(&asked, &request, START, || Some(7)).unwrap();
        world.write(writes);
        reply
    };
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    decided(ask(reserve, &[&one, &two], vec![vec![1], vec![2]]));
    for _ in 0..2 {
        for others in [&[&one][..], &[&two], &[&one, &one]] {
            assert_eq!(ask(Action::Settle(7), others, vec![]), ObjectReply::NoReservation);
        }
        let settled = decided(ask(Action::Settle(7), &[&two, &one], vec![vec![5], vec![6]]));
        assert_eq!(settled.limits.iter().map(tokens).collect::<Vec<_>>(), [5, 6]);
    }
}

/// A bounded number of reservations closed within an hour is remembered; beyond that, the oldest are reported as unknown.
/// Closing is never refused.
#[test]
fn the_memory_of_closed_reservations_is_bounded() {
    let json = r#"{"p":{"rate":1000,"period":"1s"}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "p");
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let ids: Vec<_> = (0..4_097)
        .map(|_| {
            world.now += 10;
            let id = world.decided(reserve, vec![1]).reservation.unwrap().id;
            world.decided(Action::Settle(id), vec![1]);
            id
        })
        .collect();
    assert_eq!(world.ask(Action::Settle(ids[0]), Some(vec![1]), None), ObjectReply::NoReservation);
    assert!(world.decided(Action::Settle(ids[1]), vec![1]).is_replayed);
    assert!(world.storage.len() < 70);
}

/// Those with a request id are kept by it, as long as there is room. Beyond that they are like the others.
#[test]
fn closed_reservations_with_request_ids_are_bounded_too_and_push_out_no_others() {
    let policies = Policies::parse(r#"{"p":{"rate":1000,"period":"1s"}}"#).unwrap();
    let mut world = World::new(&policies, "p");
    let close = |world: &mut World, request_id| {
        world.now += 100;
        let id =
            world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![1]).reservation.unwrap().id;
        decided(world.ask(Action::Settle(id), Some(vec![1]), request_id));
        id
    };
    let max = u128::try_from(MAX_REQUEST_IDS).unwrap();
    let first: Vec<_> = (0..max).map(|id| close(&mut world, Some(request_id(id, 0)))).collect();
    let alone = close(&mut world, None);
    assert!(world.decided(Action::Settle(alone), vec![1]).is_replayed);
    let beyond: Vec<_> = (max..max + 4_096).map(|id| close(&mut world, Some(request_id(id, 0)))).collect();
    assert_eq!(world.ask(Action::Settle(alone), Some(vec![1]), None), ObjectReply::NoReservation, "the oldest of 4097");
    for (id, reservation) in [(0, first[0]), (max - 1, first[first.len() - 1]), (max, beyond[0])] {
        assert!(world.decided_once(Action::Settle(reservation), vec![1], id).is_replayed, "{id}");
    }
    close(&mut world, Some(request_id(max + 4_096, 0)));
    assert_eq!(world.ask(Action::Settle(beyond[0]), Some(vec![1]), None), ObjectReply::NoReservation);
}

#[test]
fn a_key_has_at_most_a_thousand_open_reservations() {
    let json = r#"{"p":{"rate":1,"period":"1s","capacity":2000}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "p");
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let first = world.decided(reserve, vec![1]).reservation.unwrap();
    for _ in 1..1_000 {
        world.decided(reserve, vec![1]);
    }
    let levels = world.levels();
    assert_eq!(world.ask(reserve, Some(vec![1]), None), ObjectReply::TooManyReservations { max: 1_000 });
    assert_eq!(world.levels(), levels, "and that takes nothing");
    world.ask(Action::Cancel(first.id), None, None);
    assert!(matches!(world.ask(reserve, Some(vec![1]), None), ObjectReply::Decided(_)));
}

#[test]
fn a_reservation_matches_limits_by_name_when_those_change() {
    let policy = |limits: [&str; 2]| {
        let limit = |name: &&str| format!(r#"{{"name":"{name}","rate":1,"period":"1day","capacity":100}}"#);
        let limits = limits.iter().map(limit).collect::<Vec<_>>().join(",");
        Policies::parse(&format!(r#"{{"p":{{"limits":[{limits}],"unsettled":"refund"}}}}"#)).unwrap()
    };
    let before = policy(["a", "b"]);
    let mut world = World::new(&before, "p");
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let reserved = world.decided(reserve, vec![5, 50]).reservation.unwrap();
    for (limits, cancelled) in [(["b", "a"], [100, 100]), (["b", "c"], [100, 100]), (["c", "d"], [100, 100])] {
        let after = policy(limits);
        for is_cancelled in [true, false] {
            let mut other = World::new(&after, "p");
            other.storage = world.storage.clone();
            other.alarm_at = world.alarm_at;
            other.crash(0);
            if is_cancelled {
                assert!(matches!(other.ask(Action::Cancel(reserved.id), None, None), ObjectReply::Decided(_)));
            } else {
                other.now = reserved.expires_at;
            }
            assert_eq!(other.levels(), cancelled, "{limits:?}");
        }
    }
}

#[test]
fn reserving_nothing_opens_no_reservation() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    let decided = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![0]);
    assert!(decided.decision().is_allow());
    assert_eq!((decided.reservation, world.rows_written), (None, 0));
}

/// The reset has given back what the reservation took, so that its end changes nothing.
#[test]
fn the_end_of_a_reservation_from_before_a_reset_is_no_moment_to_retry_at() {
    let json =
        r#"{"p":{"rate":3,"period":"1s","capacity":10,"write_ahead":0,"unsettled":"refund","reservation_ttl":"2s"}}"#;
    let mut world = World::new(&Policies::parse(json).unwrap(), "p");
    world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![1]);
    world.decided(Action::Take(Verb::Reset), vec![0]);
    world.decided(Action::Take(Verb::Consume), vec![3]);
    assert!(!world.decided(Action::Take(Verb::Consume), vec![8]).decision().is_allow(), "the return is computed");
    world.now += 2_001;
    world.decided(Action::Hold(0), vec![2]);
    for ms in [0, 333, 1_000] {
        world.now = START + 2_001 + ms;
        let refused = world.decided(Action::Take(Verb::Consume), vec![9]).decision();
        // As if the hold were settled now.
        assert_eq!(refused, Decision::Wait { retry_at: world.now + 334 });
    }
}
