//! Builds small models for tests, and their nodes, attributes and constants.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onnx_graph::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
    tensor_proto::DataType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};
use onnx_operators::AttributeType;

/// Builds an FP32 model with input `x` and output `y`. Negative dimensions are free.
pub(crate) fn model(
    nodes: Vec<NodeProto>,
    input: &[i64],
    output: &[i64],
    constants: Vec<TensorProto>,
) -> ModelProto {
    let graph = GraphProto {
        name: "graph".to_owned(),
        node: nodes,
        input: vec![port("x", input)],
        output: vec![port("y", output)],
        initializer: constants,
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: 8,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 18,
        }],
        ..ModelProto::default()
    }
}

pub(crate) fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        op_type: op_type.to_owned(),
        name: output.to_owned(),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

/// Returns a node with more attributes.
pub(crate) fn with(mut node: NodeProto, attributes: impl IntoIterator<Item = AttributeProto>) -> NodeProto {
    node.attribute.extend(attributes);
    node
}

/// Builds an attribute of an integer.
pub(crate) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        i,
        r#type: AttributeType::Int as i32,
        ..AttributeProto::default()
    }
}

/// Builds an attribute of a list of integers.
pub(crate) fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        ints: ints.to_vec(),
        r#type: AttributeType::Ints as i32,
        ..AttributeProto::default()
    }
}

/// Builds the attribute `body` of an operator that runs a graph.
pub(crate) fn body(graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: "body".to_owned(),
        g: Some(graph),
        r#type: AttributeType::Graph as i32,
        ..AttributeProto::default()
    }
}

/// Builds an INT64 constant of one dimension.
pub(crate) fn integers(name: &str, numbers: &[i64]) -> TensorProto {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    TensorProto {
        name: name.to_owned(),
        dims: vec![numbers.len() as i64],
        data_type: DataType::Int64 as i32,
        raw_data: bytes.collect::<Vec<u8>>().into(),
        ..TensorProto::default()
    }
}

/// Builds an INT64 constant without dimensions.
pub(crate) fn integer(name: &str, number: i64) -> TensorProto {
    TensorProto {
        dims: vec![],
        ..integers(name, &[number])
    }
}

/// Builds an FP32 constant of small numbers around zero.
pub(crate) fn constant(name: &str, dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    let bytes = (0..count).flat_map(|index| ((index % 7 - 3) as f32 / 8.0).to_le_bytes());
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: DataType::Float as i32,
        raw_data: bytes.collect::<Vec<u8>>().into(),
        ..TensorProto::default()
    }
}

fn port(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dims = dims.iter().map(|&dim| Dimension {
        value: (dim >= 0).then_some(dimension::Value::DimValue(dim)),
    });
    let tensor = type_proto::Tensor {
        elem_type: DataType::Float as i32,
        shape: Some(TensorShapeProto { dim: dims.collect() }),
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::TensorType(tensor)),
        }),
    }
}
