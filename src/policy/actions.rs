//! Choosing an action for a loop, and the decision that reports it.

use std::time::Duration;

use super::{
    agent_policy::{DetectorResults, LoopDescription},
    decision::Decision,
    loop_history::Loop,
    settings::{Settings, TrendSettings},
    trend::Trends,
};
use crate::domain::{Action, DetectorId, Evidence, Finding, Trend};

/// The action that a detector asks for.
pub(super) struct ActionChoice {
    /// The position of its finding.
    pub finding: usize,
    pub action: Action,
    pub cause: Cause,
    /// A threshold of the budget was passed too, with a weaker action.
    pub budget_cause: Option<Cause>,
    pub is_session_wide: bool,
}

/// Why a detector asks for an action.
#[derive(Clone, Copy)]
pub(super) enum Cause {
    FirstSeen,
    /// Another detector, with a weaker action, has reported the loop before.
    FoundByAnother,
    Chronic,
    /// The detector reports the next level of its ladder.
    ThresholdPassed,
    /// This share of the budget is used; 1: all of it.
    BudgetUsed(f64),
    Recurred,
    EventLimit(i32),
}

/// The strongest action that any detector asks for, if it is stronger than what was
/// reported before, or if the loop has recurred.
pub(super) fn choose_action(
    trends: &Trends,
    findings: &[(DetectorId, Finding)],
    current_loop: &Loop,
    recurred: bool,
    settings: &Settings,
) -> Option<ActionChoice> {
    let choices = findings
        .iter()
        .enumerate()
        .filter_map(|(position, (detector, finding))| {
            choice_of(
                trends,
                position,
                *detector,
                finding,
                current_loop,
                recurred,
                settings,
            )
        });
    let session_wide = choices.clone().find(|choice| choice.is_session_wide);
    // Among equal actions, one for the whole session wins.
    let mut choice = choices.max_by_key(|choice| (choice.action, choice.is_session_wide))?;
    let should_report = Some(choice.action) > current_loop.strongest_action
        || matches!(choice.cause, Cause::Recurred)
        || session_wide.is_some();
    if !choice.is_session_wide {
        choice.budget_cause = session_wide.map(|budget| budget.cause);
    }
    should_report.then_some(choice)
}

/// The action that one detector asks for.
fn choice_of(
    trends: &Trends,
    position: usize,
    detector: DetectorId,
    finding: &Finding,
    current_loop: &Loop,
    recurred: bool,
    settings: &Settings,
) -> Option<ActionChoice> {
    let escalation = settings.escalations.get(detector.index())?;
    let level = finding.level;
    let limit = match finding.action_max {
        Some(_) => 0,
        None => i32::try_from(escalation.terminate_after).unwrap_or(i32::MAX),
    };
    // Events of earlier runs and of all laps count only after a hard verdict, and not if
    // a gap ends the count.
    let event_count = if finding.consecutive {
        finding.count
    } else if current_loop.strongest_action >= Some(escalation.hard) {
        current_loop.total_events()
    } else {
        current_loop.repetitions()
    };
    let (action, cause) = if let Some(level) = level.filter(|_| escalation.precedence.session_wide)
    {
        // Each threshold of a budget is passed once, whatever loop it is merged with.
        let share = escalation.budget_share_at(level);
        (escalation.action_at(level), Cause::BudgetUsed(share))
    } else if limit > 0 && event_count >= limit {
        (Action::Terminate, Cause::EventLimit(event_count))
    } else if recurred && current_loop.may_throttle_again(escalation.soft) {
        // A loop that comes back is throttled first, then gets a stronger action.
        (escalation.soft, Cause::Recurred)
    } else if recurred {
        let action = level.map_or(escalation.hard, |level| {
            escalation
                .action_at(level)
                .max(escalation.action_after(current_loop.strongest_action))
        });
        (action, Cause::Recurred)
    } else if let Some(level) = level {
        // The detector has passed one of its own thresholds.
        let cause = match current_loop.strongest_action {
            Some(_) => Cause::ThresholdPassed,
            None => Cause::FirstSeen,
        };
        (escalation.action_at(level), cause)
    } else if current_loop.strongest_action.is_some() && trends.is_chronic(detector) {
        // No threshold was passed: the trend or another detector decides.
        (escalation.hard, Cause::Chronic)
    } else if current_loop.strongest_action.is_some() {
        (escalation.soft, Cause::FoundByAnother)
    } else {
        (escalation.soft, Cause::FirstSeen)
    };
    Some(ActionChoice {
        finding: position,
        action: finding.action_max.map_or(action, |max| action.min(max)),
        cause,
        budget_cause: None,
        is_session_wide: escalation.precedence.session_wide,
    })
}

pub(super) fn build_decision(
    current_loop: &Loop,
    results: &DetectorResults<'_>,
    LoopDescription { detector, finding }: LoopDescription<'_>,
    choice: &ActionChoice,
    trend: Option<Trend>,
    settings: &Settings,
) -> Decision {
    let others = results.findings.iter().map(|(other, _)| *other);
    Decision {
        detector,
        other_detectors: others.filter(|other| *other != detector).collect(),
        action: choice.action,
        is_session_wide: choice.is_session_wide,
        reason: describe_choice(choice),
        confidence: finding.confidence,
        loop_id: current_loop.id,
        calls: finding.calls.clone(),
        trend,
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
        refusals: 0,
    }
}

/// The action that the refused calls of a loop ask for, if it was not reported yet.
pub(super) fn choose_refusal_action(current_loop: &Loop, settings: &Settings) -> Option<Action> {
    let TrendSettings {
        refusals_escalate,
        refusals_terminate,
        ..
    } = settings.trend;
    let refusals = &current_loop.refusals;
    let is_reached = |threshold: u32| threshold != 0 && refusals.count >= threshold;
    // It took as many more calls until a longer lap was blocked. Each of its calls is refused
    // once before: until then the agent may only have tried the others.
    let lap = current_loop.lap();
    let whole_lap = refusals_escalate.max(lap).saturating_add(1);
    let of_lap = refusals_terminate.saturating_sub(lap - 1).max(whole_lap);
    let action = if is_reached(refusals_terminate.min(of_lap)) {
        Action::Terminate
    } else if is_reached(refusals_escalate) {
        Action::Escalate
    } else {
        return None;
    };
    (Some(action) > refusals.reported).then_some(action)
}

pub(super) fn build_refusal_decision(
    current_loop: &Loop,
    detector: DetectorId,
    action: Action,
    trend: Option<Trend>,
) -> Decision {
    let refusals = current_loop.refusals.count;
    let key = match action {
        Action::Terminate => "refusals_terminate",
        _ => "refusals_escalate",
    };
    let count = i32::try_from(refusals).unwrap_or(i32::MAX);
    Decision {
        detector,
        other_detectors: Vec::new(),
        action,
        is_session_wide: false,
        reason: format!("{refusals} calls of the loop were refused and asked for again (`{key}`)"),
        confidence: 1.0,
        loop_id: current_loop.id,
        calls: current_loop.signatures().into(),
        trend,
        evidence: Evidence {
            count,
            period: 1,
            similarity: 1.0,
            event_indexes: current_loop.events.iter().copied().collect(),
            excerpt: String::new(),
        },
        wasted: current_loop.counted_waste,
        retry_after: None,
        refusals,
    }
}

/// Why this action, and what else is new on the event.
fn describe_choice(choice: &ActionChoice) -> String {
    let mut reason = describe_cause(choice.cause);
    if let Some(budget_cause) = choice.budget_cause {
        reason += &format!("; {}", describe_cause(budget_cause));
    }
    reason
}

fn describe_cause(cause: Cause) -> String {
    match cause {
        Cause::FirstSeen => "first time this loop is seen".to_owned(),
        Cause::FoundByAnother => "another detector has found the loop too".to_owned(),
        Cause::Chronic => "the loop continued after the first report".to_owned(),
        Cause::ThresholdPassed => "the loop grew past its next threshold".to_owned(),
        Cause::BudgetUsed(share) if share < 1.0 => {
            let percent = (share * 100.0).round();
            format!("{percent} % of the session's budget is used")
        }
        Cause::BudgetUsed(_) => "the session's budget is used up".to_owned(),
        Cause::Recurred => "the loop ended after a report and came back".to_owned(),
        Cause::EventLimit(events) => {
            format!("the loop reached {events} events (`terminate_after`)")
        }
    }
}

/// The delay doubles with each earlier verdict on the loop.
fn throttle_delay(verdict_count: u32, settings: &Settings) -> Duration {
    let doublings = verdict_count.min(16);
    let secs = u64::from(settings.trend.throttle_secs) << doublings;
    Duration::from_secs(secs.min(u64::from(settings.trend.throttle_secs_max)))
}
