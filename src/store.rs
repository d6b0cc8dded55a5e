//! The durable side: every verdict and every operator's act, in a log that is
//! written by one thread.
//!
//! The log is a file of our own and not a database, because it has to do what
//! none does: its records are a hash chain, a tail that was torn by a crash is
//! told from damage in the middle, an append that the disk refuses leaves
//! everything else as it was, and a failed sync is known from a failed write.
//! An append and an `fdatasync` are all that a commit takes. There is no index:
//! ids are ordered, so who reads finds the segment by its first and last id and
//! looks through its few megabytes. What still stands at the start comes from
//! reading the log once; segments that are let go of leave their terminations in
//! the anchor.
//!
//! Receipts are a watermark: verdicts are written in the order of their ids, so
//! [`Store::settled`] waits until the writer has come to the id.
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
    /// Below it nothing but the segment that is written to would be kept.
    pub const BYTES_MIN: u64 = 2 * log::SEGMENT_BYTES;
}

/// `[audit]`
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AuditSettings {
    pub text: bool,
}

/// So many more terminations are carried on than there may be tombstones: which of
/// them a later part of the log lifts is only known when it is read, and those
/// must not push out what stands.
const LIFTED_TERMINATIONS_MAX: usize = 65_536;

/// What a store needs to be opened.
pub struct StoreOptions<'a> {
    pub settings: &'a Settings,
    pub audit: AuditSettings,
    /// How long a termination holds.
    pub tombstone_age_max: Duration,
    /// How many do.
    pub tombstones_max: usize,
    pub now: SystemTime,
    /// Called when the disk took something and could not keep it. It must end
    /// the process: what is on the disk now, nobody knows.
    pub on_fatal: Box<dyn Fn(io::Error) + Send>,
}

#[cfg(test)]
impl<'a> StoreOptions<'a> {
    /// Of a store that a test needs and is not about.
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

/// The store of a service.
pub struct Store {
    queue: Arc<WriteQueue>,
    publisher: Arc<CommitPublisher>,
    disk: Option<Disk>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// How many wait for the disk.
    waiters: AtomicUsize,
}

struct Disk {
    folder: StoreDir,
    shelf: Arc<SegmentReader>,
    retention: Retention,
    tombstones_max: AtomicUsize,
    /// What was set aside at the start, and where.
    damaged_tail: Option<(PathBuf, DamagedTail)>,
    /// No other process uses the directory.
    _lock: File,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    InMemory,
    Healthy,
    /// At the start a damaged tail was moved into this file.
    DamagedTail(PathBuf),
    /// The last write failed.
    WriteFailing,
}

impl Store {
    /// Opens the store and says what stands. Slow: it reads the whole log.
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

    /// Opens it on a disk of one's own, in a directory.
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
            Some(tail) => Some((folder.set_aside(&tail)?, tail)),
            None => None,
        };
        let retained_after = scan.anchor.retained_after();
        let ids = scan.segments.iter().filter_map(|segment| segment.ids);
        let last = ids.map(|(_, last)| last).max().unwrap_or(retained_after);
        let active = scan.segments.last().copied();
        let active = active.unwrap_or(store_dir::Segment::new(scan.anchor.segment));
        let shelf = Arc::new(SegmentReader::new(
            folder.clone(),
            scan.segments,
            retained_after,
        ));
        let log = Log::new(folder.clone(), shelf.clone(), active, scan.head, files);
        let log = log.map_err(StoreError::io(&folder.0))?;
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
            shelf,
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

    /// Where the engine puts its verdicts. It never waits.
    pub fn verdict_sink(&self) -> VerdictSink {
        let queue = self.queue.clone();
        Box::new(move |issued| queue.enqueue(issued))
    }

    /// Waits until it is known whether a verdict is on disk, and says so.
    pub async fn wait_until_settled(&self, id: VerdictId) -> bool {
        if self.publisher.watermarks().settled < id {
            let _waiting = WaiterGuard::new(&self.waiters);
            self.publisher.wait_until_settled(id).await;
        }
        self.is_durable(id)
    }

    /// Somebody waits for the disk.
    pub fn has_waiters(&self) -> bool {
        self.waiters.load(Relaxed) > 0
    }

    pub fn is_durable(&self, id: VerdictId) -> bool {
        self.publisher.watermarks().durable >= id && !self.queue.may_be_dropped(id)
    }

    /// Verdicts from now on, in the order of their ids, each when it is on disk
    /// or known not to be.
    pub fn subscribe_verdicts(&self) -> broadcast::Receiver<VerdictRecord> {
        self.publisher.verdicts()
    }

    /// Terminations from now on, the same.
    pub fn subscribe_terminations(&self) -> broadcast::Receiver<Arc<Verdict>> {
        self.publisher.terminations()
    }

    /// The last verdict that was given.
    pub fn last_verdict_id(&self) -> VerdictId {
        self.queue.last()
    }

    /// The last verdict that is not kept any more.
    pub fn retained_after(&self) -> VerdictId {
        match &self.disk {
            Some(disk) => disk.shelf.retained_after(),
            None => self.publisher.floor(),
        }
    }

    /// Lets go of what is too old or too much. Reads the log where there is
    /// something to let go of.
    pub fn enforce_retention(&self, now: SystemTime) -> Result<(), StoreError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let tombstones_max = disk.tombstones_max.load(Relaxed);
        let retention = Retention {
            terminations_max: tombstones_max.saturating_add(LIFTED_TERMINATIONS_MAX),
            ..disk.retention
        };
        disk.shelf.enforce_retention(&retention, now)
    }

    /// Carries on so many terminations from now on.
    pub fn set_tombstones_max(&self, tombstones_max: usize) {
        if let Some(disk) = &self.disk {
            disk.tombstones_max.store(tombstones_max, Relaxed);
        }
    }

    /// Writes what was given until now, and nothing more.
    pub fn close(&self) {
        self.queue.close();
        let mut writer = self.writer.lock();
        if let Some(writer) = writer.take() {
            // It logs its own panic.
            let _ = writer.join();
        }
    }

    /// Where the log is. `None`: in memory only.
    pub fn dir(&self) -> Option<&Path> {
        self.disk.as_ref().map(|disk| &*disk.folder.0)
    }

    /// What was set aside at the start, and where.
    pub fn damaged_tail(&self) -> Option<&(PathBuf, DamagedTail)> {
        self.disk.as_ref()?.damaged_tail.as_ref()
    }

    pub fn health(&self) -> StoreHealth {
        match (&self.disk, self.damaged_tail()) {
            (None, _) => StoreHealth::InMemory,
            (Some(_), _) if self.publisher.watermarks().write_failing => StoreHealth::WriteFailing,
            (Some(_), Some((aside, _))) => StoreHealth::DamagedTail(aside.clone()),
            (Some(_), None) => StoreHealth::Healthy,
        }
    }

    pub fn stats(&self) -> StoreStats {
        StoreStats {
            commits: self.publisher.commits.load(Relaxed),
            write_failures: self.publisher.failures.load(Relaxed),
            dropped: self.queue.dropped_total(),
            queue_len: self.queue.len(),
            bytes: self.disk.as_ref().map_or(0, |disk| disk.shelf.bytes()),
            write_failing: self.publisher.watermarks().write_failing,
        }
    }
}

/// Counts one who waits, until it is dropped.
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
