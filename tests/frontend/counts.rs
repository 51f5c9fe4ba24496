//! Counts of calls and rows, and reading them without a registry.

use std::collections::BTreeMap;

use serde_json::Value;
use tollgate::edge::{Attempt, Failure, Receiver};
use tollgate::frontend::{Asked, Step};
use tollgate::policy::Cause;
use tollgate::protocol::{ObjectReply, Rows};

use super::world::{ABOUT_K, Answer, CONSUMER, Deployment, OPERATOR, World, answer};

const CONSUME: Asked<'_> = Asked { authorization: Some(CONSUMER), ..ABOUT_K };

/// The outcome of a call: an answer, an unreadable one, or none.
type CallResult = Result<Option<(ObjectReply, Rows)>, Failure>;

/// The calls of one request, their counts (calls, rows and repeats), and the cause that its caller sees if it failed.
#[test]
fn each_call_is_counted_by_its_outcome() {
    let rows = Rows { read: 3, written: 2 };
    let lost = Failure { cause: Cause::Failed, is_retryable: true };
    let late = Failure { cause: Cause::Timeout, is_retryable: false };
    let table: [(&[CallResult], &str, Option<&str>); 6] = [
        (
            &[Ok(Some((ObjectReply::PolicyUnknown, rows)))],
            r#"[{"answered":1},{"read":3,"written":2},{"policy_unknown":1}]"#,
            None,
        ),
        (
            &[Ok(Some((ObjectReply::FormatUnknown { newest: 0 }, rows)))],
            r#"[{"answered":1},{"read":3,"written":2},{"format_unknown":1}]"#,
            None,
        ),
        (&[Ok(Some((ObjectReply::NoReservation, rows)))], r#"[{"answered":1},{"read":3,"written":2},null]"#, None),
        (&[Ok(None)], r#"[{"failed":1},null,null]"#, Some("failed")), // it may have been carried out
        (&[Err(late)], r#"[{"timeout":1},null,null]"#, Some("timeout")),
        (&[Err(lost), Err(late)], r#"[{"failed":1,"timeout":1},null,{"failure":1}]"#, Some("timeout")),
    ];
    for (results, expected, cause) in table {
        let mut world = World::new(r#"{"api":"10/1m"}"#);
        let mut call = world.begin(&CONSUME).ok().unwrap();
        for result in results {
            let next = call.next(world.now()).unwrap();
            match result {
                Ok(answer) => _ = call.answered(next.object, answer.clone(), world.now()),
                Err(failure) => call.failed(next.object, *failure, world.now()),
            }
        }
        let counted = world.counted();
        let count = |histogram: &Value| -> u64 {
            histogram["buckets"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
        };
        let calls = counted["calls"].as_object().unwrap().iter();
        let calls: BTreeMap<_, _> = calls.map(|(outcome, histogram)| (outcome, count(histogram))).collect();
        let found = serde_json::json!([calls, counted["rows"], counted["repeats"]]);
        assert_eq!(found, serde_json::from_str::<Value>(expected).unwrap(), "{counted}");
        if let Some(cause) = cause {
            assert!(call.next(world.now()).is_none(), "it is over");
            let answer = answer(call.reply(world.now()).clone());
            assert_eq!((answer.status, &answer.body["cause"]), (503, &cause.into()));
        }
    }
}

/// Only a repeat after a failure counts as one: not a repeat with the definitions that an object lacked, nor the next step.
#[test]
fn a_repeat_with_definitions_is_not_counted_as_a_failure() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let mut call = world.begin(&CONSUME).ok().unwrap();
    let next = call.next(world.now()).unwrap();
    call.failed(next.object, Failure { cause: Cause::Failed, is_retryable: true }, world.now());
    for _ in 0..2 {
        let next = call.next(world.now()).unwrap();
        assert!(next.is_repeated);
        call.answered(next.object, Some((ObjectReply::PolicyUnknown, Rows::default())), world.now());
    }
    let counted = world.counted();
    assert_eq!((&counted["repeats"]["failure"], &counted["repeats"]["policy_unknown"]), (&1.into(), &2.into()));
    // A failed hold is aborted, not repeated.
    let body = br#"{"requests":[{"policy":"api","key":"a"},{"policy":"api","key":"b"}]}"#;
    let mut call = world.begin(&Asked { url: "/v1/batch", body, ..CONSUME }).ok().unwrap();
    let mut calls = 0;
    while let Some(next) = call.next(world.now()) {
        calls += 1;
        if calls == 3 {
            call.failed(next.object, Failure { cause: Cause::Failed, is_retryable: false }, world.now());
            continue;
        }
        let answer = world.object_reply(&call, &next);
        call.answered(next.object, Some(answer), world.now());
    }
    let counted = world.counted();
    assert!(calls > 4 && counted["repeats"].get("failure").is_none(), "{calls} calls: {counted}");
}

/// Without a registry operators read the counts of one isolate since it began, however often they read them.
#[test]
fn metrics_without_a_registry_are_those_of_one_isolate() {
    fn metrics(world: &World, url: &str) -> Answer {
        let asked = Asked { url, method: "GET", authorization: Some(OPERATOR), ..Asked::default() };
        match world.service.ask(&asked, world.now(), &mut || Some(7)) {
            Step::Reply(reply) => answer(reply),
            _ => panic!("{url}"),
        }
    }
    let mut world = World::new(r#"{"api":{"rate":"2/1m","show_key_prefix":2}}"#);
    let began_at = world.now;
    metrics(&world, "/v1/metrics");
    let body = r#"{"policy":"api","key":"alice"}"#;
    for (asked, allowed, refused) in [(1, 1, 0), (4, 2, 3)] {
        world.now += 5_000;
        (0..asked).for_each(|_| _ = world.post("/v1/consume", body));
        for _ in 0..2 {
            let text = metrics(&world, "/v1/metrics").reply.body();
            for (line, count) in [
                (r#"tollgate_decisions_total{policy="api",outcome="allowed"}"#, allowed),
                (r#"tollgate_decisions_total{policy="api",outcome="refused"}"#, refused),
                ("tollgate_metrics_start_time_seconds", began_at / 1_000),
            ] {
                assert!(text.contains(&format!("\n{line} {count}\n")), "{line} {count}: {text}");
            }
        }
        let top = metrics(&world, "/v1/metrics/top").body;
        let keys = top["policies"][0]["keys"].as_array().cloned().unwrap_or_default();
        let found: Vec<_> = keys.iter().map(|key| (key["prefix"].clone(), key["at_least"].clone())).collect();
        let expected = if refused == 0 { vec![] } else { vec![("al".into(), refused.into())] };
        assert_eq!((found, &top["now"]), (expected, &world.now.into()), "{top}");
        for key in keys {
            let object = tollgate::access::Names::without_secret().object_name(b"alice");
            assert_eq!(key["object"], tollgate::access::key_hash_in(&object), "{top}");
        }
    }
}

/// Only refusals of any kind count for a key; grants and undecided requests do not.
#[test]
fn refusals_and_bans_count_a_key_as_refused() {
    let mut world = World::of(&Deployment {
        policies: r#"{"api":"2/1m","daily":"5/1day","once":{"rate":0,"period":"1s","capacity":4},"tried":{"limits":[{"name":"a","rate":"9/1m"},{"name":"b","rate":"1/1m","mode":"shadow"}]}}"#,
        has_registry: true,
        ..Deployment::default()
    });
    world.refresh();
    world.set(r#"{"policy":"api","key":"banned","banned":true},{"policy":"api","key":"free","unlimited":true}"#);
    let refused = r#"{"requests":[{"policy":"api","key":"k","cost":2},{"policy":"daily","key":"k"}]}"#;
    for (path, body, outcomes, keys) in [
        ("/v1/consume", r#"{"policy":"api","key":"k"}"#, &["allowed"][..], 0),
        ("/v1/consume", r#"{"policy":"api","key":"k","cost":2}"#, &["refused"], 1),
        ("/v1/consume", r#"{"policy":"api","key":"banned"}"#, &["banned"], 1),
        ("/v1/consume", r#"{"policy":"api","key":"free","cost":9}"#, &["unlimited"], 0),
        ("/v1/batch", refused, &["dropped", "refused"], 1),
        ("/v1/consume", r#"{"policy":"tried","key":"k","cost":2}"#, &["allowed"], 0),
        ("/v1/consume", r#"{"policy":"once","key":"k","cost":3}"#, &["allowed"], 0),
        ("/v1/consume", r#"{"policy":"once","key":"k","cost":2}"#, &["never"], 1), // what does not refill
    ] {
        world.post(path, body);
        let counted = world.counted();
        let decisions = counted["policies"].as_object().unwrap().values();
        let mut found: Vec<_> = decisions.flat_map(|policy| policy["decisions"].as_object().unwrap().keys()).collect();
        found.sort();
        assert_eq!(found, outcomes, "{counted}");
        let refused: u64 =
            counted["refused"].as_object().into_iter().flatten().map(|(_, keys)| keys["total"].as_u64().unwrap()).sum();
        assert_eq!(refused, keys, "{body}: {counted}");
        let shadow: u64 = counted["policies"]
            .as_object()
            .unwrap()
            .values()
            .map(|policy| policy["shadow_refusals"].as_u64().unwrap())
            .sum();
        assert_eq!(shadow, u64::from(body.contains("tried")), "{counted}");
    }
}

/// The random half of request ids belongs to the isolate.
#[test]
fn an_id_has_a_random_half_and_a_counter() {
    let world = World::new(r#"{"api":"10/1m"}"#);
    for (random, expected) in [(u64::MAX, u128::from(u64::MAX) << 64), (5, (u128::from(u64::MAX) << 64) + 1)] {
        let Step::Call(mut call) = world.service.ask(&CONSUME, world.now(), &mut || Some(random)) else { panic!() };
        assert_eq!(call.next(world.now()).unwrap().request.request_id.unwrap().id, expected);
    }
}

#[test]
fn an_isolate_counts_from_its_first_request() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let began_at = world.now;
    world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    world.now += 1_000;
    world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    assert_eq!(world.counted()["since"], began_at);
    let reported_at = world.now;
    world.now += 1_000;
    assert_eq!(world.counted()["since"], reported_at, "each report starts where the last one ended");
}

#[test]
fn notices_are_counted_by_their_outcome() {
    let world = World::new(r#"{"api":"10/1m"}"#);
    let (isolate, now) = (&world.isolate, world.now());
    for number in 0..33 {
        assert_eq!(isolate.deliver(Receiver::Webhook, now), (number < 32).then_some(number));
    }
    assert_eq!(isolate.attempted(Some(0), 1, Attempt::Answered(204)), None);
    assert_eq!(isolate.attempted(Some(1), 2, Attempt::Failed("down")), Some(5_000), "it is tried again");
    assert_eq!(isolate.attempted(Some(1), 3, Attempt::Failed("down")), None);
    let line = "notices are lost: 1 failed, 1 dropped; the last: down";
    assert_eq!(isolate.notices_lost(now).as_deref(), Some(line));
    assert_eq!(world.counted()["notices"].to_string(), r#"{"delivered":1,"dropped":1,"failed":1}"#);
}
