use std::sync::Arc;

use smallvec::SmallVec;

use super::{Profile, draft::Drafts};
use crate::{
    detect::{Detectors, History, Words},
    domain::{
        AgentId, CallKind, Cost, DetectorId, Finding, Look, Member, Observation, Operation,
        RuleSight, Seen, Used, Verdict, Waste,
    },
    policy::{Judge, Judgement, Ruling, Sight, TemplateFacts},
    rules::RuleStates,
};

/// One agent of a session: it is watched on its own.
pub(super) struct Agent {
    pub id: AgentId,
    pub history: History,
    detectors: Detectors,
    rules: RuleStates,
    pub judge: Judge,
    pub drafts: Drafts,
    /// What its own events have cost: those of others are not its loop's.
    totals: Waste,
    /// What its detectors held when they were last weighed.
    detectors_bytes: usize,
    /// `Some`: this sub-agent is over.
    pub terminated: Option<Arc<Verdict>>,
}

/// Detectors are weighed on the first events of an agent, and then on so many of
/// them once: to look at all they hold on every one would cost as much as they do,
/// and in eight events they grow by a kilobyte or two at most.
const WEIGHED_EVERY: i64 = 8;

/// What came of an observation.
pub(super) struct Outcome {
    /// The detectors that found something.
    pub found: SmallVec<[DetectorId; 4]>,
    /// The detectors that could not look, and what they lacked.
    pub abstained: SmallVec<[(DetectorId, &'static str); 4]>,
    pub judgement: Option<Box<Judgement>>,
}

/// A ruling in words.
pub(super) struct Told {
    pub members: Vec<Member>,
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
            judge: Judge::default(),
            drafts: Drafts::default(),
            totals: Waste::default(),
            detectors_bytes: 0,
            terminated: None,
        }
    }

    /// Shows an observation to the detectors, takes it into the history and
    /// judges what they found.
    pub fn observe(
        &mut self,
        now: &mut Observation,
        ruled: &[RuleSight],
        cost: Cost,
        words: &Words<'_>,
        profile: &Profile,
    ) -> Outcome {
        let at = now.at;
        let events = i64::from(!matches!(now.seen, Seen::Text(_)));
        let repeated = now.repeated().filter(|repeated| !repeated.goes_on);
        if let Some(name) = repeated.map(|repeated| repeated.name) {
            self.judge.end_run(name);
        }
        if let Seen::Call(facts) = &mut now.seen {
            if facts.kind == CallKind::Ordinary && self.history.is_patient(at, facts) {
                facts.kind = CallKind::Poll;
            }
            facts.kind = profile.detect.kind(facts.kind);
        }
        let mut looked = 0u64;
        let mut findings: SmallVec<[(DetectorId, Finding); 2]> = SmallVec::new();
        let mut abstained = SmallVec::new();
        let mut tell = |detector: DetectorId, look| match look {
            Look::Away => {}
            Look::Abstained(field) => abstained.push((detector, field)),
            Look::Clear => looked |= 1 << detector.0,
            // Neither found nor missed: the trend only fades.
            Look::Standing => {}
            Look::Found(finding) => {
                looked |= 1 << detector.0;
                findings.push((detector, *finding));
            }
        };
        let (detectors, history) = (&mut self.detectors, &self.history);
        let clear = detectors.observe(now, history, &profile.detect, &mut tell);
        self.rules.observe(ruled, now, profile.rules(), &mut tell);
        looked |= clear;
        self.history.push(now, cost, words);
        self.totals += Waste::of(events, cost);
        let totals = self.totals;
        let sight = Sight {
            agent: &self.id,
            at,
            looked,
            findings: &findings,
            totals,
            room: &now.rooms.loops,
        };
        let history = &self.history;
        let began = |first| totals.since(history.cost_since(first));
        let judgement = self.judge.judge(&sight, &profile.policy, began);
        if let Some(ruling) = judgement.as_ref().and_then(|j| j.ruling.as_ref()) {
            self.history.spend(&ruling.evidence.event_indexes);
        }
        let spent = self.judge.take_spent();
        if !spent.is_empty() {
            self.history.spend(&spent);
            self.detectors.spend(&spent);
        }
        if totals.events % WEIGHED_EVERY == 0 || totals.events < WEIGHED_EVERY {
            self.detectors_bytes = self.detectors.heap_bytes();
        }
        Outcome {
            found: match findings.is_empty() {
                true => SmallVec::new(),
                false => findings.iter().map(|(detector, _)| *detector).collect(),
            },
            abstained,
            judgement,
        }
    }

    /// Takes in what an earlier event of it has cost.
    pub fn spend(&mut self, cost: Cost) {
        self.totals += Waste::of(0, cost);
    }

    /// It counts no more.
    pub fn is_over(&self) -> bool {
        self.terminated.is_some()
    }

    /// Puts a ruling into words, while the calls it cites are still known.
    /// `began` is where a text begins to repeat itself.
    pub fn tell(&self, ruling: &Ruling, used: Used, began: u64, profile: &Profile) -> Told {
        let calls = ruling.calls.iter();
        let mut operation = None;
        let members: Vec<Member> = calls
            .filter_map(|sig| self.history.member(*sig))
            .map(|(member, does)| {
                operation.get_or_insert(does);
                member
            })
            .collect();
        let evidence = &ruling.evidence;
        let facts = TemplateFacts::new(
            (evidence.count, evidence.period, evidence.similarity),
            operation.unwrap_or(Operation::Other).verb(),
            &members,
            (&evidence.excerpt, began),
        );
        let budget = profile.detect.budget.own.passed(&used);
        let facts = match budget {
            Some(passed) => facts.of_budget(passed.unit, passed.used, passed.cap),
            None => facts,
        };
        let detector = profile.detector(ruling.detector);
        Told {
            members,
            pattern: profile.templates.pattern(&detector, &facts),
            correction: profile.templates.correction(&detector, &facts),
        }
    }

    /// Counts start anew; what was reported is remembered.
    pub fn reset(&mut self) {
        self.history.clear();
        self.detectors.reset();
        self.rules.reset();
        self.judge.reset();
        self.drafts.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        self.id.as_str().len()
            + self.history.heap_bytes()
            + self.detectors_bytes
            + self
                .terminated
                .as_ref()
                .map_or(0, |verdict| verdict.bytes())
            + self.rules.heap_bytes()
            + self.judge.heap_bytes()
            + self.drafts.heap_bytes()
    }
}
