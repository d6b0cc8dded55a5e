//! A small least-recently-used map.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::heap;
use crate::domain::{Capacity, LazyBox, Sig};

/// State per path, command or poll, for the keys used last. At capacity the least
/// recently used key is evicted. Allocated by the first key.
pub(super) struct LruMap<T> {
    lists: LazyBox<Lists<T>>,
}

struct Lists<T> {
    /// Half of each key's signature, in a separate list: most look-ups miss, and a
    /// scan of this list is enough to know that.
    tags: Vec<u32>,
    /// In the order of use; the most recently used entry is the last.
    entries: Vec<(Sig, T)>,
}

impl<T> Default for LruMap<T> {
    fn default() -> Self {
        Self {
            lists: LazyBox::default(),
        }
    }
}

impl<T> Default for Lists<T> {
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
        let entries: &[(Sig, T)] = self.lists.get().map_or(&[], |lists| &lists.entries);
        entries.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LruMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Vec::<(Sig, T)>::deserialize(deserializer)?;
        let mut map = Self::default();
        if !entries.is_empty() {
            let tags = entries.iter().map(|(key, _)| key.tag()).collect();
            *map.lists.get_or_insert_default() = Lists { tags, entries };
        }
        Ok(map)
    }
}

impl<T> Lists<T> {
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

    fn remove(&mut self, position: usize) -> (u32, (Sig, T)) {
        (self.tags.remove(position), self.entries.remove(position))
    }

    fn push(&mut self, (tag, entry): (u32, (Sig, T))) {
        self.tags.push(tag);
        self.entries.push(entry);
    }

    fn insert(&mut self, key: Sig, value: T, capacity: &Capacity) {
        capacity.evict_to_fit(
            self,
            |lists| lists.entries.len(),
            |lists| {
                lists.remove(0);
            },
        );
        if self.entries.len() == self.entries.capacity() {
            self.tags.reserve_exact(Self::GROWTH);
            self.entries.reserve_exact(Self::GROWTH);
        }
        self.push((key.tag(), (key, value)));
    }
}

impl<T: Default> LruMap<T> {
    /// Does not count as a use of the key.
    pub fn get_mut(&mut self, key: Sig) -> Option<&mut T> {
        let lists = self.lists.get_mut()?;
        let position = lists.position(key)?;
        lists.entries.get_mut(position).map(|(_, value)| value)
    }

    /// The key's value, inserted with its default if it is not known.
    pub fn get_or_insert(&mut self, key: Sig, capacity: &Capacity) -> &mut T {
        let lists = self.lists.get_or_insert_default();
        match lists.position(key) {
            Some(position) if position + 1 == lists.entries.len() => {}
            Some(position) => {
                let used = lists.remove(position);
                lists.push(used);
            }
            None => lists.insert(key, T::default(), capacity),
        }
        let last = lists.entries.len() - 1;
        &mut lists.entries[last].1
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let lists = self.lists.get_mut().into_iter();
        lists.flat_map(|lists| lists.entries.iter_mut().map(|(_, value)| value))
    }

    /// The known keys, most recently used first.
    pub fn keys(&self) -> impl Iterator<Item = Sig> + '_ {
        let lists = self.lists.get().into_iter();
        lists.flat_map(|lists| lists.entries.iter().rev().map(|(key, _)| *key))
    }

    /// Returns false if the key was not known.
    pub fn remove(&mut self, key: Sig) -> bool {
        let Some(lists) = self.lists.get_mut() else {
            return false;
        };
        let position = lists.position(key);
        if let Some(position) = position {
            lists.remove(position);
        }
        position.is_some()
    }

    /// Heap bytes of the map, including those of each value.
    pub fn heap_bytes(&self, value_heap_bytes: impl Fn(&T) -> usize) -> usize {
        self.lists.heap_bytes(|Lists { tags, entries }| {
            let values = entries.iter().map(|(_, value)| value_heap_bytes(value));
            heap::vec_bytes(tags) + heap::vec_bytes(entries) + values.sum::<usize>()
        })
    }

    pub fn clear(&mut self) {
        if let Some(lists) = self.lists.get_mut() {
            lists.tags.clear();
            lists.entries.clear();
        }
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
