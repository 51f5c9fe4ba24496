//! What a failure means to callers.

use tollgate::edge::Failure;
use tollgate::frontend::Asked;
use tollgate::policy::Cause;
use tollgate::protocol::{ObjectReply, Rows};

use super::world::{CONSUMER, Deployment, World, failure};

/// Only what takes tokens without a promise fails open, and only for the causes that its policy names.
#[test]
fn each_cause_and_verb_fails_as_its_policy_says() {
    let policies = r#"{
        "closed": "10/1m",
        "open": {"rate": "10/1m", "on_error": "open"},
        "always": {"rate": "10/1m", "on_error": ["timeout", "failed", "overloaded"]}
    }"#;
    for (policy, opens) in [
        ("closed", &[][..]),
        ("open", &[Cause::Timeout, Cause::Failed]),
        ("always", &[Cause::Timeout, Cause::Failed, Cause::Overloaded]),
    ] {
        for (path, more, may_open) in [
            ("/v1/consume", "", true),
            ("/v1/consume", r#","mode":"up_to","cost":3"#, true),
            ("/v1/consume", r#","mode":"borrow","max_wait_ms":0"#, true),
            ("/v1/consume", r#","mode":"reserve","max_wait_ms":0"#, false),
            ("/v1/peek", "", false),
            ("/v1/inspect", "", false),
            ("/v1/charge", "", false),
            ("/v1/refund", "", false),
            ("/v1/reset", "", false),
        ] {
            for cause in Cause::ALL {
                let mut world = World::new(policies);
                world.failure = Some(failure(cause));
                let answer = world.post(path, &format!(r#"{{"policy":"{policy}","key":"k"{more}}}"#));
                let is_open = may_open && opens.contains(&cause);
                let what = format!("{path} {policy} {more} {cause:?}: {}", answer.body);
                assert_eq!(answer.status, if is_open { 200 } else { 503 }, "{what}");
                let said = if is_open { &answer.body["degraded"] } else { &answer.body["cause"] };
                assert_eq!(said, cause.word(), "{what}");
                assert!(answer.body.get("remaining").is_none(), "nothing is made up: {what}");
                let counted = world.counted();
                let words = if is_open { &counted["degraded"] } else { &counted["unavailable"] };
                assert_eq!(words[cause.word()], 1, "{what}: {counted}");
            }
        }
    }
}

/// A batch may have been refused by one of its objects already, which is final.
#[test]
fn a_batch_of_which_nothing_is_known_does_not_fail_open() {
    let mut world = World::new(r#"{"api":{"rate":"10/1m","on_error":"open"}}"#);
    let body = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"api","key":"b"}]}"#;
    let asked = |body: &'static str| Asked {
        url: "/v1/batch",
        authorization: Some(CONSUMER),
        body: body.as_bytes(),
        ..Asked::default()
    };
    let mut call = world.begin(&asked(body)).ok().unwrap();
    call.lose(world.now());
    assert_eq!((call.count(), call.reply(world.now()).status), (2, 503));
    // A batch over one object is one call, which may.
    let one = r#"{"requests":[{"policy":"api","key":"a"}]}"#;
    let mut call = world.begin(&asked(one)).ok().unwrap();
    call.lose(world.now());
    assert_eq!((call.count(), call.reply(world.now()).status), (1, 200));
}

/// What is newer may be a ban.
#[test]
fn newer_policies_do_not_fail_open_and_count_for_one_request() {
    let policies = r#"{"api":{"rate":"10/1m","on_error":"open"}}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    let body = br#"{"policy":"api","key":"k","cost":50}"#;
    let asked = Asked { url: "/v1/consume", authorization: Some(CONSUMER), body, ..Asked::default() };
    let small = Asked { body: br#"{"policy":"api","key":"k"}"#, ..asked };
    let mut call = world.begin(&small).ok().unwrap();
    let next = call.next(world.now()).unwrap();
    let newer = tollgate::policy::Policy::parse("api", r#""100/1m""#).unwrap().in_force_since(5).definition();
    let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: newer };
    call.answered(next.object, Some((outdated, Rows::default())), world.now());
    assert_eq!(call.reply(world.now()).status, 503);
    let newer = call.newer().unwrap();
    assert_eq!((newer.as_of, newer.tries, newer.needs_registry()), (9, 1, false));
    // Under the numbers that it knows, 50 can never pass; under those that it has learned they can.
    assert_eq!(world.ask(&asked).status, 400);
    let again = world.ask(&Asked { newer: Some(&newer), ..asked });
    assert_eq!((again.status, &again.body["remaining"]), (200, &50.into()));
    assert_eq!(world.asked.last().unwrap().known.as_ref().unwrap().as_of, 9);
    assert_eq!(world.ask(&asked).status, 400, "another request knows nothing of it");
}

/// Under what is known, under what was learned, and under what the registry says.
#[test]
fn a_request_is_asked_three_times_at_most() {
    let policies = r#"{"api":{"rate":"10/1m","on_error":"open"}}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    let body = br#"{"policy":"api","key":"k"}"#;
    let asked = Asked { url: "/v1/consume", authorization: Some(CONSUMER), body, ..Asked::default() };
    let mut newer = None;
    for (tries, needs_registry) in [(1, Some(false)), (2, Some(true)), (3, None)] {
        let mut call = world.begin(&Asked { newer: newer.as_ref(), ..asked }).ok().unwrap();
        let next = call.next(world.now()).unwrap();
        let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: String::new() };
        call.answered(next.object, Some((outdated, Rows::default())), world.now());
        newer = call.newer();
        assert_eq!(
            newer.as_ref().map(|newer| (newer.tries, newer.needs_registry())),
            needs_registry.map(|needs| (tries, needs))
        );
        assert_eq!(call.reply(world.now()).status, 503);
    }
    assert_eq!(world.counted()["repeats"]["policy_outdated"], 3);
}

#[test]
fn without_randomness_nothing_is_begun_that_needs_some() {
    let policies = r#"{"api":"10/1m","wide":{"rate":"80/1m","shards":8}}"#;
    let mut world = World::of(&Deployment { policies, has_randomness: false, ..Deployment::default() });
    let two = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"api","key":"b"}]}"#;
    for (path, body) in [
        ("/v1/consume", r#"{"policy":"api","key":"k"}"#),
        ("/v1/consume", r#"{"policy":"wide","key":"k"}"#),
        ("/v1/batch", two),
    ] {
        assert_eq!(world.post(path, body).status, 503, "{path} {body}");
    }
    assert!(world.asked.is_empty());
}

#[test]
fn an_idempotency_key_is_unambiguous() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let long = "x".repeat(256);
    for (key, status) in [("", 400), ("\u{fffd}", 400), (&*long, 400), (&long[1..], 200), ("an order", 200)] {
        let asked = Asked {
            url: "/v1/consume",
            authorization: Some(CONSUMER),
            idempotency_key: Some(key),
            body: br#"{"policy":"api","key":"k"}"#,
            ..Asked::default()
        };
        assert_eq!(world.ask(&asked).status, status, "{key:?}");
        let again = world.ask(&asked);
        assert_eq!(again.body.get("replayed").is_some(), status == 200, "{key:?}: {}", again.body);
    }
}

/// A failure that may pass is tried again, and counted so.
#[test]
fn a_call_that_failed_in_passing_is_repeated() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    world.failure = Some(Failure { cause: Cause::Failed, is_retryable: true });
    let answer = world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    assert_eq!((answer.status, world.asked.len()), (503, 2));
    let counted = world.counted();
    assert_eq!(counted["repeats"]["failure"], 1, "{counted}");
    assert_eq!(counted["calls"]["failed"]["buckets"][0], 2, "{counted}");
}
