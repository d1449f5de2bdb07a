//! The Rust types of elements, and conversions between them and bytes.

use std::{borrow::Cow, fmt};

use half::{bf16, f16};

use crate::{CastError, DType};

/// A Rust type whose values are the elements of one [`DType`].
///
/// Implemented for `bool`, the integers from `u8` to `i64`, [`f16`](struct@f16), [`bf16`], `f32` and `f64`.
/// The trait is sealed: typed access relies on exactly these layouts.
///
/// ```
/// use tensor_core::{DType, Element, bf16};
///
/// fn bytes_per_row<T: Element>(columns: usize) -> usize {
///     columns * T::DTYPE.size()
/// }
/// assert_eq!(bytes_per_row::<bf16>(10), 20);
/// assert_eq!(<bool as Element>::DTYPE, DType::Bool);
/// ```
pub trait Element:
    sealed::Layout + Copy + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static
{
    /// The dtype of tensors whose elements have this type.
    const DTYPE: DType;
}

/// Casts little-endian bytes to elements in place.
pub(crate) fn cast<T: Element>(bytes: &[u8]) -> Result<&[T], CastError> {
    if cfg!(target_endian = "big") && T::DTYPE.size() > 1 {
        return Err(CastError::Endianness { dtype: T::DTYPE });
    }
    T::cast(bytes)
}

/// Casts little-endian bytes to elements in place if possible, and copies them otherwise.
pub(crate) fn cast_or_copy<T: Element>(bytes: &[u8]) -> Cow<'_, [T]> {
    match cast(bytes) {
        Ok(elements) => Cow::Borrowed(elements),
        Err(_) => Cow::Owned(copy(bytes)),
    }
}

/// Copies little-endian bytes of any alignment into a vector of elements: one `memcpy` on little-endian
/// hosts.
fn copy<T: Element>(bytes: &[u8]) -> Vec<T> {
    if cfg!(target_endian = "big") && T::DTYPE.size() > 1 {
        return iter(bytes).collect();
    }
    T::copy(bytes)
}

/// Iterates over the elements in little-endian bytes of any alignment.
pub(crate) fn iter<T: Element>(bytes: &[u8]) -> impl ExactSizeIterator<Item = T> + '_ {
    bytes.chunks_exact(T::DTYPE.size()).map(T::read_le)
}

/// Returns the little-endian bytes of elements, in place if the host is little-endian.
pub(crate) fn le_bytes<T: Element>(elements: &[T]) -> Cow<'_, [u8]> {
    let native: &[u8] = bytemuck::cast_slice(elements);
    if cfg!(target_endian = "little") || T::DTYPE.size() == 1 {
        return Cow::Borrowed(native);
    }
    let mut swapped = native.to_vec();
    for element in swapped.chunks_exact_mut(T::DTYPE.size()) {
        element.reverse();
    }
    Cow::Owned(swapped)
}

mod sealed {
    use super::CastError;

    pub trait Layout: bytemuck::NoUninit {
        /// Casts native-endian bytes in place.
        fn cast(bytes: &[u8]) -> Result<&[Self], CastError>;
        /// Copies native-endian bytes of any alignment.
        fn copy(bytes: &[u8]) -> Vec<Self>;
        /// Reads one element from its little-endian bytes; `bytes` has exactly the element's size.
        fn read_le(bytes: &[u8]) -> Self;
    }
}

macro_rules! number {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Layout for $type {
            fn cast(bytes: &[u8]) -> Result<&[Self], CastError> {
                bytemuck::try_cast_slice(bytes).map_err(|_| CastError::Misaligned { dtype: DType::$dtype })
            }

            fn copy(bytes: &[u8]) -> Vec<Self> {
                bytemuck::pod_collect_to_vec(bytes)
            }

            #[inline]
            fn read_le(bytes: &[u8]) -> Self {
                let mut exact = [0; size_of::<$type>()];
                exact.copy_from_slice(bytes);
                <$type>::from_le_bytes(exact)
            }
        }

        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

number! {
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
}

impl sealed::Layout for bool {
    fn cast(bytes: &[u8]) -> Result<&[Self], CastError> {
        match bytes.iter().position(|&byte| byte > 1) {
            Some(index) => Err(CastError::NotBool {
                index,
                byte: bytes[index],
            }),
            // Every byte is 0 or 1, so the checked cast cannot fail.
            None => bytemuck::checked::try_cast_slice(bytes)
                .map_err(|_| CastError::Misaligned { dtype: DType::Bool }),
        }
    }

    fn copy(bytes: &[u8]) -> Vec<Self> {
        bytes.iter().map(|&byte| byte != 0).collect()
    }

    #[inline]
    fn read_le(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
}

/// Runs `$body` with `$T` bound to the Rust type of `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => {
                type $T = bool;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::DType::U64 => {
                type $T = u64;
                $body
            }
            $crate::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}
pub(crate) use with_element;
