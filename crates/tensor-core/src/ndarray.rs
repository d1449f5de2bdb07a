//! Converts tensors to `ndarray` arrays and back (feature `ndarray`).

use std::borrow::Cow;

use ndarray::{Array, ArrayBase, ArrayD, ArrayViewD, Data, Dimension, IxDyn};

use crate::{CastError, Element, Shape, SpecError, Tensor, TensorView};

impl<'a> TensorView<'a> {
    /// Returns the elements in place as an array (feature `ndarray`).
    ///
    /// # Errors
    /// The errors of [`TensorView::as_slice`]; [`CastError::Shape`] for dimensions that `ndarray` does not
    /// support, which is possible for a tensor without elements.
    pub fn to_array_view<T: Element>(&self) -> Result<ArrayViewD<'a, T>, CastError> {
        let elements = self.as_slice()?;
        ArrayViewD::from_shape(dims_of(self.shape())?, elements).map_err(|_| too_large(self.shape()))
    }

    /// Returns a copy of the elements as an array (feature `ndarray`), whatever the bytes' alignment.
    ///
    /// # Errors
    /// [`CastError::DType`] when the dtype differs; [`CastError::Shape`] as for
    /// [`TensorView::to_array_view`].
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, CastError> {
        let elements = self.to_cow().map(Cow::into_owned)?;
        ArrayD::from_shape_vec(dims_of(self.shape())?, elements).map_err(|_| too_large(self.shape()))
    }
}

fn dims_of(shape: &Shape) -> Result<IxDyn, CastError> {
    let dims = shape.dims().iter().map(|dim| usize::try_from(*dim).ok());
    let dims: Option<Vec<usize>> = dims.collect();
    dims.map(|dims| IxDyn(&dims)).ok_or_else(|| too_large(shape))
}

fn too_large(shape: &Shape) -> CastError {
    CastError::Shape { shape: shape.clone() }
}

impl<'a, T: Element> TryFrom<TensorView<'a>> for ArrayViewD<'a, T> {
    type Error = CastError;

    fn try_from(view: TensorView<'a>) -> Result<Self, CastError> {
        view.to_array_view()
    }
}

impl<'a, T: Element> TryFrom<&'a Tensor> for ArrayViewD<'a, T> {
    type Error = CastError;

    fn try_from(tensor: &'a Tensor) -> Result<Self, CastError> {
        tensor.view().to_array_view()
    }
}

impl<T: Element> TryFrom<&Tensor> for ArrayD<T> {
    type Error = CastError;

    fn try_from(tensor: &Tensor) -> Result<Self, CastError> {
        tensor.view().to_array()
    }
}

/// On little-endian hosts, a row-major array is converted without a copy.
impl<T: Element, D: Dimension> TryFrom<Array<T, D>> for Tensor {
    type Error = SpecError;

    fn try_from(array: Array<T, D>) -> Result<Self, SpecError> {
        // A slice of a larger array, or an array in another order, is copied.
        if !array.is_standard_layout() {
            return Self::try_from(&array);
        }
        let shape = shape_of(array.shape())?;
        let (mut elements, offset) = array.into_raw_vec_and_offset();
        elements.drain(..offset.unwrap_or(0));
        // The array is in memory, so the number of elements fits in `usize`.
        elements.truncate(shape.element_count() as usize);
        Self::from_vec(shape, elements)
    }
}

/// Copies the elements in row-major order.
impl<T, S, D> TryFrom<&ArrayBase<S, D>> for Tensor
where
    T: Element,
    S: Data<Elem = T>,
    D: Dimension,
{
    type Error = SpecError;

    fn try_from(array: &ArrayBase<S, D>) -> Result<Self, SpecError> {
        let shape = shape_of(array.shape())?;
        match array.as_slice() {
            Some(elements) => Self::from_slice(shape, elements),
            None => Self::from_vec(shape, array.iter().copied().collect()),
        }
    }
}

fn shape_of(dims: &[usize]) -> Result<Shape, SpecError> {
    let dims: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
    Shape::new(&dims)
}
