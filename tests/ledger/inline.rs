//! Numbers that come with each request, and may be others the next time.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::limit::{Carry, Config, Kind, Limit, Verb};
use tollgate::policy::Policy;
use tollgate::protocol::Action;

use crate::chance;
use crate::model::Model;
use crate::world::{DAY_MS, START, World, decided, tokens};

/// A limit as it comes with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    kind: Kind,
    rate: u64,
    period_ms: u64,
    capacity: u64,
    write_ahead: u64,
}

impl Numbers {
    const fn bucket(rate: u64, period_ms: u64, capacity: u64) -> Self {
        Self { kind: Kind::TokenBucket, rate, period_ms, capacity, write_ahead: 0 }
    }

    const fn window(rate: u64, period_ms: u64, capacity: u64) -> Self {
        Self { kind: Kind::FixedWindow, ..Self::bucket(rate, period_ms, capacity) }
    }

    /// The most that it grants from `from` to `to`. The windows of these tests begin at multiples of their period.
    fn most(&self, from: i64, to: i64) -> u64 {
        let (period_ms, ms) = (self.period_ms.cast_signed(), (to - from).cast_unsigned());
        self.capacity
            + match self.kind {
                Kind::TokenBucket => self.rate * ms / self.period_ms,
                Kind::FixedWindow => self.rate * (to / period_ms - from / period_ms).cast_unsigned(),
            }
    }
}

/// The policy of these limits, by name.
fn inline(limits: &[(&str, Numbers)]) -> Arc<Policy> {
    let numbers = limits.iter().map(|(name, numbers)| {
        let Numbers { kind, rate, period_ms, capacity, .. } = numbers;
        let kind = if *kind == Kind::TokenBucket { "token_bucket" } else { "fixed_window" };
        format!(
            r#"{{"name":"{name}","kind":"{kind}","rate":{rate},"period_ms":{period_ms},"capacity":{capacity},"max_debt":0,"initial":null,"offset_ms":null}}"#
        )
    });
    let numbers = numbers.collect::<Vec<_>>().join(",");
    let blocks = limits.iter().map(|(_, numbers)| numbers.write_ahead.to_string()).collect::<Vec<_>>().join(",");
    let definition = format!(
        r#"{{"name":"plan","numbers":[{numbers}],"write_ahead":[{blocks}],"reservation_ttl_ms":60000,"unsettled":"refund","inline":true}}"#
    );
    Arc::new(Policy::from_definition(&definition).unwrap())
}

fn plan(numbers: Numbers) -> Arc<Policy> {
    inline(&[("a", numbers)])
}

impl World {
    /// Asks under these numbers, and says how many tokens were granted.
    fn take(&mut self, policy: &Arc<Policy>, verb: Verb, cost: u64) -> u64 {
        self.policy = Arc::clone(policy);
        let decided = self.decided(Action::Take(verb), vec![cost; policy.limits().len()]);
        if decided.decision().is_allow() { tokens(&decided.limits[0]) } else { 0 }
    }

    /// What is left under these numbers.
    fn left(&mut self, policy: &Arc<Policy>) -> i64 {
        self.policy = Arc::clone(policy);
        self.levels()[0]
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, Verb, u64),
    Look(usize),
    /// Holds under the first numbers, and takes what is held under the second.
    Batch(usize, usize, u64),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 0..4_u64, 2 => 0..12_u64, 1 => 0..50_u64];
    let which = || 0..12_usize;
    prop_oneof![
        8 => (which(), cost()).prop_map(|(which, cost)| Step::Take(which, Verb::Consume, cost)),
        4 => (which(), 1..99_u64).prop_map(|(which, cost)| Step::Take(which, Verb::ConsumeUpTo, cost)),
        2 => which().prop_map(Step::Look),
        1 => (which(), which(), cost()).prop_map(|(hold, commit, cost)| Step::Batch(hold, commit, cost)),
        4 => prop_oneof![0..20_i64, 0..400_i64, 0..8_000_i64].prop_map(Step::Wait),
        2 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..3_usize).prop_map(Step::Crash),
    ]
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let kind = prop_oneof![3 => Just(Kind::TokenBucket), 1 => Just(Kind::FixedWindow)];
    let period = prop::sample::select(vec![100_u64, 300, 1_000, 2_500]);
    let small = || prop_oneof![2 => 0..12_u64, 1 => 0..50_u64];
    let block = prop_oneof![1 => Just(0_u64), 1 => 0..8_u64];
    (kind, small(), period, small(), block).prop_map(|(kind, rate, period_ms, capacity, write_ahead)| {
        Numbers { kind, rate, period_ms, capacity, write_ahead: write_ahead.min(capacity) }
    })
}

/// Numbers of which no faster ones have a smaller capacity, as in most tables of plans: all of one period.
fn plans(mut all: Vec<Numbers>) -> Vec<Numbers> {
    let mut capacities: Vec<_> = all.iter().map(|numbers| numbers.capacity).collect();
    capacities.sort_unstable();
    all.sort_by_key(|numbers| numbers.rate);
    for (numbers, capacity) in all.iter_mut().zip(capacities) {
        *numbers = Numbers { kind: Kind::TokenBucket, period_ms: 1_000, capacity, ..*numbers };
        numbers.write_ahead = numbers.write_ahead.min(capacity);
    }
    // Equal rates of different capacities keep the order of both.
    all
}

/// Plays the steps, and checks after each grant that no interval that ends with it has more than `most` says.
fn follow(all: &[Numbers], steps: &[Step], most: impl Fn(&[Numbers], i64, i64) -> u64) {
    let policies: Vec<_> = all.iter().map(|&numbers| plan(numbers)).collect();
    let mut world = World::empty(&policies[0]);
    // Since the bucket was last forgotten.
    let mut grants: Vec<(i64, u64)> = Vec::new();
    let mut seen = Vec::new();
    for step in steps {
        let granted = match *step {
            Step::Take(which, verb, cost) => {
                seen.push(all[which % all.len()]);
                world.take(&policies[which % all.len()], verb, cost)
            }
            Step::Look(which) => {
                seen.push(all[which % all.len()]);
                world.left(&policies[which % all.len()]);
                0
            }
            Step::Batch(hold, commit, cost) => {
                seen.extend([all[hold % all.len()], all[commit % all.len()]]);
                world.policy = Arc::clone(&policies[hold % all.len()]);
                match world.decided(Action::Hold(0), vec![cost]).reservation {
                    Some(held) => {
                        world.policy = Arc::clone(&policies[commit % all.len()]);
                        decided(world.ask(Action::Settle(held.id), None, None));
                        cost
                    }
                    None => 0,
                }
            }
            Step::Wait(ms) => {
                world.now += ms;
                0
            }
            Step::Arrive(count) => {
                world.arrive(count);
                0
            }
            Step::FlushIdle => {
                world.flush_idle();
                0
            }
            Step::Clean => {
                world.clean();
                if !world.has_row() {
                    grants.clear();
                    seen.clear();
                }
                0
            }
            Step::Crash(arrived) => {
                world.crash(arrived);
                0
            }
        };
        if granted == 0 {
            continue;
        }
        grants.push((world.now, granted));
        let mut sum = 0;
        for (at, tokens) in grants.iter().rev() {
            sum += tokens;
            let bound = most(&seen, *at, world.now);
            assert!(sum <= bound, "{sum} of {bound} from {at} to {}, after {step:?}", world.now);
        }
    }
}

/// What the most generous of the numbers grants alone.
fn most_generous(seen: &[Numbers], from: i64, to: i64) -> u64 {
    seen.iter().map(|numbers| numbers.most(from, to)).max().unwrap_or(0)
}

/// What the largest capacity and the fastest refill of each kind grant together.
fn most_of_each(seen: &[Numbers], from: i64, to: i64) -> u64 {
    let refill = |kind| {
        let of_kind = seen.iter().filter(move |numbers| numbers.kind == kind);
        of_kind.map(move |numbers| Numbers { capacity: 0, ..*numbers }.most(from, to) + u64::from(kind == Kind::TokenBucket))
    };
    let capacity = seen.iter().map(|numbers| numbers.capacity).max().unwrap_or(0);
    capacity + refill(Kind::TokenBucket).max().unwrap_or(0) + refill(Kind::FixedWindow).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// Nothing is gained by going back and forth between as many numbers as have accounts, of both kinds, over any crashes.
    #[test]
    fn up_to_eight_numbers_grant_no_more_than_the_most_generous(
        all in prop::collection::vec(numbers(), 1..9),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        follow(&all, &steps, most_generous);
    }

    #[test]
    fn any_number_of_plans_grants_no_more_than_the_largest(
        all in prop::collection::vec(numbers(), 1..13).prop_map(plans),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        follow(&all, &steps, most_generous);
    }

    #[test]
    fn any_number_of_buckets_grants_no_more_than_the_largest_capacity_and_the_fastest_refill(
        all in prop::collection::vec(numbers(), 9..13),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let buckets: Vec<_> = all.iter().map(|numbers| Numbers { kind: Kind::TokenBucket, ..*numbers }).collect();
        follow(&buckets, &steps, most_of_each);
    }
}
