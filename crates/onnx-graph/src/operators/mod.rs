//! The schemas of ONNX's operators by version: input and output counts, attributes and their types.

mod attribute_types;
mod versions;

pub(crate) use attribute_types::check_types;
pub use versions::{ArgumentCounts, misfit, own_opset, set_own_opset};
