//! What tract is given in other words: functions that a file defines are written out, ONNX Runtime's own operators become
//! ONNX's, and FP16 becomes FP32. ONNX Runtime itself gets the file as it is.

mod contrib;
mod functions;
mod half;

use oip_types::ServiceError;

use crate::{
    ops::NEWEST,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
        attribute_proto::AttributeType, tensor_proto::DataType,
    },
    signature::canonical_domain,
};

/// The model in ONNX's own operators, `None` if nothing had to be changed.
pub(crate) fn expanded(model: &ModelProto) -> Result<Option<ModelProto>, ServiceError> {
    let is_ours = |graph: &GraphProto| graph.node.iter().any(|node| node.domain == NEWEST);
    if model
        .graph
        .as_ref()
        .is_some_and(|graph| any_graph(graph, &is_ours))
    {
        return Err(ServiceError::invalid(format!(
            "operators of the domain '{NEWEST}' are not supported"
        )));
    }
    let needs = functions::are_used(model) || contrib::are_used(model) || half::is_used(model);
    if !needs {
        return Ok(None);
    }
    let mut model = model.clone();
    functions::write_out(&mut model)?;
    contrib::replace(&mut model);
    half::widen(&mut model);
    Ok(Some(model))
}

/// The version of ONNX's operators that the model uses; added if it imports none.
fn onnx_opset(model: &mut ModelProto) -> i64 {
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

/// Each graph, inner ones included.
fn any_graph(graph: &GraphProto, test: &impl Fn(&GraphProto) -> bool) -> bool {
    test(graph)
        || graph
            .node
            .iter()
            .flat_map(|node| &node.attribute)
            .filter_map(|attribute| attribute.g.as_ref())
            .any(|graph| any_graph(graph, test))
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i,
        ..AttributeProto::default()
    }
}

fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Ints as i32,
        ints: ints.to_vec(),
        ..AttributeProto::default()
    }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Float as i32,
        f,
        ..AttributeProto::default()
    }
}

fn floats(name: String, values: &[f32], dims: Vec<i64>) -> TensorProto {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto {
        name,
        dims,
        data_type: DataType::Float as i32,
        raw_data: bytes.into(),
        ..TensorProto::default()
    }
}

fn node(
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
