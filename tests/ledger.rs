//! What is kept of a key, over crashes: laws about any sequence of requests, clock steps, and crashes at any moment.
//!
//! The truth is a bucket in memory that never crashes, and to which everything that was granted happens too. The ledger may
//! be below it, by what crashes cost, and never above: then it could grant what the exact model would not.

use std::collections::BTreeMap;

use proptest::prelude::*;

use tollgate::ledger::{Background, Ledger, Writes};
use tollgate::limit::{Decision, Limit, Part, Snapshot, State, Verb, decide_all};
use tollgate::policy::{NamedLimit, Policies, Policy, Unsettled};
use tollgate::protocol::{Action, Decided, LimitAnswer, ObjectReply, ObjectRequest, RequestId, Reserved};

const START: i64 = 1_700_000_000_000;
const DAY_MS: i64 = 86_400_000;
const LONG_MS: i64 = 2 * DAY_MS;

/// Policies of all kinds; each name says what is special.
const POLICIES: &str = r#"{
    "block": {"rate": 100, "period": "10s", "capacity": 60, "write_ahead": 8, "max_debt": 10},
    "each": {"rate": 3, "period": "1s", "capacity": 10, "write_ahead": 0, "unsettled": "refund", "reservation_ttl": "2s"},
    "budget": {"rate": 0, "period": "1s", "capacity": 200, "write_ahead": 5},
    "window": {"kind": "fixed_window", "rate": 20, "period": "5s", "capacity": 30, "write_ahead": 6, "max_debt": 20},
    "two": {"limits": [
        {"name": "a", "rate": 7, "period": "1s", "capacity": 20, "write_ahead": 3, "max_debt": 5},
        {"name": "b", "kind": "fixed_window", "rate": 60, "period": "1m", "write_ahead": 10, "offset": "0s", "max_debt": 5}
    ], "unsettled": "refund"}
}"#;

fn policies() -> Policies {
    Policies::parse(POLICIES).unwrap()
}

/// Storage, and an object in front of it.
struct World<'p> {
    policies: &'p Policies,
    policy: &'p Policy,
    storage: BTreeMap<String, Vec<u8>>,
    /// Rows that nobody waits for, not yet there for good.
    in_flight: Vec<Background>,
    ledger: Ledger,
    now: i64,
    ids: u64,
    rows_written: u64,
    wants_flush: bool,
    alarm_at: Option<i64>,
}

impl<'p> World<'p> {
    fn new(policies: &'p Policies, policy: &str) -> Self {
        let policy = policies.get(policy).unwrap();
        Self {
            policies,
            policy,
            storage: BTreeMap::new(),
            in_flight: Vec::new(),
            ledger: Ledger::new([], 0).unwrap(),
            now: START,
            ids: 0,
            rows_written: 0,
            wants_flush: false,
            alarm_at: None,
        }
    }

    fn ask(&mut self, action: Action, costs: Option<Vec<u64>>, request_id: Option<RequestId>) -> ObjectReply {
        let request = ObjectRequest { action, request_id, costs: costs.into_iter().collect() };
        let ids = &mut self.ids;
        let random = || {
            *ids += 1;
            Some(*ids)
        };
        let (reply, writes) =
            self.ledger.ask(self.policies, self.policy.wire_name(), &request, self.now, random).unwrap();
        self.write(writes);
        reply
    }

    fn write(&mut self, writes: Writes) {
        self.wants_flush = writes.wants_flush;
        self.alarm_at = writes.alarm_at.or(self.alarm_at);
        if writes.clear {
            self.storage.clear();
            self.in_flight.clear();
            self.alarm_at = None;
        }
        self.rows_written += (writes.before_reply.len() + writes.background.len()) as u64;
        if !writes.before_reply.is_empty() {
            self.arrive(usize::MAX); // in order: what is due is told only when all before it is there
        }
        for (name, row) in writes.before_reply {
            match row {
                Some(row) => _ = self.storage.insert(name, row),
                None => _ = self.storage.remove(&name),
            }
        }
        self.in_flight.extend(writes.background);
        assert!(self.storage.is_empty() || self.alarm_at.is_some(), "somebody will clean up");
    }

    /// The first `count` rows in flight are there for good.
    fn arrive(&mut self, count: usize) {
        for early in self.in_flight.drain(..count.min(self.in_flight.len())) {
            self.ledger.confirm(&early.name, early.ticket);
            self.storage.insert(early.name, early.row);
        }
    }

    /// The process ends, and another finds what has arrived.
    fn crash(&mut self, arrived: usize) {
        self.arrive(arrived);
        self.in_flight.clear();
        self.ledger = Ledger::new(self.storage.clone(), 0).unwrap();
    }

    fn has_row(&self) -> bool {
        self.storage.contains_key(&format!("b:{}", self.policy.name()))
    }

    fn flush_idle(&mut self) {
        let writes = self.ledger.flush_idle(self.policies, self.now);
        self.write(writes);
    }

    fn clean(&mut self) {
        let writes = self.ledger.clean(self.policies, self.now);
        self.alarm_at = None;
        self.write(writes);
    }

    fn decided(&mut self, action: Action, costs: Vec<u64>) -> Decided {
        match self.ask(action, Some(costs), None) {
            ObjectReply::Decided(decided) => decided,
            other => panic!("{other:?}"),
        }
    }

    /// What is left of each limit, in whole tokens rounded down; negative when in debt.
    fn levels(&mut self) -> Vec<i64> {
        let zeros = vec![0; self.policy.limits().len()];
        // To give back nothing is never refused, so this changes nothing.
        self.decided(Action::Look(Verb::Refund), zeros).limits.iter().map(signed).collect()
    }
}

fn signed(answer: &LimitAnswer) -> i64 {
    i64::try_from(answer.remaining).unwrap() - i64::try_from(answer.owed).unwrap()
}

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

fn tokens(answer: &LimitAnswer) -> u64 {
    match answer.decision {
        Decision::Allow { tokens, .. } => tokens,
        _ => 0,
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

const fn request_id(id: u128, fingerprint: u64) -> RequestId {
    RequestId { id, fingerprint, is_lasting: true }
}

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
            |world: &mut World<'_>| world.ask(Action::Take(Verb::Consume), Some(vec![1]), Some(request_id(request, 7)));
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
        let (reply, _) = other.ask(&policies, policy, &settle, world.now, || Some(0)).unwrap();
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
fn a_refund_is_written_when_all_is_quiet() {
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
    let busy = |world: &mut World<'_>| {
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

#[test]
fn nothing_is_reserved_by_reserving_nothing() {
    let policies = policies();
    let mut world = World::new(&policies, "block");
    let decided = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: None }), vec![0]);
    assert!(decided.decision().is_allow());
    assert_eq!((decided.reservation, world.rows_written), (None, 0));
}

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
        let (_, writes) = world.ledger.ask(&policies, "each", &request, world.now, || Some(0)).unwrap();
        assert_eq!((writes.before_reply.len(), writes.alarm_at), (1, None));
    }
    // Nor by an object that woke: where there is a row there is an alarm.
    world.alarm_at = Some(alarm_at);
    world.crash(0);
    let request = ObjectRequest { action: Action::Take(Verb::Consume), request_id: None, costs: vec![vec![1]] };
    let (_, writes) = world.ledger.ask(&policies, "each", &request, world.now, || Some(0)).unwrap();
    assert_eq!(writes.alarm_at, None);
}

/// Rows written per thousand grants on one key: what the README says.
#[test]
fn rows_are_written_by_the_block_when_a_key_is_busy_and_once_each_when_it_is_not() {
    let json =
        r#"{"p":{"rate":1000,"period":"1s","write_ahead":50},"exact":{"rate":1000,"period":"1s","write_ahead":0}}"#;
    let policies = Policies::parse(json).unwrap();
    // Every so many milliseconds one request of one token, a thousand times.
    for (policy, interval_ms, rows) in
        [("p", 0, 28), ("p", 1, 28), ("p", 10, 251), ("p", 1_000, 1_000), ("exact", 0, 1_000)]
    {
        let mut world = World::new(&policies, policy);
        for _ in 0..1_000 {
            assert!(world.decided(Action::Take(Verb::Consume), vec![1]).decision().is_allow());
            world.arrive(usize::MAX);
            world.now += interval_ms;
        }
        assert_eq!(world.rows_written, rows, "{policy} every {interval_ms} ms");
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
