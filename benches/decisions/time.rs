//! Time. The contestants run in turn, round after round in one process, so that a machine that slows down slows them
//! all. The ratio is taken within each round; reported are its median and its quartiles.

use std::time::Duration;

use super::Result;
use super::contestants::{self, Asked, Case, Entry, Random, Request, START_MS};

/// Prints the time of each contestant, and fails if Tollgate allocates.
pub(crate) fn compare(case: Case, keys: u32) -> Result<()> {
    let lanes = measure(&contestants::all(keys), case, keys, size(keys));
    check_same_grants(&lanes)?;
    report(&lanes);
    if lanes[0].allocations > 0 { Err("Tollgate has allocated".into()) } else { Ok(()) }
}

/// The same for limiters that `THREADS` threads share: the time of the last thread for all decisions. A table may grow.
pub(crate) fn compare_shared<const THREADS: usize>(case: Case, keys: u32) -> Result<()> {
    // So few at once that no thread is ahead of another by a minute of the requests' time, which would be a clock set back.
    let lanes = measure(&contestants::shared::<THREADS>(), case, keys, (20_000, 301));
    // A thread that is ahead moves the time of another on, in Tollgate.
    if THREADS == 1 {
        check_same_grants(&lanes)?;
    }
    report(&lanes);
    Ok(())
}

fn measure(entries: &[Entry], case: Case, keys: u32, (requests, rounds): (usize, usize)) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = entries.iter().map(|entry| Lane::new(entry, case, keys)).collect();
    let mut random = Random::default();
    let mut now_ms = START_MS;
    for round in 0..rounds {
        let requests = case.requests(keys, &mut now_ms, requests, &mut random);
        let turn = round % lanes.len();
        let (last, first) = lanes.split_at_mut(turn);
        for lane in first.iter_mut().chain(last) {
            lane.run(&requests);
        }
    }
    lanes
}

/// Requests per round, and rounds: few enough that most rounds are not interrupted, enough to touch much of the map.
const fn size(keys: u32) -> (usize, usize) {
    match keys {
        1 => (20_000, 301),
        2..=1_000 => (20_000, 101),
        _ => (200_000, 31),
    }
}

struct Lane {
    name: &'static str,
    asked: Box<dyn Asked>,
    /// Nanoseconds per decision, round by round.
    ns: Vec<f64>,
    decisions: usize,
    allowed: usize,
    allocations: u64,
}

impl Lane {
    fn new(entry: &Entry, case: Case, keys: u32) -> Self {
        let asked = (entry.make)(case, keys);
        Self { name: entry.name, asked, ns: Vec::new(), decisions: 0, allowed: 0, allocations: 0 }
    }

    fn run(&mut self, requests: &[Request]) {
        let decisions = self.asked.prepare(requests);
        let answers = self.asked.ask();
        self.allocations += answers.allocations;
        self.allowed += answers.allowed;
        self.decisions += decisions;
        self.ns.push(nanos_each(answers.took, decisions));
    }
}

fn check_same_grants(lanes: &[Lane]) -> Result<()> {
    if lanes.iter().any(|lane| lane.name.starts_with("governor") && lane.allowed != lanes[0].allowed) {
        return Err("governor, whose nanoseconds are exact here, did not grant the same requests".into());
    }
    Ok(())
}

fn report(lanes: &[Lane]) {
    let ours = &lanes[0];
    println!("{:26}{:>12}{:>10}{:>13}  Tollgate's time to theirs", "", "ns", "allowed", "allocations");
    for lane in lanes {
        let [_, ns, _] = quartiles(lane.ns.clone());
        let percent = 100.0 * share(lane.allowed, lane.decisions);
        let [low, median, high] = quartiles(ours.ns.iter().zip(&lane.ns).map(|(ours, theirs)| ours / theirs).collect());
        print!("{:26}{ns:12.2}{percent:9.1}%{:13}", lane.name, lane.allocations);
        println!("  {median:.2} ({low:.2} to {high:.2})");
    }
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn nanos_each(took: Duration, n: usize) -> f64 {
    took.as_secs_f64() * 1e9 / n as f64
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
