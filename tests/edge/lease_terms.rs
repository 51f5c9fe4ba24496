//! Leases of one frontend and one object that answers at once: when refused requests pass, and what is withheld after changes and
//! restarts.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use tollgate::edge::MAX_BUDGETS;
use tollgate::frontend::{Asked, Call, Isolate, Memory, Service, Settings, Step};
use tollgate::limit::{Decision, Verb};
use tollgate::policy::{Policies, Policy};
use tollgate::protocol::{Action, Decided, EndedLease, Format, Lease, LeaseRequest, ObjectReply, ObjectRequest, Rows};

use super::asked::request;
use super::frontend::{Told, cost_of, now as moment};
use super::leases::policy;
use super::leasing::{Object, START, Seen, signed};
use super::random;

/// Without other callers, a request refused by an object or a frontend passes at the reported moment.
#[test]
fn a_lone_client_is_granted_at_its_retry_at() {
    let (mut asked, mut refused) = (0, 0);
    random::cases(1_000, |random| {
        let policy = of(&policy(random));
        let mut pair = Pair::new();
        for _ in 0..100 {
            asked += 1;
            let capacities = policy.limits().iter().map(|limit| limit.limit().config().capacity);
            let costs: Vec<_> = capacities.map(|most| most.min(1 + random.below(4) as u64)).collect();
            if let Decision::Wait { retry_at } = pair.decision(&policy, &costs) {
                refused += 1;
                assert!(retry_at > pair.now);
                pair.now = retry_at;
                let again = pair.decision(&policy, &costs);
                assert!(again.is_allow(), "{costs:?} refused again: {again:?}");
            }
            pair.now += signed(random.below(100));
        }
    });
    if asked >= 100_000 {
        assert!(refused > 100, "too few to show anything");
    }
}

/// The same if it has been refused other costs since the last grant, and idle leases are returned.
#[test]
fn a_lone_client_that_remembers_refusals_is_granted_at_its_retry_at() {
    let (mut asked, mut refused, mut remembered) = (0, 0, 0);
    random::cases(1_000, |random| {
        let policy = of(&policy(random));
        let mut pair = Pair::new();
        for _ in 0..200 {
            asked += 1;
            let capacities = policy.limits().iter().map(|limit| limit.limit().config().capacity);
            let most = [4, 4, 100][random.below(3)];
            let costs: Vec<_> = capacities.map(|all| all.min(1 + random.below(most) as u64)).collect();
            if let Decision::Wait { retry_at } = pair.decision(&policy, &costs) {
                refused += 1;
                assert!(retry_at > pair.now);
                if random.once_in(2) {
                    pair.go_to(&policy, retry_at);
                    let again = pair.decision(&policy, &costs);
                    assert!(again.is_allow(), "{costs:?} refused again: {again:?}");
                }
            }
            let later = pair.now + signed(random.below(100));
            pair.go_to(&policy, later);
        }
        remembered += pair.remembered;
    });
    println!("{refused} refused, {remembered} of them from memory");
    if asked >= 100_000 {
        assert!(refused > 100 && remembered > 10, "too few to show anything");
    }
}

/// Large costs refused from memory end no leases: small ones are still granted from them. A cost of the whole capacity leaves little.
#[test]
fn large_costs_among_small_ones_leave_more_than_half_to_leases_and_memory() {
    let policy = of(r#"{"p":{"rate":1000,"period":"1s","lease":"2s"}}"#);
    let most = [(1, 100, 7_000), (2, 100, 6_000), (1, 300, 9_000), (2, 300, 6_000), (1, 1_000, 17_000)];
    for (large_of_five, large, most) in most {
        let mut pair = Pair::new();
        for i in 0..20_000 {
            pair.ask(&policy, if i % 5 < large_of_five { large } else { 1 });
            let later = pair.now + 2;
            pair.go_to(&policy, later);
        }
        let Pair { calls, remembered, .. } = pair;
        println!("{large_of_five} of five cost {large}: {calls} calls, {remembered} refused from memory");
        assert!(calls < most, "{calls} calls");
    }
}

const KEY: &str = "alice";

/// A frontend, whose policies may change, and an object, without a network.
pub(crate) struct Pair {
    memory: Rc<RefCell<Memory>>,
    isolate: Rc<Isolate>,
    object: Object,
    pub(crate) now: i64,
    /// When to check which lease.
    timers: Vec<(i64, Call)>,
    /// The refusals from memory.
    pub(crate) remembered: u64,
    pub(crate) calls: u64,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let isolate = Rc::new(Isolate::default());
        let (memory, timers, remembered, calls) = Default::default();
        Self { memory, isolate, object: Object::new(), now: START, timers, remembered, calls }
    }

    /// The fourth request from now brings a lease: those before it were not answered.
    fn make_busy(&mut self, policy: &Arc<Policy>) {
        let costs = vec![1; policy.limits().len()];
        let wants_lease =
            |pair: &Self| pair.begun(policy, KEY, &costs).next(moment(pair.now)).unwrap().request.lease.is_some();
        let other = Self { now: self.now, ..Self::new() };
        let enough = (1..100).find(|_| wants_lease(&other)).unwrap();
        for _ in 4..enough {
            assert!(!wants_lease(self));
        }
    }

    /// Requests this cost of each limit, and returns whether it was granted.
    pub(crate) fn ask(&mut self, policy: &Arc<Policy>, cost: u64) -> bool {
        self.decision(policy, &vec![cost; policy.limits().len()]).is_allow()
    }

    /// The answer to a request of these costs. All calls are answered at once.
    fn decision(&mut self, policy: &Arc<Policy>, costs: &[u64]) -> Decision {
        let mut call = self.begun(policy, KEY, costs);
        self.answer(policy, &mut call);
        let told = Told::by(call.reply(moment(self.now)));
        self.object.stored.answered_from(policy, told.source.as_deref());
        self.remembered += u64::from(told.source.as_deref() == Some("cache"));
        if let Some(renewal) = call.renewal(moment(self.now)) {
            self.send(policy, renewal);
        }
        self.watch(call);
        told.decision()
    }

    /// A request of these costs for this key arrives at the frontend.
    fn begun(&self, policy: &Arc<Policy>, key: &str, costs: &[u64]) -> Call {
        let policies = Arc::new(Policies::of([Arc::clone(policy)]));
        let settings = Settings { memory: Rc::clone(&self.memory), ..Settings::trusting(policies) };
        let service = Service::new(Ok(settings), Rc::clone(&self.isolate));
        let body = format!(r#"{{"policy":"p","key":"{key}","cost":{}}}"#, cost_of(policy, costs));
        let asked = Asked { url: "/v1/consume", body: body.as_bytes(), ..Asked::default() };
        match service.ask(&asked, moment(self.now), &mut || Some(7)) {
            Step::Call(call) => *call,
            _ => panic!("{body}"),
        }
    }

    /// Makes the calls.
    fn answer(&mut self, policy: &Arc<Policy>, call: &mut Call) {
        while let Some(next) = call.next(moment(self.now)) {
            let decided = self.pass(policy, &next.request);
            call.answered(next.object, Some((ObjectReply::Decided(decided), Rows::default())), moment(self.now));
        }
    }

    /// Makes a call about leases.
    fn send(&mut self, policy: &Arc<Policy>, mut call: Call) {
        self.answer(policy, &mut call);
        self.watch(call);
    }

    fn watch(&mut self, call: Call) {
        if let Some(ms) = call.lease_ms() {
            self.timers.push((self.now.saturating_add_unsigned(ms), call));
        }
    }

    /// Time passes, and idle leases are returned.
    fn go_to(&mut self, policy: &Arc<Policy>, moment: i64) {
        let first = |timers: &[(i64, Call)]| (0..timers.len()).min_by_key(|&index| timers[index].0);
        while let Some(index) = first(&self.timers).filter(|&index| self.timers[index].0 <= moment) {
            let (at, call) = self.timers.remove(index);
            self.now = self.now.max(at);
            self.ring(policy, call);
        }
        self.now = moment;
    }

    /// It is time to check the lease that came with a call.
    fn ring(&mut self, policy: &Arc<Policy>, mut call: Call) {
        if let Some(ended) = call.end_lease(moment(self.now)) {
            self.send(policy, ended);
        }
        self.watch(call);
    }

    /// Calls the object, which must answer, as another frontend.
    fn call(&mut self, policy: &Arc<Policy>, action: Action, costs: Vec<u64>, lease: Option<LeaseRequest>) -> Decided {
        self.pass(policy, &ObjectRequest { lease, ..request(action, vec![costs]) })
    }

    fn pass(&mut self, policy: &Arc<Policy>, request: &ObjectRequest) -> Decided {
        self.calls += 1;
        let request = ObjectRequest::from_text(&request.to_text(Format::NEWEST)).unwrap().0;
        match self.object.ask(slice::from_ref(policy), &request, self.now, &mut Seen::default()) {
            ObjectReply::Decided(decided) => decided,
            other => panic!("{other:?}"),
        }
    }

    /// The tokens left for all others.
    fn remaining(&mut self, policy: &Arc<Policy>) -> Vec<u64> {
        let nothing = vec![0; policy.limits().len()];
        let decided = self.call(policy, Action::Look(Verb::Consume), nothing, None);
        decided.limits.iter().map(|limit| limit.remaining).collect()
    }

    /// Returns all leases as their timers would without requests.
    fn rest(&mut self, policy: &Arc<Policy>) {
        self.now += 9_000;
        for (_, call) in mem::take(&mut self.timers) {
            self.ring(policy, call);
        }
    }
}

fn with_limits(limits: &str) -> Arc<Policy> {
    of(&format!(r#"{{"p":{{"limits":[{limits}],"refusal_cache":"0s","lease":"10s"}}}}"#))
}

pub(crate) fn of(policies: &str) -> Arc<Policy> {
    Arc::clone(Policies::parse(policies).unwrap().get("p").unwrap())
}

/// Two generations of budgets are kept, and the object counts forgotten leases as spent.
#[test]
fn a_key_keeps_its_leases_unless_thousands_of_others_are_asked_between_its_requests() {
    let policy = with_limits(r#"{"name":"a","rate":0,"period":"1s","capacity":1000,"write_ahead":0}"#);
    for (others, is_kept) in [(2 * MAX_BUDGETS - 1, true), (2 * MAX_BUDGETS, false)] {
        let mut pair = Pair::new();
        pair.make_busy(&policy);
        for _ in 0..5 {
            assert!(pair.ask(&policy, 1));
        }
        let calls = pair.calls;
        for other in 0..others {
            pair.begun(&policy, &format!("other {other}"), &[1]).next(moment(pair.now));
        }
        assert!(pair.ask(&policy, 1));
        assert_eq!(pair.calls == calls, is_kept, "after {others} others");
        pair.rest(&policy);
        pair.now += 20_000;
        let left = pair.remaining(&policy)[0];
        assert!(if is_kept { left == 994 } else { left < 994 }, "{left} are left after {others} others");
    }
}

/// The refusal is older than the lease: the isolate remembers it with the lease's tokens still available.
#[test]
fn a_wait_from_memory_is_not_short_of_what_a_lease_has_granted_since() {
    let policy = of(r#"{"p":{"rate":"100/s","capacity":100,"write_ahead":0,"lease":"2s"}}"#);
    let wait = |pair: &mut Pair, cost| match pair.decision(&policy, &[cost]) {
        Decision::Wait { retry_at } => retry_at - pair.now,
        other => panic!("{other:?}"),
    };
    // What was granted and 97 fit into the bucket; with 99 the object is asked.
    for (cost, remembered) in [(97, 1), (99, 0)] {
        let mut pair = Pair::new();
        pair.make_busy(&policy);
        for _ in 0..3 {
            assert!(pair.ask(&policy, 1));
        }
        pair.call(&policy, Action::Take(Verb::Consume), vec![97], None); // by another isolate
        let wait_ms = wait(&mut pair, 50);
        pair.now += wait_ms;
        // From a lease of future tokens.
        for _ in 0..3 {
            assert!(pair.ask(&policy, 1));
        }
        let wait_ms = wait(&mut pair, cost);
        assert_eq!(pair.remembered, remembered, "{cost}");
        pair.now += wait_ms;
        assert!(pair.ask(&policy, cost), "after {wait_ms} ms");
    }
}

#[test]
fn a_key_under_numbers_that_are_not_leased_is_refused_from_memory() {
    let leased = of(r#"{"p":{"rate":"100/s","capacity":100,"lease":"2s"}}"#);
    let plain = of(r#"{"p":{"rate":"1/s","capacity":100}}"#);
    let mut pair = Pair::new();
    pair.make_busy(&leased);
    for _ in 0..5 {
        assert!(pair.ask(&leased, 1));
    }
    assert!(pair.remaining(&leased)[0] < 95, "something is left of a lease");
    for remembered in [0, 1] {
        assert!(!pair.ask(&plain, 100));
        assert_eq!(pair.remembered, remembered);
    }
}

#[test]
fn a_policy_that_gains_or_loses_a_limit_still_works() {
    let one = with_limits(r#"{"name":"a","rate":1,"period":"1day","capacity":1000}"#);
    let two = with_limits(
        r#"{"name":"b","rate":1,"period":"1day","capacity":900},{"name":"a","rate":1,"period":"1day","capacity":1000}"#,
    );
    let mut pair = Pair::new();
    pair.make_busy(&one);
    for policy in [&one, &two, &one] {
        for _ in 0..20 {
            assert!(pair.ask(policy, 1));
        }
    }
    // Everything that is leased is withheld, under whatever numbers.
    assert!(pair.remaining(&one)[0] <= 1_000 - 60);
}

#[test]
fn what_is_leased_under_earlier_numbers_is_withheld_under_new_ones() {
    let (hundred, more) = (100, 110);
    let policy = |capacity| with_limits(&format!(r#"{{"name":"a","rate":100,"period":"1s","capacity":{capacity}}}"#));
    for crashes in [false, true] {
        let mut pair = Pair::new();
        pair.make_busy(&policy(hundred));
        for _ in 0..4 {
            assert!(pair.ask(&policy(hundred), 1));
        }
        let lent = 100 - 4 - pair.remaining(&policy(hundred))[0];
        assert!(lent > 0);
        if crashes {
            pair.object.crash();
        }
        pair.remaining(&policy(more));
        pair.now += 5_000;
        assert_eq!(pair.remaining(&policy(more)), [110 - lent]);
    }
}

#[test]
fn a_restarted_object_takes_back_returned_tokens() {
    let policy = with_limits(r#"{"name":"a","rate":1,"period":"1day","capacity":1000,"write_ahead":0}"#);
    let mut pair = Pair::new();
    pair.make_busy(&policy);
    for _ in 0..20 {
        assert!(pair.ask(&policy, 1));
    }
    assert!(pair.remaining(&policy)[0] < 980);
    for _ in 0..3 {
        pair.object.crash();
        pair.rest(&policy);
    }
    assert_eq!(pair.remaining(&policy), [980]);
}

#[test]
fn a_lease_in_use_when_checked_is_returned_later() {
    let policy = with_limits(r#"{"name":"a","rate":1,"period":"1day","capacity":1000,"write_ahead":0}"#);
    let mut pair = Pair::new();
    pair.make_busy(&policy);
    for number in 1..=50 {
        assert!(pair.ask(&policy, 1));
        pair.go_to(&policy, START + number * 100);
    }
    assert!(pair.remaining(&policy)[0] < 950);
    pair.go_to(&policy, START + 25_000);
    assert_eq!(pair.remaining(&policy), [950]);
}

#[test]
fn a_cost_that_fits_once_leases_are_returned_is_not_refused_for_ever() {
    let policy = with_limits(r#"{"name":"a","rate":0,"period":"1s","capacity":100}"#);
    let mut pair = Pair::new();
    pair.make_busy(&policy);
    for _ in 0..4 {
        assert!(pair.ask(&policy, 1));
    }
    assert!(pair.remaining(&policy)[0] < 96);
    let decided = pair.call(&policy, Action::Take(Verb::Consume), vec![96], None);
    assert!(decided.limits[0].retry_at().is_some(), "{decided:?}");
    pair.rest(&policy);
    assert!(pair.call(&policy, Action::Take(Verb::Consume), vec![96], None).decision().is_allow());
    let decided = pair.call(&policy, Action::Take(Verb::Consume), vec![1], None);
    assert_eq!(decided.limits[0].retry_at(), None, "now it is");
}

/// A message may arrive twice, with a crash in between.
#[test]
fn returned_tokens_are_not_returned_again_after_a_crash() {
    let policy = with_limits(r#"{"name":"a","rate":1,"period":"1day","capacity":1000,"write_ahead":500}"#);
    let mut pair = Pair::new();
    let about = |wanted, ended| LeaseRequest { lease_ms: 10_000, horizon_ms: 0, wanted: vec![wanted], ended };
    let nothing = Action::Look(Verb::Consume);
    let decided = pair.call(&policy, nothing, vec![0], Some(about(100, Vec::new())));
    let Lease { id, tokens, .. } = decided.lease.unwrap();
    assert_eq!(tokens, [100]);
    let ended = about(0, vec![EndedLease { id, spent: vec![0] }]);
    pair.call(&policy, nothing, vec![0], Some(ended.clone()));
    assert_eq!(pair.remaining(&policy), [1_000]);
    for granted in (50..=900).step_by(50) {
        assert!(pair.call(&policy, Action::Take(Verb::Consume), vec![50], None).decision().is_allow());
        let mut crashed = Pair { object: pair.object.restarted(), now: pair.now, ..Pair::new() };
        crashed.call(&policy, nothing, vec![0], Some(ended.clone()));
        let left = crashed.remaining(&policy)[0];
        assert!(left <= 1_000 - granted, "{left} after {granted}");
    }
}

/// While a request computes, its clock stands still: it may spend a lease that is over.
#[test]
fn a_lease_is_withheld_for_three_seconds_after_its_end_and_then_spent() {
    let policy = with_limits(r#"{"name":"a","rate":10,"period":"1s","capacity":10}"#);
    let mut pair = Pair::new();
    let about = |wanted, ended| LeaseRequest { lease_ms: 500, horizon_ms: 0, wanted: vec![wanted], ended };
    let nothing = Action::Look(Verb::Consume);
    let lease = pair.call(&policy, nothing, vec![0], Some(about(5, Vec::new()))).lease.unwrap();
    assert_eq!((&*lease.tokens, lease.until), (&[5][..], START + 500));
    // All five may have been spent at 700: then one bucket has nine.
    for at in [1_100, 3_499] {
        pair.now = START + at;
        assert_eq!(pair.remaining(&policy), [5], "{at}");
    }
    let ended = EndedLease { id: lease.id, spent: vec![1] };
    for (at, left) in [(3_499, 9), (3_500, 5)] {
        let mut late = Pair { object: pair.object.restarted(), now: START + at, ..Pair::new() };
        late.call(&policy, nothing, vec![0], Some(about(0, vec![ended.clone()])));
        assert_eq!(late.remaining(&policy), [left], "{at}");
    }
}
