//! Measures the time of an event, in parts and as a whole:
//!
//! ```text
//! cargo bench --bench engine                      # with quantiles, cold and warm
//! cargo bench --bench engine -- --write PAGE      # the best round of each, to a page
//! cargo bench --bench engine -- --worst           # the slowest adversarial texts
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
use parts::{PARTS, Part, WORST_PARTS};

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() {
    let args: Vec<String> = env::args().collect();
    if args.iter().any(|arg| arg == "--worst") {
        for (part, ..) in WORST_PARTS {
            println!("{}: {} ns", part.name, worst_nanos(part));
        }
        return;
    }
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
    let row = |part: &Part, nanos: u128| {
        let count = counts.get(part.name).copied().unwrap_or_default();
        let line = format!("| {} | {count} | {nanos} |\n", part.name);
        print!("{line}");
        line
    };
    let mut rows: String = PARTS.iter().map(|part| row(part, nanos(part))).collect();
    for (part, ..) in WORST_PARTS {
        rows += &row(part, worst_nanos(part));
    }
    format!("| part | instructions | ns |\n| --- | --: | --: |\n{rows}")
}

/// The time of the slowest step, each in its best of three rounds.
fn worst_nanos(part: &Part) -> u128 {
    const ROUNDS: usize = 3;
    let mut step = (part.make)();
    let mut best = vec![Duration::MAX; part.steps];
    for _ in 0..ROUNDS {
        for best in &mut best {
            let begun = Instant::now();
            step();
            *best = begun.elapsed().min(*best);
        }
    }
    best.into_iter().max().unwrap_or_default().as_nanos()
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
