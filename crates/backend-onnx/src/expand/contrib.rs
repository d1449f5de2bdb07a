//! ONNX Runtime's own operators, which its optimizer and quantizer write into files, as ONNX's.
//!
//! Operators that are not replaced stay, and are refused by their names later.

use std::collections::HashSet;

use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, attribute_proto::AttributeType, canonical_domain,
    tensor_proto::DataType,
};

use super::{
    graph::{any_graph, float, int, ints, node, onnx_opset},
    replacement::{Replacement, replace_nodes},
};

const DOMAIN: &str = "com.microsoft";

/// What is added to the variance by the operators that normalize a sum, where a file does not say.
const SKIP_EPSILON: f32 = 1e-12;

pub(super) fn are_used(model: &ModelProto) -> bool {
    let mut imports = model.opset_import.iter();
    let onnx = imports.find(|import| canonical_domain(&import.domain).is_empty());
    let opset = onnx.map_or(i64::MAX, |import| import.version);
    let uses = |graph: &GraphProto| graph.node.iter().any(|node| is_replaceable(node, opset));
    model.graph.as_ref().is_some_and(|graph| any_graph(graph, &uses))
}

fn is_replaceable(node: &NodeProto, opset: i64) -> bool {
    let is_meant = match node.op_type.as_str() {
        // Its optimizer writes the latter two under ONNX's name, which ONNX does not have, or not in the set that the model uses.
        "RMSNormalization" | "SimplifiedLayerNormalization" => true,
        "LayerNormalization" => opset < 17,
        "Swish" => opset >= 24,
        _ => false,
    };
    node.domain == DOMAIN || (is_meant && canonical_domain(&node.domain).is_empty())
}

/// Replaces what can be.
pub(super) fn replace(model: &mut ModelProto) {
    if !are_used(model) {
        return;
    }
    let opset = onnx_opset(model);
    if let Some(graph) = &mut model.graph {
        // What is replaced shares nothing.
        let write = |new: &mut Replacement<'_>, (): &mut ()| new.write();
        replace_nodes(graph, opset, &|node| is_replaceable(node, opset), &write);
    }
}

impl Replacement<'_> {
    fn write(&mut self) -> Option<()> {
        match self.node.op_type.as_str() {
            "FusedConv" => self.fused_conv(),
            "FusedGemm" => self.fused_gemm(),
            "FusedMatMul" | "TransposeMatMul" => self.fused_mat_mul(),
            "Gelu" => {
                let y = self.newer("Gelu", &[self.input(0)?], vec![]);
                self.give(0, y)
            }
            "BiasGelu" => {
                let sum = self.op("Add", &[self.input(0)?, self.input(1)?], vec![]);
                let y = self.newer("Gelu", &[sum], vec![]);
                self.give(0, y)
            }
            "FastGelu" => {
                let x = self.with_bias(self.input(0)?, 1);
                let by_tanh = AttributeProto {
                    name: "approximate".to_owned(),
                    r#type: AttributeType::String as i32,
                    s: "tanh".into(),
                    ..AttributeProto::default()
                };
                let y = self.newer("Gelu", &[x], vec![by_tanh]);
                self.give(0, y)
            }
            name @ ("QuickGelu" | "Swish") => {
                let alpha = if name == "Swish" { 1.0 } else { 1.702 };
                let x = self.input(0)?;
                let scaled = self.scaled(x.clone(), self.float("alpha", alpha));
                let gate = self.op("Sigmoid", &[scaled], vec![]);
                let y = self.op("Mul", &[x, gate], vec![]);
                self.give(0, y)
            }
            "SkipLayerNormalization" => self.skip_layer_normalization(),
            "LayerNormalization" => {
                // The newest operator set says the same as the one that it came with.
                if self.wants(1) || self.wants(2) {
                    return None;
                }
                let attributes = self.node.attribute.clone();
                let y = self.newer("LayerNormalization", &self.node.input.clone(), attributes);
                self.give(0, y)
            }
            "Attention" if self.node.domain == DOMAIN => self.attention(),
            "QAttention" => self.quantized_attention(),
            "MultiHeadAttention" => self.multi_head_attention(),
            "EmbedLayerNormalization" => self.embed_layer_normalization(),
            "SimplifiedLayerNormalization" | "RMSNormalization" => {
                // Normalized over several dimensions by one that is counted from the start: their number is not known here.
                let is_last = self.int("axis", -1) == -1
                    || self.dims(&self.input(1)?).is_some_and(|dims| dims.len() == 1);
                if self.wants(1) || !is_last {
                    return None;
                }
                let epsilon = self.float("epsilon", 1e-5);
                let y = self.root_mean_square(self.input(0)?, self.input(1)?, epsilon);
                self.give(0, y)
            }
            "SkipSimplifiedLayerNormalization" => {
                if self.wants(1) || self.wants(2) {
                    return None;
                }
                let sum = self.op("Add", &[self.input(0)?, self.input(1)?], vec![]);
                let sum = self.with_bias(sum, 3);
                let epsilon = self.float("epsilon", SKIP_EPSILON);
                let y = self.root_mean_square(sum.clone(), self.input(2)?, epsilon);
                self.give(3, sum);
                self.give(0, y)
            }
            "DynamicQuantizeMatMul" => self.dynamic_quantize_mat_mul(),
            "MatMulIntegerToFloat" => {
                let product = self.op("MatMulInteger", &self.inputs(&[0, 1, 4, 5]), vec![]);
                let scale = self.op("Mul", &[self.input(2)?, self.input(3)?], vec![]);
                let y = self.rescaled(product, scale, 6);
                self.give(0, y)
            }
            "QuantizeLinear" | "DequantizeLinear" => {
                let attributes = self.node.attribute.clone();
                let inputs: Vec<String> = self.node.input.clone();
                let y = self.newer(&self.node.op_type.clone(), &inputs, attributes);
                self.give(0, y)
            }
            "QLinearWhere" => {
                let (a, b) = (self.dequantized([1, 2, 3])?, self.dequantized([4, 5, 6])?);
                let y = self.op("Where", &[self.input(0)?, a, b], vec![]);
                self.give_quantized(y, [7, 8])
            }
            "NhwcMaxPool" => self.channels_last_pool(),
            "QLinearSigmoid" => self.quantized_one("Sigmoid", vec![]),
            "QLinearLeakyRelu" => {
                self.quantized_one("LeakyRelu", vec![float("alpha", self.float("alpha", 0.01))])
            }
            "QLinearSoftmax" => {
                let attributes = vec![int("axis", self.int("axis", -1))];
                // What the axis means depends on an operator set of its own.
                let is_same = (self.int("opset", self.opset) >= 13) == (self.opset >= 13);
                is_same
                    .then(|| self.quantized_one("Softmax", attributes))
                    .flatten()
            }
            "QLinearGlobalAveragePool" if self.int("channels_last", 0) == 0 => {
                self.quantized_one("GlobalAveragePool", vec![])
            }
            "QLinearAveragePool" if self.int("channels_last", 0) == 0 => {
                let attributes = self
                    .node
                    .attribute
                    .iter()
                    .filter(|attribute| attribute.name != "channels_last");
                let attributes = attributes.cloned().collect();
                self.quantized_one("AveragePool", attributes)
            }
            "QLinearConcat" => self.quantized_concat(),
            "QGemm" => self.quantized_gemm(),
            "Unique" => {
                // In the order in which values come, and without the places where they come first.
                let y = self.newer("Unique", &[self.input(0)?], vec![int("sorted", 0)]);
                let others = [self.fresh(), self.fresh(), self.fresh()];
                if let Some(unique) = self.made.last_mut() {
                    unique.output.extend(others.clone());
                }
                let [_, inverse, counts] = others;
                self.give(1, inverse);
                self.give(2, counts);
                self.give(0, y)
            }
            "Trilu" | "GridSample" | "Range" => {
                let attributes = self.node.attribute.clone();
                let y = self.op(&self.node.op_type.clone(), &self.node.input.clone(), attributes);
                self.give(0, y)
            }
            _ => None,
        }
    }

    fn fused_conv(&mut self) -> Option<()> {
        let own: HashSet<&str> = HashSet::from(["activation", "activation_params"]);
        let attributes = self
            .node
            .attribute
            .iter()
            .filter(|attribute| !own.contains(attribute.name.as_str()));
        let attributes = attributes.cloned().collect();
        let mut y = self.op("Conv", &self.inputs(&[0, 1, 2]), attributes);
        if let Some(z) = self.input(3) {
            y = self.op("Add", &[y, z], vec![]);
        }
        let parameters = self
            .attribute("activation_params")
            .map_or(vec![], |attribute| attribute.floats.clone());
        let y = self.activated(y, &self.text("activation"), &parameters)?;
        self.give(0, y)
    }

    fn fused_gemm(&mut self) -> Option<()> {
        let gemm = |attribute: &&AttributeProto| !attribute.name.starts_with("activation");
        let attributes = self.node.attribute.iter().filter(gemm).cloned().collect();
        let y = self.op("Gemm", &self.inputs(&[0, 1, 2]), attributes);
        let parameters: Vec<f32> = ["activation_alpha", "activation_beta", "activation_gamma"]
            .iter()
            .filter_map(|name| Some(self.attribute(name)?.f))
            .collect();
        let y = self.activated(y, &self.text("activation"), &parameters)?;
        self.give(0, y)
    }

    /// The operators behind a fused one.
    fn activated(&mut self, x: String, name: &str, parameters: &[f32]) -> Option<String> {
        let parameter = |index: usize, default: f32| parameters.get(index).copied().unwrap_or(default);
        Some(match name {
            "" => x,
            "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" => self.op(name, &[x], vec![]),
            "LeakyRelu" => self.op(name, &[x], vec![float("alpha", parameter(0, 0.01))]),
            "Elu" => self.op(name, &[x], vec![float("alpha", parameter(0, 1.0))]),
            "HardSigmoid" => {
                let attributes = vec![
                    float("alpha", parameter(0, 0.2)),
                    float("beta", parameter(1, 0.5)),
                ];
                self.op(name, &[x], attributes)
            }
            "Clip" => {
                let (low, high) = (parameter(0, f32::MIN), parameter(1, f32::MAX));
                if self.opset < 11 {
                    self.op("Clip", &[x], vec![float("min", low), float("max", high)])
                } else {
                    let bounds = [self.constant(&[low], vec![]), self.constant(&[high], vec![])];
                    let [low, high] = bounds;
                    self.op("Clip", &[x, low, high], vec![])
                }
            }
            _ => return None,
        })
    }

    fn fused_mat_mul(&mut self) -> Option<()> {
        if self.int("transBatchA", 0) != 0 || self.int("transBatchB", 0) != 0 {
            return None;
        }
        let flipped = |made: &mut Self, index: usize, name: &str| -> Option<String> {
            let input = made.input(index)?;
            // The transposition of what may be any number of matrices.
            Some(match made.int(name, 0) {
                0 => input,
                _ => made.newer("TransposeLast", &[input], vec![]),
            })
        };
        let a = flipped(self, 0, "transA")?;
        let b = flipped(self, 1, "transB")?;
        let product = self.op("MatMul", &[a, b], vec![]);
        let y = self.scaled(product, self.float("alpha", 1.0));
        self.give(0, y)
    }

    fn skip_layer_normalization(&mut self) -> Option<()> {
        if self.wants(1) || self.wants(2) {
            return None;
        }
        let sum = self.op("Add", &[self.input(0)?, self.input(1)?], vec![]);
        let sum = self.with_bias(sum, 4);
        let mut inputs = vec![sum.clone(), self.input(2)?];
        inputs.extend(self.input(3));
        let epsilon = self.float("epsilon", SKIP_EPSILON);
        let y = self.newer(
            "LayerNormalization",
            &inputs,
            vec![int("axis", -1), float("epsilon", epsilon)],
        );
        self.give(3, sum);
        self.give(0, y)
    }

    /// Attention of a sequence to itself, by one product that gives queries, keys and values.
    fn attention(&mut self) -> Option<()> {
        // Steps that were computed before, and what is done with them.
        if self.input(4).is_some() || self.input(6).is_some() || self.wants(1) {
            return None;
        }
        let product = self.op("MatMul", &[self.input(0)?, self.input(1)?], vec![]);
        let product = self.with_bias(product, 2);
        self.attended(product, 3, 5)
    }

    fn quantized_attention(&mut self) -> Option<()> {
        if self.input(8).is_some() || self.wants(1) {
            return None;
        }
        let product = self.op("MatMulInteger", &self.inputs(&[0, 1, 6, 7]), vec![]);
        let scale = self.op("Mul", &[self.input(3)?, self.input(4)?], vec![]);
        let product = self.rescaled(product, scale, 2);
        self.attended(product, 5, usize::MAX)
    }

    /// From queries, keys and values beside each other to what attention makes of them, given the places of the inputs that
    /// are a mask and what else is added to the scores.
    fn attended(&mut self, product: String, mask: usize, bias: usize) -> Option<()> {
        let is_plain = self.int("do_rotary", 0) == 0 && self.attribute("qkv_hidden_sizes").is_none();
        let (heads, weights) = (self.int("num_heads", 0), self.dims(&self.input(1)?)?);
        let [_, columns] = weights[..] else {
            return None;
        };
        if !is_plain || !(1..1 << 24).contains(&heads) || columns < 1 || columns % (3 * heads) != 0 {
            return None;
        }
        let width = columns / 3 / heads;
        let parts = self.newer("Split", &[product], vec![int("axis", -1), int("num_outputs", 3)]);
        let others = [self.fresh(), self.fresh()];
        if let Some(split) = self.made.last_mut() {
            split.output.extend(others.clone());
        }
        let [keys, values] = others;
        let by_head = self.indices(&[0, 0, heads, width]);
        let mut split = |part: String, order: [i64; 4]| {
            let part = self.newer("Reshape", &[part, by_head.clone()], vec![]);
            self.op("Transpose", &[part], vec![ints("perm", &order)])
        };
        let queries = split(parts, [0, 2, 1, 3]);
        let keys = split(keys, [0, 2, 3, 1]);
        let values = split(values, [0, 2, 1, 3]);
        let scores = self.op("MatMul", &[queries, keys], vec![]);
        let scale = match self.float("scale", 0.0) {
            0.0 => 1.0 / (width as f32).sqrt(),
            given => given,
        };
        let scores = self.scaled(scores, scale);
        let y = self.weighted(scores, values, mask, bias);
        let joined = self.indices(&[0, 0, heads * width]);
        let y = self.newer("Reshape", &[y, joined], vec![]);
        self.give(0, y)
    }

    /// Values weighted by scores, the heads beside each other, given the places of the inputs that are a mask and what else is
    /// added to the scores.
    fn weighted(&mut self, mut scores: String, values: String, mask: usize, bias: usize) -> String {
        if let Some(mask) = self.input(mask) {
            let filter = vec![float(
                "mask_filter_value",
                self.float("mask_filter_value", -10000.0),
            )];
            let added = self.newer("AttentionMask", &[mask, scores.clone()], filter);
            scores = self.op("Add", &[scores, added], vec![]);
        }
        scores = self.with_bias(scores, bias);
        if self.int("unidirectional", 0) != 0 {
            let mask = self.newer("CausalMask", std::slice::from_ref(&scores), vec![]);
            scores = self.op("Add", &[scores, mask], vec![]);
        }
        let weights = self.newer("Softmax", &[scores], vec![int("axis", -1)]);
        let y = self.op("MatMul", &[weights, values], vec![]);
        self.op("Transpose", &[y], vec![ints("perm", &[0, 2, 1, 3])])
    }

    /// Attention of queries to keys and values that come apart from each other, with those of earlier steps before them.
    fn multi_head_attention(&mut self) -> Option<()> {
        let heads = self.int("num_heads", 0);
        if self.input(8).is_some() || self.wants(3) || !(1..1 << 24).contains(&heads) {
            return None;
        }
        let mut parts = [self.input(0)?, self.input(1)?, self.input(2)?];
        if let Some(bias) = self.input(3) {
            let first = self.newer("Split", &[bias], vec![int("axis", 0), int("num_outputs", 3)]);
            let others = [self.fresh(), self.fresh()];
            if let Some(split) = self.made.last_mut() {
                split.output.extend(others.clone());
            }
            let [second, third] = others;
            for (part, bias) in parts.iter_mut().zip([first, second, third]) {
                *part = self.op("Add", &[part.clone(), bias], vec![]);
            }
        }
        let [queries, keys, values] = parts;
        let scale = self.float("scale", 0.0);
        let queries = self.newer(
            "SplitHeads",
            &[queries],
            vec![int("num_heads", heads), int("is_query", 1), float("scale", scale)],
        );
        let mut split = |part: String, past: usize| {
            let part = self.newer("SplitHeads", &[part], vec![int("num_heads", heads)]);
            match self.input(past) {
                Some(past) => self.op("Concat", &[past, part], vec![int("axis", 2)]),
                None => part,
            }
        };
        let (keys, values) = (split(keys, 6), split(values, 7));
        let turned = self.newer("TransposeLast", std::slice::from_ref(&keys), vec![]);
        let scores = self.op("MatMul", &[queries, turned], vec![]);
        let y = self.weighted(scores, values.clone(), 4, 5);
        let joined = self.indices(&[0, 0, -1]);
        let y = self.newer("Reshape", &[y, joined], vec![]);
        self.give(1, keys);
        self.give(2, values);
        self.give(0, y)
    }

    /// Words, their places and their segments by their numbers, summed and normalized.
    fn embed_layer_normalization(&mut self) -> Option<()> {
        // Slices had no inputs then.
        if self.opset < 10 {
            return None;
        }
        let words = self.input(0)?;
        let mut sum = self.op("Gather", &[self.input(2)?, words.clone()], vec![]);
        let places = match self.input(8) {
            Some(places) => self.op("Gather", &[self.input(3)?, places], vec![]),
            None => {
                let count = self.newer("Shape", &[words], vec![int("start", 1), int("end", 2)]);
                let (start, axis) = (self.indices(&[0]), self.indices(&[0]));
                self.newer("Slice", &[self.input(3)?, start, count, axis], vec![])
            }
        };
        sum = self.op("Add", &[sum, places], vec![]);
        if let (Some(segments), Some(table)) = (self.input(1), self.input(4)) {
            let segments = self.op("Gather", &[table, segments], vec![]);
            sum = self.op("Add", &[sum, segments], vec![]);
        }
        let epsilon = self.float("epsilon", 1e-12);
        let y = self.newer(
            "LayerNormalization",
            &[sum.clone(), self.input(5)?, self.input(6)?],
            vec![int("axis", -1), float("epsilon", epsilon)],
        );
        if self.wants(1) {
            // How long each row is.
            let mask = self.input(7)?;
            let lengths = if self.opset < 13 {
                self.op("ReduceSum", &[mask], vec![ints("axes", &[1]), int("keepdims", 0)])
            } else {
                let axes = self.indices(&[1]);
                self.op("ReduceSum", &[mask, axes], vec![int("keepdims", 0)])
            };
            self.give(1, lengths);
        }
        self.give(2, sum);
        self.give(0, y)
    }

    /// `x / sqrt(mean(x * x) + epsilon) * scale`
    fn root_mean_square(&mut self, x: String, scale: String, epsilon: f32) -> String {
        let square = self.op("Mul", &[x.clone(), x.clone()], vec![]);
        let mean = if self.opset < 18 {
            self.op(
                "ReduceMean",
                &[square],
                vec![ints("axes", &[-1]), int("keepdims", 1)],
            )
        } else {
            let axes = self.indices(&[-1]);
            self.op("ReduceMean", &[square, axes], vec![int("keepdims", 1)])
        };
        let epsilon = self.constant(&[epsilon], vec![]);
        let sum = self.op("Add", &[mean, epsilon], vec![]);
        let root = self.op("Sqrt", &[sum], vec![]);
        let y = self.op("Div", &[x, root], vec![]);
        self.op("Mul", &[y, scale], vec![])
    }

    fn dynamic_quantize_mat_mul(&mut self) -> Option<()> {
        let base = self.fresh();
        let [quantized, scale, zero_point] = ["q", "s", "z"].map(|suffix| format!("{base}{suffix}"));
        let mut quantize = node(
            "DynamicQuantizeLinear",
            &self.node.name,
            vec![self.input(0)?],
            quantized.clone(),
            vec![],
        );
        quantize.output.extend([scale.clone(), zero_point.clone()]);
        self.made.push(quantize);
        let mut factors = vec![quantized, self.input(1)?, zero_point];
        factors.extend(self.input(3));
        let product = self.op("MatMulInteger", &factors, vec![]);
        let scale = self.op("Mul", &[scale, self.input(2)?], vec![]);
        let y = self.rescaled(product, scale, 4);
        self.give(0, y)
    }

    /// A product of integers as floats, with a bias if there is one.
    fn rescaled(&mut self, product: String, scale: String, bias: usize) -> String {
        let product = self.op("Cast", &[product], vec![int("to", DataType::Float as i64)]);
        let y = self.op("Mul", &[product, scale], vec![]);
        self.with_bias(y, bias)
    }

    /// A pool of images whose channels stand beside each other.
    fn channels_last_pool(&mut self) -> Option<()> {
        let spatial = self.attribute("kernel_shape")?.ints.len() as i64;
        let to_front: Vec<i64> = [0, spatial + 1].into_iter().chain(1..=spatial).collect();
        let to_back: Vec<i64> = std::iter::once(0).chain(2..=spatial + 1).chain([1]).collect();
        let x = self.op("Transpose", &[self.input(0)?], vec![ints("perm", &to_front)]);
        let attributes = self.node.attribute.clone();
        let y = self.newer("MaxPool", &[x], attributes);
        let y = self.op("Transpose", &[y], vec![ints("perm", &to_back)]);
        self.give(0, y)
    }

    fn quantized_one(&mut self, op_type: &str, attributes: Vec<AttributeProto>) -> Option<()> {
        let x = self.dequantized([0, 1, 2])?;
        let y = self.op(op_type, &[x], attributes);
        self.give_quantized(y, [3, 4])
    }

    fn quantized_concat(&mut self) -> Option<()> {
        let mut parts = Vec::new();
        for first in (2..self.node.input.len()).step_by(3) {
            parts.push(self.dequantized([first, first + 1, first + 2])?);
        }
        let axis = self.int("axis", 0);
        let y = self.op("Concat", &parts, vec![int("axis", axis)]);
        self.give_quantized(y, [0, 1])
    }

    /// The bias is in units of both factors' scales.
    fn quantized_gemm(&mut self) -> Option<()> {
        let a = self.dequantized([0, 1, 2])?;
        let b = self.dequantized([3, 4, 5])?;
        let alpha = self.float("alpha", 1.0);
        let attributes = vec![
            float("alpha", alpha),
            int("transA", self.int("transA", 0)),
            int("transB", self.int("transB", 0)),
        ];
        let mut y = self.op("Gemm", &[a, b], attributes);
        if let Some(bias) = self.input(6) {
            let bias = self.op("Cast", &[bias], vec![int("to", DataType::Float as i64)]);
            let scale = self.op("Mul", &[self.input(1)?, self.input(4)?], vec![]);
            let bias = self.op("Mul", &[bias, scale], vec![]);
            let bias = self.scaled(bias, alpha);
            y = self.op("Add", &[y, bias], vec![]);
        }
        match self.input(7) {
            Some(_) => self.give_quantized(y, [7, 8]),
            None => self.give(0, y),
        }
    }

    fn dequantized(&mut self, [x, scale, zero_point]: [usize; 3]) -> Option<String> {
        let mut inputs = vec![self.input(x)?, self.input(scale)?];
        inputs.extend(self.input(zero_point));
        Some(self.newer("DequantizeLinear", &inputs, vec![]))
    }

    fn give_quantized(&mut self, y: String, [scale, zero_point]: [usize; 2]) -> Option<()> {
        let mut inputs = vec![y, self.input(scale)?];
        inputs.extend(self.input(zero_point));
        let y = self.newer("QuantizeLinear", &inputs, vec![]);
        self.give(0, y)
    }

    fn with_bias(&mut self, x: String, index: usize) -> String {
        match self.input(index) {
            Some(bias) => self.op("Add", &[x, bias], vec![]),
            None => x,
        }
    }

    fn scaled(&mut self, x: String, factor: f32) -> String {
        if factor == 1.0 {
            return x;
        }
        let factor = self.constant(&[factor], vec![]);
        self.op("Mul", &[x, factor], vec![])
    }
}
