//! Windows from first use: after a crash the bucket is exactly as if what was lost, at most a block, had been taken. With reservations and
//! their settlements, see `late.rs`.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Decision, Limit, State, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided};

use crate::chance;
use crate::late::world_of;
use crate::world::{START, World, tokens};

/// The ledger beside a bucket that takes as much, and is never forgotten.
struct Pair {
    world: World,
    limit: Limit,
    exact: State,
    block: u64,
}

impl Pair {
    fn new(rate: u64, block: u64) -> Self {
        Self::with(rate, rate, 0, block)
    }

    fn with(rate: u64, capacity: u64, max_debt: u64, block: u64) -> Self {
        let kind = r#""kind":"fixed_window","offset":"first_use","period":"5s""#;
        let world = world_of(&format!(
            r#"{{{kind},"rate":{rate},"capacity":{capacity},"max_debt":{max_debt},"write_ahead":{block}}}"#
        ));
        let limit = *world.policy.limits()[0].limit();
        let exact = limit.new_state(world.now, 0);
        Self { world, limit, exact, block }
    }

    fn take(&mut self, verb: Verb, cost: u64) -> u64 {
        let decided = self.world.decided(Action::Take(verb), vec![cost]);
        let taken = if decided.decision().is_allow() { tokens(&decided.limits[0]) } else { 0 };
        let now = self.world.now;
        match verb {
            Verb::Refund => _ = self.limit.refund(&mut self.exact, now, cost),
            Verb::Reset => _ = self.limit.reset(&mut self.exact, now),
            Verb::Charge => _ = self.limit.charge(&mut self.exact, now, taken),
            _ if taken == 0 => {}
            _ => assert!(self.limit.try_consume(&mut self.exact, now, taken), "{taken} more than the bucket has"),
        }
        self.compare(&decided);
        taken
    }

    fn look(&mut self) -> u64 {
        let decided = self.world.decided(Action::Look(Verb::Refund), vec![0]);
        self.compare(&decided);
        decided.limits[0].remaining
    }

    /// The same, now and later.
    fn compare(&self, decided: &Decided) {
        let left = self.limit.restored(&decided.limits[0].snapshot).unwrap();
        for later_ms in (0..12_000).step_by(500) {
            let at = self.world.now + later_ms;
            let of =
                |state| (self.limit.remaining(state, at), self.limit.owed(state, at), self.limit.full_at(state, at));
            assert_eq!(of(&left), of(&self.exact), "in {later_ms} ms");
        }
    }

    fn crash(&mut self, arrived: usize) {
        self.look();
        let level = |pair: &mut Self| pair.world.levels()[0];
        let before = level(self);
        self.world.crash(arrived);
        let lost = u64::try_from(before - level(self)).expect("a crash gives nothing");
        assert!(lost <= self.block, "a crash lost {lost}");
        self.exact = self.limit.lowered(&self.limit.refilled(&self.exact, self.world.now), lost);
        self.look();
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

/// The row lagged behind by the token that the refund gave back. So after a crash the next window was over before its time.
#[test]
fn a_bucket_that_a_refund_fills_is_stored_before_the_answer() {
    for (verb, left) in [(Verb::Refund, 20), (Verb::Reset, 20)] {
        let mut pair = Pair::new(20, 1);
        pair.take(Verb::Consume, 1);
        pair.world.now += 4_997;
        pair.take(verb, 1);
        pair.crash(0);
        pair.world.now += 1;
        assert_eq!(pair.take(Verb::ConsumeUpTo, 20), left);
        pair.world.now += 4_999;
        assert_eq!(pair.take(Verb::ConsumeUpTo, 20), 0);
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
    let verb = vec![Verb::Consume, Verb::ConsumeUpTo, Verb::Consume, Verb::Charge, Verb::Refund, Verb::Reset];
    let verb = prop::sample::select(verb);
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

    /// Also that no window begins earlier than it was used.
    #[test]
    fn after_a_crash_it_is_as_if_the_lost_block_had_been_taken(
        (rate, capacity, max_debt, block) in (1..25_u64, any::<bool>(), 0..25_u64)
            .prop_flat_map(|(rate, is_plain, capacity)| (Just(rate), if is_plain { rate..rate + 1 } else { capacity..capacity + 1 }))
            .prop_flat_map(|(rate, capacity)| (Just(rate), Just(capacity), prop_oneof![Just(0), 0..20_u64], 0..=capacity)),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = Pair::with(rate, capacity, max_debt, block);
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

/// A window that a reservation has opened stays open under other numbers of the same period, whichever comes first: the change or the
/// settlement.
#[test]
fn a_change_of_numbers_leaves_the_window_of_a_reservation_open() {
    let version = |rate: u64| {
        let tokens =
            format!(r#"{{"name":"tokens","kind":"fixed_window","offset":"first_use","period":"1m","rate":{rate}}}"#);
        let requests = r#"{"name":"requests","rate":"100/1s"}"#;
        let json = format!(r#"{{"p":{{"limits":[{tokens},{requests}],"reservation_ttl":"1h"}}}}"#);
        Policy::clone(Policies::parse(&json).unwrap().get("p").unwrap())
    };
    for (from, to, carry, reserved, real) in
        [(20, 10, Carry::AsIs, 5, 12), (20, 10, Carry::Additive, 5, 12), (10, 20, Carry::Additive, 0, 5)]
    {
        for settles_first in [false, true] {
            let first = Arc::new(version(from).in_force_since(START - 5));
            let second = Arc::new(version(to).succeeding(&first, START + 30_000, carry));
            let mut world = World { as_of: Some(START - 5), ..World::empty(&first) };
            let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
            let id = world.decided(reserve, vec![reserved, 1]).reservation.unwrap().id;
            if settles_first {
                world.now = START + 29_000;
                world.decided(Action::Settle(id), vec![real, 1]);
            }
            world.now = START + 40_000;
            (world.policy, world.as_of) = (Arc::clone(&second), Some(START + 30_000));
            if !settles_first {
                world.decided(Action::Settle(id), vec![real, 1]);
            }
            let looked = world.decided(Action::Look(Verb::Consume), vec![to, 0]);
            let retry_at = Decision::Wait { retry_at: START + 60_000 };
            assert_eq!(looked.decision(), retry_at, "{from} to {to}, {carry:?}, settles first: {settles_first}");
        }
    }
}
