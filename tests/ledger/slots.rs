//! Slots: a reservation takes them, and they are back exactly when it ends. Beside them another limit counts as if it were alone.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::key_hash::KeyHasher;
use tollgate::limit::{Carry, Decision, Verb};
use tollgate::policy::Policy;
use tollgate::policy::overrides::{History, InForce, Overrides, Selector, WrittenOverride};
use tollgate::protocol::{Action, Decided, ObjectReply};

use crate::chance;
use crate::late::world_of;
use crate::world::{World, decided, tokens};

const TTL_MS: i64 = 15_000;
const RESERVE: Action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
const SLOTS: &str = r#"{"name":"at_once","kind":"slots","capacity":5}"#;
const TOKENS: &str = r#"{"name":"tokens","rate":"10/10s burst 20","write_ahead":0}"#;

fn policy(limits: &[&str], unsettled: &str) -> String {
    format!(r#"{{"limits":[{}],"unsettled":"{unsettled}","reservation_ttl":"15s"}}"#, limits.join(","))
}

#[derive(Clone, Copy, Debug)]
struct Open {
    id: u64,
    /// The same reservation in the world without slots.
    id_alone: u64,
    slots: u64,
    ends_at: i64,
}

/// A policy with slots, beside one without.
struct Pair {
    world: World,
    alone: World,
    open: Vec<Open>,
}

impl Pair {
    fn new(unsettled: &str) -> Self {
        let (world, alone) = (world_of(&policy(&[SLOTS, TOKENS], unsettled)), world_of(&policy(&[TOKENS], unsettled)));
        Self { world, alone, open: Vec::new() }
    }

    fn used(&self, at: i64) -> u64 {
        self.open.iter().filter(|open| at < open.ends_at).map(|open| open.slots).sum()
    }

    /// The first moment at which that number of slots is free, if none is given back early. Reservation `but` never ends.
    fn free_at(&self, slots: u64, but: Option<usize>) -> Option<i64> {
        let others = || self.open.iter().enumerate().filter(|(index, _)| Some(*index) != but);
        let moments = others().map(|(_, open)| open.ends_at.max(self.world.now)).chain([self.world.now]);
        let is_used = |(index, open): &(usize, &Open), at: i64| Some(*index) == but || at < open.ends_at;
        let used = |at: i64| {
            let open = self.open.iter().enumerate().filter(|open| is_used(open, at));
            open.map(|(_, open)| open.slots).sum::<u64>()
        };
        moments.filter(|&at| used(at) + slots <= 5).min()
    }

    fn take(&mut self, action: Action, slots: u64, cost: u64, raised: Option<usize>) -> Option<Decided> {
        let has_room = self.used(self.world.now) + slots <= 5;
        let is_expected = has_room && {
            let mut reply = self.alone.ask(Action::Look(Verb::Consume), Some(vec![cost]), None);
            if let ObjectReply::Decided(decided) = &mut reply { decided.decision().is_allow() } else { false }
        };
        let decided = decided(self.world.ask(action, Some(vec![slots, cost]), None));
        assert_eq!(
            decided.decision().is_allow(),
            is_expected || slots == 0 && cost == 0,
            "{slots} slots, {cost} tokens"
        );
        if let (false, Decision::Wait { retry_at }) = (has_room, decided.limits[0].decision) {
            assert_eq!(Some(retry_at), self.free_at(slots, raised), "{slots} slots");
        } else if !has_room {
            assert!(slots > 5 || raised.is_some(), "{:?}", decided.limits[0].decision);
        }
        decided.decision().is_allow().then_some(decided)
    }

    fn reserve(&mut self, slots: u64, cost: u64) {
        if let Some(granted) = self.take(RESERVE, slots, cost, None) {
            let alone = self.alone.decided(RESERVE, vec![cost]);
            let (reserved, id_alone) = (granted.reservation.unwrap(), alone.reservation.unwrap().id);
            assert_eq!(reserved.expires_at, self.world.now + TTL_MS);
            self.open.push(Open { id: reserved.id, id_alone, slots, ends_at: reserved.expires_at });
        }
    }

    fn extend(&mut self, which: usize, slots: u64, cost: u64) {
        let Some(index) = which.checked_rem(self.open.len()) else { return };
        let Open { id, id_alone, ends_at, .. } = self.open[index];
        if ends_at <= self.world.now {
            let reply = self.world.ask(Action::Extend(id), Some(vec![slots, cost]), None);
            assert_eq!(reply, ObjectReply::NoReservation);
        } else if let Some(granted) = self.take(Action::Extend(id), slots, cost, Some(index)) {
            self.alone.decided(Action::Extend(id_alone), vec![cost]);
            let open = &mut self.open[index];
            (open.slots, open.ends_at) = (open.slots + slots, granted.reservation.unwrap().expires_at);
        }
    }

    /// Settles at this cost, or at the reserved one; `is_cancelled`: cancels.
    fn close(&mut self, which: usize, cost: Option<u64>, is_cancelled: bool) {
        let Some(index) = which.checked_rem(self.open.len()) else { return };
        let open = self.open.remove(index);
        let action = |id| if is_cancelled { Action::Cancel(id) } else { Action::Settle(id) };
        let costs = cost.filter(|_| !is_cancelled);
        let closed = decided(self.world.ask(action(open.id), costs.map(|cost| vec![0, cost]), None));
        let alone = decided(self.alone.ask(action(open.id_alone), costs.map(|cost| vec![cost]), None));
        assert_eq!(tokens(&closed.limits[1]), tokens(&alone.limits[0]));
        assert_eq!((closed.is_late, alone.is_late), (open.ends_at <= self.world.now, closed.is_late));
        let back = if is_cancelled && !closed.is_late { open.slots } else { 0 };
        assert_eq!(
            tokens(&closed.limits[0]),
            back,
            "a settlement costs none, a cancellation says how many it gives back"
        );
        assert_eq!(closed.limits[0].remaining, 5 - self.used(self.world.now));
        // A repetition gets the same answer, and gives nothing back.
        let again = decided(self.world.ask(action(open.id), costs.map(|cost| vec![0, cost]), None));
        assert!(again.is_replayed && tokens(&again.limits[1]) == tokens(&closed.limits[1]));
    }

    fn check(&mut self) {
        let free = 5 - i64::try_from(self.used(self.world.now)).unwrap();
        assert_eq!(self.world.levels(), [free, self.alone.levels()[0]]);
    }

    fn both(&mut self, act: impl Fn(&mut World)) {
        act(&mut self.world);
        act(&mut self.alone);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve(u64, u64),
    Extend(usize, u64, u64),
    Close(usize, Option<u64>, bool),
    Wait(i64),
    FlushIdle,
    Clean,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 0..5_u64, 1 => 0..30_u64];
    let slots = || prop_oneof![6 => Just(1_u64), 2 => 0..4_u64, 1 => 0..7_u64];
    let wait =
        prop_oneof![3 => 0..3_000_i64, 2 => 0..20_000_i64, 1 => prop::sample::select(vec![14_999, 15_000, 15_001])];
    prop_oneof![
        // A reservation of nothing is none: the world without slots would have none.
        8 => (slots(), cost()).prop_map(|(slots, cost)| Step::Reserve(slots, cost.max(1))),
        // More slots alone would be a raise that the other world does not have.
        2 => (any::<usize>(), 0..3_u64, cost()).prop_map(|(which, slots, cost)| Step::Extend(which, slots, cost.max(slots))),
        1 => any::<usize>().prop_map(|which| Step::Extend(which, 0, 0)),
        4 => (any::<usize>(), prop::option::of(cost()), any::<bool>()).prop_map(|(which, cost, is_cancelled)| Step::Close(which, cost, is_cancelled)),
        5 => wait.prop_map(Step::Wait),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        1 => Just(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn slots_are_back_when_their_reservation_ends_and_other_limits_count_as_if_alone(
        unsettled in prop::sample::select(vec!["keep", "refund"]),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = Pair::new(unsettled);
        for step in steps {
            match step {
                Step::Reserve(slots, cost) => pair.reserve(slots, cost),
                Step::Extend(which, slots, cost) => pair.extend(which, slots, cost),
                Step::Close(which, cost, is_cancelled) => pair.close(which, cost, is_cancelled),
                Step::Wait(ms) => pair.both(|world| world.now += ms),
                Step::FlushIdle => pair.both(World::flush_idle),
                Step::Clean => pair.both(World::clean),
                Step::Crash => pair.both(|world| world.crash(usize::MAX)),
            }
            pair.check();
        }
    }
}

fn with(json: &str) -> World {
    world_of(&format!(r#"{{{json},"reservation_ttl":"15s"}}"#))
}

/// The world after a deployment of this policy.
fn deployed(world: &World, json: &str) -> World {
    world.restarted_with(&with(json).policy)
}

fn reserved(world: &mut World) -> Option<u64> {
    world.decided(RESERVE, vec![1]).reservation.map(|reserved| reserved.id)
}

const THREE: &str = r#""kind":"slots","capacity":3"#;

#[test]
fn a_change_of_their_number_counts_those_in_use() {
    let mut world = with(THREE);
    let first = reserved(&mut world).unwrap();
    assert!(reserved(&mut world).is_some());
    let mut more = deployed(&world, r#""kind":"slots","capacity":5"#);
    assert_eq!(more.levels(), [3]);
    let mut fewer = deployed(&more, r#""kind":"slots","capacity":1"#);
    assert_eq!(reserved(&mut fewer), None);
    fewer.decided(Action::Settle(first), vec![0]);
    assert_eq!(reserved(&mut fewer), None, "one is still in use");
    fewer.now += TTL_MS;
    assert_eq!(fewer.levels(), [1]);
    assert!(reserved(&mut fewer).is_some());
    assert_eq!(reserved(&mut fewer), None);
}

#[test]
fn tokens_that_become_slots_begin_anew_and_slots_that_become_tokens_are_not_spent() {
    let mut world = with(r#""rate":"3/1m""#);
    world.decided(Action::Take(Verb::Consume), vec![3]);
    let mut slots = deployed(&world, THREE);
    assert_eq!(slots.levels(), [3]);
    let open = reserved(&mut slots).unwrap();
    let mut tokens = deployed(&slots, r#""rate":"3/1m""#);
    assert_eq!(tokens.levels(), [0], "as spent before");
    tokens.decided(Action::Settle(open), vec![0]);
    assert_eq!(deployed(&tokens, THREE).levels(), [3]);
}

#[test]
fn naming_them_frees_none() {
    let named = r#""limits":[{"name":"at_once","kind":"slots","capacity":3}]"#;
    let mut world = with(THREE);
    let open = reserved(&mut world).unwrap();
    let mut world = deployed(&world, named);
    assert_eq!(world.levels(), [2]);
    let mut back = deployed(&world, THREE);
    assert_eq!(back.levels(), [2]);
    back.decided(Action::Settle(open), vec![0]);
    assert_eq!((back.levels(), deployed(&back, named).levels()), (vec![3], vec![3]));
}

/// A request for no slots is granted even when more are in use than there are.
#[test]
fn tokens_beside_slots_are_granted_although_their_number_has_fallen() {
    let limits = |slots: u64| {
        let slots = format!(r#"{{"name":"at_once","kind":"slots","capacity":{slots}}}"#);
        format!(r#""limits":[{slots},{TOKENS}]"#)
    };
    let mut world = with(&limits(3));
    let first = world.decided(RESERVE, vec![2, 1]).reservation.unwrap().id;
    let mut fewer = deployed(&world, &limits(1));
    assert_eq!(fewer.levels(), [-1, 19]);
    for (action, level) in [(Action::Look(Verb::Consume), 19), (Action::Extend(first), 18), (RESERVE, 17)] {
        let answer = fewer.decided(action, vec![0, 1]);
        assert!(answer.decision().is_allow(), "{action:?}: {answer:?}");
        assert_eq!(fewer.levels(), [-1, level]);
    }
    for costs in [vec![1, 0], vec![1, 1]] {
        assert!(!fewer.decided(RESERVE, costs).decision().is_allow());
    }
}

/// A reservation that had ended is over, whatever the clock shows after a crash.
#[test]
fn a_slot_is_given_back_once_although_the_clock_steps_back() {
    for unsettled in ["keep", "refund"] {
        let mut world = world_of(&policy(&[SLOTS], unsettled));
        let first = world.decided(RESERVE, vec![5]).reservation.unwrap().id;
        world.now += TTL_MS;
        let second = world.decided(RESERVE, vec![5]).reservation.unwrap().id;
        world.now -= 5_000;
        world.crash(usize::MAX);
        assert_eq!(world.levels(), [0]);
        assert_eq!(world.ask(Action::Extend(first), Some(vec![0]), None), ObjectReply::NoReservation);
        world.decided(Action::Settle(first), vec![0]);
        assert_eq!(world.levels(), [0]);
        decided(world.ask(Action::Cancel(second), None, None));
        assert_eq!(world.levels(), [5]);
    }
}

/// No caller waits for the old clock. A step back of up to a minute counts as no time, and so the reservation lasts that much longer.
#[test]
fn a_reservation_begins_anew_where_a_clock_that_stepped_back_goes_on() {
    for (back_ms, is_followed) in [(60_000, false), (60_001, true), (86_400_000, true)] {
        for crashes in [false, true] {
            let mut world = world_of(&policy(&[SLOTS], "keep"));
            let opened_at = world.now;
            let id = world.decided(RESERVE, vec![5]).reservation.unwrap().id;
            world.now -= back_ms;
            if crashes {
                world.crash(usize::MAX);
            }
            let ends_at = TTL_MS + if is_followed { world.now } else { opened_at };
            let refused = world.decided(RESERVE, vec![1]).decision();
            assert_eq!(refused, Decision::Wait { retry_at: ends_at }, "back by {back_ms} ms");
            if crashes {
                world.crash(usize::MAX); // the row has the new moments
            }
            for (now, free) in [(ends_at - 1, 0), (ends_at, 5)] {
                world.now = now;
                assert_eq!(world.levels(), [free], "back by {back_ms} ms, crashes: {crashes}");
            }
            let settled = world.decided(Action::Settle(id), vec![0]);
            assert!(settled.is_late && settled.decision().is_allow());
        }
    }
}

/// What was worked out for earlier refusals is forgotten.
#[test]
fn a_refusal_after_such_a_step_knows_when_a_reservation_gives_back() {
    let fields =
        r#""kind":"fixed_window","rate":10,"period":"30days","offset":"0s","unsettled":"refund","write_ahead":0"#;
    let mut world = with(fields);
    world.decided(RESERVE, vec![10]);
    for back_ms in [0, 100_000] {
        world.now -= back_ms;
        let ends_at = world.now + TTL_MS;
        for now in [world.now, ends_at - 1] {
            world.now = now;
            let refused = world.decided(Action::Take(Verb::Consume), vec![1]).decision();
            assert_eq!(refused, Decision::Wait { retry_at: ends_at }, "back by {back_ms} ms");
        }
        world.now = ends_at - TTL_MS;
    }
}

/// What limits in shadow count of slots is what they would count if they were enforced.
#[test]
fn slots_in_shadow_are_given_back_too() {
    let shadow = format!(r#"{},"mode":"shadow"}}"#, SLOTS.trim_end_matches('}'));
    let mut world = world_of(&policy(&[&shadow, TOKENS], "keep"));
    let reserve = |world: &mut World| decided(world.ask_shadow(RESERVE, Some(vec![1]), Some(vec![2]), None));
    let free = |decided: &Decided| decided.shadow[0].unwrap().remaining;
    let reset_in = |decided: &Decided| decided.shadow[0].unwrap().reset_at.map(|at| at - decided.now);
    let first = reserve(&mut world);
    assert_eq!((free(&first), reset_in(&first)), (3, Some(TTL_MS)));
    let extend = Action::Extend(first.reservation.unwrap().id);
    for cost in [0, 100] {
        let extended = decided(world.ask_shadow(extend, Some(vec![cost]), Some(vec![0]), None));
        assert_eq!(
            (extended.decision().is_allow(), free(&extended), reset_in(&extended)),
            (cost == 0, 3, Some(TTL_MS))
        );
    }
    world.now += 5_000;
    let second = reserve(&mut world);
    assert_eq!((free(&second), free(&reserve(&mut world))), (1, 1), "it would refuse the third");
    let settled = world.ask_shadow(Action::Settle(second.reservation.unwrap().id), Some(vec![1]), Some(vec![0]), None);
    assert_eq!(free(&decided(settled)), 3);
    world.now += 10_000;
    assert_eq!(free(&reserve(&mut world)), 3, "the first has expired");
}

/// The policy for a key without limits.
fn unlimited(policy: &Arc<Policy>, now: i64) -> Arc<Policy> {
    let plan = WrittenOverride::parse("it", r#"{"policy":"p","key":"k","unlimited":true}"#).unwrap().plan;
    let mut history = History::default();
    history.push(policy.timeline().since().max(1), Some(InForce { plan, until: None }), None);
    let mut records = Vec::new();
    Selector::key("p", KeyHasher::default().hash(b"k")).record(&history.encode(), &mut records);
    let overrides = Overrides::default();
    overrides.update(&records).unwrap();
    overrides.apply(policy, b"k", now)
}

/// What happens while the capacity changes.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A version of a registry, with another number, in shadow or enforced.
    Version(u64, Carry, bool),
    Unlimited(bool),
    Reserve(u64),
    Extend(usize, u64),
    Settle(usize),
    Wait(i64),
    Crash,
}

fn change() -> impl Strategy<Value = Change> {
    let carry = prop::sample::select(vec![Carry::AsIs, Carry::Proportional, Carry::Additive, Carry::Reset]);
    prop_oneof![
        3 => (0..6_u64, carry, prop::bool::weighted(0.2)).prop_map(|(slots, carry, is_shadow)| Change::Version(slots, carry, is_shadow)),
        1 => any::<bool>().prop_map(Change::Unlimited),
        8 => (1..3_u64).prop_map(Change::Reserve),
        2 => (any::<usize>(), 0..3_u64).prop_map(|(which, slots)| Change::Extend(which, slots)),
        4 => any::<usize>().prop_map(Change::Settle),
        3 => (0..8_000_i64).prop_map(Change::Wait),
        1 => Just(Change::Crash),
    ]
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// The current capacity applies to all reservations, whenever they were made.
    #[test]
    fn a_reservation_is_granted_exactly_if_enough_slots_are_free_under_the_capacity_in_force(
        changes in prop::collection::vec(change(), 1..60),
    ) {
        // Beside them is a limit that never refuses, so that a cost of 0 slots is not a cost of nothing.
        let version = |slots: u64, is_shadow: bool| {
            let mode = if is_shadow { "shadow" } else { "enforce" };
            let slots = format!(r#"{{"name":"at_once","kind":"slots","capacity":{slots},"mode":"{mode}"}}"#);
            Policy::clone(&with(&format!(r#""limits":[{slots},{{"name":"plenty","rate":"1000/1s","write_ahead":0}}]"#)).policy)
        };
        let mut world = World::empty(&Arc::new(version(3, false)));
        let mut base = Arc::new(version(3, false).in_force_since(world.now - 5));
        let (mut capacity, mut is_shadow, mut is_unlimited) = (3, false, false);
        let mut open: Vec<(u64, u64, i64)> = Vec::new();
        for change in changes {
            world.as_of = Some(base.timeline().since());
            world.policy = if is_unlimited { unlimited(&base, world.now) } else { Arc::clone(&base) };
            open.retain(|(.., ends_at)| world.now < *ends_at);
            let used: u64 = open.iter().map(|(_, slots, _)| slots).sum();
            let costs = |slots: u64| if is_shadow { (vec![1], vec![slots]) } else { (vec![slots, 1], vec![]) };
            let ask = |world: &mut World, action, slots| {
                let (costs, shadow_costs) = costs(slots);
                decided(world.ask_shadow(action, Some(costs), Some(shadow_costs), None))
            };
            match change {
                Change::Version(slots, carry, shadow) => {
                    world.now += 1;
                    base = Arc::new(version(slots, shadow).succeeding(&base, world.now, carry));
                    (capacity, is_shadow) = (slots, shadow);
                }
                Change::Unlimited(is_on) => is_unlimited = is_on,
                Change::Reserve(slots) => {
                    let answer = ask(&mut world, RESERVE, slots);
                    let has_room = used + slots <= capacity;
                    if is_shadow {
                        let tried = answer.shadow[0].unwrap();
                        assert_eq!(tried.decision.is_allow(), has_room, "{slots} in shadow");
                        if let Some(reserved) = answer.reservation {
                            open.push((reserved.id, if has_room { slots } else { 0 }, reserved.expires_at));
                        }
                    } else {
                        assert_eq!(answer.decision().is_allow(), has_room || is_unlimited, "{slots}, {used} in use");
                        if let Some(reserved) = answer.reservation {
                            open.push((reserved.id, slots, reserved.expires_at));
                        }
                    }
                }
                Change::Extend(which, slots) => {
                    let Some(index) = which.checked_rem(open.len()) else { continue };
                    let answer = ask(&mut world, Action::Extend(open[index].0), slots);
                    let has_room = used + slots <= capacity;
                    let is_granted = slots == 0 || has_room || is_unlimited || is_shadow;
                    assert_eq!(answer.decision().is_allow(), is_granted, "{slots} more, {used} in use");
                    if is_granted {
                        open[index].1 += if is_shadow && !has_room { 0 } else { slots };
                        open[index].2 = answer.reservation.unwrap().expires_at;
                    }
                }
                Change::Settle(which) => {
                    let Some(index) = which.checked_rem(open.len()) else { continue };
                    let (id, ..) = open.remove(index);
                    ask(&mut world, Action::Settle(id), 0);
                }
                Change::Wait(ms) => world.now += ms,
                Change::Crash => world.crash(usize::MAX),
            }
            if !is_shadow && world.policy.limits().len() == 2 {
                let used: u64 = open.iter().filter(|(.., ends_at)| world.now < *ends_at).map(|(_, slots, _)| slots).sum();
                let capacity = world.policy.limits()[0].limit().config().capacity;
                assert_eq!(world.levels()[0], capacity.cast_signed() - used.cast_signed());
            }
        }
    }
}
