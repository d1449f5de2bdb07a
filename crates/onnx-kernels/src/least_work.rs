//! The least work of a part that another thread computes. In tests of this crate, small tensors are split too.

use onnx_tensor::split;

/// Minimum number of elements to read, compute and write per part.
pub(crate) const ELEMENTS: u64 = if cfg!(test) { 1 << 8 } else { split::ELEMENTS };

/// Minimum number of bytes to copy per part.
pub(crate) const BYTES: u64 = 4 * ELEMENTS;
