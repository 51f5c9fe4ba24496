//! Instructions, and how many of them are divisions: counted by valgrind, so the same on a busy machine as on an idle
//! one.

use std::collections::HashSet;
use std::env;
use std::io::ErrorKind;
use std::process::{Command, Output};

use super::Result;
use super::contestants::{self, Case, Entry, OURS, Random, START_MS};

/// Prints the counts of each contestant, and fails if Tollgate divides.
pub(crate) fn compare(case: Case, keys: u32) -> Result<()> {
    let divisions = divisions()?;
    println!("{:26}{:>14}{:>14}", "", "instructions", "divisions");
    for Entry { name, .. } in contestants::all(keys) {
        let [instructions, divided] = count(name, case, keys, &divisions)?;
        println!("{name:26}{instructions:14.1}{divided:14.2}");
        if name == OURS && divided > 0.0 {
            return Err("Tollgate divides".into());
        }
    }
    Ok(())
}

/// Instructions and divisions per decision.
fn count(name: &str, case: Case, keys: u32, divisions: &HashSet<u64>) -> Result<[f64; 2]> {
    let file = env::temp_dir().join(format!("tollgate-callgrind-{}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--dump-instr=yes", "--compress-pos=no"]);
    valgrind.args(["--collect-atstart=no", "--toggle-collect=*measured*"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display())).arg(env::current_exe()?);
    valgrind.args([COUNTED, name, &case.to_string(), &keys.to_string()]);
    run(&mut valgrind)?;
    let profile = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    let counts = self_costs(&profile);
    let total = |is_counted: &dyn Fn(u64) -> bool| -> u64 {
        counts.iter().filter(|(address, _)| is_counted(*address)).map(|(_, count)| count).sum()
    };
    let instructions = total(&|_| true);
    if instructions == 0 {
        return Err(format!("callgrind did not find the loop of {name}").into());
    }
    Ok([instructions, total(&|address| divisions.contains(&address))].map(each))
}

/// Each executed address, and how often it ran. A line is `0xaddress line count`; the one after a `calls=` line is the
/// cost of the callee, which is counted at the callee's own addresses.
fn self_costs(profile: &str) -> Vec<(u64, u64)> {
    let mut lines = profile.lines();
    let mut costs = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with("calls=") {
            lines.next();
        } else if let Some(line) = line.strip_prefix("0x") {
            let mut fields = line.split(' ');
            let address = fields.next().and_then(|field| u64::from_str_radix(field, 16).ok());
            let count = fields.nth(1).and_then(|field| field.parse().ok());
            costs.extend(address.zip(count));
        }
    }
    costs
}

/// The addresses of all integer divisions in this program.
fn divisions() -> Result<HashSet<u64>> {
    let output = run(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(env::current_exe()?))?;
    let assembly = String::from_utf8(output.stdout)?;
    let address_of_division = |line: &str| {
        let (address, instruction) = line.split_once(":\t")?;
        let mnemonic = instruction.split_whitespace().next()?;
        let divides = matches!(mnemonic.trim_end_matches(['b', 'w', 'l', 'q']), "div" | "idiv" | "udiv" | "sdiv");
        if divides { u64::from_str_radix(address.trim(), 16).ok() } else { None }
    };
    let addresses: HashSet<u64> = assembly.lines().filter_map(address_of_division).collect();
    if addresses.is_empty() {
        return Err("objdump shows no division in this program, which has some: the count would always be 0".into());
    }
    Ok(addresses)
}

fn run(command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{program} is not installed, and counting instructions needs it"),
        _ => format!("{program}: {error}"),
    })?;
    if !output.status.success() {
        return Err(format!("{program}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(output)
}

/// The part that runs under valgrind, if the arguments say so: one contestant's loop.
pub(crate) fn be_counted(arguments: &[String]) -> Option<Result<()>> {
    let [flag, name, case, keys] = arguments else { return None };
    (flag == COUNTED).then(|| {
        let keys = keys.parse()?;
        let case = Case::ALL.into_iter().find(|one| one.to_string() == *case).ok_or("no such case")?;
        let entry = contestants::all(keys).into_iter().find(|entry| entry.name == name).ok_or("no such contestant")?;
        let mut asked = (entry.make)(case, keys);
        asked.prepare(&case.requests(keys, &mut { START_MS }, DECISIONS, &mut Random::default()));
        asked.ask();
        Ok(())
    })
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn each(count: u64) -> f64 {
    count as f64 / DECISIONS as f64
}

const COUNTED: &str = "--counted";

/// Few enough that no contestant skips any.
const DECISIONS: usize = 2_000;
