//! The chunk tier: the last characters stand a few times in the window before,
//! none overlapping another.

use std::collections::VecDeque;

use crate::domain::{LadderRung, RepetitionSettings};

/// Watches for chunks of each size.
#[derive(Default)]
pub(super) struct ChunkTracker {
    /// The characters of the window.
    text: VecDeque<char>,
    trackers: Vec<ChunkSizeTracker>,
    /// For how many characters a chunk has been standing.
    chars_repeated: Option<u32>,
    reported: Option<LadderRung>,
}

struct ChunkSizeTracker {
    size: usize,
    hash: u32,
    /// FACTOR to the power of the size, for the character that leaves.
    power: u32,
    /// The hash of the chunk that ends at each character of the window.
    hashes: VecDeque<u32>,
    /// How many of them there are, by a part of each: nearly always the last
    /// chunk is the only one of its kind, and one look says so.
    slot_counts: Box<[u8; SLOTS]>,
}

/// Several times as many as a window has chunks.
const SLOTS: usize = 1_024;

fn slot_of(hash: u32) -> usize {
    (hash.wrapping_mul(FACTOR) >> (32 - SLOTS.ilog2())) as usize
}

/// A chunk that stands often enough.
pub(super) struct RepeatedChunk {
    pub bar: LadderRung,
    /// From one copy to the next.
    pub unit: String,
    pub chars: u32,
    pub count: u32,
    /// Characters from the beginning of the first copy.
    pub span: u32,
}

/// The copies of the last chunk.
struct ChunkCopies {
    count: u32,
    /// Characters from the end of the first to that of the last.
    distance: usize,
    /// From the end of the latest before, which may overlap it.
    period: usize,
}

const FACTOR: u32 = 0x9e37_79b1;
/// Windows of characters after the first bar that make the next ones.
const ESCALATION: [(u32, LadderRung); 2] = [(4, LadderRung::Final), (1, LadderRung::Hard)];

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
            (self.chars_repeated, self.reported) = (None, None);
            return None;
        };
        let bar = self.escalate(settings.chunk_window)?;
        Some(RepeatedChunk {
            bar,
            unit: self.text.range(self.text.len() - copies.period..).collect(),
            chars: copies.period as u32,
            count: copies.count,
            span: (copies.distance + size) as u32,
        })
    }

    /// The bar that is passed newly.
    fn escalate(&mut self, window: u32) -> Option<LadderRung> {
        let since = self
            .chars_repeated
            .map_or(0, |since| since.saturating_add(1));
        self.chars_repeated = Some(since);
        let more = ESCALATION
            .iter()
            .find(|(windows, _)| since >= windows * window);
        let bar = more.map_or(LadderRung::Soft, |(_, bar)| *bar);
        let is_new = Some(bar) > self.reported;
        self.reported = self.reported.max(Some(bar));
        is_new.then_some(bar)
    }

    pub fn heap_bytes(&self) -> usize {
        let size_bytes = |tier: &ChunkSizeTracker| {
            size_of::<ChunkSizeTracker>() + SLOTS + tier.hashes.capacity() * size_of::<u32>()
        };
        self.text.capacity() * size_of::<char>()
            + self.trackers.iter().map(size_bytes).sum::<usize>()
    }
}

impl ChunkSizeTracker {
    fn new(size: usize) -> Self {
        Self {
            size,
            hash: 0,
            power: (0..size).fold(1, |power, _| FACTOR.wrapping_mul(power)),
            hashes: VecDeque::new(),
            slot_counts: Box::new([0; SLOTS]),
        }
    }

    /// Takes the last character of the window in.
    fn push(&mut self, text: &VecDeque<char>, window: usize) {
        let back = |n: usize| text.len().checked_sub(n).and_then(|at| text.get(at));
        let [enters, leaves] = [1, self.size + 1].map(|n| back(n).map_or(0, |c| *c as u32));
        self.hash = self
            .hash
            .wrapping_mul(FACTOR)
            .wrapping_add(enters)
            .wrapping_sub(leaves.wrapping_mul(self.power));
        // The first of a window has its end so far from that of the last.
        if self.hashes.len() > window - self.size
            && let Some(left) = self.hashes.pop_front()
        {
            // A counter that has reached its end stays there.
            let count = &mut self.slot_counts[slot_of(left)];
            *count -= u8::from(*count < u8::MAX);
        }
        self.hashes.push_back(self.hash);
        let count = &mut self.slot_counts[slot_of(self.hash)];
        *count = count.saturating_add(1);
    }

    /// The copies of the last chunk, none overlapping another; `None`: not often
    /// enough.
    fn copies(&self, text: &VecDeque<char>, least: u32) -> Option<ChunkCopies> {
        let is_rare = u32::from(self.slot_counts[slot_of(self.hash)]) < least.min(u8::MAX.into());
        if is_rare || text.len() < self.size * least as usize {
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
        let period = period.filter(|_| count >= least)?;
        Some(ChunkCopies {
            count,
            distance,
            period,
        })
    }

    /// The chunk that ends so far back is the last one.
    fn is_copy(&self, text: &VecDeque<char>, back: usize) -> bool {
        let end = text.len() - back;
        let Some(begin) = end.checked_sub(self.size) else {
            return false;
        };
        let last = text.range(text.len() - self.size..);
        text.range(begin..end).eq(last)
    }
}
