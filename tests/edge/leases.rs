//! Leases: many isolates, one key, and a network that delays, reorders, duplicates and loses messages. Objects and isolates crash, and
//! clocks differ.

use super::leasing::{Seen, World, signed};
use super::pairs::Mechanism;
use super::random::{self, Random};

/// Every grant, by the object or by any isolate, one bucket in memory would have made at that moment.
#[test]
fn leases_grant_only_what_one_bucket_would_have_granted() {
    let mut seen = Seen::default();
    random::cases(3_000, |random| {
        let (policy, isolates) = (policy(random), 1 + random.below(7));
        let mut world = World::new(random, &policy, isolates);
        for _ in 0..300 {
            step(&mut world);
        }
        seen.add(&world.seen);
    });
    println!("{seen:?}");
    if seen.asked > 100_000 {
        assert!(seen.granted_from_leases * 60 > seen.asked, "too few to show anything");
        assert!(seen.refused_from_leases * 200 > seen.asked, "too few to show anything");
        assert!(seen.granted * 4 > seen.asked, "too few to show anything");
    }
}

/// An event in a world of leases.
pub(crate) fn step(world: &mut World<'_>) {
    match world.random.below(40) {
        0..16 => {
            // A few isolates get most requests.
            let isolate = world.random.below(world.isolates.len());
            let isolate = if world.random.once_in(2) { 0 } else { isolate };
            for _ in 0..=world.random.below(10) {
                let costs: Vec<_> = world.policy.limits().iter().map(|_| world.random.below(3) as u64).collect();
                // Some must reach the object each time.
                let may_lease = !world.random.once_in(10);
                world.ask(isolate, &costs, may_lease);
            }
        }
        16..27 => (0..24).for_each(|_| deliver(world)),
        27..30 => {
            if let Some(index) = world.timers.iter().position(|timer| timer.at <= world.now) {
                world.ring(index);
            }
        }
        30 if world.random.once_in(10) => world.object.crash(),
        31 if world.random.once_in(10) => {
            let isolate = world.random.below(world.isolates.len());
            world.isolates[isolate].crash();
        }
        32 => {
            let isolate = world.random.below(world.isolates.len());
            world.isolates[isolate].stands_still_ms = signed(world.random.below(300));
            // Future tokens are spent when a clock says that they have been refilled.
            if world.policy.frontend().refusal_cache_ms == 0 && world.random.once_in(10) {
                world.isolates[isolate].ahead_ms += signed(world.random.below(8_000)) - 400;
            }
        }
        33 => world.object.flush(world.now),
        34 if !world.network.is_empty() => {
            let lost = world.random.below(world.network.len());
            if world.random.once_in(2) {
                let is_retryable = world.random.once_in(2);
                world.lose(lost, is_retryable);
            } else {
                world.lost_at = Some(world.now);
                world.object.stored.happened(Mechanism::Lost);
                world.network.swap_remove(lost);
            }
        }
        35 => {
            // Only requests: each call has one answer.
            let asked: Vec<_> = world.network.iter().filter(|message| message.reply.is_none()).cloned().collect();
            if let Some(again) = asked.get(world.random.below(asked.len().max(1))) {
                world.object.stored.happened(Mechanism::Again);
                world.network.push(again.clone());
            }
        }
        _ => world.now += signed([1, 10, 100, 1_000][world.random.below(4)] * (1 + world.random.below(3))),
    }
}

/// A message in flight arrives. Mostly in order: few take seconds.
fn deliver(world: &mut World<'_>) {
    if !world.network.is_empty() {
        let index = if world.random.once_in(3) { world.random.below(world.network.len()) } else { 0 };
        world.deliver(index);
    }
}

/// One to three limits.
pub(crate) fn policy(random: &mut Random) -> String {
    let limits = (0..=random.below(3)).map(|number| {
        let kind = ["token_bucket", "fixed_window"][random.below(2)];
        let (rate, period) = (1 + random.below(60), ["100ms", "1s", "7s"][random.below(3)]);
        let capacity = rate + random.below(60);
        let write_ahead = random.below(1 + capacity);
        format!(
            r#"{{"name":"{number}","kind":"{kind}","rate":{rate},"period":"{period}","capacity":{capacity},"write_ahead":{write_ahead}}}"#
        )
    });
    let limits = limits.collect::<Vec<_>>().join(",");
    let cache = ["0s", "200ms", "20s"][random.below(3)];
    let lease = ["1s", "4s", "10s"][random.below(3)];
    let max = [r#","max_lease":3"#, ""][random.below(2)];
    format!(r#"{{"p":{{"limits":[{limits}],"refusal_cache":"{cache}","lease":"{lease}"{max}}}}}"#)
}
