//! The fuzz targets on the committed inputs (seeds and past failures) and on mutations of
//! them, the same in every run. `UNSTUCK_MUTATIONS` sets the number of mutations of each.

use std::{fs, path::Path};

#[path = "../../fuzz/src/lib.rs"]
pub mod targets;

/// Few, because every test run executes them; a fuzzer finds better ones.
const MUTATIONS: usize = 10;

/// Deterministic pseudo-random numbers: xorshift64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }

    /// The seed with one to eight changes: bytes replaced, removed, doubled, or taken
    /// from another seed.
    fn mutated(&mut self, seed: &[u8], seeds: &[Vec<u8>]) -> Vec<u8> {
        const BOUNDARY_BYTES: [u8; 8] = [0, 1, 0x7F, 0x80, 0xFF, b'\n', b'"', b'{'];
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(8) {
            let at = self.below(bytes.len());
            let to = (at + 1 + self.below(16)).min(bytes.len());
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => {
                    bytes[at] = BOUNDARY_BYTES[self.below(BOUNDARY_BYTES.len())]
                }
                2 if at < to => drop(bytes.drain(at..to)),
                3 if at < to => {
                    let piece = bytes[at..to].to_vec();
                    bytes.splice(at..at, piece);
                }
                4 => bytes.truncate(at),
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let from = self.below(other.len());
                    let end = (from + self.below(64)).min(other.len());
                    bytes.splice(at..at, other[from.min(end)..end].iter().copied());
                }
            }
        }
        bytes
    }
}

/// Runs a target over its corpus, and prints the input it failed on.
fn check(name: &str, target: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let mut inputs: Vec<_> = fs::read_dir(&corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    inputs.sort_unstable();
    assert!(
        inputs.len() >= 3,
        "{}: a fuzzer wants seeds",
        corpus.display()
    );
    let seeds: Vec<Vec<u8>> = inputs.iter().map(|path| fs::read(path).unwrap()).collect();
    let mutations =
        std::env::var("UNSTUCK_MUTATIONS").map_or(MUTATIONS, |text| text.parse().unwrap());
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    for (path, seed) in inputs.iter().zip(&seeds) {
        // Printed if the target panics.
        println!("{}", path.display());
        target(seed);
        for n in 0..mutations {
            println!("mutation {n}");
            let mutated = rng.mutated(seed, &seeds);
            if std::env::var_os("UNSTUCK_MUTATIONS").is_some() {
                // Stored if the target fails on it.
                fs::write(
                    std::env::temp_dir().join(format!("mutated-{name}")),
                    &mutated,
                )
                .unwrap();
            }
            target(&mutated);
        }
    }
}

#[test]
fn no_wire_bytes_do_harm_and_an_event_sent_twice_gets_one_answer() {
    check("events", targets::events);
}

#[test]
fn the_chunking_of_a_text_changes_nothing() {
    check("deltas", targets::deltas);
}

#[test]
fn the_work_on_a_text_is_bounded_by_its_bytes() {
    check("work", targets::work);
}

#[test]
fn a_call_in_any_form_is_recorded_without_a_panic() {
    check("call_work", targets::call_work);
}

#[test]
fn masked_text_is_bounded_and_its_hash_matches() {
    check("masking", targets::masking);
}

#[test]
fn a_payload_of_a_hook_gives_events_within_the_bounds_of_the_api() {
    check("hook", targets::hook);
}

#[test]
fn a_trace_line_equals_its_wire_message() {
    check("trace_lines", targets::trace_lines);
}

#[test]
fn a_transcript_of_any_bytes_is_read_or_reported() {
    check("transcript", targets::transcript);
}

#[test]
fn a_configuration_is_accepted_or_refused_in_one_line() {
    check("config", targets::config);
}

#[test]
fn a_damaged_log_is_read_up_to_the_damage_or_refused() {
    check("audit_log", targets::audit_log);
}

/// The script runs exactly the targets in `fuzz/`.
#[test]
fn every_target_is_fuzzed_and_has_a_test_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = include_str!("fuzzed.rs");
    for target in fs::read_dir(root.join("fuzz/fuzz_targets")).unwrap() {
        let name = target
            .unwrap()
            .path()
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            here.contains(&format!("check(\"{name}\", targets::{name})")),
            "{name}"
        );
    }
}
