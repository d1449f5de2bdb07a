//! Convolution of a channels-last image as a matrix product without im2col: each row of the first factor
//! consists of the image's pixels under the taps of a filter, which are read where they are.

use std::ops::Range;

use crate::{
    Pace, PackedMatrix,
    microkernel::{GROUP, PANEL, PER_STEP},
    panel_product::FEW,
    prefetch::prefetch,
};

/// The index of a segment of zeros in [`TapGemm::starts`]: a tap in the padding.
pub const OUTSIDE: usize = usize::MAX;

/// Maximum number of rows that are multiplied by all columns before the next rows. Their segments stay in the
/// L2 cache.
const BLOCK_ROWS: usize = 96;

/// Maximum number of terms that are added for all rows of a block before the next terms. That many rows of the
/// columns of a tile fit into the L2 cache.
const TERMS: usize = 2048;

/// The number of elements of a cache line.
const LINE: usize = 16;

/// The product of a first factor whose rows consist of segments of one slice, and a packed second factor: for
/// each row `r` and column `c`, `bias[c]` plus the sum over taps `t` and elements `k` of
/// `values[starts[r][t] + k] * filters[t * length + k][c]`.
///
/// The terms of a sum are added in this order, starting from the bias, so that a sum does not depend on other
/// rows. A segment of zeros is multiplied like others: its product with an infinite weight is NaN.
///
/// ```
/// use onnx_gemm::{OUTSIDE, Order, PackedMatrix, TapGemm, Unpaced};
///
/// // A line of two pixels with two channels. One filter of two taps, the second one on the right neighbour.
/// let mut output = [0.0; 2];
/// let product = TapGemm {
///     filters: &PackedMatrix::new(&[1.0, 1.0, 10.0, 10.0], [4, 1], Order::RowMajor),
///     bias: &[0.5],
///     values: &[1.0, 2.0, 3.0, 4.0],
///     length: 2,
///     starts: &[0, 2, 2, OUTSIDE],
///     output: &mut output,
///     stride: 1,
///     ahead: &[],
///     pace: &mut Unpaced,
/// };
/// product.run()?;
/// assert_eq!(output, [73.5, 7.5]);
/// # Ok::<(), std::convert::Infallible>(())
/// ```
pub struct TapGemm<'p, P> {
    /// The second factor: a row for each element of each tap, a column for each output channel.
    pub filters: &'p PackedMatrix,
    /// The initial value of each column's sums.
    pub bias: &'p [f32],
    /// The slice that contains all segments.
    pub values: &'p [f32],
    /// The number of elements of a segment, at least 1.
    pub length: usize,
    /// For each row, the index in `values` of each tap's segment, or [`OUTSIDE`] for a segment of zeros.
    pub starts: &'p [usize],
    /// The product, row-major. Elements between two rows are unchanged.
    pub output: &'p mut [f32],
    /// The distance between two rows of the output, at least the column count.
    pub stride: usize,
    /// What the caller reads next, such as pixels under other rows. It is read into the L2 cache meanwhile.
    pub ahead: &'p [f32],
    /// Checks for cancellation before each part of the product.
    pub pace: &'p mut P,
}

impl<P: Pace> TapGemm<'_, P> {
    /// Writes all sums to the output.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if the rows of `filters` are not one or more segments, if `starts` does not consist of whole
    /// rows, if `bias`, `stride` or `output` do not have the size of the product, or if a segment extends past
    /// the end of `values`.
    pub fn run(self) -> Result<(), P::Stopped> {
        self.run_on(pulp::Arch::new())
    }

    /// Writes all sums with the instruction set `arch`.
    fn run_on(self, arch: pulp::Arch) -> Result<(), P::Stopped> {
        let (taps, rows) = self.sizes();
        let columns = self.filters.columns();
        if columns == 0 {
            return Ok(());
        }
        let zeros = vec![0.0; self.length];
        let mut bias = vec![0.0; columns.next_multiple_of(GROUP)];
        bias[..columns].copy_from_slice(self.bias);
        let filters = self.filters.panel(0, bias.len());
        for block in even_ranges(rows, BLOCK_ROWS) {
            let starts = &self.starts[block.start * taps..block.end * taps];
            let ahead = &self.ahead[share(self.ahead.len(), &block, rows)];
            for first in (0..columns).step_by(PANEL) {
                let panel = first..columns.min(first + PANEL);
                let mut ahead = &ahead[share(ahead.len(), &panel, columns)];
                for taps in even_ranges(taps, (TERMS / self.length).max(1)) {
                    for elements in even_ranges(self.length, TERMS) {
                        let products = block.len() * taps.len() * elements.len() * PANEL;
                        self.pace.spend(products as u64 / PER_STEP + 1)?;
                        arch.dispatch(Tiles {
                            filters: filters.as_chunks().0,
                            bias: &bias,
                            values: self.values,
                            zeros: &zeros,
                            starts,
                            columns: panel.clone(),
                            taps: taps.clone(),
                            elements,
                            output: &mut self.output[block.start * self.stride..],
                            stride: self.stride,
                            ahead: std::mem::take(&mut ahead),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of taps and of rows.
    ///
    /// # Panics
    /// Panics as [`run`](Self::run) does, except for the position of segments.
    fn sizes(&self) -> (usize, usize) {
        let (depth, columns) = (self.filters.depth(), self.filters.columns());
        assert!(
            depth > 0 && depth.is_multiple_of(self.length),
            "filters of {depth} rows are not segments of {} elements",
            self.length
        );
        assert_eq!(self.bias.len(), columns, "one bias for each column");
        let taps = depth / self.length;
        assert!(
            self.starts.len().is_multiple_of(taps),
            "{} segments are not rows of {taps}",
            self.starts.len()
        );
        let rows = self.starts.len() / taps;
        let last_row = rows.saturating_sub(1).checked_mul(self.stride);
        let end = last_row.and_then(|row| row.checked_add(columns));
        assert!(
            rows == 0 || self.stride >= columns && end.is_some_and(|end| end <= self.output.len()),
            "{rows} rows of {columns} columns, {} apart, need more than {} elements of the output",
            self.stride,
            self.output.len()
        );
        (taps, rows)
    }
}

/// Returns the share of `len` elements that belongs to a part of `count`.
#[inline(always)]
fn share(len: usize, part: &Range<usize>, count: usize) -> Range<usize> {
    len * part.start / count..len * part.end / count
}

/// Divides `count` rows into ranges of at most `most` rows, whose lengths differ by at most one.
#[inline(always)]
fn even_ranges(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let ranges = count.div_ceil(most);
    let (least, longer) = (count / ranges.max(1), count % ranges.max(1));
    (0..ranges).map(move |range| {
        let start = range * least + range.min(longer);
        start..start + least + usize::from(range < longer)
    })
}

/// The product of a block of rows and a panel of columns, for a range of terms.
struct Tiles<'t> {
    /// Groups of columns, each with a row for each term.
    filters: &'t [[f32; GROUP]],
    /// Padded to whole groups of columns.
    bias: &'t [f32],
    values: &'t [f32],
    /// A segment of zeros.
    zeros: &'t [f32],
    starts: &'t [usize],
    /// The columns to compute, from the beginning of a group on.
    columns: Range<usize>,
    /// The terms to add: these elements of the segments of these taps. The first terms start the sums from the
    /// bias; later ones add to the sums in the output.
    taps: Range<usize>,
    elements: Range<usize>,
    output: &'t mut [f32],
    stride: usize,
    /// What is prefetched meanwhile.
    ahead: &'t [f32],
}

impl pulp::WithSimd for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let mut vector = self.columns.start / S::F32_LANES;
        let vectors = self.columns.end.div_ceil(S::F32_LANES);
        while vector < vectors {
            let left = vectors - vector;
            // The sums and the factors of a tile fit into AVX-512's and NEON's 32 registers, or AVX2's 16.
            vector += match S::F32_LANES {
                16.. => match left {
                    1 => self.columns::<S, 1, 8>(simd, vector),
                    2 | 4 => self.columns::<S, 2, 8>(simd, vector),
                    _ => self.columns::<S, 3, 8>(simd, vector),
                },
                8.. => match left {
                    1 => self.columns::<S, 1, 8>(simd, vector),
                    3 => self.columns::<S, 3, 3>(simd, vector),
                    _ => self.columns::<S, 2, 6>(simd, vector),
                },
                4.. => match left {
                    1 => self.columns::<S, 1, 8>(simd, vector),
                    2 => self.columns::<S, 2, 8>(simd, vector),
                    3 => self.columns::<S, 3, 8>(simd, vector),
                    _ => self.columns::<S, 4, 6>(simd, vector),
                },
                2.. => self.columns::<S, 8, 2>(simd, vector),
                _ => self.columns::<S, 16, 2>(simd, vector),
            };
        }
    }
}

impl Tiles<'_> {
    /// Returns the number of terms of the whole product.
    #[inline(always)]
    fn depth(&self) -> usize {
        self.filters.len() / (self.bias.len() / GROUP)
    }

    /// Multiplies all rows by `VECTORS` vectors that start with the vector `first`, in tiles of at most `MOST`
    /// rows. Returns `VECTORS`.
    #[inline(always)]
    fn columns<S: pulp::Simd, const VECTORS: usize, const MOST: usize>(
        &mut self,
        simd: S,
        first: usize,
    ) -> usize {
        let rows = self.starts.len() / (self.depth() / self.zeros.len());
        // Each tile prefetches an equal share of the groups of the next vectors, spread over its terms. After the
        // last ones there are none: a prefetch from memory that does not exist takes long.
        let next = (first + VECTORS) * S::F32_LANES / GROUP * GROUP;
        let width = (VECTORS * S::F32_LANES).next_multiple_of(GROUP);
        let width = width.min(self.bias.len().saturating_sub(next));
        let start = if width > 0 { next * self.depth() } else { 0 };
        let (of_row, step) = (width * self.depth() / rows, width.div_ceil(rows.div_ceil(MOST)));
        let vectors = first - self.columns.start / S::F32_LANES;
        let vectors = vectors..vectors + VECTORS;
        let count = self.columns.len().div_ceil(S::F32_LANES).max(vectors.end);
        let ahead = &self.ahead[share(self.ahead.len(), &vectors, count)];
        let ahead_of_row = ahead.len().div_ceil(rows);
        for rows in even_ranges(rows, MOST) {
            let lines = rows.start * ahead_of_row..ahead.len().min(rows.end * ahead_of_row);
            for line in lines.step_by(LINE) {
                prefetch(ahead, line);
            }
            let (row, next) = (rows.start, [start + rows.start * of_row, step]);
            match rows.len() {
                1 => self.tile::<S, 1, VECTORS>(simd, row, first, next),
                2 => self.tile::<S, 2, VECTORS>(simd, row, first, next),
                3 if MOST > 2 => self.tile::<S, 3, VECTORS>(simd, row, first, next),
                4 if MOST > 3 => self.tile::<S, 4, VECTORS>(simd, row, first, next),
                5 if MOST > 4 => self.tile::<S, 5, VECTORS>(simd, row, first, next),
                6 if MOST > 4 => self.tile::<S, 6, VECTORS>(simd, row, first, next),
                7 if MOST > 6 => self.tile::<S, 7, VECTORS>(simd, row, first, next),
                8 if MOST > 6 => self.tile::<S, 8, VECTORS>(simd, row, first, next),
                _ => {}
            }
        }
        VECTORS
    }

    /// Adds the terms of `ROWS` rows and `VECTORS` vectors. Prefetches an element of the filters for each term: those
    /// from `next` on, `step` apart.
    #[inline(always)]
    #[allow(
        clippy::manual_memcpy,
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn tile<S: pulp::Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        row: usize,
        first: usize,
        [next, step]: [usize; 2],
    ) {
        let (length, depth, in_group) = (self.zeros.len(), self.depth(), GROUP / S::F32_LANES);
        let taps = depth / length;
        let start = first * S::F32_LANES;
        let columns = start..self.columns.end.min(start + VECTORS * S::F32_LANES);
        let is_whole = columns.len() == VECTORS * S::F32_LANES;
        let mut registers = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        if self.taps.start == 0 && self.elements.start == 0 {
            let (bias, _) = S::as_simd_f32s(&self.bias[start..][..VECTORS * S::F32_LANES]);
            for at in 0..ROWS {
                for vector in 0..VECTORS {
                    registers[at][vector] = bias[vector];
                }
            }
        } else if is_whole {
            for at in 0..ROWS {
                let sums = &self.output[(row + at) * self.stride..][columns.clone()];
                let vectors = &S::as_simd_f32s(sums).0[..VECTORS];
                for vector in 0..VECTORS {
                    registers[at][vector] = vectors[vector];
                }
            }
        } else {
            let mut lines = [[0.0; PANEL]; ROWS];
            self.load(row, &columns, &mut lines);
            for at in 0..ROWS {
                let (vectors, _) = S::as_simd_f32s(&lines[at]);
                for vector in 0..VECTORS {
                    registers[at][vector] = vectors[vector];
                }
            }
        }
        let count = self.elements.len();
        for tap in self.taps.clone() {
            let mut segments = [self.zeros; ROWS];
            for at in 0..ROWS {
                let start = self.starts[(row + at) * taps + tap];
                if start != OUTSIDE {
                    segments[at] = &self.values[start..];
                }
                segments[at] = &segments[at][self.elements.start..][..count];
            }
            let mut groups = [self.filters; VECTORS];
            for vector in 0..VECTORS {
                let group = first / in_group + vector / in_group;
                groups[vector] =
                    &groups[vector][group * depth + tap * length + self.elements.start..][..count];
            }
            let mut next = next + (tap * length + self.elements.start) * step;
            // The groups' own pointer as loop variable keeps LLVM from scaling the index of the terms in place, for
            // which it would load the elements of all rows first and spill the sums.
            for (term, line) in groups[0].iter().enumerate() {
                if ROWS >= FEW {
                    prefetch(self.filters.as_flattened(), next);
                    next += step;
                }
                let mut factors = [simd.splat_f32s(0.0); VECTORS];
                // Tiles begin with a group.
                for vector in 0..VECTORS {
                    let line = match VECTORS * S::F32_LANES <= GROUP {
                        true => line,
                        false => &groups[vector][term],
                    };
                    factors[vector] = S::as_simd_f32s(line).0[vector % in_group];
                }
                for at in 0..ROWS {
                    let value = simd.splat_f32s(segments[at][term]);
                    for vector in 0..VECTORS {
                        registers[at][vector] =
                            simd.mul_add_e_f32s(value, factors[vector], registers[at][vector]);
                    }
                }
            }
        }
        if is_whole {
            for at in 0..ROWS {
                let sums = &mut self.output[(row + at) * self.stride..][columns.clone()];
                let vectors = &mut S::as_mut_simd_f32s(sums).0[..VECTORS];
                for vector in 0..VECTORS {
                    vectors[vector] = registers[at][vector];
                }
            }
        } else {
            let mut lines = [[0.0; PANEL]; ROWS];
            for at in 0..ROWS {
                let (vectors, _) = S::as_mut_simd_f32s(&mut lines[at]);
                for vector in 0..VECTORS {
                    vectors[vector] = registers[at][vector];
                }
            }
            self.store(row, &columns, &lines);
        }
    }

    /// Copies the sums of `columns` to the beginning of each of `lines`.
    #[inline(never)]
    fn load(&self, row: usize, columns: &Range<usize>, lines: &mut [[f32; PANEL]]) {
        for (at, line) in lines.iter_mut().enumerate() {
            let sums = &self.output[(row + at) * self.stride..][columns.clone()];
            line[..columns.len()].copy_from_slice(sums);
        }
    }

    /// Copies the beginning of each of `lines` to the sums of `columns`.
    #[inline(never)]
    fn store(&mut self, row: usize, columns: &Range<usize>, lines: &[[f32; PANEL]]) {
        for (at, line) in lines.iter().enumerate() {
            let sums = &mut self.output[(row + at) * self.stride..][columns.clone()];
            sums.copy_from_slice(&line[..columns.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Order, Unpaced,
        microkernel::architectures,
        pace::{Budget, Exhausted},
    };

    /// Returns small integers, so that sums are exact in any order.
    fn number(index: usize) -> f32 {
        (index * 7919 % 17) as f32 - 8.0
    }

    /// Compares a product with plain loops.
    fn check([rows, columns]: [usize; 2], [taps, length]: [usize; 2], arch: pulp::Arch) {
        let depth = taps * length;
        let filters: Vec<f32> = (0..depth * columns).map(number).collect();
        let bias: Vec<f32> = (0..columns).map(|column| number(column + 5)).collect();
        let values: Vec<f32> = (0..4 * length + 9).map(|at| number(at * 3 + 1)).collect();
        let starts: Vec<usize> = (0..rows * taps)
            .map(|at| match at * 31 % 7 {
                0 => OUTSIDE,
                seed => (seed * 5 + at) % (3 * length + 10),
            })
            .collect();
        let stride = columns + 3;
        let mut output = vec![f32::NAN; (rows.max(1) - 1) * stride + columns];
        let product = TapGemm {
            filters: &PackedMatrix::new(&filters, [depth, columns], Order::RowMajor),
            bias: &bias,
            values: &values,
            length,
            starts: &starts,
            output: &mut output,
            stride,
            ahead: &values,
            pace: &mut Unpaced,
        };
        product.run_on(arch).unwrap();
        for (at, found) in output.into_iter().enumerate() {
            let (row, column) = (at / stride, at % stride);
            if row >= rows || column >= columns {
                assert!(found.is_nan(), "element {at} was written");
                continue;
            }
            let term = |term: usize| match starts[row * taps + term / length] {
                OUTSIDE => 0.0,
                start => values[start + term % length] * filters[term * columns + column],
            };
            let expected = bias[column] + (0..depth).map(term).sum::<f32>();
            assert_eq!(
                found, expected,
                "{arch:?}, {rows} x {columns}, {taps} taps of {length}: {row}, {column}"
            );
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for arch in architectures() {
            for rows in [0, 1, 2, 3, 4, 5, 7, 8, 13, 49] {
                for columns in [0, 1, 4, 5, 8, 15, 16, 17, 24, 33, 41, 48, 70] {
                    for sizes in [[1, 1], [9, 3], [4, 16], [1, 40]] {
                        check([rows, columns], sizes, arch);
                    }
                }
            }
            // Several blocks of rows, and several ranges of terms.
            check([2 * BLOCK_ROWS + 1, 19], [4, 5], arch);
            check([9, 50], [1, 2 * TERMS + 3], arch);
            check([9, 50], [3, TERMS + 1], arch);
            check([9, 50], [40, TERMS / 16 - 1], arch);
        }
    }

    #[test]
    fn sums_do_not_depend_on_other_rows() {
        let fraction = |index: usize| number(index) / 7.0;
        let (taps, length, columns) = (9, 70, 41);
        let filters: Vec<f32> = (0..taps * length * columns).map(fraction).collect();
        let filters = PackedMatrix::new(&filters, [taps * length, columns], Order::RowMajor);
        let values: Vec<f32> = (0..1 << 10).map(|at| fraction(at + 3)).collect();
        let starts: Vec<usize> = (0..taps).map(|tap| tap * 97).collect();
        for arch in architectures() {
            let run = |rows: usize| {
                let mut output = vec![0.0; rows * columns];
                let product = TapGemm {
                    filters: &filters,
                    bias: &[0.1; 41],
                    values: &values,
                    length,
                    starts: &starts.repeat(rows),
                    output: &mut output,
                    stride: columns,
                    ahead: &[],
                    pace: &mut Unpaced,
                };
                product.run_on(arch).unwrap();
                output
            };
            let one = run(1);
            for rows in 2..=30 {
                assert_eq!(run(rows), one.repeat(rows), "{arch:?}, {rows} rows");
            }
        }
    }

    #[test]
    fn padding_is_multiplied() {
        let mut output = [0.0; 2];
        let product = TapGemm {
            filters: &PackedMatrix::new(&[1.0, f32::INFINITY], [1, 2], Order::RowMajor),
            bias: &[3.0; 2],
            values: &[],
            length: 1,
            starts: &[OUTSIDE],
            output: &mut output,
            stride: 2,
            ahead: &[],
            pace: &mut Unpaced,
        };
        product.run().unwrap();
        assert!(output[0] == 3.0 && output[1].is_nan(), "{output:?}");
    }

    /// Runs a product of `rows` rows of two taps of four elements over 12 values.
    fn run<P: Pace>(
        starts: &[usize],
        columns: usize,
        stride: usize,
        len: usize,
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let product = TapGemm {
            filters: &PackedMatrix::new(&vec![0.0; 8 * columns], [8, columns], Order::RowMajor),
            bias: &vec![0.0; columns],
            values: &[0.0; 12],
            length: 4,
            starts,
            output: &mut vec![0.0; len],
            stride,
            ahead: &[0.0; 1000],
            pace,
        };
        product.run()
    }

    #[test]
    fn products_end_with_their_pace() {
        let (rows, columns) = (1 << 10, 1 << 6);
        let starts = vec![0; 2 * rows];
        let steps = (rows * 8 * columns) as u64 / PER_STEP;
        let product = |budget| run(&starts, columns, columns, rows * columns, &mut Budget(budget));
        assert_eq!(product(2 * steps), Ok(()));
        assert_eq!(product(2 * steps / 3), Err(Exhausted));
    }

    #[test]
    fn sizes_are_checked() {
        let fails = |starts: &'static [usize], stride, len, expected: &str| {
            let product = move || run(starts, 3, stride, len, &mut Unpaced).unwrap();
            let message = std::panic::catch_unwind(product).unwrap_err();
            let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(message.contains(expected), "{starts:?}: {message:?}");
        };
        run(&[0, 8, OUTSIDE, 3], 3, 4, 7, &mut Unpaced).unwrap();
        fails(&[0, 8, 1], 3, 9, "3 segments are not rows of 2");
        fails(
            &[0, 8, 1, 3],
            4,
            6,
            "2 rows of 3 columns, 4 apart, need more than 6",
        );
        fails(
            &[0, 8, 1, 3],
            2,
            9,
            "2 rows of 3 columns, 2 apart, need more than 9",
        );
        fails(&[0, 8, 1, 3], usize::MAX, 9, "need more than 9");
        fails(&[0, 9], 3, 3, "out of range for slice");
        fails(&[0, usize::MAX - 1], 3, 3, "out of range for slice");
    }
}
