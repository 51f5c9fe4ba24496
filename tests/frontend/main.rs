//! The frontend from a request's arrival to its reply, over real ledgers, with a clock and a network that tests set.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "in tests")]

mod arrivals;
#[path = "../edge/asked.rs"]
mod asked;
mod bans;
mod callers;
#[path = "../chance/mod.rs"]
mod chance;
mod clocks;
mod counts;
#[allow(dead_code, reason = "of the ledger's tests, which need more of it")]
#[path = "../ledger/disk.rs"]
mod disk;
mod environment;
mod events;
mod failures;
mod key_service;
mod kinds;
mod leases;
mod marks;
mod memory;
mod notices;
mod operators;
#[path = "../pairs/mod.rs"]
mod pairs;
mod printed;
#[path = "../edge/random.rs"]
mod random;
mod registry;
mod registry_service;
mod repeats;
mod rights;
mod sessions;
mod shards;
mod soft;
#[path = "../chance/split_mix.rs"]
mod split_mix;
mod world;
