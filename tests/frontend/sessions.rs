//! Visitors' sessions: limited by their address, then verified.

use tollgate::frontend::{Asked, LastStep, Service, Verification};
use tollgate::policy::Cause;

use super::world::{Deployment, World, answer, failure};

pub(crate) const DEPLOYMENT: Deployment<'_> = Deployment {
    policies: r#"{"api":"10/1m","visits":"1/1h"}"#,
    sessions: Some(r#"{"policy":"visits","policies":["api"],"verify_url":"https://captcha.example/verify"}"#),
    ..Deployment::PLAIN
};

fn asked(address: &str) -> Asked<'_> {
    let body = b"{\"captcha\":\"two\\nlines\"}";
    Asked { url: "/v1/session", method: "POST", address: Some(address), body, ..Asked::default() }
}

#[test]
fn a_visitor_is_limited_first_and_only_then_verified() {
    let mut world = World::of(&DEPLOYMENT);
    world.head("POST", "/v1/session", None).unwrap();
    for (address, is_verified) in [("192.0.2.1", true), ("192.0.2.1", false), ("192.0.2.2", true)] {
        let mut call = world.begin(&asked(address)).ok().unwrap();
        world.carry_out(&mut call);
        let expected = Verification {
            url: "https://captcha.example/verify".to_owned(),
            secret: "the-secret-of-the-captcha".to_owned(),
            captcha: "two\nlines".to_owned(),
            address: address.to_owned(),
        };
        let is_sent = call.last(world.now()) == LastStep::Verify(expected);
        assert_eq!(is_sent, is_verified, "{address}");
        assert_eq!(call.reply(world.now()).status, if is_verified { 200 } else { 429 });
    }
    // A visitor's `Idempotency-Key` repeats nothing: each attempt counts.
    for status in [200, 429] {
        let mut call = world.begin(&Asked { idempotency_key: Some("again"), ..asked("192.0.2.3") }).ok().unwrap();
        world.carry_out(&mut call);
        assert_eq!(call.reply(world.now()).status, status);
    }
    let missing = world.ask(&Asked { address: None, ..asked("") });
    assert_eq!(missing.status, 400);
}

#[test]
fn a_verifier_that_agrees_opens_a_session_and_nothing_else_does() {
    let world = World::of(&DEPLOYMENT);
    let session = |status: u16, body: &str, random: Option<u64>| {
        answer(world.service.session(status, body.as_bytes(), world.now(), &mut || random))
    };
    let opened = session(200, r#"{"success":true}"#, Some(5));
    assert_eq!((opened.status, opened.body["grant"].is_string()), (200, true), "{}", opened.body);
    for (status, body, expected) in [
        (200, r#"{"success":false}"#, 403),
        (200, "{}", 503),
        (200, "nonsense", 503),
        (500, r#"{"success":true}"#, 503),
    ] {
        let refused = session(status, body, Some(5));
        assert_eq!((refused.status, refused.body.get("grant")), (expected, None), "{body}: {}", refused.body);
        assert!(refused.reply.note.is_some(), "the log says why");
    }
    assert_eq!(session(200, r#"{"success":true}"#, None).status, 503, "a grant is not guessable");
    let key = |halves: [u64; 2]| {
        let mut halves = halves.into_iter();
        answer(world.service.session(200, br#"{"success":true}"#, world.now(), &mut || halves.next())).body["key"]
            .clone()
    };
    assert!(key([5, 5]) != key([5, 6]) && key([5, 5]) != key([6, 5]), "128 bits of it are random");
    let lasts_ms = opened.body["expires_at"].as_i64().unwrap() - world.now;
    assert!((60_000..=86_400_000).contains(&lasts_ms), "{}", opened.body);
    assert_eq!([true, false].map(|is_late| Service::unverified(is_late).status), [503, 503]);
}

/// Its policy fails open, even if the call was lost: then the captcha alone decides.
#[test]
fn a_session_without_a_decision_is_verified_if_its_policy_fails_open() {
    for (on_error, status) in [("open", 200), ("closed", 503)] {
        let policies = format!(r#"{{"api":"10/1m","visits":{{"rate":"1/1h","on_error":"{on_error}"}}}}"#);
        for is_lost in [false, true] {
            let mut world = World::of(&Deployment { policies: &policies, ..DEPLOYMENT });
            world.failure = Some(failure(Cause::Timeout));
            let mut call = world.begin(&Asked { is_lost, ..asked("192.0.2.1") }).ok().unwrap();
            if !is_lost {
                world.carry_out(&mut call);
            }
            let is_verified = matches!(call.last(world.now()), LastStep::Verify(_));
            assert_eq!((call.reply(world.now()).status, is_verified), (status, status == 200), "{on_error} {is_lost}");
        }
    }
}
