//! Reading the log, page by page.

use super::{
    Disk, Store,
    hub::Hub,
    shelf::{Reached, ReadError},
};
use crate::domain::{Issued, VerdictId};

/// A part of the log.
#[derive(Debug)]
pub struct Page {
    pub verdicts: Vec<Issued>,
    /// All up to this one were looked at.
    pub last: VerdictId,
    /// There is nothing more for now.
    pub end: bool,
}

/// A page looks at no more verdicts than this, however few it finds: some 50 ms.
const LOOKED_AT_MAX: usize = 50_000;

impl Store {
    /// Up to `most` verdicts that `wants` asks for, after the given one, as they
    /// were given where that is not long ago, else as the log has them. Reads
    /// the disk.
    pub fn resume(
        &self,
        after: VerdictId,
        most: usize,
        mut wants: impl FnMut(&Issued) -> bool,
    ) -> Result<Page, ReadError> {
        match (self.hub.page(after, most, &mut wants), &self.disk) {
            (Err(ReadError::Forgotten), Some(disk)) => disk.page(after, most, wants),
            (page, _) => page,
        }
    }

    /// As [`resume`](Self::resume), but as the audit log has them; `None` begins
    /// with the first that is kept.
    pub fn audit(
        &self,
        after: Option<VerdictId>,
        most: usize,
        wants: impl FnMut(&Issued) -> bool,
    ) -> Result<Page, ReadError> {
        let after = after.unwrap_or_else(|| self.horizon());
        match &self.disk {
            Some(disk) => disk.page(after, most, wants),
            None => self.hub.page(after, most, wants),
        }
    }

    /// As [`audit`](Self::audit), but the newest first, from the one before the
    /// given one on; `None` begins with the last.
    pub fn audit_back(
        &self,
        before: Option<VerdictId>,
        most: usize,
        wants: impl FnMut(&Issued) -> bool,
    ) -> Result<Page, ReadError> {
        let before = before.unwrap_or(VerdictId(u128::MAX));
        match &self.disk {
            Some(disk) => page(most, wants, |show| {
                disk.shelf.read_back(before, LOOKED_AT_MAX, show)
            }),
            None => page(most, wants, |show| Ok(self.hub.read_back(before, show))),
        }
    }

    /// The verdict after which the last `most` recent ones come, which are still
    /// whole.
    pub fn before_last(&self, most: usize) -> VerdictId {
        self.hub.before_last(most)
    }
}

impl Disk {
    fn page(
        &self,
        after: VerdictId,
        most: usize,
        wants: impl FnMut(&Issued) -> bool,
    ) -> Result<Page, ReadError> {
        page(most, wants, |show| {
            self.shelf.read(after, LOOKED_AT_MAX, show)
        })
    }
}

impl Hub {
    fn page(
        &self,
        after: VerdictId,
        most: usize,
        wants: impl FnMut(&Issued) -> bool,
    ) -> Result<Page, ReadError> {
        page(most, wants, |show| self.read(after, show))
    }
}

fn page(
    most: usize,
    mut wants: impl FnMut(&Issued) -> bool,
    read: impl FnOnce(&mut dyn FnMut(Issued) -> bool) -> Result<Reached, ReadError>,
) -> Result<Page, ReadError> {
    let mut verdicts = Vec::new();
    let reached = read(&mut |issued| {
        if wants(&issued) {
            verdicts.push(issued);
        }
        verdicts.len() < most
    })?;
    Ok(Page {
        verdicts,
        last: reached.last,
        end: reached.end,
    })
}
