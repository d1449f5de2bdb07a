//! Tensors as plain values: a dtype, a shape, and row-major little-endian bytes.
//!
//! Files, models and network clients of this project exchange [`Tensor`]s, whose elements are in one shared
//! [`bytes::Bytes`]. Cloning a tensor or taking rows of it increments a reference count and copies no
//! elements.
//!
//! | type | description |
//! |---|---|
//! | [`DType`] | one of 13 fixed-width element types, with the names that NumPy, the Open Inference Protocol, Triton and safetensors use for it ([`Naming`]) |
//! | [`Shape`] | dimensions whose product is known to fit in `u64` |
//! | [`TensorSpec`] | dtype and shape whose byte length is known to fit in `u64` |
//! | [`Tensor`] | a spec and exactly that many bytes, shared |
//! | [`TensorView`] | like `Tensor`, but borrowed; has typed access |
//! | [`SpareBuffers`] | buffers of dropped tensors, for reuse |
//! | [`SparseCoo`] | coordinates and values, every coordinate known to lie inside the shape |
//!
//! Constructors check what the type guarantees, so nothing needs to be checked twice:
//!
//! ```
//! use tensor_core::{DType, Shape, SpecError, Tensor, TensorSpec};
//!
//! let spec = TensorSpec::new(DType::F32, Shape::new(&[2, 3])?)?;
//! assert_eq!(spec.byte_len(), 24);
//!
//! // 20 bytes cannot be a 2 x 3 tensor of f32.
//! let error = Tensor::new(spec, vec![0; 20]).unwrap_err();
//! assert_eq!(error.to_string(), "f32[2, 3] takes 24 bytes, found 20");
//!
//! let tensor = Tensor::from_vec([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let last_row = tensor.rows(1..2)?; // shares the bytes
//! assert_eq!(last_row.view().as_slice::<f32>().unwrap(), [4.0, 5.0, 6.0]);
//! # Ok::<(), SpecError>(())
//! ```
//!
//! Elements are Rust's own number types, and [`struct@f16`] and [`bf16`] of the crate `half`, re-exported
//! under the same names:
//!
//! ```
//! use tensor_core::{Tensor, bf16};
//!
//! let weights = Tensor::from_slice([2], &[bf16::from_f32(0.5), bf16::ONE])?;
//! let halves: &[bf16] = weights.view().as_slice().unwrap(); // in place
//! assert_eq!(halves[0].to_f32(), 0.5);
//! # Ok::<(), tensor_core::SpecError>(())
//! ```
//!
//! With the feature `ndarray`, tensors convert to arrays of that crate in place, and arrays convert to
//! tensors:
//!
#![cfg_attr(feature = "ndarray", doc = "```")]
#![cfg_attr(not(feature = "ndarray"), doc = "```ignore")]
//! use ndarray::{ArrayViewD, array};
//! use tensor_core::Tensor;
//!
//! let tensor = Tensor::try_from(array![[1.0f32, 2.0], [3.0, 4.0]])?; // takes the elements over
//! let rows: ArrayViewD<'_, f32> = (&tensor).try_into()?; // in place
//! assert_eq!(rows.sum_axis(ndarray::Axis(0)).as_slice(), Some(&[4.0, 6.0][..]));
//! let transposed = Tensor::try_from(&rows.t())?; // a copy, row by row
//! assert_eq!(transposed.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate does no I/O, has no `unsafe` code and no serialisation framework; its dependencies are `bytes`,
//! `bytemuck`, `half` and `smallvec`, and `ndarray` if its feature is enabled.

mod display;
mod dtype;
mod element;
mod error;
mod file_kind;
#[cfg(feature = "ndarray")]
mod ndarray;
mod quoted_name;
mod shape;
mod spare_buffers;
mod sparse;
mod spec;
mod tensor;
mod view;

pub use bytes::Bytes;
pub use display::TensorDisplay;
pub use dtype::{DType, DTypeKind, Naming, UnknownDType};
pub use element::Element;
pub use error::{CastError, SparseError};
pub use file_kind::FileKind;
pub use half::{bf16, f16};
pub use quoted_name::{QuotedName, is_invisible};
pub use shape::{IntoShape, Shape, SpecError};
pub use spare_buffers::SpareBuffers;
pub use sparse::SparseCoo;
pub use spec::TensorSpec;
pub use tensor::Tensor;
pub use view::TensorView;
