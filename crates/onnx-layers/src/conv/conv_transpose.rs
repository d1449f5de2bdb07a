//! The operator `ConvTranspose`: multiplies each image element by the kernel, and adds the products to the
//! result.

use std::{
    ops::{AddAssign, Range},
    sync::Arc,
};

use onnx_gemm::{BlockedGemm, add_gemm, clear_subnormals, pack_columns, transpose};
use onnx_tensor::prelude::*;

use crate::{
    conv::columns::{Axis, Scatter, count},
    least_work::PRODUCTS,
    split_products::products,
};
use onnx_tensor::operator::Constants;
use onnx_tensor::{
    cancelling::{PART, Pace, in_parts},
    faults::{Limit, Misfit, Refusal, ensure_input, unsupported},
    node::Node,
    operator::Compute,
    threads,
};
use onnx_tensor::{
    elements::{Real, elements, filled},
    node::Attributes,
    operator::Fact,
    packs::{Order, Packs},
};

/// Larger strides, pads and dilations are refused, so that their products cannot overflow.
const MAX_NUMBER: i64 = 1 << 24;

/// Builds the operator `ConvTranspose`.
pub fn conv_transpose(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let group = attributes.int("group", 1);
    if !(1..=MAX_NUMBER).contains(&group) {
        bail!(Refusal(format!("needs a 'group' from 1 to {MAX_NUMBER}")));
    }
    let automatic = attributes.text("auto_pad", "NOTSET");
    let (pads, sizes) = (attributes.ints("pads"), attributes.ints("output_shape"));
    let padding = match automatic {
        "NOTSET" | "SAME_UPPER" | "SAME_LOWER" | "VALID" if !sizes.is_empty() => {
            Padding::For(numbers(attributes, "output_shape", 0)?)
        }
        "SAME_UPPER" | "SAME_LOWER" => Padding::Same,
        _ if automatic != "NOTSET" && !pads.is_empty() => {
            bail!(Refusal("has both 'auto_pad' and 'pads'".to_owned()))
        }
        "VALID" | "NOTSET" => Padding::Given(numbers(attributes, "pads", 0)?),
        other => bail!(Refusal(format!(
            "has the auto_pad {}, which is not one of ONNX's",
            tensor_core::QuotedName(other)
        ))),
    };
    Ok(Box::new(ConvTranspose {
        group: group as usize,
        kernel: numbers(attributes, "kernel_shape", 1)?,
        strides: numbers(attributes, "strides", 1)?,
        dilations: numbers(attributes, "dilations", 1)?,
        added: numbers(attributes, "output_padding", 0)?,
        padding,
        pads_end_more: automatic == "SAME_UPPER",
        packed: None,
    }))
}

/// Reads a list of small integers; empty if the attribute is absent.
fn numbers(attributes: Attributes<'_>, name: &str, least: i64) -> Result<Vec<usize>> {
    let given = attributes.ints(name);
    if !given.iter().all(|number| (least..=MAX_NUMBER).contains(number)) {
        bail!(Refusal(format!(
            "has {name} that are not all from {least} to {MAX_NUMBER}"
        )));
    }
    Ok(given.iter().map(|&number| number as usize).collect())
}

#[derive(Clone, Debug)]
enum Padding {
    /// The begin pads of all axes, followed by the end pads; empty if there is no padding.
    Given(Vec<usize>),
    /// Padding such that each axis of the result has `stride` times the size of the image (`auto_pad` SAME).
    Same,
    /// Padding such that the result has these sizes, which may include batch and channels (`output_shape`).
    For(Vec<usize>),
}

/// The parameters of a node. A list is empty if its attribute is absent.
#[derive(Clone, Debug)]
struct ConvTranspose {
    group: usize,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    /// `output_padding`: number of elements appended to each axis.
    added: Vec<usize>,
    padding: Padding,
    /// Whether an odd element of computed padding is at the end (`SAME_UPPER`) instead of the beginning.
    pads_end_more: bool,
    /// Constant weights as packed by [`packed`], and their original dimensions.
    packed: Option<(Arc<Vec<f32>>, ShortVec<usize>)>,
}

/// Packs the weights of all groups for matrix products.
fn packed(weights: &Tensor, groups: usize) -> Result<Vec<f32>> {
    let rows: usize = weights.shape()[1..].iter().product();
    let weights = elements::<f32>(weights)?;
    let groups = weights.chunks_exact((weights.len() / groups).max(1));
    let mut packed: Vec<f32> = groups.flat_map(|weights| pack_columns(rows, weights)).collect();
    clear_subnormals(&mut packed);
    Ok(packed)
}

/// Returns `list[axis]`, or `default` if the list is empty.
fn at(list: &[usize], axis: usize, default: usize) -> usize {
    list.get(axis).copied().unwrap_or(default)
}

impl ConvTranspose {
    /// Returns the size of the result along an axis.
    fn size<D: Size>(&self, axis: usize, axes: usize, image: &D, kernel: usize) -> Result<D> {
        let stride = at(&self.strides, axis, 1);
        let window = at(&self.added, axis, 0) + (kernel - 1) * at(&self.dilations, axis, 1) + 1;
        let all = image.clone() * stride;
        Ok(match &self.padding {
            Padding::For(sizes) => D::of(sizes[sizes.len() - axes + axis]),
            // If the window is smaller than the stride, the result ends with the last window.
            Padding::Same => less(all, stride.saturating_sub(window))?,
            Padding::Given(pads) => {
                let pads = at(pads, axis, 0) + at(pads, axes + axis, 0);
                less(all + window, stride + pads)?
            }
        })
    }

    fn axis(&self, axis: usize, axes: usize, image: usize, kernel: usize) -> Result<Axis> {
        let (stride, dilation) = (at(&self.strides, axis, 1), at(&self.dilations, axis, 1));
        let size = self.size(axis, axes, &image, kernel)?;
        let pad = match &self.padding {
            Padding::Given(pads) => at(pads, axis, 0),
            _ => {
                let reach =
                    (image.max(1) - 1) * stride + at(&self.added, axis, 0) + (kernel - 1) * dilation + 1;
                ensure_input!(
                    size < reach + stride,
                    "an output_shape of {size} where at most {} follows from the input",
                    reach + stride - 1
                );
                let total = reach.saturating_sub(size);
                if self.pads_end_more {
                    total / 2
                } else {
                    total - total / 2
                }
            }
        };
        Ok(Axis {
            positions: image,
            size,
            kernel,
            stride,
            dilation,
            pad: pad as i64,
        })
    }

    /// Returns whether each list has one number per axis of `kernel`.
    fn fits(&self, kernel: &[usize]) -> bool {
        let axes = kernel.len();
        let lists = [&self.kernel, &self.strides, &self.dilations, &self.added];
        let padding = match &self.padding {
            Padding::Given(pads) => pads.is_empty() || pads.len() == 2 * axes,
            Padding::Same => true,
            Padding::For(sizes) => (axes..=axes + 2).contains(&sizes.len()),
        };
        padding
            && lists.iter().all(|list| list.is_empty() || list.len() == axes)
            && (self.kernel.is_empty() || self.kernel == kernel)
            && kernel.iter().all(|&size| size > 0)
    }
}

/// Subtracts `number` from a size.
fn less<D: Size>(size: D, number: usize) -> Result<D> {
    if let Some(found) = size.to_i64()
        && found < number as i64
    {
        bail!(Misfit::Dimension(found - number as i64));
    }
    Ok(size - number)
}

impl Compute for ConvTranspose {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [image, weights, bias @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        let sizes = weights.shape.iter().map(onnx_tensor::Size::to_usize);
        let sizes: Option<ShortVec<usize>> = sizes.collect();
        let sizes = sizes.ok_or_else(|| Limit("needs the sizes of its weights".to_owned()))?;
        let channels = image.shape.get(1).map_or(Dim::Known(0), ToDim::to_dim);
        if channels.to_i64().is_none() {
            bail!(Limit("needs the number of channels".to_owned()));
        }
        let axes = sizes.len().saturating_sub(2);
        let is_fitting = axes > 0
            && image.rank() == sizes.len()
            && self.fits(&sizes[2..])
            && sizes[0] % self.group == 0
            && channels == sizes[0].to_dim()
            && bias
                .iter()
                .all(|bias| bias.shape[..] == [(sizes[1] * self.group).to_dim()])
            && inputs
                .iter()
                .all(|input| input.element_type == image.element_type);
        if !is_fitting {
            bail!(Refusal(format!(
                "has weights of {sizes:?} in {} groups for an image of {} dimensions with {channels} channels",
                self.group,
                image.rank(),
            )));
        }
        let mut shape: ShortVec<Dim> = smallvec![image.shape[0], (sizes[1] * self.group).to_dim()];
        for (axis, (image, kernel)) in image.shape[2..].iter().zip(&sizes[2..]).enumerate() {
            shape.push(self.size(axis, axes, image, *kernel)?);
        }
        Ok(Some(vec![Fact::new(image.element_type, shape)]))
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        let weights = constants.get(1).and_then(Option::as_ref);
        let Some(weights) =
            weights.filter(|weights| weights.element_type() == ElementType::F32 && weights.rank() > 2)
        else {
            return Ok(None);
        };
        let (order, bytes) = (Order::Columns { groups: self.group }, 4 * weights.len() as u64);
        let packed = packs.shared(&[weights], order, bytes, || packed(weights, self.group))?;
        self.packed = packed.map(|packed| (packed, weights.shape().into()));
        Ok(self.packed.as_ref().map(|_| 1))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let made = match (inputs[0].element_type(), &self.packed) {
            (ElementType::F32, Some((packed, shape))) => self.images(inputs, packed, shape, by_panels),
            (ElementType::F32, None) => {
                let packed = packed(&inputs[1], self.group)?;
                self.images(inputs, &packed, inputs[1].shape(), by_panels)
            }
            (ElementType::F64, _) => self.images(
                inputs,
                elements::<f64>(&inputs[1])?,
                inputs[1].shape(),
                by_columns,
            ),
            (other, _) => return Err(unsupported(other)),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

/// Callback that receives consecutive values of one row of an image's columns: the row, the first column, and
/// the values.
type Columns<'c, T> = &'c mut dyn FnMut(usize, usize, &[T]);

/// The factors of the product that gives the columns of one image: its elements (`depth` x `positions`), and
/// the weights of its group (`depth` x `rows`, or packed).
struct Factors<'f, T> {
    weights: &'f [T],
    elements: &'f [T],
    sizes: [usize; 3],
    /// The range of rows to compute.
    part: Range<usize>,
}

fn by_panels(factors: &Factors<'_, f32>, pace: &mut Pace, give: Columns<'_, f32>) -> Result<()> {
    let [depth, _, positions] = factors.sizes;
    let offsets: Vec<usize> = (0..depth).map(|term| term * positions).collect();
    let product = BlockedGemm {
        rows: factors.part.len(),
        weights: &factors.weights[factors.part.start * depth..],
        values: factors.elements,
        offsets: &offsets,
        columns: positions,
    };
    product.run(pace, &mut |row, first, sums| give(row, first, sums))
}

/// Maximum number of column values in memory at a time.
const TOGETHER: usize = 1 << 20;

fn by_columns(factors: &Factors<'_, f64>, pace: &mut Pace, give: Columns<'_, f64>) -> Result<()> {
    let [depth, rows, positions] = factors.sizes;
    let weights = transpose(depth, &factors.weights[..depth * rows], pace)?;
    let elements = &factors.elements[..depth * positions];
    let together = (TOGETHER / positions.max(1)).max(1);
    for first in factors.part.clone().step_by(together) {
        let count = together.min(factors.part.end - first);
        let weights = &weights[first * depth..][..count * depth];
        let mut columns = vec![0.0; count * positions];
        add_gemm(weights, elements, [count, depth, positions], &mut columns, pace)?;
        for (row, columns) in columns.chunks_exact(positions.max(1)).enumerate() {
            let row = first - factors.part.start + row;
            for (first, columns) in (0..).step_by(PART).zip(columns.chunks(PART)) {
                pace.spend(columns.len() as u64)?;
                give(row, first, columns);
            }
        }
    }
    Ok(())
}

/// Maximum number of rows per block. The order of summation depends on the blocks, so their size must not
/// depend on the number of threads.
const ROWS: usize = 256;

/// Minimum number of rows per block of channels. Kernels with more rows are split into blocks for several
/// threads.
const LEAST_ROWS: usize = 64;

/// Number of blocks into which the channels are split, within the limits on rows.
const BLOCKS: usize = 4;

/// Returns the number of result channels per block. The packed weights of each block begin at a panel.
fn channels_together(made: usize, window: usize) -> usize {
    let channels = |rows: usize| (rows / window.max(1)).next_multiple_of(4).max(4);
    made.div_ceil(BLOCKS)
        .next_multiple_of(4)
        .clamp(channels(LEAST_ROWS), channels(ROWS))
}

impl ConvTranspose {
    fn images<T: Real + AddAssign>(
        &self,
        inputs: &[Arc<Tensor>],
        all_weights: &[T],
        weights: &[usize],
        columns: impl Fn(&Factors<'_, T>, &mut Pace, Columns<'_, T>) -> Result<()> + Sync,
    ) -> Result<Tensor> {
        let image = &inputs[0];
        let (channels, made) = (image.shape()[1], weights[1]);
        ensure_input!(
            weights[0] == channels && channels % self.group == 0,
            "weights for {} channels, in {} groups, for an input of {channels}",
            weights[0],
            self.group
        );
        let (sizes, kernel) = (&image.shape()[2..], &weights[2..]);
        let pairs = sizes.iter().zip(kernel).enumerate();
        let axes = pairs.map(|(axis, (&image, &kernel))| self.axis(axis, sizes.len(), image, kernel));
        let axes: Vec<Axis> = axes.collect::<Result<_>>()?;
        let mut shape = vec![image.shape()[0], self.group * made];
        shape.extend(axes.iter().map(|axis| axis.size));
        let scatter = Scatter::new(axes)?;
        let positions = scatter.positions()?;
        count(shape.iter().copied())?;
        let add = |output: &mut [T]| {
            if output.is_empty() {
                return Ok(());
            }
            let bias = inputs.get(2).map(|bias| elements::<T>(bias)).transpose()?;
            let begin = |index: usize, channel: usize, output: &mut [T], pace: &mut Pace| {
                let Some(bias) = bias else {
                    return Ok(());
                };
                let bias = bias[index % self.group * made + channel..].iter();
                let mut images = output.chunks_exact_mut(scatter.image).zip(bias);
                images.try_for_each(|(image, bias)| pace.over(image, |image| image.fill(*bias)))
            };
            let (depth, rows) = (channels / self.group, made * scatter.window);
            let images = elements::<T>(image)?;
            if depth * positions == 0 {
                let mut pace = Pace::default();
                let mut groups = output.chunks_exact_mut(made * scatter.image).enumerate();
                return groups.try_for_each(|(index, output)| begin(index, 0, output, &mut pace));
            }
            let together = channels_together(made, scatter.window);
            let groups = output.chunks_exact_mut(made * scatter.image).enumerate();
            let blocks = groups.flat_map(|(index, output)| {
                let blocks = output.chunks_mut(together * scatter.image).enumerate();
                blocks.map(move |(block, output)| (index, block * together, output))
            });
            let compute = |(index, channel, output): (usize, usize, &mut [T]), pace: &mut Pace| {
                begin(index, channel, &mut *output, pace)?;
                let of_group = all_weights.len() / self.group;
                let (first, count) = (channel * scatter.window, output.len() / scatter.image);
                let factors = Factors {
                    weights: &all_weights[index % self.group * of_group..][..of_group],
                    elements: &images[index * depth * positions..][..depth * positions],
                    sizes: [depth, rows, positions],
                    part: first..first + count * scatter.window,
                };
                columns(&factors, pace, &mut |row, first, numbers| {
                    let image = &mut output[row / scatter.window * scatter.image..][..scatter.image];
                    scatter.add(row % scatter.window, first, numbers, image);
                })
            };
            let count = images.len() / (depth * positions);
            let work = products([count * depth, rows, positions]);
            if threads::parts(work, PRODUCTS) > 1 {
                return in_parts(blocks.collect(), compute);
            }
            let mut pace = Pace::default();
            for block in blocks {
                compute(block, &mut pace)?;
            }
            Ok(())
        };
        filled(&shape, add)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;

    /// Returns small integers, so that sums are exact in any order.
    fn numbers(shape: &[usize], seed: usize) -> Vec<f64> {
        let count = shape.iter().product::<usize>();
        (0..count)
            .map(|index| ((index * 7919 + seed) % 17) as f64 - 8.0)
            .collect()
    }

    fn tensors<T: Real>(shapes: &[&[usize]]) -> Vec<Arc<Tensor>> {
        let tensors = shapes.iter().enumerate().map(|(seed, shape)| {
            let numbers = numbers(shape, seed).into_iter().map(T::of).collect();
            tensor(shape, numbers).unwrap().into_arc()
        });
        tensors.collect()
    }

    /// Reference implementation, which scatters each image element separately.
    fn plainly(op: &ConvTranspose, image: &[usize], weights: &[usize], made: &[usize]) -> Vec<f64> {
        let (x, w) = (numbers(image, 0), numbers(weights, 1));
        let axes = image.len() - 2;
        let Padding::Given(pads) = &op.padding else {
            panic!("given pads only");
        };
        let bias = numbers(&[made[1]], 2);
        let size = |shape: &[usize]| shape[2..].iter().product::<usize>();
        let per_channel = (0..made[0]).flat_map(|_| bias.iter());
        let mut result: Vec<f64> = per_channel.flat_map(|&bias| vec![bias; size(made)]).collect();
        let (channels, of_group) = (image[1], weights[1]);
        for (index, &x) in x.iter().enumerate() {
            let (batch, channel, place) = (
                index / size(image) / channels,
                index / size(image) % channels,
                index % size(image),
            );
            let group = channel / (channels / op.group);
            for (at, &w) in w[channel * of_group * size(weights)..][..of_group * size(weights)]
                .iter()
                .enumerate()
            {
                let (to, mut element, mut place) = (at / size(weights), at % size(weights), place);
                let (mut found, mut stride) = (Some(0), 1);
                for axis in (0..axes).rev() {
                    let (e, p) = (element % weights[axis + 2], place % image[axis + 2]);
                    (element, place) = (element / weights[axis + 2], place / image[axis + 2]);
                    let at = p * self::at(&op.strides, axis, 1) + e * self::at(&op.dilations, axis, 1);
                    let inside = at
                        .checked_sub(self::at(pads, axis, 0))
                        .filter(|&at| at < made[axis + 2]);
                    found = found.zip(inside).map(|(found, inside)| found + inside * stride);
                    stride *= made[axis + 2];
                }
                if let Some(found) = found {
                    let image = batch * made[1] + group * of_group + to;
                    result[image * size(made) + found] += x * w;
                }
            }
        }
        result
    }

    #[test]
    fn each_element_of_an_image_is_added_to_its_window() {
        let cases: [(&[usize], &[usize], usize); 6] = [
            (&[2, 3, 7], &[3, 2, 4], 1),
            (&[1, 4, 5, 60], &[4, 1, 3, 2], 2),
            (&[1, 2, 3, 4, 5], &[2, 3, 2, 1, 3], 1),
            (&[1, 1, 1, 1], &[1, 1, 1, 1], 1),
            (&[2, 3, 4, 4], &[3, 1, 3, 3], 3),
            (&[1, 40, 9, 9], &[40, 5, 2, 2], 1),
        ];
        for (image, weights, group) in cases {
            let axes = image.len() - 2;
            for stride in 1..4 {
                for dilation in 1..3 {
                    for pad in 0..2 {
                        let op = ConvTranspose {
                            group,
                            kernel: vec![],
                            strides: vec![stride; axes],
                            dilations: vec![dilation; axes],
                            added: vec![stride - 1; axes],
                            padding: Padding::Given([vec![pad; axes], vec![0; axes]].concat()),
                            pads_end_more: false,
                            packed: None,
                        };
                        let bias = [weights[1] * group];
                        let shapes = [image, weights, &bias];
                        let (floats, doubles) = (tensors::<f32>(&shapes), tensors::<f64>(&shapes));
                        let Ok(Some(facts)) = op.outputs(&Fact::of_values(&floats)) else {
                            // The case is skipped if padding removes the whole result.
                            continue;
                        };
                        let sizes = facts[0].shape.iter().map(|dim| dim.to_usize().unwrap());
                        let expected = plainly(&op, image, weights, &sizes.collect::<Vec<_>>());
                        let found = op.run(&mut doubles.into()).unwrap();
                        assert_eq!(
                            elements::<f64>(&found[0]).unwrap(),
                            expected,
                            "{op:?} of {image:?}"
                        );
                        let constants = [None, Some(floats[1].clone())];
                        let mut of_constant = op.clone();
                        let taken = of_constant.take_over(&constants, &mut Packs::beside(0));
                        assert_eq!(taken.unwrap(), Some(1));
                        let mut others: ShortVec<Arc<Tensor>> = floats.clone().into();
                        others[1] = Arc::new(Tensor::zero::<f32>(&[0]).unwrap());
                        for found in [op.run(&mut floats.into()), of_constant.run(&mut others)] {
                            let found = found.unwrap();
                            let numbers = elements::<f32>(&found[0]).unwrap().iter();
                            let found: Vec<f64> = numbers.map(|&x| x.into()).collect();
                            assert_eq!(found, expected, "{op:?} of {image:?}");
                        }
                    }
                }
            }
        }
    }
}
