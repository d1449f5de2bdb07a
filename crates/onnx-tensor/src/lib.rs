//! Building blocks of ONNX operators on the CPU: tensors whose type and shape are known at run time,
//! dimensions that may be unknown until then, the operator trait, and limits on memory and time.
//!
//! | type | purpose |
//! |---|---|
//! | [`Tensor`] | a dense tensor in row-major order, owned, or borrowed from the bytes of a request |
//! | [`ElementType`] | the type of its elements, at run time |
//! | [`Element`] | the element type as a Rust type; [`with_number!`] converts from a value |
//! | [`Unit`] | elements of one width, for operators that only move them; see [`with_unit!`] |
//! | [`Dim`] | a dimension while a model is loaded: a number, or unknown |
//! | [`operator::Compute`] | an operator: infers its outputs' types and shapes, then computes them; see [`operator::Kernel`] |
//! | [`room::Room`], [`size`] | memory limits: of one value, and of the values of all runs |
//! | [`reuse`] | reuses the memory of a run's values |
//! | [`cancelling::Pace`], [`time_limit`] | checks within operators for cancellation and for the time limit |
//! | [`threads`], [`split`] | split an operator's work over several threads |
//!
//! ```
//! use onnx_tensor::prelude::*;
//!
//! /// The rows of a matrix of any element type, in reverse order.
//! fn reversed(matrix: &Tensor) -> Result<Tensor> {
//!     with_unit!(matrix.element_type(), U => reversed_units::<U>(matrix))
//! }
//!
//! fn reversed_units<U: Unit>(matrix: &Tensor) -> Result<Tensor> {
//!     let &[_, columns] = matrix.shape() else {
//!         bail!("expected a matrix, found rank {}", matrix.rank());
//!     };
//!     let rows = matrix.as_units::<U>()?.chunks(columns.max(1)).rev();
//!     Tensor::from_units(matrix.element_type(), matrix.shape(), rows.flatten().cloned().collect::<Vec<U>>())
//! }
//!
//! let found = reversed(&Tensor::matrix(&[[1.0f32, 2.0], [3.0, 4.0]]))?;
//! assert_eq!(found, Tensor::matrix(&[[3.0f32, 4.0], [1.0, 2.0]]));
//! # Ok::<(), onnx_tensor::prelude::Error>(())
//! ```
//!
//! Failures are [`anyhow::Error`]s, so that operators can add their own typed errors.
//!
//! The feature `testing` is for tests and exempt from semantic versioning: it may change in any release.

pub mod axis;
pub mod cancelling;
mod cast;
mod dim;
mod element;
mod element_type;
pub mod elements;
pub mod faults;
pub mod input_check;
pub mod integers;
mod moves;
pub mod node;
pub mod operator;
pub mod packs;
pub mod prelude;
pub mod reuse;
pub mod room;
pub mod shapes;
pub mod size;
pub mod split;
mod storage;
mod tensor;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod threads;
pub mod time_limit;

pub use dim::{Dim, Size, Symbol, ToDim, broadcast};
pub use element::{Element, Unit};
pub use element_type::ElementType;
pub use tensor::Tensor;

/// A list that is usually short, such as a shape: up to 4 entries need no allocation.
pub type ShortVec<T> = smallvec::SmallVec<[T; 4]>;

// Requests are little-endian, and elements have the host's byte order, so the host must be little-endian.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "only little-endian hosts are supported"
);
