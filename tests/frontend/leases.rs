//! Tokens taken in advance: the background calls that a request leaves, and their effects.

use tollgate::edge::Failure;
use tollgate::frontend::{Asked, Call, Callers, LastStep, Left, Newer, Settings};
use tollgate::limit::Verb;
use tollgate::policy::Cause;
use tollgate::protocol::{Action, LeaseRequest, ObjectReply, Rows};

use super::world::{ADJUSTER, CONSUMER, Deployment, World, settings};

const POLICIES: &str =
    r#"{"api":{"lease":"2s","limits":[{"name":"a","rate":"1000/1s"},{"name":"b","rate":"2000/1s"}]}}"#;

const CONSUME: Asked<'_> = Asked {
    url: "/v1/consume",
    method: "POST",
    authorization: Some(CONSUMER),
    props: None,
    idempotency_key: None,
    body: br#"{"policy":"api","key":"k","cost":{"a":1,"b":2}}"#,
    newer: None,
    is_lost: false,
    if_match: None,
    if_none_match: None,
    address: None,
};

fn wants_any(request: Option<&LeaseRequest>) -> bool {
    request.is_some_and(LeaseRequest::wants_any)
}

/// Makes a request each millisecond until an answer brings a lease, with this latency. Returns that call.
fn leased(world: &mut World, asked: &Asked<'_>, answer_ms: i64) -> Call {
    for _ in 0..100 {
        world.now += 1;
        let mut call = world.begin(asked).ok().unwrap();
        assert!(call.only_reply(world.now()).is_none() && !call.is_decided());
        let next = call.next(world.now()).unwrap();
        let is_wanted = wants_any(next.request.lease.as_ref());
        let answer = world.object_reply(&call, &next);
        world.now += if is_wanted { answer_ms } else { 0 };
        let left = call.answered(next.object, Some(answer), world.now());
        assert!(call.is_decided());
        assert_eq!(left, if is_wanted { Left::ReplyAndMore } else { Left::Reply });
        assert_eq!(call.lease_ms().is_some(), is_wanted);
        assert_eq!(call.reply(world.now()).status, 200);
        if is_wanted {
            return call;
        }
    }
    panic!("the frontend requested no lease after many requests")
}

/// A call only about leases changes nothing else, and is neither reported nor recorded.
#[test]
fn a_lease_that_is_nearly_spent_is_renewed_in_the_background() {
    for (has_registry, sends_definitions) in [(false, false), (true, true)] {
        let deployment = Deployment { policies: POLICIES, has_registry, sends_definitions, ..Deployment::default() };
        let mut world = World::of(&deployment);
        drop(leased(&mut world, &CONSUME, 0));
        let mut renewal = None;
        for _ in 0..100 {
            let mut call = world.begin(&CONSUME).ok().unwrap();
            assert!(call.is_decided() && call.next(world.now()).is_none());
            let is_alone = call.only_reply(world.now()).is_some();
            renewal = call.renewal(world.now());
            assert_eq!(is_alone, renewal.is_none());
            assert!(
                call.renewal(world.now()).is_none() && call.only_reply(world.now()).is_some(),
                "it is asked for once"
            );
            assert_eq!(super::world::answer(call.reply(world.now()).clone()).body["source"], "lease");
            if renewal.is_some() {
                break;
            }
        }
        let mut renewal = renewal.expect("it is not spent yet");
        assert_eq!(renewal.count(), 1);
        world.now += 4_000;
        let next = renewal.next(world.now()).unwrap();
        assert_eq!((next.wait_ms, next.dialect.has_definitions), (1_000, sends_definitions), "of its five seconds");
        let request = &next.request;
        assert_eq!((request.action, request.request_id), (Action::Look(Verb::Consume), None));
        assert_eq!((&request.costs, request.known.is_some()), (&vec![vec![0, 0]], has_registry));
        assert!(wants_any(request.lease.as_ref()));
        let answer = world.object_reply(&renewal, &next);
        world.counted();
        renewal.answered(next.object, Some(answer), world.now());
        assert!(renewal.lease_ms().is_some());
        assert!(world.counted()["policies"].is_null(), "it is no decision");
    }
}

#[test]
fn a_lease_is_checked_after_half_its_time_and_returned_once_idle() {
    let mut world = World::new(POLICIES);
    let mut call = leased(&mut world, &CONSUME, 0);
    assert_eq!(call.lease_ms(), Some(1_000));
    world.now += 999;
    world.ask(&CONSUME);
    world.now += 1;
    assert!(call.end_lease(world.now()).is_none(), "it is in use");
    assert_eq!(call.lease_ms(), Some(1_000), "until its end");
    world.now += 999;
    let remaining = |world: &mut World| {
        let body = br#"{"policy":"api","key":"k","cost":{"a":1,"b":1}}"#;
        world.ask(&Asked { url: "/v1/peek", body, ..CONSUME }).body["limits"][0]["remaining"].as_u64().unwrap()
    };
    assert!(remaining(&mut world) < 1_000, "the object keeps it from others");
    let mut returned = call.end_lease(world.now()).unwrap();
    assert!(call.lease_ms().is_none() && call.end_lease(world.now()).is_none(), "it is returned once");
    let next = returned.next(world.now()).unwrap();
    let lease = next.request.lease.clone().unwrap();
    assert_eq!((lease.wanted, lease.ended.len(), &lease.ended[0].spent), (vec![0, 0], 1, &vec![1, 2]));
    let answer = world.object_reply(&returned, &next);
    assert_eq!(returned.answered(next.object, Some(answer), world.now()), Left::ReplyAndMore);
    assert_eq!(remaining(&mut world), 999, "all but what was spent");
    let next = world.begin(&CONSUME).ok().unwrap().next(world.now()).unwrap();
    assert!(next.request.lease.is_none_or(|lease| lease.ended.is_empty()), "the object knows of it");
}

/// A lease's remaining time is counted from the start of its call.
#[test]
fn a_lease_that_comes_late_lasts_less_long() {
    let mut world = World::new(POLICIES);
    assert_eq!(leased(&mut world, &CONSUME, 500).lease_ms(), Some(750));
}

/// A call without an answer may have got a lease: another is requested after half a lease's time, however it failed.
#[test]
fn after_a_failure_no_lease_is_requested_for_a_while() {
    type Fail = fn(&mut Call, usize, &World);
    let ways: [Fail; 3] = [
        |call, object, world| {
            call.failed(object, Failure { cause: Cause::Failed, is_retryable: false }, world.now());
        },
        |call, object, world| _ = call.answered(object, None, world.now()),
        |call, object, world| {
            let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: String::new() };
            _ = call.answered(object, Some((outdated, Rows::default())), world.now());
        },
    ];
    for (way, fail) in ways.into_iter().enumerate() {
        let mut world = World::new(POLICIES);
        let asks = |world: &mut World| {
            let mut call = world.begin(&CONSUME).ok().unwrap();
            let next = call.next(world.now()).unwrap();
            let wants = wants_any(next.request.lease.as_ref());
            if wants {
                fail(&mut call, next.object, world);
            } else {
                let answer = world.object_reply(&call, &next);
                call.answered(next.object, Some(answer), world.now());
            }
            wants
        };
        let is_asked_for = (0..100).any(|_| {
            world.now += 1;
            asks(&mut world)
        });
        assert!(is_asked_for);
        for (elapsed_ms, expected) in [(1, false), (998, false), (1, true)] {
            world.now += elapsed_ms;
            assert_eq!(asks(&mut world), expected, "{elapsed_ms} ms later, way {way}");
        }
    }
}

/// The learned version is for one request: the isolate's own comes back with the next one, and finds its lease.
#[test]
fn a_request_under_newer_policies_leaves_the_leases_alone() {
    let deployment = Deployment { policies: POLICIES, has_registry: true, ..Deployment::default() };
    let mut world = World::of(&deployment);
    drop(leased(&mut world, &CONSUME, 0));
    let changed = POLICIES.replace("1000/1s", "1001/1s");
    let policies = tollgate::policy::Policies::parse(&changed).unwrap();
    let definitions = policies.get("api").map(|policy| (**policy).clone().in_force_since(5).definition()).unwrap();
    let newer = Newer { as_of: 9, definitions, tries: 1, id: 7 };
    for tries in [1, 2] {
        let newer = Newer { tries, ..newer.clone() };
        let mut call = world.begin(&Asked { newer: Some(&newer), ..CONSUME }).ok().unwrap();
        assert_eq!(call.next(world.now()).unwrap().request.lease, None);
        drop(call);
        assert!(world.begin(&CONSUME).ok().unwrap().is_decided(), "by the lease, after try {tries}");
    }
}

/// What another request has taken is not left.
#[test]
fn what_a_lease_reports_as_left_counts_what_the_isolate_has_asked_of_the_object_since() {
    let mut world = World::new(POLICIES);
    drop(leased(&mut world, &CONSUME, 0));
    let remaining =
        |world: &mut World, asked: &Asked<'_>| world.ask(asked).body["limits"][0]["remaining"].as_u64().unwrap();
    let before = remaining(&mut world, &CONSUME);
    let body = br#"{"policy":"api","key":"k","cost":{"a":600,"b":0}}"#;
    let charge = Asked { url: "/v1/charge", authorization: Some(ADJUSTER), body, ..CONSUME };
    assert_eq!(world.ask(&charge).status, 200);
    assert_eq!(remaining(&mut world, &CONSUME), before - 601);
}

/// A lease may grant a visitor's request, but the captcha must still be verified; calls about leases verify nothing.
#[test]
fn a_session_that_a_lease_grants_is_verified() {
    let policies = r#"{"api":"10/1m","visits":{"rate":"1000/1s","lease":"2s"}}"#;
    let mut world = World::of(&Deployment { policies, ..super::sessions::DEPLOYMENT });
    let body = b"{\"captcha\":\"x\"}";
    let visit = Asked { url: "/v1/session", authorization: None, address: Some("192.0.2.1"), body, ..CONSUME };
    let mut verified = 0;
    for _ in 0..150 {
        world.now += 1;
        let mut call = world.begin(&visit).ok().unwrap();
        while let Some(next) = call.next(world.now()) {
            let answer = world.object_reply(&call, &next);
            assert_eq!(call.answered(next.object, Some(answer), world.now()), Left::ReplyAndMore);
        }
        assert!(call.only_reply(world.now()).is_none());
        assert!(matches!(call.last(world.now()), LastStep::Verify(_)));
        if let Some(mut renewal) = call.renewal(world.now()) {
            world.carry_out(&mut renewal);
            assert!(matches!(renewal.last(world.now()), LastStep::Reply(_)));
            verified += 1;
        }
    }
    assert!(verified > 0);
}

/// Definitions that objects cannot know are sent at once.
#[test]
fn definitions_are_sent_to_objects_without_them() {
    let plain = r#"{"policy":"api","key":"k"}"#;
    let inline = r#"{"policy":"plan","key":"k","limits":"9/1m"}"#;
    let wide = r#"{"policy":"wide","key":"k"}"#;
    for (sends_definitions, body, expected) in [
        (false, plain, false),
        (false, wide, false),
        (false, inline, true),
        (true, plain, true),
        (true, wide, true),
        (true, inline, true),
    ] {
        let policies = r#"{"api":"10/1m","wide":{"rate":"80/1m","shards":8}}"#;
        let deployment = Deployment { policies, sends_definitions, ..Deployment::default() };
        let world = &mut World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) });
        let mut call = world.begin(&Asked { body: body.as_bytes(), ..CONSUME }).ok().unwrap();
        let next = call.next(world.now()).unwrap();
        assert_eq!(next.dialect.has_definitions, expected, "{sends_definitions} {body}");
    }
}
