//! The end of the log, where it is written.

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

/// What is written to. A file, or in tests one that fails.
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

/// What the log is written to; tests have others.
#[derive(Clone, Copy)]
pub struct LogFileFactory {
    /// Opens a segment for writing, which is made where it is not there.
    pub open: fn(&Path) -> io::Result<Box<dyn LogFile>>,
    /// A segment of this size is full.
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

/// Why something is not on disk.
#[derive(Debug)]
pub(super) enum CommitError {
    /// The disk is full, read-only, or gone: it may be tried again.
    Refused(io::Error),
    /// The disk took it and could not keep it. What is on it now, nobody knows.
    Unsynced(io::Error),
}

pub(super) struct Log {
    folder: StoreDir,
    shelf: Arc<SegmentReader>,
    device: LogFileFactory,
    file: Box<dyn LogFile>,
    segment: Segment,
    head: Hash,
    /// Something may stand behind the last frame.
    torn: bool,
}

/// A segment is let go of as a whole, and looked through from its beginning by
/// who resumes in it: small enough for both, large enough to be few.
pub(super) const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// A segment holds no more than a day, so that what is kept for days is let go
/// of to the day.
const SEGMENT_AGE: Duration = Duration::from_secs(24 * 60 * 60);

impl Log {
    pub fn new(
        folder: StoreDir,
        shelf: Arc<SegmentReader>,
        segment: Segment,
        head: Hash,
        device: LogFileFactory,
    ) -> io::Result<Self> {
        Ok(Self {
            file: (device.open)(&folder.segment(segment.number))?,
            folder,
            shelf,
            device,
            segment,
            head,
            torn: false,
        })
    }

    /// Writes a frame, durably.
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
        self.shelf.grown(self.segment);
        Ok(())
    }

    fn is_full(&self, next: Option<(VerdictId, VerdictId)>) -> bool {
        let is_old = self.segment.ids.zip(next).is_some_and(|(ids, next)| {
            let age = next.1.time().duration_since(ids.0.time());
            age.is_ok_and(|age| age > SEGMENT_AGE)
        });
        self.segment.bytes >= self.device.segment_bytes || is_old
    }

    /// Goes on in a new segment.
    fn turn_over(&mut self) -> Result<(), CommitError> {
        let segment = Segment::new(self.segment.number + 1);
        let file = (self.device.open)(&self.folder.segment(segment.number));
        self.file = file.map_err(CommitError::Refused)?;
        // Its name must be as durable as what will stand in it.
        self.folder.sync().map_err(CommitError::Unsynced)?;
        self.segment = segment;
        self.shelf.grown(segment);
        Ok(())
    }
}
