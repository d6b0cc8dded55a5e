//! The chunk rule: the last `size` characters occur `chunk_count` times in the window
//! of the last `chunk_window` characters, without overlapping.
//!
//! The rule is that of another product, kept for the `classic` profile. For each size a
//! polynomial hash is rolled over the text, and the hash of the chunk that ends at each
//! character of the window is kept. A small table counts hashes, so that in ordinary
//! text one look-up says that the last chunk is unique. Only otherwise is the window
//! searched, and equal hashes are verified. Copies that were found are followed with one
//! comparison each until one of them ends. A search is paid for from the text's budget;
//! without units left it is skipped.

mod restore;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::escalation::{EscalationSteps, LoopEscalation};
use crate::{
    domain::{EscalationLevel, RepetitionSettings},
    text::{mixing::GOLDEN_RATIO_32, work_budget::steps},
};

/// Looks for repeated chunks of every configured size.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct ChunkTracker {
    /// The characters of the window, after some that have left it.
    #[serde(with = "restore::frozen_text")]
    text: Vec<char>,
    #[serde(with = "restore::frozen_trackers")]
    trackers: Vec<ChunkSizeTracker>,
    /// Measured in characters.
    escalation: LoopEscalation,
}

struct ChunkSizeTracker {
    size: usize,
    hash: u32,
    /// `GOLDEN_RATIO_32` to the power of the size: the weight of the character that
    /// leaves the hash.
    power: u32,
    /// The hash of the chunk that ends at each character of the window.
    hashes: VecDeque<u32>,
    /// How many of `hashes` fall into each slot; a count of 255 is never reduced. Nearly
    /// always the last chunk's slot holds only itself, so one look-up rules it out.
    slot_counts: Box<[u8; SLOTS]>,
    /// The distances of enough copies of the last chunk; empty if there are too few.
    copies: SmallVec<[u16; 4]>,
}

/// Several times the number of chunks in a window.
const SLOTS: usize = 1_024;
/// Characters that have left the window and are removed together.
const REMOVED_CHARS: usize = 64;
/// Entries of the window that are searched or compared for one unit of work.
const SEARCHED_PER_UNIT: usize = 2;

fn slot_of(hash: u32) -> usize {
    (hash.wrapping_mul(GOLDEN_RATIO_32) >> (32 - SLOTS.ilog2())) as usize
}

/// A chunk that occurs often enough.
pub(super) struct RepeatedChunk {
    pub level: EscalationLevel,
    /// The text from one copy to the next.
    pub unit: String,
    pub chars: u32,
    pub count: u32,
    /// Characters from the start of the first copy to here.
    pub span: u32,
}

/// The copies of the last chunk.
struct ChunkCopies {
    count: u32,
    /// Characters from the end of the first copy to the end of the last.
    distance: usize,
    /// Characters from the end of the previous copy, which may overlap the last.
    period: usize,
}

/// The result of searching the window.
enum ChunkSearch {
    /// The search was not affordable.
    Skipped,
    TooFew,
    Found(ChunkCopies),
}

/// A loop is hard after one more window of characters, and final after four.
const HARD_WINDOWS: u32 = 1;
const FINAL_WINDOWS: u32 = 4;

impl ChunkTracker {
    /// Adds a character. `consume` pays for units of work, if any are left.
    pub fn push(
        &mut self,
        c: char,
        settings: &RepetitionSettings,
        mut consume: impl FnMut(u32) -> bool,
    ) -> Option<RepeatedChunk> {
        if self.trackers.is_empty() {
            self.trackers = settings.chunk_sizes().map(ChunkSizeTracker::new).collect();
            self.text
                .reserve_exact(settings.chunk_window as usize + REMOVED_CHARS);
        }
        let window = settings.chunk_window as usize;
        if self.text.len() == window + REMOVED_CHARS {
            self.text.drain(..=REMOVED_CHARS);
        }
        self.text.push(c);
        let text = &self.text[self.text.len().saturating_sub(window)..];
        // Follow the copies of each size, or search for them.
        let (mut found, mut is_skipped) = (false, false);
        for tracker in &mut self.trackers {
            tracker.push(text, window);
            if tracker.follow_copies(text) {
                found = true;
                continue;
            }
            match tracker.search(text, settings.chunk_count, &mut consume) {
                ChunkSearch::Skipped => is_skipped = true,
                ChunkSearch::TooFew => {}
                ChunkSearch::Found(_) => found = true,
            }
        }
        if !found {
            // Whether the loop goes on is not known if a search was skipped.
            if !is_skipped {
                self.escalation = LoopEscalation::default();
            }
            return None;
        }
        let steps = EscalationSteps {
            hard: HARD_WINDOWS * settings.chunk_window,
            last: FINAL_WINDOWS * settings.chunk_window,
        };
        let level = self.escalation.advance(1, steps);
        if !self.escalation.report(level) {
            return None;
        }
        // Describe the copies as they are now, at most once per level.
        let described = self.trackers.iter_mut().find_map(|tracker| {
            match tracker.search(text, settings.chunk_count, &mut |_| true) {
                ChunkSearch::Found(copies) => Some((tracker.size, copies)),
                ChunkSearch::Skipped | ChunkSearch::TooFew => None,
            }
        });
        let (size, copies) = described?;
        Some(RepeatedChunk {
            level,
            unit: text[text.len() - copies.period..].iter().collect(),
            chars: copies.period as u32,
            count: copies.count,
            span: (copies.distance + size) as u32,
        })
    }

    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() * size_of::<char>()
            + self
                .trackers
                .iter()
                .map(ChunkSizeTracker::total_bytes)
                .sum::<usize>()
    }
}

impl ChunkSizeTracker {
    fn new(size: usize) -> Self {
        Self {
            size,
            hash: 0,
            power: (0..size).fold(1, |power, _| GOLDEN_RATIO_32.wrapping_mul(power)),
            hashes: VecDeque::new(),
            slot_counts: Box::new([0; SLOTS]),
            copies: SmallVec::new(),
        }
    }

    /// Its own size and its heap.
    fn total_bytes(&self) -> usize {
        size_of::<Self>() + SLOTS + self.hashes.capacity() * size_of::<u32>()
    }

    /// Adds the last character of the window.
    fn push(&mut self, text: &[char], window: usize) {
        let back = |n: usize| text.len().checked_sub(n).and_then(|at| text.get(at));
        let [enters, leaves] = [1, self.size + 1].map(|n| back(n).map_or(0, |c| *c as u32));
        self.hash = self
            .hash
            .wrapping_mul(GOLDEN_RATIO_32)
            .wrapping_add(enters)
            .wrapping_sub(leaves.wrapping_mul(self.power));
        // The first chunk of a window ends this far before the last.
        if self.hashes.len() > window - self.size
            && let Some(left) = self.hashes.pop_front()
        {
            // A saturated count is no longer exact and stays.
            let count = &mut self.slot_counts[slot_of(left)];
            *count -= u8::from(*count < u8::MAX);
        }
        self.hashes.push_back(self.hash);
        let count = &mut self.slot_counts[slot_of(self.hash)];
        *count = count.saturating_add(1);
    }

    /// Whether the known copies go on with the last character.
    fn follow_copies(&mut self, text: &[char]) -> bool {
        let [.., last] = text else {
            return false;
        };
        let goes_on = |back: &u16| {
            let copy = text.len().checked_sub(1 + usize::from(*back));
            copy.is_some_and(|at| at + 1 >= self.size && text[at] == *last)
        };
        if !self.copies.iter().all(goes_on) {
            self.copies.clear();
        }
        !self.copies.is_empty()
    }

    /// Searches the window for copies of the last chunk that do not overlap.
    fn search(
        &mut self,
        text: &[char],
        count_min: u32,
        consume: &mut impl FnMut(u32) -> bool,
    ) -> ChunkSearch {
        let is_rare =
            u32::from(self.slot_counts[slot_of(self.hash)]) < count_min.min(u8::MAX.into());
        if is_rare || text.len() < self.size * count_min as usize {
            return ChunkSearch::TooFew;
        }
        // The hashes are searched once, and copies that do not overlap fill the window.
        let units = (self.hashes.len() + text.len()).div_ceil(SEARCHED_PER_UNIT);
        if !consume(units as u32) {
            return ChunkSearch::Skipped;
        }
        self.copies.clear();
        let (mut count, mut distance, mut period) = (1, 0, None);
        for (back, hash) in self.hashes.iter().rev().enumerate().skip(1) {
            steps::count(1);
            // A copy that overlaps the one before only matters for the period.
            let overlaps = back < distance + self.size;
            if *hash != self.hash || (overlaps && period.is_some()) || !self.is_copy(text, back) {
                continue;
            }
            period = period.or(Some(back));
            if !overlaps {
                count += 1;
                distance = back;
                self.copies.push(back as u16);
            }
        }
        match period {
            Some(period) if count >= count_min => ChunkSearch::Found(ChunkCopies {
                count,
                distance,
                period,
            }),
            _ => {
                self.copies.clear();
                ChunkSearch::TooFew
            }
        }
    }

    /// Whether the chunk that ends `back` characters earlier equals the last one.
    fn is_copy(&self, text: &[char], back: usize) -> bool {
        let end = text.len() - back;
        let Some(begin) = end.checked_sub(self.size) else {
            return false;
        };
        text[begin..end] == text[text.len() - self.size..]
    }
}
