//! Frontends that lease tokens of one key from its object and remember its refusals, each in its own isolate, and what one bucket
//! in memory would have granted. The laws choose the order of events.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use tollgate::edge::Failure;
use tollgate::frontend::{Asked, Call, Left, Now, Service, Step};
use tollgate::limit::{Decision, Part, State, Verb, decide_all};
use tollgate::policy::{Cause, Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectReply, ObjectRequest, Rows};

use super::asked::request;
use super::frontend::{self, Told, cost_of, object_of, path_of};
use super::pairs::Mechanism;
use super::random::Random;
use super::stored::Stored;

pub(crate) const START: i64 = 1_700_000_000_000;
const KEY: &str = "alice";

/// Counts of events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) asked: u64,
    pub(crate) calls: u64,
    pub(crate) granted: u64,
    pub(crate) granted_from_leases: u64,
    pub(crate) refused_from_leases: u64,
    pub(crate) refused_from_memory: u64,
    /// Of these, those that the object would have granted, or sooner: something has been given back lately.
    pub(crate) refused_wrongly: u64,
    /// Those whose wait was compared with that of one bucket.
    pub(crate) checked_alone: u64,
    pub(crate) rows: u64,
    /// Tokens of the first limit: leased, spent, and returned in time.
    pub(crate) leased: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.calls += other.calls;
        self.granted += other.granted;
        self.granted_from_leases += other.granted_from_leases;
        self.refused_from_leases += other.refused_from_leases;
        self.refused_from_memory += other.refused_from_memory;
        self.refused_wrongly += other.refused_wrongly;
        self.checked_alone += other.checked_alone;
        self.rows += other.rows;
        self.leased += other.leased;
        self.spent += other.spent;
        self.returned += other.returned;
    }
}

pub(crate) struct World<'r> {
    pub(crate) random: &'r mut Random,
    /// The object's clock.
    pub(crate) now: i64,
    pub(crate) policy: Arc<Policy>,
    pub(crate) object: Object,
    /// How frontends call it.
    name: String,
    /// One bucket that learns of every grant at once.
    pub(crate) reference: Vec<State>,
    pub(crate) isolates: Vec<Isolate>,
    pub(crate) network: Vec<Message>,
    /// Leases to be checked.
    pub(crate) timers: Vec<Timer>,
    /// Calls that wait for an answer, by the number of their message.
    waiting: BTreeMap<u64, Waiting>,
    messages: u64,
    came_back: Vec<CameBack>,
    /// When the object has decided for which isolate.
    decided: Vec<(i64, usize)>,
    /// When an answer was last lost, or had the same millisecond as another: then memories may miss grants.
    pub(crate) lost_at: Option<i64>,
    /// Minimum and maximum latency of a message.
    pub(crate) takes_ms: (usize, usize),
    pub(crate) seen: Seen,
}

/// Tokens came back to the object.
struct CameBack {
    at: i64,
    from: usize,
    /// The call, if they are not from a lease.
    call: Option<u128>,
}

pub(crate) struct Object {
    pub(crate) stored: Stored,
    random: u64,
    /// Tokens of the leases that it has given, and until when they can be returned.
    open: BTreeMap<u64, (u64, i64)>,
}

pub(crate) struct Isolate {
    service: Service,
    policies: Arc<Policies>,
    /// When the answers it has received were decided.
    heard_of: Vec<i64>,
    /// The calls that gave something back and that it knows to be over.
    heard: Vec<u128>,
    pub(crate) ahead_ms: i64,
    /// How long ago it began to compute: its clock still shows that moment.
    pub(crate) stands_still_ms: i64,
    /// Changes when it crashes.
    life: u64,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
}

#[derive(Clone)]
pub(crate) struct Message {
    number: u64,
    isolate: usize,
    life: u64,
    /// If the law chooses the moment.
    pub(crate) arrives_at: i64,
    request: String,
    pub(crate) reply: Option<String>,
}

/// A call that waits for the answer of the object.
struct Waiting {
    call: Call,
    purpose: Purpose,
    /// Of a request that takes or gives back.
    taking: Option<u128>,
}

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// For a caller, who gets the reply.
    Reply,
    /// For a lease only.
    Lease,
}

/// A lease to be checked.
pub(crate) struct Timer {
    isolate: usize,
    life: u64,
    pub(crate) at: i64,
    call: Call,
}

impl<'r> World<'r> {
    pub(crate) fn new(random: &'r mut Random, policies: &str, isolates: usize) -> Self {
        let policies = Arc::new(Policies::parse(policies).unwrap());
        let policy = Arc::clone(policies.get("p").unwrap());
        let isolates = (0..isolates).map(|_| {
            let ahead_ms = signed(random.below(8_000)) - 4_000;
            Isolate::new(Arc::clone(&policies), ahead_ms)
        });
        let isolates = isolates.collect();
        let object = Object::new();
        let reference = policy.limits().iter().map(|limit| limit.limit().new_state(START, 7)).collect();
        let (network, timers, waiting, messages, came_back, decided, lost_at, takes_ms, seen) = Default::default();
        Self {
            random,
            now: START,
            policy,
            object,
            name: object_of(KEY),
            reference,
            isolates,
            network,
            timers,
            waiting,
            messages,
            came_back,
            decided,
            lost_at,
            takes_ms,
            seen,
        }
    }

    /// A request to consume arrives at an isolate; if it may not lease, it must reach the object each time.
    pub(crate) fn ask(&mut self, isolate: usize, costs: &[u64], may_lease: bool) {
        self.seen.asked += 1;
        self.isolates[isolate].asked += 1;
        let more = if may_lease { "" } else { r#","snapshot":true"# };
        self.request(isolate, Verb::Consume, costs, more);
    }

    /// Another request arrives at an isolate, which only its object can grant.
    pub(crate) fn ask_object(&mut self, isolate: usize, verb: Verb, costs: &[u64]) {
        self.request(isolate, verb, costs, "");
    }

    fn request(&mut self, isolate: usize, verb: Verb, costs: &[u64], more: &str) {
        let (path, terms) = path_of(verb);
        let cost =
            if verb == Verb::Reset { String::new() } else { format!(r#","cost":{}"#, cost_of(&self.policy, costs)) };
        let body = format!(r#"{{"policy":"p","key":"{KEY}"{cost}{terms}{more}}}"#);
        let asked = Asked { url: path, body: body.as_bytes(), ..Asked::default() };
        let now = self.isolates[isolate].now(self.now);
        let Self { isolates, random, .. } = self;
        match isolates[isolate].service.ask(&asked, now, &mut || Some(random.next())) {
            Step::Call(call) if call.is_decided() => self.decided_without_object(isolate, *call, costs, verb),
            Step::Call(call) => self.go_on(isolate, *call, Purpose::Reply),
            Step::Reply(reply) => {
                let decision = self.decide_by_reference(costs, verb).0;
                assert!(matches!(decision, Decision::Never { .. }), "{}: {decision:?}", reply.body());
            }
            Step::Administer { .. } | Step::InspectKey(_) => panic!("{body}"),
        }
    }

    /// The frontend knows the answer.
    fn decided_without_object(&mut self, isolate: usize, mut call: Call, costs: &[u64], verb: Verb) {
        let now = self.isolates[isolate].now(self.now);
        assert_eq!(call.next(now), None);
        let told = Told::by(call.reply(now));
        self.object.stored.answered_from(&self.policy, told.source.as_deref());
        match told.source.as_deref() {
            Some("lease") if told.allowed => {
                self.seen.granted_from_leases += 1;
                self.seen.spent += costs[0];
                self.granted(isolate, costs);
            }
            Some("lease") => {
                self.seen.refused_from_leases += 1;
                let max_ms = signed(self.policy.frontend().refusal_cache_ms);
                let wait_ms = told.retry_after_ms.map_or(0, signed);
                assert!(0 < wait_ms && wait_ms <= max_ms + 300, "{told:?}");
            }
            Some("cache") => self.refused_from_memory(isolate, &told, costs, verb),
            _ => panic!("{told:?}"),
        }
        if let Some(renewal) = call.renewal(now) {
            self.go_on(isolate, renewal, Purpose::Lease);
        }
        assert_eq!(call.lease_ms(), None);
    }

    /// Checks a refusal from memory: the object would refuse, too, and for as long, unless tokens have been given back within the time
    /// of [`Policy::refusal_cache_ms`] without the isolate knowing.
    fn refused_from_memory(&mut self, isolate: usize, told: &Told, costs: &[u64], verb: Verb) {
        self.seen.refused_from_memory += 1;
        let said = told.decision();
        assert!(!told.allowed, "nothing is granted from memory: {told:?}");
        assert!(told.now <= self.now, "a wait is not reported too short: {told:?}");
        let look = request(Action::Look(verb), vec![costs.to_vec()]);
        let reply = self.object.ask(slice::from_ref(&self.policy), &look, self.now, &mut Seen::default());
        let ObjectReply::Decided(decided) = reply else { panic!("{reply:?}") };
        let is_right = match (said, decided.decision()) {
            (Decision::Wait { retry_at: said }, Decision::Wait { retry_at }) => said <= retry_at,
            // It was when the isolate began to compute.
            (Decision::Wait { retry_at }, Decision::Allow { .. }) => retry_at <= self.now,
            (_, Decision::Allow { .. }) | (Decision::Never { .. }, Decision::Wait { .. }) => false,
            _ => true,
        };
        if !is_right {
            let Isolate { heard, stands_still_ms, .. } = &self.isolates[isolate];
            let max_ms = signed(self.policy.frontend().refusal_cache_ms) + stands_still_ms;
            let is_excuse = |back: &CameBack| {
                let is_heard = back.call.is_none_or(|call| heard.contains(&call));
                // Which of several answers of a millisecond is the latest is not known.
                let is_alone = self.decided.iter().filter(|decided| **decided == (back.at, isolate)).count() == 1;
                self.now - back.at < max_ms && (back.from != isolate || !is_heard || !is_alone)
            };
            assert!(self.came_back.iter().any(is_excuse), "{said:?} of {costs:?} from memory, but {decided:?}");
            self.seen.refused_wrongly += 1;
        }
        self.assert_is_long_enough(costs, verb, said);
    }

    /// With no other isolate, if all answers arrived in time, a wait from memory includes all grants.
    fn assert_is_long_enough(&mut self, costs: &[u64], verb: Verb, said: Decision) {
        let max_ms = signed(self.policy.frontend().refusal_cache_ms) + 300;
        let is_all_heard = self.network.is_empty() && self.lost_at.is_none_or(|at| self.now - at > max_ms);
        if self.isolates.len() == 1
            && is_all_heard
            && let Decision::Wait { retry_at: said } = said
        {
            self.seen.checked_alone += 1;
            match self.decide_by_reference(costs, verb).0 {
                Decision::Wait { retry_at } => assert!(retry_at <= said, "{said} is short of {retry_at}"),
                Decision::Allow { .. } => {}
                never @ Decision::Never { .. } => panic!("{never:?}"),
            }
        }
    }

    /// Makes the call that is due, or replies.
    fn go_on(&mut self, isolate: usize, mut call: Call, purpose: Purpose) {
        let now = self.isolates[isolate].now(self.now);
        if let Some(next) = call.next(now) {
            assert_eq!((call.count(), call.object(next.object)), (1, &*self.name));
            self.messages += 1;
            self.seen.calls += 1;
            let (number, life, arrives_at) = (self.messages, self.isolates[isolate].life, self.arrives_at());
            let request = call.sent(&next).request;
            self.network.push(Message { number, isolate, life, arrives_at, request, reply: None });
            let taking = next.request.request_id.map(|request_id| request_id.id);
            self.waiting.insert(number, Waiting { call, purpose, taking });
            return;
        }
        if purpose == Purpose::Reply {
            call.reply(now);
            assert!(call.renewal(now).is_none());
        }
        self.keep_lease(isolate, call);
    }

    /// Checks the lease that came with an answer, if any, when it is time.
    fn keep_lease(&mut self, isolate: usize, call: Call) {
        if let Some(wait_ms) = call.lease_ms() {
            let Isolate { life, .. } = self.isolates[isolate];
            self.timers.push(Timer { isolate, life, at: self.now + signed(wait_ms), call });
        }
    }

    fn comes_back(&mut self, from: usize, call: Option<u128>) {
        self.came_back.push(CameBack { at: self.now, from, call });
    }

    fn arrives_at(&mut self) -> i64 {
        let (least, most) = self.takes_ms;
        self.now + if most == 0 { 0 } else { signed(least + self.random.below(most - least + 1)) }
    }

    /// The message in flight at that position arrives: a request, or its answer.
    pub(crate) fn deliver(&mut self, index: usize) {
        let message = self.network.remove(index);
        match &message.reply {
            None => {
                let (request, format) = ObjectRequest::from_text(&message.request).unwrap();
                let reply = self.decide(message.isolate, &request).to_text(format, Rows::default());
                let arrives_at = self.arrives_at();
                self.network.push(Message { reply: Some(reply), arrives_at, ..message });
            }
            Some(reply) => self.receive(&message, reply),
        }
    }

    /// The object's answer to a request of that isolate.
    fn decide(&mut self, isolate: usize, request: &ObjectRequest) -> ObjectReply {
        if request.lease.iter().any(|lease| !lease.ended.is_empty()) {
            self.comes_back(isolate, None);
        }
        self.decided.push((self.now, isolate));
        let reply = self.object.ask(slice::from_ref(&self.policy), request, self.now, &mut self.seen);
        if let (Action::Take(verb), ObjectReply::Decided(decided)) = (request.action, &reply)
            && decided.decision().is_allow()
            && !decided.is_replayed
        {
            match verb {
                Verb::Consume | Verb::Borrow { .. } => self.granted(isolate, &request.costs[0]),
                Verb::ConsumeUpTo => {
                    let taken = decided.limits.iter().map(|limit| match limit.decision {
                        Decision::Allow { tokens, .. } => tokens,
                        Decision::Wait { .. } | Decision::Never { .. } => 0,
                    });
                    self.granted(isolate, &taken.collect::<Vec<_>>());
                }
                _ => {
                    let call = request.request_id.map(|request_id| request_id.id);
                    self.comes_back(isolate, call);
                    self.changed(&request.costs[0], verb);
                }
            }
        }
        reply
    }

    /// An answer arrives.
    fn receive(&mut self, message: &Message, reply: &str) {
        let (isolate, waiting) = (message.isolate, self.waiting.remove(&message.number));
        let Some(Waiting { mut call, purpose, taking }) =
            waiting.filter(|_| self.isolates[isolate].life == message.life)
        else {
            self.lost_at = Some(self.now); // it has crashed meanwhile, or has an answer or given up already
            return;
        };
        let (reply, rows) = ObjectReply::from_text(reply).unwrap();
        let one = &mut self.isolates[isolate];
        one.stands_still_ms = 0; // an answer sets the clock
        one.heard.extend(taking);
        let ObjectReply::Decided(decided) = &reply else { panic!("{reply:?}") };
        if one.heard_of.contains(&decided.now) {
            self.lost_at = Some(self.now);
        }
        one.heard_of.push(decided.now);
        let (now, is_allowed) = (one.now(self.now), decided.decision().is_allow());
        assert_ne!(call.answered(0, Some((reply, rows)), now), Left::Calls);
        if purpose == Purpose::Reply {
            assert_eq!(call.reply(now).status, if is_allowed { 200 } else { 429 });
        }
        self.go_on(isolate, call, purpose);
    }

    /// The message in flight at that position is lost, and the isolate learns that.
    pub(crate) fn lose(&mut self, index: usize, is_retryable: bool) {
        self.lost_at = Some(self.now);
        self.object.stored.happened(Mechanism::Lost);
        let Message { isolate, life, number, reply, .. } = self.network.swap_remove(index);
        if self.isolates[isolate].life == life
            && let Some(Waiting { mut call, purpose, taking }) = self.waiting.remove(&number)
        {
            // A call that may have been carried out counts as carried out.
            self.isolates[isolate].heard.extend(taking.filter(|_| reply.is_some()));
            let cause = if is_retryable { Cause::Failed } else { Cause::Timeout };
            let now = self.isolates[isolate].now(self.now);
            call.failed(0, Failure { cause, is_retryable }, now);
            if purpose == Purpose::Reply && call.is_decided() {
                assert_eq!(call.reply(now).status, 503);
            }
            self.go_on(isolate, call, purpose);
        }
    }

    /// The timer at that position fires.
    pub(crate) fn ring(&mut self, index: usize) {
        let Timer { isolate, life, mut call, .. } = self.timers.swap_remove(index);
        if self.isolates[isolate].life == life {
            let ended = call.end_lease(self.isolates[isolate].now(self.now));
            self.keep_lease(isolate, call);
            if let Some(ended) = ended {
                self.go_on(isolate, ended, Purpose::Lease);
            }
        }
    }

    /// This much was granted now.
    fn granted(&mut self, isolate: usize, costs: &[u64]) {
        self.seen.granted += 1;
        self.isolates[isolate].granted += 1;
        self.changed(costs, Verb::Consume);
    }

    /// This much was taken or given back now.
    fn changed(&mut self, costs: &[u64], verb: Verb) {
        let (decision, after) = self.decide_by_reference(costs, verb);
        assert!(decision.is_allow(), "{costs:?} at {}: {decision:?}, {:?}", self.now - START, self.reference);
        self.reference = after;
    }

    fn decide_by_reference(&self, costs: &[u64], verb: Verb) -> (Decision, Vec<State>) {
        let limits = self.policy.limits().iter().zip(&self.reference).zip(costs);
        let mut parts: Vec<_> = limits.map(|((limit, state), cost)| Part::new(limit.limit(), *state, *cost)).collect();
        let decision = decide_all(&mut parts, self.now, verb);
        (decision, parts.iter().map(|part| part.state).collect())
    }
}

impl Isolate {
    fn new(policies: Arc<Policies>, ahead_ms: i64) -> Self {
        let service = frontend::service(&policies);
        let (heard_of, heard, stands_still_ms, life, asked, granted) = Default::default();
        Self { service, policies, heard_of, heard, ahead_ms, stands_still_ms, life, asked, granted }
    }

    fn now(&self, now: i64) -> Now {
        frontend::now(now + self.ahead_ms - self.stands_still_ms)
    }

    /// Another one takes its place.
    pub(crate) fn crash(&mut self) {
        self.service = frontend::service(&self.policies);
        self.life += 1;
    }
}

impl Object {
    pub(crate) fn new() -> Self {
        Self { stored: Stored::new(7), random: 1, open: BTreeMap::new() }
    }

    pub(crate) fn ask(
        &mut self,
        policies: &[Arc<Policy>],
        request: &ObjectRequest,
        now: i64,
        seen: &mut Seen,
    ) -> ObjectReply {
        let random = || {
            self.random += 1;
            Some(self.random)
        };
        let reply = self.stored.ask(policies, request, now, random);
        seen.rows += self.stored.kept().take_rows().written;
        self.open.retain(|_, (_, until)| now < *until);
        for ended in request.lease.iter().flat_map(|lease| &lease.ended) {
            let (tokens, _) = self.open.remove(&ended.id).unwrap_or((ended.spent[0], 0));
            seen.returned += tokens - ended.spent[0];
        }
        if let ObjectReply::Decided(Decided { lease: Some(lease), .. }) = &reply {
            seen.leased += lease.tokens[0];
            self.open.insert(lease.id, (lease.tokens[0], lease.until + 3_000));
        }
        reply
    }

    pub(crate) fn flush(&mut self, now: i64) {
        self.stored.arrive(usize::MAX);
        self.stored.kept().flush_idle(now).unwrap();
    }

    /// The state after a crash: rows in flight are lost.
    pub(crate) fn restarted(&self) -> Self {
        Self { stored: self.stored.restarted(), ..Self::new() }
    }

    /// Rows in flight are lost.
    pub(crate) fn crash(&mut self) {
        self.open.clear();
        self.stored.crash(0);
    }
}

pub(crate) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
