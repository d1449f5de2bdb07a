//! Borrowed tensors and typed access.

use std::{borrow::Cow, fmt, ops::Range};

use crate::{
    CastError, Element, Shape, SpecError, TensorSpec,
    element::{cast, cast_or_copy, iter},
};

/// A borrowed tensor: a spec, and a slice of bytes of exactly the spec's length, row-major and little-endian.
///
/// Typed access is zero-copy when dtype, alignment and host allow it, and otherwise an error or a copy:
///
/// ```
/// use std::borrow::Cow;
/// use tensor_core::{CastError, DType, Shape, TensorSpec, TensorView};
///
/// let bytes = [0u8, 1, 2, 0, 0, 0, 0, 0, 0];
/// let spec = TensorSpec::new(DType::Bool, Shape::vector(3))?;
/// let view = TensorView::new(spec, &bytes[..3])?;
/// // A byte of 2 is not a Rust bool, so the cast fails; a copy converts it to true.
/// assert_eq!(view.as_slice::<bool>(), Err(CastError::NotBool { index: 2, byte: 2 }));
/// assert_eq!(view.to_cow::<bool>().unwrap(), Cow::<[bool]>::Owned(vec![false, true, true]));
///
/// // Eight bytes at an odd address can still be read as an i64.
/// let spec = TensorSpec::new(DType::I64, Shape::scalar())?;
/// let view = TensorView::new(spec, &bytes[1..])?;
/// assert_eq!(view.iter::<i64>().unwrap().collect::<Vec<_>>(), [0x0201]);
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct TensorView<'a> {
    spec: TensorSpec,
    bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Combines a spec and its bytes.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when the number of bytes differs from the spec's.
    pub fn new(spec: TensorSpec, bytes: &'a [u8]) -> Result<Self, SpecError> {
        spec.check_len(bytes.len())?;
        Ok(Self { spec, bytes })
    }

    /// Creates a view from parts that the caller has already checked.
    pub(crate) fn new_unchecked_len(spec: TensorSpec, bytes: &'a [u8]) -> Self {
        debug_assert!(spec.check_len(bytes.len()).is_ok());
        Self { spec, bytes }
    }

    /// Returns the dtype and shape.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Returns the dimensions.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.spec.shape()
    }

    /// Returns the elements' bytes: row-major, little-endian, no padding.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the elements in place.
    ///
    /// # Errors
    /// [`CastError`] when the dtype differs, the bytes are misaligned for `T`, a bool is neither 0 nor 1, or
    /// the host is big-endian and `T` has several bytes. [`TensorView::to_cow`] fails only when the dtype
    /// differs.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], CastError> {
        self.expect_dtype::<T>()?;
        cast(self.bytes)
    }

    /// Returns the elements, in place if possible. Copies if the bytes are misaligned, contain non-canonical
    /// bools (nonzero becomes true), or the host is big-endian.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype differs.
    pub fn to_cow<T: Element>(&self) -> Result<Cow<'a, [T]>, CastError> {
        self.expect_dtype::<T>()?;
        Ok(cast_or_copy(self.bytes))
    }

    /// Iterates over the elements in row-major order, for any alignment.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype differs.
    pub fn iter<T: Element>(&self) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>, CastError> {
        self.expect_dtype::<T>()?;
        Ok(iter(self.bytes))
    }

    /// Returns a view of the entries `rows` along axis 0.
    ///
    /// # Errors
    /// [`SpecError::ScalarHasNoRows`], or [`SpecError::RowsOutOfRange`] when the range exceeds the leading
    /// dimension or ends before it starts.
    pub fn rows(&self, rows: Range<u64>) -> Result<Self, SpecError> {
        let (spec, bytes) = self.spec.rows(rows)?;
        // The whole tensor is in memory, so byte offsets fit in `usize`.
        let bytes = &self.bytes[bytes.start as usize..bytes.end as usize];
        Ok(Self { spec, bytes })
    }

    /// Returns the same elements with another shape.
    ///
    /// # Errors
    /// [`SpecError::ReshapeMismatch`] when the element counts differ.
    pub fn reshape(&self, shape: Shape) -> Result<Self, SpecError> {
        Ok(Self {
            spec: self.spec.reshape(shape)?,
            bytes: self.bytes,
        })
    }

    fn expect_dtype<T: Element>(&self) -> Result<(), CastError> {
        if T::DTYPE == self.spec.dtype() {
            return Ok(());
        }
        Err(CastError::DType {
            expected: T::DTYPE,
            found: self.spec.dtype(),
        })
    }
}

/// Prints only the spec: values may be large and private.
impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorView({})", self.spec)
    }
}
