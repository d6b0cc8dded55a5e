//! Appends to the log.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{
    frame::{self, Hash},
    segment_reader::SegmentReader,
    store_dir::{Segment, StoreDir},
};
use crate::domain::VerdictId;

/// A file of the log. Tests use an implementation that fails.
pub trait LogFile: Send {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    fn truncate(&mut self, bytes: u64) -> io::Result<()>;
}

impl LogFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

/// Opens log files. Tests use other files and smaller segments.
#[derive(Clone, Copy)]
pub struct LogFileFactory {
    /// Opens a segment for writing, and creates it if it does not exist.
    pub open: fn(&Path) -> io::Result<Box<dyn LogFile>>,
    /// The size of a full segment.
    pub segment_bytes: u64,
}

impl LogFileFactory {
    pub const FILES: Self = Self {
        open: |path| {
            let file = File::options().create(true).append(true).open(path)?;
            Ok(Box::new(file))
        },
        segment_bytes: SEGMENT_BYTES,
    };
}

/// Why a write is not durable.
#[derive(Debug)]
pub(super) enum CommitError {
    /// The disk is full, read-only or gone. The write may be retried.
    Refused(io::Error),
    /// The sync failed. The content of the disk is unknown.
    Unsynced(io::Error),
}

pub(super) struct Log {
    folder: StoreDir,
    segments: Arc<SegmentReader>,
    device: LogFileFactory,
    file: Box<dyn LogFile>,
    segment: Segment,
    head: Hash,
    /// Whether the file may have bytes behind the last durable frame.
    torn: bool,
}

/// The size of a full segment. It is small, because a segment is removed as a whole and
/// a reader that resumes in it scans it from the beginning. It is large enough that there
/// are few segments.
pub(super) const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// A segment covers at most one day, because retention is given in days.
const SEGMENT_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl Log {
    pub fn new(
        folder: StoreDir,
        segments: Arc<SegmentReader>,
        segment: Segment,
        head: Hash,
        device: LogFileFactory,
    ) -> io::Result<Self> {
        Ok(Self {
            file: (device.open)(&folder.segment(segment.number))?,
            folder,
            segments,
            device,
            segment,
            head,
            torn: false,
        })
    }

    /// Writes a frame and syncs it. Before that, removes the bytes that a failed write
    /// has left, and starts a new segment if this one is full.
    pub fn commit(
        &mut self,
        payload: &[u8],
        ids: Option<(VerdictId, VerdictId)>,
    ) -> Result<(), CommitError> {
        if self.torn {
            self.file
                .truncate(self.segment.bytes)
                .map_err(CommitError::Refused)?;
            self.torn = false;
        }
        if self.is_full(ids) {
            self.turn_over()?;
        }
        let (frame, hash) = frame::seal(&self.head, payload);
        self.torn = true;
        self.file.append(&frame).map_err(CommitError::Refused)?;
        self.file.sync().map_err(CommitError::Unsynced)?;
        self.torn = false;
        self.head = hash;
        self.segment.grow(ids, frame.len() as u64);
        self.segments.grown(self.segment);
        Ok(())
    }

    fn is_full(&self, next: Option<(VerdictId, VerdictId)>) -> bool {
        let is_old = self.segment.ids.zip(next).is_some_and(|(ids, next)| {
            let age = next.1.time().duration_since(ids.0.time());
            age.is_ok_and(|age| age > SEGMENT_AGE)
        });
        self.segment.bytes >= self.device.segment_bytes || is_old
    }

    /// Starts a new segment.
    fn turn_over(&mut self) -> Result<(), CommitError> {
        let segment = Segment::new(self.segment.number + 1);
        let file = (self.device.open)(&self.folder.segment(segment.number));
        self.file = file.map_err(CommitError::Refused)?;
        // The directory is synced, because the name of the file must be as durable as its
        // frames.
        self.folder.sync().map_err(CommitError::Unsynced)?;
        self.segment = segment;
        self.segments.grown(segment);
        Ok(())
    }
}
