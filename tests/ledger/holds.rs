//! Tokens held while a batch asks its other keys.

use tollgate::limit::{Snapshot, Verb};
use tollgate::protocol::{Action, Decided, ObjectReply};

use crate::world::{START, World, policies, request_id};

#[test]
fn what_a_batch_holds_comes_back_by_itself() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    let held = world.ask(Action::Hold(0), Some(vec![4]), Some(request_id(5, 5)));
    let ObjectReply::Decided(Decided { reservation: Some(reserved), .. }) = held else { panic!("{held:?}") };
    assert_eq!(world.levels(), [6]);
    // ResolvedRequest again before the second half, it holds nothing more.
    let ObjectReply::Decided(again) = world.ask(Action::Hold(0), Some(vec![4]), Some(request_id(5, 5))) else {
        panic!()
    };
    assert_eq!((again.is_replayed, again.reservation), (true, Some(reserved)));
    assert_eq!(world.levels(), [6]);
    world.crash(0);
    world.now = reserved.expires_at;
    assert_eq!(world.levels(), [10]);

    // Settled, it stays taken and is remembered.
    let ObjectReply::Decided(held) = world.ask(Action::Hold(0), Some(vec![4]), Some(request_id(6, 6))) else {
        panic!()
    };
    let id = held.reservation.unwrap().id;
    assert!(matches!(world.ask(Action::Settle(id), None, None), ObjectReply::Decided(_)));
    world.crash(0);
    let ObjectReply::Decided(again) = world.ask(Action::Hold(0), Some(vec![4]), Some(request_id(6, 6))) else {
        panic!()
    };
    assert_eq!((again.is_replayed, again.reservation), (true, None));
    assert_eq!(world.levels(), [6]);
}

#[test]
fn a_snapshot_is_without_what_is_held_and_says_when_that_was_taken() {
    let policies = policies();
    let mut world = World::new(&policies, "each"); // 3 per second, at most 10
    let snapshot = |decided: &Decided| decided.limits[0].snapshot;
    let at = |ms| Snapshot { tokens: 6, drops: 0, at: START + ms };
    let held = world.decided(Action::Hold(0), vec![4]);
    assert_eq!(snapshot(&held), at(0));
    world.now += 10;
    assert_eq!(
        snapshot(&world.decided(Action::Take(Verb::Consume), vec![7])),
        at(10),
        "nothing can come back to a full one"
    );
    let settle = Action::Settle(held.reservation.unwrap().id);
    for is_replayed in [false, true] {
        let ObjectReply::Decided(kept) = world.ask(settle, None, Some(request_id(1, 1))) else { panic!() };
        assert_eq!((snapshot(&kept), kept.is_replayed), (at(10), is_replayed));
        world.now += 1;
    }
}

#[test]
fn what_a_batch_holds_and_gives_back_leaves_no_more_than_if_it_had_never_been() {
    let policies = policies();
    for is_cancelled in [true, false] {
        let mut world = World::new(&policies, "each");
        let ObjectReply::Decided(held) = world.ask(Action::Hold(0), Some(vec![10]), Some(request_id(7, 7))) else {
            panic!()
        };
        let reserved = held.reservation.unwrap();
        assert_eq!(held.limits[0].remaining, 0);
        let consume = Action::Take(Verb::Consume);
        assert!(!world.decided(consume, vec![1]).decision().is_allow(), "nobody else can have it");
        world.now += 1_000;
        // The bucket was full all the time: nothing has come back that could be taken besides.
        assert!(!world.decided(consume, vec![1]).decision().is_allow());
        if is_cancelled {
            world.ask(Action::Cancel(reserved.id), None, None);
        } else {
            world.now = reserved.expires_at;
        }
        assert!(world.decided(consume, vec![10]).decision().is_allow());
        assert!(!world.decided(consume, vec![1]).decision().is_allow());
    }
}

#[test]
fn a_second_try_of_a_refused_batch_gives_back_what_it_holds() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    for id in [1, 2, 3] {
        let ObjectReply::Decided(held) = world.ask(Action::Hold(0), Some(vec![4]), Some(request_id(9, 9))) else {
            panic!()
        };
        assert!(!held.is_replayed);
        // Each try gives back under an id of its own.
        world.ask(Action::Cancel(held.reservation.unwrap().id), None, Some(request_id(100 + id, 0)));
        assert_eq!(world.levels(), [10]);
    }
}
