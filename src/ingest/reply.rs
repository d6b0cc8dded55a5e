//! What the service wants of an agent at a hook, and the reply that asks for it.

use serde_json::{Value, json};

use super::HookEvent;

/// What is wanted, weakest to strongest. A verdict's action becomes one of these at the
/// stage of the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instruction {
    /// The person sees a line.
    Notify,
    /// The agent is told too, and goes on.
    Advise,
    /// A person decides about the call.
    Confirm,
    /// The call is not made, and the agent is told why.
    Refuse,
    /// The finished turn is not enough: the agent goes on with the correction.
    Rework,
    /// The run ends.
    Stop,
}

/// What a reply is made of.
#[derive(Clone, Copy, Debug)]
pub struct ReplyRequest<'a> {
    pub event: &'static HookEvent,
    pub instruction: Instruction,
    /// For the person: one line, with the prefix.
    pub line: &'a str,
    /// For the agent: the correction, with the prefix.
    pub advice: &'a str,
    /// Nobody is at the terminal.
    pub unattended: bool,
}

/// The answer to a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// What the agent reads. `{}`: go on.
    pub body: Value,
    /// No reply ends this agent's run: `unstuck hook` may interrupt the process.
    pub interrupt: bool,
}

impl Reply {
    /// The agent goes on as without a hook.
    pub fn none() -> Self {
        Self::new(json!({}))
    }

    pub fn new(body: Value) -> Self {
        Self {
            body,
            interrupt: false,
        }
    }

    pub fn interrupting(body: Value) -> Self {
        Self {
            body,
            interrupt: true,
        }
    }
}
