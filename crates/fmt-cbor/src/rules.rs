//! The rules that errors name.

/// Bytes are well-formed CBOR.
pub const WELL_FORMED: &str = "cbor";
/// An item has the expected type.
pub const TYPES: &str = "cbor-type";
/// Nesting and ranks are within the limits.
pub const LIMITS: &str = "cbor-limit";
/// The number of elements of a shape does not overflow.
pub const SHAPES: &str = "cbor-shape";
