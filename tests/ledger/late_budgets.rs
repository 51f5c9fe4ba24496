//! The oracle of `late_carries.rs`: it replays the whole history of a limit, in tokens.
//!
//! A settlement moves whole tokens of the numbers that settle. So where the bucket has kept its share since, from a capacity of `old` to
//! one of `new`, it is as if `old / new` times as many had been taken less in the first place. Nothing else of the law is different: see
//! `late.rs`.
//!
//! A level is rounded down to drops when it is carried over: once for each change, however many reservations are open.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate::limit::{Carry, Config, Kind, Verb};
use tollgate::policy::{NamedLimit, Policies, Policy};
use tollgate::protocol::{Action, Decided, EndedLease, LEASE_GRACE_MS, LimitAnswer};

use crate::world::{DAY_MS, START, World, decided, tokens};

/// What floating point may add.
const NOISE: f64 = 1e-6;

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

pub(crate) fn policy(json: &str) -> Policy {
    Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

/// The numbers of a limit, in tokens.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// How many tokens come back in each tick.
    refill: f64,
    tick_ms: i64,
    /// Other numbers, even if nothing refills.
    period_ms: u64,
    full: f64,
    debt: f64,
    /// The lowest possible level.
    drop: f64,
}

#[expect(clippy::cast_precision_loss, reason = "the numbers here are small")]
impl Numbers {
    fn of(named: &NamedLimit) -> Self {
        let Config { kind, rate, period_ms, capacity, max_debt, .. } = *named.limit().config();
        let (mut gcd, mut rest) = (period_ms, rate);
        while rest > 0 {
            (gcd, rest) = (rest, gcd % rest);
        }
        let (refill, tick_ms, drop) = match kind {
            Kind::TokenBucket => (rate as f64 / period_ms as f64, 1, gcd as f64 / period_ms as f64),
            Kind::FixedWindow | Kind::FirstUseWindow => (rate as f64, period_ms.cast_signed(), 1.0),
            _ => unreachable!("a new kind"),
        };
        Self { refill, tick_ms, period_ms, full: capacity as f64, debt: max_debt as f64, drop }
    }

    /// The windows of these tests begin at multiples of their period.
    fn refill(&self, from: i64, to: i64) -> f64 {
        to.div_euclid(self.tick_ms).saturating_sub(from.div_euclid(self.tick_ms)).max(0) as f64 * self.refill
    }

    fn level(&self, answer: &LimitAnswer, now: i64) -> f64 {
        let level = answer.snapshot.tokens as f64 + answer.snapshot.drops as f64 * self.drop;
        (level + self.refill(answer.snapshot.at, now)).min(self.full)
    }
}

/// One limit, with its whole history.
#[derive(Clone, Debug)]
struct Budget {
    begun: (Numbers, i64),
    events: Vec<(i64, Event)>,
    /// How many events the bucket knows of.
    followed: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Taken {
        tokens: f64,
        id: u64,
    },
    Refunded(f64),
    Reset,
    /// With the moment at which the last open lease is over, if there is one.
    Carried(Numbers, Carry, Option<i64>),
    Leased(f64),
    /// What was spent of a lease.
    Spent(f64),
}

/// What one limit should have.
struct Standing {
    level: f64,
    /// How much of it may be lost by rounding.
    lost: f64,
    /// How much more it may have, since whole tokens are owed.
    more: f64,
    /// How many leased tokens it pays for: no more than it had when its numbers changed.
    owed: f64,
}

impl Budget {
    fn new(numbers: Numbers, at: i64) -> Self {
        Self { begun: (numbers, at), events: Vec::new(), followed: 0 }
    }

    fn numbers(&self) -> Numbers {
        let carried =
            |(_, event): &(i64, Event)| if let Event::Carried(numbers, ..) = event { Some(*numbers) } else { None };
        self.events.iter().rev().find_map(carried).unwrap_or(self.begun.0)
    }

    fn standing(&self, now: i64) -> Standing {
        let (mut numbers, mut last) = self.begun;
        let (mut level, mut rounded) = (numbers.full, 0.0);
        let (mut owed, mut more) = (f64::INFINITY, 0.0);
        for &(at, event) in &self.events {
            level = (level + numbers.refill(last, at)).min(numbers.full);
            last = at;
            match event {
                Event::Taken { tokens, .. } => level -= tokens,
                Event::Refunded(tokens) => level = (level + tokens).min(numbers.full),
                Event::Reset => (level, rounded) = (numbers.full, 0.0),
                Event::Leased(tokens) => owed += tokens,
                Event::Spent(tokens) => {
                    let paid = tokens.min(owed);
                    (level, owed) = (level - paid, owed - paid);
                }
                Event::Carried(next, how, over_at) => {
                    let factor = share(numbers, next, how);
                    level = match how {
                        Carry::AsIs | Carry::Proportional => level * factor,
                        Carry::Additive => panic!("earlier numbers keep their account"),
                        Carry::Reset => next.full,
                        _ => unreachable!("a new carry"),
                    };
                    rounded = if how == Carry::Reset { 0.0 } else { rounded * factor + next.drop };
                    level = level.min(next.full);
                    numbers = next;
                    if let Some(over_at) = over_at {
                        let left = (level + numbers.refill(at, over_at)).min(numbers.full).max(0.0).floor();
                        // A reset forgives, so it makes nothing owed again.
                        owed = if how == Carry::Reset { left.min(owed) } else { left };
                        // A level that was rounded down pays for less.
                        more += 1.0 + rounded;
                    }
                }
            }
        }
        Standing { level: (level + numbers.refill(last, now)).min(numbers.full), lost: rounded, more, owed }
    }

    fn take(&mut self, at: i64, tokens: f64, id: u64) {
        self.events.push((at, Event::Taken { tokens, id }));
    }

    /// The reservation finally cost this many tokens less, by the numbers before the changes from `until` on, or else before those that the
    /// bucket has not followed.
    fn give_back(&mut self, of: u64, back: f64, until: Option<i64>) {
        let Some(index) =
            self.events.iter().position(|(_, event)| matches!(event, Event::Taken { id, .. } if *id == of))
        else {
            return;
        };
        let mut numbers = self.begun.0;
        let mut factor = 1.0;
        for (at, (moment, event)) in self.events.iter().enumerate() {
            if let Event::Carried(next, how, _) = *event
                && until.map_or(at < self.followed, |until| *moment < until)
            {
                factor *= if at > index { share(numbers, next, how) } else { 1.0 };
                numbers = next;
            }
        }
        if let (_, Event::Taken { tokens, .. }) = &mut self.events[index] {
            *tokens -= back / factor;
        }
    }
}

/// The factor by which tokens are scaled.
fn share(old: Numbers, new: Numbers, how: Carry) -> f64 {
    if how == Carry::Proportional { new.full / old.full } else { 1.0 }
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Take(Verb, [u64; 3]),
    Reserve([u64; 3], Option<u64>),
    Extend(usize, [u64; 3]),
    Settle(usize, Option<[u64; 3]>),
    Cancel(usize),
    Lease([u64; 3]),
    Return(usize, u64),
    Change(usize, Carry),
    /// Without a request, and none before the next step.
    ChangeUnseen(usize, Carry),
    /// This many at once, of which a policy remembers only the latest.
    ChangeMany(usize, Carry),
    /// Requests use another version again, whether or not it was replaced.
    Alternate(usize),
    Wait(i64),
    Arrive(usize),
    FlushIdle,
    Clean,
    Crash(usize),
}

/// The tokens of each limit by its name.
type Tokens = BTreeMap<String, u64>;

struct OpenLease {
    id: u64,
    until: i64,
    tokens: Tokens,
}

struct OpenReservation {
    id: u64,
    until: i64,
    /// What was taken when it was made, and with each extension: the id of its event, and the tokens.
    pieces: Vec<(u64, Tokens)>,
}

impl OpenReservation {
    fn tokens(&self, name: &str) -> u64 {
        self.pieces.iter().filter_map(|(_, tokens)| tokens.get(name)).sum()
    }
}

/// The ledger beside the oracle.
pub(crate) struct Pair {
    world: World,
    versions: Vec<String>,
    budgets: BTreeMap<String, Budget>,
    open: Vec<OpenReservation>,
    leases: Vec<OpenLease>,
    is_refunded: bool,
    ttl_ms: u64,
    extensions: u64,
    /// All versions that were in force.
    seen: Vec<Arc<Policy>>,
    /// Whether a crash could undo a return: what was spent of the lease is taken later, by the numbers of that time.
    has_returned: bool,
    oracle: Oracle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oracle {
    Exact,
    /// The ledger may have less for more reasons than rounding.
    AtMost,
    /// Only that a settlement gives back no more than the excess taken, and a crash nothing.
    None,
}

impl Pair {
    pub(crate) fn new(versions: Vec<String>, oracle: Oracle) -> Self {
        let first = Arc::new(policy(&versions[0]).in_force_since(START - DAY_MS));
        let is_refunded = versions[0].contains("refund");
        let world = World { as_of: Some(START - DAY_MS), ..World::empty(&first) };
        let (budgets, open, leases) = (BTreeMap::new(), Vec::new(), Vec::new());
        let seen = vec![first];
        let ttl_ms = world.policy.object().reservations.ttl_ms;
        let (extensions, has_returned) = (0, false);
        Self { world, versions, budgets, open, leases, is_refunded, ttl_ms, extensions, seen, has_returned, oracle }
    }

    fn named(&self) -> Vec<(String, Numbers)> {
        let name = |named: &NamedLimit| (named.name().unwrap().to_owned(), Numbers::of(named));
        self.world.policy.limits().iter().map(name).collect()
    }

    fn costs(&self, costs: [u64; 3]) -> Vec<u64> {
        let of = |(name, _): (String, Numbers)| costs[NAMES.iter().position(|other| **other == *name).unwrap()];
        self.named().into_iter().map(of).collect()
    }

    /// The state that any request finds.
    fn meet(&mut self) {
        let now = self.world.now;
        if self.budgets.is_empty() {
            self.budgets = self.named().into_iter().map(|(name, numbers)| (name, Budget::new(numbers, now))).collect();
        }
        self.end_leases();
        self.end_expired(true);
        self.budgets.values_mut().for_each(|budget| budget.followed = budget.events.len());
    }

    fn end_leases(&mut self) {
        let now = self.world.now;
        let mut over: Vec<_> = self.leases.extract_if(.., |lease| lease.until <= now).collect();
        over.sort_by_key(|lease| lease.until);
        for OpenLease { until, tokens, .. } in over {
            for (name, budget) in &mut self.budgets {
                let at = budget.events.partition_point(|(at, _)| *at <= until);
                let tokens = real(tokens.get(name).copied().unwrap_or(0));
                budget.events.insert(at, (until, Event::Spent(tokens)));
            }
        }
    }

    /// `follows`: a request makes the ledger follow all changes. A clean-up does not.
    fn end_expired(&mut self, follows: bool) {
        let now = self.world.now;
        for open in self.open.extract_if(.., |open| open.until <= now).filter(|_| self.is_refunded) {
            give_back(&mut self.budgets, &open, follows.then_some(open.until));
        }
    }

    fn withheld(&self, name: &str) -> f64 {
        real(self.leases.iter().filter_map(|lease| lease.tokens.get(name)).sum())
    }

    /// The level without leased tokens.
    fn shown(&self, decided: &Decided) -> Vec<f64> {
        let each = self.named().into_iter().zip(&decided.limits);
        each.map(|((_, numbers), answer)| numbers.level(answer, self.world.now)).collect()
    }

    fn compare(&self, decided: &Decided, step: &Step) {
        let now = self.world.now;
        for ((name, numbers), shown) in self.named().into_iter().zip(self.shown(decided)) {
            assert!(shown <= numbers.full, "{shown} of {}", numbers.full);
            if self.oracle == Oracle::None {
                continue;
            }
            let Standing { level, lost, more, owed } = self.budgets[&name].standing(now);
            let expected = level - self.withheld(&name).min(owed);
            let is_right =
                shown <= expected + more + NOISE && (self.oracle == Oracle::AtMost || shown >= expected - lost - NOISE);
            assert!(
                is_right,
                "{step:?} after {} ms left {shown} of {name}, not {expected} but for {lost}: {:?}",
                now - START,
                self.budgets[&name],
            );
        }
    }

    fn look(&mut self) -> Decided {
        let count = self.world.policy.limits().len();
        let decided = self.world.decided(Action::Look(Verb::Refund), vec![0; count]);
        self.meet();
        decided
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each step")]
    pub(crate) fn take(&mut self, step: &Step) {
        let now = self.world.now;
        if let Step::Wait(ms) = *step {
            self.world.now += ms;
            return;
        }
        if let Step::ChangeUnseen(version, how) = *step {
            return self.change(version, how);
        }
        if let Step::ChangeMany(count, how) = *step {
            self.oracle = Oracle::AtMost;
            return (0..count).for_each(|version| self.change(version, how));
        }
        if !matches!(step, Step::Change(..) | Step::Clean | Step::Crash(_)) {
            let decided = self.look();
            self.compare(&decided, &Step::Wait(0));
        }
        match *step {
            Step::Take(verb, costs) => {
                let costs = self.costs(costs);
                let before = self.look();
                let before = self.shown(&before);
                let decided = self.world.decided(Action::Take(verb), costs.clone());
                let after = self.shown(&decided);
                for (index, (name, _)) in self.named().into_iter().enumerate() {
                    let Some(budget) = self.budgets.get_mut(&name) else { continue };
                    match verb {
                        _ if !decided.decision().is_allow() => {}
                        Verb::Refund => budget.events.push((now, Event::Refunded(real(costs[index])))),
                        Verb::Reset => budget.events.push((now, Event::Reset)),
                        Verb::Charge => budget.take(now, before[index] - after[index], 0),
                        _ => budget.take(now, real(tokens(&decided.limits[index])), 0),
                    }
                }
            }
            Step::Reserve(costs, max_wait_ms) => {
                let costs = self.costs(costs);
                let decided = self.world.decided(Action::Reserve(Verb::Reserve { max_wait_ms }), costs.clone());
                if let Some(reserved) = decided.reservation {
                    let pieces = vec![self.piece(reserved.id, costs)];
                    self.open.push(OpenReservation { id: reserved.id, until: reserved.expires_at, pieces });
                }
            }
            Step::Extend(which, costs) => {
                let Some(index) = which.checked_rem(self.open.len()) else { return };
                let costs = self.costs(costs);
                let decided = self.world.decided(Action::Extend(self.open[index].id), costs.clone());
                if let Some(reserved) = decided.reservation {
                    // Without a cost nothing is taken that may be settled.
                    let piece = costs.iter().any(|cost| *cost > 0).then(|| {
                        self.extensions += 1;
                        self.piece(u64::MAX - self.extensions, costs)
                    });
                    let open = &mut self.open[index];
                    open.pieces.extend(piece);
                    open.until = open.until.max(now.saturating_add_unsigned(self.ttl_ms));
                    assert_eq!((reserved.id, reserved.expires_at), (open.id, open.until));
                }
            }
            Step::Settle(which, costs) => self.settle(step, which, costs),
            Step::Cancel(which) => {
                let Some(index) = which.checked_rem(self.open.len()) else { return };
                let open = self.open.remove(index);
                let before = self.look();
                let before = self.shown(&before);
                let decided = decided(self.world.ask(Action::Cancel(open.id), None, None));
                for (((name, _), before), after) in self.named().iter().zip(before).zip(self.shown(&decided)) {
                    let most = before + real(open.tokens(name));
                    assert!(after <= most + NOISE, "{step:?} left {after} of {name}, above {most}");
                }
                give_back(&mut self.budgets, &open, None);
            }
            Step::Lease(wanted) => {
                let decided = decided(self.world.lease(self.costs(wanted), Vec::new()));
                if let Some(lease) = decided.lease {
                    let tokens: Tokens = self.named().into_iter().map(|(name, _)| name).zip(lease.tokens).collect();
                    for (name, tokens) in &tokens {
                        self.budgets.get_mut(name).unwrap().events.push((now, Event::Leased(real(*tokens))));
                    }
                    self.leases.push(OpenLease {
                        id: lease.id,
                        until: lease.until + LEASE_GRACE_MS.cast_signed(),
                        tokens,
                    });
                }
            }
            Step::Return(which, spent) => {
                let Some(index) = which.checked_rem(self.leases.len()) else { return };
                let OpenLease { id, tokens, .. } = self.leases.remove(index);
                self.has_returned = true;
                let names: Vec<_> = self.named().into_iter().map(|(name, _)| name).collect();
                let spent: Vec<_> = names.iter().map(|name| spent.min(tokens[name])).collect();
                self.world.lease(vec![0; spent.len()], vec![EndedLease { id, spent: spent.clone() }]);
                for (name, spent) in names.iter().zip(spent) {
                    self.budgets.get_mut(name).unwrap().events.push((now, Event::Spent(real(spent))));
                }
            }
            Step::Change(version, how) => self.change(version, how),
            Step::Arrive(count) => self.world.arrive(count),
            Step::FlushIdle => self.world.flush_idle(),
            Step::Clean => {
                // Before its budget is forgotten.
                self.end_leases();
                self.world.clean();
                self.end_expired(false);
                self.forget();
            }
            Step::Crash(arrived) if !self.has_returned => {
                let before = self.look();
                self.world.crash(arrived);
                let after = self.look();
                for (before, after) in self.shown(&before).into_iter().zip(self.shown(&after)) {
                    assert!(after <= before + NOISE, "{after} after a crash, and {before} before");
                }
                // A lease of more than was left is taken later.
                if self.oracle == Oracle::Exact && self.versions[0].contains("\"lease\"") {
                    self.oracle = Oracle::AtMost;
                }
                self.forget();
            }
            Step::Alternate(version) => {
                self.world.policy = Arc::clone(&self.seen[version % self.seen.len()]);
                self.world.as_of = Some(now);
            }
            Step::ChangeUnseen(..) | Step::ChangeMany(..) | Step::Wait(_) | Step::Crash(_) => {}
        }
        let decided = self.look();
        self.compare(&decided, step);
    }

    fn forget(&mut self) {
        if !self.world.has_row() {
            assert!(self.open.is_empty());
            self.budgets.clear();
        }
    }

    fn settle(&mut self, step: &Step, which: usize, costs: Option<[u64; 3]>) {
        let now = self.world.now;
        let Some(index) = which.checked_rem(self.open.len()) else { return };
        let before = self.look();
        let before = self.shown(&before);
        let open = self.open.remove(index);
        let costs = costs.map(|costs| self.costs(costs));
        let decided = decided(self.world.ask(Action::Settle(open.id), costs.clone(), None));
        let after = self.shown(&decided);
        for (index, (name, numbers)) in self.named().into_iter().enumerate() {
            let reserved = open.tokens(&name);
            let cost = costs.as_ref().map_or(reserved, |costs| costs[index]);
            let booked = tokens(&decided.limits[index]);
            assert!((cost.min(reserved)..=cost).contains(&booked), "{booked} of {cost}");
            let back = real(reserved) - real(booked);
            let (before, after) = (before[index], after[index]);
            assert!(after <= before + back.max(0.0) + NOISE, "{step:?}: {before} became {after}, with {back} back");
            let floor = before.min(-numbers.debt);
            assert!(back >= 0.0 || after >= floor - NOISE, "{step:?}: {before} became {after}");
            let withheld = self.withheld(&name);
            let Some(budget) = self.budgets.get_mut(&name) else { continue };
            let withheld = withheld.min(budget.standing(now).owed);
            let mut rest = booked;
            for (place, (id, taken)) in open.pieces.iter().enumerate() {
                let taken = taken.get(&name).copied().unwrap_or(0);
                // Tokens are given back newest first, and additional ones are taken by the newest.
                let real_cost = if place + 1 == open.pieces.len() { rest } else { taken.min(rest) };
                rest -= real_cost;
                budget.give_back(*id, real(taken) - real(real_cost), None);
            }
            if let Some((newest, _)) = open.pieces.last().filter(|_| booked < cost && self.oracle == Oracle::Exact) {
                let mut more = budget.clone();
                more.give_back(*newest, -1.0, None);
                let Standing { level, lost, .. } = more.standing(now);
                assert!(level - withheld < floor + lost + NOISE, "{step:?} booked {booked} of {cost}");
            }
        }
    }

    /// What was just taken, which a settlement may change.
    fn piece(&mut self, id: u64, costs: Vec<u64>) -> (u64, Tokens) {
        let tokens: Tokens = self.named().into_iter().map(|(name, _)| name).zip(costs).collect();
        for (name, budget) in &mut self.budgets {
            budget.take(self.world.now, real(tokens.get(name).copied().unwrap_or(0)), id);
        }
        (id, tokens)
    }

    fn change(&mut self, version: usize, how: Carry) {
        let latest = Arc::clone(self.seen.last().unwrap());
        let since = self.world.now.max(latest.timeline().since() + 1);
        let before = self.named();
        self.world.now = since;
        let next = policy(&self.versions[version % self.versions.len()]).succeeding(&latest, since, how);
        self.world.policy = Arc::new(next);
        self.seen.push(Arc::clone(&self.world.policy));
        self.world.as_of = Some(since);
        if self.budgets.is_empty() {
            return;
        }
        self.end_leases();
        // Beside reservations that may give something back, all of it is paid.
        let over_at = self.leases.iter().map(|lease| lease.until).max().filter(|_| self.open.is_empty());
        let is_same = |one: &Numbers, other: &Numbers| {
            let all = |numbers: &Numbers| [numbers.refill, numbers.full, numbers.debt, numbers.drop].map(f64::to_bits);
            all(one) == all(other) && (one.tick_ms, one.period_ms) == (other.tick_ms, other.period_ms)
        };
        for (name, numbers) in self.named() {
            let Some(budget) = self.budgets.get_mut(&name) else {
                self.budgets.insert(name, Budget::new(numbers, since));
                continue;
            };
            let Standing { level, lost, .. } = budget.standing(since);
            let was_absent = before.iter().all(|(other, _)| *other != name);
            // One that was full while the policy did not have it is forgotten.
            let is_new = was_absent && level + lost + NOISE >= budget.numbers().full;
            let how = if is_new { Carry::Reset } else { how };
            if how == Carry::Reset || !is_same(&budget.numbers(), &numbers) {
                budget.events.push((since, Event::Carried(numbers, how, over_at)));
                // The ledger may know of reservations that are over here.
                if over_at.is_some() && self.oracle == Oracle::Exact {
                    self.oracle = Oracle::AtMost;
                }
            }
        }
    }
}

fn give_back(budgets: &mut BTreeMap<String, Budget>, open: &OpenReservation, until: Option<i64>) {
    for (id, tokens) in &open.pieces {
        for (name, tokens) in tokens {
            if let Some(budget) = budgets.get_mut(name) {
                budget.give_back(*id, real(*tokens), until);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the numbers here are small")]
fn real(tokens: u64) -> f64 {
    tokens as f64
}
