//! Leases of hundreds of isolates: never more than one bucket would grant, and what they cost and save. `npm run leases` prints the table.

#![expect(clippy::cast_precision_loss, reason = "counts of some millions")]

use tollgate::limit::{Part, Verb, decide_all};

use super::leasing::{Seen, World};
use super::random::{self, Random};

const ISOLATES: usize = 300;
const SECONDS: i64 = 10;
const ASKED_PER_SECOND: usize = 500;

/// Leases last two seconds, and refusals may be kept for one.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    /// Of the limit, per second.
    rate: usize,
    /// Whether the second isolate gets half as many requests as the first, the third a third, and so on; otherwise all get equally many.
    is_skewed: bool,
    /// Minimum and maximum latency of a message.
    takes_ms: (usize, usize),
    /// One in this many messages is lost, and one in this many requests arrives twice.
    lost_in: usize,
    /// Mean milliseconds between crashes of an isolate; a hundred times as many for the object; 0 for none.
    crash_in: usize,
}

const USUAL: Scenario = Scenario { name: "", rate: 1_000, is_skewed: true, takes_ms: (5, 50), lost_in: 0, crash_in: 0 };

const SCENARIOS: [Scenario; 8] = [
    Scenario { name: "half of what is allowed", ..USUAL },
    Scenario { name: "as much as is allowed", rate: 500, ..USUAL },
    Scenario { name: "twice as much", rate: 250, ..USUAL },
    Scenario { name: "ten times as much", rate: 50, ..USUAL },
    Scenario { name: "as much, all isolates alike", rate: 500, is_skewed: false, ..USUAL },
    Scenario { name: "as much, one message in 20 lost", rate: 500, takes_ms: (5, 500), lost_in: 20, ..USUAL },
    Scenario { name: "as much, an isolate crashes each 50 ms", rate: 500, crash_in: 50, ..USUAL },
    Scenario { name: "twice as much, all of this", rate: 250, takes_ms: (5, 500), lost_in: 20, crash_in: 50, ..USUAL },
];

#[derive(Clone, Copy, Default)]
struct Row {
    cases: u32,
    seen: Seen,
    /// The grants of one bucket without latency.
    ideal: u64,
    fairness: f64,
    ideal_fairness: f64,
}

#[test]
fn hundreds_of_isolates_grant_no_more_than_one_bucket() {
    let mut rows = [Row::default(); SCENARIOS.len()];
    random::cases(40, |random| {
        let index = random.below(SCENARIOS.len());
        rows[index].add(&SCENARIOS[index], random);
    });
    println!(
        "| asked | admitted to one bucket | calls saved | from leases | rows | tokens leased and lost | fairness | of one bucket |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (scenario, row) in SCENARIOS.iter().zip(&rows).filter(|(_, row)| row.cases > 0) {
        println!("{}", row.line(scenario.name));
    }
    let [spare, ..] = &rows;
    assert!(spare.seen.calls * 3 <= spare.seen.asked * 2, "leases save a third of the calls or more");
}

impl Row {
    /// Plays a scenario. Each grant is checked against the bound.
    fn add(&mut self, scenario: &Scenario, random: &mut Random) {
        let Scenario { rate, is_skewed, takes_ms, lost_in, crash_in, .. } = *scenario;
        let policies =
            format!(r#"{{"p":{{"rate":{rate},"period":"1s","capacity":{rate},"lease":"2s","refusal_cache":"1s"}}}}"#);
        let mut world = World::new(random, &policies, ISOLATES);
        world.takes_ms = takes_ms;
        let limit = *world.policy.limits()[0].limit();
        let mut ideal = world.reference.clone();
        let mut ideal_of = [0_u64; ISOLATES];
        // For each isolate, how many of a million requests reach it or an earlier one.
        let shares = (1..=ISOLATES).map(|number| if is_skewed { 1_000_000 / number } else { 1_000_000 });
        let upto: Vec<_> = shares
            .scan(0, |sum, share| {
                *sum += share;
                Some(*sum)
            })
            .collect();
        let end = world.now + SECONDS * 1_000;
        while world.now < end {
            while let Some(index) = world.network.iter().position(|message| message.arrives_at <= world.now) {
                let is_request = world.network[index].reply.is_none();
                if lost_in > 0 && world.random.once_in(lost_in) {
                    world.lose(index, false);
                } else {
                    if is_request && lost_in > 0 && world.random.once_in(lost_in) {
                        let again = world.network[index].clone();
                        world.network.push(again);
                    }
                    world.deliver(index);
                }
            }
            while let Some(index) = world.timers.iter().position(|timer| timer.at <= world.now) {
                world.ring(index);
            }
            if crash_in > 0 && world.random.once_in(crash_in) {
                let isolate = world.random.below(ISOLATES);
                world.isolates[isolate].crash();
            }
            if crash_in > 0 && world.random.once_in(100 * crash_in) {
                world.object.crash();
            }
            if world.now % 200 == 0 {
                world.object.flush(world.now);
            }
            for _ in 0..world.random.below(ASKED_PER_SECOND * 2 / 1_000 + 1) {
                let at = world.random.below(upto[ISOLATES - 1]);
                let isolate = upto.partition_point(|&upto| upto <= at);
                world.ask(isolate, &[1], true);
                let mut parts = [Part::new(&limit, ideal[0], 1)];
                ideal_of[isolate] += u64::from(decide_all(&mut parts, world.now, Verb::Consume).is_allow());
                ideal[0] = parts[0].state;
            }
            world.now += 1;
        }
        self.ideal += ideal_of.iter().sum::<u64>();
        let busy = || world.isolates.iter().zip(ideal_of).filter(|(isolate, _)| isolate.asked >= 10);
        self.fairness += jain(busy().map(|(isolate, _)| isolate.granted as f64 / isolate.asked as f64));
        self.ideal_fairness += jain(busy().map(|(isolate, ideal)| ideal as f64 / isolate.asked as f64));
        self.seen.add(&world.seen);
        self.cases += 1;
    }

    fn line(&self, name: &str) -> String {
        let Seen {
            asked, calls, granted, granted_from_leases, refused_from_leases, rows, leased, spent, returned, ..
        } = self.seen;
        let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        format!(
            "| {name} | {:.1} % | {:.1} % | {:.1} % | {:.0} | {:.1} % | {:.2} | {:.2} |",
            percent(granted, self.ideal),
            100.0 - percent(calls, asked),
            percent(granted_from_leases + refused_from_leases, asked),
            10.0 * percent(rows, asked),
            percent(leased.saturating_sub(spent + returned), leased),
            self.fairness / f64::from(self.cases),
            self.ideal_fairness / f64::from(self.cases),
        )
    }
}

/// Jain's index: 1 if all are equal, and 1 / n if one of n has everything.
fn jain(ratios: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) = ratios
        .fold((0.0, 0.0, 0.0), |(count, sum, squares), ratio| (count + 1.0, sum + ratio, squares + ratio * ratio));
    sum * sum / f64::max(count * squares, f64::MIN_POSITIVE)
}
