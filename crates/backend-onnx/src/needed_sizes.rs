//! Sizes of inputs that a model's weights decide, where its file leaves them free: a convolution takes as many channels as its
//! weights have, whatever the file calls the dimension.

use std::collections::HashMap;

use onnx_graph::{
    Dim, Error, Port,
    proto::{AttributeProto, GraphProto, NodeProto, canonical_domain},
    structure,
};

/// Fixes the free dimensions of inputs in which any other size would be an error of the model. A named one has that size in all inputs.
/// First dimensions stay free: they are batches.
///
/// # Errors
/// [`Invalid`](onnx_graph::ErrorKind::Invalid) when nodes depend on each other in a circle, or an input gets larger than
/// tensors may be.
pub(crate) fn fix(inputs: &mut [Port], graph: &GraphProto) -> Result<(), Error> {
    let needed = NeededSizes::of(graph)?;
    let mut named: HashMap<String, u64> = HashMap::new();
    for port in inputs.iter_mut() {
        let Some(dims) = &mut port.dims else {
            continue;
        };
        for (axis, size) in needed.of_value(&port.name, dims.len()) {
            match dims.get_mut(axis).filter(|_| axis > 0) {
                Some(dim @ Dim::Free) => *dim = Dim::Fixed(size),
                Some(Dim::Named(name)) => {
                    named.entry(name.clone()).or_insert(size);
                }
                Some(Dim::Fixed(_)) | None => {}
            }
        }
    }
    for dim in inputs.iter_mut().flat_map(|port| port.dims.iter_mut().flatten()) {
        if let Dim::Named(name) = dim
            && let Some(&size) = named.get(name)
        {
            *dim = Dim::Fixed(size);
        }
    }
    inputs.iter().try_for_each(Port::check)
}

/// A dimension of a value whose rank may be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// Counted from the first.
    Front(usize),
    /// Counted from the last.
    Back(usize),
}

/// Axes of a value that are looked at.
const MAX_AXES: usize = 8;

/// The sizes that values must have.
#[derive(Default)]
struct NeededSizes<'g> {
    values: HashMap<&'g str, Vec<(Axis, u64)>>,
}

impl<'g> NeededSizes<'g> {
    fn of(graph: &'g GraphProto) -> Result<Self, Error> {
        let constants = constants(graph);
        let mut needed = Self::default();
        // From the outputs on: what a node needs of its inputs follows from what is needed of its output.
        for node in structure::needed_in_order(graph)?.into_iter().rev() {
            needed.add(node, &constants);
        }
        Ok(needed)
    }

    /// What must be true of the inputs of a node, by its weights and by what its output must be.
    fn add(&mut self, node: &'g NodeProto, constants: &HashMap<&str, &[i64]>) {
        if !canonical_domain(&node.domain).is_empty() {
            return;
        }
        let weights = |input: usize| constants.get(&**node.input.get(input)?).copied();
        let int = |name: &str, default: i64| attribute(node, name).map_or(default, |attribute| attribute.i);
        let mut needed: Vec<(usize, Axis, Option<i64>)> = Vec::new();
        match &*node.op_type {
            "Conv" | "ConvInteger" | "QLinearConv" => {
                let weights = weights(if node.op_type == "QLinearConv" { 3 } else { 1 });
                let channels = weights.and_then(|dims| dims.get(1)?.checked_mul(int("group", 1)));
                needed.push((0, Axis::Front(1), channels));
            }
            "ConvTranspose" => needed.push((
                0,
                Axis::Front(1),
                weights(1).and_then(|dims| dims.first().copied()),
            )),
            "BatchNormalization" | "InstanceNormalization" => {
                needed.push((
                    0,
                    Axis::Front(1),
                    weights(1).and_then(|dims| dims.first().copied()),
                ));
            }
            "MatMul" | "MatMulInteger" | "QLinearMatMul" => {
                let second = if node.op_type == "QLinearMatMul" { 3 } else { 1 };
                let rows =
                    weights(second).and_then(|dims| dims.iter().rev().nth(1).or(dims.first()).copied());
                needed.push((0, Axis::Back(0), rows));
            }
            "Gemm" if int("transA", 0) == 0 => {
                let axis = usize::from(int("transB", 0) != 0);
                needed.push((
                    0,
                    Axis::Front(1),
                    weights(1).and_then(|dims| dims.get(axis).copied()),
                ));
            }
            "LSTM" | "GRU" | "RNN" => {
                let last = |dims: &[i64]| dims.get(2).copied();
                needed.push((0, Axis::Front(2), weights(1).and_then(last)));
                // The states before the first step.
                for state in [5, 6] {
                    needed.push((state, Axis::Front(2), weights(2).and_then(last)));
                }
            }
            _ => {}
        }
        for (input, axis, size) in needed {
            if let (Some(name), Some(size)) = (node.input.get(input), size) {
                self.note(name, axis, size);
            }
        }
        let (Some(input), Some(output)) = (node.input.first(), node.output.first()) else {
            return;
        };
        for (axis, size) in self.values.get(&**output).cloned().unwrap_or_default() {
            if let Some(axis) = through(node, axis, constants) {
                self.note(input, axis, size as i64);
            }
        }
    }

    fn note(&mut self, value: &'g str, axis: Axis, size: i64) {
        let Ok(size) = u64::try_from(size) else {
            return;
        };
        let sizes = self.values.entry(value).or_default();
        if sizes.len() < MAX_AXES && !sizes.iter().any(|(other, _)| *other == axis) {
            sizes.push((axis, size));
        }
    }

    /// Axes and sizes of a value of so many dimensions.
    fn of_value(&self, name: &str, rank: usize) -> impl Iterator<Item = (usize, u64)> {
        let sizes = self.values.get(name).into_iter().flatten();
        sizes.filter_map(move |&(axis, size)| {
            let axis = match axis {
                Axis::Front(axis) => Some(axis),
                Axis::Back(axis) => rank.checked_sub(axis + 1),
            };
            Some((axis?, size))
        })
    }
}

/// The axis of a node's first input that is as large as this axis of its output, whatever the input is.
fn through(node: &NodeProto, axis: Axis, constants: &HashMap<&str, &[i64]>) -> Option<Axis> {
    let is_single = |input: usize| {
        let dims = node.input.get(input).and_then(|name| constants.get(&**name));
        dims.is_some_and(|dims| dims.len() <= 1 && dims.iter().all(|&dim| dim == 1))
    };
    match &*node.op_type {
        "Abs"
        | "BatchNormalization"
        | "Cast"
        | "Ceil"
        | "Clip"
        | "DequantizeLinear"
        | "Dropout"
        | "Elu"
        | "Erf"
        | "Exp"
        | "Floor"
        | "Gelu"
        | "HardSigmoid"
        | "HardSwish"
        | "Identity"
        | "InstanceNormalization"
        | "LRN"
        | "LayerNormalization"
        | "LeakyRelu"
        | "Log"
        | "LogSoftmax"
        | "Mish"
        | "Neg"
        | "QuantizeLinear"
        | "Reciprocal"
        | "Relu"
        | "Round"
        | "Selu"
        | "Sigmoid"
        | "Sign"
        | "Softmax"
        | "Softplus"
        | "Softsign"
        | "Sqrt"
        | "Tanh"
        | "ThresholdedRelu" => Some(axis),
        "Add" | "Div" | "Max" | "Min" | "Mul" | "Pow" | "Sub" if node.input.len() == 2 && is_single(1) => {
            Some(axis)
        }
        "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool" | "LpPool" | "MaxPool" => {
            (axis == Axis::Front(1)).then_some(axis)
        }
        "Transpose" => {
            let order = &attribute(node, "perm")?.ints;
            let place = match axis {
                Axis::Front(axis) => axis,
                Axis::Back(axis) => order.len().checked_sub(axis + 1)?,
            };
            usize::try_from(*order.get(place)?).ok().map(Axis::Front)
        }
        _ => None,
    }
}

fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

/// The dimensions of what is constant, also once it is scaled.
fn constants(graph: &GraphProto) -> HashMap<&str, &[i64]> {
    let initializers = graph.initializer.iter();
    let mut constants: HashMap<&str, &[i64]> = initializers
        .map(|tensor| (&*tensor.name, &*tensor.dims))
        .collect();
    let nodes = graph.node.iter();
    for node in nodes.filter(|node| canonical_domain(&node.domain).is_empty()) {
        let dims = match &*node.op_type {
            "Constant" => attribute(node, "value").and_then(|value| Some(&*value.t.as_ref()?.dims)),
            "Cast" | "DequantizeLinear" | "Identity" => {
                let input = node.input.first();
                input.and_then(|input| constants.get(&**input).copied())
            }
            _ => None,
        };
        if let (Some(dims), Some(output)) = (dims, node.output.first()) {
            constants.insert(output, dims);
        }
    }
    constants
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{TensorProto, ValueInfoProto};

    use super::*;

    fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            op_type: op_type.to_owned(),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        }
    }

    fn with(mut node: NodeProto, name: &str, i: i64, ints: &[i64]) -> NodeProto {
        node.attribute.push(AttributeProto {
            name: name.to_owned(),
            i,
            ints: ints.to_vec(),
            ..AttributeProto::default()
        });
        node
    }

    /// The dimensions of the input `x` of a graph whose output is `y`, 0 where they are free.
    fn fixed(rank: usize, nodes: Vec<NodeProto>, weights: &[i64]) -> Vec<u64> {
        let graph = GraphProto {
            node: nodes,
            initializer: vec![
                TensorProto {
                    name: "w".to_owned(),
                    dims: weights.to_vec(),
                    ..TensorProto::default()
                },
                TensorProto {
                    name: "half".to_owned(),
                    ..TensorProto::default()
                },
                TensorProto {
                    name: "row".to_owned(),
                    dims: vec![5],
                    ..TensorProto::default()
                },
            ],
            output: vec![ValueInfoProto {
                name: "y".to_owned(),
                ..ValueInfoProto::default()
            }],
            ..GraphProto::default()
        };
        let mut dims = vec![0; rank];
        for (axis, size) in NeededSizes::of(&graph).unwrap().of_value("x", rank) {
            if let Some(dim) = dims.get_mut(axis) {
                *dim = size;
            }
        }
        dims
    }

    #[test]
    fn weights_decide_sizes() {
        let conv = || node("Conv", &["x", "w"], "y");
        assert_eq!(fixed(4, vec![conv()], &[8, 3, 5, 5]), [0, 3, 0, 0]);
        assert_eq!(
            fixed(3, vec![with(conv(), "group", 2, &[])], &[8, 3, 5]),
            [0, 6, 0]
        );
        assert_eq!(fixed(4, vec![conv()], &[8, 1, 5, 5]), [0, 1, 0, 0]);
        let transposed = node("ConvTranspose", &["x", "w"], "y");
        assert_eq!(fixed(4, vec![transposed], &[8, 3, 5, 5]), [0, 8, 0, 0]);
        let product = || node("MatMul", &["x", "w"], "y");
        assert_eq!(fixed(2, vec![product()], &[7, 4]), [0, 7]);
        assert_eq!(fixed(3, vec![product()], &[2, 7, 4]), [0, 0, 7]);
        assert_eq!(fixed(3, vec![product()], &[7]), [0, 0, 7]);
        let gemm = || node("Gemm", &["x", "w"], "y");
        assert_eq!(fixed(2, vec![gemm()], &[7, 4]), [0, 7]);
        assert_eq!(fixed(2, vec![with(gemm(), "transB", 1, &[])], &[7, 4]), [0, 4]);
        let lstm = node("LSTM", &["x", "w", "r"], "y");
        assert_eq!(fixed(3, vec![lstm], &[1, 20, 11]), [0, 0, 11]);
    }

    #[test]
    fn sizes_are_followed_to_the_input() {
        let conv = || node("Conv", &["b", "w"], "y");
        let weights = &[8, 3, 5];
        let clipped = vec![
            node("Sub", &["x", "half"], "a"),
            node("Relu", &["a"], "b"),
            conv(),
        ];
        assert_eq!(fixed(3, clipped, weights), [0, 3, 0]);
        let turned = vec![
            with(node("Transpose", &["x"], "b"), "perm", 0, &[0, 2, 1]),
            conv(),
        ];
        assert_eq!(fixed(3, turned, weights), [0, 0, 3]);
        // The axis of the other is too high.
        let to_first = vec![
            with(node("Transpose", &["x"], "b"), "perm", 0, &[1, 0, 2]),
            conv(),
        ];
        assert_eq!(fixed(3, to_first, weights), [3, 0, 0]);
        let to_nowhere = vec![
            with(node("Transpose", &["x"], "b"), "perm", 0, &[0, 9, -1]),
            conv(),
        ];
        assert_eq!(fixed(3, to_nowhere, weights), [0, 0, 0]);
    }

    #[test]
    fn what_may_be_repeated_is_not_fixed() {
        let product = || node("MatMul", &["a", "w"], "y");
        let sum = node("Add", &["x", "row"], "a");
        assert_eq!(fixed(2, vec![sum, product()], &[5, 4]), [0, 0]);
        // No output needs this product.
        let unused = node("MatMul", &["x", "w"], "z");
        assert_eq!(fixed(2, vec![unused, node("Relu", &["x"], "y")], &[5, 4]), [0, 0]);
        // Another one's operator of that name.
        let mut other = node("MatMul", &["x", "w"], "y");
        other.domain = "com.example".to_owned();
        assert_eq!(fixed(2, vec![other], &[5, 4]), [0, 0]);
        assert_eq!(fixed(2, vec![node("MatMul", &["x", "w"], "y")], &[-5, 4]), [0, 0]);
    }
}
