//! Functions that several operators share.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    elements::{copied, elements},
    faults::{BadInput, Unsupported, ensure_input},
    operator::Fact,
    size,
};

/// Creates the error for an element type that no row of the operators' table supports.
pub(crate) fn unsupported(element_type: ElementType) -> Error {
    Unsupported::Here(format!("is not supported for inputs of {element_type:?}")).into()
}

/// Reshapes a tensor without a copy.
pub(crate) fn reshaped(tensor: Arc<Tensor>, shape: &[usize]) -> Result<Arc<Tensor>> {
    if tensor.shape() == shape {
        return Ok(tensor);
    }
    if tensor.element_type() == ElementType::String && Arc::strong_count(&tensor) > 1 {
        size::admit_contents(elements::<String>(&tensor)?.iter().map(|text| (text, 1)))?;
    }
    Ok(Arc::new(tensor.own()?.into_shape(shape)?))
}

/// Returns the elements of a tensor of sizes, axes or indices.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>> {
    match tensor.element_type() {
        ElementType::I64 => copied(tensor),
        ElementType::I32 => Pace::default().map(elements(tensor)?, |&number: &i32| number.into()),
        other => Err(BadInput(format!(
            "sizes, axes or indices are {other:?}, expected INT64 or INT32"
        ))
        .into()),
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
