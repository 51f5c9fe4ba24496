//! Windows of a calendar as written: `calendar = "month"`, `starts = 15`, `zone = "America/Sao_Paulo"`.

use std::borrow::Cow;

use super::shown::shown_value;
use crate::json::{Fields, Json};
use crate::length;
use crate::limit::{Calendar, Config, Days, Kind, MonthDay, Zone};
use crate::zones;

const UNITS: [&str; 5] = ["day", "week", "month", "quarter", "year"];

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// The calendar of a limit of that kind, if it has one. `error` is given each field that is wrong, and why.
pub(super) fn read(fields: &Fields<'_>, kind: Kind, mut error: impl FnMut(&str, String)) -> Option<Calendar> {
    let Some(value) = fields.get("calendar") else {
        for field in ["starts", "zone"].into_iter().filter(|field| fields.get(field).is_some()) {
            error(field, "needs `calendar`".to_owned());
        }
        return None;
    };
    if kind == Kind::TokenBucket {
        error("calendar", "needs `kind = \"fixed_window\"`".to_owned());
    }
    for field in ["period", "offset"].into_iter().filter(|field| fields.get(field).is_some()) {
        error(field, "cannot be combined with `calendar`, which says when windows open".to_owned());
    }
    let unit = unit_of(value);
    if unit.is_none() {
        let [others @ .., last] = UNITS.map(|unit| format!("\"{unit}\""));
        error("calendar", format!("must be {} or {last}, not {}", others.join(", "), shown_value(value)));
    }
    let zone = read_zone(fields, &mut error);
    let unit = unit?;
    let starts = fields.get("starts");
    let calendar = calendar(&unit, starts, zone.unwrap_or(&Zone::UTC));
    if calendar.is_none() {
        let shown = starts.map(shown_value).unwrap_or_default();
        let problem = match &*unit {
            "day" => "does not apply to days, which start at midnight".to_owned(),
            "week" => format!("must be a weekday in lower case, such as \"{}\", not {shown}", WEEKDAYS[0]),
            "month" => format!("must be a day of the month, a whole number from 1 to 31, not {shown}"),
            _ => format!("must be month-day, such as \"04-06\" for 6 April, not {shown}"),
        };
        error("starts", problem);
    }
    calendar
}

fn read_zone(fields: &Fields<'_>, error: impl FnOnce(&str, String)) -> Option<&'static Zone> {
    let value = fields.get("zone")?;
    let zone = zone_of(value);
    if zone.is_none() {
        let shown = shown_value(value);
        let rule = if zones::are_known() {
            "must be the name of a time zone in the IANA's database, such as \"America/Sao_Paulo\" or \"UTC\""
        } else {
            "must be \"UTC\": other time zones need the crate's feature `zones`"
        };
        error("zone", format!("{rule}, not {shown}"));
    }
    zone
}

/// The fields of a calendar.
#[cfg(feature = "kinds")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalendarField {
    Calendar,
    Starts,
    Zone,
}

#[cfg(feature = "kinds")]
impl CalendarField {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Calendar => "calendar",
            Self::Starts => "starts",
            Self::Zone => "zone",
        }
    }
}

/// The calendar in these fields, or the field that is wrong.
#[cfg(feature = "kinds")]
pub(crate) fn calendar_in(fields: &Fields<'_>) -> Result<Calendar, CalendarField> {
    let unit = fields.get("calendar").and_then(unit_of);
    let zone = fields.get("zone").map_or(Some(&Zone::UTC), zone_of).ok_or(CalendarField::Zone)?;
    calendar(&unit.ok_or(CalendarField::Calendar)?, fields.get("starts"), zone).ok_or(CalendarField::Starts)
}

fn unit_of(value: Json<'_>) -> Option<Cow<'_, str>> {
    value.string().filter(|unit| UNITS.contains(&&**unit))
}

fn zone_of(value: Json<'_>) -> Option<&'static Zone> {
    value.string().and_then(|name| zones::named(&name))
}

fn calendar(unit: &str, starts: Option<Json<'_>>, zone: &'static Zone) -> Option<Calendar> {
    let number = || match starts {
        Some(number) => u8::try_from(number.integer()?).ok(),
        None => Some(1),
    };
    let weekday = || match starts {
        Some(word) => {
            let word = word.string()?;
            let place = WEEKDAYS.iter().position(|weekday| *weekday == word)?;
            u8::try_from(place).ok()?.checked_add(1)
        }
        None => Some(1),
    };
    let month_and_day = || match starts {
        Some(text) => {
            let text = text.string()?;
            let (month, day) = text.split_once('-').filter(|(month, day)| month.len() == 2 && day.len() == 2)?;
            let number = |text: &str| if text.starts_with('+') { None } else { text.parse::<u8>().ok() };
            Some((number(month)?, number(day)?))
        }
        None => Some((1, 1)),
    };
    match unit {
        "day" => starts.is_none().then(|| Calendar::day(zone)),
        "week" => Calendar::week(zone, weekday()?),
        "month" => Calendar::month(zone, number()?),
        "quarter" => month_and_day().and_then(|(month, day)| Calendar::quarter(zone, month, day)),
        _ => month_and_day().and_then(|(month, day)| Calendar::year(zone, month, day)),
    }
}

/// The time in which a limit adds its tokens: `1m`, or `calendar month from day 15 in America/Sao_Paulo`.
pub(crate) fn shown_period(config: &Config) -> String {
    let Some(calendar) = config.calendar else { return length::shown(config.period_ms) };
    let from = |date: MonthDay| match date {
        MonthDay { month: 1, day: 1 } => String::new(),
        date => format!(" from {date}"),
    };
    let days = match calendar.days() {
        Days::All => "day".to_owned(),
        Days::Weekly(weekday) => format!("week from {}", name_of(weekday)),
        Days::Monthly(1) => "month".to_owned(),
        Days::Monthly(day) => format!("month from day {day}"),
        Days::Quarterly(date) => format!("quarter{}", from(date)),
        Days::Yearly(date) => format!("year{}", from(date)),
    };
    format!("calendar {days} in {}", calendar.zone().name())
}

/// The weekday's name, capitalized.
fn name_of(weekday: u8) -> String {
    let place = usize::from(weekday).checked_sub(1);
    let mut letters = place.and_then(|place| WEEKDAYS.get(place)).copied().unwrap_or_default().chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policies;

    fn policy(fields: &str) -> String {
        format!(r#"{{"p":{{"kind":"fixed_window","rate":5,{fields}}}}}"#)
    }

    #[test]
    fn a_calendar_says_where_windows_open() {
        let utc = &Zone::UTC;
        for (fields, calendar, shown) in [
            (r#""calendar":"day""#, Some(Calendar::day(utc)), "calendar day in UTC"),
            (r#""calendar":"day","zone":"UTC""#, Some(Calendar::day(utc)), "calendar day in UTC"),
            (r#""calendar":"week""#, Calendar::week(utc, 1), "calendar week from Monday in UTC"),
            (r#""calendar":"week","starts":"sunday""#, Calendar::week(utc, 7), "calendar week from Sunday in UTC"),
            (r#""calendar":"month""#, Calendar::month(utc, 1), "calendar month in UTC"),
            (r#""calendar":"month","starts":31"#, Calendar::month(utc, 31), "calendar month from day 31 in UTC"),
            (r#""calendar":"quarter""#, Calendar::quarter(utc, 1, 1), "calendar quarter in UTC"),
            (
                r#""calendar":"quarter","starts":"11-15""#,
                Calendar::quarter(utc, 2, 15),
                "calendar quarter from 02-15 in UTC",
            ),
            (r#""calendar":"year","starts":"04-06""#, Calendar::year(utc, 4, 6), "calendar year from 04-06 in UTC"),
        ] {
            let policies = Policies::parse(&policy(fields)).unwrap();
            let config = *policies.get("p").unwrap().limits()[0].limit().config();
            assert_eq!(config, Config::calendar_window(5, calendar.unwrap()), "{fields}");
            assert_eq!(shown_period(&config), shown);
            let calendar = config.calendar.unwrap();
            assert_eq!(Calendar::parse(&calendar.to_string(), zones::named), Some(calendar));
        }
    }

    #[test]
    fn each_contradiction_is_one_error_that_says_what_would_be_right() {
        let month = r#""calendar":"month""#;
        for (json, expected) in [
            (
                policy(r#""calendar":"fortnight""#),
                r#"p.calendar: must be "day", "week", "month", "quarter" or "year", not "fortnight""#,
            ),
            (
                policy(r#""calendar":"month","period":"1day""#),
                "p.period: cannot be combined with `calendar`, which says when windows open",
            ),
            (
                policy(r#""calendar":"month","offset":"1h""#),
                "p.offset: cannot be combined with `calendar`, which says when windows open",
            ),
            (
                policy(r#""calendar":"month","offset":"first_use""#),
                "p.offset: cannot be combined with `calendar`, which says when windows open",
            ),
            (policy(r#""period":"1day","zone":"UTC""#), "p.zone: needs `calendar`"),
            (policy(r#""period":"1day","starts":1"#), "p.starts: needs `calendar`"),
            (
                policy(r#""calendar":"month","zone":"America/Sao_Paolo""#),
                r#"p.zone: must be the name of a time zone in the IANA's database, such as "America/Sao_Paulo" or "UTC", not "America/Sao_Paolo""#,
            ),
            (policy(r#""calendar":"day","starts":1"#), "p.starts: does not apply to days, which start at midnight"),
            (
                policy(r#""calendar":"week","starts":1"#),
                r#"p.starts: must be a weekday in lower case, such as "monday", not 1"#,
            ),
            (
                policy(r#""calendar":"month","starts":0"#),
                "p.starts: must be a day of the month, a whole number from 1 to 31, not 0",
            ),
            (
                policy(r#""calendar":"month","starts":32"#),
                "p.starts: must be a day of the month, a whole number from 1 to 31, not 32",
            ),
            (
                policy(r#""calendar":"year","starts":"4-6""#),
                r#"p.starts: must be month-day, such as "04-06" for 6 April, not "4-6""#,
            ),
            (
                policy(r#""calendar":"year","starts":"13-01""#),
                r#"p.starts: must be month-day, such as "04-06" for 6 April, not "13-01""#,
            ),
            (format!(r#"{{"p":{{"rate":5,{month}}}}}"#), r#"p.calendar: needs `kind = "fixed_window"`"#),
            (
                format!(r#"{{"p":{{"kind":"fixed_window","rate":"5/1m",{month}}}}}"#),
                "p.rate: includes a period, which `calendar` sets: write only the number of tokens, such as 5",
            ),
            (
                format!(r#"{{"p":{{"kind":"fixed_window","rate":"5/1m burst 10s",{month}}}}}"#),
                "p.rate: includes a period, which `calendar` sets: write only the number of tokens, such as 5",
            ),
            (
                policy(r#""calendar":"week","starts":"Monday""#),
                r#"p.starts: must be a weekday in lower case, such as "monday", not "Monday""#,
            ),
            (
                policy(r#""calendar":"month","starts":29.5"#),
                "p.starts: must be a day of the month, a whole number from 1 to 31, not 29.5",
            ),
            (
                policy(r#""calendar":"month","zone":"utc""#),
                r#"p.zone: must be the name of a time zone in the IANA's database, such as "America/Sao_Paulo" or "UTC", not "utc""#,
            ),
            (
                r#"{"p":{"kind":"fixed_window","rate":"5/month"}}"#.to_owned(),
                r#"p.rate: "1month" counts in months, which differ in length: write days, such as "30days" (a minute is "m"), or `kind = "fixed_window"` with `calendar = "month"`"#,
            ),
            (
                format!(r#"{{"p":{{"kind":"fixed_window","rate":5,{month},"shards":2}}}}"#),
                "p.shards: p is a fixed window, which cannot be divided: make it a token bucket",
            ),
            (
                format!(r#"{{"p":{{"kind":"fixed_window","rate":2.5,{month}}}}}"#),
                "p.rate: must be whole: a window that opens adds whole tokens",
            ),
            (
                format!(r#"{{"p":{{"kind":"slots","capacity":5,{month}}}}}"#),
                r#"p.calendar: is not for `kind = "slots"`, whose only number is `capacity`: how many may be taken at once"#,
            ),
        ] {
            let errors = Policies::parse(&json).unwrap_err();
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(errors, [format!("POLICIES.{expected}")], "{json}");
        }
    }
}
