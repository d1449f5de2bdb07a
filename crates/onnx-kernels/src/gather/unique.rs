//! The operator `Unique`, which returns the distinct values, or the distinct slices along an axis.

use std::{cmp::Ordering, sync::Arc};

use onnx_tensor::prelude::*;

use crate::gather::{
    keys::Key,
    sorting::{BYTES_PER_KEY, Comparison, sorted, sorted_keys},
};
use onnx_tensor::{
    axis,
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
    room,
    shapes::zeros,
    size,
};

/// Builds the operator `Unique`.
pub fn unique(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(Unique {
        axis: attributes.has("axis").then(|| attributes.int("axis", 0)),
        is_sorted: attributes.int("sorted", 1) != 0,
    }))
}

/// Bytes of memory per slice: for its position in the sorted order (twice while sorting), for its group, and
/// for the copies of both in INT64 outputs.
const BYTES_PER_PART: u64 = 56;

#[derive(Debug)]
struct Unique {
    /// The axis whose slices are compared; `None` to compare the elements of the flattened tensor.
    axis: Option<i64>,
    is_sorted: bool,
}

impl Unique {
    fn axis(&self, rank: usize) -> Result<Option<usize>> {
        self.axis.map(|axis| axis::axis(axis, rank)).transpose()
    }
}

impl Kernel for Unique {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        let count = Dim::unknown();
        let (shape, length) = match self.axis(input.rank())? {
            None => (smallvec![count], input.shape.iter().product()),
            Some(axis) => {
                let mut shape = input.shape.clone();
                let length = std::mem::replace(&mut shape[axis], count);
                (shape, length)
            }
        };
        if input.element_type == ElementType::Bool || input.element_type == ElementType::F16 {
            bail!(Unsupported::Anywhere(
                "is supported for numbers and strings only".to_owned()
            ));
        }
        let places = |dim: Dim| Fact::new(ElementType::I64, [dim]);
        Ok(vec![
            Fact::new(input.element_type, shape),
            places(count),
            places(length),
            places(count),
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let all = [input.len()];
        let (shape, axis) = match self.axis(input.rank())? {
            Some(axis) => (input.shape(), axis),
            None => (&all[..], 0),
        };
        match input.element_type() {
            ElementType::String => self.chosen(elements::<String>(input)?, shape, axis, None),
            ElementType::F32 => self.chosen(elements::<f32>(input)?, shape, axis, Some(Key::key)),
            ElementType::F64 => self.chosen(elements::<f64>(input)?, shape, axis, Some(Key::key)),
            ElementType::U8 => self.chosen(elements::<u8>(input)?, shape, axis, Some(Key::key)),
            ElementType::U16 => self.chosen(elements::<u16>(input)?, shape, axis, Some(Key::key)),
            ElementType::U32 => self.chosen(elements::<u32>(input)?, shape, axis, Some(Key::key)),
            ElementType::U64 => self.chosen(elements::<u64>(input)?, shape, axis, Some(Key::key)),
            ElementType::I8 => self.chosen(elements::<i8>(input)?, shape, axis, Some(Key::key)),
            ElementType::I16 => self.chosen(elements::<i16>(input)?, shape, axis, Some(Key::key)),
            ElementType::I32 => self.chosen(elements::<i32>(input)?, shape, axis, Some(Key::key)),
            ElementType::I64 => self.chosen(elements::<i64>(input)?, shape, axis, Some(Key::key)),
            other => bail!("values of {other:?} have no order"),
        }
    }
}

/// Refuses NaN, since it cannot be ordered.
fn expect_order<T: PartialOrd>(values: &[T], pace: &mut Pace) -> Result<()> {
    for values in values.chunks(PART) {
        pace.spend(values.len() as u64)?;
        if values.iter().any(|value| value.partial_cmp(value).is_none()) {
            bail!(BadInput("the input has NaN, which has no order".to_owned()));
        }
    }
    Ok(())
}

/// Groups of equal slices.
struct Groups {
    /// First index of each group.
    firsts: Vec<usize>,
    counts: Vec<i64>,
    /// The group of each slice.
    inverse: Vec<usize>,
}

impl Unique {
    /// Groups equal slices, which `order` lists in sorted order. The trait object `compare` lets the function
    /// be compiled once for all types.
    fn groups(&self, order: &[usize], compare: Comparison<'_>) -> Result<Groups> {
        let mut firsts: Vec<usize> = Vec::new();
        let mut counts: Vec<i64> = Vec::new();
        let mut inverse = vec![0usize; order.len()];
        let mut pace = Pace::default();
        for &at in order {
            pace.spend(1)?;
            match firsts.last() {
                Some(&first) if compare(first, at, &mut pace)?.is_eq() => {}
                _ => {
                    firsts.push(at);
                    counts.push(0);
                }
            }
            inverse[at] = firsts.len() - 1;
            if let Some(count) = counts.last_mut() {
                *count += 1;
            }
        }
        if !self.is_sorted {
            let by_place = sorted(firsts.len(), 1, &|a, b, _| Ok(firsts[a].cmp(&firsts[b])))?;
            let mut now = vec![0; firsts.len()];
            for (first, groups) in (0..).step_by(PART).zip(by_place.chunks(PART)) {
                pace.spend(groups.len() as u64)?;
                (first..)
                    .zip(groups)
                    .for_each(|(place, &group)| now[group] = place);
            }
            pace.over(&mut inverse, |groups| {
                groups.iter_mut().for_each(|group| *group = now[*group]);
            })?;
            firsts = pace.map(&by_place, |&group| firsts[group])?;
            counts = pace.map(&by_place, |&group| counts[group])?;
        }
        Ok(Groups {
            firsts,
            counts,
            inverse,
        })
    }

    /// Returns the outputs for slices without elements, which are all equal, without reading or sorting them.
    fn of_nothing(element_type: ElementType, shape: &[usize], axis: usize) -> Result<ShortVec<Tensor>> {
        let length = shape[axis];
        let groups = length.min(1);
        let mut made_shape = shape.to_vec();
        made_shape[axis] = groups;
        size::admit_shape(ElementType::I64, &[2 * groups + length])?;
        Ok(smallvec![
            zeros(element_type, &made_shape)?,
            Tensor::zero::<i64>(&[groups])?,
            Tensor::zero::<i64>(&[length])?,
            tensor(&[groups], vec![length as i64; groups])?,
        ])
    }

    /// Computes the outputs. `key` maps numbers to integers of the same order; `None` if there is no such function.
    fn chosen<T: Element + PartialOrd>(
        &self,
        values: &[T],
        shape: &[usize],
        axis: usize,
        key: Option<fn(&T) -> u64>,
    ) -> Result<ShortVec<Tensor>> {
        if values.is_empty() {
            return Self::of_nothing(T::ELEMENT_TYPE, shape, axis);
        }
        let (length, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let mut pace = Pace::default();
        expect_order(values, &mut pace)?;
        let block = length * inner;
        // The slice at index `at` of the axis consists of one part in each outer block.
        let compare = |a: usize, b: usize, pace: &mut Pace| {
            for block in values.chunks_exact(block.max(1)) {
                let [mut a, mut b] = [a, b].map(|at| &block[at * inner..(at + 1) * inner]);
                while !a.is_empty() {
                    let count = a.len().min(PART);
                    pace.spend(count as u64)?;
                    let order = a[..count].partial_cmp(&b[..count]);
                    if let Some(order) = order.filter(|order| order.is_ne()) {
                        return Ok(order);
                    }
                    (a, b) = (&a[count..], &b[count..]);
                }
            }
            Ok(Ordering::Equal)
        };
        size::admit_now((length as u64).saturating_mul(BYTES_PER_PART))?;
        let groups = match key {
            // Slices of one number are sorted by its key.
            Some(key) if values.len() == length => {
                let bytes = (size_of::<u64>() as u64 + BYTES_PER_KEY).saturating_mul(length as u64);
                room::ask_for_more(bytes)?;
                size::admit_now(bytes)?;
                let keys = pace.map(values, key)?;
                self.groups(&sorted_keys(&keys)?, &|a, b, _| Ok(keys[a].cmp(&keys[b])))?
            }
            _ => {
                // A comparison may read all elements of a slice, so it counts as that many steps.
                let order = sorted(length, values.len() / length.max(1), &compare)?;
                self.groups(&order, &compare)?
            }
        };
        let Groups {
            firsts,
            counts,
            inverse,
        } = groups;
        let mut made_shape = shape.to_vec();
        made_shape[axis] = firsts.len();
        size::admit_shape(T::ELEMENT_TYPE, &made_shape)?;
        // Indices of first elements, the inverse and counts.
        size::admit_shape(ElementType::I64, &[2 * firsts.len() + length])?;
        let picked = values.chunks_exact(block.max(1)).flat_map(|block| {
            let parts = firsts.iter();
            parts.flat_map(move |first| &block[first * inner..(first + 1) * inner])
        });
        size::admit_contents(picked.map(|element| (element, 1)))?;
        let mut made: Vec<T> = Vec::with_capacity(values.len() / length.max(1) * firsts.len());
        for block in values.chunks_exact(block.max(1)) {
            for &first in &firsts {
                pace.append(&block[first * inner..(first + 1) * inner], &mut made)?;
            }
        }
        let count = [firsts.len()];
        let mut numbers = |places: Vec<usize>| pace.map(&places, |&place| place as i64);
        Ok(smallvec![
            tensor(&made_shape, made)?,
            tensor(&count, numbers(firsts)?)?,
            tensor(&[length], numbers(inverse)?)?,
            tensor(&count, counts)?,
        ])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{faults::NoRoom, room::Room, testing::while_cancelled};

    #[test]
    fn keys_are_asked_for() {
        let unique = Unique {
            axis: None,
            is_sorted: true,
        };
        let run = |mib: u64| {
            let inputs: ShortVec<_> = smallvec![Arc::new(Tensor::zero::<u8>(&[1 << 20]).unwrap())];
            Room::of_limit(mib << 20).during(true, || unique.run(&inputs))
        };
        // The keys and their indices take 48 MiB.
        assert!(run(40).unwrap_err().is::<NoRoom>());
        assert!(run(200).is_ok());
    }

    #[test]
    fn slices_without_elements_are_one() {
        for axis in [Some(0), Some(1), Some(2), None] {
            let unique = Unique {
                axis,
                is_sorted: true,
            };
            let many = 1 << 20;
            let input = Tensor::zero::<f32>(&[many, 0, 3]).unwrap().into_arc();
            let length = axis.map_or(0, |axis| input.shape()[axis as usize]);
            // Sorting this many slices would check for cancellation, and so fail.
            let made = while_cancelled(|| unique.run(&[input])).unwrap();
            let groups = usize::from(length > 0);
            let shape = match axis {
                Some(0) => vec![1, 0, 3],
                Some(1) => vec![many, 0, 3],
                Some(_) => vec![many, 0, 1],
                None => vec![0],
            };
            assert_eq!(made[0].shape(), shape);
            assert_eq!(made[1], Tensor::vector(&[0i64][..groups]));
            assert_eq!(made[2], Tensor::zero::<i64>(&[length]).unwrap());
            assert_eq!(made[3], Tensor::vector(&[length as i64][..groups]));
        }
    }

    #[test]
    fn numbers_are_grouped_by_value() {
        let numbers = [2.5f32, -0.0, -1.0, 0.0, 2.5, f32::INFINITY, -1.0];
        let unique = |is_sorted| {
            let unique = Unique {
                axis: None,
                is_sorted,
            };
            unique.run(&[Arc::new(Tensor::vector(&numbers))]).unwrap()
        };
        let made = unique(true);
        assert_eq!(made[0], Tensor::vector(&[-1.0f32, -0.0, 2.5, f32::INFINITY]));
        assert_eq!(made[1], Tensor::vector(&[2i64, 1, 0, 5]));
        assert_eq!(made[2], Tensor::vector(&[2i64, 1, 0, 1, 2, 3, 0]));
        assert_eq!(made[3], Tensor::vector(&[2i64, 2, 2, 1]));
        let made = unique(false);
        assert_eq!(made[0], Tensor::vector(&[2.5f32, -0.0, -1.0, f32::INFINITY]));
        assert_eq!(made[1], Tensor::vector(&[0i64, 1, 2, 5]));
    }
}
