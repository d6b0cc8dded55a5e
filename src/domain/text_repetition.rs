use serde::Deserialize;

use super::{LadderRung, Sig};

/// A text that repeats itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRepetition {
    /// The unit that is repeated, or of words and sentences that come back in
    /// changing order the latest of them. Bounded.
    pub unit: Box<str>,
    /// The unit in its smallest rotation: where in it a reader begins does not
    /// make it another loop.
    pub loop_key: Sig,
    /// How often it stands.
    pub count: i32,
    /// The unit's characters; 0 where what comes back is not periodic.
    pub period: i32,
    /// The character of the text where it began.
    pub start_char: u64,
    /// 1 where the copies are equal, .9 where they are but for their digits,
    /// else the share of words or sentences that are not new.
    pub similarity: f64,
    /// How bad it is.
    pub rung: LadderRung,
    /// It was found before in the same text: another bar is passed.
    pub extends: bool,
}

/// What makes a text that repeats itself a loop: the keys of
/// `[detect.repetition]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RepetitionSettings {
    /// Prose that stands so often …
    pub count: u32,
    /// … over so many characters is a loop. All other bars are in proportion.
    pub chars: u32,
    /// The chunk tier: a pattern of any of these numbers of characters,
    pub chunks: Vec<u32>,
    /// so often,
    pub chunk_count: u32,
    /// in the last so many characters; 0: off.
    pub chunk_window: u32,
    /// Nothing but the chunk tier.
    pub chunks_only: bool,
}

impl RepetitionSettings {
    /// The sizes of chunks that the window holds often enough.
    pub fn chunk_sizes(&self) -> impl Iterator<Item = usize> + '_ {
        let fits = |size: &&u32| {
            let copies = u64::from(**size) * u64::from(self.chunk_count);
            **size > 0 && copies <= u64::from(self.chunk_window)
        };
        self.chunks.iter().filter(fits).map(|size| *size as usize)
    }
}
