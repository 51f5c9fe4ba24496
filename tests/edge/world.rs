//! Several objects with their own storage, a frontend that gets batches over their keys, and a network between that loses,
//! delays and reorders messages. Objects crash between any two steps, and so do attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use tollgate::api::Reply;
use tollgate::edge::{BATCH_MS, Failure};
use tollgate::frontend::{Asked, Call, Left, Service, Step};
use tollgate::limit::Verb;
use tollgate::policy::{Cause, Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectReply, ObjectRequest, Rows};

use super::asked::request;
use super::frontend::{Told, now as moment, object_of, service};
use super::pairs::Mechanism;
use super::random::Random;
use super::stored::Stored;

/// Nothing refills, so the end shows what was taken. Each client takes an amount of its own from `tokens` (see
/// [`share_of`]) and one from `gate`, which refuses late clients.
const POLICIES: &str = r#"{"p": {"limits": [
    {"name": "tokens", "rate": 0, "period": "1s", "capacity": 1048576, "write_ahead": 0},
    {"name": "gate", "rate": 0, "period": "1s", "capacity": 3, "write_ahead": 0}
]}}"#;
const CAPACITY: u64 = 1 << 20;

/// How long a hold lasts.
const HOLD_MS: i64 = 10_000;

const START: i64 = 1_700_000_000_000;

pub(crate) struct World<'r> {
    random: &'r mut Random,
    /// How many of a hundred steps go wrong in some way.
    trouble: usize,
    steps: usize,
    policy: [Arc<Policy>; 1],
    now: i64,
    frontend: Service,
    objects: Vec<Object>,
    clients: Vec<Client>,
    tries: Vec<Try>,
    network: Vec<Message>,
    ids: u64,
}

/// A client: its keys and costs, the same in every attempt.
struct Client {
    /// The objects of its keys.
    keys: Vec<usize>,
    /// With an `Idempotency-Key`, so that it may retry.
    has_key: bool,
}

/// One attempt: what a frontend does for one HTTP request.
#[expect(clippy::struct_excessive_bools, reason = "they record its history")]
pub(crate) struct Try {
    client: usize,
    call: Call,
    began: i64,
    /// The steps from its first call to its last answer.
    life: RangeInclusive<usize>,
    /// By the position of the object: the number of the call and when it times out.
    in_flight: BTreeMap<usize, (u64, i64)>,
    was_refused: bool,
    was_commit_sent: bool,
    has_commit_failed: bool,
    /// Besides the commit, a call needed to undo it failed.
    was_undo_lost: bool,
    has_crashed: bool,
    pub(crate) ended: Option<Ended>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ended {
    Granted,
    Refused,
    /// Known not to have been done.
    NotDone,
    Failed,
    Crashed,
}

struct Message {
    of: usize,
    place: usize,
    number: u64,
    object: usize,
    content: Content,
}

enum Content {
    Request(String),
    Reply(String),
}

struct Object {
    name: String,
    stored: Stored,
    /// The holds that were committed.
    committed: BTreeSet<u128>,
    /// The request id of each hold, shared by attempts of one batch.
    shared: BTreeMap<u64, u128>,
    /// Its clock is not that of the frontends.
    ahead_ms: i64,
}

impl<'r> World<'r> {
    pub(crate) fn new(random: &'r mut Random) -> Self {
        let objects = (0..2 + random.below(3)).map(|key| Object::new(key, random.below(1_000))).collect();
        let policies = Arc::new(Policies::parse(POLICIES).unwrap());
        let policy = [Arc::clone(policies.get("p").unwrap())];
        let trouble = [0, 1, 3, 12][random.below(4)];
        let frontend = service(&policies);
        let (steps, clients, tries, network, ids) = Default::default();
        Self { random, trouble, steps, policy, now: START, frontend, objects, clients, tries, network, ids }
    }

    /// A new client with some of the keys, and its first attempt.
    pub(crate) fn send_new(&mut self) {
        let mut keys: Vec<usize> = (0..self.objects.len()).filter(|_| !self.random.once_in(4)).collect();
        if keys.len() < 2 {
            keys = vec![0, 1];
        }
        let has_key = self.random.once_in(2);
        self.clients.push(Client { keys, has_key });
        self.send(self.clients.len() - 1);
    }

    /// Another attempt of a client that may retry.
    pub(crate) fn send_again(&mut self) {
        let again: Vec<usize> = (0..self.clients.len()).filter(|&client| self.clients[client].has_key).collect();
        if !again.is_empty() {
            let client = again[self.random.below(again.len())];
            self.send(client);
        }
    }

    fn send(&mut self, client: usize) {
        let Client { ref keys, has_key } = self.clients[client];
        let tokens = share_of(client);
        let item = |key: &usize| format!(r#"{{"policy":"p","key":"{key}","cost":{{"tokens":{tokens},"gate":1}}}}"#);
        let body = format!(r#"{{"requests":[{}]}}"#, keys.iter().map(item).collect::<Vec<_>>().join(","));
        let key = client.to_string();
        let idempotency_key = has_key.then_some(key.as_str());
        let asked = Asked { url: "/v1/batch", idempotency_key, body: body.as_bytes(), ..Asked::default() };
        let Self { frontend, random, .. } = self;
        let Step::Call(call) = frontend.ask(&asked, moment(self.now), &mut || Some(random.next())) else {
            panic!("{body}")
        };
        self.tries.push(Try {
            client,
            was_refused: call.is_decided(),
            call: *call,
            began: self.now,
            life: self.steps..=usize::MAX,
            in_flight: BTreeMap::new(),
            was_commit_sent: false,
            has_commit_failed: false,
            was_undo_lost: false,
            has_crashed: false,
            ended: None,
        });
        self.drive(self.tries.len() - 1, None);
    }

    /// Makes the calls that are due, and records the reply. After an answer the frontend has returned the remaining work.
    fn drive(&mut self, of: usize, left: Option<Left>) {
        let Self { tries, objects, network, ids, now, steps, .. } = self;
        let one = &mut tries[of];
        while let Some(next) = one.call.next(moment(*now)) {
            *ids += 1;
            one.was_commit_sent |= matches!(next.request.action, Action::Settle(_));
            let place = next.object;
            let previous = one.in_flight.insert(place, (*ids, *now + i64::try_from(next.wait_ms).unwrap()));
            assert_eq!(previous, None, "one call at a time");
            let object = objects.iter().position(|object| object.name == one.call.object(place)).unwrap();
            let content = Content::Request(one.call.sent(&next).request);
            network.push(Message { of, place, number: *ids, object, content });
        }
        assert!(left.is_none_or(|left| (left == Left::Calls) != one.is_over()), "{left:?}");
        if !one.call.is_decided() {
            assert!(!one.in_flight.is_empty(), "an answer is expected");
            return;
        }
        if one.is_over() {
            one.life = *one.life.start()..=*steps;
        }
        if one.ended.is_some() {
            return;
        }
        assert!(*now - one.began <= i64::try_from(BATCH_MS).unwrap(), "in time");
        let ended = Ended::by(one.call.reply(moment(*now)));
        assert_eq!(ended == Ended::Refused, one.was_refused, "a refusal is final");
        one.ended = Some(ended);
    }

    /// A random event.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        if self.random.below(100) < self.trouble {
            match self.random.below(13) {
                0..4 => _ = self.lose_message(),
                4..10 => self.fail_message(),
                10..12 => self.crash_object(),
                _ => self.crash_frontend(),
            }
            return;
        }
        match self.random.below(80) {
            0..60 => self.deliver(),
            60..65 => {
                let object = self.random.below(self.objects.len());
                self.objects[object].stored.arrive(1);
            }
            step => {
                let ms = self.random.below(if step == 65 { 3_000 } else { 120 });
                self.wait(ms);
            }
        }
    }

    fn take_message(&mut self) -> Option<Message> {
        let count = self.network.len();
        (count > 0).then(|| self.network.swap_remove(self.random.below(count)))
    }

    fn lose_message(&mut self) -> Option<Message> {
        let message = self.take_message()?;
        self.objects[message.object].stored.happened(Mechanism::Lost);
        Some(message)
    }

    fn deliver(&mut self) {
        let Some(message) = self.take_message() else { return };
        let Message { object, content, .. } = message;
        match content {
            Content::Request(request) => {
                let (request, format) = ObjectRequest::from_text(&request).unwrap();
                let reply = self.objects[object].ask(&self.policy, &request, self.now).to_text(format, Rows::default());
                self.network.push(Message { content: Content::Reply(reply), ..message });
            }
            Content::Reply(reply) => self.receive(message.of, message.place, message.number, Ok(&reply)),
        }
    }

    /// Fails a request before it is done, or loses its answer afterwards.
    fn fail_message(&mut self) {
        let Some(message) = self.lose_message() else { return };
        let cause = if self.random.once_in(3) { Cause::Overloaded } else { Cause::Failed };
        let failure = Failure { cause, is_retryable: self.random.once_in(2) };
        self.receive(message.of, message.place, message.number, Err(failure));
    }

    fn receive(&mut self, of: usize, place: usize, number: u64, result: Result<&str, Failure>) {
        let one = &mut self.tries[of];
        if one.has_crashed || one.in_flight.get(&place).is_none_or(|&(expected, _)| expected != number) {
            return; // it is no longer awaited
        }
        one.in_flight.remove(&place);
        let result = result.map(|reply| ObjectReply::from_text(reply).unwrap());
        if let (None, Ok((ObjectReply::Decided(decided), _))) = (&one.ended, &result) {
            one.was_refused |= !decided.decision().is_allow();
        }
        match &result {
            Ok((ObjectReply::NoReservation, _)) | Err(_) if one.was_commit_sent => {
                one.was_undo_lost |= one.has_commit_failed;
                one.has_commit_failed = true;
            }
            _ => {}
        }
        let now = moment(self.now);
        let left = match result {
            Ok(answer) => Some(one.call.answered(place, Some(answer), now)),
            Err(failure) => {
                one.call.failed(place, failure, now);
                None
            }
        };
        self.drive(of, left);
    }

    /// Time passes, and calls that have waited too long time out.
    fn wait(&mut self, ms: usize) {
        let end = self.now + i64::try_from(ms).unwrap();
        loop {
            let alive = self.tries.iter().enumerate().filter(|(_, one)| !one.has_crashed);
            let waiting = alive
                .flat_map(|(of, one)| one.in_flight.iter().map(move |(&place, &(number, at))| (at, of, place, number)));
            let Some((at, of, place, number)) = waiting.min().filter(|(at, ..)| *at <= end) else { break };
            self.now = at;
            self.receive(of, place, number, Err(Failure { cause: Cause::Timeout, is_retryable: false }));
        }
        self.now = end;
    }

    fn crash_object(&mut self) {
        let index = self.random.below(self.objects.len());
        let arrived = self.random.below(3);
        self.objects[index].stored.crash(arrived);
        for one in self.tries.iter_mut().filter(|one| one.was_commit_sent && !one.is_over()) {
            one.was_undo_lost |= self.clients[one.client].keys.contains(&index);
        }
    }

    fn crash_frontend(&mut self) {
        let count = self.tries.len();
        let one = &mut self.tries[self.random.below(count)];
        if !one.has_crashed && !one.is_over() {
            one.has_crashed = true;
            one.ended.get_or_insert(Ended::Crashed);
            one.has_commit_failed |= one.was_commit_sent;
            one.was_undo_lost |= one.was_commit_sent;
        }
    }

    /// Plays to the end and checks what was taken.
    pub(crate) fn finish(mut self) -> Vec<(Ended, bool)> {
        while !self.network.is_empty() || self.tries.iter().any(|one| one.ended.is_none()) {
            self.step();
        }
        let batch_ms = usize::try_from(BATCH_MS).unwrap();
        self.wait(batch_ms);
        while !self.network.is_empty() {
            self.deliver();
        }
        self.now += HOLD_MS;
        let levels: Vec<u64> = (0..self.objects.len()).map(|object| self.level(object)).collect();
        let counted = |client: usize, object: usize| (CAPACITY - levels[object]) / share_of(client) % 4;
        for (client, Client { keys, has_key }) in self.clients.iter().enumerate() {
            let taken: Vec<u64> = keys.iter().map(|&object| counted(client, object)).collect();
            let tries: Vec<&Try> = self.tries.iter().filter(|one| one.client == client).collect();
            let ended: Vec<Ended> = tries.iter().filter_map(|one| one.ended).collect();
            let what = format!("client {client}, key: {has_key}, {ended:?}: {taken:?}");
            assert!(taken.iter().all(|&count| count <= 1), "never twice: {what}");
            if ended.contains(&Ended::Granted) {
                assert!(taken.iter().all(|&count| count == 1), "a granted batch is taken: {what}");
            } else if ended.iter().all(|ended| matches!(ended, Ended::Refused | Ended::NotDone)) {
                assert!(taken.iter().all(|&count| count == 0), "a refused one is not: {what}");
            }
            let is_in_part = taken.iter().any(|count| *count != taken[0]);
            let is_relied_on = |one: &&Try| {
                let overlaps = |one: &Try, other: &Try| one.life.contains(other.life.start());
                tries.iter().any(|other| one.life != other.life && (overlaps(one, other) || overlaps(other, one)))
            };
            let mut failed = tries.iter().filter(|one| one.has_commit_failed);
            let is_excused = failed.any(|one| one.was_undo_lost || is_relied_on(one));
            assert!(!is_in_part || is_excused, "all or none: {what}");
        }
        let in_part = |one: &Try| {
            let counts = self.clients[one.client].keys.iter().map(|&object| counted(one.client, object));
            counts.clone().min() != counts.max()
        };
        self.tries.iter().filter_map(|one| Some((one.ended?, in_part(one)))).collect()
    }

    /// The tokens left, with nothing held any more.
    fn level(&mut self, object: usize) -> u64 {
        let look = request(Action::Look(Verb::Refund), vec![vec![0, 0]]);
        match self.objects[object].ask(&self.policy, &look, self.now) {
            ObjectReply::Decided(Decided { open_reservations: 0, limits, .. }) => limits[0].remaining,
            other => panic!("{other:?}"),
        }
    }
}

impl Try {
    /// Whether the reply is known and no call is due or in flight.
    fn is_over(&self) -> bool {
        self.call.is_decided() && self.in_flight.is_empty()
    }
}

impl Ended {
    /// How an attempt with this reply has ended.
    fn by(reply: &Reply) -> Self {
        match reply.status {
            503 if reply.body().contains(r#""cause":"overloaded""#) => Self::NotDone,
            503 => Self::Failed,
            _ if Told::by(reply).allowed => Self::Granted,
            _ => Self::Refused,
        }
    }
}

/// The cost of a client: a power of four, so that each can be recovered from the sum of all.
fn share_of(client: usize) -> u64 {
    4_u64.pow(u32::try_from(client).unwrap())
}

impl Object {
    fn new(key: usize, ahead_ms: usize) -> Self {
        let ahead_ms = i64::try_from(ahead_ms).unwrap() - 500;
        Self {
            name: object_of(&key.to_string()),
            stored: Stored::new(0),
            committed: BTreeSet::new(),
            shared: BTreeMap::new(),
            ahead_ms,
        }
    }

    fn ask(&mut self, policy: &[Arc<Policy>], request: &ObjectRequest, now: i64) -> ObjectReply {
        let reply = self.stored.ask(policy, request, now + self.ahead_ms, || panic!("ids are given"));
        let written = self.stored.kept().take_rows().written;
        if let (Action::Hold(id), Some(request_id)) = (request.action, request.request_id) {
            self.shared.insert(id, request_id.id);
        }
        match request.action {
            Action::Settle(id) if matches!(reply, ObjectReply::Decided(_)) => {
                self.committed.extend(self.shared.get(&id).copied().or(Some(id.into())));
            }
            Action::Cancel(id) if self.committed.contains(&self.shared.get(&id).copied().unwrap_or(id.into())) => {}
            Action::Settle(_) => {}
            _ => assert_eq!(written, 0, "{request:?}"),
        }
        reply
    }
}
