//! Measures a turn, beside a plain implementation of the published rule (token sets of
//! strings, compared with those of the last five turns) in the same run:
//!
//! ```text
//! cargo bench --bench turns
//! ```

#![allow(clippy::unwrap_used)]

#[path = "../tests/setup/mod.rs"]
mod setup;

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, SystemTime},
};

use divan::{Bencher, black_box};
use unstuck::{
    domain::{Event, SimilarityMeasure},
    engine::{Engine, RunMode},
    pb::{self, event::Body},
    text::WordOverlap,
};

/// Tokens per turn.
const TOKENS: [usize; 4] = [50, 200, 1_000, 4_000];

fn main() {
    divan::main();
}

/// Turns of this many words, a tenth of them new each time, so that none matches and all
/// are compared.
fn turns(tokens: usize) -> Vec<String> {
    let word = |n: usize| {
        format!(
            "{}{}",
            ["wo", "rea", "compi", "the", "a"][n % 5],
            letters(n)
        )
    };
    let turn = |t: usize| {
        let words = (0..tokens).map(|n| {
            if n % 10 < 3 {
                word(n + t * 7_919)
            } else {
                word(n)
            }
        });
        words.collect::<Vec<_>>().join(" ")
    };
    (0..64).map(turn).collect()
}

fn letters(mut n: usize) -> String {
    let mut word = String::new();
    while n > 0 {
        word.push(char::from(b'a' + (n % 26) as u8));
        n /= 26;
    }
    word
}

fn engine() -> Engine {
    setup::engine_without_sink(setup::config("").unwrap(), RunMode::Replay)
}

/// The whole engine, with every detector: from the event to its answer.
#[divan::bench(args = TOKENS)]
fn engine_records_a_turn(bencher: Bencher, tokens: usize) {
    let engine = engine();
    let event = |text: String| {
        let turn = pb::Turn {
            role: pb::Role::Agent.into(),
            text,
            ..pb::Turn::default()
        };
        Event::try_from(pb::Event {
            session_id: "s".to_owned(),
            body: Some(Body::Turn(turn)),
            ..pb::Event::default()
        })
        .unwrap()
    };
    let events: Vec<Event> = turns(tokens).into_iter().map(event).collect();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % events.len();
        engine.record(black_box(&events[next]), now).unwrap()
    });
}

/// Only the similarity: one sketch compared with five.
#[divan::bench(args = TOKENS)]
fn sketch_and_compare(bencher: Bencher, tokens: usize) {
    let texts = turns(tokens);
    let mut past = VecDeque::new();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % texts.len();
        let turn = WordOverlap.sketch(black_box(&texts[next]));
        let alike = |earlier| WordOverlap.similarity_at_least(&turn, earlier, 0.85);
        let most = past.iter().filter_map(alike).fold(0.0, f64::max);
        keep(&mut past, turn, 5);
        most
    });
}

/// The published rule: keeps 50 texts and rebuilds the sets of the last five for each
/// turn.
#[divan::bench(args = TOKENS)]
fn published_rule(bencher: Bencher, tokens: usize) {
    let texts = turns(tokens);
    let mut past: VecDeque<String> = VecDeque::new();
    let mut next = 0;
    bencher.bench_local(|| {
        next = (next + 1) % texts.len();
        let text = black_box(&texts[next]);
        let alike = |earlier: &String| jaccard(text, earlier);
        let most = past.iter().rev().take(5).map(alike).fold(0.0, f64::max);
        keep(&mut past, text.clone(), 50);
        most
    });
}

fn jaccard(a: &str, b: &str) -> f64 {
    let (a, b) = (words(a), words(b));
    let all = a.union(&b).count();
    if all == 0 {
        return 0.0;
    }
    a.intersection(&b).count() as f64 / all as f64
}

fn words(text: &str) -> HashSet<String> {
    let lower = text.to_lowercase();
    lower.split_whitespace().map(str::to_owned).collect()
}

fn keep<T>(past: &mut VecDeque<T>, turn: T, most: usize) {
    if past.len() == most {
        past.pop_front();
    }
    past.push_back(turn);
}
