//! Builds nodes and tensors.

use crate::prelude::*;

use crate::{
    node::{Attribute, Node},
    operator::Compute,
    packs::Packs,
};

/// Builds a node with list and integer attributes and `outputs` outputs.
pub fn node(op_type: &str, lists: &[(&str, Vec<i64>)], integers: &[(&str, i64)], outputs: usize) -> Node {
    let lists = lists.iter().map(|(name, ints)| Attribute {
        name: (*name).to_owned(),
        ints: ints.clone(),
        ..Attribute::default()
    });
    let integers = integers.iter().map(|&(name, i)| Attribute {
        name: name.to_owned(),
        i,
        ..Attribute::default()
    });
    Node {
        output: (0..outputs).map(|at| at.to_string()).collect(),
        op_type: op_type.to_owned(),
        attribute: lists.chain(integers).collect(),
        ..Node::default()
    }
}

/// Returns `node` with a string attribute added.
pub fn with_text(mut node: Node, name: &str, text: &str) -> Node {
    node.attribute.push(Attribute {
        name: name.to_owned(),
        s: text.as_bytes().to_vec(),
        ..Attribute::default()
    });
    node
}

/// Lets `operator` absorb the constant inputs `constants`, and returns it.
pub fn with<C: Compute>(mut operator: C, constants: &[Option<Arc<Tensor>>]) -> C {
    operator.take_over(constants, &mut Packs::beside(0)).unwrap();
    operator
}

/// Creates a tensor of rank 3.
pub fn cube<T: Element, const ROWS: usize, const COLUMNS: usize>(
    matrices: &[[[T; COLUMNS]; ROWS]],
) -> Tensor {
    let elements = matrices.as_flattened().as_flattened();
    Tensor::from_shape(&[matrices.len(), ROWS, COLUMNS], elements).unwrap()
}
