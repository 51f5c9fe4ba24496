//! Laws about any sequence of requests, clock steps, and crashes at any moment.
//!
//! The model is a bucket in memory that never crashes, and to which everything that was granted happens too. The ledger may
//! be below it, by what crashes cost, and never above: then it could grant what the exact model would not.
//!
//! A clock that stepped back shows some milliseconds twice. A bucket in memory credits them once, except after a step of more
//! than a minute; a bucket that was full and forgotten, or never stored, begins anew at the earlier moment and credits
//! them again. So the model against which crashes are judged counts every millisecond that the clock shows. As long as
//! the clock never steps back, that is the exact bucket itself; otherwise it is ahead of that by at most what comes back
//! within all steps back together.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Decision, Part, Verb, decide_all};
use tollgate::policy::{NamedLimit, Unsettled};
use tollgate::protocol::{Action, ObjectReply, ObjectRequest, Reserved};

use crate::chance;
use crate::model::{Model, refill_in};
use crate::steps::{Step, steps};
use crate::world::{DAY_MS, START, World, policies, tokens};

/// An open reservation as its client knows it.
struct Open {
    reserved: Reserved,
    taken: Vec<u64>,
}

fn follow(policy: &str, steps: &[Step]) {
    let policies = policies();
    let mut world = World::new(&policies, policy);
    let policy = Arc::clone(&world.policy);
    let count = policy.limits().len();
    let gives_back = policy.reservations().unsettled == Unsettled::Refund;
    // The bucket itself, as long as nothing was lost or forgotten; and the one that follows every step of the clock.
    let (mut exact, mut most) = (Some(Model::new(&policy)), Model::new(&policy));
    let mut open: Vec<Open> = Vec::new();
    world.levels(); // a bucket that is not full when new is so from now on
    let (mut latest, mut stepped_back) = (START, 0);
    for step in steps {
        if let Step::Wait(ms) = step {
            world.now += ms;
            latest = latest.max(world.now);
            stepped_back += -ms.min(&0);
        }
        let now = world.now;
        most.follow_clock(now);
        let (ended, rest): (Vec<_>, _) = open.into_iter().partition(|open| open.reserved.expires_at <= now);
        open = rest;
        let mut both = |change: &mut dyn FnMut(&mut Model)| exact.iter_mut().chain([&mut most]).for_each(change);
        for Open { taken, .. } in ended.iter().filter(|_| gives_back) {
            both(&mut |model| model.adjust(taken, &vec![0; count], now));
        }
        match step {
            Step::Take(verb, costs) => {
                let decided = world.decided(Action::Take(*verb), costs[..count].to_vec());
                if let Decision::Allow { ready_at: told, .. } = decided.decision() {
                    let costs: Vec<u64> = match verb {
                        // The model may have more there, or room for less.
                        Verb::ConsumeUpTo => decided.limits.iter().map(tokens).collect(),
                        _ => costs[..count].to_vec(),
                    };
                    let verb = if *verb == Verb::ConsumeUpTo { Verb::Consume } else { *verb };
                    both(&mut |model| {
                        let ready_at = model.grant(verb, &costs, now);
                        assert!(ready_at <= told, "ready at {told} although the model says {ready_at}");
                    });
                } else {
                    both(&mut |model| model.refuse(now));
                }
            }
            Step::Look(costs) => {
                if !world.decided(Action::Look(Verb::Consume), costs[..count].to_vec()).decision().is_allow() {
                    both(&mut |model| model.refuse(now));
                }
            }
            Step::Reserve(costs, max_wait_ms) => {
                let verb = Verb::Reserve { max_wait_ms: *max_wait_ms };
                let decided = world.decided(Action::Reserve(verb), costs[..count].to_vec());
                let is_allowed = decided.decision().is_allow();
                let is_something = costs[..count].iter().any(|&cost| cost > 0);
                assert_eq!(decided.reservation.is_some(), is_allowed && is_something);
                both(&mut |model| {
                    if is_allowed {
                        model.grant(verb, &costs[..count], now);
                    } else {
                        model.refuse(now);
                    }
                });
                open.extend(decided.reservation.map(|reserved| Open { reserved, taken: costs[..count].to_vec() }));
            }
            Step::Settle(which, costs) if *which < open.len() => {
                let Open { reserved, taken } = open.remove(*which);
                world.decided(Action::Settle(reserved.id), costs[..count].to_vec());
                both(&mut |model| model.adjust(&taken, &costs[..count], now));
                let again = world.ask(Action::Settle(reserved.id), Some(costs[..count].to_vec()), None);
                assert_eq!(again, ObjectReply::NoReservation, "each id settles once");
            }
            Step::Cancel(which) if *which < open.len() => {
                let Open { reserved, taken } = open.remove(*which);
                world.ask(Action::Cancel(reserved.id), None, None);
                both(&mut |model| model.adjust(&taken, &vec![0; count], now));
            }
            Step::Settle(..) | Step::Cancel(_) | Step::Wait(_) => {}
            Step::Arrive(count) => world.arrive(*count),
            Step::FlushIdle => world.flush_idle(),
            Step::Clean => {
                world.clean();
                exact = exact.filter(|_| world.has_row());
            }
            Step::Crash(arrived) => {
                exact = None;
                let before = world.levels();
                world.crash(*arrived);
                let after = world.levels();
                for ((limit, before), after) in policy.limits().iter().zip(before).zip(after) {
                    let lost = before - after;
                    let block = i64::try_from(limit.write_ahead()).unwrap();
                    // What was written later in the clock's eyes waits for its moment, and is further behind until then.
                    let most = block + if now < latest { refill_in(limit.limit(), latest - now) } else { 0 };
                    assert!((0..=most).contains(&lost), "{} lost {lost} of a block of {block}", limit.full_name());
                }
            }
        }
        let levels = world.levels();
        let most_levels = most.levels(now);
        let is_at_most = levels.iter().zip(&most_levels).all(|(level, most)| level <= most);
        assert!(is_at_most, "{step:?} left {levels:?} of {most_levels:?}");
        if let Some(exact) = &exact {
            assert_eq!(levels, exact.levels(now), "{step:?} with nothing lost or forgotten");
            for ((limit, level), most) in exact.limits.iter().zip(&levels).zip(most_levels) {
                let twice = if stepped_back == 0 { 0 } else { refill_in(limit, stepped_back) };
                assert!(most <= level + twice, "{most} is more than {level} and what comes back in {stepped_back} ms");
            }
        }
    }
}

const POLICIES: [&str; 6] = ["block", "each", "budget", "window", "two", "waiting"];

/// Sequences that broke the law once.
mod found {
    use super::*;

    const CONSUME: Verb = Verb::Consume;

    fn take(verb: Verb, cost: u64) -> Step {
        Step::Take(verb, [cost; 2])
    }

    /// A flush is in storage when it has arrived, not when it was sent.
    #[test]
    fn a_refund_during_a_flush_leaves_no_more_than_a_block_to_be_lost() {
        let flush = [Step::FlushIdle, Step::FlushIdle, take(Verb::Refund, 1), Step::Crash(0)];
        follow("block", &[&[Step::Reserve([1; 2], None), take(CONSUME, 1)], &flush[..]].concat());
        follow("two", &[&[take(CONSUME, 1), take(CONSUME, 1)], &flush[..]].concat());
        follow("window", &[&[take(CONSUME, 1), take(CONSUME, 1)], &flush[..]].concat());
    }

    /// Nor may a crash give back what was taken while the flush was on its way.
    #[test]
    fn tokens_taken_during_a_flush_stay_taken() {
        for arrived in 0..3 {
            let steps = [take(CONSUME, 1), take(CONSUME, 1), Step::FlushIdle, Step::FlushIdle, take(CONSUME, 2)];
            follow("block", &[&steps[..], &[Step::Crash(arrived)]].concat());
        }
    }

    #[test]
    fn a_full_bucket_that_was_never_stored_begins_anew_at_an_earlier_moment() {
        let back = [Step::Crash(0), Step::Wait(859), Step::Wait(-16_744), take(CONSUME, 4), Step::Wait(15_985)];
        follow("block", &back);
        let reserve = Step::Reserve([1; 2], Some(100));
        let day =
            [Step::Crash(0), Step::Wait(DAY_MS), Step::Wait(-3_017), take(CONSUME, 1), take(Verb::ConsumeUpTo, 59)];
        follow("block", &[&day[..], &[reserve]].concat());
    }

    #[test]
    fn a_reset_of_a_bucket_that_a_crash_left_lower_happens_at_its_own_moment() {
        let steps = [
            Step::Take(CONSUME, [4, 0]),
            Step::Take(Verb::Refund, [2, 0]),
            Step::Crash(0),
            Step::Wait(286),
            take(Verb::Reset, 0),
            Step::Wait(-2),
        ];
        follow("two", &steps);
    }

    #[test]
    fn after_more_than_a_minute_back_a_reservation_of_nothing_opens_the_window_again() {
        let steps = [take(CONSUME, 0), Step::Wait(-21_273), Step::Reserve([1; 2], None), Step::Wait(-38_728)];
        follow("window", &[&steps[..], &[Step::Reserve([0; 2], None), Step::Wait(1)]].concat());
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// Over any crashes at most a block is lost for each, and nothing is granted that the model would not grant.
    #[test]
    fn no_crash_gives_anything_back(policy in prop::sample::select(&POLICIES[..]), steps in steps()) {
        follow(policy, &steps);
    }

    /// The snapshots of one answer foretell the next, if no other request comes between.
    #[test]
    fn a_snapshot_foretells_the_next_answer(
        policy in prop::sample::select(&POLICIES[..]),
        steps in steps(),
    ) {
        let policies = policies();
        let mut world = World::new(&policies, policy);
        let policy = Arc::clone(&world.policy);
        let limits: Vec<_> = policy.limits().iter().map(NamedLimit::limit).collect();
        let look = |world: &mut World| world.decided(Action::Look(Verb::Consume), vec![0; limits.len()]);
        let mut known = look(&mut world);
        for step in steps {
            let (action, verb, costs) = match step {
                Step::Take(verb, costs) => (Action::Take(verb), verb, costs),
                Step::Look(costs) => (Action::Look(Verb::Consume), Verb::Consume, costs),
                Step::Wait(ms) => {
                    world.now += ms;
                    continue;
                }
                Step::Arrive(count) => {
                    world.arrive(count);
                    continue;
                }
                Step::FlushIdle => {
                    world.flush_idle();
                    continue;
                }
                Step::Clean | Step::Crash(_) => {
                    if let Step::Crash(arrived) = step { world.crash(arrived) } else { world.clean() }
                    known = look(&mut world); // what was forgotten or lost is another bucket
                    continue;
                }
                Step::Reserve(..) | Step::Settle(..) | Step::Cancel(_) => continue,
            };
            let states = known.limits.iter().zip(&limits).map(|(answer, limit)| limit.restored(&answer.snapshot).unwrap());
            let before: Vec<_> = states.collect();
            let parts = limits.iter().zip(&before).zip(costs);
            let mut parts: Vec<_> = parts.map(|((limit, state), cost)| Part::new(limit, *state, cost)).collect();
            let is_only_looked_at = decide_all(&mut parts, world.now, verb).is_allow() && matches!(action, Action::Look(_));
            known = world.decided(action, costs[..limits.len()].to_vec());
            for ((answer, part), before) in known.limits.iter().zip(&parts).zip(before) {
                let after = if is_only_looked_at { before } else { part.state };
                prop_assert_eq!((answer.decision, answer.snapshot), (part.decision, part.limit.snapshot(&after)));
            }
        }
    }

    /// The runtime promises one object for a key, and in spite of that an older one may live on for a while, as long as it
    /// does not touch storage. Both together grant no more than one would.
    #[test]
    fn two_objects_of_one_key_grant_no_more_than_one(
        policy in prop::sample::select(&["block", "budget", "window", "two"][..]),
        before in prop::collection::vec((0..9_u64, 0..200_i64), 1..40),
        arrived in 0..3_usize,
        after in prop::collection::vec((any::<bool>(), 0..9_u64, 0..200_i64), 1..60),
    ) {
        let policies = policies();
        let mut world = World::new(&policies, policy);
        let count = world.policy.limits().len();
        let mut model = Model::new(&world.policy);
        for (cost, wait_ms) in before {
            world.now += wait_ms;
            let costs = vec![cost; count];
            if world.decided(Action::Take(Verb::Consume), costs.clone()).decision().is_allow() {
                model.grant(Verb::Consume, &costs, world.now);
            }
        }
        world.arrive(arrived);
        world.in_flight.clear();
        let newer = Ledger::new(world.storage.clone(), 0).unwrap();
        let mut older = Some(std::mem::replace(&mut world.ledger, newer));
        for (is_older, cost, wait_ms) in after {
            world.now += wait_ms;
            let costs = vec![cost; count];
            let is_granted = match older.take_if(|_| is_older) {
                None => world.decided(Action::Take(Verb::Consume), costs.clone()).decision().is_allow(),
                Some(mut ledger) => {
                    let request = ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs: vec![costs.clone()] };
                    let (reply, writes) = ledger.ask(std::slice::from_ref(&world.policy), &request, world.now, || Some(0)).unwrap();
                    let touches_storage = !writes.before_reply.is_empty() || !writes.background.is_empty();
                    let ObjectReply::Decided(decided) = reply else { unreachable!() };
                    // Where it would touch storage, the runtime ends it, and nobody gets this answer.
                    if !touches_storage {
                        older = Some(ledger);
                    }
                    !touches_storage && decided.decision().is_allow()
                }
            };
            if is_granted {
                model.grant(Verb::Consume, &costs, world.now);
            }
        }
    }
}
