//! `read_loop`: the agent reads an unchanged file again and again.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::{
    CallEntry, Detector, History, NeverFires,
    active_runs::{ActiveRuns, RunStep},
    check_count, heap,
    lru_map::LruMap,
    streak::Streak,
};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, Observation,
    Operation, Sig,
};

/// Fires when: the same read (path and lines) of an unchanged file occurs `count`
/// times in the window, or when four reads in a row of one file return no line
/// that was not read before, however long ago.
///
/// Resets when: the file or anything else changes, and on a compaction, because
/// the model has lost what it read. Reading another file is not progress. A loop
/// that was found stays active while its latest read is in the window.
///
/// Cost: a scan of the window per read.
///
/// Defaults: a window of 20 and three reads are those of the published rule.
#[derive(Default, Serialize, Deserialize)]
pub struct ReadLoop {
    /// The repeated reads that were found and may continue.
    runs: ActiveRuns<ReadKey>,
    coverage: LruMap<Coverage>,
    last_path: Option<Sig>,
    stale_reads: Streak,
}

/// `[detect.read_loop]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub window: u32,
    /// Reads in a row without a new line that are a loop; 0: they are not counted.
    pub reads_without_new_lines: u32,
    /// Writes in between do not matter as long as the file reads the same.
    pub ignore_progress: bool,
    /// Compare reads by path and content only, whatever lines they request. The
    /// content is `content_hash`, or else the raw outcome.
    pub by_content: bool,
}

/// Two reads are the same if their keys are equal.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct ReadKey {
    path: Sig,
    lines: Option<(u32, u32)>,
    outcome: Sig,
    /// The call itself, if the event says nothing about the file's content.
    call: Option<Sig>,
    progress: u32,
}

impl ReadKey {
    fn new(path: Sig, at: EventPosition, facts: &CallFacts, settings: &Settings) -> Self {
        let content = settings
            .by_content
            .then(|| facts.content.unwrap_or(facts.raw_outcome));
        Self {
            path,
            lines: facts.lines.filter(|_| content.is_none()),
            outcome: content.unwrap_or(facts.masked_outcome),
            call: facts
                .call
                .filter(|_| has_no_content(facts) && content.is_none()),
            progress: if settings.ignore_progress {
                0
            } else {
                at.progress
            },
        }
    }

    /// Whether the earlier call read the same lines with another outcome.
    fn has_changed(&self, entry: &CallEntry, settings: &Settings) -> bool {
        !settings.by_content
            && !settings.ignore_progress
            && entry.operation == Operation::Read
            && entry.lines == self.lines
            && entry.masked_outcome != self.outcome.tag()
    }

    /// Whether the earlier call on this path is the same read.
    fn matches(&self, entry: &CallEntry, settings: &Settings) -> bool {
        let same = if settings.by_content {
            let raw = entry.raw_outcome == self.outcome.tag();
            entry.content.map_or(raw, |content| content == self.outcome)
        } else {
            entry.lines == self.lines && entry.masked_outcome == self.outcome.tag()
        };
        same && (self.call.is_none() || entry.call == self.call)
            && entry.operation == Operation::Read
            && (settings.ignore_progress || entry.progress == Some(self.progress))
    }
}

/// The event has nothing that distinguishes one state of the file from another.
fn has_no_content(facts: &CallFacts) -> bool {
    facts.response.is_none() && facts.content.is_none()
}

/// The lines of a file that were read since its last change.
#[derive(Default, Serialize, Deserialize)]
struct Coverage {
    progress: u32,
    content: Option<Sig>,
    lines: LineRanges,
}

/// Ranges of lines that were read. Most files have one.
#[derive(Default, Serialize, Deserialize)]
enum LineRanges {
    #[default]
    None,
    One(u32, u32),
    /// Sorted and disjoint.
    Many(Box<SmallVec<[(u32, u32); 4]>>),
}

impl Detector for ReadLoop {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let Settings {
            count,
            window,
            reads_without_new_lines,
            ..
        } = *settings;
        check_count("count", count, "read")?;
        if reads_without_new_lines == 1 {
            let why = "must be at least 2, or 0 to turn it off: one read is not a loop";
            return Err(NeverFires::new("reads_without_new_lines", why.to_owned()));
        }
        History::check_window(window)?;
        if count > window {
            let why = format!("{count} reads never fit in a window of {window} calls");
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: if settings.ignore_progress {
                "the same file is read again and again, whatever was written between"
            } else {
                "the same file is read again and again, and nothing has changed"
            },
            threshold: match settings.reads_without_new_lines {
                0 => format!(
                    "{} equal reads in the last {} calls",
                    settings.count, settings.window
                ),
                reads => format!(
                    "{} equal reads in the last {} calls, or {reads} reads in a row that bring no \
                     new line",
                    settings.count, settings.window
                ),
            },
            would_not_fire_if: "a write that changed something, another content, lines not yet read, or a compaction",
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        if now.is_compaction() {
            self.reset();
        }
        let Some(facts) = now.ordinary_call() else {
            return DetectorOutcome::NotApplicable;
        };
        self.runs.advance(settings.window);
        if facts.operation != Operation::Read {
            if let Some(path) = facts.target.filter(|_| facts.wrote()) {
                self.coverage.remove(path);
                self.last_path = None;
            }
            return DetectorOutcome::NotApplicable;
        }
        let Some(path) = facts.target else {
            return DetectorOutcome::MissingField("tool_call.target");
        };
        if facts.failed() {
            return self.no_match_outcome();
        }
        if has_no_content(facts) && facts.call.is_none() {
            return DetectorOutcome::MissingField("tool_call.args");
        }
        let read = ReadKey::new(path, now.at, facts, settings);
        let stale = self.observe_stale_read(now, path, facts, past, settings);
        let same = self.observe_same_read(read, now.at, facts, past, settings);
        same.or(stale)
            .map_or_else(|| self.no_match_outcome(), DetectorOutcome::from_finding)
    }

    fn consume(&mut self, cited: &[i32]) {
        self.stale_reads.consume(cited);
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        let coverage = |of: &Coverage| of.lines.heap_bytes();
        self.runs.heap_bytes() + self.coverage.heap_bytes(coverage) + self.stale_reads.heap_bytes()
    }
}

impl ReadLoop {
    /// Counts equal reads in the window, with or without other calls in between.
    fn observe_same_read(
        &mut self,
        read: ReadKey,
        at: EventPosition,
        facts: &CallFacts,
        past: &History,
        settings: &Settings,
    ) -> Option<Finding> {
        // Runs end on progress, and when the same lines read differently.
        self.runs.retain(|run| {
            let is_same_range = (run.path, run.lines) == (read.path, read.lines);
            run.progress == read.progress && (!is_same_range || *run == read)
        });
        // A read that was reported before is extended by this event alone.
        match self.runs.extend(&read, at, facts) {
            RunStep::Extended { count, exact } => {
                let events = smallvec![at.index];
                return Some(build_finding(
                    count, exact, true, events, read.path, facts.call,
                ));
            }
            RunStep::AlreadyCounted => return None,
            RunStep::NotInRun => {}
        }
        // Otherwise the reads of this file in the window are counted, once per round.
        let mut events: SmallVec<[i32; 8]> = smallvec![at.index];
        let mut exact = true;
        let mut round = at.round;
        for entry in past.calls_on_target(read.path, settings.window as usize - 1) {
            if read.has_changed(&entry, settings) {
                // The file changed and changed back, so earlier reads do not count.
                break;
            }
            let same = read.matches(&entry, settings) && !entry.consumed;
            if same && (entry.round.is_none() || entry.round != round) {
                events.push(entry.index);
                exact &= entry.raw_outcome == facts.raw_outcome.tag();
                round = entry.round;
            }
        }
        if events.len() < settings.count as usize {
            return None;
        }
        // The history is read backwards; evidence is in the order of events.
        events.reverse();
        let count = events.len().try_into().unwrap_or(i32::MAX);
        self.runs.insert(read, count, at, facts.raw_outcome, exact);
        Some(build_finding(
            count, exact, false, events, read.path, facts.call,
        ))
    }

    /// The outcome of a read that matches nothing. It does not end an active loop.
    fn no_match_outcome(&self) -> DetectorOutcome {
        if self.runs.is_empty() && !self.stale_reads.is_ongoing() {
            DetectorOutcome::NoMatch
        } else {
            DetectorOutcome::Unchanged
        }
    }

    /// Counts reads in a row that return no new line.
    fn observe_stale_read(
        &mut self,
        now: &Observation,
        path: Sig,
        facts: &CallFacts,
        past: &History,
        settings: &Settings,
    ) -> Option<Finding> {
        if self.last_path.replace(path) != Some(path) {
            self.stale_reads.clear();
        }
        // The event does not say which part of the file was read.
        if has_no_content(facts) && facts.lines.is_none() {
            return None;
        }
        let coverage = self.coverage.get_or_insert(path, &now.capacities.paths);
        let content = coverage.content.zip(facts.content);
        let changed =
            content.is_some_and(|(known, new)| known != new) || outcome_changed(path, facts, past);
        let progress = now.at.progress;
        if changed || coverage.progress != progress {
            *coverage = Coverage {
                progress,
                ..Coverage::default()
            };
        }
        coverage.content = facts.content.or(coverage.content);
        let is_new = match facts.lines {
            // What was read of the file is unknown.
            None if facts.may_read_part => !was_returned(path, facts, past),
            lines => coverage
                .lines
                .insert(lines.unwrap_or((1, WHOLE_FILE_LINES))),
        };
        if is_new {
            self.stale_reads.clear();
            return None;
        }
        let reads = settings.reads_without_new_lines;
        let threshold = (reads > 0).then_some(reads)?;
        if !self.stale_reads.push(now.at, facts.call) {
            return None;
        }
        let finding = self.stale_reads.finding_at_threshold(threshold)?;
        Some(Finding {
            loop_key: smallvec![path],
            ..finding
        })
    }
}

/// Lines that a read of a whole file covers: agents' tools truncate there.
const WHOLE_FILE_LINES: u32 = 2_000;

/// Whether the previous equal read had another outcome. A growing log changes even
/// though no write was observed. Another command may show the same lines in another
/// form, with numbers, so it says nothing about a change.
fn outcome_changed(path: Sig, facts: &CallFacts, past: &History) -> bool {
    past.calls_on_target(path, History::CALLS_MAX)
        .find(|entry| {
            entry.operation == Operation::Read
                && entry.lines == facts.lines
                && entry.call == facts.call
        })
        .is_some_and(|last| last.masked_outcome != facts.masked_outcome.tag())
}

/// Whether an earlier read of the file returned the same.
fn was_returned(path: Sig, facts: &CallFacts, past: &History) -> bool {
    past.calls_on_target(path, History::CALLS_MAX).any(|entry| {
        entry.operation == Operation::Read && entry.masked_outcome == facts.masked_outcome.tag()
    })
}

fn build_finding(
    count: i32,
    exact: bool,
    extends: bool,
    events: SmallVec<[i32; 8]>,
    path: Sig,
    call: Option<Sig>,
) -> Finding {
    Finding {
        confidence: if exact { 1.0 } else { 0.9 },
        extends,
        calls: call.into_iter().collect(),
        ..Finding::new(count, events, smallvec![path])
    }
}

impl LineRanges {
    /// Most ranges stored. Beyond it neighbours are joined, so a file read in a
    /// hundred pieces may count a few lines as read that were not.
    const RANGES_MAX: usize = 32;

    fn heap_bytes(&self) -> usize {
        match self {
            Self::None | Self::One(..) => 0,
            Self::Many(lines) => size_of_val(&**lines) + heap::small_vec_bytes(lines),
        }
    }

    /// Adds lines. Returns true if any of them is new.
    fn insert(&mut self, (first, last): (u32, u32)) -> bool {
        let covers = |from: u32, to: u32| from <= first && last <= to;
        match self {
            Self::None => *self = Self::One(first, last),
            Self::One(from, to) if covers(*from, *to) => return false,
            Self::One(from, to) => {
                let mut lines = SmallVec::new();
                lines.push((*from, *to));
                merge_range(&mut lines, first, last);
                *self = match lines[..] {
                    [(from, to)] => Self::One(from, to),
                    _ => Self::Many(Box::new(lines)),
                };
            }
            Self::Many(lines) if lines.iter().any(|(from, to)| covers(*from, *to)) => return false,
            Self::Many(lines) => merge_range(lines, first, last),
        }
        true
    }
}

/// Adds a range and joins ranges that touch.
fn merge_range(lines: &mut SmallVec<[(u32, u32); 4]>, first: u32, last: u32) {
    lines.push((first, last));
    lines.sort_unstable();
    lines.dedup_by(|(from, to), (_, end)| {
        let touches = *from <= end.saturating_add(1);
        if touches {
            *end = (*end).max(*to);
        }
        touches
    });
    if lines.len() > LineRanges::RANGES_MAX {
        let (_, to) = lines.remove(1);
        lines[0].1 = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, cited, compaction, edit, read, reads, run, user};

    const SETTINGS: Settings = Settings {
        by_content: false,
        count: 3,
        window: 20,
        reads_without_new_lines: 4,
        ignore_progress: false,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<ReadLoop>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<ReadLoop>(&SETTINGS), expected);
    }

    fn page(first: u32) -> Script {
        read("f")
            .lines(first, first + 99)
            .responds(&first.to_string())
    }

    #[test]
    fn the_third_read_of_a_file_is_found_and_each_further_one() {
        check(reads("f f f f"), &[0, 0, 3, 4]);
        check_letters(reads("f x f y f z f"), "....!=+");
    }

    #[test]
    fn other_calls_are_not_progress_and_do_not_end_the_loop() {
        let between = run("ls") + call("grep");
        check_letters((read("f") + between).times(4), ".  .  !  +  ");
    }

    #[test]
    fn a_failed_read_of_another_file_does_not_end_the_loop() {
        check_letters(
            reads("f f f") + read("g").fails("no such file") + read("f"),
            "..!=+",
        );
        check(read("f").fails("no such file").times(5), &[0; 5]);
    }

    #[test]
    fn reading_again_after_an_edit_is_not_found() {
        let lap = |n: &str| read("f") + edit("f", n);
        check(
            ["1", "2", "3", "4", "5"].map(lap).into_iter().sum(),
            &[0; 10],
        );
        let lap = |n: &str| read("f") + edit("g", n);
        check(
            ["1", "2", "3", "4", "5"].map(lap).into_iter().sum(),
            &[0; 10],
        );
        check(
            reads("f f") + edit("f", "1") + reads("f f f"),
            &[0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn progress_can_be_ignored() {
        let settings = Settings {
            ignore_progress: true,
            ..SETTINGS
        };
        let laps: Script = ["1", "2", "3", "4"]
            .map(|n| read("f") + edit("g", n))
            .into_iter()
            .sum();
        assert_eq!(laps.outcome_letters::<ReadLoop>(&settings), ". . ! + ");
    }

    #[test]
    fn a_file_that_reads_differently_has_changed() {
        let log: Script = ["1", "2", "3", "4", "5", "6", "7"]
            .map(|n| read("log").responds(n))
            .into_iter()
            .sum();
        check(log, &[0; 7]);
        let file = |content: &str| read("f").content(content);
        check(file("1") + file("1") + file("2") + file("1"), &[0; 4]);
        let pages = |content: &str| page(1).content(content) + page(20).content(content);
        check(
            ["1", "2", "3", "4", "5"].map(pages).into_iter().sum(),
            &[0; 10],
        );
    }

    #[test]
    fn paging_through_a_file_is_not_found() {
        check((0..12).map(|n| page(n * 100 + 1)).sum(), &[0; 12]);
        check((0..6).map(|n| page(n * 90 + 1)).sum(), &[0; 6]);
    }

    #[test]
    fn reading_many_files_twice_is_not_found() {
        let pass: Script = (0..15).map(|n| read(&n.to_string())).sum();
        check(pass.times(2), &[0; 30]);
    }

    #[test]
    fn the_threshold_of_reads_without_new_lines_is_a_setting() {
        let found = |reads_without_new_lines| {
            let again = page(1) + page(101) + page(20) + page(50) + page(10) + page(70);
            let settings = Settings {
                reads_without_new_lines,
                ..SETTINGS
            };
            again.outcome_letters::<ReadLoop>(&settings)
        };
        assert_eq!(found(0), "......");
        assert_eq!(found(2), "...!++");
    }

    #[test]
    fn the_fourth_read_in_a_row_without_a_new_line_is_found() {
        let again = page(20) + page(50) + page(10) + page(70) + page(30);
        check_letters(page(1) + page(101) + again, ".....!+");
        let later: Script = (0..40).map(|n| run(&n.to_string())).sum();
        let found = page(1) + page(101) + later + page(20) + page(50) + page(10) + page(70);
        assert!(
            found
                .outcome_letters::<ReadLoop>(&SETTINGS)
                .ends_with(" ...!")
        );
    }

    #[test]
    fn a_new_line_or_another_file_in_between_resets() {
        let whole = page(1) + page(101);
        check(
            whole.clone() + page(20) + page(50) + page(10) + page(150) + page(70),
            &[0; 7],
        );
        check(
            whole.clone() + page(20) + page(50) + page(10) + read("g") + page(70),
            &[0; 7],
        );
        check(
            whole + page(20) + page(50) + page(10) + edit("g", "1") + page(70),
            &[0; 7],
        );
    }

    #[test]
    fn a_round_counts_once() {
        check(reads("f f f f").round("1"), &[0; 4]);
        let rounds: Script = ["1", "2", "3", "4"]
            .map(|n| reads("f f").round(n))
            .into_iter()
            .sum();
        check_letters(rounds, "....!=+=");
        let whole = page(1) + page(101);
        check(
            whole + (page(20) + page(50) + page(10) + page(70)).round("1"),
            &[0; 6],
        );
    }

    #[test]
    fn events_outside_the_window_do_not_count() {
        let far: Script = (0..19).map(|n| run(&n.to_string())).sum();
        check(reads("f f") + far.clone() + read("f"), &[0; 22]);
        let gone = reads("f f f") + far + call("x") + reads("g f");
        assert!(gone.outcome_letters::<ReadLoop>(&SETTINGS).ends_with(" .."));
    }

    #[test]
    fn cited_events_count_only_to_extend_the_loop() {
        check_letters(reads("f x f") + cited() + reads("x f y f"), ".......");
        check_letters(reads("f f f") + cited() + reads("g f"), "..!=+");
    }

    #[test]
    fn two_repeated_files_are_two_runs() {
        check_letters(reads("f g f g f g f g"), "....!!++");
    }

    #[test]
    fn a_user_and_a_compaction_reset() {
        check(reads("f f") + user() + reads("f f"), &[0; 5]);
        check((read("f") + compaction()).times(6), &[0; 12]);
        check(read("f") + compaction() + reads("f f f"), &[0, 0, 0, 0, 3]);
    }

    #[test]
    fn the_file_must_be_known() {
        check_letters(read("f").without_target().times(4), "????");
        check((page(1) + read("g")).times(2) + read("f"), &[0; 5]);
    }

    #[test]
    fn evidence_cites_each_read_and_masked_equality_lowers_confidence() {
        let found = reads("f x f y f z f").findings::<ReadLoop>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [0, 2, 4]);
        assert_eq!(found[1].events.as_slice(), [6]);
        assert_eq!(found[0].confidence, 1.0);
        let found = (reads("f f") + read("f").raw("1")).findings::<ReadLoop>(&SETTINGS);
        assert_eq!(found[0].confidence, 0.9);
    }

    #[test]
    fn a_file_read_in_a_hundred_pieces_stays_bounded() {
        let mut coverage = LineRanges::default();
        assert!((0..100).all(|n| coverage.insert((n * 10, n * 10 + 1))));
        let LineRanges::Many(ranges) = coverage else {
            panic!("one range");
        };
        assert_eq!(ranges.len(), LineRanges::RANGES_MAX);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, window, reads_without_new_lines| {
            let settings = Settings {
                count,
                window,
                reads_without_new_lines,
                ..SETTINGS
            };
            ReadLoop::check(&settings).is_err()
        };
        assert!(!rejects(3, 20, 4));
        assert!(rejects(1, 20, 4));
        assert!(rejects(3, 20, 1));
        assert!(rejects(21, 20, 4));
        assert!(rejects(3, 33, 4));
    }
}
