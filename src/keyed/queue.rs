//! Callers that wait for their turn: for each key, first come, first served.
//!
//! The simplest way to wait is to sleep until a refusal's `retry_at` and to try again. Then the order is that of waking, and a large cost
//! may never pass beside small ones. Reserving future tokens ([`Verb::Reserve`]) gives an order. But a cancelled reservation
//! leaves a gap. Unless everyone behind it moves up, its tokens cannot go to anyone else: the limit would later admit too much. And with
//! several limits, the fastest is debited long before the slowest lets the caller start.
//!
//! So callers wait in a line, and the first of it takes its tokens at the moment at which they are there. Only the first one sleeps; it
//! wakes the next when it leaves. A caller that gives up has taken nothing, so there is nothing to give back, and all behind it move up.

use core::borrow::Borrow;
use core::fmt;
use core::future::poll_fn;
use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::rules::{OwnBudget, Rules};
use super::{Answer, Full, KeyedLimiter, owned};
use crate::limit::{Decision, Part, Verb, jitter};

/// A [`KeyedLimiter`] whose callers can wait for their turn: for each key, first come, first served within this process. Use this to
/// slow callers down instead of refusing them, such as your own requests to an API with a limit.
///
/// The clock and the sleep are arguments, so any runtime with `Send` timers works. For one budget without keys, let the key be `()`.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use tollgate::keyed::{KeyedLimiter, KeyedQueue};
/// use tollgate::limit::{Config, Limit};
/// use tollgate::unix_ms;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // 100 per second, and 2 at once.
/// let mut config = Config::token_bucket(100, Duration::from_secs(1));
/// config.capacity = 2;
/// let limiter = KeyedLimiter::<()>::new([Limit::new(&config)?], 1);
/// let queue = KeyedQueue::new(limiter, || unix_ms(SystemTime::now()), tokio::time::sleep);
/// for _ in 0..5 {
///     queue.wait(&(), [1], None).await?; // the third of them waits for 10 ms, as do those after it
///     // ... send a request
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Promises
/// * Tokens are taken at the moment at which [`KeyedQueue::wait`] is granted, as by [`KeyedLimiter::consume`]. So the limits hold for these
///   moments exactly, also with several limits, after cancelled waits and when a timer is late.
/// * Callers who wait for the same key never overtake each other. Callers of [`KeyedQueue::limiter`] that do not wait take tokens
///   whenever there are enough, and may so delay those who wait, without a bound.
/// * A future that is dropped while it waits has taken nothing, except in the delay of [`KeyedQueue::with_jitter`]. The others wait as if it had never come.
/// * The first of a line must be polled for the others to get on, as with an asynchronous mutex. A future that is kept without being polled
///   holds up its key.
///
/// A sleep that ends early is repeated. One that ends late loses nothing while the bucket has room for what comes back meanwhile: to reach
/// the rate with timers of 1 ms, let the capacity exceed a cost by what comes back in 2 ms.
pub struct KeyedQueue<K, const N: usize = 1, S = RandomState> {
    limiter: KeyedLimiter<K, N, S>,
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
    sleep: Sleep,
    jitter: Option<Jitter>,
    lines: Mutex<Lines<K, N>>,
}

type Sleep = Box<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

struct Jitter {
    spread_ms: u64,
    random: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// Why a caller does not wait. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The turn would come later than the longest wait allows.
    TooLong {
        /// When it would come, if those ahead neither give up nor are late, and all other callers take and give back nothing.
        turn_at: i64,
        /// The longest wait, as given.
        max_wait_ms: u64,
    },
    /// The cost is larger than anything the limits can grant.
    Never {
        /// The largest cost that could pass.
        max: u64,
    },
    /// There is no entry for a new key.
    Full(Full),
}

/// What a caller was granted at its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Granted<'a, const N: usize> {
    /// The moment of the grant: the clock's, or a later one seen before.
    pub now: i64,
    /// Each limit with its own answer and the resulting state.
    pub parts: [Part<'a>; N],
}

impl<'a, const N: usize> From<Answer<'a, N>> for Granted<'a, N> {
    fn from(Answer { now, parts, .. }: Answer<'a, N>) -> Self {
        Self { now, parts }
    }
}

impl<K: Hash + Eq, const N: usize, S: BuildHasher> KeyedQueue<K, N, S> {
    /// A queue in front of `limiter`. `clock` gives the Unix milliseconds; `sleep` returns a future that is ready after a duration, such as
    /// `tokio::time::sleep`.
    #[must_use]
    pub fn new<F>(
        limiter: KeyedLimiter<K, N, S>,
        clock: impl Fn() -> i64 + Send + Sync + 'static,
        sleep: impl Fn(Duration) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let sleep: Sleep = Box::new(move |duration| Box::pin(sleep(duration)));
        let lines = Mutex::new(Lines { of: HashMap::new(), last_ticket: 0 });
        Self { limiter, clock: Box::new(clock), sleep, jitter: None, lines }
    }

    /// The same, but a caller that had to wait sleeps for up to `spread_ms` more once it is granted, each for its own time. Use this where
    /// many are granted at once, as when a fixed window opens. `random` returns 64 random bits.
    ///
    /// The tokens have been taken before this sleep, and the next in line does not wait for it. So callers may start in another order than
    /// they were granted in, and closer to each other than the limits say.
    ///
    /// ```
    /// use std::collections::hash_map::RandomState;
    /// use std::hash::{BuildHasher, Hasher};
    /// # use std::time::Duration;
    /// # use tollgate::keyed::{KeyedLimiter, KeyedQueue};
    /// # use tollgate::limit::{Config, Limit};
    /// # let limit = Limit::new(&Config::token_bucket(1, Duration::from_secs(1))).unwrap();
    /// # let limiter = KeyedLimiter::<()>::new([limit], 1);
    /// # let queue = KeyedQueue::new(limiter, || 0, |_| std::future::ready(()));
    ///
    /// let queue = queue.with_jitter(250, || RandomState::new().build_hasher().finish());
    /// ```
    #[must_use]
    pub fn with_jitter(mut self, spread_ms: u64, random: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.jitter = Some(Jitter { spread_ms, random: Box::new(random) });
        self
    }

    /// The limiter, for callers that do not wait.
    #[must_use]
    pub const fn limiter(&self) -> &KeyedLimiter<K, N, S> {
        &self.limiter
    }

    /// The number of callers that wait for this key.
    #[must_use]
    pub fn waiting<Q>(&self, key: &Q) -> usize
    where
        Q: Hash + Eq + ?Sized,
        K: Borrow<Q>,
    {
        lock(&self.lines).of.get(key).map_or(0, |line| line.waiters.len())
    }

    /// Waits until all limits grant their costs and no earlier caller waits for this key, and takes the tokens. Returns the limits' answers.
    ///
    /// The future joins the line when it is first polled. If its turn would be more than `max_wait_ms` away by then, it does not wait at all
    /// (0: now or not at all; `None`: any wait). Finding out takes time in proportion to those who wait for the key, unless the line is as
    /// the last such call left it. Once it waits it may take longer, if a timer is late, others take tokens without waiting or there is
    /// [jitter](KeyedQueue::with_jitter); drop it to give up. Tokens that others give back
    /// are found at the end of its sleep, at most a minute later.
    ///
    /// Costs of 0 take nothing, and wait for those ahead.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::keyed::{KeyedLimiter, KeyedQueue, WaitError};
    /// use tollgate::limit::{Config, Limit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limit = Limit::new(&Config::token_bucket(2, Duration::from_secs(1)))?;
    /// let limiter = KeyedLimiter::<String>::new([limit], 100_000);
    /// let queue = KeyedQueue::new(limiter, || 0, |_| std::future::pending());
    /// assert!(queue.wait("alice", [2], Some(400)).await.is_ok());
    /// // A token comes back in half a second.
    /// let error = queue.wait("alice", [1], Some(400)).await.unwrap_err();
    /// assert_eq!(error, WaitError::TooLong { turn_at: 500, max_wait_ms: 400 });
    /// let error = queue.wait("alice", [3], None).await.unwrap_err();
    /// assert_eq!(error, WaitError::Never { max: 2 });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`WaitError::TooLong`] at once. [`WaitError::Never`] and [`WaitError::Full`] at once, or at its turn if that has changed since.
    pub async fn wait<Q>(&self, key: &Q, costs: [u64; N], max_wait_ms: Option<u64>) -> Result<Granted<'_, N>, WaitError>
    where
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        let place = match self.join(key, costs, max_wait_ms)? {
            Joined::Granted(granted) => return Ok(granted),
            Joined::Waits(place) => place,
        };
        poll_fn(|context| place.poll_first(context)).await;
        let granted = loop {
            let now = (self.clock)();
            let answer = place.take(&self.limiter, now, costs)?;
            match answer.decision {
                Decision::Allow { .. } => break answer.into(),
                Decision::Wait { retry_at } => self.sleep_ms(retry_at.abs_diff(now).min(MAX_SLEEP_MS)).await,
                Decision::Never { max } => return Err(WaitError::Never { max }),
            }
        };
        if let Some(Jitter { spread_ms, random }) = &self.jitter {
            self.sleep_ms(jitter(0, Duration::from_millis(*spread_ms), random()).unsigned_abs()).await;
        }
        Ok(granted)
    }

    /// Takes the tokens if no call waits and there are enough; otherwise joins the line.
    fn join<'a, 'b: 'a, Q>(
        &'b self,
        key: &'a Q,
        costs: [u64; N],
        max_wait_ms: Option<u64>,
    ) -> Result<Joined<'a, 'b, K, Q, N>, WaitError>
    where
        Q: Hash + Eq + ToOwned<Owned: Into<K>> + ?Sized,
        K: Borrow<Q>,
    {
        let now = (self.clock)();
        // Held while the limiter decides, so that none who comes later is granted before this one is in the line.
        let mut lines = lock(&self.lines);
        let Lines { of, last_ticket } = &mut *lines;
        let (decision, forecast) = if let Some(line) = of.get_mut(key) {
            let (now, budget) = self.limiter.look(key, now)?;
            // An unlimited wait needs no forecast, only to know whether it would be for nothing.
            let all = max_wait_ms.is_some();
            let mut forecast =
                if all { line.forecast(&self.limiter.rules, now, budget) } else { Forecast::new(now, budget) };
            (forecast.add(&self.limiter.rules, costs), all.then_some(forecast))
        } else {
            let answer = self.limiter.decide(key, now, costs, Verb::Consume)?;
            if answer.decision.is_allow() {
                return Ok(Joined::Granted(answer.into()));
            }
            (answer.decision, None)
        };
        let turn_at = match decision {
            Decision::Allow { ready_at, .. } => ready_at,
            Decision::Wait { retry_at } => retry_at,
            Decision::Never { max } => return Err(WaitError::Never { max }),
        };
        if let Some(max_wait_ms) = max_wait_ms.filter(|&ms| turn_at.abs_diff(now) > ms) {
            return Err(WaitError::TooLong { turn_at, max_wait_ms });
        }
        *last_ticket += 1;
        let waiter = Waiter { costs, waker: Waker::noop().clone() };
        if let Some(line) = of.get_mut(key) {
            line.waiters.insert(*last_ticket, waiter);
            line.forecast = forecast;
        } else {
            let waiters = BTreeMap::from([(*last_ticket, waiter)]);
            of.insert(owned(key), Line { waiters, forecast });
        }
        Ok(Joined::Waits(Place { lines: &self.lines, key, ticket: *last_ticket }))
    }

    async fn sleep_ms(&self, ms: u64) {
        (self.sleep)(Duration::from_millis(ms)).await;
    }
}

enum Joined<'a, 'b, K: Hash + Eq + Borrow<Q>, Q: Hash + Eq + ?Sized, const N: usize> {
    Granted(Granted<'b, N>),
    Waits(Place<'a, K, Q, N>),
}

/// Those who wait, by key. A line has at least one.
struct Lines<K, const N: usize> {
    of: HashMap<K, Line<N>>,
    last_ticket: u64,
}

struct Line<const N: usize> {
    /// By ticket: first come, first in line.
    waiters: BTreeMap<u64, Waiter<N>>,
    /// With all of them, or `None`.
    forecast: Option<Forecast<N>>,
}

struct Waiter<const N: usize> {
    costs: [u64; N],
    /// Wakes it once it is first.
    waker: Waker,
}

impl<const N: usize> Line<N> {
    fn is_first(&self, ticket: u64) -> bool {
        self.waiters.keys().next() == Some(&ticket)
    }

    /// The forecast with all who wait.
    fn forecast(&mut self, rules: &Rules<N>, now: i64, budget: OwnBudget<N>) -> Forecast<N> {
        let new = Forecast::new(now, budget);
        // The same as long as nothing was taken or given back, and the first is not late.
        let is_same = |forecast: &Forecast<N>| forecast.from == new.from && forecast.first_at >= Some(now);
        let forecast = self.forecast.take().filter(is_same).unwrap_or_else(|| {
            let mut forecast = new;
            for waiter in self.waiters.values() {
                let _ = forecast.add(rules, waiter.costs);
            }
            forecast
        });
        self.forecast = Some(forecast.clone());
        forecast
    }
}

/// What will be if some callers take their tokens one after the other, each as soon as it can.
#[derive(Clone)]
struct Forecast<const N: usize> {
    /// The budget before them.
    from: OwnBudget<N>,
    /// When the first of them takes its tokens.
    first_at: Option<i64>,
    /// When the last of them does, and the budget it leaves.
    turn_at: i64,
    budget: OwnBudget<N>,
}

impl<const N: usize> Forecast<N> {
    /// The forecast without any caller.
    fn new(now: i64, budget: OwnBudget<N>) -> Self {
        Self { from: budget.clone(), first_at: None, turn_at: now, budget }
    }

    /// One more caller. Returns the decision at its turn; one that is refused even then takes nothing.
    fn add(&mut self, rules: &Rules<N>, costs: [u64; N]) -> Decision {
        let mut turn_at = self.turn_at;
        let mut decision = rules.decide(&mut self.budget.view(), turn_at, costs, Verb::Consume).0;
        if let Decision::Wait { retry_at } = decision {
            let mut later = self.budget.clone();
            turn_at = retry_at;
            decision = rules.decide(&mut later.view(), turn_at, costs, Verb::Consume).0;
            if decision.is_allow() {
                self.budget = later;
            }
        }
        if decision.is_allow() {
            self.first_at.get_or_insert(turn_at);
            self.turn_at = turn_at;
        }
        decision
    }
}

/// A place in a line, until its tokens are taken or it is dropped.
struct Place<'a, K: Hash + Eq + Borrow<Q>, Q: Hash + Eq + ?Sized, const N: usize> {
    lines: &'a Mutex<Lines<K, N>>,
    key: &'a Q,
    ticket: u64,
}

impl<K: Hash + Eq + Borrow<Q>, Q: Hash + Eq + ?Sized, const N: usize> Place<'_, K, Q, N> {
    /// Ready once it is the first of its line.
    fn poll_first(&self, context: &Context<'_>) -> Poll<()> {
        let mut lines = lock(self.lines);
        let Some(line) = lines.of.get_mut(self.key) else { return Poll::Ready(()) };
        if line.is_first(self.ticket) {
            return Poll::Ready(());
        }
        let waiter = line.waiters.get_mut(&self.ticket);
        let previous = waiter.map(|waiter| core::mem::replace(&mut waiter.waker, context.waker().clone()));
        drop(lines);
        drop(previous); // a waker may be the last owner of a future that waits here, which needs the lock when dropped
        Poll::Pending
    }

    /// Takes the tokens and leaves the line, or does neither.
    fn take<'a, S>(&self, limiter: &'a KeyedLimiter<K, N, S>, now: i64, costs: [u64; N]) -> Result<Answer<'a, N>, Full>
    where
        Q: ToOwned<Owned: Into<K>>,
        S: BuildHasher,
    {
        let lines = lock(self.lines); // no forecast may count a caller whose tokens are taken
        let answer = limiter.decide(self.key, now, costs, Verb::Consume)?;
        if answer.decision.is_allow() {
            self.leave(lines);
        }
        Ok(answer)
    }

    fn leave(&self, mut lines: MutexGuard<'_, Lines<K, N>>) {
        let Some(line) = lines.of.get_mut(self.key) else { return };
        let was_first = line.is_first(self.ticket);
        let Some(left) = line.waiters.remove(&self.ticket) else { return };
        line.forecast = None;
        let next = line.waiters.values().next().map(|waiter| waiter.waker.clone());
        if next.is_none() {
            lines.of.remove(self.key);
        }
        drop(lines);
        drop(left);
        if let Some(next) = next.filter(|_| was_first) {
            next.wake();
        }
    }
}

impl<K: Hash + Eq + Borrow<Q>, Q: Hash + Eq + ?Sized, const N: usize> Drop for Place<'_, K, Q, N> {
    fn drop(&mut self) {
        self.leave(lock(self.lines));
    }
}

fn lock<T>(lines: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic in a key's `Eq` or `Hash` leaves nothing half done.
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, const N: usize, S> fmt::Debug for KeyedQueue<K, N, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedQueue").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl From<Full> for WaitError {
    fn from(full: Full) -> Self {
        Self::Full(full)
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { turn_at, max_wait_ms } => {
                write!(f, "the turn would come at {turn_at}, later than the longest wait of {max_wait_ms} ms allows")
            }
            Self::Never { max } => write!(f, "a cost this large is never granted: at most {max}"),
            Self::Full(full) => full.fmt(f),
        }
    }
}

impl core::error::Error for WaitError {}

/// The longest sleep: many timers stand still while the machine is suspended, so that a longer one could end too late by as much.
const MAX_SLEEP_MS: u64 = 60_000;
