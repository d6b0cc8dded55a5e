use crate::domain::Sig;

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
    /// An agent that works on more files than that at once is not in a loop.
    const PATHS_MAX: usize = 64;
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
    pub fn of(&mut self, path: Sig) -> &mut T {
        match self.position(path) {
            Some(position) if position + 1 == self.known.len() => {}
            Some(position) => {
                let (tag, known) = (self.tags.remove(position), self.known.remove(position));
                self.tags.push(tag);
                self.known.push(known);
            }
            None => self.add(path),
        }
        let last = self.known.len() - 1;
        &mut self.known[last].1
    }

    fn add(&mut self, path: Sig) {
        if self.known.len() == Self::PATHS_MAX {
            self.tags.remove(0);
            self.known.remove(0);
        }
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
        let mut paths: Paths<u64> = Paths::default();
        for n in 1..=64 {
            *paths.of(path(n)) = n;
        }
        paths.of(path(1));
        *paths.of(path(65)) = 65;
        assert_eq!(paths.get(path(2)), None);
        assert_eq!(paths.get(path(1)), Some(&mut 1));
        assert!(paths.paths().take(2).eq([path(65), path(1)]));
        assert!(paths.forget(path(1)) && !paths.forget(path(1)));
        assert_eq!(paths.all().count(), 63);
    }
}
