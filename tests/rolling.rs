//! Rolling windows of the crate: beside a log of every take, and by brute force over all intervals.

mod anywhere;
mod chance;
#[path = "oracle/rolling.rs"]
mod rolling_oracle;

#[cfg(feature = "std")]
use std::collections::BTreeMap;
use std::time::Duration;

use anywhere::test;
use proptest::prelude::*;
use rolling_oracle::{NUMBERS, Numbers, Oracle};
#[cfg(feature = "std")]
use tollgate::keyed::{Full, KeyedLimiter, Rule};
#[cfg(feature = "std")]
use tollgate::limit::{Config, State};
use tollgate::limit::{ConfigError, Decision, Limit, Moment, RollingState, RollingWindow, Verb};

const START: i64 = 1_800_000_000_007;

type Kept = RollingState<Vec<Moment>>;

fn window_of(numbers: Numbers) -> RollingWindow {
    let period = Duration::from_millis(numbers.period_ms.unsigned_abs());
    RollingWindow::with_grains(numbers.rate, period, numbers.grains.try_into().unwrap()).unwrap()
}

/// A state in as much memory as it needs at most.
fn state_of(window: &RollingWindow, now: i64) -> Kept {
    window.state_in(now, vec![Moment::default(); window.max_moments()]).unwrap()
}

#[derive(Clone, Copy, Debug)]
struct Step {
    verb: Verb,
    cost: u64,
    wait: Wait,
}

/// How time passes: by thousandths of a period, or to a moment and around it.
#[derive(Clone, Copy, Debug)]
enum Wait {
    No,
    Part(i64),
    UntilGrain(i64),
    UntilFirst(i64),
    UntilLast(i64),
}

impl Wait {
    fn after(self, oracle: &Oracle, now: i64) -> i64 {
        let Numbers { period_ms, .. } = oracle.numbers;
        let back = || oracle.log.iter().filter(|taken| taken.tokens > 0).map(|taken| taken.back_at);
        let at = match self {
            Self::No => now,
            Self::Part(part) => now + period_ms * part / 1_000,
            Self::UntilGrain(ms) => oracle.numbers.back_at(now) - period_ms + ms,
            Self::UntilFirst(ms) => back().filter(|at| now <= *at).min().map_or(now, |at| at + ms),
            Self::UntilLast(ms) => back().max().map_or(now, |at| at + ms),
        };
        at.max(now)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let max_wait = || prop_oneof![Just(Some(0)), (0..5_000_u64).prop_map(Some), Just(None)];
    let verb = prop_oneof![
        8 => Just(Verb::Consume),
        3 => Just(Verb::ConsumeUpTo),
        1 => max_wait().prop_map(|max_wait_ms| Verb::Reserve { max_wait_ms }),
        1 => max_wait().prop_map(|max_wait_ms| Verb::Borrow { max_wait_ms }),
        2 => Just(Verb::Charge),
        2 => Just(Verb::Refund),
        1 => Just(Verb::Reset),
    ];
    let around = || -1..=1_i64;
    let wait = prop_oneof![
        3 => Just(Wait::No),
        3 => (0..150_i64).prop_map(Wait::Part),
        2 => (0..2_001_i64).prop_map(Wait::Part),
        2 => around().prop_map(Wait::UntilGrain),
        4 => around().prop_map(Wait::UntilFirst),
        1 => around().prop_map(Wait::UntilLast),
    ];
    (verb, cost(), wait).prop_map(|(verb, cost, wait)| Step { verb, cost, wait })
}

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..4_u64, 3 => 0..25_u64, 1 => 0..400_u64]
}

/// What a log of all takes answers, which then has what was taken or given back.
fn expected(oracle: &mut Oracle, now: i64, cost: u64, verb: Verb) -> Decision {
    let (left, rate) = (oracle.left(now), oracle.numbers.rate);
    let allow = |tokens| Decision::Allow { tokens, ready_at: now };
    let refused = |oracle: &Oracle, cost: u64| match cost {
        _ if cost > rate => Decision::Never { max: rate },
        _ => Decision::Wait { retry_at: oracle.retry_at(cost, now, &[]) },
    };
    let taken = match verb {
        Verb::Consume | Verb::Reserve { .. } | Verb::Borrow { .. } if left >= cost => cost,
        Verb::ConsumeUpTo if left >= cost.min(1) => cost.min(left),
        Verb::ConsumeUpTo => return refused(oracle, 1),
        Verb::Charge => cost.min(left),
        Verb::Refund | Verb::Reset => {
            let back = if verb == Verb::Reset { rate - left } else { cost.min(rate - left) };
            oracle.refund(back, now);
            return allow(back);
        }
        _ => return refused(oracle, cost),
    };
    oracle.take(taken, None, now);
    allow(taken)
}

proptest! {
    #![proptest_config(chance::config(6_000))]

    #[test]
    fn a_rolling_window_has_what_a_log_of_all_takes_leaves(
        numbers in prop::sample::select(&NUMBERS[..]),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let window = window_of(numbers);
        let (mut now, mut oracle, mut state) = (START, Oracle::new(numbers), state_of(&window, START));
        for Step { verb, cost, wait } in steps {
            now = wait.after(&oracle, now);
            let peeked = expected(&mut oracle.clone(), now, cost, Verb::Consume);
            prop_assert_eq!(window.peek(&state, now, cost), peeked);
            if let Decision::Wait { retry_at } = peeked {
                let before = window.peek(&state, retry_at - 1, cost);
                prop_assert_eq!((before, window.peek(&state, retry_at, cost).is_allow()), (peeked, true));
            }
            let decision = window.decide(&mut state, now, cost, verb);
            prop_assert_eq!(decision, expected(&mut oracle, now, cost, verb), "{:?}", verb);
            prop_assert_eq!(window.remaining(&state, now), oracle.left(now));
            prop_assert_eq!(window.full_at(&state, now), oracle.reset_at(now));
        }
    }

    /// By brute force, also while the clock steps back by less than a minute: then the later moment counts.
    #[test]
    fn no_interval_of_a_period_has_more_than_the_rate_and_nothing_comes_back_late(
        numbers in prop::sample::select(&NUMBERS[..]),
        takes in prop::collection::vec((cost(), prop_oneof![0..60_i64, 0..1_100_i64, -40..0_i64]), 1..120),
    ) {
        let window = window_of(numbers);
        let (mut now, mut latest, mut state) = (START, START, state_of(&window, START));
        let mut grants = Vec::<(i64, u64)>::new();
        for (cost, part) in takes {
            now += numbers.period_ms * part / 1_000;
            let granted = window.consume_up_to(&mut state, now, cost).tokens();
            if granted > 0 {
                latest = latest.max(now);
                grants.push((latest, granted));
            }
            let within = |now: i64, ms: i64| {
                grants.iter().filter(|(at, _)| now - at < ms).map(|(_, tokens)| tokens).sum::<u64>()
            };
            prop_assert!(within(now.max(latest), numbers.period_ms) <= numbers.rate, "{:?}", grants);
            let missing = numbers.rate - window.remaining(&state, now);
            prop_assert!(missing <= within(now, numbers.period_ms + numbers.grain_ms()), "{:?}", grants);
        }
    }

    #[test]
    fn a_clock_that_jumps_locks_no_key_out(
        numbers in prop::sample::select(&NUMBERS[..]),
        jumps in prop::collection::vec((cost(), prop_oneof![0..1_000_i64, -200_000..100_000_i64, Just(-60_000), Just(-60_001)]), 1..80),
    ) {
        let window = window_of(numbers);
        let (mut now, mut state) = (START, state_of(&window, START));
        for (cost, ms) in jumps {
            let most = now + numbers.period_ms + 60_000 + 2 * numbers.grain_ms();
            if let Decision::Wait { retry_at } = window.consume(&mut state, now, cost) {
                prop_assert!((now + 1..=most).contains(&retry_at), "{} ms", retry_at - now);
                prop_assert!(!window.peek(&state, retry_at - 1, cost).is_allow());
                prop_assert!(window.peek(&state, retry_at, cost).is_allow());
            }
            prop_assert!(window.full_at(&state, now) <= most);
            now += ms;
        }
        let _ = window.consume(&mut state, now, 0); // follows the last step
        now += numbers.period_ms + 60_000 + 2 * numbers.grain_ms();
        prop_assert_eq!(window.remaining(&state, now), numbers.rate);
    }
}

#[cfg(feature = "std")]
proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Beside a token bucket, under few or many keys: the same as if nothing were forgotten.
    #[test]
    fn each_key_of_a_keyed_limiter_has_a_window_of_its_own(
        numbers in prop::sample::select(&NUMBERS[..]),
        max_keys in 0_usize..8,
        steps in prop::collection::vec((0..6_u8, step()), 1..80),
    ) {
        let bucket = Limit::new(&Config::token_bucket(30, Duration::from_millis(900))).unwrap();
        let limits = [Rule::from(bucket), window_of(numbers).into()];
        let limiter = KeyedLimiter::<u8, 2>::new(limits, max_keys);
        let mut model: BTreeMap<u8, (State, Oracle)> = BTreeMap::new();
        let mut now = START;
        for (key, Step { verb, cost, wait }) in steps {
            let (state, oracle) = model.entry(key).or_insert_with(|| (bucket.new_state(now, 0), Oracle::new(numbers)));
            now = wait.after(oracle, now);
            let verb = if verb == Verb::ConsumeUpTo { Verb::Consume } else { verb }; // which takes the same of both
            let (own, next) = bucket.decide(*state, now, cost, verb);
            let mut after = oracle.clone();
            let of_window = expected(&mut after, now, cost, verb);
            let all = own.and(of_window);
            let peeked = limiter.peek(&key, now, cost);
            let answer = limiter.decide(&key, now, [cost; 2], verb);
            if verb == Verb::Consume {
                prop_assert_eq!(peeked, answer.as_ref().map(|answer| answer.decision).map_err(|full| *full));
            }
            match answer {
                Ok(answer) => {
                    prop_assert_eq!(answer.decision, all);
                    prop_assert_eq!(answer.parts.map(|part| part.decision), [own, of_window]);
                    if all.is_allow() {
                        (*state, *oracle) = (next, after);
                    }
                    let [first, second] = answer.parts;
                    let left = [first.limit.remaining(&first.state, now), second.limit.remaining(&second.state, now)];
                    prop_assert_eq!(left, [bucket.remaining(state, now), oracle.left(now)]);
                    prop_assert_eq!(answer.full_at(), [bucket.full_at(state, now), Some(oracle.reset_at(now))]);
                }
                Err(Full { retry_at, .. }) => {
                    let until = |(state, oracle): &(State, Oracle)| bucket.full_at(state, now).unwrap().max(oracle.reset_at(now));
                    let needed: Vec<_> = model.values().map(until).filter(|at| *at > now).collect();
                    prop_assert!(needed.len() >= max_keys);
                    let first = needed.into_iter().min();
                    prop_assert!(retry_at.is_none() && first.is_none() || now < retry_at.unwrap() && retry_at <= first);
                }
            }
            prop_assert!(limiter.len() <= max_keys);
        }
    }
}

#[cfg(feature = "std")]
#[test]
fn a_limiter_that_steps_back_with_its_clock_gives_nothing_early_and_locks_nothing_out() {
    let window = RollingWindow::new(2, Duration::from_secs(100)).unwrap();
    let limiter = KeyedLimiter::<String>::new([window], 10);
    assert!(limiter.try_consume("a", START, 2));
    assert!(limiter.try_consume("b", START + 90_000, 1)); // the latest moment
    let now = START - 1_000_000;
    assert!(!limiter.try_consume("a", now, 1));
    assert_eq!(limiter.consume("a", now, 1), Ok(Decision::Wait { retry_at: now + 10_000 }));
    assert_eq!(limiter.consume("b", now, 2), Ok(Decision::Wait { retry_at: now + 100_000 }));
    assert!(limiter.try_consume("a", now + 10_000, 2));
}

#[cfg(feature = "std")]
#[test]
fn keys_are_forgotten_when_all_is_back_and_make_room() {
    let window = RollingWindow::new(2, Duration::from_secs(1)).unwrap();
    let limiter = KeyedLimiter::<String>::new([window], 2);
    assert!(limiter.try_consume("a", 0, 1) && limiter.try_consume("b", 300, 1) && limiter.try_consume("a", 400, 1));
    assert_eq!(limiter.consume("c", 500, 1).unwrap_err().retry_at, Some(1_000)); // as it was noted when "a" was added
    assert_eq!(limiter.consume("c", 1_000, 1).unwrap_err().retry_at, Some(1_300));
    assert!(limiter.try_consume("c", 1_300, 1));
    assert!(!limiter.try_consume("b", 1_300, 1), "there is no room, until the other key's last token is back");
    assert!(limiter.try_consume("b", 1_400, 1));
    let _ = limiter.decide("b", 1_400, [0], Verb::Reset);
    assert!(limiter.try_consume("d", 1_400, 1), "what is given back makes room");
}

/// Each gets its tokens when they are back, not as from a bucket that never refills.
#[cfg(feature = "std")]
#[test]
fn a_line_for_a_rolling_window_is_forecast_from_its_moments() {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tollgate::keyed::{KeyedQueue, WaitError};

    let window = RollingWindow::new(2, Duration::from_secs(1)).unwrap();
    let limiter = KeyedLimiter::<String>::new([window], 10);
    assert!(limiter.try_consume("a", 0, 1) && limiter.try_consume("a", 300, 1));
    let queue = KeyedQueue::new(limiter, || 500, |_| std::future::pending());
    let mut context = Context::from_waker(Waker::noop());
    let too_long = |turn_at, max_wait_ms| Err(WaitError::TooLong { turn_at, max_wait_ms });
    let mut first = pin!(queue.wait("a", [1], Some(500)));
    assert!(first.as_mut().poll(&mut context).is_pending(), "its turn is at 1000");
    let mut second = pin!(queue.wait("a", [1], Some(799)));
    assert_eq!(
        second.as_mut().poll(&mut context).map(|answer| answer.map(drop)),
        std::task::Poll::Ready(too_long(1_300, 799))
    );
    let mut second = pin!(queue.wait("a", [1], Some(800)));
    assert!(second.as_mut().poll(&mut context).is_pending());
    let mut third = pin!(queue.wait("a", [1], Some(0)));
    assert_eq!(
        third.as_mut().poll(&mut context).map(|answer| answer.map(drop)),
        std::task::Poll::Ready(too_long(2_000, 0))
    );
}

#[test]
fn after_a_small_step_back_the_later_moment_counts_also_when_nothing_was_missing() {
    let window = RollingWindow::new(2, Duration::from_secs(1)).unwrap();
    for give_back in [Verb::Refund, Verb::Reset] {
        let mut state = state_of(&window, START);
        assert!(window.try_consume(&mut state, START, 1));
        let _ = window.decide(&mut state, START, 1, give_back);
        assert!(window.try_consume(&mut state, START - 500, 1));
        assert_eq!(window.full_at(&state, START - 500), START + 1_000);
    }
}

#[test]
fn numbers_that_no_window_can_have_are_refused() {
    let minute = Duration::from_mins(1);
    for (grains, answer) in [(0, false), (1, true), (240, true), (241, false)] {
        let window = RollingWindow::with_grains(500, minute, grains);
        assert_eq!(window.is_ok(), answer, "{grains}");
        if !answer {
            assert_eq!(window, Err(ConfigError::GrainsOutOfRange { grains, max: 240 }));
        }
    }
    assert_eq!(RollingWindow::new(1, Duration::ZERO), Err(ConfigError::PeriodZero));
    assert!(matches!(RollingWindow::new(1 << 53, minute), Err(ConfigError::RateTooLarge { .. })));
    let nothing = RollingWindow::new(0, minute).unwrap();
    let mut state = nothing.state_in(0, []).unwrap();
    assert_eq!(nothing.consume(&mut state, 0, 1), Decision::Never { max: 0 });
    assert!(nothing.try_consume(&mut state, 0, 0));
    let config = *nothing.config();
    assert_eq!(Limit::new(&config), Err(ConfigError::NeedsMoments), "a state has no moments");
}

/// 16 bytes for each: the rate, or one more than the grains of a period.
#[test]
fn the_memory_of_a_state_is_bounded() {
    assert_eq!(size_of::<Moment>(), 16);
    for (rate, period_ms, grains, most) in [
        (60, 60_000, 60, 60),
        (61, 60_000, 60, 61),
        (1_000_000, 60_000, 60, 61),
        (1_000_000, 60_001, 60, 61), // a grain of 1001 ms
        (1_000_000, 86_400_000, 240, 241),
        (1_000, 7, 240, 8), // no grain is shorter than a millisecond
        (2, 60_000, 1, 2),
        (1, 60_000, 1, 1),
    ] {
        let window = RollingWindow::with_grains(rate, Duration::from_millis(period_ms), grains).unwrap();
        assert_eq!(window.max_moments(), most, "{rate} in {period_ms} ms of {grains}");
        assert!(most <= RollingWindow::MAX_MOMENTS);
        assert!(window.state_in(0, vec![Moment::default(); most]).is_some());
        assert!(window.state_in(0, vec![Moment::default(); most - 1]).is_none());
    }
}
