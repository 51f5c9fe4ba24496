//! Numbers for one case of a law.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::chance;
pub(crate) use super::split_mix::Random;

impl Random {
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
