//! Changes by a deployment: at once, for all frontends; and a rollback when the newer deployment is gone.

use tollgate::edge::PolicySnapshot;
use tollgate::limit::Carry;
use tollgate::protocol::{Condition, Poll};
use tollgate::registry::{PollError, ROLL_OUT_MS};

use super::world::{World, frontend};

const OLD: &str = r#"{"api":"100/1s","gone":"1/1s"}"#;
const NEW: &str = r#"{"added":"2/1s","api":"1/1s"}"#;

#[test]
fn the_first_deployment_sets_the_first_policies() {
    let mut world = World::new();
    let mut one = frontend(OLD);
    world.refresh(&mut one);
    let expected = [("api", "\"100/1s\""), ("gone", "\"1/1s\"")];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned(), world.now));
    assert_eq!(world.policies(), expected);
    let written = world.rows_written;
    for _ in 0..5 {
        world.now += 5_000;
        world.refresh(&mut one);
        world.refresh(&mut frontend(OLD));
    }
    assert_eq!((world.policies(), world.rows_written), (expected.to_vec(), written), "asking writes nothing");
    world.now += 5_000;
    world.refresh(&mut one);
    assert_eq!(world.rows_written, written + 1, "except that the deployment has polled, every 30 s");
}

#[test]
fn a_roll_out_takes_effect_everywhere_at_once_and_does_not_flip_flop() {
    let mut world = World::new();
    let (mut old, mut new) = (frontend(OLD), frontend(NEW));
    world.refresh(&mut old);
    world.now += 60_000;
    world.refresh(&mut new);
    let (now, rolled_out) = (world.now, world.policies());
    let texts: Vec<_> = rolled_out.iter().map(|(name, text, since)| (&**name, &**text, *since)).collect();
    assert_eq!(texts, [("added", "\"2/1s\"", now), ("api", "\"1/1s\"", now)]);
    for _ in 0..60 {
        world.now += 5_000;
        world.refresh(&mut old);
        world.refresh(&mut new);
        assert_eq!(world.policies(), rolled_out);
        assert!(old.policies().get("gone").is_none() && old.policies().get("added").is_some());
        assert_eq!(old.policies().get("api").unwrap().numbers(), new.policies().get("api").unwrap().numbers());
        world.crash();
    }
}

#[test]
fn tokens_are_carried_over_as_the_new_policy_says_unless_the_change_does() {
    for (text, expected) in [
        (r#"{"rate":"7/1s"}"#, Carry::Additive),
        (r#"{"rate":"7/1s","carry":"as_is"}"#, Carry::AsIs),
        (r#"{"rate":"7/1s","carry":"proportional"}"#, Carry::Proportional),
        (r#"{"rate":"7/1s","shards":2}"#, Carry::AsIs),
    ] {
        let carry = |world: &mut World, mut heard: PolicySnapshot| {
            world.refresh(&mut heard);
            heard.policies().get("api").unwrap().timeline().carry()
        };
        let mut world = World::new();
        world.refresh(&mut frontend(OLD));
        world.now += 60_000;
        assert_eq!(carry(&mut world, frontend(&format!(r#"{{"api":{text}}}"#))), expected, "{text}");

        let mut world = World::new();
        world.refresh(&mut frontend(OLD));
        world.now += 1_000;
        world.change("api", Some(text), Condition::Present, false).unwrap();
        assert_eq!(carry(&mut world, frontend(OLD)), expected, "{text}");
        world.now += 1_000;
        world.change_by("api", Some(r#"{"rate":"8/1s","carry":"additive"}"#), Carry::Reset, false).unwrap();
        assert_eq!(carry(&mut world, frontend(OLD)), Carry::Reset);
    }
}

#[test]
fn a_rollback_takes_effect_when_the_newer_deployment_was_not_heard_of_for_two_minutes() {
    let mut world = World::new();
    let (mut old, mut new) = (frontend(OLD), frontend(NEW));
    world.refresh(&mut old);
    world.now += 60_000;
    world.refresh(&mut new);
    let last_heard = world.now;
    while world.now < last_heard + ROLL_OUT_MS {
        assert_eq!(world.text("api").as_deref(), Some("\"1/1s\""), "{}", world.now);
        world.now += 5_000;
        world.refresh(&mut old);
    }
    assert_eq!(world.text("api").as_deref(), Some("\"100/1s\""));
    assert!(world.text("added").is_none() && world.text("gone").is_some());
    world.now += 5_000;
    world.refresh(&mut new); // the last isolate of the rolled-back deployment
    assert_eq!(world.text("api").as_deref(), Some("\"100/1s\""));
    let by: Vec<_> = world.audit(9).iter().map(|line| line.contains(r#""by":"deployment "#)).collect();
    assert_eq!(by, [true; 8], "three acts for each roll-out, two for the first");
}

#[test]
fn a_third_deployment_applies_at_once_even_with_the_policies_of_the_first() {
    let mut world = World::new();
    for policies in [OLD, NEW] {
        world.refresh(&mut frontend(policies));
    }
    world.now += 1_000;
    world.refresh(&mut frontend(r#"{"api":"100/1s","third":"1/1s"}"#));
    let names: Vec<_> = world.policies().into_iter().map(|(name, text, _)| format!("{name} {text}")).collect();
    assert_eq!(names, ["api \"100/1s\"", "third \"1/1s\""]);
}

/// However many: the registry knows all that have polled within two minutes, and at most 16 others.
#[test]
fn deployments_that_poll_in_turn_do_not_undo_each_other() {
    for count in [16, 17, 40] {
        let mut world = World::new();
        let mut deployments: Vec<_> = (1..=count).map(|rate| frontend(&format!(r#"{{"api":"{rate}/1s"}}"#))).collect();
        for round in 0..4 {
            for one in &mut deployments {
                world.now += 1_000;
                world.refresh(one);
                let latest = (round > 0).then(|| format!("\"{count}/1s\""));
                assert!(latest.is_none() || world.text("api") == latest, "{count}: {:?}", world.audit(9));
            }
            world.crash();
        }
        let known = |world: &World| world.storage.keys().filter(|name| name.starts_with("deployment:")).count();
        assert_eq!(known(&world), count);
        world.now += ROLL_OUT_MS + 30_000; // a crash may have made it later by these 30 s
        world.refresh(&mut frontend(NEW));
        assert_eq!(known(&world), 16);
    }
}

#[test]
fn an_operators_change_stays_until_a_deployment_brings_another_text() {
    let mut world = World::new();
    let mut old = frontend(OLD);
    world.refresh(&mut old);
    let present = || Condition::Present;
    world.change("api", Some("\"7/1s\""), present(), false).unwrap();
    world.change("gone", None, present(), false).unwrap();
    world.change("mine", Some("\"8/1s\""), Condition::Absent, false).unwrap();
    let changed = world.policies();
    for others in [OLD, r#"{"api":"100/1s","gone":"1/1s","more":"5/1s"}"#] {
        world.now += 300_000;
        world.refresh(&mut old);
        world.refresh(&mut frontend(others));
        let mine: Vec<_> = world.policies().into_iter().filter(|(name, ..)| name != "more").collect();
        assert_eq!(mine, changed, "{others}");
        world.crash();
    }
    world.refresh(&mut frontend(NEW));
    let texts: Vec<_> = world.policies().into_iter().map(|(name, text, _)| format!("{name} {text}")).collect();
    assert_eq!(texts, ["added \"2/1s\"", "api \"1/1s\"", "mine \"8/1s\""]);
}

#[test]
fn a_deployment_equal_to_an_operators_change_changes_only_the_source() {
    let mut world = World::new();
    world.refresh(&mut frontend(r#"{"api":"1/1s"}"#));
    world.now += 1_000;
    world.change("api", Some("\"2/1s\""), Condition::Present, false).unwrap();
    let (before, acts) = (world.policies(), world.audit(9).len());
    world.now += 1_000;
    world.refresh(&mut frontend(r#"{"api":"2/1s"}"#));
    assert_eq!((world.policies(), world.audit(9).len()), (before, acts));
    assert_eq!(world.registry.policy("api").unwrap().source.word(), "deployment");
}

#[test]
fn a_registry_whose_rows_were_lost_starts_again_from_the_deployment() {
    let mut world = World::new();
    let (mut one, mut other) = (frontend(OLD), frontend(OLD));
    world.refresh(&mut one);
    world.change("mine", Some("\"8/1s\""), Condition::Absent, false).unwrap();
    world.change("api", Some("\"7/1s\""), Condition::Present, false).unwrap();
    for frontend in [&mut one, &mut other] {
        world.refresh(frontend);
        assert!(frontend.policies().get("mine").is_some());
    }
    let before = world.registry.as_of();
    world.lose_storage();
    world.now -= 3_000; // and its clock is behind
    for frontend in [&mut one, &mut other] {
        world.now += 6_000;
        world.refresh(frontend);
        assert!(frontend.policies().get("mine").is_none());
        assert_eq!(frontend.policies().iter().count(), 2);
    }
    assert!(world.policies().iter().all(|(.., version)| *version > before), "versions only grow");
}

#[test]
fn an_unreadable_policy_row_counts_as_lost() {
    let mut world = World::new();
    let mut one = frontend(OLD);
    world.refresh(&mut one);
    world.storage.insert("policy:api".to_owned(), "{".to_owned());
    world.crash();
    assert_eq!((world.text("api"), world.text("gone").as_deref()), (None, Some("\"1/1s\"")));
    world.now += 5_000;
    world.refresh(&mut one);
    assert_eq!(world.text("api").as_deref(), Some("\"100/1s\""));
    assert_eq!(one.policies().iter().count(), 2);
}

#[test]
fn a_frontend_with_other_policies_than_it_says_gets_no_answer_and_changes_nothing() {
    let mut world = World::new();
    world.refresh(&mut frontend(OLD));
    world.now += 1_000;
    let before = format!("{:?}", world.registry);
    for (policies, expected) in [(NEW, Some(PollError::Mismatch)), ("{}", None), ("7", None)] {
        let poll = Poll {
            as_of: i64::MAX,
            born_at: 0,
            deployment: "00".into(),
            policies: Some(policies),
            overrides_at: None,
            is_loading: false,
        };
        let error = world.registry.poll(&poll, world.now).unwrap_err();
        assert!(expected.is_none_or(|expected| expected == error), "{error}");
        assert_eq!(format!("{:?}", world.registry), before);
    }
}

#[test]
fn a_clock_that_steps_back_does_not_delay_a_rollback() {
    let mut world = World::new();
    let (mut old, mut new) = (frontend(OLD), frontend(NEW));
    world.refresh(&mut old);
    world.now += 3_600_000;
    world.refresh(&mut new);
    let version = world.registry.as_of();
    world.now -= 3_600_000;
    for _ in 0..32 {
        world.now += 5_000;
        world.refresh(&mut frontend(OLD));
    }
    assert_eq!(world.text("api").as_deref(), Some("\"100/1s\""));
    assert!(world.registry.as_of() > version);
}
