//! Converts shapes to the wire.

use tensor_core::Shape;

/// Returns the dimensions as `i64` for the wire. Dimensions of tensors in memory always fit.
pub(crate) fn wire_dims(shape: &Shape) -> Vec<i64> {
    shape
        .dims()
        .iter()
        .map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX))
        .collect()
}
