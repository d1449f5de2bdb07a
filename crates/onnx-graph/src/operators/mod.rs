//! What ONNX's operators are, by version: numbers of inputs and outputs, attributes and their types.

mod attribute_types;
mod schema;
mod schemas;
mod versions;

pub use attribute_types::attribute_type;
pub(crate) use attribute_types::check_types;
pub use schema::{ANY, LATEST, Schema};
pub use versions::{Given, misfit, own_opset, schema_of, set_own_opset};

/// The domain of operators that [`expanded`](crate::expand::expanded) writes: a runtime's own where it has one of that name, else ONNX's
/// in their newest version. Files may not use it.
pub const NEWEST: &str = "tensorferry";
