//! Leases: many isolates, one key, and a network that delays, reorders, repeats and loses. Objects and isolates crash, and clocks
//! differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::edge::{Leased, Leases, Return};
use tollgate::ledger::{Ledger, Writes};
use tollgate::limit::{Decision, Part, State, Verb, decide_all};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, Format, LeaseRequest, ObjectReply, ObjectRequest, RequestId};

use super::random::{self, Random};

const START: i64 = 1_700_000_000_000;
const OBJECT: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Whatever is granted, by the object or by any isolate, one bucket in memory would have granted at that moment.
#[test]
fn what_is_granted_from_leases_one_bucket_would_have_granted() {
    let mut seen = Seen::default();
    random::cases(3_000, |random| {
        let mut world = World::new(random);
        for _ in 0..300 {
            world.step();
        }
        seen.add(&world.seen);
    });
    println!("{seen:?}");
    if seen.asked > 100_000 {
        assert!(seen.granted_from_leases * 30 > seen.asked, "too few to show anything");
        assert!(seen.refused_from_leases * 200 > seen.asked, "too few to show anything");
        assert!(seen.granted * 4 > seen.asked, "too few to show anything");
    }
}

/// With nobody else, what an object or an isolate refuses passes at the moment that it says.
#[test]
fn a_lone_client_is_granted_at_its_retry_at() {
    let mut refused = 0;
    random::cases(1_000, |random| {
        let mut world = World::new(random);
        world.isolates.truncate(1);
        world.isolates[0].ahead_ms = 0;
        for _ in 0..100 {
            let policy = Arc::clone(&world.policy);
            let capacities = policy.limits().iter().map(|limit| limit.limit().config().capacity);
            let costs: Vec<_> = capacities.map(|most| most.min(1 + world.random.below(4) as u64)).collect();
            let mut tries = 0;
            while let Some(retry_at) = world.refused_at(&costs) {
                refused += 1;
                tries += 1;
                // Beside what the clock shows, nothing happens until then.
                assert!(tries < 2 && retry_at > world.now, "{costs:?} refused again: {tries}, {retry_at}");
                world.now = retry_at;
            }
            world.now += signed(world.random.below(300));
        }
    });
    assert!(refused > 100, "too few to show anything");
}

/// Leases, an object and a policy, without a network.
struct Pair {
    leases: Leases,
    object: Object,
    now: i64,
}

impl Pair {
    fn new() -> Self {
        Self { leases: Leases::default(), object: Object::new(), now: START }
    }

    /// Asks for this cost of each limit, and tells whether it was granted.
    fn ask(&mut self, policy: &Arc<Policy>, cost: u64) -> bool {
        let costs = vec![cost; policy.limits().len()];
        match self.leases.consume(OBJECT, policy, &costs, self.now) {
            Leased::Decided { decided, renewal } => {
                if let Some(lease) = renewal {
                    self.send(policy, lease);
                }
                decided.decision().is_allow()
            }
            Leased::Ask(lease) => {
                let decided = self.call(policy, Action::Take(Verb::Consume), costs, lease.clone());
                if let Some(lease) = lease {
                    let now = (self.now, self.now);
                    self.leases.answered(OBJECT, policy, &lease, &decided, now);
                }
                decided.decision().is_allow()
            }
        }
    }

    fn send(&mut self, policy: &Arc<Policy>, lease: LeaseRequest) -> Option<(u64, u64)> {
        let nothing = vec![0; policy.limits().len()];
        let decided = self.call(policy, Action::Look(Verb::Consume), nothing, Some(lease.clone()));
        self.leases.answered(OBJECT, policy, &lease, &decided, (self.now, self.now))
    }

    /// Asks the object, which must answer.
    fn call(&mut self, policy: &Arc<Policy>, action: Action, costs: Vec<u64>, lease: Option<LeaseRequest>) -> Decided {
        let request = ObjectRequest {
            action,
            request_id: None,
            costs: vec![costs],
            shadow_costs: Vec::new(),
            known: None,
            wants_notices: false,
            lease,
        };
        let request = ObjectRequest::from_numbers(&request.to_numbers(Format::NEWEST)).unwrap().0;
        match self.object.ask(policy, &request, self.now) {
            ObjectReply::Decided(decided) => decided,
            other => panic!("{other:?}"),
        }
    }

    /// What is left for everybody else.
    fn remaining(&mut self, policy: &Arc<Policy>) -> Vec<u64> {
        let nothing = vec![0; policy.limits().len()];
        let decided = self.call(policy, Action::Look(Verb::Consume), nothing, None);
        decided.limits.iter().map(|limit| limit.remaining).collect()
    }

    /// Returns all leases as their timers would, once nobody asks.
    fn rest(&mut self, policy: &Arc<Policy>, leases: std::ops::Range<u64>) {
        self.now += 9_000;
        for id in leases {
            if let Return::Send(lease) = self.leases.end(OBJECT, policy, id, self.now) {
                self.send(policy, lease);
            }
        }
    }
}

fn of_one(limits: &str) -> Arc<Policy> {
    let policies = format!(r#"{{"p":{{"limits":[{limits}],"refusal_cache":"0s","lease":"10s"}}}}"#);
    Arc::clone(Policies::parse(&policies).unwrap().get("p").unwrap())
}

#[test]
fn a_policy_that_gains_or_loses_a_limit_is_asked_as_before() {
    let one = of_one(r#"{"name":"a","rate":1,"period":"1day","capacity":1000}"#);
    let two = of_one(
        r#"{"name":"b","rate":1,"period":"1day","capacity":900},{"name":"a","rate":1,"period":"1day","capacity":1000}"#,
    );
    let mut pair = Pair::new();
    for policy in [&one, &two, &one] {
        for _ in 0..20 {
            assert!(pair.ask(policy, 1));
        }
    }
    // Everything that is leased is withheld, under whatever numbers.
    assert!(pair.remaining(&one)[0] <= 1_000 - 60);
}

#[test]
fn what_is_leased_under_earlier_numbers_is_withheld_under_new_ones() {
    let (ten, eleven) = (10, 11);
    let policy = |capacity| of_one(&format!(r#"{{"name":"a","rate":10,"period":"1s","capacity":{capacity}}}"#));
    for crashes in [false, true] {
        let mut pair = Pair::new();
        for _ in 0..4 {
            assert!(pair.ask(&policy(ten), 1));
        }
        let lent = 10 - 4 - pair.remaining(&policy(ten))[0];
        assert!(lent > 0);
        if crashes {
            pair.object.crash();
        }
        pair.remaining(&policy(eleven));
        pair.now += 5_000;
        assert_eq!(pair.remaining(&policy(eleven)), [11 - lent]);
    }
}

#[test]
fn an_object_that_has_restarted_takes_back_what_is_returned() {
    let policy = of_one(r#"{"name":"a","rate":1,"period":"1day","capacity":1000,"write_ahead":0}"#);
    let mut pair = Pair::new();
    for _ in 0..20 {
        assert!(pair.ask(&policy, 1));
    }
    assert!(pair.remaining(&policy)[0] < 980);
    for _ in 0..3 {
        pair.object.crash();
        pair.rest(&policy, 0..50);
    }
    assert_eq!(pair.remaining(&policy), [980]);
}

#[test]
fn a_cost_that_fits_once_leases_are_returned_is_not_refused_for_ever() {
    let policy = of_one(r#"{"name":"a","rate":0,"period":"1s","capacity":10}"#);
    let mut pair = Pair::new();
    for _ in 0..4 {
        assert!(pair.ask(&policy, 1));
    }
    assert!(pair.remaining(&policy)[0] < 6);
    let decided = pair.call(&policy, Action::Take(Verb::Consume), vec![6], None);
    assert!(decided.limits[0].retry_at().is_some(), "{decided:?}");
    pair.rest(&policy, 0..50);
    assert!(pair.call(&policy, Action::Take(Verb::Consume), vec![6], None).decision().is_allow());
    let decided = pair.call(&policy, Action::Take(Verb::Consume), vec![1], None);
    assert_eq!(decided.limits[0].retry_at(), None, "now it is");
}

/// How often.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    asked: u64,
    calls: u64,
    granted: u64,
    granted_from_leases: u64,
    refused_from_leases: u64,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.calls += other.calls;
        self.granted += other.granted;
        self.granted_from_leases += other.granted_from_leases;
        self.refused_from_leases += other.refused_from_leases;
    }
}

struct World<'r> {
    random: &'r mut Random,
    /// The object's clock.
    now: i64,
    policy: Arc<Policy>,
    object: Object,
    /// What is left of one bucket that knows of every grant at once.
    reference: Vec<State>,
    isolates: Vec<Isolate>,
    network: Vec<Message>,
    /// Leases to be looked at: the isolate, the lease, and when.
    timers: Vec<(usize, u64, i64)>,
    ids: u64,
    seen: Seen,
}

struct Object {
    ledger: Ledger,
    storage: BTreeMap<String, Vec<u8>>,
    /// Rows that are not in the storage yet.
    on_the_way: Vec<(String, Vec<u8>, u32)>,
    random: u64,
}

struct Isolate {
    leases: Leases,
    ahead_ms: i64,
    /// It began to compute so long ago that its clock shows an earlier moment.
    stands_still_ms: i64,
    /// Changes when it crashes.
    life: u64,
}

#[derive(Clone)]
struct Message {
    isolate: usize,
    life: u64,
    called_at: i64,
    request: ObjectRequest,
    reply: Option<ObjectReply>,
}

impl<'r> World<'r> {
    fn new(random: &'r mut Random) -> Self {
        let policies = Policies::parse(&policy(random)).unwrap();
        let policy = Arc::clone(policies.get("p").unwrap());
        let isolates = (0..=random.below(6)).map(|_| Isolate {
            leases: Leases::default(),
            ahead_ms: signed(random.below(8_000)) - 4_000,
            stands_still_ms: 0,
            life: 0,
        });
        let isolates = isolates.collect();
        let object = Object { ledger: Ledger::new([], 7), storage: BTreeMap::new(), on_the_way: Vec::new(), random: 1 };
        let reference = policy.limits().iter().map(|limit| limit.limit().new_state(START, 7)).collect();
        let (network, timers, ids, seen) = Default::default();
        Self { random, now: START, policy, object, reference, isolates, network, timers, ids, seen }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..16 => {
                // A few isolates get most requests.
                let isolate = self.random.below(self.isolates.len());
                let isolate = if self.random.once_in(2) { 0 } else { isolate };
                for _ in 0..=self.random.below(8) {
                    self.ask(isolate);
                }
            }
            16..27 => (0..24).for_each(|_| self.deliver()),
            27..30 => self.ring(),
            30 if self.random.once_in(10) => self.object.crash(),
            31 if self.random.once_in(10) => {
                let isolate = self.random.below(self.isolates.len());
                self.isolates[isolate].leases = Leases::default();
                self.isolates[isolate].life += 1;
            }
            32 => {
                let isolate = self.random.below(self.isolates.len());
                self.isolates[isolate].stands_still_ms = signed(self.random.below(300));
                // Tokens that are still to come back are spent when a clock says that they have.
                if self.policy.refusal_cache_ms() == 0 && self.random.once_in(10) {
                    self.isolates[isolate].ahead_ms += signed(self.random.below(8_000)) - 400;
                }
            }
            33 => self.object.flush(self.now),
            34 if !self.network.is_empty() => {
                let lost = self.random.below(self.network.len());
                self.network.swap_remove(lost);
            }
            35 => {
                // Only requests: each call has one answer.
                let asked: Vec<_> = self.network.iter().filter(|message| message.reply.is_none()).cloned().collect();
                if let Some(again) = asked.get(self.random.below(asked.len().max(1))) {
                    self.network.push(again.clone());
                }
            }
            _ => self.now += signed([1, 10, 100, 1_000][self.random.below(4)] * (1 + self.random.below(3))),
        }
    }

    /// A request arrives at an isolate.
    fn ask(&mut self, isolate: usize) {
        self.seen.asked += 1;
        let policy = Arc::clone(&self.policy);
        let costs: Vec<_> = policy.limits().iter().map(|_| self.random.below(3) as u64).collect();
        let now = self.isolates[isolate].now(self.now);
        // Some must be asked each time.
        let lease = if self.random.once_in(10) {
            None
        } else {
            match self.isolates[isolate].leases.consume(OBJECT, &policy, &costs, now) {
                Leased::Ask(lease) => lease,
                Leased::Decided { decided, renewal } => {
                    if decided.decision().is_allow() {
                        self.seen.granted_from_leases += 1;
                        self.granted(&costs);
                    } else {
                        self.seen.refused_from_leases += 1;
                        let max_ms = signed(policy.refusal_cache_ms());
                        let retry_at = decided.limits.iter().filter_map(|limit| limit.retry_at()).max().unwrap();
                        let wait_ms = retry_at - decided.now;
                        assert!(0 < wait_ms && wait_ms <= max_ms + 300, "{decided:?}");
                    }
                    if let Some(lease) = renewal {
                        let nothing = vec![0; costs.len()];
                        self.call(isolate, Action::Look(Verb::Consume), nothing, Some(lease));
                    }
                    return;
                }
            }
        };
        self.call(isolate, Action::Take(Verb::Consume), costs, lease);
    }

    /// Asks the only isolate, and waits for all answers. Tells when to try again.
    fn refused_at(&mut self, costs: &[u64]) -> Option<i64> {
        let policy = Arc::clone(&self.policy);
        let mut decided = None;
        let (request, mut lease) = match self.isolates[0].leases.consume(OBJECT, &policy, costs, self.now) {
            Leased::Ask(lease) => (Some(costs.to_vec()), lease),
            Leased::Decided { decided: own, renewal } => {
                decided = Some(own);
                (None, renewal)
            }
        };
        if request.is_some() || lease.is_some() {
            let action = if request.is_some() { Action::Take(Verb::Consume) } else { Action::Look(Verb::Consume) };
            let costs = request.unwrap_or_else(|| vec![0; costs.len()]);
            let asked = ObjectRequest {
                action,
                request_id: None,
                costs: vec![costs],
                shadow_costs: Vec::new(),
                known: None,
                wants_notices: false,
                lease: lease.clone(),
            };
            let ObjectReply::Decided(answer) = self.object.ask(&policy, &asked, self.now) else { panic!("decided") };
            if let Some(lease) = lease.take() {
                let moments = (self.now, self.now);
                self.isolates[0].leases.answered(OBJECT, &policy, &lease, &answer, moments);
            }
            decided.get_or_insert(answer);
        }
        match decided.unwrap().decision() {
            Decision::Allow { .. } => None,
            Decision::Wait { retry_at } => Some(retry_at),
            never @ Decision::Never { .. } => panic!("{never:?}"),
        }
    }

    fn call(&mut self, isolate: usize, action: Action, costs: Vec<u64>, lease: Option<LeaseRequest>) {
        self.ids += 1;
        self.seen.calls += 1;
        let is_look = matches!(action, Action::Look(_));
        let id = u128::from(self.ids);
        let request = ObjectRequest {
            action,
            request_id: (!is_look).then_some(RequestId { id, fingerprint: 0, is_lasting: false }),
            costs: vec![costs],
            shadow_costs: Vec::new(),
            known: None,
            wants_notices: false,
            lease,
        };
        let request = ObjectRequest::from_numbers(&request.to_numbers(Format::NEWEST)).unwrap().0;
        let Isolate { life, .. } = self.isolates[isolate];
        let called_at = self.isolates[isolate].now(self.now);
        self.network.push(Message { isolate, life, called_at, request, reply: None });
    }

    /// Something that is on its way arrives: a request, or its answer.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        // Mostly in order: it is not often that one takes seconds.
        let index = if self.random.once_in(3) { self.random.below(self.network.len()) } else { 0 };
        let message = self.network.remove(index);
        let Message { isolate, life, called_at, ref request, ref reply } = message;
        let Some(reply) = reply else {
            let reply = self.object.ask(&self.policy, request, self.now);
            if let (Action::Take(_), ObjectReply::Decided(decided)) = (request.action, &reply)
                && decided.decision().is_allow()
                && !decided.is_replayed
            {
                self.granted(&request.costs[0]);
            }
            let (reply, _) = ObjectReply::from_numbers(&reply.to_numbers(Format::NEWEST)).unwrap();
            return self.network.push(Message { reply: Some(reply), ..message });
        };
        if self.isolates[isolate].life != life {
            return; // it has crashed meanwhile
        }
        // An answer sets the clock.
        self.isolates[isolate].stands_still_ms = 0;
        let answered_at = self.isolates[isolate].now(self.now);
        let (ObjectReply::Decided(decided), Some(lease)) = (reply, &request.lease) else { return };
        let leases = &mut self.isolates[isolate].leases;
        if let Some((id, wait_ms)) = leases.answered(OBJECT, &self.policy, lease, decided, (called_at, answered_at)) {
            self.timers.push((isolate, id, self.now + signed(wait_ms)));
        }
    }

    /// A timer of a lease rings.
    fn ring(&mut self) {
        let Some(index) = self.timers.iter().position(|(_, _, at)| *at <= self.now) else { return };
        let (isolate, id, _) = self.timers.swap_remove(index);
        let now = self.isolates[isolate].now(self.now);
        match self.isolates[isolate].leases.end(OBJECT, &self.policy, id, now) {
            Return::Over => {}
            Return::Wait(ms) => self.timers.push((isolate, id, self.now + signed(ms))),
            Return::Send(lease) => {
                let nothing = vec![0; self.policy.limits().len()];
                self.call(isolate, Action::Look(Verb::Consume), nothing, Some(lease));
            }
        }
    }

    /// So much was granted now.
    fn granted(&mut self, costs: &[u64]) {
        self.seen.granted += 1;
        let limits = self.policy.limits().iter().zip(&self.reference).zip(costs);
        let mut parts: Vec<_> = limits.map(|((limit, state), cost)| Part::new(limit.limit(), *state, *cost)).collect();
        let decision = decide_all(&mut parts, self.now, Verb::Consume);
        assert!(decision.is_allow(), "{costs:?} at {}: {decision:?}, {parts:?}", self.now - START);
        self.reference = parts.iter().map(|part| part.state).collect();
    }
}

impl Isolate {
    fn now(&self, now: i64) -> i64 {
        now + self.ahead_ms - self.stands_still_ms
    }
}

impl Object {
    fn new() -> Self {
        Self { ledger: Ledger::new([], 7), storage: BTreeMap::new(), on_the_way: Vec::new(), random: 1 }
    }

    fn ask(&mut self, policy: &Arc<Policy>, request: &ObjectRequest, now: i64) -> ObjectReply {
        let random = || {
            self.random += 1;
            Some(self.random)
        };
        let (reply, writes) = self.ledger.ask(std::slice::from_ref(policy), request, now, random).unwrap();
        self.write(writes);
        reply
    }

    fn flush(&mut self, now: i64) {
        let arrived: Vec<_> = self.on_the_way.drain(..).collect();
        for (name, row, ticket) in arrived {
            self.ledger.confirm(&name, ticket);
            self.storage.insert(name, row);
        }
        let writes = self.ledger.flush_idle(now);
        self.write(writes);
    }

    fn write(&mut self, writes: Writes) {
        for (name, row) in writes.before_reply {
            self.on_the_way.retain(|(late, ..)| *late != name);
            match row {
                Some(row) => _ = self.storage.insert(name, row),
                None => _ = self.storage.remove(&name),
            }
        }
        self.on_the_way.extend(writes.background.into_iter().map(|row| (row.name, row.row, row.ticket)));
    }

    /// Rows that are on their way are lost.
    fn crash(&mut self) {
        self.on_the_way.clear();
        self.ledger = Ledger::new(self.storage.clone(), 7);
    }
}

/// One to three limits.
fn policy(random: &mut Random) -> String {
    let limits = (0..=random.below(3)).map(|number| {
        let kind = ["token_bucket", "fixed_window"][random.below(2)];
        let (rate, period) = (1 + random.below(60), ["100ms", "1s", "7s"][random.below(3)]);
        let capacity = rate + random.below(60);
        let write_ahead = random.below(1 + capacity);
        format!(
            r#"{{"name":"{number}","kind":"{kind}","rate":{rate},"period":"{period}","capacity":{capacity},"write_ahead":{write_ahead}}}"#
        )
    });
    let limits = limits.collect::<Vec<_>>().join(",");
    let cache = ["0s", "200ms", "20s"][random.below(3)];
    let lease = ["500ms", "2s", "10s"][random.below(3)];
    let max = [r#","max_lease":3"#, ""][random.below(2)];
    format!(r#"{{"p":{{"limits":[{limits}],"refusal_cache":"{cache}","lease":"{lease}"{max}}}}}"#)
}

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
