//! `TopK`, with a total order in which NaN is the greatest number.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::gather::{
    keys::{Key, write_keys},
    sorting::sort_by,
};
use onnx_tensor::{
    axis,
    elements::{elements, scalar, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Refusal, ensure_input},
    node::Node,
    operator::Compute,
    size,
};

/// Builds the operator `TopK`.
pub fn top_k(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(TopK {
        axis: attributes.int("axis", -1),
        largest: attributes.int("largest", 1) != 0,
        given: attributes.get("k").map(|count| count.i),
    }))
}

#[derive(Debug)]
struct TopK {
    axis: i64,
    largest: bool,
    /// The count in the attribute `k`, which operator sets before 10 have; `None` if the count is an input.
    given: Option<i64>,
}

impl Kernel for TopK {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let (values, count) = match (inputs, self.given) {
            ([values], Some(count)) => (values, count.to_dim()),
            ([values, count], None) => {
                if count.rank() != 1 || !count.shape[0].is_one() {
                    bail!(Refusal("needs one number in the input K".to_owned()));
                }
                let count = match count.dims().as_deref() {
                    Some([count]) => *count,
                    _ => Dim::unknown(),
                };
                (values, count)
            }
            _ => bail!("expected 2 inputs, found {}", inputs.len()),
        };
        let axis = axis::axis(self.axis, values.rank())?;
        if let Some(number) = count.to_i64() {
            let most = values.shape[axis].to_i64().unwrap_or(i64::MAX);
            if !(0..=most).contains(&number) {
                bail!(Refusal(format!(
                    "has a K of {number} for an axis of {} elements",
                    values.shape[axis]
                )));
            }
        }
        let mut shape = values.shape.clone();
        shape[axis] = count;
        let places = Fact::new(ElementType::I64, shape.iter().copied());
        Ok(vec![Fact::new(values.element_type, shape), places])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let values = &inputs[0];
        let count = match self.given {
            Some(count) => count,
            None => scalar::<i64>(&*inputs.get(1).context("no count")?.cast_to::<i64>()?)?,
        };
        let mut shape: ShortVec<usize> = values.shape().into();
        let axis = axis::axis(self.axis, shape.len())?;
        let size = shape[axis];
        let count_of_size = usize::try_from(count).ok().filter(|&count| count <= size);
        ensure_input!(
            count_of_size.is_some(),
            "K is {count} for an axis of {size} elements"
        );
        let count = count_of_size.unwrap_or(0);
        let inner: usize = shape[axis + 1..].iter().product();
        shape[axis] = count;
        size::admit_shape(ElementType::I64, &shape)?;
        let total: usize = shape.iter().product();
        let mut places = vec![0i64; total];
        let sizes = [size, count, inner];
        let made = with_number!(values.element_type(), T => {
            let values = elements::<T>(values)?;
            self.positions(sizes, &mut places, &|first, keys| {
                let values = &values[first..];
                if inner == 1 {
                    return write_keys(&values[..keys.len()], keys);
                }
                let pairs = keys.iter_mut().zip(values.iter().step_by(inner));
                pairs.for_each(|(key, value)| *key = value.key());
            })?;
            let mut made = Vec::with_capacity(total);
            let mut pace = Pace::default();
            for (places, block) in places.chunks_exact((count * inner).max(1)).zip(values.chunks_exact((size * inner).max(1))) {
                for (first, places) in (0..).step_by(PART).zip(places.chunks(PART)) {
                    pace.spend(places.len() as u64)?;
                    made.extend((first..).zip(places).map(|(at, place)| block[*place as usize * inner + at % inner]));
                }
            }
            tensor(&shape, made)?
        });
        Ok(smallvec![made, tensor(&shape, places)?])
    }
}

/// Writes the sort keys of consecutive elements along the axis, starting at the given index.
type Keys<'k> = &'k dyn Fn(usize, &mut [u64]);

impl TopK {
    /// Finds the positions of the `count` selected elements in each group of `size` elements that are `inner`
    /// apart.
    fn positions(&self, [size, count, inner]: [usize; 3], places: &mut [i64], keys: Keys<'_>) -> Result<()> {
        /// Number of keys that are computed at a time.
        const KEYS: usize = 1 << 10;
        /// Number of keys that are compared with the worst selected key at a time.
        const TESTED: usize = 16;
        if places.is_empty() {
            return Ok(());
        }
        let mut pace = Pace::default();
        // Collects up to twice `count` elements before dropping all but the best `count`.
        let room = count.saturating_mul(2).max(64).min(size);
        size::admit_now(room as u64 * size_of::<(u64, usize)>() as u64)?;
        // Equal elements keep their order, as ONNX requires.
        let mut group: Vec<(u64, usize)> = Vec::with_capacity(room);
        let mut part = [0; KEYS];
        for (block, places) in places.chunks_exact_mut(count * inner).enumerate() {
            for lane in 0..inner {
                group.clear();
                let mut worst = (u64::MAX, usize::MAX);
                for first in (0..size).step_by(KEYS) {
                    let part = &mut part[..KEYS.min(size - first)];
                    pace.spend(4 * part.len() as u64)?;
                    keys((block * size + first) * inner + lane, part);
                    if self.largest {
                        part.iter_mut().for_each(|key| *key = !*key);
                    }
                    for (first, keys) in (first..).step_by(TESTED).zip(part.chunks(TESTED)) {
                        // Elements come in order, so one that equals the worst element is worse.
                        if keys.iter().fold(true, |all, key| all & (*key >= worst.0)) && worst.1 != usize::MAX
                        {
                            continue;
                        }
                        for (key, at) in keys.iter().zip(first..) {
                            let item = (*key, at);
                            if item > worst {
                                continue;
                            }
                            if group.len() == room {
                                worst = keep_first(&mut group, count, &mut pace)?;
                                if item > worst {
                                    continue;
                                }
                            }
                            group.push(item);
                        }
                    }
                }
                sort_by(&mut group, Ord::cmp)?;
                for (first, group) in (0..).step_by(PART).zip(group[..count].chunks(PART)) {
                    pace.spend(group.len() as u64)?;
                    for (index, &(_, place)) in (first..).zip(group) {
                        places[index * inner + lane] = place as i64;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Keeps the `count` smallest of the distinct items, in any order, and returns the greatest of those.
fn keep_first(items: &mut Vec<(u64, usize)>, count: usize, pace: &mut Pace) -> Result<(u64, usize)> {
    let last = nth(items, count - 1, pace)?;
    let mut kept = 0;
    for first in (0..items.len()).step_by(PART) {
        let end = items.len().min(first + PART);
        pace.spend((end - first) as u64)?;
        for at in first..end {
            if items[at] <= last {
                items.swap(kept, at);
                kept += 1;
            }
        }
    }
    items.truncate(count);
    Ok(last)
}

/// Returns the item at index `rank` in the sorted order of distinct items. Selects by the highest digit first
/// (radix selection), until few items are left.
fn nth(items: &mut [(u64, usize)], rank: usize, pace: &mut Pace) -> Result<(u64, usize)> {
    /// Maximum number of items that are selected from without a check for cancellation.
    const FEW: usize = if cfg!(test) { 1 << 5 } else { 1 << 16 };
    const DIGIT: u32 = 16;
    if items.len() <= FEW {
        pace.spend(4 * items.len() as u64)?;
        return Ok(*items.select_nth_unstable(rank).1);
    }
    let number = |&(key, at): &(u64, usize)| u128::from(key) << 64 | at as u128;
    // The remaining items are those whose bits from `bits` on equal `prefix`.
    let (mut bits, mut prefix, mut rank) = (u128::BITS, 0, rank);
    loop {
        let is_left = |number: u128| number.checked_shr(bits).unwrap_or(0) == prefix;
        let mut counts = vec![0usize; 1 << DIGIT];
        for items in items.chunks(PART) {
            pace.spend(2 * items.len() as u64)?;
            for number in items.iter().map(number).filter(|&number| is_left(number)) {
                counts[(number >> (bits - DIGIT)) as usize % (1 << DIGIT)] += 1;
            }
        }
        let mut digit = 0;
        while rank >= counts[digit] {
            rank -= counts[digit];
            digit += 1;
        }
        (bits, prefix) = (bits - DIGIT, prefix << DIGIT | digit as u128);
        if counts[digit] > FEW {
            continue;
        }
        let mut left = Vec::with_capacity(counts[digit]);
        for items in items.chunks(PART) {
            pace.spend(items.len() as u64)?;
            left.extend(items.iter().filter(|item| number(item) >> bits == prefix));
        }
        return Ok(*left.select_nth_unstable(rank).1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::{faults::BadInput, testing::while_cancelled};

    fn top(largest: bool, values: Tensor, count: i64) -> Result<ShortVec<Tensor>> {
        let top_k = TopK {
            axis: 0,
            largest,
            given: None,
        };
        top_k.run(&[Arc::new(values), Arc::new(Tensor::vector(&[count]))])
    }

    #[test]
    fn nan_is_the_greatest_and_equal_ones_are_in_order() {
        let mut values: Vec<f32> = (0..100u8).map(|number| f32::from(number % 10)).collect();
        values[50] = f32::NAN;
        values[20] = f32::NAN;
        let greatest = top(true, Tensor::vector(&values), 5).unwrap();
        assert_eq!(greatest[1], Tensor::vector(&[20i64, 50, 9, 19, 29]));
        let least = top(false, Tensor::vector(&values), 99).unwrap();
        let places = elements::<i64>(&least[1]).unwrap();
        assert_eq!((&places[..3], &places[97..]), (&[0, 10, 30][..], &[99, 20][..]));
    }

    #[test]
    fn selection_finds_what_sorting_does() {
        let mut items: Vec<(u64, usize)> = (0..5000)
            .map(|at| (((at * 7919) as u64 % 37).rotate_right(at as u32 % 3), at))
            .collect();
        let mut expected = items.clone();
        expected.sort_unstable();
        let mut pace = Pace::default();
        for rank in [4999, 4000, 900, 31, 0] {
            assert_eq!(nth(&mut items.clone(), rank, &mut pace).unwrap(), expected[rank]);
            assert_eq!(
                keep_first(&mut items, rank + 1, &mut pace).unwrap(),
                expected[rank]
            );
            let mut kept = items.clone();
            kept.sort_unstable();
            assert!(kept == expected[..=rank], "{rank}");
        }
        let mut many: Vec<(u64, usize)> = (0..1 << 17).map(|at| (3, at)).collect();
        assert!(while_cancelled(|| keep_first(&mut many, 9, &mut pace)).is_err());
    }

    #[test]
    fn more_than_there_are_is_the_requests_fault() {
        for count in [-1, 4, i64::MAX] {
            let error = top(true, Tensor::vector(&[1i64, 2, 3]), count).unwrap_err();
            assert!(error.is::<BadInput>(), "{error}");
        }
        let all = top(true, Tensor::matrix(&[[1i64, 9], [3, 4], [2, 6]]), 2).unwrap();
        assert_eq!(all[0], Tensor::matrix(&[[3i64, 9], [2, 6]]));
        assert_eq!(all[1], Tensor::matrix(&[[1i64, 0], [2, 2]]));
        assert_eq!(top(true, Tensor::vector(&[1i64]), 0).unwrap()[0].shape(), [0]);
    }
}
