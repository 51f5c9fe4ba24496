//! The time of a decision, its instructions, and the memory of a bucket: Tollgate beside the best crates and beside the
//! naive designs that it replaces.
//!
//! ```sh
//! cargo bench --bench decisions                         # all: about a minute
//! cargo bench --bench decisions -- time direct          # only sections with these words in the title
//! cargo bench --bench decisions -- shared               # limiters that threads share, with 1 and 2 threads
//! cargo bench --bench decisions -- instructions keyed   # needs valgrind and objdump
//! ```
//!
//! It fails if a decision of Tollgate's allocates or divides.

use std::error::Error;
use std::process::ExitCode;

mod contestants;
mod counting;
mod instructions;
mod memory;
mod time;

use contestants::Case;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[global_allocator]
static HEAP: counting::Counting = counting::Counting;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match instructions::be_counted(&arguments).unwrap_or_else(|| measure(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\n{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &[String]) -> Result<()> {
    let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |title: &str| words.iter().all(|&word| title.contains(word));
    for (case, keys) in asked_of(&[1, 1_000, 1_000_000]) {
        let title = format!("time: {}", title(case, keys));
        if is_wanted(&title) {
            println!("\n{title}");
            time::compare(case, keys)?;
        }
    }
    for (case, keys) in asked_of(&[1_000, 1_000_000]) {
        for threads in [1, 2] {
            let title = format!("shared: {}, {threads} threads", title(case, keys));
            if is_wanted(&title) {
                println!("\n{title}");
                match threads {
                    1 => time::compare_shared::<1>(case, keys)?,
                    _ => time::compare_shared::<2>(case, keys)?,
                }
            }
        }
    }
    let title_of_memory = "memory: bytes per key";
    if is_wanted(title_of_memory) {
        println!("\n{title_of_memory}");
        memory::compare();
    }
    let title_of_texts = "memory: bytes per key, keys are texts of 16 bytes";
    if is_wanted(title_of_texts) {
        println!("\n{title_of_texts}");
        memory::compare_texts();
    }
    // A larger map takes longer, not more instructions.
    for (case, keys) in asked_of(&[1, 1_000]) {
        let title = format!("instructions: {}", title(case, keys));
        if is_wanted(&title) {
            println!("\n{title}");
            instructions::compare(case, keys)?;
        }
    }
    Ok(())
}

fn asked_of(keys: &[u32]) -> impl Iterator<Item = (Case, u32)> {
    keys.iter().flat_map(|&keys| Case::ALL.map(|case| (case, keys)))
}

fn title(case: Case, keys: u32) -> String {
    match keys {
        1 => format!("{case}, direct"),
        _ => format!("{case}, keyed, {keys} keys"),
    }
}
