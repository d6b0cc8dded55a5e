//! Reading the log, page by page.

use super::{
    Disk, Store,
    publisher::CommitPublisher,
    segment_reader::{ReadError, ReadPosition},
};
use crate::domain::{VerdictId, VerdictRecord};

/// A part of the log.
#[derive(Debug)]
pub struct VerdictPage {
    pub verdicts: Vec<VerdictRecord>,
    /// All up to this one were looked at.
    pub cursor: VerdictId,
    /// There is nothing more for now.
    pub at_end: bool,
}

/// A page looks at no more verdicts than this, however few it finds: some 50 ms.
const SCANNED_VERDICTS_MAX: usize = 50_000;

impl Store {
    /// Up to `most` verdicts that `wants` asks for, after the given one, as they
    /// were given where that is not long ago, else as the log has them. Reads
    /// the disk.
    pub fn read_after(
        &self,
        after: VerdictId,
        most: usize,
        mut wants: impl FnMut(&VerdictRecord) -> bool,
    ) -> Result<VerdictPage, ReadError> {
        match (self.publisher.page(after, most, &mut wants), &self.disk) {
            (Err(ReadError::NotRetained), Some(disk)) => disk.page(after, most, wants),
            (page, _) => page,
        }
    }

    /// As [`resume`](Self::resume), but as the audit log has them; `None` begins
    /// with the first that is kept.
    pub fn read_audit_log(
        &self,
        after: Option<VerdictId>,
        most: usize,
        wants: impl FnMut(&VerdictRecord) -> bool,
    ) -> Result<VerdictPage, ReadError> {
        let after = after.unwrap_or_else(|| self.retained_after());
        match &self.disk {
            Some(disk) => disk.page(after, most, wants),
            None => self.publisher.page(after, most, wants),
        }
    }

    /// As [`audit`](Self::audit), but the newest first, from the one before the
    /// given one on; `None` begins with the last.
    pub fn read_audit_log_reverse(
        &self,
        before: Option<VerdictId>,
        most: usize,
        wants: impl FnMut(&VerdictRecord) -> bool,
    ) -> Result<VerdictPage, ReadError> {
        let before = before.unwrap_or(VerdictId(u128::MAX));
        match &self.disk {
            Some(disk) => page(most, wants, |show| {
                disk.shelf.read_back(before, SCANNED_VERDICTS_MAX, show)
            }),
            None => page(most, wants, |show| {
                Ok(self.publisher.read_back(before, show))
            }),
        }
    }

    /// The verdict after which the last `most` recent ones come, which are still
    /// whole.
    pub fn cursor_before_last(&self, most: usize) -> VerdictId {
        self.publisher.before_last(most)
    }
}

impl Disk {
    fn page(
        &self,
        after: VerdictId,
        most: usize,
        wants: impl FnMut(&VerdictRecord) -> bool,
    ) -> Result<VerdictPage, ReadError> {
        page(most, wants, |show| {
            self.shelf.read(after, SCANNED_VERDICTS_MAX, show)
        })
    }
}

impl CommitPublisher {
    fn page(
        &self,
        after: VerdictId,
        most: usize,
        wants: impl FnMut(&VerdictRecord) -> bool,
    ) -> Result<VerdictPage, ReadError> {
        page(most, wants, |show| self.read(after, show))
    }
}

fn page(
    most: usize,
    mut wants: impl FnMut(&VerdictRecord) -> bool,
    read: impl FnOnce(&mut dyn FnMut(VerdictRecord) -> bool) -> Result<ReadPosition, ReadError>,
) -> Result<VerdictPage, ReadError> {
    let mut verdicts = Vec::new();
    let reached = read(&mut |issued| {
        if wants(&issued) {
            verdicts.push(issued);
        }
        verdicts.len() < most
    })?;
    Ok(VerdictPage {
        verdicts,
        cursor: reached.cursor,
        at_end: reached.at_end,
    })
}
