//! Limits and states as other programs' files and databases have them.

mod anywhere;

use std::time::Duration;

use anywhere::test;
use tollgate::limit::{Calendar, Config, Limit, Snapshot, Zone};

#[test]
fn a_limit_is_written_as_its_numbers_and_checked_when_it_is_read() {
    let written = r#"{"kind":"fixed_window","rate":9,"period_ms":86400000,"capacity":12,"max_debt":3,"initial":2,"offset_ms":5,"calendar":null,"is_soft":false}"#;
    let config: Config = serde_json::from_str(written).unwrap();
    let day = Config::fixed_window(9, Duration::from_hours(24));
    assert_eq!(config, Config { capacity: 12, max_debt: 3, initial: Some(2), offset_ms: Some(5), ..day });
    let limit: Limit = serde_json::from_str(written).unwrap();
    assert_eq!(limit, Limit::new(&config).unwrap());
    assert_eq!((serde_json::to_string(&config).unwrap(), serde_json::to_string(&limit).unwrap()), {
        (written.to_owned(), written.to_owned())
    });
    let short: Limit =
        serde_json::from_str(r#"{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3}"#).unwrap();
    assert_eq!(*short.config(), Config::token_bucket(3, Duration::from_secs(1)));
}

#[test]
fn a_calendar_is_written_as_its_days_and_its_zone() {
    let billing = Calendar::month(&Zone::UTC, 15).unwrap();
    let written = r#"{"kind":"fixed_window","rate":9,"period_ms":2678400000,"capacity":9,"max_debt":0,"initial":null,"offset_ms":null,"calendar":"month 15 UTC","is_soft":false}"#;
    let limit: Limit = serde_json::from_str(written).unwrap();
    assert_eq!(*limit.config(), Config::calendar_window(9, billing));
    assert_eq!(serde_json::to_string(&limit).unwrap(), written);
    for wrong in ["month", "month 0 UTC", "month 32 UTC", "week 8 UTC", "year 13-01 UTC", "day America/Sao_Paolo"] {
        let error = serde_json::from_str::<Limit>(&written.replace("month 15 UTC", wrong)).unwrap_err().to_string();
        assert!(error.contains("expected a calendar in a known time zone, such as \"month 15 UTC\""), "{error}");
    }
}

#[test]
fn what_is_wrong_is_refused_in_the_words_of_the_error() {
    for (written, error) in [
        (
            r#"{"kind":"token_bucket","rate":3,"period_ms":0,"capacity":3}"#,
            "a period of 0 ms is too short: at least 1 ms",
        ),
        (
            r#"{"kind":"token_bucket","rate":3,"period_ms":1000,"capacity":3,"initial":4}"#,
            "4 initial tokens are more than the capacity: at most 3",
        ),
        (r#"{"kind":"token_bucket","rate":3,"period_ms":1000}"#, "missing field `capacity`"),
        (r#"{"kind":"token_bucket","rate":3,"period":1000,"capacity":3}"#, "unknown field `period`"),
        (r#"{"kind":"leaky","rate":3,"period_ms":1000,"capacity":3}"#, "unknown variant `leaky`"),
        (r#"{"kind":"token_bucket","rate":-3,"period_ms":1000,"capacity":3}"#, "invalid value: integer `-3`"),
    ] {
        let found = serde_json::from_str::<Limit>(written).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
    }
}

#[test]
fn a_state_that_was_written_as_a_snapshot_decides_as_before() {
    let limit = Limit::new(&Config::token_bucket(3, Duration::from_secs(1))).unwrap();
    let mut state = limit.new_state(0, 0);
    assert!(limit.consume(&mut state, 500, 2).is_allow());
    let written = serde_json::to_string(&limit.snapshot(&state)).unwrap();
    assert_eq!(written, r#"{"tokens":1,"drops":0,"at":500}"#);
    let read: Snapshot = serde_json::from_str(&written).unwrap();
    assert_eq!(limit.restored(&read), Some(state));
    assert!(serde_json::from_str::<Snapshot>(r#"{"tokens":1,"at":500}"#).is_err());
}
