//! The schemas of ONNX's operators by version: input and output counts, attributes and their types.

mod attribute_types;
mod schema;
mod schemas;
mod versions;

pub use attribute_types::attribute_type;
pub(crate) use attribute_types::check_types;
pub use schema::{ANY, LATEST, Schema};
pub use versions::{Given, misfit, own_opset, schema_of, set_own_opset};

/// The domain of the operators that [`expanded`](crate::expand::expanded) writes: operators of the runtime,
/// or ONNX operators in their newest version. Files may not use it.
pub const NEWEST: &str = "tensorferry";
