//! The files of a store:
//!
//! - `lock`: locked by the process that uses the directory.
//! - `audit-00000001.log`, …: the log, in segments. Every segment continues
//!   the chain of the one before.
//! - `anchor`: the checkpoint. It says where the chain begins after the oldest segments
//!   were removed, and has their terminations and snoozes that are still in force.
//! - `damaged-…`: a damaged tail that was moved away.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufReader, Read, Seek, Write},
    ops::Range,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use prost::Message;
use serde::Serialize;
use thiserror::Error;

use super::{
    frame::{self, Frames, GENESIS, Hash, LogEntry, Next},
    snapshot::StateSnapshot,
};
use crate::domain::VerdictId;

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is in use by another process", path.display())]
    InUse { path: PathBuf },
    #[error("{} is damaged at byte {offset}: {why}", path.display())]
    Damaged {
        path: PathBuf,
        offset: u64,
        why: &'static str,
    },
    #[error("there is no audit log in {}", path.display())]
    Empty { path: PathBuf },
    #[error("{} is missing", path.display())]
    Missing { path: PathBuf },
}

impl StoreError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }
}

/// A directory with a store in it.
#[derive(Clone, Debug)]
pub(super) struct StoreDir(pub PathBuf);

/// A file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub number: u32,
    /// `None`: it has no verdict yet.
    pub ids: Option<(VerdictId, VerdictId)>,
    /// The length of its durable part.
    pub bytes: u64,
}

impl Segment {
    pub fn new(number: u32) -> Self {
        Self {
            number,
            ids: None,
            bytes: 0,
        }
    }

    /// Records that a frame was added. A frame may be empty.
    pub fn grow(&mut self, ids: Option<(VerdictId, VerdictId)>, bytes: u64) {
        if let Some((first, last)) = ids {
            self.ids = Some((self.ids.map_or(first, |(first, _)| first), last));
        }
        self.bytes += bytes;
    }
}

/// The beginning of the log.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Checkpoint {
    /// The first retained segment.
    #[prost(uint32, tag = "1")]
    pub segment: u32,
    /// The hash that its first frame refers to.
    #[prost(bytes = "vec", tag = "2")]
    before: Vec<u8>,
    /// The last removed verdict, or the last one issued before the log existed.
    #[prost(bytes = "vec", tag = "3")]
    retained_after: Vec<u8>,
}

impl Checkpoint {
    pub fn new(segment: u32, before: Hash, horizon: VerdictId) -> Self {
        Self {
            segment,
            before: before.to_vec(),
            retained_after: horizon.0.to_be_bytes().to_vec(),
        }
    }

    pub fn before(&self) -> Hash {
        (*self.before).try_into().unwrap_or(GENESIS)
    }

    pub fn retained_after(&self) -> VerdictId {
        let id = <[u8; 16]>::try_from(&*self.retained_after);
        VerdictId(id.map(u128::from_be_bytes).unwrap_or_default())
    }
}

/// The bytes at the end of the log that are not a complete frame.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DamagedTail {
    pub segment: u32,
    pub offset: u64,
    pub bytes: u64,
}

/// The kind of the checkpoint's entry. It is the first entry of the file `anchor` and not
/// a verdict.
const ANCHOR_KIND: u8 = u8::MAX;
/// Terminations and snoozes per frame of the file `anchor`.
const ANCHORED_A_FRAME: usize = 4_096;

impl StoreDir {
    pub fn anchor(&self) -> PathBuf {
        self.0.join("anchor")
    }

    pub fn segment(&self, number: u32) -> PathBuf {
        self.0.join(format!("audit-{number:08}.log"))
    }

    /// Creates the directory. Only the owner may read it, because the log has session
    /// names and operators' texts.
    pub fn make(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.0)
    }

    /// Locks the directory. The lock is held until the file is dropped or the process
    /// ends.
    pub fn lock(&self) -> Result<File, StoreError> {
        let path = self.0.join("lock");
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(StoreError::io(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
                path: self.0.clone(),
            }),
            Err(TryLockError::Error(source)) => Err(StoreError::Io { path, source }),
        }
    }

    /// Whether a process uses the directory.
    pub fn is_locked(&self) -> bool {
        let file = File::open(self.0.join("lock"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Syncs the directory. Only then is a created or removed file name durable.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    pub fn numbers(&self) -> Result<Vec<u32>, StoreError> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(StoreError::io(&self.0))? {
            let name = entry.map_err(StoreError::io(&self.0))?.file_name();
            let number: Option<u32> = name.to_str().and_then(|name| {
                let digits = name.strip_prefix("audit-")?.strip_suffix(".log")?;
                digits.parse().ok()
            });
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Reads the checkpoint, and passes the other entries of its file to `show`.
    pub fn read_anchor(
        &self,
        show: &mut dyn FnMut(LogEntry<'_>),
    ) -> Result<Checkpoint, StoreError> {
        let path = self.anchor();
        let damaged = |offset, why| StoreError::Damaged {
            path: path.clone(),
            offset,
            why,
        };
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::Missing { path: path.clone() },
            _ => StoreError::io(&path)(error),
        })?;
        let mut frames = Frames::new(BufReader::new(file));
        let (mut anchor, mut head, mut offset) = (None, GENESIS, 0);
        loop {
            match frames.next().map_err(StoreError::io(&path))? {
                Next::Frame(frame) if frame.before == head => {
                    for entry in frame.entries() {
                        match entry.kind {
                            ANCHOR_KIND => anchor = Checkpoint::decode(entry.body).ok(),
                            _ => show(entry),
                        }
                    }
                    head = frame.hash;
                    offset += frame.bytes();
                }
                Next::End => return anchor.ok_or_else(|| damaged(0, "it has no anchor")),
                Next::Frame(_) | Next::Damage => return Err(damaged(offset, "no whole frame")),
            }
        }
    }

    /// Replaces the checkpoint atomically.
    pub fn write_anchor(&self, anchor: &Checkpoint, standing: &StateSnapshot) -> io::Result<()> {
        let new = self.0.join("anchor.new");
        let mut file = File::create(&new)?;
        let body = anchor.encode_to_vec();
        let mut payload = Vec::new();
        let first = LogEntry {
            kind: ANCHOR_KIND,
            id: VerdictId(0),
            body: &body,
        };
        first.append_to(&mut payload);
        let mut head = GENESIS;
        let mut write = |payload: &mut Vec<u8>| {
            let (frame, hash) = frame::seal(&head, payload);
            head = hash;
            payload.clear();
            file.write_all(&frame)
        };
        for (n, entry) in standing.entries().enumerate() {
            entry.append_to(&mut payload);
            if n % ANCHORED_A_FRAME == ANCHORED_A_FRAME - 1 {
                write(&mut payload)?;
            }
        }
        write(&mut payload)?;
        file.sync_all()?;
        fs::rename(&new, self.anchor())?;
        self.sync()
    }

    /// Whether there is no log yet, or a crash left only an empty file of one.
    pub fn is_unbegun(&self) -> Result<bool, StoreError> {
        let is_empty = |number: u32| {
            let file = fs::metadata(self.segment(number));
            number == 1 && file.is_ok_and(|file| file.len() == 0)
        };
        Ok(!self.anchor().exists() && self.numbers()?.into_iter().all(is_empty))
    }

    /// Creates an empty log in an empty directory.
    pub fn begin(&self, now: SystemTime) -> Result<(), StoreError> {
        let path = self.segment(1);
        File::create(&path).map_err(StoreError::io(&path))?;
        // The ids of a deleted log are below this one, so they count as removed.
        let anchor = Checkpoint::new(1, GENESIS, VerdictId::lower_bound_at(now));
        let written = self.write_anchor(&anchor, &StateSnapshot::default());
        written.map_err(StoreError::io(&self.anchor()))
    }

    /// Moves a damaged tail into a separate file.
    pub fn move_damaged_tail(&self, tail: &DamagedTail) -> Result<PathBuf, StoreError> {
        let path = self.segment(tail.segment);
        let name = format!("damaged-{:08}-{}", tail.segment, tail.offset);
        let target = self.0.join(name);
        let moved = || {
            let rest = read(&path, tail.offset..u64::MAX)?;
            let mut copy = File::create(&target)?;
            copy.write_all(&rest)?;
            copy.sync_all()?;
            self.sync()?;
            let file = File::options().write(true).open(&path)?;
            file.set_len(tail.offset)?;
            file.sync_all()
        };
        moved().map_err(StoreError::io(&path))?;
        Ok(target)
    }
}

/// Reads a range of a file. It ends at the end of the file if the range is longer.
pub(super) fn read(path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(io::SeekFrom::Start(range.start))?;
    let mut rest = Vec::new();
    file.take(range.end - range.start).read_to_end(&mut rest)?;
    Ok(rest)
}
