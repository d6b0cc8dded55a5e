//! Running the detectors on an observation: counts, trends, a verdict.

use std::{sync::Arc, time::SystemTime};

use super::{Session, VIEW_VERDICTS_MAX, verdict_history::WithheldTermination};
use crate::{
    detect::CallText,
    domain::{
        Action, AgentId, CallCheck, Cost, DetectorId, Effect, EventPosition, Observation,
        ObservationBody, SessionId, Sig, Standing, TextRepetition, Totals, UsageDelta, Verdict,
        VerdictId, sanitize,
    },
    engine::{EngineContext, RecordOutcome, agent::ObservationOutcome},
    facts::PlannedCall,
    policy::{Decision, PolicyOutcome},
    rules::RuleOutcomes,
    telemetry::{Metrics, WorkPart},
};

/// The characters of a turn that a verdict quotes.
const EXCERPT_CHARS_MAX: usize = 160;

/// The event that the detectors of an agent are run on, beside the observation's body.
pub(in crate::engine) struct ObservationContext<'a> {
    pub session: &'a SessionId,
    pub agent_position: usize,
    pub index: i32,
    /// The event's own time, or else its arrival.
    pub time: SystemTime,
    pub now: SystemTime,
    pub round: Option<Sig>,
    pub cost: Cost,
    pub words: CallText<'a>,
    /// The text to quote: a turn, or the unit that it repeats.
    pub quote: &'a str,
    pub rule_results: RuleOutcomes<'a>,
    /// The character at which a text begins to repeat itself.
    pub repetition_start: u64,
    /// The text is in progress; there is no event yet.
    pub is_partial: bool,
    /// The signature of the call, if the event is one and its arguments are known.
    pub call: Option<Sig>,
    /// The directory of the call; `None`: where the agent works.
    pub directory: Option<Sig>,
}

impl<'a> ObservationContext<'a> {
    pub fn new(session: &'a SessionId, agent_position: usize, index: i32, now: SystemTime) -> Self {
        Self {
            session,
            agent_position,
            index,
            time: now,
            now,
            round: None,
            cost: Cost::default(),
            words: CallText::default(),
            quote: "",
            rule_results: RuleOutcomes::default(),
            repetition_start: 0,
            is_partial: false,
            call: None,
            directory: None,
        }
    }

    pub fn with_repetition(self, repeated: &'a TextRepetition) -> Self {
        Self {
            quote: &repeated.unit,
            repetition_start: repeated.start_char,
            ..self
        }
    }
}

/// Whether the verdict stops a text in progress: a BREAK or a stronger action.
pub(super) fn stops_text(verdict: &Arc<Verdict>) -> bool {
    verdict.effective_action() >= Some(Action::Break)
}

/// The verdict with the stronger action, also in shadow mode; the later of equals.
pub(super) fn stronger_verdict(
    earlier: Option<Arc<Verdict>>,
    later: Option<Arc<Verdict>>,
) -> Option<Arc<Verdict>> {
    match (&earlier, &later) {
        (Some(before), Some(after)) if after.action < before.action => earlier,
        _ => later.or(earlier),
    }
}

impl Session {
    /// Runs the agent's detectors on an observation. Returns the verdict, if any.
    pub(super) fn run_detectors(
        &mut self,
        body: ObservationBody,
        mut obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        // Evaluate the rules that need the session's totals.
        let used = self.update_usage(obs.now);
        let (rules, key) = (&ctx.rules, ctx.facts.key());
        rules.evaluate_with_session(&mut obs.rule_results, used.now, key);
        if obs.rule_results.is_work_limited() {
            ctx.metrics.count_work_limited(WorkPart::Rules);
        }
        // Run the detectors.
        let mut observation = Observation {
            at: EventPosition {
                index: obs.index,
                time: obs.time,
                progress: self.progress.count(),
                state_changes: self.progress.state_changes(),
                calls: self.progress.calls(),
                round: obs.round,
            },
            body,
            usage: used,
            world_moves: self.progress.world_moves(),
            new_results: self.progress.new_results(),
            capacities: crate::domain::Capacities::default(),
        };
        let is_one_of_several = self.agents.len() > 1;
        let agent = self.agents.get_mut(obs.agent_position)?;
        let outcome = agent.observe(
            &mut observation,
            &obs.rule_results.outcomes,
            obs.cost,
            &obs.words,
            &self.profile,
        );
        // Count what they found, and decide.
        if is_one_of_several && agent.history.has_new_result_since(obs.index - 1) {
            self.progress.record_new_result();
        }
        ctx.metrics
            .count_capacity_evictions(&observation.capacities);
        self.count_detections(&outcome, ctx);
        let policy_outcome = *outcome.policy_outcome?;
        self.add_waste(&policy_outcome, ctx.metrics);
        let decision = policy_outcome.decision?;
        self.issue_verdict(decision, &obs, used, ctx)
    }

    /// Runs only the budget and the rules, on an event that no other detector uses.
    pub(super) fn run_budget_and_rules(
        &mut self,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        if !self.profile.has_budget_or_rules() {
            return None;
        }
        self.run_detectors(ObservationBody::Other, obs, ctx)
    }

    /// The action in force for an agent after an event; drops those that no longer are.
    pub(super) fn update_standing(&mut self, position: usize) -> Option<Standing> {
        let progress = self.progress.count();
        let agent = self.agents.get_mut(position)?;
        let standing = agent.standing.get_mut()?;
        standing.update(progress, &agent.policy);
        if standing.is_empty() {
            agent.standing.clear();
        }
        self.standing(position)
    }

    /// The action in force for an agent. There is none while the session is snoozed.
    pub(super) fn standing(&self, position: usize) -> Option<Standing> {
        if self.verdict_history.snoozed_until.is_some() {
            return None;
        }
        let agent = self.agents.get(position)?;
        let standing = agent.standing.get()?;
        standing.current(self.progress.count(), &agent.policy)
    }

    /// The answer to the end of a turn, with the action in force for its agent.
    pub fn add_standing(&mut self, outcome: RecordOutcome, id: &AgentId) -> RecordOutcome {
        let position = self.agents.iter().position(|agent| agent.id == *id);
        let standing = position.and_then(|position| self.update_standing(position));
        outcome.with_standing(standing)
    }

    /// The strongest action in force for the agents.
    pub(super) fn strongest_standing(&self) -> Option<Standing> {
        let history = &*self.verdict_history;
        if let Some(verdict) = &history.termination {
            return Standing::of_termination(verdict);
        }
        let standings = (0..self.agents.len()).filter_map(|position| self.standing(position));
        standings.max_by_key(|standing| standing.action)
    }

    /// Whether a call of an agent would be refused.
    pub fn check_call(&self, id: &AgentId, call: Option<PlannedCall>) -> CallCheck {
        let position = self.agents.iter().position(|agent| agent.id == *id);
        let agent = position.and_then(|position| self.agents.get(position));
        let agent_termination = agent.and_then(|agent| agent.termination.as_ref());
        let termination = self.verdict_history.termination.as_ref();
        if let Some(verdict) = termination.or(agent_termination) {
            return CallCheck::terminated(verdict.clone());
        }
        let Some(standing) = position.and_then(|position| self.standing(position)) else {
            return CallCheck::default();
        };
        let checked = agent.zip(call).and_then(|(agent, call)| {
            let progress = self.progress.count();
            let directory = agent.other_directory(call.directory);
            let standing = agent.standing.get()?;
            standing.check((call.call, directory), progress, &agent.policy)
        });
        CallCheck {
            action: checked.as_ref().map(|checked| checked.action),
            verdict: checked.and_then(|checked| checked.verdict),
            standing: Some(standing),
        }
    }

    /// The totals now, and when the detectors last ran.
    pub(super) fn update_usage(&mut self, now: SystemTime) -> UsageDelta {
        let age = now.duration_since(self.created);
        let totals = Totals {
            events: self.events.into(),
            turns: self.turns.into(),
            tokens: self.cost.tokens(),
            usd: self.cost.usd,
            // A clock that goes back must not let a threshold be passed twice.
            secs: age
                .map_or(0, |age| age.as_secs())
                .max(self.last_checked_totals.secs),
        };
        let before = std::mem::replace(&mut self.last_checked_totals, totals);
        UsageDelta {
            before,
            now: totals,
        }
    }

    /// Updates abstentions, metrics and trends.
    fn count_detections(&mut self, outcome: &ObservationOutcome, ctx: &EngineContext) {
        for (detector, field) in &outcome.missing_fields {
            let mut known = self.abstentions.iter_mut();
            match known.find(|(d, f, _)| d == detector && f == field) {
                Some((_, _, events)) => *events = events.saturating_add(1),
                None => {
                    self.abstentions.reserve_exact(1);
                    self.abstentions.push((*detector, field, 1));
                }
            }
        }
        for detector in &outcome.matched_detectors {
            ctx.metrics.count_detection(*detector);
        }
        if !outcome.matched_detectors.is_empty() || !self.verdict_history.trend_levels.is_empty() {
            self.update_levels(ctx.metrics);
        }
    }

    /// Adds a thawed session to the trend metrics.
    pub fn add_trend_metrics(&mut self, metrics: &Metrics) {
        let mut agents = self.agents.iter();
        if agents.any(|agent| agent.policy.loops().is_some()) {
            self.update_levels(metrics);
        }
    }

    /// Updates the trend metrics: the level of a session is the highest of its
    /// agents.
    pub(super) fn update_levels(&mut self, metrics: &Metrics) {
        let mut levels = std::mem::take(&mut self.verdict_history.trend_levels);
        levels.resize(self.profile.policy.escalations.len(), None);
        let trend_bits = self
            .active_agents()
            .fold(0, |bits, agent| bits | agent.policy.trend_bits());
        for (detector, level) in (0..).map(DetectorId).zip(&mut levels) {
            // Most detectors have no trend and had none.
            if level.is_none() && trend_bits & 1 << detector.0 == 0 {
                continue;
            }
            let trends = self
                .active_agents()
                .filter_map(|agent| agent.policy.trend(detector));
            let after = trends.map(|trend| trend.level).max();
            if *level != after {
                metrics.adjust_trend_counts(detector, *level, after);
                *level = after;
            }
        }
        if levels.iter().all(Option::is_none) {
            levels.clear();
        }
        self.verdict_history.trend_levels = levels;
    }

    pub(super) fn add_waste(&mut self, policy_outcome: &PolicyOutcome, metrics: &Metrics) {
        let history = &mut *self.verdict_history;
        history.wasted += policy_outcome.wasted;
        history.avoidable += policy_outcome.avoidable;
        metrics.add_waste(policy_outcome.detector, policy_outcome.wasted);
    }

    /// Turns a termination of the session into a warning if the breaker is open. A session
    /// that was warned in this way and went on for as many events again is terminated,
    /// whichever of its loops goes on: otherwise other sessions that open the breaker
    /// would protect it for ever. A budget is the operator's own limit and was announced by
    /// a warning; it is reported once, so withholding it would lift it.
    fn apply_breaker(
        &mut self,
        decision: &mut Decision,
        obs: &ObservationContext<'_>,
        ctx: &EngineContext,
    ) {
        let agent = self.agents.get(obs.agent_position);
        let ends_session =
            decision.is_session_wide || agent.is_some_and(|agent| agent.id.is_main());
        if decision.action != Action::Terminate || !ends_session {
            return;
        }
        let withheld = self.verdict_history.withheld_termination;
        let is_enforced = decision.is_session_wide
            || withheld.is_some_and(|withheld| self.events >= withheld.enforced_from);
        let breaker = &ctx.tenant.breaker;
        if is_enforced || breaker.allows_termination(obs.session, obs.now, ctx) {
            return;
        }
        let loop_events = i32::try_from(decision.evidence.event_indexes.len()).unwrap_or(i32::MAX);
        // Another loop does not postpone what a first one began.
        let enforced_from = self.events.saturating_add(loop_events.max(1));
        self.verdict_history
            .withheld_termination
            .get_or_insert(WithheldTermination {
                loop_id: decision.loop_id,
                enforced_from,
            });
        decision.action = Action::Warn;
        decision.reason += "; not terminated: the breaker is open";
    }

    /// Whether verdicts are only reported.
    fn is_shadow(&self) -> bool {
        self.profile.policy.shadow || self.verdict_history.snoozed_until.is_some()
    }

    /// Builds a verdict from a decision, issues it, and applies a termination.
    pub(super) fn issue_verdict(
        &mut self,
        mut decision: Decision,
        obs: &ObservationContext<'_>,
        used: UsageDelta,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        // A verdict that is not acted on counts for no breaker.
        let shadow = self.is_shadow() || ctx.is_replay;
        if !shadow {
            self.apply_breaker(&mut decision, obs, ctx);
        }
        // Render the texts.
        let agent = self.agents.get_mut(obs.agent_position)?;
        let profile = &self.profile;
        decision.evidence.excerpt = sanitize::quote(obs.quote, EXCERPT_CHARS_MAX);
        let rendered = agent.render_verdict(&decision, obs, used, profile, ctx.facts);
        // Build the verdict. It is durable once the store has written it.
        let ends_session = decision.is_session_wide && decision.action == Action::Terminate;
        let verdict = Verdict {
            id: VerdictId(0),
            session: obs.session.clone(),
            agent: if ends_session {
                AgentId::default()
            } else {
                agent.id.clone()
            },
            time: obs.time,
            event_index: (!obs.is_partial).then_some(obs.index),
            action: Some(decision.action),
            detector: profile.detector_name(decision.detector),
            other_detectors: decision
                .other_detectors
                .iter()
                .map(|d| profile.detector_name(*d))
                .collect(),
            pattern: rendered.pattern,
            reason: decision.reason,
            confidence: decision.confidence,
            correction: rendered.correction,
            loop_id: Some(decision.loop_id),
            members: rendered.members,
            trend: decision.trend,
            evidence: decision.evidence,
            wasted: decision.wasted,
            retry_after: decision.retry_after,
            durable: false,
            is_foreign: false,
            shadow,
            operator: String::new(),
        };
        // Issue it.
        let effect = if verdict.terminates() {
            Effect::Terminated
        } else {
            Effect::None
        };
        let (labels, name) = (&self.labels, &profile.name);
        let verdict = ctx.issuer.issue(verdict, labels, name, effect, obs.now);
        ctx.metrics
            .count_verdict(decision.detector, decision.action);
        // Apply a termination.
        if verdict.terminates() {
            ctx.metrics.count_termination(Some(decision.detector));
            if ends_session || agent.id.is_main() {
                self.verdict_history.termination = Some(verdict.clone());
            } else {
                agent.termination = Some(verdict.clone());
                self.update_levels(ctx.metrics);
            }
        } else if !verdict.shadow {
            let progress = self.progress.count();
            let standing = agent.standing.get_or_insert_default();
            standing.add(&verdict, (&decision.calls, obs.directory), progress);
        }
        self.store_verdict(verdict.clone());
        Some(verdict)
    }

    /// Stores a verdict, and drops those that neither a view nor the answer to a
    /// duplicate needs.
    fn store_verdict(&mut self, verdict: Arc<Verdict>) {
        let history = &mut *self.verdict_history;
        history.verdicts_bytes += verdict.memory_bytes();
        history.verdicts.push_back(verdict);
        // A prune looks up every verdict among the event ids, so it is not done
        // every time.
        if history.verdicts.len() < history.retained_after_prune + 2 * VIEW_VERDICTS_MAX {
            return;
        }
        let hidden = history.verdicts.len() - VIEW_VERDICTS_MAX;
        let mut position = 0;
        history.verdicts.retain(|verdict| {
            position += 1;
            let is_retained = position > hidden
                || verdict
                    .event_index
                    .is_some_and(|index| self.event_ids.has_event(index));
            if !is_retained {
                history.verdicts_bytes -= verdict.memory_bytes();
            }
            is_retained
        });
        history.retained_after_prune = history.verdicts.len() - VIEW_VERDICTS_MAX;
    }

    /// Removes the session from the trend metrics.
    pub fn remove_trend_metrics(&self, metrics: &Metrics) {
        let levels = &self.verdict_history.trend_levels;
        for (detector, level) in (0..).map(DetectorId).zip(levels) {
            metrics.adjust_trend_counts(detector, *level, None);
        }
    }
}
