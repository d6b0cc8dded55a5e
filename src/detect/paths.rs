use super::heap;
use crate::domain::{Room, Sig};

/// A few words a path, for the paths used last. Beyond the bound the path used
/// longest ago is forgotten.
pub(super) struct Paths<T> {
    /// Half of each path's signature, apart: most often the path is not known,
    /// which a look along them tells.
    tags: Vec<u32>,
    /// The one used last is the last.
    known: Vec<(Sig, T)>,
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Self {
            tags: Vec::new(),
            known: Vec::new(),
        }
    }
}

impl<T: Default> Paths<T> {
    /// Room for so many more at a time: most sessions know a few.
    const PATHS_MORE: usize = 2;

    fn position(&self, path: Sig) -> Option<usize> {
        let tag = path.tag();
        let any = self
            .tags
            .iter()
            .fold(false, |any, known| any | (*known == tag));
        if !any {
            return None;
        }
        self.known.iter().position(|(known, _)| *known == path)
    }

    pub fn get(&mut self, path: Sig) -> Option<&mut T> {
        let position = self.position(path)?;
        let known = self.known.get_mut(position);
        known.map(|(_, of_path)| of_path)
    }

    /// What is known of a path, begun where it is nothing.
    pub fn of(&mut self, path: Sig, room: &Room) -> &mut T {
        match self.position(path) {
            Some(position) if position + 1 == self.known.len() => {}
            Some(position) => {
                let (tag, known) = (self.tags.remove(position), self.known.remove(position));
                self.tags.push(tag);
                self.known.push(known);
            }
            None => self.add(path, room),
        }
        let last = self.known.len() - 1;
        &mut self.known[last].1
    }

    fn add(&mut self, path: Sig, room: &Room) {
        room.make(
            self,
            |paths| paths.known.len(),
            |paths| {
                paths.tags.remove(0);
                paths.known.remove(0);
            },
        );
        if self.known.len() == self.known.capacity() {
            self.tags.reserve_exact(Self::PATHS_MORE);
            self.known.reserve_exact(Self::PATHS_MORE);
        }
        self.tags.push(path.tag());
        self.known.push((path, T::default()));
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.known.iter_mut().map(|(_, of_path)| of_path)
    }

    /// The paths that are known, the one used last first.
    pub fn paths(&self) -> impl Iterator<Item = Sig> + '_ {
        self.known.iter().rev().map(|(path, _)| *path)
    }

    /// Forgets a path; false where it was not known.
    pub fn forget(&mut self, path: Sig) -> bool {
        let Some(position) = self.position(path) else {
            return false;
        };
        self.tags.remove(position);
        self.known.remove(position);
        true
    }

    /// With what each holds beside itself.
    pub fn heap_bytes(&self, of: impl Fn(&T) -> usize) -> usize {
        let held: usize = self.known.iter().map(|(_, known)| of(known)).sum();
        heap::list(&self.tags) + heap::list(&self.known) + held
    }

    pub fn clear(&mut self) {
        self.tags.clear();
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_used_longest_ago_is_forgotten() {
        let path = |n: u64| Sig::new(n << 32 | 7);
        let room = Room::new(64);
        let mut paths: Paths<u64> = Paths::default();
        for n in 1..=64 {
            *paths.of(path(n), &room) = n;
        }
        paths.of(path(1), &room);
        assert_eq!(room.forgotten(), 0);
        *paths.of(path(65), &room) = 65;
        assert_eq!(room.forgotten(), 1);
        assert_eq!(paths.get(path(2)), None);
        assert_eq!(paths.get(path(1)), Some(&mut 1));
        assert!(paths.paths().take(2).eq([path(65), path(1)]));
        assert!(paths.forget(path(1)) && !paths.forget(path(1)));
        assert_eq!(paths.all().count(), 63);
        // After a reload there is less room.
        paths.of(path(66), &Room::new(2));
        assert!(paths.paths().eq([path(66), path(65)]));
    }
}
