//! The recent calls of a tool that fails: a success between does not hide that most of
//! them fail in the same way.

use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

use super::super::heap;
use crate::domain::{EventPosition, Finding, ProgramWords, Sig};

/// The latest calls of one tool, oldest first. Exists only while one of them has failed.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct RecentCalls {
    calls: SmallVec<[RecentCall; 6]>,
    /// The error that was found and still recurs, and how often it did.
    reported: Option<(Sig, i32)>,
    /// The program of the latest call.
    pub last_program: ProgramWords,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct RecentCall {
    index: i32,
    call: Option<Sig>,
    /// `None`: the call succeeded, or a verdict cites it.
    error: Option<Sig>,
    round: Option<Sig>,
}

impl RecentCalls {
    /// The fewest distinct calls of a finding. With fewer, most of them repeat one call,
    /// which other detectors report.
    const DISTINCT_CALLS_MIN: usize = 3;

    /// Adds a call. A round counts once for each of its errors. Returns whether any of
    /// the calls has failed.
    pub fn push(
        &mut self,
        at: EventPosition,
        call: Option<Sig>,
        error: Option<Sig>,
        calls_max: usize,
    ) -> bool {
        let is_counted = at.round.is_some()
            && self
                .calls
                .iter()
                .any(|known| known.round == at.round && known.error == error);
        if !is_counted {
            if self.calls.len() >= calls_max {
                self.calls.remove(0);
            }
            self.calls.push(RecentCall {
                index: at.index,
                call,
                error,
                round: at.round,
            });
        }
        let is_failing = |error: Sig| self.calls.iter().any(|call| call.error == Some(error));
        if self.reported.is_some_and(|(error, _)| !is_failing(error)) {
            self.reported = None;
        }
        self.calls.iter().any(|call| call.error.is_some())
    }

    /// Returns a finding if `needed` of the calls have this error, most of them differ, and
    /// the present call was counted.
    pub fn finding(&mut self, at: EventPosition, error: Sig, needed: u32) -> Option<Finding> {
        let is_counted = self.calls.last().is_some_and(|call| call.index == at.index);
        if !is_counted {
            return None;
        }
        let failures = self.calls.iter().filter(|call| call.error == Some(error));
        let events: SmallVec<[i32; 8]> = failures.clone().map(|call| call.index).collect();
        let mut calls: SmallVec<[Sig; 4]> = SmallVec::new();
        for call in failures.filter_map(|call| call.call) {
            if !calls.contains(&call) {
                calls.push(call);
            }
        }
        let known = self.reported.filter(|(reported, _)| *reported == error);
        if let Some((_, count)) = known {
            let count = count.saturating_add(1);
            self.reported = Some((error, count));
            return Some(Finding {
                extends: true,
                calls: calls.clone(),
                ..Finding::new(count as u32, smallvec![at.index], calls)
            });
        }
        if events.len() < needed as usize || calls.len() < Self::DISTINCT_CALLS_MIN {
            return None;
        }
        let count = events.len() as i32;
        self.reported = Some((error, count));
        Some(Finding {
            calls: calls.clone(),
            ..Finding::new(count as u32, events, calls)
        })
    }

    /// Drops the failures that a reported loop cites, unless they were found here.
    pub fn consume(&mut self, cited: &[i32]) {
        if self.reported.is_some() {
            return;
        }
        for call in &mut self.calls {
            if cited.contains(&call.index) {
                call.error = None;
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        heap::small_vec_bytes(&self.calls)
    }
}
