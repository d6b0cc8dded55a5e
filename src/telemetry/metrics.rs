//! Every metric: its name, its help, its labels. A handle is made once and its
//! labels are a closed set, so every series exists from the start and none can
//! be made by what an agent sends.

mod help;
mod notifications;
mod open_gauges;
mod rejections;
mod reloads;
mod safety;
mod store;

use std::{fmt, time::Duration};

use metrics::{Counter, Gauge, Histogram, with_local_recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub use notifications::NotificationOutcome;
pub use open_gauges::{GaugeGuard, ListenerKind, StreamRpc};
pub use rejections::{EvictionReason, Rejection};
pub use reloads::ConfigReloadOutcome;
pub use safety::PanicSite;
pub use store::StoreSample;

use super::wasted_cost::WastedCost;
use crate::domain::{Action, Capacities, DetectorId, Level, OPERATOR, SessionStatus, Waste};
use notifications::NotificationMetrics;
use rejections::RejectionCounters;
use reloads::ReloadCounters;
use safety::SafetyMetrics;
use store::StoreMetrics;

/// What came in.
#[derive(Clone, Copy, Debug)]
pub enum EventKind {
    ToolCall,
    Turn,
    Marker,
}

/// The handles.
pub struct Metrics {
    exporter: PrometheusHandle,
    events_by_kind: [Counter; 3],
    delta_bytes: Counter,
    detectors: Vec<DetectorMetrics>,
    wasted_usd: WastedCost,
    sessions_by_status: [Gauge; SessionStatus::ALL.len()],
    sessions_max: Gauge,
    state_bytes: Gauge,
    tombstone_bytes: Gauge,
    state_bytes_max: Gauge,
    operator_terminations: Counter,
    session_evictions: [Counter; 3],
    capacity_evictions: [Counter; 4],
    event_duration: Histogram,
    open_streams: [Gauge; StreamRpc::NAMES.len()],
    open_connections: [Gauge; 2],
    coalesced_responses: Counter,
    dropped_log_lines: Counter,
    rejections: RejectionCounters,
    safety: SafetyMetrics,
    reloads: ReloadCounters,
    store: StoreMetrics,
    notifications: NotificationMetrics,
}

struct DetectorMetrics {
    detections: Counter,
    verdicts: [Counter; 9],
    terminations: Counter,
    sessions_in_trend: [Gauge; 3],
    wasted_events: Counter,
    wasted_tokens: Counter,
}

/// From the engine's microsecond to a stall that somebody notices.
const DURATION_BUCKETS: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 1e-2, 0.1, 1.0,
];

impl Metrics {
    pub fn new<'a>(detectors: impl IntoIterator<Item = &'a str>) -> Result<Self, BuildError> {
        Self::with_receivers(detectors, [])
    }

    /// Takes the names of the detectors and of those who are notified.
    pub fn with_receivers<'a>(
        detectors: impl IntoIterator<Item = &'a str>,
        receivers: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(
                Matcher::Full("unstuck_event_duration_seconds".to_owned()),
                DURATION_BUCKETS,
            )?
            .build_recorder();
        let exporter = recorder.handle();
        let detectors: Vec<&str> = detectors.into_iter().collect();
        let receivers: Vec<&str> = receivers.into_iter().collect();
        Ok(with_local_recorder(&recorder, || {
            register(exporter, &detectors, &receivers)
        }))
    }

    /// In the Prometheus text format.
    pub fn render(&self) -> String {
        let mut text = self.exporter.render();
        self.wasted_usd.render(&mut text);
        text
    }

    /// Folds recorded durations into their buckets; to be called now and then.
    pub fn drain_histograms(&self) {
        self.exporter.run_upkeep();
    }

    pub fn count_event(&self, kind: EventKind) {
        self.events_by_kind[kind as usize].increment(1);
    }

    pub fn record_event_duration(&self, duration: Duration) {
        self.event_duration.record(duration);
    }

    pub fn count_delta_bytes(&self, bytes: usize) {
        self.delta_bytes.increment(bytes as u64);
    }

    pub fn count_detection(&self, detector: DetectorId) {
        if let Some(of) = self.detectors.get(detector.index()) {
            of.detections.increment(1);
        }
    }

    pub fn count_verdict(&self, detector: DetectorId, action: Action) {
        if let Some(of) = self.detectors.get(detector.index()) {
            of.verdicts[action as usize].increment(1);
        }
    }

    pub fn count_termination(&self, detector: Option<DetectorId>) {
        match detector.and_then(|detector| self.detectors.get(detector.index())) {
            Some(of) => of.terminations.increment(1),
            None => self.operator_terminations.increment(1),
        }
    }

    pub fn add_waste(&self, detector: DetectorId, waste: Waste) {
        if let Some(of) = self.detectors.get(detector.index()) {
            of.wasted_events.increment(waste.events.unsigned_abs());
            of.wasted_tokens.increment(waste.tokens.unsigned_abs());
        }
        self.wasted_usd.add(detector, waste.usd);
    }

    pub fn adjust_trend_counts(
        &self,
        detector: DetectorId,
        before: Option<Level>,
        after: Option<Level>,
    ) {
        let Some(of) = self.detectors.get(detector.index()) else {
            return;
        };
        if let Some(level) = before {
            of.sessions_in_trend[level as usize].decrement(1);
        }
        if let Some(level) = after {
            of.sessions_in_trend[level as usize].increment(1);
        }
    }

    pub fn adjust_session_counts(
        &self,
        before: Option<SessionStatus>,
        after: Option<SessionStatus>,
    ) {
        if let Some(status) = before {
            self.sessions_by_status[status as usize].decrement(1);
        }
        if let Some(status) = after {
            self.sessions_by_status[status as usize].increment(1);
        }
    }

    /// A session went from one status to another, or stayed.
    pub fn record_status_change(&self, before: SessionStatus, after: SessionStatus) {
        if before != after {
            self.adjust_session_counts(Some(before), Some(after));
        }
    }

    /// The bounds of the service, beside which its size means something.
    pub fn set_limits(&self, sessions_max: usize, state_bytes_max: usize) {
        self.sessions_max.set(sessions_max as f64);
        self.state_bytes_max.set(state_bytes_max as f64);
    }

    pub fn set_state_bytes(&self, sessions: usize, tombstones: usize) {
        self.state_bytes.set(sessions as f64);
        self.tombstone_bytes.set(tombstones as f64);
    }

    /// Sessions whose terminations a stream will not be pushed, to make room.
    pub fn count_evicted_push_sessions(&self, sessions: usize) {
        let [.., counter] = &self.capacity_evictions;
        counter.increment(sessions as u64);
    }

    /// What was forgotten to make room.
    pub fn count_capacity_evictions(&self, rooms: &Capacities) {
        let Capacities {
            paths,
            commands,
            loops,
        } = rooms;
        for (room, counter) in [paths, commands, loops]
            .into_iter()
            .zip(&self.capacity_evictions)
        {
            if room.evicted() > 0 {
                counter.increment(room.evicted().into());
            }
        }
    }

    pub fn count_session_eviction(&self, reason: EvictionReason) {
        self.session_evictions[reason as usize].increment(1);
    }

    /// A panic was contained.
    pub fn count_panic(&self, site: PanicSite) {
        self.safety.count_panic(site);
    }

    /// A response that was not read stands for another one too.
    pub fn count_coalesced_response(&self) {
        self.coalesced_responses.increment(1);
    }

    /// Log lines that were let go of so far.
    pub fn set_dropped_log_lines(&self, lines: usize) {
        self.dropped_log_lines.absolute(lines as u64);
    }

    /// A detector was not let end a session.
    pub fn count_withheld_termination(&self) {
        self.safety.count_withheld_termination();
    }

    pub fn set_breaker_open(&self, is_open: bool) {
        self.safety.set_breaker_open(is_open);
    }

    pub fn count_config_reload(&self, result: ConfigReloadOutcome) {
        self.reloads[result as usize].increment(1);
    }

    pub fn count_rejection(&self, reason: Rejection) {
        self.rejections[reason as usize].increment(1);
    }

    pub fn set_store_sample(&self, sample: &StoreSample) {
        self.store.set(sample);
    }

    pub fn count_notification(&self, receiver: usize, outcome: NotificationOutcome) {
        self.notifications.count_outcome(receiver, outcome);
    }

    /// A try to deliver a notice failed, and another will be made.
    pub fn count_notification_retry(&self, receiver: usize) {
        self.notifications.count_retry(receiver);
    }

    /// Counts a stream as open until the guard is dropped.
    pub fn track_stream(&self, rpc: StreamRpc) -> GaugeGuard {
        GaugeGuard::new(&self.open_streams[rpc as usize])
    }

    /// Counts a connection as open until the guard is dropped.
    pub fn track_connection(&self, side: ListenerKind) -> GaugeGuard {
        GaugeGuard::new(&self.open_connections[side as usize])
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[expect(
    clippy::disallowed_macros,
    reason = "the one place where metrics are made"
)]
fn register(exporter: PrometheusHandle, detectors: &[&str], receivers: &[&str]) -> Metrics {
    use metrics::{counter, gauge, histogram};

    help::describe();
    gauge!("unstuck_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    let zero = |counter: Counter| {
        counter.absolute(0);
        counter
    };
    let none = |gauge: Gauge| {
        gauge.set(0);
        gauge
    };
    Metrics {
        exporter,
        events_by_kind: ["tool_call", "turn", "marker"]
            .map(|kind| zero(counter!("unstuck_events_total", "kind" => kind))),
        delta_bytes: zero(counter!("unstuck_delta_bytes_total")),
        detectors: detectors
            .iter()
            .map(|name| register_detector(name))
            .collect(),
        wasted_usd: WastedCost::new(detectors),
        sessions_by_status: SessionStatus::ALL
            .map(|status| none(gauge!("unstuck_sessions", "status" => status.name()))),
        sessions_max: none(gauge!("unstuck_sessions_max")),
        state_bytes: none(gauge!("unstuck_state_bytes")),
        tombstone_bytes: none(gauge!("unstuck_tombstone_bytes")),
        state_bytes_max: none(gauge!("unstuck_state_bytes_max")),
        operator_terminations: zero(
            counter!("unstuck_sessions_terminated_total", "cause" => OPERATOR),
        ),
        capacity_evictions: ["path", "command", "loop", "stream_session"]
            .map(|what| zero(counter!("unstuck_forgotten_total", "what" => what))),
        session_evictions: EvictionReason::NAMES
            .map(|why| zero(counter!("unstuck_sessions_evicted_total", "reason" => why))),
        event_duration: histogram!("unstuck_event_duration_seconds"),
        open_streams: StreamRpc::NAMES.map(|rpc| none(gauge!("unstuck_streams", "rpc" => rpc))),
        open_connections: ListenerKind::NAMES
            .map(|side| none(gauge!("unstuck_connections", "side" => side))),
        coalesced_responses: zero(counter!("unstuck_responses_coalesced_total")),
        dropped_log_lines: zero(counter!("unstuck_log_lines_lost_total")),
        rejections: rejections::register(),
        safety: SafetyMetrics::register(),
        reloads: reloads::register(),
        store: StoreMetrics::register(),
        notifications: NotificationMetrics::register(receivers),
    }
}

#[expect(
    clippy::disallowed_macros,
    reason = "the one place where metrics are made"
)]
fn register_detector(name: &str) -> DetectorMetrics {
    use metrics::{counter, gauge};

    let name = name.to_owned();
    let zero = |counter: Counter| {
        counter.absolute(0);
        counter
    };
    let none = |gauge: Gauge| {
        gauge.set(0);
        gauge
    };
    DetectorMetrics {
        detections: zero(counter!("unstuck_detections_total", "detector" => name.clone())),
        verdicts: Action::ALL.map(|action| {
            zero(counter!("unstuck_verdicts_total", "detector" => name.clone(), "action" => action.name()))
        }),
        terminations: zero(counter!("unstuck_sessions_terminated_total", "cause" => name.clone())),
        sessions_in_trend: Level::ALL.map(|level| {
            none(gauge!("unstuck_sessions_in_trend", "detector" => name.clone(), "level" => level.name()))
        }),
        wasted_events: zero(counter!("unstuck_wasted_events_total", "detector" => name.clone())),
        wasted_tokens: zero(counter!("unstuck_wasted_tokens_total", "detector" => name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_exists_from_the_start_at_zero() {
        let text = Metrics::new(["exact_repeat"]).unwrap().render();
        for series in [
            "unstuck_events_total{kind=\"marker\"} 0",
            "unstuck_delta_bytes_total 0",
            "unstuck_detections_total{detector=\"exact_repeat\"} 0",
            "unstuck_verdicts_total{detector=\"exact_repeat\",action=\"terminate\"} 0",
            "unstuck_sessions{status=\"looping\"} 0",
            "unstuck_sessions_max 0",
            "unstuck_state_bytes 0",
            "unstuck_state_bytes_max 0",
            "unstuck_sessions_terminated_total{cause=\"operator\"} 0",
            "unstuck_sessions_evicted_total{reason=\"idle\"} 0",
            "unstuck_sessions_in_trend{detector=\"exact_repeat\",level=\"chronic\"} 0",
            "unstuck_wasted_events_total{detector=\"exact_repeat\"} 0",
            "unstuck_wasted_tokens_total{detector=\"exact_repeat\"} 0",
            "# TYPE unstuck_wasted_cost_usd_total counter",
            "unstuck_wasted_cost_usd_total{detector=\"exact_repeat\"} 0",
            "unstuck_event_duration_seconds_bucket{le=\"+Inf\"} 0",
            "unstuck_streams{rpc=\"StreamEvents\"} 0",
            "unstuck_rejected_total{reason=\"sessions_max\"} 0",
            "unstuck_log_lines_lost_total 0",
            "unstuck_store_commits_total 0",
            "unstuck_store_failures_total 0",
            "unstuck_store_shed_total 0",
            "unstuck_store_queue 0",
            "unstuck_store_bytes 0",
            "unstuck_store_failing 0",
            "unstuck_build_info{version=",
        ] {
            assert!(text.contains(series), "{series} is not in\n{text}");
        }
    }
}
