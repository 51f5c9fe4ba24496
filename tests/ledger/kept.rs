//! A ledger beside its storage: when it reads and writes, and its state after a failure.

use std::sync::Arc;

use tollgate::ledger::{Kept, KeptError};
use tollgate::limit::Verb;
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectRequest, Rows};

use crate::disk::Disk;
use crate::world::{DAY_MS, START, decided};

const CONSUME: Action = Action::Take(Verb::Consume);
const RESERVE: Action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });

fn policy(fields: &str) -> Arc<Policy> {
    let policies = Policies::parse(&format!(r#"{{"p":{{"rate":0,"period":"1s","capacity":10{fields}}}}}"#)).unwrap();
    Arc::clone(policies.get("p").unwrap())
}

fn request(action: Action, cost: u64) -> ObjectRequest {
    let (shadow_costs, known) = (Vec::new(), None);
    ObjectRequest {
        action,
        request_id: None,
        costs: vec![vec![cost]],
        shadow_costs,
        known,
        has_consequences: true,
        lease: None,
    }
}

/// A key, its storage and its policy.
struct Key {
    disk: Disk,
    kept: Kept<Disk>,
    policy: Arc<Policy>,
    ids: u64,
}

impl Key {
    fn new(fields: &str) -> Self {
        let disk = Disk::default();
        Self { kept: Kept::new(disk.clone(), 0, 7), disk, policy: policy(fields), ids: 0 }
    }

    fn ask(&mut self, action: Action, cost: u64) -> Result<Decided, KeptError<&'static str>> {
        let asked = std::slice::from_ref(&self.policy);
        self.ids += 1;
        self.kept.ask(asked, &request(action, cost), START, || Some(self.ids)).map(decided)
    }

    /// Takes a token at a time until a row is written in the background.
    fn ask_until_background(&mut self) {
        while self.disk.get().in_flight.is_empty() {
            assert!(self.ask(CONSUME, 1).unwrap().decision().is_allow());
        }
    }

    fn left(&mut self) -> u64 {
        self.ask(Action::Look(Verb::Refund), 0).unwrap().limits[0].remaining
    }
}

#[test]
fn after_a_failure_the_state_is_read_from_the_rows() {
    for (fields, action, row) in [(r#","write_ahead":0"#, CONSUME, "b:"), ("", RESERVE, "r:")] {
        let mut key = Key::new(fields);
        assert!(key.ask(action, 3).unwrap().decision().is_allow());
        key.disk.get_mut().failing = Some(row);
        for _ in 0..2 {
            assert!(matches!(key.ask(action, 4), Err(KeptError::Storage("the disk is full"))));
        }
        key.disk.get_mut().failing = None;
        assert_eq!(key.left(), 7, "{row}");
        assert_eq!(key.disk.get().reads, 3, "at first and after each failure");
    }
}

#[test]
fn an_undecidable_request_changes_nothing() {
    let mut key = Key::new("");
    key.ask(CONSUME, 3).unwrap();
    let unfit = ObjectRequest { costs: vec![vec![1, 1]], ..request(CONSUME, 1) };
    let asked = std::slice::from_ref(&key.policy);
    assert!(matches!(key.kept.ask(asked, &unfit, START, || None), Err(KeptError::Ledger(_))));
    assert_eq!((key.left(), key.disk.get().reads), (7, 1));
}

/// The answer has the due notice, and everything that does not depend on its row is done.
#[test]
fn a_notice_that_cannot_be_recorded_is_given_anyway() {
    let mut key = Key::new(r#","write_ahead":4,"notify":["80%","refused"]"#);
    key.disk.get_mut().failing = Some("n:");
    let mut notices = 0;
    for cost in [1, 1, 1, 1, 1, 1, 1, 1, 1, 20, 20] {
        notices += key.ask(CONSUME, cost).unwrap().notices.len();
    }
    assert_eq!((notices, key.left()), (2, 1), "one of each kind");
    let state = key.disk.get();
    assert_eq!(state.rows.keys().collect::<Vec<_>>(), ["b:p"]);
    assert!(
        state.alarm_at.is_some() && state.timers == 1 && state.in_flight.len() + state.arrived.len() > 0,
        "{state:?}"
    );
}

#[test]
fn a_refusal_that_cannot_be_recorded_is_one_and_bans_all_the_same() {
    let mut key = Key::new(r#","ban":{"after":2,"within":"1m","for":"1m"}"#);
    key.disk.get_mut().failing = Some("x:");
    let is_banned = [11, 11, 1].map(|cost| key.ask(CONSUME, cost).unwrap().limits[0].ban.is_some());
    assert_eq!(is_banned, [false, true, true]);
}

/// The alarm of the first rows, even if these are lost.
#[test]
fn a_key_with_only_a_notice_to_write_has_an_alarm() {
    for failing in [None, Some("n:")] {
        let mut key = Key::new(r#","notify":["refused"]"#);
        key.disk.get_mut().failing = failing;
        assert_eq!(key.ask(CONSUME, 11).unwrap().notices.len(), 1);
        assert!(key.disk.get().alarm_at.is_some());
        key.kept.clean(START + 2 * DAY_MS).unwrap();
        assert!(key.disk.get().rows.is_empty() && key.disk.get().alarm_at.is_none());
    }
}

#[test]
fn a_row_of_an_earlier_ledger_confirms_nothing() {
    let written = |of_this: bool| {
        let mut key = Key::new(r#","write_ahead":4"#);
        key.ask_until_background();
        let (row, number) = key.disk.get_mut().in_flight.remove(0);
        key.kept.confirm(&row.name, if of_this { number } else { number.wrapping_sub(1) }, row.ticket);
        key.kept.take_rows();
        for _ in 0..4 {
            key.ask(CONSUME, 1).unwrap();
        }
        (key.kept.take_rows().written, key.disk.get().in_flight.len())
    };
    assert_ne!(written(true), written(false), "a row that has not arrived is not relied on");
}

#[test]
fn a_timer_is_set_once_until_it_fires_and_does_nothing_after_a_failure() {
    let mut key = Key::new(r#","write_ahead":8"#);
    for _ in 0..3 {
        key.ask(CONSUME, 1).unwrap();
    }
    assert_eq!(key.disk.get().timers, 1);
    key.kept.flush_idle(START + 200).unwrap();
    key.ask(CONSUME, 1).unwrap();
    assert_eq!(key.disk.get().timers, 2);
    key.disk.get_mut().failing = Some("r:");
    key.ask(RESERVE, 1).unwrap_err();
    let reads = key.disk.get().reads;
    key.kept.flush_idle(START + 400).unwrap();
    assert_eq!(key.disk.get().reads, reads, "the rows have everything");
}

#[test]
fn an_alarm_lost_by_the_runtime_is_set_again_if_there_are_rows() {
    let mut key = Key::new(r#","write_ahead":0"#);
    assert_eq!(key.kept.alarm_is_missing(START).unwrap(), None);
    key.ask(CONSUME, 1).unwrap();
    let at = key.disk.get().alarm_at;
    key.kept = Kept::new(key.disk.clone(), 0, 9);
    assert_eq!(key.kept.alarm_is_missing(START).unwrap(), at);
}

#[test]
fn rows_are_counted_until_they_are_reported() {
    let mut key = Key::new(r#","write_ahead":0"#);
    key.ask(CONSUME, 1).unwrap();
    assert_eq!(key.kept.take_rows(), Rows { read: 0, written: 2 }, "the bucket's, and the alarm");
    key.kept = Kept::new(key.disk.clone(), 0, 9);
    key.ask(CONSUME, 20).unwrap();
    assert_eq!(key.kept.take_rows(), Rows { read: 1, written: 0 });
    assert_eq!(key.kept.take_rows(), Rows::default());
}
