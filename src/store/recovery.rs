//! Reads a whole log and checks every hash. Threads read segments in parallel, because
//! each segment can be checked alone and then linked to the one before.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read},
    ops::Range,
    path::Path,
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

use super::{
    frame::{self, Frames, Hash, LogEntry, Next},
    store_dir::{Checkpoint, DamagedTail, Segment, StoreDir, StoreError, read},
};

/// The result of reading a log.
pub(super) struct LogScan {
    pub anchor: Checkpoint,
    /// Oldest first. There is at least one.
    pub segments: Vec<Segment>,
    /// The hash of the last frame.
    pub head: Hash,
    pub records: u64,
    /// The bytes behind the last complete frame, if any.
    pub tail: Option<DamagedTail>,
}

/// The content of one segment.
struct SegmentScan<T> {
    segment: Segment,
    /// The hash that the first frame refers to, and the hash of the last frame. `None`:
    /// the segment is empty.
    chain: Option<(Hash, Hash)>,
    records: u64,
    tail: Option<DamagedTail>,
    kept: Vec<T>,
}

/// The size of the read buffer of a segment. It keeps both the number of system calls
/// and the memory low.
const READ_BYTES: usize = 256 * 1024;

impl StoreDir {
    /// Checks the whole log. `keep` maps each entry to the part that is needed, and
    /// `show` receives these parts, oldest first.
    pub fn scan<T: Send>(
        &self,
        keep: impl Fn(LogEntry<'_>) -> Option<T> + Sync,
        show: impl FnMut(T),
    ) -> Result<LogScan, StoreError> {
        self.scan_before(u32::MAX, keep, show)
    }

    /// As `scan`, but only for the segments before `end`.
    pub fn scan_before<T: Send>(
        &self,
        end: u32,
        keep: impl Fn(LogEntry<'_>) -> Option<T> + Sync,
        mut show: impl FnMut(T),
    ) -> Result<LogScan, StoreError> {
        let anchor = self.read_anchor(&mut |entry| keep(entry).into_iter().for_each(&mut show))?;
        let mut numbers = self.numbers()?;
        let newest = numbers.last().copied();
        numbers.retain(|number| (anchor.segment..end).contains(number));
        let mut walked = LogScan {
            head: anchor.before(),
            segments: Vec::new(),
            records: 0,
            tail: None,
            anchor,
        };
        self.parts(&numbers, newest, &keep, |part| {
            let expected = walked.anchor.segment + walked.segments.len() as u32;
            if part.segment.number != expected {
                let path = self.segment(expected);
                return Err(StoreError::Missing { path });
            }
            if let Some((before, head)) = part.chain {
                if before != walked.head {
                    return Err(out_of_order(&self.segment(expected), 0));
                }
                walked.head = head;
            }
            walked.records += part.records;
            walked.segments.push(part.segment);
            walked.tail = part.tail;
            part.kept.into_iter().for_each(&mut show);
            Ok(())
        })?;
        if walked.segments.is_empty() {
            let path = self.segment(walked.anchor.segment);
            return Err(StoreError::Missing { path });
        }
        Ok(walked)
    }

    /// Reads these segments in order until one is damaged. Only the newest may have a
    /// torn tail.
    fn parts<T: Send>(
        &self,
        numbers: &[u32],
        newest: Option<u32>,
        keep: &(impl Fn(LogEntry<'_>) -> Option<T> + Sync),
        mut take: impl FnMut(SegmentScan<T>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // The channel is bounded, because the log may have a million records.
        let (done, parts) = mpsc::sync_channel(threads);
        thread::scope(|scope| {
            // The receiver is dropped on the first error, so that the threads end.
            let parts = parts;
            for _ in 0..threads {
                let (done, next) = (done.clone(), &next);
                scope.spawn(move || {
                    loop {
                        let place = next.fetch_add(1, Relaxed);
                        let Some(number) = numbers.get(place) else {
                            break;
                        };
                        let is_last = newest == Some(*number);
                        if done
                            .send((place, self.part(*number, is_last, keep)))
                            .is_err()
                        {
                            break;
                        }
                    }
                });
            }
            drop(done);
            let mut early = BTreeMap::new();
            for place in 0..numbers.len() {
                // Each segment is sent by one thread, unless that thread panicked.
                while !early.contains_key(&place)
                    && let Ok(part) = parts.recv()
                {
                    early.extend([part]);
                }
                if let Some(part) = early.remove(&place) {
                    take(part?)?;
                }
            }
            Ok(())
        })
    }

    fn part<T>(
        &self,
        number: u32,
        is_last: bool,
        keep: &impl Fn(LogEntry<'_>) -> Option<T>,
    ) -> Result<SegmentScan<T>, StoreError> {
        let path = self.segment(number);
        let file = File::open(&path).map_err(StoreError::io(&path))?;
        // Only the bytes present at opening are read, because a service may append more.
        let end = file.metadata().map_err(StoreError::io(&path))?.len();
        let mut frames = Frames::new(BufReader::with_capacity(READ_BYTES, file.take(end)));
        let mut part = SegmentScan {
            segment: Segment::new(number),
            chain: None,
            records: 0,
            tail: None,
            kept: Vec::new(),
        };
        loop {
            let offset = part.segment.bytes;
            match frames.next().map_err(StoreError::io(&path))? {
                Next::Frame(frame) => {
                    let (first, head) = part.chain.unwrap_or((frame.before, frame.before));
                    if frame.before != head {
                        return Err(out_of_order(&path, offset));
                    }
                    part.chain = Some((first, frame.hash));
                    let mut ids = None;
                    for entry in frame.entries() {
                        ids = Some((ids.map_or(entry.id, |(first, _)| first), entry.id));
                        part.records += 1;
                        part.kept.extend(keep(entry));
                    }
                    part.segment.grow(ids, frame.bytes());
                }
                Next::Damage => {
                    part.tail = Some(tail(&path, number, offset..end, is_last)?);
                    return Ok(part);
                }
                Next::End => return Ok(part),
            }
        }
    }
}

pub(super) fn out_of_order(path: &Path, offset: u64) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        offset,
        why: "the record there does not follow the one before it",
    }
}

/// The bytes behind the last complete frame. They may be removed only if they are at the
/// end of the log and contain no frame. Otherwise durable data is damaged, and this is an
/// error.
fn tail(
    path: &Path,
    segment: u32,
    range: Range<u64>,
    is_last: bool,
) -> Result<DamagedTail, StoreError> {
    let offset = range.start;
    let rest = read(path, range).map_err(StoreError::io(path))?;
    if !is_last || frame::holds_a_frame(&rest) {
        return Err(StoreError::Damaged {
            path: path.to_owned(),
            offset,
            why: "the record there is damaged, and others follow it",
        });
    }
    Ok(DamagedTail {
        segment,
        offset,
        bytes: rest.len() as u64,
    })
}
