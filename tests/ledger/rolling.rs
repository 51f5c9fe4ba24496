//! Rolling windows: never more than `rate` tokens in any interval of a period, whatever is settled, lost or deployed.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Decision, Verb};
use tollgate::policy::Policy;
use tollgate::protocol::{Action, Decided, ObjectReply};

use crate::chance;
use crate::late::{settled, taken, world_of};
use crate::rolling_oracle::{NUMBERS, Numbers, Oracle};
use crate::world::{DAY_MS, START, World, decided, signed, tokens};

const CONSUME: Action = Action::Take(Verb::Consume);
const LOOK: Action = Action::Look(Verb::Consume);
const RESERVE: Action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });

/// The window's numbers in a policy.
fn fields(Numbers { rate, period_ms, grains }: Numbers, write_ahead: u64) -> String {
    let numbers = format!(r#""rate":{rate},"period":"{period_ms}ms","grains":{grains}"#);
    format!(r#""kind":"rolling_window",{numbers},"write_ahead":{}"#, write_ahead.min(rate))
}

#[derive(Clone, Copy, Debug)]
struct Open {
    id: u64,
    ends_at: i64,
    reserved: u64,
    is_returned: bool,
}

/// The ledger beside the oracle. Beside the window there may be a limit that never refuses, so that a reservation may take nothing of the window.
struct Pair {
    world: World,
    oracle: Oracle,
    has_other: bool,
    is_refunded: bool,
    ttl_ms: i64,
    open: Vec<Open>,
    /// When something may have been lost.
    crashed_at: Vec<i64>,
    write_ahead: u64,
    /// More doubts at once than can be resolved.
    is_over: bool,
}

/// The policies that the laws take.
#[derive(Clone, Copy, Debug)]
struct Terms {
    numbers: Numbers,
    has_other: bool,
    is_refunded: bool,
    write_ahead: u64,
}

impl Pair {
    fn new(Terms { numbers, has_other, is_refunded, write_ahead }: Terms) -> Self {
        let window = fields(numbers, write_ahead);
        let plenty = r#"{"name":"plenty","rate":1000000,"period":"1s","write_ahead":0}"#;
        let limits = if has_other { format!(r#""limits":[{{"name":"w",{window}}},{plenty}]"#) } else { window };
        let (unsettled, ttl_ms) = (if is_refunded { "refund" } else { "keep" }, (numbers.period_ms * 3 / 5).max(1_000));
        let world = world_of(&format!(r#"{{{limits},"unsettled":"{unsettled}","reservation_ttl":"{ttl_ms}ms"}}"#));
        let (open, crashed_at, oracle) = (Vec::new(), Vec::new(), Oracle::new(numbers));
        Self { world, oracle, has_other, is_refunded, ttl_ms, open, crashed_at, write_ahead, is_over: false }
    }

    fn costs(&self, cost: u64) -> Vec<u64> {
        if self.has_other { vec![cost, cost.max(1)] } else { vec![cost] }
    }

    fn ask(&mut self, action: Action, cost: u64) -> Decided {
        let costs = self.costs(cost);
        self.world.decided(action, costs)
    }

    /// The most that crashes may still cost.
    fn most_lost(&self) -> u64 {
        let Numbers { period_ms, rate, .. } = self.oracle.numbers;
        let lasts_ms = period_ms + self.oracle.numbers.grain_ms();
        let lately = self.crashed_at.iter().filter(|&&at| self.world.now < at + lasts_ms).count() as u64;
        lately * self.write_ahead.min(rate)
    }

    fn end_expired(&mut self) {
        let now = self.world.now;
        for open in self.open.iter_mut().filter(|open| self.is_refunded && open.ends_at <= now && !open.is_returned) {
            open.is_returned = true;
            self.oracle.settle(open.id, 0, false, now);
        }
    }

    /// Compares what is left, and when the last is back.
    fn look(&mut self, step: &str) {
        self.end_expired();
        let (costs, now) = (vec![0; self.costs(0).len()], self.world.now);
        let window = self.world.decided(Action::Look(Verb::Refund), costs).limits[0];
        let level = signed(window.remaining, window.owed);
        assert!(window.owed == 0 || self.most_lost() > 0, "{step}: {window:?}");
        match self.oracle.doubts[..] {
            [] => {}
            [doubt] if self.most_lost() == 0 => self.oracle.adopt(doubt, window.remaining, now),
            _ => self.is_over = true,
        }
        self.oracle.doubts.clear();
        if self.is_over {
            return;
        }
        let (left, lost) = (self.oracle.left(now).cast_signed(), self.most_lost().cast_signed());
        let shown = format!("{step} {} ms after the start: {:?}", now - START, self.oracle);
        assert!((left - lost..=left).contains(&level), "{level} left: {shown}");
        if lost == 0 {
            assert_eq!(window.reset_at, Some(self.oracle.reset_at(now)), "{shown}");
        }
    }

    /// Asks for tokens, and checks the decision. Returns the answer if they were granted.
    fn take(&mut self, action: Action, cost: u64, id: Option<u64>) -> Option<Decided> {
        let (now, rate) = (self.world.now, self.oracle.numbers.rate);
        let expiries: Vec<_> = self.open.iter().map(|open| (open.id, open.ends_at.max(now + 1))).collect();
        let expiries = if self.is_refunded { expiries } else { Vec::new() };
        let (left, lost) = (self.oracle.left(now), self.most_lost());
        let answer = self.ask(action, cost);
        let decision = answer.limits[0].decision;
        let (needed, most) = match action {
            Action::Take(Verb::ConsumeUpTo) => (cost.min(1), cost.min(left)),
            Action::Take(Verb::Charge) => (0, cost.min(left)),
            _ => (cost, cost),
        };
        let shown = || format!("{action:?} of {cost} {} ms after the start: {:?}", now - START, self.oracle);
        match decision {
            Decision::Allow { tokens, ready_at } => {
                assert!(needed <= left && ready_at == now, "{decision:?} to {}", shown());
                assert!((most.saturating_sub(lost)..=most).contains(&tokens), "{decision:?} to {}", shown());
                assert!(answer.decision().is_allow());
                // Only an extension that takes something is a raise.
                let is_taken = !matches!(action, Action::Look(_)) && (id.is_none() || self.costs(cost) != [0]);
                if is_taken {
                    let id = id.or_else(|| answer.reservation.map(|reserved| reserved.id));
                    self.oracle.take(tokens, id, now);
                }
                return Some(answer);
            }
            Decision::Never { max } => assert!(needed > rate && max == rate, "{decision:?} to {}", shown()),
            Decision::Wait { retry_at } => {
                assert!(left < needed + lost && needed <= rate, "{decision:?} to {}", shown());
                if lost > 0 {
                    return None;
                }
                let later = self.oracle.retry_at(needed, now, &[]);
                let is_clear = self.oracle.log.iter().all(|taken| !taken.is_refunded && !taken.is_reset);
                let sooner = self.oracle.retry_at(needed, now, &expiries);
                let sooner = if is_clear || expiries.is_empty() { sooner } else { now + 1 };
                assert!((sooner..=later).contains(&retry_at), "{retry_at} not in {sooner}..={later}: {}", shown());
                // Another object tries it then: a row for each take.
                let tries = [(retry_at - 1, false), (retry_at, true)];
                for (at, is_granted) in tries.into_iter().skip(usize::from(sooner < later)) {
                    if self.write_ahead == 0 {
                        let mut other = World { ids: 1 << 40, ..self.world.restarted_with(&self.world.policy) };
                        other.now = at;
                        let again = other.decided(LOOK, self.costs(needed)).decision();
                        assert_eq!(again.is_allow(), is_granted, "{again:?} at {at} to {}", shown());
                    }
                }
            }
        }
        None
    }

    /// Closes an open reservation, or one that has expired.
    fn close(&mut self, which: usize, cost: Option<u64>, is_cancelled: bool) {
        let Some(index) = which.checked_rem(self.open.len()) else { return };
        let (open, now, is_exact) = (self.open.remove(index), self.world.now, self.most_lost() == 0);
        let action = if is_cancelled { Action::Cancel(open.id) } else { Action::Settle(open.id) };
        let costs = cost.filter(|_| !is_cancelled).map(|cost| self.costs(cost));
        let cost = if is_cancelled { 0 } else { cost.unwrap_or(open.reserved) };
        let closed = decided(self.world.ask(action, costs, None));
        assert_eq!(closed.is_late, open.ends_at <= now);
        let (least, most) = self.oracle.settle(open.id, cost, open.is_returned, now);
        self.oracle.forget(open.id);
        if !is_cancelled && is_exact {
            let booked = tokens(&closed.limits[0]);
            assert!((least..=most).contains(&booked), "{booked} not in {least}..={most}, {open:?}: {:?}", self.oracle);
        }
    }

    fn step(&mut self, step: Step) {
        let now = self.world.now;
        match step {
            Step::Take(Verb::Refund, cost) => {
                let expected = cost.min(self.oracle.out(now));
                assert_eq!(tokens(&self.ask(Action::Take(Verb::Refund), cost).limits[0]), expected);
                self.oracle.refund(cost, now);
            }
            Step::Take(Verb::Reset, _) => {
                let expected = self.oracle.out(now);
                assert_eq!(tokens(&self.ask(Action::Take(Verb::Reset), 0).limits[0]), expected);
                self.oracle.reset();
            }
            Step::Take(verb, cost) => _ = self.take(Action::Take(verb), cost, None),
            Step::Look(cost) => _ = self.take(LOOK, cost, None),
            Step::Reserve(cost, max_wait_ms) => {
                let answer = self.take(Action::Reserve(Verb::Reserve { max_wait_ms }), cost, None);
                if let Some(reserved) = answer.and_then(|answer| answer.reservation) {
                    assert_eq!(reserved.expires_at, now + self.ttl_ms);
                    let (id, ends_at) = (reserved.id, reserved.expires_at);
                    self.open.push(Open { id, ends_at, reserved: cost, is_returned: false });
                }
            }
            Step::Extend(which, cost) => {
                let Some(Open { id, ends_at, .. }) = which.checked_rem(self.open.len()).map(|index| self.open[index])
                else {
                    return;
                };
                let index = which % self.open.len();
                if ends_at <= now {
                    let reply = self.world.ask(Action::Extend(id), Some(self.costs(cost)), None);
                    assert_eq!(reply, ObjectReply::NoReservation);
                } else if let Some(extended) = self.take(Action::Extend(id), cost, Some(id)) {
                    self.open[index].reserved += cost;
                    self.open[index].ends_at = extended.reservation.unwrap().expires_at;
                }
            }
            Step::Close(which, cost, is_cancelled) => self.close(which, cost, is_cancelled),
            Step::Wait(wait) => self.wait(wait),
            Step::Arrive(count) => self.world.arrive(count),
            Step::FlushIdle => self.world.flush_idle(),
            Step::Clean => self.world.clean(),
            Step::Crash(arrived) => {
                self.world.crash(arrived);
                self.crashed_at.extend((self.write_ahead > 0).then_some(now));
            }
        }
    }

    fn wait(&mut self, wait: Wait) {
        let now = self.world.now;
        let Numbers { period_ms, .. } = self.oracle.numbers;
        let back = || self.oracle.log.iter().map(|taken| taken.back_at);
        let at = match wait {
            Wait::Part(part) => now + period_ms * part / 1_000,
            Wait::UntilGrain(ms) => self.oracle.numbers.back_at(now) - period_ms + ms,
            Wait::UntilFirst(ms) => back().filter(|at| now <= *at).min().map_or(now, |at| at + ms),
            Wait::UntilLast(ms) => back().max().map_or(now, |at| at + ms),
            Wait::UntilExpired(which, ms) => {
                which.checked_rem(self.open.len()).map_or(now, |index| self.open[index].ends_at + ms)
            }
        };
        self.world.now = at.max(now);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(Verb, u64),
    Look(u64),
    Reserve(u64, Option<u64>),
    Extend(usize, u64),
    /// At this cost, or at the reserved one; or it is cancelled.
    Close(usize, Option<u64>, bool),
    Wait(Wait),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

/// How time passes: by thousandths of a period, or to a moment and around it.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Part(i64),
    UntilGrain(i64),
    UntilFirst(i64),
    UntilLast(i64),
    UntilExpired(usize, i64),
}

fn wait() -> impl Strategy<Value = Wait> {
    let around = || -1..=1_i64;
    prop_oneof![
        3 => (0..150_i64).prop_map(Wait::Part),
        3 => (0..2_001_i64).prop_map(Wait::Part),
        3 => around().prop_map(Wait::UntilGrain),
        4 => around().prop_map(Wait::UntilFirst),
        2 => around().prop_map(Wait::UntilLast),
        3 => (any::<usize>(), around()).prop_map(|(which, ms)| Wait::UntilExpired(which, ms)),
    ]
}

/// Relative to the largest rate: `at_most` makes costs of them.
fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..4_u64, 3 => 0..25_u64, 1 => 0..400_u64]
}

/// Steps after which an exact ledger says what the oracle says.
fn step() -> impl Strategy<Value = Step> {
    let max_wait = prop_oneof![Just(Some(0)), (0..5_000_u64).prop_map(Some), Just(None)];
    let more = prop_oneof![
        2 => cost().prop_map(|cost| Step::Take(Verb::Charge, cost)),
        2 => cost().prop_map(|cost| Step::Take(Verb::Refund, cost)),
        1 => Just(Step::Take(Verb::Reset, 0)),
        6 => (any::<usize>(), prop::option::of(cost()), any::<bool>()).prop_map(|(which, cost, is_cancelled)| Step::Close(which, cost, is_cancelled)),
        2 => (cost(), max_wait).prop_map(|(cost, max_wait_ms)| Step::Reserve(cost, max_wait_ms)),
        1 => cost().prop_map(|cost| Step::Take(Verb::Borrow { max_wait_ms: None }, cost)),
    ];
    prop_oneof![5 => granting(), 3 => more]
}

/// Steps that never give back more than they took, whatever was lost.
fn granting() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => cost().prop_map(|cost| Step::Take(Verb::Consume, cost)),
        2 => (1..30_u64).prop_map(|cost| Step::Take(Verb::ConsumeUpTo, cost)),
        1 => cost().prop_map(Step::Look),
        5 => cost().prop_map(|cost| Step::Reserve(cost, Some(0))),
        2 => (any::<usize>(), prop_oneof![Just(0), cost()]).prop_map(|(which, cost)| Step::Extend(which, cost)),
        2 => any::<usize>().prop_map(|which| Step::Close(which, None, true)),
        10 => wait().prop_map(Step::Wait),
        1 => (0..4_usize).prop_map(Step::Arrive),
        3 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
    ]
}

fn terms(write_ahead: impl Strategy<Value = u64>) -> impl Strategy<Value = Terms> {
    let numbers = prop::sample::select(&NUMBERS[..]);
    (numbers, any::<bool>(), any::<bool>(), write_ahead).prop_map(|(numbers, has_other, is_refunded, write_ahead)| {
        Terms { numbers, has_other, is_refunded, write_ahead }
    })
}

fn follow(terms: Terms, steps: &[Step]) {
    let mut pair = Pair::new(terms);
    for &step in steps {
        pair.step(step);
        pair.look(&format!("{step:?}"));
        if pair.is_over {
            return;
        }
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// Also after crashes, if each take is written before its answer.
    #[test]
    fn a_rolling_window_has_what_a_log_of_all_takes_leaves(
        terms in terms(Just(0)),
        steps in prop::collection::vec(prop_oneof![12 => step(), 1 => (0..4_usize).prop_map(Step::Crash)], 1..60),
    ) {
        follow(terms, &steps);
    }

    /// While nothing crashes, what storage has makes no difference.
    #[test]
    fn a_rolling_window_ahead_of_its_storage_has_that_too(
        terms in terms(1..1_000_u64),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        follow(terms, &steps);
    }

    #[test]
    fn a_crash_of_a_rolling_window_costs_at_most_a_block_for_at_most_a_period_and_gives_nothing(
        terms in terms(prop_oneof![Just(0), Just(1), 2..10_u64, Just(1_000)]),
        steps in prop::collection::vec(prop_oneof![12 => granting(), 2 => (0..2_usize).prop_map(Step::Crash)], 1..60),
    ) {
        follow(terms, &steps);
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Consume(u64),
    Reserve(u64),
    /// At no more than was reserved.
    Settle(usize, u64),
    Wait(i64),
    /// Another version of the policy.
    Version(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => cost().prop_map(Event::Consume),
        3 => cost().prop_map(Event::Reserve),
        3 => (any::<usize>(), cost()).prop_map(|(which, cost)| Event::Settle(which, cost)),
        8 => prop_oneof![0..150_i64, 0..1_100_i64].prop_map(Event::Wait),
        2 => (0..3_usize).prop_map(Event::Version),
        3 => Just(Event::FlushIdle),
        1 => Just(Event::Clean),
        2 => (0..4_usize).prop_map(Event::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// The bound by brute force, of versions that alternate: the largest rate in any interval of the shortest period.
    #[test]
    fn no_interval_of_a_period_has_more_than_the_rate(
        numbers in prop::sample::select(&NUMBERS[..]),
        others in prop::collection::vec((1..90_u64, 500..4_000_i64, 1..80_u64), 2),
        is_same in any::<bool>(),
        write_aheads in [0..3_u64, 0..100_u64, 0..400_u64],
        events in prop::collection::vec(event(), 1..80),
    ) {
        let others = others.into_iter().map(|(rate, period_ms, grains)| Numbers { rate, period_ms, grains });
        let all: Vec<_> = [numbers].into_iter().chain(others.map(|other| if is_same { numbers } else { other })).collect();
        let versions: Vec<_> = all.iter().zip(write_aheads).map(|(numbers, write_ahead)| {
            world_of(&format!(r#"{{{},"reservation_ttl":"10m"}}"#, fields(*numbers, write_ahead))).policy
        }).collect();
        let (rate, period_ms) = all.iter().fold((0, i64::MAX), |(rate, ms), one| (rate.max(one.rate), ms.min(one.period_ms)));
        let mut world = World::empty(&versions[0]);
        let (mut grants, mut open) = (Vec::<(i64, u64)>::new(), Vec::<(u64, usize)>::new());
        for event in events {
            match event {
                Event::Consume(cost) => grants.push((world.now, taken(&mut world, Verb::Consume, cost))),
                Event::Reserve(cost) => {
                    if let Some(reserved) = world.decided(RESERVE, vec![cost]).reservation {
                        open.push((reserved.id, grants.len()));
                        grants.push((world.now, cost));
                    }
                }
                Event::Settle(which, cost) => {
                    if let Some(index) = which.checked_rem(open.len()) {
                        let (id, grant) = open.remove(index);
                        let cost = cost.min(grants[grant].1);
                        prop_assert_eq!(settled(&mut world, id, cost), cost);
                        grants[grant].1 = cost;
                    }
                }
                Event::Wait(part) => world.now += numbers.period_ms * part / 1_000,
                Event::Version(which) => world.policy = Arc::clone(&versions[which]),
                Event::FlushIdle => world.flush_idle(),
                Event::Clean => world.clean(),
                Event::Crash(arrived) => world.crash(arrived),
            }
            let latest = grants.last().map_or(0, |(at, _)| *at);
            let in_period: u64 = grants.iter().filter(|(at, _)| latest - at < period_ms).map(|(_, tokens)| tokens).sum();
            prop_assert!(in_period <= rate, "{} of {} in {} ms: {:?}", in_period, rate, period_ms, grants);
        }
    }

    /// Whatever the clock does, nothing is locked out for longer than a period, a grain, and the minute for which it waits for the old clock.
    #[test]
    fn a_clock_that_jumps_locks_no_key_out(
        numbers in prop::sample::select(&NUMBERS[..]),
        write_ahead in 0..20_u64,
        jumps in prop::collection::vec((cost(), prop_oneof![0..1_000_i64, -200_000..100_000_i64, Just(-60_000)], any::<bool>()), 1..60),
    ) {
        let mut world = world_of(&format!("{{{}}}", fields(numbers, write_ahead)));
        for (cost, ms, crashes) in jumps {
            let refused = world.decided(CONSUME, vec![cost]);
            let most = world.now + numbers.period_ms + 60_000 + 2 * numbers.grain_ms();
            if let Decision::Wait { retry_at } = refused.decision() {
                prop_assert!((world.now + 1..=most).contains(&retry_at), "{} ms", retry_at - world.now);
            }
            prop_assert!(refused.limits[0].reset_at.is_some_and(|at| at <= most));
            if crashes {
                world.crash(0);
            }
            world.now += ms;
        }
    }

    /// Versions of an operator's policy, of all kinds. An additive change gives nothing, nor does `as_is` the first time, except where another
    /// kind starts with a new bucket. Numbers that were in force before may have an account of their own.
    #[test]
    fn what_is_spent_stays_spent_in_a_rolling_window_that_was_another_limit_or_becomes_one(
        changes in prop::collection::vec((0..FIELDS.len(), prop::bool::weighted(0.1), cost(), 0..1_500_i64, 0..3_u8), 1..20),
    ) {
        let mut base = Arc::new(version(0).in_force_since(START - 5));
        let mut world = World { as_of: Some(START - 5), ..World::empty(&base) };
        let config = |policy: &Policy| *policy.limits()[0].limit().config();
        let (mut seen, mut has_mixed) = (vec![config(&base)], false);
        for (which, is_as_is, cost, ms, crashes) in changes {
            taken(&mut world, Verb::Consume, cost % 25);
            world.now += ms + 1;
            let (before, old) = (world.levels()[0], config(&base));
            let carry = if is_as_is { Carry::AsIs } else { Carry::Additive };
            base = Arc::new(version(which).succeeding(&base, world.now, carry));
            (world.policy, world.as_of) = (Arc::clone(&base), Some(world.now));
            if crashes == 1 {
                world.crash(usize::MAX);
            }
            let (after, new) = (world.levels()[0], config(&base));
            let is_judged = if new.kind == old.kind {
                new == old || new.period_ms >= old.period_ms && !seen.contains(&new)
            } else {
                !is_as_is && seen.iter().all(|seen| seen.kind != new.kind)
            };
            let more = new.capacity.saturating_sub(old.capacity).cast_signed();
            prop_assert!(
                has_mixed || !is_judged || after <= before.max(0) + more,
                "{} after {}, {:?}: {}", after, before, carry, base.definition()
            );
            has_mixed |= is_as_is;
            seen.push(new);
            if crashes == 2 {
                world.crash(usize::MAX);
                prop_assert_eq!(world.levels()[0], after, "each change is written");
            }
        }
        // Nor is a key locked out.
        world.now += DAY_MS;
        prop_assert_eq!(world.levels()[0], config(&base).capacity.cast_signed());
    }
}

const FIELDS: [&str; 8] = [
    r#""kind":"rolling_window","rate":20,"period":"10s","write_ahead":0"#,
    r#""kind":"rolling_window","rate":20,"period":"10s","grains":7,"write_ahead":0"#,
    r#""kind":"rolling_window","rate":20,"period":"4s","grains":3,"write_ahead":0"#,
    r#""kind":"rolling_window","rate":35,"period":"10s","write_ahead":0"#,
    r#""kind":"rolling_window","rate":8,"period":"1m","grains":5,"write_ahead":0"#,
    r#""rate":20,"period":"10s","write_ahead":0"#,
    r#""kind":"fixed_window","rate":20,"period":"10s","write_ahead":0"#,
    r#""kind":"fixed_window","rate":20,"period":"10s","offset":"first_use","write_ahead":0"#,
];

fn version(which: usize) -> Policy {
    Policy::clone(&world_of(&format!("{{{}}}", FIELDS[which])).policy)
}
