//! A bounded sample of a set of hashes.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::domain::Sketch;

/// The `N` lowest distinct hashes of all that are pushed: all of them if there are at
/// most `N`, otherwise a uniform sample of the distinct ones.
///
/// The capacity is `N` plus an eighth, so that sorting is rare. Once there are `N`
/// hashes they stay sorted, and few later hashes are low enough to be inserted. Cost of
/// a push: an append before that, a comparison after it for most hashes.
pub(super) struct BottomKSketch<const N: usize> {
    hashes: Vec<u32>,
    /// Hashes above this are not among the lowest. `u32::MAX` while there are fewer
    /// than `N` hashes.
    max_kept: u32,
}

impl<const N: usize> Default for BottomKSketch<N> {
    fn default() -> Self {
        Self {
            hashes: Vec::new(),
            max_kept: u32::MAX,
        }
    }
}

impl<const N: usize> BottomKSketch<N> {
    const CAPACITY: usize = N + N / 8;

    #[inline]
    pub fn push(&mut self, hash: u32) {
        if self.max_kept != u32::MAX {
            return self.insert(hash);
        }
        if self.hashes.len() == self.hashes.capacity() {
            self.grow();
            if self.max_kept != u32::MAX {
                return self.insert(hash);
            }
        }
        self.hashes.push(hash);
    }

    #[cold]
    fn grow(&mut self) {
        /// Enough for the words of a short turn.
        const INITIAL_CAPACITY: usize = 64;
        /// In a longer turn many words repeat. Duplicates are removed before the
        /// capacity grows, so only distinct hashes take memory.
        const COMPACT_MIN: usize = 256;
        if self.hashes.len() >= COMPACT_MIN.min(N) {
            self.compact();
        }
        let additional = self
            .hashes
            .len()
            .max(INITIAL_CAPACITY)
            .min(Self::CAPACITY - self.hashes.len());
        if self.hashes.capacity() < self.hashes.len() + additional / 2 {
            self.hashes.reserve_exact(additional);
        }
    }

    /// Inserts the hash in place of the highest of the `N`, if it is lower and not yet
    /// present.
    fn insert(&mut self, hash: u32) {
        if hash > self.max_kept {
            return;
        }
        let at = self.hashes.partition_point(|known| *known < hash);
        if self.hashes.get(at).is_some_and(|known| *known != hash) {
            self.hashes.pop();
            self.hashes.insert(at, hash);
            self.max_kept = self.hashes.last().copied().unwrap_or(self.max_kept);
        }
    }

    fn compact(&mut self) {
        sort_hashes(&mut self.hashes);
        self.hashes.dedup();
        self.hashes.truncate(N);
        if let Some(highest) = self.hashes.get(N - 1) {
            self.max_kept = *highest;
        }
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u32>()
    }

    /// Returns the hashes in any order and possibly with duplicates. If at most `N`
    /// were pushed, all of them are returned.
    pub fn finish_unsorted(mut self) -> Vec<u32> {
        if self.hashes.len() > N {
            self.compact();
        }
        self.hashes
    }

    /// Whether a thawed sketch is one that hashes were pushed to.
    pub fn is_consistent(&self) -> bool {
        if self.max_kept == u32::MAX {
            return self.hashes.len() <= Self::CAPACITY;
        }
        self.hashes.len() == N
            && self.hashes.last() == Some(&self.max_kept)
            && self.hashes.is_sorted_by(|a, b| a < b)
    }

    pub fn finish(mut self) -> Box<[u32]> {
        self.compact();
        self.hashes.into_boxed_slice()
    }
}

/// With the capacity, which decides when duplicates are removed.
impl<const N: usize> Serialize for BottomKSketch<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.hashes, self.max_kept, self.hashes.capacity()).serialize(serializer)
    }
}

impl<'de, const N: usize> Deserialize<'de> for BottomKSketch<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut hashes, max_kept, capacity) = <(Vec<u32>, u32, usize)>::deserialize(deserializer)?;
        let additional = capacity.min(Self::CAPACITY).saturating_sub(hashes.len());
        hashes.reserve_exact(additional);
        Ok(Self { hashes, max_kept })
    }
}

/// Sorts hashes. They are evenly distributed, so the top bits determine the final
/// position of nearly every hash. This costs a third of a comparison sort.
fn sort_hashes(hashes: &mut [u32]) {
    match hashes.len() {
        0..=32 => hashes.sort_unstable(),
        33..=128 => bucket_sort::<64, 128>(hashes),
        129..=288 => bucket_sort::<128, 288>(hashes),
        289.. => bucket_sort::<256, { BottomKSketch::<{ Sketch::WORDS_MAX }>::CAPACITY }>(hashes),
    }
}

/// Sorts at most `LEN_MAX` hashes by `BUCKETS` buckets, then finishes with an insertion
/// sort.
fn bucket_sort<const BUCKETS: usize, const LEN_MAX: usize>(hashes: &mut [u32]) {
    /// Above this many hashes in one bucket, a comparison sort is used. It bounds the
    /// cost for words crafted to fall into one bucket. A frequent word also fills a
    /// bucket, but equal hashes need no moves.
    const BUCKET_LEN_MAX: u16 = 64;
    let bucket = |hash: u32| (hash >> (32 - BUCKETS.ilog2())) as usize % BUCKETS;
    let mut counts = [0u16; BUCKETS];
    for hash in &*hashes {
        counts[bucket(*hash)] += 1;
    }
    let fullest = counts.iter().copied().fold(0, u16::max);
    if fullest > BUCKET_LEN_MAX || hashes.len() > LEN_MAX {
        return hashes.sort_unstable();
    }
    let mut begin = 0;
    for count in &mut counts {
        begin += std::mem::replace(count, begin);
    }
    let mut sorted = [0; LEN_MAX];
    for hash in &*hashes {
        let next_index = &mut counts[bucket(*hash)];
        sorted[usize::from(*next_index)] = *hash;
        *next_index += 1;
    }
    hashes.copy_from_slice(&sorted[..hashes.len()]);
    // An insertion sort orders the hashes within each bucket.
    let mut last = 0;
    for n in 0..hashes.len() {
        let hash = hashes[n];
        if hash >= last {
            last = hash;
            continue;
        }
        let mut at = n;
        while at > 0 && hashes[at - 1] > hash {
            hashes[at] = hashes[at - 1];
            at -= 1;
        }
        hashes[at] = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::mixing::GOLDEN_RATIO_32;

    #[test]
    fn hashes_are_sorted_however_they_are_spread() {
        let spread = |n: usize| {
            (0..n as u32)
                .map(|n| n.wrapping_mul(GOLDEN_RATIO_32))
                .collect()
        };
        // Frequent hashes, and hashes crafted for one bucket.
        let frequent = |n: usize| (0..n as u32).map(|n| (n % 7).wrapping_mul(GOLDEN_RATIO_32));
        let narrow = |n: usize| (0..n as u32).rev().map(|n| n % 101);
        for n in [0, 1, 32, 33, 128, 129, 288, 289, 576, 577, 700] {
            for mut hashes in [
                spread(n),
                frequent(n).collect::<Vec<_>>(),
                narrow(n).collect(),
            ] {
                let mut sorted = hashes.clone();
                sorted.sort_unstable();
                sort_hashes(&mut hashes);
                assert_eq!(hashes, sorted, "{n}");
            }
        }
    }
}
