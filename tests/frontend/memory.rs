//! Requests that a frontend may answer from memory, and those that must reach the object.

use tollgate::edge::{Failure, ObjectCall};
use tollgate::frontend::{Asked, Call};
use tollgate::policy::Cause;

use super::random;
use super::world::{ADJUSTER, Answer, CONSUMER, World, failure};

fn asked<'a>(url: &'a str, body: &'a str) -> Asked<'a> {
    let authorization = Some(match url {
        "/v1/refund" | "/v1/reset" | "/v1/charge" | "/v1/lease" => ADJUSTER,
        _ => CONSUMER,
    });
    Asked { url, authorization, body: body.as_bytes(), ..Asked::default() }
}

/// The answer, and whether an object was called for it.
fn ask(world: &mut World, request: &Asked<'_>) -> (Answer, bool) {
    let before = world.asked.len();
    let answer = world.ask(request);
    (answer, world.asked.len() > before)
}

/// Only the object knows replays and exact states, and must get refunds.
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
    assert!(!is_asked, "the object was called although a lease granted: {}", answer.body);
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
    // Nothing is known of the other key, so both are called.
    let batch = r#"{"requests":[{"policy":"api","key":"k"},{"policy":"api","key":"other"}]}"#;
    let (answer, is_asked) = ask(&mut world, &asked("/v1/batch", batch));
    assert_eq!((answer.status, is_asked, answer.body["results"][1]["allowed"].as_bool()), (429, true, Some(true)));
    assert!(is_repeated(&mut world));
    // A frontend that sends a refund forgets the refusal at once, even if the refund fails.
    let refund = asked("/v1/refund", r#"{"policy":"api","key":"k"}"#);
    drop(world.begin(&refund).ok().unwrap());
    world.now += 1; // the order of two answers of one moment is unknown
    assert!(!is_repeated(&mut world));
    assert!(is_repeated(&mut world), "it had not been given back");
    assert_eq!(ask(&mut world, &refund).0.status, 200);
    assert_eq!(ask(&mut world, &plain).0.status, 200);
}

#[test]
fn a_refund_to_shards_does_not_answer_requests_that_take() {
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

/// A refusal is kept from the start of its call, which is the first if it was repeated, and its wait counts from the answer: whatever the
/// network does, no key is refused for too long, and no wait is too short.
#[test]
fn a_refusal_ages_from_its_call_and_its_wait_from_its_answer() {
    for is_repeated in [false, true] {
        let mut world = World::new(r#"{"api":"2/1m"}"#);
        let plain = asked("/v1/consume", r#"{"policy":"api","key":"k"}"#);
        ask(&mut world, &asked("/v1/consume", r#"{"policy":"api","key":"k","cost":2}"#));
        let (called_at, mut call) = (world.now, world.begin(&plain).ok().unwrap());
        let mut next = call.next(world.now()).unwrap();
        if is_repeated {
            world.now = called_at + 30;
            call.failed(next.object, Failure { cause: Cause::Failed, is_retryable: true }, world.now());
            next = call.next(world.now()).unwrap();
        }
        world.now = called_at + 50;
        let answer = world.object_reply(&call, &next);
        world.now = called_at + 100;
        call.answered(next.object, Some(answer), world.now());
        assert_eq!(call.reply(world.now()).status, 429);
        world.now = called_at + 999;
        let (answer, is_asked) = ask(&mut world, &plain);
        // By the object's clock, if it has decided when the answer came.
        assert_eq!((answer.body["now"].as_i64(), is_asked), (Some(called_at + 949), false), "{}", answer.body);
        world.now = called_at + 1_000;
        assert!(ask(&mut world, &plain).1, "repeated: {is_repeated}");
    }
}

/// What a lease has spent before midnight counts for the day in which the object learns of it, so at most a lease is refused too early.
#[cfg(feature = "zones")]
#[test]
fn leases_over_midnight_grant_no_more_than_each_day_has() {
    for opens in [20_763 * 24 - 1, 21_123 * 24 - 1, 20_906 * 24 - 2].map(|hours| hours * 3_600_000) {
        let mut leased_over_midnight = 0;
        for requests_before in 60..90 {
            let mut world = World::new(
                r#"{"api":{"kind":"fixed_window","rate":500,"calendar":"day","zone":"Europe/Berlin","lease":"2s","max_lease":50}}"#,
            );
            let plain = asked("/v1/consume", r#"{"policy":"api","key":"k"}"#);
            for before_ms in (1..=requests_before).rev() {
                world.now = opens - before_ms;
                assert_eq!(ask(&mut world, &plain).0.status, 200);
            }
            let mut granted = 0;
            let refused = loop {
                world.now = opens + granted;
                let (answer, is_asked) = ask(&mut world, &plain);
                leased_over_midnight += i32::from(granted == 0 && !is_asked);
                if answer.status != 200 {
                    break answer;
                }
                granted += 1;
            };
            assert!((450..=500).contains(&granted), "{granted} of 500, after {requests_before} on the day before");
            assert_eq!((refused.status, refused.body["retry_at"].as_i64()), (429, Some(opens + 86_400_000)));
        }
        assert!(leased_over_midnight > 0, "no lease was open at midnight");
    }
}

/// On days of 24, 25 and 23 hours; and no longer than the policy says.
#[cfg(feature = "zones")]
#[test]
fn a_refusal_by_a_calendar_is_repeated_until_midnight_in_its_zone() {
    const HOUR_MS: i64 = 3_600_000;
    for opens in [20_763 * 24 - 1, 21_123 * 24 - 1, 20_906 * 24 - 2].map(|hours| hours * HOUR_MS) {
        let mut world = World::new(
            r#"{"api":{"kind":"fixed_window","rate":2,"calendar":"day","zone":"Europe/Berlin","refusal_cache":"1m"}}"#,
        );
        let plain = asked("/v1/consume", r#"{"policy":"api","key":"k"}"#);
        world.now = opens - HOUR_MS - 30_000;
        let two = asked("/v1/consume", r#"{"policy":"api","key":"k","cost":2}"#);
        assert_eq!(ask(&mut world, &two).0.status, 200);
        for (now, status, is_asked) in [
            (opens - HOUR_MS - 30_000, 429, true),
            (opens - HOUR_MS, 429, false),
            (opens - HOUR_MS + 29_999, 429, false),
            (opens - HOUR_MS + 30_000, 429, true),
            (opens - 30_000, 429, true),
            (opens - 1, 429, false),
            (opens, 200, true),
        ] {
            world.now = now;
            let (answer, found) = ask(&mut world, &plain);
            assert_eq!((answer.status, found), (status, is_asked), "{} ms: {}", now - opens, answer.body);
            assert_eq!(answer.body["retry_at"].as_i64(), (status == 429).then_some(opens));
        }
    }
}

/// What an isolate that is alone says from memory of a rolling window is what the object would say, field by field: for other costs too, and
/// beside other limits.
#[test]
fn a_refusal_by_a_rolling_window_is_repeated_as_the_object_would_say_it() {
    let (mut consumed, mut remembered) = (0, 0);
    random::cases(300, |random| {
        let window = [
            r#""kind":"rolling_window","rate":5,"period":"10s""#,
            r#""kind":"rolling_window","rate":70,"period":"10s","grains":9"#,
        ][random.below(2)];
        let second = [
            r#"{"name":"b","rate":9,"period":"10s"}"#,
            r#"{"name":"b","kind":"rolling_window","rate":20,"period":"3s"}"#,
        ][random.below(2)];
        let limits = match random.below(2) {
            0 => window.to_owned(),
            _ => format!(r#""limits":[{{"name":"a",{window}}},{second}]"#),
        };
        let policy = |cache| format!(r#"{{"api":{{{limits},"refusal_cache":"{cache}"}}}}"#);
        let mut worlds = ["1m", "0s"].map(|cache| World::new(&policy(cache)));
        for _ in 0..60 {
            let cost = [1, 1, 2, 5, 20, 71][random.below(6)];
            let mode = ["", r#","mode":"up_to""#, r#","mode":"borrow""#][random.below(3)];
            let (url, mode) = if random.once_in(20) { ("/v1/refund", "") } else { ("/v1/consume", mode) };
            let body = format!(r#"{{"policy":"api","key":"k","cost":{cost}{mode}}}"#);
            let [mut cached, exact] = worlds.each_mut().map(|world| ask(world, &asked(url, &body)).0);
            let is_remembered = cached.body["source"] == "cache";
            consumed += 1;
            remembered += u32::from(is_remembered);
            if is_remembered {
                cached.body.as_object_mut().unwrap().remove("source");
            }
            assert_eq!((cached.status, cached.body), (exact.status, exact.body), "{limits}, {body}");
            let ms = [0, 1, 30, 400, 3_000][random.below(5)];
            for world in &mut worlds {
                world.now += ms;
            }
        }
    });
    println!("{consumed} requests, {remembered} refused from memory");
    assert!(consumed < 10_000 || remembered * 5 > consumed, "too few to show anything");
}

/// An answer says the next 64 moments at which something comes back.
#[test]
fn what_passes_after_many_moments_is_asked_of_the_object() {
    let mut world =
        World::new(r#"{"api":{"kind":"rolling_window","rate":66,"period":"1m","grains":240,"refusal_cache":"1m"}}"#);
    let of_cost = |cost: u64| format!(r#"{{"policy":"api","key":"k","cost":{cost}}}"#);
    for _ in 0..66 {
        assert_eq!(ask(&mut world, &asked("/v1/consume", &of_cost(1))).0.status, 200);
        world.now += 300;
    }
    for (cost, is_asked) in [(1, true), (1, false), (64, false), (65, true), (66, true), (67, false)] {
        let (answer, found) = ask(&mut world, &asked("/v1/consume", &of_cost(cost)));
        assert_eq!((answer.status == 200, found), (false, is_asked), "{cost}: {}", answer.body);
    }
}

/// A refund may have arrived after a refusal that was answered first, even if its outcome is unknown.
#[test]
fn giving_back_forgets_refusals_made_meanwhile() {
    type End = fn(&mut World, &mut Call, &ObjectCall);
    let ends: [End; 3] = [
        |world, call, next| {
            let answer = world.object_reply(call, next);
            call.answered(next.object, Some(answer), world.now());
        },
        |world, call, next| _ = call.answered(next.object, None, world.now()),
        |world, call, next| call.failed(next.object, failure(Cause::Timeout), world.now()),
    ];
    for (url, policy) in [("/v1/refund", "api"), ("/v1/reset", "api"), ("/v1/refund", "wide")] {
        for end in ends {
            let mut world = World::new(r#"{"api":"2/1m","wide":{"rate":"4/1m","shards":2}}"#);
            let body = format!(r#"{{"policy":"{policy}","key":"k"}}"#);
            let plain = asked("/v1/consume", &body);
            assert!((0..9).any(|_| ask(&mut world, &plain).0.status == 429));
            let mut call = world.begin(&asked(url, &body)).ok().unwrap();
            let next = call.next(world.now()).unwrap();
            world.now += 1;
            assert!(ask(&mut world, &plain).1 && !ask(&mut world, &plain).1);
            world.now += 1;
            end(&mut world, &mut call, &next);
            world.now += 1;
            assert!(ask(&mut world, &plain).1, "{url} {policy}");
        }
    }
}

/// A refusal decided before something was given back says nothing about the current level, however late its answer comes.
#[test]
fn a_refusal_from_before_something_was_given_back_is_ignored() {
    type End = fn(&mut World, &mut Call, &ObjectCall);
    let ends: [End; 3] = [
        |_, _, _| {}, // no answer at all
        |world, call, next| {
            let answer = world.object_reply(call, next);
            call.answered(next.object, Some(answer), world.now());
        },
        |world, call, next| call.failed(next.object, failure(Cause::Timeout), world.now()),
    ];
    for (way, is_begun_first) in [(0, false), (1, false), (1, true), (2, false), (2, true)] {
        let mut world = World::new(r#"{"api":"2/1m"}"#);
        let body = r#"{"policy":"api","key":"k"}"#;
        let plain = asked("/v1/consume", body);
        (0..2).for_each(|_| assert_eq!(ask(&mut world, &plain).0.status, 200));
        let begin_refund = |world: &mut World| {
            let mut call = world.begin(&asked("/v1/refund", body)).ok().unwrap();
            let next = call.next(world.now()).unwrap();
            world.now += 1;
            (call, next)
        };
        let begun = is_begun_first.then(|| begin_refund(&mut world));
        let mut refused = world.begin(&plain).ok().unwrap();
        let next = refused.next(world.now()).unwrap();
        let answer = world.object_reply(&refused, &next);
        world.now += 1;
        let (mut refund, next_refund) = begun.unwrap_or_else(|| begin_refund(&mut world));
        ends[way](&mut world, &mut refund, &next_refund);
        world.now += 1;
        refused.answered(next.object, Some(answer), world.now());
        assert_eq!(refused.reply(world.now()).status, 429);
        assert!(ask(&mut world, &plain).1, "way {way}, begun first: {is_begun_first}");
    }
}

/// The same for each shard: the one that answered late is called again, the other is not.
#[test]
fn a_shards_refusal_from_before_something_was_given_back_is_ignored() {
    let mut world = World::new(r#"{"wide":{"rate":"4/1m","shards":2}}"#);
    let body = r#"{"policy":"wide","key":"k"}"#;
    let plain = asked("/v1/consume", body);
    (0..4).for_each(|_| assert_eq!(ask(&mut world, &plain).0.status, 200));
    let mut refused = world.begin(&plain).ok().unwrap();
    let next = refused.next(world.now()).unwrap();
    let answer = world.object_reply(&refused, &next);
    world.now += 1;
    drop(world.begin(&asked("/v1/refund", body)).ok().unwrap());
    world.now += 1;
    refused.answered(next.object, Some(answer), world.now());
    world.carry_out(&mut refused);
    assert_eq!(refused.reply(world.now()).status, 429);
    let before = world.asked.len();
    assert_eq!((ask(&mut world, &plain).0.status, world.asked.len() - before), (429, 1));
}

/// Grants of small costs show that large ones are still refused, and soon that small ones are, too.
#[test]
fn a_grant_replaces_a_refusal() {
    let mut world = World::new(r#"{"api":"5/1m"}"#);
    let bodies: Vec<_> = (0..4).map(|cost| format!(r#"{{"policy":"api","key":"k","cost":{cost}}}"#)).collect();
    for (cost, status, is_asked) in [(3, 200, true), (3, 429, true), (2, 200, true), (1, 429, false), (3, 429, false)] {
        let (answer, found) = ask(&mut world, &asked("/v1/consume", &bodies[cost]));
        assert_eq!((answer.status, found), (status, is_asked), "{cost}");
    }
}

/// Every verb that takes tokens is refused from memory, even one that would pay later, but not now.
#[test]
fn every_verb_that_takes_tokens_is_refused_from_memory() {
    let policies = r#"{"api":{"rate":"2/1m","lease":"2s"},"tried":{"limits":[{"name":"a","rate":"2/1m"},{"name":"b","rate":"1/1m","mode":"shadow"}]}}"#;
    let mut world = World::new(policies);
    for policy in ["api", "tried"] {
        for (status, cost) in [(200, 2), (429, 1)] {
            let body = format!(r#"{{"policy":"{policy}","key":"k","cost":{cost}}}"#);
            assert_eq!(ask(&mut world, &asked("/v1/consume", &body)).0.status, status);
        }
    }
    let tried_too = r#"{"requests":[{"policy":"api","key":"k"},{"policy":"tried","key":"k"}]}"#;
    for (url, body, is_asked) in [
        ("/v1/consume", r#"{"policy":"api","key":"k","mode":"reserve","max_wait_ms":0}"#, false),
        ("/v1/consume", r#"{"policy":"api","key":"k","mode":"borrow","max_wait_ms":0}"#, false),
        ("/v1/consume", r#"{"policy":"api","key":"k","mode":"up_to"}"#, false),
        ("/v1/batch", r#"{"requests":[{"policy":"api","key":"k"}]}"#, false),
        ("/v1/consume", r#"{"policy":"tried","key":"k"}"#, true),
        ("/v1/batch", tried_too, true),
        ("/v1/peek", r#"{"policy":"api","key":"k"}"#, true),
        ("/v1/charge", r#"{"policy":"api","key":"k","cost":0}"#, true),
        ("/v1/lease", r#"{"policy":"api","key":"k","cost":1,"tokens":1}"#, true),
    ] {
        assert_eq!(ask(&mut world, &asked(url, body)).1, is_asked, "{url} {body}");
    }
}

/// One refusing budget is enough, if the others are known, too.
#[test]
fn one_budget_refuses_a_batch_from_memory() {
    let mut world = World::new(r#"{"api":"3/1m"}"#);
    let request = |key: &str, cost: u64| format!(r#"{{"policy":"api","key":"{key}","cost":{cost}}}"#);
    for (key, cost, status) in [("a", 2, 200), ("a", 2, 429), ("b", 2, 200), ("b", 2, 429)] {
        assert_eq!(ask(&mut world, &asked("/v1/consume", &request(key, cost))).0.status, status);
    }
    for (a, b, status, is_asked) in [(2, 1, 429, false), (1, 2, 429, false), (2, 2, 429, false), (1, 1, 200, true)] {
        let body = format!(r#"{{"requests":[{},{}]}}"#, request("a", a), request("b", b));
        let (answer, found) = ask(&mut world, &asked("/v1/batch", &body));
        assert_eq!((answer.status, found), (status, is_asked), "{a} {b}: {}", answer.body);
    }
}

/// The object withholds leased tokens from requests that a lease cannot grant, and refuses them for longer: so it is called. A plain
/// request gives them back, and is refused from memory.
#[test]
fn requests_that_a_lease_cannot_grant_reach_the_object_while_one_is_open() {
    let mut world = World::new(r#"{"api":{"rate":"1/1m burst 200","lease":"2s","refusal_cache":"10s"}}"#);
    let large = r#"{"policy":"api","key":"k","cost":150}"#;
    let small = asked("/v1/consume", r#"{"policy":"api","key":"k"}"#);
    assert_eq!(ask(&mut world, &asked("/v1/consume", r#"{"policy":"api","key":"k","cost":100}"#)).0.status, 200);
    assert_eq!(ask(&mut world, &asked("/v1/consume", large)).0.status, 429);
    let by_lease = (0..60).find_map(|_| {
        world.now += 1;
        let (answer, is_asked) = ask(&mut world, &small);
        (answer.body["source"] == "lease").then_some(is_asked)
    });
    assert_eq!(by_lease, Some(false));
    for (url, body, is_asked) in [
        ("/v1/consume", large, false),
        ("/v1/consume", r#"{"policy":"api","key":"k","cost":150,"mode":"borrow","max_wait_ms":0}"#, true),
        ("/v1/batch", r#"{"requests":[{"policy":"api","key":"k","cost":150}]}"#, false),
        ("/v1/lease", r#"{"policy":"api","key":"k","cost":1,"tokens":1}"#, true),
    ] {
        let (answer, found) = ask(&mut world, &asked(url, body));
        assert_eq!(found, is_asked, "{url} {body}: {}", answer.body);
    }
    let wanted = world.asked.last().unwrap().lease.clone().unwrap().wanted;
    assert_eq!(wanted, [1], "a server's own lease");
}
