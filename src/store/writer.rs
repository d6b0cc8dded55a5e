//! The writer thread.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use super::{
    frame::LogEntry,
    log::{CommitError, Log},
    publisher::{CommitPublisher, Watermarks},
    queue::{BATCH_MAX, Batch, WriteQueue},
    record,
};
use crate::domain::{Effect, VerdictId, VerdictRecord};

pub(super) struct Writer {
    pub queue: Arc<WriteQueue>,
    pub publisher: Arc<CommitPublisher>,
    /// `None`: in memory only.
    pub log: Option<Log>,
    pub text: bool,
    /// Terminations that are in force and whose write failed, at most `backlog_max`.
    pub backlog: Vec<VerdictRecord>,
    pub backlog_max: usize,
    /// Called when a sync fails or this thread panics. It must end the process.
    pub on_fatal: Box<dyn Fn(io::Error) + Send>,
}

/// While writes fail, they are retried at this interval and with every batch.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Writer {
    /// Runs until the queue is closed and empty.
    pub fn run(mut self) {
        // A panic ends the process, because without a writer every termination would
        // wait for ever.
        let work = panic::catch_unwind(AssertUnwindSafe(|| self.work()));
        match work {
            Ok(Ok(())) => {}
            Ok(Err(error)) => (self.on_fatal)(error),
            Err(_) => (self.on_fatal)(io::Error::other("the writer of the store panicked")),
        }
    }

    fn work(&mut self) -> io::Result<()> {
        loop {
            let failing = self.publisher.watermarks().write_failing;
            let Some(batch) = self.queue.next_batch(failing.then_some(RETRY_INTERVAL)) else {
                break;
            };
            self.commit(batch)?;
        }
        if !self.backlog.is_empty() {
            self.commit(Batch::default())?;
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> io::Result<()> {
        match self.catch_up().and_then(|()| self.write(&batch.issued)) {
            Ok(()) => self.written(batch),
            Err(CommitError::Refused(error)) => self.refused(batch, &error),
            Err(CommitError::Unsynced(error)) => {
                CommitPublisher::count(&self.publisher.failures);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Retries failed writes in batches of the usual size, so that every attempt costs
    /// the same while writes fail.
    fn catch_up(&mut self) -> Result<(), CommitError> {
        while !self.backlog.is_empty() {
            let some: Vec<VerdictRecord> = self.backlog.iter().take(BATCH_MAX).cloned().collect();
            self.write(&some)?;
            self.backlog.drain(..some.len());
            let before = self.publisher.watermarks();
            let durable = last(&some).max(before.durable);
            self.publisher
                .publish(Vec::new(), Watermarks { durable, ..before });
        }
        Ok(())
    }

    /// Writes a batch as one frame. An empty batch tests whether writes succeed again.
    fn write(&mut self, batch: &[VerdictRecord]) -> Result<(), CommitError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let mut payload = Vec::new();
        for issued in batch {
            let entry = LogEntry {
                kind: record::kind(issued.effect),
                id: issued.verdict.id,
                body: &record::encode(issued, self.text),
            };
            entry.append_to(&mut payload);
        }
        let id = |issued: &VerdictRecord| issued.verdict.id;
        let ids = batch.first().map(id).zip(batch.last().map(id));
        log.commit(&payload, ids)?;
        CommitPublisher::count(&self.publisher.commits);
        Ok(())
    }

    fn written(&mut self, Batch { issued, through }: Batch) {
        let before = self.publisher.watermarks();
        if before.write_failing {
            tracing::info!("the store can be written to again");
        }
        let decided = through.max(before.settled);
        let durable = match &self.log {
            Some(_) => decided,
            None => VerdictId(0),
        };
        let progress = Watermarks {
            settled: decided,
            durable,
            write_failing: false,
        };
        self.publisher.publish(issued, progress);
    }

    /// Handles a failed write: terminations stay in force and are retried, operator
    /// actions are rejected, other verdicts are delivered but not persisted. When the
    /// backlog is full, a termination is marked dropped and not retried: it is delivered
    /// and stays in force, but a restart loses it.
    fn refused(&mut self, batch: Batch, error: &io::Error) {
        CommitPublisher::count(&self.publisher.failures);
        let before = self.publisher.watermarks();
        if !before.write_failing {
            tracing::error!(%error, "the store cannot be written to; resets are refused");
        }
        let decided = batch.through.max(before.settled);
        let mut batch = batch.issued;
        for issued in &batch {
            let has_room = self.backlog.len() < self.backlog_max;
            if issued.effect == Effect::Terminated && has_room {
                self.backlog.push(issued.clone());
            } else {
                self.queue.mark_dropped(issued.verdict.id);
            }
        }
        batch.retain(|issued| matches!(issued.effect, Effect::None | Effect::Terminated));
        let progress = Watermarks {
            settled: decided,
            write_failing: true,
            ..before
        };
        self.publisher.publish(batch, progress);
    }
}

fn last(batch: &[VerdictRecord]) -> VerdictId {
    let last = batch.last();
    last.map(|issued| issued.verdict.id).unwrap_or_default()
}
