//! What the scan found in a session.

use std::{sync::Arc, time::SystemTime};

use super::{
    call_notes::{CallNotes, NoteTaker},
    prices::PriceList,
};
use crate::{
    domain::{Action, BUDGET, Event, EventBody, Outcome, SessionView, Verdict, Waste},
    ingest::transcripts::{SessionEnd, SessionStart, TranscriptEvent},
};

/// A session of a transcript, played to its end.
pub(super) struct SessionReport {
    pub start: SessionStart,
    pub end: SessionEnd,
    pub verdicts: Vec<Arc<Verdict>>,
    pub cost: SessionCost,
    /// What its loops cost. Dollars only if the price of the session is known.
    pub wasted: Waste,
    /// What acting on the verdicts would have saved.
    pub saved: Waste,
    pub events: u64,
    pub is_terminated: bool,
    pub notes: CallNotes,
    /// The calls of a session with verdicts, for a picture.
    pub steps: Vec<CallStep>,
}

/// A call, for a picture.
#[derive(Clone, Copy)]
pub(super) struct CallStep {
    pub index: i32,
    pub failed: bool,
}

/// What a session cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SessionCost {
    /// As the agent recorded it.
    Recorded(f64),
    /// By list prices.
    Listed(f64),
    /// The price of a model, or what was used, is not known.
    Unknown,
}

impl SessionCost {
    pub fn usd(self) -> Option<f64> {
        match self {
            Self::Recorded(usd) | Self::Listed(usd) => Some(usd),
            Self::Unknown => None,
        }
    }
}

impl SessionReport {
    /// Whether a verdict asks for more than a look.
    pub fn is_looping(&self) -> bool {
        self.main_verdict().is_some()
    }

    /// The verdict about its dearest loop.
    pub fn main_verdict(&self) -> Option<&Arc<Verdict>> {
        let loops = self.verdicts.iter().filter(|verdict| {
            verdict.effective_action() >= Some(Action::Warn) && &*verdict.detector != BUDGET
        });
        loops.max_by(|a, b| {
            let dollars = a.wasted.usd.total_cmp(&b.wasted.usd);
            dollars.then(a.wasted.events.cmp(&b.wasted.events))
        })
    }

    pub fn strongest_action(&self) -> Option<Action> {
        let actions = self.verdicts.iter();
        actions
            .filter_map(|verdict| verdict.effective_action())
            .max()
    }

    pub fn time(&self) -> Option<SystemTime> {
        self.end.first_event
    }

    /// The cost of its loops; `None`: not known.
    pub fn wasted_usd(&self) -> Option<f64> {
        self.cost.usd().map(|_| self.wasted.usd)
    }
}

/// Collects what is reported of a session while it is played.
pub(super) struct SessionCollector {
    start: SessionStart,
    notes: NoteTaker,
    steps: Vec<CallStep>,
    index: i32,
    verdicts: Vec<Arc<Verdict>>,
    /// The sum of the responses; `None`: the price of one is not known.
    listed_usd: Option<f64>,
    has_recorded_responses: bool,
}

/// Calls of a picture.
const STEPS_MAX: usize = 2_000;

impl SessionCollector {
    pub fn new(start: SessionStart) -> Self {
        Self {
            start,
            notes: NoteTaker::default(),
            steps: Vec::new(),
            index: 0,
            verdicts: Vec::new(),
            listed_usd: Some(0.0),
            has_recorded_responses: true,
        }
    }

    pub fn start(&self) -> &SessionStart {
        &self.start
    }

    /// Notes an event and sets its cost. It is played next.
    pub fn observe(&mut self, item: TranscriptEvent, prices: &PriceList) -> Event {
        let TranscriptEvent { mut event, usage } = item;
        event.cost.usd = 0.0;
        for response in &usage {
            self.has_recorded_responses &= response.cost_usd.is_some();
            let usd = prices.cost_usd(response, event.time);
            self.listed_usd = self.listed_usd.zip(usd).map(|(sum, usd)| sum + usd);
            event.cost.usd += usd.unwrap_or_default();
        }
        self.notes.observe(&event);
        if let EventBody::Call(call) = &event.body
            && self.steps.len() < STEPS_MAX
        {
            self.steps.push(CallStep {
                index: self.index,
                failed: call.outcome == Some(Outcome::Error),
            });
        }
        self.index = self.index.saturating_add(1);
        event
    }

    pub fn push_verdict(&mut self, verdict: Arc<Verdict>) {
        self.verdicts.push(verdict);
    }

    pub fn finish(
        self,
        end: SessionEnd,
        view: Option<SessionView>,
        prices: &PriceList,
    ) -> SessionReport {
        let cost = self.cost(&end, prices);
        let (wasted, saved) = view
            .as_ref()
            .map(|view| (view.wasted, view.avoidable))
            .unwrap_or_default();
        // No part costs more than the whole.
        let bound = |mut waste: Waste| {
            waste.usd = waste.usd.min(cost.usd().unwrap_or_default());
            waste
        };
        let steps = if self.verdicts.is_empty() {
            Vec::new()
        } else {
            self.steps
        };
        SessionReport {
            wasted: bound(wasted),
            saved: bound(saved),
            events: end.events,
            is_terminated: view.is_some_and(|view| view.termination.is_some()),
            start: self.start,
            end,
            verdicts: self.verdicts,
            cost,
            notes: self.notes.notes,
            steps,
        }
    }

    fn cost(&self, end: &SessionEnd, prices: &PriceList) -> SessionCost {
        if let Some(usd) = end.recorded_cost_usd {
            return SessionCost::Recorded(usd);
        }
        if end.usage.is_empty() {
            return SessionCost::Unknown;
        }
        // Responses that led to no event are only in the totals of the session.
        let known =
            |usage: &crate::ingest::transcripts::ModelUsage| prices.cost_usd(usage, end.last_event);
        let total: Option<f64> = end.usage.iter().map(known).sum();
        match (self.listed_usd, total) {
            (Some(listed), Some(total)) if self.has_recorded_responses => {
                SessionCost::Recorded(listed.max(total))
            }
            (Some(listed), Some(total)) => SessionCost::Listed(listed.max(total)),
            _ => SessionCost::Unknown,
        }
    }
}
