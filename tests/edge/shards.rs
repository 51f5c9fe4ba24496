//! One key's budget in several objects, as a frontend asks them: never more than one bucket would have granted, however often the number of
//! shards changes or the key's override, and refused only when all shards together have little.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use tollgate::api::Reply;
use tollgate::edge::{Failure, PolicySnapshot};
use tollgate::frontend::{Asked, Call, Isolate, Service, Settings, Step};
use tollgate::key_hash::KeyHasher;
use tollgate::limit::{Carry, Decision, State, Verb};
use tollgate::policy::overrides::{History, InForce, Overrides, Selector, WrittenOverride};
use tollgate::policy::{Cause, Policies, Policy};
use tollgate::protocol::{Action, Decided, Definitions, Known, ObjectReply, ObjectRequest, Rows, Update, Versioned};

use super::asked::request;
use super::frontend::{Told, now as moment, path_of};
use super::pairs::Mechanism;
use super::random::{self, Random};
use super::stored::Stored;

const START: i64 = 1_700_000_000_000;
const KEY: &str = "alice";
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
        assert!(seen.refused_from_memory * 20 > seen.refused, "too few to show anything");
        assert!(seen.retries * 5 > seen.refused, "too few to show anything");
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
    /// Refused requests for which a shard was not asked.
    refused_from_memory: u64,
    /// Moments at which a refused request would have passed.
    retries: u64,
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
        self.refused_from_memory += other.refused_from_memory;
        self.retries += other.retries;
    }
}

struct World<'r> {
    random: &'r mut Random,
    now: i64,
    service: Service,
    /// The policies sent to the objects.
    definitions: Definitions,
    /// The policy without the key's override.
    base: Arc<Policy>,
    history: History,
    overrides: Overrides,
    /// The latest change.
    as_of: i64,
    /// The policy in force for the key.
    policy: Arc<Policy>,
    shards: BTreeMap<usize, Stored>,
    /// The level of a single object.
    whole: Vec<State>,
    /// When an answer was last lost, or an object restarted from its rows: then it may have less than the frontend knows.
    lost_at: Option<i64>,
    /// A refund or reset under a client's id.
    refunds: Vec<Refund>,
    seen: Seen,
}

/// A refund or a reset under an `Idempotency-Key`, which is repeated.
struct Refund {
    verb: Verb,
    cost: u64,
    /// When the first shard did it, and over how many shards.
    done: Option<(i64, usize)>,
    /// The parts of the other shards, and of the first.
    given: BTreeMap<usize, u64>,
    /// Whether the number of shards was always the same.
    is_plain: bool,
}

impl<'r> World<'r> {
    fn new(random: &'r mut Random) -> Self {
        let written = policy(random);
        let policy = Arc::new(Policy::parse("p", &written).unwrap().in_force_since(START));
        let whole = policy.limits().iter().map(|limit| limit.limit().new_state(START, PHASE)).collect();
        let (definitions, history, overrides, shards, lost_at, refunds, seen) = Default::default();
        let base = Arc::clone(&policy);
        let (now, as_of, service) = (START, START, service(&written));
        let mut world = Self {
            random,
            now,
            service,
            definitions,
            base,
            history,
            overrides,
            as_of,
            policy,
            shards,
            whole,
            lost_at,
            refunds,
            seen,
        };
        world.update(Some(&written), Vec::new());
        world
    }

    /// The frontend learns of a change at once.
    fn update(&mut self, policy: Option<&str>, overrides: Vec<u8>) {
        let timeline = self.base.timeline().to_json();
        let versioned =
            |text: &str| ("p".to_owned(), Some(Versioned { text: text.to_owned(), timeline: timeline.clone() }));
        let policies = policy.into_iter().map(versioned).collect();
        let update = Update { as_of: self.as_of, born_at: START, policies, overrides, ..Update::default() };
        assert!(self.service.poll(moment(self.now)).is_some());
        assert_eq!(self.service.updated(&update.to_text(), moment(self.now)), Ok(None));
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 => self.change(),
            1..3 => {
                let shard = self.random.below(16);
                self.object(shard).crash(usize::MAX); // or is evicted
                self.lost_at = Some(self.now);
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
            self.history.push(self.now, written.map(|text| InForce { plan: plan(text), until: None }), None);
            let mut records = Vec::new();
            Selector::key("p", KeyHasher::default().hash(KEY.as_bytes())).record(&self.history.encode(), &mut records);
            self.overrides.update(&records).unwrap();
            self.update(None, records);
        } else {
            let carry = if self.random.once_in(6) { Carry::Reset } else { Carry::AsIs };
            let written = policy(self.random);
            self.base = Arc::new(Policy::parse("p", &written).unwrap().succeeding(&self.base, self.now, carry));
            self.update(Some(&written), Vec::new());
        }
        let next = self.overrides.apply(&self.base, KEY.as_bytes(), self.now);
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
        let is_shared = [&self.policy, &next].iter().any(|policy| policy.shards().len() > 1);
        let carry = if is_shared && carry == Carry::Additive { Carry::AsIs } else { carry };
        let both = self.policy.limits().iter().zip(next.limits()).zip(&mut self.whole);
        for ((old, new), state) in both {
            // A full bucket of one object is forgotten sooner or later, and a new one has what new ones have. Of other numbers it may have
            // an account with any level.
            let is_full = next.shards().is_empty() && old.limit().full_at(state, self.now) == Some(self.now);
            let is_new = is_full || carry == Carry::Additive;
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
        if let Some(part) = parts.get(shard) {
            self.looked(shard, part, 0, now);
        }
        self.object(shard).kept().clean(now).unwrap();
    }

    fn object(&mut self, shard: usize) -> &mut Stored {
        self.shards.entry(shard).or_insert_with(|| Stored::new(PHASE))
    }

    /// The policies of the shards, or that of the only object.
    fn parts(&self) -> Vec<Arc<Policy>> {
        match self.policy.shards() {
            [] => vec![Arc::clone(&self.policy)],
            shards => shards.to_vec(),
        }
    }

    /// A shard's answer to a look.
    fn looked(&mut self, shard: usize, part: &Arc<Policy>, cost: u64, now: i64) -> Decided {
        let known = Some(Known { as_of: self.as_of, ids: vec![part.id()] });
        let costs = vec![vec![cost; part.limits().len()]];
        let look = ObjectRequest { known, ..request(Action::Look(Verb::Consume), costs) };
        match self.object(shard).ask(&[Arc::clone(part)], &look, now, || Some(1)) {
            ObjectReply::Decided(decided) => decided,
            other => panic!("{other:?}"),
        }
    }

    /// A request for this cost of each limit arrives at the frontend, which replies at once if no cost like this can pass.
    fn ask(&mut self, url: &str, cost: Option<u64>, idempotency_key: Option<&str>) -> Result<Call, Reply> {
        let cost = cost.map(|cost| format!(r#","cost":{cost}"#)).unwrap_or_default();
        let body = format!(r#"{{"policy":"p","key":"{KEY}"{cost}}}"#);
        let asked = Asked { url, body: body.as_bytes(), idempotency_key, ..Asked::default() };
        let Self { service, random, .. } = self;
        match service.ask(&asked, moment(self.now), &mut || Some(random.next())) {
            Step::Call(call) => Ok(*call),
            Step::Reply(reply) => Err(reply),
            Step::Administer { .. } | Step::InspectKey(_) => panic!("{body}"),
        }
    }

    fn consume(&mut self) {
        let (cost, parts) = (1 + self.random.below(4) as u64, self.parts());
        let before = self.levels_of(&parts);
        let is_scarce = |levels: &Vec<u64>| levels.iter().any(|&tokens| tokens < cost);
        let call = match self.ask("/v1/consume", Some(cost), None) {
            Ok(call) => call,
            // It is more than any shard can have.
            Err(reply) => {
                self.seen.refused += 1;
                return assert!(before.iter().all(is_scarce), "{} with {before:?}", reply.body());
            }
        };
        let granted = self.seen.granted;
        let (reply, asked) = self.run(call, &parts, None);
        let distinct: BTreeSet<_> = asked.iter().copied().collect();
        assert_eq!(distinct.len(), asked.len(), "each once");
        if reply.status == 503 {
            return self.seen.failed += 1;
        }
        let told = Told::by(&reply);
        if told.allowed {
            return assert_eq!(self.seen.granted, granted + 1, "a shard has granted it");
        }
        self.seen.refused += 1;
        if asked.len() < parts.len() {
            self.seen.refused_from_memory += 1;
            self.shards.values_mut().for_each(|shard| shard.answered_from(&self.policy, Some("cache")));
        }
        let may_remember = self.policy.frontend().refusal_cache_ms > 0;
        assert!(may_remember || asked.len() == parts.len(), "not all were asked: {asked:?}");
        assert!(before.iter().all(is_scarce), "refused {cost} with {before:?}");
        self.check_retry(&told, cost, &parts);
        let whole = self.policy.limits().iter().zip(&self.whole);
        let has_enough = whole.clone().all(|(limit, state)| limit.limit().remaining(state, self.now) >= cost);
        self.seen.refused_by_shards += u64::from(has_enough);
    }

    /// Without other requests, it passes at the reported moment, and not before. It may pass later if the frontend has refused by what it
    /// remembers of a shard that has less since.
    fn check_retry(&mut self, told: &Told, cost: u64, parts: &[Arc<Policy>]) {
        let Decision::Wait { retry_at } = told.decision() else { return };
        let would_pass = |world: &mut Self, at: i64| {
            let mut shards = parts.iter().enumerate();
            shards.any(|(shard, part)| world.looked(shard, part, cost, at).decision().is_allow())
        };
        assert!(!would_pass(self, retry_at - 1), "before {retry_at}");
        let memory_ms = i64::try_from(self.policy.frontend().refusal_cache_ms).unwrap();
        if self.lost_at.is_none_or(|at| self.now - at >= memory_ms) {
            self.seen.retries += 1;
            assert!(would_pass(self, retry_at), "not at {retry_at}");
        }
    }

    /// Tokens left in each shard for each limit.
    fn levels_of(&mut self, parts: &[Arc<Policy>]) -> Vec<Vec<u64>> {
        let now = self.now;
        let levels = parts
            .iter()
            .enumerate()
            .map(|(shard, part)| self.looked(shard, part, 0, now).limits.iter().map(|limit| limit.remaining).collect());
        levels.collect()
    }

    /// Tokens left in all shards for each limit.
    fn total(&mut self, parts: &[Arc<Policy>]) -> Vec<u64> {
        let levels = self.levels_of(parts);
        (0..self.policy.limits().len()).map(|limit| levels.iter().map(|levels| levels[limit]).sum()).collect()
    }

    /// A look covers all shards: never more than one bucket would have.
    fn look(&mut self) {
        let parts = self.parts();
        let expected = self.total(&parts);
        let call = self.ask("/v1/peek", None, None).unwrap();
        let (reply, _) = self.run(call, &parts, None);
        if reply.status == 503 {
            return;
        }
        let found: Vec<_> = Told::by(&reply).limits.iter().map(|limit| limit.remaining).collect();
        assert_eq!(found, expected);
        for ((limit, state), found) in self.policy.limits().iter().zip(&self.whole).zip(found) {
            assert!(found <= limit.limit().remaining(state, self.now), "{found} is more than one bucket would have");
        }
    }

    /// All shards are full again, if all were reached.
    fn reset(&mut self) {
        let parts = self.parts();
        for (limit, state) in self.policy.limits().iter().zip(&mut self.whole) {
            *state = limit.limit().decide(*state, self.now, 0, Verb::Reset).1;
        }
        let call = self.ask("/v1/reset", None, None).unwrap();
        let (reply, _) = self.run(call, &parts, None);
        if reply.status != 503 {
            let capacities: Vec<_> = self.policy.limits().iter().map(|limit| limit.limit().config().capacity).collect();
            assert_eq!(self.total(&parts), capacities, "{}", reply.body());
        }
    }

    /// Gives back under a client's id, or repeats that. However the number of shards changes and earlier attempts end, no part is
    /// given twice, and no more than requested.
    fn refund(&mut self) {
        let index = self.random.below(self.refunds.len() + 1);
        if index == self.refunds.len() {
            let verb = if self.random.once_in(4) { Verb::Reset } else { Verb::Refund };
            let cost = if verb == Verb::Reset { 0 } else { self.random.below(40) as u64 };
            self.refunds.push(Refund { verb, cost, done: None, given: BTreeMap::new(), is_plain: true });
        }
        let parts = self.parts();
        let Refund { verb, cost, done, .. } = self.refunds[index];
        let was_done = done.is_some_and(|(at, _)| self.now < at + TTL_MS);
        let cost_asked = (verb == Verb::Refund).then_some(cost);
        let call = self.ask(path_of(verb).0, cost_asked, Some(&index.to_string())).unwrap();
        let (reply, _) = self.run(call, &parts, Some(index));
        let refund = &mut self.refunds[index];
        let Some((_, count)) = refund.done else { return };
        refund.is_plain &= count == parts.len();
        if reply.status != 503 {
            let told = Told::by(&reply);
            assert!(told.replayed || !was_done); // or a call was repeated at once
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
        if refund.done.is_none_or(|(at, _)| now >= at + TTL_MS) {
            return;
        }
        let (cost, parts) = (refund.cost + 1, self.parts());
        let mut call = self.ask("/v1/refund", Some(cost), Some(&index.to_string())).unwrap();
        let next = call.next(moment(now)).unwrap();
        assert_eq!(next.object, 0);
        let reply = self.object(0).ask(&parts[..1], &next.request, now, || Some(1));
        assert_eq!(reply, ObjectReply::RequestIdReused);
        call.answered(0, Some((reply, Rows::default())), moment(now));
        assert!(call.is_decided() && call.next(moment(now)).is_none(), "no other shard is asked");
        assert_eq!(call.reply(moment(now)).status, 422);
        self.seen.reused += 1;
    }

    /// Records what a shard has done for the first time of such a refund, and gives as much to the one bucket.
    fn given(&mut self, refund: usize, request: &ObjectRequest, verb: Verb, (shard, count): (usize, usize)) {
        let (now, cost) = (self.now, request.costs[0][0]);
        let refund = &mut self.refunds[refund];
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

    /// Makes the calls of a request, perhaps of that refund. One in forty is lost, or its answer is. Returns the reply, and which
    /// shards were asked for the first time.
    fn run(&mut self, mut call: Call, parts: &[Arc<Policy>], refund: Option<usize>) -> (Reply, Vec<usize>) {
        let now = moment(self.now);
        let mut asked = Vec::new();
        while let Some(next) = call.next(now) {
            let shard = call.object(next.object).split_once('-').map_or(0, |(_, shard)| shard.parse().unwrap());
            let sent = call.sent(&next);
            assert_eq!(sent.names, parts[shard].wire_name());
            if !next.is_repeated && !next.dialect.has_definitions {
                asked.push(shard);
            }
            let is_lost = self.random.once_in(40);
            let failure = Failure { cause: Cause::Timeout, is_retryable: self.random.once_in(2) };
            if is_lost {
                self.object(shard).happened(Mechanism::Lost);
            }
            if is_lost && self.random.once_in(2) {
                call.failed(next.object, failure, now);
                continue;
            }
            let Self { shards, definitions, .. } = self;
            let object = shards.entry(shard).or_insert_with(|| Stored::new(PHASE));
            let answer = object.decide(&parts[shard..=shard], sent, definitions, now.at);
            match &answer.0 {
                ObjectReply::PolicyUnknown => {
                    call.answered(next.object, Some(answer), now);
                    continue;
                }
                ObjectReply::Decided(decided) if decided.decision().is_allow() && !decided.is_replayed => {
                    match (next.request.action, refund) {
                        (Action::Take(Verb::Consume), _) => {
                            self.seen.granted += 1;
                            self.grant(next.request.costs[0][0], shard);
                        }
                        (Action::Take(verb), Some(refund)) => {
                            self.given(refund, &next.request, verb, (shard, parts.len()));
                        }
                        _ => {}
                    }
                }
                ObjectReply::Decided(_) => {}
                reply => panic!("{reply:?}"),
            }
            if is_lost {
                self.lost_at = Some(self.now);
                call.failed(next.object, failure, now);
            } else {
                call.answered(next.object, Some(answer), now);
            }
        }
        assert!(call.is_decided());
        (call.reply(now).clone(), asked)
    }

    fn grant(&mut self, cost: u64, shard: usize) {
        for (limit, state) in self.policy.limits().iter().zip(&mut self.whole) {
            let decision = limit.limit().consume(state, self.now, cost);
            assert!(decision.is_allow(), "shard {shard} granted {cost}, where one bucket would say {decision:?}");
        }
    }
}

/// A frontend of a deployment with this policy, and with a registry.
fn service(policy: &str) -> Service {
    let deployed = format!(r#"{{"p":{policy}}}"#);
    let policies = Arc::new(Policies::parse(&deployed).unwrap());
    let registry = Some(RefCell::new(PolicySnapshot::new(&deployed, &policies)));
    let isolate = Isolate::default();
    Service::new(Ok(Settings { registry, ..Settings::trusting(policies) }), Rc::new(isolate))
}

/// Two limits, in one to sixteen shards.
fn policy(random: &mut Random) -> String {
    let shards = [1, 1, 2, 3, 4, 8, 16][random.below(7)];
    let limits = ["a", "b"].map(|name| {
        let (rate, period) = (random.below(30), ["100ms", "1s", "7s"][random.below(3)]);
        let capacity = 16 + random.below(80);
        let write_ahead = random.below(20).min(capacity);
        format!(
            r#"{{"name":"{name}","rate":{rate},"period":"{period}","capacity":{capacity},"write_ahead":{write_ahead}}}"#
        )
    });
    let cache = ["0s", "1s"][random.below(2)];
    format!(r#"{{"limits":[{}],"shards":{shards},"refusal_cache":"{cache}"}}"#, limits.join(","))
}

/// Other numbers of one or both limits, even such as no policy with shards may have.
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
