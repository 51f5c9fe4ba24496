//! One key's budget in several objects: never more than one bucket would have granted, however often the number of shards changes or the
//! key's override, and refused only when all shards together have little.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::edge::{Failure, Outcome, ShardCalls, ShardLevels};
use tollgate::key_hash::KeyHasher;
use tollgate::ledger::{Ledger, Writes};
use tollgate::limit::{Carry, Decision, State, Verb};
use tollgate::policy::overrides::{History, InForce, Overrides, Selector, WrittenOverride};
use tollgate::policy::{Cause, Policy};
use tollgate::protocol::{Action, Decided, Format, Known, ObjectReply, ObjectRequest, RequestId};

use super::asked::request;
use super::random::{self, Random};

const START: i64 = 1_700_000_000_000;
const KEY: &[u8] = b"alice";
const PHASE: u64 = 7;

/// How long the objects remember an id.
const TTL_MS: i64 = 3_600_000;

#[test]
fn shards_grant_no_more_than_one_bucket_would() {
    let mut seen = Seen::default();
    random::cases(5_000, |random| {
        let mut world = World::new(random);
        for _ in 0..150 {
            world.step();
        }
        seen.add(&world.seen);
    });
    println!("{seen:?}");
    if seen.granted > 100_000 {
        assert!(seen.changes * 100 > seen.granted && seen.refused * 10 > seen.granted, "too few to show anything");
    }
}

#[derive(Clone, Debug, Default)]
struct Seen {
    granted: u64,
    refused: u64,
    /// Of those, for which one bucket would have had enough.
    refused_by_shards: u64,
    failed: u64,
    changes: u64,
    refunds: u64,
    reused: u64,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.refused_by_shards += other.refused_by_shards;
        self.failed += other.failed;
        self.changes += other.changes;
        self.refunds += other.refunds;
        self.reused += other.reused;
    }
}

struct World<'r> {
    random: &'r mut Random,
    now: i64,
    /// The policy without the key's override.
    base: Arc<Policy>,
    history: History,
    overrides: Overrides,
    /// The latest change.
    as_of: i64,
    /// What is in force for the key.
    policy: Arc<Policy>,
    shards: BTreeMap<usize, Object>,
    /// What one object would have.
    whole: Vec<State>,
    levels: ShardLevels,
    ids: u128,
    /// What was given back under a client's id.
    refunds: Vec<Refund>,
    seen: Seen,
}

/// A refund or a reset under an `Idempotency-Key`, which is repeated.
struct Refund {
    id: RequestId,
    verb: Verb,
    cost: u64,
    /// When the first shard did it, and over how many shards.
    done: Option<(i64, usize)>,
    /// The parts of the other shards, and of the first.
    given: BTreeMap<usize, u64>,
    /// Whether the number of shards was always the same.
    is_plain: bool,
}

#[derive(Default)]
struct Object {
    storage: BTreeMap<String, Vec<u8>>,
    ledger: Option<Ledger>,
}

impl<'r> World<'r> {
    fn new(random: &'r mut Random) -> Self {
        let policy = Arc::new(policy(random).in_force_since(START));
        let whole = policy.limits().iter().map(|limit| limit.limit().new_state(START, PHASE)).collect();
        let (history, overrides, shards, levels, ids, refunds, seen) = Default::default();
        let base = Arc::clone(&policy);
        let (now, as_of) = (START, START);
        Self { random, now, base, history, overrides, as_of, policy, shards, whole, levels, ids, refunds, seen }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 => self.change(),
            1..3 => {
                let shard = self.random.below(16);
                self.object(shard).ledger = None; // it crashes, or is evicted
            }
            3 => self.clean(),
            4 => self.look(),
            5 if self.random.once_in(4) => self.reset(),
            5 if self.random.once_in(20) => self.now += TTL_MS,
            12 | 13 => self.refund(),
            14 if self.random.once_in(3) => self.reuse(),
            6..12 => self.now += [1, 10, 100, 1_000, 10_000][self.random.below(5)] * [1, 2, 3][self.random.below(3)],
            _ => self.consume(),
        }
    }

    fn change(&mut self) {
        self.now += 1;
        self.as_of = self.now;
        self.seen.changes += 1;
        if self.random.once_in(3) {
            let plan = |text: String| WrittenOverride::parse("it", &text).unwrap().plan;
            let written = (!self.random.once_in(3)).then(|| written_override(self.random));
            self.history.push(self.now, written.map(|text| InForce { plan: plan(text), until: None }));
            let mut records = Vec::new();
            Selector::key("p", KeyHasher::default().hash(KEY)).record(&self.history.encode(), &mut records);
            self.overrides.update(&records).unwrap();
        } else {
            let carry = if self.random.once_in(6) { Carry::Reset } else { Carry::AsIs };
            self.base = Arc::new(policy(self.random).succeeding(&self.base, self.now, carry));
        }
        let next = self.overrides.apply(&self.base, KEY, self.now);
        let carry = next.timeline().carry();
        if next.timeline().since() < self.now {
            // What is in force is as before.
            let numbers =
                |policy: &Policy| policy.limits().iter().map(|limit| *limit.limit().config()).collect::<Vec<_>>();
            let count = |policy: &Policy| policy.shards().len().max(1);
            assert_eq!((numbers(&next), count(&next)), (numbers(&self.policy), count(&self.policy)));
            self.policy = next;
            return;
        }
        let both = self.policy.limits().iter().zip(next.limits()).zip(&mut self.whole);
        for ((old, new), state) in both {
            // A full bucket of one object is forgotten sooner or later, and a new one has what new ones have.
            let is_new = next.shards().is_empty() && old.limit().full_at(state, self.now) == Some(self.now);
            let new = new.limit();
            let carried = new.carry(old.limit(), *state, carry, self.now, PHASE);
            let states = [Some(carried), is_new.then(|| new.new_state(self.now, PHASE))];
            *state = states.into_iter().flatten().max_by_key(|state| new.remaining(state, self.now)).unwrap();
        }
        self.policy = next;
    }

    /// An alarm. It goes by the version under which the object was asked last, so that is to be the latest.
    fn clean(&mut self) {
        let (shard, now, parts) = (self.random.below(16), self.now, self.parts());
        let requests = self.requests(Action::Look(Verb::Consume), 0, &parts);
        if let (Some(part), Some(request)) = (parts.get(shard), requests.get(shard)) {
            self.object(shard).ask(part, request, now);
        }
        let object = self.object(shard);
        let writes = object.ledger().clean(now);
        object.write(writes);
    }

    fn object(&mut self, shard: usize) -> &mut Object {
        self.shards.entry(shard).or_default()
    }

    /// The policies of the shards, or that of the only object.
    fn parts(&self) -> Vec<Arc<Policy>> {
        match self.policy.shards() {
            [] => vec![Arc::clone(&self.policy)],
            shards => shards.to_vec(),
        }
    }

    fn requests(&mut self, action: Action, cost: u64, parts: &[Arc<Policy>]) -> Vec<ObjectRequest> {
        self.ids += 1;
        let id = RequestId { id: self.ids, fingerprint: 0, ttl_ms: 0, by_grant: false };
        let (as_of, count) = (self.as_of, self.policy.limits().len());
        let request_id = (!matches!(action, Action::Look(_))).then_some(id);
        let request = |part: &Arc<Policy>| ObjectRequest {
            request_id,
            known: Some(Known { as_of, ids: vec![part.id()] }),
            ..request(action, vec![vec![cost; count]])
        };
        parts.iter().map(request).collect()
    }

    fn consume(&mut self) {
        let (cost, parts) = (1 + self.random.below(4) as u64, self.parts());
        let requests = self.requests(Action::Take(Verb::Consume), cost, &parts);
        let names: Vec<_> = (0..parts.len()).map(name).collect();
        let order = self.levels.order(names.iter().map(String::as_str).zip(&parts), self.random.next(), self.now);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..parts.len()).collect::<Vec<_>>(), "each once");
        let before = self.levels_of(&parts);
        let mut calls = ShardCalls::one_by_one(requests, &order, vec![None; parts.len()], self.now);
        self.run(&mut calls, &parts, cost);
        assert!(calls.is_over());
        match calls.outcome() {
            Some(Outcome::Decided(replies)) => {
                let [Ok(ObjectReply::Decided(decided))] = replies.as_slice() else { panic!("{replies:?}") };
                if decided.decision().is_allow() {
                    return;
                }
                self.seen.refused += 1;
                let is_scarce = |levels: &Vec<u64>| levels.iter().any(|&tokens| tokens < cost);
                assert!(before.iter().all(is_scarce), "refused {cost} with {before:?}");
                self.check_retry(decided, cost, &parts);
                let whole = self.policy.limits().iter().zip(&self.whole);
                let has_enough = whole.clone().all(|(limit, state)| limit.limit().remaining(state, self.now) >= cost);
                self.seen.refused_by_shards += u64::from(has_enough);
            }
            Some(Outcome::Failed { .. }) => self.seen.failed += 1,
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Nobody else asking, it passes at the moment that was said, and not before.
    fn check_retry(&mut self, decided: &Decided, cost: u64, parts: &[Arc<Policy>]) {
        let Decision::Wait { retry_at } = decided.decision() else { return };
        let would_pass = |world: &mut Self, at: i64| {
            let requests = world.requests(Action::Look(Verb::Consume), cost, parts);
            parts.iter().zip(requests).enumerate().any(|(shard, (part, request))| {
                let ObjectReply::Decided(decided) = world.object(shard).ask(part, &request, at) else { panic!() };
                decided.decision().is_allow()
            })
        };
        assert!(!would_pass(self, retry_at - 1) && would_pass(self, retry_at), "not at {retry_at}");
    }

    /// What each shard has of each limit.
    fn levels_of(&mut self, parts: &[Arc<Policy>]) -> Vec<Vec<u64>> {
        let requests = self.requests(Action::Look(Verb::Consume), 0, parts);
        let (now, asked) = (self.now, parts.iter().zip(requests).enumerate());
        let levels = asked.map(|(shard, (part, request))| {
            let ObjectReply::Decided(decided) = self.object(shard).ask(part, &request, now) else { panic!() };
            decided.limits.iter().map(|limit| limit.remaining).collect()
        });
        levels.collect()
    }

    /// What all shards have of each limit.
    fn total(&mut self, parts: &[Arc<Policy>]) -> Vec<u64> {
        let levels = self.levels_of(parts);
        (0..self.policy.limits().len()).map(|limit| levels.iter().map(|levels| levels[limit]).sum()).collect()
    }

    /// A look is of the whole: never more than one bucket would have.
    fn look(&mut self) {
        let parts = self.parts();
        let requests = self.requests(Action::Look(Verb::Consume), 1, &parts);
        let expected = self.total(&parts);
        let mut calls = ShardCalls::all(requests, self.now);
        self.run(&mut calls, &parts, 0);
        let Some(Outcome::Decided(replies)) = calls.outcome() else { return };
        let [Ok(ObjectReply::Decided(decided))] = replies.as_slice() else { panic!("{replies:?}") };
        let found: Vec<_> = decided.limits.iter().map(|limit| limit.remaining).collect();
        assert_eq!(found, expected);
        for ((limit, state), found) in self.policy.limits().iter().zip(&self.whole).zip(found) {
            assert!(found <= limit.limit().remaining(state, self.now), "{found} is more than one bucket would have");
        }
    }

    /// All shards are full again, if all were reached.
    fn reset(&mut self) {
        let parts = self.parts();
        let requests = self.requests(Action::Take(Verb::Reset), 0, &parts);
        for (limit, state) in self.policy.limits().iter().zip(&mut self.whole) {
            *state = limit.limit().decide(*state, self.now, 0, Verb::Reset).1;
        }
        let mut calls = ShardCalls::first_then_others(requests, 0, self.now);
        self.run(&mut calls, &parts, 0);
        if let Some(Outcome::Decided(_)) = calls.outcome() {
            let capacities: Vec<_> = self.policy.limits().iter().map(|limit| limit.limit().config().capacity).collect();
            assert_eq!(self.total(&parts), capacities);
        }
    }

    /// Gives back under an id of a client, or repeats that. Whatever has become of the number of shards and of earlier tries, no part is
    /// given twice, and nothing more than was asked.
    fn refund(&mut self) {
        let index = self.random.below(self.refunds.len() + 1);
        if index == self.refunds.len() {
            self.ids += 1;
            let id = RequestId {
                id: self.ids << 64,
                fingerprint: self.random.next(),
                ttl_ms: RequestId::USUAL_TTL_MS,
                by_grant: false,
            };
            let verb = if self.random.once_in(4) { Verb::Reset } else { Verb::Refund };
            let cost = if verb == Verb::Reset { 0 } else { self.random.below(40) as u64 };
            self.refunds.push(Refund { id, verb, cost, done: None, given: BTreeMap::new(), is_plain: true });
        }
        let parts = self.parts();
        let Refund { id, verb, cost, done, .. } = self.refunds[index];
        let mut requests = self.requests(Action::Take(verb), cost, &parts);
        for request in &mut requests {
            request.request_id = Some(id);
        }
        let mut calls = ShardCalls::first_then_others(requests, id.fingerprint, self.now);
        let was_done = done.is_some_and(|(at, _)| self.now < at + TTL_MS);
        self.run(&mut calls, &parts, 0);
        let (outcome, refund) = (calls.outcome(), &mut self.refunds[index]);
        let Some((_, count)) = refund.done else { return };
        refund.is_plain &= count == parts.len();
        if let Some(Outcome::Decided(replies)) = outcome {
            let [Ok(ObjectReply::Decided(decided))] = replies.as_slice() else { panic!("{replies:?}") };
            assert!(decided.is_replayed || !was_done); // or a call was repeated at once
            if refund.is_plain {
                assert_eq!(refund.given.len(), count, "each shard has a part");
                assert_eq!(refund.given.values().sum::<u64>(), cost, "all of it");
            }
            self.seen.refunds += 1;
        }
    }

    /// The first shard finds out that an id belongs to another request, and nothing is done.
    fn reuse(&mut self) {
        let index = self.random.below(self.refunds.len().max(1));
        let now = self.now;
        let Some(refund) = self.refunds.get(index) else { return };
        let (id, verb) = (RequestId { fingerprint: refund.id.fingerprint ^ 1, ..refund.id }, refund.verb);
        if refund.done.is_none_or(|(at, _)| now >= at + TTL_MS) {
            return;
        }
        let parts = self.parts();
        let mut requests = self.requests(Action::Take(verb), 1, &parts);
        for request in &mut requests {
            request.request_id = Some(id);
        }
        let mut calls = ShardCalls::first_then_others(requests, id.fingerprint, now);
        let call = calls.next(now).unwrap();
        let reply = self.object(0).ask(&parts[0], &call.request, now);
        assert_eq!(reply, ObjectReply::RequestIdReused);
        calls.answered(0, Ok(reply.clone()));
        assert_eq!(calls.outcome(), Some(&Outcome::Decided(vec![Ok(reply)])));
        assert!(calls.is_over() && calls.next(now).is_none(), "no other shard is asked");
        self.seen.reused += 1;
    }

    /// Records what a shard has done for the first time, and gives as much to the one bucket.
    fn given(&mut self, request: &ObjectRequest, shard: usize, count: usize) {
        let (Action::Take(verb), Some(id)) = (request.action, request.request_id.filter(RequestId::is_lasting)) else {
            return;
        };
        let (now, cost) = (self.now, request.costs[0][0]);
        let refund = self.refunds.iter_mut().find(|refund| refund.id.id >> 64 == id.id >> 64).unwrap();
        if shard == 0 {
            assert!(refund.done.is_none_or(|(at, _)| now >= at + TTL_MS), "again within the hour");
            (refund.done, refund.is_plain) = (Some((now, count)), true);
            refund.given.clear();
        }
        let (_, spread) = refund.done.unwrap();
        assert!(shard < spread, "shard {shard} was not there");
        assert_eq!(refund.given.insert(shard, cost), None, "shard {shard} has given it before");
        assert!(refund.given.values().sum::<u64>() <= refund.cost, "more than was asked");
        for (limit, state) in self.policy.limits().iter().zip(&mut self.whole) {
            *state = limit.limit().decide(*state, now, cost, verb).1;
        }
    }

    /// Makes the calls. One in forty is lost, on its way or with its answer.
    fn run(&mut self, calls: &mut ShardCalls, parts: &[Arc<Policy>], cost: u64) {
        while let Some(call) = calls.next(self.now) {
            let is_lost = self.random.once_in(40);
            let failure = Failure { cause: Cause::Timeout, is_retryable: self.random.once_in(2) };
            if is_lost && self.random.once_in(2) {
                calls.answered(call.object, Err(failure));
                continue;
            }
            let (part, now) = (&parts[call.object], self.now);
            let object = self.object(call.object);
            let reply = object.ask(part, &call.request, now);
            let (reply, _) = ObjectReply::from_text(&reply.to_text(Format::NEWEST)).unwrap();
            let ObjectReply::Decided(decided) = &reply else { panic!("{reply:?}") };
            self.levels.keep(&name(call.object), part, decided, now);
            if call.request.action == Action::Take(Verb::Consume)
                && decided.decision().is_allow()
                && !decided.is_replayed
            {
                self.seen.granted += 1;
                self.grant(cost, call.object);
            }
            if matches!(call.request.action, Action::Take(Verb::Refund | Verb::Reset)) && !decided.is_replayed {
                self.given(&call.request, call.object, parts.len());
            }
            calls.answered(call.object, if is_lost { Err(failure) } else { Ok(reply) });
        }
    }

    fn grant(&mut self, cost: u64, shard: usize) {
        for (limit, state) in self.policy.limits().iter().zip(&mut self.whole) {
            let decision = limit.limit().consume(state, self.now, cost);
            assert!(decision.is_allow(), "shard {shard} granted {cost}, where one bucket would say {decision:?}");
        }
    }
}

impl Object {
    fn ledger(&mut self) -> &mut Ledger {
        self.ledger.get_or_insert_with(|| Ledger::new(self.storage.clone(), PHASE))
    }

    fn ask(&mut self, policy: &Arc<Policy>, request: &ObjectRequest, now: i64) -> ObjectReply {
        let (reply, writes) = self.ledger().ask(&[Arc::clone(policy)], request, now, || Some(1)).unwrap();
        self.write(writes);
        reply
    }

    fn write(&mut self, writes: Writes) {
        if writes.clear {
            self.storage.clear();
        }
        for background in writes.background {
            self.ledger().confirm(&background.name, background.ticket);
            self.storage.insert(background.name, background.row);
        }
        for (name, row) in writes.before_reply {
            match row {
                Some(row) => _ = self.storage.insert(name, row),
                None => _ = self.storage.remove(&name),
            }
        }
    }
}

/// The name of a shard's object.
fn name(shard: usize) -> String {
    format!("{shard:032x}{:032x}", 0)
}

/// Two limits, in one to sixteen shards.
fn policy(random: &mut Random) -> Policy {
    let shards = [1, 1, 2, 3, 4, 8, 16][random.below(7)];
    let limits = ["a", "b"].map(|name| {
        let (rate, period) = (random.below(30), ["100ms", "1s", "7s"][random.below(3)]);
        let capacity = 16 + random.below(80);
        let write_ahead = random.below(20).min(capacity);
        format!(
            r#"{{"name":"{name}","rate":{rate},"period":"{period}","capacity":{capacity},"write_ahead":{write_ahead}}}"#
        )
    });
    Policy::parse("p", &format!(r#"{{"limits":[{}],"shards":{shards}}}"#, limits.join(","))).unwrap()
}

/// Other numbers of one of the limits or of both, also such as no policy with shards may have.
fn written_override(random: &mut Random) -> String {
    let (name, rate, capacity) = (["a", "b"][random.below(2)], random.below(30), 1 + random.below(80));
    let numbers = match random.below(6) {
        0 => return format!(r#"{{"policy":"p","key":"alice","multiple":{}}}"#, [0.1, 0.5, 2.0, 3.0][random.below(4)]),
        1 => format!(r#""period":"1s","capacity":{capacity},"initial":{}"#, random.below(capacity + 1)),
        2 => format!(r#""period":"1s","capacity":{capacity},"max_debt":9"#),
        _ => format!(r#""period":"1s","capacity":{capacity}"#),
    };
    format!(r#"{{"policy":"p","key":"alice","limits":[{{"name":"{name}","rate":{rate},{numbers}}}]}}"#)
}
