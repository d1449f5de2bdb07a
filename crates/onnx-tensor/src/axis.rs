//! Normalizes axes: a negative axis counts from the end.

use crate::prelude::*;

use crate::faults::Refusal;

/// Normalizes an axis of a value of rank `rank`; `None` if it is out of range.
pub fn find(axis: i64, rank: usize) -> Option<usize> {
    let from_first = if axis < 0 {
        axis.saturating_add_unsigned(rank as u64)
    } else {
        axis
    };
    usize::try_from(from_first).ok().filter(|&axis| axis < rank)
}

/// Normalizes an axis that a file specifies.
///
/// # Errors
/// Returns [`Refusal`] if the axis is out of range.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let refused = || Refusal(format!("axis {axis} is out of range for {rank} dimensions")).into();
    find(axis, rank).ok_or_else(refused)
}
