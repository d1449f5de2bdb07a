//! A tensor of either kind: fixed-width elements or byte strings.

use bytes::Bytes;
use tensor_core::{Shape, SpecError, Tensor, TensorSpec};

use crate::{BytesTensor, DataType, ServiceError};

/// The value of an input or output: a tensor of fixed-width elements or of byte strings.
///
/// Both variants consist of a shape and shared bytes in the protocol's raw form. The bytes always match the
/// shape.
///
/// ```
/// use oip_types::{DataType, TensorValue};
/// use tensor_core::{Shape, Tensor};
///
/// let value: TensorValue = Tensor::scalar(1.5f32).into();
/// assert_eq!(value.datatype(), DataType::FP32);
///
/// // Raw bytes from the wire are checked against datatype and shape.
/// let error = TensorValue::from_raw(DataType::INT16, Shape::vector(2), vec![0; 3].into()).unwrap_err();
/// assert_eq!(error.to_string(), "expected 4 bytes for INT16[2], found 3");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum TensorValue {
    /// A tensor whose elements have a fixed width.
    Fixed(Tensor),
    /// A tensor of byte strings.
    Bytes(BytesTensor),
}

impl TensorValue {
    /// Creates a value from raw bytes, which are checked against datatype and shape and not copied.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the length does not match datatype and
    /// shape, or the size overflows 64 bits.
    pub fn from_raw(datatype: DataType, shape: Shape, raw: Bytes) -> Result<Self, ServiceError> {
        let dtype = match datatype {
            DataType::Bytes => return BytesTensor::new(shape, raw).map(Self::Bytes),
            DataType::Fixed(dtype) => dtype,
        };
        // The only possible error is an overflow of the size; the message uses the protocol's name for the
        // datatype.
        let overflow = |error| match error {
            SpecError::ByteLengthOverflow { shape, .. } => {
                format!("the byte length of {datatype}{shape} does not fit 64 bits")
            }
            other => other.to_string(),
        };
        let spec = TensorSpec::new(dtype, shape).map_err(|error| ServiceError::invalid(overflow(error)))?;
        let (expected, found) = (spec.byte_len(), raw.len());
        if expected != found as u64 {
            let shape = spec.shape();
            let message = format!("expected {expected} bytes for {datatype}{shape}, found {found}");
            return Err(ServiceError::invalid(message));
        }
        Tensor::new(spec, raw)
            .map(Self::Fixed)
            .map_err(|error| ServiceError::invalid(error.to_string()))
    }

    /// Creates a value of zeros, false or empty strings, as a placeholder for elements that are elsewhere,
    /// such as in shared memory. On most systems, pages that are never written take no memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the size overflows 64 bits, exceeds
    /// `most`, or cannot be allocated.
    pub fn zeros(datatype: DataType, shape: Shape, most: usize) -> Result<Self, ServiceError> {
        let width = match datatype {
            DataType::Bytes => BytesTensor::LENGTH_PREFIX as u64,
            DataType::Fixed(dtype) => dtype.size() as u64,
        };
        let len = shape.element_count().checked_mul(width);
        let len = len
            .and_then(|len| usize::try_from(len).ok())
            .filter(|len| *len <= most);
        let no_room = || {
            let message = format!(
                "{datatype}{shape}: the elements take more than {most} bytes, or than there is room for"
            );
            ServiceError::invalid(message)
        };
        let len = len.ok_or_else(no_room)?;
        // `vec!` aborts on failure, and resizing a reserved vector would write to all its memory. A trial
        // reservation therefore checks first whether the allocation can succeed.
        Vec::<u8>::new().try_reserve_exact(len).map_err(|_| no_room())?;
        Self::from_raw(datatype, shape, vec![0; len].into())
    }

    /// Returns the datatype of the elements.
    #[must_use]
    pub fn datatype(&self) -> DataType {
        match self {
            Self::Fixed(tensor) => DataType::Fixed(tensor.spec().dtype()),
            Self::Bytes(_) => DataType::Bytes,
        }
    }

    /// Returns the dimensions of the tensor.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        match self {
            Self::Fixed(tensor) => tensor.shape(),
            Self::Bytes(tensor) => tensor.shape(),
        }
    }

    /// Returns the elements in raw form: row-major and little-endian, or length-prefixed strings.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        match self {
            Self::Fixed(tensor) => tensor.bytes(),
            Self::Bytes(tensor) => tensor.raw(),
        }
    }

    /// Returns the same value with its bytes wrapped by `wrap`, for instance to run code when they are freed.
    ///
    /// # Panics
    /// When `wrap` returns different bytes.
    #[must_use]
    pub fn with_handle(self, wrap: impl FnOnce(Bytes) -> Bytes) -> Self {
        let place = self.raw().as_ptr_range();
        let wrap = |bytes: Bytes| {
            let wrapped = wrap(bytes);
            assert!(
                wrapped.as_ptr_range() == place || wrapped.is_empty() && place.is_empty(),
                "a handle on the same bytes"
            );
            wrapped
        };
        match self {
            Self::Fixed(tensor) => {
                let spec = tensor.spec().clone();
                // The length is unchanged, so the constructor cannot fail.
                let tensor = Tensor::new(spec, wrap(tensor.into_bytes()));
                Self::Fixed(tensor.unwrap_or_else(|_| unreachable!("the bytes are the same")))
            }
            Self::Bytes(tensor) => {
                let shape = tensor.shape().clone();
                Self::Bytes(BytesTensor::new_unchecked(shape, wrap(tensor.into_raw())))
            }
        }
    }

    /// Converts the value into its raw form.
    #[must_use]
    pub fn into_raw(self) -> Bytes {
        match self {
            Self::Fixed(tensor) => tensor.into_bytes(),
            Self::Bytes(tensor) => tensor.into_raw(),
        }
    }

    /// Returns the tensor of fixed-width elements; `None` for byte strings.
    #[must_use]
    pub fn as_fixed(&self) -> Option<&Tensor> {
        match self {
            Self::Fixed(tensor) => Some(tensor),
            Self::Bytes(_) => None,
        }
    }

    /// Returns the tensor of byte strings; `None` for fixed-width elements.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&BytesTensor> {
        match self {
            Self::Bytes(tensor) => Some(tensor),
            Self::Fixed(_) => None,
        }
    }
}

impl From<Tensor> for TensorValue {
    fn from(tensor: Tensor) -> Self {
        Self::Fixed(tensor)
    }
}

impl From<BytesTensor> for TensorValue {
    fn from(tensor: BytesTensor) -> Self {
        Self::Bytes(tensor)
    }
}
