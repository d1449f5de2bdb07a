//! Checks sizes, axes, positions and counts from a file or a request before any computation uses them. Valid
//! numbers have at most 32 bits, so that sums and products of a few numbers fit into 64 bits.

use onnx_graph::Error as FileError;
use onnx_operators::holds_any_number;
use onnx_tensor::prelude::*;
use tensor_core::QuotedName;

use onnx_tensor::{elements::elements, faults::Limit, node::Node, operator::Fact};

use crate::invalid_node::invalid;

/// Maximum product of all sizes of a value, so that the product fits into an `i64`.
const MAX_PRODUCT: u64 = 1 << 62;

/// The position of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// The input's index in the file.
    pub(super) index: usize,
    /// The input's index among the present inputs.
    pub(super) present: usize,
}

/// Refuses known integers that are too large for the operator. `sizing` are the inputs with sizes, axes,
/// indices or counts; `is_shape` says whether the integers of one input are multiplied.
pub(super) fn admit(is_shape: bool, sizing: &[Position], inputs: &[Fact]) -> Result<()> {
    sizing.iter().try_for_each(|position| {
        let constant = inputs
            .get(position.present)
            .and_then(|input| input.constant.as_deref());
        constant.map_or(Ok(()), |numbers| admit_sizes(position.index, numbers, is_shape))
    })
}

/// Refuses sizes, axes, positions and counts of more than 32 bits in input `index`, and sizes whose product
/// has more than 62 bits.
fn admit_sizes(index: usize, numbers: &Tensor, is_shape: bool) -> Result<()> {
    let mut product = 1u64;
    let mut admit = |number: i64| {
        if i32::try_from(number).is_err() {
            bail!(Limit(format!(
                "has in input {index} a size, an axis or a position of {number}, expected at most {} and at least {}",
                i32::MAX,
                i32::MIN
            )));
        }
        product = product.saturating_mul(number.unsigned_abs().max(1));
        if is_shape && product > MAX_PRODUCT {
            bail!(Limit(format!(
                "has sizes in input {index} whose product is {product} or more, expected at most {MAX_PRODUCT}"
            )));
        }
        Ok(())
    };
    if !numbers.element_type().is_integer() {
        return Ok(());
    }
    let numbers = numbers.cast_to::<i64>()?;
    elements::<i64>(&numbers)?
        .iter()
        .try_for_each(|&number| admit(number))
}

/// Refuses a node with an integer of more than 32 bits in an attribute that is a size, an axis, a position or
/// a count.
pub(crate) fn admit_attributes(node: &Node) -> Result<(), FileError> {
    for attribute in node
        .attribute
        .iter()
        .filter(|attribute| !holds_any_number(&attribute.name))
    {
        let mut numbers = attribute.ints.iter().chain([&attribute.i]);
        if let Some(number) = numbers.find(|&&number| i32::try_from(number).is_err()) {
            let reason = format!(
                "the attribute {} has the number {number}, expected at most {} and at least {}",
                QuotedName(&attribute.name),
                i32::MAX,
                i32::MIN
            );
            return Err(invalid(reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn sizes_of_more_than_32_bits_are_refused() {
        let admits = |is_shape, numbers: &[i64]| {
            admit(
                is_shape,
                &[Position { index: 0, present: 0 }],
                &Fact::of_values(&[Tensor::vector(numbers).into_arc()]),
            )
        };
        let error = admits(false, &[i64::MAX]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("of 9223372036854775807, expected at most 2147483647"),
            "{error}"
        );
        let sizes = [i64::from(i32::MAX); 3];
        assert!(admits(true, &sizes).is_err());
        assert!(admits(false, &sizes).is_ok());
    }
}
