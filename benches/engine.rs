//! What an event costs, part by part and as a whole, by the clock:
//!
//! ```text
//! cargo bench --bench engine
//! ```

#![allow(clippy::unwrap_used)]

mod parts;

use divan::Bencher;

fn main() {
    divan::main();
}

#[divan::bench(args = parts::PARTS.iter().map(|part| part.name))]
fn part(bencher: Bencher, name: &str) {
    let part = parts::PARTS.iter().find(|part| part.name == name).unwrap();
    bencher.bench_local((part.make)());
}
