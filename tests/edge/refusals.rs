//! Refusals from memory: many isolates, two keys, and a network that delays, reorders and loses messages. Clocks differ by seconds.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use tollgate::api::Reply;
use tollgate::edge::Failure;
use tollgate::frontend::{Asked, Call, Service, Step};
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{Cause, Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectReply, ObjectRequest, Rows};

use super::asked::request;
use super::frontend::{Told, cost_of, now as moment, object_of, path_of, service};
use super::lease_terms::{Pair, of};
use super::leasing::{self, START, Seen, signed};
use super::pairs::Mechanism;
use super::random::{self, Random};

const KEYS: [&str; 2] = ["alice", "bob"];

/// The objects would also refuse whatever is refused from memory, with a wait no shorter than reported. It may differ
/// only for as long as the policy says, after another isolate has given something back, or this one in a call that may not be over.
#[test]
fn a_refusal_from_memory_agrees_with_the_object() {
    let (mut asked, mut remembered, mut wrong) = (0_u64, 0_u64, 0_u64);
    random::cases(3_300, |random| {
        let mut world = World::new(random);
        for _ in 0..300 {
            world.step();
        }
        asked += world.asked;
        remembered += world.remembered;
        wrong += world.wrong;
    });
    println!(
        "{asked} requests, {remembered} refused from memory, {wrong} of them because another isolate gave something back"
    );
    if asked > 100_000 {
        assert!(remembered * 20 > asked && wrong * 1_000 > remembered, "too few to show anything");
    }
}

/// A fifth requests the whole capacity, which is never available while the others take most of the refill.
#[test]
fn large_costs_are_refused_from_memory_while_small_ones_are_granted() {
    let policy = of(r#"{"p":{"rate":1000,"period":"1s","capacity":1000}}"#);
    let mut pair = Pair::new();
    let mut granted = 0;
    for number in 0..20_000 {
        pair.now = START + number;
        granted += u64::from(pair.ask(&policy, if number % 5 == 4 { 1_000 } else { 1 }));
    }
    let (refused, remembered) = (pair.calls - granted, pair.remembered);
    println!("{granted} granted, {refused} refused by the object and {remembered} from memory");
    assert!(granted >= 16_000 && granted + refused + remembered == 20_000);
    assert!(refused <= 21, "the object is called once a second");
}

struct World<'r> {
    random: &'r mut Random,
    now: i64,
    policies: Vec<Arc<Policy>>,
    /// Of each key; there are one or two.
    objects: Vec<Object>,
    isolates: Vec<Isolate>,
    tries: Vec<Try>,
    network: Vec<Message>,
    /// How many messages arrive at once: if it is one, most are late.
    pace: usize,
    calls: u64,
    /// Those that may be closed, by the ids that callers were told.
    reservations: Vec<(Budget, String)>,
    given_back: Vec<GivenBack>,
    /// The latest call whose answer an isolate has, by the isolate and the object.
    heard: BTreeMap<(usize, usize), u64>,
    /// Whether the isolates' clocks step now and then.
    has_steps: bool,
    asked: u64,
    remembered: u64,
    wrong: u64,
}

/// A key and a policy, by their positions.
type Budget = (usize, usize);

struct Object {
    name: String,
    inner: leasing::Object,
    ahead_ms: i64,
}

struct Isolate {
    service: Service,
    ahead_ms: i64,
}

/// A request that its objects decide.
struct Try {
    isolate: usize,
    call: Call,
    budgets: Vec<Budget>,
    /// The calls whose answers it awaits.
    in_flight: Vec<u64>,
    is_told: bool,
}

struct Message {
    number: u64,
    /// The attempt, and which of its objects.
    of: usize,
    place: usize,
    text: String,
    is_reply: bool,
}

/// Tokens were given back to an object.
struct GivenBack {
    at: i64,
    budget: Budget,
    isolate: usize,
    /// The call that did it, and whether the isolate knows that it is over.
    call: u64,
    is_heard: bool,
}

/// A caller's request.
struct Sent {
    url: &'static str,
    body: String,
    /// How it takes tokens, if it does.
    verb: Option<Verb>,
    items: Vec<(Budget, Vec<u64>)>,
}

impl<'r> World<'r> {
    fn new(random: &'r mut Random) -> Self {
        let known = Arc::new(Policies::parse(&policies(random)).unwrap());
        let policies = known.iter().cloned().collect();
        let isolates = (0..=random.below(4)).map(|_| {
            let ahead_ms = signed(random.below(8_000)) - 4_000;
            Isolate { service: service(&known), ahead_ms }
        });
        let isolates = isolates.collect();
        let objects = KEYS[..=random.below(2)].iter().map(|key| {
            let ahead_ms = signed(random.below(4_000)) - 2_000;
            Object { name: object_of(key), inner: leasing::Object::new(), ahead_ms }
        });
        let objects = objects.collect();
        let (has_steps, pace) = (random.once_in(8), 1 + random.below(3));
        let (tries, network, calls, reservations, given_back, heard, asked, remembered, wrong) = Default::default();
        Self {
            random,
            now: START,
            policies,
            objects,
            isolates,
            tries,
            network,
            pace,
            calls,
            reservations,
            given_back,
            heard,
            has_steps,
            asked,
            remembered,
            wrong,
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..8 => self.ask(),
            8..15 => (0..self.pace).for_each(|_| self.deliver()),
            15 if self.random.once_in(20) => {
                let object = self.random.below(self.objects.len());
                self.objects[object].inner.crash();
            }
            16 => self.lose(),
            17 if self.has_steps => {
                let isolate = self.random.below(self.isolates.len());
                self.isolates[isolate].ahead_ms += signed(self.random.below(20_000)) - 10_000;
            }
            18 => {
                let object = self.random.below(self.objects.len());
                let Object { inner, ahead_ms, .. } = &mut self.objects[object];
                inner.flush(self.now + *ahead_ms);
            }
            _ => self.now += signed([1, 10, 100, 1_000][self.random.below(4)] * (1 + self.random.below(3))),
        }
    }

    /// A request arrives at an isolate.
    fn ask(&mut self) {
        let isolate = self.random.below(self.isolates.len());
        let sent = self.sent();
        self.asked += 1;
        let now = moment(self.now + self.isolates[isolate].ahead_ms);
        let asked = Asked { url: sent.url, body: sent.body.as_bytes(), ..Asked::default() };
        let Self { isolates, random, .. } = self;
        let Step::Call(mut call) = isolates[isolate].service.ask(&asked, now, &mut || Some(random.next())) else {
            panic!("{}", sent.body)
        };
        if call.is_decided() {
            assert_eq!(call.next(now), None);
            return self.refused_from_memory(isolate, &sent, call.reply(now));
        }
        let budgets = sent.items.iter().map(|(budget, _)| *budget).collect();
        self.tries.push(Try { isolate, call: *call, budgets, in_flight: Vec::new(), is_told: false });
        self.drive(self.tries.len() - 1);
    }

    fn sent(&mut self) -> Sent {
        let max_wait_ms = [None, Some(0), Some(500)][self.random.below(3)];
        let verb = match self.random.below(40) {
            0..2 => Some(Verb::Refund),
            2 if self.random.once_in(4) => Some(Verb::Reset),
            3 => Some(Verb::Charge),
            4..6 => Some(Verb::ConsumeUpTo),
            6..8 => Some(Verb::Borrow { max_wait_ms }),
            8..10 => Some(Verb::Reserve { max_wait_ms }),
            10..15 if !self.reservations.is_empty() => return self.closing(),
            15..17 => None,
            _ => Some(Verb::Consume),
        };
        let (url, terms) = verb.map_or_else(|| ("/v1/peek", String::new()), path_of);
        let (mut keys, mut policies) = (0..1, 0..self.policies.len());
        if self.objects.len() > 1 {
            match self.random.below(4) {
                0 => keys = 1..2,
                1 if verb == Some(Verb::Consume) => keys = 0..2,
                _ => {}
            }
        }
        if verb != Some(Verb::Consume) || self.random.once_in(4) {
            let policy = self.random.below(self.policies.len());
            policies = policy..policy + 1;
        }
        let budgets: Vec<_> = keys.flat_map(|key| policies.clone().map(move |policy| (key, policy))).collect();
        // Small ones are granted beside refused large ones.
        let most = if self.random.once_in(4) { 9 } else { 4 };
        let items: Vec<_> = budgets.into_iter().map(|budget| (budget, self.costs(budget, most))).collect();
        let fields = |(budget, costs): &(Budget, Vec<u64>)| match verb {
            Some(Verb::Reset) => self.names(*budget),
            _ => self.names(*budget) + &self.cost(*budget, costs),
        };
        let (url, body) = match items.iter().map(fields).collect::<Vec<_>>().as_slice() {
            [one] => (url, format!("{{{one}{terms}}}")),
            several => ("/v1/batch", format!(r#"{{"requests":[{{{}}}]}}"#, several.join("},{"))),
        };
        Sent { url, body, verb, items }
    }

    /// Settles or cancels a reservation, perhaps again.
    fn closing(&mut self) -> Sent {
        let index = self.random.below(self.reservations.len());
        let (budget, id) = self.reservations[index].clone();
        if !self.random.once_in(4) {
            self.reservations.swap_remove(index);
        }
        let costs = self.costs(budget, 4);
        let is_settled = self.random.once_in(2);
        let has_cost = is_settled && self.random.once_in(2);
        let cost = if has_cost { self.cost(budget, &costs) } else { String::new() };
        let url = if is_settled { "/v1/settle" } else { "/v1/cancel" };
        let body = format!(r#"{{{},"reservation":"{id}"{cost}}}"#, self.names(budget));
        Sent { url, body, verb: None, items: vec![(budget, costs)] }
    }

    fn costs(&mut self, (_, policy): Budget, most: usize) -> Vec<u64> {
        let limits = self.policies[policy].limits().iter().map(|limit| limit.limit().config().capacity);
        limits.map(|capacity| capacity.min(self.random.below(most) as u64)).collect()
    }

    fn names(&self, (key, policy): Budget) -> String {
        format!(r#""policy":"{}","key":"{}""#, self.policies[policy].name(), KEYS[key])
    }

    fn cost(&self, (_, policy): Budget, costs: &[u64]) -> String {
        format!(r#","cost":{}"#, cost_of(&self.policies[policy], costs))
    }

    /// Checks an isolate's answer without a call.
    fn refused_from_memory(&mut self, isolate: usize, sent: &Sent, reply: &Reply) {
        self.remembered += 1;
        let told = Told::by(reply);
        assert_eq!((told.allowed, told.source.as_deref()), (false, Some("cache")), "nothing is granted from memory");
        for ((key, policy), _) in &sent.items {
            self.objects[*key].inner.stored.answered_from(&self.policies[*policy], Some("cache"));
        }
        if self.has_steps {
            return; // only lengths of time are compared
        }
        let verb = sent.verb.unwrap_or_else(|| panic!("{} takes nothing", sent.url));
        let each = if let [_] = sent.items.as_slice() { vec![told] } else { Told::each_by(reply) };
        let (mut is_refused, mut is_no_longer) = (false, true);
        for (key, Object { inner, ahead_ms, .. }) in self.objects.iter_mut().enumerate() {
            let items = sent.items.iter().zip(&each).filter(|(((of, _), _), _)| *of == key);
            let (asked, each): (Vec<_>, Vec<_>) = items.unzip();
            let Some(said) = each.iter().map(|told| told.decision()).reduce(Decision::and) else { continue };
            let now = self.now + *ahead_ms;
            assert!(each.iter().all(|told| told.now <= now), "a wait is not reported too short: {each:?}");
            let policies: Vec<_> = asked.iter().map(|((_, policy), _)| Arc::clone(&self.policies[*policy])).collect();
            let costs = asked.into_iter().map(|(_, costs)| costs.clone()).collect();
            let look = request(Action::Look(verb), costs);
            let reply = inner.ask(&policies, &look, now, &mut Seen::default());
            let ObjectReply::Decided(decided) = reply else { panic!("{reply:?}") };
            is_refused |= !decided.decision().is_allow();
            is_no_longer &= match (said, decided.decision()) {
                (Decision::Wait { retry_at: said }, Decision::Wait { retry_at }) => said <= retry_at,
                // Another key refuses.
                (Decision::Wait { retry_at }, Decision::Allow { .. }) => retry_at <= now,
                (Decision::Never { .. }, Decision::Allow { .. } | Decision::Wait { .. }) => false,
                _ => true,
            };
        }
        if !is_refused || !is_no_longer {
            let is_excuse = |back: &GivenBack| {
                let max_ms = signed(self.policies[back.budget.1].frontend().refusal_cache_ms);
                let is_of_it = sent.items.iter().any(|(budget, _)| *budget == back.budget);
                is_of_it && self.now - back.at < max_ms && !self.has_forgotten(isolate, back)
            };
            assert!(self.given_back.iter().any(is_excuse), "{} is refused from memory: {each:?}", sent.body);
            self.wrong += 1;
        }
    }

    /// Whether an isolate remembers nothing from before this was given back. It forgets when it makes such a call, and when that is over;
    /// between them it may have had other answers from before.
    fn has_forgotten(&self, isolate: usize, back: &GivenBack) -> bool {
        let GivenBack { budget: (key, _), isolate: by, call, is_heard, .. } = *back;
        let has_heard_since = self.heard.get(&(isolate, key)).is_some_and(|latest| *latest > call);
        isolate == by && (is_heard || !has_heard_since)
    }

    /// Makes the calls that are due, and replies.
    fn drive(&mut self, of: usize) {
        let one = &mut self.tries[of];
        let now = moment(self.now + self.isolates[one.isolate].ahead_ms);
        while let Some(next) = one.call.next(now) {
            self.calls += 1;
            one.in_flight.push(self.calls);
            let text = one.call.sent(&next).request;
            self.network.push(Message { number: self.calls, of, place: next.object, text, is_reply: false });
        }
        if one.call.is_decided() && !mem::replace(&mut one.is_told, true) {
            let reply = one.call.reply(now);
            match reply.status {
                200 | 429 => self.reservations.extend(Told::by(reply).reservation.map(|id| (one.budgets[0], id))),
                404 | 409 | 503 => {}
                _ => panic!("{}", reply.body()),
            }
        }
    }

    /// A message in flight arrives: a request, or its answer.
    fn deliver(&mut self) {
        let Some(message) = self.take_message() else { return };
        if message.is_reply {
            return self.receive(&message, Ok(ObjectReply::from_text(&message.text).unwrap()));
        }
        let Message { number, of, .. } = message;
        let key = self.key_of(&message);
        let Try { isolate, ref budgets, .. } = self.tries[of];
        let policies = budgets.iter().filter(|(of, _)| *of == key);
        let policies: Vec<_> = policies.map(|(_, policy)| Arc::clone(&self.policies[*policy])).collect();
        let (request, format) = ObjectRequest::from_text(&message.text).unwrap();
        let Object { inner, ahead_ms, .. } = &mut self.objects[key];
        let reply = inner.ask(&policies, &request, self.now + *ahead_ms, &mut Seen::default());
        if let Action::Take(Verb::Refund | Verb::Reset) = request.action
            && let ObjectReply::Decided(Decided { is_replayed: false, .. }) = reply
        {
            let (at, budget, call, is_heard) = (self.now, budgets[0], number, false);
            self.given_back.push(GivenBack { at, budget, isolate, call, is_heard });
        }
        self.network.push(Message { text: reply.to_text(format, Rows::default()), is_reply: true, ..message });
    }

    /// A message is lost or late. The isolate gives up on it, or keeps waiting.
    fn lose(&mut self) {
        let Some(message) = self.take_message() else { return };
        let key = self.key_of(&message);
        self.objects[key].inner.stored.happened(Mechanism::Lost);
        if !self.random.once_in(3) {
            let cause = [Cause::Timeout, Cause::Failed][self.random.below(2)];
            let is_retryable = self.random.once_in(2);
            self.receive(&message, Err(Failure { cause, is_retryable }));
            if self.random.once_in(2) {
                self.network.push(message);
            }
        }
    }

    /// Often the latest, so earlier ones arrive very late.
    fn take_message(&mut self) -> Option<Message> {
        let latest = self.network.len().checked_sub(1)?;
        let index = if self.random.once_in(2) { latest } else { self.random.below(latest + 1) };
        Some(self.network.swap_remove(index))
    }

    /// A call is over for the isolate.
    fn receive(&mut self, message: &Message, result: Result<(ObjectReply, Rows), Failure>) {
        let Message { number, of, place, .. } = *message;
        let key = self.key_of(message);
        let one = &mut self.tries[of];
        let Some(index) = one.in_flight.iter().position(|awaited| *awaited == number) else { return };
        one.in_flight.swap_remove(index);
        let now = moment(self.now + self.isolates[one.isolate].ahead_ms);
        match result {
            Ok(answer) => {
                let latest = self.heard.entry((one.isolate, key)).or_default();
                *latest = number.max(*latest);
                one.call.answered(place, Some(answer), now);
            }
            Err(failure) => one.call.failed(place, failure, now),
        }
        for back in self.given_back.iter_mut().filter(|back| back.call == number) {
            back.is_heard = true;
        }
        self.drive(of);
    }

    /// The key of the object that is called.
    fn key_of(&self, message: &Message) -> usize {
        let name = self.tries[message.of].call.object(message.place);
        self.objects.iter().position(|object| object.name == name).unwrap()
    }
}

/// One or two policies of one to three limits.
fn policies(random: &mut Random) -> String {
    let cache = ["1s", "200ms", "20s"][random.below(3)];
    let policies = (0..=random.below(2)).map(|number| {
        let limits = (0..=random.below(3)).map(|number| {
            let kind = ["token_bucket", "fixed_window", "rolling_window"][random.below(3)];
            let (rate, period) = (random.below(5), ["100ms", "1s", "7s"][random.below(3)]);
            let (capacity, debt) = (3 + random.below(5), random.below(4));
            if kind == "rolling_window" {
                let grains = 1 + random.below(4);
                return format!(
                    r#"{{"name":"{number}","kind":"{kind}","rate":{capacity},"period":"{period}","grains":{grains}}}"#
                );
            }
            format!(
                r#"{{"name":"{number}","kind":"{kind}","rate":{rate},"period":"{period}","capacity":{capacity},"max_debt":{debt}}}"#
            )
        });
        let limits = limits.collect::<Vec<_>>().join(",");
        let ttl = ["200ms", "3s"][random.below(2)];
        let terms = format!(r#""refusal_cache":"{cache}","reservation_ttl":"{ttl}","unsettled":"refund""#);
        format!(r#""{}":{{"limits":[{limits}],{terms}}}"#, ["p", "q"][number])
    });
    format!("{{{}}}", policies.collect::<Vec<_>>().join(","))
}
