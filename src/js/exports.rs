//! The module's exports. JavaScript owns the memory and passes each bucket's address; the `size` bytes from there belong to that bucket
//! alone. All other arguments are whole numbers: moments within ±2⁵², the rest from 0 to 2⁵³ − 1. Other numbers give wrong answers, and do
//! no other harm.

#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use core::mem::MaybeUninit;

#[cfg(feature = "kinds")]
use super::kinds::{Rolling, kind_of};
use super::number::{f64_from_i64, f64_from_u64, i64_from_f64, u64_from_f64};
#[cfg(not(feature = "kinds"))]
use crate::limit::Calendar;
use crate::limit::{Carry, Config, ConfigError, Decision, Kind, Limit, Snapshot, State, Verb};

/// One limit, one key's state, and the last answer. The state comes first and has 16 bytes, so that JavaScript can keep copies of it for
/// many keys. That of a rolling window goes on with its moments.
#[derive(Debug)]
#[repr(C)]
pub struct Bucket {
    pub(super) state: State,
    #[cfg(feature = "kinds")]
    pub(super) rolling: Rolling,
    answer: Decision,
    pub(super) limit: Limit,
}

// A pace has the memory of a bucket.
#[cfg(feature = "kinds")]
const _: () = {
    use super::kinds::Pace;
    assert!(size_of::<Pace>() <= size_of::<Bucket>() && align_of::<Pace>() <= align_of::<Bucket>());
};

/// The size of a bucket in bytes; its address must be a multiple of 8.
#[unsafe(no_mangle)]
pub extern "C" fn size() -> usize {
    size_of::<Bucket>()
}

/// Makes a bucket at an unused address. Kinds: 0 is a token bucket, 1 a fixed window; with the feature `kinds`, 2 is a window from first use, and
/// 3 and above are calendars and rolling windows, by their number. Returns 0, or the position of the parameter that is too large, counting from 1 for `rate`; then
/// `*max` is its largest valid value.
#[unsafe(no_mangle)]
pub extern "C" fn make(
    bucket: &mut MaybeUninit<Bucket>,
    max: &mut f64,
    kind: KindNumber,
    now: f64,
    rate: f64,
    period_ms: f64,
    capacity: f64,
    max_debt: f64,
    initial: f64,
    offset_ms: f64,
) -> u32 {
    #[cfg(feature = "kinds")]
    let (kind, calendar, grains) = kind_of(kind);
    #[cfg(not(feature = "kinds"))]
    let (kind, calendar) = kind_of(kind);
    let config = Config {
        kind,
        rate: u64_from_f64(rate),
        period_ms: u64_from_f64(period_ms),
        capacity: u64_from_f64(capacity),
        max_debt: u64_from_f64(max_debt),
        initial: (!matches!(kind, Kind::FirstUseWindow | Kind::RollingWindow)).then_some(u64_from_f64(initial)),
        offset_ms: (kind == Kind::FixedWindow && calendar.is_none()).then_some(u64_from_f64(offset_ms)),
        calendar,
        #[cfg(not(tollgate_small))]
        is_soft: false,
    };
    #[cfg(feature = "kinds")]
    let checked = Rolling::check(&config, u64_from_f64(initial));
    #[cfg(not(feature = "kinds"))]
    let checked = Limit::new(&config);
    let (position, largest) = match checked {
        Ok(limit) => {
            let state = limit.new_state(i64_from_f64(now), 0);
            bucket.write(Bucket {
                limit,
                #[cfg(feature = "kinds")]
                rolling: Rolling::new(&limit, grains),
                state,
                answer: Decision::Never { max: 0 },
            });
            return 0;
        }
        Err(ConfigError::RateTooLarge { max, .. }) => (1, max),
        Err(ConfigError::PeriodZero) => (2, 0),
        Err(ConfigError::PeriodTooLong { max_ms, .. }) => (2, max_ms),
        Err(ConfigError::CapacityTooLarge { max, .. }) => (3, max),
        Err(ConfigError::MaxDebtTooLarge { max, .. }) => (4, max),
        Err(ConfigError::InitialTooLarge { max, .. }) => (5, max),
        Err(_) => (6, 0), // impossible: a token bucket gets no offset above
    };
    *max = f64_from_u64(largest);
    position
}

/// The number of a kind. The package's small module has only two.
#[cfg(feature = "kinds")]
type KindNumber = u32;
#[cfg(not(feature = "kinds"))]
type KindNumber = bool;

#[cfg(not(feature = "kinds"))]
const fn kind_of(windows: KindNumber) -> (Kind, Option<Calendar>) {
    (if windows { Kind::FixedWindow } else { Kind::TokenBucket }, None)
}

/// [`Limit::try_consume`]: a separate export because it is called most.
#[unsafe(no_mangle)]
pub extern "C" fn consume(bucket: &mut Bucket, now: f64, cost: f64) -> bool {
    #[cfg(feature = "kinds")]
    if let Some(window) = bucket.rolling.window(&bucket.limit) {
        let (now, cost) = (i64_from_f64(now), u64_from_f64(cost));
        let decision;
        (decision, bucket.state, bucket.rolling) =
            bucket.rolling.decide(&window, bucket.state, now, cost, Verb::Consume);
        return decision.is_allow();
    }
    bucket.limit.try_consume(&mut bucket.state, i64_from_f64(now), u64_from_f64(cost))
}

/// Decides and, only if `apply`, takes what is granted. `verb` is a number from [`Verb::to_number`], and a `max_wait_ms` of infinity allows
/// any wait. Returns 0 for [`Decision::Allow`], 1 for [`Decision::Wait`], 2 for [`Decision::Never`].
#[unsafe(no_mangle)]
pub extern "C" fn decide(bucket: &mut Bucket, verb: u32, now: f64, cost: f64, max_wait_ms: f64, apply: bool) -> u32 {
    let max_wait_ms = Some(u64_from_f64(max_wait_ms));
    let verb = Verb::from_number(verb.into(), max_wait_ms).unwrap_or(Verb::Reset);
    let (now, cost) = (i64_from_f64(now), u64_from_f64(cost));
    #[cfg(feature = "kinds")]
    let answer = if let Some(window) = bucket.rolling.window(&bucket.limit) {
        let (answer, state, rolling) = bucket.rolling.decide(&window, bucket.state, now, cost, verb);
        if apply {
            (bucket.state, bucket.rolling) = (state, rolling);
        }
        answer
    } else {
        bucket.decide_state(now, cost, verb, apply)
    };
    #[cfg(not(feature = "kinds"))]
    let answer = bucket.decide_state(now, cost, verb, apply);
    bucket.answer = answer;
    match answer {
        Decision::Allow { .. } => 0,
        Decision::Wait { .. } => 1,
        Decision::Never { .. } => 2,
    }
}

/// Reads one number. Of the last [`decide`]: 0 is the number of tokens granted, or the largest cost after `Never`; 1 is when they are
/// granted, infinity for never. Of the [`Snapshot`] at `now`: 2 is `tokens`, 3 is `drops`, 4 is `at`. 5 is [`Limit::full_at`], infinity for
/// never; 6 is the number of drops in a token.
#[unsafe(no_mangle)]
pub extern "C" fn get(bucket: &Bucket, which: u32, now: f64) -> f64 {
    let now = i64_from_f64(now);
    #[cfg(feature = "kinds")]
    if let Some(window) = bucket.rolling.window(&bucket.limit)
        && let Some(number) = bucket.rolling.number(&window, &bucket.state, which, now)
    {
        return f64_from_i64(number);
    }
    let Bucket { limit, state, answer, .. } = bucket;
    let snapshot = limit.snapshot(&limit.refilled(state, now));
    let number = match (which, *answer) {
        (0, Decision::Allow { tokens, .. } | Decision::Never { max: tokens }) => Some(tokens.cast_signed()),
        (1, Decision::Allow { ready_at: at, .. } | Decision::Wait { retry_at: at }) => Some(at),
        (0 | 1, _) => None,
        (2, _) => Some(snapshot.tokens),
        (3, _) => Some(snapshot.drops.cast_signed()),
        (4, _) => Some(snapshot.at),
        (5, _) => limit.full_at(state, now),
        _ => Some(limit.drops_per_token().cast_signed()),
    };
    number.map_or(f64::INFINITY, f64_from_i64)
}

/// Reports whether a bucket of this limit can be in the state of this [`Snapshot`] and, only if `apply`, puts it there.
#[unsafe(no_mangle)]
pub extern "C" fn restore(bucket: &mut Bucket, tokens: f64, drops: f64, at: f64, apply: bool) -> bool {
    let snapshot = Snapshot { tokens: i64_from_f64(tokens), drops: u64_from_f64(drops), at: i64_from_f64(at) };
    #[cfg(feature = "kinds")]
    if bucket.limit.is_rolling() && snapshot.tokens.cast_unsigned() != bucket.limit.config().capacity {
        return false; // without the moments at which the others come back
    }
    match bucket.limit.restored(&snapshot) {
        Some(state) if apply => {
            bucket.state = state;
            #[cfg(feature = "kinds")]
            bucket.rolling.clear();
        }
        Some(_) => {}
        None => return false,
    }
    true
}

/// [`Limit::carry`] with [`Carry::AsIs`]: the bucket takes over the tokens that `old`, another one, has at `now`. scripts/build-library puts
/// it into a module of its own, whose memory has copies of both.
#[unsafe(no_mangle)]
pub extern "C" fn carry(bucket: &mut Bucket, old: &Bucket, now: f64) {
    let now = i64_from_f64(now);
    #[cfg(feature = "kinds")]
    if let Some(window) = bucket.rolling.window(&bucket.limit) {
        bucket.state = bucket.rolling.carry(&window, (&old.limit, &old.state, &old.rolling), now);
        return;
    }
    bucket.state = bucket.limit.carry(&old.limit, old.state, Carry::AsIs, now, 0);
}

impl Bucket {
    #[inline]
    fn decide_state(&mut self, now: i64, cost: u64, verb: Verb, apply: bool) -> Decision {
        let (answer, state) = self.limit.decide(self.state, now, cost, verb);
        if apply {
            self.state = state;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use core::mem::offset_of;

    use super::*;

    const MAX: f64 = 9_007_199_254_740_991.0; // 2⁵³ − 1
    const MOMENT: f64 = 4_503_599_627_370_496.0; // 2⁵²
    const SPAN: f64 = 2_251_799_813_685_248.0; // 2⁵¹
    const NEVER: f64 = f64::INFINITY;

    /// Makes a bucket of `rate`, `period_ms`, `capacity`, `max_debt`, `initial` and `offset_ms`, or returns the
    /// position and the largest value.
    fn made(windows: bool, now: f64, numbers: [f64; 6]) -> Result<Bucket, (u32, f64)> {
        let [rate, period_ms, capacity, max_debt, initial, offset_ms] = numbers;
        let (mut bucket, mut max) = (MaybeUninit::uninit(), f64::NAN);
        match make(
            &mut bucket,
            &mut max,
            KindNumber::from(windows),
            now,
            rate,
            period_ms,
            capacity,
            max_debt,
            initial,
            offset_ms,
        ) {
            // SAFETY: 0 means that the bucket was written.
            0 => Ok(unsafe { bucket.assume_init() }),
            position => Err((position, max)),
        }
    }

    #[test]
    fn a_number_that_is_too_large_is_named_by_its_position_with_the_largest_allowed() {
        let table = [
            // windows  numbers                               position  largest
            (false, [MAX + 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 1, MAX),
            (false, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 2, 0.0), // no larger than 0, but at least 1
            (false, [1.0, SPAN + 1.0, 1.0, 0.0, 1.0, 0.0], 2, SPAN),
            (false, [1.0, SPAN, 2.0, 0.0, 1.0, 0.0], 3, 1.0),
            (false, [1.0, SPAN, 1.0, 1.0, 1.0, 0.0], 4, 0.0),
            (false, [MAX, 1.0, MAX, 1.0, MAX, 0.0], 4, 0.0),
            (false, [3.0, 1000.0, 3.0, 0.0, 4.0, 0.0], 5, 3.0),
        ];
        for (windows, numbers, position, largest) in table {
            assert_eq!(made(windows, 0.0, numbers).err(), Some((position, largest)), "{numbers:?}");
        }
        // A token bucket has no windows, so its offset is ignored.
        assert!(made(false, 0.0, [3.0, 1000.0, 3.0, 0.0, 3.0, 5000.0]).is_ok());
        // Windows open alike after an offset of any number of periods.
        for (offset, opened) in [(0.0, 0.0), (999.0, -1.0), (1000.0, 0.0), (MAX, -9.0)] {
            let bucket = made(true, 5.0, [3.0, 1000.0, 3.0, 0.0, 3.0, offset]).unwrap();
            assert_eq!(get(&bucket, 4, 5.0).to_bits(), f64::to_bits(opened), "{offset}");
        }
        for now in [-MOMENT, 0.0, MOMENT] {
            assert!(made(false, now, [MAX, 1.0, MAX, 0.0, MAX, 0.0]).is_ok());
            assert!(made(false, now, [1.0, SPAN, 0.0, 1.0, 0.0, 0.0]).is_ok());
            assert!(made(true, now, [1.0, SPAN, 1.0, 0.0, 1.0, SPAN - 1.0]).is_ok());
        }
    }

    // 3 per second, at most 3 at once, up to 2 in debt.
    #[test]
    fn every_verb_and_every_answer_has_its_number() {
        let mut bucket = made(false, 0.0, [3.0, 1000.0, 3.0, 2.0, 3.0, 0.0]).unwrap();
        let (allow, wait, never) = (0, 1, 2);
        let table = [
            // now  verb cost max wait apply  answer tokens at        then tokens drops full at
            (0.0, 0, 2.0, NEVER, false, (allow, 2.0, 0.0), (3.0, 0.0, 0.0)), // not applied
            (0.0, 0, 2.0, NEVER, true, (allow, 2.0, 0.0), (1.0, 0.0, 667.0)),
            (0.0, 0, 2.0, NEVER, true, (wait, NEVER, 334.0), (1.0, 0.0, 667.0)),
            (0.0, 0, 4.0, NEVER, true, (never, 3.0, NEVER), (1.0, 0.0, 667.0)),
            (0.0, 4, 2.0, NEVER, true, (allow, 1.0, 0.0), (0.0, 0.0, 1000.0)),
            (0.0, 1, 1.0, 0.0, true, (wait, NEVER, 334.0), (0.0, 0.0, 1000.0)), // a wait of 0 is not any wait
            (0.0, 1, 1.0, 333.0, true, (wait, NEVER, 1.0), (0.0, 0.0, 1000.0)),
            (0.0, 1, 1.0, 334.0, true, (allow, 1.0, 334.0), (-1.0, 0.0, 1334.0)),
            (0.0, 1, 1.0, MAX, true, (allow, 1.0, 667.0), (-2.0, 0.0, 1667.0)),
            (667.0, 2, 2.0, NEVER, true, (allow, 2.0, 667.0), (-2.0, 1.0, 2334.0)),
            (667.0, 3, 1.0, NEVER, true, (allow, 0.0, 667.0), (-2.0, 0.0, 2334.0)), // one drop, and no deeper
            (667.0, 5, 3.0, NEVER, true, (allow, 3.0, 667.0), (1.0, 0.0, 1334.0)),
            (667.0, 3, 1.0, NEVER, true, (allow, 1.0, 667.0), (0.0, 0.0, 1667.0)),
            (667.0, 6, 0.0, NEVER, true, (allow, 3.0, 667.0), (3.0, 0.0, 667.0)),
        ];
        for (row, (now, verb, cost, max_wait_ms, apply, answer, then)) in table.into_iter().enumerate() {
            let got = decide(&mut bucket, verb, now, cost, max_wait_ms, apply);
            let number = |which| get(&bucket, which, now);
            assert_eq!((got, number(0), number(1)), answer, "row {row}");
            assert_eq!((number(2), number(3), number(5)), then, "row {row}");
            assert_eq!((number(4).to_bits(), number(6).to_bits()), (now.to_bits(), f64::to_bits(1000.0)), "row {row}");
        }
        assert!(consume(&mut bucket, 667.0, 3.0));
        assert!(!consume(&mut bucket, 667.0, 1.0));
        assert!(consume(&mut bucket, 667.0, 0.0));
    }

    #[test]
    fn the_largest_numbers_are_exact() {
        for now in [-MOMENT, -1.0, 0.0, 1.0, MOMENT] {
            let mut full = made(false, now, [MAX, 1.0, MAX, 0.0, MAX, 0.0]).unwrap();
            assert_eq!((decide(&mut full, 0, now, MAX, NEVER, true), get(&full, 0, now)), (0, MAX));
            assert_eq!((get(&full, 2, now), get(&full, 5, now)), (0.0, now + 1.0));
            assert!(restore(&mut full, MAX, 0.0, now, true));
            assert_eq!((get(&full, 2, now), get(&full, 5, now)), (MAX, now));

            let mut owing = made(false, now, [MAX, 1.0, 0.0, MAX, 0.0, 0.0]).unwrap();
            assert_eq!((decide(&mut owing, 1, now, MAX, NEVER, true), get(&owing, 1, now)), (0, now + 1.0));
            assert_eq!((get(&owing, 2, now), get(&owing, 3, now)), (-MAX, 0.0));

            let mut slow = made(false, now, [1.0, SPAN, 1.0, 0.0, 0.0, 0.0]).unwrap();
            assert_eq!((decide(&mut slow, 0, now, 1.0, NEVER, true), get(&slow, 1, now)), (1, now + SPAN));
            assert!(restore(&mut slow, 0.0, SPAN - 1.0, now, true));
            assert_eq!((get(&slow, 3, now), get(&slow, 5, now), get(&slow, 6, now)), (SPAN - 1.0, now + 1.0, SPAN));

            let mut budget = made(false, now, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]).unwrap();
            assert_eq!((decide(&mut budget, 0, now, 1.0, NEVER, true), get(&budget, 0, now)), (2, 0.0));
            assert_eq!((get(&budget, 1, now), get(&budget, 5, now)), (NEVER, NEVER));
        }
    }

    #[test]
    fn a_snapshot_is_checked_before_it_is_applied() {
        let mut bucket = made(false, 0.0, [3.0, 1000.0, 3.0, 2.0, 3.0, 0.0]).unwrap();
        let table = [
            // tokens drops  at    apply  fits   then tokens drops at
            (1.0, 999.0, 5.0, false, true, (3.0, 0.0, 0.0)), // not applied
            (1.0, 999.0, 5.0, true, true, (1.0, 999.0, 5.0)),
            (4.0, 0.0, 5.0, true, false, (1.0, 999.0, 5.0)), // more than the capacity
            (3.0, 1.0, 5.0, true, false, (1.0, 999.0, 5.0)), // a drop more
            (0.0, 1000.0, 5.0, true, false, (1.0, 999.0, 5.0)), // a whole token's worth of drops
            (0.0, -1.0, 5.0, true, false, (1.0, 999.0, 5.0)),
            (-MAX, 0.0, 5.0, true, false, (1.0, 999.0, 5.0)),
            (-2.0, 0.0, 5.0, true, true, (-2.0, 0.0, 5.0)),
            (3.0, 0.0, -5.0, true, true, (3.0, 0.0, -5.0)),
        ];
        for (row, (tokens, drops, at, apply, fits, then)) in table.into_iter().enumerate() {
            assert_eq!(restore(&mut bucket, tokens, drops, at, apply), fits, "row {row}");
            let now = then.2;
            assert_eq!((get(&bucket, 2, now), get(&bucket, 3, now), get(&bucket, 4, now)), then, "row {row}");
        }
    }

    #[test]
    fn a_bucket_takes_over_the_tokens_of_another() {
        let old = made(false, 0.0, [3.0, 1000.0, 3.0, 2.0, 1.0, 0.0]).unwrap();
        for (windows, tokens) in [(false, 2.0), (true, 9.0)] {
            let mut bucket = made(windows, 0.0, [9.0, 1000.0, 9.0, 0.0, 9.0, 0.0]).unwrap();
            carry(&mut bucket, &old, 500.0);
            assert_eq!((get(&bucket, 2, 500.0), get(&bucket, 3, 500.0)), (tokens, if windows { 0.0 } else { 500.0 }));
        }
    }

    #[test]
    fn a_bucket_is_aligned_to_eight_bytes_and_begins_with_its_state_of_sixteen() {
        assert_eq!((size() % 8, align_of::<Bucket>()), (0, 8));
        assert_eq!((offset_of!(Bucket, state), size_of::<State>()), (0, 16));
    }

    /// Numbers outside the contract, which JavaScript never passes.
    #[test]
    fn invalid_numbers_do_no_harm() {
        let odd = [f64::NAN, NEVER, -NEVER, -1.0, 0.5, 1e300, -1e300, 5e-324, MAX + 1.0, -MAX];
        for a in odd {
            for b in odd {
                for numbers in [[a, b, 3.0, 2.0, 3.0, 0.0], [3.0, 1000.0, a, b, 1.0, b], [3.0, 1000.0, 3.0, 2.0, a, b]]
                {
                    for windows in [false, true] {
                        let _ = made(windows, a, numbers);
                    }
                }
                let mut bucket = made(false, 0.0, [3.0, 1000.0, 3.0, 2.0, 3.0, 0.0]).unwrap();
                for verb in 0..9 {
                    decide(&mut bucket, verb, a, b, a, true);
                    restore(&mut bucket, a, b, a, true);
                    for which in 0..9 {
                        assert!(!get(&bucket, which, b).is_nan());
                    }
                }
            }
        }
    }
}
