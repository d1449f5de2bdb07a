//! What several operators need.

use std::sync::Arc;

use tract_hir::internal::*;

use crate::{
    faults::{BadInput, Unsupported, ensure_input},
    ops::{elements::elements, kernel::Fact},
    size,
};

/// Why nothing computes an operator for a type that no row of the table admits.
pub(in crate::ops) fn unsupported(datum_type: DatumType) -> TractError {
    Unsupported::Here(format!("is not supported for inputs of {datum_type:?}")).into()
}

/// A tensor that may be written over: this one, or a copy if something else holds it too.
pub(super) fn own(tensor: Arc<Tensor>) -> Tensor {
    Arc::try_unwrap(tensor).unwrap_or_else(|tensor| (*tensor).clone())
}

/// A tensor with other dimensions for the same elements.
pub(super) fn reshaped(tensor: Arc<Tensor>, shape: &[usize]) -> TractResult<Arc<Tensor>> {
    if tensor.shape() == shape {
        return Ok(tensor);
    }
    if tensor.datum_type() == DatumType::String && Arc::strong_count(&tensor) > 1 {
        size::admit_contents(elements::<String>(&tensor)?.iter().map(|text| (text, 1)))?;
    }
    Ok(Arc::new(own(tensor).into_shape(shape)?))
}

/// The whole numbers of a value that says sizes, axes or places.
pub(super) fn integers(tensor: &Tensor) -> TractResult<Vec<i64>> {
    match tensor.datum_type() {
        DatumType::I64 => Ok(elements::<i64>(tensor)?.to_vec()),
        DatumType::I32 => Ok(elements::<i32>(tensor)?
            .iter()
            .map(|&number| number.into())
            .collect()),
        other => Err(BadInput(format!("{other:?} stands where INT64 is expected")).into()),
    }
}

/// The same before a run, if the value is known then.
pub(super) fn known_integers(fact: &Fact) -> TractResult<Option<Vec<i64>>> {
    match &fact.constant {
        Some(constant) if constant.datum_type() != DatumType::TDim => integers(constant).map(Some),
        _ => Ok(None),
    }
}

/// Numbers of a request as sizes.
pub(super) fn sizes(numbers: &[i64]) -> TractResult<TVec<usize>> {
    let sizes: Option<TVec<usize>> = numbers
        .iter()
        .map(|&number| usize::try_from(number).ok())
        .collect();
    ensure_input!(
        sizes.is_some(),
        "dimensions {numbers:?} are wanted, expected none below 0"
    );
    Ok(sizes.unwrap_or_default())
}

/// A tensor of zeros to write over, once there is memory for it.
pub(super) fn empty(datum_type: DatumType, shape: &[usize]) -> TractResult<Tensor> {
    size::admit_shape(datum_type, shape)?;
    Tensor::zero_dt(datum_type, shape)
}
