//! The instruction to an agent at a hook, and the reply that carries it.

use serde_json::{Value, json};

use super::HookEvent;

/// An instruction, weakest to strongest. The verdict's action and the stage of the hook decide
/// which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instruction {
    /// The person sees a line.
    Notify,
    /// The agent also gets the correction, and continues.
    Advise,
    /// A person decides about the call.
    Confirm,
    /// The call is not made, and the agent gets the reason.
    Refuse,
    /// The turn does not end: the agent continues with the correction.
    Rework,
    /// The run ends.
    Stop,
}

/// The parts of a reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyRequest<'a> {
    pub event: &'static HookEvent,
    pub instruction: Instruction,
    /// For the person: one line, with the prefix.
    pub line: &'a str,
    /// For the agent: the correction, with the prefix.
    pub advice: &'a str,
    /// There is no person at the terminal.
    pub unattended: bool,
}

/// The answer to a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The JSON that the agent reads. With `{}` it continues.
    pub body: Value,
    /// The run must end, and no reply of this agent ends it: `unstuck hook` may interrupt the
    /// process.
    pub interrupt: bool,
}

impl Reply {
    /// The agent continues as without a hook.
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
