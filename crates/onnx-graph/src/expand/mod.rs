//! Models in fewer operators: functions that a file defines are written out, ONNX Runtime's own operators become ONNX's, constants of 4
//! bits become bytes, FP16 becomes FP32, and loops carry only what they change.

mod contrib;
mod four_bits;
mod functions;
mod graph;
mod half;
mod held;
mod invariants;
mod last_bits;
mod replacement;

use std::borrow::Cow;

pub use self::functions::write_out_functions;
use self::graph::any_graph;
use crate::{
    Error,
    operators::{self, NEWEST},
    proto::{GraphProto, ModelProto},
};

/// The model with the functions that it defines written out, `None` if it uses none.
///
/// # Errors
/// Functions without bounds.
pub fn without_functions(model: &ModelProto) -> Result<Option<ModelProto>, Error> {
    if !functions::are_used(model) {
        return Ok(None);
    }
    let mut model = model.clone();
    write_out_functions(&mut model)?;
    Ok(Some(model))
}

/// What decides how a model is rewritten: the runtime that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// Whether it reads an attribute, by the operator's domain and name and its own name. The types of others are not checked.
    pub has_attribute: fn(&str, &str, &str) -> bool,
}

/// The model in ONNX's own operators, and those of the domain [`NEWEST`], `None` if nothing had to be changed.
///
/// # Errors
/// A domain that is ours, functions without bounds, attributes of other types than their operators define, which what replaces a node
/// reads, and forms of ONNX Runtime's own operators that are not computed.
pub fn expanded(model: &ModelProto, runtime: &Runtime) -> Result<Option<ModelProto>, Error> {
    let is_ours = |graph: &GraphProto| graph.node.iter().any(|node| node.domain == NEWEST);
    if model
        .graph
        .as_ref()
        .is_some_and(|graph| any_graph(graph, &is_ours))
    {
        return Err(Error::invalid(format!(
            "operators of the domain '{NEWEST}' are not supported"
        )));
    }
    let mut model = Cow::Borrowed(model);
    if functions::are_used(&model) {
        write_out_functions(model.to_mut())?;
    }
    model
        .graph
        .iter()
        .try_for_each(|graph| operators::check_types(graph, runtime.has_attribute))?;
    let needs = contrib::are_used(&model)
        || four_bits::are_used(&model)
        || half::is_used(&model)
        || last_bits::matter(&model)
        || invariants::are_there(&model);
    if needs {
        let model = model.to_mut();
        four_bits::widen(model);
        contrib::replace(model)?;
        half::widen(model);
        last_bits::keep(model);
        invariants::take_out(model);
    }
    Ok(match model {
        Cow::Borrowed(_) => None,
        Cow::Owned(changed) => Some(changed),
    })
}
