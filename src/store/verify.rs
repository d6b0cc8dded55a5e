//! Verifies a log, whether or not a service uses it.

use std::{fmt, path::Path};

use serde::Serialize;

use super::store_dir::{DamagedTail, StoreDir, StoreError};

/// The result of a verification.
#[derive(Clone, Debug, Serialize)]
pub struct LogVerification {
    /// The number of records without a gap.
    pub records: u64,
    pub segments: usize,
    pub bytes: u64,
    /// The hash of the last frame. It covers all frames before.
    pub head: String,
    /// The number of the first segment. Segments before it were removed.
    pub begins_at_segment: u32,
    /// The bytes behind the last complete frame, if any.
    pub tail: Option<DamagedTail>,
    /// Whether a service uses the log.
    pub in_use: bool,
}

impl LogVerification {
    /// Whether the log has no damaged tail. While a service uses the log, a tail is not
    /// damage, because it may be a frame that is being written.
    pub fn is_intact(&self) -> bool {
        self.tail.is_none() || self.in_use
    }
}

impl fmt::Display for LogVerification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            records,
            segments,
            bytes,
            head,
            ..
        } = self;
        if let Some(tail) = self.tail.filter(|_| !self.in_use) {
            let DamagedTail {
                segment,
                offset,
                bytes,
            } = tail;
            return write!(
                f,
                "{records} records are sound; they are followed by {bytes} bytes that are not a \
                 complete record, in audit-{segment:08}.log at byte {offset}; the service moves \
                 them to a separate file when it starts",
            );
        }
        write!(
            f,
            "sound: {records} records in {segments} files, {bytes} bytes; head {head}"
        )
    }
}

/// Reads the whole log and checks every hash. Read-only.
pub fn verify(dir: &Path) -> Result<LogVerification, StoreError> {
    let folder = StoreDir(dir.to_owned());
    if folder.is_unbegun()? {
        let path = folder.0;
        return Err(StoreError::Empty { path });
    }
    let in_use = folder.is_locked();
    let scan = folder.scan(|_| None::<()>, drop)?;
    Ok(LogVerification {
        records: scan.records,
        segments: scan.segments.len(),
        bytes: scan.segments.iter().map(|segment| segment.bytes).sum(),
        head: scan.head.iter().map(|byte| format!("{byte:02x}")).collect(),
        begins_at_segment: scan.anchor.segment,
        tail: scan.tail,
        in_use,
    })
}
