//! Names of the rules that errors cite; formats rename them.

/// The rule that bytes are well-formed CBOR.
pub const WELL_FORMED: &str = "cbor";
/// The rule that an item has the expected type.
pub const TYPES: &str = "cbor-type";
/// The rule that nesting and ranks are within the limits.
pub const LIMITS: &str = "cbor-limit";
/// The rule that the number of elements of a shape does not overflow.
pub const SHAPES: &str = "cbor-shape";
