//! Failures as callers see them.

use tollgate::edge::Failure;
use tollgate::frontend::{Asked, LastStep, Left, Newer, Step};
use tollgate::policy::Cause;
use tollgate::protocol::{Action, Decided, ObjectReply, Rows};

use super::world::{ABOUT_K, ADJUSTER, CONSUMER, Deployment, World, answer, failure};

/// Only verbs that take tokens without a promise fail open, and only for the causes in the policy, or if it enforces no limit.
#[test]
fn each_cause_and_verb_fails_as_its_policy_says() {
    let policies = r#"{
        "closed": "10/1m",
        "open": {"rate": "10/1m", "on_error": "open"},
        "always": {"rate": "10/1m", "on_error": ["timeout", "failed", "overloaded"]},
        "shadow": {"rate": "10/1m", "mode": "shadow"},
        "soft": {"rate": "10/1m", "mode": "soft"},
        "off": {"rate": "10/1m", "mode": "off", "on_error": "open"}
    }"#;
    for (policy, opens) in [
        ("closed", &[][..]),
        ("open", &[Cause::Timeout, Cause::Failed]),
        ("always", &[Cause::Timeout, Cause::Failed, Cause::Overloaded]),
        // They enforce nothing.
        ("shadow", &Cause::ALL),
        ("soft", &Cause::ALL),
        ("off", &Cause::ALL),
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
fn a_lost_batch_over_several_objects_does_not_fail_open() {
    let mut world = World::new(r#"{"api":{"rate":"10/1m","on_error":"open"}}"#);
    let body = r#"{"requests":[{"policy":"api","key":"a"},{"policy":"api","key":"b"}]}"#;
    let asked = |body: &'static str| Asked {
        url: "/v1/batch",
        authorization: Some(CONSUMER),
        body: body.as_bytes(),
        ..Asked::default()
    };
    let lost = |body| Asked { is_lost: true, ..asked(body) };
    let mut call = world.begin(&lost(body)).ok().unwrap();
    assert_eq!((call.count(), call.reply(world.now()).status), (2, 503));
    // A batch over one object is one call, which may fail open.
    let one = r#"{"requests":[{"policy":"api","key":"a"}]}"#;
    let mut call = world.begin(&lost(one)).ok().unwrap();
    assert_eq!((call.count(), call.reply(world.now()).status), (1, 200));
    // The same if the reply is requested early: calls in flight may have been carried out.
    for (body, status) in [(body, 503), (one, 200)] {
        let mut call = world.begin(&asked(body)).ok().unwrap();
        call.next(world.now()).unwrap();
        let answer = super::world::answer(call.reply(world.now()).clone());
        let cause = if status == 200 { &answer.body["degraded"] } else { &answer.body["cause"] };
        assert_eq!((answer.status, cause), (status, &"failed".into()), "{body}");
    }
}

/// A batch fails open only if each of its policies does, for each of the causes.
#[test]
fn a_batch_fails_open_only_if_all_of_it_does() {
    let policies = r#"{"closed":"10/1m","open":{"rate":"10/1m","on_error":"open"},
        "timeout":{"rate":"10/1m","on_error":["timeout"]},"shadow":{"rate":"10/1m","mode":"shadow"}}"#;
    for (first, second, causes, status) in [
        ("open", "open", [Cause::Timeout, Cause::Failed], 200),
        ("open", "open", [Cause::Timeout, Cause::Overloaded], 503),
        ("open", "closed", [Cause::Timeout, Cause::Timeout], 503),
        ("closed", "open", [Cause::Timeout, Cause::Timeout], 503),
        ("timeout", "timeout", [Cause::Timeout, Cause::Timeout], 200),
        ("timeout", "timeout", [Cause::Timeout, Cause::Failed], 503),
        ("timeout", "timeout", [Cause::Failed, Cause::Timeout], 503),
        ("timeout", "closed", [Cause::Timeout, Cause::Timeout], 503),
        ("shadow", "open", [Cause::Overloaded, Cause::Failed], 503),
        ("shadow", "open", [Cause::Timeout, Cause::Failed], 200),
        ("shadow", "closed", [Cause::Timeout, Cause::Timeout], 503),
    ] {
        let mut world = World::new(policies);
        let body = format!(r#"{{"requests":[{{"policy":"{first}","key":"a"}},{{"policy":"{second}","key":"b"}}]}}"#);
        let asked =
            Asked { url: "/v1/batch", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        let mut call = world.begin(&asked).ok().unwrap();
        let calls: Vec<_> = std::iter::from_fn(|| call.next(world.now())).collect();
        for (next, cause) in calls.iter().zip(causes) {
            call.failed(next.object, failure(cause), world.now());
        }
        assert_eq!(call.reply(world.now()).status, status, "{first} {second} {causes:?}");
    }
}

/// An answer for other limits is from an object of another version, and counts as none.
#[test]
fn an_answer_that_does_not_fit_is_a_failure() {
    for (policy, status) in [("closed", 503), ("open", 200)] {
        let mut world = World::new(r#"{"closed":"10/1m","open":{"rate":"10/1m","on_error":"open"}}"#);
        let body = format!(r#"{{"policy":"{policy}","key":"k"}}"#);
        let asked =
            Asked { url: "/v1/consume", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        let mut call = world.begin(&asked).ok().unwrap();
        let next = call.next(world.now()).unwrap();
        let decided = ObjectReply::Decided(Decided::new(world.now, Vec::new()));
        call.answered(next.object, Some((decided, Rows::default())), world.now());
        assert_eq!(call.reply(world.now()).status, status, "{policy}");
    }
}

/// The next step after an answer: more calls of a batch, only the reply, or a retry under newer policies.
#[test]
fn an_answer_says_what_is_left() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let body = br#"{"requests":[{"policy":"api","key":"a"},{"policy":"api","key":"b"}]}"#;
    let batch = Asked { url: "/v1/batch", authorization: Some(CONSUMER), body, ..Asked::default() };
    let mut call = world.begin(&batch).ok().unwrap();
    let (mut left, mut holds) = (Vec::new(), Vec::new());
    while let Some(next) = call.next(world.now()) {
        if let Action::Hold(id) = next.request.action {
            holds.push(id);
        }
        let answer = world.object_reply(&call, &next);
        left.push(call.answered(next.object, Some(answer), world.now()));
    }
    let last = left.pop();
    assert_eq!((left, last), (vec![Left::Calls; 5], Some(Left::Reply)));
    assert!(holds.len() == 2 && holds[0] != holds[1] && holds.iter().all(|id| (1..1 << 52).contains(id)), "{holds:?}");
    // An object would choose an id instead of 0.
    let Step::Call(mut call) = world.service.ask(&batch, world.now(), &mut || Some(0)) else { panic!("no call") };
    while let Some(next) = call.next(world.now()) {
        assert_ne!(next.request.action, Action::Hold(0));
        let answer = world.object_reply(&call, &next);
        call.answered(next.object, Some(answer), world.now());
    }
    let one = Asked { url: "/v1/consume", body: br#"{"policy":"api","key":"k"}"#, ..batch };
    let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: String::new() };
    for (reply, left) in [(Some((outdated, Rows::default())), Left::ReplyAndMore), (None, Left::Unreadable)] {
        let mut call = world.begin(&one).ok().unwrap();
        let next = call.next(world.now()).unwrap();
        assert_eq!(call.answered(next.object, reply, world.now()), left);
    }
}

/// Each key of a batch is one object, called in the order of names, as by all frontends.
#[test]
fn a_batch_asks_each_key_once() {
    let mut world = World::new(r#"{"api":"10/1m","daily":"9/1day"}"#);
    let keys = ["a", "b", "c", "d", "e"];
    let items = keys.iter().map(|key| format!(r#"{{"policy":"api","key":"{key}"}}"#));
    let items = items.chain([r#"{"policy":"daily","key":"a","cost":2}"#.to_owned()]).collect::<Vec<_>>().join(",");
    let body = format!(r#"{{"requests":[{items}]}}"#);
    let asked = Asked { url: "/v1/batch", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
    let mut call = world.begin(&asked).ok().unwrap();
    assert_eq!(call.count(), keys.len());
    let names: Vec<_> = (0..call.count()).map(|index| call.object(index).to_owned()).collect();
    assert!(names.is_sorted(), "{names:?}");
    world.carry_out(&mut call);
    let answer = super::world::answer(call.reply(world.now()).clone());
    let remaining: Vec<_> =
        answer.body["results"].as_array().unwrap().iter().map(|one| one["remaining"].as_u64().unwrap()).collect();
    assert_eq!(remaining, [9, 9, 9, 9, 9, 7], "{}", answer.body);
}

/// The newer policy may be a ban.
#[test]
fn newer_policies_do_not_fail_open_and_apply_to_one_request() {
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
    let LastStep::Again(newer) = call.last(world.now()) else { panic!("there is a try left") };
    assert_eq!((newer.as_of, newer.tries, newer.needs_registry()), (9, 1, false));
    assert_eq!(world.counted()["repeats"]["policy_outdated"], 1);
    // Under the numbers that it knows, 50 can never pass; under those that it has learned they can.
    assert_eq!(world.ask(&asked).status, 400);
    let again = world.ask(&Asked { newer: Some(&newer), ..asked });
    assert_eq!((again.status, &again.body["remaining"]), (200, &50.into()));
    assert_eq!(world.asked.last().unwrap().known.as_ref().unwrap().as_of, 9);
    assert_eq!(world.ask(&asked).status, 400, "another request knows nothing of it");
}

/// What some shards may have done must not be done twice. Others were not carried out, or can be repeated.
#[test]
fn only_what_must_not_be_done_twice_keeps_its_id_in_the_second_try() {
    let body = br#"{"policy":"api","key":"k"}"#;
    for (url, authorization, is_kept) in [("/v1/refund", ADJUSTER, true), ("/v1/consume", CONSUMER, false)] {
        let mut world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
        let asked = Asked { url, authorization: Some(authorization), body, ..Asked::default() };
        let mut call = world.begin(&asked).ok().unwrap();
        let first = call.next(world.now()).unwrap();
        let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: String::new() };
        call.answered(first.object, Some((outdated, Rows::default())), world.now());
        let LastStep::Again(newer) = call.last(world.now()) else { panic!("there is a try left") };
        let mut again = world.begin(&Asked { newer: Some(&newer), ..asked }).ok().unwrap();
        let second = again.next(world.now()).unwrap();
        let [first, second] = [first, second].map(|call| call.request.request_id.unwrap().id);
        assert_eq!(first == second, is_kept, "{url}");
    }
}

/// Under the known policies, under those learned, and under the registry's.
#[test]
fn a_request_is_sent_at_most_three_times() {
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
        newer = match call.last(world.now()) {
            LastStep::Again(newer) => Some(newer),
            _ => None,
        };
        assert_eq!(
            newer.as_ref().map(|newer| (newer.tries, newer.needs_registry())),
            needs_registry.map(|needs| (tries, needs))
        );
        assert_eq!(call.reply(world.now()).status, 503);
    }
    let counted = world.counted();
    assert_eq!((&counted["repeats"]["policy_outdated"], &counted["unavailable"]["failed"]), (&2.into(), &1.into()));
    assert_eq!(counted["policies"]["api"]["decisions"]["unavailable"], 1, "{counted}");
    // More attempts than that do not lead to another either.
    for tries in [3, u8::MAX] {
        let newer = Newer { as_of: 9, definitions: String::new(), tries, id: 7 };
        let mut call = world.begin(&Asked { newer: Some(&newer), ..asked }).ok().unwrap();
        let next = call.next(world.now()).unwrap();
        let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: String::new() };
        call.answered(next.object, Some((outdated, Rows::default())), world.now());
        assert!(matches!(call.last(world.now()), LastStep::Reply(_)), "{tries}");
    }
}

#[test]
fn without_randomness_no_request_that_needs_it_is_started() {
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

/// Even a request that memory would refuse by now: an object may have granted it.
#[test]
fn a_lost_call_says_that_its_effect_is_unknown() {
    let mut world = World::new(r#"{"closed":"1/1m","open":{"rate":"1/1m","on_error":"open"}}"#);
    for (policy, status, member) in [("closed", 503, "cause"), ("open", 200, "degraded")] {
        let body = format!(r#"{{"policy":"{policy}","key":"k"}}"#);
        let asked = Asked { body: body.as_bytes(), authorization: Some(CONSUMER), ..ABOUT_K };
        for before in [200, 429, 429] {
            world.counted();
            let mut lost = world.begin(&Asked { is_lost: true, ..asked }).ok().unwrap();
            let lost = lost.only_reply(world.now()).unwrap_or_else(|| panic!("the reply is all that is left")).clone();
            let lost = answer(lost);
            assert_eq!((lost.status, &lost.body[member]), (status, &"failed".into()), "{policy}: {}", lost.body);
            let outcome = if policy == "open" { "degraded" } else { "unavailable" };
            let counts = serde_json::json!({ outcome: 1 });
            assert_eq!(world.counted()["policies"][policy]["decisions"], counts, "it ends once");
            assert_eq!(world.ask(&asked).status, before);
        }
        assert_eq!(world.ask(&asked).body["source"], "cache");
    }
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

/// A transient failure is retried, and counted as a repeat.
#[test]
fn a_transient_failure_is_retried() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    world.failure = Some(Failure { cause: Cause::Failed, is_retryable: true });
    let answer = world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    assert_eq!((answer.status, world.asked.len()), (503, 2));
    let counted = world.counted();
    assert_eq!(counted["repeats"]["failure"], 1, "{counted}");
    assert_eq!(counted["calls"]["failed"]["buckets"][0], 2, "{counted}");
}
