//! Windows of a calendar. Days and weeks in UTC are also windows of a period, which laws check: here both must answer alike.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::limit::{Carry, Decision, Snapshot, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, ObjectReply};

use crate::chance;
use crate::world::{DAY_MS, START, World};

/// The policy with these fields of each limit, in force since a moment.
fn version(limits: &[String], earlier: Option<(&Policy, Carry)>, since: i64) -> Arc<Policy> {
    let limits: Vec<_> = limits.iter().enumerate().map(|(at, limit)| format!(r#"{{"name":"{at}",{limit}}}"#)).collect();
    let ends = r#""reservation_ttl":"2days","unsettled":"refund""#;
    let json = format!(r#"{{"p":{{"limits":[{}],{ends}}}}}"#, limits.join(","));
    let policies = Policies::parse(&json).unwrap();
    let policy = Policy::clone(policies.get("p").unwrap());
    Arc::new(match earlier {
        Some((earlier, how)) => policy.succeeding(earlier, since, how),
        None => policy.in_force_since(since),
    })
}

/// A limit's numbers: of a calendar, and the same of a period.
#[derive(Clone, Debug)]
struct Numbers {
    is_week: bool,
    rate: u64,
    capacity: u64,
    max_debt: u64,
    block: u64,
}

impl Numbers {
    fn written(&self, windows: &str) -> String {
        let Self { rate, capacity, max_debt, block, .. } = self;
        let numbers = format!(r#""rate":{rate},"capacity":{capacity},"max_debt":{max_debt},"write_ahead":{block}"#);
        format!(r#""kind":"fixed_window",{windows},{numbers}"#)
    }

    fn of_calendar(&self) -> String {
        // 1 January 1970 was a Thursday.
        self.written(if self.is_week { r#""calendar":"week","starts":"thursday""# } else { r#""calendar":"day""# })
    }

    fn of_period(&self) -> String {
        self.written(if self.is_week {
            r#""period":"1week","offset":"0s""#
        } else {
            r#""period":"1day","offset":"0s""#
        })
    }
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let sizes = (1..20_u64, 1..30_u64).prop_flat_map(|(rate, capacity)| (Just(rate), Just(capacity), 0..=capacity));
    (any::<bool>(), sizes, 0..10_u64).prop_map(|(is_week, (rate, capacity, block), max_debt)| Numbers {
        is_week,
        rate,
        capacity,
        max_debt,
        block,
    })
}

#[derive(Clone, Debug)]
enum Step {
    Take(Verb, u64),
    /// And which reservation it is.
    Reserve(u64),
    Settle(usize, u64),
    Cancel(usize),
    Extend(usize, u64),
    Lease(u64),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
    Change(Numbers, Carry),
}

fn step() -> impl Strategy<Value = Step> {
    let verb = vec![Verb::Consume, Verb::Consume, Verb::ConsumeUpTo, Verb::Charge, Verb::Refund, Verb::Reset];
    let cost = || prop_oneof![4 => 0..5_u64, 1 => 0..30_u64];
    let near_a_day = (0..8_i64, -3..3_i64).prop_map(|(days, ms)| days * DAY_MS + ms);
    let wait = prop_oneof![4 => 0..DAY_MS / 2, 2 => near_a_day, 1 => -60_000..0_i64];
    prop_oneof![
        8 => (prop::sample::select(verb), cost()).prop_map(|(verb, cost)| Step::Take(verb, cost)),
        3 => cost().prop_map(Step::Reserve),
        3 => (0..4_usize, cost()).prop_map(|(which, cost)| Step::Settle(which, cost)),
        1 => (0..4_usize).prop_map(Step::Cancel),
        1 => (0..4_usize, cost()).prop_map(|(which, cost)| Step::Extend(which, cost)),
        1 => (1..6_u64).prop_map(Step::Lease),
        7 => wait.prop_map(Step::Wait),
        2 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..4_usize).prop_map(Step::Crash),
        1 => (numbers(), prop::sample::select(Carry::ALL.to_vec())).prop_map(|(numbers, how)| Step::Change(numbers, how)),
    ]
}

/// One world with the calendar's windows, and one with those of a period.
struct Both {
    worlds: [World; 2],
    reservations: Vec<u64>,
}

impl Both {
    fn new(numbers: &Numbers) -> Self {
        let world = |limit: String| World {
            as_of: Some(START - DAY_MS),
            ..World::empty(&version(&[limit], None, START - DAY_MS))
        };
        Self { worlds: [world(numbers.of_calendar()), world(numbers.of_period())], reservations: Vec::new() }
    }

    fn each(&mut self, act: impl Fn(&mut World)) {
        self.worlds.iter_mut().for_each(act);
    }

    fn ask(&mut self, act: impl Fn(&mut World) -> ObjectReply) -> Result<(), TestCaseError> {
        let [mut one, mut other] = self.worlds.each_mut().map(act);
        for reply in [&mut one, &mut other] {
            if let ObjectReply::Decided(decided) = reply {
                // That of a calendar is of this moment.
                decided.limits.iter_mut().for_each(|limit| limit.snapshot = Snapshot { tokens: 0, drops: 0, at: 0 });
            }
        }
        if let ObjectReply::Decided(decided) = &one
            && let Some(reservation) = &decided.reservation
        {
            self.reservations.push(reservation.id);
        }
        prop_assert_eq!(one, other);
        Ok(())
    }

    fn reservation(&self, which: usize) -> u64 {
        self.reservations.iter().rev().nth(which).copied().unwrap_or(7)
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let settled = |action, cost| move |world: &mut World| world.ask(action, Some(vec![cost]), None);
        match step {
            Step::Take(verb, cost) => self.ask(settled(Action::Take(verb), cost))?,
            Step::Reserve(cost) => self.ask(settled(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), cost))?,
            Step::Settle(which, cost) => self.ask(settled(Action::Settle(self.reservation(which)), cost))?,
            Step::Cancel(which) => {
                let id = self.reservation(which);
                self.ask(|world| world.ask(Action::Cancel(id), None, None))?;
            }
            Step::Extend(which, cost) => {
                let id = self.reservation(which);
                self.ask(settled(Action::Extend(id), cost))?;
            }
            Step::Lease(wanted) => self.ask(|world| world.lease(vec![wanted], Vec::new()))?,
            Step::Wait(ms) => self.each(|world| world.now += ms),
            Step::Arrive(count) => self.each(|world| world.arrive(count)),
            Step::FlushIdle => self.each(World::flush_idle),
            Step::Clean => self.each(World::clean),
            Step::Crash(arrived) => self.each(|world| world.crash(arrived)),
            Step::Change(numbers, how) => {
                let limits = [numbers.of_calendar(), numbers.of_period()];
                for (world, limit) in self.worlds.iter_mut().zip(limits) {
                    let since = world.now.max(world.policy.timeline().since() + 1);
                    world.policy = version(&[limit], Some((&*world.policy, how)), since);
                    world.as_of = Some(since);
                    world.now = since;
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(chance::config(4_000))]

    #[test]
    fn days_and_weeks_in_utc_are_as_windows_of_a_period(
        first in numbers(),
        steps in prop::collection::vec(step(), 1..50),
    ) {
        let mut both = Both::new(&first);
        for step in steps {
            both.step(step)?;
            both.ask(|world| world.ask(Action::Look(Verb::Consume), Some(vec![1]), None))?;
        }
    }
}

/// Midnight of a day in `America/Sao_Paulo`, which is three hours behind UTC.
const fn paulo(unix_day: i64) -> i64 {
    unix_day * DAY_MS + 3 * 3_600_000
}

/// 1 November 2026 and 1 December 2026.
const NOVEMBER: i64 = 20_758;
const DECEMBER: i64 = NOVEMBER + 30;

#[test]
fn a_month_is_as_long_as_in_its_time_zone() {
    let monthly = r#""kind":"fixed_window","rate":10,"calendar":"month","zone":"America/Sao_Paulo","write_ahead":4"#;
    for crashes in [false, true] {
        let mut world = World::empty(&version(&[monthly.to_owned()], None, 0));
        for (at, cost, left) in [
            (paulo(NOVEMBER) - 1, 3, 7),
            (paulo(NOVEMBER), 1, 9),
            (paulo(NOVEMBER + 14), 4, 5),
            (paulo(DECEMBER) - 1, 5, 0),
        ] {
            world.now = at;
            assert!(world.decided(Action::Take(Verb::Consume), vec![cost]).decision().is_allow());
            if crashes {
                world.flush_idle();
                world.crash(usize::MAX);
            }
            assert_eq!(world.levels(), [left], "at {at}");
        }
        let refused = world.decided(Action::Take(Verb::Consume), vec![1]);
        assert_eq!(refused.decision(), Decision::Wait { retry_at: paulo(DECEMBER) });
        world.now = paulo(DECEMBER);
        assert_eq!(world.levels(), [10]);
        world.clean();
        assert!(world.storage.is_empty(), "a full bucket needs no row");
    }
}

/// With another anchor, as when a customer's billing day changes: what is spent stays spent, and the new windows open on their own days.
#[test]
fn a_changed_billing_day_gives_no_tokens_at_once() {
    let monthly =
        |starts: u8| format!(r#""kind":"fixed_window","rate":10,"calendar":"month","starts":{starts},"write_ahead":0"#);
    let first = version(&[monthly(1)], None, 0);
    let mut world = World { as_of: Some(0), ..World::empty(&first) };
    world.now = (NOVEMBER + 9) * DAY_MS;
    world.decided(Action::Take(Verb::Consume), vec![10]);
    let second = version(&[monthly(15)], Some((&*first, Carry::default())), world.now + 1);
    (world.policy, world.as_of) = (second, Some(world.now + 1));
    world.now += 5;
    assert_eq!(world.levels(), [0]);
    let refused = world.decided(Action::Take(Verb::Consume), vec![1]);
    assert_eq!(refused.decision(), Decision::Wait { retry_at: (NOVEMBER + 14) * DAY_MS });
}

/// A month in which clocks are set back is longer than 31 days: its last moment was not an hour ago.
#[test]
fn numbers_that_come_with_requests_grant_no_more_at_the_end_of_a_long_month() {
    let limit = |fields: &str| {
        let json = format!(r#"{{"plan":{{"kind":"fixed_window",{fields},"capacity":5000,"write_ahead":0}}}}"#);
        let definition = Policies::parse(&json).unwrap().get("plan").unwrap().definition();
        Arc::new(Policy::from_definition(&definition.replacen('{', r#"{"inline":true,"#, 1)).unwrap())
    };
    let month = limit(r#""calendar":"month","zone":"Europe/Berlin","rate":100"#);
    for other in [limit(r#""period":"1h","rate":1000000"#), limit(r#""period":"1h","rate":1000"#)] {
        let mut world = World::empty(&month);
        world.now = 1_793_487_599_999; // 2026-10-31 23:59:59.999 in Berlin
        assert!(world.decided(Action::Take(Verb::Consume), vec![5_000]).decision().is_allow());
        world.policy = other;
        world.now += 1;
        assert!(world.levels()[0] <= 0, "{:?}", world.levels());
    }
}
