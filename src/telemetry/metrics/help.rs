//! The help text of every metric.

use metrics::Unit;

const COUNTERS: [(&str, &str); 40] = [
    (
        "unstuck_cluster_takes_total",
        "Sessions taken or begun by this replica.",
    ),
    (
        "unstuck_cluster_moves_total",
        "Sessions taken from another replica.",
    ),
    (
        "unstuck_cluster_fenced_total",
        "Saves refused because another replica has the session.",
    ),
    (
        "unstuck_cluster_conflicts_total",
        "Events answered from a copy of their session that could not be saved.",
    ),
    (
        "unstuck_cluster_late_total",
        "Answers that left before Redis had what they say.",
    ),
    (
        "unstuck_cluster_saved_records_total",
        "Saves of the latest events of a session.",
    ),
    (
        "unstuck_cluster_saved_states_total",
        "Saves of whole sessions.",
    ),
    ("unstuck_cluster_errors_total", "Failed commands to Redis."),
    (
        "unstuck_cluster_oversized_total",
        "Saves skipped because the session is larger than cluster.state_bytes_max.",
    ),
    (
        "unstuck_cluster_unreadable_total",
        "States, events and acts in Redis that could not be read.",
    ),
    (
        "unstuck_cluster_replay_verdicts_total",
        "Verdicts of replayed events that had none before, which are dropped.",
    ),
    (
        "unstuck_cluster_acts_sent_total",
        "Terminations, resets and snoozes sent to the other replicas.",
    ),
    (
        "unstuck_cluster_acts_adopted_total",
        "Terminations, resets and snoozes adopted from other replicas.",
    ),
    ("unstuck_events_total", "Accepted events, by kind."),
    (
        "unstuck_delta_bytes_total",
        "Accepted bytes of streamed text.",
    ),
    (
        "unstuck_detections_total",
        "Events on which a detector matched its pattern.",
    ),
    (
        "unstuck_verdicts_total",
        "Verdicts, by detector and action.",
    ),
    (
        "unstuck_sessions_terminated_total",
        "Terminated sessions and sub-agents, by cause.",
    ),
    (
        "unstuck_sessions_evicted_total",
        "Evicted sessions and tombstones, by reason.",
    ),
    (
        "unstuck_evicted_entries_total",
        "Entries evicted from a bounded collection of a live session or stream, by kind.",
    ),
    (
        "unstuck_work_limited_total",
        "Events and deltas on which a step was skipped because they cause too much work, by part.",
    ),
    ("unstuck_wasted_events_total", "Events spent in loops."),
    ("unstuck_wasted_tokens_total", "Tokens spent in loops."),
    (
        "unstuck_wasted_cached_tokens_total",
        "Tokens spent in loops that were read from the model's cache.",
    ),
    (
        "unstuck_disobeyed_events_total",
        "Events sent to terminated sessions and sub-agents, from 2 seconds after the termination.",
    ),
    (
        "unstuck_disobeying_sessions_total",
        "Sessions and sub-agents that went on after their termination.",
    ),
    (
        "unstuck_rejected_total",
        "Events, deltas, calls, streams and connections rejected or ended by the service, by reason.",
    ),
    (
        "unstuck_hooks_total",
        "Hooks of agent programs that were answered, by agent, event and what the reply does.",
    ),
    (
        "unstuck_hooks_unreadable_total",
        "Hooks of agent programs whose body is not JSON.",
    ),
    (
        "unstuck_responses_coalesced_total",
        "Unread responses about streamed text that were merged into a later one.",
    ),
    (
        "unstuck_log_lines_dropped_total",
        "Log lines dropped because standard error is not read fast enough.",
    ),
    (
        "unstuck_panics_total",
        "Panics that were contained, by site.",
    ),
    (
        "unstuck_terminations_withheld_total",
        "Terminations that the open breaker replaced by warnings.",
    ),
    (
        "unstuck_config_reloads_total",
        "Configuration reloads, by result.",
    ),
    ("unstuck_store_commits_total", "Writes that became durable."),
    ("unstuck_store_write_failures_total", "Writes that failed."),
    (
        "unstuck_store_dropped_total",
        "Verdicts, operator actions and removals of saved sessions that were dropped before they were written.",
    ),
    (
        "unstuck_store_terminations_removed_total",
        "Terminations in force that were removed from the disk for lack of room.",
    ),
    (
        "unstuck_notifications_total",
        "Notifications, by receiver and outcome.",
    ),
    (
        "unstuck_notification_retries_total",
        "Failed delivery attempts that are retried, by receiver.",
    ),
];

const GAUGES: [(&str, &str); 22] = [
    (
        "unstuck_cluster_unreachable",
        "1 while Redis cannot be reached.",
    ),
    (
        "unstuck_cluster_full",
        "1 while Redis refuses writes for want of memory.",
    ),
    (
        "unstuck_cluster_unsaved_sessions",
        "Sessions whose state in Redis is older than here.",
    ),
    ("unstuck_cluster_replicas", "Replicas that are known."),
    ("unstuck_sessions", "Sessions, by status."),
    (
        "unstuck_sessions_max",
        "Live sessions above which new ones are refused.",
    ),
    (
        "unstuck_state_bytes",
        "Bytes of live and ended sessions, as accounted by the service.",
    ),
    (
        "unstuck_tombstone_bytes",
        "Bytes of terminations, as accounted by the service.",
    ),
    (
        "unstuck_state_bytes_max",
        "Bytes of state above which new sessions are refused.",
    ),
    (
        "unstuck_sessions_in_trend",
        "Live sessions, by detector and trend level.",
    ),
    (
        "unstuck_rated_verdicts",
        "Retained ratings of verdicts, by the verdict's detector and the rating.",
    ),
    ("unstuck_streams", "Open streams, by rpc."),
    ("unstuck_connections", "Open connections, by listener."),
    (
        "unstuck_connections_max",
        "Connections that may be open, by listener.",
    ),
    (
        "unstuck_breaker_open",
        "1 while detectors warn instead of terminating, because they would terminate too many sessions.",
    ),
    (
        "unstuck_store_queue_length",
        "Verdicts that wait to be written.",
    ),
    (
        "unstuck_store_bytes",
        "Bytes of the database and its write-ahead log.",
    ),
    (
        "unstuck_store_bytes_max",
        "Bytes that the store may have on disk; 0 without a disk.",
    ),
    (
        "unstuck_audit_records",
        "Number of the last record in the audit log.",
    ),
    (
        "unstuck_store_oldest_unsynced_seconds",
        "Age of the oldest verdict that is not on disk yet.",
    ),
    (
        "unstuck_store_write_failing",
        "1 while writes fail or the disk hangs.",
    ),
    ("unstuck_build_info", "Always 1; the version is a label."),
];

pub(super) const EVENT_DURATION: &str = "unstuck_event_duration_seconds";
pub(super) const HOOK_DURATION: &str = "unstuck_hook_duration_seconds";

/// Rendered by `CostCounter`, which the recorder does not know.
pub(super) const WASTED_COST: &str = "unstuck_wasted_cost_usd_total";
pub(super) const WASTED_COST_HELP: &str = "US dollars spent in loops.";
pub(super) const DISOBEYED_COST: &str = "unstuck_disobeyed_cost_usd_total";
pub(super) const DISOBEYED_COST_HELP: &str =
    "US dollars of the events sent to terminated sessions and sub-agents.";

#[expect(
    clippy::disallowed_macros,
    reason = "metrics are registered in this module"
)]
pub(super) fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};

    for (name, help) in COUNTERS {
        describe_counter!(name, help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(name, help);
    }
    describe_histogram!(
        EVENT_DURATION,
        Unit::Seconds,
        "Time from an event's arrival in the service to its result."
    );
    describe_histogram!(
        HOOK_DURATION,
        Unit::Seconds,
        "Time from the head of a hook's request to its reply."
    );
}
