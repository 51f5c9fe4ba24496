//! Numbers for one case of a law.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::chance;

/// `SplitMix64`: small, and every seed is a good one.
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of the numbers below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Runs `case` this many times, unless the environment says otherwise, and reports the one that fails.
pub(crate) fn cases(count: u64, mut case: impl FnMut(&mut Random)) {
    let (seed, count) = chance::chosen(count);
    for number in 0..count {
        let mut random = Random(Random(seed).next() ^ number);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(&mut random))) {
            eprintln!("case {number} of seed {seed}");
            resume_unwind(panic);
        }
    }
}
