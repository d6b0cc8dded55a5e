//! A disk that works only between the steps of the simulation, and loses unsynced data in
//! a crash.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, LazyLock, Mutex},
};

use tempfile::TempDir;
use unstuck::store::{LogFile, LogFileFactory};

use super::Chance;

/// The log of one simulated machine.
#[derive(Clone)]
pub struct Disk {
    pub dir: Arc<TempDir>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// Counts crashes. A file opened before a crash is unusable.
    boot: u64,
    /// Writes are accepted.
    takes: bool,
    /// Syncs succeed.
    syncs: bool,
    /// A sync is pending.
    is_asked_to_sync: bool,
    /// The synced and the total length of each file.
    files: HashMap<PathBuf, (u64, u64)>,
}

/// The factory of log files is a plain function, so the disks of all simulations are
/// found by their directories.
static DISKS: LazyLock<Mutex<HashMap<PathBuf, Arc<State>>>> = LazyLock::new(Mutex::default);

pub const DEVICE: LogFileFactory = LogFileFactory {
    open: |path| {
        let state = DISKS.lock().unwrap()[path.parent().unwrap()].clone();
        Ok(Box::new(Handle::open(path, state)?))
    },
    // A few dozen verdicts, so that a run has many segments.
    segment_bytes: 8 * 1024,
};

impl Disk {
    pub fn new() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let state = Arc::<State>::default();
        DISKS
            .lock()
            .unwrap()
            .insert(dir.path().to_owned(), state.clone());
        Self { dir, state }
    }

    /// Accepts writes and syncs until it is held again.
    pub fn open(&self) {
        self.set(true, true);
    }

    pub fn hold(&self) {
        self.set(false, false);
    }

    /// Accepts writes, but no syncs.
    pub fn take(&self) {
        self.set(true, false);
    }

    fn set(&self, takes: bool, syncs: bool) {
        let mut inner = self.state.inner.lock().unwrap();
        (inner.takes, inner.syncs) = (takes, syncs);
        drop(inner);
        self.state.changed.notify_all();
    }

    /// Everything is written, and a sync is pending.
    pub fn is_asked_to_sync(&self) -> bool {
        self.state.inner.lock().unwrap().is_asked_to_sync
    }

    /// A power failure. Any prefix of the unsynced data may be on the disk.
    pub fn crash(&self, chance: &mut Chance) {
        let mut inner = self.state.inner.lock().unwrap();
        inner.boot += 1;
        (inner.takes, inner.syncs, inner.is_asked_to_sync) = (false, false, false);
        let mut files: Vec<_> = inner.files.drain().collect();
        files.sort_unstable();
        for (path, (synced, written)) in files {
            // Half of the time none of it.
            let lucky = chance.below(2) * chance.below(written - synced + 1);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(synced + lucky).unwrap();
        }
        drop(inner);
        self.state.changed.notify_all();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if Arc::strong_count(&self.dir) == 1 {
            DISKS.lock().unwrap().remove(self.dir.path());
        }
    }
}

/// An open file.
struct Handle {
    file: File,
    path: PathBuf,
    boot: u64,
    state: Arc<State>,
}

impl Handle {
    fn open(path: &Path, state: Arc<State>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        let mut inner = state.inner.lock().unwrap();
        let boot = inner.boot;
        // Data that is present after a crash counts as synced.
        inner.files.entry(path.to_owned()).or_insert((bytes, bytes));
        drop(inner);
        Ok(Self {
            file,
            path: path.to_owned(),
            boot,
            state,
        })
    }

    /// Waits until the disk is ready, then runs the operation.
    fn work(
        &mut self,
        is_ready: fn(&Inner) -> bool,
        with: impl FnOnce(&mut File, &mut (u64, u64)) -> io::Result<()>,
    ) -> io::Result<()> {
        let boot = self.boot;
        let inner = self.state.inner.lock().unwrap();
        let held = |inner: &mut Inner| !is_ready(inner) && inner.boot == boot;
        let mut inner = self.state.changed.wait_while(inner, held).unwrap();
        if inner.boot != boot {
            return Err(io::Error::other("the power failed"));
        }
        let extent = inner.files.entry(self.path.clone()).or_default();
        with(&mut self.file, extent)
    }
}

impl LogFile for Handle {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.work(
            |disk| disk.takes,
            |file, (_, written)| {
                file.write_all(bytes)?;
                *written += bytes.len() as u64;
                Ok(())
            },
        )
    }

    fn sync(&mut self) -> io::Result<()> {
        self.state.inner.lock().unwrap().is_asked_to_sync = true;
        let done = self.work(
            |disk| disk.syncs,
            |_, (synced, written)| {
                *synced = *written;
                Ok(())
            },
        );
        self.state.inner.lock().unwrap().is_asked_to_sync = false;
        done
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.work(
            |disk| disk.takes,
            |file, (synced, written)| {
                file.set_len(bytes)?;
                (*synced, *written) = ((*synced).min(bytes), bytes);
                Ok(())
            },
        )
    }
}
