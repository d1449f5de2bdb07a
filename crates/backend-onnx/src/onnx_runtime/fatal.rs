//! Requests that would end the process: some of ONNX Runtime's operators do not survive tensors without elements.

use std::collections::HashSet;

use oip_types::ServiceError;
use tensor_core::{Quoted, Shape};

use crate::proto::{GraphProto, ModelProto, NodeProto};

/// The operators of ONNX Runtime 1.31 that end the process by a signal or by `std::terminate` where a dimension of an input is 0, of
/// those in the ONNX project's own tests, each run with every dimension 0; and those of com.microsoft that share their code.
const OPERATORS: &[&str] = &[
    "Attention",
    "ConvTranspose",
    "DecoderMaskedMultiHeadAttention",
    "DynamicQuantizeLSTM",
    "GRU",
    "GroupQueryAttention",
    "LSTM",
    "MultiHeadAttention",
    "QAttention",
    "STFT",
    "Scan",
    "Unique",
];

/// The first of these operators in a model, inner graphs and functions included.
pub(super) fn operator(model: &ModelProto) -> Option<&'static str> {
    let functions = model.functions.iter().map(|function| &function.node[..]);
    let mut nodes = functions.chain(model.graph.iter().map(|graph| &graph.node[..]));
    nodes.find_map(among)
}

fn among(nodes: &[NodeProto]) -> Option<&'static str> {
    nodes.iter().find_map(|node| {
        let known = OPERATORS.iter().find(|name| **name == node.op_type);
        let graphs = node
            .attribute
            .iter()
            .flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
        known.copied().or_else(|| graphs.map(inner).find_map(among))
    })
}

fn inner(graph: &GraphProto) -> &[NodeProto] {
    &graph.node
}

/// The inputs of a model that are nothing but the keys and values of earlier words for `GroupQueryAttention`, of which there are
/// none yet in a first request; the operator survives that.
pub(super) fn earlier_words(model: &ModelProto) -> HashSet<String> {
    let mut found = HashSet::new();
    let Some(graph) = &model.graph else {
        return found;
    };
    let is_attention =
        |node: &NodeProto| node.op_type == "GroupQueryAttention" && node.domain == "com.microsoft";
    for node in graph.node.iter().filter(|node| is_attention(node)) {
        found.extend(node.input.iter().skip(3).take(2).cloned());
    }
    let mut others = HashSet::new();
    used_otherwise(&graph.node, &mut others, true);
    others.extend(graph.output.iter().map(|output| output.name.clone()));
    found.retain(|name| !others.contains(name));
    found
}

fn used_otherwise(nodes: &[NodeProto], names: &mut HashSet<String>, is_outermost: bool) {
    for node in nodes {
        let is_attention =
            is_outermost && node.op_type == "GroupQueryAttention" && node.domain == "com.microsoft";
        let inputs = node.input.iter().enumerate();
        let other = inputs.filter(|(index, _)| !is_attention || !matches!(index, 3 | 4));
        names.extend(other.map(|(_, name)| name.clone()));
        let graphs = node
            .attribute
            .iter()
            .flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs));
        for graph in graphs {
            used_otherwise(&graph.node, names, false);
            names.extend(graph.output.iter().map(|output| output.name.clone()));
        }
    }
}

/// Whether a value has no elements only because there are no earlier words.
pub(super) fn is_of_no_words(shape: &Shape) -> bool {
    matches!(*shape.dims(), [batch, heads, 0, width] if batch > 0 && heads > 0 && width > 0)
}

/// Refuses an input without elements for a model with this operator.
pub(super) fn refuse_empty(operator: &str, input: &str, shape: &Shape) -> Result<(), ServiceError> {
    if shape.element_count() != 0 {
        return Ok(());
    }
    Err(ServiceError::invalid(format!(
        "input {} has the shape {shape}: ONNX Runtime cannot run {operator} without elements; expected at least one in each \
         dimension (or set runtime to 'tract' in the model's configuration)",
        Quoted(input)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::AttributeProto;

    fn node(op_type: &str) -> NodeProto {
        NodeProto {
            op_type: op_type.to_owned(),
            ..NodeProto::default()
        }
    }

    fn graph(node: NodeProto) -> GraphProto {
        GraphProto {
            node: vec![node],
            ..GraphProto::default()
        }
    }

    #[test]
    fn operators_are_found_in_inner_graphs_too() {
        let model = |node| ModelProto {
            graph: Some(graph(node)),
            ..ModelProto::default()
        };
        assert_eq!(operator(&model(node("Relu"))), None);
        assert_eq!(operator(&model(node("LSTM"))), Some("LSTM"));
        let mut branches = node("If");
        branches.attribute.push(AttributeProto {
            g: Some(graph(node("GRU"))),
            ..AttributeProto::default()
        });
        assert_eq!(operator(&model(branches)), Some("GRU"));
    }
}
