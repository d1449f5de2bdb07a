//! Finds values that are non-empty whenever certain model inputs are. Such values need no guard in the graph,
//! since the inputs are checked before each run.

use std::collections::{HashMap, HashSet};

use onnx_graph::proto::{GraphProto, NodeProto, TensorProto, canonical_domain};

use super::{elements::constant, scope::Constant};

/// Maximum number of inputs to track. Values that depend on further inputs count as unknown.
const MOST_INPUTS: usize = 64;

pub(super) struct NonEmptyInputs {
    inputs: Vec<String>,
    /// For each value, a bit set of inputs. The value is non-empty if all of these inputs are.
    values: HashMap<String, u64>,
}

impl NonEmptyInputs {
    pub(super) fn of(graph: &GraphProto) -> Self {
        let constants = graph.initializer.iter();
        let constants = constants.filter(|tensor| tensor.dims.iter().all(|&dim| dim > 0));
        let mut values: HashMap<String, u64> = constants.map(|tensor| (tensor.name.clone(), 0)).collect();
        let constants: HashSet<&String> = graph.initializer.iter().map(|tensor| &tensor.name).collect();
        let names = graph.input.iter().map(|input| &input.name);
        let inputs: Vec<String> = names
            .filter(|name| !constants.contains(name))
            .take(MOST_INPUTS)
            .cloned()
            .collect();
        values.extend(
            inputs
                .iter()
                .enumerate()
                .map(|(index, name)| (name.clone(), 1 << index)),
        );
        let tensors: HashMap<&str, &TensorProto> = graph
            .initializer
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor))
            .collect();
        for node in &graph.node {
            // All outputs of `Split` are tracked; for other operators, only the first output.
            let is_split = canonical_domain(&node.domain).is_empty() && node.op_type == "Split";
            let (outputs, inputs) = match is_split {
                true => (&node.output[..], behind_split(node, &values, &tensors)),
                false => (node.output.get(..1).unwrap_or_default(), behind(node, &values)),
            };
            for output in outputs.iter().filter(|output| !output.is_empty()) {
                values.extend(inputs.map(|inputs| (output.clone(), inputs)));
            }
        }
        Self { inputs, values }
    }

    /// Returns the model inputs that must be non-empty for the value `name` to be non-empty; `None` if they
    /// are unknown.
    pub(super) fn inputs_behind(&self, name: &str) -> Option<Vec<&str>> {
        let bits = *self.values.get(name)?;
        let inputs = self.inputs.iter().enumerate();
        let chosen = inputs.filter(|(index, _)| bits >> index & 1 == 1);
        Some(chosen.map(|(_, name)| name.as_str()).collect())
    }
}

/// Returns the bit set of inputs for a node's first output; `None` if they are unknown.
fn behind(node: &NodeProto, values: &HashMap<String, u64>) -> Option<u64> {
    let domain = canonical_domain(&node.domain);
    if let Some(tensor) = constant(node) {
        return tensor.dims.iter().all(|&dim| dim > 0).then_some(0);
    }
    let deciding = deciding_inputs(domain, &node.op_type)?;
    let inputs = node.input.iter().take(deciding).filter(|name| !name.is_empty());
    inputs
        .map(|name| values.get(name).copied())
        .try_fold(0, |bits, more| Some(bits | more?))
}

/// Returns the bit set of inputs for all outputs of a `Split` whose sizes are constant and above 0.
fn behind_split(
    node: &NodeProto,
    values: &HashMap<String, u64>,
    tensors: &HashMap<&str, &TensorProto>,
) -> Option<u64> {
    let sizes = node.attribute.iter().find(|attribute| attribute.name == "split");
    let in_attribute =
        sizes.is_some_and(|sizes| !sizes.ints.is_empty() && sizes.ints.iter().all(|&size| size > 0));
    let sizes = node.input.get(1).and_then(|name| tensors.get(name.as_str()));
    let in_constant = sizes.is_some_and(|sizes| Constant::of(sizes).is_positive);
    let bits = values.get(node.input.first()?).copied();
    bits.filter(|_| in_attribute || in_constant)
}

/// Returns `n` such that the first output of an operator is non-empty if its first `n` inputs are; `None` if
/// there is no such number.
#[expect(clippy::match_same_arms, reason = "a table, by domain")]
fn deciding_inputs(domain: &str, op_type: &str) -> Option<usize> {
    Some(match (domain, op_type) {
        (
            "",
            "Abs"
            | "BatchNormalization"
            | "Cast"
            | "Ceil"
            | "Clip"
            | "CumSum"
            | "DequantizeLinear"
            | "Dropout"
            | "DynamicQuantizeLinear"
            | "Elu"
            | "Erf"
            | "Exp"
            | "Flatten"
            | "Floor"
            | "GRU"
            | "Gelu"
            | "HardSigmoid"
            | "HardSwish"
            | "Identity"
            | "InstanceNormalization"
            | "LSTM"
            | "LayerNormalization"
            | "LeakyRelu"
            | "Log"
            | "LogSoftmax"
            | "Neg"
            | "QuantizeLinear"
            | "RMSNormalization"
            | "RNN"
            | "Relu"
            | "Reshape"
            | "RotaryEmbedding"
            | "Selu"
            | "Sigmoid"
            | "Softmax"
            | "Softplus"
            | "Sqrt"
            | "Squeeze"
            | "Tanh"
            | "Transpose"
            | "Unsqueeze"
            | "Attention",
        ) => 1,
        (
            "",
            "Add" | "Div" | "Gather" | "Gemm" | "MatMul" | "MatMulInteger" | "Mul" | "PRelu" | "Pow" | "Sub",
        ) => 2,
        ("", "Where") => 3,
        (
            "com.microsoft",
            "Attention"
            | "BiasGelu"
            | "DynamicQuantizeLSTM"
            | "FastGelu"
            | "Gelu"
            | "GroupQueryAttention"
            | "MatMulNBits"
            | "MultiHeadAttention"
            | "QAttention"
            | "QuickGelu"
            | "RotaryEmbedding",
        ) => 1,
        ("" | "com.microsoft", "SimplifiedLayerNormalization") => 1,
        (
            "com.microsoft",
            "DynamicQuantizeMatMul"
            | "EmbedLayerNormalization"
            | "FusedMatMul"
            | "MatMulIntegerToFloat"
            | "SkipLayerNormalization"
            | "SkipSimplifiedLayerNormalization",
        ) => 2,
        _ => return None,
    })
}
