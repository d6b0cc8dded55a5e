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

/// Matches the phrases of all profiles in one pass, and the marks of an action that is
/// written as text. It uses a single Aho-Corasick automaton, built once, at one
/// transition per byte.
#[derive(Clone, Debug, Default)]
pub struct PhraseMatcher {
    /// With the state at the beginning of a line; `None`: nothing is matched.
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
    /// The text contains one of [`ACTION_MARKS`].
    pub acts: bool,
}

/// What begins an action that an agent writes into its text, because its harness reads
/// calls from there: a fenced command or program, a line of ReAct, a tag that is named
/// like a tool, a JSON object with an action. In lower case; `\n` is also matched by the
/// beginning of the text. A fence without a language, or with one of data, may quote
/// anything and is no action.
#[rustfmt::skip]
const ACTION_MARKS: &[&str] = &[
    "```bash", "```sh\n", "```shell", "```zsh", "```console", "```powershell", "```pwsh", "```ps1",
    "```cmd", "```bat", "```py", "```js\n", "```javascript", "```ts\n", "```typescript", "```sql",
    "```diff", "```patch", "```tool", "```execute", "```run", "```action",
    "\naction:", "\n**action:", "\naction input:", "\ntool call:", "\ntool:", "\nfunction call:",
    "\n<tool", "\n<function", "\n<invoke", "\n<call_", "\n<execute", "\n<run_", "\n<read_",
    "\n<write_", "\n<edit_", "\n<replace_", "\n<apply_", "\n<insert_", "\n<search_", "\n<list_",
    "\n<find_", "\n<browser_", "\n<use_", "\n<open_", "\n<bash>", "\n<command>", "\n<shell>",
    "\n<python>", "\n<code>",
    "\"action\":", "\"actions\":", "\"action_input\":", "\"tool\":", "\"tool_name\":",
    "\"tool_calls\":", "\"tool_input\":", "\"function_call\":", "\"arguments\":",
];

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
            .build(patterns(&phrases))
            .map_err(|error| too_many(&error))?;
        let start = automaton
            .start_state(Anchored::No)
            .map_err(|error| too_many(&error))?;
        // Every state is reached by the beginning of a phrase.
        let (mut state_max, mut hasher) = (start.as_u32(), DefaultHasher::new());
        for text in patterns(&phrases) {
            text.hash(&mut hasher);
            let mut state = start;
            for byte in text.bytes() {
                state = automaton.next_state(Anchored::No, state, byte);
                state_max = state_max.max(state.as_u32());
                hasher.write_u32(state.as_u32());
            }
        }
        let words = |text: &str| text.split_whitespace().count() as u32;
        let line_start = automaton.next_state(Anchored::No, start, b'\n');
        Ok(Self {
            state_max,
            fingerprint: hasher.finish(),
            automaton: Some((automaton, line_start)),
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
        let Some((automaton, line_start)) = &self.automaton else {
            return;
        };
        let mut state = match_state.state.unwrap_or(*line_start);
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
            match_state.acts = true;
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

/// What the automaton searches for; the number of a phrase is its position.
fn patterns<'a>(phrases: &'a BTreeMap<PhraseId, &'a str>) -> impl Iterator<Item = &'a str> {
    phrases
        .values()
        .copied()
        .chain(ACTION_MARKS.iter().copied())
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

    #[track_caller]
    fn check_acts(text: &str, expected: bool) {
        let matcher = PhraseMatcher::new(&[]).unwrap();
        for cut in 0..text.len() {
            let mut state = PhraseMatchState::default();
            for piece in [&text.as_bytes()[..cut], &text.as_bytes()[cut..]] {
                matcher.match_piece(piece, &mut state, |_| 0);
            }
            assert_eq!(state.acts, expected, "{text:?} at {cut}");
        }
    }

    #[test]
    fn a_call_that_is_written_as_text_is_an_action() {
        for text in [
            "I look at it.\n```bash\nls\n```",
            "Code:\n```py\nprint(1)\n```<end_code>",
            "Action: search[\"bridge\"]",
            "Thought: I need it.\nAction: look_up",
            "<read_file>\n<path>a</path>\n</read_file>",
            "Now:\n<tool_call>\n{}\n</tool_call>",
            "{\"memory\": \"x\", \"action\": [{\"click\": 3}]}",
        ] {
            check_acts(text, true);
        }
    }

    #[test]
    fn a_quotation_or_a_promise_is_no_action() {
        for text in [
            "I will run `pytest -q` now.",
            "It says:\n```\nld: symbol not found\n```",
            "The result:\n```json\n[1, 2]\n```",
            "My next action: none.",
            "The tag <read_file> is missing.",
        ] {
            check_acts(text, false);
        }
    }

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
