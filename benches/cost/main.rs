//! What Tollgate costs on Cloudflare: traces played through the real objects and the real frontends on a virtual clock, beside the designs that people
//! write by hand. No runtime, so the same figures on every machine.
//!
//! ```sh
//! npm run cost             # the table
//! npm run cost -- --check  # whether the figures are what they should be: plays only what that needs
//! ```
#![expect(clippy::cast_precision_loss, reason = "counts of some millions")]

use std::process::ExitCode;
use std::thread;

mod bill;
mod designs;
#[allow(dead_code, reason = "of the ledger's tests, which need more of it")]
#[path = "../../tests/ledger/disk.rs"]
mod disk;
mod frontend;
#[path = "../../tests/worlds/key.rs"]
mod key;
mod object;
#[path = "../../tests/chance/split_mix.rs"]
mod split_mix;
mod traces;

use bill::Usage;
use designs::{DESIGNS, KINDS, Make, PLAYED_BY_KINDS};
use traces::Trace;

fn main() -> ExitCode {
    let is_checked = std::env::args().any(|argument| argument == "--check");
    let mut missed = Vec::new();
    let traces = traces::all();
    let is_of_any =
        |aim: &Aim| traces.iter().any(|trace| designs_of(trace).any(|(mode, _)| aim.is_of(trace.name, mode)));
    // A renamed trace must not silently drop its aim.
    missed.extend(AIMS.iter().filter(|aim| !is_of_any(aim)).map(|aim| aim.missed(" (there is no such trace or mode)")));
    thread::scope(|scope| {
        let played: Vec<_> = traces.into_iter().map(|trace| scope.spawn(move || play(&trace, is_checked))).collect();
        for played in played {
            let (table, aims) = played.join().expect("a trace can be played");
            println!("\n{table}");
            missed.extend(aims);
        }
    });
    println!("\nCounts are for 1 000 decisions; GB-s and $ for a million, beside the Worker's own requests.");
    println!("Calls take no time here, so more is refused from memory at the beginning of a flood than in the world.");
    println!("Row per call never deletes a row; memory only forgets what is evicted.");
    for aim in &missed {
        println!("missed: {aim}");
    }
    if is_checked && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The table of a trace, and the missed aims. A check plays only traces with an aim.
fn play(trace: &Trace, is_checked: bool) -> (String, Vec<String>) {
    let mut table = vec![trace.name.to_owned(), HEAD.to_owned()];
    let mut missed = Vec::new();
    let mut without_leases = f64::INFINITY;
    let has_aim = |name: &str| COMPARED.contains(&name) || AIMS.iter().any(|aim| aim.is_of(trace.name, name));
    for (name, make) in designs_of(trace).filter(|(name, _)| !is_checked || has_aim(name)) {
        let mut design = make(trace);
        let mut usage = Usage::default();
        for &request in &trace.requests {
            usage.decisions += 1;
            usage.refused += u64::from(!design.ask(request, &mut usage));
        }
        design.end(&mut usage);
        table.push(line(name, &usage));
        let aims = AIMS.iter().filter(|aim| aim.is_of(trace.name, name));
        missed.extend(aims.filter(|aim| !(aim.is_met)(&usage)).map(|aim| aim.missed("")));
        match *name {
            EXACT => without_leases = usage.price(),
            // A burst may end just when a lease is taken.
            LEASING | SMALL_LEASES if usage.price() > without_leases * 1.01 => {
                missed.push(format!("{}, {name}: no dearer than without leases", trace.name));
            }
            _ => {}
        }
    }
    (table.join("\n"), missed)
}

fn designs_of(trace: &Trace) -> impl Iterator<Item = &'static (&'static str, Make)> {
    let is_played = PLAYED_BY_KINDS.contains(&short(trace.name));
    DESIGNS.iter().chain(KINDS.iter().filter(move |_| is_played))
}

/// The beginning of a trace's name, before the colon.
fn short(trace: &str) -> &str {
    trace.split(':').next().unwrap_or(trace)
}

/// With leases, no trace is dearer than without.
const COMPARED: [&str; 3] = [EXACT, LEASING, SMALL_LEASES];
const EXACT: &str = "Tollgate";
const LEASING: &str = "leases";
const SMALL_LEASES: &str = "leases of 24";

const HEAD: &str = "                           refused    calls   alarms  rows read  rows written     GB-s        $";

fn line(name: &str, usage: &Usage) -> String {
    let each = |count| usage.per(count, 1_000.0);
    format!(
        "{name:<24} {:>8.1} % {:>8.1} {:>8.1} {:>10.1} {:>13.1} {:>8.0} {:>8.3}",
        usage.per(usage.refused, 100.0),
        each(usage.calls),
        each(usage.alarms),
        each(usage.rows_read),
        each(usage.rows_written),
        usage.per(usage.awake_ms, 1_000.0) * 0.128,
        usage.price(),
    )
}

/// An aim for a trace in a mode of Tollgate.
struct Aim {
    /// The beginning of its name, before the colon.
    trace: &'static str,
    mode: &'static str,
    words: &'static str,
    is_met: fn(&Usage) -> bool,
}

const AIMS: [Aim; 13] = [
    Aim {
        trace: "steady",
        mode: "Tollgate",
        words: "at most 20 rows written for 1 000 decisions",
        is_met: |usage| rows(usage) <= 2.0,
    },
    // A tenth of the rows written if each request is.
    Aim {
        trace: "regular",
        mode: "Tollgate",
        words: "at most 100 rows written for 1 000 decisions",
        is_met: |usage| rows(usage) <= 10.0,
    },
    // Each of the four isolates asks about twice for each token refilled.
    Aim {
        trace: "attack",
        mode: "Tollgate",
        words: "at most 37 calls for 100 decisions",
        is_met: |usage| calls(usage) <= 37.0,
    },
    Aim {
        trace: "attack",
        mode: "Tollgate",
        words: "at most 2 rows written for 100 decisions",
        is_met: |usage| rows(usage) <= 2.0,
    },
    // As a bucket: refused from memory until the next token is back.
    Aim {
        trace: "attack",
        mode: "rolling window",
        words: "at most 34 calls for 100 decisions",
        is_met: |usage| calls(usage) <= 34.0,
    },
    // More isolates ask for each token.
    Aim {
        trace: "overload",
        mode: "Tollgate",
        words: "at most 81 calls for 100 decisions",
        is_met: |usage| calls(usage) <= 81.0,
    },
    // Each isolate asks once a second.
    Aim {
        trace: "guesses",
        mode: "Tollgate",
        words: "at most 9 calls for 100 decisions",
        is_met: |usage| calls(usage) <= 9.0,
    },
    Aim {
        trace: "hot",
        mode: "Tollgate",
        words: "at most a row written for 1 000 decisions",
        is_met: |usage| rows(usage) <= 0.1,
    },
    Aim {
        trace: "attack",
        mode: "leases",
        words: "at least 89 of 100 decisions without a call",
        is_met: |usage| calls(usage) <= 11.0,
    },
    // The grants of each lease pay for its row.
    Aim {
        trace: "attack",
        mode: "leases",
        words: "at most $0.05 for a million decisions without the rows",
        is_met: |usage| usage.price_without_rows() <= 0.05,
    },
    // 10 000 decisions a second.
    Aim { trace: "hot", mode: "leases", words: "at most 500 calls a second", is_met: |usage| calls(usage) <= 5.0 },
    Aim {
        trace: "hot",
        mode: "leases of 24",
        words: "at most 8 calls for 100 decisions",
        is_met: |usage| calls(usage) <= 8.0,
    },
    Aim {
        trace: "alone",
        mode: "leases of 24",
        words: "at most $0.36 for a million decisions",
        is_met: |usage| usage.price() <= 0.36,
    },
];

impl Aim {
    fn is_of(&self, trace: &str, mode: &str) -> bool {
        short(trace) == self.trace && mode == self.mode
    }

    fn missed(&self, why: &str) -> String {
        format!("{}, {}: {}{why}", self.trace, self.mode, self.words)
    }
}

/// For 100 decisions.
fn calls(usage: &Usage) -> f64 {
    usage.per(usage.calls, 100.0)
}

/// For 100 decisions.
fn rows(usage: &Usage) -> f64 {
    usage.per(usage.rows_written, 100.0)
}
