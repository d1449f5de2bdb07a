//! Maps an operator to its activation, so that a preceding operator can fuse it.

use std::any::Any;

use onnx_tensor::operator::Compute;

use super::{activation::Activation, clip::Clip, functions::Function, pairs::Pair};

/// Returns the activation that `operator` computes; `None` if the operator is not an activation, or its
/// parameters are not constants.
pub fn activation_of(operator: &dyn Compute) -> Option<Activation> {
    let operator: &dyn Any = operator;
    let function = operator.downcast_ref::<Function>().and_then(Function::activation);
    function.or_else(|| operator.downcast_ref::<Clip>().and_then(Clip::activation))
}

/// Returns whether `operator` adds tensors.
pub fn is_sum(operator: &dyn Compute) -> bool {
    let operator: &dyn Any = operator;
    operator.downcast_ref::<Pair>().is_some_and(Pair::is_sum)
}
