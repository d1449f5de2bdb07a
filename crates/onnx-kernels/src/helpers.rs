//! Functions that several operators share.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    elements::elements,
    faults::{BadInput, Unsupported, ensure_input},
    operator::Fact,
    size,
};

/// Creates the error for an element type that no row of the operators' table supports.
pub(crate) fn unsupported(element_type: ElementType) -> Error {
    Unsupported::Here(format!("is not supported for inputs of {element_type:?}")).into()
}

/// Returns the tensor without a copy if there are no other references to it, otherwise a copy.
pub(crate) fn own(tensor: Arc<Tensor>) -> Tensor {
    Arc::try_unwrap(tensor).unwrap_or_else(|tensor| (*tensor).clone())
}

/// Reshapes a tensor without a copy.
pub(crate) fn reshaped(tensor: Arc<Tensor>, shape: &[usize]) -> Result<Arc<Tensor>> {
    if tensor.shape() == shape {
        return Ok(tensor);
    }
    if tensor.element_type() == ElementType::String && Arc::strong_count(&tensor) > 1 {
        size::admit_contents(elements::<String>(&tensor)?.iter().map(|text| (text, 1)))?;
    }
    Ok(Arc::new(own(tensor).into_shape(shape)?))
}

/// Returns the elements of a tensor of sizes, axes or indices.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>> {
    match tensor.element_type() {
        ElementType::I64 => Ok(elements::<i64>(tensor)?.to_vec()),
        ElementType::I32 => Ok(elements::<i32>(tensor)?
            .iter()
            .map(|&number| number.into())
            .collect()),
        other => Err(BadInput(format!("{other:?} stands where INT64 is expected")).into()),
    }
}

/// Returns the elements like [`integers`], from a fact before a run. Returns `None` if the value is unknown.
pub(crate) fn known_integers(fact: &Fact) -> Result<Option<Vec<i64>>> {
    fact.constant.as_deref().map(integers).transpose()
}

/// Converts `numbers` to sizes. Refuses negative numbers.
pub(crate) fn sizes(numbers: &[i64]) -> Result<ShortVec<usize>> {
    let sizes: Option<ShortVec<usize>> = numbers
        .iter()
        .map(|&number| usize::try_from(number).ok())
        .collect();
    ensure_input!(
        sizes.is_some(),
        "dimensions {numbers:?} are wanted, expected none below 0"
    );
    Ok(sizes.unwrap_or_default())
}

/// Creates a zeroed tensor, after checking its size against the limits.
pub(crate) fn empty(element_type: ElementType, shape: &[usize]) -> Result<Tensor> {
    size::admit_shape(element_type, shape)?;
    Tensor::zero_of(element_type, shape)
}
