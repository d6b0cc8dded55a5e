use crate::domain::Sketch;

/// The `N` lowest distinct hashes of all that are pushed: all of them where
/// there are no more than `N`, else a fair sample. Room for an eighth more makes
/// the sorting rare; once there are `N` they stay sorted, and hardly any comes
/// among them.
pub(super) struct Lowest<const N: usize> {
    seen: Vec<u32>,
    /// None above it is among the lowest; the highest there is: there are fewer
    /// than `N`.
    highest: u32,
}

impl<const N: usize> Default for Lowest<N> {
    fn default() -> Self {
        Self {
            seen: Vec::new(),
            highest: u32::MAX,
        }
    }
}

impl<const N: usize> Lowest<N> {
    const ROOM: usize = N + N / 8;

    #[inline]
    pub fn push(&mut self, hash: u32) {
        if self.highest != u32::MAX {
            return self.insert(hash);
        }
        if self.seen.len() == self.seen.capacity() {
            self.grow();
            if self.highest != u32::MAX {
                return self.insert(hash);
            }
        }
        self.seen.push(hash);
    }

    #[cold]
    fn grow(&mut self) {
        /// The words of a short turn.
        const FIRST: usize = 64;
        /// In a longer one many come again: more room only for those that do not.
        const MANY: usize = 256;
        if self.seen.len() >= MANY.min(N) {
            self.settle();
        }
        let more = self.seen.len().max(FIRST).min(Self::ROOM - self.seen.len());
        if self.seen.capacity() < self.seen.len() + more / 2 {
            self.seen.reserve_exact(more);
        }
    }

    /// Takes the place of the highest of `N`, if it is lower.
    fn insert(&mut self, hash: u32) {
        if hash > self.highest {
            return;
        }
        let at = self.seen.partition_point(|known| *known < hash);
        if self.seen.get(at).is_some_and(|known| *known != hash) {
            self.seen.pop();
            self.seen.insert(at, hash);
            self.highest = self.seen.last().copied().unwrap_or(self.highest);
        }
    }

    fn settle(&mut self) {
        sort(&mut self.seen);
        self.seen.dedup();
        self.seen.truncate(N);
        if let Some(highest) = self.seen.get(N - 1) {
            self.highest = *highest;
        }
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.seen.capacity() * size_of::<u32>()
    }

    /// All that were pushed, in any order and some more than once perhaps, where
    /// there are no more than `N`.
    pub fn finish_unsorted(mut self) -> Vec<u32> {
        if self.seen.len() > N {
            self.settle();
        }
        self.seen
    }

    pub fn finish(mut self) -> Box<[u32]> {
        self.settle();
        self.seen.into_boxed_slice()
    }
}

/// Sorts hashes. They are spread evenly, so that the top bits say where nearly
/// each belongs: a third of what comparing costs.
fn sort(hashes: &mut [u32]) {
    match hashes.len() {
        0..=32 => hashes.sort_unstable(),
        33..=128 => sort_by_top::<64, 128>(hashes),
        129..=288 => sort_by_top::<128, 288>(hashes),
        289.. => sort_by_top::<256, { Lowest::<{ Sketch::WORDS_MAX }>::ROOM }>(hashes),
    }
}

/// By so many buckets, and at most so many hashes.
fn sort_by_top<const BUCKETS: usize, const MOST: usize>(hashes: &mut [u32]) {
    /// Who makes words for it fills one bucket: then they are compared. A word that
    /// stands often does so as well, but equal hashes are in their place at once.
    const IN_ONE_MAX: u16 = 64;
    let bucket = |hash: u32| (hash >> (32 - BUCKETS.ilog2())) as usize % BUCKETS;
    let mut counts = [0u16; BUCKETS];
    for hash in &*hashes {
        counts[bucket(*hash)] += 1;
    }
    let fullest = counts.iter().copied().fold(0, u16::max);
    if fullest > IN_ONE_MAX || hashes.len() > MOST {
        return hashes.sort_unstable();
    }
    let mut begin = 0;
    for count in &mut counts {
        begin += std::mem::replace(count, begin);
    }
    let mut sorted = [0; MOST];
    for hash in &*hashes {
        let place = &mut counts[bucket(*hash)];
        sorted[usize::from(*place)] = *hash;
        *place += 1;
    }
    hashes.copy_from_slice(&sorted[..hashes.len()]);
    // What is left to do is within the buckets.
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

    #[test]
    fn hashes_are_sorted_however_they_are_spread() {
        let spread = |n: usize| (0..n as u32).map(|n| n.wrapping_mul(0x9e37_79b1)).collect();
        // Some that stand often, and some made for one bucket.
        let frequent = |n: usize| (0..n as u32).map(|n| (n % 7).wrapping_mul(0x9e37_79b1));
        let narrow = |n: usize| (0..n as u32).rev().map(|n| n % 101);
        for n in [0, 1, 32, 33, 128, 129, 288, 289, 576, 577, 700] {
            for mut hashes in [
                spread(n),
                frequent(n).collect::<Vec<_>>(),
                narrow(n).collect(),
            ] {
                let mut sorted = hashes.clone();
                sorted.sort_unstable();
                sort(&mut hashes);
                assert_eq!(hashes, sorted, "{n}");
            }
        }
    }
}
