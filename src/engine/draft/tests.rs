use proptest::{prelude::*, sample::Index};

use super::*;
use crate::{
    domain::Phrase,
    facts::TurnAnalyzers,
    text::{HashKey, PhraseMatcher},
    tools::ToolRules,
};

fn extractor() -> FactExtractor {
    let tools = ToolRules::new(Vec::new()).unwrap();
    let phrases = ["start over", "different approach"].map(|text| Phrase::from(text.to_owned()));
    let analyzers = TurnAnalyzers {
        phrase_matcher: PhraseMatcher::new(&phrases).unwrap(),
        model: None,
    };
    FactExtractor::new(HashKey::fixed(), tools, analyzers.into())
}

/// The rule of chunks is off without a window.
fn settings(chunk_window: u32) -> RepetitionSettings {
    RepetitionSettings {
        count: 3,
        chars: 150,
        chunks: vec![20, 50],
        chunk_count: 3,
        chunk_window,
        chunks_only: false,
    }
}

/// A piece of the text of one of a few turns.
#[derive(Clone, Debug)]
struct Piece {
    turn: u8,
    channel: Channel,
    text: String,
}

impl Piece {
    /// Appends the piece, and returns everything that is found in it.
    fn push(
        &self,
        drafts: &mut Drafts,
        repeats: &RepetitionSettings,
        facts: &FactExtractor,
    ) -> String {
        let (mut start, mut found) = (0, String::new());
        while start < self.text.len() {
            let chunk = DraftChunk {
                turn_key: turn_key(self.turn, facts),
                channel: self.channel,
                text: &self.text[start..],
                prefix_bytes_max: 600,
            };
            let progress = drafts.push(&chunk, Some(repeats), facts);
            let is_limited = progress.is_work_limited;
            found += &format!("{start} {is_limited} {:?}\n", progress.repetition);
            start += progress.bytes_read;
        }
        found
    }
}

fn turn_key(turn: u8, facts: &FactExtractor) -> Sig {
    facts.key().draft_signature(&turn.to_string())
}

/// Pieces of texts that repeat, or nearly, in each of the ways that are recognised.
fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let unit = prop_oneof![
        "[a-z]{1,9}( [a-z]{1,9}){0,12}[.!?]? ",
        "[0-9]{1,40} ?",
        "step [0-9]{1,4}: a different approach to the same old words as before\n",
        "\\{\"[a-z_]{1,9}\": \\[[0-9]{1,6}\\]\\};\n",
        "(```|~~~)\n",
        "[äßéж字。 ]{1,20}",
        Just("I will start over. ".to_owned()),
    ];
    let piece =
        (unit, 0u8..3, 1usize..90, any::<bool>()).prop_map(|(unit, turn, count, visible)| {
            let channel = if visible {
                Channel::Visible
            } else {
                Channel::Reasoning
            };
            let text = unit.repeat(count);
            Piece {
                turn,
                channel,
                text,
            }
        });
    prop::collection::vec(piece, 1..10)
}

fn freeze(drafts: &Drafts) -> Vec<u8> {
    postcard::to_allocvec(drafts).unwrap()
}

/// `None`: the bytes are refused.
fn thaw(bytes: &[u8], repeats: &RepetitionSettings, facts: &FactExtractor) -> Option<Drafts> {
    let mut drafts: Drafts = postcard::from_bytes(bytes).ok()?;
    drafts.restore(Some(repeats), facts).then_some(drafts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn texts_that_are_frozen_before_every_piece_give_the_same_findings(
        pieces in pieces(),
        chunk_window in prop_oneof![Just(0), Just(200)],
    ) {
        let (facts, repeats) = (extractor(), settings(chunk_window));
        let (mut uninterrupted, mut interrupted) = (Drafts::default(), Drafts::default());
        for piece in &pieces {
            let bytes = freeze(&interrupted);
            let mut thawed = thaw(&bytes, &repeats, &facts).unwrap();
            prop_assert_eq!(freeze(&thawed), bytes);
            prop_assert_eq!(
                piece.push(&mut thawed, &repeats, &facts),
                piece.push(&mut uninterrupted, &repeats, &facts)
            );
            interrupted = thawed;
        }
        for turn in 0..3 {
            let key = turn_key(turn, &facts);
            prop_assert_eq!(
                format!("{:?}", interrupted.finish(key, &facts)),
                format!("{:?}", uninterrupted.finish(key, &facts))
            );
        }
    }

    #[test]
    fn damaged_texts_are_refused_or_can_be_continued(
        before in pieces(),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
        after in pieces(),
        chunk_window in prop_oneof![Just(0), Just(200)],
    ) {
        let (facts, repeats) = (extractor(), settings(chunk_window));
        let mut drafts = Drafts::default();
        for piece in &before {
            piece.push(&mut drafts, &repeats, &facts);
        }
        let mut bytes = freeze(&drafts);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(mut damaged) = thaw(&bytes, &repeats, &facts) {
            prop_assert!(damaged.heap_bytes() < 1 << 20);
            for piece in &after {
                piece.push(&mut damaged, &repeats, &facts);
            }
            for turn in 0..3 {
                damaged.finish(turn_key(turn, &facts), &facts);
            }
        }
    }
}

#[test]
fn the_memory_of_thawed_texts_is_accounted() {
    let (facts, repeats) = (extractor(), settings(0));
    let mut drafts = Drafts::default();
    for turn in 0..3 {
        let text = format!("the words of turn {turn}, again ").repeat(200);
        let channel = Channel::Visible;
        Piece {
            turn,
            channel,
            text,
        }
        .push(&mut drafts, &repeats, &facts);
    }
    let mut thawed = thaw(&freeze(&drafts), &repeats, &facts).unwrap();
    assert!(
        thawed.heap_bytes() > 3 * 8 * 1_024,
        "{}",
        thawed.heap_bytes()
    );
    assert!(thawed.heap_bytes() <= drafts.heap_bytes());
    (0..3).for_each(|turn| drop(thawed.finish(turn_key(turn, &facts), &facts)));
    assert_eq!(thawed.bytes, 0);
}

#[test]
fn the_bytes_of_a_frozen_text_are_bounded() {
    let (facts, repeats) = (extractor(), settings(0));
    let mut drafts = Drafts::default();
    for turn in 0..8 {
        for channel in [Channel::Visible, Channel::Reasoning] {
            let words = (0..40_000u32).map(|n| format!("w{:x}. ", n.wrapping_mul(0x9e37_79b1)));
            let text = words.collect();
            Piece {
                turn,
                channel,
                text,
            }
            .push(&mut drafts, &repeats, &facts);
        }
    }
    let bytes = freeze(&drafts).len();
    assert!(bytes <= Drafts::DRAFTS_MAX * 28 * 1_024, "{bytes}");
}

#[test]
fn the_prefix_does_not_depend_on_the_chunking_of_the_text() {
    let facts = extractor();
    let turn_key = turn_key(0, &facts);
    let prefix_bytes_max = 600;
    let filled = "x".repeat(prefix_bytes_max - 1);
    let mut drafts = Drafts::default();
    for text in [&filled, "é", "y"] {
        let chunk = DraftChunk {
            turn_key,
            channel: Channel::Visible,
            text,
            prefix_bytes_max,
        };
        drafts.push(&chunk, None, &facts);
    }
    assert_eq!(drafts.finish(turn_key, &facts).unwrap().1, filled);
}
