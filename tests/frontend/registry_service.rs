//! Answers to operators, from their requests to the registry's object and back, and that its rows have everything it answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use serde_json::Value;
use tollgate::api::AdminQuestion;
use tollgate::frontend::{AdminOutcome, Asked, RegistryService, Step};
use tollgate::key_hash::KeyHasher;
use tollgate::metrics::{Counts, INLINE_POLICIES, Listeners, LiveBatch, Report};
use tollgate::protocol::{KeyAct, Poll};
use tollgate::registry::{Kept, PollError, Storage, Writes};

use super::world::{Answer, Deployment, OPERATOR, OPERATOR_OF_API, START, World, answer};

/// The rows of the registry's object, which outlive it.
#[derive(Clone, Default)]
pub(crate) struct Disk(Rc<RefCell<Rows>>);

#[derive(Default)]
pub(crate) struct Rows {
    all: BTreeMap<String, String>,
    /// How many times the registry was read, and how many times rows were written.
    loads: usize,
    writes: usize,
    /// How many rows of the audit log the last answer needed.
    audit_reads: usize,
    /// Whether the audit log cannot be read.
    fails: bool,
}

impl Storage for Disk {
    type Error = &'static str;

    fn rows(&mut self, after: &str, count: u32) -> Result<Vec<(String, String)>, Self::Error> {
        let mut rows = self.0.borrow_mut();
        rows.loads += 1;
        let above = rows.all.range::<str, _>((Bound::Excluded(after), Bound::Unbounded)).take(count as usize);
        Ok(above.map(|(name, row)| (name.clone(), row.clone())).collect())
    }

    fn rows_of(&mut self, names: &[String]) -> Result<Vec<String>, Self::Error> {
        let mut rows = self.0.borrow_mut();
        rows.audit_reads = names.len();
        if rows.fails {
            Err("the storage failed")
        } else {
            Ok(names.iter().filter_map(|name| rows.all.get(name).cloned()).collect())
        }
    }

    fn write(&mut self, writes: &Writes) -> Result<(), Self::Error> {
        let mut rows = self.0.borrow_mut();
        rows.writes += 1;
        for (name, row) in writes {
            match row {
                Some(row) => _ = rows.all.insert(name.clone(), row.clone()),
                None => _ = rows.all.remove(name),
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, names: &[String]) {
        panic!("{names:?}");
    }
}

impl Disk {
    pub(crate) fn service(&self, now: i64, random: u64) -> RegistryService<Self> {
        RegistryService::new(Kept::new(self.clone(), KeyHasher::default()), now, Some(random))
    }

    pub(crate) fn writes(&self) -> usize {
        self.0.borrow().writes
    }

    fn loads(&self) -> usize {
        self.0.borrow().loads
    }

    fn all(&self) -> BTreeMap<String, String> {
        self.0.borrow().all.clone()
    }
}

/// A deployment and its registry.
struct Office {
    world: World,
    service: RegistryService<Disk>,
    disk: Disk,
    /// The last line for the log.
    changed: Option<String>,
    /// Whether the last answer was news.
    is_news: bool,
    /// How many times the object has started.
    starts: u64,
}

impl Office {
    fn new() -> Self {
        let policies = r#"{"api":"10/1m","daily":"9/1day"}"#;
        let world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
        let disk = Disk::default();
        let service = disk.service(world.now, random(1));
        let mut office = Self { world, service, disk, changed: None, is_news: false, starts: 1 };
        office.refresh();
        office
    }

    /// The frontend polls for changes, and reports its counts.
    fn refresh(&mut self) {
        let now = self.world.now();
        let mut report = self.world.service.isolate().report(now, &mut || Some(1));
        let mut question = self.world.service.poll(now);
        while let Some(text) = question {
            let update = self.service.poll(&text, report.as_deref(), now.at).unwrap().unwrap();
            if let Some(report) = report.take() {
                self.world.service.isolate().confirm(&report);
            }
            question = self.world.service.updated(&update, now).unwrap();
        }
    }

    /// The object restarts.
    fn crash(&mut self) {
        self.starts += 1;
        self.service = self.disk.service(self.world.now, random(self.starts));
    }

    fn ask(&mut self, method: &str, url: &str, body: &str, authorization: &str) -> Answer {
        let authorization = Some(authorization);
        let asked =
            Asked { url, method, authorization, body: body.as_bytes(), if_match: Some("*"), ..Asked::default() };
        let now = self.world.now();
        let text = match self.world.service.ask(&asked, now, &mut || Some(9)) {
            Step::Administer(question) => question.to_text(),
            Step::Reply(reply) => return answer(reply),
            _ => panic!("not for the registry: {url}"),
        };
        let question = AdminQuestion::from_text(&text).unwrap();
        let writes = self.disk.writes();
        self.disk.0.borrow_mut().audit_reads = 0;
        let AdminOutcome { reply, changed, is_news } = self.service.administer(&question, now.at).unwrap();
        assert_eq!(changed.is_some(), self.disk.writes() > writes, "{url}: {changed:?}");
        (self.changed, self.is_news) = (changed, is_news);
        answer(reply)
    }

    fn get(&mut self, url: &str) -> Value {
        let answer = self.ask("GET", url, "", OPERATOR);
        assert_eq!(answer.status, 200, "{url}: {}", answer.reply.body());
        answer.body
    }
}

/// The random bits of the object's `start`th start.
const fn random(start: u64) -> u64 {
    start << 40
}

/// A change that bans these keys.
fn bans(keys: &[(&str, &str)]) -> String {
    let ban = |(policy, key): &(&str, &str)| format!(r#"{{"policy":"{policy}","key":"{key}","banned":true}}"#);
    format!(r#"{{"overrides":[{}]}}"#, keys.iter().map(ban).collect::<Vec<_>>().join(","))
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[test]
fn an_operators_change_is_logged_stored_and_served_by_another_object() {
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

/// It is in the caller's name, and ends `for_ms` after the registry receives it.
#[test]
fn a_block_is_an_override_that_ends() {
    let mut office = Office::new();
    let block = |policy: &str| format!(r#"{{"policy":"{policy}","key":["a", "b"],"for_ms":60000}}"#);
    let refused = office.ask("POST", "/v1/keys/block", &block("daily"), OPERATOR_OF_API);
    assert_eq!(refused.status, 404, "{}", refused.body);
    let known: Vec<_> = ["api", "daily"].into_iter().filter(|name| refused.reply.body().contains(name)).collect();
    assert_eq!(known, ["api", "daily"], "the one that is asked for, and the only one that the token may name");
    for name in ["x", INLINE_POLICIES] {
        let unknown = office.ask("POST", "/v1/keys/block", &block(name), OPERATOR);
        assert_eq!((unknown.status, office.changed.as_deref()), (404, None), "{}", unknown.body);
    }
    for (body, expected) in [("{}", "`policy`"), (r#"{"policy":"api","key":["a"],"for_ms":1}"#, "`for_ms`")] {
        let invalid = office.ask("POST", "/v1/keys/block", body, OPERATOR);
        let detail = invalid.body["detail"].as_str().unwrap();
        assert_eq!((invalid.status, detail.contains(expected), &office.changed), (400, true, &None), "{detail}");
    }
    let done = office.ask("POST", "/v1/keys/block", &block("api"), OPERATOR_OF_API);
    assert_eq!((done.status, &done.body["created"]), (200, &1.into()), "{}", done.body);
    assert_eq!(office.changed.as_deref(), Some("operator-of-api has changed overrides"));
    let until = office.world.now + 60_000;
    let written = serde_json::json!({"policy": "api", "key": ["a", "b"], "banned": true, "until": until});
    assert_eq!(office.get("/v1/overrides")["overrides"][0]["override"], written);
    office.refresh();
    let consume = r#"{"policy":"api","key":["a","b"]}"#;
    for (now, status) in [(until - 1, 429), (until, 200)] {
        office.world.now = now;
        assert_eq!(office.world.post("/v1/consume", consume).status, status, "{now}");
    }
}

/// The frontend that hears news polls at once.
#[test]
fn news_are_changes_and_new_listeners() {
    let mut office = Office::new();
    let (ban, block) = (bans(&[("api", "a")]), r#"{"policy":"api","key":"b","for_ms":60000}"#);
    for (method, url, body, is_news) in [
        ("PUT", "/v1/policies/api?dry_run=true", r#""20/1m""#, false),
        ("PUT", "/v1/policies/api", r#"{"rate":-1}"#, true),
        ("PUT", "/v1/policies/api", r#""20/1m""#, true),
        ("GET", "/v1/policies/api", "", false),
        ("DELETE", "/v1/policies/daily", "", true),
        ("PUT", "/v1/overrides?dry_run=true", &ban, false),
        ("PUT", "/v1/overrides", "{}", false),
        ("PUT", "/v1/overrides", &ban, true),
        ("PUT", "/v1/overrides", &ban, true), // the same again: the first answer may have been lost
        ("GET", "/v1/overrides", "", false),
        ("DELETE", "/v1/overrides?policy=api&key=%22a%22", "", true),
        ("DELETE", "/v1/overrides?policy=api&key=%22a%22&dry_run=true", "", false),
        ("POST", "/v1/keys/block", block, true),
        ("POST", "/v1/keys/block", "{}", false),
        ("GET", "/v1/audit", "", false),
        ("GET", "/v1/metrics", "", false),
        ("GET", "/v1/decisions", "", true),
        ("GET", "/v1/decisions?policy=unknown", "", false),
        // The registry has forgotten this one, so it starts anew.
        ("GET", "/v1/decisions?after=a-1f", "", true),
    ] {
        let answer = office.ask(method, url, body, OPERATOR);
        assert_eq!(office.is_news, is_news, "{method} {url}: {}", answer.body);
    }
    let cursor = office.get("/v1/decisions")["cursor"].as_str().unwrap().to_owned();
    office.get(&format!("/v1/decisions?after={cursor}"));
    assert!(!office.is_news, "it goes on listening");
}

#[test]
fn policies_that_a_frontend_has_sent_survive_a_restart() {
    let mut office = Office::new();
    office.crash();
    assert_eq!(names(&office.get("/v1/policies")["policies"]), ["api", "daily"]);
}

/// The moment is the clock's, not just one after that of the last change.
#[test]
fn a_change_has_the_moment_of_its_request() {
    let mut office = Office::new();
    let policies = office.get("/v1/policies");
    assert_eq!((&policies["as_of"], &policies["policies"][0]["version"]), (&START.into(), &START.into()));
    office.world.now += 20_000;
    let now = Value::from(office.world.now);
    assert_eq!(office.ask("PUT", "/v1/policies/api", r#""20/1m""#, OPERATOR).status, 200);
    assert_eq!(office.get("/v1/policies/api")["version"], now);
    assert_eq!((&office.get("/v1/policies")["as_of"], &office.get("/v1/audit")["acts"][0]["at"]), (&now, &now));
    office.world.now += 20_000;
    let now = Value::from(office.world.now);
    assert_eq!(office.ask("PUT", "/v1/overrides", &bans(&[("api", "a")]), OPERATOR).body["at"], now);
    for url in ["/v1/overrides", "/v1/overrides?policy=api&key=%22a%22"] {
        let found = office.get(url);
        assert_eq!((&found["as_of"], &found["overrides"][0]["since"]), (&now, &now), "{url}");
    }
}

#[test]
fn overrides_are_listed_in_pages_by_policy_and_until_they_end() {
    let mut office = Office::new();
    let until = office.world.now + 60_000;
    let all = format!(
        r#"{{"overrides":[{{"policy":"api","key":"a","banned":true}},{{"policy":"api","key":"b","banned":true}},
            {{"policy":"daily","key":"c","banned":true,"until":{until}}}]}}"#
    );
    assert_eq!(office.ask("PUT", "/v1/overrides", &all, OPERATOR).status, 200);
    let keys = |page: &Value| {
        let key = |item: &Value| item["override"]["key"].as_str().unwrap().to_owned();
        page["overrides"].as_array().unwrap().iter().map(key).collect::<Vec<_>>()
    };
    for (limit, lens) in [(1, &[1, 1, 1][..]), (2, &[2, 1]), (3, &[3])] {
        let (mut found, mut pages, mut after) = (Vec::new(), Vec::new(), String::new());
        while pages.len() <= 3 {
            let page = office.get(&format!("/v1/overrides?limit={limit}{after}"));
            pages.push(keys(&page).len());
            found.extend(keys(&page));
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        found.sort();
        assert_eq!((found, &pages[..]), (["a", "b", "c"].map(str::to_owned).to_vec(), lens), "limit {limit}");
    }
    let mut list = |query: &str, authorization, now| {
        office.world.now = now;
        let answer = office.ask("GET", &format!("/v1/overrides{query}"), "", authorization);
        assert_eq!((answer.status, &answer.body["next"]), (200, &Value::Null), "{query}: {}", answer.body);
        let mut found = keys(&answer.body);
        found.sort();
        found
    };
    for (query, authorization, now, expected) in [
        ("", OPERATOR, until - 1, &["a", "b", "c"][..]),
        ("", OPERATOR, until, &["a", "b"]),
        ("", OPERATOR_OF_API, until - 1, &["a", "b"]),
        ("?policy=api", OPERATOR, until - 1, &["a", "b"]),
        ("?policy=api", OPERATOR_OF_API, until - 1, &["a", "b"]),
        ("?policy=daily", OPERATOR, until - 1, &["c"]),
        ("?policy=daily", OPERATOR_OF_API, until - 1, &[]),
        ("?policy=daily&key=%22c%22", OPERATOR, until - 1, &["c"]),
        ("?policy=daily&key=%22c%22", OPERATOR, until, &[]),
        ("?policy=api&key=%22c%22", OPERATOR, until - 1, &[]),
    ] {
        assert_eq!(list(query, authorization, now), expected, "{query} {now}");
    }
    let foreign = office.ask("GET", "/v1/overrides?policy=daily&key=%22c%22", "", OPERATOR_OF_API);
    assert_eq!(
        (foreign.status, &foreign.body["detail"]),
        (400, &r#"override.policy: there is no policy "daily""#.into())
    );
    let misspelt = office.ask("GET", "/v1/overrides?policy=&prefix=", "", OPERATOR);
    let lines = misspelt.body["detail"].as_str().unwrap().split("; ");
    let places: Vec<_> = lines.map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!((misspelt.status, places), (400, vec!["override.policy", "override.prefix"]), "{}", misspelt.body);
}

#[test]
fn a_dry_run_says_that_it_is_one_and_what_would_change() {
    let mut office = Office::new();
    // The dry run creates nothing, so the next request still can; after that nothing is left to create.
    for (query, is_dry_run, created, listed) in
        [("?dry_run=true", true, 1, 0), ("?dry_run=false", false, 1, 1), ("", false, 0, 1)]
    {
        let answer = office.ask("PUT", &format!("/v1/overrides{query}"), &bans(&[("api", "a")]), OPERATOR);
        assert_eq!(
            (&answer.body["dry_run"], &answer.body["created"]),
            (&is_dry_run.into(), &created.into()),
            "{query}"
        );
        assert_eq!(office.changed.is_some(), created > 0 && !is_dry_run, "{query}");
        assert_eq!(office.get("/v1/overrides")["overrides"].as_array().unwrap().len(), listed, "{query}");
    }
}

/// A page reads as many rows as it has acts. By key, all acts on keys are read, since their rows are not kept by key.
#[test]
fn the_audit_log_is_read_in_pages_and_by_key() {
    let mut office = Office::new();
    for keys in [&[("api", "a")][..], &[("daily", "a")], &[("api", "b")]] {
        assert_eq!(office.ask("PUT", "/v1/overrides", &bans(keys), OPERATOR).status, 200);
    }
    let read = |office: &mut Office, query: &str| {
        let (mut pages, mut before) = (Vec::new(), String::new());
        while pages.len() <= 5 {
            let page = office.get(&format!("/v1/audit?{query}{before}"));
            pages.push((page["acts"].as_array().unwrap().len(), office.disk.0.borrow().audit_reads));
            let Some(next) = page["next"].as_u64() else { break };
            before = format!("&before={next}");
        }
        pages
    };
    // The deployment's two policies, then three overrides.
    assert_eq!(read(&mut office, "limit=100"), [(5, 5)]);
    assert_eq!(read(&mut office, "limit=3"), [(3, 3), (2, 2)]);
    assert_eq!(read(&mut office, "key=%22a%22"), [(2, 3)]);
    assert_eq!(read(&mut office, "key=%22a%22&limit=1"), [(1, 3), (1, 1)]);
    assert_eq!(read(&mut office, "key=%22b%22&limit=1"), [(1, 3)]);
    assert_eq!(read(&mut office, "key=%22c%22"), [(0, 3)]);
    let wrong = office.ask("GET", "/v1/audit?key=7", "", OPERATOR);
    assert_eq!(wrong.status, 400);
    assert!(wrong.body["detail"].as_str().unwrap().starts_with("`key` must be "), "{}", wrong.body);
}

#[test]
fn a_failure_to_read_the_audit_log_is_passed_on() {
    let Office { mut service, disk, .. } = Office::new();
    let question = AdminQuestion::from_text(r#"{"act":"audit","query":"","by":"ops","body":""}"#).unwrap();
    disk.0.borrow_mut().fails = true;
    assert_eq!(service.administer(&question, START).err(), Some("the storage failed"));
}

#[test]
fn an_act_on_a_key_is_in_the_audit_log_and_in_the_rows() {
    let mut office = Office::new();
    let (act, by, policy) = ("key.reset".to_owned(), "ops".to_owned(), "api".to_owned());
    let key = "0123456789abcdef".to_owned();
    let act = KeyAct { act, by, key, policy, before: None, after: None, is_replayed: false };
    office.service.record(&act, office.world.now).unwrap();
    for _ in 0..2 {
        let audit = office.get("/v1/audit?limit=1");
        let found = ["act", "by", "policy", "key"].map(|name| audit["acts"][0][name].as_str());
        assert_eq!(found, ["key.reset", "ops", "api", "0123456789abcdef"].map(Some));
        office.crash();
    }
}

#[test]
fn a_malformed_request_does_not_load_the_registry() {
    let mut office = Office::new();
    office.crash();
    let loads = office.disk.loads();
    assert_eq!(office.ask("GET", "/v1/audit?limit=0", "", OPERATOR).status, 400);
    assert_eq!(office.disk.loads(), loads);
    assert_eq!(office.ask("GET", "/v1/audit?limit=1", "", OPERATOR).status, 200);
    assert!(office.disk.loads() > loads);
}

#[test]
fn a_refused_poll_changes_nothing_and_the_registry_stays_in_memory() {
    let mut office = Office::new();
    let (loads, rows) = (office.disk.loads(), office.disk.all());
    let poll = Poll {
        as_of: i64::MAX,
        born_at: 0,
        deployment: "00".into(),
        policies: Some("[]"),
        overrides_at: None,
        is_loading: false,
    };
    let error = office.service.poll(&poll.to_text(), None, office.world.now).unwrap().unwrap_err();
    assert!(!error.to_string().is_empty());
    office.refresh();
    assert_eq!((office.disk.loads(), office.disk.all()), (loads, rows));
}

/// An address counts as its network, of the default length.
#[test]
fn acts_on_an_address_are_found_by_any_address_of_its_network() {
    let mut office = Office::new();
    let ban = r#"{"overrides":[{"policy":"api","key":{"ip":"2001:db8::1"},"banned":true}]}"#;
    assert_eq!(office.ask("PUT", "/v1/overrides", ban, OPERATOR).status, 200);
    for (address, count) in [("2001:db8::1", 1), ("2001:db8::8000:0:0:1", 1), ("2001:db8:0:1::1", 0)] {
        let audit = office.get(&format!("/v1/audit?key=%7B%22ip%22:%22{address}%22%7D"));
        assert_eq!(audit["acts"].as_array().unwrap().len(), count, "{address}");
    }
}

#[test]
fn a_restricted_operator_sees_and_changes_only_its_policies() {
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
fn counts_and_decisions_of_frontends_are_shown() {
    let mut office = Office::new();
    let asked = |office: &mut Office, url| office.ask("GET", url, "", OPERATOR).reply.body();
    let first = office.get("/v1/decisions?policy=api");
    office.refresh();
    for _ in 0..11 {
        office.world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    }
    office.world.now += 1_000;
    let batch = office.world.isolate.tap(|tap| tap.take(office.world.now)).expect("there is a listener");
    let batch = LiveBatch::from_text(&batch).unwrap();
    assert!(office.service.take_batch(&batch, office.world.now).is_some());
    office.refresh();
    let allowed = "tollgate_decisions_total{policy=\"api\",outcome=\"allowed\"} 10";
    assert!(asked(&mut office, "/v1/metrics").contains(allowed), "{}", asked(&mut office, "/v1/metrics"));
    let began = format!("tollgate_metrics_start_time_seconds {}\n", START / 1_000);
    assert!(asked(&mut office, "/v1/metrics").contains(&began), "{}", asked(&mut office, "/v1/metrics"));
    let top = office.get("/v1/metrics/top");
    assert_eq!((&top["policies"][0]["policy"], &top["now"]), (&"api".into(), &office.world.now.into()), "{top}");
    let after = &first["cursor"];
    let seen = office.get(&format!("/v1/decisions?policy=api&after={}", after.as_str().unwrap_or_default()));
    assert_eq!(seen["decisions"].as_array().map(Vec::len), Some(11), "{seen}");
}

#[test]
fn a_listener_gets_what_it_requested_and_learns_what_it_missed() {
    let mut office = Office::new();
    assert_eq!(office.service.take_batch(&LiveBatch::default(), office.world.now), None, "there is no listener yet");
    let urls =
        ["/v1/decisions?policy=api", "/v1/decisions?outcome=refused", "/v1/decisions?policy=daily&outcome=refused"];
    let cursors = urls.map(|url| office.get(url)["cursor"].as_str().unwrap().to_owned());
    office.refresh();
    for policy in ["api", "daily"] {
        for _ in 0..11 {
            office.world.post("/v1/consume", &format!(r#"{{"policy":"{policy}","key":"k"}}"#));
        }
    }
    office.world.now += 1_000;
    let batch = office.world.isolate.tap(|tap| tap.take(office.world.now)).unwrap();
    office.service.take_batch(&LiveBatch::from_text(&batch).unwrap(), office.world.now);
    for ((url, cursor), count) in urls.iter().zip(&cursors).zip([11, 3, 2]) {
        let seen = office.get(&format!("{url}&after={cursor}"));
        let found = (seen["decisions"].as_array().unwrap().len(), &seen["interrupted"]);
        assert_eq!(found, (count, &false.into()), "{url}");
    }
    office.crash();
    for (url, cursor) in urls.iter().zip(&cursors) {
        assert_eq!(office.get(&format!("{url}&after={cursor}"))["interrupted"], true, "{url}");
    }
}

/// Only the listeners of a restricted token count against that token's maximum.
#[test]
fn a_restricted_token_listens_to_fewer_things_at_once_than_an_unrestricted_one() {
    let outcomes = ["allowed", "refused", "never", "banned", "degraded"];
    for (authorization, last) in [(OPERATOR, 200), (OPERATOR_OF_API, 409)] {
        let mut office = Office::new();
        for (outcome, status) in outcomes.iter().zip([200, 200, 200, 200, last]) {
            let answer = office.ask("GET", &format!("/v1/decisions?outcome={outcome}"), "", authorization);
            assert_eq!(answer.status, status, "{outcome}: {}", answer.body);
        }
    }
}

/// Policies in requests share one name, which only an unrestricted token may use.
#[test]
fn decisions_under_policies_in_requests_have_listeners_too() {
    let mut office = Office::new();
    let url = format!("/v1/decisions?policy={INLINE_POLICIES}");
    assert_eq!(office.ask("GET", &url, "", OPERATOR).status, 200);
    assert_eq!(office.ask("GET", &url, "", OPERATOR_OF_API).status, 404);
}

/// An isolate that has been silent for a minute no longer counts.
#[test]
fn the_more_isolates_report_the_less_often_each_sends_decisions() {
    let mut office = Office::new();
    let mut isolate = 1_000;
    for (after_ms, new, reporting, pause_ms) in [(0, 149, 150, 1_500), (59_999, 0, 150, 1_500), (1, 120, 120, 1_200)] {
        office.world.now += after_ms;
        let now = office.world.now;
        for _ in 0..new {
            isolate += 1;
            let report = Report { isolate, number: 1, since: now, counts: Counts::default() };
            // The report counts, the poll does not.
            assert_eq!(office.service.poll("?", Some(&report.to_text()), now), Ok(Err(PollError::Unreadable)));
        }
        office.get("/v1/decisions");
        let listeners = office.service.take_batch(&LiveBatch::default(), now).unwrap();
        let Listeners { for_ms, pause_ms: found, all } = Listeners::from_text(&listeners).unwrap();
        assert_eq!((for_ms, found, all.len()), (15_000, pause_ms, 1));
        let metrics = office.ask("GET", "/v1/metrics", "", OPERATOR).reply.body();
        assert!(metrics.contains(&format!("tollgate_reporting_isolates {reporting}\n")), "{metrics}");
    }
}

#[test]
fn an_unknown_policy_is_named_with_those_that_exist() {
    let mut office = Office::new();
    for (method, url, authorization, detail) in [
        ("DELETE", "/v1/policies/unknown", OPERATOR, "there is no policy \"unknown\""),
        ("GET", "/v1/policies/unknown", OPERATOR, "there is no policy \"unknown\""),
        ("GET", "/v1/decisions?policy=unknown", OPERATOR, "there is no policy \"unknown\"; there are api, daily"),
        ("GET", "/v1/decisions?policy=daily", OPERATOR_OF_API, "there is no policy \"daily\"; there is only api"),
    ] {
        let answer = office.ask(method, url, "", authorization);
        assert_eq!((answer.status, &answer.body["detail"]), (404, &detail.into()), "{method} {url}");
    }
}

#[test]
fn an_unanswerable_request_is_explained_and_changes_nothing() {
    let mut office = Office::new();
    for (method, url, body, status) in [
        ("PUT", "/v1/policies/api", r#"{"rate":-1}"#, 400),
        ("PUT", "/v1/policies/api", "{", 400),
        ("GET", "/v1/policies/unknown", "", 404),
        ("GET", "/v1/decisions?policy=unknown", "", 404),
        ("GET", "/v1/audit?limit=0", "", 400),
        ("PUT", "/v1/overrides", r#"{"overrides":[{"policy":"unknown","key":"k","banned":true}]}"#, 400),
    ] {
        let before = office.disk.all();
        let answer = office.ask(method, url, body, OPERATOR);
        assert_eq!(answer.status, status, "{method} {url}: {}", answer.body);
        assert!(answer.body["detail"].is_string(), "{}", answer.body);
        assert_eq!(office.disk.all(), before, "{method} {url}");
    }
}
