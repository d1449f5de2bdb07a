//! Computes FP32 convolutions of channels-last images: dense ones as products of pixels and weights, depthwise ones
//! as filters.

use onnx_gemm::{ChannelFilter, FilterSizes, TapGemm, WindowGemm};
use onnx_kernels::elementwise::Activation;
use onnx_tensor::{
    cancelling::{Pace, in_parts},
    elements::{elements, written},
    prelude::*,
    size, split, threads,
};

use crate::{
    conv::{
        geometry::Geometry,
        image_lines::ImageLines,
        packed_channels::Channels,
        pixel_segments::{Image, InPlace},
    },
    least_work::PRODUCTS,
    split_products::products,
};

/// Maximum number of pixels whose sums are computed and finished together, so that they stay in the L2 cache.
const PIXELS: usize = 96;

/// Minimum number of pixels of a thread. With fewer, the weights are read too often.
const LEAST_PIXELS: usize = 8;

/// Maximum number of segments of all these pixels.
const SEGMENTS: usize = 1 << 13;

/// Maximum number of multiplications of a depthwise convolution before its sums are finished.
const FINISHED: usize = 1 << 17;

/// The number of pixels of a tile of a depthwise convolution.
const TILE: usize = 4;

/// Maximum number of terms of a sum of windows over lines. With more, the weights do not stay in the L1 cache.
const FEW_TERMS: usize = 256;

/// Minimum number of pixels of an output line whose windows are multiplied together: a tile of them.
const LEAST_WIDTH: usize = 8;

/// Minimum number of terms per sum in the cost estimate, since short sums are memory-bound.
const LEAST_TERMS: usize = 32;

/// A convolution with known sizes, whose result has the channels last.
pub(super) struct Convolution<'c> {
    geometry: Geometry,
    /// Input channels and output channels of all groups.
    channels: usize,
    rows: usize,
    /// Shape of the result.
    shape: [usize; 4],
    bias: &'c [f32],
    activation: Option<&'c Activation>,
    /// A tensor that is added to the result, and the activation of the sums.
    addend: Option<(&'c [f32], Option<&'c Activation>)>,
}

impl<'c> Convolution<'c> {
    pub(super) fn new(
        geometry: Geometry,
        shape: [usize; 4],
        bias: &'c [f32],
        activation: Option<&'c Activation>,
    ) -> Self {
        Self {
            channels: geometry.groups * geometry.channels,
            rows: geometry.groups * geometry.rows,
            geometry,
            shape,
            bias,
            activation,
            addend: None,
        }
    }

    /// Adds the elements of a tensor of the same shape to the result, and then applies `activation`.
    pub(super) fn plus(self, addend: &'c [f32], activation: Option<&'c Activation>) -> Self {
        Self {
            addend: Some((addend, activation)),
            ..self
        }
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

    fn activate(&self, sums: &mut [f32]) {
        if let Some(activation) = self.activation {
            activation.apply(sums);
        }
    }

    /// Adds to the elements of the result from `first` on.
    fn add(&self, first: usize, sums: &mut [f32]) {
        if let Some((addend, activation)) = self.addend {
            for (sum, addend) in sums.iter_mut().zip(&addend[first..]) {
                *sum += addend;
            }
            if let Some(activation) = activation {
                activation.apply(sums);
            }
        }
    }

    fn finish(&self, first: usize, sums: &mut [f32]) {
        self.activate(sums);
        self.add(first, sums);
    }

    /// Returns the convolution of an image without pixels.
    pub(super) fn bias_alone(&self) -> Result<Tensor> {
        split::created(
            &self.shape,
            self.rows,
            self.work(),
            |first, output: &mut [f32], pace| {
                let pixels = (first..).zip(output.chunks_exact_mut(self.rows));
                for (index, pixel) in pixels {
                    pace.pairs(self.bias, pixel, |bias, pixel| pixel.copy_from_slice(bias))?;
                    self.finish(index * self.rows, pixel);
                }
                Ok(())
            },
        )
    }

    /// Computes the convolution as products.
    pub(super) fn product(&self, channels: &[Channels], image: &impl Image) -> Result<Tensor> {
        let rows = self.rows;
        let [taps, _] = image.taps(&self.geometry);
        let [work, least] = self.work();
        let (pixels, parts) = (
            self.geometry.batch * self.geometry.positions(),
            threads::parts(work, least),
        );
        if channels.len() > 1 && pixels < LEAST_PIXELS * parts {
            return match image.whole()? {
                Some(image) => self.product_by_channels(channels, &InPlace(elements(&image)?)),
                None => self.product_by_channels(channels, image),
            };
        }
        let together = pixels.div_ceil(parts).clamp(LEAST_PIXELS, PIXELS);
        let together = image.together(&self.geometry, together.min(SEGMENTS / taps).max(1));
        split::created(
            &self.shape,
            together * rows,
            [work, least],
            |first, output: &mut [f32], pace| {
                let (mut starts, mut copies) = (Vec::new(), Vec::new());
                for (block, output) in (first..).zip(output.chunks_mut(together * rows)) {
                    let first = block * together;
                    let pixels = first..first + output.len() / rows;
                    let mut values =
                        image.segments(&self.geometry, pixels, &mut starts, &mut copies, pace)?;
                    for channels in channels {
                        let output = &mut output[channels.range.start..];
                        self.multiply(channels, image, values, &starts, output, rows, pace)?;
                        // Once is enough.
                        values[1] = &[];
                    }
                    self.finish(first * rows, output);
                }
                Ok(())
            },
        )
    }

    /// Computes the convolution of images with few channels, which come first, as products of windows over lines;
    /// `None` if the stride, the dilation, the number of terms or the width is not supported.
    pub(super) fn product_of_lines(&self, channels: &[Channels], images: &[f32]) -> Result<Option<Tensor>> {
        let (geometry, rows) = (&self.geometry, self.rows);
        let [step, taps] = [geometry.strides[1], geometry.kernel[1]];
        let is_supported = WindowGemm::STEPS.contains(&step) && geometry.dilations[1] == 1;
        if !is_supported || geometry.depth() > FEW_TERMS || geometry.output[1] < LEAST_WIDTH {
            return Ok(None);
        }
        let [work, least] = self.work();
        let pixels = geometry.batch * geometry.positions();
        let together = pixels
            .div_ceil(threads::parts(work, least))
            .clamp(LEAST_PIXELS, PIXELS);
        split::created(
            &self.shape,
            together * rows,
            [work, least],
            |first, output: &mut [f32], pace: &mut Pace| {
                let mut image_lines = ImageLines::default();
                let (mut pixel, mut rest) = (first * together, output);
                while !rest.is_empty() {
                    let [_, _, x] = geometry.place(pixel);
                    // Equal parts of a line, since few windows are slower than a tile.
                    let left = geometry.output[1] - x;
                    let count = left.div_ceil(left.div_ceil(together)).min(rest.len() / rows);
                    let (output, others) = rest.split_at_mut(count * rows);
                    let lines = image_lines.under(geometry, images, pixel, count);
                    for channels in channels {
                        let terms = count * channels.range.len() * geometry.depth();
                        pace.spend(terms as u64 / 16 + 1)?;
                        let product = WindowGemm {
                            filters: &channels.filters,
                            bias: &self.bias[channels.range.clone()],
                            lines: &lines,
                            taps,
                            step,
                            output: &mut output[channels.range.start..],
                            stride: rows,
                        };
                        product.run();
                    }
                    self.finish(pixel * rows, output);
                    (pixel, rest) = (pixel + count, others);
                }
                Ok(())
            },
        )
        .map(Some)
    }

    /// Computes the convolution for few pixels, with a range of output channels on each thread.
    fn product_by_channels(&self, channels: &[Channels], image: &impl Image) -> Result<Tensor> {
        let pixels = self.geometry.batch * self.geometry.positions();
        size::admit_now((size_of::<f32>() * pixels * self.rows) as u64)?;
        let (mut starts, mut copies) = (Vec::new(), Vec::new());
        let mut pace = Pace::default();
        let values = image.segments(&self.geometry, 0..pixels, &mut starts, &mut copies, &mut pace)?;
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
                self.activate(product);
                Ok(())
            },
        )?;
        written(&self.shape, |output: &mut [f32]| {
            for (channels, product) in channels.iter().zip(&products) {
                let pixels = output.chunks_exact_mut(self.rows);
                for (pixel, sums) in pixels.zip(product.chunks_exact(channels.range.len())) {
                    pace.pairs(sums, &mut pixel[channels.range.clone()], |sums, pixel| {
                        pixel.copy_from_slice(sums);
                    })?;
                }
            }
            for (part, output) in output.chunks_mut(FINISHED).enumerate() {
                pace.spend(output.len() as u64)?;
                self.add(part * FINISHED, output);
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
        [values, ahead]: [&[f32]; 2],
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
            ahead,
            pace,
        }
        .run()
    }

    /// Computes a depthwise convolution.
    pub(super) fn filtered(&self, filter: &ChannelFilter, images: &[f32]) -> Result<Tensor> {
        let (geometry, rows) = (&self.geometry, self.rows);
        let width = geometry.output[1];
        let [work, least] = self.work();
        // Whole lines, unless they are long, or fewer than threads.
        let are_many = geometry.batch * geometry.output[0] >= threads::parts(work, least);
        let unit = if width <= self.filtered_together() && are_many {
            width
        } else {
            1
        };
        split::created(
            &self.shape,
            unit * rows,
            [work, least],
            |first, output: &mut [f32], pace: &mut Pace| {
                self.filter(filter, images, first * unit, output, pace)
            },
        )
    }

    /// Returns the number of pixels of a depthwise convolution that are computed and then finished: equal parts of
    /// a line, wide enough for tiles of pixels that are as far apart as taps.
    fn filtered_together(&self) -> usize {
        let geometry = &self.geometry;
        let most = (FINISHED / self.rows / geometry.depth()).max(2 * TILE * geometry.dilations[1]);
        match geometry.output[1] {
            width if width <= most => most,
            width => width.div_ceil(width.div_ceil(most)),
        }
    }

    /// Computes pixels of a depthwise convolution, from `first` on.
    pub(super) fn filter(
        &self,
        filter: &ChannelFilter,
        images: &[f32],
        first: usize,
        mut output: &mut [f32],
        pace: &mut Pace,
    ) -> Result<()> {
        let (geometry, rows, together) = (&self.geometry, self.rows, self.filtered_together());
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
        let mut at = first;
        while !output.is_empty() {
            let [batch, y, x] = geometry.place(at);
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
            self.finish(at * rows, pixels);
            (at, output) = (at + count, rest);
        }
        Ok(())
    }
}
