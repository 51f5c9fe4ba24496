//! What the module exports. Each bucket lies where JavaScript says, at an address that it passes; `size` bytes from there
//! are the bucket's alone. Beside addresses there are only numbers: moments within ±2⁵² and others from 0 to 2⁵³ − 1, all
//! whole. Other numbers give wrong answers, and do no other harm.

#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use core::mem::MaybeUninit;

use super::number::{f64_from_i64, f64_from_u64, i64_from_f64, u64_from_f64};
use crate::limit::{Config, ConfigError, Decision, Kind, Limit, Snapshot, State, Verb};

/// One limit, how much of it one key has used, and what was answered last.
#[derive(Debug)]
pub struct Bucket {
    limit: Limit,
    state: State,
    answer: Decision,
}

/// How many bytes a bucket takes, at an address that is a multiple of 8.
#[unsafe(no_mangle)]
pub extern "C" fn size() -> usize {
    size_of::<Bucket>()
}

/// Makes a bucket at an address where none is. Returns 0, or the place of the parameter that is too large, counted from 1
/// for `rate`; then `*max` is the largest it may be.
#[unsafe(no_mangle)]
pub extern "C" fn make(
    bucket: &mut MaybeUninit<Bucket>,
    max: &mut f64,
    windows: bool,
    now: f64,
    rate: f64,
    period_ms: f64,
    capacity: f64,
    max_debt: f64,
    initial: f64,
    offset_ms: f64,
) -> u32 {
    let config = Config {
        kind: if windows { Kind::FixedWindow } else { Kind::TokenBucket },
        rate: u64_from_f64(rate),
        period_ms: u64_from_f64(period_ms),
        capacity: u64_from_f64(capacity),
        max_debt: u64_from_f64(max_debt),
        initial: Some(u64_from_f64(initial)),
        offset_ms: windows.then_some(u64_from_f64(offset_ms)),
    };
    let (wrong, largest) = match Limit::new(&config) {
        Ok(limit) => {
            let state = limit.new_state(i64_from_f64(now), 0);
            bucket.write(Bucket { limit, state, answer: Decision::Never { max: 0 } });
            return 0;
        }
        Err(ConfigError::RateTooLarge { max, .. }) => (1, max),
        Err(ConfigError::PeriodZero) => (2, 0),
        Err(ConfigError::PeriodTooLong { max_ms, .. }) => (2, max_ms),
        Err(ConfigError::CapacityTooLarge { max, .. }) => (3, max),
        Err(ConfigError::MaxDebtTooLarge { max, .. }) => (4, max),
        Err(ConfigError::InitialTooLarge { max, .. }) => (5, max),
        Err(ConfigError::OffsetTooLarge { max_ms, .. }) => (6, max_ms),
        Err(ConfigError::OffsetWithoutWindows) => (6, 0), // not possible: it is left out
    };
    *max = f64_from_u64(largest);
    wrong
}

/// [`Limit::try_consume`]: apart from the others because it is what is asked most.
#[unsafe(no_mangle)]
pub extern "C" fn consume(bucket: &mut Bucket, now: f64, cost: f64) -> bool {
    bucket.limit.try_consume(&mut bucket.state, i64_from_f64(now), u64_from_f64(cost))
}

/// Asks; and, only if `keep`, takes what is granted. `verb` counts from 0 in the order of [`Verb`], and a `max_wait_ms`
/// of infinity is none. Returns 0 for [`Decision::Allow`], 1 for [`Decision::Wait`], 2 for [`Decision::Never`].
#[unsafe(no_mangle)]
pub extern "C" fn decide(bucket: &mut Bucket, verb: u32, now: f64, cost: f64, max_wait_ms: f64, keep: bool) -> u32 {
    let max_wait_ms = Some(u64_from_f64(max_wait_ms));
    let verb = match verb {
        0 => Verb::Consume,
        1 => Verb::Reserve { max_wait_ms },
        2 => Verb::Borrow { max_wait_ms },
        3 => Verb::Charge,
        4 => Verb::ConsumeUpTo,
        5 => Verb::Refund,
        _ => Verb::Reset,
    };
    let (answer, state) = bucket.limit.decide(bucket.state, i64_from_f64(now), u64_from_f64(cost), verb);
    bucket.answer = answer;
    if keep {
        bucket.state = state;
    }
    match answer {
        Decision::Allow { .. } => 0,
        Decision::Wait { .. } => 1,
        Decision::Never { .. } => 2,
    }
}

/// One number of what there is to know. Of the last [`decide`]: 0 for how many tokens it moved, or, if it said never,
/// could; 1 for when it grants, infinity for never. Of the [`Snapshot`] at `now`: 2 for `tokens`, 3 for `drops`, 4 for `at`.
/// 5 for [`Limit::full_at`], infinity for never.
#[unsafe(no_mangle)]
pub extern "C" fn get(Bucket { limit, state, answer }: &Bucket, which: u32, now: f64) -> f64 {
    let now = i64_from_f64(now);
    let snapshot = limit.snapshot(&limit.settled(state, now));
    let number = match (which, *answer) {
        (0, Decision::Allow { tokens, .. } | Decision::Never { max: tokens }) => Some(tokens.cast_signed()),
        (1, Decision::Allow { ready_at: at, .. } | Decision::Wait { retry_at: at }) => Some(at),
        (0 | 1, _) => None,
        (2, _) => Some(snapshot.tokens),
        (3, _) => Some(snapshot.drops.cast_signed()),
        (4, _) => Some(snapshot.at),
        _ => limit.full_at(state, now),
    };
    number.map_or(f64::INFINITY, f64_from_i64)
}

/// Reports whether this is a [`Snapshot`] of this limit's, and, only if `keep`, puts the bucket into that state.
#[unsafe(no_mangle)]
pub extern "C" fn restore(bucket: &mut Bucket, tokens: f64, drops: f64, at: f64, keep: bool) -> bool {
    let snapshot = Snapshot { tokens: i64_from_f64(tokens), drops: u64_from_f64(drops), at: i64_from_f64(at) };
    match bucket.limit.restored(&snapshot) {
        Some(state) if keep => bucket.state = state,
        Some(_) => {}
        None => return false,
    }
    true
}
