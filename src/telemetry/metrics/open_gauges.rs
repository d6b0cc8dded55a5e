//! What stays open: streams and connections.

use metrics::Gauge;

/// Streams that stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRpc {
    StreamEvents,
    StreamDeltas,
    WatchVerdicts,
    /// Of health.
    HealthWatch,
    ServerReflectionInfo,
}

impl StreamRpc {
    pub(super) const NAMES: [&'static str; 5] = [
        "StreamEvents",
        "StreamDeltas",
        "WatchVerdicts",
        "Watch",
        "ServerReflectionInfo",
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Where clients connect.
#[derive(Clone, Copy, Debug)]
pub enum ListenerKind {
    Grpc,
    Http,
}

impl ListenerKind {
    pub(super) const NAMES: [&'static str; 2] = ["grpc", "http"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// An open stream or connection in its gauge.
pub struct GaugeGuard(Gauge);

impl GaugeGuard {
    pub(super) fn new(gauge: &Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
