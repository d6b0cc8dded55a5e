//! What is the case, computed once an event: which tool class, which call,
//! which outcome, whether the session moved. Detectors compare these facts and
//! never look at text themselves.
//!
//! Calls and outcomes are compared by keyed hashes: the input is untrusted, and
//! an agent must not be able to make two different calls look equal. The words of
//! turns are hashed without a key (see `token`).
//!
//! Uses: domain, text.

mod ack;
mod args;
mod measure;
mod model;
mod outage;
mod outcome;
mod progress;
mod report;
mod shell;
mod sql;
mod tools;
mod traits;

use std::{borrow::Cow, sync::Arc};

pub use measure::WordOverlap;
pub use model::{Model, ModelError, load_model};
pub use progress::Progress;
pub use tools::{Class, ToolRule, ToolRuleError, Tools};

use crate::{
    domain::{
        Body, CallFacts, CallKind, Event, Outcome, RepeatSettings, Role, Sig, ToolCall, TurnFacts,
        text,
    },
    text::{Key, Listener, Sketcher, Watcher, key::Tag, mask::Mask, memo::Memo},
};
use args::{Arguments, Found};
use traits::Traits;

/// Turns events into facts.
#[derive(Debug)]
pub struct Facts {
    key: Key,
    tools: Tools,
    reader: Arc<Reader>,
    memo: Memo,
    traits: Memo,
}

/// How turns are read: the same for all sessions.
#[derive(Debug, Default)]
pub struct Reader {
    pub listener: Listener,
    /// What turns are compared by; `None`: their words.
    pub model: Option<Model>,
}

/// What was made of a call: the facts, and the words for a person.
pub struct Made<'a> {
    pub facts: CallFacts,
    pub target: Cow<'a, str>,
}

/// What was made of an event.
pub enum EventFacts<'a> {
    Call(Made<'a>),
    /// Of an agent's turn, and the state of the world after it.
    Turn(TurnFacts, Option<Sig>),
    /// No detector looks at it: a call that was blocked or is exempt, a marker,
    /// somebody else's turn. Only the state of the world counts.
    Other(Option<Sig>),
}

impl EventFacts<'_> {
    /// Takes them out; what stays says nothing.
    #[inline]
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Other(None))
    }

    /// The state of the world after the event, where it is known.
    pub fn state(&self) -> Option<Sig> {
        match self {
            Self::Call(made) => made.facts.state,
            Self::Turn(_, state) | Self::Other(state) => *state,
        }
    }
}

impl Facts {
    /// As much of a turn a model looks at: some 700 words, more than most turns
    /// have.
    pub const EMBEDDED_BYTES_MAX: usize = 4_096;
    /// A verdict quotes 160 characters of a turn.
    const QUOTED_BYTES_MAX: usize = 160 * 4;

    pub fn new(key: Key, tools: Tools, reader: Arc<Reader>) -> Self {
        Self {
            key,
            tools,
            reader,
            memo: Memo::default(),
            traits: Memo::default(),
        }
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The facts of an event. `repeats` says what makes a text a loop; `None`:
    /// nobody asks.
    pub fn of<'a>(&self, event: &'a Event, repeats: Option<&RepeatSettings>) -> EventFacts<'a> {
        let state = self.key.known(Tag::State, &event.state_hash);
        match &event.body {
            // As if it had not been sent.
            Body::Call(call) if call.outcome == Some(Outcome::Blocked) => EventFacts::Other(None),
            Body::Call(call) => match self.call(event, call) {
                Some(made) => EventFacts::Call(made),
                None => EventFacts::Other(state),
            },
            Body::Turn(turn) if turn.role == Role::Agent => {
                EventFacts::Turn(self.turn(&turn.text, repeats), state)
            }
            Body::Turn(_) | Body::Marker(_) => EventFacts::Other(state),
        }
    }

    /// The facts of a call; `None` where its tool is exempt from detection.
    fn call<'a>(&self, event: &'a Event, call: &'a ToolCall) -> Option<Made<'a>> {
        let tool = self.key.pair(Tag::Tool, &call.tool, 0);
        let traits = self
            .traits
            .get(tool.get(), || [Traits::of(&call.tool).packed(), 0]);
        let traits = Traits::unpacked(traits[0]);
        let rule = self.tools.look_up(&call.tool, traits.class);
        let mut args = Arguments::read(&call.args, rule.ignore_args, &self.key);
        let (class, also_writes, shown) = classify(rule.class, call, &traits, &mut args.found);
        let lines = args.found.lines().or(shown);
        if class == Class::Exempt {
            return None;
        }
        let target = if call.target.is_empty() {
            args.found.target.take().unwrap_or_default()
        } else {
            call.target.as_str().into()
        };
        let key = &self.key;
        let result = self.text(call.result.as_deref().unwrap_or_default(), Mask::Result);
        let error = self.text(&call.error, Mask::Error);
        let outcomes = self.outcomes(event, call, rule.ignore_result, [&result, &error]);
        let outcome = told_outcome(class, call);
        let failed = outcome == Some(Outcome::Error);
        let signature = args.hash.map(|args| key.pair(Tag::Call, &call.tool, args));
        // A write's answer acknowledges, it does not tell.
        let acts = class.writes()
            || (class == Class::Other && traits.acts && ack::is_short(call.result.as_deref()));
        let facts = CallFacts {
            kind: kind(class, call, failed),
            call: signature,
            tool,
            operation: call.operation.unwrap_or_else(|| class.operation()),
            also_writes,
            target: key.known(Tag::Target, &text::seen(&target)),
            lines,
            loose: args.words.loose(key),
            words: args.words.all(),
            outcome,
            masked: outcomes.masked,
            raw: outcomes.raw,
            said: if rule.ignore_result || (acts && !failed) {
                None
            } else {
                self.said(call, failed, &result)
            },
            error: failed
                .then(|| self.error(call, signature, &error))
                .flatten(),
            in_vain: failed || call.result.as_deref().is_some_and(ack::is_little),
            looks: traits.looks,
            content: key.known(Tag::Content, &call.content_hash),
            state: key.known(Tag::State, &event.state_hash),
        };
        Some(Made { facts, target })
    }

    pub fn round(&self, event: &Event) -> Option<Sig> {
        self.key.known(Tag::Round, &event.round_id)
    }

    fn turn(&self, text: &str, repeats: Option<&RepeatSettings>) -> TurnFacts {
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &self.reader.listener);
        let mut facts = sketcher.finish(&self.reader.listener);
        facts.sketch.vector = self.vector(text);
        facts.repeated =
            repeats.and_then(|settings| Watcher::default().push(text, settings, &self.key));
        facts
    }

    /// What the model makes of the beginning of a turn; nothing where there is
    /// none. Costly: not for under a lock.
    pub fn vector(&self, text: &str) -> Box<[f32]> {
        let Some(model) = &self.reader.model else {
            return Box::default();
        };
        let beginning = text::prefix(text, Self::EMBEDDED_BYTES_MAX);
        model.sketch(beginning).vector
    }

    /// How many bytes of a turn are kept while it is streamed: for the model, for
    /// the rules (`rules_bytes`, 0 without rules), and for the verdict's excerpt.
    pub fn turn_bytes_kept(&self, rules_bytes: usize) -> usize {
        match self.reader.model {
            Some(_) => Self::EMBEDDED_BYTES_MAX,
            None => rules_bytes.max(Self::QUOTED_BYTES_MAX),
        }
    }

    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}

/// What a call does, from its tool or its command line, and whether it writes
/// besides and which lines it shows. Finds what it acts on, on the way.
fn classify<'a>(
    known: Option<Class>,
    call: &'a ToolCall,
    traits: &Traits,
    args: &mut Found<'a>,
) -> (Class, bool, Option<(u32, u32)>) {
    let command = args.command.take();
    let editor = || tools::edits(command.as_deref().unwrap_or_default());
    let editor = traits.is_editor.then(editor);
    let (mut also_writes, mut shown) = (false, None);
    let class = match editor.or(known) {
        Some(Class::Other) if args.waits => Class::Poll,
        Some(Class::Other)
            if traits.runs_sql && args.target.as_deref().is_some_and(sql::is_change) =>
        {
            // Each statement is of its own.
            args.target = None;
            Class::Write
        }
        Some(Class::Other) => traits.guessed[usize::from(args.has_path())],
        Some(class) => class,
        None => {
            let sent = Some(call.target.as_str()).filter(|target| !target.is_empty());
            let shell::Command {
                class,
                target,
                lines,
                writes,
                patches,
            } = match command.or(sent.map(Cow::Borrowed)) {
                None => return (Class::Execute, false, None),
                Some(Cow::Borrowed(line)) => shell::read(line),
                Some(Cow::Owned(line)) => shell::read(&line).into_owned(),
            };
            also_writes = writes;
            shown = lines;
            // A failed change of no file in particular is a failed run.
            let run = class.writes() && target.is_none() && failed(call);
            args.target = target.or_else(|| args.target.take());
            if run && !patches {
                Class::Execute
            } else {
                class
            }
        }
    };
    if class == Class::Edit
        && let Some(file) = args.target.as_deref().and_then(patched_file)
    {
        args.target = Some(file.to_owned().into());
    }
    if class == Class::Search && args.sought.is_some() {
        args.target = args.sought.take();
    }
    (class, also_writes, shown)
}

/// The first file that a patch names.
fn patched_file(patch: &str) -> Option<&str> {
    const HEADS: &[&str] = &[
        "*** Update File: ",
        "*** Add File: ",
        "*** Delete File: ",
        "+++ b/",
    ];
    let mut lines = patch.lines();
    lines.find_map(|line| {
        HEADS
            .iter()
            .find_map(|head| line.strip_prefix(head))
            .map(str::trim)
    })
}

/// An error that was sent without an outcome is one.
fn outcome(call: &ToolCall) -> Option<Outcome> {
    let error = (!call.error.is_empty()).then_some(Outcome::Error);
    call.outcome.or(error)
}

fn failed(call: &ToolCall) -> bool {
    outcome(call) == Some(Outcome::Error)
}

/// A run that prints the report of failed tests has failed, whatever its last
/// command returned.
fn told_outcome(class: Class, call: &ToolCall) -> Option<Outcome> {
    let ran = class == Class::Execute && outcome(call) != Some(Outcome::Blocked);
    let reported = |result: &String| report::tells_failures(result);
    if ran && call.result.as_ref().is_some_and(reported) {
        return Some(Outcome::Error);
    }
    outcome(call)
}

fn kind(class: Class, call: &ToolCall, failed: bool) -> CallKind {
    let outage = match outcome(call) {
        Some(Outcome::Error) => {
            let told = call.result.as_deref().unwrap_or_default();
            outage::is_error(if call.error.is_empty() {
                told
            } else {
                &call.error
            })
        }
        Some(Outcome::Ok) | None => call.result.as_deref().is_some_and(outage::is_result),
        Some(Outcome::Blocked) => false,
    };
    match (outage, class) {
        (true, _) => CallKind::Outage,
        // A wait that fails is a failure like any other.
        (false, Class::Poll) if !failed => CallKind::Poll,
        (false, _) => CallKind::Ordinary,
    }
}

#[cfg(test)]
mod tests;
