//! Helpers for decoding blocks of every type: little-endian words, and integers that are exact as `f32`.

use tensor_core::f16;

/// A function that decodes one block. The slices have exactly the length of a block, in bytes and in
/// elements.
pub(crate) type Decode = fn(&[u8], &mut [f32]);

pub(crate) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

pub(crate) fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Converts a small integer to `f32`, which is exact.
pub(crate) fn float(number: i32) -> f32 {
    number as f32
}
