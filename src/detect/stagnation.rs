//! `stagnation`: different calls lead to nothing new.

mod unmoved_results;

use std::mem;

use serde::{Deserialize, Serialize};
use smallvec::smallvec;

use super::{Detector, History, NeverFires, check_count, streak::Streak};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, LazyBox, Observation,
    Operation, ProgramWords, Sig,
};
use unmoved_results::UnmovedResults;

/// Fires when: `count` calls in a row with varying arguments get the same answer, and
/// that answer is no (nothing found, an empty list), or a text that answers for
/// different objects would not share, such as a captcha page, and the arguments do not
/// name other objects, or a short datum that
/// commands of the same words return, or of these and more; or `count` calls that
/// act leave `state_hash` unchanged; or one call returns the same short answer after each of
/// `rounds` changes of one thing, with no other run between, and the answer does not say
/// that all is well. A short answer that different objects may share
/// ("valid", "active") is work, and so is reading different files. Reports a missing
/// field if the result says nothing: ok, done, or the response of a write.
///
/// Resets when: a call fails or returns something else, the session makes
/// progress, or the state changes.
///
/// Cost: three comparisons per call.
///
/// Defaults: five changes of one thing without an effect; six in a row. A series of searches
/// that all hit a captcha page is longer; three tries without a hit are ordinary.
#[derive(Default, Serialize, Deserialize)]
pub struct Stagnation {
    last_response: Option<(Sig, u32)>,
    /// The one with the fewest words of those with this response.
    base_program: LazyBox<ProgramWords>,
    same_result: Streak,
    /// Allocated by the first event with a `state_hash`.
    world: LazyBox<WorldState>,
    /// Allocated by the first change.
    unmoved: LazyBox<UnmovedResults>,
}

#[derive(Default, Serialize, Deserialize)]
struct WorldState {
    /// The state, and how often it had changed: a state that was left and restored
    /// is a different one.
    last_state: Option<(Sig, u32)>,
    same_state: Streak,
}

/// `[detect.stagnation]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    /// Changes of one thing, each followed by one call with the same answer; 0: off.
    pub rounds: u32,
}

impl Detector for Stagnation {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        check_count("count", settings.count, "call")
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "different calls in a row return the same result or leave the state unchanged",
            threshold: match *settings {
                Settings { count, rounds: 0 } => format!("{count} in a row"),
                Settings { count, rounds } => {
                    format!("{count} in a row, or after {rounds} changes of one thing")
                }
            },
            would_not_fire_if: "another result, a changed state, or a write that changed something",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        _past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let Some(facts) = now.ordinary_call() else {
            return DetectorOutcome::NotApplicable;
        };
        let unmoved = (settings.rounds > 0)
            .then(|| UnmovedResults::observe(&mut self.unmoved, now.at, facts, settings.rounds))
            .flatten();
        let by_state = self.observe_state(now.at, facts, settings);
        let by_result = self.observe_result(now.at, facts, settings);
        let world = self.world.get();
        let is_ongoing = self.same_result.is_ongoing()
            || world.is_some_and(|world| world.same_state.is_ongoing());
        match (by_result, by_state.or(unmoved)) {
            (DetectorOutcome::Match(finding), _) => DetectorOutcome::Match(finding),
            (_, Some(finding)) => DetectorOutcome::from_finding(finding),
            (DetectorOutcome::NoMatch, None) if is_ongoing => DetectorOutcome::Unchanged,
            (other, None) => other,
        }
    }

    fn consume(&mut self, cited: &[i32]) {
        self.same_result.consume(cited);
        if let Some(world) = self.world.get_mut() {
            world.same_state.consume(cited);
        }
        if let Some(unmoved) = self.unmoved.get_mut() {
            unmoved.consume(cited);
        }
    }

    fn reset(&mut self) {
        // Its memory is used again: users write often.
        let mut unmoved = mem::take(&mut self.unmoved);
        if let Some(unmoved) = unmoved.get_mut() {
            *unmoved = UnmovedResults::default();
        }
        *self = Self {
            unmoved,
            ..Self::default()
        };
    }

    fn heap_bytes(&self) -> usize {
        self.same_result.heap_bytes()
            + self.base_program.heap_bytes(|_| 0)
            + self.world.heap_bytes(|world| world.same_state.heap_bytes())
            + self.unmoved.heap_bytes(UnmovedResults::heap_bytes)
    }
}

impl Stagnation {
    /// Counts different calls in a row with the same result.
    fn observe_result(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> DetectorOutcome {
        let is_program = facts.program != ProgramWords::default();
        let response = facts
            .response
            .filter(|_| facts.answer_shows_no_effect() || is_program);
        let (Some(call), Some(response), false) = (facts.call, response, facts.failed()) else {
            self.last_response = None;
            self.same_result.clear();
            let missing = facts.call.map_or("tool_call.args", |_| "tool_call.result");
            return if facts.failed() || (facts.call.is_some() && facts.response.is_some()) {
                DetectorOutcome::NoMatch
            } else {
                DetectorOutcome::MissingField(missing)
            };
        };
        let asks_the_same = self.asks_the_same(facts.program, facts.answer_shows_no_effect());
        if self.last_response == Some((response, at.progress)) && asks_the_same {
            if !self.same_result.push(at, Some(call)) {
                return DetectorOutcome::NotApplicable;
            }
        } else {
            self.last_response = Some((response, at.progress));
            self.same_result.restart(at, Some(call));
        }
        let varied = self.same_result.distinct_calls() > 1;
        let finding = varied.then(|| self.same_result.finding_at_threshold(settings.count));
        match finding.flatten() {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                loop_key: smallvec![response],
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }

    /// Whether a call asks the same as those before it. Its answer may say more than those
    /// about other objects would share; then it does unless it names another object.
    fn asks_the_same(&mut self, program: ProgramWords, says_much: bool) -> bool {
        let base = self.base_program.get().copied().unwrap_or_default();
        let is_same = if says_much {
            !program.names_another_object(base)
        } else {
            program.asks_the_same(base)
        };
        let is_first = base == ProgramWords::default();
        if program != base && (is_first || !is_same || program.is_part_of(base)) {
            *self.base_program.get_or_insert_default() = program;
        }
        is_same
    }

    /// Counts acting calls in a row that leave the state unchanged.
    fn observe_state(
        &mut self,
        at: EventPosition,
        facts: &CallFacts,
        settings: &Settings,
    ) -> Option<Finding> {
        let state = facts.state?;
        let now = (state, at.state_changes);
        let world = self.world.get_or_insert_default();
        if world.last_state.replace(now) != Some(now) {
            // The first call produced the state; only later ones leave it unchanged.
            world.same_state.clear();
            return None;
        }
        let acts = match facts.operation {
            Operation::Read | Operation::Search => false,
            Operation::Other => !facts.is_read_only,
            Operation::Write | Operation::Edit | Operation::Execute => true,
        };
        if !acts || !world.same_state.push(at, facts.call) {
            return None;
        }
        let finding = world.same_state.finding_at_threshold(settings.count)?;
        Some(Finding {
            loop_key: smallvec![state],
            ..finding
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        detect::testing::{Script, call, calls, cited, edit, read, run, user},
        domain::Action,
    };

    const SETTINGS: Settings = Settings {
        count: 6,
        rounds: 5,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<Stagnation>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<Stagnation>(&SETTINGS), expected);
    }

    #[test]
    fn read_only_calls_are_not_acts() {
        let clicks: Script = (0..7).map(|n| call(&n.to_string()).state("page")).sum();
        check(clicks.clone(), &[0, 0, 0, 0, 0, 0, 6]);
        check(clicks.read_only(), &[0; 7]);
    }

    #[test]
    fn cited_events_do_not_count_again() {
        let same = |names: &str| calls(names).responds("captcha");
        check(same("a b c d") + cited() + same("e f g h"), &[0; 8]);
        check(
            same("a b c d") + cited() + same("e f g h i j"),
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 6],
        );
        check(
            same("a b c d e f") + cited() + same("g"),
            &[0, 0, 0, 0, 0, 6, 7],
        );
    }

    #[test]
    fn the_sixth_different_call_with_one_result_is_found_and_each_further_one() {
        check(
            calls("a b c d e f g").responds("captcha"),
            &[0, 0, 0, 0, 0, 6, 7],
        );
        check_letters(
            calls("a b c d e f g").responds("captcha") + call("h").responds("x"),
            ".....!+.",
        );
    }

    #[test]
    fn a_short_datum_counts_for_programs_that_ask_the_same() {
        let asks = |words: [u128; 6]| {
            let name = |n: usize| run(&n.to_string()).responds("[(12, 4)]");
            let calls = words.iter().enumerate();
            calls.map(|(n, words)| name(n).program(*words)).sum()
        };
        check(
            asks([0x1F, 0x1F, 0x3F, 0x5F, 0x1F, 0x9F]),
            &[0, 0, 0, 0, 0, 6],
        );
        // Each has a word of its own: another object.
        check(asks([0x1F, 0x2F, 0x4F, 0x8F, 0x10F, 0x20F]), &[0; 6]);
        let brief = (0..6).map(|n| run(&n.to_string()).responds("a").program(0));
        check(brief.sum(), &[0; 6]);
    }

    #[test]
    fn equal_calls_are_not_found() {
        check(call("a").responds("x").times(8), &[0; 8]);
        let found = (call("a").times(7) + call("b"))
            .responds("x")
            .findings::<Stagnation>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(!found[0].extends);
    }

    #[test]
    fn another_result_a_failure_or_progress_resets() {
        let (five, six) = (calls("a b c d e").responds("x"), call("f").responds("x"));
        check(
            five.clone() + call("y").responds("y") + six.clone(),
            &[0; 7],
        );
        check(five.clone() + call("y").fails("x") + six.clone(), &[0; 7]);
        check(five.clone() + six.clone().after_progress(), &[0; 6]);
        check(five.clone() + edit("g", "1") + six.clone(), &[0; 7]);
        check(five + user() + six, &[0; 7]);
    }

    #[test]
    fn responses_that_say_nothing_are_not_compared() {
        check_letters(calls("a b c d e f g"), "???????");
        let edits: Script = ["1", "2", "3", "4", "5", "6"]
            .map(|n| edit("f", n))
            .into_iter()
            .sum();
        check_letters(edits, "??????");
        check_letters(call("a").responds("x").without_args(), "?");
    }

    #[test]
    fn a_round_counts_once() {
        check(calls("a b c d e f g").responds("x").round("1"), &[0; 7]);
        let round = |n: &str| (call(n) + call("z")).responds("x").round(n);
        let six: Script = ["1", "2", "3", "4", "5", "6"].map(round).into_iter().sum();
        check_letters(six, ". . . . . ! ");
    }

    #[test]
    fn six_acts_that_leave_the_state_unchanged_are_found() {
        check(
            calls("a b c d e f g h").state("s"),
            &[0, 0, 0, 0, 0, 0, 6, 7],
        );
        check(call("a").state("s").times(7), &[0, 0, 0, 0, 0, 0, 6]);
    }

    #[test]
    fn a_read_reports_the_state_but_is_not_an_act() {
        check(
            read("f").state("s") + calls("a b c d e f").state("s"),
            &[0, 0, 0, 0, 0, 0, 6],
        );
        check(read("f").state("s").times(8), &[0; 8]);
        let looks = calls("a b c d e f g") + read("f").responds("text") + call("h");
        check_letters(looks.state("s"), "??????!=+");
    }

    #[test]
    fn another_state_resets_and_an_unknown_state_does_not() {
        let six = calls("a b c d e f").state("s");
        check(
            six.clone() + call("g").state("t") + call("h").state("t"),
            &[0; 8],
        );
        check(
            six.clone() + read("f").state("t") + call("h").state("s"),
            &[0; 8],
        );
        check(
            six + call("x") + run("g").state("s"),
            &[0, 0, 0, 0, 0, 0, 0, 6],
        );
    }

    #[test]
    fn acts_of_one_round_count_once() {
        let round = |n: &str| calls("a b c").state("s").round(n);
        let six = ["1", "2", "3", "4", "5", "6"].map(round);
        check_letters(six.into_iter().sum(), "???????????????!??");
    }

    #[test]
    fn evidence_cites_the_events_and_the_response_is_the_loop_key() {
        let found =
            (call("x") + calls("a b c d e f g").responds("x")).findings::<Stagnation>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
        assert_eq!(found[1].events.as_slice(), [7]);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        assert!(Stagnation::check(&SETTINGS).is_ok());
        assert!(
            Stagnation::check(&Settings {
                count: 1,
                ..SETTINGS
            })
            .is_err()
        );
    }

    /// Rounds of a change of `path` and a check that returns `score`.
    fn rounds(path: &str, score: &str, count: usize) -> Script {
        let change = |n: usize| edit(path, &format!("{score} {n}"));
        let check = || run("score").result(score).leaves_open();
        (0..count).map(|n| change(n) + check()).sum()
    }

    #[track_caller]
    fn check_none(script: Script) {
        assert!(script.findings::<Stagnation>(&SETTINGS).is_empty());
    }

    #[test]
    fn the_same_result_after_five_changes_of_one_thing_is_found_with_a_warning_at_most() {
        check_none(rounds("a", ".61", 5));
        let found = rounds("a", ".61", 6).findings::<Stagnation>(&SETTINGS);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].events.len()), (6, 6));
        assert_eq!(found[0].action_max, Some(Action::Warn));
    }

    #[test]
    fn another_result_another_file_or_a_success_is_work() {
        let same = |count| rounds("a", ".61", count);
        check_none(same(4) + rounds("a", ".62", 1) + same(5));
        check_none(same(4) + rounds("b", ".61", 1) + same(5));
        let passes = |n: usize| edit("a", &n.to_string()) + run("test").result("passed");
        check_none((0..8).map(passes).sum());
        let idle = || run("score").result(".61").leaves_open();
        check_none(same(2) + idle().times(4) + edit("a", "x").changes_nothing() + idle());
        check_none(same(4) + user() + same(4));
    }
}
