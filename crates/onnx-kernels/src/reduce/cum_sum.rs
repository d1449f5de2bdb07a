//! The operator `CumSum`, whose axis is an input.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis,
    elements::{elements, scalar, written},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
};

/// Builds the operator `CumSum`. Integers wrap.
pub fn cum_sum(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(CumSum {
        is_exclusive: attributes.int("exclusive", 0) != 0,
        is_reverse: attributes.int("reverse", 0) != 0,
    }))
}

#[derive(Debug)]
struct CumSum {
    /// Whether each element is excluded from its own sum (`exclusive`).
    is_exclusive: bool,
    is_reverse: bool,
}

impl Kernel for CumSum {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, axis] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        ensure!(axis.rank() <= 1, "an axis of {} dimensions", axis.rank());
        if !input.element_type.is_number() {
            bail!(Unsupported::Anywhere("is supported for numbers only".to_owned()));
        }
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let (axis, rank) = (scalar::<i64>(&inputs[1])?, input.rank());
        let axis = axis::find(axis, rank)
            .ok_or_else(|| BadInput(format!("axis {axis} of a CumSum of {rank} dimensions")))?;
        macro_rules! sums {
            ($($name:ident $type:ty: $add:expr),*) => {
                match input.element_type() {
                    $(ElementType::$name => self.sums::<$type>(input, axis, $add)?,)*
                    other => bail!("{other:?} is not a number"),
                }
            };
        }
        let made = sums!(
            F16 f16: |a, b| a + b, F32 f32: |a, b| a + b, F64 f64: |a, b| a + b,
            U8 u8: u8::wrapping_add, U16 u16: u16::wrapping_add, U32 u32: u32::wrapping_add, U64 u64: u64::wrapping_add,
            I8 i8: i8::wrapping_add, I16 i16: i16::wrapping_add, I32 i32: i32::wrapping_add, I64 i64: i64::wrapping_add
        );
        Ok(smallvec![made])
    }
}

impl CumSum {
    fn sums<T: Element + Copy + Default>(
        &self,
        input: &Tensor,
        axis: usize,
        add: impl Fn(T, T) -> T,
    ) -> Result<Tensor> {
        let shape = input.shape();
        let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
        let values = elements::<T>(input)?;
        let mut pace = Pace::default();
        written(shape, |made: &mut [T]| {
            let block = (size * inner).max(1);
            for (from, to) in values.chunks_exact(block).zip(made.chunks_exact_mut(block)) {
                match inner {
                    1 => self.line(from, to, &add, &mut pace)?,
                    _ => self.rows(from, to, [size, inner], &add, &mut pace)?,
                }
            }
            Ok(())
        })
    }

    /// Sums consecutive elements.
    fn line<T: Copy + Default>(
        &self,
        from: &[T],
        to: &mut [T],
        add: impl Fn(T, T) -> T,
        pace: &mut Pace,
    ) -> Result<()> {
        let mut before = T::default();
        let mut each = |from: &T, to: &mut T| {
            let sum = add(before, *from);
            *to = if self.is_exclusive { before } else { sum };
            before = sum;
        };
        if self.is_reverse {
            for (from, to) in from.rchunks(PART).zip(to.rchunks_mut(PART)) {
                pace.spend(from.len() as u64)?;
                let pairs = from.iter().zip(to).rev();
                pairs.for_each(|(from, to)| each(from, to));
            }
            return Ok(());
        }
        pace.pairs(from, to, |from, to| {
            from.iter().zip(to).for_each(|(from, to)| each(from, to));
        })
    }

    /// Sums `size` rows of `inner` elements.
    fn rows<T: Copy + Default>(
        &self,
        from: &[T],
        to: &mut [T],
        [size, inner]: [usize; 2],
        add: impl Fn(T, T) -> T,
        pace: &mut Pace,
    ) -> Result<()> {
        let together = (PART / inner).max(1);
        for step in 0..size {
            if inner <= PART && step % together == 0 {
                pace.spend((together.min(size - step) * inner) as u64)?;
            }
            // The sums of the previous row are read from the result.
            let (row, previous, before, to) = if self.is_reverse {
                let row = size - 1 - step;
                let (to, before) = to.split_at_mut((row + 1) * inner);
                (
                    row,
                    row + 1,
                    &before[..inner.min(before.len())],
                    &mut to[row * inner..],
                )
            } else {
                let (before, to) = to.split_at_mut(step * inner);
                let start = before.len().saturating_sub(inner);
                (step, step.saturating_sub(1), &before[start..], &mut to[..inner])
            };
            let added = if self.is_exclusive { previous } else { row };
            let from = &from[added * inner..];
            for (part, to) in to.chunks_mut(PART).enumerate() {
                let start = part * PART;
                if inner > PART {
                    pace.spend(to.len() as u64)?;
                }
                match (before.is_empty(), self.is_exclusive) {
                    (true, true) => to.fill(T::default()),
                    (true, false) => {
                        let pairs = to.iter_mut().zip(&from[start..]);
                        pairs.for_each(|(to, from)| *to = add(T::default(), *from));
                    }
                    (false, _) => {
                        let pairs = to.iter_mut().zip(before[start..].iter().zip(&from[start..]));
                        pairs.for_each(|(to, (before, from))| *to = add(*before, *from));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn sums_run_along_any_axis_in_both_directions() {
        let numbers: Vec<i64> = (0..60).map(|at| at * at % 17 - 5).collect();
        for shape in [
            [1, 60, 1],
            [60, 1, 1],
            [3, 4, 5],
            [2, 30, 1],
            [1, 1, 60],
            [4, 1, 15],
        ] {
            for axis in 0..3 {
                for (is_exclusive, is_reverse) in [(false, false), (false, true), (true, false), (true, true)]
                {
                    let (size, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
                    let expected = (0..60).map(|at| {
                        let here = at / inner % size;
                        let is_added = |other: usize| match (is_reverse, is_exclusive) {
                            (false, false) => other <= here,
                            (false, true) => other < here,
                            (true, false) => other >= here,
                            (true, true) => other > here,
                        };
                        let first = at - here * inner;
                        let added = (0..size).filter(|&other| is_added(other));
                        added.map(|other| numbers[first + other * inner]).sum::<i64>()
                    });
                    let sums = CumSum {
                        is_exclusive,
                        is_reverse,
                    };
                    let input = Tensor::vector(&numbers).into_shape(&shape).unwrap();
                    let made = sums.run(&[Arc::new(input), Arc::new(Tensor::scalar(axis as i64))]);
                    assert_eq!(
                        elements::<i64>(&made.unwrap()[0]).unwrap(),
                        expected.collect::<Vec<_>>(),
                        "{shape:?} {axis} {is_exclusive} {is_reverse}"
                    );
                }
            }
        }
        let nothing = Tensor::zero::<f32>(&[2, 0, 3]).unwrap().into_arc();
        let sums = CumSum {
            is_exclusive: false,
            is_reverse: false,
        };
        for axis in 0..3i64 {
            let made = sums
                .run(&[nothing.clone(), Arc::new(Tensor::scalar(axis))])
                .unwrap();
            assert_eq!(made[0].shape(), [2, 0, 3]);
        }
    }
}
