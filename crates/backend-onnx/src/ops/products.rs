//! Products of a matrix of weights with what a table of places picks out of an image: all of a convolution's arithmetic.
//!
//! Row `k` of the second matrix is a run of the image that begins at the `k`-th place of the table, so that no such matrix is
//! made. A panel of columns is computed for all rows before the next one, and stays in the nearest caches meanwhile.

use tract_hir::prelude::TractResult;

use crate::cancelling::Pace;

/// Rows of weights that stand together.
pub(super) const BLOCK: usize = 4;

/// Columns that are computed for all rows before the next ones.
pub(super) const PANEL: usize = 48;

/// Columns of a convolution with one row.
const RUN: usize = 2048;

/// How many values behind the last column may be read, with one row.
pub(super) const SLACK: usize = PANEL;

/// Terms that are summed up before the sums go back to memory: so many rows of a panel fit into the second cache.
pub(super) const DEPTH: usize = 512;

/// From so many blocks of weights on, a panel is copied together first: its rows are far apart in the image, and read for each
/// block.
const COPIED_FROM: usize = 5;

/// Multiplications that take as long as a step of [`Pace`].
pub(super) const PER_STEP: u64 = 16;

/// Whether this processor has vectors for which [`Products`] is worth it.
pub(crate) fn are_quick() -> bool {
    struct Lanes;
    impl pulp::WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    pulp::Arch::new().dispatch(Lanes) >= 8
}

/// The weights of `rows` rows as [`Products`] reads them: [`BLOCK`] rows together, their numbers for a term beside each other.
/// One row stays as it is.
pub(super) fn packed(rows: usize, weights: &[f32]) -> Vec<f32> {
    if rows == 1 {
        return weights.to_vec();
    }
    let depth = weights.len() / rows.max(1);
    let mut packed = vec![0.0; packed_len(rows, depth)];
    let blocks = packed.chunks_exact_mut((BLOCK * depth).max(1));
    for (block, weights) in blocks.zip(weights.chunks((BLOCK * depth).max(1))) {
        let (terms, _) = block.as_chunks_mut::<BLOCK>();
        if let Some([first, second, third, fourth]) = four_rows(weights, depth) {
            for (term, numbers) in terms.iter_mut().enumerate() {
                *numbers = [first[term], second[term], third[term], fourth[term]];
            }
            continue;
        }
        for (row, weights) in weights.chunks_exact(depth.max(1)).enumerate() {
            for (numbers, weight) in terms.iter_mut().zip(weights) {
                numbers[row] = *weight;
            }
        }
    }
    packed
}

/// The weights that [`packed`] was given.
pub(super) fn unpacked(rows: usize, packed: &[f32]) -> Vec<f32> {
    if rows == 1 {
        return packed.to_vec();
    }
    let depth = packed.len() / rows.next_multiple_of(BLOCK).max(1);
    let (terms, _) = packed.as_chunks::<BLOCK>();
    let weight = |at: usize| {
        let (row, term) = (at / depth, at % depth);
        terms[row / BLOCK * depth + term][row % BLOCK]
    };
    (0..rows * depth).map(weight).collect()
}

/// The same of weights whose rows stand beside each other: `rows` numbers for each term.
pub(super) fn packed_columns(rows: usize, weights: &[f32]) -> Vec<f32> {
    let depth = weights.len() / rows.max(1);
    // More than one row, so that nothing behind the last column is read.
    let mut packed = vec![0.0; packed_len(rows.max(2), depth)];
    let blocks = packed.chunks_exact_mut((BLOCK * depth).max(1));
    for (block, first) in blocks.zip((0..rows).step_by(BLOCK)) {
        let (terms, _) = block.as_chunks_mut::<BLOCK>();
        for (numbers, weights) in terms.iter_mut().zip(weights.chunks_exact(rows)) {
            match weights[first..].first_chunk::<BLOCK>() {
                Some(four) => *numbers = *four,
                None => numbers[..rows - first].copy_from_slice(&weights[first..]),
            }
        }
    }
    packed
}

/// The rows of a block that is full.
fn four_rows(weights: &[f32], depth: usize) -> Option<[&[f32]; BLOCK]> {
    let (first, rest) = weights.split_at_checked(depth)?;
    let (second, rest) = rest.split_at_checked(depth)?;
    let (third, rest) = rest.split_at_checked(depth)?;
    Some([first, second, third, rest.get(..depth)?])
}

/// Copies some numbers; quicker than the usual way for the few of a line.
#[inline(always)]
pub(super) fn copy_line(from: &[f32], to: &mut [f32]) {
    const FEW: usize = 256;
    let count = from.len().min(to.len());
    let (from, to) = (&from[..count], &mut to[..count]);
    if count > FEW {
        to.copy_from_slice(from);
        return;
    }
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}

/// So many zeros, and where they begin in what is given: where whole vectors stand in one line of the caches each.
pub(super) fn aligned(count: usize) -> (Vec<f32>, usize) {
    const LINE: usize = 64 / size_of::<f32>();
    let numbers = vec![0.0f32; count + LINE - 1];
    let start = numbers.as_ptr().align_offset(64).min(LINE - 1);
    (numbers, start)
}

/// How many numbers [`packed`] gives.
pub(super) fn packed_len(rows: usize, depth: usize) -> usize {
    match rows {
        1 => depth,
        rows => rows.next_multiple_of(BLOCK) * depth,
    }
}

/// Sums for each row and each of `columns` columns: its bias, and `weight * values[offset + column]` for each term.
pub(super) struct Products<'p, F> {
    pub(super) rows: usize,
    /// As [`packed`] gives them.
    pub(super) weights: &'p [f32],
    /// For each row.
    pub(super) bias: &'p [f32],
    pub(super) values: &'p [f32],
    /// Where each term's values begin.
    pub(super) offsets: &'p [usize],
    pub(super) columns: usize,
    /// So that it ends soon after its run.
    pub(super) pace: &'p mut Pace,
    /// Takes what is done: the first column, the number of columns, the sums, and how far apart the rows are in these.
    pub(super) take: F,
}

impl<F: FnMut(usize, usize, &mut [f32], usize)> Products<'_, F> {
    /// # Errors
    /// As [`Pace::spend`].
    pub(super) fn run(self) -> TractResult<()> {
        pulp::Arch::new().dispatch(self)
    }

    /// One row, for which nothing is gained by keeping panels.
    #[inline(always)]
    fn one_row<S: pulp::Simd>(mut self, simd: S) -> TractResult<()> {
        const VECTORS: usize = 4;
        let lanes = S::F32_LANES;
        let bias = self.bias[0];
        let terms = self.offsets.len().min(self.weights.len());
        let (weights, offsets) = (&self.weights[..terms], &self.offsets[..terms]);
        let stride = RUN.min(self.columns.next_multiple_of(VECTORS * lanes));
        let mut sums = vec![0.0; stride];
        let mut first = 0;
        while first < self.columns {
            let count = RUN.min(self.columns - first);
            self.pace.spend((count * terms) as u64 / PER_STEP + 1)?;
            let values = &self.values[first..];
            let mut column = 0;
            while column < count {
                match (count - column).div_ceil(lanes) {
                    1 => filter::<S, 1>(simd, weights, values, offsets, bias, &mut sums, column),
                    2 => filter::<S, 2>(simd, weights, values, offsets, bias, &mut sums, column),
                    3 => filter::<S, 3>(simd, weights, values, offsets, bias, &mut sums, column),
                    _ => filter::<S, VECTORS>(simd, weights, values, offsets, bias, &mut sums, column),
                }
                column += VECTORS * lanes;
            }
            (self.take)(first, count, &mut sums, stride);
            first += count;
        }
        Ok(())
    }
}

impl<F: FnMut(usize, usize, &mut [f32], usize)> pulp::WithSimd for Products<'_, F> {
    type Output = TractResult<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) -> TractResult<()> {
        if self.rows == 1 {
            return self.one_row(simd);
        }
        let lanes = S::F32_LANES;
        let terms = self.offsets.len();
        let blocks = self.rows.div_ceil(BLOCK);
        let mut bias = vec![[0.0; BLOCK]; blocks];
        bias.as_flattened_mut()[..self.rows].copy_from_slice(self.bias);
        let rows = Rows {
            weights: self.weights.as_chunks::<BLOCK>().0,
            bias: &bias,
            terms,
        };
        let mut sums = vec![0.0; blocks * BLOCK * PANEL];
        let (mut copied, start) = aligned(terms.min(DEPTH) * PANEL);
        let (panel, _) = copied[start..].as_chunks_mut::<PANEL>();
        let panel_offsets: Vec<usize> = (0..panel.len()).map(|term| term * PANEL).collect();
        let farthest = self.offsets.iter().copied().max().unwrap_or(0);
        let mut first = 0;
        while first < self.columns {
            let count = PANEL.min(self.columns - first);
            self.pace
                .spend((PANEL * self.rows * terms) as u64 / PER_STEP + 1)?;
            let vectors = count.div_ceil(lanes);
            let is_copied = blocks >= COPIED_FROM || farthest + first + PANEL > self.values.len();
            let mut term = 0;
            while term < terms {
                let end = terms.min(term + DEPTH);
                let mut offsets = &self.offsets[term..end];
                let mut values = &self.values[first..];
                if is_copied {
                    copy(simd, values, offsets, panel);
                    offsets = &panel_offsets[..offsets.len()];
                    values = panel.as_flattened();
                }
                rows.add(simd, term, values, offsets, vectors, &mut sums);
                term = end;
            }
            (self.take)(first, count, &mut sums, PANEL);
            first += count;
        }
        Ok(())
    }
}

/// The first factor of a product: blocks of rows.
pub(super) struct Rows<'r> {
    /// As [`packed`] gives them, of more than one row.
    pub(super) weights: &'r [[f32; BLOCK]],
    /// One block of numbers for each block of rows.
    pub(super) bias: &'r [[f32; BLOCK]],
    pub(super) terms: usize,
}

impl Rows<'_> {
    /// Adds the products of all rows with so many vectors of a panel, for the terms from `term` on that have an offset. The sums of a
    /// row are [`PANEL`] numbers; for the first term they begin with the bias.
    #[inline(always)]
    pub(super) fn add<S: pulp::Simd>(
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
        // Of the sixteen narrower vectors, twelve sums leave too few for what is multiplied: one sum would go to memory and back for
        // each term.
        let most = if lanes >= 16 { 3 } else { 2 };
        let mut block = 0;
        while block < blocks {
            // Two blocks and three vectors need more registers than there are of the narrower vectors.
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

/// Rows of one part of a product: for each row, a panel of sums is kept.
pub(super) const PART_ROWS: usize = 1 << 10;

/// A product that is computed in parts, so that it takes little memory beside its factors.
pub(super) struct InParts<'p> {
    pub(super) rows: usize,
    /// As [`packed_columns`] gives them, or [`packed`] of more than one row.
    pub(super) weights: &'p [f32],
    pub(super) values: &'p [f32],
    pub(super) offsets: &'p [usize],
    pub(super) columns: usize,
}

impl InParts<'_> {
    /// Gives sums: their row, the first of their columns, and the numbers.
    ///
    /// # Errors
    /// [`Cancelled`](crate::cancelling::Cancelled).
    pub(super) fn run(
        &self,
        pace: &mut Pace,
        give: &mut impl FnMut(usize, usize, &[f32]),
    ) -> TractResult<()> {
        let depth = self.offsets.len();
        for first_row in (0..self.rows).step_by(PART_ROWS) {
            let rows = PART_ROWS.min(self.rows - first_row);
            Products {
                // One row has another order, and needs more values than there are.
                rows: rows.max(2),
                weights: &self.weights[first_row * depth..],
                bias: &vec![0.0; rows.max(2)],
                values: self.values,
                offsets: self.offsets,
                columns: self.columns,
                pace: &mut *pace,
                take: |first, count, sums: &mut [f32], stride| {
                    for (row, sums) in sums.chunks_exact(stride).take(rows).enumerate() {
                        give(first_row + row, first, &sums[..count]);
                    }
                },
            }
            .run()?;
        }
        Ok(())
    }
}

/// Copies the rows of a panel together. Columns behind the last one may be left as they are.
#[inline(always)]
#[allow(clippy::manual_memcpy, clippy::needless_range_loop, reason = "as below")]
fn copy<S: pulp::Simd>(_: S, values: &[f32], offsets: &[usize], panel: &mut [[f32; PANEL]]) {
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

/// Some blocks of rows times some vectors of a panel.
struct Tile<'t> {
    values: &'t [f32],
    offsets: &'t [usize],
    /// With which the sums begin; empty if they go on.
    bias: &'t [[f32; BLOCK]],
}

impl Tile<'_> {
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

/// One row times some vectors.
#[inline(always)]
#[allow(clippy::manual_memcpy, clippy::needless_range_loop, reason = "as above")]
fn filter<S: pulp::Simd, const VECTORS: usize>(
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::cancelling::{Cancelled, while_cancelled};

    /// Small whole numbers, so that sums are exact in any order.
    fn number(index: usize) -> f32 {
        (index * 7919 % 17) as f32 - 8.0
    }

    fn check(rows: usize, depth: usize, columns: usize, slack: usize) {
        let weights: Vec<f32> = (0..rows * depth).map(number).collect();
        let bias: Vec<f32> = (0..rows).map(|row| number(row + 3)).collect();
        let offsets: Vec<usize> = (0..depth).map(|term| term * 5 % 97).collect();
        let farthest = offsets.iter().max().copied().unwrap_or(0);
        let values: Vec<f32> = (0..farthest + columns + slack)
            .map(|index| number(index * 3 + 1))
            .collect();
        let mut found = vec![f32::NAN; rows * columns];
        Products {
            rows,
            weights: &packed(rows, &weights),
            bias: &bias,
            values: &values,
            offsets: &offsets,
            columns,
            pace: &mut Pace::default(),
            take: |first: usize, count: usize, sums: &mut [f32], stride: usize| {
                for row in 0..rows {
                    found[row * columns + first..][..count].copy_from_slice(&sums[row * stride..][..count]);
                }
            },
        }
        .run()
        .unwrap();
        for row in 0..rows {
            for column in 0..columns {
                let terms = 0..depth;
                let sum = terms.fold(bias[row], |sum, term| {
                    sum + weights[row * depth + term] * values[offsets[term] + column]
                });
                assert_eq!(
                    found[row * columns + column],
                    sum,
                    "row {row}, column {column} of {rows} times {depth} times {columns}"
                );
            }
        }
    }

    #[test]
    fn parts_are_the_whole() {
        for (rows, depth, columns) in [(1, 3, 5), (PART_ROWS + 1, 2, 7), (3, 1 << 18, 2 * PANEL + 5)] {
            let weights: Vec<f32> = (0..rows * depth).map(number).collect();
            let values: Vec<f32> = (0..depth * columns).map(|index| number(index * 3 + 1)).collect();
            let offsets: Vec<usize> = (0..depth).map(|term| term * columns).collect();
            let product = InParts {
                rows,
                weights: &packed_columns(rows, &weights),
                values: &values,
                offsets: &offsets,
                columns,
            };
            let mut found = vec![f32::NAN; rows * columns];
            let give = &mut |row: usize, first: usize, sums: &[f32]| {
                found[row * columns + first..][..sums.len()].copy_from_slice(sums);
            };
            product.run(&mut Pace::default(), give).unwrap();
            for (at, &sum) in found.iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let expected: f32 = (0..depth)
                    .map(|term| weights[term * rows + row] * values[term * columns + column])
                    .sum();
                assert_eq!(
                    sum, expected,
                    "row {row}, column {column} of {rows} times {depth} times {columns}"
                );
            }
        }
    }

    #[test]
    fn products_end_with_their_request() {
        for rows in [1, 2, 7] {
            let (depth, columns) = (1 << 10, 1 << 12);
            let product = || {
                Products {
                    rows,
                    weights: &vec![0.0; packed_len(rows, depth)],
                    bias: &vec![0.0; rows],
                    values: &vec![0.0; columns + SLACK],
                    offsets: &vec![0; depth],
                    columns,
                    pace: &mut Pace::default(),
                    take: |_, _, _: &mut [f32], _| {},
                }
                .run()
            };
            product().unwrap();
            assert!(while_cancelled(product).unwrap_err().is::<Cancelled>(), "{rows}");
        }
    }

    #[test]
    fn columns_are_packed_as_rows_are() {
        for rows in [2, 3, 4, 5, 9] {
            for depth in [1, 2, 7] {
                let weights: Vec<f32> = (0..rows * depth).map(number).collect();
                let turned: Vec<f32> = (0..rows * depth)
                    .map(|at| weights[at % rows * depth + at / rows])
                    .collect();
                assert_eq!(packed_columns(rows, &turned), packed(rows, &weights));
            }
        }
        assert_eq!(
            packed_columns(1, &[5.0, 7.0]),
            [5.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0]
        );
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for rows in [1, 2, 4, 5, 8, 9, 16, 17, 21, 32] {
            for depth in [1, 9, DEPTH, DEPTH + 7] {
                for columns in [1, 7, 8, 17, 47, 48, 49, 130] {
                    check(rows, depth, columns, SLACK);
                    if rows > 1 {
                        check(rows, depth, columns, 0);
                    }
                }
            }
        }
        check(1, 9, 2 * RUN + 5, SLACK);
        check(6, 27, 1000, 0);
    }
}
