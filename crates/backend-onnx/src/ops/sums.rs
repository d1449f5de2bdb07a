//! Sums of floats along axes, and means of squares, which tract computes number by number unless the last axis is the only one. Of
//! FP64 it divides by the length of a line without looking.

use std::{
    ops::{Add, AddAssign, Mul},
    sync::Arc,
};

use tract_hir::{
    internal::*,
    tract_core::ops::nn::{Reduce, Reducer},
};

use super::{
    elements::{Element, elements, tensor},
    kernel::{Fact, Kernel, typed},
};
use crate::cancelling::Pace;

/// Puts them in the place of tract's.
pub(super) fn quicken(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let Some(reduce) = node.op_as::<Reduce>() else {
            continue;
        };
        let (term, finish) = match reduce.reducer {
            Reducer::Sum => (Term::Itself, Finish::Sum),
            Reducer::MeanOfSquares => (Term::Square, Finish::Mean),
            _ => continue,
        };
        let input = model.outlet_fact(node.inputs[0])?;
        let is_float = matches!(input.datum_type, DatumType::F32 | DatumType::F64);
        if !is_float || reduce.axes.is_empty() {
            continue;
        }
        let sums = Sums {
            reduced: (0..input.rank())
                .map(|axis| reduce.axes.contains(&axis))
                .collect(),
            term,
            finish,
        };
        model.node_mut(id).op = Box::new(typed(sums));
    }
    Ok(())
}

/// Sums along axes.
#[derive(Debug)]
pub(super) struct Sums {
    /// For each axis, whether sums go along it; it keeps a size of 1.
    pub(super) reduced: Vec<bool>,
    pub(super) term: Term,
    pub(super) finish: Finish,
}

/// What is added up of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Itself,
    Magnitude,
    Square,
}

/// How a sum is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Sum,
    /// The mean; 0 of nothing.
    Mean,
    Root,
    Logarithm,
}

impl Kernel for Sums {
    fn name(&self) -> &'static str {
        "Sums"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let dims = inputs[0].shape.iter().zip(&self.reduced);
        let shape = dims.map(|(dim, &reduced)| if reduced { 1.into() } else { dim.clone() });
        Ok(vec![Fact::new(inputs[0].datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        Ok(tvec![self.of(&inputs[0])?])
    }
}

impl Sums {
    /// The sums of FP32 or FP64.
    pub(super) fn of(&self, input: &Tensor) -> TractResult<Tensor> {
        match input.datum_type() {
            DatumType::F32 => self.sums::<f32>(input),
            DatumType::F64 => self.sums::<f64>(input),
            other => bail!("a sum of {other:?}"),
        }
    }

    fn sums<T: Float>(&self, input: &Tensor) -> TractResult<Tensor> {
        let shape = input.shape();
        let values = elements::<T>(input)?;
        let mut stages = stages(shape, &self.reduced).into_iter();
        // Without axes each number is a sum.
        let first = stages.next().unwrap_or([1, 1, values.len()]);
        let mut sums = match self.term {
            Term::Itself => stage(values, first, |x| x)?,
            Term::Magnitude => stage(values, first, T::magnitude)?,
            Term::Square => stage(values, first, |x| x * x)?,
        };
        for next in stages {
            sums = stage(&sums, next, |x| x)?;
        }
        let finish: &dyn Fn(T) -> T = match self.finish {
            Finish::Sum => &|sum| sum,
            Finish::Mean => &{
                let share = T::share(values.len().checked_div(sums.len()).unwrap_or(0).max(1));
                move |sum| sum * share
            },
            Finish::Root => &T::root,
            Finish::Logarithm => &T::logarithm,
        };
        if self.finish != Finish::Sum {
            sums.iter_mut().for_each(|sum| *sum = finish(*sum));
        }
        let dims = shape.iter().zip(&self.reduced);
        let shape: TVec<usize> = dims
            .map(|(&dim, &reduced)| if reduced { 1 } else { dim })
            .collect();
        tensor(&shape, sums)
    }
}

/// The three sizes of each reduction of neighbouring axes, from the last ones: what is outside of the axes, along them, and inside.
pub(super) fn stages(shape: &[usize], reduced: &[bool]) -> TVec<[usize; 3]> {
    let mut stages = tvec![];
    let (mut end, mut kept_inside) = (shape.len(), 1usize);
    while let Some(last) = reduced[..end].iter().rposition(|&reduced| reduced) {
        let first = reduced[..last].iter().rposition(|&reduced| !reduced);
        let first = first.map_or(0, |kept| kept + 1);
        kept_inside *= shape[last + 1..end].iter().product::<usize>();
        let (outside, along) = shape[..=last].split_at(first);
        stages.push([outside.iter().product(), along.iter().product(), kept_inside]);
        end = first;
    }
    stages
}

/// FP32 or FP64.
trait Float: Element + Copy + Default + AddAssign + Add<Output = Self> + Mul<Output = Self> {
    fn magnitude(self) -> Self;
    fn root(self) -> Self;
    fn logarithm(self) -> Self;
    /// One of so many equal parts of 1.
    fn share(count: usize) -> Self;
}

macro_rules! float {
    ($($T:ident)*) => {
        $(impl Float for $T {
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }

            fn root(self) -> Self {
                self.sqrt()
            }

            fn logarithm(self) -> Self {
                self.ln()
            }

            fn share(count: usize) -> Self {
                (1.0 / count as f64) as Self
            }
        })*
    };
}
float! { f32 f64 }

/// The sums of terms along the middle of three axes.
fn stage<T: Float>(
    values: &[T],
    [outside, along, width]: [usize; 3],
    term: impl Fn(T) -> T + Copy,
) -> TractResult<Vec<T>> {
    let mut sums = vec![T::default(); outside * width];
    if along * width == 0 {
        return Ok(sums);
    }
    let mut pace = Pace::default();
    let blocks = values.chunks_exact(along * width);
    for (block, sums) in blocks.zip(sums.chunks_exact_mut(width)) {
        pace.spend(block.len() as u64 / 4 + 1)?;
        match sums {
            [sum] => *sum = line_sum(block, term),
            sums => add_rows(block, sums, term),
        }
    }
    Ok(sums)
}

/// Terms that one running sum has at most: FP32 loses a little of each number once the sum is large.
const TERMS: usize = 512;

/// Adds rows to sums that are zero: halves by themselves, until they are short.
fn add_rows<T: Float>(rows: &[T], sums: &mut [T], term: impl Fn(T) -> T + Copy) {
    let width = sums.len();
    let count = rows.len() / width;
    if count > TERMS {
        let (low, high) = rows.split_at(count / 2 * width);
        let mut others = vec![T::default(); width];
        add_rows(low, sums, term);
        add_rows(high, &mut others, term);
        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        return;
    }
    for row in rows.chunks_exact(width) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += term(*value);
        }
    }
}

/// The sum of numbers that lie side by side.
fn line_sum<T: Float>(line: &[T], term: impl Fn(T) -> T + Copy) -> T {
    /// So many at a time, for vector instructions.
    const LANES: usize = 16;
    if line.len() > LANES * TERMS {
        let (low, high) = line.split_at(line.len() / 2);
        return line_sum(low, term) + line_sum(high, term);
    }
    let (parts, rest) = line.as_chunks::<LANES>();
    let mut lanes = [T::default(); LANES];
    for part in parts {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane += term(*value);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += term(*value);
    }
    // Halves onto halves, so that no sum has many more terms than another.
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A model of one reduction.
    fn model(shape: &[usize], axes: &[usize], reducer: Reducer) -> TypedModel {
        let mut model = TypedModel::default();
        let input = model.add_source("x", f32::fact(shape)).unwrap();
        let reduce = Reduce {
            axes: axes.into(),
            reducer,
        };
        let output = model.wire_node("y", reduce, &[input]).unwrap();
        model.select_output_outlets(&output).unwrap();
        model
    }

    fn run(model: TypedModel, input: &Tensor) -> Tensor {
        let outputs = model
            .into_runnable()
            .unwrap()
            .run(tvec![input.clone().into()])
            .unwrap();
        outputs[0].clone().into_tensor()
    }

    #[test]
    fn sums_are_those_of_tract() {
        for shape in [&[2, 3, 5, 37][..], &[4, 1, 1, 3], &[3, 0, 2, 2], &[1, 1, 1, 1]] {
            let count: usize = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|at| (at * 67 % 211) as f32 - 99.0).collect();
            let input = tensor(shape, values).unwrap();
            for bits in 1..16u32 {
                let axes: Vec<usize> = (0..4).filter(|axis| bits >> axis & 1 == 1).collect();
                let is_empty = axes.iter().any(|&axis| shape[axis] == 0);
                for reducer in [Reducer::Sum, Reducer::MeanOfSquares] {
                    // tract takes rows of nothing apart by their length.
                    if is_empty && (reducer == Reducer::MeanOfSquares || axes == [3]) {
                        continue;
                    }
                    let plain = model(shape, &axes, reducer);
                    let mut ours = plain.clone();
                    quicken(&mut ours).unwrap();
                    assert_eq!(ours.nodes()[1].op().name(), "Sums");
                    let (plain, ours) = (run(plain, &input), run(ours, &input));
                    plain
                        .close_enough(&ours, Approximation::Close)
                        .unwrap_or_else(|error| panic!("{shape:?} along {axes:?}: {error}"));
                }
            }
        }
    }

    /// A running sum of FP32 loses a little of each number once it is large.
    #[test]
    fn long_sums_are_precise() {
        let count = 1usize << 21;
        for shape in [[1, count, 2], [1, 2 * count, 1]] {
            let numbers = (0..2 * count).map(|at| 10.0 + (at as f32 * 0.618_034).fract());
            let numbers: Vec<f32> = numbers.collect();
            let width = shape[2];
            let exact = (0..width).map(|column| {
                let column = numbers[column..].iter().step_by(width);
                column.map(|&number| f64::from(number)).sum::<f64>()
            });
            let exact: Vec<f64> = exact.collect();
            let mut model = model(&shape, &[1], Reducer::Sum);
            quicken(&mut model).unwrap();
            let sums = run(model, &tensor(&shape, numbers).unwrap());
            for (sum, exact) in elements::<f32>(&sums).unwrap().iter().zip(exact) {
                let error = (f64::from(*sum) / exact - 1.0).abs();
                assert!(error < 1e-5, "{error} of {shape:?}");
            }
        }
    }

    #[test]
    fn infinities_and_nan_stay() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let input = tensor(&[3, 2], vec![inf, 1.0, inf, -inf, nan, 0.0]).unwrap();
        let mut model = model(&[3, 2], &[1], Reducer::Sum);
        quicken(&mut model).unwrap();
        let sums = run(model, &input);
        let sums = elements::<f32>(&sums).unwrap();
        assert!(sums[0] == inf && sums[1].is_nan() && sums[2].is_nan(), "{sums:?}");
    }
}
