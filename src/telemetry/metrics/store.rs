//! How the store is.

use metrics::{Counter, Gauge};

/// By the store's own count.
#[derive(Clone, Copy, Debug)]
pub struct StoreSample {
    pub commits: u64,
    pub failures: u64,
    pub dropped: u64,
    pub queue_len: usize,
    pub bytes: u64,
    pub write_failing: bool,
}

pub(super) struct StoreMetrics {
    commits: Counter,
    failures: Counter,
    dropped: Counter,
    queue_len: Gauge,
    bytes: Gauge,
    write_failing: Gauge,
}

impl StoreMetrics {
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
        let store_metrics = Self {
            commits: counter!("unstuck_store_commits_total"),
            failures: counter!("unstuck_store_failures_total"),
            dropped: counter!("unstuck_store_shed_total"),
            queue_len: gauge!("unstuck_store_queue"),
            bytes: gauge!("unstuck_store_bytes"),
            write_failing: gauge!("unstuck_store_failing"),
        };
        store_metrics.set(&StoreSample {
            commits: 0,
            failures: 0,
            dropped: 0,
            queue_len: 0,
            bytes: 0,
            write_failing: false,
        });
        store_metrics
    }

    pub fn set(&self, sample: &StoreSample) {
        self.commits.absolute(sample.commits);
        self.failures.absolute(sample.failures);
        self.dropped.absolute(sample.dropped);
        self.queue_len.set(sample.queue_len as f64);
        self.bytes.set(sample.bytes as f64);
        self.write_failing
            .set(f64::from(u8::from(sample.write_failing)));
    }
}
