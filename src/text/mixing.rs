//! The constants and the multiplication that the unkeyed hashes of this module are
//! made with. They are for grouping equal texts cheaply, not against an adversary:
//! where a collision would matter, the texts are compared or [`super::HashKey`] is used.

/// 2^32 divided by the golden ratio, rounded to an odd number: multiplying by it
/// spreads the low bits over the high ones.
pub(super) const GOLDEN_RATIO_32: u32 = 0x9e37_79b1;

/// The same for 64 bits.
pub(super) const GOLDEN_RATIO_64: u64 = 0x9e37_79b9_7f4a_7c15;

/// Binary digits of pi: odd, with about as many ones as zeros.
pub(super) const PI_DIGITS: u64 = 0x1319_8a2e_0370_7345;

/// Multiplies two words and xors the halves of the product, so that every bit of both
/// factors affects every part of the result.
#[inline]
pub(super) const fn folded_multiply(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}
