//! The messages of ONNX's format, as generated from `proto/onnx.proto`. Its text says what they and their fields are.

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

/// The message for a file that is not in this format.
pub const DAMAGED: &str =
    "the file is no ONNX model, or it is damaged or cut off: export, copy or download it again";

/// The domain of an operator by one name: ONNX's own operators have two, `ai.onnx` and the empty one.
#[must_use]
pub fn canonical_domain(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}
