//! `governor` 0.10: GCRA on one atomic number of nanoseconds. It reads the time from a clock; here that is a plain
//! integer in a `Cell`, which costs a store and a load. On a refusal it is asked when to retry, as its users do.
//!
//! By default threads can share it, and it pays for that: a compare-and-swap for each grant, and a lock around a map.
//! So its arithmetic is also measured without them, with its states in plain cells.

use std::cell::{Cell, UnsafeCell};

use governor::RateLimiter;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::{DashMapStateStore, HashMapStateStore, KeyedStateStore};
use governor::state::{InMemoryState, NotKeyed, StateStore};

use super::map::{Hash, Map, filled, with};
use super::{Case, Contestant, Quota, START_MS, Shared as _};

#[derive(Default)]
pub(super) struct Given(Cell<Nanos>);

impl Clock for Given {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        self.0.get()
    }
}

fn quota(quota: &Quota) -> governor::Quota {
    let capacity = quota.capacity.try_into().expect("a capacity");
    governor::Quota::with_period(quota.per_token()).expect("a period").allow_burst(capacity)
}

fn nanos(ms: u64) -> Nanos {
    Nanos::new(ms * 1_000_000)
}

/// Direct, over a state of the kind `S`.
pub(super) struct DirectOver<S: StateStore<Key = NotKeyed>>(RateLimiter<NotKeyed, S, Given, NoOpMiddleware<Nanos>>);
pub(super) type Direct = DirectOver<InMemoryState>;
pub(super) type DirectInCell = DirectOver<InCell>;

impl<S: StateStore<Key = NotKeyed> + Default> Contestant for DirectOver<S> {
    type Moment = Nanos;
    type Later = Nanos;
    type Bucket = InMemoryState;

    fn new(numbers: &Quota, _: u32) -> Self {
        Self(RateLimiter::new(quota(numbers), S::default(), Given::default()))
    }

    fn moment(ms: u64) -> Nanos {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: Nanos) -> Result<(), Nanos> {
        self.0.clock().0.set(now);
        self.0.check().map_err(|refusal| refusal.earliest_possible())
    }
}

/// Keyed, over states of the kind `S`.
pub(super) struct KeyedOver<S: StateStore<Key = u64>>(RateLimiter<u64, S, Given, NoOpMiddleware<Nanos>>);
pub(super) type KeyedHashMap = KeyedOver<HashMapStateStore<u64, Hash>>;
pub(super) type KeyedDashMap = KeyedOver<DashMapStateStore<u64, Hash>>;
pub(super) type KeyedInCells = KeyedOver<InCells>;

/// The states of keys `0..keys`, all full.
pub(super) trait Filled {
    fn filled(keys: u32) -> Self;
}

impl Filled for HashMapStateStore<u64, Hash> {
    fn filled(keys: u32) -> Self {
        Self::new(filled(keys, InMemoryState::default))
    }
}

impl Filled for DashMapStateStore<u64, Hash> {
    fn filled(keys: u32) -> Self {
        (0..u64::from(keys)).map(|key| (key, InMemoryState::default())).collect()
    }
}

impl<S: KeyedStateStore<u64> + Filled> Contestant for KeyedOver<S> {
    type Moment = Nanos;
    type Later = Nanos;
    type Bucket = InMemoryState;

    fn new(numbers: &Quota, keys: u32) -> Self {
        Self(RateLimiter::new(quota(numbers), S::filled(keys), Given::default()))
    }

    fn moment(ms: u64) -> Nanos {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: Nanos) -> Result<(), Nanos> {
        self.0.clock().0.set(now);
        self.0.check_key(&key).map_err(|refusal| refusal.earliest_possible())
    }
}

/// Over a `DashMap`, shared by threads, each of which sets a clock of its own.
pub(super) struct SharedDashMap(RateLimiter<u64, DashMapStateStore<u64, Hash>, GivenToThread, NoOpMiddleware<Nanos>>);

pub(super) struct GivenToThread;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

impl Clock for GivenToThread {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(NOW.get())
    }
}

impl Contestant for SharedDashMap {
    type Moment = Nanos;
    type Later = Nanos;
    type Bucket = InMemoryState;

    fn new(numbers: &Quota, keys: u32) -> Self {
        NOW.set(0); // it counts from here
        Self(RateLimiter::new(quota(numbers), Filled::filled(keys), GivenToThread))
    }

    fn moment(ms: u64) -> Nanos {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: Nanos) -> Result<(), Nanos> {
        self.decide_shared(key, now)
    }
}

impl super::Shared for SharedDashMap {
    #[inline]
    fn decide_shared(&self, key: u64, now: Nanos) -> Result<(), Nanos> {
        NOW.set(now.as_u64());
        self.0.check_key(&key).map_err(|refusal| refusal.earliest_possible())
    }
}

/// Spends a token of each of `keys`, which are texts.
pub(super) fn with_texts(keys: &[String]) -> impl Sized + use<> + 'static {
    let store = DashMapStateStore::<String, Hash>::with_hasher(Hash::default());
    let quota = quota(&Case::Allowed.quota(0));
    let limiter: RateLimiter<_, _, _, NoOpMiddleware<Nanos>> = RateLimiter::new(quota, store, Given::default());
    limiter.clock().0.set(nanos(START_MS));
    for key in keys {
        assert!(limiter.check_key(key).is_ok());
    }
    limiter
}

/// `InMemoryState` without atomics: zero means "never asked".
#[derive(Default)]
pub(super) struct InCell(Cell<u64>);

impl InCell {
    #[inline]
    fn replace<T, E>(&self, f: impl Fn(Option<Nanos>) -> Result<(T, Nanos), E>) -> Result<T, E> {
        let before = self.0.get();
        let (answer, after) = f((before != 0).then(|| Nanos::new(before)))?;
        self.0.set(after.as_u64());
        Ok(answer)
    }
}

impl StateStore for InCell {
    type Key = NotKeyed;

    #[inline]
    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.replace(f)
    }
}

/// `HashMapStateStore` without its lock.
pub(super) struct InCells(UnsafeCell<Map<InCell>>);

impl Filled for InCells {
    fn filled(keys: u32) -> Self {
        Self(UnsafeCell::new(filled(keys, InCell::default)))
    }
}

impl StateStore for InCells {
    type Key = u64;

    #[inline]
    fn measure_and_replace<T, F, E>(&self, key: &u64, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // SAFETY: not `Sync`, and `f`, which is governor's, does not re-enter.
        let map = unsafe { &mut *self.0.get() };
        with(map, *key, InCell::default, |state| state.replace(f))
    }
}
