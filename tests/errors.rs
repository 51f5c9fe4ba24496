//! Every error, with its numbers and its words.

mod anywhere;

use std::time::Duration;

use anywhere::test;
use tollgate::limit::ConfigError::{
    CapacityTooLarge, InitialTooLarge, MaxDebtTooLarge, OffsetWithoutWindows, PeriodTooLong, PeriodZero, RateTooLarge,
};
use tollgate::limit::RecordError::{Length, Level, UnknownFormat};
use tollgate::limit::{Config, Limit, MAX_TOKENS, Record};

const DAY: Duration = Duration::from_hours(24);

/// In each row a limit that is just accepted, and one that just is not.
#[test]
fn the_largest_numbers_are_accepted_and_one_more_is_refused_in_a_sentence_that_names_them() {
    let bucket = Config::token_bucket(10, Duration::from_secs(1));
    let daily = Config::fixed_window(10, DAY);
    let fast = Config::token_bucket(MAX_TOKENS, DAY); // 2⁵³ − 1 has no divisor in common with a day: 86 400 000 drops
    let budget = Config::token_bucket(0, Duration::from_secs(1));
    let rows = [
        (
            Config { rate: 9_007_199_254_740_991, ..bucket },
            Config { rate: 9_007_199_254_740_992, ..bucket },
            RateTooLarge { rate: 9_007_199_254_740_992, max: 9_007_199_254_740_991 },
            "a rate of 9007199254740992 is too large: at most 9007199254740991",
        ),
        (
            Config { period_ms: 1, ..bucket },
            Config { period_ms: 0, ..bucket },
            PeriodZero,
            "a period of 0 ms is too short: at least 1 ms",
        ),
        (
            Config { period_ms: 2_251_799_813_685_248, ..bucket },
            Config { period_ms: 2_251_799_813_685_249, ..bucket },
            PeriodTooLong { period_ms: 2_251_799_813_685_249, max_ms: 2_251_799_813_685_248 },
            "a period of 2251799813685249 ms is too long: at most 2251799813685248 ms",
        ),
        // A token comes back every 100 ms, so at most 2⁵¹ / 100 come back in the longest span.
        (
            Config { capacity: 22_517_998_136_852, ..bucket },
            Config { capacity: 22_517_998_136_853, ..bucket },
            CapacityTooLarge { capacity: 22_517_998_136_853, max: 22_517_998_136_852 },
            "a capacity of 22517998136853 is too large to stay exact at this rate and period: at most 22517998136852",
        ),
        // The span has 26 062 497 whole days, each with 10 tokens.
        (
            Config { capacity: 260_624_970, ..daily },
            Config { capacity: 260_624_971, ..daily },
            CapacityTooLarge { capacity: 260_624_971, max: 260_624_970 },
            "a capacity of 260624971 is too large to stay exact at this rate and period: at most 260624970",
        ),
        // Here it is the level that would not fit: 2⁶¹ / 86 400 000.
        (
            Config { capacity: 26_687_997_791, ..fast },
            Config { capacity: 26_687_997_792, ..fast },
            CapacityTooLarge { capacity: 26_687_997_792, max: 26_687_997_791 },
            "a capacity of 26687997792 is too large to stay exact at this rate and period: at most 26687997791",
        ),
        // Without refills there is no wait to limit, and drops are whole tokens.
        (
            Config { capacity: MAX_TOKENS, ..budget },
            Config { capacity: MAX_TOKENS + 1, ..budget },
            CapacityTooLarge { capacity: MAX_TOKENS + 1, max: MAX_TOKENS },
            "a capacity of 9007199254740992 is too large to stay exact at this rate and period: at most 9007199254740991",
        ),
        // The numbers above less the capacity of 10.
        (
            Config { max_debt: 260_624_960, ..daily },
            Config { max_debt: 260_624_961, ..daily },
            MaxDebtTooLarge { max_debt: 260_624_961, max: 260_624_960 },
            "a max_debt of 260624961 is too large to stay exact with this capacity: at most 260624960",
        ),
        (
            Config { initial: Some(10), ..bucket },
            Config { initial: Some(11), ..bucket },
            InitialTooLarge { initial: 11, max: 10 },
            "11 initial tokens are more than the capacity: at most 10",
        ),
        (
            Config { offset_ms: None, ..bucket },
            Config { offset_ms: Some(0), ..bucket },
            OffsetWithoutWindows,
            "a token bucket has no windows, and those from first use open then: neither takes an offset",
        ),
    ];
    for (accepted, refused, error, sentence) in rows {
        assert_eq!(Limit::new(&accepted).map(|limit| *limit.config()), Ok(accepted), "{sentence}");
        assert_eq!(Limit::new(&refused), Err(error), "{sentence}");
        assert_eq!(error.to_string(), sentence);
    }
}

#[test]
fn a_fraction_of_a_millisecond_makes_the_period_longer_and_one_that_does_not_fit_is_too_long() {
    let nanos = Duration::from_nanos;
    for (period, period_ms) in [
        (Duration::ZERO, 0),
        (nanos(1), 1),
        (nanos(1_000_000), 1),
        (nanos(1_000_001), 2),
        (Duration::new(1, 999_999_999), 2_000),
        (Duration::from_millis(u64::MAX), u64::MAX),
        (Duration::MAX, u64::MAX),
    ] {
        for config in [Config::token_bucket(10, period), Config::fixed_window(10, period)] {
            assert_eq!((config.rate, config.period_ms), (10, period_ms), "{period:?}");
        }
    }
    let error = Limit::new(&Config::token_bucket(10, Duration::MAX)).unwrap_err();
    assert_eq!(error, PeriodTooLong { period_ms: u64::MAX, max_ms: 2_251_799_813_685_248 });
}

#[test]
fn bytes_that_are_not_a_record_are_refused_in_a_sentence_that_says_why() {
    let with_level = |level: i64| [&[1][..], &[0; 8], &level.to_le_bytes(), &[0; 8]].concat();
    let full = 1_i64 << 61;
    let rows = [
        (vec![], Length { len: 0 }, "a state of 0 bytes is not 9 and a multiple of 16"),
        (vec![1; 8], Length { len: 8 }, "a state of 8 bytes is not 9 and a multiple of 16"),
        (vec![1; 17], Length { len: 17 }, "a state of 17 bytes is not 9 and a multiple of 16"),
        (vec![1; 24], Length { len: 24 }, "a state of 24 bytes is not 9 and a multiple of 16"),
        (vec![0; 9], UnknownFormat { format: 0 }, "the state has format 0; this version reads 1"),
        (vec![2; 9], UnknownFormat { format: 2 }, "the state has format 2; this version reads 1"),
        // The format is checked first, because everything else depends on it.
        (vec![2], UnknownFormat { format: 2 }, "the state has format 2; this version reads 1"),
        (with_level(full + 1), Level { level: full + 1 }, "a level of 2305843009213693953 drops is beyond any limit"),
        (
            with_level(-full - 1),
            Level { level: -full - 1 },
            "a level of -2305843009213693953 drops is beyond any limit",
        ),
        (with_level(i64::MIN), Level { level: i64::MIN }, "a level of -9223372036854775808 drops is beyond any limit"),
    ];
    for (bytes, error, sentence) in rows {
        assert_eq!(Record::parse(&bytes), Err(error), "{bytes:?}");
        assert_eq!(error.to_string(), sentence);
    }
    for bytes in [vec![1; 9], with_level(full), with_level(-full)] {
        assert!(Record::parse(&bytes).is_ok(), "{bytes:?}");
    }
}
