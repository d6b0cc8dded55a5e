//! From finding to verdict: merges what the detectors found on an event into
//! one loop, remembers the loops of a session, and decides what to say and when.
//!
//! An event yields at most one ruling. A loop is reported once softly; it is
//! reported again, harder, when it goes on until its detector's trend is
//! chronic or when it comes back after it had ended; and it ends the session
//! when it holds `terminate_after` events.
//!
//! Uses: domain.

mod case;
mod judge;
mod memory;
mod ruling;
mod settings;
mod template;
mod trail;
mod trend;

pub use case::{Judgement, Sight};
pub use judge::Judge;
pub use ruling::Ruling;
pub use settings::{Ladder, LadderError, LadderSettings, Settings, TrendSettings};
pub use template::{TemplateError, TemplateFacts, Templates};
pub use trail::Sample;

#[cfg(test)]
mod tests;
