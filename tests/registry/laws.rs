//! Laws over random deployments, changes, lost answers, and crashes.

use std::collections::BTreeMap;

use tollgate::edge::PolicySnapshot;
use tollgate::protocol::{Condition, Poll, Update};
use tollgate::registry::ROLL_OUT_MS;

use super::chance;
use super::split_mix::Random;
use super::world::{World, frontend};

const NAMES: [&str; 3] = ["a", "b", "c"];
const TEXTS: [&str; 4] = ["\"1/1s\"", "\"2/1s\"", "\"3/1s\"", r#"{"rate":"4/1s","fixed":true}"#];

/// By name.
type Texts = BTreeMap<&'static str, &'static str>;

/// The policy that should be in force: the rules of the registry's documentation, one policy at a time.
#[derive(Default)]
struct Model {
    /// The text last set by a deployment.
    seeds: Texts,
    /// The text in force.
    texts: Texts,
    /// When a deployment last polled, by index.
    heard: BTreeMap<usize, i64>,
}

impl Model {
    /// A frontend of `deployments[index]` polls.
    fn poll(&mut self, deployments: &[Texts], index: usize, now: i64) {
        let is_new = !self.heard.contains_key(&index);
        self.heard.insert(index, now);
        for name in NAMES {
            let (own, seed) = (deployments[index].get(name), self.seeds.get(name));
            if own == seed {
                continue;
            }
            if is_new || self.quiet_for(deployments, name, now) >= ROLL_OUT_MS {
                for texts in [&mut self.seeds, &mut self.texts] {
                    match own {
                        Some(text) => _ = texts.insert(name, text),
                        None => _ = texts.remove(name),
                    }
                }
            }
        }
    }
}

impl Model {
    /// How long no frontend with the seed of a policy has polled.
    fn quiet_for(&self, deployments: &[Texts], name: &str, now: i64) -> i64 {
        let seed = self.seeds.get(name);
        let holders = self.heard.iter().filter(|(other, _)| deployments[**other].get(name) == seed);
        holders.map(|(_, at)| now - at).min().unwrap_or(i64::MAX)
    }

    /// Whether the registry may be right either way: after a crash it knows only within 30 s when a deployment last polled.
    fn is_unsure(&self, deployments: &[Texts], index: usize, now: i64) -> bool {
        let differs = |name: &&str| deployments[index].get(name) != self.seeds.get(name);
        let unsure = ROLL_OUT_MS..ROLL_OUT_MS + 30_000;
        NAMES.iter().filter(|name| differs(name)).any(|name| unsure.contains(&self.quiet_for(deployments, name, now)))
    }
}

fn observed(world: &World) -> BTreeMap<String, String> {
    world.policies().into_iter().map(|(name, text, _)| (name, text)).collect()
}

fn json_of(texts: &Texts) -> String {
    let policies: Vec<_> = texts.iter().map(|(name, text)| format!("\"{name}\":{text}")).collect();
    format!("{{{}}}", policies.join(","))
}

/// A frontend's copy of the registry.
fn known(frontend: &PolicySnapshot) -> (i64, Vec<(String, String, String)>) {
    let known = Update::from_text(&frontend.known()).unwrap();
    let policies = known.policies.into_iter().map(|(name, policy)| {
        let policy = policy.unwrap();
        (name, policy.text, policy.timeline)
    });
    (known.as_of, policies.collect())
}

#[test]
fn frontends_follow_the_registry_and_the_registry_its_rules() {
    let (seed, cases) = chance::chosen(400);
    for case in 0..cases {
        let mut random = Random(seed.wrapping_add(case));
        run(&mut random);
    }
}

fn run(random: &mut Random) {
    let mut world = World::new();
    let mut model = Model::default();
    let mut deployments: Vec<Texts> = Vec::new();
    let mut frontends: Vec<(usize, PolicySnapshot)> = Vec::new();
    let pick = |random: &mut Random, most: usize| usize::try_from(random.next() % most as u64).unwrap();
    for _ in 0..120 {
        match pick(random, 16) {
            0 if deployments.len() < 12 => {
                let mut texts = Texts::new();
                for name in NAMES {
                    if pick(random, 4) > 0 {
                        texts.insert(name, TEXTS[pick(random, TEXTS.len())]);
                    }
                }
                if !texts.is_empty() && !deployments.contains(&texts) {
                    frontends.push((deployments.len(), frontend(&json_of(&texts))));
                    deployments.push(texts);
                }
            }
            1 if !deployments.is_empty() => {
                let index = pick(random, deployments.len());
                frontends.push((index, frontend(&json_of(&deployments[index]))));
            }
            2 if frontends.len() > 1 => _ = frontends.remove(pick(random, frontends.len())),
            3 => world.crash(),
            4 if pick(random, 6) == 0 => {
                world.lose_storage();
                model = Model::default();
            }
            5 => world.now -= i64::try_from(random.next() % 3_000).unwrap(),
            6 => world.now += i64::try_from(random.next() % 200_000).unwrap(),
            7..=9 => world.now += i64::try_from(random.next() % 8_000).unwrap(),
            10 | 11 => change(random, &mut world, &mut model),
            _ if !frontends.is_empty() => {
                let chosen = pick(random, frontends.len());
                let (index, frontend) = &mut frontends[chosen];
                let before = known(frontend).0;
                world.now += 5_000; // so that it polls
                while model.is_unsure(&deployments, *index, world.now) {
                    world.now += 10_000;
                }
                let lost = pick(random, 8) == 0;
                if lost {
                    // The poll arrives, the answer does not.
                    let question = frontend.poll(world.now).unwrap();
                    let poll = Poll::from_text(&question).unwrap();
                    let (update, writes) = world.registry.poll(&poll, world.now).unwrap();
                    world.write(writes);
                    frontend.fail();
                    if update.wants_policies {
                        model.heard.entry(*index).and_modify(|at| *at = world.now);
                    } else {
                        model.poll(&deployments, *index, world.now);
                    }
                    continue;
                }
                world.refresh(frontend);
                model.poll(&deployments, *index, world.now);
                let (as_of, policies) = known(frontend);
                assert!(as_of >= before, "a frontend never goes back");
                assert_eq!(as_of, world.registry.as_of());
                let expected: Vec<_> = world
                    .registry
                    .policies()
                    .map(|own| (own.policy.name().to_owned(), own.text, own.policy.timeline().to_json()))
                    .collect();
                assert_eq!(policies, expected, "a frontend agrees with the registry, whatever it missed");
                assert_eq!(frontend.policies().iter().count(), expected.len());
            }
            _ => {}
        }
        let expected: BTreeMap<_, _> =
            model.texts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        assert_eq!(observed(&world), expected);
    }
}

/// An operator makes a change, perhaps without the right to.
fn change(random: &mut Random, world: &mut World, model: &mut Model) {
    let mut pick = |most: u64| usize::try_from(random.next() % most).unwrap();
    let name = NAMES[pick(3)];
    let text = (pick(4) > 0).then(|| TEXTS[pick(4)]);
    let current = world.registry.policy(name);
    let condition = match (pick(4), &current) {
        (0, _) => Condition::Absent,
        (1, Some(current)) => Condition::Version(vec![current.version - 1]),
        (_, Some(current)) => Condition::Version(vec![current.version]),
        (_, None) => Condition::Present,
    };
    let is_dry_run = pick(5) == 0;
    let (before, as_of) = (world.storage.clone(), world.registry.as_of());
    let result = world.change(name, text, condition.clone(), is_dry_run);
    let is_fixed = current.as_ref().is_some_and(|current| current.is_fixed);
    let Ok(changed) = result else {
        assert_eq!(world.storage, before, "a refused change changes nothing");
        return;
    };
    if let Some(current) = &current {
        assert_eq!(condition, Condition::Version(vec![current.version]), "only the current version");
    }
    if is_dry_run || text == current.as_ref().map(|current| &*current.text) {
        assert_eq!((&world.storage, world.registry.as_of()), (&before, as_of));
        return;
    }
    assert!(!is_fixed, "a fixed policy");
    assert!(world.registry.as_of() > as_of && world.registry.as_of() >= world.now, "versions are new");
    assert_eq!(changed.standing.map(|standing| standing.version), text.map(|_| world.registry.as_of()));
    match text {
        Some(text) => _ = model.texts.insert(name, text),
        None => _ = model.texts.remove(name),
    }
}
