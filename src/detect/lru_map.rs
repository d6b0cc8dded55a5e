use super::heap;
use crate::domain::{Capacity, Sig};

/// A few words a path, for the paths used last. Beyond the bound the path used
/// longest ago is forgotten.
pub(super) struct LruMap<T> {
    /// Half of each path's signature, apart: most often the path is not known,
    /// which a look along them tells.
    tags: Vec<u32>,
    /// The one used last is the last.
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

impl<T: Default> LruMap<T> {
    /// Room for so many more at a time: most sessions know a few.
    const GROWTH: usize = 2;

    fn position(&self, path: Sig) -> Option<usize> {
        let tag = path.tag();
        let any = self
            .tags
            .iter()
            .fold(false, |any, known| any | (*known == tag));
        if !any {
            return None;
        }
        self.entries.iter().position(|(known, _)| *known == path)
    }

    pub fn get_mut(&mut self, path: Sig) -> Option<&mut T> {
        let position = self.position(path)?;
        let known = self.entries.get_mut(position);
        known.map(|(_, of_path)| of_path)
    }

    /// What is known of a path, begun where it is nothing.
    pub fn get_or_insert(&mut self, path: Sig, capacity: &Capacity) -> &mut T {
        match self.position(path) {
            Some(position) if position + 1 == self.entries.len() => {}
            Some(position) => {
                let (tag, known) = (self.tags.remove(position), self.entries.remove(position));
                self.tags.push(tag);
                self.entries.push(known);
            }
            None => self.insert(path, capacity),
        }
        let last = self.entries.len() - 1;
        &mut self.entries[last].1
    }

    fn insert(&mut self, path: Sig, capacity: &Capacity) {
        capacity.evict_to_fit(
            self,
            |paths| paths.entries.len(),
            |paths| {
                paths.tags.remove(0);
                paths.entries.remove(0);
            },
        );
        if self.entries.len() == self.entries.capacity() {
            self.tags.reserve_exact(Self::GROWTH);
            self.entries.reserve_exact(Self::GROWTH);
        }
        self.tags.push(path.tag());
        self.entries.push((path, T::default()));
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().map(|(_, of_path)| of_path)
    }

    /// The paths that are known, the one used last first.
    pub fn keys(&self) -> impl Iterator<Item = Sig> + '_ {
        self.entries.iter().rev().map(|(path, _)| *path)
    }

    /// Forgets a path; false where it was not known.
    pub fn remove(&mut self, path: Sig) -> bool {
        let Some(position) = self.position(path) else {
            return false;
        };
        self.tags.remove(position);
        self.entries.remove(position);
        true
    }

    /// With what each holds beside itself.
    pub fn heap_bytes(&self, value_heap_bytes: impl Fn(&T) -> usize) -> usize {
        let values: usize = self
            .entries
            .iter()
            .map(|(_, known)| value_heap_bytes(known))
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
    fn the_path_used_longest_ago_is_forgotten() {
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
        // After a reload there is less room.
        paths.get_or_insert(path(66), &Capacity::new(2));
        assert!(paths.keys().eq([path(66), path(65)]));
    }
}
