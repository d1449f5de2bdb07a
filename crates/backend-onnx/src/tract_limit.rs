//! What tract cannot do and ONNX Runtime can: how a refusal says so.

use std::{error::Error, fmt};

use oip_service::LoadContext;
use oip_types::{DataType, ServiceError};
use onnx_graph::{Dim, Port, Signature, proto::ModelProto, structure};
use tensor_core::Quoted;

use crate::{configured_dims, dtype, needed_sizes, other_runtime};

/// The cause of an error for which not the file is to blame but tract, or what is made of it here.
#[derive(Debug, Default)]
pub(crate) enum TractLimit {
    /// An operator, an attribute or a datatype that is not supported, whatever the sizes are.
    Unsupported,
    /// The same, and ONNX Runtime does not support it either.
    Everybodys,
    /// Nothing is known of the cause.
    #[default]
    Unexplained,
    /// With other sizes it may work.
    Because(Box<dyn Error + Send + Sync>),
}

impl TractLimit {
    pub(crate) fn because(cause: Box<dyn Error + Send + Sync>) -> Self {
        Self::Because(cause)
    }
}

impl fmt::Display for TractLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tract is not used for this")
    }
}

impl Error for TractLimit {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Because(cause) => Some(cause.as_ref()),
            Self::Unsupported | Self::Everybodys | Self::Unexplained => None,
        }
    }
}

/// What stands in a refusal's reason when ONNX Runtime can run the model.
pub(crate) const OTHER_RUNTIME: &str = "ONNX Runtime can run this: ";

/// Adds the ways out to a refusal, if tract's limits are the only reason: sizes that can be fixed, ONNX Runtime if it has all
/// operators of the model, for which `how` says what to do, and another export.
pub(crate) fn with_ways_out(
    error: ServiceError,
    model: &ModelProto,
    cx: &LoadContext,
    how: &str,
) -> ServiceError {
    let limit = error.source().and_then(<dyn Error>::downcast_ref::<TractLimit>);
    let Some(limit) = limit.filter(|_| structure::check(model).is_ok()) else {
        return error;
    };
    let sizes = match limit {
        TractLimit::Because(_) => free_sizes(model, cx),
        TractLimit::Unsupported | TractLimit::Everybodys | TractLimit::Unexplained => None,
    };
    let missing = match limit {
        TractLimit::Everybodys => Some(String::new()),
        _ => other_runtime::missing(model),
    };
    let mut message = error.message().to_owned();
    if let Some(sizes) = &sizes {
        message.push_str("; if requests always have the same sizes, ");
        message.push_str(sizes);
    }
    message.push_str("; ");
    match missing {
        None => {
            message.push_str(OTHER_RUNTIME);
            message.push_str(how);
            message.push_str("; or ");
        }
        Some(node) if message.starts_with(&node) => {
            message.push_str("ONNX Runtime does not have it either; ");
        }
        Some(node) => {
            message.push_str("ONNX Runtime does not have ");
            message.push_str(&node);
            message.push_str("; ");
        }
    }
    message.push_str(match (&sizes, uses_own(model)) {
        (_, true) => {
            "export the model without ONNX Runtime's own operators, before its optimizer or quantizer rewrote it"
        }
        (Some(_), false) => "export the model with fixed sizes",
        (None, false) => "export the model with other operators, or for an operator set from 11 to 25",
    });
    ServiceError::invalid(message).caused_by(error)
}

/// How to fix the free dimensions of a model in its configuration, if it has any that are not fixed there.
fn free_sizes(model: &ModelProto, cx: &LoadContext) -> Option<String> {
    let mut signature = Signature::of(model).ok()?;
    configured_dims::fix(&mut signature, cx).ok()?;
    needed_sizes::fix(&mut signature.inputs, model.graph.as_ref()?).ok()?;
    // With batches the first dimension is not written.
    let skipped = usize::from(cx.config.max_batch_size > 0);
    let has_free = |port: &&Port| {
        let mut dims = port.dims.iter().flatten().skip(skipped);
        dims.any(|dim| dim.fixed().is_none())
    };
    let free: Vec<&Port> = signature.inputs.iter().filter(has_free).collect();
    if free.is_empty() {
        return None;
    }
    let shown = free.iter().take(SHOWN_INPUTS);
    let inputs = shown.clone().map(|port| {
        let dims = port.dims.iter().flatten().map(|dim| match dim {
            Dim::Named(name) => Quoted(name).to_string(),
            other => other.to_string(),
        });
        let dims: Vec<String> = dims.collect();
        format!("{} [{}]", Quoted(&port.name), dims.join(", "))
    });
    let example = shown.map(|port| {
        let dims = port.dims.iter().flatten().enumerate().skip(skipped);
        let sizes: Vec<String> = dims
            .map(|(axis, dim)| {
                let guess = if axis == 0 { 1 } else { 64 };
                dim.fixed().unwrap_or(guess).to_string()
            })
            .collect();
        let kind = match dtype::of(port.element_type) {
            DataType::Bytes => "STRING",
            other => other.name(),
        };
        let (name, sizes) = (port.name.escape_default(), sizes.join(", "));
        format!("input {{ name: \"{name}\" data_type: TYPE_{kind} dims: [ {sizes} ] }}")
    });
    let (inputs, example): (Vec<String>, Vec<String>) = (inputs.collect(), example.collect());
    Some(format!(
        "fix the free dimensions of {}{} in config.pbtxt, as in: {}",
        inputs.join(", "),
        if free.len() > SHOWN_INPUTS {
            " and others"
        } else {
            ""
        },
        example.join(" ")
    ))
}

/// Inputs whose dimensions a refusal shows.
const SHOWN_INPUTS: usize = 3;

/// Whether a model has operators that only ONNX Runtime knows.
fn uses_own(model: &ModelProto) -> bool {
    let nodes = model.graph.iter().flat_map(|graph| &graph.node);
    nodes.into_iter().any(|node| node.domain == "com.microsoft")
}
