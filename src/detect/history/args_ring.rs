//! The arguments of the latest calls, as they were sent, for the members of verdicts.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{History, text_ring::TextRing};

/// Arguments of the latest calls within a bound of bytes. Those that are longer by
/// themselves are left out.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct ArgsRing {
    texts: TextRing,
    /// The stored bytes of each of the latest calls, oldest first; 0: none are stored.
    lengths: VecDeque<u16>,
}

impl ArgsRing {
    const BYTES_MAX: usize = 1_024;

    pub fn push(&mut self, args: &str) {
        let args = if args.len() <= Self::BYTES_MAX {
            args
        } else {
            ""
        };
        while self.lengths.len() >= History::CALLS_MAX
            || self.texts.len() + args.len() > Self::BYTES_MAX
        {
            let Some(oldest) = self.lengths.pop_front() else {
                break;
            };
            self.texts.pop(usize::from(oldest).min(self.texts.len()));
        }
        self.texts.push([args]);
        self.lengths.push_back(args.len() as u16);
    }

    /// The arguments of the call that was made `ago` calls before the latest; empty: they
    /// are not stored.
    pub fn get(&self, ago: usize) -> String {
        let lengths = self.lengths.iter().rev().map(|len| usize::from(*len));
        let later: usize = lengths.clone().take(ago).sum();
        let len = lengths.clone().nth(ago).unwrap_or(0);
        let Some(end) = self.texts.len().checked_sub(later) else {
            return String::new();
        };
        self.texts.get(end.saturating_sub(len)..end)
    }

    pub fn clear(&mut self) {
        self.texts.clear();
        self.lengths.clear();
    }

    pub fn heap_bytes(&self) -> usize {
        self.texts.heap_bytes() + self.lengths.capacity() * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_arguments_are_stored_within_the_bound() {
        let mut ring = ArgsRing::default();
        for n in 0..100 {
            ring.push(&format!("{n:0100}"));
            ring.push("");
        }
        assert_eq!(ring.get(0), "");
        assert_eq!(ring.get(1), format!("{:0100}", 99));
        assert_eq!(ring.get(19), format!("{:0100}", 90));
        assert_eq!(ring.get(21), "", "beyond 1,024 bytes");
        ring.push(&"x".repeat(1_025));
        assert_eq!(ring.get(0), "", "too long by itself");
        assert_eq!(ring.get(2), format!("{:0100}", 99));
        assert!(ring.heap_bytes() <= 1_300, "{}", ring.heap_bytes());
        ring.clear();
        assert_eq!(ring.get(0), "");
    }

    #[test]
    fn more_calls_than_the_history_has_are_not_stored() {
        let mut ring = ArgsRing::default();
        for _ in 0..100 {
            ring.push("a");
        }
        assert_eq!(ring.get(History::CALLS_MAX - 1), "a");
        assert_eq!(ring.get(History::CALLS_MAX), "");
    }
}
