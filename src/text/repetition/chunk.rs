//! The chunk rule: the last `size` characters occur `chunk_count` times in the window
//! of the last `chunk_window` characters, without overlapping.
//!
//! The rule is that of another product, kept for the `classic` profile. For each size a
//! polynomial hash is rolled over the text, and the hash of the chunk that ends at each
//! character of the window is kept. A small table counts hashes, so that in ordinary
//! text one look-up says that the last chunk is unique. Only otherwise is the window
//! searched, and equal hashes are verified character by character: up to window times
//! size comparisons for a character inside a loop.

use std::collections::VecDeque;

use super::escalation::{EscalationSteps, LoopEscalation};
use crate::{
    domain::{LadderRung, RepetitionSettings},
    text::mixing::GOLDEN_RATIO_32,
};

/// Looks for repeated chunks of every configured size.
#[derive(Default)]
pub(super) struct ChunkTracker {
    /// The characters of the window.
    text: VecDeque<char>,
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
}

/// Several times the number of chunks in a window.
const SLOTS: usize = 1_024;

fn slot_of(hash: u32) -> usize {
    (hash.wrapping_mul(GOLDEN_RATIO_32) >> (32 - SLOTS.ilog2())) as usize
}

/// A chunk that occurs often enough.
pub(super) struct RepeatedChunk {
    pub rung: LadderRung,
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

/// A loop is hard after one more window of characters, and final after four.
const HARD_WINDOWS: u32 = 1;
const FINAL_WINDOWS: u32 = 4;

impl ChunkTracker {
    pub fn push(&mut self, c: char, settings: &RepetitionSettings) -> Option<RepeatedChunk> {
        if self.trackers.is_empty() {
            self.trackers = settings.chunk_sizes().map(ChunkSizeTracker::new).collect();
        }
        let window = settings.chunk_window as usize;
        if self.text.len() == window {
            self.text.pop_front();
        }
        self.text.push_back(c);
        let mut found = None;
        for tracker in &mut self.trackers {
            tracker.push(&self.text, window);
            let copies = tracker.copies(&self.text, settings.chunk_count);
            found = found.or(copies.map(|copies| (tracker.size, copies)));
        }
        let Some((size, copies)) = found else {
            self.escalation = LoopEscalation::default();
            return None;
        };
        let steps = EscalationSteps {
            hard: HARD_WINDOWS * settings.chunk_window,
            last: FINAL_WINDOWS * settings.chunk_window,
        };
        let rung = self.escalation.advance(1, steps);
        self.escalation.report(rung).then(|| RepeatedChunk {
            rung,
            unit: self.text.range(self.text.len() - copies.period..).collect(),
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
        }
    }

    /// Its own size and its heap.
    fn total_bytes(&self) -> usize {
        size_of::<Self>() + SLOTS + self.hashes.capacity() * size_of::<u32>()
    }

    /// Adds the last character of the window.
    fn push(&mut self, text: &VecDeque<char>, window: usize) {
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

    /// The copies of the last chunk that do not overlap; `None` if there are fewer than
    /// `count_min`.
    fn copies(&self, text: &VecDeque<char>, count_min: u32) -> Option<ChunkCopies> {
        let is_rare =
            u32::from(self.slot_counts[slot_of(self.hash)]) < count_min.min(u8::MAX.into());
        if is_rare || text.len() < self.size * count_min as usize {
            return None;
        }
        let (mut count, mut distance, mut period) = (1, 0, None);
        for (back, hash) in self.hashes.iter().rev().enumerate().skip(1) {
            if *hash != self.hash || !self.is_copy(text, back) {
                continue;
            }
            period = period.or(Some(back));
            if back >= distance + self.size {
                count += 1;
                distance = back;
            }
        }
        let period = period.filter(|_| count >= count_min)?;
        Some(ChunkCopies {
            count,
            distance,
            period,
        })
    }

    /// Whether the chunk that ends `back` characters earlier equals the last one.
    fn is_copy(&self, text: &VecDeque<char>, back: usize) -> bool {
        let end = text.len() - back;
        let Some(begin) = end.checked_sub(self.size) else {
            return false;
        };
        let last = text.range(text.len() - self.size..);
        text.range(begin..end).eq(last)
    }
}
