//! The designs compared: Tollgate in its modes, and those that people write by hand.

use std::collections::BTreeMap;
use std::rc::Rc;

use tollgate::frontend::Call;

use crate::bill::Usage;
use crate::frontend::{Frontend, now};
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

/// Notices, bans and other kinds of limit, in the traces of [`PLAYED_BY_KINDS`].
pub(crate) const KINDS: &[(&str, Make)] = &[
    ("and notices", |trace| Box::new(Tollgate::new(trace, r#","notify":["50%","80%","100%","refused"]"#))),
    ("and bans", |trace| Box::new(Tollgate::new(trace, r#","ban":{"after":5,"within":"10m","for":"1m"}"#))),
    ("fixed window", |trace| Box::new(Tollgate::of(trace, &window(trace)))),
    ("calendar day", |trace| {
        let rate = trace.rate * (DAY_MS / trace.period_ms());
        Box::new(Tollgate::of(trace, &format!(r#""kind":"fixed_window","rate":{rate},"calendar":"day""#)))
    }),
    ("window from first use", |trace| {
        Box::new(Tollgate::of(trace, &format!(r#"{},"offset":"first_use""#, window(trace))))
    }),
    ("rolling window", |trace| Box::new(Tollgate::of(trace, &window(trace).replace("fixed", "rolling")))),
    ("slots", |trace| Box::new(Slots::new(trace))),
];

/// By the beginnings of their names.
pub(crate) const PLAYED_BY_KINDS: [&str; 4] = ["steady", "regular", "seldom", "attack"];

pub(crate) type Make = fn(&Trace) -> Box<dyn Design>;

const DAY_MS: u64 = 86_400_000;

/// A fixed window instead of the trace's bucket.
fn window(Trace { rate, period, .. }: &Trace) -> String {
    format!(r#""kind":"fixed_window","rate":{rate},"period":"{period}""#)
}

/// The real frontends and objects. Calls take no time here.
struct Tollgate {
    policies: Rc<str>,
    isolates: Vec<Frontend>,
    objects: BTreeMap<String, KeyObject>,
    /// Calls with leases: when to check them, and how many timers were set before.
    timers: BTreeMap<(i64, usize), Call>,
    timers_set: usize,
}

impl Tollgate {
    fn new(trace: &Trace, fields: &str) -> Self {
        let Trace { rate, period, capacity, .. } = trace;
        Self::of(trace, &format!(r#""rate":{rate},"period":"{period}","capacity":{capacity}{fields}"#))
    }

    /// Under a policy with these fields.
    fn of(trace: &Trace, fields: &str) -> Self {
        let policies = format!(r#"{{"p":{{{fields}}}}}"#);
        let isolates = (0..trace.isolates).map(|isolate| Frontend::new(&policies, isolate as u64)).collect();
        Self { policies: policies.into(), isolates, objects: BTreeMap::new(), timers: BTreeMap::new(), timers_set: 0 }
    }

    /// Makes all object calls.
    fn carry_out(&mut self, call: &mut Call, at: i64, usage: &mut Usage) {
        while let Some(next) = call.next(now(at)) {
            let new = || KeyObject::new(&self.policies);
            let object = self.objects.entry(call.object(next.object).to_owned()).or_insert_with(new);
            object.decide(call, &next, at, usage);
        }
    }

    /// Answers a request to an isolate.
    fn request(&mut self, isolate: usize, (url, body): (&str, &str), at: i64, usage: &mut Usage) -> Answer {
        self.ring(at, usage);
        let mut call = self.isolates[isolate].ask(url, body, at);
        self.carry_out(&mut call, at, usage);
        let reply = call.reply(now(at));
        let answer = Answer { status: reply.status, body: reply.body() };
        if let Some(renewal) = call.renewal(now(at)) {
            self.carry_out_in_background(renewal, at, usage);
        }
        self.keep_lease(call, at);
        assert!(matches!(answer.status, 200 | 429), "not decided: {}", answer.body);
        answer
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
        let body = format!(r#"{{"policy":"p","key":"{key}"}}"#);
        self.request(isolate, ("/v1/consume", &body), at, usage).status == 200
    }

    fn end(&mut self, usage: &mut Usage) {
        self.ring(i64::MAX, usage);
        for object in self.objects.values_mut() {
            object.pass(i64::MAX / 4, usage);
            assert_eq!(object.alarm_at(), None, "a key that is not used is forgotten");
        }
    }
}

struct Answer {
    status: u16,
    body: String,
}

/// As many at once as the trace's bucket holds, each for half a second: a reservation, and its settlement.
struct Slots {
    tollgate: Tollgate,
    /// When work ends, in which isolate and with which request, and how much was begun before.
    ends: BTreeMap<(i64, usize), (usize, String)>,
    begun: usize,
}

const WORK_MS: i64 = 500;

impl Slots {
    fn new(trace: &Trace) -> Self {
        let fields = format!(r#""kind":"slots","capacity":{},"reservation_ttl":"10s""#, trace.capacity);
        Self { tollgate: Tollgate::of(trace, &fields), ends: BTreeMap::new(), begun: 0 }
    }

    fn settle(&mut self, until: i64, usage: &mut Usage) {
        while let Some(end) = self.ends.first_entry().filter(|end| end.key().0 <= until) {
            let ((at, _), (isolate, body)) = end.remove_entry();
            self.tollgate.request(isolate, ("/v1/settle", &body), at, usage);
        }
    }
}

impl Design for Slots {
    fn ask(&mut self, Request { at, key, isolate }: Request, usage: &mut Usage) -> bool {
        self.settle(at, usage);
        let body = format!(r#"{{"policy":"p","key":"{key}","mode":"reserve"}}"#);
        let answer = self.tollgate.request(isolate, ("/v1/consume", &body), at, usage);
        if answer.status != 200 {
            return false;
        }
        let id = answer.body.split(r#""reservation":""#).nth(1).and_then(|rest| rest.split('"').next());
        let id = id.expect("a reservation has an id");
        let settlement = format!(r#"{{"policy":"p","key":"{key}","reservation":"{id}"}}"#);
        self.ends.insert((at + WORK_MS, self.begun), (isolate, settlement));
        self.begun += 1;
        true
    }

    fn end(&mut self, usage: &mut Usage) {
        self.settle(i64::MAX, usage);
        self.tollgate.end(usage);
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
