//! `gcra` 0.6: GCRA as a plain value, with the moment as an argument: the contestant built most like ours. A moment is
//! an `Instant`.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use gcra::{GcraError, GcraState, RateLimit};

use super::map::{Map, filled, with};
use super::{Contestant, Quota};

fn limit(quota: &Quota) -> RateLimit {
    RateLimit::new(quota.capacity, quota.per_token() * quota.capacity)
}

fn instant(ms: u64) -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the only way to make an `Instant`")]
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + Duration::from_millis(ms)
}

#[inline]
fn decide(limit: &RateLimit, state: &mut GcraState, now: Instant) -> Result<(), Option<Instant>> {
    state.check_and_modify_at(limit, now, 1).map_err(|refusal| match refusal {
        GcraError::DeniedUntil { next_allowed_at } => Some(next_allowed_at),
        GcraError::DeniedIndefinitely { .. } => None,
    })
}

pub(super) struct Direct {
    limit: RateLimit,
    state: GcraState,
}

impl Contestant for Direct {
    type Moment = Instant;
    type Later = Option<Instant>;
    type Bucket = GcraState;

    fn new(quota: &Quota, _: u32) -> Self {
        Self { limit: limit(quota), state: GcraState::default() }
    }

    fn moment(ms: u64) -> Instant {
        instant(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: Instant) -> Result<(), Option<Instant>> {
        decide(&self.limit, &mut self.state, now)
    }
}

pub(super) struct Keyed {
    limit: RateLimit,
    states: Map<GcraState>,
}

impl Contestant for Keyed {
    type Moment = Instant;
    type Later = Option<Instant>;
    type Bucket = GcraState;

    fn new(quota: &Quota, keys: u32) -> Self {
        Self { limit: limit(quota), states: filled(keys, GcraState::default) }
    }

    fn moment(ms: u64) -> Instant {
        instant(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: Instant) -> Result<(), Option<Instant>> {
        with(&mut self.states, key, GcraState::default, |state| decide(&self.limit, state, now))
    }
}
