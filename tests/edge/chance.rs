//! Chance that can be repeated: `TOLLGATE_SEED` chooses it, `TOLLGATE_CASES` how much of it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// SplitMix64: small, and every seed is a good one.
pub struct Chance(u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of the numbers below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Runs `case` so often, unless the environment says otherwise. Of one that fails it says how to run it alone.
pub fn cases(count: u64, mut case: impl FnMut(&mut Chance)) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a whole number"));
    let first = number("TOLLGATE_SEED").unwrap_or(1);
    for seed in first..first + number("TOLLGATE_CASES").unwrap_or(count) {
        let mut chance = Chance(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut chance))) {
            eprintln!("repeat with TOLLGATE_SEED={seed} TOLLGATE_CASES=1");
            resume_unwind(panic);
        }
    }
}
