//! Edits of several files that fail in the same way: the cause is none of the files.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::super::streak::Streak;
use crate::domain::{DetectorOutcome, EventPosition, Finding, Sig};

/// The failed edits since the last one that succeeded.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct FailedEdits {
    error: Option<Sig>,
    streak: Streak,
    /// The edited files, up to `FILES_MIN`.
    files: SmallVec<[Sig; 3]>,
}

impl FailedEdits {
    /// The fewest files of a finding. With fewer, the edits are of one file, or of two that
    /// belong together.
    const FILES_MIN: usize = 3;

    pub fn observe(
        &mut self,
        at: EventPosition,
        call: Option<Sig>,
        [error, file]: [Sig; 2],
        count: u32,
    ) -> DetectorOutcome {
        if self.error.replace(error) != Some(error) {
            self.files.clear();
            self.streak.restart(at, call);
        } else if !self.streak.push(at, call) {
            return DetectorOutcome::NotApplicable;
        }
        if self.files.len() < Self::FILES_MIN && !self.files.contains(&file) {
            self.files.push(file);
        }
        if self.files.len() < Self::FILES_MIN {
            return DetectorOutcome::NotApplicable;
        }
        match self.streak.finding_at_threshold(count) {
            Some(finding) => DetectorOutcome::from_finding(Finding {
                confidence: 0.9,
                loop_key: smallvec![error],
                ..finding
            }),
            None => DetectorOutcome::NoMatch,
        }
    }

    pub fn consume(&mut self, cited: &[i32]) {
        self.streak.consume(cited);
    }

    pub fn heap_bytes(&self) -> usize {
        self.streak.heap_bytes()
    }
}
