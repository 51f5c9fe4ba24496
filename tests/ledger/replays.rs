//! A request that is repeated gets its first answer.

use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::{Action, ObjectReply, RequestId};

use crate::world::{World, policies, request_id};

#[test]
fn a_repeated_question_gets_its_first_answer_and_takes_nothing() {
    let policies = policies();
    for policy in ["block", "each"] {
        let mut world = World::new(&policies, policy);
        let consume = Action::Take(Verb::Consume);
        let ObjectReply::Decided(first) = world.ask(consume, Some(vec![3]), Some(request_id(1, 1))) else { panic!() };
        assert!(!first.is_replayed);
        for crash in [false, true] {
            if crash {
                world.crash(0);
            }
            world.now += 1;
            let levels = world.levels();
            let ObjectReply::Decided(again) = world.ask(consume, Some(vec![3]), Some(request_id(1, 1))) else {
                panic!()
            };
            assert!(again.is_replayed);
            assert_eq!(again.limits[0].decision, first.limits[0].decision);
            assert_eq!(world.levels(), levels);
            assert_eq!(world.ask(consume, Some(vec![4]), Some(request_id(1, 2))), ObjectReply::RequestIdReused);
        }
    }
}

#[test]
fn a_refusal_is_not_remembered() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let consume = Action::Take(Verb::Consume);
    world.decided(consume, vec![10]);
    let ObjectReply::Decided(refused) = world.ask(consume, Some(vec![3]), Some(request_id(1, 1))) else { panic!() };
    assert!(!refused.decision().is_allow());
    world.now += 1_000;
    let ObjectReply::Decided(granted) = world.ask(consume, Some(vec![3]), Some(request_id(1, 1))) else { panic!() };
    assert!(granted.decision().is_allow() && !granted.is_replayed);
}

/// 100 000 requests, each repeated right away, with a crash now and then: every one is charged once.
#[test]
fn retries_are_charged_once_whatever_crashes() {
    let json = r#"{"p":{"rate":0,"period":"1s","capacity":100000,"write_ahead":0}}"#;
    let policies = Policies::parse(json).unwrap();
    let mut world = World::new(&policies, "p");
    for request in 0..100_000_u128 {
        let ask =
            |world: &mut World| world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id(request, 7)));
        let ObjectReply::Decided(first) = ask(&mut world) else { panic!() };
        if request % 97 == 0 {
            world.crash(0);
        }
        let ObjectReply::Decided(again) = ask(&mut world) else { panic!() };
        assert!(first.decision().is_allow() && !first.is_replayed && again.is_replayed, "request {request}");
    }
    assert_eq!(world.levels(), [0]);
}

#[test]
fn the_memory_of_a_key_is_bounded() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    for id in 0..1_000 {
        world.now += 1_000;
        world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id(id, 0)));
    }
    let len = world.storage["b:block"].len();
    assert!(len < 5_000, "{len} bytes");
    world.now += 1_000;
    let ObjectReply::Decided(recent) =
        world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id(999 - 63, 0)))
    else {
        panic!()
    };
    assert!(recent.is_replayed, "the last 64 are remembered");
}

#[test]
fn what_the_front_remembers_for_itself_does_not_drive_out_what_a_client_was_promised() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id(1, 1)));
    for id in 1_000..1_200 {
        world.now += 1_000;
        let request_id = RequestId { is_lasting: false, ..request_id(id, 0) };
        world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id));
    }
    let ObjectReply::Decided(again) = world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id(1, 1)))
    else {
        panic!()
    };
    assert!(again.is_replayed);
}
