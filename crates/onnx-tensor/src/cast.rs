//! Casts between element types, with the semantics of Rust's `as`.
//!
//! Floats are truncated to integers and clamped to the range of the type, NaN becomes 0, and wider integers
//! wrap. FP16 is cast through FP32. Booleans become 0 and 1; numbers other than 0, including NaN, become
//! true. Strings cannot be cast.

use std::borrow::Cow;

use anyhow::{Result, bail};
use half::{f16, slice::HalfFloatSliceExt};

use crate::{Element, ElementType, Tensor, cancelling::Pace, with_number};

impl Tensor {
    /// Casts the tensor to elements of type `T`, borrowed if it already has that type.
    ///
    /// # Errors
    /// Fails if strings would be cast to another type, or another type to strings, or if the run is
    /// cancelled.
    ///
    /// ```
    /// use onnx_tensor::Tensor;
    ///
    /// let numbers = Tensor::vector(&[1.9f32, -1.0, f32::NAN, 300.0]);
    /// assert_eq!(*numbers.cast_to::<u8>()?, Tensor::vector(&[1u8, 0, 0, 255]));
    /// # Ok::<(), onnx_tensor::prelude::Error>(())
    /// ```
    pub fn cast_to<T: Element>(&self) -> Result<Cow<'_, Self>> {
        self.cast_to_type(T::ELEMENT_TYPE)
    }

    /// Casts the tensor to another element type, borrowed if it already has that type.
    ///
    /// # Errors
    /// Fails if strings would be cast to another type, or another type to strings, or if the run is
    /// cancelled.
    pub fn cast_to_type(&self, to: ElementType) -> Result<Cow<'_, Self>> {
        let from = self.element_type();
        if from == to {
            return Ok(Cow::Borrowed(self));
        }
        if !from.is_copy() || !to.is_copy() {
            bail!("cannot cast {from} to {to}: strings are not cast");
        }
        let cast = if (from, to) == (ElementType::F32, ElementType::F16) {
            // The crate `half` converts slices with the instructions of the processor.
            let mut halves = Self::unset_of(to, self.shape())?;
            let to = halves.as_slice_mut::<f16>()?;
            Pace::default().pairs(self.as_slice::<f32>()?, to, |from, to| {
                to.convert_from_f32_slice(from);
            })?;
            Ok(halves)
        } else if (from, to) == (ElementType::F16, ElementType::F32) {
            let mut singles = Self::unset_of(to, self.shape())?;
            let to = singles.as_slice_mut::<f32>()?;
            Pace::default().pairs(
                self.as_slice::<f16>()?,
                to,
                HalfFloatSliceExt::convert_to_f32_slice,
            )?;
            Ok(singles)
        } else if from == ElementType::Bool {
            with_number!(to, T => self.mapped(|&element: &bool| T::cast_from(u8::from(element))))
        } else if to == ElementType::Bool {
            with_number!(from, S => self.mapped(|element: &S| *element != S::default()))
        } else {
            with_number!(from, S => with_number!(to, T => self.mapped(|&element: &S| T::cast_from(element))))
        };
        cast.map(Cow::Owned)
    }

    /// Casts to another type, without a copy if the tensor already has that type.
    ///
    /// # Errors
    /// Fails if strings would be cast to another type, or another type to strings, or if the run is
    /// cancelled.
    pub fn into_type(self, to: ElementType) -> Result<Self> {
        match self.element_type() == to {
            true => Ok(self),
            false => Ok(self.cast_to_type(to)?.into_owned()),
        }
    }

    /// Returns the first element, cast to `T`.
    ///
    /// # Errors
    /// Fails if the tensor is empty, or if strings would be cast to another type, or another type to strings.
    pub fn cast_to_scalar<T: Element>(&self) -> Result<T> {
        let [element] = <[T; 1]>::try_from(self.nth(0)?.into_type(T::ELEMENT_TYPE)?.into_vec::<T>()?)
            .map_err(|elements| anyhow::format_err!("expected 1 element, found {}", elements.len()))?;
        Ok(element)
    }

    fn mapped<S: Element, T: Element>(&self, map: impl Fn(&S) -> T) -> Result<Self> {
        Self::from_vec(self.shape(), Pace::default().map(self.as_slice::<S>()?, map)?)
    }
}

/// Converts a number like Rust's `as`, but also supports FP16.
trait CastFrom<S> {
    fn cast_from(number: S) -> Self;
}

macro_rules! cast_from_primitives {
    ($to:ty: $($from:ty)*) => {
        $(impl CastFrom<$from> for $to {
            fn cast_from(number: $from) -> Self {
                number as Self
            }
        })*
    };
}

macro_rules! casts {
    ($($type:ty)*) => {
        $(
            cast_from_primitives! { $type: u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }

            impl CastFrom<f16> for $type {
                fn cast_from(number: f16) -> Self {
                    number.to_f32() as Self
                }
            }
        )*
    };
}
casts! { u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }

macro_rules! cast_to_f16 {
    ($($from:ty)*) => {
        $(impl CastFrom<$from> for f16 {
            fn cast_from(number: $from) -> Self {
                Self::from_f32(number as f32)
            }
        })*
    };
}
cast_to_f16! { u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }

impl CastFrom<Self> for f16 {
    fn cast_from(number: Self) -> Self {
        number
    }
}
