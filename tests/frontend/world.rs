//! A deployment: frontends of one isolate, and the objects of keys, which answer at once or not at all.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use tollgate::access::{CredentialSettings, Credentials, Names, SessionSettings, key_hash_in};
use tollgate::api::Reply;
use tollgate::edge::{Failure, ObjectCall, PolicySnapshot};
use tollgate::frontend::{
    Arrival, Asked, Call, Callers, Head, Isolate, KeyService, Now, Receivers, SentRequest, Service, Settings, Step,
};
use tollgate::policy::{Cause, Policies};
use tollgate::protocol::{
    Definitions, ObjectReply, ObjectRequest, OverrideChange, OverridesChange, Poll, Rows, definitions_of,
};
use tollgate::registry::Registry;

use super::disk::Disk;
use super::environment::Deployed;
use super::key_service::object;
use super::pairs::{Mechanism, Trace};
use super::split_mix::Random;

pub(crate) const START: i64 = 1_700_000_000_000;

/// The maximum lengths of bodies: of most requests, and of overrides.
pub(crate) const SHORT: usize = 16_384;
pub(crate) const LONG: usize = 1_048_576;

/// The clock from which waiting is timed is another one, which is so far behind that of decisions: whatever takes the wrong one is far off.
const BEHIND_MS: i64 = 1_000_000_000_007;

/// Tokens of 32 characters, and what each may do.
pub(crate) const CONSUMER: &str = "Bearer consumer-0123456789abcdef0123456789";
pub(crate) const ADJUSTER: &str = "Bearer adjuster-0123456789abcdef0123456789";
pub(crate) const OPERATOR: &str = "Bearer operator-0123456789abcdef0123456789";
pub(crate) const OPERATOR_OF_API: &str = "Bearer operator-of-api-0123456789abcdef0123";

/// A request to consume a token of the key `k`, without a credential.
pub(crate) const ABOUT_K: Asked<'_> = Asked {
    url: "/v1/consume",
    method: "POST",
    authorization: None,
    props: None,
    idempotency_key: None,
    body: br#"{"policy":"api","key":"k"}"#,
    newer: None,
    is_lost: false,
    if_match: None,
    if_none_match: None,
    address: None,
};

/// As SHA-256 of what follows `Bearer `.
pub(crate) fn tokens() -> String {
    let hash = |token: &str| {
        use sha2::{Digest, Sha256};
        let hash = Sha256::digest(token.trim_start_matches("Bearer "));
        hash.iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|digit| char::from_digit(digit.into(), 16).unwrap())
            .collect::<String>()
    };
    let [consumer, adjuster, operator, of_api] = [CONSUMER, ADJUSTER, OPERATOR, OPERATOR_OF_API].map(hash);
    format!(
        r#"{{"consumer":{{"sha256":"{consumer}","scopes":["consume"]}},
            "adjuster":{{"sha256":"{adjuster}","scopes":["adjust"]}},
            "operator":{{"sha256":"{operator}","scopes":["admin"]}},
            "operator-of-api":{{"sha256":"{of_api}","scopes":["admin"],"policies":["api"]}}}}"#
    )
}

/// The key with which this deployment signs grants.
pub(crate) const GRANT_KEYS: &str = r#"{"2026":"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE"}"#;

/// A grant for the key `k` of `api`, as a header.
pub(crate) fn grant(ends_at: i64) -> String {
    use base64ct::{Base64UrlUnpadded, Encoding};
    use hmac::{Hmac, KeyInit, Mac};
    let claims =
        format!(r#"{{"aud":"tollgate","exp":{},"key":"k","policies":["api"],"verbs":["consume"]}}"#, ends_at / 1_000);
    let encoded = |part: &[u8]| Base64UrlUnpadded::encode_string(part);
    let text = format!("{}.{}", encoded(br#"{"alg":"HS256","kid":"2026"}"#), encoded(claims.as_bytes()));
    let mac = Hmac::<sha2::Sha256>::new_from_slice(b"01234567890123456789012345678901").unwrap();
    format!("Bearer {text}.{}", encoded(&mac.chain_update(&text).finalize().into_bytes()))
}

pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) isolate: Rc<Isolate>,
    pub(crate) now: i64,
    /// Where this deployment has a registry.
    pub(crate) registry: Registry,
    objects: BTreeMap<String, KeyService<Disk>>,
    /// The definitions that objects have received.
    definitions: Definitions,
    /// How calls fail, if they do; otherwise they are answered at once.
    pub(crate) failure: Option<Failure>,
    /// The requests to objects.
    pub(crate) asked: Vec<ObjectRequest>,
    random: Random,
    /// How many ids objects have chosen.
    ids: u64,
    has_randomness: bool,
    trace: Trace,
}

/// The settings of a deployment that tests change.
pub(crate) struct Deployment<'a> {
    pub(crate) policies: &'a str,
    pub(crate) has_registry: bool,
    pub(crate) sessions: Option<&'a str>,
    pub(crate) has_randomness: bool,
    pub(crate) sends_definitions: bool,
    pub(crate) receivers: Receivers,
    pub(crate) sample: f64,
}

impl Deployment<'_> {
    pub(crate) const PLAIN: Self = Self {
        policies: r#"{"api":"10/1m"}"#,
        has_registry: false,
        sessions: None,
        has_randomness: true,
        sends_definitions: false,
        receivers: Receivers { has_queue: false, has_webhook: false, get_keys: false },
        sample: 0.0,
    };
}

impl Default for Deployment<'_> {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// An answer: its status, its members, and all of it.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) reply: Reply,
}

impl World {
    pub(crate) fn new(policies: &str) -> Self {
        Self::of(&Deployment { policies, ..Deployment::default() })
    }

    pub(crate) fn of(deployment: &Deployment<'_>) -> Self {
        let world = Self::with(settings(deployment));
        Self { has_randomness: deployment.has_randomness, ..world }
    }

    pub(crate) fn with(settings: Settings) -> Self {
        let isolate = Rc::new(Isolate::default());
        Self {
            service: Service::new(Ok(settings), Rc::clone(&isolate)),
            isolate,
            now: START,
            registry: Registry::default(),
            objects: BTreeMap::new(),
            definitions: Definitions::new(),
            failure: None,
            asked: Vec::new(),
            random: Random(1),
            ids: 0,
            has_randomness: true,
            trace: Trace::default(),
        }
    }

    /// The same isolate and objects with a frontend that has these policies, and remembers nothing.
    pub(crate) fn deploy(&mut self, policies: &str) {
        let settings = settings(&Deployment { policies, ..Deployment::default() });
        self.service = Service::new(Ok(settings), Rc::clone(&self.isolate));
    }

    pub(crate) const fn now(&self) -> Now {
        Now { at: self.now, waiting: self.now - BEHIND_MS }
    }

    /// The result for an HTTP request before its body is read.
    pub(crate) fn head(&self, method: &str, url: &str, authorization: Option<&str>) -> Result<Head, Reply> {
        let content_type = Some("application/json");
        let arrival = Arrival { method, url, authorization, content_type, ..Arrival::default() };
        self.service.head(&arrival, self.now())
    }

    /// Makes a request, as an operator unless `asked` says otherwise, and carries out its calls.
    pub(crate) fn ask(&mut self, asked: &Asked<'_>) -> Answer {
        let mut call = match self.begin(asked) {
            Ok(call) => call,
            Err(answer) => return *answer,
        };
        self.carry_out(&mut call);
        self.reply_of(&mut call)
    }

    /// The answer of a request whose calls have been made.
    pub(crate) fn reply_of(&mut self, call: &mut Call) -> Answer {
        let answer = answer(call.reply(self.now()).clone());
        let key = key_hash_in(call.object(0));
        for policy in call.policies_of(0) {
            self.trace.answered_from(key, policy.name(), answer.body["source"].as_str());
        }
        answer
    }

    /// A request about the budget of `key`.
    pub(crate) fn post(&mut self, url: &str, body: &str) -> Answer {
        let authorization = match url {
            "/v1/consume" | "/v1/peek" | "/v1/batch" | "/v1/inspect" => CONSUMER,
            "/v1/charge" | "/v1/refund" | "/v1/reset" => ADJUSTER,
            _ => OPERATOR,
        };
        let authorization = Some(authorization);
        self.ask(&Asked { url, method: "POST", authorization, body: body.as_bytes(), ..Asked::default() })
    }

    /// The calls of a request, or the reply if there are none.
    pub(crate) fn begin(&mut self, asked: &Asked<'_>) -> Result<Call, Box<Answer>> {
        let now = self.now();
        let Self { service, random, has_randomness, .. } = self;
        let mut next = || has_randomness.then(|| random.next());
        match service.ask(asked, now, &mut next) {
            Step::Call(call) => Ok(*call),
            Step::Reply(reply) => Err(Box::new(answer(reply))),
            Step::Administer(question) => panic!("for the registry: {question:?}"),
            Step::InspectKey(questions) => panic!("for objects: {questions:?}"),
        }
    }

    /// Makes its calls until there are none; leases are left alone, as by a frontend that ends.
    pub(crate) fn carry_out(&mut self, call: &mut Call) {
        while let Some(next) = call.next(self.now()) {
            self.asked.push(next.request.clone());
            if let Some(failure) = self.failure {
                self.fail(call, next.object, failure);
                continue;
            }
            let answer = self.object_reply(call, &next);
            call.answered(next.object, Some(answer), self.now());
        }
    }

    /// A call to an object fails, whether or not it has been carried out.
    pub(crate) fn fail(&mut self, call: &mut Call, object: usize, failure: Failure) {
        self.trace.happened(key_hash_in(call.object(object)), Mechanism::Lost);
        call.failed(object, failure, self.now());
    }

    /// The object's answer to a call, with one row written.
    pub(crate) fn object_reply(&mut self, call: &Call, next: &ObjectCall) -> (ObjectReply, Rows) {
        let policies: Vec<_> = call.policies_of(next.object).cloned().map(Arc::new).collect();
        let name = call.object(next.object);
        let object = self.objects.entry(name.to_owned()).or_insert_with(|| object(&Deployed::default()).0);
        self.ids += 1;
        let id = self.ids << 20;
        // It always gets them, so that tests need not count requests for them.
        let definitions = Some(definitions_of(call.policies_of(next.object)));
        let sent = SentRequest { definitions, ..call.sent(next) };
        let text = object.decide(sent, &mut self.definitions, self.now, || Some(id)).unwrap();
        let (reply, _) = ObjectReply::from_text(&text).unwrap();
        self.trace.answered(key_hash_in(name), &policies, &next.request, &reply, self.now);
        (reply, Rows { read: 0, written: 1 })
    }

    /// Polls the registry for changes until there are no more.
    pub(crate) fn refresh(&mut self) {
        let mut question = self.service.poll(self.now());
        while let Some(text) = question {
            let (update, _) = self.registry.poll(&Poll::from_text(&text).unwrap(), self.now).unwrap();
            question = self.service.updated(&update.to_text(), self.now()).unwrap();
        }
    }

    /// Sets these overrides in the registry, and polls it for changes.
    pub(crate) fn set(&mut self, overrides: &str) {
        self.now += 20_000;
        let text = format!(r#"{{"overrides":[{overrides}]}}"#);
        let changes = OverrideChange::parse_all(&text).unwrap();
        let change = OverridesChange { changes, by: "ops", only: None, carry: None, is_dry_run: false };
        self.registry.change_overrides(change, self.now).unwrap();
        self.refresh();
    }

    /// The counts of this isolate, as JSON.
    pub(crate) fn counted(&self) -> Value {
        let report = self.isolate.report(self.now(), &mut || Some(1)).unwrap();
        self.isolate.confirm(&report);
        serde_json::from_str(&report).unwrap()
    }
}

pub(crate) fn settings(deployment: &Deployment<'_>) -> Settings {
    let policies = Arc::new(Policies::parse(deployment.policies).unwrap());
    let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
    let credentials = Credentials::new(CredentialSettings {
        tokens: Some(&tokens()),
        grant_keys: Some(GRANT_KEYS),
        sessions: SessionSettings {
            sessions: deployment.sessions,
            secret: deployment.sessions.map(|_| "the-secret-of-the-captcha"),
            policies: Some(&names),
            shared: &[],
            with_slots: &[],
        },
        ..CredentialSettings::default()
    });
    let registry = deployment.has_registry.then(|| PolicySnapshot::new(deployment.policies, &policies).into());
    Settings {
        registry,
        sends_definitions: deployment.sends_definitions,
        receivers: deployment.receivers,
        sample: deployment.sample,
        callers: Callers::WithCredentials(Box::new(credentials.unwrap())),
        names: Names::without_secret(),
        memory: Rc::default(),
        policies,
    }
}

pub(crate) const fn failure(cause: Cause) -> Failure {
    Failure { cause, is_retryable: false }
}

pub(crate) fn answer(reply: Reply) -> Answer {
    Answer { status: reply.status, body: serde_json::from_str(&reply.body()).unwrap_or_default(), reply }
}
