//! Tensors as plain values: a dtype, a shape, and row-major little-endian bytes.
//!
//! This crate is the common currency of everything that moves tensors here: files, models and network clients
//! hand each other [`Tensor`]s, whose elements live in one shared [`bytes::Bytes`]. Cloning a tensor or taking
//! rows of it costs a reference count, never a copy.
//!
//! | type | what it is |
//! |---|---|
//! | [`DType`] | one of 13 fixed-width element types, with the names that NumPy, the Open Inference Protocol, Triton and safetensors use for it ([`Naming`]) |
//! | [`Shape`] | dimensions whose product is known to fit `u64` |
//! | [`TensorSpec`] | dtype and shape whose byte length is known to fit `u64` |
//! | [`Tensor`] | a spec and exactly that many bytes, shared |
//! | [`TensorView`] | the same, borrowed; typed access lives here |
//! | [`SparseCoo`] | coordinates and values, every coordinate known to lie inside the shape |
//!
//! Constructors prove what the type promises, so nothing needs to be checked twice:
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
//! let tensor = Tensor::from_vec(Shape::new(&[2, 3])?, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let last_row = tensor.rows(1..2)?; // shares the bytes
//! assert_eq!(last_row.view().as_slice::<f32>().unwrap(), [4.0, 5.0, 6.0]);
//! # Ok::<(), SpecError>(())
//! ```
//!
//! The crate does no I/O, has no `unsafe` code and no serialisation framework; its dependencies are `bytes`,
//! `bytemuck`, `half` and `smallvec`.

mod display;
mod dtype;
mod element;
mod error;
mod quoted;
mod shape;
mod sparse;
mod spec;
mod tensor;
mod view;

pub use bytes::Bytes;
pub use display::TensorDisplay;
pub use dtype::{DType, DTypeKind, Naming, UnknownDType};
pub use element::Element;
pub use error::{CastError, SparseError};
pub use half::{bf16, f16};
pub use quoted::Quoted;
pub use shape::{Shape, SpecError};
pub use sparse::SparseCoo;
pub use spec::TensorSpec;
pub use tensor::Tensor;
pub use view::TensorView;
