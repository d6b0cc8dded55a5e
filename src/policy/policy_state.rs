use std::time::{Duration, SystemTime};

use super::{
    decision::Decision,
    loop_history::{Loop, LoopHistory, compute_loop_id},
    settings::Settings,
    trend::Trends,
    trend_history::PackedSample,
};
use crate::domain::{
    Action, AgentId, Capacity, DetectorId, EventPosition, Evidence, Finding, LadderRung, LoopId,
    Sig, Trend, Waste,
};

/// What the detectors have found in one agent of one session.
#[derive(Default)]
pub(super) struct PolicyState {
    trends: Trends,
    loops: LoopHistory,
    /// By rank: the index of the event after which its alerts pass again. Empty
    /// until there was one.
    alerts_muted_until: Vec<i32>,
    /// The latest alert that was held back.
    deferred_alert: Option<Box<Decision>>,
}

/// What the detectors made of an event.
pub struct DetectorResults<'a> {
    pub agent: &'a AgentId,
    pub at: EventPosition,
    /// The detectors that looked, found or not, as bits.
    pub checked: u64,
    pub findings: &'a [(DetectorId, Finding)],
    /// What the session has cost, this event included.
    pub totals: Waste,
    /// For the loops that are remembered.
    pub loop_capacity: &'a Capacity,
}

/// What came of it.
pub struct PolicyOutcome {
    /// At most one an event.
    pub decision: Option<Decision>,
    /// What the loop cost with this event that was not counted before.
    pub wasted: Waste,
    /// That part of it which came after a verdict: acting would have saved it.
    pub avoidable: Waste,
    /// The detector that describes the loop.
    pub detector: DetectorId,
}

/// What is asked for, by one of the detectors.
struct ActionChoice {
    action: Action,
    cause: Cause,
    is_session_wide: bool,
}

/// Why a finding is worth an action.
enum Cause {
    FirstSeen,
    Chronic,
    /// The detector says itself that it has become worse.
    ThresholdPassed,
    /// A share of what the session may use is used, or all of it.
    BudgetUsed(LadderRung),
    Recurred,
    EventLimit(i32),
}

impl PolicyState {
    /// `last` is when the event before was made, and `began` tells what the
    /// session had cost before an event.
    pub fn decide(
        &mut self,
        results: &DetectorResults<'_>,
        previous_time: Option<SystemTime>,
        settings: &Settings,
        totals_before: impl FnOnce(i32) -> Waste,
    ) -> Option<PolicyOutcome> {
        let found = found_bits(results.findings);
        let at = (results.at, previous_time);
        self.trends.update(at, results.checked, found, settings);
        let Some((detector, finding)) = select_description(results.findings, settings) else {
            self.loops.end_unmatched(results.checked & !found, None);
            let decision = self.take_deferred_alert(results.at.index, settings)?;
            return Some(PolicyOutcome {
                detector: decision.detector,
                decision: Some(decision),
                wasted: Waste::default(),
                avoidable: Waste::default(),
            });
        };
        let id = compute_loop_id(results.agent, &finding.loop_key);
        let cited = |sig: &Sig| {
            let mut findings = results.findings.iter();
            findings.any(|(_, finding)| finding.cited_signatures().any(|cited| cited == *sig))
        };
        let extending = extending_bits(results.findings);
        let known = self.loops.find(id, extending, cited);
        let position = known.unwrap_or_else(|| self.loops.insert(id, results.loop_capacity));
        let cites = results
            .findings
            .iter()
            .flat_map(|(_, finding)| finding.cited_signatures());
        self.loops.add_signatures(position, cites);
        self.loops
            .end_unmatched(results.checked & !found, Some(position));
        let current_loop = self.loops.get_mut(position)?;

        let starts_run = known.is_none() || (!current_loop.is_active && !finding.extends);
        let recurred = starts_run && current_loop.strongest_action.is_some();
        if starts_run {
            // A text that is being written has cost nothing yet.
            let first = finding.events.first();
            current_loop.start_run(first.map_or(results.totals, |first| totals_before(*first)));
        }
        current_loop.add_finding(finding);
        current_loop.detectors |= found;
        let wasted = current_loop.waste_at(results.totals);
        let new_waste = wasted.saturating_sub(current_loop.counted_waste);
        current_loop.counted_waste = wasted;
        let avoidable = current_loop
            .strongest_action
            .map_or(Waste::default(), |_| new_waste);

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
            let trends = &self.trends;
            let decision = build_decision(
                current_loop,
                results,
                detector,
                finding,
                &choice,
                trends,
                settings,
            );
            if is_muted {
                self.deferred_alert = Some(Box::new(decision));
                return None;
            }
            current_loop.record_verdict(choice.action);
            Some(decision)
        });
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

    /// The alert that was held back, once its time has come and if its loop
    /// still stands.
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
        current_loop.record_verdict(action);
        self.start_cooldown(detector, index, settings);
        self.deferred_alert.take().map(|decision| *decision)
    }

    /// Holds a detector's alerts back for a while, longer when it is chronic.
    fn start_cooldown(&mut self, detector: DetectorId, index: i32, settings: &Settings) {
        let events = f64::from(settings.trend.cooldown);
        let events = match self.trends.get(detector) {
            Some(trend) if self.trends.is_chronic(detector) => {
                (events * 4f64.powf(trend.ema)).ceil()
            }
            _ => events,
        };
        self.alerts_muted_until
            .resize(settings.escalations.len(), i32::MIN);
        if let Some(muted_until) = self.alerts_muted_until.get_mut(detector.index()) {
            *muted_until = index.saturating_add(events as i32);
        }
    }

    /// Another text begins: a loop of this name stood in an earlier one, and
    /// comes back in this.
    pub fn end_text_run(&mut self, name: Sig) {
        self.loops.end_with_signature(name);
    }

    /// The events of reported loops that have ended since the last question: they
    /// count for no detector again.
    pub fn take_consumed_events(&mut self) -> Vec<i32> {
        self.loops.take_consumed_events()
    }

    /// Counts start anew: no loop stands. What was said is remembered.
    pub fn reset(&mut self) {
        self.loops.end_all();
    }

    /// Terminations that were only reported may be said again, and meant.
    pub fn clear_unenforced_terminations(&mut self) {
        self.loops.clear_unenforced_terminations();
    }

    /// A loop that was reported stands.
    pub fn is_looping(&self) -> bool {
        self.loops.is_looping()
    }

    pub fn trend(&self, detector: DetectorId) -> Option<Trend> {
        self.trends.get(detector)
    }

    /// The trends after an event, while they are remembered.
    pub fn samples(&self, index: i32) -> impl Iterator<Item = &PackedSample> {
        self.trends.samples(index)
    }

    /// Raises `levels`, one for each event from `first` on, to the strongest
    /// trend after it.
    pub fn raise_levels(&self, first: i32, levels: &mut [f64]) {
        self.trends.raise_levels(first, levels);
    }

    /// The latest loop that cites the event.
    pub fn find_loop_with_event(&self, index: i32) -> Option<LoopId> {
        self.loops.find_loop_with_event(index)
    }

    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.trends.heap_bytes()
            + self.loops.heap_bytes()
            + self.alerts_muted_until.capacity() * size_of::<i32>()
            + self.deferred_alert.as_deref().map_or(0, Decision::bytes)
    }
}

/// The detectors that found something.
fn found_bits(findings: &[(DetectorId, Finding)]) -> u64 {
    let detectors = findings.iter().map(|(detector, _)| detector);
    detectors.fold(0, |bits, detector| bits | 1 << detector.0)
}

/// The detectors whose latest run goes on, unbroken.
fn extending_bits(findings: &[(DetectorId, Finding)]) -> u64 {
    let go_on = findings.iter().filter(|(_, finding)| finding.extends);
    go_on.fold(0, |bits, (detector, _)| bits | 1 << detector.0)
}

/// The finding that cites most distinct calls, else the one of lowest rank.
fn select_description<'a>(
    findings: &'a [(DetectorId, Finding)],
    settings: &Settings,
) -> Option<(DetectorId, &'a Finding)> {
    let rank = |detector: DetectorId| {
        let ladder = settings.escalations.get(detector.index());
        std::cmp::Reverse((ladder.map(|ladder| ladder.precedence.rank), detector))
    };
    findings
        .iter()
        .max_by_key(|(detector, finding)| (finding.calls.len(), rank(*detector)))
        .map(|(detector, finding)| (*detector, finding))
}

/// The strongest action that any of the detectors asks for, where it is more
/// than was said already, or the loop has come back.
fn choose_action(
    trends: &Trends,
    findings: &[(DetectorId, Finding)],
    current_loop: &Loop,
    recurred: bool,
    settings: &Settings,
) -> Option<ActionChoice> {
    let choice_for = |detector: DetectorId, bar: Option<LadderRung>| {
        let ladder = settings.escalations.get(detector.index())?;
        let limit = i32::try_from(ladder.terminate_after).unwrap_or(i32::MAX);
        // Runs and laps add up, but only for who was told so hard before.
        let event_count = if current_loop.strongest_action >= Some(ladder.hard) {
            current_loop.total_events()
        } else {
            current_loop.repetitions()
        };
        let (action, cause) = if limit > 0 && event_count >= limit {
            (Action::Terminate, Cause::EventLimit(event_count))
        } else if recurred && current_loop.may_throttle_again(ladder.soft) {
            (ladder.soft, Cause::Recurred)
        } else if recurred {
            let action = bar.map_or(ladder.hard, |bar| {
                ladder
                    .action_at(bar)
                    .max(ladder.action_after(current_loop.strongest_action))
            });
            (action, Cause::Recurred)
        } else if let Some(bar) = bar {
            let cause = match current_loop.strongest_action {
                _ if ladder.precedence.session_wide => Cause::BudgetUsed(bar),
                Some(_) => Cause::ThresholdPassed,
                None => Cause::FirstSeen,
            };
            (ladder.action_at(bar), cause)
        } else if current_loop.strongest_action.is_some() && trends.is_chronic(detector) {
            (ladder.hard, Cause::Chronic)
        } else {
            (ladder.soft, Cause::FirstSeen)
        };
        Some(ActionChoice {
            action,
            cause,
            is_session_wide: ladder.precedence.session_wide,
        })
    };
    let choices = findings
        .iter()
        .filter_map(|(detector, finding)| choice_for(*detector, finding.rung));
    let always_reports = choices.clone().any(|choice| choice.is_session_wide);
    // Of two that ask for the same, the one that is of the whole session.
    let choice = choices.max_by_key(|choice| (choice.action, choice.is_session_wide))?;
    let should_report = Some(choice.action) > current_loop.strongest_action
        || matches!(choice.cause, Cause::Recurred)
        || always_reports;
    should_report.then_some(choice)
}

fn build_decision(
    current_loop: &Loop,
    results: &DetectorResults<'_>,
    detector: DetectorId,
    finding: &Finding,
    choice: &ActionChoice,
    trends: &Trends,
    settings: &Settings,
) -> Decision {
    let others = results.findings.iter().map(|(other, _)| *other);
    Decision {
        detector,
        other_detectors: others.filter(|other| *other != detector).collect(),
        action: choice.action,
        is_session_wide: choice.is_session_wide,
        reason: describe_cause(&choice.cause),
        confidence: finding.confidence,
        loop_id: current_loop.id,
        calls: finding.calls.clone(),
        trend: trends.get(detector),
        evidence: Evidence {
            count: finding.count,
            period: finding.period,
            similarity: finding.similarity,
            event_indexes: current_loop.events.iter().copied().collect(),
            excerpt: String::new(),
        },
        wasted: current_loop.counted_waste,
        retry_after: (choice.action == Action::Throttle)
            .then(|| throttle_delay(current_loop.verdict_count, settings)),
    }
}

fn describe_cause(cause: &Cause) -> String {
    match cause {
        Cause::FirstSeen => "first time this loop is seen".to_owned(),
        Cause::Chronic => {
            "it went on after it was reported, until the trend was chronic".to_owned()
        }
        Cause::ThresholdPassed => "it went on after it was reported, past its next bar".to_owned(),
        Cause::BudgetUsed(LadderRung::Soft) => {
            "the share of its budget at which to warn is used".to_owned()
        }
        Cause::BudgetUsed(LadderRung::Hard | LadderRung::Final) => {
            "its budget is used up".to_owned()
        }
        Cause::Recurred => "it had been reported, ended, and came back".to_owned(),
        Cause::EventLimit(events) => format!("it holds {events} events, as many as end it"),
    }
}

/// The wait grows with every verdict that was given on the loop before.
fn throttle_delay(verdict_count: u32, settings: &Settings) -> Duration {
    let doublings = verdict_count.min(16);
    let secs = u64::from(settings.trend.throttle_secs) << doublings;
    Duration::from_secs(secs.min(u64::from(settings.trend.throttle_secs_max)))
}
