//! `Constant` and `ConstantOfShape`.

use std::sync::Arc;

use tract_hir::internal::*;

use super::attributes::Attributes;
use crate::lowered::OnnxNode;

/// The value of a `Constant`, in one of the attributes for it.
pub(crate) fn value(node: &OnnxNode) -> TractResult<Arc<Tensor>> {
    let attributes = Attributes(node);
    let Some(attribute) = node.attribute.first() else {
        bail!("a constant without a value");
    };
    let tensor = match attribute.name.as_str() {
        "value" => match &attribute.t {
            Some(tensor) => return Ok(tensor.clone()),
            None => bail!("a constant without a value"),
        },
        "value_float" => tensor0(attribute.f),
        "value_int" => tensor0(attribute.i),
        "value_floats" => tensor1(&attribute.floats),
        "value_ints" => tensor1(&attribute.ints),
        "value_string" => tensor0(String::from_utf8(attribute.s.clone())?),
        "value_strings" => tensor1(&attributes.texts("value_strings")?),
        other => bail!("a constant given by {other}"),
    };
    Ok(tensor.into_arc_tensor())
}
