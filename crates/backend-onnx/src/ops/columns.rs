//! `Col2Im`, and those of `ConvTranspose` whose padding follows from the size of the result, which tract ignores: columns of
//! numbers are added where they overlap.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_ndarray::{ArrayView2, ArrayViewMut2, linalg::general_mat_mul},
};

use super::{
    attributes::Attributes,
    elements::{elements, tensor},
    kernel::{Fact, Kernel, kernel},
};
use crate::{
    building::BuildContext,
    faults::{Limit, ensure_input},
    lowered::OnnxNode,
    size,
};

/// One axis of an image: windows at `positions` places, `stride` apart, that begin `pad` before the image.
#[derive(Clone, Copy, Debug)]
struct Axis {
    positions: usize,
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: i64,
}

impl Axis {
    /// The place in the image that an element of a window has, if it is inside.
    fn place(self, position: usize, element: usize) -> Option<usize> {
        let place = (position * self.stride + element * self.dilation) as i64 - self.pad;
        usize::try_from(place).ok().filter(|&place| place < self.size)
    }
}

/// Adds to an image what stands in columns: for each element of the window, a number for each position.
fn scatter(axes: &[Axis], columns: &[f32], image: &mut [f32]) {
    let positions: usize = axes.iter().map(|axis| axis.positions).product();
    for (window, columns) in columns.chunks_exact(positions.max(1)).enumerate() {
        add(axes, window, columns, image);
    }
}

/// The same for one element of the window, in these axes.
fn add(axes: &[Axis], window: usize, columns: &[f32], image: &mut [f32]) {
    let Some((axis, rest)) = axes.split_first() else {
        return;
    };
    let windows: usize = rest.iter().map(|axis| axis.kernel).product();
    let (element, window) = (window / windows, window % windows);
    if rest.is_empty() {
        for (position, number) in columns.iter().enumerate() {
            if let Some(place) = axis.place(position, element) {
                image[place] += number;
            }
        }
        return;
    }
    let positions: usize = rest.iter().map(|axis| axis.positions).product();
    let inner: usize = rest.iter().map(|axis| axis.size).product();
    for position in 0..axis.positions {
        if let Some(place) = axis.place(position, element) {
            let columns = &columns[position * positions..][..positions];
            add(rest, window, columns, &mut image[place * inner..][..inner]);
        }
    }
}

/// How many elements there are with these sizes.
fn count(sizes: impl IntoIterator<Item = usize>) -> TractResult<usize> {
    let mut sizes = sizes.into_iter();
    let count = sizes.try_fold(1, usize::checked_mul);
    count
        .filter(|&count| count <= 1 << 40)
        .context("the sizes are too large")
}

/// An attribute of one number for each axis.
fn each(attributes: Attributes<'_>, name: &str, axes: usize, default: i64) -> TractResult<Vec<usize>> {
    let given = attributes.ints(name);
    let values = match given.len() {
        0 => vec![default; axes],
        other if other == axes => given.to_vec(),
        other => bail!("{other} {name} for {axes} axes"),
    };
    let fitting = |&value: &i64| usize::try_from(value).ok().filter(|&value| value <= MAX_NUMBER);
    let fitting: Option<Vec<usize>> = values.iter().map(fitting).collect();
    fitting.with_context(|| format!("{name} must be from 0 to {MAX_NUMBER}"))
}

/// Strides and the like beyond this make no sense, and their products stay far from overflowing.
const MAX_NUMBER: usize = 1 << 24;

/// Whether a `ConvTranspose` is computed here.
pub(crate) fn is_ours(node: Attributes<'_>) -> bool {
    node.has("output_shape") || node.text("auto_pad", "NOTSET").starts_with("SAME")
}

/// A `ConvTranspose` whose padding follows from the size of its result.
pub(crate) fn conv_transpose(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let attributes = Attributes(node);
    let group = attributes.int("group", 1);
    ensure!(group > 0 && group <= MAX_NUMBER as i64, "{group} groups");
    Ok(kernel(ConvTranspose {
        group: group as usize,
        pads_end_more: attributes.text("auto_pad", "NOTSET") == "SAME_UPPER",
        node: node.clone(),
    }))
}

#[derive(Debug)]
struct ConvTranspose {
    group: usize,
    /// Which side an odd padding is larger on.
    pads_end_more: bool,
    node: OnnxNode,
}

impl ConvTranspose {
    /// The size of the result along each axis.
    fn sizes(&self, spatial: &[TDim], kernel: &[TDim]) -> TractResult<Vec<TDim>> {
        let attributes = Attributes(&self.node);
        let given = attributes.ints("output_shape");
        if given.is_empty() {
            let rank = spatial.len();
            let strides = each(attributes, "strides", rank, 1)?;
            let dilations = each(attributes, "dilations", rank, 1)?;
            let added = each(attributes, "output_padding", rank, 0)?;
            let mut sizes = Vec::with_capacity(rank);
            for (axis, size) in spatial.iter().enumerate() {
                let window = added[axis] + (kernel[axis].to_usize()?.max(1) - 1) * dilations[axis] + 1;
                // Windows that are smaller than the stride do not reach the end.
                let missing = strides[axis].saturating_sub(window);
                sizes.push(size.clone() * strides[axis] - missing);
            }
            return Ok(sizes);
        }
        ensure!(
            given.len() >= spatial.len() && given.iter().all(|&size| size >= 0),
            "an output_shape of {} sizes for {} axes",
            given.len(),
            spatial.len()
        );
        // With or without the batch and the channels.
        let sizes = &given[given.len() - spatial.len()..];
        Ok(sizes.iter().map(ToDim::to_dim).collect())
    }

    fn axes(&self, input: &[usize], kernel: &[usize]) -> TractResult<Vec<Axis>> {
        let (attributes, rank) = (Attributes(&self.node), input.len());
        let strides = each(attributes, "strides", rank, 1)?;
        let dilations = each(attributes, "dilations", rank, 1)?;
        let added = each(attributes, "output_padding", rank, 0)?;
        let dims = |sizes: &[usize]| -> Vec<TDim> { sizes.iter().map(ToDim::to_dim).collect() };
        let sizes = self.sizes(&dims(input), &dims(kernel))?;
        (0..rank)
            .map(|at| {
                let size = sizes[at].to_usize()?;
                let (stride, dilation) = (strides[at], dilations[at]);
                let reach =
                    (input[at].max(1) - 1) * stride + added[at] + (kernel[at].max(1) - 1) * dilation + 1;
                ensure_input!(
                    size < reach + stride.max(1),
                    "an output_shape of {size} where at most {} follows from the input",
                    reach + stride.max(1) - 1
                );
                let total = reach.saturating_sub(size) as i64;
                let pad = if self.pads_end_more {
                    total / 2
                } else {
                    total - total / 2
                };
                Ok(Axis {
                    positions: input[at],
                    size,
                    kernel: kernel[at],
                    stride,
                    dilation,
                    pad,
                })
            })
            .collect()
    }
}

impl Kernel for ConvTranspose {
    fn name(&self) -> &'static str {
        "ConvTranspose"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [x, w, bias @ ..] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if inputs.iter().any(|fact| fact.datum_type != DatumType::F32) {
            bail!(Limit("is supported for FP32 only".to_owned()));
        }
        ensure!(
            x.rank() == w.rank() && x.rank() >= 3,
            "an input of {} dimensions and weights of {}",
            x.rank(),
            w.rank()
        );
        ensure!(
            bias.iter().all(|bias| bias.rank() == 1),
            "expected a bias for each channel"
        );
        let mut shape: TVec<TDim> = tvec![x.shape[0].clone(), w.shape[1].clone() * self.group as i64];
        shape.extend(self.sizes(&x.shape[2..], &w.shape[2..])?);
        Ok(vec![Fact::new(x.datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (x, w) = (&inputs[0], &inputs[1]);
        let (batch, channels) = (x.shape()[0], x.shape()[1]);
        let (group, made) = (self.group, w.shape()[1]);
        ensure_input!(
            w.shape()[0] == channels && channels % group == 0,
            "weights for {} channels, in {group} groups, for an input of {channels}",
            w.shape()[0]
        );
        let axes = self.axes(&x.shape()[2..], &w.shape()[2..])?;
        let positions = count(axes.iter().map(|axis| axis.positions))?;
        let window = count(axes.iter().map(|axis| axis.kernel))?;
        let image = count(axes.iter().map(|axis| axis.size))?;
        let rows = made * window;
        size::admit_shape(DatumType::F32, &[rows, positions])?;
        let (values, weights) = (elements::<f32>(x)?, elements::<f32>(w)?);
        let bias = inputs.get(2).map(|bias| elements::<f32>(bias)).transpose()?;
        ensure!(
            bias.is_none_or(|bias| bias.len() == made * group),
            "expected a bias for each channel"
        );
        let depth = channels / group;
        let mut output = vec![0f32; batch * group * made * image];
        if let Some(bias) = bias {
            for (channel, image) in output.chunks_exact_mut(image.max(1)).enumerate() {
                image.fill(bias[channel % bias.len()]);
            }
        }
        let mut columns = vec![0f32; rows * positions];
        for (index, output) in output.chunks_exact_mut((made * image).max(1)).enumerate() {
            let of_group = index % group;
            let shapes = (
                ArrayView2::from_shape((depth, rows), &weights[of_group * depth * rows..][..depth * rows]),
                ArrayView2::from_shape(
                    (depth, positions),
                    &values[index * depth * positions..][..depth * positions],
                ),
                ArrayViewMut2::from_shape((rows, positions), &mut columns),
            );
            let (Ok(w), Ok(x), Ok(mut product)) = shapes else {
                bail!("the sizes do not fit");
            };
            general_mat_mul(1.0, &w.t(), &x, 0.0, &mut product);
            for (columns, image) in columns
                .chunks_exact((window * positions).max(1))
                .zip(output.chunks_exact_mut(image.max(1)))
            {
                scatter(&axes, columns, image);
            }
        }
        let mut shape = vec![batch, group * made];
        shape.extend(axes.iter().map(|axis| axis.size));
        Ok(tvec![tensor(&shape, output)?])
    }
}

/// `Col2Im`: the inverse of taking windows out of an image, with what overlaps added.
pub(crate) fn col_2_im(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(kernel(ColumnsToImage { node: node.clone() }))
}

#[derive(Debug)]
struct ColumnsToImage {
    node: OnnxNode,
}

impl ColumnsToImage {
    fn axes(&self, image: &[i64], window: &[i64]) -> TractResult<Vec<Axis>> {
        let (attributes, rank) = (Attributes(&self.node), image.len());
        ensure!(
            rank > 0 && window.len() == rank,
            "an image of {rank} axes and windows of {}",
            window.len()
        );
        let strides = each(attributes, "strides", rank, 1)?;
        let dilations = each(attributes, "dilations", rank, 1)?;
        let pads = each(attributes, "pads", 2 * rank, 0)?;
        let fitting = |number: i64| {
            let number = usize::try_from(number)
                .ok()
                .filter(|&number| number <= MAX_NUMBER);
            number.with_context(|| format!("sizes must be from 0 to {MAX_NUMBER}"))
        };
        (0..rank)
            .map(|at| {
                let (size, kernel) = (fitting(image[at])?, fitting(window[at])?);
                let (stride, dilation) = (strides[at], dilations[at]);
                ensure!(stride > 0 && kernel > 0, "strides and windows must not be 0");
                let padded = size + pads[at] + pads[rank + at];
                let reach = dilation * (kernel - 1) + 1;
                ensure!(padded >= reach, "a window of {reach} in an image of {padded}");
                Ok(Axis {
                    positions: (padded - reach) / stride + 1,
                    size,
                    kernel,
                    stride,
                    dilation,
                    pad: pads[at] as i64,
                })
            })
            .collect()
    }
}

impl Kernel for ColumnsToImage {
    fn name(&self) -> &'static str {
        "Col2Im"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [columns, image, window] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        if columns.datum_type != DatumType::F32 {
            bail!(Limit("is supported for FP32 only".to_owned()));
        }
        ensure!(columns.rank() == 3, "columns of {} dimensions", columns.rank());
        let (Some(image), Some(window)) = (image.integers(), window.integers()) else {
            bail!(Limit(
                "needs constant sizes of the image and of its windows".to_owned()
            ));
        };
        let axes = self.axes(&image, &window)?;
        let window = count(axes.iter().map(|axis| axis.kernel))?;
        let mut shape = tvec![columns.shape[0].clone(), columns.shape[1].clone() / window as u64];
        shape.extend(axes.iter().map(|axis| axis.size.to_dim()));
        Ok(vec![Fact::new(DatumType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let integers = |index: usize| -> TractResult<Vec<i64>> {
            Ok(elements::<i64>(&*inputs[index].cast_to::<i64>()?)?.to_vec())
        };
        let axes = self.axes(&integers(1)?, &integers(2)?)?;
        let window = count(axes.iter().map(|axis| axis.kernel))?;
        let positions = count(axes.iter().map(|axis| axis.positions))?;
        let size = count(axes.iter().map(|axis| axis.size))?;
        let [batch, rows, found] = *inputs[0].shape() else {
            bail!("expected columns of three dimensions");
        };
        ensure_input!(
            rows % window == 0 && found == positions,
            "columns of {rows} by {found} where windows have {window} numbers at {positions} places"
        );
        let channels = rows / window;
        let mut image = vec![0f32; batch * channels * size];
        for (columns, image) in elements::<f32>(&inputs[0])?
            .chunks_exact((window * positions).max(1))
            .zip(image.chunks_exact_mut(size.max(1)))
        {
            scatter(&axes, columns, image);
        }
        let mut shape = vec![batch, channels];
        shape.extend(axes.iter().map(|axis| axis.size));
        Ok(tvec![tensor(&shape, image)?])
    }
}
