//! Fixed-size caches from a text's hash to the value computed from the text.
//!
//! An agent in a loop makes the same call and receives the same result repeatedly, and
//! many calls return the same short result. Each of these texts is read once while it is
//! cached. `Memo` holds two numbers without a lock; cost of a look-up: three relaxed
//! loads and a comparison. `SharedMemo` holds any value; cost: an uncontended lock and a
//! reference count.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use parking_lot::Mutex;

use super::mixing::GOLDEN_RATIO_64;

/// A cache of sets of two entries: each text hash maps to one set, and a new text replaces
/// the older of its two texts.
///
/// Threads read and write entries without a lock, so the three words of an entry may
/// come from two different texts. The checksum detects this: it combines the text's
/// hash with both words of the value.
#[derive(Debug)]
pub(crate) struct Memo {
    /// The newer entry first.
    sets: Box<[[MemoEntry; 2]]>,
}

#[derive(Debug, Default)]
struct MemoEntry {
    checksum: AtomicU64,
    value: [AtomicU64; 2],
}

impl Memo {
    /// As many as a few hundred sessions use within minutes; 96 KiB.
    const SETS: usize = 2_048;

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
        let [newer, older] = self.sets.get(text as usize % Self::SETS)?;
        newer.get(text).or_else(|| older.get(text))
    }

    /// Caches a value in place of the text's earlier one, or of the oldest in its set.
    pub fn set(&self, text: u64, value: [u64; 2]) {
        let Some(set @ [newer, older]) = self.sets.get(text as usize % Self::SETS) else {
            return;
        };
        let known = set.iter().find(|entry| entry.get(text).is_some());
        let entry = known.unwrap_or_else(|| {
            older.copy_from(newer);
            newer
        });
        entry.set(text, value);
    }
}

impl MemoEntry {
    fn value(&self) -> [u64; 2] {
        let [first, second] = &self.value;
        [first.load(Relaxed), second.load(Relaxed)]
    }

    fn get(&self, text: u64) -> Option<[u64; 2]> {
        let value = self.value();
        (self.checksum.load(Relaxed) == entry_checksum(text, value)).then_some(value)
    }

    fn set(&self, text: u64, value: [u64; 2]) {
        self.store(entry_checksum(text, value), value);
    }

    fn copy_from(&self, other: &Self) {
        self.store(other.checksum.load(Relaxed), other.value());
    }

    fn store(&self, checksum: u64, value: [u64; 2]) {
        let [first, second] = &self.value;
        self.checksum.store(checksum, Relaxed);
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
            sets: (0..Self::SETS).map(|_| Default::default()).collect(),
        }
    }
}

/// The same for shared values, each set under a lock.
#[derive(Debug)]
pub(crate) struct SharedMemo<T> {
    sets: Box<[Mutex<SharedSet<T>>]>,
}

/// The newer one first.
type SharedSet<T> = [Option<SharedEntry<T>>; 2];

#[derive(Debug)]
struct SharedEntry<T> {
    text: u64,
    value: Arc<T>,
}

impl<T> SharedMemo<T> {
    /// The cached value of the text with this hash. A set that another thread is using
    /// counts as empty.
    pub fn get(&self, text: u64) -> Option<Arc<T>> {
        let set = self.sets.get(text as usize % Memo::SETS)?.try_lock()?;
        let entry = set.iter().flatten().find(|entry| entry.text == text)?;
        Some(entry.value.clone())
    }

    /// Caches the value of a text that has none, in place of the oldest in its set.
    pub fn insert(&self, text: u64, value: Arc<T>) {
        let set = self.sets.get(text as usize % Memo::SETS);
        if let Some(mut set) = set.and_then(Mutex::try_lock) {
            set.swap(0, 1);
            set[0] = Some(SharedEntry { text, value });
        }
    }
}

impl<T> Default for SharedMemo<T> {
    fn default() -> Self {
        Self {
            sets: (0..Memo::SETS).map(|_| Mutex::default()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_computed_once_until_two_newer_ones_are_in_its_set() {
        let memo = Memo::default();
        let [a, b, c] = [0, 1, 2].map(|n| 7 + n * Memo::SETS as u64);
        assert_eq!(memo.get_or_compute(a, || [1, 2]), [1, 2]);
        assert_eq!(memo.get_or_compute(b, || [3, 4]), [3, 4]);
        memo.set(a, [5, 6]);
        assert_eq!(
            [a, b].map(|text| memo.get(text)),
            [Some([5, 6]), Some([3, 4])]
        );
        assert_eq!(memo.get_or_compute(c, || [7, 8]), [7, 8]);
        assert_eq!([a, b].map(|text| memo.get(text)), [None, Some([3, 4])]);
        assert_eq!(memo.get_or_compute(0, || [5, 6]), [5, 6]);
    }

    #[test]
    fn a_shared_value_stays_until_two_newer_ones_are_in_its_set() {
        let memo = SharedMemo::default();
        let texts = [0, 1, 2].map(|n| 7 + n * Memo::SETS as u64);
        assert_eq!(memo.get(7), None);
        for text in texts {
            memo.insert(text, Arc::new(text));
        }
        let [_, b, c] = texts;
        assert_eq!(
            texts.map(|text| memo.get(text).as_deref().copied()),
            [None, Some(b), Some(c)]
        );
    }

    #[test]
    fn threads_never_get_the_value_of_another_text() {
        let memo = Memo::default();
        let texts = |n: u64| n % 5 * Memo::SETS as u64;
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
