//! `ratelimit` 2: a token bucket on atomics, in millionths of a token. Beside governor it is the only well-known crate
//! whose clock can be replaced: `leaky-bucket` and `tower` wait on tokio's, `actix-limitation` and `redis-cell` need a
//! server. The clock here is a `Duration` in a `Cell`. Each bucket carries its rate, its capacity and its clock.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ratelimit::{Builder, Clock, Ratelimiter, TryWaitError};

use super::map::{Map, filled, with};
use super::{Contestant, Quota};

#[derive(Clone, Default)]
pub(crate) struct Given(Rc<Cell<Duration>>);

impl Clock for Given {
    #[inline]
    fn elapsed(&self) -> Duration {
        self.0.get()
    }
}

fn limiter(quota: &Quota, clock: &Given) -> Ratelimiter<Given> {
    let limiter = Builder::with_clock(u64::from(quota.rate), clock.clone())
        .period(Duration::from_millis(quota.period_ms))
        .max_tokens(u64::from(quota.capacity))
        .initial_available(u64::from(quota.capacity));
    limiter.build().expect("a limiter")
}

#[inline]
fn decide(limiter: &Ratelimiter<Given>) -> Result<(), Duration> {
    limiter.try_wait().map_err(|refusal| match refusal {
        TryWaitError::Insufficient(wait) => wait,
        _ => Duration::MAX,
    })
}

pub(super) struct Direct {
    clock: Given,
    limiter: Ratelimiter<Given>,
}

impl Contestant for Direct {
    type Moment = Duration;
    type Later = Duration;
    type Bucket = Ratelimiter<Given>;

    fn new(quota: &Quota, _: u32) -> Self {
        let clock = Given::default();
        Self { limiter: limiter(quota, &clock), clock }
    }

    fn moment(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: Duration) -> Result<(), Duration> {
        self.clock.0.set(now);
        decide(&self.limiter)
    }
}

pub(super) struct Keyed {
    clock: Given,
    quota: Quota,
    limiters: Map<Ratelimiter<Given>>,
}

impl Contestant for Keyed {
    type Moment = Duration;
    type Later = Duration;
    type Bucket = Ratelimiter<Given>;

    fn new(quota: &Quota, keys: u32) -> Self {
        let clock = Given::default();
        Self { limiters: filled(keys, || limiter(quota, &clock)), quota: *quota, clock }
    }

    fn moment(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: Duration) -> Result<(), Duration> {
        self.clock.0.set(now);
        let Self { clock, quota, limiters } = self;
        with(limiters, key, || limiter(quota, clock), |limiter| decide(limiter))
    }
}
