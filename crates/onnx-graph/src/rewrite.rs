//! Rewrites a file's graph independently of the runtime.

use std::collections::HashSet;

use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    attribute_proto::AttributeType,
    canonical_domain,
    tensor_proto::DataType,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};

/// Removes a final `ZipMap`, which converts a matrix into one map per row; responses cannot contain maps. The
/// output keeps its name and becomes that matrix.
///
/// The exporters of scikit-learn, `CatBoost` and XGBoost append a `ZipMap` to classifiers by default.
pub fn cut_zip_maps(model: &mut ModelProto) {
    let Some(graph) = &mut model.graph else {
        return;
    };
    let mut is_cut = false;
    for index in 0..graph.node.len() {
        let node = &graph.node[index];
        if node.domain != "ai.onnx.ml" || node.op_type != "ZipMap" {
            continue;
        }
        let ([_], [name]) = (&*node.input, &*node.output) else {
            continue;
        };
        let is_used = graph.node.iter().any(|other| other.input.contains(name));
        let Some(output) = graph.output.iter_mut().find(|output| output.name == *name) else {
            continue;
        };
        if is_used {
            continue;
        }
        let classes = node
            .attribute
            .iter()
            .map(|attribute| attribute.ints.len().max(attribute.strings.len()));
        output.r#type = Some(matrix(classes.max().unwrap_or(0)));
        is_cut = true;
        graph.node[index] = NodeProto {
            op_type: "Identity".to_owned(),
            domain: String::new(),
            attribute: vec![],
            ..node.clone()
        };
    }
    // A file with only operators of `ai.onnx.ml` may lack an import of ONNX's own set, which the new node
    // needs.
    let has_onnx = |import: &OperatorSetIdProto| canonical_domain(&import.domain).is_empty();
    if is_cut && !model.opset_import.iter().any(has_onnx) {
        model.opset_import.push(OperatorSetIdProto {
            version: 13,
            ..Default::default()
        });
    }
}

/// Removes outputs whose name is repeated, since they denote the same value.
pub fn drop_repeated_outputs(model: &mut ModelProto) {
    if let Some(graph) = &mut model.graph {
        let mut names = HashSet::new();
        graph.output.retain(|output| names.insert(output.name.clone()));
    }
}

/// Names the unnamed outputs of loops and branches. ONNX Runtime 1.32 crashes on a `Loop` with unnamed
/// outputs, and refuses branches with unnamed outputs.
pub fn name_outputs(model: &mut ModelProto) {
    let mut count = 0;
    for function in &mut model.functions {
        name_outputs_of(&mut function.node, &mut count);
    }
    if let Some(graph) = &mut model.graph {
        name_outputs_of(&mut graph.node, &mut count);
    }
}

fn name_outputs_of(nodes: &mut [NodeProto], count: &mut usize) {
    for node in nodes {
        let is_control = matches!(node.op_type.as_str(), "If" | "Loop" | "Scan");
        if is_control && canonical_domain(&node.domain).is_empty() {
            for output in node.output.iter_mut().filter(|output| output.is_empty()) {
                *output = format!("~unused~{count}");
                *count += 1;
            }
        }
        let graphs = node
            .attribute
            .iter_mut()
            .flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs));
        for graph in graphs {
            name_outputs_of(&mut graph.node, count);
        }
    }
}

/// Returns the type of an FP32 matrix with `columns` columns; 0 means any number.
fn matrix(columns: usize) -> TypeProto {
    let columns = (columns > 0).then_some(dimension::Value::DimValue(columns as i64));
    let dim = [None, columns].map(|value| Dimension { value });
    TypeProto {
        value: Some(type_proto::Value::TensorType(type_proto::Tensor {
            elem_type: DataType::Float as i32,
            shape: Some(TensorShapeProto { dim: dim.to_vec() }),
        })),
    }
}

/// Removes declared dimensions of outputs and intermediate values, which are often wrong and which ONNX
/// Runtime trusts. Returns `None` if the file contains unknown fields, which would be lost.
pub fn without_claims(model: &ModelProto) -> Option<ModelProto> {
    let mut model = model.clone();
    forget(model.graph.as_mut()?).then_some(model)
}

fn forget(graph: &mut GraphProto) -> bool {
    for output in &mut graph.output {
        if let Some(type_proto::Value::TensorType(tensor)) =
            output.r#type.as_mut().and_then(|r#type| r#type.value.as_mut())
        {
            tensor.shape = None;
        }
    }
    let mut attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    attributes.all(|attribute: &mut AttributeProto| {
        let is_read = !matches!(
            attribute.r#type(),
            AttributeType::TypeProto | AttributeType::TypeProtos
        );
        is_read && attribute.g.iter_mut().chain(&mut attribute.graphs).all(forget)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::proto::ValueInfoProto;

    fn node(op_type: &str, input: &str, output: &str) -> NodeProto {
        NodeProto {
            input: vec![input.to_owned()],
            output: vec![output.to_owned()],
            op_type: op_type.to_owned(),
            domain: "ai.onnx.ml".to_owned(),
            attribute: vec![AttributeProto {
                name: "classlabels_int64s".to_owned(),
                ints: vec![0, 1, 2],
                ..AttributeProto::default()
            }],
            ..NodeProto::default()
        }
    }

    fn model(node: Vec<NodeProto>) -> ModelProto {
        let output = ValueInfoProto {
            name: "y".to_owned(),
            ..ValueInfoProto::default()
        };
        ModelProto {
            graph: Some(GraphProto {
                node,
                output: vec![output],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    #[test]
    fn a_zip_map_at_the_end_becomes_the_matrix_before_it() {
        let mut cut = model(vec![node("ZipMap", "p", "y")]);
        cut_zip_maps(&mut cut);
        let graph = cut.graph.unwrap();
        assert_eq!(
            (graph.node[0].op_type.as_str(), graph.node[0].domain.as_str()),
            ("Identity", "")
        );
        assert_eq!(graph.output[0].r#type, Some(matrix(3)));

        let mut kept = model(vec![node("ZipMap", "p", "maps"), node("Other", "maps", "y")]);
        let before = kept.graph.clone();
        cut_zip_maps(&mut kept);
        assert_eq!(kept.graph, before);
    }

    #[test]
    fn an_output_that_is_named_twice_is_one() {
        let mut twice = model(vec![]);
        let graph = twice.graph.as_mut().unwrap();
        let other = ValueInfoProto {
            name: "z".to_owned(),
            ..ValueInfoProto::default()
        };
        let again = graph.output[0].clone();
        graph.output.extend([other, again]);
        drop_repeated_outputs(&mut twice);
        let names: Vec<&str> = twice
            .graph
            .as_ref()
            .unwrap()
            .output
            .iter()
            .map(|output| &*output.name)
            .collect();
        assert_eq!(names, ["y", "z"]);
    }

    #[test]
    fn outputs_of_loops_have_names() {
        let mut outer = node("Loop", "c", "");
        outer.domain = String::new();
        outer.output.push("y".to_owned());
        let mut inner = node("Other", "c", "");
        inner.attribute[0].g = Some(GraphProto {
            node: vec![outer],
            ..GraphProto::default()
        });
        let mut named = model(vec![inner]);
        name_outputs(&mut named);
        let inner = &named.graph.unwrap().node[0];
        assert_eq!(inner.output, [""]);
        let outer = &inner.attribute[0].g.as_ref().unwrap().node[0];
        assert_eq!(outer.output, ["~unused~0", "y"]);
    }

    #[test]
    fn claims_of_outputs_are_forgotten_in_inner_graphs_too() {
        let mut claiming = model(vec![]);
        claiming.graph.as_mut().unwrap().output[0].r#type = Some(matrix(3));
        let inner = claiming.graph.clone();
        let mut outer = node("If", "c", "y");
        outer.attribute[0].g = inner;
        claiming.graph.as_mut().unwrap().node.push(outer);
        let text = format!("{:?}", without_claims(&claiming).unwrap());
        assert!(!text.contains("DimValue"), "{text}");
    }
}
