//! Rewrites models into fewer operators: inlines functions, replaces contrib operators with ONNX's, widens
//! 4-bit constants to bytes and FP16 to FP32, and hoists loop invariants.

mod contrib;
mod decoded_size;
mod four_bits;
mod functions;
mod graph;
mod half;
mod invariants;
mod last_bits;
mod replacement;

use std::borrow::Cow;

use onnx_operators::NEWEST;

pub use self::functions::write_out_functions;
use self::graph::any_graph;
use crate::{
    Error, operators,
    proto::{GraphProto, ModelProto},
};

/// Returns the model with its functions inlined; `None` if it has none.
///
/// # Errors
/// Returns an error for functions that exceed the limits.
pub fn without_functions(model: &ModelProto) -> Result<Option<ModelProto>, Error> {
    if !functions::are_used(model) {
        return Ok(None);
    }
    let mut model = model.clone();
    write_out_functions(&mut model)?;
    Ok(Some(model))
}

/// The properties of the runtime that affect how models are rewritten.
#[derive(Clone, Copy, Debug)]
pub struct Runtime {
    /// Returns whether the runtime reads an attribute, by domain, operator and attribute name. The types of
    /// attributes that the runtime does not read are not checked.
    pub has_attribute: fn(&str, &str, &str) -> bool,
}

/// Rewrites the model into ONNX's operators and those of the domain [`NEWEST`]; returns `None` if nothing
/// changed.
///
/// # Errors
/// Returns an error for a domain reserved for internal operators, functions that exceed the limits,
/// attributes of wrong types that a replacement reads, and unsupported variants of contrib operators.
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
