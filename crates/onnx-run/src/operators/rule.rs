//! Binds a kernel and a condition to a row of the operators' table.

use onnx_operators::Operator;
use onnx_tensor::{node::Node, operator::Compute, prelude::*};

use super::conditions::Condition;

/// The present inputs of a node: the value of each constant, `None` for others.
pub(crate) type Constants<'c> = &'c [Option<Arc<Tensor>>];

/// Builds the kernel of a node.
#[derive(Clone, Copy)]
pub(crate) enum Build {
    /// Builds the kernel from the node's attributes.
    Node(fn(&Node) -> Result<Box<dyn Compute>>),
    /// Builds the kernel from the node's attributes and constant inputs.
    Constants(fn(&Node, Constants<'_>) -> Result<Box<dyn Compute>>),
}

/// A supported operator: its row, its kernel and its condition.
pub(crate) struct Rule {
    pub(crate) row: &'static Operator,
    /// Builds the kernel; `None` if the runtime interprets the operator as a step.
    pub(crate) build: Option<Build>,
    pub(crate) condition: Option<Condition>,
}
