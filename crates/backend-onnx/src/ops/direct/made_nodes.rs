//! Nodes for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onnx_kernels::prelude::*;

use crate::{
    lowered::{OnnxAttribute, OnnxNode},
    ops::Packs,
};

/// A node with attributes of lists and of integers, and so many outputs.
pub(super) fn node(
    op_type: &str,
    lists: &[(&str, Vec<i64>)],
    integers: &[(&str, i64)],
    outputs: usize,
) -> OnnxNode {
    let lists = lists.iter().map(|(name, ints)| OnnxAttribute {
        name: (*name).to_owned(),
        ints: ints.clone(),
        ..OnnxAttribute::default()
    });
    let integers = integers.iter().map(|&(name, i)| OnnxAttribute {
        name: name.to_owned(),
        i,
        ..OnnxAttribute::default()
    });
    OnnxNode {
        output: (0..outputs).map(|at| at.to_string()).collect(),
        op_type: op_type.to_owned(),
        attribute: lists.chain(integers).collect(),
        ..OnnxNode::default()
    }
}

/// The same with an attribute that is text.
pub(super) fn with_text(mut node: OnnxNode, name: &str, text: &str) -> OnnxNode {
    node.attribute.push(OnnxAttribute {
        name: name.to_owned(),
        s: text.as_bytes().to_vec(),
        ..OnnxAttribute::default()
    });
    node
}

/// An operator that has taken over what it keeps of constants.
pub(super) fn with<C: crate::ops::Compute>(mut operator: C, constants: &[Option<Arc<Tensor>>]) -> C {
    operator.take_over(constants, &mut Packs::beside(0)).unwrap();
    operator
}

/// A tensor of rank 3.
pub(super) fn cube<T: Element, const ROWS: usize, const COLUMNS: usize>(
    matrices: &[[[T; COLUMNS]; ROWS]],
) -> Tensor {
    let elements = matrices.as_flattened().as_flattened();
    Tensor::from_shape(&[matrices.len(), ROWS, COLUMNS], elements).unwrap()
}
