//! Logs, metrics and traces of the service itself.
//!
//! Uses: domain.

pub mod logs;
pub mod metrics;
pub mod traces;
mod wasted_cost;

pub use logs::LogFormat;
pub use metrics::{
    ConfigReloadOutcome, EventKind, EvictionReason, GaugeGuard, ListenerKind, Metrics,
    NotificationOutcome, PanicSite, Rejection, StoreSample, StreamRpc,
};
pub use traces::{Traces, TracesError};
