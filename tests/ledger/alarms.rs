//! Forgetting what need not be kept.

use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectRequest};

use crate::world::{DAY_MS, START, World, policies};

#[test]
fn a_full_bucket_is_forgotten_and_answers_as_a_new_one() {
    let policies = policies();
    for policy in ["block", "each", "window", "two"] {
        let mut world = World::new(&policies, policy);
        let ones = vec![1; world.policy.limits().len()];
        world.decided(Action::Take(Verb::Consume), ones);
        assert_eq!(world.storage.len(), 1);
        world.now = world.alarm_at.unwrap();
        world.clean();
        assert!(world.storage.is_empty(), "{policy}");
        assert_eq!(world.alarm_at, None);
        let fresh = World::new(&policies, policy).levels();
        assert_eq!(world.levels(), fresh);
    }
}

#[test]
fn a_bucket_that_is_not_full_or_never_will_be_is_kept() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    world.decided(Action::Take(Verb::Consume), vec![1]);
    for _ in 0..3 {
        world.now = world.alarm_at.unwrap();
        world.clean();
        assert_eq!(world.levels(), [199]);
        assert!(world.alarm_at.unwrap() > world.now, "it is looked at again");
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
        let request = ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs: vec![vec![1]] };
        let (_, writes) =
            world.ledger.ask(std::slice::from_ref(&world.policy), &request, world.now, || Some(0)).unwrap();
        assert_eq!((writes.before_reply.len(), writes.alarm_at), (1, None));
    }
    // Nor by an object that woke: where there is a row there is an alarm.
    world.alarm_at = Some(alarm_at);
    world.crash(0);
    let request = ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs: vec![vec![1]] };
    let (_, writes) = world.ledger.ask(std::slice::from_ref(&world.policy), &request, world.now, || Some(0)).unwrap();
    assert_eq!(writes.alarm_at, None);
}
