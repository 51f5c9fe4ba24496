//! Batches over several keys: all or none, whatever is lost, late or crashes.

mod chance;
mod world;

use std::collections::BTreeMap;

use world::{Ended, World};

/// Every order of answers, failures of any call in any step, deadlines, crashes of objects and of frontends, several batches
/// and several tries of one batch at once.
#[test]
fn a_batch_takes_all_or_none() {
    let mut seen: BTreeMap<(Ended, bool), u64> = BTreeMap::new();
    chance::cases(20_000, |chance| {
        let (steps, clients) = (chance.below(400), 1 + chance.below(7));
        let mut world = World::new(chance);
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
    println!("{seen:?}");
}
