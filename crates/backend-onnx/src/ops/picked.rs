//! Elements of an axis in another order, or some of them: in one pass, without lists that take more memory than the result.

use tract_hir::internal::*;

use super::elements::{Element, elements, tensor};

/// Which places of an axis are taken, all of which are inside of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Places<'p> {
    /// These, in this order.
    List(&'p [usize]),
    /// So many from the first on, each a step after the one before.
    Steps { first: usize, step: i64, count: usize },
    /// Those where this is true. What is behind its end is not taken.
    Where(&'p [bool]),
}

impl Places<'_> {
    fn count(&self) -> usize {
        match self {
            Self::List(places) => places.len(),
            Self::Steps { count, .. } => *count,
            Self::Where(wanted) => wanted.iter().filter(|wanted| **wanted).count(),
        }
    }
}

/// These places of an axis of a value.
pub(super) fn picked(value: &Tensor, axis: usize, places: Places<'_>) -> TractResult<Tensor> {
    picked_of(value, value.shape(), axis, places)
}

/// The same of a value as if it had this shape.
pub(super) fn picked_of(
    value: &Tensor,
    shape: &[usize],
    axis: usize,
    places: Places<'_>,
) -> TractResult<Tensor> {
    let inner: usize = shape[axis + 1..].iter().product();
    let mut made = shape.to_vec();
    made[axis] = places.count();
    if made.contains(&0) {
        return Tensor::zero_dt(value.datum_type(), &made);
    }
    let block = shape[axis] * inner;
    dispatch_datum!(copy(value.datum_type())(value, &made, [block, inner], places))
}

fn copy<T: Element>(
    value: &Tensor,
    shape: &[usize],
    [block, inner]: [usize; 2],
    places: Places<'_>,
) -> TractResult<Tensor> {
    let mut made: Vec<T> = Vec::with_capacity(shape.iter().product());
    for block in elements::<T>(value)?.chunks_exact(block) {
        let at = |place: usize| &block[place * inner..][..inner];
        match places {
            Places::List(places) if inner == 1 => {
                made.extend(places.iter().map(|&place| block[place].clone()));
            }
            Places::List(places) => places.iter().for_each(|&place| made.extend_from_slice(at(place))),
            Places::Steps {
                first,
                step: 1,
                count,
            } => {
                made.extend_from_slice(&block[first * inner..][..count * inner]);
            }
            Places::Steps { first, step, count } if inner == 1 => {
                let stride = usize::try_from(step.unsigned_abs())?;
                match step > 0 {
                    true => made.extend(block[first..].iter().step_by(stride).take(count).cloned()),
                    false => made.extend(block[..=first].iter().rev().step_by(stride).take(count).cloned()),
                }
            }
            Places::Steps { first, step, count } => {
                for index in 0..count as i64 {
                    made.extend_from_slice(at((first as i64 + index * step) as usize));
                }
            }
            Places::Where(wanted) => {
                let pairs = block.chunks_exact(inner).zip(wanted);
                pairs
                    .filter(|(_, wanted)| **wanted)
                    .for_each(|(elements, _)| made.extend_from_slice(elements));
            }
        }
    }
    tensor(shape, made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn all_ways_to_say_which_are_the_same() {
        for (shape, axis) in [([5, 1, 1], 0), ([2, 5, 3], 1), ([2, 3, 5], 2)] {
            let count: usize = shape.iter().product();
            let numbers: Vec<i64> = (0..count as i64).collect();
            let words = numbers.iter().map(ToString::to_string).collect();
            let values = [
                tensor(&shape, numbers).unwrap(),
                tensor::<String>(&shape, words).unwrap(),
            ];
            for value in values {
                let of = |places: Places<'_>| picked(&value, axis, places).unwrap();
                let same = |list: &[usize], other: Places<'_>| {
                    let found = of(Places::List(list));
                    assert_eq!(found, of(other), "{list:?} of {shape:?}");
                    assert_eq!(found.shape()[axis], list.len());
                };
                let steps = |first, step, count| Places::Steps { first, step, count };
                same(&[0, 1, 2, 3, 4], steps(0, 1, 5));
                same(&[1, 2], steps(1, 1, 2));
                same(&[1, 3], steps(1, 2, 2));
                same(&[4, 3, 2, 1, 0], steps(4, -1, 5));
                same(&[3, 0], steps(3, -3, 2));
                same(&[2], steps(2, 1 << 40, 1));
                same(&[], steps(9, 1, 0));
                same(&[1, 4], Places::Where(&[false, true, false, false, true]));
                same(&[1], Places::Where(&[false, true]));
            }
        }
    }
}
