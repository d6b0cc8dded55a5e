//! Creates the handle of every series at zero.

use metrics::{Counter, Gauge, Histogram, Label};
use metrics_exporter_prometheus::PrometheusHandle;

use super::{
    ClusterCount, ConfigReloadOutcome, DetectorMetrics, EntryKind, EventKind, EvictionReason,
    HookMetrics, HookNames, HookReplyKind, ListenerKind, Metrics, NotificationOutcome, PanicSite,
    ReceiverMetrics, Rejection, StoreMetrics, StreamRpc, WorkPart,
    cost_counter::CostCounter,
    help::{self, EVENT_DURATION, HOOK_DURATION},
};
use crate::domain::{Action, Level, OPERATOR, Rating, SessionStatus};

type LabelPair<'a> = (&'static str, &'a str);

/// Must run within `with_local_recorder`.
pub(super) fn register(
    exporter: PrometheusHandle,
    detectors: &[&str],
    receivers: &[&str],
    hooks: HookNames,
) -> Metrics {
    help::describe();
    gauge(
        "unstuck_build_info",
        &[("version", env!("CARGO_PKG_VERSION"))],
    )
    .set(1);
    Metrics {
        exporter,
        // Events and detectors.
        events_by_kind: EventKind::ALL
            .map(|kind| counter("unstuck_events_total", &[("kind", kind.name())])),
        delta_bytes: counter("unstuck_delta_bytes_total", &[]),
        detectors: detectors
            .iter()
            .map(|name| register_detector(name))
            .collect(),
        wasted_usd: CostCounter::by_detector(help::WASTED_COST, help::WASTED_COST_HELP, detectors),
        disobeyed_events: counter("unstuck_disobeyed_events_total", &[]),
        disobeying_sessions: counter("unstuck_disobeying_sessions_total", &[]),
        disobeyed_usd: CostCounter::new(help::DISOBEYED_COST, help::DISOBEYED_COST_HELP),
        // Sessions and the memory of their state.
        sessions_by_status: SessionStatus::ALL
            .map(|status| gauge("unstuck_sessions", &[("status", status.name())])),
        sessions_max: gauge("unstuck_sessions_max", &[]),
        state_bytes: gauge("unstuck_state_bytes", &[]),
        tombstone_bytes: gauge("unstuck_tombstone_bytes", &[]),
        state_bytes_max: gauge("unstuck_state_bytes_max", &[]),
        operator_terminations: counter("unstuck_sessions_terminated_total", &[("cause", OPERATOR)]),
        evicted_entries: EntryKind::ALL
            .map(|kind| counter("unstuck_evicted_entries_total", &[("kind", kind.name())])),
        session_evictions: EvictionReason::ALL.map(|reason| {
            counter(
                "unstuck_sessions_evicted_total",
                &[("reason", reason.name())],
            )
        }),
        limited_work: WorkPart::ALL
            .map(|part| counter("unstuck_work_limited_total", &[("part", part.name())])),
        // Calls, streams and connections.
        event_duration: histogram(EVENT_DURATION),
        hook_duration: histogram(HOOK_DURATION),
        hooks: hooks
            .iter()
            .flat_map(|(agent, events)| events.iter().map(|event| register_hook(agent, event)))
            .collect(),
        unreadable_hooks: counter("unstuck_hooks_unreadable_total", &[]),
        open_streams: StreamRpc::ALL.map(|rpc| gauge("unstuck_streams", &[("rpc", rpc.name())])),
        open_connections: ListenerKind::ALL
            .map(|listener| gauge("unstuck_connections", &[("listener", listener.name())])),
        connections_max: ListenerKind::ALL
            .map(|listener| gauge("unstuck_connections_max", &[("listener", listener.name())])),
        coalesced_responses: counter("unstuck_responses_coalesced_total", &[]),
        dropped_log_lines: counter("unstuck_log_lines_dropped_total", &[]),
        // Refusals, failures and the circuit breaker.
        rejections: Rejection::ALL
            .map(|reason| counter("unstuck_rejected_total", &[("reason", reason.name())])),
        panics: PanicSite::ALL
            .map(|site| counter("unstuck_panics_total", &[("site", site.name())])),
        breaker_open: gauge("unstuck_breaker_open", &[]),
        withheld_terminations: counter("unstuck_terminations_withheld_total", &[]),
        reloads: ConfigReloadOutcome::ALL
            .map(|result| counter("unstuck_config_reloads_total", &[("result", result.name())])),
        // The audit log and the receivers of notifications.
        store: register_store(),
        cluster_counts: ClusterCount::ALL.map(|count| counter(count.name(), &[])),
        cluster_unreachable: gauge("unstuck_cluster_unreachable", &[]),
        cluster_full: gauge("unstuck_cluster_full", &[]),
        cluster_unsaved_sessions: gauge("unstuck_cluster_unsaved_sessions", &[]),
        cluster_replicas: gauge("unstuck_cluster_replicas", &[]),
        receivers: receivers
            .iter()
            .map(|name| register_receiver(name))
            .collect(),
    }
}

fn register_detector(name: &str) -> DetectorMetrics {
    let detector = ("detector", name);
    DetectorMetrics {
        name: name.to_owned(),
        detections: counter("unstuck_detections_total", &[detector]),
        verdicts: Action::ALL.map(|action| {
            counter(
                "unstuck_verdicts_total",
                &[detector, ("action", action.name())],
            )
        }),
        terminations: counter("unstuck_sessions_terminated_total", &[("cause", name)]),
        sessions_in_trend: Level::ALL.map(|level| {
            gauge(
                "unstuck_sessions_in_trend",
                &[detector, ("level", level.name())],
            )
        }),
        wasted_events: counter("unstuck_wasted_events_total", &[detector]),
        wasted_tokens: counter("unstuck_wasted_tokens_total", &[detector]),
        wasted_cached_tokens: counter("unstuck_wasted_cached_tokens_total", &[detector]),
        rated_verdicts: Rating::ALL.map(|rating| {
            gauge(
                "unstuck_rated_verdicts",
                &[detector, ("rating", rating.name())],
            )
        }),
    }
}

fn register_hook(agent: &'static str, event: &'static str) -> HookMetrics {
    HookMetrics {
        agent,
        event,
        replies: HookReplyKind::ALL.map(|reply| {
            counter(
                "unstuck_hooks_total",
                &[("agent", agent), ("event", event), ("reply", reply.name())],
            )
        }),
    }
}

fn register_store() -> StoreMetrics {
    StoreMetrics {
        commits: counter("unstuck_store_commits_total", &[]),
        write_failures: counter("unstuck_store_write_failures_total", &[]),
        dropped: counter("unstuck_store_dropped_total", &[]),
        removed_terminations: counter("unstuck_store_terminations_removed_total", &[]),
        queue_len: gauge("unstuck_store_queue_length", &[]),
        bytes: gauge("unstuck_store_bytes", &[]),
        bytes_max: gauge("unstuck_store_bytes_max", &[]),
        records: gauge("unstuck_audit_records", &[]),
        oldest_unsynced: gauge("unstuck_store_oldest_unsynced_seconds", &[]),
        write_failing: gauge("unstuck_store_write_failing", &[]),
    }
}

fn register_receiver(name: &str) -> ReceiverMetrics {
    let receiver = ("receiver", name);
    ReceiverMetrics {
        outcomes: NotificationOutcome::ALL.map(|outcome| {
            counter(
                "unstuck_notifications_total",
                &[receiver, ("outcome", outcome.name())],
            )
        }),
        retries: counter("unstuck_notification_retries_total", &[receiver]),
    }
}

#[expect(
    clippy::disallowed_macros,
    reason = "metrics are registered in this module"
)]
fn counter(name: &'static str, labels: &[LabelPair<'_>]) -> Counter {
    let counter = metrics::counter!(name, to_labels(labels));
    counter.absolute(0);
    counter
}

#[expect(
    clippy::disallowed_macros,
    reason = "metrics are registered in this module"
)]
fn gauge(name: &'static str, labels: &[LabelPair<'_>]) -> Gauge {
    let gauge = metrics::gauge!(name, to_labels(labels));
    gauge.set(0);
    gauge
}

#[expect(
    clippy::disallowed_macros,
    reason = "metrics are registered in this module"
)]
fn histogram(name: &'static str) -> Histogram {
    metrics::histogram!(name)
}

fn to_labels(pairs: &[LabelPair<'_>]) -> Vec<Label> {
    pairs
        .iter()
        .map(|(key, value)| Label::new(*key, (*value).to_owned()))
        .collect()
}
