//! Decisions have one clock, and waiting another: here they differ by decades.

use tollgate::frontend::Asked;
use tollgate::protocol::{ObjectReply, Rows};

use super::world::{ADJUSTER, CONSUMER, Deployment, World};

/// Requests with every way of calling objects: one object, several, and shards one by one, all at once and the first before the others.
const WAYS: [(&str, &str, &str); 5] = [
    ("/v1/consume", CONSUMER, r#"{"policy":"api","key":"k"}"#),
    ("/v1/batch", CONSUMER, r#"{"requests":[{"policy":"api","key":"k"},{"policy":"api","key":"l"}]}"#),
    ("/v1/consume", CONSUMER, r#"{"policy":"wide","key":"k"}"#),
    ("/v1/peek", CONSUMER, r#"{"policy":"wide","key":"k"}"#),
    ("/v1/refund", ADJUSTER, r#"{"policy":"wide","key":"k"}"#),
];

#[test]
fn a_call_has_two_seconds_and_a_request_five_by_the_clock_for_waiting() {
    for (url, authorization, body) in WAYS {
        for (elapsed_ms, expected) in [(0, Some(2_000)), (3_000, Some(2_000)), (4_000, Some(1_000)), (5_000, None)] {
            let mut world = World::new(r#"{"api":"10/1m","wide":{"rate":"80/1m","shards":8}}"#);
            let asked = Asked { url, authorization: Some(authorization), body: body.as_bytes(), ..Asked::default() };
            let mut call = world.begin(&asked).ok().unwrap();
            world.now += elapsed_ms;
            let next = call.next(world.now());
            assert_eq!(next.map(|call| call.wait_ms), expected, "{url} {body} after {elapsed_ms} ms");
        }
    }
}

#[test]
fn durations_of_a_request_and_its_calls_follow_the_clock_for_waiting() {
    for (url, authorization, body) in WAYS {
        let policies = r#"{"api":"10/1m","wide":{"rate":"80/1m","shards":8}}"#;
        let mut world = World::of(&Deployment { policies, sample: 1.0, ..Deployment::default() });
        let asked = Asked { url, authorization: Some(authorization), body: body.as_bytes(), ..Asked::default() };
        let mut call = world.begin(&asked).ok().unwrap();
        let mut calls = 0;
        while let Some(next) = call.next(world.now()) {
            let answer = world.object_reply(&call, &next);
            world.now += 30;
            call.answered(next.object, Some(answer), world.now());
            calls += 1;
        }
        // The last answer makes the reply, unless it is to be made from several.
        call.reply(world.now());
        let took: Vec<_> = call.points().iter().map(|point| point.took_ms).collect();
        let budgets = if url == "/v1/batch" { 2 } else { usize::from(url == "/v1/consume") };
        assert_eq!(took, vec![calls * 30; budgets], "{url} {body}");
        let counted = &world.counted()["calls"]["answered"];
        assert_eq!(counted["sum_ms"], calls * 30, "{url} {body}: {counted}");
    }
}

/// A failed call is timed like an answered one, and the next one is timed from its own start.
#[test]
fn each_call_is_timed_from_its_own_start() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let (url, authorization, body) = WAYS[0];
    let asked = Asked { url, authorization: Some(authorization), body: body.as_bytes(), ..Asked::default() };
    let mut call = world.begin(&asked).ok().unwrap();
    for (took_ms, reply) in [(40, ObjectReply::PolicyUnknown), (9, ObjectReply::FormatUnknown { newest: 0 })] {
        let next = call.next(world.now()).unwrap();
        world.now += took_ms;
        call.answered(next.object, Some((reply, Rows::default())), world.now());
    }
    assert_eq!(world.counted()["calls"]["answered"]["sum_ms"], 49);
}
