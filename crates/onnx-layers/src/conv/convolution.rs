//! FP32 convolutions in one and two dimensions, with bias and activation in the epilogue.
//!
//! [`LineGemm`] and [`LineFilter`] read the image in the memory layout of `layout.rs` (implicit im2col).

use std::ops::Range;

use onnx_gemm::{
    LineFilter, LineGemm, PlaneBuffer, PlaneFilter, clear_subnormals, pack_rows, packed_len, unpack_rows,
};
use onnx_tensor::prelude::*;

use crate::{
    conv::{
        geometry::Geometry,
        layout::{Layout, Scratch},
    },
    least_work::PRODUCTS,
    split_products::products,
};
use onnx_kernels::elementwise::Activation;
use onnx_tensor::cancelling::{Pace, in_parts};
use onnx_tensor::{
    elements::{elements, tensor, written},
    split, threads,
};

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
    /// Computes a channel of a depthwise convolution without a copy of the image.
    plane_filter: Option<PlaneFilter>,
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
            plane_filter: geometry.plane_filter(),
            geometry,
            layout,
            bias,
            activation,
            shape: shape.into(),
        }
    }
}

/// Packs the weights of all groups, and clears weights that are too small to matter.
pub(crate) fn packed(geometry: &Geometry, weights: &[f32]) -> Result<Tensor> {
    let groups = weights.chunks_exact(geometry.rows * geometry.depth());
    let mut packed = Vec::with_capacity(groups.len() * packed_len(geometry.rows, geometry.depth()));
    groups.for_each(|group| packed.extend(pack_rows(geometry.rows, group)));
    clear_subnormals(&mut packed);
    tensor(&[packed.len()], packed)
}

/// Reverses [`packed`] for groups of `rows` output channels.
pub(crate) fn unpacked(rows: usize, depth: usize, packed: &Tensor) -> Result<Vec<f32>> {
    let groups = elements::<f32>(packed)?.chunks_exact(packed_len(rows, depth).max(1));
    Ok(groups.flat_map(|group| unpack_rows(rows, group)).collect())
}

/// The inputs of one group of an image.
#[derive(Clone, Copy)]
struct Group<'g> {
    image: &'g [f32],
    /// The weights as packed by [`packed`].
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

impl Geometry {
    /// Returns the filter of each channel if the convolution is depthwise and has neither strides nor dilations.
    fn plane_filter(&self) -> Option<PlaneFilter> {
        let is_depthwise = [self.channels, self.rows] == [1, 1];
        let is_dense = [self.strides, self.dilations] == [[1, 1]; 2];
        let new = || PlaneFilter::new(self.input, self.output, self.kernel, self.before);
        (is_depthwise && is_dense).then(new).flatten()
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
}

/// Minimum number of terms per sum in the cost estimate, since short sums are memory-bound.
const LEAST_TERMS: usize = 32;

/// Like [`LEAST_TERMS`], for a single output channel, which uses each input element only once.
const ALONE_TERMS: usize = 128;

/// Minimum number of positions in the cost estimate: with fewer positions, reading the weights dominates.
const LEAST_POSITIONS: usize = 8;

impl Convolution {
    /// Computes the convolution of `images` with weights packed by [`packed`].
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
                let outputs = output.chunks_exact_mut(made).zip((first..).map(group));
                if let Some(filter) = &self.plane_filter {
                    let mut buffer = filter.buffer();
                    for (output, group) in outputs {
                        self.filter(filter, group, &mut buffer, output, pace)?;
                    }
                    return Ok(());
                }
                let mut scratch = Scratch::default();
                for (output, group) in outputs {
                    let mut block = self.whole(output);
                    self.compute(&self.layout, group, &mut block, &mut scratch, pace)?;
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

    /// Computes a channel of a depthwise convolution.
    fn filter(
        &self,
        filter: &PlaneFilter,
        group: Group<'_>,
        buffer: &mut PlaneBuffer,
        output: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let [height, width] = self.geometry.output;
        for (part, output) in output.chunks_mut(filter.band() * width).enumerate() {
            let first = part * filter.band();
            pace.spend((output.len() * group.weights.len() / FILTERED_PER_STEP) as u64 + 1)?;
            let lines = first..height.min(first + filter.band());
            filter.run(group.image, group.weights, group.bias[0], lines, buffer, output);
            if let Some(activation) = &self.activation {
                activation.apply(output);
            }
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
                pitch: layout.pitch(),
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
            is_column: self.geometry.positions() == 1,
            lines,
            width,
            pitch: layout.pitch(),
            first,
            output: &mut block.output,
            pace,
            finish,
        }
        .run()
    }
}

/// Number of multiplications of a filter between two calls of [`Pace::spend`].
const FILTERED: usize = 1 << 18;

/// Multiplications of a filter per step.
const FILTERED_PER_STEP: usize = 16;

/// Computes the sums of a single filter in parts of about the same work, and passes each to `finish`.
fn filter_in_parts(
    filter: LineFilter<'_>,
    values: &[f32],
    output: &mut [f32],
    finish: impl Fn(&mut [f32]),
    pace: &mut Pace,
) -> Result<()> {
    let columns = (FILTERED / filter.weights.len().max(1)).max(64);
    let lines = (columns / filter.width).max(1);
    for (part, output) in output.chunks_mut(lines * filter.width).enumerate() {
        let values = &values[part * lines * filter.pitch..];
        if filter.width <= columns {
            pace.spend((output.len() * filter.weights.len() / FILTERED_PER_STEP) as u64 + 1)?;
            filter.run(values, output);
            finish(output);
            continue;
        }
        // A long line is computed in parts.
        for (part, output) in output.chunks_mut(columns).enumerate() {
            pace.spend((output.len() * filter.weights.len() / FILTERED_PER_STEP) as u64 + 1)?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_gemm::SLACK;

    use super::*;

    /// Computes `lines` lines of `width` pixels, and compares each sum with that of a plain loop.
    fn check([lines, width, pitch]: [usize; 3]) {
        const TAPS: usize = 9;
        // Small integers have exact sums in any order.
        let number = |index: usize| (index * 7919 % 17) as f32 - 8.0;
        let weights: [f32; TAPS] = std::array::from_fn(number);
        let offsets: [usize; TAPS] = std::array::from_fn(|tap| tap * 5 % 13);
        let values: Vec<f32> = (0..lines * pitch + width + 13 + SLACK)
            .map(|at| number(3 * at + 1))
            .collect();
        let filter = LineFilter {
            weights: &weights,
            bias: 3.0,
            offsets: &offsets,
            width,
            pitch,
        };
        let mut output = vec![f32::NAN; lines * width];
        // Each sum is finished once.
        let finish = |sums: &mut [f32]| sums.iter_mut().for_each(|sum| *sum += 0.5);
        filter_in_parts(filter, &values, &mut output, finish, &mut Pace::default()).unwrap();
        for (at, &found) in output.iter().enumerate() {
            let from = at / width * pitch + at % width;
            let taps = weights.iter().zip(&offsets);
            let expected: f32 = taps.map(|(weight, offset)| weight * values[offset + from]).sum();
            assert_eq!(
                found,
                3.5 + expected,
                "{at} of {lines} lines of {width}, {pitch} apart"
            );
        }
    }

    #[test]
    fn parts_of_filters_have_the_sums_of_plain_loops() {
        // Several parts of many lines each, and lines of several parts.
        for [lines, width] in [[70_000, 1], [700, 100], [2, 70_000]] {
            check([lines, width, width]);
            check([lines, width, width + 3]);
        }
    }
}
