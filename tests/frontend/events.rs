//! Each budget of a request ends once, and counters, listeners and data points get the same events.

use std::rc::Rc;

use serde_json::Value;
use tollgate::access::{Names, key_hash_in};
use tollgate::frontend::{Asked, Callers, LastStep, Service, Settings, SettingsErrors};
use tollgate::policy::Cause;

use super::world::{ADJUSTER, CONSUMER, Deployment, World, failure, settings};

const POLICIES: &str = r#"{
    "api": "3/1m",
    "open": {"rate": "3/1m", "on_error": "open"},
    "daily": "5/1day",
    "tried": {"limits": [{"name": "a", "rate": "9/1m"}, {"name": "b", "rate": "1/1m", "mode": "shadow"}]}
}"#;

/// The policy, the outcome, where it was decided, and the cost.
type End = (String, String, String, u64);

/// The outcome of each budget of one request: in data points, and as listeners see it.
fn ends(world: &mut World, body: &str) -> (Vec<End>, Vec<Value>) {
    let path = if body.contains("requests") { "/v1/batch" } else { "/v1/consume" };
    let asked = Asked { url: path, authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
    let mut points = Vec::new();
    let now = world.now();
    if let Ok(mut call) = world.begin(&asked) {
        world.carry_out(&mut call);
        call.reply(now);
        points = call.points();
        assert!(call.points().is_empty(), "they are written once");
    }
    let ends = points.iter().map(|point| {
        let [policy, outcome, source, colo] = point.blobs("FRA").map(str::to_owned);
        assert_eq!((&policy, &*colo), (&point.policy, "FRA"));
        let number = |whole: u64| f64::from(u32::try_from(whole).unwrap()).to_bits();
        let expected = [number(point.cost), number(point.took_ms), 0.5_f64.to_bits()];
        assert_eq!(point.doubles(0.5).map(f64::to_bits), expected);
        (policy, outcome, source, point.cost)
    });
    let batch = world.isolate.tap(|tap| {
        tap.due(now.at);
        let batch = tap.take(now.at);
        tap.answered(Some(LISTENERS), now.at);
        batch
    });
    let batch: Value = batch.map(|batch| serde_json::from_str(&batch).unwrap()).unwrap_or_default();
    let seen = batch["decisions"].as_array().cloned().unwrap_or_default();
    (ends.collect(), seen)
}

/// One listening operator, in the registry's form.
const LISTENERS: &str = r#"{"for_ms":60000,"pause_ms":1,"listeners":[{"id":7}]}"#;

#[test]
fn data_points_metrics_and_listeners_get_the_same_events() {
    let mut world = World::of(&Deployment { policies: POLICIES, sample: 1.0, ..Deployment::default() });
    world.isolate.tap(|tap| tap.on_listeners(Some(LISTENERS), world.now));
    assert!(world.isolate.tap(|tap| tap.has_listeners()), "the listeners cannot be read");
    let plain = |policy: &str, cost: u64| format!(r#"{{"policy":"{policy}","key":"k","cost":{cost}}}"#);
    let batch = r#"{"requests":[{"policy":"api","key":"other"},{"policy":"daily","key":"other","cost":2}]}"#;
    let refused = r#"{"requests":[{"policy":"api","key":"k","cost":2},{"policy":"daily","key":"fresh"}]}"#;
    for (body, cause, expected) in [
        (plain("api", 2), None, &[("api", "allowed", "object", 2)][..]),
        (plain("api", 2), None, &[("api", "refused", "object", 2)]),
        (plain("api", 2), None, &[("api", "refused", "cache", 2)]),
        (plain("api", 4), None, &[("api", "never", "frontend", 4)]), // an error without a call
        (batch.to_owned(), None, &[("api", "allowed", "object", 1), ("daily", "allowed", "object", 2)]),
        (refused.to_owned(), None, &[("daily", "dropped", "object", 1), ("api", "refused", "object", 2)]),
        (plain("open", 1), Some(Cause::Timeout), &[("open", "degraded", "frontend", 1)]),
        (plain("api", 1), Some(Cause::Failed), &[("api", "unavailable", "frontend", 1)]),
        (plain("tried", 2), None, &[("tried", "allowed", "object", 2)]),
    ] {
        world.failure = cause.map(failure);
        let (points, seen) = ends(&mut world, &body);
        let shown = seen.iter().map(|one| {
            let text = |name: &str| one[name].as_str().unwrap().to_owned();
            (text("policy"), text("outcome"), text("source"), one["cost"].as_u64().unwrap())
        });
        let shown: Vec<_> = shown.collect();
        let of = |ends: &[End]| {
            let mut ends = ends.to_vec();
            ends.sort();
            ends
        };
        let expected: Vec<_> =
            expected.iter().map(|(a, b, c, d)| ((*a).into(), (*b).into(), (*c).into(), *d)).collect();
        assert_eq!(of(&shown), of(&expected), "{body}");
        if !points.is_empty() {
            assert_eq!(shown, points, "{body}");
        }
        let shadow = seen.iter().filter(|one| one["refused_in_shadow"] == true).count();
        assert_eq!(shadow, usize::from(body.contains("tried")), "{body}");
        let counted = world.counted();
        let decisions = counted["policies"].as_object().unwrap().values().map(|policy| &policy["decisions"]);
        let counts = decisions.flat_map(|decisions| decisions.as_object().unwrap().values());
        let count: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(count, shown.len() as u64, "{body}: {counted}");
        for (policy, outcome, source, _) in &shown {
            let of_policy = &counted["policies"][policy];
            assert!(of_policy["decisions"][outcome].as_u64() >= Some(1), "{counted}");
            assert_eq!(
                of_policy.get("cached_refusals").is_some_and(|count| *count == 1),
                source == "cache",
                "{counted}"
            );
        }
    }
}

#[test]
fn a_reply_is_built_once_however_often_it_is_requested() {
    let mut world = World::new(POLICIES);
    let body = br#"{"policy":"api","key":"k"}"#;
    let mut call = world
        .begin(&Asked { url: "/v1/consume", authorization: Some(CONSUMER), body, ..Asked::default() })
        .ok()
        .unwrap();
    world.carry_out(&mut call);
    let now = world.now();
    let first = call.reply(now).clone();
    assert!(call.last(now) == LastStep::Reply(&first));
    assert_eq!(call.reply(now), &first);
    assert_eq!(world.counted()["policies"]["api"]["decisions"]["allowed"], 1);
}

/// A listener's view of one request, without the moment, which is that of the reply.
fn seen(world: &mut World, asked: &Asked<'_>) -> Vec<Value> {
    _ = world.begin(asked).map(|mut call| {
        world.now += 5;
        world.carry_out(&mut call);
        call.reply(world.now());
    });
    let now = world.now;
    let batch = world.isolate.tap(|tap| {
        tap.due(now);
        let batch = tap.take(now);
        tap.answered(Some(LISTENERS), now);
        batch
    });
    let batch: Value = batch.map(|batch| serde_json::from_str(&batch).unwrap()).unwrap_or_default();
    let mut decisions = batch["decisions"].as_array().cloned().unwrap_or_default();
    for decision in &mut decisions {
        assert_eq!(decision.as_object_mut().unwrap().remove("at"), Some(now.into()), "{decision}");
    }
    decisions
}

#[test]
fn an_event_says_what_is_known_of_its_budget() {
    let policies = r#"{"api":{"limits":[{"name":"a","rate":"9/1m"},{"name":"b","rate":"3/1m"}]},"daily":"5/1day",
        "wide":{"rate":"16/1m","shards":8},"open":{"rate":"3/1m","on_error":"open"}}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    world.refresh();
    world.set(r#"{"policy":"daily","key":"free","unlimited":true}"#);
    world.isolate.tap(|tap| tap.on_listeners(Some(LISTENERS), world.now));
    let retry_at = world.now + 5 + 20_000; // a third of a minute after the first, which took 5 ms
    let object = |key: &str| {
        let name = Names::without_secret().object_name(key.as_bytes());
        format!(r#""object":"{}""#, key_hash_in(&name))
    };
    let (k, l, free) = (object("k"), object("l"), object("free"));
    let two = r#"{"requests":[{"policy":"daily","key":"k"},{"policy":"daily","key":"l","cost":2}]}"#;
    for (url, body, cause, expected) in [
        (
            "/v1/consume",
            r#"{"policy":"api","key":"k","cost":{"a":1,"b":2}}"#,
            None,
            &[format!(
                r#"{{"policy":"api","outcome":"allowed","source":"object","cost":2,"remaining":1,"limit":"b",{k}}}"#
            )][..],
        ),
        (
            "/v1/consume",
            r#"{"policy":"api","key":"k","cost":{"a":1,"b":2}}"#,
            None,
            &[format!(
                r#"{{"policy":"api","outcome":"refused","source":"object","cost":2,"remaining":1,"retry_at":{retry_at},"limit":"b",{k}}}"#
            )],
        ),
        (
            "/v1/consume",
            r#"{"policy":"api","key":"k","cost":{"a":1,"b":4}}"#,
            None,
            &[r#"{"policy":"api","outcome":"never","source":"frontend","cost":4,"limit":"b"}"#.to_owned()],
        ),
        (
            "/v1/consume",
            r#"{"policy":"daily","key":"k","cost":6,"mode":"reserve","max_wait_ms":0}"#,
            None,
            &[r#"{"policy":"daily","outcome":"never","source":"frontend","cost":6}"#.to_owned()],
        ),
        (
            "/v1/extend",
            r#"{"policy":"daily","key":"k","reservation":"1","cost":6}"#,
            None,
            &[r#"{"policy":"daily","outcome":"never","source":"frontend","cost":6}"#.to_owned()],
        ),
        ("/v1/peek", r#"{"policy":"daily","key":"k","cost":6}"#, None, &[]), // nothing would be taken
        (
            "/v1/consume",
            r#"{"policy":"wide","key":"k"}"#,
            None,
            &[format!(
                r#"{{"policy":"wide","outcome":"allowed","source":"object","cost":1,"remaining":1,{k},"shards":8}}"#
            )],
        ),
        (
            "/v1/batch",
            two,
            None,
            &[
                format!(r#"{{"policy":"daily","outcome":"allowed","source":"object","cost":1,"remaining":4,{k}}}"#),
                format!(r#"{{"policy":"daily","outcome":"allowed","source":"object","cost":2,"remaining":3,{l}}}"#),
            ],
        ),
        (
            "/v1/consume",
            r#"{"policy":"daily","key":"free","cost":9}"#,
            None,
            &[format!(r#"{{"policy":"daily","outcome":"unlimited","source":"object","cost":9,{free}}}"#)],
        ),
        (
            "/v1/consume",
            r#"{"policy":"open","key":"k"}"#,
            Some(Cause::Timeout),
            &[format!(
                r#"{{"policy":"open","outcome":"degraded","source":"frontend","cost":1,{k},"cause":"timeout"}}"#
            )],
        ),
        (
            "/v1/consume",
            r#"{"policy":"daily","key":"k"}"#,
            Some(Cause::Failed),
            &[format!(
                r#"{{"policy":"daily","outcome":"unavailable","source":"frontend","cost":1,{k},"cause":"failed"}}"#
            )],
        ),
    ] {
        world.failure = cause.map(failure);
        let asked = Asked { url, authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        let mut found: Vec<_> = seen(&mut world, &asked).iter().map(ToString::to_string).collect();
        let mut expected: Vec<_> =
            expected.iter().map(|text| serde_json::from_str::<Value>(text).unwrap().to_string()).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{url} {body}");
    }
}

/// Decided or not.
#[test]
fn only_requests_that_take_tokens_are_counted() {
    let mut world = World::new(POLICIES);
    world.isolate.tap(|tap| tap.on_listeners(Some(LISTENERS), world.now));
    for cause in [None, Some(Cause::Failed)] {
        world.failure = cause.map(failure);
        for (url, authorization, is_counted) in [
            ("/v1/consume", CONSUMER, true),
            ("/v1/peek", CONSUMER, false),
            ("/v1/inspect", CONSUMER, false),
            ("/v1/charge", ADJUSTER, false),
            ("/v1/refund", ADJUSTER, false),
            ("/v1/reset", ADJUSTER, false),
        ] {
            let body = br#"{"policy":"api","key":"k"}"#;
            let asked = Asked { url, authorization: Some(authorization), body, ..Asked::default() };
            assert_eq!(seen(&mut world, &asked).len(), usize::from(is_counted), "{url} {cause:?}");
        }
    }
    let counted = world.counted();
    assert_eq!(counted["policies"]["api"]["decisions"], serde_json::json!({"allowed": 1, "unavailable": 1}));
}

/// Inline limits count under one name, as callers choose theirs; a cost too large for a policy counts under its own.
#[test]
fn each_budget_counts_under_its_policys_name() {
    let deployment = Deployment { policies: POLICIES, ..Deployment::default() };
    let mut world = World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) });
    world.isolate.tap(|tap| tap.on_listeners(Some(LISTENERS), world.now));
    let inline = |cost: u64| format!(r#"{{"policy":"mine","key":"k","limits":"9/1m","cost":{cost}}}"#);
    let own = |cost: u64| format!(r#"{{"policy":"api","key":"k","cost":{cost}}}"#);
    for (url, body, expected, outcome) in [
        ("/v1/consume", own(4), "api", "never"),
        ("/v1/consume", inline(10), "(inline)", "never"),
        ("/v1/batch", format!(r#"{{"requests":[{},{}]}}"#, inline(9), own(4)), "api", "never"),
        ("/v1/batch", format!(r#"{{"requests":[{},{}]}}"#, own(3), inline(10)), "(inline)", "never"),
        ("/v1/consume", own(1), "api", "allowed"),
        ("/v1/consume", inline(1), "(inline)", "allowed"),
    ] {
        let found = seen(&mut world, &Asked { url, body: body.as_bytes(), ..Asked::default() });
        let found: Vec<_> = found.iter().map(|one| (one["policy"].as_str(), one["outcome"].as_str())).collect();
        assert_eq!(found, [(Some(expected), Some(outcome))], "{url} {body}");
    }
}

/// A listener sees what it has requested.
#[test]
fn a_listener_is_sent_what_passes_its_filter() {
    let mut world = World::new(POLICIES);
    let refusals = r#"{"for_ms":60000,"pause_ms":1,"listeners":[{"id":7,"policies":["api"],"outcomes":["refused"]}]}"#;
    world.isolate.tap(|tap| tap.on_listeners(Some(refusals), world.now));
    for (policy, cost, is_sent) in [("api", 3, false), ("daily", 5, false), ("daily", 1, false), ("api", 1, true)] {
        let body = format!(r#"{{"policy":"{policy}","key":"k","cost":{cost}}}"#);
        let asked =
            Asked { url: "/v1/consume", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        assert_eq!(seen(&mut world, &asked).len(), usize::from(is_sent), "{policy} {cost}");
        world.isolate.tap(|tap| tap.on_listeners(Some(refusals), world.now));
    }
}

/// A frontend without a data set has no share, and one without valid settings writes nothing.
#[test]
fn a_data_point_stands_for_all_requests_that_its_share_leaves_out() {
    for (sample, random, weight) in
        [(0.0, 0.0, None), (0.25, 0.249, Some(4.0)), (0.25, 0.25, None), (1.0, 0.999, Some(1.0))]
    {
        let world = World::of(&Deployment { sample, ..Deployment::default() });
        assert_eq!(world.service.point_weight(random), weight, "{sample} {random}");
    }
    let wrong = Service::new(Err(SettingsErrors::new(Vec::new(), Vec::new())), Rc::default());
    assert_eq!(wrong.point_weight(0.0), None);
    assert!(!wrong.has_receivers());
}
