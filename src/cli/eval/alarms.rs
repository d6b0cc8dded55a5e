//! The verdicts of a run by session and detector.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::domain::{SessionId, Verdict};

/// The verdicts of a run by session.
#[derive(Default)]
pub(super) struct Alarms {
    by_session: HashMap<SessionId, SessionAlarms, foldhash::fast::RandomState>,
    /// Shadow verdicts, which do not count as alarms.
    pub shadow_verdicts: u64,
}

/// The verdicts of a session.
pub(super) struct SessionAlarms {
    pub first: Arc<Verdict>,
    pub verdicts: u64,
    pub by_detector: BTreeMap<Arc<str>, DetectorAlarms>,
}

/// The verdicts of a session in which a detector took part.
pub(super) struct DetectorAlarms {
    pub first_index: Option<i32>,
    pub verdicts: u64,
}

impl Alarms {
    pub fn record(&mut self, verdict: Arc<Verdict>) {
        if verdict.effective_action().is_none() {
            self.shadow_verdicts += 1;
            return;
        }
        let session_alarms = self
            .by_session
            .entry(verdict.session.clone())
            .or_insert_with(|| SessionAlarms::new(&verdict));
        session_alarms.record(&verdict);
    }

    pub fn get(&self, session: &SessionId) -> Option<&SessionAlarms> {
        self.by_session.get(session)
    }
}

impl SessionAlarms {
    fn new(first: &Arc<Verdict>) -> Self {
        Self {
            first: first.clone(),
            verdicts: 0,
            by_detector: BTreeMap::new(),
        }
    }

    fn record(&mut self, verdict: &Verdict) {
        self.verdicts += 1;
        for detector in std::iter::once(&verdict.detector).chain(&verdict.other_detectors) {
            let detector_alarms =
                self.by_detector
                    .entry(detector.clone())
                    .or_insert(DetectorAlarms {
                        first_index: verdict.event_index,
                        verdicts: 0,
                    });
            detector_alarms.verdicts += 1;
        }
    }
}
