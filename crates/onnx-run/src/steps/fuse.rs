//! Fuses nodes: replaces several nodes, as exporters write them, with one that computes the same result.
//!
//! Nodes are fused only if nothing else reads the values between them, and all parameters are constants.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use onnx_tensor::prelude::*;

use crate::steps::{
    dequantized::Dequantized,
    fusion_graph::{Fused, Graph, StepWithNode},
    scales::Scales,
    values::Slot,
};
use onnx_layers::norm;
use onnx_tensor::{
    elements::elements,
    node::Attributes,
    node::{Attribute, Node},
    packs::Packs,
    size, time_limit,
};

/// Finds nodes to fuse; each node is in at most one group. New weights count toward the memory limit of
/// `packs`, since many nodes may share a constant.
pub(crate) fn fused(
    steps: &[StepWithNode],
    outputs: &[Slot],
    constants: &HashMap<Slot, Arc<Tensor>>,
    dequantized: &HashMap<Slot, Dequantized>,
    packs: &mut Packs,
) -> Result<Vec<Fused>> {
    let graph = Graph::of(steps, outputs, constants, dequantized);
    let mut found: Vec<Fused> = Vec::new();
    let mut taken: HashSet<usize> = HashSet::new();
    for at in 0..steps.len() {
        time_limit::check()?;
        let one = match graph.op_type(at) {
            "Erf" => graph.gelu(at),
            "HardSigmoid" | "Sigmoid" => graph.gated(at),
            "Sqrt" => graph.layer_normalization(at),
            "Conv" => match graph.quantized_convolution(at) {
                Some(one) => Some(one),
                None => graph.scaled_convolution(at, packs)?,
            },
            "Add" => graph.quantized_sum(at),
            "MatMul" => graph.quantized_product(at),
            "Softmax" => graph.attention(at),
            "Concat" | "Flatten" | "MaxPool" | "Reshape" | "Squeeze" | "Transpose" | "Unsqueeze" => {
                graph.quantized_movement(at)
            }
            _ => None,
        };
        if let Some(one) = one.filter(|one| graph.is_closed(&one.steps))
            && one.steps.iter().all(|step| !taken.contains(step))
        {
            taken.extend(&one.steps);
            found.push(one);
        }
    }
    Ok(found)
}

impl Graph<'_> {
    /// Fuses `0.5 x (1 + erf(x / sqrt(2)))`, starting from its `Erf`.
    fn gelu(&self, erf: usize) -> Option<Fused> {
        let root = std::f64::consts::SQRT_2;
        let scaled = self.input(erf, 0)?;
        let (scaling, x) = match self.maker(scaled, "Div") {
            Some(at) => (
                at,
                self.input(at, 0)
                    .filter(|_| self.beside(at, root) == self.input(at, 0))?,
            ),
            None => {
                let at = self.maker(scaled, "Mul")?;
                (at, self.beside(at, root.recip())?)
            }
        };
        let sum = self.reader(erf, "Add")?;
        (self.beside(sum, 1.0) == self.output(erf)).then_some(())?;
        let product = self.reader(sum, "Mul")?;
        let factor = self.other(product, self.output(sum)?)?;
        let steps = match factor == x {
            true => {
                let half = self.reader(product, "Mul")?;
                (self.beside(half, 0.5) == self.output(product)).then_some(())?;
                vec![scaling, erf, sum, product, half]
            }
            false => {
                let half = self.maker(factor, "Mul")?;
                (self.beside(half, 0.5) == Some(x)).then_some(())?;
                vec![scaling, erf, sum, half, product]
            }
        };
        self.fused("Gelu", 20, vec![x], steps)
    }

    /// Fuses a function with the node that multiplies the function's input by its result, such as the Mul of
    /// `SiLU`.
    fn gated(&self, function: usize) -> Option<Fused> {
        let product = self.reader(function, "Mul")?;
        let x = self.input(function, 0)?;
        (self.other(product, self.output(function)?) == Some(x)).then_some(())?;
        let node = self.node(function)?;
        let steps = vec![function, product];
        self.fused(&node.op_type, node.opset, vec![x], steps)
            .map(|fused| Fused {
                node: Node {
                    attribute: node.attribute.clone(),
                    ..fused.node
                },
                is_gated: true,
                ..fused
            })
    }

    /// Returns whether a node is a mean along the last axis that keeps the axis.
    fn is_mean_of_rows(&self, at: usize) -> bool {
        let Some(attributes) = self.node(at).map(Attributes) else {
            return false;
        };
        let axes = self.input(at, 1).and_then(|slot| self.constants.get(&slot));
        let axes = axes.and_then(|axes| elements::<i64>(axes).ok());
        *axes.unwrap_or(attributes.ints("axes")) == [-1] && attributes.int("keepdims", 1) != 0
    }

    /// Fuses `(x - mean) / sqrt(variance + epsilon) * scale + bias` over rows, starting from its `Sqrt`.
    fn layer_normalization(&self, root: usize) -> Option<Fused> {
        let sum = self.maker(self.input(root, 0)?, "Add")?;
        let (variance, epsilon) = (self.input(sum, 0)?, self.input(sum, 1)?);
        let (variance, epsilon) = match self.number(epsilon) {
            Some(epsilon) => (variance, epsilon),
            None => (epsilon, self.number(variance)?),
        };
        let variance = self.maker(variance, "ReduceMean")?;
        let squared = self.input(variance, 0)?;
        let (square, distance) = match self.maker(squared, "Pow") {
            Some(at) => {
                let exponent = self.constants.get(&self.input(at, 1)?)?;
                let is_two = exponent.rank() == 0 && exponent.cast_to_scalar::<f64>().ok()? == 2.0;
                (at, self.input(at, 0).filter(|_| is_two)?)
            }
            None => {
                let at = self.maker(squared, "Mul")?;
                (
                    at,
                    self.input(at, 0)
                        .filter(|&slot| self.input(at, 1) == Some(slot))?,
                )
            }
        };
        let difference = self.maker(distance, "Sub")?;
        let (x, mean) = (self.input(difference, 0)?, self.input(difference, 1)?);
        let mean = self.maker(mean, "ReduceMean")?;
        let of_rows = self.is_mean_of_rows(mean) && self.is_mean_of_rows(variance);
        (of_rows && self.input(mean, 0) == Some(x)).then_some(())?;
        let quotient = self.reader(root, "Div")?;
        // Some exporters compute the difference twice.
        let numerator = self.maker(self.input(quotient, 0)?, "Sub")?;
        let is_same = self.input(numerator, 0) == Some(x) && self.input(numerator, 1) == self.output(mean);
        (is_same && self.input(quotient, 1) == self.output(root)).then_some(())?;
        let scaled = self.reader(quotient, "Mul")?;
        let scale = self.other(scaled, self.output(quotient)?)?;
        let biased = self.reader(scaled, "Add")?;
        let bias = self.other(biased, self.output(scaled)?)?;
        let row = |slot: Slot| {
            let constant = self.constants.get(&slot)?;
            let is_row = constant.rank() == 1 && constant.element_type() != ElementType::F64;
            is_row.then(|| (constant.element_type(), constant.len()))
        };
        (row(scale)? == row(bias)?).then_some(())?;
        let mut steps = vec![
            mean, difference, numerator, square, variance, sum, root, quotient, scaled, biased,
        ];
        steps.dedup();
        let mut fused = self.fused("LayerNormalization", 17, vec![x, scale, bias], steps)?;
        fused.node.attribute = vec![
            Attribute {
                name: "axis".to_owned(),
                i: -1,
                ..Attribute::default()
            },
            Attribute {
                name: "epsilon".to_owned(),
                f: epsilon as f32,
                ..Attribute::default()
            },
        ];
        Some(fused)
    }

    /// Folds the node at `at` into `scales`, if it scales or shifts the channels of `before` by constants.
    /// `rank` is the rank of its input.
    fn scale(
        &self,
        at: usize,
        before: usize,
        scales: &mut Scales,
        rank: usize,
        channels: usize,
    ) -> Result<bool> {
        let (Some(node), Some(made)) = (self.node(at), self.output(before)) else {
            return Ok(false);
        };
        if node.op_type == "BatchNormalization" {
            let parameters = (1..5).map(|place| self.constants.get(&self.input(at, place)?).cloned());
            let Some(parameters) = parameters.collect::<Option<Vec<_>>>() else {
                return Ok(false);
            };
            let fits =
                |list: &Arc<Tensor>| list.shape() == [channels] && list.element_type() == ElementType::F32;
            if !parameters.iter().all(fits) || self.input(at, 0) != Some(made) {
                return Ok(false);
            }
            scales.then(&norm::channels(Attributes(node), &parameters, channels)?);
            return Ok(true);
        }
        let constant = self.other(at, made).and_then(|slot| self.constants.get(&slot));
        // Old operator sets declare the broadcast axes in attributes, so nodes with attributes are not fused.
        let Some(constant) = constant.filter(|_| node.attribute.is_empty()) else {
            return Ok(false);
        };
        let is_second = self.input(at, 0) == Some(made);
        Ok(scales.follow(&node.op_type, constant, is_second, rank).is_some())
    }

    /// Fuses a convolution with constant FP32 weights and the nodes after it that scale and shift its
    /// channels by constants.
    fn scaled_convolution(&self, convolution: usize, packs: &mut Packs) -> Result<Option<Fused>> {
        let constant = |place: usize| self.constants.get(&self.input(convolution, place)?);
        let (Some(x), Some(weights), Some(node)) =
            (self.input(convolution, 0), constant(1), self.node(convolution))
        else {
            return Ok(None);
        };
        let (rank, channels) = (weights.rank(), weights.shape().first().copied().unwrap_or(0));
        let bias = constant(2);
        let is_float = |tensor: &Arc<Tensor>| tensor.element_type() == ElementType::F32;
        let has_other_bias = self.input(convolution, 2).is_some()
            && !bias.is_some_and(|bias| is_float(bias) && bias.shape() == [channels]);
        if channels == 0 || has_other_bias || !is_float(weights) {
            return Ok(None);
        }
        let (mut scales, mut steps) = (Scales::new(channels), vec![convolution]);
        let mut last = convolution;
        while let Some(next) = self.only_reader(last)
            && self.scale(next, last, &mut scales, rank, channels)?
        {
            steps.push(next);
            last = next;
        }
        if steps.len() == 1 || (!scales.only_shift() && !packs.admit(size::of_value(weights))) {
            return Ok(None);
        }
        let weights = match scales.only_shift() {
            true => None,
            false => match scales.weights(weights)? {
                Some(weights) => Some(weights),
                None => return Ok(None),
            },
        };
        let Some(bias) = scales.bias(bias.map(|bias| &**bias))? else {
            return Ok(None);
        };
        let kept = self.input(convolution, 1).filter(|_| weights.is_none());
        let inputs = std::iter::once(x).chain(kept).collect();
        Ok(self.fused("Conv", node.opset, inputs, steps).map(|fused| Fused {
            node: Node {
                input: vec!["x".to_owned(), "w".to_owned(), "b".to_owned()],
                attribute: node.attribute.clone(),
                ..fused.node
            },
            constants: weights
                .map(|weights| (1, weights.into_arc()))
                .into_iter()
                .chain([(2, bias.into_arc())])
                .collect(),
            ..fused
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{NodeProto, TensorProto};

    use super::*;
    use crate::{
        Session,
        steps::body::Step,
        test_models::{constant, int, model, node, with},
    };

    fn number(name: &str, value: f32) -> TensorProto {
        TensorProto {
            dims: vec![],
            raw_data: value.to_le_bytes().to_vec().into(),
            ..constant(name, &[1])
        }
    }

    fn steps(nodes: Vec<NodeProto>, dims: &[i64], constants: Vec<TensorProto>) -> Session {
        let model = model(nodes, dims, &vec![-1; dims.len()], constants);
        Session::prepare(&model, |_| Ok(())).unwrap()
    }

    fn operators(steps: &Session) -> Vec<&str> {
        let operators = steps.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            _ => "",
        });
        operators.collect()
    }

    fn answer(steps: &Session, shape: &[usize]) -> Vec<f32> {
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|at| (at * 7 % 23) as f32 / 4.0 - 2.0).collect();
        let input = Tensor::from_shape(shape, &numbers).unwrap();
        let made = steps.run([input]).unwrap();
        elements::<f32>(&made[0]).unwrap().to_vec()
    }

    fn are_near(found: &[f32], expected: &[f32]) -> bool {
        let mut pairs = found.iter().zip(expected);
        found.len() == expected.len() && pairs.all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs()))
    }

    fn gelu(last: [&str; 2]) -> Vec<NodeProto> {
        vec![
            node("Div", &["x", "root"], "scaled"),
            node("Erf", &["scaled"], "erf"),
            node("Add", &["erf", "one"], "sum"),
            node("Mul", &["x", "sum"], "product"),
            node("Mul", &last, "y"),
        ]
    }

    #[test]
    fn what_exporters_write_for_gelu_is_one_node() {
        let constants = || {
            let root = std::f32::consts::SQRT_2;
            vec![number("root", root), number("one", 1.0), number("half", 0.5)]
        };
        let one = steps(gelu(["product", "half"]), &[-1, 6], constants());
        assert_eq!(operators(&one), ["Gelu"]);
        // A node outside the pattern reads an intermediate value.
        let mut many = gelu(["product", "half"]);
        many[4].output = vec!["made".to_owned()];
        many.push(node("Sub", &["sum", "sum"], "nothing"));
        many.push(node("Add", &["made", "nothing"], "y"));
        let many = steps(many, &[-1, 6], constants());
        assert_eq!(operators(&many).len(), 7);
        assert!(are_near(&answer(&one, &[4, 6]), &answer(&many, &[4, 6])));
    }

    #[test]
    fn a_value_times_a_function_of_it_is_one_function_and_part_of_a_convolution() {
        let nodes = || {
            vec![
                node("Conv", &["x", "w"], "made"),
                node("Sigmoid", &["made"], "gate"),
                node("Mul", &["made", "gate"], "y"),
            ]
        };
        let weights = || vec![constant("w", &[2, 3, 3, 3]), number("zero", 0.0)];
        let one = steps(nodes(), &[-1, 3, 8, 8], weights());
        assert_eq!(operators(&one), ["Conv"]);
        let mut apart = nodes();
        apart[2].output = vec!["gated".to_owned()];
        apart.push(node("Mul", &["gate", "zero"], "nothing"));
        apart.push(node("Add", &["gated", "nothing"], "y"));
        let many = steps(apart, &[-1, 3, 8, 8], weights());
        assert_eq!(operators(&many).len(), 5);
        assert!(are_near(
            &answer(&one, &[2, 3, 8, 8]),
            &answer(&many, &[2, 3, 8, 8])
        ));
        let mut bounds = nodes();
        bounds[1] = node("Relu", &["made"], "gate");
        bounds[2] = node("Clip", &["gate", "zero", "zero"], "y");
        let bounded = steps(bounds, &[-1, 3, 8, 8], weights());
        // Only one function can be fused into a convolution, so the `Clip` remains.
        assert_eq!(operators(&bounded), ["Conv", "Clip"]);
        assert!(answer(&bounded, &[1, 3, 8, 8]).iter().all(|&x| x == 0.0));
    }

    fn normalization(keeps: i64) -> Vec<NodeProto> {
        let mean = |input: &str, output: &str| {
            with(
                node("ReduceMean", &[input, "axes"], output),
                [int("keepdims", keeps)],
            )
        };
        vec![
            mean("x", "mean"),
            node("Sub", &["x", "mean"], "distance"),
            node("Mul", &["distance", "distance"], "square"),
            mean("square", "variance"),
            node("Add", &["variance", "epsilon"], "sum"),
            node("Sqrt", &["sum"], "root"),
            node("Div", &["distance", "root"], "quotient"),
            node("Mul", &["quotient", "scale"], "scaled"),
            node("Add", &["scaled", "bias"], "y"),
        ]
    }

    #[test]
    fn what_exporters_write_for_normalized_rows_is_one_node() {
        let axes = |axis: i64| TensorProto {
            name: "axes".to_owned(),
            dims: vec![1],
            data_type: 7,
            raw_data: axis.to_le_bytes().to_vec().into(),
            ..TensorProto::default()
        };
        let constants = |axis| {
            let lists = [constant("scale", &[6]), constant("bias", &[6])];
            [vec![axes(axis), number("epsilon", 1e-5)], lists.to_vec()].concat()
        };
        let one = steps(normalization(1), &[-1, 6], constants(-1));
        assert_eq!(operators(&one), ["LayerNormalization"]);
        // If the rank is unknown, axis 1 may be an inner axis, so the nodes are not fused.
        let many = steps(normalization(1), &[-1, 6], constants(1));
        assert_eq!(operators(&many).len(), 9);
        assert!(are_near(&answer(&one, &[5, 6]), &answer(&many, &[5, 6])));
    }

    /// Checks that few scales are fused if many convolutions share their weights, each with its own scale.
    /// Fusing all of them would copy the weights for each convolution, so a small file could take any amount
    /// of memory.
    #[test]
    fn convolutions_that_share_weights_take_over_few_scales() {
        let mut nodes = Vec::new();
        let functions = ["Abs", "Cos", "Exp", "Neg", "Relu", "Sigmoid", "Sin", "Tanh"];
        for (at, function) in functions.into_iter().enumerate() {
            let (made, normal) = (format!("made{at}"), format!("normal{at}"));
            nodes.push(node(function, &["x"], function));
            nodes.push(node("Conv", &[function, "w"], &made));
            let inputs = [&made, "scale", "bias", "mean", "variance"];
            nodes.push(node("BatchNormalization", &inputs, &normal));
        }
        let normals: Vec<String> = (0..8).map(|at| format!("normal{at}")).collect();
        let normals: Vec<&str> = normals.iter().map(String::as_str).collect();
        nodes.push(node("Sum", &normals, "y"));
        let mut lists = ["scale", "bias", "mean", "variance"].map(|name| constant(name, &[2]));
        lists[3].raw_data = [0.5f32, 2.0].map(f32::to_le_bytes).concat().into();
        // The weights take 8 MiB.
        let weights = constant("w", &[2, 1 << 20, 1, 1]);
        let steps = steps(
            nodes,
            &[-1, 1 << 20, 1, 1],
            [vec![weights], lists.to_vec()].concat(),
        );
        let left = operators(&steps)
            .into_iter()
            .filter(|name| *name == "BatchNormalization");
        assert!((1..8).contains(&left.count()), "{:?}", operators(&steps));
    }

    #[test]
    fn a_convolution_takes_over_constants_for_its_channels() {
        let nodes = vec![
            node("Conv", &["x", "w"], "a"),
            node("Add", &["bias", "a"], "b"),
            node("Sub", &["b", "mean"], "c"),
            node("Mul", &["c", "scale"], "d"),
            node("Relu", &["d"], "y"),
        ];
        let lists = ["bias", "mean", "scale"].map(|name| constant(name, &[2, 1, 1]));
        let constants = [vec![constant("w", &[2, 3, 3, 3])], lists.to_vec()].concat();
        let one = steps(nodes.clone(), &[-1, 3, 8, 8], constants.clone());
        assert_eq!(operators(&one), ["Conv"]);
        // Each intermediate value has two readers.
        let mut apart = nodes;
        apart.truncate(4);
        apart.push(node("Sum", &["a", "b", "c", "d"], "all"));
        apart.push(node("Mul", &["all", "zero"], "nothing"));
        apart.push(node("Add", &["d", "nothing"], "sum"));
        apart.push(node("Relu", &["sum"], "y"));
        let many = steps(
            apart,
            &[-1, 3, 8, 8],
            [constants.clone(), vec![number("zero", 0.0)]].concat(),
        );
        assert_eq!(operators(&many).len(), 8);
        assert!(are_near(
            &answer(&one, &[2, 3, 8, 8]),
            &answer(&many, &[2, 3, 8, 8])
        ));
        // The constant varies along the last axis, not along the channels.
        let row = vec![node("Conv", &["x", "w"], "a"), node("Add", &["a", "row"], "y")];
        let row = steps(
            row,
            &[-1, 3, 8, 8],
            vec![constant("w", &[2, 3, 3, 3]), constant("row", &[6])],
        );
        assert_eq!(operators(&row), ["Conv", "Add"]);
    }

    #[test]
    fn a_convolution_takes_over_the_scales_behind_it() {
        let nodes = |last: &str| {
            vec![
                node("Conv", &["x", "w", "b"], "made"),
                node(
                    "BatchNormalization",
                    &["made", "scale", "bias", "mean", "variance"],
                    last,
                ),
            ]
        };
        let constants = || {
            let mut variance = constant("variance", &[2]);
            variance.raw_data = [0.5f32, 2.0].map(f32::to_le_bytes).concat().into();
            let lists = ["b", "scale", "bias", "mean"].map(|name| constant(name, &[2]));
            [vec![constant("w", &[2, 3, 3, 3]), variance], lists.to_vec()].concat()
        };
        let one = steps(nodes("y"), &[-1, 3, 8, 8], constants());
        assert_eq!(operators(&one), ["Conv"]);
        // Other nodes read the results of the convolution and of the normalization, so these are not fused.
        let mut both = nodes("normal");
        both.push(node("Mul", &["normal", "zero"], "nothing"));
        both.push(node("Add", &["made", "nothing"], "not"));
        both.push(node("Add", &["normal", "nothing"], "y"));
        let many = steps(
            both,
            &[-1, 3, 8, 8],
            [constants(), vec![number("zero", 0.0)]].concat(),
        );
        assert!(operators(&many).contains(&"Conv"));
        assert!(are_near(
            &answer(&one, &[2, 3, 8, 8]),
            &answer(&many, &[2, 3, 8, 8])
        ));
    }
}
