//! A constant second factor of FP32 products, in the order in which products read it: packed once, it is read from one end to the
//! other, whatever the number of rows it is multiplied with.

use tract_hir::prelude::TractResult;

use super::products::{BLOCK, DEPTH, PANEL, PART_ROWS, PER_STEP, Rows, aligned, packed};
use crate::cancelling::Pace;

/// Columns that the last panel has a multiple of: as many as the widest vectors have numbers.
const LANES: usize = 16;

/// A matrix of `depth` rows in panels of columns, the last of which may be narrower.
#[derive(Debug)]
pub(super) struct PackedMatrix {
    numbers: Vec<f32>,
    /// Where the first panel begins: vectors that are read whole stand in one line of the caches.
    start: usize,
    depth: usize,
    columns: usize,
}

impl PackedMatrix {
    /// Of a matrix whose columns stand beside each other, or, if it `is_turned`, one behind the other.
    pub(super) fn new(matrix: &[f32], depth: usize, columns: usize, is_turned: bool) -> Self {
        let (mut numbers, start) = aligned(depth * columns.next_multiple_of(LANES));
        for first in (0..columns).step_by(PANEL) {
            let width = width(columns, first);
            let panel = &mut numbers[start + first * depth..][..width * depth];
            let used = PANEL.min(columns - first);
            if is_turned {
                for (at, column) in matrix[first * depth..]
                    .chunks_exact(depth.max(1))
                    .take(used)
                    .enumerate()
                {
                    let to = panel.iter_mut().skip(at).step_by(width);
                    to.zip(column).for_each(|(to, number)| *to = *number);
                }
            } else {
                let lines = panel.chunks_exact_mut(width).zip(matrix.chunks_exact(columns));
                lines.for_each(|(to, line)| to[..used].copy_from_slice(&line[first..][..used]));
            }
        }
        Self {
            numbers,
            start,
            depth,
            columns,
        }
    }

    /// The panel that begins at a column.
    fn panel(&self, first: usize, width: usize) -> &[f32] {
        &self.numbers[self.start + first * self.depth..][..width * self.depth]
    }

    /// Writes rows of `depth` numbers times this matrix.
    ///
    /// # Errors
    /// As [`Pace::spend`].
    pub(super) fn multiply(&self, rows: &[f32], made: &mut [f32], pace: &mut Pace) -> TractResult<()> {
        if self.depth == 0 || self.columns == 0 {
            made.fill(0.0);
            return Ok(());
        }
        let parts = rows.chunks(PART_ROWS * self.depth);
        for (rows, made) in parts.zip(made.chunks_mut(PART_ROWS * self.columns)) {
            let product = Product {
                matrix: self,
                rows,
                made,
                pace,
            };
            pulp::Arch::new().dispatch(product)?;
        }
        Ok(())
    }
}

/// How wide the panel is that begins at a column.
fn width(columns: usize, first: usize) -> usize {
    PANEL.min((columns - first).next_multiple_of(LANES))
}

struct Product<'p> {
    matrix: &'p PackedMatrix,
    rows: &'p [f32],
    made: &'p mut [f32],
    pace: &'p mut Pace,
}

impl pulp::WithSimd for Product<'_> {
    type Output = TractResult<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> TractResult<()> {
        match self.rows.len() / self.matrix.depth {
            1 => self.few::<S, 1>(simd),
            2 => self.few::<S, 2>(simd),
            3 => self.few::<S, 3>(simd),
            4 => self.few::<S, 4>(simd),
            rows => self.many(simd, rows),
        }
    }
}

impl Product<'_> {
    /// Rows that are few are not packed: the matrix is read at the speed of memory, and the sums of all rows stay in registers.
    #[inline(always)]
    fn few<S: pulp::Simd, const ROWS: usize>(self, simd: S) -> TractResult<()> {
        let (depth, columns) = (self.matrix.depth, self.matrix.columns);
        let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &self.rows[row * depth..][..depth]);
        let mut sums = [[0.0; PANEL]; ROWS];
        for first in (0..columns).step_by(PANEL) {
            let width = width(columns, first);
            self.pace.spend((ROWS * depth * width) as u64 / PER_STEP + 1)?;
            let panel = self.matrix.panel(first, width);
            let mut vector = 0;
            while vector * S::F32_LANES < width {
                let column = vector * S::F32_LANES;
                match (width - column) / S::F32_LANES {
                    1 => add_rows::<S, ROWS, 1>(simd, &rows, panel, width, column, &mut sums),
                    2 => add_rows::<S, ROWS, 2>(simd, &rows, panel, width, column, &mut sums),
                    _ => add_rows::<S, ROWS, 3>(simd, &rows, panel, width, column, &mut sums),
                }
                vector += 3;
            }
            let used = PANEL.min(columns - first);
            for (made, sums) in self.made.chunks_exact_mut(columns).zip(&sums) {
                made[first..][..used].copy_from_slice(&sums[..used]);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn many<S: pulp::Simd>(self, simd: S, rows: usize) -> TractResult<()> {
        let (depth, columns) = (self.matrix.depth, self.matrix.columns);
        let blocks = rows.div_ceil(BLOCK);
        let weights = packed(rows, self.rows);
        let factor = Rows {
            weights: weights.as_chunks::<BLOCK>().0,
            bias: &vec![[0.0; BLOCK]; blocks],
            terms: depth,
        };
        let mut sums = vec![0.0; blocks * BLOCK * PANEL];
        let mut offsets: Vec<usize> = Vec::with_capacity(DEPTH);
        for first in (0..columns).step_by(PANEL) {
            let width = width(columns, first);
            self.pace.spend((rows * depth * width) as u64 / PER_STEP + 1)?;
            let panel = self.matrix.panel(first, width);
            let used = PANEL.min(columns - first);
            for term in (0..depth).step_by(DEPTH) {
                offsets.clear();
                offsets.extend((term..depth.min(term + DEPTH)).map(|term| term * width));
                factor.add(
                    simd,
                    term,
                    panel,
                    &offsets,
                    used.div_ceil(S::F32_LANES),
                    &mut sums,
                );
            }
            let lines = self.made.chunks_exact_mut(columns).zip(sums.chunks_exact(PANEL));
            lines.for_each(|(made, sums)| made[first..][..used].copy_from_slice(&sums[..used]));
        }
        Ok(())
    }
}

/// Some rows times some vectors of a panel.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    clippy::manual_memcpy,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn add_rows<S: pulp::Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    rows: &[&[f32]; ROWS],
    panel: &[f32],
    width: usize,
    column: usize,
    sums: &mut [[f32; PANEL]; ROWS],
) {
    let mut registers = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
    for (term, line) in panel.chunks_exact(width).enumerate() {
        let (vectors, _) = S::as_simd_f32s(&line[column..column + VECTORS * S::F32_LANES]);
        for row in 0..ROWS {
            let factor = simd.splat_f32s(rows[row][term]);
            for vector in 0..VECTORS {
                registers[row][vector] = simd.mul_add_e_f32s(factor, vectors[vector], registers[row][vector]);
            }
        }
    }
    for row in 0..ROWS {
        let (vectors, _) = S::as_mut_simd_f32s(&mut sums[row][column..column + VECTORS * S::F32_LANES]);
        for vector in 0..VECTORS {
            vectors[vector] = registers[row][vector];
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::cancelling::{Cancelled, while_cancelled};

    /// Small whole numbers, so that sums are exact in any order.
    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|at| (at * step % 17) as f32 - 8.0).collect()
    }

    #[test]
    fn products_are_those_of_plain_loops() {
        for rows in [1, 2, 3, 4, 5, 9, 1027] {
            for depth in [1, 7, 40, 600] {
                for columns in [1, 15, 16, 33, 48, 49, 130] {
                    if rows * depth * columns > 1 << 20 {
                        continue;
                    }
                    let (a, b) = (numbers(rows * depth, 7919), numbers(depth * columns, 31));
                    let at = |row: usize, column: usize| -> f32 {
                        let terms = (0..depth).map(|term| a[row * depth + term] * b[term * columns + column]);
                        terms.sum()
                    };
                    let expected: Vec<f32> = (0..rows * columns)
                        .map(|index| at(index / columns, index % columns))
                        .collect();
                    let mut turned = vec![0.0; b.len()];
                    for (index, number) in b.iter().enumerate() {
                        turned[index % columns * depth + index / columns] = *number;
                    }
                    for matrix in [
                        PackedMatrix::new(&b, depth, columns, false),
                        PackedMatrix::new(&turned, depth, columns, true),
                    ] {
                        let mut found = vec![f32::NAN; expected.len()];
                        matrix.multiply(&a, &mut found, &mut Pace::default()).unwrap();
                        assert_eq!(found, expected, "{rows}, {depth}, {columns}");
                    }
                }
            }
        }
    }

    #[test]
    fn products_of_nothing_are_zero() {
        let mut made = [f32::NAN; 6];
        let matrix = PackedMatrix::new(&[], 0, 3, false);
        matrix.multiply(&[], &mut made, &mut Pace::default()).unwrap();
        assert_eq!(made, [0.0; 6]);
    }

    #[test]
    fn long_products_end_with_their_request() {
        let matrix = PackedMatrix::new(&numbers(1 << 16, 7), 1 << 8, 1 << 8, false);
        for rows in [1, 256] {
            let (a, mut made) = (numbers(rows << 8, 5), vec![0.0; rows << 8]);
            let mut pace = Pace::default();
            let mut run = || (0..256 / rows * 4).try_for_each(|_| matrix.multiply(&a, &mut made, &mut pace));
            assert!(while_cancelled(&mut run).unwrap_err().is::<Cancelled>(), "{rows}");
        }
    }
}
