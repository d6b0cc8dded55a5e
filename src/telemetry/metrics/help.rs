//! What each metric means.

use metrics::Unit;

const COUNTER_HELP: [(&str, &str); 12] = [
    ("unstuck_events_total", "Events accepted, by kind."),
    (
        "unstuck_delta_bytes_total",
        "Bytes of streamed text accepted.",
    ),
    (
        "unstuck_detections_total",
        "Events on which a detector found its pattern.",
    ),
    (
        "unstuck_verdicts_total",
        "Verdicts given, by detector and action.",
    ),
    (
        "unstuck_sessions_terminated_total",
        "Sessions and sub-agents terminated, by cause.",
    ),
    (
        "unstuck_sessions_evicted_total",
        "Sessions and tombstones forgotten, by reason.",
    ),
    (
        "unstuck_forgotten_total",
        "What detectors forgot of a session to make room, by what it was.",
    ),
    (
        "unstuck_wasted_events_total",
        "Events that loops have cost.",
    ),
    (
        "unstuck_wasted_tokens_total",
        "Tokens that loops have cost.",
    ),
    (
        "unstuck_rejected_total",
        "Events, deltas, calls, streams and connections not accepted or cut, by reason.",
    ),
    (
        "unstuck_responses_coalesced_total",
        "Responses about a text that were not read in time and for which a later one stands.",
    ),
    (
        "unstuck_log_lines_lost_total",
        "Log lines that were let go of, since nobody reads them fast enough.",
    ),
];

#[expect(
    clippy::disallowed_macros,
    reason = "a part of the one place where metrics are made"
)]
pub(super) fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};

    for (name, help) in COUNTER_HELP {
        describe_counter!(name, help);
    }
    describe_gauge!("unstuck_sessions", "Sessions, by status.");
    describe_gauge!(
        "unstuck_sessions_max",
        "Live sessions beyond which new ones are refused."
    );
    describe_gauge!(
        "unstuck_state_bytes",
        "Bytes that sessions and those that ended hold, by our own count."
    );
    describe_gauge!(
        "unstuck_tombstone_bytes",
        "Bytes that terminations hold, by our own count."
    );
    describe_gauge!(
        "unstuck_state_bytes_max",
        "Bytes of state beyond which new sessions are refused."
    );
    describe_gauge!(
        "unstuck_sessions_in_trend",
        "Live sessions by detector and level of trend."
    );
    describe_gauge!("unstuck_streams", "Open streams, by rpc.");
    describe_gauge!(
        "unstuck_connections",
        "Open connections, by the side that they came to."
    );
    describe_gauge!("unstuck_build_info", "Always 1; the version is a label.");
    describe_histogram!(
        "unstuck_event_duration_seconds",
        Unit::Seconds,
        "Time from an event's arrival in the service to its result."
    );
}
