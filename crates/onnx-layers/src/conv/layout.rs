//! Memory layout of the image for FP32 convolutions as matrix products (implicit im2col).
//!
//! The padded image is copied once into one plane per offset within a stride. The elements of a line that are
//! multiplied by the same weight are then contiguous. An image that needs neither padding nor strides is read
//! in place.

use onnx_gemm::{SLACK, copy_line};
use onnx_tensor::prelude::*;

use crate::conv::geometry::Geometry;
use onnx_tensor::cancelling::{PART, Pace};

impl Geometry {
    /// Returns the height and width of a plane: the part of the image for one offset within a stride. Returns
    /// `None` on overflow.
    fn plane(&self) -> Option<[usize; 2]> {
        let size = |axis: usize| {
            let reach = (self.kernel[axis] - 1).checked_mul(self.dilations[axis])?;
            self.output[axis].checked_add(reach / self.strides[axis])
        };
        Some([size(0)?, size(1)?])
    }

    /// Returns whether the image can be read in place: it needs neither padding nor a split into planes.
    fn is_plain(&self, plane: [usize; 2]) -> bool {
        self.strides == [1, 1] && self.before == [0, 0] && plane == self.input
    }

    /// Returns the layout for whole images; `None` if it would take far more memory than the image and the
    /// result.
    pub(crate) fn layout(&self) -> Option<Layout> {
        self.layout_of(self.output[0])
    }

    /// Returns the layout for bands of at most `lines` output lines.
    pub(super) fn layout_of(&self, lines: usize) -> Option<Layout> {
        let plane = self.plane()?;
        // Returns the offsets within a stride that any weight reads.
        let phases = |axis: usize| {
            let steps = (0..self.kernel[axis]).map(|step| step * self.dilations[axis]);
            let mut phases: Vec<usize> = steps.map(|place| place % self.strides[axis]).collect();
            phases.sort_unstable();
            phases.dedup();
            phases
        };
        let (rows, columns) = (phases(0), phases(1));
        let count = rows.len() * columns.len();
        let all = [plane[0], plane[1], count, self.channels];
        let all = all.into_iter().try_fold(1usize, usize::checked_mul)?;
        let image =
            |[height, width]: [usize; 2], channels: usize| height.checked_mul(width)?.checked_mul(channels);
        let [given, made] = [
            image(self.input, self.channels)?,
            image(self.output, self.rows.max(self.channels))?,
        ];
        if all > given.checked_add(made)?.checked_mul(4)?.checked_add(1 << 16)? {
            return None;
        }
        let is_plain = self.is_plain(plane) && self.rows > 1;
        let reach = plane[0] - self.output[0];
        let line = plane[1] * count * self.channels;
        let band = match is_plain {
            true => lines,
            false => (BAND / line).saturating_sub(reach).max(4 * reach + 4).min(lines),
        };
        let plane = match is_plain {
            true => plane,
            false => [band + reach, plane[1]],
        };
        let size = plane[0] * plane[1];
        let mut offsets = Vec::with_capacity(self.depth());
        for channel in 0..self.channels {
            for y in 0..self.kernel[0] {
                for x in 0..self.kernel[1] {
                    let (y, x) = (y * self.dilations[0], x * self.dilations[1]);
                    let row = rows.binary_search(&(y % self.strides[0])).ok()?;
                    let column = columns.binary_search(&(x % self.strides[1])).ok()?;
                    let phase = row * columns.len() + column;
                    let place = y / self.strides[0] * plane[1] + x / self.strides[1];
                    offsets.push((channel * count + phase) * size + place);
                }
            }
        }
        Some(Layout {
            is_plain,
            band,
            plane,
            phases: [rows, columns],
            offsets,
        })
    }
}

/// Memory layout of the image for convolution as matrix products (implicit im2col).
#[derive(Debug)]
pub(crate) struct Layout {
    /// Whether the image is read in place.
    is_plain: bool,
    /// Output lines per band, chosen so that a band's input stays in the caches.
    pub(super) band: usize,
    /// Height and width of a band's plane.
    plane: [usize; 2],
    phases: [Vec<usize>; 2],
    /// For each term of the sums, the offset at which its elements start.
    pub(super) offsets: Vec<usize>,
}

impl Layout {
    /// Returns the distance between the beginnings of two lines.
    pub(super) fn pitch(&self) -> usize {
        self.plane[1]
    }

    /// Returns the number of elements of one channel in all planes.
    fn channel(&self) -> usize {
        self.plane[0] * self.plane[1] * self.phases[0].len() * self.phases[1].len()
    }

    /// Returns the input of the output lines starting at `first_line`: the image itself, or its copy in
    /// `scratch`.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(super) fn values<'v>(
        &self,
        geometry: &Geometry,
        first_line: usize,
        image: &'v [f32],
        scratch: &'v mut Scratch,
        pace: &mut Pace,
    ) -> Result<&'v [f32]> {
        if self.is_plain {
            return Ok(&image[first_line * self.plane[1]..]);
        }
        // The padding of all bands is zeroed here, once, and never overwritten.
        scratch.0.resize(geometry.channels * self.channel() + SLACK, 0.0);
        self.spread(geometry, first_line, image, &mut scratch.0, pace)?;
        Ok(&scratch.0)
    }

    /// Copies the channels of a group into planes, for the output lines starting at `first_line`.
    fn spread(
        &self,
        geometry: &Geometry,
        first_line: usize,
        image: &[f32],
        planes: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let [height, width] = geometry.input;
        let is_contiguous = geometry.strides == [1, 1] && geometry.before[1] == 0 && self.plane[1] == width;
        let of = |&first: &usize| Columns::of(first, geometry.strides[1], geometry.before[1]);
        let columns: ShortVec<Columns> = self.phases[1].iter().map(of).collect();
        let planes = planes.chunks_exact_mut(self.channel());
        for (channel, planes) in image.chunks_exact(height * width).zip(planes) {
            if is_contiguous {
                self.copy_lines(geometry, first_line, channel, planes, pace)?;
                continue;
            }
            pulp::Arch::new().dispatch(Spread {
                layout: self,
                geometry,
                first_line,
                channel,
                columns: &columns,
                planes,
                pace,
            })?;
        }
        Ok(())
    }

    /// Copies a channel into its only plane, whose lines have the same width and no padding between them, for
    /// the output lines starting at `first_line`. Narrow images have too many lines to copy them one by one.
    fn copy_lines(
        &self,
        geometry: &Geometry,
        first_line: usize,
        channel: &[f32],
        plane: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let (width, before) = (self.plane[1], geometry.before[0]);
        let lines_above = before.saturating_sub(first_line).min(self.plane[0]);
        let (above, rest) = plane.split_at_mut(lines_above * width);
        let first = (first_line + lines_above).saturating_sub(before) * width;
        let from = channel.get(first..).unwrap_or_default();
        let (lines, below) = rest.split_at_mut(from.len().min(rest.len()));
        pace.over(above, |padding| padding.fill(0.0))?;
        pace.pairs(from, lines, copy_line)?;
        pace.over(below, |padding| padding.fill(0.0))
    }
}

/// A channel that is copied into its planes, for the output lines starting at `first_line`.
struct Spread<'s> {
    layout: &'s Layout,
    geometry: &'s Geometry,
    first_line: usize,
    channel: &'s [f32],
    columns: &'s [Columns],
    planes: &'s mut [f32],
    pace: &'s mut Pace,
}

impl pulp::WithSimd for Spread<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> Result<()> {
        let [height, width] = self.geometry.input;
        let [plane_height, plane_width] = self.layout.plane;
        let size = plane_height * plane_width;
        let planes_of_row = self.planes.chunks_exact_mut(size * self.columns.len());
        for (&first_row, planes) in self.layout.phases[0].iter().zip(planes_of_row) {
            for row in 0..plane_height {
                let y = (self.first_line + row) * self.geometry.strides[0] + first_row;
                let at = row * plane_width;
                let Some(y) = y.checked_sub(self.geometry.before[0]).filter(|&y| y < height) else {
                    for plane in planes.chunks_exact_mut(size) {
                        self.pace
                            .over(&mut plane[at..][..plane_width], |line| line.fill(0.0))?;
                    }
                    continue;
                };
                let from = &self.channel[y * width..][..width];
                if let [first, second] = self.columns
                    && first.stride == 2
                {
                    let (one, two) = planes.split_at_mut(size);
                    let lines = [&mut one[at..][..plane_width], &mut two[at..][..plane_width]];
                    first.copy_halves(*second, from, lines, self.pace)?;
                    continue;
                }
                for (columns, plane) in self.columns.iter().zip(planes.chunks_exact_mut(size)) {
                    columns.copy(simd, from, &mut plane[at..][..plane_width], self.pace)?;
                }
            }
        }
        Ok(())
    }
}

/// Number of elements copied per band.
const BAND: usize = if cfg!(test) { 1 << 6 } else { 1 << 18 };

/// The columns of an image line that a plane holds.
#[derive(Clone, Copy)]
struct Columns {
    /// Number of padding elements at the start of the plane's line.
    skipped: usize,
    /// Index of the first column in the image line.
    start: usize,
    stride: usize,
}

impl Columns {
    /// Finds the columns at offset `first` within each stride, for a line with `before` padding elements.
    fn of(first: usize, stride: usize, before: usize) -> Self {
        let skipped = before.saturating_sub(first).div_ceil(stride);
        Self {
            skipped,
            start: skipped * stride + first - before,
            stride,
        }
    }

    /// Copies the columns of an image line into `line` after the padding, which the caller has zeroed.
    #[inline(always)]
    fn copy<S: pulp::Simd>(self, simd: S, from: &[f32], line: &mut [f32], pace: &mut Pace) -> Result<()> {
        let (Some(line), Some(from)) = (line.get_mut(self.skipped..), from.get(self.start..)) else {
            return Ok(());
        };
        for (from, line) in from.chunks(PART * self.stride).zip(line.chunks_mut(PART)) {
            pace.spend(line.len() as u64 / 4 + 1)?;
            match self.stride {
                1 => copy_vectors(simd, from, line),
                2 => copy_every_second(from, line),
                stride => {
                    let from = from.iter().step_by(stride);
                    line.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
            }
        }
        Ok(())
    }

    /// Copies a line of an image with stride 2: its columns to the first of `lines`, and the `others` to the
    /// second.
    #[inline(always)]
    fn copy_halves(
        self,
        others: Self,
        from: &[f32],
        [line, other]: [&mut [f32]; 2],
        pace: &mut Pace,
    ) -> Result<()> {
        let line = line.get_mut(self.skipped..).unwrap_or_default();
        let other = other.get_mut(others.skipped..).unwrap_or_default();
        // One of them begins with the first element of the image, the other with the second.
        let (even, odd) = match self.start {
            0 => (line, other),
            _ => (other, line),
        };
        for (part, from) in from.chunks(2 * PART).enumerate() {
            pace.spend(from.len() as u64 / 4 + 1)?;
            // One of them can end before the other.
            let part_of = |line: &mut [f32]| part * PART..line.len().min((part + 1) * PART);
            let (of_even, of_odd) = (part_of(even), part_of(odd));
            halves(
                from,
                even.get_mut(of_even).unwrap_or_default(),
                odd.get_mut(of_odd).unwrap_or_default(),
            );
        }
        Ok(())
    }
}

/// Copies up to the end of the shorter slice, in whole vectors.
#[inline(always)]
fn copy_vectors<S: pulp::Simd>(simd: S, from: &[f32], to: &mut [f32]) {
    let count = from.len().min(to.len());
    let (from, to) = (&from[..count], &mut to[..count]);
    let ((vectors, rest), (to_vectors, to_rest)) = (S::as_simd_f32s(from), S::as_mut_simd_f32s(to));
    for (to, from) in to_vectors.iter_mut().zip(vectors) {
        *to = *from;
    }
    if !rest.is_empty() {
        simd.partial_store_f32s(to_rest, simd.partial_load_f32s(rest));
    }
}

/// Copies elements with even indices to `even`, and those with odd indices to `odd`, each up to the end of the
/// shorter slice.
#[inline(always)]
fn halves(from: &[f32], even: &mut [f32], odd: &mut [f32]) {
    // Blocks of constant length are vectorized.
    const BLOCK: usize = 16;
    let (blocks, _) = from.as_chunks::<{ 2 * BLOCK }>();
    let done = blocks.len().min(even.len() / BLOCK).min(odd.len() / BLOCK);
    let (evens, odds) = (even.as_chunks_mut::<BLOCK>().0, odd.as_chunks_mut::<BLOCK>().0);
    for (from, (even, odd)) in blocks[..done].iter().zip(evens.iter_mut().zip(odds)) {
        *even = std::array::from_fn(|at| from[2 * at]);
        *odd = std::array::from_fn(|at| from[2 * at + 1]);
    }
    let from = &from[2 * done * BLOCK..];
    let (even, odd) = (&mut even[done * BLOCK..], &mut odd[done * BLOCK..]);
    for (to, from) in even.iter_mut().zip(from.iter().step_by(2)) {
        *to = *from;
    }
    for (to, from) in odd.iter_mut().zip(from.iter().skip(1).step_by(2)) {
        *to = *from;
    }
}

/// Copies every second element, starting with the first one, up to the end of the shorter slice.
#[inline(always)]
fn copy_every_second(from: &[f32], to: &mut [f32]) {
    // Blocks of constant length are vectorized.
    const BLOCK: usize = 8;
    let count = to.len().min(from.len().div_ceil(2));
    let (blocks, rest) = to[..count].as_chunks_mut::<BLOCK>();
    let done = blocks.len() * BLOCK;
    for (to, from) in blocks.iter_mut().zip(from.chunks(2 * BLOCK)) {
        match from.first_chunk::<{ 2 * BLOCK }>() {
            Some(from) => *to = std::array::from_fn(|at| from[2 * at]),
            // The last block may lack the element after its last one.
            None => to
                .iter_mut()
                .zip(from.iter().step_by(2))
                .for_each(|(to, from)| *to = *from),
        }
    }
    let rest_from = from.iter().skip(2 * done).step_by(2);
    rest.iter_mut().zip(rest_from).for_each(|(to, from)| *to = *from);
}

/// The buffer for the planes of a band.
#[derive(Default)]
pub(super) struct Scratch(Vec<f32>);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn geometry(input: [usize; 2], kernel: [usize; 2]) -> Geometry {
        Geometry {
            batch: 1,
            groups: 1,
            channels: 2,
            rows: 3,
            input,
            output: input,
            kernel,
            strides: [1, 1],
            dilations: [1, 1],
            before: [kernel[0] / 2, kernel[1] / 2],
        }
    }

    #[test]
    fn lines_are_filled_behind_their_padding() {
        let from: Vec<f32> = (1..=7u8).map(f32::from).collect();
        let filled = |first: usize, stride: usize, before: usize| {
            let mut line = [0.0; 6];
            let columns = Columns::of(first, stride, before);
            columns
                .copy(pulp::Scalar, &from, &mut line, &mut Pace::default())
                .unwrap();
            line
        };
        assert_eq!(filled(0, 1, 0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(filled(0, 1, 2), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(filled(0, 2, 0), [1.0, 3.0, 5.0, 7.0, 0.0, 0.0]);
        assert_eq!(filled(1, 2, 0), [2.0, 4.0, 6.0, 0.0, 0.0, 0.0]);
        assert_eq!(filled(0, 2, 1), [0.0, 2.0, 4.0, 6.0, 0.0, 0.0]);
        assert_eq!(filled(1, 2, 1), [1.0, 3.0, 5.0, 7.0, 0.0, 0.0]);
        assert_eq!(filled(0, 3, 4), [0.0, 0.0, 3.0, 6.0, 0.0, 0.0]);
        assert_eq!(filled(0, 1, 9), [0.0; 6]);
        assert_eq!(filled(8, 9, 0), [0.0; 6]);
    }

    /// Compares the bands of two images with the padded lines that they consist of.
    fn check_bands(geometry: &Geometry) {
        let ([height, width], [above, left]) = (geometry.input, geometry.before);
        let layout = geometry.layout().unwrap();
        let mut scratch = Scratch::default();
        for seed in [1, 1000] {
            let image: Vec<f32> = (seed..).map(|at| at as f32).take(2 * height * width).collect();
            // Each band overwrites the lines of the previous one.
            for first_line in (0..geometry.output[0]).step_by(layout.band) {
                let pace = &mut Pace::default();
                let found = layout.values(geometry, first_line, &image, &mut scratch, pace);
                for (at, &found) in found.unwrap()[..2 * layout.channel()].iter().enumerate() {
                    let (channel, at) = (at / layout.channel(), at % layout.channel());
                    let y = (first_line + at / layout.pitch()).checked_sub(above);
                    let x = (at % layout.pitch()).checked_sub(left);
                    let place = y.zip(x).filter(|&(y, x)| y < height && x < width);
                    let expected = place.map_or(0.0, |(y, x)| image[(channel * height + y) * width + x]);
                    assert_eq!(found, expected, "{geometry:?}: {at} of {first_line}");
                }
            }
        }
    }

    #[test]
    fn bands_have_padding_on_all_sides() {
        for (height, width) in [(1, 1), (7, 3), (40, 2), (200, 1)] {
            for (kernel, above) in [(1, 0), (3, 0), (3, 1), (5, 4), (9, 8), (3, 100)] {
                let mut geometry = geometry([height, width], [kernel, 1]);
                geometry.rows = 1;
                for (left, right) in [(0, 0), (1, 0), (0, 1), (2, 3)] {
                    geometry.before = [above, left];
                    geometry.output = [height + 2 * above + 1 - kernel.min(height), left + width + right];
                    check_bands(&geometry);
                }
                // The padding on the left takes the place of columns on the right.
                geometry.before = [above, 1];
                geometry.output[1] = width;
                check_bands(&geometry);
            }
        }
    }

    #[test]
    fn every_second_element_is_copied_up_to_the_end_of_the_shorter_slice() {
        for source in 0..=40u8 {
            for destination in 0..=20 {
                let from: Vec<f32> = (1..=source).map(f32::from).collect();
                let mut expected = vec![-1.0; destination];
                let elements = expected.iter_mut().zip(from.iter().step_by(2));
                elements.for_each(|(to, from)| *to = *from);
                let mut found = vec![-1.0; destination];
                copy_every_second(&from, &mut found);
                assert_eq!(found, expected, "{source} to {destination}");
            }
        }
    }

    #[test]
    fn halves_are_copied_up_to_the_ends_of_the_slices() {
        for source in [0, 1, 2, 31, 32, 33, 64, 65, 100] {
            for [evens, odds] in [[0, 0], [1, 0], [16, 16], [17, 15], [33, 32], [51, 60]] {
                let from: Vec<f32> = (1..=source).map(|at| at as f32).collect();
                let expected = |count: usize, first: usize| {
                    let elements = from.iter().copied().skip(first).step_by(2);
                    let padded = elements.chain(std::iter::repeat(-1.0));
                    padded.take(count).collect::<Vec<f32>>()
                };
                let (mut even, mut odd) = (vec![-1.0; evens], vec![-1.0; odds]);
                halves(&from, &mut even, &mut odd);
                assert_eq!(
                    [even, odd],
                    [expected(evens, 0), expected(odds, 1)],
                    "{source} to {evens} and {odds}"
                );
            }
        }
    }

    #[test]
    fn images_with_stride_2_are_spread_over_four_planes() {
        for (height, width) in [
            (1, 1),
            (1, 2),
            (5, 7),
            (8, 70),
            (9, 33),
            (1, 2 * PART + 1),
            (2, 2 * PART),
        ] {
            for before in [0, 1, 2, 3] {
                let mut geometry = geometry([height, width], [3, 3]);
                (geometry.strides, geometry.before) = ([2, 2], [before, before]);
                geometry.output = [height, width].map(|size| (size + 2 * before).div_ceil(2));
                let image: Vec<f32> = (1..).map(|at| at as f32).take(2 * height * width).collect();
                let layout = geometry.layout().unwrap();
                let mut scratch = Scratch::default();
                for first_line in (0..geometry.output[0]).step_by(layout.band) {
                    let found =
                        layout.values(&geometry, first_line, &image, &mut scratch, &mut Pace::default());
                    let size = layout.plane[0] * layout.plane[1];
                    for (at, &found) in found.unwrap()[..2 * layout.channel()].iter().enumerate() {
                        let (channel, phase) = (at / layout.channel(), at % layout.channel() / size);
                        let (row, column) = (at % size / layout.pitch(), at % layout.pitch());
                        let y = (2 * (first_line + row) + phase / 2).checked_sub(before);
                        let x = (2 * column + phase % 2).checked_sub(before);
                        let place = y.zip(x).filter(|&(y, x)| y < height && x < width);
                        let expected = place.map_or(0.0, |(y, x)| image[(channel * height + y) * width + x]);
                        assert_eq!(found, expected, "{geometry:?}: {at} of {first_line}");
                    }
                }
            }
        }
    }

    #[test]
    fn only_phases_that_are_used_are_spread_out() {
        let mut single = geometry([8, 8], [1, 1]);
        single.strides = [4, 4];
        single.output = [2, 2];
        let layout = single.layout().unwrap();
        assert_eq!((layout.channel(), layout.plane), (4, [2, 2]));
        assert!(geometry([8, 8], [1, 1]).layout().unwrap().is_plain);
        assert!(!geometry([8, 8], [3, 3]).layout().unwrap().is_plain);
    }

    #[test]
    fn padding_that_is_far_larger_than_the_image_is_left_alone() {
        let mut wide = geometry([1, 1], [3, 3]);
        wide.dilations = [1 << 20, 1 << 20];
        wide.before = wide.dilations;
        assert!(wide.layout().is_none());
        wide.dilations = [usize::MAX / 2, 4];
        assert!(wide.layout().is_none());
    }
}
