//! What tract is given in other words: functions that a file defines are written out, ONNX Runtime's own operators become
//! ONNX's, constants of 4 bits become bytes, FP16 becomes FP32, convolutions
//! of 8 bits too where that is quicker, and loops carry only what they change. ONNX Runtime itself gets the file as it is.

mod contrib;
mod four_bits;
pub(crate) mod functions;
mod graph;
mod half;
mod held;
mod integers;
mod invariants;
mod last_bits;
mod replacement;

use std::borrow::Cow;

use oip_types::ServiceError;

use self::graph::any_graph;
use crate::{
    ops::{self, NEWEST},
    proto::{GraphProto, ModelProto},
};

/// The model with the functions that it defines written out, `None` if it uses none.
///
/// # Errors
/// Functions without bounds.
pub(crate) fn without_functions(model: &ModelProto) -> Result<Option<ModelProto>, ServiceError> {
    if !functions::are_used(model) {
        return Ok(None);
    }
    let mut model = model.clone();
    functions::write_out(&mut model)?;
    Ok(Some(model))
}

/// The model in ONNX's own operators, `None` if nothing had to be changed.
///
/// # Errors
/// A domain that is ours, functions without bounds, attributes of other types than their operators define, which what replaces a node
/// reads, and forms of ONNX Runtime's own operators that are not computed.
pub(crate) fn expanded(model: &ModelProto) -> Result<Option<ModelProto>, ServiceError> {
    let is_ours = |graph: &GraphProto| graph.node.iter().any(|node| node.domain == NEWEST);
    if model
        .graph
        .as_ref()
        .is_some_and(|graph| any_graph(graph, &is_ours))
    {
        return Err(ServiceError::invalid(format!(
            "operators of the domain '{NEWEST}' are not supported"
        )));
    }
    let mut model = Cow::Borrowed(model);
    if functions::are_used(&model) {
        functions::write_out(model.to_mut())?;
    }
    model.graph.iter().try_for_each(ops::check_types)?;
    let needs = contrib::are_used(&model)
        || four_bits::are_used(&model)
        || integers::are_used(&model)
        || half::is_used(&model)
        || last_bits::matter(&model)
        || invariants::are_there(&model);
    if needs {
        let model = model.to_mut();
        four_bits::widen(model);
        contrib::replace(model)?;
        half::widen(model);
        last_bits::keep(model);
        // The rules above look for these operators.
        integers::replace(model)?;
        invariants::take_out(model);
    }
    Ok(match model {
        Cow::Borrowed(_) => None,
        Cow::Owned(changed) => Some(changed),
    })
}
