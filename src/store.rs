//! The durable side: every verdict and every operator action, in one SQLite database.
//!
//! One thread writes. It takes what has queued up and commits it in one transaction with
//! one sync (`synchronous = FULL`, write-ahead log). Readers have connections of their own
//! and never wait for the writer. Records form a hash chain; terminations in force are in a
//! table of their own, so that a start reads only those, and outlive their records.
//!
//! Durability is a watermark: verdicts are written in the order of their ids, so
//! `Store::wait_until_settled_or_timeout` waits until the writer has reached the id, or until
//! `store.sync_secs_max` has passed.
//!
//! A disk that is full or read-only does not stop the service: terminations are in force
//! in memory and are written when the disk accepts them. A database that is damaged, or
//! that a later version has written, is refused.
//!
//! Uses: domain, telemetry.

mod backlog;
mod backup;
mod chain;
mod database;
mod dir;
mod opening;
mod page_query;
mod publisher;
mod queue;
mod ratings;
mod reader;
mod record;
mod recovery;
mod removal;
mod retention;
mod save_requests;
mod schema;
mod sessions;
mod tenant_share;
mod transaction;
mod verify;
mod waiter_guard;
mod waiting;
mod writer;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use serde::Deserialize;
use tokio::sync::broadcast;

pub use backup::{RestoreChanges, RestorePlan, back_up, plan_restore};
pub use dir::StoreError;
pub use ratings::RatingCounts;
pub use reader::{ReadError, VerdictFilter, VerdictPage};
pub use record::{decode as decode_record, encode_record};
pub use save_requests::SaveRequest;
pub use verify::{LogVerification, read_chain_head, verify};

use crate::{
    domain::{
        ChainHead, RecoveredState, Verdict, VerdictId, VerdictRecord, VerdictSink,
        clock::ExpiryClock,
    },
    telemetry::StoreStats,
};
use backlog::Backlog;
use database::Database;
use dir::StoreDir;
use opening::{OpenedDatabase, open_database};
use publisher::CommitPublisher;
use queue::WriteQueue;
use ratings::MemoryRatings;
use reader::Readers;
use recovery::Recovery;
use removal::Retention;
use retention::RetentionRequests;
use save_requests::SaveRequests;
use sessions::StoreWrites;
use writer::{Writer, WriterDisk};

/// `[store]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// Empty: in memory only.
    pub dir: PathBuf,
    pub verdicts_days_max: u32,
    pub bytes_max: u64,
    pub queue_max: usize,
    pub sync_secs_max: u64,
    /// Empty: windows of sessions are not saved.
    pub key_file: PathBuf,
}

impl Settings {
    /// The write-ahead log alone may have 8 MiB.
    pub const BYTES_MIN: u64 = 16 * 1024 * 1024;
}

/// `[audit]`
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AuditSettings {
    pub text: bool,
}

/// Called by the writer before each commit.
pub type CommitHook = Box<dyn Fn() + Send>;

/// The parameters of `Store::open`.
pub struct StoreOptions<'a> {
    pub settings: &'a Settings,
    pub audit: AuditSettings,
    /// How long a termination is in force.
    pub tombstone_age_max: Duration,
    /// How many terminations are in force at most.
    pub tombstones_max: usize,
    pub now: SystemTime,
    /// Called when a sync fails. It must end the process, because the content of the
    /// disk is then unknown.
    pub on_fatal: Box<dyn Fn(io::Error) + Send>,
}

#[cfg(test)]
impl<'a> StoreOptions<'a> {
    /// The options for tests that need a store but do not test it.
    pub fn for_test(config: &'a crate::config::Config) -> Self {
        Self {
            settings: &config.store,
            audit: config.audit,
            tombstone_age_max: Duration::MAX,
            tombstones_max: usize::MAX,
            now: crate::domain::clock::now(),
            on_fatal: Box::new(|_| {}),
        }
    }
}

/// Writes verdicts durably, publishes them, and reads them back.
pub struct Store {
    queue: Arc<WriteQueue>,
    publisher: Arc<CommitPublisher>,
    disk: Option<Disk>,
    /// Only used without a disk.
    memory_ratings: MemoryRatings,
    /// How long a call waits for the disk.
    sync_max: Duration,
    expiry_clock: ExpiryClock,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Calls that wait for a commit.
    waiters: AtomicUsize,
}

struct Disk {
    dir: StoreDir,
    readers: Readers,
    retention: Retention,
    requests: Arc<RetentionRequests>,
    writes: Arc<StoreWrites>,
    save_requests: SaveRequests,
    tombstones_max: AtomicUsize,
    /// Keeps other processes from using the directory.
    _lock: File,
}

/// The state of the store, for health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    InMemory,
    Healthy,
    /// The last write failed, for this reason.
    WriteFailing(String),
    /// The disk has not finished a write for this long.
    Stalled(Duration),
}

impl Store {
    /// Opens the store and recovers the state. It may take a second.
    pub fn open(options: StoreOptions<'_>) -> Result<(Self, RecoveredState), StoreError> {
        Self::open_with_hook(options, None)
    }

    /// Opens a store like `open`. The writer calls the hook before each commit, so that
    /// tests can stop it there.
    pub fn open_with_hook(
        options: StoreOptions<'_>,
        before_commit: Option<CommitHook>,
    ) -> Result<(Self, RecoveredState), StoreError> {
        // Without a directory there are no files.
        let settings = options.settings;
        if settings.dir.as_os_str().is_empty() {
            let since = VerdictId::lower_bound_at(options.now);
            let store = Self::start(options, None, since, chain::START, since);
            return Ok((store, RecoveredState::default()));
        }
        // Open the database and recover its state.
        let dir = StoreDir(settings.dir.clone());
        let (lock, opened) = open_database(&dir, options.tombstones_max, options.now)?;
        let OpenedDatabase {
            database,
            recovery,
            failure,
        } = opened;
        let Recovery {
            state,
            head,
            retained_after,
        } = recovery;
        // Create the state of the files that the readers and the writer share.
        let days = settings.verdicts_days_max;
        let disk = Disk {
            readers: Readers::new(dir.clone(), database.is_some()),
            retention: Retention {
                verdicts_age_max: Duration::from_secs(u64::from(days) * 24 * 60 * 60),
                bytes_max: settings.bytes_max,
                tombstone_age_max: options.tombstone_age_max,
                tombstones_max: options.tombstones_max,
            },
            requests: Arc::default(),
            writes: Arc::default(),
            save_requests: SaveRequests::default(),
            tombstones_max: AtomicUsize::new(options.tombstones_max),
            dir,
            _lock: lock,
        };
        // Find the last verdict. Without a database it is that of the present time.
        let last = match database {
            Some(_) => state.last_verdict,
            None => state
                .last_verdict
                .max(VerdictId::lower_bound_at(options.now)),
        };
        let state = RecoveredState {
            last_verdict: last,
            ..state
        };
        // Start the writer; a disk that failed is tried again by it.
        let disk = (disk, database, before_commit);
        let expiry_clock = ExpiryClock::new(options.now, state.last_run);
        let options = StoreOptions {
            now: options.now - expiry_clock.held_back().unwrap_or_default(),
            ..options
        };
        let mut store = Self::start(options, Some(disk), last, head, retained_after);
        store.expiry_clock = expiry_clock;
        if let Some(failure) = failure {
            tracing::error!(error = %failure, "the store cannot be written to; serving from memory");
            store.publisher.start_failing(&failure);
        }
        Ok((store, state))
    }

    fn start(
        options: StoreOptions<'_>,
        disk: Option<(Disk, Option<Database>, Option<CommitHook>)>,
        last: VerdictId,
        head: ChainHead,
        retained_after: VerdictId,
    ) -> Self {
        // The queue before the writer, the watermarks after it.
        let queue_max = options.settings.queue_max;
        let queue = Arc::new(WriteQueue::new(queue_max, last));
        let publisher = Arc::new(CommitPublisher::new(
            last,
            disk.is_some(),
            head,
            retained_after,
        ));
        // The writer's part of the disk.
        let (disk, writer_disk) = match disk {
            Some((disk, database, before_commit)) => {
                let writer_disk = WriterDisk {
                    dir: disk.dir.clone(),
                    started_at: options.now,
                    database,
                    is_open: disk.readers.is_open.clone(),
                    retention: disk.requests.clone(),
                    // The number may be changed while the service runs.
                    limits: Retention {
                        tombstones_max: usize::MAX,
                        ..disk.retention
                    },
                    writes: disk.writes.clone(),
                    before_commit,
                };
                (Some(disk), Some(writer_disk))
            }
            None => (None, None),
        };
        // The writer owns the database, on its own thread.
        let writer = Writer {
            queue: queue.clone(),
            publisher: publisher.clone(),
            disk: writer_disk,
            text: options.audit.text,
            backlog: Backlog::new(options.tombstones_max.max(queue_max)),
            withdrawn: Vec::new(),
            on_fatal: options.on_fatal,
        };
        Self {
            queue,
            publisher,
            disk,
            memory_ratings: MemoryRatings::default(),
            sync_max: Duration::from_secs(options.settings.sync_secs_max),
            expiry_clock: ExpiryClock::new(options.now, None),
            writer: Mutex::new(Some(std::thread::spawn(|| writer.run()))),
            waiters: AtomicUsize::new(0),
        }
    }

    /// The engine's sink for verdicts. It never blocks.
    pub fn verdict_sink(&self) -> VerdictSink {
        let queue = self.queue.clone();
        Box::new(move |issued| queue.enqueue(issued))
    }

    /// Whether the write of a verdict has succeeded or failed. Nothing is awaited of a verdict
    /// that another replica has issued after our last.
    pub fn is_settled(&self, id: VerdictId) -> bool {
        self.publisher.watermarks().settled >= id.min(self.queue.last())
    }

    /// Tells subscribers of a termination that another replica has issued.
    pub fn announce(&self, termination: &VerdictRecord) {
        self.publisher
            .publish_late(std::slice::from_ref(termination));
    }

    /// Whether a response with this verdict may have been sent: its write has ended, or
    /// takes too long to wait for.
    pub fn may_be_sent(&self, id: VerdictId, now: SystemTime) -> bool {
        self.is_settled(id) || id.time() + self.sync_max <= now
    }

    /// Whether at least one call waits for a commit.
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Relaxed) > 0
    }

    pub fn is_durable(&self, id: VerdictId) -> bool {
        self.publisher.watermarks().durable >= id && !self.queue.may_be_dropped(id)
    }

    /// Subscribes to verdicts from now on. They arrive in the order of their ids, each
    /// after its write has succeeded or failed, or has taken too long.
    pub fn subscribe_verdicts(&self) -> broadcast::Receiver<VerdictRecord> {
        self.publisher.verdicts()
    }

    /// Subscribes to terminations from now on. They arrive as in `subscribe_verdicts`.
    pub fn subscribe_terminations(&self) -> broadcast::Receiver<Arc<Verdict>> {
        self.publisher.terminations()
    }

    /// Publishes the verdicts that wait for a disk that hangs: subscribers do not wait
    /// longer than `store.sync_secs_max`. To be called often.
    pub fn publish_stalled(&self) {
        let after = self.publisher.last();
        let stalled = self.queue.stalled_after(after, self.sync_max);
        self.publisher.publish_unsettled(stalled);
    }

    /// The last issued verdict.
    pub fn last_verdict_id(&self) -> VerdictId {
        self.queue.last()
    }

    /// The last verdict that has been removed; later ones are retained.
    pub fn retained_after(&self) -> VerdictId {
        match &self.disk {
            Some(_) => self.publisher.retained_after(),
            None => self.publisher.floor(),
        }
    }

    /// The last committed record of the audit log. `None`: in memory only.
    pub fn chain_head(&self) -> Option<ChainHead> {
        self.disk.as_ref().map(|_| self.publisher.head())
    }

    /// Removes what is too old or exceeds the size limit, and waits until that is done.
    pub fn enforce_retention(&self, now: SystemTime) -> Result<(), StoreError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let retention = Retention {
            tombstones_max: disk.tombstones_max.load(Relaxed),
            ..disk.retention
        };
        disk.requests.request(retention, now)
    }

    /// Changes how many terminations are kept.
    pub fn set_tombstones_max(&self, tombstones_max: usize) {
        if let Some(disk) = &self.disk {
            disk.tombstones_max.store(tombstones_max, Relaxed);
        }
    }

    /// Writes all verdicts issued so far and stops the writer.
    pub fn close(&self) {
        if let Some(disk) = &self.disk {
            disk.readers.close();
        }
        self.queue.close();
        // The lock is held until the writer has ended, so that a second call waits too.
        let mut writer = self.writer.lock();
        if let Some(thread) = writer.take() {
            // A panic of the thread is logged by the panic hook.
            let _ = thread.join();
        }
        if let Some(disk) = &self.disk {
            disk.requests.close();
            disk.writes.close();
            disk.writes.clear();
        }
    }

    /// The time by which everything in the store expires.
    pub fn expiry_clock(&self) -> ExpiryClock {
        self.expiry_clock
    }

    /// The directory of the database. `None`: in memory only.
    pub fn dir(&self) -> Option<&Path> {
        self.disk.as_ref().map(|disk| &*disk.dir.0)
    }

    pub fn health(&self) -> StoreHealth {
        let write_age = self.queue.write_age();
        if self.disk.is_none() {
            StoreHealth::InMemory
        } else if self.publisher.watermarks().write_failing {
            StoreHealth::WriteFailing(self.publisher.failure())
        } else if write_age >= self.sync_max {
            StoreHealth::Stalled(write_age)
        } else {
            StoreHealth::Healthy
        }
    }

    /// The terminations in force that are no longer on disk, because `store.bytes_max` is
    /// too small.
    pub fn removed_terminations(&self) -> u64 {
        self.publisher.removed_terminations.load(Relaxed)
    }

    pub fn stats(&self) -> StoreStats {
        let disk = self.disk.as_ref();
        let removals_dropped = disk.map_or(0, |disk| disk.writes.dropped_total());
        StoreStats {
            commits: self.publisher.commits.load(Relaxed),
            write_failures: self.publisher.failures.load(Relaxed),
            dropped: self.queue.dropped_total() + removals_dropped,
            removed_terminations: self.removed_terminations(),
            queue_len: self.queue.len(),
            bytes: disk.map_or(0, |disk| disk.dir.bytes()),
            bytes_max: disk.map_or(0, |disk| disk.retention.bytes_max),
            records: self.publisher.head().record,
            oldest_unsynced: self.queue.oldest_unsynced_age(),
            write_failing: !matches!(self.health(), StoreHealth::InMemory | StoreHealth::Healthy),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}
