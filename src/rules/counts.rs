//! Rules of the operator's own: `[[rules]]`.
//!
//! What counts, and what is the same, was found out when the facts were made; a
//! rule fires when `count` events that are the same stand in the last `window`
//! events of the agent, or one after another of those that count. Each further
//! one goes on with the run, until none has come for a whole window.
//!
//! Resets with a user's message and a new run, where the rule says so, and for
//! reads and searches when the context is summarised.
//!
//! Cost: nothing without rules; a walk over the window for a rule that counts.

use std::collections::VecDeque;

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
    /// It looks at sessions of this profile.
    pub enabled: bool,
    pub count: u32,
    pub window: u32,
    pub consecutive: bool,
}

/// The counts of all rules, for one agent.
#[derive(Default)]
pub struct RuleStates {
    /// The agent's events so far.
    events_seen: u32,
    /// Of the rules up to the last that ever counted anything.
    states: Vec<RuleState>,
}

#[derive(Default)]
struct RuleState {
    /// The events of the window that count, oldest first.
    counted_events: VecDeque<CountedEvent>,
    /// The event up to which what was found stands.
    ongoing_until: Option<u32>,
}

struct CountedEvent {
    group_key: Sig,
    /// The agent's event, and the session's.
    agent_event: u32,
    session_event: i32,
    round: Option<Sig>,
    call: Option<Sig>,
    /// The model has lost it when its context is summarised.
    is_read: bool,
    /// How long the run is that was found up to here; 0: none was.
    run_length: u32,
}

impl RuleSettings {
    /// Every event of the window may count, and takes 56 bytes then.
    pub const WINDOW_MAX: u32 = 256;

    /// Says why it fires.
    pub fn explain(&self) -> DetectorExplanation {
        let Self {
            count,
            window,
            consecutive,
            ..
        } = self;
        DetectorExplanation {
            rule: "a rule of the operator's own",
            threshold: if *consecutive {
                format!("{count} events in a row that it counts as the same, in {window}")
            } else {
                format!("{count} events that it counts as the same in the last {window}")
            },
            avoided_by: "events that its expressions leave out or tell apart",
        }
    }

    pub fn check(&self) -> Result<(), NeverFires> {
        let Self { count, window, .. } = *self;
        if window == 0 || window > Self::WINDOW_MAX {
            let most = Self::WINDOW_MAX;
            let why = format!("{window} events, of 1 to {most} that are kept");
            return Err(NeverFires::new("window", why));
        }
        if count == 0 {
            return Err(NeverFires::new("count", "must be at least 1".to_owned()));
        }
        if count > window {
            let why = format!("{count} events never stand in a window of {window}");
            return Err(NeverFires::new("count", why).with_other_key("window"));
        }
        Ok(())
    }
}

impl RuleStates {
    /// Counts what the rules make of an event. `first` is the first rule's id.
    pub fn observe(
        &mut self,
        rule_outcomes: &[RuleOutcome],
        now: &Observation,
        (first, settings): (u8, &[RuleSettings]),
        mut emit: impl FnMut(DetectorId, DetectorOutcome),
    ) {
        // A text that is being written is no event yet.
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
                .find(|rule_outcome| rule_outcome.rule == rule);
            let rule_outcome = rule_outcome
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
            (Some(same), _) => state.count_event(same, at, now, settings),
            (None, Some(expression)) => DetectorOutcome::MissingField(expression),
            (None, None) => state.skip_event(at),
        }
    }

    fn remove_reads(&mut self) {
        for state in &mut self.states {
            state.counted_events.retain(|counted| !counted.is_read);
        }
    }

    pub fn reset(&mut self) {
        self.states = Vec::new();
    }

    pub fn heap_bytes(&self) -> usize {
        let counted =
            |state: &RuleState| state.counted_events.capacity() * size_of::<CountedEvent>();
        self.states.capacity() * size_of::<RuleState>()
            + self.states.iter().map(counted).sum::<usize>()
    }
}

impl RuleState {
    /// An event that does not count: what was found ends a window later.
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
        same: Sig,
        at: u32,
        now: &Observation,
        settings: &RuleSettings,
    ) -> DetectorOutcome {
        let oldest = at.saturating_sub(settings.window - 1);
        while self
            .counted_events
            .front()
            .is_some_and(|first| first.agent_event < oldest)
        {
            self.counted_events.pop_front();
        }
        if settings.consecutive
            && self
                .counted_events
                .back()
                .is_some_and(|last| last.group_key != same)
        {
            self.counted_events.clear();
        }
        let round = now.at.round;
        let alike = || {
            self.counted_events
                .iter()
                .rev()
                .filter(|counted| counted.group_key == same)
        };
        if round.is_some() && alike().any(|counted| counted.round == round) {
            return DetectorOutcome::Unchanged;
        }
        let last_run = alike().next().map_or(0, |last| last.run_length);
        let extends = last_run > 0;
        let run_length = match last_run {
            0 => alike().count() as u32 + 1,
            run => run.saturating_add(1),
        };
        let found = run_length >= settings.count;
        self.counted_events.push_back(CountedEvent {
            group_key: same,
            agent_event: at,
            session_event: now.at.index,
            round,
            call: call_signature(now),
            is_read: is_read(now),
            run_length: if found { run_length } else { 0 },
        });
        if found {
            self.ongoing_until = Some(at.saturating_add(settings.window - 1));
            return DetectorOutcome::from_finding(self.build_finding(same, run_length, extends));
        }
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

/// A poll, or a call that met an outage: others look at it.
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
    use crate::domain::{
        EventPosition, LadderRung, MarkerKind, Operation, TextRepetition, UsageDelta,
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

    fn event(index: usize, seen: ObservationBody, round: Option<char>) -> Observation {
        Observation {
            capacities: crate::domain::Capacities::default(),
            at: EventPosition {
                index: index as i32,
                time: std::time::SystemTime::UNIX_EPOCH,
                progress: 0,
                state_changes: 0,
                calls: 0,
                round: round.map(sig),
            },
            body: seen,
            usage: UsageDelta::default(),
        }
    }

    fn sight(same: Option<char>) -> RuleOutcome {
        RuleOutcome {
            rule: 0,
            group_key: same.map(sig),
            resets: false,
            failed_expression: None,
            uses_call_kind: false,
        }
    }

    fn look(
        states: &mut RuleStates,
        sight: &[RuleOutcome],
        now: &Observation,
        settings: &RuleSettings,
    ) -> DetectorOutcome {
        let mut looks = Vec::new();
        let rules = (40, std::slice::from_ref(settings));
        states.observe(sight, now, rules, |id, look| looks.push((id, look)));
        assert_eq!(looks.len(), 1);
        let (id, look) = looks.remove(0);
        assert_eq!(id, DetectorId(40));
        look
    }

    fn mark(look: &DetectorOutcome) -> char {
        match look {
            DetectorOutcome::NotApplicable => ' ',
            DetectorOutcome::MissingField(_) => '?',
            DetectorOutcome::NoMatch => '.',
            DetectorOutcome::Unchanged => '=',
            DetectorOutcome::Match(finding) if finding.extends => '+',
            DetectorOutcome::Match(_) => '!',
        }
    }

    /// A letter an event that counts, named by what it is the same as; `-` does
    /// not count, `0` resets, `?` fails.
    #[track_caller]
    fn check(script: &str, settings: &RuleSettings, expected: &str) {
        let mut states = RuleStates::default();
        let step = |(index, c)| {
            let sight = match c {
                '-' => None,
                '0' => Some(RuleOutcome {
                    resets: true,
                    ..sight(None)
                }),
                '?' => Some(RuleOutcome {
                    failed_expression: Some("when"),
                    ..sight(None)
                }),
                same => Some(sight(Some(same))),
            };
            let now = event(index, ObservationBody::Other, None);
            mark(&look(&mut states, sight.as_slice(), &now, settings))
        };
        let marks: String = script.chars().enumerate().map(step).collect();
        assert_eq!(marks, expected, "{script}");
    }

    #[test]
    fn so_many_that_are_the_same_are_found_and_each_that_goes_on() {
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
    fn only_the_window_counts() {
        check("a-a-a", &SETTINGS, ". . !");
        check("a--a-a", &SETTINGS, ".  . .");
    }

    #[test]
    fn a_text_that_is_being_written_is_no_event() {
        let mut states = RuleStates::default();
        let repeated = TextRepetition {
            unit: "again".into(),
            loop_key: sig('t'),
            count: 3,
            period: 5,
            start_char: 0,
            similarity: 1.0,
            rung: LadderRung::Soft,
            extends: false,
        };
        let mut marks = String::new();
        for index in 0..3 {
            let now = event(index, ObservationBody::Other, None);
            let found = look(&mut states, &[sight(Some('a'))], &now, &SETTINGS);
            marks.push(mark(&found));
            for _ in 0..SETTINGS.window {
                let text = event(index, ObservationBody::PartialText(repeated.clone()), None);
                states.observe(&[], &text, (40, &[SETTINGS]), |id, _| panic!("{id:?}"));
            }
        }
        assert_eq!(marks, "..!");
    }

    #[test]
    fn what_was_found_stands_for_a_window_and_then_has_to_come_anew() {
        check("aaa---a", &SETTINGS, "..!   +");
        check("aaa----a", &SETTINGS, "..!    .");
        check("aaa-----aaa", &SETTINGS, "..!    ...!");
    }

    #[test]
    fn another_that_counts_breaks_a_row_and_one_that_does_not_count_does_not() {
        let row = RuleSettings {
            consecutive: true,
            ..SETTINGS
        };
        check("a-aa", &row, ". .!");
        check("aabaa", &row, ".....");
        check("aaab", &row, "..!.");
    }

    #[test]
    fn a_reset_starts_anew_and_a_failure_counts_nothing() {
        check("aa0aa", &SETTINGS, ".. ..");
        check("aa?a", &SETTINGS, "..?!");
    }

    #[test]
    fn a_round_counts_once() {
        let mut states = RuleStates::default();
        let mut marks = String::new();
        for (index, round) in ['x', 'x', 'x', 'y', 'z'].into_iter().enumerate() {
            let now = event(index, ObservationBody::Other, Some(round));
            marks.push(mark(&look(
                &mut states,
                &[sight(Some('a'))],
                &now,
                &SETTINGS,
            )));
        }
        assert_eq!(marks, ".==.!");
    }

    #[test]
    fn a_compaction_forgets_reads_and_a_user_all() {
        use crate::detect::testing::observed_call;
        let mut states = RuleStates::default();
        let mut marks = String::new();
        let compaction = ObservationBody::Marker {
            kind: MarkerKind::Compaction,
            context_tokens: 0,
        };
        let read = || observed_call(Operation::Read, CallKind::Ordinary);
        for (index, seen) in [read(), read(), compaction, read(), read()]
            .into_iter()
            .enumerate()
        {
            let counts = matches!(seen, ObservationBody::Call(_));
            let now = event(index, seen, None);
            let sights = counts.then(|| sight(Some('a')));
            marks.push(mark(&look(&mut states, sights.as_slice(), &now, &SETTINGS)));
        }
        assert_eq!(marks, ".. ..");
        states.reset();
        assert_eq!(states.heap_bytes(), 0);
        let now = event(5, read(), None);
        assert_eq!(
            mark(&look(&mut states, &[sight(Some('a'))], &now, &SETTINGS)),
            '.'
        );
    }

    #[test]
    fn polls_and_outages_are_seen_by_those_who_tell_them_apart() {
        use crate::detect::testing::observed_call;
        let settings = RuleSettings {
            count: 1,
            ..SETTINGS
        };
        let now = event(0, observed_call(Operation::Read, CallKind::Poll), None);
        let mut states = RuleStates::default();
        let blind = sight(Some('a'));
        assert_eq!(mark(&look(&mut states, &[blind], &now, &settings)), ' ');
        let sees = RuleOutcome {
            uses_call_kind: true,
            ..blind
        };
        assert_eq!(mark(&look(&mut states, &[sees], &now, &settings)), '!');
    }

    #[test]
    fn what_is_kept_is_bounded_by_the_window() {
        let settings = RuleSettings {
            count: 256,
            window: 256,
            ..SETTINGS
        };
        let mut states = RuleStates::default();
        for index in 0..10_000 {
            let now = event(index, ObservationBody::Other, None);
            let letter = char::from(b'a' + (index % 7) as u8);
            look(&mut states, &[sight(Some(letter))], &now, &settings);
        }
        assert!(
            states.heap_bytes() <= 512 * size_of::<CountedEvent>() + 4 * size_of::<RuleState>()
        );
    }

    #[test]
    fn a_rule_that_is_off_does_not_look() {
        let off = RuleSettings {
            enabled: false,
            ..SETTINGS
        };
        let now = event(0, ObservationBody::Other, None);
        let rules = (40, std::slice::from_ref(&off));
        let sights = [sight(Some('a'))];
        RuleStates::default().observe(&sights, &now, rules, |_, look| panic!("{look:?}"));
    }

    #[test]
    fn evidence_names_the_events_and_their_distinct_calls() {
        use crate::detect::testing::observed_call;
        let mut states = RuleStates::default();
        let mut found = Vec::new();
        for index in 0..4 {
            let now = event(
                index,
                observed_call(Operation::Write, CallKind::Ordinary),
                None,
            );
            if let DetectorOutcome::Match(finding) =
                look(&mut states, &[sight(Some('a'))], &now, &SETTINGS)
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
    fn settings_that_can_never_fire_are_refused() {
        let refuses = |count, window| {
            RuleSettings {
                count,
                window,
                ..SETTINGS
            }
            .check()
            .is_err()
        };
        assert!(!refuses(1, 1));
        assert!(!refuses(256, 256));
        assert!(refuses(0, 5));
        assert!(refuses(6, 5));
        assert!(refuses(1, 0));
        assert!(refuses(1, 257));
    }
}
