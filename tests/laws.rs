//! Laws: claims about every limit, every sequence of requests and every behaviour of the clock, tried on random ones
//! close to the boundaries.

mod anywhere;
mod chance;
mod oracle;

use std::time::Duration;

use anywhere::test;
use num_bigint::BigInt;
use num_integer::Integer;
use oracle::{Model, tokens_of};
use proptest::prelude::*;
use proptest::sample::select;
use tollgate::limit::{
    Carry, Config, ConfigError, Decision, Kind, Limit, MAX_SPAN_MS, MAX_STEP_BACK_MS, MAX_TOKENS, Part, Record,
    Snapshot, State, Verb, decide_all, encode, jitter,
};

/// An event of a bucket.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The clock moves by this many milliseconds, mostly forward.
    Clock(i64),
    Ask(u64, Verb),
    /// The limit's numbers change.
    Change(Config, Carry),
}

const START: i64 = 1_700_000_000_000;

/// Moments up to here, before and after the epoch, are answered exactly.
const EXACT: u64 = 1 << 52;

/// By then every bucket of [`START`] is full: the longest time to pay a debt, and as long again to fill up.
const FURTHEST: i64 = START + (2 << 51);

proptest! {
    #![proptest_config(chance::config(6_000))]

    /// The central law: the same decision and the same level after any sequence of events.
    #[test]
    fn decides_like_exact_rationals((config, start, phase, events) in (configs(), starts(), any::<u64>(), events())) {
        let mut limit = Limit::new(&config).unwrap();
        let mut now = start;
        let mut state = limit.new_state(now, phase);
        let mut model = Model::<BigInt>::new(config, now, phase);
        for event in events {
            match event {
                Event::Clock(step_ms) => now += step_ms,
                Event::Ask(cost, verb) => {
                    let expected = model.ask(now, cost, verb);
                    let (decision, next) = limit.decide(state, now, cost, verb);
                    prop_assert_eq!(decision, expected, "{:?} of {} at {} from {:?} of {:?}", verb, cost, now, state, limit);
                    if verb == Verb::Consume {
                        let mut used = state;
                        prop_assert_eq!((limit.consume(&mut used, now, cost), used), (decision, next));
                        let mut used = state;
                        prop_assert_eq!((limit.try_consume(&mut used, now, cost), used), (decision.is_allow(), next));
                    }
                    state = next;
                }
                Event::Change(config, how) => {
                    let new = Limit::new(&config).unwrap();
                    state = new.carry(&limit, state, how, now, phase);
                    model = model.carry(config, how, now, phase);
                    limit = new;
                }
            }
            prop_assert_eq!(tokens_of::<BigInt>(state, limit.config()), model.tokens.clone());
            prop_assert_eq!(limit.remaining(&state, now), model.remaining(now));
            prop_assert_eq!(limit.owed(&state, now), model.owed(now));
            prop_assert_eq!(limit.full_at(&state, now), model.full_at(now));
        }
    }

    /// With the widest numbers, levels above the capacity and far below zero, costs whose drops do not fit, and any clock.
    #[test]
    fn consume_agrees_with_decide(
        (config, steps) in (wide_configs(), prop::collection::vec((moments(), wild_costs(), prop::option::of(wild_costs()), any::<bool>()), 1..20))
    ) {
        // Beyond the exact moments, sums saturate in a different order.
        let within = |now: i64, decision| match decision {
            Decision::Wait { .. } if now.unsigned_abs() > EXACT => Decision::Wait { retry_at: i64::MAX },
            Decision::Wait { retry_at } => Decision::Wait { retry_at: retry_at.min(1 << 60) },
            other => other,
        };
        let limit = Limit::new(&config).unwrap();
        let mut state = limit.new_state(steps[0].0, u64::MAX);
        for (now, cost, tokens, is_raised) in steps {
            if let Some(tokens) = tokens {
                state = if is_raised { limit.raised(&state, tokens) } else { limit.lowered(&state, tokens) };
            }
            let capacity = config.capacity;
            for cost in [cost, limit.remaining(&state, now), limit.remaining(&state, now) + 1, capacity, capacity + 1] {
                let (decision, next) = limit.decide(state, now, cost, Verb::Consume);
                let (mut used, mut tried) = (state, state);
                let consumed = limit.consume(&mut used, now, cost);
                prop_assert_eq!((within(now, consumed), used), (within(now, decision), next), "{} at {} of {:?}", cost, now, limit);
                prop_assert_eq!((limit.try_consume(&mut tried, now, cost), tried), (decision.is_allow(), next));
            }
            state = limit.decide(state, now, cost, Verb::Consume).1;
        }
    }

    /// A soft limit takes as a hard one is charged, whatever the verb, on the fast path as well.
    #[test]
    fn a_soft_limit_takes_as_a_hard_one_is_charged((config, start, events) in (configs(), starts(), events())) {
        let hard = Limit::new(&config).unwrap();
        let soft = Limit::new(&Config { is_soft: true, ..config }).unwrap();
        let (mut state, mut now) = (hard.new_state(start, 0), start);
        for event in events {
            match event {
                Event::Clock(step_ms) => now += step_ms,
                Event::Ask(cost, verb) => {
                    let expected = hard.decide(state, now, cost, if verb.takes() { Verb::Charge } else { verb });
                    prop_assert_eq!(soft.decide(state, now, cost, verb), expected);
                    prop_assert!(expected.0.is_allow() && soft.largest(verb) == MAX_TOKENS);
                    if verb == Verb::Consume {
                        let (mut consumed, mut tried) = (state, state);
                        prop_assert_eq!((soft.consume(&mut consumed, now, cost), consumed), expected);
                        prop_assert_eq!((soft.try_consume(&mut tried, now, cost), tried), (true, expected.1));
                    }
                    state = expected.1;
                }
                Event::Change(..) => {}
            }
        }
    }

    #[test]
    fn a_wait_is_refused_at_every_earlier_millisecond_and_granted_at_its_end(
        (config, events, cost, verb, samples) in (configs(), events(), costs(), verbs(), prop::collection::vec(any::<u64>(), 20))
    ) {
        let limit = Limit::new(&config).unwrap();
        let (state, now) = after(&limit, &events);
        if let (Decision::Wait { retry_at }, unmoved) = limit.decide(state, now, cost, verb) {
            prop_assert!(retry_at > now);
            let wait_ms = retry_at.abs_diff(now);
            for at in samples.iter().map(|sample| now + signed(sample % wait_ms)).chain([retry_at - 1]) {
                prop_assert!(!limit.decide(unmoved, at, cost, verb).0.is_allow(), "granted early, at {}", at);
            }
            prop_assert!(limit.decide(unmoved, retry_at, cost, verb).0.is_allow());
        }
    }

    #[test]
    fn never_means_never_and_its_largest_cost_passes_once_full((config, events, cost, verb) in (configs(), events(), costs(), verbs())) {
        let limit = Limit::new(&config).unwrap();
        let (state, now) = after(&limit, &events);
        if let (Decision::Never { max }, state) = limit.decide(state, now, cost, verb) {
            prop_assert!(max < cost || limit.owed(&state, now) > 0 || config.capacity == 0);
            prop_assert!(config.rate == 0 || verb == Verb::ConsumeUpTo || max == limit.largest(verb));
            if let Some(full_at) = limit.full_at(&state, now) {
                // Once the bucket is no longer ahead of a clock that stepped back.
                let full_at = full_at + MAX_STEP_BACK_MS;
                // Throughout a window, including its last millisecond, when a short wait reaches the next one.
                let into_ms = (full_at - signed(config.offset_ms.unwrap_or(0))).rem_euclid(signed(config.period_ms));
                let last = full_at - into_ms + signed(config.period_ms) - 1;
                let passes = |at: i64, cost| at >= full_at && limit.decide(state, at, cost, verb).0.is_allow();
                let best = |cost| (0..64).any(|part| passes(last - signed(config.period_ms) / 64 * part, cost));
                prop_assert!(!best(cost));
                prop_assert!(verb == Verb::ConsumeUpTo || best(max), "the largest cost {} does not pass", max);
                prop_assert!(verb == Verb::ConsumeUpTo || !best(max + 1), "one more than {} passes", max);
            }
        }
    }

    #[test]
    fn a_full_bucket_says_that_one_more_than_the_largest_cost_is_never((config, verb) in (configs(), verbs())) {
        let limit = Limit::new(&Config { initial: None, ..config }).unwrap();
        let (full, largest) = (limit.new_state(START, 0), limit.largest(verb));
        match verb {
            Verb::Consume | Verb::Reserve { .. } | Verb::Borrow { .. } => {
                prop_assert_eq!(limit.decide(full, START, largest + 1, verb).0, Decision::Never { max: largest });
                let is_never = matches!(limit.decide(full, START, largest, verb).0, Decision::Never { .. });
                prop_assert!(!is_never);
            }
            _ => prop_assert_eq!(largest, MAX_TOKENS),
        }
    }

    #[test]
    fn a_state_above_another_stays_above_and_a_lowered_one_is_below(
        (config, events, others, tokens, later_ms) in (configs(), events(), events(), 0..1_000_u64, steps_forward())
    ) {
        let limit = Limit::new(&config).unwrap();
        let ((state, now), (other, _)) = (after(&limit, &events), after(&limit, &others));
        if let Some(surplus) = limit.surplus_over(&state, &other, now) {
            let later = now + later_ms;
            prop_assert!(limit.surplus_over(&state, &other, later).is_some());
            prop_assert!(limit.remaining(&state, later) >= limit.remaining(&other, later));
            prop_assert!(surplus <= config.capacity + limit.owed(&other, now) + 1);
        }
        let lowered = limit.lowered(&state, tokens);
        prop_assert!(limit.surplus_over(&state, &lowered, now).is_some_and(|surplus| surplus <= tokens));
        prop_assert_eq!(limit.lowered(&state, 0), state);
        let refilled = limit.refilled(&state, now);
        prop_assert_eq!(limit.refilled(&refilled, now), refilled);
        let follows_clock = limit.decide(state, now, u64::MAX, Verb::Consume).1 != state;
        for at in [now, now + later_ms].into_iter().filter(|_| !follows_clock) {
            prop_assert_eq!(limit.remaining(&refilled, at), limit.remaining(&state, at));
            prop_assert_eq!(limit.owed(&refilled, at), limit.owed(&state, at));
        }
    }

    #[test]
    fn a_decision_that_moves_nothing_leaves_the_state_as_it_was((config, events, cost, verb) in (configs(), events(), costs(), verbs())) {
        let limit = Limit::new(&config).unwrap();
        let (state, now) = after(&limit, &events);
        let state = limit.decide(state, now, 0, Verb::Refund).1; // follows a clock that stepped back too far
        let (decision, next) = limit.decide(state, now, cost, verb);
        match decision {
            Decision::Allow { tokens, .. } if cost > 0 && tokens > 0 => prop_assert!(next != state),
            Decision::Allow { .. } if cost > 0 || verb == Verb::Reset => {} // a part of a token may have moved
            _ => prop_assert_eq!(next, state),
        }
    }

    /// The promise in the documentation, over every pair of moments of a run.
    #[test]
    fn admits_at_most_the_capacity_and_the_refill(
        (config, asks) in (configs(), prop::collection::vec((steps_forward(), costs()), 1..60))
    ) {
        let limit = Limit::new(&Config { initial: None, ..config }).unwrap();
        let mut now = START;
        let mut state = limit.new_state(now, 0);
        let mut admitted: Vec<(i64, u128)> = Vec::new();
        for (step_ms, cost) in asks {
            now += step_ms;
            if limit.consume(&mut state, now, cost).is_allow() {
                admitted.push((now, u128::from(cost)));
            }
        }
        for (first, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (to, cost) in &admitted[first..] {
                sum += cost;
                let elapsed_ms = u128::from(to.abs_diff(*from));
                let back = match config.kind {
                    Kind::TokenBucket => u128::from(config.rate) * elapsed_ms / u128::from(config.period_ms),
                    // At most this many windows can open in that time.
                    Kind::FixedWindow | Kind::FirstUseWindow => u128::from(config.rate) * elapsed_ms.div_ceil(u128::from(config.period_ms)),
                    _ => unreachable!("a new kind"),
                };
                prop_assert!(sum <= u128::from(config.capacity) + back);
            }
        }
    }

    #[test]
    fn an_expired_bucket_is_a_new_one_and_a_millisecond_before_it_is_not((config, events) in (configs(), events())) {
        let limit = Limit::new(&config).unwrap();
        let (state, now) = after(&limit, &events);
        let state = limit.decide(state, now, 0, Verb::Refund).1; // follows a clock that stepped back too far
        let is_new = |at| {
            let new = limit.new_state(at, 0);
            [Verb::Consume, Verb::Reserve { max_wait_ms: None }].iter().all(|&verb| {
                [0, 1, config.capacity, config.capacity + 1, config.capacity + config.max_debt]
                    .iter()
                    .all(|&cost| limit.decide(state, at, cost, verb).0 == limit.decide(new, at, cost, verb).0)
            }) && limit.full_at(&state, at) == limit.full_at(&new, at)
        };
        if let Some(expires_at) = limit.expires_at(&state, now) {
            prop_assert!(is_new(expires_at));
            prop_assert!(is_new(expires_at + 1) && is_new(expires_at + 1_000_000_007));
            // A millisecond earlier it was not like new, or it was only ahead of the clock.
            prop_assert!(expires_at == now || limit.remaining(&state, expires_at - 1) == config.capacity || !is_new(expires_at - 1));
        } else {
            prop_assert!(config.rate == 0 || config.initial.is_some());
        }
    }

    #[test]
    fn carries_the_widest_numbers_over_like_exact_rationals(
        (old, new, cost, how, later_ms, phase) in (wide_configs(), wide_configs(), costs(), carries(), 0..1_i64 << 51, any::<u64>())
    ) {
        let (limit, now) = (Limit::new(&old).unwrap(), START + later_ms);
        let mut state = limit.new_state(START, phase);
        let mut model = Model::<BigInt>::new(old, START, phase);
        prop_assert_eq!(limit.charge(&mut state, START, cost), model.ask(START, cost, Verb::Charge));
        let carried = Limit::new(&new).unwrap().carry(&limit, state, how, now, phase);
        prop_assert_eq!(tokens_of::<BigInt>(carried, &new), model.carry(new, how, now, phase).tokens);
    }

    /// With the widest accepted numbers, after debts that only other numbers allowed, and over the longest times.
    #[test]
    fn a_bucket_is_full_from_the_promised_moment_on_and_not_a_millisecond_before(
        (old, new, cost, how, later_ms) in (wide_configs(), wide_configs(), costs(), carries(), 0..i64::MAX - FURTHEST)
    ) {
        let (old, new) = (Limit::new(&old).unwrap(), Limit::new(&new).unwrap());
        let mut spent = old.new_state(START, 0);
        let _ = old.charge(&mut spent, START, cost);
        let state = new.carry(&old, spent, how, START, 0);
        if let Some(full_at) = new.full_at(&state, START) {
            prop_assert!((START..=FURTHEST).contains(&full_at), "{}", full_at);
            for at in [full_at, full_at + 1, full_at.max(later_ms), full_at + later_ms] {
                prop_assert_eq!(new.remaining(&state, at), new.config().capacity);
                prop_assert_eq!(new.full_at(&state, at), Some(at));
            }
            prop_assert!(full_at == START || new.full_at(&state, full_at - 1) == Some(full_at));
        } else {
            prop_assert_eq!(new.config().rate, 0);
        }
    }

    /// Nothing overflows, which would panic here, and within the exact moments no wait is endless.
    #[test]
    fn no_clock_breaks_a_bucket_or_locks_it(
        (config, asks) in (wide_configs(), prop::collection::vec((moments(), costs(), verbs()), 1..20))
    ) {
        let limit = Limit::new(&config).unwrap();
        let mut state = limit.new_state(asks[0].0, u64::MAX);
        let are_exact = asks.iter().all(|(now, ..)| now.unsigned_abs() <= EXACT);
        for (now, cost, verb) in asks {
            let (decision, next) = limit.decide(state, now, cost, verb);
            state = next;
            if let Decision::Wait { retry_at } = decision && are_exact {
                // Until the clock has caught up, the debt is paid and the tokens are there.
                let longest_ms = MAX_STEP_BACK_MS + 2 * signed(MAX_SPAN_MS);
                prop_assert!(now < retry_at && retry_at <= now + longest_ms, "{}", retry_at);
            }
            prop_assert!(limit.remaining(&state, now) <= config.capacity);
            prop_assert!(limit.owed(&state, now) <= config.max_debt || !are_exact);
        }
    }

    #[test]
    fn several_limits_take_from_all_or_from_none(
        (configs, events, asks) in (prop::collection::vec(configs(), 0..5), events(), prop::collection::vec((steps_forward(), prop::collection::vec(costs(), 5), verbs()), 1..10))
    ) {
        let limits: Vec<_> = configs.iter().map(|config| Limit::new(config).unwrap()).collect();
        let mut now = START;
        let mut states: Vec<_> = limits.iter().map(|limit| after(limit, &events).0).collect();
        for (step_ms, costs, verb) in asks {
            now += step_ms;
            let mut parts: Vec<_> =
                limits.iter().zip(&states).zip(&costs).map(|((limit, &state), &cost)| Part::new(limit, state, cost)).collect();
            let decision = decide_all(&mut parts, now, verb);
            // A cost of zero beside another does not decide: its limit agrees, as it does to giving nothing back.
            let has_cost = verb.takes() && parts.iter().any(|part| part.cost > 0);
            let of_part = |part: &Part<'_>| if has_cost && part.cost == 0 { Verb::Refund } else { verb };
            let alone: Vec<_> = parts.iter().zip(&states).map(|(part, &state)| part.limit.decide(state, now, part.cost, of_part(part))).collect();
            if verb != Verb::ConsumeUpTo {
                for (part, (alone, _)) in parts.iter().zip(&alone) {
                    prop_assert_eq!(part.decision, *alone);
                }
            }
            prop_assert_eq!(decision.is_allow(), alone.iter().all(|(alone, _)| alone.is_allow()));
            match decision {
                Decision::Allow { ready_at, tokens } => {
                    for (part, (_, next)) in parts.iter().zip(&alone) {
                        if verb == Verb::ConsumeUpTo {
                            let Decision::Allow { tokens: own, .. } = part.decision else { panic!("{:?}", part.decision) };
                            prop_assert_eq!(own, tokens.min(part.cost));
                        } else {
                            prop_assert_eq!(part.state, *next);
                        }
                    }
                    if verb == Verb::ConsumeUpTo {
                        let had = parts.iter().zip(&states).filter(|(part, _)| part.cost > 0);
                        let least = had.map(|(part, state)| part.limit.remaining(state, now)).min();
                        let most_asked = parts.iter().map(|part| part.cost).max();
                        prop_assert_eq!(Some(tokens), least.min(most_asked).or(Some(0)));
                    }
                    // The most tokens and the latest start; of no limits at all, nothing and now.
                    let own = |part: &Part<'_>| match part.decision {
                        Decision::Allow { tokens, ready_at } => (tokens, ready_at),
                        other => panic!("{other:?}"),
                    };
                    prop_assert_eq!(tokens, parts.iter().map(|part| own(part).0).max().unwrap_or(0));
                    prop_assert_eq!(ready_at, parts.iter().map(|part| own(part).1).max().unwrap_or(now));
                }
                Decision::Wait { retry_at } => {
                    // The longest wait is exact for all parts together, just as for each part alone.
                    let mut later = parts.clone();
                    let passes_for_good = |part: &Part<'_>| {
                        let is_bounded = matches!(verb, Verb::Reserve { max_wait_ms: Some(_) });
                        !is_bounded || part.limit.config().kind == Kind::TokenBucket || part.cost <= part.limit.config().capacity
                    };
                    if parts.iter().all(passes_for_good) {
                        prop_assert!(decide_all(&mut later, retry_at, verb).is_allow());
                    }
                    let mut earlier = parts.clone();
                    prop_assert!(!decide_all(&mut earlier, retry_at - 1, verb).is_allow());
                }
                Decision::Never { max } => {
                    let own = |alone: &(Decision, State)| match alone.0 {
                        Decision::Never { max } => Some(max),
                        _ => None,
                    };
                    prop_assert_eq!(Some(max), alone.iter().filter_map(own).min());
                }
            }
            if !decision.is_allow() {
                for (part, (limit, &state)) in parts.iter().zip(limits.iter().zip(&states)) {
                    prop_assert_eq!(part.state, limit.decide(state, now, 0, Verb::Refund).1);
                }
            }
            states = parts.iter().map(|part| part.state).collect();
        }
    }

    #[test]
    fn a_record_survives_a_round_trip((configs, events, version) in (prop::collection::vec(configs(), 0..4), events(), any::<u64>())) {
        let states: Vec<State> = configs.iter().map(|config| after(&Limit::new(config).unwrap(), &events).0).collect();
        let bytes: Vec<u8> = encode(version, states.iter().copied()).collect();
        prop_assert_eq!(bytes.len(), 9 + 16 * states.len());
        let record = Record::parse(&bytes).unwrap();
        prop_assert_eq!(record.policy_version(), version);
        prop_assert!(record.states().eq(states.iter().copied()));
        for len in 0..bytes.len() {
            prop_assert_eq!(Record::parse(&bytes[..len]).is_ok(), len >= 9 && (len - 9) % 16 == 0);
        }
    }

    #[test]
    fn a_snapshot_is_exact_in_json_and_restores_the_same_state((config, events) in (configs(), events())) {
        let limit = Limit::new(&config).unwrap();
        let (state, now) = after(&limit, &events);
        for state in [state, limit.refilled(&state, now)] {
            let snapshot = limit.snapshot(&state);
            prop_assert_eq!(limit.restored(&snapshot), Some(state));
            prop_assert!((-signed(config.max_debt)..=signed(config.capacity)).contains(&snapshot.tokens));
            prop_assert!(snapshot.drops < config.period_ms && snapshot.at.unsigned_abs() <= MAX_TOKENS);
            prop_assert_eq!(tokens_of::<BigInt>(state, &config).floor().to_integer(), BigInt::from(snapshot.tokens));
        }
    }

    /// With the widest numbers, in debts that only other numbers allow, and in copies that lag behind.
    #[test]
    fn a_snapshot_of_the_deepest_debts_restores_the_same_state(
        (old, new, cost, how, later_ms, tokens) in (wide_configs(), wide_configs(), costs(), carries(), 0..1_i64 << 51, costs())
    ) {
        let (old, new) = (Limit::new(&old).unwrap(), Limit::new(&new).unwrap());
        let mut spent = old.new_state(START, 0);
        let _ = old.charge(&mut spent, START, cost);
        let carried = new.carry(&old, spent, how, START + later_ms, 0);
        for state in [carried, new.lowered(&carried, tokens)] {
            prop_assert_eq!(new.restored(&new.snapshot(&state)), Some(state));
        }
    }

    #[test]
    fn a_snapshot_is_restored_if_a_bucket_can_have_its_state(
        (config, tokens, drops, at) in (wide_configs(), wild_tokens(), wild_drops(), any::<i64>())
    ) {
        let limit = Limit::new(&config).unwrap();
        let drops_per_token = match config.kind {
            Kind::TokenBucket => config.period_ms / config.rate.gcd(&config.period_ms),
            Kind::FixedWindow | Kind::FirstUseWindow => 1,
            _ => unreachable!("a new kind"),
        };
        let level = i128::from(tokens) * i128::from(drops_per_token) + i128::from(drops);
        let full = i128::from(config.capacity) * i128::from(drops_per_token);
        let can_be = drops < drops_per_token && (-1 << 61..=full).contains(&level);
        let snapshot = Snapshot { tokens, drops, at };
        let restored = limit.restored(&snapshot);
        prop_assert_eq!(restored.map(|state| limit.snapshot(&state)), can_be.then_some(snapshot));
    }

    #[test]
    fn jitter_only_adds_and_no_more_than_requested((at, spread_ms, random) in (0..1_i64 << 53, 0..1_u64 << 40, any::<u64>())) {
        let spread = jitter(at, Duration::from_millis(spread_ms), random);
        prop_assert!((at..=at + signed(spread_ms)).contains(&spread));
        prop_assert_eq!(jitter(at, Duration::from_millis(spread_ms), 0), at);
        prop_assert_eq!(jitter(at, Duration::from_millis(spread_ms), u64::MAX), at + signed(spread_ms));
    }

    #[test]
    fn the_largest_value_that_an_error_names_passes_and_one_more_does_not(config in wild_configs()) {
        use tollgate::limit::ConfigError::{
            CapacityTooLarge, InitialBeforeFirstUse, InitialTooLarge, MaxDebtTooLarge, OffsetWithoutWindows, PeriodTooLong, PeriodZero,
            RateTooLarge,
        };
        let with = |change: &dyn Fn(&mut Config)| {
            let mut config = Config { max_debt: 0, initial: None, offset_ms: None, capacity: 0, ..config };
            change(&mut config);
            Limit::new(&config)
        };
        match Limit::new(&config) {
            Ok(limit) => {
                // Whole periods of an offset move no window.
                let within = Config { offset_ms: config.offset_ms.map(|offset_ms| offset_ms % config.period_ms), ..config };
                prop_assert_eq!(limit.config(), &within);
                prop_assert_eq!(Limit::new(&within), Ok(limit));
            }
            Err(RateTooLarge { rate, max }) => prop_assert!(rate == config.rate && rate > max && max == MAX_TOKENS),
            Err(PeriodZero) => prop_assert_eq!(config.period_ms, 0),
            Err(PeriodTooLong { period_ms, max_ms }) => prop_assert!(period_ms > max_ms && max_ms == MAX_SPAN_MS),
            Err(error @ CapacityTooLarge { capacity, max }) => {
                prop_assert!(capacity == config.capacity && capacity > max);
                prop_assert!(with(&|config| config.capacity = max).is_ok());
                let one_more = with(&|config| config.capacity = max + 1);
                prop_assert_eq!(one_more, Err(CapacityTooLarge { capacity: max + 1, max }), "{:?}", error);
            }
            Err(MaxDebtTooLarge { max, .. }) => {
                let capacity = config.capacity;
                prop_assert_eq!(Limit::largest_debt(&config), max);
                prop_assert!(with(&|config| (config.capacity, config.max_debt) = (capacity, max)).is_ok());
                prop_assert!(with(&|config| (config.capacity, config.max_debt) = (capacity, max + 1)).is_err());
            }
            Err(InitialTooLarge { initial, max }) => prop_assert!(initial > max && max == config.capacity),
            Err(OffsetWithoutWindows) => prop_assert!(config.kind != Kind::FixedWindow && config.offset_ms.is_some()),
            Err(InitialBeforeFirstUse) => {
                let is_less = config.initial.is_some_and(|initial| initial < config.capacity);
                prop_assert!(config.kind == Kind::FirstUseWindow && is_less);
            }
            Err(unknown) => prop_assert!(false, "{unknown:?}"),
        }
    }
}

#[test]
fn a_surplus_counts_whole_tokens_once_both_states_refill() {
    let mut config = Config::token_bucket(1, Duration::from_secs(1));
    config.capacity = 10;
    let limit = Limit::new(&config).unwrap();
    let full = limit.new_state(START, 0);
    let ahead = limit.new_state(START + 4_000, 0);
    for (state, other, now, surplus) in [
        (full, limit.lowered(&full, 3), START, Some(3)),
        (full, limit.lowered(&full, 3), START + 1, Some(2)), // 2.999
        (full, limit.lowered(&full, 3), START + 3_000, Some(0)),
        (limit.lowered(&full, 1), full, START, None),
        (full, full, START, Some(0)),
        // The clock has stepped back: the first state is full until its own moment, while the other comes nearer.
        (ahead, limit.lowered(&full, 7), START, Some(3)),
        (ahead, limit.lowered(&full, 2), START, Some(0)),
        (limit.lowered(&ahead, 2), limit.lowered(&full, 5), START, None),
    ] {
        assert_eq!(limit.surplus_over(&state, &other, now), surplus);
    }
    for (state, tokens, left) in [(limit.lowered(&full, 7), 3, 6), (limit.lowered(&full, 3), 3, 10), (full, 3, 13)] {
        assert_eq!(limit.remaining(&limit.raised(&state, tokens), START - 1), left, "whatever the capacity");
    }
    assert_eq!(limit.remaining(&limit.refilled(&limit.lowered(&full, 7), START + 2_000), START), 5);
    let deep = limit.lowered(&full, u64::MAX);
    assert_eq!(limit.owed(&deep, START), (1 << 61) / 1_000 + 1, "as deep as a level can be");
}

#[test]
fn jitter_is_uniform() {
    let mut counts = [0_u32; 5];
    for random in 0..5_000_u64 {
        counts[usize::try_from(jitter(0, Duration::from_millis(4), random * (u64::MAX / 5_000))).unwrap()] += 1;
    }
    assert!(counts.iter().all(|&count| count.abs_diff(1_000) <= 2), "{counts:?}");
}

#[test]
fn a_record_with_a_level_beyond_any_limit_is_rejected() {
    for (level, is_record) in
        [(1_i64 << 61, true), ((1 << 61) + 1, false), (-1 << 61, true), ((-1 << 61) - 1, false), (i64::MIN, false)]
    {
        let bytes = [&[1][..], &7_u64.to_le_bytes(), &level.to_le_bytes(), &0_i64.to_le_bytes()].concat();
        assert_eq!(Record::parse(&bytes).is_ok(), is_record, "{level}");
    }
    assert!(Record::parse(&[2, 0, 0, 0, 0, 0, 0, 0, 0]).is_err(), "an unknown format");
}

#[test]
fn a_snapshot_with_an_impossible_state_is_not_restored() {
    let bucket = Limit::new(&Config::token_bucket(3, Duration::from_secs(1))).unwrap(); // 1000 drops make a token
    let window = Limit::new(&Config::fixed_window(3, Duration::from_secs(1))).unwrap(); // a token is a drop
    let deepest = -(1_i64 << 61);
    for (limit, tokens, drops, is_restored) in [
        (&bucket, 2, 999, true),
        (&bucket, 2, 1_000, false), // a third whole token
        (&bucket, 3, 0, true),
        (&bucket, 3, 1, false), // more than the capacity
        (&bucket, 4, 0, false),
        (&bucket, -1, 999, true), // a drop is owed
        (&bucket, -1, 1_000, false),
        (&bucket, deepest / 1_000 - 1, 48, true), // 2⁶¹ ends in 952
        (&bucket, deepest / 1_000 - 1, 47, false),
        (&bucket, deepest, 0, false), // times 1000, it wraps to 0 in 64 bits
        (&bucket, i64::MIN, 999, false),
        (&bucket, i64::MAX, 999, false),
        (&bucket, 0, u64::MAX, false), // as a signed number it is −1
        (&window, 3, 0, true),
        (&window, 2, 1, false),
        (&window, deepest, 0, true),
        (&window, deepest - 1, 0, false),
        (&window, i64::MIN, 0, false),
        (&window, i64::MAX, 0, false),
    ] {
        for at in [i64::MIN, START, i64::MAX] {
            let snapshot = Snapshot { tokens, drops, at };
            let restored = limit.restored(&snapshot);
            assert_eq!(restored.map(|state| limit.snapshot(&state)), is_restored.then_some(snapshot), "{snapshot:?}");
        }
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).expect("lengths of time fit")
}

/// The bucket, and the moment, after `events` that begin with a new one.
fn after(limit: &Limit, events: &[Event]) -> (State, i64) {
    let mut now = START;
    let mut state = limit.new_state(now, 0);
    for event in events {
        match *event {
            Event::Clock(step_ms) => now += step_ms,
            Event::Ask(cost, verb) => state = limit.decide(state, now, cost, verb).1,
            Event::Change(..) => {}
        }
    }
    (state, now)
}

fn configs() -> impl Strategy<Value = Config> {
    let small = (kinds(), 0..8_u64, 1..8_u64, 0..8_u64, prop_oneof![Just(0), 0..12_u64]);
    let real = (
        kinds(),
        0..2_000_u64,
        select(vec![1_000, 1_500, 60_000, 86_400_000]),
        0..5_000_u64,
        prop_oneof![Just(0), 0..5_000_u64],
    );
    prop_oneof![small, real].prop_flat_map(|(kind, rate, period_ms, capacity, max_debt)| {
        let initial = match kind {
            Kind::FirstUseWindow => prop_oneof![Just(None), Just(Some(capacity))].boxed(),
            _ => prop_oneof![3 => Just(None), 1 => (0..=capacity).prop_map(Some)].boxed(),
        };
        let offset_ms = match kind {
            Kind::TokenBucket | Kind::FirstUseWindow => Just(None).boxed(),
            Kind::FixedWindow => prop_oneof![Just(None), (0..period_ms).prop_map(Some)].boxed(),
            _ => unreachable!("a new kind"),
        };
        (initial, offset_ms).prop_map(move |(initial, offset_ms)| Config {
            kind,
            rate,
            period_ms,
            capacity,
            max_debt,
            initial,
            offset_ms,
            calendar: None,
            is_soft: false,
        })
    })
}

/// Any numbers at all, including the edges of what is accepted.
fn wild_configs() -> impl Strategy<Value = Config> {
    let edges = vec![
        0,
        1,
        2,
        7,
        1_000,
        86_400_000,
        MAX_SPAN_MS - 1,
        MAX_SPAN_MS,
        MAX_SPAN_MS + 1,
        MAX_TOKENS - 1,
        MAX_TOKENS,
        MAX_TOKENS + 1,
        u64::MAX,
    ];
    let wild = move || prop_oneof![select(edges.clone()), 0..1_u64 << 54, 0..100_u64];
    (kinds(), wild(), wild(), wild(), wild(), prop::option::of(wild()), prop::option::of(wild())).prop_map(
        |(kind, rate, period_ms, capacity, max_debt, initial, offset_ms)| Config {
            kind,
            rate,
            period_ms,
            capacity,
            max_debt,
            initial,
            offset_ms,
            calendar: None,
            is_soft: false,
        },
    )
}

/// Limits made from any numbers at all: a number that is too large is clipped to the largest accepted.
fn wide_configs() -> impl Strategy<Value = Config> {
    wild_configs().prop_map(|mut config| {
        while let Err(error) = Limit::new(&config) {
            match error {
                ConfigError::RateTooLarge { max, .. } => config.rate = max,
                ConfigError::PeriodZero => config.period_ms = 1,
                ConfigError::PeriodTooLong { max_ms, .. } => config.period_ms = max_ms,
                ConfigError::CapacityTooLarge { max, .. } => config.capacity = max,
                ConfigError::MaxDebtTooLarge { max, .. } => config.max_debt = max,
                ConfigError::InitialTooLarge { max, .. } => config.initial = Some(max),
                ConfigError::OffsetWithoutWindows => config.offset_ms = None,
                ConfigError::InitialBeforeFirstUse => config.initial = None,
                unknown => panic!("{unknown:?}"),
            }
        }
        *Limit::new(&config).unwrap().config()
    })
}

/// Today, and around and before the epoch, where windows begin as they do after it.
fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![4 => Just(START), 1 => -20..20_i64, 1 => -START..0]
}

/// Any moments at all, most of them in the exact range.
fn moments() -> impl Strategy<Value = i64> {
    let edge = i64::try_from(EXACT).expect("it fits");
    prop_oneof![
        4 => START..START + 1_000,
        4 => -edge..=edge,
        2 => select(vec![-edge, -1, 0, 1, edge]),
        1 => select(vec![i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX]),
    ]
}

/// Tokens that a bucket could hold or owe, and impossible ones.
fn wild_tokens() -> impl Strategy<Value = i64> {
    prop_oneof![-10..10_i64, -5_000..5_000_i64, -(1_i64 << 54)..1 << 54, any::<i64>()]
}

/// Costs of every size, up to those that no limit could count.
fn wild_costs() -> impl Strategy<Value = u64> {
    prop_oneof![2 => 0..10_u64, 1 => 0..MAX_TOKENS, 1 => any::<u64>(), 1 => select(vec![1 << 62, 1 << 63, u64::MAX])]
}

fn wild_drops() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 1 => 0..10_u64, 1 => 0..2 * MAX_SPAN_MS, 1 => any::<u64>()]
}

fn carries() -> impl Strategy<Value = Carry> {
    select(vec![Carry::AsIs, Carry::Proportional, Carry::Additive, Carry::Reset])
}

fn kinds() -> impl Strategy<Value = Kind> {
    select(vec![Kind::TokenBucket, Kind::FixedWindow, Kind::FirstUseWindow])
}

fn verbs() -> impl Strategy<Value = Verb> {
    let max_wait_ms = || {
        prop_oneof![
            4 => Just(None),
            4 => Just(Some(0)),
            4 => (0..20_u64).prop_map(Some),
            4 => (0..200_000_000_u64).prop_map(Some),
            1 => Just(Some(u64::MAX)),
        ]
    };
    prop_oneof![
        4 => Just(Verb::Consume),
        2 => max_wait_ms().prop_map(|max_wait_ms| Verb::Reserve { max_wait_ms }),
        2 => max_wait_ms().prop_map(|max_wait_ms| Verb::Borrow { max_wait_ms }),
        1 => Just(Verb::Charge),
        1 => Just(Verb::ConsumeUpTo),
        1 => Just(Verb::Refund),
        1 => Just(Verb::Reset),
    ]
}

fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..10_u64, 2 => 0..5_000_u64, 1 => select(vec![MAX_TOKENS, u64::MAX])]
}

fn steps_forward() -> impl Strategy<Value = i64> {
    prop_oneof![2 => Just(0), 4 => 0..10_i64, 3 => 0..2_000_i64, 1 => 0..200_000_000_i64]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let back = prop_oneof![-10..0_i64, select(vec![-MAX_STEP_BACK_MS, -MAX_STEP_BACK_MS - 1]), -200_000_000..0_i64];
    let change = (configs(), carries());
    let event = prop_oneof![
        8 => steps_forward().prop_map(Event::Clock),
        1 => back.prop_map(Event::Clock),
        10 => (costs(), verbs()).prop_map(|(cost, verb)| Event::Ask(cost, verb)),
        1 => change.prop_map(|(config, how)| Event::Change(config, how)),
    ];
    prop::collection::vec(event, 0..30)
}
