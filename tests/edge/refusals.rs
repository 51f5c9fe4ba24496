//! Refusals from memory: many isolates, one key, and a network that delays, reorders and loses. Clocks differ by seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::edge::LocalState;
use tollgate::ledger::{Ledger, Writes};
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, Format, ObjectReply, ObjectRequest};

use super::asked::request;
use super::random::{self, Random};

const START: i64 = 1_700_000_000_000;
const OBJECT: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// What is refused from memory, the object would refuse at that moment, and its wait is no shorter than what was said. It may be otherwise
/// only for as long as the policy says, after another isolate has given something back.
#[test]
fn what_is_refused_from_memory_would_be_refused() {
    let (mut asked, mut remembered, mut wrong) = (0_u64, 0_u64, 0_u64);
    random::cases(20_000, |random| {
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

/// A fifth asks for all that there can be, which is never there while the others take most of what comes back.
#[test]
fn large_costs_are_refused_from_memory_while_small_ones_are_granted() {
    let policies = Policies::parse(r#"{"p":{"rate":1000,"period":"1s","capacity":1000}}"#).unwrap();
    let policies: Vec<_> = policies.iter().cloned().collect();
    let mut object = Object { ledger: Ledger::new([], 7), storage: BTreeMap::new(), ahead_ms: 0 };
    let mut known = LocalState::default();
    let (mut granted, mut refused, mut remembered) = (0, 0, 0);
    for number in 0..20_000 {
        let (now, costs) = (START + number, [if number % 5 == 4 { 1_000 } else { 1 }]);
        let asked = [(&*policies[0], &costs[..])].into_iter();
        if known.bound(OBJECT, asked, Verb::Consume, false, now).is_some_and(|bound| bound.is_refused) {
            remembered += 1;
            continue;
        }
        let request = request(Action::Take(Verb::Consume), vec![costs.to_vec()]);
        let reply = object.ask(&policies, &request, now);
        let ObjectReply::Decided(decided) = reply else { panic!("{reply:?}") };
        let is_granted = decided.decision().is_allow();
        *(if is_granted { &mut granted } else { &mut refused }) += 1;
        known.answered(OBJECT, [&*policies[0]].into_iter(), (is_granted, &decided), (now, now));
    }
    println!("{granted} granted, {refused} refused by the object and {remembered} from memory");
    assert!(granted >= 16_000 && granted + refused + remembered == 20_000);
    assert!(refused <= 21, "the object hears of them once a second");
}

struct World<'r> {
    random: &'r mut Random,
    now: i64,
    policies: Vec<Arc<Policy>>,
    object: Object,
    isolates: Vec<Isolate>,
    network: Vec<Message>,
    /// Reservations and holds that may be closed, and whether each is a hold.
    open: Vec<(u64, bool)>,
    ids: u64,
    /// When something was given back, by which isolate, and the call that did it.
    given_back: Vec<(i64, usize, u64)>,
    /// Whether the isolates' clocks step now and then.
    has_steps: bool,
    asked: u64,
    remembered: u64,
    wrong: u64,
}

struct Object {
    ledger: Ledger,
    storage: BTreeMap<String, Vec<u8>>,
    ahead_ms: i64,
}

struct Isolate {
    known: LocalState,
    ahead_ms: i64,
    /// The calls whose answers it has.
    heard: Vec<u64>,
}

struct Message {
    call: u64,
    isolate: usize,
    called_at: i64,
    request: ObjectRequest,
    reply: Option<ObjectReply>,
}

impl<'r> World<'r> {
    fn new(random: &'r mut Random) -> Self {
        let policies = Policies::parse(&policies(random)).unwrap();
        let policies: Vec<_> = policies.iter().cloned().collect();
        let isolates = (0..=random.below(4)).map(|_| Isolate {
            known: LocalState::default(),
            ahead_ms: signed(random.below(8_000)) - 4_000,
            heard: Vec::new(),
        });
        let isolates = isolates.collect();
        let ahead_ms = signed(random.below(4_000)) - 2_000;
        let object = Object { ledger: Ledger::new([], 7), storage: BTreeMap::new(), ahead_ms };
        let (network, open, ids, given_back, asked, remembered, wrong) = Default::default();
        let has_steps = random.once_in(4);
        Self {
            random,
            has_steps,
            now: START,
            policies,
            object,
            isolates,
            network,
            open,
            ids,
            given_back,
            asked,
            remembered,
            wrong,
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..8 => self.ask(),
            8..15 => self.deliver(),
            15 if self.random.once_in(20) => self.object.crash(),
            17 if self.has_steps => {
                let isolate = self.random.below(self.isolates.len());
                self.isolates[isolate].ahead_ms += signed(self.random.below(20_000)) - 10_000;
            }
            16 if !self.network.is_empty() => {
                let lost = self.random.below(self.network.len());
                self.network.swap_remove(lost);
            }
            _ => self.now += signed([1, 10, 100, 1_000][self.random.below(4)] * (1 + self.random.below(3))),
        }
    }

    fn ask(&mut self) {
        let isolate = self.random.below(self.isolates.len());
        let action = self.action();
        let costs: Vec<Vec<u64>> = match action {
            Action::Settle(_) | Action::Cancel(_) => Vec::new(),
            _ => {
                let policies = self.policies.clone();
                // Small ones are granted beside large ones that are not.
                let most = if self.random.once_in(4) { 9 } else { 4 };
                policies
                    .iter()
                    .map(|policy| policy.limits().iter().map(|_| self.random.below(most) as u64).collect())
                    .collect()
            }
        };
        self.asked += 1;
        let called_at = self.now + self.isolates[isolate].ahead_ms;
        if let Action::Take(verb) | Action::Reserve(verb) = action
            && verb.takes()
            && self.is_refused_from_memory(isolate, &costs, verb)
        {
            return;
        }
        self.ids += 1;
        if gives_back(action) {
            self.forget(isolate, called_at);
        }
        let request = request(action, costs);
        self.network.push(Message { call: self.ids, isolate, called_at, request, reply: None });
    }

    fn action(&mut self) -> Action {
        self.ids += 1;
        let max_wait_ms = [None, Some(0), Some(500)][self.random.below(3)];
        match self.random.below(40) {
            0 => Action::Take(Verb::Refund),
            1 if self.random.once_in(4) => Action::Take(Verb::Reset),
            2 => Action::Take(Verb::Charge),
            3..6 => Action::Take(Verb::ConsumeUpTo),
            6..8 => Action::Take(Verb::Borrow { max_wait_ms }),
            8 => Action::Reserve(Verb::Reserve { max_wait_ms }),
            9 => Action::Reserve(Verb::Consume),
            10 => Action::Hold(self.ids),
            11..15 if !self.open.is_empty() => {
                let (id, is_hold) = self.open.swap_remove(self.random.below(self.open.len()));
                if is_hold && self.random.once_in(2) {
                    self.open.push((id, true)); // a commit, which may be undone
                    return Action::Settle(id);
                }
                Action::Cancel(id)
            }
            15..19 => Action::Look(Verb::Consume),
            _ => Action::Take(Verb::Consume),
        }
    }

    /// Asks the isolate's memory, and checks what it says.
    fn is_refused_from_memory(&mut self, isolate: usize, costs: &[Vec<u64>], verb: Verb) -> bool {
        let asked = self.policies.iter().zip(costs).map(|(policy, costs)| (&**policy, costs.as_slice()));
        let Isolate { known, ahead_ms, .. } = &mut self.isolates[isolate];
        let bound = known.bound(OBJECT, asked, verb, false, self.now + *ahead_ms);
        let Some(bound) = bound.filter(|bound| bound.is_refused) else { return false };
        self.remembered += 1;
        let said = bound.decided.decision();
        assert!(!said.is_allow(), "nothing is granted from memory: {bound:?}");
        if self.has_steps {
            return true; // lengths of time are what is measured
        }
        assert!(bound.decided.now <= self.now + self.object.ahead_ms, "a wait is not reported too short");
        let look = Action::Look(verb);
        let look = request(look, costs.to_vec());
        let true_now = self.object.ask(&self.policies, &look, self.now);
        let ObjectReply::Decided(decided) = true_now else { panic!("{true_now:?}") };
        let is_no_longer = match (said, decided.decision()) {
            (Decision::Wait { retry_at: said }, Decision::Wait { retry_at }) => said <= retry_at,
            (_, Decision::Allow { .. }) | (Decision::Never { .. }, Decision::Wait { .. }) => false,
            _ => true,
        };
        if !is_no_longer {
            let max_ms = signed(self.policies.iter().map(|policy| policy.frontend().refusal_cache_ms).min().unwrap());
            let is_excuse = |(at, by, call): &(i64, usize, u64)| {
                self.now - at < max_ms && (*by != isolate || !self.isolates[isolate].heard.contains(call))
            };
            assert!(self.given_back.iter().any(is_excuse), "{said:?} from memory, but {decided:?}");
            self.wrong += 1;
        }
        true
    }

    /// Something that is on its way arrives: a request, or its answer.
    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let message = self.network.swap_remove(self.random.below(self.network.len()));
        let Message { call, isolate, called_at, ref request, ref reply } = message;
        let Some(reply) = reply else {
            let reply = self.object.ask(&self.policies, request, self.now);
            if gives_back(request.action) {
                self.given_back.push((self.now, isolate, call));
            }
            if let ObjectReply::Decided(Decided { reservation: Some(opened), .. }) = reply {
                self.open.push((opened.id, matches!(request.action, Action::Hold(_))));
            }
            // As it travels.
            let (reply, _) = ObjectReply::from_text(&reply.to_text(Format::NEWEST)).unwrap();
            return self.network.push(Message { reply: Some(reply), ..message });
        };
        self.isolates[isolate].heard.push(call);
        let answered_at = self.now + self.isolates[isolate].ahead_ms;
        if gives_back(request.action) {
            self.forget(isolate, answered_at);
        }
        if let ObjectReply::Decided(decided) = reply {
            let policies = self.policies.iter().map(|policy| &**policy);
            let is_granted = decided.decision().is_allow() && !matches!(request.action, Action::Look(_));
            self.isolates[isolate].known.answered(OBJECT, policies, (is_granted, decided), (called_at, answered_at));
        }
    }

    fn forget(&mut self, isolate: usize, now: i64) {
        for policy in &self.policies {
            self.isolates[isolate].known.forget(OBJECT, policy, now);
        }
    }
}

impl Object {
    fn ask(&mut self, policies: &[Arc<Policy>], request: &ObjectRequest, now: i64) -> ObjectReply {
        let mut id = now.unsigned_abs();
        let random = || {
            id += 1;
            Some(id)
        };
        let (reply, writes) = self.ledger.ask(policies, request, now + self.ahead_ms, random).unwrap();
        let Writes { before_reply, background, .. } = writes;
        for background in background {
            self.ledger.confirm(&background.name, background.ticket);
            self.storage.insert(background.name, background.row);
        }
        for (name, row) in before_reply {
            match row {
                Some(row) => _ = self.storage.insert(name, row),
                None => _ = self.storage.remove(&name),
            }
        }
        reply
    }

    fn crash(&mut self) {
        self.ledger = Ledger::new(self.storage.clone(), 7);
    }
}

const fn gives_back(action: Action) -> bool {
    matches!(action, Action::Take(Verb::Refund | Verb::Reset))
}

/// One or two policies of one to three limits.
fn policies(random: &mut Random) -> String {
    let cache = ["1s", "200ms", "20s"][random.below(3)];
    let policies = (0..=random.below(2)).map(|number| {
        let limits = (0..=random.below(3)).map(|number| {
            let kind = ["token_bucket", "fixed_window"][random.below(2)];
            let (rate, period) = (random.below(5), ["100ms", "1s", "7s"][random.below(3)]);
            let (capacity, debt) = (3 + random.below(5), random.below(4));
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

fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
