//! `cycle`: the agent repeats the same sequence of calls.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Detector, History, NeverFires, check_count, heap};
use crate::domain::{
    CallFacts, DetectorExplanation, DetectorOutcome, EventPosition, Finding, LazyBox, Observation,
    Sig,
};

/// Fires when: the latest rounds are `count` laps of a sequence of 2 to
/// `period_max` rounds, with the same states in each lap, or when a round of
/// several calls repeats as a whole. A round is a set of calls; without
/// `round_id` each call is a round. A sequence of equal calls is not a cycle.
/// A sequence of `long_period` rounds or more needs only `long_count` laps, and a
/// shorter one as many repeated rounds as these, if the session made no progress between
/// them and no action answered without saying what it did: this many equal answers in
/// the same order are unlikely by chance.
///
/// Resets when: a call or its outcome breaks the sequence, another agent makes
/// progress, or, if the lap reads or searches, on a compaction. Events cited by an
/// ended loop are not part of a lap.
///
/// Cost: a comparison with each of the last 16 rounds, and if one is equal, one
/// comparison per period.
///
/// Defaults: three laps, because A-B-A-B is how an agent compares two files; two of
/// four calls, because comparing four things twice is unlikely, as is looking at three
/// twice and then at the first again.
#[derive(Default, Serialize, Deserialize)]
pub struct Cycle {
    /// A ring of the latest closed rounds, as tags; 0 if unknown. Half of a
    /// round's sum is enough, because a cycle takes at least four equal rounds.
    rounds: [u32; PERIOD_MAX],
    next: u8,
    /// By period: how many of the latest rounds equal the round one period
    /// earlier. Allocated by the first round that equals an earlier one.
    run_lengths: LazyBox<[u16; PERIOD_MAX + 1]>,
    /// Rounds since the last one that read or searched.
    rounds_since_read: u16,
    /// Rounds since the session made progress, and whether the current one did or may
    /// have.
    rounds_since_progress: u16,
    /// The previous round completed or extended a cycle.
    was_in_cycle: bool,
    current: Round,
    progress: Option<u32>,
    /// The latest event of a reported loop that has ended. Rounds up to it are
    /// dropped by the next `observe`, which has the history.
    consumed_until: Option<i32>,
}

/// `[detect.cycle]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// Laps.
    pub count: u32,
    pub window: u32,
    pub period_max: u32,
    /// From this period on, `long_count` laps are enough; 0: never.
    pub long_period: u32,
    pub long_count: u32,
    /// Calls repeat whatever their outcomes.
    pub ignore_outcome: bool,
}

impl Settings {
    /// How many of the latest rounds must equal the round one period earlier.
    fn run_needed(&self, period: usize, rounds_since_progress: usize) -> usize {
        let of_all_laps = (self.count as usize - 1) * period;
        if self.long_period == 0 {
            return of_all_laps;
        }
        let of_long_laps = (self.long_count as usize - 1) * period.max(self.long_period as usize);
        let has_progress = rounds_since_progress + 1 < period + of_long_laps;
        if has_progress {
            of_all_laps
        } else {
            of_all_laps.min(of_long_laps)
        }
    }
}

const PERIOD_MAX: usize = 16;

/// The latest round, to which calls may still be added.
#[derive(Default, Serialize, Deserialize)]
struct Round {
    id: Option<Sig>,
    /// Its distinct calls with their outcomes. Empty without a round id, because
    /// such a round ends with its first call.
    states: Vec<u64>,
    /// The number of distinct calls.
    calls: u8,
    /// The sum of the states, independent of their order.
    sum: u64,
    has_reads: bool,
    /// With its calls so far, the round completes or extends a cycle.
    in_cycle: bool,
}

impl Detector for Cycle {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), NeverFires> {
        let Settings {
            count,
            window,
            period_max,
            ..
        } = *settings;
        check_count("count", count, "lap")?;
        if !(2..=PERIOD_MAX as u32).contains(&period_max) {
            let why = format!("{period_max} is not a period between 2 and {PERIOD_MAX}");
            return Err(NeverFires::new("period_max", why));
        }
        History::check_window(window)?;
        if settings.long_period > 0 {
            check_count("long_count", settings.long_count, "lap")?;
        }
        if count.saturating_mul(2) > window {
            let why = format!(
                "{count} laps of 2 calls are {}, more than the window of {window}",
                count.saturating_mul(2)
            );
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        Ok(())
    }

    fn explain(settings: &Settings) -> DetectorExplanation {
        DetectorExplanation {
            rule: if settings.ignore_outcome {
                "the same calls repeat in the same order, with any outcomes"
            } else {
                "the same calls repeat in the same order, with the same outcomes"
            },
            threshold: {
                let mut threshold = format!(
                    "{} laps of 2 to {} calls in the last {} calls",
                    settings.count, settings.period_max, settings.window
                );
                if settings.long_period > 0 && settings.long_count < settings.count {
                    threshold += &format!(
                        ", or {} laps of {} or more, or as many repeated calls of a shorter lap, without progress",
                        settings.long_count, settings.long_period
                    );
                }
                threshold
            },
            would_not_fire_if: if settings.ignore_outcome {
                "a call that is not part of the cycle"
            } else {
                "a call that is not part of the cycle, or another outcome of one that is"
            },
        }
    }

    fn observe(
        &mut self,
        now: &Observation,
        past: &History,
        settings: &Settings,
    ) -> DetectorOutcome {
        if let Some(event) = self.consumed_until.take() {
            self.drop_rounds_through(event, past);
        }
        if now.is_compaction() {
            self.drop_reads();
        }
        let Some(facts) = now.ordinary_call() else {
            return DetectorOutcome::NotApplicable;
        };
        let Some(call) = facts.call else {
            self.reset();
            return DetectorOutcome::MissingField("tool_call.args");
        };
        if self.progressed_by_others(now.at, facts) && !settings.ignore_outcome {
            self.reset();
        }
        let may_have_progressed = self
            .progress
            .is_some_and(|before| before != now.at.progress)
            || facts.acts_silently();
        self.progress = Some(now.at.progress);
        // Both are keyed hashes, so an agent cannot make two pairs equal.
        let state = if settings.ignore_outcome {
            call.get()
        } else {
            call.get() ^ facts.masked_outcome.get().rotate_left(32)
        };
        if !self.push(now.at, facts, state | 1) {
            return DetectorOutcome::NotApplicable;
        }
        if may_have_progressed {
            self.rounds_since_progress = 0;
        }
        let cycle = self.find_cycle(settings);
        self.current.in_cycle = cycle.is_some();
        match cycle {
            Some((period, run, needed)) => {
                let laps = u32::from(run) / period as u32 + 1;
                let extends = usize::from(run) > needed;
                // The rounds of the last laps, and what the first finding has beyond them.
                let rounds = (period * laps as usize).max(period + needed);
                let finding = build_finding(now, past, period, rounds, laps, extends);
                DetectorOutcome::from_finding(finding)
            }
            // The rest of the round may complete the lap.
            None if self.was_in_cycle && now.at.round.is_some() => DetectorOutcome::Unchanged,
            None => DetectorOutcome::NoMatch,
        }
    }

    fn consume(&mut self, cited: &[i32]) {
        // A cycle that was found keeps its rounds; the rest of its round may
        // extend it.
        let may_continue =
            self.current.in_cycle || (self.was_in_cycle && self.current.id.is_some());
        if !may_continue {
            self.consumed_until = cited.iter().copied().max().max(self.consumed_until);
        }
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn heap_bytes(&self) -> usize {
        heap::vec_bytes(&self.current.states) + self.run_lengths.heap_bytes(|_| 0)
    }
}

impl Cycle {
    /// Whether there was progress that this call does not explain. What the
    /// agent's own calls change is part of the lap.
    fn progressed_by_others(&self, at: EventPosition, facts: &CallFacts) -> bool {
        let own = u32::from(facts.wrote() || facts.state.is_some());
        self.progress
            .is_some_and(|before| at.progress.wrapping_sub(before) > own)
    }

    /// Adds a call to its round. Returns false if the round already has it.
    fn push(&mut self, at: EventPosition, facts: &CallFacts, state: u64) -> bool {
        if at.round.is_none() || self.current.id != at.round {
            self.close_round();
            self.current.id = at.round;
        }
        let round = &mut self.current;
        if round.id.is_some() {
            if round.states.contains(&state) || round.states.len() == Round::CALLS_MAX {
                return false;
            }
            round.states.push(state);
        }
        round.calls += 1;
        round.sum = round.sum.wrapping_add(state).max(1);
        round.has_reads |= facts.operation.is_read();
        true
    }

    /// Moves the current round to the ring and updates the run lengths.
    fn close_round(&mut self) {
        if self.current.calls == 0 {
            self.current.clear();
            return;
        }
        let round = self.current.tag();
        if self.has_round(round) {
            let mut run_lengths = std::mem::take(&mut self.run_lengths);
            let runs = run_lengths.get_or_insert_default();
            for (period, length) in runs.iter_mut().enumerate().skip(1) {
                *length = if self.rounds[self.ring_index(period)] == round {
                    length.saturating_add(1)
                } else {
                    0
                };
            }
            self.run_lengths = run_lengths;
        } else if let Some(runs) = self.run_lengths.get_mut() {
            *runs = Default::default();
        }
        self.rounds[usize::from(self.next) % PERIOD_MAX] = round;
        self.next = (self.next + 1) % PERIOD_MAX as u8;
        self.rounds_since_read = if self.current.has_reads {
            0
        } else {
            self.rounds_since_read.saturating_add(1)
        };
        self.rounds_since_progress = self.rounds_since_progress.saturating_add(1);
        self.was_in_cycle = self.current.in_cycle;
        self.current.clear();
    }

    /// Whether any of the latest rounds equals this one. Usually none does. A fold
    /// without an early exit, so that the compiler can vectorize it.
    fn has_round(&self, round: u32) -> bool {
        self.rounds
            .iter()
            .fold(false, |any, known| any | (*known == round))
    }

    /// The run length of a period, including this round.
    fn run_length(&self, period: usize, round: u32) -> u16 {
        if self.rounds[self.ring_index(period)] == round {
            let before = self.run_lengths.get().map_or(0, |runs| runs[period]);
            before.saturating_add(1)
        } else {
            0
        }
    }

    /// The index of the round that was closed this many rounds ago.
    fn ring_index(&self, rounds: usize) -> usize {
        (usize::from(self.next) + PERIOD_MAX - rounds) % PERIOD_MAX
    }

    /// The shortest period with a run that is long enough, its run length, and the length it
    /// needed.
    fn find_cycle(&self, settings: &Settings) -> Option<(usize, u16, usize)> {
        let round = self.current.tag();
        if !self.has_round(round) {
            return None;
        }
        let window = settings.window as usize;
        let equal = usize::from(self.run_length(1, round)) + 1;
        (1..=settings.period_max as usize)
            // A lap of equal calls is a repeat, not a cycle. A round of several
            // calls is a lap by itself.
            .filter(|period| equal < *period || (*period == 1 && self.current.calls > 1))
            .map(|period| {
                let needed = settings.run_needed(period, self.rounds_since_progress.into());
                (period, self.run_length(period, round), needed)
            })
            .find(|(period, run, needed)| needed + period <= window && usize::from(*run) >= *needed)
    }

    /// On a compaction, drops the rounds up to the last one that read or searched.
    fn drop_reads(&mut self) {
        self.close_round();
        self.keep_last_rounds(usize::from(self.rounds_since_read));
    }

    /// Drops rounds that have an event up to this one.
    fn drop_rounds_through(&mut self, event: i32, past: &History) {
        let (mut fresh, mut last) = (0usize, None);
        for entry in past.calls() {
            let begins = entry.round.is_none() || last != Some(entry.round);
            if entry.index <= event {
                // A round that was cited in part is dropped as a whole.
                fresh -= usize::from(!begins);
                break;
            }
            fresh += usize::from(begins);
            last = Some(entry.round);
        }
        if fresh == 0 {
            self.current.states.clear();
            self.current.calls = 0;
            self.current.sum = 0;
        }
        // The latest of the fresh rounds is the current one, not a closed one.
        self.keep_last_rounds(fresh.saturating_sub(1));
    }

    /// Drops all but the latest `kept` closed rounds.
    fn keep_last_rounds(&mut self, kept: usize) {
        for period in 1..=PERIOD_MAX {
            let whole = kept.saturating_sub(period).try_into().unwrap_or(u16::MAX);
            if let Some(runs) = self.run_lengths.get_mut() {
                runs[period] = runs[period].min(whole);
            }
            if period > kept {
                self.rounds[self.ring_index(period)] = 0;
                self.was_in_cycle = false;
            }
        }
    }
}

impl Round {
    /// Most distinct calls of one round; further calls are ignored.
    const CALLS_MAX: usize = 32;

    fn tag(&self) -> u32 {
        ((self.sum ^ self.sum >> 32) as u32).max(1)
    }

    /// Prepares for the next round; keeps the allocation.
    fn clear(&mut self) {
        self.id = None;
        self.states.clear();
        self.calls = 0;
        self.sum = 0;
        self.has_reads = false;
        self.in_cycle = false;
    }
}

/// Builds the finding from the last `rounds_max` rounds, in laps of `period`, by walking
/// the calls backwards.
fn build_finding(
    now: &Observation,
    past: &History,
    period: usize,
    rounds_max: usize,
    laps: u32,
    extends: bool,
) -> Finding {
    let mut events: SmallVec<[i32; 8]> = SmallVec::new();
    let mut calls: SmallVec<[Sig; 4]> = SmallVec::new();
    // By lap, latest first: the sum of its raw outcomes, and how many there are.
    let mut outcomes: SmallVec<[(u64, i32); 4]> = SmallVec::new();
    let mut in_round: SmallVec<[Sig; 4]> = SmallVec::new();
    let (mut round, mut rounds) = (now.at.round, 1);
    let own = now.ordinary_call().map(|facts| {
        (
            now.at.index,
            now.at.round,
            facts.call,
            facts.raw_outcome.tag(),
        )
    });
    let earlier = past
        .calls()
        .map(|entry| (entry.index, entry.round, entry.call, entry.raw_outcome));
    for (index, of_round, call, raw) in own.into_iter().chain(earlier) {
        // A call without a round, or of another round, begins the next one.
        if !events.is_empty() && (of_round.is_none() || of_round != round) {
            rounds += 1;
            in_round.clear();
        }
        round = of_round;
        let Some(call) = call.filter(|_| rounds <= rounds_max) else {
            break;
        };
        // The same call counts once per round.
        if in_round.contains(&call) {
            continue;
        }
        in_round.push(call);
        events.push(index);
        // In the order of their first occurrence.
        calls.retain(|known| *known != call);
        calls.push(call);
        // Sums up the outcomes of the lap.
        let lap = (rounds - 1) / period;
        if outcomes.len() <= lap {
            outcomes.push((0, 0));
        }
        if let Some((sum, size)) = outcomes.last_mut() {
            *sum = sum.wrapping_add(u64::from(raw));
            *size += 1;
        }
    }
    let size = outcomes.first().map_or(0, |(_, size)| *size);
    // The history may begin within a lap, so an incomplete lap is not compared.
    let exact = outcomes
        .iter()
        .all(|lap| lap.1 < size || *lap == outcomes[0]);
    if extends {
        events.truncate(1);
    }
    events.reverse();
    calls.reverse();
    Finding {
        period: size,
        confidence: if exact { 1.0 } else { 0.9 },
        extends,
        calls: calls.clone(),
        ..Finding::new(laps, events, calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{
        Script, call, calls, cited, compaction, edit, read, reads, run, user, write,
    };

    const SETTINGS: Settings = Settings {
        count: 3,
        window: 30,
        period_max: 10,
        long_period: 4,
        long_count: 2,
        ignore_outcome: false,
    };

    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<Cycle>(&SETTINGS), expected);
    }

    #[track_caller]
    fn check_letters(script: Script, expected: &str) {
        assert_eq!(script.outcome_letters::<Cycle>(&SETTINGS), expected);
    }

    fn rounds(laps: &[&str]) -> Script {
        let round = |(n, names): (usize, &&str)| calls(names).round(&n.to_string());
        laps.iter().enumerate().map(round).sum()
    }

    #[test]
    fn a_cycle_needs_three_full_laps_and_is_extended_by_each_call() {
        check(calls("a b a b a b a b"), &[0, 0, 0, 0, 0, 3, 3, 4]);
        check_letters(calls("a b a b a b a b x"), ".....!++.");
    }

    #[test]
    fn a_cycle_may_begin_anywhere() {
        check_letters(calls("x y b a b a b a"), ".......!");
    }

    #[test]
    fn periods_up_to_ten_are_found() {
        let lap = calls("a b c d e f g");
        assert_eq!(lap.times(3).counts::<Cycle>(&SETTINGS)[20], 3);
        let lap = calls("a b c d e f g h i j");
        assert_eq!(lap.times(3).counts::<Cycle>(&SETTINGS)[29], 3);
        let lap = calls("a b c d e f g h i j k");
        check(lap.times(3), &[0; 33]);
    }

    #[test]
    fn a_second_pass_over_many_files_is_not_a_cycle() {
        let pass: Script = (0..15).map(|n| read(&n.to_string())).sum();
        check(pass.times(2), &[0; 30]);
    }

    #[test]
    fn equal_calls_are_a_repeat_and_not_a_cycle() {
        check(call("a").times(12), &[0; 12]);
        check_letters(calls("a a b").times(3), "........!");
    }

    #[test]
    fn another_outcome_breaks_the_cycle() {
        let lap = |n: &str| call("a") + call("b").result(n);
        check(
            ["1", "2", "3", "4", "5"].into_iter().map(lap).sum(),
            &[0; 10],
        );
        check(calls("a b a b a") + call("b").result("2"), &[0; 6]);
    }

    #[test]
    fn new_edits_with_tests_are_not_a_cycle_and_equal_edits_are() {
        let lap = |n: &str| edit("f", n) + run("test");
        check(
            ["1", "2", "3", "4", "5"].into_iter().map(lap).sum(),
            &[0; 10],
        );
        let lap = edit("f", "1") + edit("f", "2") + run("test").fails("e");
        check(lap.times(3), &[0, 0, 0, 0, 0, 0, 0, 0, 3]);
        let lap = write("f", "1") + run("test").fails("e");
        check(lap.times(3), &[0, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn progress_by_others_resets() {
        let lap = calls("lint test");
        check(lap.clone().times(2) + lap.clone().after_progress(), &[0; 6]);
        let lap = call("x").state("1") + call("y").state("2");
        check(lap.times(3), &[0, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn a_repeated_round_is_a_cycle_in_any_order_of_its_calls() {
        check_letters(
            rounds(&["a b c", "c a b", "b c a", "a b c"]),
            "........!==+",
        );
        check_letters(rounds(&["a b", "a b", "a c", "a b"]), "........");
    }

    #[test]
    fn rounds_of_one_call_are_like_calls_without_rounds() {
        check_letters(rounds(&["a", "b", "a", "b", "a", "b", "a"]), ".....!+");
        check_letters(rounds(&["a", "a", "a", "a", "a", "a"]), "......");
    }

    #[test]
    fn rounds_of_several_calls_may_alternate() {
        check_letters(
            rounds(&["a b", "c", "b a", "c", "a b", "c", "a b"]),
            "........!=+",
        );
    }

    #[test]
    fn the_same_call_counts_once_per_round() {
        check_letters(rounds(&["a a b b", "a b", "b a b"]), ". . ...! ");
        check_letters(rounds(&["a a a a a a"]), ".     ");
    }

    #[test]
    fn cited_events_count_only_for_a_cycle_that_was_found() {
        check_letters(
            calls("a b a b") + cited() + calls("a b a b a b"),
            ".........!",
        );
        check_letters(
            calls("a b a b a b") + cited() + calls("a b x a b"),
            ".....!++...",
        );
        check_letters(
            calls("a b a b a b x") + cited() + calls("a b a b a"),
            ".....!......",
        );
        // The cycle begins after the cited events, at any call of the lap.
        check_letters(
            calls("a b a") + cited() + calls("b a b a b a b"),
            "........!+",
        );
    }

    #[test]
    fn a_round_that_was_cited_in_part_is_not_a_lap() {
        let begun = |names: &str, n: &str| calls(names).round(n);
        let cut = begun("a b", "1") + begun("a", "2") + cited() + begun("b", "2");
        check_letters(cut.clone() + rounds(&["a b", "a b"]), "........");
        let found = rounds(&["a b", "a b", "a b"]) + begun("a", "4") + cited() + begun("b", "4");
        check_letters(found, ".....!=+");
    }

    #[test]
    fn a_user_resets_and_a_compaction_drops_reads() {
        check(calls("a b a b a") + user() + call("b"), &[0; 7]);
        check((reads("a b") + compaction()).times(4), &[0; 12]);
        check_letters(
            reads("a b a b") + compaction() + reads("a b a b a b"),
            ".... .....!",
        );
        let mixed = read("f") + calls("a b a b") + compaction() + calls("a b");
        check_letters(mixed, "..... .!");
        let mixed = (read("f") + call("a")).times(2) + compaction() + (read("f") + call("a"));
        check_letters(mixed, ".... ..");
    }

    #[test]
    fn unknown_arguments_break_the_cycle_and_polls_and_outages_do_not() {
        check_letters(calls("a b a b a") + call("b").without_args(), ".....?");
        let between = call("w").poll() + call("o").outage();
        check_letters(calls("a b a b") + between + calls("a b"), "....  .!");
    }

    #[test]
    fn evidence_cites_the_laps_and_masked_equality_lowers_confidence() {
        let found = calls("x a b a b a b a").findings::<Cycle>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(found[1].events.as_slice(), [7]);
        assert_eq!((found[0].period, found[0].confidence), (2, 1.0));
        assert_eq!(found[0].calls.len(), 2);
        let masked = calls("a b a b a") + call("b").raw("1");
        assert_eq!(masked.findings::<Cycle>(&SETTINGS)[0].confidence, 0.9);
        let found = rounds(&["x", "a b", "b a", "a b"]).findings::<Cycle>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3, 4, 5, 6]);
        assert_eq!((found[0].period, found[0].confidence), (2, 1.0));
    }

    #[test]
    fn two_laps_of_four_calls_are_enough_without_progress() {
        let lap = || reads("a b c d");
        check(lap().times(2), &[0, 0, 0, 0, 0, 0, 0, 2]);
        check(lap() + reads("a b c"), &[0; 7]);
        let once = Settings {
            long_period: 0,
            ..SETTINGS
        };
        assert_eq!(lap().times(2).counts::<Cycle>(&once), [0; 8]);
    }

    #[test]
    fn three_calls_are_a_cycle_when_the_third_lap_begins_without_progress() {
        check_letters(reads("a b c").times(3), "......!++");
        check(reads("a b c").times(2) + read("d"), &[0; 7]);
        let lap = || reads("a b") + call("move");
        check_letters(lap().times(3), "........!");
    }

    #[test]
    fn progress_or_a_silent_action_within_a_long_cycle_takes_three_laps() {
        let writes = |n: &str| reads("a b c") + write("d", n);
        check(writes("1") + writes("1"), &[0; 8]);
        let acts = || reads("a b c") + call("move");
        let mut expected = [0; 12];
        expected[11] = 3;
        check(acts().times(3), &expected);
        let answers = || reads("a b c") + call("look").responds("a wall");
        check(answers().times(2), &[0, 0, 0, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn outcomes_and_progress_can_be_ignored() {
        let settings = Settings {
            ignore_outcome: true,
            ..SETTINGS
        };
        let lap = |n: &str| call("a").after_progress() + call("b").result(n);
        let laps: Script = ["1", "2", "3"].into_iter().map(lap).sum();
        assert_eq!(laps.counts::<Cycle>(&settings), [0, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, window, period_max| {
            let settings = Settings {
                count,
                window,
                period_max,
                ..SETTINGS
            };
            Cycle::check(&settings).is_err()
        };
        assert!(!rejects(3, 30, 10));
        assert!(rejects(1, 30, 10));
        assert!(rejects(3, 5, 2));
        assert!(rejects(3, 30, 1));
        assert!(rejects(3, 30, 17));
        assert!(rejects(3, 33, 10));
        assert!(rejects(u32::MAX, 30, 10));
    }
}
