//! Dense tensors, whose element type and shape are known at run time.

use std::{fmt, sync::Arc};

use anyhow::{Context, Result, bail, ensure, format_err};
use bytes::Bytes;

use crate::{Element, ElementType, ShortVec, Unit, cancelling::Pace, reuse, storage::Storage, with_number};

/// A dense tensor in row-major order.
///
/// The elements are a vector, or shared bytes, such as those of a request. Shared bytes are copied before the
/// tensor is modified. A clone copies a vector, and shares bytes.
///
/// Two tensors are equal if their types, shapes and elements are equal. NaN equals NaN, and -0 equals 0.
///
/// ```
/// use onnx_tensor::{ElementType, Tensor};
///
/// let mut tensor = Tensor::from_vec(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?;
/// tensor.as_slice_mut::<f32>()?[3] = 5.0;
/// assert_eq!((tensor.element_type(), tensor.shape()), (ElementType::F32, &[2, 2][..]));
/// assert_eq!(tensor.as_slice::<f32>()?, [1.0, 2.0, 3.0, 5.0]);
/// # Ok::<(), onnx_tensor::prelude::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    element_type: ElementType,
    shape: ShortVec<usize>,
    /// The product of the dimensions, which is the number of elements in `storage`.
    len: usize,
    storage: Storage,
}

/// Constructors of tensors.
impl Tensor {
    /// Creates a tensor from a vector, without a copy.
    ///
    /// # Errors
    /// Fails if the number of elements does not match the shape.
    pub fn from_vec<T: Element>(shape: &[usize], elements: Vec<T>) -> Result<Self> {
        let len = count(T::ELEMENT_TYPE, shape)?;
        ensure!(
            elements.len() == len,
            "the shape {shape:?} has {len} elements, found {}",
            elements.len()
        );
        Ok(Self::new(T::ELEMENT_TYPE, shape, len, T::store(elements)))
    }

    /// Creates a tensor from a copy of a slice.
    ///
    /// # Errors
    /// Fails if the number of elements does not match the shape.
    pub fn from_shape<T: Element>(shape: &[usize], elements: &[T]) -> Result<Self> {
        Self::from_vec(shape, elements.to_vec())
    }

    /// Creates a tensor of `element_type` from a vector of units, without a copy.
    ///
    /// # Errors
    /// Fails if `U` is not the unit of `element_type`, if the number of units does not match the shape, or if
    /// a boolean is neither 0 nor 1.
    pub fn from_units<U: Unit>(element_type: ElementType, shape: &[usize], units: Vec<U>) -> Result<Self> {
        expect_unit::<U>(element_type)?;
        let tensor = Self {
            element_type,
            ..Self::from_vec(shape, units)?
        };
        if element_type == ElementType::Bool {
            tensor.as_slice::<bool>()?;
        }
        Ok(tensor)
    }

    /// Creates a tensor of numbers from their bytes in the host's byte order. Shares the bytes if they are
    /// aligned for `element_type`, and copies them otherwise. Booleans other than 0 become 1, in a copy.
    ///
    /// # Errors
    /// Fails if `element_type` is strings, if the number of bytes does not match the shape, or if the run is
    /// cancelled while it copies.
    pub fn from_bytes(element_type: ElementType, shape: &[usize], bytes: Bytes) -> Result<Self> {
        ensure!(element_type.is_copy(), "strings have no fixed width");
        let len = count(element_type, shape)?;
        // The product does not overflow: `count` has checked it.
        let expected = len * element_type.size_of();
        ensure!(
            bytes.len() == expected,
            "the shape {shape:?} of {element_type} has {expected} bytes, found {}",
            bytes.len()
        );
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(element_type.size_of());
        let is_valid = element_type != ElementType::Bool || bytes.iter().all(|&byte| byte <= 1);
        let mut storage = Storage::Shared(bytes);
        if len == 0 || !is_aligned || !is_valid {
            storage.own(element_type)?;
        }
        if let (false, Some(bytes)) = (is_valid, storage.bytes_mut()) {
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(Self::new(element_type, shape, len, storage))
    }

    /// Creates a tensor of zeros, `false`, or empty strings.
    ///
    /// # Errors
    /// Fails if there are more elements than addresses in memory.
    pub fn zero_of(element_type: ElementType, shape: &[usize]) -> Result<Self> {
        let len = count(element_type, shape)?;
        Ok(Self::new(
            element_type,
            shape,
            len,
            Storage::zero(element_type, len),
        ))
    }

    /// Creates a tensor of zeros, `false`, or empty strings.
    ///
    /// # Errors
    /// Fails if there are more elements than addresses in memory.
    pub fn zero<T: Element>(shape: &[usize]) -> Result<Self> {
        Self::zero_of(T::ELEMENT_TYPE, shape)
    }

    /// Creates a tensor of numbers whose elements are unspecified, for kernels that write each of them. Takes
    /// the memory of a value that was dropped in the same run, if there is one.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::zero_of`].
    pub fn unset_of(element_type: ElementType, shape: &[usize]) -> Result<Self> {
        let len = count(element_type, shape)?;
        // Every bit pattern is a valid number, but not a valid boolean.
        if element_type == ElementType::Bool || !element_type.is_copy() {
            return Self::zero_of(element_type, shape);
        }
        let storage = reuse::take(element_type, len).unwrap_or_else(|| Storage::zero(element_type, len));
        let mut made = Self::new(element_type, shape, len, storage);
        if cfg!(debug_assertions) {
            // With this pattern, tests fail if a kernel leaves an element unwritten.
            made.as_bytes_mut()?.fill(0xa5);
        }
        Ok(made)
    }

    /// Creates a tensor of rank 0, which has one element.
    #[must_use]
    pub fn scalar<T: Element>(element: T) -> Self {
        Self::new(T::ELEMENT_TYPE, &[], 1, T::store(vec![element]))
    }

    /// Creates a tensor of rank 1.
    #[must_use]
    pub fn vector<T: Element>(elements: &[T]) -> Self {
        let storage = T::store(elements.to_vec());
        Self::new(T::ELEMENT_TYPE, &[elements.len()], elements.len(), storage)
    }

    /// Creates a tensor of rank 2.
    #[must_use]
    pub fn matrix<T: Element, const COLUMNS: usize>(rows: &[[T; COLUMNS]]) -> Self {
        let elements = rows.as_flattened();
        let storage = T::store(elements.to_vec());
        Self::new(T::ELEMENT_TYPE, &[rows.len(), COLUMNS], elements.len(), storage)
    }

    fn new(element_type: ElementType, shape: &[usize], len: usize, storage: Storage) -> Self {
        Self {
            element_type,
            shape: shape.into(),
            len,
            storage,
        }
    }
}

/// Access to the type, the shape and the elements.
impl Tensor {
    /// Returns the type of the elements.
    #[must_use]
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Returns the number of elements along each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of axes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements in row-major order.
    ///
    /// # Errors
    /// Fails if the elements have another type, or if [`Tensor::as_bytes_mut`] wrote a boolean that is
    /// neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        expect_type::<T>(self.element_type)?;
        T::view(&self.storage).ok_or_else(|| invalid(self.element_type))
    }

    /// Returns the elements as a mutable slice, in row-major order. Copies shared bytes first.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::as_slice`], and an error if the run is cancelled while it copies.
    pub fn as_slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        expect_type::<T>(self.element_type)?;
        self.storage.own(self.element_type)?;
        T::view_mut(&mut self.storage).ok_or_else(|| invalid(self.element_type))
    }

    /// Returns the elements in row-major order, as units of their width.
    ///
    /// # Errors
    /// Fails if `U` is not the unit of the element type.
    pub fn as_units<U: Unit>(&self) -> Result<&[U]> {
        expect_unit::<U>(self.element_type)?;
        U::view(&self.storage).ok_or_else(|| invalid(self.element_type))
    }

    /// Returns the elements as a mutable slice of units of their width, in row-major order. Copies shared
    /// bytes first.
    ///
    /// # Errors
    /// Fails if `U` is not the unit of the element type, or if the run is cancelled while it copies.
    pub fn as_units_mut<U: Unit>(&mut self) -> Result<&mut [U]> {
        expect_unit::<U>(self.element_type)?;
        self.storage.own(self.element_type)?;
        U::view_mut(&mut self.storage).ok_or_else(|| invalid(self.element_type))
    }

    /// Returns the bytes of the elements in row-major order.
    ///
    /// # Errors
    /// Fails if the elements are strings.
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.storage.bytes().with_context(no_bytes)
    }

    /// Returns the bytes of the elements as a mutable slice, in row-major order. Copies shared bytes first.
    ///
    /// # Errors
    /// Fails if the elements are strings, or if the run is cancelled while it copies.
    pub fn as_bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.storage.own(self.element_type)?;
        self.storage.bytes_mut().with_context(no_bytes)
    }

    /// Wraps the tensor in an [`Arc`].
    #[must_use]
    pub fn into_arc(self) -> Arc<Self> {
        Arc::new(self)
    }

    /// Returns the elements as a vector; only shared bytes are copied.
    ///
    /// # Errors
    /// Returns the errors of [`Tensor::as_slice_mut`].
    pub fn into_vec<T: Element>(mut self) -> Result<Vec<T>> {
        expect_type::<T>(self.element_type)?;
        self.storage.own(self.element_type)?;
        T::into_vec(self.storage).ok_or_else(|| invalid(self.element_type))
    }

    /// Returns the tensor without a copy if there are no other references to it, otherwise a copy, for which
    /// memory of the run is reused.
    ///
    /// # Errors
    /// Fails if the run is cancelled while it copies.
    pub fn own(self: Arc<Self>) -> Result<Self> {
        let shared = match Arc::try_unwrap(self) {
            Ok(owned) => return Ok(owned),
            Err(shared) => shared,
        };
        if !shared.element_type.is_copy() || matches!(shared.storage, Storage::Shared(_)) {
            return shared.copied();
        }
        let mut made = Self::unset_of(shared.element_type, &shared.shape)?;
        Pace::default().copy_bytes(shared.as_bytes()?, made.as_bytes_mut()?)?;
        Ok(made)
    }

    /// Returns whether the elements can be overwritten without a copy: they are not bytes that others may share,
    /// such as those of a request.
    #[must_use]
    pub fn is_owned(&self) -> bool {
        !matches!(self.storage, Storage::Shared(_))
    }

    /// Returns a copy. Shared bytes are not copied, but shared with the result.
    ///
    /// # Errors
    /// Fails if the run is cancelled.
    pub fn copied(&self) -> Result<Self> {
        Ok(Self {
            element_type: self.element_type,
            shape: self.shape.clone(),
            len: self.len,
            storage: self.storage.copied()?,
        })
    }

    /// Reinterprets the elements as another type of the same width, without a copy.
    ///
    /// # Errors
    /// Fails if one of the types is strings, if `element_type` has a different width, or if it is booleans.
    pub fn into_bits_of(self, element_type: ElementType) -> Result<Self> {
        let from = self.element_type;
        let are_numbers = from.is_copy() && element_type.is_copy() && element_type != ElementType::Bool;
        ensure!(
            are_numbers && from.size_of() == element_type.size_of(),
            "bits of {from} are none of {element_type}"
        );
        Ok(Self { element_type, ..self })
    }

    /// Returns the bytes of the elements in row-major order, without a copy.
    ///
    /// # Errors
    /// Fails if the elements are strings.
    pub fn into_bytes(self) -> Result<Bytes> {
        self.storage.into_bytes().with_context(no_bytes)
    }

    /// Returns the bytes of a shared tensor's elements, without a copy. The bytes keep the tensor alive.
    ///
    /// # Errors
    /// Fails if the elements are strings.
    pub fn shared_bytes(self: &Arc<Self>) -> Result<Bytes> {
        match &self.storage {
            Storage::Shared(bytes) => Ok(bytes.clone()),
            Storage::Strings(_) => bail!(no_bytes()),
            _ => Ok(Bytes::from_owner(Owner(self.clone()))),
        }
    }

    /// Drops a value that no later step reads. Its memory is reused in the same run (see
    /// [`Tensor::unset_of`]), unless there are other references to it.
    pub fn release(self: Arc<Self>) {
        if let Some(value) = Arc::into_inner(self) {
            reuse::give(value.storage);
        }
    }

    /// Changes the shape. If there are other references, the result shares the elements of this tensor, which stay
    /// as they are. Strings and few elements are copied.
    ///
    /// # Errors
    /// Fails if the shape has a different number of elements.
    pub fn with_shape(self: Arc<Self>, shape: &[usize]) -> Result<Self> {
        /// A tensor that owns the bytes that others share.
        struct Owner(Arc<Tensor>);

        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes().unwrap_or_default()
            }
        }

        /// Copying less takes no longer than sharing.
        const LEAST: usize = 1 << 12;
        let bytes = self.len * self.element_type.size_of();
        let is_copied = !self.element_type.is_copy() || bytes < LEAST || Arc::strong_count(&self) == 1;
        if is_copied || !self.is_owned() {
            return self.own()?.into_shape(shape);
        }
        let (element_type, len) = (self.element_type, self.len);
        let storage = Storage::Shared(Bytes::from_owner(Owner(self)));
        Self::new(element_type, &[len], len, storage).into_shape(shape)
    }

    /// Changes the shape, without a copy.
    ///
    /// # Errors
    /// Fails if the shape has a different number of elements.
    pub fn into_shape(self, shape: &[usize]) -> Result<Self> {
        let len = count(self.element_type, shape)?;
        ensure!(
            len == self.len,
            "the shape {:?} has {} elements, {shape:?} has {len}",
            self.shape,
            self.len
        );
        Ok(Self {
            shape: shape.into(),
            ..self
        })
    }
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        let types = (self.element_type, self.shape()) == (other.element_type, other.shape());
        types && equal(self, other).unwrap_or(false)
    }
}

fn equal(one: &Tensor, other: &Tensor) -> Result<bool> {
    if one.element_type == ElementType::String {
        return Ok(one.as_slice::<String>()? == other.as_slice::<String>()?);
    }
    if !one.element_type.is_float() {
        return Ok(one.as_bytes()? == other.as_bytes()?);
    }
    with_number!(one.element_type, T => {
        let mut pairs = one.as_slice::<T>()?.iter().zip(other.as_slice::<T>()?);
        Ok(pairs.all(|(one, other)| one == other || (is_nan(one) && is_nan(other))))
    })
}

#[expect(clippy::eq_op, reason = "only NaN differs from itself")]
fn is_nan<T: Element>(number: &T) -> bool {
    number != number
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} ", self.element_type, &self.shape[..])?;
        match self.element_type {
            ElementType::Bool => elements::<bool>(self, f),
            ElementType::String => elements::<String>(self, f),
            number => match (|| with_number!(number, T => Ok(elements::<T>(self, f))))() {
                Ok(written) => written,
                Err(_) => Err(fmt::Error),
            },
        }
    }
}

/// Formats the first elements of a tensor, at most 12.
fn elements<T: Element>(tensor: &Tensor, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const MOST: usize = 12;
    let Ok(elements) = tensor.as_slice::<T>() else {
        return f.write_str("(invalid)");
    };
    let mut list = f.debug_list();
    list.entries(elements.iter().take(MOST));
    match elements.len() > MOST {
        true => list.finish_non_exhaustive(),
        false => list.finish(),
    }
}

/// Lets [`Bytes`] own a tensor of numbers.
struct Owner(Arc<Tensor>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.storage.bytes().unwrap_or_default()
    }
}

/// Returns the number of elements of a shape, after checking that their bytes fit into memory.
pub(crate) fn count(element_type: ElementType, shape: &[usize]) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    let len = shape.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
    len.filter(|len| {
        let bytes = len.checked_mul(element_type.size_of());
        bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok())
    })
    .with_context(|| format!("the shape {shape:?} of {element_type} has more elements than fit into memory"))
}

fn expect_type<T: Element>(found: ElementType) -> Result<()> {
    ensure!(
        found == T::ELEMENT_TYPE,
        "expected elements of {}, found {found}",
        T::ELEMENT_TYPE
    );
    Ok(())
}

fn expect_unit<U: Unit>(element_type: ElementType) -> Result<()> {
    ensure!(
        U::is_unit_of(element_type),
        "{} is not the unit of {element_type}",
        U::ELEMENT_TYPE
    );
    Ok(())
}

fn no_bytes() -> &'static str {
    "strings have no bytes of a fixed width"
}

/// Creates the error for elements whose bytes are invalid for the type, such as a boolean of 2.
fn invalid(element_type: ElementType) -> anyhow::Error {
    format_err!("the bytes are not valid elements of {element_type}")
}
