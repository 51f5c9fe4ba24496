//! The obvious rolling window: a log with the moment at which each take is back. It knows nothing of rows, blocks or merged moments.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part of this")]

#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    pub rate: u64,
    pub period_ms: i64,
    pub grains: u64,
}

/// Small rates, one by one; the largest of these; and larger ones in grains, which need not divide the period.
pub const NUMBERS: [Numbers; 9] = [
    Numbers { rate: 1, period_ms: 1_000, grains: 60 },
    Numbers { rate: 7, period_ms: 1_000, grains: 60 },
    Numbers { rate: 5, period_ms: 2_500, grains: 5 },
    Numbers { rate: 6, period_ms: 2_500, grains: 5 },
    Numbers { rate: 20, period_ms: 997, grains: 10 },
    Numbers { rate: 12, period_ms: 3_000, grains: 1 },
    Numbers { rate: 40, period_ms: 10_000, grains: 7 },
    Numbers { rate: 70, period_ms: 6_000, grains: 60 },
    Numbers { rate: 300, period_ms: 60_000, grains: 240 },
];

impl Numbers {
    pub fn grain_ms(self) -> i64 {
        if self.rate <= self.grains { 1 } else { self.period_ms.cast_unsigned().div_ceil(self.grains).cast_signed() }
    }

    pub fn back_at(self, now: i64) -> i64 {
        self.period_ms + now + (-now).rem_euclid(self.grain_ms())
    }
}

/// A take. Those of reservations are kept until they are closed.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub back_at: i64,
    /// The reservation's id, and what it took at first.
    pub of: Option<(u64, u64)>,
    pub tokens: u64,
    /// A refund took from this moment, and it is open whose tokens these were.
    pub is_refunded: bool,
    /// There was a reset since.
    pub is_reset: bool,
}

/// What a closing of such a reservation may give back to a moment, and take there.
pub type Doubt = (i64, u64, u64);

#[derive(Clone, Debug)]
pub struct Oracle {
    pub numbers: Numbers,
    pub log: Vec<Taken>,
    pub doubts: Vec<Doubt>,
}

impl Oracle {
    pub const fn new(numbers: Numbers) -> Self {
        Self { numbers, log: Vec::new(), doubts: Vec::new() }
    }

    pub fn out(&self, now: i64) -> u64 {
        self.log.iter().filter(|taken| now < taken.back_at).map(|taken| taken.tokens).sum()
    }

    pub fn left(&self, now: i64) -> u64 {
        self.numbers.rate.checked_sub(self.out(now)).expect("never more than the rate")
    }

    pub fn reset_at(&self, now: i64) -> i64 {
        self.log.iter().filter(|taken| taken.tokens > 0).map(|taken| taken.back_at).fold(now, i64::max)
    }

    /// When this cost is granted, if no reservation is closed; those expire at these moments, and give back.
    pub fn retry_at(&self, cost: u64, now: i64, expiries: &[(u64, i64)]) -> i64 {
        let expiry = |taken: &Taken| expiries.iter().find(|(id, _)| taken.of.is_some_and(|(of, _)| of == *id));
        let back_at = |taken: &Taken| expiry(taken).map_or(taken.back_at, |(_, at)| taken.back_at.min(*at));
        let out = |at: i64| self.log.iter().filter(|taken| at < back_at(taken)).map(|taken| taken.tokens).sum::<u64>();
        let moments = self.log.iter().map(back_at).filter(|&at| now < at);
        moments.filter(|&at| out(at) + cost <= self.numbers.rate).min().expect("all comes back")
    }

    pub fn take(&mut self, tokens: u64, id: Option<u64>, now: i64) {
        let back_at = self.numbers.back_at(now);
        self.log.retain(|taken| now < taken.back_at || taken.of.is_some());
        self.log.push(Taken { back_at, of: id.map(|id| (id, tokens)), tokens, is_refunded: false, is_reset: false });
    }

    /// The oldest moments first. How much of a moment was that of an open reservation is not defined.
    pub fn refund(&mut self, tokens: u64, now: i64) {
        let mut rest = tokens.min(self.out(now));
        self.log.sort_by_key(|taken| (taken.back_at, taken.of.is_some()));
        for index in 0..self.log.len() {
            let taken = &mut self.log[index];
            let back = if now < taken.back_at { taken.tokens.min(rest) } else { 0 };
            (taken.tokens, rest) = (taken.tokens - back, rest - back);
            let at = taken.back_at;
            if back > 0 {
                self.log.iter_mut().filter(|other| other.back_at == at).for_each(|other| other.is_refunded = true);
            }
        }
    }

    pub fn reset(&mut self) {
        self.log.iter_mut().for_each(|taken| (taken.tokens, taken.is_reset) = (0, true));
    }

    /// A reservation has cost this much instead, as if that had been taken in the first place. Returns what it costs, at least and at most.
    pub fn settle(&mut self, id: u64, cost: u64, is_returned: bool, now: i64) -> (u64, u64) {
        let pieces: Vec<_> = (0..self.log.len()).filter(|&index| self.is_of(index, id)).collect();
        let (mut rest, mut booked) = (cost, (0, 0));
        for (place, &index) in pieces.iter().enumerate() {
            let left = self.left(now);
            let at = self.log[index].back_at;
            let of_moment = self.log.iter().filter(|other| other.back_at == at).map(|other| other.tokens).sum::<u64>();
            let taken = &mut self.log[index];
            let (_, was) = taken.of.unwrap();
            // Tokens are given back newest first, and additional ones are taken by the newest.
            let real = if place + 1 == pieces.len() { rest } else { was.min(rest) };
            rest -= real;
            let had = if is_returned { 0 } else { was };
            let (kept, given, more) = (had.min(real), had.saturating_sub(real), real.saturating_sub(had).min(left));
            let (least, most) = if at <= now {
                (kept, real) // nothing moves
            } else if taken.is_reset || taken.is_refunded {
                let given = if taken.is_reset { 0 } else { given.min(of_moment) };
                self.doubts.extend((given > 0 || more > 0).then_some((at, given, more)));
                (kept, real)
            } else {
                taken.tokens = taken.tokens - given + more;
                (kept + more, kept + more)
            };
            booked = (booked.0 + least, booked.1 + most);
        }
        booked
    }

    pub fn is_of(&self, index: usize, id: u64) -> bool {
        self.log[index].of.is_some_and(|(of, _)| of == id)
    }

    /// Nothing is given back or taken again from here on.
    pub fn forget(&mut self, id: u64) {
        let closed = self.log.iter_mut().filter(|taken| taken.of.is_some_and(|(of, _)| of == id));
        closed.for_each(|taken| taken.of = None);
    }

    /// Takes over how the ledger has resolved a doubt.
    pub fn adopt(&mut self, (at, given, more): Doubt, left: u64, now: i64) {
        let expected = self.left(now);
        assert!((expected.saturating_sub(more)..=expected + given).contains(&left), "{left}, not {expected}: {self:?}");
        let mut given = left.saturating_sub(expected);
        self.log.sort_by_key(|taken| taken.of.is_some());
        for taken in self.log.iter_mut().filter(|taken| taken.back_at == at) {
            let back = taken.tokens.min(given);
            (taken.tokens, given) = (taken.tokens - back, given - back);
            taken.is_refunded = true;
        }
        let tokens = expected.saturating_sub(left);
        self.log.push(Taken { back_at: at, of: None, tokens, is_refunded: false, is_reset: false });
    }
}
