//! Indirect GEMM: each row of the second factor is a contiguous run of one slice, at an offset given by the
//! caller. The rows may overlap, and need not be packed first.
//!
//! A panel of columns is multiplied by all rows before the next panel, so that it stays in the L1 and L2
//! caches.

use crate::{
    Pace,
    microkernel::{DEPTH, GROUP, GROUPS, PANEL, PER_STEP, Part, Rows, copy_panel},
    pack::{BLOCK, aligned, packed_len},
};

/// The minimum number of row blocks for which a panel is first copied to contiguous memory. Without the copy,
/// each block would read the panel's rows, which are far apart.
pub(crate) const COPIED_FROM: usize = 5;

/// A product whose second factor is addressed by offsets: for each row `r` and column `c`, `bias[r]` plus the
/// sum over `k` of `weights[r][k] * values[offsets[k] + c]`.
///
/// ```
/// use onnx_gemm::{IndirectGemm, Unpaced, pack_rows};
///
/// // Two filters of three taps over a line of five pixels.
/// let mut output = [[0.0; 3]; 2];
/// let product = IndirectGemm {
///     rows: 2,
///     weights: &pack_rows(2, &[1.0, 1.0, 1.0, -1.0, 0.0, 1.0]),
///     bias: &[0.0, 10.0],
///     values: &[1.0, 2.0, 3.0, 4.0, 5.0],
///     offsets: &[0, 1, 2],
///     columns: 3,
///     pace: &mut Unpaced,
///     take: |first: usize, count: usize, sums: &mut [f32], stride: usize| {
///         for (output, sums) in output.iter_mut().zip(sums.chunks(stride)) {
///             output[first..][..count].copy_from_slice(&sums[..count]);
///         }
///     },
/// };
/// product.run().unwrap();
/// assert_eq!(output, [[6.0, 9.0, 12.0], [12.0; 3]]);
/// ```
pub struct IndirectGemm<'p, P, F> {
    /// The row count of the first factor, at least 2.
    pub rows: usize,
    /// The first factor in the layout of [`pack_rows`](crate::pack_rows) for at least two rows; extra
    /// elements are ignored.
    pub weights: &'p [f32],
    /// The initial value of each row's sums.
    pub bias: &'p [f32],
    /// The slice that contains all rows of the second factor.
    pub values: &'p [f32],
    /// The index in `values` at which each row of the second factor begins.
    pub offsets: &'p [usize],
    /// The column count of the second factor.
    pub columns: usize,
    /// Checks for cancellation before each panel.
    pub pace: &'p mut P,
    /// Receives each complete panel, in column order: its first column, its column count, its sums in
    /// row-major order, and the row stride of the sums. Values past the last row and column are unspecified.
    /// The callee may overwrite all sums.
    pub take: F,
}

impl<P: Pace, F: FnMut(usize, usize, &mut [f32], usize)> IndirectGemm<'_, P, F> {
    /// Computes all panels of columns, and passes each to `take`.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if `rows` is less than 2, if `weights` or `bias` are too short, or if a row of the second factor
    /// extends past the end of `values`.
    pub fn run(mut self) -> Result<(), P::Stopped> {
        self.expect_lengths();
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
        let depth = terms.min(DEPTH);
        let (mut copied, start) = aligned(depth * PANEL);
        let (panel, _) = copied[start..][..depth * PANEL].as_chunks_mut::<GROUP>();
        let panel_offsets: Vec<usize> = (0..depth).map(|term| term * GROUP).collect();
        let farthest = self.offsets.iter().copied().max().unwrap_or(0);
        let mut first = 0;
        while first < self.columns {
            let count = PANEL.min(self.columns - first);
            self.pace
                .spend((PANEL * self.rows * terms) as u64 / PER_STEP + 1)?;
            let is_copied = blocks >= COPIED_FROM || farthest + first + PANEL > self.values.len();
            let mut term = 0;
            while term < terms {
                let end = terms.min(term + DEPTH);
                let mut part = Part {
                    term,
                    values: &self.values[first..],
                    offsets: &self.offsets[term..end],
                    stride: GROUP,
                };
                if is_copied {
                    copy_panel(part.values, part.offsets, panel);
                    part.values = panel.as_flattened();
                    part.offsets = &panel_offsets[..end - term];
                    part.stride = part.values.len() / GROUPS;
                }
                rows.add(&part, count, &mut sums, PANEL);
                term = end;
            }
            (self.take)(first, count, &mut sums, PANEL);
            first += count;
        }
        Ok(())
    }

    /// Panics if the product has less than two rows, or if a slice is too short.
    fn expect_lengths(&self) {
        let (rows, columns) = (self.rows, self.columns);
        assert!(rows > 1, "a product of less than two rows");
        assert_eq!(self.bias.len(), rows, "one bias for each row");
        let weights = packed_len(rows, self.offsets.len());
        assert!(
            self.weights.len() >= weights,
            "{} packed weights of {weights}",
            self.weights.len()
        );
        let farthest = self.offsets.iter().copied().max().unwrap_or(0);
        let end = farthest.checked_add(columns);
        assert!(
            self.offsets.is_empty() || end.is_some_and(|end| end <= self.values.len()),
            "{columns} columns from offset {farthest} on need more than {} values",
            self.values.len()
        );
    }
}

/// The number of rows in a block of [`BlockedGemm`], each with a panel of sums.
pub(crate) const BLOCK_ROWS: usize = 1 << 10;

/// The product of [`IndirectGemm`] without bias, computed in blocks of rows, so that the buffer size does not
/// depend on the row count.
pub struct BlockedGemm<'p> {
    /// The row count of the first factor.
    pub rows: usize,
    /// The first factor in the layout of [`pack_columns`](crate::pack_columns), or of
    /// [`pack_rows`](crate::pack_rows) if there is more than one row.
    pub weights: &'p [f32],
    /// The slice that contains all rows of the second factor.
    pub values: &'p [f32],
    /// The index in `values` at which each row of the second factor begins.
    pub offsets: &'p [usize],
    /// The column count of the second factor.
    pub columns: usize,
}

impl BlockedGemm<'_> {
    /// Computes all sums and calls `give(row, first_column, sums)` for each contiguous run.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if a row of the second factor extends past the end of `values`, or `weights` is too short.
    pub fn run<P: Pace>(
        &self,
        pace: &mut P,
        give: &mut impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), P::Stopped> {
        let depth = self.offsets.len();
        for first_row in (0..self.rows).step_by(BLOCK_ROWS) {
            let rows = BLOCK_ROWS.min(self.rows - first_row);
            IndirectGemm {
                // Computes a single row like two rows, since `pack_columns` also pads it to a block.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
        pack::{pack_columns, pack_rows},
    };

    /// Returns small integers, so that sums are exact in any order.
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
        IndirectGemm {
            rows,
            weights: &pack_rows(rows, &weights),
            bias: &bias,
            values: &values,
            offsets: &offsets,
            columns,
            pace: &mut Unpaced,
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
        for (rows, depth, columns) in [(1, 3, 5), (BLOCK_ROWS + 1, 2, 7), (3, 1 << 18, 2 * PANEL + 5)] {
            let weights: Vec<f32> = (0..rows * depth).map(number).collect();
            let values: Vec<f32> = (0..depth * columns).map(|index| number(index * 3 + 1)).collect();
            let offsets: Vec<usize> = (0..depth).map(|term| term * columns).collect();
            let product = BlockedGemm {
                rows,
                weights: &pack_columns(rows, &weights),
                values: &values,
                offsets: &offsets,
                columns,
            };
            let mut found = vec![f32::NAN; rows * columns];
            let give = &mut |row: usize, first: usize, sums: &[f32]| {
                found[row * columns + first..][..sums.len()].copy_from_slice(sums);
            };
            product.run(&mut Unpaced, give).unwrap();
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
    fn products_end_with_their_pace() {
        for rows in [2, 7] {
            let (depth, columns) = (1 << 6, 1 << 12);
            let mut panels = 0;
            let mut product = |budget| {
                IndirectGemm {
                    rows,
                    weights: &vec![0.0; packed_len(rows, depth)],
                    bias: &vec![0.0; rows],
                    values: &vec![0.0; columns],
                    offsets: &vec![0; depth],
                    columns,
                    pace: &mut Budget(budget),
                    take: |_, _, _: &mut [f32], _| panels += 1,
                }
                .run()
            };
            let steps = (rows * depth * columns) as u64 / PER_STEP;
            assert_eq!(product(2 * steps), Ok(()), "{rows}");
            assert_eq!(product(2 * steps / 3), Err(Exhausted), "{rows}");
            assert!(panels > 1);
        }
    }

    fn run(rows: usize, weights: usize, values: usize, offsets: &[usize], columns: usize) {
        let product = IndirectGemm {
            rows,
            weights: &vec![0.0; weights],
            bias: &vec![0.0; rows],
            values: &vec![0.0; values],
            offsets,
            columns,
            pace: &mut Unpaced,
            take: |_, _, _: &mut [f32], _| {},
        };
        product.run().unwrap();
    }

    #[test]
    #[should_panic(expected = "5 columns from offset 3 on need more than 7 values")]
    fn rows_end_within_the_values() {
        run(2, 8, 7, &[0, 3], 5);
    }

    #[test]
    #[should_panic(expected = "on need more than 7 values")]
    fn ends_do_not_wrap() {
        run(2, 8, 7, &[0, usize::MAX], 5);
    }

    #[test]
    #[should_panic(expected = "a product of less than two rows")]
    fn a_single_row_is_refused() {
        run(1, 4, 5, &[0], 5);
    }

    #[test]
    #[should_panic(expected = "7 packed weights of 8")]
    fn weights_fill_whole_blocks() {
        run(2, 7, 8, &[0, 3], 5);
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for rows in [2, 4, 5, 8, 9, 16, 17, 21, 32] {
            for depth in [1, 9, DEPTH, DEPTH + 7] {
                for columns in [1, 7, 8, 17, 47, 48, 49, 130] {
                    check(rows, depth, columns, PANEL);
                    check(rows, depth, columns, 0);
                }
            }
        }
        check(6, 27, 1000, 0);
    }
}
