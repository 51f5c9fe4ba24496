//! Traces of requests, made from a seed, so that every run is the same.

use std::ops::Range;

use crate::split_mix::Random;

/// Requests of one token each, and the limit of each key.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) rate: u64,
    /// `"1s"` or `"1m"`.
    pub(crate) period: &'static str,
    pub(crate) capacity: u64,
    /// How many frontends share the requests, at random.
    pub(crate) isolates: usize,
    /// In chronological order.
    pub(crate) requests: Vec<Request>,
}

#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// In Unix milliseconds.
    pub(crate) at: i64,
    pub(crate) key: usize,
    pub(crate) isolate: usize,
}

impl Trace {
    pub(crate) fn period_ms(&self) -> u64 {
        if self.period == "1m" { 60_000 } else { 1_000 }
    }
}

/// When traces begin.
pub(crate) const START: i64 = 1_700_000_000_000;

pub(crate) fn all() -> Vec<Trace> {
    let mut random = Random(7);
    let mut trace =
        |name, (rate, period, capacity), isolates, requests: &mut dyn FnMut(&mut Random) -> Vec<(i64, usize)>| {
            let mut asked = requests(&mut random);
            asked.sort_unstable();
            let mut isolate = || usize::try_from(random.next() % isolates as u64).expect("a small number");
            let requests = asked.iter().map(|&(at, key)| Request { at: START + at, key, isolate: isolate() }).collect();
            Trace { name, rate, period, capacity, isolates, requests }
        };
    vec![
        trace("steady: 100 keys, 2 requests/s each of 5 allowed, 10 minutes", (5, "1s", 20), 4, &mut |random| {
            keys(100, random, |random| spread(600_000, 1_200, random))
        }),
        trace(
            "alone: 100 keys, 2 requests/s each of 5 allowed, 10 minutes, an isolate",
            (5, "1s", 20),
            1,
            &mut |random| keys(100, random, |random| spread(600_000, 1_200, random)),
        ),
        trace("seldom: 1 000 keys, a request every 30 s or so, an hour", (100, "1m", 100), 4, &mut |random| {
            keys(1_000, random, |random| spread(3_600_000, 120, random))
        }),
        trace(
            "bursts: 100 keys, 30 requests within a second, each minute, of 20 allowed",
            (20, "1m", 20),
            4,
            &mut |random| {
                keys(100, random, |random| {
                    let bursts = (0..20)
                        .flat_map(|minute| spread(1_000, 30, random).into_iter().map(move |at| minute * 60_000 + at));
                    bursts.collect()
                })
            },
        ),
        trace("attack: 10 keys, ten times the 10 requests/s allowed, 5 minutes", (10, "1s", 20), 4, &mut |random| {
            keys(10, random, |random| spread(300_000, 30_000, random))
        }),
        trace("guesses: 10 keys, 50 requests/s of 5 allowed a minute, 5 minutes", (5, "1m", 5), 4, &mut |random| {
            keys(10, random, |random| spread(300_000, 15_000, random))
        }),
        trace(
            "overload: 100 keys, ten times the 2 requests/s allowed, 2 minutes, 20 isolates",
            (2, "1s", 10),
            20,
            &mut |random| keys(100, random, |random| spread(120_000, 2_400, random)),
        ),
        trace(
            "flood: 100 keys, ten times the 2 requests/s allowed, 2 minutes, 2 isolates",
            (2, "1s", 10),
            2,
            &mut |random| keys(100, random, |random| spread(120_000, 2_400, random)),
        ),
        trace("long tail: 100 000 keys, a request each, an hour", (100, "1m", 100), 20, &mut |random| {
            keys(100_000, random, |random| spread(3_600_000, 1, random))
        }),
        trace(
            "hot: one key, 10 000 requests/s of 20 000 allowed, 30 s, 100 isolates",
            (20_000, "1s", 20_000),
            100,
            &mut |random| keys(1, random, |random| spread(30_000, 300_000, random)),
        ),
        trace("regular: 1 000 keys, a request every 2 to 8 s, half an hour", (100, "1m", 100), 4, &mut |random| {
            keys(1_000, random, |random| paces(1_800_000, 2_000..8_000, random))
        }),
        trace(
            "irregular: 1 000 keys, a request every 5 s or so at random, half an hour",
            (100, "1m", 100),
            4,
            &mut |random| keys(1_000, random, |random| spread(1_800_000, 360, random)),
        ),
    ]
}

fn keys(count: usize, random: &mut Random, mut moments: impl FnMut(&mut Random) -> Vec<i64>) -> Vec<(i64, usize)> {
    (0..count).flat_map(|key| moments(random).into_iter().map(move |at| (at, key)).collect::<Vec<_>>()).collect()
}

/// This many moments within a time.
fn spread(ms: u64, count: usize, random: &mut Random) -> Vec<i64> {
    (0..count).map(|_| i64::try_from(random.next() % ms).expect("a short time")).collect()
}

/// Moments within a time, at this interval.
fn paces(ms: i64, pause_ms: Range<u64>, random: &mut Random) -> Vec<i64> {
    let mut next = || {
        let pause_ms = pause_ms.start + random.next() % (pause_ms.end - pause_ms.start);
        i64::try_from(pause_ms).expect("a short time")
    };
    let first = next();
    std::iter::successors(Some(first), |at| Some(at + next())).take_while(|at| *at < ms).collect()
}
