//! Windows of calendars, beside the time zones of another library.
#![cfg(not(target_arch = "wasm32"))]

mod chance;

use jiff::civil::{Date, Weekday};
use jiff::tz::{self, TimeZone};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use serde::Deserialize;
use tollgate::limit::{Calendar, Config, ConfigError, Decision, Kind, Limit, Verb, Zone};
use tollgate::policy::Policies;

fn zone(name: &str) -> (&'static Zone, TimeZone) {
    (Zone::named(name).unwrap(), TimeZone::get(name).unwrap())
}

fn moment(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

/// The days on which windows open.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Day,
    Week(u8),
    Month(u8),
    Quarter(u8, u8),
    Year(u8, u8),
}

impl Unit {
    fn calendar(self, zone: &'static Zone) -> Calendar {
        match self {
            Self::Day => Some(Calendar::day(zone)),
            Self::Week(weekday) => Calendar::week(zone, weekday),
            Self::Month(day) => Calendar::month(zone, day),
            Self::Quarter(month, day) => Calendar::quarter(zone, month, day),
            Self::Year(month, day) => Calendar::year(zone, month, day),
        }
        .unwrap()
    }

    fn opens_on(self, date: Date) -> bool {
        let is_day = |day: u8| date.day() == i8::try_from(day).unwrap().min(date.days_in_month());
        let is_month = |month: u8, every: i8| (date.month() - i8::try_from(month).unwrap()).rem_euclid(every) == 0;
        match self {
            Self::Day => true,
            Self::Week(weekday) => date.weekday() == Weekday::from_monday_one_offset(weekday.cast_signed()).unwrap(),
            Self::Month(day) => is_day(day),
            Self::Quarter(month, day) => is_day(day) && is_month(month, 3),
            Self::Year(month, day) => is_day(day) && is_month(month, 12),
        }
    }

    /// The window that holds `now`, found day by day.
    fn window(self, tz: &TimeZone, now: i64) -> (i64, i64) {
        let start = |date: Date| {
            let midnight = date.to_zoned_datetime(tz.clone()).unwrap();
            midnight.start_of_day().unwrap().timestamp().as_millisecond()
        };
        let mut date = moment(now).to_zoned_datetime(tz.clone()).date();
        // Where clocks are set back over midnight, the next day has begun already.
        if start(date + 1.day()) <= now {
            date += 1.day();
        }
        let mut next = date + 1.day();
        while !self.opens_on(date) {
            date -= 1.day();
        }
        while !self.opens_on(next) {
            next += 1.day();
        }
        (start(date), start(next))
    }
}

fn units() -> impl Strategy<Value = Unit> {
    let month_and_day = || (1..=12_u8, 1..=31_u8);
    prop_oneof![
        Just(Unit::Day),
        (1..=7_u8).prop_map(Unit::Week),
        (1..=31_u8).prop_map(Unit::Month),
        month_and_day().prop_map(|(month, day)| Unit::Quarter(month, day)),
        month_and_day().prop_map(|(month, day)| Unit::Year(month, day)),
    ]
}

fn names() -> impl Strategy<Value = String> {
    let names: Vec<_> = tz::db().available().map(|name| name.to_string()).collect();
    prop::sample::select(names)
}

proptest! {
    #![proptest_config(chance::config(20_000))]

    #[test]
    fn windows_are_those_of_the_time_zone_database(
        name in names(),
        unit in units(),
        ms in -2_500_000_000_000_i64..4_000_000_000_000,
        // Near an opening, and near a change of the clock.
        (by, is_near) in (-7_200_000..7_200_000_i64, 0..3_u8),
    ) {
        let (zone, tz) = zone(&name);
        let near = match is_near {
            0 => ms,
            1 => unit.window(&tz, ms).0 + by,
            _ => tz.following(moment(ms)).next().map_or(ms, |change| change.timestamp().as_millisecond()).min(4_000_000_000_000) + by,
        };
        for now in [near - 1, near, near + 1] {
            prop_assert_eq!(unit.calendar(zone).window(now), unit.window(&tz, now), "{} {:?} at {}", name, unit, now);
        }
    }
}

/// A bucket of calendar windows: each opening adds `rate` tokens, up to `capacity`.
#[derive(Clone, Copy)]
struct Model {
    config: Config,
    calendar: Calendar,
    tokens: i64,
    /// The next opening.
    opens_at: i64,
}

impl Model {
    fn new(config: Config, calendar: Calendar, now: i64) -> Self {
        let tokens = config.initial.unwrap_or(config.capacity).cast_signed();
        Self { config, calendar, tokens, opens_at: calendar.window(now).1 }
    }

    /// With all windows that have opened until `now`.
    fn at(mut self, now: i64) -> Self {
        while self.opens_at <= now {
            self.open();
        }
        self
    }

    fn open(&mut self) {
        self.tokens = self.config.capacity.cast_signed().min(self.tokens + self.config.rate.cast_signed());
        self.opens_at = self.calendar.window(self.opens_at).1;
    }

    fn apply(&mut self, now: i64, cost: u64, verb: Verb) -> Decision {
        if self.calendar.window(now + 86_400_000).1 < self.opens_at {
            self.opens_at = self.calendar.window(now).1; // the clock was set back by more than a day
        }
        let before = self.at(now);
        let (capacity, cost) = (self.config.capacity.cast_signed(), cost.cast_signed());
        let tokens = match verb {
            Verb::Charge => (before.tokens - cost).max(before.tokens.min(-self.config.max_debt.cast_signed())),
            Verb::Refund => (before.tokens + cost).min(capacity),
            Verb::Reset => capacity,
            _ if cost > capacity => return Decision::Never { max: capacity.unsigned_abs() },
            _ if before.tokens >= cost => before.tokens - cost,
            _ => {
                let mut later = before;
                let mut retry_at = now;
                while later.tokens < cost {
                    retry_at = later.opens_at;
                    later.open();
                }
                return Decision::Wait { retry_at };
            }
        };
        if tokens != before.tokens {
            *self = Self { tokens, ..before }; // otherwise a clock that is set back finds the window open that was
        }
        Decision::Allow { tokens: before.tokens.abs_diff(tokens), ready_at: now }
    }
}

fn configs() -> impl Strategy<Value = Config> {
    let numbers = (1..=5_u64, 1..=12_u64, 0..=6_u64, prop::option::of(0..=12_u64));
    numbers.prop_map(|(rate, capacity, max_debt, initial)| Config {
        capacity,
        max_debt,
        initial: initial.map(|initial| initial.min(capacity)),
        ..Config::fixed_window(rate, std::time::Duration::from_secs(1))
    })
}

fn verbs() -> impl Strategy<Value = Verb> {
    let any_wait = Verb::Reserve { max_wait_ms: None };
    prop::sample::select(vec![Verb::Consume, Verb::Consume, any_wait, Verb::Charge, Verb::Refund, Verb::Reset])
}

proptest! {
    #![proptest_config(chance::config(20_000))]

    #[test]
    fn a_limit_grants_what_each_window_adds(
        name in names(),
        unit in units(),
        config in configs(),
        start in 0..4_000_000_000_000_i64,
        steps in prop::collection::vec((0..6_u8, -90_000..90_000_i64, 0..8_u64, verbs()), 1..30),
    ) {
        let calendar = unit.calendar(zone(&name).0);
        let config = Config { calendar: Some(calendar), ..config };
        let limit = Limit::new(&config).unwrap();
        let mut model = Model::new(config, calendar, start);
        let mut state = limit.new_state(start, 0);
        let mut now = start;
        for (step, by, cost, verb) in steps {
            now = match step {
                0 => calendar.window(now).1 + by,
                1 => now + by,
                2 => now + 4 * i64::try_from(calendar.longest_ms()).unwrap(),
                // A day before an opening, or somewhere close to it on days of 23 and 25 hours.
                3 => calendar.window(now).0 - 86_400_000 + if cost == 0 { by } else { 40 * by },
                4 => now - 3 * i64::try_from(calendar.longest_ms()).unwrap(),
                _ => now,
            };
            let (decision, after) = limit.decide(state, now, cost, verb);
            prop_assert_eq!(decision, model.apply(now, cost, verb), "{:?} of {} at {}", verb, cost, now);
            prop_assert_eq!(limit.restored(&limit.snapshot(&after)), Some(after));
            if let Decision::Wait { retry_at } = decision {
                prop_assert!(!limit.decide(after, retry_at - 1, cost, verb).0.is_allow());
                prop_assert!(limit.decide(after, retry_at, cost, verb).0.is_allow());
            }
            state = after;
            prop_assert_eq!(limit.remaining(&state, now), model.at(now).tokens.max(0).unsigned_abs());
            prop_assert_eq!(limit.owed(&state, now), model.at(now).tokens.min(0).unsigned_abs());
        }
    }
}

/// Another edition of the database has other clocks: no window is lost or doubled, wherever a bucket's last request was.
#[test]
fn other_offsets_of_a_zone_neither_lose_nor_double_a_window() {
    const HOUR_MS: i64 = 3_600_000;
    let limit = |offset: i32| {
        let zone = Zone::new("Test/Place", vec![(0, offset)].leak()).unwrap();
        let day = Calendar::day(Box::leak(Box::new(zone)));
        Limit::new(&Config { capacity: 100, initial: Some(0), ..Config::calendar_window(1, day) }).unwrap()
    };
    for (before, after) in [(0, 3_600), (3_600, 0), (-39_600, 46_800), (46_800, -39_600)] {
        let editions = [limit(before), limit(after)];
        for changed_at in 0..72 {
            let mut state = editions[0].new_state(0, 0);
            for hour in 0..240 {
                let limit = &editions[usize::from(hour >= changed_at)];
                // What is taken is given back: so the bucket's moment is this one.
                if limit.consume(&mut state, hour * HOUR_MS, 1).is_allow() {
                    _ = limit.refund(&mut state, hour * HOUR_MS, 1);
                }
            }
            let day = |offset: i32, at: i64| (at + i64::from(offset) * 1_000).div_euclid(24 * HOUR_MS);
            let days = day(after, 239 * HOUR_MS) - day(before, 0);
            assert_eq!(i64::try_from(editions[1].remaining(&state, 239 * HOUR_MS)).unwrap(), days, "at {changed_at}");
        }
    }
}

#[test]
fn a_calendar_is_for_fixed_windows_without_an_offset() {
    let daily = Config::calendar_window(1, Calendar::day(&Zone::UTC));
    for kind in [Kind::TokenBucket, Kind::FirstUseWindow] {
        let config = Config { kind, ..daily };
        assert_eq!(Limit::new(&config), Err(ConfigError::CalendarWithoutWindows));
    }
    let config = Config { offset_ms: Some(0), ..daily };
    assert_eq!(Limit::new(&config), Err(ConfigError::OffsetBesideCalendar));
    let config = Config { period_ms: 7, ..daily };
    assert_eq!(Limit::new(&config).unwrap().config().period_ms, 86_400_000, "the calendar's");
}

#[test]
fn offsets_are_in_order_and_shorter_than_a_day() {
    let new = |name, offsets: &[(i64, i32)]| Zone::new(name, offsets.to_vec().leak()).is_some();
    assert!(new("A/B", &[]) && new("A/B", &[(0, 86_399), (1, -86_399)]));
    for wrong in [[(0, 0), (0, 1)], [(1, 0), (0, 1)], [(0, 86_400), (1, 0)], [(0, 0), (1, -86_400)]] {
        assert!(!new("A/B", &wrong), "{wrong:?}");
    }
    assert!(!new("UTC", &[]) && !new("", &[]) && !new("A B", &[]));
}

/// Neither panics, and the second is not before the first.
#[test]
fn moments_beyond_the_exact_ones_saturate() {
    let zone = Zone::named("Europe/London").unwrap();
    for unit in [Unit::Day, Unit::Week(3), Unit::Month(31), Unit::Quarter(2, 29), Unit::Year(2, 29)] {
        let calendar = unit.calendar(zone);
        let limit = Limit::new(&Config::calendar_window(3, calendar)).unwrap();
        for now in [i64::MIN, -(1 << 53), -(1 << 52), -1, 0, 1, 1 << 52, 1 << 53, i64::MAX] {
            let (from, until) = calendar.window(now);
            assert!(from < until, "{unit:?} at {now}");
            let mut state = limit.new_state(now, 0);
            assert!(limit.try_consume(&mut state, now, 3));
            assert!(!limit.try_consume(&mut state, now, 1));
            if now.unsigned_abs() < 1 << 52 {
                assert_eq!(limit.restored(&limit.snapshot(&state)), Some(state));
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    /// The fields of a policy that say when windows open.
    window: serde_json::Map<String, serde_json::Value>,
    opens: Vec<String>,
}

/// The package and the service read the same file.
#[test]
fn windows_open_when_the_shared_vectors_say() {
    let vectors: Vectors = serde_json::from_str(include_str!("vectors/calendar/windows.json")).unwrap();
    for Vector { name, window, opens } in vectors.cases {
        let mut policy = window;
        policy.insert("kind".to_owned(), "fixed_window".into());
        policy.insert("rate".to_owned(), 3.into());
        let policies = Policies::parse(&serde_json::json!({ "p": policy }).to_string()).unwrap();
        let limit = policies.get("p").unwrap().limits()[0].limit();
        let opens: Vec<_> = opens.iter().map(|text| text.parse::<Timestamp>().unwrap().as_millisecond()).collect();
        let mut state = limit.new_state(opens[0], 0);
        assert_eq!(limit.snapshot(&state).at, opens[0], "{name}");
        for pair in opens.windows(2) {
            assert!(limit.try_consume(&mut state, pair[0], 3), "{name} at {}", pair[0]);
            assert_eq!(limit.consume(&mut state, pair[1] - 1, 1), Decision::Wait { retry_at: pair[1] }, "{name}");
        }
    }
}
