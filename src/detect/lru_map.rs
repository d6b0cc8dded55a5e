//! A small least-recently-used map.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::heap;
use crate::domain::{Capacity, Sig};

/// State per path, command or poll, for the keys used last. At capacity the least
/// recently used key is evicted.
pub(super) struct LruMap<T> {
    /// Half of each key's signature, in a separate list: most look-ups miss, and a
    /// scan of this list is enough to know that.
    tags: Vec<u32>,
    /// In the order of use; the most recently used entry is the last.
    entries: Vec<(Sig, T)>,
}

impl<T> Default for LruMap<T> {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            entries: Vec::new(),
        }
    }
}

/// The tags are derived from the keys.
impl<T: Serialize> Serialize for LruMap<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.entries.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LruMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<(Sig, T)>::deserialize(deserializer)?;
        Ok(Self {
            tags: entries.iter().map(|(key, _)| key.tag()).collect(),
            entries,
        })
    }
}

impl<T: Default> LruMap<T> {
    /// The lists grow by this many entries, because most sessions have few keys.
    const GROWTH: usize = 2;

    fn position(&self, key: Sig) -> Option<usize> {
        let tag = key.tag();
        // A fold without an early exit, so that the compiler can vectorize it.
        let may_exist = self
            .tags
            .iter()
            .fold(false, |any, known| any | (*known == tag));
        if !may_exist {
            return None;
        }
        self.entries.iter().position(|(known, _)| *known == key)
    }

    /// Does not count as a use of the key.
    pub fn get_mut(&mut self, key: Sig) -> Option<&mut T> {
        let position = self.position(key)?;
        self.entries.get_mut(position).map(|(_, value)| value)
    }

    /// The key's value, inserted with its default if it is not known.
    pub fn get_or_insert(&mut self, key: Sig, capacity: &Capacity) -> &mut T {
        match self.position(key) {
            Some(position) if position + 1 == self.entries.len() => {}
            Some(position) => {
                let (tag, entry) = (self.tags.remove(position), self.entries.remove(position));
                self.tags.push(tag);
                self.entries.push(entry);
            }
            None => self.insert(key, capacity),
        }
        let last = self.entries.len() - 1;
        &mut self.entries[last].1
    }

    fn insert(&mut self, key: Sig, capacity: &Capacity) {
        capacity.evict_to_fit(
            self,
            |map| map.entries.len(),
            |map| {
                map.tags.remove(0);
                map.entries.remove(0);
            },
        );
        if self.entries.len() == self.entries.capacity() {
            self.tags.reserve_exact(Self::GROWTH);
            self.entries.reserve_exact(Self::GROWTH);
        }
        self.tags.push(key.tag());
        self.entries.push((key, T::default()));
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// The known keys, most recently used first.
    pub fn keys(&self) -> impl Iterator<Item = Sig> + '_ {
        self.entries.iter().rev().map(|(key, _)| *key)
    }

    /// Returns false if the key was not known.
    pub fn remove(&mut self, key: Sig) -> bool {
        let Some(position) = self.position(key) else {
            return false;
        };
        self.tags.remove(position);
        self.entries.remove(position);
        true
    }

    /// Heap bytes of the map, including those of each value.
    pub fn heap_bytes(&self, value_heap_bytes: impl Fn(&T) -> usize) -> usize {
        let values: usize = self
            .entries
            .iter()
            .map(|(_, value)| value_heap_bytes(value))
            .sum();
        heap::vec_bytes(&self.tags) + heap::vec_bytes(&self.entries) + values
    }

    pub fn clear(&mut self) {
        self.tags.clear();
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_path_is_evicted() {
        let path = |n: u64| Sig::new(n << 32 | 7);
        let room = Capacity::new(64);
        let mut paths: LruMap<u64> = LruMap::default();
        for n in 1..=64 {
            *paths.get_or_insert(path(n), &room) = n;
        }
        paths.get_or_insert(path(1), &room);
        assert_eq!(room.evicted(), 0);
        *paths.get_or_insert(path(65), &room) = 65;
        assert_eq!(room.evicted(), 1);
        assert_eq!(paths.get_mut(path(2)), None);
        assert_eq!(paths.get_mut(path(1)), Some(&mut 1));
        assert!(paths.keys().take(2).eq([path(65), path(1)]));
        assert!(paths.remove(path(1)) && !paths.remove(path(1)));
        assert_eq!(paths.values_mut().count(), 63);
        // A smaller capacity evicts several entries at once.
        paths.get_or_insert(path(66), &Capacity::new(2));
        assert!(paths.keys().eq([path(66), path(65)]));
    }
}
