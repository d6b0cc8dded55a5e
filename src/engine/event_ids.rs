//! Recognizes events that are sent twice.

use std::collections::VecDeque;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::domain::Sig;

/// The latest event and turn ids of a session with the indexes of their events, so
/// that an event sent twice counts once. (A duplicate delivery looks exactly like
/// a loop.)
///
/// The halves of an id are stored separately: hardly any event is a duplicate, and
/// comparing the lower halves, many at a time, is enough to rule one out.
#[derive(Default)]
pub(super) struct RecentEventIds {
    lower_halves: VecDeque<u32>,
    entries: VecDeque<EventIdEntry>,
}

struct EventIdEntry {
    upper: u32,
    /// The index of its event.
    index: i32,
}

/// The ids as they were inserted, with the indexes of their events.
impl Serialize for RecentEventIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ids = self.lower_halves.iter().zip(&self.entries);
        serializer.collect_seq(ids.map(|(lower, entry)| {
            let id = u64::from(entry.upper) << 32 | u64::from(*lower);
            (Sig::new(id), entry.index)
        }))
    }
}

impl<'de> Deserialize<'de> for RecentEventIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ids = Vec::<(Sig, i32)>::deserialize(deserializer)?;
        let mut event_ids = Self::default();
        for (id, index) in &ids {
            event_ids.insert(*id, *index, ids.len());
        }
        Ok(event_ids)
    }
}

impl RecentEventIds {
    pub fn index_of(&self, id: Sig) -> Option<i32> {
        let (lower, upper) = split_halves(id);
        let (older, newer) = self.lower_halves.as_slices();
        if !contains(older, lower) && !contains(newer, lower) {
            return None;
        }
        let ids = self.lower_halves.iter().zip(&self.entries);
        ids.rev()
            .find(|(known, entry)| (**known, entry.upper) == (lower, upper))
            .map(|(_, entry)| entry.index)
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

    /// Whether a duplicate of this event can still be recognized.
    pub fn has_event(&self, index: i32) -> bool {
        self.entries.iter().any(|entry| entry.index == index)
    }

    pub fn heap_bytes(&self) -> usize {
        self.lower_halves.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<EventIdEntry>()
    }
}

fn split_halves(id: Sig) -> (u32, u32) {
    (id.get() as u32, (id.get() >> 32) as u32)
}

/// Compares all ids of a chunk without an early exit, so that the compiler
/// vectorizes the loop.
fn contains(known: &[u32], lower: u32) -> bool {
    const CHUNK: usize = 32;
    let (chunks, rest) = known.as_chunks::<CHUNK>();
    chunks.iter().any(|chunk| chunk_contains(chunk, lower)) || chunk_contains(rest, lower)
}

fn chunk_contains(chunk: &[u32], lower: u32) -> bool {
    chunk.iter().fold(false, |found, id| found | (*id == lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_of_an_id_are_compared_and_the_oldest_ids_are_dropped() {
        let mut ids = RecentEventIds::default();
        let id = |n: u64| Sig::new(n << 32 | 7);
        for n in 1..=100 {
            ids.insert(id(n), n as i32, 70);
        }
        assert_eq!(ids.index_of(id(30)), None);
        assert_eq!(ids.index_of(id(31)), Some(31));
        assert_eq!(ids.index_of(id(100)), Some(100));
        assert_eq!(ids.index_of(Sig::new(100 << 32 | 8)), None);
        assert!(ids.has_event(31) && !ids.has_event(30));
        ids.insert(id(50), 101, 70);
        assert_eq!(ids.index_of(id(50)), Some(101), "the latest");
    }
}
