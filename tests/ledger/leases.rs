//! Leased tokens of limits that leave their policy and come back: renamed, switched off, tried in shadow, or unknown to an older
//! version that alternates with a newer one.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::MAX_LEASES;
use tollgate::limit::{Carry, Verb};
use tollgate::policy::{NamedLimit, Policies, Policy};
use tollgate::protocol::{Action, EndedLease, LEASE_GRACE_MS, Lease, ObjectReply};

use crate::chance;
use crate::model::Model;
use crate::world::{DAY_MS, START, World, decided};

const CONSUME: Action = Action::Take(Verb::Consume);

fn policy(json: &str) -> Policy {
    Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

fn with_limits(limits: &str) -> String {
    format!(r#"{{"limits":[{limits}],"lease":"10s"}}"#)
}

/// A hundred tokens, once.
const A: &str = r#"{"name":"a","rate":0,"period":"1s","capacity":100,"write_ahead":0}"#;

/// As many, once in any 30 days; nothing can be leased of it.
const ROLLING: &str =
    r#"{"limits":[{"name":"a","kind":"rolling_window","rate":100,"period":"30day","write_ahead":0}]}"#;

/// The policies used in turn while `a` is not enforced.
fn absences() -> Vec<(&'static str, Vec<String>)> {
    let named = |name: &str| A.replace(r#""a""#, &format!(r#""{name}""#));
    let with = |fields: &str| A.replace('{', &format!("{{{fields},"));
    let lists = |lists: &[String]| lists.iter().map(|limits| with_limits(limits)).collect::<Vec<_>>();
    vec![
        ("renamed", lists(&[named("b")])),
        ("renamed twice", lists(&[named("b"), named("c")])),
        ("off beside another limit", lists(&[format!("{},{}", with(r#""mode":"off""#), named("b"))])),
        ("in shadow beside another limit", lists(&[format!("{},{}", named("b"), with(r#""mode":"shadow""#))])),
        ("in shadow alone", lists(&[with(r#""mode":"shadow""#)])),
        ("off alone", lists(&[with(r#""mode":"off""#)])),
        ("without a name", vec![r#"{"rate":0,"period":"1s","capacity":100,"write_ahead":0,"lease":"10s"}"#.to_owned()]),
        ("of another kind", lists(&[with(r#""kind":"fixed_window""#)])),
        ("a rolling window", vec![ROLLING.to_owned()]),
        ("of another kind, then renamed", lists(&[with(r#""kind":"fixed_window""#), named("b")])),
        ("many others", (0..12).map(|other| with_limits(&named(&format!("b{other}")))).collect()),
    ]
}

/// The fate of the lease while `a` is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open,
    Over,
    /// Returned by an isolate that knows only the version with `a`.
    ReturnedUnderItsOwn,
    ReturnedUnderTheOther,
}

/// Versions of one policy, as a registry has them or as isolates of several deployments bring them.
struct Versions {
    world: World,
    is_registered: bool,
}

impl Versions {
    fn new(first: &str, is_registered: bool) -> Self {
        let policy = policy(first);
        let policy = if is_registered { policy.in_force_since(START - DAY_MS) } else { policy };
        let mut world = World::empty(&Arc::new(policy));
        world.as_of = is_registered.then(|| world.policy.timeline().since());
        Self { world, is_registered }
    }

    fn change(&mut self, json: &str) {
        let mut next = policy(json);
        if self.is_registered {
            self.world.now += 1;
            next = next.succeeding(&self.world.policy, self.world.now, Carry::AsIs);
            self.world.as_of = Some(self.world.now);
        }
        self.world.policy = Arc::new(next);
    }

    fn look(&mut self) {
        self.world.levels();
    }

    /// How many requests for one token are granted.
    fn granted(&mut self) -> u64 {
        let costs = vec![1; self.world.policy.limits().len()];
        (0..1_000).take_while(|_| self.world.decided(CONSUME, costs.clone()).decision().is_allow()).count() as u64
    }
}

fn leased(reply: ObjectReply) -> Lease {
    decided(reply).lease.expect("tokens are there")
}

#[test]
fn tokens_of_a_lease_stay_withheld_while_their_limit_is_absent() {
    for (absence, policies) in absences() {
        for fate in [Fate::Open, Fate::Over, Fate::ReturnedUnderItsOwn, Fate::ReturnedUnderTheOther] {
            for is_registered in [false, true] {
                for crashes in 0..8_u8 {
                    let case = format!("{absence}, {fate:?}, registered: {is_registered}, crashes: {crashes:03b}");
                    check_absence(&policies, fate, is_registered, crashes, &case);
                }
            }
        }
    }
}

fn check_absence(policies: &[String], fate: Fate, is_registered: bool, crashes: u8, case: &str) {
    let first = with_limits(A);
    let mut versions = Versions::new(&first, is_registered);
    let Lease { id, tokens, .. } = leased(versions.world.lease(vec![50], Vec::new()));
    assert_eq!(tokens, [50], "{case}");
    let (own, own_as_of) = (Arc::clone(&versions.world.policy), versions.world.as_of);
    let crash = |versions: &mut Versions, bit: u8| {
        if crashes & bit != 0 {
            versions.world.crash(0);
        }
    };
    crash(&mut versions, 1);
    for other in policies {
        versions.change(other);
        versions.look();
        crash(&mut versions, 2);
    }
    let ended = EndedLease { id, spent: vec![20] };
    match fate {
        Fate::Open => {}
        Fate::Over => {
            versions.world.now += 10_000 + LEASE_GRACE_MS.cast_signed();
            versions.look();
        }
        Fate::ReturnedUnderItsOwn => {
            let other = std::mem::replace(&mut versions.world.policy, own);
            let as_of = std::mem::replace(&mut versions.world.as_of, own_as_of);
            let reply = versions.world.lease(vec![0], vec![ended]);
            assert_eq!(matches!(reply, ObjectReply::PolicyOutdated { .. }), is_registered, "{case}");
            (versions.world.policy, versions.world.as_of) = (other, as_of);
            versions.look();
        }
        // By position: it concerns `a` only if that is the name of the limit there.
        Fate::ReturnedUnderTheOther => {
            let mut spent = vec![0; versions.world.policy.limits().len()];
            spent.fill(20);
            versions.world.lease(vec![0; spent.len()], vec![EndedLease { id, spent }]);
        }
    }
    crash(&mut versions, 4);
    let mut limits = versions.world.policy.limits().iter();
    // Without a registry, a limit without a name is the one that had it.
    let is_a = limits.any(|limit| limit.name().map_or(!is_registered, |name| name == "a"));
    versions.change(&first);
    let spent = match fate {
        Fate::ReturnedUnderItsOwn if !is_registered => 20,
        Fate::ReturnedUnderTheOther if is_a => 20,
        _ => 50,
    };
    assert_eq!(versions.granted(), 100 - spent, "{case}");
}

/// A budget of a day that only the newer version has: each request of the older one must leave it as it was.
#[test]
fn old_and_new_versions_in_turn_grant_no_more_than_the_new_limit() {
    let loose = r#"{"name":"a","rate":1000000,"period":"1day","write_ahead":0}"#;
    let old = Arc::new(policy(&with_limits(loose)));
    let daily = r#"{"name":"b","rate":2000,"period":"1day","capacity":2000,"write_ahead":0}"#;
    let new = Arc::new(policy(&with_limits(&format!("{loose},{daily}"))));
    let mut world = World::empty(&new);
    let mut granted = 0;
    for round in 0..60 {
        world.policy = Arc::clone(&new);
        // An isolate of the new version spends all that it leases, and asks for the rest.
        if let Some(lease) = decided(world.lease(vec![100, 100], Vec::new())).lease {
            granted += lease.tokens[1];
        }
        for _ in 0..20 {
            granted += u64::from(world.decided(CONSUME, vec![1, 1]).decision().is_allow());
        }
        world.policy = Arc::clone(&old);
        world.decided(CONSUME, vec![1]);
        world.now += 100;
        if round % 7 == 0 {
            world.crash(0);
        }
    }
    assert!((1_950..=2_000).contains(&granted), "{granted} of 2000");
}

/// Other numbers when it comes back: tokens leased under the old ones are withheld from the new ones.
#[test]
fn a_limit_that_comes_back_with_other_numbers_still_lacks_what_is_leased() {
    let (first, other) = (with_limits(A), with_limits(&A.replace(r#""a""#, r#""b""#)));
    for (capacity, granted, with_more) in [(200, 50, 150), (60, 10, 10), (40, 0, 0)] {
        let back = with_limits(&A.replace("100", &capacity.to_string()));
        for is_registered in [false, true] {
            for crashes in [false, true] {
                let mut versions = Versions::new(&first, is_registered);
                leased(versions.world.lease(vec![50], Vec::new()));
                versions.change(&other);
                versions.look();
                if crashes {
                    versions.world.crash(0);
                }
                versions.change(&back);
                let granted = if is_registered { granted } else { with_more };
                assert_eq!(versions.granted(), granted, "{capacity}, {is_registered}, {crashes}");
            }
        }
    }
}

/// An alarm deletes full buckets. A bucket with leased tokens is not full.
#[test]
fn a_bucket_is_not_forgotten_before_the_leases_of_an_absent_limit_are_spent() {
    let a = A.replace(r#""rate":0,"period":"1s""#, r#""rate":100,"period":"1day""#);
    let (first, other) = (with_limits(&a), with_limits(&a.replace(r#""a""#, r#""b""#)));
    for (waited_ms, granted) in [(0, 50), (13_000, 50), (DAY_MS / 2 + 12_999, 99), (DAY_MS / 2 + 13_000, 100)] {
        for crashes in 0..4_u8 {
            let mut versions = Versions::new(&first, false);
            leased(versions.world.lease(vec![50], Vec::new()));
            versions.change(&other);
            versions.look();
            if crashes & 1 != 0 {
                versions.world.crash(0);
            }
            versions.world.now += waited_ms;
            versions.world.clean();
            if crashes & 2 != 0 {
                versions.world.crash(0);
            }
            versions.change(&first);
            assert_eq!(versions.granted(), granted, "after {waited_ms} ms, crashes: {crashes:02b}");
        }
    }
}

/// Names come and go faster than leases end: the limits that are kept for their leases are bounded, and none of them is dropped.
#[test]
fn a_bucket_with_too_many_leased_limits_leases_no_more() {
    let names = |round: usize| (0..8).map(move |limit| format!("{round}-{limit}"));
    let list = |round: usize| {
        with_limits(&names(round).map(|name| A.replace(r#""a""#, &format!("{name:?}"))).collect::<Vec<_>>().join(","))
    };
    let mut versions = Versions::new(&list(0), false);
    let mut withheld = Vec::new();
    for round in 0..6 {
        versions.change(&list(round));
        let lease = decided(versions.world.lease(vec![50; 8], Vec::new())).lease;
        withheld.push(lease.map_or(0, |lease| lease.tokens[0]));
        versions.world.crash(0);
    }
    assert_eq!(withheld[..2], [50, 50]);
    assert!(withheld.contains(&0), "each row has room for all of them: {withheld:?}");
    for (round, withheld) in withheld.into_iter().enumerate().filter(|(_, withheld)| *withheld > 0) {
        versions.change(&list(round));
        assert_eq!(versions.granted(), 100 - withheld, "round {round}");
    }
}

#[test]
fn a_budget_with_all_its_leases_leases_no_more_and_still_grants() {
    let mut versions =
        Versions::new(r#"{"rate":0,"period":"1s","capacity":1000,"write_ahead":0,"lease":"10s"}"#, false);
    let leases: Vec<_> = (0..MAX_LEASES).map(|_| leased(versions.world.lease(vec![1], Vec::new()))).collect();
    let mut lease = |ended: Vec<EndedLease>| decided(versions.world.lease(vec![1], ended)).lease;
    assert_eq!(lease(Vec::new()), None);
    let ended = EndedLease { id: leases[0].id, spent: vec![0] };
    assert!(lease(vec![ended]).is_some(), "one is over");
    assert_eq!(lease(Vec::new()), None);
    assert_eq!(versions.granted(), 1_000 - MAX_LEASES as u64);
}

/// The limits of the versions that alternate. A limit has the same numbers in all of them, so that one bucket of each name is the
/// oracle.
const LIMITS: [&str; 3] = [
    r#"{"name":"a","rate":7,"period":"1s","capacity":40,"write_ahead":3}"#,
    r#"{"name":"b","rate":30,"period":"10s","capacity":50,"write_ahead":0}"#,
    r#"{"name":"c","kind":"fixed_window","rate":25,"period":"5s","offset":"0s","write_ahead":4}"#,
];

/// Which of these limits a version has, in which order.
const VERSIONS: [&[usize]; 8] = [&[0], &[0, 1], &[1, 0], &[1], &[2], &[2, 0, 1], &[1, 2], &[0, 2]];

#[derive(Clone, Debug)]
enum Step {
    Change(usize),
    Consume(u64),
    Lease([u64; 3]),
    /// That many tokens, of the lease with this number.
    Spend(usize, u64),
    /// The lease with this number, by an isolate that knows the version of the lease, or the last one used.
    Return(usize, bool),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let tokens = || prop_oneof![0..6_u64, 0..60_u64];
    prop_oneof![
        5 => (0..VERSIONS.len()).prop_map(Step::Change),
        8 => tokens().prop_map(Step::Consume),
        5 => [tokens(), tokens(), tokens()].prop_map(Step::Lease),
        6 => (0..4_usize, tokens()).prop_map(|(which, tokens)| Step::Spend(which, tokens)),
        3 => (0..4_usize, any::<bool>()).prop_map(|(which, is_own)| Step::Return(which, is_own)),
        6 => prop_oneof![4 => 0..400_i64, 3 => 0..5_000_i64, 1 => 0..30_000_i64, 1 => Just(DAY_MS)].prop_map(Step::Wait),
        2 => (0..3_usize).prop_map(Step::Arrive),
        2 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..3_usize).prop_map(Step::Crash),
    ]
}

/// A lease, as known to its isolate.
struct Held {
    policy: Arc<Policy>,
    as_of: Option<i64>,
    version: usize,
    lease: Lease,
    spent: Vec<u64>,
}

fn list(version: usize) -> String {
    with_limits(&VERSIONS[version].iter().map(|&limit| LIMITS[limit]).collect::<Vec<_>>().join(","))
}

/// Each limit grants, by the object and from leases, what one permanent bucket in memory grants.
fn check_versions(is_registered: bool, steps: &[Step]) {
    let all = policy(&with_limits(&LIMITS.join(",")));
    let limits: Vec<_> = all.limits().iter().map(NamedLimit::limit).copied().collect();
    let mut buckets: Vec<_> = limits.iter().map(|limit| Model::of(vec![*limit])).collect();
    let mut version = 1;
    let mut versions = Versions::new(&list(version), is_registered);
    let mut held: Vec<Held> = Vec::new();
    for step in steps {
        let world = &mut versions.world;
        let now = world.now;
        let mut grant = |version: usize, costs: &[u64]| {
            for (&limit, &cost) in VERSIONS[version].iter().zip(costs) {
                buckets[limit].grant(Verb::Consume, &[cost], now);
            }
        };
        let count = VERSIONS[version].len();
        match *step {
            Step::Change(other) => {
                version = other;
                versions.change(&list(version));
            }
            Step::Consume(cost) => {
                if world.decided(CONSUME, vec![cost; count]).decision().is_allow() {
                    grant(version, &vec![cost; count]);
                }
            }
            Step::Lease(wanted) => {
                let given = decided(world.lease(wanted[..count].to_vec(), Vec::new())).lease;
                let (policy, as_of) = (Arc::clone(&world.policy), world.as_of);
                let of_lease = |lease| Held { policy, as_of, version, lease, spent: vec![0; count] };
                held.extend(given.map(of_lease));
            }
            Step::Spend(which, tokens) if which < held.len() => {
                let Held { version, lease, spent, .. } = &mut held[which];
                // A request may have read the clock before its lease was over.
                if (lease.from..lease.until + LEASE_GRACE_MS.cast_signed()).contains(&now) {
                    let left = lease.tokens.iter().zip(&*spent).map(|(all, spent)| tokens.min(all - spent));
                    let costs: Vec<_> = left.collect();
                    spent.iter_mut().zip(&costs).for_each(|(spent, cost)| *spent += cost);
                    grant(*version, &costs);
                }
            }
            Step::Return(which, is_own) if which < held.len() => {
                let Held { policy, as_of, lease, spent, .. } = held.swap_remove(which);
                let (other, other_as_of) = (Arc::clone(&world.policy), world.as_of);
                if is_own {
                    (world.policy, world.as_of) = (policy, as_of);
                }
                // Under another version it reports as spent all that may have been.
                let spent = if is_own { spent } else { vec![u64::MAX; count] };
                world.lease(vec![0; world.policy.limits().len()], vec![EndedLease { id: lease.id, spent }]);
                (world.policy, world.as_of) = (other, other_as_of);
            }
            Step::Spend(..) | Step::Return(..) => {}
            Step::Wait(ms) => world.now += ms,
            Step::Arrive(count) => world.arrive(count),
            Step::FlushIdle => world.flush_idle(),
            Step::Clean => world.clean(),
            Step::Crash(arrived) => world.crash(arrived),
        }
        let world = &mut versions.world;
        let now = world.now;
        for (&limit, level) in VERSIONS[version].iter().zip(world.levels()) {
            let most = buckets[limit].levels(now)[0];
            assert!(level <= most, "{step:?} left {level} of {most} of {}", LIMITS[limit]);
        }
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn versions_that_alternate_grant_no_more_than_each_limit_would_alone(
        is_registered in any::<bool>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        check_versions(is_registered, &steps);
    }
}

/// Its tokens are debited at its end, not when the alarm comes: those that have come back since are not lost with the memory.
#[test]
fn an_alarm_after_the_end_of_a_lease_loses_no_refill() {
    let policies = r#"{"p": {"rate": 1, "period": "1s", "capacity": 1000, "write_ahead": 0, "lease": "10s"}}"#;
    let mut world = World::new(&Policies::parse(policies).unwrap(), "p");
    decided(world.lease(vec![200], Vec::new()));
    world.now += 5_000;
    let id = world.decided(Action::Hold(0), vec![1]).reservation.unwrap().id;
    decided(world.ask(Action::Settle(id), None, None));
    world.now += 60_000;
    let levels = world.restarted_with(&world.policy).levels();
    world.clean();
    world.crash(usize::MAX);
    assert_eq!(world.levels(), levels);
}
