//! A flood of distinct keys through one isolate, each granted one request and refused the next, while one key that
//! is over its limit keeps sending requests.

use tollgate::edge::MAX_BUDGETS;

use crate::counting::live_bytes;
use crate::frontend::{Frontend, decide, now};
use crate::key::Key;
use crate::measure::{head, line, timed};
use crate::object::{NOW, consume, new_key, policies, policy_in};

/// The bounds that were exceeded.
pub(crate) fn of_keys() -> Vec<String> {
    let [often, less, seldom] = EVERY_MS.map(|ms| format!("calls in 1000, {ms} ms"));
    head(
        "A flood of distinct keys, 100 a millisecond, and three keys over their limits, asked every so many milliseconds",
        &["isolate, bytes", &often, &less, &seldom, "granted to them", "a new key, ns", "a refused key, ns"],
    );
    let mut missed = Vec::new();
    let mut bound = |is_met: bool, words: String| {
        if !is_met {
            missed.push(words);
        }
    };
    let calm = flood(0);
    line("none", calm.cells());
    for keys in [10_000, 100_000, 1_000_000] {
        let flooded = flood(keys);
        line(&keys.to_string(), flooded.cells());
        bound(flooded.bytes <= MAX_BYTES, format!("{keys} keys leave {} bytes", flooded.bytes));
        bound(flooded.granted == 0, format!("{keys} keys let a key pass that is over its limit"));
        // As without a flood, their objects are asked once a second. The third is forgotten before it is asked again.
        let is_kept = |index: usize| flooded.calls_per_1000[index] <= 2.0 * calm.calls_per_1000[index];
        bound(is_kept(0) && is_kept(1), format!("{keys} keys push out a key in use"));
    }
    missed
}

/// Intervals between requests of the keys over their limits. A generation is full after 41 ms of flood.
const EVERY_MS: [usize; 3] = [1, 10, 100];

struct Seen {
    /// The isolate's memory.
    bytes: i64,
    /// Of the keys over their limits.
    calls_per_1000: [f64; 3],
    granted: usize,
    /// Median time to begin a request for an unknown key, and for a refused one.
    unknown_ns: Option<u64>,
    known_ns: Option<u64>,
}

impl Seen {
    fn cells(&self) -> Vec<String> {
        let Self { bytes, calls_per_1000, granted, unknown_ns, known_ns } = self;
        let nanos = |nanos: &Option<u64>| nanos.map_or_else(String::new, |nanos| nanos.to_string());
        let mut cells = vec![bytes.to_string()];
        cells.extend(calls_per_1000.map(|calls| format!("{calls:.1}")));
        cells.extend([granted.to_string(), nanos(unknown_ns), nanos(known_ns)]);
        cells
    }
}

fn flood(keys: usize) -> Seen {
    let deployed = policies(r#""rate":1,"period":"1day","capacity":1"#);
    let policy = policy_in(&deployed);
    let mut isolate = Isolate { frontend: Frontend::new(&deployed, 0), unknown: Vec::new(), known: Vec::new() };
    let mut limited = EVERY_MS.map(|every| (format!("every {every} ms"), new_key(&deployed), every));
    for (_, object, _) in &mut limited {
        consume(object, &policy, NOW); // all that it has
    }
    let (mut calls, mut granted) = ([0_usize; 3], 0);
    let millis = keys.max(SHORTEST) / PER_MS;
    for ms in 0..millis {
        let at = NOW + i64::try_from(ms).expect("some seconds");
        for key in (ms * PER_MS..(ms + 1) * PER_MS).take_while(|&key| key < keys) {
            let mut object = new_key(&deployed);
            consume(&mut object, &policy, at);
            isolate.ask(&key.to_string(), &mut object, at);
        }
        for ((key, object, every), calls) in limited.iter_mut().zip(&mut calls) {
            if ms % *every == 0 {
                let is_granted = isolate.ask(key, object, at);
                *calls += usize::from(is_granted.is_some());
                granted += usize::from(is_granted == Some(true));
            }
        }
    }
    let Isolate { unknown, known, .. } = &mut isolate;
    let [unknown_ns, known_ns] = [unknown, known].map(|nanos| {
        nanos.sort_unstable();
        nanos.get(nanos.len() / 2).copied()
    });
    let calls_per_1000 = [0, 1, 2].map(|index| 1_000.0 * (calls[index] * EVERY_MS[index]) as f64 / millis as f64);
    let with_tables = live_bytes();
    drop(isolate.frontend);
    Seen { bytes: with_tables - live_bytes(), calls_per_1000, granted, unknown_ns, known_ns }
}

/// An isolate, and the nanoseconds it took to begin requests for unknown keys and for those that it refused.
struct Isolate {
    frontend: Frontend,
    unknown: Vec<u64>,
    known: Vec<u64>,
}

impl Isolate {
    /// Whether the object granted it; `None` if it was refused from memory.
    fn ask(&mut self, key: &str, object: &mut Key, at: i64) -> Option<bool> {
        let body = format!(r#"{{"policy":"p","key":"{key}"}}"#);
        let (took, mut call) = timed(|| self.frontend.ask("/v1/consume", &body, at));
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let is_known = call.is_decided();
        (if is_known { &mut self.known } else { &mut self.unknown }).push(took);
        while let Some(next) = call.next(now(at)) {
            decide(&mut call, &next, object, at, 0);
        }
        let status = call.reply(now(at)).status;
        assert!(matches!(status, 200 | 429), "not decided: {status}");
        (!is_known).then_some(status == 200)
    }
}

/// Keys per millisecond.
const PER_MS: usize = 100;

/// It lasts at least as long as with this many keys.
const SHORTEST: usize = 1_000_000;

/// Two generations of refusals with what they and their trees take, and the summary of refused keys.
const MAX_BYTES: i64 = 2 * MAX_BUDGETS.cast_signed() as i64 * 192 + 4_096;
