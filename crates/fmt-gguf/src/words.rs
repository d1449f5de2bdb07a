//! What the blocks of all types are made of: little-endian words, and numbers that are exact as `f32`.

use tensor_core::f16;

/// Writes the elements of one block. Both slices have exactly the block's lengths.
pub(crate) type Undo = fn(&[u8], &mut [f32]);

pub(crate) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

pub(crate) fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// A whole number of a few bits as `f32`, which is exact.
pub(crate) fn float(number: i32) -> f32 {
    number as f32
}
