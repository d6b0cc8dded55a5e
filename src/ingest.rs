//! The normaliser: turns the hook payloads and the transcripts of agent programs into events
//! of the service, and verdicts into the reply that each program understands.
//!
//! An agent is one file in `agents/`: a table of names ([`AgentSpec`]) and two functions,
//! from a payload to [`Input`]s and from an [`Instruction`] to a [`Reply`]. `payload` reads
//! the fields that the table names, `input` has what the agents share (outcomes, content
//! hashes, injected prompts), `wording` the sentences for the person and for the agent,
//! `transcripts` the readers of recorded sessions. docs/agents/adding.md adds a ninth agent
//! step by step.
//!
//! Uses: domain, text.

mod agents;
mod claude_result;
mod input;
mod ndjson;
mod otlp;
mod payload;
mod reply;
pub mod transcripts;
mod wording;

pub use agents::AGENTS;
pub use input::{AskedCall, Input, ReportedOutcome};
pub use ndjson::{LineTooLong, NdjsonReader, NumberedLine};
pub use payload::{HookPayload, HookQuery, PayloadError};
pub use reply::{Instruction, Reply, ReplyRequest};
pub use wording::Wording;

use std::borrow::Cow;

use serde_json::Value;

/// The agent's name in a route if the payload is to decide which agent it is from.
pub const AUTO: &str = "auto";

/// An agent program whose hooks can call the service.
#[derive(Debug)]
pub struct AgentSpec {
    /// The name in the route, in configuration, in the label `agent` and in metrics.
    pub name: &'static str,
    /// The name for people.
    pub title: &'static str,
    /// Other names that are accepted for it.
    pub aliases: &'static [&'static str],
    /// The command that opens a session again; `{}` is the session's id.
    pub resume: &'static str,
    /// The places of the fields in a payload.
    pub fields: FieldTable,
    /// The events that are known. Others are answered with `{}`.
    pub events: &'static [HookEvent],
    pub capabilities: Capabilities,
    /// Whether a payload without another hint is from this agent.
    pub recognises: fn(&Value) -> bool,
    pub inputs: fn(&HookPayload) -> Vec<Input>,
    /// The reply to an instruction. `None`: the agent uses no reply at this event.
    pub reply: fn(&ReplyRequest) -> Option<Reply>,
}

/// The places of the fields in a payload, as JSON pointers. Empty: there is none.
#[derive(Clone, Copy, Debug)]
pub struct FieldTable {
    /// The name of the event. Without this field it is in the query.
    pub event: &'static str,
    /// The session's id: the first of these fields that exists.
    pub session: &'static [&'static str],
    /// The sub-agent's id; absent for the main agent.
    pub sub_agent: &'static str,
    /// A field that only a sub-agent has, for agents whose main agent has an id too.
    pub parent_agent: &'static str,
    /// The working directory.
    pub directory: &'static str,
    pub model: &'static str,
    /// The id of the user's prompt that the agent works on.
    pub prompt_id: &'static str,
}

/// An event that a hook can be registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookEvent {
    pub name: &'static str,
    pub stage: HookStage,
}

/// When an event happens, which decides what its reply can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStage {
    /// A call is about to be made.
    BeforeCall,
    /// Calls have finished. The agent continues with their results and the reply.
    AfterCall,
    /// The user has sent a prompt.
    Prompt,
    /// The agent has finished its turn.
    TurnEnd,
    /// The reply is not used.
    Silent,
}

/// The features that not all agents support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A person can be asked about a call. Otherwise it is refused.
    pub asks: bool,
    /// A call can be refused while the run goes on.
    pub refuses: bool,
    /// An event follows a refused call and is recorded as the refusal. Otherwise the
    /// refusal is recorded when it is given.
    pub reports_refusals: bool,
    /// A reply to the end of a turn can make the agent continue.
    pub reworks: bool,
}

impl HookEvent {
    pub const fn new(name: &'static str, stage: HookStage) -> Self {
        Self { name, stage }
    }
}

impl AgentSpec {
    pub fn event(&self, name: &str) -> Option<&'static HookEvent> {
        self.events.iter().find(|event| event.name == name)
    }

    /// The command that opens a session again, safe to paste into a shell: the id is
    /// whatever the caller sent.
    pub fn resume_command(&self, session_id: &str) -> String {
        self.resume.replace("{}", &quote_for_shell(session_id))
    }
}

/// Quotes a word for a shell command.
pub fn quote_for_shell(word: &str) -> Cow<'_, str> {
    // Quoting fails only for a NUL byte, which no id has.
    shlex::try_quote(word).unwrap_or_default()
}

/// The command that opens a session again. The labels of its first hook say of which agent it
/// is; `None`: it did not come from a hook or a transcript.
pub fn resume_command_of<'a>(label: impl Fn(&str) -> Option<&'a str>, id: &str) -> Option<String> {
    let agent = find_agent(label("agent")?)?;
    let has_source = label("source").is_some();
    has_source.then(|| agent.resume_command(id))
}

/// The agent with this name or alias.
pub fn find_agent(name: &str) -> Option<&'static AgentSpec> {
    let mut agents = AGENTS.iter().copied();
    agents.find(|agent| agent.name == name || agent.aliases.contains(&name))
}

/// The agent that sends payloads like this one.
pub fn recognise_agent(body: &Value) -> Option<&'static AgentSpec> {
    let mut agents = AGENTS.iter().copied();
    agents.find(|agent| (agent.recognises)(body))
}

#[cfg(test)]
mod tests;
