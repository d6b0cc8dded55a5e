//! What was made of texts lately. An agent in a loop gets the same answer over
//! and over, and many calls get the same short one: they are masked once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mixing::GOLDEN_RATIO_64;

/// What was made of some texts, by the hashes of these. Each has one place, which
/// the next text of the same place takes.
///
/// Threads read and write without a lock. The three words of a place may then be
/// of two texts; the first tells, for it holds the text's hash only together with
/// the other two.
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
    /// 24 KiB: half of a core's nearest cache.
    const ENTRIES: usize = 1_024;

    /// What is known of the text with this hash, else what `make` makes of it.
    pub fn get_or_compute(&self, text: u64, compute: impl FnOnce() -> [u64; 2]) -> [u64; 2] {
        let Some(entry) = self.entries.get(text as usize % Self::ENTRIES) else {
            return compute();
        };
        let [first, second] = &entry.value;
        let cached = [first.load(Relaxed), second.load(Relaxed)];
        if entry.checksum.load(Relaxed) == entry_checksum(text, cached) {
            return cached;
        }
        let value = compute();
        entry.checksum.store(entry_checksum(text, value), Relaxed);
        first.store(value[0], Relaxed);
        second.store(value[1], Relaxed);
        value
    }
}

/// A place that nobody has written holds zeros, which must not be anybody's.
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
    fn what_is_known_is_not_made_again_until_its_place_is_taken() {
        let memo = Memo::default();
        let other = 7 + Memo::ENTRIES as u64;
        assert_eq!(memo.get_or_compute(7, || [1, 2]), [1, 2]);
        assert_eq!(memo.get_or_compute(7, || unreachable!()), [1, 2]);
        assert_eq!(memo.get_or_compute(other, || [3, 4]), [3, 4]);
        assert_eq!(memo.get_or_compute(7, || [1, 2]), [1, 2]);
        assert_eq!(memo.get_or_compute(0, || [5, 6]), [5, 6]);
    }

    #[test]
    fn threads_never_get_what_was_made_of_another_text() {
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
