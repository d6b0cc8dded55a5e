//! The result of a scan for one session.

use std::{sync::Arc, time::SystemTime};

use super::{
    call_notes::{CallNotes, NoteTaker},
    prices::PriceList,
};
use crate::{
    cli::waste::WasteTotals,
    domain::{Action, BUDGET, Event, SessionView, Verdict, Waste},
    ingest::transcripts::{ModelUsage, SessionEnd, SessionStart, TranscriptEvent},
    pb,
};

/// A session of a transcript, played to its end.
pub(super) struct SessionReport {
    pub start: SessionStart,
    pub end: SessionEnd,
    pub verdicts: Vec<Arc<Verdict>>,
    /// What the detector of its dearest loop looks for.
    pub rule: Option<&'static str>,
    pub cost: SessionCost,
    /// The cost of its loops. Dollars only if the price of the session is known.
    pub wasted: WasteTotals,
    /// The cost that acting on the verdicts would have saved.
    pub saved: WasteTotals,
    pub notes: CallNotes,
    /// A model without a price.
    pub unpriced_model: Option<Arc<str>>,
    /// The events around its dearest loop, if they were asked for.
    pub timeline: LoopTimeline,
}

/// The events around a loop.
#[derive(Default)]
pub(super) struct LoopTimeline {
    pub entries: Vec<pb::TimelineEntry>,
    /// The verdicts on these events.
    pub verdicts: Vec<Arc<Verdict>>,
}

/// The cost of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SessionCost {
    /// In dollars, as the agent recorded it.
    Recorded(f64),
    /// In dollars, by list prices.
    Listed(f64),
    /// The price of a model, or the usage, is not known.
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
    /// Whether a verdict has a stronger action than ALERT.
    pub fn is_looping(&self) -> bool {
        self.main_verdict().is_some()
    }

    /// The verdict about its dearest loop.
    pub fn main_verdict(&self) -> Option<&Arc<Verdict>> {
        let loops = self
            .verdicts
            .iter()
            .filter(|verdict| is_about_loop(verdict));
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
        self.cost.usd().map(|_| self.wasted.cost_usd)
    }
}

fn is_about_loop(verdict: &Verdict) -> bool {
    verdict.effective_action() >= Some(Action::Warn) && &*verdict.detector != BUDGET
}

/// Collects what is reported of a session while it is played.
pub(super) struct SessionCollector {
    start: SessionStart,
    notes: NoteTaker,
    verdicts: Vec<Arc<Verdict>>,
    /// The waste of the parts that ended with a termination.
    wasted: Waste,
    saved: Waste,
    /// The sum of the responses; `None`: the price of one is not known.
    listed_usd: Option<f64>,
    has_recorded_responses: bool,
    timeline: LoopTimeline,
    /// The cost of the dearest loop so far.
    dearest: (f64, i64),
    /// The verdicts since the session began or was reset.
    recent_verdicts: Vec<Arc<Verdict>>,
    /// Events until the timeline of the dearest loop is taken; `None`: it was.
    events_to_timeline: Option<u32>,
}

/// Events after a verdict that a timeline shows, of the 32 calls that an engine remembers.
const EVENTS_AFTER_VERDICT: u32 = 8;

impl SessionCollector {
    pub fn new(start: SessionStart) -> Self {
        Self {
            start,
            notes: NoteTaker::default(),
            verdicts: Vec::new(),
            wasted: Waste::default(),
            saved: Waste::default(),
            listed_usd: Some(0.0),
            has_recorded_responses: true,
            timeline: LoopTimeline::default(),
            dearest: (0.0, 0),
            recent_verdicts: Vec::new(),
            events_to_timeline: None,
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
        event
    }

    pub fn push_verdict(&mut self, verdict: Arc<Verdict>) {
        self.recent_verdicts.push(verdict.clone());
        let cost = (verdict.wasted.usd, verdict.wasted.events);
        if is_about_loop(&verdict) && cost >= self.dearest {
            self.dearest = cost;
            self.events_to_timeline = Some(EVENTS_AFTER_VERDICT);
        }
        self.verdicts.push(verdict);
    }

    /// Whether the timeline of the dearest loop is to be taken after this event.
    pub fn is_timeline_due(&mut self) -> bool {
        let events = self.events_to_timeline;
        self.events_to_timeline = events.map(|events| events.saturating_sub(1));
        events == Some(0)
    }

    /// The last chance to take the timeline, before the session ends or is reset.
    pub fn is_timeline_missing(&self) -> bool {
        self.events_to_timeline.is_some()
    }

    pub fn set_timeline(&mut self, entries: Vec<pb::TimelineEntry>) {
        self.events_to_timeline = None;
        self.timeline = LoopTimeline {
            entries,
            verdicts: self.recent_verdicts.clone(),
        };
    }

    /// A part of the session is over: a verdict ended it.
    pub fn end_part(&mut self, view: &SessionView) {
        self.wasted += view.wasted;
        self.saved += view.avoidable;
        self.recent_verdicts.clear();
    }

    pub fn finish(self, end: SessionEnd, prices: &PriceList) -> SessionReport {
        let cost = self.cost(&end, prices);
        // No part costs more than the whole.
        let bound = |mut waste: Waste| {
            waste.usd = waste.usd.min(cost.usd().unwrap_or_default());
            WasteTotals::from(waste)
        };
        let unpriced = end.usage.iter().filter(|usage| {
            !usage.model.is_empty() && prices.cost_usd(usage, end.last_event).is_none()
        });
        let unpriced_model = match cost {
            SessionCost::Unknown => unpriced.map(|usage| usage.model.clone()).next(),
            SessionCost::Recorded(_) | SessionCost::Listed(_) => None,
        };
        SessionReport {
            wasted: bound(self.wasted),
            saved: bound(self.saved),
            start: self.start,
            end,
            verdicts: self.verdicts,
            rule: None,
            cost,
            notes: self.notes.notes,
            unpriced_model,
            timeline: self.timeline,
        }
    }

    fn cost(&self, end: &SessionEnd, prices: &PriceList) -> SessionCost {
        if let Some(usd) = end.recorded_cost_usd {
            return SessionCost::Recorded(usd);
        }
        if end.usage.is_empty() {
            return SessionCost::Unknown;
        }
        // A long response has another price than two short ones, so each has its own.
        let known = |usage: &ModelUsage| prices.cost_usd(usage, end.last_event);
        let others: Option<f64> = end.other_responses.iter().map(known).sum();
        let mut others_recorded = end.other_responses.iter();
        let is_recorded = self.has_recorded_responses
            && others_recorded.all(|response| response.cost_usd.is_some());
        match self.listed_usd.zip(others) {
            Some((events, others)) if is_recorded => SessionCost::Recorded(events + others),
            Some((events, others)) => SessionCost::Listed(events + others),
            None => SessionCost::Unknown,
        }
    }
}
