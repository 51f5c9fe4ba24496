//! Division by a number that rarely changes.
//!
//! A refusal says when to retry, so it divides the missing drops by the refill. A 64-bit division takes up to 90 cycles
//! on processors still in use, and a limit always divides by the same number: multiplying by its reciprocal, computed
//! once, gives the same quotient.

use core::num::NonZeroU64;

/// A divisor, prepared for many divisions.
#[cfg(not(target_family = "wasm"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    /// `⌊(2^(64 + shift) − 1) / divisor⌋`, which is at least 2⁶³.
    reciprocal: u64,
    /// `⌊log₂ divisor⌋`.
    shift: u32,
}

#[cfg(not(target_family = "wasm"))]
impl Divisor {
    pub(super) fn new(divisor: NonZeroU64) -> Self {
        let shift = divisor.ilog2();
        let numerator = u128::MAX >> 64_u32.saturating_sub(shift);
        let reciprocal = numerator.checked_div(divisor.get().into()).unwrap_or(0);
        Self { reciprocal: u64::try_from(reciprocal).unwrap_or(u64::MAX), shift } // fits, as 2^shift <= divisor
    }

    /// `⌈dividend / divisor⌉` for a dividend from 1 to 2⁶³.
    ///
    /// Write `e = 2^(64 + shift) − reciprocal · divisor`, from 1 to `divisor`, and `dividend = q · divisor + r` with `r`
    /// from 1 to `divisor`, so that the answer is `q + 1`. Then `dividend · reciprocal / 2^(64 + shift)` is
    /// `q + (r − dividend · e / 2^(64 + shift)) / divisor`. The term subtracted from `r` is above 0, and at most 1
    /// because `dividend · e <= 2⁶³ · divisor < 2^(64 + shift)`. So the whole is at least `q` and less than `q + 1`.
    #[inline]
    pub(super) fn div_ceil(self, dividend: u64) -> u64 {
        let (_, high) = dividend.carrying_mul(self.reciprocal, 0);
        high.wrapping_shr(self.shift).wrapping_add(1)
    }
}

/// A divisor. WebAssembly divides in one instruction, but has none for the upper half of a product.
#[cfg(target_family = "wasm")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor(NonZeroU64);

#[cfg(target_family = "wasm")]
impl Divisor {
    pub(super) const fn new(divisor: NonZeroU64) -> Self {
        Self(divisor)
    }

    /// `⌈dividend / divisor⌉` for a dividend from 1 to 2⁶³.
    #[inline]
    pub(super) const fn div_ceil(self, dividend: u64) -> u64 {
        dividend.div_ceil(self.0.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dividend: u64, divisor: u64) {
        let prepared = NonZeroU64::new(divisor).map(Divisor::new);
        let quotient = prepared.map(|prepared| prepared.div_ceil(dividend));
        assert_eq!(quotient, Some(dividend.div_ceil(divisor)), "{dividend} / {divisor}");
    }

    #[test]
    fn small_numbers_divide_exactly() {
        for divisor in 1..=1_000 {
            for dividend in 1..=3_000 {
                check(dividend, divisor);
            }
        }
    }

    /// Around every power of two, and for each such divisor around its smallest and its largest multiples.
    #[test]
    fn numbers_at_the_boundaries_divide_exactly() {
        let around = |number: u64| [number.saturating_sub(1), number, number.saturating_add(1)];
        let powers = || (0..64).flat_map(|shift| around(1 << shift)).chain([u64::MAX - 1, u64::MAX]);
        for divisor in powers().filter(|&divisor| divisor > 0) {
            let most = LARGEST / divisor;
            let multiples = (1..=3).chain(most.saturating_sub(2)..=most);
            let multiples = multiples.flat_map(|factor| around(divisor.saturating_mul(factor)));
            for dividend in powers().chain(multiples).filter(|dividend| (1..=LARGEST).contains(dividend)) {
                check(dividend, divisor);
            }
        }
    }

    /// Numbers of every size alike, by xorshift64*, and the nearest multiples: a quotient that is wrong at all is wrong there.
    #[test]
    fn random_numbers_divide_exactly() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            random ^= random >> 12;
            random ^= random << 25;
            random ^= random >> 27;
            let number = random.wrapping_mul(0x2545_f491_4f6c_dd1d);
            (number >> (random % 64)).max(1)
        };
        for _ in 0..1_000_000 {
            let (dividend, divisor) = (next().min(LARGEST), next());
            check(dividend, divisor);
            let multiple = dividend - dividend % divisor;
            for dividend in [multiple, multiple + 1].into_iter().filter(|dividend| (1..=LARGEST).contains(dividend)) {
                check(dividend, divisor);
            }
        }
    }

    const LARGEST: u64 = 1 << 63;
}
