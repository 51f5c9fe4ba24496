//! Laws about any sequence of requests, clock steps, and crashes at any moment.
//!
//! The model is a bucket in memory that never crashes and repeats every grant. The ledger may be below it, by what
//! crashes cost, but never above: then it could grant what the exact model would not.
//!
//! A clock that stepped back shows some milliseconds twice. A bucket in memory credits them once, except after a step of more
//! than a minute; a bucket that was full and forgotten, or never stored, restarts at the earlier moment and credits
//! them again. So the model against which crashes are judged counts every millisecond that the clock shows. As long as
//! the clock never steps back, that is the exact bucket itself; otherwise it is ahead of that by at most what comes back
//! within all steps back together.

use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger::Ledger;
use tollgate::limit::{Config, Decision, Kind, Limit, Part, Verb, decide_all};
use tollgate::policy::{NamedLimit, Policy, Unsettled};
use tollgate::protocol::{Action, ObjectReply, ObjectRequest, Reserved};

use crate::chance;
use crate::model::{Model, refill_in};
use crate::steps::{Step, steps};
use crate::world::{DAY_MS, START, World, decided, policies, tokens};

/// An open reservation, as known to its client.
struct Open {
    reserved: Reserved,
    taken: Vec<u64>,
}

/// A hold, as known to its frontend.
struct Held {
    id: u64,
    tokens: Vec<u64>,
    since: i64,
    is_committed: bool,
}

/// The ledger and its models.
struct Comparison {
    world: World,
    policy: Arc<Policy>,
    /// The exact bucket, while nothing was lost or forgotten, nor was anything reserved by a clock that stepped back: a reservation lets the
    /// bucket follow the clock without taking anything, and a settlement makes that count.
    exact: Option<Model>,
    /// The one that follows every step of the clock.
    most: Model,
    open: Vec<Open>,
    held: Vec<Held>,
    has_reserved: bool,
    latest: i64,
    steps_back: Vec<i64>,
    crashes: i64,
    /// Charges of which the ledger may have taken a part of a token more than it said.
    rounded: i64,
}

fn follow(policy: &str, steps: &[Step]) {
    let mut world = World::new(&policies(), policy);
    world.levels(); // a bucket that starts below full refills from now on
    let policy = Arc::clone(&world.policy);
    let (exact, most) = (Some(Model::new(&policy)), Model::new(&policy));
    let (open, held) = (Vec::new(), Vec::new());
    let mut both = Comparison {
        world,
        policy,
        exact,
        most,
        open,
        held,
        has_reserved: false,
        latest: START,
        steps_back: Vec::new(),
        crashes: 0,
        rounded: 0,
    };
    for step in steps {
        if let Step::Wait(ms) = step {
            both.wait(*ms);
        }
        both.end_expired();
        both.take(step);
        both.compare(step);
    }
}

impl Comparison {
    fn each_model(&mut self, change: impl Fn(&mut Model)) {
        self.exact.iter_mut().chain([&mut self.most]).for_each(change);
    }

    fn wait(&mut self, ms: i64) {
        self.world.now += ms;
        self.latest = self.latest.max(self.world.now);
        self.steps_back.extend((ms < 0).then_some(-ms));
        self.most.follow_clock(self.world.now);
    }

    fn end_expired(&mut self) {
        let now = self.world.now;
        self.held.retain(|held| now.abs_diff(held.since) < 10_000);
        let gives_back = self.policy.object().reservations.unsettled == Unsettled::Refund;
        for Open { reserved, taken } in
            self.open.extract_if(.., |open| open.reserved.expires_at <= now).collect::<Vec<_>>()
        {
            if gives_back {
                self.each_model(|model| model.settle(reserved.id, &vec![0; taken.len()]));
            }
        }
    }

    /// Takes a step on both sides.
    fn take(&mut self, step: &Step) {
        let (now, count) = (self.world.now, self.policy.limits().len());
        match *step {
            Step::Take(verb, costs) => {
                let decided = self.world.decided(Action::Take(verb), costs[..count].to_vec());
                let Decision::Allow { ready_at: told, .. } = decided.decision() else {
                    return self.each_model(|model| model.refuse(now));
                };
                let taken = || decided.limits.iter().map(tokens).collect();
                let (verb, costs) = match verb {
                    // The model may have more left, or room for less.
                    Verb::ConsumeUpTo => (Verb::Consume, taken()),
                    // It may have room for more, and what was charged stays so whatever is settled later.
                    Verb::Charge if self.exact.is_none() => {
                        self.rounded += 1;
                        (verb, taken())
                    }
                    _ => (verb, costs[..count].to_vec()),
                };
                self.each_model(|model| {
                    let ready_at = model.grant(verb, &costs, now);
                    assert!(ready_at <= told, "ready at {told} although the model says {ready_at}");
                });
            }
            Step::Look(costs) => {
                let decided = self.world.decided(Action::Look(Verb::Consume), costs[..count].to_vec());
                if !decided.decision().is_allow() {
                    self.each_model(|model| model.refuse(now));
                }
            }
            Step::Reserve(costs, max_wait_ms) => {
                let (verb, costs) = (Verb::Reserve { max_wait_ms }, costs[..count].to_vec());
                let decided = self.world.decided(Action::Reserve(verb), costs.clone());
                let is_allowed = decided.decision().is_allow();
                let is_something = costs.iter().any(|&cost| cost > 0);
                assert_eq!(decided.reservation.is_some(), is_allowed && is_something);
                self.each_model(|model| {
                    if is_allowed {
                        model.grant(verb, &costs, now);
                        decided.reservation.iter().for_each(|reserved| model.name(reserved.id));
                    } else {
                        model.refuse(now);
                    }
                });
                self.open.extend(decided.reservation.map(|reserved| Open { reserved, taken: costs }));
            }
            Step::Settle(which, costs) if which < self.open.len() => {
                let (Open { reserved, .. }, costs) = (self.open.remove(which), costs[..count].to_vec());
                let settled = self.world.decided(Action::Settle(reserved.id), costs.clone());
                let booked: Vec<_> = settled.limits.iter().map(tokens).collect(); // `late.rs` checks how many
                self.each_model(|model| model.settle(reserved.id, &booked));
                let again = self.world.decided(Action::Settle(reserved.id), costs);
                assert!(again.is_replayed, "each id settles once");
            }
            Step::Cancel(which) if which < self.open.len() => {
                let Open { reserved, .. } = self.open.remove(which);
                self.world.ask(Action::Cancel(reserved.id), None, None);
                self.each_model(|model| model.settle(reserved.id, &vec![0; count]));
            }
            Step::Hold(costs) => {
                let decided = self.world.decided(Action::Hold(0), costs[..count].to_vec());
                match decided.reservation {
                    Some(Reserved { id, .. }) => {
                        let tokens = costs[..count].to_vec();
                        self.held.push(Held { id, tokens, since: now, is_committed: false });
                    }
                    None => self.each_model(|model| model.refuse(now)),
                }
            }
            Step::Commit(which) if which < self.held.len() => {
                let held = &mut self.held[which];
                let decided = decided(self.world.ask(Action::Settle(held.id), None, None));
                assert_eq!(decided.is_replayed, held.is_committed);
                if !std::mem::replace(&mut held.is_committed, true) {
                    held.since = now;
                    let tokens = held.tokens.clone();
                    let id = held.id;
                    self.each_model(|model| {
                        model.lower(&tokens, now);
                        model.name(id);
                    });
                }
            }
            Step::Abort(which) if which < self.held.len() => {
                let Held { id, is_committed, .. } = self.held.remove(which);
                decided(self.world.ask(Action::Cancel(id), None, None));
                // An abort of an untaken hold refunds nothing; like any request, it lets a bucket follow the clock.
                self.each_model(|model| {
                    if is_committed {
                        model.settle(id, &vec![0; count]);
                    } else {
                        model.refund(&vec![0; count], now);
                    }
                });
            }
            Step::Arrive(count) => self.world.arrive(count),
            Step::FlushIdle => self.world.flush_idle(),
            Step::Clean => {
                self.world.clean();
                self.exact.take_if(|_| !self.world.has_row());
            }
            Step::Crash(arrived) => self.crash(arrived),
            _ => {} // what it is about does not exist; `late_pairs.rs` extends
        }
    }

    fn crash(&mut self, arrived: usize) {
        let before = self.levels();
        self.world.crash(arrived);
        self.crashes += 1;
        self.exact = None;
        self.held.clear();
        for ((limit, before), after) in self.policy.limits().iter().zip(before).zip(self.world.levels()) {
            let lost = before - after;
            let block = i64::try_from(limit.write_ahead()).unwrap();
            // A row with a later moment waits for it, and is further behind until then.
            let behind_ms = self.latest - self.world.now;
            let most = block + if behind_ms > 0 { refill_in(limit.limit(), behind_ms) } else { 0 };
            assert!((0..=most).contains(&lost), "{} lost {lost} of a block of {block}", limit.full_name());
        }
    }

    /// The levels of the ledger as if nothing were held.
    fn levels(&mut self) -> Vec<i64> {
        let mut levels = self.world.levels();
        for held in self.held.iter().filter(|held| !held.is_committed) {
            levels.iter_mut().zip(&held.tokens).for_each(|(level, tokens)| *level += tokens.cast_signed());
        }
        levels
    }

    /// The most that comes back in time that the clock has shown before.
    fn twice(&self, limit: &Limit) -> i64 {
        self.steps_back.iter().map(|&ms| refill_in(limit, ms)).sum()
    }

    fn compare(&mut self, step: &Step) {
        self.has_reserved |= !self.open.is_empty() || !self.held.is_empty();
        self.exact.take_if(|_| self.has_reserved && !self.steps_back.is_empty());
        let (now, levels) = (self.world.now, self.levels());
        let most = self.most.levels(now);
        assert!(levels.iter().zip(&most).all(|(level, most)| level <= most), "{step:?} left {levels:?} of {most:?}");
        // Nor later, while the clock only goes on.
        for ((limit, level), most) in self.policy.limits().iter().zip(&levels).zip(&most) {
            let lost = self.crashes * i64::try_from(limit.write_ahead()).unwrap() + self.rounded;
            assert!(most - level <= lost + self.twice(limit.limit()), "{step:?} left {levels:?} of {most}");
        }
        let Some(exact) = &self.exact else { return };
        assert_eq!(levels, exact.levels(now), "{step:?} with nothing lost or forgotten");
        for ((limit, level), most) in exact.limits.iter().zip(&levels).zip(most) {
            let twice = self.twice(limit);
            assert!(most <= level + twice, "{most} is more than {level} and the {twice} that come back twice");
        }
    }
}

const POLICIES: [&str; 7] = ["block", "each", "budget", "window", "calendar", "two", "waiting"];

/// Sequences that once broke the law.
mod found {
    use super::*;

    const CONSUME: Verb = Verb::Consume;

    fn take(verb: Verb, cost: u64) -> Step {
        Step::Take(verb, [cost; 2])
    }

    /// A flush is in storage when it has arrived, not when it was sent.
    #[test]
    fn a_refund_during_a_flush_leaves_no_more_than_a_block_to_be_lost() {
        let flush = [Step::FlushIdle, Step::FlushIdle, take(Verb::Refund, 1), Step::Crash(0)];
        follow("block", &[&[Step::Reserve([1; 2], None), take(CONSUME, 1)], &flush[..]].concat());
        follow("two", &[&[take(CONSUME, 1), take(CONSUME, 1)], &flush[..]].concat());
        follow("window", &[&[take(CONSUME, 1), take(CONSUME, 1)], &flush[..]].concat());
    }

    /// A covered row does not refill for a while: the older object spends what comes back, and the newer one counts it as well.
    #[test]
    fn two_objects_of_one_key_may_both_spend_what_comes_back_to_a_covered_bucket() {
        let before = [(0, 0), (0, 152), (3, 186), (3, 162)];
        let after = [
            (false, 0, 6),
            (true, 1, 123),
            (false, 1, 70),
            (false, 2, 138),
            (true, 3, 1),
            (false, 8, 0),
            (false, 8, 0),
            (false, 8, 0),
            (true, 1, 0),
            (false, 8, 0),
            (false, 8, 0),
            (false, 7, 0),
            (false, 5, 0),
            (false, 3, 0),
            (false, 2, 0),
            (false, 1, 0),
            (false, 1, 0),
        ];
        check_two_objects("block", &before, 0, &after);
    }

    /// Nor may a crash give back tokens that were taken while the flush was in flight.
    #[test]
    fn tokens_taken_during_a_flush_stay_taken() {
        for arrived in 0..3 {
            let steps = [take(CONSUME, 1), take(CONSUME, 1), Step::FlushIdle, Step::FlushIdle, take(CONSUME, 2)];
            follow("block", &[&steps[..], &[Step::Crash(arrived)]].concat());
        }
    }

    #[test]
    fn a_full_bucket_that_was_never_stored_begins_anew_at_an_earlier_moment() {
        let back = [Step::Crash(0), Step::Wait(859), Step::Wait(-16_744), take(CONSUME, 4), Step::Wait(15_985)];
        follow("block", &back);
        let reserve = Step::Reserve([1; 2], Some(100));
        let day =
            [Step::Crash(0), Step::Wait(DAY_MS), Step::Wait(-3_017), take(CONSUME, 1), take(Verb::ConsumeUpTo, 59)];
        follow("block", &[&day[..], &[reserve]].concat());
    }

    #[test]
    fn a_bucket_that_a_crash_left_lower_is_reset_at_its_own_moment() {
        let steps = [
            Step::Take(CONSUME, [4, 0]),
            Step::Take(Verb::Refund, [2, 0]),
            Step::Crash(0),
            Step::Wait(286),
            take(Verb::Reset, 0),
            Step::Wait(-2),
        ];
        follow("two", &steps);
    }

    /// While tokens were held, a bucket did not follow a clock that had stepped back far.
    #[test]
    fn after_more_than_a_minute_back_a_bucket_follows_the_clock_whatever_is_held() {
        let nothing = Step::Reserve([0; 2], None);
        let back =
            [take(CONSUME, 1), Step::Wait(-45_902), Step::Wait(-14_099), Step::Hold([1, 0]), nothing, Step::Wait(100)];
        follow("block", &back);
        let refused = [take(CONSUME, 1), Step::Wait(-60_001), Step::Hold([1, 0]), take(CONSUME, 60), Step::Wait(100)];
        follow("block", &refused);
    }

    #[test]
    fn after_more_than_a_minute_back_an_aborted_hold_lets_the_bucket_follow_the_clock() {
        let steps = [Step::Wait(-15_194), Step::Wait(-44_807), Step::Hold([0, 0]), Step::Abort(0), Step::Wait(200)];
        follow("waiting", &steps);
    }

    #[test]
    fn after_more_than_a_minute_back_a_reservation_of_nothing_opens_the_window_again() {
        let steps = [take(CONSUME, 0), Step::Wait(-21_273), Step::Reserve([1; 2], None), Step::Wait(-38_728)];
        follow("window", &[&steps[..], &[Step::Reserve([0; 2], None), Step::Wait(1)]].concat());
    }

    /// Its bucket has seen the window open, and the tokens come back that the clock shows again.
    #[test]
    fn a_settlement_after_a_step_back_counts_the_latest_moment() {
        let reserve = |costs| Step::Reserve(costs, None);
        let window = [reserve([1, 0]), Step::Wait(5_000), reserve([1, 0]), Step::Wait(-2), Step::Cancel(1)];
        follow("window", &window);
        let before = [reserve([0, 1]), Step::Take(CONSUME, [1, 0]), reserve([0, 1]), Step::Wait(143), reserve([0, 1])];
        let after = [Step::Wait(-2), Step::Take(Verb::ConsumeUpTo, [1, 0]), Step::Settle(0, [0, 0])];
        follow("two", &[&before[..], &after].concat());
    }

    /// The bucket in its row had not come that far.
    #[test]
    fn a_crash_after_a_step_back_does_not_refill_up_to_the_moment_of_a_reservation() {
        let reserve = || Step::Reserve([0, 1], None);
        let before = [reserve(), take(CONSUME, 0), reserve(), Step::Wait(715), reserve(), Step::Wait(-715)];
        let after = [
            Step::Take(Verb::ConsumeUpTo, [1, 0]),
            Step::Crash(0),
            Step::Take(CONSUME, [1, 0]),
            Step::Settle(0, [0, 0]),
        ];
        follow("two", &[&before[..], &after].concat());
    }

    /// The bucket in its row was ahead of the clock, and what depends on the other reservation was not.
    #[test]
    fn a_crash_after_more_than_a_minute_back_does_not_refill_up_to_the_earlier_clock() {
        let reserve = |cost| Step::Reserve([cost, 0], None);
        let back = [reserve(1), Step::Wait(-23_552), reserve(2), Step::Wait(-36_449)];
        let after = [Step::Settle(1, [2, 0]), Step::Crash(0), Step::Settle(0, [0, 0])];
        follow("window", &[&back[..], &after].concat());
    }

    #[test]
    fn what_was_charged_after_a_crash_stays_charged() {
        let refund = || take(Verb::Refund, 1);
        let charge = Step::Take(Verb::Charge, [48, 0]);
        let reserve = Step::Reserve([4, 0], None);
        follow("window", &[reserve, refund(), Step::Crash(0), refund(), charge, Step::Settle(0, [0, 0])]);
    }

    #[test]
    fn what_was_charged_after_a_step_back_stays_charged() {
        let steps = [
            Step::Wait(-18_669),
            Step::Take(CONSUME, [6, 0]),
            Step::Wait(334),
            Step::Reserve([3, 0], None),
            Step::Take(Verb::Refund, [7, 0]),
            Step::Take(Verb::Charge, [10, 0]),
            Step::Settle(0, [0, 0]),
        ];
        follow("each", &steps);
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    /// Over any crashes at most a block is lost for each, and nothing is granted that the model would not grant.
    #[test]
    fn no_crash_gives_anything_back(policy in prop::sample::select(&POLICIES[..]), steps in steps()) {
        follow(policy, &steps);
    }

    /// The snapshots of one answer predict the next, if no other request comes in between.
    #[test]
    fn a_snapshot_predicts_the_next_answer(
        policy in prop::sample::select(&POLICIES[..]),
        steps in steps(),
    ) {
        let policies = policies();
        let mut world = World::new(&policies, policy);
        let policy = Arc::clone(&world.policy);
        let limits: Vec<_> = policy.limits().iter().map(NamedLimit::limit).collect();
        let look = |world: &mut World| world.decided(Action::Look(Verb::Consume), vec![0; limits.len()]);
        let mut known = look(&mut world);
        for step in steps {
            let (action, verb, costs) = match step {
                Step::Take(verb, costs) => (Action::Take(verb), verb, costs),
                Step::Look(costs) => (Action::Look(Verb::Consume), Verb::Consume, costs),
                Step::Wait(ms) => {
                    world.now += ms;
                    continue;
                }
                Step::Arrive(count) => {
                    world.arrive(count);
                    continue;
                }
                Step::FlushIdle => {
                    world.flush_idle();
                    continue;
                }
                Step::Clean | Step::Crash(_) => {
                    if let Step::Crash(arrived) = step { world.crash(arrived) } else { world.clean() }
                    known = look(&mut world); // after a loss it is another bucket
                    continue;
                }
                _ => continue,
            };
            let states = known.limits.iter().zip(&limits).map(|(answer, limit)| limit.restored(&answer.snapshot).unwrap());
            let before: Vec<_> = states.collect();
            let parts = limits.iter().zip(&before).zip(costs);
            let mut parts: Vec<_> = parts.map(|((limit, state), cost)| Part::new(limit, *state, cost)).collect();
            let is_only_looked_at = decide_all(&mut parts, world.now, verb).is_allow() && matches!(action, Action::Look(_));
            known = world.decided(action, costs[..limits.len()].to_vec());
            for ((answer, part), before) in known.limits.iter().zip(&parts).zip(before) {
                let after = if is_only_looked_at { before } else { part.state };
                // Of a calendar, an answer has the window that is open.
                let is_calendar = part.limit.config().calendar.is_some();
                let shown = if is_calendar { part.limit.refilled(&after, world.now) } else { after };
                prop_assert_eq!((answer.decision, answer.snapshot), (part.decision, part.limit.snapshot(&shown)));
            }
        }
    }

    /// The runtime promises one object for a key. Even so, an older one may live on for a while, as long as it does not
    /// touch storage. Both together grant no more than one would, plus what is refilled in a covered bucket in that time: at most a block.
    #[test]
    fn two_objects_of_one_key_grant_no_more_than_one(
        policy in prop::sample::select(&["block", "budget", "window", "two"][..]),
        before in prop::collection::vec((0..9_u64, 0..200_i64), 1..40),
        arrived in 0..3_usize,
        after in prop::collection::vec((any::<bool>(), 0..9_u64, 0..200_i64), 1..60),
    ) {
        check_two_objects(policy, &before, arrived, &after);
    }
}

fn check_two_objects(policy: &str, before: &[(u64, i64)], arrived: usize, after: &[(bool, u64, i64)]) {
    let policies = policies();
    let mut world = World::new(&policies, policy);
    let count = world.policy.limits().len();
    let mut model = Model::new(&world.policy);
    for &(cost, wait_ms) in before {
        world.now += wait_ms;
        let costs = vec![cost; count];
        if world.decided(Action::Take(Verb::Consume), costs.clone()).decision().is_allow() {
            model.grant(Verb::Consume, &costs, world.now);
        }
    }
    world.arrive(arrived);
    world.in_flight.clear();
    let newer = Ledger::new(world.storage.clone(), 0);
    let mut older = Some(std::mem::replace(&mut world.ledger, newer));
    let (since, mut overlap_ms, mut lacked) = (world.now, 0, vec![0; count]);
    for &(is_older, cost, wait_ms) in after {
        world.now += wait_ms;
        let costs = vec![cost; count];
        let is_granted = match older.take_if(|_| is_older) {
            None => world.decided(Action::Take(Verb::Consume), costs.clone()).decision().is_allow(),
            Some(mut ledger) => {
                let request = ObjectRequest {
                    action: Action::Take(Verb::Consume),
                    request_id: None,
                    costs: vec![costs.clone()],
                    shadow_costs: Vec::new(),
                    known: None,
                    has_consequences: false,
                    lease: None,
                };
                let (reply, writes) =
                    ledger.ask(std::slice::from_ref(&world.policy), &request, world.now, || Some(0)).unwrap();
                let touches_storage = !writes.before_reply.is_empty() || !writes.background.is_empty();
                let ObjectReply::Decided(decided) = reply else { unreachable!() };
                // If it would touch storage, the runtime ends it, and this answer is never sent.
                if !touches_storage {
                    older = Some(ledger);
                    overlap_ms = world.now - since;
                }
                !touches_storage && decided.decision().is_allow()
            }
        };
        if is_granted {
            for (sum, lacking) in lacked.iter_mut().zip(model.grant_on_credit(&costs, world.now)) {
                *sum += lacking;
            }
        }
    }
    for (limit, lacked) in world.policy.limits().iter().zip(lacked) {
        let Config { kind, rate, period_ms, .. } = *limit.limit().config();
        let back = (rate * overlap_ms.unsigned_abs()).div_ceil(period_ms);
        let most = if kind == Kind::FixedWindow { 0 } else { back.min(limit.write_ahead()) };
        assert!(lacked <= most, "{lacked} tokens of {:?} too many, not {most}", limit.name());
    }
}
