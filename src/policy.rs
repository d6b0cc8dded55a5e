//! From findings to a verdict: merges the findings of an event into one loop,
//! remembers the loops of an agent, and decides what to report and when.
//!
//! An event yields at most one decision. A loop is first reported with the soft
//! action. It is reported again with a harder action when it continues until its
//! detector's trend is chronic, or when it recurs after it had ended. It terminates
//! the session when it has `terminate_after` events.
//!
//! Uses: domain.

mod actions;
mod agent_policy;
mod decision;
mod loop_history;
mod settings;
mod templates;
mod trend;
mod trend_history;

pub use agent_policy::{AgentPolicy, DetectorResults, PolicyOutcome, Refusal};
pub use decision::Decision;
pub use loop_history::LoopHistory;
pub use settings::{Escalation, EscalationSettings, PolicySettingsError, Settings, TrendSettings};
pub use templates::{TemplateContext, TemplateError, Templates, render_refusals};
pub use trend_history::PackedSample;

#[cfg(test)]
mod tests;
