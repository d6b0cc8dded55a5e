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
mod model;
mod outage;
mod outcome;
mod progress;
mod report;
mod shell;
mod sql;
mod tool_traits;
mod tools;
mod word_overlap;

use std::{borrow::Cow, sync::Arc};

pub use model::{Model, ModelError, load_model};
pub use progress::ProgressCounter;
pub use tools::{ToolClass, ToolRule, ToolRuleError, ToolRules};
pub use word_overlap::WordOverlap;

use crate::{
    domain::{
        CallFacts, CallKind, Event, EventBody, Outcome, RepetitionSettings, Role, Sig, ToolCall,
        TurnFacts, sanitize,
    },
    text::{
        HashKey, PhraseMatcher, RepetitionTracker, Sketcher, key::SignatureKind, mask::MaskKind,
        memo::Memo,
    },
};
use args::{NotableArguments, ParsedArguments};
use tool_traits::ToolTraits;

/// Turns events into facts.
#[derive(Debug)]
pub struct FactExtractor {
    key: HashKey,
    tools: ToolRules,
    analyzers: Arc<TurnAnalyzers>,
    text_memo: Memo,
    traits_memo: Memo,
}

/// How turns are read: the same for all sessions.
#[derive(Debug, Default)]
pub struct TurnAnalyzers {
    pub phrase_matcher: PhraseMatcher,
    /// What turns are compared by; `None`: their words.
    pub model: Option<Model>,
}

/// What was made of a call: the facts, and the words for a person.
pub struct CallExtract<'a> {
    pub facts: CallFacts,
    pub target: Cow<'a, str>,
}

/// What was made of an event.
pub enum EventFacts<'a> {
    Call(CallExtract<'a>),
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
            Self::Call(extract) => extract.facts.state,
            Self::Turn(_, state) | Self::Other(state) => *state,
        }
    }
}

impl FactExtractor {
    /// As much of a turn a model looks at: some 700 words, more than most turns
    /// have.
    pub const EMBEDDED_BYTES_MAX: usize = 4_096;
    /// A verdict quotes 160 characters of a turn.
    const EXCERPT_BYTES_MAX: usize = 160 * 4;

    pub fn new(key: HashKey, tools: ToolRules, reader: Arc<TurnAnalyzers>) -> Self {
        Self {
            key,
            tools,
            analyzers: reader,
            text_memo: Memo::default(),
            traits_memo: Memo::default(),
        }
    }

    pub fn key(&self) -> &HashKey {
        &self.key
    }

    /// The facts of an event. `repeats` says what makes a text a loop; `None`:
    /// nobody asks.
    pub fn extract<'a>(
        &self,
        event: &'a Event,
        repeats: Option<&RepetitionSettings>,
    ) -> EventFacts<'a> {
        let state = self
            .key
            .signature_if_present(SignatureKind::State, &event.state_hash);
        match &event.body {
            // As if it had not been sent.
            EventBody::Call(call) if call.outcome == Some(Outcome::Blocked) => {
                EventFacts::Other(None)
            }
            EventBody::Call(call) => match self.extract_call(event, call) {
                Some(extract) => EventFacts::Call(extract),
                None => EventFacts::Other(state),
            },
            EventBody::Turn(turn) if turn.role == Role::Agent => {
                EventFacts::Turn(self.extract_turn(&turn.text, repeats), state)
            }
            EventBody::Turn(_) | EventBody::Marker(_) => EventFacts::Other(state),
        }
    }

    /// The facts of a call; `None` where its tool is exempt from detection.
    fn extract_call<'a>(&self, event: &'a Event, call: &'a ToolCall) -> Option<CallExtract<'a>> {
        let tool = self.key.signature(SignatureKind::Tool, &call.tool, 0);
        let traits = self
            .traits_memo
            .get_or_compute(tool.get(), || [ToolTraits::from_name(&call.tool).pack(), 0]);
        let traits = ToolTraits::unpack(traits[0]);
        let rule = self.tools.resolve(&call.tool, traits.class);
        let mut args = ParsedArguments::parse(&call.args, rule.ignore_args, &self.key);
        let (class, also_writes, lines_shown) =
            classify(rule.class, call, &traits, &mut args.notable);
        let lines = args.notable.line_range().or(lines_shown);
        if class == ToolClass::Exempt {
            return None;
        }
        let target = if call.target.is_empty() {
            args.notable.target.take().unwrap_or_default()
        } else {
            call.target.as_str().into()
        };
        let key = &self.key;
        let result = self.hash_text(call.result.as_deref().unwrap_or_default(), MaskKind::Result);
        let error = self.hash_text(&call.error, MaskKind::Error);
        let outcomes = self.outcome_signatures(event, call, rule.ignore_result, [&result, &error]);
        let outcome = effective_outcome(class, call);
        let failed = outcome == Some(Outcome::Error);
        let signature = args
            .hash
            .map(|args| key.signature(SignatureKind::Call, &call.tool, args));
        // A write's answer acknowledges, it does not tell.
        let acts = class.is_write()
            || (class == ToolClass::Other
                && traits.is_action
                && ack::is_receipt_sized(call.result.as_deref()));
        let facts = CallFacts {
            kind: classify_kind(class, call, failed),
            call: signature,
            tool,
            operation: call.operation.unwrap_or_else(|| class.operation()),
            also_writes,
            target: key
                .signature_if_present(SignatureKind::Target, &sanitize::strip_invisible(&target)),
            lines,
            loose_args: args.words.unordered_signature(key),
            arg_words: args.words.into_hashes(),
            outcome,
            masked_outcome: outcomes.masked,
            raw_outcome: outcomes.raw,
            response: if rule.ignore_result || (acts && !failed) {
                None
            } else {
                self.response_signature(call, failed, &result)
            },
            error: failed
                .then(|| self.error_signature(call, signature, &error))
                .flatten(),
            unproductive: failed || call.result.as_deref().is_some_and(ack::is_small_result),
            is_read_only: traits.is_read_only,
            content: key.signature_if_present(SignatureKind::Content, &call.content_hash),
            state: key.signature_if_present(SignatureKind::State, &event.state_hash),
        };
        Some(CallExtract { facts, target })
    }

    pub fn round_signature(&self, event: &Event) -> Option<Sig> {
        self.key
            .signature_if_present(SignatureKind::Round, &event.round_id)
    }

    fn extract_turn(&self, text: &str, repeats: Option<&RepetitionSettings>) -> TurnFacts {
        let mut sketcher = Sketcher::default();
        sketcher.push(text, &self.analyzers.phrase_matcher);
        let mut facts = sketcher.finish(&self.analyzers.phrase_matcher);
        facts.sketch.vector = self.embed(text);
        facts.repetition = repeats
            .and_then(|settings| RepetitionTracker::default().push(text, settings, &self.key));
        facts
    }

    /// What the model makes of the beginning of a turn; nothing where there is
    /// none. Costly: not for under a lock.
    pub fn embed(&self, text: &str) -> Box<[f32]> {
        let Some(model) = &self.analyzers.model else {
            return Box::default();
        };
        let beginning = sanitize::prefix(text, Self::EMBEDDED_BYTES_MAX);
        model.sketch(beginning).vector
    }

    /// How many bytes of a turn are kept while it is streamed: for the model, for
    /// the rules (`rules_bytes`, 0 without rules), and for the verdict's excerpt.
    pub fn turn_bytes_kept(&self, rules_bytes: usize) -> usize {
        match self.analyzers.model {
            Some(_) => Self::EMBEDDED_BYTES_MAX,
            None => rules_bytes.max(Self::EXCERPT_BYTES_MAX),
        }
    }

    pub fn analyzers(&self) -> &TurnAnalyzers {
        &self.analyzers
    }
}

/// What a call does, from its tool or its command line, and whether it writes
/// besides and which lines it shows. Finds what it acts on, on the way.
fn classify<'a>(
    known: Option<ToolClass>,
    call: &'a ToolCall,
    traits: &ToolTraits,
    args: &mut NotableArguments<'a>,
) -> (ToolClass, bool, Option<(u32, u32)>) {
    let command = args.command.take();
    let editor = || tools::classify_editor_command(command.as_deref().unwrap_or_default());
    let editor = traits.is_editor.then(editor);
    let (mut also_writes, mut lines_shown) = (false, None);
    let class = match editor.or(known) {
        Some(ToolClass::Other) if args.asks_to_wait => ToolClass::Poll,
        Some(ToolClass::Other)
            if traits.runs_sql && args.target.as_deref().is_some_and(sql::is_mutation) =>
        {
            // Each statement is of its own.
            args.target = None;
            ToolClass::Write
        }
        Some(ToolClass::Other) => traits.guessed_class[usize::from(args.has_path())],
        Some(class) => class,
        None => {
            let reported_target = Some(call.target.as_str()).filter(|target| !target.is_empty());
            let shell::ShellCommand {
                class,
                target,
                lines,
                writes_files: writes,
                has_patch: patches,
            } = match command.or(reported_target.map(Cow::Borrowed)) {
                None => return (ToolClass::Execute, false, None),
                Some(Cow::Borrowed(line)) => shell::parse_command_line(line),
                Some(Cow::Owned(line)) => shell::parse_command_line(&line).into_owned(),
            };
            also_writes = writes;
            lines_shown = lines;
            // A failed change of no file in particular is a failed run.
            let is_failed_run = class.is_write() && target.is_none() && has_failed(call);
            args.target = target.or_else(|| args.target.take());
            if is_failed_run && !patches {
                ToolClass::Execute
            } else {
                class
            }
        }
    };
    if class == ToolClass::Edit
        && let Some(file) = args.target.as_deref().and_then(find_patched_file)
    {
        args.target = Some(file.to_owned().into());
    }
    if class == ToolClass::Search && args.search_term.is_some() {
        args.target = args.search_term.take();
    }
    (class, also_writes, lines_shown)
}

/// The first file that a patch names.
fn find_patched_file(patch: &str) -> Option<&str> {
    const FILE_HEADERS: &[&str] = &[
        "*** Update File: ",
        "*** Add File: ",
        "*** Delete File: ",
        "+++ b/",
    ];
    let mut lines = patch.lines();
    lines.find_map(|line| {
        FILE_HEADERS
            .iter()
            .find_map(|header| line.strip_prefix(header))
            .map(str::trim)
    })
}

/// An error that was sent without an outcome is one.
fn reported_outcome(call: &ToolCall) -> Option<Outcome> {
    let error = (!call.error.is_empty()).then_some(Outcome::Error);
    call.outcome.or(error)
}

fn has_failed(call: &ToolCall) -> bool {
    reported_outcome(call) == Some(Outcome::Error)
}

/// A run that prints the report of failed tests has failed, whatever its last
/// command returned.
fn effective_outcome(class: ToolClass, call: &ToolCall) -> Option<Outcome> {
    let ran = class == ToolClass::Execute && reported_outcome(call) != Some(Outcome::Blocked);
    let reports_failures = |result: &String| report::reports_failures(result);
    if ran && call.result.as_ref().is_some_and(reports_failures) {
        return Some(Outcome::Error);
    }
    reported_outcome(call)
}

fn classify_kind(class: ToolClass, call: &ToolCall, failed: bool) -> CallKind {
    let outage = match reported_outcome(call) {
        Some(Outcome::Error) => {
            let result = call.result.as_deref().unwrap_or_default();
            outage::is_outage_error(if call.error.is_empty() {
                result
            } else {
                &call.error
            })
        }
        Some(Outcome::Ok) | None => call.result.as_deref().is_some_and(outage::is_outage_result),
        Some(Outcome::Blocked) => false,
    };
    match (outage, class) {
        (true, _) => CallKind::Outage,
        // A wait that fails is a failure like any other.
        (false, ToolClass::Poll) if !failed => CallKind::Poll,
        (false, _) => CallKind::Ordinary,
    }
}

#[cfg(test)]
mod tests;
