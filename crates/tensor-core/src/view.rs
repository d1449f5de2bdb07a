use std::{borrow::Cow, fmt, ops::Range};

use crate::{
    CastError, Element, Shape, SpecError, TensorSpec,
    element::{cast, cast_or_copy, iter},
};

/// A borrowed tensor: a spec and exactly that many row-major little-endian bytes that live elsewhere.
///
/// Typed access is zero-copy when dtype, alignment and host allow, and never undefined behaviour when they do not:
///
/// ```
/// use std::borrow::Cow;
/// use tensor_core::{CastError, DType, Shape, TensorSpec, TensorView};
///
/// let bytes = [0u8, 1, 2, 0, 0, 0, 0, 0, 0];
/// let spec = TensorSpec::new(DType::Bool, Shape::vector(3))?;
/// let view = TensorView::new(spec, &bytes[..3])?;
/// // A byte of 2 is no Rust bool: in place it is refused, as a copy it is true.
/// assert_eq!(view.as_slice::<bool>(), Err(CastError::NotBool { index: 2, byte: 2 }));
/// assert_eq!(view.to_cow::<bool>().unwrap(), Cow::<[bool]>::Owned(vec![false, true, true]));
///
/// // Eight bytes at an odd address are still a readable i64.
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
    /// Joins a spec and its bytes.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when the bytes are not exactly as many as the spec takes.
    pub fn new(spec: TensorSpec, bytes: &'a [u8]) -> Result<Self, SpecError> {
        spec.check_len(bytes.len())?;
        Ok(Self { spec, bytes })
    }

    /// For callers that hold the proof already.
    pub(crate) fn new_unchecked_len(spec: TensorSpec, bytes: &'a [u8]) -> Self {
        debug_assert!(spec.check_len(bytes.len()).is_ok());
        Self { spec, bytes }
    }

    /// Dtype and shape.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// The dimensions.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.spec.shape()
    }

    /// The elements' bytes: row-major, little-endian, no padding.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements in place.
    ///
    /// # Errors
    /// [`CastError`] when the dtype is another one, the bytes are misaligned for `T`, a bool is neither 0 nor 1, or
    /// the host is big-endian and `T` has several bytes. [`TensorView::to_cow`] copes with all but the first.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T], CastError> {
        self.expect_dtype::<T>()?;
        cast(self.bytes)
    }

    /// The elements, in place where possible and as a copy where the bytes are misaligned, not canonical bools
    /// (non-zero becomes true), or the host is big-endian.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype is another one.
    pub fn to_cow<T: Element>(&self) -> Result<Cow<'a, [T]>, CastError> {
        self.expect_dtype::<T>()?;
        Ok(cast_or_copy(self.bytes))
    }

    /// The elements one by one in row-major order, whatever the alignment.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype is another one.
    pub fn iter<T: Element>(&self) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>, CastError> {
        self.expect_dtype::<T>()?;
        Ok(iter(self.bytes))
    }

    /// Entries `rows` along axis 0, without a copy.
    ///
    /// # Errors
    /// [`SpecError::ScalarHasNoRows`], or [`SpecError::RowsOutOfRange`] when the range leaves the leading dimension
    /// or ends before it starts.
    pub fn rows(&self, rows: Range<u64>) -> Result<Self, SpecError> {
        let (spec, bytes) = self.spec.rows(rows)?;
        // The whole tensor is in memory, so its rows' offsets fit `usize`.
        let bytes = &self.bytes[bytes.start as usize..bytes.end as usize];
        Ok(Self { spec, bytes })
    }

    /// The same elements under another shape.
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

/// Shows the spec only: values may be large, and private.
impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorView({})", self.spec)
    }
}
