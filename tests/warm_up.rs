//! The pace after a warm-up, beside Guava's own answers and beside Guava's formulas in exact rationals.

mod anywhere;
mod chance;

use std::time::Duration;

use anywhere::test;
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use proptest::prelude::*;
use serde::Deserialize;
use tollgate::limit::{ConfigError, Decision, MAX_STEP_BACK_MS, WarmUp, WarmUpState};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: String,
    paces: Vec<Pace>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pace {
    rate: u64,
    period_ms: u64,
    warm_up_ms: u64,
    calls: Vec<(i64, u64, i64)>,
}

fn pace(rate: u64, period_ms: u64, warm_up_ms: u64) -> WarmUp {
    WarmUp::new(rate, Duration::from_millis(period_ms), Duration::from_millis(warm_up_ms)).unwrap()
}

/// The moment to start.
fn start(decision: Decision) -> i64 {
    match decision {
        Decision::Allow { ready_at, .. } => ready_at,
        refused => panic!("{refused:?}"),
    }
}

/// A start is the first millisecond at or after Guava's, which cuts off each wait's fraction of a microsecond.
#[test]
fn starts_are_those_of_guava() {
    let file: File = serde_json::from_str(include_str!("warm_up.json")).unwrap();
    for Pace { rate, period_ms, warm_up_ms, calls } in file.paces {
        let pace = pace(rate, period_ms, warm_up_ms);
        let mut state = pace.new_state(0);
        for (cut_off, (now, tokens, guava_us)) in (0..).zip(calls) {
            let found = start(pace.borrow(&mut state, now, tokens, None));
            let late_us = found * 1_000 - guava_us;
            assert!(
                (0..1_000 + cut_off).contains(&late_us),
                "{rate} per {period_ms} ms, {now}: {found}, not {guava_us}"
            );
        }
    }
}

/// The first token costs 6666 + 1 / 1 100 139 ms, which is less than a unit above a whole millisecond.
#[test]
fn no_start_is_early_by_a_fraction_of_a_unit() {
    let pace = pace(1, 2_225, 1_100_139);
    let mut state = pace.new_state(0);
    assert_eq!([0; 2].map(|now| start(pace.borrow(&mut state, now, 1, None))), [0, 6_667]);
}

/// Guava's `SmoothWarmingUp`, in its own words, but with fractions in place of floating point.
struct Model {
    interval: BigRational,
    max_permits: BigRational,
    threshold_permits: BigRational,
    slope: BigRational,
    stored_permits: BigRational,
    next_free: BigRational,
}

fn whole(number: i64) -> BigRational {
    BigRational::from_integer(number.into())
}

impl Model {
    fn new(rate: u64, period_ms: u64, warm_up_ms: u64, now: i64) -> Self {
        let interval = BigRational::new(period_ms.into(), rate.into());
        let warm_up = BigRational::from_integer(warm_up_ms.into());
        let cold_interval = &interval * whole(3);
        let threshold_permits = &warm_up / &interval / whole(2);
        let max_permits = &threshold_permits + &warm_up * whole(2) / (&interval + &cold_interval);
        let slope = (cold_interval - &interval) / (&max_permits - &threshold_permits);
        let stored_permits = max_permits.clone();
        Self { interval, max_permits, threshold_permits, slope, stored_permits, next_free: whole(now) }
    }

    fn reserve(&mut self, now: i64, permits: u64) -> BigRational {
        let now = whole(now);
        // A clock of whole milliseconds shows no idle time in the one of the start.
        if now > self.next_free.ceil() {
            // Its `coolDownIntervalMicros` is `warm_up / max_permits`, which is the interval.
            let cooled = (&now - &self.next_free) / &self.interval;
            self.stored_permits = (&self.stored_permits + cooled).min(self.max_permits.clone());
            self.next_free = now;
        }
        let start = self.next_free.clone();
        let permits = BigRational::from_integer(permits.into());
        let stored = permits.clone().min(self.stored_permits.clone());
        let fresh = permits - &stored;
        self.next_free += self.stored_permits_to_wait_time(stored.clone()) + fresh * &self.interval;
        self.stored_permits -= stored;
        start
    }

    fn stored_permits_to_wait_time(&self, mut take: BigRational) -> BigRational {
        let above = &self.stored_permits - &self.threshold_permits;
        let mut wait = BigRational::zero();
        if above.is_positive() {
            let taken = above.clone().min(take.clone());
            let time = |permits: &BigRational| &self.interval + permits * &self.slope;
            wait = &taken * (time(&above) + time(&(&above - &taken))) / whole(2);
            take -= taken;
        }
        wait + take * &self.interval
    }
}

/// A rate, a period and a warm-up.
fn numbers() -> impl Strategy<Value = (u64, u64, u64)> {
    let small = (1..2_000_u64, 1..5_000_u64, 1..20_000_u64);
    let large = (1..1_u64 << 30, 1..1_u64 << 30, 1..4_000_u64);
    prop_oneof![small, large]
}

/// A time before a request, and its tokens.
fn requests() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let idle_ms = prop_oneof![Just(0), 1..20_i64, 1..5_000_i64];
    prop::collection::vec((idle_ms, prop_oneof![0..4_u64, 0..3_000_u64]), 1..30)
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn a_start_is_that_of_guavas_formulas_rounded_up(
        (rate, period_ms, warm_up_ms) in numbers(),
        requests in requests(),
        began in -1_000_000_000_000..2_000_000_000_000_i64,
    ) {
        let pace = pace(rate, period_ms, warm_up_ms);
        let (mut state, mut model) = (pace.new_state(began), Model::new(rate, period_ms, warm_up_ms, began));
        let mut now = began;
        // A request rounds its cost up by less than a millionth of an interval; what that takes from idle time is at most as much again.
        let grain = BigRational::new(period_ms.into(), rate.into()) / whole(1_000_000);
        let (mut most, mut has_idled) = (BigRational::zero(), false);
        for (idle_ms, tokens) in requests {
            now += idle_ms;
            has_idled |= whole(now) > model.next_free;
            let (found, exact) = (start(pace.borrow(&mut state, now, tokens, None)), model.reserve(now, tokens));
            // Until then nothing can be early.
            let least = if has_idled { &exact - &most } else { exact.clone() };
            let range = least.ceil().to_integer()..=(&exact + &most).ceil().to_integer();
            prop_assert!(range.contains(&BigInt::from(found)), "{found} is not {exact}");
            most += &grain + &grain;
        }
    }

    /// However they are divided among requests, tokens cost the same.
    #[test]
    fn the_cost_of_tokens_at_once_is_that_of_one_after_the_other(
        (rate, period_ms, warm_up_ms) in numbers(),
        tokens in 1..60_u64,
    ) {
        let pace = pace(rate, period_ms, warm_up_ms);
        let (mut at_once, mut one_by_one) = (pace.new_state(0), pace.new_state(0));
        start(pace.borrow(&mut at_once, 0, tokens, None));
        for _ in 0..tokens {
            start(pace.borrow(&mut one_by_one, 0, 1, None));
        }
        let [a, b] = [&mut at_once, &mut one_by_one].map(|state| start(pace.borrow(state, 0, 0, None)));
        prop_assert!((a..=a + 1).contains(&b), "{a} {b}");
    }

    #[test]
    fn a_wait_is_refused_while_it_is_too_long_and_costs_nothing(
        (rate, period_ms, warm_up_ms) in numbers(),
        requests in requests(),
        max_wait_ms in 0..10_000_u64,
    ) {
        let pace = pace(rate, period_ms, warm_up_ms);
        let (mut state, mut now) = (pace.new_state(0), 0);
        for (idle_ms, tokens) in requests {
            now += idle_ms;
            let before = state;
            match pace.borrow(&mut state, now, tokens, Some(max_wait_ms)) {
                Decision::Allow { ready_at, .. } => {
                    prop_assert!(ready_at >= now && ready_at.abs_diff(now) <= max_wait_ms);
                }
                Decision::Wait { retry_at } => {
                    prop_assert!(retry_at > now);
                    prop_assert_eq!(state, before);
                    for (at, is_granted) in [(retry_at - 1, false), (retry_at, true)] {
                        let mut copy = state;
                        prop_assert_eq!(pace.borrow(&mut copy, at, tokens, Some(max_wait_ms)).is_allow(), is_granted);
                    }
                }
                Decision::Never { .. } => prop_assert!(false, "every cost passes"),
            }
        }
    }
}

/// 2 per second after a warm-up of 4 seconds, after its first 3 tokens, the last two of them asked for at 10 000.
fn used() -> (WarmUp, WarmUpState) {
    let pace = pace(2, 1_000, 4_000);
    let mut state = pace.new_state(9_000);
    assert_eq!(start(pace.borrow(&mut state, 9_000, 1, None)), 9_000);
    assert_eq!(start(pace.borrow(&mut state, 10_000, 2, None)), 10_375);
    (pace, state) // the next start is at 12 375
}

#[test]
fn a_clock_that_steps_back_by_a_minute_stands_still_and_further_back_it_is_followed() {
    let next_start = 12_375;
    for (back_ms, expected) in [
        (1, next_start),
        (MAX_STEP_BACK_MS, next_start),
        (MAX_STEP_BACK_MS + 1, next_start - MAX_STEP_BACK_MS - 1),
        (86_400_000, next_start - 86_400_000),
    ] {
        let (pace, mut state) = used();
        assert_eq!(start(pace.borrow(&mut state, 10_000 - back_ms, 1, None)), expected, "{back_ms}");
        let then = start(pace.borrow(&mut state, 10_000 - back_ms, 1, None));
        assert_eq!(then - expected, 625, "{back_ms}");
    }
    // Also where a wait is refused, or the caller would wait by the old clock for good.
    let (pace, mut state) = used();
    let now = 10_000 - MAX_STEP_BACK_MS - 1;
    assert_eq!(pace.borrow(&mut state, now, 1, Some(0)), Decision::Wait { retry_at: now + 2_375 });
    assert_eq!(start(pace.borrow(&mut state, now + 2_375, 1, Some(0))), now + 2_375);
}

/// Nothing is owed, so there is nothing to wait for.
#[test]
fn a_clock_that_has_stepped_back_delays_no_call_while_nothing_is_owed() {
    let pace = pace(2, 1_000, 4_000);
    for back_ms in [1, MAX_STEP_BACK_MS, MAX_STEP_BACK_MS + 1] {
        let mut state = pace.new_state(100_000);
        assert_eq!(start(pace.borrow(&mut state, 100_000 - back_ms, 1, Some(0))), 100_000 - back_ms);
    }
}

/// Callers that do not wait but ask in each millisecond get the rate, also where starts fall between milliseconds.
#[test]
fn callers_that_ask_often_enough_get_the_rate() {
    for rate in [3, 400, 900, 1_500, 1_000_000] {
        let pace = pace(rate, 1_000, 0);
        let mut state = pace.new_state(0);
        let mut granted = 0;
        for now in 0..1_000 {
            while pace.borrow(&mut state, now, 1, Some(0)).is_allow() {
                granted += 1;
            }
        }
        // Those of the second's last fraction of a millisecond come with the next.
        assert!((rate.saturating_sub(rate / 1_000 + 1)..=rate).contains(&granted), "{granted} of {rate}");
    }
}

#[test]
fn without_a_warm_up_the_pace_is_steady_and_idle_time_gives_no_burst() {
    let pace = pace(3, 1_000, 0);
    let mut state = pace.new_state(0);
    for now in [0, 1_000_000] {
        let starts = [0; 4].map(|after| start(pace.borrow(&mut state, now + after, 1, None)) - now);
        assert_eq!(starts, [0, 334, 667, 1_000], "{now}");
    }
}

#[test]
fn the_largest_numbers_are_named_and_nothing_overflows() {
    let new = |rate, period_ms, warm_up_ms| {
        WarmUp::new(rate, Duration::from_millis(period_ms), Duration::from_millis(warm_up_ms))
    };
    let most = 1_u64 << 42;
    assert_eq!(new(0, 1, 0), Err(ConfigError::RateZero));
    assert_eq!(new(most + 1, 1, 0), Err(ConfigError::RateTooLarge { rate: most + 1, max: most }));
    assert_eq!(new(1, 0, 0), Err(ConfigError::PeriodZero));
    assert_eq!(new(1, most + 1, 0), Err(ConfigError::PeriodTooLong { period_ms: most + 1, max_ms: most }));
    assert_eq!(new(3, 1, most / 3 + 1), Err(ConfigError::WarmUpTooLong { warm_up_ms: most / 3 + 1, max_ms: most / 3 }));
    assert_eq!(WarmUp::new(1, Duration::from_nanos(1), Duration::ZERO), new(1, 1, 0));
    assert!(new(1, u64::MAX, 0).is_err() && WarmUp::new(1, Duration::MAX, Duration::MAX).is_err());
    for (rate, period_ms, warm_up_ms) in
        [(most, 1, 1), (1, most, most), (3, 1, most / 3), (most, most, most), (1, 1, 0)]
    {
        let pace = new(rate, period_ms, warm_up_ms).unwrap();
        for began in [i64::MIN, 0, i64::MAX] {
            let mut state = pace.new_state(began);
            for now in [began, i64::MIN, 0, i64::MAX] {
                let starts = [0, 1, u64::MAX, 1].map(|tokens| start(pace.borrow(&mut state, now, tokens, None)));
                assert!(starts.is_sorted() && starts[0] >= now, "{starts:?}");
            }
        }
    }
}
