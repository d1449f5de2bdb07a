//! Depthwise convolution of a channels-last image: each channel has its own filter.
//!
//! Vectors consist of neighbouring channels. A tile computes several pixels of a line, so that a vector of
//! weights is loaded once for them, and a vector of the image once for all pixels that read it.

use std::ops::Range;

use crate::{prefetch::prefetch, subnormals::clear_subnormals};

/// The number of channels in a group of the packed weights, which is a multiple of every vector.
const GROUP: usize = 16;

/// Maximum number of channels that are computed for all pixels before the next channels. The lines of the image
/// that a line of pixels reads then stay in the L1 or L2 cache.
const BLOCK: usize = 256;

/// The number of pixels in a tile.
const PIXELS: usize = 4;

/// The distance, in elements, at which the last line that a tile reads, and the line that it writes, are prefetched.
/// Each pixel of a tile is a separate stream of a few cache lines, which is too short for the processor to prefetch
/// by itself.
const AHEAD: usize = 1 << 10;

/// A block of channels in the padding.
static ZEROS: [f32; BLOCK] = [0.0; BLOCK];

/// The sizes of a convolution: each pair is that of the vertical and of the horizontal axis.
///
/// The pixel `[y, x]` of the output reads, for the tap `[i, j]`, the pixel
/// `[y * strides[0] + i * dilations[0] - before[0], x * strides[1] + j * dilations[1] - before[1]]` of the
/// input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterSizes {
    /// The height and the width of the input.
    pub input: [usize; 2],
    /// The height and the width of the output.
    pub output: [usize; 2],
    /// The distance between the input pixels of two neighbouring output pixels.
    pub strides: [usize; 2],
    /// The distance between the input pixels of two neighbouring taps.
    pub dilations: [usize; 2],
    /// The padding at the top and on the left.
    pub before: [usize; 2],
}

/// Depthwise filters of a channels-last image: for each pixel and channel `c`, `bias[c]` plus the sum over the
/// taps of `weights[c][tap]` times channel `c` of the tap's pixel.
///
/// The terms of a sum are added in the order of the taps, starting from the bias, so that a sum does not
/// depend on its position. Pixels outside of the image are multiplied as zeros: their product with an infinite
/// weight is NaN.
///
/// ```
/// use onnx_gemm::{ChannelFilter, FilterSizes};
///
/// // Two channels: the sum of each pixel and its right neighbour, and their difference.
/// let filter = ChannelFilter::new(&[1.0, 1.0, 1.0, -1.0], [1, 2]);
/// let sizes = FilterSizes {
///     input: [1, 3],
///     output: [1, 3],
///     strides: [1, 1],
///     dilations: [1, 1],
///     before: [0, 0],
/// };
/// let mut output = [0.0; 6];
/// filter.run(&sizes, &[0.5, 0.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0..1, 0..3], &mut output);
/// assert_eq!(output, [4.5, -2.0, 8.5, -2.0, 5.5, 6.0]);
/// ```
#[derive(Clone, Debug)]
pub struct ChannelFilter {
    channels: usize,
    kernel: [usize; 2],
    /// Groups of [`GROUP`] channels, each with a row for each tap. If the last group would be incomplete, it
    /// consists of the last [`GROUP`] channels instead, or is padded with zeros if there are fewer.
    weights: Vec<[f32; GROUP]>,
}

impl ChannelFilter {
    /// Packs filters of the height and width `kernel`: the weights of all taps for each channel.
    ///
    /// # Panics
    /// Panics if `kernel` has no tap, or if `weights` does not consist of whole filters.
    #[must_use]
    pub fn new(weights: &[f32], kernel: [usize; 2]) -> Self {
        let taps = kernel[0] * kernel[1];
        assert!(
            taps > 0 && weights.len().is_multiple_of(taps),
            "{} weights are not filters of {kernel:?}",
            weights.len()
        );
        let channels = weights.len() / taps;
        let mut packed = Vec::with_capacity(channels.div_ceil(GROUP) * taps);
        for first in (0..channels).step_by(GROUP) {
            let first = first.min(channels.saturating_sub(GROUP));
            let filters = &weights[first * taps..channels.min(first + GROUP) * taps];
            packed.extend((0..taps).map(|tap| {
                let mut line = [0.0; GROUP];
                for (to, filter) in line.iter_mut().zip(filters.chunks_exact(taps)) {
                    *to = filter[tap];
                }
                line
            }));
        }
        clear_subnormals(packed.as_flattened_mut());
        Self {
            channels,
            kernel,
            weights: packed,
        }
    }

    /// Returns the number of channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Writes the sums of a part of the output, the given lines and columns, to `output`: for each pixel, those
    /// of all channels.
    ///
    /// # Panics
    /// Panics if `bias` does not have an element for each channel, if `image` does not have the size of the
    /// input, if `output` does not have the size of `part` or that is not
    /// within the output, or if a position exceeds a `usize`.
    pub fn run(
        &self,
        sizes: &FilterSizes,
        bias: &[f32],
        image: &[f32],
        part: [Range<usize>; 2],
        output: &mut [f32],
    ) {
        self.run_on(pulp::Arch::new(), sizes, bias, image, part, output);
    }

    /// Writes the sums with the instruction set `arch`.
    fn run_on(
        &self,
        arch: pulp::Arch,
        sizes: &FilterSizes,
        bias: &[f32],
        image: &[f32],
        [lines, columns]: [Range<usize>; 2],
        output: &mut [f32],
    ) {
        let expect = |name: &str, len: usize, [height, width]: [usize; 2]| {
            let size = height.checked_mul(width);
            assert_eq!(
                size.and_then(|size| size.checked_mul(self.channels)),
                Some(len),
                "{name} of {height} x {width} pixels of {} channels has {len} elements",
                self.channels
            );
        };
        assert_eq!(bias.len(), self.channels, "one bias for each channel");
        expect("an image", image.len(), sizes.input);
        expect("an output", output.len(), [lines.len(), columns.len()]);
        assert!(
            lines.end <= sizes.output[0] && columns.end <= sizes.output[1],
            "lines {lines:?} and columns {columns:?} of {:?}",
            sizes.output
        );
        for axis in [0, 1] {
            let last = sizes.output[axis]
                .saturating_sub(1)
                .checked_mul(sizes.strides[axis]);
            let tap = (self.kernel[axis] - 1).checked_mul(sizes.dilations[axis]);
            let end = last.zip(tap).and_then(|(last, tap)| last.checked_add(tap));
            let is_valid = end.is_some() && sizes.before[axis] <= usize::MAX / 2;
            assert!(is_valid, "positions of {sizes:?} fit a usize");
        }
        if !output.is_empty() {
            arch.dispatch(Lines {
                filter: self,
                sizes,
                bias,
                image,
                first: [lines.start, columns.start],
                width: columns.len(),
                output,
            });
        }
    }
}

/// A part of the output.
struct Lines<'l> {
    filter: &'l ChannelFilter,
    sizes: &'l FilterSizes,
    bias: &'l [f32],
    image: &'l [f32],
    /// The first line and column.
    first: [usize; 2],
    /// The number of columns.
    width: usize,
    output: &'l mut [f32],
}

impl pulp::WithSimd for Lines<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(mut self, simd: S) {
        let FilterSizes {
            strides: [_, stride],
            dilations: [_, dilation],
            ..
        } = *self.sizes;
        let is_even = stride == 1 || dilation == 1;
        let fits = (1..=self.width / PIXELS).contains(&dilation);
        if self.filter.channels < S::F32_LANES || !is_even || !fits {
            return self.pixels(simd);
        }
        // The number of input columns of a tile is that of its last pixel plus the taps.
        match (self.filter.kernel, stride) {
            ([3, 3], 1) => self.tiles::<S, 3, 1, 6>(simd),
            ([3, 3], 2) => self.tiles::<S, 3, 2, 9>(simd),
            ([5, 5], 1) => self.tiles::<S, 5, 1, 8>(simd),
            ([5, 5], 2) => self.tiles::<S, 5, 2, 11>(simd),
            ([7, 7], 1) => self.tiles::<S, 7, 1, 10>(simd),
            _ => self.pixels(simd),
        }
    }
}

impl Lines<'_> {
    /// Computes all pixels in tiles. If taps are several pixels apart, so are the pixels of a tile: neighbours
    /// share taps like those of other filters, and as many tiles as that distance cover a range of the line. The
    /// last range of a line can overlap the one before.
    #[inline(always)]
    fn tiles<S: pulp::Simd, const TAPS: usize, const STRIDE: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
    ) {
        let channels = self.filter.channels;
        let whole = channels / GROUP * GROUP;
        for first in (0..whole).step_by(BLOCK) {
            let count = BLOCK.min(whole - first);
            let weights = &self.filter.weights[first / GROUP * TAPS * TAPS..];
            self.channels::<S, TAPS, STRIDE, COLUMNS>(simd, first, count, weights.as_flattened());
        }
        // Vectors that can overlap, all of which lie in the last group.
        for first in (whole..channels).step_by(S::F32_LANES) {
            let first = first.min(channels - S::F32_LANES);
            let group = &self.filter.weights[whole / GROUP * TAPS * TAPS..];
            let weights = &group.as_flattened()[first - channels.saturating_sub(GROUP)..];
            self.channels::<S, TAPS, STRIDE, COLUMNS>(simd, first, S::F32_LANES, weights);
        }
    }

    /// Computes the `count` channels from `first` on, for which `weights` begins.
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the slices stay in registers only where every index is a constant"
    )]
    fn channels<S: pulp::Simd, const TAPS: usize, const STRIDE: usize, const COLUMNS: usize>(
        &mut self,
        simd: S,
        first: usize,
        count: usize,
        weights: &[f32],
    ) {
        let channels = self.filter.channels;
        let [height, input_width] = self.sizes.input;
        let (width, dilation) = (self.width, self.sizes.dilations[1]);
        let together = PIXELS * dilation;
        let (bias, _) = S::as_simd_f32s(&self.bias[first..][..count]);
        for (y, line) in self.output.chunks_exact_mut(width * channels).enumerate() {
            let mut rows: [Option<&[f32]>; TAPS] = [None; TAPS];
            for tap in 0..TAPS {
                let y = ((self.first[0] + y) * self.sizes.strides[0] + tap * self.sizes.dilations[0])
                    .wrapping_sub(self.sizes.before[0]);
                if y < height {
                    rows[tap] = Some(&self.image[y * input_width * channels..][..input_width * channels]);
                }
            }
            let bottom = (self.first[0] + y) * self.sizes.strides[0] + (TAPS - 1) * self.sizes.dilations[0];
            let bottom = bottom
                .saturating_sub(self.sizes.before[0])
                .min(height.saturating_sub(1))
                * input_width
                * channels;
            let ranges = (0..width).step_by(together).map(|x| x.min(width - together));
            for range in ranges {
                for x in range..range + dilation {
                    let left = ((self.first[1] + x) * STRIDE).wrapping_sub(self.sizes.before[1]);
                    let zeros = S::as_simd_f32s(&ZEROS[..count]).0;
                    let mut pixels = [[zeros; COLUMNS]; TAPS];
                    for tap in 0..TAPS {
                        if let Some(row) = rows[tap] {
                            for column in 0..COLUMNS {
                                let x = left.wrapping_add(column * dilation);
                                if x < input_width {
                                    pixels[tap][column] =
                                        S::as_simd_f32s(&row[x * channels + first..][..count]).0;
                                }
                            }
                        }
                    }
                    let line = &mut line[x * channels + first..];
                    // Behind the last pixels that this tile reads, at the distance of AHEAD.
                    let ahead =
                        bottom + left.wrapping_add(COLUMNS * dilation).min(input_width) * channels + first;
                    let ahead = &self.image[(ahead + AHEAD).min(self.image.len())..];
                    tile::<S, TAPS, STRIDE, COLUMNS>(
                        simd,
                        &pixels,
                        weights,
                        bias,
                        line,
                        channels * dilation,
                        ahead,
                    );
                }
            }
        }
    }

    /// Returns the sums of `count` channels from `first` on, at most a vector of them, for one output pixel.
    /// `starts` has the index of the input pixel under each tap; `None` in the padding. A closure would not always
    /// be compiled for the processor's vectors.
    #[inline(always)]
    fn sums<S: pulp::Simd>(&self, simd: S, starts: &[Option<usize>], [first, count]: [usize; 2]) -> S::f32s {
        let channels = self.filter.channels;
        let whole = channels / GROUP * GROUP;
        let (group, at) = match first + count <= whole {
            true => (first / GROUP, first % GROUP),
            false => (whole / GROUP, first - channels.saturating_sub(GROUP)),
        };
        let weights = &self.filter.weights[group * starts.len()..][..starts.len()];
        let mut sums = load(simd, &self.bias[first..], count);
        for (weights, start) in weights.iter().zip(starts) {
            let values = match *start {
                Some(start) => load(simd, &self.image[start * channels + first..], count),
                None => simd.splat_f32s(0.0),
            };
            sums = simd.mul_add_e_f32s(load(simd, &weights[at..], count), values, sums);
        }
        sums
    }

    /// Computes all pixels one by one, for any sizes.
    #[inline(always)]
    fn pixels<S: pulp::Simd>(mut self, simd: S) {
        let channels = self.filter.channels;
        let taps = self.filter.kernel[0] * self.filter.kernel[1];
        let width = self.width;
        let mut starts = vec![None; taps];
        let output = std::mem::take(&mut self.output);
        for (index, pixel) in output.chunks_exact_mut(channels).enumerate() {
            let at = [self.first[0] + index / width, self.first[1] + index % width];
            for (tap, start) in starts.iter_mut().enumerate() {
                *start = self
                    .sizes
                    .pixel(at, [tap / self.filter.kernel[1], tap % self.filter.kernel[1]]);
            }
            if channels < S::F32_LANES {
                simd.partial_store_f32s(pixel, self.sums(simd, &starts, [0, channels]));
                continue;
            }
            for first in (0..channels).step_by(S::F32_LANES) {
                let first = first.min(channels - S::F32_LANES);
                let (vectors, _) = S::as_mut_simd_f32s(&mut pixel[first..][..S::F32_LANES]);
                vectors[0] = self.sums(simd, &starts, [first, S::F32_LANES]);
            }
        }
    }
}

impl FilterSizes {
    /// Returns the index of the input pixel that the output pixel `at` reads for the tap `tap`; `None` in the
    /// padding.
    #[inline(always)]
    fn pixel(&self, at: [usize; 2], tap: [usize; 2]) -> Option<usize> {
        let [y, x] = [0, 1].map(|axis| {
            let index = at[axis] * self.strides[axis] + tap[axis] * self.dilations[axis];
            index.wrapping_sub(self.before[axis])
        });
        (y < self.input[0] && x < self.input[1]).then(|| y * self.input[1] + x)
    }
}

/// Loads `count` elements, of which there is at most a vector.
#[inline(always)]
fn load<S: pulp::Simd>(simd: S, from: &[f32], count: usize) -> S::f32s {
    match S::as_simd_f32s(&from[..count]) {
        ([vector, ..], _) => *vector,
        (_, rest) => simd.partial_load_f32s(rest),
    }
}

/// Computes [`PIXELS`] pixels: the vectors of `bias` and of each of `pixels`. Output pixels are `distance`
/// elements apart.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn tile<S: pulp::Simd, const TAPS: usize, const STRIDE: usize, const COLUMNS: usize>(
    simd: S,
    pixels: &[[&[S::f32s]; COLUMNS]; TAPS],
    weights: &[f32],
    bias: &[S::f32s],
    output: &mut [f32],
    distance: usize,
    ahead: &[f32],
) {
    let in_group = GROUP / S::F32_LANES;
    let count = bias.len();
    let mut lines = *pixels;
    for row in 0..TAPS {
        for column in 0..COLUMNS {
            lines[row][column] = &lines[row][column][..count];
        }
    }
    for vector in 0..count {
        let start = vector / in_group * TAPS * TAPS * GROUP + vector % in_group * S::F32_LANES;
        let weights = &weights[start..][..(TAPS * TAPS - 1) * GROUP + S::F32_LANES];
        if vector % in_group == 0 {
            for pixel in 0..PIXELS * STRIDE {
                prefetch(ahead, pixel * distance + vector * S::F32_LANES);
            }
            for pixel in 0..PIXELS {
                prefetch(output, AHEAD + pixel * distance + vector * S::F32_LANES);
            }
        }
        let mut sums = [bias[vector]; PIXELS];
        for row in 0..TAPS {
            let mut factors = [bias[vector]; TAPS];
            for tap in 0..TAPS {
                let at = (row * TAPS + tap) * GROUP;
                factors[tap] = S::as_simd_f32s(&weights[at..at + S::F32_LANES]).0[0];
            }
            for column in 0..COLUMNS {
                let value = lines[row][column][vector];
                for pixel in 0..PIXELS {
                    if column >= pixel * STRIDE && column - pixel * STRIDE < TAPS {
                        sums[pixel] =
                            simd.mul_add_e_f32s(factors[column - pixel * STRIDE], value, sums[pixel]);
                    }
                }
            }
        }
        for pixel in 0..PIXELS {
            let at = pixel * distance + vector * S::F32_LANES;
            S::as_mut_simd_f32s(&mut output[at..][..S::F32_LANES]).0[0] = sums[pixel];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microkernel::architectures;

    /// Returns small integers, whose sums are exact in any order.
    fn number(index: usize) -> f32 {
        (index * 7919 % 17) as f32 - 8.0
    }

    /// Compares the sums with those of plain loops.
    fn check(channels: usize, kernel: [usize; 2], sizes: &FilterSizes) {
        let taps = kernel[0] * kernel[1];
        let weights: Vec<f32> = (0..channels * taps).map(number).collect();
        let bias: Vec<f32> = (0..channels).map(|at| number(at + 5)).collect();
        let image: Vec<f32> = (0..sizes.input[0] * sizes.input[1] * channels)
            .map(|at| number(at * 3 + 1))
            .collect();
        let filter = ChannelFilter::new(&weights, kernel);
        assert_eq!(filter.channels(), channels);
        let expected = |y: usize, x: usize, channel: usize| {
            let product = |tap: usize| {
                let y = (y * sizes.strides[0] + tap / kernel[1] * sizes.dilations[0])
                    .checked_sub(sizes.before[0])?;
                let x = (x * sizes.strides[1] + tap % kernel[1] * sizes.dilations[1])
                    .checked_sub(sizes.before[1])?;
                let is_inside = y < sizes.input[0] && x < sizes.input[1];
                is_inside.then(|| {
                    weights[channel * taps + tap] * image[(y * sizes.input[1] + x) * channels + channel]
                })
            };
            bias[channel] + (0..taps).filter_map(product).sum::<f32>()
        };
        let [height, width] = sizes.output;
        for arch in architectures() {
            let half = height / 2;
            let (above, below) = (0..half, half..height);
            for [lines, columns] in [
                [above, 0..width],
                [below.clone(), 0..width / 3],
                [below, width / 3..width],
            ] {
                let mut output = vec![f32::NAN; lines.len() * columns.len() * channels];
                let part = [lines.clone(), columns.clone()];
                filter.run_on(arch, sizes, &bias, &image, part, &mut output);
                for (index, found) in output.into_iter().enumerate() {
                    let (pixel, channel) = (index / channels, index % channels);
                    let [y, x] = [
                        lines.start + pixel / columns.len(),
                        columns.start + pixel % columns.len(),
                    ];
                    assert_eq!(
                        found,
                        expected(y, x, channel),
                        "{arch:?}, {kernel:?}, {sizes:?}: {y}, {x}, {channel} of {channels}"
                    );
                }
            }
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        for kernel in [[3, 3], [5, 5], [7, 7], [1, 1], [3, 5], [2, 2], [1, 7]] {
            for channels in [1, 3, 4, 7, 8, 12, 16, 17, 20, 24, 31, 40, 272, 300] {
                for (strides, dilations) in [
                    ([1, 1], [1, 1]),
                    ([2, 2], [1, 1]),
                    ([1, 3], [1, 1]),
                    ([2, 1], [3, 2]),
                    ([1, 2], [1, 2]),
                ] {
                    for (input, before) in [
                        ([5, 9], [1, 1]),
                        ([4, 4], [2, 2]),
                        ([3, 11], [0, 3]),
                        ([1, 1], [3, 3]),
                        ([3, 21], [2, 4]),
                    ] {
                        let output = [0, 1].map(|axis: usize| {
                            let reach = (kernel[axis] - 1) * dilations[axis];
                            let padded: usize = input[axis] + 2 * before[axis];
                            padded
                                .checked_sub(reach + 1)
                                .map_or(0, |end| end / strides[axis] + 1)
                        });
                        if channels > 40 && (kernel[0] != 3 || input[0] > 4) {
                            continue;
                        }
                        let sizes = FilterSizes {
                            input,
                            output,
                            strides,
                            dilations,
                            before,
                        };
                        check(channels, kernel, &sizes);
                    }
                }
            }
        }
    }

    fn same(input: [usize; 2]) -> FilterSizes {
        FilterSizes {
            input,
            output: input,
            strides: [1, 1],
            dilations: [1, 1],
            before: [1, 1],
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_position() {
        let fraction = |index: usize| number(index) / 7.0;
        for channels in [3, 20, 40] {
            let weights: Vec<f32> = (0..channels * 9).map(fraction).collect();
            let filter = ChannelFilter::new(&weights, [3, 3]);
            let pixel: Vec<f32> = (0..channels).map(|at| fraction(at + 3)).collect();
            for arch in architectures() {
                let run = |width: usize| {
                    let sizes = FilterSizes {
                        output: [1, width - 2],
                        before: [0, 0],
                        ..same([3, width])
                    };
                    let mut output = vec![0.0; (width - 2) * channels];
                    let image = pixel.repeat(3 * width);
                    let part = [0..1, 0..width - 2];
                    filter.run_on(arch, &sizes, &pixel, &image, part, &mut output);
                    output
                };
                let one = run(3);
                for width in 4..12 {
                    assert_eq!(run(width), one.repeat(width - 2), "{arch:?}, {channels}, {width}");
                }
            }
        }
    }

    #[test]
    fn padding_is_multiplied() {
        for width in [1, 6] {
            let mut weights = [1.0; 16 * 9];
            weights[0] = f32::INFINITY;
            let mut output = vec![0.0; width * 16];
            let image = vec![1.0; width * 16];
            let filter = ChannelFilter::new(&weights, [3, 3]);
            let part = [0..1, 0..width];
            filter.run(&same([1, width]), &[0.0; 16], &image, part, &mut output);
            for pixel in output.chunks(16) {
                assert!(pixel[0].is_nan() && !pixel[1..].iter().any(|sum| sum.is_nan()));
            }
        }
    }

    #[test]
    fn subnormal_weights_are_cleared() {
        let filter = ChannelFilter::new(&[1.0, 1e-40], [1, 1]);
        let mut output = [0.0; 2];
        filter.run(
            &FilterSizes {
                before: [0, 0],
                ..same([1, 1])
            },
            &[0.0; 2],
            &[1e30; 2],
            [0..1, 0..1],
            &mut output,
        );
        assert_eq!(output, [1e30, 0.0]);
    }

    #[test]
    fn sizes_are_checked() {
        fn fails(sizes: FilterSizes, [bias, image, output]: [usize; 3], lines: Range<usize>, expected: &str) {
            let run = || {
                let filter = ChannelFilter::new(&[1.0; 18], [3, 3]);
                let (bias, image) = (vec![0.0; bias], vec![0.0; image]);
                let part = [lines, 0..3];
                filter.run(&sizes, &bias, &image, part, &mut vec![0.0; output]);
            };
            let message = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("a panic");
            let message = message.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(message.contains(expected), "{message:?}, not {expected}");
        }
        let sizes = same([2, 3]);
        fails(sizes, [1, 12, 12], 0..2, "one bias for each channel");
        fails(
            sizes,
            [2, 11, 12],
            0..2,
            "an image of 2 x 3 pixels of 2 channels has 11 elements",
        );
        fails(
            sizes,
            [2, 12, 12],
            0..1,
            "an output of 1 x 3 pixels of 2 channels has 12 elements",
        );
        fails(sizes, [2, 12, 6], 2..3, "lines 2..3 and columns 0..3 of [2, 3]");
        let far = FilterSizes {
            strides: [usize::MAX, 1],
            ..same([2, 3])
        };
        fails(
            FilterSizes {
                output: [3, 3],
                ..far
            },
            [2, 12, 18],
            0..3,
            "fit a usize",
        );
        fails(
            FilterSizes {
                dilations: [1, usize::MAX],
                ..sizes
            },
            [2, 12, 12],
            0..2,
            "fit a usize",
        );
    }
}
