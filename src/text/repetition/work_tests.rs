//! The units of a text's budget pay for its steps, and both are bounded by its bytes:
//! searched for with texts that are changed to cause more and more steps.

use super::RepetitionTracker;
use crate::{
    domain::RepetitionSettings,
    testing::repetition_settings,
    text::{HashKey, work_budget::steps},
};

#[path = "../../../benches/adversarial/mod.rs"]
mod adversarial;

use adversarial::{Genes, Random};

/// Steps that every byte of every text may take without units: chains of anchors.
const STEPS_PER_BYTE: u64 = 16;

/// The default settings, and those with the rule of the profile `classic`.
fn both_settings() -> [RepetitionSettings; 2] {
    let default = repetition_settings();
    let classic = RepetitionSettings {
        chunk_window: 200,
        ..default.clone()
    };
    [default, classic]
}

/// Reads a text and returns its steps. Fails if they exceed what its units pay for, or
/// what its bytes allow.
#[track_caller]
fn steps_of(text: &str, settings: &RepetitionSettings) -> u64 {
    let mut tracker = RepetitionTracker::default();
    steps::take();
    tracker.push(text, settings, &HashKey::fixed());
    let (steps, units, bytes) = (steps::take(), tracker.work_units(), text.len() as u64);
    assert!(
        steps <= units + STEPS_PER_BYTE * bytes,
        "{steps} steps, {units} units, {bytes} bytes"
    );
    let most = RepetitionTracker::work_units_max(text.len()) + STEPS_PER_BYTE * bytes;
    assert!(steps <= most, "{steps} steps, {bytes} bytes");
    steps
}

#[test]
fn the_units_of_a_text_pay_for_its_steps() {
    for settings in both_settings() {
        let mut costs = Vec::new();
        for (name, text) in adversarial::texts(16 * 1_024) {
            println!("{name}");
            costs.push((steps_of(&text, &settings), name));
        }
        costs.sort_unstable();
        println!("{:#?}", costs.iter().rev().take(8).collect::<Vec<_>>());
    }
}

/// Changes are kept if they cause more steps.
#[test]
fn a_search_for_the_text_with_the_most_steps_finds_none_beyond_the_bound() {
    const BYTES: usize = 8 * 1_024;
    let [default, classic] = both_settings();
    for (seed, settings) in [(1, &default), (2, &default), (3, &default), (4, &classic)] {
        let mut random = Random(seed);
        let mut costly = Genes::random(&mut random);
        let (mut most, mut first) = (0, 0);
        for n in 0..150 {
            let genes = costly.mutated(&mut random);
            println!("{genes:?}");
            let steps = steps_of(&genes.text(BYTES), settings);
            if n == 0 {
                first = steps;
            }
            if steps >= most {
                (costly, most) = (genes, steps);
            }
        }
        println!("{most} steps, {first} at first: {costly:?}");
        // The search climbs: otherwise it would prove nothing.
        assert!(most > 2 * first.max(BYTES as u64 / 2), "{most}, {first}");
    }
}
