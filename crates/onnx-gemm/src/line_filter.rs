//! The sums of a single filter over lines of pixels: a channel of a depthwise convolution.

use crate::microkernel::PANEL;

/// The number of elements after the last pixel of [`LineFilter`]'s values that it may read, for whole vectors.
/// They do not affect the result.
pub const SLACK: usize = PANEL;

/// A filter over `values`, whose lines are `pitch` elements apart: for each line `y` and pixel `x`, `bias`
/// plus the sum over `k` of `weights[k] * values[offsets[k] + y * pitch + x]`.
///
/// ```
/// use onnx_gemm::{LineFilter, SLACK};
///
/// // Two taps over two lines of three pixels.
/// let mut values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
/// values.resize(6 + SLACK, 0.0);
/// let filter = LineFilter { weights: &[1.0, -1.0], bias: 0.5, offsets: &[0, 1], width: 2, pitch: 3 };
/// let mut sums = [0.0; 4];
/// filter.run(&values, &mut sums);
/// assert_eq!(sums, [-0.5; 4]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LineFilter<'f> {
    /// One factor for each term.
    pub weights: &'f [f32],
    /// The initial value of each sum.
    pub bias: f32,
    /// The index in the values at which the lines of each term begin.
    pub offsets: &'f [usize],
    /// The number of pixels of a line of the result, at least 1.
    pub width: usize,
    /// The distance between the beginnings of two lines in the values.
    pub pitch: usize,
}

impl LineFilter<'_> {
    /// Writes the sums of whole lines to `sums`.
    ///
    /// # Panics
    /// Panics if there is not one offset for each weight, if `sums` does not consist of whole lines, or if a
    /// line does not end at least [`SLACK`] elements before the end of `values`.
    pub fn run(&self, values: &[f32], sums: &mut [f32]) {
        self.run_on(pulp::Arch::new(), values, sums);
    }

    /// Writes the sums with the instruction set `arch`.
    fn run_on(&self, arch: pulp::Arch, values: &[f32], sums: &mut [f32]) {
        assert_eq!(
            self.weights.len(),
            self.offsets.len(),
            "one offset for each weight"
        );
        assert!(
            self.width > 0 && sums.len().is_multiple_of(self.width),
            "whole lines"
        );
        let lines = sums.len() / self.width;
        let farthest = self.offsets.iter().copied().max().unwrap_or(0);
        let last_line = lines.saturating_sub(1).checked_mul(self.pitch);
        let end = last_line.and_then(|line| line.checked_add(self.width)?.checked_add(farthest));
        assert!(
            end.and_then(|end| end.checked_add(SLACK))
                .is_some_and(|end| end <= values.len()),
            "{lines} lines of {} pixels from offset {farthest} on need more than {} values, of which {SLACK} are \
             slack",
            self.width,
            values.len()
        );
        // Contiguous lines are computed as one line, so that at most one vector is incomplete.
        let width = if self.pitch == self.width {
            sums.len().max(1)
        } else {
            self.width
        };
        arch.dispatch(Filter {
            filter: &LineFilter { width, ..*self },
            values,
            sums,
        });
    }
}

struct Filter<'f> {
    filter: &'f LineFilter<'f>,
    values: &'f [f32],
    sums: &'f mut [f32],
}

impl pulp::WithSimd for Filter<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let terms = (
            self.filter.weights.first_chunk(),
            self.filter.offsets.first_chunk(),
        );
        match (self.filter.weights.len(), terms) {
            // With a constant number of terms, their weights stay in registers.
            (9, (Some(weights), Some(offsets))) => self.lines::<S, 9>(simd, weights, offsets),
            _ => self.lines_of_any(simd),
        }
    }
}

impl Filter<'_> {
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the weights stay in registers only where every index is a constant"
    )]
    fn lines<S: pulp::Simd, const TERMS: usize>(
        self,
        simd: S,
        weights: &[f32; TERMS],
        offsets: &[usize; TERMS],
    ) {
        let bias = simd.splat_f32s(self.filter.bias);
        let mut factors = [bias; TERMS];
        for term in 0..TERMS {
            factors[term] = simd.splat_f32s(weights[term]);
        }
        for (y, line) in self.sums.chunks_exact_mut(self.filter.width).enumerate() {
            let values = &self.values[y * self.filter.pitch..];
            let (vectors, rest) = S::as_mut_simd_f32s(line);
            let mut first = 0;
            for to in vectors {
                *to = sum(simd, &factors, offsets, bias, &values[first..]);
                first += S::F32_LANES;
            }
            if !rest.is_empty() {
                let last = sum(simd, &factors, offsets, bias, &values[first..]);
                simd.partial_store_f32s(rest, last);
            }
        }
    }

    #[inline(always)]
    fn lines_of_any<S: pulp::Simd>(self, simd: S) {
        let LineFilter {
            weights,
            bias,
            offsets,
            width,
            pitch,
        } = *self.filter;
        for (y, line) in self.sums.chunks_exact_mut(width).enumerate() {
            let values = &self.values[y * pitch..];
            let (vectors, rest) = S::as_mut_simd_f32s(line);
            let whole = vectors.len();
            let (fours, others) = vectors.as_chunks_mut::<4>();
            for (four, to) in fours.iter_mut().enumerate() {
                *to = sums::<S, 4>(simd, weights, offsets, bias, values, 4 * four);
            }
            let first = 4 * fours.len();
            for (at, to) in others.iter_mut().enumerate() {
                [*to] = sums(simd, weights, offsets, bias, values, first + at);
            }
            if !rest.is_empty() {
                let [last] = sums(simd, weights, offsets, bias, values, whole);
                simd.partial_store_f32s(rest, last);
            }
        }
    }
}

/// Returns the sums of the vector at the beginning of `values`.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the weights stay in registers only where every index is a constant"
)]
fn sum<S: pulp::Simd, const TERMS: usize>(
    simd: S,
    factors: &[S::f32s; TERMS],
    offsets: &[usize; TERMS],
    bias: S::f32s,
    values: &[f32],
) -> S::f32s {
    let mut sum = bias;
    for term in 0..TERMS {
        let (vectors, _) = S::as_simd_f32s(&values[offsets[term]..][..S::F32_LANES]);
        sum = simd.mul_add_e_f32s(factors[term], vectors[0], sum);
    }
    sum
}

/// Returns the sums of `VECTORS` vectors of a line, from the vector `first` on.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn sums<S: pulp::Simd, const VECTORS: usize>(
    simd: S,
    weights: &[f32],
    offsets: &[usize],
    bias: f32,
    values: &[f32],
    first: usize,
) -> [S::f32s; VECTORS] {
    let mut sums = [simd.splat_f32s(bias); VECTORS];
    for (&weight, offset) in weights.iter().zip(offsets) {
        let weight = simd.splat_f32s(weight);
        let at = offset + first * S::F32_LANES;
        let (vectors, _) = S::as_simd_f32s(&values[at..at + VECTORS * S::F32_LANES]);
        for vector in 0..VECTORS {
            sums[vector] = simd.mul_add_e_f32s(weight, vectors[vector], sums[vector]);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::microkernel::architectures;

    /// Compares the sums of `lines` lines of `width` pixels with those of plain loops.
    fn check(terms: usize, [lines, width, pitch]: [usize; 3]) {
        // Small integers have exact sums in any order.
        let number = |index: usize| (index * 7919 % 17) as f32 - 8.0;
        let farthest = 2 * terms;
        let weights: Vec<f32> = (0..terms).map(number).collect();
        let offsets: Vec<usize> = (0..terms).map(|term| term * 5 % (farthest + 1)).collect();
        let count = farthest + lines.max(1) * pitch + width + SLACK;
        let values: Vec<f32> = (0..count).map(|index| number(3 * index + 1)).collect();
        let filter = LineFilter {
            weights: &weights,
            bias: 3.0,
            offsets: &offsets,
            width,
            pitch,
        };
        for arch in architectures() {
            let mut sums = vec![f32::NAN; lines * width];
            filter.run_on(arch, &values, &mut sums);
            for (at, found) in sums.into_iter().enumerate() {
                let from = at / width * pitch + at % width;
                let products = weights.iter().zip(&offsets);
                let expected: f32 = products.map(|(weight, at)| weight * values[at + from]).sum();
                assert_eq!(
                    found,
                    3.0 + expected,
                    "{arch:?}, {terms} terms, {lines} lines of {width} of {pitch}"
                );
            }
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for terms in [0, 1, 9, 25] {
            for width in [1, 3, 4, 7, 8, 16, 17, 33, 64, 79, 150] {
                for lines in [0, 1, 2, 3, 50] {
                    for pitch in [width, width + 2, 1] {
                        check(terms, [lines, width, pitch]);
                    }
                }
            }
        }
    }

    fn run(lines: usize, [width, pitch]: [usize; 2], offset: usize) {
        let filter = LineFilter {
            weights: &[1.0],
            bias: 0.0,
            offsets: &[offset],
            width,
            pitch,
        };
        filter.run(&[0.0; 6 + SLACK], &mut vec![0.0; lines * width]);
    }

    #[test]
    fn ends_do_not_wrap() {
        const HALF: usize = 1 << (usize::BITS - 1);
        let fails = |lines, sizes, offset| {
            let message = std::panic::catch_unwind(|| run(lines, sizes, offset)).unwrap_err();
            let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(message.contains("on need more than"), "{sizes:?}: {message:?}");
        };
        run(3, [2, 2], 0);
        // The last line, its end, and the end with the slack.
        fails(3, [2, HALF], 0);
        fails(2, [2, usize::MAX], 0);
        fails(3, [2, 2], usize::MAX);
        fails(3, [2, 2], usize::MAX - 10);
        fails(3, [2, 2], 1);
    }

    #[test]
    #[should_panic(expected = "one offset for each weight")]
    fn terms_have_offsets() {
        let filter = LineFilter {
            weights: &[1.0],
            bias: 0.0,
            offsets: &[],
            width: 1,
            pitch: 1,
        };
        filter.run(&[0.0; 1 + SLACK], &mut [0.0]);
    }
}
