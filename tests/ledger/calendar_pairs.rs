//! Windows of a calendar beside what else a ledger does: leases, holds, replays, reservations, debt, shadow, notices, steps of the clock, and
//! rows that other versions read. On ordinary days, and on days of 25 and of 23 hours.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::limit::{Calendar, Decision, Verb, Zone};
use tollgate::policy::{NoticeKind, Policies, Policy};
use tollgate::protocol::{
    Action, Decided, EndedLease, LEASE_GRACE_MS, Lease, LeaseRequest, ObjectReply, ObjectRequest,
};

use crate::chance;
use crate::world::{DAY_MS, World, decided, signed};

const CONSUME: Action = Action::Take(Verb::Consume);
const HOUR_MS: i64 = 3_600_000;

/// When days of Berlin end: one in November 2026, and those of 2027 on which clocks are set back and forward.
const ORDINARY: i64 = 20_763 * DAY_MS - HOUR_MS;
const LONG: i64 = 21_123 * DAY_MS - HOUR_MS;
const SHORT: i64 = 20_906 * DAY_MS - 2 * HOUR_MS;

/// The end of such a day, and its length in hours.
const DAYS: [(i64, i64); 3] = [(ORDINARY, 24), (LONG, 25), (SHORT, 23)];

fn policy(json: &str) -> Arc<Policy> {
    Arc::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

const DAILY: &str = r#""kind":"fixed_window","rate":10,"calendar":"day","zone":"Europe/Berlin","write_ahead":0"#;

/// Ten tokens in each day of Berlin.
fn daily(fields: &str) -> Arc<Policy> {
    policy(&format!("{{{DAILY}{fields}}}"))
}

fn at(policy: &Arc<Policy>, now: i64) -> World {
    World { now, ..World::empty(policy) }
}

fn take(world: &mut World, cost: u64) -> Decision {
    world.decided(CONSUME, vec![cost]).decision()
}

const fn allowed(tokens: u64, ready_at: i64) -> Decision {
    Decision::Allow { tokens, ready_at }
}

fn leased(reply: ObjectReply) -> Lease {
    decided(reply).lease.expect("tokens are there")
}

#[test]
fn leased_tokens_are_withheld_over_an_opening_and_spent_in_the_window_in_which_they_come_back() {
    for (opens, hours) in DAYS {
        for crashes in [false, true] {
            for spent in [0, 2, 3] {
                let mut world = at(&daily(r#","lease":"10s""#), opens - 2_000);
                assert_eq!(take(&mut world, 4), allowed(4, world.now));
                let Lease { id, tokens, until, .. } = leased(world.lease(vec![9], Vec::new()));
                assert_eq!((tokens, until), (vec![3], opens + 8_000), "{hours} hours");
                assert_eq!(world.levels(), [3]);
                if crashes {
                    world.crash(0);
                }
                world.now = opens - 1;
                assert_eq!(world.levels(), [3]);
                world.now = opens;
                assert_eq!(world.levels(), [7], "of ten, three are still out");
                assert_eq!(take(&mut world, 7), allowed(7, opens));
                world.lease(vec![0], vec![EndedLease { id, spent: vec![spent] }]);
                assert_eq!(world.levels(), [3 - spent.cast_signed()], "{hours} hours");
            }
        }
    }
}

#[test]
fn a_lease_that_ends_at_an_opening_and_does_not_come_back_is_spent_in_the_new_window() {
    let late = LEASE_GRACE_MS.cast_signed();
    for (opens, hours) in DAYS {
        for crashes in [false, true] {
            let mut world = at(&daily(r#","lease":"10s""#), opens - 10_000);
            assert_eq!(leased(world.lease(vec![4], Vec::new())).until, opens);
            for (now, left) in
                [(opens - 1, 6), (opens, 6), (opens + late - 1, 6), (opens + late, 6), (opens + HOUR_MS, 6)]
            {
                world.now = now;
                if crashes {
                    world.crash(0);
                }
                assert_eq!(world.levels(), [left], "{hours} hours, {} ms after the opening", now - opens);
            }
            world.now = opens + DAY_MS;
            assert_eq!(world.levels(), [10]);
        }
    }
}

/// In an overload: the isolate refuses until then.
#[test]
fn tokens_leased_in_advance_may_be_spent_from_the_opening_on() {
    for (opens, hours) in DAYS {
        let policy = daily(r#","lease":"10s""#);
        for (before_ms, from) in [(1_000, Some(opens)), (1_001, None)] {
            let mut world = at(&policy, opens - before_ms);
            assert_eq!(take(&mut world, 10), allowed(10, world.now));
            let terms = LeaseRequest { lease_ms: 10_000, horizon_ms: 1_000, wanted: vec![9], ended: Vec::new() };
            let request = ObjectRequest {
                action: CONSUME,
                request_id: None,
                costs: vec![vec![1]],
                shadow_costs: Vec::new(),
                known: None,
                has_consequences: false,
                lease: Some(terms),
            };
            let (reply, writes) = world.ledger.ask(&[Arc::clone(&policy)], &request, world.now, || Some(7)).unwrap();
            world.write(writes);
            let answer = decided(reply);
            assert_eq!(answer.decision(), Decision::Wait { retry_at: opens }, "{hours} hours");
            assert_eq!(answer.lease.as_ref().map(|lease| lease.from), from);
            world.now = opens;
            assert_eq!(world.levels(), [if from.is_some() { 5 } else { 10 }], "half of them is leased");
        }
    }
}

#[test]
fn a_hold_over_an_opening_is_taken_from_the_window_of_its_commit() {
    let commit = Action::Settle(3);
    let abort = Action::Cancel(3);
    for (opens, hours) in DAYS {
        for (end, left) in [(Some(commit), 0), (Some(abort), 4), (None, 4)] {
            let mut world = at(&daily(""), opens - 1_000);
            assert!(world.decided(Action::Hold(3), vec![4]).reservation.is_some());
            assert_eq!(world.levels(), [6]);
            world.now = opens;
            assert_eq!(world.levels(), [6], "no more than is sure to be left");
            assert!(!take(&mut world, 7).is_allow());
            assert_eq!(take(&mut world, 6), allowed(6, opens));
            match end {
                Some(end) => _ = world.ask(end, None, None),
                None => world.now = opens + 9_000, // it has ended by itself
            }
            assert_eq!(world.levels(), [left], "{hours} hours, {end:?}");
        }
    }
}

/// Had the batch never been committed, the new window would have been as full.
#[test]
fn a_batch_committed_before_an_opening_and_aborted_after_it_adds_nothing_to_the_new_window() {
    for (opens, hours) in DAYS {
        for crashes in [false, true] {
            let mut world = at(&daily(""), opens - 1_000);
            world.decided_once(Action::Hold(3), vec![4], 6);
            decided(world.ask(Action::Settle(3), None, None));
            assert_eq!(world.levels(), [6]);
            world.now = opens;
            assert_eq!(take(&mut world, 3), allowed(3, opens));
            if crashes {
                world.crash(0);
            }
            world.ask(Action::Cancel(3), None, None);
            assert_eq!(world.levels(), [7], "{hours} hours, crashes: {crashes}");
        }
    }
}

#[test]
fn a_repetition_after_an_opening_gets_its_first_answer_and_the_level_of_now() {
    for (opens, hours) in DAYS {
        for crashes in [false, true] {
            let mut world = at(&daily(""), opens - 1);
            let first = world.decided_once(CONSUME, vec![10], 1);
            assert!(first.decision().is_allow() && !first.is_replayed);
            let refused = world.decided_once(CONSUME, vec![2], 2);
            assert_eq!(refused.decision(), Decision::Wait { retry_at: opens });
            world.now = opens;
            if crashes {
                world.crash(0);
            }
            let again = world.decided_once(CONSUME, vec![10], 1);
            assert!(again.is_replayed);
            assert_eq!(again.limits[0].decision, first.limits[0].decision, "{hours} hours");
            assert_eq!((first.limits[0].remaining, again.limits[0].remaining), (0, 10));
            assert_eq!(world.levels(), [10]);
            let granted = world.decided_once(CONSUME, vec![2], 2);
            assert!(granted.decision().is_allow() && !granted.is_replayed, "a refusal is decided again");
            assert_eq!(world.levels(), [8]);
        }
    }
}

/// The end of a reservation.
#[derive(Clone, Copy, Debug)]
enum End {
    Settled(u64),
    Cancelled,
    /// And then settled late, perhaps.
    Expired(Option<u64>),
}

/// Of 15, ten of which come each day, 12 are reserved in the evening: the next day begins with 13.
#[test]
fn a_reservation_that_ends_after_an_opening_costs_as_if_its_cost_had_been_taken_before_it() {
    let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    for (opens, hours) in DAYS {
        for (unsettled, end, left) in [
            ("keep", End::Settled(12), 8),
            ("keep", End::Settled(11), 9),
            ("keep", End::Settled(10), 10), // what exceeds the capacity at the opening is lost
            ("keep", End::Settled(2), 10),
            ("keep", End::Settled(0), 10),
            ("keep", End::Cancelled, 10),
            ("keep", End::Settled(14), 6),
            ("keep", End::Settled(25), -5), // of ten that are owed at the opening, it pays for ten
            ("keep", End::Expired(None), 8),
            ("refund", End::Expired(None), 10),
            ("keep", End::Expired(Some(2)), 10),
            ("refund", End::Expired(Some(11)), 9),
            ("refund", End::Expired(Some(14)), 6),
        ] {
            for crashes in [false, true] {
                let fields =
                    format!(r#","capacity":15,"max_debt":20,"reservation_ttl":"1m","unsettled":"{unsettled}""#);
                let mut world = at(&daily(&fields), opens - 1_000);
                let id = world.decided(reserve, vec![12]).reservation.unwrap().id;
                assert_eq!(world.levels(), [3]);
                world.now = opens;
                assert_eq!(world.levels(), [13]);
                assert_eq!(take(&mut world, 5), allowed(5, opens));
                if crashes {
                    world.crash(0);
                }
                if let End::Expired(_) = end {
                    world.now = opens + 60_000;
                }
                let settled = match end {
                    End::Settled(real) | End::Expired(Some(real)) => Some((Action::Settle(id), Some(vec![real]))),
                    End::Cancelled => Some((Action::Cancel(id), None)),
                    End::Expired(None) => None,
                };
                if let Some((action, costs)) = settled {
                    decided(world.ask(action, costs, None));
                }
                assert_eq!(world.levels(), [left], "{hours} hours, {unsettled}, {end:?}, crashes: {crashes}");
            }
        }
    }
}

/// A charge is floored at the largest debt.
#[test]
fn a_debt_is_paid_by_each_window_that_opens() {
    for (opens, hours) in DAYS {
        for crashes in [false, true] {
            let mut world = at(&daily(r#","max_debt":20"#), opens - 1);
            world.decided(Action::Take(Verb::Charge), vec![35]);
            for (now, level, retry_at) in [
                (opens - 1, -20, opens + 2 * DAY_MS),
                (opens, -10, opens + 2 * DAY_MS),
                (opens + DAY_MS - 1, -10, opens + 2 * DAY_MS),
                (opens + DAY_MS, 0, opens + 2 * DAY_MS),
            ] {
                world.now = now;
                if crashes {
                    world.crash(0);
                }
                assert_eq!(world.levels(), [level], "{hours} hours");
                assert_eq!(take(&mut world, 1), Decision::Wait { retry_at }, "{hours} hours, {} ms", now - opens);
            }
            world.now = opens + 2 * DAY_MS;
            assert_eq!(take(&mut world, 10), allowed(10, world.now));
        }
    }
}

/// The day of the limit in shadow is an hour or two behind: that of UTC.
#[test]
fn a_calendar_in_shadow_opens_at_its_own_midnight_and_changes_nothing_else() {
    let tried = r#"{"name":"tried","kind":"fixed_window","rate":3,"calendar":"day","mode":"shadow"}"#;
    let policy = policy(&format!(r#"{{"limits":[{{"name":"own",{DAILY}}},{tried}]}}"#));
    for (opens, hours) in DAYS {
        let utc = (opens / DAY_MS + 1) * DAY_MS;
        for crashes in [false, true] {
            let mut world = at(&policy, opens - 1);
            for (now, cost, left, shadow, shadow_left) in [
                (opens - 1, 3, 7, allowed(3, opens - 1), 0),
                (opens - 1, 8, 7, Decision::Never { max: 3 }, 0), // refused by the own limit, too
                (opens, 1, 9, Decision::Wait { retry_at: utc }, 0),
                (utc - 1, 1, 8, Decision::Wait { retry_at: utc }, 0),
                (utc, 1, 7, allowed(1, utc), 2),
                (utc, 4, 3, Decision::Never { max: 3 }, 2),
                (utc, 2, 1, allowed(2, utc), 0),
                (utc, 2, 1, Decision::Wait { retry_at: utc + DAY_MS }, 0),
            ] {
                world.now = now;
                let reply = world.ask_shadow(CONSUME, Some(vec![cost]), Some(vec![cost]), None);
                let Decided { limits, shadow: tried, .. } = decided(reply);
                let case = format!("{hours} hours, {} ms, {cost}", now - opens);
                assert_eq!(limits[0].remaining, left, "{case}");
                let tried = tried[0].as_ref().expect("it was tried");
                assert_eq!((tried.decision, tried.remaining), (shadow, shadow_left), "{case}");
                if crashes {
                    world.flush_idle();
                    world.crash(usize::MAX);
                }
            }
        }
    }
}

#[test]
fn each_window_that_is_exhausted_gives_its_own_notices() {
    const USED: NoticeKind = NoticeKind::Used { percent: 80 };
    const REFUSED: NoticeKind = NoticeKind::Refused;
    for (opens, hours) in DAYS {
        for (every, at_once) in [("10m", true), ("12h", true), ("23h", false)] {
            let fields = format!(r#","notify":["80%","refused"],"notify_every":"{every}""#);
            let mut world = World { has_consequences: true, ..at(&daily(&fields), opens - 13 * HOUR_MS) };
            let again = |kind| if at_once { vec![kind] } else { vec![] };
            for (now, cost, expected) in [
                (opens - 13 * HOUR_MS, 9, vec![USED]),
                (opens - 13 * HOUR_MS, 2, vec![REFUSED]),
                (opens, 2, vec![]),
                (opens, 7, again(USED)),
                (opens, 2, again(REFUSED)),
                (opens, 2, vec![]),
                (opens + 10 * HOUR_MS, 2, if every == "12h" { vec![] } else { vec![REFUSED] }),
            ] {
                world.now = now;
                let kinds: Vec<_> =
                    world.decided(CONSUME, vec![cost]).notices.iter().map(|notice| notice.kind).collect();
                assert_eq!(kinds, expected, "{hours} hours, {every}, {} ms, {cost}", now - opens);
                world.crash(0);
            }
        }
    }
}

/// The window that was open goes on: its tokens are not given twice.
#[test]
fn a_clock_that_steps_back_over_an_opening_by_a_day_or_less_waits_until_it_is_back() {
    for (opens, hours) in DAYS {
        let next = opens + DAY_MS;
        for back_ms in [1, 60_000, 60_001, HOUR_MS, 2 * HOUR_MS, 12 * HOUR_MS, hours.min(24) * HOUR_MS] {
            for crashes in [false, true] {
                let mut world = at(&daily(""), opens);
                assert_eq!(take(&mut world, 10), allowed(10, opens));
                for now in [opens - back_ms, opens - 1, opens, next - 1] {
                    world.now = now;
                    if crashes {
                        world.crash(0);
                    }
                    let case = format!("{hours} hours, back by {back_ms} ms, {} ms", now - opens);
                    assert_eq!(world.levels(), [0], "{case}");
                    assert_eq!(take(&mut world, 1), Decision::Wait { retry_at: next }, "{case}");
                }
                world.now = next;
                assert_eq!(take(&mut world, 10), allowed(10, next));
            }
        }
    }
}

#[test]
fn a_clock_that_steps_back_by_more_than_a_day_goes_on_in_that_window_with_the_tokens_left() {
    for (opens, hours) in DAYS {
        for back_ms in [26 * HOUR_MS, 50 * HOUR_MS, 400 * DAY_MS] {
            for crashes in [false, true] {
                let mut world = at(&daily(""), opens);
                assert_eq!(take(&mut world, 7), allowed(7, opens));
                world.now = opens - back_ms;
                if crashes {
                    world.crash(0);
                }
                assert_eq!(world.levels(), [3], "{hours} hours, back by {back_ms} ms");
                let (_, retry_at) = Calendar::day(Zone::named("Europe/Berlin").unwrap()).window(world.now);
                assert_eq!(take(&mut world, 4), Decision::Wait { retry_at });
                world.now = retry_at - 1;
                assert_eq!(world.levels(), [3]);
                world.now = retry_at;
                assert_eq!(world.levels(), [10]);
            }
        }
    }
}

/// As where a server follows the clocks of a town: hours that come twice are in one window.
#[test]
fn steps_within_a_window_change_nothing() {
    for (ends, hours) in DAYS {
        let mut world = at(&daily(""), ends - 3 * HOUR_MS);
        assert_eq!(take(&mut world, 4), allowed(4, world.now));
        for step_ms in [-HOUR_MS, HOUR_MS, -60_001, 3 * HOUR_MS - 1, -(hours * HOUR_MS - HOUR_MS), 2 * HOUR_MS] {
            world.now = (world.now + step_ms).min(ends - 1);
            assert_eq!(world.levels(), [6], "{hours} hours, {step_ms} ms");
            assert_eq!(take(&mut world, 7), Decision::Wait { retry_at: ends });
        }
    }
}

#[test]
fn a_clock_that_steps_forward_opens_the_window_there_and_back_again_none() {
    for (opens, hours) in DAYS {
        for (forward_ms, is_kept) in [(HOUR_MS, true), (DAY_MS - HOUR_MS / 2, true), (5 * DAY_MS, false)] {
            let now = opens - HOUR_MS / 2;
            let mut world = at(&daily(""), now);
            assert_eq!(take(&mut world, 10), allowed(10, now));
            world.now = now + forward_ms;
            assert_eq!(take(&mut world, 10), allowed(10, world.now));
            world.now = now;
            let retry_at = if is_kept { opens + DAY_MS } else { opens };
            assert_eq!(take(&mut world, 1), Decision::Wait { retry_at }, "{hours} hours, {forward_ms} ms");
        }
    }
}

#[test]
fn the_row_of_a_window_is_read_in_it_and_in_later_ones() {
    for (ends, hours) in DAYS {
        for (fields, lefts) in [("", [6, 6, 10, 10]), (r#","capacity":25,"max_debt":5"#, [21, 21, 25, 25])] {
            let policy = daily(fields);
            let mut world = at(&policy, ends - hours * HOUR_MS);
            assert_eq!(take(&mut world, 4), allowed(4, world.now));
            for (now, left) in [world.now, ends - 1, ends, ends + 40 * DAY_MS].into_iter().zip(lefts) {
                let mut other = World { now, ..world.restarted_with(&policy) };
                assert_eq!(other.levels(), [left], "{hours} hours, {} ms after the end", now - ends);
            }
        }
    }
}

/// A deployment with another zone or unit: what was spent stays spent, and from then on the new windows open.
#[test]
fn a_row_is_read_by_a_version_with_another_calendar() {
    let (utc, paulo) = (ORDINARY + HOUR_MS, ORDINARY + 4 * HOUR_MS);
    // 5 November 2026 was a Thursday.
    for (windows, opens) in [
        (r#""calendar":"day""#, utc),
        (r#""calendar":"day","zone":"America/Sao_Paulo""#, paulo),
        (r#""calendar":"week","starts":"friday""#, utc),
        (r#""calendar":"week","zone":"Europe/Berlin""#, ORDINARY + 3 * DAY_MS),
        (r#""calendar":"month","starts":6"#, utc),
        (r#""calendar":"quarter","starts":"02-06","zone":"Europe/Berlin""#, ORDINARY),
        (r#""calendar":"year","starts":"11-07""#, utc + DAY_MS),
        (r#""period":"1day","offset":"0s""#, utc),
    ] {
        for capacity in [10, 16] {
            let fields =
                format!(r#"{{"kind":"fixed_window","rate":10,"capacity":{capacity},"write_ahead":0,{windows}}}"#);
            let mut world = at(&daily(""), ORDINARY - 2 * HOUR_MS);
            assert_eq!(take(&mut world, 4), allowed(4, world.now));
            world.now = ORDINARY - 1;
            let mut other = world.restarted_with(&policy(&fields));
            for (now, left) in [(ORDINARY - 1, capacity - 4), (opens - 1, capacity - 4), (opens, capacity)] {
                other.now = now.max(other.now);
                assert_eq!(other.levels(), [left], "{windows}, {capacity}, {} ms", now - ORDINARY);
                other.crash(usize::MAX);
            }
        }
    }
}

/// A window counted one opening after the other. A clock that steps back by more than a day from its opening lets it go on where the clock
/// is; one that steps back by less changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Naive {
    calendar: Calendar,
    rate: i64,
    capacity: i64,
    max_debt: i64,
    level: i64,
    opened_at: i64,
}

impl Naive {
    /// With all that has come back by then.
    fn refilled(&self, now: i64) -> Self {
        let from = self.calendar.window(now).0;
        let mut naive = *self;
        while naive.opened_at < from {
            naive = naive.next();
        }
        if naive.opened_at - now > DAY_MS { Self { opened_at: from, ..naive } } else { naive }
    }

    fn next(&self) -> Self {
        let level = self.capacity.min(self.level + self.rate);
        Self { level, opened_at: self.calendar.window(self.opened_at).1, ..*self }
    }

    /// What it answers to a request that takes this much, and what it is then.
    fn take(&self, verb: Verb, cost: i64, now: i64) -> (Decision, Self) {
        let current = self.refilled(now);
        // A refusal leaves it as it was, unless it has followed the clock back.
        let as_before = if now < self.opened_at { current } else { *self };
        let level = match verb {
            Verb::Charge => (current.level - cost).max(current.level.min(-self.max_debt)),
            Verb::Refund => self.capacity.min(current.level + cost),
            Verb::Reset => self.capacity,
            _ if cost > self.capacity => return (Decision::Never { max: self.capacity.unsigned_abs() }, as_before),
            _ if current.level < cost => {
                let reaches = |naive: &Self| naive.level >= cost;
                let later = std::iter::successors(Some(current), |naive| Some(naive.next())).find(reaches).unwrap();
                return (Decision::Wait { retry_at: later.opened_at }, as_before);
            }
            _ => current.level - cost,
        };
        let tokens = level.abs_diff(current.level);
        (allowed(tokens, now), if tokens > 0 { Self { level, ..current } } else { as_before })
    }
}

#[derive(Clone, Debug)]
enum Event {
    Take(Verb, i64),
    /// Forward or back.
    Step(i64),
    Crash,
}

fn event() -> impl Strategy<Value = Event> {
    let verb = prop::sample::select(vec![Verb::Consume, Verb::Consume, Verb::Charge, Verb::Refund, Verb::Reset]);
    let step = prop_oneof![
        3 => 0..HOUR_MS,
        2 => -26 * HOUR_MS..26 * HOUR_MS,
        1 => -70_000_i64..70_000,
        1 => -40 * DAY_MS..60 * DAY_MS,
    ];
    prop_oneof![
        6 => (verb, 0..12_i64).prop_map(|(verb, cost)| Event::Take(verb, cost)),
        5 => step.prop_map(Event::Step),
        1 => Just(Event::Crash),
    ]
}

const CALENDARS: [&str; 6] = [
    r#""calendar":"day""#,
    r#""calendar":"day","zone":"America/Sao_Paulo""#,
    r#""calendar":"week","starts":"sunday","zone":"Europe/Berlin""#,
    r#""calendar":"month","starts":28,"zone":"Europe/Berlin""#,
    r#""calendar":"quarter","zone":"America/New_York""#,
    r#""calendar":"year","starts":"03-28","zone":"Europe/Berlin""#,
];

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Each change is written before it is answered.
    #[test]
    fn a_calendar_answers_as_one_counted_window_by_window_whatever_the_clock_does(
        windows in prop::sample::select(&CALENDARS[..]),
        (rate, capacity, max_debt) in (1..10_i64, 1..15_i64, 0..20_i64),
        start in SHORT - 3 * DAY_MS..SHORT + 3 * DAY_MS,
        events in prop::collection::vec(event(), 1..60),
    ) {
        let numbers = format!(r#""rate":{rate},"capacity":{capacity},"max_debt":{max_debt}"#);
        let policy = policy(&format!(r#"{{"kind":"fixed_window","write_ahead":0,{windows},{numbers}}}"#));
        let calendar = policy.limits()[0].limit().config().calendar.unwrap();
        let new = |now| Naive { calendar, rate, capacity, max_debt, level: capacity, opened_at: calendar.window(now).0 };
        let mut world = at(&policy, start);
        let (mut naive, mut written) = (None, None);
        for event in events {
            match event {
                Event::Step(ms) => world.now += ms,
                Event::Crash => {
                    world.crash(0);
                    naive = written;
                }
                Event::Take(verb, cost) => {
                    let before = naive.unwrap_or_else(|| new(world.now));
                    let (expected, after) = before.take(verb, cost, world.now);
                    let decided = world.decided(Action::Take(verb), vec![cost.cast_unsigned()]);
                    prop_assert_eq!(decided.limits[0].decision, expected, "{:?} {} of {:?}", verb, cost, before);
                    let level = after.refilled(world.now).level;
                    prop_assert_eq!(signed(decided.limits[0].remaining, decided.limits[0].owed), level);
                    naive = Some(after);
                    if after != before {
                        written = naive;
                    }
                }
            }
        }
    }
}

/// The day is one of 24 hours, whatever the length of the day in the zone.
#[test]
fn a_clock_that_steps_back_by_at_most_a_day_waits_and_further_back_it_is_followed() {
    for (opens, hours) in [(ORDINARY, 24), (SHORT, 23), (LONG, 25)] {
        // One more millisecond is before the day that ends there; but a day of 25 hours is that long.
        let end_there = if hours == 25 { opens } else { opens - hours * HOUR_MS };
        for (back_ms, retry_at) in [(DAY_MS, opens + DAY_MS), (DAY_MS + 1, end_there)] {
            let mut world = at(&daily(""), opens);
            assert_eq!(take(&mut world, 10), allowed(10, opens));
            world.now = opens - back_ms;
            assert_eq!(take(&mut world, 1), Decision::Wait { retry_at }, "{hours} hours, {back_ms} ms");
        }
    }
}
