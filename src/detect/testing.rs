//! Scripts of observations for the detectors' tests: `call("a").times(3)`.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    iter::Sum,
    ops::Add,
    time::{Duration, SystemTime},
};

use super::{CallText, Detector, History};
use crate::{
    domain::{
        CallFacts, CallKind, Capacities, Cost, DetectorOutcome, EventPosition,
        Finding, MarkerKind, Observation, ObservationBody, Operation, Outcome, Sig, UsageDelta,
    },
    facts::ProgressCounter,
    text::{PhraseMatcher, Sketcher},
};

#[derive(Clone)]
pub struct Script(Vec<ScriptStep>);

#[derive(Clone)]
enum ScriptStep {
    Call(Box<ScriptCall>),
    Turn(String),
    Compaction(i32),
    User,
    Cited,
}

#[derive(Clone)]
struct ScriptCall {
    facts: CallFacts,
    round: Option<Sig>,
    secs: u64,
    /// Somebody else has made progress since the last event.
    after_progress: bool,
}

pub fn sig(text: &str) -> Sig {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Sig::new(hasher.finish())
}

/// A call that does what nobody knows and returns the same each time, which
/// tells nothing.
pub fn call(name: &str) -> Script {
    let facts = CallFacts {
        kind: CallKind::Ordinary,
        tool: sig("tool"),
        lines: None,
        loose_args: None,
        arg_words: Default::default(),
        response: None,
        error: None,
        unproductive: true,
        is_read_only: false,
        call: Some(sig(name)),
        operation: Operation::Other,
        also_writes: false,
        target: Some(sig("target")),
        outcome: Some(Outcome::Ok),
        masked_outcome: sig("same"),
        raw_outcome: sig("same"),
        content: None,
        state: None,
    };
    Script(vec![ScriptStep::Call(Box::new(ScriptCall {
        facts,
        round: None,
        secs: 0,
        after_progress: false,
    }))])
}

/// A call as the detectors see it.
pub fn seen_call(operation: Operation, kind: CallKind) -> ObservationBody {
    let script = call("a")
        .operation(operation)
        .with(|call| call.facts.kind = kind);
    match script.0.into_iter().next() {
        Some(ScriptStep::Call(call)) => ObservationBody::Call(call.facts),
        _ => ObservationBody::Other,
    }
}

/// Calls of these names, in turn.
pub fn calls(names: &str) -> Script {
    names.split_whitespace().map(call).sum()
}

/// Reads of these files, in turn.
pub fn reads(files: &str) -> Script {
    files.split_whitespace().map(read).sum()
}

pub fn read(file: &str) -> Script {
    call(&format!("read {file}")).read().on(file)
}

/// Writes that text to the file.
pub fn write(file: &str, text: &str) -> Script {
    let call = call(&format!("write {file} {text}")).on(file);
    call.operation(Operation::Write)
}

/// Puts that text in a place of the file.
pub fn edit(file: &str, text: &str) -> Script {
    let call = call(&format!("edit {file} {text}")).on(file);
    call.operation(Operation::Edit)
}

pub fn run(command: &str) -> Script {
    let call = call(command).on(command);
    call.operation(Operation::Execute)
}

pub fn turn(text: &str) -> Script {
    Script(vec![ScriptStep::Turn(text.to_owned())])
}

pub fn user() -> Script {
    Script(vec![ScriptStep::User])
}

pub fn compaction() -> Script {
    compaction_to(0)
}

pub fn compaction_to(tokens: i32) -> Script {
    Script(vec![ScriptStep::Compaction(tokens)])
}

/// A verdict has cited all that was done so far. It is no event.
pub fn cited() -> Script {
    Script(vec![ScriptStep::Cited])
}

impl Script {
    pub fn times(self, n: usize) -> Self {
        Self(std::iter::repeat_n(self.0, n).flatten().collect())
    }

    pub fn read(self) -> Self {
        self.operation(Operation::Read)
    }

    pub fn operation(self, operation: Operation) -> Self {
        self.with(|call| call.facts.operation = operation)
    }

    pub fn on(self, target: &str) -> Self {
        self.with(|call| call.facts.target = Some(sig(target)))
    }

    pub fn lines(self, first: u32, last: u32) -> Self {
        self.with(|call| {
            call.facts.lines = Some((first, last));
            call.facts.call = Some(sig(&format!("{:?} {first} {last}", call.facts.call)));
        })
    }

    pub fn result(self, text: &str) -> Self {
        self.with(|call| {
            call.facts.masked_outcome = sig(text);
            call.facts.raw_outcome = sig(text);
        })
    }

    /// A result that tells something.
    pub fn responds(self, text: &str) -> Self {
        self.result(text)
            .with(|call| call.facts.response = Some(sig(text)))
    }

    /// Another raw outcome, the same once masked.
    pub fn raw(self, text: &str) -> Self {
        self.with(|call| call.facts.raw_outcome = sig(text))
    }

    pub fn fails(self, error: &str) -> Self {
        self.responds(error).with(|call| {
            call.facts.outcome = Some(Outcome::Error);
            call.facts.error = Some(sig(error));
        })
    }

    /// It failed, and did not say why.
    pub fn error_unknown(self) -> Self {
        self.with(|call| call.facts.error = None)
    }

    pub fn content(self, text: &str) -> Self {
        let result_text = format!("content {text}");
        self.result(&result_text)
            .with(|call| call.facts.content = Some(sig(text)))
    }

    /// The world after the call; what else came of it stays.
    pub fn state(self, text: &str) -> Self {
        self.with(|call| {
            call.facts.state = Some(sig(text));
            call.facts.masked_outcome = sig(&format!("{:?} {text}", call.facts.masked_outcome));
            call.facts.raw_outcome = call.facts.masked_outcome;
        })
    }

    pub fn tool(self, name: &str) -> Self {
        self.with(|call| call.facts.tool = sig(name))
    }

    /// The arguments without numbers and the order of words.
    pub fn loose(self, words: &str) -> Self {
        self.with(|call| call.facts.loose_args = Some(sig(words)))
    }

    /// The arguments' words, as hashes.
    pub fn words(self, words: impl Iterator<Item = u32> + Clone) -> Self {
        self.with(|call| call.facts.arg_words = words.clone().collect())
    }

    /// It brought much back, or nobody knows what.
    pub fn productive(self) -> Self {
        self.with(|call| call.facts.unproductive = false)
    }

    /// A call that looks, of a tool of no known class.
    pub fn read_only(self) -> Self {
        self.with(|call| call.facts.is_read_only = true)
    }

    pub fn without_args(self) -> Self {
        self.with(|call| call.facts.call = None)
    }

    pub fn without_target(self) -> Self {
        self.with(|call| call.facts.target = None)
    }

    pub fn poll(self) -> Self {
        self.with(|call| call.facts.kind = CallKind::Poll)
    }

    pub fn outage(self) -> Self {
        self.fails("503")
            .with(|call| call.facts.kind = CallKind::Outage)
    }

    pub fn at(self, secs: u64) -> Self {
        self.with(|call| call.secs = secs)
    }

    pub fn round(self, id: &str) -> Self {
        self.with(|call| call.round = Some(sig(id)))
    }

    pub fn after_progress(self) -> Self {
        self.with(|call| call.after_progress = true)
    }

    fn with(mut self, change: impl Fn(&mut ScriptCall)) -> Self {
        for step in &mut self.0 {
            if let ScriptStep::Call(call) = step {
                change(call);
            }
        }
        self
    }

    /// What the detector counts on each event; 0 where it finds nothing.
    pub fn counts<D: Detector>(self, settings: &D::Settings) -> Vec<i32> {
        let count = |outcome| match outcome {
            DetectorOutcome::Match(finding) => finding.count,
            DetectorOutcome::NotApplicable
            | DetectorOutcome::MissingField(_)
            | DetectorOutcome::NoMatch
            | DetectorOutcome::Unchanged => 0,
        };
        self.outcomes::<D>(settings)
            .into_iter()
            .map(count)
            .collect()
    }

    pub fn findings<D: Detector>(self, settings: &D::Settings) -> Vec<Finding> {
        let found = |outcome| match outcome {
            DetectorOutcome::Match(finding) => Some(*finding),
            DetectorOutcome::NotApplicable
            | DetectorOutcome::MissingField(_)
            | DetectorOutcome::NoMatch
            | DetectorOutcome::Unchanged => None,
        };
        let outcomes = self.outcomes::<D>(settings).into_iter();
        outcomes.filter_map(found).collect()
    }

    /// A letter an event: ` ` away, `?` abstained, `.` clear, `=` standing, `!`
    /// found, `+` found to go on.
    pub fn outcome_letters<D: Detector>(self, settings: &D::Settings) -> String {
        let mark = |outcome: &DetectorOutcome| match outcome {
            DetectorOutcome::NotApplicable => ' ',
            DetectorOutcome::MissingField(_) => '?',
            DetectorOutcome::NoMatch => '.',
            DetectorOutcome::Unchanged => '=',
            DetectorOutcome::Match(finding) if finding.extends => '+',
            DetectorOutcome::Match(_) => '!',
        };
        self.outcomes::<D>(settings).iter().map(mark).collect()
    }

    /// Plays the script as the engine does.
    fn outcomes<D: Detector>(self, settings: &D::Settings) -> Vec<DetectorOutcome> {
        let mut detector = D::default();
        let mut past = History::default();
        let mut progress = ProgressCounter::default();
        let mut outcomes = Vec::new();
        for step in self.0 {
            let index = outcomes.len() as i32;
            let (mut round, mut secs) = (None, 0);
            let seen = match step {
                ScriptStep::Cited => {
                    let cited: Vec<i32> = (0..index).collect();
                    past.consume(&cited);
                    detector.consume(&cited);
                    continue;
                }
                ScriptStep::User => {
                    progress.start_new_work();
                    detector.reset();
                    past.clear();
                    outcomes.push(DetectorOutcome::NotApplicable);
                    continue;
                }
                ScriptStep::Compaction(context_tokens) => ObservationBody::Marker {
                    kind: MarkerKind::Compaction,
                    context_tokens,
                },
                ScriptStep::Turn(text) => {
                    let listener = PhraseMatcher::new(D::phrases(settings)).unwrap();
                    let mut sketcher = Sketcher::default();
                    sketcher.push(&text, &listener);
                    ObservationBody::Turn(sketcher.finish(&listener))
                }
                ScriptStep::Call(call) => {
                    if call.after_progress {
                        progress.advance();
                    }
                    progress.record_call();
                    progress.record_state(call.facts.state);
                    let capacities = Capacities::default();
                    progress.record_write(&call.facts, &capacities.paths);
                    (round, secs) = (call.round, call.secs);
                    ObservationBody::Call(call.facts)
                }
            };
            let at = EventPosition {
                index,
                time: SystemTime::UNIX_EPOCH + Duration::from_secs(secs),
                progress: progress.count(),
                state_changes: progress.state_changes(),
                calls: progress.calls(),
                round,
            };
            let mut now = Observation {
                at,
                body: seen,
                usage: UsageDelta::default(),
                capacities: Capacities::default(),
            };
            outcomes.push(detector.observe(&now, &past, settings));
            past.push(&mut now, Cost::default(), &CallText::default());
        }
        outcomes
    }
}

impl Add for Script {
    type Output = Self;

    fn add(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }
}

impl Sum for Script {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(Vec::new()), Add::add)
    }
}
