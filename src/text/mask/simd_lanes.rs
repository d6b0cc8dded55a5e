//! Bytes looked at sixteen at a time, a bit for each.

use wide::u8x16;

/// As many bytes as a word has bits.
pub const BLOCK_BYTES: usize = 64;
pub const LANES: usize = 16;

/// A bit for each byte of the block that `is` one.
#[inline]
pub fn match_bits(block: &[u8; BLOCK_BYTES], is: impl Fn(u8x16) -> u8x16) -> u64 {
    let (lanes, _) = block.as_chunks::<LANES>();
    let mut bits = 0;
    for (n, lane) in lanes.iter().enumerate() {
        bits |= u64::from(is(u8x16::new(*lane)).to_bitmask()) << (n * LANES);
    }
    bits
}

/// The bits from `start` on; there may be none.
#[inline]
pub fn bits_from(start: usize) -> u64 {
    u64::MAX.checked_shl(start as u32).unwrap_or(0)
}

/// From `first` to `last`.
#[inline]
pub fn in_range(lane: u8x16, first: u8, last: u8) -> u8x16 {
    let above = lane - u8x16::splat(first);
    above.min(u8x16::splat(last - first)).simd_eq(above)
}

#[inline]
pub fn equals(lane: u8x16, byte: u8) -> u8x16 {
    lane.simd_eq(u8x16::splat(byte))
}

#[inline]
pub fn is_letter(lane: u8x16) -> u8x16 {
    in_range(lane | u8x16::splat(0x20), b'a', b'z')
}

#[inline]
pub fn is_digit(lane: u8x16) -> u8x16 {
    in_range(lane, b'0', b'9')
}
