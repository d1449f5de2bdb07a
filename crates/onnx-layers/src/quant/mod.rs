//! Operators for quantization and dequantization.

pub(crate) mod packed_rows;
pub(crate) mod quantize;
pub(crate) mod quantized_pair;

pub use packed_rows::packed_rows;
pub use quantize::{dequantize, quantize, quantize_dynamically, requantize};
pub use quantized_pair::quantized_pair;
