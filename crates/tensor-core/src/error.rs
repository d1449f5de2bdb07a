//! Errors of casts and of sparse tensors.

use std::fmt;

use crate::{DType, Shape, SpecError, TensorSpec};

/// The reason why bytes cannot be cast to a slice of a Rust type.
///
/// ```
/// use tensor_core::{CastError, DType, Tensor};
/// let error = Tensor::scalar(1.5f32).view().as_slice::<i32>().unwrap_err();
/// assert_eq!(error, CastError::DType { expected: DType::I32, found: DType::F32 });
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CastError {
    /// The tensor has a different dtype.
    DType {
        /// The requested dtype.
        expected: DType,
        /// The tensor's dtype.
        found: DType,
    },
    /// The bytes do not start at a multiple of the element's alignment; a copy is needed.
    Misaligned {
        /// The dtype of the elements.
        dtype: DType,
    },
    /// A byte of a bool tensor is neither 0 nor 1, so it cannot be cast to `bool` in place.
    NotBool {
        /// The index of the first element that is neither 0 nor 1.
        index: usize,
        /// The byte of that element.
        byte: u8,
    },
    /// The host is big-endian and the elements have several bytes; a byte-swapped copy is needed.
    Endianness {
        /// The dtype of the elements.
        dtype: DType,
    },
    /// The shape exceeds what the arrays of another crate, such as `ndarray`, support.
    Shape {
        /// The dimensions.
        shape: Shape,
    },
}

impl fmt::Display for CastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DType { expected, found } => write!(f, "expected a tensor of {expected}, found {found}"),
            Self::Misaligned { dtype } => write!(f, "the tensor's bytes are not aligned for {dtype}"),
            Self::NotBool { index, byte } => {
                write!(f, "element {index} of the bool tensor is {byte}, not 0 or 1")
            }
            Self::Endianness { dtype } => {
                write!(
                    f,
                    "little-endian {dtype} elements cannot be viewed in place on this big-endian host"
                )
            }
            Self::Shape { shape } => {
                write!(f, "shape {shape} is larger than those of ndarray's arrays can be")
            }
        }
    }
}

impl std::error::Error for CastError {}

/// Prints the message, because Rust uses `Debug` to print an error returned from `main`.
impl fmt::Debug for CastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error when coordinates and values do not form a sparse tensor, or when a sparse tensor is too large to
/// make dense.
///
/// ```
/// use tensor_core::{Shape, SparseCoo, SparseError, Tensor};
/// let indices = Tensor::from_vec(Shape::new(&[1, 1])?, vec![3u64])?;
/// let values = Tensor::from_vec(Shape::vector(1), vec![1i8])?;
/// let error = SparseCoo::new(Shape::vector(3), indices, values).unwrap_err();
/// assert_eq!(error, SparseError::IndexOutOfRange { entry: 0, axis: 0, index: 3, dim: 3 });
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SparseError {
    /// The index tensor is not `u64[nnz, rank]` or the value tensor is not `[nnz]`.
    Layout {
        /// The tensor that is wrong: `indices` or `values`.
        part: &'static str,
        /// The dtype and shape that are required.
        expected: String,
        /// The dtype and shape found.
        found: TensorSpec,
    },
    /// A coordinate lies outside its dimension.
    IndexOutOfRange {
        /// The index of the entry, in stored order.
        entry: u64,
        /// The axis whose coordinate is out of range.
        axis: usize,
        /// The coordinate found.
        index: u64,
        /// The size of the dimension.
        dim: u64,
    },
    /// Two entries have the same coordinates.
    Duplicate {
        /// The index of the later entry, in stored order.
        entry: u64,
    },
    /// The dense tensor would exceed the caller's budget.
    OverBudget {
        /// The dtype and shape of the dense tensor.
        spec: TensorSpec,
        /// The caller's budget in bytes.
        budget: u64,
    },
    /// The dense tensor's dtype and shape are invalid together.
    Spec(SpecError),
}

impl fmt::Display for SparseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout {
                part,
                expected,
                found,
            } => {
                write!(f, "sparse {part} must be {expected}, found {found}")
            }
            Self::IndexOutOfRange {
                entry,
                axis,
                index,
                dim,
            } => {
                write!(
                    f,
                    "entry {entry}: index {index} is outside axis {axis} of size {dim}"
                )
            }
            Self::Duplicate { entry } => write!(f, "entry {entry} repeats the coordinates of another entry"),
            Self::OverBudget { spec, budget } => {
                write!(
                    f,
                    "dense {spec} takes {} bytes, the budget is {budget}",
                    spec.byte_len()
                )
            }
            Self::Spec(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SparseError {}

/// Prints the message, because Rust uses `Debug` to print an error returned from `main`.
impl fmt::Debug for SparseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<SpecError> for SparseError {
    fn from(error: SpecError) -> Self {
        Self::Spec(error)
    }
}
