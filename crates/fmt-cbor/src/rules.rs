//! What errors name as the broken rule.

/// The rule that bytes are well-formed CBOR.
pub const WELL_FORMED: &str = "cbor";
/// The rule that an item has the type that is expected.
pub const TYPES: &str = "cbor-type";
/// The rule that nesting and ranks are within the limits.
pub const LIMITS: &str = "cbor-limit";
/// The rule that the elements of a shape can be counted.
pub const SHAPES: &str = "cbor-shape";
