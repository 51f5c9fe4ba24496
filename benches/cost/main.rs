//! What Tollgate costs on Cloudflare: traces played through the real ledger and the real frontends on a virtual clock, beside the designs that people
//! write by hand. No runtime, so the same figures on every machine.
//!
//! ```sh
//! npm run cost             # the table
//! npm run cost -- --check  # and whether the figures are what they should be
//! ```
#![expect(clippy::cast_precision_loss, reason = "counts of some millions")]

use std::process::ExitCode;
use std::thread;

mod bill;
mod designs;
mod object;
#[path = "../../tests/chance/split_mix.rs"]
mod split_mix;
mod traces;

use bill::Usage;
use designs::DESIGNS;
use traces::Trace;

fn main() -> ExitCode {
    let mut missed = Vec::new();
    thread::scope(|scope| {
        let played: Vec<_> = traces::all().into_iter().map(|trace| scope.spawn(move || play(&trace))).collect();
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
    let is_checked = std::env::args().any(|argument| argument == "--check");
    if is_checked && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The table of a trace, and what is missed.
fn play(trace: &Trace) -> (String, Vec<String>) {
    let mut table = vec![trace.name.to_owned(), HEAD.to_owned()];
    let mut missed = Vec::new();
    for (name, make) in DESIGNS {
        let mut design = make(trace);
        let mut usage = Usage::default();
        for &request in &trace.requests {
            usage.decisions += 1;
            usage.refused += u64::from(!design.ask(request, &mut usage));
        }
        design.end(&mut usage);
        table.push(line(name, &usage));
        missed.extend(aims(trace.name, name, &usage));
    }
    (table.join("\n"), missed)
}

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

/// What should be true of a trace in a mode of Tollgate, and is not.
fn aims(trace: &str, mode: &str, usage: &Usage) -> Vec<String> {
    let calls = usage.per(usage.calls, 100.0);
    let mut missed = Vec::new();
    let mut aim = |is_met: bool, words: &str| {
        if !is_met {
            missed.push(format!("{trace}, {mode}: {words}"));
        }
    };
    let rows = usage.per(usage.rows_written, 100.0);
    match (trace.split(':').next().unwrap_or_default(), mode) {
        ("steady", "Tollgate") => aim(rows <= 2.0, "at most 20 rows written for 1 000 decisions"),
        // A tenth of what is written if each request is.
        ("regular", "Tollgate") => aim(rows <= 10.0, "at most 100 rows written for 1 000 decisions"),
        // Each of the four isolates asks about twice for each token that comes back.
        ("attack", "Tollgate") => {
            aim(calls <= 46.0, "at most 46 calls for 100 decisions");
            aim(rows <= 2.0, "at most 2 rows written");
        }
        // More isolates ask for each token.
        ("overload", "Tollgate") => aim(calls <= 83.0, "at most 83 calls for 100 decisions"),
        // Each isolate asks once a second.
        ("guesses", "Tollgate") => aim(calls <= 9.0, "at most 9 calls for 100 decisions"),
        ("hot", "Tollgate") => aim(rows <= 0.1, "at most a row written for 1 000 decisions"),
        // A lease for each token that comes back: it is the last that there was.
        ("flood" | "attack", "leases") => aim(calls <= 11.0, "at least 89 of 100 decisions without a call"),
        // 10 000 decisions a second.
        ("hot", "leases") => aim(calls <= 5.0, "at most 500 calls a second"),
        ("hot", "leases of 20") => aim(calls <= 7.0, "at most 7 calls for 100 decisions"),
        ("alone", "leases of 20") => aim(usage.price() <= 0.36, "at most $0.36 for a million decisions"),
        _ => {}
    }
    missed
}
