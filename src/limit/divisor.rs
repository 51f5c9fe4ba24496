//! Division by a number that never changes.
//!
//! A refusal says when to retry, so it divides the missing drops by the refill. A 64-bit division takes up to 90 cycles
//! on processors still in use, and a limit always divides by the same number: multiplying by its reciprocal, computed
//! once, gives the same quotient.

use core::num::NonZeroU64;

/// A divisor, prepared for many divisions. 0 is allowed, and divides nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divisor {
    divisor: u64,
    /// `⌊(2⁶⁴ − 1) / divisor⌋`, or 0. WebAssembly has no instruction for the upper half of a product, but one to divide.
    #[cfg(not(target_family = "wasm"))]
    reciprocal: u64,
}

impl Divisor {
    pub(super) fn new(divisor: u64) -> Self {
        Self {
            divisor,
            #[cfg(not(target_family = "wasm"))]
            reciprocal: u64::MAX.checked_div(divisor).unwrap_or(0),
        }
    }

    /// `⌈dividend / divisor⌉` for a dividend of at least 1, without a division; `None` when that might not be exact, and
    /// for a divisor of 0.
    ///
    /// Write `e = 2⁶⁴ − reciprocal · divisor`, which is from 1 to `divisor`, and `dividend = q · divisor + r` with `r`
    /// from 1 to `divisor`, so that the answer is `q + 1`. Then `dividend · reciprocal / 2⁶⁴` is
    /// `q + (r − dividend · e / 2⁶⁴) / divisor`. For a dividend up to the reciprocal, `dividend · e` is less than 2⁶⁴, so
    /// what is subtracted from `r` is above 0 and below 1, and the whole is at least `q` and less than `q + 1`.
    #[cfg(not(target_family = "wasm"))]
    #[inline]
    pub(super) fn fast_div_ceil(self, dividend: u64) -> Option<u64> {
        if dividend > self.reciprocal {
            return None;
        }
        let (_, high) = dividend.carrying_mul(self.reciprocal, 0);
        Some(high.wrapping_add(1))
    }

    #[cfg(target_family = "wasm")]
    #[inline]
    pub(super) fn fast_div_ceil(self, dividend: u64) -> Option<u64> {
        NonZeroU64::new(self.divisor).map(|divisor| dividend.div_ceil(divisor.get()))
    }

    /// `⌈dividend / divisor⌉` for a dividend of at least 1; `None` for a divisor of 0.
    pub(super) fn div_ceil(self, dividend: u64) -> Option<u64> {
        let slow = || NonZeroU64::new(self.divisor).map(|divisor| dividend.div_ceil(divisor.get()));
        self.fast_div_ceil(dividend).or_else(slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dividend: u64, divisor: u64) {
        let prepared = Divisor::new(divisor);
        let quotient = dividend.div_ceil(divisor);
        assert_eq!(prepared.div_ceil(dividend), Some(quotient), "{dividend} / {divisor}");
        // Without a division if, and only if, the product of both is below 2⁶⁴.
        let is_fast = dividend.checked_mul(divisor).is_some();
        assert_eq!(prepared.fast_div_ceil(dividend), is_fast.then_some(quotient), "{dividend} / {divisor}");
    }

    #[test]
    fn nothing_divides_by_zero() {
        for dividend in [1, 2, u64::MAX] {
            assert_eq!(Divisor::new(0).div_ceil(dividend), None);
            assert_eq!(Divisor::new(0).fast_div_ceil(dividend), None);
        }
    }

    #[test]
    fn small_numbers_divide_exactly() {
        for divisor in 1..=1_000 {
            for dividend in 1..=3_000 {
                check(dividend, divisor);
            }
        }
    }

    /// Around every power of two; for each such divisor around its smallest multiples, its largest, and those where
    /// the fast division ends.
    #[test]
    fn numbers_at_the_boundaries_divide_exactly() {
        let around = |number: u64| [number.saturating_sub(1), number, number.saturating_add(1)];
        let powers = || (0..64).flat_map(|shift| around(1 << shift)).chain([u64::MAX - 1, u64::MAX]);
        for divisor in powers().filter(|&divisor| divisor > 0) {
            let (most, half) = (u64::MAX / divisor, u64::MAX / divisor / divisor);
            let multiples =
                (0..=2).flat_map(|below| [1 + below, half.saturating_sub(below), most.saturating_sub(below)]);
            let multiples = multiples.flat_map(|factor| around(divisor.saturating_mul(factor)));
            let dividends = powers().chain(multiples).chain(around(most));
            for dividend in dividends.filter(|&dividend| dividend > 0) {
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
            let (dividend, divisor) = (next(), next());
            let multiple = dividend - dividend % divisor;
            check(dividend, divisor);
            check(multiple.max(1), divisor);
            check(multiple.saturating_add(1), divisor);
        }
    }
}
