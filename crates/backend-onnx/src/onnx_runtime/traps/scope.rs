//! Facts about a graph's values before a run: constants, and datatypes as far as the file and the operators
//! define them.

use std::collections::HashMap;

use onnx_graph::proto::{
    GraphProto, NodeProto, TensorProto, ValueInfoProto, canonical_domain, tensor_proto::DataType, type_proto,
};

use super::elements;

/// The values visible to the nodes of a graph, including those of outer graphs.
pub(super) struct Scope<'a> {
    outer: Option<&'a Scope<'a>>,
    /// ONNX's datatype number of each value; for a sequence, the datatype of its elements.
    elements: HashMap<String, i32>,
    constants: HashMap<String, Constant>,
}

/// The relevant facts about a constant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constant {
    /// Whether the constant is non-empty.
    pub(super) is_filled: bool,
    /// Whether all elements are integers above 0.
    pub(super) is_positive: bool,
    /// Whether the constant is the integer scalar 0.
    pub(super) is_zero: bool,
    /// Whether no element is 0 or -1.
    pub(super) is_safe_divisor: bool,
}

impl Constant {
    pub(super) fn of(tensor: &TensorProto) -> Self {
        /// Maximum element count to keep: larger constants are neither lengths nor, usually, divisors.
        const MOST: i64 = 4096;
        let count = tensor
            .dims
            .iter()
            .try_fold(1, |count: i64, &dim| count.checked_mul(dim));
        let integers = match count {
            Some(0..=MOST) => elements::integers(tensor),
            _ => None,
        };
        let all = |test: fn(i64) -> bool| {
            integers
                .as_ref()
                .is_some_and(|integers| integers.iter().all(|&integer| test(integer)))
        };
        Self {
            is_filled: tensor.dims.iter().all(|&dim| dim > 0),
            is_positive: all(|integer| integer > 0),
            is_zero: tensor.dims.is_empty() && all(|integer| integer == 0),
            is_safe_divisor: all(|integer| !matches!(integer, -1 | 0)),
        }
    }
}

impl<'a> Scope<'a> {
    /// Creates a scope with a graph's inputs and constants. [`learn`](Self::learn) adds the outputs of nodes,
    /// in order.
    pub(super) fn new(graph: &GraphProto, outer: Option<&'a Scope<'a>>) -> Self {
        let mut scope = Self {
            outer,
            elements: HashMap::new(),
            constants: HashMap::new(),
        };
        for tensor in &graph.initializer {
            scope.elements.insert(tensor.name.clone(), tensor.data_type);
            scope.constants.insert(tensor.name.clone(), Constant::of(tensor));
        }
        for port in graph.input.iter().chain(&graph.output) {
            if let Some(element) = declared(port) {
                scope.elements.insert(port.name.clone(), element);
            }
        }
        scope
    }

    pub(super) fn element(&self, name: &str) -> Option<i32> {
        let outer = || self.outer.and_then(|outer| outer.element(name));
        self.elements.get(name).copied().or_else(outer)
    }

    pub(super) fn constant(&self, name: &str) -> Option<Constant> {
        let outer = || self.outer.and_then(|outer| outer.constant(name));
        self.constants.get(name).copied().or_else(outer)
    }

    /// Adds the outputs of a node. `inner` are the output datatypes of its subgraphs.
    pub(super) fn learn(&mut self, node: &NodeProto, inner: Vec<Option<i32>>) {
        let given = self.of_outputs(node, inner);
        for (name, element) in node.output.iter().zip(given) {
            if let Some(element) = element.filter(|_| !name.is_empty()) {
                self.elements.entry(name.clone()).or_insert(element);
            }
        }
        if let (Some(tensor), [output]) = (elements::constant(node), &*node.output) {
            self.constants.insert(output.clone(), Constant::of(&tensor));
        }
    }

    /// Returns the datatypes of a graph's outputs.
    pub(super) fn outputs(&self, graph: &GraphProto) -> Vec<Option<i32>> {
        graph.output.iter().map(|port| self.element(&port.name)).collect()
    }

    #[expect(clippy::match_same_arms, reason = "a table, by domain")]
    fn of_outputs(&self, node: &NodeProto, inner: Vec<Option<i32>>) -> Vec<Option<i32>> {
        let input = |index: usize| node.input.get(index).and_then(|name| self.element(name));
        let attribute = |name: &str| node.attribute.iter().find(|attribute| attribute.name == name);
        let int = |name: &str| {
            attribute(name)
                .and_then(|attribute| i32::try_from(attribute.i).ok())
                .filter(|&i| i > 0)
        };
        let known = |element: DataType| Some(element as i32);
        let tensor = |name: &str| attribute(name).and_then(|attribute| Some(attribute.t.as_ref()?.data_type));
        let (int64, float) = (known(DataType::Int64), known(DataType::Float));
        let first = match (canonical_domain(&node.domain), node.op_type.as_str()) {
            ("", "Cast") => int("to"),
            ("", "CastLike" | "DequantizeLinear") | ("com.microsoft", "DequantizeLinear") => input(1),
            ("", "Constant") => tensor("value").or_else(|| constant_of(node)),
            ("", "ConstantOfShape") => tensor("value").or(float),
            ("", "EyeLike" | "RandomNormalLike" | "RandomUniformLike" | "Bernoulli") => {
                int("dtype").or(input(0))
            }
            ("", "RandomNormal" | "RandomUniform" | "SequenceEmpty") => int("dtype").or(float),
            ("", "Multinomial") => int("dtype").or(known(DataType::Int32)),
            ("", "HannWindow" | "HammingWindow" | "BlackmanWindow" | "MelWeightMatrix") => {
                int("output_datatype").or(float)
            }
            (
                "",
                "Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" | "NonMaxSuppression" | "SequenceLength",
            ) => int64,
            (
                "",
                "Equal" | "Greater" | "Less" | "GreaterOrEqual" | "LessOrEqual" | "And" | "Or" | "Xor"
                | "Not" | "IsNaN" | "IsInf" | "RegexFullMatch" | "OptionalHasElement",
            ) => known(DataType::Bool),
            ("", "Where") => input(1).or(input(2)),
            ("", "OneHot") => input(2),
            ("", "QuantizeLinear") => int("output_dtype").or(input(2)).or(known(DataType::Uint8)),
            ("com.microsoft", "QuantizeLinear") => input(2).or(known(DataType::Uint8)),
            ("", "DynamicQuantizeLinear") => {
                return vec![known(DataType::Uint8), float, known(DataType::Uint8)];
            }
            ("", "MatMulInteger" | "ConvInteger")
            | ("com.microsoft", "MatMulInteger16" | "DynamicTimeWarping") => known(DataType::Int32),
            ("", "QLinearConv" | "QLinearMatMul") => input(7),
            ("", "TfIdfVectorizer") => float,
            ("", "ImageDecoder") => known(DataType::Uint8),
            ("", "TopK" | "Unique" | "MaxPool") | ("com.microsoft", "Unique" | "NhwcMaxPool") => {
                return vec![input(0), int64, int64, int64];
            }
            ("", "StringSplit") => return vec![input(0), int64],
            ("", "Dropout") => return vec![input(0), known(DataType::Bool)],
            ("", "If" | "Scan" | "SequenceMap") => return inner,
            // The body's first output is the loop condition.
            ("", "Loop") => return inner.into_iter().skip(1).collect(),
            // The outputs of all other ONNX operators have the first input's datatype.
            ("", _) => input(0),
            ("ai.onnx.ml", "ArrayFeatureExtractor" | "Binarizer" | "Imputer") => input(0),
            ("ai.onnx.ml", "LabelEncoder") => encoded(node),
            ("ai.onnx.ml", op) if op.ends_with("Classifier") => return vec![None, float],
            ("ai.onnx.ml", "CategoryMapper" | "DictVectorizer" | "ZipMap") => None,
            ("ai.onnx.ml", _) => float,
            (
                "com.microsoft",
                "EmbedLayerNormalization" | "QEmbedLayerNormalization" | "QAttention" | "WordConvEmbedding",
            ) => float,
            ("com.microsoft", "GatherBlockQuantized" | "MatMulIntegerToFloat") => input(2),
            ("com.microsoft", op)
                if op.starts_with("QLinear") && op != "QLinearConcat" && op != "QLinearWhere" =>
            {
                input(0)
            }
            ("com.microsoft", "ExpandDims" | "GatherND" | "Pad" | "Range" | "Trilu" | "UnfoldTensor") => {
                input(0)
            }
            // The outputs of most other contrib operators have the first input's datatype, if that is a
            // float.
            ("com.microsoft", _) => input(0).filter(|&element| is_float(element)),
            _ => None,
        };
        vec![first; node.output.len()]
    }
}

/// Returns the datatype that a tensor port declares.
fn declared(port: &ValueInfoProto) -> Option<i32> {
    match port.r#type.as_ref()?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => Some(tensor.elem_type).filter(|&element| element > 0),
        _ => None,
    }
}

fn constant_of(node: &NodeProto) -> Option<i32> {
    let names = node.attribute.iter().map(|attribute| attribute.name.as_str());
    let mut elements = names.filter_map(|name| match name {
        "value_int" | "value_ints" => Some(DataType::Int64),
        "value_float" | "value_floats" => Some(DataType::Float),
        "value_string" | "value_strings" => Some(DataType::String),
        _ => None,
    });
    elements.next().map(|element| element as i32)
}

fn encoded(node: &NodeProto) -> Option<i32> {
    let names = node.attribute.iter().map(|attribute| attribute.name.as_str());
    let mut elements = names.filter_map(|name| match name {
        "values_int64s" => Some(DataType::Int64),
        "values_floats" => Some(DataType::Float),
        "values_strings" => Some(DataType::String),
        _ => None,
    });
    elements.next().map(|element| element as i32)
}

fn is_float(element: i32) -> bool {
    matches!(
        DataType::try_from(element),
        Ok(DataType::Float | DataType::Double | DataType::Float16 | DataType::Bfloat16)
    )
}
