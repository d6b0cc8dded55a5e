//! The names of the last calls (tool, target, event id), for verdicts and the
//! timeline.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::History;
use crate::domain::sanitize;

/// Texts in a ring of bytes, oldest first. The ring does not store their lengths:
/// the caller does, and removes the oldest text by its length.
#[derive(Default)]
pub(super) struct TextRing {
    bytes: Box<[u8]>,
    begin: usize,
    len: usize,
}

/// Writes only the texts, oldest first.
impl Serialize for TextRing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (first, rest) = self.slices(0..self.len);
        serializer.serialize_bytes(&[first, rest].concat())
    }
}

impl<'de> Deserialize<'de> for TextRing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = <&[u8]>::deserialize(deserializer)?;
        let mut bytes = Vec::with_capacity(texts.len().next_multiple_of(Self::BYTES_GROWTH));
        bytes.extend_from_slice(texts);
        bytes.resize(bytes.capacity(), 0);
        Ok(Self {
            bytes: bytes.into_boxed_slice(),
            begin: 0,
            len: texts.len(),
        })
    }
}

impl TextRing {
    /// The ring grows by this many bytes, about two calls.
    const BYTES_GROWTH: usize = 128;

    /// Appends texts.
    pub fn push<const N: usize>(&mut self, texts: [&str; N]) {
        let len = self.len + texts.map(str::len).iter().sum::<usize>();
        if len > self.bytes.len() {
            self.grow(len);
        }
        let mut end = self.begin + self.len;
        if end >= self.bytes.len() {
            end -= self.bytes.len();
        }
        for text in texts {
            if !text.is_empty() {
                end = self.copy_at(end, text.as_bytes());
            }
        }
        self.len = len;
    }

    /// Copies a text to this position, wrapping around. Returns the position after
    /// it.
    fn copy_at(&mut self, at: usize, text: &[u8]) -> usize {
        let end = at + text.len();
        if let Some(target) = self.bytes.get_mut(at..end) {
            target.copy_from_slice(text);
            return end;
        }
        let (first, rest) = text.split_at(self.bytes.len() - at);
        if let Some(target) = self.bytes.get_mut(at..) {
            target.copy_from_slice(first);
        }
        if let Some(target) = self.bytes.get_mut(..rest.len()) {
            target.copy_from_slice(rest);
        }
        rest.len()
    }

    /// Allocates little more than is needed, where a vector would double.
    fn grow(&mut self, needed: usize) {
        let mut bytes = Vec::with_capacity(needed.next_multiple_of(Self::BYTES_GROWTH));
        let (first, rest) = self.slices(0..self.len);
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.capacity(), 0);
        (self.bytes, self.begin) = (bytes.into_boxed_slice(), 0);
    }

    /// Removes the first bytes.
    pub fn pop(&mut self, bytes: usize) {
        let begin = self.begin + bytes;
        self.begin = begin.checked_sub(self.bytes.len()).unwrap_or(begin);
        self.len -= bytes;
    }

    /// The text at this range.
    pub fn get(&self, range: std::ops::Range<usize>) -> String {
        let (first, rest) = self.slices(range);
        let mut bytes = Vec::with_capacity(first.len() + rest.len());
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(rest);
        String::from_utf8(bytes).unwrap_or_default()
    }

    fn slices(&self, range: std::ops::Range<usize>) -> (&[u8], &[u8]) {
        let (from, to) = (self.begin + range.start, self.begin + range.end);
        let size = self.bytes.len();
        let first = self.bytes.get(from.min(size)..to.min(size));
        let rest = self.bytes.get(from.max(size) - size..to.max(size) - size);
        (first.unwrap_or_default(), rest.unwrap_or_default())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn clear(&mut self) {
        (self.begin, self.len) = (0, 0);
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// The names of a call, as a person sees them.
#[derive(Default)]
pub struct CallText<'a> {
    pub tool: &'a str,
    pub target: &'a str,
    pub event_id: &'a str,
    /// The arguments as they were sent; empty if they were not, or only as a hash.
    pub args: &'a str,
}

impl<'a> CallText<'a> {
    /// Bytes stored of a tool's name and of an event's id. The API accepts no longer
    /// id.
    const NAME_BYTES_MAX: usize = u8::MAX as usize;

    /// The parts that are stored.
    pub(super) fn truncated(&self) -> [&'a str; 3] {
        [
            truncate(self.tool, Self::NAME_BYTES_MAX),
            truncate(self.target, History::TARGET_BYTES_MAX),
            truncate(self.event_id, Self::NAME_BYTES_MAX),
        ]
    }
}

/// Most texts are short and returned as they are.
fn truncate(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        text
    } else {
        sanitize::prefix(text, bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_back_unchanged_wherever_the_ring_wraps() {
        let mut texts = TextRing::default();
        let mut kept = std::collections::VecDeque::new();
        for n in 0..500usize {
            let text = format!("{n} {}", "é".repeat(n * 7 % 40));
            texts.push([&text]);
            kept.push_back(text);
            if kept.len() > 5 {
                texts.pop(kept.pop_front().unwrap().len());
            }
            let mut begin = 0;
            for text in &kept {
                assert_eq!(texts.get(begin..begin + text.len()), *text);
                begin += text.len();
            }
        }
        assert!(texts.heap_bytes() < 1_000);
    }
}
