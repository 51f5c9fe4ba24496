//! Reservations that are settled late, beside everything else that moves a budget: other versions of the policy, numbers that come with
//! each request, leases, holds, and limits in shadow.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use tollgate::ledger;
use tollgate::limit::{Carry, Config, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, EndedLease, LEASE_GRACE_MS, ObjectReply};

use crate::chance;
use crate::model::Model;
use crate::world::{DAY_MS, START, World, decided, signed, tokens};

fn policy(json: &str) -> Policy {
    Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

fn shared(json: &str) -> Arc<Policy> {
    Arc::new(policy(json))
}

fn reserve(world: &mut World, costs: &[u64]) -> Option<u64> {
    let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
    world.decided(action, costs.to_vec()).reservation.map(|reserved| reserved.id)
}

fn take(world: &mut World, verb: Verb, costs: &[u64]) -> Decided {
    world.decided(Action::Take(verb), costs.to_vec())
}

fn settle(world: &mut World, id: u64, costs: Option<Vec<u64>>) -> Decided {
    decided(world.ask(Action::Settle(id), costs, None))
}

fn cancel(world: &mut World, id: u64) -> Decided {
    decided(world.ask(Action::Cancel(id), None, None))
}

fn inline(kind: &str, rate: u64, capacity: u64) -> Arc<Policy> {
    inline_every(kind, rate, 1_000, capacity)
}

fn inline_every(kind: &str, rate: u64, period_ms: u64, capacity: u64) -> Arc<Policy> {
    inline_for(600_000, kind, rate, period_ms, capacity)
}

fn inline_for(ttl_ms: i64, kind: &str, rate: u64, period_ms: u64, capacity: u64) -> Arc<Policy> {
    let json = format!(
        r#"{{"name":"p","numbers":[{{"name":"a","kind":"{kind}","rate":{rate},"period_ms":{period_ms},"capacity":{capacity},"max_debt":0,"initial":null,"offset_ms":null}}],"write_ahead":[0],"reservation_ttl_ms":{ttl_ms},"unsettled":"refund","inline":true}}"#
    );
    Arc::new(Policy::from_definition(&json).unwrap())
}

mod found {
    use super::*;

    /// The tokens of a bucket are handed over to a window; what was taken of it must be too.
    #[test]
    fn a_cancellation_under_numbers_of_another_kind_mints_nothing() {
        let (bucket, window) = (inline("token_bucket", 0, 10), inline("fixed_window", 0, 10));
        for crashes in [false, true] {
            for cost in [None, Some(0), Some(1), Some(2), Some(3)] {
                let mut world = World::empty(&bucket);
                let id = reserve(&mut world, &[2]).unwrap();
                take(&mut world, Verb::Consume, &[7]);
                world.policy = Arc::clone(&window);
                assert_eq!(world.levels(), [1]);
                if crashes {
                    world.crash(usize::MAX);
                }
                match cost {
                    None => _ = cancel(&mut world, id),
                    Some(cost) => _ = settle(&mut world, id, Some(vec![cost])),
                }
                let left = 3 - i64::try_from(cost.unwrap_or(0)).unwrap();
                assert_eq!(world.levels(), [left], "{cost:?}");
                world.policy = Arc::clone(&bucket);
                assert_eq!(world.levels(), [left], "{cost:?}");
            }
        }
    }

    /// Tokens that no longer fit are handed over; more of them was used.
    #[test]
    fn refill_beyond_the_capacity_is_handed_over_less_the_real_cost() {
        let (small, large) = (inline("token_bucket", 1, 10), inline_every("token_bucket", 1, 5_000, 30));
        let mut world = World::empty(&small);
        let id = reserve(&mut world, &[8]).unwrap();
        world.now += 20_000;
        world.policy = Arc::clone(&large);
        assert_eq!(world.levels(), [22]);
        settle(&mut world, id, Some(vec![18]));
        assert_eq!(world.levels(), [12]);
    }

    /// It does not matter to a bucket that is full again, but to numbers with more room.
    #[test]
    fn a_bucket_handed_over_after_a_settlement_lacks_the_real_cost() {
        let (small, large) = (inline_every("token_bucket", 7, 100, 7), inline_every("token_bucket", 0, 100, 11));
        let mut world = World::empty(&small);
        let id = reserve(&mut world, &[1]).unwrap();
        world.now += 58;
        settle(&mut world, id, Some(vec![2]));
        world.policy = Arc::clone(&large);
        let left = world.levels()[0];
        assert!(left <= 9, "5 were left, and 4 came back: {left}");
    }

    /// A row with leases says how full the bucket was; how much more would have fitted is part of it.
    #[test]
    fn refills_before_a_lease_are_not_lost_in_a_crash() {
        for crashes in [false, true] {
            let json = r#"{"rate":1,"period":"1s","capacity":10,"write_ahead":0,"lease":"10s","reservation_ttl":"1m"}"#;
            let mut world = World::empty(&shared(json));
            let id = reserve(&mut world, &[5]).unwrap();
            world.now += 3_000;
            let lease = decided(world.lease(vec![2], Vec::new())).lease.unwrap();
            assert_eq!(world.levels(), [6]);
            if crashes {
                world.crash(usize::MAX);
            }
            assert_eq!(world.levels(), [6]);
            settle(&mut world, id, None);
            assert_eq!(world.levels(), [6]);
            world.lease(vec![0], vec![EndedLease { id: lease.id, spent: vec![0] }]);
            assert_eq!(world.levels(), [8]);
        }
    }

    /// Both ended long ago: the lease is spent at its end, and the reservation given back afterwards.
    #[test]
    fn a_lease_that_was_over_before_a_reservation_expired() {
        for crashes in [false, true] {
            let json = r#"{"rate":1,"period":"1s","capacity":1000,"write_ahead":0,"lease":"10s","unsettled":"refund","reservation_ttl":"30s"}"#;
            let mut world = World::empty(&shared(json));
            take(&mut world, Verb::Consume, &[400]);
            reserve(&mut world, &[100]).unwrap();
            let lease = decided(world.lease(vec![200], Vec::new())).lease.unwrap();
            assert_eq!(lease.tokens, [200]);
            if crashes {
                world.crash(usize::MAX);
            }
            world.now += 200_000;
            assert_eq!(world.levels(), [600], "1000 - 400 - 200, and 200 came back");
        }
    }

    /// The row of the idle bucket credited refills that came later than the lease was over, and did not fit before it was taken.
    #[test]
    fn refills_after_a_lease_are_not_lost_to_a_row_in_the_background() {
        let json = r#"{"rate":1,"period":"1s","capacity":7,"write_ahead":0,"lease":"4s","unsettled":"refund","reservation_ttl":"6s"}"#;
        let mut world = World::empty(&shared(json));
        let [returned, _, _] = [(); 3].map(|()| decided(world.lease(vec![1], Vec::new())).lease.unwrap());
        reserve(&mut world, &[1]).unwrap();
        world.lease(vec![0], vec![EndedLease { id: returned.id, spent: vec![1] }]);
        world.flush_idle();
        world.now += 17_000; // the leases were over at 13 s
        world.flush_idle();
        assert_eq!(world.levels(), [7], "7 - 2 at 13 s, and 4 came back");
    }

    #[test]
    fn a_rolled_back_version_loses_no_refills_to_a_settlement() {
        for crashes in [false, true] {
            let version =
                |rate: u32| policy(&format!(r#"{{"rate":{rate},"period":"1s","capacity":100,"write_ahead":0}}"#));
            let old = Arc::new(version(1).in_force_since(START - 10));
            let new = Arc::new(version(3).in_force_since(START - 5));
            let mut world = World { as_of: Some(START - 5), ..World::empty(&new) };
            let id = reserve(&mut world, &[50]).unwrap();
            take(&mut world, Verb::Consume, &[50]);
            world.now += 20_000;
            if crashes {
                world.crash(usize::MAX);
            }
            world.policy = Arc::clone(&old);
            world.as_of = Some(world.now);
            assert_eq!(world.levels(), [20], "the lower of both");
            settle(&mut world, id, None);
            assert_eq!(world.levels(), [20]);
        }
    }

    /// A limit that only the older version has begins no earlier than the bucket's last request, not before all time.
    #[test]
    fn a_limit_that_a_rollback_brings_back_begins_no_earlier_than_its_bucket() {
        let limit =
            |name: &str| format!(r#"{{"name":"{name}","rate":1,"period":"1s","capacity":100,"write_ahead":0}}"#);
        let version = |limits: &[String]| policy(&format!(r#"{{"limits":[{}]}}"#, limits.join(",")));
        let old = Arc::new(version(&[limit("a"), limit("b")]).in_force_since(START - 10));
        let new = Arc::new(version(&[limit("a")]).in_force_since(START - 5));
        let mut world = World { as_of: Some(START - 5), ..World::empty(&new) };
        take(&mut world, Verb::Consume, &[50]);
        world.now += 20_000;
        world.policy = Arc::clone(&old);
        world.as_of = Some(world.now);
        let decided = take(&mut world, Verb::Consume, &[1, 1]);
        let levels: Vec<_> = decided.limits.iter().map(|limit| (limit.remaining, limit.snapshot.at)).collect();
        assert_eq!(levels, [(69, world.now), (99, world.now)]);
        // Even if nothing is taken.
        let mut other = World { as_of: Some(START - 5), ..World::empty(&new) };
        take(&mut other, Verb::Consume, &[50]);
        other.now += 20_000;
        (other.policy, other.as_of) = (Arc::clone(&old), Some(other.now));
        let looked = take(&mut other, Verb::Refund, &[0, 0]);
        assert!(looked.limits.iter().all(|limit| limit.snapshot.at >= START), "{looked:?}");
    }

    /// Settled at its own cost under the old version, which had been replaced before.
    #[test]
    fn a_bucket_is_carried_over_after_the_latest_settlement_under_the_old_version() {
        for crashes in [false, true] {
            let version =
                |rate: u32| policy(&format!(r#"{{"rate":{rate},"period":"1s","capacity":1000,"write_ahead":0}}"#));
            let old = Arc::new(version(10).in_force_since(START - 10));
            let new = Arc::new(version(0).succeeding(&old, START + 1_000, Carry::AsIs));
            let mut world = World { as_of: Some(START - 10), ..World::empty(&old) };
            let [one, other] = [1, 500].map(|cost| reserve(&mut world, &[cost]).unwrap());
            world.now += 40_000;
            settle(&mut world, one, None);
            if crashes {
                world.crash(usize::MAX);
            }
            world.policy = Arc::clone(&new);
            world.as_of = Some(START + 1_000);
            world.now += 1_000;
            let before = world.levels();
            settle(&mut world, other, None);
            assert_eq!(world.levels(), before);
        }
    }

    #[test]
    fn a_bucket_that_followed_the_clock_back_loses_nothing_to_a_settlement() {
        let json = r#"{"rate":1,"period":"1s","capacity":1000,"write_ahead":0}"#;
        let mut world = World::empty(&shared(json));
        let id = reserve(&mut world, &[100]).unwrap();
        take(&mut world, Verb::Consume, &[900]);
        world.now -= 100_000;
        assert_eq!(tokens(&take(&mut world, Verb::Consume, &[1]).limits[0]), 0);
        world.now += 50_000;
        assert_eq!(world.levels(), [50]);
        settle(&mut world, id, None);
        assert_eq!(world.levels(), [50]);
    }

    /// The limit in shadow is another one by then.
    #[test]
    fn a_settled_reservation_leaves_nothing_behind_in_shadow() {
        let version = |shadow: &str| {
            shared(&format!(
                r#"{{"limits":[{{"name":"a","rate":0,"period":"1s","capacity":1000,"write_ahead":0}}{shadow}]}}"#
            ))
        };
        let limit = |name: &str| {
            format!(r#",{{"name":"{name}","mode":"shadow","rate":0,"period":"1s","capacity":1000,"write_ahead":0}}"#)
        };
        let one = version(&limit("s"));
        for (other, costs) in [(version(&limit("t")), Some(vec![1])), (version(""), None)] {
            let mut world = World::empty(&one);
            let mut lens = Vec::new();
            for _ in 0..9 {
                world.policy = Arc::clone(&one);
                let action = Action::Reserve(Verb::Reserve { max_wait_ms: None });
                let reply = world.ask_shadow(action, Some(vec![1]), Some(vec![1]), None);
                let id = decided(reply).reservation.unwrap().id;
                world.policy = Arc::clone(&other);
                decided(world.ask_shadow(Action::Settle(id), Some(vec![1]), costs.clone(), None));
                world.policy = Arc::clone(&one);
                decided(world.ask_shadow(Action::Take(Verb::Consume), Some(vec![0]), Some(vec![1]), None));
                world.flush_idle();
                world.arrive(usize::MAX);
                lens.push(world.storage["b:p~shadow"].len());
            }
            assert!(lens.iter().all(|len| len <= &lens[0]), "{lens:?}");
        }
    }

    /// The accounts of both have lacked it.
    #[test]
    fn a_reservation_is_settled_in_limits_of_either_kind() {
        let limit = |kind: &str| {
            shared(&format!(
                r#"{{"limits":[{{"name":"a","kind":"{kind}","rate":1,"period":"1day","capacity":20,"write_ahead":0}}]}}"#
            ))
        };
        let (bucket, window) = (limit("token_bucket"), limit("fixed_window"));
        for crashes in [false, true] {
            for (cost, left) in [(Some(0), 13), (Some(2), 11), (Some(5), 8), (Some(9), 4), (Some(99), 0), (None, 13)] {
                let mut world = World::empty(&window);
                take(&mut world, Verb::Consume, &[7]);
                world.policy = Arc::clone(&bucket);
                let id = reserve(&mut world, &[5]).unwrap();
                world.policy = Arc::clone(&window);
                if crashes {
                    world.crash(usize::MAX);
                }
                match cost {
                    None => _ = cancel(&mut world, id),
                    Some(cost) => _ = settle(&mut world, id, Some(vec![cost])),
                }
                assert_eq!(world.levels(), [left], "{cost:?}");
                world.policy = Arc::clone(&bucket);
                assert_eq!(world.levels(), [left], "{cost:?}");
            }
        }
    }
}

/// The numbers of a limit, in drops: of a window, a token is one.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    drops_per_token: i128,
    refill: i128,
    tick_ms: i64,
    full: i128,
    debt: i128,
}

impl Numbers {
    fn of(policy: &Policy) -> Self {
        let named = &policy.limits()[0];
        Self::new(*named.limit().config())
    }

    fn new(config: Config) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, .. } = config;
        let (mut gcd, mut rest) = (period_ms, rate);
        while rest > 0 {
            (gcd, rest) = (rest, gcd % rest);
        }
        let (token, refill, tick_ms) = match kind {
            tollgate::limit::Kind::TokenBucket => (period_ms / gcd, rate / gcd, 1),
            tollgate::limit::Kind::FixedWindow | tollgate::limit::Kind::FirstUseWindow => {
                (1, rate, period_ms.cast_signed())
            }
            _ => unreachable!("a new kind"),
        };
        let drops = |tokens: u64| i128::from(tokens) * i128::from(token);
        Self {
            drops_per_token: token.into(),
            refill: refill.into(),
            tick_ms,
            full: drops(capacity),
            debt: drops(max_debt),
        }
    }

    /// The windows of these tests begin at multiples of their period.
    fn refill(&self, from: i64, to: i64) -> i128 {
        i128::from((to.div_euclid(self.tick_ms) - from.div_euclid(self.tick_ms)).max(0)) * self.refill
    }

    fn drops(&self, tokens: u64) -> i128 {
        i128::from(tokens) * self.drops_per_token
    }
}

/// One limit, with its whole history.
#[derive(Clone, Debug)]
struct Budget {
    begun: (Numbers, i64),
    events: Vec<(i64, Event)>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Taken { drops: i128, id: u64 },
    Refunded(i128),
    Reset,
    Carried(Numbers, Carry),
}

impl Budget {
    fn level(&self, now: i64) -> i128 {
        let (mut numbers, mut last) = self.begun;
        let mut level = numbers.full;
        for &(at, event) in &self.events {
            level = (level + numbers.refill(last, at)).min(numbers.full);
            last = at;
            match event {
                Event::Taken { drops, .. } => level -= drops,
                Event::Refunded(drops) => level = (level + drops).min(numbers.full),
                Event::Reset => level = numbers.full,
                Event::Carried(next, how) => {
                    assert_eq!(next.drops_per_token, numbers.drops_per_token);
                    level = match how {
                        Carry::AsIs => level,
                        Carry::Additive => level + (next.full - numbers.full),
                        _ => panic!("not exact"),
                    };
                    level = level.min(next.full);
                    numbers = next;
                }
            }
        }
        (level + numbers.refill(last, now)).min(numbers.full)
    }

    fn take(&mut self, at: i64, drops: i128, id: u64) {
        self.events.push((at, Event::Taken { drops, id }));
    }

    fn settle(&mut self, of: u64, cost: i128) {
        for (_, event) in &mut self.events {
            if let Event::Taken { drops, id } = event
                && *id == of
            {
                *drops = cost;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(Verb, u64),
    Reserve(u64, Option<u64>),
    Extend(usize, u64),
    Settle(usize, Option<u64>),
    Cancel(usize),
    Lease(u64),
    Return(usize, u64),
    Hold(u64),
    Commit(usize),
    Abort(usize),
    Change(usize, Carry),
    /// Without a request, and none before the next step.
    ChangeUnseen(usize, Carry),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

#[derive(Clone)]
struct Reserved {
    id: u64,
    expires_at: i64,
    /// What it has taken, first and by each raise, under the test's own ids.
    pieces: Vec<(u64, u64)>,
}

struct Held {
    id: u64,
    until: i64,
    tokens: u64,
}

/// The ledger beside the oracle.
struct Pair {
    world: World,
    versions: Vec<String>,
    budget: Option<Budget>,
    open: Vec<Reserved>,
    /// Expired reservations that may be closed late.
    ended: Vec<Reserved>,
    raises: u64,
    leases: Vec<Held>,
    holds: Vec<Held>,
    committed: Vec<(u64, i64, u64)>,
    /// What crashes may have lost, in drops; `None` for any.
    lost: Option<i128>,
    is_refunded: bool,
    /// The largest capacity of all numbers so far, in drops.
    fullest: i128,
}

impl Pair {
    fn new(versions: Vec<String>) -> Self {
        let first = Arc::new(policy(&versions[0]).in_force_since(START - DAY_MS));
        let fullest = Numbers::of(&first).full;
        let is_refunded = versions[0].contains("refund");
        let world = World { as_of: Some(START - DAY_MS), ..World::empty(&first) };
        let (open, ended) = (Vec::new(), Vec::new());
        let (leases, holds, committed) = (Vec::new(), Vec::new(), Vec::new());
        let (budget, lost, raises) = (None, Some(0), 1 << 60);
        Self { world, versions, budget, open, ended, raises, leases, holds, committed, lost, is_refunded, fullest }
    }

    fn numbers(&self) -> Numbers {
        Numbers::of(&self.world.policy)
    }

    /// The state that any request finds.
    fn budget(&mut self) -> &mut Budget {
        let now = self.world.now;
        if self.budget.is_none() {
            self.budget = Some(Budget { begun: (self.numbers(), now), events: Vec::new() });
        }
        let budget = self.budget.as_mut().unwrap();
        let mut over: Vec<_> = self.leases.extract_if(.., |lease| lease.until <= now).collect();
        over.sort_by_key(|lease| lease.until);
        for Held { until, tokens, .. } in over {
            let drops = Numbers::of(&self.world.policy).drops(tokens);
            // No request came in between.
            let at = budget.events.partition_point(|(at, _)| *at <= until);
            budget.events.insert(at, (until, Event::Taken { drops, id: 0 }));
        }
        for mut expired in self.open.extract_if(.., |open| open.expires_at <= now) {
            for (id, tokens) in expired.pieces.iter_mut().filter(|_| self.is_refunded) {
                budget.settle(*id, 0);
                *tokens = 0;
            }
            self.ended.push(expired);
        }
        self.ended.retain(|ended| now < ended.expires_at.saturating_add_unsigned(ledger::LATE_SETTLEMENT_MS));
        self.holds.retain(|hold| hold.until > now);
        budget
    }

    fn withheld(&self) -> i128 {
        let tokens = self.leases.iter().chain(&self.holds).map(|held| held.tokens).sum();
        self.numbers().drops(tokens)
    }

    fn shown(&self, decided: &Decided) -> i128 {
        let (numbers, answer) = (self.numbers(), &decided.limits[0]);
        let level = i128::from(answer.snapshot.tokens) * numbers.drops_per_token + i128::from(answer.snapshot.drops);
        (level + numbers.refill(answer.snapshot.at, self.world.now)).min(numbers.full)
    }

    fn compare(&mut self, decided: &Decided, step: &Step) {
        let now = self.world.now;
        let level = self.budget().level(now);
        let withheld = self.withheld();
        let expected = level - withheld;
        let shown = self.shown(decided);
        let lost = expected - shown;
        assert!(
            lost >= 0 && self.lost.is_none_or(|most| lost <= most),
            "{step:?} after {} ms left {shown} drops, not {expected}; {withheld} withheld; {:?}",
            now - START,
            self.budget,
        );
    }

    fn look(&mut self, step: &Step) {
        let decided = self.world.decided(Action::Look(Verb::Refund), vec![0]);
        self.compare(&decided, step);
    }

    fn level(&mut self) -> i128 {
        let decided = self.world.decided(Action::Look(Verb::Refund), vec![0]);
        self.budget();
        self.shown(&decided) + self.withheld()
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each step")]
    fn take(&mut self, step: &Step) {
        let (now, numbers) = (self.world.now, self.numbers());
        if self.budget.is_none() && !matches!(step, Step::Wait(_) | Step::Change(..) | Step::ChangeUnseen(..)) {
            self.world.levels(); // it begins with a request
            self.budget();
        }
        match *step {
            Step::Take(verb, cost) => {
                let before = self.level();
                let decided = take(&mut self.world, verb, &[cost]);
                let moved = numbers.drops(tokens(&decided.limits[0]));
                let budget = self.budget();
                match verb {
                    _ if !decided.decision().is_allow() => {}
                    Verb::Refund => budget.events.push((now, Event::Refunded(numbers.drops(cost)))),
                    Verb::Reset => budget.events.push((now, Event::Reset)),
                    Verb::Charge => {
                        let after = (before - numbers.drops(cost)).max(before.min(-numbers.debt));
                        budget.take(now, before - after, 0);
                    }
                    _ => budget.take(now, moved, 0),
                }
                self.compare(&decided, step);
            }
            Step::Reserve(cost, max_wait_ms) => {
                self.budget();
                let decided = self.world.decided(Action::Reserve(Verb::Reserve { max_wait_ms }), vec![cost]);
                if let Some(reserved) = decided.reservation {
                    self.budget().take(now, numbers.drops(cost), reserved.id);
                    let pieces = vec![(reserved.id, cost)];
                    self.open.push(Reserved { id: reserved.id, expires_at: reserved.expires_at, pieces });
                }
                self.compare(&decided, step);
            }
            Step::Extend(which, cost) => {
                self.budget();
                let Some(index) = which.checked_rem(self.open.len()) else { return };
                let action = Action::Extend(self.open[index].id);
                let decided = self.world.decided(action, vec![cost]);
                if decided.decision().is_allow() {
                    self.open[index].expires_at = decided.reservation.unwrap().expires_at;
                    if cost > 0 {
                        self.raises += 1;
                        self.open[index].pieces.push((self.raises, cost));
                        let id = self.raises;
                        self.budget().take(now, numbers.drops(cost), id);
                    }
                }
                self.compare(&decided, step);
            }
            Step::Settle(which, cost) => self.settle(step, which, cost),
            Step::Cancel(which) => {
                self.budget();
                let Some((closed, is_late)) = self.closed(which) else { return };
                self.cancel(step, &closed, is_late);
            }
            Step::Lease(wanted) => {
                self.budget();
                let decided = decided(self.world.lease(vec![wanted], Vec::new()));
                if let Some(lease) = decided.lease {
                    let until = lease.until + LEASE_GRACE_MS.cast_signed();
                    self.leases.push(Held { id: lease.id, until, tokens: lease.tokens[0] });
                }
            }
            Step::Return(which, spent) => {
                self.budget();
                let Some(index) = which.checked_rem(self.leases.len()) else { return };
                let Held { id, tokens, .. } = self.leases.remove(index);
                let spent = spent.min(tokens);
                self.world.lease(vec![0], vec![EndedLease { id, spent: vec![spent] }]);
                self.budget().take(now, numbers.drops(spent), 0);
            }
            Step::Hold(cost) => {
                self.budget();
                let decided = self.world.decided(Action::Hold(0), vec![cost]);
                if let Some(reserved) = decided.reservation {
                    self.holds.push(Held { id: reserved.id, until: reserved.expires_at, tokens: cost });
                }
            }
            Step::Commit(which) => {
                self.budget();
                let Some(index) = which.checked_rem(self.holds.len()) else { return };
                let Held { id, tokens, .. } = self.holds.remove(index);
                let decided = settle(&mut self.world, id, None);
                self.budget().take(now, numbers.drops(tokens), id);
                self.committed.push((id, now, tokens));
                self.compare(&decided, step);
            }
            Step::Abort(which) => {
                self.budget();
                if let Some((id, ..)) = self.committed.pop().filter(|(_, at, _)| now - at < 5_000) {
                    cancel(&mut self.world, id);
                    self.budget().settle(id, 0);
                } else if let Some(index) = which.checked_rem(self.holds.len()) {
                    let Held { id, .. } = self.holds.remove(index);
                    cancel(&mut self.world, id);
                }
            }
            Step::Change(version, how) => {
                self.change(version, how);
                self.look(step);
            }
            Step::ChangeUnseen(version, how) => return self.change(version, how),
            Step::Wait(ms) => {
                self.world.now += ms;
                return;
            }
            Step::Arrive(count) => self.world.arrive(count),
            Step::FlushIdle => self.world.flush_idle(),
            Step::Clean => {
                self.look(step);
                self.world.clean();
                self.forget();
            }
            Step::Crash(arrived) => {
                self.look(step);
                self.world.crash(arrived);
                // A returned lease may be open again, but a hold is not.
                if !self.leases.is_empty() || !self.versions[0].contains("\"write_ahead\":0") || self.has_leased() {
                    self.lost = None;
                }
                (self.holds, self.committed) = (Vec::new(), Vec::new());
                self.forget();
                if self.lost.is_none() {
                    return;
                }
            }
        }
        self.look(step);
    }

    fn has_leased(&self) -> bool {
        self.versions[0].contains("lease")
    }

    fn forget(&mut self) {
        if !self.world.has_row() {
            self.budget = None;
            assert!(self.open.is_empty() && self.ended.is_empty());
        }
    }

    /// One that is open or has expired, to be closed, and whether it has expired.
    fn closed(&mut self, which: usize) -> Option<(Reserved, bool)> {
        let index = which.checked_rem(self.open.len() + self.ended.len())?;
        let late = index.checked_sub(self.open.len());
        let closed = late.map_or_else(|| self.open.remove(index), |index| self.ended.remove(index));
        Some((closed, late.is_some()))
    }

    fn cancel(&mut self, step: &Step, closed: &Reserved, is_late: bool) {
        let decided = cancel(&mut self.world, closed.id);
        assert_eq!(decided.is_late, is_late);
        for (id, _) in &closed.pieces {
            self.budget().settle(*id, 0);
        }
        self.compare(&decided, step);
    }

    fn settle(&mut self, step: &Step, which: usize, cost: Option<u64>) {
        let (now, numbers) = (self.world.now, self.numbers());
        self.budget();
        let before = self.level();
        let Some((closed, is_late)) = self.closed(which) else { return };
        let is_returned = is_late && self.is_refunded;
        if is_returned && closed.pieces.len() > 1 {
            // Of which of them an excess is booked is not known here: tests/ledger/late.rs does.
            return self.cancel(step, &closed, is_late);
        }
        // Without a cost it costs the reserved amount, which is unknown here after giving back.
        let cost = cost.or(is_returned.then_some(5));
        let decided = settle(&mut self.world, closed.id, cost.map(|cost| vec![cost]));
        assert_eq!(decided.is_late, is_late);
        let reserved = closed.pieces.iter().map(|(_, tokens)| tokens).sum();
        let (cost, booked) = (cost.unwrap_or(reserved), tokens(&decided.limits[0]));
        assert!((cost.min(reserved)..=cost).contains(&booked), "{booked} of {cost}");
        let withheld = self.withheld();
        let floor = (before - withheld).min(-numbers.debt);
        // The newest gives back first, and takes any additional tokens.
        let (newest, older) = closed.pieces.split_last().unwrap();
        let budget = self.budget();
        let mut rest = booked;
        for (id, tokens) in older {
            let kept = rest.min(*tokens);
            budget.settle(*id, numbers.drops(kept));
            rest -= kept;
        }
        budget.settle(newest.0, numbers.drops(rest));
        if booked < cost {
            let mut more = budget.clone();
            more.settle(newest.0, numbers.drops(rest + 1));
            let is_exact = self.lost == Some(0);
            assert!(!is_exact || more.level(now) - withheld < floor, "{booked} of {cost} booked at {step:?}");
        }
        self.compare(&decided, step);
        if booked > reserved {
            let shown = self.shown(&decided);
            assert!(shown >= floor, "{step:?} left {shown}, below {floor}");
        }
    }

    fn change(&mut self, version: usize, how: Carry) {
        let latest = Arc::clone(&self.world.policy);
        let since = self.world.now.max(latest.timeline().since() + 1);
        let next = policy(&self.versions[version % self.versions.len()]);
        // Upwards only: fewer tokens are never owed, and earlier numbers go on with their own account. tests/ledger/plans.rs has laws for both.
        if how == Carry::Additive && Numbers::of(&next).full <= self.fullest {
            return;
        }
        self.fullest = self.fullest.max(Numbers::of(&next).full);
        self.world.now = since;
        if self.budget.is_some() {
            self.budget();
        }
        let next = next.succeeding(&latest, since, how);
        let old = self.numbers();
        self.world.policy = Arc::new(next);
        self.world.as_of = Some(since);
        let numbers = self.numbers();
        if let Some(budget) = &mut self.budget
            && (old.full, old.refill, old.debt) != (numbers.full, numbers.refill, numbers.debt)
        {
            budget.events.push((since, Event::Carried(numbers, how)));
        }
    }
}

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..4_u64, 3 => 0..13_u64, 1 => 0..45_u64]
}

fn usual() -> impl Strategy<Value = Step> {
    let wait = || prop_oneof![2 => 0..400_i64, 3 => 0..6_000_i64, 1 => 0..30_000_i64];
    let max_wait = prop_oneof![Just(Some(0)), (0..5_000_u64).prop_map(Some)];
    prop_oneof![
        6 => cost().prop_map(|cost| Step::Take(Verb::Consume, cost)),
        1 => cost().prop_map(|cost| Step::Take(Verb::ConsumeUpTo, cost)),
        1 => cost().prop_map(|cost| Step::Take(Verb::Charge, cost)),
        1 => cost().prop_map(|cost| Step::Take(Verb::Refund, cost)),
        1 => Just(Step::Take(Verb::Reset, 0)),
        6 => (cost(), max_wait).prop_map(|(cost, wait)| Step::Reserve(cost, wait)),
        2 => (0..8_usize, cost()).prop_map(|(which, cost)| Step::Extend(which, cost)),
        5 => (0..8_usize, prop::option::weighted(0.8, cost())).prop_map(|(which, cost)| Step::Settle(which, cost)),
        3 => (0..8_usize).prop_map(Step::Cancel),
        8 => wait().prop_map(Step::Wait),
        1 => (0..4_usize).prop_map(Step::Arrive),
        1 => Just(Step::FlushIdle),
        1 => Just(Step::Clean),
        2 => (0..4_usize).prop_map(Step::Crash),
    ]
}

fn with_changes() -> impl Strategy<Value = Step> {
    let how = || prop::sample::select(vec![Carry::AsIs, Carry::Additive]);
    prop_oneof![
        8 => usual(),
        1 => (0..6_usize, how()).prop_map(|(version, how)| Step::Change(version, how)),
        1 => (0..6_usize, how()).prop_map(|(version, how)| Step::ChangeUnseen(version, how)),
    ]
}

fn with_leases() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => usual(),
        2 => cost().prop_map(Step::Lease),
        1 => (0..8_usize, cost()).prop_map(|(which, spent)| Step::Return(which, spent)),
    ]
}

fn with_holds() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => usual(),
        2 => cost().prop_map(Step::Hold),
        1 => (0..8_usize).prop_map(Step::Commit),
        1 => (0..8_usize).prop_map(Step::Abort),
    ]
}

/// Buckets with as many drops to a token, or windows of one period.
fn versions() -> impl Strategy<Value = Vec<String>> {
    let limit = |(rate, capacity, debt): (u64, u64, u64)| (rate, capacity, debt);
    let one =
        (prop::sample::select(vec![1_u64, 3, 7, 9]), 5..40_u64, prop_oneof![Just(0_u64), 0..9_u64]).prop_map(limit);
    let terms = prop::sample::select(vec![
        r#","unsettled":"refund","reservation_ttl":"6s""#,
        r#","unsettled":"keep","reservation_ttl":"9s""#,
        r#","unsettled":"refund","reservation_ttl":"1day""#,
    ]);
    (prop::collection::vec(one, 1..5), any::<bool>(), terms).prop_map(|(all, is_window, terms)| {
        let json = |&(rate, capacity, debt): &(u64, u64, u64)| {
            let kind = if is_window {
                r#""kind":"fixed_window","offset":"0s","period":"5s""#
            } else {
                r#""kind":"token_bucket","period":"1s""#
            };
            let capacity = if is_window { capacity.max(rate) } else { capacity };
            format!(r#"{{"rate":{rate},{kind},"capacity":{capacity},"max_debt":{debt},"write_ahead":0{terms}}}"#)
        };
        all.iter().map(json).collect()
    })
}

fn play(versions: Vec<String>, steps: &[Step]) {
    let mut pair = Pair::new(versions);
    for step in steps {
        pair.take(step);
    }
    pair.look(&Step::Wait(0));
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn a_settlement_after_changes_of_numbers_is_as_if_the_real_cost_had_been_taken_before_them(
        versions in versions(),
        steps in prop::collection::vec(with_changes(), 1..50),
    ) {
        play(versions, &steps);
    }

    #[test]
    fn a_settlement_beside_leases_is_as_if_the_real_cost_had_been_taken_before(
        versions in versions(),
        steps in prop::collection::vec(with_leases(), 1..50),
    ) {
        let leased = versions.iter().take(1).map(|json| json.replacen('{', r#"{"lease":"4s","#, 1)).collect();
        play(leased, &steps);
    }

    #[test]
    fn a_settlement_beside_holds_is_as_if_the_real_cost_had_been_taken_before(
        versions in versions(),
        steps in prop::collection::vec(with_holds(), 1..50),
    ) {
        play(versions.into_iter().take(1).collect(), &steps);
    }
}

#[derive(Clone, Debug)]
enum Ask {
    Take(usize, Verb, u64),
    Look(usize),
    Reserve(usize, u64),
    /// One of the open reservations, under these numbers.
    Settle(usize, usize, Option<u64>),
    Cancel(usize, usize),
    Wait(i64),
    FlushIdle,
    Clean,
    Crash(usize),
}

fn ask() -> impl Strategy<Value = Ask> {
    let which = || 0..8_usize;
    prop_oneof![
        6 => (which(), cost()).prop_map(|(which, cost)| Ask::Take(which, Verb::Consume, cost)),
        2 => (which(), 1..99_u64).prop_map(|(which, cost)| Ask::Take(which, Verb::ConsumeUpTo, cost)),
        2 => which().prop_map(Ask::Look),
        5 => (which(), cost()).prop_map(|(which, cost)| Ask::Reserve(which, cost)),
        4 => (which(), which(), prop::option::weighted(0.8, cost())).prop_map(|(a, b, cost)| Ask::Settle(a, b, cost)),
        2 => (which(), which()).prop_map(|(a, b)| Ask::Cancel(a, b)),
        4 => prop_oneof![0..20_i64, 0..400_i64, 0..8_000_i64].prop_map(Ask::Wait),
        1 => Just(Ask::FlushIdle),
        1 => Just(Ask::Clean),
        2 => (0..3_usize).prop_map(Ask::Crash),
    ]
}

/// Whether it is a window, its rate, its period, and its capacity.
fn plan() -> impl Strategy<Value = (bool, u64, u64, u64)> {
    let small = || prop_oneof![2 => 0..12_u64, 1 => 0..50_u64];
    (prop::bool::weighted(0.25), small(), prop::sample::select(vec![100_u64, 300, 1_000, 2_500]), small())
}

fn play_inline(plans: &[(bool, u64, u64, u64)], ttl_ms: i64, steps: &[Ask]) {
    let kind = |is_window| if is_window { "fixed_window" } else { "token_bucket" };
    let policies: Vec<_> = plans
        .iter()
        .map(|&(is_window, rate, period, capacity)| inline_for(ttl_ms, kind(is_window), rate, period, capacity))
        .collect();
    let most = |which: usize, from: i64, to: i64| {
        let (is_window, rate, period, capacity) = plans[which];
        let period = period.cast_signed();
        let times = if is_window { to / period - from / period } else { 0 }.cast_unsigned();
        capacity + if is_window { rate * times } else { rate * (to - from).cast_unsigned() / period.cast_unsigned() }
    };
    let mut world = World::empty(&policies[0]);
    let mut seen: Vec<usize> = Vec::new();
    let mut spent: Vec<(i64, u64, u64)> = Vec::new();
    let mut open: Vec<(u64, i64)> = Vec::new();
    for step in steps {
        let now = world.now;
        for (id, _) in open.extract_if(.., |open| open.1 <= now) {
            spent.retain(|(.., of)| *of != id);
        }
        let known = spent.len();
        let at = |which: usize| which % plans.len();
        if let Ask::Take(which, ..)
        | Ask::Look(which)
        | Ask::Reserve(which, _)
        | Ask::Settle(which, ..)
        | Ask::Cancel(which, _) = *step
        {
            world.policy = Arc::clone(&policies[at(which)]);
            seen.push(at(which));
        }
        match *step {
            Ask::Take(_, verb, cost) => {
                let decided = take(&mut world, verb, &[cost]);
                spent.push((now, tokens(&decided.limits[0]), 0));
            }
            Ask::Look(_) => _ = world.levels(),
            Ask::Reserve(_, cost) => {
                if let Some(id) = reserve(&mut world, &[cost]) {
                    spent.push((now, cost, id));
                    open.push((id, now + ttl_ms));
                }
            }
            Ask::Settle(_, which, cost) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, _) = open.remove(index);
                let booked = tokens(&settle(&mut world, id, cost.map(|cost| vec![cost])).limits[0]);
                spent.iter_mut().filter(|(.., of)| *of == id).for_each(|(_, tokens, _)| *tokens = booked);
            }
            Ask::Cancel(_, which) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, _) = open.remove(index);
                cancel(&mut world, id);
                spent.retain(|(.., of)| *of != id);
            }
            Ask::Wait(ms) => world.now += ms,
            Ask::FlushIdle => world.flush_idle(),
            Ask::Clean => {
                world.clean();
                if !world.has_row() {
                    (spent, seen) = (Vec::new(), Vec::new());
                }
            }
            Ask::Crash(arrived) => world.crash(arrived),
        }
        // An excess over the reserved amount is not a grant, and later grants make up for it.
        let is_grant = matches!(step, Ask::Take(..) | Ask::Reserve(_, 1..));
        if !is_grant || spent.len() == known || spent.last().is_none_or(|(_, tokens, _)| *tokens == 0) {
            continue;
        }
        let mut sum = 0;
        for (from, tokens, _) in spent.iter().rev() {
            sum += tokens;
            let bound = seen.iter().map(|&which| most(which, *from, now)).max().unwrap_or(0);
            assert!(
                sum <= bound || *tokens == 0,
                "{sum} of {bound} from {} to {}, after {step:?}: {spent:?}",
                from - START,
                now - START
            );
        }
    }
}

/// Versions of one policy, as they may meet in one object while a deployment spreads.
/// Not of two kinds: a limit of one is charged for what the other grants, and not the model.
fn pairs() -> [[Arc<Policy>; 2]; 6] {
    let limit = |name: &str, rate: u32, capacity: u32, write_ahead: u32| {
        format!(r#"{{"name":"{name}","rate":{rate},"period":"1s","capacity":{capacity},"write_ahead":{write_ahead}}}"#)
    };
    let window = |name: &str, rate: u32| {
        format!(
            r#"{{"name":"{name}","kind":"fixed_window","rate":{rate},"period":"5s","offset":"0s","write_ahead":3}}"#
        )
    };
    let list = |limits: &[String]| {
        format!(r#"{{"limits":[{}],"unsettled":"refund","reservation_ttl":"1m"}}"#, limits.join(","))
    };
    let pair = |one: &[String], other: &[String]| [shared(&list(one)), shared(&list(other))];
    [
        pair(&[limit("a", 3, 20, 4)], &[limit("a", 10, 40, 8)]),
        pair(&[limit("a", 7, 20, 0)], &[limit("a", 3, 50, 5)]),
        pair(&[limit("a", 7, 20, 8)], &[limit("a", 7, 20, 2)]),
        pair(&[limit("a", 7, 20, 4)], &[limit("a", 7, 20, 4), window("b", 30)]),
        pair(&[limit("a", 7, 20, 4), limit("b", 2, 30, 3)], &[limit("b", 3, 20, 3), window("c", 25)]),
        pair(&[limit("a", 1, 20, 0)], &[limit("b", 1, 20, 0)]),
    ]
}

type Key = (Option<String>, bool);

fn key(named: &tollgate::policy::NamedLimit) -> Key {
    (named.name().map(str::to_owned), named.limit().config().kind == tollgate::limit::Kind::FixedWindow)
}

fn play_versions(versions: &[Arc<Policy>; 2], steps: &[Ask]) {
    let full = || {
        let mut all: BTreeMap<Key, Config> = BTreeMap::new();
        for named in versions.iter().flat_map(|policy| policy.limits()) {
            let config = *named.limit().config();
            let lax = all.entry(key(named)).or_insert(config);
            (lax.rate, lax.capacity) = (lax.rate.max(config.rate), lax.capacity.max(config.capacity));
        }
        let model = |config: &Config| Model::of(vec![tollgate::limit::Limit::new(config).unwrap()]);
        all.iter().map(|(key, config)| (key.clone(), model(config))).collect::<BTreeMap<_, _>>()
    };
    let mut models = full();
    let mut world = World::empty(&versions[0]);
    let mut open: Vec<(u64, i64, (Vec<Key>, u64))> = Vec::new();
    for step in steps {
        let now = world.now;
        if let Ask::Take(which, ..)
        | Ask::Look(which)
        | Ask::Reserve(which, _)
        | Ask::Settle(which, ..)
        | Ask::Cancel(which, _) = *step
        {
            world.policy = Arc::clone(&versions[which % 2]);
        }
        if !matches!(step, Ask::Wait(_) | Ask::FlushIdle | Ask::Crash(_)) {
            for (id, _, (keys, _)) in open.extract_if(.., |open| open.1 <= now) {
                for key in &keys {
                    models.get_mut(key).unwrap().settle(id, &[0]);
                }
            }
        }
        let keys: Vec<Key> = world.policy.limits().iter().map(key).collect();
        match *step {
            Ask::Take(_, verb, cost) => {
                let decided = take(&mut world, verb, &vec![cost; keys.len()]);
                if decided.decision().is_allow() {
                    for (key, answer) in keys.iter().zip(&decided.limits) {
                        models.get_mut(key).unwrap().grant(Verb::Consume, &[tokens(answer)], now);
                    }
                }
            }
            Ask::Look(_) => _ = world.levels(),
            Ask::Reserve(_, cost) => {
                if let Some(id) = reserve(&mut world, &vec![cost; keys.len()]) {
                    for key in &keys {
                        let model = models.get_mut(key).unwrap();
                        model.grant(Verb::Consume, &[cost], now);
                        model.name(id);
                    }
                    open.push((id, now + 60_000, (keys, cost)));
                }
            }
            Ask::Settle(_, which, cost) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, _, (of, reserved)) = open.remove(index);
                let decided = settle(&mut world, id, cost.map(|cost| vec![cost; keys.len()]));
                for (key, answer) in keys.iter().zip(&decided.limits) {
                    if of.contains(key) {
                        models.get_mut(key).unwrap().settle(id, &[tokens(answer)]);
                    } else if let Some(key) = of.iter().find(|other| other.0 == key.0) {
                        // At least as many, unless fewer were reserved.
                        models.get_mut(key).unwrap().settle(id, &[tokens(answer).min(reserved)]);
                    }
                }
            }
            Ask::Cancel(_, which) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, _, (of, _)) = open.remove(index);
                cancel(&mut world, id);
                for key in &of {
                    models.get_mut(key).unwrap().settle(id, &[0]);
                }
            }
            Ask::Wait(ms) => world.now += ms,
            Ask::FlushIdle => world.flush_idle(),
            Ask::Clean => {
                world.clean();
                if !world.has_row() {
                    models = full();
                }
            }
            Ask::Crash(arrived) => world.crash(arrived),
        }
        // Nor is there ever more than the laxer would have.
        if matches!(step, Ask::Settle(..) | Ask::Cancel(..)) {
            let levels = world.levels();
            for (key, level) in world.policy.limits().iter().map(key).zip(levels) {
                let lax = models[&key].levels(world.now)[0];
                assert!(level <= lax, "{level} of {lax} after {step:?}");
            }
        }
    }
    for policy in versions {
        world.policy = Arc::clone(policy);
        world.levels();
        world.now += DAY_MS;
        let full: Vec<_> = policy.limits().iter().map(|named| named.limit().config().capacity.cast_signed()).collect();
        assert_eq!(world.levels(), full);
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn numbers_that_alternate_grant_no_more_than_the_most_generous_whatever_reservations_cost(
        plans in prop::collection::vec(plan(), 1..8),
        ttl_ms in prop::sample::select(vec![3_000_i64, 600_000]),
        steps in prop::collection::vec(ask(), 1..60),
    ) {
        play_inline(&plans, ttl_ms, &steps);
    }

    #[test]
    fn versions_that_alternate_grant_no_more_than_the_laxer_whatever_reservations_cost(
        which in 0..pairs().len(),
        steps in prop::collection::vec(ask(), 1..60),
    ) {
        play_versions(&pairs()[which], &steps);
    }
}

/// As if it alone were enforced: a reservation takes its cost or nothing, and only what it has taken is settled.
fn play_shadow(versions: &[String], steps: &[Ask]) {
    let limit = |json: &str, fields: &str| json.replacen('{', &format!(r#"{{"name":"s",{fields}"#), 1);
    let terms = r#""unsettled":"refund","reservation_ttl":"6s""#;
    let alone = limit(&versions[0], "").replace(r#","unsettled":"refund","reservation_ttl":"6s""#, "");
    let tried =
        limit(&versions[0], r#""mode":"shadow","#).replace(r#","unsettled":"refund","reservation_ttl":"6s""#, "");
    let most = r#"{"name":"a","rate":1000,"period":"1s","capacity":1000000,"write_ahead":0}"#;
    let tried = shared(&format!(r#"{{"limits":[{most},{tried}],{terms}}}"#));
    let alone = shared(&format!(r#"{{"limits":[{alone}],{terms}}}"#));
    let (mut one, mut other) = (World::empty(&tried), World::empty(&alone));
    let mut open: Vec<(u64, Option<u64>, u64)> = Vec::new();
    let mut now = START;
    for step in steps {
        (one.now, other.now) = (now, now);
        match *step {
            Ask::Take(_, verb, cost) => {
                let verb = if verb == Verb::ConsumeUpTo { Verb::Charge } else { verb };
                decided(one.ask_shadow(Action::Take(verb), Some(vec![cost]), Some(vec![cost]), None));
                take(&mut other, verb, &[cost]);
            }
            Ask::Reserve(_, cost) => {
                let cost = cost.max(1);
                let action = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
                let reply = decided(one.ask_shadow(action, Some(vec![cost]), Some(vec![cost]), None));
                let of_other = reserve(&mut other, &[cost]);
                assert_eq!(reply.shadow[0].unwrap().decision.is_allow(), of_other.is_some(), "{step:?}");
                open.push((reply.reservation.unwrap().id, of_other, cost));
            }
            Ask::Settle(_, which, cost) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, of_other, _) = open.remove(index);
                let costs = cost.map(|cost| vec![cost]);
                let reply = one.ask_shadow(Action::Settle(id), costs.clone(), costs.clone(), None);
                if let Some(of_other) = of_other {
                    let expected = other.ask(Action::Settle(of_other), costs, None);
                    match (reply, expected) {
                        (ObjectReply::Decided(one), ObjectReply::Decided(other)) => {
                            assert_eq!(
                                one.shadow[0].map(|limit| tokens(&limit)),
                                Some(tokens(&other.limits[0])),
                                "{step:?}"
                            );
                        }
                        (one, other) => assert_eq!(one, other),
                    }
                }
            }
            Ask::Cancel(_, which) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, of_other, _) = open.remove(index);
                one.ask(Action::Cancel(id), None, None);
                of_other.map(|id| other.ask(Action::Cancel(id), None, None));
            }
            Ask::Wait(ms) => now += ms,
            Ask::FlushIdle => {
                one.flush_idle();
                other.flush_idle();
            }
            Ask::Crash(_) => {
                one.crash(usize::MAX);
                other.crash(usize::MAX);
            }
            Ask::Clean | Ask::Look(_) => {}
        }
        (one.now, other.now) = (now, now);
        let reply = decided(one.ask_shadow(Action::Look(Verb::Refund), Some(vec![0]), Some(vec![0]), None));
        let shown = reply.shadow[0].map(|limit| signed(limit.remaining, limit.owed));
        assert_eq!(shown, Some(other.levels()[0]), "{step:?}");
    }
}

/// The most that a key may have open.
#[test]
fn a_thousand_reservations_are_settled_in_any_order() {
    for leave in [0_u64, 1] {
        let json = r#"{"rate":1,"period":"1s","capacity":5000,"write_ahead":0,"reservation_ttl":"1day"}"#;
        let mut world = World::empty(&shared(json));
        let mut budget = Budget { begun: (Numbers::of(&world.policy), START), events: Vec::new() };
        let drops = |tokens: u64| budget_drops(tokens);
        let mut open = Vec::new();
        for index in 0..1_000_u64 {
            world.now += i64::try_from(index * 7_919 % 5_000).unwrap();
            let cost = 1 + index % 4;
            let id = reserve(&mut world, &[cost]).unwrap();
            budget.take(world.now, drops(cost), id);
            open.push(id);
        }
        let mut key = 1_u64;
        while !open.is_empty() {
            key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = open.swap_remove(usize::try_from(key >> 33).unwrap() % open.len());
            let cost = (key >> 20) % 7 * leave;
            let booked = tokens(&settle(&mut world, id, Some(vec![cost])).limits[0]);
            budget.settle(id, drops(booked));
            assert_eq!(i128::from(world.levels()[0]), budget.level(world.now).div_euclid(drops(1)));
        }
    }
}

/// One token a second is a thousand drops.
fn budget_drops(tokens: u64) -> i128 {
    i128::from(tokens) * 1_000
}

/// Steps back of the clock: if they total `S`, no more is granted beyond the bound than what is refilled in `S`.
fn play_clock(versions: &[String], steps: &[(Step, i64)]) {
    let json = versions[0].replace("\"keep\"", "\"refund\"");
    let mut world = World::empty(&shared(&json));
    let numbers = Numbers::of(&world.policy);
    // A bucket that counts every millisecond that the clock shows: its time is the sequence of all shown moments.
    let mut line = START;
    let mut budget = Budget { begun: (numbers, START), events: Vec::new() };
    let mut back = 0_i64;
    let mut open: Vec<(u64, i64, u64)> = Vec::new();
    world.levels();
    for (step, ms) in steps {
        if *ms < 0 {
            back -= ms;
        } else {
            line += ms;
        }
        world.now += ms;
        let now = world.now;
        let lax = numbers.refill(0, back)
            + if numbers.tick_ms > 1 { numbers.refill * (1 + i128::from(back / numbers.tick_ms)) } else { 0 };
        for (id, ..) in open.extract_if(.., |open| open.1 <= now) {
            budget.settle(id, 0);
        }
        match *step {
            Step::Take(verb, cost) => {
                let verb = if verb == Verb::Reset { Verb::Consume } else { verb };
                let decided = take(&mut world, verb, &[cost]);
                match verb {
                    _ if !decided.decision().is_allow() => {}
                    Verb::Refund => budget.events.push((line, Event::Refunded(numbers.drops(cost)))),
                    _ => budget.take(line, numbers.drops(tokens(&decided.limits[0])), 0),
                }
            }
            Step::Reserve(cost, _) => {
                let decided = world.decided(Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) }), vec![cost]);
                if let Some(reserved) = decided.reservation {
                    budget.take(line, numbers.drops(cost), reserved.id);
                    open.push((reserved.id, reserved.expires_at, cost));
                }
            }
            Step::Settle(which, cost) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, ..) = open.remove(index);
                let booked = tokens(&settle(&mut world, id, cost.map(|cost| vec![cost])).limits[0]);
                budget.settle(id, numbers.drops(booked));
            }
            Step::Cancel(which) => {
                let Some(index) = which.checked_rem(open.len()) else { continue };
                let (id, ..) = open.remove(index);
                cancel(&mut world, id);
                budget.settle(id, 0);
            }
            Step::Crash(arrived) => world.crash(arrived),
            _ => {}
        }
        let level = i128::from(world.levels()[0]) * numbers.drops_per_token;
        let exact = budget.level(line);
        assert!(level <= exact + lax, "{level} of {exact} and {lax} after {step:?}, {back} ms back: {budget:?}");
    }
}

proptest! {
    #![proptest_config(chance::config(3_000))]

    #[test]
    fn a_limit_in_shadow_settles_as_if_it_alone_were_enforced(
        versions in versions(),
        steps in prop::collection::vec(ask(), 1..60),
    ) {
        play_shadow(&versions[..1].iter().map(|json| {
            json.replace(r#""unsettled":"keep","reservation_ttl":"9s""#, r#""unsettled":"refund","reservation_ttl":"6s""#)
                .replace("1day", "6s")
        }).collect::<Vec<_>>(), &steps);
    }

    #[test]
    fn settlements_after_clock_steps_back_give_no_more_than_the_repeated_time_refills(
        versions in versions(),
        steps in prop::collection::vec((usual(), prop_oneof![
            8 => 0..1_i64, 4 => 0..9_000_i64, 1 => -59_000..0_i64, 1 => -200_000..0_i64
        ]), 1..60),
    ) {
        play_clock(&versions, &steps);
    }
}
