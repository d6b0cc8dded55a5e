//! Measures a delta of 7 characters: our tracker, and plain implementations of the rule
//! that its chunk tier is based on, with the same text in the same run.
//! `cargo bench --bench text`.

use std::hint::black_box;

use divan::{Bencher, counter::ItemsCount};
use unstuck::{
    domain::RepetitionSettings,
    text::{HashKey, RepetitionTracker},
};

const TEXTS: [(&str, &str); 2] = [
    ("prose", include_str!("../tests/it/texts/report.txt")),
    ("code", include_str!("../tests/it/texts/queue.go")),
];

#[path = "../tests/setup/repetition_settings.rs"]
mod repetition_settings;

use repetition_settings::repetition_settings;

fn main() {
    divan::main();
}

/// A text that loops without being stopped: every run continues, every word is old.
fn looping() -> String {
    "I will now check the file again to be sure. ".repeat(300)
}

/// 7 characters each.
fn deltas(name: &str) -> Vec<String> {
    let text = TEXTS.iter().find(|(known, _)| *known == name);
    let text = text.map_or_else(looping, |(_, text)| (*text).to_owned());
    let chars: Vec<char> = text.chars().collect();
    chars
        .chunks(7)
        .map(|piece| piece.iter().collect())
        .collect()
}

#[divan::bench(args = ["prose", "code", "looping"])]
fn tracker(bencher: Bencher<'_, '_>, name: &str) {
    let (deltas, settings, key) = (deltas(name), repetition_settings(), HashKey::fixed());
    bencher
        .counter(ItemsCount::new(deltas.len()))
        .with_inputs(RepetitionTracker::default)
        .bench_local_refs(|tracker| {
            for delta in &deltas {
                black_box(tracker.push(delta, &settings, &key));
            }
        });
}

#[divan::bench(args = ["prose", "code"])]
fn chunk_tier(bencher: Bencher<'_, '_>, name: &str) {
    let settings = RepetitionSettings {
        chunk_window: 200,
        chunks_only: true,
        ..repetition_settings()
    };
    let (deltas, key) = (deltas(name), HashKey::fixed());
    bencher
        .counter(ItemsCount::new(deltas.len()))
        .with_inputs(RepetitionTracker::default)
        .bench_local_refs(|tracker| {
            for delta in &deltas {
                black_box(tracker.push(delta, &settings, &key));
            }
        });
}

/// At each delta: how often do the last 50, 80 and 120 characters occur in the last
/// 200?
#[divan::bench(args = ["prose", "code"])]
fn naive_last_chunk(bencher: Bencher<'_, '_>, name: &str) {
    naive(bencher, name, |window| {
        [50, 80, 120].iter().any(|size| {
            let Some((begin, _)) = window.char_indices().rev().nth(size - 1) else {
                return false;
            };
            window.matches(&window[begin..]).count() >= 3
        })
    });
}

/// At each delta: do any 50 characters of the last 200 occur there three times?
#[divan::bench(args = ["prose", "code"])]
fn naive_any_chunk(bencher: Bencher<'_, '_>, name: &str) {
    naive(bencher, name, |window| {
        let chars: Vec<char> = window.chars().collect();
        chars.windows(50).any(|pattern| {
            let pattern: String = pattern.iter().collect();
            window.matches(&pattern).count() >= 3
        })
    });
}

fn naive(bencher: Bencher<'_, '_>, name: &str, fires: impl Fn(&str) -> bool) {
    let deltas = deltas(name);
    bencher
        .counter(ItemsCount::new(deltas.len()))
        .with_inputs(String::new)
        .bench_local_refs(|window| {
            for delta in &deltas {
                window.push_str(delta);
                if let Some((begin, _)) = window.char_indices().rev().nth(200) {
                    window.drain(..begin);
                }
                black_box(fires(window));
            }
        });
}
