//! `Conv` for all types: shapes, weight packing, and the choice between the FP32 kernels and the generic
//! loop.

use std::sync::Arc;

use onnx_gemm::{add_gemm, gemm};
use onnx_kernels::elementwise::{Activation, activation_of};
use onnx_tensor::prelude::*;

use crate::{
    conv::{
        convolution::{Convolution, packed, unpacked},
        geometry::Geometry,
        unfolded::Im2colConvolution,
        window::{MAX_NUMBER, Window},
    },
    pool::axis::Axis,
};
use onnx_tensor::{
    cancelling::Pace,
    elements::{Factor, elements, filled, tensor},
    faults::{Refusal, unsupported},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    packs::{Order, Packs},
    size,
};

/// Builds the operator `Conv`.
pub fn conv(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Conv::of(Attributes(node))?))
}

/// The attributes that convolutions of all types share.
#[derive(Debug)]
pub(crate) struct Shape {
    window: Window,
    pub(crate) groups: usize,
}

/// The sizes of one convolution, from the shapes of the image and the weights.
pub(crate) struct Sizes {
    /// Shape of the convolution's result.
    pub(crate) shape: ShortVec<usize>,
    pub(crate) axes: Vec<Axis>,
    pub(crate) groups: usize,
    /// Input channels (`channels`) and output channels (`rows`) of one group.
    pub(crate) channels: usize,
    pub(crate) rows: usize,
    batch: usize,
}

impl Shape {
    pub(crate) fn of(attributes: Attributes<'_>) -> Result<Self> {
        let groups = usize::try_from(attributes.int("group", 1)).ok();
        let groups = groups.filter(|groups| (1..=MAX_NUMBER).contains(groups));
        Ok(Self {
            window: Window::of_convolution(attributes)?,
            groups: groups.ok_or_else(|| Refusal(format!("needs a 'group' from 1 to {MAX_NUMBER}")))?,
        })
    }

    /// Returns the dimensions of the result; `None` while the kernel is unknown.
    pub(crate) fn dims(&self, image: &[Dim], weights: &[Dim]) -> Result<Option<ShortVec<Dim>>> {
        if image.len() != weights.len() {
            bail!(Refusal(format!(
                "has weights of {} dimensions for an image of {}",
                weights.len(),
                image.len()
            )));
        }
        self.window.expect_axes(image.len().saturating_sub(2))?;
        let taken = weights[1] * self.groups as i64;
        if let (Some(found), Some(expected)) = (image[1].to_i64(), taken.to_i64())
            && found != expected
        {
            bail!(Refusal(format!(
                "takes images of {expected} channels, not of {found}"
            )));
        }
        if weights[0].to_usize().is_some_and(|rows| rows % self.groups != 0) {
            bail!(Refusal(format!(
                "has weights for {} channels in {} groups, expected a multiple",
                weights[0], self.groups
            )));
        }
        let kernel = weights[2..].iter().map(onnx_tensor::Size::to_usize);
        let Some(kernel) = kernel.collect::<Option<ShortVec<usize>>>() else {
            return Ok(None);
        };
        if !self.window.kernel.is_empty() && self.window.kernel != kernel {
            bail!(Refusal(format!(
                "has the kernel_shape {:?} for weights of {kernel:?}",
                self.window.kernel
            )));
        }
        let mut shape = smallvec![image[0], weights[0]];
        shape.extend(self.window.dims(&image[2..], &kernel)?);
        Ok(Some(shape))
    }

    /// Returns the sizes for known shapes, which [`dims`](Self::dims) has accepted.
    pub(crate) fn sizes(&self, image: &[usize], weights: &[usize]) -> Result<Sizes> {
        let axes = self.window.axes(&image[2..], &weights[2..])?;
        let mut shape = smallvec![image[0], weights[0]];
        shape.extend(axes.iter().map(|axis| axis.count));
        Ok(Sizes {
            shape,
            axes,
            groups: self.groups,
            channels: weights[1],
            rows: weights[0] / self.groups,
            batch: image[0],
        })
    }

    /// Returns whether each pixel of the result depends on the same pixel of an image of these sizes, for a kernel of
    /// one pixel.
    pub(super) fn is_of_pixels(&self, image: &[usize]) -> Result<bool> {
        let axes = self.window.axes(&image[2..], &[1, 1])?;
        Ok(axes
            .iter()
            .all(|axis| [axis.stride, axis.pad, axis.count] == [1, 0, axis.size]))
    }

    /// Returns how FP32 weights are packed, which does not depend on the image; `None` for kernels that are
    /// not packed. Weights of a wrong shape are not refused here, but when the node runs.
    fn packing(&self, kernel: &[usize]) -> Option<Geometry> {
        if !(3..=4).contains(&kernel.len()) || kernel.contains(&0) || !kernel[0].is_multiple_of(self.groups) {
            return None;
        }
        let axes = kernel[2..].iter().map(|&kernel| Axis {
            size: 1,
            count: 1,
            kernel,
            stride: 1,
            dilation: 1,
            pad: 0,
        });
        let sizes = Sizes {
            shape: smallvec![1, kernel[0]],
            axes: axes.collect(),
            groups: self.groups,
            channels: kernel[1],
            rows: kernel[0] / self.groups,
            batch: 1,
        };
        sizes.geometry()
    }

    /// Packs the weights once for all nodes that share them.
    fn packed_once(&self, weights: &Arc<Tensor>, packs: &mut Packs) -> Result<Option<Arc<Tensor>>> {
        let Some(geometry) = self.packing(weights.shape()) else {
            return Ok(None);
        };
        let bytes = size_of::<f32>() as u64 * weights.len() as u64;
        let groups = self.groups;
        packs.shared(&[weights], Order::Windows { groups }, bytes, || {
            packed(&geometry, elements::<f32>(weights)?)
        })
    }
}

/// Returns `number` for the height and the width of an image; `None` unless the image has one or two axes. If
/// only the width is an axis, the number for the height is `other`.
fn plane(axes: &[Axis], number: impl Fn(&Axis) -> usize, other: usize) -> Option<[usize; 2]> {
    match axes {
        [width] => Some([other, number(width)]),
        [height, width] => Some([number(height), number(width)]),
        _ => None,
    }
}

impl Sizes {
    /// Returns the geometry for the kernels of one and two dimensions; `None` for other ranks and for empty
    /// images.
    pub(super) fn geometry(&self) -> Option<Geometry> {
        let is_empty =
            self.axes.iter().any(|axis| axis.size == 0) || self.shape.contains(&0) || self.channels == 0;
        if is_empty { None } else { self.plane() }
    }

    /// Like [`geometry`](Self::geometry), also for empty images.
    pub(super) fn plane(&self) -> Option<Geometry> {
        let axes = &*self.axes;
        Some(Geometry {
            batch: self.batch,
            groups: self.groups,
            channels: self.channels,
            rows: self.rows,
            input: plane(axes, |axis| axis.size, 1)?,
            output: plane(axes, |axis| axis.count, 1)?,
            kernel: plane(axes, |axis| axis.kernel, 1)?,
            strides: plane(axes, |axis| axis.stride, 1)?,
            dilations: plane(axes, |axis| axis.dilation, 1)?,
            before: plane(axes, |axis| axis.pad, 0)?,
        })
    }

    pub(crate) fn unfolded(&self) -> Im2colConvolution<'_> {
        Im2colConvolution {
            groups: self.groups,
            channels: self.channels,
            rows: self.rows,
            axes: &self.axes,
        }
    }

    /// Computes an FP32 convolution. Uses the packed weights `kept` if the FP32 kernel supports the sizes.
    /// Otherwise, `weights` returns the weights in their original order.
    pub(crate) fn of_floats(
        &self,
        image: &Arc<Tensor>,
        weights: impl FnOnce() -> Result<Arc<Tensor>>,
        kept: Option<&Arc<Tensor>>,
        bias: Option<&[f32]>,
        activation: Option<&Activation>,
    ) -> Result<Tensor> {
        let quick = self.geometry().and_then(|geometry| {
            let layout = geometry.layout()?;
            Some((geometry, layout))
        });
        let Some((geometry, layout)) = quick else {
            let weights = weights()?;
            return activated(self.plainly(image, &weights, bias, gemm)?, activation);
        };
        let weights = match kept {
            Some(kept) => kept.clone(),
            None => {
                let weights = weights()?;
                Arc::new(packed(&geometry, elements::<f32>(&weights)?)?)
            }
        };
        let bias = match bias {
            Some(bias) => bias.to_vec(),
            None => vec![0.0; self.shape[1]],
        };
        let convolution = Convolution::new(geometry, layout, bias, activation.cloned(), &self.shape);
        convolution.run(image, &weights)
    }

    /// Returns weights of shape `shape` in their original order, from packed ones.
    fn unpacked(&self, shape: &[usize], packed: &Tensor) -> Result<Arc<Tensor>> {
        size::admit_now(size_of::<f32>() as u64 * packed.len() as u64)?;
        let rows = unpacked(self.rows, shape[1..].iter().product(), packed)?;
        Ok(Arc::new(tensor(shape, rows)?))
    }

    fn plainly<T: Factor>(
        &self,
        image: &Tensor,
        weights: &Tensor,
        bias: Option<&[T]>,
        multiply: impl Fn(&[T], &[T], [usize; 3], &mut [T], &mut Pace) -> Result<()>,
    ) -> Result<Tensor> {
        let (image, weights) = (elements::<T>(image)?, elements::<T>(weights)?);
        filled(&self.shape, |result: &mut [T]| {
            self.begin_with(result, bias, &mut Pace::default())?;
            self.unfolded().add(image, weights, result, multiply, T::sum)
        })
    }

    /// Fills each channel of `result` with its bias.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn begin_with<T: Copy>(
        &self,
        result: &mut [T],
        bias: Option<&[T]>,
        pace: &mut Pace,
    ) -> Result<()> {
        let positions: usize = self.axes.iter().map(|axis| axis.count).product();
        let channels = result.chunks_exact_mut(positions.max(1));
        let bias = bias.unwrap_or_default().iter().cycle();
        let mut channels = channels.zip(bias);
        channels.try_for_each(|(channel, bias)| pace.over(channel, |channel| channel.fill(*bias)))
    }
}

/// Refuses a bias that does not have one value per channel.
pub(crate) fn expect_bias(bias: Option<&Fact>, channels: &Dim) -> Result<()> {
    let Some(bias) = bias else {
        return Ok(());
    };
    match &*bias.shape {
        [count] if count == channels || count.to_i64().is_none() || channels.to_i64().is_none() => Ok(()),
        shape => Err(Refusal(format!("has a bias of {shape:?} for {channels} channels")).into()),
    }
}

#[derive(Debug)]
pub(crate) struct Conv {
    shape: Shape,
    /// Shape of constant FP32 weights, and their packed values.
    packed: Option<(ShortVec<usize>, Arc<Tensor>)>,
    /// Activation that is fused into the epilogue.
    activation: Option<Activation>,
}

impl Conv {
    pub(crate) fn of(attributes: Attributes<'_>) -> Result<Self> {
        Ok(Self {
            shape: Shape::of(attributes)?,
            packed: None,
            activation: None,
        })
    }
}

impl Compute for Conv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [image, weights, bias @ ..] = inputs else {
            bail!("expected 2 or 3 inputs, found {}", inputs.len());
        };
        if inputs
            .iter()
            .any(|input| input.element_type != image.element_type)
        {
            bail!(Refusal("has an image and weights of different types".to_owned()));
        }
        let shape = self.shape.dims(&image.shape, &weights.shape)?;
        expect_bias(bias.first(), &weights.shape[0])?;
        Ok(shape.map(|shape| vec![Fact::new(image.element_type, shape)]))
    }

    fn follow(&mut self, next: &dyn Compute) -> bool {
        let activation = activation_of(next).filter(|_| self.activation.is_none());
        let is_free = activation.is_some();
        self.activation = self.activation.take().or(activation);
        is_free
    }

    fn take_over(&mut self, constants: &[Option<Arc<Tensor>>], packs: &mut Packs) -> Result<Option<usize>> {
        self.packed = match constants.get(1) {
            Some(Some(weights)) if weights.element_type() == ElementType::F32 => self
                .shape
                .packed_once(weights, packs)?
                .map(|packed| (weights.shape().into(), packed)),
            _ => None,
        };
        Ok(self.packed.as_ref().map(|_| 1))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let (image, weights) = (&inputs[0], &inputs[1]);
        let activation = self.activation.as_ref();
        let kept = self.packed.as_ref();
        let sizes = self
            .shape
            .sizes(image.shape(), kept.map_or(weights.shape(), |(shape, _)| shape))?;
        let made = match image.element_type() {
            ElementType::F32 => {
                let bias = inputs.get(2).map(|bias| elements::<f32>(bias)).transpose()?;
                let weights = || match kept {
                    Some((shape, packed)) => sizes.unpacked(shape, packed),
                    None => Ok(weights.clone()),
                };
                sizes.of_floats(image, weights, kept.map(|(_, packed)| packed), bias, activation)
            }
            ElementType::F64 => {
                let bias = inputs.get(2).map(|bias| elements::<f64>(bias)).transpose()?;
                activated(
                    sizes.plainly(image, weights, bias, add_gemm::<f64, _>)?,
                    activation,
                )
            }
            other => return Err(unsupported(other)),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

/// Applies an activation, if there is one.
fn activated(made: Tensor, activation: Option<&Activation>) -> Result<Tensor> {
    match activation {
        Some(activation) => activation.replaced(made.into_arc())?.own(),
        None => Ok(made),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::testing::{node, with, with_text};
    use onnx_tensor::{elements::tensor, faults::Misfit};

    /// Returns small integers, so that sums are exact in any order.
    fn numbers(shape: &[usize], seed: usize) -> Vec<f64> {
        let count: usize = shape.iter().product();
        (0..count)
            .map(|at| ((at * 7919 + seed) % 17) as f64 - 8.0)
            .collect()
    }

    /// Reference implementation, which computes each element of the result separately.
    fn plainly(sizes: &Sizes, image: &[usize], weights: &[usize]) -> Vec<f64> {
        let (x, w, bias) = (numbers(image, 1), numbers(weights, 2), numbers(&weights[..1], 3));
        let positions: usize = sizes.axes.iter().map(|axis| axis.count).product();
        let pixels: usize = sizes.axes.iter().map(|axis| axis.size).product();
        let window: usize = sizes.axes.iter().map(|axis| axis.kernel).product();
        let count: usize = sizes.shape.iter().product();
        let at = |at: usize| {
            let (row, position) = (at / positions % weights[0], at % positions);
            let (batch, group) = (at / positions / weights[0], row / sizes.rows);
            let mut sum = bias[row];
            for channel in 0..sizes.channels {
                for element in 0..window {
                    let (mut e, mut p, mut place, mut stride) = (element, position, Some(0), 1);
                    for axis in sizes.axes.iter().rev() {
                        let at = p % axis.count * axis.stride + e % axis.kernel * axis.dilation;
                        let at = at.checked_sub(axis.pad).filter(|&at| at < axis.size);
                        place = place.zip(at).map(|(place, at)| place + at * stride);
                        stride *= axis.size;
                        (e, p) = (e / axis.kernel, p / axis.count);
                    }
                    if let Some(place) = place {
                        let image = (batch * sizes.groups + group) * sizes.channels + channel;
                        sum += x[image * pixels + place]
                            * w[(row * sizes.channels + channel) * window + element];
                    }
                }
            }
            sum
        };
        (0..count).map(at).collect()
    }

    fn run(op: &Conv, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?;
        let shape: ShortVec<Dim> = made[0].shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(shape, facts[0].shape);
        Ok(made[0].clone())
    }

    fn inputs(element_type: ElementType, image: &[usize], weights: &[usize]) -> [Arc<Tensor>; 3] {
        let shapes = [(image, 1), (weights, 2), (&weights[..1], 3)];
        shapes.map(|(shape, seed)| {
            let made = tensor(shape, numbers(shape, seed)).unwrap();
            made.cast_to_type(element_type).unwrap().into_owned().into_arc()
        })
    }

    /// Checks that the product of the padding and an infinite weight is not left out, in images of any size.
    #[test]
    fn infinite_weights_times_the_padding_are_nan() {
        let mut weights = vec![0.0f32; 18];
        [weights[1], weights[10]] = [f32::INFINITY; 2];
        let weights = tensor(&[2, 1, 3, 3], weights).unwrap().into_arc();
        let lists = [("pads", vec![1; 4])];
        let node = node("Conv", &lists, &[("group", 2)], 1);
        for [height, width] in [[2, 7], [2, 100], [40, 40]] {
            let image = tensor(&[1, 2, height, width], vec![1.0f32; 2 * height * width]);
            let inputs = [image.unwrap().into_arc(), weights.clone()];
            let found = run(&Conv::of(Attributes(&node)).unwrap(), &inputs).unwrap();
            for channel in elements::<f32>(&found).unwrap().chunks(height * width) {
                let (first, others) = channel.split_at(width);
                assert!(first.iter().all(|sum| sum.is_nan()), "{height} x {width}");
                assert!(
                    others.iter().all(|&sum| sum == f32::INFINITY),
                    "{height} x {width}"
                );
            }
        }
    }

    #[test]
    fn convolutions_along_any_axes_are_those_of_plain_loops() {
        let cases: [(&[usize], &[usize], i64); 12] = [
            (&[2, 3, 11], &[4, 3, 3], 1),
            (&[1, 4, 9, 7], &[6, 2, 3, 2], 2),
            (&[2, 5, 6, 6], &[5, 1, 3, 3], 5),
            (&[1, 3, 5, 6], &[8, 3, 1, 1], 1),
            (&[1, 2, 5, 4, 6], &[3, 2, 2, 3, 2], 1),
            (&[2, 4, 4, 4, 4], &[4, 1, 3, 3, 3], 4),
            (&[1, 2, 3, 4, 3, 4], &[2, 2, 2, 2, 2, 2], 1),
            (&[0, 3, 5, 6], &[8, 3, 2, 2], 1),
            (&[1, 40, 4, 4], &[9, 40, 3, 3], 1),
            // Images of several bands, the last of which is shorter.
            (&[2, 2, 29, 5], &[3, 2, 3, 3], 1),
            (&[2, 3, 29, 5], &[3, 1, 3, 3], 3),
            (&[1, 2, 100, 1], &[2, 1, 3, 1], 2),
        ];
        for (image, weights, group) in cases {
            let axes = image.len() - 2;
            for stride in 1..3 {
                for dilation in 1..3 {
                    for pad in 0..2 {
                        let lists = [
                            ("strides", vec![stride; axes]),
                            ("dilations", vec![dilation; axes]),
                            ("pads", [vec![pad; axes], vec![2 * pad; axes]].concat()),
                        ];
                        let node = node("Conv", &lists, &[("group", group)], 1);
                        let shape = Shape::of(Attributes(&node)).unwrap();
                        let Ok(sizes) = shape.sizes(image, weights) else {
                            // The case is skipped if the window is larger than the image.
                            continue;
                        };
                        let expected = plainly(&sizes, image, weights);
                        for element_type in [ElementType::F32, ElementType::F64] {
                            let inputs = inputs(element_type, image, weights);
                            for constants in [vec![], vec![None, Some(inputs[1].clone())]] {
                                let op = with(Conv::of(Attributes(&node)).unwrap(), &constants);
                                let found = run(&op, &inputs).unwrap();
                                let found = found.cast_to::<f64>().unwrap();
                                assert_eq!(elements::<f64>(&found).unwrap(), expected, "{op:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn images_without_elements_are_padding() {
        let node = node("Conv", &[("pads", vec![1, 1, 1, 1])], &[], 1);
        let op = Conv::of(Attributes(&node)).unwrap();
        let found = run(&op, &inputs(ElementType::F32, &[1, 2, 0, 3], &[2, 2, 2, 3])).unwrap();
        assert_eq!(found.shape(), [1, 2, 1, 3]);
        let bias = numbers(&[2], 3).into_iter().map(|bias| bias as f32);
        let expected: Vec<f32> = bias.flat_map(|bias| [bias; 3]).collect();
        assert_eq!(elements::<f32>(&found).unwrap(), expected);
    }

    #[test]
    fn automatic_padding_keeps_sizes() {
        for text in ["SAME_UPPER", "SAME_LOWER", "VALID"] {
            for axes in 1..4 {
                let node = with_text(
                    node("Conv", &[("strides", vec![2; axes])], &[], 1),
                    "auto_pad",
                    text,
                );
                let op = Conv::of(Attributes(&node)).unwrap();
                let image = [vec![1, 1], vec![6; axes]].concat();
                let weights = [vec![1, 1], vec![3; axes]].concat();
                let found = run(&op, &inputs(ElementType::F32, &image, &weights)).unwrap();
                let size = if text == "VALID" { 2 } else { 3 };
                assert_eq!(found.shape()[2..], vec![size; axes]);
                let sizes = op.shape.sizes(&image, &weights).unwrap();
                let found = found.cast_to::<f64>().unwrap();
                assert_eq!(
                    elements::<f64>(&found).unwrap(),
                    plainly(&sizes, &image, &weights)
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let run = |image: &[usize], weights: &[usize], bias: &[usize], group: i64| {
            let node = node("Conv", &[("kernel_shape", vec![2, 2])], &[("group", group)], 1);
            let [x, w, _] = inputs(ElementType::F32, image, weights);
            let op = with(Conv::of(Attributes(&node)).unwrap(), &[None, Some(w.clone())]);
            run(&op, &[x, w, Arc::new(Tensor::zero::<f32>(bias).unwrap())])
        };
        assert!(run(&[1, 2, 4, 4], &[3, 2, 2, 2], &[3], 1).is_ok());
        assert!(
            run(&[1, 3, 4, 4], &[3, 2, 2, 2], &[3], 1)
                .unwrap_err()
                .is::<Refusal>()
        );
        assert!(
            run(&[1, 4, 4, 4], &[3, 2, 2, 2], &[3], 2)
                .unwrap_err()
                .is::<Refusal>()
        );
        assert!(
            run(&[1, 2, 4, 4], &[3, 2, 2, 3], &[3], 1)
                .unwrap_err()
                .is::<Refusal>()
        );
        assert!(run(&[1, 2, 4], &[3, 2, 2], &[3], 1).unwrap_err().is::<Refusal>());
        assert!(
            run(&[1, 2, 4, 4], &[3, 2, 2, 2], &[2], 1)
                .unwrap_err()
                .is::<Refusal>()
        );
        assert!(
            run(&[1, 2, 1, 4], &[3, 2, 2, 2], &[3], 1)
                .unwrap_err()
                .is::<Misfit>()
        );
    }
}
