//! The writer thread.

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use parking_lot::RwLock;

use super::{
    CommitHook, StoreError,
    backlog::Backlog,
    database::{CommitError, Database},
    dir::StoreDir,
    publisher::{CommitPublisher, Watermarks},
    queue::{BATCH_MAX, Batch, WriteQueue, is_operator_action},
    removal::Retention,
    retention::RetentionRequests,
    sessions::{self, StoreWrites},
};
use crate::domain::{Effect, VerdictId, VerdictRecord};

pub(super) struct Writer {
    pub queue: Arc<WriteQueue>,
    pub publisher: Arc<CommitPublisher>,
    pub disk: Option<WriterDisk>,
    pub text: bool,
    /// Terminations that are in force and whose write failed.
    pub backlog: Backlog,
    /// Operator actions that were refused, and whose commit is to be undone.
    pub withdrawn: Vec<VerdictId>,
    /// Called when a sync fails or this thread panics. It must end the process.
    pub on_fatal: Box<dyn Fn(io::Error) + Send>,
}

/// The database of the writer.
pub(super) struct WriterDisk {
    pub dir: StoreDir,
    /// When the process started: a new database has no verdicts from before.
    pub started_at: SystemTime,
    /// `None`: it could not be opened yet.
    pub database: Option<Database>,
    pub is_open: Arc<RwLock<bool>>,
    pub retention: Arc<RetentionRequests>,
    /// The limits that the writer enforces by itself when the files are too large.
    pub limits: Retention,
    pub writes: Arc<StoreWrites>,
    /// Called before each commit. Tests stop the writer there.
    pub before_commit: Option<CommitHook>,
}

impl WriterDisk {
    /// The database for a commit. It is opened if that was not possible before.
    fn open_database(&mut self) -> Result<&mut Database, CommitError> {
        if let Some(before_commit) = &self.before_commit {
            before_commit();
        }
        match &mut self.database {
            Some(database) => Ok(database),
            none => {
                // Readers that take no locks must have ended.
                let mut is_open = self.is_open.write();
                let opened = Database::open(&self.dir, self.started_at)
                    .map_err(|error| CommitError::Refused(error.to_string()))?;
                *is_open = true;
                Ok(none.insert(opened))
            }
        }
    }
}

/// While writes fail, they are retried at this interval and with every batch.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// An idle writer looks for requests at this interval.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

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
        while let Some(batch) = self.queue.next_batch(self.timeout()) {
            let is_failing = self.publisher.watermarks().write_failing;
            if !batch.issued.is_empty() || is_failing {
                self.commit(batch)?;
            }
            // A disk that hangs here must be noticed as in a commit.
            self.queue.begin_maintenance();
            self.request_retention();
            self.enforce_retention()?;
            self.apply_next_write()?;
            self.queue.end_maintenance();
        }
        if !self.backlog.is_empty() {
            self.commit(Batch::default())?;
        }
        self.finish_writes()?;
        if let Some(database) = self.database() {
            database.sync_head();
        }
        Ok(())
    }

    fn timeout(&self) -> Option<Duration> {
        let disk = self.disk.as_ref()?;
        Some(if self.publisher.watermarks().write_failing {
            RETRY_INTERVAL
        } else if disk.retention.is_requested() || disk.writes.is_pending() {
            Duration::ZERO
        } else {
            IDLE_INTERVAL
        })
    }

    fn database(&self) -> Option<&Database> {
        self.disk.as_ref()?.database.as_ref()
    }

    fn commit(&mut self, mut batch: Batch) -> io::Result<()> {
        let written = self.catch_up().and_then(|()| self.write(&mut batch.issued));
        // From here on an action can no longer be withdrawn.
        self.withdrawn.extend(self.queue.end_batch());
        let undone = match &written {
            // The batch itself is committed.
            Ok(()) => self.undo_withdrawn().map_err(|error| match error {
                CommitError::Refused(error) => CommitError::Detached(error),
                error => error,
            }),
            Err(_) => Ok(()),
        };
        match written.and(undone) {
            Ok(()) => self.publish_written(batch),
            Err(CommitError::Refused(error)) => self.handle_refused(batch, &error),
            Err(CommitError::Detached(error)) => {
                self.backlog.is_uncertain = true;
                let actions = batch
                    .issued
                    .iter()
                    .filter(|issued| is_operator_action(issued));
                self.withdrawn
                    .extend(actions.map(|issued| issued.verdict.id));
                self.handle_refused(batch, &error);
            }
            Err(CommitError::Unsynced(error)) => {
                CommitPublisher::count(&self.publisher.failures);
                self.note_unsynced(&batch.issued);
                return Err(io::Error::other(error));
            }
        }
        Ok(())
    }

    /// Retries failed writes in batches of the usual size, so that every attempt costs
    /// the same while writes fail.
    fn catch_up(&mut self) -> Result<(), CommitError> {
        while !self.backlog.is_empty() {
            let Some(disk) = &mut self.disk else {
                break;
            };
            let some = self.backlog.first(BATCH_MAX);
            let database = disk.open_database()?;
            database.append_refused(&some, self.backlog.is_uncertain)?;
            self.publisher.set_head(database.head());
            CommitPublisher::count(&self.publisher.commits);
            let last = self.backlog.remove_first(&self.queue, BATCH_MAX);
            let before = self.publisher.watermarks();
            let durable = last.max(before.durable);
            self.publisher
                .publish(Vec::new(), Watermarks { durable, ..before });
        }
        self.backlog.is_uncertain = false;
        Ok(())
    }

    /// Writes a batch in one transaction. An empty batch tests whether writes succeed
    /// again.
    fn write(&mut self, batch: &mut [VerdictRecord]) -> Result<(), CommitError> {
        let Some(disk) = &mut self.disk else {
            return Ok(());
        };
        let database = disk.open_database()?;
        let positions = database.append(batch, self.text)?;
        for (issued, position) in batch.iter_mut().zip(positions) {
            issued.position = Some(position);
        }
        self.publisher.set_head(database.head());
        CommitPublisher::count(&self.publisher.commits);
        Ok(())
    }

    /// Undoes operator actions that were refused and whose commit succeeded.
    fn undo_withdrawn(&mut self) -> Result<(), CommitError> {
        if self.withdrawn.is_empty() {
            return Ok(());
        }
        if let Some(disk) = &mut self.disk
            && let Some(database) = &mut disk.database
        {
            database.withdraw(&self.withdrawn)?;
            self.publisher.set_head(database.head());
            disk.dir.forget_withdrawn();
        }
        self.withdrawn.clear();
        Ok(())
    }

    /// Remembers the operator actions of a batch whose sync failed: their records may be
    /// on disk, and they were refused.
    fn note_unsynced(&self, batch: &[VerdictRecord]) {
        let Some(disk) = &self.disk else {
            return;
        };
        for issued in batch.iter().filter(|issued| is_operator_action(issued)) {
            if let Err(error) = disk.dir.note_withdrawn(issued.verdict.id) {
                tracing::error!(%error, "cannot note a refused operator action");
            }
        }
    }

    /// Publishes a batch that is on disk, without the actions that were withdrawn.
    fn publish_written(
        &mut self,
        Batch {
            issued, through, ..
        }: Batch,
    ) {
        let before = self.publisher.watermarks();
        if before.write_failing {
            tracing::info!("the store can be written to again");
        }
        let settled = through.max(before.settled);
        let durable = match &self.disk {
            Some(_) => settled,
            None => VerdictId(0),
        };
        let watermarks = Watermarks {
            settled,
            durable,
            write_failing: false,
        };
        // A withdrawn action has not happened.
        let happened = issued.into_iter().filter(|issued| {
            !is_operator_action(issued) || !self.queue.may_be_dropped(issued.verdict.id)
        });
        self.publisher.publish(happened.collect(), watermarks);
    }

    /// Handles a failed write: terminations stay in force and are retried, operator
    /// actions are rejected, other verdicts are delivered but not persisted.
    fn handle_refused(&mut self, batch: Batch, error: &str) {
        CommitPublisher::count(&self.publisher.failures);
        let before = self.publisher.watermarks();
        if !before.write_failing {
            tracing::error!(%error, "the store cannot be written to; resets are refused");
        }
        self.publisher.set_failure(error);
        let settled = batch.through.max(before.settled);
        let (mut batch, queued_at) = (batch.issued, batch.queued_at);
        for (issued, queued_at) in batch.iter_mut().zip(queued_at) {
            issued.position = None;
            if issued.effect == Effect::Terminated {
                self.backlog.push(&self.queue, issued, self.text, queued_at);
            } else {
                self.queue.mark_dropped(issued.verdict.id);
            }
        }
        batch.retain(|issued| !is_operator_action(issued));
        let watermarks = Watermarks {
            settled,
            write_failing: true,
            ..before
        };
        self.publisher.publish(batch, watermarks);
    }

    /// Applies one write of frozen sessions or of dropped terminations. While writes fail,
    /// removals wait and other writes are refused: their callers repeat them. Returns
    /// whether one was applied.
    fn apply_next_write(&mut self) -> io::Result<bool> {
        let is_failing = self.publisher.watermarks().write_failing;
        let Some(disk) = &mut self.disk else {
            return Ok(false);
        };
        let write_error = |why: &str| sessions::write_error(&disk.dir, why.to_owned());
        let database = match &mut disk.database {
            Some(database) if !is_failing => database,
            _ => {
                disk.writes.refuse(None, || write_error("writes fail"));
                return Ok(false);
            }
        };
        let Some(pending) = disk.writes.next() else {
            return Ok(false);
        };
        match database.apply(&pending.write, self.text) {
            Ok(()) => {
                self.publisher.set_head(database.head());
                pending.end(Ok(()));
            }
            Err(CommitError::Refused(error) | CommitError::Detached(error)) => {
                let refused = Some(pending);
                disk.writes.refuse(refused, || write_error(&error));
                return Ok(false);
            }
            Err(CommitError::Unsynced(error)) => return Err(io::Error::other(error)),
        }
        Ok(true)
    }

    /// Applies the writes that wait when the store is closed.
    fn finish_writes(&mut self) -> io::Result<()> {
        if let Some(disk) = &self.disk {
            disk.writes.close();
        }
        while self.apply_next_write()? {}
        Ok(())
    }

    /// Requests the retention as soon as the files are too large. The periodic request
    /// comes once a minute, and a minute of verdicts may have gigabytes.
    fn request_retention(&self) {
        let is_failing = self.publisher.watermarks().write_failing;
        if let Some(disk) = &self.disk
            && let Some(database) = &disk.database
            && !is_failing
            && matches!(database.exceeds(disk.limits.bytes_max), Ok(true))
        {
            disk.retention.request_soon(disk.limits, disk.started_at);
        }
    }

    /// Removes a slice of what exceeds the retention, if that was requested.
    fn enforce_retention(&mut self) -> io::Result<()> {
        let Some(disk) = &mut self.disk else {
            return Ok(());
        };
        let Some((retention, now)) = disk.retention.next() else {
            return Ok(());
        };
        let Some(database) = &mut disk.database else {
            disk.retention.end(Err(StoreError::Io {
                path: disk.dir.database(),
                source: io::Error::other("the database is not open"),
            }));
            return Ok(());
        };
        match database.enforce_retention(&retention, now) {
            Ok(slice) => {
                self.publisher.set_retained_after(slice.retained_after);
                let removed = &self.publisher.removed_terminations;
                removed.fetch_add(slice.terminations.len() as u64, Relaxed);
                self.queue.mark_removed(&slice.terminations);
                if !slice.has_more {
                    database.sync_head();
                    disk.retention.end(Ok(()));
                }
            }
            Err(CommitError::Refused(error) | CommitError::Detached(error)) => {
                let path = disk.dir.database();
                let source = io::Error::other(error);
                disk.retention.end(Err(StoreError::Io { path, source }));
            }
            Err(CommitError::Unsynced(error)) => return Err(io::Error::other(error)),
        }
        Ok(())
    }
}
