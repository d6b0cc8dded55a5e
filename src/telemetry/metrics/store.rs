//! How the store is.

use metrics::{Counter, Gauge};

/// By the store's own count.
#[derive(Clone, Copy, Debug)]
pub struct StoreFigures {
    pub commits: u64,
    pub failures: u64,
    pub shed: u64,
    pub queue: usize,
    pub bytes: u64,
    pub failing: bool,
}

pub(super) struct OfStore {
    commits: Counter,
    failures: Counter,
    shed: Counter,
    queue: Gauge,
    bytes: Gauge,
    failing: Gauge,
}

impl OfStore {
    #[expect(
        clippy::disallowed_macros,
        reason = "a part of the one place where metrics are made"
    )]
    pub fn register() -> Self {
        use metrics::{counter, describe_counter, describe_gauge, gauge};

        describe_counter!("unstuck_store_commits_total", "Writes that became durable.");
        describe_counter!(
            "unstuck_store_failures_total",
            "Writes that the disk refused."
        );
        describe_counter!(
            "unstuck_store_shed_total",
            "Verdicts and acts that will not be on disk."
        );
        describe_gauge!("unstuck_store_queue", "Verdicts that wait for the disk.");
        describe_gauge!("unstuck_store_bytes", "Bytes of the audit log.");
        describe_gauge!("unstuck_store_failing", "1 while the disk refuses writes.");
        let of = Self {
            commits: counter!("unstuck_store_commits_total"),
            failures: counter!("unstuck_store_failures_total"),
            shed: counter!("unstuck_store_shed_total"),
            queue: gauge!("unstuck_store_queue"),
            bytes: gauge!("unstuck_store_bytes"),
            failing: gauge!("unstuck_store_failing"),
        };
        of.set(&StoreFigures {
            commits: 0,
            failures: 0,
            shed: 0,
            queue: 0,
            bytes: 0,
            failing: false,
        });
        of
    }

    pub fn set(&self, figures: &StoreFigures) {
        self.commits.absolute(figures.commits);
        self.failures.absolute(figures.failures);
        self.shed.absolute(figures.shed);
        self.queue.set(figures.queue as f64);
        self.bytes.set(figures.bytes as f64);
        self.failing.set(f64::from(u8::from(figures.failing)));
    }
}
