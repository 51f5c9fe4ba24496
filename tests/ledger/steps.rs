//! Sequences of steps: requests, clock steps, rows that reach storage, and crashes.

use proptest::prelude::*;

use tollgate::limit::Verb;

use crate::world::DAY_MS;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Take(Verb, [u64; 2]),
    Look([u64; 2]),
    Reserve([u64; 2], Option<u64>),
    /// The reservation with this number, if it exists, at this cost.
    Settle(usize, [u64; 2]),
    Cancel(usize),
    /// The reservation with this number, if it exists, by this cost.
    Extend(usize, [u64; 2]),
    Hold([u64; 2]),
    /// The hold with this number, if it exists.
    Commit(usize),
    Abort(usize),
    Wait(i64),
    /// This many rows arrive.
    Arrive(usize),
    FlushIdle,
    Clean,
    /// The process ends after this many rows in flight have arrived.
    Crash(usize),
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..80)
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 0..4_u64, 2 => 0..12_u64, 1 => 0..70_u64];
    let costs = move || [cost(), cost()];
    let wait = || prop_oneof![Just(None), (0..5_000_u64).prop_map(Some)];
    let clock = prop_oneof![3 => 0..300_i64, 2 => 0..20_000_i64, 1 => -50_000..0_i64, 1 => Just(DAY_MS)];
    prop_oneof![
        12 => costs().prop_map(|costs| Step::Take(Verb::Consume, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::ConsumeUpTo, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::Charge, costs)),
        2 => costs().prop_map(|costs| Step::Take(Verb::Refund, costs)),
        1 => Just(Step::Take(Verb::Reset, [0, 0])),
        2 => (costs(), wait()).prop_map(|(costs, max_wait_ms)| Step::Take(Verb::Borrow { max_wait_ms }, costs)),
        2 => costs().prop_map(Step::Look),
        3 => (costs(), wait()).prop_map(|(costs, wait)| Step::Reserve(costs, wait)),
        2 => (0..3_usize, costs()).prop_map(|(which, costs)| Step::Settle(which, costs)),
        1 => (0..3_usize).prop_map(Step::Cancel),
        2 => (0..3_usize, costs()).prop_map(|(which, costs)| Step::Extend(which, costs)),
        2 => costs().prop_map(Step::Hold),
        2 => (0..2_usize).prop_map(Step::Commit),
        1 => (0..2_usize).prop_map(Step::Abort),
        4 => clock.prop_map(Step::Wait),
        3 => (0..4_usize).prop_map(Step::Arrive),
        2 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        3 => (0..4_usize).prop_map(Step::Crash),
    ]
}
