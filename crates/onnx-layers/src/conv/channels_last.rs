//! FP32 convolutions of channels-last images (NHWC), which replace several `Conv` in a row.
//!
//! The channels of a pixel are contiguous, so that a convolution is a product whose rows are read where they
//! are: no image is copied, and whole vectors of channels are loaded and stored whatever the width of the image.

use std::{ops::Range, sync::Arc};

use onnx_gemm::{ChannelFilter, FilterSizes, OUTSIDE, Order as MatrixOrder, PackedMatrix, TapGemm};
use onnx_kernels::elementwise::{Activation, activation_of};
use onnx_tensor::{
    cancelling::Pace,
    elements::elements,
    node::{Attributes, Node},
    operator::{Compute, Fact},
    packs::{Order, Packs},
    prelude::*,
    split, threads,
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
    /// A matrix for each group: one row for each tap and input channel, one column for each output channel.
    Groups(Vec<PackedMatrix>),
    /// The filters of a depthwise convolution.
    Channels(ChannelFilter),
}

impl Filters {
    /// Packs weights of the shape `[output channels, input channels of a group, height, width]`.
    fn packed(weights: &Tensor, groups: usize, from_first: bool) -> Result<Self> {
        let (shape, numbers) = (weights.shape(), elements::<f32>(weights)?);
        let &[rows, channels, height, width] = shape else {
            bail!("weights of {} dimensions", shape.len());
        };
        let (taps, of_group) = (height * width, rows / groups);
        if [of_group, channels] == [1, 1] {
            return Ok(Self::Channels(ChannelFilter::new(numbers, [height, width])));
        }
        let depth = taps * channels;
        let mut turned = Vec::new();
        let matrix = |group: &[f32]| {
            let order = MatrixOrder::ColumnMajor;
            if from_first {
                return PackedMatrix::new(group, [depth, of_group], order);
            }
            turned.clear();
            for filter in group.chunks_exact(depth) {
                let taps = (0..taps).flat_map(|tap| filter[tap..].iter().step_by(taps));
                turned.extend(taps);
            }
            PackedMatrix::new(&turned, [depth, of_group], order)
        };
        Ok(Self::Groups(
            numbers.chunks_exact(of_group * depth).map(matrix).collect(),
        ))
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
        // Packed output channels are padded to whole groups of columns.
        let rows = weights.shape().first().copied().unwrap_or(0) / groups;
        let padding = (rows.next_multiple_of(16) - rows) * weights.len() / rows.max(1);
        let bytes = (size_of::<f32>() * (weights.len() + padding)) as u64;
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
            (Filters::Channels(filter), _) => convolution.filtered(filter, elements(image)?),
            (Filters::Groups(groups), true) => convolution.product(groups, &Copied(elements(image)?)),
            (Filters::Groups(groups), false) => convolution.product(groups, &InPlace(elements(image)?)),
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
        let zeros = vec![0.0; width + COPIED];
        let mut pixel = pixels.start;
        while pixel < pixels.end {
            let [batch, y, first] = convolution.place(pixel);
            let end = geometry.output[1].min(first + pixels.end - pixel);
            let windows = &mut copies[(pixel - pixels.start) * distance..][..(end - first) * distance];
            for channel in 0..geometry.channels {
                let plane = (batch * geometry.channels + channel) * height;
                for (tap, row) in geometry.taken(0, y).enumerate() {
                    let line = match row {
                        Some(row) if row < height => &self.0[(plane + row) * width..],
                        _ => &zeros[..],
                    };
                    let to = (channel * geometry.kernel[0] + tap) * taps;
                    copy_line_of_windows(geometry, line, first..end, &mut windows[to..], distance);
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
    let within = match geometry.dilations[1] {
        1 => {
            let parts = taps.next_multiple_of(COPIED);
            let last = (width - taps.min(width)).min(line.len().saturating_sub(parts)) + before;
            let first = before.div_ceil(stride);
            let end = if taps <= width { last / stride + 1 } else { 0 };
            first.clamp(pixels.start, pixels.end)..end.clamp(pixels.start, pixels.end)
        }
        _ => pixels.start..pixels.start,
    };
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

    /// Computes the convolution as one product for each group.
    fn product(&self, groups: &[PackedMatrix], image: &impl Image) -> Result<Tensor> {
        let (geometry, rows) = (&self.geometry, self.rows);
        let [taps, length] = image.taps(geometry);
        let [work, least] = self.work();
        let of_thread = (geometry.batch * geometry.positions()).div_ceil(threads::parts(work, least));
        let together = of_thread.clamp(LEAST_PIXELS, PIXELS).min(SEGMENTS / taps).max(1);
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
                    for (group, filters) in groups.iter().enumerate() {
                        TapGemm {
                            filters,
                            bias: &self.bias[group * geometry.rows..][..geometry.rows],
                            values: values.get(group * geometry.channels..).unwrap_or_default(),
                            length,
                            starts: &starts,
                            output: &mut output[group * geometry.rows..],
                            stride: rows,
                            pace: &mut *pace,
                        }
                        .run()?;
                    }
                    self.finish(output);
                }
                Ok(())
            },
        )
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
        let cases: [([usize; 4], [usize; 4], i64); 9] = [
            ([1, 4, 9, 7], [6, 4, 3, 2], 1),
            ([2, 3, 11, 20], [5, 3, 3, 3], 1),
            ([2, 8, 6, 5], [6, 4, 1, 1], 2),
            ([1, 20, 13, 12], [33, 20, 1, 1], 1),
            ([2, 5, 9, 6], [5, 1, 3, 3], 5),
            ([1, 19, 7, 8], [19, 1, 5, 5], 19),
            ([1, 3, 12, 11], [4, 3, 7, 7], 1),
            ([1, 2, 1, 300], [3, 2, 1, 9], 1),
            ([0, 3, 5, 6], [8, 3, 2, 2], 1),
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
