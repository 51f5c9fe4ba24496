//! The designs compared: Tollgate in its modes, and those that people write by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::edge::ObjectCall;
use tollgate::frontend::Call;
use tollgate::policy::Policies;
use tollgate::protocol::Rows;

use crate::bill::Usage;
use crate::frontend::{Frontend, now, policies_of};
use crate::object::{KeyObject, Presence};
use crate::traces::{Request, Trace};

/// A way to answer the requests of a trace.
pub(crate) trait Design {
    /// Answers a request; returns whether it was granted.
    fn ask(&mut self, request: Request, usage: &mut Usage) -> bool;

    /// No more requests: alarms fire until none is left.
    fn end(&mut self, _usage: &mut Usage) {}
}

/// The columns of the table: their names and constructors.
pub(crate) const DESIGNS: &[(&str, Make)] = &[
    ("Tollgate", |trace| Box::new(Tollgate::new(trace, ""))),
    ("without refusal cache", |trace| Box::new(Tollgate::new(trace, r#","refusal_cache":"0s""#))),
    ("and each change written", |trace| Box::new(Tollgate::new(trace, r#","refusal_cache":"0s","write_ahead":0"#))),
    ("leases", |trace| Box::new(Tollgate::new(trace, r#","lease":"2s""#))),
    ("leases of 24", |trace| Box::new(Tollgate::new(trace, r#","lease":"10s","max_lease":24"#))),
    ("16 shards", |trace| Box::new(Tollgate::new(trace, &format!(r#","shards":{}"#, trace.capacity.min(16))))),
    ("row per call", |trace| Box::new(RowPerCall::new(trace))),
    ("memory only", |trace| Box::new(MemoryOnly::new(trace))),
];

type Make = fn(&Trace) -> Box<dyn Design>;

/// The real frontends and objects. Calls take no time here.
struct Tollgate {
    deployed: Arc<Policies>,
    isolates: Vec<Frontend>,
    objects: BTreeMap<String, KeyObject>,
    /// Calls with leases: when to check them, and how many timers were set before.
    timers: BTreeMap<(i64, usize), Call>,
    timers_set: usize,
}

impl Tollgate {
    fn new(trace: &Trace, fields: &str) -> Self {
        let Trace { rate, period, capacity, isolates, .. } = trace;
        let policy = format!(r#"{{"p":{{"rate":{rate},"period":"{period}","capacity":{capacity}{fields}}}}}"#);
        let deployed = Arc::new(Policies::parse(&policy).expect("a policy"));
        let isolates = (0..*isolates).map(|isolate| Frontend::new(&deployed, isolate as u64)).collect();
        Self { deployed, isolates, objects: BTreeMap::new(), timers: BTreeMap::new(), timers_set: 0 }
    }

    /// Makes all object calls.
    fn carry_out(&mut self, call: &mut Call, at: i64, usage: &mut Usage) {
        while let Some(ObjectCall { object: index, request, .. }) = call.next(now(at)) {
            let policies = policies_of(call, index, &self.deployed);
            let object = self.objects.entry(call.object(index).to_owned()).or_insert_with(KeyObject::new);
            let reply = object.ask(&policies, &request, at, usage);
            call.answered(index, Some((reply, Rows::default())), now(at));
        }
    }

    /// Makes a call about leases, for which no caller waits.
    fn carry_out_in_background(&mut self, mut call: Call, at: i64, usage: &mut Usage) {
        self.carry_out(&mut call, at, usage);
        self.keep_lease(call, at);
    }

    /// Sets the timer of the lease in the answer, if any.
    fn keep_lease(&mut self, call: Call, at: i64) {
        if let Some(ms) = call.lease_ms() {
            self.timers.insert((at.saturating_add_unsigned(ms), self.timers_set), call);
            self.timers_set += 1;
        }
    }

    /// Timers of leases up to `now`.
    fn ring(&mut self, until: i64, usage: &mut Usage) {
        while let Some(timer) = self.timers.first_entry().filter(|timer| timer.key().0 <= until) {
            let ((at, _), mut call) = timer.remove_entry();
            if let Some(ended) = call.end_lease(now(at)) {
                self.carry_out_in_background(ended, at, usage);
            }
            self.keep_lease(call, at);
        }
    }
}

impl Design for Tollgate {
    fn ask(&mut self, Request { at, key, isolate }: Request, usage: &mut Usage) -> bool {
        self.ring(at, usage);
        let mut call = self.isolates[isolate].ask("/v1/consume", &format!(r#"{{"policy":"p","key":"{key}"}}"#), at);
        self.carry_out(&mut call, at, usage);
        let status = call.reply(now(at)).status;
        if let Some(renewal) = call.renewal(now(at)) {
            self.carry_out_in_background(renewal, at, usage);
        }
        self.keep_lease(call, at);
        assert!(matches!(status, 200 | 429), "not decided: {status}");
        status == 200
    }

    fn end(&mut self, usage: &mut Usage) {
        self.ring(i64::MAX, usage);
        for object in self.objects.values_mut() {
            object.pass(i64::MAX / 4, usage);
            assert_eq!(object.alarm_at(), None, "a key that is not used is forgotten");
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

/// The same in memory alone: an evicted key is full again.
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
