//! Counts the events that rules match, and emits findings like a detector.
//!
//! Fires when: `count` events with the same key occur in the last `window` events of
//! the agent; with `consecutive`, without an event of another key that counts in
//! between. Each further event extends the run, until none occurs for a whole window.
//!
//! Resets when: `reset_when` is true, and on a message of the user or a new run. A
//! compaction drops reads and searches.
//!
//! Cost: nothing without rules; a scan of the window for a rule that counts the
//! event.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use crate::{
    detect::NeverFires,
    domain::{
        CallKind, DetectorExplanation, DetectorId, DetectorOutcome, Finding, Observation,
        ObservationBody, RuleOutcome, Sig,
    },
};

/// How a rule counts.
#[derive(Clone, Debug)]
pub struct RuleSettings {
    /// The rule applies to sessions of this profile.
    pub enabled: bool,
    pub count: u32,
    pub window: u32,
    pub consecutive: bool,
}

/// The counts of all rules, for one agent.
#[derive(Default, Serialize, Deserialize)]
pub struct RuleStates {
    /// The agent's events so far.
    events_seen: u32,
    /// The state of each rule, up to the last rule that ever had an outcome.
    states: Vec<RuleState>,
}

#[derive(Default, Serialize, Deserialize)]
struct RuleState {
    /// The events of the window that count, oldest first.
    counted_events: VecDeque<CountedEvent>,
    /// The agent's event up to which the last finding stays active.
    ongoing_until: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct CountedEvent {
    group_key: Sig,
    /// The number of the event among the agent's events.
    agent_event: u32,
    /// The index of the event in its session.
    session_event: i32,
    round: Option<Sig>,
    call: Option<Sig>,
    /// A compaction drops the event.
    is_read: bool,
    /// The length of the run found with this event; 0 without a finding.
    run_length: u32,
}

impl RuleSettings {
    /// Every event of the window may count, at 56 bytes each.
    pub const WINDOW_MAX: u32 = 256;

    /// Explains to a person when the rule fires.
    pub fn explain(&self) -> DetectorExplanation {
        let Self {
            count,
            window,
            consecutive,
            ..
        } = self;
        DetectorExplanation {
            rule: "a rule of the operator",
            threshold: if *consecutive {
                format!("{count} events in a row with the same key, in the last {window}")
            } else {
                format!("{count} events with the same key in the last {window}")
            },
            would_not_fire_if: "events that `when` does not match, or that have another key",
        }
    }

    pub fn check(&self) -> Result<(), NeverFires> {
        let Self { count, window, .. } = *self;
        if window == 0 || window > Self::WINDOW_MAX {
            let most = Self::WINDOW_MAX;
            let why = format!("{window} events, must be 1 to {most}");
            return Err(NeverFires::new("window", why));
        }
        if count == 0 {
            return Err(NeverFires::new("count", "must be at least 1".to_owned()));
        }
        if count > window {
            let why = format!("{count} events never fit in a window of {window}");
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        Ok(())
    }
}

impl RuleStates {
    /// Counts the rules' outcomes of an event. `first` is the id of the first rule.
    pub fn observe(
        &mut self,
        rule_outcomes: &[RuleOutcome],
        now: &Observation,
        (first, settings): (u8, &[RuleSettings]),
        mut emit: impl FnMut(DetectorId, DetectorOutcome),
    ) {
        // A text that is still being streamed is not an event.
        if settings.is_empty() || matches!(now.body, ObservationBody::PartialText(_)) {
            return;
        }
        self.events_seen = self.events_seen.saturating_add(1);
        if now.is_compaction() {
            self.remove_reads();
        }
        for (rule, settings) in (0..).zip(settings).filter(|(_, settings)| settings.enabled) {
            let rule_outcome = rule_outcomes
                .iter()
                .find(|rule_outcome| rule_outcome.rule == rule)
                .filter(|rule_outcome| rule_outcome.uses_call_kind || !is_excluded_call(now));
            let outcome = self.evaluate(rule, rule_outcome, now, settings);
            emit(DetectorId(first.saturating_add(rule)), outcome);
        }
    }

    fn evaluate(
        &mut self,
        rule: u8,
        rule_outcome: Option<&RuleOutcome>,
        now: &Observation,
        settings: &RuleSettings,
    ) -> DetectorOutcome {
        let at = self.events_seen;
        let position = usize::from(rule);
        let Some(rule_outcome) = rule_outcome else {
            return self
                .states
                .get_mut(position)
                .map_or(DetectorOutcome::NotApplicable, |state| state.skip_event(at));
        };
        if self.states.len() <= position {
            self.states.resize_with(position + 1, RuleState::default);
        }
        let Some(state) = self.states.get_mut(position) else {
            return DetectorOutcome::NotApplicable;
        };
        if rule_outcome.resets {
            state.counted_events.clear();
        }
        match (rule_outcome.group_key, rule_outcome.failed_expression) {
            (Some(group_key), _) => state.count_event(group_key, at, now, settings),
            (None, Some(expression)) => DetectorOutcome::MissingField(expression),
            (None, None) => state.skip_event(at),
        }
    }

    /// On a compaction: the model has lost what it read.
    fn remove_reads(&mut self) {
        for state in &mut self.states {
            state.counted_events.retain(|counted| !counted.is_read);
        }
    }

    pub fn reset(&mut self) {
        self.states = Vec::new();
    }

    pub fn heap_bytes(&self) -> usize {
        let counted_events: usize = self
            .states
            .iter()
            .map(|state| state.counted_events.capacity())
            .sum();
        self.states.capacity() * size_of::<RuleState>() + counted_events * size_of::<CountedEvent>()
    }
}

impl RuleState {
    /// Handles an event that does not count. The last finding ends one window after
    /// its latest event.
    fn skip_event(&mut self, at: u32) -> DetectorOutcome {
        match self.ongoing_until {
            Some(until) if at > until => {
                self.ongoing_until = None;
                DetectorOutcome::NoMatch
            }
            _ => DetectorOutcome::NotApplicable,
        }
    }

    fn count_event(
        &mut self,
        group_key: Sig,
        at: u32,
        now: &Observation,
        settings: &RuleSettings,
    ) -> DetectorOutcome {
        // Drops events that have left the window, and those of another key in a row.
        let window_start = at.saturating_sub(settings.window - 1);
        while self
            .counted_events
            .front()
            .is_some_and(|first| first.agent_event < window_start)
        {
            self.counted_events.pop_front();
        }
        if settings.consecutive
            && self
                .counted_events
                .back()
                .is_some_and(|last| last.group_key != group_key)
        {
            self.counted_events.clear();
        }
        // A round counts once per key.
        let round = now.at.round;
        let alike = || {
            self.counted_events
                .iter()
                .rev()
                .filter(|counted| counted.group_key == group_key)
        };
        if round.is_some() && alike().any(|counted| counted.round == round) {
            return DetectorOutcome::Unchanged;
        }
        // Extends the last run, or starts one with all events of the window.
        let last_run = alike().next().map_or(0, |last| last.run_length);
        let extends = last_run > 0;
        let run_length = match last_run {
            0 => alike().count() as u32 + 1,
            run => run.saturating_add(1),
        };
        let found = run_length >= settings.count;
        self.counted_events.push_back(CountedEvent {
            group_key,
            agent_event: at,
            session_event: now.at.index,
            round,
            call: call_signature(now),
            is_read: is_read(now),
            run_length: if found { run_length } else { 0 },
        });
        if found {
            self.ongoing_until = Some(at.saturating_add(settings.window - 1));
            return DetectorOutcome::from_finding(
                self.build_finding(group_key, run_length, extends),
            );
        }
        // Below the count: an earlier finding may still be active.
        match self.ongoing_until {
            Some(until) if at <= until && !settings.consecutive => DetectorOutcome::Unchanged,
            _ => {
                self.ongoing_until = None;
                DetectorOutcome::NoMatch
            }
        }
    }

    fn build_finding(&self, group_key: Sig, count: u32, extends: bool) -> Finding {
        /// Most distinct calls in a finding.
        const CALLS_MAX: usize = 16;
        let alike = self
            .counted_events
            .iter()
            .filter(|counted| counted.group_key == group_key);
        let mut calls = SmallVec::new();
        for call in alike.clone().filter_map(|counted| counted.call) {
            if calls.len() < CALLS_MAX && !calls.contains(&call) {
                calls.push(call);
            }
        }
        let new_events = if extends { 1 } else { count as usize };
        let mut events: SmallVec<[i32; 8]> = alike
            .rev()
            .take(new_events)
            .map(|counted| counted.session_event)
            .collect();
        events.reverse();
        Finding {
            extends,
            calls,
            ..Finding::new(count, events, smallvec![group_key])
        }
    }
}

/// A poll or an outage, which belong to detectors of their own.
fn is_excluded_call(now: &Observation) -> bool {
    matches!(&now.body, ObservationBody::Call(facts) if facts.kind != CallKind::Ordinary)
}

fn call_signature(now: &Observation) -> Option<Sig> {
    match &now.body {
        ObservationBody::Call(facts) => facts.call,
        ObservationBody::Turn(_)
        | ObservationBody::PartialText(_)
        | ObservationBody::Marker { .. }
        | ObservationBody::Other => None,
    }
}

fn is_read(now: &Observation) -> bool {
    match &now.body {
        ObservationBody::Call(facts) => facts.operation.is_read(),
        ObservationBody::Turn(_)
        | ObservationBody::PartialText(_)
        | ObservationBody::Marker { .. }
        | ObservationBody::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{observed_call, outcome_letter};
    use crate::domain::{
        EscalationLevel, EventPosition, MarkerKind, Operation, TextRepetition, UsageDelta,
    };

    const SETTINGS: RuleSettings = RuleSettings {
        enabled: true,
        count: 3,
        window: 5,
        consecutive: false,
    };

    fn sig(letter: char) -> Sig {
        Sig::new(letter as u64)
    }

    fn event(index: usize, body: ObservationBody, round: Option<char>) -> Observation {
        Observation {
            world_moves: 0,
            new_results: 0,
            capacities: crate::domain::Capacities::default(),
            at: EventPosition {
                index: index as i32,
                time: std::time::SystemTime::UNIX_EPOCH,
                progress: 0,
                state_changes: 0,
                calls: 0,
                round: round.map(sig),
            },
            body,
            usage: UsageDelta::default(),
        }
    }

    fn rule_outcome(key: Option<char>) -> RuleOutcome {
        RuleOutcome {
            rule: 0,
            group_key: key.map(sig),
            resets: false,
            failed_expression: None,
            uses_call_kind: false,
        }
    }

    /// Runs one rule, with the id 40, on one event.
    fn observe(
        states: &mut RuleStates,
        rule_outcomes: &[RuleOutcome],
        now: &Observation,
        settings: &RuleSettings,
    ) -> DetectorOutcome {
        let mut emitted = Vec::new();
        let rules = (40, std::slice::from_ref(settings));
        states.observe(rule_outcomes, now, rules, |id, outcome| {
            emitted.push((id, outcome));
        });
        assert_eq!(emitted.len(), 1);
        let (id, outcome) = emitted.remove(0);
        assert_eq!(id, DetectorId(40));
        outcome
    }

    /// In the script, a letter is the key of an event that counts; `-` does not count,
    /// `0` resets, `?` fails. The outcomes are letters as in the detectors' tests.
    #[track_caller]
    fn check(script: &str, settings: &RuleSettings, expected: &str) {
        let mut states = RuleStates::default();
        let step = |(index, c)| {
            let rule_outcome = match c {
                '-' => None,
                '0' => Some(RuleOutcome {
                    resets: true,
                    ..rule_outcome(None)
                }),
                '?' => Some(RuleOutcome {
                    failed_expression: Some("when"),
                    ..rule_outcome(None)
                }),
                key => Some(rule_outcome(Some(key))),
            };
            let now = event(index, ObservationBody::Other, None);
            let outcome = observe(&mut states, rule_outcome.as_slice(), &now, settings);
            outcome_letter(&outcome)
        };
        let letters: String = script.chars().enumerate().map(step).collect();
        assert_eq!(letters, expected, "{script}");
    }

    #[test]
    fn the_third_event_with_the_same_key_is_found_and_each_further_one() {
        check("aaaa", &SETTINGS, "..!+");
        check("abab", &SETTINGS, "....");
        check("ababa", &SETTINGS, "....!");
        check(
            "a",
            &RuleSettings {
                count: 1,
                ..SETTINGS
            },
            "!",
        );
    }

    #[test]
    fn only_events_in_the_window_count() {
        check("a-a-a", &SETTINGS, ". . !");
        check("a--a-a", &SETTINGS, ".  . .");
    }

    #[test]
    fn a_text_that_is_being_streamed_is_not_an_event() {
        let mut states = RuleStates::default();
        let repeated = TextRepetition {
            unit: "again".into(),
            loop_key: sig('t'),
            count: 3,
            period: 5,
            start_char: 0,
            similarity: 1.0,
            level: EscalationLevel::Soft,
            extends: false,
        };
        let mut letters = String::new();
        for index in 0..3 {
            let now = event(index, ObservationBody::Other, None);
            let found = observe(&mut states, &[rule_outcome(Some('a'))], &now, &SETTINGS);
            letters.push(outcome_letter(&found));
            for _ in 0..SETTINGS.window {
                let text = event(index, ObservationBody::PartialText(repeated.clone()), None);
                states.observe(&[], &text, (40, &[SETTINGS]), |id, _| panic!("{id:?}"));
            }
        }
        assert_eq!(letters, "..!");
    }

    #[test]
    fn a_run_ends_when_no_event_extends_it_within_a_window() {
        check("aaa---a", &SETTINGS, "..!   +");
        check("aaa----a", &SETTINGS, "..!    .");
        check("aaa-----aaa", &SETTINGS, "..!    ...!");
    }

    #[test]
    fn only_an_event_of_another_key_breaks_a_consecutive_run() {
        let row = RuleSettings {
            consecutive: true,
            ..SETTINGS
        };
        check("a-aa", &row, ". .!");
        check("aabaa", &row, ".....");
        check("aaab", &row, "..!.");
    }

    #[test]
    fn a_reset_clears_the_count_and_a_failure_does_not_count() {
        check("aa0aa", &SETTINGS, ".. ..");
        check("aa?a", &SETTINGS, "..?!");
    }

    #[test]
    fn a_round_counts_once() {
        let mut states = RuleStates::default();
        let mut letters = String::new();
        for (index, round) in ['x', 'x', 'x', 'y', 'z'].into_iter().enumerate() {
            let now = event(index, ObservationBody::Other, Some(round));
            letters.push(outcome_letter(&observe(
                &mut states,
                &[rule_outcome(Some('a'))],
                &now,
                &SETTINGS,
            )));
        }
        assert_eq!(letters, ".==.!");
    }

    #[test]
    fn a_compaction_drops_reads_and_a_user_drops_all() {
        let mut states = RuleStates::default();
        let mut letters = String::new();
        let compaction = ObservationBody::Marker {
            kind: MarkerKind::Compaction,
            context_tokens: 0,
        };
        let read = || observed_call(Operation::Read, CallKind::Ordinary);
        for (index, body) in [read(), read(), compaction, read(), read()]
            .into_iter()
            .enumerate()
        {
            let counts = matches!(body, ObservationBody::Call(_));
            let now = event(index, body, None);
            let rule_outcomes = counts.then(|| rule_outcome(Some('a')));
            letters.push(outcome_letter(&observe(
                &mut states,
                rule_outcomes.as_slice(),
                &now,
                &SETTINGS,
            )));
        }
        assert_eq!(letters, ".. ..");
        states.reset();
        assert_eq!(states.heap_bytes(), 0);
        let now = event(5, read(), None);
        assert_eq!(
            outcome_letter(&observe(
                &mut states,
                &[rule_outcome(Some('a'))],
                &now,
                &SETTINGS
            )),
            '.'
        );
    }

    #[test]
    fn polls_and_outages_count_only_for_rules_that_read_call_kind() {
        let settings = RuleSettings {
            count: 1,
            ..SETTINGS
        };
        let now = event(0, observed_call(Operation::Read, CallKind::Poll), None);
        let mut states = RuleStates::default();
        let ignoring_kind = rule_outcome(Some('a'));
        assert_eq!(
            outcome_letter(&observe(&mut states, &[ignoring_kind], &now, &settings)),
            ' '
        );
        let using_kind = RuleOutcome {
            uses_call_kind: true,
            ..ignoring_kind
        };
        assert_eq!(
            outcome_letter(&observe(&mut states, &[using_kind], &now, &settings)),
            '!'
        );
    }

    #[test]
    fn the_state_is_bounded_by_the_window() {
        let settings = RuleSettings {
            count: 256,
            window: 256,
            ..SETTINGS
        };
        let mut states = RuleStates::default();
        for index in 0..10_000 {
            let now = event(index, ObservationBody::Other, None);
            let letter = char::from(b'a' + (index % 7) as u8);
            observe(&mut states, &[rule_outcome(Some(letter))], &now, &settings);
        }
        assert!(
            states.heap_bytes() <= 512 * size_of::<CountedEvent>() + 4 * size_of::<RuleState>()
        );
    }

    #[test]
    fn a_disabled_rule_emits_nothing() {
        let off = RuleSettings {
            enabled: false,
            ..SETTINGS
        };
        let now = event(0, ObservationBody::Other, None);
        let rules = (40, std::slice::from_ref(&off));
        let rule_outcomes = [rule_outcome(Some('a'))];
        RuleStates::default().observe(&rule_outcomes, &now, rules, |_, outcome| {
            panic!("{outcome:?}")
        });
    }

    #[test]
    fn evidence_cites_the_events_and_their_distinct_calls() {
        let mut states = RuleStates::default();
        let mut found = Vec::new();
        for index in 0..4 {
            let now = event(
                index,
                observed_call(Operation::Write, CallKind::Ordinary),
                None,
            );
            if let DetectorOutcome::Match(finding) =
                observe(&mut states, &[rule_outcome(Some('a'))], &now, &SETTINGS)
            {
                found.push(finding);
            }
        }
        assert_eq!(found[0].events.as_slice(), [0, 1, 2]);
        assert_eq!(found[1].events.as_slice(), [3]);
        assert_eq!((found[1].count, found[1].calls.len()), (4, 1));
        assert_eq!(found[0].loop_key.as_slice(), [sig('a')]);
    }

    #[test]
    fn settings_that_can_never_fire_are_rejected() {
        let rejects = |count, window| {
            RuleSettings {
                count,
                window,
                ..SETTINGS
            }
            .check()
            .is_err()
        };
        assert!(!rejects(1, 1));
        assert!(!rejects(256, 256));
        assert!(rejects(0, 5));
        assert!(rejects(6, 5));
        assert!(rejects(1, 0));
        assert!(rejects(1, 257));
    }
}
