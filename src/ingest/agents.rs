//! The agents, one file each.

mod claude_code;

use super::AgentSpec;

/// All agents that are known.
pub const AGENTS: &[&AgentSpec] = &[&claude_code::AGENT];
