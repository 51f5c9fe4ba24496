//! How callers authenticate: by a token, by the props of a service binding, or not at all.

use std::sync::Arc;

use tollgate::edge::Due;
use tollgate::frontend::{Asked, Callers, Settings};
use tollgate::policy::Policies;

use super::world::{ABOUT_K, Deployment, World, grant, settings};

const RESET: Asked<'_> = Asked { url: "/v1/keys/reset", ..ABOUT_K };

#[test]
fn a_binding_may_do_what_its_props_say() {
    let bound = || World::with(Settings { callers: Callers::Bound, ..settings(&Deployment::default()) });
    let consume = Asked { url: "/v1/consume", ..RESET };
    for (props, asked, status) in [
        (None, consume, 200),
        (None, RESET, 403),
        (Some(r#"{"scopes":["admin"]}"#), RESET, 200),
        (Some(r#"{"scopes":["admin"]}"#), consume, 403),
        (Some(r#"{"policies":["other"]}"#), consume, 403),
        (Some("[]"), consume, 500),
        (Some(r#"{"scopes":["consume"]}"#), RESET, 403), // although the header is an operator's
    ] {
        let answer = bound().ask(&Asked { props, ..asked });
        assert_eq!(answer.status, status, "{props:?} {}: {}", asked.url, answer.body);
        if status == 500 {
            let note = answer.reply.note.unwrap_or_else(|| answer.body.to_string());
            assert!(note.contains("the service binding's props"), "{note}");
        }
    }
}

/// They are in the same program, so they may do everything and need no credential.
#[test]
fn callers_in_the_same_program_need_no_credential() {
    let policies = Arc::new(Policies::parse(r#"{"api":{"rate":"2/1m","notify":["refused"]}}"#).unwrap());
    let mut world = World::with(Settings::trusting(policies));
    for authorization in [None, Some("Bearer x"), Some("[]")] {
        let answer = world.ask(&Asked { authorization, ..RESET });
        assert_eq!(answer.status, 200, "{authorization:?}: {}", answer.body);
    }
    let call = world.begin(&Asked { url: "/v1/consume", ..RESET }).ok().unwrap().next(world.now()).unwrap();
    assert!(!call.dialect.has_definitions, "objects know the policies");
    assert!(!call.request.wants_notices, "they have nowhere to go");
    assert_eq!(world.service.due(world.now()), Due::Nothing);
    assert_eq!(world.service.poll(world.now()), None);
}

/// A grant expires, and its holder's idempotency keys are separate from the backend's.
#[test]
fn a_grant_ends_and_has_its_own_idempotency_keys() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let of_grant = grant(world.now + 60_000);
    let consume = |authorization| Asked {
        url: "/v1/consume",
        authorization: Some(authorization),
        idempotency_key: Some("an order"),
        body: br#"{"policy":"api","key":"k"}"#,
        ..RESET
    };
    let consumer = super::world::CONSUMER;
    for (authorization, remaining, is_replayed) in
        [(consumer, 9, false), (&of_grant, 8, false), (&of_grant, 8, true), (consumer, 8, true)]
    {
        let answer = world.ask(&consume(authorization));
        let found = (answer.status, answer.body["remaining"].as_u64(), answer.body.get("replayed").is_some());
        assert_eq!(found, (200, Some(remaining), is_replayed), "{}", answer.body);
        let id = world.asked.last().unwrap().request_id.unwrap();
        assert_eq!(id.by_grant, authorization != consumer, "all grants of a key share a quota of replays");
        assert_eq!(id.ttl_ms, 3_600_000);
    }
    for (elapsed_ms, is_valid) in [(59_999, true), (1, false)] {
        world.now += elapsed_ms;
        assert_eq!(world.head("POST", "/v1/consume", Some(&of_grant)).is_ok(), is_valid);
        assert_eq!(world.ask(&consume(&of_grant)).status, if is_valid { 200 } else { 401 });
    }
}

/// A different request under the same key is an error.
#[test]
fn an_idempotency_key_of_another_request_is_an_error() {
    let mut world = World::new(r#"{"api":"10/1m","daily":{"rate":"5/1day","idempotency_ttl":"2h"}}"#);
    let asked = |body: &'static str| Asked {
        url: "/v1/consume",
        authorization: Some(super::world::CONSUMER),
        idempotency_key: Some("an order"),
        body: body.as_bytes(),
        ..RESET
    };
    assert_eq!(world.ask(&asked(r#"{"policy":"api","key":"k"}"#)).status, 200);
    for other in [r#"{"policy":"api","key":"k","cost":2}"#, r#"{"policy":"daily","key":"k"}"#] {
        let answer = world.ask(&asked(other));
        assert_eq!(answer.status, 422, "{other}: {}", answer.body);
    }
    assert_eq!(world.asked.last().unwrap().request_id.unwrap().ttl_ms, 7_200_000);
}
