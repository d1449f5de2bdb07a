//! FP32 convolutions in one and two dimensions, with bias and activation in the epilogue.
//!
//! The padded image is copied once into one plane per offset within a stride. The elements of a line that are
//! multiplied by the same weight are then contiguous, so [`LineGemm`] and [`LineFilter`] can read them
//! (implicit im2col).

use std::ops::Range;

use onnx_gemm::{LineFilter, LineGemm, SLACK, copy_line, pack_rows, packed_len, unpack_rows};
use onnx_tensor::prelude::*;

use crate::{least_work::PRODUCTS, split_products::products};
use onnx_kernels::elementwise::Activation;
use onnx_tensor::cancelling::{PART, Pace, in_parts};
use onnx_tensor::{
    elements::{elements, tensor, written},
    split, threads,
};

/// Sizes, strides, dilations and padding of a convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Input channels of one group.
    pub(crate) channels: usize,
    /// Output channels of one group.
    pub(crate) rows: usize,
    /// Height and width of the image.
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) strides: [usize; 2],
    pub(crate) dilations: [usize; 2],
    /// Padding above and on the left. Rows below the image and columns on its right also count as padding.
    pub(crate) before: [usize; 2],
}

impl Geometry {
    /// Returns the number of terms of each sum: the channels of a group times the size of the kernel.
    pub(crate) fn depth(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Returns the number of elements of one group of an image.
    fn image(&self) -> usize {
        self.channels * self.input[0] * self.input[1]
    }

    /// Returns the number of elements of one output channel.
    fn positions(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Splits the output channels of a group into about `parts` ranges, each of at least two channels, since
    /// the packed weights of a single channel have a different order.
    fn blocks_of_rows(&self, parts: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.rows;
        let step = all.div_ceil(parts).next_multiple_of(ROWS);
        // If the last block would have a single channel, the channel is added to the previous block.
        let starts = (0..all)
            .step_by(step)
            .filter(move |&first| first == 0 || first + 1 < all);
        starts.map(move |first| match first + step + 1 >= all {
            true => first..all,
            false => first..first + step,
        })
    }

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
    fn layout_of(&self, lines: usize) -> Option<Layout> {
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
    band: usize,
    /// Height and width of a band's plane.
    plane: [usize; 2],
    phases: [Vec<usize>; 2],
    /// For each term of the sums, the offset at which its elements start.
    offsets: Vec<usize>,
}

impl Layout {
    /// Returns the number of elements of one channel in all planes.
    fn channel(&self) -> usize {
        self.plane[0] * self.plane[1] * self.phases[0].len() * self.phases[1].len()
    }

    /// Returns the input of the output lines starting at `first_line`: the image itself, or its copy in
    /// `scratch`.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    fn values<'v>(
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
        let of = |&first: &usize| Columns::of(first, geometry.strides[1], geometry.before[1]);
        let columns: ShortVec<Columns> = self.phases[1].iter().map(of).collect();
        let planes = planes.chunks_exact_mut(self.channel());
        for (channel, planes) in image.chunks_exact(height * width).zip(planes) {
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
    fn with_simd<S: pulp::Simd>(self, _: S) -> Result<()> {
        let [height, width] = self.geometry.input;
        let [plane_height, plane_width] = self.layout.plane;
        let mut planes = self.planes.chunks_exact_mut(plane_height * plane_width);
        for &first_row in &self.layout.phases[0] {
            for (columns, plane) in self.columns.iter().zip(&mut planes) {
                for (row, line) in plane.chunks_exact_mut(plane_width).enumerate() {
                    let y = (self.first_line + row) * self.geometry.strides[0] + first_row;
                    match y.checked_sub(self.geometry.before[0]).filter(|&y| y < height) {
                        Some(y) => {
                            columns.copy(&self.channel[y * width..(y + 1) * width], line, self.pace)?;
                        }
                        None => self.pace.over(line, |line| line.fill(0.0))?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Number of elements copied per band.
const BAND: usize = 1 << 18;

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
    fn copy(self, from: &[f32], line: &mut [f32], pace: &mut Pace) -> Result<()> {
        let (Some(line), Some(from)) = (line.get_mut(self.skipped..), from.get(self.start..)) else {
            return Ok(());
        };
        for (from, line) in from.chunks(PART * self.stride).zip(line.chunks_mut(PART)) {
            pace.spend(line.len() as u64 / 4 + 1)?;
            match self.stride {
                1 => copy_line(from, line),
                2 => copy_every_second(from, line),
                stride => {
                    let from = from.iter().step_by(stride);
                    line.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                }
            }
        }
        Ok(())
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

/// A convolution with packed weights.
#[derive(Debug)]
pub(crate) struct Convolution {
    geometry: Geometry,
    layout: Layout,
    /// One value for each output channel; empty if there is no bias.
    bias: Vec<f32>,
    activation: Option<Activation>,
    /// Shape of the result.
    shape: ShortVec<usize>,
}

impl Convolution {
    pub(crate) fn new(
        geometry: Geometry,
        layout: Layout,
        bias: Vec<f32>,
        activation: Option<Activation>,
        shape: &[usize],
    ) -> Self {
        Self {
            geometry,
            layout,
            bias,
            activation,
            shape: shape.into(),
        }
    }
}

/// Packs the weights of all groups.
pub(crate) fn packed(geometry: &Geometry, weights: &[f32]) -> Result<Tensor> {
    let groups = weights.chunks_exact(geometry.rows * geometry.depth());
    let mut packed = Vec::with_capacity(groups.len() * packed_len(geometry.rows, geometry.depth()));
    groups.for_each(|group| packed.extend(pack_rows(geometry.rows, group)));
    tensor(&[packed.len()], packed)
}

/// Reverses [`packed`](Self::packed) for groups of `rows` output channels.
pub(crate) fn unpacked(rows: usize, depth: usize, packed: &Tensor) -> Result<Vec<f32>> {
    let groups = elements::<f32>(packed)?.chunks_exact(packed_len(rows, depth).max(1));
    Ok(groups.flat_map(|group| unpack_rows(rows, group)).collect())
}

/// The inputs of one group of an image.
#[derive(Clone, Copy)]
struct Group<'g> {
    image: &'g [f32],
    /// The weights as packed by [`packed`](Convolution::packed).
    weights: &'g [f32],
    /// The bias of each output channel.
    bias: &'g [f32],
}

/// A range of output lines of a range of channels.
struct Block<'b> {
    /// Range of channels within the group.
    rows: Range<usize>,
    lines: Range<usize>,
    /// For each channel of the block, its lines.
    output: ShortVec<&'b mut [f32]>,
}

/// Minimum number of lines per block. Lines at the border of two blocks are copied for both blocks.
const LEAST_LINES: usize = 4;

/// The number of channels in a block is a multiple of this number, so that its weights are whole packed
/// panels.
const ROWS: usize = 8;

/// Minimum number of terms per sum in the cost estimate, since short sums are memory-bound.
const LEAST_TERMS: usize = 32;

/// Like [`LEAST_TERMS`], for a single output channel, which uses each input element only once.
const ALONE_TERMS: usize = 128;

/// Minimum number of positions in the cost estimate: with fewer positions, reading the weights dominates.
const LEAST_POSITIONS: usize = 8;

impl Convolution {
    /// Computes the convolution of `images` with weights packed by [`packed`](Self::packed).
    pub(super) fn run(&self, images: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let geometry = &self.geometry;
        let (images, weights) = (elements::<f32>(images)?, elements::<f32>(weights)?);
        let made = geometry.rows * geometry.positions();
        let count = geometry.batch * geometry.groups;
        let of_group = packed_len(geometry.rows, geometry.depth());
        ensure!(
            images.len() == count * geometry.image() && weights.len() == geometry.groups * of_group,
            "a convolution of {} numbers, not {}",
            images.len(),
            count * geometry.image()
        );
        let group = |index: usize| {
            let group = index % geometry.groups;
            Group {
                image: &images[index * geometry.image()..][..geometry.image()],
                weights: &weights[group * of_group..][..of_group],
                bias: &self.bias[group * geometry.rows..][..geometry.rows],
            }
        };
        let terms = geometry.depth().max(match geometry.rows {
            1 => ALONE_TERMS,
            _ => LEAST_TERMS,
        });
        let each = products([terms, geometry.rows, geometry.positions().max(LEAST_POSITIONS)]);
        let work = [each.saturating_mul(count as u64), PRODUCTS];
        written(&self.shape, |output: &mut [f32]| {
            let parts = threads::parts(each, PRODUCTS);
            if parts > 1 && 2 * count < threads::parts(work[0], PRODUCTS) {
                for (index, output) in output.chunks_exact_mut(made).enumerate() {
                    self.split(group(index), output, parts)?;
                }
                return Ok(());
            }
            split::lines(output, made, work, |first, output, pace| {
                let mut scratch = Scratch::default();
                for (index, output) in (first..).zip(output.chunks_exact_mut(made)) {
                    let mut block = self.whole(output);
                    self.compute(&self.layout, group(index), &mut block, &mut scratch, pace)?;
                }
                Ok(())
            })
        })
    }

    /// Returns the block of all lines and channels of a group.
    fn whole<'b>(&self, output: &'b mut [f32]) -> Block<'b> {
        Block {
            rows: 0..self.geometry.rows,
            lines: 0..self.geometry.output[0],
            output: output.chunks_exact_mut(self.geometry.positions()).collect(),
        }
    }

    /// Computes a group of an image on several threads: splits it by lines, or by channels if there are more
    /// channels than positions.
    fn split(&self, group: Group<'_>, output: &mut [f32], parts: usize) -> Result<()> {
        let geometry = &self.geometry;
        let ([height, width], positions) = (geometry.output, geometry.positions());
        let lines = height.div_ceil(parts).max(LEAST_LINES);
        if positions >= geometry.rows && lines < height {
            let layout = geometry
                .layout_of(lines)
                .context("the sizes are those of a layout")?;
            let mut blocks: Vec<Block<'_>> = (0..height)
                .step_by(lines)
                .map(|first| Block {
                    rows: 0..geometry.rows,
                    lines: first..height.min(first + lines),
                    output: ShortVec::with_capacity(geometry.rows),
                })
                .collect();
            for channel in output.chunks_exact_mut(positions) {
                let strips = channel.chunks_mut(lines * width);
                blocks
                    .iter_mut()
                    .zip(strips)
                    .for_each(|(block, strip)| block.output.push(strip));
            }
            return in_parts(blocks, |mut block, pace| {
                self.compute(&layout, group, &mut block, &mut Scratch::default(), pace)
            });
        }
        let mut blocks: Vec<Block<'_>> = geometry
            .blocks_of_rows(parts)
            .scan(output, |output, rows| {
                let (block, rest) = std::mem::take(output).split_at_mut(rows.len() * positions);
                *output = rest;
                let lines = 0..height;
                let output = block.chunks_exact_mut(positions).collect();
                Some(Block { rows, lines, output })
            })
            .collect();
        let mut scratch = Scratch::default();
        let mut pace = Pace::default();
        for first_line in (0..height).step_by(self.layout.band) {
            let values = self
                .layout
                .values(geometry, first_line, group.image, &mut scratch, &mut pace)?;
            in_parts(blocks.iter_mut().collect(), |block: &mut Block<'_>, pace| {
                self.multiply(&self.layout, group, first_line, values, block, pace)
            })?;
        }
        Ok(())
    }

    /// Computes one block of the result.
    fn compute(
        &self,
        layout: &Layout,
        group: Group<'_>,
        block: &mut Block<'_>,
        scratch: &mut Scratch,
        pace: &mut Pace,
    ) -> Result<()> {
        for first_line in block.lines.clone().step_by(layout.band) {
            let values = layout.values(&self.geometry, first_line, group.image, scratch, pace)?;
            self.multiply(layout, group, first_line, values, block, pace)?;
        }
        Ok(())
    }

    /// Computes one band of the block from `values`: the lines from `first_line` on.
    fn multiply(
        &self,
        layout: &Layout,
        group: Group<'_>,
        first_line: usize,
        values: &[f32],
        block: &mut Block<'_>,
        pace: &mut Pace,
    ) -> Result<()> {
        let (rows, [_, width]) = (block.rows.clone(), self.geometry.output);
        let first = (first_line - block.lines.start) * width;
        let lines = layout.band.min(block.lines.end - first_line);
        let finish = |sums: &mut [f32]| {
            if let Some(activation) = &self.activation {
                activation.apply(sums);
            }
        };
        if let [output] = &mut *block.output {
            let filter = LineFilter {
                weights: &group.weights[rows.start * self.geometry.depth()..][..self.geometry.depth()],
                bias: group.bias[rows.start],
                offsets: &layout.offsets,
                width,
                pitch: layout.plane[1],
            };
            let output = &mut output[first..][..lines * width];
            return filter_in_parts(filter, values, output, finish, pace);
        }
        LineGemm {
            // Each block starts at a packed panel of the weights.
            weights: &group.weights[rows.start * self.geometry.depth()..],
            bias: &group.bias[rows],
            values,
            offsets: &layout.offsets,
            lines,
            width,
            pitch: layout.plane[1],
            first,
            output: &mut block.output,
            pace,
            finish,
        }
        .run()
    }
}

/// Computes the sums of a single filter in parts of about the same work, and passes each to `finish`.
fn filter_in_parts(
    filter: LineFilter<'_>,
    values: &[f32],
    output: &mut [f32],
    finish: impl Fn(&mut [f32]),
    pace: &mut Pace,
) -> Result<()> {
    /// Number of multiplications between two calls of [`Pace::spend`].
    const PART: usize = 1 << 18;
    /// Multiplications per step.
    const PER_STEP: usize = 16;
    let columns = (PART / filter.weights.len().max(1)).max(64);
    let lines = (columns / filter.width).max(1);
    for (part, output) in output.chunks_mut(lines * filter.width).enumerate() {
        let values = &values[part * lines * filter.pitch..];
        if lines > 1 || filter.width <= columns {
            pace.spend((output.len() * filter.weights.len() / PER_STEP) as u64 + 1)?;
            filter.run(values, output);
            finish(output);
            continue;
        }
        // A long line is computed in parts.
        for (part, output) in output.chunks_mut(columns).enumerate() {
            pace.spend((output.len() * filter.weights.len() / PER_STEP) as u64 + 1)?;
            let filter = LineFilter {
                width: output.len(),
                ..filter
            };
            filter.run(&values[part * columns..], output);
            finish(output);
        }
    }
    Ok(())
}

/// The buffer for the planes of a band.
#[derive(Default)]
struct Scratch(Vec<f32>);

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
            columns.copy(&from, &mut line, &mut Pace::default()).unwrap();
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
