//! Visits graphs, and builds new nodes.

use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    attribute_proto::AttributeType, canonical_domain, tensor_proto::DataType,
};

/// Returns the version of ONNX's operator set that the model imports; adds an import if there is none.
pub(super) fn onnx_opset(model: &mut ModelProto) -> i64 {
    let found = model
        .opset_import
        .iter()
        .find(|import| canonical_domain(&import.domain).is_empty())
        .map(|import| import.version);
    found.unwrap_or_else(|| {
        const VERSION: i64 = 17;
        model.opset_import.push(OperatorSetIdProto {
            version: VERSION,
            ..OperatorSetIdProto::default()
        });
        VERSION
    })
}

/// Returns whether `test` holds for the graph or one of its subgraphs.
pub(super) fn any_graph(graph: &GraphProto, test: &impl Fn(&GraphProto) -> bool) -> bool {
    test(graph)
        || graph
            .node
            .iter()
            .flat_map(|node| &node.attribute)
            .filter_map(|attribute| attribute.g.as_ref())
            .any(|graph| any_graph(graph, test))
}

pub(super) fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i,
        ..AttributeProto::default()
    }
}

pub(super) fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Ints as i32,
        ints: ints.to_vec(),
        ..AttributeProto::default()
    }
}

pub(super) fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Float as i32,
        f,
        ..AttributeProto::default()
    }
}

pub(super) fn floats(name: String, values: &[f32], dims: Vec<i64>) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto {
        name,
        dims,
        data_type: DataType::Float as i32,
        raw_data: bytes.into(),
        ..TensorProto::default()
    }
}

pub(super) fn node(
    op_type: &str,
    name: &str,
    inputs: Vec<String>,
    output: String,
    attribute: Vec<AttributeProto>,
) -> NodeProto {
    NodeProto {
        op_type: op_type.to_owned(),
        name: name.to_owned(),
        input: inputs,
        output: vec![output],
        attribute,
        ..NodeProto::default()
    }
}
