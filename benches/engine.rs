//! Measures the time of an event, in parts and as a whole:
//!
//! ```text
//! cargo bench --bench engine                      # with quantiles, cold and warm
//! cargo bench --bench engine -- --write PAGE      # the best round of each, to a page
//! ```

#![allow(clippy::unwrap_used)]

mod page;
mod parts;

use std::{
    env,
    path::Path,
    time::{Duration, Instant},
};

use divan::Bencher;
use mimalloc::MiMalloc;
use parts::{PARTS, Part};

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() {
    let args: Vec<String> = env::args().collect();
    match args.iter().position(|arg| arg == "--write") {
        None => divan::main(),
        Some(at) => page::write(Path::new(&args[at + 1]), "engine", &table()).unwrap(),
    }
}

#[divan::bench(args = PARTS.iter().map(|part| part.name))]
fn part(bencher: Bencher, name: &str) {
    let part = PARTS.iter().find(|part| part.name == name).unwrap();
    bencher.bench_local((part.make)());
}

/// How long each part is measured. Other load on the machine is usually shorter.
const TIME: Duration = Duration::from_millis(500);

fn table() -> String {
    let counts = parts::base_line();
    let row = |part: &Part| {
        let count = counts.get(part.name).copied().unwrap_or_default();
        let line = format!("| {} | {count} | {} |\n", part.name, nanos(part));
        print!("{line}");
        line
    };
    let rows: String = PARTS.iter().map(row).collect();
    format!("| part | instructions | ns |\n| --- | --: | --: |\n{rows}")
}

/// The time of a step in the best of many rounds over the whole part.
fn nanos(part: &Part) -> u128 {
    let mut step = (part.make)();
    let begun = Instant::now();
    let mut best = Duration::MAX;
    while begun.elapsed() < TIME || best == Duration::MAX {
        let round = Instant::now();
        (0..part.steps).for_each(|_| step());
        best = best.min(round.elapsed());
    }
    best.as_nanos() / part.steps as u128
}
