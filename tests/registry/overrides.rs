//! Overrides of keys: set, replaced, removed and ended, and their way to frontends.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tollgate::access::Key;
use tollgate::edge::PolicySnapshot;
use tollgate::key_hash::KeyHasher;
use tollgate::limit::Carry;
use tollgate::policy::Standing;
use tollgate::policy::overrides::Selector;
use tollgate::protocol::{
    Condition, MAX_OVERRIDES_AT_ONCE, NamedKeys, OverrideChange, OverrideKeys, OverridesChange, OverridesChanged,
    OverridesError, Poll,
};
use tollgate::registry::{
    AUDIT, HEARD_MS, MAX_FORGOTTEN_AT_ONCE, MAX_OVERRIDES, MAX_OVERRIDES_OF_RESTRICTED, MAX_PREFIX_LENS,
    PREFIX_LENS_FOR_BANS, PREFIX_LENS_FOR_UNRESTRICTED, RESERVED_FOR_BANS, RESERVED_FOR_UNRESTRICTED,
};

use super::chance;
use super::split_mix::Random;
use super::world::{World, frontend};

const OWN: &str =
    r#"{"api":"10/1s","llm":{"limits":[{"name":"requests","rate":"5/1s"},{"name":"tokens","rate":"7/1s"}]}}"#;
const DAY_MS: i64 = 86_400_000;

fn world() -> World {
    let mut world = World::new();
    world.refresh(&mut frontend(OWN));
    world.now += 1_000;
    world
}

impl World {
    fn set(&mut self, overrides: &str, removed: &str) -> Result<OverridesChanged, OverridesError> {
        self.try_set(&format!(r#"{{"overrides":[{overrides}],"removed":[{removed}]}}"#), None, false)
    }

    fn try_set(
        &mut self,
        text: &str,
        only: Option<&[String]>,
        is_dry_run: bool,
    ) -> Result<OverridesChanged, OverridesError> {
        let change =
            OverridesChange { changes: OverrideChange::parse_all(text)?, by: "ops", only, carry: None, is_dry_run };
        let (changed, writes) = self.registry.change_overrides(change, self.now)?;
        self.write(writes);
        Ok(changed)
    }

    fn carry(&mut self, overrides: &str, removed: &str, carry: Carry) -> Result<OverridesChanged, OverridesError> {
        let text = format!(r#"{{"overrides":[{overrides}],"removed":[{removed}]}}"#);
        let all = OverrideChange::parse_all(&text)?;
        let change = OverridesChange { changes: all, by: "ops", only: None, carry: Some(carry), is_dry_run: false };
        let (changed, writes) = self.registry.change_overrides(change, self.now)?;
        self.write(writes);
        Ok(changed)
    }

    fn listed(&self) -> Vec<String> {
        let (mut all, has_more) = self.registry.overrides(|_| true, None, 1_000, self.now);
        assert!(!has_more);
        all.sort_by(|one, other| one.text.cmp(&other.text));
        all.into_iter().map(|one| one.text).collect()
    }

    fn acts(&self) -> Vec<String> {
        let rows = self.storage.iter().filter(|(name, row)| name.starts_with(AUDIT) && row.contains("\"override."));
        rows.map(|(_, row)| row[row.find("\"by\"").unwrap()..].to_owned()).collect()
    }
}

/// What a key of `api` may take at once, according to this frontend.
fn capacity(frontend: &PolicySnapshot, key: &str, now: i64) -> Option<u64> {
    let policies = frontend.policies();
    let policy = policies.for_key(policies.get("api").unwrap(), key.as_bytes(), now);
    match policy.standing() {
        Standing::Limited => Some(policy.limits()[0].limit().config().capacity),
        Standing::Unlimited => None,
        Standing::Banned { .. } => Some(0),
    }
}

#[test]
fn a_change_says_how_tokens_are_carried_over() {
    let mut world = world();
    let mut frontend = frontend(OWN);
    let alice = r#"{"policy":"api","key":"alice","rate":"7/1s"}"#;
    let of_alice = r#"{"policy":"api","key":"alice"}"#;
    let mut latest = |world: &mut World| {
        world.now += 1_000;
        world.refresh(&mut frontend);
        let policies = frontend.policies();
        policies.for_key(policies.get("api").unwrap(), b"alice", world.now).timeline().carry()
    };
    world.set(alice, "").unwrap();
    assert_eq!(latest(&mut world), Carry::Additive);
    world.carry("", of_alice, Carry::AsIs).unwrap();
    assert_eq!(latest(&mut world), Carry::AsIs);
    world.carry(alice, "", Carry::AsIs).unwrap();
    assert_eq!(latest(&mut world), Carry::AsIs);
    // The same again is no change, unless it resets.
    let same = world.carry(alice, "", Carry::AsIs).unwrap();
    assert_eq!((same.unchanged, same.replaced, same.at), (1, 0, None));
    let anew = world.carry(alice, "", Carry::Reset).unwrap();
    assert_eq!((anew.unchanged, anew.replaced), (0, 1));
    assert_eq!(latest(&mut world), Carry::Reset);
    world.crash();
    assert_eq!(latest(&mut world), Carry::Reset);
    let acts = world.acts();
    assert!(acts.last().unwrap().contains(r#""carry":"reset""#), "{acts:?}");
    let none = world.carry("", r#"{"policy":"api","key":"bob"}"#, Carry::Reset).unwrap();
    assert_eq!((none.unchanged, none.at), (1, None));
}

/// A new shard would get tokens that the others have spent.
#[test]
fn with_shards_tokens_stay_as_they_are_or_are_reset() {
    let mut world = World::new();
    world.refresh(&mut frontend(r#"{"api":{"rate":"10/1s","shards":2}}"#));
    let (set, removed) = (r#"{"policy":"api","key":"a","rate":"8/1s"}"#, r#"{"policy":"api","key":"a"}"#);
    for (set, removed, place) in [(set, "", "overrides[0]"), ("", removed, "removed[0]")] {
        let rule = "the policy api has shards: `carry` must be as_is or reset, not additive";
        let problem = OverridesError::Invalid(vec![format!("{place}: {rule}")]);
        assert_eq!(world.carry(set, removed, Carry::Additive), Err(problem));
    }
    for carry in [Carry::AsIs, Carry::Reset] {
        assert_eq!(world.carry(set, "", carry).unwrap().created, 1);
        assert_eq!(world.carry("", removed, carry).unwrap().removed, 1);
    }
}

#[test]
fn frontends_learn_what_is_set_replaced_and_removed() {
    let mut world = world();
    let mut one = frontend(OWN);
    world.refresh(&mut one);
    assert_eq!(capacity(&one, "acme:a", world.now), Some(10));
    let set = r#"{"policy":"api","key":"acme:a","multiple":3},{"policy":"api","prefix":"acme:","unlimited":true}"#;
    let changed = world.set(set, "").unwrap();
    let expected = OverridesChanged { created: 2, at: changed.at, ..OverridesChanged::default() };
    assert_eq!((changed, changed_at(&world)), (expected, world.now));
    let mut new = frontend(OWN); // one that comes later
    for frontend in [&mut one, &mut new] {
        world.now += 5_000;
        world.refresh(frontend);
        assert_eq!(
            [capacity(frontend, "acme:a", world.now), capacity(frontend, "acme:b", world.now)],
            [Some(30), None]
        );
        assert_eq!(capacity(frontend, "acm", world.now), Some(10));
    }
    let replaced =
        r#"{"policy":"api","key":"acme:a","banned":true},{"policy":"api","prefix":"acme:","unlimited":true}"#;
    let changed = world.set(replaced, "").unwrap();
    assert_eq!((changed.replaced, changed.unchanged), (1, 1));
    world.crash();
    let changed = world.set("", r#"{"policy":"api","prefix":"acme:"},{"policy":"api","key":"never set"}"#).unwrap();
    assert_eq!((changed.removed, changed.unchanged), (1, 1));
    for frontend in [&mut one, &mut new] {
        world.now += 5_000;
        world.refresh(frontend);
        assert_eq!(
            [capacity(frontend, "acme:a", world.now), capacity(frontend, "acme:b", world.now)],
            [Some(0), Some(10)]
        );
    }
    assert_eq!(world.listed(), [r#"{"policy":"api","key":"acme:a","banned":true}"#]);
    let found = |keys| world.registry.override_for(&of_api(keys), None, world.now);
    assert_eq!(found(NamedKeys::One(Key::Text("acme:a".into()))).unwrap().unwrap().text, world.listed()[0]);
    assert_eq!(found(NamedKeys::Prefix("acme:".to_owned())), Ok(None));
}

#[test]
fn overrides_of_a_deleted_policy_can_be_removed_and_not_set() {
    let mut world = world();
    let ban = r#"{"policy":"api","key":"mallory","banned":true}"#;
    world.set(ban, "").unwrap();
    world.now += 1_000;
    world.change("api", None, Condition::Present, false).unwrap();
    assert!(matches!(world.set(ban, ""), Err(OverridesError::Invalid(_))));
    assert_eq!(world.listed(), [ban]);
    world.set("", r#"{"policy":"api","key":"mallory"}"#).unwrap();
    assert_eq!(world.listed(), [""; 0]);
}

fn of_api(keys: NamedKeys) -> OverrideKeys {
    OverrideKeys { place: "it".to_owned(), policy: "api".to_owned(), keys }
}

fn changed_at(world: &World) -> i64 {
    world.registry.as_of()
}

#[test]
fn an_override_ends_on_time_and_the_registry_says_so() {
    let mut world = world();
    let mut one = frontend(OWN);
    let until = world.now + 60_000;
    let set = format!(r#"{{"policy":"api","key":"a","banned":true,"until":{until}}}"#);
    world.set(&set, "").unwrap();
    world.refresh(&mut one);
    assert_eq!([capacity(&one, "a", until - 1), capacity(&one, "a", until)], [Some(0), Some(10)]);
    world.now = until;
    assert_eq!(world.listed(), [""; 0]);
    world.crash();
    world.refresh(&mut one);
    let ended = format!(
        r#""by":"its until","act":"override.deleted","policy":"api","key":"{}","before":{{"policy":"api","banned":true,"until":{until}}},"after":null}}"#,
        hash(b"a")
    );
    assert_eq!(world.acts().last(), Some(&ended));
    assert_eq!(capacity(&one, "a", world.now), Some(10));
    // Its bucket may need its earlier numbers for a month.
    let rows = |world: &World| world.storage.keys().filter(|name| name.starts_with("override:")).count();
    for (days, expected) in [(30, 1), (2, 0)] {
        world.now += days * DAY_MS;
        world.refresh(&mut one);
        assert_eq!(rows(&world), expected);
        world.crash();
    }
}

#[test]
fn all_are_changed_or_none_and_a_dry_run_changes_nothing() {
    let mut world = world();
    world.set(r#"{"policy":"api","key":"a","multiple":3}"#, "").unwrap();
    let before = (world.storage.clone(), world.listed());
    let good = r#"{"policy":"api","key":"b","multiple":3}"#;
    let now = world.now;
    let both = format!("{now}, {}", now + 1);
    for (overrides, removed, errors) in [
        (r#"{"policy":"none","key":"a","banned":true}"#, "", vec![r#"overrides[1].policy: there is no policy "none""#.to_owned()]),
        (r#"{"policy":"api","key":{"ip":"x"},"banned":true}"#, "", vec![r#"overrides[1].key: has an `ip` that is not an IP address such as "192.0.2.1" or "2001:db8::1""#.to_owned()]),
        (good, "", vec!["overrides[1]: is for the same keys as overrides[0]".to_owned()]),
        (r#"{"policy":"api","key":"c","banned":true}"#, r#"{"policy":"api","key":"b"}"#, vec!["removed[0]: is for the same keys as overrides[0]".to_owned()]),
        (r#"{"policy":"llm","key":"c","rate":"1/s"}"#, "", vec!["overrides[1]: the policy has several limits: give the numbers of each in `limits`, by its name: requests, tokens".to_owned()]),
        (r#"{"policy":"api","key":"c","banned":1},7"#, r#"{"policy":"api","key":"x","banned":true}"#, vec![
            "overrides[1].banned: must be true; to end an override, delete it".to_owned(),
            "overrides[2]: must be a table of fields such as policy, key and multiple, not 7".to_owned(),
            "removed[0].banned: is not a known field; known fields are policy, key, prefix".to_owned(),
        ]),
    ] {
        let error = world.set(&format!("{good},{overrides}"), removed).unwrap_err();
        assert_eq!(error, OverridesError::Invalid(errors), "{overrides}");
    }
    let past = format!(r#"{{"policy":"api","key":"c","banned":true,"until":{now}}}"#);
    let error = format!("overrides[0].until: {now} is not in the future: it is {now}");
    assert_eq!(world.set(&past, "").unwrap_err(), OverridesError::Invalid(vec![error]), "{both}");
    for (text, error) in [
        ("[]", "the body must be an object with `overrides`, `removed` or both"),
        ("{}", "a change has 1 to 2000 overrides, not 0"),
        (r#"{"override":[]}"#, r#"the body has the field "override"; it may have `overrides` and `removed`"#),
        (r#"{"overrides":{}}"#, "`overrides` must be a list of overrides"),
    ] {
        assert_eq!(world.try_set(text, None, false).unwrap_err(), OverridesError::Invalid(vec![error.to_owned()]));
    }
    let only = ["llm".to_owned()];
    let text = format!(r#"{{"overrides":[{good}]}}"#);
    let error = r#"overrides[0].policy: there is no policy "api""#.to_owned();
    assert_eq!(world.try_set(&text, Some(&only), false).unwrap_err(), OverridesError::Invalid(vec![error]));
    let dry = world.try_set(&text, None, true).unwrap();
    assert_eq!((world.storage.clone(), world.listed()), before);
    assert_eq!(world.try_set(&text, None, false).unwrap(), dry);
    assert_eq!(world.listed().len(), 2);
}

/// What is malformed and what does not fit the policies is listed together, in the order of the request.
#[test]
fn the_first_twenty_errors_are_listed() {
    let mut world = world();
    let unknown = r#"{"policy":"none","key":"a","banned":true}"#;
    let (missing, prefix) = (r#"{"policy":"api","key":"a"}"#, r#"{"policy":"api","prefix":7}"#);
    let lines = |place: &str| {
        let (unknown, known) = (r#"there is no policy "none""#, "known fields are policy, key, prefix");
        let plans = "an override has one of `rate` and `period`, `limits`, `multiple`, `banned` or `unlimited`";
        match place {
            "overrides[0]" | "overrides[2]" => vec![format!("{place}.policy: {unknown}")],
            "overrides[1]" => vec![format!("{place}.rate: is missing: {plans}")],
            "removed[0]" => vec![format!("{place}.banned: is not a known field; {known}")],
            _ => vec![format!("{place}.prefix: must be the beginning of text keys, 1 to 512 bytes, not 7")],
        }
    };
    let few = ["overrides[0]", "overrides[1]", "overrides[2]", "removed[0]", "removed[1]"].map(lines).concat();
    let set = format!("{unknown},{missing},{unknown}");
    let removed = format!(r#"{{"policy":"api","key":"a","banned":true}},{prefix}"#);
    assert_eq!(world.set(&set, &removed), Err(OverridesError::Invalid(few)));
    for (count, has_more) in [(20, false), (21, true), (300, true)] {
        for text in [missing, unknown] {
            let Err(OverridesError::Invalid(lines)) = world.set(&vec![text; count].join(","), "") else { panic!() };
            assert_eq!(lines.len(), count.min(20) + usize::from(has_more), "{text}");
            assert_eq!(lines.last().unwrap() == "there are more errors", has_more, "{text}");
        }
    }
}

#[test]
fn every_act_is_recorded_and_a_bulk_one_with_its_count() {
    let mut world = world();
    let one = |multiple: u32| format!(r#"{{"policy":"api","key":"a","multiple":{multiple}}}"#);
    world.set(&one(2), "").unwrap();
    world.set(&one(3), "").unwrap();
    world.set("", r#"{"policy":"api","key":"a"}"#).unwrap();
    let keys = |from: u32| (0..30).map(move |key| format!(r#"{{"policy":"api","key":"k{}""#, from + key));
    world.set(&keys(0).map(|key| key + r#","banned":true}"#).collect::<Vec<_>>().join(","), "").unwrap();
    world.set("", &keys(0).map(|key| key + "}").collect::<Vec<_>>().join(",")).unwrap();
    let line = |act: &str, key: &str, before: &str, after: &str| {
        format!(r#""by":"ops","act":"override.{act}","policy":"api",{key}"before":{before},"after":{after}}}"#)
    };
    let key = format!(r#""key":"{}","#, hash(b"a"));
    let one = |multiple: u32| format!(r#"{{"policy":"api","multiple":{multiple}}}"#);
    let expected = [
        line("created", &key, "null", &one(2)),
        line("replaced", &key, &one(2), &one(3)),
        line("deleted", &key, &one(3), "null"),
        line("created", "", "null", r#"{"set":30,"removed":0}"#),
        line("deleted", "", r#"{"set":0,"removed":30}"#, "null"),
    ];
    assert_eq!(world.acts(), expected);
}

/// A key's name in the audit log.
fn hash(key: &[u8]) -> String {
    format!("{:032x}", u128::from_be_bytes(KeyHasher::default().hash(key)))
}

/// An override's name in `GET /v1/overrides`.
fn id(selector: &Selector) -> String {
    format!("{:032x}", u128::from_be_bytes(selector.hash()))
}

#[test]
fn a_key_is_stored_only_in_the_override_in_force() {
    let mut world = world();
    let until = world.now + 60_000;
    let keys = [r#""policy":"api","key":"zoe@example.com""#, r#""policy":"api","prefix":"zoe@""#];
    let with_name = |world: &World| {
        let rows = world.storage.iter().filter(|(_, row)| row.contains("zoe@"));
        rows.map(|(name, _)| name.split_once(':').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    let [key, prefix] = keys;
    let set = format!(r#"{{{key},"multiple":3,"until":{until}}},{{{prefix},"banned":true}}"#);
    world.set(&set, "").unwrap();
    assert_eq!(with_name(&world), ["override", "override"]);
    world.set("", &format!("{{{prefix}}}")).unwrap();
    assert_eq!(with_name(&world), ["override"]);
    world.now = until;
    world.refresh(&mut frontend(OWN));
    assert_eq!(with_name(&world), [""; 0]);
    world.crash();
    assert_eq!(world.listed(), [""; 0]);
    // Even after the clock has stepped back, an ended override is over.
    world.now = until - 1_000;
    assert_eq!(world.listed(), [""; 0]);
    assert_eq!(world.set(&set, "").unwrap().created, 2);
    assert_eq!(world.listed().len(), 2);
}

#[test]
fn overrides_that_end_together_are_ended_in_steps_and_counted() {
    let mut world = world();
    let until = world.now + 60_000;
    let banned = |n: u32| {
        let policy = if n % 10 == 9 { "llm" } else { "api" };
        format!(r#"{{"policy":"{policy}","key":"k{n}","banned":true,"until":{until}}}"#)
    };
    world.set(&(0..1_200).map(banned).collect::<Vec<_>>().join(","), "").unwrap();
    let mut one = frontend(OWN);
    world.refresh(&mut one);
    assert_eq!(capacity(&one, "k0", world.now), Some(0));
    let before = world.acts().len();
    world.now = until;
    for expected in [500, 1_000, 1_200, 1_200] {
        assert_eq!(world.listed(), [""; 0], "a row that is late changes nothing");
        assert_eq!(capacity(&one, "k0", world.now), Some(10));
        world.now += 5_000;
        world.refresh(&mut one);
        let ended = |(name, row): (&String, &String)| name.starts_with("override:") && row.contains("\"ended_at\"");
        assert_eq!(world.storage.iter().filter(|row| ended(*row)).count(), expected);
    }
    let acts = world.acts();
    let removed = acts[before..].iter().map(|act| {
        let (start, rest) = act.split_once(r#""before":{"set":0,"removed":"#).unwrap();
        assert!(start.starts_with(r#""by":"its until","act":"override.deleted","policy":""#), "{act}");
        rest.strip_suffix(r#"},"after":null}"#).unwrap().parse::<u32>().unwrap()
    });
    assert_eq!((removed.clone().count(), removed.sum::<u32>()), (6, 1_200));
}

#[test]
fn an_override_is_over_before_its_end_is_carried_out() {
    let mut world = world();
    let until = world.now + 60_000;
    let banned = |until: i64| move |n: i64| format!(r#"{{"policy":"api","key":"k{n}","banned":true,"until":{until}}}"#);
    world.set(&(0..1_200).map(banned(until)).collect::<Vec<_>>().join(","), "").unwrap();
    world.now = until;
    let changed = world.set(&(0..20).map(banned(until + 1)).collect::<Vec<_>>().join(","), "").unwrap();
    assert_eq!((changed.created, changed.replaced), (20, 0));
    let acts = world.acts();
    assert!(acts[acts.len() - 20..].iter().all(|act| act.contains(r#""act":"override.created""#)), "{acts:?}");
    assert_eq!(world.listed().len(), 20);
}

fn bulk(world: &mut World, count: usize) {
    let numbers: Vec<_> = (0..count).collect();
    for some in numbers.chunks(MAX_OVERRIDES_AT_ONCE) {
        let each = some.iter().map(|n| format!(r#"{{"policy":"api","key":"customer-{n}","rate":"{}/1m"}}"#, 100 + n));
        world.set(&each.collect::<Vec<_>>().join(","), "").unwrap();
        world.now += 1;
    }
}

#[test]
fn a_frontend_gets_overrides_in_pages_below_a_megabyte_and_then_only_changes() {
    let mut world = world();
    world.set(r#"{"policy":"api","key":"mallory","banned":true}"#, "").unwrap();
    world.now += 1_000;
    world.change("api", Some(r#""11/1s""#), Condition::Present, false).unwrap();
    bulk(&mut world, 30_000);
    let mut one = frontend(OWN);
    let mut question = one.poll(world.now);
    let mut lens = Vec::new();
    while let Some(text) = question {
        let (update, writes) = world.registry.poll(&Poll::from_text(&text).unwrap(), world.now).unwrap();
        world.write(writes);
        lens.push(update.to_text().len());
        question = one.update(&update.to_text()).unwrap();
        // Overrides received so far apply, bans above all; but it does not claim to know everything.
        assert_eq!(capacity(&one, "mallory", world.now), Some(0));
        assert_eq!(capacity(&one, "alice", world.now), Some(11));
        assert_eq!(one.in_force().as_of(["api"]) == Some(0), question.is_some());
    }
    assert!(lens.len() >= 3 && lens.iter().all(|&len| len < 1_000_000), "{lens:?}");
    for n in [0, 7, 29_999] {
        assert_eq!(capacity(&one, &format!("customer-{n}"), world.now), Some(100 + n));
    }
    world.set(r#"{"policy":"api","key":"customer-7","unlimited":true}"#, "").unwrap();
    world.now += 5_000;
    let question = one.poll(world.now).unwrap();
    let (update, _) = world.registry.poll(&Poll::from_text(&question).unwrap(), world.now).unwrap();
    assert!(update.to_text().len() < 500 && !update.overrides_are_first);
    one.update(&update.to_text()).unwrap();
    assert_eq!(capacity(&one, "customer-7", world.now), None);
    // From another registry it loads all again.
    world.lose_storage();
    world.now += 5_000;
    world.refresh(&mut one);
    assert_eq!(capacity(&one, "customer-7", world.now), Some(10));
}

/// Bans of keys with this beginning, from one number up to another.
fn ban(
    world: &mut World,
    policy: &str,
    start: &str,
    count: usize,
    only: Option<&[String]>,
) -> Result<usize, OverridesError> {
    let numbers: Vec<_> = (0..count).collect();
    let mut created = 0;
    for some in numbers.chunks(MAX_OVERRIDES_AT_ONCE) {
        let each: Vec<_> =
            some.iter().map(|n| format!(r#"{{"policy":"{policy}","key":"{start}{n}","banned":true}}"#)).collect();
        created += world.try_set(&format!(r#"{{"overrides":[{}]}}"#, each.join(",")), only, false)?.created;
        world.now += 1;
    }
    Ok(created)
}

const ALL: OverridesError =
    OverridesError::TooMany { max: MAX_OVERRIDES, is_own: false, is_restricted: false, are_bans: true };

#[test]
fn bans_have_room_when_nothing_else_does() {
    let mut world = world();
    bulk(&mut world, MAX_OVERRIDES - RESERVED_FOR_BANS);
    let max = MAX_OVERRIDES - RESERVED_FOR_BANS;
    let error = OverridesError::TooMany { max, is_own: false, is_restricted: false, are_bans: false };
    let other = r#"{"policy":"api","key":"one more","multiple":2}"#;
    assert_eq!(world.set(other, "").unwrap_err(), error);
    let mixed = format!(r#"{other},{{"policy":"api","key":"b","banned":true}}"#);
    assert_eq!(world.set(&mixed, "").unwrap_err(), error);
    assert_eq!(ban(&mut world, "llm", "b", RESERVED_FOR_BANS, None), Ok(RESERVED_FOR_BANS));
    assert_eq!(ban(&mut world, "llm", "one more ", 1, None), Err(ALL));
    // Existing ones can be replaced and removed, and removed ones make room after a minute.
    assert_eq!(world.set(r#"{"policy":"api","key":"customer-0","multiple":2}"#, "").unwrap().replaced, 1);
    world.now += 1;
    assert_eq!(world.set("", r#"{"policy":"api","key":"customer-1"}"#).unwrap().removed, 1);
    world.now += HEARD_MS - 1;
    assert_eq!(ban(&mut world, "llm", "one more ", 1, None), Err(ALL));
    world.now += 1;
    assert_eq!(ban(&mut world, "llm", "one more ", 1, None), Ok(1));
}

#[test]
fn a_restricted_token_leaves_room_for_other_policies_and_unrestricted_tokens() {
    let mut world = world();
    let [api, llm] = ["api", "llm"].map(|name| vec![name.to_owned()]);
    let multiple =
        |policy: &str, key: &str| format!(r#"{{"overrides":[{{"policy":"{policy}","key":"{key}","multiple":2}}]}}"#);
    // Its own half, and bans a little more.
    let (most, with_bans) = (MAX_OVERRIDES_OF_RESTRICTED, MAX_OVERRIDES_OF_RESTRICTED + RESERVED_FOR_BANS);
    assert_eq!(ban(&mut world, "api", "a", most - 1, Some(&api)), Ok(most - 1));
    assert_eq!(world.try_set(&multiple("api", "x"), Some(&api), false).unwrap().created, 1);
    let error = |max, is_own, are_bans| OverridesError::TooMany { max, is_own, is_restricted: true, are_bans };
    assert_eq!(world.try_set(&multiple("api", "y"), Some(&api), false), Err(error(most, true, false)));
    assert_eq!(ban(&mut world, "api", "b", RESERVED_FOR_BANS, Some(&api)), Ok(RESERVED_FOR_BANS));
    assert_eq!(ban(&mut world, "api", "c", 1, Some(&api)), Err(error(with_bans, true, true)));
    // A token for other policies has room, but not the reserve.
    let rest = MAX_OVERRIDES - RESERVED_FOR_UNRESTRICTED - with_bans;
    assert_eq!(ban(&mut world, "llm", "a", rest, Some(&llm)), Ok(rest));
    let full = MAX_OVERRIDES - RESERVED_FOR_UNRESTRICTED;
    assert_eq!(ban(&mut world, "llm", "b", 1, Some(&llm)), Err(error(full, false, true)));
    let other = error(full - RESERVED_FOR_BANS, false, false);
    assert_eq!(world.try_set(&multiple("llm", "y"), Some(&llm), false), Err(other));
    // An unrestricted token may set others and ban.
    let others = RESERVED_FOR_UNRESTRICTED - RESERVED_FOR_BANS;
    bulk(&mut world, others);
    assert!(matches!(world.try_set(&multiple("llm", "y"), None, false), Err(OverridesError::TooMany { .. })));
    assert_eq!(ban(&mut world, "llm", "c", RESERVED_FOR_BANS, None), Ok(RESERVED_FOR_BANS));
    assert_eq!(ban(&mut world, "llm", "d", 1, None), Err(ALL));
}

#[test]
fn a_frontend_that_slept_while_an_end_was_forgotten_does_not_keep_the_ban() {
    let mut world = world();
    world.set(r#"{"policy":"llm","key":"freed","banned":true}"#, "").unwrap();
    world.now += 1;
    bulk(&mut world, MAX_OVERRIDES - RESERVED_FOR_BANS - 1);
    ban(&mut world, "llm", "b", RESERVED_FOR_BANS, None).unwrap();
    let is_banned = |frontend: &PolicySnapshot, now: i64| {
        let policies = frontend.policies();
        let policy = policies.for_key(policies.get("llm").unwrap(), b"freed", now);
        policy.standing() != Standing::Limited
    };
    // One that has all of them, and one that is in the middle of loading them.
    let (mut asleep, mut loading) = (frontend(OWN), frontend(OWN));
    world.refresh(&mut asleep);
    let mut question = loading.poll(world.now);
    while let Some(text) = question.as_deref() {
        let (update, writes) = world.registry.poll(&Poll::from_text(text).unwrap(), world.now).unwrap();
        world.write(writes);
        question = loading.update(&update.to_text()).unwrap();
        if is_banned(&loading, world.now) {
            break;
        }
    }
    assert!(question.is_some(), "there are more pages");
    assert!(is_banned(&asleep, world.now) && is_banned(&loading, world.now));
    world.set("", r#"{"policy":"llm","key":"freed"}"#).unwrap();
    world.now += HEARD_MS;
    ban(&mut world, "llm", "needs the room ", 1, None).unwrap();
    world.now += 1;
    world.crash();
    while let Some(text) = question.as_deref() {
        let (update, writes) = world.registry.poll(&Poll::from_text(text).unwrap(), world.now).unwrap();
        world.write(writes);
        question = loading.update(&update.to_text()).unwrap();
    }
    world.refresh(&mut asleep);
    assert!(!is_banned(&asleep, world.now), "it loads all again");
    assert!(!is_banned(&loading, world.now), "it begins again");
}

#[test]
fn overrides_are_bounded_by_what_an_isolate_can_hold() {
    let mut world = world();
    bulk(&mut world, MAX_OVERRIDES - RESERVED_FOR_BANS);
    ban(&mut world, "api", "banned-", RESERVED_FOR_BANS, None).unwrap();
    let error = world.set(r#"{"policy":"api","key":"one more","banned":true}"#, "").unwrap_err();
    assert_eq!(error, ALL);
    assert_eq!(world.set(r#"{"policy":"api","key":"customer-7","banned":true}"#, "").unwrap().replaced, 1);
    let rows = |world: &World| world.storage.keys().filter(|name| name.starts_with("override:")).count();
    let has = |world: &World, key: &str| {
        world
            .storage
            .contains_key(&format!("override:{}", id(&Selector::key("api", KeyHasher::default().hash(key.as_bytes())))))
    };
    // Ended overrides make room after a minute, the oldest first.
    for n in 10..13 {
        world.now += 1;
        world.set("", &format!(r#"{{"policy":"api","key":"customer-{n}"}}"#)).unwrap();
    }
    let one = r#"{"policy":"api","key":"one more","banned":true}"#;
    assert_eq!(world.set(one, "").unwrap_err(), error, "some frontend may not know of it yet");
    world.now += HEARD_MS;
    let two = r#"{"policy":"api","key":"customer-10","banned":true},{"policy":"api","key":"new","banned":true}"#;
    let before = world.storage.clone();
    assert_eq!(world.try_set(&format!(r#"{{"overrides":[{two}]}}"#), None, true).unwrap().created, 2);
    assert_eq!(world.storage, before);
    assert_eq!(world.set(two, "").unwrap().created, 2);
    assert_eq!(rows(&world), MAX_OVERRIDES);
    assert_eq!(["10", "11", "12"].map(|n| has(&world, &format!("customer-{n}"))), [true, false, true]);
    // So do those that end now, even more than one call carries out.
    let until = world.now + 1_000;
    let ending =
        (1_000..2_200).map(|n| format!(r#"{{"policy":"api","key":"customer-{n}","banned":true,"until":{until}}}"#));
    world.set(&ending.collect::<Vec<_>>().join(","), "").unwrap();
    world.now = until + HEARD_MS;
    let new = |from: u32, count: u32| {
        let new = (from..from + count).map(|n| format!(r#"{{"policy":"api","key":"new-{n}","banned":true}}"#));
        new.collect::<Vec<_>>().join(",")
    };
    let before = world.storage.clone();
    let error = world.set(&new(0, 1_202), "").unwrap_err();
    assert_eq!((error, &world.storage), (ALL, &before));
    assert_eq!(world.set(&new(0, 1_201), "").unwrap().created, 1_201);
    assert_eq!(rows(&world), MAX_OVERRIDES);
    world.crash();
    assert_eq!(world.set(&new(1_201, 1), "").unwrap_err(), ALL);
}

#[test]
fn the_length_of_an_override_is_bounded() {
    let mut world = world();
    let with = |spaces: usize| format!(r#"{{"policy":"api","key":"a","rate":"1/{}1s"}}"#, " ".repeat(spaces));
    let rest = with(0).len();
    world.set(&with(4_096 - rest), "").unwrap();
    let error = "overrides[0]: has 4097 bytes, without spaces between its fields; an override has at most 4096";
    assert_eq!(world.set(&with(4_097 - rest), ""), Err(OverridesError::Invalid(vec![error.to_owned()])));
}

#[test]
fn only_the_unreadable_override_is_lost() {
    let mut world = world();
    world.refresh(&mut frontend(&OWN.replace("10/1s", "20/1s")));
    world.set(r#"{"policy":"api","key":"a","banned":true},{"policy":"api","key":"b","banned":true}"#, "").unwrap();
    let name = format!("override:{}", id(&Selector::key("api", KeyHasher::default().hash(b"a"))));
    world.storage.insert(name.clone(), "{".to_owned());
    for _ in 0..2 {
        world.crash();
        world.now += 5_000;
        world.refresh(&mut frontend(OWN)); // of the deployment before
        assert_eq!(world.text("api").as_deref(), Some("\"20/1s\""));
    }
    assert_eq!(world.listed(), [r#"{"policy":"api","key":"b","banned":true}"#]);
    assert_eq!(world.registry.unreadable_rows(), [name]);
}

#[test]
fn a_fixed_policy_is_overridden_only_for_single_keys() {
    let mut world = world();
    let own = r#"{"own":{"rate":"5/1s","fixed":true}}"#;
    world.refresh(&mut frontend(r#"{"own":"5/1s"}"#));
    world.set(r#"{"policy":"own","prefix":"a","multiple":2}"#, "").unwrap();
    world.refresh(&mut frontend(own));
    let error = "overrides[0].prefix: the policy own has `fixed = true`: only single keys can have an override";
    let prefix = |prefix: &str| format!(r#"{{"policy":"own","prefix":"{prefix}","banned":true}}"#);
    for text in ["a", "b"] {
        assert_eq!(world.set(&prefix(text), ""), Err(OverridesError::Invalid(vec![error.to_owned()])));
    }
    assert_eq!(world.set(r#"{"policy":"own","key":"a","banned":true}"#, "").unwrap().created, 1);
    assert_eq!(world.set("", r#"{"policy":"own","prefix":"a"}"#).unwrap().removed, 1);
}

#[test]
fn a_policy_with_one_budget_has_an_override_for_the_key_without_parts() {
    let mut world = world();
    world.refresh(&mut frontend(r#"{"all":"5/1s"}"#));
    world.set(r#"{"policy":"all","key":"a","multiple":2},{"policy":"all","prefix":"b","multiple":2}"#, "").unwrap();
    let none = "overrides[0].key: is a list of 0; it must have 1 to 8 parts";
    let boost = r#"{"policy":"all","key":[],"multiple":2}"#;
    assert_eq!(world.set(boost, ""), Err(OverridesError::Invalid(vec![none.to_owned()])));
    world.refresh(&mut frontend(r#"{"all":{"rate":"5/1s","key":[]}}"#));
    for (text, error) in [
        (
            r#"{"policy":"all","key":"a","banned":true}"#,
            "overrides[0].key: must be []: the policy has one budget for all",
        ),
        (
            r#"{"policy":"all","key":{"hash":"55db67a2116548932fc4d6df88bed29c"},"banned":true}"#,
            "overrides[0].key: must be []: the policy has one budget for all",
        ),
        (
            r#"{"policy":"all","prefix":"a","banned":true}"#,
            "overrides[0].prefix: the policy has one budget for all: give \"key\": []",
        ),
    ] {
        assert_eq!(world.set(text, ""), Err(OverridesError::Invalid(vec![error.to_owned()])));
    }
    assert_eq!(world.set(boost, "").unwrap().created, 1);
    // Overrides from before the policy had one budget can be removed.
    let before = r#"{"policy":"all","key":"a"},{"policy":"all","prefix":"b"}"#;
    assert_eq!(world.set("", before).unwrap().removed, 2);
    assert_eq!(world.listed(), [boost]);
}

/// A token restricted to some policies may give any hash as a key, even one derived from what it has been shown.
#[test]
fn the_hash_of_a_key_reaches_no_override_of_another_policy() {
    let mut world = world();
    let ban = r#"{"policy":"llm","key":"mallory","banned":true}"#;
    world.set(ban, "").unwrap();
    let banned = Selector::key("llm", KeyHasher::default().hash(b"mallory"));
    let prefix = Selector::prefix(&KeyHasher::default(), "api", "m");
    world.set(r#"{"policy":"api","prefix":"m","banned":true}"#, "").unwrap();
    let mask = |policy: &str| u128::from_be_bytes(Sha256::digest(policy)[..16].try_into().unwrap());
    let key = u128::from_be_bytes(banned.key_hash().unwrap());
    let tried = [
        key,
        u128::from_be_bytes(banned.hash()),
        u128::from_be_bytes(prefix.hash()),
        u128::from_be_bytes(prefix.hash()) ^ mask("api"),
        u128::from_be_bytes(banned.hash()) ^ mask("api"),
        key ^ mask("llm") ^ mask("api"),
    ];
    let own = ["api".to_owned()];
    for hash in tried {
        let keys = format!(r#"{{"policy":"api","key":{{"hash":"{hash:032x}"}}}}"#);
        let named = of_api(NamedKeys::One(Key::Hash(hash.to_be_bytes())));
        assert_eq!(world.registry.override_for(&named, Some(&own), world.now), Ok(None), "{hash:032x}");
        let removed = world.try_set(&format!(r#"{{"removed":[{keys}]}}"#), Some(&own), false).unwrap();
        assert_eq!(removed.removed, 0, "{hash:032x}");
        let set = keys.replace("}}", r#"},"unlimited":true}"#);
        assert_eq!(world.try_set(&format!(r#"{{"overrides":[{set}]}}"#), Some(&own), false).unwrap().created, 1);
    }
    assert!(world.listed().contains(&ban.to_owned()), "{:?}", world.listed());
}

/// The prefix of that many bytes: none is the beginning of another.
fn prefix(len: usize) -> String {
    char::from(b'a' + u8::try_from(len).unwrap()).to_string().repeat(len)
}

/// For each of these lengths a prefix of `api`.
fn prefixes(lens: RangeInclusive<usize>, fields: &str) -> String {
    let one = |len| format!(r#"{{"policy":"api","prefix":"{}"{fields}}}"#, prefix(len));
    lens.map(one).collect::<Vec<_>>().join(",")
}

const BAN: &str = r#","banned":true"#;
const TWICE: &str = r#","multiple":2"#;

/// The lengths that a request under `api` costs this frontend a hash for.
fn lens_known(frontend: &PolicySnapshot, now: i64) -> Vec<usize> {
    let policies = frontend.policies();
    let api = policies.get("api").unwrap();
    (1..=27).filter(|&len| !Arc::ptr_eq(&policies.for_key(api, prefix(len).as_bytes(), now), api)).collect()
}

/// The answer when prefixes of `api` have these lengths and a change adds new ones.
fn too_many_lens(
    in_use: impl IntoIterator<Item = usize>,
    new: RangeInclusive<usize>,
    max: usize,
    reserve: &str,
) -> OverridesError {
    too_many_lens_with(in_use, [], new, max, reserve)
}

/// The same when this many prefixes of some lengths have ended.
fn too_many_lens_with<const N: usize>(
    in_use: impl IntoIterator<Item = usize>,
    ended: [(usize, usize); N],
    new: impl IntoIterator<Item = usize>,
    max: usize,
    reserve: &str,
) -> OverridesError {
    let text = |lens: &[usize]| lens.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let (in_use, new): (Vec<_>, Vec<_>) = (in_use.into_iter().collect(), new.into_iter().collect());
    let count = in_use.len() + N + new.len();
    let mut lists = Vec::new();
    if !in_use.is_empty() {
        lists.push(format!("in use: {}", text(&in_use)));
    }
    if N > 0 {
        let ended = ended.map(|(len, count)| format!("{len} ({count} prefixes)"));
        lists.push(format!("ended, and forgotten within 31 days: {}", ended.join(", ")));
    }
    lists.push(format!("new: {}", text(&new)));
    let lists = lists.join("; ");
    let advice = if in_use.len() + N == 0 {
        "Use fewer lengths"
    } else {
        "Use a length that is not new. A length of at most 2000 prefixes is free a minute after the last was removed"
    };
    OverridesError::Invalid(vec![format!(
        "the prefixes of the policy api would have {count} different lengths in bytes, at most {max} are possible{reserve}: {lists}. {advice}"
    )])
}

#[test]
fn the_number_of_prefix_lengths_of_a_policy_is_bounded() {
    let mut world = world();
    let error = Err(too_many_lens([], 1..=17, MAX_PREFIX_LENS, ""));
    assert_eq!(world.set(&prefixes(1..=17, BAN), ""), error);
    world.set(&prefixes(1..=16, BAN), "").unwrap();
    world.crash();
    let one_more = prefixes(17..=17, BAN);
    let error = Err(too_many_lens(1..=16, 17..=17, MAX_PREFIX_LENS, ""));
    assert_eq!(world.set(&one_more, ""), error);
    world.set(r#"{"policy":"api","prefix":"yyy","banned":true}"#, "").unwrap();
    world.set(&one_more.replace("api", "llm"), "").unwrap();
    world.set(r#"{"policy":"api","key":"a","banned":true}"#, "").unwrap();
    // There is another one of three bytes.
    world.set("", &prefixes(3..=3, "")).unwrap();
    world.now += HEARD_MS;
    assert_eq!(world.set(&one_more, ""), error);
    world.set("", r#"{"policy":"api","prefix":"yyy"}"#).unwrap();
    world.now += HEARD_MS - 1;
    assert_eq!(world.set(&one_more, ""), error);
    world.now += 1;
    assert_eq!(world.set(&one_more, "").unwrap().created, 1);
}

#[test]
fn some_prefix_lengths_are_kept_for_bans_and_unrestricted_tokens() {
    let own = ["api".to_owned()];
    let (restricted, all) = (MAX_PREFIX_LENS - PREFIX_LENS_FOR_UNRESTRICTED, MAX_PREFIX_LENS);
    for (only, fields, max, reserve) in [
        (None, BAN, all, ""),
        (None, TWICE, all - PREFIX_LENS_FOR_BANS, " (bans alone have more room)"),
        (Some(&own[..]), BAN, restricted, " (an unrestricted token has more room)"),
        (
            Some(&own[..]),
            TWICE,
            restricted - PREFIX_LENS_FOR_BANS,
            " (bans alone, or an unrestricted token, have more room)",
        ),
    ] {
        let mut world = world();
        let mut set = |lens: RangeInclusive<usize>, fields: &str, only| {
            world.try_set(&format!(r#"{{"overrides":[{}]}}"#, prefixes(lens, fields)), only, false)
        };
        assert_eq!(set(1..=max + 1, fields, only), Err(too_many_lens([], 1..=max + 1, max, reserve)));
        assert_eq!(set(1..=max, fields, only).unwrap().created, max);
        let one_more = max + 1..=max + 1;
        assert_eq!(set(one_more.clone(), fields, only), Err(too_many_lens(1..=max, one_more, max, reserve)));
        if max < all {
            assert_eq!(set(max + 1..=all, BAN, None).unwrap().created, all - max);
        }
        // A length that is in use is open to all.
        assert_eq!(set(1..=all, r#","multiple":3"#, only).unwrap().replaced, all);
        assert_eq!(set(all + 1..=all + 1, BAN, None), Err(too_many_lens(1..=all, all + 1..=all + 1, all, "")));
    }
    // A change with anything but bans does not get the bans' reserve.
    let mut world = world();
    world.set(&prefixes(1..=14, TWICE), "").unwrap();
    let mixed = [prefixes(15..=15, BAN), prefixes(16..=16, TWICE)].join(",");
    assert_eq!(world.set(&mixed, ""), Err(too_many_lens(1..=14, 15..=16, 14, " (bans alone have more room)")));
    // Not if its length is in use.
    let mixed = [prefixes(1..=1, r#","multiple":3"#), prefixes(15..=16, BAN)].join(",");
    assert_eq!(world.set(&mixed, "").unwrap().created, 2);
}

#[test]
fn prefix_lengths_of_ended_overrides_make_room_at_frontends_too() {
    let own = ["api".to_owned()];
    let mut world = world();
    let [mut awake, mut asleep] = [frontend(OWN), frontend(OWN)];
    let try_set = |world: &mut World, overrides: String, removed: String| {
        let text = format!(r#"{{"overrides":[{overrides}],"removed":[{removed}]}}"#);
        world.try_set(&text, Some(&own), false)
    };
    // A token restricted to this policy sets and removes all that it can; those of one byte last.
    try_set(&mut world, prefixes(1..=12, BAN), String::new()).unwrap();
    world.refresh(&mut awake);
    world.refresh(&mut asleep);
    assert_eq!(lens_known(&awake, world.now), (1..=12).collect::<Vec<_>>());
    try_set(&mut world, String::new(), prefixes(2..=12, "")).unwrap();
    world.now += 1;
    try_set(&mut world, String::new(), prefixes(1..=1, "")).unwrap();
    // Within a minute, the rest is for unrestricted tokens.
    world.set(&prefixes(13..=16, BAN), "").unwrap();
    assert_eq!(world.set(&prefixes(17..=17, BAN), ""), Err(too_many_lens(1..=16, 17..=17, 16, "")));
    world.now += HEARD_MS;
    world.refresh(&mut awake);
    assert_eq!(lens_known(&awake, world.now), (1..=16).collect::<Vec<_>>());
    let before = world.storage.clone();
    let dry_run = format!(r#"{{"overrides":[{}]}}"#, prefixes(17..=27, BAN));
    assert_eq!(world.try_set(&dry_run, None, true).unwrap().created, 11);
    assert_eq!(world.storage, before);
    // Only as many as needed, those that ended first.
    assert_eq!(world.set(&prefixes(17..=27, BAN), "").unwrap().created, 11);
    let expected = [1].into_iter().chain(13..=27).collect::<Vec<_>>();
    for crashes in [false, true] {
        if crashes {
            world.crash();
        }
        let mut new = frontend(OWN);
        for frontend in [&mut awake, &mut asleep, &mut new] {
            world.now += 5_000;
            world.refresh(frontend);
            assert_eq!(lens_known(frontend, world.now), expected);
            assert_eq!([12, 27].map(|len| capacity(frontend, &prefix(len), world.now)), [Some(10), Some(0)]);
        }
    }
    // A forgotten one can be set again like any other, and does not interfere with what is known then.
    assert_eq!(world.set(&prefixes(2..=2, BAN), "").unwrap().created, 1);
    let error = too_many_lens_with([2].into_iter().chain(13..=27), [], 1..=1, 16, "");
    assert_eq!(world.set(&prefixes(1..=1, BAN), ""), Err(error));
    world.now += 5_000;
    world.refresh(&mut awake);
    assert_eq!(lens_known(&awake, world.now), [2].into_iter().chain(13..=27).collect::<Vec<_>>());
    // A frontend that slept until even that is gone loads all again.
    world.now += 31 * DAY_MS;
    world.refresh(&mut awake);
    world.refresh(&mut asleep);
    for frontend in [&awake, &asleep] {
        assert_eq!(lens_known(frontend, world.now), [2].into_iter().chain(13..=27).collect::<Vec<_>>());
    }
    let forgotten = world.storage.values().filter(|row| row.contains("\"ended_at\"")).count();
    assert_eq!(forgotten, 0);
}

#[test]
fn late_ends_make_room_for_other_lengths_and_are_recorded() {
    let mut world = world();
    let until = world.now + HEARD_MS;
    let mut one = frontend(OWN);
    // More ends of one length than one call carries out.
    let many = (0..1_200).map(|n| format!(r#"{{"policy":"api","prefix":"{n:04}","banned":true,"until":{until}}}"#));
    world.set(&many.collect::<Vec<_>>().join(","), "").unwrap();
    world.set(&[prefixes(1..=3, BAN), prefixes(5..=16, BAN)].join(","), "").unwrap();
    world.refresh(&mut one);
    let before = world.acts().len();
    world.now = until - 1;
    assert_eq!(world.set(&prefixes(17..=17, BAN), ""), Err(too_many_lens(1..=16, 17..=17, 16, "")));
    world.now = until;
    assert_eq!(world.set(&prefixes(17..=17, BAN), "").unwrap().created, 1);
    let acts = world.acts();
    let ended = |act: &&String| act.starts_with(r#""by":"its until","act":"override.deleted""#);
    assert_eq!((acts[before..].iter().filter(ended).count(), acts.len()), (2, before + 3));
    let removed = [500, 700].map(|count| format!(r#""before":{{"set":0,"removed":{count}}}"#));
    assert!(removed.iter().all(|removed| acts[before..].iter().any(|act| act.contains(removed))), "{acts:?}");
    world.now += 5_000;
    world.refresh(&mut one);
    let expected = (1..=3).chain(5..=17).collect::<Vec<_>>();
    assert_eq!(lens_known(&one, world.now), expected);
    let policies = one.policies();
    let api = policies.get("api").unwrap();
    assert!(Arc::ptr_eq(&policies.for_key(api, b"0007", world.now), api), "of its length nothing is known any more");
}

/// Bans many prefixes of one length, until a moment.
fn ban_prefixes(
    world: &mut World,
    policy: &str,
    len: usize,
    count: usize,
    until: i64,
    only: Option<&[String]>,
) -> Result<(), OverridesError> {
    let numbers: Vec<_> = (0..count).collect();
    for some in numbers.chunks(MAX_OVERRIDES_AT_ONCE) {
        let one = |n| format!(r#"{{"policy":"{policy}","prefix":"{n:0>len$}","banned":true,"until":{until}}}"#);
        let each: Vec<_> = some.iter().map(one).collect();
        world.try_set(&format!(r#"{{"overrides":[{}]}}"#, each.join(",")), only, false)?;
    }
    Ok(())
}

#[test]
fn a_change_forgets_a_bounded_number_of_prefixes_and_a_length_with_more_counts() {
    for count in [MAX_FORGOTTEN_AT_ONCE, MAX_FORGOTTEN_AT_ONCE + 1] {
        let mut world = world();
        let until = world.now + HEARD_MS;
        ban_prefixes(&mut world, "api", 4, count, until, None).unwrap();
        world.set(&[prefixes(1..=3, BAN), prefixes(5..=16, BAN)].join(","), "").unwrap();
        world.now = until + 10; // changes at one moment follow each other by a millisecond
        let before = (world.storage.clone(), world.rows_written);
        let result = world.set(&prefixes(17..=17, BAN), "");
        if count == MAX_FORGOTTEN_AT_ONCE {
            assert_eq!(result.unwrap().created, 1);
            // Ends carried out, forgotten rows, the ban, three acts, and the registry's rows about itself and about them.
            let written = world.rows_written - before.1;
            assert!((count..count + 520).contains(&written), "{written}");
            continue;
        }
        let error = too_many_lens_with((1..=3).chain(5..=16), [(4, count)], 17..=17, 16, "");
        assert_eq!(result, Err(error));
        assert!(world.storage == before.0, "nothing has changed");
        // Such a length is open to all, like one in use. A month later it makes room, when enough are forgotten.
        assert_eq!(world.set(&prefixes(4..=4, BAN), "").unwrap().created, 1);
        world.set("", &prefixes(4..=4, "")).unwrap();
        world.now = until + 31 * DAY_MS - 1;
        for _ in 0..5 {
            world.refresh(&mut frontend(OWN));
        }
        assert!(world.set(&prefixes(17..=17, BAN), "").is_err());
        world.now += 1;
        world.refresh(&mut frontend(OWN));
        assert_eq!(world.set(&prefixes(17..=17, BAN), "").unwrap().created, 1);
    }
}

#[test]
fn the_lengths_with_the_fewest_prefixes_are_forgotten_first() {
    let mut world = world();
    let mut one = frontend(OWN);
    world.set(&prefixes(1..=16, BAN), "").unwrap();
    world.set(r#"{"policy":"api","prefix":"00","banned":true}"#, "").unwrap();
    world.now += 10;
    // Two bytes are over first, but have two; of the others, four bytes are over for longer than three.
    world.set("", &format!(r#"{{"policy":"api","prefix":"00"}},{}"#, prefixes(2..=2, ""))).unwrap();
    for len in [4, 3] {
        world.now += 1;
        world.set("", &prefixes(len..=len, "")).unwrap();
    }
    world.now += HEARD_MS;
    for (new, forgotten) in [(17, 4), (18, 3), (19, 2)] {
        world.refresh(&mut one);
        assert!(lens_known(&one, world.now).contains(&forgotten));
        world.set(&prefixes(new..=new, BAN), "").unwrap();
        world.now += 5_000;
        world.refresh(&mut one);
        let known = lens_known(&one, world.now);
        assert_eq!((known.len(), known.contains(&forgotten)), (16, false), "{known:?}");
    }
    assert!(world.set(&prefixes(20..=20, BAN), "").is_err());
}

#[test]
fn one_bound_covers_all_prefixes_that_a_change_forgets() {
    for count in [MAX_FORGOTTEN_AT_ONCE / 2, MAX_FORGOTTEN_AT_ONCE / 2 + 1] {
        let mut world = world();
        let until = world.now + HEARD_MS;
        let both = |overrides: String| [overrides.replace("api", "llm"), overrides].join(",");
        for policy in ["api", "llm"] {
            ban_prefixes(&mut world, policy, 4, count, until, None).unwrap();
        }
        world.set(&both([prefixes(1..=3, BAN), prefixes(5..=16, BAN)].join(",")), "").unwrap();
        world.now = until + 10;
        let one_more = prefixes(17..=17, BAN);
        let result = world.set(&both(one_more.clone()), "");
        if count == MAX_FORGOTTEN_AT_ONCE / 2 {
            assert_eq!(result.unwrap().created, 2);
            continue;
        }
        let error = "to make room for prefixes of other lengths, 2002 prefixes of several policies that have ended would be forgotten, \
                     at most 2000 can be at once. Send the prefixes of each policy in a change of its own";
        assert_eq!(result, Err(OverridesError::Invalid(vec![error.to_owned()])));
        for each in [one_more.replace("api", "llm"), one_more] {
            assert_eq!(world.set(&each, "").unwrap().created, 1);
        }
    }
}

#[test]
fn many_ended_prefixes_of_a_restricted_token_block_no_ban() {
    let own = ["api".to_owned()];
    let mut world = world();
    let until = world.now + HEARD_MS;
    let restricted = MAX_PREFIX_LENS - PREFIX_LENS_FOR_UNRESTRICTED;
    // Of each length more than one change can forget.
    let count = MAX_FORGOTTEN_AT_ONCE + 1;
    for len in 4..4 + restricted {
        ban_prefixes(&mut world, "api", len, count, until, Some(&own)).unwrap();
    }
    world.now = until + HEARD_MS;
    let mut set = |lens, only| world.try_set(&format!(r#"{{"overrides":[{}]}}"#, prefixes(lens, BAN)), only, false);
    let ended: [_; 12] = std::array::from_fn(|index| (4 + index, count));
    let reserve = " (an unrestricted token has more room)";
    assert_eq!(set(16..=16, Some(&own)), Err(too_many_lens_with([], ended, [16], restricted, reserve)));
    assert_eq!(set(16..=19, None).unwrap().created, 4);
    assert_eq!(set(20..=20, None), Err(too_many_lens_with(16..=19, ended, [20], MAX_PREFIX_LENS, "")));
}

/// Random changes, ends and crashes; frontends that poll now and then agree with a plain list.
#[test]
fn a_frontend_that_has_polled_agrees_with_the_list() {
    let (seed, cases) = chance::chosen(60);
    for case in 0..cases {
        let mut random = Random(seed.wrapping_add(case));
        let mut below = |n: u64| random.next() % n;
        let mut world = world();
        let mut frontends = [frontend(OWN), frontend(OWN), frontend(OWN)];
        // What an override makes of the capacity of 10, and when it ends; by whether it is of a prefix, and its text.
        let mut list: BTreeMap<(bool, String), (Option<u64>, i64)> = BTreeMap::new();
        for _ in 0..60 {
            match below(10) {
                0..=4 => {
                    let is_prefix = below(2) == 0;
                    let text = ["a", "ab", "abc"][usize::try_from(below(3)).unwrap()].to_owned();
                    let keys = format!(r#""policy":"api","{}":"{text}""#, if is_prefix { "prefix" } else { "key" });
                    let until = world.now + 1 + i64::try_from(below(20_000)).unwrap();
                    let ends = below(2) == 0;
                    let (fields, made) = match below(4) {
                        0 => (r#""banned":true"#.to_owned(), Some(0)),
                        1 => (r#""unlimited":true"#.to_owned(), None),
                        n => (format!(r#""multiple":{n}"#), Some(10 * n)),
                    };
                    let end = if ends { format!(r#","until":{until}"#) } else { String::new() };
                    if below(3) == 0 {
                        world.set("", &format!("{{{keys}}}")).unwrap();
                        list.remove(&(is_prefix, text));
                    } else {
                        world.set(&format!("{{{keys},{fields}{end}}}"), "").unwrap();
                        list.insert((is_prefix, text), (made, if ends { until } else { i64::MAX }));
                    }
                }
                5 => world.crash(),
                6 => world.now += i64::try_from(below(20_000)).unwrap(),
                index => {
                    let frontend = &mut frontends[usize::try_from(index - 7).unwrap()];
                    world.now += 5_000;
                    world.refresh(frontend);
                    let in_force = |keys: (bool, &str)| {
                        let found = list.get(&(keys.0, keys.1.to_owned()));
                        found.filter(|(_, until)| world.now < *until).map(|(made, _)| *made)
                    };
                    for key in ["a", "ab", "abc", "b"] {
                        let exact = in_force((false, key));
                        let prefixes = (1..=key.len()).rev().find_map(|len| in_force((true, &key[..len])));
                        let expected = exact.or(prefixes).unwrap_or(Some(10));
                        assert_eq!(capacity(frontend, key, world.now), expected, "case {case}, {key}: {list:?}");
                    }
                }
            }
        }
    }
}

/// Other windows for one key: of another calendar, zone or first day, or of a period. Without windows, it would be another kind of limit.
#[cfg(feature = "zones")]
#[test]
fn an_override_of_a_calendar_has_other_windows_and_no_other_kind() {
    const PLANS: &str = r#"{"plan":{"kind":"fixed_window","rate":10,"calendar":"month","zone":"Europe/Berlin"}}"#;
    let mut world = World::new();
    let mut frontend = frontend(PLANS);
    world.refresh(&mut frontend);
    let windows_of = |frontend: &PolicySnapshot, now: i64| {
        let policies = frontend.policies();
        let policy = policies.for_key(policies.get("plan").unwrap(), b"alice", now);
        let config = *policy.limits()[0].limit().config();
        (
            config.rate,
            config.calendar.map_or_else(|| format!("{} ms", config.period_ms), |calendar| calendar.to_string()),
        )
    };
    let own = (10, "month 1 Europe/Berlin".to_owned());
    for (fields, rate, windows) in [
        (r#""rate":10,"calendar":"month","starts":15,"zone":"Europe/Berlin""#, 10, "month 15 Europe/Berlin"),
        (r#""rate":10,"calendar":"month","zone":"America/Sao_Paulo""#, 10, "month 1 America/Sao_Paulo"),
        (r#""rate":3,"calendar":"week","starts":"sunday""#, 3, "week 7 UTC"),
        (r#""rate":50,"calendar":"year","starts":"04-06""#, 50, "year 04-06 UTC"),
        (r#""rate":2,"period":"1day","offset":"6h""#, 2, "86400000 ms"),
    ] {
        world.now += 10_000;
        let until = world.now + 60_000;
        let set = format!(r#"{{"policy":"plan","key":"alice","kind":"fixed_window",{fields},"until":{until}}}"#);
        world.set(&set, "").unwrap();
        world.crash();
        world.refresh(&mut frontend);
        assert_eq!(windows_of(&frontend, until - 1), (rate, windows.to_owned()));
        assert_eq!(windows_of(&frontend, until), own, "it has ended");
    }
    world.now += 10_000;
    world.set(r#"{"policy":"plan","key":"alice","multiple":2.5}"#, "").unwrap();
    world.refresh(&mut frontend);
    assert_eq!(windows_of(&frontend, world.now), (25, own.1.clone()));
    let kind = "overrides[0]: an override has other numbers, not another kind: write `\"kind\": \"fixed_window\"`";
    for (fields, problem) in [
        (r#""rate":"10/1day""#, format!("{kind}, as in the policy")),
        (
            r#""kind":"fixed_window","rate":10,"period":"30days","offset":"first_use""#,
            format!("{kind} with another `offset`, or none, as in the policy"),
        ),
        (r#""kind":"fixed_window","rate":10,"starts":15"#, "overrides[0].starts: needs `calendar`".to_owned()),
        (
            r#""kind":"fixed_window","rate":10,"calendar":"month","zone":"Europe/Atlantis""#,
            "overrides[0].zone: must be the name of a time zone in the IANA's database, such as \"America/Sao_Paulo\" or \"UTC\", not \"Europe/Atlantis\"".to_owned(),
        ),
    ] {
        let refused = world.set(&format!(r#"{{"policy":"plan","key":"alice",{fields}}}"#), "");
        let Err(OverridesError::Invalid(problems)) = refused else { panic!("{fields}: {refused:?}") };
        assert!(problems.contains(&problem), "{problems:?}");
    }
    world.refresh(&mut frontend);
    assert_eq!(windows_of(&frontend, world.now), (25, own.1), "nothing has changed");
}
