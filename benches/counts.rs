//! Counts the instructions of each part of an event's path with callgrind. The counts
//! do not depend on how busy the machine is.
//!
//! ```text
//! cargo bench --bench counts                # prints the counts
//! cargo bench --bench counts -- --check     # fails if a count has grown
//! cargo bench --bench counts -- --record    # writes the baseline
//! cargo bench --bench counts -- --texts "worst of 200 turns"    # each text by itself
//! cargo bench --bench counts -- --search "worst of 200 calls"   # looks for costlier ones
//! ```

#![allow(clippy::unwrap_used, clippy::panic)]

mod parts;

use std::{
    collections::BTreeMap, env, ffi::OsStr, fmt::Write, fs, hint::black_box, path::Path,
    process::Command,
};

use mimalloc::MiMalloc;
use parts::{
    BASE_LINE, PARTS, Part, SEARCHED_BYTES, SEARCHED_TEXTS, Step, WORST_PARTS,
    adversarial::{self, Genes, Random},
};
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
        let steps = args.iter().position(|arg| arg == "--steps");
        let steps = steps.and_then(|at| args[at + 1].parse().ok());
        return take_steps(named(&args[at + 1]), steps);
    }
    if let Some(at) = args.iter().position(|arg| arg == "--texts") {
        return print_texts(named(&args[at + 1]));
    }
    if let Some(at) = args.iter().position(|arg| arg == "--search") {
        let generations = args.get(at + 2).and_then(|text| text.parse().ok());
        return search(named(&args[at + 1]), generations.unwrap_or(20));
    }
    let known = parts::base_line();
    for detector in detect::NAMES {
        named(detector);
    }
    let mut grown = Vec::new();
    let mut lines =
        String::from("# Instructions a step, by `cargo bench --bench counts -- --record`.\n");
    println!("{:<28} {:>12} {:>12}", "part", "base line", "now");
    let mut counts = BTreeMap::new();
    let worst = WORST_PARTS.iter().map(|(part, ..)| part);
    for part in PARTS.iter().chain(worst) {
        let count = counted(part);
        counts.insert(part.name, count);
        let before = known.get(part.name).copied();
        println!(
            "{:<28} {:>12} {count:>12}",
            part.name,
            before.map_or("-".to_owned(), |b| b.to_string())
        );
        if before.is_none_or(|before| count as f64 > before as f64 * GROWTH_MAX) {
            grown.push(part.name);
        }
        if let Some((_, prose, times)) = WORST_PARTS
            .iter()
            .find(|(worst, ..)| worst.name == part.name)
            && count > counts[prose] * times
        {
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
    let worst = WORST_PARTS.iter().map(|(part, ..)| part);
    let part = PARTS.iter().chain(worst).find(|part| part.name == name);
    part.unwrap_or_else(|| panic!("there is no part {name:?}"))
}

fn take_steps(part: &Part, steps: Option<usize>) {
    let mut step = (part.make)();
    let steps = steps.unwrap_or(part.steps);
    // The first round creates what later rounds reuse.
    warm(&mut step, steps);
    if !is_worst(part) {
        return measured(&mut step, steps);
    }
    for _ in 0..steps {
        measured(&mut step, 1);
    }
}

/// Whether the step that costs most counts, not the mean.
fn is_worst(part: &Part) -> bool {
    WORST_PARTS
        .iter()
        .any(|(worst, ..)| worst.name == part.name)
}

/// Prints the instructions of each adversarial text, the costliest first.
fn print_texts(part: &Part) {
    let texts = adversarial::texts(64);
    // The first step takes the second text: see `parts::each`.
    let names = texts.iter().cycle().skip(1).map(|(name, _)| name);
    let mut counts: Vec<(u64, &String)> = counted_steps(part).into_iter().zip(names).collect();
    counts.sort_unstable();
    for (count, name) in counts.iter().rev() {
        println!("{count:>12} {name}");
    }
}

/// Looks for texts that cost more instructions than any known one: the costliest of each
/// generation are changed to get the next. Prints the costliest, with the seeds for
/// `Genes::of_lineage`, whenever there is a new one.
fn search(part: &Part, generations: usize) {
    const KEPT: usize = 8;
    const CHANGED: usize = 48;
    let mut random = Random(u64::from(std::process::id()));
    let mut kept: Vec<(u64, String)> = Vec::new();
    for generation in 0..generations {
        // The texts of this generation: changes of the costliest, and some new ones.
        let mut lineages: Vec<String> = (0..CHANGED).map(|_| random.next().to_string()).collect();
        if !kept.is_empty() {
            for lineage in lineages.iter_mut().skip(KEPT) {
                let (_, parent) = &kept[random.below(kept.len())];
                *lineage = format!("{parent} {lineage}");
            }
        }
        // Count each, and keep the costliest of all so far.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("texts");
        fs::write(&file, lineages.join("\n")).unwrap();
        let counts = counted_steps_of(part, CHANGED, &[(SEARCHED_TEXTS, file.as_os_str())]);
        // The first step takes the second text: see `parts::each`.
        lineages.rotate_left(1);
        let most = kept.first().map_or(0, |(count, _)| *count);
        kept.extend(counts.into_iter().zip(lineages));
        kept.sort_unstable_by(|a, b| b.cmp(a));
        kept.truncate(KEPT);
        let (count, lineage) = &kept[0];
        if *count > most {
            let per_byte = count / SEARCHED_BYTES as u64;
            println!("{generation}: {count}, {per_byte} per byte: {lineage}");
            println!("    {:?}", Genes::of_lineage(lineage));
        }
    }
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

/// Instructions per step: the mean, or those of the costliest step.
fn counted(part: &Part) -> u64 {
    if is_worst(part) {
        return counted_steps(part).into_iter().max().unwrap();
    }
    counted_mean(part)
}

/// Instructions of each step: callgrind writes a file whenever `measured` returns.
fn counted_steps(part: &Part) -> Vec<u64> {
    counted_steps_of(part, part.steps, &[])
}

/// The same for this number of steps, with these variables in the environment.
fn counted_steps_of(part: &Part, steps: usize, variables: &[(&str, &OsStr)]) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let file = |step: usize| folder.path().join(format!("steps.{step}"));
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!(
            "--callgrind-out-file={}",
            folder.path().join("steps").display()
        ))
        .args(["--collect-atstart=no", "--toggle-collect=*counts*measured*"])
        .arg("--dump-after=counts::measured")
        .arg(env::current_exe().unwrap())
        .args(["--part", part.name, "--steps", &steps.to_string()])
        .envs(variables.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("cannot run valgrind (Debian package valgrind): {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", part.name);
    (1..=steps).map(|step| summary(&file(step))).collect()
}

/// The total of a file of callgrind.
fn summary(file: &Path) -> u64 {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let total = text.lines().find_map(|line| {
        let total = line
            .strip_prefix("summary:")
            .or(line.strip_prefix("totals:"));
        total?.trim().parse().ok()
    });
    total.unwrap_or_else(|| panic!("{}: no total", file.display()))
}

fn counted_mean(part: &Part) -> u64 {
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
