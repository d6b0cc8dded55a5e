use std::collections::VecDeque;

use crate::domain::Sig;

/// A few words a path, for the paths used last. Beyond the bound the path used
/// longest ago is forgotten.
pub(super) struct Paths<T> {
    known: VecDeque<(Sig, T)>,
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Self {
            known: VecDeque::new(),
        }
    }
}

impl<T: Default> Paths<T> {
    /// An agent that works on more files than that at once is not in a loop.
    const PATHS_MAX: usize = 64;

    pub fn get(&mut self, path: Sig) -> Option<&mut T> {
        let known = self.known.iter_mut().find(|(known, _)| *known == path);
        known.map(|(_, of_path)| of_path)
    }

    /// What is known of a path, begun where it is nothing.
    pub fn of(&mut self, path: Sig) -> &mut T {
        let position = self.known.iter().position(|(known, _)| *known == path);
        let entry = position.and_then(|position| self.known.remove(position));
        if self.known.len() == Self::PATHS_MAX {
            self.known.pop_front();
        }
        self.known
            .push_back(entry.unwrap_or_else(|| (path, T::default())));
        let last = self.known.len() - 1;
        &mut self.known[last].1
    }

    pub fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.known.iter_mut().map(|(_, of_path)| of_path)
    }

    /// The paths that are known, the one used last first.
    pub fn paths(&self) -> impl Iterator<Item = Sig> + '_ {
        self.known.iter().rev().map(|(path, _)| *path)
    }

    pub fn forget(&mut self, path: Sig) {
        let position = self.known.iter().position(|(known, _)| *known == path);
        position.and_then(|position| self.known.remove(position));
    }

    pub fn clear(&mut self) {
        self.known.clear();
    }
}
