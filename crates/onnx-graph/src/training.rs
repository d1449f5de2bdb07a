//! Refuses models exported for training: their `BatchNormalization` normalizes by the statistics of each
//! batch, and ONNX Runtime writes new averages into the model's constants with each run.

use crate::{
    Error, operators,
    proto::{FunctionProto, ModelProto, NodeProto, OperatorSetIdProto, canonical_domain},
    structure,
};

/// Refuses a model with a `BatchNormalization` in training mode, in any of its graphs and functions.
///
/// # Errors
/// Returns an error that names the node, and says how to export the model for inference.
pub fn refuse(model: &ModelProto) -> Result<(), Error> {
    let imported = onnx_opset(&model.opset_import);
    let graph = model.graph.iter().map(|graph| (&graph.node, imported));
    let version = |function: &FunctionProto| onnx_opset(&function.opset_import).or(imported);
    let functions = model
        .functions
        .iter()
        .map(|function| (&function.node, version(function)));
    for (nodes, opset) in graph.chain(functions) {
        refuse_nodes(nodes, opset)?;
    }
    Ok(())
}

fn onnx_opset(imports: &[OperatorSetIdProto]) -> Option<i64> {
    let mut imports = imports.iter();
    let import = imports.find(|import| canonical_domain(&import.domain).is_empty());
    import.map(|import| import.version)
}

fn refuse_nodes(nodes: &[NodeProto], opset: Option<i64>) -> Result<(), Error> {
    for node in nodes {
        let is_normalization =
            canonical_domain(&node.domain).is_empty() && node.op_type == "BatchNormalization";
        let version = operators::own_opset(node).or(opset);
        if is_normalization && version.is_some_and(|opset| is_training(node, opset)) {
            let reason = "is in training mode: it normalizes with the statistics of each request, and changes its own with each run; \
                          export the model for inference (in PyTorch after `model.eval()`)";
            return Err(Error::invalid(reason).within(structure::label(node)));
        }
        for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            refuse_nodes(&graph.node, opset)?;
        }
    }
    Ok(())
}

/// Returns whether a `BatchNormalization` is in training mode: by its attribute since operator set 14, and by
/// its extra outputs in earlier sets.
fn is_training(node: &NodeProto, opset: i64) -> bool {
    let int = |name: &str| {
        let attribute = node.attribute.iter().find(|attribute| attribute.name == name);
        attribute.map_or(0, |attribute| attribute.i)
    };
    let has_statistics = node.output.iter().skip(1).any(|name| !name.is_empty());
    match opset {
        ..7 => int("is_test") == 0 || has_statistics,
        7..14 => has_statistics,
        _ => int("training_mode") != 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::proto::{AttributeProto, GraphProto, attribute_proto::AttributeType};

    fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
        NodeProto {
            op_type: op_type.to_owned(),
            name: output.to_owned(),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        }
    }

    fn normalization(outputs: &[&str], attribute: Option<&str>) -> NodeProto {
        NodeProto {
            output: outputs.iter().map(|&name| name.to_owned()).collect(),
            attribute: attribute.iter().map(|&name| set(name)).collect(),
            ..node("BatchNormalization", &["x", "s", "b", "m", "v"], "y")
        }
    }

    fn set(name: &str) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            r#type: AttributeType::Int as i32,
            i: 1,
            ..AttributeProto::default()
        }
    }

    fn model(node: NodeProto, opset: i64) -> ModelProto {
        ModelProto {
            graph: Some(GraphProto {
                node: vec![node],
                ..GraphProto::default()
            }),
            opset_import: vec![OperatorSetIdProto {
                version: opset,
                ..OperatorSetIdProto::default()
            }],
            ..ModelProto::default()
        }
    }

    #[test]
    fn what_trains_depends_on_the_operator_set() {
        let five = ["y", "m1", "v1", "m2", "v2"];
        for (opset, outputs, attribute, is_refused) in [
            (6, &five[..1], None, true),
            (6, &five[..1], Some("is_test"), false),
            (9, &five[..1], None, false),
            (9, &five, None, true),
            (13, &five, None, true),
            (13, &["y", ""], None, false),
            (13, &five[..1], Some("training_mode"), false),
            (14, &five[..3], Some("training_mode"), true),
            (15, &five[..1], None, false),
        ] {
            let found = refuse(&model(normalization(outputs, attribute), opset)).is_err();
            assert_eq!(found, is_refused, "{opset} {outputs:?} {attribute:?}");
        }
    }

    #[test]
    fn inner_graphs_and_functions_are_looked_through() {
        let body = GraphProto {
            node: vec![normalization(&["y", "m1"], None)],
            ..GraphProto::default()
        };
        let with_body = NodeProto {
            attribute: vec![AttributeProto {
                g: Some(body),
                ..AttributeProto::default()
            }],
            ..node("If", &["x"], "y")
        };
        let message = refuse(&model(with_body, 13)).unwrap_err().to_string();
        assert!(
            message.starts_with("node 'y' (BatchNormalization): is in training mode"),
            "{message}"
        );
        // A function may import another version of the operator set than the model.
        let mut of_function = model(node("f", &["x"], "y"), 13);
        of_function.functions.push(FunctionProto {
            node: vec![normalization(&["y"], Some("training_mode"))],
            opset_import: vec![OperatorSetIdProto {
                version: 15,
                ..OperatorSetIdProto::default()
            }],
            ..FunctionProto::default()
        });
        assert!(refuse(&of_function).is_err());
        of_function.functions[0].opset_import[0].version = 13;
        assert!(refuse(&of_function).is_ok());
    }
}
