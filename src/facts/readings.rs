//! What a text says by itself, whatever call returned it, computed once for a text that
//! repeats: an agent in a loop gets the same result again and again, and many calls
//! return the same short one.

use super::{
    FactExtractor,
    answer::{self, AnswerReading},
    outcome::TextHashes,
};
use crate::text::harness::{self, HarnessResult};

/// What is asked about a text. Each is a key of its own in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    HasHarness = 1,
    IsPending,
    ReportsFailedRun,
    Answer,
    ChangedNothing,
}

impl FactExtractor {
    /// Answers a question about the text with this raw hash.
    fn read(&self, raw: u64, question: Question, compute: impl FnOnce() -> u64) -> u64 {
        // An empty text has no hash.
        if raw == 0 {
            return compute();
        }
        let key = raw.rotate_left(8 * question as u32);
        let [reading, _] = self.readings_memo.get_or_compute(key, || [compute(), 0]);
        reading
    }

    pub(super) fn ask(
        &self,
        hashes: &TextHashes,
        question: Question,
        compute: impl FnOnce() -> bool,
    ) -> bool {
        self.read(hashes.raw, question, || u64::from(compute())) != 0
    }

    /// The text without what its harness added; `raw` is the hash of the text.
    pub(super) fn strip_harness<'a>(&self, text: &'a str, raw: u64) -> HarnessResult<'a> {
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
