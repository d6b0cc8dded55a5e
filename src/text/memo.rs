//! A fixed-size, lock-free cache from a text's hash to the value computed from the
//! text.
//!
//! An agent in a loop receives the same result repeatedly, and many calls return the
//! same short result. Each of these texts is masked once while it is cached. Cost of a
//! lookup: three relaxed loads and a comparison. No allocation after construction.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mixing::GOLDEN_RATIO_64;

/// A direct-mapped cache: each text hash maps to one entry, and a new text replaces the
/// previous one in its entry.
///
/// Threads read and write entries without a lock, so the three words of an entry may
/// come from two different texts. The checksum detects this: it combines the text's
/// hash with both words of the value.
#[derive(Debug)]
pub(crate) struct Memo {
    entries: Box<[MemoEntry]>,
}

#[derive(Debug, Default)]
struct MemoEntry {
    checksum: AtomicU64,
    value: [AtomicU64; 2],
}

impl Memo {
    /// 1,024 entries of 24 bytes are 24 KiB: half of a core's L1 data cache.
    const ENTRIES: usize = 1_024;

    /// Returns the cached value of the text with this hash. If there is none, calls
    /// `compute` and caches its result.
    pub fn get_or_compute(&self, text: u64, compute: impl FnOnce() -> [u64; 2]) -> [u64; 2] {
        self.get(text).unwrap_or_else(|| {
            let value = compute();
            self.set(text, value);
            value
        })
    }

    /// The cached value of the text with this hash.
    pub fn get(&self, text: u64) -> Option<[u64; 2]> {
        let entry = self.entries.get(text as usize % Self::ENTRIES)?;
        let [first, second] = &entry.value;
        let cached = [first.load(Relaxed), second.load(Relaxed)];
        (entry.checksum.load(Relaxed) == entry_checksum(text, cached)).then_some(cached)
    }

    /// Caches a value in place of the one in its entry.
    pub fn set(&self, text: u64, value: [u64; 2]) {
        let Some(entry) = self.entries.get(text as usize % Self::ENTRIES) else {
            return;
        };
        let [first, second] = &entry.value;
        entry.checksum.store(entry_checksum(text, value), Relaxed);
        first.store(value[0], Relaxed);
        second.store(value[1], Relaxed);
    }
}

/// Combines the text's hash with the value. The constant ensures that an unwritten
/// entry, which holds zeros, does not match the text with hash 0.
fn entry_checksum(text: u64, value: [u64; 2]) -> u64 {
    text ^ value[0].rotate_left(21) ^ value[1].rotate_left(42) ^ GOLDEN_RATIO_64
}

impl Default for Memo {
    fn default() -> Self {
        Self {
            entries: (0..Self::ENTRIES).map(|_| MemoEntry::default()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_computed_once_until_its_entry_is_replaced() {
        let memo = Memo::default();
        let other = 7 + Memo::ENTRIES as u64;
        assert_eq!(memo.get_or_compute(7, || [1, 2]), [1, 2]);
        assert_eq!(memo.get_or_compute(7, || unreachable!()), [1, 2]);
        assert_eq!(memo.get_or_compute(other, || [3, 4]), [3, 4]);
        assert_eq!(memo.get_or_compute(7, || [1, 2]), [1, 2]);
        assert_eq!(memo.get_or_compute(0, || [5, 6]), [5, 6]);
    }

    #[test]
    fn threads_never_get_the_value_of_another_text() {
        let memo = Memo::default();
        let texts = |n: u64| n % 5 * Memo::ENTRIES as u64;
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let memo = &memo;
                scope.spawn(move || {
                    for n in 0..20_000 {
                        let text = texts(n * (thread + 1));
                        assert_eq!(memo.get_or_compute(text, || [text, !text]), [text, !text]);
                    }
                });
            }
        });
    }
}
