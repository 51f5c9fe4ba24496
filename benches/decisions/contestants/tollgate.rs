//! Tollgate: a state is a plain value, kept wherever its owner likes. The Durable Object and the browser have one
//! thread; for several threads there is a `Mutex` around it, where the others bring their own synchronization.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::keyed::KeyedLimiter;
use tollgate::limit::{Config, Decision, Limit, State};

use super::map::{Hash, Map, filled, with};
use super::{Case, Contestant, Quota, START_MS, Shared as _};

fn limit(quota: &Quota) -> Limit {
    let mut config = Config::token_bucket(u64::from(quota.rate), Duration::from_millis(quota.period_ms));
    config.capacity = u64::from(quota.capacity);
    Limit::new(&config).expect("an exact limit")
}

/// Unix milliseconds in some year.
fn unix_ms(ms: u64) -> i64 {
    1_800_000_000_000 + ms.cast_signed()
}

#[inline]
fn decide(limit: &Limit, state: &mut State, now: i64) -> Result<(), i64> {
    match limit.consume(state, now, 1) {
        Decision::Allow { .. } => Ok(()),
        Decision::Wait { retry_at } => Err(retry_at),
        Decision::Never { .. } => Err(i64::MAX),
    }
}

pub(super) struct Direct {
    limit: Limit,
    state: State,
}

impl Contestant for Direct {
    type Moment = i64;
    type Later = i64;
    type Bucket = State;

    fn new(quota: &Quota, _: u32) -> Self {
        let limit = limit(quota);
        Self { limit, state: limit.new_state(unix_ms(START_MS), 0) }
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: i64) -> Result<(), i64> {
        decide(&self.limit, &mut self.state, now)
    }
}

/// Without the moment to retry.
pub(super) struct DirectTry(Direct);

impl Contestant for DirectTry {
    type Moment = i64;
    type Later = ();
    type Bucket = State;

    fn new(quota: &Quota, keys: u32) -> Self {
        Self(Direct::new(quota, keys))
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: i64) -> Result<(), ()> {
        let Direct { limit, state } = &mut self.0;
        if limit.try_consume(state, now, 1) { Ok(()) } else { Err(()) }
    }
}

pub(super) struct Locked {
    limit: Limit,
    state: Mutex<State>,
}

impl Contestant for Locked {
    type Moment = i64;
    type Later = i64;
    type Bucket = State;

    fn new(quota: &Quota, keys: u32) -> Self {
        let Direct { limit, state } = Direct::new(quota, keys);
        Self { limit, state: Mutex::new(state) }
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: i64) -> Result<(), i64> {
        decide(&self.limit, &mut self.state.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}

pub(super) struct Keyed {
    limit: Limit,
    states: Map<State>,
}

impl Contestant for Keyed {
    type Moment = i64;
    type Later = i64;
    type Bucket = State;

    fn new(quota: &Quota, keys: u32) -> Self {
        let limit = limit(quota);
        Self { limit, states: filled(keys, || limit.new_state(unix_ms(START_MS), 0)) }
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: i64) -> Result<(), i64> {
        let limit = &self.limit;
        with(&mut self.states, key, || limit.new_state(now, key), |state| decide(limit, state, now))
    }
}

/// Without the moment to retry.
pub(super) struct KeyedTry(Keyed);

impl Contestant for KeyedTry {
    type Moment = i64;
    type Later = ();
    type Bucket = State;

    fn new(quota: &Quota, keys: u32) -> Self {
        Self(Keyed::new(quota, keys))
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: i64) -> Result<(), ()> {
        let Keyed { limit, states } = &mut self.0;
        let is_granted = with(states, key, || limit.new_state(now, key), |state| limit.try_consume(state, now, 1));
        if is_granted { Ok(()) } else { Err(()) }
    }
}

pub(super) struct LockedKeyed {
    limit: Limit,
    states: Mutex<Map<State>>,
}

impl Contestant for LockedKeyed {
    type Moment = i64;
    type Later = i64;
    type Bucket = State;

    fn new(quota: &Quota, keys: u32) -> Self {
        let Keyed { limit, states } = Keyed::new(quota, keys);
        Self { limit, states: Mutex::new(states) }
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: i64) -> Result<(), i64> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = &self.limit;
        with(&mut states, key, || limit.new_state(now, key), |state| decide(limit, state, now))
    }
}

/// The limiter for many keys: sharded, with bounded memory; forgets keys that are full again.
pub(super) struct Shared(KeyedLimiter<u64, 1, Hash>);

impl Contestant for Shared {
    type Moment = i64;
    type Later = i64;
    type Bucket = State;

    fn new(quota: &Quota, _: u32) -> Self {
        Self(KeyedLimiter::with_hasher([limit(quota)], 2_000_000, Hash::default()))
    }

    fn moment(ms: u64) -> i64 {
        unix_ms(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: i64) -> Result<(), i64> {
        self.decide_shared(key, now)
    }
}

impl super::Shared for Shared {
    #[inline]
    fn decide_shared(&self, key: u64, now: i64) -> Result<(), i64> {
        match self.0.consume(&key, now, 1) {
            Ok(Decision::Allow { .. }) => Ok(()),
            Ok(Decision::Wait { retry_at }) => Err(retry_at),
            Ok(Decision::Never { .. }) => Err(i64::MAX),
            Err(full) => Err(full.retry_at.unwrap_or(i64::MAX)),
        }
    }
}

/// Spends a token of each of `keys`, which are texts.
pub(super) fn with_texts(keys: &[String]) -> impl Sized + use<> + 'static {
    let quota = Case::Allowed.quota(0);
    let limiter = KeyedLimiter::<String, 1, Hash>::with_hasher([limit(&quota)], 2_000_000, Hash::default());
    for key in keys {
        assert!(limiter.try_consume(key.as_str(), unix_ms(START_MS), 1));
    }
    limiter
}
