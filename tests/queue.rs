//! Waiting callers beside the obvious version: a queue that is looked at every millisecond.

mod anywhere;
mod chance;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use anywhere::test;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate::keyed::{Full, Granted, KeyedLimiter, KeyedQueue, WaitError};
use tollgate::limit::{Config, Decision, Kind, Limit, Part, State, Verb, decide_all};

const START: i64 = 1_800_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Event {
    elapsed_ms: i64,
    act: Act,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Wait {
        key: u8,
        costs: [u64; 2],
        max_wait_ms: Option<u64>,
    },
    /// Drops a future that waits, if there is any: this one modulo their number.
    GiveUp(usize),
    /// Takes without waiting.
    Take {
        key: u8,
        costs: [u64; 2],
    },
}

/// When sleeps end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Timers {
    InTime,
    TooEarly,
    /// By up to this many milliseconds.
    Late(u64),
}

proptest! {
    #![proptest_config(chance::config(600))]

    /// The queue grants every caller in the same order and at the same moment as the obvious version, or refuses it for the same reason,
    /// even if others give up or take tokens without waiting.
    #[test]
    fn turns_are_those_of_a_queue_looked_at_every_millisecond(
        limits in limits(),
        is_early in any::<bool>(),
        events in prop::collection::vec(event(), 1..60),
    ) {
        // Asleep, a caller does not notice that others have taken the rest of a budget that never refills.
        let is_budget = limits.iter().any(|limit| limit.config().rate == 0);
        let has_effect = |event: &Event| !is_budget || !matches!(event.act, Act::Take { .. });
        let events: Vec<_> = events.into_iter().filter(has_effect).collect();
        let model = Model::of(&limits, &events);
        let run = Run::of(&limits, &events, if is_early { Timers::TooEarly } else { Timers::InTime });
        prop_assert_eq!(&run.ends, &model.ends);
        // Different keys have no order among them.
        let by_key = |grants: &[Grant]| (0..KEYS).map(|key| of_key(grants, key)).collect::<Vec<_>>();
        prop_assert_eq!(by_key(&run.grants), by_key(&model.grants));
        within_limits(&limits, &run.grants)?;
    }

    /// Late timers delay turns, but no caller overtakes another or is forgotten, and the limits still hold.
    #[test]
    fn late_timers_change_no_order_and_break_no_limit(
        limits in limits(),
        late_ms in 1_u64..50,
        events in prop::collection::vec(event(), 1..60),
    ) {
        let run = Run::of(&limits, &events, Timers::Late(late_ms));
        within_limits(&limits, &run.grants)?;
        for key in 0..KEYS {
            let order: Vec<usize> = of_key(&run.grants, key).iter().filter_map(|grant| grant.id).collect();
            prop_assert!(order.is_sorted(), "{order:?}");
        }
    }
}

/// What became of each caller that waited and did not give up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Granted(i64),
    Refused(WaitError),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Grant {
    key: u8,
    at: i64,
    costs: [u64; 2],
    /// Of the event, if it waited.
    id: Option<usize>,
}

fn of_key(grants: &[Grant], key: u8) -> Vec<Grant> {
    grants.iter().filter(|grant| grant.key == key).copied().collect()
}

/// All of it would be granted by the exact states, too, and is within the bound that the documentation promises.
fn within_limits(limits: &[Limit; 2], grants: &[Grant]) -> TestCaseResult {
    for key in 0..KEYS {
        let grants = of_key(grants, key);
        let mut states = new_states(limits);
        for (last, grant) in grants.iter().enumerate() {
            prop_assert!(consume(limits, &mut states, grant.at, grant.costs).is_allow(), "{grant:?}");
            for (i, config) in limits.iter().map(Limit::config).enumerate() {
                let mut tokens = 0;
                for first in grants[..=last].iter().rev() {
                    tokens += first.costs[i];
                    let periods = match config.kind {
                        Kind::TokenBucket => config.rate * grant.at.abs_diff(first.at) / config.period_ms,
                        Kind::FixedWindow => {
                            let window = |at: i64| at.unsigned_abs() / config.period_ms;
                            config.rate * (window(grant.at) - window(first.at))
                        }
                        Kind::FirstUseWindow => config.rate * grant.at.abs_diff(first.at).div_ceil(config.period_ms),
                        _ => unreachable!("a new kind"),
                    };
                    prop_assert!(tokens <= config.capacity + periods, "{first:?} to {grant:?}");
                }
            }
        }
    }
    Ok(())
}

#[derive(Default)]
struct Run {
    ends: BTreeMap<usize, End>,
    grants: Vec<Grant>,
}

type Wait<'a> = Pin<Box<dyn Future<Output = Result<Granted<'a, 2>, WaitError>> + Send + 'a>>;

struct Task<'a> {
    id: usize,
    key: u8,
    costs: [u64; 2],
    future: Wait<'a>,
    flag: Arc<Flag>,
}

impl Run {
    fn of(limits: &[Limit; 2], events: &[Event], timers: Timers) -> Self {
        let world = World::new();
        let queue = queue(*limits, 1_000, &world, timers);
        let mut run = Self::default();
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (id, event) in events.iter().enumerate() {
            for _ in 0..event.elapsed_ms {
                world.pass(1);
                run.poll(&mut tasks);
            }
            match event.act {
                Act::Wait { key, costs, max_wait_ms } => {
                    let queue = &queue;
                    let future = Box::pin(async move { queue.wait(&key, costs, max_wait_ms).await });
                    tasks.push(Task { id, key, costs, future, flag: Flag::woken() });
                }
                Act::GiveUp(number) if !tasks.is_empty() => drop(tasks.remove(number % tasks.len())),
                Act::GiveUp(_) => {}
                Act::Take { key, costs } => {
                    let at = world.now();
                    let answer = queue.limiter().decide(&key, at, costs, Verb::Consume).expect("there is room");
                    if answer.decision.is_allow() {
                        run.grants.push(Grant { key, at, costs, id: None });
                    }
                }
            }
            run.poll(&mut tasks);
            (0..KEYS).for_each(|key| {
                assert_eq!(queue.waiting(&key), tasks.iter().filter(|task| task.key == key).count());
            });
        }
        for _ in 0..PATIENCE_MS {
            if tasks.is_empty() {
                break;
            }
            world.pass(1);
            run.poll(&mut tasks);
        }
        assert!(tasks.is_empty(), "{} wait forever", tasks.len());
        run
    }

    /// Polls what was woken, the newest first, until nothing is.
    fn poll(&mut self, tasks: &mut Vec<Task<'_>>) {
        while let Some(i) = tasks.iter().rposition(|task| task.flag.take()) {
            let Task { id, key, costs, .. } = tasks[i];
            let waker = Waker::from(Arc::clone(&tasks[i].flag));
            let Poll::Ready(end) = tasks[i].future.as_mut().poll(&mut Context::from_waker(&waker)) else { continue };
            let end = match end {
                Ok(granted) => {
                    let taken = costs.map(|tokens| Decision::Allow { tokens, ready_at: granted.now });
                    assert_eq!(granted.parts.each_ref().map(|part| part.decision), taken);
                    self.grants.push(Grant { key, at: granted.now, costs, id: Some(id) });
                    End::Granted(granted.now)
                }
                Err(error) => End::Refused(error),
            };
            self.ends.insert(id, end);
            drop(tasks.remove(i));
        }
    }
}

/// Set when a task is woken.
struct Flag(AtomicBool);

impl Flag {
    fn woken() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A clock and its timers.
struct World {
    now: AtomicI64,
    sleeps: Mutex<Vec<(i64, Waker)>>,
    /// Chooses how late timers are.
    count: AtomicI64,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { now: AtomicI64::new(START), sleeps: Mutex::default(), count: AtomicI64::new(0) })
    }

    fn now(&self) -> i64 {
        self.now.load(Ordering::Relaxed)
    }

    fn pass(&self, ms: i64) {
        let now = self.now.fetch_add(ms, Ordering::Relaxed) + ms;
        let due: Vec<_> = self.sleeps.lock().expect("no panic").extract_if(.., |(at, _)| *at <= now).collect();
        for (_, waker) in due {
            waker.wake();
        }
    }

    fn sleep(self: &Arc<Self>, duration: Duration, timers: Timers) -> Timer {
        let ms = i64::try_from(duration.as_millis()).expect("short");
        let ms = match timers {
            Timers::InTime => ms,
            Timers::TooEarly => (ms / 2).max(1),
            Timers::Late(most_ms) => {
                let random = self.count.fetch_add(1, Ordering::Relaxed).unsigned_abs().wrapping_mul(7_919);
                ms.saturating_add_unsigned(random % (most_ms + 1))
            }
        };
        Timer { world: Arc::clone(self), at: self.now().saturating_add(ms) }
    }
}

struct Timer {
    world: Arc<World>,
    at: i64,
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now() >= self.at {
            return Poll::Ready(());
        }
        self.world.sleeps.lock().expect("no panic").push((self.at, context.waker().clone()));
        Poll::Pending
    }
}

fn queue<const N: usize>(limits: [Limit; N], max_keys: usize, world: &Arc<World>, timers: Timers) -> KeyedQueue<u8, N> {
    let (clock, sleep) = (Arc::clone(world), Arc::clone(world));
    let limiter = KeyedLimiter::new(limits, max_keys);
    KeyedQueue::new(limiter, move || clock.now(), move |duration| sleep.sleep(duration, timers))
}

/// The obvious version.
struct Model {
    limits: [Limit; 2],
    keys: BTreeMap<u8, Line>,
    ends: BTreeMap<usize, End>,
    grants: Vec<Grant>,
}

#[derive(Clone)]
struct Line {
    key: u8,
    states: [State; 2],
    waiters: VecDeque<(usize, [u64; 2])>,
}

impl Model {
    fn of(limits: &[Limit; 2], events: &[Event]) -> Self {
        let line = |key| (key, Line { key, states: new_states(limits), waiters: VecDeque::new() });
        let mut model =
            Self { limits: *limits, keys: (0..KEYS).map(line).collect(), ends: BTreeMap::new(), grants: Vec::new() };
        let mut now = START;
        // All that wait, in the order in which they came.
        let mut waiting: Vec<usize> = Vec::new();
        for (id, event) in events.iter().enumerate() {
            for _ in 0..event.elapsed_ms {
                now += 1;
                model.look(now);
            }
            waiting.retain(|id| !model.ends.contains_key(id));
            match event.act {
                Act::Wait { key, costs, max_wait_ms } => {
                    if let Some(error) = model.refusal(&model.keys[&key], now, costs, max_wait_ms) {
                        model.ends.insert(id, End::Refused(error));
                    } else {
                        model.line(key).waiters.push_back((id, costs));
                        waiting.push(id);
                    }
                }
                Act::GiveUp(number) if !waiting.is_empty() => {
                    let id = waiting.remove(number % waiting.len());
                    model.keys.values_mut().for_each(|line| line.waiters.retain(|waiter| waiter.0 != id));
                }
                Act::GiveUp(_) => {}
                Act::Take { key, costs } => {
                    if consume(limits, &mut model.line(key).states, now, costs).is_allow() {
                        model.grants.push(Grant { key, at: now, costs, id: None });
                    }
                }
            }
            model.look(now);
        }
        for _ in 0..PATIENCE_MS {
            if model.keys.values().all(|line| line.waiters.is_empty()) {
                break;
            }
            now += 1;
            model.look(now);
        }
        model
    }

    fn line(&mut self, key: u8) -> &mut Line {
        self.keys.get_mut(&key).expect("one of the keys")
    }

    fn look(&mut self, now: i64) {
        for line in self.keys.values_mut() {
            for (grant, end) in line.look(&self.limits, now) {
                self.ends.insert(grant.id.expect("it waited"), end);
                self.grants.extend((end == End::Granted(now)).then_some(grant));
            }
        }
    }

    fn refusal(&self, line: &Line, now: i64, costs: [u64; 2], max_wait_ms: Option<u64>) -> Option<WaitError> {
        let Some(max_wait_ms) = max_wait_ms else {
            return match consume(&self.limits, &mut line.states.clone(), now, costs) {
                Decision::Never { max } => Some(WaitError::Never { max }),
                _ => None,
            };
        };
        let mut line = line.clone();
        line.waiters.push_back((usize::MAX, costs));
        let looks = (now..now + PATIENCE_MS).flat_map(|now| line.look(&self.limits, now));
        let mut mine = looks.filter(|(grant, _)| grant.id == Some(usize::MAX));
        match mine.next().expect("all end").1 {
            End::Granted(turn_at) if turn_at.abs_diff(now) > max_wait_ms => {
                Some(WaitError::TooLong { turn_at, max_wait_ms })
            }
            End::Granted(_) => None,
            End::Refused(error) => Some(error),
        }
    }
}

impl Line {
    fn look(&mut self, limits: &[Limit; 2], now: i64) -> Vec<(Grant, End)> {
        let mut ends = Vec::new();
        while let Some(&(id, costs)) = self.waiters.front() {
            let end = match consume(limits, &mut self.states, now, costs) {
                Decision::Allow { .. } => End::Granted(now),
                Decision::Never { max } => End::Refused(WaitError::Never { max }),
                Decision::Wait { .. } => break,
            };
            self.waiters.pop_front();
            ends.push((Grant { key: self.key, at: now, costs, id: Some(id) }, end));
        }
        ends
    }
}

fn new_states(limits: &[Limit; 2]) -> [State; 2] {
    limits.map(|limit| limit.new_state(START, 0))
}

fn consume(limits: &[Limit; 2], states: &mut [State; 2], now: i64, costs: [u64; 2]) -> Decision {
    let mut parts = [0, 1].map(|i| Part::new(&limits[i], states[i], costs[i]));
    let decision = decide_all(&mut parts, now, Verb::Consume);
    *states = parts.map(|part| part.state);
    decision
}

const KEYS: u8 = 2;

/// Longer than all together wait: 60 of them, for at most 5 tokens of at most 40 ms each.
const PATIENCE_MS: i64 = 20_000;

fn limits() -> impl Strategy<Value = [Limit; 2]> {
    let rate = prop_oneof![9 => 1_u64..4, 1 => Just(0)];
    let limit = (rate, 1_u64..40, 1_u64..6, 0_u8..3).prop_map(|(rate, period_ms, capacity, kind)| {
        let period = Duration::from_millis(period_ms);
        let config = match kind {
            0 => Config::token_bucket(rate, period),
            1 => Config { offset_ms: Some(0), ..Config::fixed_window(rate, period) },
            _ => Config::first_use_window(rate, period),
        };
        Limit::new(&Config { capacity, ..config }).expect("small numbers are exact")
    });
    [limit.clone(), limit]
}

fn event() -> impl Strategy<Value = Event> {
    let costs = || prop_oneof![8 => [0_u64..3, 0_u64..3], 1 => [0_u64..7, 0_u64..7]];
    let max_wait_ms = prop_oneof![Just(None), (0_u64..200).prop_map(Some)];
    let act = prop_oneof![
        6 => (0..KEYS, costs(), max_wait_ms).prop_map(|(key, costs, max_wait_ms)| Act::Wait { key, costs, max_wait_ms }),
        2 => any::<usize>().prop_map(Act::GiveUp),
        1 => (0..KEYS, costs()).prop_map(|(key, costs)| Act::Take { key, costs }),
    ];
    (prop_oneof![3 => 0_i64..2, 1 => 0_i64..40], act).prop_map(|(elapsed_ms, act)| Event { elapsed_ms, act })
}

fn per_second(rate: u64) -> [Limit; 1] {
    [Limit::new(&Config::token_bucket(rate, Duration::from_secs(1))).expect("exact")]
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn those_behind_one_that_gives_up_move_up_and_nothing_is_lost() {
    let world = World::new();
    let queue = queue(per_second(4), 10, &world, Timers::InTime);
    assert!(queue.limiter().try_consume(&1, START, 4));
    let mut large = Box::pin(queue.wait(&1, [4], None));
    let mut small = Box::pin(queue.wait(&1, [1], None));
    assert!(poll(large.as_mut()).is_pending());
    assert!(poll(small.as_mut()).is_pending());
    let error = poll(pin!(queue.wait(&1, [1], Some(1_400)))).map(|end| end.expect_err("after both"));
    assert_eq!(error, Poll::Ready(WaitError::TooLong { turn_at: START + 1_500, max_wait_ms: 1_400 }));
    world.pass(800);
    assert!(poll(small.as_mut()).is_pending()); // there are 3 tokens, but it is not its turn
    drop(large);
    let Poll::Ready(Ok(answer)) = poll(small.as_mut()) else { panic!("it is its turn") };
    assert_eq!((answer.now, answer.parts[0].limit.remaining(&answer.parts[0].state, answer.now)), (START + 800, 2));
    assert_eq!(queue.waiting(&1), 0);
}

#[test]
fn those_behind_one_that_is_late_are_told_so() {
    let world = World::new();
    let [second] = per_second(1);
    let day = Limit::new(&Config::fixed_window(1_000, Duration::from_hours(24))).expect("exact"); // for which the key is not forgotten
    let queue = queue([second, day], 10, &world, Timers::InTime);
    assert!(queue.limiter().try_consume(&1, START, 1));
    let mut waits = [0, 1].map(|_| Box::pin(queue.wait(&1, [1, 1], Some(2_000))));
    assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
    let turn_at = || match poll(pin!(queue.wait(&1, [1, 1], Some(0)))) {
        Poll::Ready(Err(WaitError::TooLong { turn_at, .. })) => turn_at - START,
        _ => panic!("others wait"),
    };
    assert_eq!(turn_at(), 3_000);
    world.pass(1_000);
    assert_eq!(turn_at(), 3_000);
    world.pass(1_500); // and the first has not been polled: the bucket is full for a second and a half
    assert_eq!(turn_at(), 4_500);
}

#[test]
fn a_full_table_refuses_at_once() {
    let world = World::new();
    let queue = queue(per_second(1), 1, &world, Timers::InTime);
    assert!(queue.limiter().try_consume(&1, START, 1));
    let Poll::Ready(Err(WaitError::Full(Full { retry_at, .. }))) = poll(pin!(queue.wait(&2, [1], None))) else {
        panic!("there is no room")
    };
    assert_eq!(retry_at, Some(START + 1_000));
    assert_eq!(queue.waiting(&2), 0);
}

/// A small step counts as no time elapsed, so a caller who reads the clock waits longer by it.
#[test]
fn the_longest_wait_is_counted_from_the_clock_as_it_is() {
    let world = World::new();
    let queue = queue(per_second(1), 10, &world, Timers::InTime);
    assert!(queue.limiter().try_consume(&1, START, 1));
    world.pass(-30_000);
    for others in [0, 1] {
        let mut waits: Vec<_> = (0..others).map(|_| Box::pin(queue.wait(&1, [1], None))).collect();
        assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
        let wait_ms = 31_000 + 1_000 * others;
        assert!(matches!(
            poll(pin!(queue.wait(&1, [1], Some(wait_ms - 1)))),
            Poll::Ready(Err(WaitError::TooLong { .. }))
        ));
        assert!(poll(pin!(queue.wait(&1, [1], Some(wait_ms)))).is_pending());
    }
}

#[test]
fn after_a_step_of_the_clock_turns_follow_it() {
    for step_ms in [-365 * 86_400_000, 365 * 86_400_000] {
        let world = World::new();
        let queue = queue(per_second(1), 10, &world, Timers::InTime);
        assert!(queue.limiter().try_consume(&1, START, 1));
        let mut waits = [0, 1].map(|_| Box::pin(queue.wait(&1, [1], None)));
        assert!(waits.iter_mut().all(|wait| poll(wait.as_mut()).is_pending()));
        world.pass(step_ms);
        let [first, mut second] = waits;
        drop(first); // whose timer may know nothing of the step
        if step_ms < 0 {
            assert!(poll(second.as_mut()).is_pending());
            world.pass(999);
            assert!(poll(second.as_mut()).is_pending());
            world.pass(1);
        }
        assert!(poll(second.as_mut()).is_ready());
    }
}

#[test]
fn jitter_comes_after_the_grant_of_those_that_waited_and_delays_no_other() {
    let world = World::new();
    let queue = queue(per_second(1), 10, &world, Timers::InTime).with_jitter(1_500, || u64::MAX);
    assert!(poll(pin!(queue.wait(&1, [1], None))).is_ready());
    let mut waits: Vec<_> = (1..=2).map(|number| (number, Box::pin(queue.wait(&1, [1], None)))).collect();
    let mut ends = Vec::new();
    for ms in 0..5_000 {
        waits.retain_mut(|(number, wait)| {
            let has_ended = poll(wait.as_mut()).is_ready();
            ends.extend(has_ended.then_some((*number, ms)));
            !has_ended
        });
        world.pass(1);
    }
    assert_eq!(ends, [(1, 2_500), (2, 3_500)]);
}

#[cfg(not(target_family = "wasm"))]
#[tokio::test(start_paused = true)]
async fn tasks_of_tokio_get_their_turns_in_order() {
    let start = tokio::time::Instant::now();
    let clock = move || START.saturating_add_unsigned(u64::try_from(start.elapsed().as_millis()).expect("short"));
    let queue = Arc::new(KeyedQueue::new(KeyedLimiter::<String>::new(per_second(10), 100), clock, tokio::time::sleep));
    assert!(queue.wait("alice", [10], None).await.is_ok());
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.wait("alice", [1], None).await.map(|answer| answer.now) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(150)).await;
    tasks[5].abort(); // its turn would be at 600
    let mut turns = Vec::new();
    for task in tasks {
        turns.extend(task.await.ok().map(|turn| turn.expect("granted") - START));
    }
    assert_eq!(turns, (1..20).map(|i| 100 * i).collect::<Vec<_>>());
    assert_eq!(queue.waiting("alice"), 0);
}

#[cfg(not(target_family = "wasm"))]
#[test]
fn threads_that_wait_get_exactly_the_tokens_there_are() {
    let now = Arc::new(AtomicI64::new(START));
    let (clock, timer) = (Arc::clone(&now), Arc::clone(&now));
    // Only a sleep moves the clock.
    let sleep = move |duration: Duration| {
        let ms = i64::try_from(duration.as_millis()).expect("short");
        timer.fetch_add(ms, Ordering::Relaxed);
        std::future::ready(())
    };
    // All of it within a minute: a thread that is behind by more than that would set the clock back.
    let limit =
        Limit::new(&Config { capacity: 10, ..Config::token_bucket(1_000, Duration::from_secs(1)) }).expect("exact");
    let limiter = KeyedLimiter::<u8>::new([limit], 100);
    let queue = KeyedQueue::new(limiter, move || clock.load(Ordering::Relaxed), sleep);
    let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                runtime().block_on(async {
                    for _ in 0..1_000 {
                        assert!(queue.wait(&1, [1], None).await.is_ok());
                    }
                });
            });
        }
    });
    // 10 at once, and all others one after the other. The sleep of each ends at its turn.
    assert_eq!(now.load(Ordering::Relaxed), START + 3_990);
    assert_eq!(queue.waiting(&1), 0);
}
