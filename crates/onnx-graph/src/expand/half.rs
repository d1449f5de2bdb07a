//! Computes FP16 models in FP32 throughout, as ONNX Runtime does; constants keep their FP16 rounding, and
//! only an explicit `Cast` to FP16 rounds again.

use std::collections::{HashMap, HashSet};

use tensor_core::f16;

use super::graph::{any_graph, int, node};
use crate::proto::{
    GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, attribute_proto::AttributeType,
    tensor_proto::DataType, type_proto,
};

const FLOAT: i32 = DataType::Float as i32;
const HALF: i32 = DataType::Float16 as i32;

/// Names of the attributes that contain a type code.
const TYPE_ATTRIBUTES: &[&str] = &["dtype", "output_datatype", "output_dtype", "stash_type"];

pub(super) fn is_used(model: &ModelProto) -> bool {
    let is_half = |graph: &GraphProto| {
        let mut values = graph.input.iter().chain(&graph.output);
        values.any(|value| element(value.r#type.as_ref()) == Some(HALF))
            || graph.initializer.iter().any(|tensor| tensor.data_type == HALF)
            || graph.node.iter().any(has_half)
    };
    model
        .graph
        .as_ref()
        .is_some_and(|graph| any_graph(graph, &is_half))
}

fn has_half(node: &NodeProto) -> bool {
    node.attribute.iter().any(|attribute| {
        let names_half = attribute.name == "to" || TYPE_ATTRIBUTES.contains(&attribute.name.as_str());
        (names_half && attribute.r#type() == AttributeType::Int && attribute.i == i64::from(HALF))
            || attribute
                .t
                .as_ref()
                .is_some_and(|tensor| tensor.data_type == HALF)
    })
}

fn element(r#type: Option<&TypeProto>) -> Option<i32> {
    match r#type?.value.as_ref()? {
        type_proto::Value::TensorType(tensor) => Some(tensor.elem_type),
        _ => None,
    }
}

/// Widens the model to FP32. Its inputs and outputs keep their types.
pub(super) fn widen(model: &mut ModelProto) {
    if !is_used(model) {
        return;
    }
    let Some(graph) = &mut model.graph else {
        return;
    };
    let mut renamed = HashMap::new();
    let mut before = Vec::new();
    let constants = names(&graph.initializer);
    for input in &graph.input {
        let is_constant = constants.contains(&*input.name);
        if element(input.r#type.as_ref()) == Some(HALF) && !is_constant {
            let wide = format!("{}~wide", input.name);
            before.push(node(
                "Cast",
                &input.name,
                vec![input.name.clone()],
                wide.clone(),
                vec![int("to", FLOAT.into())],
            ));
            renamed.insert(input.name.clone(), wide);
        }
    }
    let mut after = Vec::new();
    for output in &graph.output {
        if element(output.r#type.as_ref()) != Some(HALF)
            || after.iter().any(|node: &NodeProto| node.output[0] == output.name)
        {
            continue;
        }
        let wide = match renamed.get(&output.name) {
            // This output of the model is also one of its inputs, and so keeps its type.
            Some(_) => continue,
            None => format!("{}~wide", output.name),
        };
        after.push(node(
            "Cast",
            &output.name,
            vec![wide.clone()],
            output.name.clone(),
            vec![int("to", HALF.into())],
        ));
        renamed.insert(output.name.clone(), wide);
    }
    widen_graph(graph, &renamed, true);
    let nodes = std::mem::take(&mut graph.node);
    graph.node = before.into_iter().chain(nodes).chain(after).collect();
}

fn names(tensors: &[TensorProto]) -> HashSet<&str> {
    tensors.iter().map(|tensor| &*tensor.name).collect()
}

fn widen_graph(graph: &mut GraphProto, renamed: &HashMap<String, String>, is_outermost: bool) {
    let rename = |name: &mut String| {
        if let Some(wide) = renamed.get(name) {
            name.clone_from(wide);
        }
    };
    for tensor in &mut graph.initializer {
        rename(&mut tensor.name);
        widen_tensor(tensor);
    }
    if !is_outermost {
        for value in graph.input.iter_mut().chain(&mut graph.output) {
            rename(&mut value.name);
            if let Some(type_proto::Value::TensorType(tensor)) =
                value.r#type.as_mut().and_then(|r#type| r#type.value.as_mut())
                && tensor.elem_type == HALF
            {
                tensor.elem_type = FLOAT;
            }
        }
    } else {
        // An initializer with an input's name is that input's default.
        let constants = names(&graph.initializer);
        for input in &mut graph.input {
            if constants.contains(&*input.name)
                && let Some(type_proto::Value::TensorType(tensor)) =
                    input.r#type.as_mut().and_then(|r#type| r#type.value.as_mut())
                && tensor.elem_type == HALF
            {
                tensor.elem_type = FLOAT;
            }
        }
    }
    let nodes = std::mem::take(&mut graph.node);
    for mut inner in nodes {
        inner.input.iter_mut().chain(&mut inner.output).for_each(rename);
        let rounds = widen_attributes(&mut inner, renamed);
        if rounds && inner.output.len() == 1 {
            let rounded = format!("{}~rounded", inner.output[0]);
            let output = std::mem::replace(&mut inner.output[0], rounded.clone());
            let name = inner.name.clone();
            graph.node.push(inner);
            graph.node.push(node(
                "Cast",
                &name,
                vec![rounded],
                output,
                vec![int("to", FLOAT.into())],
            ));
        } else {
            graph.node.push(inner);
        }
    }
}

/// Replaces FP16 with FP32 in the attributes of a node, except in a cast to FP16. Returns whether the node is
/// a cast to FP16, whose result is rounded.
fn widen_attributes(node: &mut NodeProto, renamed: &HashMap<String, String>) -> bool {
    let mut rounds = false;
    for attribute in &mut node.attribute {
        let is_half = attribute.r#type() == AttributeType::Int && attribute.i == i64::from(HALF);
        if is_half && attribute.name == "to" && node.op_type == "Cast" {
            rounds = true;
        } else if is_half && TYPE_ATTRIBUTES.contains(&attribute.name.as_str()) {
            attribute.i = FLOAT.into();
        }
        if let Some(tensor) = &mut attribute.t {
            widen_tensor(tensor);
        }
        if let Some(graph) = &mut attribute.g {
            widen_graph(graph, renamed, false);
        }
    }
    rounds
}

/// Converts an FP16 tensor to FP32. Leaves a damaged tensor unchanged: the damage is reported when the tensor
/// is read.
fn widen_tensor(tensor: &mut TensorProto) {
    if tensor.data_type != HALF {
        return;
    }
    let count = tensor.dims.iter().try_fold(1usize, |count, &dim| {
        count.checked_mul(usize::try_from(dim).ok()?)
    });
    let bits: Vec<u16> = match tensor.int32_data.is_empty() {
        true => tensor
            .raw_data
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect(),
        false => tensor
            .int32_data
            .iter()
            .filter_map(|&bits| u16::try_from(bits).ok())
            .collect(),
    };
    let is_whole = Some(bits.len()) == count
        && (tensor.int32_data.is_empty()
            || (tensor.raw_data.is_empty() && tensor.int32_data.len() == bits.len()))
        && tensor.raw_data.len().is_multiple_of(2);
    let is_plain = tensor.float_data.is_empty() && tensor.external_data.is_empty();
    if !is_whole || !is_plain {
        return;
    }
    let wide: Vec<u8> = bits
        .iter()
        .flat_map(|&bits| f16::from_bits(bits).to_f32().to_le_bytes())
        .collect();
    tensor.int32_data.clear();
    tensor.raw_data = wide.into();
    tensor.data_type = FLOAT;
}
