//! The memory of a tensor's elements, by element width.
//!
//! Numbers of one width share a variant, so code that moves elements is compiled once per width. Views of a
//! type are checked casts of the crate `bytemuck`.

use bytemuck::{AnyBitPattern, CheckedBitPattern, NoUninit, allocation, checked};
use bytes::Bytes;
use half::f16;

use crate::{ElementType, cancelling::Pace, prelude::Result};

/// The elements of a tensor in row-major order.
#[derive(Clone)]
pub enum Storage {
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    Strings(Vec<String>),
    /// Numbers in shared memory, aligned for their type. The memory is never empty, since an empty slice may
    /// be unaligned.
    Shared(Bytes),
}

impl Storage {
    /// Creates `count` elements: zeros, or empty strings.
    pub fn zero(element_type: ElementType, count: usize) -> Self {
        match element_type.size_of() {
            _ if !element_type.is_copy() => Self::Strings(vec![String::new(); count]),
            1 => Self::U8(vec![0; count]),
            2 => Self::U16(vec![0; count]),
            4 => Self::U32(vec![0; count]),
            _ => Self::U64(vec![0; count]),
        }
    }

    /// Returns the bytes of an element; `None` for strings, and for shared memory.
    pub fn width(&self) -> Option<usize> {
        match self {
            Self::U8(_) => Some(1),
            Self::U16(_) => Some(2),
            Self::U32(_) => Some(4),
            Self::U64(_) => Some(8),
            Self::Strings(_) | Self::Shared(_) => None,
        }
    }

    /// Returns the capacity of an owned vector, in elements.
    pub fn capacity(&self) -> usize {
        match self {
            Self::U8(units) => units.capacity(),
            Self::U16(units) => units.capacity(),
            Self::U32(units) => units.capacity(),
            Self::U64(units) => units.capacity(),
            Self::Strings(strings) => strings.capacity(),
            Self::Shared(bytes) => bytes.len(),
        }
    }

    /// Changes the number of elements of an owned vector of numbers. New elements are zeros.
    pub fn resize(&mut self, count: usize) {
        match self {
            Self::U8(units) => units.resize(count, 0),
            Self::U16(units) => units.resize(count, 0),
            Self::U32(units) => units.resize(count, 0),
            Self::U64(units) => units.resize(count, 0),
            Self::Strings(_) | Self::Shared(_) => {}
        }
    }

    /// Returns the bytes of numbers; `None` for strings.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::U8(units) => Some(units),
            Self::U16(units) => Some(bytemuck::cast_slice(units)),
            Self::U32(units) => Some(bytemuck::cast_slice(units)),
            Self::U64(units) => Some(bytemuck::cast_slice(units)),
            Self::Shared(bytes) => Some(bytes),
            Self::Strings(_) => None,
        }
    }

    /// Returns the bytes of numbers as a mutable slice; `None` for strings, and for shared memory.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::U8(units) => Some(units),
            Self::U16(units) => Some(bytemuck::cast_slice_mut(units)),
            Self::U32(units) => Some(bytemuck::cast_slice_mut(units)),
            Self::U64(units) => Some(bytemuck::cast_slice_mut(units)),
            Self::Strings(_) | Self::Shared(_) => None,
        }
    }

    /// Converts numbers to shared memory without a copy; `None` for strings.
    pub fn into_bytes(self) -> Option<Bytes> {
        match self {
            Self::U8(units) => Some(Bytes::from_owner(Owner(units))),
            Self::U16(units) => Some(Bytes::from_owner(Owner(units))),
            Self::U32(units) => Some(Bytes::from_owner(Owner(units))),
            Self::U64(units) => Some(Bytes::from_owner(Owner(units))),
            Self::Shared(bytes) => Some(bytes),
            Self::Strings(_) => None,
        }
    }

    /// Copies shared memory into an owned vector of `element_type`.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn own(&mut self, element_type: ElementType) -> Result<()> {
        let Self::Shared(bytes) = self else {
            return Ok(());
        };
        let mut pace = Pace::default();
        // These copies do not zero the memory first, and the compiler vectorizes their loops.
        *self = match element_type.size_of() {
            1 => Self::U8(pace.copy(bytes)?),
            2 => Self::U16(pace.map(bytes.as_chunks().0, |unit| u16::from_ne_bytes(*unit))?),
            4 => Self::U32(pace.map(bytes.as_chunks().0, |unit| u32::from_ne_bytes(*unit))?),
            _ => Self::U64(pace.map(bytes.as_chunks().0, |unit| u64::from_ne_bytes(*unit))?),
        };
        Ok(())
    }

    /// Returns a copy. Shared memory is not copied, but shared with the result.
    ///
    /// # Errors
    /// Returns the errors of [`Pace::spend`].
    pub fn copied(&self) -> Result<Self> {
        let mut pace = Pace::default();
        Ok(match self {
            Self::U8(units) => Self::U8(pace.copy(units)?),
            Self::U16(units) => Self::U16(pace.copy(units)?),
            Self::U32(units) => Self::U32(pace.copy(units)?),
            Self::U64(units) => Self::U64(pace.copy(units)?),
            Self::Strings(strings) => Self::Strings(pace.copy(strings)?),
            Self::Shared(bytes) => Self::Shared(bytes.clone()),
        })
    }
}

/// Lets [`Bytes`] own a vector of numbers.
struct Owner<T>(Vec<T>);

impl<T: NoUninit> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// A Rust type that the elements of a [`Storage`] can be viewed as. A view is `None` if the width of the type
/// differs from that of the elements.
pub trait Stored: Sized {
    /// Turns a vector into a storage, without a copy.
    fn store(elements: Vec<Self>) -> Storage;

    /// Returns the elements as a slice of this type.
    fn view(storage: &Storage) -> Option<&[Self]>;

    /// Returns the elements as a mutable slice; `None` if the memory is shared.
    fn view_mut(storage: &mut Storage) -> Option<&mut [Self]>;

    /// Returns the elements as a vector, without a copy; `None` if the memory is shared.
    fn into_vec(storage: Storage) -> Option<Vec<Self>>;
}

/// Implements [`Stored`] for numbers. `$from_vec` and `$into_vec` cast vectors in place.
macro_rules! stored_as {
    ($variant:ident by $from_vec:expr, $into_vec:expr => $($type:ty)*) => {
        $(impl Stored for $type {
            fn store(elements: Vec<Self>) -> Storage {
                Storage::$variant($from_vec(elements))
            }

            fn view(storage: &Storage) -> Option<&[Self]> {
                match storage {
                    Storage::$variant(units) => cast(units),
                    Storage::Shared(bytes) => cast(bytes),
                    _ => None,
                }
            }

            fn view_mut(storage: &mut Storage) -> Option<&mut [Self]> {
                match storage {
                    Storage::$variant(units) => checked::try_cast_slice_mut(units).ok(),
                    _ => None,
                }
            }

            fn into_vec(storage: Storage) -> Option<Vec<Self>> {
                match storage {
                    Storage::$variant(units) => Some($into_vec(units)),
                    Storage::Shared(bytes) => cast(&bytes).map(<[Self]>::to_vec),
                    _ => None,
                }
            }
        })*
    };
}
stored_as! { U8 by allocation::cast_vec, allocation::cast_vec => u8 i8 }
stored_as! { U8 by allocation::cast_vec, truths => bool }
stored_as! { U16 by allocation::cast_vec, allocation::cast_vec => u16 i16 f16 }
stored_as! { U32 by allocation::cast_vec, allocation::cast_vec => u32 i32 f32 }
stored_as! { U64 by allocation::cast_vec, allocation::cast_vec => u64 i64 f64 }

impl Stored for String {
    fn store(elements: Vec<Self>) -> Storage {
        Storage::Strings(elements)
    }

    fn view(storage: &Storage) -> Option<&[Self]> {
        match storage {
            Storage::Strings(strings) => Some(strings),
            _ => None,
        }
    }

    fn view_mut(storage: &mut Storage) -> Option<&mut [Self]> {
        match storage {
            Storage::Strings(strings) => Some(strings),
            _ => None,
        }
    }

    fn into_vec(storage: Storage) -> Option<Vec<Self>> {
        match storage {
            Storage::Strings(strings) => Some(strings),
            _ => None,
        }
    }
}

/// Converts bytes to booleans in place: `collect` reuses the vector's memory.
fn truths(bytes: Vec<u8>) -> Vec<bool> {
    bytes.into_iter().map(|byte| byte != 0).collect()
}

/// Casts units to another type, if all elements are valid for it.
fn cast<A: NoUninit + AnyBitPattern, B: CheckedBitPattern>(units: &[A]) -> Option<&[B]> {
    checked::try_cast_slice(units).ok()
}
