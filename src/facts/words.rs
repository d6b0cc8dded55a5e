use std::hash::Hasher;

use smallvec::SmallVec;

use super::{Key, key::Tag};
use crate::domain::Sig;

/// The words of a call's arguments without their numbers: what stays the same
/// when a call is only reworded, reordered or counted up.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The words' hashes, in any order, added up.
    sum: u64,
    hashes: SmallVec<[u32; 32]>,
    bytes: usize,
}

impl Words {
    /// Longer arguments carry a file or a program, whose words say little about
    /// the call; and the cost of a call has a bound.
    const BYTES_MAX: usize = 1_024;
    /// Two sets that differ in one word overlap by .9 from 19 shared words on.
    const SET_MIN: usize = 19;

    pub fn push(&mut self, text: &str) {
        self.bytes += text.len();
        if self.bytes > Self::BYTES_MAX {
            return;
        }
        for word in text.split(|c: char| !c.is_alphanumeric()) {
            let mut hasher = Key::token();
            let letters = word.chars().filter(|c| !c.is_numeric());
            let mut any = false;
            for c in letters {
                hasher.write_u32(u32::from(c.to_ascii_lowercase()));
                any = true;
            }
            if any {
                let hash = hasher.finish();
                self.sum = self.sum.wrapping_add(hash);
                self.hashes.push((hash >> 32) as u32);
            }
        }
    }

    /// One signature for all of them; `None`: there are none, or too many.
    pub fn loose(&self, key: &Key) -> Option<Sig> {
        (self.bytes <= Self::BYTES_MAX && !self.hashes.is_empty()).then(|| {
            let mut hasher = key.hasher(Tag::Words);
            hasher.write_u64(self.sum);
            Sig::new(hasher.finish())
        })
    }

    /// The distinct ones, sorted, where an overlap of .9 short of all is
    /// possible.
    pub fn set(mut self) -> Box<[u32]> {
        if self.bytes > Self::BYTES_MAX || self.hashes.len() < Self::SET_MIN {
            return Box::default();
        }
        self.hashes.sort_unstable();
        self.hashes.dedup();
        self.hashes.into_boxed_slice()
    }
}
