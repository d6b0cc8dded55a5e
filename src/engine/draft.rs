use crate::{
    domain::{Channel, RepetitionSettings, Sig, TextRepetition, TurnFacts, sanitize},
    facts::FactExtractor,
    text::{RepetitionTracker, Sketcher},
};

/// The texts that an agent is writing, latest last.
#[derive(Default)]
pub(super) struct Drafts {
    drafts: Vec<Draft>,
    /// What they hold, all together.
    bytes: usize,
}

/// A piece of a text.
pub(super) struct DraftChunk<'a> {
    pub turn_key: Sig,
    pub channel: Channel,
    pub text: &'a str,
    /// Of the text so much of the beginning is kept.
    pub prefix_bytes_max: usize,
}

struct Draft {
    turn_key: Sig,
    /// What is to be a turn; `None`: there was only reasoning so far.
    text: Option<Box<DraftText>>,
    /// Watches of what is written, and of the reasoning beside it.
    visible_tracker: Option<Box<RepetitionTracker>>,
    reasoning_tracker: Option<Box<RepetitionTracker>>,
    /// What it held when it was last weighed.
    bytes: usize,
}

#[derive(Default)]
struct DraftText {
    sketcher: Sketcher,
    /// The beginning of the text, for the verdict's excerpt and for a model.
    prefix: String,
    /// There was text that is not part of it.
    is_truncated: bool,
}

impl Drafts {
    /// Parallel generations of one agent; beyond this the oldest is forgotten.
    const DRAFTS_MAX: usize = 4;

    /// Takes a piece in: what is found newly to repeat itself, by these settings;
    /// `None`: nobody asks.
    pub fn push(
        &mut self,
        chunk: &DraftChunk<'_>,
        repeats: Option<&RepetitionSettings>,
        facts: &FactExtractor,
    ) -> Option<TextRepetition> {
        let position = self.position(chunk.turn_key).unwrap_or_else(|| {
            if self.drafts.len() == Self::DRAFTS_MAX {
                self.bytes -= self.drafts.remove(0).bytes;
            }
            self.drafts.push(Draft::new(chunk.turn_key));
            self.drafts.len() - 1
        });
        let draft = self.drafts.get_mut(position)?;
        let repeated = draft.push(chunk, repeats, facts);
        self.bytes -= draft.bytes;
        self.bytes += draft.update_bytes();
        repeated
    }

    /// The text is complete: its facts and its beginning. `None`: nothing was
    /// written of it, and reasoning alone is no turn.
    pub fn finish(&mut self, turn_key: Sig, facts: &FactExtractor) -> Option<(TurnFacts, String)> {
        let draft = self.drafts.remove(self.position(turn_key)?);
        self.bytes -= draft.bytes;
        let text = draft.text?;
        let facts = text.sketcher.finish(&facts.analyzers().phrase_matcher);
        Some((facts, text.prefix))
    }

    /// The beginning of what was written of this text.
    pub fn prefix(&self, turn_key: Sig) -> &str {
        let draft = self.drafts.iter().find(|draft| draft.turn_key == turn_key);
        let text = draft.and_then(|draft| draft.text.as_deref());
        text.map_or("", |text| &text.prefix)
    }

    /// The text was to be stopped: what comes now is another, but a loop in it
    /// that was found before goes on.
    pub fn restart(&mut self, turn_key: Sig) {
        let position = self.position(turn_key);
        if let Some(draft) = position.and_then(|position| self.drafts.get_mut(position)) {
            draft.text = None;
            let trackers = [&mut draft.visible_tracker, &mut draft.reasoning_tracker];
            for tracker in trackers.into_iter().flatten() {
                tracker.restart();
            }
            self.bytes -= draft.bytes;
            self.bytes += draft.update_bytes();
        }
    }

    /// A tool call, or a user, begins all texts anew.
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
            text: None,
            visible_tracker: None,
            reasoning_tracker: None,
            bytes: 0,
        }
    }

    fn push(
        &mut self,
        chunk: &DraftChunk<'_>,
        repeats: Option<&RepetitionSettings>,
        facts: &FactExtractor,
    ) -> Option<TextRepetition> {
        let tracker = match chunk.channel {
            Channel::Visible => {
                let text = self.text.get_or_insert_default();
                text.sketcher
                    .push(chunk.text, &facts.analyzers().phrase_matcher);
                text.extend_prefix(chunk.text, chunk.prefix_bytes_max);
                &mut self.visible_tracker
            }
            Channel::Reasoning => &mut self.reasoning_tracker,
        };
        let settings = repeats.filter(|_| !chunk.text.is_empty())?;
        let tracker = tracker.get_or_insert_default();
        tracker.push(chunk.text, settings, facts.key())
    }

    /// How many bytes it holds now.
    fn update_bytes(&mut self) -> usize {
        self.bytes = self.heap_bytes();
        self.bytes
    }

    fn heap_bytes(&self) -> usize {
        let text_bytes = |text: &DraftText| {
            size_of::<DraftText>() + text.sketcher.heap_bytes() + text.prefix.capacity()
        };
        let tracker_bytes =
            |tracker: &RepetitionTracker| size_of::<RepetitionTracker>() + tracker.heap_bytes();
        self.text.as_deref().map_or(0, text_bytes)
            + self.visible_tracker.as_deref().map_or(0, tracker_bytes)
            + self.reasoning_tracker.as_deref().map_or(0, tracker_bytes)
    }
}

impl DraftText {
    /// Once a character does not fit no other does, so that the beginning does
    /// not depend on how the text is cut.
    fn extend_prefix(&mut self, chunk: &str, bytes_max: usize) {
        if self.is_truncated {
            return;
        }
        let fitting = sanitize::prefix(chunk, bytes_max.saturating_sub(self.prefix.len()));
        self.is_truncated = fitting.len() < chunk.len();
        let len = self.prefix.len();
        if len + fitting.len() > self.prefix.capacity() {
            // Doubled as a string does, but for no more than there will be.
            let additional = fitting.len().max(len).min(bytes_max - len);
            self.prefix.reserve_exact(additional);
        }
        self.prefix.push_str(fitting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::ToolRules, text::HashKey};

    #[test]
    fn the_beginning_does_not_depend_on_how_the_text_is_cut() {
        let tools = ToolRules::new(Vec::new()).unwrap();
        let facts = FactExtractor::new(HashKey::fixed(), tools, Default::default());
        let turn = facts.key().id_signature("draft", "", "");
        let kept_bytes_max = 600;
        let filled = "x".repeat(kept_bytes_max - 1);
        let mut drafts = Drafts::default();
        for text in [&filled, "é", "y"] {
            let chunk = DraftChunk {
                turn_key: turn,
                channel: Channel::Visible,
                text,
                prefix_bytes_max: kept_bytes_max,
            };
            drafts.push(&chunk, None, &facts);
        }
        assert_eq!(drafts.finish(turn, &facts).unwrap().1, filled);
    }
}
