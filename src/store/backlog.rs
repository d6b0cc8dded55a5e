//! Terminations that are in force and whose write was refused. They are written when the
//! disk accepts them.

use std::{collections::VecDeque, time::Instant};

use super::{queue::WriteQueue, record};
use crate::domain::{EncodedRecord, VerdictId, VerdictRecord};

/// Encoded, because a termination then has about 300 bytes instead of 1 KiB. Its bytes are
/// reserved in the write queue, whose limit covers all that waits for the disk.
pub(super) struct Backlog {
    entries: VecDeque<BacklogEntry>,
    /// The most entries: as many as there are tombstones in the engine.
    entries_max: usize,
    /// The disk may have the entries already; see `CommitError::Detached`.
    pub is_uncertain: bool,
}

struct BacklogEntry {
    encoded: EncodedRecord,
    queued_at: Instant,
}

impl BacklogEntry {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.encoded.bytes.len()
    }
}

impl Backlog {
    pub fn new(entries_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            entries_max,
            is_uncertain: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps a termination, which has waited since `queued_at`. Beyond the limits it is
    /// not kept: it stays in force, and is written from the engine's tombstones.
    pub fn push(
        &mut self,
        queue: &WriteQueue,
        issued: &VerdictRecord,
        text: bool,
        queued_at: Instant,
    ) {
        let id = issued.verdict.id;
        let entry = BacklogEntry {
            encoded: EncodedRecord {
                id,
                bytes: record::encode(issued, text).body.into(),
                decode: record::decode,
            },
            queued_at,
        };
        if self.entries.len() >= self.entries_max || !queue.reserve_backlog(entry.bytes()) {
            queue.mark_lost(id);
            return;
        }
        self.entries.push_back(entry);
        self.show_oldest(queue);
    }

    /// The oldest terminations.
    pub fn first(&self, most: usize) -> Vec<&EncodedRecord> {
        let oldest = self.entries.iter().take(most);
        oldest.map(|entry| &entry.encoded).collect()
    }

    /// Removes the oldest terminations, which are on disk now. Returns the last of them.
    pub fn remove_first(&mut self, queue: &WriteQueue, most: usize) -> VerdictId {
        let most = most.min(self.entries.len());
        let mut last = VerdictId::default();
        for entry in self.entries.drain(..most) {
            queue.release_backlog(entry.bytes());
            last = entry.encoded.id;
        }
        self.show_oldest(queue);
        last
    }

    fn show_oldest(&self, queue: &WriteQueue) {
        queue.set_backlog_since(self.entries.front().map(|entry| entry.queued_at));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::testing::terminated;

    fn ids(backlog: &Backlog) -> Vec<u128> {
        let all = backlog.first(usize::MAX).into_iter();
        all.map(|encoded| encoded.id.0).collect()
    }

    #[test]
    fn refused_terminations_are_bounded_in_bytes_and_the_rest_is_counted() {
        let body = record::encode(&terminated(1, "s"), false).body;
        let each = size_of::<BacklogEntry>() + body.len();
        let queue = WriteQueue::with_bytes_max(3 * each);
        let mut backlog = Backlog::new(1_000);
        let begin = Instant::now();
        let push = |backlog: &mut Backlog, id: u128| {
            backlog.push(&queue, &terminated(id, "s"), false, begin);
        };
        (1..=5).for_each(|id| push(&mut backlog, id));
        assert_eq!(ids(&backlog), [1, 2, 3]);
        assert!(queue.may_be_dropped(VerdictId(4)) && !queue.may_be_dropped(VerdictId(3)));
        assert_eq!(queue.dropped_total(), 2);
        // What was written makes room.
        assert_eq!(backlog.remove_first(&queue, 2), VerdictId(2));
        (6..=8).for_each(|id| push(&mut backlog, id));
        assert_eq!(ids(&backlog), [3, 6, 7]);
        let mut few = Backlog::new(1);
        backlog.remove_first(&queue, 3);
        (9..=10).for_each(|id| push(&mut few, id));
        assert_eq!(ids(&few), [9]);
    }

    #[test]
    fn the_oldest_that_is_left_has_its_own_age() {
        let queue = WriteQueue::with_bytes_max(1 << 20);
        let mut backlog = Backlog::new(1_000);
        let hour = Duration::from_secs(60 * 60);
        let Some(long_ago) = Instant::now().checked_sub(hour) else {
            return;
        };
        backlog.push(&queue, &terminated(1, "s"), false, long_ago);
        backlog.push(&queue, &terminated(2, "s"), false, Instant::now());
        assert!(queue.oldest_unsynced_age() >= hour);
        backlog.remove_first(&queue, 1);
        assert!(queue.oldest_unsynced_age() < hour);
        backlog.remove_first(&queue, 1);
        assert_eq!(queue.oldest_unsynced_age(), Duration::ZERO);
    }
}
