//! The operators `Constant` and `ConstantOfShape`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::node::Attributes;
use onnx_tensor::node::Node;

/// Returns the value of a `Constant`, which may be in one of several attributes.
pub(crate) fn value(node: &Node) -> Result<Arc<Tensor>> {
    let attributes = Attributes(node);
    let Some(attribute) = node.attribute.first() else {
        bail!("a constant without a value");
    };
    let tensor = match attribute.name.as_str() {
        "value" => match &attribute.t {
            Some(tensor) => return Ok(tensor.clone()),
            None => bail!("a constant without a value"),
        },
        "value_float" => Tensor::scalar(attribute.f),
        "value_int" => Tensor::scalar(attribute.i),
        "value_floats" => Tensor::vector(&attribute.floats),
        "value_ints" => Tensor::vector(&attribute.ints),
        "value_string" => Tensor::scalar(String::from_utf8(attribute.s.clone())?),
        "value_strings" => Tensor::vector(&attributes.texts("value_strings")?),
        other => bail!("a constant given by {other}"),
    };
    Ok(tensor.into_arc())
}
