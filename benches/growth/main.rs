//! How time and memory grow with keys, limits, open reservations and concurrent callers, and what a flood of distinct keys does: the real
//! frontends, objects and registry, natively, on a virtual clock. Memory is what is requested from the allocator.
//!
//! ```sh
//! npm run growth -- native  # some seconds, and a few minutes for the first build
//! ```
//!
//! It fails if something bounded has grown.
#![expect(clippy::cast_precision_loss, reason = "counts of some millions, for people to read")]

use std::process::ExitCode;

mod callers;
#[path = "../decisions/counting.rs"]
mod counting;
#[allow(dead_code, reason = "of the ledger's tests, which need more of it")]
#[path = "../../tests/ledger/disk.rs"]
mod disk;
mod flood;
#[path = "../cost/frontend.rs"]
mod frontend;
#[path = "../../tests/worlds/key.rs"]
mod key;
mod keys;
mod limits;
mod measure;
mod object;
mod overrides;
mod reservations;
#[path = "../../tests/chance/split_mix.rs"]
mod split_mix;

#[global_allocator]
static HEAP: counting::Counting = counting::Counting;

fn main() -> ExitCode {
    keys::of_an_isolate();
    keys::of_a_machine();
    overrides::of_keys();
    limits::of_a_policy();
    reservations::of_a_key();
    callers::of_an_object();
    callers::of_recent_batches();
    let missed = flood::of_keys();
    for bound in &missed {
        println!("missed: {bound}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
