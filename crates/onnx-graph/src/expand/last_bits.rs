//! Replaces activations in quantized models with ONNX Runtime's approximations, so that rounding is the same.

use onnx_operators::NEWEST;

use super::graph::any_graph;
use crate::proto::{GraphProto, ModelProto, NodeProto, canonical_domain};

fn rounds(node: &NodeProto) -> bool {
    matches!(
        node.op_type.as_str(),
        "QuantizeLinear"
            | "DynamicQuantizeLinear"
            | "DynamicQuantizeMatMul"
            | "DynamicQuantizeLSTM"
            | "QLinearConv"
            | "QLinearMatMul"
    )
}

/// Returns the operator that approximates the node's function as ONNX Runtime does; `None` for other
/// functions.
fn coarse(node: &NodeProto) -> Option<&'static str> {
    let is_onnx = canonical_domain(&node.domain).is_empty() || node.domain == NEWEST;
    match node.op_type.as_str() {
        "Sigmoid" if is_onnx => Some("CoarseSigmoid"),
        "Tanh" if is_onnx => Some("CoarseTanh"),
        _ => None,
    }
}

pub(super) fn matter(model: &ModelProto) -> bool {
    let rounds = |graph: &GraphProto| graph.node.iter().any(rounds);
    model
        .graph
        .as_ref()
        .is_some_and(|graph| any_graph(graph, &rounds))
}

/// Replaces the activations in all graphs of a model.
pub(super) fn keep(model: &mut ModelProto) {
    if matter(model)
        && let Some(graph) = &mut model.graph
    {
        keep_in(graph);
    }
}

fn keep_in(graph: &mut GraphProto) {
    for node in &mut graph.node {
        if let Some(name) = coarse(node) {
            name.clone_into(&mut node.op_type);
            NEWEST.clone_into(&mut node.domain);
            // Removes an attribute that only operator sets before 6 have, and that does not affect values.
            node.attribute.clear();
        }
        let inner = node.attribute.iter_mut();
        inner
            .filter_map(|attribute| attribute.g.as_mut())
            .for_each(keep_in);
    }
}
