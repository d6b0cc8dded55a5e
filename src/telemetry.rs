//! Logs, metrics and traces of the service itself.
//!
//! Uses: domain.

pub mod logs;
pub mod metrics;
mod money;
pub mod traces;

pub use logs::LogFormat;
pub use metrics::{
    EventKind, Eviction, Metrics, Notification, Open, Panicked, Rejection, Reload, Rpc, Side,
    StoreFigures,
};
pub use traces::{Traces, TracesError};
