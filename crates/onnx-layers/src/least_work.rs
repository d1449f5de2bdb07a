//! Minimum amount of work for a part that another thread computes. The minimum is lower in tests of this
//! crate, so that they split small tensors as well.

use onnx_tensor::split;

/// Minimum number of multiplications per part: 25 us at 80 GFLOP/s per core.
pub(crate) const PRODUCTS: u64 = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// Minimum number of elements to read, compute and write per part.
pub(crate) const ELEMENTS: u64 = if cfg!(test) { 1 << 8 } else { split::ELEMENTS };
