//! Exports that only the larger module of `tollgate/kinds` has: calendars and paces. Each calendar is made once, and a bucket's kind is its number
//! plus 3.

#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use core::mem::MaybeUninit;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::number::{f64_from_i64, f64_from_u64, i64_from_f64, u64_from_f64};
use crate::exchange::replace;
use crate::json::Json;
use crate::limit::{Calendar, ConfigError, Decision, WarmUp, WarmUpState};
use crate::policy::{CalendarField, calendar_in};

/// The calendars so far. A program has a few.
static CALENDARS: Mutex<Vec<Calendar>> = Mutex::new(Vec::new());

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

/// The calendar with that number.
pub(super) fn numbered(number: u32) -> Option<Calendar> {
    let known = CALENDARS.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(usize::try_from(number).ok()?).copied()
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
    let mut known = CALENDARS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = known.iter().position(|one| *one == calendar).unwrap_or_else(|| {
        known.push(calendar);
        known.len().saturating_sub(1)
    });
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
        assert_eq!(numbered(u32::try_from(number).unwrap()), Calendar::month(&Zone::UTC, 15));
        assert_eq!(ask(r#"{"zone":"UTC","calendar":"month","starts":15}"#), month);
        assert_eq!(ask(r#"{"calendar":"week"}"#)["kind"], "week 1 UTC");
        assert_eq!(numbered(u32::MAX), None);
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
