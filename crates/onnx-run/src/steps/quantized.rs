//! Fuses nodes between `DequantizeLinear` and `QuantizeLinear` into nodes of 8-bit integers, as ONNX Runtime
//! does.
//!
//! The results differ by at most one step of the quantization from those of the nodes in FP32, where a sum is
//! close to a tie.

use std::sync::Arc;

use onnx_tensor::{
    elements::elements,
    node::{Attributes, Node},
    prelude::*,
};

use crate::steps::{
    dequantized::{Dequantized, is_byte},
    fusion_graph::{Fused, Graph},
    values::Slot,
};

/// The scale and the zero point of a whole tensor of 8-bit integers.
#[derive(Clone)]
pub(super) struct Quantization {
    pub(super) scale: Arc<Tensor>,
    pub(super) zero_point: Arc<Tensor>,
}

impl Quantization {
    fn new(scale: &Arc<Tensor>, zero_point: &Arc<Tensor>) -> Option<Self> {
        let is_usable = scale.len() == 1 && zero_point.len() == 1 && is_byte(zero_point);
        let one = Self {
            scale: scale.clone(),
            zero_point: zero_point.clone(),
        };
        one.number()
            .filter(|scale| is_usable && SCALES.contains(scale))
            .map(|_| one)
    }

    fn number(&self) -> Option<f32> {
        elements::<f32>(&self.scale).ok()?.first().copied()
    }

    /// Returns the zero point, and the smallest number of its type.
    fn zero_point(&self) -> Option<[i32; 2]> {
        let least = match self.zero_point.element_type() {
            ElementType::I8 => i8::MIN.into(),
            _ => 0,
        };
        Some([self.zero_point.cast_to_scalar::<i32>().ok()?, least])
    }

    /// Returns whether two quantizations are the same.
    fn is_same(&self, other: &Self) -> bool {
        self.number() == other.number() && self.zero_point == other.zero_point
    }

    /// Returns the integer that a finite number becomes.
    fn quantized(&self, number: f32) -> Option<i32> {
        let [zero_point, least] = self.zero_point()?;
        let rounded = (number / self.number()?).round_ties_even() + zero_point as f32;
        Some(rounded.clamp(least as f32, (least + 255) as f32) as i32)
    }

    /// Returns whether clipping to a range changes no quantized number.
    fn is_within(&self, [low, high]: [f32; 2]) -> Option<bool> {
        let [_, least] = self.zero_point()?;
        Some(self.quantized(low)? == least && self.quantized(high)? == least + 255)
    }
}

/// Scales whose products and quotients are normal FP32 numbers.
pub(super) const SCALES: std::ops::RangeInclusive<f32> = 1e-9..=1e9;

/// Sums of products and the bias are below this number, so that they do not wrap around.
pub(super) const LIMIT: f64 = (1u64 << 31) as f64;

/// Rounding a bias adds at most one of this many parts of a step of the result.
const BIAS_PARTS: f64 = 16.0;

/// Maximum quotient of the scales of a term and of the sum, so that the terms' zero points do not take the digits
/// of the sum.
const MOST_RATIO: f32 = 1024.0;

impl Graph<'_> {
    /// Returns the 8-bit value that a `DequantizeLinear` reads to compute `slot`, and its quantization.
    pub(super) fn bytes(&self, slot: Slot) -> Option<(Slot, Quantization)> {
        let at = self.maker(slot, "DequantizeLinear")?;
        let constant = |place: usize| self.constants.get(&self.input(at, place)?);
        let quantization = Quantization::new(constant(1)?, constant(2)?)?;
        Some((self.input(at, 0)?, quantization))
    }

    /// Returns the only reader of a node's result, if that is a `QuantizeLinear` to 8 bits.
    fn quantize(&self, at: usize) -> Option<(usize, Quantization)> {
        let quantize = self.reader(at, "QuantizeLinear")?;
        let constant = |place: usize| self.constants.get(&self.input(quantize, place)?);
        (self.input(quantize, 0) == self.output(at)).then_some(())?;
        Some((quantize, Quantization::new(constant(1)?, constant(2)?)?))
    }

    /// Returns the constant of a `DequantizeLinear` that computes `slot`, whether that is folded or not.
    pub(super) fn dequantized(&self, slot: Slot) -> Option<&Dequantized> {
        self.dequantized.get(&slot)
    }

    /// Returns the range of the numbers that a Relu or a Clip returns.
    fn range(&self, at: usize) -> Option<[f32; 2]> {
        let node = self.node(at)?;
        let bound = |place: usize, name: &str, default: f32| {
            let Some(slot) = self.input(at, place) else {
                return Some(Attributes(node).float(name, default));
            };
            let constant = self.constants.get(&slot)?;
            let [bound] = elements::<f32>(constant).ok()? else {
                return None;
            };
            Some(*bound)
        };
        match node.op_type.as_str() {
            "Relu" => Some([0.0, f32::INFINITY]),
            "Clip" => Some([bound(1, "min", f32::MIN)?, bound(2, "max", f32::MAX)?]),
            _ => None,
        }
    }

    /// Returns the `QuantizeLinear` behind a node, and the nodes from that node on. An activation in between
    /// must not change what the `QuantizeLinear` returns.
    pub(super) fn quantized_result(&self, at: usize) -> Option<(Vec<usize>, Quantization)> {
        if let Some((quantize, quantization)) = self.quantize(at) {
            return Some((vec![at, quantize], quantization));
        }
        let activation = self.reader(at, "Relu").or_else(|| self.reader(at, "Clip"))?;
        (self.input(activation, 0) == self.output(at)).then_some(())?;
        let (quantize, quantization) = self.quantize(activation)?;
        let is_within = quantization.is_within(self.range(activation)?)?;
        is_within.then(|| (vec![at, activation, quantize], quantization))
    }

    /// Fuses a convolution of a dequantized image by dequantized constant weights, whose result is quantized,
    /// into a `QLinearConv`.
    pub(super) fn quantized_convolution(&self, convolution: usize) -> Option<Fused> {
        let (image, of_image) = self.bytes(self.input(convolution, 0)?)?;
        let weights = self.dequantized(self.input(convolution, 1)?)?;
        let (steps, of_result) = self.quantized_result(convolution)?;
        let (&channels, sizes) = weights.numbers.shape().split_first()?;
        let [scales, zero_points] = weights.of_channels(channels)?;
        let factor = f64::from(of_image.number()?);
        let numbers = elements::<f32>(&scales).ok()?;
        numbers.iter().all(|scale| SCALES.contains(scale)).then_some(())?;
        let units: Vec<f64> = numbers.iter().map(|&scale| factor * f64::from(scale)).collect();
        // Differences of 8-bit numbers have 9 bits.
        let mut most = sizes.iter().fold(255.0 * 255.0, |most, &size| most * size as f64);
        let bias = match self.input(convolution, 2) {
            None => None,
            Some(slot) => {
                let bias = elements::<f32>(self.constants.get(&slot)?).ok()?;
                (bias.len() == channels).then_some(())?;
                let step = f64::from(of_result.number()?);
                let all = bias.iter().zip(units.iter().cycle());
                let all: Vec<f64> = all
                    .map(|(&bias, unit)| {
                        let whole = (f64::from(bias) / unit).round();
                        // A bias in FP32 that is not a multiple of the unit may add little to the error.
                        let is_close = (f64::from(bias) - whole * unit).abs() <= step / BIAS_PARTS;
                        is_close.then_some(whole)
                    })
                    .collect::<Option<_>>()?;
                most += all.iter().map(|bias| bias.abs()).fold(0.0, f64::max);
                Some(all.iter().map(|&bias| bias as i32).collect::<Vec<i32>>())
            }
        };
        (most < LIMIT).then_some(())?;
        let node = self.node(convolution)?;
        let fused = self.fused("QLinearConv", 10, vec![image], steps)?;
        let constants = [
            (1, of_image.scale),
            (2, of_image.zero_point),
            (3, weights.numbers.clone()),
            (4, scales),
            (5, zero_points),
            (6, of_result.scale),
            (7, of_result.zero_point),
        ];
        let bias = bias.map(|bias| (8, Tensor::vector(&bias).into_arc()));
        let constants: Vec<_> = constants.into_iter().chain(bias).collect();
        Some(Fused {
            node: Node {
                // Kernels only check whether inputs are present, so the names are arbitrary.
                input: (0..=constants.len()).map(|place| place.to_string()).collect(),
                attribute: node.attribute.clone(),
                ..fused.node
            },
            constants,
            ..fused
        })
    }

    /// Fuses a sum of two dequantized values, whose result is quantized, into a `QLinearAdd`.
    pub(super) fn quantized_sum(&self, sum: usize) -> Option<Fused> {
        self.node(sum)?.attribute.is_empty().then_some(())?;
        let (a, of_a) = self.bytes(self.input(sum, 0)?)?;
        let (b, of_b) = self.bytes(self.input(sum, 1)?)?;
        let (steps, of_result) = self.quantized_result(sum)?;
        let most = of_result.number()? * MOST_RATIO;
        (of_a.number()? <= most && of_b.number()? <= most).then_some(())?;
        let types = [&of_a, &of_b, &of_result].map(|one| one.zero_point.element_type());
        types.iter().all(|&one| one == types[0]).then_some(())?;
        let mut fused = self.fused("com.microsoft/QLinearAdd", 1, vec![a, b], steps)?;
        // The inputs are the first tensor, its scale and zero point, then the second with its own.
        fused.wires.inputs.splice(1..1, [None, None]);
        fused.node.domain = "com.microsoft".to_owned();
        fused.node.input = (0..8).map(|place| place.to_string()).collect();
        fused.constants = vec![
            (1, of_a.scale),
            (2, of_a.zero_point),
            (4, of_b.scale),
            (5, of_b.zero_point),
            (6, of_result.scale),
            (7, of_result.zero_point),
        ];
        Some(fused)
    }

    /// Fuses a node that moves or selects elements with the `DequantizeLinear` before and the `QuantizeLinear`
    /// behind it, if both have the same scale and zero point.
    pub(super) fn quantized_movement(&self, at: usize) -> Option<Fused> {
        let node = self.node(at)?;
        let wires = self.wires(at)?;
        (wires.outputs.len() == 1).then_some(())?;
        let (quantize, of_result) = self.quantize(at)?;
        let moved = if node.op_type == "Concat" {
            wires.inputs.len()
        } else {
            1
        };
        let mut inputs = wires.inputs.clone();
        for input in &mut inputs[..moved] {
            let (bytes, quantization) = self.bytes((*input)?)?;
            quantization.is_same(&of_result).then_some(())?;
            *input = Some(bytes);
        }
        let mut fused = self.fused(&node.op_type, node.opset, vec![], vec![at, quantize])?;
        fused.wires.inputs = inputs;
        fused.node = Node {
            name: fused.node.name,
            output: fused.node.output,
            ..node.clone()
        };
        Some(fused)
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{NodeProto, TensorProto, tensor_proto::DataType};

    use super::*;
    use crate::{
        Session,
        steps::body::Step,
        test_models::{constant, ints, model, node, with},
    };

    pub(crate) fn floats(name: &str, dims: &[i64], numbers: &[f32]) -> TensorProto {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        TensorProto {
            raw_data: bytes.collect::<Vec<u8>>().into(),
            dims: dims.to_vec(),
            ..constant(name, &[1])
        }
    }

    pub(crate) fn signed(name: &str, dims: &[i64], numbers: impl Iterator<Item = i8>) -> TensorProto {
        TensorProto {
            data_type: DataType::Int8 as i32,
            dims: dims.to_vec(),
            raw_data: numbers.map(|number| number as u8).collect::<Vec<u8>>().into(),
            ..constant(name, &[1])
        }
    }

    fn unsigned(name: &str, number: u8) -> TensorProto {
        TensorProto {
            data_type: DataType::Uint8 as i32,
            dims: vec![],
            raw_data: vec![number].into(),
            ..constant(name, &[1])
        }
    }

    pub(crate) fn session(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> Session {
        let model = model(nodes, &[-1, 3, -1, -1], &[-1; 4], constants);
        Session::prepare(&model, |_| Ok(())).unwrap()
    }

    pub(crate) fn operators(session: &Session) -> Vec<&str> {
        let operators = session.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            Step::Control(_) => "",
        });
        operators.collect()
    }

    fn answer(session: &Session) -> Vec<f32> {
        let shape = [2, 3, 9, 8];
        let numbers = (0..shape.iter().product()).map(|at: usize| (at * 7919 % 509) as f32 / 64.0 - 4.0);
        let input = Tensor::from_shape(&shape, &numbers.collect::<Vec<_>>()).unwrap();
        let made = session.run([input]).unwrap();
        elements::<f32>(&made[0]).unwrap().to_vec()
    }

    /// Returns `DequantizeLinear` and `QuantizeLinear` around the nodes `inner`, which compute `made` from `a`,
    /// and the same with a node that reads `made`, so that nothing is fused.
    fn both(inner: Vec<NodeProto>, constants: &[TensorProto]) -> [Session; 2] {
        let mut nodes = vec![
            node("QuantizeLinear", &["x", "x_scale", "x_zero"], "bytes"),
            node("DequantizeLinear", &["bytes", "x_scale", "x_zero"], "a"),
        ];
        nodes.extend(inner);
        nodes.push(node("QuantizeLinear", &["made", "y_scale", "y_zero"], "result"));
        let dequantize = |output: &str| node("DequantizeLinear", &["result", "y_scale", "y_zero"], output);
        let mut plain = nodes.clone();
        nodes.push(dequantize("y"));
        plain.push(dequantize("one"));
        plain.push(node("Sub", &["made", "made"], "nothing"));
        plain.push(node("Add", &["one", "nothing"], "y"));
        [nodes, plain].map(|nodes| session(nodes, constants.to_vec()))
    }

    fn convolution(bias: bool) -> Vec<NodeProto> {
        let inputs = ["a", "weights", "bias"];
        let convolution = node("Conv", &inputs[..2 + usize::from(bias)], "sums");
        vec![
            node("DequantizeLinear", &["w", "w_scale", "w_zero"], "weights"),
            with(
                convolution,
                [ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 1])],
            ),
        ]
    }

    fn weights(scales: &[f32]) -> Vec<TensorProto> {
        let numbers = (0..4 * 27).map(|at: usize| (at * 7919 % 251) as u8 as i8);
        let count = scales.len() as i64;
        let mut dims = vec![count];
        if count == 1 {
            dims.clear();
        }
        vec![
            signed("w", &[4, 3, 3, 3], numbers),
            floats("w_scale", &dims, scales),
            signed("w_zero", &dims, (0..count).map(|at| at as i8)),
        ]
    }

    pub(crate) fn parameters(x: (f32, u8), y: (f32, u8)) -> Vec<TensorProto> {
        vec![
            floats("x_scale", &[], &[x.0]),
            unsigned("x_zero", x.1),
            floats("y_scale", &[], &[y.0]),
            unsigned("y_zero", y.1),
            floats("bias", &[4], &[0.5, -0.25, 100.0, 0.0]),
        ]
    }

    /// Returns the greatest difference of two results in steps of `scale`.
    pub(crate) fn steps([one, other]: [&Session; 2], scale: f32) -> f32 {
        let (found, expected) = (answer(one), answer(other));
        assert_eq!(found.len(), expected.len());
        let pairs = found.iter().zip(&expected);
        assert!(found.iter().any(|number| number != &found[0]));
        pairs.fold(0.0, |most: f32, (a, b)| most.max((a - b).abs() / scale))
    }

    #[test]
    fn convolutions_between_quantizations_are_one_node_of_integers() {
        let per_channel = [0.011, 0.02, 0.004, 0.0079];
        let exact = [0.125, 0.0625, 0.25, 0.0078125];
        let axis = |nodes: Vec<NodeProto>| -> Vec<NodeProto> {
            let mut nodes = nodes;
            nodes[0].attribute.push(crate::test_models::int("axis", 0));
            nodes[1].output = vec!["made".to_owned()];
            nodes
        };
        for (scales, is_exact) in [(&per_channel[..], false), (&exact[..], true), (&[0.0173], false)] {
            let (x, y) = match is_exact {
                true => ((0.03125, 128), (0.5, 100)),
                false => ((0.0317, 128), (0.513, 100)),
            };
            for has_bias in [false, true] {
                let constants = [parameters(x, y), weights(scales)].concat();
                let [one, other] = both(axis(convolution(has_bias)), &constants);
                assert_eq!(
                    operators(&one),
                    ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
                );
                assert!(operators(&other).contains(&"Conv"));
                let difference = steps([&one, &other], y.0);
                assert!(difference <= if is_exact { 0.0 } else { 1.001 }, "{difference}");
            }
        }
        // The scales belong to another axis.
        let mut nodes = convolution(false);
        nodes[1].output = vec!["made".to_owned()];
        let constants = [parameters((0.03, 1), (0.5, 2)), weights(&[0.1, 0.2, 0.3])].concat();
        let [one, _] = both(nodes, &constants);
        assert!(operators(&one).contains(&"Conv"));
    }

    #[test]
    fn activations_that_saturation_implies_are_dropped() {
        let relu = || node("Relu", &["sums"], "made");
        let clip = || node("Clip", &["sums", "low", "high"], "made");
        for (activation, zero_point, is_fused) in [
            (relu(), 0, true),
            (relu(), 1, false),
            (clip(), 0, true),
            (clip(), 3, false),
        ] {
            let nodes = [convolution(true), vec![activation]].concat();
            let y = (6.0f32 / 255.0, zero_point);
            let bounds = vec![floats("low", &[], &[0.0]), floats("high", &[], &[6.0])];
            let constants = [parameters((0.0317, 120), y), weights(&[0.0173]), bounds].concat();
            let [one, other] = both(nodes, &constants);
            assert_eq!(operators(&one).contains(&"QLinearConv"), is_fused);
            assert!(steps([&one, &other], y.0) <= 1.001);
        }
        // A bound below the greatest number that 8 bits represent.
        let nodes = [convolution(true), vec![clip()]].concat();
        let bounds = vec![floats("low", &[], &[0.0]), floats("high", &[], &[5.0])];
        let constants = [
            parameters((0.0317, 120), (6.0 / 255.0, 0)),
            weights(&[0.0173]),
            bounds,
        ]
        .concat();
        let [one, other] = both(nodes, &constants);
        assert!(!operators(&one).contains(&"QLinearConv"));
        assert!(steps([&one, &other], 1.0) == 0.0);
    }

    #[test]
    fn sums_and_movements_between_quantizations_are_nodes_of_integers() {
        let dequantize = node("DequantizeLinear", &["bytes", "x_scale", "x_zero"], "b");
        let add = vec![dequantize, node("Add", &["a", "b"], "made")];
        let [one, other] = both(add, &parameters((0.0317, 120), (0.07, 30)));
        let integers = ["QuantizeLinear", "com.microsoft/QLinearAdd", "DequantizeLinear"];
        assert_eq!(operators(&one), integers);
        assert!(steps([&one, &other], 0.07) <= 1.001);
        let pool = || {
            let pool = node("MaxPool", &["a"], "made");
            vec![with(
                pool,
                [ints("kernel_shape", &[3, 3]), ints("pads", &[1, 1, 1, 1])],
            )]
        };
        let concat = vec![with(
            node("Concat", &["a", "a"], "made"),
            [crate::test_models::int("axis", 1)],
        )];
        let transpose = vec![with(
            node("Transpose", &["a"], "made"),
            [ints("perm", &[0, 2, 3, 1])],
        )];
        for inner in [pool(), concat, transpose] {
            let op_type = inner[0].op_type.clone();
            let [one, other] = both(inner, &parameters((0.0317, 120), (0.0317, 120)));
            assert_eq!(operators(&one), ["QuantizeLinear", &op_type, "DequantizeLinear"]);
            assert!(steps([&one, &other], 1.0) == 0.0);
        }
        // Another zero point.
        let [one, other] = both(pool(), &parameters((0.0317, 120), (0.0317, 121)));
        assert_eq!(operators(&one).len(), 5);
        assert!(steps([&one, &other], 1.0) == 0.0);
    }

    /// Checks a bias that is too large for an INT32 of the product's scale.
    #[test]
    fn sums_that_would_wrap_around_stay_in_fp32() {
        let mut nodes = convolution(true);
        nodes[1].output = vec!["made".to_owned()];
        let mut constants = [parameters((1e-4, 120), (1.0, 3)), weights(&[1e-4])].concat();
        let [one, _] = both(nodes.clone(), &constants);
        assert!(!operators(&one).contains(&"QLinearConv"));
        constants[4] = floats("bias", &[4], &[0.5; 4]);
        let [one, _] = both(nodes, &constants);
        assert!(operators(&one).contains(&"QLinearConv"));
    }

    #[test]
    fn zero_points_that_are_not_constant_stay_unfused() {
        let mut nodes = vec![
            with(
                node("ReduceMin", &["bytes"], "least"),
                [crate::test_models::int("keepdims", 0)],
            ),
            with(
                node("Cast", &["least"], "w_zero_of_run"),
                [crate::test_models::int("to", (DataType::Int8 as i32).into())],
            ),
        ];
        nodes.extend(convolution(false));
        nodes[2].input[2] = "w_zero_of_run".to_owned();
        nodes[3].output = vec!["made".to_owned()];
        let constants = [parameters((0.0317, 128), (0.5, 100)), weights(&[0.0173])].concat();
        let [one, other] = both(nodes, &constants);
        assert!(!operators(&one).contains(&"QLinearConv"));
        assert!(steps([&one, &other], 1.0) == 0.0);
    }

    #[test]
    fn biases_between_two_integers_stay_in_fp32() {
        let mut nodes = convolution(true);
        nodes[1].output = vec!["made".to_owned()];
        for (bias, is_fused) in [
            (0.4, false),
            (f32::NAN, false),
            (f32::INFINITY, false),
            (2.0, true),
        ] {
            let mut constants = [parameters((1.0, 120), (0.01, 3)), weights(&[1.0])].concat();
            constants[4] = floats("bias", &[4], &[0.0, 0.0, bias, 0.0]);
            let [one, _] = both(nodes.clone(), &constants);
            assert_eq!(operators(&one).contains(&"QLinearConv"), is_fused, "{bias}");
        }
    }

    #[test]
    fn sums_of_coarse_terms_stay_in_fp32() {
        let dequantize = node("DequantizeLinear", &["bytes", "x_scale", "x_zero"], "b");
        let add = vec![dequantize, node("Add", &["a", "b"], "made")];
        let [one, _] = both(add, &parameters((70_000.1, 201), (0.01, 0)));
        assert!(!operators(&one).contains(&"com.microsoft/QLinearAdd"));
    }
}
