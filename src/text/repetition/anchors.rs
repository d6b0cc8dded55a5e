//! Hashes of pieces of the text, by which what was written before is found.

/// So many are kept: with [`super::period`]'s grid, those of 4 KiB.
pub(super) const ANCHORS_MAX: usize = 128;

/// Odd, with its bits well spread: that of the golden ratio.
pub(super) const FACTOR: u32 = 0x9e37_79b1;

/// The anchors in the ring by their hash, the latest of each: exact chains, so
/// that none is ever lost to another.
#[derive(Default)]
pub(super) struct Anchors {
    /// Allocated with the first anchor: most texts are short.
    table: Option<Box<AnchorTable>>,
}

struct AnchorTable {
    /// By a few more bits of the hash than a bucket has: whether there is any
    /// anchor at all. Nearly always there is none, and one look says so.
    filter: AnchorFilter,
    heads: [u8; BUCKETS],
    next: [u8; ANCHORS_MAX],
    hashes: [u32; ANCHORS_MAX],
}

const BUCKETS: usize = 64;
/// As many as a word a bucket has: one in 16 is set.
const FILTER_BITS: u32 = 2_048;
/// Bits by the top bits of a hash's product.
pub(super) type AnchorFilter = [u32; FILTER_BITS as usize / 32];
const EMPTY_FILTER: AnchorFilter = [0; FILTER_BITS as usize / 32];
/// No anchor; they are fewer.
const NO_SLOT: u8 = u8::MAX;

impl Anchors {
    #[inline]
    pub fn filter(&self) -> &AnchorFilter {
        self.table
            .as_ref()
            .map_or(&EMPTY_FILTER, |table| &table.filter)
    }

    /// The anchor (modulo [`ANCHORS`]) with this hash.
    pub fn find(&self, hash: u32) -> Option<usize> {
        let table = self.table.as_ref()?;
        let mut slot = table.heads[bucket_of(hash)];
        while slot != NO_SLOT {
            if table.hashes[usize::from(slot)] == hash {
                return Some(usize::from(slot));
            }
            slot = table.next[usize::from(slot)];
        }
        None
    }

    /// Takes the place of the anchor that has left the ring, and of an earlier
    /// one with the same hash.
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
        table.hashes[slot] = hash;
        table.next[slot] = table.heads[bucket_of(hash)];
        table.heads[bucket_of(hash)] = slot as u8;
        table.set_filter_bit(hash);
    }

    pub fn heap_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, |_| size_of::<AnchorTable>())
    }
}

impl AnchorTable {
    fn set_filter_bit(&mut self, hash: u32) {
        let bit = hash.wrapping_mul(FACTOR) >> (32 - FILTER_BITS.ilog2());
        self.filter[(bit / 32) as usize] |= 1 << (bit % 32);
    }

    /// An anchor with this hash has left its chain, in which others may have its
    /// bit.
    fn clear_filter_bit(&mut self, hash: u32) {
        let bit = hash.wrapping_mul(FACTOR) >> (32 - FILTER_BITS.ilog2());
        self.filter[(bit / 32) as usize] &= !(1 << (bit % 32));
        let mut slot = self.heads[bucket_of(hash)];
        while slot != NO_SLOT {
            self.set_filter_bit(self.hashes[usize::from(slot)]);
            slot = self.next[usize::from(slot)];
        }
    }

    /// Takes the first anchor that is meant out of the chain of a hash.
    fn unlink(&mut self, hash: u32, matches: impl Fn(u8, u32) -> bool) {
        let mut last = None;
        let mut slot = self.heads[bucket_of(hash)];
        while slot != NO_SLOT {
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
    (hash.wrapping_mul(FACTOR) >> (32 - BUCKETS.ilog2())) as usize
}

/// Whether there may be an anchor with the hash that this is the product of. (The
/// product is what rolling the hash on begins with.)
#[inline]
pub(super) fn may_contain(filter: &AnchorFilter, product: u32) -> bool {
    let bit = product >> (32 - FILTER_BITS.ilog2());
    filter[(bit / 32) as usize] >> (bit % 32) & 1 != 0
}
