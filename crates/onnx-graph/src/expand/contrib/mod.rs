//! Rewrites ONNX Runtime's contrib operators, which its optimizer and quantizer produce, into ONNX's.
//!
//! Unsupported variants are refused here, and the message names the input, output or attribute responsible.
//! Ranks are unknown here; the operator `Ranked` of [`NEWEST`](onnx_operators::NEWEST) checks them at run
//! time. The runtime handles other contrib operators.

mod attention;
mod fused;
mod normalization;
mod products;
mod quantized;

use super::{
    graph::{any_graph, float, int, onnx_opset},
    replacement::{Replacement, replace_nodes},
};
use crate::{
    Error, ErrorKind,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, attribute_proto::AttributeType, canonical_domain,
    },
    structure,
};

const DOMAIN: &str = "com.microsoft";

/// The result of rewriting a node: success, or the reason why the node cannot be rewritten.
type RewriteResult = Result<(), Unsupported>;

/// Why a variant of an operator is not supported.
enum Unsupported {
    /// ONNX Runtime supports the variant, and this crate does not.
    Here(String),
    /// Neither this crate nor ONNX Runtime supports the variant.
    Anywhere(String),
}

impl From<String> for Unsupported {
    fn from(reason: String) -> Self {
        Self::Here(reason)
    }
}

pub(super) fn are_used(model: &ModelProto) -> bool {
    let mut imports = model.opset_import.iter();
    let onnx = imports.find(|import| canonical_domain(&import.domain).is_empty());
    let opset = onnx.map_or(i64::MAX, |import| import.version);
    let uses = |graph: &GraphProto| graph.node.iter().any(|node| is_replaceable(node, opset));
    model.graph.as_ref().is_some_and(|graph| any_graph(graph, &uses))
}

fn is_replaceable(node: &NodeProto, opset: i64) -> bool {
    let is_meant = match node.op_type.as_str() {
        // ONNX Runtime's optimizer writes both operators in ONNX's domain, although the model's operator set
        // lacks them.
        "RMSNormalization" | "SimplifiedLayerNormalization" => true,
        "LayerNormalization" => opset < 17,
        "Swish" => opset >= 24,
        _ => false,
    };
    node.domain == DOMAIN || (is_meant && canonical_domain(&node.domain).is_empty())
}

/// Rewrites all operators that have a replacement.
///
/// # Errors
/// Returns an error for an unsupported variant of an operator.
pub(super) fn replace(model: &mut ModelProto) -> Result<(), Error> {
    if !are_used(model) {
        return Ok(());
    }
    let opset = onnx_opset(model);
    let Some(graph) = &mut model.graph else {
        return Ok(());
    };
    // The state is `()`, since the replacements of different nodes are independent.
    let write = |new: &mut Replacement<'_>, (): &mut ()| {
        let written = new.write().transpose();
        written.map_err(|reason| {
            let (kind, reason) = match reason {
                Unsupported::Here(reason) => (ErrorKind::Unsupported, reason),
                Unsupported::Anywhere(reason) => (ErrorKind::UnsupportedAnywhere, reason),
            };
            Error::new(kind, reason).within(structure::label(new.node))
        })
    };
    replace_nodes(graph, opset, &|node| is_replaceable(node, opset), &write)
}

impl Replacement<'_> {
    /// Emits the nodes that replace this node. Returns `None` for an operator that has no replacement.
    fn write(&mut self) -> Option<RewriteResult> {
        Some(match self.node.op_type.as_str() {
            "FusedConv" => self.fused_conv(),
            "FusedGemm" => self.fused_gemm(),
            "FusedMatMul" | "TransposeMatMul" => self.fused_mat_mul(),
            "Gelu" | "BiasGelu" => self.gelu(false),
            "FastGelu" => self.gelu(true),
            "QuickGelu" => self.swish(1.702),
            "Swish" => self.swish(1.0),
            "LayerNormalization" => self.layer_normalization(),
            "SimplifiedLayerNormalization" | "RMSNormalization" => self.simplified_normalization(),
            "SkipLayerNormalization" => self.skip_layer_normalization(),
            "SkipSimplifiedLayerNormalization" => self.skip_simplified_normalization(),
            "EmbedLayerNormalization" => self.embed_layer_normalization(),
            "Attention" if self.node.domain == DOMAIN => self.attention(),
            "QAttention" => self.quantized_attention(),
            "DecoderMaskedMultiHeadAttention" => self.decoder_attention(),
            "MultiHeadAttention" => self.multi_head_attention(),
            "DynamicQuantizeMatMul" => self.dynamic_quantize_mat_mul(),
            "MatMulIntegerToFloat" => self.mat_mul_integer_to_float(),
            "QGemm" => self.quantized_gemm(),
            "QLinearWhere" => self.quantized_where(),
            "QLinearSigmoid" => self.quantized_one("Sigmoid", vec![]),
            "QLinearLeakyRelu" => {
                self.quantized_one("LeakyRelu", vec![float("alpha", self.float("alpha", 0.01))])
            }
            "QLinearSoftmax" => self.quantized_softmax(),
            "QLinearGlobalAveragePool" => self.quantized_global_pool(),
            "QLinearAveragePool" => self.quantized_pool(),
            "QLinearConcat" => self.quantized_concat(),
            "NhwcMaxPool" => self.channels_last_pool(),
            "Unique" => self.unique(),
            "Range" => self.range(),
            "QuantizeLinear" | "DequantizeLinear" => self.as_it_is(true),
            "Trilu" | "GridSample" => self.as_it_is(false),
            _ => return None,
        })
    }

    /// Returns a required input.
    fn given(&self, index: usize) -> Result<String, Unsupported> {
        self.input(index).ok_or_else(|| {
            Unsupported::Anywhere(format!("input {index} is not given, which the operator needs"))
        })
    }

    /// Refuses a node that has input `index`; `name` is the input's name.
    fn without_input(&self, index: usize, name: &str) -> Result<(), String> {
        match self.input(index) {
            Some(_) => Err(format!("the input {name} is not supported")),
            None => Ok(()),
        }
    }

    /// Refuses a node whose output `index` is used; `name` is the output's name.
    fn without_output(&self, index: usize, name: &str) -> Result<(), String> {
        match self.wants(index) {
            true => Err(format!("the output {name} is not supported")),
            false => Ok(()),
        }
    }

    /// Refuses a node whose attribute differs from the default.
    fn with_default(&self, attribute: &str, default: i64) -> Result<(), String> {
        match self.int(attribute, default) {
            value if value == default => Ok(()),
            value => Err(format!(
                "the attribute '{attribute}' is {value}, only {default} is supported"
            )),
        }
    }

    /// Adds a run-time check that the rank of `x` is in `ranks`; `name` is the input's name.
    fn ranked(&mut self, x: String, name: &str, ranks: std::ops::RangeInclusive<i64>) -> String {
        let input = AttributeProto {
            name: "input".to_owned(),
            r#type: AttributeType::String as i32,
            s: name.to_owned().into(),
            ..AttributeProto::default()
        };
        let attributes = vec![int("least", *ranks.start()), int("most", *ranks.end()), input];
        self.newer("Ranked", &[x], attributes)
    }

    /// Emits ONNX's operator of the same name, from the newest operator set if `is_newest`, otherwise from
    /// the model's.
    fn as_it_is(&mut self, is_newest: bool) -> RewriteResult {
        let (name, inputs) = (self.node.op_type.clone(), self.node.input.clone());
        let attributes = self.node.attribute.clone();
        let y = match is_newest {
            true => self.newer(&name, &inputs, attributes),
            false => self.op(&name, &inputs, attributes),
        };
        self.give(0, y);
        Ok(())
    }

    fn unique(&mut self) -> RewriteResult {
        // `sorted=0` returns the elements in order of first appearance.
        let y = self.newer("Unique", &[self.given(0)?], vec![int("sorted", 0)]);
        let others = [self.fresh(), self.fresh(), self.fresh()];
        if let Some(unique) = self.made.last_mut() {
            unique.output.extend(others.clone());
        }
        let [_, inverse, counts] = others;
        self.give(1, inverse);
        self.give(2, counts);
        self.give(0, y);
        Ok(())
    }

    /// Emits `Range`, with a step of 1 by default.
    fn range(&mut self) -> RewriteResult {
        let (start, limit) = (self.given(0)?, self.given(1)?);
        let step = match self.input(2) {
            Some(step) => step,
            None => {
                let one = self.constant(&[1.0], vec![]);
                self.newer("CastLike", &[one, start.clone()], vec![])
            }
        };
        let y = self.op("Range", &[start, limit, step], vec![]);
        self.give(0, y);
        Ok(())
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

#[cfg(test)]
mod tests {
    use onnx_operators::{Runs, operators};

    use super::*;
    use crate::proto::OperatorSetIdProto;

    #[test]
    fn the_operators_that_the_table_says_are_replaced() {
        for row in operators().filter(|row| row.runs == Runs::Rewritten || row.domain == DOMAIN) {
            let node = NodeProto {
                op_type: row.name.to_owned(),
                domain: row.domain.to_owned(),
                input: (0..8).map(|index| format!("i{index}")).collect(),
                output: vec!["o".to_owned()],
                ..NodeProto::default()
            };
            let graph = GraphProto {
                node: vec![node.clone()],
                ..GraphProto::default()
            };
            // Uses the newest operator set, because some operators are rewritten only in the sets that define
            // them.
            let newest = OperatorSetIdProto {
                version: 26,
                ..OperatorSetIdProto::default()
            };
            let mut model = ModelProto {
                opset_import: vec![newest],
                graph: Some(graph),
                ..ModelProto::default()
            };
            // An error also counts: the operator is known, but this variant is refused.
            let is_replaced = match replace(&mut model) {
                Ok(()) => !model.graph.unwrap_or_default().node.contains(&node),
                Err(_) => true,
            };
            assert_eq!(is_replaced, row.runs == Runs::Rewritten, "{}", row.full_name());
        }
    }
}
