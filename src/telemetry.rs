//! Logs, metrics and traces of the service itself.
//!
//! Uses: domain.

pub mod logs;
pub mod metrics;
pub mod traces;

pub use logs::LogFormat;
pub use metrics::{
    ClusterCount, ConfigReloadOutcome, EntryKind, EventKind, EvictionReason, GaugeGuard, HookNames,
    HookReplyKind, ListenerKind, Metrics, NotificationOutcome, PanicSite, Rejection, StoreStats,
    StreamRpc, UNKNOWN_HOOK_EVENT, WorkPart,
};
pub use traces::{Traces, TracesError};
