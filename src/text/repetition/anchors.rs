//! The hash table of anchors: the hashes of the 32-byte blocks of the last 4 KiB of text,
//! by which [`super::period`] finds an earlier copy of what is written now.
//!
//! Each byte of a text asks whether there is an anchor with the current hash, and nearly
//! always there is none. A bit filter answers that with one load; only a set bit leads to
//! the chained table. A chain has at most [`CHAIN_MAX`] anchors, six times the mean: the
//! hash has no key, and a text can be written whose anchors all fall into one bucket. Then
//! the oldest of them is dropped; in other text no anchor is lost, so no period is missed.
//! Cost: a filter test per byte, and an insertion with short chains per 32 bytes.

use crate::{
    domain::LazyBox,
    text::{mixing::GOLDEN_RATIO_32, work_budget::steps},
};

/// The anchors kept: with a grid of 32 bytes, those of 4 KiB.
pub(super) const ANCHORS_MAX: usize = 128;

/// The anchors of the ring by hash; of equal hashes the latest.
#[derive(Default)]
pub(super) struct Anchors {
    /// Allocated with the first anchor: most texts are short.
    table: LazyBox<AnchorTable>,
}

struct AnchorTable {
    /// Whether there may be an anchor, by more bits of the hash than select a bucket.
    filter: AnchorFilter,
    heads: [u8; BUCKETS],
    next: [u8; ANCHORS_MAX],
    hashes: [u32; ANCHORS_MAX],
}

const BUCKETS: usize = 64;
/// The longest chain. With random hashes one in five million is longer.
const CHAIN_MAX: usize = 12;
/// One 32-bit word per bucket. With all anchors stored one bit in 16 is set.
const FILTER_BITS: u32 = 2_048;
/// Bits indexed by the top bits of a hash times [`GOLDEN_RATIO_32`].
pub(super) type AnchorFilter = [u32; FILTER_BITS as usize / 32];
const EMPTY_FILTER: AnchorFilter = [0; FILTER_BITS as usize / 32];
/// Marks the end of a chain; slot numbers are smaller.
const NO_SLOT: u8 = u8::MAX;

impl Anchors {
    #[inline]
    pub fn filter(&self) -> &AnchorFilter {
        self.table
            .get()
            .map_or(&EMPTY_FILTER, |table| &table.filter)
    }

    /// The number (modulo [`ANCHORS_MAX`]) of the anchor with this hash.
    pub fn find(&self, hash: u32) -> Option<usize> {
        let table = self.table.get()?;
        if !may_contain(&table.filter, hash.wrapping_mul(GOLDEN_RATIO_32)) {
            return None;
        }
        let mut slot = table.heads[bucket_of(hash)];
        while slot != NO_SLOT {
            steps::count(1);
            if table.hashes[usize::from(slot)] == hash {
                return Some(usize::from(slot));
            }
            slot = table.next[usize::from(slot)];
        }
        None
    }

    /// Replaces the anchor that has left the ring, and an earlier one with the same hash.
    pub fn insert(&mut self, number: usize, hash: u32) {
        let table = self.table.get_or_insert_with(|| {
            Box::new(AnchorTable {
                filter: EMPTY_FILTER,
                heads: [NO_SLOT; BUCKETS],
                next: [NO_SLOT; ANCHORS_MAX],
                hashes: [0; ANCHORS_MAX],
            })
        });
        let slot = number % ANCHORS_MAX;
        table.unlink(table.hashes[slot], |other, _| usize::from(other) == slot);
        table.unlink(hash, |_, known| known == hash);
        if let Some(oldest) = table.last_of_full_chain(hash) {
            let dropped = table.hashes[usize::from(oldest)];
            table.unlink(dropped, |other, _| other == oldest);
        }
        table.hashes[slot] = hash;
        table.next[slot] = table.heads[bucket_of(hash)];
        table.heads[bucket_of(hash)] = slot as u8;
        table.set_filter_bit(hash);
    }

    pub fn heap_bytes(&self) -> usize {
        self.table.heap_bytes(|_| 0)
    }
}

impl AnchorTable {
    fn set_filter_bit(&mut self, hash: u32) {
        let bit = filter_bit(hash.wrapping_mul(GOLDEN_RATIO_32));
        self.filter[(bit / 32) as usize] |= 1 << (bit % 32);
    }

    /// Clears the filter bit of a removed hash, then sets the bits of the others in its
    /// chain again, which may share it.
    fn clear_filter_bit(&mut self, hash: u32) {
        let bit = filter_bit(hash.wrapping_mul(GOLDEN_RATIO_32));
        self.filter[(bit / 32) as usize] &= !(1 << (bit % 32));
        let mut slot = self.heads[bucket_of(hash)];
        while slot != NO_SLOT {
            self.set_filter_bit(self.hashes[usize::from(slot)]);
            slot = self.next[usize::from(slot)];
        }
    }

    /// The last anchor in the chain of a hash, which is the oldest, if no other has room.
    fn last_of_full_chain(&self, hash: u32) -> Option<u8> {
        let (mut last, mut length) = (None, 0);
        let mut slot = self.heads[bucket_of(hash)];
        while slot != NO_SLOT {
            (last, length) = (Some(slot), length + 1);
            slot = self.next[usize::from(slot)];
        }
        last.filter(|_| length >= CHAIN_MAX)
    }

    /// Removes the first matching anchor from the chain of a hash.
    fn unlink(&mut self, hash: u32, matches: impl Fn(u8, u32) -> bool) {
        let mut last = None;
        let mut slot = self.heads[bucket_of(hash)];
        while slot != NO_SLOT {
            steps::count(1);
            let after = self.next[usize::from(slot)];
            if matches(slot, self.hashes[usize::from(slot)]) {
                match last {
                    None => self.heads[bucket_of(hash)] = after,
                    Some(last) => self.next[usize::from(last)] = after,
                }
                self.clear_filter_bit(hash);
                return;
            }
            last = Some(slot);
            slot = after;
        }
    }
}

fn bucket_of(hash: u32) -> usize {
    (hash.wrapping_mul(GOLDEN_RATIO_32) >> (32 - BUCKETS.ilog2())) as usize
}

#[inline]
fn filter_bit(product: u32) -> u32 {
    product >> (32 - FILTER_BITS.ilog2())
}

/// Whether there may be an anchor with a hash. Takes the hash times [`GOLDEN_RATIO_32`],
/// because the next step of the rolling hash needs that product anyway.
#[inline]
pub(super) fn may_contain(filter: &AnchorFilter, product: u32) -> bool {
    let bit = filter_bit(product);
    filter[(bit / 32) as usize] >> (bit % 32) & 1 != 0
}
