//! Sums of floats along axes, and means of squares, which tract computes number by number unless the last axis is the only one. Of
//! FP64 it divides by the length of a line without looking.

use std::{
    borrow::Cow,
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

/// Puts them in the place of tract's.
pub(super) fn quicken(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes().len() {
        let node = model.node(id);
        let Some(reduce) = node.op_as::<Reduce>() else {
            continue;
        };
        let of_squares = match reduce.reducer {
            Reducer::Sum => false,
            Reducer::MeanOfSquares => true,
            _ => continue,
        };
        let input = model.outlet_fact(node.inputs[0])?;
        let is_float = matches!(input.datum_type, DatumType::F32 | DatumType::F64);
        if !is_float || reduce.axes.is_empty() {
            continue;
        }
        let sums = Sums {
            datum_type: input.datum_type,
            reduced: (0..input.rank())
                .map(|axis| reduce.axes.contains(&axis))
                .collect(),
            of_squares,
        };
        model.node_mut(id).op = Box::new(typed(sums));
    }
    Ok(())
}

#[derive(Debug)]
struct Sums {
    datum_type: DatumType,
    /// For each axis, whether sums go along it; it keeps a size of 1.
    reduced: Vec<bool>,
    /// The means of squares, in place of sums.
    of_squares: bool,
}

impl Kernel for Sums {
    fn name(&self) -> &'static str {
        "Sums"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let dims = inputs[0].shape.iter().zip(&self.reduced);
        let shape = dims.map(|(dim, &reduced)| if reduced { 1.into() } else { dim.clone() });
        Ok(vec![Fact::new(self.datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        Ok(tvec![match self.datum_type {
            DatumType::F64 => self.sums(&inputs[0], |share| share)?,
            _ => self.sums(&inputs[0], |share| share as f32)?,
        }])
    }
}

/// The sums of a value along some axes, each of which keeps a size of 1; `share` is what each sum is multiplied by.
pub(super) fn along(input: &Tensor, reduced: Vec<bool>, share: Option<f64>) -> TractResult<Tensor> {
    let sums = Sums {
        datum_type: input.datum_type(),
        reduced,
        of_squares: false,
    };
    match input.datum_type() {
        DatumType::F64 => scaled(sums.sums(input, |share| share)?, share, |share| share),
        _ => scaled(sums.sums(input, |share| share as f32)?, share, |share| {
            share as f32
        }),
    }
}

fn scaled<T: Float>(
    mut sums: Tensor,
    share: Option<f64>,
    from_f64: impl Fn(f64) -> T,
) -> TractResult<Tensor> {
    if let Some(share) = share {
        let share = from_f64(share);
        let mut view = sums.try_as_plain_ram_mut()?;
        for sum in view.as_slice_mut::<T>()? {
            *sum = *sum * share;
        }
    }
    Ok(sums)
}

impl Sums {
    fn sums<T: Float>(&self, input: &Tensor, from_f64: impl Fn(f64) -> T) -> TractResult<Tensor> {
        let mut shape: TVec<usize> = input.shape().into();
        let count = input.len();
        let mut values = Cow::Borrowed(elements::<T>(input)?);
        if self.of_squares {
            values
                .to_mut()
                .iter_mut()
                .for_each(|value| *value = *value * *value);
        }
        // Neighbouring axes together, from the last.
        let mut end = shape.len();
        while let Some(last) = self.reduced[..end].iter().rposition(|&reduced| reduced) {
            let first = self.reduced[..last].iter().rposition(|&reduced| !reduced);
            let first = first.map_or(0, |kept| kept + 1);
            let outside = shape[..first].iter().product();
            let along = shape[first..=last].iter().product();
            let width = shape[last + 1..].iter().product();
            values = Cow::Owned(sums(&values, outside, along, width));
            shape[first..=last].fill(1);
            end = first;
        }
        let mut sums = values.into_owned();
        if self.of_squares {
            // Of nothing it is 0.
            let share = from_f64(sums.len() as f64 / count.max(1) as f64);
            sums.iter_mut().for_each(|sum| *sum = *sum * share);
        }
        tensor(&shape, sums)
    }
}

/// FP32 or FP64.
trait Float: Element + Copy + Default + AddAssign + Add<Output = Self> + Mul<Output = Self> {}

impl Float for f32 {}
impl Float for f64 {}

/// The sums along the middle of three axes.
fn sums<T: Float>(values: &[T], outside: usize, along: usize, width: usize) -> Vec<T> {
    let mut sums = vec![T::default(); outside * width];
    if along * width == 0 {
        return sums;
    }
    let blocks = values.chunks_exact(along * width);
    for (block, sums) in blocks.zip(sums.chunks_exact_mut(width)) {
        match sums {
            [sum] => *sum = line_sum(block),
            sums => add_rows(block, sums),
        }
    }
    sums
}

/// Terms that one running sum has at most: FP32 loses a little of each number once the sum is large.
const TERMS: usize = 512;

/// Adds rows to sums that are zero: halves by themselves, until they are short.
fn add_rows<T: Float>(rows: &[T], sums: &mut [T]) {
    let width = sums.len();
    let count = rows.len() / width;
    if count > TERMS {
        let (low, high) = rows.split_at(count / 2 * width);
        let mut others = vec![T::default(); width];
        add_rows(low, sums);
        add_rows(high, &mut others);
        sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        return;
    }
    for row in rows.chunks_exact(width) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += *value;
        }
    }
}

/// The sum of numbers that lie side by side.
fn line_sum<T: Float>(line: &[T]) -> T {
    /// So many at a time, for vector instructions.
    const LANES: usize = 16;
    if line.len() > LANES * TERMS {
        let (low, high) = line.split_at(line.len() / 2);
        return line_sum(low) + line_sum(high);
    }
    let (parts, rest) = line.as_chunks::<LANES>();
    let mut lanes = [T::default(); LANES];
    for part in parts {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane += *value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += *value;
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
