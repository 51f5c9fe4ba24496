//! Policies that change under stored buckets.

use tollgate::ledger::Ledger;
use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectRequest};

use crate::world::{START, World};

#[test]
fn an_object_with_other_limits_does_not_answer() {
    let policy = |names: [&str; 2]| {
        let limits = names.map(|name| format!(r#"{{"name":"{name}","rate":1,"period":"1day"}}"#)).join(",");
        Policies::parse(&format!(r#"{{"p":{{"limits":[{limits}]}}}}"#)).unwrap()
    };
    let (front, object) = (policy(["a", "b"]), policy(["b", "a"]));
    let name = front.get("p").unwrap().wire_name();
    let request = ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs: vec![vec![1, 0]] };
    let mut ledger = Ledger::new([], 0).unwrap();
    assert!(ledger.ask(&object, name, &request, START, || None).is_err());
    assert!(ledger.ask(&front, name, &request, START, || None).is_ok());
    // Nor one that has no numbers for the id of a reservation, which would be known by the same as another.
    let reserve = ObjectRequest { action: Action::Reserve(Verb::Reserve { max_wait_ms: None }), ..request };
    assert!(ledger.ask(&front, name, &reserve, START, || None).is_err());
}

#[test]
fn a_spent_bucket_is_not_forgotten_when_its_numbers_change() {
    let policy = |rate: u32| {
        let json = format!(
            r#"{{"p":{{"rate":{rate},"period":"1day","capacity":100,"write_ahead":0,"unsettled":"refund","reservation_ttl":"1m"}}}}"#
        );
        Policies::parse(&json).unwrap()
    };
    let before = policy(10);
    let mut world = World::new(&before, "p");
    world.decided(Action::Take(Verb::Consume), vec![98]);
    world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![1]);
    let after = policy(11);
    let mut other = World::new(&after, "p");
    other.storage = world.storage.clone();
    other.crash(0);
    other.now = START + 3_600_000;
    other.clean();
    assert_eq!(other.levels(), [2]);
    other.crash(0);
    assert_eq!(other.levels(), [2], "and that is written");
}

#[test]
fn a_change_of_numbers_carries_each_limit_over_by_its_name() {
    let two = |a: u32, b: u32, names: [&str; 2]| {
        let limit = |name: &str, rate: u32| format!(r#"{{"name":"{name}","rate":{rate},"period":"1day"}}"#);
        let limits = [limit(names[0], a), limit(names[1], b)];
        Policies::parse(&format!(r#"{{"p":{{"limits":[{}]}}}}"#, limits.join(","))).unwrap()
    };
    let before = two(10, 20, ["a", "b"]);
    let mut world = World::new(&before, "p");
    world.decided(Action::Take(Verb::Consume), vec![1, 2]);
    let after = two(30, 100, ["b", "c"]);
    let mut other = World::new(&after, "p");
    other.storage = world.storage.clone();
    other.alarm_at = world.alarm_at;
    other.crash(0);
    assert_eq!(other.levels(), [18, 100], "b keeps its tokens, c is new, a is no more");
    other.crash(0);
    assert_eq!(other.levels(), [18, 100], "and that was written");
}
