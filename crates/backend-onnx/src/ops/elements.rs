//! The elements of tract's tensors, with errors instead of panics.

use std::ops::{Add, Mul};

use tract_hir::internal::*;

use crate::faults::BadInput;

/// A tensor's elements in row-major order.
pub(crate) fn elements<T: Datum>(tensor: &Tensor) -> TractResult<&[T]> {
    tensor.try_as_plain_ram()?.as_slice::<T>()
}

/// The only number of a tensor, or its first one.
///
/// # Errors
/// [`BadInput`] if there is none; tract's own functions read past the end of a tensor without elements.
pub(crate) fn scalar<T: Datum + Copy>(tensor: &Tensor) -> TractResult<T> {
    if tensor.len() == 0 {
        bail!(BadInput("no number stands where one is needed".to_owned()));
    }
    tensor.cast_to_scalar::<T>()
}

/// FP32 or FP64.
pub(crate) trait Real:
    Element + Copy + PartialOrd + Into<f64> + Add<Output = Self> + Mul<Output = Self>
{
    /// Rounded.
    fn of(number: f64) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn of(number: f64) -> Self {
        number as Self
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(number: f64) -> Self {
        number
    }
}

/// A type of matrices.
pub(crate) trait Factor: Element + onnx_gemm::Number {}

impl<T: Element + onnx_gemm::Number> Factor for T {}

/// Runs `$body` with `$T` bound to the Rust type of FP32 or FP64.
macro_rules! with_real {
    ($datum_type:expr, $T:ident => $body:expr) => {
        match $datum_type {
            DatumType::F32 => {
                type $T = f32;
                $body
            }
            DatumType::F64 => {
                type $T = f64;
                $body
            }
            other => bail!("{other:?} is neither FP32 nor FP64"),
        }
    };
}
pub(crate) use with_real;

/// A type of elements.
pub(crate) trait Element: Datum {
    /// Whether elements have memory of their own, each as much as it wants.
    const HAS_CONTENTS: bool = false;

    /// Bytes of that memory.
    fn contents(&self) -> usize {
        0
    }

    /// A tensor of elements in row-major order. tract's own way, by `ndarray`, has room for any order: 20 KB of code for each type.
    fn tensor(shape: &[usize], elements: Vec<Self>) -> TractResult<Tensor>;

    /// A tensor of what is written over zeros.
    fn filled(shape: &[usize], fill: impl FnOnce(&mut [Self]) -> TractResult<()>) -> TractResult<Tensor>;
}

macro_rules! elements_that_are_copied {
    ($($type:ty)*) => {
        $(impl Element for $type {
            fn tensor(shape: &[usize], elements: Vec<Self>) -> TractResult<Tensor> {
                Tensor::from_shape(shape, &elements)
            }

            fn filled(shape: &[usize], fill: impl FnOnce(&mut [Self]) -> TractResult<()>) -> TractResult<Tensor> {
                let mut tensor = Tensor::zero_dt(Self::datum_type(), shape)?;
                fill(tensor.try_as_plain_ram_mut()?.as_slice_mut()?)?;
                Ok(tensor)
            }
        })*
    };
}
elements_that_are_copied! { f16 f32 f64 u8 u16 u32 u64 i8 i16 i32 i64 bool }

macro_rules! elements_that_are_moved {
    (@contents String) => {
        const HAS_CONTENTS: bool = true;

        fn contents(&self) -> usize {
            self.len()
        }
    };
    (@contents $type:ident) => {};
    ($($type:ident)*) => {
        $(impl Element for $type {
            elements_that_are_moved! { @contents $type }

            fn tensor(shape: &[usize], elements: Vec<Self>) -> TractResult<Tensor> {
                Ok(tract_ndarray::ArrayD::from_shape_vec(shape, elements)?.into_tensor())
            }

            fn filled(shape: &[usize], fill: impl FnOnce(&mut [Self]) -> TractResult<()>) -> TractResult<Tensor> {
                let mut elements = vec![Self::default(); shape.iter().product()];
                fill(&mut elements)?;
                Self::tensor(shape, elements)
            }
        })*
    };
}
elements_that_are_moved! { Blob String TDim }

/// A tensor of elements in row-major order.
pub(crate) fn tensor<T: Element>(shape: &[usize], elements: Vec<T>) -> TractResult<Tensor> {
    T::tensor(shape, elements)
}

/// A tensor of what is written over zeros, where it stands: [`tensor`] copies.
pub(crate) fn filled<T: Element>(
    shape: &[usize],
    fill: impl FnOnce(&mut [T]) -> TractResult<()>,
) -> TractResult<Tensor> {
    T::filled(shape, fill)
}

/// A value as another type; as it is, and not copied, if it has that one.
pub(crate) fn of_type(value: Tensor, datum_type: DatumType) -> TractResult<Tensor> {
    match value.datum_type() == datum_type {
        true => Ok(value),
        false => Ok(value.cast_to_dt(datum_type)?.into_owned()),
    }
}

/// Runs `$body` with `$T` bound to the Rust type of a numeric `$datum_type`.
macro_rules! with_number {
    ($datum_type:expr, $T:ident => $body:expr) => {
        with_number!(@match $datum_type, $T => $body, F16 f16, F32 f32, F64 f64, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64)
    };
    (@match $datum_type:expr, $T:ident => $body:expr, $($name:ident $type:ty),*) => {
        match $datum_type {
            $(DatumType::$name => {
                type $T = $type;
                $body
            })*
            other => bail!("{other:?} is not a number"),
        }
    };
}
pub(crate) use with_number;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn nothing_is_no_number() {
        assert_eq!(scalar::<i64>(&tensor1(&[7.0f32, 8.0])).unwrap(), 7);
        for nothing in [
            Tensor::zero::<f64>(&[0]).unwrap(),
            Tensor::zero::<i64>(&[3, 0]).unwrap(),
        ] {
            assert!(scalar::<f64>(&nothing).unwrap_err().is::<BadInput>());
        }
    }
}
