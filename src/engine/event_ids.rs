use std::collections::VecDeque;

use crate::domain::Sig;

/// The latest event and turn ids of a session with the events they named, so
/// that an event sent twice counts once. (A duplicate delivery looks exactly
/// like a loop.)
///
/// The halves of an id stand apart: hardly any event is a duplicate, and to know
/// that of one it is enough to look at the lower halves, many at a time.
#[derive(Default)]
pub(super) struct RecentEventIds {
    lower_halves: VecDeque<u32>,
    entries: VecDeque<EventIdEntry>,
}

struct EventIdEntry {
    upper: u32,
    /// The event that it named.
    index: i32,
}

impl RecentEventIds {
    pub fn index_of(&self, id: Sig) -> Option<i32> {
        let (lower, upper) = split_halves(id);
        let (older, newer) = self.lower_halves.as_slices();
        if !contains(older, lower) && !contains(newer, lower) {
            return None;
        }
        let known = self.lower_halves.iter().zip(&self.entries);
        known
            .rev()
            .find(|(known, rest)| (**known, rest.upper) == (lower, upper))
            .map(|(_, rest)| rest.index)
    }

    pub fn insert(&mut self, id: Sig, index: i32, ids_max: usize) {
        while self.lower_halves.len() >= ids_max.max(1) {
            self.lower_halves.pop_front();
            self.entries.pop_front();
        }
        let (lower, upper) = split_halves(id);
        self.lower_halves.push_back(lower);
        self.entries.push_back(EventIdEntry { upper, index });
    }

    /// Whether a duplicate may still ask for this event.
    pub fn has_event(&self, event: i32) -> bool {
        self.entries.iter().any(|rest| rest.index == event)
    }

    pub fn heap_bytes(&self) -> usize {
        self.lower_halves.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<EventIdEntry>()
    }
}

fn split_halves(id: Sig) -> (u32, u32) {
    (id.get() as u32, (id.get() >> 32) as u32)
}

/// Whether one of them is among the others. Those of a chunk are all looked at,
/// which the compiler does several at a time; it does not where each may be the
/// last.
fn contains(known: &[u32], lower: u32) -> bool {
    const CHUNK: usize = 32;
    let chunk_contains =
        |chunk: &[u32]| chunk.iter().fold(false, |found, id| found | (*id == lower));
    let (chunks, rest) = known.as_chunks::<CHUNK>();
    chunks.iter().any(|chunk| chunk_contains(chunk)) || chunk_contains(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_as_a_whole_and_until_others_take_its_place() {
        let mut seen = RecentEventIds::default();
        let id = |n: u64| Sig::new(n << 32 | 7);
        for n in 1..=100 {
            seen.insert(id(n), n as i32, 70);
        }
        assert_eq!(seen.index_of(id(30)), None);
        assert_eq!(seen.index_of(id(31)), Some(31));
        assert_eq!(seen.index_of(id(100)), Some(100));
        assert_eq!(seen.index_of(Sig::new(100 << 32 | 8)), None);
        assert!(seen.has_event(31) && !seen.has_event(30));
        seen.insert(id(50), 101, 70);
        assert_eq!(seen.index_of(id(50)), Some(101), "the latest");
    }
}
