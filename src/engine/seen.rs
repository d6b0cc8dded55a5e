use std::collections::VecDeque;

use crate::domain::Sig;

/// The latest event and turn ids of a session with the events they named, so
/// that an event sent twice counts once. (A duplicate delivery looks exactly
/// like a loop.)
#[derive(Default)]
pub(super) struct Seen {
    ids: VecDeque<(Sig, i32)>,
}

impl Seen {
    pub fn index_of(&self, id: Sig) -> Option<i32> {
        self.ids
            .iter()
            .rev()
            .find(|(known, _)| *known == id)
            .map(|(_, index)| *index)
    }

    pub fn remember(&mut self, id: Sig, index: i32, ids_max: usize) {
        while self.ids.len() >= ids_max.max(1) {
            self.ids.pop_front();
        }
        self.ids.push_back((id, index));
    }

    /// Whether a duplicate may still ask for this event.
    pub fn names(&self, event: i32) -> bool {
        self.ids.iter().any(|(_, index)| *index == event)
    }

    pub fn heap_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<(Sig, i32)>()
    }
}
