//! Operators' requests: recorded acts, and queries of the registry and of objects.

use tollgate::frontend::{Asked, LastStep, Step};

use super::world::{Deployment, OPERATOR, OPERATOR_OF_API, World, failure};
use tollgate::policy::{Cause, Policy};
use tollgate::protocol::KeyAct;

/// Begins the note about an act that is not recorded.
const ONLY_IN_THE_LOG: &str = "an act on a key is recorded only in this log: ";

fn asked<'a>(url: &'a str, body: &'a str) -> Asked<'a> {
    Asked { url, method: "POST", authorization: Some(OPERATOR), body: body.as_bytes(), ..Asked::default() }
}

#[test]
fn an_act_is_recorded_after_it_is_done_and_the_answer_says_whether() {
    let mut world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
    world.post("/v1/consume", r#"{"policy":"api","key":"k","cost":7}"#);
    for is_recorded in [true, false] {
        let body = r#"{"policy":"api","key":"k","cost":2}"#;
        let mut call = world.begin(&asked("/v1/keys/credit", body)).ok().unwrap();
        assert!(call.must_finish());
        world.carry_out(&mut call);
        let LastStep::Record(recording) = call.last(world.now()) else { panic!("nothing to record") };
        let act = recording.act.clone();
        assert_eq!((&*act.act, &*act.by, &*act.policy, act.is_replayed), ("key.credited", "operator", "api", false));
        let object = tollgate::access::Names::without_secret().object_name(b"k");
        assert_eq!(act.key, tollgate::access::key_hash_in(&object));
        let answer = super::world::answer(recording.reply(is_recorded));
        assert_eq!((answer.status, &answer.body["recorded"]), (200, &is_recorded.into()), "{}", answer.body);
        let logged = (!is_recorded).then(|| format!("{ONLY_IN_THE_LOG}{}", act.to_text()));
        assert_eq!(answer.reply.note, logged);
    }
    let mut call = world.begin(&asked("/v1/keys/reset", r#"{"policy":"api","key":"k"}"#)).ok().unwrap();
    assert!(call.must_finish());
    world.carry_out(&mut call);
    let LastStep::Record(recording) = call.last(world.now()) else { panic!("nothing to record") };
    assert_eq!(recording.act.act, "key.reset");
    // A failed act is not recorded, and the answer does not mention it.
    world.failure = Some(failure(Cause::Failed));
    let mut call = world.begin(&asked("/v1/keys/reset", r#"{"policy":"api","key":"k"}"#)).ok().unwrap();
    world.carry_out(&mut call);
    let LastStep::Reply(reply) = call.last(world.now()) else { panic!("it failed") };
    let answer = super::world::answer(reply.clone());
    assert_eq!((answer.status, answer.body.get("recorded")), (503, None));
    // Explaining is no act.
    world.failure = None;
    let mut call = world.begin(&asked("/v1/keys/explain", r#"{"policy":"api","key":"k"}"#)).ok().unwrap();
    world.carry_out(&mut call);
    assert!(!call.must_finish());
    assert!(matches!(call.last(world.now()), LastStep::Reply(_)));
}

/// The log has the act, and there is nothing to wait for.
#[test]
fn without_a_registry_an_act_is_only_logged() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    let mut call = world.begin(&asked("/v1/keys/reset", r#"{"policy":"api","key":"k"}"#)).ok().unwrap();
    world.carry_out(&mut call);
    let LastStep::Reply(reply) = call.last(world.now()) else { panic!("there is no registry") };
    let answer = super::world::answer(reply.clone());
    assert_eq!((answer.status, &answer.body["recorded"]), (200, &false.into()), "{}", answer.body);
    let note = answer.reply.note.unwrap();
    let act = KeyAct::from_text(note.strip_prefix(ONLY_IN_THE_LOG).unwrap()).unwrap();
    assert_eq!((&*act.act, &*act.by, &*act.policy), ("key.reset", "operator", "api"));
}

/// A request that writes is a 404 before its body is parsed.
#[test]
fn without_a_registry_nothing_is_written_there() {
    let world = World::new(r#"{"api":"10/1m"}"#);
    for (method, url) in [("POST", "/v1/keys/block"), ("PUT", "/v1/policies/api"), ("PUT", "/v1/overrides")] {
        let put = Asked { method, ..asked(url, "nonsense") };
        let Step::Reply(reply) = world.service.ask(&put, world.now(), &mut || None) else { panic!("not refused") };
        assert_eq!(reply.status, 404, "{url}");
    }
}

/// Objects get the policies in force for the key. A hash does not reveal its key's prefixes: a policy with overrides by prefix
/// is left out, and shown as of its last request.
#[test]
fn a_key_is_inspected_under_what_is_in_force_for_it() {
    let policies = r#"{"api":"10/1m","other":"10/1m"}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    world.refresh();
    world.set(r#"{"policy":"api","prefix":"acme:","rate":"50/1m"},{"policy":"other","key":"acme:a","rate":"7/1m"}"#);
    let hash = tollgate::access::Names::without_secret().object_name(b"acme:a");
    let by_hash = format!(r#"{{"key":{{"hash":"{hash}"}}}}"#);
    for (body, expected) in [
        (r#"{"key":"acme:a"}"#, &[("api", 50), ("other", 7)][..]),
        (r#"{"key":"b"}"#, &[("api", 10), ("other", 10)]),
        (&by_hash, &[("other", 7)]),
    ] {
        let inspect = asked("/v1/keys/inspect", body);
        let Step::InspectKey(questions) = world.service.ask(&inspect, world.now(), &mut || None) else {
            panic!("no questions")
        };
        let [(_, question)] = &questions[..] else { panic!("{}", questions.len()) };
        let capacity = |policy: &Policy| policy.limits()[0].limit().config().capacity;
        let found: Vec<_> = question.policies.iter().map(|policy| (policy.name(), capacity(policy))).collect();
        assert_eq!(found, expected, "{body}");
        assert!(question.as_of >= world.now - 1_000, "{}", question.as_of);
    }
    // An ended override is over for the query, too.
    let until = world.now + 100_000;
    world.set(&format!(r#"{{"policy":"other","key":"short","rate":"7/1m","until":{until}}}"#));
    for (now, capacity) in [(world.now, 7), (until, 10)] {
        world.now = now;
        let inspect = asked("/v1/keys/inspect", r#"{"key":"short"}"#);
        let Step::InspectKey(questions) = world.service.ask(&inspect, world.now(), &mut || None) else {
            panic!("no questions")
        };
        assert_eq!(questions[0].1.policies[1].limits()[0].limit().config().capacity, capacity);
    }
    // Even without access to any existing policy, the key's own object is called.
    let world = World::new(r#"{"other":"10/1m"}"#);
    let inspect = Asked { authorization: Some(OPERATOR_OF_API), ..asked("/v1/keys/inspect", r#"{"key":"k"}"#) };
    let Step::InspectKey(questions) = world.service.ask(&inspect, world.now(), &mut || None) else {
        panic!("no questions")
    };
    assert_eq!(questions.len(), 1);
    assert!(questions[0].1.policies.is_empty());
}

#[test]
fn all_objects_of_a_key_are_asked_and_a_restricted_operator_sees_only_its_policies() {
    let policies = r#"{"api":"10/1m","wide":{"rate":"80/1m","shards":8}}"#;
    let world = World::new(policies);
    for (authorization, objects, names) in [(OPERATOR, 8, &["api", "wide"][..]), (OPERATOR_OF_API, 1, &["api"])] {
        let asked = Asked { authorization: Some(authorization), ..asked("/v1/keys/inspect", r#"{"key":"k"}"#) };
        let Step::InspectKey(questions) = world.service.ask(&asked, world.now(), &mut || None) else {
            panic!("no questions")
        };
        assert_eq!(questions.len(), objects);
        let (own, first) = &questions[0];
        let only = authorization == OPERATOR_OF_API;
        let shards: Vec<_> = questions.iter().map(|(object, _)| object.clone()).collect();
        let expected: Vec<_> = (0..8).map(|shard| tollgate::access::shard_name(own, shard)).collect();
        assert_eq!(shards, expected[..objects]);
        for (_, question) in &questions {
            assert_eq!((&*question.object, question.as_of), (tollgate::access::key_hash_in(own), 0));
            assert_eq!(question.only.is_some(), only);
        }
        assert_eq!(*own, tollgate::access::Names::without_secret().object_name(b"k"));
        assert_eq!(first.policies.iter().map(|policy| policy.name()).collect::<Vec<_>>(), names);
    }
}

/// An act on a budget in shards is one act on the whole, under the hash of its key.
#[test]
fn an_act_on_all_shards_is_recorded_once() {
    let policies = r#"{"wide":{"rate":"80/1m","shards":8}}"#;
    let mut world = World::of(&Deployment { policies, has_registry: true, ..Deployment::default() });
    (0..8).for_each(|_| _ = world.post("/v1/consume", r#"{"policy":"wide","key":"k","cost":10}"#)); // all there is
    let key = tollgate::access::Names::without_secret().object_name(b"k");
    for (url, body, act, level) in [
        ("/v1/keys/credit", r#"{"policy":"wide","key":"k","cost":21}"#, "key.credited", 21),
        ("/v1/keys/reset", r#"{"policy":"wide","key":"k"}"#, "key.reset", 80),
    ] {
        let mut call = world.begin(&asked(url, body)).ok().unwrap();
        assert!(call.must_finish());
        world.carry_out(&mut call);
        let LastStep::Record(recording) = call.last(world.now()) else { panic!("nothing to record") };
        let after = format!(r#"[{{"limit":"wide","level":{level}}}]"#);
        let KeyAct { act: found, by, key: of, after: level, .. } = recording.act;
        assert_eq!((&*found, &*by, &*of, level), (act, "operator", &*key, Some(after)));
    }
}
