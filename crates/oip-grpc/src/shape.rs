//! Converts shapes to the wire.

use tensor_core::Shape;

/// Returns dimensions as the wire has them. Those of tensors in memory fit `i64`.
pub(crate) fn wire_dims(shape: &Shape) -> Vec<i64> {
    shape
        .dims()
        .iter()
        .map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX))
        .collect()
}
