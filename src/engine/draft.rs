use crate::{
    domain::{Channel, RepeatSettings, Repeated, Sig, TurnFacts, text},
    facts::Facts,
    text::{Sketcher, Watcher},
};

/// The texts that an agent is writing, latest last.
#[derive(Default)]
pub(super) struct Drafts {
    drafts: Vec<Draft>,
    /// What they hold, all together.
    bytes: usize,
}

/// A piece of a text.
pub(super) struct Piece<'a> {
    pub turn: Sig,
    pub channel: Channel,
    pub text: &'a str,
    /// Of the text so much of the beginning is kept.
    pub kept_bytes_max: usize,
}

struct Draft {
    turn: Sig,
    /// What is to be a turn; `None`: there was only reasoning so far.
    written: Option<Box<Written>>,
    /// Watches of what is written, and of the reasoning beside it.
    visible: Option<Box<Watcher>>,
    reasoning: Option<Box<Watcher>>,
    /// What it held when it was last weighed.
    bytes: usize,
}

#[derive(Default)]
struct Written {
    sketcher: Sketcher,
    /// The beginning of the text, for the verdict's excerpt and for a model.
    beginning: String,
    /// There was text that is not part of it.
    goes_on: bool,
}

impl Drafts {
    /// Parallel generations of one agent; beyond this the oldest is forgotten.
    const DRAFTS_MAX: usize = 4;

    /// Takes a piece in: what is found newly to repeat itself, by these settings;
    /// `None`: nobody asks.
    pub fn push(
        &mut self,
        piece: &Piece<'_>,
        repeats: Option<&RepeatSettings>,
        facts: &Facts,
    ) -> Option<Repeated> {
        let position = self.position(piece.turn).unwrap_or_else(|| {
            if self.drafts.len() == Self::DRAFTS_MAX {
                self.bytes -= self.drafts.remove(0).bytes;
            }
            self.drafts.push(Draft::new(piece.turn));
            self.drafts.len() - 1
        });
        let draft = self.drafts.get_mut(position)?;
        let repeated = draft.push(piece, repeats, facts);
        self.bytes -= draft.bytes;
        self.bytes += draft.weigh();
        repeated
    }

    /// The text is complete: its facts and its beginning. `None`: nothing was
    /// written of it, and reasoning alone is no turn.
    pub fn finish(&mut self, turn: Sig, facts: &Facts) -> Option<(TurnFacts, String)> {
        let draft = self.drafts.remove(self.position(turn)?);
        self.bytes -= draft.bytes;
        let written = draft.written?;
        let facts = written.sketcher.finish(&facts.reader().listener);
        Some((facts, written.beginning))
    }

    /// The beginning of what was written of this text.
    pub fn beginning(&self, turn: Sig) -> &str {
        let draft = self.drafts.iter().find(|draft| draft.turn == turn);
        let written = draft.and_then(|draft| draft.written.as_deref());
        written.map_or("", |written| &written.beginning)
    }

    /// The text was to be stopped: what comes now is another, but a loop in it
    /// that was found before goes on.
    pub fn restart(&mut self, turn: Sig) {
        let position = self.position(turn);
        if let Some(draft) = position.and_then(|position| self.drafts.get_mut(position)) {
            draft.written = None;
            let watchers = [&mut draft.visible, &mut draft.reasoning];
            for watcher in watchers.into_iter().flatten() {
                watcher.restart();
            }
            self.bytes -= draft.bytes;
            self.bytes += draft.weigh();
        }
    }

    /// A tool call, or a user, begins all texts anew.
    pub fn clear(&mut self) {
        self.bytes = 0;
        self.drafts.clear();
    }

    fn position(&self, turn: Sig) -> Option<usize> {
        self.drafts.iter().position(|draft| draft.turn == turn)
    }

    pub fn heap_bytes(&self) -> usize {
        self.drafts.capacity() * size_of::<Draft>() + self.bytes
    }
}

impl Draft {
    fn new(turn: Sig) -> Self {
        Self {
            turn,
            written: None,
            visible: None,
            reasoning: None,
            bytes: 0,
        }
    }

    fn push(
        &mut self,
        piece: &Piece<'_>,
        repeats: Option<&RepeatSettings>,
        facts: &Facts,
    ) -> Option<Repeated> {
        let watcher = match piece.channel {
            Channel::Visible => {
                let written = self.written.get_or_insert_default();
                written.sketcher.push(piece.text, &facts.reader().listener);
                written.begin(piece.text, piece.kept_bytes_max);
                &mut self.visible
            }
            Channel::Reasoning => &mut self.reasoning,
        };
        let settings = repeats.filter(|_| !piece.text.is_empty())?;
        let watcher = watcher.get_or_insert_default();
        watcher.push(piece.text, settings, facts.key())
    }

    /// How many bytes it holds now.
    fn weigh(&mut self) -> usize {
        self.bytes = self.heap_bytes();
        self.bytes
    }

    fn heap_bytes(&self) -> usize {
        let written = |text: &Written| {
            size_of::<Written>() + text.sketcher.heap_bytes() + text.beginning.capacity()
        };
        let watcher = |watcher: &Watcher| size_of::<Watcher>() + watcher.heap_bytes();
        self.written.as_deref().map_or(0, written)
            + self.visible.as_deref().map_or(0, watcher)
            + self.reasoning.as_deref().map_or(0, watcher)
    }
}

impl Written {
    /// Once a character does not fit no other does, so that the beginning does
    /// not depend on how the text is cut.
    fn begin(&mut self, piece: &str, bytes_max: usize) {
        if self.goes_on {
            return;
        }
        let fits = text::prefix(piece, bytes_max.saturating_sub(self.beginning.len()));
        self.goes_on = fits.len() < piece.len();
        let held = self.beginning.len();
        if held + fits.len() > self.beginning.capacity() {
            // Doubled as a string does, but for no more than there will be.
            let more = fits.len().max(held).min(bytes_max - held);
            self.beginning.reserve_exact(more);
        }
        self.beginning.push_str(fits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facts::Tools, text::Key};

    #[test]
    fn the_beginning_does_not_depend_on_how_the_text_is_cut() {
        let tools = Tools::new(Vec::new()).unwrap();
        let facts = Facts::new(Key::fixed(), tools, Default::default());
        let turn = facts.key().name("draft", "", "");
        let kept_bytes_max = 600;
        let filled = "x".repeat(kept_bytes_max - 1);
        let mut drafts = Drafts::default();
        for text in [&filled, "é", "y"] {
            let piece = Piece {
                turn,
                channel: Channel::Visible,
                text,
                kept_bytes_max,
            };
            drafts.push(&piece, None, &facts);
        }
        assert_eq!(drafts.finish(turn, &facts).unwrap().1, filled);
    }
}
