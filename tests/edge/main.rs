//! Batches over several keys: all or none, whatever is lost, late or crashes.

mod asked;
#[path = "../chance/mod.rs"]
mod chance;
mod crowds;
#[allow(dead_code, reason = "of the ledger's tests, which need more of it")]
#[path = "../ledger/disk.rs"]
mod disk;
mod frontend;
#[path = "../worlds/key.rs"]
mod key;
mod lease_terms;
mod lease_worth;
mod leases;
mod leasing;
mod memories;
#[path = "../pairs/mod.rs"]
mod pairs;
mod random;
mod refusals;
mod shards;
#[path = "../chance/split_mix.rs"]
mod split_mix;
mod steps;
mod stored;
mod world;

use std::collections::BTreeMap;

use world::{Ended, World};

/// Every order of answers, failures of any call in any step, deadlines, crashes of objects and of frontends, several batches
/// and several attempts of one batch at once.
#[test]
fn a_batch_takes_all_or_none() {
    let mut seen: BTreeMap<(Ended, bool), u64> = BTreeMap::new();
    random::cases(20_000, |random| {
        let (steps, clients) = (random.below(400), 1 + random.below(7));
        let mut world = World::new(random);
        world.send_new();
        let mut sent = 1;
        for step in 0..steps {
            if step % 40 == 39 && sent < clients {
                world.send_new();
                sent += 1;
            } else if step % 50 == 49 {
                world.send_again();
            }
            world.step();
        }
        for tried in world.finish() {
            *seen.entry(tried).or_default() += 1;
        }
    });
    // How attempts ended, and whether their batch was taken from only some keys.
    println!("{seen:?}");
    let count = |tried| seen.get(&tried).copied().unwrap_or_default();
    let all = seen.values().sum::<u64>();
    if all > 10_000 {
        for ended in [Ended::Granted, Ended::Refused, Ended::NotDone, Ended::Failed, Ended::Crashed] {
            assert!(count((ended, false)) * 100 > all, "too few of {ended:?} to show anything");
        }
        assert!(count((Ended::Failed, true)) * 4 < count((Ended::Failed, false)), "most are undone");
    }
}
