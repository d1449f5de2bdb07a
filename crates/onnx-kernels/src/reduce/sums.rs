//! Sums of floats and their squares along axes.

use std::{
    ops::{Add, AddAssign, Mul},
    sync::Arc,
};

use onnx_tensor::prelude::*;

use crate::least_work::ELEMENTS;

use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::{elements, tensor},
    operator::{Fact, Kernel},
    split,
};

/// A sum along axes: the terms, and the final step.
#[derive(Debug)]
pub(crate) struct Sums {
    /// For each axis, whether the sum is taken over it. Such an axis has size 1 in the result.
    pub(crate) reduced: Vec<bool>,
    pub(crate) term: Term,
    pub(crate) finish: Finish,
}

/// The term that a number adds to its sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    Itself,
    Magnitude,
    Square,
}

/// The final step of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Sum,
    /// Divides by the number of terms. The mean of no terms is 0.
    Mean,
    Root,
    Logarithm,
}

impl Kernel for Sums {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let dims = inputs[0].shape.iter().zip(&self.reduced);
        let shape = dims.map(|(dim, &reduced)| if reduced { 1.into() } else { *dim });
        Ok(vec![Fact::new(inputs[0].element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        Ok(smallvec![self.of(&inputs[0])?])
    }
}

impl Sums {
    /// Returns the sums of an FP32 or FP64 tensor.
    pub(crate) fn of(&self, input: &Tensor) -> Result<Tensor> {
        match input.element_type() {
            ElementType::F32 => self.sums::<f32>(input),
            ElementType::F64 => self.sums::<f64>(input),
            other => bail!("a sum of {other:?}"),
        }
    }

    fn sums<T: Float>(&self, input: &Tensor) -> Result<Tensor> {
        let shape = input.shape();
        let values = elements::<T>(input)?;
        let mut stages = stages(shape, &self.reduced).into_iter();
        // If no axis is reduced, each number is a sum of one term.
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
            Pace::default().over(&mut sums, |sums| {
                sums.iter_mut().for_each(|sum| *sum = finish(*sum));
            })?;
        }
        let dims = shape.iter().zip(&self.reduced);
        let shape: ShortVec<usize> = dims
            .map(|(&dim, &reduced)| if reduced { 1 } else { dim })
            .collect();
        tensor(&shape, sums)
    }
}

/// Groups neighboring reduced axes, the last group first. Returns for each group the number of elements
/// outside, along and inside it.
pub(crate) fn stages(shape: &[usize], reduced: &[bool]) -> ShortVec<[usize; 3]> {
    let mut stages = smallvec![];
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

/// The Rust types of FP32 and FP64.
trait Float: Element + Copy + Default + AddAssign + Add<Output = Self> + Mul<Output = Self> {
    fn magnitude(self) -> Self;
    fn root(self) -> Self;
    fn logarithm(self) -> Self;
    /// Returns `1 / count`.
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

/// Sums terms along the middle of three axes.
fn stage<T: Float>(
    values: &[T],
    [outside, along, width]: [usize; 3],
    term: impl Fn(T) -> T + Copy + Sync,
) -> Result<Vec<T>> {
    let mut sums = vec![T::default(); outside * width];
    if along * width == 0 {
        return Ok(sums);
    }
    let (size, work) = (along * width, [values.len() as u64, ELEMENTS]);
    split::lines(&mut sums, width, work, |first, sums, pace| {
        let blocks = values[first * size..].chunks_exact(size);
        for (block, sums) in blocks.zip(sums.chunks_exact_mut(width)) {
            match sums {
                [sum] => *sum = line_sum(block, term, pace)?,
                sums if size <= PART && along <= TERMS => {
                    pace.spend(size as u64 / 4 + 1)?;
                    add_few_rows(block, sums, term);
                }
                sums => add_rows(block, sums, term, pace)?,
            }
        }
        Ok(())
    })?;
    Ok(sums)
}

/// Maximum number of terms in one running sum, since FP32 loses precision once the sum is large.
const TERMS: usize = 512;

/// Adds the terms of the rows of a small block to zeroed sums, without a division, which takes longer than a
/// short row.
#[inline(always)]
fn add_few_rows<T: Float>(mut rows: &[T], sums: &mut [T], term: impl Fn(T) -> T) {
    while let Some((row, rest)) = rows.split_at_checked(sums.len()) {
        let pairs = sums.iter_mut().zip(row);
        pairs.for_each(|(sum, value)| *sum += term(*value));
        rows = rest;
    }
}

/// Adds the terms of all rows to zeroed sums, by pairwise summation.
fn add_rows<T: Float>(
    rows: &[T],
    sums: &mut [T],
    term: impl Fn(T) -> T + Copy,
    pace: &mut Pace,
) -> Result<()> {
    let width = sums.len();
    let count = rows.len() / width;
    if count > TERMS {
        let (low, high) = rows.split_at(count / 2 * width);
        let mut others = vec![T::default(); width];
        add_rows(low, sums, term, pace)?;
        add_rows(high, &mut others, term, pace)?;
        return pace.pairs(&others, sums, |others, sums| {
            sums.iter_mut()
                .zip(others)
                .for_each(|(sum, other)| *sum += *other);
        });
    }
    pace.spend(1)?;
    // Processes a block of columns at a time, and in it a few rows at a time.
    for (column, sums) in (0..).step_by(PART).zip(sums.chunks_mut(PART)) {
        let columns = column..column + sums.len();
        for rows in rows.chunks(PART / sums.len() * width) {
            pace.spend((rows.len() / width * sums.len()) as u64 / 4)?;
            for row in rows.chunks_exact(width) {
                for (sum, value) in sums.iter_mut().zip(&row[columns.clone()]) {
                    *sum += term(*value);
                }
            }
        }
    }
    Ok(())
}

/// Returns the sum of the terms of contiguous numbers.
fn line_sum<T: Float>(line: &[T], term: impl Fn(T) -> T + Copy, pace: &mut Pace) -> Result<T> {
    /// Number of elements that one iteration of a vectorized loop processes.
    const LANES: usize = 16;
    if line.len() > LANES * TERMS {
        let (low, high) = line.split_at(line.len() / 2);
        return Ok(line_sum(low, term, pace)? + line_sum(high, term, pace)?);
    }
    pace.spend(line.len() as u64 / 4 + 1)?;
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
    // Adds the lanes as a tree, so that all added sums have similar numbers of terms.
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        half /= 2;
    }
    Ok(lanes[0])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn sums(shape: &[usize], axes: &[usize], finish: (Term, Finish), values: Vec<f32>) -> Tensor {
        let sums = Sums {
            reduced: (0..shape.len()).map(|axis| axes.contains(&axis)).collect(),
            term: finish.0,
            finish: finish.1,
        };
        let input = tensor(shape, values).unwrap().into_arc();
        sums.run(&[input]).unwrap().swap_remove(0)
    }

    #[test]
    fn numbers_are_added_along_axes() {
        for shape in [&[2, 3, 5, 37][..], &[4, 1, 1, 3], &[3, 0, 2, 2], &[1, 1, 1, 1]] {
            let count: usize = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|at| (at * 67 % 211) as f32 - 99.0).collect();
            for bits in 1..16u32 {
                let axes: Vec<usize> = (0..4).filter(|axis| bits >> axis & 1 == 1).collect();
                let kept = |axis: usize| if axes.contains(&axis) { 1 } else { shape[axis] };
                let mut wanted = vec![[0f64; 2]; (0..4).map(kept).product()];
                for (at, value) in values.iter().enumerate() {
                    let (mut rest, mut place, mut stride) = (at, 0, 1);
                    for axis in (0..4).rev() {
                        if !axes.contains(&axis) {
                            place += rest % shape[axis] * stride;
                            stride *= shape[axis];
                        }
                        rest /= shape[axis];
                    }
                    wanted[place][0] += f64::from(*value);
                    wanted[place][1] += f64::from(*value).powi(2);
                }
                let length: usize = axes.iter().map(|&axis| shape[axis]).product();
                let plain = sums(shape, &axes, (Term::Itself, Finish::Sum), values.clone());
                let squares = sums(shape, &axes, (Term::Square, Finish::Mean), values.clone());
                let found = elements::<f32>(&plain).unwrap().iter();
                let found = found.zip(elements::<f32>(&squares).unwrap());
                for ((sum, mean), wanted) in found.zip(&wanted) {
                    let close = |found: f32, wanted: f64| {
                        wanted.is_nan() || (f64::from(found) - wanted).abs() <= 1e-5 * wanted.abs().max(1.0)
                    };
                    assert!(close(*sum, wanted[0]), "{shape:?} along {axes:?}");
                    assert!(
                        close(*mean, wanted[1] / length as f64),
                        "{shape:?} along {axes:?}"
                    );
                }
                assert_eq!(plain.len(), wanted.len());
            }
        }
    }

    /// Checks the precision of long sums: a running FP32 sum would lose precision once it is large.
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
            let sums = sums(&shape, &[1], (Term::Itself, Finish::Sum), numbers);
            for (sum, exact) in elements::<f32>(&sums).unwrap().iter().zip(exact) {
                let error = (f64::from(*sum) / exact - 1.0).abs();
                assert!(error < 1e-5, "{error} of {shape:?}");
            }
        }
    }

    #[test]
    fn infinities_and_nan_stay() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let values = vec![inf, 1.0, inf, -inf, nan, 0.0];
        let sums = sums(&[3, 2], &[1], (Term::Itself, Finish::Sum), values);
        let sums = elements::<f32>(&sums).unwrap();
        assert!(sums[0] == inf && sums[1].is_nan() && sums[2].is_nan(), "{sums:?}");
    }
}
