//! The graph between the file's and what runs: what [`lower`](crate::lower) writes and [`prepare`](crate::steps) reads.
//!
//! Fields have the names of ONNX's messages. Constants are tensors already.

use std::sync::Arc;

use onnx_tensor::{node::Node, prelude::*};

/// A graph whose nodes stand in the order of their dependencies.
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

/// An input or output of a graph, with what the file declares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) declared: Option<Declared>,
}

/// A tensor as the file declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    /// ONNX's code of the element type.
    pub(crate) elem_type: i32,
    /// 0 stands for dimensions without a size.
    pub(crate) shape: Option<Vec<usize>>,
}

/// A node, with the graphs that it runs by the names of their attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxNode {
    pub(crate) node: Node,
    pub(crate) graphs: Vec<(String, OnnxGraph)>,
}
