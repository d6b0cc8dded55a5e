//! The detectors' test kit.
//!
//! A test describes what an agent does as a [`Script`], for example
//! `call("a").times(3) + user() + edit("f", "1")`: functions start a script of one
//! event, methods change all its calls, `+` and `times` join scripts. Then it
//! runs one detector over the script, with a history as in the engine, and compares
//! the outcomes: [`Script::counts`], [`Script::outcome_letters`] or
//! [`Script::findings`].

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    iter::Sum,
    ops::Add,
    time::{Duration, SystemTime},
};

use super::{CallText, Detector, History};
use crate::{
    domain::{
        AnswerKind, CallFacts, CallKind, Capacities, Cost, DetectorOutcome, EventPosition, Finding,
        MarkerKind, Observation, ObservationBody, Operation, Outcome, ProgramWords, Sig,
        UsageDelta,
    },
    facts::ProgressCounter,
    text::{PhraseMatcher, Sketcher},
};

/// What an agent does, in order.
#[derive(Clone)]
pub struct Script(Vec<ScriptStep>);

#[derive(Clone)]
enum ScriptStep {
    Call(Box<ScriptCall>),
    Turn(String),
    Compaction(i32),
    User,
    /// A verdict cites all events so far. It is not an event.
    Cited,
}

#[derive(Clone)]
struct ScriptCall {
    facts: CallFacts,
    round: Option<Sig>,
    secs: u64,
    /// Another agent has made progress since the last event.
    after_progress: bool,
}

pub fn sig(text: &str) -> Sig {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Sig::new(hasher.finish())
}

/// A successful call of an unknown operation. Its outcome is always the same, and
/// its response says nothing.
pub fn call(name: &str) -> Script {
    let facts = CallFacts {
        kind: CallKind::Ordinary,
        is_wait: false,
        poll_key: None,
        is_dead: false,
        tool: sig("tool"),
        lines: None,
        directory: None,
        loose_args: None,
        unordered_args: None,
        answer: AnswerKind::Unknown,
        moves_world: false,
        arg_words: Default::default(),
        program: ProgramWords::default(),
        query_words: None,
        leaves_open: false,
        found_nothing: false,
        response: None,
        error: None,
        figures: Default::default(),
        has_moved_figure: false,
        unproductive: true,
        is_acknowledged: true,
        changed_nothing: false,
        plan_steps_done: None,
        is_read_only: false,
        may_act: false,
        may_read_part: false,
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

/// The observation of one call.
pub fn observed_call(operation: Operation, kind: CallKind) -> ObservationBody {
    let script = call("a")
        .operation(operation)
        .with(|call| (call.facts.kind, call.facts.is_wait) = (kind, kind == CallKind::Poll));
    match script.0.into_iter().next() {
        Some(ScriptStep::Call(call)) => ObservationBody::Call(call.facts),
        _ => ObservationBody::Other,
    }
}

/// One call for each of these names.
pub fn calls(names: &str) -> Script {
    names.split_whitespace().map(call).sum()
}

/// One read for each of these files.
pub fn reads(files: &str) -> Script {
    files.split_whitespace().map(read).sum()
}

pub fn read(file: &str) -> Script {
    call(&format!("read {file}")).read().on(file)
}

/// A write of this text to the whole file.
pub fn write(file: &str, text: &str) -> Script {
    call(&format!("write {file} {text}"))
        .on(file)
        .operation(Operation::Write)
}

/// An edit that puts this text into a part of the file.
pub fn edit(file: &str, text: &str) -> Script {
    call(&format!("edit {file} {text}"))
        .on(file)
        .operation(Operation::Edit)
}

pub fn run(command: &str) -> Script {
    call(command).on(command).operation(Operation::Execute)
}

pub fn turn(text: &str) -> Script {
    Script(vec![ScriptStep::Turn(text.to_owned())])
}

/// A message of the user.
pub fn user() -> Script {
    Script(vec![ScriptStep::User])
}

pub fn compaction() -> Script {
    compaction_to(0)
}

pub fn compaction_to(tokens: i32) -> Script {
    Script(vec![ScriptStep::Compaction(tokens)])
}

/// A verdict cites all events so far. It is not an event itself.
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

    /// A result that says something.
    pub fn responds(self, text: &str) -> Self {
        self.result(text).with(|call| {
            call.facts.response = Some(sig(text));
            call.facts.is_acknowledged = false;
        })
    }

    /// Another raw outcome that is the same after masking.
    pub fn raw(self, text: &str) -> Self {
        self.with(|call| call.facts.raw_outcome = sig(text))
    }

    pub fn fails(self, error: &str) -> Self {
        self.responds(error).with(|call| {
            call.facts.outcome = Some(Outcome::Error);
            call.facts.error = Some(sig(error));
        })
    }

    /// The figures in the error.
    pub fn figures(self, figures: &[f32]) -> Self {
        self.with(|call| call.facts.figures = figures.into())
    }

    /// The call failed without an error text.
    pub fn error_unknown(self) -> Self {
        self.with(|call| call.facts.error = None)
    }

    pub fn content(self, text: &str) -> Self {
        let result_text = format!("content {text}");
        self.result(&result_text)
            .with(|call| call.facts.content = Some(sig(text)))
    }

    /// The `state_hash` after the call, in addition to the rest of the outcome.
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

    /// The signature of the arguments that ignores numbers and the order of words.
    pub fn loose(self, words: &str) -> Self {
        self.with(|call| call.facts.loose_args = Some(sig(words)))
    }

    /// The arguments' words, as hashes.
    pub fn words(self, words: impl Iterator<Item = u32> + Clone) -> Self {
        self.with(|call| call.facts.arg_words = Some(words.clone().collect()))
    }

    /// The words of a search query, as hashes.
    pub fn query(self, words: &[u32]) -> Self {
        self.with(|call| call.facts.query_words = Some(words.into()))
    }

    /// A program with these words, a bit for each, and a short datum as its answer.
    pub fn program(self, words: u128) -> Self {
        self.with(|call| {
            call.facts.program = ProgramWords { words, numbers: 0 };
            call.facts.answer = AnswerKind::Brief;
        })
    }

    /// A short answer that does not say that all is well.
    pub fn leaves_open(self) -> Self {
        self.with(|call| call.facts.leaves_open = true)
    }

    /// The run found nothing.
    pub fn finds_nothing(self) -> Self {
        self.with(|call| call.facts.found_nothing = true)
    }

    /// The call returned much, or an unknown amount.
    pub fn productive(self) -> Self {
        self.with(|call| call.facts.unproductive = false)
    }

    /// The answer says that the write changed nothing.
    pub fn changes_nothing(self) -> Self {
        self.with(|call| call.facts.changed_nothing = true)
    }

    /// The call rewrites the agent's plan, with this many steps marked as done.
    pub fn plan(self, done: u16) -> Self {
        self.with(|call| call.facts.plan_steps_done = Some(done))
    }

    /// Nothing came back.
    pub fn empty(self) -> Self {
        self.with(|call| call.facts.answer = AnswerKind::Empty)
    }

    /// A read-only call of a tool of unknown operation.
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
        self.with(|call| (call.facts.kind, call.facts.is_wait) = (CallKind::Poll, true))
    }

    /// What the poll asks about is dead.
    pub fn dead(self) -> Self {
        self.with(|call| call.facts.is_dead = true)
    }

    /// The key of a poll without the time that it waits.
    pub fn poll_key(self, key: &str) -> Self {
        self.with(|call| call.facts.poll_key = Some(sig(key)))
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

    /// The count of the finding at each event; 0 without a finding.
    pub fn counts<D: Detector>(self, settings: &D::Settings) -> Vec<i32> {
        self.outcomes::<D>(settings)
            .into_iter()
            .map(|outcome| into_finding(outcome).map_or(0, |finding| finding.count))
            .collect()
    }

    pub fn findings<D: Detector>(self, settings: &D::Settings) -> Vec<Finding> {
        self.outcomes::<D>(settings)
            .into_iter()
            .filter_map(into_finding)
            .collect()
    }

    /// The [`outcome_letter`] of each event.
    pub fn outcome_letters<D: Detector>(self, settings: &D::Settings) -> String {
        self.outcomes::<D>(settings)
            .iter()
            .map(outcome_letter)
            .collect()
    }

    /// Runs the detector over the script as the engine does.
    fn outcomes<D: Detector>(self, settings: &D::Settings) -> Vec<DetectorOutcome> {
        let mut detector = D::default();
        let mut past = History::default();
        let mut progress = ProgressCounter::default();
        let mut outcomes = Vec::new();
        for step in self.0 {
            let index = outcomes.len() as i32;
            let (mut round, mut secs) = (None, 0);
            // Steps that are not events only change the state.
            let body = match step {
                ScriptStep::Cited => {
                    let cited: Vec<i32> = (0..index).collect();
                    past.consume(&cited);
                    detector.consume(&cited);
                    continue;
                }
                // A user starts new work, as in the engine: history and detector are cleared.
                ScriptStep::User => {
                    progress.start_new_work();
                    detector.reset_for_user();
                    past.clear();
                    outcomes.push(DetectorOutcome::NotApplicable);
                    continue;
                }
                ScriptStep::Compaction(context_tokens) => ObservationBody::Marker {
                    kind: MarkerKind::Compaction,
                    context_tokens,
                },
                ScriptStep::Turn(text) => {
                    let phrases = PhraseMatcher::new(D::phrases(settings)).unwrap();
                    let mut sketcher = Sketcher::default();
                    sketcher.push(&text, &phrases);
                    ObservationBody::Turn(sketcher.finish(&phrases))
                }
                // Progress is counted before the detector sees the call.
                ScriptStep::Call(mut call) => {
                    if call.after_progress {
                        progress.advance();
                    }
                    progress.record_call();
                    progress.record_state(call.facts.state);
                    let capacities = Capacities::default();
                    progress.record_write(&call.facts, &capacities.paths);
                    progress.record_figures(&mut call.facts);
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
            // The detector observes before the history has the event.
            let mut now = Observation {
                at,
                body,
                usage: UsageDelta::default(),
                world_moves: progress.world_moves(),
                new_results: progress.new_results(),
                capacities: Capacities::default(),
            };
            outcomes.push(detector.observe(&now, &past, settings));
            past.push(&mut now, Cost::default(), &CallText::default());
        }
        outcomes
    }
}

fn into_finding(outcome: DetectorOutcome) -> Option<Finding> {
    match outcome {
        DetectorOutcome::Match(finding) => Some(*finding),
        DetectorOutcome::NotApplicable
        | DetectorOutcome::MissingField(_)
        | DetectorOutcome::NoMatch
        | DetectorOutcome::Unchanged => None,
    }
}

/// One letter for an outcome: ` ` not applicable, `?` missing field, `.` no match,
/// `=` unchanged, `!` a new match, `+` a match that extends the last one.
pub fn outcome_letter(outcome: &DetectorOutcome) -> char {
    match outcome {
        DetectorOutcome::NotApplicable => ' ',
        DetectorOutcome::MissingField(_) => '?',
        DetectorOutcome::NoMatch => '.',
        DetectorOutcome::Unchanged => '=',
        DetectorOutcome::Match(finding) if finding.extends => '+',
        DetectorOutcome::Match(_) => '!',
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
