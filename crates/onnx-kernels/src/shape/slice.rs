//! `Slice`, for all operator sets.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::gather::selection::{Places, picked};
use onnx_tensor::{
    axis::axis,
    faults::ensure_input,
    integers::integers,
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
};

/// A length that exceeds the size of any axis.
const FARTHEST: i64 = 1 << 40;

/// Clamps a bound or step to [`FARTHEST`], which is beyond the end of any axis.
fn clamped(number: i64) -> i64 {
    number.clamp(-FARTHEST, FARTHEST)
}

/// Builds the operator `Slice`.
pub fn slice(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Slice::of(node)?))
}

#[derive(Debug)]
pub(crate) struct Slice {
    /// The starts, ends, axes and steps, if they are attributes.
    fixed: Option<Vec<Along>>,
    /// Input indices of the axes and of the steps.
    axes: Option<usize>,
    steps: Option<usize>,
}

/// The slice of one axis: start, end and step as the node gives them.
#[derive(Clone, Copy, Debug)]
struct Along {
    axis: i64,
    start: i64,
    end: i64,
    step: i64,
}

impl Slice {
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let attributes = Attributes(node);
        let fixed = (node.opset < 10).then(|| {
            let list = |name| attributes.ints(name).to_vec();
            let axes = Some(list("axes")).filter(|axes| !axes.is_empty());
            along(list("starts"), list("ends"), axes, None)
        });
        Ok(Self {
            fixed: fixed.transpose()?,
            axes: attributes.position(3),
            steps: attributes.position(4),
        })
    }

    fn given(&self, numbers: impl Fn(usize) -> Result<Vec<i64>>) -> Result<Vec<Along>> {
        if let Some(fixed) = &self.fixed {
            return Ok(fixed.clone());
        }
        let optional = |place: Option<usize>| place.map(&numbers).transpose();
        along(
            numbers(1)?,
            numbers(2)?,
            optional(self.axes)?,
            optional(self.steps)?,
        )
    }

    /// Returns the sliced axes, even if their starts and ends are unknown.
    fn axes(&self, inputs: &[Fact]) -> Option<Vec<i64>> {
        match self.axes {
            Some(place) => inputs.get(place)?.integers(),
            None => Some((0..inputs.get(1)?.shape.first()?.to_i64()?).collect()),
        }
    }
}

fn along(
    starts: Vec<i64>,
    ends: Vec<i64>,
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> Result<Vec<Along>> {
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    ensure_input!(
        [ends.len(), axes.len(), steps.len()] == [starts.len(); 3],
        "{} starts, {} ends, {} axes and {} steps, expected as many of each",
        starts.len(),
        ends.len(),
        axes.len(),
        steps.len()
    );
    let bounds = starts.into_iter().zip(ends).zip(axes.into_iter().zip(steps));
    let along = bounds.map(|((start, end), (axis, step))| Along {
        axis,
        start,
        end,
        step,
    });
    Ok(along.collect())
}

impl Along {
    /// Returns the first index, the number of elements, and the step of the slice of an axis of `size`
    /// elements.
    fn of(self, size: usize) -> Result<(usize, usize, i64)> {
        const LARGEST_OF_32_BITS: i64 = i32::MAX as i64;
        ensure_input!(self.step != 0, "a step of 0");
        // With a negative step, ONNX Runtime interprets these ends as "to the first element".
        let end = match self.end {
            i64::MAX | LARGEST_OF_32_BITS if self.step < 0 => -FARTHEST,
            end => clamped(end),
        };
        let step = clamped(self.step);
        let (first, count) = positions(clamped(self.start), end, step, size as i64);
        Ok((usize::try_from(first)?, usize::try_from(count)?, step))
    }
}

/// Returns the axis of each slice, normalized.
fn places(slices: &[Along], rank: usize) -> Result<ShortVec<usize>> {
    let mut places: ShortVec<usize> = smallvec![];
    for along in slices {
        let place = axis(along.axis, rank)?;
        ensure_input!(!places.contains(&place), "axis {place} is sliced twice");
        places.push(place);
    }
    Ok(places)
}

impl Compute for Slice {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let mut output = inputs[0].with(inputs[0].element_type);
        let known = |place: usize| inputs[place].integers().context("not known");
        let is_known = self.fixed.is_some() || inputs[1..].iter().all(|input| input.constant.is_some());
        if !is_known {
            let Some(axes) = self.axes(inputs) else {
                output.shape.iter_mut().for_each(|dim| *dim = Dim::unknown());
                return Ok(Some(vec![output]));
            };
            for given in axes {
                output.shape[axis(given, inputs[0].rank())?] = Dim::unknown();
            }
            return Ok(Some(vec![output]));
        }
        let slices = self.given(known)?;
        for (along, place) in slices.iter().zip(places(&slices, output.rank())?) {
            output.shape[place] = match output.shape[place].to_usize() {
                Some(size) => along.of(size)?.1.to_dim(),
                None => Dim::unknown(),
            };
        }
        Ok(Some(vec![output]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let slices = self.given(|place| integers(&inputs[place]))?;
        let mut value = inputs[0].clone();
        for (along, place) in slices.iter().zip(places(&slices, value.rank())?) {
            let size = value.shape()[place];
            let (first, count, step) = along.of(size)?;
            if (first, count, step) != (0, size, 1) {
                let places = Places::Steps { first, step, count };
                value = Arc::new(picked(&value, place, places)?);
            }
        }
        Ok(smallvec![value])
    }
}

/// Returns the first index and the number of elements, clamped as ONNX requires.
fn positions(start: i64, end: i64, step: i64, dim: i64) -> (i64, i64) {
    let from_start = |bound: i64| {
        if bound < 0 {
            bound.saturating_add(dim)
        } else {
            bound
        }
    };
    let (start, end) = (from_start(start), from_start(end));
    let (start, distance) = match step > 0 {
        true => {
            let start = start.clamp(0, dim);
            (start, end.clamp(0, dim) - start)
        }
        false => {
            // Unlike in NumPy, a start before the first element is clamped to the first element.
            let last = dim - 1;
            let start = start.clamp(0.min(last), last);
            (start, start - end.clamp(-1, last))
        }
    };
    let step = step.unsigned_abs();
    match u64::try_from(distance) {
        Ok(distance @ 1..) => (start, distance.div_ceil(step) as i64),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn sliced(values: &[i64], along: [i64; 3]) -> Vec<i64> {
        let [start, end, step] = along;
        let slice = Slice {
            fixed: Some(vec![Along {
                axis: -1,
                start,
                end,
                step,
            }]),
            axes: None,
            steps: None,
        };
        let input = Arc::new(Tensor::vector(values));
        let outputs = slice
            .outputs(&Fact::of_values(std::slice::from_ref(&input)))
            .unwrap();
        let made = slice.run(&mut smallvec![input]).unwrap();
        let dims: Vec<Dim> = made[0].shape().iter().map(ToDim::to_dim).collect();
        assert_eq!(&*outputs.unwrap()[0].shape, &*dims);
        made[0].as_slice::<i64>().unwrap().to_vec()
    }

    #[test]
    fn bounds_beyond_an_axis_are_its_ends() {
        let values = [0, 1, 2, 3, 4];
        assert_eq!(sliced(&values, [1, i64::MAX, 1]), [1, 2, 3, 4]);
        assert_eq!(sliced(&values, [-2, 9, 1]), [3, 4]);
        assert_eq!(sliced(&values, [9, i64::MIN, -2]), [4, 2, 0]);
        assert_eq!(sliced(&values, [-1, i64::MAX, -1]), [4, 3, 2, 1, 0]);
        assert_eq!(sliced(&values, [3, 3, 1]), [0; 0]);
        assert_eq!(sliced(&values, [0, 5, i64::MAX]), [0]);
    }

    #[test]
    fn bounds_that_are_not_known_leave_other_dimensions_as_they_are() {
        let slice = Slice {
            fixed: None,
            axes: Some(3),
            steps: None,
        };
        let bound = Fact::new(ElementType::I64, [1.to_dim()]);
        let axes = Fact::of_values(&[Arc::new(Tensor::vector(&[1i64]))]).remove(0);
        let input = Fact::new(ElementType::F32, [7.to_dim(), 8.to_dim()]);
        let outputs = slice
            .outputs(&[input, bound.clone(), bound, axes])
            .unwrap()
            .unwrap();
        assert_eq!(outputs[0].shape[0], 7.to_dim());
        assert!(outputs[0].shape[1].to_i64().is_none());
    }
}
