//! Logs and metrics of the service itself.
//!
//! Uses: domain.

pub mod logs;
pub mod metrics;

pub use logs::LogFormat;
pub use metrics::{EventKind, Metrics, Notification, OpenStream, Rejection, Rpc, StoreFigures};
