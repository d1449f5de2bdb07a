//! A constant second factor of FP32 products, packed once in the order in which all products read it.

use crate::{
    Pace,
    indirect::BLOCK_ROWS,
    microkernel::{DEPTH, PANEL, PER_STEP, Rows},
    pack::{BLOCK, aligned, pack_rows},
    shapes::{expect_matrix, expect_rows},
};

/// Multiple of columns to which the last panel is filled up: the lanes of the widest vectors.
const LANES: usize = 16;

/// How the elements of a matrix follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The elements of a row are contiguous.
    RowMajor,
    /// The elements of a column are contiguous: the matrix is given as the rows of its transpose.
    ColumnMajor,
}

/// A second factor of FP32 products in panels of 48 columns, row-major within a panel. The last panel is filled up with zeros to a multiple
/// of 16 columns.
///
/// ```
/// use onnx_gemm::{Order, PackedMatrix, Unpaced};
///
/// let b = PackedMatrix::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], Order::RowMajor);
/// let mut c = [0.0; 3];
/// b.multiply(&[1.0, 10.0], &mut c, &mut Unpaced).unwrap();
/// assert_eq!(c, [41.0, 52.0, 63.0]);
/// ```
#[derive(Debug)]
pub struct PackedMatrix {
    numbers: Vec<f32>,
    /// The index of the first panel, which is aligned to a cache line.
    start: usize,
    depth: usize,
    columns: usize,
}

impl PackedMatrix {
    /// Packs a matrix of `depth` rows and `columns` columns.
    ///
    /// # Panics
    /// If `matrix` has not `depth * columns` elements.
    #[must_use]
    pub fn new(matrix: &[f32], [depth, columns]: [usize; 2], order: Order) -> Self {
        expect_matrix("b", matrix.len(), [depth, columns]);
        let (mut numbers, start) = aligned(depth * columns.next_multiple_of(LANES));
        for first in (0..columns).step_by(PANEL) {
            let width = width(columns, first);
            let panel = &mut numbers[start + first * depth..][..width * depth];
            let used = PANEL.min(columns - first);
            if order == Order::ColumnMajor {
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

    /// Rows of the matrix, which are the columns of the first factor.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The panel that begins at column `first`.
    fn panel(&self, first: usize, width: usize) -> &[f32] {
        &self.numbers[self.start + first * self.depth..][..width * self.depth]
    }

    /// Writes the product of the row-major matrix `a` with this one to `c`, row-major too. The number of rows is that of `c`.
    ///
    /// # Errors
    /// As [`Pace::spend`].
    ///
    /// # Panics
    /// If `a` and `c` have not the same number of whole rows, of [`depth`](Self::depth) and of [`columns`](Self::columns) elements.
    pub fn multiply<P: Pace>(&self, a: &[f32], c: &mut [f32], pace: &mut P) -> Result<(), P::Stopped> {
        expect_rows(a.len(), self.depth, c.len(), self.columns);
        if self.depth == 0 {
            c.fill(0.0);
        }
        if self.depth == 0 || self.columns == 0 {
            return Ok(());
        }
        self.multiply_columns(a, c, [self.columns, 0], pace)
    }

    /// Writes the product to some columns of the row-major matrix `c` of `stride` columns: those from `column` on. Neither depth nor columns
    /// may be 0.
    pub(crate) fn multiply_columns<P: Pace>(
        &self,
        a: &[f32],
        c: &mut [f32],
        [stride, column]: [usize; 2],
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let blocks = a.chunks(BLOCK_ROWS * self.depth);
        for (a, c) in blocks.zip(c.chunks_mut(BLOCK_ROWS * stride)) {
            let product = Product {
                matrix: self,
                a,
                c,
                stride,
                column,
                pace,
            };
            pulp::Arch::new().dispatch(product)?;
        }
        Ok(())
    }
}

/// The width of the panel that begins at column `first`.
fn width(columns: usize, first: usize) -> usize {
    PANEL.min((columns - first).next_multiple_of(LANES))
}

struct Product<'p, P> {
    matrix: &'p PackedMatrix,
    a: &'p [f32],
    c: &'p mut [f32],
    /// Columns of `c`, and the first one that is written.
    stride: usize,
    column: usize,
    pace: &'p mut P,
}

impl<P: Pace> pulp::WithSimd for Product<'_, P> {
    type Output = Result<(), P::Stopped>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> Result<(), P::Stopped> {
        match self.a.len() / self.matrix.depth {
            1 => self.few::<S, 1>(simd),
            2 => self.few::<S, 2>(simd),
            3 => self.few::<S, 3>(simd),
            4 => self.few::<S, 4>(simd),
            rows => self.many(simd, rows),
        }
    }
}

impl<P: Pace> Product<'_, P> {
    /// Few rows, which are not packed: the sums of all of them stay in registers, and the matrix is read at the speed of memory.
    #[inline(always)]
    fn few<S: pulp::Simd, const ROWS: usize>(self, simd: S) -> Result<(), P::Stopped> {
        let (depth, columns) = (self.matrix.depth, self.matrix.columns);
        let rows: [&[f32]; ROWS] = std::array::from_fn(|row| &self.a[row * depth..][..depth]);
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
            for (c, sums) in self.c.chunks_exact_mut(self.stride).zip(&sums) {
                c[self.column + first..][..used].copy_from_slice(&sums[..used]);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn many<S: pulp::Simd>(self, simd: S, rows: usize) -> Result<(), P::Stopped> {
        let (depth, columns) = (self.matrix.depth, self.matrix.columns);
        let blocks = rows.div_ceil(BLOCK);
        let weights = pack_rows(rows, self.a);
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
            let lines = self.c.chunks_exact_mut(self.stride).zip(sums.chunks_exact(PANEL));
            lines.for_each(|(c, sums)| c[self.column + first..][..used].copy_from_slice(&sums[..used]));
        }
        Ok(())
    }
}

/// Writes the product of `ROWS` rows with `VECTORS` vectors of a panel.
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
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
    };

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
                    let mut transposed = vec![0.0; b.len()];
                    for (index, number) in b.iter().enumerate() {
                        transposed[index % columns * depth + index / columns] = *number;
                    }
                    for matrix in [
                        PackedMatrix::new(&b, [depth, columns], Order::RowMajor),
                        PackedMatrix::new(&transposed, [depth, columns], Order::ColumnMajor),
                    ] {
                        let mut found = vec![f32::NAN; expected.len()];
                        matrix.multiply(&a, &mut found, &mut Unpaced).unwrap();
                        assert_eq!(found, expected, "{rows}, {depth}, {columns}");
                    }
                }
            }
        }
    }

    #[test]
    fn products_of_depth_0_are_zero() {
        let mut c = [f32::NAN; 6];
        let matrix = PackedMatrix::new(&[], [0, 3], Order::RowMajor);
        matrix.multiply(&[], &mut c, &mut Unpaced).unwrap();
        assert_eq!(c, [0.0; 6]);
        let matrix = PackedMatrix::new(&[], [3, 0], Order::ColumnMajor);
        matrix.multiply(&[1.0; 6], &mut [], &mut Unpaced).unwrap();
    }

    #[test]
    fn products_end_with_their_pace() {
        let matrix = PackedMatrix::new(&numbers(1 << 16, 7), [1 << 8; 2], Order::RowMajor);
        for rows in [1, 256] {
            let (a, mut c) = (numbers(rows << 8, 5), vec![0.0; rows << 8]);
            let steps = (rows << 16) as u64 / PER_STEP;
            let mut found = |budget| matrix.multiply(&a, &mut c, &mut Budget(budget));
            assert_eq!(found(2 * steps), Ok(()));
            assert_eq!(found(steps / 2), Err(Exhausted));
        }
    }

    #[test]
    #[should_panic(expected = "b of 2 rows and 3 columns has 5 elements")]
    fn a_packed_matrix_has_all_elements() {
        let _ = PackedMatrix::new(&[0.0; 5], [2, 3], Order::RowMajor);
    }

    #[test]
    #[should_panic(expected = "a of 4 and c of 3 elements are not the same number of rows of 2 and 3")]
    fn factors_and_product_have_as_many_rows() {
        let matrix = PackedMatrix::new(&[0.0; 6], [2, 3], Order::RowMajor);
        matrix.multiply(&[0.0; 4], &mut [0.0; 3], &mut Unpaced).unwrap();
    }
}
