//! The inputs that a payload consists of, and the functions that build them for all agents.

use std::borrow::Cow;

use serde_json::Value;

use super::HookPayload;
use crate::{
    domain::{
        Args, Cost, Delta, Event, EventBody, Marker, MarkerKind, Outcome, Role, ToolCall, Turn,
        sanitize,
    },
    text::harness,
};

/// One item of a payload.
#[derive(Clone, Debug)]
pub enum Input {
    /// An event to record.
    Event(Event),
    /// A piece of the agent's text.
    Delta(Delta),
    /// A call that is about to be made, to be checked. It is not an event.
    Ask(AskedCall),
    /// The outcome of a call that a later event records.
    Outcome {
        call_id: String,
        outcome: ReportedOutcome,
    },
    /// The cost of earlier events. It is added to the next event.
    Cost(Cost),
    /// The session has ended.
    End,
}

/// A call that is about to be made.
#[derive(Clone, Debug)]
pub struct AskedCall {
    /// The id that the event with its result will have.
    pub call_id: String,
    pub call: ToolCall,
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedOutcome {
    pub outcome: Outcome,
    /// Empty: unknown.
    pub content_hash: String,
}

impl ReportedOutcome {
    /// Sets it on the call. A failed call's output is its error.
    pub fn apply_to(self, call: &mut ToolCall) {
        call.content_hash = self.content_hash;
        set_outcome(call, Some(self.outcome));
    }
}

/// The most bytes of an id of an event, a round or an agent.
const ID_BYTES_MAX: usize = 128;
/// The most bytes of a tool's name.
const TOOL_BYTES_MAX: usize = 128;

/// The id, or its hash if it is too long.
pub(super) fn bounded_id(id: &str) -> String {
    if id.len() <= ID_BYTES_MAX {
        return id.to_owned();
    }
    content_hash(id)
}

/// The hash of a file's content.
pub(super) fn content_hash(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes());
    hash.to_hex().get(..32).unwrap_or_default().to_owned()
}

/// An id for a call that the agent gives none. Equal payloads have equal ids.
pub(super) fn derived_id(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let hex = hasher.finalize().to_hex();
    hex.get(..32).unwrap_or_default().to_owned()
}

/// A call without its outcome. A tool without a name is called `unknown`, because the
/// engine compares calls by name.
pub(super) fn new_call(tool: &str, args: Option<&Value>) -> ToolCall {
    let name = sanitize::prefix(tool, TOOL_BYTES_MAX);
    ToolCall {
        tool: if name.is_empty() { "unknown" } else { name }.to_owned(),
        args: match args {
            None => Args::Unknown,
            Some(Value::String(text)) => Args::Text(text.clone()),
            Some(value) => Args::Text(value.to_string()),
        },
        ..ToolCall::default()
    }
}

/// A call with what it returned. Without an outcome, the exit code in the text decides.
pub(super) fn finished_call(
    tool: &str,
    args: Option<&Value>,
    text: Cow<'_, str>,
    outcome: Option<Outcome>,
) -> ToolCall {
    let outcome = outcome.or_else(|| outcome_of_text(&text));
    let mut call = ToolCall {
        result: Some(text.into_owned()),
        ..new_call(tool, args)
    };
    set_outcome(&mut call, outcome);
    call
}

/// A command with its output and an exit code from another field.
pub(super) fn finished_command(
    tool: &str,
    args: Option<&Value>,
    output: Cow<'_, str>,
    exit_code: i32,
) -> ToolCall {
    // Without any output the exit code is the error.
    let text = match &*output {
        "" if exit_code != 0 => format!("exit code {exit_code}").into(),
        _ => output,
    };
    finished_call(tool, args, text, Some(outcome_of_exit_code(exit_code)))
}

/// A failed call's output is its error.
pub(super) fn set_outcome(call: &mut ToolCall, outcome: Option<Outcome>) {
    call.outcome = outcome;
    if outcome == Some(Outcome::Error)
        && let Some(output) = call.result.take()
    {
        call.error = output;
    }
}

/// The outcome by the exit code that a harness reports in the text.
pub(super) fn outcome_of_text(text: &str) -> Option<Outcome> {
    harness::strip(text).exit_code.map(outcome_of_exit_code)
}

pub(super) fn outcome_of_exit_code(code: i32) -> Outcome {
    if code == 0 {
        Outcome::Ok
    } else {
        Outcome::Error
    }
}

/// The text of a result: a string, the texts of a list of parts, or else JSON.
pub(super) fn text_of(value: Option<&Value>) -> Cow<'_, str> {
    match value {
        None | Some(Value::Null) => Cow::Borrowed(""),
        Some(Value::String(text)) => Cow::Borrowed(text),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| match part.get("text") {
                Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
                _ => Cow::Owned(part.to_string()),
            });
            Cow::Owned(texts.collect::<Vec<_>>().join("\n"))
        }
        Some(other) => Cow::Owned(other.to_string()),
    }
}

/// The beginnings of prompts that a harness sends in the user's place. If they counted as the
/// user's, they would reset all counts.
const INJECTED_PROMPTS: &[&str] = &[
    "<task-notification>",
    "<system-reminder>",
    "<local-command-",
    "<command-",
    "System: Potential loop detected",
];

/// The event id of a prompt's turn, derived from the prompt's id if it has one.
pub(super) fn prompt_event_id(payload: &HookPayload) -> String {
    match &*payload.prompt_id() {
        "" => String::new(),
        id => derived_id(&["prompt", id]),
    }
}

/// A larger number of tokens is an error of the agent.
pub(super) const TOKENS_MAX: i64 = 1_000_000_000;

/// A number of tokens; 0 if the value is not a number.
pub(super) fn token_count(value: Option<&Value>) -> i64 {
    let count = value.and_then(Value::as_i64);
    count.unwrap_or_default().clamp(0, TOKENS_MAX)
}

/// The role of a prompt; `None`: it is empty, which no user sends.
pub(super) fn prompt_role(prompt: &str) -> Option<Role> {
    let text = prompt.trim_start();
    if text.is_empty() {
        return None;
    }
    let is_injected = INJECTED_PROMPTS.iter().any(|start| text.starts_with(start));
    Some(if is_injected {
        Role::System
    } else {
        Role::User
    })
}

/// The turn of a prompt; `None`: it is empty.
pub(super) fn prompt_turn(payload: &HookPayload, prompt: &str, event_id: String) -> Option<Input> {
    let role = prompt_role(prompt)?;
    Some(turn(payload, role, prompt, event_id))
}

pub(super) fn turn(payload: &HookPayload, role: Role, text: &str, event_id: String) -> Input {
    let turn = Turn {
        turn_id: String::new(),
        role,
        text: text.to_owned(),
    };
    event(payload, event_id, String::new(), EventBody::Turn(turn))
}

pub(super) fn compaction(payload: &HookPayload) -> Input {
    marker(payload, MarkerKind::Compaction, String::new())
}

pub(super) fn marker(payload: &HookPayload, kind: MarkerKind, event_id: String) -> Input {
    let marker = Marker {
        kind,
        context_tokens: 0,
    };
    event(payload, event_id, String::new(), EventBody::Marker(marker))
}

/// A finished call. The calls of one response of the model share `round_id`.
pub(super) fn call_event(
    payload: &HookPayload,
    call_id: &str,
    round_id: &str,
    call: ToolCall,
) -> Input {
    event(
        payload,
        bounded_id(call_id),
        bounded_id(round_id),
        EventBody::Call(call),
    )
}

/// The check of a call that is about to be made.
pub(super) fn ask(call_id: &str, tool: &str, args: Option<&Value>) -> Input {
    Input::Ask(AskedCall {
        call_id: bounded_id(call_id),
        call: new_call(tool, args),
    })
}

fn event(payload: &HookPayload, event_id: String, round_id: String, body: EventBody) -> Input {
    Input::Event(Event {
        session: payload.session.clone(),
        event_id,
        time: None,
        agent: payload.sub_agent.clone(),
        round_id,
        state_hash: String::new(),
        cost: Cost::default(),
        body,
    })
}
