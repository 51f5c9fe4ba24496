//! A deployment: frontends of one isolate, and the objects of keys, which are asked at once or not at all.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;
use tollgate::access::{CredentialSettings, Credentials, Names, SessionSettings};
use tollgate::api::Reply;
use tollgate::edge::{Failure, PolicySnapshot};
use tollgate::frontend::{Arrival, Asked, Call, Callers, Head, Isolate, Now, Receivers, Service, Settings, Step};
use tollgate::ledger::Ledger;
use tollgate::policy::{Cause, Policies};
use tollgate::protocol::{Format, ObjectReply, ObjectRequest, Rows};

pub(crate) const START: i64 = 1_700_000_000_000;

/// Tokens of 32 characters, and what each may do.
pub(crate) const CONSUMER: &str = "Bearer consumer-0123456789abcdef0123456789";
pub(crate) const ADJUSTER: &str = "Bearer adjuster-0123456789abcdef0123456789";
pub(crate) const OPERATOR: &str = "Bearer operator-0123456789abcdef0123456789";
pub(crate) const OPERATOR_OF_API: &str = "Bearer operator-of-api-0123456789abcdef0123";

/// As SHA-256 of what follows `Bearer `.
fn tokens() -> String {
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
const GRANT_KEYS: &str = r#"{"2026":"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE"}"#;

pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) isolate: Rc<Isolate>,
    pub(crate) now: i64,
    objects: BTreeMap<String, Ledger>,
    /// How calls fail, if they do; else they are answered at once.
    pub(crate) failure: Option<Failure>,
    /// What objects were asked.
    pub(crate) asked: Vec<ObjectRequest>,
    random: u64,
    has_randomness: bool,
}

/// What a test changes of a deployment.
pub(crate) struct Deployment<'a> {
    pub(crate) policies: &'a str,
    pub(crate) has_registry: bool,
    pub(crate) sessions: Option<&'a str>,
    pub(crate) has_randomness: bool,
}

impl Default for Deployment<'_> {
    fn default() -> Self {
        Self { policies: r#"{"api":"10/1m"}"#, has_registry: false, sessions: None, has_randomness: true }
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
        let policies = Arc::new(Policies::parse(deployment.policies).unwrap());
        let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
        let credentials = Credentials::new(CredentialSettings {
            tokens: Some(&tokens()),
            grant_keys: Some(GRANT_KEYS),
            sessions: SessionSettings {
                sessions: deployment.sessions,
                secret: deployment.sessions.map(|_| "the-secret-of-the-captcha"),
                policies: Some(&names),
            },
            ..CredentialSettings::default()
        });
        let registry = deployment.has_registry.then(|| PolicySnapshot::new(deployment.policies, &policies).into());
        let settings = Settings {
            policies: Arc::clone(&policies),
            registry,
            sends_definitions: false,
            names: Names::without_secret(),
            receivers: Receivers::None,
            callers: Callers::WithCredentials(Box::new(credentials.unwrap())),
            memory: Rc::default(),
        };
        let isolate = Rc::new(Isolate::default());
        Self {
            service: Service::new(Ok(settings), Rc::clone(&isolate)),
            isolate,
            now: START,
            objects: BTreeMap::new(),
            failure: None,
            asked: Vec::new(),
            random: 1,
            has_randomness: deployment.has_randomness,
        }
    }

    pub(crate) const fn now(&self) -> Now {
        Now { at: self.now, waiting: self.now }
    }

    /// What a request by HTTP is told before its body is read.
    pub(crate) fn head(&self, method: &str, url: &str, authorization: Option<&str>) -> Result<Head, Reply> {
        let content_type = Some("application/json");
        let arrival = Arrival { method, url, authorization, content_type, ..Arrival::default() };
        self.service.head(&arrival, self.now())
    }

    /// Asks, as an operator unless `asked` says otherwise, and carries out what follows.
    pub(crate) fn ask(&mut self, asked: &Asked<'_>) -> Answer {
        let mut call = match self.begin(asked) {
            Ok(call) => call,
            Err(answer) => return *answer,
        };
        self.carry_out(&mut call);
        answer(call.reply(self.now()).clone())
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
        let mut next = || {
            *random += 1;
            has_randomness.then_some(*random << 20)
        };
        match service.ask(asked, now, &mut next) {
            Step::Call(call) => Ok(*call),
            Step::Reply(reply) => Err(Box::new(answer(reply))),
            Step::Administer { question, .. } => panic!("for the registry: {question:?}"),
            Step::InspectKey(questions) => panic!("for objects: {questions:?}"),
        }
    }

    /// Makes its calls until there are none, and sees to leases no more than a frontend that ends.
    pub(crate) fn carry_out(&mut self, call: &mut Call) {
        while let Some(next) = call.next(self.now()) {
            self.asked.push(next.request.clone());
            if let Some(failure) = self.failure {
                call.failed(next.object, failure, self.now());
                continue;
            }
            let request = ObjectRequest::from_text(&next.request.to_text(Format::NEWEST)).unwrap().0;
            let policies: Vec<_> = call.policies_of(next.object).cloned().map(Arc::new).collect();
            let ledger = self.objects.entry(call.object(next.object).to_owned()).or_insert_with(|| Ledger::new([], 0));
            self.random += 1;
            let id = self.random << 20;
            let (reply, _) = ledger.ask(&policies, &request, self.now, || Some(id)).unwrap();
            let (reply, rows) = ObjectReply::from_text(&reply.to_text(Format::NEWEST)).unwrap();
            call.answered(next.object, Some((reply, Rows { read: rows.read, written: 1 })), self.now());
        }
    }

    /// What this isolate has counted, as JSON.
    pub(crate) fn counted(&self) -> Value {
        let report = self.isolate.report(self.now(), &mut || Some(1)).unwrap();
        self.isolate.confirm(&report);
        serde_json::from_str(&report).unwrap()
    }
}

pub(crate) const fn failure(cause: Cause) -> Failure {
    Failure { cause, is_retryable: false }
}

pub(crate) fn answer(reply: Reply) -> Answer {
    Answer { status: reply.status, body: serde_json::from_str(&reply.body()).unwrap_or_default(), reply }
}
