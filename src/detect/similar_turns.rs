//! `similar_turns`: the agent says the same again and again.

use std::{ops::RangeInclusive, sync::Arc};

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Detector, History, NeverFires, TurnEntry, check_share, heap, skip_unless_turn};
use crate::domain::{
    Action, DetectorExplanation, DetectorOutcome, EventPosition, Evidence, Finding, Observation,
    ObservationBody, Phrase, Phrases, Sig, SimilarityMeasure, Sketch, TurnFacts,
};

/// Fires when: each of `count` turns in a row matches an earlier one, that is, its
/// similarity to one of the last `window` turns is at least `similarity` (by
/// default the overlap of their words). The first turn counts 0.
///
/// With the loose match, and while no tool is called, a turn also matches one of
/// the last `history` turns with equal words, one of the last `window` that
/// contains it or is contained in it, and, if the session is known to make calls,
/// one that shares at least `stem_overlap` of its word stems.
///
/// Two kinds of turns prove little. A turn of fewer than `words_min` words ("Next
/// page.") matches no equal one, unless it contains one of `stop_phrases` ("Done."): an
/// agent that has finished and goes on is stuck. A turn that contains an action (a fenced
/// command, a call that is written as text) matches only an equal one, because its
/// frame is the same in every step.
///
/// Also fires when the agent keeps announcing a new start: `restarts` starts within
/// the last `restarts_window` turns came to nothing, and it announces one more,
/// without progress. A turn announces one if it begins with one of the phrases
/// `restart_phrases`. A start came to nothing if a call since
/// failed or brought nothing, and the last calls before the next start returned no
/// more than a line or two. It is reported once and with no more than a warning,
/// because words alone prove no loop.
///
/// Resets when: a turn matches no earlier one, and on progress, because an agent
/// that moves on may say the same at each step. A turn also does not match if,
/// since the earlier turn, a call returned something new (an agent that reads file
/// after file may say the same each time), or if the two differ only in numbers
/// ("batch 12 of 500" after "batch 11 of 500"). An empty turn neither counts nor
/// resets. The published rule has none of these guards and extensions, so each can
/// be turned off.
///
/// Cost: a merge of two sorted lists for each of five turns, on turns only.
///
/// Defaults: those of the published rule (.85, five turns, warn at three, 50 turns
/// stored). For new starts they come from recorded sessions, in which three in
/// eight turns separated stuck agents from others.
#[derive(Default, Serialize, Deserialize)]
pub struct SimilarTurns {
    streak: u32,
    /// The tokens of the turn that the first similar turn matched.
    loop_key: Option<Sig>,
    new_starts: NewStarts,
}

/// The new starts since the last progress.
#[derive(Default, Serialize, Deserialize)]
struct NewStarts {
    progress: u32,
    /// The turn that announced the latest one: its number and its event.
    latest: Option<(u32, i32)>,
    /// The turns that announced those which came to nothing.
    failed: SmallVec<[(u32, i32); 4]>,
    /// The tokens of the first announcement.
    loop_key: Option<Sig>,
    reported: bool,
}

/// `[detect.similar_turns]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub window: u32,
    pub similarity: f64,
    /// The path of the embedding model; empty: similarity is the overlap of words.
    pub model: String,
    /// The loaded model.
    #[serde(skip)]
    pub measure: Option<Arc<dyn SimilarityMeasure>>,
    pub empty: EmptyTurnPolicy,
    /// Turns that differ in numbers only do not match.
    pub numbers_are_progress: bool,
    /// Turns match whatever was written in between.
    pub ignore_progress: bool,
    /// Use the loose match while no tool is called.
    pub loose_match_without_calls: bool,
    pub history: u32,
    pub stem_overlap: f64,
    /// A turn of fewer words is evidence only with one of `stop_phrases`.
    pub words_min: u32,
    pub stop_phrases: Phrases,
    /// 0: new starts are not counted.
    pub restarts: u32,
    pub restarts_window: u32,
    pub restart_phrases: Phrases,
}

/// How an empty turn counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EmptyTurnPolicy {
    /// It is ignored.
    Skip,
    /// It is a turn that matches no other.
    Reset,
}

/// A shorter turn ("Done.") is contained in many others by chance.
const CONTAINED_TOKENS_MIN: usize = 3;
/// Turns with fewer stems share half of them by chance.
const STEMS_MIN: usize = 4;
/// A new start must be announced within this many words of the beginning.
const OPENING_WORDS_MAX: u32 = 50;
/// The confidence in turns that are not equal word for word; the same as for calls
/// that are equal only after masking.
const INEXACT_CONFIDENCE: f64 = 0.9;
/// The similarity in a finding of new starts, which no similar turn has.
const NEW_START_SIMILARITY: f64 = 0.0;
/// Words alone prove no loop: the agent may mean something else by them.
const NEW_START_ACTION_MAX: Action = Action::Warn;

impl Detector for SimilarTurns {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let Settings {
            count,
            window,
            similarity,
            ..
        } = *settings;
        let window_max = History::SKETCHES_MAX as u32;
        if count == 0 {
            return Err(NeverFires::new("count", "must be at least 1".to_owned()));
        }
        if window == 0 || window > window_max {
            let why = format!("{window} turns to compare with, must be 1 to {window_max}");
            return Err(NeverFires::new("window", why));
        }
        check_share("similarity", similarity)?;
        settings.check_idle()?;
        settings.check_restarts()
    }

    fn phrases(settings: &Settings) -> impl Iterator<Item = &Phrase> {
        settings
            .restart_phrases
            .iter()
            .chain(settings.stop_phrases.iter())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        let overlap = settings.explain_overlap();
        if settings.restarts == 0 {
            return overlap;
        }
        DetectorExplanation {
            rule: "turns repeat earlier turns, or keep announcing a new start",
            threshold: format!(
                "{}; or {}",
                overlap.threshold,
                settings.explain_new_starts().threshold
            ),
            would_not_fire_if: "a different turn, or progress between",
        }
    }

    fn explain_matches(settings: &Settings, evidence: &[&Evidence]) -> DetectorExplanation {
        let new_starts = evidence.iter().filter(|it| is_new_start(it)).count();
        match new_starts {
            0 if !evidence.is_empty() => settings.explain_overlap(),
            all if all > 0 && all == evidence.len() => settings.explain_new_starts(),
            _ => Self::explain(settings),
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        skip_unless_turn(now)
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let ObservationBody::Turn(turn) = &now.body else {
            return DetectorOutcome::NotApplicable;
        };
        if turn.sketch.is_empty() && settings.empty == EmptyTurnPolicy::Skip {
            return DetectorOutcome::NotApplicable;
        }
        let repeated = self.observe_repeat(now.at, now.new_results, turn, past, settings);
        let restarted = self
            .new_starts
            .observe_new_start(now.at, turn, past, settings);
        repeated
            .or(restarted)
            .map_or(DetectorOutcome::NoMatch, DetectorOutcome::from_finding)
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        heap::small_vec_bytes(&self.new_starts.failed)
    }
}

/// Whether a verdict is about new starts: they are not compared with other turns.
fn is_new_start(evidence: &Evidence) -> bool {
    evidence.similarity == NEW_START_SIMILARITY
}

impl Settings {
    fn explain_overlap(&self) -> DetectorExplanation {
        let Self {
            count,
            similarity,
            window,
            ..
        } = self;
        let is_like = match self.measure {
            Some(_) => format!("with a similarity of {similarity} or more to"),
            None => format!("sharing {similarity} or more of its words with"),
        };
        let mut threshold = format!("{count} in a row, each {is_like} one of the {window} before");
        if self.loose_match_without_calls {
            threshold += &format!(
                " (with no call between, also equal to one of the last {}, contained in one, or \
                 sharing {} of its word stems)",
                self.history, self.stem_overlap
            );
        }
        DetectorExplanation {
            rule: "several turns in a row repeat earlier turns",
            threshold,
            would_not_fire_if: if self.numbers_are_progress {
                "a different turn, or one that differs in a number"
            } else {
                "a different turn"
            },
        }
    }

    fn explain_new_starts(&self) -> DetectorExplanation {
        DetectorExplanation {
            rule: "turns keep announcing a new start, without progress",
            threshold: format!(
                "{} starts within the last {} turns came to nothing; a start has one of \
                 `restart_phrases` in its first {OPENING_WORDS_MAX} words",
                self.restarts, self.restarts_window
            ),
            would_not_fire_if: "progress, a start without a failed or empty call of its own, or an \
                                answer of more than a line or two",
        }
    }

    fn check_idle(&self) -> Result<(), NeverFires> {
        let history_max = History::TURNS_MAX as u32;
        if self.history > history_max {
            let why = format!("{} turns, at most {history_max} are stored", self.history);
            return Err(NeverFires::new("history", why));
        }
        check_share("stem_overlap", self.stem_overlap)
    }

    fn check_restarts(&self) -> Result<(), NeverFires> {
        if self.restarts > self.restarts_window {
            let why = format!(
                "{} new starts do not fit into {} turns",
                self.restarts, self.restarts_window
            );
            return Err(NeverFires::new("restarts", why).with_other_key("restarts_window"));
        }
        if self.restarts > 0 && self.restart_phrases.is_empty() {
            let why = "without phrases no turn announces a new start: set restarts = 0 as well";
            return Err(
                NeverFires::new("restart_phrases", why.to_owned()).with_other_key("restarts")
            );
        }
        Ok(())
    }

    /// Whether the turn says enough to be compared with others.
    fn is_evidence(&self, turn: &TurnFacts) -> bool {
        turn.words >= self.words_min || turn.words_before_first(&self.stop_phrases).is_some()
    }

    /// The similarity of two turns, if it is high enough to match.
    fn similarity_if_alike(&self, turn: &Sketch, earlier: &Sketch) -> Option<f64> {
        if self.numbers_are_progress && turn.differs_in_numbers_only(earlier) {
            return None;
        }
        match &self.measure {
            Some(model) => model.similarity_at_least(turn, earlier, self.similarity),
            None => turn.overlap_at_least(earlier, self.similarity),
        }
    }

    /// The share of one turn that the other repeats, if it is high enough for a
    /// loose match.
    fn restated_share(&self, turn: &Sketch, earlier: &Sketch, calls: u32) -> Option<f64> {
        if let (CONTAINED_TOKENS_MIN.., true) = turn.containment(earlier) {
            return Some(INEXACT_CONFIDENCE);
        }
        // In a session that never sends calls, the absence of calls says nothing,
        // and reports of successive steps repeat many words.
        let has_progress = self.numbers_are_progress && turn.numbers != earlier.numbers;
        let (share, stems) = turn.stem_overlap(earlier);
        // With the same meaningful words, all but one, only the wording is another.
        let is_reworded = share >= 1.0 && turn.stems.len().abs_diff(earlier.stems.len()) <= 1;
        let is_close = is_reworded || calls > 0 && share >= self.stem_overlap;
        (is_close && !has_progress && stems >= STEMS_MIN).then_some(share)
    }
}

impl SimilarTurns {
    /// Counts turns that match an earlier one.
    fn observe_repeat(
        &mut self,
        now: EventPosition,
        new_results: u16,
        turn: &TurnFacts,
        past: &History,
        settings: &Settings,
    ) -> Option<Finding> {
        let similar = most_similar(now, new_results, turn, past, settings)
            .or_else(|| most_similar_without_calls(now, turn, past, settings));
        let Some((similarity, tokens)) = similar else {
            self.streak = 0;
            self.loop_key = None;
            return None;
        };
        let first = *self.loop_key.get_or_insert(tokens);
        self.streak = self.streak.saturating_add(1);
        if self.streak < settings.count {
            return None;
        }
        let extends = self.streak > settings.count;
        let mut events = smallvec![now.index];
        if !extends {
            let earlier = settings.count.saturating_sub(1) as usize;
            events.extend(past.turns().take(earlier).map(|turn| turn.at.index));
            events.reverse();
        }
        Some(Finding {
            similarity,
            confidence: similarity,
            consecutive: true,
            extends,
            ..Finding::new(self.streak, events, smallvec![first])
        })
    }
}

impl NewStarts {
    /// Counts new starts that came to nothing.
    fn observe_new_start(
        &mut self,
        now: EventPosition,
        turn: &TurnFacts,
        past: &History,
        settings: &Settings,
    ) -> Option<Finding> {
        if self.progress != now.progress {
            *self = Self {
                progress: now.progress,
                ..Self::default()
            };
        }
        let announced = turn.words_before_first(&settings.restart_phrases);
        if settings.restarts == 0 || announced.is_none_or(|words| words > OPENING_WORDS_MAX) {
            return None;
        }
        let number = past.turn_count() + 1;
        let begin = number.saturating_sub(settings.restarts_window);
        self.failed.retain(|(earlier, _)| *earlier >= begin);
        if let Some((earlier, event)) = self.latest.replace((number, now.index))
            && past.has_fruitless_call_since(event)
            && past.no_productive_call_since_turn()
        {
            self.failed.push((earlier, event));
        }
        let first = *self.loop_key.get_or_insert_with(|| turn.sketch.signature());
        if self.failed.len() < settings.restarts as usize || self.reported {
            return None;
        }
        self.reported = true;
        let failed = self.failed.drain(..).map(|(_, event)| event);
        let events = failed.chain([now.index]).collect();
        Some(Finding {
            similarity: NEW_START_SIMILARITY,
            confidence: INEXACT_CONFIDENCE,
            action_max: Some(NEW_START_ACTION_MAX),
            ..Finding::new(settings.restarts, events, smallvec![first])
        })
    }
}

/// The words of an instruction to go on. Fewer say that the agent itself is done.
const INSTRUCTION_WORDS: RangeInclusive<usize> = 4..=16;

/// The most similar of the last turns: its similarity and its tokens.
fn most_similar(
    now: EventPosition,
    new_results: u16,
    turn: &TurnFacts,
    past: &History,
    settings: &Settings,
) -> Option<(f64, Sig)> {
    if !settings.is_evidence(turn) {
        return None;
    }
    // If empty turns reset, they count towards the window, too.
    let begin = match settings.empty {
        EmptyTurnPolicy::Skip => 0,
        EmptyTurnPolicy::Reset => (past.turn_count() + 1).saturating_sub(settings.window),
    };
    past.sketches()
        .take(settings.window as usize)
        .take_while(|(earlier, _)| earlier.number >= begin)
        .take_while(|(earlier, _)| settings.ignore_progress || earlier.at.progress == now.progress)
        .filter_map(|(earlier, sketch)| {
            let similarity = if turn.acts && !settings.ignore_progress {
                (turn.sketch.signature() == earlier.tokens).then_some(1.0)
            } else {
                settings.similarity_if_alike(&turn.sketch, sketch)
            };
            Some((similarity?, earlier))
        })
        .filter(|(_, earlier)| {
            // An agent that directs others may tell them to go on in the same few words.
            let directs = INSTRUCTION_WORDS.contains(&turn.sketch.token_count())
                && earlier.new_results != new_results;
            settings.ignore_progress || !(directs || past.has_new_result_since(earlier.at.index))
        })
        .map(|(similarity, earlier)| (similarity, earlier.tokens))
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The same with the loose match, among turns since the last call.
fn most_similar_without_calls(
    now: EventPosition,
    turn: &TurnFacts,
    past: &History,
    settings: &Settings,
) -> Option<(f64, Sig)> {
    if !settings.loose_match_without_calls || turn.acts {
        return None;
    }
    let is_idle = |earlier: &TurnEntry| earlier.at.calls == now.calls && !earlier.acted;
    let tokens = turn.sketch.signature();
    let equal = past
        .turns()
        .take(settings.history as usize)
        .take_while(|earlier| is_idle(earlier))
        .any(|earlier| earlier.tokens == tokens);
    let is_evidence = settings.is_evidence(turn);
    if equal && is_evidence {
        return Some((1.0, tokens));
    }
    // A short turn may still repeat a part of a longer one.
    let is_longer = |earlier: &Sketch| earlier.token_count() > turn.sketch.token_count();
    past.sketches()
        .take(settings.window as usize)
        .take_while(|(earlier, _)| is_idle(earlier))
        .filter(|(_, sketch)| is_evidence || is_longer(sketch))
        .filter_map(|(earlier, sketch)| {
            let share = settings.restated_share(&turn.sketch, sketch, now.calls)?;
            Some((share, earlier.tokens))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        detect::testing::{Script, call, edit, read, turn, user},
        text::WordOverlap,
    };

    fn settings() -> Settings {
        let new_starts = ["different approach", "start over", "step back"];
        Settings {
            count: 3,
            window: 5,
            similarity: 0.85,
            model: String::new(),
            measure: None,
            empty: EmptyTurnPolicy::Skip,
            numbers_are_progress: true,
            ignore_progress: false,
            loose_match_without_calls: true,
            history: 50,
            stem_overlap: 0.5,
            words_min: 1,
            stop_phrases: Phrases::default(),
            restarts: 3,
            restarts_window: 8,
            restart_phrases: new_starts
                .map(|text| Phrase::from(text.to_owned()))
                .to_vec()
                .into(),
        }
    }

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<SimilarTurns>(&settings()), expected);
    }

    #[track_caller]
    fn check_similarity(a: &str, b: &str, expected: f64) {
        let similarity = WordOverlap.similarity(&WordOverlap.sketch(a), &WordOverlap.sketch(b));
        assert!((similarity - expected).abs() < 1e-9, "{similarity}");
    }

    #[test]
    fn the_overlap_is_the_share_of_common_tokens() {
        check_similarity("a b c d e f", "A b C d x y", 4.0 / 8.0);
        check_similarity("a b c d e", "a b c d e f", 5.0 / 6.0);
        check_similarity("a b", "b a a", 1.0);
        check_similarity("a", "b", 0.0);
        check_similarity("", "", 0.0);
    }

    #[test]
    fn the_overlap_of_long_turns_is_estimated_from_a_sample() {
        let words = |from: u32, to: u32| -> String {
            let word = |n: u32| n.to_string().bytes().map(|d| (d + 49) as char).collect();
            (from..to).map(word).collect::<Vec<String>>().join(" ")
        };
        let sketch = |from, to| WordOverlap.sketch(&words(from, to));
        let similarity = sketch(0, 4_000).overlap(&sketch(400, 4_400));
        assert!(
            (similarity - 3_600.0 / 4_400.0).abs() < 0.06,
            "{similarity}"
        );
    }

    #[test]
    fn the_first_turn_counts_zero_and_the_fourth_equal_one_is_found() {
        check(turn("let me look again").times(6), &[0, 0, 0, 3, 4, 5]);
    }

    #[test]
    fn an_overlap_of_five_sixths_does_not_match() {
        check(
            turn("a b c d e") + turn("a b c d e f").times(1) + turn("a b c d e g"),
            &[0, 0, 0],
        );
    }

    #[test]
    fn a_dissimilar_turn_resets() {
        check(
            turn("x y z").times(3) + turn("something else now") + turn("x y z").times(3),
            &[0, 0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn an_empty_turn_neither_counts_nor_resets() {
        check(
            (turn("check price") + turn("")).times(4),
            &[0, 0, 0, 0, 0, 0, 3, 0],
        );
    }

    #[test]
    fn a_turn_that_differs_in_a_number_only_is_progress() {
        let batch = |n: u32| {
            turn(&format!(
                "processed batch {n} of 500 and wrote it to the table"
            ))
        };
        check((1..8).map(batch).sum(), &[0; 7]);
    }

    #[test]
    fn alternating_turns_match_within_the_window() {
        check(
            (turn("ping one") + turn("pong two")).times(3),
            &[0, 0, 0, 0, 3, 4],
        );
    }

    #[test]
    fn a_user_resets_and_calls_do_not() {
        check(
            turn("a b").times(3) + user() + turn("a b").times(3),
            &[0; 7],
        );
        check(
            turn("a b").times(3) + call("x") + turn("a b"),
            &[0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn evidence_cites_the_turns_that_counted() {
        let found = turn("same again")
            .times(4)
            .findings::<SimilarTurns>(&settings());
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[0].similarity, 1.0);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, window, similarity| {
            SimilarTurns::check(&Settings {
                count,
                window,
                similarity,
                ..settings()
            })
            .is_err()
        };
        assert!(!rejects(3, 5, 1.0));
        assert!(rejects(0, 5, 0.85));
        assert!(rejects(3, 0, 0.85));
        assert!(rejects(3, 6, 0.85));
        assert!(rejects(3, 5, 0.0));
        assert!(rejects(3, 5, 1.01));
        assert!(rejects(3, 5, f64::NAN));
    }

    #[test]
    fn without_calls_a_turn_that_contains_another_matches_it() {
        let (short, long) = (
            "status is green",
            "status is green and the night shift is clean",
        );
        let longest = format!("{long} and all decks are quiet");
        let turns = turn(short) + turn(long) + turn(&longest) + turn(short);
        check(turns, &[0, 0, 0, 3]);
        let worked = turn(short) + call("x") + turn(long) + call("y") + turn(&longest);
        check(worked + call("z") + turn(short), &[0; 7]);
        let tiny = turn("done") + turn("done with it all") + turn("all is done") + turn("done");
        check(tiny, &[0; 4]);
    }

    #[test]
    fn without_calls_a_turn_may_equal_any_turn_of_the_history() {
        let six = || "a b c d e f".split(' ').map(turn).sum::<Script>();
        let mut expected = [0; 12];
        expected[8..].copy_from_slice(&[3, 4, 5, 6]);
        check(six() + six(), &expected);
        check(six() + call("x") + six(), &[0; 13]);
    }

    const REWORDED: [&str; 4] = [
        "I will inspect the configuration loader and its tests.",
        "Inspecting how the loader handles configuration next.",
        "The configuration loader has to be inspected first.",
        "So, configuration: the loader deserves an inspection.",
    ];

    #[test]
    fn without_calls_a_reworded_turn_matches() {
        let reworded = || REWORDED.map(turn).into_iter().sum::<Script>();
        check(call("x") + reworded(), &[0, 0, 0, 0, 3]);
        let worked = REWORDED.map(|text| turn(text) + call(text));
        check(call("x") + worked.into_iter().sum(), &[0; 9]);
    }

    #[test]
    fn reworded_turns_do_not_match_in_a_session_that_never_sends_calls() {
        check(REWORDED.map(turn).into_iter().sum(), &[0; 4]);
    }

    #[test]
    fn a_changed_number_is_progress_in_a_reworded_turn_too() {
        let step = |n: u32| turn(&format!("migrated table {n}, the next table follows now"));
        check(call("x") + (1..8).map(step).sum(), &[0; 8]);
    }

    /// Turns with nothing in common, each with a call of its own. A `*` or a `+`
    /// announces a new start; the call of a `+` succeeds, the others fail.
    fn starts(marks: &str) -> Script {
        let step = |(n, mark): (usize, char)| {
            let words = [n, n + 40, n + 80].map(|n| "x".repeat(n + 1)).join(" ");
            let announced = if mark == '.' { "" } else { "let me start over" };
            let call = call(&words);
            let call = if mark == '+' {
                call.responds(&words)
            } else {
                call.fails(&words)
            };
            turn(&format!("{announced} {words} {words}s")) + call
        };
        marks.chars().enumerate().map(step).sum()
    }

    #[track_caller]
    fn check_starts(script: Script, expected: usize) {
        let found = script.findings::<SimilarTurns>(&settings());
        assert_eq!(found.len(), expected, "{found:?}");
        assert!(found.iter().all(|finding| finding.count == 3));
    }

    #[test]
    fn a_new_start_after_three_that_came_to_nothing_is_found() {
        check_starts(starts("*.*.*"), 0);
        check_starts(starts("*.*.*.*"), 1);
        check_starts(starts("*........*........*........*"), 0);
    }

    #[test]
    fn a_start_counts_only_with_a_failed_or_empty_call_of_its_own() {
        check_starts(starts("***+**"), 1);
        check_starts(starts("*+*+*"), 0);
        check_starts(starts("*++++++"), 0);
        let empty = |n: &str| turn(&format!("{n}: a different approach")) + call(n).empty();
        check_starts(["a", "b", "c", "d"].map(empty).into_iter().sum(), 1);
    }

    #[test]
    fn new_starts_are_reported_once_and_only_warned_about() {
        check_starts(starts("************"), 1);
        let found = starts("****").findings::<SimilarTurns>(&settings());
        assert_eq!(found[0].action_max, Some(Action::Warn));
        assert_eq!(found[0].events.as_slice(), [0, 2, 4, 6]);
    }

    #[test]
    fn a_turn_that_contains_an_action_matches_only_an_equal_one() {
        let step = |command: &str| {
            turn(&format!(
                "I go on with the next step of the plan and look at the output.\n\
                 ```sh\n{command}\n```"
            ))
        };
        check(
            ["ls", "id", "env", "pwd"].map(step).into_iter().sum(),
            &[0; 4],
        );
        check(step("ls").times(5), &[0, 0, 0, 3, 4]);
        let ignoring = Settings {
            ignore_progress: true,
            ..settings()
        };
        let steps: Script = ["ls", "id", "env", "pwd"].map(step).into_iter().sum();
        assert_eq!(steps.counts::<SimilarTurns>(&ignoring), [0, 0, 0, 3]);
    }

    #[test]
    fn a_turn_of_few_words_is_evidence_only_with_a_stop_phrase() {
        let settings = Settings {
            words_min: 4,
            stop_phrases: vec![Phrase::from("done".to_owned())].into(),
            ..settings()
        };
        let check = |text: &str, expected: [i32; 4]| {
            let counts = turn(text).times(4).counts::<SimilarTurns>(&settings);
            assert_eq!(counts, expected, "{text}");
        };
        check("Now the next.", [0; 4]);
        check("Now the next one.", [0, 0, 0, 3]);
        check("All done.", [0, 0, 0, 3]);
        let longer = "now the next. it is the last";
        let parts = turn("Now the next.") + turn(longer);
        let parts = parts + turn(&format!("{longer} of them")) + turn("Now the next.");
        assert_eq!(parts.counts::<SimilarTurns>(&settings), [0, 0, 0, 3]);
    }

    #[test]
    fn progress_resets_new_starts() {
        let change = || edit("file", "text");
        check_starts(starts("***") + change() + starts("***"), 0);
        check_starts(starts("***") + change() + starts("****"), 1);
    }

    #[test]
    fn a_new_start_after_a_productive_call_does_not_count() {
        let lap = |n: &str| turn(&format!("{n}: a different approach")) + call(n).fails(n);
        let known: Script = ["a", "b", "c", "d"].map(lap).into_iter().sum();
        check(known, &[0, 0, 0, 0, 0, 0, 3, 0]);
        let some = |n: &str| lap(n) + call("look").productive();
        check(["a", "b", "c", "d"].map(some).into_iter().sum(), &[0; 12]);
        let once = lap("a") + call("look").productive() + turn("and?") + lap("b") + lap("c");
        check(once + lap("d"), &[0, 0, 0, 0, 0, 0, 0, 0, 3, 0]);
    }

    #[test]
    fn an_agent_that_makes_progress_may_repeat_its_words() {
        let lap = |n: &str| turn("now I run the tests") + edit("f", n);
        let work: Script = ["1", "2", "3", "4", "5"].map(lap).into_iter().sum();
        check(work.clone(), &[0; 10]);
        let ignoring = Settings {
            ignore_progress: true,
            ..settings()
        };
        let found = work.counts::<SimilarTurns>(&ignoring);
        assert_eq!(found, [0, 0, 0, 0, 0, 0, 3, 0, 4, 0]);
        let idle = turn("now I run the tests") + read("f");
        check(idle.times(4), &[0, 0, 0, 0, 0, 0, 3, 0]);
    }

    #[test]
    fn equal_turns_with_new_results_in_between_do_not_count() {
        let lap = |n: &str| turn("let me look at the next file") + read(n).responds(n);
        let laps = |names: [&str; 6]| names.map(lap).into_iter().sum::<Script>();
        check(laps(["a", "b", "c", "d", "e", "f"]), &[0; 12]);
        // The same result again, or a failure, is nothing new.
        let same = laps(["a", "b", "c", "a", "b", "c"]);
        check(same, &[0; 12]);
        let same = laps(["a", "b", "c", "a", "b", "c"]) + lap("a") + lap("b");
        assert_eq!(same.counts::<SimilarTurns>(&settings())[12], 3);
        let failing = |n: &str| turn("let me look at the next file") + read(n).fails(n);
        let failed: Script = ["a", "b", "c", "d"].map(failing).into_iter().sum();
        check(failed, &[0, 0, 0, 0, 0, 0, 3, 0]);
    }

    #[test]
    fn a_new_start_must_be_announced_at_the_beginning() {
        let late = |n: usize| {
            let words: String = (0..60)
                .map(|m| format!("{}{} ", "x".repeat(n + 1), "y".repeat(m)))
                .collect();
            turn(&format!("{words} and then start over")) + call(&words)
        };
        check_starts((0..6).map(late).sum(), 0);
    }

    #[test]
    fn more_settings_that_can_never_fire_are_rejected() {
        let rejected_key =
            |settings: Settings| SimilarTurns::check(&settings).map_err(|e| e.key).err();
        assert_eq!(rejected_key(settings()), None);
        let far = Settings {
            history: 51,
            ..settings()
        };
        assert_eq!(rejected_key(far), Some("history"));
        let none = Settings {
            stem_overlap: 0.0,
            ..settings()
        };
        assert_eq!(rejected_key(none), Some("stem_overlap"));
        let many = Settings {
            restarts: 11,
            ..settings()
        };
        assert_eq!(rejected_key(many), Some("restarts"));
        let silent = Settings {
            restart_phrases: Phrases::default(),
            ..settings()
        };
        assert_eq!(rejected_key(silent), Some("restart_phrases"));
    }
}
