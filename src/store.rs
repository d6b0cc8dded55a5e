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
//! Uses: domain.

mod folder;
mod frame;
mod hub;
mod intake;
mod log;
mod reading;
mod record;
mod shelf;
mod standing;
mod verify;
mod walk;
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
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use tokio::sync::broadcast;

pub use folder::{Fault, Tail};
pub use log::{Device, Medium};
pub use reading::Page;
pub use shelf::ReadError;
pub use verify::{Verified, verify};

use crate::domain::{Issued, Outlet, Standing, Verdict, VerdictId};
use folder::Folder;
use hub::Hub;
use intake::Intake;
use log::Log;
use shelf::{Retention, Shelf};
use standing::{Lasting, Ledger};
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
pub struct Audit {
    pub text: bool,
}

/// So many more terminations are carried on than there may be tombstones: which of
/// them a later part of the log lifts is only known when it is read, and those
/// must not push out what stands.
const LIFTED_MAX: usize = 65_536;

/// What a store needs to be opened.
pub struct Opening<'a> {
    pub settings: &'a Settings,
    pub audit: Audit,
    /// How long a termination holds.
    pub tombstone_age_max: Duration,
    /// How many do.
    pub tombstones_max: usize,
    pub now: SystemTime,
    /// Called when the disk took something and could not keep it. It must end
    /// the process: what is on the disk now, nobody knows.
    pub fatal: Box<dyn Fn(io::Error) + Send>,
}

#[cfg(test)]
impl<'a> Opening<'a> {
    /// Of a store that a test needs and is not about.
    pub fn in_a_test(config: &'a crate::config::Config) -> Self {
        Self {
            settings: &config.store,
            audit: config.audit,
            tombstone_age_max: Duration::MAX,
            tombstones_max: usize::MAX,
            now: crate::domain::clock::now(),
            fatal: Box::new(|_| {}),
        }
    }
}

/// The store of a service.
pub struct Store {
    intake: Arc<Intake>,
    hub: Arc<Hub>,
    disk: Option<Disk>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// How many wait for the disk.
    awaited: AtomicUsize,
}

struct Disk {
    folder: Folder,
    shelf: Arc<Shelf>,
    retention: Retention,
    tombstones_max: AtomicUsize,
    /// What was set aside at the start, and where.
    aside: Option<(PathBuf, Tail)>,
    /// No other process uses the directory.
    _lock: File,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Memory,
    Fine,
    /// At the start a damaged tail was moved into this file.
    SetAside(PathBuf),
    /// The last write failed.
    Failing,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    pub commits: u64,
    pub failures: u64,
    pub shed: u64,
    pub queue: usize,
    pub bytes: u64,
    pub failing: bool,
}

impl Store {
    /// Opens the store and says what stands. Slow: it reads the whole log.
    pub fn open(opening: Opening<'_>) -> Result<(Self, Standing), Fault> {
        if opening.settings.dir.as_os_str().is_empty() {
            return Ok(Self::in_memory(opening));
        }
        Self::open_on(opening, Device::FILES)
    }

    fn in_memory(opening: Opening<'_>) -> (Self, Standing) {
        let since = VerdictId::at(opening.now);
        let store = Self::start(opening, None, since, since, None);
        (store, Standing::default())
    }

    /// Opens it on a disk of one's own, in a directory.
    pub fn open_on(opening: Opening<'_>, device: Device) -> Result<(Self, Standing), Fault> {
        let settings = opening.settings;
        let folder = Folder(settings.dir.clone());
        folder.make().map_err(Fault::io(&folder.0))?;
        let lock = folder.lock()?;
        if folder.is_unbegun()? {
            folder.begin(opening.now)?;
        }
        let mut standing = Ledger::default();
        let walked = folder.walk(Lasting::of, |lasting| standing.show(lasting))?;
        folder.remove_before(walked.anchor.segment)?;
        let aside = match walked.tail {
            Some(tail) => Some((folder.set_aside(&tail)?, tail)),
            None => None,
        };
        let horizon = walked.anchor.horizon();
        let ids = walked.segments.iter().filter_map(|segment| segment.ids);
        let last = ids.map(|(_, last)| last).max().unwrap_or(horizon);
        let active = walked.segments.last().copied();
        let active = active.unwrap_or(folder::Segment::new(walked.anchor.segment));
        let shelf = Arc::new(Shelf::new(folder.clone(), walked.segments, horizon));
        let log = Log::new(folder.clone(), shelf.clone(), active, walked.head, device);
        let log = log.map_err(Fault::io(&folder.0))?;
        let days = settings.verdicts_days_max;
        let disk = Disk {
            retention: Retention {
                verdicts_age_max: Duration::from_secs(u64::from(days) * 24 * 60 * 60),
                bytes_max: settings.bytes_max,
                tombstone_age_max: opening.tombstone_age_max,
                terminations_max: usize::MAX,
            },
            tombstones_max: AtomicUsize::new(opening.tombstones_max),
            folder,
            shelf,
            aside,
            _lock: lock,
        };
        standing.bound(opening.tombstones_max);
        let store = Self::start(opening, Some(log), last, last, Some(disk));
        Ok((store, standing.into_standing(last)))
    }

    fn start(
        opening: Opening<'_>,
        log: Option<Log>,
        last: VerdictId,
        floor: VerdictId,
        disk: Option<Disk>,
    ) -> Self {
        let queue_max = opening.settings.queue_max;
        let intake = Arc::new(Intake::new(queue_max, last));
        let hub = Arc::new(Hub::new(last, floor, log.is_some()));
        let writer = Writer {
            intake: intake.clone(),
            hub: hub.clone(),
            log,
            text: opening.audit.text,
            backlog: Vec::new(),
            backlog_max: queue_max,
            fatal: opening.fatal,
        };
        Self {
            intake,
            hub,
            disk,
            writer: Mutex::new(Some(std::thread::spawn(|| writer.run()))),
            awaited: AtomicUsize::new(0),
        }
    }

    /// Where the engine puts its verdicts. It never waits.
    pub fn outlet(&self) -> Outlet {
        let intake = self.intake.clone();
        Box::new(move |issued| intake.put(issued))
    }

    /// Waits until it is known whether a verdict is on disk, and says so.
    pub async fn settled(&self, id: VerdictId) -> bool {
        if self.hub.progress().decided < id {
            let _waiting = Waiting::of(&self.awaited);
            self.hub.decided(id).await;
        }
        self.is_durable(id)
    }

    /// Somebody waits for the disk.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Relaxed) > 0
    }

    pub fn is_durable(&self, id: VerdictId) -> bool {
        self.hub.progress().durable >= id && !self.intake.may_be_lost(id)
    }

    /// Verdicts from now on, in the order of their ids, each when it is on disk
    /// or known not to be.
    pub fn verdicts(&self) -> broadcast::Receiver<Issued> {
        self.hub.verdicts()
    }

    /// Terminations from now on, the same.
    pub fn terminations(&self) -> broadcast::Receiver<Arc<Verdict>> {
        self.hub.terminations()
    }

    /// The last verdict that was given.
    pub fn last(&self) -> VerdictId {
        self.intake.last()
    }

    /// The last verdict that is not kept any more.
    pub fn horizon(&self) -> VerdictId {
        match &self.disk {
            Some(disk) => disk.shelf.horizon(),
            None => self.hub.floor(),
        }
    }

    /// Lets go of what is too old or too much. Reads the log where there is
    /// something to let go of.
    pub fn tidy(&self, now: SystemTime) -> Result<(), Fault> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let tombstones_max = disk.tombstones_max.load(Relaxed);
        let retention = Retention {
            terminations_max: tombstones_max.saturating_add(LIFTED_MAX),
            ..disk.retention
        };
        disk.shelf.tidy(&retention, now)
    }

    /// Carries on so many terminations from now on.
    pub fn keep_tombstones(&self, tombstones_max: usize) {
        if let Some(disk) = &self.disk {
            disk.tombstones_max.store(tombstones_max, Relaxed);
        }
    }

    /// Writes what was given until now, and nothing more.
    pub fn close(&self) {
        self.intake.close();
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
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
    pub fn set_aside(&self) -> Option<&(PathBuf, Tail)> {
        self.disk.as_ref()?.aside.as_ref()
    }

    pub fn health(&self) -> Health {
        match (&self.disk, self.set_aside()) {
            (None, _) => Health::Memory,
            (Some(_), _) if self.hub.progress().failing => Health::Failing,
            (Some(_), Some((aside, _))) => Health::SetAside(aside.clone()),
            (Some(_), None) => Health::Fine,
        }
    }

    pub fn stats(&self) -> Stats {
        Stats {
            commits: self.hub.commits.load(Relaxed),
            failures: self.hub.failures.load(Relaxed),
            shed: self.intake.shed(),
            queue: self.intake.len(),
            bytes: self.disk.as_ref().map_or(0, |disk| disk.shelf.bytes()),
            failing: self.hub.progress().failing,
        }
    }
}

/// Counts one who waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn of(awaited: &'a AtomicUsize) -> Self {
        awaited.fetch_add(1, Relaxed);
        Self(awaited)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}
