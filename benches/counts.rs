//! Counts the instructions of each part of an event's path with callgrind. The counts
//! do not depend on how busy the machine is.
//!
//! ```text
//! cargo bench --bench counts                # prints the counts
//! cargo bench --bench counts -- --check     # fails if a count has grown
//! cargo bench --bench counts -- --record    # writes the baseline
//! ```

#![allow(clippy::unwrap_used, clippy::panic)]

mod parts;

use std::{env, fmt::Write, fs, hint::black_box, process::Command};

use mimalloc::MiMalloc;
use parts::{BASE_LINE, PARTS, Part, Step};
use unstuck::detect;

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The growth over the baseline that is tolerated. The compiler and the map's random
/// hash cause one or two per cent; relevant changes cause more.
const GROWTH_MAX: f64 = 1.05;

fn main() {
    let args: Vec<String> = env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--part") {
        return take_steps(named(&args[at + 1]));
    }
    let known = parts::base_line();
    for detector in detect::NAMES {
        named(detector);
    }
    let mut grown = Vec::new();
    let mut lines =
        String::from("# Instructions a step, by `cargo bench --bench counts -- --record`.\n");
    println!("{:<24} {:>12} {:>12}", "part", "base line", "now");
    for part in PARTS {
        let count = counted(part);
        let before = known.get(part.name).copied();
        println!(
            "{:<24} {:>12} {count:>12}",
            part.name,
            before.map_or("-".to_owned(), |b| b.to_string())
        );
        if before.is_none_or(|before| count as f64 > before as f64 * GROWTH_MAX) {
            grown.push(part.name);
        }
        writeln!(lines, "\"{}\" = {count}", part.name).unwrap();
    }
    if args.iter().any(|arg| arg == "--record") {
        fs::write(BASE_LINE, lines).unwrap();
    }
    if args.iter().any(|arg| arg == "--check") {
        for name in known.keys() {
            named(name);
        }
        assert!(
            grown.is_empty(),
            "these exceed {GROWTH_MAX} of the baseline or have none: {grown:?}"
        );
    }
}

fn named(name: &str) -> &'static Part {
    let part = PARTS.iter().find(|part| part.name == name);
    part.unwrap_or_else(|| panic!("there is no part {name:?}"))
}

fn take_steps(part: &Part) {
    let mut step = (part.make)();
    // The first round creates what later rounds reuse.
    warm(&mut step, part.steps);
    measured(&mut step, part.steps);
}

/// Only calls from this function are counted.
#[inline(never)]
fn measured(step: &mut Step, steps: usize) {
    for _ in 0..black_box(steps) {
        step();
    }
}

fn warm(step: &mut Step, steps: usize) {
    for _ in 0..black_box(steps) {
        step();
    }
}

/// Instructions per step.
fn counted(part: &Part) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*counts*measured*"])
        .arg(env::current_exe().unwrap())
        .args(["--part", part.name])
        .output()
        .unwrap_or_else(|error| panic!("cannot run valgrind (Debian package valgrind): {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", part.name);
    let collected = stderr
        .lines()
        .find_map(|line| line.split_once("Collected :"));
    let count: u64 = collected.unwrap().1.trim().parse().unwrap();
    assert!(count > 0, "{}: nothing was counted", part.name);
    count / part.steps as u64
}
