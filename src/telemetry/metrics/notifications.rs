//! What became of notices.

use metrics::Counter;

#[derive(Clone, Copy, Debug)]
pub enum NotificationOutcome {
    Delivered,
    Refused,
    Expired,
}

impl NotificationOutcome {
    const NAMES: [&'static str; 3] = ["delivered", "refused", "expired"];
}

/// By receiver, in the order of the configuration.
pub(super) struct NotificationMetrics(Vec<ReceiverMetrics>);

struct ReceiverMetrics {
    outcomes: [Counter; 3],
    retries: Counter,
}

impl NotificationMetrics {
    #[expect(
        clippy::disallowed_macros,
        reason = "a part of the one place where metrics are made"
    )]
    pub fn register(names: &[&str]) -> Self {
        metrics::describe_counter!(
            "unstuck_notifications_total",
            "Notices, by receiver and what became of them."
        );
        metrics::describe_counter!(
            "unstuck_notification_retries_total",
            "Tries to deliver a notice that failed and are made again, by receiver."
        );
        let zero = |counter: Counter| {
            counter.absolute(0);
            counter
        };
        let register_receiver = |name: &&str| ReceiverMetrics {
            outcomes: NotificationOutcome::NAMES.map(|outcome| {
                zero(metrics::counter!(
                    "unstuck_notifications_total",
                    "receiver" => (*name).to_owned(),
                    "outcome" => outcome
                ))
            }),
            retries: zero(metrics::counter!(
                "unstuck_notification_retries_total",
                "receiver" => (*name).to_owned()
            )),
        };
        Self(names.iter().map(register_receiver).collect())
    }

    pub fn count_outcome(&self, receiver: usize, outcome: NotificationOutcome) {
        if let Some(of) = self.0.get(receiver) {
            of.outcomes[outcome as usize].increment(1);
        }
    }

    pub fn count_retry(&self, receiver: usize) {
        if let Some(of) = self.0.get(receiver) {
            of.retries.increment(1);
        }
    }
}
