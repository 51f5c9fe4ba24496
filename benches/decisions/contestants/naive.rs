//! The designs that a token bucket replaces: a log of every event, and a scheduler that adds tokens. Neither can say
//! when to retry. Both get the best conditions: one thread, no locks.

use std::collections::VecDeque;

use super::map::{Map, filled, with};
use super::{Contestant, Quota};

/// Remembers the moment of every grant within the last window, and grants while there are fewer than the capacity. Over
/// the time that a bucket takes to fill, the same number passes; how it is spread may differ.
#[derive(Default)]
pub(crate) struct Log {
    events: VecDeque<u64>,
}

impl Log {
    #[inline]
    fn decide(&mut self, now_ns: u64, capacity: usize, window_ns: u64) -> Result<(), ()> {
        while self.events.front().is_some_and(|&event| now_ns - event >= window_ns) {
            self.events.pop_front();
        }
        if self.events.len() < capacity {
            self.events.push_back(now_ns);
            Ok(())
        } else {
            Err(())
        }
    }
}

fn nanos(ms: u64) -> u64 {
    ms * 1_000_000
}

fn whole_nanos(duration: std::time::Duration) -> u64 {
    duration.as_nanos().try_into().expect("some years")
}

pub(super) struct EventLogs {
    capacity: usize,
    window_ns: u64,
    logs: Map<Log>,
}

impl Contestant for EventLogs {
    type Moment = u64;
    type Later = ();
    type Bucket = Log;

    fn new(quota: &Quota, keys: u32) -> Self {
        Self {
            capacity: usize::try_from(quota.capacity).expect("32 bits"),
            window_ns: whole_nanos(quota.per_token() * quota.capacity),
            logs: filled(keys, Log::default),
        }
    }

    fn moment(ms: u64) -> u64 {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: u64) -> Result<(), ()> {
        with(&mut self.logs, key, Log::default, |log| log.decide(now, self.capacity, self.window_ns))
    }
}

pub(super) struct EventLog {
    capacity: usize,
    window_ns: u64,
    log: Log,
}

impl Contestant for EventLog {
    type Moment = u64;
    type Later = ();
    type Bucket = Log;

    fn new(quota: &Quota, _: u32) -> Self {
        let EventLogs { capacity, window_ns, .. } = EventLogs::new(quota, 0);
        Self { capacity, window_ns, log: Log::default() }
    }

    fn moment(ms: u64) -> u64 {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: u64) -> Result<(), ()> {
        self.log.decide(now, self.capacity, self.window_ns)
    }
}

/// Adds a token to every bucket whenever one is due. A real one uses a thread or a timer; here the next request does
/// the work, and its time counts as part of that request.
pub(super) struct Schedulers {
    per_token_ns: u64,
    due_ns: u64,
    capacity: u32,
    levels: Map<u32>,
}

impl Contestant for Schedulers {
    type Moment = u64;
    type Later = ();
    type Bucket = u32;

    fn new(quota: &Quota, keys: u32) -> Self {
        let per_token_ns = whole_nanos(quota.per_token());
        Self {
            per_token_ns,
            due_ns: nanos(super::START_MS) + per_token_ns,
            capacity: quota.capacity,
            levels: filled(keys, || quota.capacity),
        }
    }

    fn moment(ms: u64) -> u64 {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: u64) -> Result<(), ()> {
        while self.due_ns <= now {
            self.due_ns += self.per_token_ns;
            for level in self.levels.values_mut() {
                *level = (*level + 1).min(self.capacity);
            }
        }
        with(&mut self.levels, key, || self.capacity, take)
    }

    /// It visits every key when a token is due.
    fn at_once(decisions: usize, keys: u32) -> usize {
        decisions.min(50_000_000 / usize::try_from(keys).expect("32 bits"))
    }
}

pub(super) struct Scheduler {
    per_token_ns: u64,
    due_ns: u64,
    capacity: u32,
    level: u32,
}

impl Contestant for Scheduler {
    type Moment = u64;
    type Later = ();
    type Bucket = u32;

    fn new(quota: &Quota, _: u32) -> Self {
        let Schedulers { per_token_ns, due_ns, capacity, .. } = Schedulers::new(quota, 0);
        Self { per_token_ns, due_ns, capacity, level: capacity }
    }

    fn moment(ms: u64) -> u64 {
        nanos(ms)
    }

    #[inline]
    fn decide(&mut self, _: u64, now: u64) -> Result<(), ()> {
        while self.due_ns <= now {
            self.due_ns += self.per_token_ns;
            self.level = (self.level + 1).min(self.capacity);
        }
        take(&mut self.level)
    }
}

#[inline]
fn take(level: &mut u32) -> Result<(), ()> {
    *level = level.checked_sub(1).ok_or(())?;
    Ok(())
}
