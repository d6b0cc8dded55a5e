//! A repetition within one text, and the settings that define one.

use serde::Deserialize;

use super::{EscalationLevel, Sig};

/// A repetition within one text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRepetition {
    /// The repeated unit; if words and sentences recur in changing order, the latest
    /// of them. Bounded.
    pub unit: Box<str>,
    /// The signature of the unit's smallest rotation, so that the loop is the same
    /// wherever in the unit the text begins.
    pub loop_key: Sig,
    /// The number of copies.
    pub count: i32,
    /// The unit's length in characters; 0 if the repetition is not periodic.
    pub period: i32,
    /// The character of the text at which the repetition begins.
    pub start_char: u64,
    /// 1 if the copies are equal, .9 if they differ in their digits only, else the
    /// share of words or sentences that are not new.
    pub similarity: f64,
    pub level: EscalationLevel,
    /// It was found before in the same text and has crossed another threshold.
    pub extends: bool,
}

/// The keys of `[detect.repetition]`, which say when a repetition is a loop.
#[derive(Clone, Debug, PartialEq, Hash, Deserialize)]
pub struct RepetitionSettings {
    /// Prose is a loop if it repeats this many times …
    pub count: u32,
    /// … over at least this many characters. All other thresholds are proportional.
    pub chars: u32,
    /// The chunk tier: sizes in characters of the chunks that are searched for.
    pub chunks: Vec<u32>,
    /// A chunk is a loop if it occurs this many times …
    pub chunk_count: u32,
    /// … in the last `chunk_window` characters; 0 turns the chunk tier off.
    pub chunk_window: u32,
    /// Use only the chunk tier.
    pub chunks_only: bool,
}

impl RepetitionSettings {
    /// The most chunk sizes: each takes up to 18 KiB per text.
    pub const CHUNK_SIZES_MAX: usize = 16;

    /// The chunk sizes of which `chunk_count` copies fit in the window.
    pub fn chunk_sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.chunks
            .iter()
            .filter(|size| {
                let copies_chars = u64::from(**size) * u64::from(self.chunk_count);
                **size > 0 && copies_chars <= u64::from(self.chunk_window)
            })
            .map(|size| *size as usize)
    }
}
