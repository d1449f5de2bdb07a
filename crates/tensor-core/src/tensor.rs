use std::{borrow::Cow, fmt, ops::Range};

use crate::{
    Bytes, CastError, Element, IntoShape, Shape, SpecError, TensorSpec, TensorView, element::le_bytes,
};

/// An owned tensor: a spec and exactly that many row-major little-endian bytes, shared.
///
/// Cloning, taking rows and reshaping share the bytes. Where the bytes come from (a file read or mapped, a frame of
/// a socket, a `Vec`) is [`Bytes`]' business, so a tensor can travel from any of them to any other unchanged.
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
    /// Joins a spec and its bytes, which are not copied.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when the bytes are not exactly as many as the spec takes.
    pub fn new(spec: TensorSpec, bytes: impl Into<Bytes>) -> Result<Self, SpecError> {
        let bytes = bytes.into();
        spec.check_len(bytes.len())?;
        Ok(Self { spec, bytes })
    }

    /// For callers that hold the proof already.
    pub(crate) fn new_unchecked_len(spec: TensorSpec, bytes: Bytes) -> Self {
        debug_assert!(spec.check_len(bytes.len()).is_ok());
        Self { spec, bytes }
    }

    /// Takes over a vector of elements; on little-endian hosts without a copy.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when the shape has another number of elements;
    /// [`SpecError::ByteLengthOverflow`] when its byte length does not fit `u64`; as [`Shape::new`].
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
    /// As [`Tensor::from_vec`].
    pub fn from_slice<T: Element>(shape: impl IntoShape, elements: &[T]) -> Result<Self, SpecError> {
        let bytes = Bytes::copy_from_slice(&le_bytes(elements));
        Self::new(TensorSpec::new(T::DTYPE, shape.into_shape()?)?, bytes)
    }

    /// A tensor without dimensions that holds one value.
    pub fn scalar<T: Element>(value: T) -> Self {
        let bytes = Bytes::copy_from_slice(&le_bytes(&[value]));
        // One element of at most eight bytes: its spec cannot overflow.
        let spec = TensorSpec::new(T::DTYPE, Shape::scalar()).unwrap_or_else(|_| unreachable!());
        Self::new_unchecked_len(spec, bytes)
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
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Gives the bytes away.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// A borrowed view, where typed access lives.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView::new_unchecked_len(self.spec.clone(), &self.bytes)
    }

    /// Copies the elements into a vector, in row-major order.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype is another one.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, CastError> {
        self.view().to_cow().map(Cow::into_owned)
    }

    /// Entries `rows` along axis 0, sharing the bytes.
    ///
    /// # Errors
    /// [`SpecError::ScalarHasNoRows`], or [`SpecError::RowsOutOfRange`] when the range leaves the leading dimension
    /// or ends before it starts.
    pub fn rows(&self, rows: Range<u64>) -> Result<Self, SpecError> {
        let (spec, bytes) = self.spec.rows(rows)?;
        // The whole tensor is in memory, so its rows' offsets fit `usize`.
        let bytes = self.bytes.slice(bytes.start as usize..bytes.end as usize);
        Ok(Self { spec, bytes })
    }

    /// The same elements under another shape, sharing the bytes.
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
    /// An owned tensor with a copy of the bytes.
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

/// Shows the spec only: values may be large, and private.
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
