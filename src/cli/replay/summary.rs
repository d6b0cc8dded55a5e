use std::{collections::BTreeMap, sync::Arc};

use serde::{Serialize, Serializer};

use crate::{
    cli::trace::player::Player,
    domain::{Action, Status, Verdict, Waste},
};

/// The verdicts of a run, counted.
#[derive(Debug, Default)]
pub(super) struct Tally {
    by_detector: BTreeMap<Arc<str>, Counts>,
    strongest: Option<Action>,
}

/// Verdicts by action.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts([u64; Action::ALL.len()]);

impl Tally {
    pub fn count(&mut self, verdict: &Verdict) {
        self.strongest = self.strongest.max(verdict.acted());
        let Some(action) = verdict.action else {
            return;
        };
        match self.by_detector.get_mut(&verdict.detector) {
            Some(counts) => counts.add(action, 1),
            None => {
                let mut counts = Counts::default();
                counts.add(action, 1);
                self.by_detector.insert(verdict.detector.clone(), counts);
            }
        }
    }

    /// What the strongest verdict asks for, those in shadow mode apart.
    pub fn strongest(&self) -> Option<Action> {
        self.strongest
    }

    pub fn by_detector(&self) -> impl Iterator<Item = (&str, Counts)> {
        let counts = self.by_detector.iter();
        counts.map(|(detector, counts)| (&**detector, *counts))
    }

    pub fn by_action(&self) -> Counts {
        let mut all = Counts::default();
        for (_, counts) in self.by_detector() {
            for (action, count) in counts.iter() {
                all.add(action, count);
            }
        }
        all
    }
}

impl Counts {
    fn add(&mut self, action: Action, count: u64) {
        self.0[action as usize] += count;
    }

    pub fn of(self, action: Action) -> u64 {
        self.0[action as usize]
    }

    pub fn total(self) -> u64 {
        self.0.iter().sum()
    }

    /// The actions that were asked for, weakest first.
    pub fn iter(self) -> impl Iterator<Item = (Action, u64)> {
        let counts = Action::ALL.into_iter().zip(self.0);
        counts.filter(|(_, count)| *count > 0)
    }
}

/// By the names that actions have in the API.
impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = |action: Action| format!("ACTION_{}", action.name().to_ascii_uppercase());
        serializer.collect_map(self.iter().map(|(action, count)| (name(action), count)))
    }
}

/// What came of a run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    /// That were accepted: no duplicates, nothing after a termination.
    pub events: u64,
    pub sessions: u64,
    pub bad_lines: u64,
    pub verdicts: Verdicts,
    /// Sessions with a verdict.
    pub looping_sessions: u64,
    pub terminated_sessions: u64,
    /// What the loops have cost.
    pub wasted: Sum,
    /// What of it acting on the verdicts would have saved.
    pub saved: Sum,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Verdicts {
    pub total: u64,
    pub by_detector: BTreeMap<Arc<str>, u64>,
    pub by_action: Counts,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sum {
    pub events: i64,
    pub tokens: i64,
    pub cost_usd: f64,
}

impl From<Waste> for Sum {
    fn from(waste: Waste) -> Self {
        let Waste {
            events,
            tokens,
            usd,
        } = waste;
        // To a billionth: beyond it stands what binary fractions cannot say.
        let rounded = (usd * 1e9).round() / 1e9;
        // JSON has no infinity.
        let cost_usd = if rounded.is_finite() {
            rounded
        } else {
            usd.min(f64::MAX)
        };
        Self {
            events,
            tokens,
            cost_usd,
        }
    }
}

impl Summary {
    pub fn new(player: &Player, tally: &Tally, bad_lines: u64) -> Self {
        let by_action = tally.by_action();
        let by_detector = tally.by_detector.iter();
        let mut summary = Self {
            bad_lines,
            verdicts: Verdicts {
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
            summary.terminated_sessions += u64::from(view.status == Status::Terminated);
            wasted += view.wasted;
            saved += view.avoidable;
        }
        summary.wasted = wasted.into();
        summary.saved = saved.into();
        summary
    }
}
