//! Access to the elements of tensors, by type.

use std::ops::{Add, Mul};

use crate::prelude::*;

use crate::{cancelling::Pace, faults::BadInput, tensor::count};

/// Returns a tensor's elements in row-major order.
///
/// # Errors
/// Fails if the elements have another type.
pub fn elements<T: Element>(tensor: &Tensor) -> Result<&[T]> {
    tensor.as_slice::<T>()
}

/// Returns a copy of a tensor's elements in row-major order.
///
/// # Errors
/// Fails if the elements have another type, or if the run is cancelled.
pub fn copied<T: Element>(tensor: &Tensor) -> Result<Vec<T>> {
    Pace::default().copy(tensor.as_slice::<T>()?)
}

/// Returns the first element, for tensors that have a single element.
///
/// # Errors
/// Returns [`BadInput`] if the tensor is empty, and an error if the element cannot be cast to `T`.
pub fn scalar<T: Element + Copy>(tensor: &Tensor) -> Result<T> {
    if tensor.is_empty() {
        bail!(BadInput(
            "an input has no elements, expected one number".to_owned()
        ));
    }
    tensor.cast_to_scalar::<T>()
}

/// The Rust types of FP32 and FP64.
pub trait Real: Element + Copy + PartialOrd + Into<f64> + Add<Output = Self> + Mul<Output = Self> {
    /// Rounds a number to this type.
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

/// An element type of matrix products.
pub trait Factor: Element + onnx_gemm::Number {}

impl<T: Element + onnx_gemm::Number> Factor for T {}

/// Evaluates `$body` with `$T` bound to the Rust type of FP32 or FP64.
#[macro_export]
macro_rules! with_real {
    ($element_type:expr, $T:ident => $body:expr) => {
        match $element_type {
            $crate::ElementType::F32 => {
                type $T = f32;
                $body
            }
            $crate::ElementType::F64 => {
                type $T = f64;
                $body
            }
            other => $crate::prelude::bail!("{other:?} is neither FP32 nor FP64"),
        }
    };
}
pub use crate::with_real;

/// Creates a tensor from elements in row-major order.
///
/// # Errors
/// Fails if the number of elements does not match the shape.
pub fn tensor<T: Element>(shape: &[usize], elements: Vec<T>) -> Result<Tensor> {
    Tensor::from_vec(shape, elements)
}

/// Creates a tensor of zeros that `fill` overwrites.
///
/// # Errors
/// Returns the error of `fill`, and an error if there are more elements than addresses in memory.
pub fn filled<T: Element>(shape: &[usize], fill: impl FnOnce(&mut [T]) -> Result<()>) -> Result<Tensor> {
    if T::ELEMENT_TYPE == ElementType::Bool {
        // A slice of a tensor of BOOL would check each element first.
        let mut elements = vec![T::default(); count(T::ELEMENT_TYPE, shape)?];
        fill(&mut elements)?;
        return Tensor::from_vec(shape, elements);
    }
    let mut tensor = Tensor::zero::<T>(shape)?;
    fill(tensor.as_slice_mut()?)?;
    Ok(tensor)
}

/// Creates a tensor whose elements `write` sets. `write` must set every element, because the elements are
/// unspecified before; see [`Tensor::unset_of`].
///
/// # Errors
/// Returns the errors of [`filled`].
pub fn written<T: Element>(shape: &[usize], write: impl FnOnce(&mut [T]) -> Result<()>) -> Result<Tensor> {
    if T::ELEMENT_TYPE == ElementType::Bool {
        return filled(shape, write);
    }
    let mut tensor = Tensor::unset_of(T::ELEMENT_TYPE, shape)?;
    write(tensor.as_slice_mut()?)?;
    Ok(tensor)
}

/// Casts a value to another type, without a copy if it already has that type.
///
/// # Errors
/// Fails if strings would be cast to another type, or another type to strings.
pub fn of_type(value: Tensor, element_type: ElementType) -> Result<Tensor> {
    value.into_type(element_type)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn nothing_is_no_number() {
        assert_eq!(scalar::<i64>(&Tensor::vector(&[7.0f32, 8.0])).unwrap(), 7);
        for nothing in [
            Tensor::zero::<f64>(&[0]).unwrap(),
            Tensor::zero::<i64>(&[3, 0]).unwrap(),
        ] {
            assert!(scalar::<f64>(&nothing).unwrap_err().is::<BadInput>());
        }
    }
}
