//! What a text says by itself, whatever call returned it, computed once for a text that
//! repeats: an agent in a loop gets the same result again and again, and many calls
//! return the same short one.

use super::{FactExtractor, outcome::TextHashes};
use crate::text::{
    answer::{self, AnswerReading},
    harness::{self, HarnessResult},
};

/// What is asked about a text. All answers about a text are in one entry of the cache, each
/// in seven bits of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    HasHarness,
    IsPending,
    ReportsFailedRun,
    Answer,
    ChangedNothing,
    IsOutageResult,
    IsOutageError,
    IsAcknowledgement,
    HasFigures,
}

const READING_BITS: u32 = 7;
const READING_MAX: u64 = (1 << READING_BITS) - 1;
const _: () = assert!(READING_BITS * (Question::HasFigures as u32 + 1) <= u64::BITS);

impl FactExtractor {
    /// Answers a question about the text with this raw hash.
    fn read(&self, raw: u64, question: Question, compute: impl FnOnce() -> u64) -> u64 {
        // An empty text has no hash.
        if raw == 0 {
            return compute();
        }
        // The readings, and a bit for each that is known.
        let [readings, known] = self.readings_memo.get(raw).unwrap_or_default();
        let (bit, shift) = (1 << question as u32, READING_BITS * question as u32);
        if known & bit != 0 {
            return readings >> shift & READING_MAX;
        }
        let reading = compute() & READING_MAX;
        // Another thread may have added a reading meanwhile; it is computed again.
        self.readings_memo
            .set(raw, [readings | reading << shift, known | bit]);
        reading
    }

    /// Answers a question about the text with this raw hash with yes or no.
    pub(super) fn ask(&self, raw: u64, question: Question, compute: impl FnOnce() -> bool) -> bool {
        self.read(raw, question, || u64::from(compute())) != 0
    }

    /// The text without what its harness added; `raw` is the hash of the text.
    pub(super) fn strip_harness<'a>(&self, text: &'a str, raw: u64) -> HarnessResult<'a> {
        if text.is_empty() {
            return HarnessResult::unchanged(text);
        }
        let mut stripped = None;
        let has_harness = self.read(raw, Question::HasHarness, || {
            let result = harness::strip(text);
            let is_changed = result != HarnessResult::unchanged(text);
            stripped = Some(result);
            u64::from(is_changed)
        });
        match stripped {
            Some(result) => result,
            None if has_harness != 0 => harness::strip(text),
            None => HarnessResult::unchanged(text),
        }
    }

    /// What the answer of a call that did not fail says.
    pub(super) fn read_answer(&self, hashes: &TextHashes, result: Option<&str>) -> AnswerReading {
        let compute = || answer::classify(false, result);
        match result {
            None | Some("") => compute(),
            Some(_) => {
                AnswerReading::unpack(self.read(hashes.raw, Question::Answer, || compute().pack()))
            }
        }
    }
}
