//! Owned tensors with shared bytes.

use std::{borrow::Cow, fmt, ops::Range};

use crate::{
    Bytes, CastError, Element, IntoShape, Shape, SpecError, TensorSpec, TensorView, element::le_bytes,
};

/// An owned tensor: a spec, and shared bytes of exactly the spec's length, row-major and little-endian.
///
/// Cloning, taking rows and reshaping share the bytes. The bytes may come from any source that [`Bytes`]
/// supports: a file that was read or mapped, data from a socket, a `Vec`.
///
/// Equality compares specs and bytes: two NaNs with the same bits are equal, 0.0 and -0.0 are not.
///
/// ```
/// use tensor_core::{Shape, Tensor};
///
/// let images = Tensor::from_vec(Shape::new(&[3, 2])?, vec![1u8, 2, 3, 4, 5, 6])?;
/// let second = images.rows(1..2)?;
/// assert_eq!(second.view().as_slice::<u8>().unwrap(), [3, 4]);
/// assert_eq!(second.bytes().as_ptr(), images.bytes()[2..].as_ptr()); // no copy
/// assert_eq!(second.to_string(), "[[3 4]]");
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Tensor {
    spec: TensorSpec,
    bytes: Bytes,
}

impl Tensor {
    /// Combines a spec and its bytes without copying.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when the number of bytes differs from the spec's.
    pub fn new(spec: TensorSpec, bytes: impl Into<Bytes>) -> Result<Self, SpecError> {
        let bytes = bytes.into();
        spec.check_len(bytes.len())?;
        Ok(Self { spec, bytes })
    }

    /// Creates a tensor from parts that the caller has already checked.
    pub(crate) fn new_unchecked_len(spec: TensorSpec, bytes: Bytes) -> Self {
        debug_assert!(spec.check_len(bytes.len()).is_ok());
        Self { spec, bytes }
    }

    /// Converts a vector of elements; does not copy on little-endian hosts.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when the shape has a different number of elements;
    /// [`SpecError::ByteLengthOverflow`] when its byte length overflows `u64`; otherwise the errors of
    /// [`Shape::new`].
    pub fn from_vec<T: Element>(shape: impl IntoShape, elements: Vec<T>) -> Result<Self, SpecError> {
        let shape = shape.into_shape()?;
        let bytes = match le_bytes(&elements) {
            Cow::Owned(swapped) => swapped.into(),
            Cow::Borrowed(_) => Bytes::from_owner(ElementBytes(elements)),
        };
        Self::new(TensorSpec::new(T::DTYPE, shape)?, bytes)
    }

    /// Copies a slice of elements.
    ///
    /// ```
    /// use tensor_core::Tensor;
    ///
    /// let tensor = Tensor::from_slice([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
    /// assert_eq!(tensor.to_string(), "[[1. 2.]\n [3. 4.]]");
    /// # Ok::<(), tensor_core::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::from_vec`].
    pub fn from_slice<T: Element>(shape: impl IntoShape, elements: &[T]) -> Result<Self, SpecError> {
        let bytes = Bytes::copy_from_slice(&le_bytes(elements));
        Self::new(TensorSpec::new(T::DTYPE, shape.into_shape()?)?, bytes)
    }

    /// Creates a scalar tensor.
    pub fn scalar<T: Element>(value: T) -> Self {
        let bytes = Bytes::copy_from_slice(&le_bytes(&[value]));
        // One element of at most eight bytes: its spec cannot overflow.
        let spec = TensorSpec::new(T::DTYPE, Shape::scalar()).unwrap_or_else(|_| unreachable!());
        Self::new_unchecked_len(spec, bytes)
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
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the bytes, without the spec.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Returns a borrowed view, which has typed access.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView::new_unchecked_len(self.spec.clone(), &self.bytes)
    }

    /// Copies the elements into a vector, in row-major order.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype differs.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, CastError> {
        self.view().to_cow().map(Cow::into_owned)
    }

    /// Returns the entries `rows` along axis 0 as a tensor that shares the bytes.
    ///
    /// # Errors
    /// [`SpecError::ScalarHasNoRows`], or [`SpecError::RowsOutOfRange`] when the range exceeds the leading
    /// dimension or ends before it starts.
    pub fn rows(&self, rows: Range<u64>) -> Result<Self, SpecError> {
        let (spec, bytes) = self.spec.rows(rows)?;
        // The whole tensor is in memory, so byte offsets fit in `usize`.
        let bytes = self.bytes.slice(bytes.start as usize..bytes.end as usize);
        Ok(Self { spec, bytes })
    }

    /// Returns a tensor of another shape that shares the bytes.
    ///
    /// # Errors
    /// [`SpecError::ReshapeMismatch`] when the element counts differ.
    pub fn reshape(&self, shape: Shape) -> Result<Self, SpecError> {
        Ok(Self {
            spec: self.spec.reshape(shape)?,
            bytes: self.bytes.clone(),
        })
    }
}

impl TensorView<'_> {
    /// Copies the view into an owned tensor.
    #[must_use]
    pub fn to_tensor(&self) -> Tensor {
        Tensor::new_unchecked_len(self.spec().clone(), Bytes::copy_from_slice(self.bytes()))
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

/// Prints only the spec: values may be large and private.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.spec)
    }
}

/// Lets [`Bytes`] own a vector of any element type.
struct ElementBytes<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for ElementBytes<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
