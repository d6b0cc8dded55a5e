//! From finding to verdict: merges what the detectors found on an event into
//! one loop, remembers the loops of a session, and decides what to say and when.
//!
//! An event yields at most one ruling. A loop is reported once softly; it is
//! reported again, harder, when it goes on until its detector's trend is
//! chronic or when it comes back after it had ended; and it ends the session
//! when it holds `terminate_after` events.
//!
//! Uses: domain.

mod agent_policy;
mod decision;
mod loop_history;
mod policy_state;
mod settings;
mod templates;
mod trend;
mod trend_history;

pub use agent_policy::AgentPolicy;
pub use decision::Decision;
pub use policy_state::{DetectorResults, PolicyOutcome};
pub use settings::{Escalation, EscalationSettings, PolicySettingsError, Settings, TrendSettings};
pub use templates::{TemplateContext, TemplateError, Templates};
pub use trend_history::PackedSample;

#[cfg(test)]
mod tests;
