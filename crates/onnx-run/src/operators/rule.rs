//! Binds a kernel and a condition to a row of the operators' table.

use onnx_operators::Operator;
use onnx_tensor::{node::Node, operator::Compute, prelude::*};

use super::conditions::Condition;

/// The present inputs of a node: the value of each constant, `None` for others.
pub(crate) type Constants<'c> = &'c [Option<Arc<Tensor>>];

/// Builds the kernel of a node.
#[derive(Clone, Copy)]
pub(crate) enum Build {
    /// Uses its attributes.
    Node(fn(&Node) -> Result<Box<dyn Compute>>),
    /// Uses its attributes and constant inputs.
    Constants(fn(&Node, Constants<'_>) -> Result<Box<dyn Compute>>),
}

/// A supported operator.
pub(crate) struct Rule {
    pub(crate) row: &'static Operator,
    /// `None` if the runtime's steps interpret the operator.
    pub(crate) build: Option<Build>,
    pub(crate) condition: Option<Condition>,
}
