//! All small worlds: every limit with rate, period, capacity and debt of at most 6, every sequence of at most 6
//! requests with costs of at most 6 and every pause up to a period. Sequences that reach the same bucket are followed
//! only once, and the future of a bucket depends only on its level and its position within a period, so nothing is left
//! out.

mod anywhere;
mod oracle;

use std::collections::HashSet;

use anywhere::test;
use oracle::{Model, tokens_of};
use tollgate::limit::{Config, Kind, Limit, Verb};

/// Smaller in a browser, which has fifteen seconds.
const MOST: u64 = if cfg!(target_family = "wasm") { 3 } else { 6 };

// A test for each debt, so that they run side by side: this is the longest of the core's tests.

#[test]
fn token_buckets_without_debt_decide_as_exact_rationals_do_in_all_small_worlds() {
    check_all(Kind::TokenBucket, 0);
}

#[test]
fn token_buckets_with_a_debt_of_one_decide_as_exact_rationals_do_in_all_small_worlds() {
    check_all(Kind::TokenBucket, 1);
}

#[test]
fn token_buckets_with_the_most_debt_decide_as_exact_rationals_do_in_all_small_worlds() {
    check_all(Kind::TokenBucket, MOST);
}

#[test]
fn fixed_windows_decide_as_exact_rationals_do_in_all_small_worlds() {
    for max_debt in [0, 1, MOST] {
        check_all(Kind::FixedWindow, max_debt);
    }
}

#[test]
fn windows_from_first_use_decide_as_exact_rationals_do_in_all_small_worlds() {
    for max_debt in [0, 1, MOST] {
        check_all(Kind::FirstUseWindow, max_debt);
    }
}

fn check_all(kind: Kind, max_debt: u64) {
    let mut decisions = 0_u64;
    let mut worlds = 0_u64;
    for rate in 0..=MOST {
        for period_ms in 1..=MOST {
            for capacity in 0..=MOST {
                let offset_ms = (kind == Kind::FixedWindow).then_some(1 % period_ms);
                let config = Config {
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
                decisions += check(config);
                worlds += 1;
            }
        }
    }
    println!("{kind:?}: {decisions} decisions in {worlds} worlds agree");
    assert_eq!(worlds, (MOST + 1) * MOST * (MOST + 1));
}

/// Checks every decision of one world and returns their number.
fn check(config: Config) -> u64 {
    let limit = Limit::new(&config).expect("small numbers are exact");
    let mut decisions = 0;
    let mut seen = HashSet::new();
    let mut layer = vec![(0_i64, limit.new_state(0, 0), Model::<i64>::new(config, 0, 0))];
    for _ in 0..MOST {
        let mut next = Vec::new();
        for (now, state, model) in layer {
            for pause_ms in 0..=config.period_ms {
                let at = now + i64::try_from(pause_ms).expect("small");
                for (cost, verb) in asks() {
                    let (decision, after) = limit.decide(state, at, cost, verb);
                    let mut expected = model.clone();
                    assert_eq!(
                        decision,
                        expected.ask(at, cost, verb),
                        "{verb:?} of {cost} at {at} from {state:?} of {config:?}"
                    );
                    if verb == Verb::Consume {
                        let mut used = state;
                        assert_eq!((limit.consume(&mut used, at, cost), used), (decision, after));
                        let mut used = state;
                        assert_eq!((limit.try_consume(&mut used, at, cost), used), (decision.is_allow(), after));
                    }
                    assert_eq!(tokens_of::<i64>(after, &config), expected.tokens);
                    assert_eq!(limit.remaining(&after, at), expected.remaining(at));
                    assert_eq!(limit.owed(&after, at), expected.owed(at));
                    decisions += 1;
                    if seen.insert((expected.tokens_at(at), expected.ms_into_window(at))) {
                        next.push((at, after, expected));
                    }
                }
            }
        }
        layer = next;
    }
    decisions
}

fn asks() -> impl Iterator<Item = (u64, Verb)> {
    let waits = [None, Some(0), Some(1), Some(MOST)];
    let reserve = waits.map(|max_wait_ms| Verb::Reserve { max_wait_ms });
    let borrow = waits.map(|max_wait_ms| Verb::Borrow { max_wait_ms });
    let plain = [Verb::Consume, Verb::Charge, Verb::ConsumeUpTo, Verb::Refund, Verb::Reset];
    let verbs = plain.into_iter().chain(reserve).chain(borrow);
    verbs.flat_map(|verb| (0..=MOST).map(move |cost| (cost, verb)))
}
