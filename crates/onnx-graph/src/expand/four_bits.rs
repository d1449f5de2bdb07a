//! Widens 4-bit constants to bytes where this does not change results, that is, where the constants are only
//! dequantized, cast or moved.
//!
//! Values that are quantized to 4 bits at run time stay as they are; the runtime refuses their type.

use std::collections::HashSet;

use onnx_operators::NEWEST;

use super::graph::any_graph;
use crate::proto::{
    GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, attribute_proto::AttributeType,
    tensor_proto::DataType, type_proto,
};

/// Returns whether the result of `node` has 4-bit elements if its input at index `input` does. Returns `None`
/// if the node does not accept bytes at that input.
fn takes(node: &NodeProto, input: usize) -> Option<bool> {
    match (node.op_type.as_str(), input) {
        ("DequantizeLinear", 0 | 2) | ("GatherBlockQuantized", 0 | 3) | ("Cast" | "Shape" | "Size", 0) => {
            Some(false)
        }
        (
            "Flatten" | "Gather" | "GatherElements" | "GatherND" | "Identity" | "Reshape" | "Slice" | "Split"
            | "Squeeze" | "Transpose" | "Unsqueeze",
            0,
        )
        | ("Concat", _) => Some(true),
        _ => None,
    }
}

pub(super) fn are_used(model: &ModelProto) -> bool {
    let has = |graph: &GraphProto| {
        graph.initializer.iter().any(is_narrow)
            || graph
                .node
                .iter()
                .flat_map(|node| &node.attribute)
                .filter_map(|attribute| attribute.t.as_ref())
                .any(is_narrow)
    };
    model.graph.as_ref().is_some_and(|graph| any_graph(graph, &has))
}

fn is_narrow(tensor: &TensorProto) -> bool {
    is_code(tensor.data_type)
}

fn is_code(code: i32) -> bool {
    code == DataType::Int4 as i32 || code == DataType::Uint4 as i32
}

/// Widens the 4-bit constants of all graphs, or of none.
pub(super) fn widen(model: &mut ModelProto) {
    if !are_used(model) {
        return;
    }
    let Some(graph) = &mut model.graph else {
        return;
    };
    let mut names = HashSet::new();
    if are_only_read(graph, &mut names, true) {
        widen_graph(graph, &names);
    }
}

/// Returns whether all nodes that use 4-bit values of `graph` accept bytes instead. Adds the names of these
/// values to `names`.
fn are_only_read(graph: &GraphProto, names: &mut HashSet<String>, is_outermost: bool) -> bool {
    let narrow = graph.initializer.iter().filter(|tensor| is_narrow(tensor));
    names.extend(narrow.map(|tensor| tensor.name.clone()));
    // Nodes may be in any order; each round finds those that depend on known values.
    let mut is_growing = true;
    let mut rounds = 0;
    while is_growing {
        is_growing = false;
        rounds += 1;
        if rounds > MAX_ROUNDS {
            return false;
        }
        for node in &graph.node {
            let holds = node
                .attribute
                .iter()
                .any(|attribute| attribute.t.as_ref().is_some_and(is_narrow));
            let moves = node
                .input
                .iter()
                .enumerate()
                .any(|(index, name)| names.contains(name) && takes(node, index) == Some(true));
            if (holds && node.op_type == "Constant") || moves {
                for output in &node.output {
                    is_growing |= names.insert(output.clone());
                }
            } else if holds {
                return false;
            }
        }
    }
    let is_taken = |node: &NodeProto| {
        let mut inputs = node.input.iter().enumerate();
        let is_cast_to_it = node.attribute.iter().any(|attribute| {
            attribute.r#type() == AttributeType::Int
                && matches!(attribute.name.as_str(), "to" | "output_dtype")
                && i32::try_from(attribute.i).is_ok_and(is_code)
        });
        !is_cast_to_it && inputs.all(|(index, name)| !names.contains(name) || takes(node, index).is_some())
    };
    let is_result = |output: &ValueInfoProto| names.contains(&output.name);
    if !graph.node.iter().all(is_taken) || (!is_outermost && graph.output.iter().any(is_result)) {
        return false;
    }
    let mut inner = graph
        .node
        .iter()
        .flat_map(|node| &node.attribute)
        .filter_map(|attribute| attribute.g.as_ref());
    inner.all(|graph| are_only_read(graph, names, false))
}

/// Maximum number of rounds. A chain of nodes in reverse order needs one round per node.
const MAX_ROUNDS: usize = 64;

fn widen_graph(graph: &mut GraphProto, names: &HashSet<String>) {
    graph.initializer.iter_mut().for_each(widen_tensor);
    for value in graph.input.iter_mut().filter(|value| names.contains(&value.name)) {
        if let Some(type_proto::Value::TensorType(tensor)) =
            value.r#type.as_mut().and_then(|r#type| r#type.value.as_mut())
        {
            tensor.elem_type = wide(tensor.elem_type);
        }
    }
    for node in &mut graph.node {
        // `GatherBlockQuantized` reads two elements per byte itself.
        if node.op_type == "GatherBlockQuantized"
            && node.input.first().is_some_and(|name| names.contains(name))
        {
            NEWEST.clone_into(&mut node.domain);
        }
        for attribute in &mut node.attribute {
            if let Some(tensor) = &mut attribute.t {
                widen_tensor(tensor);
            }
            if let Some(graph) = &mut attribute.g {
                widen_graph(graph, names);
            }
        }
    }
}

fn wide(code: i32) -> i32 {
    match DataType::try_from(code) {
        Ok(DataType::Int4) => DataType::Int8 as i32,
        Ok(DataType::Uint4) => DataType::Uint8 as i32,
        _ => code,
    }
}

/// Widens a tensor. Leaves a damaged tensor unchanged: the damage is reported when the tensor is read.
fn widen_tensor(tensor: &mut TensorProto) {
    if !is_narrow(tensor) {
        return;
    }
    let count = tensor.dims.iter().try_fold(1usize, |count, &dim| {
        count.checked_mul(usize::try_from(dim).ok()?)
    });
    // Each byte contains two elements, the first one in the low nibble. In `int32_data`, each entry holds one
    // such byte.
    let packed: Option<Vec<u8>> = match tensor.int32_data.is_empty() {
        true => Some(tensor.raw_data.to_vec()),
        false => tensor
            .int32_data
            .iter()
            .map(|&pair| u8::try_from(pair & 0xff).ok())
            .collect(),
    };
    let (Some(count), Some(packed)) = (count, packed) else {
        return;
    };
    let is_plain = (tensor.int32_data.is_empty() || tensor.raw_data.is_empty())
        && tensor.float_data.is_empty()
        && tensor.external_data.is_empty();
    if packed.len() != count.div_ceil(2) || !is_plain {
        return;
    }
    let is_signed = tensor.data_type == DataType::Int4 as i32;
    let number = |half: u8| match is_signed {
        // Shifts the nibble left and right again, which extends its sign.
        true => (half << 4).cast_signed() >> 4,
        false => half.cast_signed(),
    };
    let mut numbers: Vec<u8> = Vec::with_capacity(packed.len() * 2);
    for byte in packed {
        numbers.extend([byte & 15, byte >> 4].map(|half| number(half).cast_unsigned()));
    }
    numbers.truncate(count);
    tensor.data_type = wide(tensor.data_type);
    tensor.int32_data.clear();
    tensor.raw_data = numbers.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_of_a_byte_are_numbers() {
        let mut tensor = TensorProto {
            data_type: DataType::Int4 as i32,
            dims: vec![3],
            raw_data: vec![0x8f, 0x07].into(),
            ..TensorProto::default()
        };
        let mut unsigned = TensorProto {
            data_type: DataType::Uint4 as i32,
            int32_data: vec![0x8f, 0x07],
            raw_data: bytes::Bytes::new(),
            ..tensor.clone()
        };
        let mut damaged = TensorProto {
            dims: vec![5],
            ..tensor.clone()
        };
        [&mut tensor, &mut unsigned, &mut damaged]
            .into_iter()
            .for_each(widen_tensor);
        assert_eq!(&tensor.raw_data[..], [255, 248, 7]);
        assert_eq!(tensor.data_type, DataType::Int8 as i32);
        assert_eq!(&unsigned.raw_data[..], [15, 8, 7]);
        assert_eq!(unsigned.data_type, DataType::Uint8 as i32);
        assert_eq!(damaged.data_type, DataType::Int4 as i32);
    }
}
