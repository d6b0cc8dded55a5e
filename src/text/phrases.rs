//! Finds phrases in a text, in one pass.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
    dfa::DFA,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use thiserror::Error;

use crate::domain::{Phrase, PhraseId, PhraseMatch};

/// Matches the phrases of all profiles in one pass. It uses a single Aho-Corasick
/// automaton, built once, at one transition per byte.
#[derive(Clone, Debug, Default)]
pub struct PhraseMatcher {
    /// `None` if there are no phrases.
    automaton: Option<(DFA, StateID)>,
    /// The id and the word count of each phrase, indexed by the automaton's pattern
    /// number.
    phrases: Vec<(PhraseId, u32)>,
    /// The highest number of a state.
    state_max: u32,
    fingerprint: u64,
}

/// The phrases are too many or too long for an automaton.
#[derive(Debug, Error)]
#[error("too many or too long phrases: {0}")]
pub struct TooManyPhrases(String);

/// The position of the automaton in a text, and the matches so far.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct PhraseMatchState {
    /// `None` at the start of a text.
    #[serde(with = "frozen_state")]
    state: Option<StateID>,
    pub matches: SmallVec<[PhraseMatch; 2]>,
}

impl PhraseMatcher {
    /// Maximum number of recorded phrases. A text with more matches is about the
    /// phrases themselves.
    const MATCHES_MAX: usize = 16;

    pub fn new<'a>(phrases: impl IntoIterator<Item = &'a Phrase>) -> Result<Self, TooManyPhrases> {
        let phrases: BTreeMap<PhraseId, &str> = phrases
            .into_iter()
            .map(|phrase| (phrase.id, phrase.text.as_str()))
            .collect();
        let too_many = |error: &dyn std::error::Error| TooManyPhrases(error.to_string());
        // Phrases are in lower case, and non-ASCII text is lowercased before it is
        // matched.
        let automaton = DFA::builder()
            .ascii_case_insensitive(true)
            .build(phrases.values())
            .map_err(|error| too_many(&error))?;
        let start = automaton
            .start_state(Anchored::No)
            .map_err(|error| too_many(&error))?;
        // Every state is reached by the beginning of a phrase.
        let (mut state_max, mut hasher) = (start.as_u32(), DefaultHasher::new());
        for text in phrases.values() {
            text.hash(&mut hasher);
            let mut state = start;
            for byte in text.bytes() {
                state = automaton.next_state(Anchored::No, state, byte);
                state_max = state_max.max(state.as_u32());
                hasher.write_u32(state.as_u32());
            }
        }
        let words = |text: &str| text.split_whitespace().count() as u32;
        Ok(Self {
            state_max,
            fingerprint: hasher.finish(),
            automaton: Some((automaton, start)),
            phrases: phrases
                .into_iter()
                .map(|(id, text)| (id, words(text)))
                .collect(),
        })
    }

    /// Processes a piece of a text. ASCII may be in either case; other characters must
    /// be in lower case. `words(n)` returns the number of words begun up to byte `n` of
    /// the piece. It is called with increasing `n`, once for each phrase that is recorded.
    #[inline]
    pub(super) fn match_piece(
        &self,
        piece: &[u8],
        match_state: &mut PhraseMatchState,
        mut words: impl FnMut(usize) -> u32,
    ) {
        let Some((automaton, start)) = &self.automaton else {
            return;
        };
        let mut state = match_state.state.unwrap_or(*start);
        let mut at = 0;
        while at < piece.len() {
            let consumed = advance_to_special(automaton, &mut state, &piece[at..]);
            at += consumed;
            if automaton.is_special(state) {
                self.record_matches(automaton, state, || words(at - 1), match_state);
            }
        }
        match_state.state = Some(state);
    }

    /// Changes with the phrases and with the numbers of the automaton's states.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether the automaton can go on from a thawed state, which may be damaged. A number
    /// that is no state but below one leads to a state with the next byte.
    pub(super) fn contains_state(&self, match_state: &PhraseMatchState) -> bool {
        let state = match_state.state.map_or(0, |state| state.as_u32());
        state <= self.state_max && match_state.matches.len() <= Self::MATCHES_MAX
    }

    /// Records the phrases that end in this state, if any.
    #[cold]
    fn record_matches(
        &self,
        automaton: &DFA,
        state: StateID,
        mut words: impl FnMut() -> u32,
        match_state: &mut PhraseMatchState,
    ) {
        if automaton.is_match(state) {
            let numbers = 0..automaton.match_len(state);
            for number in numbers.map(|n| automaton.match_pattern(state, n)) {
                self.record_match(number.as_usize(), &mut words, match_state);
            }
        }
    }

    fn record_match(
        &self,
        number: usize,
        mut words: impl FnMut() -> u32,
        match_state: &mut PhraseMatchState,
    ) {
        let Some((phrase, phrase_words)) = self.phrases.get(number).copied() else {
            return;
        };
        let is_recorded = match_state
            .matches
            .iter()
            .any(|found| found.phrase == phrase);
        if !is_recorded && match_state.matches.len() < Self::MATCHES_MAX {
            match_state.matches.push(PhraseMatch {
                phrase,
                words_before: words().saturating_sub(phrase_words),
            });
        }
    }
}

/// Advances to the next special state, where a phrase may end. Returns the number of
/// bytes consumed. A separate function, so that the loop keeps all of its values in
/// registers.
#[inline(never)]
fn advance_to_special(automaton: &DFA, state: &mut StateID, piece: &[u8]) -> usize {
    let mut current = *state;
    let special = piece.iter().position(|byte| {
        current = automaton.next_state(Anchored::No, current, *byte);
        automaton.is_special(current)
    });
    *state = current;
    special.map_or(piece.len(), |n| n + 1)
}

/// A state as its number.
mod frozen_state {
    use aho_corasick::automaton::StateID;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(
        state: &Option<StateID>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        state.map(|state| state.as_u32()).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<StateID>, D::Error> {
        let number = Option::<usize>::deserialize(deserializer)?;
        number
            .map(StateID::new)
            .transpose()
            .map_err(D::Error::custom)
    }
}

impl PhraseMatchState {
    /// Restarts the automaton after a gap in the text, because no phrase extends across
    /// it.
    pub fn reset(&mut self) {
        self.state = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_once_for_each_phrase_however_often_it_occurs() {
        let phrases =
            ["different approach", "start over"].map(|text| Phrase::from(text.to_owned()));
        let matcher = PhraseMatcher::new(&phrases).unwrap();
        let text = "a different approach, or start over. ".repeat(500);
        let (mut state, mut counted) = (PhraseMatchState::default(), Vec::new());
        matcher.match_piece(text.as_bytes(), &mut state, |n| {
            counted.push(n);
            counted.len() as u32
        });
        assert_eq!(state.matches.len(), 2);
        assert_eq!(counted.len(), 2);
        assert!(counted.is_sorted());
    }
}
