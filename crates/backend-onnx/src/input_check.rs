//! Values that would make an operator of tract panic, or take memory without bound, found before it runs.

use std::fmt;

use tract_hir::{
    internal::*,
    tract_core::ops::array::{Gather, Range},
};

use crate::{
    faults::{BadInput, Refusal},
    ops::elements::scalar,
};

/// A check of inputs before a node runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InputCheck {
    /// Input 1 holds indices into this axis of input 0.
    Along(usize),
    /// Inputs are the start, limit and step of a range.
    Range,
    /// Input 1 is a divisor.
    Divisor,
    /// Input 0 has images, of which a pool takes the greatest numbers: there must be some.
    Pixels,
}

impl InputCheck {
    /// The check for a node, if there is one.
    pub(crate) fn of(node: &TypedNode) -> Option<Self> {
        if let Some(op) = node.op_as::<Gather>() {
            return Some(Self::Along(op.axis));
        }
        if node.op_is::<Range>() {
            return Some(Self::Range);
        }
        match &*node.op().name() {
            "MaxPool" => Some(Self::Pixels),
            name => name.starts_with("Div").then_some(Self::Divisor),
        }
    }

    /// Looks at the inputs of a node that is to run.
    ///
    /// # Errors
    /// [`BadInput`] for values that make no sense to the operator.
    pub(crate) fn apply(self, inputs: &[TValue]) -> TractResult<()> {
        match (self, inputs) {
            (Self::Along(axis), [data, indices, ..]) => are_along(axis, data, indices)?,
            (Self::Range, [start, limit, step]) if start.datum_type() != DatumType::TDim => {
                let number = |tensor: &TValue| scalar::<f64>(tensor);
                range_fits(number(start)?, number(limit)?, number(step)?).map_err(BadInput::from)?;
            }
            (Self::Divisor, [_, divisor]) if crate::ops::has_zero(divisor)? => {
                bail!(BadInput("an integer would be divided by zero".to_owned()));
            }
            (Self::Pixels, [images, ..]) if images.shape().iter().skip(1).any(|&dim| dim == 0) => {
                bail!(BadInput("an image without pixels".to_owned()));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Numbers of a range whose size depends on values of inputs.
const MAX_RANGE: f64 = (1u64 << 24) as f64;

/// A range with too many numbers, or which cannot be counted.
#[derive(Debug)]
pub(crate) struct LongRange {
    count: f64,
}

impl fmt::Display for LongRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count;
        if !count.is_finite() {
            return f.write_str("a range whose step is 0, or whose numbers are no numbers or infinite");
        }
        write!(f, "a range of {count} numbers is beyond the limit of {MAX_RANGE}")
    }
}

impl From<LongRange> for Refusal {
    fn from(range: LongRange) -> Self {
        Self(range.to_string())
    }
}

impl From<LongRange> for BadInput {
    fn from(range: LongRange) -> Self {
        Self(range.to_string())
    }
}

/// Whether a range is computed.
pub(crate) fn range_fits(start: f64, limit: f64, step: f64) -> Result<(), LongRange> {
    let count = (limit - start) / step;
    if count.is_nan() || count > MAX_RANGE || step == 0.0 {
        return Err(LongRange { count });
    }
    Ok(())
}

/// Whether all indices are inside of an axis.
fn are_along(axis: usize, data: &Tensor, indices: &Tensor) -> TractResult<()> {
    if let Some(&dim) = data.shape().get(axis) {
        let indices = indices.cast_to::<i64>()?;
        for &index in integers(&indices)? {
            within(index, dim)?;
        }
    }
    Ok(())
}

fn integers(tensor: &Tensor) -> TractResult<&[i64]> {
    tensor.try_as_plain_ram()?.as_slice::<i64>()
}

/// An index as counted from the start.
pub(crate) fn within(index: i64, dim: usize) -> TractResult<i64> {
    let dim = dim as i64;
    let from_start = if index < 0 { index + dim } else { index };
    if (0..dim).contains(&from_start) {
        return Ok(from_start);
    }
    bail!(BadInput(format!(
        "the index {index} is outside of a dimension of {dim}"
    )))
}
