//! `TopK` in a total order in which NaN is the greatest number.

use std::{cmp::Ordering, sync::Arc};

use onnx_tensor::prelude::*;

use crate::gather::sorting::sort_by;
use onnx_tensor::{
    axis,
    elements::{elements, scalar, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::Pace,
    faults::{Refusal, ensure_input},
    node::Node,
    operator::Compute,
    size,
};

/// `TopK`.
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
    /// The number of elements before operator set 10, which has it as an input.
    given: Option<i64>,
}

impl Kernel for TopK {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let (values, count) = match (inputs, self.given) {
            ([values], Some(count)) => (values, count.to_dim()),
            ([values, count], None) => {
                if count.rank() != 1 || !count.shape[0].is_one() {
                    bail!(Refusal("needs a list of one number as its count".to_owned()));
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
                    "is to give {number} elements of {}",
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
        ensure_input!(count_of_size.is_some(), "{count} elements are wanted of {size}");
        let count = count_of_size.unwrap_or(0);
        let inner: usize = shape[axis + 1..].iter().product();
        shape[axis] = count;
        size::admit_shape(ElementType::I64, &shape)?;
        let total: usize = shape.iter().product();
        let mut places = vec![0i64; total];
        let made = with_number!(values.element_type(), T => {
            let given = elements::<T>(values)?;
            let mut made = vec![T::default(); total];
            if total > 0 {
                let blocks = made.chunks_exact_mut(count * inner).zip(places.chunks_exact_mut(count * inner));
                for (block, (made, places)) in given.chunks_exact(size * inner).zip(blocks) {
                    self.of_block(block, made, places, [size, inner])?;
                }
            }
            tensor(&shape, made)?
        });
        Ok(smallvec![made, tensor(&shape, places)?])
    }
}

impl TopK {
    /// Each of `inner` groups of `size` elements that stand `inner` apart.
    fn of_block<T: Copy + PartialOrd>(
        &self,
        block: &[T],
        made: &mut [T],
        places: &mut [i64],
        [size, inner]: [usize; 2],
    ) -> Result<()> {
        // Equal ones come in their order, as ONNX has it.
        let order = |a: &(T, usize), b: &(T, usize)| {
            let order = ascending(&a.0, &b.0);
            let order = if self.largest { order.reverse() } else { order };
            order.then(a.1.cmp(&b.1))
        };
        /// Elements between two looks at whether the request is cancelled.
        const PART: usize = 1 << 12;
        let count = made.len() / inner;
        let mut pace = Pace::default();
        // So many more than are wanted are collected before the worst of them go.
        let room = count.saturating_mul(2).max(64).min(size);
        size::admit_now(room as u64 * size_of::<(T, usize)>() as u64)?;
        let mut group: Vec<(T, usize)> = Vec::with_capacity(room);
        for lane in 0..inner {
            group.clear();
            let mut worst = None;
            for item in block[lane..].iter().step_by(inner).copied().zip(0..size) {
                if item.1 % PART == 0 {
                    pace.spend(4 * PART.min(size - item.1) as u64)?;
                }
                if worst.is_some_and(|worst| order(&item, &worst) == Ordering::Greater) {
                    continue;
                }
                if group.len() == room {
                    pace.spend(4 * room as u64)?;
                    group.select_nth_unstable_by(count - 1, order);
                    group.truncate(count);
                    worst = group.last().copied();
                }
                group.push(item);
            }
            sort_by(&mut group, order)?;
            for (index, &(number, place)) in group.iter().take(count).enumerate() {
                made[index * inner + lane] = number;
                places[index * inner + lane] = place as i64;
            }
        }
        Ok(())
    }
}

/// NaN is the greatest, as to NumPy.
fn ascending<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    #[allow(clippy::eq_op, reason = "only NaN differs from itself")]
    a.partial_cmp(b).unwrap_or_else(|| (a != a).cmp(&(b != b)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::faults::BadInput;

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
