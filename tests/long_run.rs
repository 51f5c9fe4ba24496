//! Random steps against the oracle. Limits are small, ordinary or as wide as accepted; requests, pauses and steps back of
//! the clock keep close to what matters to the bucket at hand.

mod anywhere;
mod chance;
mod oracle;
#[path = "chance/split_mix.rs"]
mod split_mix;

use anywhere::test;
use num_bigint::BigInt;
use oracle::{Model, Whole, tokens_of};
use split_mix::Random;
use tollgate::limit::{
    Carry, Config, ConfigError, Decision, Kind, Limit, MAX_SPAN_MS, MAX_STEP_BACK_MS, MAX_TOKENS, Verb,
};

/// How long a bucket is followed before another limit is tried.
const STEPS_PER_BUCKET: u64 = 100;

#[test]
fn decisions_levels_and_waits_match_exact_rationals_in_the_long_run() {
    let (seed, buckets) = chance::chosen(3_000);
    for bucket in 0..buckets {
        follow(seed, bucket);
    }
}

/// Follows one bucket beside the oracle.
fn follow(seed: u64, bucket: u64) {
    let mut random = Random(Random(seed).next() ^ Random(bucket).next());
    // Wide numbers need a wide oracle, which is slow, so they are rare.
    if random.below(50) == 0 {
        follow_with::<BigInt>(&mut random, true);
    } else {
        follow_with::<i128>(&mut random, false);
    }
}

fn follow_with<T: Whole>(random: &mut Random, is_wide: bool) {
    let mut config = random.config(is_wide);
    let mut limit = Limit::new(&config).expect("made to be accepted");
    let (mut now, phase) = (1_700_000_000_000, random.next());
    let mut state = limit.new_state(now, phase);
    let mut model = Model::<T>::new(config, now, phase);
    for step in 0..STEPS_PER_BUCKET {
        now += random.pause_ms(&limit, &config);
        if random.below(40) == 0 {
            config = random.config(is_wide);
            let how = random.one_of([Carry::AsIs, Carry::Proportional, Carry::Additive, Carry::Reset]);
            let new = Limit::new(&config).expect("made to be accepted");
            state = new.carry(&limit, state, how, now, phase);
            model = model.carry(config, how, now, phase);
            limit = new;
        }
        let (cost, verb) = (random.cost(&config, limit.remaining(&state, now)), random.verb());
        let before = state;
        let (decision, after) = limit.decide(before, now, cost, verb);
        state = after;
        let expected = model.ask(now, cost, verb);
        let is_same = decision == expected
            && tokens_of::<T>(state, &config) == model.tokens
            && limit.remaining(&state, now) == model.remaining(now)
            && is_honest(&limit, state, now, cost, verb, decision);
        assert!(
            is_same,
            "step {step}: {verb:?} of {cost} at {now}\n  limit    {config:?}\n  before   {before:?}\n  said     {decision:?}, \
             leaving {state:?}\n  expected {expected:?}, leaving {} tokens",
            model.tokens
        );
    }
}

/// A wait ends when it says, and not a millisecond before.
fn is_honest(
    limit: &Limit,
    state: tollgate::limit::State,
    now: i64,
    cost: u64,
    verb: Verb,
    decision: Decision,
) -> bool {
    let Decision::Wait { retry_at } = decision else { return true };
    let is_allowed = |at| limit.decide(state, at, cost, verb).0.is_allow();
    retry_at > now && is_allowed(retry_at) && !is_allowed(retry_at - 1)
}

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<T: Copy, const N: usize>(&mut self, values: [T; N]) -> T {
        values[usize::try_from(self.below(N as u64)).expect("below a usize")]
    }

    /// An accepted limit: numbers that are too large are clipped to the largest that the error names.
    fn config(&mut self, is_wide: bool) -> Config {
        let kind = self.one_of([Kind::TokenBucket, Kind::FixedWindow, Kind::FirstUseWindow]);
        let mut numbers = |small: u64, ordinary: u64, widest: u64| match (is_wide, self.below(2)) {
            (true, 0) => widest - self.below(4).min(widest),
            (true, _) => self.below(widest).max(1),
            (false, 0) => self.below(small),
            (false, _) => self.below(ordinary),
        };
        let rate = numbers(8, 10_000, MAX_TOKENS);
        let period_ms = numbers(8, 100_000, MAX_SPAN_MS).max(1);
        let (capacity, max_debt) = (numbers(8, 20_000, MAX_TOKENS), numbers(8, 20_000, MAX_TOKENS));
        let offset_ms = (kind == Kind::FixedWindow && self.below(2) == 0).then(|| self.below(period_ms));
        let mut config = Config {
            kind,
            rate,
            period_ms,
            capacity,
            max_debt,
            initial: None,
            offset_ms,
            calendar: None,
            is_soft: false,
        };
        while let Err(error) = Limit::new(&config) {
            match error {
                ConfigError::CapacityTooLarge { max, .. } => config.capacity = max - self.below(3).min(max),
                ConfigError::MaxDebtTooLarge { max, .. } => config.max_debt = max,
                other => panic!("{other}: {config:?}"),
            }
        }
        let has_initial = kind != Kind::FirstUseWindow && self.below(4) == 0;
        config.initial = has_initial.then(|| self.below(config.capacity + 1));
        config
    }

    /// Mostly none or a little, sometimes to the next refill or far beyond, rarely backwards.
    fn pause_ms(&mut self, limit: &Limit, config: &Config) -> i64 {
        let tick = |ms: u64| i64::try_from(ms).expect("a period fits");
        match self.below(16) {
            0..=4 => 0,
            5..=9 => tick(self.below(5)),
            10..=12 => tick(self.below(config.period_ms.min(1 << 40)) + 1),
            13 => tick(limit.config().period_ms.min(1 << 45)) - 1 + tick(self.below(3)),
            14 => tick(self.below(1 << 40)),
            _ => -self.one_of([1, 7, MAX_STEP_BACK_MS - 1, MAX_STEP_BACK_MS, MAX_STEP_BACK_MS + 1, 10_000_000]),
        }
    }

    /// Close to the level, to the capacity, and above it.
    fn cost(&mut self, config: &Config, remaining: u64) -> u64 {
        let near = |value: u64, distance: u64| value.saturating_add(distance).saturating_sub(1);
        match self.below(12) {
            0 => 0,
            1..=4 => 1 + self.below(3),
            5..=7 => near(remaining, self.below(3)),
            8 => near(config.capacity, self.below(3)),
            9 => near(config.capacity + config.max_debt, self.below(3)),
            10 => self.below(config.capacity + config.max_debt + 2),
            _ => self.one_of([MAX_TOKENS, u64::MAX]),
        }
    }

    fn verb(&mut self) -> Verb {
        let max_wait_ms = match self.below(4) {
            0 => None,
            1 => Some(0),
            2 => Some(self.below(20)),
            _ => Some(self.below(1 << 30)),
        };
        match self.below(16) {
            0..=6 => Verb::Consume,
            7..=8 => Verb::Reserve { max_wait_ms },
            9..=10 => Verb::Borrow { max_wait_ms },
            11 => Verb::Charge,
            12..=13 => Verb::ConsumeUpTo,
            14 => Verb::Refund,
            _ => Verb::Reset,
        }
    }
}
