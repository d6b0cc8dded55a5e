//! The words of the last calls: what a verdict and a person are shown of them.

use super::History;
use crate::domain::sanitize;

/// Texts one after the other in a ring of bytes, oldest first. Who puts one in
/// remembers its length, and takes the oldest out by it.
#[derive(Default)]
pub(super) struct TextRing {
    bytes: Box<[u8]>,
    begin: usize,
    len: usize,
}

impl TextRing {
    /// Room grows by so much: two calls or so.
    const BYTES_GROWTH: usize = 128;

    /// Puts texts in, one after the other.
    pub fn push(&mut self, [first, second, third]: [&str; 3]) {
        let len = self.len + first.len() + second.len() + third.len();
        if len > self.bytes.len() {
            self.grow(len);
        }
        let mut end = self.begin + self.len;
        if end >= self.bytes.len() {
            end -= self.bytes.len();
        }
        end = self.copy_at(end, first.as_bytes());
        end = self.copy_at(end, second.as_bytes());
        if !third.is_empty() {
            self.copy_at(end, third.as_bytes());
        }
        self.len = len;
    }

    /// Puts a text there, and says where the next stands.
    fn copy_at(&mut self, at: usize, text: &[u8]) -> usize {
        let end = at + text.len();
        if let Some(room) = self.bytes.get_mut(at..end) {
            room.copy_from_slice(text);
            return end;
        }
        let (first, rest) = text.split_at(self.bytes.len() - at);
        if let Some(room) = self.bytes.get_mut(at..) {
            room.copy_from_slice(first);
        }
        if let Some(room) = self.bytes.get_mut(..rest.len()) {
            room.copy_from_slice(rest);
        }
        rest.len()
    }

    /// Little more than is needed, where a vector would double.
    fn grow(&mut self, needed: usize) {
        let mut bytes = Vec::with_capacity(needed.next_multiple_of(Self::BYTES_GROWTH));
        let (first, rest) = self.slices(0..self.len);
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.capacity(), 0);
        (self.bytes, self.begin) = (bytes.into_boxed_slice(), 0);
    }

    /// Takes the first bytes out.
    pub fn pop(&mut self, bytes: usize) {
        let begin = self.begin + bytes;
        self.begin = begin.checked_sub(self.bytes.len()).unwrap_or(begin);
        self.len -= bytes;
    }

    /// The text that stands there.
    pub fn get(&self, range: std::ops::Range<usize>) -> String {
        let (first, rest) = self.slices(range);
        String::from_utf8([first, rest].concat()).unwrap_or_default()
    }

    fn slices(&self, range: std::ops::Range<usize>) -> (&[u8], &[u8]) {
        let (from, to) = (self.begin + range.start, self.begin + range.end);
        let size = self.bytes.len();
        let first = self.bytes.get(from.min(size)..to.min(size));
        let rest = self.bytes.get(from.max(size) - size..to.max(size) - size);
        (first.unwrap_or_default(), rest.unwrap_or_default())
    }

    pub fn clear(&mut self) {
        (self.begin, self.len) = (0, 0);
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// The words of a call, for a person.
#[derive(Default)]
pub struct CallText<'a> {
    pub tool: &'a str,
    pub target: &'a str,
    pub event_id: &'a str,
}

impl<'a> CallText<'a> {
    /// Of a tool's name and an event's id so many bytes are kept; the API takes
    /// no longer id.
    const NAME_BYTES_MAX: usize = u8::MAX as usize;

    /// As much as is kept of them.
    pub(super) fn truncated(&self) -> [&'a str; 3] {
        let most = |word: &'a str, bytes_max: usize| match word.len() <= bytes_max {
            true => word,
            false => sanitize::prefix(word, bytes_max),
        };
        [
            most(self.tool, Self::NAME_BYTES_MAX),
            most(self.target, History::TARGET_BYTES_MAX),
            most(self.event_id, Self::NAME_BYTES_MAX),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_out_as_they_went_in_wherever_the_ring_ends() {
        let mut texts = TextRing::default();
        let mut kept = std::collections::VecDeque::new();
        for n in 0..500usize {
            let text = format!("{n} {}", "é".repeat(n * 7 % 40));
            texts.push([&text, "", ""]);
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
