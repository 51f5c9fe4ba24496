//! What a key remembers, for how long, and the share of grant holders.

use std::sync::Arc;

use tollgate::ledger::{LATE_SETTLEMENT_MS, MAX_INLINE, MAX_REQUEST_IDS, MAX_RESERVATIONS};
use tollgate::limit::Verb;
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectReply, RequestId};

use crate::world::{START, World, decided, request_id};

const CONSUME: Action = Action::Take(Verb::Consume);
const RESERVE: Action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const WEEK_MS: u64 = 7 * 24 * HOUR_MS;

fn world() -> World {
    let json = r#"{"p":{"rate":0,"period":"1s","capacity":100000,"reservation_ttl":"30days"}}"#;
    World::new(&Policies::parse(json).unwrap(), "p")
}

fn of(id: u128, ttl_ms: u64, by_grant: bool) -> RequestId {
    RequestId { ttl_ms, by_grant, ..request_id(id, 0) }
}

impl World {
    fn take_once(&mut self, id: RequestId) -> Decided {
        decided(self.ask(CONSUME, Some(vec![1]), Some(id)))
    }

    fn passes(&mut self, ms: u64) {
        self.now += ms.cast_signed();
    }
}

#[test]
fn an_answer_is_repeated_for_as_long_as_its_request_says() {
    let lengths = [MINUTE_MS, HOUR_MS, WEEK_MS, HOUR_MS + 1];
    for crashes in [false, true] {
        let mut world = world();
        // Alternating, so that each page is followed by one of another lifetime.
        for id in 0..400_u128 {
            let ttl_ms = lengths[(id % 4) as usize];
            assert!(!world.take_once(of(id, ttl_ms, false)).is_replayed);
        }
        let rows = world.storage.keys().filter(|name| name.starts_with("i:")).count();
        assert_eq!(rows, 8, "100 of each length, 64 to a page");
        for (index, ttl_ms) in [(0, MINUTE_MS), (1, HOUR_MS), (3, HOUR_MS + 1), (2, WEEK_MS)] {
            for (moment, is_replayed) in [(ttl_ms - 1, true), (ttl_ms, false)] {
                world.now = START + moment.cast_signed();
                if crashes {
                    world.crash(0);
                }
                for id in (index..400).step_by(4) {
                    assert_eq!(world.take_once(of(id, MINUTE_MS, false)).is_replayed, is_replayed, "{ttl_ms}: {id}");
                }
            }
        }
        world.passes(2 * MINUTE_MS);
        world.clean();
        assert!(world.storage.keys().all(|name| !name.starts_with("i:")), "nothing is left: {:?}", world.rows());
    }
}

/// Nothing is forgotten early to make room.
#[test]
fn with_different_lifetimes_there_is_room_once_the_first_ends() {
    let mut world = world();
    let week = MAX_REQUEST_IDS as u128 - 2;
    for id in 0..week {
        world.take_once(of(id, WEEK_MS, false));
    }
    world.passes(5);
    for id in week..week + 2 {
        world.take_once(of(id, HOUR_MS, false));
    }
    for crash in [false, true] {
        if crash {
            world.crash(0);
        }
        let full = ObjectReply::TooManyRequestIds { used: MAX_REQUEST_IDS as u64, retry_after_ms: HOUR_MS };
        assert_eq!(world.ask(CONSUME, Some(vec![1]), Some(of(week + 2, MINUTE_MS, false))), full);
    }
    world.passes(HOUR_MS);
    for id in [week + 2, week + 3] {
        assert!(!world.take_once(of(id, WEEK_MS, false)).is_replayed);
    }
    let full = ObjectReply::TooManyRequestIds { used: MAX_REQUEST_IDS as u64, retry_after_ms: WEEK_MS - 5 - HOUR_MS };
    assert_eq!(world.ask(CONSUME, Some(vec![1]), Some(of(week + 4, WEEK_MS, false))), full);
    assert!(world.take_once(of(0, WEEK_MS, false)).is_replayed, "a day later too");
}

#[test]
fn grant_holders_get_half_of_the_answers_that_a_key_remembers() {
    let mut world = world();
    let half = MAX_REQUEST_IDS as u128 / 2;
    for id in 0..half {
        assert!(!world.take_once(of(id, HOUR_MS, true)).is_replayed);
    }
    let grant_is_full = ObjectReply::TooManyRequestIds { used: MAX_REQUEST_IDS as u64 / 2, retry_after_ms: HOUR_MS };
    for crash in [false, true] {
        if crash {
            world.crash(0);
        }
        for action in [CONSUME, RESERVE, Action::Hold(5)] {
            assert_eq!(world.ask(action, Some(vec![1]), Some(of(half, HOUR_MS, true))), grant_is_full);
        }
        assert!(world.take_once(of(0, HOUR_MS, true)).is_replayed);
    }
    // The other half is the backend's, or all if grants have less.
    for id in half..2 * half {
        assert!(!world.take_once(of(id, HOUR_MS, false)).is_replayed);
    }
    let all = 2 * half;
    let full = ObjectReply::TooManyRequestIds { used: MAX_REQUEST_IDS as u64, retry_after_ms: HOUR_MS };
    assert_eq!(world.ask(CONSUME, Some(vec![1]), Some(of(all, HOUR_MS, false))), full);
    world.passes(HOUR_MS);
    for id in 0..all {
        assert!(!world.take_once(of(id, HOUR_MS, false)).is_replayed);
    }
    assert_eq!(world.ask(CONSUME, Some(vec![1]), Some(of(all, HOUR_MS, true))), full, "grants have no right to theirs");
}

#[test]
fn grant_holders_get_half_of_a_keys_reservations() {
    let mut world = world();
    let half = MAX_RESERVATIONS / 2;
    let reserve = |world: &mut World, by_grant| {
        let id = RequestId { ttl_ms: 0, ..of(u128::from(world.ids) + 9, 0, by_grant) };
        world.ask(RESERVE, Some(vec![1]), Some(id))
    };
    let full = |max: usize| ObjectReply::TooManyReservations { max: max as u64 };
    let ids: Vec<_> = (0..half).map(|_| decided(reserve(&mut world, true)).reservation.unwrap().id).collect();
    for crash in [false, true] {
        if crash {
            world.crash(0);
        }
        assert_eq!(reserve(&mut world, true), full(half));
    }
    for _ in 0..half {
        assert!(decided(reserve(&mut world, false)).reservation.is_some());
    }
    assert_eq!(reserve(&mut world, false), full(MAX_RESERVATIONS));
    world.decided(Action::Cancel(ids[0]), vec![0]);
    assert!(decided(reserve(&mut world, true)).reservation.is_some(), "one was closed");
    assert_eq!(reserve(&mut world, true), full(half));
}

#[test]
fn grant_holders_get_half_of_the_closed_reservations_that_a_key_remembers() {
    let half = 4_096 / 2;
    // With a lasting id, too, for which grants have no room left.
    for (crashes, ttl_ms) in [(false, 0), (true, 0), (false, 2 * HOUR_MS)] {
        let mut world = world();
        let ids = if ttl_ms > 0 { MAX_REQUEST_IDS as u128 / 2 } else { 0 };
        for id in 0..ids {
            world.take_once(of((1 << 64) + id, 2 * HOUR_MS, true));
        }
        let mut close = |by_grant| {
            let reserved = decided(world.ask(RESERVE, Some(vec![1]), None)).reservation.unwrap();
            let ttl_ms = if by_grant { ttl_ms } else { 0 };
            let id = of(u128::from(world.ids) + 9, ttl_ms, by_grant);
            world.passes(1);
            decided(world.ask(Action::Settle(reserved.id), Some(vec![1]), Some(id)));
            if crashes && world.ids.is_multiple_of(1_000) {
                world.crash(0);
            }
            Action::Settle(reserved.id)
        };
        let own: Vec<_> = (0..half).map(|_| close(false)).collect();
        let of_grants: Vec<_> = (0..2 * half).map(|_| close(true)).collect();
        let mut is_known = |settle| matches!(world.ask(settle, Some(vec![1]), None), ObjectReply::Decided(_));
        assert!(own.into_iter().all(&mut is_known));
        let (forgotten, known) = of_grants.split_at(half);
        let mut count = |all: &[Action]| all.iter().copied().filter(|settle| is_known(*settle)).count();
        assert_eq!((count(forgotten), count(known)), (0, half));
    }
}

/// A policy whose limits come with the request: 9 tokens in nine minutes.
fn inline(name: usize) -> Arc<Policy> {
    let definition = format!(
        r#"{{"name":"plan{name}","numbers":[{{"name":"a","kind":"token_bucket","rate":1,"period_ms":60000,"capacity":9,"max_debt":0,"initial":null,"offset_ms":null}}],"write_ahead":[0],"reservation_ttl_ms":6000000,"unsettled":"keep","inline":true}}"#
    );
    Arc::new(Policy::from_definition(&definition).unwrap())
}

#[test]
fn a_key_has_a_bounded_number_of_inline_budgets_and_full_ones_make_room() {
    let mut world = world();
    let ask = |world: &mut World, name, action, cost| {
        world.policy = inline(name);
        world.ask(action, Some(vec![cost]), None)
    };
    for name in 0..MAX_INLINE {
        assert!(decided(ask(&mut world, name, CONSUME, 1)).decision().is_allow(), "{name}");
    }
    let full = ObjectReply::TooManyInline { max: MAX_INLINE as u64 };
    for crash in [false, true] {
        if crash {
            world.crash(usize::MAX);
        }
        for action in [CONSUME, RESERVE, Action::Look(Verb::Consume), Action::Take(Verb::Refund)] {
            assert_eq!(ask(&mut world, MAX_INLINE, action, 1), full);
        }
        let rows = world.storage.keys().filter(|name| name.starts_with("b:")).count();
        assert_eq!(rows, MAX_INLINE, "nothing is given up");
        assert!(decided(ask(&mut world, 0, Action::Look(Verb::Consume), 1)).decision().is_allow(), "it has its own");
    }
    // One more token of the first, so that it alone is not full a minute later, and those of a policy do not count.
    assert!(decided(ask(&mut world, 0, CONSUME, 1)).decision().is_allow());
    world.now += 60_000 - 1;
    assert_eq!(ask(&mut world, MAX_INLINE, CONSUME, 1), full);
    world.now += 1;
    for name in 1..MAX_INLINE {
        assert!(decided(ask(&mut world, MAX_INLINE + name, CONSUME, 1)).decision().is_allow(), "{name}");
    }
    assert_eq!(ask(&mut world, MAX_INLINE, CONSUME, 1), full);
    assert_eq!(decided(ask(&mut world, 0, Action::Look(Verb::Consume), 1)).limits[0].remaining, 8);
    let rows = world.storage.keys().filter(|name| name.starts_with("b:")).count();
    assert_eq!(rows, MAX_INLINE, "the rows of full ones are deleted");
}

#[test]
fn what_was_granted_under_an_inline_budget_is_answered_again_although_there_is_no_more_room() {
    let mut world = world();
    let mut ask = |name, cost, id, wait_ms| {
        world.now += wait_ms;
        world.policy = inline(name);
        world.ask(CONSUME, Some(vec![cost]), id)
    };
    assert!(decided(ask(0, 1, Some(request_id(1, 0)), 0)).decision().is_allow());
    for name in 1..=MAX_INLINE {
        // The first one is full again, and is forgotten for the last.
        let wait_ms = if name == 1 { 60_000 } else { 0 };
        assert!(decided(ask(name, 2, None, wait_ms)).decision().is_allow(), "{name}");
    }
    for _ in 0..2 {
        assert!(decided(ask(0, 1, Some(request_id(1, 0)), 0)).is_replayed);
    }
    assert_eq!(ask(0, 1, None, 0), ObjectReply::TooManyInline { max: MAX_INLINE as u64 });
}

/// A budget that begins below full is never forgotten.
#[test]
fn a_request_about_an_unknown_reservation_leaves_no_budget_behind() {
    let mut world = world();
    let reserved = decided(world.ask(RESERVE, Some(vec![1]), None)).reservation.unwrap().id;
    world.ask(CONSUME, Some(vec![1]), Some(request_id(1 << 20, 0)));
    let rows = world.storage.clone();
    for name in 0..=MAX_INLINE {
        let definition = inline(name).definition().replace(r#""initial":null"#, r#""initial":0"#);
        world.policy = Arc::new(Policy::from_definition(&definition).unwrap());
        // An unknown reservation, and one of another policy. The request id belongs to another request.
        for id in [reserved + 99, reserved] {
            for action in [Action::Settle(id), Action::Cancel(id), Action::Extend(id)] {
                let of = (name % 2 == 0).then_some(request_id(1 << 20, 1));
                assert_eq!(world.ask(action, Some(vec![1]), of), ObjectReply::NoReservation);
            }
        }
    }
    assert_eq!(world.storage, rows);
    world.policy = inline(MAX_INLINE + 1);
    assert!(decided(world.ask(CONSUME, Some(vec![1]), None)).decision().is_allow());
}

/// Until then a late settlement needs the budget. Afterwards any request for a new one replaces it.
#[test]
fn an_inline_budget_makes_room_when_its_expired_reservation_is_forgotten() {
    let mut world = world();
    let ask = |world: &mut World, name, action| {
        world.policy = inline(name);
        world.ask(action, Some(vec![1]), None)
    };
    for name in 0..MAX_INLINE {
        assert!(decided(ask(&mut world, name, RESERVE)).decision().is_allow(), "{name}");
    }
    world.now += 6_000_000 + LATE_SETTLEMENT_MS.cast_signed() - 1;
    assert_eq!(ask(&mut world, MAX_INLINE, CONSUME), ObjectReply::TooManyInline { max: MAX_INLINE as u64 });
    world.now += 1;
    for name in 0..MAX_INLINE {
        assert!(decided(ask(&mut world, MAX_INLINE + name, CONSUME)).decision().is_allow(), "{name}");
    }
    assert_eq!(world.storage.keys().filter(|name| name.starts_with("r:")).count(), 0);
}
