//! The facts of a turn: its words, whether it repeats itself, its vector.

use super::FactExtractor;
use crate::{
    domain::{RepetitionSettings, TurnFacts, sanitize},
    text::{RepetitionTracker, Sketcher},
};

impl FactExtractor {
    /// How much of a turn a model reads: some 700 words, more than most turns have.
    pub const EMBEDDED_BYTES_MAX: usize = 4_096;
    /// A verdict quotes 160 characters of a turn.
    const EXCERPT_BYTES_MAX: usize = 160 * 4;

    pub(super) fn extract_turn(
        &self,
        text: &str,
        repetition: Option<&RepetitionSettings>,
    ) -> TurnFacts {
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &self.analyzers.phrase_matcher);
        let mut facts = sketcher.finish(&self.analyzers.phrase_matcher);
        facts.sketch.vector = self.embed(text);
        if let Some(settings) = repetition {
            let mut tracker = RepetitionTracker::default();
            facts.repetition = tracker.push(text, settings, &self.key);
            facts.is_work_limited = tracker.take_work_limited();
        }
        facts
    }

    /// The model's vector of the beginning of a turn; empty without a model. Expensive: do
    /// not call it under a lock.
    pub fn embed(&self, text: &str) -> Box<[f32]> {
        let Some(model) = &self.analyzers.model else {
            return Box::default();
        };
        let beginning = sanitize::prefix(text, Self::EMBEDDED_BYTES_MAX);
        model.sketch(beginning).vector
    }

    /// How many bytes of a turn are kept while it is streamed: for the model, for the
    /// rules (`rules_bytes`, 0 without rules), and for the verdict's excerpt.
    pub fn turn_bytes_kept(&self, rules_bytes: usize) -> usize {
        match self.analyzers.model {
            Some(_) => Self::EMBEDDED_BYTES_MAX,
            None => rules_bytes.max(Self::EXCERPT_BYTES_MAX),
        }
    }
}
