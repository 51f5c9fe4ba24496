//! Who answers: Tollgate in its modes, and the designs that people write by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollgate::edge::{Leased, LocalState, ObjectCall, Outcome, Return, ShardCalls, ShardLevels};
use tollgate::limit::Verb;
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, LeaseRequest, ObjectReply, ObjectRequest};

use crate::bill::Usage;
use crate::object::{KeyObject, Presence};
use crate::split_mix::Random;
use crate::traces::{Request, Trace};

/// A way to answer the requests of a trace.
pub(crate) trait Design {
    /// Answers a request; returns whether it was granted.
    fn ask(&mut self, request: Request, usage: &mut Usage) -> bool;

    /// Nothing more is asked: alarms ring until there are none.
    fn end(&mut self, _usage: &mut Usage) {}
}

/// The columns of the table: their names, and what makes them.
pub(crate) const DESIGNS: &[(&str, Make)] = &[
    ("Tollgate", |trace| Box::new(Tollgate::new(trace, ""))),
    ("without refusal cache", |trace| Box::new(Tollgate::new(trace, r#","refusal_cache":"0s""#))),
    ("and each change written", |trace| Box::new(Tollgate::new(trace, r#","refusal_cache":"0s","write_ahead":0"#))),
    ("leases", |trace| Box::new(Tollgate::new(trace, r#","lease":"2s""#))),
    ("leases of 20", |trace| Box::new(Tollgate::new(trace, r#","lease":"10s","max_lease":20"#))),
    ("16 shards", |trace| Box::new(Sharded::new(trace, 16))),
    ("row per call", |trace| Box::new(RowPerCall::new(trace))),
    ("memory only", |trace| Box::new(MemoryOnly::new(trace))),
];

type Make = fn(&Trace) -> Box<dyn Design>;

/// The real frontends and objects. Calls take no time here.
struct Tollgate {
    policies: [Arc<Policy>; 1],
    isolates: Vec<LocalState>,
    objects: BTreeMap<usize, KeyObject>,
    /// Leases to be looked at: when, the isolate, the key and the lease.
    timers: BTreeSet<(i64, usize, usize, u64)>,
}

impl Tollgate {
    fn new(trace: &Trace, fields: &str) -> Self {
        let Trace { rate, period, capacity, isolates, .. } = trace;
        let policy = format!(r#"{{"p":{{"rate":{rate},"period":"{period}","capacity":{capacity}{fields}}}}}"#);
        let policies = Policies::parse(&policy).expect("a policy");
        let policy = Arc::clone(policies.get("p").expect("it is there"));
        let isolates = (0..*isolates).map(|_| LocalState::default()).collect();
        Self { policies: [policy], isolates, objects: BTreeMap::new(), timers: BTreeSet::new() }
    }

    /// Asks the object, and takes over the lease that comes with the answer.
    fn call(
        &mut self,
        Request { at, key, isolate }: Request,
        (action, cost): (Action, u64),
        lease: Option<LeaseRequest>,
        usage: &mut Usage,
    ) -> Decided {
        let request = ObjectRequest {
            action,
            request_id: None,
            costs: vec![vec![cost]],
            shadow_costs: vec![],
            known: None,
            wants_notices: false,
            lease,
        };
        let object = self.objects.entry(key).or_insert_with(KeyObject::new);
        let reply = object.ask(&self.policies, &request, at, usage);
        let ObjectReply::Decided(decided) = reply else { panic!("not an answer: {reply:?}") };
        if let Some(lease) = &request.lease {
            let ([policy], known) = (&self.policies, &mut self.isolates[isolate]);
            if let Some((id, wait_ms)) = known.leased(&name_of(key), policy, lease, &decided, (at, at)) {
                self.timers.insert((at.saturating_add_unsigned(wait_ms), isolate, key, id));
            }
        }
        decided
    }

    /// Timers of leases up to `now`.
    fn ring(&mut self, now: i64, usage: &mut Usage) {
        while let Some((at, isolate, key, id)) = self.timers.first().copied().filter(|(at, ..)| *at <= now) {
            self.timers.pop_first();
            let [policy] = &self.policies;
            match self.isolates[isolate].end(&name_of(key), policy, id, at) {
                Return::Over => {}
                Return::Wait(ms) => _ = self.timers.insert((at.saturating_add_unsigned(ms), isolate, key, id)),
                Return::Send(lease) => {
                    _ = self.call(Request { at, key, isolate }, (Action::Look(Verb::Consume), 0), Some(lease), usage);
                }
            }
        }
    }
}

impl Design for Tollgate {
    fn ask(&mut self, request: Request, usage: &mut Usage) -> bool {
        let Request { at, key, isolate } = request;
        self.ring(at, usage);
        let name = name_of(key);
        let ([policy], known) = (&self.policies, &mut self.isolates[isolate]);
        if let Some(Leased { decided, renewal }) = known.consume(&name, policy, &[1], at) {
            let is_granted = decided.decision().is_allow();
            if renewal.is_some() {
                self.call(request, (Action::Look(Verb::Consume), 0), renewal, usage);
            }
            return is_granted;
        }
        let bound = known.bound(&name, [(&**policy, &[1][..])].into_iter(), Verb::Consume, true, at);
        if bound.is_some_and(|bound| bound.is_refused) {
            return false;
        }
        let lease = known.ask(&name, policy, &[1], at);
        let decided = self.call(request, (Action::Take(Verb::Consume), 1), lease, usage);
        let ([policy], known) = (&self.policies, &mut self.isolates[isolate]);
        let is_granted = decided.decision().is_allow();
        known.answered(&name, [&**policy].into_iter(), (is_granted, &decided), (at, at));
        is_granted
    }

    fn end(&mut self, usage: &mut Usage) {
        self.ring(i64::MAX, usage);
        for object in self.objects.values_mut() {
            object.pass(i64::MAX / 4, usage);
            assert_eq!(object.alarm_at(), None, "a key that is not used is forgotten");
        }
    }
}

fn name_of(key: usize) -> String {
    format!("{key:032x}")
}

/// Tollgate, with the budget of each key in several objects.
struct Sharded {
    policy: Arc<Policy>,
    isolates: Vec<(ShardLevels, LocalState)>,
    /// Those of the first key, then those of the second, ...
    objects: BTreeMap<usize, KeyObject>,
    random: Random,
}

impl Sharded {
    fn new(trace: &Trace, shards: u64) -> Self {
        let Trace { rate, period, capacity, isolates, .. } = trace;
        let shards = shards.min(*capacity);
        let json = format!(r#"{{"rate":{rate},"period":"{period}","capacity":{capacity},"shards":{shards}}}"#);
        let policy = Arc::new(Policy::parse("p", &json).expect("a policy"));
        let isolates = (0..*isolates).map(|_| <(ShardLevels, LocalState)>::default()).collect();
        Self { policy, isolates, objects: BTreeMap::new(), random: Random(7) }
    }
}

impl Design for Sharded {
    fn ask(&mut self, Request { at, key, isolate }: Request, usage: &mut Usage) -> bool {
        let shards = self.policy.shards();
        let names: Vec<_> = (0..shards.len()).map(|index| name_of(key * shards.len() + index)).collect();
        let (levels, local_state) = &mut self.isolates[isolate];
        let order = levels.order(names.iter().map(String::as_str).zip(shards), self.random.next(), at);
        let known = names.iter().zip(shards).map(|(name, policy)| {
            let bound = local_state.bound(name, [(&**policy, &[1][..])].into_iter(), Verb::Consume, false, at)?;
            bound.is_refused.then_some(bound.decided)
        });
        let known = known.collect();
        let request = ObjectRequest {
            action: Action::Take(Verb::Consume),
            request_id: None,
            costs: vec![vec![1]],
            shadow_costs: vec![],
            known: None,
            wants_notices: false,
            lease: None,
        };
        let mut calls = ShardCalls::one_by_one(vec![request; shards.len()], &order, known, at);
        while let Some(ObjectCall { object: index, request, .. }) = calls.next(at) {
            let (name, policy) = (&names[index], &shards[index]);
            let object = self.objects.entry(key * shards.len() + index).or_insert_with(KeyObject::new);
            let reply = object.ask(&[Arc::clone(policy)], &request, at, usage);
            let ObjectReply::Decided(decided) = &reply else { panic!("not an answer: {reply:?}") };
            levels.keep(name, policy, decided, at);
            let answer = (decided.decision().is_allow(), decided);
            local_state.answered(name, [&**policy].into_iter(), answer, (at, at));
            calls.answered(index, Ok(reply));
        }
        let Some(Outcome::Decided(replies)) = calls.outcome() else { panic!("not decided: {calls:?}") };
        matches!(replies.as_slice(), [Ok(ObjectReply::Decided(decided))] if decided.decision().is_allow())
    }

    fn end(&mut self, usage: &mut Usage) {
        for object in self.objects.values_mut() {
            object.pass(i64::MAX / 4, usage);
        }
    }
}

/// A token bucket in floating point, whose row is read and written with each call, as in most tutorials. It is never deleted.
struct RowPerCall {
    bucket: Float,
    objects: BTreeMap<usize, (Presence, Option<(f64, i64)>)>,
}

impl RowPerCall {
    fn new(trace: &Trace) -> Self {
        Self { bucket: Float::of(trace), objects: BTreeMap::new() }
    }
}

impl Design for RowPerCall {
    fn ask(&mut self, Request { at, key, .. }: Request, usage: &mut Usage) -> bool {
        let (presence, row) = self.objects.entry(key).or_insert_with(|| (Presence::new(), None));
        let (is_granted, level) = self.bucket.decide(*row, at);
        usage.calls += 1;
        usage.rows_read += u64::from(row.is_some());
        usage.rows_written += 1;
        *row = Some((level, at));
        presence.happens(at, true, None, usage);
        is_granted
    }
}

/// The same in memory alone: a key that is evicted has everything again.
struct MemoryOnly {
    bucket: Float,
    objects: BTreeMap<usize, (Presence, Option<(f64, i64)>)>,
}

impl MemoryOnly {
    fn new(trace: &Trace) -> Self {
        Self { bucket: Float::of(trace), objects: BTreeMap::new() }
    }
}

impl Design for MemoryOnly {
    fn ask(&mut self, Request { at, key, .. }: Request, usage: &mut Usage) -> bool {
        let (presence, bucket) = self.objects.entry(key).or_insert_with(|| (Presence::new(), None));
        let (is_granted, level) = self.bucket.decide(bucket.filter(|_| presence.is_in_memory(at)), at);
        usage.calls += 1;
        *bucket = Some((level, at));
        presence.happens(at, false, None, usage);
        is_granted
    }
}

struct Float {
    per_ms: f64,
    capacity: f64,
}

impl Float {
    fn of(trace: &Trace) -> Self {
        Self { per_ms: trace.rate as f64 / trace.period_ms() as f64, capacity: trace.capacity as f64 }
    }

    fn decide(&self, bucket: Option<(f64, i64)>, now: i64) -> (bool, f64) {
        let level =
            bucket.map_or(self.capacity, |(level, at)| (level + (now - at) as f64 * self.per_ms).min(self.capacity));
        if level >= 1.0 { (true, level - 1.0) } else { (false, level) }
    }
}
