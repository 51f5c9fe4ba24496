//! The keyed limiter beside the obvious version: a map of exact states that forgets nothing.

mod anywhere;
mod chance;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use anywhere::test;
use proptest::prelude::*;
use tollgate::keyed::{Full, KeyedLimiter};
use tollgate::limit::{Calendar, Config, Decision, Limit, Part, State, Verb, Zone, decide_all};

type Hash = BuildHasherDefault<DefaultHasher>;

const START: i64 = 1_800_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Event {
    /// Since the last one; a little back, too.
    elapsed_ms: i64,
    key: u8,
    costs: [u64; 2],
    verb: Verb,
    /// A question about a moment so much later, or long before.
    peek_ms: i64,
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// The same decisions and tokens left as without eviction. A new key is refused for lack of room only while as many
    /// others as may be kept are not full, and not beyond the moment at which the first of them is.
    #[test]
    fn forgetting_changes_no_answer_and_at_most_max_keys_are_kept(
        limits in limits(),
        max_keys in 0_usize..10,
        events in prop::collection::vec(event(), 1..60),
    ) {
        let limiter = KeyedLimiter::<u8, 2, Hash>::with_hasher(limits, max_keys, Hash::default());
        let mut model: BTreeMap<u8, [State; 2]> = BTreeMap::new();
        let mut kept_until: BTreeMap<u8, i64> = BTreeMap::new();
        let (mut clock, mut now) = (START, i64::MIN);
        for Event { elapsed_ms, key, costs, verb, peek_ms } in events {
            clock = (clock + elapsed_ms).max(now.saturating_sub(60_000));
            now = now.max(clock);
            let new = || limits.map(|limit| limit.new_state(now, Hash::default().hash_one(key)));
            let is_needed = model.get(&key).is_some_and(|states| needed_until(&limits, states, now) > now);
            let before = model.get(&key).copied().unwrap_or_else(new);
            let mut expected = [0, 1].map(|i| Part::new(&limits[i], before[i], costs[i]));
            let decision = decide_all(&mut expected, now, verb);
            let after = expected.map(|part| part.state);
            let after_until = needed_until(&limits, &after, now);
            let peeked = limiter.peek(&key, clock, costs[0]);
            let answer = limiter.decide(&key, clock, costs, verb);
            prop_assert!(limiter.len() <= max_keys);
            if costs[0] == costs[1] && verb == Verb::Consume {
                let is_granted = answer.as_ref().is_ok_and(|answer| answer.decision.is_allow());
                prop_assert_eq!(peeked.is_ok_and(Decision::is_allow), is_granted);
                prop_assert_eq!(peeked.is_err(), answer.is_err());
            }
            match answer {
                Ok(answer) => {
                    prop_assert_eq!((answer.now, answer.decision), (now, decision));
                    for (part, expected) in answer.parts.iter().zip(&expected) {
                        prop_assert_eq!(part.decision, expected.decision);
                        let left = |part: &Part<'_>| part.limit.remaining(&part.state, now);
                        prop_assert_eq!(left(part), left(expected));
                    }
                    model.insert(key, after);
                    kept_until.insert(key, after_until);
                }
                Err(full) => {
                    let kept: Vec<_> = kept_until.values().copied().filter(|&at| at > now).collect();
                    prop_assert!(!is_needed && after_until > now && kept.len() >= max_keys);
                    let first = kept.into_iter().min().unwrap_or(i64::MAX);
                    prop_assert_eq!(full.now, now);
                    let may_be = full.retry_at.map_or(first == i64::MAX, |at| now < at && at <= first);
                    prop_assert!(may_be, "{full:?}, first {first}");
                }
            }
            let moment = now.max(clock + peek_ms);
            if let (Ok(peeked), true) = (limiter.peek(&key, clock + peek_ms, costs[0]), peek_ms >= 0) {
                let new = || limits.map(|limit| limit.new_state(moment, Hash::default().hash_one(key)));
                let states = model.get(&key).copied().unwrap_or_else(new);
                let mut expected = [0, 1].map(|i| Part::new(&limits[i], states[i], costs[0]));
                prop_assert_eq!(peeked, decide_all(&mut expected, moment, Verb::Consume), "in {} ms", peek_ms);
            }
        }
    }
}

/// The same number of tokens from each of many keys.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Since the last one; minutes back, too.
    elapsed_ms: i64,
    first_key: u16,
    keys: u16,
    cost: u64,
}

proptest! {
    #![proptest_config(chance::config(600))]

    /// With as many keys as need several blocks, of one shard or several, and with a clock that is set back further than a bucket
    /// tolerates, which several shards would notice one by one.
    #[test]
    fn many_keys_get_what_they_would_without_forgetting(
        (max_keys, may_step_back) in prop_oneof![(1_usize..=64, Just(true)), (65_usize..300, Just(false))],
        rate in 1_u64..4,
        capacity in 1_u64..4,
        config in prop::sample::select(vec![Config::token_bucket, Config::fixed_window, Config::first_use_window]),
        bursts in prop::collection::vec(burst(), 1..40),
    ) {
        let period = Duration::from_millis(700);
        let limit = Limit::new(&Config { capacity, ..config(rate, period) }).expect("small numbers are exact");
        let bursts = if may_step_back { bursts } else { forward(&bursts) };
        bursts_of_many_keys(&limit, max_keys, START, &bursts)?;
    }

    /// The same with windows of a calendar, over a day of 23 hours.
    #[test]
    fn many_keys_with_a_calendar_get_what_they_would_without_forgetting(
        max_keys in 1_usize..300,
        rate in 1_u64..4,
        capacity in 1_u64..4,
        zone in prop::sample::select(vec![&Zone::UTC, HELSINKI.as_ref().unwrap()]),
        bursts in prop::collection::vec(burst(), 1..40),
    ) {
        let limit = Limit::new(&Config { capacity, ..Config::calendar_window(rate, Calendar::day(zone)) }).expect("exact");
        let slowly = |burst: &Burst| Burst { elapsed_ms: burst.elapsed_ms * 40_000, ..*burst };
        let bursts: Vec<_> = forward(&bursts).iter().map(slowly).collect();
        bursts_of_many_keys(&limit, max_keys, SUMMER_TIME - 2 * 86_400_000, &bursts)?;
    }
}

/// Helsinki from 2026 on: its clocks are set forward on 28 March 2027, at 01:00 UTC.
static HELSINKI: Option<Zone> = Zone::new("Europe/Helsinki", &[(1_792_976_400_000, 7_200), (SUMMER_TIME, 10_800)]);
const SUMMER_TIME: i64 = 1_806_195_600_000;

/// The same bursts without steps back of the clock.
fn forward(bursts: &[Burst]) -> Vec<Burst> {
    bursts.iter().map(|burst| Burst { elapsed_ms: burst.elapsed_ms.max(0), ..*burst }).collect()
}

fn bursts_of_many_keys(limit: &Limit, max_keys: usize, start: i64, bursts: &[Burst]) -> Result<(), TestCaseError> {
    let limiter = KeyedLimiter::<u16, 1, Hash>::with_hasher([*limit], max_keys, Hash::default());
    let mut model: BTreeMap<u16, State> = BTreeMap::new();
    let mut now = start;
    for &Burst { elapsed_ms, first_key, keys, cost } in bursts {
        let before = now;
        now += elapsed_ms;
        if now < before {
            // All continue with their levels.
            for state in model.values_mut() {
                *state = limit.decide(limit.refilled(state, before), now, 0, Verb::Consume).1;
            }
        }
        for key in first_key..first_key + keys {
            let state = model.get(&key).copied().unwrap_or_else(|| limit.new_state(now, Hash::default().hash_one(key)));
            let (decision, after) = limit.decide(state, now, cost, Verb::Consume);
            let needed = |model: &BTreeMap<u16, State>| {
                let until = |state| limit.expires_at(state, now).expect("it refills");
                model.values().map(until).filter(|&until| until > now).collect::<Vec<_>>()
            };
            match limiter.consume(&key, now, cost) {
                Ok(answer) => {
                    prop_assert_eq!(answer, decision);
                    model.insert(key, after);
                }
                Err(full) => {
                    let others = needed(&model);
                    prop_assert!(others.len() == max_keys && limit.expires_at(&state, now) <= Some(now));
                    let first = others.into_iter().min();
                    prop_assert!(full.retry_at > Some(now) && full.retry_at <= first, "{full:?}, first {first:?}");
                }
            }
            prop_assert!(limiter.len() <= max_keys && limiter.len() >= needed(&model).len());
        }
    }
    Ok(())
}

fn burst() -> impl Strategy<Value = Burst> {
    let elapsed_ms = prop_oneof![6 => 0_i64..300, 2 => 0_i64..3_000, 1 => -200_000_i64..-61_000];
    let keys = prop_oneof![2 => 1_u16..5, 1 => 1_u16..120];
    let cost = prop_oneof![5 => Just(1), 1 => 0_u64..4];
    (elapsed_ms, 0_u16..400, keys, cost).prop_map(|(elapsed_ms, first_key, keys, cost)| Burst {
        elapsed_ms,
        first_key,
        keys,
        cost,
    })
}

/// Beyond this moment the states answer everything as new ones would.
fn needed_until(limits: &[Limit; 2], states: &[State; 2], now: i64) -> i64 {
    let each = [0, 1].map(|i| limits[i].expires_at(&states[i], now).unwrap_or(i64::MAX));
    each[0].max(each[1])
}

fn limits() -> impl Strategy<Value = [Limit; 2]> {
    let limit = (0_u64..4, 1_u64..3_000, 0_u64..5, 0_u64..3, 0_u8..3, prop::option::weighted(0.2, 0_u64..3));
    let limit = limit.prop_map(|(rate, period_ms, capacity, max_debt, kind, initial)| {
        let period = Duration::from_millis(period_ms);
        let config = match kind {
            0 => Config::token_bucket(rate, period),
            1 => Config::fixed_window(rate, period),
            _ => Config::first_use_window(rate, period),
        };
        let initial = initial.map(|tokens| tokens.min(capacity)).filter(|_| kind < 2);
        Limit::new(&Config { capacity, max_debt, initial, ..config }).expect("small numbers are exact")
    });
    [limit.clone(), limit]
}

fn event() -> impl Strategy<Value = Event> {
    let verb = prop_oneof![
        6 => Just(Verb::Consume),
        1 => Just(Verb::Reserve { max_wait_ms: None }),
        1 => Just(Verb::Borrow { max_wait_ms: Some(500) }),
        1 => Just(Verb::Charge),
        1 => Just(Verb::ConsumeUpTo),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Reset),
    ];
    let elapsed_ms = prop_oneof![4 => 0_i64..5, 3 => 0_i64..2_000, 1 => -2_000_i64..0];
    let costs = prop_oneof![(0_u64..4).prop_map(|cost| [cost; 2]), [0_u64..4, 0_u64..4]];
    let peek_ms = prop_oneof![2 => Just(0), 2 => 0_i64..5_000, 1 => -200_000_i64..7_200_000];
    (elapsed_ms, 0_u8..10, costs, verb, peek_ms).prop_map(|(elapsed_ms, key, costs, verb, peek_ms)| Event {
        elapsed_ms,
        key,
        costs,
        verb,
        peek_ms,
    })
}

/// When a full table may have room.
fn full_until(answer: Result<Decision, Full>) -> Option<i64> {
    answer.expect_err("no entry is free").retry_at
}

fn per_second(rate: u64) -> [Limit; 1] {
    [Limit::new(&Config::token_bucket(rate, Duration::from_secs(1))).expect("exact")]
}

#[test]
fn a_thread_whose_clock_is_behind_finds_no_bucket_full_too_early() {
    let limiter = KeyedLimiter::<u32>::new(per_second(5), 10);
    assert!(limiter.try_consume(&1, START, 5));
    assert!(limiter.try_consume(&2, START + 1_000, 1)); // forgets key 1
    assert_eq!(limiter.len(), 1);
    assert!(limiter.try_consume(&1, START + 999, 5));
    assert_eq!(limiter.consume(&1, START + 999, 1), Ok(Decision::Wait { retry_at: START + 1_200 }));
}

#[test]
fn a_clock_that_is_set_back_by_a_year_keeps_no_key_for_that_long() {
    let limiter = KeyedLimiter::<u32>::new(per_second(5), 10);
    (0..10).for_each(|key| assert!(limiter.try_consume(&key, START, 5)));
    let earlier = START - 365 * 86_400_000;
    assert_eq!(full_until(limiter.consume(&10, earlier, 1)), Some(earlier + 1_000));
    assert_eq!(limiter.consume(&0, earlier + 500, 3), Ok(Decision::Wait { retry_at: earlier + 600 }));
    assert!(!limiter.try_consume(&10, earlier + 999, 1));
    assert!(limiter.try_consume(&10, earlier + 1_000, 1));
    assert!(limiter.len() < 10);
}

#[test]
fn no_decision_forgets_many_keys_but_all_are_forgotten_in_the_end() {
    let limiter = KeyedLimiter::<u32>::new(per_second(1), 100_000);
    (0..10_000).for_each(|key| assert!(limiter.try_consume(&key, START, 1)));
    for later in 0..20_000_u32 {
        let before = limiter.len();
        assert!(limiter.try_consume(&later, START + 5_000 + 1_000 * i64::from(later), 1));
        assert!(before - limiter.len().min(before) <= 2);
    }
    assert!(limiter.len() <= 200, "{}", limiter.len());
}

#[test]
fn a_question_about_another_time_changes_nothing() {
    let limiter = KeyedLimiter::<u32>::new([Limit::new(&Config::token_bucket(1, Duration::from_hours(1))).unwrap()], 1);
    assert!(limiter.try_consume(&1, START, 1));
    for (key, later_ms, is_granted) in [(1, 3_600_000, true), (1, 3_599_999, false), (1, -3_600_000, false)] {
        assert_eq!(limiter.peek(&key, START + later_ms, 1).unwrap().is_allow(), is_granted, "{later_ms}");
    }
    assert_eq!(full_until(limiter.peek(&2, START + 3_599_999, 1)), Some(START + 3_600_000));
    assert!(limiter.peek(&2, START + 3_600_000, 1).unwrap().is_allow());
    assert_eq!(limiter.consume(&1, START + 1_000, 1), Ok(Decision::Wait { retry_at: START + 3_600_000 }));
    assert_eq!(full_until(limiter.consume(&2, START + 1_000, 1)), Some(START + 3_600_000));
}

/// As where a key's tokens are a number of calls at once.
#[test]
fn a_key_whose_tokens_were_all_given_back_makes_room() {
    let config = Config { capacity: 5, ..Config::token_bucket(0, Duration::from_secs(1)) };
    for verb in [Verb::Refund, Verb::Reset] {
        let limiter = KeyedLimiter::<u32>::new([Limit::new(&config).unwrap()], 2);
        for key in 0..100 {
            assert!(limiter.try_consume(&key, START, 5), "{key}");
            assert!(limiter.decide(&key, START, [5], verb).unwrap().decision.is_allow());
        }
    }
}

#[cfg(not(target_family = "wasm"))]
#[test]
fn a_panic_while_a_key_is_cloned_takes_no_entry() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(bool);
    impl Clone for Key {
        fn clone(&self) -> Self {
            assert!(!self.0, "it cannot be cloned");
            Self(self.0)
        }
    }
    let limiter = KeyedLimiter::<Key>::new(per_second(1), 1);
    let take = |key: &Key| limiter.try_consume(key, START, 1);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| take(&Key(true)))).is_err());
    assert!(limiter.is_empty() && take(&Key(false)));
}

#[cfg(not(target_family = "wasm"))]
#[test]
fn a_panic_while_keys_are_forgotten_leaves_room_for_as_many_as_before() {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    thread_local!(static FAILS_AT: Cell<u32> = const { Cell::new(u32::MAX) });
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Key(u32);
    impl Drop for Key {
        fn drop(&mut self) {
            let left = FAILS_AT.get();
            FAILS_AT.set(left.wrapping_sub(1));
            assert!(left > 0, "it cannot be dropped");
        }
    }
    let limiter = KeyedLimiter::<Key>::new(per_second(1), 3);
    for round in 0..12 {
        let now = START + i64::from(round) * 2_000;
        FAILS_AT.set(u32::MAX);
        let keys: Vec<_> = (0..4).map(|key| Key(key + 4 * round)).collect();
        for key in &keys[..3] {
            assert!(limiter.try_consume(key, now, 1), "round {round}");
        }
        // All three are full again, and are forgotten for the next.
        FAILS_AT.set(round % 4);
        let forgets = catch_unwind(AssertUnwindSafe(|| limiter.try_consume(&keys[3], now + 1_000, 1)));
        assert_eq!(forgets.is_err(), round % 4 < 3);
        FAILS_AT.set(u32::MAX);
    }
}

/// As with a map: `Arc<str>` is found by `str`.
#[test]
fn a_key_is_given_in_a_form_from_which_it_can_be_made() {
    let shared = KeyedLimiter::<std::sync::Arc<str>>::new(per_second(1), 3);
    let boxed = KeyedLimiter::<Box<[u8]>>::new(per_second(1), 3);
    for is_granted in [true, false] {
        assert_eq!(shared.try_consume("alice", START, 1), is_granted);
        assert_eq!(boxed.try_consume(&b"alice"[..], START, 1), is_granted);
    }
}

/// At rate 0, and in a table for no keys, no moment would be true.
#[test]
fn a_table_that_is_full_for_good_gives_no_moment() {
    let budget =
        [Limit::new(&Config { capacity: 1, ..Config::token_bucket(0, Duration::from_secs(1)) }).expect("exact")];
    let limiter = KeyedLimiter::<u32>::new(budget, 1);
    assert!(limiter.try_consume(&1, START, 1));
    assert_eq!(limiter.consume(&1, START, 1), Ok(Decision::Never { max: 0 }));
    assert_eq!(full_until(limiter.consume(&2, START, 1)), None);
    assert_eq!(full_until(KeyedLimiter::<u32>::new(per_second(1), 0).consume(&1, START, 1)), None);
}

/// With one key for each token of time: what an attacker can and cannot do.
#[test]
fn a_full_table_refuses_new_keys_and_serves_the_others() {
    let limiter = KeyedLimiter::<u32>::new(per_second(2), 1_000);
    (0..1_000).for_each(|key| assert!(limiter.try_consume(&key, START, 1)));
    assert_eq!(full_until(limiter.consume(&1_000, START, 1)), Some(START + 500));
    assert_eq!(full_until(limiter.peek(&1_000, START, 1)), Some(START + 500));
    assert_eq!(limiter.consume(&1_000, START, 3), Ok(Decision::Never { max: 2 })); // whether or not there is room
    assert!((0..1_000).all(|key| limiter.try_consume(&key, START, 1)));
    assert!((0..1_000).all(|key| !limiter.try_consume(&key, START, 1)));
    assert!(!limiter.try_consume(&1_000, START + 999, 1));
    assert!(limiter.try_consume(&1_000, START + 1_000, 1));
}

#[cfg(not(target_family = "wasm"))]
#[test]
fn concurrent_threads_get_exactly_each_keys_capacity_and_max_keys_keys() {
    let limiter = KeyedLimiter::<u32>::new(per_second(7), 500);
    let granted: Vec<BTreeMap<u32, u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u32)
            .map(|thread| {
                let limiter = &limiter;
                scope.spawn(move || {
                    let mut granted = BTreeMap::new();
                    for i in 0..40_000_u32 {
                        let key = i.wrapping_mul(2 * thread + 1) % 1_000;
                        if limiter.try_consume(&key, START, 1) {
                            *granted.entry(key).or_default() += 1;
                        }
                        assert!(limiter.len() <= 500);
                    }
                    granted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let mut total = BTreeMap::<u32, u32>::new();
    for (key, count) in granted.into_iter().flatten() {
        *total.entry(key).or_default() += count;
    }
    assert_eq!(total.len(), 500);
    assert!(total.values().all(|&count| count == 7), "{total:?}");
}

/// On a day of 23 hours, too.
#[test]
fn a_table_full_of_calendar_windows_has_room_when_the_next_one_opens() {
    let calendar = Calendar::day(HELSINKI.as_ref().unwrap());
    let (opens, ends) = (SUMMER_TIME - 3 * 3_600_000, SUMMER_TIME + 20 * 3_600_000);
    for (taken_at, until) in [(opens - 1, opens), (opens, ends), (ends - 1, ends), (ends, ends + 86_400_000)] {
        let limiter = KeyedLimiter::<u32>::new([Limit::new(&Config::calendar_window(1, calendar)).unwrap()], 2);
        for key in [1, 2] {
            assert!(limiter.try_consume(&key, taken_at, 1));
        }
        for now in [taken_at, until - 1] {
            assert_eq!(limiter.consume(&1, now, 1), Ok(Decision::Wait { retry_at: until }));
            assert_eq!(full_until(limiter.consume(&3, now, 1)), Some(until));
            assert_eq!(full_until(limiter.peek(&3, now, 1)), Some(until));
        }
        assert!(limiter.try_consume(&3, until, 1) && limiter.len() <= 2);
        assert!(limiter.try_consume(&1, until, 1), "its window is a new one, too");
        assert!(!limiter.try_consume(&2, until, 1), "there is no room for a third");
    }
}
