//! The minimum amount of work per part when work is split among threads. It is smaller in tests of this
//! crate, so that small tensors are also split.

use onnx_tensor::split;

/// Minimum number of elements to read, compute and write per part.
pub(crate) const ELEMENTS: u64 = if cfg!(test) { 1 << 8 } else { split::ELEMENTS };

/// Minimum number of bytes to copy per part.
pub(crate) const BYTES: u64 = 4 * ELEMENTS;
