//! `near_repeat`: the agent varies a call slightly and gets the same response.

mod queries;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Detector, History, NeverFires, check_count, check_share, heap, streak::Streak};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, LazyBox, Observation,
    Sig,
};
use queries::RecentQueries;

/// Fires when: `count` calls in a row of one tool have the same result or error,
/// and their arguments differ only in the order of words; or differ only in numbers
/// or share at least `similarity` of their words, and the answer is no or longer than
/// the answers for different objects would share. Reports a missing field if the response
/// says nothing, because without a response, counting through pages or ids is
/// work. Also fires, with a warning at most, when `queries` searches of one tool within
/// `query_window` calls ask for the same words: all words of the last one, and two
/// thirds of the earlier ones.
///
/// Resets when: another tool is called, the words or the result differ, a write
/// succeeds, or there is other progress. An equal call in between neither counts
/// nor resets.
///
/// Cost: one comparison per call; two sorted word lists if long arguments got the
/// same response.
///
/// Defaults: a similarity of .9 separates a reworded query from another query.
#[derive(Default, Serialize, Deserialize)]
pub struct NearRepeat {
    last_call: Option<LastCall>,
    /// The words of its arguments. The buffer is reused.
    last_words: Vec<u32>,
    streak: Streak,
    similarity: f64,
    /// Allocated by the first search in words.
    queries: LazyBox<RecentQueries>,
}

/// `[detect.near_repeat]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub similarity: f64,
    /// Searches for the same words; 0: off.
    pub queries: u32,
    /// The calls within which they are.
    pub query_window: u32,
}

#[derive(Serialize, Deserialize)]
struct LastCall {
    call: Sig,
    response: Sig,
    /// A tag is enough, because the response is compared in full.
    tool: u32,
    progress: u32,
    loose_args: Option<Sig>,
    unordered_args: Option<Sig>,
}

impl Detector for NearRepeat {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "call")?;
        let Settings {
            queries,
            query_window,
            ..
        } = *settings;
        if queries == 1 || queries > RecentQueries::QUERIES_MAX as u32 {
            let why = format!(
                "{queries}, must be 0 or from 2 to {}",
                RecentQueries::QUERIES_MAX
            );
            return Err(NeverFires::new("queries", why));
        }
        if queries > query_window {
            let why = format!("{queries} searches never fit in the last {query_window} calls");
            return Err(NeverFires::new("queries", why).with_other_key("query_window"));
        }
        check_share("similarity", settings.similarity)
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "calls in a row of one tool hardly differ and get the same response",
            threshold: {
                let mut threshold = format!(
                    "{} in a row that differ in numbers and the order of words only, or share \
                     {} of their words",
                    settings.count, settings.similarity
                );
                if settings.queries > 0 {
                    threshold += &format!(
                        ", or {} searches for the same words in {} calls",
                        settings.queries, settings.query_window
                    );
                }
                threshold
            },
            would_not_fire_if: "another response, other words, another tool or a successful write between",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        match now.ordinary_call() {
            Some(facts) if !facts.wrote() => {
                let asked_again = self.observe_query(now.at, facts, settings);
                match (self.observe_call(now.at, facts, settings), asked_again) {
                    (DetectorOutcome::Match(finding), _) => DetectorOutcome::Match(finding),
                    (_, Some(finding)) => DetectorOutcome::from_finding(finding),
                    (other, None) => other,
                }
            }
            Some(_) => {
                self.reset();
                DetectorOutcome::NotApplicable
            }
            None => DetectorOutcome::NotApplicable,
        }
    }

    fn consume(&mut self, cited: &[i32]) {
        self.streak.consume(cited);
        if let Some(queries) = self.queries.get_mut() {
            queries.consume(cited);
        }
    }

    fn reset(&mut self) {
        self.end_streak();
        self.queries = LazyBox::default();
    }

    fn heap_bytes(&self) -> usize {
        heap::vec_bytes(&self.last_words)
            + self.streak.heap_bytes()
            + self.queries.heap_bytes(RecentQueries::heap_bytes)
    }
}

impl NearRepeat {
    fn end_streak(&mut self) {
        self.last_call = None;
        self.streak.clear();
        self.similarity = 0.0;
    }

    /// Counts searches for the same words.
    fn observe_query(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> Option<Finding> {
        let words = facts.query_words.as_deref()?;
        if settings.queries == 0 {
            return None;
        }
        let queries = self.queries.get_or_insert_default();
        queries.observe(at, facts, words, [settings.queries, settings.query_window])
    }

    fn observe_call(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> DetectorOutcome {
        let (Some(call), Some(response)) = (facts.call, facts.response) else {
            self.end_streak();
            let missing = facts.call.map_or("tool_call.args", |_| "tool_call.result");
            return DetectorOutcome::MissingField(missing);
        };
        // Only a call of the same tool with the same response and no progress in between
        // is compared.
        let tool = facts.tool.tag();
        let last = self
            .last_call
            .replace(LastCall {
                tool,
                call,
                response,
                progress: at.progress,
                loose_args: facts.loose_args,
                unordered_args: facts.unordered_args,
            })
            .filter(|last| {
                last.tool == tool && last.response == response && last.progress == at.progress
            });
        // An equal call is left to `exact_repeat`.
        if last.as_ref().is_some_and(|last| last.call == call) {
            return if self.streak.is_ongoing() {
                DetectorOutcome::Unchanged
            } else {
                DetectorOutcome::NoMatch
            };
        }
        // The words of this call are kept for the comparison with the next.
        let similarity = last
            .and_then(|last| last.similarity(&self.last_words, facts))
            .filter(|similarity| *similarity >= settings.similarity);
        self.last_words.clear();
        let words = facts.arg_words.as_deref().unwrap_or_default();
        self.last_words.extend_from_slice(words);
        // A similar call extends the streak, any other one starts it again.
        match similarity {
            Some(similarity) => {
                self.similarity = self.similarity.min(similarity);
                if !self.streak.push(at, Some(call)) {
                    return DetectorOutcome::NotApplicable;
                }
            }
            None => {
                self.similarity = 1.0;
                self.streak.restart(at, Some(call));
            }
        }
        match self.streak.finding_at_threshold(settings.count) {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                similarity: self.similarity,
                confidence: self.similarity.min(0.9),
                // The calls keep changing; the response does not.
                loop_key: smallvec![response],
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }
}

impl LastCall {
    /// The similarity of two different calls. `None`: their arguments are too short
    /// or too long to have word hashes.
    fn similarity(&self, words: &[u32], facts: &CallFacts) -> Option<f64> {
        if self.unordered_args.is_some() && self.unordered_args == facts.unordered_args {
            return Some(1.0);
        }
        // File 7 and file 8 are two objects, and both may be valid.
        if !facts.answer_shows_no_effect() {
            return None;
        }
        if self.loose_args.is_some() && self.loose_args == facts.loose_args {
            return Some(1.0);
        }
        let others = facts.arg_words.as_deref().unwrap_or_default();
        let (words, others) = (sorted_distinct(words), sorted_distinct(others));
        let shared = count_shared(&words, &others);
        let union = words.len() + others.len() - shared;
        (union > 0).then(|| shared as f64 / union as f64)
    }
}

/// The distinct hashes, sorted.
fn sorted_distinct(words: &[u32]) -> SmallVec<[u32; 32]> {
    let mut distinct = SmallVec::from_slice(words);
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

/// The number of hashes in both lists; `b` must be sorted.
fn count_shared(a: &[u32], b: &[u32]) -> usize {
    a.iter()
        .filter(|hash| b.binary_search(hash).is_ok())
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        detect::testing::{Script, call, edit, read, user},
        domain::Action,
    };

    const SETTINGS: Settings = Settings {
        count: 4,
        similarity: 0.9,
        queries: 3,
        query_window: 12,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<NearRepeat>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<NearRepeat>(&SETTINGS), expected);
    }

    /// A call that differs from the others in a number only.
    fn query(n: u32) -> Script {
        call(&format!("query {n}"))
            .loose("query")
            .responds("nothing")
    }

    fn queries(n: u32) -> Script {
        (0..n).map(query).sum()
    }

    #[test]
    fn the_fourth_call_that_differs_in_a_number_is_found_and_each_further_one() {
        check(queries(6), &[0, 0, 0, 4, 5, 6]);
    }

    #[test]
    fn calls_that_share_nine_tenths_of_their_words_are_similar() {
        let reworded = |new: u32| {
            call(&new.to_string())
                .words((0..19).chain([100 + new]))
                .responds("x")
        };
        check((0..4).map(reworded).sum(), &[0, 0, 0, 4]);
        let other = |new: u32| {
            call(&new.to_string())
                .words((0..17).chain([100 + new]))
                .responds("x")
        };
        check((0..4).map(other).sum(), &[0; 4]);
    }

    #[test]
    fn the_lowest_similarity_is_reported() {
        let reworded = |new: u32| {
            call(&new.to_string())
                .words((0..19).chain([100 + new]))
                .responds("x")
        };
        let found = (0..4)
            .map(reworded)
            .sum::<Script>()
            .findings::<NearRepeat>(&SETTINGS);
        assert!((found[0].similarity - 19.0 / 21.0).abs() < 1e-9);
        let found = queries(4).findings::<NearRepeat>(&SETTINGS);
        assert_eq!((found[0].similarity, found[0].confidence), (1.0, 0.9));
    }

    #[test]
    fn another_result_restarts_the_count() {
        let page = |n: u32| query(n).responds(&n.to_string());
        check((0..12).map(page).sum(), &[0; 12]);
        check(queries(3) + query(8).responds("hit") + query(9), &[0; 5]);
    }

    #[test]
    fn equal_errors_count_like_equal_results() {
        check(
            (0..4).map(|n| query(n).fails("bad query")).sum(),
            &[0, 0, 0, 4],
        );
    }

    #[test]
    fn another_tool_or_other_words_reset() {
        check(queries(3) + query(8).tool("other") + query(9), &[0; 5]);
        check(queries(3) + query(8).loose("other") + query(9), &[0; 5]);
    }

    #[test]
    fn an_equal_call_neither_counts_nor_resets() {
        check(query(1).times(6), &[0; 6]);
        check_letters(
            queries(2) + query(1) + query(2) + query(3) + query(3),
            "....!=",
        );
    }

    #[test]
    fn responses_that_say_nothing_are_not_compared() {
        check_letters(
            (0..5).map(|n| call(&n.to_string()).loose("get")).sum(),
            "?????",
        );
        check_letters(queries(5).without_args(), "?????");
    }

    #[test]
    fn successful_writes_never_count_and_progress_resets() {
        let edit_ok = |n: u32| edit("f", &n.to_string()).loose("edit").responds("ok");
        check_letters((0..5).map(edit_ok).sum(), "     ");
        check(queries(3) + edit("f", "1") + query(9), &[0; 5]);
        check(queries(3) + query(9).after_progress(), &[0; 4]);
    }

    #[test]
    fn a_round_counts_once() {
        check_letters(queries(5).round("1"), ".    ");
    }

    #[test]
    fn polls_are_skipped_and_a_user_resets() {
        check_letters(queries(3) + call("p").poll() + query(9), "... !");
        check(queries(3) + user() + query(9), &[0; 5]);
    }

    #[test]
    fn evidence_cites_the_calls_and_the_response_is_the_loop_key() {
        let found = (read("f") + queries(5)).findings::<NearRepeat>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4]);
        assert_eq!(found[1].events.as_slice(), [5]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, similarity| {
            NearRepeat::check(&Settings {
                count,
                similarity,
                ..SETTINGS
            })
            .is_err()
        };
        assert!(!rejects(4, 0.9));
        assert!(rejects(1, 0.9));
        assert!(rejects(4, 0.0));
        assert!(rejects(4, 1.1));
        assert!(rejects(4, f64::NAN));
    }

    #[track_caller]
    fn check_none(script: Script) {
        assert!(script.findings::<NearRepeat>(&SETTINGS).is_empty());
    }

    fn search(words: &[u32]) -> Script {
        call(&format!("{words:?}")).query(words)
    }

    #[test]
    fn the_third_search_for_the_same_words_is_found_once_with_a_warning_at_most() {
        let first = search(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let again = search(&[1, 2, 3, 4, 5, 6, 7]) + read("f") + search(&[1, 2, 3, 4, 5, 6]);
        let script = first.clone() + read("g") + again.clone() + search(&[1, 2, 3, 4, 5, 6]);
        let found = script.findings::<NearRepeat>(&SETTINGS);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].events.as_slice(), [0, 2, 4]);
        assert_eq!(found[0].action_max, Some(Action::Warn));
        // A user or a write between: the question is asked for another reason.
        check_none(first.clone() + user() + again.clone());
        check_none(first.clone() + edit("x", "y") + again.clone());
        // Another agent has made progress.
        check_none(first + read("g").after_progress() + again);
    }

    #[test]
    fn a_new_word_or_much_fewer_words_are_another_search() {
        let long: Vec<u32> = (1..=12).collect();
        check_none(search(&long) + search(&long[..7]) + search(&long[..7]));
        let other = |word| search(&[1, 2, 3, 4, 5, 6, word]);
        check_none((7..12).map(other).sum());
        // Far apart.
        let gap: Script = (0..7).map(|n| read(&n.to_string())).sum();
        let same = || search(&[1, 2, 3, 4, 5, 6]);
        check_none(same() + gap.clone() + same() + gap + same());
    }

    #[test]
    fn queries_of_one_round_count_once() {
        check_none(search(&[1, 2, 3, 4, 5, 6]).round("r").times(4));
    }
}
