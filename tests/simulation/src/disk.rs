//! A disk that commits only between the steps of the simulation, and loses in a power
//! failure what was not committed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
};

use tempfile::TempDir;
use unstuck::store::CommitHook;

/// The store of one simulated machine.
#[derive(Clone, Default)]
pub struct Disk(Arc<State>);

#[derive(Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// One directory per boot. The store of a machine that lost power goes on in the old
    /// one, which no later process opens.
    dirs: Vec<TempDir>,
    /// Commits pass.
    is_open: bool,
    /// The hooks that exist: one per running writer thread.
    hooks: usize,
}

/// Counts a hook until the writer thread that owns it has ended.
struct HookGuard(Disk);

impl Drop for HookGuard {
    fn drop(&mut self) {
        self.0.0.inner.lock().unwrap().hooks -= 1;
        self.0.0.changed.notify_all();
    }
}

impl Disk {
    pub fn new() -> Self {
        let disk = Self::default();
        let dir = tempfile::tempdir().unwrap();
        disk.0.inner.lock().unwrap().dirs.push(dir);
        disk
    }

    /// The directory of the current boot.
    pub fn dir(&self) -> PathBuf {
        let inner = self.0.inner.lock().unwrap();
        inner.dirs.last().unwrap().path().to_owned()
    }

    /// Commits wait until the disk is open, or until the machine has lost power.
    pub fn hook(&self) -> CommitHook {
        let mut inner = self.0.inner.lock().unwrap();
        inner.hooks += 1;
        let boot = inner.dirs.len();
        drop(inner);
        let guard = HookGuard(self.clone());
        Box::new(move || {
            let State { inner, changed } = &*guard.0.0;
            let is_held = |inner: &mut Inner| !inner.is_open && inner.dirs.len() == boot;
            drop(changed.wait_while(inner.lock().unwrap(), is_held).unwrap());
        })
    }

    pub fn set_open(&self, is_open: bool) {
        self.0.inner.lock().unwrap().is_open = is_open;
        self.0.changed.notify_all();
    }

    /// Waits until no writer thread uses the disk.
    pub fn wait_until_unused(&self) {
        let State { inner, changed } = &*self.0;
        let is_used = |inner: &mut Inner| inner.hooks > 0;
        drop(changed.wait_while(inner.lock().unwrap(), is_used).unwrap());
    }

    /// A power failure while the disk is held: no commit is on its way. The next process
    /// finds a copy of the files as they are.
    pub fn lose_power(&self) {
        let new = tempfile::tempdir().unwrap();
        let mut inner = self.0.inner.lock().unwrap();
        assert!(!inner.is_open);
        copy_files(inner.dirs.last().unwrap().path(), new.path());
        inner.dirs.push(new);
        drop(inner);
        self.0.changed.notify_all();
    }
}

fn copy_files(from: &Path, to: &Path) {
    for name in ["unstuck.db", "unstuck.db-wal", "head", "withdrawn"] {
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}
