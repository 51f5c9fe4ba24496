//! Operators' changes: under a condition, within bounds, and every act in the audit log.

use tollgate::limit::Carry;
use tollgate::protocol::{ChangeError, Condition, KeyAct, PolicyChange};
use tollgate::registry::{AUDIT, JOINED_MS, MAX_KEY_ACTS, MAX_POLICIES, MAX_POLICY_ACTS, MAX_POLICY_LEN};

use super::world::{World, frontend};

const OWN: &str = r#"{"api":"100/1s","firm":{"rate":"5/1s","fixed":true}}"#;

fn world() -> World {
    let mut world = World::new();
    world.refresh(&mut frontend(OWN));
    world.now += 1_000;
    world
}

#[test]
fn a_change_is_made_only_if_its_condition_holds() {
    let mut world = world();
    let version = world.registry.policy("api").unwrap().version;
    let holds = |name: &str, condition: Condition| {
        let mut world = self::world();
        let before = (world.policies(), world.storage.clone());
        let changed = world.change(name, Some("\"1/1s\""), condition, false);
        if changed.is_err() {
            assert_eq!((world.policies(), world.storage), before);
        }
        changed.map(|changed| changed.is_new)
    };
    assert_eq!(holds("api", Condition::Version(vec![version])), Ok(false));
    assert_eq!(holds("api", Condition::Version(vec![1, version])), Ok(false));
    assert_eq!(holds("api", Condition::Present), Ok(false));
    assert_eq!(holds("new", Condition::Absent), Ok(true));
    let stale = Err(ChangeError::Version(Some(version)));
    assert_eq!(holds("api", Condition::Version(vec![version - 1, version + 1])), stale);
    assert_eq!(holds("api", Condition::Absent), stale);
    for condition in [Condition::Present, Condition::Version(vec![version])] {
        assert_eq!(holds("new", condition), Err(ChangeError::Version(None)));
    }
    assert_eq!(world.change("new", None, Condition::Present, false).unwrap_err(), ChangeError::Unknown);
    world.change("api", None, Condition::Present, false).unwrap();
    assert_eq!(world.change("api", None, Condition::Present, false).unwrap_err(), ChangeError::Unknown);
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let mut world = world();
    let before = (world.policies(), world.storage.clone());
    for text in [Some("\"1/1s\""), None] {
        let dry = world.change("api", text, Condition::Present, true).unwrap();
        assert_eq!((world.policies(), world.storage.clone()), before);
        let mut other = self::world();
        let done = other.change("api", text, Condition::Present, false).unwrap();
        assert_eq!(dry.changes, done.changes);
        let version = |standing: Option<tollgate::protocol::Standing>| standing.map(|standing| standing.version);
        assert_eq!(version(dry.standing), version(done.standing));
    }
}

#[test]
fn the_same_text_changes_nothing_whatever_its_whitespace() {
    let mut world = world();
    world.change("api", Some(r#"{"rate": 7, "period": "1s"}"#), Condition::Present, false).unwrap();
    let before = (world.policies(), world.storage.clone());
    world.now += 1_000;
    let same = world.change("api", Some("{\"rate\":7,\n \"period\":\"1s\"}"), Condition::Present, false).unwrap();
    assert_eq!(same.changes, ["nothing: the policy is the same"]);
    assert_eq!((world.policies(), world.storage.clone()), before);
    assert_eq!(world.text("api").as_deref(), Some(r#"{"rate":7,"period":"1s"}"#));
}

/// With `carry=reset`, the same text is a new version, at which each bucket is reset.
#[test]
fn the_same_text_with_a_reset_resets_every_bucket_once_per_request() {
    let mut world = world();
    let mut heard = frontend(OWN);
    world.refresh(&mut heard);
    let (before, version) = (world.audit(9).len(), world.registry.policy("api").unwrap().version);
    let text = world.text("api").unwrap();
    for (times, is_dry_run, count) in [(1, true, 0), (1, false, 1), (2, false, 2)] {
        world.now += 1_000;
        let storage = world.storage.clone();
        let changed = world.change_by("api", Some(&text), Carry::Reset, is_dry_run).unwrap();
        assert!(changed.changes.contains(&"api: every key starts with 100 tokens".to_owned()), "{changed:?}");
        assert_eq!(world.audit(9).len() - before, count, "{times}");
        assert_eq!(world.storage == storage, is_dry_run);
        let timeline = |world: &World| world.registry.policy("api").unwrap().policy.timeline().clone();
        assert_eq!(timeline(&world).earlier().len(), count);
        if !is_dry_run {
            assert_eq!((timeline(&world).since(), timeline(&world).carry()), (world.now, Carry::Reset));
            assert!(world.registry.policy("api").unwrap().version > version);
        }
        world.crash();
    }
    // Repeated polls see one version.
    world.refresh(&mut heard);
    let id = |heard: &tollgate::edge::PolicySnapshot| heard.policies().get("api").unwrap().id();
    let once = id(&heard);
    world.refresh(&mut heard);
    assert_eq!(id(&heard), once);
    let fixed = world.text("firm").unwrap();
    assert_eq!(world.change_by("firm", Some(&fixed), Carry::Reset, false).unwrap_err(), ChangeError::Fixed);
}

#[test]
fn only_a_deployment_fixes_a_policy_or_changes_a_fixed_one() {
    let mut world = world();
    for text in [Some("\"1/1s\""), None] {
        assert_eq!(world.change("firm", text, Condition::Present, false).unwrap_err(), ChangeError::Fixed);
    }
    let fixed = Some(r#"{"rate":"5/1s","fixed":true}"#);
    for (name, condition) in [("api", Condition::Present), ("new", Condition::Absent)] {
        assert_eq!(world.change(name, fixed, condition, false).unwrap_err(), ChangeError::SetsFixed);
    }
    assert!(world.change("firm", fixed, Condition::Present, false).is_ok(), "the same");
    let open = Some(r#"{"rate":"5/1s","fixed":false}"#);
    assert!(world.change("api", open, Condition::Present, false).is_ok());
    world.refresh(&mut frontend(r#"{"api":"100/1s","firm":"5/1s"}"#));
    assert!(world.change("firm", None, Condition::Present, false).is_ok());
}

#[test]
fn a_policy_with_errors_is_refused_with_all_of_them() {
    let mut world = world();
    let error = world.change("new", Some(r#"{"rate":-1,"burst":5}"#), Condition::Absent, false).unwrap_err();
    let ChangeError::Invalid(errors) = error else { panic!("{error:?}") };
    let errors: Vec<_> = errors.iter().map(|error| error.to_string().split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(errors, ["POLICIES.new.burst:", "POLICIES.new.rate:", "POLICIES.new.period:"]);
    let long = |len: usize| format!(r#"{{"rate":"1/1s"{}}}"#, " ".repeat(len - 15));
    let change = |world: &mut World, text: &str| world.change("new", Some(text), Condition::Absent, true).err();
    assert_eq!(change(&mut world, &long(MAX_POLICY_LEN)), None);
    let too_long = ChangeError::TooLong { max: MAX_POLICY_LEN };
    assert_eq!(change(&mut world, &long(MAX_POLICY_LEN + 1)), Some(too_long));
}

#[test]
fn the_numbers_of_policies_and_of_deleted_ones_are_bounded() {
    let mut world = world();
    let name = |index: usize| format!("p{index:04}");
    let put = |world: &mut World, index: usize| {
        world.now += 1;
        world.change(&name(index), Some("\"1/1s\""), Condition::Absent, false).map(|_| ())
    };
    for index in 2..MAX_POLICIES {
        put(&mut world, index).unwrap();
    }
    let mut late = frontend(OWN);
    world.refresh(&mut late);
    assert_eq!(put(&mut world, 0), Err(ChangeError::TooMany { max: MAX_POLICIES }));
    for index in 2..MAX_POLICIES {
        world.now += 1;
        world.change(&name(index), None, Condition::Present, false).unwrap();
    }
    for index in MAX_POLICIES..MAX_POLICIES + 10 {
        put(&mut world, index).unwrap();
        world.change(&name(index), None, Condition::Present, false).unwrap();
    }
    let kept = world.storage.keys().filter(|row| row.starts_with("policy:")).count();
    assert_eq!(kept, 2 + MAX_POLICIES, "those deleted first are forgotten");
    world.crash();
    world.refresh(&mut late);
    assert_eq!(late.policies().iter().count(), 2, "and a frontend that had them all has none of them any more");
}

/// Forgotten, the deployment would create it again.
#[test]
fn a_deleted_policy_of_a_deployment_stays_deleted_however_many_others_are_deleted_after_it() {
    let mut world = world();
    world.change("api", None, Condition::Present, false).unwrap();
    for index in 0..=MAX_POLICIES {
        world.now += 1;
        let name = format!("p{index:04}");
        world.change(&name, Some("\"1/1s\""), Condition::Absent, false).unwrap();
        world.change(&name, None, Condition::Present, false).unwrap();
    }
    for _ in 0..3 {
        world.now += 300_000;
        world.refresh(&mut frontend(OWN));
        assert_eq!(world.text("api"), None);
    }
}

/// Keys may have buckets of a policy that the registry does not know any more.
#[test]
fn a_new_policy_is_carried_over_as_the_change_says() {
    let mut world = world();
    for (name, carry) in [("reset", Carry::Reset), ("as-is", Carry::AsIs)] {
        let change = PolicyChange {
            name,
            text: Some("\"1/1s\""),
            condition: Condition::Absent,
            carry: Some(carry),
            by: "ops",
            is_dry_run: false,
        };
        let (changed, writes) = world.registry.change(&change, world.now).unwrap();
        world.write(writes);
        assert_eq!(world.registry.policy(name).unwrap().policy.timeline().carry(), carry);
        let all = format!("every key of {name} starts with a new bucket");
        assert_eq!(changed.changes.contains(&all), carry == Carry::Reset, "{:?}", changed.changes);
    }
}

#[test]
fn the_audit_log_says_who_did_what_and_forgets_the_oldest() {
    let mut world = world();
    let now = world.now;
    world.change("api", Some("\"1/1s\""), Condition::Present, false).unwrap();
    world.change("new", Some("\"2/1s\""), Condition::Absent, false).unwrap();
    world.change("new", None, Condition::Present, false).unwrap();
    let line = |rest: &str| rest.replace("AT", &now.to_string());
    assert_eq!(
        world.audit(3),
        [
            line(
                r#"{"number":4,"at":AT,"by":"ops","act":"policy.deleted","policy":"new","before":"2/1s","after":null}"#
            ),
            line(
                r#"{"number":3,"at":AT,"by":"ops","act":"policy.created","policy":"new","before":null,"after":"2/1s"}"#
            ),
            line(
                r#"{"number":2,"at":AT,"by":"ops","act":"policy.replaced","policy":"api","carry":"additive","before":"100/1s","after":"1/1s"}"#
            ),
        ]
    );
    for index in 0..MAX_POLICY_ACTS {
        world.now += 1;
        let text = format!("\"{}/1s\"", index + 2);
        world.change("api", Some(&text), Condition::Present, false).unwrap();
        if index % 100 == 0 {
            world.crash();
        }
    }
    let most = MAX_POLICY_ACTS;
    assert_eq!(world.storage.keys().filter(|row| row.starts_with("audit:")).count(), most);
    assert_eq!(world.audit(usize::MAX).len(), most);
    // The deployment had two at first, and keeps them: the actor with the most lines makes room.
    let names = world.registry.audit_rows(Some(9), 4, false);
    assert_eq!(names, [8, 7, 1, 0].map(|number| format!("audit:{number:016}")));
    assert_eq!(world.registry.audit_rows(Some(1), 2, false), ["audit:0000000000000000"]);
    assert_eq!(world.registry.audit_rows(Some(0), 2, false), [""; 0]);
}

#[test]
fn acts_on_keys_are_in_the_audit_log_too_and_change_no_policy() {
    let mut world = world();
    let (as_of, now) = (world.registry.as_of(), world.now);
    let act = |level: i64, is_replayed| KeyAct {
        act: "key.reset".to_owned(),
        by: "ops".to_owned(),
        key: "0123456789abcdef".to_owned(),
        policy: "api".to_owned(),
        before: Some(format!(r#"[{{"limit":"api","level":{level}}}]"#)),
        after: None,
        is_replayed,
    };
    let writes = world.registry.record_key_act(&act(-3, false), now);
    world.write(writes);
    world.crash();
    let line = r#"{"number":2,"at":AT,"by":"ops","act":"key.reset","policy":"api","key":"0123456789abcdef","before":[{"limit":"api","level":-3}],"after":null}"#;
    assert_eq!((world.audit(1), world.registry.as_of()), (vec![line.replace("AT", &now.to_string())], as_of));
    let writes = world.registry.record_key_act(&act(-3, true), now);
    world.write(writes);
    assert!(world.audit(1)[0].ends_with(r#""after":null,"replayed":true}"#), "{:?}", world.audit(1));
    assert_eq!(world.audit(9).len(), 4, "it is another act than the one that it repeats");
}

fn reset(world: &mut World, by: &str, key: &str) {
    act(world, "key.reset", by, key, "9");
}

fn act(world: &mut World, act: &str, by: &str, key: &str, after: &str) {
    let act = KeyAct {
        act: act.to_owned(),
        by: by.to_owned(),
        key: key.to_owned(),
        policy: "api".to_owned(),
        before: Some(world.now.to_string()),
        after: Some(after.to_owned()),
        is_replayed: false,
    };
    let writes = world.registry.record_key_act(&act, world.now);
    world.write(writes);
}

/// Credits of 1 000 000 and of 1, with calls in between that spend them, would look like one of 1.
#[test]
fn acts_with_different_results_have_separate_lines() {
    let mut world = world();
    let own = world.audit(9).len();
    for after in ["1000000", "1", "1"] {
        act(&mut world, "key.credited", "ops", "k", after);
    }
    assert_eq!(world.audit(9).len(), own + 2);
}

#[test]
fn an_endless_actor_pushes_out_only_its_own_acts() {
    let mut world = world();
    let policies = world.audit(9).len();
    for key in 0..3 {
        reset(&mut world, "ops", &format!("o{key}"));
    }
    let rows = |world: &World| world.storage.keys().filter(|name| name.starts_with(AUDIT)).count();
    let by = |world: &World, by: &str| {
        world.audit(usize::MAX).iter().filter(|line| line.contains(&format!(r#""by":"{by}""#))).count()
    };
    for key in 0..MAX_KEY_ACTS + 100 {
        reset(&mut world, "ci", &format!("c{key}"));
        if key % 300 == 0 {
            world.crash();
        }
    }
    assert_eq!((by(&world, "ops"), by(&world, "ci")), (3, MAX_KEY_ACTS - 3));
    assert_eq!(rows(&world), MAX_KEY_ACTS + policies, "those of policies have room of their own");
    // The latest stay: the first of the actor was forgotten first.
    assert!(world.audit(1)[0].contains(&format!(r#""key":"c{}""#, MAX_KEY_ACTS + 99)));
    let keys = |world: &World| world.registry.audit_rows(None, usize::MAX, true).len();
    assert_eq!(keys(&world), MAX_KEY_ACTS);
    // Another actor that is as active ends up with as much.
    for key in 0..MAX_KEY_ACTS {
        reset(&mut world, "late", &format!("l{key}"));
    }
    let shares = [by(&world, "ops"), by(&world, "ci"), by(&world, "late")];
    assert_eq!((shares[0], shares.iter().sum()), (3, MAX_KEY_ACTS));
    assert!(shares[1].abs_diff(shares[2]) <= 1, "{shares:?}");
}

#[test]
fn repeated_acts_share_a_line_with_their_count_and_first_and_last_moment() {
    let mut world = world();
    let start = world.now;
    let own = world.audit(9).len();
    for _ in 0..5 {
        reset(&mut world, "ops", "k");
        reset(&mut world, "ci", "k");
        world.now += 60_000;
    }
    let lines = world.audit(9);
    assert_eq!(lines.len(), own + 2);
    let last = world.now - 60_000;
    let line = format!(
        r#""at":{last},"by":"ci","act":"key.reset","policy":"api","key":"k","before":{start},"after":9,"count":5,"first_at":{start}}}"#
    );
    assert!(lines[0].ends_with(&line), "{}", lines[0]);
    // Another key ends it, and so does an hour.
    reset(&mut world, "ops", "l");
    reset(&mut world, "ops", "k");
    assert_eq!(world.audit(9).len(), own + 4);
    let first = world.now;
    for (moment, lines) in [(first + JOINED_MS - 1, 4), (first + JOINED_MS, 5)] {
        world.now = moment;
        reset(&mut world, "ops", "k");
        assert_eq!(world.audit(9).len(), own + lines);
    }
    // Each change of a policy has its own line.
    for text in ["1/1s", "2/1s", "1/1s"] {
        world.change("api", Some(&format!("{text:?}")), Condition::Present, false).unwrap();
    }
    assert_eq!(world.audit(19).len(), own + 8);
}
