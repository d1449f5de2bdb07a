//! Depthwise filters with stride 1, which read their image in place.
//!
//! Padding is not copied around the image: a tap that lies in the padding reads the element next to the image
//! in memory, and a mask clears it. A vector that needs no mask is a plain sum of products.

use std::ops::Range;

/// The number of elements of the widest vector. Lines of masks are padded to whole vectors.
const LANES: usize = 16;

/// The number of vectors whose sums are computed together.
const VECTORS: usize = 4;

/// Maximum number of masks, so that they stay in the L1 cache.
const MOST_MASKS: usize = 1 << 13;

/// Maximum number of products of a line, which is not divided.
const MOST_PRODUCTS: usize = 1 << 18;

/// Maximum width of a line: masks are stored for whole lines.
const MOST_WIDTH: usize = 1 << 12;

/// A filter that is moved over an image with stride 1: for each pixel `[y, x]` of the output, the bias plus the
/// sum over the taps `[i, j]` of `weights[i][j]` times the image's pixel
/// `[y + i * dilations[0] - before[0], x + j * dilations[1] - before[1]]`, or zero outside of the image.
///
/// ```
/// use onnx_gemm::PlaneFilter;
///
/// // Each pixel plus its left neighbour.
/// let filter = PlaneFilter::new([2, 3], [2, 3], [1, 2], [1, 1], [0, 1]).unwrap();
/// let mut sums = [0.0; 6];
/// filter.run(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0, &[1.0, 1.0], 0.5, 0..2, &mut sums);
/// assert_eq!(sums, [1.5, 3.5, 5.5, 4.5, 9.5, 11.5]);
/// ```
#[derive(Clone, Debug)]
pub struct PlaneFilter {
    input: [usize; 2],
    output: [usize; 2],
    kernel: [usize; 2],
    dilations: [usize; 2],
    before: [usize; 2],
    /// The numbers of elements before and after an image that may be read.
    margins: [usize; 2],
    masks: Masks,
}

/// Masks with all bits set where a tap lies in the image.
#[derive(Clone, Debug)]
enum Masks {
    /// One for each tap and pixel. The lines of the output are as wide as those of the image, so that all
    /// pixels are computed as a single line.
    Pixels(Lines),
    /// One for each column of the filter and each pixel of a line.
    Columns {
        masks: Lines,
        /// The pixels of a line that need no mask.
        unmasked: Range<usize>,
    },
}

/// Masks in lines of whole vectors.
#[derive(Clone, Debug)]
struct Lines {
    masks: Vec<f32>,
    width: usize,
}

impl Lines {
    /// Creates lines of `width` pixels without a mask.
    fn new(lines: usize, width: usize) -> Self {
        let width = width.next_multiple_of(LANES);
        Self {
            masks: vec![0.0; lines * width],
            width,
        }
    }

    /// Sets the masks of `pixels` of a line.
    fn set(&mut self, line: usize, pixels: Range<usize>) {
        self.masks[line * self.width..][pixels].fill(f32::from_bits(u32::MAX));
    }
}

impl PlaneFilter {
    /// Prepares filters of the height and width `kernel` for images of the height and width `input`. Returns
    /// `None` if [`LineFilter`](crate::LineFilter) is to be used: for lines that are very long or fill their
    /// vectors badly, and for padding that is larger than the filter or far larger than the image.
    #[must_use]
    pub fn new(
        input: [usize; 2],
        output: [usize; 2],
        kernel: [usize; 2],
        dilations: [usize; 2],
        before: [usize; 2],
    ) -> Option<Self> {
        let reach = |axis: usize| kernel[axis].checked_sub(1)?.checked_mul(dilations[axis]);
        let reaches = [reach(0)?, reach(1)?];
        let fits = |axis: usize| {
            let end = output[axis].checked_add(reaches[axis]);
            // All sizes stay small.
            before[axis] <= reaches[axis]
                && end.is_some_and(|end| end <= input[axis].saturating_add(reaches[axis].saturating_mul(2)))
        };
        if input.contains(&0) || output.contains(&0) || !fits(0) || !fits(1) || output[1] > MOST_WIDTH {
            return None;
        }
        let taps = kernel[0].checked_mul(kernel[1])?;
        let pixels = output[0].checked_mul(output[1])?;
        let masks = taps.checked_mul(pixels.checked_next_multiple_of(LANES)?)?;
        // The pixels of the output for which a tap lies in the image.
        let inside = |axis: usize, tap: usize| {
            let tap = tap * dilations[axis];
            let end = (input[axis] + before[axis]).saturating_sub(tap).min(output[axis]);
            before[axis].saturating_sub(tap).min(end)..end
        };
        let width = output[1];
        let is_flat =
            width == input[1] && !width.is_multiple_of(LANES) && width < 4 * LANES && masks <= MOST_MASKS;
        let (masks, margin) = if is_flat {
            let mut masks = Lines::new(taps, pixels);
            for tap in 0..taps {
                let columns = inside(1, tap % kernel[1]);
                for y in inside(0, tap / kernel[1]) {
                    masks.set(tap, y * width + columns.start..y * width + columns.end);
                }
            }
            let margin = before[0].checked_mul(width)?.checked_add(before[1])?;
            (Masks::Pixels(masks), margin)
        } else {
            let padded = width.next_multiple_of(LANES);
            let is_filled = 4 * width >= 3 * padded;
            if !is_filled || taps.checked_mul(padded)? > MOST_PRODUCTS {
                return None;
            }
            let mut masks = Lines::new(kernel[1], width);
            (0..kernel[1]).for_each(|tap| masks.set(tap, inside(1, tap)));
            let (first, last) = (inside(1, 0), inside(1, kernel[1] - 1));
            let unmasked = first.start.max(last.start)..first.end.min(last.end);
            (Masks::Columns { masks, unmasked }, before[1])
        };
        // The elements from the first one that a vector reads to the last one, without those of its line that
        // do not count.
        let read = match &masks {
            Masks::Pixels(_) => {
                let lines = output[0].checked_add(reaches[0])?;
                lines.checked_mul(width)?.checked_add(reaches[1])?
            }
            Masks::Columns { .. } => {
                let lines = (input[0] - 1).checked_mul(input[1])?;
                lines.checked_add(width + reaches[1])?
            }
        };
        let image = input[0].checked_mul(input[1])?;
        let after = read
            .saturating_sub(image.checked_add(margin)?)
            .checked_add(LANES)?;
        if margin.max(after) > image.saturating_add(MOST_MASKS) {
            return None;
        }
        Some(Self {
            input,
            output,
            kernel,
            dilations,
            before,
            margins: [margin, after],
            masks,
        })
    }

    /// Returns whether [`run`](Self::run) computes all lines at once, whichever it is asked for.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.masks, Masks::Pixels(_))
    }

    /// Writes the sums of `lines` to `sums`, for the image that begins at `start` in `values`. The elements
    /// around the image do not affect the result.
    ///
    /// # Panics
    /// Panics if the image extends past the end of `values`, if there is not one weight for each tap, if `sums`
    /// does not have the size of `lines`, or if `lines` are not all lines where
    /// [`is_whole`](Self::is_whole) is true.
    pub fn run(
        &self,
        values: &[f32],
        start: usize,
        weights: &[f32],
        bias: f32,
        lines: Range<usize>,
        sums: &mut [f32],
    ) {
        self.run_on(pulp::Arch::new(), values, start, weights, bias, lines, sums);
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "those of `run`, and the instruction set"
    )]
    fn run_on(
        &self,
        arch: pulp::Arch,
        values: &[f32],
        start: usize,
        weights: &[f32],
        bias: f32,
        lines: Range<usize>,
        sums: &mut [f32],
    ) {
        let image = self.input[0] * self.input[1];
        let [before, after] = self.margins;
        assert_eq!(
            weights.len(),
            self.kernel[0] * self.kernel[1],
            "one weight for each tap"
        );
        assert!(
            lines.end <= self.output[0] && sums.len() == lines.len() * self.output[1],
            "{} sums for the lines {lines:?} of {:?}",
            sums.len(),
            self.output
        );
        assert!(
            !self.is_whole() || lines == (0..self.output[0]),
            "all lines at once"
        );
        assert!(
            values.len() >= start && values.len() - start >= image,
            "an image of {image} from {start} on in {} values",
            values.len()
        );
        let rows = self.rows_read(&lines);
        let first = start + rows.start * self.input[1];
        let count = rows.len() * self.input[1];
        let copy;
        let values = match first.checked_sub(before).and_then(|first| {
            let values = values.get(first..)?;
            values.get(..before + count + after)
        }) {
            Some(values) => values,
            None => {
                // At the beginning and at the end of `values`, there are no elements around the rows.
                let mut padded = vec![0.0; before + count + after];
                padded[before..][..count].copy_from_slice(&values[first..][..count]);
                copy = padded;
                &copy
            }
        };
        arch.dispatch(Run {
            filter: self,
            values,
            first_row: rows.start,
            weights,
            bias,
            lines,
            sums,
        });
    }

    /// Returns the rows of the image that are read for `lines`.
    fn rows_read(&self, lines: &Range<usize>) -> Range<usize> {
        if self.is_whole() {
            return 0..self.input[0];
        }
        let reach = (self.kernel[0] - 1) * self.dilations[0];
        let end = (lines.end + reach)
            .saturating_sub(self.before[0])
            .min(self.input[0]);
        lines.start.saturating_sub(self.before[0]).min(end)..end
    }

    /// Returns the rows of the filter that lie in the image for the output line `y`.
    fn rows(&self, y: usize) -> Range<usize> {
        let dilation = self.dilations[0].max(1);
        let first = self.before[0].saturating_sub(y).div_ceil(dilation);
        let end = (self.input[0] + self.before[0])
            .saturating_sub(y)
            .div_ceil(dilation);
        let end = end.min(self.kernel[0]);
        first.min(end)..end
    }
}

struct Run<'r> {
    filter: &'r PlaneFilter,
    /// Rows of the image, with margins before the first one and after the last one.
    values: &'r [f32],
    /// The row of the image with which `values` begins.
    first_row: usize,
    weights: &'r [f32],
    bias: f32,
    lines: Range<usize>,
    sums: &'r mut [f32],
}

impl pulp::WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        match &self.filter.masks {
            Masks::Pixels(masks) => self.pixels(simd, masks),
            Masks::Columns { masks, unmasked } => self.columns(simd, masks, unmasked.clone()),
        }
    }
}

impl<'r> Run<'r> {
    /// Computes all pixels as a single line.
    #[inline(always)]
    fn pixels<S: pulp::Simd>(self, simd: S, masks: &Lines) {
        let [_, columns] = self.filter.kernel;
        let taps = self.taps(masks, [columns * masks.width, masks.width]);
        let mut first = 0;
        while first < self.sums.len() {
            first += taps.masked_at(simd, first, &mut self.sums[first..]);
        }
    }

    /// Computes one line after another.
    #[inline(always)]
    fn columns<S: pulp::Simd>(self, simd: S, masks: &Lines, unmasked: Range<usize>) {
        let PlaneFilter {
            input,
            output,
            kernel,
            dilations,
            before,
            ..
        } = *self.filter;
        let taps = self.taps(masks, [0, masks.width]);
        for (y, sums) in self.lines.zip(self.sums.chunks_exact_mut(output[1])) {
            let rows = self.filter.rows(y);
            // Without a row in the image, nothing is read.
            let line = match rows.is_empty() {
                true => 0,
                false => (y + rows.start * dilations[0] - before[0] - self.first_row) * input[1],
            };
            let taps = Taps {
                weights: &taps.weights[rows.start * kernel[1]..rows.end * kernel[1]],
                values: &taps.values[line..],
                ..taps
            };
            let mut first = 0;
            while first < sums.len() {
                let end = first + VECTORS * S::F32_LANES;
                first = if unmasked.start <= first && end <= unmasked.end {
                    taps.plain(simd, first, &mut sums[first..end]);
                    end
                } else {
                    first + taps.masked_at(simd, first, &mut sums[first..])
                };
            }
        }
    }

    #[inline(always)]
    fn taps<'t>(&self, masks: &'t Lines, mask_steps: [usize; 2]) -> Taps<'t>
    where
        'r: 't,
    {
        let PlaneFilter {
            input,
            kernel,
            dilations,
            ..
        } = *self.filter;
        Taps {
            weights: self.weights,
            columns: kernel[1],
            values: self.values,
            steps: [dilations[0] * input[1], dilations[1]],
            masks: &masks.masks,
            mask_steps,
            bias: self.bias,
        }
    }
}

/// The taps of rows of a filter.
#[derive(Clone, Copy)]
struct Taps<'t> {
    weights: &'t [f32],
    /// The number of taps in a row.
    columns: usize,
    /// The values of the first tap.
    values: &'t [f32],
    /// The distances in `values` to the next row and column.
    steps: [usize; 2],
    /// The masks of the first tap.
    masks: &'t [f32],
    /// The distances in `masks` to the next row and column.
    mask_steps: [usize; 2],
    bias: f32,
}

impl Taps<'_> {
    /// Writes the sums of [`VECTORS`] vectors from the pixel `first` on.
    #[inline(always)]
    fn plain<S: pulp::Simd>(&self, simd: S, first: usize, sums: &mut [f32]) {
        let mut registers = [simd.splat_f32s(self.bias); VECTORS];
        for (row, weights) in self.weights.chunks_exact(self.columns).enumerate() {
            let mut at = row * self.steps[0] + first;
            for &weight in weights {
                let (values, _) = S::as_simd_f32s(&self.values[at..at + VECTORS * S::F32_LANES]);
                let weight = simd.splat_f32s(weight);
                for vector in 0..VECTORS {
                    registers[vector] = simd.mul_add_e_f32s(weight, values[vector], registers[vector]);
                }
                at += self.steps[1];
            }
        }
        let (vectors, _) = S::as_mut_simd_f32s(sums);
        vectors.copy_from_slice(&registers);
    }

    /// Writes the sums of at most [`VECTORS`] vectors from the pixel `first` on, and returns their number of
    /// elements.
    #[inline(always)]
    fn masked_at<S: pulp::Simd>(&self, simd: S, first: usize, sums: &mut [f32]) -> usize {
        match sums.len().div_ceil(S::F32_LANES) {
            1 => self.masked::<S, 1>(simd, first, sums),
            2 => self.masked::<S, 2>(simd, first, sums),
            3 => self.masked::<S, 3>(simd, first, sums),
            _ => self.masked::<S, VECTORS>(simd, first, sums),
        }
    }

    /// Writes the sums of `COUNT` vectors from the pixel `first` on, the last of which may be incomplete, and
    /// returns their number of elements. Values without a mask are left out.
    #[inline(always)]
    fn masked<S: pulp::Simd, const COUNT: usize>(&self, simd: S, first: usize, sums: &mut [f32]) -> usize {
        let count = COUNT * S::F32_LANES;
        let mut registers = [simd.splat_f32s(self.bias); COUNT];
        for (row, weights) in self.weights.chunks_exact(self.columns).enumerate() {
            let mut at = row * self.steps[0] + first;
            let mut mask = row * self.mask_steps[0] + first;
            for &weight in weights {
                let (values, _) = S::as_simd_f32s(&self.values[at..at + count]);
                let (masks, _) = S::as_simd_f32s(&self.masks[mask..mask + count]);
                let weight = simd.splat_f32s(weight);
                for vector in 0..COUNT {
                    let value = simd.and_f32s(values[vector], masks[vector]);
                    registers[vector] = simd.mul_add_e_f32s(weight, value, registers[vector]);
                }
                at += self.steps[1];
                mask += self.mask_steps[1];
            }
        }
        let used = count.min(sums.len());
        let (vectors, rest) = S::as_mut_simd_f32s(&mut sums[..used]);
        for (to, register) in vectors.iter_mut().zip(registers) {
            *to = register;
        }
        if !rest.is_empty() {
            simd.partial_store_f32s(rest, registers[COUNT - 1]);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::microkernel::architectures;

    /// Compares the sums of three images with those of plain loops. Returns whether the sizes are supported.
    fn check(
        input: [usize; 2],
        kernel: [usize; 2],
        dilations: [usize; 2],
        before: [usize; 2],
        after: [usize; 2],
    ) -> bool {
        let output = [0, 1].map(|axis| {
            let padded = input[axis] + before[axis] + after[axis];
            padded.saturating_sub((kernel[axis] - 1) * dilations[axis])
        });
        let Some(filter) = PlaneFilter::new(input, output, kernel, dilations, before) else {
            return false;
        };
        // Small integers have exact sums in any order. What is not a number may only be around the images.
        let number = |index: usize| (index * 7919 % 17) as f32 - 8.0;
        let image = input[0] * input[1];
        let mut values = vec![0.0; 3 * image];
        let weights: Vec<f32> = (0..kernel[0] * kernel[1]).map(number).collect();
        for start in [0, image, 2 * image] {
            let at = |y: usize, x: usize| -> f32 {
                let sum = |(tap, weight): (usize, &f32)| {
                    let y = (y + tap / kernel[1] * dilations[0]).checked_sub(before[0])?;
                    let x = (x + tap % kernel[1] * dilations[1]).checked_sub(before[1])?;
                    (y < input[0] && x < input[1])
                        .then(|| weight * number(3 * (start + y * input[1] + x) + 1))
                };
                3.0 + weights.iter().enumerate().filter_map(sum).sum::<f32>()
            };
            values.fill(f32::NAN);
            let numbers = (start..).map(|index| number(3 * index + 1));
            values[start..][..image]
                .iter_mut()
                .zip(numbers)
                .for_each(|(value, number)| *value = number);
            for arch in architectures() {
                let middle = if filter.is_whole() { 0 } else { output[0] / 2 };
                for lines in [0..middle, middle..output[0]]
                    .into_iter()
                    .filter(|lines| !lines.is_empty())
                {
                    let mut sums = vec![f32::NAN; lines.len() * output[1]];
                    filter.run_on(arch, &values, start, &weights, 3.0, lines.clone(), &mut sums);
                    for (index, found) in sums.into_iter().enumerate() {
                        let [y, x] = [lines.start + index / output[1], index % output[1]];
                        assert_eq!(found, at(y, x), "{arch:?}, image {start}: {y}, {x} of {filter:?}");
                    }
                }
            }
        }
        true
    }

    #[test]
    fn sums_are_those_of_plain_loops() {
        let (mut whole, mut by_lines) = (0, 0);
        for size in [
            [1, 1],
            [1, 9],
            [7, 7],
            [5, 14],
            [14, 14],
            [3, 16],
            [20, 20],
            [24, 24],
            [4, 31],
            [9, 80],
            [2, 150],
        ] {
            for kernel in [[1, 1], [3, 3], [1, 5], [5, 1], [7, 7]] {
                for dilations in [[1, 1], [2, 3]] {
                    let reach = [0, 1].map(|axis: usize| (kernel[axis] - 1) * dilations[axis]);
                    let half = reach.map(|reach: usize| reach / 2);
                    for (before, after) in [
                        (half, half),
                        ([0, 0], [0, 0]),
                        (reach, [0, 0]),
                        ([0, 0], reach),
                        (reach, reach),
                    ] {
                        let output = [0, 1].map(|axis: usize| {
                            (size[axis] + before[axis] + after[axis]).saturating_sub(reach[axis])
                        });
                        let is_supported = check(size, kernel, dilations, before, after);
                        let is_filled = 4 * output[1] >= 3 * output[1].next_multiple_of(LANES);
                        assert!(!is_supported || !output.contains(&0), "{size:?}, {kernel:?}");
                        assert!(
                            is_supported || !is_filled || output.contains(&0),
                            "{size:?}, {kernel:?}"
                        );
                        match PlaneFilter::new(size, output, kernel, dilations, before) {
                            Some(filter) if filter.is_whole() => whole += 1,
                            Some(_) => by_lines += 1,
                            None => {}
                        }
                    }
                }
            }
        }
        assert!(
            whole > 50 && by_lines > 30,
            "{whole} at once, {by_lines} by lines"
        );
    }

    #[test]
    fn sizes_that_are_not_supported_are_left_to_others() {
        let new = |input, before| PlaneFilter::new(input, input, [3, 3], [1, 1], before);
        assert!(new([4, 4], [1, 1]).is_some());
        // Larger padding than the filter, and long lines.
        assert!(new([4, 4], [3, 1]).is_none());
        assert!(new([4, 4], [1, 3]).is_none());
        assert!(new([1, MOST_WIDTH + 1], [1, 1]).is_none());
        assert!(new([0, 4], [1, 1]).is_none());
        assert!(PlaneFilter::new([4, 4], [4, 4], [3, 3], [usize::MAX, 1], [1, 1]).is_none());
        assert!(PlaneFilter::new([4, 4], [9, 4], [3, 3], [1, 1], [1, 1]).is_none());
        assert!(PlaneFilter::new([usize::MAX, 4], [usize::MAX, 4], [3, 3], [1, 1], [1, 1]).is_none());
    }

    #[test]
    #[should_panic(expected = "all lines at once")]
    fn whole_images_are_not_split() {
        let filter = PlaneFilter::new([4, 4], [4, 4], [3, 3], [1, 1], [1, 1]);
        let Some(filter) = filter else { return };
        filter.run(&[0.0; 16], 0, &[0.0; 9], 0.0, 0..2, &mut [0.0; 8]);
    }
}
