//! Keys with overrides: their grants, and their buckets before, during and afterwards.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use tollgate::key_hash::KeyHasher;
use tollgate::limit::{Carry, Config, Limit, Snapshot, State, Verb};
use tollgate::policy::overrides::{History, InForce, MAX_CHANGES, Overrides, Selector, WrittenOverride};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, ObjectReply};

use crate::chance;
use crate::world::{DAY_MS, START, World, decided, tokens};

const CONSUME: Action = Action::Take(Verb::Consume);
const KEY: &str = "acme:alice";

fn policy(json: &str) -> Policy {
    Policy::clone(Policies::parse(&format!(r#"{{"p":{json}}}"#)).unwrap().get("p").unwrap())
}

/// An isolate that knows the policy and the overrides of the key and of a prefix of it.
struct Isolate {
    base: Arc<Policy>,
    overrides: Overrides,
    histories: [(Selector, History); 2],
    as_of: i64,
}

impl Isolate {
    fn new(base: Policy) -> Self {
        let selectors = [
            Selector::key("p", KeyHasher::default().hash(KEY.as_bytes())),
            Selector::prefix(&KeyHasher::default(), "p", "acme:"),
        ];
        let as_of = base.timeline().since();
        let histories = selectors.map(|selector| (selector, History::default()));
        Self { base: Arc::new(base), overrides: Overrides::default(), histories, as_of }
    }

    /// Sets an override, such as `"banned":true`, or removes it.
    fn set(&mut self, index: usize, at: i64, fields: Option<&str>, until: Option<i64>) {
        self.carry(index, at, fields, until, None);
    }

    fn carry(&mut self, index: usize, at: i64, fields: Option<&str>, until: Option<i64>, carry: Option<Carry>) {
        let state = fields.map(|fields| {
            let text = format!(r#"{{"policy":"p","key":"k",{fields}}}"#);
            InForce { plan: WrittenOverride::parse("it", &text).unwrap().plan, until }
        });
        let (selector, history) = &mut self.histories[index];
        history.push(at, state, carry);
        let mut records = Vec::new();
        selector.record(&history.encode(), &mut records);
        self.overrides.update(&records).unwrap();
        self.as_of = at;
    }

    /// The same at each of these moments after the start.
    fn set_at_each(&mut self, index: usize, moments: std::ops::RangeInclusive<i64>, fields: Option<&str>) {
        for at in moments {
            self.set(index, START + at, fields, None);
        }
    }

    fn replace(&mut self, policy: Policy, at: i64, carry: Carry) {
        self.base = Arc::new(policy.succeeding(&self.base, at, carry));
        self.as_of = at;
    }

    /// Gives the world's frontend the knowledge of this isolate.
    fn tell(&self, world: &mut World) {
        world.policy = self.overrides.apply(&self.base, KEY.as_bytes(), world.now);
        world.as_of = Some(self.as_of);
    }

    fn world(&self) -> World {
        let mut world = World::empty(&self.base);
        self.tell(&mut world);
        world
    }
}

fn is_allowed(decided: &Decided) -> bool {
    decided.decision().is_allow()
}

fn granted(decided: &Decided) -> Vec<u64> {
    decided.limits.iter().map(crate::world::tokens).collect()
}

fn retry_at(decided: &Decided) -> Option<i64> {
    match decided.decision() {
        tollgate::limit::Decision::Wait { retry_at } => Some(retry_at),
        _ => None,
    }
}

/// An isolate and a world at a moment at which the bucket holds 7 of 10 tokens, with no refill.
fn spent(fields: &str, until: Option<i64>) -> (Isolate, World) {
    let base = policy(r#"{"rate":0,"period":"1s","capacity":10,"max_debt":5,"write_ahead":0}"#);
    let mut isolate = Isolate::new(base.in_force_since(START - 10));
    let mut world = isolate.world();
    world.decided(CONSUME, vec![3]);
    world.now += 1;
    isolate.set(0, world.now, Some(fields), until);
    isolate.tell(&mut world);
    (isolate, world)
}

#[test]
fn a_banned_key_may_give_back_but_not_take() {
    for (until, retry) in [(None, None), (Some(START + 500), Some(START + 500))] {
        for crashes in [false, true] {
            let (mut isolate, mut world) = spent(r#""banned":true"#, until);
            for verb in [
                Verb::Consume,
                Verb::ConsumeUpTo,
                Verb::Reserve { max_wait_ms: None },
                Verb::Borrow { max_wait_ms: Some(9) },
            ] {
                for action in [Action::Look(verb), Action::Take(verb), Action::Reserve(verb)] {
                    for cost in [0, 1, 11] {
                        let decided = world.decided(action, vec![cost]);
                        assert!(!is_allowed(&decided) && decided.reservation.is_none(), "{action:?} {cost}");
                        assert_eq!(retry_at(&decided), retry, "{action:?} {cost}");
                    }
                }
            }
            assert_eq!(world.levels(), [7]);
            assert_eq!(granted(&world.decided(Action::Take(Verb::Charge), vec![4])), [4]);
            assert_eq!(granted(&world.decided(Action::Take(Verb::Refund), vec![2])), [2]);
            assert_eq!(world.levels(), [5]);
            if crashes {
                world.crash(0);
                assert!(!is_allowed(&world.decided(CONSUME, vec![1])));
            }
            world.now = START + 499;
            isolate.tell(&mut world);
            assert!(!is_allowed(&world.decided(CONSUME, vec![1])));
            world.now = START + 500;
            if until.is_none() {
                isolate.set(0, world.now, None, None);
            } else {
                // Exactly on time, even under what the frontend knew just before.
                assert!(is_allowed(&world.decided(Action::Look(Verb::Consume), vec![5])));
            }
            isolate.tell(&mut world);
            assert_eq!(world.levels(), [5]);
            assert!(is_allowed(&world.decided(CONSUME, vec![5])));
        }
    }
}

#[test]
fn a_key_without_limits_takes_what_is_left_and_never_goes_into_debt() {
    for (verb, tokens) in [
        (Verb::Consume, 7),
        (Verb::ConsumeUpTo, 100), // the caller may use them all
        (Verb::Reserve { max_wait_ms: Some(0) }, 7),
        (Verb::Borrow { max_wait_ms: None }, 7),
    ] {
        let (mut isolate, mut world) = spent(r#""unlimited":true"#, None);
        let looked = world.decided(Action::Look(verb), vec![100]);
        assert!(is_allowed(&looked));
        assert_eq!((granted(&looked), world.levels()), (vec![tokens], vec![7]), "{verb:?}");
        let taken = world.decided(Action::Take(verb), vec![100]);
        assert_eq!((granted(&taken), world.levels()), (vec![tokens], vec![0]), "{verb:?}");
        assert!(is_allowed(&world.decided(Action::Take(verb), vec![100])), "{verb:?}");
        assert_eq!(world.levels(), [0], "{verb:?}");
        // A charge books as always, even into debt.
        world.decided(Action::Take(Verb::Charge), vec![2]);
        assert!(is_allowed(&world.decided(Action::Take(verb), vec![1])), "{verb:?}");
        assert_eq!(world.levels(), [-2]);
        world.decided(Action::Take(Verb::Refund), vec![3]);
        world.now += 1;
        isolate.set(0, world.now, None, None);
        isolate.tell(&mut world);
        assert!(!is_allowed(&world.decided(CONSUME, vec![2])));
        assert!(is_allowed(&world.decided(CONSUME, vec![1])));
    }
}

/// A reservation keeps what refilled above the capacity, at the rates of all versions since it was opened.
#[test]
fn a_settlement_counts_every_version_since_the_reservation_whether_or_not_the_key_has_asked_meanwhile() {
    let base = r#"{"rate":10,"period":"1s","capacity":100,"write_ahead":0,"reservation_ttl":"1d"}"#;
    for peeks in [false, true] {
        let mut isolate = Isolate::new(policy(base).in_force_since(START - 86_400_000));
        let mut world = isolate.world();
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: Some(0) });
        let id = world.decided(reserve, vec![50]).reservation.unwrap().id;
        let numbers =
            |rate: u64, max_debt: u64| format!(r#""rate":{rate},"period":"1s","capacity":100,"max_debt":{max_debt}"#);
        let as_is = Some(Carry::AsIs);
        isolate.carry(0, START + 1_000, Some(&numbers(0, 0)), Some(START + 100_000), as_is);
        if peeks {
            world.now = START + 50_000;
            isolate.tell(&mut world);
            world.levels();
        }
        isolate.carry(0, START + 115_000, Some(&numbers(10, 1)), None, as_is);
        world.now = START + 116_000;
        isolate.tell(&mut world);
        world.decided(Action::Settle(id), vec![250]);
        assert_eq!(world.levels(), [20], "peeks: {peeks}");
    }
}

/// It may use all that it asked for; the account of a larger plan pays what was there.
#[test]
fn a_key_without_limits_that_asks_for_up_to_a_cost_leaves_its_other_accounts_what_they_have() {
    let version =
        |capacity: u64| policy(&format!(r#"{{"rate":0,"period":"1s","capacity":{capacity},"write_ahead":0}}"#));
    for verb in [Verb::Consume, Verb::ConsumeUpTo] {
        let mut isolate = Isolate::new(version(1_000).in_force_since(START - 10));
        let mut world = isolate.world();
        world.decided(CONSUME, vec![7]);
        isolate.replace(version(10), START + 1, Carry::Additive);
        isolate.set(0, START + 2, Some(r#""unlimited":true"#), None);
        world.now = START + 2;
        isolate.tell(&mut world);
        world.decided(Action::Take(verb), vec![500]);
        assert_eq!(world.levels(), [0]);
        isolate.set(0, START + 3, None, None);
        isolate.replace(version(1_000), START + 4, Carry::Additive);
        world.now = START + 4;
        isolate.tell(&mut world);
        assert_eq!(world.levels(), [990], "{verb:?}");
    }
}

/// Otherwise a cancelled reservation would give the key tokens that it never had.
#[test]
fn a_reservation_without_limits_gives_back_no_more_than_it_took() {
    for ends in [false, true] {
        let (mut isolate, mut world) = spent(r#""unlimited":true"#, None);
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
        let [first, second] = [100, 100].map(|cost| world.decided(reserve, vec![cost]).reservation.unwrap().id);
        assert_eq!(world.levels(), [0]);
        if ends {
            world.now += 1;
            isolate.set(0, world.now, None, None);
            isolate.tell(&mut world);
        }
        world.ask(Action::Cancel(second), None, None);
        assert_eq!(world.levels(), [0]);
        world.ask(Action::Cancel(first), None, None);
        assert_eq!(world.levels(), [7]);
    }
}

#[test]
fn a_reservation_without_limits_is_settled_without_a_debt() {
    for (reserved, settled) in [(100, 100), (1, 100), (100, 3)] {
        let (_, mut world) = spent(r#""unlimited":true"#, None);
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
        let id = world.decided(reserve, vec![reserved]).reservation.unwrap().id;
        world.decided(Action::Settle(id), vec![settled]);
        assert_eq!(world.levels(), [7_i64.saturating_sub_unsigned(settled).max(0)], "{reserved}, {settled}");
    }
}

/// What was granted and not taken is not charged at the settlement, out of what has come back since, nor once the key has limits again.
#[test]
fn a_reservation_without_limits_is_settled_as_if_its_cost_had_been_taken_then() {
    let cases = [(None, 50, 100), (Some(100), 50, 100), (Some(3), 54, 3), (Some(0), 57, 0), (Some(120), 30, 120)];
    for ((cost, left, told), ends) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let base = policy(r#"{"rate":10,"period":"1s","capacity":100,"max_debt":1000,"write_ahead":0}"#);
        let mut isolate = Isolate::new(base.in_force_since(START - 10));
        let mut world = isolate.world();
        world.decided(CONSUME, vec![93]);
        isolate.set(0, START, Some(r#""unlimited":true"#), Some(START + 3_000).filter(|_| ends));
        isolate.tell(&mut world);
        let reserve = Action::Reserve(Verb::Reserve { max_wait_ms: None });
        let id = world.decided(reserve, vec![100]).reservation.unwrap().id;
        assert_eq!(world.levels(), [0]);
        world.crash(usize::MAX);
        world.now += 5_000;
        isolate.tell(&mut world);
        assert_eq!(world.levels(), [50]);
        let settled = decided(world.ask(Action::Settle(id), cost.map(|cost| vec![cost]), None));
        assert_eq!((tokens(&settled.limits[0]), world.levels()), (told, vec![left]), "{cost:?}, {ends}");
    }
}

#[test]
fn a_hold_without_limits_takes_no_more_than_others_left_it() {
    let (_, mut world) = spent(r#""unlimited":true"#, None);
    for (id, cost) in [(1, 5), (2, 5)] {
        assert!(is_allowed(&world.decided(Action::Hold(id), vec![cost])));
    }
    assert_eq!(world.levels(), [0], "all 7 are held");
    world.ask(Action::Cancel(2), None, None);
    assert_eq!(world.levels(), [2]);
    world.ask(Action::Settle(1), None, None);
    assert!(is_allowed(&world.decided(CONSUME, vec![9])));
    assert_eq!(world.levels(), [0]);
}

#[test]
fn a_request_granted_before_a_ban_is_replayed() {
    let base = policy(r#"{"rate":0,"period":"1s","capacity":10}"#).in_force_since(START - 10);
    let mut isolate = Isolate::new(base);
    let mut world = isolate.world();
    assert!(is_allowed(&world.decided_once(CONSUME, vec![3], 7)));
    world.now += 1;
    isolate.set(0, world.now, Some(r#""banned":true"#), None);
    isolate.tell(&mut world);
    let again = world.decided_once(CONSUME, vec![3], 7);
    assert!(again.is_replayed && is_allowed(&again));
    assert!(!is_allowed(&world.decided_once(CONSUME, vec![3], 8)));
    assert_eq!(world.levels(), [7]);
}

#[test]
fn a_frontend_that_does_not_know_of_a_ban_learns_it() {
    for crashes in [false, true] {
        let (mut isolate, mut world) = spent(r#""multiple":2"#, None);
        isolate.tell(&mut world);
        world.decided(CONSUME, vec![1]);
        let before = (Arc::clone(&world.policy), world.as_of);
        world.now += 1;
        isolate.set(0, world.now, Some(r#""banned":true"#), Some(START + 99));
        isolate.tell(&mut world);
        // It takes nothing, but the ban is known from now on.
        world.decided(Action::Take(Verb::Charge), vec![1]);
        if crashes {
            world.crash(0);
        }
        let banned = Arc::clone(&world.policy);
        (world.policy, world.as_of) = before;
        let ObjectReply::PolicyOutdated { as_of, definitions } = world.ask(CONSUME, Some(vec![1]), None) else {
            panic!("not reported")
        };
        let told = Policy::from_definition(&definitions).unwrap();
        assert_eq!((as_of, told.standing()), (isolate.as_of, banned.standing()));
    }
}

/// The same, done by hand: numbers and a state, and those of earlier numbers, at each moment at which the numbers change.
#[derive(Clone)]
struct ByHand {
    base: Config,
    /// Those of the key and of the prefix, and when they end.
    overrides: [Option<(Kind, Option<i64>)>; 2],
    /// That of the numbers in force first.
    accounts: Vec<(Limit, State)>,
    is_new: bool,
    now: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Banned,
    Unlimited,
    Times(u64),
    Numbers(u64, u64),
}

impl Kind {
    fn fields(self) -> String {
        match self {
            Self::Banned => r#""banned":true"#.to_owned(),
            Self::Unlimited => r#""unlimited":true"#.to_owned(),
            Self::Times(times) => format!(r#""multiple":{times}"#),
            Self::Numbers(rate, capacity) => {
                format!(r#""rate":{rate},"period":"1s","capacity":{capacity},"write_ahead":0"#)
            }
        }
    }
}

fn json_of(config: &Config) -> String {
    let Config { rate, capacity, .. } = config;
    format!(r#"{{"rate":{rate},"period":"1s","capacity":{capacity},"write_ahead":0}}"#)
}

impl ByHand {
    fn new(base: Config) -> Self {
        let limit = Limit::new(&base).unwrap();
        let accounts = vec![(limit, limit.new_state(START, 0))];
        Self { base, overrides: [None, None], accounts, is_new: false, now: START }
    }

    fn in_force(&self) -> impl Iterator<Item = Kind> {
        let in_force = self.overrides.iter().flatten().filter(|(_, until)| until.is_none_or(|until| self.now < until));
        in_force.map(|(kind, _)| *kind)
    }

    fn numbers(&self) -> Option<Kind> {
        self.in_force().find(|kind| !matches!(kind, Kind::Banned | Kind::Unlimited))
    }

    fn carry_over(&mut self, how: Carry) {
        let Config { rate, capacity, .. } = self.base;
        let (rate, capacity) = match self.numbers() {
            Some(Kind::Times(times)) => (rate * times, capacity * times),
            Some(Kind::Numbers(rate, capacity)) => (rate, capacity),
            _ => (rate, capacity),
        };
        let next = Limit::new(&Config { capacity, ..Config::token_bucket(rate, Duration::from_secs(1)) }).unwrap();
        let is_reset = how == Carry::Reset && !matches!(self.numbers(), Some(Kind::Numbers(..)));
        let (limit, state) = self.accounts[0];
        if how != Carry::Additive {
            if is_reset || next != limit {
                self.accounts = vec![(next, next.carry(&limit, state, how, self.now, 0))];
            }
            return;
        }
        let account = match self.accounts.iter().position(|(limit, _)| *limit == next) {
            Some(own) => self.accounts.remove(own),
            None => (next, self.begun(&next)),
        };
        self.accounts.insert(0, account);
    }

    /// Spent tokens stay spent: of the numbers in force, and of those of some account, which are not above the largest capacity by more
    /// than these.
    fn begun(&self, next: &Limit) -> State {
        let capacity = |limit: &Limit| limit.config().capacity.cast_signed();
        let largest = self.accounts.iter().map(|(limit, _)| capacity(limit)).max().unwrap();
        let more = |limit: &Limit| capacity(next) - capacity(limit);
        let with = |(limit, state): &(Limit, State), more: i64| {
            let mut as_is = next.carry(limit, *state, Carry::AsIs, self.now, 0);
            let [left, clipped] = [limit.remaining(state, self.now), next.remaining(&as_is, self.now)];
            let change = left.cast_signed() - clipped.cast_signed() + more.max(-left.cast_signed());
            if change > 0 {
                let _ = next.refund(&mut as_is, self.now, change.unsigned_abs());
                return as_is;
            }
            next.lowered(&as_is, change.unsigned_abs())
        };
        let above_all = (capacity(next) - largest).max(0);
        let most = self.accounts.iter().map(|account| with(account, more(&account.0).min(above_all)));
        let most = most.reduce(|one, other| next.surplus_over(&one, &other, self.now).map_or(other, |_| one)).unwrap();
        let in_force = with(&self.accounts[0], more(&self.accounts[0].0));
        next.surplus_over(&most, &in_force, self.now).map_or(most, |_| in_force)
    }

    /// Takes available tokens. Other accounts owe nothing for it.
    fn take(&mut self, tokens: u64) {
        for (index, (limit, state)) in self.accounts.iter_mut().enumerate() {
            if tokens > 0 {
                *state = limit.lowered(&limit.refilled(state, self.now), tokens);
            }
            let Snapshot { tokens, at, .. } = limit.snapshot(state);
            if index > 0 && tokens < 0 {
                *state = limit.restored(&Snapshot { tokens: 0, drops: 0, at }).unwrap();
            }
        }
    }

    fn level(&self) -> i64 {
        let (limit, state) = &self.accounts[0];
        let [left, owed] = [limit.remaining(state, self.now), limit.owed(state, self.now)];
        i64::try_from(left).unwrap() - i64::try_from(owed).unwrap()
    }

    fn sleep(&mut self, ms: i64) {
        let end = self.now + ms;
        let mut ends: Vec<_> = self.overrides.iter().flatten().filter_map(|(_, until)| *until).collect();
        ends.retain(|until| (self.now + 1..=end).contains(until));
        ends.sort_unstable();
        for until in ends {
            self.now = until;
            self.carry_over(Carry::Additive);
        }
        self.now = end;
    }

    fn consume(&mut self, cost: u64) -> bool {
        if std::mem::take(&mut self.is_new) {
            let (limit, _) = self.accounts[0];
            self.accounts = vec![(limit, limit.new_state(self.now, 0))];
        }
        let (limit, state) = self.accounts[0];
        let most_specific = self.in_force().next();
        let left = limit.remaining(&state, self.now);
        match most_specific {
            Some(Kind::Banned) => return false,
            Some(Kind::Unlimited) => self.take(left.min(cost)),
            _ if limit.peek(&state, self.now, cost).is_allow() => self.take(cost),
            _ => return false,
        }
        true
    }
}

/// So that each change has its own moment, at which no override ends.
fn pause(by_hand: &mut ByHand, world: &mut World) {
    let ends = by_hand.overrides.iter().flatten().filter_map(|(_, until)| *until).collect::<Vec<_>>();
    let ms = (1..100).find(|ms| !ends.contains(&(world.now + ms))).unwrap();
    by_hand.sleep(ms);
    world.now += ms;
}

#[derive(Clone, Debug)]
enum Event {
    Sleep(i64),
    Consume(u64),
    Override(usize, Option<Kind>, Option<i64>),
    Policy(Config, Carry),
    Crash,
}

fn configs() -> impl Strategy<Value = Config> {
    (0..20_u64, 1..40_u64)
        .prop_map(|(rate, capacity)| Config { capacity, ..Config::token_bucket(rate, Duration::from_secs(1)) })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let kinds = prop_oneof![
        Just(Kind::Banned),
        Just(Kind::Unlimited),
        (2..5_u64).prop_map(Kind::Times),
        (0..30_u64, 0..50_u64).prop_map(|(rate, capacity)| Kind::Numbers(rate, capacity)),
    ];
    let carries = prop::sample::select(vec![Carry::AsIs, Carry::Proportional, Carry::Additive, Carry::Reset]);
    let event = prop_oneof![
        4 => (1..3_000_i64).prop_map(Event::Sleep),
        5 => (1..20_u64).prop_map(Event::Consume),
        3 => (0..2_usize, prop::option::of(kinds), prop::option::of(1..4_000_i64))
            .prop_map(|(index, kind, until)| Event::Override(index, kind, until)),
        1 => (configs(), carries).prop_map(|(config, carry)| Event::Policy(config, carry)),
        1 => Just(Event::Crash),
    ];
    prop::collection::vec(event, 1..40)
}

/// The policy is reset, and that version is soon all that is known of it.
#[test]
fn a_reset_of_the_policy_does_not_reset_a_key_with_its_own_numbers() {
    let base = policy(r#"{"rate":0,"period":"1s","capacity":1,"write_ahead":0}"#);
    let mut isolate = Isolate::new(base.in_force_since(START - 10));
    let mut world = isolate.world();
    world.decided(CONSUME, vec![1]);
    isolate.set(0, START + 1, Some(r#""rate":0,"period":"1s","capacity":2,"write_ahead":0"#), None);
    isolate.replace(policy(r#"{"rate":9,"period":"1s","capacity":1}"#), START + 2, Carry::Reset);
    isolate.replace(policy(r#"{"rate":0,"period":"1s","capacity":1}"#), START + 200, Carry::AsIs);
    world.now = START + 200;
    isolate.tell(&mut world);
    assert_eq!(world.levels(), [1]);
}

/// It is one of the versions that the bucket follows, so that it is not done again when nothing before it is known any more.
#[test]
fn a_reset_to_the_same_numbers_is_done_once_to_a_key_that_had_an_override() {
    let same = || policy(r#"{"rate":15,"period":"1s","capacity":19,"write_ahead":0}"#);
    let mut isolate = Isolate::new(same().in_force_since(START - 10));
    let mut world = isolate.world();
    isolate.set(0, START + 1, None, None);
    isolate.tell(&mut world);
    world.now = START + 1;
    world.decided(CONSUME, vec![19]);
    isolate.replace(same(), START + 2, Carry::Reset);
    world.now = START + 2;
    isolate.tell(&mut world);
    assert_eq!(world.levels(), [19]);
    world.now = START + 1_400;
    world.decided(CONSUME, vec![19]);
    isolate.replace(policy(r#"{"rate":0,"period":"1s","capacity":5}"#), START + 1_401, Carry::AsIs);
    world.now = START + 1_401;
    isolate.tell(&mut world);
    assert_eq!(world.levels(), [0]);
}

/// The carries that a change of overrides can have.
const CARRIES: [Carry; 3] = [Carry::AsIs, Carry::Additive, Carry::Reset];

/// 7 of 10 tokens are left, then the capacity is 100, and then 10 again.
#[test]
fn tokens_are_carried_to_an_override_and_back_as_its_changes_say() {
    let larger = r#""rate":0,"period":"1s","capacity":100"#;
    for (carry, above, back) in
        [(None, 97, 7), (Some(Carry::Additive), 97, 7), (Some(Carry::AsIs), 7, 7), (Some(Carry::Reset), 100, 10)]
    {
        for crashes in [false, true] {
            for asked_between in [false, true] {
                let base = policy(r#"{"rate":0,"period":"1s","capacity":10,"write_ahead":0}"#);
                let mut isolate = Isolate::new(base.in_force_since(START - 10));
                let mut world = isolate.world();
                world.decided(CONSUME, vec![3]);
                world.now += 1;
                isolate.carry(0, world.now, Some(larger), None, carry);
                isolate.tell(&mut world);
                if asked_between {
                    assert_eq!(world.levels(), [above], "{carry:?}");
                }
                if crashes {
                    world.crash(usize::MAX);
                }
                world.now += 1;
                isolate.carry(0, world.now, None, None, carry);
                isolate.tell(&mut world);
                assert_eq!(world.levels(), [back], "{carry:?}");
                // The end of one carries over in the same way, but resets nothing.
                world.now += 1;
                isolate.carry(0, world.now, Some(larger), Some(world.now + 1), carry);
                isolate.tell(&mut world);
                let level = world.levels()[0];
                world.now += 1;
                isolate.tell(&mut world);
                let after_end = match carry {
                    Some(Carry::AsIs) => level.min(10),
                    _ => (level - 90).max(0),
                };
                assert_eq!(world.levels(), [after_end], "{carry:?}");
            }
        }
    }
}

/// Two equally up-to-date frontends, one of which has forgotten an ended override.
#[test]
fn a_reset_is_done_once_even_if_frontends_that_forgot_it_ask_in_turn() {
    let base = policy(r#"{"rate":0,"period":"1s","capacity":10,"write_ahead":0}"#).in_force_since(START - 10);
    for fields in [r#""rate":0,"period":"1s","capacity":100"#, r#""rate":0,"period":"1s","capacity":10"#] {
        for crashes in [false, true] {
            let (mut knows, mut forgot) = (Isolate::new(base.clone()), Isolate::new(base.clone()));
            let mut world = knows.world();
            world.decided(CONSUME, vec![3]);
            for fields in [Some(fields), None] {
                world.now += 1;
                knows.carry(0, world.now, fields, None, Some(Carry::Reset));
            }
            forgot.as_of = knows.as_of;
            knows.tell(&mut world);
            assert_eq!(world.levels(), [10]);
            for spent in 1..5 {
                world.decided(CONSUME, vec![2]);
                for isolate in [&forgot, &knows] {
                    isolate.tell(&mut world);
                    assert_eq!(world.levels(), [10 - 2 * spent], "{fields}");
                    if crashes {
                        world.crash(usize::MAX);
                    }
                }
            }
        }
    }
}

/// A request that was composed before the end of an override arrives after one that was composed later.
#[test]
fn an_end_is_carried_over_once_even_if_requests_overtake_each_other() {
    let base = policy(r#"{"rate":0,"period":"1s","capacity":100,"write_ahead":0}"#).in_force_since(START - 10);
    for (capacity, carry) in [10, 1_000].into_iter().flat_map(|capacity| CARRIES.map(|carry| (capacity, carry))) {
        for crashes in [false, true] {
            let mut isolate = Isolate::new(base.clone());
            let mut world = isolate.world();
            world.decided(CONSUME, vec![50]);
            world.now += 1;
            let fields = format!(r#""rate":0,"period":"1s","capacity":{capacity}"#);
            isolate.carry(0, world.now, Some(&fields), Some(world.now + 10), Some(carry));
            isolate.tell(&mut world);
            let before = Arc::clone(&world.policy);
            world.levels();
            world.now += 10;
            isolate.tell(&mut world);
            let (after, level) = (Arc::clone(&world.policy), world.levels());
            for _ in 0..3 {
                for policy in [&before, &after] {
                    world.policy = Arc::clone(policy);
                    world.levels();
                    if crashes {
                        world.crash(usize::MAX);
                    }
                }
                assert_eq!(world.levels(), level, "{capacity} {carry:?}");
            }
        }
    }
}

/// The same override again resets if its change says so, even with a ban.
#[test]
fn a_reset_by_an_override_is_done_once() {
    for fields in [r#""rate":0,"period":"1s","capacity":10"#, r#""multiple":1"#, r#""unlimited":true"#] {
        let (mut isolate, mut world) = spent(fields, None);
        assert_eq!(world.levels(), [7], "{fields}");
        for _ in 0..2 {
            world.now += 1;
            isolate.carry(0, world.now, Some(fields), None, Some(Carry::Reset));
            isolate.tell(&mut world);
            assert_eq!(world.levels(), [10], "{fields}");
            world.decided(Action::Take(Verb::Charge), vec![4]);
            world.crash(usize::MAX);
            assert_eq!(world.levels(), [6], "{fields}");
        }
        // One of a prefix has no numbers for this key, if the key has its own.
        world.now += 1;
        isolate.carry(1, world.now, Some(r#""multiple":2"#), None, Some(Carry::Reset));
        isolate.tell(&mut world);
        let is_neutral = fields.contains("unlimited");
        assert_eq!(world.levels(), [if is_neutral { 20 } else { 6 }], "{fields}");
    }
}

/// Many bans must not hide changes of the prefix in between.
#[test]
fn a_ban_leaves_the_numbers_of_a_less_specific_override_in_force() {
    let base = policy(r#"{"rate":0,"period":"1s","capacity":13,"write_ahead":0}"#);
    let mut isolate = Isolate::new(base.in_force_since(START - 10));
    let mut world = isolate.world();
    world.decided(CONSUME, vec![13]);
    let ban = Some(r#""banned":true"#);
    isolate.set(0, START + 1, ban, None);
    isolate.set(0, START + 2, None, None);
    isolate.set(1, START + 3, Some(r#""rate":1000,"period":"1s","capacity":20,"write_ahead":0"#), None);
    isolate.set_at_each(0, 4..=6, ban);
    isolate.set_at_each(0, 8..=10, None);
    world.now = START + 10;
    isolate.tell(&mut world);
    assert_eq!(world.levels(), [7 + 7], "7 more, and 7 that came back");
}

/// A bucket without an override would not need the versions in between.
#[test]
fn a_key_with_its_own_numbers_refills_by_them_from_their_start_however_the_policy_changes() {
    let mut isolate = Isolate::new(policy(r#"{"rate":0,"period":"1s","capacity":1}"#).in_force_since(START - 10));
    let mut world = isolate.world();
    assert_eq!(world.levels(), [1]);
    isolate.set(0, START + 1, Some(r#""rate":7,"period":"1s","capacity":5,"write_ahead":0"#), None);
    isolate.replace(policy(r#"{"rate":6,"period":"1s","capacity":1}"#), START + 2, Carry::AsIs);
    isolate.replace(policy(r#"{"rate":0,"period":"1s","capacity":1}"#), START + 573, Carry::AsIs);
    world.now = START + 573;
    isolate.tell(&mut world);
    assert_eq!(world.levels(), [5], "7/s for 572 ms, on top of 1");
}

/// Boosts that come and go, of the key or of a prefix of it, by removal or by their `until`.
#[test]
fn an_idle_key_keeps_its_tokens_however_often_its_override_changes() {
    for index in [0, 1] {
        for times in [7, 8, 9, 10, 16, 17, 99] {
            for (plans, ends) in [
                ([Some(r#""multiple":2"#), None], false),
                ([Some(r#""multiple":2"#), Some(r#""multiple":3"#)], true),
                ([Some(r#""multiple":2"#), Some(r#""rate":0,"period":"1s","capacity":5000"#)], false),
                ([Some(r#""banned":true"#), Some(r#""multiple":2"#)], false),
                ([Some(r#""rate":0,"period":"1h","capacity":1500"#), Some(r#""unlimited":true"#)], true),
            ] {
                let base = policy(r#"{"rate":0,"period":"1s","capacity":1000,"write_ahead":0}"#);
                let mut isolate = Isolate::new(base.in_force_since(START - 10));
                let mut world = isolate.world();
                world.decided(CONSUME, vec![1]);
                for time in 0..times {
                    let at = START + 10 * (1 + time);
                    isolate.set(index, at, plans[usize::try_from(time).unwrap() % 2], ends.then_some(at + 5));
                }
                world.now = START + 5_000;
                isolate.tell(&mut world);
                let in_force = plans[usize::try_from(times - 1).unwrap() % 2].filter(|_| !ends);
                let capacity = match in_force {
                    Some(r#""multiple":2"#) => 2_000,
                    Some(plan) if plan.contains("5000") => 5_000,
                    _ => 1_000,
                };
                assert_eq!(world.levels(), [capacity - 1], "{index}, {times} of {plans:?}");
                isolate.set(index, START + 6_000, None, None);
                world.now = START + 7_000;
                isolate.tell(&mut world);
                assert_eq!(world.levels(), [999], "{index}, {times} of {plans:?}, removed");
            }
        }
    }
}

/// As far as the changes are known one by one, what came back at their rates; before that, at the slowest.
#[test]
fn a_key_refills_at_the_slowest_rate_while_its_changes_are_merged() {
    let base = policy(r#"{"rate":1,"period":"1s","capacity":1000,"write_ahead":0}"#);
    let mut isolate = Isolate::new(base.in_force_since(START - 10));
    let mut world = isolate.world();
    world.decided(CONSUME, vec![1_000]);
    for time in 0..41 {
        isolate.set(0, START + 1_000 * (1 + time), Some(r#""multiple":2"#).filter(|_| time % 2 == 0), None);
    }
    world.now = START + 41_000;
    isolate.tell(&mut world);
    let [level] = world.levels()[..] else { panic!() };
    // All of them one by one would be 1081.
    assert!((1_041..1_081).contains(&level), "{level}");
}

/// Policy versions that no ordinary key needs any more may matter to a key with an override.
#[test]
fn a_key_with_an_override_keeps_its_tokens_however_often_its_policy_changes() {
    for fields in [r#""rate":0,"period":"1s","capacity":2000,"write_ahead":0"#, r#""multiple":100"#] {
        let version = |rate: u32| policy(&format!(r#"{{"rate":{rate},"period":"1s","capacity":20}}"#));
        let mut isolate = Isolate::new(version(1).in_force_since(START - 10));
        isolate.set(0, START - 5, Some(fields), None);
        let mut world = isolate.world();
        world.decided(CONSUME, vec![1_001]);
        for time in 1..200_i64 {
            let rate = u32::try_from(1 + time % 2).unwrap();
            isolate.replace(version(rate), START + 20_000 * time, Carry::AsIs);
        }
        world.now = START + 20_000 * 200;
        isolate.tell(&mut world);
        let expected = if fields.contains("multiple") { 2_000 } else { 999 };
        assert_eq!(world.levels(), [expected], "{fields}");
    }
}

/// Neither a ban nor its end changes a bucket.
#[test]
fn bans_that_come_and_go_forget_no_change_of_numbers() {
    let base = policy(r#"{"rate":1,"period":"1s","capacity":1000,"write_ahead":0}"#);
    let mut isolate = Isolate::new(base.in_force_since(START - 10));
    let mut world = isolate.world();
    world.decided(CONSUME, vec![1_000]);
    isolate.set(1, START + 1_000, Some(r#""multiple":10"#), None);
    for time in 2..100 {
        isolate.set(0, START + 1_000 * time, Some(r#""banned":true"#).filter(|_| time % 2 == 0), None);
    }
    world.now = START + 100_000;
    isolate.tell(&mut world);
    assert_eq!(world.levels(), [10_000 - 999 + 10 * 99], "ten a second from then on");
}

proptest! {
    #![proptest_config(chance::config(2_000))]

    /// Whenever the key is used, with crashes and changes in between: the same decisions and the same level. After more changes than are
    /// kept, or more numbers, no more than the largest capacity and the fastest refill; with other ways to carry, not even that.
    #[test]
    fn a_bucket_follows_policy_and_overrides_as_if_carried_by_hand((base, events) in (configs(), events())) {
        follow_by_hand(base, events)?;
    }
}

fn follow_by_hand(base: Config, events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut by_hand = ByHand::new(base);
    let mut isolate = Isolate::new(policy(&json_of(&base)).in_force_since(START - 10));
    let mut world = isolate.world();
    // The object knows the bucket from the start.
    world.levels();
    let (mut changes, mut is_known, mut is_additive) = ([0; 2], true, true);
    let (mut grants, mut largest, mut fastest) = (Vec::new(), 0, 0);
    for event in events {
        match event {
            Event::Sleep(ms) => {
                by_hand.sleep(ms);
                world.now += ms;
                isolate.tell(&mut world);
            }
            Event::Consume(cost) => {
                let decided = world.decided(CONSUME, vec![cost]);
                let is_granted = by_hand.consume(cost);
                is_known &= changes.iter().all(|count| *count < MAX_CHANGES);
                if is_allowed(&decided) {
                    grants.push((world.now, granted(&decided)[0]));
                }
                // Numbers of which every bucket was full have no account any more, and begin anew if they return.
                let all_were_full =
                    world.policy.timeline().earlier().first().is_none_or(|version| version.since > START);
                let (left, expected) = (world.levels()[0], by_hand.level());
                let as_expected = (is_allowed(&decided), left) == (is_granted, expected);
                if is_known && all_were_full && !as_expected {
                    let not_taken = if is_granted && !is_allowed(&decided) { cost.cast_signed() } else { 0 };
                    let is_no_higher = is_granted >= is_allowed(&decided) && left <= expected + not_taken;
                    prop_assert!(is_no_higher, "{:?}: {} left, not {} at {}", decided, left, is_granted, expected);
                    is_known = false;
                }
                if is_known {
                    prop_assert!(as_expected, "{:?}: not {} at {}", decided, is_granted, expected);
                } else if is_additive {
                    let mut sum = 0;
                    for (at, tokens) in grants.iter().rev() {
                        sum += tokens;
                        let ms = (world.now - at).unsigned_abs();
                        prop_assert!(sum <= largest + fastest * ms / 1_000 + 1, "{sum} in {ms} ms");
                    }
                } else {
                    return Ok(());
                }
                is_known &= by_hand.accounts.len() <= 8; // of more, some are forgotten
            }
            Event::Override(index, kind, until) => {
                changes[index] += 1;
                pause(&mut by_hand, &mut world);
                let until = until.map(|ms| world.now + ms);
                by_hand.overrides[index] = kind.map(|kind| (kind, until));
                by_hand.carry_over(Carry::Additive);
                isolate.set(index, world.now, kind.map(Kind::fields).as_deref(), until);
                isolate.tell(&mut world);
            }
            Event::Policy(config, carry) => {
                is_additive &= carry == Carry::Additive;
                pause(&mut by_hand, &mut world);
                by_hand.base = config;
                by_hand.carry_over(carry);
                isolate.replace(policy(&json_of(&config)), world.now, carry);
                isolate.tell(&mut world);
            }
            Event::Crash => {
                world.crash(usize::MAX);
                // A bucket that was never below full is not stored: at the next request it is a new one.
                by_hand.is_new = !world.has_row();
            }
        }
        for (limit, _) in &by_hand.accounts {
            largest = largest.max(limit.config().capacity);
            // Of `rate` and period, only the ratio is kept.
            fastest = fastest.max((limit.config().rate * 1_000).div_ceil(limit.config().period_ms));
        }
    }
    Ok(())
}

/// The numbers of the prefix were in force for a moment, before those of the key, under which every bucket was full at once.
#[test]
fn numbers_that_return_after_every_bucket_was_full_begin_no_higher() {
    let base = Config { capacity: 33, ..Config::token_bucket(5, Duration::from_secs(1)) };
    let events = vec![
        Event::Override(1, Some(Kind::Times(2)), None),
        Event::Override(0, Some(Kind::Numbers(5, 0)), None),
        Event::Sleep(6_599),
        Event::Override(0, Some(Kind::Numbers(6, 18)), None),
        Event::Consume(6),
        Event::Sleep(333),
        Event::Override(0, None, None),
        Event::Consume(1),
    ];
    follow_by_hand(base, events).unwrap();
}

/// A customer's own billing day, time zone or unit: what is spent stays spent, when it comes and when it ends, and the windows of the policy
/// go on meanwhile.
#[test]
fn an_override_with_another_calendar_gives_no_tokens_but_at_its_own_openings() {
    const HOUR_MS: i64 = 3_600_000;
    // In November 2023; the start is on the 14th, a Tuesday.
    let november = |day: i64, hour: i64| (19_661 + day) * DAY_MS + hour * HOUR_MS;
    for crashes in [false, true] {
        for (windows, ends, table) in [
            (
                r#""calendar":"month","starts":20"#,
                november(25, 0),
                // at                     cost  left
                [
                    (november(20, 0) - 1, 0, 3),
                    (november(20, 0), 9, 1),
                    (november(25, 0), 0, -6),
                    (november(31, 0), 2, 2),
                ],
            ),
            (
                r#""calendar":"month","zone":"America/Sao_Paulo""#,
                november(31, 2),
                // The policy's own window has opened meanwhile.
                [
                    (november(31, 0) - 1, 1, 2),
                    (november(31, 2) - 1, 1, 1),
                    (november(31, 2), 3, 6),
                    (november(31, 3), 0, 6),
                ],
            ),
            (
                r#""calendar":"week","zone":"Europe/Berlin""#,
                november(22, 0),
                [
                    (november(19, 23) - 1, 1, 2),
                    (november(19, 23), 8, 2),
                    (november(22, 0), 0, -6),
                    (november(31, 0), 0, 4),
                ],
            ),
        ] {
            let base = policy(r#"{"kind":"fixed_window","rate":10,"calendar":"month","write_ahead":0}"#);
            let mut isolate = Isolate::new(base.in_force_since(START - 10));
            let mut world = isolate.world();
            assert!(is_allowed(&world.decided(CONSUME, vec![7])));
            world.now += 1;
            let fields = format!(r#""kind":"fixed_window","rate":10,"write_ahead":0,{windows}"#);
            isolate.set(0, world.now, Some(&fields), Some(ends));
            for (at, cost, left) in table {
                world.now = at;
                isolate.tell(&mut world);
                if crashes {
                    world.crash(usize::MAX);
                }
                assert!(cost == 0 || is_allowed(&world.decided(CONSUME, vec![cost])), "{windows}, {at}");
                assert_eq!(world.levels(), [left], "{windows}, {} h after 1 November", (at - november(1, 0)) / HOUR_MS);
            }
        }
    }
}
