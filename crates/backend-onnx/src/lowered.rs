//! The graph between the file's and tract's: what [`lower`](crate::lower) writes and [`building`](crate::building) reads.
//!
//! Fields have the names of ONNX's messages. Constants are tensors of tract already, which all plans of a model share.

use std::sync::Arc;

use onnx_kernels::prelude::*;

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

/// A node. Optional inputs that are not given have no name.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxNode {
    pub(crate) input: Vec<String>,
    pub(crate) output: Vec<String>,
    pub(crate) name: String,
    /// With its domain before it, but for ONNX's own.
    pub(crate) op_type: String,
    pub(crate) domain: String,
    /// The version of its operator set, 0 if the file names none.
    pub(crate) opset: i64,
    pub(crate) attribute: Vec<OnnxAttribute>,
}

/// An attribute: the field of its type holds the value, others hold nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxAttribute {
    pub(crate) name: String,
    pub(crate) f: f32,
    pub(crate) i: i64,
    pub(crate) s: Vec<u8>,
    pub(crate) t: Option<Arc<Tensor>>,
    pub(crate) g: Option<OnnxGraph>,
    pub(crate) floats: Vec<f32>,
    pub(crate) ints: Vec<i64>,
    pub(crate) strings: Vec<Vec<u8>>,
}
