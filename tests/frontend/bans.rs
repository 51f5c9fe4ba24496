//! Keys that are banned for being refused often: what counts, what memory may answer, and what callers and operators see.

use serde_json::{Value, json};
use tollgate::frontend::Asked;

use super::world::{ADJUSTER, Answer, CONSUMER, OPERATOR, START, World};

const POLICIES: &str = r#"{
    "slow": {"rate":"2/1day","ban":{"after":3,"within":"1m","for":"10s","max":"15s"}},
    "account": {"rate":"2/4s","ban":{"after":3,"within":"1m","for":"10s","max":"15s"}},
    "address": {"rate":"5/5s","ban":{"after":1,"within":"1m","for":"10s"},"jitter":"1h"},
    "open": "9/1day"
}"#;

fn asked<'a>(url: &'a str, body: &'a str) -> Asked<'a> {
    let authorization = Some(match url {
        "/v1/reset" => ADJUSTER,
        url if url.starts_with("/v1/keys/") => OPERATOR,
        _ => CONSUMER,
    });
    Asked { url, authorization, body: body.as_bytes(), ..Asked::default() }
}

/// The answer, and whether an object was called for it.
fn ask(world: &mut World, url: &str, body: &str) -> (Answer, bool) {
    let before = world.asked.len();
    let answer = world.ask(&asked(url, body));
    (answer, world.asked.len() > before)
}

const ALICE: &str = r#"{"policy":"account","key":"alice"}"#;

/// What an answer says of a ban: whether there is one, for how many milliseconds, and whether it is from memory.
fn ban_in(world: &World, body: &Value) -> (bool, Option<i64>, bool) {
    let wait = body["retry_at"].as_i64().map(|at| at - world.now);
    (body["banned"] == true, wait.filter(|_| body["banned"] == true), body["source"] == "cache")
}

#[test]
fn each_refusal_reaches_the_object_until_the_key_is_banned_and_none_after() {
    let mut world = World::new(POLICIES);
    let body = r#"{"policy":"slow","key":"alice"}"#;
    for _ in 0..2 {
        assert_eq!(ask(&mut world, "/v1/consume", body).0.status, 200);
    }
    for (wait_ms, is_called, is_banned) in [
        (0, true, false),
        (1, true, false),
        (1, true, true),
        (1, false, true),
        (998, false, true),
        (1, true, true), // memory ends
        (8_999, true, true),
        (0, false, true),
        (1, true, false),
        (0, true, false),
        (0, true, true), // for 15 seconds
        (14_999, true, true),
        (1, true, false),
    ] {
        world.now += wait_ms;
        let (answer, was_called) = ask(&mut world, "/v1/consume", body);
        assert_eq!((answer.status, was_called), (429, is_called), "{}", answer.body);
        let (found, wait_ms, is_from_memory) = ban_in(&world, &answer.body);
        assert_eq!((found, is_from_memory), (is_banned, !is_called), "{}", answer.body);
        // The limit has nothing for half a day, and who comes back sooner would be banned again.
        let back_at = START + 43_200_000;
        assert!(wait_ms.is_none_or(|ms| world.now + ms == back_at), "{}", answer.body);
    }
    let counted = world.counted();
    let counted = &counted["policies"]["slow"]["decisions"];
    assert_eq!((&counted["refused"], &counted["banned"]), (&json!(5), &json!(8)), "{counted}");
}

#[test]
fn a_banned_key_has_nothing_and_is_explained_and_inspected() {
    let mut world = World::new(POLICIES);
    for _ in 0..5 {
        ask(&mut world, "/v1/consume", ALICE);
    }
    let until = world.now + 10_000;
    let (answer, _) = ask(&mut world, "/v1/peek", ALICE);
    let members = ["banned", "limit", "remaining", "retry_at", "detail"].map(|name| answer.body[name].clone());
    let detail = "this key is banned from policy account; retry in 10000 ms";
    assert_eq!(Value::from(members.to_vec()), json!([true, 0, 0, until, detail]));
    let (answer, _) = ask(&mut world, "/v1/inspect", ALICE);
    assert_eq!((&answer.body["banned"], &answer.body["banned_until"]), (&json!(true), &json!(until)));
    let (answer, _) = ask(&mut world, "/v1/keys/explain", ALICE);
    let explanation = answer.body["explanation"].as_str().unwrap();
    assert!(explanation.starts_with("Refused: this key is blocked from the policy account until "), "{explanation}");
}

/// A peek never counts, however often.
#[test]
fn a_reset_lifts_a_ban_at_once_here() {
    let mut world = World::new(POLICIES);
    for _ in 0..9 {
        ask(&mut world, "/v1/peek", r#"{"policy":"account","key":"alice","cost":2}"#);
    }
    for _ in 0..5 {
        ask(&mut world, "/v1/consume", ALICE);
    }
    for _ in 0..2 {
        world.now += 1; // the order of two answers of one moment is unknown
        let (answer, _) = ask(&mut world, "/v1/consume", ALICE);
        assert_eq!(ban_in(&world, &answer.body), (true, Some(9_999), true));
        assert_eq!(ask(&mut world, "/v1/reset", ALICE).0.status, 200);
        world.now += 1;
        for status in [200, 200, 429, 429, 429] {
            assert_eq!(ask(&mut world, "/v1/consume", ALICE).0.status, status);
        }
    }
}

/// One refusal of a batch counts once, for the policies that refuse; and its first step is a peek.
#[test]
fn in_a_batch_each_policy_counts_its_own_refusals() {
    let mut world = World::new(POLICIES);
    let batch = r#"{"requests":[{"policy":"account","key":"alice"},{"policy":"address","key":{"ip":"192.0.2.1"}}]}"#;
    let results = |world: &mut World| {
        let (answer, _) = ask(world, "/v1/batch", batch);
        let result = |index: usize| answer.body["results"][index]["banned"] == true;
        (answer.status, [result(0), result(1)])
    };
    for expected in [(200, false), (200, false), (429, false), (429, false), (429, true), (429, true)] {
        assert_eq!(results(&mut world), (expected.0, [expected.1, false]));
    }
    // What the account refused has cost the address nothing.
    for status in [200, 200, 200, 429] {
        let body = r#"{"policy":"address","key":{"ip":"192.0.2.1"}}"#;
        assert_eq!(ask(&mut world, "/v1/consume", body).0.status, status);
    }
    assert_eq!(results(&mut world), (429, [true, true]));
    // Within one object, too.
    let own = r#"{"requests":[{"policy":"account","key":"bob","cost":2},{"policy":"open","key":"bob"}]}"#;
    for banned in [Value::Null, Value::Null, Value::Null, json!(true)] {
        let (answer, _) = ask(&mut world, "/v1/batch", own);
        assert_eq!(answer.body["results"][0]["banned"], banned, "{}", answer.body);
        assert_eq!(answer.body["results"][1]["banned"], Value::Null);
    }
}

/// A ban ends for everyone at the same moment, or clients would be told different ones.
#[test]
fn a_bans_end_has_no_jitter() {
    let mut world = World::new(POLICIES);
    let body = r#"{"policy":"address","key":"k","cost":5}"#;
    assert_eq!(ask(&mut world, "/v1/consume", body).0.status, 200);
    for source in [false, true] {
        let (answer, _) = ask(&mut world, "/v1/consume", body);
        assert_eq!(ban_in(&world, &answer.body), (true, Some(10_000), source));
    }
}
