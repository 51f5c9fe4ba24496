//! A budget in several objects: which are called, in which order, and what is remembered of them.

use std::collections::BTreeSet;

use tollgate::edge::ObjectCall;
use tollgate::frontend::{Asked, Call, LastStep};
use tollgate::policy::{Cause, Policies, Policy};
use tollgate::protocol::{Action, ObjectReply, Rows};

use super::world::{ADJUSTER, CONSUMER, Deployment, World, failure};

const POLICIES: &str = r#"{"wide":{"rate":"16/1m","shards":8},"two":{"rate":"16/1m","shards":2},
    "open":{"rate":"16/1m","shards":8,"on_error":"open"}}"#;

fn asked<'a>(url: &'a str, body: &'a str) -> Asked<'a> {
    let is_adjusted = ["/v1/refund", "/v1/reset"].contains(&url);
    let authorization = Some(if is_adjusted { ADJUSTER } else { CONSUMER });
    Asked { url, authorization, body: body.as_bytes(), ..Asked::default() }
}

/// Carries out a request. Returns its status and the objects that were called, in order.
fn ask(world: &mut World, asked: &Asked<'_>) -> (u16, Vec<usize>) {
    let mut call = world.begin(asked).ok().unwrap();
    let mut objects = Vec::new();
    while let Some(next) = call.next(world.now()) {
        objects.push(next.object);
        let answer = world.object_reply(&call, &next);
        call.answered(next.object, Some(answer), world.now());
    }
    (call.reply(world.now()).status, objects)
}

/// All calls that can be made before there is an answer.
fn at_once(world: &World, call: &mut Call) -> Vec<ObjectCall> {
    std::iter::from_fn(|| call.next(world.now())).collect()
}

#[test]
fn looks_ask_all_shards_refunds_the_first_before_the_others_and_consumes_one() {
    for (url, expected) in
        [("/v1/peek", 8), ("/v1/inspect", 8), ("/v1/refund", 1), ("/v1/reset", 1), ("/v1/consume", 1)]
    {
        let mut world = World::new(POLICIES);
        let mut call = world.begin(&asked(url, r#"{"policy":"wide","key":"k"}"#)).ok().unwrap();
        let calls = at_once(&world, &mut call);
        assert_eq!((calls.len(), call.count()), (expected, 8), "{url}");
        let names: BTreeSet<_> = (0..8).map(|index| call.object(index).to_owned()).collect();
        assert_eq!(names.len(), 8);
        if url == "/v1/refund" {
            assert_eq!(calls[0].object, 0, "the key's own object says whether it is done at all");
        }
    }
}

/// The load of a hot key is spread over its objects, and so are refunds.
#[test]
fn which_shard_is_first_is_random() {
    let mut world = World::new(POLICIES);
    let (mut first_taken, mut first_given) = (BTreeSet::new(), BTreeSet::new());
    for number in 0..40 {
        let body = format!(r#"{{"policy":"wide","key":"{number}"}}"#);
        first_taken.insert(ask(&mut world, &asked("/v1/consume", &body)).1[0]);
        let before = world.asked.len();
        world.ask(&asked("/v1/refund", &body));
        let costs = world.asked[before..].iter().map(|request| request.costs.concat().iter().sum::<u64>());
        first_given.insert(costs.clone().position(|cost| cost > 0));
        assert_eq!(costs.sum::<u64>(), 1);
    }
    assert!(first_taken.len() > 4 && first_given.len() > 4, "{first_taken:?} {first_given:?}");
}

/// A repetition gives each shard what the first attempt gave, so that nothing is given twice and nothing is left out.
#[test]
fn a_repeated_refund_is_spread_in_the_same_way() {
    let mut world = World::new(POLICIES);
    let refund =
        Asked { idempotency_key: Some("a return"), ..asked("/v1/refund", r#"{"policy":"wide","key":"k","cost":11}"#) };
    let mut tries = (0..8).map(|_| {
        world.asked.clear();
        assert_eq!(world.ask(&refund).status, 200);
        world.asked.iter().map(|request| request.costs.clone()).collect::<Vec<_>>()
    });
    let first = tries.next().unwrap();
    assert!(tries.all(|costs| costs == first));
}

/// A shard that was asked under newer policies does its part in the second try, in which the others give nothing twice.
#[test]
fn a_refund_during_a_change_of_policies_is_whole() {
    let policies = POLICIES.replace("16/1m", "0/1m burst 16");
    let mut world = World::of(&Deployment { policies: &policies, has_registry: true, ..Deployment::default() });
    let refund = asked("/v1/refund", r#"{"policy":"wide","key":"k","cost":11}"#);
    let changed = Policies::parse(&policies.replace("burst 16", "burst 24")).unwrap();
    let definitions = changed.get("wide").map(|policy| Policy::clone(policy).in_force_since(5).definition()).unwrap();
    let consume = asked("/v1/consume", r#"{"policy":"wide","key":"k","cost":2}"#);
    for _ in 0..8 {
        assert_eq!(ask(&mut world, &consume).0, 200);
    }
    let mut call = world.begin(&refund).ok().unwrap();
    while let Some(next) = call.next(world.now()) {
        let answer = if next.object == 3 {
            (ObjectReply::PolicyOutdated { as_of: 9, definitions: definitions.clone() }, Rows::default())
        } else {
            world.object_reply(&call, &next)
        };
        call.answered(next.object, Some(answer), world.now());
    }
    let LastStep::Again(newer) = call.last(world.now()) else { panic!("there is a try left") };
    let answer = world.ask(&Asked { newer: Some(&newer), ..refund });
    assert_eq!((answer.status, &answer.body["tokens"]), (200, &11.into()), "{}", answer.body);
    assert!(answer.body.get("replayed").is_none(), "it is the same request");
}

/// In the second try, shards may already have done their part: that the first is overloaded does not say that nothing was done.
#[test]
fn an_overloaded_shard_says_that_nothing_was_done_only_in_the_first_try() {
    let mut world = World::of(&Deployment { policies: POLICIES, has_registry: true, ..Deployment::default() });
    let refund = asked("/v1/refund", r#"{"policy":"wide","key":"k"}"#);
    let mut newer = None;
    for cause in ["overloaded", "failed"] {
        world.failure = Some(failure(Cause::Overloaded));
        let answer = world.ask(&Asked { newer: newer.as_ref(), ..refund });
        assert_eq!((answer.status, &answer.body["cause"]), (503, &cause.into()), "{}", answer.body);
        world.failure = None;
        let mut call = world.begin(&refund).ok().unwrap();
        let next = call.next(world.now()).unwrap();
        let outdated = ObjectReply::PolicyOutdated { as_of: 9, definitions: String::new() };
        call.answered(next.object, Some((outdated, Rows::default())), world.now());
        let LastStep::Again(tried) = call.last(world.now()) else { panic!("there is a try left") };
        newer = Some(tried);
    }
}

#[test]
fn the_shard_last_known_to_be_fuller_is_asked_first() {
    let mut world = World::new(POLICIES);
    let mut first = BTreeSet::new();
    for number in 0..20 {
        let body = |cost: u64| format!(r#"{{"policy":"two","key":"{number}","cost":{cost}}}"#);
        let (status, drained) = ask(&mut world, &asked("/v1/consume", &body(8)));
        assert_eq!((status, drained.len()), (200, 1));
        let (status, other) = ask(&mut world, &asked("/v1/consume", &body(8)));
        assert_eq!((status, &other), (200, &vec![1 - drained[0]]), "the one that is full");
        let other = format!(r#"{{"policy":"two","key":"other {number}","cost":8}}"#);
        let drained = ask(&mut world, &asked("/v1/consume", &other)).1;
        world.now += 60_000; // it is full again, like the one that was not called
        first.insert(ask(&mut world, &asked("/v1/consume", &other)).1 == drained);
    }
    assert_eq!(first.len(), 2, "any of two that are full");
}

/// Each shard's refusal is remembered, even from a look; a smaller cost is sent again.
#[test]
fn a_refusal_of_all_shards_is_repeated_from_memory() {
    let small = r#"{"policy":"wide","key":"k"}"#;
    let large = r#"{"policy":"wide","key":"k","cost":2}"#;
    for refused in ["/v1/consume", "/v1/peek"] {
        let mut world = World::new(POLICIES);
        for body in [large, large, large, large, large, large, large, small] {
            assert_eq!(ask(&mut world, &asked("/v1/consume", body)).0, 200);
        }
        assert_eq!(ask(&mut world, &asked(refused, large)).0, 429);
        let answer = world.ask(&asked("/v1/consume", large));
        assert_eq!((answer.status, &answer.body["source"]), (429, &"cache".into()), "{}", answer.body);
        let counted = world.counted();
        assert_eq!(counted["policies"]["wide"]["cached_refusals"], 1, "{counted}");
        assert_eq!(ask(&mut world, &asked("/v1/peek", large)).1.len(), 8, "a look is always asked");
        let (status, objects) = ask(&mut world, &asked("/v1/consume", small));
        assert_eq!((status, objects.len()), (200, 1));
    }
}

/// From the moment something is given back, no cost that it may suffice for is refused from memory.
#[test]
fn giving_back_forgets_the_refusals_of_every_shard() {
    let take = r#"{"policy":"wide","key":"k","cost":2}"#;
    for (url, body) in [("/v1/refund", take), ("/v1/reset", r#"{"policy":"wide","key":"k"}"#)] {
        let mut world = World::new(POLICIES);
        assert!((0..9).any(|_| ask(&mut world, &asked("/v1/consume", take)).0 == 429));
        assert_eq!(ask(&mut world, &asked("/v1/consume", take)), (429, vec![]));
        drop(world.begin(&asked(url, body)).ok().unwrap());
        world.now += 1;
        assert_eq!(ask(&mut world, &asked("/v1/consume", take)).1.len(), 8, "{url}");
    }
}

/// Objects are called one by one: a lost call may have taken the cost, and no refusal is known.
#[test]
fn a_lost_request_fails_as_its_policy_says() {
    for (policy, status) in [("wide", 503), ("open", 200)] {
        let world = World::new(POLICIES);
        let mut world = world;
        let body = format!(r#"{{"policy":"{policy}","key":"k"}}"#);
        let asked = Asked { is_lost: true, ..asked("/v1/consume", &body) };
        let mut call = world.begin(&asked).ok().unwrap();
        assert_eq!((call.count(), call.reply(world.now()).status), (8, status), "{policy}");
    }
}

/// A shard cannot remember for the others that it has refused, so an `Idempotency-Key` is an error; a request under it from before the
/// policy had shards is still recognized.
#[test]
fn requests_from_before_there_were_shards_are_recognized() {
    let mut world = World::new(r#"{"wide":"16/1m"}"#);
    let consume = Asked { idempotency_key: Some("an order"), ..asked("/v1/consume", r#"{"policy":"wide","key":"k"}"#) };
    assert_eq!(world.ask(&consume).status, 200);
    world.deploy(POLICIES);
    world.asked.clear();
    let again = world.ask(&consume);
    assert_eq!((again.status, &again.body["replayed"]), (200, &true.into()), "{}", again.body);
    let other = world.ask(&Asked { idempotency_key: Some("another"), ..consume });
    assert_eq!(other.status, 400, "{}", other.body);
    let different = world.ask(&Asked { body: br#"{"policy":"wide","key":"k","cost":2}"#, ..consume });
    assert_eq!(different.status, 422, "{}", different.body);
    for request in &world.asked {
        assert!(matches!(request.action, Action::Look(_)) && request.request_id.is_some(), "{request:?}");
    }
    assert_eq!(world.asked.len(), 3, "the key's own object alone");
}

/// What a request took does not depend on what its policy says by the time it is repeated.
#[test]
fn a_repeated_request_gets_its_answer_even_if_its_cost_is_too_large_by_now() {
    let body = r#"{"policy":"wide","key":"k","cost":9}"#;
    let consume = Asked { idempotency_key: Some("an order"), ..asked("/v1/consume", body) };
    for (number, now) in [r#"{"wide":"4/1m"}"#, POLICIES].into_iter().enumerate() {
        let mut world = World::new(r#"{"wide":"16/1m"}"#);
        assert_eq!(world.ask(&consume).status, 200);
        world.deploy(now);
        let again = world.ask(&consume);
        assert_eq!((again.status, &again.body["replayed"]), (200, &true.into()), "{number}: {}", again.body);
        world.asked.clear();
        for idempotency_key in [Some("another"), None] {
            let refused = world.ask(&Asked { idempotency_key, ..consume });
            let max = if number == 0 { 4 } else { 2 };
            assert_eq!((refused.status, &refused.body["max_cost"]), (400, &max.into()), "{}", refused.body);
        }
        assert_eq!(world.asked.len(), 1, "only one that may have been done before is asked for");
        assert!(matches!(world.asked[0].action, Action::Look(_)));
    }
}
