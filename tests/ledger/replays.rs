//! A repeated request gets its first answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::{Ledger, MAX_CLOSED, MAX_RECENT, MAX_REQUEST_IDS, REPLAY_TTL_MS};
use tollgate::limit::Verb;
use tollgate::policy::{NamedLimit, Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectReply, ObjectRequest, RequestId};

use crate::chance;
use crate::world::{self, START, World, decided, policies, request_id};

const CONSUME: Action = Action::Take(Verb::Consume);
const HOUR_MS: i64 = REPLAY_TTL_MS.cast_signed();

#[test]
fn a_repeated_request_gets_its_first_answer_and_takes_nothing() {
    let policies = policies();
    for policy in ["block", "each"] {
        let mut world = World::new(&policies, policy);
        let first = world.decided_once(CONSUME, vec![3], 1);
        assert!(!first.is_replayed);
        for crash in [false, true] {
            if crash {
                world.crash(0);
            }
            world.now += 1;
            let levels = world.levels();
            let again = world.decided_once(CONSUME, vec![3], 1);
            assert!(again.is_replayed);
            assert_eq!(again.limits[0].decision, first.limits[0].decision);
            assert_eq!(world.levels(), levels);
            assert_eq!(world.ask(CONSUME, Some(vec![4]), Some(request_id(1, 2))), ObjectReply::RequestIdReused);
        }
    }
}

#[test]
fn a_refusal_is_not_remembered() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    world.decided(CONSUME, vec![10]);
    assert!(!world.decided_once(CONSUME, vec![3], 1).decision().is_allow());
    world.now += 1_000;
    let granted = world.decided_once(CONSUME, vec![3], 1);
    assert!(granted.decision().is_allow() && !granted.is_replayed);
}

/// Otherwise batches that are undone repeatedly could make a page arbitrarily long.
#[test]
fn the_place_of_an_undone_request_in_a_page_is_not_reused() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let pages = |world: &World| world.rows().iter().filter(|name| **name == "i:").count();
    world.decided_once(CONSUME, vec![1], 0);
    for id in 1..64 {
        world.decided_once(Action::Hold(id), vec![1], id.into());
        world.ask(Action::Settle(id), None, None);
        world.ask(Action::Cancel(id), None, None);
    }
    assert_eq!(pages(&world), 1, "it holds 64");
    world.decided_once(CONSUME, vec![1], 64);
    assert_eq!(pages(&world), 2);
}

/// A batch of 16 policies of 8 limits, all names as long as they may be, for one key: its replay counts as 45.
#[test]
fn large_replays_count_as_several() {
    let limits = |p: usize| {
        let limit = |i: usize| {
            format!(r#"{{"name":"{:l<64}","rate":1,"period":"1day","capacity":100000}}"#, format!("{p}.{i}"))
        };
        (0..8).map(limit).collect::<Vec<_>>().join(",")
    };
    let policy = |p: usize| format!(r#""{:p<64}":{{"limits":[{}]}}"#, p, limits(p));
    let json = format!("{{{}}}", (0..16).map(policy).collect::<Vec<_>>().join(","));
    let asked: Vec<_> = Policies::parse(&json).unwrap().iter().cloned().collect();
    let mut ledger = Ledger::new([], 0);
    let mut rows = BTreeMap::new();
    let mut ids = 0;
    let mut ask = |action, request_id, now| {
        let request = ObjectRequest {
            action,
            request_id,
            costs: vec![vec![1; 8]; 16],
            shadow_costs: Vec::new(),
            known: None,
            has_consequences: false,
            lease: None,
        };
        let random = || {
            ids += 1;
            Some(ids)
        };
        let (reply, writes) = ledger.ask(&asked, &request, now, random).unwrap();
        rows.extend(writes.before_reply);
        let pages = rows.iter().filter(|(name, _)| name.starts_with("i:"));
        let lens: Vec<_> = pages.map(|(_, row)| row.as_ref().map_or(0, Vec::len)).collect();
        assert!(lens.iter().all(|len| *len < 30_000), "a page is written again with each of its replays: {lens:?}");
        (reply, lens.iter().sum::<usize>())
    };
    let now = |id: u128| START + i64::try_from(id).unwrap();

    let most = (MAX_REQUEST_IDS as u128).div_ceil(45);
    for id in 0..most {
        let (reply, _) = ask(CONSUME, Some(request_id(id, 0)), now(id));
        assert!(decided(reply).decision().is_allow());
    }
    let full = |id| ObjectReply::TooManyRequestIds {
        used: u64::try_from(most).unwrap(),
        retry_after_ms: HOUR_MS.abs_diff(now(id) - START),
    };
    let (reply, bytes) = ask(CONSUME, Some(request_id(most, 0)), now(most));
    assert_eq!(reply, full(most));
    assert!((3 << 20..4 << 20).contains(&bytes), "{bytes} bytes are stored");
    for action in [Action::Take(Verb::Refund), Action::Hold(5)] {
        assert_eq!(ask(action, Some(request_id(most, 0)), now(most)).0, full(most));
    }
    let (reply, _) = ask(CONSUME, Some(request_id(most, 0)), START + HOUR_MS - 1);
    assert_eq!(reply, full(u128::from(HOUR_MS.unsigned_abs()) - 1));
    let (reply, _) = ask(CONSUME, Some(request_id(most, 0)), START + HOUR_MS);
    assert!(decided(reply).decision().is_allow(), "when the oldest is forgotten");

    // Closed reservations are pushed out sooner, too.
    let later = START + 3 * HOUR_MS;
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let closed: Vec<_> = (0..=4_096 / 49)
        .map(|_| {
            let reserved = decided(ask(reserve, None, later).0).reservation.unwrap();
            decided(ask(Action::Settle(reserved.id), None, later).0);
            Action::Settle(reserved.id)
        })
        .collect();
    assert_eq!(ask(closed[0], None, later).0, ObjectReply::NoReservation);
    assert!(decided(ask(closed[1], None, later).0).is_replayed);
}

/// 50 000 requests, 4 a second, each repeated right away, with a crash now and then: every one is charged once.
#[test]
fn retries_are_charged_once_over_any_crashes() {
    let json = r#"{"p":{"rate":0,"period":"1s","capacity":50000,"write_ahead":10}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "p");
    for request in 0..50_000 {
        let first = world.decided_once(CONSUME, vec![1], request);
        if request % 997 == 0 {
            world.crash(0);
        }
        let again = world.decided_once(CONSUME, vec![1], request);
        world.now += 250;
        assert!(!first.is_replayed && again.is_replayed, "request {request}");
        if !first.decision().is_allow() {
            unreachable!("request {request} was refused");
        }
        // Crashes cost blocks; those are given back to keep the count.
        let lost = 50_000 - i64::try_from(request).unwrap() - 1 - world.levels()[0];
        assert!((0..=10).contains(&lost), "a crash costs at most a block");
        world.decided(Action::Take(Verb::Refund), vec![lost.unsigned_abs()]);
    }
    assert_eq!(world.levels(), [0]);
}

#[test]
fn a_replay_is_kept_for_an_hour_over_crashes_and_no_longer() {
    let policies = policies();
    for crashes in [false, true] {
        let mut world = World::new(&policies, "block");
        // All at one moment: none evicts another.
        for id in 0..200 {
            assert!(world.decided_once(Action::Take(Verb::Charge), vec![0], id).decision().is_allow());
        }
        for (at, is_replayed) in [(START + HOUR_MS - 1, true), (START + HOUR_MS, false)] {
            world.now = at;
            if crashes {
                world.crash(0);
            }
            for id in 0..200 {
                assert_eq!(
                    world.decided_once(Action::Take(Verb::Charge), vec![0], id).is_replayed,
                    is_replayed,
                    "{id}"
                );
            }
        }
    }
}

#[test]
fn with_too_many_request_ids_nothing_is_taken_until_the_oldest_is_forgotten() {
    let json = r#"{"p":{"rate":0,"period":"1s","capacity":100000},"each":{"rate":1,"period":"1s"}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "p");
    let max = u128::try_from(MAX_REQUEST_IDS).unwrap();
    for id in 0..max {
        world.decided_once(CONSUME, vec![1], id);
        world.now += 1;
    }
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for crash in [false, true] {
        if crash {
            world.crash(0);
        }
        let (levels, rows) = (world.levels(), world.rows_written);
        let refusal = ObjectReply::TooManyRequestIds {
            used: MAX_REQUEST_IDS as u64,
            retry_after_ms: HOUR_MS.cast_unsigned() - MAX_REQUEST_IDS as u64,
        };
        for action in [CONSUME, reserve, Action::Hold(5), Action::Take(Verb::Refund)] {
            assert_eq!(world.ask(action, Some(vec![1]), Some(request_id(max, 0))), refusal);
        }
        assert_eq!((world.levels(), world.rows_written), (levels, rows));
        assert!(world.decided_once(CONSUME, vec![1], 0).is_replayed, "known requests are still answered");
        assert!(world.decided(CONSUME, vec![1]).decision().is_allow(), "and a request without an id is decided");
    }
    // A reservation can always be closed: that is remembered by its own id.
    let reserved = world.decided(reserve, vec![1]).reservation.unwrap();
    assert!(world.decided_once(Action::Settle(reserved.id), vec![1], max).decision().is_allow());
    world.now = START + HOUR_MS;
    let granted = world.decided_once(CONSUME, vec![1], max + 1);
    assert!(granted.decision().is_allow() && !granted.is_replayed);
}

#[test]
fn a_repetition_may_name_its_policies_in_another_order() {
    let policies = policies();
    let [one, two] = ["each", "two"].map(|name| Arc::clone(policies.get(name).unwrap()));
    let mut world = World::empty(&one);
    let ask = |world: &mut World, asked: &[Arc<_>], costs: Vec<Vec<u64>>| {
        let request = ObjectRequest {
            action: CONSUME,
            request_id: Some(request_id(1, 1)),
            costs,
            shadow_costs: Vec::new(),
            known: None,
            has_consequences: false,
            lease: None,
        };
        let (reply, writes) = world.ledger.ask(asked, &request, world.now, || Some(1)).unwrap();
        world.write(writes);
        decided(reply)
    };
    let first = ask(&mut world, &[Arc::clone(&one), Arc::clone(&two)], vec![vec![1], vec![2, 3]]);
    world.crash(0);
    let again = ask(&mut world, &[two, one], vec![vec![2, 3], vec![1]]);
    assert!(!first.is_replayed && again.is_replayed);
    let decisions = |limits: &[tollgate::protocol::LimitAnswer]| limits.iter().map(|l| l.decision).collect::<Vec<_>>();
    assert_eq!(decisions(&again.limits), [decisions(&first.limits[1..]), decisions(&first.limits[..1])].concat());
}

/// It gave nothing back to a limit added since.
#[test]
fn a_repeated_refund_says_what_each_limit_got_then() {
    let of = |limits: &str| {
        let json = format!(r#"{{"p":{{"limits":[{limits}]}}}}"#);
        Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    let limit = |name: &str| format!(r#"{{"name":"{name}","rate":0,"period":"1s","capacity":10}}"#);
    let mut world = World::empty(&of(&limit("a")));
    world.decided(CONSUME, vec![9]);
    let refund = Action::Take(Verb::Refund);
    assert_eq!(world::tokens(&world.decided_once(refund, vec![5], 1).limits[0]), 5);
    world.policy = of(&[limit("b"), limit("a")].join(","));
    let again = world.decided_once(refund, vec![5, 5], 1);
    assert_eq!(again.limits.iter().map(world::tokens).collect::<Vec<_>>(), [0, 5]);
}

/// A limit that was added, or left the shadow, since then has nothing to do with the earlier answer; one that was moved keeps its part.
#[test]
fn a_repetition_is_answered_limit_by_limit_even_if_they_have_changed() {
    let of = |limits: &str| {
        let numbers = r#""rate":0,"period":"1s","capacity":40,"write_ahead":0"#;
        let limit = |name: &str| {
            let (mode, name) = name.strip_prefix('~').map_or(("enforce", name), |name| ("shadow", name));
            format!(r#"{{"name":"{name}","mode":"{mode}",{numbers}}}"#)
        };
        let named = limits.split_whitespace().map(limit).collect::<Vec<_>>().join(",");
        let numbers = if named.is_empty() { numbers.to_owned() } else { format!(r#""limits":[{named}]"#) };
        let json = format!(r#"{{"p":{{{numbers},"unsettled":"refund","reservation_ttl":"4s"}}}}"#);
        Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    // One without a name is found by its place, and costs as much as the one that is there later.
    let costs_of = |policy: &Policy| -> Vec<u64> {
        let cost = |limit: &NamedLimit| match limit.name() {
            Some("a") => 3,
            Some("c") => 2,
            _ => 4,
        };
        policy.limits().iter().map(cost).collect()
    };
    let tokens = |decided: &Decided| decided.limits.iter().map(world::tokens).collect::<Vec<_>>();
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    let (charge, nothing) = (Action::Take(Verb::Charge), [0, 0]);
    let cases = [("a b", "b a"), ("~a b", "a b"), ("b", "a b"), ("", "b a"), ("a c", "b a"), ("b", ""), ("b", "d")];
    for ((before, after), crashes) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let mut world = World::empty(&of(before));
        let first = costs_of(&world.policy);
        let ask = |action, costs: &[u64], id: Option<u128>, world: &mut World| {
            let shadow = vec![3; world.policy.shadow_limits().len()];
            decided(world.ask_shadow(action, Some(costs.to_vec()), Some(shadow), id.map(|id| request_id(id, 0))))
        };
        ask(charge, &first, Some(1), &mut world);
        let [settled, late] = [(); 2].map(|()| ask(reserve, &first, None, &mut world).reservation.unwrap().id);
        ask(Action::Settle(settled), &first, Some(2), &mut world);
        world.now += 4_000;
        let left = ask(Action::Look(Verb::Refund), &nothing[..first.len()], None, &mut world);
        let left: Vec<_> = left.limits.iter().map(|limit| limit.remaining).collect();
        ask(Action::Take(Verb::Consume), &left, None, &mut world);
        let unpaid = decided(world.ask(Action::Settle(late), None, None));
        assert_eq!((tokens(&unpaid), &unpaid.reserved_costs[..first.len()]), (vec![0; first.len()], &*first));
        if crashes {
            world.crash(usize::MAX);
        }
        world.policy = of(after);
        let costs = costs_of(&world.policy);
        for (action, id) in [(charge, Some(1)), (Action::Settle(settled), Some(2)), (Action::Settle(settled), None)] {
            let again = ask(action, &costs, id, &mut world);
            assert_eq!((again.is_replayed, tokens(&again)), (true, costs.clone()), "{before} to {after}, {action:?}");
        }
        let others: Vec<_> = costs.iter().map(|cost| cost + 1).collect();
        assert_eq!(world.ask(Action::Settle(settled), Some(others), None), ObjectReply::ReservationClosed);
        let again = decided(world.ask(Action::Settle(late), None, None));
        let was_asked = |cost: u64| if first.contains(&cost) && after != "d" { cost } else { 0 };
        let owed: Vec<_> = costs.iter().map(|&cost| was_asked(cost)).collect();
        let nothing = vec![0; costs.len()];
        assert_eq!((tokens(&again), &*again.reserved_costs), (nothing, &*owed), "{before} to {after}");
    }
}

#[test]
fn retries_by_the_frontend_are_recognized_for_ten_seconds_and_not_stored() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    let ask = |world: &mut World, id| {
        let request_id = RequestId { ttl_ms: 0, ..request_id(id, 0) };
        decided(world.ask(CONSUME, Some(vec![1]), Some(request_id))).is_replayed
    };
    assert!(!ask(&mut world, 1));
    world.now += 9_999;
    assert!(ask(&mut world, 1));
    world.now += 1;
    assert!(!ask(&mut world, 1));
    assert_eq!(world.rows(), ["b:"]);
}

/// They are all asked at one moment, so none is too old.
#[test]
fn the_oldest_retry_and_the_oldest_closed_reservation_give_way_to_one_too_many() {
    let json = r#"{"p":{"rate":0,"period":"1s","capacity":100000}}"#;
    let policies = Policies::parse(json).unwrap();
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for more in [0, 1] {
        let mut world = World::new(&policies, "p");
        let ask = |world: &mut World, id: usize| {
            let request_id = RequestId { ttl_ms: 0, ..request_id(id as u128, 0) };
            decided(world.ask(CONSUME, Some(vec![1]), Some(request_id))).is_replayed
        };
        for id in 0..MAX_RECENT + more {
            assert!(!ask(&mut world, id));
        }
        assert!(ask(&mut world, more));
        assert_eq!(ask(&mut world, 0), more == 0);

        let mut world = World::new(&policies, "p");
        let closed: Vec<_> = (0..MAX_CLOSED + more)
            .map(|_| {
                let reserved = world.decided(reserve, vec![2]).reservation.unwrap();
                world.decided(Action::Settle(reserved.id), vec![1]);
                Action::Settle(reserved.id)
            })
            .collect();
        assert!(world.decided(closed[more], vec![1]).is_replayed);
        let oldest = world.ask(closed[0], Some(vec![1]), None);
        assert_eq!(oldest == ObjectReply::NoReservation, more == 1, "{oldest:?}");
        assert_eq!(world.levels(), [100_000 - i64::try_from(closed.len()).unwrap()], "nothing comes back again");
    }
}

/// Rows per request of one token under an `Idempotency-Key`: a page is written with each, and the bucket's row with it when a
/// block is spent, or when the key is idle.
#[test]
fn a_request_id_costs_a_row() {
    let json = r#"{"p":{"rate":1000,"period":"1s","write_ahead":50}}"#;
    let policies = Policies::parse(json).unwrap();
    for (interval_ms, rows) in [(0, 1_000 + 28), (1, 1_000 + 9), (2_000, 1_000 + 37)] {
        let mut world = World::new(&policies, "p");
        for id in 0..1_000 {
            assert!(world.decided_once(CONSUME, vec![1], id).decision().is_allow());
            world.arrive(usize::MAX);
            world.now += interval_ms;
        }
        assert_eq!(world.rows_written, rows, "every {interval_ms} ms");
    }
}

#[test]
fn the_storage_of_a_key_is_bounded() {
    let json = r#"{"p":{"rate":0,"period":"1s","capacity":100000}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "p");
    for id in 0..60_000 {
        world.decided_once(CONSUME, vec![1], id);
        world.now += 230; // in an hour, almost as many as are remembered
    }
    let bytes: usize = world.storage.values().map(Vec::len).sum();
    assert!(world.storage.len() < 260 && bytes < 1 << 20, "{} rows, {bytes} bytes", world.storage.len());
}

/// While the page could hold its answer, a request that may be a repetition is an error; all others are decided.
#[test]
fn an_unreadable_page_breaks_only_repeatable_requests_and_only_until_it_expires() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    world.decided_once(CONSUME, vec![1], 1);
    let page = world.storage.keys().find(|name| name.starts_with("i:")).unwrap().clone();
    world.storage.insert(page.clone(), vec![9]);
    world.crash(0);
    assert!(world.decided(CONSUME, vec![1]).decision().is_allow());
    let lasting = ObjectRequest {
        action: CONSUME,
        request_id: Some(request_id(1, 0)),
        costs: vec![vec![1]],
        shadow_costs: Vec::new(),
        known: None,
        has_consequences: false,
        lease: None,
    };
    let asked = [Arc::clone(&world.policy)];
    let ten_minutes = 600_000;
    for (at, is_ok) in
        [(START, false), (START + ten_minutes + HOUR_MS - 1, false), (START + ten_minutes + HOUR_MS, true)]
    {
        world.now = at;
        world.clean();
        assert_eq!(world.storage.contains_key(&page), !is_ok);
        assert_eq!(world.ledger.ask(&asked, &lasting, at, || None).is_ok(), is_ok);
    }
    assert!(Ledger::new([(page, vec![9])], 0).ask(&asked, &lasting, world.now, || None).is_ok());
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u128),
    Settle(u128),
    Wait(i64),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40_u128).prop_map(Step::Ask),
        4 => (0..40_u128).prop_map(Step::Settle),
        4 => prop_oneof![0..2_000_i64, 0..900_000_i64].prop_map(Step::Wait),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..3_usize).prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Whatever crashes: for an hour a request id takes its token once, and a reservation is settled once; after that it is
    /// another request.
    #[test]
    fn every_request_is_done_once_within_an_hour(steps in prop::collection::vec(step(), 1..120)) {
        let policies = policies();
        let mut world = World::new(&policies, "budget"); // no refill
        // When each id was granted, and its reservation; odd ones open one.
        let mut granted = std::collections::BTreeMap::new();
        let mut settled = std::collections::BTreeMap::new();
        for step in steps {
            let before = world.levels()[0];
            let is_kept = |at: i64, now: i64| now - at < HOUR_MS;
            match step {
                Step::Ask(id) => {
                    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
                    let reply = world.decided_once(if id % 2 == 0 { CONSUME } else { reserve }, vec![1], id);
                    let known = granted.get(&id).filter(|(at, _)| is_kept(*at, world.now)).copied();
                    prop_assert_eq!(reply.is_replayed, known.is_some());
                    let is_taken = !reply.is_replayed && reply.decision().is_allow();
                    prop_assert_eq!(before - world.levels()[0], i64::from(is_taken));
                    match known {
                        Some((_, reservation)) => prop_assert_eq!(reply.reservation, reservation),
                        None if is_taken => _ = granted.insert(id, (world.now, reply.reservation)),
                        None => {}
                    }
                }
                Step::Settle(id) => {
                    let Some(&(_, Some(reserved))) = granted.get(&id) else { continue };
                    let reply = world.ask(Action::Settle(reserved.id), Some(vec![0]), None);
                    let closed: Option<&i64> = settled.get(&reserved.id);
                    match closed {
                        Some(at) if is_kept(*at, world.now) => prop_assert!(decided(reply).is_replayed),
                        Some(_) => prop_assert_eq!(reply, ObjectReply::NoReservation),
                        None if world.now - reserved.expires_at >= HOUR_MS => {
                            prop_assert_eq!(reply, ObjectReply::NoReservation);
                        }
                        None => {
                            let reply = decided(reply);
                            prop_assert_eq!(reply.is_late, world.now >= reserved.expires_at);
                            prop_assert!(!reply.is_replayed);
                            prop_assert_eq!(world.levels()[0] - before, 1, "it is given back");
                            settled.insert(reserved.id, world.now);
                        }
                    }
                }
                Step::Wait(ms) => world.now += ms,
                Step::FlushIdle => world.flush_idle(),
                Step::Clean => world.clean(),
                Step::Crash(arrived) => world.crash(arrived),
            }
        }
    }
}
