//! The policy of one agent: merges the findings of an event into one loop and
//! decides whether to issue a verdict, and with which action.

use std::{cmp::Reverse, time::SystemTime};

use serde::{Deserialize, Serialize};

use super::{
    actions::{
        Cause, build_decision, build_refusal_decision, choose_action, choose_refusal_action,
    },
    decision::Decision,
    loop_history::{LoopHistory, compute_loop_id},
    settings::Settings,
    trend::Trends,
    trend_history::PackedSample,
};
use crate::domain::{
    Action, AgentId, Capacity, DetectorId, EventPosition, Finding, LazyBox, LoopId, Sig, Trend,
    Waste, serde_time,
};

/// Decides about the findings in one agent of one session.
#[derive(Default, Serialize, Deserialize)]
pub struct AgentPolicy {
    #[serde(with = "serde_time::option")]
    previous_time: Option<SystemTime>,
    /// Not allocated until a detector finds something.
    state: LazyBox<PolicyState>,
}

#[derive(Default, Serialize, Deserialize)]
struct PolicyState {
    trends: Trends,
    /// Frozen apart from the rest, because it is saved more often.
    #[serde(skip)]
    loops: LoopHistory,
    /// By detector: the index of the event from which its alerts pass again. Empty
    /// until the first verdict.
    alerts_muted_until: Vec<i32>,
    /// The latest alert that was deferred.
    deferred_alert: Option<Box<Decision>>,
}

/// The results of the detectors on an event.
pub struct DetectorResults<'a> {
    pub agent: &'a AgentId,
    pub at: EventPosition,
    /// The detectors that ran, with a match or without, as bits.
    pub checked: u64,
    pub findings: &'a [(DetectorId, Finding)],
    /// The cost of the agent so far, this event included.
    pub totals: Waste,
    /// The number of loops that are remembered.
    pub loop_capacity: &'a Capacity,
}

impl DetectorResults<'_> {
    fn cited_signatures(&self) -> impl Iterator<Item = Sig> {
        let findings = self.findings.iter();
        findings.flat_map(|(_, finding)| finding.cited_signatures())
    }
}

/// The detector and the finding that describe a loop in its verdict.
#[derive(Clone, Copy)]
pub(super) struct LoopDescription<'a> {
    pub detector: DetectorId,
    pub finding: &'a Finding,
}

impl<'a> LoopDescription<'a> {
    fn of((detector, finding): &'a (DetectorId, Finding)) -> Self {
        Self {
            detector: *detector,
            finding,
        }
    }
}

/// A call that was refused.
pub struct Refusal {
    pub call: Sig,
    /// The loop whose verdict names the call, or that contains an equal call.
    pub known_loop: Option<LoopId>,
    /// Its path, if the agent has done the same to it before.
    pub path: Option<Sig>,
    pub index: i32,
    /// The session's progress count.
    pub progress: u32,
    pub cost: Waste,
    /// The cost of the agent so far, this event included.
    pub totals: Waste,
}

pub struct PolicyOutcome {
    /// At most one per event.
    pub decision: Option<Decision>,
    /// The cost of the loop that this event adds.
    pub wasted: Waste,
    /// The part of it after a verdict: following the verdict would have saved it.
    pub avoidable: Waste,
    /// The detector that describes the loop.
    pub detector: DetectorId,
}

impl PolicyOutcome {
    /// A deferred alert: this event adds no cost to a loop.
    fn without_loop(decision: Decision) -> Self {
        Self {
            detector: decision.detector,
            decision: Some(decision),
            wasted: Waste::default(),
            avoidable: Waste::default(),
        }
    }
}

impl AgentPolicy {
    /// Decides about an event. `totals_before` returns the agent's cost before an
    /// event.
    pub fn decide(
        &mut self,
        results: &DetectorResults<'_>,
        settings: &Settings,
        totals_before: impl FnOnce(i32) -> Waste,
    ) -> Option<Box<PolicyOutcome>> {
        let previous_time = self.previous_time.replace(results.at.time);
        if self.state.get().is_none() && results.findings.is_empty() {
            return None;
        }
        let state = self.state.get_or_insert_default();
        let outcome = state.decide(results, previous_time, settings, totals_before);
        outcome.map(Box::new)
    }

    /// Counts a refused call. `None`: it belongs to no loop that was reported.
    pub fn record_refusal(
        &mut self,
        refusal: &Refusal,
        settings: &Settings,
    ) -> Option<PolicyOutcome> {
        let state = self.state.get_mut()?;
        let current_loop = state.loops.find_reported_mut(refusal)?;
        let detector = current_loop.detector?;
        let wasted = current_loop.add_refusal(
            refusal.index,
            refusal.progress,
            refusal.cost,
            refusal.totals,
        );
        let decision = choose_refusal_action(current_loop, settings).map(|action| {
            current_loop.refusals.reported = Some(action);
            current_loop.record_verdict(action, detector);
            let trend = state.trends.get(detector);
            build_refusal_decision(current_loop, detector, action, trend)
        });
        Some(PolicyOutcome {
            decision,
            wasted,
            avoidable: wasted,
            detector,
        })
    }

    /// Whether the loop is active.
    pub fn is_loop_active(&self, id: LoopId) -> bool {
        let state = self.state.get();
        state.is_some_and(|state| state.loops.is_active(id))
    }

    /// Ends the loop with this signature, because another text begins: if the loop
    /// is found again, it has recurred.
    pub fn end_text_run(&mut self, signature: Sig) {
        if let Some(state) = self.state.get_mut() {
            state.loops.end_with_signature(signature);
        }
    }

    /// Returns the events of reported loops that have ended since the last call.
    /// They do not count for any detector again.
    #[inline]
    pub fn take_consumed_events(&mut self) -> Vec<i32> {
        match self.state.get_mut() {
            Some(state) => state.loops.take_consumed_events(),
            None => Vec::new(),
        }
    }

    /// The loops so far, for a frozen session. `None`: there are none.
    pub fn loops(&self) -> Option<&LoopHistory> {
        self.state.get().map(|state| &state.loops)
    }

    /// Replaces the loops by those of a frozen session.
    pub fn restore_loops(&mut self, loops: LoopHistory) {
        self.state.get_or_insert_default().loops = loops;
    }

    /// Ends all loops and clears their counts. The verdicts on them are kept.
    pub fn reset(&mut self) {
        if let Some(state) = self.state.get_mut() {
            state.loops.end_all();
        }
    }

    /// Lets terminations that were reported but not enforced be issued again.
    pub fn clear_unenforced_terminations(&mut self) {
        if let Some(state) = self.state.get_mut() {
            state.loops.clear_unenforced_terminations();
        }
    }

    /// Whether a reported loop is active.
    #[inline]
    pub fn is_looping(&self) -> bool {
        let state = self.state.get();
        state.is_some_and(|state| state.loops.is_looping())
    }

    pub fn trend(&self, detector: DetectorId) -> Option<Trend> {
        self.state.get()?.trends.get(detector)
    }

    /// The detectors that have a trend, as bits.
    pub fn trend_bits(&self) -> u64 {
        self.state.get().map_or(0, |state| state.trends.bits())
    }

    /// The trends after an event, while they are remembered.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &PackedSample> {
        let states = self.state.get().into_iter();
        states.flat_map(move |state| state.trends.samples(index))
    }

    /// Raises `levels`, one for each event from `first` on, to the strongest trend
    /// after that event.
    pub fn raise_levels(&self, first: i32, levels: &mut [f64]) {
        if let Some(state) = self.state.get() {
            state.trends.raise_levels(first, levels);
        }
    }

    /// The latest loop that contains the event.
    pub fn find_loop_with_event(&self, index: i32) -> Option<LoopId> {
        self.state.get()?.loops.find_loop_with_event(index)
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.state.heap_bytes(|state| {
            state.trends.heap_bytes()
                + state.loops.heap_bytes()
                + state.alerts_muted_until.capacity() * size_of::<i32>()
                + state.deferred_alert.as_deref().map_or(0, Decision::bytes)
        })
    }
}

impl PolicyState {
    fn decide(
        &mut self,
        results: &DetectorResults<'_>,
        previous_time: Option<SystemTime>,
        settings: &Settings,
        totals_before: impl FnOnce(i32) -> Waste,
    ) -> Option<PolicyOutcome> {
        // Update the trends. Without a finding, loops end or a deferred alert is due.
        let found = found_bits(results.findings);
        self.trends
            .update(results.at, previous_time, results.checked, found, settings);
        let Some(description) = select_description(results.findings, settings) else {
            self.loops.end_unmatched(results.checked & !found, None);
            let decision = self.take_deferred_alert(results.at.index, settings)?;
            return Some(PolicyOutcome::without_loop(decision));
        };
        let LoopDescription { detector, finding } = description;
        // Find the loop, or add it.
        let (position, is_new) = self.find_or_insert_loop(finding, results);
        self.loops
            .end_unmatched(results.checked & !found, Some(position));
        let current_loop = self.loops.get_mut(position)?;

        // Count the finding and its cost.
        let starts_run = is_new || (!current_loop.is_active && !finding.extends);
        let recurred = starts_run && current_loop.strongest_action.is_some();
        if starts_run {
            // A text in progress has no event and no cost yet.
            let first = finding.events.first();
            current_loop.start_run(first.map_or(results.totals, |first| totals_before(*first)));
        }
        current_loop.add_finding(finding);
        current_loop.detectors |= found;
        let new_waste = current_loop.count_new_waste(results.totals);
        let avoidable = current_loop
            .strongest_action
            .map_or(Waste::default(), |_| new_waste);

        // Choose an action. An alert of a muted detector is deferred.
        let choice = choose_action(
            &self.trends,
            results.findings,
            current_loop,
            recurred,
            settings,
        );
        let mut decision = choice.and_then(|choice| {
            let is_first_alert =
                matches!(choice.cause, Cause::FirstSeen) && choice.action == Action::Alert;
            let is_muted = is_first_alert
                && self.alerts_muted_until.get(detector.index()) > Some(&results.at.index);
            // A budget's action is described by the budget, whatever loop it meets.
            let description = match results.findings.get(choice.finding) {
                Some(found) if choice.is_session_wide => LoopDescription::of(found),
                _ => description,
            };
            let mut decision = build_decision(
                current_loop,
                results,
                description,
                &choice,
                self.trends.get(description.detector),
                settings,
            );
            if is_muted {
                decision.reason += "; reported after the detector's cooldown";
                self.deferred_alert = Some(Box::new(decision));
                return None;
            }
            current_loop.record_verdict(choice.action, detector);
            Some(decision)
        });

        // A decision starts the cooldown; without one a deferred alert may be due.
        match &decision {
            Some(_) => self.start_cooldown(detector, results.at.index, settings),
            None => decision = self.take_deferred_alert(results.at.index, settings),
        }
        Some(PolicyOutcome {
            decision,
            wasted: new_waste,
            avoidable,
            detector,
        })
    }

    /// The position of the loop that the findings belong to, and whether it is new.
    fn find_or_insert_loop(
        &mut self,
        finding: &Finding,
        results: &DetectorResults<'_>,
    ) -> (usize, bool) {
        let is_cited = |sig: &Sig| results.cited_signatures().any(|cited| cited == *sig);
        let (position, is_new) = match self.loops.find_active(is_cited) {
            Some(position) => (position, false),
            // The id is a hash, and a loop that goes on does not need it.
            None => {
                let id = compute_loop_id(results.agent, &finding.loop_key);
                let extending = extending_bits(results.findings);
                match self.loops.find(id, extending, is_cited) {
                    Some(position) => (position, false),
                    None => (self.loops.insert(id, results.loop_capacity), true),
                }
            }
        };
        self.loops
            .add_signatures(position, results.cited_signatures());
        (position, is_new)
    }

    /// The deferred alert, when its detector is no longer muted and if its loop is
    /// still active.
    fn take_deferred_alert(&mut self, index: i32, settings: &Settings) -> Option<Decision> {
        let alert = self.deferred_alert.as_ref()?;
        let (detector, action) = (alert.detector, alert.action);
        let active_loop = self.loops.find_active_mut(alert.loop_id);
        let Some(current_loop) =
            active_loop.filter(|current_loop| current_loop.strongest_action.is_none())
        else {
            self.deferred_alert = None;
            return None;
        };
        if self.alerts_muted_until.get(detector.index()) > Some(&index) {
            return None;
        }
        current_loop.record_verdict(action, detector);
        self.start_cooldown(detector, index, settings);
        self.deferred_alert.take().map(|decision| *decision)
    }

    /// Mutes a detector's alerts for a number of events, longer if it is chronic.
    fn start_cooldown(&mut self, detector: DetectorId, index: i32, settings: &Settings) {
        let cooldown = f64::from(settings.trend.cooldown);
        let events = match self.trends.get(detector) {
            Some(trend) if self.trends.is_chronic(detector) => {
                (cooldown * 4f64.powf(trend.ema)).ceil()
            }
            _ => cooldown,
        };
        self.alerts_muted_until
            .resize(settings.escalations.len(), i32::MIN);
        if let Some(muted_until) = self.alerts_muted_until.get_mut(detector.index()) {
            *muted_until = index.saturating_add(events as i32);
        }
    }
}

/// The detectors with a finding, as bits.
fn found_bits(findings: &[(DetectorId, Finding)]) -> u64 {
    let detectors = findings.iter().map(|(detector, _)| detector);
    detectors.fold(0, |bits, detector| bits | 1 << detector.0)
}

/// The detectors whose finding extends an earlier one, as bits.
fn extending_bits(findings: &[(DetectorId, Finding)]) -> u64 {
    let extending = findings.iter().filter(|(_, finding)| finding.extends);
    extending.fold(0, |bits, (detector, _)| bits | 1 << detector.0)
}

/// The finding that describes the loop: the one with most distinct calls, among
/// equals that of the detector of lowest rank.
fn select_description<'a>(
    findings: &'a [(DetectorId, Finding)],
    settings: &Settings,
) -> Option<LoopDescription<'a>> {
    findings
        .iter()
        .max_by_key(|(detector, finding)| {
            let escalation = settings.escalations.get(detector.index());
            let rank = escalation.map(|escalation| escalation.precedence.rank);
            (finding.calls.len(), Reverse((rank, *detector)))
        })
        .map(LoopDescription::of)
}
