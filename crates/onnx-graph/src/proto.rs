//! ONNX's protobuf messages, generated from `proto/onnx.proto`, which documents their fields.

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

pub use generated::*;

/// Error message for a file that does not parse as an ONNX model.
pub const DAMAGED: &str =
    "the file is not an ONNX model, or it is damaged or cut off: export, copy or download it again";

/// Normalizes a domain: ONNX's own operators have two domains, `ai.onnx` and the empty one.
#[must_use]
pub fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}
