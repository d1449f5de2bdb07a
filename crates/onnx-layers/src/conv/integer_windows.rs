//! 8-bit convolutions: `ConvInteger` and `QLinearConv`.

use std::sync::Arc;

use onnx_gemm::integer_gemm;
use onnx_tensor::prelude::*;

use crate::{
    conv::windows::{Shape, Sizes, expect_bias},
    least_work::ELEMENTS,
    matmul::integer_products::{expect_scales, expect_zero_point, list},
};
use crate::{
    matmul::zero_points::{Line, expect_bytes, rounded, without_zero_points},
    quant::quantize,
};
use onnx_tensor::operator::Constants;
use onnx_tensor::{
    cancelling::Pace,
    elements::{elements, filled, tensor},
    faults::{Refusal, ensure_input},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    packs::{Order, Packs},
    size,
    split::{self, LINE},
};

/// Builds the operator `ConvInteger`.
pub fn conv_integer(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(ConvInteger::of(Attributes(node))?))
}

/// Builds the operator `QLinearConv`.
pub fn q_linear_conv(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(QLinearConv::of(Attributes(node))?))
}

/// Maximum number of products of 8-bit integers whose sum is exact in FP32. Up to this number, the FP32
/// convolution computes the sums, since it needs no im2col buffer.
const EXACT_DEPTH: usize = (1 << 24) / (255 * 255);

/// The state that `ConvInteger` and `QLinearConv` share.
#[derive(Debug)]
struct IntegerConv {
    shape: Shape,
    /// Weights with their zero points subtracted, if both are constants.
    weights: Option<Arc<Weights>>,
}

/// Bytes that [`Weights`] take for each weight.
const BYTES: u64 = 6;

/// Weights of a convolution with their zero points subtracted.
#[derive(Debug)]
struct Weights {
    numbers: Vec<i16>,
    /// The weights packed as FP32, if sums are exact in FP32.
    packed: Option<Arc<Tensor>>,
}

impl Weights {
    fn new(shape: &Shape, weights: &Tensor, zero_points: Option<&Tensor>) -> Result<Self> {
        let sizes = weights.shape().iter().skip(1);
        let width = sizes.fold(1, |width: usize, &size| width.saturating_mul(size));
        let line = Line::Row(width.max(1));
        let numbers = without_zero_points(weights, zero_points, line, 1, &mut Pace::default())?;
        let packed = match width <= EXACT_DEPTH {
            true => shape.packed(&floats(weights.shape(), &numbers)?)?,
            false => None,
        };
        Ok(Self { numbers, packed })
    }
}

fn floats(shape: &[usize], numbers: &[i16]) -> Result<Tensor> {
    filled(shape, |made: &mut [f32]| {
        let work = [made.len() as u64, ELEMENTS];
        split::lines(made, LINE, work, |first, made, pace| {
            pace.pairs(&numbers[first * LINE..], made, |numbers, made| {
                let pairs = made.iter_mut().zip(numbers);
                pairs.for_each(|(made, &number)| *made = number.into());
            })
        })
    })
}

/// An image or weights, and their zero points.
type WithZeroPoint<'g> = (&'g Tensor, Option<&'g Tensor>);

impl IntegerConv {
    fn of(attributes: Attributes<'_>) -> Result<Self> {
        let shape = Shape::of(attributes)?;
        Ok(Self { shape, weights: None })
    }

    /// Subtracts the zero points from constant weights once, shared by all nodes with the same weights, if
    /// memory permits.
    fn keep(&mut self, weights: &Arc<Tensor>, zero_points: Option<&Arc<Tensor>>, packs: &mut Packs) {
        let sources: Vec<&Arc<Tensor>> = [Some(weights), zero_points].into_iter().flatten().collect();
        let order = Order::Windows {
            groups: self.shape.groups,
        };
        let kept = packs.shared(&sources, order, BYTES * weights.len() as u64, || {
            Weights::new(&self.shape, weights, zero_points.map(|given| &**given))
        });
        // An error about wrong types or zero points is ignored here, since the node reports it when it runs.
        self.weights = kept.ok().flatten();
    }

    fn dims(&self, image: &Fact, weights: &Fact) -> Result<Option<ShortVec<Dim>>> {
        expect_bytes(image.element_type)?;
        expect_bytes(weights.element_type)?;
        self.shape.dims(&image.shape, &weights.shape)
    }

    /// Computes the sums of products, initialized with the bias.
    fn sums(
        &self,
        (image, image_zero): WithZeroPoint<'_>,
        (weights, weights_zero): WithZeroPoint<'_>,
        bias: Option<&[i32]>,
    ) -> Result<(Sizes, Vec<i32>)> {
        let sizes = self.shape.sizes(image.shape(), weights.shape())?;
        let count = sizes.shape.iter().product::<usize>();
        size::admit_now(8 * count as u64 + 6 * image.len() as u64)?;
        if image_zero.is_some_and(|zero_points| zero_points.len() != 1) {
            bail!(Refusal(
                "has several zero points for an image, expected one".to_owned()
            ));
        }
        let mut pace = Pace::default();
        let numbers = without_zero_points(image, image_zero, Line::Row(image.len().max(1)), 1, &mut pace)?;
        let made;
        let kept = match &self.weights {
            Some(kept) => &**kept,
            None => {
                made = Weights::new(&self.shape, weights, weights_zero)?;
                &made
            }
        };
        let mut sums = vec![0; count];
        sizes.begin_with(&mut sums, bias, &mut pace)?;
        if sizes.unfolded().depth() > EXACT_DEPTH {
            let unfolded = sizes.unfolded();
            unfolded.add(
                &numbers,
                &kept.numbers,
                &mut sums,
                integer_gemm,
                i32::wrapping_add,
            )?;
            return Ok((sizes, sums));
        }
        let image = Arc::new(floats(image.shape(), &numbers)?);
        let plain = || Ok(Arc::new(floats(weights.shape(), &kept.numbers)?));
        let found = sizes.of_floats(&image, plain, kept.packed.as_ref(), None, None)?;
        let (found, work) = (elements::<f32>(&found)?, [count as u64, ELEMENTS]);
        split::lines(&mut sums, LINE, work, |first, sums, pace| {
            pace.pairs(&found[first * LINE..], sums, |found, sums| {
                let pairs = sums.iter_mut().zip(found);
                pairs.for_each(|(sum, &found)| *sum = sum.wrapping_add(found as i32));
            })
        })?;
        Ok((sizes, sums))
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
        let (sizes, sums) = self.convolution.sums(image, weights, None)?;
        Ok(smallvec![Arc::new(tensor(&sizes.shape, sums)?)])
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
        let (sizes, sums) = self.convolution.sums(x, w, bias)?;
        let channels = sizes.shape[1];
        let [x_scale] = list::<f32>(&inputs[1], 1, "scales")?[..] else {
            bail!("expected one scale of the image");
        };
        let [scale] = list::<f32>(&inputs[6], 1, "scales")?[..] else {
            bail!("expected one scale of the result");
        };
        let scales = list::<f32>(&inputs[4], channels, "scales")?;
        let scales: Vec<f32> = scales
            .into_iter()
            .map(|of_weights| x_scale * of_weights / scale)
            .collect();
        let zero_points = quantize::integers(&inputs[7])?;
        ensure_input!(
            zero_points.len() == 1,
            "{} zero points of a result, expected 1",
            zero_points.len()
        );
        let made = match inputs[7].element_type() {
            ElementType::I8 => scaled::<i8>(&sizes, &sums, &scales, zero_points[0], i8::MIN.into(), |x| {
                x as i8
            }),
            _ => scaled::<u8>(&sizes, &sums, &scales, zero_points[0], u8::MIN.into(), |x| {
                x as u8
            }),
        };
        Ok(smallvec![Arc::new(made?)])
    }
}

/// Requantizes the sums with the scales of their channels.
fn scaled<T: Element + Copy + Default>(
    sizes: &Sizes,
    sums: &[i32],
    scales: &[f32],
    zero_point: i32,
    least: i32,
    narrow: impl Fn(i32) -> T + Copy + Sync,
) -> Result<Tensor> {
    let mut made = vec![T::default(); sums.len()];
    let positions = sizes.axes.iter().map(|axis| axis.count).product::<usize>().max(1);
    let work = [made.len() as u64, ELEMENTS];
    split::lines(&mut made, positions, work, |first, made, pace| {
        let sums = sums[first * positions..].chunks_exact(positions);
        let scales = scales.iter().cycle().skip(first % scales.len().max(1));
        for ((sums, made), &scale) in sums.zip(made.chunks_exact_mut(positions)).zip(scales) {
            pace.pairs(sums, made, |sums, made| {
                pulp::Arch::new().dispatch(|| {
                    for (made, &sum) in made.iter_mut().zip(sums) {
                        *made = narrow(rounded(sum, scale, zero_point, least));
                    }
                });
            })?;
        }
        Ok(())
    })?;
    tensor(&sizes.shape, made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::node::Node;
    use onnx_tensor::testing::node;
    use onnx_tensor::testing::with;

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

    #[test]
    fn nodes_that_share_weights_keep_them_once() {
        let node = made_node("ConvInteger", 2, 1, 2);
        let constants = [None, Some(bytes(ElementType::I8, &[3, 2, 3, 3], 91))];
        let mut packs = Packs::beside(0);
        let kept = [(); 2].map(|()| {
            let mut op = ConvInteger::of(Attributes(&node)).unwrap();
            op.take_over(&constants, &mut packs).unwrap();
            op.convolution.weights.unwrap()
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
