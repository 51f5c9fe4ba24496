//! Soft limits as callers and operators meet them.

use serde_json::{Value, json};

use tollgate::edge::Failure;
use tollgate::frontend::{Asked, Callers, Receivers, Settings};
use tollgate::policy::Cause;
use tollgate::protocol::{Action, Condition, PolicyChange};

use super::world::{Answer, CONSUMER, Deployment, World, settings};

/// Five a minute, and a hard limit of 20 a day beside it.
const POLICIES: &str = r#"{
    "quota": {"kind":"fixed_window","rate":5,"period":"1m","offset":"0s","mode":"soft"},
    "month": {"kind":"fixed_window","rate":5,"period":"30days","offset":"0s","mode":"soft"},
    "both": {"limits":[{"name":"month","rate":"5/30days","mode":"soft"},{"name":"day","rate":"20/1day"}]}
}"#;

fn world() -> World {
    let deployment = Deployment { policies: POLICIES, has_registry: true, ..Deployment::default() };
    World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) })
}

fn post(world: &mut World, path: &str, policy: &str, more: &str) -> Answer {
    world.post(path, &format!(r#"{{"policy":"{policy}","key":"k"{more}}}"#))
}

fn field(answer: &Answer, name: &str) -> String {
    let header = answer.reply.headers.iter().find(|(other, _)| *other == name);
    header.map(|(_, value)| value.to_string()).unwrap_or_default()
}

#[test]
fn an_answer_says_by_how_much_a_soft_limit_is_exceeded() {
    let mut world = world();
    for (cost, remaining, over) in [(4, 1, None), (1, 0, None), (3, 0, Some(3)), (1_000_000, 0, Some(1_000_003))] {
        let answer = post(&mut world, "/v1/consume", "quota", &format!(r#","cost":{cost}"#));
        assert_eq!(answer.status, 200, "{}", answer.body);
        let members = ["allowed", "remaining"].map(|name| answer.body[name].clone());
        assert_eq!(members, [json!(true), json!(remaining)]);
        assert_eq!(answer.body.get("over").and_then(Value::as_u64), over);
        assert_eq!(answer.body.get("owed"), None, "nothing waits for it");
        let expected = format!(r#""quota";r={remaining};tollgate-over={}"#, over.unwrap_or(0));
        assert_eq!((field(&answer, "ratelimit"), field(&answer, "retry-after")), (expected, String::new()));
    }
    // What is over is what the next windows lack.
    world.now += 60_000 * 200_000;
    assert_eq!(post(&mut world, "/v1/peek", "quota", "").body["over"], 3);
    world.now += 60_000;
    let answer = post(&mut world, "/v1/peek", "quota", "");
    assert_eq!((&answer.body["remaining"], answer.body.get("over")), (&json!(2), None));
}

#[test]
fn beside_a_hard_limit_the_hard_one_decides() {
    let mut world = world();
    let first = post(&mut world, "/v1/consume", "both", r#","cost":7"#);
    // At the top is what can still be had; the soft limit says only by how much it is exceeded.
    let top = ["limit", "remaining", "over", "near_limit"].map(|name| first.body[name].clone());
    assert_eq!(top, [json!(20), json!(13), json!(2), json!(true)], "{}", first.body);
    let of = |answer: &Answer, limit: usize| {
        ["name", "remaining", "over"].map(|name| answer.body["limits"][limit][name].clone())
    };
    assert_eq!(of(&first, 0), [json!("month"), json!(0), json!(2)]);
    assert_eq!(of(&first, 1), [json!("day"), json!(13), Value::Null]);
    let up_to = post(&mut world, "/v1/consume", "both", r#","cost":50,"mode":"up_to""#);
    assert_eq!((&up_to.body["tokens"], &up_to.body["over"]), (&json!(13), &json!(15)));
    let refused = post(&mut world, "/v1/consume", "both", "");
    assert_eq!((refused.status, &refused.body["over"]), (429, &json!(15)), "{}", refused.body);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.starts_with("policy both/day has 0 of 20 tokens left"), "{detail}");
    // A refusal takes nothing of the soft one either, from memory or not.
    let again = post(&mut world, "/v1/consume", "both", "");
    assert_eq!((again.status, &again.body["source"]), (429, &json!("cache")), "{}", again.body);
    world.now += 86_400_000;
    assert_eq!(of(&post(&mut world, "/v1/peek", "both", ""), 0)[2], json!(15));
}

#[test]
fn reservations_batches_and_repetitions_count_once_and_at_the_real_cost() {
    let mut world = world();
    let reserved = post(&mut world, "/v1/consume", "both", r#","cost":12,"mode":"reserve""#);
    assert_eq!((reserved.status, &reserved.body["over"]), (200, &json!(7)));
    let settled =
        post(&mut world, "/v1/settle", "both", &format!(r#","reservation":{},"cost":6"#, reserved.body["reservation"]));
    assert_eq!((settled.status, &settled.body["over"]), (200, &json!(1)), "{}", settled.body);
    let batch = r#"{"requests":[{"policy":"both","key":"k","cost":2},{"policy":"quota","key":"other","cost":9}]}"#;
    let answer = world.post("/v1/batch", batch);
    let over: Vec<_> = answer.body["results"].as_array().unwrap().iter().map(|result| &result["over"]).collect();
    assert_eq!((answer.status, over), (200, vec![&json!(3), &json!(4)]), "{}", answer.body);
    let refused = batch.replace(r#""cost":2"#, r#""cost":20"#);
    assert_eq!(world.post("/v1/batch", &refused).status, 429);
    let other = world.post("/v1/peek", r#"{"policy":"quota","key":"other"}"#);
    assert_eq!(other.body["over"], 4, "a refused batch takes nothing");
    let body = r#"{"policy":"quota","key":"once","cost":8}"#;
    for is_repeated in [false, true] {
        let asked = Asked { url: "/v1/consume", idempotency_key: Some("a"), body: body.as_bytes(), ..Asked::default() };
        let answer = world.ask(&asked);
        let replayed = answer.body.get("replayed").is_some();
        assert_eq!((&answer.body["over"], replayed), (&json!(3), is_repeated), "{}", answer.body);
    }
}

#[test]
fn a_ban_refuses_other_numbers_stay_soft_and_no_limit_counts_nothing_over() {
    let mut world = world();
    world.refresh();
    assert_eq!(post(&mut world, "/v1/consume", "month", r#","cost":9"#).body["over"], 4);
    world.set(r#"{"policy":"month","key":"k","banned":true}"#);
    assert_eq!(post(&mut world, "/v1/consume", "month", "").status, 429);
    world.set(r#"{"policy":"month","key":"k","kind":"fixed_window","rate":7,"period":"30days","offset":"0s"}"#);
    // Two more, of which one is used.
    let answer = post(&mut world, "/v1/consume", "month", "");
    assert_eq!((answer.status, &answer.body["limit"], &answer.body["over"]), (200, &json!(7), &json!(3)));
    world.set(r#"{"policy":"month","key":"k","multiple":2}"#);
    let answer = post(&mut world, "/v1/consume", "month", r#","cost":100"#);
    let numbers = [&answer.body["limit"], &answer.body["over"]];
    assert_eq!((answer.status, numbers), (200, [&json!(10), &json!(100)]), "{}", answer.body);
    world.set(r#"{"policy":"month","key":"k","unlimited":true}"#);
    let answer = post(&mut world, "/v1/consume", "month", r#","cost":100"#);
    assert_eq!((answer.status, answer.body.get("over")), (200, None), "{}", answer.body);
}

/// It counts what was over, which is then owed.
#[test]
fn a_soft_limit_that_is_enforced_owes_what_was_over() {
    let mut world = world();
    assert_eq!(post(&mut world, "/v1/consume", "quota", r#","cost":9"#).body["over"], 4);
    world.deploy(&POLICIES.replacen(r#","mode":"soft""#, "", 1));
    let answer = post(&mut world, "/v1/consume", "quota", "");
    assert_eq!(
        (answer.status, &answer.body["owed"], answer.body.get("over")),
        (429, &json!(4), None),
        "{}",
        answer.body
    );
    world.deploy(POLICIES);
    let answer = post(&mut world, "/v1/consume", "quota", "");
    assert_eq!((answer.status, &answer.body["over"]), (200, &json!(5)), "{}", answer.body);
}

#[test]
fn an_unlimited_key_takes_what_is_there_and_owes_soft_limits_nothing() {
    let mut world = world();
    world.refresh();
    for policy in ["month", "both"] {
        post(&mut world, "/v1/consume", policy, r#","cost":3"#);
        world.set(&format!(r#"{{"policy":"{policy}","key":"k","unlimited":true}}"#));
        assert_eq!(post(&mut world, "/v1/consume", policy, r#","cost":100"#).body["allowed"], true);
        let reserved = post(&mut world, "/v1/consume", policy, r#","cost":10,"mode":"reserve""#);
        let settle = format!(r#","reservation":{},"cost":60"#, reserved.body["reservation"]);
        assert_eq!(post(&mut world, "/v1/settle", policy, &settle).body.get("over"), None);
        world.set(&format!(r#"{{"policy":"{policy}","key":"k","multiple":1}}"#));
        let answer = post(&mut world, "/v1/peek", policy, r#","cost":0"#);
        assert_eq!((&answer.body["remaining"], answer.body.get("over")), (&json!(0), None), "{}", answer.body);
    }
}

#[test]
fn an_override_of_a_kind_that_cannot_be_soft_refuses_nothing_either() {
    let rolling = r#"{"p":{"kind":"rolling_window","rate":5,"period":"1m"}}"#;
    let deployment = Deployment { policies: rolling, has_registry: true, ..Deployment::default() };
    let mut world = World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) });
    world.refresh();
    world.set(r#"{"policy":"p","key":"k","kind":"rolling_window","rate":2,"period":"1m"}"#);
    assert_eq!(post(&mut world, "/v1/consume", "p", r#","cost":3"#).status, 400);
    put(&mut world, r#"{"rate":5,"period":"1m","mode":"soft"}"#);
    let answer = post(&mut world, "/v1/consume", "p", r#","cost":30"#);
    assert_eq!((answer.status, &answer.body["limit"]), (200, &json!(5)), "{}", answer.body);
}

#[test]
fn what_is_over_is_counted_through_changes_of_numbers() {
    let soft = r#"{"rate":"100/1day","mode":"soft"}"#;
    let world_of = |policies| {
        let deployment = Deployment { policies, has_registry: true, ..Deployment::default() };
        let mut world = World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) });
        world.refresh();
        world
    };
    let over = |world: &mut World, what: &str, cost: u64| {
        let answer = post(world, what, "p", &format!(r#","cost":{cost}"#));
        answer.body.get("over").map(|over| over.as_u64().unwrap())
    };
    // To more, soft or not, and back.
    for other in [r#"{"rate":"200/1day"}"#, r#"{"rate":"200/1day","mode":"soft"}"#] {
        let mut world = world_of(r#"{"p":{"rate":"100/1day","mode":"soft"}}"#);
        assert_eq!(over(&mut world, "/v1/consume", 130), Some(30));
        put(&mut world, other);
        assert_eq!(over(&mut world, "/v1/consume", 70), None, "200 of 200");
        put(&mut world, soft);
        assert_eq!(over(&mut world, "/v1/peek", 0), Some(100), "{other}");
    }
    // Twice as much for a minute.
    let mut world = world_of(r#"{"p":{"rate":"100/1day","mode":"soft"}}"#);
    assert_eq!(over(&mut world, "/v1/consume", 130), Some(30));
    let until = world.now + 60_000;
    world.set(&format!(r#"{{"policy":"p","key":"k","multiple":2,"until":{until}}}"#));
    assert_eq!(over(&mut world, "/v1/consume", 170), Some(100), "300 of 200");
    world.now = until;
    assert_eq!(over(&mut world, "/v1/peek", 0), Some(200), "300 of 100");
    // To less.
    let mut world = world_of(r#"{"p":{"rate":"200/1day"}}"#);
    assert_eq!(over(&mut world, "/v1/consume", 150), None);
    put(&mut world, soft);
    assert_eq!(over(&mut world, "/v1/peek", 0), Some(50), "150 of 100");
}

/// What a batch holds may never be taken.
#[test]
fn what_a_batch_holds_is_not_over() {
    let policies = r#"{"hard":{"rate":"5/1m"},"soft":{"rate":"5/1m","mode":"soft"}}"#;
    let deployment = Deployment { policies, ..Deployment::default() };
    let mut world = World::with(Settings { callers: Callers::Trusted, ..settings(&deployment) });
    let body = r#"{"requests":[{"policy":"hard","key":"other"},{"policy":"soft","key":"k","cost":5}]}"#;
    let mut call =
        world.begin(&Asked { url: "/v1/batch", body: body.as_bytes(), ..Asked::default() }).ok().expect("it asks");
    let mut is_held = false;
    while let Some(next) = call.next(world.now()) {
        if matches!(next.request.action, Action::Settle(_)) && !std::mem::replace(&mut is_held, true) {
            let meanwhile = post(&mut world, "/v1/consume", "soft", "");
            assert_eq!(meanwhile.body.get("over"), None, "{}", meanwhile.body);
        }
        let answer = world.object_reply(&call, &next);
        call.answered(next.object, Some(answer), world.now());
    }
    assert!(is_held);
    assert_eq!(post(&mut world, "/v1/peek", "soft", "").body["over"], 1, "now it is taken");
}

#[test]
fn a_batch_passes_whatever_fails_at_the_objects_of_soft_limits_alone() {
    for (second, expected) in [("quota", 200), ("both", 503)] {
        let mut world = world();
        let body = format!(r#"{{"requests":[{{"policy":"both","key":"a"}},{{"policy":"{second}","key":"b"}}]}}"#);
        let asked = Asked { url: "/v1/batch", body: body.as_bytes(), ..Asked::default() };
        let mut call = world.begin(&asked).ok().expect("it asks");
        let mut failing = None;
        while let Some(next) = call.next(world.now()) {
            // The object of the soft limit alone, or any.
            if second == "both" || next.request.costs == [[1]] {
                failing.get_or_insert(next.object);
            }
            if failing == Some(next.object) {
                world.fail(&mut call, next.object, Failure { cause: Cause::Timeout, is_retryable: false });
                continue;
            }
            let answer = world.object_reply(&call, &next);
            call.answered(next.object, Some(answer), world.now());
        }
        let reply = call.reply(world.now());
        assert_eq!(reply.status, expected, "{}", reply.body());
        if expected == 200 {
            let body: Value = serde_json::from_str(&reply.body()).unwrap();
            assert_eq!(body["results"][1], json!({"allowed": true, "policy": "quota", "degraded": "timeout"}));
        }
    }
}

fn put(world: &mut World, text: &'static str) {
    world.now += 20_000;
    let change = PolicyChange {
        name: "p",
        text: Some(text),
        condition: Condition::Present,
        carry: None,
        by: "ops",
        is_dry_run: false,
    };
    world.registry.change(&change, world.now).unwrap();
    world.now += 1;
    world.refresh();
}

/// A copy of the state must not refuse what the service would grant.
#[test]
fn in_a_snapshot_a_soft_limit_allows_everything() {
    let mut world = world();
    let answer = post(&mut world, "/v1/consume", "both", r#","cost":7,"snapshot":true"#);
    let tokens: Vec<_> = answer.body["snapshot"].as_array().unwrap().iter().map(|limit| &limit["tokens"]).collect();
    assert_eq!(tokens, [&json!(9_007_199_254_740_991_u64), &json!(13)], "{}", answer.body);
}

#[test]
fn operators_see_that_a_limit_is_soft_and_are_told_what_is_over() {
    let policies = r#"{"quota":{"rate":"10/1m","mode":"soft","notify":["80%","over"]}}"#;
    let mut world = World::of(&Deployment {
        policies,
        receivers: Receivers { has_webhook: true, ..Receivers::default() },
        ..Deployment::default()
    });
    let mut notices = Vec::new();
    for cost in [1, 8, 2, 5] {
        let body = format!(r#"{{"policy":"quota","key":"k","cost":{cost}}}"#);
        let asked =
            Asked { url: "/v1/consume", authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
        let mut call = world.begin(&asked).ok().unwrap();
        world.carry_out(&mut call);
        call.reply(world.now());
        let given = call.notices();
        notices.extend(given.iter().map(|(_, notice)| serde_json::from_str::<Value>(&notice.body).unwrap()));
    }
    let told = |notice: &Value| [notice["type"].clone(), notice["data"]["over"].clone()];
    let expected = [[json!("key.used"), Value::Null], [json!("key.over"), json!(1)]];
    assert_eq!(notices.iter().map(told).collect::<Vec<_>>(), expected);
    let explained = post(&mut world, "/v1/keys/explain", "quota", r#","cost":3"#);
    let sentence = explained.body["explanation"].as_str().unwrap();
    assert_eq!(
        sentence,
        "Allowed: the soft limit quota allows 10 per minute and refuses nothing; it is exceeded by 6, and 3 were asked for."
    );
}
