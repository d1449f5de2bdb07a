//! What tract is given in other words: functions that a file defines are written out, ONNX Runtime's own operators become
//! ONNX's, constants of 4 bits become bytes, FP16 becomes FP32,
//! and loops carry only what they change. ONNX Runtime itself gets the file as it is.

mod contrib;
mod four_bits;
mod functions;
mod graph;
mod half;
mod invariants;
mod last_bits;

use oip_types::ServiceError;

use self::graph::any_graph;
use crate::{
    ops::NEWEST,
    proto::{GraphProto, ModelProto},
};

/// The model in ONNX's own operators, `None` if nothing had to be changed.
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
    let needs = functions::are_used(model)
        || contrib::are_used(model)
        || four_bits::are_used(model)
        || half::is_used(model)
        || last_bits::matter(model)
        || invariants::are_there(model);
    if !needs {
        return Ok(None);
    }
    let mut model = model.clone();
    functions::write_out(&mut model)?;
    four_bits::widen(&mut model);
    contrib::replace(&mut model);
    half::widen(&mut model);
    last_bits::keep(&mut model);
    invariants::take_out(&mut model);
    Ok(Some(model))
}
