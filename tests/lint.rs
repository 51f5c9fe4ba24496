//! Laws of the lint, tried on random limits against exact rationals: callers that take all they can get exactly what it says, and
//! callers at random never more.

mod chance;
mod oracle;
#[path = "chance/split_mix.rs"]
mod split_mix;

use std::fmt::Write as _;

use oracle::Model;
use split_mix::Random;
use tollgate::limit::{Config, Decision, Kind, Verb};
use tollgate::policy::{Code, Lint, Policies};

type Bucket = Model<i128>;

#[test]
fn callers_who_take_all_they_can_get_what_the_lint_says_and_no_others_get_more() {
    for_random_cases(2_000, |random| {
        let config = config(random);
        let lint = lint_of(&[config], random);
        let facts = &lint.limits[0];
        for admitted in &facts.within {
            // A bucket that begins with less is full later.
            let best = if config.rate == 0 { config } else { Config { initial: None, ..config } };
            let just_before = i64::try_from(config.period_ms * 100 + config.offset_ms.unwrap_or(0)).unwrap() - 1;
            let all = most_at_once(best, just_before, admitted.period_ms, 0);
            assert_eq!(u128::from(all), admitted.tokens, "{config:?} within {}", admitted.period_ms);
        }
        for admitted in facts.debt.iter().flat_map(|debt| &debt.within) {
            let best = if config.rate == 0 { config } else { Config { initial: None, ..config } };
            let just_before = i64::try_from(config.period_ms * 100 + config.offset_ms.unwrap_or(0)).unwrap() - 1;
            let all = most_at_once(best, just_before, admitted.period_ms, config.max_debt);
            assert_eq!(u128::from(all), admitted.tokens, "{config:?} within {}", admitted.period_ms);
        }
        for in_debt in [false, true] {
            let within = if in_debt { facts.debt.as_ref().map(|debt| &debt.within) } else { Some(&facts.within) };
            let Some(within) = within else { continue };
            let start = random.below(1_000);
            let mut bucket = Bucket::new(config, start, random.next());
            let taken = run(start, random, |random, now| {
                let cost = random.upto(bucket.remaining(now) + 2);
                let verb = if in_debt { any_verb(random) } else { Verb::Consume };
                match bucket.ask(now, cost, verb) {
                    Decision::Allow { tokens, .. } => tokens,
                    _ => 0,
                }
            });
            for admitted in within {
                assert!(
                    most(&taken, admitted.period_ms) <= admitted.tokens,
                    "{config:?} within {}",
                    admitted.period_ms
                );
            }
        }
    });
}

#[test]
fn several_limits_together_admit_no_more_and_as_much_where_all_are_token_buckets() {
    for_random_cases(2_000, |random| {
        let configs: Vec<_> = (0..2 + random.upto(1)).map(|_| Config { max_debt: 0, ..config(random) }).collect();
        let lint = lint_of(&configs, random);
        let start = random.below(1_000);
        let phase = random.next();
        let mut buckets: Vec<_> = configs.iter().map(|&config| Bucket::new(config, start, phase)).collect();
        let taken = run(start, random, |random, now| take_from_all(&mut buckets, now, Some(random)));
        for admitted in &lint.together {
            assert!(most(&taken, admitted.period_ms) <= admitted.tokens, "{configs:?} within {}", admitted.period_ms);
        }
        // With two tokens and at most one per millisecond nothing overflows.
        let is_plain = |config: &Config| {
            config.kind == Kind::TokenBucket && config.capacity >= 2 && config.rate <= config.period_ms
        };
        if configs.iter().all(|config| is_plain(config) && config.rate > 0) {
            for admitted in &lint.together {
                let mut buckets: Vec<_> =
                    configs.iter().map(|&config| Bucket::new(Config { initial: None, ..config }, 0, 0)).collect();
                let all: u64 = moments(0, admitted.period_ms).map(|now| take_from_all(&mut buckets, now, None)).sum();
                assert_eq!(u128::from(all), admitted.tokens, "{configs:?} within {}", admitted.period_ms);
            }
        }
    });
}

#[test]
fn a_limit_that_never_decides_grants_whatever_the_others_grant() {
    let mut found = 0;
    for_random_cases(4_000, |random| {
        let configs = [config(random), config(random)];
        let lint = lint_of(&configs, random);
        for finding in lint.findings.iter().filter(|finding| finding.code == Code::NeverDecides) {
            let Some(index) = ["l0", "l1"].iter().position(|name| finding.limit.as_deref() == Some(name)) else {
                continue;
            };
            found += 1;
            let start = random.below(1_000);
            let phase = random.next();
            let [mut idle, mut tight] = [index, 1 - index].map(|index| Bucket::new(configs[index], start, phase));
            let mut now = start;
            for _ in 0..100 {
                now += random.below(4);
                let cost = random.upto(tight.remaining(now));
                assert!(
                    idle.remaining(now) >= cost,
                    "{:?} refuses {cost} at {now}: {:?}",
                    configs[index],
                    configs[1 - index]
                );
                let _ = tight.ask(now, cost, Verb::Consume);
                let _ = idle.ask(now, cost, Verb::Consume);
            }
        }
    });
    assert!(found > 0);
}

#[test]
fn times_match_exact_rationals_from_the_worst_moment() {
    for_random_cases(2_000, |random| {
        let config = config(random);
        let lint = lint_of(&[config], random);
        let facts = &lint.limits[0];
        let opening = i64::try_from(config.period_ms * 100 + config.offset_ms.unwrap_or(0)).unwrap();
        let full = Bucket::new(Config { initial: None, ..config }, opening, 0);
        let after = |at: Option<i64>| at.map(|at| at.abs_diff(opening));
        let lacking = |tokens| {
            let mut bucket = full.clone();
            let _ = bucket.ask(opening, tokens, Verb::Consume);
            after(bucket.full_at(opening))
        };
        assert_eq!(facts.full_after_ms, lacking(config.capacity), "{config:?}");
        assert_eq!(facts.crash.back_after_ms, lacking(facts.crash.tokens), "{config:?}");
        let mut indebted = full.clone();
        let _ = indebted.ask(opening, config.capacity + config.max_debt, Verb::Charge);
        let paid = match indebted.peek(opening, 0, Verb::Consume) {
            Decision::Allow { .. } => Some(0),
            Decision::Wait { retry_at } => Some(retry_at.abs_diff(opening)),
            Decision::Never { .. } => None,
        };
        assert_eq!(facts.debt.as_ref().map_or(Some(0), |debt| debt.paid_after_ms), paid, "{config:?}");
    });
}

/// A limit with few tokens and short times, so that every case occurs.
fn config(random: &mut Random) -> Config {
    let kind = [Kind::TokenBucket, Kind::TokenBucket, Kind::FixedWindow, Kind::FirstUseWindow]
        [usize::try_from(random.upto(3)).unwrap()];
    let longest = [5, 30][usize::from(random.upto(1) > 0)];
    let period_ms = 1 + random.upto(longest);
    let largest = [2, 12][usize::from(random.upto(1) > 0)];
    let capacity = random.upto(largest);
    let max_debt = if random.upto(2) > 0 { 0 } else { random.upto(5) };
    let initial = (kind != Kind::FirstUseWindow && random.upto(4) == 0).then(|| random.upto(capacity));
    let offset_ms = (kind == Kind::FixedWindow && random.upto(1) > 0).then(|| random.upto(period_ms - 1));
    Config {
        kind,
        rate: random.upto(12),
        period_ms,
        capacity,
        max_debt,
        initial,
        offset_ms,
        calendar: None,
        is_soft: false,
    }
}

/// The lint of a policy with these limits, `l0`, `l1` and so on, and four more: their periods are lengths of time for
/// which the lint says what the others admit, and they never refuse.
fn lint_of(configs: &[Config], random: &mut Random) -> Lint {
    let mut limits = String::new();
    for (index, config) in configs.iter().enumerate() {
        let Config { kind, rate, period_ms, capacity, max_debt, initial, offset_ms, .. } = *config;
        let kind_word = if kind == Kind::TokenBucket { "token_bucket" } else { "fixed_window" };
        let initial = initial.map_or_else(String::new, |initial| format!(r#","initial":{initial}"#));
        let is_from_first_use = kind == Kind::FirstUseWindow;
        let offset = match offset_ms {
            _ if is_from_first_use => r#","offset":"first_use""#.to_owned(),
            offset_ms => offset_ms.map_or_else(String::new, |ms| format!(r#","offset":"{ms}ms""#)),
        };
        let write_ahead = if is_from_first_use { 0 } else { random.upto(capacity) };
        write!(
            limits,
            r#"{{"name":"l{index}","kind":"{kind_word}","rate":{rate},"period":"{period_ms}ms","capacity":{capacity},
            "max_debt":{max_debt},"write_ahead":{write_ahead}{initial}{offset}}},"#
        )
        .unwrap();
    }
    for index in 0..4 {
        let period_ms = 1 + random.upto(60);
        write!(limits, r#"{{"name":"t{index}","rate":1000000,"period":"{period_ms}ms"}},"#).unwrap();
    }
    let json = format!(r#"{{"p":{{"limits":[{}]}}}}"#, limits.trim_end_matches(','));
    Policies::parse(&json).unwrap().get("p").unwrap().lint()
}

/// Every millisecond of a length of time, both ends included.
fn moments(start: i64, span_ms: u64) -> impl Iterator<Item = i64> {
    (0..=span_ms).map(move |ms| start.checked_add_unsigned(ms).unwrap())
}

/// What callers get who take all they can from this moment on, of a bucket that is full then, or of one in which a token has opened a window
/// that ends a millisecond later.
fn most_at_once(config: Config, from: i64, span_ms: u64, max_debt: u64) -> u64 {
    let full = Bucket::new(config, from, 0);
    let opened_at = from - i64::try_from(config.period_ms).unwrap() + 1;
    let mut opened = Bucket::new(config, opened_at, 0);
    let verb = if max_debt > 0 { Verb::Charge } else { Verb::Consume };
    let _ = opened.ask(opened_at, u64::from(config.kind == Kind::FirstUseWindow), verb);
    let taken =
        |mut bucket: Bucket| -> u64 { moments(from, span_ms).map(|now| take_all(&mut bucket, now, max_debt)).sum() };
    taken(full).max(taken(opened))
}

/// Takes all whole tokens, down to `-max_debt`.
fn take_all(bucket: &mut Bucket, now: i64, max_debt: u64) -> u64 {
    let there = (bucket.tokens_at(now) + i128::from(max_debt)).floor().to_integer();
    let cost = u64::try_from(there.max(0)).unwrap();
    let _ = bucket.ask(now, cost, if max_debt > 0 { Verb::Charge } else { Verb::Consume });
    cost
}

/// Takes from all buckets what all of them have, or a part of it.
fn take_from_all(buckets: &mut [Bucket], now: i64, random: Option<&mut Random>) -> u64 {
    let most = buckets.iter().map(|bucket| bucket.remaining(now)).min().unwrap();
    let cost = random.map_or(most, |random| random.upto(most));
    for bucket in buckets {
        let _ = bucket.ask(now, cost, Verb::Consume);
    }
    cost
}

/// The tokens taken at each moment, by callers at some milliseconds.
fn run(start: i64, random: &mut Random, mut ask: impl FnMut(&mut Random, i64) -> u64) -> Vec<(i64, u64)> {
    let mut now = start;
    (0..60)
        .map(|_| {
            now += random.below(4);
            (now, ask(random, now))
        })
        .collect()
}

/// The most that was taken within any `span_ms`.
fn most(taken: &[(i64, u64)], span_ms: u64) -> u128 {
    let within = |first: usize| {
        let (start, _) = taken[first];
        taken[first..]
            .iter()
            .take_while(|(at, _)| at.abs_diff(start) <= span_ms)
            .map(|(_, tokens)| u128::from(*tokens))
            .sum()
    };
    (0..taken.len()).map(within).max().unwrap_or(0)
}

fn any_verb(random: &mut Random) -> Verb {
    let max_wait_ms = (random.upto(1) > 0).then(|| random.upto(50));
    [Verb::Consume, Verb::Charge, Verb::ConsumeUpTo, Verb::Reserve { max_wait_ms }, Verb::Borrow { max_wait_ms }]
        [usize::try_from(random.upto(4)).unwrap()]
}

fn for_random_cases(cases: u64, mut law: impl FnMut(&mut Random)) {
    let (seed, cases) = chance::chosen(cases);
    let mut random = Random(seed);
    for _ in 0..cases {
        law(&mut random);
    }
}

impl Random {
    /// From 0 to `most`.
    fn upto(&mut self, most: u64) -> u64 {
        self.next() % (most + 1)
    }

    fn below(&mut self, bound: i64) -> i64 {
        self.next().cast_signed().rem_euclid(bound)
    }
}
