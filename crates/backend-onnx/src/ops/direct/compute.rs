//! What every operator here is, and what several of them need.

use std::{fmt, sync::Arc};

use tract_hir::internal::*;

use crate::{
    faults::ensure_input,
    ops::{elements::elements, kernel::Fact},
};

/// What computes an operator. The inputs are those that are given, in their order.
pub(super) trait Compute: fmt::Debug + Send + Sync {
    /// The types and dimensions of the outputs, or why the inputs do not fit. In a run all dimensions are numbers, and all inputs
    /// constants; before it dimensions may be unknown. `None` if the outputs are only known once they are computed.
    fn outputs(&self, _inputs: &[Fact]) -> TractResult<Option<Vec<Fact>>> {
        Ok(None)
    }

    /// The outputs, or `None` for types that another one computes. An input that nothing else holds may be written over.
    fn run(&self, inputs: &mut TVec<Arc<Tensor>>) -> TractResult<Option<TVec<Arc<Tensor>>>>;
}

/// A tensor to write over: itself if nothing else holds it, else a copy.
pub(super) fn own(tensor: Arc<Tensor>) -> Tensor {
    Arc::try_unwrap(tensor).unwrap_or_else(|tensor| (*tensor).clone())
}

/// A tensor with other dimensions for the same elements.
pub(super) fn reshaped(tensor: Arc<Tensor>, shape: &[usize]) -> TractResult<Arc<Tensor>> {
    Ok(Arc::new(own(tensor).into_shape(shape)?))
}

/// The whole numbers of a value that says sizes, axes or places.
pub(super) fn integers(tensor: &Tensor) -> TractResult<Vec<i64>> {
    let datum_type = tensor.datum_type();
    ensure_input!(
        matches!(datum_type, DatumType::I64 | DatumType::I32),
        "{datum_type:?} stands where INT64 is expected"
    );
    let numbers = tensor.cast_to::<i64>()?;
    Ok(elements::<i64>(&numbers)?.to_vec())
}
