//! How often the configuration was read anew.

use metrics::Counter;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigReloadOutcome {
    Applied,
    /// It was not sound, and all stayed as it was.
    Refused,
}

pub(super) type ReloadCounters = [Counter; 2];

#[expect(
    clippy::disallowed_macros,
    reason = "a part of the one place where metrics are made"
)]
pub(super) fn register() -> ReloadCounters {
    metrics::describe_counter!(
        "unstuck_config_reloads_total",
        "Times the configuration was read anew, by result."
    );
    ["applied", "refused"].map(|result| {
        let counter = metrics::counter!("unstuck_config_reloads_total", "result" => result);
        counter.absolute(0);
        counter
    })
}
