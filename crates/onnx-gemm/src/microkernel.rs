//! FP32 microkernels: tiles of a product whose sums stay in vector registers.

use crate::pack::{BLOCK, copy_line};

/// The column count of a panel. A panel is computed for all rows before the next one, so that it stays in the
/// L1 and L2 caches.
pub(crate) const PANEL: usize = 48;

/// The number of terms that are summed before the sums are written back to memory: that many rows of a panel
/// fit the L2 cache.
pub(crate) const DEPTH: usize = 512;

/// The number of multiplications in one step of [`Pace`](crate::Pace).
pub(crate) const PER_STEP: u64 = 16;

/// A packed first factor.
pub(crate) struct Rows<'r> {
    /// The weights in the layout of [`pack_rows`](crate::pack_rows) for more than one row.
    pub(crate) weights: &'r [[f32; BLOCK]],
    /// The initial sums of each block of rows.
    pub(crate) bias: &'r [[f32; BLOCK]],
    pub(crate) terms: usize,
}

impl Rows<'_> {
    /// Adds the products of all rows with the first `vectors` vectors of a panel. There is one term for each
    /// offset; the first has index `term`.
    ///
    /// The row of a term is `values[offset..]`. `sums` has [`PANEL`] elements per row. If `term` is 0, the
    /// sums start from the bias.
    #[inline(always)]
    pub(crate) fn add<S: pulp::Simd>(
        &self,
        simd: S,
        term: usize,
        values: &[f32],
        offsets: &[usize],
        vectors: usize,
        sums: &mut [f32],
    ) {
        let lanes = S::F32_LANES;
        let (terms, blocks) = (self.terms, self.bias.len());
        let end = term + offsets.len();
        // AVX2 has 16 registers: 12 sums would leave too few for the factors, and one sum would be spilled
        // for each term.
        let most = if lanes >= 16 { 3 } else { 2 };
        let mut block = 0;
        while block < blocks {
            // 8 rows by 3 vectors take 24 of the 32 registers of AVX-512.
            let is_pair = lanes >= 16 && block + 1 < blocks;
            let count = if is_pair { 2 } else { 1 };
            let sums = &mut sums[block * BLOCK * PANEL..(block + count) * BLOCK * PANEL];
            let first_bias = if term == 0 {
                &self.bias[block..block + count]
            } else {
                &[]
            };
            let one = &self.weights[block * terms + term..block * terms + end];
            let tile = Tile {
                values,
                offsets,
                bias: first_bias,
            };
            let mut vector = 0;
            while vector < vectors {
                let column = vector * lanes;
                let left = vectors - vector;
                if is_pair {
                    let two = &self.weights[(block + 1) * terms + term..(block + 1) * terms + end];
                    match left {
                        1 => tile.add::<S, 2, 1>(simd, [one, two], sums, column),
                        2 => tile.add::<S, 2, 2>(simd, [one, two], sums, column),
                        _ => tile.add::<S, 2, 3>(simd, [one, two], sums, column),
                    }
                } else {
                    match left.min(most) {
                        1 => tile.add::<S, 1, 1>(simd, [one], sums, column),
                        2 => tile.add::<S, 1, 2>(simd, [one], sums, column),
                        _ => tile.add::<S, 1, 3>(simd, [one], sums, column),
                    }
                }
                vector += most;
            }
            block += count;
        }
    }
}

/// Copies the rows of a panel into one contiguous panel. Elements past the end of `values` are left
/// unchanged.
#[inline(always)]
#[allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "the copy is unrolled only where every index is a constant"
)]
pub(crate) fn copy_panel<S: pulp::Simd>(_: S, values: &[f32], offsets: &[usize], panel: &mut [[f32; PANEL]]) {
    let panel = &mut panel[..offsets.len()];
    for term in 0..offsets.len() {
        let from = &values[offsets[term]..];
        let Some(from) = from.first_chunk::<PANEL>() else {
            copy_line(from, &mut panel[term]);
            continue;
        };
        let (from, from_rest) = S::as_simd_f32s(from);
        let (to, to_rest) = S::as_mut_simd_f32s(&mut panel[term]);
        for vector in 0..from.len().min(to.len()) {
            to[vector] = from[vector];
        }
        to_rest.copy_from_slice(from_rest);
    }
}

/// The second factor of a tile.
struct Tile<'t> {
    values: &'t [f32],
    offsets: &'t [usize],
    /// The initial sums of each block of rows; empty to continue from the sums in memory.
    bias: &'t [[f32; BLOCK]],
}

impl Tile<'_> {
    /// Adds the product of `BLOCKS` blocks of rows and `VECTORS` vectors of a panel.
    #[inline(always)]
    #[allow(
        clippy::manual_memcpy,
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn add<S: pulp::Simd, const BLOCKS: usize, const VECTORS: usize>(
        &self,
        simd: S,
        weights: [&[[f32; BLOCK]]; BLOCKS],
        sums: &mut [f32],
        column: usize,
    ) {
        let width = VECTORS * S::F32_LANES;
        let mut registers = [[[simd.splat_f32s(0.0); VECTORS]; BLOCK]; BLOCKS];
        for block in 0..BLOCKS {
            for row in 0..BLOCK {
                if let Some(bias) = self.bias.get(block) {
                    registers[block][row] = [simd.splat_f32s(bias[row]); VECTORS];
                    continue;
                }
                let at = (block * BLOCK + row) * PANEL + column;
                let (vectors, _) = S::as_simd_f32s(&sums[at..at + width]);
                for vector in 0..VECTORS {
                    registers[block][row][vector] = vectors[vector];
                }
            }
        }
        for term in 0..self.offsets.len() {
            let at = self.offsets[term] + column;
            let (vectors, _) = S::as_simd_f32s(&self.values[at..at + width]);
            let mut values = [simd.splat_f32s(0.0); VECTORS];
            for vector in 0..VECTORS {
                values[vector] = vectors[vector];
            }
            for block in 0..BLOCKS {
                let weights = &weights[block][term];
                for row in 0..BLOCK {
                    let weight = simd.splat_f32s(weights[row]);
                    for vector in 0..VECTORS {
                        registers[block][row][vector] =
                            simd.mul_add_e_f32s(weight, values[vector], registers[block][row][vector]);
                    }
                }
            }
        }
        for block in 0..BLOCKS {
            for row in 0..BLOCK {
                let at = (block * BLOCK + row) * PANEL + column;
                let (vectors, _) = S::as_mut_simd_f32s(&mut sums[at..at + width]);
                for vector in 0..VECTORS {
                    vectors[vector] = registers[block][row][vector];
                }
            }
        }
    }
}

/// Writes the product of one row and `VECTORS` vectors of each term.
#[inline(always)]
#[allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
pub(crate) fn one_row<S: pulp::Simd, const VECTORS: usize>(
    simd: S,
    weights: &[f32],
    values: &[f32],
    offsets: &[usize],
    bias: f32,
    sums: &mut [f32],
    column: usize,
) {
    let width = VECTORS * S::F32_LANES;
    let mut registers = [simd.splat_f32s(bias); VECTORS];
    let offsets = &offsets[..weights.len()];
    for term in 0..weights.len() {
        let at = offsets[term] + column;
        let (vectors, _) = S::as_simd_f32s(&values[at..at + width]);
        let weight = simd.splat_f32s(weights[term]);
        for vector in 0..VECTORS {
            registers[vector] = simd.mul_add_e_f32s(weight, vectors[vector], registers[vector]);
        }
    }
    let (vectors, _) = S::as_mut_simd_f32s(&mut sums[column..column + width]);
    for vector in 0..VECTORS {
        vectors[vector] = registers[vector];
    }
}
