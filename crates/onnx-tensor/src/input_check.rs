//! Checks ranges and indices from the values of a request.

use std::fmt;

use crate::prelude::*;

use crate::faults::{BadInput, Refusal};

/// Maximum number of elements in a range whose size depends on values of inputs.
const MAX_RANGE: f64 = (1u64 << 24) as f64;

/// The error for a range with too many elements, or whose number of elements is undefined.
#[derive(Debug)]
pub struct LongRange {
    count: f64,
}

impl fmt::Display for LongRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count;
        if !count.is_finite() {
            return f.write_str("a range has a step of 0, or a bound or step that is NaN or infinite");
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

/// Checks the number of elements in a range.
///
/// # Errors
/// Returns [`LongRange`] if there are too many elements, or if their number is undefined.
pub fn range_fits(start: f64, limit: f64, step: f64) -> Result<(), LongRange> {
    let count = (limit - start) / step;
    if count.is_nan() || count > MAX_RANGE || step == 0.0 {
        return Err(LongRange { count });
    }
    Ok(())
}

/// Normalizes an index: a negative index counts from the end.
///
/// # Errors
/// Returns [`BadInput`] with the index and the size if the index is out of range.
pub fn within(index: i64, dim: usize) -> Result<i64> {
    let dim = dim as i64;
    let from_start = if index < 0 { index + dim } else { index };
    if (0..dim).contains(&from_start) {
        return Ok(from_start);
    }
    bail!(BadInput(format!(
        "the index {index} is outside of a dimension of {dim}"
    )))
}
