//! The lowered graph, which [`lower`](crate::lower) writes and [`prepare`](crate::steps) reads.
//!
//! The fields have the names of ONNX's protobuf messages. Constants are [`Tensor`]s, already checked.

use std::sync::Arc;

use onnx_tensor::{node::Node, prelude::*};

/// A graph with its nodes in topological order.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxGraph {
    pub(crate) initializer: Vec<Constant>,
    pub(crate) input: Vec<Port>,
    pub(crate) node: Vec<OnnxNode>,
    pub(crate) output: Vec<Port>,
}

/// A constant of the file.
#[derive(Clone, Debug)]
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) value: Arc<Tensor>,
}

/// An input or output of a graph, with its declared type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) declared: Option<DeclaredType>,
}

/// A declared tensor type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredType {
    /// ONNX's element type code.
    pub(crate) elem_type: i32,
    /// The declared dimensions, with 0 for a dimension without a size; `None` if the rank is unknown.
    pub(crate) shape: Option<Vec<usize>>,
}

/// A node, with its subgraphs by attribute name.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxNode {
    pub(crate) node: Node,
    pub(crate) graphs: Vec<(String, OnnxGraph)>,
}
