//! Bytes looked at sixteen at a time, a bit for each.

use wide::i8x16;

/// As many bytes as a word has bits.
pub const BLOCK: usize = 64;
const LANES: usize = 16;

/// A bit for each byte of the block that `is` one.
#[inline]
pub fn bits(block: &[u8; BLOCK], is: impl Fn(i8x16) -> i8x16) -> u64 {
    let (lanes, _) = block.as_chunks::<LANES>();
    let mut bits = 0;
    for (n, lane) in lanes.iter().enumerate() {
        let lane = i8x16::new(lane.map(u8::cast_signed));
        bits |= u64::from(is(lane).to_bitmask()) << (n * LANES);
    }
    bits
}

/// The bits from `start` on; there may be none.
#[inline]
pub fn from(start: usize) -> u64 {
    u64::MAX.checked_shl(start as u32).unwrap_or(0)
}

/// From `first` to `last`: moved up so that they are the largest of all, which takes
/// one comparison.
#[inline]
pub fn between(lane: i8x16, first: u8, last: u8) -> i8x16 {
    let up = i8::MAX.wrapping_sub_unsigned(last);
    let below = i8::MAX.wrapping_sub_unsigned(last - first + 1);
    (lane + i8x16::splat(up)).simd_gt(i8x16::splat(below))
}

#[inline]
pub fn equal(lane: i8x16, byte: u8) -> i8x16 {
    lane.simd_eq(i8x16::splat(byte.cast_signed()))
}

#[inline]
pub fn letter(lane: i8x16) -> i8x16 {
    between(lane | i8x16::splat(0x20), b'a', b'z')
}

#[inline]
pub fn digit(lane: i8x16) -> i8x16 {
    between(lane, b'0', b'9')
}
