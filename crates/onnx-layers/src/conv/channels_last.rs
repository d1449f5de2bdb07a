//! FP32 convolutions of channels-last images (NHWC), which replace several `Conv` in a row.
//!
//! The channels of a pixel are contiguous, so that a convolution is a product whose rows are read where they
//! are: no image is copied, and whole vectors of channels are loaded and stored whatever the width of the image.

use std::{ops::Range, sync::Arc};

use onnx_gemm::{ChannelFilter, FilterSizes, OUTSIDE, Order as MatrixOrder, PackedMatrix, TapGemm};
use onnx_kernels::elementwise::{Activation, activation_of};
use onnx_tensor::{
    cancelling::{Pace, in_parts},
    elements::{elements, written},
    node::{Attributes, Node},
    operator::{Compute, Fact},
    packs::{Order, Packs},
    prelude::*,
    size, split, threads,
};

use crate::{
    conv::{
        geometry::Geometry,
        windows::{Shape, Sizes, expect_bias},
    },
    least_work::PRODUCTS,
    split_products::products,
};

/// Builds the operator `ChannelsLastConv`: `Conv` in two dimensions, whose result has the channels last, and
/// whose image has them first (`from_first`) or last.
pub fn channels_last_conv(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(Box::new(ChannelsLastConv {
        shape: Shape::of(attributes)?,
        from_first: attributes.int("from_first", 0) != 0,
        kept: None,
        activation: None,
    }))
}

#[derive(Debug)]
struct ChannelsLastConv {
    shape: Shape,
    /// Whether the image has its channels first. Its pixels are then copied, which few channels are worth.
    from_first: bool,
    /// Shape of constant weights, and their packed values.
    kept: Option<(ShortVec<usize>, Arc<Filters>)>,
    activation: Option<Activation>,
}

/// Packed weights.
#[derive(Debug)]
enum Filters {
    /// The weights of all output channels, a range of them after the other.
    Dense(Vec<Channels>),
    /// The filters of a depthwise convolution.
    Depthwise(ChannelFilter),
}

/// The weights of a range of output channels of one group.
#[derive(Debug)]
struct Channels {
    range: Range<usize>,
    /// The first input channel of the group.
    first_input: usize,
    /// One row for each tap and input channel, one column for each output channel.
    filters: PackedMatrix,
}

/// The number of output channels of a range, if the weights of a group have at least [`LARGE`] elements: several
/// threads can then read the weights.
const RANGE: usize = 96;

/// See [`RANGE`].
const LARGE: usize = 1 << 17;

impl Filters {
    /// Packs weights of the shape `[output channels, input channels of a group, height, width]`.
    fn packed(weights: &Tensor, groups: usize, from_first: bool) -> Result<Self> {
        let (shape, numbers) = (weights.shape(), elements::<f32>(weights)?);
        let &[rows, channels, height, width] = shape else {
            bail!("weights of {} dimensions", shape.len());
        };
        let (taps, of_group) = (height * width, rows / groups);
        if [of_group, channels] == [1, 1] {
            return Ok(Self::Depthwise(ChannelFilter::new(numbers, [height, width])));
        }
        let depth = taps * channels;
        let together = match groups == 1 && numbers.len() >= LARGE {
            true => RANGE,
            false => of_group,
        };
        let mut turned = Vec::new();
        let mut packed = Vec::new();
        for group in 0..groups {
            let end = (group + 1) * of_group;
            for first in (group * of_group..end).step_by(together) {
                let range = first..end.min(first + together);
                let mut filters = &numbers[range.start * depth..range.end * depth];
                if !from_first {
                    turned.clear();
                    for filter in filters.chunks_exact(depth) {
                        let taps = (0..taps).flat_map(|tap| filter[tap..].iter().step_by(taps));
                        turned.extend(taps);
                    }
                    filters = &turned;
                }
                packed.push(Channels {
                    first_input: group * channels,
                    filters: PackedMatrix::new(filters, [depth, range.len()], MatrixOrder::ColumnMajor),
                    range,
                });
            }
        }
        Ok(Self::Dense(packed))
    }

    /// Returns the bytes of packed weights of this shape, whose output channels are padded to whole columns.
    fn bytes(shape: &[usize], groups: usize) -> u64 {
        let count: usize = shape.iter().product();
        let rows = shape.first().copied().unwrap_or(0);
        let of_group = (rows / groups).max(1);
        let padded = match (of_group, shape.get(1)) {
            (1, Some(1)) => rows,
            _ => of_group,
        };
        let padding = padded.next_multiple_of(16) - padded;
        (size_of::<f32>() * (count + padding * (count / padded.max(1)))) as u64
    }
}

/// Moves the channels of an image's dimensions from the last to the second position.
fn first<T: Copy>(dims: &[T]) -> Result<[T; 4]> {
    match *dims {
        [batch, height, width, channels] => Ok([batch, channels, height, width]),
        _ => bail!("an image of {} dimensions", dims.len()),
    }
}

/// Moves the channels of an image's dimensions from the second to the last position.
fn last<T: Copy>(dims: &[T]) -> Result<[T; 4]> {
    match *dims {
        [batch, channels, height, width] => Ok([batch, height, width, channels]),
        _ => bail!("an image of {} dimensions", dims.len()),
    }
}

impl ChannelsLastConv {
    /// Returns the dimensions of an image in the order of `Conv`.
    fn given<T: Copy>(&self, dims: &[T]) -> Result<ShortVec<T>> {
        Ok(match self.from_first {
            true => dims.into(),
            false => first(dims)?.as_slice().into(),
        })
    }
}

impl Compute for ChannelsLastConv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [image, weights, bias @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let shape = self.shape.dims(&self.given(&image.shape)?, &weights.shape)?;
        expect_bias(bias.first(), &weights.shape[0])?;
        let shape = shape.map(|shape| last(&shape)).transpose()?;
        Ok(shape.map(|shape| vec![Fact::new(image.element_type, shape)]))
    }

    fn follow(&mut self, next: &dyn Compute) -> bool {
        let activation = activation_of(next).filter(|_| self.activation.is_none());
        let is_free = activation.is_some();
        self.activation = self.activation.take().or(activation);
        is_free
    }

    fn take_over(&mut self, constants: &[Option<Arc<Tensor>>], packs: &mut Packs) -> Result<Option<usize>> {
        let Some(Some(weights)) = constants.get(1) else {
            return Ok(None);
        };
        let (groups, from_first) = (self.shape.groups, self.from_first);
        let bytes = Filters::bytes(weights.shape(), groups);
        let order = Order::ChannelsLast { groups, from_first };
        let filters = packs.shared(&[weights], order, bytes, || {
            Filters::packed(weights, groups, from_first)
        })?;
        self.kept = filters.map(|filters| (weights.shape().into(), filters));
        Ok(self.kept.as_ref().map(|_| 1))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let (shape, filters) = match &self.kept {
            Some((shape, filters)) => (shape.clone(), filters.clone()),
            None => {
                size::admit_now(Filters::bytes(inputs[1].shape(), self.shape.groups))?;
                let filters = Filters::packed(&inputs[1], self.shape.groups, self.from_first)?;
                (inputs[1].shape().into(), Arc::new(filters))
            }
        };
        let image = &inputs[0];
        let sizes = self.shape.sizes(&self.given(image.shape())?, &shape)?;
        let bias = match inputs.get(2) {
            Some(bias) => elements::<f32>(bias)?.to_vec(),
            None => vec![0.0; shape[0]],
        };
        let convolution = Convolution::new(&sizes, &bias, self.activation.as_ref())?;
        let made = match (&*filters, self.from_first) {
            // All pixels are padding.
            _ if image.is_empty() => convolution.bias_alone(),
            (Filters::Depthwise(filter), _) => convolution.filtered(filter, elements(image)?),
            (Filters::Dense(channels), true) => convolution.product(channels, &Copied(elements(image)?)),
            (Filters::Dense(channels), false) => convolution.product(channels, &InPlace(elements(image)?)),
        };
        Ok(smallvec![made?.into_arc()])
    }
}

/// Maximum number of pixels whose sums are computed and finished together, so that they stay in the L2 cache.
const PIXELS: usize = 96;

/// Minimum number of pixels of a thread. With fewer, the weights are read too often.
const LEAST_PIXELS: usize = 8;

/// Maximum number of segments of all these pixels.
const SEGMENTS: usize = 1 << 13;

/// Maximum number of multiplications of a depthwise convolution before its sums are finished.
const FINISHED: usize = 1 << 17;

/// Minimum number of terms per sum in the cost estimate, since short sums are memory-bound.
const LEAST_TERMS: usize = 32;

/// A convolution with known sizes.
struct Convolution<'c> {
    geometry: Geometry,
    /// Input channels and output channels of all groups.
    channels: usize,
    rows: usize,
    shape: [usize; 4],
    bias: &'c [f32],
    activation: Option<&'c Activation>,
}

/// Gives the first factor of a product: the pixels under each tap of a range of output pixels.
trait Image: Sync {
    /// Returns the values, and fills `starts` with the index of each segment in them.
    fn segments<'s>(
        &'s self,
        convolution: &Convolution<'_>,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        copies: &'s mut Vec<f32>,
    ) -> &'s [f32];

    /// Returns the number of taps and the number of elements of each.
    fn taps(&self, geometry: &Geometry) -> [usize; 2];
}

/// An image with the channels last, which is read where it is.
struct InPlace<'i>(&'i [f32]);

impl Image for InPlace<'_> {
    fn segments<'s>(
        &'s self,
        convolution: &Convolution<'_>,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        _: &'s mut Vec<f32>,
    ) -> &'s [f32] {
        let (geometry, channels) = (&convolution.geometry, convolution.channels);
        let [height, width] = geometry.input;
        starts.clear();
        for [batch, y, x] in pixels.map(|pixel| convolution.place(pixel)) {
            for row in geometry.taken(0, y) {
                let Some(row) = row.filter(|&row| row < height) else {
                    starts.extend(std::iter::repeat_n(OUTSIDE, geometry.kernel[1]));
                    continue;
                };
                let line = (batch * height + row) * width;
                starts.extend(geometry.taken(1, x).map(|column| match column {
                    Some(column) if column < width => (line + column) * channels,
                    _ => OUTSIDE,
                }));
            }
        }
        self.0
    }

    fn taps(&self, geometry: &Geometry) -> [usize; 2] {
        [geometry.kernel[0] * geometry.kernel[1], geometry.channels]
    }
}

/// An image with the channels first, whose windows are copied.
struct Copied<'i>(&'i [f32]);

impl Image for Copied<'_> {
    fn segments<'s>(
        &'s self,
        convolution: &Convolution<'_>,
        pixels: Range<usize>,
        starts: &mut Vec<usize>,
        copies: &'s mut Vec<f32>,
    ) -> &'s [f32] {
        let geometry = &convolution.geometry;
        let ([height, width], taps) = (geometry.input, geometry.kernel[1]);
        // Each line of a window is copied in whole parts, which the next line overwrites.
        let distance = geometry.depth() + COPIED - 1;
        starts.clear();
        starts.extend((0..pixels.len()).map(|pixel| pixel * distance));
        copies.resize(pixels.len() * distance, 0.0);
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            let [batch, y, first] = convolution.place(pixel);
            let end = geometry.output[1].min(first + pixels.end - pixel);
            let windows = &mut copies[(pixel - pixels.start) * distance..][..(end - first) * distance];
            for channel in 0..geometry.channels {
                let plane = (batch * geometry.channels + channel) * height;
                for (tap, row) in geometry.taken(0, y).enumerate() {
                    let windows = &mut windows[(channel * geometry.kernel[0] + tap) * taps..];
                    match row.filter(|&row| row < height) {
                        Some(row) => {
                            let line = &self.0[(plane + row) * width..];
                            copy_line_of_windows(geometry, line, first..end, windows, distance);
                        }
                        None => windows
                            .chunks_mut(distance)
                            .for_each(|window| window[..taps].fill(0.0)),
                    }
                }
            }
            pixel += end - first;
        }
        copies
    }

    fn taps(&self, geometry: &Geometry) -> [usize; 2] {
        [1, geometry.depth()]
    }
}

/// The number of elements of a part that is copied at once.
const COPIED: usize = 4;

/// Copies a line of the windows of the pixels `pixels` of an output line from a line of the image, which may
/// extend beyond its width. The copies are `distance` elements apart; up to [`COPIED`]` - 1` elements after each
/// are overwritten.
fn copy_line_of_windows(
    geometry: &Geometry,
    line: &[f32],
    pixels: Range<usize>,
    to: &mut [f32],
    distance: usize,
) {
    let ([_, width], taps) = (geometry.input, geometry.kernel[1]);
    let (stride, before) = (geometry.strides[1], geometry.before[1]);
    // The pixels whose windows are within the image, and whose last part is within the line.
    let parts = taps.next_multiple_of(COPIED);
    let last = match (width.checked_sub(taps), line.len().checked_sub(parts)) {
        (Some(column), Some(start)) if geometry.dilations[1] == 1 => Some(column.min(start) + before),
        _ => None,
    };
    let within = before.div_ceil(stride)..last.map_or(0, |last| last / stride + 1);
    let within = within.start.clamp(pixels.start, pixels.end)..within.end.clamp(pixels.start, pixels.end);
    for pixel in (pixels.start..within.start).chain(within.end..pixels.end) {
        let element = |column: Option<usize>| line[..width].get(column?).copied();
        let to = &mut to[(pixel - pixels.start) * distance..];
        to.iter_mut()
            .zip(geometry.taken(1, pixel))
            .for_each(|(to, column)| *to = element(column).unwrap_or(0.0));
    }
    if within.is_empty() {
        return;
    }
    let from = &line[within.start * stride - before..];
    let to = &mut to[(within.start - pixels.start) * distance..];
    for part in (0..taps).step_by(COPIED) {
        let from = from[part..].windows(COPIED).step_by(stride);
        let to = to[part..].chunks_mut(distance).take(within.len());
        for (to, from) in to.zip(from) {
            if let Some(to) = to.first_chunk_mut::<COPIED>() {
                to.copy_from_slice(from);
            }
        }
    }
}

impl Geometry {
    /// Returns the index along an axis of each element of the window at `position`; `None` for indices below 0.
    fn taken(&self, axis: usize, position: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let (first, before) = (position * self.strides[axis], self.before[axis]);
        let dilation = self.dilations[axis];
        (0..self.kernel[axis]).map(move |tap| (first + tap * dilation).checked_sub(before))
    }
}

impl<'c> Convolution<'c> {
    fn new(sizes: &Sizes, bias: &'c [f32], activation: Option<&'c Activation>) -> Result<Self> {
        let geometry = sizes.plane().context("an image of two dimensions")?;
        Ok(Self {
            channels: geometry.groups * geometry.channels,
            rows: geometry.groups * geometry.rows,
            geometry,
            shape: last(&sizes.shape)?,
            bias,
            activation,
        })
    }

    /// Returns the batch, the line and the column of an output pixel.
    fn place(&self, pixel: usize) -> [usize; 3] {
        let [height, width] = self.geometry.output;
        [pixel / width / height, pixel / width % height, pixel % width]
    }

    /// Returns the estimated work, and the least work that is worth a thread.
    fn work(&self) -> [u64; 2] {
        let geometry = &self.geometry;
        let pixels = geometry.batch * geometry.positions();
        [
            products([geometry.depth().max(LEAST_TERMS), self.rows, pixels]),
            PRODUCTS,
        ]
    }

    fn finish(&self, sums: &mut [f32]) {
        if let Some(activation) = self.activation {
            activation.apply(sums);
        }
    }

    /// Returns the convolution of an image without pixels.
    fn bias_alone(&self) -> Result<Tensor> {
        split::created(
            &self.shape,
            self.rows,
            self.work(),
            |_, output: &mut [f32], pace| {
                output.chunks_exact_mut(self.rows).try_for_each(|pixel| {
                    pace.pairs(self.bias, pixel, |bias, pixel| pixel.copy_from_slice(bias))?;
                    self.finish(pixel);
                    Ok(())
                })
            },
        )
    }

    /// Computes the convolution as products.
    fn product(&self, channels: &[Channels], image: &impl Image) -> Result<Tensor> {
        let rows = self.rows;
        let [taps, _] = image.taps(&self.geometry);
        let [work, least] = self.work();
        let (pixels, parts) = (
            self.geometry.batch * self.geometry.positions(),
            threads::parts(work, least),
        );
        if channels.len() > 1 && pixels < LEAST_PIXELS * parts {
            return self.product_by_channels(channels, image);
        }
        let together = pixels.div_ceil(parts).clamp(LEAST_PIXELS, PIXELS);
        let together = together.min(SEGMENTS / taps).max(1);
        split::created(
            &self.shape,
            together * rows,
            [work, least],
            |first, output: &mut [f32], pace| {
                let (mut starts, mut copies) = (Vec::new(), Vec::new());
                for (block, output) in (first..).zip(output.chunks_mut(together * rows)) {
                    let first = block * together;
                    let pixels = first..first + output.len() / rows;
                    let values = image.segments(self, pixels, &mut starts, &mut copies);
                    for channels in channels {
                        let output = &mut output[channels.range.start..];
                        self.multiply(channels, image, values, &starts, output, rows, pace)?;
                    }
                    self.finish(output);
                }
                Ok(())
            },
        )
    }

    /// Computes the convolution for few pixels, with a range of output channels on each thread.
    fn product_by_channels(&self, channels: &[Channels], image: &impl Image) -> Result<Tensor> {
        let pixels = self.geometry.batch * self.geometry.positions();
        size::admit_now((size_of::<f32>() * pixels * self.rows) as u64)?;
        let (mut starts, mut copies) = (Vec::new(), Vec::new());
        let values = image.segments(self, 0..pixels, &mut starts, &mut copies);
        let mut products: Vec<Vec<f32>> = channels
            .iter()
            .map(|channels| vec![0.0; pixels * channels.range.len()])
            .collect();
        in_parts(
            channels.iter().zip(&mut products).collect(),
            |(channels, product), pace| {
                self.multiply(
                    channels,
                    image,
                    values,
                    &starts,
                    product,
                    channels.range.len(),
                    pace,
                )?;
                self.finish(product);
                Ok(())
            },
        )?;
        written(&self.shape, |output: &mut [f32]| {
            let mut pace = Pace::default();
            for (channels, product) in channels.iter().zip(&products) {
                let pixels = output.chunks_exact_mut(self.rows);
                for (pixel, sums) in pixels.zip(product.chunks_exact(channels.range.len())) {
                    pace.pairs(sums, &mut pixel[channels.range.clone()], |sums, pixel| {
                        pixel.copy_from_slice(sums);
                    })?;
                }
            }
            Ok(())
        })
    }

    /// Writes the sums of a range of output channels to `output`, whose pixels are `stride` elements apart.
    #[allow(
        clippy::too_many_arguments,
        reason = "a product, its factors and where it goes"
    )]
    fn multiply(
        &self,
        channels: &Channels,
        image: &impl Image,
        values: &[f32],
        starts: &[usize],
        output: &mut [f32],
        stride: usize,
        pace: &mut Pace,
    ) -> Result<()> {
        let [_, length] = image.taps(&self.geometry);
        TapGemm {
            filters: &channels.filters,
            bias: &self.bias[channels.range.clone()],
            values: values.get(channels.first_input..).unwrap_or_default(),
            length,
            starts,
            output,
            stride,
            pace,
        }
        .run()
    }

    /// Computes a depthwise convolution.
    fn filtered(&self, filter: &ChannelFilter, images: &[f32]) -> Result<Tensor> {
        let (geometry, rows) = (&self.geometry, self.rows);
        let (image, width) = (
            geometry.input[0] * geometry.input[1] * self.channels,
            geometry.output[1],
        );
        let sizes = FilterSizes {
            input: geometry.input,
            output: geometry.output,
            strides: geometry.strides,
            dilations: geometry.dilations,
            before: geometry.before,
        };
        let together = (FINISHED / rows / geometry.depth()).max(1);
        let [work, least] = self.work();
        // Whole lines, unless they are long, or fewer than threads.
        let are_many = geometry.batch * geometry.output[0] >= threads::parts(work, least);
        let unit = if width <= together && are_many { width } else { 1 };
        split::created(
            &self.shape,
            unit * rows,
            [work, least],
            |first, mut output: &mut [f32], pace: &mut Pace| {
                let mut at = first * unit;
                while !output.is_empty() {
                    let [batch, y, x] = self.place(at);
                    let left = together.min(output.len() / rows);
                    // Several whole lines, or a part of one.
                    let part = if x > 0 || left < width {
                        [y..y + 1, x..width.min(x + left)]
                    } else {
                        [y..geometry.output[0].min(y + left / width), 0..width]
                    };
                    let count = part[0].len() * part[1].len();
                    let (pixels, rest) = output.split_at_mut(count * rows);
                    pace.spend((pixels.len() * geometry.depth()) as u64 / 16 + 1)?;
                    let image = &images[batch * image..][..image];
                    filter.run(&sizes, self.bias, image, part, pixels);
                    self.finish(pixels);
                    (at, output) = (at + count, rest);
                }
                Ok(())
            },
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::conv::conv;
    use onnx_tensor::{
        elements::tensor,
        testing::{node, with_text},
    };

    /// Returns small integers, so that sums are exact in any order.
    fn numbers(shape: &[usize], seed: usize) -> Arc<Tensor> {
        let count: usize = shape.iter().product();
        let numbers = (0..count).map(|at| ((at * 7919 + seed) % 17) as f32 - 8.0);
        tensor(shape, numbers.collect()).unwrap().into_arc()
    }

    /// Moves the channels of an image to the end.
    fn turned(image: &Tensor) -> Arc<Tensor> {
        let shape = last(image.shape()).unwrap();
        let [batch, height, width, channels] = shape;
        let from = elements::<f32>(image).unwrap();
        let mut made = Vec::with_capacity(from.len());
        for batch in 0..batch {
            for pixel in 0..height * width {
                let place = |channel: usize| (batch * channels + channel) * height * width + pixel;
                made.extend((0..channels).map(|channel| from[place(channel)]));
            }
        }
        tensor(&shape, made).unwrap().into_arc()
    }

    fn run(op: &dyn Compute, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?.remove(0);
        let shape: ShortVec<Dim> = made.shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(shape, facts[0].shape);
        Ok(made)
    }

    /// Compares the result with that of `Conv`, with and without constant weights.
    fn check(node: &Node, image: &[usize], weights: &[usize], is_from_first: bool) -> Option<()> {
        let [x, w, bias] = [numbers(image, 1), numbers(weights, 2), numbers(&weights[..1], 3)];
        // A window that is larger than the image is refused by both.
        let expected = run(&*conv(node).unwrap(), &[x.clone(), w.clone(), bias.clone()]).ok()?;
        let mut node = node.clone();
        node.attribute.push(onnx_tensor::node::Attribute {
            name: "from_first".to_owned(),
            i: is_from_first.into(),
            ..Default::default()
        });
        let x = if is_from_first { x } else { turned(&x) };
        let mut op = channels_last_conv(&node).unwrap();
        let found = run(&*op, &[x.clone(), w.clone(), bias.clone()]).unwrap();
        assert_eq!(found, turned(&expected), "{node:?} of {image:?} and {weights:?}");
        let mut packs = Packs::beside(1 << 20);
        let taken = op.take_over(&[None, Some(w.clone()), None], &mut packs).unwrap();
        assert_eq!(taken, Some(1));
        assert_eq!(
            op.run(&mut smallvec![x, numbers(&[0], 0), bias]).unwrap()[0],
            found
        );
        Some(())
    }

    #[test]
    fn results_are_those_of_channels_that_come_first() {
        let cases: [([usize; 4], [usize; 4], i64); 12] = [
            ([1, 4, 9, 7], [6, 4, 3, 2], 1),
            ([2, 3, 11, 20], [5, 3, 3, 3], 1),
            ([2, 8, 6, 5], [6, 4, 1, 1], 2),
            ([1, 20, 13, 12], [33, 20, 1, 1], 1),
            ([2, 5, 9, 6], [5, 1, 3, 3], 5),
            ([1, 19, 7, 8], [19, 1, 5, 5], 19),
            ([1, 3, 12, 11], [4, 3, 7, 7], 1),
            ([1, 2, 1, 300], [3, 2, 1, 9], 1),
            ([0, 3, 5, 6], [8, 3, 2, 2], 1),
            ([1, 2, 1, 1], [8, 2, 1, 1], 1),
            ([1, 3, 2, 3], [4, 3, 2, 1], 1),
            ([2, 1, 3, 2], [4, 1, 2, 3], 1),
        ];
        let mut count = 0;
        for (image, weights, group) in cases {
            for stride in 1..3 {
                for dilation in 1..3 {
                    for pad in 0..3 {
                        let lists = [
                            ("strides", vec![stride; 2]),
                            ("dilations", vec![dilation; 2]),
                            ("pads", vec![pad, pad + 1, 2 * pad, pad]),
                        ];
                        let node = node("Conv", &lists, &[("group", group)], 1);
                        count += usize::from(check(&node, &image, &weights, false).is_some());
                        if group == 1 {
                            check(&node, &image, &weights, true);
                        }
                    }
                }
            }
        }
        assert!(count > 80, "{count} cases");
    }

    #[test]
    fn parts_of_large_images_fit_together() {
        let cases: [([usize; 4], [usize; 4], i64, [i64; 2]); 6] = [
            ([1, 3, 40, 230], [8, 3, 3, 3], 1, [2, 2]),
            ([2, 1, 11, 131], [4, 1, 5, 5], 1, [1, 1]),
            ([1, 8, 40, 160], [8, 1, 3, 3], 8, [1, 1]),
            ([1, 200, 9, 160], [200, 1, 5, 5], 200, [2, 1]),
            ([1, 100, 9, 90], [100, 1, 3, 3], 100, [2, 1]),
            ([1, 20, 12, 130], [33, 20, 3, 3], 1, [2, 1]),
        ];
        for (image, weights, group, strides) in cases {
            let pad = weights[2] as i64 / 2;
            let lists = [("strides", strides.to_vec()), ("pads", vec![pad; 4])];
            let node = node("Conv", &lists, &[("group", group)], 1);
            check(&node, &image, &weights, group == 1 && image[1] < 4).unwrap();
        }
    }

    #[test]
    fn images_without_pixels_are_padding() {
        let node = node("Conv", &[("pads", vec![1, 1, 1, 1])], &[], 1);
        check(&node, &[1, 2, 0, 3], &[4, 2, 2, 3], false).unwrap();
        check(&node, &[1, 2, 0, 3], &[4, 2, 2, 3], true).unwrap();
    }

    #[test]
    fn automatic_padding_is_that_of_the_pixels() {
        let node = with_text(
            node("Conv", &[("strides", vec![2; 2])], &[], 1),
            "auto_pad",
            "SAME_UPPER",
        );
        check(&node, &[1, 5, 6, 9], &[4, 5, 3, 3], false).unwrap();
    }

    #[test]
    fn images_of_other_channels_are_refused_in_the_order_of_conv() {
        let node = node("Conv", &[], &[], 1);
        let op = channels_last_conv(&node).unwrap();
        let inputs = [numbers(&[1, 6, 6, 3], 1), numbers(&[4, 2, 3, 3], 2)];
        let error = run(&*op, &inputs).unwrap_err();
        assert_eq!(error.to_string(), "takes images of 2 channels, not of 3");
    }
}
