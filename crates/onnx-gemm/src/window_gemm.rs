//! Convolution of a line of pixels as a matrix product without im2col: the rows of the first factor are windows over
//! the same lines of an image with the channels first.

use crate::{
    PackedMatrix,
    microkernel::{GROUP, PANEL},
};

/// The product of windows over lines, and a packed second factor: for each window `w` and column `c`, `bias[c]` plus the
/// sum over lines `l` and elements `k` below `taps` of `lines[l][w * step + k] * filters[l * taps + k][c]`.
///
/// The terms of a sum are added in this order, starting from the bias, so that a sum does not depend on other windows.
///
/// ```
/// use onnx_gemm::{Order, PackedMatrix, WindowGemm};
///
/// // Differences of neighbours, and twice the left one, in a line of three pixels.
/// let mut output = [0.0; 4];
/// let product = WindowGemm {
///     filters: &PackedMatrix::new(&[-1.0, 2.0, 1.0, 0.0], [2, 2], Order::RowMajor),
///     bias: &[0.0, 0.5],
///     lines: &[&[1.0, 3.0, 10.0]],
///     taps: 2,
///     step: 1,
///     output: &mut output,
///     stride: 2,
/// };
/// product.run();
/// assert_eq!(output, [2.0, 2.5, 7.0, 6.5]);
/// ```
pub struct WindowGemm<'p> {
    /// One row for each element of a window.
    pub filters: &'p PackedMatrix,
    /// One for each column of `filters`.
    pub bias: &'p [f32],
    /// Lines of the same number of elements. `filters` has `taps` rows for each.
    pub lines: &'p [&'p [f32]],
    /// Number of elements of a window in each line.
    pub taps: usize,
    /// Number of elements between the starts of neighbouring windows: one of [`STEPS`](Self::STEPS).
    pub step: usize,
    /// The sums of each window, `stride` elements apart.
    pub output: &'p mut [f32],
    /// Number of elements between the sums of neighbouring windows.
    pub stride: usize,
}

impl WindowGemm<'_> {
    /// Supported numbers of elements between windows.
    pub const STEPS: [usize; 2] = [1, 2];

    /// Writes the sums of all windows to the output.
    ///
    /// # Panics
    /// Panics if `step` is not supported, if the sizes of lines, windows, `filters` and `bias` do not fit together, or
    /// if the output is too short.
    pub fn run(self) {
        self.run_on(pulp::Arch::new());
    }

    /// Writes all sums with the instruction set `arch`.
    fn run_on(self, arch: pulp::Arch) {
        let (depth, columns) = (self.filters.depth(), self.filters.columns());
        let windows = self.windows();
        if columns == 0 {
            return;
        }
        let mut bias = vec![0.0; columns.next_multiple_of(GROUP)];
        bias[..columns].copy_from_slice(self.bias);
        let filters = self.filters.panel(0, bias.len());
        arch.dispatch(Tiles {
            filters: filters.as_chunks().0,
            depth,
            bias: &bias,
            columns,
            lines: self.lines,
            taps: self.taps,
            step: self.step,
            windows,
            output: self.output,
            stride: self.stride,
        });
    }

    /// Returns the number of windows.
    ///
    /// # Panics
    /// Panics as [`run`](Self::run) does.
    fn windows(&self) -> usize {
        let (depth, columns) = (self.filters.depth(), self.filters.columns());
        assert!(
            Self::STEPS.contains(&self.step),
            "windows {} elements apart",
            self.step
        );
        assert!(
            depth > 0 && Some(depth) == self.lines.len().checked_mul(self.taps),
            "filters of {depth} rows are not windows of {} elements in each of {} lines",
            self.taps,
            self.lines.len()
        );
        let width = self.lines.first().map_or(0, |line| line.len());
        assert!(
            width >= self.taps && self.lines.iter().all(|line| line.len() == width),
            "windows of {} elements in lines of {width}",
            self.taps
        );
        assert_eq!(self.bias.len(), columns, "one bias for each column");
        let windows = (width - self.taps) / self.step + 1;
        let end = (windows - 1)
            .checked_mul(self.stride)
            .and_then(|last| last.checked_add(columns));
        assert!(
            self.stride >= columns && end.is_some_and(|end| end <= self.output.len()),
            "{windows} rows of {columns} columns, {} apart, need more than {} elements of the output",
            self.stride,
            self.output.len()
        );
        windows
    }
}

/// The product of all windows and columns.
struct Tiles<'t> {
    /// Groups of columns, each with a row for each term.
    filters: &'t [[f32; GROUP]],
    depth: usize,
    /// Padded to whole groups of columns.
    bias: &'t [f32],
    columns: usize,
    lines: &'t [&'t [f32]],
    taps: usize,
    step: usize,
    windows: usize,
    output: &'t mut [f32],
    stride: usize,
}

impl pulp::WithSimd for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let mut vector = 0;
        let vectors = self.columns.div_ceil(S::F32_LANES);
        while vector < vectors {
            // The sums and the factors of a tile fit into the registers.
            vector += match (S::F32_LANES, vectors - vector) {
                (8.., 1) => self.windows::<S, 1, 8>(simd, vector),
                (16.., _) => self.windows::<S, 2, 8>(simd, vector),
                (8.., _) => self.windows::<S, 2, 6>(simd, vector),
                (4.., 1 | 2) => self.windows::<S, 2, 8>(simd, vector),
                (4.., _) => self.windows::<S, 4, 6>(simd, vector),
                (2.., _) => self.windows::<S, 8, 2>(simd, vector),
                _ => self.windows::<S, 16, 2>(simd, vector),
            };
        }
    }
}

impl Tiles<'_> {
    /// Multiplies all windows by `VECTORS` vectors that start with the vector `first`. Returns `VECTORS`.
    #[inline(always)]
    fn windows<S: pulp::Simd, const VECTORS: usize, const WINDOWS: usize>(
        &mut self,
        simd: S,
        first: usize,
    ) -> usize {
        match self.step {
            1 => self.stepwise::<S, VECTORS, WINDOWS, 1>(simd, first),
            _ => self.stepwise::<S, VECTORS, WINDOWS, 2>(simd, first),
        }
        VECTORS
    }

    /// Multiplies tiles of `WINDOWS` windows. The last tile may overlap with the one before; fewer windows than a tile are
    /// multiplied one by one.
    #[inline(always)]
    fn stepwise<S: pulp::Simd, const VECTORS: usize, const WINDOWS: usize, const STEP: usize>(
        &mut self,
        simd: S,
        first: usize,
    ) {
        if self.windows < WINDOWS {
            for window in 0..self.windows {
                self.tile::<S, VECTORS, 1, STEP>(simd, window, first);
            }
            return;
        }
        let mut window = 0;
        while window < self.windows {
            window = window.min(self.windows - WINDOWS);
            self.tile::<S, VECTORS, WINDOWS, STEP>(simd, window, first);
            window += WINDOWS;
        }
    }

    #[inline(always)]
    #[allow(
        clippy::manual_memcpy,
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn tile<S: pulp::Simd, const VECTORS: usize, const WINDOWS: usize, const STEP: usize>(
        &mut self,
        simd: S,
        window: usize,
        first: usize,
    ) {
        let in_group = GROUP / S::F32_LANES;
        let start = first * S::F32_LANES;
        let mut registers = [[simd.splat_f32s(0.0); VECTORS]; WINDOWS];
        let mut groups = [self.filters; VECTORS];
        let (bias, _) = S::as_simd_f32s(self.bias);
        for vector in 0..VECTORS {
            // No vector of a tile is beyond the last group.
            let at = first + vector;
            groups[vector] = &self.filters[at / in_group * self.depth..][..self.depth];
            for row in 0..WINDOWS {
                registers[row][vector] = bias[at];
            }
        }
        let (mut term, span) = (0, (WINDOWS - 1) * STEP + 1);
        for line in self.lines {
            let elements = &line[window * STEP..][..span + self.taps - 1];
            for elements in elements.windows(span) {
                let mut factors = [simd.splat_f32s(0.0); VECTORS];
                for vector in 0..VECTORS {
                    let line = &groups[vector][term];
                    factors[vector] = S::as_simd_f32s(line).0[(first + vector) % in_group];
                }
                for row in 0..WINDOWS {
                    let value = simd.splat_f32s(elements[row * STEP]);
                    for vector in 0..VECTORS {
                        registers[row][vector] =
                            simd.mul_add_e_f32s(value, factors[vector], registers[row][vector]);
                    }
                }
                term += 1;
            }
        }
        let columns = start..self.columns.min(start + VECTORS * S::F32_LANES);
        for row in 0..WINDOWS {
            let sums = &mut self.output[(window + row) * self.stride..][columns.clone()];
            if columns.len() == VECTORS * S::F32_LANES {
                let (vectors, _) = S::as_mut_simd_f32s(sums);
                for vector in 0..VECTORS {
                    vectors[vector] = registers[row][vector];
                }
            } else {
                let mut line = [0.0; PANEL];
                let (vectors, _) = S::as_mut_simd_f32s(&mut line);
                for vector in 0..VECTORS {
                    vectors[vector] = registers[row][vector];
                }
                sums.copy_from_slice(&line[..sums.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{Order, microkernel::architectures};

    /// Returns small integers, so that sums are exact in any order.
    fn number(index: usize) -> f32 {
        (index * 7919 % 17) as f32 - 8.0
    }

    /// Compares a product with plain loops.
    fn check(windows: usize, columns: usize, [lines, taps, step]: [usize; 3], arch: pulp::Arch) {
        let (depth, width) = (lines * taps, (windows - 1) * step + taps);
        let filters: Vec<f32> = (0..depth * columns).map(number).collect();
        let bias: Vec<f32> = (0..columns).map(|column| number(column + 5)).collect();
        let values: Vec<f32> = (0..lines * width).map(|at| number(at * 3 + 1)).collect();
        let lines: Vec<&[f32]> = values.chunks_exact(width).collect();
        let stride = columns + 3;
        let mut output = vec![f32::NAN; (windows - 1) * stride + columns];
        let product = WindowGemm {
            filters: &PackedMatrix::new(&filters, [depth, columns], Order::RowMajor),
            bias: &bias,
            lines: &lines,
            taps,
            step,
            output: &mut output,
            stride,
        };
        product.run_on(arch);
        for (at, found) in output.into_iter().enumerate() {
            let (window, column) = (at / stride, at % stride);
            if column >= columns {
                assert!(found.is_nan(), "element {at} was written");
                continue;
            }
            let term = |term: usize| {
                lines[term / taps][window * step + term % taps] * filters[term * columns + column]
            };
            let expected = bias[column] + (0..depth).map(term).sum::<f32>();
            assert_eq!(
                found,
                expected,
                "{arch:?}, {windows} x {columns}, {} lines of {taps}, {step} apart: {window}, {column}",
                lines.len()
            );
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for arch in architectures() {
            for windows in [1, 2, 5, 6, 7, 8, 9, 13, 49] {
                for columns in [0, 1, 4, 5, 8, 15, 16, 17, 24, 33, 41, 48, 70] {
                    for step in WindowGemm::STEPS {
                        for [lines, taps] in [[1, 1], [9, 3], [3, 7], [1, 40]] {
                            check(windows, columns, [lines, taps, step], arch);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn sums_do_not_depend_on_other_windows() {
        let fraction = |index: usize| number(index) / 7.0;
        let (lines, taps, columns) = (9, 3, 41);
        let filters: Vec<f32> = (0..lines * taps * columns).map(fraction).collect();
        let filters = PackedMatrix::new(&filters, [lines * taps, columns], Order::RowMajor);
        for arch in architectures() {
            for step in WindowGemm::STEPS {
                // All windows have the same elements, because these repeat.
                let run = |windows: usize| {
                    let line: Vec<f32> = (0..(windows - 1) * step + taps)
                        .map(|at| fraction(at % step))
                        .collect();
                    let mut output = vec![0.0; windows * columns];
                    let product = WindowGemm {
                        filters: &filters,
                        bias: &[0.1; 41],
                        lines: &[&line[..]; 9],
                        taps,
                        step,
                        output: &mut output,
                        stride: columns,
                    };
                    product.run_on(arch);
                    output
                };
                let one = run(1);
                for windows in 2..=30 {
                    assert_eq!(run(windows), one.repeat(windows), "{arch:?}, {windows} windows");
                }
            }
        }
    }

    #[test]
    fn sizes_are_checked() {
        let fails = |widths: &'static [usize], [taps, step]: [usize; 2], len: usize, expected: &str| {
            let product = move || {
                let lines: Vec<&[f32]> = widths.iter().map(|&width| &[0.0; 5][..width]).collect();
                WindowGemm {
                    filters: &PackedMatrix::new(&[0.0; 12], [4, 3], Order::RowMajor),
                    bias: &[0.0; 3],
                    lines: &lines,
                    taps,
                    step,
                    output: &mut vec![0.0; len],
                    stride: 3,
                }
                .run();
            };
            let message = std::panic::catch_unwind(product).unwrap_err();
            let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(message.contains(expected), "{widths:?}: {message:?}");
        };
        fails(&[5, 5], [2, 3], 12, "windows 3 elements apart");
        fails(
            &[5, 5],
            [3, 1],
            12,
            "4 rows are not windows of 3 elements in each of 2",
        );
        fails(
            &[],
            [2, 1],
            12,
            "4 rows are not windows of 2 elements in each of 0",
        );
        fails(&[5, 4], [2, 1], 12, "windows of 2 elements in lines of 5");
        fails(&[3], [4, 1], 12, "windows of 4 elements in lines of 3");
        fails(
            &[4],
            [4, 1],
            2,
            "1 rows of 3 columns, 3 apart, need more than 2 elements",
        );
        fails(
            &[5, 5],
            [2, 1],
            11,
            "4 rows of 3 columns, 3 apart, need more than 11 elements",
        );
    }
}
