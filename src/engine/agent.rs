use std::sync::Arc;

use smallvec::SmallVec;

use super::{Profile, draft::Drafts};
use crate::{
    detect::{CallText, Detectors, History},
    domain::{
        AgentId, CallKind, Cost, DetectorId, DetectorOutcome, Finding, LoopMember, Observation,
        ObservationBody, Operation, RuleOutcome, UsageDelta, Verdict, Waste,
    },
    policy::{AgentPolicy, Decision, DetectorResults, PolicyOutcome, TemplateContext},
    rules::RuleStates,
};

/// One agent of a session: it is watched on its own.
pub(super) struct Agent {
    pub id: AgentId,
    pub history: History,
    detectors: Detectors,
    rules: RuleStates,
    pub policy: AgentPolicy,
    pub drafts: Drafts,
    /// What its own events have cost: those of others are not its loop's.
    totals: Waste,
    /// What its detectors held when they were last weighed.
    detectors_bytes: usize,
    /// `Some`: this sub-agent is over.
    pub termination: Option<Arc<Verdict>>,
}

/// Detectors are weighed on the first events of an agent, and then on so many of
/// them once: to look at all they hold on every one would cost as much as they do,
/// and in eight events they grow by a kilobyte or two at most.
const DETECTOR_BYTES_UPDATE_INTERVAL: i64 = 8;

/// What came of an observation.
pub(super) struct ObservationOutcome {
    /// The detectors that found something.
    pub matched_detectors: SmallVec<[DetectorId; 4]>,
    /// The detectors that could not look, and what they lacked.
    pub missing_fields: SmallVec<[(DetectorId, &'static str); 4]>,
    pub policy_outcome: Option<Box<PolicyOutcome>>,
}

/// A ruling in words.
pub(super) struct RenderedVerdict {
    pub members: Vec<LoopMember>,
    pub pattern: String,
    pub correction: String,
}

impl Agent {
    pub fn new(id: AgentId) -> Self {
        Self {
            id,
            history: History::default(),
            detectors: Detectors::default(),
            rules: RuleStates::default(),
            policy: AgentPolicy::default(),
            drafts: Drafts::default(),
            totals: Waste::default(),
            detectors_bytes: 0,
            termination: None,
        }
    }

    /// Shows an observation to the detectors, takes it into the history and
    /// judges what they found.
    pub fn observe(
        &mut self,
        observation: &mut Observation,
        rule_results: &[RuleOutcome],
        cost: Cost,
        words: &CallText<'_>,
        profile: &Profile,
    ) -> ObservationOutcome {
        let at = observation.at;
        let events = i64::from(!matches!(observation.body, ObservationBody::PartialText(_)));
        let repeated = observation
            .repetition()
            .filter(|repeated| !repeated.extends);
        if let Some(name) = repeated.map(|repeated| repeated.loop_key) {
            self.policy.end_text_run(name);
        }
        if let ObservationBody::Call(facts) = &mut observation.body {
            if facts.kind == CallKind::Ordinary && self.history.is_slow_poll(at, facts) {
                facts.kind = CallKind::Poll;
            }
            facts.kind = profile.detect.effective_kind(facts.kind);
        }
        let mut checked = 0u64;
        let mut findings: SmallVec<[(DetectorId, Finding); 2]> = SmallVec::new();
        let mut missing_fields = SmallVec::new();
        let mut record_result = |detector: DetectorId, look| match look {
            DetectorOutcome::NotApplicable => {}
            DetectorOutcome::MissingField(field) => missing_fields.push((detector, field)),
            DetectorOutcome::NoMatch => checked |= 1 << detector.0,
            // Neither found nor missed: the trend only fades.
            DetectorOutcome::Unchanged => {}
            DetectorOutcome::Match(finding) => {
                checked |= 1 << detector.0;
                findings.push((detector, *finding));
            }
        };
        let (detectors, history) = (&mut self.detectors, &self.history);
        let clear = detectors.observe(observation, history, &profile.detect, &mut record_result);
        self.rules.observe(
            rule_results,
            observation,
            profile.rules(),
            &mut record_result,
        );
        checked |= clear;
        self.history.push(observation, cost, words);
        self.totals += Waste::new(events, cost);
        let totals = self.totals;
        let results = DetectorResults {
            agent: &self.id,
            at,
            checked,
            findings: &findings,
            totals,
            loop_capacity: &observation.capacities.loops,
        };
        let history = &self.history;
        let totals_before = |first| totals.saturating_sub(history.cost_since(first));
        let policy_outcome = self.policy.decide(&results, &profile.policy, totals_before);
        if let Some(decision) = policy_outcome.as_ref().and_then(|j| j.decision.as_ref()) {
            self.history.consume(&decision.evidence.event_indexes);
        }
        let consumed = self.policy.take_consumed_events();
        if !consumed.is_empty() {
            self.history.consume(&consumed);
            self.detectors.consume(&consumed);
        }
        if totals.events % DETECTOR_BYTES_UPDATE_INTERVAL == 0
            || totals.events < DETECTOR_BYTES_UPDATE_INTERVAL
        {
            self.detectors_bytes = self.detectors.heap_bytes();
        }
        ObservationOutcome {
            matched_detectors: match findings.is_empty() {
                true => SmallVec::new(),
                false => findings.iter().map(|(detector, _)| *detector).collect(),
            },
            missing_fields,
            policy_outcome,
        }
    }

    /// Takes in what an earlier event of it has cost.
    pub fn add_cost(&mut self, cost: Cost) {
        self.totals += Waste::new(0, cost);
    }

    /// It counts no more.
    pub fn is_terminated(&self) -> bool {
        self.termination.is_some()
    }

    /// Puts a ruling into words, while the calls it cites are still known.
    /// `began` is where a text begins to repeat itself.
    pub fn render_verdict(
        &self,
        decision: &Decision,
        used: UsageDelta,
        repetition_start: u64,
        profile: &Profile,
    ) -> RenderedVerdict {
        let calls = decision.calls.iter();
        let mut operation = None;
        let members: Vec<LoopMember> = calls
            .filter_map(|sig| self.history.find_member(*sig))
            .map(|(member, does)| {
                operation.get_or_insert(does);
                member
            })
            .collect();
        let evidence = &decision.evidence;
        let facts = TemplateContext::new(
            (evidence.count, evidence.period, evidence.similarity),
            operation.unwrap_or(Operation::Other).verb(),
            &members,
            (&evidence.excerpt, repetition_start),
        );
        let budget = profile.detect.budget.own.reached_cap(&used);
        let facts = match budget {
            Some(passed) => facts.with_budget(passed.unit, passed.used, passed.cap),
            None => facts,
        };
        let detector = profile.detector_name(decision.detector);
        RenderedVerdict {
            members,
            pattern: profile.templates.render_pattern(&detector, &facts),
            correction: profile.templates.render_correction(&detector, &facts),
        }
    }

    /// Counts start anew; what was reported is remembered.
    pub fn reset(&mut self) {
        self.history.clear();
        self.detectors.reset();
        self.rules.reset();
        self.policy.reset();
        self.drafts.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        self.id.as_str().len()
            + self.history.heap_bytes()
            + self.detectors_bytes
            + self
                .termination
                .as_ref()
                .map_or(0, |verdict| verdict.memory_bytes())
            + self.rules.heap_bytes()
            + self.policy.heap_bytes()
            + self.drafts.heap_bytes()
    }
}
