//! 8-bit convolutions: `ConvInteger` and `QLinearConv`.

use std::sync::Arc;

use onnx_gemm::{IntegerFilters, integer_gemm};
use onnx_tensor::prelude::*;

use crate::{
    conv::{
        byte_convolution::{ByteConvolution, Epilogue, Requantization, Sums, packed, packed_bytes},
        byte_layout::ByteImage,
        windows::{Shape, Sizes, expect_bias},
    },
    least_work::ELEMENTS,
    matmul::integer_products::{expect_scales, expect_zero_point, list},
};
use crate::{
    matmul::zero_points::{Line, expect_bytes, without_zero_points},
    quant::quantize,
};
use onnx_tensor::operator::Constants;
use onnx_tensor::{
    cancelling::Pace,
    elements::{elements, tensor},
    faults::{Refusal, ensure_input},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    packs::{Order, Packs},
    size, split,
};

/// Builds the operator `ConvInteger`.
pub fn conv_integer(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(ConvInteger::of(Attributes(node))?))
}

/// Builds the operator `QLinearConv`.
pub fn q_linear_conv(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(QLinearConv::of(Attributes(node))?))
}

/// The state that `ConvInteger` and `QLinearConv` share.
#[derive(Debug)]
struct IntegerConv {
    shape: Shape,
    /// The packed weights, if the weights and their zero points are constants of images of one or two axes.
    filters: Option<Arc<IntegerFilters>>,
}

/// An image or weights, and their zero points.
type WithZeroPoint<'g> = (&'g Tensor, Option<&'g Tensor>);

impl IntegerConv {
    fn of(attributes: Attributes<'_>) -> Result<Self> {
        let shape = Shape::of(attributes)?;
        Ok(Self { shape, filters: None })
    }

    /// Packs constant weights once for all nodes with the same weights, if memory permits.
    fn keep(&mut self, weights: &Arc<Tensor>, zero_points: Option<&Arc<Tensor>>, packs: &mut Packs) {
        let groups = self.shape.groups;
        let (rows, channels, kernel) = match *weights.shape() {
            [rows, channels, width] => (rows, channels, [1, width]),
            [rows, channels, height, width] => (rows, channels, [height, width]),
            _ => return,
        };
        if weights.is_empty() || !rows.is_multiple_of(groups) {
            return;
        }
        let sources: Vec<&Arc<Tensor>> = [Some(weights), zero_points].into_iter().flatten().collect();
        let bytes = packed_bytes(groups, rows / groups, channels, kernel);
        let kept = packs.shared(&sources, Order::Windows { groups }, bytes, || {
            let numbers = numbers(weights, zero_points.map(|given| &**given))?;
            Ok(packed(&numbers, groups, channels, kernel))
        });
        // An error about wrong types or zero points is ignored here, since the node reports it when it runs.
        self.filters = kept.ok().flatten();
    }

    fn dims(&self, image: &Fact, weights: &Fact) -> Result<Option<ShortVec<Dim>>> {
        expect_bytes(image.element_type)?;
        expect_bytes(weights.element_type)?;
        self.shape.dims(&image.shape, &weights.shape)
    }

    /// Computes the convolution: the sums of products, initialized with the bias, and passed to `epilogue`.
    fn run<T: Element + Copy + Default>(
        &self,
        (image, image_zero): WithZeroPoint<'_>,
        (weights, weights_zero): WithZeroPoint<'_>,
        bias: Option<&[i32]>,
        epilogue: impl Epilogue<T>,
    ) -> Result<Arc<Tensor>> {
        let sizes = self.shape.sizes(image.shape(), weights.shape())?;
        let zero_point = match image_zero.map(quantize::integers).transpose()?.as_deref() {
            None => 0,
            Some(&[zero_point]) => zero_point,
            Some(_) => bail!(Refusal(
                "has several zero points for an image, expected one".to_owned()
            )),
        };
        let Some(geometry) = sizes.geometry() else {
            return sizes.unfolded_sums((image, image_zero), (weights, weights_zero), bias, &epilogue);
        };
        let made;
        let filters = match &self.filters {
            Some(kept) => &**kept,
            None => {
                let bytes = packed_bytes(geometry.groups, geometry.rows, geometry.channels, geometry.kernel);
                size::admit_now(bytes.saturating_mul(2))?;
                let numbers = numbers(weights, weights_zero)?;
                made = packed(&numbers, geometry.groups, geometry.channels, geometry.kernel);
                &made
            }
        };
        // Signed pixels have the same distance from their zero point after adding 128 to both.
        let flip = match image.element_type() {
            ElementType::I8 => 1 << 7,
            _ => 0,
        };
        let image_bytes = ByteImage {
            pixels: image.as_bytes()?,
            flip,
            zero_point: zero_point as u8 ^ flip,
        };
        let convolution = ByteConvolution::new(geometry, filters, bias, image_bytes, epilogue);
        match convolution.run(&sizes.shape)? {
            Some(made) => Ok(Arc::new(made)),
            None => {
                let epilogue = &convolution.epilogue;
                sizes.unfolded_sums((image, image_zero), (weights, weights_zero), bias, epilogue)
            }
        }
    }
}

/// Returns weights minus their zero points.
fn numbers(weights: &Tensor, zero_points: Option<&Tensor>) -> Result<Vec<i16>> {
    let sizes = weights.shape().iter().skip(1);
    let width = sizes.fold(1, |width: usize, &size| width.saturating_mul(size));
    let line = Line::Row(width.max(1));
    without_zero_points(weights, zero_points, line, 1, &mut Pace::default())
}

impl Sizes {
    /// Computes the convolution for any number of axes by im2col.
    fn unfolded_sums<T: Element + Copy + Default>(
        &self,
        (image, image_zero): WithZeroPoint<'_>,
        (weights, weights_zero): WithZeroPoint<'_>,
        bias: Option<&[i32]>,
        epilogue: &impl Epilogue<T>,
    ) -> Result<Arc<Tensor>> {
        let count = self.shape.iter().product::<usize>();
        size::admit_now(8 * count as u64 + 2 * image.len() as u64 + 2 * weights.len() as u64)?;
        let mut pace = Pace::default();
        let pixels = without_zero_points(image, image_zero, Line::Row(image.len().max(1)), 1, &mut pace)?;
        let numbers = numbers(weights, weights_zero)?;
        let mut sums = vec![0; count];
        self.begin_with(&mut sums, bias, &mut pace)?;
        let unfolded = self.unfolded();
        unfolded.add(&pixels, &numbers, &mut sums, integer_gemm, i32::wrapping_add)?;
        let mut made = vec![T::default(); count];
        let positions = self.axes.iter().map(|axis| axis.count).product::<usize>().max(1);
        let (channels, work) = (self.shape[1].max(1), [made.len() as u64, ELEMENTS]);
        split::lines(&mut made, positions, work, |first, made, pace| {
            let sums = sums[first * positions..].chunks_exact(positions);
            for (at, (sums, made)) in (first..).zip(sums.zip(made.chunks_exact_mut(positions))) {
                pace.pairs(sums, made, |sums, made| {
                    epilogue.finish(at % channels, sums, made);
                })?;
            }
            Ok(())
        })?;
        Ok(Arc::new(tensor(&self.shape, made)?))
    }
}

#[derive(Debug)]
pub(crate) struct ConvInteger {
    convolution: IntegerConv,
    /// Input indices of the zero points of the image and the weights.
    zero_points: [Option<usize>; 2],
}

impl ConvInteger {
    pub(crate) fn of(attributes: Attributes<'_>) -> Result<Self> {
        Ok(Self {
            convolution: IntegerConv::of(attributes)?,
            zero_points: [attributes.position(2), attributes.position(3)],
        })
    }
}

impl Compute for ConvInteger {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [image, weights, ..] = inputs else {
            bail!("expected 2 to 4 inputs, found {}", inputs.len());
        };
        let shape = self.convolution.dims(image, weights)?;
        for (fact, zero_point) in [image, weights].into_iter().zip(self.zero_points) {
            if let Some(place) = zero_point {
                expect_zero_point(fact, &inputs[place])?;
            }
        }
        Ok(shape.map(|shape| vec![Fact::new(ElementType::I32, shape)]))
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        let constant = |place: usize| constants.get(place).and_then(Option::as_ref);
        match (constant(1), self.zero_points[1].map(constant)) {
            (Some(weights), None) => self.convolution.keep(weights, None, packs),
            (Some(weights), Some(Some(zero))) => self.convolution.keep(weights, Some(zero), packs),
            _ => {}
        }
        Ok(None)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let [image_zero, weights_zero] = self.zero_points.map(|place| place.map(|place| &*inputs[place]));
        let (image, weights) = ((&*inputs[0], image_zero), (&*inputs[1], weights_zero));
        Ok(smallvec![self.convolution.run(image, weights, None, Sums)?])
    }
}

#[derive(Debug)]
pub(crate) struct QLinearConv {
    convolution: IntegerConv,
}

impl QLinearConv {
    pub(crate) fn of(attributes: Attributes<'_>) -> Result<Self> {
        Ok(Self {
            convolution: IntegerConv::of(attributes)?,
        })
    }
}

impl Compute for QLinearConv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, bias @ ..] = inputs else {
            bail!("expected 8 or 9 inputs, found {}", inputs.len());
        };
        let shape = self.convolution.dims(x, w)?;
        expect_zero_point(x, x_zero)?;
        expect_zero_point(w, w_zero)?;
        expect_bytes(zero.element_type)?;
        expect_scales(&[x_scale, w_scale, scale])?;
        expect_bias(bias.first(), &w.shape[0])?;
        if bias.iter().any(|bias| bias.element_type != ElementType::I32) {
            bail!(Refusal("has a bias that is not INT32".to_owned()));
        }
        Ok(shape.map(|shape| vec![Fact::new(zero.element_type, shape)]))
    }

    fn take_over(&mut self, constants: Constants<'_>, packs: &mut Packs) -> Result<Option<usize>> {
        if let (Some(Some(weights)), Some(Some(zero))) = (constants.get(3), constants.get(5)) {
            self.convolution.keep(weights, Some(zero), packs);
        }
        Ok(None)
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let bias = inputs.get(8).map(|bias| elements::<i32>(bias)).transpose()?;
        let (x, w) = ((&*inputs[0], Some(&*inputs[2])), (&*inputs[3], Some(&*inputs[5])));
        let channels = inputs[3].shape()[0];
        let [x_scale] = list::<f32>(&inputs[1], 1, "scales")?[..] else {
            bail!("expected one scale of the image");
        };
        let [scale] = list::<f32>(&inputs[6], 1, "scales")?[..] else {
            bail!("expected one scale of the result");
        };
        let scales = list::<f32>(&inputs[4], channels, "scales")?;
        let scales = scales.iter().map(|of_weights| x_scale * of_weights / scale);
        let scales = scales.cycle().take(channels).collect();
        let zero_points = quantize::integers(&inputs[7])?;
        ensure_input!(
            zero_points.len() == 1,
            "{} zero points of a result, expected 1",
            zero_points.len()
        );
        let made = match inputs[7].element_type() {
            ElementType::I8 => {
                let requantization = Requantization {
                    scales,
                    zero_point: zero_points[0],
                    least: i8::MIN.into(),
                    narrow: |number| number as i8,
                };
                self.convolution.run(x, w, bias, requantization)
            }
            _ => {
                let requantization = Requantization {
                    scales,
                    zero_point: zero_points[0],
                    least: u8::MIN.into(),
                    narrow: |number| number as u8,
                };
                self.convolution.run(x, w, bias, requantization)
            }
        };
        Ok(smallvec![made?])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::cancelling::is_cancelled;
    use onnx_tensor::node::Node;
    use onnx_tensor::testing::node;
    use onnx_tensor::testing::{expect_same_with, while_cancelled, with};

    fn bytes(element_type: ElementType, shape: &[usize], step: usize) -> Arc<Tensor> {
        let count: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..count).map(|at| (at * step % 251 + 5) as u8).collect();
        Arc::new(match element_type {
            ElementType::I8 => tensor(shape, bytes.iter().map(|&byte| byte as i8).collect()).unwrap(),
            _ => tensor(shape, bytes).unwrap(),
        })
    }

    fn run(op: &dyn Compute, inputs: &[Arc<Tensor>]) -> Result<Arc<Tensor>> {
        let facts = op.outputs(&Fact::of_values(inputs))?.unwrap();
        let made = op.run(&mut inputs.into())?;
        let shape: ShortVec<Dim> = made[0].shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(
            (made[0].element_type(), &shape),
            (facts[0].element_type, &facts[0].shape)
        );
        Ok(made[0].clone())
    }

    fn made_node(op_type: &str, axes: usize, group: i64, inputs: usize) -> Node {
        let lists = [("pads", vec![1; 2 * axes]), ("strides", vec![2; axes])];
        let mut node = node(op_type, &lists, &[("group", group)], 1);
        node.input = (0..inputs).map(|at| format!("x{at}")).collect();
        node
    }

    /// Reference implementation in FP64, which subtracts zero points first, since padding is zero.
    fn plainly(node: &Node, [image, weights]: [&Tensor; 2], zero_points: [&Tensor; 2]) -> Vec<i32> {
        let [x, w, x_zero, w_zero] = [image, weights, zero_points[0], zero_points[1]]
            .map(|tensor| quantize::integers(tensor).unwrap());
        let rows = w.len() / weights.shape()[0];
        let x = x.iter().map(|&x| f64::from(x - x_zero[0])).collect::<Vec<_>>();
        let w = w
            .iter()
            .enumerate()
            .map(|(at, &w)| f64::from(w - w_zero[at / rows % w_zero.len()]));
        let inputs = [
            Arc::new(tensor(image.shape(), x).unwrap()),
            Arc::new(tensor(weights.shape(), w.collect::<Vec<_>>()).unwrap()),
        ];
        let node = Node {
            op_type: "Conv".to_owned(),
            ..node.clone()
        };
        let op = crate::conv::windows::Conv::of(Attributes(&node)).unwrap();
        let found = run(&op, &inputs).unwrap();
        elements::<f64>(&found)
            .unwrap()
            .iter()
            .map(|&sum| sum as i32)
            .collect()
    }

    const TYPES: [ElementType; 2] = [ElementType::U8, ElementType::I8];

    #[test]
    fn sums_are_exact_for_all_types_and_zero_points() {
        let cases: [(&[usize], &[usize], i64); 6] = [
            (&[2, 3, 9], &[4, 3, 3], 1),
            (&[1, 4, 5, 6], &[6, 2, 3, 2], 2),
            (&[1, 5, 4, 4], &[5, 1, 3, 3], 5),
            (&[1, 2, 3, 4, 3], &[3, 2, 2, 2, 2], 1),
            // The sums have more terms than FP32 can sum exactly.
            (&[1, 40, 4, 4], &[3, 40, 3, 3], 1),
            (&[0, 3, 9], &[4, 3, 3], 1),
        ];
        for (image, weights, group) in cases {
            for of_image in TYPES {
                for of_weights in TYPES {
                    let (x, w) = (bytes(of_image, image, 37), bytes(of_weights, weights, 91));
                    for zero_points in [&[][..], &[1], &weights[..1]] {
                        let zeros = [bytes(of_image, &[], 1), bytes(of_weights, zero_points, 53)];
                        let node = made_node("ConvInteger", image.len() - 2, group, 4);
                        let expected = plainly(&node, [&x, &w], [&zeros[0], &zeros[1]]);
                        let inputs = [x.clone(), w.clone(), zeros[0].clone(), zeros[1].clone()];
                        let known = [None, Some(w.clone()), None, Some(zeros[1].clone())];
                        for constants in [&[][..], &known] {
                            let op = with(ConvInteger::of(Attributes(&node)).unwrap(), constants);
                            let found = run(&op, &inputs).unwrap();
                            assert_eq!(elements::<i32>(&found).unwrap(), expected, "{weights:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn results_have_a_bias_and_the_scales_of_their_channels() {
        for (of_weights, of_result) in [
            (ElementType::I8, ElementType::U8),
            (ElementType::U8, ElementType::I8),
        ] {
            let (x, w) = (
                bytes(ElementType::U8, &[2, 2, 5, 4], 37),
                bytes(of_weights, &[3, 2, 3, 3], 91),
            );
            let zeros = [
                bytes(ElementType::U8, &[], 1),
                bytes(of_weights, &[], 1),
                bytes(of_result, &[], 1),
            ];
            let (bias, scales) = ([100, -20_000, 7], [0.01f32, 0.02, 0.5]);
            let (x_scale, scale) = (0.3f32, 2.0f32);
            let node = made_node("QLinearConv", 2, 1, 9);
            let sums = plainly(&node, [&x, &w], [&zeros[0], &zeros[1]]);
            let positions = sums.len() / 6;
            let least = if of_result == ElementType::I8 { -128 } else { 0 };
            let expected = sums.iter().enumerate().map(|(at, &sum)| {
                let channel = at / positions % 3;
                let scaled = (sum + bias[channel]) as f32 * (x_scale * scales[channel] / scale);
                (scaled.round_ties_even() as i32 + 5).clamp(least, least + 255)
            });
            let expected: Vec<i32> = expected.collect();
            let inputs = [
                x,
                Arc::new(Tensor::scalar(x_scale)),
                zeros[0].clone(),
                w,
                Arc::new(Tensor::vector(&scales)),
                zeros[1].clone(),
                Arc::new(Tensor::scalar(scale)),
                zeros[2].clone(),
                Arc::new(Tensor::vector(&bias)),
            ];
            let mut constants = vec![None; 9];
            for place in [3, 5] {
                constants[place] = Some(inputs[place].clone());
            }
            for constants in [&[][..], &constants] {
                let op = with(QLinearConv::of(Attributes(&node)).unwrap(), constants);
                let found = run(&op, &inputs).unwrap();
                assert_eq!(quantize::integers(&found).unwrap(), expected);
            }
        }
    }

    /// Checks random sizes, attributes and zero points, with constant weights and with others.
    #[test]
    fn sums_are_exact_for_all_geometries() {
        let mut seed = 1u64;
        let mut below = |end: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % end
        };
        for _ in 0..2000 {
            let axes = 1 + below(2);
            let groups = [1, 1, 2, 5][below(4)];
            let (channels, rows) = ([1, 1, 2, 3, 4, 9][below(6)], [1, 2, 3, 8, 9, 17][below(6)]);
            let kernel: Vec<usize> = (0..axes).map(|_| 1 + below(6)).collect();
            let strides: Vec<i64> = (0..axes).map(|_| 1 + below(3) as i64).collect();
            let dilations: Vec<i64> = (0..axes).map(|_| [1, 1, 2, 3][below(4)]).collect();
            let pads: Vec<i64> = (0..2 * axes).map(|_| below(4) as i64).collect();
            let sizes = kernel.iter().zip(&dilations);
            let sizes = sizes.map(|(&kernel, &dilation)| (kernel - 1) * dilation as usize + 1 + below(20));
            let sizes: Vec<usize> = sizes.collect();
            let image: Vec<usize> = [1 + below(2), groups * channels]
                .into_iter()
                .chain(sizes)
                .collect();
            let weights = [&[groups * rows, channels], &kernel[..]].concat();
            let types = [TYPES[below(2)], TYPES[below(2)]];
            let lists = [("strides", strides), ("dilations", dilations), ("pads", pads)];
            let mut node = node("ConvInteger", &lists, &[("group", groups as i64)], 1);
            node.input = (0..4).map(|at| format!("x{at}")).collect();
            let extreme = |element_type: ElementType, count: usize, below: &mut dyn FnMut(usize) -> usize| {
                let numbers: Vec<u8> = (0..count).map(|_| [0, 1, 127, 128, 255][below(5)]).collect();
                Arc::new(match element_type {
                    ElementType::I8 => tensor(&[count], numbers.iter().map(|&x| x as i8).collect()).unwrap(),
                    _ => tensor(&[count], numbers).unwrap(),
                })
            };
            let x = match below(2) {
                0 => bytes(types[0], &image, 37),
                _ => {
                    let count = image.iter().product();
                    Arc::new(
                        (*extreme(types[0], count, &mut below))
                            .clone()
                            .into_shape(&image)
                            .unwrap(),
                    )
                }
            };
            let w = bytes(types[1], &weights, 91);
            let zeros = [
                extreme(types[0], 1, &mut below),
                extreme(types[1], [1, groups * rows][below(2)], &mut below),
            ];
            let expected = plainly(&node, [&x, &w], [&zeros[0], &zeros[1]]);
            let inputs = [x.clone(), w.clone(), zeros[0].clone(), zeros[1].clone()];
            let known = [None, Some(w.clone()), None, Some(zeros[1].clone())];
            for constants in [&[][..], &known] {
                let op = with(ConvInteger::of(Attributes(&node)).unwrap(), constants);
                assert_eq!(op.convolution.filters.is_some(), !constants.is_empty());
                let found = run(&op, &inputs).unwrap();
                assert_eq!(
                    elements::<i32>(&found).unwrap(),
                    expected,
                    "{node:?} {image:?} {weights:?}"
                );
            }
        }
    }

    /// Checks a convolution whose planes would take far more memory than the image.
    #[test]
    fn windows_far_apart_are_computed_by_im2col() {
        let lists = [("dilations", vec![5000, 5000]), ("pads", vec![5000; 4])];
        let mut node = node("ConvInteger", &lists, &[], 1);
        node.input = (0..4).map(|at| format!("x{at}")).collect();
        let (x, w) = (
            bytes(ElementType::I8, &[1, 2, 2, 2], 37),
            bytes(ElementType::U8, &[3, 2, 3, 3], 91),
        );
        let zeros = [bytes(ElementType::I8, &[], 1), bytes(ElementType::U8, &[], 1)];
        let expected = plainly(&node, [&x, &w], [&zeros[0], &zeros[1]]);
        let inputs = [x, w.clone(), zeros[0].clone(), zeros[1].clone()];
        let op = with(
            ConvInteger::of(Attributes(&node)).unwrap(),
            &[None, Some(w), None, Some(zeros[1].clone())],
        );
        assert_eq!(elements::<i32>(&run(&op, &inputs).unwrap()).unwrap(), expected);
    }

    #[test]
    fn all_threads_compute_the_same_sums() {
        let shapes: [(&[usize], &[usize], i64); 5] = [
            (&[1, 6, 40, 9], &[20, 6, 3, 3], 1),
            (&[1, 12, 3, 3], &[70, 12, 3, 3], 1),
            (&[2, 24, 12, 12], &[24, 1, 3, 3], 24),
            (&[1, 8, 500], &[16, 8, 5], 1),
            (&[7, 8, 6, 6], &[16, 4, 1, 1], 2),
        ];
        for (image, weights, groups) in shapes {
            let node = made_node("ConvInteger", image.len() - 2, groups, 2);
            let inputs = [
                bytes(ElementType::U8, image, 37),
                bytes(ElementType::I8, weights, 91),
            ];
            expect_same_with(|| conv_integer(&node).unwrap(), &inputs);
        }
    }

    #[test]
    fn a_cancelled_convolution_stops() {
        let node = made_node("ConvInteger", 2, 1, 2);
        let inputs = [
            bytes(ElementType::U8, &[1, 16, 128, 128], 37),
            bytes(ElementType::I8, &[16, 16, 3, 3], 91),
        ];
        let op = conv_integer(&node).unwrap();
        let stopped = while_cancelled(|| op.run(&mut inputs[..].into()));
        assert!(is_cancelled(&stopped.unwrap_err()));
    }

    #[test]
    fn nodes_that_share_weights_keep_them_once() {
        let node = made_node("ConvInteger", 2, 1, 2);
        let constants = [None, Some(bytes(ElementType::I8, &[3, 2, 3, 3], 91))];
        let mut packs = Packs::beside(0);
        let kept = [(); 2].map(|()| {
            let mut op = ConvInteger::of(Attributes(&node)).unwrap();
            op.take_over(&constants, &mut packs).unwrap();
            op.convolution.filters.unwrap()
        });
        assert!(Arc::ptr_eq(&kept[0], &kept[1]));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let node = made_node("ConvInteger", 1, 1, 4);
        let op = ConvInteger::of(Attributes(&node)).unwrap();
        let run = |zeros: [&[usize]; 2]| {
            let shapes = [&[1, 2, 5][..], &[3, 2, 2], zeros[0], zeros[1]];
            run(&op, &shapes.map(|shape| bytes(ElementType::U8, shape, 3)))
        };
        assert!(run([&[], &[3]]).is_ok());
        assert!(run([&[2], &[]]).unwrap_err().is::<Refusal>());
        assert!(run([&[], &[2]]).unwrap_err().is::<Refusal>());
    }
}
