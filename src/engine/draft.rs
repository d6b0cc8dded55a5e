use crate::{
    domain::{Sig, TurnFacts, text},
    facts::{Facts, Listener, Sketcher},
};

/// The texts that an agent is writing, latest last.
#[derive(Default)]
pub(super) struct Drafts {
    drafts: Vec<Draft>,
}

struct Draft {
    turn: Sig,
    sketcher: Sketcher,
    /// The beginning of the text, for the verdict's excerpt and for a model.
    beginning: String,
    /// There was text that is not part of it.
    goes_on: bool,
}

impl Drafts {
    /// Parallel generations of one agent; beyond this the oldest is forgotten.
    const DRAFTS_MAX: usize = 4;
    pub fn push(&mut self, turn: Sig, piece: &str, listener: &Listener) {
        let position = self.drafts.iter().position(|draft| draft.turn == turn);
        let position = position.unwrap_or_else(|| {
            if self.drafts.len() == Self::DRAFTS_MAX {
                self.drafts.remove(0);
            }
            self.drafts.push(Draft {
                turn,
                sketcher: Sketcher::default(),
                beginning: String::new(),
                goes_on: false,
            });
            self.drafts.len() - 1
        });
        let Some(draft) = self.drafts.get_mut(position) else {
            return;
        };
        draft.sketcher.push(piece, listener);
        draft.begin(piece);
    }

    /// Whether anything was written of this text.
    pub fn holds(&self, turn: Sig) -> bool {
        self.drafts.iter().any(|draft| draft.turn == turn)
    }

    /// The beginning of what was written of this text.
    pub fn beginning(&self, turn: Sig) -> &str {
        let draft = self.drafts.iter().find(|draft| draft.turn == turn);
        draft.map_or("", |draft| &draft.beginning)
    }

    /// The text is complete: its facts and its beginning.
    pub fn finish(&mut self, turn: Sig, listener: &Listener) -> (TurnFacts, String) {
        let position = self.drafts.iter().position(|draft| draft.turn == turn);
        match position.map(|position| self.drafts.remove(position)) {
            Some(draft) => (draft.sketcher.finish(listener), draft.beginning),
            None => (Sketcher::default().finish(listener), String::new()),
        }
    }

    /// A tool call, or a user, begins all texts anew.
    pub fn clear(&mut self) {
        self.drafts.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        let of = |draft: &Draft| draft.sketcher.heap_bytes() + draft.beginning.capacity();
        self.drafts.capacity() * size_of::<Draft>() + self.drafts.iter().map(of).sum::<usize>()
    }
}

impl Draft {
    /// More than a verdict ever quotes.
    const BEGINNING_BYTES_MAX: usize = Facts::EMBEDDED_BYTES_MAX;

    /// Once a character does not fit no other does, so that the beginning does
    /// not depend on how the text is cut.
    fn begin(&mut self, piece: &str) {
        if !self.goes_on {
            let room = Self::BEGINNING_BYTES_MAX - self.beginning.len();
            let fits = text::prefix(piece, room);
            self.beginning.push_str(fits);
            self.goes_on = fits.len() < piece.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Key;

    #[test]
    fn the_beginning_does_not_depend_on_how_the_text_is_cut() {
        let (key, listener) = (Key::fixed(), Listener::default());
        let turn = key.name("draft", "", "");
        let filled = "x".repeat(Draft::BEGINNING_BYTES_MAX - 1);
        let mut drafts = Drafts::default();
        for piece in [&filled, "é", "y"] {
            drafts.push(turn, piece, &listener);
        }
        assert_eq!(drafts.finish(turn, &listener).1, filled);
    }
}
