//! The class, kind and outcome of a call.

use std::borrow::Cow;

use super::{
    FactExtractor, OutcomeFacts,
    args::NotableArguments,
    identity::CallIdentity,
    outcome::{CallTexts, TextHashes},
    poll,
    readings::Question,
};
use crate::{
    domain::{AnswerKind, CallKind, Outcome, ProgramWords, ToolCall},
    text::{answer::AnswerReading, failure_report, outage, sql},
    tools::{
        ToolClass, command_effect,
        shell::{self, ShellCommand},
        tool_traits::{self, ToolTraits},
    },
};

/// What a call does.
#[derive(Debug)]
pub(super) struct CallAction {
    pub class: ToolClass,
    /// A part of a command line changes a file, whatever the whole does.
    pub also_writes: bool,
    /// The lines that a command line shows.
    pub lines_shown: Option<(u32, u32)>,
    /// A command line that acts on no particular file.
    pub is_on_line: bool,
    pub moves_world: bool,
    /// It waits before it does anything else.
    pub waits_first: bool,
}

impl From<ToolClass> for CallAction {
    fn from(class: ToolClass) -> Self {
        Self {
            class,
            also_writes: false,
            lines_shown: None,
            is_on_line: false,
            moves_world: false,
            waits_first: class == ToolClass::Poll,
        }
    }
}

/// What a call does, by its tool or its command line. Corrects the target in `args` where
/// the class says better what the call acts on.
pub(super) fn classify_call<'a>(
    known: Option<ToolClass>,
    call: &'a ToolCall,
    traits: &ToolTraits,
    args: &mut NotableArguments<'a>,
) -> CallAction {
    let command = args.command.take();
    let class = if traits.is_editor {
        let command = command.as_deref().unwrap_or_default();
        Some(tool_traits::classify_editor_command(command))
    } else {
        known
    };
    let action = match class {
        Some(ToolClass::Other) => {
            let arguments = command.as_deref().unwrap_or_default();
            let effect = command_effect::program_effect(&call.tool, arguments);
            CallAction {
                also_writes: effect.changes,
                moves_world: effect.moves_world,
                ..classify_unknown_tool(traits, args).into()
            }
        }
        Some(class) => class.into(),
        None => classify_shell_call(call, command, args),
    };
    if action.class == ToolClass::Edit
        && let Some(file) = args.target.as_deref().and_then(find_patched_file)
    {
        args.target = Some(file.to_owned().into());
    }
    if action.class == ToolClass::Search && args.search_term.is_some() {
        args.target = args.search_term.take();
    }
    action
}

/// The class of a tool in no table, by its arguments and the words of its name.
fn classify_unknown_tool(traits: &ToolTraits, args: &mut NotableArguments<'_>) -> ToolClass {
    if args.asks_to_wait {
        return ToolClass::Poll;
    }
    if traits.runs_sql && args.target.as_deref().is_some_and(sql::is_mutation) {
        // Each statement differs; none is a target that is written again.
        args.target = None;
        return ToolClass::Write;
    }
    traits.guessed_class[usize::from(args.has_path())]
}

/// What a shell call does, by its command line, or by the reported target if it has none.
fn classify_shell_call<'a>(
    call: &'a ToolCall,
    command: Option<Cow<'a, str>>,
    args: &mut NotableArguments<'a>,
) -> CallAction {
    let reported_target = Some(call.target.as_str()).filter(|target| !target.is_empty());
    let line = command.or(reported_target.map(Cow::Borrowed));
    let ShellCommand {
        class,
        target,
        lines,
        writes_files,
        moves_world,
        has_patch,
    } = match &line {
        None => return ToolClass::Execute.into(),
        Some(Cow::Borrowed(line)) => shell::parse_command_line(line),
        Some(Cow::Owned(line)) => shell::parse_command_line(line).into_owned(),
    };
    let waits_first = class == ToolClass::Poll && line.as_deref().is_some_and(shell::waits_first);
    // A failed change of no particular file is a failed run.
    let is_failed_run = class.is_write() && target.is_none() && has_failed(call) && !has_patch;
    let is_on_line = target.is_none();
    args.target = target.or_else(|| args.target.take());
    CallAction {
        is_on_line,
        moves_world,
        class: if is_failed_run {
            ToolClass::Execute
        } else {
            class
        },
        also_writes: writes_files,
        lines_shown: lines,
        waits_first,
    }
}

/// The words of a call by which it is told whether it is about another object, if those
/// about other objects may have its answer: a short datum, nothing, "all is well".
pub(super) fn object_words(identity: &CallIdentity, answer: AnswerReading) -> ProgramWords {
    /// More words are a question, which can be asked in others.
    const NAME_WORDS_MAX: usize = 2;
    let (class, traits) = (identity.action.class, &identity.traits);
    let is_shell = identity.tool_class.is_none();
    if (answer.is_datum || answer.found_nothing) && (class == ToolClass::Execute || traits.runs_sql)
    {
        return identity.program;
    }
    let is_name = || {
        is_shell
            || identity
                .target
                .split_whitespace()
                .nth(NAME_WORDS_MAX)
                .is_none()
    };
    let names_object = match (answer.kind, class) {
        (AnswerKind::Substantial, ToolClass::Execute) => true,
        (AnswerKind::Substantial, ToolClass::Other) => traits.is_read_only && is_name(),
        (AnswerKind::Substantial, ToolClass::Search) => is_shell,
        (AnswerKind::Brief, ToolClass::Search) => is_name(),
        _ => false,
    };
    if !names_object {
        ProgramWords::default()
    } else if is_shell {
        identity.program
    } else {
        identity.program.with_tool(identity.tool)
    }
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

/// The outcome that was sent. An error text without an outcome is an error.
fn reported_outcome(call: &ToolCall) -> Option<Outcome> {
    let implied = (!call.error.is_empty()).then_some(Outcome::Error);
    call.outcome.or(implied)
}

pub(super) fn has_failed(call: &ToolCall) -> bool {
    reported_outcome(call) == Some(Outcome::Error)
}

impl FactExtractor {
    /// The outcome of a call. A run has failed, whatever its last command returned, if its
    /// harness reports an exit code, or its output reports the failure; any other call if its
    /// answer is an error and nothing else, unless it is the content of a file.
    pub(super) fn effective_outcome(
        &self,
        [is_run, is_data]: [bool; 2],
        call: &ToolCall,
        texts: &CallTexts<'_>,
        hashes: &TextHashes,
    ) -> Option<Outcome> {
        let reported = reported_outcome(call);
        if matches!(reported, Some(Outcome::Blocked | Outcome::Error)) {
            return reported;
        }
        let result = texts.result.as_deref().unwrap_or_default();
        let has_failed = if is_run {
            texts.exit_code.is_some_and(|code| code != 0)
                || self.ask(hashes.raw, Question::ReportsFailedRun, || {
                    failure_report::reports_failed_run(result)
                        || !is_data && failure_report::is_error_answer(result)
                })
        } else {
            !is_data && failure_report::is_error_answer(result)
        };
        if has_failed {
            Some(Outcome::Error)
        } else {
            reported
        }
    }

    /// Whether a call waits, or meets an outage of another system.
    pub(super) fn classify_kind(
        &self,
        action: &CallAction,
        call: &ToolCall,
        returned: &OutcomeFacts<'_>,
    ) -> CallKind {
        let waits = action.class == ToolClass::Poll;
        let failed = returned.outcome == Some(Outcome::Error);
        // Until a server is up, each wait for it fails. Any other failed wait is an ordinary
        // failure.
        let texts = &returned.texts;
        let error = match &*texts.error {
            "" => texts.result.as_deref().unwrap_or_default(),
            error => error,
        };
        if waits && action.waits_first && failed && poll::may_come(error) {
            return CallKind::Poll;
        }
        // An outage is told by the texts as they were sent.
        let result = call.result.as_deref().unwrap_or_default();
        let is_outage_error = |text, raw| {
            self.ask(raw, Question::IsOutageError, || {
                outage::is_outage_error(text)
            })
        };
        let is_outage = match reported_outcome(call) {
            Some(Outcome::Error) if call.error.is_empty() => {
                is_outage_error(result, returned.result.sent)
            }
            Some(Outcome::Error) => is_outage_error(&call.error, returned.error.sent),
            Some(Outcome::Ok) | None if result.is_empty() => false,
            Some(Outcome::Ok) | None => {
                self.ask(returned.result.sent, Question::IsOutageResult, || {
                    outage::is_outage_result(result)
                })
            }
            Some(Outcome::Blocked) => false,
        };
        if is_outage {
            CallKind::Outage
        } else if waits && !failed {
            CallKind::Poll
        } else {
            CallKind::Ordinary
        }
    }
}
