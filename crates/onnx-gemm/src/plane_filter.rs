//! Depthwise filters of 3x3, 5x5 and 7x7 taps with stride 1.
//!
//! A band of the image is copied into a buffer with its padding. Each vector that is loaded from the buffer is
//! multiplied by the weights of all output lines that read it, whose sums stay in registers.

use std::ops::Range;

/// The number of elements of the widest vector. Lines of the buffer consist of whole vectors.
const LANES: usize = 16;

/// The approximate number of elements in a buffer, which stays in the L1 cache.
const BUFFERED: usize = 6 << 10;

/// Minimum number of output lines in a band, if the image has as many.
const LEAST_BAND: usize = 8;

/// Maximum width of a line.
const MOST_WIDTH: usize = 1 << 12;

/// A filter that is moved over an image with stride 1: for each pixel `[y, x]` of the output, the bias plus the
/// sum over the taps `[i, j]` of `weights[i][j]` times the image's pixel `[y + i - before[0], x + j - before[1]]`,
/// or times zero outside of the image.
///
/// ```
/// use onnx_gemm::PlaneFilter;
///
/// // Each pixel plus its left neighbour.
/// let filter = PlaneFilter::new([2, 3], [2, 3], [3, 3], [1, 1]).unwrap();
/// let weights = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0];
/// let mut sums = [0.0; 6];
/// filter.run(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &weights, 0.5, 0..2, &mut filter.buffer(), &mut sums);
/// assert_eq!(sums, [1.5, 3.5, 5.5, 4.5, 9.5, 11.5]);
/// ```
#[derive(Clone, Debug)]
pub struct PlaneFilter {
    input: [usize; 2],
    output: [usize; 2],
    /// The height and the width of the filter.
    taps: usize,
    before: [usize; 2],
    /// The distance between two lines in the buffer.
    pitch: usize,
    /// The number of output lines for which the buffer has room.
    band: usize,
}

/// Padded lines of an image. See [`PlaneFilter::buffer`].
#[derive(Debug)]
pub struct PlaneBuffer(Vec<f32>);

impl PlaneFilter {
    /// Prepares filters of the height and width `kernel` for images of the height and width `input`. Returns
    /// `None` if [`LineFilter`](crate::LineFilter) is to be used: for other filters, for very long lines, and for
    /// padding that is larger than the filter.
    #[must_use]
    pub fn new(
        input: [usize; 2],
        output: [usize; 2],
        kernel: [usize; 2],
        before: [usize; 2],
    ) -> Option<Self> {
        let [taps, width] = kernel;
        if taps != width || ![3, 5, 7].contains(&taps) {
            return None;
        }
        let fits = |axis: usize| {
            let end = input[axis].checked_add(2 * (taps - 1));
            let reach = output[axis].checked_add(taps - 1);
            before[axis] < taps && end.zip(reach).is_some_and(|(end, reach)| reach <= end)
        };
        if input.contains(&0) || output.contains(&0) || !fits(0) || !fits(1) || output[1] > MOST_WIDTH {
            return None;
        }
        let pitch = (output[1] + taps - 1 + LANES).next_multiple_of(LANES);
        let band = (BUFFERED / pitch).saturating_sub(taps - 1);
        Some(Self {
            input,
            output,
            taps,
            before,
            pitch,
            band: band.max(LEAST_BAND).min(output[0]),
        })
    }

    /// Returns the number of lines that are copied and computed together.
    #[must_use]
    pub fn band(&self) -> usize {
        self.band
    }

    /// Returns a buffer for [`run`](Self::run), which can be used for any number of images.
    #[must_use]
    pub fn buffer(&self) -> PlaneBuffer {
        // Columns that the image does not fill stay zero. The last vectors extend past the last line.
        PlaneBuffer(vec![0.0; (self.band + self.taps - 1) * self.pitch + 4 * LANES])
    }

    /// Writes the sums of `lines` to `sums`.
    ///
    /// # Panics
    /// Panics if `image` or `weights` do not have the sizes of the filter, if `sums` does not have the size of
    /// `lines`, or if `buffer` is of a filter of other sizes.
    pub fn run(
        &self,
        image: &[f32],
        weights: &[f32],
        bias: f32,
        lines: Range<usize>,
        buffer: &mut PlaneBuffer,
        sums: &mut [f32],
    ) {
        let arch = pulp::Arch::new();
        self.run_on(arch, image, weights, bias, lines, buffer, sums);
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "those of `run`, and the instruction set"
    )]
    fn run_on(
        &self,
        arch: pulp::Arch,
        image: &[f32],
        weights: &[f32],
        bias: f32,
        lines: Range<usize>,
        PlaneBuffer(buffer): &mut PlaneBuffer,
        sums: &mut [f32],
    ) {
        let width = self.output[1];
        assert_eq!(
            image.len(),
            self.input[0] * self.input[1],
            "an image of {:?}",
            self.input
        );
        assert_eq!(weights.len(), self.taps * self.taps, "one weight for each tap");
        assert!(
            lines.end <= self.output[0] && sums.len() == lines.len() * width,
            "{} sums for the lines {lines:?} of {:?}",
            sums.len(),
            self.output
        );
        for (band, sums) in sums.chunks_mut(self.band * width).enumerate() {
            arch.dispatch(Band {
                filter: self,
                image,
                first: lines.start + band * self.band,
                weights,
                bias,
                buffer,
                sums,
            });
        }
    }
}

/// A band of output lines.
struct Band<'b> {
    filter: &'b PlaneFilter,
    image: &'b [f32],
    /// The index of the first line.
    first: usize,
    weights: &'b [f32],
    bias: f32,
    buffer: &'b mut [f32],
    sums: &'b mut [f32],
}

impl pulp::WithSimd for Band<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        self.fill();
        match self.filter.taps {
            3 => self.filter::<S, 3>(simd),
            5 => self.filter::<S, 5>(simd),
            _ => self.filter::<S, 7>(simd),
        }
    }
}

impl Band<'_> {
    /// Copies the lines of the image that are read for the band to the buffer.
    #[inline(always)]
    fn fill(&mut self) {
        let PlaneFilter {
            input: [height, width],
            output,
            taps,
            before: [above, left],
            pitch,
            ..
        } = *self.filter;
        let count = self.sums.len() / output[1] + taps - 1;
        // Columns that no tap reads are left out.
        let columns = width.min(output[1] + taps - 1 - left);
        let lines = self.buffer.chunks_exact_mut(pitch).take(count);
        for (y, line) in (self.first..).zip(lines) {
            let line = &mut line[left..];
            match y.checked_sub(above).filter(|&y| y < height) {
                Some(y) => copy_padded(&self.image[y * width..], &mut line[..columns + LANES], columns),
                None => line[..columns].fill(0.0),
            }
        }
    }

    #[inline(always)]
    fn filter<S: pulp::Simd, const TAPS: usize>(self, simd: S) {
        let width = self.filter.output[1];
        let weights: [[f32; TAPS]; TAPS] =
            std::array::from_fn(|row| std::array::from_fn(|column| self.weights[row * TAPS + column]));
        let mut lines = Lines {
            values: self.buffer,
            pitch: self.filter.pitch,
            weights: &weights,
            bias: self.bias,
            width,
            sums: self.sums,
        };
        let mut x = 0;
        while x < width {
            let left = (width - x).div_ceil(S::F32_LANES);
            // The sums of 3 x 4 vectors and the weights of 3x3 taps take 21 of AVX-512's 32 registers.
            let most = match TAPS {
                3 if S::F32_LANES >= 16 => 4,
                7 if S::F32_LANES < 16 => 1,
                _ => 2,
            };
            x += S::F32_LANES
                * match left.min(most) {
                    1 => lines.column::<S, 1>(simd, x),
                    2 => lines.column::<S, 2>(simd, x),
                    3 => lines.column::<S, 3>(simd, x),
                    _ => lines.column::<S, 4>(simd, x),
                };
        }
    }
}

/// Copies `columns` elements, and zeros the [`LANES`] elements after them.
#[inline(always)]
fn copy_padded(from: &[f32], to: &mut [f32], columns: usize) {
    let whole = columns / LANES * LANES;
    for (to, from) in to[..whole]
        .as_chunks_mut::<LANES>()
        .0
        .iter_mut()
        .zip(from.as_chunks::<LANES>().0)
    {
        *to = *from;
    }
    match from[whole..].first_chunk::<LANES>() {
        Some(last) => to[whole..][..LANES].copy_from_slice(last),
        None => to[whole..columns].copy_from_slice(&from[whole..columns]),
    }
    to[columns..][..LANES].fill(0.0);
}

/// Output lines that are computed from buffered lines of the image.
struct Lines<'l, const TAPS: usize> {
    values: &'l [f32],
    pitch: usize,
    weights: &'l [[f32; TAPS]; TAPS],
    bias: f32,
    width: usize,
    sums: &'l mut [f32],
}

impl<const TAPS: usize> Lines<'_, TAPS> {
    /// Writes the sums of `VECTORS` vectors of each line from the pixel `x` on, and returns `VECTORS`.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the sums stay in registers only where every index is a constant"
    )]
    fn column<S: pulp::Simd, const VECTORS: usize>(&mut self, simd: S, x: usize) -> usize {
        let bias = simd.splat_f32s(self.bias);
        let mut weights = [[bias; TAPS]; TAPS];
        for row in 0..TAPS {
            for column in 0..TAPS {
                weights[row][column] = simd.splat_f32s(self.weights[row][column]);
            }
        }
        let end = self.width.min(x + VECTORS * S::F32_LANES);
        let count = self.sums.len() / self.width;
        // Those of the next lines, the first of which is complete after a line of the image.
        let mut sums = [[bias; VECTORS]; TAPS];
        for row in 0..count + TAPS - 1 {
            let values = &self.values[row * self.pitch + x..][..VECTORS * S::F32_LANES + TAPS - 1];
            for column in 0..TAPS {
                let (values, _) = S::as_simd_f32s(&values[column..column + VECTORS * S::F32_LANES]);
                for line in 0..TAPS {
                    let weight = weights[TAPS - 1 - line][column];
                    for vector in 0..VECTORS {
                        sums[line][vector] = simd.mul_add_e_f32s(weight, values[vector], sums[line][vector]);
                    }
                }
            }
            if let Some(line) = row.checked_sub(TAPS - 1) {
                store(simd, sums[0], &mut self.sums[line * self.width..][x..end]);
            }
            for line in 0..TAPS - 1 {
                sums[line] = sums[line + 1];
            }
            sums[TAPS - 1] = [bias; VECTORS];
        }
        VECTORS
    }
}

/// Writes `vectors` to `sums`, of which the last may be incomplete.
#[inline(always)]
#[allow(
    clippy::manual_memcpy,
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn store<S: pulp::Simd, const VECTORS: usize>(simd: S, vectors: [S::f32s; VECTORS], sums: &mut [f32]) {
    let (whole, rest) = S::as_mut_simd_f32s(sums);
    if whole.len() == VECTORS {
        for vector in 0..VECTORS {
            whole[vector] = vectors[vector];
        }
        return;
    }
    for vector in 0..VECTORS - 1 {
        whole[vector] = vectors[vector];
    }
    simd.partial_store_f32s(rest, vectors[VECTORS - 1]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microkernel::architectures;

    /// Compares the sums of two images with those of plain loops. Returns whether the sizes are supported.
    fn check(input: [usize; 2], taps: usize, before: [usize; 2], after: [usize; 2]) -> bool {
        let output = [0, 1].map(|axis| (input[axis] + before[axis] + after[axis]).saturating_sub(taps - 1));
        let Some(filter) = PlaneFilter::new(input, output, [taps, taps], before) else {
            return false;
        };
        // Small integers have exact sums in any order.
        let number = |index: usize| (index * 7919 % 17) as f32 - 8.0;
        let weights: Vec<f32> = (0..taps * taps).map(number).collect();
        for arch in architectures() {
            let mut buffer = filter.buffer();
            for seed in [1, 1000] {
                let image: Vec<f32> = (seed..).map(number).take(input[0] * input[1]).collect();
                let at = |y: usize, x: usize| -> f32 {
                    let product = |(tap, weight): (usize, &f32)| {
                        let y = (y + tap / taps).checked_sub(before[0])?;
                        let x = (x + tap % taps).checked_sub(before[1])?;
                        (y < input[0] && x < input[1]).then(|| weight * image[y * input[1] + x])
                    };
                    3.0 + weights.iter().enumerate().filter_map(product).sum::<f32>()
                };
                let middle = output[0] / 2;
                for lines in [0..middle, middle..output[0]] {
                    let mut sums = vec![f32::NAN; lines.len() * output[1]];
                    filter.run_on(arch, &image, &weights, 3.0, lines.clone(), &mut buffer, &mut sums);
                    for (index, found) in sums.into_iter().enumerate() {
                        let [y, x] = [lines.start + index / output[1], index % output[1]];
                        assert_eq!(found, at(y, x), "{arch:?}: {y}, {x} of {filter:?}");
                    }
                }
            }
        }
        true
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        let mut checked = 0;
        for size in [
            [1, 1],
            [1, 9],
            [7, 7],
            [5, 14],
            [14, 14],
            [3, 16],
            [20, 17],
            [24, 24],
            [4, 31],
            [9, 80],
            [40, 150],
            [120, 33],
        ] {
            for taps in [3, 5, 7] {
                let (half, all) = ([taps / 2; 2], [taps - 1; 2]);
                for (before, after) in [
                    (half, half),
                    ([0, 0], [0, 0]),
                    (all, [0, 0]),
                    ([0, 0], all),
                    (all, all),
                    // The image is wider than what is read of it.
                    ([1, 1], [0, 0]),
                ] {
                    checked += usize::from(check(size, taps, before, after));
                }
            }
        }
        assert!(checked > 150, "{checked} sizes");
    }

    #[test]
    fn a_filter_needs_no_column_on_the_right() {
        // Fewer output columns than the image has.
        let filter = PlaneFilter::new([3, 40], [3, 4], [3, 3], [1, 1]).expect("a filter");
        let mut sums = [0.0; 12];
        let image: Vec<f32> = (0..120u8).map(f32::from).collect();
        let identity = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        filter.run(&image, &identity, 0.0, 0..3, &mut filter.buffer(), &mut sums);
        assert_eq!(
            sums,
            [0.0, 1.0, 2.0, 3.0, 40.0, 41.0, 42.0, 43.0, 80.0, 81.0, 82.0, 83.0]
        );
    }

    #[test]
    fn sizes_that_are_not_supported_are_left_to_others() {
        let new = |input, before| PlaneFilter::new(input, input, [3, 3], before);
        assert!(new([4, 4], [1, 1]).is_some());
        // Larger padding than the filter, and long lines.
        assert!(new([4, 4], [3, 1]).is_none());
        assert!(new([4, 4], [1, 3]).is_none());
        assert!(new([1, MOST_WIDTH + 1], [1, 1]).is_none());
        assert!(new([0, 4], [1, 1]).is_none());
        for kernel in [[3, 5], [1, 1], [9, 9], [4, 4]] {
            assert!(PlaneFilter::new([40, 40], [32, 32], kernel, [1, 1]).is_none());
        }
        assert!(PlaneFilter::new([4, 4], [9, 4], [3, 3], [1, 1]).is_none());
        assert!(PlaneFilter::new([usize::MAX, 4], [usize::MAX, 4], [3, 3], [1, 1]).is_none());
    }

    #[test]
    #[should_panic(expected = "one weight for each tap")]
    fn weights_are_those_of_the_filter() {
        let filter = PlaneFilter::new([4, 4], [4, 4], [3, 3], [1, 1]).expect("a filter");
        filter.run(
            &[0.0; 16],
            &[0.0; 8],
            0.0,
            0..4,
            &mut filter.buffer(),
            &mut [0.0; 16],
        );
    }
}
