//! Axes as files and requests name them: counted from the first, or from the last where they are negative.

use crate::prelude::*;

use crate::faults::Refusal;

/// Which one of so many dimensions an axis is, if there is such a one.
pub fn find(axis: i64, rank: usize) -> Option<usize> {
    let from_first = if axis < 0 {
        axis.saturating_add_unsigned(rank as u64)
    } else {
        axis
    };
    usize::try_from(from_first).ok().filter(|&axis| axis < rank)
}

/// The same of an axis that a file names.
///
/// # Errors
/// [`Refusal`] if there is no such one.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let refused = || Refusal(format!("axis {axis} is out of range for {rank} dimensions")).into();
    find(axis, rank).ok_or_else(refused)
}
