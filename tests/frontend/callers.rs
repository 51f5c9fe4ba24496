//! How callers authenticate: by a token, by the props of a service binding, or not at all.

use std::sync::Arc;

use tollgate::edge::Due;
use tollgate::frontend::{Asked, Callers, LastStep, Newer, Settings, Undecided};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{ObjectReply, Rows};

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

/// Its binding has the policy, and it takes a token like any other caller.
#[test]
fn a_call_of_the_platforms_method_takes_a_token_of_its_policy() {
    let policies = r#"{"api":"2/1m","daily":"9/1day"}"#;
    let mut world = World::of(&Deployment { policies, ..Deployment::default() });
    let mut random = 0..;
    let mut success = |props: &str, argument: &str| {
        let now = world.now();
        match world.service.limit(Some(props), Some(argument), (None, false), now, &mut || random.next()) {
            Ok(mut call) => {
                world.carry_out(&mut call);
                let LastStep::Limited(is_allowed) = call.last(now) else { panic!("it is no reply") };
                Ok(is_allowed)
            }
            Err(Undecided { mistake, note }) => {
                assert_eq!(note.is_some(), props.contains(r#""key_prefix":"""#), "{note:?}");
                mistake.map_or(Ok(false), Err)
            }
        }
    };
    let (props, alice) = (r#"{"policy":"api","key_prefix":"al"}"#, r#"{"key":"alice"}"#);
    assert_eq!([(); 3].map(|()| success(props, alice)), [Ok(true), Ok(true), Ok(false)]);
    for (props, argument, message) in [
        ("{}", alice, "tollgate: the `props` of a service binding to the entry point RateLimit have"),
        (r#"{"policy":"api"}"#, "7", "tollgate: limit takes { key }, an object"),
        (r#"{"policy":"api"}"#, "{}", "tollgate: the field `key` is missing"),
        (r#"{"policy":"typo"}"#, alice, "tollgate: there is no policy \"typo\""),
        (props, r#"{"key":"bob"}"#, "tollgate: this service binding is for text keys that begin with \"al\""),
        (r#"{"policy":"api","key_prefix":""}"#, alice, "tollgate: "),
    ] {
        let thrown = success(props, argument).unwrap_err();
        assert!(thrown.starts_with(message), "{props} {argument}: {thrown}");
    }
}

/// Like any other request, it is made again under the policies that an object had and this frontend lacks.
#[test]
fn a_call_of_the_platforms_method_is_made_again_under_newer_policies() {
    let policies = r#"{"api":"2/1m"}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    let limit = |world: &World, newer: Option<&Newer>| {
        let (props, argument) = (Some(r#"{"policy":"api"}"#), Some(r#"{"key":"alice"}"#));
        world.service.limit(props, argument, (newer, false), world.now(), &mut || Some(1)).unwrap()
    };
    let mut call = limit(&world, None);
    let next = call.next(world.now()).unwrap();
    let definitions = Policy::parse("api", r#""100/1m""#).unwrap().in_force_since(5).definition();
    let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions };
    call.answered(next.object, Some((outdated, Rows::default())), world.now());
    let LastStep::Again(newer) = call.last(world.now()) else { panic!("there is a try left") };
    let mut again = limit(&world, Some(&newer));
    world.carry_out(&mut again);
    assert!(again.last(world.now()) == LastStep::Limited(true));
    assert_eq!(world.asked.last().unwrap().known.as_ref().unwrap().as_of, 9);
    let limits: Vec<_> = again.policies_of(0).map(|policy| policy.limits()[0].limit().config().capacity).collect();
    assert_eq!(limits, [100]);
}

/// It is not made again, and ends as its policy says.
#[test]
fn a_lost_call_of_the_platforms_method_ends_at_once() {
    for (on_error, is_allowed) in [("closed", false), ("open", true)] {
        let policies = format!(r#"{{"api":{{"rate":"2/1m","on_error":"{on_error}"}}}}"#);
        let world = World::of(&Deployment { policies: &policies, ..Deployment::default() });
        let (props, argument) = (r#"{"policy":"api"}"#, r#"{"key":"alice"}"#);
        let call = world.service.limit(Some(props), Some(argument), (None, true), world.now(), &mut || Some(1));
        let ended = &world.counted()["policies"]["api"]["decisions"];
        assert_eq!(ended.as_object().unwrap().len(), 1, "{on_error}");
        assert!(call.unwrap().last(world.now()) == LastStep::Limited(is_allowed), "{on_error}");
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
    assert!(!call.request.has_consequences, "they have nowhere to go");
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
