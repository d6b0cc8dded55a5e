use std::collections::VecDeque;

use crate::domain::Sig;

/// The latest event and turn ids of a session with the events they named, so
/// that an event sent twice counts once. (A duplicate delivery looks exactly
/// like a loop.)
///
/// The halves of an id stand apart: hardly any event is a duplicate, and to know
/// that of one it is enough to look at the lower halves, many at a time.
#[derive(Default)]
pub(super) struct Seen {
    lower: VecDeque<u32>,
    rest: VecDeque<Rest>,
}

struct Rest {
    upper: u32,
    /// The event that it named.
    index: i32,
}

impl Seen {
    pub fn index_of(&self, id: Sig) -> Option<i32> {
        let (lower, upper) = halves(id);
        let (older, newer) = self.lower.as_slices();
        if !has(older, lower) && !has(newer, lower) {
            return None;
        }
        let known = self.lower.iter().zip(&self.rest);
        known
            .rev()
            .find(|(known, rest)| (**known, rest.upper) == (lower, upper))
            .map(|(_, rest)| rest.index)
    }

    pub fn remember(&mut self, id: Sig, index: i32, ids_max: usize) {
        while self.lower.len() >= ids_max.max(1) {
            self.lower.pop_front();
            self.rest.pop_front();
        }
        let (lower, upper) = halves(id);
        self.lower.push_back(lower);
        self.rest.push_back(Rest { upper, index });
    }

    /// Whether a duplicate may still ask for this event.
    pub fn names(&self, event: i32) -> bool {
        self.rest.iter().any(|rest| rest.index == event)
    }

    pub fn heap_bytes(&self) -> usize {
        self.lower.capacity() * size_of::<u32>() + self.rest.capacity() * size_of::<Rest>()
    }
}

fn halves(id: Sig) -> (u32, u32) {
    (id.get() as u32, (id.get() >> 32) as u32)
}

/// Whether one of them is among the others. Those of a chunk are all looked at,
/// which the compiler does several at a time; it does not where each may be the
/// last.
fn has(known: &[u32], lower: u32) -> bool {
    const CHUNK: usize = 32;
    let among = |chunk: &[u32]| chunk.iter().fold(false, |found, id| found | (*id == lower));
    let (chunks, rest) = known.as_chunks::<CHUNK>();
    chunks.iter().any(|chunk| among(chunk)) || among(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_known_as_a_whole_and_until_others_take_its_place() {
        let mut seen = Seen::default();
        let id = |n: u64| Sig::new(n << 32 | 7);
        for n in 1..=100 {
            seen.remember(id(n), n as i32, 70);
        }
        assert_eq!(seen.index_of(id(30)), None);
        assert_eq!(seen.index_of(id(31)), Some(31));
        assert_eq!(seen.index_of(id(100)), Some(100));
        assert_eq!(seen.index_of(Sig::new(100 << 32 | 8)), None);
        assert!(seen.names(31) && !seen.names(30));
        seen.remember(id(50), 101, 70);
        assert_eq!(seen.index_of(id(50)), Some(101), "the latest");
    }
}
