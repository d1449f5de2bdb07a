//! ONNX's format as generated from `proto/onnx.proto`.

#[allow(
    clippy::all,
    clippy::doc_markdown,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
mod generated {
    include!("generated/onnx.rs");
}

pub(crate) use generated::*;

/// The error for a file that is not in this format.
pub(crate) const DAMAGED: &str = "the file is no ONNX model, or it is damaged or cut off";

/// ONNX's own operators have two names for their domain.
pub(crate) fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}
