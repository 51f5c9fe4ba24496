//! Leases and refusals from memory together: requests that are larger than most, and tokens given back.

use tollgate::limit::Verb;

use super::leases::{policy, step};
use super::leasing::{Seen, World, signed};
use super::random;

/// One bucket would have made every grant, and the object would refuse whatever is refused from memory, for as long, except for
/// tokens given back within the time for which a refusal is kept.
#[test]
fn isolates_with_leases_and_refusals_grant_what_one_bucket_would_and_refuse_what_the_object_would() {
    let mut seen = Seen::default();
    random::cases(1_000, |random| {
        let (policy, isolates) = (policy(random), 1 + random.below(7));
        let mut world = World::new(random, &policy, isolates);
        for _ in 0..300 {
            if world.random.once_in(16) {
                ask_for_more(&mut world);
            } else {
                step(&mut world);
            }
        }
        seen.add(&world.seen);
    });
    println!("{seen:?}");
    if seen.asked > 100_000 {
        assert!(seen.granted_from_leases * 60 > seen.asked, "too few to show anything");
        assert!(seen.refused_from_leases * 200 > seen.asked, "too few to show anything");
        assert!(seen.refused_from_memory * 50 > seen.asked, "too few to show anything");
        assert!(seen.refused_wrongly * 1_000 > seen.refused_from_memory, "too few to show anything");
    }
}

/// With no other isolate, waits from memory include all grants: answers come in any order, and soon.
#[test]
fn a_lone_leasing_isolates_waits_include_all_that_it_has_granted() {
    let mut seen = Seen::default();
    random::cases(1_000, |random| {
        let policy = policy(random);
        let mut world = World::new(random, &policy, 1);
        for _ in 0..300 {
            match world.random.below(8) {
                0..3 => {
                    let costs: Vec<_> = world.policy.limits().iter().map(|_| world.random.below(3) as u64).collect();
                    world.ask(0, &costs, true);
                }
                3 => ask_for_more(&mut world),
                4 => world.now += signed([1, 10, 100, 1_000][world.random.below(4)]),
                5 => {
                    if let Some(index) = world.timers.iter().position(|timer| timer.at <= world.now) {
                        world.ring(index);
                    }
                }
                _ => {
                    while !world.network.is_empty() {
                        let index = world.random.below(world.network.len());
                        world.deliver(index);
                        world.now += signed(world.random.below(3));
                    }
                }
            }
        }
        seen.add(&world.seen);
    });
    println!("{seen:?}");
    if seen.asked > 100_000 {
        assert!(seen.checked_alone * 300 > seen.asked, "too few to show anything");
    }
}

/// Tokens that an isolate has given back itself, as far as it knows, make no refusal from memory wrong.
#[test]
fn a_lone_isolate_refuses_nothing_from_memory_that_it_gave_back() {
    let mut seen = Seen::default();
    random::cases(1_000, |random| {
        let policy = policy(random);
        let mut world = World::new(random, &policy, 1);
        for _ in 0..300 {
            let capacities = world.policy.limits().iter().map(|limit| limit.limit().config().capacity);
            let capacities: Vec<_> = capacities.collect();
            let half: Vec<_> = capacities.iter().map(|most| most.div_ceil(2)).collect();
            match world.random.below(16) {
                0..4 => world.ask_object(0, Verb::Borrow { max_wait_ms: Some(0) }, &capacities),
                4..6 => world.ask_object(0, Verb::Borrow { max_wait_ms: Some(0) }, &half),
                6 => world.ask_object(0, Verb::Refund, &half),
                _ if world.network.is_empty() => {}
                step => {
                    let index = world.random.below(world.network.len());
                    if step == 7 && world.random.once_in(2) {
                        world.lose(index, false);
                    } else {
                        world.deliver(index);
                    }
                }
            }
            world.now += signed(world.random.below(4));
        }
        seen.add(&world.seen);
    });
    println!("{seen:?}");
    if seen.calls > 100_000 {
        assert!(seen.refused_from_memory * 20 > seen.calls, "too few to show anything");
        assert!(seen.refused_wrongly * 200 > seen.refused_from_memory, "too few to show anything");
    }
}

/// A request that is larger than most, or of another kind.
fn ask_for_more(world: &mut World<'_>) {
    let isolate = world.random.below(world.isolates.len());
    let capacities = world.policy.limits().iter().map(|limit| limit.limit().config().capacity).collect::<Vec<_>>();
    let mut up_to = |share: u64| {
        let random = |most: u64| world.random.below(usize::try_from(most / share + 1).unwrap()) as u64;
        capacities.iter().copied().map(random).collect::<Vec<_>>()
    };
    let (large, small) = (up_to(1), up_to(8));
    match world.random.below(12) {
        0 => world.ask_object(isolate, Verb::Refund, &small),
        1 if world.random.once_in(4) => world.ask_object(isolate, Verb::Reset, &vec![0; small.len()]),
        2..4 => world.ask_object(isolate, Verb::ConsumeUpTo, &small),
        4..6 => world.ask_object(isolate, Verb::Borrow { max_wait_ms: Some(0) }, &large),
        _ => world.ask(isolate, &large, true),
    }
}
