//! The counts and the summary of a replay.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Serialize, Serializer};

use crate::{
    cli::{trace::player::TracePlayer, waste::WasteTotals},
    domain::{Action, SessionStatus, Verdict, Waste},
};

/// The verdicts of a run by detector and action.
#[derive(Debug, Default)]
pub(super) struct ReplayCounts {
    by_detector: BTreeMap<Arc<str>, CountsByAction>,
    strongest_action: Option<Action>,
}

/// Verdicts by action.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CountsByAction([u64; Action::ALL.len()]);

impl ReplayCounts {
    pub fn record(&mut self, verdict: &Verdict) {
        self.strongest_action = self.strongest_action.max(verdict.effective_action());
        let Some(action) = verdict.action else {
            return;
        };
        match self.by_detector.get_mut(&verdict.detector) {
            Some(counts) => counts.add(action, 1),
            None => {
                let mut counts = CountsByAction::default();
                counts.add(action, 1);
                self.by_detector.insert(verdict.detector.clone(), counts);
            }
        }
    }

    /// The strongest action, without shadow verdicts.
    pub fn strongest_action(&self) -> Option<Action> {
        self.strongest_action
    }

    pub fn by_detector(&self) -> impl Iterator<Item = (&str, CountsByAction)> {
        let counts = self.by_detector.iter();
        counts.map(|(detector, counts)| (&**detector, *counts))
    }

    pub fn by_action(&self) -> CountsByAction {
        let mut all = CountsByAction::default();
        for (_, counts) in self.by_detector() {
            for (action, count) in counts.iter() {
                all.add(action, count);
            }
        }
        all
    }
}

impl CountsByAction {
    fn add(&mut self, action: Action, count: u64) {
        self.0[action as usize] += count;
    }

    pub fn get(self, action: Action) -> u64 {
        self.0[action as usize]
    }

    pub fn total(self) -> u64 {
        self.0.iter().sum()
    }

    /// The actions with a count above 0, weakest first.
    pub fn iter(self) -> impl Iterator<Item = (Action, u64)> {
        let counts = Action::ALL.into_iter().zip(self.0);
        counts.filter(|(_, count)| *count > 0)
    }
}

/// Uses the names that actions have in the API.
impl Serialize for CountsByAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(action, count)| {
            let name = format!("ACTION_{}", action.name().to_ascii_uppercase());
            (name, count)
        }))
    }
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ReplaySummary {
    /// Accepted events: no duplicates, and none after a termination.
    pub events: u64,
    pub sessions: u64,
    pub bad_lines: u64,
    pub verdicts: ReplayVerdictTotals,
    /// Sessions with a verdict.
    pub looping_sessions: u64,
    pub terminated_sessions: u64,
    /// The cost of all loops.
    pub wasted: WasteTotals,
    /// The part of `wasted` that acting on the verdicts would have saved.
    pub saved: WasteTotals,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ReplayVerdictTotals {
    pub total: u64,
    pub by_detector: BTreeMap<Arc<str>, u64>,
    pub by_action: CountsByAction,
}

impl ReplaySummary {
    pub fn new(player: &TracePlayer, counts: &ReplayCounts, bad_lines: u64) -> Self {
        let by_action = counts.by_action();
        let by_detector = counts.by_detector.iter();
        let mut summary = Self {
            bad_lines,
            verdicts: ReplayVerdictTotals {
                total: by_action.total(),
                by_detector: by_detector
                    .map(|(name, n)| (name.clone(), n.total()))
                    .collect(),
                by_action,
            },
            ..Self::default()
        };
        let (mut wasted, mut saved) = (Waste::default(), Waste::default());
        for (view, looping) in player.sessions() {
            summary.sessions += 1;
            summary.events += u64::from(view.events.unsigned_abs());
            summary.looping_sessions += u64::from(looping);
            summary.terminated_sessions += u64::from(view.status == SessionStatus::Terminated);
            wasted += view.wasted;
            saved += view.avoidable;
        }
        summary.wasted = wasted.into();
        summary.saved = saved.into();
        summary
    }
}
