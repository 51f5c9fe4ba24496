//! The contestants, the requests, and the measured loop.
//!
//! All get the same keys at the same moments. No clock is read: moments are prepared beforehand, in the contestant's
//! own type, and a contestant that insists on a clock gets one that returns a number. Every contestant decides whether
//! one token is granted and, if not, when to retry; the naive designs cannot tell when.

use std::any::Any;
use std::fmt;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::counting;

mod gcra;
mod governor;
mod map;
mod naive;
mod ratelimit;
mod tollgate;

/// A measured limiter.
trait Contestant: Sized {
    /// A moment in the contestant's form.
    type Moment: Copy;
    /// When to retry, in the contestant's form.
    type Later;
    /// The state of one key.
    type Bucket;

    /// Creates it with a full bucket of `quota` for each of the keys `0..keys`. Direct contestants have one key.
    fn new(quota: &Quota, keys: u32) -> Self;

    /// `ms` milliseconds after the beginning.
    fn moment(ms: u64) -> Self::Moment;

    /// Takes one token of `key`, or says when to retry.
    fn decide(&mut self, key: u64, now: Self::Moment) -> Result<(), Self::Later>;

    /// How many of `decisions` over `keys` are measured at once.
    fn at_once(decisions: usize, _keys: u32) -> usize {
        decisions
    }

    /// Creates it with buckets as `case` begins.
    fn prepared(case: Case, keys: u32) -> Self {
        let quota = case.quota(keys);
        let mut contestant = Self::new(&quota, keys);
        let mut random = Random::default();
        for key in 0..u64::from(keys) {
            let tokens = match case {
                Case::Allowed => 1,
                Case::Draining => u64::from(quota.capacity / 4),
                Case::Refused => u64::from(quota.capacity),
                Case::Mixed => random.below(quota.capacity + 1),
            };
            for _ in 0..tokens {
                let _ = contestant.decide(key, Self::moment(START_MS));
            }
        }
        contestant
    }
}

/// A limiter that threads share.
trait Shared: Contestant<Moment: Send + Sync> + Sync {
    /// [`Contestant::decide`], from any thread.
    fn decide_shared(&self, key: u64, now: Self::Moment) -> Result<(), Self::Later>;
}

/// The numbers of a limit.
#[derive(Clone, Copy)]
pub(crate) struct Quota {
    rate: u32,
    period_ms: u64,
    capacity: u32,
}

impl Quota {
    /// The time of one token, rounded down to nanoseconds, as all the others count.
    fn per_token(&self) -> Duration {
        Duration::from_millis(self.period_ms) / self.rate
    }
}

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Always granted: one request and one token each millisecond, so that every request finds the bucket full.
    Allowed,
    /// Always granted, from a bucket that is never full: twice as many requests as tokens. Every level depends on the
    /// last, so a request waits until the processor has the last one's result.
    Draining,
    /// Always refused: the bucket is empty, and not even one token comes back while it is measured.
    Refused,
    /// Granted or refused, about 2 to 3: requests come at random, two and a half times as fast as tokens.
    Mixed,
}

impl Case {
    pub(crate) const ALL: [Self; 4] = [Self::Allowed, Self::Draining, Self::Refused, Self::Mixed];

    pub(crate) fn quota(self, keys: u32) -> Quota {
        match self {
            Self::Allowed => Quota { rate: 1_000, period_ms: 1_000, capacity: 100 },
            // Enough that no key runs dry in all the rounds.
            Self::Draining => Quota {
                rate: 1_000,
                period_ms: 1_000 * u64::from(keys),
                capacity: match keys {
                    1 => 10_000_000,
                    2..=1_000 => 10_000,
                    _ => 40,
                },
            },
            // 11 is coprime to a week, so a refill is not one drop a millisecond, which would make the division easy.
            // A capacity of 1 for a million keys, because spending their tokens takes long.
            Self::Refused => Quota { rate: 11, period_ms: 604_800_000, capacity: if keys > 1_000 { 1 } else { 100 } },
            // 5/4 ms a token, whole in nanoseconds too, so that all contestants decide alike.
            Self::Mixed => Quota { rate: 4, period_ms: 5 * u64::from(keys), capacity: 2 },
        }
    }

    /// The next `n` requests after `since_ms`, which becomes the moment of the last.
    pub(crate) fn requests(self, keys: u32, since_ms: &mut u64, n: usize, random: &mut Random) -> Vec<Request> {
        let mut request = || {
            *since_ms += if matches!(self, Self::Draining | Self::Mixed) { random.below(2) } else { 1 };
            Request { key: random.below(keys), ms: *since_ms }
        };
        (0..n).map(|_| request()).collect()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allowed => "allowed",
            Self::Draining => "draining",
            Self::Refused => "refused",
            Self::Mixed => "mixed",
        })
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Request {
    key: u64,
    ms: u64,
}

/// The first contestant, with which all others are compared.
pub(crate) const OURS: &str = "tollgate";

/// All contestants for `keys` keys; one key is "direct", without a map.
pub(crate) fn all(keys: u32) -> Vec<Entry> {
    match keys {
        1 => vec![
            Entry::of::<tollgate::Direct>(OURS),
            Entry::of::<tollgate::DirectTry>("tollgate, try_consume"),
            Entry::of::<tollgate::Locked>("tollgate in a Mutex"),
            Entry::of::<governor::Direct>("governor"),
            Entry::of::<governor::DirectInCell>("governor in a Cell"),
            Entry::of::<ratelimit::Direct>("ratelimit"),
            Entry::of::<gcra::Direct>("gcra"),
            Entry::of::<naive::EventLog>("naive: event log"),
            Entry::of::<naive::Scheduler>("naive: scheduler"),
            Entry::of::<map::NoLimit>("no limit, the loop alone"),
        ],
        _ => vec![
            Entry::of::<tollgate::Keyed>(OURS),
            Entry::of::<tollgate::KeyedTry>("tollgate, try_consume"),
            Entry::of::<tollgate::LockedKeyed>("tollgate in a Mutex"),
            Entry::of::<tollgate::Shared>("tollgate KeyedLimiter"),
            Entry::of::<governor::KeyedDashMap>("governor, DashMap"),
            Entry::of::<governor::KeyedHashMap>("governor, HashMap"),
            Entry::of::<governor::KeyedInCells>("governor in Cells"),
            Entry::of::<ratelimit::Keyed>("ratelimit"),
            Entry::of::<gcra::Keyed>("gcra"),
            Entry::of::<naive::EventLogs>("naive: event log"),
            Entry::of::<naive::Schedulers>("naive: scheduler"),
            Entry::of::<map::NoLimits>("no limit, the map alone"),
        ],
    }
}

/// The limiters that `THREADS` threads can share.
pub(crate) fn shared<const THREADS: usize>() -> Vec<Entry> {
    vec![
        Entry::shared::<tollgate::Shared, THREADS>("tollgate KeyedLimiter"),
        Entry::shared::<governor::SharedDashMap, THREADS>("governor, DashMap"),
    ]
}

/// Makes a limiter in which each of the given keys has an entry.
type WithTexts = fn(&[String]) -> Box<dyn Any>;

/// The limiters that threads can share, with keys that are texts.
pub(crate) fn with_texts() -> [(&'static str, WithTexts); 2] {
    [
        ("tollgate KeyedLimiter", |keys| Box::new(tollgate::with_texts(keys))),
        ("governor, DashMap", |keys| Box::new(governor::with_texts(keys))),
    ]
}

/// A contestant by its name.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// Bytes of one key's state.
    pub(crate) bucket: usize,
    /// Bytes of the same in the map, with its key and the map's own byte.
    pub(crate) in_map: usize,
    pub(crate) make: fn(Case, u32) -> Box<dyn Asked>,
}

impl Entry {
    fn of<C: Contestant + 'static>(name: &'static str) -> Self {
        Self::made::<C>(name, |case, keys| {
            Box::new(Prepared { contestant: C::prepared(case, keys), keys, requests: Vec::new(), left_out_ms: 0 })
        })
    }

    fn shared<C: Shared + 'static, const THREADS: usize>(name: &'static str) -> Self {
        Self::made::<C>(name, |case, keys| {
            Box::new(OnThreads::<C, THREADS> {
                contestant: C::prepared(case, keys),
                requests: [const { Vec::new() }; _],
            })
        })
    }

    fn made<C: Contestant>(name: &'static str, make: fn(Case, u32) -> Box<dyn Asked>) -> Self {
        Self { name, bucket: size_of::<C::Bucket>(), in_map: size_of::<(u64, C::Bucket)>() + 1, make }
    }
}

/// When buckets are made and drained. Not zero, which some contestants read as "never".
pub(crate) const START_MS: u64 = 1_000;

/// A contestant whose buckets are prepared for a case.
pub(crate) trait Asked {
    /// Converts `requests`, and returns how many of them will be used.
    fn prepare(&mut self, requests: &[Request]) -> usize;

    /// Makes the prepared requests.
    fn ask(&mut self) -> Answers;
}

pub(crate) struct Answers {
    pub(crate) took: Duration,
    pub(crate) allowed: usize,
    pub(crate) allocations: u64,
}

struct Prepared<C: Contestant> {
    contestant: C,
    keys: u32,
    requests: Vec<(u64, C::Moment)>,
    /// The time of the skipped requests, which for this contestant did not pass.
    left_out_ms: u64,
}

impl<C: Contestant> Asked for Prepared<C> {
    fn prepare(&mut self, requests: &[Request]) -> usize {
        let (asked, left_out) = requests.split_at(C::at_once(requests.len(), self.keys));
        let moment = |request: &Request| C::moment(request.ms - self.left_out_ms);
        self.requests.clear();
        self.requests.extend(asked.iter().map(|request| (request.key, moment(request))));
        if let (Some(from), Some(to)) = (asked.last(), left_out.last()) {
            self.left_out_ms += to.ms - from.ms;
        }
        asked.len()
    }

    fn ask(&mut self) -> Answers {
        Answers::of(|| measured(&mut self.contestant, &self.requests))
    }
}

/// The same for a limiter that threads share, each with its part of the requests.
struct OnThreads<C: Contestant, const THREADS: usize> {
    contestant: C,
    requests: [Vec<(u64, C::Moment)>; THREADS],
}

impl<C: Shared, const THREADS: usize> Asked for OnThreads<C, THREADS> {
    fn prepare(&mut self, requests: &[Request]) -> usize {
        for (thread, part) in self.requests.iter_mut().enumerate() {
            part.clear();
            // Each key's requests in their order, whichever thread is ahead.
            let of_thread = requests.iter().filter(|request| request.key % THREADS as u64 == thread as u64);
            part.extend(of_thread.map(|request| (request.key, C::moment(request.ms))));
        }
        requests.len()
    }

    fn ask(&mut self) -> Answers {
        let Self { contestant, requests } = self;
        let contestant = &*contestant;
        let barrier = &Barrier::new(THREADS);
        thread::scope(|scope| {
            let part = |requests: &[_]| {
                barrier.wait();
                Answers::of(|| measured(&mut Handle(contestant), requests))
            };
            let [first, others @ ..] = &requests[..] else { unreachable!("there is a thread") };
            let others: Vec<_> = others.iter().map(|requests| scope.spawn(move || part(requests))).collect();
            let parts = others.into_iter().map(|thread| thread.join().expect("no panic"));
            let first = part(first);
            parts.fold(first, |all, part| Answers {
                took: all.took.max(part.took),
                allowed: all.allowed + part.allowed,
                allocations: all.allocations + part.allocations,
            })
        })
    }
}

/// One thread's way to a shared limiter.
struct Handle<'a, C>(&'a C);

impl<C: Shared> Contestant for Handle<'_, C> {
    type Moment = C::Moment;
    type Later = C::Later;
    type Bucket = C::Bucket;

    fn new(_: &Quota, _: u32) -> Self {
        unreachable!("made from a limiter")
    }

    fn moment(ms: u64) -> Self::Moment {
        C::moment(ms)
    }

    #[inline]
    fn decide(&mut self, key: u64, now: Self::Moment) -> Result<(), Self::Later> {
        self.0.decide_shared(key, now)
    }
}

impl Answers {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn of(measured: impl FnOnce() -> usize) -> Self {
        let allocations = counting::allocations();
        let began = Instant::now();
        let allowed = measured();
        Self { took: began.elapsed(), allowed, allocations: counting::allocations() - allocations }
    }
}

/// The measured loop; `instructions` finds it by its name. The contestant goes through a black box each time, or the
/// compiler would keep a bucket in registers from one request to the next.
#[inline(never)]
fn measured<C: Contestant>(contestant: &mut C, requests: &[(u64, C::Moment)]) -> usize {
    let mut allowed = 0;
    for &(key, now) in requests {
        match black_box(&mut *contestant).decide(key, now) {
            Ok(()) => allowed += 1,
            Err(later) => _ = black_box(later),
        }
    }
    allowed
}

/// Xorshift64*: the same requests in every run.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    /// From 0 to `n` − 1.
    pub(crate) fn below(&mut self, n: u32) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (high * u64::from(n)) >> 32
    }
}
