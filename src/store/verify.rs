//! Checks a log that need not be in use.

use std::{fmt, path::Path};

use serde::Serialize;

use super::folder::{Fault, Folder, Tail};

/// What a check came to.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// How many records follow one another without a gap.
    pub records: u64,
    pub segments: usize,
    pub bytes: u64,
    /// The hash of the last frame: all before it is in it.
    pub head: String,
    /// The log begins where earlier segments were let go of.
    pub begins_at_segment: u32,
    /// What stands behind the last whole frame, where something does.
    pub tail: Option<Tail>,
    /// A service writes to it.
    pub in_use: bool,
}

impl Verified {
    /// A tail that is being written is no damage.
    pub fn is_sound(&self) -> bool {
        self.tail.is_none() || self.in_use
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            records,
            segments,
            bytes,
            head,
            ..
        } = self;
        if let Some(tail) = self.tail.filter(|_| !self.in_use) {
            let Tail {
                segment,
                offset,
                bytes,
            } = tail;
            return write!(
                f,
                "{records} records are sound; behind them stand {bytes} bytes that are no whole \
                 record, in audit-{segment:08}.log at byte {offset}; the service sets them aside \
                 when it starts",
            );
        }
        write!(
            f,
            "sound: {records} records in {segments} files, {bytes} bytes; head {head}"
        )
    }
}

/// Reads the whole log and checks every hash. Changes nothing.
pub fn verify(dir: &Path) -> Result<Verified, Fault> {
    let folder = Folder(dir.to_owned());
    if folder.is_unbegun()? {
        let path = folder.0;
        return Err(Fault::Empty { path });
    }
    let in_use = folder.is_locked();
    let walked = folder.walk(|_| None::<()>, drop)?;
    Ok(Verified {
        records: walked.records,
        segments: walked.segments.len(),
        bytes: walked.segments.iter().map(|segment| segment.bytes).sum(),
        head: walked
            .head
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
        begins_at_segment: walked.anchor.segment,
        tail: walked.tail,
        in_use,
    })
}
