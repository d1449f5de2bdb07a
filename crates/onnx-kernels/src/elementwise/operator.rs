//! Which activation an operator is, for operators that compute it on their way.

use std::any::Any;

use onnx_tensor::operator::Compute;

use super::{activation::Activation, clip::Clip, functions::Function};

/// The function of single floats that an operator is, if it is one and nothing decides in a run which.
pub(crate) fn activation_of(operator: &dyn Compute) -> Option<Activation> {
    let operator: &dyn Any = operator;
    let function = operator.downcast_ref::<Function>().and_then(Function::activation);
    function.or_else(|| operator.downcast_ref::<Clip>().and_then(Clip::activation))
}
