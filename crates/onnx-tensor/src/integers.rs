//! Reads integers that control what an operator does: sizes, axes and indices.

use crate::prelude::*;

use crate::{
    cancelling::Pace,
    elements::{copied, elements},
    faults::BadInput,
    operator::Fact,
};

/// Returns the elements of a tensor of sizes, axes or indices.
///
/// # Errors
/// Returns [`BadInput`] if the elements are neither INT64 nor INT32, and an error if the run is cancelled.
pub fn integers(tensor: &Tensor) -> Result<Vec<i64>> {
    match tensor.element_type() {
        ElementType::I64 => copied(tensor),
        ElementType::I32 => Pace::default().map(elements(tensor)?, |&number: &i32| number.into()),
        other => Err(BadInput(format!(
            "sizes, axes or indices are {other:?}, expected INT64 or INT32"
        ))
        .into()),
    }
}

/// Returns the elements like [`integers`], but before a run, from the known facts about a value. Returns
/// `None` if the value is unknown.
///
/// # Errors
/// Returns the errors of [`integers`].
pub fn known_integers(fact: &Fact) -> Result<Option<Vec<i64>>> {
    fact.constant.as_deref().map(integers).transpose()
}
