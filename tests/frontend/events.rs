//! Each budget of a request ends once, and the counters, those who look on and the log of points are told the same.

use std::cell::RefCell;

use serde_json::Value;
use tollgate::frontend::Asked;
use tollgate::metrics::Word;
use tollgate::policy::Cause;

use super::world::{CONSUMER, World, failure};

const POLICIES: &str = r#"{
    "api": "3/1m",
    "open": {"rate": "3/1m", "on_error": "open"},
    "daily": "5/1day",
    "tried": {"limits": [{"name": "a", "rate": "9/1m"}, {"name": "b", "rate": "1/1m", "mode": "shadow"}]}
}"#;

/// The policy, the outcome, where it was decided, and the cost.
type End = (String, String, String, u64);

/// What became of each budget of one request: as points have it, and as those see it who look on.
fn ends(world: &mut World, body: &str) -> (Vec<End>, Vec<Value>) {
    let path = if body.contains("requests") { "/v1/batch" } else { "/v1/consume" };
    let asked = Asked { url: path, authorization: Some(CONSUMER), body: body.as_bytes(), ..Asked::default() };
    let points = RefCell::new(Vec::new());
    let now = world.now();
    if let Ok(mut call) = world.begin(&asked) {
        world.carry_out(&mut call);
        call.reply(now);
        call.events(now, &mut |event| {
            let decision = &event.decision;
            let (policy, outcome) = (decision.policy.to_owned(), decision.outcome.word().to_owned());
            points.borrow_mut().push((policy, outcome, decision.source.word().to_owned(), decision.cost));
        });
    }
    let batch = world.isolate.tap(|tap| {
        tap.due(now.at);
        let batch = tap.take(now.at);
        tap.answered(Some(LISTENERS), now.at);
        batch
    });
    let batch: Value = batch.map(|batch| serde_json::from_str(&batch).unwrap()).unwrap_or_default();
    let seen = batch["decisions"].as_array().cloned().unwrap_or_default();
    (points.into_inner(), seen)
}

/// One operator who looks on, as the registry says it.
const LISTENERS: &str = r#"{"for_ms":60000,"pause_ms":1,"listeners":[{"id":7}]}"#;

#[test]
fn all_are_told_the_same() {
    let mut world = World::new(POLICIES);
    world.isolate.tap(|tap| tap.hear(Some(LISTENERS), world.now));
    assert!(world.isolate.tap(|tap| tap.has_listeners()), "the listeners cannot be read");
    let plain = |policy: &str, cost: u64| format!(r#"{{"policy":"{policy}","key":"k","cost":{cost}}}"#);
    let batch = r#"{"requests":[{"policy":"api","key":"other"},{"policy":"daily","key":"other","cost":2}]}"#;
    let refused = r#"{"requests":[{"policy":"api","key":"k","cost":2},{"policy":"daily","key":"fresh"}]}"#;
    for (body, cause, expected) in [
        (plain("api", 2), None, &[("api", "allowed", "object", 2)][..]),
        (plain("api", 2), None, &[("api", "refused", "object", 2)]),
        (plain("api", 2), None, &[("api", "refused", "cache", 2)]),
        (plain("api", 4), None, &[("api", "never", "frontend", 4)]), // an error, of which there is no call
        (batch.to_owned(), None, &[("api", "allowed", "object", 1), ("daily", "allowed", "object", 2)]),
        (refused.to_owned(), None, &[("daily", "dropped", "object", 1), ("api", "refused", "object", 2)]),
        (plain("open", 1), Some(Cause::Timeout), &[("open", "degraded", "frontend", 1)]),
        (plain("api", 1), Some(Cause::Failed), &[("api", "unavailable", "frontend", 1)]),
        (plain("tried", 2), None, &[("tried", "allowed", "object", 2)]),
    ] {
        world.failure = cause.map(failure);
        let (points, seen) = ends(&mut world, &body);
        let shown = seen.iter().map(|one| {
            let text = |name: &str| one[name].as_str().unwrap().to_owned();
            (text("policy"), text("outcome"), text("source"), one["cost"].as_u64().unwrap())
        });
        let shown: Vec<_> = shown.collect();
        let of = |ends: &[End]| {
            let mut ends = ends.to_vec();
            ends.sort();
            ends
        };
        let expected: Vec<_> =
            expected.iter().map(|(a, b, c, d)| ((*a).into(), (*b).into(), (*c).into(), *d)).collect();
        assert_eq!(of(&shown), of(&expected), "{body}");
        if !points.is_empty() {
            assert_eq!(shown, points, "{body}");
        }
        let shadow = seen.iter().filter(|one| one["refused_in_shadow"] == true).count();
        assert_eq!(shadow, usize::from(body.contains("tried")), "{body}");
        let counted = world.counted();
        let decisions = counted["policies"].as_object().unwrap().values().map(|policy| &policy["decisions"]);
        let counts = decisions.flat_map(|decisions| decisions.as_object().unwrap().values());
        let count: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(count, shown.len() as u64, "{body}: {counted}");
        for (policy, outcome, source, _) in &shown {
            let of_policy = &counted["policies"][policy];
            assert!(of_policy["decisions"][outcome].as_u64() >= Some(1), "{counted}");
            assert_eq!(
                of_policy.get("cached_refusals").is_some_and(|count| *count == 1),
                source == "cache",
                "{counted}"
            );
        }
    }
}

#[test]
fn a_reply_is_made_once_however_often_it_is_asked_for() {
    let mut world = World::new(POLICIES);
    let body = br#"{"policy":"api","key":"k"}"#;
    let mut call = world
        .begin(&Asked { url: "/v1/consume", authorization: Some(CONSUMER), body, ..Asked::default() })
        .ok()
        .unwrap();
    world.carry_out(&mut call);
    let now = world.now();
    let first = call.reply(now).clone();
    assert!(call.after(now).is_none());
    assert_eq!(call.reply(now), &first);
    assert_eq!(world.counted()["policies"]["api"]["decisions"]["allowed"], 1);
}
