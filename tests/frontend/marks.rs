//! Marks on answers beside the decision: that policies may be stale, and their source.

use tollgate::frontend::Asked;
use tollgate::policy::Cause;

use super::world::{ADJUSTER, CONSUMER, Deployment, OPERATOR, World, answer, failure};

const POLICIES: &str = r#"{"api":"10/1m","open":{"rate":"10/1m","on_error":"open"},"visits":"1/1h"}"#;
const DEPLOYMENT: Deployment<'_> = Deployment { policies: POLICIES, has_registry: true, ..super::sessions::DEPLOYMENT };

/// Requests, and whether their answers depend on policies.
const REQUESTS: [(&str, Option<&str>, &str, u16, bool); 10] = [
    ("/v1/consume", Some(CONSUMER), r#"{"policy":"api","key":"k"}"#, 200, true),
    ("/v1/consume", Some(CONSUMER), r#"{"policy":"api","key":"k","cost":10}"#, 429, true),
    ("/v1/refund", Some(ADJUSTER), r#"{"policy":"api","key":"k"}"#, 200, true),
    ("/v1/batch", Some(CONSUMER), r#"{"requests":[{"policy":"api","key":"k"}]}"#, 200, true),
    ("/v1/consume", Some(CONSUMER), r#"{"policy":"other","key":"k"}"#, 404, true),
    ("/v1/consume", Some(CONSUMER), r#"{"policy":"api","key":"k","cost":11}"#, 400, true),
    ("/v1/session", None, "{}", 400, true),
    ("/v1/consume", Some("Bearer x"), "{}", 401, false),
    ("/v1/refund", Some(CONSUMER), r#"{"policy":"api","key":"k"}"#, 403, false),
    ("/v1/keys/inspect", Some(OPERATOR), "{}", 400, false),
];

#[test]
fn answers_under_possibly_stale_policies_say_so() {
    for (has_registry, age_ms, is_stale) in [
        (false, None, false),
        (true, None, true), // no answer from it yet
        (true, Some(10_000), false),
        (true, Some(10_001), true),
    ] {
        for (url, authorization, body, status, is_under_policies) in REQUESTS {
            let mut world = World::of(&Deployment { has_registry, ..DEPLOYMENT });
            if let Some(age_ms) = age_ms {
                world.refresh();
                world.now += age_ms;
            }
            world.post("/v1/consume", r#"{"policy":"api","key":"k"}"#);
            let answer =
                world.ask(&Asked { url, method: "POST", authorization, body: body.as_bytes(), ..Asked::default() });
            let is_marked = answer.body.get("stale_policies").is_some();
            let expected = (status, is_stale && is_under_policies);
            assert_eq!((answer.status, is_marked), expected, "{url} {body} at {age_ms:?}: {}", answer.body);
        }
        // Undecided, lost and supposedly impossible ones too.
        for policy in ["api", "open"] {
            let mut world = World::of(&Deployment { has_registry, ..DEPLOYMENT });
            if let Some(age_ms) = age_ms {
                world.refresh();
                world.now += age_ms;
            }
            world.failure = Some(failure(Cause::Timeout));
            let body = format!(r#"{{"policy":"{policy}","key":"k"}}"#);
            let asked =
                Asked { url: "/v1/consume", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
            let failed = world.ask(&asked);
            let mut call = world.begin(&Asked { is_lost: true, ..asked }).ok().unwrap();
            let lost = answer(call.reply(world.now()).clone());
            let broken = answer(world.service.failed(world.now()));
            for (answer, cause) in [(failed, "timeout"), (lost, "failed"), (broken, "failed")] {
                let member = if answer.status == 200 { "degraded" } else { "cause" };
                assert_eq!(answer.body[member], cause, "{}", answer.body);
                assert_eq!(answer.body.get("stale_policies").is_some(), is_stale, "{}", answer.body);
            }
        }
    }
}

/// An object's decision has no source.
#[test]
fn only_answers_without_a_call_name_their_source() {
    let mut world = World::new(r#"{"api":"2/1m","wide":{"rate":"8/1m","shards":8}}"#);
    for (path, body, source) in [
        ("/v1/consume", r#"{"policy":"api","key":"k","cost":2}"#, None),
        ("/v1/consume", r#"{"policy":"api","key":"k"}"#, None),
        ("/v1/consume", r#"{"policy":"api","key":"k"}"#, Some("cache")),
        ("/v1/peek", r#"{"policy":"api","key":"k"}"#, None),
        ("/v1/consume", r#"{"policy":"wide","key":"k"}"#, None),
    ] {
        let answer = world.post(path, body);
        assert_eq!(answer.body["source"].as_str(), source, "{path} {body}: {}", answer.body);
    }
}
