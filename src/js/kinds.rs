//! Calendars for the package's larger module, which `tollgate/kinds` brings: each is made once, and a bucket's kind is its number plus 3.

#![expect(unsafe_code, reason = "an export keeps its name; nothing else here is unsafe")]

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::exchange::replace;
use crate::json::Json;
use crate::limit::Calendar;
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
