//! Texts that arrive in deltas, until their turn is complete.

use serde::{Deserialize, Serialize};

use crate::{
    domain::{Channel, LazyBox, RepetitionSettings, Sig, TextRepetition, TurnFacts, sanitize},
    facts::FactExtractor,
    text::{RepetitionTracker, Sketcher},
};

/// The texts in progress of an agent, latest last.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Drafts {
    drafts: Vec<Draft>,
    /// Heap bytes of all drafts together.
    #[serde(skip)]
    bytes: usize,
}

pub(super) struct DraftChunk<'a> {
    pub turn_key: Sig,
    pub channel: Channel,
    pub text: &'a str,
    /// The number of bytes of the text's beginning that are kept.
    pub prefix_bytes_max: usize,
}

/// How far a chunk was read.
#[derive(Default)]
pub(super) struct DraftProgress {
    /// All of the chunk, or up to where it completes a repetition.
    pub bytes_read: usize,
    pub repetition: Option<TextRepetition>,
    /// The search for repetitions skipped a step, because the text causes too much work.
    pub is_work_limited: bool,
}

#[derive(Serialize, Deserialize)]
struct Draft {
    turn_key: Sig,
    /// The text of the turn; not allocated while there is only reasoning.
    text: LazyBox<DraftText>,
    /// Trackers of the visible text and of the reasoning.
    visible_tracker: LazyBox<RepetitionTracker>,
    reasoning_tracker: LazyBox<RepetitionTracker>,
    /// Heap bytes by the last measurement.
    #[serde(skip)]
    bytes: usize,
}

#[derive(Default, Serialize, Deserialize)]
struct DraftText {
    sketcher: Sketcher,
    /// The beginning of the text, for a verdict's excerpt and for the model.
    prefix: String,
    /// The text is longer than the prefix.
    is_truncated: bool,
}

impl Drafts {
    /// Parallel generations of one agent; beyond this the oldest is dropped.
    const DRAFTS_MAX: usize = 4;

    /// Appends a chunk, up to where it completes a repetition; `repeats` is `None` if the
    /// detector is disabled.
    pub fn push(
        &mut self,
        chunk: &DraftChunk<'_>,
        repeats: Option<&RepetitionSettings>,
        facts: &FactExtractor,
    ) -> DraftProgress {
        let position = self.position(chunk.turn_key).unwrap_or_else(|| {
            if self.drafts.len() == Self::DRAFTS_MAX {
                self.bytes -= self.drafts.remove(0).bytes;
            }
            // Most agents write one text at a time; a `Vec` would begin with room for four.
            self.drafts.reserve_exact(1);
            self.drafts.push(Draft::new(chunk.turn_key));
            self.drafts.len() - 1
        });
        let Some(draft) = self.drafts.get_mut(position) else {
            return DraftProgress::default();
        };
        let progress = draft.push(chunk, repeats, facts);
        self.bytes -= draft.bytes;
        self.bytes += draft.update_bytes();
        progress
    }

    /// Removes a complete text and returns its facts and its prefix. `None`: there
    /// was no visible text; reasoning alone is not a turn.
    pub fn finish(&mut self, turn_key: Sig, facts: &FactExtractor) -> Option<(TurnFacts, String)> {
        let draft = self.drafts.remove(self.position(turn_key)?);
        self.bytes -= draft.bytes;
        let text = draft.text.into_inner()?;
        let turn_facts = text.sketcher.finish(&facts.analyzers().phrase_matcher);
        Some((turn_facts, text.prefix))
    }

    /// The beginning of the text.
    pub fn prefix(&self, turn_key: Sig) -> &str {
        let draft = self.drafts.iter().find(|draft| draft.turn_key == turn_key);
        let text = draft.and_then(|draft| draft.text.get());
        text.map_or("", |text| &text.prefix)
    }

    /// Starts the text again after a verdict stopped it. A loop that was found in it
    /// continues.
    pub fn restart(&mut self, turn_key: Sig) {
        let position = self.position(turn_key);
        if let Some(draft) = position.and_then(|position| self.drafts.get_mut(position)) {
            draft.text.clear();
            for tracker in [&mut draft.visible_tracker, &mut draft.reasoning_tracker] {
                if let Some(tracker) = tracker.get_mut() {
                    tracker.restart();
                }
            }
            self.bytes -= draft.bytes;
            self.bytes += draft.update_bytes();
        }
    }

    /// Computes what is not frozen. The settings are those with which the texts were read.
    /// Returns false if the frozen part is inconsistent.
    pub fn restore(&mut self, repeats: Option<&RepetitionSettings>, facts: &FactExtractor) -> bool {
        let is_consistent = self.drafts.len() <= Self::DRAFTS_MAX
            && self
                .drafts
                .iter_mut()
                .all(|draft| draft.restore(repeats, facts));
        self.bytes = self.drafts.iter_mut().map(Draft::update_bytes).sum();
        is_consistent
    }

    /// Drops all texts.
    pub fn clear(&mut self) {
        self.bytes = 0;
        self.drafts.clear();
    }

    fn position(&self, turn_key: Sig) -> Option<usize> {
        self.drafts
            .iter()
            .position(|draft| draft.turn_key == turn_key)
    }

    pub fn heap_bytes(&self) -> usize {
        self.drafts.capacity() * size_of::<Draft>() + self.bytes
    }
}

impl Draft {
    fn new(turn_key: Sig) -> Self {
        Self {
            turn_key,
            text: LazyBox::default(),
            visible_tracker: LazyBox::default(),
            reasoning_tracker: LazyBox::default(),
            bytes: 0,
        }
    }

    fn push(
        &mut self,
        chunk: &DraftChunk<'_>,
        repeats: Option<&RepetitionSettings>,
        facts: &FactExtractor,
    ) -> DraftProgress {
        let tracker = match chunk.channel {
            Channel::Visible => &mut self.visible_tracker,
            Channel::Reasoning => &mut self.reasoning_tracker,
        };
        let mut progress = DraftProgress {
            bytes_read: chunk.text.len(),
            ..DraftProgress::default()
        };
        if let Some(settings) = repeats.filter(|_| !chunk.text.is_empty()) {
            let tracker = tracker.get_or_insert_default();
            if chunk.text.len() > RepetitionTracker::PIECE_BYTES_MAX {
                progress.repetition = tracker.push(chunk.text, settings, facts.key());
            } else {
                (progress.bytes_read, progress.repetition) =
                    tracker.push_until_found(chunk.text, settings, facts.key());
            }
            progress.is_work_limited = tracker.take_work_limited();
        }
        if chunk.channel == Channel::Visible {
            let read = &chunk.text[..progress.bytes_read];
            let text = self.text.get_or_insert_default();
            text.sketcher.push(read, &facts.analyzers().phrase_matcher);
            text.extend_prefix(read, chunk.prefix_bytes_max);
        }
        progress
    }

    fn restore(&mut self, repeats: Option<&RepetitionSettings>, facts: &FactExtractor) -> bool {
        let matcher = &facts.analyzers().phrase_matcher;
        let text = self.text.get();
        let trackers = [&mut self.visible_tracker, &mut self.reasoning_tracker];
        text.is_none_or(|text| text.sketcher.is_consistent(matcher))
            && trackers.into_iter().all(|tracker| {
                let tracker = tracker.get_mut();
                tracker
                    .is_none_or(|tracker| repeats.is_some_and(|settings| tracker.restore(settings)))
            })
    }

    /// Measures the draft and returns its heap bytes.
    fn update_bytes(&mut self) -> usize {
        self.bytes = self.heap_bytes();
        self.bytes
    }

    fn heap_bytes(&self) -> usize {
        self.text
            .heap_bytes(|text| text.sketcher.heap_bytes() + text.prefix.capacity())
            + self
                .visible_tracker
                .heap_bytes(|tracker| tracker.heap_bytes())
            + self
                .reasoning_tracker
                .heap_bytes(|tracker| tracker.heap_bytes())
    }
}

impl DraftText {
    /// Appends what fits. Once a character does not fit, nothing more is appended,
    /// so that the prefix does not depend on the chunking of the text.
    fn extend_prefix(&mut self, chunk: &str, bytes_max: usize) {
        if self.is_truncated {
            return;
        }
        let fitting = sanitize::prefix(chunk, bytes_max.saturating_sub(self.prefix.len()));
        self.is_truncated = fitting.len() < chunk.len();
        let len = self.prefix.len();
        if len + fitting.len() > self.prefix.capacity() {
            // Doubles like `String`, but not beyond the limit.
            let additional = fitting.len().max(len).min(bytes_max - len);
            self.prefix.reserve_exact(additional);
        }
        self.prefix.push_str(fitting);
    }
}

#[cfg(test)]
mod tests;
