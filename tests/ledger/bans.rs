//! A policy bans a key that is refused often: exactly after as many refusals as it says, and for longer each time. No crash ends a ban, and
//! no ban changes a level.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{Ban, Policies, Policy};
use tollgate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId};

use crate::ban_model::BanModel;
use crate::chance;
use crate::steps::{Step, steps};
use crate::world::{DAY_MS, LONG_MS, START, World, decided};

const CONSUME: Action = Action::Take(Verb::Consume);
const PEEK: Action = Action::Look(Verb::Consume);
const MINUTE_MS: i64 = 60_000;

/// One token a day at first; three refusals within a minute ban for ten seconds, then for twenty, and so on, up to an hour.
const BAN: &str = r#""ban":{"after":3,"within":"1m","for":"10s","max":"1h"}"#;

fn policy(fields: &str) -> Arc<Policy> {
    let json = format!(r#"{{"p":{{"rate":1,"period":"1day","capacity":10,"write_ahead":0,{fields}}}}}"#);
    Arc::clone(Policies::parse(&json).unwrap().get("p").unwrap())
}

fn strict() -> World {
    World { has_consequences: true, ..World::empty(&policy(BAN)) }
}

/// For how long an answer says that the key is banned, in milliseconds, if so; and how many rows were written.
fn asked(world: &mut World, action: Action, cost: u64) -> (Option<i64>, u64) {
    let before = world.rows_written;
    let decided = world.decided(action, vec![cost]);
    let limit = &decided.limits[0];
    let until = limit.ban.map(|ban| ban.until.unwrap());
    if action.is_attempt()
        && let Some(retry_at) = until
    {
        // The limit itself may refuse for longer, which an honest client must know.
        assert!(limit.retry_at().unwrap() >= retry_at, "{limit:?}");
    }
    (until.map(|until| until - world.now), world.rows_written - before)
}

#[test]
fn a_key_that_is_refused_too_often_is_banned_for_longer_each_time() {
    for crashes in [false, true] {
        let mut world = strict();
        for (wait_ms, action, cost, expected, rows) in [
            (0, CONSUME, 10, None, 1),
            (0, CONSUME, 1, None, 1),
            (0, Action::Hold(1), 1, None, 1),
            (MINUTE_MS, PEEK, 1, None, 1), // by now the first two are too long ago
            (MINUTE_MS - 2, CONSUME, 1, None, 1),
            (1, CONSUME, 1, Some(10_000), 1), // that of the minute before still counts
            (9_999, CONSUME, 1, Some(1), 0),
            (0, CONSUME, 0, Some(1), 0), // even for nothing
            (0, Action::Take(Verb::Charge), 0, Some(1), 0),
            (0, Action::Take(Verb::Refund), 0, Some(1), 0),
            (1, CONSUME, 0, None, 0),
            (0, CONSUME, 1, None, 1),
            (0, CONSUME, 1, None, 1),
            (0, CONSUME, 1, Some(20_000), 1),
            (20_000, CONSUME, 1, None, 1),
            (0, CONSUME, 1, None, 1),
            (0, CONSUME, 1, Some(40_000), 1),
            (40_000 + 3_600_000 - 1, CONSUME, 1, None, 1),
            (0, CONSUME, 1, None, 1),
            (0, CONSUME, 1, Some(80_000), 1), // within an hour of the last one
            (80_000 + 3_600_000, CONSUME, 1, None, 1),
            (0, CONSUME, 1, None, 1),
            (0, CONSUME, 1, Some(10_000), 1), // a first one again
        ] {
            world.now += wait_ms;
            assert_eq!(asked(&mut world, action, cost), (expected, rows), "{wait_ms} {action:?} {cost}");
            if crashes {
                world.crash(0);
            }
        }
    }
}

#[test]
fn bans_grow_to_their_maximum() {
    let mut world = World {
        has_consequences: true,
        ..World::empty(&policy(r#""ban":{"after":1,"within":"1s","for":"10s","grow":10,"max":"45m"}"#))
    };
    world.decided(CONSUME, vec![10]);
    for ms in [10_000, 100_000, 1_000_000, 2_700_000, 2_700_000] {
        assert_eq!(asked(&mut world, CONSUME, 1).0, Some(ms));
        world.now += ms;
    }
}

#[test]
fn a_reset_ends_a_ban_and_the_next_is_a_first_one() {
    let mut world = strict();
    for _ in 0..3 {
        for expected in [None, None, Some(10_000)] {
            assert_eq!(asked(&mut world, CONSUME, 11).0, expected);
        }
        assert!(world.storage.contains_key("x:p"));
        assert_eq!(asked(&mut world, Action::Take(Verb::Reset), 0).0, None);
        assert!(!world.storage.contains_key("x:p"));
        assert_eq!(asked(&mut world, CONSUME, 1), (None, 1));
        world.decided(Action::Take(Verb::Reset), vec![0]);
        asked(&mut world, CONSUME, 11);
        world.decided(Action::Take(Verb::Reset), vec![0]); // which also forgets refusals
    }
}

#[test]
fn only_attempts_count() {
    let mut world = World { has_consequences: false, ..strict() };
    for _ in 0..9 {
        assert_eq!(asked(&mut world, PEEK, 11), (None, 0), "a caller's peek");
    }
    world.has_consequences = true;
    for _ in 0..9 {
        assert_eq!(asked(&mut world, Action::Take(Verb::Charge), 11).0, None, "what cannot be refused");
    }
}

/// Its answer was lost, and the caller knows of one request.
#[test]
fn what_a_frontend_repeats_counts_once() {
    let repeated = |world: &mut World, id: u128, ttl_ms: u64| {
        let request_id = Some(RequestId { id, fingerprint: 0, ttl_ms, by_grant: false });
        decided(world.ask(CONSUME, Some(vec![11]), request_id)).limits[0].ban.is_some()
    };
    let mut world = strict();
    assert_eq!([1, 1, 2, 2, 2, 3].map(|id| repeated(&mut world, id, 0)), [false, false, false, false, false, true]);
    // A client's own repetitions are attempts.
    let mut world = strict();
    assert_eq!([1, 1, 1].map(|id| repeated(&mut world, id, 60_000)), [false, false, true]);
}

#[test]
fn who_is_banned_by_an_override_or_has_no_limits_is_not_counted() {
    let until = START + 5;
    for (standing, expected) in [
        (r#""standing":"unlimited""#.to_owned(), None),
        (r#""standing":"banned""#.to_owned(), Some(Ban { until: None })),
        (format!(r#""standing":"banned","banned_until":{until}"#), Some(Ban { until: Some(until) })),
    ] {
        let definition = policy(BAN).definition().replacen('{', &format!(r#"{{"of_key":true,{standing},"#), 1);
        let of_key = Arc::new(Policy::from_definition(&definition).unwrap());
        let mut world = World { policy: Arc::clone(&of_key), ..strict() };
        for _ in 0..4 {
            assert_eq!(world.decided(CONSUME, vec![11]).limits[0].ban, expected);
        }
        world.policy = policy(BAN);
        for until in [None, None, Some(10_000)] {
            assert_eq!(asked(&mut world, CONSUME, 11).0, until, "{standing}");
        }
        // Both: the later end counts, and an unlimited key is let in.
        world.policy = of_key;
        let both = match expected {
            Some(Ban { until: Some(_) }) => Some(Ban { until: Some(START + 10_000) }),
            other => other,
        };
        assert_eq!(world.decided(CONSUME, vec![1]).limits[0].ban, both);
    }
}

/// The policies of one request, as for a sign-in by address and account.
#[test]
fn each_of_several_policies_counts_its_own_refusals() {
    let policies = Policies::parse(
        r#"{"a":{"rate":1,"period":"1day","capacity":3,"ban":{"after":2,"within":"1m","for":"1m"}},
            "b":{"rate":1,"period":"1day","capacity":5,"ban":{"after":2,"within":"1m","for":"2m"}}}"#,
    );
    let policies: Vec<_> = policies.unwrap().iter().cloned().collect();
    let mut ledger = Ledger::new([], 0);
    let mut ask = |asked: &[Arc<Policy>], cost: u64| {
        let (request_id, shadow_costs, known, has_consequences) = (None, Vec::new(), None, true);
        let costs = vec![vec![cost]; asked.len()];
        let request =
            ObjectRequest { action: CONSUME, request_id, costs, shadow_costs, known, has_consequences, lease: None };
        let decided = decided(ledger.ask(asked, &request, START, || None).unwrap().0);
        decided.limits.iter().map(|limit| limit.ban.map(|ban| ban.until.unwrap() - START)).collect::<Vec<_>>()
    };
    assert_eq!(ask(&policies, 4), [None, None], "a refuses");
    assert_eq!(ask(&policies, 4), [Some(60_000), None]);
    assert_eq!(ask(&policies, 6), [Some(60_000), None], "now b refuses, too");
    assert_eq!(ask(&policies[1..], 6), [Some(120_000)]);
    assert_eq!(ask(&policies, 0), [Some(60_000), Some(120_000)]);
}

#[test]
fn a_clock_that_steps_back_makes_no_ban_longer() {
    for crashes in [false, true] {
        let mut world = strict();
        (0..3).for_each(|_| _ = asked(&mut world, CONSUME, 11));
        world.now -= DAY_MS;
        if crashes {
            world.crash(0);
        }
        assert_eq!(asked(&mut world, CONSUME, 1).0, Some(10_000));
        world.now += 10_000;
        assert_eq!(asked(&mut world, CONSUME, 1).0, None);
        // What was refused before the step counts as of now, and the next ban is longer.
        for expected in [None, None, Some(20_000)] {
            assert_eq!(asked(&mut world, CONSUME, 11).0, expected);
        }
    }
}

#[test]
fn a_clock_that_steps_back_revives_no_ban_and_keeps_no_row_for_ever() {
    let mut world = strict();
    (0..3).for_each(|_| _ = asked(&mut world, CONSUME, 11));
    world.now += 10_000;
    assert_eq!(asked(&mut world, CONSUME, 1).0, None);
    world.now -= 5_000;
    assert_eq!(asked(&mut world, CONSUME, 1).0, None, "it was over");
    // Refused when the clock was half a century ahead.
    let mut world = strict();
    world.now += 50 * 365 * DAY_MS;
    (0..3).for_each(|_| _ = asked(&mut world, CONSUME, 11));
    world.now = START;
    world.clean();
    world.now += 2 * 366 * DAY_MS;
    world.clean();
    assert!(!world.storage.contains_key("x:p"));
}

#[test]
fn without_the_field_there_is_no_ban_and_its_row_is_deleted_in_time() {
    let mut world = strict();
    (0..3).for_each(|_| _ = asked(&mut world, CONSUME, 11));
    let mut plain = world.restarted_with(&policy(r#""mode":"enforce""#));
    assert_eq!(asked(&mut plain, CONSUME, 1).0, None);
    let mut again = plain.restarted_with(&policy(BAN));
    assert_eq!(asked(&mut again, CONSUME, 1).0, Some(10_000));
    world.now += LONG_MS;
    world.clean();
    assert!(world.rows().is_empty());
}

#[test]
fn operators_see_a_ban_even_without_a_bucket() {
    let mut world = strict();
    let seen = |world: &World| {
        let state = world.ledger.inspect(std::slice::from_ref(&world.policy), 0, world.now);
        state.buckets.iter().map(|bucket| (bucket.policy.clone(), bucket.ban)).collect::<Vec<_>>()
    };
    assert_eq!(seen(&world), []);
    (0..3).for_each(|_| _ = asked(&mut world, CONSUME, 11));
    world.crash(0);
    let ban = Some(Ban { until: Some(START + 10_000) });
    assert_eq!(seen(&world), [("p".to_owned(), ban)]);
    world.has_consequences = false;
    assert_eq!(asked(&mut world, Action::Look(Verb::Refund), 0), (Some(10_000), 0), "and by inspecting the budget");
    world.now += 10_000;
    assert_eq!(seen(&world), [("p".to_owned(), None)]);
}

const LIMITS: [&str; 4] = [
    r#""rate":1,"period":"10s","capacity":10,"write_ahead":0,"max_debt":5"#,
    r#""rate":3,"period":"1s","capacity":10,"write_ahead":0,"unsettled":"refund","reservation_ttl":"2s""#,
    r#""kind":"rolling_window","rate":20,"period":"10s","write_ahead":0"#,
    r#""limits":[{"name":"a","rate":7,"period":"1s","capacity":20,"write_ahead":0},
        {"name":"b","kind":"fixed_window","rate":60,"period":"1m","write_ahead":0,"offset":"0s"}]"#,
];

/// The limits' answers without the bans.
fn without_bans(decided: &Decided) -> Vec<(Decision, i64)> {
    decided.limits.iter().map(|limit| (limit.decision, limit.level())).collect()
}

fn is_banned(decided: &Decided, until: i64) -> bool {
    let is_so = |limit: &LimitAnswer| limit.ban == Some(Ban { until: Some(until) }) && limit.retry_at() >= Some(until);
    decided.limits.iter().all(is_so)
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Beside a world without bans, which gets only the requests that no ban refuses.
    #[test]
    fn a_ban_begins_and_ends_exactly_and_changes_no_level(
        limits in prop::sample::select(&LIMITS[..]),
        (after, within_s, for_s, grow, max_s) in (1..4_u8, 1..30_u64, 1..9_u64, 1..4_u8, 9..200_u64),
        steps in steps(),
    ) {
        let ban = format!(
            r#","ban":{{"after":{after},"within":"{within_s}s","for":"{for_s}s","grow":{grow},"max":"{max_s}s"}}"#
        );
        let [strict, plain] = [&*ban, ""].map(|ban| {
            let policies = Policies::parse(&format!(r#"{{"p":{{{limits}{ban}}}}}"#)).unwrap();
            World { has_consequences: true, ..World::empty(policies.get("p").unwrap()) }
        });
        let terms = strict.policy.object().ban.unwrap();
        let mut model = BanModel::default();
        let mut worlds = [strict, plain];
        let count = worlds[0].policy.limits().len();
        // Then a refusal is not nothing: a bucket follows its clock.
        let mut has_stepped_back = false;
        let mut opened: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
        for step in steps {
            let id_of = |which: usize, action: fn(u64) -> Action| {
                Some([0, 1].map(|world| opened[world].get(which).copied().map(action)))
            };
            let (actions, costs) = match step {
                Step::Take(verb, costs) => (Some([Some(Action::Take(verb)); 2]), Some(costs)),
                Step::Look(costs) => (Some([Some(PEEK); 2]), Some(costs)),
                Step::Reserve(costs, max_wait_ms) => {
                    (Some([Some(Action::Reserve(Verb::Reserve { max_wait_ms })); 2]), Some(costs))
                }
                Step::Hold(costs) => (Some([Some(Action::Hold(0)); 2]), Some(costs)),
                Step::Settle(which, costs) => (id_of(which, Action::Settle), Some(costs)),
                Step::Commit(which) => (id_of(which, Action::Settle), None),
                Step::Cancel(which) | Step::Abort(which) => (id_of(which, Action::Cancel), None),
                Step::Wait(ms) => {
                    for world in &mut worlds {
                        world.now += ms;
                    }
                    has_stepped_back |= ms < 0;
                    continue;
                }
                Step::Crash(_) => {
                    // The rows of both are exact: a ban writes a row, with which others may arrive.
                    for world in &mut worlds {
                        world.flush_idle();
                        world.crash(usize::MAX);
                    }
                    model.crash();
                    continue;
                }
                Step::Clean => {
                    worlds.iter_mut().for_each(World::clean);
                    model.banned_until(worlds[0].now);
                    // Then a row whose time is over is gone for good, even if the clock steps back.
                    if !worlds[0].storage.contains_key("x:p") {
                        model.forget();
                    }
                    continue;
                }
                Step::Extend(..) | Step::Arrive(_) | Step::FlushIdle => continue,
            };
            let Some([Some(action), Some(of_plain)]) = actions else { continue };
            let now = worlds[0].now;
            let banned_until = model.banned_until(now);
            let costs = costs.map(|costs| costs[..count].to_vec());
            let reply = worlds[0].ask(action, costs.clone(), None);
            if let Some(until) = banned_until.filter(|_| action.is_attempt()) {
                let ObjectReply::Decided(decided) = reply else { continue };
                prop_assert!(is_banned(&decided, until), "{until} {decided:?}");
                // What has expired is given back at the same moment.
                worlds[1].decided(Action::Take(Verb::Refund), vec![0; count]);
                continue;
            }
            let expected = worlds[1].ask(of_plain, costs, None);
            let (ObjectReply::Decided(decided), ObjectReply::Decided(expected)) = (&reply, &expected) else {
                prop_assert!(has_stepped_back || reply == expected, "{:?} {:?}", reply, expected);
                continue;
            };
            let of_limits = if has_stepped_back { decided } else { expected };
            // A ban that has just begun is a refusal, too.
            let is_refused = !of_limits.decision().is_allow();
            if matches!(action, Action::Take(Verb::Reset)) {
                model.forget();
            }
            if let Decision::Wait { retry_at } = of_limits.decision() {
                prop_assert!(retry_at > now, "{:?}", of_limits);
            }
            let until = if is_refused && action.is_attempt() { model.refused(terms, now, None) } else { None };
            if let Some(until) = until {
                prop_assert!(is_banned(decided, until));
                if !has_stepped_back {
                    let ban = Ban { until: Some(until) };
                    let each = |limits: &[LimitAnswer], of: fn(Ban, Decision) -> Decision| -> Vec<_> {
                        limits.iter().map(|limit| of(ban, limit.decision)).collect()
                    };
                    prop_assert_eq!(each(&decided.limits, |_, own| own), each(&expected.limits, Ban::decision));
                }
            } else if has_stepped_back {
                prop_assert!(!action.is_attempt() || decided.limits.iter().all(|limit| limit.ban.is_none()));
            } else {
                prop_assert_eq!(without_bans(decided), without_bans(expected), "{:?}", action);
            }
            for (opened, decided) in opened.iter_mut().zip([decided, expected]) {
                opened.extend(decided.reservation.map(|opened| opened.id));
            }
        }
    }
}
