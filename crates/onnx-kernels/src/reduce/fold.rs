//! Reductions of integers and BOOL, and the reductions of floats that [`sums`](super::sums) does not cover:
//! `ReduceLogSumExp` (without overflow), `ReduceMax` and `ReduceMin` (NaN propagates), and `ReduceMean` over
//! possibly empty axes.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    elementwise::integers::with_whole,
    reduce::sums::{Finish, Sums, Term, stages},
};
use onnx_tensor::{
    axis,
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Limit, Unsupported},
    node::Node,
    size,
};

fn fold(node: &Node) -> Result<Fold> {
    Ok(match node.op_type.as_str() {
        "ReduceSum" => Fold::Sum,
        "ReduceSumSquare" => Fold::SumSquare,
        "ReduceL1" => Fold::SumAbs,
        "ReduceMean" => Fold::Mean,
        "ReduceProd" => Fold::Product,
        "ReduceMax" => Fold::Max,
        "ReduceMin" => Fold::Min,
        "ReduceLogSumExp" => Fold::LogSumExp,
        "ReduceL2" => Fold::Norm,
        "ReduceLogSum" => Fold::LogSum,
        _ => bail!(Unsupported::Anywhere("is not supported for integers".to_owned())),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    Sum,
    SumSquare,
    SumAbs,
    Mean,
    Product,
    Max,
    Min,
    LogSumExp,
    /// The root of the sum of squares, for integers only.
    Norm,
    LogSum,
}

/// A reduction along axes.
#[derive(Debug)]
pub(crate) struct Reduce {
    fold: Fold,
    /// The axes in the attribute; `None` if the axes are an input.
    axes: Option<Vec<i64>>,
    keeps_dims: bool,
    no_axes_is_no_op: bool,
}

impl Reduce {
    /// Finds the reduction by the operator's name.
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let (fold, opset) = (fold(node)?, node.opset);
        let attributes = Attributes(node);
        let has_axes_input = opset >= 18 || (opset >= 13 && fold == Fold::Sum);
        Ok(Self {
            fold,
            axes: (!has_axes_input).then(|| attributes.ints("axes").to_vec()),
            keeps_dims: attributes.flag("keepdims", true)?,
            no_axes_is_no_op: attributes.flag("noop_with_empty_axes", false)?,
        })
    }

    /// Returns the axes; `None` if they are unknown before a run.
    pub(crate) fn known_axes(&self, input: Option<&Fact>) -> Option<Vec<i64>> {
        match (&self.axes, input) {
            (Some(axes), _) => Some(axes.clone()),
            (None, Some(axes)) => axes.integers(),
            (None, None) => Some(vec![]),
        }
    }

    /// Returns the axes to reduce: from the attribute, or else from the `axes` input.
    fn axes(&self, input: Option<&Arc<Tensor>>) -> Result<Vec<i64>> {
        match (&self.axes, input) {
            (Some(axes), _) => Ok(axes.clone()),
            (None, Some(axes)) => Ok(elements::<i64>(axes)?.to_vec()),
            (None, None) => Ok(vec![]),
        }
    }

    /// Returns the shape of the result, with `one` for each reduced axis that is kept.
    pub(crate) fn shape<D: Clone>(&self, shape: &[D], axes: Vec<i64>, one: &D) -> Result<ShortVec<D>> {
        let dims = shape.iter().zip(self.reduced(axes, shape.len())?);
        let shape = dims.filter_map(|(dim, reduced)| match (reduced, self.keeps_dims) {
            (false, _) => Some(dim.clone()),
            (true, true) => Some(one.clone()),
            (true, false) => None,
        });
        Ok(shape.collect())
    }

    /// Returns for each axis whether it is reduced.
    fn reduced(&self, given: Vec<i64>, rank: usize) -> Result<Vec<bool>> {
        let mut reduced = vec![false; rank];
        if given.is_empty() && !self.no_axes_is_no_op {
            reduced.fill(true);
        }
        for axis in given {
            reduced[axis::axis(axis, rank)?] = true;
        }
        Ok(reduced)
    }
}

impl Kernel for Reduce {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let axes = self.known_axes(inputs.get(1));
        let axes = axes.ok_or_else(|| Limit("needs its axes to be constant".to_owned()))?;
        let shape = self.shape(&inputs[0].shape, axes, &1.to_dim())?;
        Ok(vec![Fact::new(inputs[0].element_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let input = &inputs[0];
        let axes = self.axes(inputs.get(1))?;
        let reduced = self.reduced(axes.clone(), input.rank())?;
        let made = match input.is_empty() && input.element_type().is_float() {
            true => self.of_nothing(input, &reduced)?,
            false => self.folded(input, reduced)?,
        };
        Ok(smallvec![made.into_shape(&self.shape(
            input.shape(),
            axes,
            &1
        )?)?])
    }
}

impl Reduce {
    fn of_nothing(&self, input: &Tensor, reduced: &[bool]) -> Result<Tensor> {
        let number = match self.fold {
            Fold::Sum | Fold::SumSquare | Fold::SumAbs | Fold::Mean | Fold::Norm => 0.0,
            Fold::Product => 1.0,
            Fold::Max | Fold::LogSumExp | Fold::LogSum => f32::NEG_INFINITY,
            Fold::Min => f32::INFINITY,
        };
        let number = Tensor::scalar(number)
            .cast_to_type(input.element_type())?
            .into_owned();
        let dims = input.shape().iter().zip(reduced);
        let shape: ShortVec<usize> = dims
            .map(|(&dim, &reduced)| if reduced { 1 } else { dim })
            .collect();
        number.broadcast_to(&shape)
    }

    /// Returns the results in row-major order of the remaining axes.
    fn folded(&self, input: &Tensor, reduced: Vec<bool>) -> Result<Tensor> {
        let shape = input.shape();
        macro_rules! real {
            ($T:ident) => {{
                let values = elements::<$T>(input)?;
                let folded = match self.fold {
                    Fold::Product => folded(values, shape, &reduced, 1.0, itself, |a, b| a * b)?,
                    Fold::Max => folded(values, shape, &reduced, $T::NEG_INFINITY, itself, greater)?,
                    Fold::Min => folded(values, shape, &reduced, $T::INFINITY, itself, less)?,
                    Fold::LogSumExp => {
                        let wide = Wide {
                            count: values.len(),
                            widen: &|first, wide| widened(&values[first..], wide, f64::from),
                        };
                        let logarithms = log_sum_exp(&wide, shape, &reduced)?;
                        Pace::default().map(&logarithms, |&x| x as $T)?
                    }
                    Fold::Sum => return sums(input, reduced, Term::Itself, Finish::Sum),
                    Fold::SumAbs => return sums(input, reduced, Term::Magnitude, Finish::Sum),
                    Fold::SumSquare => return sums(input, reduced, Term::Square, Finish::Sum),
                    Fold::Mean => return sums(input, reduced, Term::Itself, Finish::Mean),
                    Fold::Norm => return sums(input, reduced, Term::Square, Finish::Root),
                    Fold::LogSum => return sums(input, reduced, Term::Itself, Finish::Logarithm),
                };
                line(folded)
            }};
        }
        match input.element_type() {
            ElementType::F32 => real!(f32),
            ElementType::F64 => real!(f64),
            ElementType::Bool => {
                let truths = elements::<bool>(input)?;
                line(match self.fold {
                    Fold::Max => folded(truths, shape, &reduced, false, itself, |a, b| a | b)?,
                    Fold::Min => folded(truths, shape, &reduced, true, itself, |a, b| a & b)?,
                    other => bail!("{other:?} of BOOL"),
                })
            }
            whole => with_whole!(whole, T => self.whole::<T>(input, &reduced)),
        }
    }

    /// Reduces integers. Sums and products wrap, so one loop per width is compiled instead of one per type.
    fn whole<T: Integer>(&self, input: &Tensor, reduced: &[bool]) -> Result<Tensor> {
        let (shape, values) = (input.shape(), elements::<T>(input)?);
        let is_signed = T::LEAST < T::ZERO;
        match self.fold {
            Fold::SumSquare => wrapped::<T::Bits>(input, reduced, Term::Square),
            Fold::SumAbs if is_signed => wrapped::<T::Bits>(input, reduced, Term::Magnitude),
            Fold::Sum | Fold::SumAbs => wrapped::<T::Bits>(input, reduced, Term::Itself),
            Fold::Product => {
                let values = input.as_units::<T::Bits>()?;
                let products = folded(values, shape, reduced, T::Bits::ONE, itself, T::Bits::times)?;
                Tensor::from_units(input.element_type(), &[products.len()], products)
            }
            Fold::Mean => {
                let sums = wrapped::<T::Bits>(input, reduced, Term::Itself)?;
                let count = values.len().checked_div(sums.len()).unwrap_or(0).max(1);
                line(Pace::default().map(elements::<T>(&sums)?, |sum| sum.divided(count))?)
            }
            Fold::Max => line(folded(values, shape, reduced, T::LEAST, itself, Ord::max)?),
            Fold::Min => line(folded(values, shape, reduced, T::GREATEST, itself, Ord::min)?),
            Fold::LogSumExp | Fold::Norm | Fold::LogSum => {
                let wide = Wide {
                    count: values.len(),
                    widen: &|first, wide| widened(&values[first..], wide, T::wide),
                };
                // Roots and logarithms are truncated to integers.
                let finished = self.floating(&wide, shape, reduced)?;
                line(Pace::default().map(&finished, |&number| T::truncated(number))?)
            }
        }
    }

    /// Reduces integers in FP64.
    fn floating(&self, values: &Wide<'_>, shape: &[usize], reduced: &[bool]) -> Result<Vec<f64>> {
        if self.fold == Fold::LogSumExp {
            return log_sum_exp(values, shape, reduced);
        }
        let is_norm = self.fold == Fold::Norm;
        let kept = shape.iter().zip(reduced).filter(|(_, reduced)| !**reduced);
        let groups: usize = kept.map(|(&dim, _)| dim).product();
        size::admit_now(8 * groups as u64)?;
        let mut sums = vec![0.0; groups];
        each_in_group(values, shape, reduced, &mut |number, group| {
            sums[group] += if is_norm { number * number } else { number };
        })?;
        let finish = if is_norm { f64::sqrt } else { f64::ln };
        Pace::default().map(&sums, |&sum| finish(sum))
    }
}

/// Computes wrapping sums of integer terms.
fn wrapped<U: Bits>(input: &Tensor, reduced: &[bool], term: Term) -> Result<Tensor> {
    let (shape, values) = (input.shape(), input.as_units::<U>()?);
    let sums = match term {
        Term::Itself => folded(values, shape, reduced, U::ZERO, itself, U::add)?,
        Term::Square => folded(values, shape, reduced, U::ZERO, U::square, U::add)?,
        Term::Magnitude => folded(values, shape, reduced, U::ZERO, U::magnitude, U::add)?,
    };
    Tensor::from_units(input.element_type(), &[sums.len()], sums)
}

/// Creates a one-dimensional tensor.
fn line<T: Element>(numbers: Vec<T>) -> Result<Tensor> {
    tensor(&[numbers.len()], numbers)
}

fn sums(input: &Tensor, reduced: Vec<bool>, term: Term, finish: Finish) -> Result<Tensor> {
    let sums = Sums {
        reduced,
        term,
        finish,
    };
    sums.of(input)
}

/// Returns the maximum of two floats; NaN propagates.
#[expect(clippy::eq_op, reason = "NaN")]
fn greater<T: Copy + PartialOrd>(a: T, b: T) -> T {
    if b > a || b != b { b } else { a }
}

/// Returns the minimum of two floats; NaN propagates.
#[expect(clippy::eq_op, reason = "NaN")]
fn less<T: Copy + PartialOrd>(a: T, b: T) -> T {
    if b < a || b != b { b } else { a }
}

/// Returns the maxima of floats along axes; `least` for empty groups.
pub(crate) fn greatest<T: Copy + PartialOrd>(
    values: &[T],
    shape: &[usize],
    reduced: &[bool],
    least: T,
) -> Result<Vec<T>> {
    folded(values, shape, reduced, least, itself, greater)
}

/// Returns its argument. This is a function instead of a closure, so that folds share their compiled loops.
fn itself<T>(number: T) -> T {
    number
}

/// Folds terms along axes with a commutative function.
fn folded<T: Copy>(
    values: &[T],
    shape: &[usize],
    reduced: &[bool],
    start: T,
    term: impl Fn(T) -> T + Copy,
    join: impl Fn(T, T) -> T + Copy,
) -> Result<Vec<T>> {
    let mut stages = stages(shape, reduced).into_iter();
    // If no axis is reduced, each element is a result.
    let first = stages.next().unwrap_or([1, 1, values.len()]);
    let mut made = stage(values, first, start, term, join)?;
    for next in stages {
        made = stage(&made, next, start, itself, join)?;
    }
    Ok(made)
}

/// Folds terms along the middle of three axes.
fn stage<T: Copy>(
    values: &[T],
    [outside, along, width]: [usize; 3],
    start: T,
    term: impl Fn(T) -> T + Copy,
    join: impl Fn(T, T) -> T + Copy,
) -> Result<Vec<T>> {
    let mut pace = Pace::default();
    let mut made = pace.repeat(&start, outside * width)?;
    if along * width == 0 {
        return Ok(made);
    }
    let blocks = values.chunks_exact(along * width);
    for (block, made) in blocks.zip(made.chunks_exact_mut(width)) {
        pace.spend(1)?;
        if width > 1 && block.len() <= PART {
            // Avoids a division, which takes longer than a short row.
            pace.spend(block.len() as u64 / 4)?;
            let mut rows = block;
            while let Some((row, rest)) = rows.split_at_checked(width) {
                let pairs = made.iter_mut().zip(row);
                pairs.for_each(|(made, &value)| *made = join(*made, term(value)));
                rows = rest;
            }
            continue;
        }
        if let [made] = made {
            *made = line_fold(block, start, term, join, &mut pace)?;
            continue;
        }
        // Processes a block of columns at a time, and in it a few rows at a time.
        for (column, made) in (0..).step_by(PART).zip(made.chunks_mut(PART)) {
            let columns = column..column + made.len();
            for rows in block.chunks(PART / made.len() * width) {
                pace.spend((rows.len() / width * made.len()) as u64 / 4)?;
                for row in rows.chunks_exact(width) {
                    for (made, &value) in made.iter_mut().zip(&row[columns.clone()]) {
                        *made = join(*made, term(value));
                    }
                }
            }
        }
    }
    Ok(made)
}

/// Folds the terms of contiguous elements.
#[inline(always)]
fn line_fold<T: Copy>(
    line: &[T],
    start: T,
    term: impl Fn(T) -> T + Copy,
    join: impl Fn(T, T) -> T + Copy,
    pace: &mut Pace,
) -> Result<T> {
    /// Number of elements that one iteration of a vectorized loop processes.
    const LANES: usize = 16;
    /// Number of steps that an iteration counts as.
    const STEPS: u64 = 4;
    let (parts, rest) = line.as_chunks::<LANES>();
    let mut all = start;
    if !parts.is_empty() {
        let mut lanes = [start; LANES];
        for parts in parts.chunks(PART / LANES) {
            pace.spend(STEPS * parts.len() as u64)?;
            for part in parts {
                lanes = std::array::from_fn(|lane| join(lanes[lane], term(part[lane])));
            }
        }
        all = lanes.iter().fold(start, |a, &b| join(a, b));
    }
    Ok(rest.iter().fold(all, |a, &b| join(a, term(b))))
}

/// Iterates over the group index of each element of a tensor in row-major order, repeated forever. Elements
/// that differ only in the `reduced` axes are in one group.
#[inline]
pub fn groups<'a>(shape: &'a [usize], reduced: &'a [bool]) -> impl Iterator<Item = usize> + use<'a> {
    let mut place = vec![0usize; shape.len()];
    std::iter::repeat_with(move || {
        let kept = place
            .iter()
            .zip(shape)
            .zip(reduced)
            .filter(|(_, reduced)| !**reduced);
        let group = kept.fold(0, |index, ((&at, &dim), _)| index * dim + at);
        for (at, &dim) in place.iter_mut().zip(shape).rev() {
            *at += 1;
            if *at < dim {
                break;
            }
            *at = 0;
        }
        group
    })
}

/// Numbers of any type that are read as FP64, in blocks.
struct Wide<'v> {
    count: usize,
    /// Writes numbers as FP64, starting at the given index.
    widen: &'v dyn Fn(usize, &mut [f64]),
}

fn widened<T: Copy>(from: &[T], to: &mut [f64], wide: impl Fn(T) -> f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = wide(*from));
}

/// Calls `run` for each number, with the index of its group.
fn each_in_group(
    numbers: &Wide<'_>,
    shape: &[usize],
    reduced: &[bool],
    run: &mut dyn FnMut(f64, usize),
) -> Result<()> {
    const BLOCK: usize = 1 << 10;
    let mut groups = groups(shape, reduced);
    let mut pace = Pace::default();
    let mut block = [0.0; BLOCK];
    for first in (0..numbers.count).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min(numbers.count - first)];
        pace.spend(4 * block.len() as u64)?;
        (numbers.widen)(first, block);
        block
            .iter()
            .zip(&mut groups)
            .for_each(|(&number, group)| run(number, group));
    }
    Ok(())
}

/// Computes the logarithm of the sum of exponentials, relative to the maximum so that nothing overflows.
fn log_sum_exp(numbers: &Wide<'_>, shape: &[usize], reduced: &[bool]) -> Result<Vec<f64>> {
    let kept = shape.iter().zip(reduced).filter(|(_, reduced)| !**reduced);
    let count: usize = kept.map(|(&dim, _)| dim).product();
    size::admit_now(24 * count as u64)?;
    let mut pace = Pace::default();
    let mut greatest = pace.repeat(&f64::NEG_INFINITY, count)?;
    each_in_group(numbers, shape, reduced, &mut |x, group| {
        greatest[group] = greatest[group].max(x);
    })?;
    // The difference of two infinities would be NaN. With 0 in place of the maximum, the sum is infinite or
    // 0, so its logarithm is infinite, as it should be.
    pace.over(&mut greatest, |greatest: &mut [f64]| {
        let infinite = greatest.iter_mut().filter(|greatest| greatest.is_infinite());
        infinite.for_each(|greatest| *greatest = 0.0);
    })?;
    let mut sums = vec![0.0; count];
    each_in_group(numbers, shape, reduced, &mut |x, group| {
        sums[group] += (x - greatest[group]).exp();
    })?;
    pace.collect(
        sums.iter()
            .zip(greatest)
            .map(|(sum, greatest)| sum.ln() + greatest),
    )
}

/// Wrapping arithmetic on the bits of signed and unsigned integers, as in NumPy.
trait Bits: Unit + Copy {
    const ZERO: Self;
    const ONE: Self;

    fn add(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn square(self) -> Self;
    /// Returns the absolute value, for bits of a signed integer.
    fn magnitude(self) -> Self;
}

macro_rules! bits {
    ($($type:ty),*) => {$(
        impl Bits for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;

            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn square(self) -> Self {
                self.wrapping_mul(self)
            }

            fn magnitude(self) -> Self {
                self.cast_signed().unsigned_abs()
            }
        }
    )*};
}

bits! { u8, u16, u32, u64 }

/// Integer operations that differ by type.
trait Integer: Element + Copy + Ord {
    type Bits: Bits;
    const ZERO: Self;
    const LEAST: Self;
    const GREATEST: Self;

    /// Divides a sum by its number of terms.
    fn divided(self, count: usize) -> Self;
    fn wide(self) -> f64;
    /// Converts a float to this type by truncation.
    fn truncated(number: f64) -> Self;
}

macro_rules! integer {
    ($($type:ty: $bits:ty),* $(,)?) => {$(
        impl Integer for $type {
            type Bits = $bits;
            const ZERO: Self = 0;
            const LEAST: Self = Self::MIN;
            const GREATEST: Self = Self::MAX;

            fn divided(self, count: usize) -> Self {
                (i128::from(self) / count as i128) as Self
            }

            fn wide(self) -> f64 {
                self as f64
            }

            fn truncated(number: f64) -> Self {
                number as Self
            }
        }
    )*};
}

integer! {
    u8: u8, u16: u16, u32: u32, u64: u64, i8: u8, i16: u16, i32: u32, i64: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn reduced(fold: Fold, shape: &[usize], values: &[f32], axes: &[i64]) -> Vec<f32> {
        let reduce = Reduce {
            fold,
            axes: Some(axes.to_vec()),
            keeps_dims: false,
            no_axes_is_no_op: false,
        };
        let input = Tensor::from_shape(shape, values).unwrap().into_arc();
        let outputs = reduce.run(&[input]).unwrap();
        elements::<f32>(&outputs[0]).unwrap().to_vec()
    }

    #[test]
    fn roots_and_logarithms_of_whole_numbers_are_rounded_towards_zero() {
        let of = |fold, values: &[i32]| {
            let reduce = Reduce {
                fold,
                axes: Some(vec![1]),
                keeps_dims: false,
                no_axes_is_no_op: false,
            };
            let input = Tensor::from_shape(&[1, values.len()], values).unwrap();
            let outputs = reduce.run(&[input.into_arc()]).unwrap();
            elements::<i32>(&outputs[0]).unwrap()[0]
        };
        assert_eq!(of(Fold::Norm, &[-3, 4]), 5);
        assert_eq!(of(Fold::Norm, &[1, 1]), 1);
        assert_eq!(of(Fold::LogSum, &[4, 4]), 2);
        assert_eq!(of(Fold::LogSumExp, &[900, 900, 900]), 901);
    }

    #[test]
    fn extremes_of_infinities_nan_and_nothing() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let values = [-inf, -inf, inf, inf, nan, 1.0, 1.0, nan];
        let most = reduced(Fold::Max, &[4, 2], &values, &[1]);
        assert_eq!(most[..2], [-inf, inf]);
        assert!(most[2].is_nan() && most[3].is_nan());
        let least = reduced(Fold::Min, &[4, 2], &values, &[1]);
        assert_eq!(least[..2], [-inf, inf]);
        assert!(least[2].is_nan() && least[3].is_nan());
        for axes in [&[1][..], &[]] {
            let count = if axes.is_empty() { 1 } else { 3 };
            assert_eq!(reduced(Fold::Max, &[3, 0], &[], axes), vec![-inf; count]);
            assert_eq!(reduced(Fold::Min, &[3, 0], &[], axes), vec![inf; count]);
        }
    }

    #[test]
    fn extremes_along_all_axes_are_those_of_their_groups() {
        let shape = [2, 3, 5, 7];
        let count = shape.iter().product();
        // Distinct values in shuffled order, so each group has a unique extreme.
        let values: Vec<f32> = (0..count)
            .map(|at: usize| (at * 67 % 210) as f32 - 99.0)
            .collect();
        for bits in 1..16u32 {
            let axes: Vec<i64> = (0..4).filter(|axis| bits >> axis & 1 == 1).collect();
            let along: Vec<bool> = (0..4).map(|axis| bits >> axis & 1 == 1).collect();
            let kept = shape.iter().zip(&along).filter(|(_, reduced)| !**reduced);
            let results: usize = kept.map(|(&dim, _)| dim).product();
            let (mut most, mut least) = (vec![f32::MIN; results], vec![f32::MAX; results]);
            for (&value, group) in values.iter().zip(groups(&shape, &along)) {
                most[group] = most[group].max(value);
                least[group] = least[group].min(value);
            }
            assert_eq!(reduced(Fold::Max, &shape, &values, &axes), most, "{axes:?}");
            assert_eq!(reduced(Fold::Min, &shape, &values, &axes), least, "{axes:?}");
        }
    }
}
