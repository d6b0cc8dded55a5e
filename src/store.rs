//! The audit log: every verdict and every operator action, written by one thread.
//!
//! The log has its own file format instead of a database, because it has requirements
//! that no database meets: records form a hash chain, a tail torn by a crash is
//! distinguished from damage in the middle, a failed append leaves everything else
//! unchanged, and a failed sync is distinguished from a failed write. A commit is one
//! append and one `fdatasync`. There is no index: ids are ordered, so a reader finds
//! the segment by its first and last id and scans its few megabytes. At startup the
//! log is read once to recover the state; removed segments leave their terminations
//! in the checkpoint (the file `anchor`).
//!
//! Durability is a watermark: verdicts are written in the order of their ids, so
//! `Store::wait_until_settled` waits until the writer has reached the id.
//!
//! Uses: domain, telemetry.

mod frame;
mod log;
mod publisher;
mod queue;
mod reading;
mod record;
mod recovery;
mod segment_reader;
mod snapshot;
mod store_dir;
mod verify;
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

pub use log::{LogFile, LogFileFactory};
pub use reading::VerdictPage;
pub use segment_reader::ReadError;
pub use store_dir::{DamagedTail, StoreError};
pub use verify::{LogVerification, verify};

use crate::{
    domain::{RecoveredState, Verdict, VerdictId, VerdictRecord, VerdictSink},
    telemetry::StoreStats,
};
use log::Log;
use publisher::CommitPublisher;
use queue::WriteQueue;
use segment_reader::{Retention, SegmentReader};
use snapshot::{StateChange, StateSnapshot};
use store_dir::StoreDir;
use writer::Writer;

/// `[store]`
#[derive(Clone, Debug, Deserialize)]
pub struct Settings {
    /// Empty: in memory only.
    pub dir: PathBuf,
    pub verdicts_days_max: u32,
    pub bytes_max: u64,
    pub queue_max: usize,
}

impl Settings {
    /// Below this, retention would keep only the segment that is being written.
    pub const BYTES_MIN: u64 = 2 * log::SEGMENT_BYTES;
}

/// `[audit]`
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AuditSettings {
    pub text: bool,
}

/// The checkpoint keeps this many terminations above `tombstones_max`, because some
/// may be lifted by resets later in the log that have not been read yet. Those must
/// not displace terminations that are in force.
const LIFTED_TERMINATIONS_MAX: usize = 65_536;

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
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Calls that wait for a commit.
    waiters: AtomicUsize,
}

struct Disk {
    folder: StoreDir,
    segments: Arc<SegmentReader>,
    retention: Retention,
    tombstones_max: AtomicUsize,
    /// The damaged tail found at startup, and the file it was moved to.
    damaged_tail: Option<(PathBuf, DamagedTail)>,
    /// Keeps other processes from using the directory.
    _lock: File,
}

/// The state of the store, for health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    InMemory,
    Healthy,
    /// A damaged tail was moved to this file at startup.
    DamagedTail(PathBuf),
    /// The last write failed.
    WriteFailing,
}

impl Store {
    /// Opens the store and recovers the state. This is slow, because it reads the whole
    /// log.
    pub fn open(options: StoreOptions<'_>) -> Result<(Self, RecoveredState), StoreError> {
        if options.settings.dir.as_os_str().is_empty() {
            return Ok(Self::in_memory(options));
        }
        Self::open_with_files(options, LogFileFactory::FILES)
    }

    fn in_memory(options: StoreOptions<'_>) -> (Self, RecoveredState) {
        let since = VerdictId::lower_bound_at(options.now);
        let store = Self::start(options, None, since, since, None);
        (store, RecoveredState::default())
    }

    /// Opens the store with other log files, for tests of disk failures.
    pub fn open_with_files(
        options: StoreOptions<'_>,
        files: LogFileFactory,
    ) -> Result<(Self, RecoveredState), StoreError> {
        let settings = options.settings;
        let folder = StoreDir(settings.dir.clone());
        folder.make().map_err(StoreError::io(&folder.0))?;
        let lock = folder.lock()?;
        if folder.is_unbegun()? {
            folder.begin(options.now)?;
        }
        let mut snapshot = StateSnapshot::default();
        let scan = folder.scan(StateChange::from_entry, |lasting| snapshot.apply(lasting))?;
        folder.remove_before(scan.anchor.segment)?;
        let damaged_tail = match scan.tail {
            Some(tail) => Some((folder.move_damaged_tail(&tail)?, tail)),
            None => None,
        };
        let retained_after = scan.anchor.retained_after();
        let ids = scan.segments.iter().filter_map(|segment| segment.ids);
        let last = ids.map(|(_, last)| last).max().unwrap_or(retained_after);
        let active = scan
            .segments
            .last()
            .copied()
            .unwrap_or(store_dir::Segment::new(scan.anchor.segment));
        let segments = Arc::new(SegmentReader::new(
            folder.clone(),
            scan.segments,
            retained_after,
        ));
        let log = Log::new(folder.clone(), segments.clone(), active, scan.head, files)
            .map_err(StoreError::io(&folder.0))?;
        let days = settings.verdicts_days_max;
        let disk = Disk {
            retention: Retention {
                verdicts_age_max: Duration::from_secs(u64::from(days) * 24 * 60 * 60),
                bytes_max: settings.bytes_max,
                tombstone_age_max: options.tombstone_age_max,
                terminations_max: usize::MAX,
            },
            tombstones_max: AtomicUsize::new(options.tombstones_max),
            folder,
            segments,
            damaged_tail,
            _lock: lock,
        };
        snapshot.limit_sessions(options.tombstones_max);
        let store = Self::start(options, Some(log), last, last, Some(disk));
        Ok((store, snapshot.into_recovered_state(last)))
    }

    fn start(
        options: StoreOptions<'_>,
        log: Option<Log>,
        last: VerdictId,
        floor: VerdictId,
        disk: Option<Disk>,
    ) -> Self {
        let queue_max = options.settings.queue_max;
        let queue = Arc::new(WriteQueue::new(queue_max, last));
        let publisher = Arc::new(CommitPublisher::new(last, floor, log.is_some()));
        let writer = Writer {
            queue: queue.clone(),
            publisher: publisher.clone(),
            log,
            text: options.audit.text,
            backlog: Vec::new(),
            backlog_max: queue_max,
            on_fatal: options.on_fatal,
        };
        Self {
            queue,
            publisher,
            disk,
            writer: Mutex::new(Some(std::thread::spawn(|| writer.run()))),
            waiters: AtomicUsize::new(0),
        }
    }

    /// The engine's sink for verdicts. It never blocks.
    pub fn verdict_sink(&self) -> VerdictSink {
        let queue = self.queue.clone();
        Box::new(move |issued| queue.enqueue(issued))
    }

    /// Waits until the write of a verdict has succeeded or failed. Returns whether it
    /// is durable.
    pub async fn wait_until_settled(&self, id: VerdictId) -> bool {
        if self.publisher.watermarks().settled < id {
            let _waiting = WaiterGuard::new(&self.waiters);
            self.publisher.wait_until_settled(id).await;
        }
        self.is_durable(id)
    }

    /// Whether at least one call waits for a commit.
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Relaxed) > 0
    }

    pub fn is_durable(&self, id: VerdictId) -> bool {
        self.publisher.watermarks().durable >= id && !self.queue.may_be_dropped(id)
    }

    /// Subscribes to verdicts from now on. They arrive in the order of their ids, each
    /// after its write has succeeded or failed.
    pub fn subscribe_verdicts(&self) -> broadcast::Receiver<VerdictRecord> {
        self.publisher.verdicts()
    }

    /// Subscribes to terminations from now on. They arrive as in `subscribe_verdicts`.
    pub fn subscribe_terminations(&self) -> broadcast::Receiver<Arc<Verdict>> {
        self.publisher.terminations()
    }

    /// The last issued verdict.
    pub fn last_verdict_id(&self) -> VerdictId {
        self.queue.last()
    }

    /// The last verdict that has been removed; later ones are retained.
    pub fn retained_after(&self) -> VerdictId {
        match &self.disk {
            Some(disk) => disk.segments.retained_after(),
            None => self.publisher.floor(),
        }
    }

    /// Removes segments that are too old or exceed the size limit. If there is one, the
    /// segments to remove are read first, because the checkpoint keeps their
    /// terminations.
    pub fn enforce_retention(&self, now: SystemTime) -> Result<(), StoreError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let tombstones_max = disk.tombstones_max.load(Relaxed);
        let retention = Retention {
            terminations_max: tombstones_max.saturating_add(LIFTED_TERMINATIONS_MAX),
            ..disk.retention
        };
        disk.segments.enforce_retention(&retention, now)
    }

    /// Changes how many terminations the checkpoint keeps.
    pub fn set_tombstones_max(&self, tombstones_max: usize) {
        if let Some(disk) = &self.disk {
            disk.tombstones_max.store(tombstones_max, Relaxed);
        }
    }

    /// Writes all verdicts issued so far and stops the writer.
    pub fn close(&self) {
        self.queue.close();
        // The lock is held until the writer has ended, so that a second call waits too.
        let mut writer = self.writer.lock();
        if let Some(thread) = writer.take() {
            // A panic of the thread is logged by the panic hook.
            let _ = thread.join();
        }
    }

    /// The directory of the log. `None`: in memory only.
    pub fn dir(&self) -> Option<&Path> {
        self.disk.as_ref().map(|disk| &*disk.folder.0)
    }

    /// The damaged tail found at startup, and the file it was moved to.
    pub fn damaged_tail(&self) -> Option<&(PathBuf, DamagedTail)> {
        self.disk.as_ref()?.damaged_tail.as_ref()
    }

    pub fn health(&self) -> StoreHealth {
        match (&self.disk, self.damaged_tail()) {
            (None, _) => StoreHealth::InMemory,
            (Some(_), _) if self.publisher.watermarks().write_failing => StoreHealth::WriteFailing,
            (Some(_), Some((file, _))) => StoreHealth::DamagedTail(file.clone()),
            (Some(_), None) => StoreHealth::Healthy,
        }
    }

    pub fn stats(&self) -> StoreStats {
        StoreStats {
            commits: self.publisher.commits.load(Relaxed),
            write_failures: self.publisher.failures.load(Relaxed),
            dropped: self.queue.dropped_total(),
            queue_len: self.queue.len(),
            bytes: self.disk.as_ref().map_or(0, |disk| disk.segments.bytes()),
            write_failing: self.publisher.watermarks().write_failing,
        }
    }
}

/// Counts a waiting call until dropped.
struct WaiterGuard<'a>(&'a AtomicUsize);

impl<'a> WaiterGuard<'a> {
    fn new(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Relaxed);
        Self(waiters)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}
