//! Products of a convolution that are written to their output without a buffer between.
//!
//! The columns are the pixels of lines. Output lines are contiguous, while the lines of the second factor may
//! have padding between them, which is skipped when a panel is copied.

use std::ops::Range;

use crate::{
    Pace,
    block_of_column::BlockOfColumn,
    indirect::COPIED_FROM,
    line_panel::{CopiedPanel, Panel, Segments, WIDEST},
    microkernel::{DEPTH, PANEL, PER_STEP},
    pack::{BLOCK, packed_len},
};

/// The number of elements between two calls of [`LineGemm::finish`] for a row, times the row count.
const FINISHED: usize = 1 << 14;

/// The product of [`IndirectGemm`](crate::IndirectGemm) for columns that are the pixels of `lines` lines of
/// `width` pixels: for each row `r`, line `y` and pixel `x`, `bias[r]` plus the sum over `k` of
/// `weights[r][k] * values[offsets[k] + y * pitch + x]`.
///
/// ```
/// use onnx_gemm::{LineGemm, Unpaced, pack_rows};
///
/// // Two filters of two taps over two lines of three pixels.
/// let mut output = [[0.0; 4]; 2];
/// let [first, second] = &mut output;
/// let product = LineGemm {
///     weights: &pack_rows(2, &[1.0, 1.0, 1.0, -1.0]),
///     bias: &[0.0, 10.0],
///     values: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
///     offsets: &[0, 1],
///     is_column: false,
///     lines: 2,
///     width: 2,
///     pitch: 3,
///     first: 0,
///     output: &mut [first, second],
///     pace: &mut Unpaced,
///     finish: |_: &mut [f32]| {},
/// };
/// product.run().unwrap();
/// assert_eq!(output, [[3.0, 5.0, 9.0, 11.0], [9.0; 4]]);
/// ```
pub struct LineGemm<'p, 'o, P, F> {
    /// The first factor in the layout of [`pack_rows`](crate::pack_rows) for at least two rows; extra
    /// elements are ignored.
    pub weights: &'p [f32],
    /// The initial value of each row's sums.
    pub bias: &'p [f32],
    /// The slice that contains all lines of the second factor.
    pub values: &'p [f32],
    /// The index in `values` at which the lines of each term begin.
    pub offsets: &'p [usize],
    /// Whether the whole result is one column, not just this part of it. Its terms are summed in another order, which
    /// is faster.
    pub is_column: bool,
    /// The number of lines.
    pub lines: usize,
    /// The number of pixels of a line.
    pub width: usize,
    /// The distance between the beginnings of two lines in `values`.
    pub pitch: usize,
    /// The index of the first pixel in each slice of `output`.
    pub first: usize,
    /// One slice for each row, at least two.
    pub output: &'p mut [&'o mut [f32]],
    /// Checks for cancellation before each panel.
    pub pace: &'p mut P,
    /// Receives each run of complete sums of a row once, and may change them.
    pub finish: F,
}

impl<P: Pace, F: FnMut(&mut [f32])> LineGemm<'_, '_, P, F> {
    /// Writes all sums to the output.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if there are less than two rows, if `weights`, `bias` or a slice of `output` are too short, or
    /// if a line of the second factor extends past the end of `values`.
    pub fn run(self) -> Result<(), P::Stopped> {
        self.run_on(pulp::Arch::new())
    }

    /// Writes all sums with the instruction set `arch`.
    fn run_on(mut self, arch: pulp::Arch) -> Result<(), P::Stopped> {
        let (rows, terms, columns) = (self.output.len(), self.offsets.len(), self.columns());
        let weights = &self.weights[..packed_len(rows, terms)];
        if columns == 0 {
            return Ok(());
        }
        let mut bias = vec![[0.0; BLOCK]; rows.div_ceil(BLOCK)];
        bias.as_flattened_mut()[..rows].copy_from_slice(self.bias);
        if self.is_column && columns == 1 {
            return self.run_column(arch, weights.as_chunks::<BLOCK>().0, &bias);
        }
        let part = terms.div_ceil(terms.div_ceil(DEPTH).max(1)).max(1);
        let panels = self.panels(lanes(arch), columns);
        let mut copy = CopiedPanel::new(part, panels.widest);
        let finished = (FINISHED / rows / PANEL).max(1) * PANEL;
        let (mut first, mut unfinished) = (0, 0);
        while first < columns {
            let panel = panels.at(first);
            self.pace
                .spend((panel.width * rows * terms) as u64 / PER_STEP + 1)?;
            // A product without terms consists of the bias.
            for term in (0..terms.max(1)).step_by(part) {
                let offsets = &self.offsets[term..terms.min(term + part)];
                let (values, offsets) = match panel.is_copied {
                    true => copy.fill(arch, &panel, self.values, offsets),
                    false => (&self.values[panel.start.min(self.values.len())..], offsets),
                };
                arch.dispatch(Tiles {
                    weights: weights.as_chunks::<BLOCK>().0,
                    bias: &bias,
                    terms,
                    term,
                    values,
                    offsets,
                    first: self.first + first,
                    count: panel.segments.columns.len(),
                    output: &mut *self.output,
                });
            }
            first = panel.segments.columns.end;
            if first == columns || first - unfinished >= finished {
                let range = self.first + unfinished..self.first + first;
                for row in &mut *self.output {
                    (self.finish)(&mut row[range.clone()]);
                }
                unfinished = first;
            }
        }
        Ok(())
    }

    /// Writes the sums of a single column. The weights are read once, which takes most of the time.
    fn run_column(
        self,
        arch: pulp::Arch,
        weights: &[[f32; BLOCK]],
        bias: &[[f32; BLOCK]],
    ) -> Result<(), P::Stopped> {
        let terms = self.offsets.len();
        let numbers: Vec<[f32; BLOCK]> = self
            .offsets
            .iter()
            .map(|&offset| [self.values[offset]; BLOCK])
            .collect();
        let Self {
            output,
            first,
            pace,
            mut finish,
            ..
        } = self;
        for (block, rows) in output.chunks_mut(BLOCK).enumerate() {
            pace.spend((BLOCK * terms) as u64 / PER_STEP + 1)?;
            let sums = arch.dispatch(BlockOfColumn {
                weights: weights[block * terms..][..terms].as_flattened(),
                numbers: numbers.as_flattened(),
                bias: bias[block],
            });
            for (row, sum) in rows.iter_mut().zip(sums) {
                row[first] = sum;
                finish(&mut row[first..=first]);
            }
        }
        Ok(())
    }

    /// Divides `columns` columns into panels, for vectors of `lanes` elements.
    fn panels(&self, lanes: usize, columns: usize) -> Panels {
        let is_contiguous = self.lines == 1 || self.width == self.pitch;
        let farthest = self.offsets.iter().copied().max().unwrap_or(0);
        Panels {
            lanes,
            widest: if lanes >= 16 { WIDEST } else { PANEL },
            columns,
            width: if is_contiguous { columns } else { self.width },
            pitch: self.pitch,
            is_direct: !is_contiguous && self.is_direct(lanes, farthest),
            // Of contiguous columns, those from this one on are copied.
            copied_from: match is_contiguous && self.output.len().div_ceil(BLOCK) < COPIED_FROM {
                _ if self.offsets.is_empty() => usize::MAX,
                true => self.values.len().saturating_sub(farthest),
                false => 0,
            },
        }
    }

    /// Returns whether lines are read in place, in vectors of `lanes` elements, the last of which may extend past
    /// the end of the line. The taps of a filter overlap, so that their lines stay in the L1 cache, which a copy
    /// of all of them would exceed. Narrow lines would not fill the tiles.
    fn is_direct(&self, lanes: usize, farthest: usize) -> bool {
        if self.offsets.is_empty() || self.width >= self.pitch {
            return false;
        }
        let padded = self.width.next_multiple_of(lanes);
        let last_line = self.lines.saturating_sub(1) * self.pitch;
        let is_filled = padded >= PANEL && 8 * self.width >= 7 * padded;
        is_filled && last_line + farthest + padded <= self.values.len()
    }

    /// Returns the number of columns.
    ///
    /// # Panics
    /// Panics as [`run`](Self::run) does, except for the length of `weights`.
    fn columns(&self) -> usize {
        let rows = self.output.len();
        assert!(rows > 1, "a product of less than two rows");
        assert_eq!(self.bias.len(), rows, "one bias for each row");
        let shortest = self.output.iter().map(|row| row.len()).min().unwrap_or(0);
        let columns = self.lines.checked_mul(self.width);
        let columns = columns.filter(|columns| {
            let end = self.first.checked_add(*columns);
            end.is_some_and(|end| end <= shortest)
        });
        let Some(columns) = columns else {
            panic!(
                "{} lines of {} columns from {} on need more than {shortest} elements of the output",
                self.lines, self.width, self.first
            );
        };
        let farthest = self.offsets.iter().copied().max().unwrap_or(0);
        let last_line = self.lines.saturating_sub(1).checked_mul(self.pitch);
        let end = last_line.and_then(|line| line.checked_add(self.width)?.checked_add(farthest));
        assert!(
            columns == 0 || self.offsets.is_empty() || end.is_some_and(|end| end <= self.values.len()),
            "{} lines of {} pixels from offset {farthest} on need more than {} values",
            self.lines,
            self.width,
            self.values.len()
        );
        columns
    }
}

/// Returns the number of elements of a vector.
fn lanes(arch: pulp::Arch) -> usize {
    struct Lanes;

    impl pulp::WithSimd for Lanes {
        type Output = usize;

        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }

    arch.dispatch(Lanes)
}

/// The columns of a product, in panels.
struct Panels {
    /// The number of elements of a vector.
    lanes: usize,
    /// Maximum column count of a panel.
    widest: usize,
    columns: usize,
    /// The number of contiguous columns.
    width: usize,
    pitch: usize,
    /// Whether each line has its own panels, which are read in place.
    is_direct: bool,
    /// Panels that extend past this column are copied, unless they are read in place.
    copied_from: usize,
}

impl Panels {
    /// Returns the panel that begins at the column `first`.
    fn at(&self, first: usize) -> Panel {
        let (line, x) = match self.is_direct {
            true => (first / self.width, first % self.width),
            false => (0, first),
        };
        let left = match self.is_direct {
            true => self.width - x,
            false => self.columns - first,
        };
        let count = if left <= self.widest { left } else { PANEL };
        let width = PANEL.max(count.next_multiple_of(self.lanes));
        Panel {
            width,
            start: line.saturating_mul(self.pitch) + x,
            is_copied: !self.is_direct && first + width > self.copied_from,
            segments: Segments {
                columns: first..first + count,
                width: self.width,
                pitch: self.pitch,
            },
        }
    }
}

/// The product of all rows and a panel, for a range of terms.
struct Tiles<'t, 'o> {
    weights: &'t [[f32; BLOCK]],
    bias: &'t [[f32; BLOCK]],
    /// The number of terms of the whole product.
    terms: usize,
    /// The index of the first term. If it is 0, the sums start from the bias; otherwise they continue those in
    /// the output.
    term: usize,
    values: &'t [f32],
    /// The index in `values` of each term's columns.
    offsets: &'t [usize],
    /// The index in the output of the first column.
    first: usize,
    /// The number of columns.
    count: usize,
    output: &'t mut [&'o mut [f32]],
}

impl pulp::WithSimd for Tiles<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let vectors = self.count.div_ceil(S::F32_LANES);
        let mut vector = 0;
        while vector < vectors {
            let left = vectors - vector;
            let column = vector * S::F32_LANES;
            // A tile of 8 rows by 3 vectors, or of 6 by 4, takes 24 of AVX-512's 32 registers. With AVX2's 16
            // registers, a tile has 6 rows by 2 vectors.
            vector += match if S::F32_LANES >= 16 { left } else { left.min(2) } {
                1 => self.columns::<S, 1>(simd, column),
                2 => self.columns::<S, 2>(simd, column),
                4 => self.columns::<S, 4>(simd, column),
                _ => self.columns::<S, 3>(simd, column),
            };
        }
    }
}

impl Tiles<'_, '_> {
    /// Adds the terms of all rows for `VECTORS` vectors that start at `column`, and returns `VECTORS`.
    /// Columns are the outer loop, so that they stay in the L1 cache.
    #[inline(always)]
    fn columns<S: pulp::Simd, const VECTORS: usize>(&mut self, simd: S, column: usize) -> usize {
        let blocks = self.bias.len();
        let mut block = 0;
        while block < blocks {
            let left = blocks - block;
            block += if S::F32_LANES >= 16 && VECTORS < 4 && left >= 2 {
                self.tile::<S, 0, 8, VECTORS>(simd, block, column);
                2
            } else if left >= 3 && (S::F32_LANES < 16 || VECTORS == 4) {
                self.tile::<S, 0, 6, VECTORS>(simd, block, column);
                self.tile::<S, 2, 6, VECTORS>(simd, block + 1, column);
                3
            } else {
                self.tile::<S, 0, BLOCK, VECTORS>(simd, block, column);
                1
            };
        }
        VECTORS
    }

    /// Adds the terms of `ROWS` rows from the row `FIRST` of `block` on, for `VECTORS` vectors.
    #[inline(always)]
    #[allow(
        clippy::manual_memcpy,
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn tile<S: pulp::Simd, const FIRST: usize, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        block: usize,
        column: usize,
    ) {
        let width = VECTORS * S::F32_LANES;
        let offsets = self.offsets;
        // A tile of one block does not read the second one.
        let blocks = [block, (block + 1).min(self.bias.len() - 1)];
        let weights = blocks.map(|block| &self.weights[block * self.terms + self.term..][..offsets.len()]);
        let row = block * BLOCK + FIRST;
        let columns = self.first + column..self.first + self.count.min(column + width);
        let is_whole = columns.len() == width && row + ROWS <= self.output.len();
        let mut registers = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        if self.term == 0 {
            for at in 0..ROWS {
                let index = FIRST + at;
                registers[at] = [simd.splat_f32s(self.bias[blocks[index / BLOCK]][index % BLOCK]); VECTORS];
            }
        } else if is_whole {
            for at in 0..ROWS {
                let (vectors, _) = S::as_simd_f32s(&self.output[row + at][columns.clone()]);
                let vectors = &vectors[..VECTORS];
                for vector in 0..VECTORS {
                    registers[at][vector] = vectors[vector];
                }
            }
        } else {
            let mut lines = [[0.0; WIDEST]; ROWS];
            self.load(row, &columns, &mut lines);
            for at in 0..ROWS {
                let (vectors, _) = S::as_simd_f32s(&lines[at]);
                for vector in 0..VECTORS {
                    registers[at][vector] = vectors[vector];
                }
            }
        }
        for term in 0..offsets.len() {
            let at = offsets[term] + column;
            let (values, _) = S::as_simd_f32s(&self.values[at..at + width]);
            for at in 0..ROWS {
                let index = FIRST + at;
                let weight = simd.splat_f32s(weights[index / BLOCK][term][index % BLOCK]);
                for vector in 0..VECTORS {
                    registers[at][vector] =
                        simd.mul_add_e_f32s(weight, values[vector], registers[at][vector]);
                }
            }
        }
        if is_whole {
            for at in 0..ROWS {
                let (vectors, _) = S::as_mut_simd_f32s(&mut self.output[row + at][columns.clone()]);
                let vectors = &mut vectors[..VECTORS];
                for vector in 0..VECTORS {
                    vectors[vector] = registers[at][vector];
                }
            }
        } else {
            let mut lines = [[0.0; WIDEST]; ROWS];
            for at in 0..ROWS {
                let (vectors, _) = S::as_mut_simd_f32s(&mut lines[at]);
                for vector in 0..VECTORS {
                    vectors[vector] = registers[at][vector];
                }
            }
            self.store(row, &columns, &lines);
        }
    }

    /// Copies the sums of `columns` to the beginning of each of `lines`, for the rows that exist.
    #[inline(never)]
    fn load(&self, row: usize, columns: &Range<usize>, lines: &mut [[f32; WIDEST]]) {
        for (line, sums) in lines.iter_mut().zip(&self.output[row.min(self.output.len())..]) {
            line[..columns.len()].copy_from_slice(&sums[columns.clone()]);
        }
    }

    /// Copies the beginning of each of `lines` to the sums of `columns`, for the rows that exist.
    #[inline(never)]
    fn store(&mut self, row: usize, columns: &Range<usize>, lines: &[[f32; WIDEST]]) {
        let start = row.min(self.output.len());
        for (line, sums) in lines.iter().zip(&mut self.output[start..]) {
            sums[columns.clone()].copy_from_slice(&line[..columns.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        microkernel::architectures,
        pace::{Budget, Exhausted},
        pack::pack_rows,
    };

    /// Returns small integers, so that sums are exact in any order.
    fn number(index: usize) -> f32 {
        (index * 7919 % 17) as f32 - 8.0
    }

    fn check([rows, depth]: [usize; 2], [lines, width, pitch]: [usize; 3], slack: usize) {
        let weights: Vec<f32> = (0..rows * depth).map(number).collect();
        let bias: Vec<f32> = (0..rows).map(|row| number(row + 5)).collect();
        let offsets: Vec<usize> = (0..depth).map(|term| term * 3 % 50).collect();
        let count = 49.min(3 * depth) + (lines - 1) * pitch + width + slack;
        let values: Vec<f32> = (0..count).map(|index| number(index * 3 + 1)).collect();
        let mut expected = vec![vec![f32::NAN; lines * width + 3]; rows];
        for (row, sums) in expected.iter_mut().enumerate() {
            for (at, sum) in sums[2..][..lines * width].iter_mut().enumerate() {
                let from = at / width * pitch + at % width;
                let terms = (0..depth).map(|term| weights[row * depth + term] * values[offsets[term] + from]);
                *sum = 1.0 + bias[row] + terms.sum::<f32>();
            }
        }
        for arch in architectures() {
            let mut output = vec![vec![f32::NAN; lines * width + 3]; rows];
            let mut finished = 0;
            LineGemm {
                weights: &pack_rows(rows, &weights),
                bias: &bias,
                values: &values,
                offsets: &offsets,
                is_column: true,
                lines,
                width,
                pitch,
                first: 2,
                output: &mut output.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
                pace: &mut Unpaced,
                finish: |sums: &mut [f32]| {
                    finished += sums.len();
                    sums.iter_mut().for_each(|sum| *sum += 1.0);
                },
            }
            .run_on(arch)
            .unwrap();
            assert_eq!(finished, rows * lines * width);
            let sums = output.iter().flatten().zip(expected.iter().flatten());
            for (at, (found, expected)) in sums.enumerate() {
                let (row, at) = (at / (lines * width + 3), at % (lines * width + 3));
                assert!(
                    found == expected || found.is_nan() && expected.is_nan(),
                    "{arch:?}, {rows} x {depth}, {lines} x {width} of {pitch}: {row}, {at}: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for rows in [2, 3, 8, 9, 12, 17, 21] {
            for depth in [0, 1, 9, DEPTH, DEPTH + 7] {
                for sizes in [
                    [1, 1, 1],
                    [1, 130, 130],
                    [3, 7, 9],
                    [2, 48, 50],
                    [4, 25, 25],
                    [2, 49, 60],
                    [3, 80, 82],
                    [1, 49, 49],
                    [1, 112, 112],
                    [2, 55, 60],
                    [2, 159, 163],
                    // Lines that overlap, the last of which does not extend farthest in a panel.
                    [3, 40, 3],
                ] {
                    check([rows, depth], sizes, 0);
                    check([rows, depth], sizes, 48);
                }
            }
        }
    }

    #[test]
    fn products_end_with_their_pace() {
        let (rows, depth, columns) = (7, 1 << 6, 1 << 12);
        let product = |budget| {
            let mut output = vec![vec![0.0; columns]; rows];
            LineGemm {
                weights: &vec![0.0; packed_len(rows, depth)],
                bias: &vec![0.0; rows],
                values: &vec![0.0; columns],
                offsets: &vec![0; depth],
                is_column: false,
                lines: 1,
                width: columns,
                pitch: columns,
                first: 0,
                output: &mut output.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
                pace: &mut Budget(budget),
                finish: |_: &mut [f32]| {},
            }
            .run()
        };
        let steps = (rows * depth * columns) as u64 / PER_STEP;
        assert_eq!(product(2 * steps), Ok(()));
        assert_eq!(product(2 * steps / 3), Err(Exhausted));
    }

    /// Runs a product of two rows and `offsets.len()` terms over 12 values.
    fn run([lines, width, pitch]: [usize; 3], offsets: &[usize], first: usize) {
        let mut output = [[0.0; 10]; 2];
        let [one, two] = &mut output;
        let product = LineGemm {
            weights: &[0.0; 8],
            bias: &[0.0; 2],
            values: &[0.0; 12],
            offsets,
            is_column: false,
            lines,
            width,
            pitch,
            first,
            output: &mut [one, two],
            pace: &mut Unpaced,
            finish: |_: &mut [f32]| {},
        };
        product.run().unwrap();
    }

    #[test]
    #[should_panic(expected = "2 lines of 5 pixels from offset 3 on need more than 12 values")]
    fn lines_end_within_the_values() {
        run([2, 5, 5], &[0, 3], 0);
    }

    #[test]
    fn ends_do_not_wrap() {
        const HALF: usize = 1 << (usize::BITS - 1);
        let fails = |sizes, offsets: &'static [usize], first| {
            let message = std::panic::catch_unwind(|| run(sizes, offsets, first)).unwrap_err();
            let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(message.contains("on need more than"), "{sizes:?}: {message:?}");
        };
        // The number of columns, their end in the output, and the end of the last line in the values.
        fails([HALF, 2, 2], &[0], 0);
        fails([HALF + 1, 2, 2], &[0], 0);
        fails([2, 2, 2], &[0], usize::MAX);
        fails([3, 2, HALF], &[0], 0);
        fails([2, 2, usize::MAX], &[0], 0);
        fails([2, 2, 2], &[usize::MAX], 0);
    }

    #[test]
    fn a_product_without_terms_reads_no_values() {
        run([5, 2, usize::MAX / 2], &[], 0);
    }
}
