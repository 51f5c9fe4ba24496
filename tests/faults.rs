//! Faults seen in other limiters, each with a claim that this one does not have it. If it is short, the faulty arithmetic
//! runs beside ours and fails the same claim, which shows that the test can see the fault.

mod anywhere;

use std::time::Duration;

use anywhere::test;
use tollgate::limit::{
    Carry, Config, Decision, Limit, MAX_STEP_BACK_MS, Part, Record, State, Verb, decide_all, encode,
};

const SECOND: i64 = 1_000;

fn limit(config: &Config) -> Limit {
    Limit::new(config).expect("a valid limit")
}

fn token_bucket(rate: u64, period_ms: u64) -> Limit {
    limit(&Config::token_bucket(rate, Duration::from_millis(period_ms)))
}

/// How many of the requests for one token, one at each of `moments`, are admitted.
fn admitted(moments: impl Iterator<Item = i64>, mut is_admitted: impl FnMut(i64) -> bool) -> usize {
    moments.filter(|&now| is_admitted(now)).count()
}

/// An article's `PostgreSQL` function moves its timestamp on every call and rounds the refill down to whole tokens, so
/// a client that retries faster than a token comes back never gets one.
#[test]
fn a_client_that_keeps_trying_is_not_starved() {
    let every_100_ms = || (0..10 * SECOND).step_by(100);
    let (mut tokens, mut ts) = (1, 0);
    let faulty = admitted(every_100_ms(), |now| {
        tokens = (tokens + (now - ts) / SECOND).min(1);
        ts = now;
        tokens > 0 && {
            tokens -= 1;
            true
        }
    });
    assert_eq!(faulty, 1);

    let limit = token_bucket(1, 1_000);
    let mut state = limit.new_state(0, 0);
    assert_eq!(admitted(every_100_ms(), |now| limit.consume(&mut state, now, 1).is_allow()), 10);
}

/// An article's Go bucket stores the refilled level on refusal but not the time, so the same milliseconds are credited
/// again at each further try.
#[test]
fn a_refused_client_is_not_credited_twice() {
    let every_100_ms = || (0..10 * SECOND).step_by(100);
    let (mut tokens, mut last) = (1.0_f64, 0);
    let faulty = admitted(every_100_ms(), |now| {
        #[expect(clippy::cast_precision_loss, reason = "the fault is elsewhere")]
        let refilled = tokens + (now - last) as f64 / 1_000.0;
        tokens = refilled.min(1.0);
        tokens >= 1.0 && {
            tokens -= 1.0;
            last = now;
            true
        }
    });
    assert!(faulty > 11, "{faulty}");

    let limit = token_bucket(1, 1_000);
    let mut state = limit.new_state(0, 0);
    assert_eq!(admitted(every_100_ms(), |now| limit.consume(&mut state, now, 1).is_allow()), 10);
}

/// An article's Redis script expires its key after ten seconds, so a bucket that refills more slowly forgets that it
/// was spent.
#[test]
fn a_slow_bucket_does_not_forget_its_debt_after_ten_seconds() {
    let limit = token_bucket(1, 60_000);
    let mut state = limit.new_state(0, 0);
    assert!(limit.consume(&mut state, 0, 1).is_allow());
    assert_eq!(limit.expires_at(&state, 11 * SECOND), Some(60 * SECOND));
    assert_eq!(limit.consume(&mut state, 11 * SECOND, 1), Decision::Wait { retry_at: 60 * SECOND });
}

/// An article's reserve branch subtracts the cost and then compares the remainder with the cost again, so a request
/// for all tokens left is refused or delayed.
#[test]
fn a_cost_is_compared_once() {
    let mut config = Config::token_bucket(5, Duration::from_secs(1));
    config.max_debt = 5;
    let limit = limit(&config);
    for verb in [Verb::Consume, Verb::Reserve { max_wait_ms: None }] {
        let (decision, _) = limit.decide(limit.new_state(0, 0), 0, 5, verb);
        assert_eq!(decision, Decision::Allow { tokens: 5, ready_at: 0 });
    }
}

/// In the same article, and in the library made from it, `maxReserved: 0` is falsy and reads as unlimited.
#[test]
fn zero_debt_is_not_unlimited_debt_and_zero_wait_is_not_unlimited_wait() {
    let none = token_bucket(5, 1_000);
    let mut state = none.new_state(0, 0);
    assert_eq!(none.reserve(&mut state, 0, 6, None), Decision::Never { max: 5 });
    let mut config = Config::token_bucket(5, Duration::from_secs(1));
    config.max_debt = 5;
    let some = limit(&config);
    assert_eq!(some.reserve(&mut state, 0, 6, Some(0)), Decision::Never { max: 5 });
    assert_eq!(some.reserve(&mut state, 0, 6, None), Decision::Allow { tokens: 6, ready_at: 200 });
}

/// An article's Lua script refills with its capacity per second, whatever its rate.
#[test]
fn the_rate_is_the_rate_and_not_the_capacity() {
    let mut config = Config::token_bucket(1, Duration::from_secs(1));
    config.capacity = 1_000;
    let limit = limit(&config);
    let mut state = limit.new_state(0, 0);
    assert!(limit.consume(&mut state, 0, 1_000).is_allow());
    assert_eq!(limit.remaining(&state, SECOND), 1);
}

/// Convex's component multiplies the rate by an elapsed time that is negative after the clock steps back, and so
/// removes tokens; and a bucket that only waits for its old clock locks its key out.
#[test]
fn a_clock_that_steps_back_removes_no_tokens_and_locks_no_key_out() {
    let limit = token_bucket(10, 1_000);
    let mut state = limit.new_state(0, 0);
    assert!(limit.consume(&mut state, 0, 4).is_allow());
    assert_eq!(limit.remaining(&state, -MAX_STEP_BACK_MS), 6);
    let day_ago = -86_400 * SECOND;
    assert!(limit.consume(&mut state, day_ago, 6).is_allow());
    assert_eq!(limit.consume(&mut state, day_ago, 1), Decision::Wait { retry_at: day_ago + 100 });
}

/// Upstash's limiter charged refused requests (#156), so a client that kept trying dug itself ever deeper.
#[test]
fn a_refused_request_costs_nothing() {
    let limit = token_bucket(1, 1_000);
    let mut state = limit.new_state(0, 0);
    assert!(limit.consume(&mut state, 0, 1).is_allow());
    let spent = state;
    for _ in 0..1_000 {
        assert!(!limit.consume(&mut state, 500, 1).is_allow());
    }
    assert_eq!(state, spent);
}

/// governor keeps one interval in whole nanoseconds, but a third of a second is not a whole number of them; the sum
/// drifts.
#[test]
fn three_per_second_are_three_per_second_for_ten_years() {
    let limit = token_bucket(3, 1_000);
    let mut state = limit.new_state(0, 0);
    let ten_years = 10 * 365 * 86_400 * SECOND;
    assert!(limit.consume(&mut state, 0, 3).is_allow());
    // One request at each promised moment, for a day, and then at the far end.
    let mut now = 0;
    for nth in 1..=3 * 86_400_i64 {
        let Decision::Wait { retry_at } = limit.peek(&state, now, 1) else { panic!("the bucket is empty") };
        now = retry_at;
        assert_eq!(now, (nth * SECOND + 2) / 3, "the {nth}th token");
        assert!(limit.consume(&mut state, now, 1).is_allow());
    }
    assert!(limit.consume(&mut state, ten_years, 3).is_allow());
    assert_eq!(limit.peek(&state, ten_years, 1), Decision::Wait { retry_at: ten_years + 334 });
}

/// Go's `x/time/rate` returns less than was reserved if others have reserved since (#56924, #69419). Its silent refund
/// by a negative count (#54082) cannot happen here: a cost has no sign.
#[test]
fn a_cancelled_reservation_returns_everything_it_took() {
    let mut config = Config::token_bucket(1, Duration::from_secs(1));
    config.max_debt = 10;
    let limit = limit(&config);
    let mut state = limit.new_state(0, 0);
    assert!(limit.reserve(&mut state, 0, 4, None).is_allow());
    assert!(limit.reserve(&mut state, 0, 2, None).is_allow());
    assert_eq!(limit.refund(&mut state, 0, 4), Decision::Allow { tokens: 4, ready_at: 0 });
    let mut other = limit.new_state(0, 0);
    assert!(limit.reserve(&mut other, 0, 2, None).is_allow());
    assert_eq!(state, other);
}

/// rate-limiter-flexible's union takes from every limiter even when one of them refuses (#207).
#[test]
fn several_limits_take_nothing_when_one_refuses() {
    let (wide, narrow) = (token_bucket(100, 1_000), token_bucket(1, 1_000));
    let mut parts = [&wide, &narrow].map(|limit| Part::new(limit, limit.new_state(0, 0), 1));
    assert!(decide_all(&mut parts, 0, Verb::Consume).is_allow());
    let before = parts.map(|part| part.state);
    assert_eq!(decide_all(&mut parts, 0, Verb::Consume), Decision::Wait { retry_at: SECOND });
    assert_eq!(parts.map(|part| part.state), before);
    assert!(parts[0].decision.is_allow());
}

/// Bottleneck's refill stops when its settings change (#185).
#[test]
fn a_bucket_with_changed_numbers_keeps_refilling() {
    let (old, new) = (token_bucket(1, 1_000), token_bucket(5, 1_000));
    let mut state = old.new_state(0, 0);
    assert!(old.consume(&mut state, 0, 1).is_allow());
    let mut state = new.carry(&old, state, Carry::AsIs, 500, 0);
    // Half a token at the old rate, and 100 ms for the other half at the new one.
    assert_eq!(new.consume(&mut state, 500, 1), Decision::Wait { retry_at: 600 });
    assert!(new.consume(&mut state, 600, 1).is_allow());
}

/// One of ours: after a small step back of the clock, a change of numbers credited the same refill twice.
#[test]
fn changed_numbers_credit_nothing_twice_after_a_step_back() {
    let (bucket, window) = (token_bucket(60, 60_000), limit(&Config::fixed_window(10, Duration::from_secs(1))));
    for (limit, emptied_at, now) in [(bucket, 60_000, 0), (window, 1_000, 999)] {
        let mut state = limit.new_state(emptied_at, 0);
        assert!(limit.consume(&mut state, emptied_at, limit.config().capacity).is_allow());
        let carried = limit.carry(&limit, state, Carry::AsIs, now, 0);
        assert_eq!(carried, state);
        assert_eq!(limit.remaining(&carried, emptied_at), 0);
    }
}

/// When the kind of a limit changes, Convex's component reads the two numbers of the old kind as those of the new; and
/// a state of a later version is easily read as a fresh one.
#[test]
fn a_state_of_another_kind_or_format_is_never_reused() {
    let bucket = token_bucket(1, 86_400_000);
    let window = limit(&Config::fixed_window(100, Duration::from_hours(24)));
    let mut state: State = bucket.new_state(0, 0);
    assert!(bucket.consume(&mut state, 0, 1).is_allow());
    assert_eq!(window.carry(&bucket, state, Carry::AsIs, 0, 0), window.new_state(0, 0));
    let mut bytes: Vec<u8> = encode(1, [state]).collect();
    bytes[0] = 2;
    assert!(Record::parse(&bytes).is_err());
}
