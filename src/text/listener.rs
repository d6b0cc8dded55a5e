use std::collections::BTreeMap;

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    dfa::DFA,
};
use smallvec::SmallVec;
use thiserror::Error;

use crate::domain::{Heard, Phrase, PhraseId};

/// Listens for the phrases of all profiles at once, a byte at a time: one
/// automaton, made once.
#[derive(Clone, Debug, Default)]
pub struct Listener {
    /// `None`: there is nothing to listen for.
    automaton: Option<(DFA, StateID)>,
    /// By the automaton's number of a phrase: its name and how many words it has.
    phrases: Vec<(PhraseId, u32)>,
}

/// The phrases are too many or too long to listen for.
#[derive(Debug, Error)]
#[error("cannot listen for so many phrases: {0}")]
pub struct TooManyPhrases(String);

/// How far a text has been listened to.
#[derive(Clone, Default)]
pub(super) struct Hearing {
    /// `None`: at the beginning.
    state: Option<StateID>,
    pub heard: SmallVec<[Heard; 2]>,
}

impl Listener {
    /// A text in which more phrases were heard is about phrases.
    const HEARD_MAX: usize = 16;

    pub fn new<'a>(phrases: impl IntoIterator<Item = &'a Phrase>) -> Result<Self, TooManyPhrases> {
        let phrases: BTreeMap<PhraseId, &str> = phrases
            .into_iter()
            .map(|phrase| (phrase.id, phrase.text.as_str()))
            .collect();
        let too_many = |error: &dyn std::error::Error| TooManyPhrases(error.to_string());
        // The phrases are in lower case, and what is not ASCII is lowered before.
        let automaton = DFA::builder()
            .ascii_case_insensitive(true)
            .build(phrases.values())
            .map_err(|error| too_many(&error))?;
        let start = automaton
            .start_state(Anchored::No)
            .map_err(|error| too_many(&error))?;
        let words = |text: &str| text.split_whitespace().count() as u32;
        Ok(Self {
            automaton: Some((automaton, start)),
            phrases: phrases
                .into_iter()
                .map(|(id, text)| (id, words(text)))
                .collect(),
        })
    }

    /// Takes in a piece of a text, ASCII in either case and all else in lower case;
    /// `words(n)` have begun up to the byte `n` of it, which is asked only where a
    /// phrase ends.
    #[inline]
    pub(super) fn hear(&self, piece: &[u8], hearing: &mut Hearing, words: impl Fn(usize) -> u32) {
        let Some((automaton, start)) = &self.automaton else {
            return;
        };
        let mut state = hearing.state.unwrap_or(*start);
        let mut at = 0;
        while at < piece.len() {
            let heard = listen(automaton, &mut state, &piece[at..]);
            at += heard;
            if automaton.is_special(state) {
                self.note_all(automaton, state, words(at - 1), hearing);
            }
        }
        hearing.state = Some(state);
    }

    /// The phrases that end in this state, if any do.
    #[cold]
    fn note_all(&self, automaton: &DFA, state: StateID, words: u32, hearing: &mut Hearing) {
        if automaton.is_match(state) {
            let numbers = 0..automaton.match_len(state);
            for number in numbers.map(|n| automaton.match_pattern(state, n)) {
                self.note(number.as_usize(), words, hearing);
            }
        }
    }

    fn note(&self, number: usize, words: u32, hearing: &mut Hearing) {
        let Some((phrase, of_phrase)) = self.phrases.get(number).copied() else {
            return;
        };
        let known = hearing.heard.iter().any(|heard| heard.phrase == phrase);
        if !known && hearing.heard.len() < Self::HEARD_MAX {
            hearing.heard.push(Heard {
                phrase,
                words_before: words.saturating_sub(of_phrase),
            });
        }
    }
}

/// Takes in a piece up to where a phrase may end: how many bytes. A loop of its own,
/// in which all that it needs is in registers.
#[inline(never)]
fn listen(automaton: &DFA, state: &mut StateID, piece: &[u8]) -> usize {
    let mut now = *state;
    let special = piece.iter().position(|byte| {
        now = automaton.next_state(Anchored::No, now, *byte);
        automaton.is_special(now)
    });
    *state = now;
    special.map_or(piece.len(), |n| n + 1)
}

impl Hearing {
    /// Some of the text was left out: no phrase goes over the gap.
    pub fn interrupt(&mut self) {
        self.state = None;
    }
}
