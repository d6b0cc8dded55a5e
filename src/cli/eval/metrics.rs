//! Precision, recall and the other metrics.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{
    alarms::{Alarms, SessionAlarms},
    delay::DetectionDelay,
    labels::{GroundTruth, Label},
};
use crate::{
    detect,
    domain::{Action, SessionId, SessionView, Verdict},
};

/// How well the verdicts agree with the labels. An undefined metric is `None`.
#[derive(Debug, Serialize)]
pub(super) struct EvalMetrics {
    pub events: u64,
    pub sessions: u64,
    pub bad_lines: u64,
    pub shadow_verdicts: u64,
    pub labelled: LabelledMetrics,
    pub unlabelled: UnlabelledMetrics,
    /// Every detector, including those that found nothing.
    pub detectors: BTreeMap<Arc<str>, DetectorScore>,
    /// By the part of the session id before its first `/`.
    pub sources: BTreeMap<String, SourceMetrics>,
    /// Sessions labelled no loop and found, in the order of the traces.
    pub false_alarms: Vec<FalseAlarm>,
    /// Sessions labelled a loop and not found.
    pub misses: Vec<MissedLoop>,
    /// Labelled sessions that are not in the traces, and so are not counted.
    pub missing_sessions: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct LabelledMetrics {
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
    pub precision_interval: Option<Interval>,
    pub recall: Option<f64>,
    pub recall_interval: Option<Interval>,
    pub f1: Option<f64>,
    pub delay: DetectionDelay,
}

/// The 95 % confidence interval of a share, by Wilson's score: it stays within 0 and 1,
/// also for a few sessions.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Interval {
    pub low: f64,
    pub high: f64,
}

/// The metrics of the sessions of one source.
#[derive(Debug, Serialize)]
pub(super) struct SourceMetrics {
    pub sessions: u64,
    pub found_sessions: u64,
    pub loops: u64,
    pub healthy: u64,
    #[serde(flatten)]
    pub score: Score,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct UnlabelledMetrics {
    pub sessions: u64,
    pub events: u64,
    pub found_sessions: u64,
    pub verdicts: u64,
    pub verdicts_per_1000_events: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct DetectorScore {
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
pub(super) struct MissedLoop {
    pub session_id: String,
    pub first_loop_event: Option<u32>,
    pub kind: Option<String>,
    pub why: Option<String>,
}

/// The sessions that were found, by any detector or by one.
#[derive(Default)]
struct DetectionCounts {
    loops: u64,
    healthy: u64,
    delays: Vec<i64>,
    unlabelled_verdicts: u64,
}

/// The sessions of one source.
#[derive(Default)]
struct SourceCounts {
    sessions: u64,
    found_sessions: u64,
    loops: u64,
    healthy: u64,
    detections: DetectionCounts,
}

#[derive(Default)]
struct EvalMetricsBuilder {
    events: u64,
    sessions: u64,
    loops: u64,
    healthy: u64,
    detections: DetectionCounts,
    by_detector: BTreeMap<Arc<str>, DetectionCounts>,
    by_source: BTreeMap<String, SourceCounts>,
    unlabelled: UnlabelledMetrics,
    false_alarms: Vec<FalseAlarm>,
    misses: Vec<MissedLoop>,
}

impl EvalMetrics {
    pub fn new(
        sessions: impl Iterator<Item = SessionView>,
        alarms: &Alarms,
        labels: &GroundTruth,
        bad_lines: u64,
    ) -> Self {
        let mut builder = EvalMetricsBuilder::new();
        let mut missing: BTreeMap<&SessionId, &Label> = labels.iter().collect();
        for view in sessions {
            let events = u64::from(view.events.unsigned_abs());
            builder.sessions += 1;
            builder.events += events;
            let session_alarms = alarms.get(&view.id);
            let label = missing.get(&view.id).copied();
            builder.add_to_source(&view.id, label, session_alarms);
            match missing.remove(&view.id) {
                Some(label) => builder.add_labelled(&view.id, label, session_alarms),
                None => builder.add_unlabelled(events, session_alarms),
            }
        }
        let mut metrics = builder.build();
        metrics.bad_lines = bad_lines;
        metrics.shadow_verdicts = alarms.shadow_verdicts;
        metrics.missing_sessions = missing.keys().map(|id| id.to_string()).collect();
        metrics
    }
}

impl EvalMetricsBuilder {
    fn new() -> Self {
        let names = detect::NAMES.iter();
        Self {
            by_detector: names
                .map(|name| ((*name).into(), DetectionCounts::default()))
                .collect(),
            ..Self::default()
        }
    }

    fn add_to_source(
        &mut self,
        id: &SessionId,
        label: Option<&Label>,
        alarmed: Option<&SessionAlarms>,
    ) {
        let id = id.to_string();
        let source = id.split_once('/').map_or(id.as_str(), |(source, _)| source);
        let counts = self.by_source.entry(source.to_owned()).or_default();
        counts.sessions += 1;
        counts.found_sessions += u64::from(alarmed.is_some());
        let Some(label) = label else {
            return;
        };
        if label.looping {
            counts.loops += 1;
        } else {
            counts.healthy += 1;
        }
        if let Some(alarmed) = alarmed {
            counts
                .detections
                .add_session(label, alarmed.first.event_index);
        }
    }

    fn add_labelled(&mut self, id: &SessionId, label: &Label, alarmed: Option<&SessionAlarms>) {
        let count = if label.looping {
            &mut self.loops
        } else {
            &mut self.healthy
        };
        *count += 1;
        let Some(alarmed) = alarmed else {
            if label.looping {
                self.misses.push(MissedLoop::new(id, label));
            }
            return;
        };
        if !label.looping {
            let alarm = FalseAlarm::new(&alarmed.first, label);
            self.false_alarms.push(alarm);
        }
        self.detections
            .add_session(label, alarmed.first.event_index);
        for (detector, share) in &alarmed.by_detector {
            let found = self.by_detector.entry(detector.clone()).or_default();
            found.add_session(label, share.first_index);
        }
    }

    fn add_unlabelled(&mut self, events: u64, alarmed: Option<&SessionAlarms>) {
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

    fn build(self) -> EvalMetrics {
        let Self {
            events,
            sessions,
            loops,
            healthy,
            detections,
            by_detector,
            by_source,
            mut unlabelled,
            false_alarms,
            misses,
        } = self;
        // Each detector is credited with all it found.
        let per_1000 = |verdicts| ratio(verdicts * 1_000, unlabelled.events);
        let detectors = by_detector
            .into_iter()
            .map(|(name, found)| {
                let detector_score = DetectorScore {
                    unlabelled_verdicts: found.unlabelled_verdicts,
                    verdicts_per_1000_events: per_1000(found.unlabelled_verdicts),
                    score: Score::new(found, loops, healthy),
                };
                (name, detector_score)
            })
            .collect();
        unlabelled.verdicts_per_1000_events = per_1000(unlabelled.verdicts);
        // The caller knows the rest.
        EvalMetrics {
            events,
            sessions,
            bad_lines: 0,
            shadow_verdicts: 0,
            labelled: LabelledMetrics {
                sessions: loops + healthy,
                loops,
                healthy,
                score: Score::new(detections, loops, healthy),
            },
            unlabelled,
            detectors,
            sources: by_source
                .into_iter()
                .map(|(name, counts)| (name, counts.build()))
                .collect(),
            false_alarms,
            misses,
            missing_sessions: Vec::new(),
        }
    }
}

impl SourceCounts {
    fn build(self) -> SourceMetrics {
        let Self {
            sessions,
            found_sessions,
            loops,
            healthy,
            detections,
        } = self;
        SourceMetrics {
            sessions,
            found_sessions,
            loops,
            healthy,
            score: Score::new(detections, loops, healthy),
        }
    }
}

impl Interval {
    fn new(part: u64, whole: u64) -> Option<Self> {
        /// The number of standard deviations that 95 % of a normal distribution lie within.
        const Z: f64 = 1.96;
        let share = ratio(part, whole)?;
        let n = whole as f64;
        let center = share + Z * Z / (2.0 * n);
        let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + Z * Z / n;
        Some(Self {
            low: ((center - spread) / scale).max(0.0),
            high: ((center + spread) / scale).min(1.0),
        })
    }
}

impl DetectionCounts {
    fn add_session(&mut self, label: &Label, first_index: Option<i32>) {
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
    /// The score for the detections among `loops` and `healthy` labelled sessions.
    fn new(detections: DetectionCounts, loops: u64, healthy: u64) -> Self {
        let (true_positives, false_positives) = (detections.loops, detections.healthy);
        let false_negatives = loops - true_positives;
        Self {
            true_positives,
            false_positives,
            false_negatives,
            true_negatives: healthy - false_positives,
            precision: ratio(true_positives, true_positives + false_positives),
            precision_interval: Interval::new(true_positives, true_positives + false_positives),
            recall: ratio(true_positives, loops),
            recall_interval: Interval::new(true_positives, loops),
            f1: ratio(
                2 * true_positives,
                2 * true_positives + false_positives + false_negatives,
            ),
            delay: DetectionDelay::from_delays(detections.delays),
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
            also: first.other_detectors.clone(),
            action: first.action.map(Action::name),
            event_index: first.event_index,
            pattern: first.pattern.clone(),
            kind: label.kind.clone(),
            why: label.why.clone(),
        }
    }
}

impl MissedLoop {
    fn new(id: &SessionId, label: &Label) -> Self {
        Self {
            session_id: id.to_string(),
            first_loop_event: label.first_loop_event,
            kind: label.kind.clone(),
            why: label.why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_share_is_wilsons() {
        // statsmodels.stats.proportion.proportion_confint(12, 14, method="wilson")
        let interval = Interval::new(12, 14).unwrap();
        assert!((interval.low - 0.6006).abs() < 1e-3 && (interval.high - 0.9599).abs() < 1e-3);
        let all = Interval::new(3, 3).unwrap();
        assert!(all.low > 0.4 && all.high == 1.0);
        assert!(Interval::new(0, 0).is_none());
    }
}
