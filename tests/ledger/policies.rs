//! Policies that change under stored buckets.

use std::sync::Arc;

use tollgate::ledger::Ledger;
use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectRequest};

use crate::world::{START, World};

#[test]
fn costs_that_do_not_fit_the_limits_are_an_error() {
    let two = Policies::parse(
        r#"{"p":{"limits":[{"name":"a","rate":1,"period":"1day"},{"name":"b","rate":1,"period":"1day"}]}}"#,
    );
    let asked = [Arc::clone(two.unwrap().get("p").unwrap())];
    let request = |costs| ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs };
    let mut ledger = Ledger::new([], 0).unwrap();
    for costs in [vec![], vec![vec![1]], vec![vec![1, 0, 0]], vec![vec![1, 0], vec![1]]] {
        assert!(ledger.ask(&asked, &request(costs), START, || None).is_err());
    }
    assert!(ledger.ask(&asked, &request(vec![vec![1, 0]]), START, || None).is_ok());
    // Nor can a reservation be opened without a random id: another might have the same.
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
    let request = ObjectRequest { action: reserve, ..request(vec![vec![1, 0]]) };
    assert!(ledger.ask(&asked, &request, START, || None).is_err());
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
