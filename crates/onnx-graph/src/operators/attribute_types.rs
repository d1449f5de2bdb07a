//! Checks the types of operator attributes. A runtime would ignore an attribute of the wrong type.

use onnx_operators::{AttributeType, attribute_type};
use tensor_core::QuotedName;

use crate::{
    Error,
    proto::{AttributeProto, GraphProto, NodeProto, canonical_domain},
    structure,
};

/// Checks that the attributes of all nodes, including those of subgraphs, have the types that their operators
/// define.
///
/// `is_known(domain, operator, attribute)` returns whether the runtime reads the attribute. An unknown
/// attribute passes this check; the runtime refuses it by name.
pub(crate) fn check_types(graph: &GraphProto, is_known: fn(&str, &str, &str) -> bool) -> Result<(), Error> {
    for node in &graph.node {
        let domain = canonical_domain(&node.domain);
        for attribute in &node.attribute {
            let expected = attribute_type(&node.op_type, &attribute.name);
            if let Some(expected) = expected.filter(|&expected| expected as i32 != attribute.r#type)
                && is_known(domain, &node.op_type, &attribute.name)
            {
                return Err(mismatch(node, attribute, expected));
            }
            attribute
                .g
                .iter()
                .try_for_each(|graph| check_types(graph, is_known))?;
        }
    }
    Ok(())
}

fn mismatch(node: &NodeProto, attribute: &AttributeProto, expected: AttributeType) -> Error {
    let reason = format!(
        "the type of attribute {} is {}, expected {}",
        QuotedName(&attribute.name),
        attribute.r#type().as_str_name(),
        expected.name()
    );
    Error::invalid(reason).within(structure::label(node))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn nothing_is_said_of_operators_that_are_not_there() {
        let with_text = |op_type: &str| GraphProto {
            node: vec![NodeProto {
                op_type: op_type.to_owned(),
                attribute: vec![AttributeProto {
                    name: "bias".to_owned(),
                    r#type: AttributeType::String as i32,
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }],
            ..GraphProto::default()
        };
        let is_known = |_: &str, op_type: &str, _: &str| op_type != "ImageScaler";
        assert!(check_types(&with_text("LRN"), is_known).is_err());
        assert!(check_types(&with_text("ImageScaler"), is_known).is_ok());
    }

    /// The list attributes of `DynamicQuantizeLSTM` have the same types as those of `LSTM`.
    #[test]
    fn lists_of_a_quantized_layer_are_lists() {
        let graph = |op_type: &str, r#type: AttributeType| GraphProto {
            node: vec![NodeProto {
                op_type: op_type.to_owned(),
                domain: "com.microsoft".to_owned(),
                attribute: vec![AttributeProto {
                    name: "activation_alpha".to_owned(),
                    r#type: r#type as i32,
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }],
            ..GraphProto::default()
        };
        assert!(
            check_types(&graph("DynamicQuantizeLSTM", AttributeType::Floats), |_, _, _| {
                true
            })
            .is_ok()
        );
        assert!(
            check_types(&graph("DynamicQuantizeLSTM", AttributeType::Float), |_, _, _| {
                true
            })
            .is_err()
        );
    }

    #[test]
    fn nothing_is_said_of_attributes_that_the_operator_has_not() {
        let graph = GraphProto {
            node: vec![NodeProto {
                op_type: "Relu".to_owned(),
                attribute: vec![AttributeProto {
                    name: "alpha".to_owned(),
                    r#type: AttributeType::Int as i32,
                    ..AttributeProto::default()
                }],
                ..NodeProto::default()
            }],
            ..GraphProto::default()
        };
        // An attribute that the runtime does not read passes this check.
        assert!(check_types(&graph, |_, _, attribute| attribute != "alpha").is_ok());
    }
}
