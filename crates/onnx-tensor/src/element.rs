//! The element types, as Rust types.

use std::fmt;

use half::f16;

use crate::{ElementType, storage::Stored};

/// A Rust type for the elements of a tensor.
///
/// The trait is implemented for `bool`, integers, `f16`, `f32`, `f64` and `String`, and cannot be implemented
/// outside of this crate.
///
/// ```
/// use onnx_tensor::{Element, ElementType, Tensor};
///
/// fn filled<T: Element>(value: T, count: usize) -> Tensor {
///     Tensor::vector(&vec![value; count])
/// }
/// assert_eq!(filled(1.5f32, 3).element_type(), ElementType::F32);
/// ```
pub trait Element: Stored + Default + Clone + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The [`ElementType`] that corresponds to this Rust type.
    const ELEMENT_TYPE: ElementType;

    /// Whether elements own memory in addition to their own bytes, as strings do.
    const HAS_CONTENTS: bool = false;

    /// Returns the [`ElementType`] that corresponds to this Rust type.
    #[must_use]
    fn element_type() -> ElementType {
        Self::ELEMENT_TYPE
    }

    /// Returns how many bytes of memory the element owns in addition to its own bytes.
    fn contents(&self) -> usize {
        0
    }
}

macro_rules! elements {
    ($($name:ident $type:ty),*) => {
        $(impl Element for $type {
            const ELEMENT_TYPE: ElementType = ElementType::$name;
        })*
    };
}
elements! {
    Bool bool, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64, F16 f16, F32 f32, F64 f64
}

impl Element for String {
    const ELEMENT_TYPE: ElementType = ElementType::String;
    const HAS_CONTENTS: bool = true;

    fn contents(&self) -> usize {
        self.len()
    }
}

/// The type that represents all elements of its width: `u8`, `u16`, `u32`, `u64`, and `String`.
///
/// Operators that only move elements are generic over units, so they are compiled for 5 types instead of 13.
/// [`with_unit!`](crate::with_unit) binds the unit of an element type.
///
/// ```
/// use onnx_tensor::{Tensor, Unit};
///
/// fn swapped<U: Unit>(pair: &Tensor) -> onnx_tensor::prelude::Result<Tensor> {
///     let units = pair.as_units::<U>()?.iter().rev().cloned().collect();
///     Tensor::from_units::<U>(pair.element_type(), pair.shape(), units)
/// }
/// assert_eq!(swapped::<u32>(&Tensor::vector(&[1.0f32, -2.0]))?, Tensor::vector(&[-2.0f32, 1.0]));
/// # Ok::<(), onnx_tensor::prelude::Error>(())
/// ```
pub trait Unit: Element {
    /// Returns whether this type is the unit of `element_type`.
    #[must_use]
    fn is_unit_of(element_type: ElementType) -> bool {
        Self::ELEMENT_TYPE.size_of() == element_type.size_of()
            && Self::ELEMENT_TYPE.is_copy() == element_type.is_copy()
    }
}

impl Unit for u8 {}
impl Unit for u16 {}
impl Unit for u32 {}
impl Unit for u64 {}
impl Unit for String {}

/// Evaluates `$body` with `$U` bound to the [`Unit`](crate::Unit) of an [`ElementType`](crate::ElementType).
#[macro_export]
macro_rules! with_unit {
    ($element_type:expr, $U:ident => $body:expr) => {
        match $element_type {
            $crate::ElementType::Bool | $crate::ElementType::U8 | $crate::ElementType::I8 => {
                type $U = u8;
                $body
            }
            $crate::ElementType::U16 | $crate::ElementType::I16 | $crate::ElementType::F16 => {
                type $U = u16;
                $body
            }
            $crate::ElementType::U32 | $crate::ElementType::I32 | $crate::ElementType::F32 => {
                type $U = u32;
                $body
            }
            $crate::ElementType::U64 | $crate::ElementType::I64 | $crate::ElementType::F64 => {
                type $U = u64;
                $body
            }
            $crate::ElementType::String => {
                type $U = ::std::string::String;
                $body
            }
        }
    };
}

/// Evaluates `$body` with `$T` bound to the Rust type of a numeric [`ElementType`](crate::ElementType).
///
/// For booleans and strings, the macro returns an error from the surrounding function.
#[macro_export]
macro_rules! with_number {
    ($element_type:expr, $T:ident => $body:expr) => {
        $crate::with_number!(
            @match $element_type, $T => $body, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32,
            I64 i64, F16 $crate::prelude::f16, F32 f32, F64 f64
        )
    };
    (@match $element_type:expr, $T:ident => $body:expr, $($name:ident $type:ty),*) => {
        match $element_type {
            $($crate::ElementType::$name => {
                type $T = $type;
                $body
            })*
            other => $crate::prelude::bail!("expected a number, found {other:?}"),
        }
    };
}
