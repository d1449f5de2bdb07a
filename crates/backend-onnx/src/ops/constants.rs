//! `Constant` and `ConstantOfShape`.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    ops::{array, konst::Const},
};

use super::attributes::Attributes;
use crate::{building::BuildContext, faults::Refusal, lowered::OnnxNode};

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

/// `Constant`.
pub(crate) fn constant(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    Ok(Box::new(Const::new(value(node)?)?))
}

/// `ConstantOfShape`: one number everywhere, the zero of FP32 if none is given.
pub(crate) fn constant_of_shape(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let given = Attributes(node).get("value").and_then(|value| value.t.as_ref());
    let number = match given {
        None => tensor0(0.0f32),
        Some(given) if given.datum_type() == DatumType::String => {
            bail!(Refusal("has a text as its value, expected a number".to_owned()))
        }
        Some(given) if given.len() == 1 => given.nth(0)?,
        Some(given) => bail!(Refusal(format!("has {} values, expected one", given.len()))),
    };
    Ok(expand(array::ConstantOfShape::new(number.into_arc_tensor())))
}
