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

use crate::{
    detect::Futile,
    domain::{
        CallKind, DetectorId, Explained, Finding, Look, Observation, Operation, RuleSight, Seen,
        Sig,
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
    events: u32,
    /// Of the rules up to the last that ever counted anything.
    states: Vec<State>,
}

#[derive(Default)]
struct State {
    /// The events of the window that count, oldest first.
    counted: VecDeque<Counted>,
    /// The event up to which what was found stands.
    stands_until: Option<u32>,
}

struct Counted {
    same: Sig,
    /// The agent's event, and the session's.
    at: u32,
    index: i32,
    round: Option<Sig>,
    call: Option<Sig>,
    /// The model has lost it when its context is summarised.
    is_read: bool,
    /// How long the run is that was found up to here; 0: none was.
    run: u32,
}

impl RuleSettings {
    /// Every event of the window may count, and takes 56 bytes then.
    pub const WINDOW_MAX: u32 = 256;

    /// Says why it fires.
    pub fn explain(&self) -> Explained {
        let Self {
            count,
            window,
            consecutive,
            ..
        } = self;
        Explained {
            rule: "a rule of the operator's own",
            threshold: if *consecutive {
                format!("{count} events in a row that it counts as the same, in {window}")
            } else {
                format!("{count} events that it counts as the same in the last {window}")
            },
            quiet: "events that its expressions leave out or tell apart",
        }
    }

    pub fn check(&self) -> Result<(), Futile> {
        let Self { count, window, .. } = *self;
        if window == 0 || window > Self::WINDOW_MAX {
            let most = Self::WINDOW_MAX;
            let why = format!("{window} events, of 1 to {most} that are kept");
            return Err(Futile::new("window", why));
        }
        if count == 0 {
            return Err(Futile::new("count", "must be at least 1".to_owned()));
        }
        if count > window {
            let why = format!("{count} events never stand in a window of {window}");
            return Err(Futile::new("count", why).or("window"));
        }
        Ok(())
    }
}

impl RuleStates {
    /// Counts what the rules make of an event. `first` is the first rule's id.
    pub fn observe(
        &mut self,
        sights: &[RuleSight],
        now: &Observation,
        (first, settings): (u8, &[RuleSettings]),
        mut tell: impl FnMut(DetectorId, Look),
    ) {
        // A text that is being written is no event yet.
        if settings.is_empty() || matches!(now.seen, Seen::Text(_)) {
            return;
        }
        self.events = self.events.saturating_add(1);
        if now.is_compaction() {
            self.lose_reads();
        }
        for (rule, settings) in (0..).zip(settings).filter(|(_, settings)| settings.enabled) {
            let sight = sights.iter().find(|sight| sight.rule == rule);
            let sight = sight.filter(|sight| sight.apart || !is_apart(now));
            let look = self.look(rule, sight, now, settings);
            tell(DetectorId(first.saturating_add(rule)), look);
        }
    }

    fn look(
        &mut self,
        rule: u8,
        sight: Option<&RuleSight>,
        now: &Observation,
        settings: &RuleSettings,
    ) -> Look {
        let at = self.events;
        let place = usize::from(rule);
        let Some(sight) = sight else {
            return self
                .states
                .get_mut(place)
                .map_or(Look::Away, |state| state.pass(at));
        };
        if self.states.len() <= place {
            self.states.resize_with(place + 1, State::default);
        }
        let Some(state) = self.states.get_mut(place) else {
            return Look::Away;
        };
        if sight.resets {
            state.counted.clear();
        }
        match (sight.same, sight.failed) {
            (Some(same), _) => state.count(same, at, now, settings),
            (None, Some(expression)) => Look::Abstained(expression),
            (None, None) => state.pass(at),
        }
    }

    fn lose_reads(&mut self) {
        for state in &mut self.states {
            state.counted.retain(|counted| !counted.is_read);
        }
    }

    pub fn reset(&mut self) {
        self.states = Vec::new();
    }

    pub fn heap_bytes(&self) -> usize {
        let counted = |state: &State| state.counted.capacity() * size_of::<Counted>();
        self.states.capacity() * size_of::<State>() + self.states.iter().map(counted).sum::<usize>()
    }
}

impl State {
    /// An event that does not count: what was found ends a window later.
    fn pass(&mut self, at: u32) -> Look {
        match self.stands_until {
            Some(until) if at > until => {
                self.stands_until = None;
                Look::Clear
            }
            _ => Look::Away,
        }
    }

    fn count(&mut self, same: Sig, at: u32, now: &Observation, settings: &RuleSettings) -> Look {
        let oldest = at.saturating_sub(settings.window - 1);
        while self.counted.front().is_some_and(|first| first.at < oldest) {
            self.counted.pop_front();
        }
        if settings.consecutive && self.counted.back().is_some_and(|last| last.same != same) {
            self.counted.clear();
        }
        let round = now.at.round;
        let alike = || {
            self.counted
                .iter()
                .rev()
                .filter(|counted| counted.same == same)
        };
        if round.is_some() && alike().any(|counted| counted.round == round) {
            return Look::Standing;
        }
        let last_run = alike().next().map_or(0, |last| last.run);
        let extends = last_run > 0;
        let stand = match last_run {
            0 => alike().count() as u32 + 1,
            run => run.saturating_add(1),
        };
        let found = stand >= settings.count;
        self.counted.push_back(Counted {
            same,
            at,
            index: now.at.index,
            round,
            call: call(now),
            is_read: is_read(now),
            run: if found { stand } else { 0 },
        });
        if found {
            self.stands_until = Some(at.saturating_add(settings.window - 1));
            return Look::found(self.finding(same, stand, extends));
        }
        match self.stands_until {
            Some(until) if at <= until && !settings.consecutive => Look::Standing,
            _ => {
                self.stands_until = None;
                Look::Clear
            }
        }
    }

    fn finding(&self, same: Sig, count: u32, extends: bool) -> Finding {
        /// As many as a loop is known by.
        const CALLS_MAX: usize = 16;
        let alike = self.counted.iter().filter(|counted| counted.same == same);
        let mut calls = smallvec::SmallVec::new();
        for call in alike.clone().filter_map(|counted| counted.call) {
            if calls.len() < CALLS_MAX && !calls.contains(&call) {
                calls.push(call);
            }
        }
        let fresh = if extends { 1 } else { count as usize };
        let mut events: smallvec::SmallVec<[i32; 8]> = alike
            .rev()
            .take(fresh)
            .map(|counted| counted.index)
            .collect();
        events.reverse();
        Finding {
            count: count.try_into().unwrap_or(i32::MAX),
            period: 0,
            similarity: 1.0,
            confidence: 1.0,
            bar: None,
            extends,
            events,
            name: [same].into_iter().collect(),
            calls,
        }
    }
}

/// A poll, or a call that met an outage: others look at it.
fn is_apart(now: &Observation) -> bool {
    matches!(&now.seen, Seen::Call(facts) if facts.kind != CallKind::Ordinary)
}

fn call(now: &Observation) -> Option<Sig> {
    match &now.seen {
        Seen::Call(facts) => facts.call,
        Seen::Turn(_) | Seen::Text(_) | Seen::Marker { .. } | Seen::Other => None,
    }
}

fn is_read(now: &Observation) -> bool {
    match &now.seen {
        Seen::Call(facts) => matches!(facts.operation, Operation::Read | Operation::Search),
        Seen::Turn(_) | Seen::Text(_) | Seen::Marker { .. } | Seen::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Bar, MarkerKind, Moment, Repeated, Used};

    const SETTINGS: RuleSettings = RuleSettings {
        enabled: true,
        count: 3,
        window: 5,
        consecutive: false,
    };

    fn sig(letter: char) -> Sig {
        Sig::new(letter as u64)
    }

    fn event(index: usize, seen: Seen, round: Option<char>) -> Observation {
        Observation {
            rooms: crate::detect::testing::ROOM.into(),
            at: Moment {
                index: index as i32,
                time: std::time::SystemTime::UNIX_EPOCH,
                progress: 0,
                moves: 0,
                calls: 0,
                round: round.map(sig),
            },
            seen,
            used: Used::default(),
        }
    }

    fn sight(same: Option<char>) -> RuleSight {
        RuleSight {
            rule: 0,
            same: same.map(sig),
            resets: false,
            failed: None,
            apart: false,
        }
    }

    fn look(
        states: &mut RuleStates,
        sight: &[RuleSight],
        now: &Observation,
        settings: &RuleSettings,
    ) -> Look {
        let mut looks = Vec::new();
        let rules = (40, std::slice::from_ref(settings));
        states.observe(sight, now, rules, |id, look| looks.push((id, look)));
        assert_eq!(looks.len(), 1);
        let (id, look) = looks.remove(0);
        assert_eq!(id, DetectorId(40));
        look
    }

    fn mark(look: &Look) -> char {
        match look {
            Look::Away => ' ',
            Look::Abstained(_) => '?',
            Look::Clear => '.',
            Look::Standing => '=',
            Look::Found(finding) if finding.extends => '+',
            Look::Found(_) => '!',
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
                '0' => Some(RuleSight {
                    resets: true,
                    ..sight(None)
                }),
                '?' => Some(RuleSight {
                    failed: Some("when"),
                    ..sight(None)
                }),
                same => Some(sight(Some(same))),
            };
            let now = event(index, Seen::Other, None);
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
        let repeated = Repeated {
            unit: "again".into(),
            name: sig('t'),
            count: 3,
            period: 5,
            began: 0,
            similarity: 1.0,
            bar: Bar::Soft,
            goes_on: false,
        };
        let mut marks = String::new();
        for index in 0..3 {
            let now = event(index, Seen::Other, None);
            let found = look(&mut states, &[sight(Some('a'))], &now, &SETTINGS);
            marks.push(mark(&found));
            for _ in 0..SETTINGS.window {
                let text = event(index, Seen::Text(repeated.clone()), None);
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
            let now = event(index, Seen::Other, Some(round));
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
        use crate::detect::testing::seen_call;
        let mut states = RuleStates::default();
        let mut marks = String::new();
        let compaction = Seen::Marker {
            kind: MarkerKind::Compaction,
            context_tokens: 0,
        };
        let read = || seen_call(Operation::Read, CallKind::Ordinary);
        for (index, seen) in [read(), read(), compaction, read(), read()]
            .into_iter()
            .enumerate()
        {
            let counts = matches!(seen, Seen::Call(_));
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
        use crate::detect::testing::seen_call;
        let settings = RuleSettings {
            count: 1,
            ..SETTINGS
        };
        let now = event(0, seen_call(Operation::Read, CallKind::Poll), None);
        let mut states = RuleStates::default();
        let blind = sight(Some('a'));
        assert_eq!(mark(&look(&mut states, &[blind], &now, &settings)), ' ');
        let sees = RuleSight {
            apart: true,
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
            let now = event(index, Seen::Other, None);
            let letter = char::from(b'a' + (index % 7) as u8);
            look(&mut states, &[sight(Some(letter))], &now, &settings);
        }
        assert!(states.heap_bytes() <= 512 * size_of::<Counted>() + 4 * size_of::<State>());
    }

    #[test]
    fn a_rule_that_is_off_does_not_look() {
        let off = RuleSettings {
            enabled: false,
            ..SETTINGS
        };
        let now = event(0, Seen::Other, None);
        let rules = (40, std::slice::from_ref(&off));
        let sights = [sight(Some('a'))];
        RuleStates::default().observe(&sights, &now, rules, |_, look| panic!("{look:?}"));
    }

    #[test]
    fn evidence_names_the_events_and_their_distinct_calls() {
        use crate::detect::testing::seen_call;
        let mut states = RuleStates::default();
        let mut found = Vec::new();
        for index in 0..4 {
            let now = event(index, seen_call(Operation::Write, CallKind::Ordinary), None);
            if let Look::Found(finding) = look(&mut states, &[sight(Some('a'))], &now, &SETTINGS) {
                found.push(finding);
            }
        }
        assert_eq!(found[0].events.as_slice(), [0, 1, 2]);
        assert_eq!(found[1].events.as_slice(), [3]);
        assert_eq!((found[1].count, found[1].calls.len()), (4, 1));
        assert_eq!(found[0].name.as_slice(), [sig('a')]);
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
