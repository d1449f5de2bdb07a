//! Shapes: validated dimensions, and their errors.

use std::{fmt, ops::Range};

use smallvec::SmallVec;

use crate::DType;

/// The dimensions of a tensor, outermost first, whose product fits in `u64`.
///
/// A shape without dimensions is a scalar with one element. A shape with a dimension of 0 has no elements,
/// whatever the size of its other dimensions.
///
/// ```
/// use tensor_core::Shape;
///
/// assert_eq!(Shape::new(&[2, 3])?.element_count(), 6);
/// assert_eq!(Shape::scalar().element_count(), 1);
/// assert_eq!(Shape::new(&[0, 1 << 63, 4])?.element_count(), 0);
/// assert_eq!(Shape::new(&[1 << 63, 4, 0])?.element_count(), 0);
/// assert!(Shape::new(&[1 << 63, 4]).is_err());
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: SmallVec<[u64; 4]>,
}

impl Shape {
    /// The largest rank a shape may have (also NumPy's limit).
    pub const MAX_RANK: usize = 64;

    /// Creates a shape after checking the dimensions.
    ///
    /// # Errors
    /// [`SpecError::RankTooLarge`] beyond [`Shape::MAX_RANK`] dimensions; [`SpecError::ElementCountOverflow`]
    /// when no dimension is 0 and the product does not fit in `u64`.
    pub fn new(dims: &[u64]) -> Result<Self, SpecError> {
        if dims.len() > Self::MAX_RANK {
            return Err(SpecError::RankTooLarge { rank: dims.len() });
        }
        match checked_product(dims) {
            Some(_) => Ok(Self {
                dims: SmallVec::from_slice(dims),
            }),
            None => Err(SpecError::ElementCountOverflow { dims: dims.to_vec() }),
        }
    }

    /// Returns the shape without dimensions: one element.
    #[must_use]
    pub fn scalar() -> Self {
        Self::default()
    }

    /// Returns the shape `[len]`.
    #[must_use]
    pub fn vector(len: u64) -> Self {
        Self {
            dims: SmallVec::from_slice(&[len]),
        }
    }

    /// Returns the dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Returns the number of elements: the product of the dimensions, 1 for a scalar.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        if self.dims.contains(&0) {
            0
        } else {
            self.dims.iter().product()
        }
    }

    /// Returns the shape with a different leading dimension, as after concatenating or splitting along axis
    /// 0.
    ///
    /// # Errors
    /// [`SpecError::ScalarHasNoRows`] for a scalar; [`SpecError::ElementCountOverflow`] when the new product
    /// overflows.
    pub fn with_leading_dim(&self, rows: u64) -> Result<Self, SpecError> {
        let mut dims = self.dims.clone();
        *dims.first_mut().ok_or(SpecError::ScalarHasNoRows)? = rows;
        Self::new(&dims)
    }

    /// Returns the shape of one entry along axis 0, `None` for a scalar.
    ///
    /// Also returns `None` when the other dimensions alone are invalid, as for `[0, 2^63, 2^63]`, which has
    /// no rows.
    #[must_use]
    pub fn row(&self) -> Option<Self> {
        let (_, tail) = self.dims.split_first()?;
        Self::new(tail).ok()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.dims).finish()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shape({self})")
    }
}

impl TryFrom<&[u64]> for Shape {
    type Error = SpecError;

    fn try_from(dims: &[u64]) -> Result<Self, SpecError> {
        Self::new(dims)
    }
}

impl<const N: usize> TryFrom<[u64; N]> for Shape {
    type Error = SpecError;

    fn try_from(dims: [u64; N]) -> Result<Self, SpecError> {
        Self::new(&dims)
    }
}

impl TryFrom<Vec<u64>> for Shape {
    type Error = SpecError;

    fn try_from(dims: Vec<u64>) -> Result<Self, SpecError> {
        Self::new(&dims)
    }
}

/// Types that convert into a [`Shape`]: a shape, or numbers.
///
/// ```
/// use tensor_core::{IntoShape, Shape};
///
/// assert_eq!([2, 3].into_shape()?, Shape::new(&[2, 3])?);
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
pub trait IntoShape {
    /// Converts the value into a shape.
    ///
    /// # Errors
    /// See [`Shape::new`].
    fn into_shape(self) -> Result<Shape, SpecError>;
}

impl IntoShape for Shape {
    fn into_shape(self) -> Result<Shape, SpecError> {
        Ok(self)
    }
}

impl IntoShape for &Shape {
    fn into_shape(self) -> Result<Shape, SpecError> {
        Ok(self.clone())
    }
}

impl IntoShape for &[u64] {
    fn into_shape(self) -> Result<Shape, SpecError> {
        Shape::new(self)
    }
}

impl<const N: usize> IntoShape for [u64; N] {
    fn into_shape(self) -> Result<Shape, SpecError> {
        Shape::new(&self)
    }
}

impl<const N: usize> IntoShape for &[u64; N] {
    fn into_shape(self) -> Result<Shape, SpecError> {
        Shape::new(self)
    }
}

/// Returns the product of dimensions, `None` on overflow. A 0 gives 0, even if other factors overflow.
fn checked_product(dims: &[u64]) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter()
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
}

/// The reason why a dtype, a shape and bytes do not form a tensor, or why a part of a tensor cannot be taken.
///
/// ```
/// use tensor_core::{Shape, SpecError};
/// let error = Shape::new(&[1 << 32, 1 << 32]).unwrap_err();
/// assert!(matches!(error, SpecError::ElementCountOverflow { .. }));
/// assert_eq!(error.to_string(), "the element count of shape [4294967296, 4294967296] does not fit 64 bits");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpecError {
    /// More dimensions than [`Shape::MAX_RANK`].
    RankTooLarge {
        /// The number of dimensions found.
        rank: usize,
    },
    /// The dimensions' product does not fit in `u64`.
    ElementCountOverflow {
        /// The dimensions.
        dims: Vec<u64>,
    },
    /// The number of elements times their size does not fit in `u64`.
    ByteLengthOverflow {
        /// The dtype of the elements.
        dtype: DType,
        /// The dimensions.
        shape: Shape,
    },
    /// The number of bytes differs from the number that dtype and shape require.
    LengthMismatch {
        /// The dtype of the elements.
        dtype: DType,
        /// The dimensions.
        shape: Shape,
        /// The number of bytes required.
        expected: u64,
        /// The number of bytes found.
        found: u64,
    },
    /// Rows were requested from a scalar.
    ScalarHasNoRows,
    /// The row range exceeds the leading dimension, or ends before it starts.
    RowsOutOfRange {
        /// The range of rows that the caller asked for.
        rows: Range<u64>,
        /// The number of rows that the tensor has: its leading dimension.
        available: u64,
    },
    /// The new shape has a different number of elements.
    ReshapeMismatch {
        /// The shape that the tensor has.
        from: Shape,
        /// The shape that the caller asked for.
        to: Shape,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RankTooLarge { rank } => {
                write!(
                    f,
                    "rank {rank} is beyond the limit of {} dimensions",
                    Shape::MAX_RANK
                )
            }
            Self::ElementCountOverflow { dims } => {
                write!(f, "the element count of shape {dims:?} does not fit 64 bits")
            }
            Self::ByteLengthOverflow { dtype, shape } => {
                write!(f, "the byte length of {dtype}{shape} does not fit 64 bits")
            }
            Self::LengthMismatch {
                dtype,
                shape,
                expected,
                found,
            } => write!(f, "{dtype}{shape} takes {expected} bytes, found {found}"),
            Self::ScalarHasNoRows => f.write_str("a scalar has no rows"),
            Self::RowsOutOfRange { rows, available } => {
                write!(
                    f,
                    "rows {}..{} of a tensor with {available} rows",
                    rows.start, rows.end
                )
            }
            Self::ReshapeMismatch { from, to } => write!(
                f,
                "shape {from} has {} elements, shape {to} has {}",
                from.element_count(),
                to.element_count()
            ),
        }
    }
}

impl std::error::Error for SpecError {}

/// Prints the message, because Rust uses `Debug` to print an error returned from `main`.
impl fmt::Debug for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_wins_in_every_order() {
        for dims in [
            [0, 1 << 63, 1 << 63],
            [1 << 63, 0, 1 << 63],
            [1 << 63, 1 << 63, 0],
        ] {
            assert_eq!(Shape::new(&dims).unwrap().element_count(), 0);
        }
    }

    #[test]
    fn products_that_wrap_to_something_small_are_refused() {
        for dims in [
            &[1 << 32, 1 << 32][..],
            &[65536; 5],
            &[1 << 31, 2, (1 << 32) - 1, 4],
            &[u64::MAX, 2],
        ] {
            assert!(
                matches!(Shape::new(dims), Err(SpecError::ElementCountOverflow { .. })),
                "{dims:?}"
            );
        }
        assert_eq!(Shape::new(&[u64::MAX, 1]).unwrap().element_count(), u64::MAX);
    }

    #[test]
    fn rank_has_a_limit() {
        assert_eq!(Shape::new(&[1; 64]).unwrap().rank(), 64);
        assert_eq!(Shape::new(&[1; 65]), Err(SpecError::RankTooLarge { rank: 65 }));
    }

    #[test]
    fn rows_of_shapes() {
        let shape = Shape::new(&[4, 2, 3]).unwrap();
        assert_eq!(shape.row(), Some(Shape::new(&[2, 3]).unwrap()));
        assert_eq!(shape.with_leading_dim(9).unwrap().dims(), [9, 2, 3]);
        assert_eq!(Shape::scalar().row(), None);
        assert_eq!(Shape::new(&[0, 1 << 63, 1 << 63]).unwrap().row(), None);
        assert_eq!(Shape::scalar().to_string(), "[]");
    }
}
