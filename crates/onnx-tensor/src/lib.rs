//! What ONNX operators on the CPU are made of: tensors whose type and shape are known at run time, dimensions that may be unknown until
//! then, the trait of operators, and the bounds of their memory and time.
//!
//! | type | for |
//! |---|---|
//! | [`Tensor`] | a dense tensor in row-major order, owned, or borrowed from the bytes of a request |
//! | [`ElementType`] | the type of its elements, at run time |
//! | [`Element`] | the same as a Rust type; [`with_number!`] goes from one to the other |
//! | [`Unit`] | elements of one width, for operators that only move them; see [`with_unit!`] |
//! | [`Dim`] | a dimension while a model is loaded: a number, or unknown |
//! | [`operator::Compute`] | an operator: types and dimensions of its outputs, then the outputs; [`operator::Kernel`] is its short form |
//! | [`room::Room`], [`size`] | what one value, and the values of all runs, may take |
//! | [`cancelling::Pace`], [`time_limit`] | how an operator looks on its way whether its request was cancelled, or the time is over |
//! | [`threads`] | parts of an operator's work on several threads |
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
//! Failures are [`anyhow::Error`]s, as operators add typed errors of their own.

pub mod axis;
pub mod cancelling;
mod cast;
mod dim;
mod element;
mod element_type;
pub mod elements;
pub mod faults;
pub mod input_check;
mod moves;
pub mod node;
pub mod operator;
pub mod packs;
pub mod prelude;
pub mod room;
pub mod shapes;
pub mod size;
mod storage;
mod tensor;
pub mod threads;
pub mod time_limit;

pub use dim::{Dim, Size, Symbol, ToDim, broadcast};
pub use element::{Element, Unit};
pub use element_type::ElementType;
pub use tensor::Tensor;

/// A list that is usually short, such as a shape: up to 4 entries need no allocation.
pub type ShortVec<T> = smallvec::SmallVec<[T; 4]>;

// Bytes of requests are little-endian, elements have the byte order of the host.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "only little-endian hosts are supported"
);
