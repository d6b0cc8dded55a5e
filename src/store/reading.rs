//! Reads the log in pages.

use super::{
    Disk, Store,
    publisher::CommitPublisher,
    segment_reader::{ReadError, ReadPosition},
};
use crate::domain::{VerdictId, VerdictRecord};

/// A page of verdicts.
#[derive(Debug)]
pub struct VerdictPage {
    pub verdicts: Vec<VerdictRecord>,
    /// The verdicts up to this one have been examined.
    pub cursor: VerdictId,
    /// There are no more verdicts at the moment.
    pub at_end: bool,
}

/// The most verdicts that are examined per page, however few match. They take about
/// 50 ms.
const SCANNED_VERDICTS_MAX: usize = 50_000;

impl Store {
    /// Returns up to `most` verdicts after the given one for which `wants` is true.
    /// Recent verdicts are complete; older ones are read from the disk and are as in the
    /// log.
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

    /// As `read_after`, but all verdicts are as in the log. `None` starts with the first
    /// retained verdict.
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

    /// As `read_audit_log`, but newest first, starting before the given verdict. `None`
    /// starts with the last verdict.
    pub fn read_audit_log_reverse(
        &self,
        before: Option<VerdictId>,
        most: usize,
        wants: impl FnMut(&VerdictRecord) -> bool,
    ) -> Result<VerdictPage, ReadError> {
        let before = before.unwrap_or(VerdictId(u128::MAX));
        match &self.disk {
            Some(disk) => page(most, wants, |show| {
                disk.segments.read_back(before, SCANNED_VERDICTS_MAX, show)
            }),
            None => page(most, wants, |show| {
                Ok(self.publisher.read_back(before, show))
            }),
        }
    }

    /// The verdict before the last `most` recent ones, which are still complete.
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
            self.segments.read(after, SCANNED_VERDICTS_MAX, show)
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
