//! The agents, one file each. `dialect` has the forms shared by programs whose hooks are
//! modelled on those of Claude Code, `plug_in` the form of our own plug-ins.

mod claude_code;
mod cline;
mod codex;
mod copilot;
mod dialect;
mod gemini;
mod opencode;
mod pi;
mod plug_in;
mod qwen;

use super::AgentSpec;

/// All agents that are known.
pub const AGENTS: &[&AgentSpec] = &[
    &claude_code::AGENT,
    &codex::AGENT,
    &gemini::AGENT,
    &qwen::AGENT,
    &copilot::AGENT,
    &cline::AGENT,
    &opencode::AGENT,
    &pi::AGENT,
];
