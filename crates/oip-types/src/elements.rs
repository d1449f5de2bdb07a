//! Typed elements of a tensor, for models and clients that compute with them.

use std::ops::{Deref, DerefMut};

use tensor_core::{Element, Shape, SpecError, Tensor};

use crate::TensorValue;

/// The elements of a tensor in row-major order, with its shape. Models get this type from
/// [`InferRequest::take`](crate::InferRequest::take), clients from
/// [`InferResponse::get`](crate::InferResponse::get). The value dereferences to a slice of its elements, and
/// converts into a tensor.
///
/// ```
/// use oip_types::{DataType, Elements, TensorValue};
/// use tensor_core::Shape;
///
/// let x = Elements::new(Shape::new(&[2, 2])?, vec![1.0f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(x.iter().sum::<f32>(), 10.0);
/// let rounded: TensorValue = x.map(|x| x as i64).into();
/// assert_eq!((rounded.datatype(), rounded.shape().dims()), (DataType::INT64, &[2, 2][..]));
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Elements<T> {
    shape: Shape,
    values: Vec<T>,
}

impl<T: Element> Elements<T> {
    /// Combines a shape with its elements.
    ///
    /// # Errors
    /// [`SpecError::LengthMismatch`] when `values` does not have the shape's number of elements.
    pub fn new(shape: Shape, values: Vec<T>) -> Result<Self, SpecError> {
        let spec = tensor_core::TensorSpec::new(T::DTYPE, shape)?;
        let found = (values.len() * T::DTYPE.size()) as u64;
        let expected = spec.byte_len();
        if found != expected {
            return Err(SpecError::LengthMismatch {
                dtype: T::DTYPE,
                shape: spec.shape().clone(),
                expected,
                found,
            });
        }
        Ok(Self {
            shape: spec.shape().clone(),
            values,
        })
    }

    /// Returns the shape that the elements have.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the elements as a vector, without their shape.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.values
    }

    /// Applies `change` to every element and keeps the shape.
    #[must_use]
    pub fn map<U: Element>(self, change: impl FnMut(T) -> U) -> Elements<U> {
        Elements {
            shape: self.shape,
            values: self.values.into_iter().map(change).collect(),
        }
    }
}

impl<T> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<T> IntoIterator for Elements<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl<'e, T> IntoIterator for &'e Elements<T> {
    type Item = &'e T;
    type IntoIter = std::slice::Iter<'e, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

impl<T: Element> From<Elements<T>> for Tensor {
    fn from(elements: Elements<T>) -> Self {
        let tensor = Self::from_vec(elements.shape, elements.values);
        // This cannot fail: the elements match the shape, and since they are in memory, their size does not
        // overflow.
        tensor.unwrap_or_else(|_| unreachable!("elements fit their shape"))
    }
}

impl<T: Element> From<Elements<T>> for TensorValue {
    fn from(elements: Elements<T>) -> Self {
        Self::Fixed(elements.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_fit_their_shape_whatever_they_become() {
        let shape = Shape::new(&[2, 3]).unwrap();
        let error = Elements::new(shape.clone(), vec![1u8; 5]).unwrap_err();
        assert_eq!(error.to_string(), "u8[2, 3] takes 6 bytes, found 5");
        let mut elements = Elements::new(shape, vec![1u8; 6]).unwrap();
        elements[5] = 7;
        let wider: Tensor = elements.map(f64::from).into();
        assert_eq!(wider.to_vec::<f64>().unwrap(), [1.0, 1.0, 1.0, 1.0, 1.0, 7.0]);
        let empty = Elements::<f32>::new(Shape::vector(0), vec![]).unwrap();
        assert!(Tensor::from(empty).bytes().is_empty());
    }
}
