//! A small deployment: frontends, the objects of keys on their disks, the registry on its own, messages in flight, and a clock.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use tollgate::access::key_hash_in;
use tollgate::edge::{Failure, PolicySnapshot};
use tollgate::frontend::{
    Asked, Call, LastStep, Newer, Now, Receivers, SentRequest, Service, Settings, Step as Asks, own_policies,
};
use tollgate::key_hash::KeyHasher;
use tollgate::limit::{Carry, Decision, Verb};
use tollgate::policy::{Ban, BanTerms, Cause, Policies, Policy, Unsettled};
use tollgate::protocol::{
    Action, Condition, Decided, Definitions, ObjectReply, ObjectRequest, OverrideChange, OverridesChange, PolicyChange,
    Poll,
};
use tollgate::registry::{AUDIT, Registry, Writes};

use super::ban_model::BanModel;
use super::disk::Disk;
use super::key::{Deployed, Key};
use super::model::{Account, Log, Moment, Numbers, Taken, What};
use super::pairs::{Mechanism, Trace};

pub(crate) const START: i64 = 1_700_000_000_000;

/// A world: its frontends, the steps of its clients, its clock and its faults.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    /// The deployment of each frontend, as JSON, the oldest first. Objects are of the last one's.
    pub(crate) frontends: &'static [&'static str],
    pub(crate) has_registry: bool,
    /// The steps of each client, one after another. Different clients do not wait for each other.
    pub(crate) clients: &'static [&'static [Step]],
    /// The moments of the clock, after the start.
    pub(crate) moments: &'static [i64],
    pub(crate) faults: &'static [Fault],
    pub(crate) max_faults: usize,
    /// Empty if anything may happen, even what is impossible.
    pub(crate) limits: &'static [Bounds],
}

/// What holds of a limit.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) limit: &'static str,
    /// The most generous numbers that are ever in force.
    pub(crate) laxest: Numbers,
    /// The least generous ones; `None` if a world only shows that never too much is granted.
    pub(crate) strictest: Option<Numbers>,
    /// The tokens that a crash may cost.
    pub(crate) write_ahead: i64,
    /// Its tokens are back when their reservation ends, however it ends.
    pub(crate) is_slots: bool,
}

/// What a client does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Ask(Ask),
    /// An operator puts these texts of the policy `p` in turn, this many times in all. Without a text, the policy is deleted.
    Put(&'static [&'static str], usize),
    /// An operator puts this text of the policy `p`, and its buckets begin anew.
    PutAnew(&'static str),
    /// An operator sets these overrides in turn, this many times in all.
    Override(&'static [&'static str], usize),
    /// A frontend polls the registry.
    Poll(usize),
}

/// A request about a budget of the policy `p`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) frontend: usize,
    pub(crate) url: &'static str,
    pub(crate) key: &'static str,
    pub(crate) cost: Option<i64>,
    /// More members of the body, or the requests of a batch. `$` stands for the client's latest reservation or lease.
    pub(crate) more: &'static str,
    pub(crate) idempotency_key: Option<&'static str>,
    /// A status it may have besides 200, or [`ANY`].
    pub(crate) or: u16,
}

/// Any status but those for failures.
pub(crate) const ANY: u16 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An object's process ends; rows that no answer waited for are lost.
    Crash,
    /// An object is dropped from memory with all its rows stored.
    Evict,
    /// A frontend gives up on a message, which may arrive later, or never.
    Late,
    /// A frontend repeats a call that it believes to have failed.
    Again,
    /// The registry's process ends.
    RegistryCrash,
}

/// A step of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A client's next step.
    Next(usize),
    Arrive(MessageId),
    Tick,
    Fault(Fault, Place),
}

/// Where a fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Object(String),
    Message(MessageId),
    Registry,
}

/// The client and the number of its step.
type CallId = (usize, usize);

/// A call of a request, by the position of the object and a number.
type MessageId = (CallId, usize, u64);

/// All that decides what happens next, and all that is checked.
#[derive(Debug)]
pub(crate) struct World {
    moment: usize,
    frontends: Vec<Service>,
    objects: BTreeMap<String, Key>,
    /// Those that the objects' isolates know.
    definitions: Definitions,
    registry: Registry,
    registry_rows: BTreeMap<String, String>,
    clients: Vec<Client>,
    calls: BTreeMap<CallId, Request>,
    messages: BTreeMap<MessageId, Message>,
    faults: usize,
    crashes: i64,
    has_lost: bool,
    log: Log,
    /// The tokens moved under each `Idempotency-Key`.
    moved: BTreeMap<&'static str, i64>,
    /// By key.
    bans: BTreeMap<String, BanModel>,
    trace: Trace,
}

#[derive(Debug, Default)]
struct Client {
    steps: usize,
    is_waiting: bool,
    /// Its latest reservation or lease.
    id: String,
}

/// A request that is being answered.
#[derive(Debug)]
struct Request {
    call: Call,
    calls: u64,
    /// By object, the number of the call that an answer is expected to.
    awaited: BTreeMap<usize, u64>,
    /// The tokens of the first limit that objects have moved.
    moved: i64,
    /// Whether its only object has refused it.
    is_refused: bool,
    /// Whether an object's latest reply was that it knows newer policies.
    is_outdated: bool,
}

#[derive(Debug)]
struct Message {
    object: String,
    sent: SentRequest,
    /// The limits of each policy, and whether a reservation costs nothing once it has expired.
    limits: Vec<(Vec<String>, bool)>,
    /// Once it is there.
    reply: Option<String>,
}

impl Plan {
    /// The policies of the objects' deployment.
    const fn deployed(&self) -> &'static str {
        self.frontends[self.frontends.len() - 1]
    }

    /// When the policy `p` of a world with a model bans keys.
    fn ban(&self) -> Option<BanTerms> {
        if self.limits.is_empty() || !self.deployed().contains("\"ban\"") {
            return None;
        }
        Policies::parse(self.deployed()).unwrap().get("p").unwrap().object().ban
    }
}

impl World {
    pub(crate) fn new(plan: &Plan, deployments: &[Arc<Policies>]) -> Self {
        let frontends = plan.frontends.iter().zip(deployments);
        Self {
            moment: 0,
            frontends: frontends.map(|(text, policies)| frontend(plan, text, policies)).collect(),
            objects: BTreeMap::new(),
            definitions: Definitions::new(),
            registry: Registry::default(),
            registry_rows: BTreeMap::new(),
            clients: plan.clients.iter().map(|_| Client::default()).collect(),
            calls: BTreeMap::new(),
            messages: BTreeMap::new(),
            faults: 0,
            crashes: 0,
            has_lost: false,
            log: Log::default(),
            moved: BTreeMap::new(),
            bans: BTreeMap::new(),
            trace: Trace::default(),
        }
        .polled(plan)
    }

    /// All frontends have heard of the registry when the world begins, unless anything may happen.
    fn polled(mut self, plan: &Plan) -> Self {
        let known = if plan.limits.is_empty() { 0 } else { self.frontends.len() };
        for index in 0..known {
            self.poll(plan, index);
        }
        self
    }

    /// What can happen next.
    pub(crate) fn events(&self, plan: &Plan, max_faults: usize) -> Vec<Event> {
        let clients = self.clients.iter().zip(plan.clients).enumerate();
        let ready = clients.filter(|(_, (client, steps))| !client.is_waiting && client.steps < steps.len());
        let mut events: Vec<_> = ready.map(|(index, _)| Event::Next(index)).collect();
        events.extend(self.messages.keys().map(|id| Event::Arrive(*id)));
        if self.moment + 1 < plan.moments.len() {
            events.push(Event::Tick);
        }
        if self.faults < max_faults {
            for &fault in plan.faults {
                let places: Vec<_> = match fault {
                    Fault::Crash | Fault::Evict => self.objects.keys().cloned().map(Place::Object).collect(),
                    Fault::Late | Fault::Again => {
                        let awaited = |id: &&MessageId| self.is_awaited(id);
                        self.messages.keys().filter(awaited).map(|id| Place::Message(*id)).collect()
                    }
                    Fault::RegistryCrash => vec![Place::Registry],
                };
                events.extend(places.into_iter().map(|place| Event::Fault(fault, place)));
            }
        }
        events
    }

    /// Takes a step, and checks what it did. Returns the answers that clients got.
    pub(crate) fn step(&mut self, plan: &Plan, event: &Event) -> Vec<String> {
        let mut answers = Vec::new();
        match event {
            Event::Next(client) => self.next(plan, *client, &mut answers),
            Event::Arrive(id) => self.arrive(plan, *id, &mut answers),
            Event::Tick => {
                self.moment += 1;
                let now = self.now(plan).at;
                for key in self.objects.values_mut() {
                    key.arrive(usize::MAX);
                    key.service.kept().flush_idle(now).unwrap();
                    if key.disk.get_mut().alarm_at.take_if(|at| *at <= now).is_some() {
                        key.service.kept().clean(now).unwrap();
                    }
                }
            }
            Event::Fault(fault, place) => {
                self.faults += 1;
                self.go_wrong(plan, *fault, place, &mut answers);
            }
        }
        self.check(plan);
        answers
    }

    fn go_wrong(&mut self, plan: &Plan, fault: Fault, place: &Place, answers: &mut Vec<String>) {
        match place {
            Place::Object(name) => {
                let Key { disk, .. } = self.objects.remove(name).unwrap();
                if fault == Fault::Evict {
                    disk.get_mut().arrive(usize::MAX);
                }
                self.crashes += 1;
                self.bans.values_mut().for_each(BanModel::crash);
                self.trace.restarted(key_hash_in(name), !disk.get().in_flight.is_empty());
                disk.get_mut().in_flight.clear();
                disk.get_mut().arrived.clear();
                self.objects.insert(name.clone(), Key::new(plan.deployed(), disk, 0));
            }
            Place::Registry => {
                let rows = self.registry_rows.iter().filter(|(name, _)| !name.starts_with(AUDIT));
                self.registry = Registry::new(KeyHasher::default(), rows.map(|(name, row)| (&**name, &**row)));
            }
            Place::Message(id) => {
                self.has_lost = true;
                self.trace.happened(key_hash_in(&self.messages[id].object), Mechanism::Lost);
                let cause = if fault == Fault::Late { Cause::Timeout } else { Cause::Failed };
                let failure = Failure { cause, is_retryable: fault == Fault::Again };
                let now = self.now(plan);
                let request = self.calls.get_mut(&id.0).unwrap();
                request.awaited.remove(&id.1);
                request.call.failed(id.1, failure, now);
                if self.messages[id].reply.is_some() {
                    self.messages.remove(id);
                }
                self.drive(plan, id.0, answers);
            }
        }
    }

    fn now(&self, plan: &Plan) -> Now {
        let at = START + plan.moments[self.moment];
        Now { at, waiting: at }
    }

    /// What the clock shows, and what it would show if it had not stepped back.
    fn clock(&self, plan: &Plan) -> Moment {
        let steps = plan.moments[..=self.moment].windows(2).map(|pair| (pair[1] - pair[0]).max(0));
        Moment { shown: self.now(plan).at, without_steps: START + plan.moments[0] + steps.sum::<i64>() }
    }

    fn next(&mut self, plan: &Plan, client: usize, answers: &mut Vec<String>) {
        let number = self.clients[client].steps;
        self.clients[client].steps += 1;
        let now = self.now(plan).at;
        match plan.clients[client][number] {
            Step::Ask(ask) if ask.more.contains('$') && self.clients[client].id.is_empty() => {} // it has none to close
            Step::Ask(ask) => {
                self.clients[client].is_waiting = true;
                self.ask(plan, (client, number), &ask, None, answers);
            }
            Step::Poll(frontend) => self.poll(plan, frontend),
            Step::Put(texts, times) => {
                texts.iter().cycle().take(times).for_each(|text| self.put(plan, text, None));
            }
            Step::PutAnew(text) => self.put(plan, text, Some(Carry::Reset)),
            Step::Override(texts, times) => {
                for text in texts.iter().cycle().take(times) {
                    let changes = OverrideChange::parse_all(text).unwrap();
                    let change = OverridesChange { changes, by: "ops", only: None, carry: None, is_dry_run: false };
                    match self.registry.change_overrides(change, now) {
                        Ok((_, writes)) => self.write(writes),
                        Err(error) => assert!(plan.limits.is_empty(), "{error:?}"),
                    }
                }
            }
        }
    }

    fn put(&mut self, plan: &Plan, text: &str, carry: Option<Carry>) {
        let is_there = self.registry.policy("p").is_some();
        let condition = if is_there { Condition::Present } else { Condition::Absent };
        let (name, text) = ("p", Some(text).filter(|text| !text.is_empty()));
        let change = PolicyChange { name, text, condition, carry, by: "ops", is_dry_run: false };
        match self.registry.change(&change, self.now(plan).at) {
            Ok((_, writes)) => self.write(writes),
            Err(error) => assert!(plan.limits.is_empty(), "{error:?}"),
        }
    }

    fn write(&mut self, writes: Writes) {
        for (name, row) in writes {
            match row {
                Some(row) => _ = self.registry_rows.insert(name, row),
                None => _ = self.registry_rows.remove(&name),
            }
        }
    }

    fn poll(&mut self, plan: &Plan, frontend: usize) {
        let now = self.now(plan);
        let mut question = self.frontends[frontend].poll(now);
        while let Some(text) = question {
            let (update, writes) = self.registry.poll(&Poll::from_text(&text).unwrap(), now.at).unwrap();
            self.write(writes);
            question = self.frontends[frontend].updated(&update.to_text(), now).unwrap();
        }
    }

    fn ask(&mut self, plan: &Plan, id: CallId, ask: &Ask, newer: Option<&Newer>, answers: &mut Vec<String>) {
        let calls = self.calls.remove(&id).map_or(0, |request: Request| request.calls);
        if newer.is_some_and(Newer::needs_registry) {
            self.poll(plan, ask.frontend);
        }
        let Ask { url, key, idempotency_key, .. } = *ask;
        let cost = ask.cost.map(|cost| format!(r#","cost":{cost}"#)).unwrap_or_default();
        let more = ask.more.replace('$', &self.clients[id.0].id);
        let body = match url {
            "/v1/batch" => format!(r#"{{"requests":[{more}]}}"#),
            _ => format!(r#"{{"policy":"p","key":"{key}"{cost}{more}}}"#),
        };
        let method = "POST";
        let asked = Asked { url, method, idempotency_key, body: body.as_bytes(), newer, ..Asked::default() };
        let now = self.now(plan);
        let mut random = (id.0 as u64 * 64 + id.1 as u64) << 32 | calls << 16;
        let mut random = || {
            random += 1;
            Some(random)
        };
        match self.frontends[ask.frontend].ask(&asked, now, &mut random) {
            Asks::Call(call) => {
                let (awaited, moved, is_refused, is_outdated) = Default::default();
                self.calls.insert(id, Request { call: *call, calls, awaited, moved, is_refused, is_outdated });
                self.drive(plan, id, answers);
            }
            Asks::Reply(reply) => self.answered(plan, id, ask, (reply.status, &reply.body()), answers),
            Asks::Administer { .. } | Asks::InspectKey(_) => panic!("{body}"),
        }
    }

    /// Makes the calls that are due, or answers the client.
    fn drive(&mut self, plan: &Plan, id: CallId, answers: &mut Vec<String>) {
        let now = self.now(plan);
        let Self { calls, messages, .. } = self;
        let request = calls.get_mut(&id).unwrap();
        while let Some(next) = request.call.next(now) {
            request.calls += 1;
            request.awaited.insert(next.object, request.calls);
            let policies: Vec<&Policy> = request.call.policies_of(next.object).collect();
            let is_refunded = |policy: &Policy| policy.object().reservations.unsettled == Unsettled::Refund;
            let limits = policies.iter().map(|policy| {
                let names = policy.limits().iter().map(|limit| limit.name().unwrap_or_default().to_owned());
                (names.collect(), is_refunded(policy))
            });
            let message = Message {
                object: request.call.object(next.object).to_owned(),
                sent: request.call.sent(&next),
                limits: limits.collect(),
                reply: None,
            };
            messages.insert((id, next.object, request.calls), message);
        }
        let Step::Ask(ask) = plan.clients[id.0][id.1] else { unreachable!() };
        if request.call.is_decided() && self.clients[id.0].is_waiting && self.clients[id.0].steps == id.1 + 1 {
            match request.call.last(now) {
                LastStep::Again(newer) => return self.ask(plan, id, &ask, Some(&newer), answers),
                LastStep::Reply(reply) => {
                    let reply = reply.clone();
                    self.answered(plan, id, &ask, (reply.status, &reply.body()), answers);
                }
                LastStep::Record(_) | LastStep::Verify(_) | LastStep::Limited(_) => panic!("{ask:?}"),
            }
        }
        if !self.clients[id.0].is_waiting {
            self.calls.retain(|of, request| *of != id || !request.awaited.is_empty());
        }
    }

    fn answered(&mut self, plan: &Plan, id: CallId, ask: &Ask, (status, body): (u16, &str), answers: &mut Vec<String>) {
        let body: Value = serde_json::from_str(body).unwrap();
        answers.push(format!("{status} {body}"));
        let is_possible = status == ask.or || ask.or == ANY && status < 500;
        // A hold may end by a crash or before its commit, and the policy may change at each try.
        let is_outdated = self.calls.get(&id).is_some_and(|request| request.is_outdated);
        let may_fail = self.has_lost || ask.or == ANY && (self.crashes > 0 || self.moment > 0 || is_outdated);
        let is_expected = status == 200 || is_possible || status == 503 && may_fail;
        assert!(is_expected, "an answer has an unexpected status: {status} {body} for {ask:?}");
        let client = &mut self.clients[id.0];
        client.is_waiting = false;
        if let Some(new) = body["reservation"].as_str().or_else(|| body["lease"].as_str()) {
            new.clone_into(&mut client.id);
        }
        if let Some(request) = self.calls.get(&id) {
            self.trace.answered_from(key_hash_in(request.call.object(0)), "p", body["source"].as_str());
            let is_uncounted = body["source"] == "cache" && body["banned"] != true;
            assert!(!is_uncounted || plan.ban().is_none(), "each refusal counts for a ban: {body}");
            assert!(
                !request.is_refused || status == 429 || ask.url == "/v1/lease",
                "a refusal is final: {status} {body}"
            );
            // Several limits may have moved different numbers, and several objects at different tries.
            let is_plain = ["replayed", "source", "unlimited", "limits"].iter().all(|member| body[*member].is_null());
            let is_of_one = ask.or != ANY || request.call.count() == 1;
            let is_told = is_plain && is_of_one && status == 200 && !self.has_lost;
            if let Some(tokens) =
                body["tokens"].as_i64().filter(|_| is_told && ["/v1/consume", "/v1/refund"].contains(&ask.url))
            {
                assert_eq!(tokens, request.moved, "an answer names the tokens that moved: {body}");
            }
        }
    }

    fn is_awaited(&self, id: &MessageId) -> bool {
        self.calls.get(&id.0).is_some_and(|request| request.awaited.get(&id.1) == Some(&id.2))
    }

    fn arrive(&mut self, plan: &Plan, id: MessageId, answers: &mut Vec<String>) {
        let now = self.now(plan);
        let mut message = self.messages.remove(&id).unwrap();
        let is_awaited = self.is_awaited(&id);
        let Some(text) = &message.reply else {
            let name = &message.object;
            let new = || Key::new(plan.deployed(), Disk::default(), 0);
            let key = self.objects.entry(name.clone()).or_insert_with(new);
            key.arrive(usize::MAX);
            let mut random = ((id.0.0 * 64 + id.0.1) as u64) << 16 | id.2 << 8 | id.1 as u64;
            let random = || {
                random += 1 << 32;
                Some(random)
            };
            let reply = key.service.decide(message.sent.clone(), &mut self.definitions, now.at, random).unwrap();
            let (request, _) = ObjectRequest::from_text(&message.sent.request).unwrap();
            self.trace(plan, &message, &request, &reply);
            self.record(plan, &id, &message, &request, &reply);
            if is_awaited {
                message.reply = Some(reply);
                self.messages.insert(id, message);
            }
            return;
        };
        if is_awaited {
            let request = self.calls.get_mut(&id.0).unwrap();
            let answer = ObjectReply::from_text(text).unwrap();
            if let (ObjectReply::Decided(decided), 1) = (&answer.0, request.call.count()) {
                request.is_refused |= !decided.decision().is_allow();
            }
            request.is_outdated = matches!(answer.0, ObjectReply::PolicyOutdated { .. });
            request.awaited.remove(&id.1);
            request.call.answered(id.1, Some(answer), now);
            self.drive(plan, id.0, answers);
        }
    }

    /// Records what has acted, under the policies by which the object has decided.
    fn trace(&mut self, plan: &Plan, message: &Message, request: &ObjectRequest, reply: &str) {
        if !Trace::is_on() {
            return;
        }
        let (now, (own, _)) = (self.now(plan).at, own_policies(&Deployed(plan.deployed())));
        let SentRequest { names, definitions, .. } = &message.sent;
        if let Some(asked) = self.definitions.asked(&own, names, request.known.as_ref(), definitions.as_deref()) {
            let (reply, _) = ObjectReply::from_text(reply).unwrap();
            self.trace.answered(key_hash_in(&message.object), &asked, request, &reply, now);
        }
    }

    /// Records what an object has done.
    fn record(&mut self, plan: &Plan, id: &MessageId, message: &Message, request: &ObjectRequest, reply: &str) {
        let (ObjectReply::Decided(decided), _) = ObjectReply::from_text(reply).unwrap() else { return };
        let (key, now) = (key_hash_in(&message.object).to_owned(), self.clock(plan));
        let names: Vec<&String> = message.limits.iter().flat_map(|(names, _)| names).collect();
        for ended in request.lease.iter().flat_map(|lease| &lease.ended) {
            self.log.close(&key, ended.id, &costs_of(&names, &ended.spent), now);
        }
        if let Some(lease) = &decided.lease {
            for (limit, cost) in costs_of(&names, &lease.tokens) {
                let spent_at = Some(lease.until + 3_000);
                let taken = Taken { tokens: cost, real: cost, id: Some(lease.id), refunded_at: None, spent_at };
                self.log.add((key.clone(), limit), now, What::Taken(taken));
            }
        }
        if decided.is_replayed {
            return;
        }
        if self.check_ban(plan, &key, request, &decided) {
            return;
        }
        let costs: Vec<u64> = request.costs.iter().flatten().copied().collect();
        let costs = costs_of(&names, &costs);
        if !decided.decision().is_allow() {
            let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
            if [Action::Take(Verb::Consume), reserve].contains(&request.action) {
                self.check_refusal(plan, &key, &costs, now);
            }
            return;
        }
        match request.action {
            Action::Settle(reservation) => {
                let slots = plan.limits.iter().filter(|bounds| bounds.is_slots);
                let given_back = slots.map(|bounds| (bounds.limit.to_owned(), 0));
                self.log.close(&key, reservation, &given_back.chain(costs).collect::<Vec<_>>(), now);
            }
            Action::Cancel(reservation) => self.log.cancel(&key, reservation),
            Action::Take(verb) | Action::Reserve(verb) => {
                self.record_taken((plan, id), (&key, &costs), verb, &decided, message.limits[0].1, now);
            }
            Action::Look(_) => {}
            Action::Hold(_) | Action::Extend(_) => assert!(plan.limits.is_empty(), "the model has none"),
        }
    }

    fn record_taken(
        &mut self,
        (plan, id): (&Plan, &MessageId),
        (key, costs): (&str, &[(String, i64)]),
        verb: Verb,
        decided: &Decided,
        is_refunded: bool,
        now: Moment,
    ) {
        for (index, ((name, _), limit)) in costs.iter().zip(&decided.limits).enumerate() {
            let Decision::Allow { tokens, .. } = limit.decision else { continue };
            let tokens = i64::try_from(tokens).unwrap();
            let is_back = is_refunded || plan.limits.iter().any(|bounds| bounds.is_slots && bounds.limit == name);
            let what = match verb {
                Verb::Refund => What::Given(costs[index].1),
                Verb::Reset => What::Reset,
                _ => What::Taken(Taken {
                    tokens,
                    real: tokens,
                    id: decided.reservation.map(|reserved| reserved.id),
                    refunded_at: decided.reservation.filter(|_| is_back).map(|reserved| reserved.expires_at),
                    spent_at: None,
                }),
            };
            self.log.add((key.to_owned(), name.clone()), now, what);
            if index == 0 {
                if let Some(request) = self.calls.get_mut(&id.0) {
                    request.moved += tokens;
                }
                let Step::Ask(ask) = plan.clients[id.0.0][id.0.1] else { unreachable!() };
                if let (Some(name), Some(cost)) = (ask.idempotency_key, ask.cost) {
                    let moved = self.moved.entry(name).or_default();
                    *moved += tokens;
                    assert!(*moved <= cost, "one Idempotency-Key moved {moved} tokens, not {cost}");
                }
            }
        }
    }

    /// Whether the key is banned, and the request is refused for that.
    fn check_ban(&mut self, plan: &Plan, key: &str, request: &ObjectRequest, decided: &Decided) -> bool {
        let Some(terms) = plan.ban() else { return false };
        let model = self.bans.entry(key.to_owned()).or_default();
        if request.action == Action::Take(Verb::Reset) {
            model.forget();
        }
        let mut until = model.banned_until(decided.now);
        let is_refused = !decided.decision().is_allow();
        if !request.action.is_attempt() || !request.has_consequences {
            return false;
        }
        if is_refused && until.is_none() {
            let id = request.request_id.filter(|of| !of.is_lasting()).map(|of| of.id);
            until = model.refused(terms, decided.now, id);
        }
        let ban = until.map(|until| Ban { until: Some(until) });
        assert!(decided.limits.iter().all(|limit| limit.ban == ban), "{ban:?} in {decided:?}");
        assert!(ban.is_none_or(|ban| decided.decision() == ban.decision(decided.decision())), "{ban:?} in {decided:?}");
        ban.is_some()
    }

    fn check_refusal(&self, plan: &Plan, key: &str, costs: &[(String, i64)], now: Moment) {
        let lacks = |(limit, cost): &(String, i64)| {
            let Some(bounds) = plan.limits.iter().find(|bounds| bounds.limit == limit) else { return true };
            let Some(strictest) = &bounds.strictest else { return true };
            let level = self.log.least(&(key.to_owned(), limit.clone()), strictest, now);
            level - self.lost_by_crashes(bounds, strictest, now) < cost * strictest.period_ms
        };
        assert!(costs.iter().any(lacks), "a bucket of the strictest numbers would have granted {costs:?}");
    }

    /// What crashes may have cost, in drops: a block each, and what refilled before the clock stepped back.
    fn lost_by_crashes(&self, bounds: &Bounds, numbers: &Numbers, now: Moment) -> i64 {
        self.crashes * (bounds.write_ahead * numbers.period_ms + (now.without_steps - now.shown) * numbers.rate)
    }

    fn check(&self, plan: &Plan) {
        let now = self.clock(plan);
        for account in self.log.0.keys() {
            let Some(bounds) = plan.limits.iter().find(|bounds| bounds.limit == account.1) else { continue };
            let lowest = self.log.lowest(account, &bounds.laxest, now);
            assert!(lowest >= 0, "more was granted than by a bucket of the laxest numbers: {:?}", self.log);
        }
    }

    /// Checks what is left of each key that was asked about. Nothing may be in flight.
    pub(crate) fn look(&mut self, plan: &Plan, deployments: &[Arc<Policies>]) {
        if !self.messages.is_empty() {
            return;
        }
        let now = self.now(plan);
        let (text, policies) = plan.frontends.iter().zip(deployments).next_back().unwrap();
        self.frontends.push(frontend(plan, text, policies));
        let frontend = self.frontends.len() - 1;
        self.poll(plan, frontend);
        let asks = plan
            .clients
            .iter()
            .copied()
            .flatten()
            .filter_map(|step| if let Step::Ask(ask) = step { Some(ask.key) } else { None });
        let mut keys: Vec<_> = asks.collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let body = format!(r#"{{"policy":"p","key":"{key}"}}"#);
            let asked = Asked { url: "/v1/peek", method: "POST", body: body.as_bytes(), ..Asked::default() };
            let Asks::Call(mut call) = self.frontends[frontend].ask(&asked, now, &mut || Some(1)) else {
                panic!("{body}")
            };
            let hash = key_hash_in(call.object(0)).to_owned();
            while let Some(next) = call.next(now) {
                let name = call.object(next.object).to_owned();
                let key = self.objects.entry(name).or_insert_with(|| Key::new(plan.deployed(), Disk::default(), 0));
                let reply = key.service.decide(call.sent(&next), &mut self.definitions, now.at, || Some(1)).unwrap();
                call.answered(next.object, ObjectReply::from_text(&reply).ok(), now);
            }
            let body: Value = serde_json::from_str(&call.reply(now).body()).unwrap();
            self.check_left(plan, &hash, &body);
        }
    }

    fn check_left(&self, plan: &Plan, key: &str, body: &Value) {
        if body["banned"] == true {
            return; // nothing is left of anything
        }
        let now = self.clock(plan);
        let named: Vec<&Value> = body["limits"].as_array().into_iter().flatten().collect();
        let all = if named.is_empty() { vec![body] } else { named };
        for limit in all {
            let name = limit["name"].as_str().unwrap_or_default();
            let left = limit["remaining"].as_i64().expect("a level") - limit["owed"].as_i64().unwrap_or(0);
            let Some(bounds) = plan.limits.iter().find(|bounds| bounds.limit == name) else { continue };
            let account: Account = (key.to_owned(), name.to_owned());
            let most = self.log.most(&account, &bounds.laxest, now).div_euclid(bounds.laxest.period_ms);
            assert!(left <= most, "{left} of `{name}` are left, and at most {most} should be: {:?}", self.log);
            if let Some(strictest) = &bounds.strictest {
                let least = self.log.least(&account, strictest, now) - self.lost_by_crashes(bounds, strictest, now);
                let least = least.div_euclid(strictest.period_ms);
                assert!(left >= least, "{left} of `{name}` are left, and at least {least} should be: {:?}", self.log);
            }
        }
    }
}

fn costs_of(names: &[&String], costs: &[u64]) -> Vec<(String, i64)> {
    names.iter().zip(costs).map(|(name, cost)| ((*name).clone(), i64::try_from(*cost).unwrap())).collect()
}

fn frontend(plan: &Plan, text: &str, policies: &Arc<Policies>) -> Service {
    let registry = plan.has_registry.then(|| PolicySnapshot::new(text, policies).into());
    let (trusting, receivers) =
        (Settings::trusting(Arc::clone(policies)), Receivers { has_webhook: true, ..Receivers::default() });
    let settings = Settings { registry, sends_definitions: true, receivers, ..trusting };
    Service::new(Ok(settings), Rc::default())
}
