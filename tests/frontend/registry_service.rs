//! What operators are answered, from their requests to the registry's object and back, and that its rows have all that it says.

use std::collections::BTreeMap;
use std::convert::Infallible;

use serde_json::Value;
use tollgate::api::AdminQuestion;
use tollgate::frontend::{AdminOutcome, Asked, RegistryService, Step};
use tollgate::key_hash::KeyHasher;
use tollgate::protocol::Poll;
use tollgate::registry::{AUDIT, Registry};

use super::world::{Answer, Deployment, OPERATOR, OPERATOR_OF_API, World, answer};

/// A deployment and its registry.
struct Office {
    world: World,
    registry: Registry,
    service: RegistryService,
    rows: BTreeMap<String, String>,
    /// The last line for the log.
    changed: Option<String>,
}

impl Office {
    fn new() -> Self {
        let policies = r#"{"api":"10/1m","daily":"9/1day"}"#;
        let world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
        let (registry, service) = (Registry::default(), RegistryService::new(world.now, 7));
        let mut office = Self { world, registry, service, rows: BTreeMap::new(), changed: None };
        office.refresh();
        office
    }

    /// The frontend asks what has changed, and tells what it has counted.
    fn refresh(&mut self) {
        let now = self.world.now();
        let report = self.world.isolate.report(now, &mut || Some(1)).unwrap();
        self.service.report(&report, now.at);
        self.world.isolate.confirm(&report);
        let mut question = self.world.service.poll(now);
        while let Some(text) = question {
            let poll = Poll::from_text(&text).unwrap();
            let (update, writes) = self.service.poll(&mut self.registry, &poll, now.at).unwrap();
            self.write(writes);
            question = self.world.service.updated(&update.to_text(), now).unwrap();
        }
    }

    fn write(&mut self, writes: tollgate::registry::Writes) {
        for (name, row) in writes {
            match row {
                Some(row) => _ = self.rows.insert(name, row),
                None => _ = self.rows.remove(&name),
            }
        }
    }

    /// The object restarts.
    fn crash(&mut self) {
        let rows = self.rows.iter().filter(|(name, _)| !name.starts_with(AUDIT));
        self.registry = Registry::new(KeyHasher::default(), rows.map(|(name, row)| (&**name, &**row)));
        self.service = RegistryService::new(self.world.now, 7);
    }

    fn ask(&mut self, method: &str, url: &str, body: &str, authorization: &str) -> Answer {
        let authorization = Some(authorization);
        let asked =
            Asked { url, method, authorization, body: body.as_bytes(), if_match: Some("*"), ..Asked::default() };
        let now = self.world.now();
        let text = match self.world.service.ask(&asked, now, &mut || Some(9)) {
            Step::Administer { question, .. } => question.to_text(),
            Step::Reply(reply) => return answer(reply),
            _ => panic!("not for the registry: {url}"),
        };
        let question = AdminQuestion::from_text(&text).unwrap();
        let request = match question.request() {
            Ok(request) => request,
            Err(problem) => return answer(problem.reply()),
        };
        let rows_of = |names: &[String]| {
            Ok::<_, Infallible>(names.iter().filter_map(|name| self.rows.get(name).cloned()).collect())
        };
        let Ok(AdminOutcome { reply, writes, changed }) =
            self.service.administer(&mut self.registry, (&question, request), now.at, rows_of);
        assert_eq!(changed.is_some(), !writes.is_empty(), "{url}: {changed:?}");
        self.changed = changed;
        self.write(writes);
        answer(reply)
    }

    fn get(&mut self, url: &str) -> Value {
        let answer = self.ask("GET", url, "", OPERATOR);
        assert_eq!(answer.status, 200, "{url}: {}", answer.reply.body());
        answer.body
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[test]
fn what_an_operator_has_changed_is_logged_written_and_answered_by_another_object() {
    let mut office = Office::new();
    assert_eq!(names(&office.get("/v1/policies")["policies"]), ["api", "daily"]);
    assert_eq!(office.ask("PUT", "/v1/policies/api?dry_run=true", r#""20/1m""#, OPERATOR).status, 200);
    assert_eq!(office.changed, None, "a dry run changes nothing");
    assert_eq!(office.ask("PUT", "/v1/policies/api", r#""20/1m""#, OPERATOR).status, 200);
    assert_eq!(office.changed.as_deref(), Some("operator has changed the policy api"));
    let ban = r#"{"overrides":[{"policy":"daily","key":"k","banned":true}]}"#;
    let banned = office.ask("PUT", "/v1/overrides", ban, OPERATOR);
    assert_eq!(
        (banned.status, office.changed.as_deref()),
        (200, Some("operator has changed overrides")),
        "{}",
        banned.body
    );
    for is_crashed in [false, true] {
        if is_crashed {
            office.crash();
        }
        let api = office.get("/v1/policies/api");
        assert_eq!((&api["policy"], &api["source"]), (&"20/1m".into(), &"admin".into()), "{api}");
        let overrides = office.get("/v1/overrides");
        assert_eq!(overrides["overrides"][0]["override"]["policy"], "daily", "{overrides}");
        let audit = office.get("/v1/audit");
        let acts: Vec<_> =
            audit["acts"].as_array().unwrap().iter().map(|entry| entry["act"].as_str().unwrap()).collect();
        assert_eq!(acts[..2], ["override.created", "policy.replaced"], "the latest first: {audit}");
    }
    office.refresh();
    assert_eq!(office.world.post("/v1/consume", r#"{"policy":"api","key":"k","cost":20}"#).status, 200);
    assert_eq!(office.world.post("/v1/consume", r#"{"policy":"daily","key":"k"}"#).status, 429);
}

#[test]
fn a_restricted_operator_is_told_of_its_policies_alone_and_changes_no_other() {
    let mut office = Office::new();
    let mine = office.ask("GET", "/v1/policies", "", OPERATOR_OF_API);
    assert_eq!(names(&mine.body["policies"]), ["api"]);
    for (method, url, body, status) in [
        ("GET", "/v1/policies/daily", "", 403),
        ("PUT", "/v1/policies/daily", r#""20/1m""#, 403),
        ("GET", "/v1/decisions?policy=daily", "", 404),
        ("PUT", "/v1/overrides", r#"{"overrides":[{"policy":"daily","key":"k","banned":true}]}"#, 400),
    ] {
        let answer = office.ask(method, url, body, OPERATOR_OF_API);
        assert_eq!(answer.status, status, "{method} {url}: {}", answer.body);
        assert_eq!(office.changed, None, "{method} {url}");
    }
    assert_eq!(office.ask("PUT", "/v1/policies/api", r#""20/1m""#, OPERATOR_OF_API).status, 200);
    assert_eq!(office.changed.as_deref(), Some("operator-of-api has changed the policy api"));
}

#[test]
fn what_frontends_have_counted_and_decided_is_shown() {
    let mut office = Office::new();
    let asked = |office: &mut Office, url| office.ask("GET", url, "", OPERATOR).reply.body();
    let first = office.get("/v1/decisions?policy=api");
    office.refresh();
    for _ in 0..11 {
        office.world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    }
    office.world.now += 1_000;
    let batch = office.world.isolate.tap(|tap| tap.take(office.world.now)).expect("there is a listener");
    let batch = tollgate::metrics::LiveBatch::from_text(&batch).unwrap();
    assert!(office.service.take_batch(&batch, office.world.now).is_some());
    office.refresh();
    let allowed = "tollgate_decisions_total{policy=\"api\",outcome=\"allowed\"} 10";
    assert!(asked(&mut office, "/v1/metrics").contains(allowed), "{}", asked(&mut office, "/v1/metrics"));
    let top = office.get("/v1/metrics/top");
    assert_eq!(top["policies"][0]["policy"], "api", "{top}");
    let after = &first["cursor"];
    let seen = office.get(&format!("/v1/decisions?policy=api&after={}", after.as_str().unwrap_or_default()));
    assert_eq!(seen["decisions"].as_array().map(Vec::len), Some(11), "{seen}");
}

#[test]
fn what_cannot_be_answered_is_said_and_changes_nothing() {
    let mut office = Office::new();
    for (method, url, body, status) in [
        ("PUT", "/v1/policies/api", r#"{"rate":-1}"#, 400),
        ("PUT", "/v1/policies/api", "{", 400),
        ("GET", "/v1/policies/unknown", "", 404),
        ("GET", "/v1/decisions?policy=unknown", "", 404),
        ("GET", "/v1/audit?limit=0", "", 400),
        ("PUT", "/v1/overrides", r#"{"overrides":[{"policy":"unknown","key":"k","banned":true}]}"#, 400),
    ] {
        let before = office.rows.clone();
        let answer = office.ask(method, url, body, OPERATOR);
        assert_eq!(answer.status, status, "{method} {url}: {}", answer.body);
        assert!(answer.body["detail"].is_string(), "{}", answer.body);
        assert_eq!(office.rows, before, "{method} {url}");
    }
}
