//! Restores the chunks of a thawed text. Frozen are the text and the copies that are being
//! followed; the hashes and their counts are computed from the text.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{ChunkSizeTracker, ChunkTracker, REMOVED_CHARS};
use crate::domain::RepetitionSettings;

impl ChunkTracker {
    /// Computes what is not frozen. Returns false if the frozen part is inconsistent.
    pub fn restore(&mut self, settings: &RepetitionSettings) -> bool {
        let window = settings.chunk_window as usize;
        if self.text.is_empty() && self.trackers.is_empty() {
            return true;
        }
        let sizes = self.trackers.iter().map(|tracker| tracker.size);
        let chars_max = window + REMOVED_CHARS;
        if window == 0 || self.text.len() > chars_max || !sizes.eq(settings.chunk_sizes()) {
            return false;
        }
        self.text.reserve_exact(chars_max - self.text.len());
        for tracker in &mut self.trackers {
            for end in 1..=self.text.len() {
                tracker.push(&self.text[end.saturating_sub(window)..end], window);
            }
        }
        true
    }
}

/// What cannot be computed from the text.
#[derive(Serialize, Deserialize)]
struct FrozenChunkSize {
    size: u16,
    copies: SmallVec<[u16; 4]>,
    /// The slots whose counts are no longer exact.
    saturated_slots: Vec<u16>,
}

impl FrozenChunkSize {
    fn new(tracker: &ChunkSizeTracker) -> Self {
        let counts = tracker.slot_counts.iter().enumerate();
        let saturated = counts.filter(|(_, count)| **count == u8::MAX);
        Self {
            size: tracker.size as u16,
            copies: tracker.copies.clone(),
            saturated_slots: saturated.map(|(slot, _)| slot as u16).collect(),
        }
    }

    fn thaw(self) -> ChunkSizeTracker {
        let mut tracker = ChunkSizeTracker::new(self.size.into());
        tracker.copies = self.copies;
        for slot in self.saturated_slots {
            if let Some(count) = tracker.slot_counts.get_mut(usize::from(slot)) {
                *count = u8::MAX;
            }
        }
        tracker
    }
}

pub(super) mod frozen_trackers {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{ChunkSizeTracker, FrozenChunkSize, RepetitionSettings};

    pub fn serialize<S: Serializer>(
        trackers: &[ChunkSizeTracker],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(trackers.iter().map(FrozenChunkSize::new))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<ChunkSizeTracker>, D::Error> {
        let frozen = Vec::<FrozenChunkSize>::deserialize(deserializer)?;
        // Each takes a kilobyte, and a few bytes are enough to name one.
        if frozen.len() > RepetitionSettings::CHUNK_SIZES_MAX {
            return Err(D::Error::invalid_length(frozen.len(), &"a few sizes"));
        }
        Ok(frozen.into_iter().map(FrozenChunkSize::thaw).collect())
    }
}

/// The characters as a string, which takes a quarter of the bytes.
pub(super) mod frozen_text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(text: &[char], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text.iter().collect::<String>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<char>, D::Error> {
        Ok(<&str>::deserialize(deserializer)?.chars().collect())
    }
}
