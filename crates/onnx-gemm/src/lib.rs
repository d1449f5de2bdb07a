//! Matrix products for neural networks on the CPU, independent of operators, tensors and files.
//!
//! All matrices are slices in row-major order. The microkernels are vectorized at run time (AVX2, AVX-512,
//! NEON, or scalar code) by the crate `pulp`, without `unsafe`. Three modules use `unsafe`, for what `pulp`
//! lacks: AVX-512 VNNI intrinsics, after run-time detection, and prefetching.
//!
//! | product | for |
//! |---|---|
//! | [`PackedMatrix`] | FP32; the second factor is packed once and shared by many products (weights) |
//! | [`gemm`], [`gemm_nt`] | FP32, neither factor is constant; `gemm_nt` transposes the second |
//! | [`gemv`], [`indirect_gemv`] | FP32, one row |
//! | [`dot_products`] | FP32, few rows; neither factor is packed, the second is transposed |
//! | [`IndirectGemm`], [`BlockedGemm`] | FP32, rows of the second factor at any offsets of one slice: unpacked `gemm` and transposed convolution, through `BlockedGemm` |
//! | [`LineGemm`], [`LineFilter`] | FP32, the same for the pixels of lines, written in place: dense and depthwise convolution without im2col |
//! | [`PlaneFilter`] | FP32, depthwise convolution of 3x3, 5x5 or 7x7 with stride 1 |
//! | [`TapGemm`], [`ChannelFilter`] | FP32, dense and depthwise convolution of channels-last (NHWC) images, without im2col |
//! | [`WindowGemm`] | FP32, dense convolution of a line of an image with few channels, which come first, into a channels-last one |
//! | [`add_gemm`] | FP64 and integers; adds the product to a matrix |
//! | [`PackedIntegers`], [`integer_gemm`] | 8-bit integers minus zero points, exact; uses VNNI where supported |
//! | [`IntegerFilters`] | 8-bit convolution without im2col, exact; uses VNNI where supported |
//! | [`BlockQuantized`] | weights of 2, 4 or 8 bits with a scale for each block |
//!
//! ```
//! use onnx_gemm::{Order, PackedMatrix, Unpaced};
//!
//! let weights = PackedMatrix::new(&[1.0, 2.0, 3.0, 4.0], [2, 2], Order::RowMajor);
//! let mut c = [0.0; 4];
//! weights.multiply(&[1.0, 0.0, 1.0, 1.0], &mut c, &mut Unpaced)?;
//! assert_eq!(c, [1.0, 2.0, 4.0, 6.0]);
//! # Ok::<(), std::convert::Infallible>(())
//! ```
//!
//! Long products call a [`Pace`] between blocks; its error cancels the product. [`Unpaced`] never cancels.
//!
//! Sizes are checked: every function panics if the length of a slice does not match the given sizes. Buffers
//! for packed factors are at most as large as the factors, padded to whole blocks.
//!
//! FP32 products with a packed second factor take 0.8 to 1.2 times as long as with the fastest of
//! `rten-gemm`, `gemm` and `matrixmultiply`, depending on the size (one thread, Zen 4);
//! docs/measured/operators.md has the table.

mod block_of_column;
mod channel_filter;
mod dots;
mod gemm;
mod gemv;
mod generic;
mod indirect;
mod int8;
mod line_filter;
mod line_gemm;
mod line_panel;
mod microkernel;
mod nbits;
mod pace;
mod pack;
mod pack_groups;
mod packed;
mod panel_product;
mod plane_filter;
mod prefetch;
mod shapes;
mod subnormals;
mod tap_gemm;
mod transpose;
mod window_gemm;

pub use channel_filter::{ChannelFilter, FilterSizes};
pub use dots::dot_products;
pub use gemm::{gemm, gemm_nt};
pub use gemv::{gemv, indirect_gemv};
pub use generic::{Number, add_gemm};
pub use indirect::{BlockedGemm, IndirectGemm};
pub use int8::{IntegerFilters, PackedIntegers, Quad, SumBuffer, SumTile, Windows, integer_gemm};
pub use line_filter::{LineFilter, SLACK};
pub use line_gemm::LineGemm;
pub use nbits::BlockQuantized;
pub use pace::{Pace, Unpaced};
pub use pack::{copy_line, pack_columns, pack_rows, packed_len, unpack_rows};
pub use pack_groups::Order;
pub use packed::PackedMatrix;
pub use plane_filter::{PlaneBuffer, PlaneFilter};
pub use subnormals::clear_subnormals;
pub use tap_gemm::{OUTSIDE, TapGemm};
pub use transpose::transpose;
pub use window_gemm::WindowGemm;
