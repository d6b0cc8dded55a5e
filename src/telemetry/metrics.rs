//! Every metric: its name, its help, its labels. A handle is made once and its
//! labels are a closed set, so every series exists from the start and none can
//! be made by what an agent sends.

mod help;
mod notifications;
mod open;
mod rejections;
mod reloads;
mod safety;
mod store;

use std::{fmt, time::Duration};

use metrics::{Counter, Gauge, Histogram, with_local_recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub use notifications::Notification;
pub use open::{Open, Rpc, Side};
pub use rejections::{Eviction, Rejection};
pub use reloads::Reload;
pub use safety::Panicked;
pub use store::StoreFigures;

use super::money::Money;
use crate::domain::{Action, DetectorId, Level, OPERATOR, Rooms, Status, Waste};
use notifications::OfReceivers;
use rejections::Rejected;
use reloads::Reloads;
use safety::OfSafety;
use store::OfStore;

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
    events: [Counter; 3],
    delta_bytes: Counter,
    detectors: Vec<OfDetector>,
    wasted_usd: Money,
    sessions: [Gauge; Status::ALL.len()],
    sessions_max: Gauge,
    state_bytes: Gauge,
    tombstone_bytes: Gauge,
    state_bytes_max: Gauge,
    terminated_by_operator: Counter,
    evicted: [Counter; 3],
    forgotten: [Counter; 4],
    event_duration: Histogram,
    streams: [Gauge; Rpc::NAMES.len()],
    connections: [Gauge; 2],
    coalesced: Counter,
    log_lines_lost: Counter,
    rejected: Rejected,
    safety: OfSafety,
    reloads: Reloads,
    store: OfStore,
    notifications: OfReceivers,
}

struct OfDetector {
    detections: Counter,
    verdicts: [Counter; 9],
    terminated: Counter,
    in_trend: [Gauge; 3],
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
    pub fn tidy(&self) {
        self.exporter.run_upkeep();
    }

    pub fn event(&self, kind: EventKind) {
        self.events[kind as usize].increment(1);
    }

    pub fn event_duration(&self, duration: Duration) {
        self.event_duration.record(duration);
    }

    pub fn delta(&self, bytes: usize) {
        self.delta_bytes.increment(bytes as u64);
    }

    pub fn detection(&self, detector: DetectorId) {
        if let Some(of) = self.detectors.get(detector.index()) {
            of.detections.increment(1);
        }
    }

    pub fn verdict(&self, detector: DetectorId, action: Action) {
        if let Some(of) = self.detectors.get(detector.index()) {
            of.verdicts[action as usize].increment(1);
        }
    }

    pub fn terminated(&self, detector: Option<DetectorId>) {
        match detector.and_then(|detector| self.detectors.get(detector.index())) {
            Some(of) => of.terminated.increment(1),
            None => self.terminated_by_operator.increment(1),
        }
    }

    pub fn wasted(&self, detector: DetectorId, waste: Waste) {
        if let Some(of) = self.detectors.get(detector.index()) {
            of.wasted_events.increment(waste.events.unsigned_abs());
            of.wasted_tokens.increment(waste.tokens.unsigned_abs());
        }
        self.wasted_usd.add(detector, waste.usd);
    }

    pub fn trend(&self, detector: DetectorId, before: Option<Level>, after: Option<Level>) {
        let Some(of) = self.detectors.get(detector.index()) else {
            return;
        };
        if let Some(level) = before {
            of.in_trend[level as usize].decrement(1);
        }
        if let Some(level) = after {
            of.in_trend[level as usize].increment(1);
        }
    }

    pub fn session(&self, before: Option<Status>, after: Option<Status>) {
        if let Some(status) = before {
            self.sessions[status as usize].decrement(1);
        }
        if let Some(status) = after {
            self.sessions[status as usize].increment(1);
        }
    }

    /// A session went from one status to another, or stayed.
    pub fn moved(&self, before: Status, after: Status) {
        if before != after {
            self.session(Some(before), Some(after));
        }
    }

    /// The bounds of the service, beside which its size means something.
    pub fn limits(&self, sessions_max: usize, state_bytes_max: usize) {
        self.sessions_max.set(sessions_max as f64);
        self.state_bytes_max.set(state_bytes_max as f64);
    }

    pub fn state_bytes(&self, sessions: usize, tombstones: usize) {
        self.state_bytes.set(sessions as f64);
        self.tombstone_bytes.set(tombstones as f64);
    }

    /// Sessions whose terminations a stream will not be pushed, to make room.
    pub fn pushes_forgotten(&self, sessions: usize) {
        let [.., counter] = &self.forgotten;
        counter.increment(sessions as u64);
    }

    /// What was forgotten to make room.
    pub fn forgot(&self, rooms: &Rooms) {
        let Rooms {
            paths,
            commands,
            loops,
        } = rooms;
        for (room, counter) in [paths, commands, loops].into_iter().zip(&self.forgotten) {
            if room.forgotten() > 0 {
                counter.increment(room.forgotten().into());
            }
        }
    }

    pub fn evicted(&self, why: Eviction) {
        self.evicted[why as usize].increment(1);
    }

    /// A panic was contained.
    pub fn panicked(&self, place: Panicked) {
        self.safety.panicked(place);
    }

    /// A response that was not read stands for another one too.
    pub fn coalesced(&self) {
        self.coalesced.increment(1);
    }

    /// Log lines that were let go of so far.
    pub fn log_lines_lost(&self, lines: usize) {
        self.log_lines_lost.absolute(lines as u64);
    }

    /// A detector was not let end a session.
    pub fn withheld(&self) {
        self.safety.withheld();
    }

    pub fn breaker(&self, is_open: bool) {
        self.safety.breaker(is_open);
    }

    pub fn reloaded(&self, result: Reload) {
        self.reloads[result as usize].increment(1);
    }

    pub fn rejected(&self, why: Rejection) {
        self.rejected[why as usize].increment(1);
    }

    pub fn store(&self, figures: &StoreFigures) {
        self.store.set(figures);
    }

    pub fn notification(&self, receiver: usize, outcome: Notification) {
        self.notifications.count(receiver, outcome);
    }

    /// A try to deliver a notice failed, and another will be made.
    pub fn notification_retried(&self, receiver: usize) {
        self.notifications.retried(receiver);
    }

    /// Counts a stream as open until the guard is dropped.
    pub fn stream(&self, rpc: Rpc) -> Open {
        Open::new(&self.streams[rpc as usize])
    }

    /// Counts a connection as open until the guard is dropped.
    pub fn connection(&self, side: Side) -> Open {
        Open::new(&self.connections[side as usize])
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
        events: ["tool_call", "turn", "marker"]
            .map(|kind| zero(counter!("unstuck_events_total", "kind" => kind))),
        delta_bytes: zero(counter!("unstuck_delta_bytes_total")),
        detectors: detectors.iter().map(|name| of_detector(name)).collect(),
        wasted_usd: Money::new(detectors),
        sessions: Status::ALL
            .map(|status| none(gauge!("unstuck_sessions", "status" => status.name()))),
        sessions_max: none(gauge!("unstuck_sessions_max")),
        state_bytes: none(gauge!("unstuck_state_bytes")),
        tombstone_bytes: none(gauge!("unstuck_tombstone_bytes")),
        state_bytes_max: none(gauge!("unstuck_state_bytes_max")),
        terminated_by_operator: zero(
            counter!("unstuck_sessions_terminated_total", "cause" => OPERATOR),
        ),
        forgotten: ["path", "command", "loop", "stream_session"]
            .map(|what| zero(counter!("unstuck_forgotten_total", "what" => what))),
        evicted: Eviction::NAMES
            .map(|why| zero(counter!("unstuck_sessions_evicted_total", "reason" => why))),
        event_duration: histogram!("unstuck_event_duration_seconds"),
        streams: Rpc::NAMES.map(|rpc| none(gauge!("unstuck_streams", "rpc" => rpc))),
        connections: Side::NAMES.map(|side| none(gauge!("unstuck_connections", "side" => side))),
        coalesced: zero(counter!("unstuck_responses_coalesced_total")),
        log_lines_lost: zero(counter!("unstuck_log_lines_lost_total")),
        rejected: rejections::register(),
        safety: OfSafety::register(),
        reloads: reloads::register(),
        store: OfStore::register(),
        notifications: OfReceivers::register(receivers),
    }
}

#[expect(
    clippy::disallowed_macros,
    reason = "the one place where metrics are made"
)]
fn of_detector(name: &str) -> OfDetector {
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
    OfDetector {
        detections: zero(counter!("unstuck_detections_total", "detector" => name.clone())),
        verdicts: Action::ALL.map(|action| {
            zero(counter!("unstuck_verdicts_total", "detector" => name.clone(), "action" => action.name()))
        }),
        terminated: zero(counter!("unstuck_sessions_terminated_total", "cause" => name.clone())),
        in_trend: Level::ALL.map(|level| {
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
