//! How many rows are written, and when.

use tollgate::limit::Verb;
use tollgate::policy::Policies;
use tollgate::protocol::Action;

use crate::world::{LONG_MS, World, policies};

/// How long an object stays in memory without requests.
const EVICTED_MS: i64 = 10_000;

/// Rows written per thousand grants on one key, as in docs/scale.md.
#[test]
fn a_row_lasts_a_block_a_minute_or_a_grant() {
    let json =
        r#"{"p":{"rate":1000,"period":"1s","write_ahead":50},"exact":{"rate":1000,"period":"1s","write_ahead":0}}"#;
    let policies = Policies::parse(json).unwrap();
    // A thousand requests for one token, this many milliseconds apart. All of it comes back meanwhile, but for the first: a row that
    // does not refill lasts as long as the key has been asked, then a minute.
    for (policy, interval_ms, rows) in
        [("p", 0, 28), ("p", 1, 9), ("p", 10, 10), ("p", 1_000, 22), ("p", 11_000, 1_000), ("exact", 0, 1_000)]
    {
        let mut world = World::new(&policies, policy);
        for _ in 0..1_000 {
            assert!(world.decided(Action::Take(Verb::Consume), vec![1]).decision().is_allow());
            world.arrive(usize::MAX);
            world.now += interval_ms;
            if interval_ms > EVICTED_MS {
                world.crash(0);
            }
        }
        assert_eq!(world.rows_written, rows, "{policy} every {interval_ms} ms");
    }
}

/// On an idle key, as in docs/scale.md: deletions are rows too.
#[test]
fn a_reservation_costs_five_rows() {
    let policies = policies();
    for (end, costs, rows) in [
        (Action::Settle as fn(u64) -> Action, Some(vec![3]), 5),
        (Action::Settle, Some(vec![5]), 5),
        (Action::Cancel, None, 5),
    ] {
        let mut world = World::new(&policies, "each");
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let reserved = world.decided(reserve, vec![3]).reservation.unwrap();
        world.now += 100;
        world.ask(end(reserved.id), costs.clone(), None);
        assert_eq!(world.rows_written, rows, "{costs:?}");
    }
}

#[test]
fn the_exact_level_is_written_when_spending_pauses() {
    let policies = policies();
    let mut world = World::new(&policies, "budget");
    for _ in 0..4 {
        world.decided(Action::Take(Verb::Consume), vec![1]);
    }
    assert!(world.wants_flush);
    world.flush_idle();
    assert!(world.wants_flush, "something was spent since: not yet");
    world.flush_idle();
    assert!(!world.wants_flush);
    world.crash(usize::MAX);
    assert_eq!(world.levels(), [196]);
}

#[test]
fn a_refund_is_written_once_the_key_is_idle() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    world.decided(Action::Take(Verb::Consume), vec![8]);
    world.now += 10;
    world.decided(Action::Take(Verb::Refund), vec![8]);
    assert!(world.wants_flush);
    world.flush_idle();
    world.flush_idle();
    world.crash(usize::MAX);
    assert_eq!(world.levels(), [60]);
}

#[test]
fn a_row_of_a_forgotten_bucket_is_not_taken_for_one_of_the_next() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    let busy = |world: &mut World| {
        while world.in_flight.is_empty() {
            world.decided(Action::Take(Verb::Consume), vec![1]);
        }
        world.in_flight.remove(0)
    };
    let old = busy(&mut world);
    world.now += LONG_MS;
    world.clean();
    assert!(world.storage.is_empty());
    let new = busy(&mut world);
    assert_ne!(old.ticket, new.ticket);
    world.ledger.confirm(&old.name, old.ticket);
    let before = world.levels();
    world.crash(0);
    assert!(world.levels()[0] <= before[0]);
}
