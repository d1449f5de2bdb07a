//! Packs a constant right-hand matrix of FP32 products once, in the layout in which all products read it.

use std::ops::Range;

use crate::{
    Pace,
    indirect::BLOCK_ROWS,
    microkernel::{DEPTH, GROUP, PANEL, PER_STEP},
    pack::aligned,
    pack_groups::{Order, PackGroups},
    panel_product::{FEW, Lines, PanelProduct},
    shapes::{expect_matrix, expect_rows},
    subnormals::clear_subnormals,
};

/// The right-hand matrix of FP32 products, stored in groups of 16 columns, each row-major. The last group is
/// padded with zeros.
///
/// ```
/// use onnx_gemm::{Order, PackedMatrix, Unpaced};
///
/// let b = PackedMatrix::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], Order::RowMajor);
/// let mut c = [0.0; 3];
/// b.multiply(&[1.0, 10.0], &mut c, &mut Unpaced).unwrap();
/// assert_eq!(c, [41.0, 52.0, 63.0]);
/// ```
#[derive(Debug, Default)]
pub struct PackedMatrix {
    numbers: Vec<f32>,
    /// The index of the first group, aligned to a cache line.
    start: usize,
    depth: usize,
    columns: usize,
}

impl PackedMatrix {
    /// Packs a matrix of `depth` rows and `columns` columns.
    ///
    /// # Panics
    /// Panics if `matrix.len()` is not `depth * columns`.
    #[must_use]
    pub fn new(matrix: &[f32], [depth, columns]: [usize; 2], order: Order) -> Self {
        let mut made = Self::default();
        made.pack(matrix, [depth, columns], order);
        made
    }

    /// Packs another matrix in the memory of this one.
    ///
    /// ```
    /// use onnx_gemm::{Order, PackedMatrix, Unpaced};
    ///
    /// let mut b = PackedMatrix::default();
    /// b.pack(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], Order::RowMajor);
    /// b.pack(&[3.0, 4.0], [2, 1], Order::RowMajor);
    /// let mut c = [0.0];
    /// b.multiply(&[1.0, 10.0], &mut c, &mut Unpaced).unwrap();
    /// assert_eq!(c, [43.0]);
    /// ```
    ///
    /// # Panics
    /// Panics if `matrix.len()` is not `depth * columns`.
    pub fn pack(&mut self, matrix: &[f32], [depth, columns]: [usize; 2], order: Order) {
        expect_matrix("b", matrix.len(), [depth, columns]);
        let count = depth * columns.next_multiple_of(GROUP);
        if self.numbers.len() < self.start + count {
            (self.numbers, self.start) = aligned(count);
        }
        (self.depth, self.columns) = (depth, columns);
        let groups = &mut self.numbers[self.start..][..count];
        pulp::Arch::new().dispatch(PackGroups {
            matrix,
            depth,
            columns,
            order,
            groups: &mut *groups,
        });
        clear_subnormals(groups);
    }

    /// Returns the row count, which equals the column count of the first factor.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the column count.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the panel that begins at column `first`.
    pub(crate) fn panel(&self, first: usize, width: usize) -> &[f32] {
        &self.numbers[self.start + first * self.depth..][..width * self.depth]
    }

    /// Writes the product of the row-major matrix `a` and this matrix to the row-major matrix `c`. `a` and
    /// `c` have the same number of rows.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if `a` does not consist of whole rows of [`depth`](Self::depth) elements, if `c` does not
    /// consist of whole rows of [`columns`](Self::columns) elements, or if their row counts differ.
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

    /// Splits the columns into at most `count` ranges of similar size, for
    /// [`multiply_part`](Self::multiply_part).
    pub fn parts(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let columns = self.columns;
        let width = columns.div_ceil(count.max(1)).next_multiple_of(PANEL);
        let starts = (0..columns).step_by(width);
        starts.map(move |start| start..columns.min(start + width))
    }

    /// Writes the columns `columns` of the product of `a` and this matrix to `c`, which has one slice per row
    /// with one element per column. The result is bitwise identical to that of [`multiply`](Self::multiply).
    ///
    /// ```
    /// use onnx_gemm::{Order, PackedMatrix, Unpaced};
    ///
    /// let b = PackedMatrix::new(&[2.0; 100], [1, 100], Order::RowMajor);
    /// let mut rows = [[0.0; 100]; 2];
    /// for columns in b.parts(2) {
    ///     let mut c: Vec<&mut [f32]> = rows.iter_mut().map(|row| &mut row[columns.clone()]).collect();
    ///     b.multiply_part(&[1.0, 10.0], columns, &mut c, &mut Unpaced).unwrap();
    /// }
    /// assert_eq!(rows, [[2.0; 100], [20.0; 100]]);
    /// ```
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if `columns` is not a range of [`parts`](Self::parts), if `a` is not a row-major matrix with
    /// one row of [`depth`](Self::depth) elements for each slice of `c`, or if a slice of `c` has another
    /// length than `columns`.
    pub fn multiply_part<P: Pace>(
        &self,
        a: &[f32],
        columns: Range<usize>,
        c: &mut [&mut [f32]],
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let is_part = columns.start.is_multiple_of(PANEL)
            && (columns.end.is_multiple_of(PANEL) || columns.end == self.columns);
        let first = columns.start;
        assert!(
            is_part && columns.start <= columns.end && columns.end <= self.columns,
            "columns {columns:?} of {} are not whole panels",
            self.columns
        );
        expect_matrix("a", a.len(), [c.len(), self.depth]);
        assert!(
            c.iter().all(|row| row.len() == columns.len()),
            "rows of another length than {}",
            columns.len()
        );
        if self.depth == 0 {
            c.iter_mut().for_each(|row| row.fill(0.0));
        }
        if a.is_empty() {
            return Ok(());
        }
        Product {
            matrix: self,
            a,
            columns,
            pace,
            sums: ColumnRange { rows: c, first },
        }
        .run()
    }

    /// Writes the product of `a` and this matrix to the row-major matrix `c` with `stride` columns, starting
    /// at column `column`. Neither the depth nor the column count may be 0.
    pub(crate) fn multiply_columns<P: Pace>(
        &self,
        a: &[f32],
        c: &mut [f32],
        [stride, column]: [usize; 2],
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let blocks = a.chunks(BLOCK_ROWS * self.depth);
        for (a, c) in blocks.zip(c.chunks_mut(BLOCK_ROWS * stride)) {
            Product {
                matrix: self,
                a,
                columns: 0..self.columns,
                pace: &mut *pace,
                sums: RowMajor { c, stride, column },
            }
            .run()?;
        }
        Ok(())
    }
}

/// Returns the width of the panel that begins at column `first`.
fn panel_width(columns: usize, first: usize) -> usize {
    PANEL.min((columns - first).next_multiple_of(GROUP))
}

/// A range of columns of a product, which begins with column `first`: one slice per row.
struct ColumnRange<'c, 'r> {
    rows: &'c mut [&'r mut [f32]],
    first: usize,
}

impl Lines for ColumnRange<'_, '_> {
    fn line(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        &mut self.rows[row][columns.start - self.first..columns.end - self.first]
    }
}

/// A row-major matrix with `stride` columns, in which the product begins with column `column`.
struct RowMajor<'c> {
    c: &'c mut [f32],
    stride: usize,
    column: usize,
}

impl Lines for RowMajor<'_> {
    fn line(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let start = row * self.stride + self.column;
        &mut self.c[start + columns.start..start + columns.end]
    }
}

struct Product<'p, P, L> {
    matrix: &'p PackedMatrix,
    /// The first factor, row-major.
    a: &'p [f32],
    /// The columns to compute: a range of whole panels.
    columns: Range<usize>,
    pace: &'p mut P,
    sums: L,
}

impl<P: Pace, L: Lines> Product<'_, P, L> {
    fn run(mut self) -> Result<(), P::Stopped> {
        let (depth, end) = (self.matrix.depth, self.columns.end);
        let rows = self.a.len() / depth;
        // With few rows, keeping a part of a panel in the cache gains nothing.
        let step = if rows <= FEW { depth } else { DEPTH };
        for first in self.columns.step_by(PANEL) {
            let width = panel_width(self.matrix.columns, first);
            self.pace.spend((rows * depth * width) as u64 / PER_STEP + 1)?;
            let next = match first + width {
                next if next < end => self.matrix.panel(next, panel_width(self.matrix.columns, next)),
                _ => &[],
            };
            for term in (0..depth).step_by(step) {
                PanelProduct {
                    a: self.a,
                    depth,
                    terms: term..depth.min(term + step),
                    panel: self.matrix.panel(first, width),
                    columns: first..end.min(first + width),
                    sums: &mut self.sums,
                    next,
                }
                .run();
            }
        }
        Ok(())
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

    /// Returns small integers, so that sums are exact in any order.
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
                    // Memory that another matrix has left is overwritten.
                    let mut again = PackedMatrix::new(&[f32::NAN; 3 << 10], [3, 1 << 10], Order::RowMajor);
                    again.pack(&b, [depth, columns], Order::RowMajor);
                    for matrix in [
                        again,
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
    fn parts_are_the_whole_bit_by_bit() {
        for rows in [1, 3, 4, 5, 70] {
            for [depth, columns] in [[7, 1], [40, 49], [600, 130], [5, 480]] {
                let fraction = |number: f32| number / 7.0;
                let a: Vec<f32> = numbers(rows * depth, 7919).into_iter().map(fraction).collect();
                let b: Vec<f32> = numbers(depth * columns, 31).into_iter().map(fraction).collect();
                let matrix = PackedMatrix::new(&b, [depth, columns], Order::RowMajor);
                let mut expected = vec![f32::NAN; rows * columns];
                matrix.multiply(&a, &mut expected, &mut Unpaced).unwrap();
                for count in [0, 1, 2, 3, 100] {
                    let mut found = vec![f32::NAN; rows * columns];
                    let mut written = 0;
                    for part in matrix.parts(count) {
                        written += part.len();
                        let mut c: Vec<&mut [f32]> = found
                            .chunks_mut(columns)
                            .map(|row| &mut row[part.clone()])
                            .collect();
                        matrix.multiply_part(&a, part, &mut c, &mut Unpaced).unwrap();
                    }
                    assert!(matrix.parts(count).count() <= count.max(1));
                    assert_eq!(
                        (&found, written),
                        (&expected, columns),
                        "{rows}, {depth}, {columns}"
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "columns 1..96 of 130 are not whole panels")]
    fn parts_begin_with_a_panel() {
        let matrix = PackedMatrix::new(&[0.0; 130], [1, 130], Order::RowMajor);
        let mut row = [0.0; 95];
        matrix
            .multiply_part(&[1.0], 1..96, &mut [&mut row], &mut Unpaced)
            .unwrap();
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
