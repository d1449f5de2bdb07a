//! Selects elements along one axis, in a single pass and without index lists larger than the result.

use onnx_tensor::prelude::*;

use crate::least_work::BYTES;

use onnx_tensor::{
    cancelling::{PART, Pace},
    size, split,
};

/// The indices of the elements to select along an axis, all of them in range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Places<'p> {
    /// The listed indices, in this order.
    List(&'p [usize]),
    /// `count` indices from `first`, `step` apart.
    Steps { first: usize, step: i64, count: usize },
    /// Indices at which the mask is true. Indices beyond the end of the mask are not selected.
    Where(&'p [bool]),
}

impl Places<'_> {
    /// Returns the number of selected elements.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
    pub(crate) fn count(&self, pace: &mut Pace) -> Result<usize> {
        match self {
            Self::List(places) => Ok(places.len()),
            Self::Steps { count, .. } => Ok(*count),
            Self::Where(wanted) => {
                let mut count = 0;
                for wanted in wanted.chunks(PART) {
                    pace.spend(wanted.len() as u64)?;
                    count += wanted.iter().filter(|wanted| **wanted).count();
                }
                Ok(count)
            }
        }
    }
}

/// Returns the elements at the indices `places` along an axis of a value.
pub(crate) fn picked(value: &Tensor, axis: usize, places: Places<'_>) -> Result<Tensor> {
    picked_of(value, value.shape(), axis, places)
}

/// Returns the elements at the indices `places` along an axis of a value that is viewed with the shape
/// `shape`.
pub(crate) fn picked_of(value: &Tensor, shape: &[usize], axis: usize, places: Places<'_>) -> Result<Tensor> {
    let inner: usize = shape[axis + 1..].iter().product();
    let mut made = shape.to_vec();
    let mut pace = Pace::default();
    made[axis] = places.count(&mut pace)?;
    if made.contains(&0) {
        return Tensor::zero_of(value.element_type(), &made);
    }
    let block = shape[axis] * inner;
    with_unit!(value.element_type(), U => copy::<U>(value, (&made, made[axis]), [block, inner], places))
}

fn copy<U: Unit>(
    value: &Tensor,
    (shape, count): (&[usize], usize),
    [block, inner]: [usize; 2],
    places: Places<'_>,
) -> Result<Tensor> {
    let mut result = Tensor::unset_of(value.element_type(), shape)?;
    let value = value.as_units::<U>()?;
    match places {
        Places::List(places) => {
            let pairs = value
                .chunks_exact(block)
                .flat_map(|block| places.iter().map(move |place| (block, place)));
            let taken = pairs.flat_map(|(block, place)| &block[place * inner..][..inner]);
            size::admit_contents(taken.map(|element| (element, 1)))?;
        }
        Places::Where(wanted) => {
            let lines = value
                .chunks_exact(block)
                .flat_map(|block| block.chunks_exact(inner).zip(wanted));
            let taken = lines.filter(|(_, wanted)| **wanted).flat_map(|(line, _)| line);
            size::admit_contents(taken.map(|element| (element, 1)))?;
        }
        Places::Steps { .. } => {}
    }
    let is_doubled = match places {
        Places::List(places) if inner == 1 => is_doubled(places, block, &mut Pace::default())?,
        _ => false,
    };
    let made = result.as_units_mut::<U>()?;
    let work = [size_of_val(made) as u64, BYTES];
    split::lines(made, count * inner, work, |first, made, pace| {
        let blocks = value[first * block..].chunks_exact(block);
        for (block, made) in blocks.zip(made.chunks_exact_mut(count * inner)) {
            match is_doubled {
                true => double(block, made, pace)?,
                false => copy_block(block, made, inner, places, pace)?,
            }
        }
        Ok(())
    })?;
    Ok(result)
}

/// Returns the numbers at the indices `rows` and `columns` along the last two axes of a value.
pub(crate) fn picked_rows(value: &Tensor, rows: &[usize], columns: &[usize]) -> Result<Tensor> {
    let rank = value.rank();
    ensure!(
        rank >= 2 && value.element_type().is_copy(),
        "expected rows of numbers, found {} of rank {rank}",
        value.element_type()
    );
    let mut shape: ShortVec<usize> = value.shape().into();
    (shape[rank - 2], shape[rank - 1]) = (rows.len(), columns.len());
    let mut made = Tensor::unset_of(value.element_type(), &shape)?;
    if !made.is_empty() {
        with_unit!(value.element_type(), U => copy_rows::<U>(value, &mut made, rows, columns))?;
    }
    Ok(made)
}

fn copy_rows<U: Unit>(value: &Tensor, made: &mut Tensor, rows: &[usize], columns: &[usize]) -> Result<()> {
    let [height, width] = [2, 1].map(|from_end| value.shape()[value.rank() - from_end]);
    let images = value.as_units::<U>()?;
    let made = made.as_units_mut::<U>()?;
    let (image, work) = (rows.len() * columns.len(), [size_of_val(made) as u64, BYTES]);
    let is_doubled = is_doubled(columns, width, &mut Pace::default())?;
    split::lines(made, image, work, |first, made, pace| {
        let images = images[first * height * width..].chunks_exact(height * width);
        for (from, to) in images.zip(made.chunks_exact_mut(image)) {
            for (at, &row) in rows.iter().enumerate() {
                let (before, to) = to.split_at_mut(at * columns.len());
                let to = &mut to[..columns.len()];
                if at > 0 && rows[at - 1] == row {
                    let copied = &before[(at - 1) * columns.len()..];
                    pace.pairs(copied, to, |from, to| to.clone_from_slice(from))?;
                    continue;
                }
                let from = &from[row * width..][..width];
                match is_doubled {
                    true => double(from, to, pace)?,
                    false => copy_block(from, to, 1, Places::List(columns), pace)?,
                }
            }
        }
        Ok(())
    })
}

/// Copies each element twice.
fn double<T: Element>(from: &[T], to: &mut [T], pace: &mut Pace) -> Result<()> {
    let (pairs, _) = to.as_chunks_mut::<2>();
    pace.pairs(from, pairs, |from, pairs| {
        let both = pairs.iter_mut().zip(from);
        both.for_each(|(pair, element)| *pair = [element.clone(), element.clone()]);
    })
}

/// Returns whether the list contains every index of the axis twice, in order.
fn is_doubled(places: &[usize], size: usize, pace: &mut Pace) -> Result<bool> {
    if places.len() != 2 * size {
        return Ok(false);
    }
    for (first, places) in (0..).step_by(PART).zip(places.chunks(PART)) {
        pace.spend(places.len() as u64)?;
        if !(first..).zip(places).all(|(at, &place)| place == at / 2) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn copy_block<T: Element>(
    block: &[T],
    made: &mut [T],
    inner: usize,
    places: Places<'_>,
    pace: &mut Pace,
) -> Result<()> {
    let each = |made: &mut [T], pace: &mut Pace, places: &mut dyn Iterator<Item = usize>| -> Result<()> {
        let lines = made.chunks_exact_mut(inner).zip(places);
        for (to, place) in lines {
            let from = &block[place * inner..][..inner];
            pace.pairs(from, to, |from, to| to.clone_from_slice(from))?;
        }
        Ok(())
    };
    match places {
        Places::List(places) if inner == 1 => {
            pace.pairs(places, made, |places, made| {
                let pairs = made.iter_mut().zip(places);
                pairs.for_each(|(to, &place)| to.clone_from(&block[place]));
            })?;
        }
        Places::List(places) => each(made, pace, &mut places.iter().copied())?,
        Places::Steps { first, step: 1, .. } => {
            let from = &block[first * inner..][..made.len()];
            pace.pairs(from, made, |from, made| made.clone_from_slice(from))?;
        }
        Places::Steps { first, step, .. } if inner == 1 => {
            let stride = usize::try_from(step.unsigned_abs())?;
            match step > 0 {
                true => {
                    for (part, made) in made.chunks_mut(PART).enumerate() {
                        pace.spend(made.len() as u64)?;
                        let from = block[first + part * PART * stride..].iter().step_by(stride);
                        made.iter_mut()
                            .zip(from)
                            .for_each(|(to, from)| to.clone_from(from));
                    }
                }
                false => {
                    for (part, made) in made.chunks_mut(PART).enumerate() {
                        pace.spend(made.len() as u64)?;
                        let from = block[..=first - part * PART * stride]
                            .iter()
                            .rev()
                            .step_by(stride);
                        made.iter_mut()
                            .zip(from)
                            .for_each(|(to, from)| to.clone_from(from));
                    }
                }
            }
        }
        Places::Steps { first, step, count } => each(
            made,
            pace,
            &mut (0..count as i64).map(|index| (first as i64 + index * step) as usize),
        )?,
        Places::Where(wanted) => {
            let places = wanted.iter().take(block.len() / inner).enumerate();
            each(
                made,
                pace,
                &mut places.filter(|(_, wanted)| **wanted).map(|(place, _)| place),
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::elements::tensor;

    #[test]
    fn each_element_is_taken_twice() {
        let value = tensor(&[2, 3], vec![1i16, 2, 3, 4, 5, 6]).unwrap();
        let doubled = picked(&value, 1, Places::List(&[0, 0, 1, 1, 2, 2])).unwrap();
        let expected = vec![1i16, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6];
        assert_eq!(doubled, tensor(&[2, 6], expected).unwrap());
    }

    #[test]
    fn rows_and_columns_are_those_of_one_axis_after_the_other() {
        let numbers: Vec<i32> = (0..2 * 3 * 5).collect();
        let value = tensor(&[2, 3, 5], numbers).unwrap();
        let doubled = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4];
        for rows in [&[2, 0, 0, 1][..], &[1], &[]] {
            for columns in [&doubled[..], &[4, 0, 0], &[]] {
                let expected = picked(&value, 1, Places::List(rows)).unwrap();
                let expected = picked(&expected, 2, Places::List(columns)).unwrap();
                assert_eq!(picked_rows(&value, rows, columns).unwrap(), expected);
            }
        }
    }

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
