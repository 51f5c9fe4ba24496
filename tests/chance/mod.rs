//! Repeatable randomness. A law tries the same cases on every machine, unless the environment chooses others:
//!
//! * `TOLLGATE_SEED`, a number, chooses the cases;
//! * `TOLLGATE_CASES` says how many.
//!
//! `npm run soak` sets both, repeatedly. A failing law has printed them.

use std::env;

use proptest::test_runner::{Config, RngSeed};

/// The seed on every machine.
const SEED: u64 = 7;

/// A browser tries fewer cases of each law: one in this many.
const IN_BROWSER: u64 = 5;

/// The seed, and how many cases to try if the law decides that.
pub(crate) fn chosen(cases: u64) -> (u64, u64) {
    let cases = if cfg!(target_family = "wasm") { cases.div_ceil(IN_BROWSER) } else { cases };
    let (seed, cases) = (number("TOLLGATE_SEED").unwrap_or(SEED), number("TOLLGATE_CASES").unwrap_or(cases));
    println!("chance: TOLLGATE_SEED={seed} TOLLGATE_CASES={cases}"); // read by scripts/soak.mjs
    (seed, cases)
}

/// The same for proptest.
#[allow(dead_code, reason = "not every test program has laws for proptest")]
pub(crate) fn config(cases: u32) -> Config {
    let (seed, cases) = chosen(cases.into());
    let cases = u32::try_from(cases).expect("TOLLGATE_CASES fits 32 bits");
    Config { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() }
}

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, not {value:?}")))
}
