//! Matrix products for neural networks on the CPU. The crate knows neither operators nor tensors nor files.
//!
//! All matrices are slices in row-major order. The microkernels are vectorized at run time (AVX2, AVX-512,
//! NEON, or scalar code) by the crate `pulp`, without `unsafe`. One module has `unsafe`: it calls AVX-512
//! VNNI intrinsics, which `pulp` lacks, after run-time detection.
//!
//! | product | for |
//! |---|---|
//! | [`PackedMatrix`] | FP32, a second factor that is packed once and shared by many products (weights) |
//! | [`FirstFactor`] | a first factor for ranges of columns of the second, by several threads |
//! | [`gemm`], [`gemm_nt`] | FP32, both factors computed; the second one as it is, or transposed |
//! | [`gemv`], [`indirect_gemv`] | FP32, one row |
//! | [`IndirectGemm`], [`BlockedGemm`] | FP32, rows of the second factor at any offsets of one slice: convolution without im2col |
//! | [`add_gemm`] | FP64 and integers, added to sums |
//! | [`PackedIntegers`], [`integer_gemm`] | 8-bit integers less zero points, exact; by VNNI where the processor has it |
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
//! Long products call a [`Pace`] between blocks, whose error ends them; [`Unpaced`] never does.
//!
//! Sizes are checked: every function panics if a slice does not fit the sizes that it is given with. Buffers
//! for packed factors are at most as large as the factors, filled up to whole blocks.
//!
//! FP32 products with a packed second factor take between 0.8 and 1.2 times as long as those of the fastest
//! of `rten-gemm`, `gemm` and `matrixmultiply`, by size (one thread, Zen 4); the page docs/measured/operators.md of
//! the repository has the table.

mod gemm;
mod gemv;
mod generic;
mod indirect;
mod int8;
mod microkernel;
mod nbits;
mod pace;
mod pack;
mod packed;
mod shapes;
mod transpose;

pub use gemm::{gemm, gemm_nt};
pub use gemv::{gemv, indirect_gemv};
pub use generic::{Number, add_gemm};
pub use indirect::{BlockedGemm, IndirectGemm, SLACK, has_wide_vectors};
pub use int8::{PackedIntegers, integer_gemm};
pub use nbits::BlockQuantized;
pub use pace::{Pace, Unpaced};
pub use pack::{copy_line, pack_columns, pack_rows, packed_len, unpack_rows};
pub use packed::{FirstFactor, Order, PackedMatrix};
pub use transpose::transpose;
