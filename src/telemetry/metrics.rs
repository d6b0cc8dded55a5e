//! The metrics of the service. `help.rs` has the help texts, `labels.rs` the label
//! values, `register.rs` the names.
//!
//! A handle is created once and labels are closed sets. Every series therefore exists
//! from the start, and none can be created by what an agent sends.

mod cost_counter;
mod exposition;
mod gauge_guard;
mod help;
mod labels;
mod register;

use std::{collections::BTreeMap, fmt, time::Duration};

use metrics::{Counter, Gauge, Histogram, with_local_recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub use gauge_guard::GaugeGuard;
pub use labels::{
    ClusterCount, ConfigReloadOutcome, EntryKind, EventKind, EvictionReason, HookReplyKind,
    ListenerKind, NotificationOutcome, PanicSite, Rejection, StreamRpc, WorkPart,
};

use crate::domain::{Action, Capacities, DetectorId, Level, Rating, SessionStatus, Waste};
use cost_counter::CostCounter;

/// The handles of all series.
pub struct Metrics {
    exporter: PrometheusHandle,
    events_by_kind: [Counter; EventKind::ALL.len()],
    delta_bytes: Counter,
    /// Indexed by `DetectorId`.
    detectors: Vec<DetectorMetrics>,
    wasted_usd: CostCounter,
    disobeyed_events: Counter,
    disobeying_sessions: Counter,
    disobeyed_usd: CostCounter,
    sessions_by_status: [Gauge; SessionStatus::ALL.len()],
    sessions_max: Gauge,
    state_bytes: Gauge,
    tombstone_bytes: Gauge,
    state_bytes_max: Gauge,
    operator_terminations: Counter,
    session_evictions: [Counter; EvictionReason::ALL.len()],
    evicted_entries: [Counter; EntryKind::ALL.len()],
    limited_work: [Counter; WorkPart::ALL.len()],
    event_duration: Histogram,
    hook_duration: Histogram,
    hooks: Vec<HookMetrics>,
    unreadable_hooks: Counter,
    open_streams: [Gauge; StreamRpc::ALL.len()],
    open_connections: [Gauge; ListenerKind::ALL.len()],
    connections_max: [Gauge; ListenerKind::ALL.len()],
    coalesced_responses: Counter,
    dropped_log_lines: Counter,
    rejections: [Counter; Rejection::ALL.len()],
    panics: [Counter; PanicSite::ALL.len()],
    breaker_open: Gauge,
    withheld_terminations: Counter,
    reloads: [Counter; ConfigReloadOutcome::ALL.len()],
    store: StoreMetrics,
    cluster_counts: [Counter; ClusterCount::ALL.len()],
    cluster_unreachable: Gauge,
    cluster_full: Gauge,
    cluster_unsaved_sessions: Gauge,
    cluster_replicas: Gauge,
    /// In the order of the configuration.
    receivers: Vec<ReceiverMetrics>,
}

struct DetectorMetrics {
    name: String,
    detections: Counter,
    verdicts: [Counter; Action::ALL.len()],
    terminations: Counter,
    sessions_in_trend: [Gauge; Level::ALL.len()],
    wasted_events: Counter,
    wasted_tokens: Counter,
    wasted_cached_tokens: Counter,
    rated_verdicts: [Gauge; Rating::ALL.len()],
}

/// The agents whose hooks are counted, each with its events.
pub type HookNames = Vec<(&'static str, Vec<&'static str>)>;

/// The event of a hook that is not in the agent's table.
pub const UNKNOWN_HOOK_EVENT: &str = "unknown";

struct HookMetrics {
    agent: &'static str,
    event: &'static str,
    replies: [Counter; HookReplyKind::ALL.len()],
}

struct StoreMetrics {
    commits: Counter,
    write_failures: Counter,
    dropped: Counter,
    removed_terminations: Counter,
    queue_len: Gauge,
    bytes: Gauge,
    bytes_max: Gauge,
    records: Gauge,
    oldest_unsynced: Gauge,
    write_failing: Gauge,
}

struct ReceiverMetrics {
    outcomes: [Counter; NotificationOutcome::ALL.len()],
    retries: Counter,
}

/// The figures of the store, counted by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreStats {
    pub commits: u64,
    pub write_failures: u64,
    pub dropped: u64,
    pub removed_terminations: u64,
    pub queue_len: usize,
    pub bytes: u64,
    /// 0: in memory only.
    pub bytes_max: u64,
    pub records: u64,
    pub oldest_unsynced: Duration,
    pub write_failing: bool,
}

/// The buckets reach from the engine's microsecond to a stall that a user notices.
const DURATION_BUCKETS: &[f64] = &[
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 1e-2, 0.1, 1.0,
];

/// The buckets reach from a read of a local socket to the time after which `unstuck hook`
/// gives up.
const HOOK_DURATION_BUCKETS: &[f64] = &[
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0,
];

impl Metrics {
    pub fn new<'a>(detectors: impl IntoIterator<Item = &'a str>) -> Result<Self, BuildError> {
        Self::with_names(detectors, [], HookNames::new())
    }

    /// Takes the names of the detectors, of the notification receivers and of the hooks.
    pub fn with_names<'a>(
        detectors: impl IntoIterator<Item = &'a str>,
        receivers: impl IntoIterator<Item = &'a str>,
        hooks: HookNames,
    ) -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(
                Matcher::Full(help::EVENT_DURATION.to_owned()),
                DURATION_BUCKETS,
            )?
            .set_buckets_for_metric(
                Matcher::Full(help::HOOK_DURATION.to_owned()),
                HOOK_DURATION_BUCKETS,
            )?
            .build_recorder();
        let exporter = recorder.handle();
        let detector_names: Vec<&str> = detectors.into_iter().collect();
        let receiver_names: Vec<&str> = receivers.into_iter().collect();
        Ok(with_local_recorder(&recorder, || {
            register::register(exporter, &detector_names, &receiver_names, hooks)
        }))
    }

    /// Renders all series in the Prometheus text format, in an order that never changes.
    pub fn render(&self) -> String {
        let mut text = self.exporter.render();
        self.wasted_usd.render(&mut text);
        self.disobeyed_usd.render(&mut text);
        exposition::sort_families(&text)
    }

    /// Moves recorded durations into their buckets. Must be called regularly: until
    /// then every duration takes memory.
    pub fn drain_histograms(&self) {
        self.exporter.run_upkeep();
    }

    pub fn count_event(&self, kind: EventKind) {
        self.events_by_kind[kind as usize].increment(1);
    }

    pub fn record_event_duration(&self, duration: Duration) {
        self.event_duration.record(duration);
    }

    pub fn record_hook_duration(&self, duration: Duration) {
        self.hook_duration.record(duration);
    }

    /// Counts a hook whose body is not JSON.
    pub fn count_unreadable_hook(&self) {
        self.unreadable_hooks.increment(1);
    }

    /// Counts a hook. `None`: the agent's table does not have the event.
    pub fn count_hook(&self, agent: &str, event: Option<&str>, reply: HookReplyKind) {
        let event = event.unwrap_or(UNKNOWN_HOOK_EVENT);
        let mut hooks = self.hooks.iter();
        let found = hooks.find(|hook| hook.agent == agent && hook.event == event);
        if let Some(hook) = found {
            hook.replies[reply as usize].increment(1);
        }
    }

    pub fn count_delta_bytes(&self, bytes: usize) {
        self.delta_bytes.increment(bytes as u64);
    }

    pub fn count_detection(&self, detector: DetectorId) {
        if let Some(metrics) = self.detectors.get(detector.index()) {
            metrics.detections.increment(1);
        }
    }

    pub fn count_verdict(&self, detector: DetectorId, action: Action) {
        if let Some(metrics) = self.detectors.get(detector.index()) {
            metrics.verdicts[action as usize].increment(1);
        }
    }

    pub fn count_termination(&self, detector: Option<DetectorId>) {
        match detector.and_then(|detector| self.detectors.get(detector.index())) {
            Some(metrics) => metrics.terminations.increment(1),
            None => self.operator_terminations.increment(1),
        }
    }

    pub fn add_waste(&self, detector: DetectorId, waste: Waste) {
        if let Some(metrics) = self.detectors.get(detector.index()) {
            metrics.wasted_events.increment(waste.events.unsigned_abs());
            metrics.wasted_tokens.increment(waste.tokens.unsigned_abs());
            let cached = waste.cached_tokens.unsigned_abs();
            metrics.wasted_cached_tokens.increment(cached);
        }
        self.wasted_usd.add_for(detector, waste.usd);
    }

    /// Counts an event after a termination; `is_first`: of its session or sub-agent.
    pub fn count_disobedience(&self, is_first: bool, usd: f64) {
        self.disobeyed_events.increment(1);
        self.disobeying_sessions.increment(u64::from(is_first));
        self.disobeyed_usd.add(usd);
    }

    /// Sets how many verdicts are rated. A detector that is no longer configured has no
    /// series.
    pub fn set_rating_counts(&self, counts: &BTreeMap<(String, Rating), u64>) {
        for detector in &self.detectors {
            for rating in Rating::ALL {
                let count = counts.get(&(detector.name.clone(), rating));
                let count = count.copied().unwrap_or_default();
                detector.rated_verdicts[rating as usize].set(count as f64);
            }
        }
    }

    /// Moves a session from one trend level to another; `None`: no trend.
    pub fn adjust_trend_counts(
        &self,
        detector: DetectorId,
        before: Option<Level>,
        after: Option<Level>,
    ) {
        let Some(metrics) = self.detectors.get(detector.index()) else {
            return;
        };
        if let Some(level) = before {
            metrics.sessions_in_trend[level as usize].decrement(1);
        }
        if let Some(level) = after {
            metrics.sessions_in_trend[level as usize].increment(1);
        }
    }

    /// Moves a session from one status to another; `None`: the session does not exist.
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

    /// Does nothing if the status is the same.
    pub fn record_status_change(&self, before: SessionStatus, after: SessionStatus) {
        if before != after {
            self.adjust_session_counts(Some(before), Some(after));
        }
    }

    /// Publishes the limits, so that queries can compare usage with them.
    pub fn set_limits(&self, sessions_max: usize, state_bytes_max: usize) {
        self.sessions_max.set(sessions_max as f64);
        self.state_bytes_max.set(state_bytes_max as f64);
    }

    pub fn set_connections_max(&self, listener: ListenerKind, connections_max: usize) {
        self.connections_max[listener as usize].set(connections_max as f64);
    }

    pub fn set_state_bytes(&self, sessions: usize, tombstones: usize) {
        self.state_bytes.set(sessions as f64);
        self.tombstone_bytes.set(tombstones as f64);
    }

    /// Counts sessions whose terminations are no longer pushed to a stream.
    pub fn count_evicted_push_sessions(&self, sessions: usize) {
        self.evicted_entries[EntryKind::StreamSession as usize].increment(sessions as u64);
    }

    /// Counts what detectors evicted to stay within these capacities.
    pub fn count_capacity_evictions(&self, capacities: &Capacities) {
        let Capacities {
            paths,
            commands,
            loops,
        } = capacities;
        for (kind, capacity) in [
            (EntryKind::Path, paths),
            (EntryKind::Command, commands),
            (EntryKind::Loop, loops),
        ] {
            if capacity.evicted() > 0 {
                self.evicted_entries[kind as usize].increment(capacity.evicted().into());
            }
        }
    }

    pub fn count_session_eviction(&self, reason: EvictionReason) {
        self.session_evictions[reason as usize].increment(1);
    }

    /// Counts a panic that was contained.
    pub fn count_panic(&self, site: PanicSite) {
        self.panics[site as usize].increment(1);
    }

    /// Counts an event or a delta on which a step was skipped.
    pub fn count_work_limited(&self, part: WorkPart) {
        self.limited_work[part as usize].increment(1);
    }

    /// Counts an unread response that was merged into a later one.
    pub fn count_coalesced_response(&self) {
        self.coalesced_responses.increment(1);
    }

    /// Sets the total of dropped log lines.
    pub fn set_dropped_log_lines(&self, lines: usize) {
        self.dropped_log_lines.absolute(lines as u64);
    }

    /// Counts a termination that the breaker replaced by a warning.
    pub fn count_withheld_termination(&self) {
        self.withheld_terminations.increment(1);
    }

    pub fn set_breaker_open(&self, is_open: bool) {
        self.breaker_open.set(f64::from(is_open));
    }

    pub fn count_config_reload(&self, result: ConfigReloadOutcome) {
        self.reloads[result as usize].increment(1);
    }

    pub fn count_rejection(&self, reason: Rejection) {
        self.rejections[reason as usize].increment(1);
    }

    pub fn set_store_stats(&self, stats: &StoreStats) {
        let StoreStats {
            commits,
            write_failures,
            dropped,
            removed_terminations,
            queue_len,
            bytes,
            bytes_max,
            records,
            oldest_unsynced,
            write_failing,
        } = *stats;
        self.store.commits.absolute(commits);
        self.store.write_failures.absolute(write_failures);
        self.store.dropped.absolute(dropped);
        self.store
            .removed_terminations
            .absolute(removed_terminations);
        self.store.queue_len.set(queue_len as f64);
        self.store.bytes.set(bytes as f64);
        self.store.bytes_max.set(bytes_max as f64);
        self.store.records.set(records as f64);
        self.store
            .oldest_unsynced
            .set(oldest_unsynced.as_secs_f64());
        self.store.write_failing.set(f64::from(write_failing));
    }

    pub fn count_cluster(&self, count: ClusterCount, by: u64) {
        self.cluster_counts[count as usize].increment(by);
    }

    pub fn set_cluster_unreachable(&self, is_unreachable: bool) {
        self.cluster_unreachable.set(f64::from(is_unreachable));
    }

    pub fn set_cluster_full(&self, is_full: bool) {
        self.cluster_full.set(f64::from(is_full));
    }

    pub fn set_cluster_sizes(&self, unsaved_sessions: usize, replicas: usize) {
        self.cluster_unsaved_sessions.set(unsaved_sessions as f64);
        self.cluster_replicas.set(replicas as f64);
    }

    pub fn count_notification(&self, receiver: usize, outcome: NotificationOutcome) {
        if let Some(metrics) = self.receivers.get(receiver) {
            metrics.outcomes[outcome as usize].increment(1);
        }
    }

    /// Counts a failed delivery attempt that is retried.
    pub fn count_notification_retry(&self, receiver: usize) {
        if let Some(metrics) = self.receivers.get(receiver) {
            metrics.retries.increment(1);
        }
    }

    /// Counts a stream as open until the guard is dropped.
    pub fn track_stream(&self, rpc: StreamRpc) -> GaugeGuard {
        GaugeGuard::new(&self.open_streams[rpc as usize])
    }

    /// Counts a connection as open until the guard is dropped.
    pub fn track_connection(&self, listener: ListenerKind) -> GaugeGuard {
        GaugeGuard::new(&self.open_connections[listener as usize])
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
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
            "unstuck_disobeyed_events_total 0",
            "unstuck_disobeying_sessions_total 0",
            "unstuck_disobeyed_cost_usd_total 0",
            "unstuck_rated_verdicts{detector=\"exact_repeat\",rating=\"false_alarm\"} 0",
            "unstuck_wasted_events_total{detector=\"exact_repeat\"} 0",
            "unstuck_wasted_tokens_total{detector=\"exact_repeat\"} 0",
            "unstuck_wasted_cached_tokens_total{detector=\"exact_repeat\"} 0",
            "# TYPE unstuck_wasted_cost_usd_total counter",
            "unstuck_wasted_cost_usd_total{detector=\"exact_repeat\"} 0",
            "unstuck_event_duration_seconds_bucket{le=\"+Inf\"} 0",
            "unstuck_streams{rpc=\"StreamEvents\"} 0",
            "unstuck_rejected_total{reason=\"sessions_max\"} 0",
            "unstuck_log_lines_dropped_total 0",
            "unstuck_store_commits_total 0",
            "unstuck_store_write_failures_total 0",
            "unstuck_store_dropped_total 0",
            "unstuck_store_queue_length 0",
            "unstuck_store_bytes 0",
            "unstuck_store_write_failing 0",
            "unstuck_build_info{version=",
        ] {
            assert!(text.contains(series), "{series} is not in\n{text}");
        }
    }
}
