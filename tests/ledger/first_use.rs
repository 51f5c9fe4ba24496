//! Windows from first use, of which a crash may lose a block. Without a loss they are exact: see `late.rs`.

use proptest::prelude::*;

use tollgate::limit::{Limit, State, Verb};
use tollgate::protocol::{Action, Decided};

use crate::chance;
use crate::late::world_of;
use crate::world::{World, tokens};

/// The ledger beside a bucket that takes as much and loses nothing.
struct Pair {
    world: World,
    limit: Limit,
    exact: State,
    block: u64,
    crashes: u64,
}

impl Pair {
    fn new(rate: u64, block: u64) -> Self {
        let world = world_of(&format!(
            r#"{{"kind":"fixed_window","offset":"first_use","rate":{rate},"period":"5s","write_ahead":{block}}}"#
        ));
        let limit = *world.policy.limits()[0].limit();
        let exact = limit.new_state(world.now, 0);
        Self { world, limit, exact, block, crashes: 0 }
    }

    fn take(&mut self, verb: Verb, cost: u64) -> u64 {
        let decided = self.world.decided(Action::Take(verb), vec![cost]);
        let taken = if decided.decision().is_allow() { tokens(&decided.limits[0]) } else { 0 };
        assert!(self.limit.try_consume(&mut self.exact, self.world.now, taken), "{taken} more than the bucket has");
        self.compare(&decided);
        taken
    }

    fn look(&mut self) -> u64 {
        let decided = self.world.decided(Action::Look(Verb::Refund), vec![0]);
        self.compare(&decided);
        decided.limits[0].remaining
    }

    /// Never more, now or later, and no less than the crashes have cost.
    fn compare(&self, decided: &Decided) {
        let left = self.limit.restored(&decided.limits[0].snapshot).unwrap();
        for later_ms in (0..12_000).step_by(500) {
            let at = self.world.now + later_ms;
            let [left, exact] = [&left, &self.exact].map(|state| self.limit.remaining(state, at));
            let lost = self.block * self.crashes;
            assert!((exact.saturating_sub(lost)..=exact).contains(&left), "{left} of {exact} in {later_ms} ms");
        }
    }

    fn crash(&mut self, arrived: usize) {
        let before = self.look();
        self.world.crash(arrived);
        self.crashes += 1;
        let lost = before - self.look();
        assert!(lost <= self.block, "a crash lost {lost}");
    }
}

#[test]
fn a_window_is_stored_before_it_is_used_and_forgotten_when_it_is_over() {
    let mut pair = Pair::new(20, 4);
    for _ in 0..3 {
        assert!(!pair.world.has_row());
        assert_eq!(pair.take(Verb::Consume, 1), 1);
        pair.crash(0);
        assert!(pair.take(Verb::ConsumeUpTo, 20) >= 15);
        assert_eq!(pair.take(Verb::Consume, 1), 0);
        pair.world.now += 4_999;
        assert_eq!(pair.take(Verb::Consume, 1), 0);
        pair.world.now += 3_001;
        pair.world.clean();
    }
}

/// Each limit of a policy has windows of its own.
#[test]
fn several_limits_open_each_at_its_own_moment() {
    let limit = |name: &str, rate: u64, period: &str| {
        format!(
            r#"{{"name":"{name}","kind":"fixed_window","offset":"first_use","rate":{rate},"period":"{period}","write_ahead":0}}"#
        )
    };
    let mut world = world_of(&format!(r#"{{"limits":[{},{}]}}"#, limit("a", 2, "1s"), limit("b", 3, "10s")));
    let began_at = world.now;
    for (at, costs, left) in [
        (0, [1, 0], [1, 3]),
        (700, [1, 1], [0, 2]), // opens the window of b
        (1_000, [0, 0], [2, 2]),
        (2_500, [1, 1], [1, 1]),
        (3_500, [2, 1], [0, 0]),
        (10_699, [0, 0], [2, 0]),
        (10_700, [0, 3], [2, 0]), // the next one
        (20_699, [0, 0], [2, 0]),
        (20_700, [0, 0], [2, 3]),
    ] {
        world.now = began_at + at;
        let verb = if costs == [0, 0] { Verb::Refund } else { Verb::Consume };
        let decided = world.decided(Action::Take(verb), costs.to_vec());
        assert!(decided.decision().is_allow(), "{costs:?} at {at}");
        assert_eq!(world.levels(), left, "after {costs:?} at {at}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(Verb, u64),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let verb = prop::sample::select(vec![Verb::Consume, Verb::ConsumeUpTo, Verb::Charge]);
    let wait = prop_oneof![3 => 0..400_i64, 3 => 0..6_000_i64, 1 => prop::sample::select(vec![4_999, 5_000, 5_001])];
    prop_oneof![
        10 => (verb, prop_oneof![3 => 0..4_u64, 1 => 0..25_u64]).prop_map(|(verb, cost)| Step::Take(verb, cost)),
        6 => wait.prop_map(Step::Wait),
        2 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..4_usize).prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// A crash costs no more than a block, and begins no window earlier than it was used.
    #[test]
    fn a_crash_costs_a_window_from_first_use_at_most_a_block(
        (rate, block) in (1..25_u64).prop_flat_map(|rate| (Just(rate), 0..=rate)),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = Pair::new(rate, block);
        for step in steps {
            match step {
                Step::Take(verb, cost) => _ = pair.take(verb, cost),
                Step::Wait(ms) => pair.world.now += ms,
                Step::Arrive(count) => pair.world.arrive(count),
                Step::FlushIdle => pair.world.flush_idle(),
                Step::Clean => pair.world.clean(),
                Step::Crash(arrived) => pair.crash(arrived),
            }
            pair.look();
        }
    }
}
