//! What is bound to a row of the operators' table.

use onnx_operators::Operator;
use onnx_tensor::{node::Node, operator::Compute, prelude::*};

use super::conditions::Condition;

/// What is known of the inputs of a node that are given: the value of each that is a constant.
pub(crate) type Constants<'c> = &'c [Option<Arc<Tensor>>];

/// Makes the kernel of a node.
#[derive(Clone, Copy)]
pub(crate) enum Build {
    /// From its attributes.
    Node(fn(&Node) -> Result<Box<dyn Compute>>),
    /// From its attributes and from constants among its inputs.
    Constants(fn(&Node, Constants<'_>) -> Result<Box<dyn Compute>>),
}

/// An operator that is computed here.
pub(crate) struct Rule {
    pub(crate) row: &'static Operator,
    /// `None`: the steps run it.
    pub(crate) build: Option<Build>,
    pub(crate) condition: Option<Condition>,
}
