//! 8-bit convolutions in one and two dimensions, with exact sums, whose bias and requantization are in the
//! epilogue.

use std::ops::Range;

use onnx_gemm::{IntegerFilters, Quad, SumBuffer, SumTile, Windows};
use onnx_tensor::prelude::*;

use crate::{
    conv::{
        byte_layout::{ByteImage, ByteLayout, Planes, copy_short, quads, steps},
        geometry::Geometry,
    },
    least_work::PRODUCTS,
    matmul::zero_points::rounded,
    split_products::products,
};
use onnx_tensor::{
    cancelling::{Pace, in_parts},
    elements::written,
    size, split, threads,
};

/// Packs the weights of all groups, whose zero points are already subtracted.
pub(super) fn packed(weights: &[i16], groups: usize, channels: usize, kernel: [usize; 2]) -> IntegerFilters {
    let quads = quads(weights, channels, kernel);
    let steps = steps(channels, kernel);
    let rows = quads.len() / (groups * steps);
    let [groups, rows, _] = merged([groups, rows, channels]);
    IntegerFilters::new(&quads, [groups, rows, steps])
}

/// Returns the bytes of packed weights for `rows` output channels per group.
pub(super) fn packed_bytes(groups: usize, rows: usize, channels: usize, kernel: [usize; 2]) -> u64 {
    let [groups, rows, _] = merged([groups, rows, channels]);
    IntegerFilters::bytes([groups, rows, steps(channels, kernel)])
}

/// Merges the groups of a depthwise convolution into one, where each channel of the image has one filter.
/// Takes and returns the number of groups, and the numbers of output and of input channels of each.
fn merged([groups, rows, channels]: [usize; 3]) -> [usize; 3] {
    match (rows, channels) {
        (1, 1) => [1, groups, groups],
        _ => [groups, rows, channels],
    }
}

/// Computes elements of a result from sums.
pub(super) trait Epilogue<T>: Sync {
    /// Writes the elements of an output channel.
    fn finish(&self, channel: usize, sums: &[i32], to: &mut [T]);
}

/// The sums themselves.
pub(super) struct Sums;

impl Epilogue<i32> for Sums {
    #[inline(always)]
    fn finish(&self, _: usize, sums: &[i32], to: &mut [i32]) {
        to.copy_from_slice(sums);
    }
}

/// Requantizes sums to 8 bits.
pub(super) struct Requantization<N> {
    /// The scale of each output channel.
    pub(super) scales: Vec<f32>,
    pub(super) zero_point: i32,
    /// The minimum of the 8-bit type.
    pub(super) least: i32,
    /// Converts a number in the range of the 8-bit type.
    pub(super) narrow: N,
}

impl<T, N: Fn(i32) -> T + Sync> Epilogue<T> for Requantization<N> {
    #[inline(always)]
    fn finish(&self, channel: usize, sums: &[i32], to: &mut [T]) {
        let (scale, zero_point, least) = (self.scales[channel], self.zero_point, self.least);
        for (to, &sum) in to.iter_mut().zip(sums) {
            *to = (self.narrow)(rounded(sum as f32, scale, zero_point, least));
        }
    }
}

/// Writes the elements of the channels of a tile to `results`, whose channels are `stride` elements apart.
struct Finish<'f, T, E> {
    epilogue: &'f E,
    /// The first channel.
    channel: usize,
    tile: &'f SumTile<'f>,
    results: &'f mut [T],
    stride: usize,
}

impl<T, E: Epilogue<T>> pulp::WithSimd for Finish<'_, T, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for row in 0..self.tile.rows.len() {
            let sums = self.tile.vectors(row);
            let to = &mut self.results[row * self.stride + self.tile.positions.start..][..sums.len()];
            self.epilogue.finish(self.channel + row, sums, to);
        }
    }
}

/// An 8-bit convolution with packed weights.
pub(super) struct ByteConvolution<'c, E> {
    /// The sizes, for one group if the convolution is depthwise.
    geometry: Geometry,
    is_depthwise: bool,
    filters: &'c IntegerFilters,
    bias: Option<&'c [i32]>,
    image: ByteImage<'c>,
    pub(super) epilogue: E,
}

/// A range of output lines of a range of channels.
struct Block<'b, T> {
    /// Index of the group in the batch, and range of channels within the group.
    index: usize,
    rows: Range<usize>,
    lines: Range<usize>,
    /// For each channel of the block, its lines.
    output: ShortVec<&'b mut [T]>,
}

/// The number of sums in a vector.
const LANES: usize = Windows::slack() + 1;

/// Buffers for the results of a few channels of a tile.
struct Results<T> {
    sums: SumBuffer,
    /// The results, including those of positions between two lines.
    elements: Vec<T>,
}

impl<T> Default for Results<T> {
    fn default() -> Self {
        Self {
            sums: SumBuffer::default(),
            elements: Vec::new(),
        }
    }
}

/// Minimum number of lines per block. Lines at the border of two blocks are copied for both blocks.
const LEAST_LINES: usize = 4;

/// Minimum number of terms per sum in the cost estimate, since copying the image and writing the results
/// dominate short sums.
const LEAST_TERMS: usize = 32;

/// The number of multiplications of bytes that take as long as one of FP32.
const PER_FLOAT: u64 = 4;

impl<'c, E> ByteConvolution<'c, E> {
    /// Creates a convolution with weights from [`packed`]. `image` is that of all batches and groups.
    pub(super) fn new(
        mut geometry: Geometry,
        filters: &'c IntegerFilters,
        bias: Option<&'c [i32]>,
        image: ByteImage<'c>,
        epilogue: E,
    ) -> Self {
        let is_depthwise = geometry.rows == 1 && geometry.channels == 1;
        [geometry.groups, geometry.rows, geometry.channels] =
            merged([geometry.groups, geometry.rows, geometry.channels]);
        Self {
            geometry,
            is_depthwise,
            filters,
            bias,
            image,
            epilogue,
        }
    }

    /// Computes the convolution into a tensor of shape `shape`; `None` if the layout of the image would take
    /// too much memory.
    pub(super) fn run<T: Element + Copy + Default>(&self, shape: &[usize]) -> Result<Option<Tensor>>
    where
        E: Epilogue<T>,
    {
        let geometry = &self.geometry;
        let Some(layout) = geometry.byte_layout(geometry.output[0], self.is_depthwise) else {
            return Ok(None);
        };
        let count = geometry.batch * geometry.groups;
        ensure!(
            self.image.pixels.len() == count * geometry.image(),
            "a convolution of {} pixels, not {}",
            self.image.pixels.len(),
            count * geometry.image()
        );
        let made = geometry.rows * geometry.positions();
        let depth = match self.is_depthwise {
            true => geometry.kernel[0] * geometry.kernel[1],
            false => geometry.depth(),
        };
        let terms = depth.max(LEAST_TERMS);
        let each = products([terms, geometry.rows, geometry.positions()]) / PER_FLOAT;
        let work = [each.saturating_mul(count as u64), PRODUCTS];
        let positions = (layout.tile[0] * layout.pitch()).next_multiple_of(LANES);
        let of_results = (size_of::<i32>() + size_of::<T>()) * self.filters.height() * positions;
        let scratch = layout.scratch_bytes().saturating_add(of_results as u64);
        let scratch = scratch.saturating_mul(threads::parts(work[0], PRODUCTS).max(1) as u64);
        size::admit_now(scratch.saturating_add((size_of::<T>() * made * count) as u64))?;
        let made = written(shape, |output: &mut [T]| {
            let parts = threads::parts(each, PRODUCTS);
            if parts > 1 && 2 * count < threads::parts(work[0], PRODUCTS) {
                for (index, output) in output.chunks_exact_mut(made).enumerate() {
                    self.split(&layout, index, output, parts)?;
                }
                return Ok(());
            }
            split::lines(output, made, work, |first, output, pace| {
                let (mut planes, mut results) = (Planes::new(&layout)?, Results::default());
                for (index, output) in (first..).zip(output.chunks_exact_mut(made)) {
                    let mut block = Block {
                        index,
                        rows: 0..geometry.rows,
                        lines: 0..geometry.output[0],
                        output: output.chunks_exact_mut(geometry.positions()).collect(),
                    };
                    self.compute(&layout, &mut block, &mut planes, &mut results, pace)?;
                }
                Ok(())
            })
        })?;
        Ok(Some(made))
    }

    /// Computes a group of an image on several threads: splits it by lines, or by channels if there are more
    /// channels than positions or few lines.
    fn split<T: Copy + Default + Send>(
        &self,
        layout: &ByteLayout,
        index: usize,
        output: &mut [T],
        parts: usize,
    ) -> Result<()>
    where
        E: Epilogue<T>,
    {
        let geometry = &self.geometry;
        let ([height, width], positions) = (geometry.output, geometry.positions());
        let lines = height.div_ceil(parts).max(LEAST_LINES);
        if positions >= geometry.rows && lines < height {
            let layout = geometry
                .byte_layout(lines, self.is_depthwise)
                .context("the sizes are those of a layout")?;
            let mut blocks: Vec<Block<'_, T>> = (0..height)
                .step_by(lines)
                .map(|first| Block {
                    index,
                    rows: 0..geometry.rows,
                    lines: first..height.min(first + lines),
                    output: ShortVec::with_capacity(geometry.rows),
                })
                .collect();
            for channel in output.chunks_exact_mut(positions) {
                let strips = channel.chunks_mut(lines * width);
                let pairs = blocks.iter_mut().zip(strips);
                pairs.for_each(|(block, strip)| block.output.push(strip));
            }
            return in_parts(blocks, |mut block, pace| {
                let mut planes = Planes::new(&layout)?;
                self.compute(&layout, &mut block, &mut planes, &mut Results::default(), pace)
            });
        }
        let rows = geometry
            .rows
            .div_ceil(parts)
            .next_multiple_of(self.filters.height());
        let strips = output.chunks_mut(rows * positions).enumerate();
        let mut blocks: Vec<Block<'_, T>> = strips
            .map(|(part, strip)| Block {
                index,
                rows: part * rows..geometry.rows.min((part + 1) * rows),
                lines: 0..height,
                output: strip.chunks_exact_mut(positions).collect(),
            })
            .collect();
        if self.is_depthwise {
            return in_parts(blocks, |mut block, pace| {
                let mut planes = Planes::new(layout)?;
                self.compute(layout, &mut block, &mut planes, &mut Results::default(), pace)
            });
        }
        let mut planes = Planes::new(layout)?;
        for first in tiles(layout, &(0..height), width) {
            let lines = layout.tile[0].min(height - first[0]);
            self.fill(
                layout,
                index,
                0..geometry.channels,
                (first, lines),
                &mut planes,
                &mut Pace::default(),
            )?;
            in_parts(blocks.iter_mut().collect(), |block: &mut Block<'_, T>, pace| {
                let (rows, quads) = (block.rows.clone(), planes.quads());
                self.multiply(layout, block, (rows, quads), first, &mut Results::default(), pace)
            })?;
        }
        Ok(())
    }

    /// Computes one block of the result.
    fn compute<T: Copy + Default>(
        &self,
        layout: &ByteLayout,
        block: &mut Block<'_, T>,
        planes: &mut Planes,
        results: &mut Results<T>,
        pace: &mut Pace,
    ) -> Result<()>
    where
        E: Epilogue<T>,
    {
        let all = block.rows.clone();
        let at_once = if self.is_depthwise {
            layout.channels
        } else {
            all.len()
        };
        for first_row in all.clone().step_by(at_once) {
            let rows = first_row..all.end.min(first_row + at_once);
            let channels = match self.is_depthwise {
                true => rows.clone(),
                false => 0..self.geometry.channels,
            };
            for first in tiles(layout, &block.lines, self.geometry.output[1]) {
                let lines = layout.tile[0].min(block.lines.end - first[0]);
                self.fill(
                    layout,
                    block.index,
                    channels.clone(),
                    (first, lines),
                    planes,
                    pace,
                )?;
                let source = (rows.clone(), planes.quads());
                self.multiply(layout, block, source, first, results, pace)?;
            }
        }
        Ok(())
    }

    /// Copies the part of `channels` of the image that a tile reads.
    fn fill(
        &self,
        layout: &ByteLayout,
        index: usize,
        channels: Range<usize>,
        tile: ([usize; 2], usize),
        planes: &mut Planes,
        pace: &mut Pace,
    ) -> Result<()> {
        let geometry = &self.geometry;
        let image = ByteImage {
            pixels: &self.image.pixels[index * geometry.image()..][..geometry.image()],
            ..self.image
        };
        layout.fill(geometry, image, channels, tile, planes, pace)
    }

    /// Computes channels of one tile of a block from the planes that they read.
    fn multiply<T: Copy + Default>(
        &self,
        layout: &ByteLayout,
        block: &mut Block<'_, T>,
        (all_rows, planes): (Range<usize>, &[Quad]),
        first: [usize; 2],
        results: &mut Results<T>,
        pace: &mut Pace,
    ) -> Result<()>
    where
        E: Epilogue<T>,
    {
        let (geometry, pitch, height) = (&self.geometry, layout.pitch(), self.filters.height());
        let width = geometry.output[1];
        let lines = layout.tile[0].min(block.lines.end - first[0]);
        let columns = layout.tile[1].min(width - first[1]);
        let mut windows = Windows {
            image: planes,
            offsets: &layout.offsets,
            // Positions between two lines are computed as well, and not used.
            positions: (lines - 1) * pitch + columns,
            row_stride: layout.row_stride,
            zero_point: self.image.zero_point,
        };
        let group = block.index % geometry.groups;
        let start = (first[0] - block.lines.start) * width + first[1];
        let stride = (lines * pitch).next_multiple_of(LANES);
        let Results { sums, elements } = results;
        elements.resize(height * stride, T::default());
        for row in all_rows.clone().step_by(height) {
            let rows = row..all_rows.end.min(row + height);
            windows.image = &planes[(row - all_rows.start) * layout.row_stride..];
            let channels = group * geometry.rows + rows.start..group * geometry.rows + rows.end;
            let bias = self.bias.map(|bias| &bias[channels.clone()]);
            let mut take = |tile: &SumTile<'_>| {
                pulp::Arch::new().dispatch(Finish {
                    epilogue: &self.epilogue,
                    channel: channels.start,
                    tile,
                    results: elements,
                    stride,
                });
            };
            self.filters
                .convolve(group, rows.clone(), &windows, bias, (sums, &mut take), pace)?;
            let strips = &mut block.output[rows.start - block.rows.start..][..rows.len()];
            for (strip, results) in strips.iter_mut().zip(elements.chunks_exact(stride)) {
                let strip = &mut strip[start..];
                if columns == width && pitch == width {
                    strip[..lines * width].copy_from_slice(&results[..lines * width]);
                    continue;
                }
                let pairs = strip.chunks_mut(width).zip(results.chunks_exact(pitch));
                for (strip, results) in pairs.take(lines) {
                    copy_short(&results[..columns], &mut strip[..columns]);
                }
            }
        }
        Ok(())
    }
}

/// Returns the first line and column of each tile of the lines `lines`.
fn tiles(
    layout: &ByteLayout,
    lines: &Range<usize>,
    width: usize,
) -> impl Iterator<Item = [usize; 2]> + use<> {
    let [tall, wide] = layout.tile;
    let lines = lines.clone().step_by(tall);
    lines.flat_map(move |line| (0..width).step_by(wide).map(move |column| [line, column]))
}
