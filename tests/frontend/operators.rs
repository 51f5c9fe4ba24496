//! What operators do: acts that are recorded, and questions to the registry and to objects.

use tollgate::frontend::{After, Asked, Recording, Step};

use super::world::{Deployment, OPERATOR, OPERATOR_OF_API, World, failure};
use tollgate::policy::Cause;

fn asked<'a>(url: &'a str, body: &'a str) -> Asked<'a> {
    Asked { url, method: "POST", authorization: Some(OPERATOR), body: body.as_bytes(), ..Asked::default() }
}

#[test]
fn an_act_is_recorded_once_it_is_done_and_the_answer_says_whether() {
    let mut world = World::new(r#"{"api":"10/1m"}"#);
    world.post("/v1/consume", r#"{"policy":"api","key":"k","cost":7}"#);
    for is_recorded in [true, false] {
        let body = r#"{"policy":"api","key":"k","cost":2}"#;
        let mut call = world.begin(&asked("/v1/keys/credit", body)).ok().unwrap();
        assert!(call.must_finish());
        world.carry_out(&mut call);
        let Some(After::Record(recording)) = call.after(world.now()) else { panic!("nothing to record") };
        let Recording { act, recorded, unrecorded } = *recording;
        assert_eq!((&*act.act, &*act.by, &*act.policy, act.is_replayed), ("key.credited", "operator", "api", false));
        let object = tollgate::access::Names::without_secret().object_name(b"k");
        assert_eq!(act.key, tollgate::access::key_hash_in(&object));
        let answer = super::world::answer(if is_recorded { recorded } else { unrecorded });
        assert_eq!((answer.status, &answer.body["recorded"]), (200, &is_recorded.into()), "{}", answer.body);
    }
    // What was not done is not recorded, and says nothing of it.
    world.failure = Some(failure(Cause::Failed));
    let mut call = world.begin(&asked("/v1/keys/reset", r#"{"policy":"api","key":"k"}"#)).ok().unwrap();
    world.carry_out(&mut call);
    assert!(call.after(world.now()).is_none());
    let answer = super::world::answer(call.reply(world.now()).clone());
    assert_eq!((answer.status, answer.body.get("recorded")), (503, None));
    // Explaining is no act.
    world.failure = None;
    let mut call = world.begin(&asked("/v1/keys/explain", r#"{"policy":"api","key":"k"}"#)).ok().unwrap();
    world.carry_out(&mut call);
    assert!(!call.must_finish());
    assert!(call.after(world.now()).is_none());
}

#[test]
fn a_block_is_an_override_in_the_name_of_who_asks() {
    let world = World::of(&Deployment { has_registry: true, ..Deployment::default() });
    let body = r#"{"policy":"api","key":"k","for_ms":60000}"#;
    let of_api = Asked { authorization: Some(OPERATOR_OF_API), ..asked("/v1/keys/block", body) };
    let Step::Administer { question, is_news: true } = world.service.ask(&of_api, world.now(), &mut || None) else {
        panic!("not a question")
    };
    assert_eq!((&*question.method, &*question.path, &*question.by), ("PUT", "/v1/overrides", "operator-of-api"));
    assert_eq!(question.only.as_deref(), Some(&["api".to_owned()][..]));
    assert!(question.body.contains(&format!("{}", world.now + 60_000)), "{}", question.body);
    let other = Asked { body: br#"{"policy":"other","key":"k","for_ms":60000}"#, ..of_api };
    let Step::Reply(reply) = world.service.ask(&other, world.now(), &mut || None) else { panic!("not refused") };
    assert_eq!(reply.status, 403);
    // Without a registry there is nowhere to write it.
    let world = World::new(r#"{"api":"10/1m"}"#);
    let Step::Reply(reply) = world.service.ask(&of_api, world.now(), &mut || None) else { panic!("not refused") };
    assert_eq!(reply.status, 404);
}

#[test]
fn all_objects_of_a_key_are_asked_and_a_restricted_operator_sees_its_policies() {
    let policies = r#"{"api":"10/1m","wide":{"rate":"80/1m","shards":8}}"#;
    let world = World::new(policies);
    for (authorization, objects, names) in [(OPERATOR, 8, &["api", "wide"][..]), (OPERATOR_OF_API, 1, &["api"])] {
        let asked = Asked { authorization: Some(authorization), ..asked("/v1/keys/inspect", r#"{"key":"k"}"#) };
        let Step::InspectKey(questions) = world.service.ask(&asked, world.now(), &mut || None) else {
            panic!("no questions")
        };
        assert_eq!(questions.len(), objects);
        let (own, first) = &questions[0];
        assert_eq!(*own, tollgate::access::Names::without_secret().object_name(b"k"));
        assert_eq!(first.policies.iter().map(|policy| policy.name()).collect::<Vec<_>>(), names);
    }
}
