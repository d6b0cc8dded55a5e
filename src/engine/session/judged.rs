//! What comes of an observation: counts, trends, a verdict.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::SystemTime,
};

use super::{Session, Shown, VERDICTS_SHOWN};
use crate::{
    domain::{
        Action, AgentId, DetectorId, Effect, Moment, Observation, Seen, Totals, Used, Verdict,
        VerdictId, text,
    },
    engine::{Shared, agent::Outcome, breaker::Leave},
    policy::{Judgement, Ruling},
    telemetry::Metrics,
};

/// Of a turn a verdict quotes so many characters.
const EXCERPT_CHARS_MAX: usize = 160;

impl Session {
    /// Shows an observation to the agent's detectors and says what comes of it.
    pub(super) fn show(
        &mut self,
        seen: Seen,
        mut shown: Shown<'_>,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        let used = self.use_up(shown.now);
        let (rules, key) = (&shared.rules, shared.facts.key());
        rules.look_again(&mut shown.rules, used.now, key);
        let mut observation = Observation {
            at: Moment {
                index: shown.index,
                time: shown.time,
                progress: self.progress.count(),
                moves: self.progress.moves(),
                calls: self.progress.calls(),
                round: shown.round,
            },
            seen,
            used,
            rooms: shared.limits.remembered.into(),
        };
        let agent = self.agents.get_mut(shown.agent)?;
        let outcome = agent.observe(
            &mut observation,
            &shown.rules.sights,
            shown.cost,
            &shown.words,
            &self.profile,
        );
        shared.metrics.forgot(&observation.rooms);
        self.count(&outcome, shared);
        let judgement = *outcome.judgement?;
        self.waste(&judgement, shared.metrics);
        let ruling = judgement.ruling?;
        self.pronounce(ruling, &shown, used, shared)
    }

    /// Shows what no detector looks at but for what it used, and the rules.
    pub(super) fn show_aside(&mut self, shown: Shown<'_>, shared: &Shared) -> Option<Arc<Verdict>> {
        let looks = self.profile.looks_aside();
        looks
            .then(|| self.show(Seen::Other, shown, shared))
            .flatten()
    }

    /// What the session has used, and what it had used at the last look.
    fn use_up(&mut self, now: SystemTime) -> Used {
        let age = now.duration_since(self.created);
        let totals = Totals {
            events: self.events.into(),
            turns: self.turns.into(),
            tokens: self.cost.tokens(),
            usd: self.cost.usd,
            // A clock that goes back must not let a bar be passed twice.
            secs: age.map_or(0, |age| age.as_secs()).max(self.looked_at.secs),
        };
        let before = std::mem::replace(&mut self.looked_at, totals);
        Used {
            before,
            now: totals,
        }
    }

    /// Keeps abstentions, metrics and trends.
    fn count(&mut self, outcome: &Outcome, shared: &Shared) {
        for (detector, field) in &outcome.abstained {
            let known = |(d, f, _): &&mut (DetectorId, &str, u32)| d == detector && f == field;
            match self.abstentions.iter_mut().find(known) {
                Some((_, _, events)) => *events = events.saturating_add(1),
                None => {
                    self.abstentions.reserve_exact(1);
                    self.abstentions.push((*detector, field, 1));
                }
            }
        }
        for detector in &outcome.found {
            shared.metrics.detection(*detector);
        }
        if !outcome.found.is_empty() || !self.story.levels.is_empty() {
            self.update_levels(shared.metrics);
        }
    }

    /// The level of a session is the highest of its agents.
    fn update_levels(&mut self, metrics: &Metrics) {
        let mut levels = std::mem::take(&mut self.story.levels);
        levels.resize(self.profile.policy.ladders.len(), None);
        for (rank, level) in (0..).map(DetectorId).zip(&mut levels) {
            let trends = self.acting().filter_map(|agent| agent.judge.trend(rank));
            let after = trends.map(|trend| trend.level).max();
            if *level != after {
                metrics.trend(rank, *level, after);
                *level = after;
            }
        }
        self.story.levels = levels;
        if self.story.levels.iter().all(Option::is_none) {
            self.story.levels.clear();
        }
    }

    fn waste(&mut self, judgement: &Judgement, metrics: &Metrics) {
        let story = &mut *self.story;
        story.wasted += judgement.wasted;
        story.avoidable += judgement.avoidable;
        metrics.wasted(judgement.describes, judgement.wasted);
    }

    /// Makes a verdict of a ruling, and hands it out.
    fn pronounce(
        &mut self,
        mut ruling: Ruling,
        shown: &Shown<'_>,
        used: Used,
        shared: &Shared,
    ) -> Option<Arc<Verdict>> {
        let shadow = self.profile.policy.shadow || self.story.snoozed_until.is_some();
        let agent = self.agents.get(shown.agent)?;
        let whole = ruling.of_session || agent.id.is_main();
        if ruling.action == Action::Terminate && whole && !shadow && !shared.may_end(shown) {
            self.story.is_spared = true;
            ruling.action = Action::Warn;
            ruling.reason += "; not terminated, since too many sessions would be at once";
        }
        let agent = self.agents.get_mut(shown.agent)?;
        let profile = &self.profile;
        ruling.evidence.excerpt = text::quoted(shown.text, EXCERPT_CHARS_MAX);
        let told = agent.tell(&ruling, used, shown.began, profile);
        let ends_all = ruling.of_session && ruling.action == Action::Terminate;
        let verdict = Verdict {
            id: VerdictId(0),
            session: shown.session.clone(),
            agent: if ends_all {
                AgentId::default()
            } else {
                agent.id.clone()
            },
            time: shown.time,
            event_index: (!shown.unfinished).then_some(shown.index),
            action: Some(ruling.action),
            detector: profile.detector(ruling.detector),
            also: ruling.also.iter().map(|d| profile.detector(*d)).collect(),
            pattern: told.pattern,
            reason: ruling.reason,
            confidence: ruling.confidence,
            correction: told.correction,
            loop_id: Some(ruling.loop_id),
            members: told.members,
            trend: ruling.trend,
            evidence: ruling.evidence,
            wasted: ruling.wasted,
            retry_after: ruling.retry_after,
            durable: false,
            shadow,
            operator: String::new(),
        };
        let effect = match verdict.terminates() {
            true => Effect::Terminated,
            false => Effect::None,
        };
        let outbox = &shared.outbox;
        let verdict = outbox.issue(verdict, &self.labels, &profile.name, effect, shown.now);
        shared.metrics.verdict(ruling.detector, ruling.action);
        if verdict.terminates() {
            shared.metrics.terminated(Some(ruling.detector));
            if ends_all || agent.id.is_main() {
                self.story.termination = Some(verdict.clone());
            } else {
                agent.terminated = Some(verdict.clone());
                self.update_levels(shared.metrics);
            }
        }
        self.keep(verdict.clone());
        Some(verdict)
    }

    /// Keeps the verdicts that a view shows or a duplicate may ask for.
    fn keep(&mut self, verdict: Arc<Verdict>) {
        let story = &mut *self.story;
        story.verdicts_bytes += verdict.bytes();
        story.verdicts.push_back(verdict);
        // Each is looked for among all ids: not every time.
        if story.verdicts.len() < story.tidied + 2 * VERDICTS_SHOWN {
            return;
        }
        let hidden = story.verdicts.len() - VERDICTS_SHOWN;
        let mut position = 0;
        story.verdicts.retain(|verdict| {
            position += 1;
            let mut indexes = verdict.event_index.iter();
            let stays = position > hidden || indexes.any(|index| self.seen.names(*index));
            story.verdicts_bytes -= if stays { 0 } else { verdict.bytes() };
            stays
        });
        story.tidied = story.verdicts.len() - VERDICTS_SHOWN;
    }

    /// Takes the session's trends out of the metrics: it is leaving.
    pub fn leave_trends(&self, metrics: &Metrics) {
        for (rank, level) in (0..).map(DetectorId).zip(&self.story.levels) {
            metrics.trend(rank, *level, None);
        }
    }
}

impl Shared<'_> {
    /// Whether the breaker lets a detector end this session.
    fn may_end(&self, shown: &Shown<'_>) -> bool {
        let Some(settings) = &self.limits.breaker else {
            return true;
        };
        let (breaker, live) = (&self.held.breaker, self.held.live.load(Relaxed));
        let was_open = breaker.is_open();
        if breaker.ask(settings, live, shown.now) == Leave::Granted {
            return true;
        }
        self.metrics.withheld();
        if !was_open {
            self.metrics.breaker(true);
            tracing::error!(
                session = ?shown.session,
                tenant = ?shown.session.tenant(),
                "the breaker has opened: detectors would end too many sessions and warn instead; \
                 look at the settings and at what agents depend on"
            );
        }
        false
    }
}
