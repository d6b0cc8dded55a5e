use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    alarms::{Alarmed, Alarms},
    delay::Delay,
    labels::{Label, Labels},
};
use crate::{
    detect,
    domain::{Action, SessionId, SessionView, Verdict},
};

/// How well the verdicts agree with the labels. An undefined figure is `None`.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub events: u64,
    pub sessions: u64,
    pub bad_lines: u64,
    pub shadow_verdicts: u64,
    pub labelled: Labelled,
    pub unlabelled: Unlabelled,
    /// Every detector, also those that found nothing.
    pub detectors: BTreeMap<Arc<str>, OfDetector>,
    /// Labelled no loop and found, in the order of the traces.
    pub false_alarms: Vec<FalseAlarm>,
    /// Labelled a loop and not found.
    pub misses: Vec<Miss>,
    /// Labelled and not in the traces: not counted.
    pub missing_sessions: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Labelled {
    pub sessions: u64,
    pub loops: u64,
    pub healthy: u64,
    #[serde(flatten)]
    pub score: Score,
}

#[derive(Debug, Serialize)]
pub(super) struct Score {
    pub true_positives: u64,
    pub false_positives: u64,
    pub false_negatives: u64,
    pub true_negatives: u64,
    pub precision: Option<f64>,
    pub recall: Option<f64>,
    pub f1: Option<f64>,
    pub delay: Delay,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Unlabelled {
    pub sessions: u64,
    pub events: u64,
    pub found_sessions: u64,
    pub verdicts: u64,
    pub verdicts_per_1000_events: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct OfDetector {
    #[serde(flatten)]
    pub score: Score,
    pub unlabelled_verdicts: u64,
    pub verdicts_per_1000_events: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct FalseAlarm {
    pub session_id: String,
    pub detector: Arc<str>,
    pub also: Vec<Arc<str>>,
    pub action: Option<&'static str>,
    pub event_index: Option<i32>,
    pub pattern: String,
    pub kind: Option<String>,
    pub why: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Miss {
    pub session_id: String,
    pub first_loop_event: Option<u32>,
    pub kind: Option<String>,
    pub why: Option<String>,
}

/// The labelled sessions that were found, by all detectors or by one.
#[derive(Default)]
struct Found {
    loops: u64,
    healthy: u64,
    delays: Vec<i64>,
    unlabelled_verdicts: u64,
}

/// Figures in the making.
#[derive(Default)]
struct Count {
    events: u64,
    sessions: u64,
    loops: u64,
    healthy: u64,
    found: Found,
    by_detector: BTreeMap<Arc<str>, Found>,
    unlabelled: Unlabelled,
    false_alarms: Vec<FalseAlarm>,
    misses: Vec<Miss>,
}

impl Figures {
    pub fn new(
        sessions: impl Iterator<Item = SessionView>,
        alarms: &Alarms,
        labels: &Labels,
        bad_lines: u64,
    ) -> Self {
        let mut count = Count::of_no_session();
        let mut missing: BTreeMap<&SessionId, &Label> = labels.iter().collect();
        for view in sessions {
            let events = u64::from(view.events.unsigned_abs());
            count.sessions += 1;
            count.events += events;
            let alarmed = alarms.of(&view.id);
            match missing.remove(&view.id) {
                Some(label) => count.labelled(&view.id, label, alarmed),
                None => count.unlabelled(events, alarmed),
            }
        }
        let mut figures = count.finish();
        figures.bad_lines = bad_lines;
        figures.shadow_verdicts = alarms.shadow_verdicts;
        figures.missing_sessions = missing.keys().map(|id| id.to_string()).collect();
        figures
    }
}

impl Count {
    fn of_no_session() -> Self {
        let names = detect::NAMES.iter();
        Self {
            by_detector: names
                .map(|name| ((*name).into(), Found::default()))
                .collect(),
            ..Self::default()
        }
    }

    fn labelled(&mut self, id: &SessionId, label: &Label, alarmed: Option<&Alarmed>) {
        let count = if label.looping {
            &mut self.loops
        } else {
            &mut self.healthy
        };
        *count += 1;
        let Some(alarmed) = alarmed else {
            if label.looping {
                self.misses.push(Miss::new(id, label));
            }
            return;
        };
        if !label.looping {
            let alarm = FalseAlarm::new(&alarmed.first, label);
            self.false_alarms.push(alarm);
        }
        self.found.count(label, alarmed.first.event_index);
        for (detector, share) in &alarmed.by_detector {
            let found = self.by_detector.entry(detector.clone()).or_default();
            found.count(label, share.first_index);
        }
    }

    fn unlabelled(&mut self, events: u64, alarmed: Option<&Alarmed>) {
        self.unlabelled.sessions += 1;
        self.unlabelled.events += events;
        let Some(alarmed) = alarmed else {
            return;
        };
        self.unlabelled.found_sessions += 1;
        self.unlabelled.verdicts += alarmed.verdicts;
        for (detector, share) in &alarmed.by_detector {
            let found = self.by_detector.entry(detector.clone()).or_default();
            found.unlabelled_verdicts += share.verdicts;
        }
    }

    fn finish(self) -> Figures {
        let Self {
            events,
            sessions,
            loops,
            healthy,
            found,
            by_detector,
            mut unlabelled,
            false_alarms,
            misses,
        } = self;
        let per_1000 = |verdicts| ratio(verdicts * 1_000, unlabelled.events);
        let of_detector = |(name, found): (Arc<str>, Found)| {
            let of = OfDetector {
                unlabelled_verdicts: found.unlabelled_verdicts,
                verdicts_per_1000_events: per_1000(found.unlabelled_verdicts),
                score: Score::new(found, loops, healthy),
            };
            (name, of)
        };
        let detectors = by_detector.into_iter().map(of_detector).collect();
        unlabelled.verdicts_per_1000_events = per_1000(unlabelled.verdicts);
        Figures {
            events,
            sessions,
            bad_lines: 0,
            shadow_verdicts: 0,
            labelled: Labelled {
                sessions: loops + healthy,
                loops,
                healthy,
                score: Score::new(found, loops, healthy),
            },
            unlabelled,
            detectors,
            false_alarms,
            misses,
            missing_sessions: Vec::new(),
        }
    }
}

impl Found {
    fn count(&mut self, label: &Label, first_index: Option<i32>) {
        if !label.looping {
            self.healthy += 1;
            return;
        }
        self.loops += 1;
        if let (Some(began), Some(index)) = (label.first_loop_event, first_index) {
            self.delays.push(i64::from(index) - i64::from(began));
        }
    }
}

impl Score {
    /// Of `loops` and `healthy` sessions, those found.
    fn new(found: Found, loops: u64, healthy: u64) -> Self {
        let (right, wrong) = (found.loops, found.healthy);
        let missed = loops - right;
        Self {
            true_positives: right,
            false_positives: wrong,
            false_negatives: missed,
            true_negatives: healthy - wrong,
            precision: ratio(right, right + wrong),
            recall: ratio(right, loops),
            f1: ratio(2 * right, 2 * right + wrong + missed),
            delay: Delay::of(found.delays),
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl FalseAlarm {
    fn new(first: &Verdict, label: &Label) -> Self {
        Self {
            session_id: first.session.to_string(),
            detector: first.detector.clone(),
            also: first.also.clone(),
            action: first.action.map(Action::name),
            event_index: first.event_index,
            pattern: first.pattern.clone(),
            kind: label.kind.clone(),
            why: label.why.clone(),
        }
    }
}

impl Miss {
    fn new(id: &SessionId, label: &Label) -> Self {
        Self {
            session_id: id.to_string(),
            first_loop_event: label.first_loop_event,
            kind: label.kind.clone(),
            why: label.why.clone(),
        }
    }
}
