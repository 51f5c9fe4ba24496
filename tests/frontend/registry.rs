//! A frontend's copy of the registry, and operators' requests to it.

use tollgate::api::AdminAct;
use tollgate::edge::Due;
use tollgate::frontend::{Asked, Service, Step};
use tollgate::protocol::{Condition, ObjectRequest, PolicyChange};

use super::world::{Deployment, OPERATOR, OPERATOR_OF_API, World, answer};

fn world() -> World {
    World::of(&Deployment { has_registry: true, ..Deployment::default() })
}

/// The registry has another number for `api` from the next moment on.
fn change(world: &mut World, rate: &str) {
    world.now += 20_000;
    let text = Some(rate);
    let (name, condition) = ("api", Condition::Present);
    let change = PolicyChange { name, text, condition, carry: None, by: "ops", is_dry_run: false };
    world.registry.change(&change, world.now).unwrap();
    world.now += 1;
}

fn limit(world: &mut World) -> serde_json::Value {
    world.post("/v1/peek", r#"{"policy":"api","key":"k"}"#).body["limit"].clone()
}

#[test]
fn a_frontend_answers_under_its_snapshot_of_the_registry() {
    let mut world = world();
    assert_eq!(world.service.due(world.now()), Due::BeforeAnswer, "it knows nothing yet");
    world.refresh();
    assert_eq!(world.service.due(world.now()), Due::Nothing);
    assert_eq!(limit(&mut world), 10);
    change(&mut world, r#""50/1m""#);
    assert_eq!(limit(&mut world), 10, "it has not asked");
    assert!(world.service.poll(world.now()).is_some());
    assert!(world.service.poll(world.now()).is_none(), "it is being asked");
    world.service.not_updated();
    assert_eq!(world.service.due(world.now()), Due::Nothing, "it has just failed");
    assert_eq!(limit(&mut world), 10);
    world.now += 5_000;
    assert_eq!(world.service.due(world.now()), Due::InBackground, "no later request waits for it");
    world.refresh();
    assert_eq!(limit(&mut world), 50);
    let counted = world.counted();
    assert_eq!((&counted["polls"]["answered"], &counted["polls"]["failed"]), (&3.into(), &1.into()), "{counted}");
}

#[test]
fn an_override_ends_on_time() {
    let mut world = world();
    world.refresh();
    let until = world.now + 25_000;
    world.set(&format!(r#"{{"policy":"api","key":"k","rate":"7/1m","until":{until}}}"#));
    for (now, expected) in [(until - 1, 7), (until, 10)] {
        world.now = now;
        assert_eq!(limit(&mut world), expected);
    }
}

/// A frontend hands its knowledge over to others of its isolate, once, and they do not treat it as the latest.
#[test]
fn a_new_frontend_takes_over_the_knowledge_of_another() {
    let mut world = world();
    assert_eq!(world.service.news(), None);
    world.refresh();
    change(&mut world, r#""50/1m""#);
    world.refresh();
    let news = world.service.news().unwrap();
    assert_eq!(world.service.news(), None, "that has been said");
    let mut other = self::world();
    other.service.restore(&news);
    assert_eq!(limit(&mut other), 50);
    assert_eq!(other.service.due(other.now()), Due::BeforeAnswer);
    for nothing in ["", "?"] {
        other.service.restore(nothing);
    }
    assert_eq!(limit(&mut other), 50);
}

/// With a registry, a request has the latest known change, and the version of each policy.
#[test]
fn a_request_says_which_versions_are_known() {
    let known = |request: &ObjectRequest| request.known.clone().map(|known| (known.as_of, known.ids));
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    limit(&mut world);
    assert_eq!(known(world.asked.last().unwrap()), None);
    let mut world = self::world();
    limit(&mut world);
    assert_eq!(known(world.asked.last().unwrap()), Some((0, vec![0])), "that of the deployment is everybody's");
    world.refresh();
    change(&mut world, r#""50/1m""#);
    let changed_at = world.now - 1;
    world.refresh();
    limit(&mut world);
    let (as_of, ids) = known(world.asked.last().unwrap()).unwrap();
    assert!(as_of >= changed_at && ids.len() == 1 && ids[0] != 0, "{as_of} {ids:?}");
    // A batch of one object has it for each policy.
    world.post("/v1/batch", r#"{"requests":[{"policy":"api","key":"k"}]}"#);
    assert_eq!(known(world.asked.last().unwrap()), Some((as_of, ids)));
}

/// A request to a shard has the version of that shard's policy.
#[test]
fn a_request_to_a_shard_says_which_version_of_it_is_known() {
    let policies = r#"{"api":{"rate":"80/1m","shards":8}}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    world.refresh();
    change(&mut world, r#"{"rate":"90/1m","shards":8}"#);
    world.refresh();
    let asked = Asked {
        url: "/v1/peek",
        authorization: Some(super::world::CONSUMER),
        body: br#"{"policy":"api","key":"k"}"#,
        ..Asked::default()
    };
    let mut call = world.begin(&asked).ok().unwrap();
    let mut all = std::collections::BTreeSet::new();
    while let Some(next) = call.next(world.now()) {
        let ids = next.request.known.unwrap().ids;
        assert_eq!(ids, call.policies_of(next.object).map(tollgate::policy::Policy::id).collect::<Vec<_>>());
        all.extend(ids);
    }
    assert_eq!(all.len(), 8);
}

/// A peek changes nothing, so it needs no id. Limits in shadow have costs of their own.
#[test]
fn a_request_has_an_id_and_costs_only_if_needed() {
    let policies =
        r#"{"api":"10/1m","tried":{"limits":[{"name":"a","rate":"9/1m"},{"name":"b","rate":"1/1m","mode":"shadow"}]}}"#;
    let mut world = World::new(policies);
    for (url, policy, has_id, shadow_costs) in [
        ("/v1/consume", "api", true, &[][..]),
        ("/v1/peek", "api", false, &[]),
        ("/v1/inspect", "api", false, &[]),
        ("/v1/refund", "api", true, &[]),
        ("/v1/consume", "tried", true, &[vec![1]]),
    ] {
        world.post(url, &format!(r#"{{"policy":"{policy}","key":"k"}}"#));
        let request = world.asked.last().unwrap();
        assert_eq!((request.request_id.is_some(), &request.shadow_costs[..]), (has_id, shadow_costs), "{url} {policy}");
    }
}

/// Refused callers get different retry times.
#[test]
fn refusals_get_the_jitter_of_their_policy() {
    for (jitter, max) in [("10s", 10_000), ("0s", 0)] {
        let mut world = World::new(&format!(r#"{{"api":{{"rate":"1/1m","jitter":"{jitter}"}}}}"#));
        let body = r#"{"policy":"api","key":"k"}"#;
        world.post("/v1/consume", body);
        let later = (0..20).map(|_| {
            world.post("/v1/consume", body).body["retry_at"].as_i64().unwrap() - (super::world::START + 60_000)
        });
        let later: std::collections::BTreeSet<_> = later.collect();
        assert!(later.iter().all(|later| (0..=max).contains(later)), "{later:?}");
        assert_eq!(later.len() > 10, max > 0, "{later:?}");
    }
}

#[test]
fn unreadable_parts_of_an_answer_are_named_and_requested_again() {
    let mut world = world();
    world.service.poll(world.now()).unwrap();
    assert_eq!(world.service.updated("?", world.now()).unwrap_err().len(), 1);
    world.refresh();
    assert_eq!(limit(&mut world), 10);
    // Without a registry there is nothing to take over.
    assert_eq!(World::new(r#"{"api":"10/1m"}"#).service.updated("?", world.now()), Ok(None));
}

/// Listeners are those in the latest answer to a poll.
#[test]
fn listeners_come_and_go_with_polls() {
    const LISTENERS: &str = r#"{"for_ms":60000,"pause_ms":1,"listeners":[{"id":7}]}"#;
    let mut world = world();
    world.refresh();
    for (listeners, is_heard) in [(None, false), (Some(LISTENERS), true), (Some(LISTENERS), true), (None, false)] {
        world.now += 6_000;
        world.service.poll(world.now()).unwrap();
        let update = tollgate::protocol::Update {
            as_of: world.now,
            listeners: listeners.map(str::to_owned),
            ..Default::default()
        };
        world.service.updated(&update.to_text(), world.now()).unwrap();
        assert_eq!(world.isolate.tap(|tap| tap.has_listeners()), is_heard, "{listeners:?}");
        world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
        let waiting = world.isolate.tap(|tap| tap.take(world.now));
        assert_eq!(waiting.is_some(), is_heard, "{listeners:?}: {waiting:?}");
    }
}

/// The registry gets the act, with its sender and the policies they may name; it parses the rest.
#[test]
fn an_operators_act_reaches_the_registry_with_everything_else_unchanged() {
    let world = world();
    let put = Asked {
        url: "https://example.com/v1/policies/api?dry_run=true#x",
        method: "PUT",
        authorization: Some(OPERATOR_OF_API),
        body: br#"{"rate":"9/1m"}"#,
        if_match: Some("\"1\""),
        if_none_match: Some("*"),
        ..Asked::default()
    };
    let Step::Administer(question) = world.service.ask(&put, world.now(), &mut || None) else { panic!() };
    assert_eq!((question.act, &*question.query), (AdminAct::SetPolicy("api".into()), "dry_run=true"));
    assert_eq!((question.if_match.as_deref(), question.if_none_match.as_deref()), (Some("\"1\""), Some("*")));
    assert_eq!((&*question.by, question.only.as_deref()), ("operator-of-api", Some(&["api".to_owned()][..])));
    assert_eq!(&*question.body, r#"{"rate":"9/1m"}"#);
    for (method, url, act) in [
        ("PUT", "/v1/policies/api", AdminAct::SetPolicy("api".into())),
        ("DELETE", "/v1/policies/api", AdminAct::DeletePolicy("api".into())),
        ("PUT", "/v1/overrides", AdminAct::SetOverrides),
        ("DELETE", "/v1/overrides", AdminAct::RemoveOverride),
        ("POST", "/v1/keys/block", AdminAct::Block),
        ("GET", "/v1/policies", AdminAct::Policies),
        ("GET", "/v1/metrics", AdminAct::Metrics),
        ("GET", "/v1/audit", AdminAct::Audit),
    ] {
        let asked = Asked { method, url, authorization: Some(OPERATOR), ..put };
        match world.service.ask(&asked, world.now(), &mut || None) {
            Step::Administer(question) => {
                assert_eq!((question.act, &*question.query, question.only), (act, "", None), "{method} {url}");
            }
            _ => panic!("{method} {url}"),
        }
    }
}

/// A body's maximum applies even without a declared length.
#[test]
fn a_body_that_is_too_long_is_not_forwarded() {
    let world = world();
    for (url, len, is_handed_over) in [
        ("/v1/policies/api", 16_384, true),
        ("/v1/policies/api", 16_385, false),
        ("/v1/overrides", 16_385, true),
        ("/v1/overrides", 1_048_576, true),
        ("/v1/overrides", 1_048_577, false),
    ] {
        let body = vec![b' '; len];
        let asked = Asked { url, method: "PUT", authorization: Some(OPERATOR), body: &body, ..Asked::default() };
        let status = match world.service.ask(&asked, world.now(), &mut || None) {
            Step::Administer(_) => None,
            Step::Reply(reply) => Some(reply.status),
            _ => panic!("{url}"),
        };
        assert_eq!(status, (!is_handed_over).then_some(413), "{url} {len}");
    }
}

#[test]
fn what_does_not_answer_an_operator_or_a_visitor_is_a_503_with_the_cause() {
    let world = World::new(r#"{"api":"10/1m"}"#);
    for (is_late, cause) in [(true, "timeout"), (false, "failed")] {
        let refused = answer(Service::not_administered(is_late));
        assert_eq!((refused.status, &refused.body["cause"]), (503, &cause.into()), "{}", refused.body);
        let inspected = answer(world.service.not_inspected(is_late, world.now()));
        assert_eq!((inspected.status, &inspected.body["cause"]), (503, &cause.into()), "{}", inspected.body);
        let unverified = answer(Service::unverified(is_late));
        assert_eq!((unverified.status, &unverified.body["cause"]), (503, &cause.into()), "{}", unverified.body);
    }
    let unreadable = Service::inspected(&["?".to_owned()]);
    assert!(unreadable.status == 503 && unreadable.note.is_some(), "{unreadable:?}");
}
