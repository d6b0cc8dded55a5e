use serde::Deserialize;
use smallvec::{SmallVec, smallvec};

use super::{Detector, Futile, History};
use crate::domain::{
    CallFacts, Finding, Look, MarkerKind, Moment, Observation, Operation, Seen, Sig,
};

/// Fires when the last `count` calls are one call (tool and canonical
/// arguments) in the same state: equal outcome, no progress between.
///
/// Resets when another call, another outcome or progress comes between; with a
/// compaction where the call reads or searches, since the model has lost what
/// it read. The same call twice in one round counts once.
///
/// Cost: a few comparisons a call; a look back over `window` calls when it
/// fires. Three in a row within ten calls is the commonest rule among agents;
/// with "same outcome, no write between" it alarms on about no healthy coding
/// session, without on one in six.
#[derive(Default)]
pub struct ExactRepeat {
    run: Option<Run>,
}

/// `[detect.exact_repeat]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    pub count: u32,
    pub window: u32,
}

/// Equal calls in a row.
struct Run {
    call: Sig,
    masked: Sig,
    raw: Sig,
    progress: u32,
    round: Option<Sig>,
    operation: Operation,
    count: u32,
    /// Equal without masking, too.
    exact: bool,
}

impl Detector for ExactRepeat {
    type Settings = Settings;

    fn check(settings: &Settings) -> Result<(), Futile> {
        let Settings { count, window } = *settings;
        let window_max = History::CALLS_MAX as u32;
        if count < 2 {
            let why = format!("{count} calls are no repeat: at least 2 are");
            return Err(Futile::new("count", why));
        }
        if window > window_max {
            let why = format!("{window} calls are more than the {window_max} that are kept");
            return Err(Futile::new("window", why));
        }
        if count > window {
            let why = format!("{count} calls in a row never stand in a window of {window}");
            return Err(Futile::new("count", why));
        }
        Ok(())
    }

    fn observe(&mut self, now: &Observation, past: &History, settings: &Settings) -> Look {
        match &now.seen {
            Seen::Call(facts) => self.call(now.at, facts, past, settings),
            Seen::Marker {
                kind: MarkerKind::Compaction,
                ..
            } => {
                self.run
                    .take_if(|run| matches!(run.operation, Operation::Read | Operation::Search));
                Look::Away
            }
            Seen::Marker { .. } | Seen::Turn(_) => Look::Away,
        }
    }

    fn reset(&mut self) {
        self.run = None;
    }
}

impl ExactRepeat {
    fn call(&mut self, at: Moment, facts: &CallFacts, past: &History, settings: &Settings) -> Look {
        let Some(call) = facts.call else {
            self.run = None;
            return Look::Abstained("tool_call.args");
        };
        let Some(run) = self.run.as_mut().filter(|run| run.goes_on(call, at, facts)) else {
            self.run = Some(Run::begin(call, at, facts));
            return Look::Clear;
        };
        if at.round.is_some() && run.round == at.round {
            return Look::Away;
        }
        run.round = at.round;
        run.exact &= run.raw == facts.raw;
        run.count = run.count.saturating_add(1);
        if run.count < settings.count {
            return Look::Clear;
        }
        let extends = run.count > settings.count;
        let events = if extends {
            smallvec![at.index]
        } else {
            run_events(call, at, past, settings.count)
        };
        Look::Found(Finding {
            count: run.count.try_into().unwrap_or(i32::MAX),
            period: 1,
            similarity: 1.0,
            confidence: if run.exact { 1.0 } else { 0.9 },
            extends,
            events,
            cites: smallvec![call],
        })
    }
}

impl Run {
    fn begin(call: Sig, at: Moment, facts: &CallFacts) -> Self {
        Self {
            call,
            masked: facts.masked,
            raw: facts.raw,
            progress: at.progress,
            round: at.round,
            operation: facts.operation,
            count: 1,
            exact: true,
        }
    }

    fn goes_on(&self, call: Sig, at: Moment, facts: &CallFacts) -> bool {
        self.call == call && self.masked == facts.masked && self.progress == at.progress
    }
}

/// The run's events, oldest first, one a round.
fn run_events(call: Sig, at: Moment, past: &History, count: u32) -> SmallVec<[i32; 8]> {
    let mut events: SmallVec<[i32; 8]> = smallvec![at.index];
    let mut round = at.round;
    for entry in past
        .calls()
        .take_while(|entry| entry.facts.call == Some(call))
    {
        if events.len() >= count as usize {
            break;
        }
        if entry.at.round.is_none() || entry.at.round != round {
            events.push(entry.at.index);
            round = entry.at.round;
        }
    }
    events.reverse();
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::testing::{Script, call, compaction, user};

    const SETTINGS: Settings = Settings {
        count: 3,
        window: 10,
    };

    /// On which events it finds, as the counts: `0` where it does not.
    #[track_caller]
    fn check(script: Script, expected: &[i32]) {
        assert_eq!(script.counts::<ExactRepeat>(&SETTINGS), expected);
    }

    #[test]
    fn three_equal_calls_are_found_and_each_that_extends_them() {
        check(call("a").times(5), &[0, 0, 3, 4, 5]);
    }

    #[test]
    fn another_call_between_starts_anew() {
        check(
            call("a").times(2) + call("b") + call("a").times(3),
            &[0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn another_outcome_is_progress() {
        check(
            call("a").result("1") + call("a").result("2") + call("a").result("3"),
            &[0, 0, 0],
        );
    }

    #[test]
    fn a_write_by_another_agent_is_progress() {
        check(call("a").times(2) + call("a").after_progress(), &[0, 0, 0]);
    }

    #[test]
    fn unknown_arguments_equal_nothing() {
        check(call("a").without_args().times(4), &[0, 0, 0, 0]);
    }

    #[test]
    fn the_same_call_counts_once_a_round() {
        check(call("a").round("r1").times(5), &[0, 0, 0, 0, 0]);
        check(
            call("a").round("r1").times(2) + call("a").round("r2").times(2) + call("a").round("r3"),
            &[0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn a_user_starts_the_count_anew() {
        check(
            call("a").times(2) + user() + call("a").times(3),
            &[0, 0, 0, 0, 0, 3],
        );
    }

    #[test]
    fn a_compaction_forgets_reads_only() {
        check(
            call("a").read().times(2) + compaction() + call("a").read().times(2),
            &[0; 5],
        );
        check(call("a").times(2) + compaction() + call("a"), &[0, 0, 0, 3]);
    }

    #[test]
    fn evidence_names_each_event_and_masked_equality_lowers_confidence() {
        let found = (call("b") + call("a").times(3)).findings::<ExactRepeat>(&SETTINGS);
        assert_eq!(found[0].events.as_slice(), [1, 2, 3]);
        assert_eq!(found[0].confidence, 1.0);
        let found = (call("a") + call("a").raw("1") + call("a").raw("2"))
            .findings::<ExactRepeat>(&SETTINGS);
        assert_eq!(found[0].confidence, 0.9);
    }

    #[test]
    fn settings_that_can_never_fire_are_refused() {
        let refuses = |count, window| ExactRepeat::check(&Settings { count, window }).is_err();
        assert!(!refuses(3, 10));
        assert!(refuses(1, 10));
        assert!(refuses(11, 10));
        assert!(refuses(3, 33));
    }
}
