//! The files of a store:
//!
//! - `unstuck.db`: the database, with `unstuck.db-wal` and `unstuck.db-shm` beside it.
//! - `head`: the number and the hash of the last committed record. It is written after
//!   each commit, so a database that has fewer records than it says has lost its end.
//! - `withdrawn`: operator actions that were refused while their commit was on its way.
//!
//! The directory itself is locked, because a lock file could be deleted.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::ErrorCode;
use thiserror::Error;

use super::chain::parse_hash;
use crate::domain::{ChainHead, VerdictId};

/// The error of a disk that cannot be read or written; `io::ErrorKind` has no name for it.
const EIO: i32 = 5;

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is in use by another process", path.display())]
    InUse { path: PathBuf },
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{} has schema version {found}, and this version of unstuck reads up to {known}: \
         use the version that wrote it, or a later one",
        path.display()
    )]
    NewerSchema {
        path: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("there is no audit log in {}", path.display())]
    Empty { path: PathBuf },
    #[error("cannot use {}: {source}", path.display())]
    Database {
        path: PathBuf,
        source: rusqlite::Error,
    },
}

impl StoreError {
    /// Whether the disk failed, so that a later attempt may succeed.
    pub fn is_disk_failure(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull
                        | io::ErrorKind::ReadOnlyFilesystem
                        | io::ErrorKind::Other
                        | io::ErrorKind::TimedOut
                ) || source.raw_os_error() == Some(EIO)
            }
            Self::Database { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(
                    ErrorCode::DiskFull
                        | ErrorCode::SystemIoFailure
                        | ErrorCode::DatabaseBusy
                        | ErrorCode::OutOfMemory
                )
            ),
            Self::InUse { .. }
            | Self::Damaged { .. }
            | Self::NewerSchema { .. }
            | Self::Empty { .. } => false,
        }
    }

    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }

    pub(super) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            why: why.into(),
        }
    }
}

/// How long a start waits for another process to release the directory.
const LOCK_WAIT: Duration = Duration::from_millis(500);
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// The directory of a store.
#[derive(Clone, Debug)]
pub(super) struct StoreDir(pub PathBuf);

/// Tells whether a path still names the file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

impl StoreDir {
    pub fn database(&self) -> PathBuf {
        self.0.join("unstuck.db")
    }

    pub fn wal(&self) -> PathBuf {
        self.0.join("unstuck.db-wal")
    }

    pub fn has_wal(&self) -> bool {
        fs::metadata(self.wal()).is_ok_and(|metadata| metadata.len() > 0)
    }

    pub fn head(&self) -> PathBuf {
        self.0.join("head")
    }

    fn withdrawn(&self) -> PathBuf {
        self.0.join("withdrawn")
    }

    /// Creates the directory. Only its owner may read it, because session ids and labels
    /// are in it.
    pub fn create(&self) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
    }

    /// Locks the directory for this process. The lock ends with the file. A process that
    /// is about to end gets a moment, because a restart must not fail for it.
    pub fn lock(&self) -> Result<File, StoreError> {
        let mut waited = Duration::ZERO;
        loop {
            match self.try_lock(File::try_lock) {
                Err(StoreError::InUse { .. }) if waited < LOCK_WAIT => {
                    std::thread::sleep(LOCK_INTERVAL);
                    waited += LOCK_INTERVAL;
                }
                result => return result,
            }
        }
    }

    /// Keeps a service from starting while the files are read. `None`: one is running.
    pub fn lock_for_reading(&self) -> Result<Option<File>, StoreError> {
        match self.try_lock(File::try_lock_shared) {
            Ok(lock) => Ok(Some(lock)),
            Err(StoreError::InUse { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn try_lock(
        &self,
        lock: impl FnOnce(&File) -> Result<(), TryLockError>,
    ) -> Result<File, StoreError> {
        let dir = File::open(&self.0).map_err(StoreError::io(&self.0))?;
        match lock(&dir) {
            Ok(()) => Ok(dir),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
                path: self.0.clone(),
            }),
            Err(TryLockError::Error(error)) => Err(StoreError::io(&self.0)(error)),
        }
    }

    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    /// The bytes of the database and its write-ahead log.
    pub fn bytes(&self) -> u64 {
        let len = |path: PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.len());
        len(self.database()) + len(self.wal())
    }

    /// The content of `head`. `None`: there is no such file, or it is not valid.
    pub fn read_head(&self) -> Option<ChainHead> {
        let text = fs::read_to_string(self.head()).ok()?;
        let (record, hash) = text.trim_end().split_once(' ')?;
        Some(ChainHead {
            record: record.parse().ok()?,
            hash: parse_hash(hash)?,
        })
    }

    /// The operator actions that were refused while their commit was on its way.
    pub fn read_withdrawn(&self) -> Vec<VerdictId> {
        let text = fs::read_to_string(self.withdrawn()).unwrap_or_default();
        text.lines().filter_map(VerdictId::parse).collect()
    }

    /// Remembers that an operator action was refused. Not synced: it is needed after a
    /// kill of the process, and while the disk hangs a sync would too.
    pub fn note_withdrawn(&self, id: VerdictId) -> io::Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.withdrawn())?;
        writeln!(file, "{id}")
    }

    pub fn forget_withdrawn(&self) {
        // Without the file there is nothing to remove, and a stale one changes nothing.
        let _ = fs::remove_file(self.withdrawn());
    }
}

/// The file `head`, kept open.
pub(super) struct HeadFile(File);

impl HeadFile {
    pub fn open(dir: &StoreDir) -> io::Result<Self> {
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        options.open(dir.head()).map(Self)
    }

    /// Writes the head. Not synced: the file is for kills and damage, and after a power
    /// failure an older head is as good. All heads have the same length.
    pub fn write(&self, head: &ChainHead) -> io::Result<()> {
        let line = format!("{:020} {}\n", head.record, head.hash);
        self.0.write_all_at(line.as_bytes(), 0)
    }

    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
