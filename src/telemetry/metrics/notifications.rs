//! What became of notices.

use metrics::Counter;

#[derive(Clone, Copy, Debug)]
pub enum Notification {
    Delivered,
    Refused,
    Expired,
}

impl Notification {
    const NAMES: [&'static str; 3] = ["delivered", "refused", "expired"];
}

/// By receiver, in the order of the configuration.
pub(super) struct OfReceivers(Vec<[Counter; 3]>);

impl OfReceivers {
    #[expect(
        clippy::disallowed_macros,
        reason = "a part of the one place where metrics are made"
    )]
    pub fn register(names: &[&str]) -> Self {
        metrics::describe_counter!(
            "unstuck_notifications_total",
            "Notices, by receiver and what became of them."
        );
        let of = |name: &&str| {
            Notification::NAMES.map(|outcome| {
                let counter = metrics::counter!(
                    "unstuck_notifications_total",
                    "receiver" => (*name).to_owned(),
                    "outcome" => outcome
                );
                counter.absolute(0);
                counter
            })
        };
        Self(names.iter().map(of).collect())
    }

    pub fn count(&self, receiver: usize, outcome: Notification) {
        if let Some(of) = self.0.get(receiver) {
            of[outcome as usize].increment(1);
        }
    }
}
