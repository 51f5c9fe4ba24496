//! Laws about any sequence of requests, clock steps, and crashes at any moment.
//!
//! The truth is a bucket in memory that never crashes, and to which everything that was granted happens too. The ledger may
//! be below it, by what crashes cost, and never above: then it could grant what the exact model would not.

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Decision, Limit, Part, State, Verb, decide_all};
use tollgate::policy::{NamedLimit, Policy, Unsettled};
use tollgate::protocol::{Action, ObjectReply, ObjectRequest, Reserved};

use crate::world::{DAY_MS, START, World, policies, tokens};

/// The bucket that never crashes.
struct Truth<'p> {
    limits: Vec<&'p Limit>,
    states: Vec<State>,
}

impl<'p> Truth<'p> {
    fn new(policy: &'p Policy, now: i64) -> Self {
        let limits: Vec<_> = policy.limits().iter().map(NamedLimit::limit).collect();
        let states = limits.iter().map(|limit| limit.new_state(now, 0)).collect();
        Self { limits, states }
    }

    /// Does the same, which must be granted.
    fn grant(&mut self, verb: Verb, costs: &[u64], now: i64) -> i64 {
        let parts = self.limits.iter().zip(&self.states).zip(costs);
        let mut parts: Vec<_> = parts.map(|((limit, state), &cost)| Part::new(limit, *state, cost)).collect();
        let decision = decide_all(&mut parts, now, verb);
        let Decision::Allow { ready_at, .. } = decision else {
            panic!("{verb:?} of {costs:?} was granted, and the truth says {decision:?}");
        };
        self.states = parts.iter().map(|part| part.state).collect();
        ready_at
    }

    /// A refusal: it moves the moment of the bucket if the clock stepped back far.
    fn refuse(&mut self, now: i64) {
        let mut parts: Vec<_> =
            self.limits.iter().zip(&self.states).map(|(limit, state)| Part::new(limit, *state, u64::MAX)).collect();
        assert!(!decide_all(&mut parts, now, Verb::Consume).is_allow());
        self.states = parts.iter().map(|part| part.state).collect();
    }

    fn adjust(&mut self, taken: &[u64], real: &[u64], now: i64) {
        for (((limit, state), &taken), &real) in self.limits.iter().zip(&mut self.states).zip(taken).zip(real) {
            if real > taken {
                limit.charge(state, now, real - taken);
            } else {
                limit.refund(state, now, taken - real);
            }
        }
    }

    fn levels(&self, now: i64) -> Vec<i64> {
        let signed = |(limit, state): (&&Limit, &State)| {
            i64::try_from(limit.remaining(state, now)).unwrap() - i64::try_from(limit.owed(state, now)).unwrap()
        };
        self.limits.iter().zip(&self.states).map(signed).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(Verb, [u64; 2]),
    Look([u64; 2]),
    Reserve([u64; 2], Option<u64>),
    /// The reservation of this number, if there are as many, at this cost.
    Settle(usize, [u64; 2]),
    Cancel(usize),
    Wait(i64),
    /// So many rows arrive.
    Arrive(usize),
    Calm,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 0..4_u64, 2 => 0..12_u64, 1 => 0..70_u64];
    let costs = move || [cost(), cost()];
    let wait = || prop_oneof![Just(None), (0..5_000_u64).prop_map(Some)];
    prop_oneof![
        12 => costs().prop_map(|costs| Step::Take(Verb::Consume, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::ConsumeUpTo, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::Charge, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::Refund, costs)),
        1 => Just(Step::Take(Verb::Reset, [0, 0])),
        2 => (costs(), wait()).prop_map(|(costs, max_wait_ms)| Step::Take(Verb::Borrow { max_wait_ms }, costs)),
        2 => costs().prop_map(Step::Look),
        3 => (costs(), wait()).prop_map(|(costs, wait)| Step::Reserve(costs, wait)),
        2 => (0..3_usize, costs()).prop_map(|(which, costs)| Step::Settle(which, costs)),
        1 => (0..3_usize).prop_map(Step::Cancel),
        4 => prop_oneof![3 => 0..300_i64, 2 => 0..20_000_i64, 1 => -50_000..0_i64, 1 => Just(DAY_MS)].prop_map(Step::Wait),
        3 => (0..4_usize).prop_map(Step::Arrive),
        2 => Just(Step::Calm),
        1 => Just(Step::Clean),
        3 => (0..4_usize).prop_map(Step::Crash),
    ]
}

/// An open reservation as its client knows it.
struct Open {
    reserved: Reserved,
    taken: Vec<u64>,
}

fn follow(policy: &str, steps: &[Step]) {
    let policies = policies();
    let mut world = World::new(&policies, policy);
    let policy = world.policy;
    let count = policy.limits().len();
    let gives_back = policy.reservations().unsettled == Unsettled::Refund;
    let mut truth = Truth::new(policy, START);
    let mut is_new = true;
    let mut open: Vec<Open> = Vec::new();
    let mut latest = START;
    for step in steps {
        if let Step::Wait(ms) = step {
            world.now += ms;
        }
        let now = world.now;
        latest = latest.max(now);
        if is_new {
            // Of a key that has no row nothing is known, and nothing need be: what was granted has come back.
            let fresh = Truth::new(policy, now);
            assert_eq!(truth.levels(latest), fresh.levels(now));
            truth = fresh;
            is_new = false;
        }
        let (ended, rest): (Vec<_>, _) = open.into_iter().partition(|open| open.reserved.expires_at <= now);
        open = rest;
        for Open { taken, .. } in ended.iter().filter(|_| gives_back) {
            truth.adjust(taken, &vec![0; count], now);
        }
        match step {
            Step::Take(verb, costs) => {
                let decided = world.decided(Action::Take(*verb), costs[..count].to_vec());
                if decided.decision().is_allow() {
                    let costs: Vec<u64> = match verb {
                        // The truth may have more there, or room for less.
                        Verb::ConsumeUpTo => decided.limits.iter().map(tokens).collect(),
                        _ => costs[..count].to_vec(),
                    };
                    let verb = if *verb == Verb::ConsumeUpTo { Verb::Consume } else { *verb };
                    let ready_at = truth.grant(verb, &costs, now);
                    let Decision::Allow { ready_at: told, .. } = decided.decision() else { unreachable!() };
                    assert!(ready_at <= told, "ready at {told} although the truth says {ready_at}");
                } else {
                    truth.refuse(now);
                }
            }
            Step::Look(costs) => {
                if !world.decided(Action::Look(Verb::Consume), costs[..count].to_vec()).decision().is_allow() {
                    truth.refuse(now);
                }
            }
            Step::Reserve(costs, max_wait_ms) => {
                let verb = Verb::Reserve { max_wait_ms: *max_wait_ms };
                let decided = world.decided(Action::Reserve(verb), costs[..count].to_vec());
                let is_something = costs[..count].iter().any(|&cost| cost > 0);
                assert_eq!(decided.reservation.is_some(), decided.decision().is_allow() && is_something);
                if let Some(reserved) = decided.reservation {
                    truth.grant(verb, &costs[..count], now);
                    open.push(Open { reserved, taken: costs[..count].to_vec() });
                } else if !decided.decision().is_allow() {
                    truth.refuse(now);
                }
            }
            Step::Settle(which, costs) if *which < open.len() => {
                let Open { reserved, taken } = open.remove(*which);
                world.decided(Action::Settle(reserved.id), costs[..count].to_vec());
                truth.adjust(&taken, &costs[..count], now);
                let again = world.ask(Action::Settle(reserved.id), Some(costs[..count].to_vec()), None);
                assert_eq!(again, ObjectReply::NoReservation, "each id settles once");
            }
            Step::Cancel(which) if *which < open.len() => {
                let Open { reserved, taken } = open.remove(*which);
                world.ask(Action::Cancel(reserved.id), None, None);
                truth.adjust(&taken, &vec![0; count], now);
            }
            Step::Settle(..) | Step::Cancel(_) | Step::Wait(_) => {}
            Step::Arrive(count) => world.arrive(*count),
            Step::Calm => world.flush_idle(),
            Step::Clean => {
                world.clean();
                is_new = !world.has_row();
            }
            Step::Crash(arrived) => {
                let before = world.levels();
                world.crash(*arrived);
                is_new = !world.has_row();
                let after = world.levels();
                for ((limit, before), after) in policy.limits().iter().zip(before).zip(after) {
                    let lost = before - after;
                    let block = i64::try_from(limit.write_ahead()).unwrap();
                    // After a step back what was written earlier waits for its moment, and is further behind until then.
                    let most = if now < latest { i64::MAX } else { block };
                    assert!((0..=most).contains(&lost), "{} lost {lost} of a block of {block}", limit.full_name());
                }
            }
        }
        if is_new {
            continue;
        }
        let levels = world.levels();
        let most = truth.levels(now);
        assert!(levels.iter().zip(&most).all(|(level, most)| level <= most), "{step:?} left {levels:?} of {most:?}");
    }
}

fn config() -> ProptestConfig {
    let mut config = ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("CI").is_some() {
        config.rng_seed = proptest::test_runner::RngSeed::Fixed(4);
    }
    config
}

proptest! {
    #![proptest_config(config())]

    /// Over any crashes at most a block is lost for each, and nothing is granted that the exact model would not grant.
    #[test]
    fn no_crash_gives_anything_back(
        policy in prop_oneof![Just("block"), Just("each"), Just("budget"), Just("window"), Just("two")],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        follow(policy, &steps);
    }

    /// Who knows the snapshots of one answer knows the next answer, if nobody else has asked.
    #[test]
    fn a_snapshot_foretells_the_next_answer(
        policy in prop_oneof![Just("block"), Just("each"), Just("budget"), Just("window"), Just("two")],
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let policies = policies();
        let mut world = World::new(&policies, policy);
        let limits: Vec<_> = world.policy.limits().iter().map(NamedLimit::limit).collect();
        let look = |world: &mut World<'_>| world.decided(Action::Look(Verb::Consume), vec![0; limits.len()]);
        let mut known = look(&mut world);
        for step in steps {
            let (action, verb, costs) = match step {
                Step::Take(verb, costs) => (Action::Take(verb), verb, costs),
                Step::Look(costs) => (Action::Look(Verb::Consume), Verb::Consume, costs),
                Step::Wait(ms) => {
                    world.now += ms;
                    continue;
                }
                Step::Arrive(count) => {
                    world.arrive(count);
                    continue;
                }
                Step::Calm => {
                    world.flush_idle();
                    continue;
                }
                Step::Clean | Step::Crash(_) => {
                    if let Step::Crash(arrived) = step { world.crash(arrived) } else { world.clean() }
                    known = look(&mut world); // what was forgotten or lost is another bucket
                    continue;
                }
                Step::Reserve(..) | Step::Settle(..) | Step::Cancel(_) => continue,
            };
            let states = known.limits.iter().zip(&limits).map(|(answer, limit)| limit.restored(&answer.snapshot).unwrap());
            let before: Vec<_> = states.collect();
            let parts = limits.iter().zip(&before).zip(costs);
            let mut parts: Vec<_> = parts.map(|((limit, state), cost)| Part::new(limit, *state, cost)).collect();
            let is_only_looked_at = decide_all(&mut parts, world.now, verb).is_allow() && matches!(action, Action::Look(_));
            known = world.decided(action, costs[..limits.len()].to_vec());
            for ((answer, part), before) in known.limits.iter().zip(&parts).zip(before) {
                let after = if is_only_looked_at { before } else { part.state };
                prop_assert_eq!((answer.decision, answer.snapshot), (part.decision, part.limit.snapshot(&after)));
            }
        }
    }

    /// The runtime promises one object for a key, and in spite of that an older one may live on for a while, as long as it
    /// does not touch storage. Both together grant no more than one would.
    #[test]
    fn two_objects_of_one_key_grant_no_more_than_one(
        policy in prop_oneof![Just("block"), Just("budget"), Just("window"), Just("two")],
        before in prop::collection::vec((0..9_u64, 0..200_i64), 1..40),
        arrived in 0..3_usize,
        after in prop::collection::vec((any::<bool>(), 0..9_u64, 0..200_i64), 1..60),
    ) {
        let policies = policies();
        let mut world = World::new(&policies, policy);
        let count = world.policy.limits().len();
        let mut truth = Truth::new(world.policy, START);
        for (cost, wait_ms) in before {
            world.now += wait_ms;
            let costs = vec![cost; count];
            if world.decided(Action::Take(Verb::Consume), costs.clone()).decision().is_allow() {
                truth.grant(Verb::Consume, &costs, world.now);
            }
        }
        world.arrive(arrived);
        world.in_flight.clear();
        let newer = Ledger::new(world.storage.clone(), 0).unwrap();
        let mut older = Some(std::mem::replace(&mut world.ledger, newer));
        for (is_older, cost, wait_ms) in after {
            world.now += wait_ms;
            let costs = vec![cost; count];
            let is_granted = match older.take_if(|_| is_older) {
                None => world.decided(Action::Take(Verb::Consume), costs.clone()).decision().is_allow(),
                Some(mut ledger) => {
                    let request = ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs: vec![costs.clone()] };
                    let name = world.policy.wire_name();
                    let (reply, writes) = ledger.ask(&policies, name, &request, world.now, || Some(0)).unwrap();
                    let touches_storage = !writes.before_reply.is_empty() || !writes.background.is_empty();
                    let ObjectReply::Decided(decided) = reply else { unreachable!() };
                    // Where it would touch storage, the runtime ends it, and nobody gets this answer.
                    if !touches_storage {
                        older = Some(ledger);
                    }
                    !touches_storage && decided.decision().is_allow()
                }
            };
            if is_granted {
                truth.grant(Verb::Consume, &costs, world.now);
            }
        }
    }
}
