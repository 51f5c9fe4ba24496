//! Exports that only the larger module of `tollgate/kinds` has: calendars, rolling windows and paces. Each calendar, and each number of grains, is
//! made once, and a bucket's kind is its number plus 3.

#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use core::mem::MaybeUninit;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::number::{f64_from_i64, f64_from_u64, i64_from_f64, u64_from_f64};
use crate::exchange::replace;
use crate::json::Json;
use crate::limit::{
    Calendar, Config, ConfigError, Decision, Kind, Limit, MAX_GRAINS, Moment, RollingWindow, State, Verb, WarmUp,
    WarmUpState, grain_ms,
};
use crate::policy::{CalendarField, calendar_in};

/// The kinds so far. A program has a few.
static KINDS: Mutex<Vec<OtherKind>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherKind {
    Calendar(Calendar),
    /// With that many grains in a period.
    RollingWindow(u8),
}

/// The number of a kind, which is a new one if it is.
fn number_of(kind: OtherKind) -> usize {
    let mut known = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().position(|one| *one == kind).unwrap_or_else(|| {
        known.push(kind);
        known.len().saturating_sub(1)
    })
}

/// The kind with that number, the calendar of its windows, if they have one, and their grains.
pub(super) fn kind_of(number: u32) -> (Kind, Option<Calendar>, u8) {
    let known = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
    let other = number.checked_sub(3).and_then(|number| known.get(usize::try_from(number).ok()?));
    match (number, other) {
        (_, Some(OtherKind::Calendar(calendar))) => (Kind::FixedWindow, Some(*calendar), 0),
        (_, Some(OtherKind::RollingWindow(grains))) => (Kind::RollingWindow, None, *grains),
        (0, _) => (Kind::TokenBucket, None, 0),
        (2, _) => (Kind::FirstUseWindow, None, 0),
        _ => (Kind::FixedWindow, None, 0),
    }
}

/// The number of rolling windows with that many grains, or the most grains below zero if there can be none.
#[unsafe(no_mangle)]
pub extern "C" fn rolling_window(grains: f64) -> f64 {
    match u8::try_from(u64_from_f64(grains)) {
        Ok(grains @ 1..=MAX_GRAINS) => f64_from_u64(number_of(OtherKind::RollingWindow(grains)) as u64),
        _ => -f64::from(MAX_GRAINS),
    }
}

/// What a bucket keeps for a rolling window beside its state. It is part of every bucket, so that JavaScript needs to own nothing else.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rolling {
    moments: [Moment; RollingWindow::MAX_MOMENTS],
    grain_ms: u64,
}

impl Rolling {
    pub(super) fn new(limit: &Limit, grains: u8) -> Self {
        Self { moments: [Moment::default(); RollingWindow::MAX_MOMENTS], grain_ms: grain_ms(limit.config(), grains) }
    }

    /// The limit with these numbers. Some kinds start full; the capacity of a rolling window is its rate, and it has no debt.
    pub(super) fn check(config: &Config, initial: u64) -> Result<Limit, ConfigError> {
        let Config { kind, rate, capacity, max_debt, .. } = *config;
        let is_rolling = kind == Kind::RollingWindow;
        // Of two numbers that must be the same, the larger one is too large.
        match kind {
            Kind::TokenBucket | Kind::FixedWindow => Limit::new(config),
            _ if initial > capacity => Err(ConfigError::InitialTooLarge { initial, max: capacity }),
            _ if capacity > initial => Err(ConfigError::CapacityTooLarge { capacity, max: initial }),
            _ if is_rolling && capacity > rate => Err(ConfigError::CapacityTooLarge { capacity, max: rate }),
            _ if is_rolling && rate > capacity => Err(ConfigError::RateTooLarge { rate, max: capacity }),
            _ if is_rolling && max_debt > 0 => Err(ConfigError::MaxDebtTooLarge { max_debt, max: 0 }),
            _ => Limit::of_any_kind(config),
        }
    }

    /// The memory of a window: JavaScript keeps as much of it for each key.
    pub(super) fn moments(&self, window: &RollingWindow) -> &[Moment] {
        self.moments.get(..window.max_moments()).unwrap_or_default()
    }

    pub(super) fn moments_mut(&mut self, window: &RollingWindow) -> &mut [Moment] {
        self.moments.get_mut(..window.max_moments()).unwrap_or_default()
    }

    pub(super) fn clear(&mut self) {
        self.moments.fill(Moment::default());
    }

    /// The window of that limit, if it is one.
    pub(super) fn window(&self, limit: &Limit) -> Option<RollingWindow> {
        RollingWindow::of(limit, self.grain_ms)
    }

    /// The answer of a window, and what it would keep after it.
    pub(super) fn decide(
        mut self,
        window: &RollingWindow,
        mut state: State,
        now: i64,
        cost: u64,
        verb: Verb,
    ) -> (Decision, State, Self) {
        let decision = window.decide_in(&mut state, self.moments_mut(window), now, cost, verb);
        (decision, state, self)
    }

    /// A number of a window, if it is not that of its last answer: see [`get`](super::get). From 7 on, when the first, the second and so on of what is missing
    /// come back, and how much that is, or 0.
    pub(super) fn number(&self, window: &RollingWindow, state: &State, which: u32, now: i64) -> Option<i64> {
        let (current, mut left) = window.current(state, self.moments(window), now);
        let snapshot = window.limit().snapshot(&current);
        Some(match which {
            0 | 1 | 6 => return None,
            2 => snapshot.tokens,
            3 => 0,
            4 => snapshot.at.max(now),
            5 => window.full_at_in(state, self.moments(window), now),
            _ => {
                let place = which.saturating_sub(7);
                let (at, tokens) = left.nth(usize::try_from(place / 2).unwrap_or(usize::MAX)).unwrap_or((0, 0));
                if place.is_multiple_of(2) { at } else { tokens.cast_signed() }
            }
        })
    }

    /// Takes over what an old bucket has at `now`, and returns the state; one of another kind gives a new one.
    pub(super) fn carry(&mut self, window: &RollingWindow, old: (&Limit, &State, &Self), now: i64) -> State {
        let (limit, state, rolling) = old;
        self.clear();
        let Some(before) = rolling.window(limit) else { return window.limit().new_state(now, 0) };
        let (state, moments) = window.carry((&before, state, rolling.moments(&before)), now);
        self.moments = moments;
        state
    }
}

/// Replaces the text, JSON with the fields `calendar`, `starts` and `zone` of a policy, by JSON about that calendar, and returns the length.
#[unsafe(no_mangle)]
pub extern "C" fn calendar() -> usize {
    #[cfg(all(target_arch = "wasm32", tollgate_module))]
    crate::zones::imported::install();
    replace(|text| serde_json::to_string(&answer(text)).unwrap_or_default()) // our own type cannot fail to serialize
}

/// A pace, and its one state.
#[derive(Debug)]
#[repr(C)]
pub struct Pace {
    pace: WarmUp,
    state: WarmUpState,
}

/// Makes a pace at an unused address. Returns 0, or the position of the parameter that is too large, counting from 1 for `rate`; then `*max` is its
/// largest valid value.
#[unsafe(no_mangle)]
pub extern "C" fn warm_up(
    pace: &mut MaybeUninit<Pace>,
    max: &mut f64,
    now: f64,
    rate: f64,
    period_ms: f64,
    warm_up_ms: f64,
) -> u32 {
    let [period, warm_up] = [period_ms, warm_up_ms].map(|ms| Duration::from_millis(u64_from_f64(ms)));
    let (position, largest) = match WarmUp::new(u64_from_f64(rate), period, warm_up) {
        Ok(made) => {
            pace.write(Pace { pace: made, state: made.new_state(i64_from_f64(now)) });
            return 0;
        }
        Err(ConfigError::PeriodTooLong { max_ms, .. }) => (2, max_ms),
        Err(ConfigError::WarmUpTooLong { max_ms, .. }) => (3, max_ms),
        Err(ConfigError::RateTooLarge { max, .. }) => (1, max),
        Err(_) => (1, 0), // impossible: JavaScript refuses zeros
    };
    *max = f64_from_u64(largest);
    position
}

/// [`WarmUp::borrow`], which keeps its state only if `apply`. Returns whether it is granted; then `*at` is when to start, and otherwise when it would
/// be granted. A `max_wait_ms` of infinity allows any wait.
#[unsafe(no_mangle)]
pub extern "C" fn borrow(pace: &mut Pace, at: &mut f64, now: f64, tokens: f64, max_wait_ms: f64, apply: bool) -> bool {
    let mut state = pace.state;
    let max_wait_ms = Some(u64_from_f64(max_wait_ms));
    let answer = pace.pace.borrow(&mut state, i64_from_f64(now), u64_from_f64(tokens), max_wait_ms);
    if apply {
        pace.state = state;
    }
    *at = match answer {
        Decision::Allow { ready_at: moment, .. } | Decision::Wait { retry_at: moment } => f64_from_i64(moment),
        Decision::Never { .. } => f64::INFINITY, // impossible
    };
    answer.is_allow()
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Known {
        /// Its text, such as `month 15 America/Sao_Paulo`.
        kind: String,
        number: usize,
        /// The length of its longest window.
        period_ms: u64,
    },
    /// The field that is wrong.
    Wrong { field: &'static str },
}

fn answer(text: &str) -> Answer {
    let fields = Json::parse(text).ok().and_then(|json| json.fields().ok());
    let calendar = match fields.map_or(Err(CalendarField::Calendar), |fields| calendar_in(&fields)) {
        Ok(calendar) => calendar,
        Err(field) => return Answer::Wrong { field: field.name() },
    };
    let number = number_of(OtherKind::Calendar(calendar));
    Answer::Known { kind: calendar.to_string(), number, period_ms: calendar.longest_ms() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Zone;

    /// Numbers that JavaScript never passes.
    #[test]
    fn invalid_numbers_do_no_harm() {
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 0.5, 1e300, -1e300, 9_007_199_254_740_992.0];
        for a in odd {
            for b in odd {
                for numbers in [[a, b, 1.0], [3.0, a, b], [b, 1_000.0, a], [3.0, 1_000.0, 5_000.0]] {
                    let [rate, period_ms, warm_up_ms] = numbers;
                    let (mut pace, mut number) = (MaybeUninit::uninit(), 0.0);
                    if warm_up(&mut pace, &mut number, a, rate, period_ms, warm_up_ms) != 0 {
                        continue;
                    }
                    // SAFETY: 0 means that the pace was written.
                    let mut pace = unsafe { pace.assume_init() };
                    for max_wait_ms in odd {
                        borrow(&mut pace, &mut number, b, a, max_wait_ms, true);
                        assert!(!number.is_nan());
                    }
                }
            }
        }
    }

    #[test]
    fn each_calendar_has_one_number() {
        let ask = |text: &str| serde_json::to_value(answer(text)).unwrap();
        let month = ask(r#"{"calendar":"month","starts":15,"zone":"UTC"}"#);
        let number = month["number"].as_u64().unwrap();
        assert_eq!((&month["kind"], &month["period_ms"]), (&"month 15 UTC".into(), &2_678_400_000_u64.into()));
        let kind = kind_of(u32::try_from(number).unwrap() + 3);
        assert_eq!(kind, (Kind::FixedWindow, Calendar::month(&Zone::UTC, 15), 0));
        assert_eq!(ask(r#"{"zone":"UTC","calendar":"month","starts":15}"#), month);
        assert_eq!(ask(r#"{"calendar":"week"}"#)["kind"], "week 1 UTC");
        for (text, field) in [
            ("", "calendar"),
            ("{}", "calendar"),
            (r#"{"calendar":"fortnight"}"#, "calendar"),
            (r#"{"calendar":"month","starts":32}"#, "starts"),
            (r#"{"calendar":"day","starts":1}"#, "starts"),
            (r#"{"calendar":"day","zone":"Nowhere"}"#, "zone"),
            (r#"{"calendar":"day","zone":7}"#, "zone"),
        ] {
            assert_eq!(ask(text)["field"], field, "{text}");
        }
    }
}
