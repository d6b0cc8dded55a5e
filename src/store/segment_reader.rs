//! Reads the durable part of the log and enforces retention.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    time::{Duration, SystemTime},
};

use parking_lot::{Mutex, MutexGuard};

use thiserror::Error;

use super::{
    frame::{Frames, Next},
    record::decode,
    recovery::out_of_order,
    snapshot::{StateChange, StateSnapshot},
    store_dir::{Checkpoint, Segment, StoreDir, StoreError},
};
use crate::domain::{VerdictId, VerdictRecord};

pub(super) struct SegmentReader {
    folder: StoreDir,
    state: Mutex<SegmentsState>,
    /// Held while segments are removed.
    tidying: Mutex<()>,
}

struct SegmentsState {
    /// Oldest first. The last one is being written.
    segments: Vec<Segment>,
    /// The last removed verdict.
    retained_after: VerdictId,
}

/// The retention limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    pub verdicts_age_max: Duration,
    pub bytes_max: u64,
    pub tombstone_age_max: Duration,
    pub terminations_max: usize,
}

/// Why the log cannot be read at a position.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("the verdict is older than what is kept")]
    NotRetained,
    #[error("the audit log cannot be read")]
    Unreadable(#[source] io::Error),
}

/// The position of a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPosition {
    /// The last examined verdict, or the one the reader started after.
    pub cursor: VerdictId,
    /// The end of the log was reached.
    pub at_end: bool,
}

impl SegmentReader {
    pub fn new(folder: StoreDir, segments: Vec<Segment>, horizon: VerdictId) -> Self {
        Self {
            folder,
            state: Mutex::new(SegmentsState {
                segments,
                retained_after: horizon,
            }),
            tidying: Mutex::new(()),
        }
    }

    /// Records that a segment is new, or that more of it is durable.
    pub fn grown(&self, segment: Segment) {
        let mut state = self.lock();
        match state.segments.last_mut() {
            Some(last) if last.number == segment.number => *last = segment,
            _ => state.segments.push(segment),
        }
    }

    pub fn retained_after(&self) -> VerdictId {
        self.lock().retained_after
    }

    pub fn bytes(&self) -> u64 {
        let state = self.lock();
        state.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Passes verdicts after the given one to `show`, oldest first, until it returns
    /// false or `most` verdicts have been examined.
    pub fn read(
        &self,
        after: VerdictId,
        most: usize,
        mut show: impl FnMut(VerdictRecord) -> bool,
    ) -> Result<ReadPosition, ReadError> {
        let segments = {
            let state = self.lock();
            if after < state.retained_after {
                return Err(ReadError::NotRetained);
            }
            state.segments.clone()
        };
        let mut reached = ReadPosition {
            cursor: after,
            at_end: false,
        };
        let mut left = most;
        let holds_later = |segment: &&Segment| segment.ids.is_some_and(|(_, last)| last > after);
        for segment in segments.iter().filter(holds_later) {
            let mut frames = self.frames(segment)?;
            while let Next::Frame(frame) = next(&mut frames)? {
                for entry in frame.entries().filter(|entry| entry.id > after) {
                    let Some(issued) = decode(entry.id, entry.body) else {
                        continue;
                    };
                    if left == 0 {
                        return Ok(reached);
                    }
                    left -= 1;
                    reached.cursor = entry.id;
                    if !show(issued) {
                        return Ok(reached);
                    }
                }
            }
        }
        reached.at_end = true;
        Ok(reached)
    }

    /// Passes verdicts before the given one to `show`, newest first, until it returns
    /// false or `most` verdicts have been examined. The records of a segment are
    /// collected first and decoded when they are passed on, because frames can only be
    /// read forwards.
    pub fn read_back(
        &self,
        before: VerdictId,
        most: usize,
        mut show: impl FnMut(VerdictRecord) -> bool,
    ) -> Result<ReadPosition, ReadError> {
        let segments = self.lock().segments.clone();
        let mut reached = ReadPosition {
            cursor: before,
            at_end: false,
        };
        let mut left = most;
        let holds_earlier =
            |segment: &&Segment| segment.ids.is_some_and(|(first, _)| first < before);
        for segment in segments.iter().rev().filter(holds_earlier) {
            let mut frames = match self.frames(segment) {
                Ok(frames) => frames,
                // The segment has been removed meanwhile, and all older ones with it.
                Err(ReadError::NotRetained) => break,
                Err(error) => return Err(error),
            };
            let mut records: Vec<(VerdictId, Box<[u8]>)> = Vec::new();
            while let Next::Frame(frame) = next(&mut frames)? {
                let earlier = frame.entries().filter(|entry| entry.id < before);
                records.extend(earlier.map(|entry| (entry.id, entry.body.into())));
            }
            for (id, record) in records.iter().rev() {
                let Some(issued) = decode(*id, record) else {
                    continue;
                };
                if left == 0 {
                    return Ok(reached);
                }
                left -= 1;
                reached.cursor = *id;
                if !show(issued) {
                    return Ok(reached);
                }
            }
        }
        reached.at_end = true;
        Ok(reached)
    }

    /// The durable part of a segment.
    fn frames(&self, segment: &Segment) -> Result<Frames<impl Read>, ReadError> {
        match File::open(self.folder.segment(segment.number)) {
            Ok(file) => Ok(Frames::new(BufReader::new(file.take(segment.bytes)))),
            // The segment has been removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(ReadError::NotRetained),
            Err(error) => Err(ReadError::Unreadable(error)),
        }
    }

    /// Removes the oldest segments that are too old or exceed the size limit. Their
    /// terminations and snoozes that are in force are kept in the checkpoint. Does
    /// nothing if another call is removing segments.
    pub fn enforce_retention(
        &self,
        retention: &Retention,
        now: SystemTime,
    ) -> Result<(), StoreError> {
        let Some(_alone) = self.tidying.try_lock() else {
            return Ok(());
        };
        let Some((last, kept)) = self.overdue(retention, now) else {
            return Ok(());
        };
        let path = self.folder.segment(kept);
        let file = File::open(&path).map_err(StoreError::io(&path))?;
        let before = match Frames::new(file).next().map_err(StoreError::io(&path))? {
            Next::Frame(frame) => frame.before,
            // The segment has no frame yet. The next call tries again.
            Next::End | Next::Damage => return Ok(()),
        };
        // Later segments are not read. A reset in them lifts its termination when the log
        // is read at the next start.
        let mut standing = StateSnapshot::default();
        let show = |lasting| standing.apply(lasting);
        let walked = self
            .folder
            .scan_before(kept, StateChange::from_entry, show)?;
        if walked.head != before {
            return Err(out_of_order(&path, 0));
        }
        let oldest = now.checked_sub(retention.tombstone_age_max);
        let oldest = oldest.map(VerdictId::lower_bound_at).unwrap_or_default();
        standing.retain_unexpired(oldest, now);
        standing.limit_sessions(retention.terminations_max);
        let anchor = Checkpoint::new(kept, before, last);
        let written = self.folder.write_anchor(&anchor, &standing);
        written.map_err(StoreError::io(&self.folder.anchor()))?;
        {
            let mut state = self.lock();
            state.retained_after = last;
            state.segments.retain(|segment| segment.number >= kept);
        }
        self.folder.remove_before(kept)
    }

    /// The last verdict to remove and the first segment to keep. `None`: nothing is to be
    /// removed.
    fn overdue(&self, retention: &Retention, now: SystemTime) -> Option<(VerdictId, u32)> {
        let state = self.lock();
        let mut bytes: u64 = state.segments.iter().map(|segment| segment.bytes).sum();
        let mut overdue = None;
        for pair in state.segments.windows(2) {
            let [segment, next] = pair else { break };
            let (_, last) = segment.ids?;
            let age = now.duration_since(last.time()).unwrap_or_default();
            if bytes <= retention.bytes_max && age <= retention.verdicts_age_max {
                break;
            }
            bytes -= segment.bytes;
            overdue = Some((last, next.number));
        }
        overdue
    }

    fn lock(&self) -> MutexGuard<'_, SegmentsState> {
        self.state.lock()
    }
}

fn next<R: Read>(frames: &mut Frames<R>) -> Result<Next<'_>, ReadError> {
    match frames.next().map_err(ReadError::Unreadable)? {
        Next::Damage => Err(ReadError::Unreadable(io::ErrorKind::InvalidData.into())),
        other => Ok(other),
    }
}

impl StoreDir {
    /// Removes the segments before `kept`. The checkpoint no longer refers to them.
    pub fn remove_before(&self, kept: u32) -> Result<(), StoreError> {
        for number in self.numbers()?.into_iter().filter(|n| *n < kept) {
            let path = self.segment(number);
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
        Ok(())
    }
}
