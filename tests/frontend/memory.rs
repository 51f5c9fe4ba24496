//! What a frontend may answer without asking, and what it must ask all the same.

use tollgate::frontend::Asked;

use super::world::{ADJUSTER, Answer, CONSUMER, World};

fn asked<'a>(url: &'a str, body: &'a str) -> Asked<'a> {
    let authorization = Some(if url == "/v1/refund" { ADJUSTER } else { CONSUMER });
    Asked { url, authorization, body: body.as_bytes(), ..Asked::default() }
}

/// The answer, and whether an object was asked for it.
fn ask(world: &mut World, request: &Asked<'_>) -> (Answer, bool) {
    let before = world.asked.len();
    let answer = world.ask(request);
    (answer, world.asked.len() > before)
}

/// What only the object knows: what was done before under a key, how a bucket stands to the drop, and what is given back.
const ONLY_THE_OBJECT_KNOWS: [(&str, &str, Option<&str>); 4] = [
    ("/v1/consume", r#"{"policy":"api","key":"k"}"#, Some("an order")),
    ("/v1/consume", r#"{"policy":"api","key":"k","snapshot":true}"#, None),
    ("/v1/inspect", r#"{"policy":"api","key":"k"}"#, None),
    ("/v1/refund", r#"{"policy":"api","key":"k"}"#, None),
];

#[test]
fn a_lease_grants_a_plain_request_and_nothing_else() {
    let mut world = World::new(r#"{"api":{"rate":"1000/1s","lease":"2s"}}"#);
    let plain = asked("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    let by_lease = |answer: &Answer| answer.body["source"] == "lease";
    let ask_again = |world: &mut World| {
        world.now += 1;
        ask(world, &plain)
    };
    let (answer, is_asked) = (0..100).map(|_| ask_again(&mut world)).find(|(answer, _)| by_lease(answer)).unwrap();
    assert!(!is_asked, "a key that is asked so often is leased: {}", answer.body);
    for (url, body, idempotency_key) in ONLY_THE_OBJECT_KNOWS {
        let (answer, is_asked) = ask(&mut world, &Asked { idempotency_key, ..asked(url, body) });
        assert_eq!((answer.status, is_asked, by_lease(&answer)), (200, true, false), "{url} {body}: {}", answer.body);
    }
    let again = Asked { idempotency_key: Some("an order"), ..plain };
    assert_eq!(ask(&mut world, &again).0.body["replayed"], true, "what was granted before is not granted again");
    let batch = r#"{"requests":[{"policy":"api","key":"k"},{"policy":"api","key":"other"}]}"#;
    let (answer, is_asked) = ask(&mut world, &asked("/v1/batch", batch));
    assert_eq!((answer.status, is_asked), (200, true), "{}", answer.body);
    let counted = world.counted();
    assert_eq!(counted["policies"]["api"]["leased_decisions"], 1, "{counted}");
}

#[test]
fn a_refusal_is_repeated_for_a_plain_request_and_nothing_else() {
    let mut world = World::new(r#"{"api":"2/1m"}"#);
    let plain = asked("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    let two = asked("/v1/consume", r#"{"policy":"api","key":"k","cost":2}"#);
    assert_eq!(ask(&mut world, &two).0.status, 200);
    assert_eq!(ask(&mut world, &plain).0.status, 429);
    let is_repeated = |world: &mut World| {
        let (answer, is_asked) = ask(world, &plain);
        assert_eq!(answer.body["source"] == "cache", !is_asked, "{}", answer.body);
        !is_asked
    };
    assert!(is_repeated(&mut world));
    for (url, body, idempotency_key) in &ONLY_THE_OBJECT_KNOWS[..3] {
        let request = Asked { idempotency_key: *idempotency_key, ..asked(url, body) };
        assert!(ask(&mut world, &request).1, "{url} {body}");
        assert!(is_repeated(&mut world));
    }
    // Of the other key nothing is known, so both are asked.
    let batch = r#"{"requests":[{"policy":"api","key":"k"},{"policy":"api","key":"other"}]}"#;
    let (answer, is_asked) = ask(&mut world, &asked("/v1/batch", batch));
    assert_eq!((answer.status, is_asked, answer.body["results"][1]["allowed"].as_bool()), (429, true, Some(true)));
    assert!(is_repeated(&mut world));
    // What is given back is known from the moment at which it is asked for, whatever becomes of that.
    let refund = asked("/v1/refund", r#"{"policy":"api","key":"k"}"#);
    drop(world.begin(&refund).ok().unwrap());
    world.now += 1; // which of two answers of one moment is the later is not known
    assert!(!is_repeated(&mut world));
    assert!(is_repeated(&mut world), "it had not been given back");
    assert_eq!(ask(&mut world, &refund).0.status, 200);
    assert_eq!(ask(&mut world, &plain).0.status, 200);
}

#[test]
fn what_is_given_back_to_shards_is_no_answer_to_those_who_take() {
    let mut world = World::new(r#"{"wide":{"rate":"16/1m","shards":8}}"#);
    let take = asked("/v1/consume", r#"{"policy":"wide","key":"k"}"#);
    for _ in 0..16 {
        assert_eq!(ask(&mut world, &take).0.status, 200);
    }
    assert_eq!(ask(&mut world, &take).0.status, 429);
    let (answer, is_asked) = ask(&mut world, &take);
    assert_eq!((answer.status, is_asked), (429, false), "{}", answer.body);
    let refund = asked("/v1/refund", r#"{"policy":"wide","key":"k","cost":3}"#);
    assert_eq!(ask(&mut world, &refund).0.status, 200);
    let granted = (0..5).filter(|_| ask(&mut world, &take).0.status == 200).count();
    assert_eq!(granted, 3);
}
