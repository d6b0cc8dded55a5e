//! The fuzzer's targets over the inputs that are committed: seeds, and whatever
//! was once found to break something.

use std::{fs, path::Path};

#[path = "../../fuzz/src/lib.rs"]
mod targets;

/// Runs a target over its corpus, and says which input it failed on.
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
    for input in inputs {
        // Shown where the target panics.
        println!("{}", input.display());
        target(&fs::read(&input).unwrap());
    }
}

#[test]
fn no_wire_bytes_do_harm_and_an_event_sent_twice_gets_one_answer() {
    check("events", targets::events);
}

#[test]
fn how_a_text_is_cut_decides_nothing() {
    check("deltas", targets::deltas);
}

#[test]
fn masked_text_is_bounded_and_hashed_as_it_is() {
    check("masking", targets::masking);
}

#[test]
fn a_line_of_a_trace_is_what_it_is_over_the_wire() {
    check("trace_lines", targets::trace_lines);
}

#[test]
fn a_configuration_is_taken_or_refused_in_one_line() {
    check("config", targets::config);
}

#[test]
fn a_damaged_log_is_read_as_far_as_it_is_sound_or_refused() {
    check("audit_log", targets::audit_log);
}

/// The script runs those that are there, and `fuzz/` has no others.
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
