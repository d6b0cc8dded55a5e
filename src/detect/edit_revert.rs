//! `edit_revert`: the agent undoes its own edit.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{Detector, History, NeverFires, heap, lru_map::LruMap};
use crate::domain::{CallFacts, DetectorExplanation, DetectorOutcome, Finding, Observation, Sig};

/// Fires when: a write restores a content that the file had before, with another
/// content in between, by `content_hash`, for the `returns`-th time. The first return
/// is enough if it follows the other content at once, so that this was never tried, or
/// if a command failed since the file had the content: the way back leads to what did
/// not work. A single return after a trial that did not fail is an experiment. A write
/// that changes nothing is ignored. Reports a missing field without `content_hash` or a
/// target.
///
/// Resets when: it fires. The cited contents then count only as long as each
/// further write restores one of them again.
///
/// Cost: one map look-up and a scan of the path's last contents per write.
///
/// Defaults: hashes must be equal, as in the published rule, which reports the first
/// return.
#[derive(Default, Serialize, Deserialize)]
pub struct EditRevert {
    paths: LruMap<WrittenContents>,
}

/// `[detect.edit_revert]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// The earlier content must be within this many last calls; 0: anywhere in the
    /// session.
    pub within: u32,
    /// Returns to an earlier content of the file.
    pub returns: u32,
}

#[derive(Default, Serialize, Deserialize)]
struct WrittenContents {
    /// The written contents with their events, oldest first, without those that a
    /// finding cited.
    uncited: SmallVec<[(Sig, i32); 4]>,
    /// The content of the latest write.
    last: Option<Sig>,
    /// The event of the latest write.
    last_event: Option<i32>,
    /// The contents among which the file alternates since the last finding.
    cycled: SmallVec<[Sig; 4]>,
    /// Returns to an earlier content.
    count: i32,
}

impl WrittenContents {
    /// Most contents stored per file: as many as fit in the last 20 calls, the
    /// window of the published rule.
    const CONTENTS_MAX: usize = 20;
}

impl Detector for EditRevert {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let within = settings.within;
        if settings.returns == 0 {
            return Err(NeverFires::new("returns", "must be at least 1".to_owned()));
        }
        if matches!(within, 1 | 2) {
            let why = format!(
                "a revert takes 3 writes (one content, another, the first again), \
                 which never fit in the last {within} calls"
            );
            return Err(NeverFires::new("within", why));
        }
        if within as usize > WrittenContents::CONTENTS_MAX {
            let why = format!(
                "{within} calls, but only {} contents are stored",
                WrittenContents::CONTENTS_MAX
            );
            return Err(NeverFires::new("within", why));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: "a write restores an earlier content of a file",
            threshold: {
                let within = match settings.within {
                    0 => "however long ago".to_owned(),
                    within => format!("in the last {within} calls"),
                };
                match settings.returns {
                    1 => format!("once, {within}"),
                    returns => format!(
                        "{returns} times, {within}; once if the other content was not tried, or \
                         a command failed since"
                    ),
                }
            },
            would_not_fire_if: "a content that the file has not had yet",
        }
    }

    #[inline]
    fn quick_check(now: &Observation) -> Option<DetectorOutcome> {
        let Some(facts) = now.ordinary_call().filter(|facts| facts.wrote()) else {
            return Some(DetectorOutcome::NotApplicable);
        };
        missing_field(facts).map(DetectorOutcome::MissingField)
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        let Some(facts) = now.ordinary_call().filter(|facts| facts.wrote()) else {
            return DetectorOutcome::NotApplicable;
        };
        let (Some(path), Some(content)) = (facts.target, facts.content) else {
            return missing_field(facts).map_or(
                DetectorOutcome::NotApplicable,
                DetectorOutcome::MissingField,
            );
        };
        let contents = self.paths.get_or_insert(path, &now.capacities.paths);
        let index = now.at.index;
        let previous_write = contents.last_event.replace(index);
        if contents.last.replace(content) == Some(content) {
            // An equal write moves the content's event, so that it leaves the
            // window later.
            if let Some((_, event)) = contents.uncited.last_mut()
                && settings.within > 0
            {
                *event = index;
            }
            return DetectorOutcome::NotApplicable;
        }
        // The content either continues a reported cycle or was written before in the window.
        let begin = past.window_start(settings.within, now.at);
        let extends = contents.cycled.contains(&content);
        let first = contents
            .uncited
            .iter()
            .rposition(|(known, event)| *known == content && *event >= begin);
        if first.is_some() || extends {
            contents.count = contents.count.saturating_add(1);
        }
        let is_enough = contents.count >= i32::try_from(settings.returns).unwrap_or(i32::MAX)
            || past.calls().next().map(|call| call.index) == previous_write
            || first
                .and_then(|first| contents.uncited.get(first))
                .is_some_and(|(_, event)| past.has_failed_run_since(*event));
        let events = match first {
            // The first revert: the contents since then are the cycle and its evidence.
            Some(first) if !extends && is_enough => {
                let run = contents.uncited.drain(first..);
                contents.cycled = SmallVec::new();
                let mut events = SmallVec::new();
                for (known, event) in run {
                    contents.cycled.push(known);
                    events.push(event);
                }
                contents.uncited.clear();
                events.push(index);
                events
            }
            // A further revert cites only itself.
            _ if extends => {
                contents.uncited.clear();
                SmallVec::from_slice(&[index])
            }
            // A new content ends the cycle. It is stored, like a first return.
            _ => {
                contents.cycled.clear();
                if contents.uncited.len() == WrittenContents::CONTENTS_MAX {
                    contents.uncited.remove(0);
                }
                contents.uncited.push((content, index));
                return DetectorOutcome::NoMatch;
            }
        };
        DetectorOutcome::from_finding(Finding {
            extends,
            calls: facts.call.into_iter().collect(),
            ..Finding::new(contents.count, events, smallvec![path])
        })
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        let contents = |of: &WrittenContents| {
            heap::small_vec_bytes(&of.uncited) + heap::small_vec_bytes(&of.cycled)
        };
        self.paths.heap_bytes(contents)
    }
}

/// The first field that the write lacks.
fn missing_field(facts: &CallFacts) -> Option<&'static str> {
    match (facts.target, facts.content) {
        (None, _) => Some("tool_call.target"),
        (Some(_), None) => Some("tool_call.content_hash"),
        (Some(_), Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, edit, read, run, user, write};

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<EditRevert>(&SETTINGS), expected);
    }

    const SETTINGS: Settings = Settings {
        within: 0,
        returns: 2,
    };

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<EditRevert>(&SETTINGS), expected);
    }

    /// Writes of these contents, a letter each.
    fn writes(file: &str, contents: &str) -> Script {
        let content = |c: char| c.to_string();
        let write = |text: String| write(file, &text).content(&text);
        contents.chars().map(content).map(write).sum()
    }

    #[test]
    fn a_write_back_to_an_earlier_content_is_found() {
        check(writes("f", "aba"), &[0, 0, 1]);
        check(writes("f", "abca"), &[0, 0, 0, 1]);
    }

    #[test]
    fn a_single_return_after_a_trial_is_an_experiment_unless_a_command_failed() {
        let tried = |contents: &str, between: Script| -> Script {
            let write = |c: char| writes("f", &c.to_string()) + between.clone();
            contents.chars().map(write).sum()
        };
        check_letters(tried("aba", run("bench")), ". . . ");
        check_letters(tried("abac", run("bench")), ". . . . ");
        check_letters(tried("aba", read("f")), ". . . ");
        check_letters(tried("aba", run("test").fails("1 failed")), ". . ! ");
        let failed_before = run("test").fails("1 failed") + tried("aba", run("bench"));
        check_letters(failed_before, " . . . ");
    }

    #[test]
    fn the_second_return_is_found() {
        let tried = |contents: &str| -> Script {
            let write = |c: char| writes("f", &c.to_string()) + run("bench");
            contents.chars().map(write).sum()
        };
        check_letters(tried("abab"), ". . . ! ");
        check_letters(tried("abcab"), ". . . . ! ");
        check(tried("abab"), &[0, 0, 0, 0, 0, 0, 2, 0]);
        let first = Settings {
            returns: 1,
            ..SETTINGS
        };
        assert_eq!(tried("aba").outcome_letters::<EditRevert>(&first), ". . ! ");
    }

    #[test]
    fn each_further_revert_extends_the_loop() {
        check_letters(writes("f", "ababa"), "..!++");
        check(writes("f", "ababa"), &[0, 0, 1, 2, 3]);
    }

    #[test]
    fn new_contents_are_not_found() {
        check(writes("f", "abcdefgh"), &[0; 8]);
    }

    #[test]
    fn a_write_that_changes_nothing_is_ignored() {
        check_letters(writes("f", "aaa"), ".  ");
        check_letters(writes("f", "aabba"), ". . !");
        check_letters(writes("f", "abaab"), "..! +");
    }

    #[test]
    fn cited_contents_count_only_to_extend_the_loop() {
        check_letters(writes("f", "abacdef"), "..!....");
        check_letters(writes("f", "abacac"), "..!..!");
    }

    #[test]
    fn files_are_counted_separately() {
        check(
            writes("f", "a") + writes("g", "ba") + writes("f", "b"),
            &[0; 4],
        );
        check_letters(
            writes("f", "ab") + writes("g", "c") + writes("f", "ab"),
            "....!",
        );
    }

    #[test]
    fn a_failed_edit_or_a_read_is_not_applicable() {
        let failed = edit("f", "b").content("b").fails("no match");
        check_letters(writes("f", "a") + failed + writes("f", "a"), ".  ");
        check_letters(read("f").content("a") + writes("f", "ba"), " ..");
    }

    #[test]
    fn a_user_resets() {
        check(writes("f", "ab") + user() + writes("f", "a"), &[0; 4]);
    }

    #[test]
    fn a_missing_content_or_target_is_reported() {
        check_letters(
            write("f", "a") + write("f", "a").content("a").without_target(),
            "??",
        );
    }

    #[test]
    fn old_contents_are_dropped() {
        check(
            writes("f", "abcdefghijklmnopqrstuvwxyz") + writes("f", "a"),
            &[0; 27],
        );
    }

    #[test]
    fn evidence_cites_the_writes_since_that_content() {
        let found = writes("f", "xabab").findings::<EditRevert>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[1].events.as_slice(), [4]);
        assert_eq!(found[0].loop_key, found[1].loop_key);
    }
}
