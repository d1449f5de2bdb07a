//! A dtype and a shape with a valid byte length.

use std::{fmt, ops::Range};

use crate::{DType, Shape, SpecError};

/// A dtype and a shape whose byte length fits in `u64`: everything about a tensor except its values.
///
/// ```
/// use tensor_core::{DType, Shape, TensorSpec};
///
/// let spec = TensorSpec::new(DType::F16, Shape::new(&[2, 3])?)?;
/// assert_eq!(spec.byte_len(), 12);
/// assert_eq!(spec.to_string(), "f16[2, 3]");
/// assert!(TensorSpec::new(DType::F64, Shape::new(&[1 << 61])?).is_err());
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    dtype: DType,
    shape: Shape,
}

impl TensorSpec {
    /// Combines a dtype and a shape.
    ///
    /// # Errors
    /// [`SpecError::ByteLengthOverflow`] when the number of elements times their size does not fit in `u64`.
    pub fn new(dtype: DType, shape: Shape) -> Result<Self, SpecError> {
        match shape.element_count().checked_mul(dtype.size() as u64) {
            Some(_) => Ok(Self { dtype, shape }),
            None => Err(SpecError::ByteLengthOverflow { dtype, shape }),
        }
    }

    /// Returns the element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the dimensions.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        self.shape.element_count()
    }

    /// Returns the number of bytes all elements take, without padding.
    #[must_use]
    pub fn byte_len(&self) -> u64 {
        self.shape.element_count() * self.dtype.size() as u64
    }

    /// Returns the spec of a range of rows (entries along axis 0), and their byte range within the tensor.
    ///
    /// ```
    /// use tensor_core::{DType, Shape, TensorSpec};
    ///
    /// let spec = TensorSpec::new(DType::F32, Shape::new(&[5, 3])?)?;
    /// let (rows, bytes) = spec.rows(1..3)?;
    /// assert_eq!((rows.to_string(), bytes), ("f32[2, 3]".to_owned(), 12..36));
    /// # Ok::<(), tensor_core::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`SpecError::ScalarHasNoRows`], or [`SpecError::RowsOutOfRange`] when the range exceeds the leading
    /// dimension or ends before it starts; [`SpecError::ElementCountOverflow`] for rows whose size overflows,
    /// such as those of `[0, 2^63, 2^63]`.
    pub fn rows(&self, rows: Range<u64>) -> Result<(Self, Range<u64>), SpecError> {
        let available = *self.shape.dims().first().ok_or(SpecError::ScalarHasNoRows)?;
        if rows.start > rows.end || rows.end > available {
            return Err(SpecError::RowsOutOfRange { rows, available });
        }
        let part = Self::new(self.dtype, self.shape.with_leading_dim(rows.end - rows.start)?)?;
        // A nonempty tensor has rows, and row offsets do not exceed its length.
        let row_len = self.byte_len().checked_div(available).unwrap_or(0);
        Ok((part, rows.start * row_len..rows.end * row_len))
    }

    /// Returns the spec with another shape of the same element count.
    ///
    /// # Errors
    /// [`SpecError::ReshapeMismatch`] when the element counts differ.
    pub fn reshape(&self, shape: Shape) -> Result<Self, SpecError> {
        if shape.element_count() != self.element_count() {
            return Err(SpecError::ReshapeMismatch {
                from: self.shape.clone(),
                to: shape,
            });
        }
        Self::new(self.dtype, shape)
    }

    /// Splits the spec into dtype and shape.
    #[must_use]
    pub fn into_parts(self) -> (DType, Shape) {
        (self.dtype, self.shape)
    }

    /// Checks that a tensor of this spec has exactly `found` bytes.
    pub(crate) fn check_len(&self, found: usize) -> Result<(), SpecError> {
        if self.byte_len() == found as u64 {
            return Ok(());
        }
        Err(SpecError::LengthMismatch {
            dtype: self.dtype,
            shape: self.shape.clone(),
            expected: self.byte_len(),
            found: found as u64,
        })
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorSpec({self})")
    }
}
