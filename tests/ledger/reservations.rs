//! Tokens taken in advance.

use tollgate::ledger::Ledger;
use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectReply, ObjectRequest};

use crate::world::{World, policies};

#[test]
fn reservations_outlast_a_crash_and_end_as_the_policy_says() {
    let policies = policies();
    for (policy, left) in [("block", 40), ("each", 10)] {
        let mut world = World::new(&policies, policy);
        let cost = if policy == "block" { 20 } else { 5 };
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let reserved = world.decided(reserve, vec![cost]).reservation.unwrap();
        world.crash(0);
        world.now = reserved.expires_at - 1;
        let budget = world.levels();
        let mut other = Ledger::new(world.storage.clone(), 0).unwrap();
        let settle = ObjectRequest { action: Action::Settle(reserved.id), request_id: None, costs: vec![vec![cost]] };
        let (reply, _) = other.ask(std::slice::from_ref(&world.policy), &settle, world.now, || Some(0)).unwrap();
        assert!(matches!(reply, ObjectReply::Decided(_)), "a millisecond before its end it can be settled");
        world.now = reserved.expires_at;
        assert_eq!(world.ask(Action::Settle(reserved.id), Some(vec![cost]), None), ObjectReply::NoReservation);
        assert!(world.levels()[0] >= budget[0] && world.levels()[0] >= left);
        assert!(!world.storage.contains_key("r:0000000000001"));
    }
}

#[test]
fn a_reservation_is_settled_at_its_real_cost() {
    let policies = policies();
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for (real, left) in [(0, 60), (15, 45), (20, 40), (25, 35), (75, -10)] {
        let mut world = World::new(&policies, "block");
        let reserved = world.decided(reserve, vec![20]).reservation.unwrap();
        assert_eq!(world.levels(), [40]);
        world.decided(Action::Settle(reserved.id), vec![real]);
        assert_eq!(world.levels(), [left], "75 is more than there is: it stops at the largest debt");
    }
}

#[test]
fn a_key_has_a_thousand_open_reservations_at_most() {
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
fn a_reservation_goes_by_the_names_of_limits_when_those_change() {
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
fn nothing_is_reserved_by_reserving_nothing() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    let decided = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![0]);
    assert!(decided.decision().is_allow());
    assert_eq!((decided.reservation, world.rows_written), (None, 0));
}
