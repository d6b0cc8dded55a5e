use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::domain::{SessionId, Verdict};

/// The verdicts of a run, by session.
#[derive(Default)]
pub(super) struct Alarms {
    by_session: HashMap<SessionId, Alarmed, foldhash::fast::RandomState>,
    /// Those that ask nobody to act.
    pub shadow_verdicts: u64,
}

/// A session that was found.
pub(super) struct Alarmed {
    pub first: Arc<Verdict>,
    pub verdicts: u64,
    pub by_detector: BTreeMap<Arc<str>, Share>,
}

/// A detector's part in a session's verdicts.
pub(super) struct Share {
    pub first_index: Option<i32>,
    pub verdicts: u64,
}

impl Alarms {
    pub fn count(&mut self, verdict: Arc<Verdict>) {
        if verdict.acted().is_none() {
            self.shadow_verdicts += 1;
            return;
        }
        let alarmed = self
            .by_session
            .entry(verdict.session.clone())
            .or_insert_with(|| Alarmed::new(&verdict));
        alarmed.count(&verdict);
    }

    pub fn of(&self, session: &SessionId) -> Option<&Alarmed> {
        self.by_session.get(session)
    }
}

impl Alarmed {
    fn new(first: &Arc<Verdict>) -> Self {
        Self {
            first: first.clone(),
            verdicts: 0,
            by_detector: BTreeMap::new(),
        }
    }

    fn count(&mut self, verdict: &Verdict) {
        self.verdicts += 1;
        for detector in std::iter::once(&verdict.detector).chain(&verdict.also) {
            let share = self.by_detector.entry(detector.clone()).or_insert(Share {
                first_index: verdict.event_index,
                verdicts: 0,
            });
            share.verdicts += 1;
        }
    }
}
