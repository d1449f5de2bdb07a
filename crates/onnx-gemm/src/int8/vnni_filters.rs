//! Integer convolution by AVX-512 VNNI: a lane is a position, so that an instruction adds a quad of the image
//! times a quad of a filter to each of 16 sums.
//!
//! Filters are `i16`, because 8-bit numbers minus a zero point have 9 bits. A shift per row reduces the
//! filters to 8 bits; the sum of each window corrects the sums for the shift.
#![allow(
    unsafe_code,
    reason = "a function for a target feature is called once the feature is detected"
)]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_mullo_epi32, _mm512_set1_epi32,
};

use crate::int8::{
    filter_block::{Block, HEIGHT, LANES, Output, TERMS},
    vnni::Vnni,
};

/// The maximum number of vectors in a tile. With 8 rows, 24 of the 32 registers hold sums.
const VECTORS: usize = 3;

/// Filters in 8 bits.
#[derive(Debug)]
pub(super) struct ByteFilters {
    /// The terms after the shift, in the order of the blocks.
    pub(super) terms: Vec<[i8; TERMS]>,
    /// The number subtracted from the terms of each row.
    pub(super) shifts: Vec<i32>,
}

impl ByteFilters {
    /// Shifts filters to 8 bits. Returns `None` if the terms of a row and 0 span more than 8 bits.
    pub(super) fn new(blocks: &[[i16; TERMS]], height: usize, steps: usize) -> Option<Self> {
        let mut made = Self {
            terms: vec![[0; TERMS]; blocks.len()],
            shifts: Vec::with_capacity(blocks.len() / steps),
        };
        let pairs = blocks.chunks_exact(height * steps);
        for (block, made_terms) in pairs.zip(made.terms.chunks_exact_mut(height * steps)) {
            for row in 0..height {
                let filter = block.iter().skip(row).step_by(height);
                // Terms that a window lacks are 0 in the filter, and are shifted like all others.
                let (least, greatest) = filter.clone().flatten().fold((0, 0), |(least, greatest), &term| {
                    (term.min(least), term.max(greatest))
                });
                let is_plain = least >= i8::MIN.into() && greatest <= i8::MAX.into();
                let shift = if is_plain {
                    0
                } else {
                    greatest - i16::from(i8::MAX)
                };
                if least - shift < i8::MIN.into() {
                    return None;
                }
                made.shifts.push(shift.into());
                for (to, from) in made_terms.iter_mut().skip(row).step_by(height).zip(filter) {
                    *to = from.map(|term| (term - shift) as i8);
                }
            }
        }
        Some(made)
    }

    /// Writes the sums of a block whose rows have these shifts.
    pub(super) fn compute(&self, _: Vnni, block: &Block<'_, i8>, shifts: &[i32], output: &mut Output<'_>) {
        // SAFETY: a `Vnni` is created only after these features were detected.
        unsafe { compute(block, shifts, output) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn compute(block: &Block<'_, i8>, shifts: &[i32], output: &mut Output<'_>) {
    let vectors = block.positions / LANES;
    let is_shifted = shifts[block.rows.clone()].iter().any(|&shift| shift != 0);
    let mut vector = 0;
    while vector < vectors {
        let count = VECTORS.min(vectors - vector);
        match (count, is_shifted) {
            (1, true) => shifted_rows::<1>(block, vector * LANES, shifts, output),
            (2, true) => shifted_rows::<2>(block, vector * LANES, shifts, output),
            (_, true) => shifted_rows::<VECTORS>(block, vector * LANES, shifts, output),
            (1, false) => rows::<1>(block, vector * LANES, output),
            (2, false) => rows::<2>(block, vector * LANES, output),
            (_, false) => rows::<VECTORS>(block, vector * LANES, output),
        }
        vector += count;
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn rows<const COUNT: usize>(block: &Block<'_, i8>, position: usize, output: &mut Output<'_>) {
    let (mut row, end) = (block.rows.start, block.rows.end);
    while row < end {
        row = match end - row {
            1 => tile::<1, COUNT>(block, row, position, output),
            2 | 3 => tile::<2, COUNT>(block, row, position, output),
            4..HEIGHT => tile::<4, COUNT>(block, row, position, output),
            _ => tile::<HEIGHT, COUNT>(block, row, position, output),
        };
    }
}

/// Writes the sums of all rows, and corrects them for the shifts.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn shifted_rows<const COUNT: usize>(
    block: &Block<'_, i8>,
    position: usize,
    shifts: &[i32],
    output: &mut Output<'_>,
) {
    rows::<COUNT>(block, position, output);
    let ones = _mm512_set1_epi32(i32::from_le_bytes([1; TERMS]));
    let mut windows = [_mm512_set1_epi32(0); COUNT];
    for &offset in block.offsets {
        let (quads, _) = block.image[offset + position..][..COUNT * LANES].as_chunks::<LANES>();
        for vector in 0..COUNT {
            windows[vector] = _mm512_dpbusd_epi32(windows[vector], pulp::cast(quads[vector]), ones);
        }
    }
    for row in block.rows.clone() {
        let shift = _mm512_set1_epi32(shifts[row]);
        let to = &mut output.sums[row * output.stride + position..][..COUNT * LANES];
        for (to, window) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(windows) {
            let sum: __m512i = pulp::cast(*to);
            *to = pulp::cast(_mm512_add_epi32(sum, _mm512_mullo_epi32(window, shift)));
        }
    }
}

/// Writes the sums of `ROWS` rows and `COUNT` vectors of positions. Returns the next row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn tile<const ROWS: usize, const COUNT: usize>(
    block: &Block<'_, i8>,
    row: usize,
    position: usize,
    output: &mut Output<'_>,
) -> usize {
    let mut sums: [[__m512i; COUNT]; ROWS] = [[_mm512_set1_epi32(0); COUNT]; ROWS];
    for at in 0..ROWS {
        sums[at] = [_mm512_set1_epi32(block.first[row + at]); COUNT];
    }
    for (filters, &offset) in block.filters.chunks_exact(block.height).zip(block.offsets) {
        let (quads, _) = block.image[offset + position..][..COUNT * LANES].as_chunks::<LANES>();
        let filters = &filters[row..][..ROWS];
        let mut vectors = [_mm512_set1_epi32(0); COUNT];
        for vector in 0..COUNT {
            vectors[vector] = pulp::cast(quads[vector]);
        }
        for at in 0..ROWS {
            let filter = _mm512_set1_epi32(i32::from_le_bytes(filters[at].map(|term| term as u8)));
            for vector in 0..COUNT {
                sums[at][vector] = _mm512_dpbusd_epi32(sums[at][vector], vectors[vector], filter);
            }
        }
    }
    for at in 0..ROWS {
        let to = &mut output.sums[(row + at) * output.stride + position..][..COUNT * LANES];
        let (to, _) = to.as_chunks_mut::<LANES>();
        for vector in 0..COUNT {
            to[vector] = pulp::cast(sums[at][vector]);
        }
    }
    row + ROWS
}
