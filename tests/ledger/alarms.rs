//! Deleting what is no longer needed.

use std::sync::Arc;

use tollgate::ledger::Writes;
use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectReply, ObjectRequest};

use crate::world::{DAY_MS, START, World, policies};

#[test]
fn a_full_bucket_is_forgotten_and_answers_as_a_new_one() {
    let policies = policies();
    for policy in ["block", "each", "window", "two"] {
        let mut world = World::new(&policies, policy);
        let ones = vec![1; world.policy.limits().len()];
        world.decided(Action::Take(Verb::Consume), ones);
        assert_eq!(world.storage.len(), 1);
        assert_eq!(world.alarm_at, Some(START + DAY_MS));
        world.now = world.alarm_at.unwrap();
        world.clean();
        assert!(world.storage.is_empty(), "{policy}");
        assert_eq!(world.alarm_at, None);
        let fresh = World::new(&policies, policy).levels();
        assert_eq!(world.levels(), fresh);
    }
}

#[test]
fn a_bucket_that_is_not_full_or_can_never_refill_is_kept() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    world.decided(Action::Take(Verb::Consume), vec![1]);
    for _ in 0..3 {
        world.now = world.alarm_at.unwrap();
        world.clean();
        assert_eq!(world.levels(), [199]);
        assert!(world.alarm_at.unwrap() > world.now, "it is checked again");
    }
    let json = r#"{"slow":{"rate":1,"period":"1day","capacity":10}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "slow");
    world.decided(Action::Take(Verb::Consume), vec![1]);
    assert_eq!(world.alarm_at, Some(START + DAY_MS));
    world.now = START + DAY_MS - 1;
    world.clean();
    assert_eq!((world.levels(), world.storage.len()), (vec![9], 1));
    world.now = START + DAY_MS;
    world.clean();
    assert!(world.storage.is_empty());
}

#[test]
fn an_alarm_is_set_once_for_any_number_of_writes() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    world.decided(Action::Take(Verb::Consume), vec![1]);
    let alarm_at = world.alarm_at.take().unwrap();
    for _ in 0..5 {
        let request = ObjectRequest {
            action: Action::Take(Verb::Consume),
            request_id: None,
            costs: vec![vec![1]],
            shadow_costs: Vec::new(),
            known: None,
            has_consequences: false,
            lease: None,
        };
        let (_, writes) =
            world.ledger.ask(std::slice::from_ref(&world.policy), &request, world.now, || Some(0)).unwrap();
        assert_eq!((writes.before_reply.len(), writes.alarm_at), (1, None));
    }
    // Nor by an object that woke: if there is a row there is an alarm.
    world.alarm_at = Some(alarm_at);
    world.crash(0);
    let request = ObjectRequest {
        action: Action::Take(Verb::Consume),
        request_id: None,
        costs: vec![vec![1]],
        shadow_costs: Vec::new(),
        known: None,
        has_consequences: false,
        lease: None,
    };
    let (_, writes) = world.ledger.ask(std::slice::from_ref(&world.policy), &request, world.now, || Some(0)).unwrap();
    assert_eq!(writes.alarm_at, None);
}

/// A key used once a day: a row each time, an alarm once, and nothing is deleted in between.
#[test]
fn a_key_used_again_within_a_day_sets_no_new_alarm() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let mut alarms = 0;
    for day in 0..30 {
        let at = START + day * (DAY_MS - 3_600_000);
        while world.alarm_at.is_some_and(|alarm_at| alarm_at <= at) {
            world.now = world.alarm_at.take().unwrap();
            world.clean();
            alarms += 1;
            assert!(world.storage.is_empty(), "it is full by then");
        }
        world.now = at;
        world.decided(Action::Take(Verb::Consume), vec![1]);
    }
    // Every other day one is deleted and created again.
    assert_eq!((alarms, world.rows_written), (14, 30));
}

#[test]
fn a_missing_alarm_is_set_again() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    assert_eq!(world.ledger.alarm_is_missing(START), Writes::default(), "nothing needs an alarm");
    world.decided(Action::Take(Verb::Consume), vec![1]);
    world.crash(0);
    let at = START + 10 * DAY_MS;
    assert_eq!(world.ledger.alarm_is_missing(at), Writes { alarm_at: Some(at + DAY_MS), ..Writes::default() });
    assert_eq!(world.ledger.alarm_is_missing(at), Writes { alarm_at: Some(at + DAY_MS), ..Writes::default() });
}

#[test]
fn an_unreadable_row_breaks_only_requests_that_need_it() {
    let policies = policies();
    let [each, block] = ["each", "block"].map(|name| Arc::clone(policies.get(name).unwrap()));
    let mut world = World::empty(&each);
    world.decided(Action::Take(Verb::Consume), vec![1]);
    world.policy = Arc::clone(&block);
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    let [good, bad] = [(); 2].map(|()| world.decided(reserve, vec![1]).reservation.unwrap().id);
    for (name, row) in [("b:each".to_owned(), vec![7]), (format!("r:{bad:013x}"), vec![7]), ("z:y".to_owned(), vec![])]
    {
        world.storage.insert(name, row);
    }
    world.crash(usize::MAX);
    let settle = |id| ObjectRequest {
        action: Action::Settle(id),
        request_id: None,
        costs: vec![],
        shadow_costs: Vec::new(),
        known: None,
        has_consequences: false,
        lease: None,
    };
    let consume = ObjectRequest {
        action: Action::Take(Verb::Consume),
        request_id: None,
        costs: vec![vec![1]],
        shadow_costs: Vec::new(),
        known: None,
        has_consequences: false,
        lease: None,
    };
    let mut ask = |policy: &Arc<_>, request: &ObjectRequest| {
        let result = world.ledger.ask(std::slice::from_ref(policy), request, START, || None);
        result.map(|(reply, writes)| {
            world.write(writes);
            reply
        })
    };
    assert!(ask(&each, &consume).is_err());
    assert!(ask(&block, &settle(bad)).is_err());
    assert!(matches!(ask(&block, &settle(good)), Ok(ObjectReply::Decided(_))));
    assert!(matches!(ask(&block, &consume), Ok(ObjectReply::Decided(_))));
    // They are neither deleted nor checked more than once a month.
    world.now = START + DAY_MS;
    world.clean();
    world.crash(0);
    world.now += DAY_MS;
    world.clean();
    assert_eq!(world.storage.keys().map(|name| &name[..2]).collect::<Vec<_>>(), ["b:", "r:", "z:"]);
    assert_eq!(world.alarm_at, Some(world.now + 30 * DAY_MS));
}

/// While the bucket of an expired reservation is unreadable, each alarm waits twice as long as the last.
#[test]
fn alarms_for_a_reservation_with_an_unreadable_bucket_back_off() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    world.decided(reserve, vec![1]);
    let row = std::mem::replace(world.storage.get_mut("b:each").unwrap(), vec![7]);
    let mut waits = Vec::new();
    for _ in 0..8 {
        world.crash(0);
        let before = std::mem::replace(&mut world.now, world.alarm_at.take().unwrap());
        waits.push((world.now - before) / DAY_MS);
        world.clean();
        assert_eq!(world.rows(), ["b:", "r:"]);
    }
    assert_eq!(waits, [1, 1, 1, 3, 7, 15, 30, 30]);
    world.storage.insert("b:each".to_owned(), row);
    world.crash(0);
    assert_eq!(world.levels(), [10]);
    assert_eq!(world.rows(), ["b:"], "once it can be read, the reservation ends");
}
