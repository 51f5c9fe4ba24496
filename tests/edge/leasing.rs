//! Isolates that lease tokens of one key from its object, and perhaps remember its refusals, and what one bucket in memory would have
//! granted. When what happens is for the laws to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::edge::{Leased, LocalState, Return};
use tollgate::ledger::{Ledger, Writes};
use tollgate::limit::{Decision, Part, State, Verb, decide_all};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, Format, LeaseRequest, LimitAnswer, ObjectReply, ObjectRequest, RequestId};

use super::asked::request;
use super::random::Random;

pub(crate) const START: i64 = 1_700_000_000_000;
pub(crate) const OBJECT: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// How often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) asked: u64,
    pub(crate) calls: u64,
    pub(crate) granted: u64,
    pub(crate) granted_from_leases: u64,
    pub(crate) refused_from_leases: u64,
    pub(crate) refused_from_memory: u64,
    /// Of these, while the object would have granted it, or sooner: something has come back lately.
    pub(crate) refused_wrongly: u64,
    /// Whose wait was compared with that of one bucket.
    pub(crate) checked_alone: u64,
    pub(crate) rows: u64,
    /// Tokens of the first limit: that were leased, those of them that were spent, and those that came back in time.
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
    /// What is left of one bucket that knows of every grant at once.
    pub(crate) reference: Vec<State>,
    pub(crate) isolates: Vec<Isolate>,
    pub(crate) network: Vec<Message>,
    /// Leases to be looked at: the isolate, the lease, and when.
    pub(crate) timers: Vec<(usize, u64, i64)>,
    ids: u64,
    came_back: Vec<CameBack>,
    /// When the object has decided something for which isolate.
    decided: Vec<(i64, usize)>,
    /// When an answer was last lost, or was of the same millisecond as another: then memories may miss what was granted.
    pub(crate) lost_at: Option<i64>,
    /// How long a message takes, at least and at most.
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
    ledger: Ledger,
    storage: BTreeMap<String, Vec<u8>>,
    /// Rows that are not in the storage yet.
    on_the_way: Vec<(String, Vec<u8>, u32)>,
    random: u64,
    /// Tokens of the leases that it has given, and until when they can be returned.
    open: BTreeMap<u64, (u64, i64)>,
}

pub(crate) struct Isolate {
    known: LocalState,
    /// Whether it is asked for refusals from memory.
    remembers: bool,
    /// When those answers were decided that it has.
    heard_of: Vec<i64>,
    /// The calls that gave something back, and whose answers it has.
    heard: Vec<u128>,
    pub(crate) ahead_ms: i64,
    /// It began to compute so long ago that its clock shows an earlier moment.
    pub(crate) stands_still_ms: i64,
    /// Changes when it crashes.
    life: u64,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
}

#[derive(Clone)]
pub(crate) struct Message {
    isolate: usize,
    life: u64,
    called_at: i64,
    /// If the law says when.
    pub(crate) arrives_at: i64,
    request: ObjectRequest,
    pub(crate) reply: Option<ObjectReply>,
}

impl<'r> World<'r> {
    pub(crate) fn new(random: &'r mut Random, policies: &str, isolates: usize) -> Self {
        let policies = Policies::parse(policies).unwrap();
        let policy = Arc::clone(policies.get("p").unwrap());
        let isolates = (0..isolates).map(|_| Isolate {
            known: LocalState::default(),
            remembers: false,
            heard_of: Vec::new(),
            heard: Vec::new(),
            ahead_ms: signed(random.below(8_000)) - 4_000,
            stands_still_ms: 0,
            life: 0,
            asked: 0,
            granted: 0,
        });
        let isolates = isolates.collect();
        let object = Object::new();
        let reference = policy.limits().iter().map(|limit| limit.limit().new_state(START, 7)).collect();
        let (network, timers, ids, came_back, decided, lost_at, takes_ms, seen) = Default::default();
        Self {
            random,
            now: START,
            policy,
            object,
            reference,
            isolates,
            network,
            timers,
            ids,
            came_back,
            decided,
            lost_at,
            takes_ms,
            seen,
        }
    }

    /// The isolates answer refusals from memory, too.
    pub(crate) fn with_refusals(mut self) -> Self {
        self.isolates.iter_mut().for_each(|isolate| isolate.remembers = true);
        self
    }

    /// A request to consume arrives at an isolate. As in a frontend, leases are asked first, then refusals.
    pub(crate) fn ask(&mut self, isolate: usize, costs: Vec<u64>, may_lease: bool) {
        self.seen.asked += 1;
        self.isolates[isolate].asked += 1;
        let policy = Arc::clone(&self.policy);
        let now = self.isolates[isolate].now(self.now);
        let known = &mut self.isolates[isolate].known;
        if let Some(leased) = may_lease.then(|| known.consume(OBJECT, &policy, &costs, now)).flatten() {
            let Leased { decided, renewal } = leased;
            if decided.decision().is_allow() {
                self.seen.granted_from_leases += 1;
                self.seen.spent += costs[0];
                self.granted(isolate, &costs);
            } else {
                self.seen.refused_from_leases += 1;
                let max_ms = signed(policy.frontend().refusal_cache_ms);
                let retry_at = decided.limits.iter().filter_map(LimitAnswer::retry_at).max().unwrap();
                let wait_ms = retry_at - decided.now;
                assert!(0 < wait_ms && wait_ms <= max_ms + 300, "{decided:?}");
            }
            if let Some(lease) = renewal {
                let nothing = vec![0; costs.len()];
                self.call(isolate, Action::Look(Verb::Consume), nothing, Some(lease));
            }
            return;
        }
        if self.is_refused_from_memory(isolate, &costs, Verb::Consume, may_lease) {
            return;
        }
        let known = &mut self.isolates[isolate].known;
        let lease = may_lease.then(|| known.ask(OBJECT, &policy, &costs, now)).flatten();
        self.call(isolate, Action::Take(Verb::Consume), costs, lease);
    }

    /// Another request arrives at an isolate, which only its object can grant.
    pub(crate) fn ask_object(&mut self, isolate: usize, verb: Verb, costs: Vec<u64>) {
        if verb.takes() && self.is_refused_from_memory(isolate, &costs, verb, false) {
            return;
        }
        self.forget(isolate, verb);
        self.call(isolate, Action::Take(verb), costs, None);
    }

    /// What is given back is known here at once.
    fn forget(&mut self, isolate: usize, verb: Verb) {
        let (policy, now) = (Arc::clone(&self.policy), self.isolates[isolate].now(self.now));
        if let Verb::Refund | Verb::Reset = verb {
            self.isolates[isolate].known.forget(OBJECT, &policy, now);
        }
    }

    /// Asks the isolate's memory of refusals, and checks what it says: the object would refuse, too, and for as long, unless tokens have
    /// come back within the time of [`Policy::refusal_cache_ms`] of which the isolate has not heard.
    fn is_refused_from_memory(&mut self, isolate: usize, costs: &[u64], verb: Verb, may_lease: bool) -> bool {
        let (policy, now) = (Arc::clone(&self.policy), self.isolates[isolate].now(self.now));
        let Isolate { known, remembers: true, .. } = &mut self.isolates[isolate] else { return false };
        let bound = known.bound(OBJECT, [(&*policy, costs)].into_iter(), verb, may_lease, now);
        let Some(bound) = bound.filter(|bound| bound.is_refused) else { return false };
        self.seen.refused_from_memory += 1;
        let said = bound.decided.decision();
        assert!(!said.is_allow(), "nothing is granted from memory: {bound:?}");
        assert!(bound.decided.now <= self.now, "a wait is not reported too short: {bound:?}");
        let look = request(Action::Look(verb), vec![costs.to_vec()]);
        let reply = self.object.ask(&policy, &look, self.now, &mut Seen::default());
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
            let max_ms = signed(policy.frontend().refusal_cache_ms) + stands_still_ms;
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
        true
    }

    /// With no other isolate, where all answers were heard in time, nothing that was granted is missing from a wait that is said from memory.
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

    fn call(&mut self, isolate: usize, action: Action, costs: Vec<u64>, lease: Option<LeaseRequest>) {
        self.ids += 1;
        self.seen.calls += 1;
        let is_look = matches!(action, Action::Look(_));
        let id = u128::from(self.ids);
        let request_id = (!is_look).then_some(RequestId { id, fingerprint: 0, ttl_ms: 0, by_grant: false });
        let request = ObjectRequest { request_id, lease, ..request(action, vec![costs]) };
        let request = ObjectRequest::from_text(&request.to_text(Format::NEWEST)).unwrap().0;
        let Isolate { life, .. } = self.isolates[isolate];
        let called_at = self.isolates[isolate].now(self.now);
        let arrives_at = self.arrives_at();
        self.network.push(Message { isolate, life, called_at, arrives_at, request, reply: None });
    }

    fn comes_back(&mut self, from: usize, call: Option<u128>) {
        self.came_back.push(CameBack { at: self.now, from, call });
    }

    fn arrives_at(&mut self) -> i64 {
        let (least, most) = self.takes_ms;
        self.now + if most == 0 { 0 } else { signed(least + self.random.below(most - least + 1)) }
    }

    /// What is on its way at that position arrives: a request, or its answer.
    pub(crate) fn deliver(&mut self, index: usize) {
        let message = self.network.remove(index);
        let Message { isolate, life, called_at, ref request, ref reply, .. } = message;
        let Some(reply) = reply else {
            if request.lease.iter().any(|lease| !lease.ended.is_empty()) {
                self.comes_back(isolate, None);
            }
            self.decided.push((self.now, isolate));
            let reply = self.object.ask(&self.policy, request, self.now, &mut self.seen);
            if let (Action::Take(verb), ObjectReply::Decided(decided)) = (request.action, &reply)
                && decided.decision().is_allow()
                && !decided.is_replayed
            {
                match verb {
                    Verb::Consume => self.granted(isolate, &request.costs[0]),
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
            let (reply, _) = ObjectReply::from_text(&reply.to_text(Format::NEWEST)).unwrap();
            let arrives_at = self.arrives_at();
            return self.network.push(Message { reply: Some(reply), arrives_at, ..message });
        };
        if self.isolates[isolate].life != life {
            self.lost_at = Some(self.now); // it has crashed meanwhile
            return;
        }
        // An answer sets the clock.
        self.isolates[isolate].stands_still_ms = 0;
        let answered_at = self.isolates[isolate].now(self.now);
        if let Action::Take(verb) = request.action {
            self.isolates[isolate].heard.extend(request.request_id.map(|request_id| request_id.id));
            self.forget(isolate, verb);
        }
        let ObjectReply::Decided(decided) = reply else { return };
        let heard_of = &mut self.isolates[isolate].heard_of;
        if heard_of.contains(&decided.now) {
            self.lost_at = Some(self.now);
        }
        heard_of.push(decided.now);
        let Isolate { known, .. } = &mut self.isolates[isolate];
        let moments = (called_at, answered_at);
        let leased =
            (request.lease.as_ref()).and_then(|lease| known.leased(OBJECT, &self.policy, lease, decided, moments));
        if let Some((id, wait_ms)) = leased {
            self.timers.push((isolate, id, self.now + signed(wait_ms)));
        }
        if matches!(request.action, Action::Take(_)) {
            let answer = (decided.decision().is_allow(), decided);
            known.answered(OBJECT, [&*self.policy].into_iter(), answer, moments);
        }
    }

    /// What is on its way at that position is lost.
    pub(crate) fn lose(&mut self, index: usize) {
        self.lost_at = Some(self.now);
        let Message { isolate, life, request, .. } = self.network.swap_remove(index);
        let lost_by = &mut self.isolates[isolate];
        if lost_by.life == life {
            let now = lost_by.now(self.now);
            if let Some(lease) = &request.lease {
                lost_by.known.failed(OBJECT, &self.policy, lease, now);
            }
        }
    }

    /// The timer at that position rings.
    pub(crate) fn ring(&mut self, index: usize) {
        let (isolate, id, _) = self.timers.swap_remove(index);
        let now = self.isolates[isolate].now(self.now);
        match self.isolates[isolate].known.end(OBJECT, &self.policy, id, now) {
            Return::Over => {}
            Return::Wait(ms) => self.timers.push((isolate, id, self.now + signed(ms))),
            Return::Send(lease) => {
                let nothing = vec![0; self.policy.limits().len()];
                self.call(isolate, Action::Look(Verb::Consume), nothing, Some(lease));
            }
        }
    }

    /// So much was granted now.
    fn granted(&mut self, isolate: usize, costs: &[u64]) {
        self.seen.granted += 1;
        self.isolates[isolate].granted += 1;
        self.changed(costs, Verb::Consume);
    }

    /// So much was taken or given back now.
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
    fn now(&self, now: i64) -> i64 {
        now + self.ahead_ms - self.stands_still_ms
    }

    /// Another one takes its place.
    pub(crate) fn crash(&mut self) {
        self.known = LocalState::default();
        self.life += 1;
    }
}

impl Object {
    pub(crate) fn new() -> Self {
        let (storage, on_the_way, open) = Default::default();
        Self { ledger: Ledger::new([], 7), storage, on_the_way, random: 1, open }
    }

    pub(crate) fn ask(
        &mut self,
        policy: &Arc<Policy>,
        request: &ObjectRequest,
        now: i64,
        seen: &mut Seen,
    ) -> ObjectReply {
        let random = || {
            self.random += 1;
            Some(self.random)
        };
        let (reply, writes) = self.ledger.ask(std::slice::from_ref(policy), request, now, random).unwrap();
        seen.rows += (writes.before_reply.len() + writes.background.len()) as u64;
        self.write(writes);
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

    /// What a crash would leave: rows that are on their way are lost.
    pub(crate) fn restarted(&self) -> Self {
        Self { ledger: Ledger::new(self.storage.clone(), 7), storage: self.storage.clone(), ..Self::new() }
    }

    /// Rows that are on their way are lost.
    pub(crate) fn crash(&mut self) {
        self.open.clear();
        self.on_the_way.clear();
        self.ledger = Ledger::new(self.storage.clone(), 7);
    }
}

pub(crate) fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
