//! One agent of a session: its history, its detectors and its policy.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{
    Profile, batch::CallBatch, draft::Drafts, members::build_members, session::ObservationContext,
    standing::StandingLoops,
};
use crate::{
    detect::{CallText, Detectors, History},
    domain::{
        AgentId, CallFacts, CallKind, Cost, DetectorId, DetectorOutcome, Event, Finding, LazyBox,
        LoopMember, Observation, ObservationBody, Operation, RuleOutcome, Sig, UsageDelta, Verdict,
        Waste,
    },
    facts::FactExtractor,
    policy::{
        AgentPolicy, Decision, DetectorResults, LoopHistory, PolicyOutcome, TemplateContext,
        render_refusals,
    },
    rules::RuleStates,
};

/// One agent of a session, with its own detectors and policy. The skipped fields are in
/// the head of a frozen session, or are computed again.
#[derive(Serialize, Deserialize)]
pub(super) struct Agent {
    #[serde(skip)]
    pub id: AgentId,
    pub history: History,
    detectors: Detectors,
    rules: RuleStates,
    pub policy: AgentPolicy,
    pub drafts: Drafts,
    /// The first directory that a command line named: where the agent works.
    directory: Option<Sig>,
    /// The cost of its own events; events of other agents are not part of its loops.
    #[serde(skip)]
    pub totals: Waste,
    /// Heap bytes of the detectors by the last measurement.
    #[serde(skip)]
    detectors_bytes: usize,
    /// The calls that are being made at once.
    #[serde(skip)]
    pub batch: CallBatch,
    /// The verdict that terminated this sub-agent.
    pub termination: Option<Arc<Verdict>>,
    /// The actions in force for it, if there are any.
    #[serde(skip)]
    pub standing: LazyBox<StandingLoops>,
}

/// Detectors are measured on each of the first events of an agent and then once in
/// this many. Measuring costs as much as running them, and in eight events they
/// grow by a kilobyte or two at most.
const DETECTOR_BYTES_UPDATE_INTERVAL: i64 = 8;

/// The result of an observation.
pub(super) struct ObservationOutcome {
    pub matched_detectors: SmallVec<[DetectorId; 4]>,
    /// The detectors that could not run, and the field that was missing.
    pub missing_fields: SmallVec<[(DetectorId, &'static str); 4]>,
    pub policy_outcome: Option<Box<PolicyOutcome>>,
}

/// The texts of a verdict.
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
            directory: None,
            totals: Waste::default(),
            detectors_bytes: 0,
            batch: CallBatch::default(),
            termination: None,
            standing: LazyBox::default(),
        }
    }

    /// Compares the directory of a call with the one in which the agent works: `cd app &&
    /// make` is `make` for an agent that always writes it so.
    pub fn locate_call(&mut self, facts: &mut CallFacts) {
        self.directory = self.directory.or(facts.directory);
        facts.directory = self.other_directory(facts.directory);
        facts.mark_directory();
    }

    /// The directory, unless it is the one in which the agent works.
    pub fn other_directory(&self, directory: Option<Sig>) -> Option<Sig> {
        directory.filter(|_| directory != self.directory)
    }

    /// Runs the detectors and the rules on an observation, adds it to the history and
    /// lets the policy decide about the findings.
    pub fn observe(
        &mut self,
        observation: &mut Observation,
        rule_results: &[RuleOutcome],
        cost: Cost,
        words: &CallText<'_>,
        profile: &Profile,
    ) -> ObservationOutcome {
        // End the run of an earlier text, and classify slow calls as polls.
        let at = observation.at;
        let events = i64::from(!matches!(observation.body, ObservationBody::PartialText(_)));
        if let Some(repeated) = observation.repetition()
            && !repeated.extends
        {
            self.policy.end_text_run(repeated.loop_key);
        }
        if let ObservationBody::Call(facts) = &mut observation.body {
            if facts.kind == CallKind::Ordinary && self.history.is_slow_poll(at, facts) {
                (facts.kind, facts.is_wait) = (CallKind::Poll, true);
            }
            facts.kind = profile.detect.effective_kind(facts.kind);
        }
        // Run the detectors and the rules.
        let mut checked = 0u64;
        let mut findings: SmallVec<[(DetectorId, Finding); 2]> = SmallVec::new();
        let mut missing_fields = SmallVec::new();
        let mut record_result = |detector: DetectorId, outcome| match outcome {
            DetectorOutcome::NotApplicable => {}
            DetectorOutcome::MissingField(field) => missing_fields.push((detector, field)),
            DetectorOutcome::NoMatch => checked |= 1 << detector.0,
            // Neither a match nor a miss: the trend only decays.
            DetectorOutcome::Unchanged => {}
            DetectorOutcome::Match(finding) => {
                checked |= 1 << detector.0;
                findings.push((detector, *finding));
            }
        };
        let (detectors, history) = (&mut self.detectors, &self.history);
        let without_match =
            detectors.observe(observation, history, &profile.detect, &mut record_result);
        self.rules.observe(
            rule_results,
            observation,
            profile.rules(),
            &mut record_result,
        );
        checked |= without_match;
        // Add the event to the history and decide.
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
        self.consume_reported_events(policy_outcome.as_deref());
        if totals.events % DETECTOR_BYTES_UPDATE_INTERVAL == 0
            || totals.events < DETECTOR_BYTES_UPDATE_INTERVAL
        {
            self.detectors_bytes = self.detectors.heap_bytes();
        }
        ObservationOutcome {
            // Most events have no finding: skip the loop.
            matched_detectors: if findings.is_empty() {
                SmallVec::new()
            } else {
                findings.iter().map(|(detector, _)| *detector).collect()
            },
            missing_fields,
            policy_outcome,
        }
    }

    /// The round of an event: by its id, or by what else shows that calls were made at once.
    pub fn round_of(&mut self, event: &Event, index: i32, facts: &FactExtractor) -> Option<Sig> {
        let by_id = facts.round_signature(event);
        if by_id.is_some() {
            self.batch.end();
            return by_id;
        }
        self.batch.round_of(event, index, facts.key())
    }

    /// Events of a reported loop do not count again.
    #[inline]
    fn consume_reported_events(&mut self, policy_outcome: Option<&PolicyOutcome>) {
        if let Some(decision) = policy_outcome.and_then(|outcome| outcome.decision.as_ref()) {
            self.history.consume(&decision.evidence.event_indexes);
        }
        let consumed = self.policy.take_consumed_events();
        if !consumed.is_empty() {
            self.history.consume(&consumed);
            self.detectors.consume(&consumed);
        }
    }

    /// Adds the cost of an earlier event.
    pub fn add_cost(&mut self, cost: Cost) {
        self.totals += Waste::new(0, cost);
    }

    /// Restores what is not in the window of a frozen session.
    pub fn restore(
        &mut self,
        id: AgentId,
        totals: Waste,
        loops: Option<LoopHistory>,
        standing: Option<StandingLoops>,
    ) {
        (self.id, self.totals) = (id, totals);
        if let Some(standing) = standing {
            *self.standing.get_or_insert_default() = standing;
        }
        if let Some(loops) = loops {
            self.policy.restore_loops(loops);
        }
        self.detectors_bytes = self.detectors.heap_bytes();
    }

    pub fn is_terminated(&self) -> bool {
        self.termination.is_some()
    }

    /// Renders the texts of a verdict while the history still has the cited calls. `obs`
    /// is the event that the verdict answers.
    pub fn render_verdict(
        &self,
        decision: &Decision,
        obs: &ObservationContext<'_>,
        used: UsageDelta,
        profile: &Profile,
        facts: &FactExtractor,
    ) -> RenderedVerdict {
        let current = obs.call.map(|call| (call, obs.words.args));
        let (members, first_operation) =
            build_members(&decision.calls, &self.history, current, facts);
        if decision.refusals > 0 {
            let (pattern, correction) = render_refusals(decision.refusals, &members);
            return RenderedVerdict {
                members,
                pattern,
                correction,
            };
        }
        let evidence = &decision.evidence;
        let context = TemplateContext::new(
            evidence,
            first_operation.unwrap_or(Operation::Other).verb(),
            &members,
            obs.repetition_start,
        );
        let context = match profile.detect.budget.own.reached_cap(&used) {
            Some(reached) => context.with_budget(reached.unit, reached.used, reached.cap),
            None => context,
        };
        let detector = profile.detector_name(decision.detector);
        RenderedVerdict {
            members,
            pattern: profile.templates.render_pattern(&detector, &context),
            correction: profile.templates.render_correction(&detector, &context),
        }
    }

    /// Clears the counts on a new run. What was reported is kept.
    pub fn reset(&mut self) {
        self.detectors.reset();
        self.reset_all_but_detectors();
    }

    /// Clears the counts on a message of the user.
    pub fn reset_for_user(&mut self) {
        self.detectors.reset_for_user();
        self.reset_all_but_detectors();
    }

    fn reset_all_but_detectors(&mut self) {
        self.history.clear();
        self.rules.reset();
        self.policy.reset();
        self.drafts.clear();
        self.standing.clear();
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
            + self.standing.heap_bytes(StandingLoops::heap_bytes)
    }
}
