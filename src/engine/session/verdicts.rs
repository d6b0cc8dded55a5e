//! What comes of an observation: counts, trends, a verdict.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::SystemTime,
};

use super::{ObservationContext, Session, VIEW_VERDICTS_MAX};
use crate::{
    domain::{
        Action, AgentId, DetectorId, Effect, EventPosition, Observation, ObservationBody, Totals,
        UsageDelta, Verdict, VerdictId, sanitize,
    },
    engine::{EngineContext, agent::ObservationOutcome, breaker::BreakerDecision},
    policy::{Decision, PolicyOutcome},
    telemetry::Metrics,
};

/// Of a turn a verdict quotes so many characters.
const EXCERPT_CHARS_MAX: usize = 160;

impl Session {
    /// Shows an observation to the agent's detectors and says what comes of it.
    pub(super) fn run_detectors(
        &mut self,
        seen: ObservationBody,
        mut obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        let used = self.update_usage(obs.now);
        let (rules, key) = (&ctx.rules, ctx.facts.key());
        rules.evaluate_with_session(&mut obs.rule_results, used.now, key);
        let mut observation = Observation {
            at: EventPosition {
                index: obs.index,
                time: obs.time,
                progress: self.progress.count(),
                state_changes: self.progress.state_changes(),
                calls: self.progress.calls(),
                round: obs.round,
            },
            body: seen,
            usage: used,
            capacities: ctx.limits.remembered.into(),
        };
        let agent = self.agents.get_mut(obs.agent_position)?;
        let outcome = agent.observe(
            &mut observation,
            &obs.rule_results.outcomes,
            obs.cost,
            &obs.words,
            &self.profile,
        );
        ctx.metrics
            .count_capacity_evictions(&observation.capacities);
        self.count_detections(&outcome, ctx);
        let policy_outcome = *outcome.policy_outcome?;
        self.add_waste(&policy_outcome, ctx.metrics);
        let decision = policy_outcome.decision?;
        self.issue_verdict(decision, &obs, used, ctx)
    }

    /// Shows what no detector looks at but for what it used, and the rules.
    pub(super) fn run_budget_and_rules(
        &mut self,
        obs: ObservationContext<'_>,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        let applies = self.profile.looks_aside();
        applies
            .then(|| self.run_detectors(ObservationBody::Other, obs, ctx))
            .flatten()
    }

    /// What the session has used, and what it had used at the last look.
    fn update_usage(&mut self, now: SystemTime) -> UsageDelta {
        let age = now.duration_since(self.created);
        let totals = Totals {
            events: self.events.into(),
            turns: self.turns.into(),
            tokens: self.cost.tokens(),
            usd: self.cost.usd,
            // A clock that goes back must not let a bar be passed twice.
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

    /// Keeps abstentions, metrics and trends.
    fn count_detections(&mut self, outcome: &ObservationOutcome, ctx: &EngineContext) {
        for (detector, field) in &outcome.missing_fields {
            let known = |(d, f, _): &&mut (DetectorId, &str, u32)| d == detector && f == field;
            match self.abstentions.iter_mut().find(known) {
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

    /// The level of a session is the highest of its agents.
    fn update_levels(&mut self, metrics: &Metrics) {
        let mut levels = std::mem::take(&mut self.verdict_history.trend_levels);
        levels.resize(self.profile.policy.escalations.len(), None);
        for (rank, level) in (0..).map(DetectorId).zip(&mut levels) {
            let trends = self
                .active_agents()
                .filter_map(|agent| agent.policy.trend(rank));
            let after = trends.map(|trend| trend.level).max();
            if *level != after {
                metrics.adjust_trend_counts(rank, *level, after);
                *level = after;
            }
        }
        self.verdict_history.trend_levels = levels;
        if self
            .verdict_history
            .trend_levels
            .iter()
            .all(Option::is_none)
        {
            self.verdict_history.trend_levels.clear();
        }
    }

    fn add_waste(&mut self, policy_outcome: &PolicyOutcome, metrics: &Metrics) {
        let history = &mut *self.verdict_history;
        history.wasted += policy_outcome.wasted;
        history.avoidable += policy_outcome.avoidable;
        metrics.add_waste(policy_outcome.detector, policy_outcome.wasted);
    }

    /// Makes a verdict of a ruling, and hands it out.
    fn issue_verdict(
        &mut self,
        mut decision: Decision,
        obs: &ObservationContext<'_>,
        used: UsageDelta,
        ctx: &EngineContext,
    ) -> Option<Arc<Verdict>> {
        let shadow = self.profile.policy.shadow || self.verdict_history.snoozed_until.is_some();
        let agent = self.agents.get(obs.agent_position)?;
        let is_session_wide = decision.is_session_wide || agent.id.is_main();
        if decision.action == Action::Terminate
            && is_session_wide
            && !shadow
            && !ctx.breaker_allows_termination(obs)
        {
            self.verdict_history.is_termination_withheld = true;
            decision.action = Action::Warn;
            decision.reason += "; not terminated, since too many sessions would be at once";
        }
        let agent = self.agents.get_mut(obs.agent_position)?;
        let profile = &self.profile;
        decision.evidence.excerpt = sanitize::quote(obs.quote, EXCERPT_CHARS_MAX);
        let rendered = agent.render_verdict(&decision, used, obs.repetition_start, profile);
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
            shadow,
            operator: String::new(),
        };
        let effect = match verdict.terminates() {
            true => Effect::Terminated,
            false => Effect::None,
        };
        let issuer = &ctx.issuer;
        let verdict = issuer.issue(verdict, &self.labels, &profile.name, effect, obs.now);
        ctx.metrics
            .count_verdict(decision.detector, decision.action);
        if verdict.terminates() {
            ctx.metrics.count_termination(Some(decision.detector));
            if ends_session || agent.id.is_main() {
                self.verdict_history.termination = Some(verdict.clone());
            } else {
                agent.termination = Some(verdict.clone());
                self.update_levels(ctx.metrics);
            }
        }
        self.store_verdict(verdict.clone());
        Some(verdict)
    }

    /// Keeps the verdicts that a view shows or a duplicate may ask for.
    fn store_verdict(&mut self, verdict: Arc<Verdict>) {
        let history = &mut *self.verdict_history;
        history.verdicts_bytes += verdict.memory_bytes();
        history.verdicts.push_back(verdict);
        // Each is looked for among all ids: not every time.
        if history.verdicts.len() < history.retained_after_prune + 2 * VIEW_VERDICTS_MAX {
            return;
        }
        let hidden = history.verdicts.len() - VIEW_VERDICTS_MAX;
        let mut position = 0;
        history.verdicts.retain(|verdict| {
            position += 1;
            let mut indexes = verdict.event_index.iter();
            let is_retained =
                position > hidden || indexes.any(|index| self.event_ids.has_event(*index));
            history.verdicts_bytes -= if is_retained {
                0
            } else {
                verdict.memory_bytes()
            };
            is_retained
        });
        history.retained_after_prune = history.verdicts.len() - VIEW_VERDICTS_MAX;
    }

    /// Takes the session's trends out of the metrics: it is leaving.
    pub fn remove_trend_metrics(&self, metrics: &Metrics) {
        for (rank, level) in (0..)
            .map(DetectorId)
            .zip(&self.verdict_history.trend_levels)
        {
            metrics.adjust_trend_counts(rank, *level, None);
        }
    }
}

impl EngineContext<'_> {
    /// Whether the breaker lets a detector end this session.
    fn breaker_allows_termination(&self, obs: &ObservationContext<'_>) -> bool {
        let Some(settings) = &self.limits.breaker else {
            return true;
        };
        let (breaker, live) = (
            &self.tenant.breaker,
            self.tenant.live_sessions.load(Relaxed),
        );
        let was_open = breaker.is_open();
        if breaker.request_termination(settings, live, obs.now) == BreakerDecision::Allowed {
            return true;
        }
        self.metrics.count_withheld_termination();
        if !was_open {
            self.metrics.set_breaker_open(true);
            tracing::error!(
                session = ?obs.session,
                tenant = ?obs.session.tenant(),
                "the breaker has opened: detectors would end too many sessions and warn instead; \
                 look at the settings and at what agents depend on"
            );
        }
        false
    }
}
