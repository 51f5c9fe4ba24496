//! The state of a key, for operators: what the next request will find; looking changes nothing.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Carry, Decision, Verb};
use tollgate::policy::{Policies, Policy, without_shadow};
use tollgate::protocol::{Action, KeyState, LimitState, ObjectReply, PastDecision};

use crate::chance;
use crate::shadow::Player;
use crate::steps::steps;
use crate::world::{DAY_MS, START, World, decided, policies, tokens};

const CONSUME: Action = Action::Take(Verb::Consume);

const POLICIES: [&str; 4] = [
    r#"{"rate":100,"period":"10s","capacity":60,"write_ahead":8,"max_debt":10}"#,
    r#"{"rate":5,"period":"1s","capacity":20,"initial":3,"write_ahead":4,"max_debt":6,"unsettled":"refund","reservation_ttl":"2s"}"#,
    r#"{"kind":"fixed_window","rate":20,"period":"5s","capacity":30,"write_ahead":6,"max_debt":20}"#,
    r#"{"limits":[{"name":"a","rate":7,"period":"1s","capacity":20},{"name":"s","mode":"shadow","rate":1,"period":"1s"}]}"#,
];

fn policy(json: &str) -> Policy {
    Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

fn inspect(world: &World) -> KeyState {
    world.ledger.inspect(std::slice::from_ref(&world.policy), world.as_of.unwrap_or(0), world.now)
}

fn limits<'a>(state: &'a KeyState, policy: &str) -> Option<&'a (Arc<Policy>, Vec<LimitState>)> {
    state.buckets.iter().find(|bucket| bucket.policy == policy).map(|bucket| bucket.limits.as_ref().unwrap())
}

proptest! {
    #![proptest_config(chance::config(1_000))]

    /// After any requests and events, levels, holds and reservations are those that the next request finds, and it
    /// finds them as without the look.
    #[test]
    fn an_inspection_agrees_with_the_next_request(which in 0..POLICIES.len(), steps in steps()) {
        let policy = Arc::new(policy(POLICIES[which]));
        let [mut looked_at, mut other] = [(); 2].map(|()| Player::new(&policy));
        for (number, step) in steps.iter().enumerate() {
            let before = format!("{:?}", looked_at.world.ledger);
            inspect(&looked_at.world);
            prop_assert_eq!(&format!("{:?}", looked_at.world.ledger), &before);
            let reply = looked_at.play(step, number as u128);
            prop_assert_eq!(&reply, &other.play(step, number as u128), "{:?}", step);
            prop_assert_eq!(&looked_at.world.storage, &other.world.storage);

            let state = inspect(&looked_at.world);
            let zeros = vec![0; policy.limits().len()];
            let answer = decided(looked_at.world.ask(Action::Look(Verb::Refund), Some(zeros.clone()), None));
            decided(other.world.ask(Action::Look(Verb::Refund), Some(zeros), None));
            if let Some((_, found)) = limits(&state, "p") {
                let found: Vec<_> = found.iter().map(|limit| (limit.remaining, limit.owed, limit.reset_at)).collect();
                let asked = answer.limits.iter().map(|limit| (limit.remaining, limit.owed, limit.reset_at));
                prop_assert_eq!(found, asked.collect::<Vec<_>>());
            }
            prop_assert_eq!(state.reservations.len() as u64, answer.open_reservations);
        }
    }

    /// The decision that `explain` predicts is the one made right after.
    #[test]
    fn a_look_agrees_with_the_request_that_follows(
        which in 0..POLICIES.len(),
        steps in steps(),
        costs in prop::collection::vec(0..70_u64, 1..80),
    ) {
        let policy = Arc::new(policy(POLICIES[which]));
        let mut player = Player::new(&policy);
        for (number, (step, &cost)) in steps.iter().zip(&costs).enumerate() {
            player.play(step, number as u128);
            let costs = vec![cost; policy.limits().len()];
            let look = decided(player.world.ask(Action::Look(Verb::Consume), Some(costs.clone()), None));
            let take = decided(player.world.ask(CONSUME, Some(costs), None));
            let verdicts = |limits: &[tollgate::protocol::LimitAnswer]| {
                limits.iter().map(|limit| limit.decision).collect::<Vec<_>>()
            };
            prop_assert_eq!(verdicts(&look.limits), verdicts(&take.limits));
        }
    }
}

/// Also of a bucket that is shown under its own policy, and was not asked since.
#[test]
fn a_lease_that_is_over_is_not_held() {
    let mut world = World::empty(&Arc::new(policy(r#"{"rate":1,"period":"1s","capacity":100,"write_ahead":0}"#)));
    world.lease(vec![50], Vec::new());
    for (now, held, remaining) in [(START + 1, 50, 50), (START + 65_000, 0, 100)] {
        world.now = now;
        for policies in [&[][..], &[Arc::clone(&world.policy)]] {
            let state = world.ledger.inspect(policies, 0, now);
            let limit = &state.buckets[0].limits.as_ref().unwrap().1[0];
            assert_eq!((limit.held, limit.remaining), (held, remaining), "at {now}");
        }
    }
}

/// Levels, exactly: a token is 1000 drops at 3 a second.
#[test]
fn levels_are_exact_and_current() {
    let mut world = World::empty(&Arc::new(policy(r#"{"rate":3,"period":"1s","capacity":10,"write_ahead":0}"#)));
    world.decided(CONSUME, vec![10]);
    world.decided(Action::Hold(7), vec![0]);
    world.now += 1_500;
    world.decided(Action::Hold(8), vec![2]);
    let state = inspect(&world);
    let [limit] = limits(&state, "p").unwrap().1[..] else { panic!("{state:?}") };
    assert_eq!((limit.remaining, limit.owed, limit.held), (2, 0, 2));
    assert_eq!((limit.snapshot.tokens, limit.snapshot.drops, limit.snapshot.at), (2, 500, START + 1_500));
    let [_, hold] = &state.holds[..] else { panic!("{state:?}") };
    assert_eq!((hold.ends_at, &*hold.tokens[0].limits), (START + 11_500, &[(None, 2)][..]));
    assert_eq!(
        state.decisions.iter().map(|decision| (decision.at - START, decision.cost)).collect::<Vec<_>>(),
        [(0, 10), (0, 0), (1_500, 2)]
    );
}

#[test]
fn all_policies_of_the_key_are_listed_and_an_unreadable_one_says_so() {
    let policies = policies();
    let mut world = World::new(&policies, "each");
    world.decided(CONSUME, vec![1]);
    world.policy = Arc::clone(policies.get("two").unwrap());
    world.decided(CONSUME, vec![1, 2]);
    world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![3, 4]);
    world.policy = Arc::clone(policies.get("budget").unwrap());
    world.decided(CONSUME, vec![50]);
    world.storage.insert("b:budget".to_owned(), vec![9]);
    world.crash(0);
    // The frontend knows one of them, and one that the key does not have.
    let known = ["each", "block"].map(|name| Arc::clone(policies.get(name).unwrap()));
    let state = world.ledger.inspect(&known, 0, world.now);
    let mut found: Vec<_> = state.buckets.iter().map(|bucket| (&*bucket.policy, bucket.limits.is_ok())).collect();
    found.sort_unstable();
    assert_eq!(found, [("budget", false), ("each", true), ("two", true)]);
    let (two, levels) = limits(&state, "two").unwrap();
    assert_eq!(two.limits()[1].name(), Some("b"), "under its own numbers");
    assert_eq!(
        levels.iter().map(|limit| limit.remaining).collect::<Vec<_>>(),
        [13, 44],
        "a restart costs a block of each"
    );
    let [reservation] = &state.reservations[..] else { panic!("{state:?}") };
    let expected = [(Some("a".to_owned()), 3), (Some("b".to_owned()), 4)];
    assert_eq!((reservation.tokens[0].policy.as_str(), &*reservation.tokens[0].limits), ("two", &expected[..]));
    assert!(reservation.is_refunded && reservation.opened_at == START);
    assert!(state.decisions.is_empty(), "a restart forgets them");

    world.now = reservation.expires_at;
    let later = world.ledger.inspect(&known, 0, world.now);
    assert!(later.reservations.is_empty(), "it has expired");
    assert_eq!(limits(&later, "two").unwrap().1[0].remaining, 20, "and given its tokens back");
    assert!(
        !inspect(&world).buckets.is_empty() && world.storage.keys().any(|row| row.starts_with("r:")),
        "only in words"
    );
}

#[test]
fn a_bucket_is_reported_under_the_newest_known_version() {
    let old = Arc::new(policy(r#"{"rate":100,"period":"1s","capacity":1000}"#).in_force_since(START - DAY_MS));
    let mut world = World { as_of: Some(old.timeline().since()), ..World::empty(&old) };
    world.decided(CONSUME, vec![1_000]);
    let changed_at = START + 2_000;
    let lowered = policy(r#"{"rate":1,"period":"1s","capacity":1000}"#);
    let new = Arc::new(lowered.succeeding(&old, changed_at, Carry::AsIs));
    world.now = START + 5_000;
    let remaining = |world: &World, policy: &Arc<Policy>| {
        let state = world.ledger.inspect(std::slice::from_ref(policy), policy.timeline().since(), world.now);
        limits(&state, "p").unwrap().1[0].remaining
    };
    assert_eq!((remaining(&world, &old), remaining(&world, &new)), (500, 203));
    (world.policy, world.as_of) = (Arc::clone(&new), Some(changed_at));
    assert_eq!(world.levels(), [203]);
    assert_eq!(remaining(&world, &old), 203, "asked by a frontend that does not know it yet");
}

#[test]
fn the_latest_decisions_are_kept_except_looks() {
    let json = r#"{"limits":[{"name":"a","rate":0,"period":"1s","capacity":20},{"name":"b","rate":1,"period":"1s","capacity":30}]}"#;
    let mut world = World::empty(&Arc::new(policy(json)));
    for number in 0..20 {
        world.now = START + number;
        world.decided(Action::Look(Verb::Consume), vec![1, 1]);
        world.decided(CONSUME, vec![1, 1]);
    }
    world.decided(CONSUME, vec![1, 20]);
    let KeyState { decisions, .. } = inspect(&world);
    assert_eq!(decisions.len(), KeyState::MAX_DECISIONS);
    let last = decisions.last().unwrap();
    let PastDecision { at, action, cost, is_granted, is_replayed, .. } = *last;
    assert_eq!((at, action, cost, is_granted, is_replayed), (START + 19, CONSUME, 20, false, false));
    assert_eq!(last.refusal, Some((0, Decision::Never { max: 0 })));
    let granted = decisions.iter().filter(|decision| decision.is_granted && decision.refusal.is_none());
    assert_eq!(granted.map(|decision| decision.at - START).collect::<Vec<_>>(), (5..20).collect::<Vec<_>>());
    assert_eq!(without_shadow(last.policy.name()), "p");
}

#[test]
fn an_operators_act_reports_the_levels_before_it() {
    let policy = Arc::new(policy(r#"{"rate":3,"period":"1s","capacity":10,"max_debt":5}"#));
    let mut world = World::empty(&policy);
    assert_eq!(world.decided(CONSUME, vec![10]).before, [0_i64; 0]);
    world.now += 1_500; // 4.5 tokens
    for (verb, cost, before, moved) in [
        (Verb::Refund, 2, 4, 2),
        (Verb::Charge, 9, 6, 9),
        (Verb::Reset, 0, -3, 12),
        (Verb::Charge, 99, 10, 15),
        (Verb::Refund, 99, -5, 15),
    ] {
        let decided = world.decided(Action::Take(verb), vec![cost]);
        assert_eq!((&*decided.before, tokens(&decided.limits[0])), (&[before][..], moved), "{verb:?}");
    }
    let ObjectReply::Decided(first) =
        world.ask(Action::Take(Verb::Refund), Some(vec![1]), Some(crate::world::request_id(1, 0)))
    else {
        panic!()
    };
    let again = world.decided_once(Action::Take(Verb::Refund), vec![1], 1);
    assert_eq!((first.before.len(), again.before.len(), again.is_replayed), (1, 0, true));
}

#[test]
fn an_empty_ledger_has_nothing_to_show() {
    let state = Ledger::new([], 0).inspect(&[Arc::new(policy(POLICIES[0]))], 0, START);
    assert!(state.buckets.is_empty() && state.reservations.is_empty() && state.holds.is_empty());
}
